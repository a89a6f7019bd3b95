"""Logistic regression on mushrooms: what its artifacts share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from dpfl_cli.papers.scaffnew._tasks import EPSILONS, METHODS, NONE, PRIVATE, best_of
from dpfl_cli.reproduction.api import Metric, Price, Rows, Run

DIVISORS = tuple(number for number in range(1, 481) if 480 % number == 0)
LOWEST = "lowest f(x_T) - f*"
GAP = Metric(metric="suboptimality", at="last", better="lower", title="f(x_T) - f*")
SPENT = Price(title="epsilon of the ledger", where={"eps": EPSILONS, "best": True})


def on_mushrooms(
    labels: Mapping[str, Any],
    method: str,
    values: Mapping[str, Any],
    privacy: Sequence[str] = PRIVATE,
) -> Run:
    """A run; what it has noise for is in `values` (see `noise`)."""
    overrides = ["+experiment=scaffnew/mushrooms", METHODS[method]]
    return Run(labels, [*overrides, "algorithm.final_release=false", *privacy], values)


def noise(epsilon: float, v: float = 9.4e-9, clip_norm: float = 10.0) -> dict[str, float]:
    """Values of a run under Lemma 1; these make the argument of T*'s logarithm 500 at 3.3."""
    return {"dp.v": v, "dp.epsilon": epsilon, "algorithm.clip_norm": clip_norm}


def privately_or_not(
    labels: Mapping[str, Any], method: str, eps: float | str, values: Mapping[str, Any]
) -> Run:
    """A run with the label "eps", with the noise of a nominal epsilon or with none."""
    labels = {**labels, "method": method, "eps": eps}
    if isinstance(eps, str):
        return on_mushrooms(labels, method, values, ["dp=none"])
    return on_mushrooms(labels, method, {**values, **noise(eps)})


TARGETS: tuple[float | str, ...] = (*EPSILONS, NONE)


def best_steps(rows: Rows, **cell: Any) -> float:
    """The best number of local steps of one seed."""
    return best_of(rows, "tau", "suboptimality", **cell)


def inside(rows: Rows, cell: Mapping[str, Any]) -> bool:
    """Whether the best number of local steps is neither 1 nor 480, one communication in all."""
    found = [rows.value("suboptimality", tau=tau, **cell) for tau in (1, 480)]
    best = rows.value("suboptimality", tau=best_steps(rows, **cell), **cell)
    return best < min(found)


def no_fall(rows: Rows, cell: Mapping[str, Any]) -> bool:
    """Whether the best number rises as epsilon falls, or falls by one step of the grid at most."""
    grid = rows.choices("tau")
    places = [grid.index(best_steps(rows, eps=eps, **cell)) for eps in EPSILONS]
    return all(high <= low + 1 for low, high in pairwise(places))


def in_factor(rows: Rows, free: float, factor: float, **cell: Any) -> bool:
    """Whether the best number is within a factor of 1/p* = `free` at every epsilon."""
    best = [best_steps(rows, eps=eps, **cell) for eps in EPSILONS]
    return all(free / factor <= one <= free * factor for one in best)


def alike(rows: Rows, factor: float, **cell: Any) -> bool:
    """Whether the best number is the same at every epsilon, within a factor."""
    best = [best_steps(rows, eps=eps, **cell) for eps in EPSILONS]
    return max(best) <= factor * min(best)
