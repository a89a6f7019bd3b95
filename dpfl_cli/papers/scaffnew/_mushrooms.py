"""Logistic regression on mushrooms: what its artifacts share."""

from collections.abc import Mapping
from itertools import pairwise
from math import inf
from typing import Any

from dpfl_cli.papers.scaffnew._tasks import EPSILONS, METHODS, NONE, PRIVATE, shape
from dpfl_cli.reproduction.api import (
    Best,
    Derived,
    Fact,
    Figure,
    Judge,
    Metric,
    Rows,
    Run,
    Where,
    below,
    every,
)

DIVISORS = tuple(number for number in range(1, 481) if 480 % number == 0)
STEPS = {
    "smoke": (1, 4, 20),
    "quick": (1, 2, 3, 4, 6, 8, 12, 16, 20, 24, 30, 40, 60),
    "paper": DIVISORS,
}
LOWEST = "lowest f(x_T) - f*"
V = 9.4e-9  # makes the argument of T*'s logarithm 500 at epsilon 3.3 and clip norm 10
PROVED = ("dp=ldp", "dp.relation=zero_out", "dp.delta=1e-5", "dp.calibration=zcdp", "dp.epsilon=1")

# --- runs -------------------------------------------------------------------------------------


def on_mushrooms(labels: Where, values: Mapping[str, Any], v: float | None = V) -> Run:
    """A run of the labels "method" and perhaps "tau" (local steps) and "T" (iterations).

    With the label "eps" (or "tenth") it has noise for that epsilon at clip norm "C", or 10; by
    Lemma 1 with `v`, or without one noise that is proved for it.
    """
    overrides = ["+experiment=scaffnew/mushrooms", METHODS[labels["method"]]]
    overrides.append("algorithm.final_release=false")
    eps = labels.get("eps", labels.get("tenth", NONE))
    keys = {"tau": "algorithm.local_steps", "T": "rounds"}
    values = {**values, **{key: labels[name] for name, key in keys.items() if name in labels}}
    if eps == NONE:
        return Run(labels, [*overrides, "dp=none"], values)
    values |= {"dp.epsilon": eps, "algorithm.clip_norm": labels.get("C", 10.0)}
    if v is None:
        return Run(labels, [*overrides, *PROVED], values)
    return Run(labels, [*overrides, *PRIVATE], {**values, "dp.v": v})


# --- measures and figures ---------------------------------------------------------------------


def gap(**where: Any) -> Metric:
    return Metric("suboptimality", "last", better="lower", title="f(x_T) - f*", where=where)


def free_steps(**where: Any) -> Fact:
    """How many local steps are free without noise."""
    own = {**where, "method": "ScaffNew", "best": True}
    return Fact("theory.local_steps", decimals=1, title="1/p*", where=own)


def best_steps_over_advice(*per: str, **where: Any) -> Derived:
    return Derived(
        lambda rows: rows.value("best.tau") / rows.value("free_steps"),
        per,
        by_seed=False,
        decimals=2,
        title="best local steps times p*",
        where=where,
    )


def lowest(label: str, **where: Any) -> Best:
    return Best(label, "suboptimality", where=where, note=LOWEST)


def against_steps(*panels: str, **more: Any) -> Figure:
    """Suboptimality against local steps, with 1/p*."""
    return Figure(
        "lines",
        "tau",
        "suboptimality",
        series="eps",
        panels=panels,
        log=["x", "y"],
        marks={"free_steps": "1/p*"},
        x_title="local steps between communications",
        **more,
    )


# --- what claims say of the best number of local steps, of every seed -------------------------


def best_steps(rows: Rows, **cell: Any) -> float:
    """The best number of local steps of one seed."""
    return float(rows.best("suboptimality", "tau", **cell))


def over_epsilon(rows: Rows, cell: Where, label: str = "tau") -> list[float]:
    """The best numbers of local steps, or of iterations."""
    return [float(rows.best("suboptimality", label, eps=eps, **cell)) for eps in EPSILONS]


def inside(**cells: Any) -> Judge:
    """It is neither 1 nor 480, one communication in all."""

    def test(rows: Rows, cell: Where) -> bool:
        found = [rows.value("suboptimality", tau=tau, **cell) for tau in (1, 480)]
        best = rows.value("suboptimality", tau=best_steps(rows, **cell), **cell)
        return best < min(found)

    return shape("best local steps beat 1 and 480", test, **cells)


def no_fall(steps: int = 1, **cells: Any) -> Judge:
    """It rises as epsilon falls, or falls by so many steps of the grid at most."""

    def test(rows: Rows, cell: Where) -> bool:
        grid = rows.choices("tau")
        places = [grid.index(best) for best in over_epsilon(rows, cell)]
        return all(high <= low + steps for low, high in pairwise(places))

    return shape("best local steps do not fall with epsilon", test, **cells)


def in_factor(free: float, alike: float = inf, near: float = 3, **cell: Any) -> Judge:
    """It is within a factor of 1/p* = `free` at every epsilon, and within `alike` of itself."""

    def test(rows: Rows, cell: Where) -> bool:
        best = over_epsilon(rows, cell)
        within = all(free / near <= one <= free * near for one in best)
        return within and max(best) <= alike * min(best)

    return shape("best local steps", test, method="ScaffNew", **cell)


def closer(**cells: Any) -> Judge:
    """DP-ScaffNew is closer to f* than DP-FedAvg, each at its best number."""
    return every(below, "suboptimality", "method", method=METHODS, best=True, **cells)
