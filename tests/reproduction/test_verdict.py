"""Verdicts: error rates by simulation, the equivalence test, shapes, divergence, and what is never
decided.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import operator
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from dpfl_cli.config.errors import ConfigError
from dpfl_cli.reproduction.claim import claim
from dpfl_cli.reproduction.comparison import (
    Comparison,
    Sample,
    above,
    below,
    below_share,
    best_by_others,
    each_seed,
    exact,
    in_factor,
    level,
    near_paper,
    ratio,
)
from dpfl_cli.reproduction.verdict import (
    EQUAL_VARIANCES,
    FAILS,
    HOLDS,
    UNDECIDED,
    _alike,
    decisive,
    judged,
    pooled,
    why_undecided,
)


def sample(values: list[float] | np.ndarray, scale: str = "linear", measure: str = "m") -> Sample:
    return Sample(pd.Series(np.asarray(values, float)), "x", measure, scale)


def finding(*comparisons: Comparison) -> str:
    return judged(comparisons, pooled(comparisons))[0]


def test_interval_is_students_of_paired_differences() -> None:
    left, right = [3.0, 4.0, 5.5, 4.5, 6.0], [2.5, 3.0, 5.0, 4.2, 5.1]
    one = above(sample(left), sample(right))
    (found,) = judged([one], pooled([one]))[1]
    gaps = np.subtract(left, right)
    low, high = stats.ttest_1samp(gaps, 0).confidence_interval(0.95)
    assert (found.mean, found.low, found.high) == pytest.approx((gaps.mean(), low, high))
    assert found.finding == HOLDS


@pytest.mark.parametrize("k", [1, 4])
def test_nothing_to_find_is_rarely_found(k: int) -> None:
    """Of equal methods, a claim holds or fails in at most 2.5 % of cases."""
    draws = np.random.default_rng(k)
    found = []
    for _ in range(600):
        many = [above(sample(draws.normal(size=5)), sample(draws.normal(size=5))) for _ in range(k)]
        found.append(finding(*many))
    three_sigma = 3 * math.sqrt(0.025 * 0.975 / 600)
    assert found.count(FAILS) / 600 <= 0.025 + three_sigma
    assert found.count(HOLDS) / 600 <= 0.025**k + three_sigma


def test_the_best_of_many_is_no_better_for_having_been_chosen() -> None:
    random, found = np.random.default_rng(1), 0
    for _ in range(600):
        *cells, end = (sample(random.normal(0, 1, 5)) for _ in range(6))
        found += finding(below(best_by_others(cells, "best"), end)) == HOLDS
    assert found / 600 < 0.05


@pytest.mark.parametrize("highest", [False, True])
def test_no_seed_has_a_part_in_its_own_choice(highest: bool) -> None:
    sign = -1 if highest else 1
    cells = [sample([0 * sign, 5 * sign, 5 * sign]), sample([3 * sign, 4 * sign, 4 * sign])]
    found = best_by_others(cells, "best", highest=highest).values
    assert list(found * sign) == [3, 5, 5]  # by means 5 and 4; 2.5 and 3.5; 2.5 and 3.5


def test_every_comparison_has_to_hold() -> None:
    true = above(sample([2, 2.1, 1.9, 2, 2.05]), sample([1.0] * 5))
    open_ = above(sample([1, 3, -2, 0.5, 1]), sample([0.0] * 5))
    false = below(sample([2, 2.1, 1.9, 2, 2.05]), sample([1.0] * 5))
    groups = [
        Comparison(**{**vars(one), "group": (str(i),)})
        for i, one in enumerate((true, open_, false))
    ]
    assert finding(groups[0]) == HOLDS
    assert finding(groups[0], groups[1]) == UNDECIDED
    assert finding(*groups) == FAILS


@pytest.mark.parametrize("seeds", [1, 2])
def test_fewer_than_three_seeds_decide_nothing(seeds: int) -> None:
    one = above(sample([9.0, 9.1][:seeds]), sample([1.0, 1.0][:seeds]))
    other = above(sample([9.0, 9.1, 9.2]), sample([1.0, 1.0, 1.0]))
    assert judged([one], pooled([one, other]))[0] == UNDECIDED


def test_a_tie_is_no_win() -> None:
    same = [1.0, 2.0, 3.0, 4.0, 5.0]
    found = judged([above(sample(same), sample(same))], pooled([above(sample(same), sample(same))]))
    assert found[0] == UNDECIDED
    assert found[1][0].reason == "a tie"


def test_equality_is_an_equivalence_test() -> None:
    near = [10.0, 10.1, 9.9, 10.05, 9.95]
    assert finding(level(sample(near), 10.0, within=1)) == HOLDS
    assert finding(level(sample(near), 12.0, within=1)) == FAILS
    assert finding(level(sample([8, 12, 10, 14, 6]), 10.0, within=1)) == UNDECIDED  # mean is equal
    with pytest.raises(ConfigError, match="margin"):
        level(sample(near), 10.0, within=0)


def test_margins_are_in_own_units_and_factors_on_the_log_scale() -> None:
    high, low = sample([20, 21, 22, 20, 21], "log"), sample([2, 2.1, 2.2, 2.0, 2.1], "log")
    assert above(0.01 * high, 0.001 * low).scale == "log"
    linear = above(high, low, by=5), above(high, 0 * low), above(0 * low, high)
    assert {one.scale for one in linear} == {"linear"}
    assert finding(above(high, 9 * low)) == HOLDS
    assert finding(above(high, 10 * low)) == UNDECIDED
    assert finding(above(high, low, by=15)) == HOLDS
    assert finding(above(high, low, by=25)) == FAILS


def seeds_needed(gaps: np.ndarray, tail: float) -> int:
    """How many seeds make the interval of differences like these miss 0."""
    sd, mean = np.std(gaps, ddof=1), abs(np.mean(gaps))
    return next(n for n in itertools.count(2) if stats.t.isf(tail, n - 1) * sd / n**0.5 < mean)


def test_a_claim_says_how_many_seeds_would_decide_all_of_it() -> None:
    """To hold all have to, and to fail one of those on the other side at a k-th of the level."""
    apart = np.array([-1.0, -0.5, 0.0, 0.4, 1.1])
    close, closer = apart + 0.5, 0.7 * apart[::-1] + 0.3
    other = 1.3 * apart - 0.45
    for gaps, number in (
        ([close, closer], max(seeds_needed(close, 0.025), seeds_needed(closer, 0.025))),
        ([close, other], seeds_needed(other, 0.025 / 2)),
        ([close, other, close + 9], seeds_needed(other, 0.025 / 3)),
    ):
        many = [
            above(sample(one, measure=str(i)), sample(np.zeros(5), measure=str(i)))
            for i, one in enumerate(gaps)
        ]
        found, each = judged(many, pooled(many))
        assert found == UNDECIDED
        assert why_undecided(each) == f"{number} seeds would decide it"
    worse = above(sample(apart - 1.2), sample(np.zeros(5)))
    others = [above(sample(9 + apart, measure=str(i)), sample(np.zeros(5))) for i in range(3)]
    many = [worse, *others]
    assert why_undecided(judged(many, pooled(many))[1]) == (
        "1 of 4 fails taken alone, not at 5 % over all 4 (Holm); "
        f"{seeds_needed(apart - 1.2, 0.025 / 4)} seeds would decide it"
    )


def test_what_decides_is_the_worst_comparison() -> None:
    """Of a failure the clearest, else what comes closest to failing, in units of its interval."""
    noise = np.array([-0.1, 0.0, 0.1, 0.05, -0.05])

    def shifted(*gaps: float) -> list[Comparison]:
        return [above(sample(gap + wide * noise), 0.0) for gap in gaps for wide in (1, 20)]

    def worst(*comparisons: Comparison) -> int:
        found, each = judged(comparisons, {})  # each with its own spread
        return [one is decisive(found, each) for one in each].index(True)

    small, small_noisy, large, large_noisy = shifted(1, 10)
    assert worst(small, large_noisy, large) == 1
    assert worst(small, small_noisy, exact(True, "so"), large) == 1
    below, below_noisy = shifted(-1)
    assert worst(below_noisy, small, below) == 2
    assert worst(below, exact(False, "so")) == 1
    near = level(sample(noise), 0.0, within=0.1)
    assert worst(small, near, level(sample(noise), 0.0, within=9)) == 1
    assert worst(large, above(sample([1.0, 2.0]), 0.0)) == 1  # too few seeds
    assert worst(exact(True, "so"), exact(True, "too")) == 0


def test_shapes_need_five_seeds_that_agree() -> None:
    assert finding(each_seed([True] * 5, "s")) == HOLDS
    assert finding(each_seed([False] * 5, "s")) == FAILS
    assert finding(each_seed([False, *[True] * 4], "s")) == UNDECIDED
    assert finding(each_seed([True] * 4, "s")) == UNDECIDED
    one = each_seed([True, "both ends are equal", *[True] * 3], "s")
    (found,) = judged([one], {})[1]
    assert found.finding == UNDECIDED
    assert found.reason == "nothing is tested in 1 of 5 seeds: both ends are equal"
    with pytest.raises(ConfigError, match="falls: a seed's truth is None; return True or False"):
        each_seed([True, None], "falls")  # type: ignore[list-item]


def test_diverged_runs_decide_only_where_all_seeds_agree() -> None:
    lost = sample([math.inf] * 5, "log")
    assert finding(above(lost, sample([1.0] * 5, "log"))) == HOLDS
    assert finding(below(lost, sample([1.0] * 5, "log"))) == FAILS
    assert finding(above(sample([math.inf, 1, 1, 1, 1]), sample([2.0] * 5))) == UNDECIDED
    assert finding(above(lost, lost)) == UNDECIDED  # both diverged


def test_a_diverged_accuracy_is_not_one_of_almost_nothing() -> None:
    lost, well = sample([-math.inf] * 3, "logit"), sample([80.0, 80.1, 79.9], "logit")
    (found,) = judged([above(well, lost)], {})[1]
    assert found.finding == UNDECIDED  # of three seeds, where there is no interval
    assert found.reason.startswith("3 of 3 seeds diverged")
    assert pooled([above(well, lost)]) == {}
    known = above(sample([100.0, 80.0], "logit"), sample([0.0, 50.0], "logit"))
    assert known.differences == pytest.approx([2 * math.log(9999), math.log(4)])


def test_comparisons_that_follow_from_others_add_no_freedom() -> None:
    """All pairs of k cells have k - 1 times the freedom of one."""
    draws, found = np.random.default_rng(0), []
    for _ in range(300):
        cells = [sample(draws.normal(size=9)) for _ in range(5)]
        pairs = [level(one, other, within=9) for one, other in itertools.combinations(cells, 2)]
        found += [freedom for _, freedom in pooled(pairs).values()]
    assert np.median(found) == pytest.approx(4 * 8, rel=0.2)  # of 80, were they others
    pair = [above(sample(one), 0.0) for one in ([-2, -1, 0, 1, 2], [-2, -1, 0, 2, 1])]
    assert [freedom for _, freedom in pooled(pair).values()] == [4]  # 16 / (2 + (8 * 0.81 - 2) / 3)


@given(st.lists(st.floats(-5, 5), min_size=3, max_size=12, unique=True), st.integers(1, 4))
def test_one_comparison_and_its_copies_have_its_own_freedom(values: list, copies: int) -> None:
    apart = np.array(values)
    many = [above(sample(apart * (1 + k)), 0.0) for k in range(copies)]
    assert {freedom for _, freedom in pooled(many[:1]).values()} == {len(values) - 1}
    for _, freedom in pooled(many).values():  # where their spreads are alike
        assert freedom == len(values) - 1


def test_comparisons_of_other_numbers_of_seeds_are_pooled_apart() -> None:
    few, many = above(sample([1.0, 2.0, 4.0]), 0.0), above(sample([1.0, 2.0, 4.0, 3.0]), 0.0)
    assert [freedom for _, freedom in pooled([few, many]).values()] == [2, 3]


@pytest.mark.parametrize("seeds", [3, 5])
@pytest.mark.parametrize("correlation", [0.0, 0.5, 0.9, 1.0])
def test_cells_that_share_their_noise_do_not_pass_for_many(correlation: float, seeds: int) -> None:
    """The first of ten equal cells is found to be above zero in little more than 2.5 % of cases; by
    ten times the freedom of one it would be in up to 9 %.
    """
    draws, found, cases = np.random.default_rng(0), 0, 2000
    for _ in range(cases):
        mine = math.sqrt(1 - correlation) * draws.normal(size=(10, seeds))
        values = math.sqrt(correlation) * draws.normal(size=seeds) + mine
        many = [Comparison("", "above", one) for one in values]
        found += judged(many[:1], pooled(many))[0] == HOLDS
    assert found / cases <= 0.05


def test_a_ratio_lends_no_spread_to_what_it_is_of() -> None:
    one, other = sample([10.0, 11.0, 9.5]), sample([5.0, 5.2, 4.8])
    assert level(one / other, 2, within=1).group != level(one, 2, within=1).group


def test_as_many_seeds_as_decide_it_with_the_freedom_that_there_is() -> None:
    gaps = np.array([0.5, -2.0, 2.8])
    alone, *others = (above(sample(9 * k + np.roll(gaps, k)), 9.0 * k) for k in range(3))
    few, many = (judged([alone], pooled(some))[1][0] for some in ([alone], [alone, *others]))
    assert (few.freedom, many.freedom) == (2, 6)  # of one variance
    needed = [int(one.reason.split()[0]) for one in (few, many)]
    assert needed[1] <= needed[0]
    n, spread = needed[1], gaps.std(ddof=1)
    assert stats.t.ppf(0.975, 3 * (n - 1)) * spread / math.sqrt(n) < gaps.mean()
    assert stats.t.ppf(0.975, 3 * (n - 2)) * spread / math.sqrt(n - 1) >= gaps.mean()


def test_exact_quantities_have_no_interval() -> None:
    price = Sample(pd.Series([2.0]), "epsilon", "epsilon", exact=True)
    assert finding(above(price, 1.0)) == HOLDS
    assert finding(above(price, 2.0)) == FAILS
    assert finding(exact(False, "no")) == FAILS


def test_papers_numbers_come_with_their_spread_or_two_points() -> None:
    close = Sample(pd.Series([80.0, 80.2, 79.9]), "a", "a", "logit", paper=81.0, paper_std=1.5)
    assert near_paper(close).margin == 1.5
    assert near_paper(Sample(close.values, "a", "a", paper=81.0)).margin == 2.0
    plain = dataclasses.replace(close, scale="linear")
    assert np.allclose(below_share(plain, share=0.5).differences, 40.5 - close.values)
    assert np.allclose(ratio(close, within=0.1).differences, close.values / 81 - 1)
    under, over = (one.differences for one in in_factor(plain, 2))
    assert np.allclose(under, 162 - close.values)
    assert np.allclose(over, close.values - 40.5)
    with pytest.raises(ConfigError, match="no number"):
        near_paper(sample([1, 2, 3]))


@given(
    st.lists(st.floats(0.1, 100), min_size=3, max_size=8),
    st.lists(st.floats(0.1, 100), min_size=8, max_size=8),
    st.sampled_from(["linear", "log", "logit"]),
)
def test_the_other_way_round_is_the_other_verdict(left: list, right: list, scale: str) -> None:
    high, low = sample(left, scale), sample(right[: len(left)], scale)
    one, other = finding(above(high, low)), finding(above(low, high))
    assert (one, other) in {(HOLDS, FAILS), (FAILS, HOLDS), (UNDECIDED, UNDECIDED)}


@pytest.mark.parametrize(
    ("spreads", "at_most"),
    [([1, 1, 1, 1], 0.04), ([5, 1, 1, 1], 0.04), ([20, 20, 1, 1], 0.04), ([2, 1, 1, 1], 0.065)],
)
def test_cells_of_unlike_noise_do_not_lend_their_spread(
    spreads: list[float], at_most: float
) -> None:
    """The noisiest of equal cells is found to be larger in little more than 2.5 % of cases, where
    pooling all of them would find it in up to 15 %.
    """
    draws, found, blind, cases = np.random.default_rng(0), 0, 0, 3000
    for _ in range(cases):
        values = draws.normal(0, 1, (len(spreads), 5)) * np.array(spreads)[:, None]
        many = [Comparison("", "above", one) for one in values]
        found += judged(many[:1], pooled(many))[0] == HOLDS
        together = np.mean([np.var(one, ddof=1) for one in values]), 4 * len(values)
        blind += judged(many[:1], {(*many[0].group, 5): together})[0] == HOLDS
    assert found / cases <= at_most
    assert len(set(spreads)) == 1 or blind > 1.4 * found


@pytest.mark.parametrize("k", [2, 3, 10])
@pytest.mark.parametrize("n", [3, 5, 10])
def test_spreads_are_compared_by_bartletts_test(k: int, n: int) -> None:
    values = np.random.default_rng(k).normal(size=(k, n)) * np.linspace(1, 3, k)[:, None]
    expected = stats.bartlett(*values).pvalue
    assert _alike(values.var(axis=1, ddof=1), n - 1) == pytest.approx(expected, rel=1e-12)


def test_cells_of_like_noise_are_pooled_over_a_measure() -> None:
    one, two = above(sample([1.0, 1.1, 0.9]), 0.0), above(sample([4.2, 3.9, 3.9]), 0.0)
    ((variance, freedom),) = pooled([one, two]).values()
    spreads = [np.var(values, ddof=1) for values in ([1.0, 1.1, 0.9], [4.2, 3.9, 3.9])]
    assert (variance, freedom) == (pytest.approx(np.mean(spreads)), 4)  # not correlated
    assert len(pooled([one, two, above(sample([4.2, 3.9, 3.9], measure="n"), 0.0)])) == 2
    other_side = below(sample([1.0, 1.1, 0.9]), 7.0)  # the same cell's, and no more freedom
    assert pooled([one, other_side, two]) == {(*one.group, 3): (variance, 4)}
    noisy, flat = above(sample([9.0, 0.0, -5.0]), 0.0), above(sample([1.0, 1.0, 1.0]), 0.0)
    assert pooled([one, noisy]) == pooled([one, flat]) == {}
    assert pooled([flat]) == {(*flat.group, 3): (0.0, 2)}
    assert stats.bartlett([1.0, 1.1, 0.9], [9, 0, -5]).pvalue < EQUAL_VARIANCES


@pytest.mark.parametrize("compared", [operator.lt, operator.le, operator.gt, operator.ge])
def test_samples_are_not_compared_as_numbers_are(compared: Any) -> None:
    """Their seeds differ, and a claim that yields a boolean would hide by how much."""
    one = Sample(pd.Series([1.0, 2.0]), "loss", "loss")
    for other in (one, 3.0):
        with pytest.raises(ConfigError, match=r"loss: .* yield below\(a, b\) or above\(a, b\)"):
            compared(one, other)
        for equal in (operator.eq, operator.ne):
            with pytest.raises(ConfigError, match=r"loss: .* yield level\(a, b, within=…\)"):
                equal(one, other)


def test_two_claims_of_one_name_are_refused() -> None:
    again = """
@claim("ours")
def better(rows):
    '''one is better'''

@claim("ours")
def better(rows):
    '''the other is better'''
"""
    with pytest.raises(ConfigError, match="claim better: there are two of this name"):
        exec(again, {"claim": claim, "__name__": "mine"})
    exec(again, {"claim": claim, "__name__": "__main__"})  # a notebook's cell, run again
