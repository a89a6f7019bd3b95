"""The claims of Figure 12 (section 3.1, appendix D), judged at each seed's own best numbers."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from dpfl_cli.papers.scaffnew._mushrooms import alike, best_steps, in_factor, inside, no_fall
from dpfl_cli.papers.scaffnew._tasks import EPSILONS, METHODS, NONE, best_of, by_seed
from dpfl_cli.reproduction.api import Comparison, Rows, above, below, between, claim, exact

COINS = ("deterministic", "bernoulli", "bernoulli_end")


# --- (a) local steps ------------------------------------------------------------------------------


@claim(source="section 3.1, Observation 1; appendix D, Figure 12", prior="holds")
def c1(rows: Rows) -> Iterator[Comparison]:
    """at epsilon 0.5 and 1 both methods have a best number of local steps inside the range, better
    than 1 and than 480"""
    for method in METHODS:
        for eps in (0.5, 1.0):
            cell = {"sweep": "steps", "method": method, "eps": eps}
            yield by_seed(rows, "best local steps beat 1 and 480", inside, **cell)


@claim(source="section 3.1, Observation 3", prior="holds")
def c2(rows: Rows) -> Iterator[Comparison]:
    """the best number of local steps does not decrease as epsilon does (one step of the grid is
    allowed)"""
    for method in METHODS:
        cell = {"sweep": "steps", "method": method}
        yield by_seed(rows, "best local steps do not fall with epsilon", no_fall, **cell)


@claim(source="appendix D, Figure 12", prior="holds", note="the factors are ours")
def c8(rows: Rows) -> Iterator[Comparison]:
    """the best number of local steps of DP-ScaffNew is the same for all epsilons within a factor
    of 2, and within a factor of 3 of 1/p*"""

    def test(one: Rows, cell: dict[str, Any]) -> bool:
        return alike(one, 2, **cell) and in_factor(one, 10, 3, **cell)

    yield by_seed(rows, "best local steps", test, sweep="steps", method="ScaffNew")


GIVEN = "the clients, lambda, C, v and the error of the paper's figure are not given"


@claim(source="appendix D, Figure 12", prior="fails", note=GIVEN)
def c8_exact(rows: Rows) -> Iterator[Comparison]:
    """it does not depend on epsilon at all"""
    yield by_seed(
        rows,
        "best local steps are the same",
        lambda one, cell: alike(one, 1, **cell),
        sweep="steps",
        method="ScaffNew",
    )


@claim(
    source="section 3.1, Observation 1; appendix D, Figure 12",
    prior="fails",
    note="fewer messages mean less noise, and DP-ScaffNew loses little by them up to about twice "
    "1/p*",
)
def c8_advice(rows: Rows) -> Iterator[Comparison]:
    """it is next to 1/p* = 10 on the grid, 8 to 12"""

    def test(one: Rows, cell: dict[str, Any]) -> bool:
        return all(8 <= best_steps(one, eps=eps, **cell) <= 12 for eps in EPSILONS)

    yield by_seed(rows, "8 <= best local steps <= 12", test, sweep="steps", method="ScaffNew")


@claim(source="ours", prior="holds", note="nothing is random without noise")
def knee(rows: Rows) -> Iterator[Comparison]:
    """without noise 1/p* is the knee of DP-ScaffNew, 12 local steps cost at most a tenth more than
    1, and 20 more than twice as much"""
    cell = {"sweep": "steps", "method": "ScaffNew", "eps": NONE}
    one, at_12, at_20 = (rows.value("suboptimality", tau=tau, **cell) for tau in (1, 12, 20))
    yield exact(at_12 <= 1.1 * one, f"{at_12:.3g} at 12 <= 1.1 {one:.3g} at 1")
    yield exact(at_20 > 2 * one, f"{at_20:.3g} at 20 > 2 {one:.3g} at 1")


@claim(source="ours", prior="holds", note="records in file order differ between clients")
def c10(rows: Rows) -> Iterator[Comparison]:
    """at every epsilon DP-ScaffNew at its best number of local steps is closer to f* than DP-FedAvg
    at its own"""
    for eps in EPSILONS:
        cell = {"sweep": "steps", "best": True, "eps": eps}
        yield below(
            rows("suboptimality", method="ScaffNew", **cell),
            rows("suboptimality", method="FedAvg", **cell),
        )


@claim(source="ours", prior="holds", invariant=True)
def unclipped(rows: Rows) -> Iterator[Comparison]:
    """no update that was communicated was as long as the clip norm"""
    largest = rows.where(measure="clipped").frame["value"].max()
    yield exact(largest == 0, f"largest share of updates clipped {largest:g} = 0")


# --- (b) iterations -------------------------------------------------------------------------------


def _best_time(rows: Rows, coins: str, eps: float) -> float:
    return best_of(rows, "T", "suboptimality", sweep="iterations", coins=coins, eps=eps)


@claim(
    source="section 3.1, Observation 3; section 2, Corollary 1; appendix D, Figure 12",
    prior="holds",
    note="communication every 10 iterations; at quick on a grid of 13 values",
)
def c3(rows: Rows) -> Iterator[Comparison]:
    """the best number of iterations grows with epsilon, and so does T*"""

    def test(one: Rows, cell: dict[str, Any]) -> bool:
        best = [_best_time(one, cell["coins"], eps) for eps in EPSILONS]
        return all(low < high for low, high in pairwise(best))

    yield by_seed(rows, "best T grows", test, coins="deterministic")
    for low, high in pairwise(EPSILONS):
        yield above(
            rows("advised", coins="deterministic", eps=high),
            rows("advised", coins="deterministic", eps=low),
        )


@claim(
    source="ours",
    prior="holds",
    note="all runs of a seed have the same coins, and local steps after the last communication are "
    "lost (not where there is one at the end)",
)
def c3_coins(rows: Rows) -> Iterator[Comparison]:
    """where coins decide when to communicate, with a communication at the end as well or without,
    the best number of iterations does not fall as epsilon grows"""

    def test(one: Rows, cell: dict[str, Any]) -> bool:
        best = [_best_time(one, cell["coins"], eps) for eps in EPSILONS]
        return all(low <= high for low, high in pairwise(best))

    for coins in ("bernoulli", "bernoulli_end"):
        yield by_seed(rows, "best T does not fall", test, coins=coins)


def _predicted(rows: Rows, coins: str, low: float, high: float) -> Comparison:
    def test(one: Rows, cell: dict[str, Any]) -> bool:
        for eps in EPSILONS:
            advised = one.value("advised", coins=coins, eps=eps)
            if not low * advised <= _best_time(one, coins, eps) <= high * advised:
                return False
        return True

    return by_seed(rows, f"{low:g} T* <= best T <= {high:g} T*", test, coins=coins)


@claim(source="appendix D, Figure 12", prior="holds", note="the factor is ours")
def c9(rows: Rows) -> Iterator[Comparison]:
    """the best number of iterations is between T*/3 and 3 T*, with every schedule"""
    for coins in COINS:
        yield _predicted(rows, coins, 1 / 3, 3)


@claim(
    source="appendix D, Figure 12",
    prior="fails",
    note="the bound takes the rate 1 - mu/L, the slowest of the problem; most of the error falls "
    "faster",
)
def c9_precise(rows: Rows) -> Iterator[Comparison]:
    """T* predicts it with high precision (within 20 % at every epsilon)"""
    yield _predicted(rows, "deterministic", 0.8, 1.2)


@claim(source="ours", prior="holds")
def proved(rows: Rows) -> Iterator[Comparison]:
    """with noise that is proved for the target T* is 0, and 480 iterations end farther from f* than
    the start, at every epsilon"""
    for eps in EPSILONS:
        yield exact(rows.value("proved_time", eps=eps) == 0, f"T* at epsilon {eps:g} is 0")
        yield above(rows("proved", eps=eps), rows("start", eps=eps))


# --- (c) without noise ----------------------------------------------------------------------------


@claim(
    source="section 2, Theorem 1 without noise",
    prior="holds",
    note="nothing is random without noise; the numbers are ours",
)
def c5(rows: Rows) -> Iterator[Comparison]:
    """without noise DP-ScaffNew converges linearly to the exact optimum (at least by the factor
    0.99 = 1 - mu/L per iteration, below 1e-14 after 2400), and DP-FedAvg with 10 local steps stalls
    above 1e-3"""
    gaps = rows.values("curve", method="ScaffNew", round=between(0, 1200))
    linear = all(after <= 0.99**240 * before for before, after in pairwise(gaps))
    yield exact(linear, "every 240 iterations by the factor 0.99^240 up to iteration 1200")
    end = rows.value("curve", method="ScaffNew", round=2400)
    yield exact(end < 1e-14, f"DP-ScaffNew at the end: {end:.2g} < 1e-14")
    half, whole = (rows.value("curve", method="FedAvg", round=at) for at in (1200, 2400))
    yield exact(whole > max(0.001, 0.99 * half), f"DP-FedAvg stalls: {half:.3g}, {whole:.3g}")


CLAIMS = (
    c1,
    c2,
    c3,
    c3_coins,
    c5,
    c8,
    c8_exact,
    c8_advice,
    knee,
    c9,
    c9_precise,
    c10,
    proved,
    unclipped,
)
