"""Amplification by subsampling without replacement: the paper's and published values, limits, and
other accountants.
"""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import mpmath
import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, NeighboringRelation, SampledWithoutReplacementDpEvent
from dp_accounting.rdp import RdpAccountant as PublicAccountant
from dp_accounting.rdp import compute_epsilon
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import comb, logsumexp

from dpfl_cli.config.errors import PrivacyError
from dpfl_cli.privacy.accountants import accountant, price, price_all
from dpfl_cli.privacy.calibration import calibrate
from dpfl_cli.privacy.ledger import Ledger, LedgerEntry
from dpfl_cli.privacy.mixed_accountants import ORDERS, _drawn_rdp
from dpfl_cli.privacy.releases import ReleaseSpec
from dpfl_cli.privacy.subsampling import (
    _log_moments,
    balanced_multiplier,
    rdp_of,
    without_replacement_rdp,
)
from tests.privacy.test_accountants import priced

DELTA = 1e-4
BATCH = 100


def entry(multiplier: float, rate: float | None, count: int, **others: object) -> LedgerEntry:
    values = {
        "relation": "replace_one",
        "unit": "record",
        "scope": "client",
        "name": "gradient",
        "rate": rate,
    } | others
    return LedgerEntry(
        kind="gaussian", count=count, parameter=multiplier, sensitivity=None, **values
    )  # type: ignore[arg-type]


def plain(order: int, rate: float, z: float) -> float:
    """Theorem 9 as it is printed, in exact integers and big floats' reach only."""
    curve = [0.0, 0.0, *(j / (2 * z * z) for j in range(2, order + 1))]
    total = 1 + rate**2 * comb(order, 2, exact=True) * min(
        4 * math.expm1(curve[2]), 2 * math.exp(curve[2])
    )
    total += sum(
        2 * rate**j * comb(order, j, exact=True) * math.exp((j - 1) * curve[j])
        for j in range(3, order + 1)
    )
    return min(math.log(total) / (order - 1), curve[order])


@pytest.mark.parametrize("order", [2, 3, 5, 17])
@pytest.mark.parametrize("rate", [0.001, 1 / 15, 0.5])
@pytest.mark.parametrize("z", [0.5, 1.3, 8.0])
def test_it_is_the_theorem(order: int, rate: float, z: float) -> None:
    assert without_replacement_rdp(order, rate, z) == pytest.approx(
        plain(order, rate, z), rel=1e-12
    )


@pytest.mark.parametrize(
    ("rounds", "steps", "records", "sigma", "printed"),
    # epsilon that eq. (3) gives the paper's noise levels, to the digits of an independent
    # computation
    [
        (150, 20, 1500, 0.003, 238329),
        (150, 20, 1500, 0.006, 38339),
        (150, 20, 1500, 0.01, 2373.8),
        (100, 226, 22605, 0.006, 58135),
        (100, 226, 22605, 0.01, 96.49),
        (100, 226, 22605, 0.03, 5.024),
        (1000, 15, 1500, 0.006, 191695),
        (1000, 15, 1500, 0.01, 11869),
    ],
)
def test_the_papers_noise_levels(
    rounds: int, steps: int, records: int, sigma: float, printed: float
) -> None:
    ledger = Ledger((entry(sigma * BATCH / 2, BATCH / records, rounds * steps),))
    price = accountant("wang_rdp", {"order": "paper"}).epsilon(ledger, DELTA)
    assert price == pytest.approx(printed, rel=5e-5)
    best = priced("wang_rdp", ledger, DELTA)
    assert best <= price * (1 + 1e-12)


@pytest.mark.parametrize(
    ("rounds", "steps", "records", "epsilon", "sigma", "sigma_radius"),
    [
        (150, 20, 1500, 238329, 0.00403, 0.000998),
        (150, 20, 1500, 38339, 0.00713, 0.00241),
        (150, 20, 1500, 2373.8, 0.01117, 0.00680),
        (100, 226, 22605, 96.49, 0.01100, 0.00672),
        (100, 226, 22605, 5.024, 0.04029, 0.01312),
        (1000, 15, 1500, 11869, 0.01117, 0.00724),
    ],
)
def test_the_calibrated_pairs(
    rounds: int, steps: int, records: int, epsilon: float, sigma: float, sigma_radius: float
) -> None:
    """Half of epsilon to the releases, a half of that to either stream (`sensitivity=paper`)."""
    rate = BATCH / records
    order = 1 + math.ceil(2 * math.log(1 / DELTA) / epsilon)

    def ledger(z: float) -> Ledger:
        radius = balanced_multiplier(z, rate, steps, rate, order)
        return Ledger(
            (
                entry(z, rate, rounds * steps),
                entry(radius, rate, rounds, name="radius", shape="scalar"),
            )
        )

    z = calibrate(epsilon, DELTA, accountant("wang_rdp", {"order": "paper"}), ledger)
    assert 2 * z / BATCH == pytest.approx(sigma, rel=2e-3)
    assert 2 * balanced_multiplier(z, rate, steps, rate, order) / BATCH == pytest.approx(
        sigma_radius, rel=2e-3
    )


@given(st.integers(2, 200), st.floats(1e-4, 1.0), st.floats(0.3, 50.0))
def test_never_above_the_mechanism_itself_and_growing_with_the_rate(
    order: int, rate: float, z: float
) -> None:
    own = order / (2 * z * z)
    value = without_replacement_rdp(order, rate, z)
    printed = without_replacement_rdp(order, rate, z, capped=False)
    assert value == min(own, printed)
    assert 0 <= value <= own * (1 + 1e-12)
    assert value <= without_replacement_rdp(order, min(1.0, 1.3 * rate), z) * (1 + 1e-9)
    assert without_replacement_rdp(order, 1.0, z) == own


@pytest.mark.parametrize("z", [1.0, 3.0])
def test_close_to_a_public_accountant_at_the_true_factor(z: float) -> None:
    """dp-accounting takes std over the clip norm C, where replace_one moves a sum by 2C: its
    multiplier is half as large for the same noise, so ours at z is compared with its own at 2 z.
    Its bound is a tighter form of the same theorem."""
    orders = list(range(2, 65))
    rate, count = 100 / 1500, 300
    public = PublicAccountant(orders, NeighboringRelation.REPLACE_ONE)
    public.compose(SampledWithoutReplacementDpEvent(1500, 100, GaussianDpEvent(2 * z)), count)
    theirs = np.array(public._rdp)
    ours = np.array([rdp_of([entry(z, rate, count)], order) for order in orders])
    halved = np.array([rdp_of([entry(2 * z, rate, count)], order) for order in orders])
    # at the true factor ours is the larger one: theirs, read without the factor, claims too little
    assert (ours >= theirs * (1 - 1e-9)).all()
    assert (halved >= theirs * (1 - 1e-9)).all()
    assert halved[0] == pytest.approx(theirs[0], rel=1e-6)


def exact_moment(power: int, z: float) -> float:
    """ln E_Q (P/Q - 1)^power as an alternating sum, in as many digits as it takes."""
    mpmath.mp.dps = 1500
    squares = (mpmath.exp(mpmath.mpf(i * (i - 1)) / 2 / mpmath.mpf(z) ** 2) for i in range(10**6))
    terms = (
        (-1) ** (power - i) * mpmath.binomial(power, i) * next(squares) for i in range(power + 1)
    )
    return float(mpmath.log(mpmath.fsum(terms)))


@pytest.mark.parametrize("z", [0.3, 1.0, 2.44, 100.0])
def test_the_moments_of_theorem_27_are_exact(z: float) -> None:
    moments = _log_moments(z)
    for power in (2, 4, 6, 32, 256):
        assert moments[power // 2 - 1] == pytest.approx(exact_moment(power, z), rel=1e-10)


@pytest.mark.parametrize("rate", [0.01, 0.1, 0.3])
@pytest.mark.parametrize("z", [0.8, 1.9, 4.0])
def test_theorem_27_is_what_a_public_accountant_takes(rate: float, z: float) -> None:
    """Up to the order at which its differences lose their digits."""
    orders = [2, 3, 4, 7, 12]
    public = PublicAccountant(orders, NeighboringRelation.REPLACE_ONE)
    public.compose(SampledWithoutReplacementDpEvent(10**6, int(rate * 10**6), GaussianDpEvent(z)))
    ours = [without_replacement_rdp(a, rate, z, capped=False, theorem=27) for a in orders]
    assert ours == pytest.approx(list(public._rdp), rel=1e-7)


@given(
    order=st.integers(2, 40),
    rate=st.floats(0.001, 0.9),
    z=st.floats(0.4, 30.0),
    moved=st.sampled_from([(1.0, 0.0), (0.5, -0.5), (0.0, 1.0)]),
)
def test_theorem_27_lies_between_the_truth_and_theorem_9(
    order: int, rate: float, z: float, moved: tuple[float, float]
) -> None:
    """The truth of neighbours of which all records but one are zero, by integration."""
    points = np.linspace(-60 * z, 60 * z + order, 200_001)

    def log_density(shift: float) -> np.ndarray:
        still, other = (-(((points - at) / z) ** 2) / 2 for at in (0.0, shift))
        return np.logaddexp(math.log1p(-rate) + still, math.log(rate) + other)

    ours, theirs = map(log_density, moved)
    power = logsumexp(order * ours + (1 - order) * theirs) - logsumexp(theirs)
    found = without_replacement_rdp(order, rate, z, theorem=27)
    assert power / (order - 1) <= found * (1 + 1e-9) + 1e-12
    assert found <= without_replacement_rdp(order, rate, z)


def test_cohorts_of_a_fixed_size_cost_less_by_theorem_27_and_more_with_every_round() -> None:
    def epsilon(name: str, rounds: int) -> float:
        drawn = entry(2.0, 0.1, rounds, law="fixed", rounds=tuple(range(1, rounds + 1)))
        return priced(name, Ledger((drawn,)))

    assert epsilon("rdp", 50) < 0.85 * epsilon("wang_rdp", 50)
    assert epsilon("wang_rdp", 50) < 0.5 * epsilon("gdp", 50)
    found = [epsilon("rdp", rounds) for rounds in range(1, 12)]
    assert all(one < other for one, other in pairwise(found))


@pytest.mark.parametrize("z", [1e-9, 1e-3, 0.249, 1e9])
def test_noise_of_any_strength_is_priced_at_once(z: float) -> None:
    """The integral would take more points the weaker the noise is."""
    drawn = entry(z, 0.1, 3, law="fixed", rounds=(1, 2, 3))
    found = priced("rdp", Ledger((drawn,)))
    assert 0 <= found <= priced("wang_rdp", Ledger((drawn,)))
    if z < 0.25:
        tight = without_replacement_rdp(9, 0.1, 0.25, theorem=27)
        assert tight == pytest.approx(without_replacement_rdp(9, 0.1, 0.25), rel=1e-3)


def test_a_fixed_cohort_is_amplified_under_replace_one_alone() -> None:
    drawn = entry(2.0, 0.1, 1, law="fixed", rounds=(1,), relation="zero_out")
    with pytest.raises(PrivacyError, match="under replace_one, not under zero_out"):
        priced("rdp", Ledger((drawn,)))
    never = replace(drawn, count=0, rounds=())
    assert priced("rdp", Ledger((never,))) == 0.0
    whole = entry(2.0, None, 1, relation="zero_out")
    alone = priced("rdp", Ledger((whole,)))
    assert priced("rdp", Ledger((whole, never))) == alone


def test_without_batches_it_is_close_to_the_exact_price() -> None:
    ledger = Ledger((entry(3.0, None, 40),))
    exact, bound = (
        priced("gdp", ledger),
        priced("wang_rdp", ledger),
    )
    assert exact < bound < 1.25 * exact


def test_other_accountants_price_batches_as_if_they_were_not_there() -> None:
    sampled, whole = (Ledger((entry(3.0, rate, 40),)) for rate in (0.01, None))
    for name in ("gdp", "pld", "zcdp"):
        assert priced(name, sampled) == priced(name, whole)
    for name in ("rdp", "wang_rdp"):
        assert priced(name, sampled) < priced("gdp", whole) / 3
    shown = {one.accountant: one.unamplified for one in price_all(sampled, 1e-5)}
    known = {"rdp", "rdp (conversion mironov)", "wang_rdp", "wang_rdp (order paper)"}
    assert {name for name, unamplified in shown.items() if not unamplified} == known


@pytest.mark.parametrize("conversion", ["cks", "mironov"])
def test_rdp_adds_batches_and_whole_releases_at_the_orders_that_it_knows(conversion: str) -> None:
    """By theorem 27, order by order, in plain Python; less than without batches, and more with
    every release; under other relations as without them.
    """
    rdp, delta = accountant("rdp", {"conversion": conversion}), 1e-5
    batches, whole = entry((1.5, 2.0, 2.0), 0.2, 3), entry(9.0, None, 4)
    best = math.inf
    for a in range(2, 64):
        drawn = (without_replacement_rdp(a, 0.2, z, theorem=27) for z in (1.5, 2.0, 2.0))
        total = sum(drawn) + 4 * a / (2 * 9.0**2)
        toll = math.log(1 / delta) / (a - 1)
        if conversion == "cks":
            toll += math.log(1 - 1 / a) - math.log(a) / (a - 1)
        best = min(best, total + toll)
    ledger = Ledger((batches, replace(whole, name="whole")))
    found = rdp.epsilon(ledger, delta)
    assert found == pytest.approx(best, rel=1e-9)
    plain = Ledger(tuple(replace(one, rate=None) for one in ledger.entries))
    assert found < rdp.epsilon(plain, delta)
    more = replace(batches, count=4, parameter=(1.5, 2.0, 2.0, 2.0))
    assert found < rdp.epsilon(Ledger((more, *ledger.entries[1:])), delta)
    for changed in ({"relation": "zero_out"}, {"unit": "client"}):
        other, plainly = (
            Ledger(tuple(replace(one, **changed) for one in given.entries))
            for given in (ledger, plain)
        )
        assert rdp.epsilon(other, delta) == rdp.epsilon(plainly, delta)
        assert price(other, rdp, delta).unamplified


@pytest.mark.parametrize("law", ["full", "fixed"])
def test_many_levels_of_noise_cost_a_little_more_than_each_by_itself(law: str) -> None:
    levels = np.linspace(1.0, 3.0, 40)
    rounds = range(1, len(levels) + 1)
    drawn = [
        entry(tuple(some), 0.1, len(some), law=law, rounds=tuple(when) if law == "fixed" else None)
        for some, when in ((levels, rounds), (levels[:20], rounds[:20]), (levels[20:], rounds[20:]))
    ]
    found = priced("rdp", Ledger((drawn[0],)))
    apart = [_drawn_rdp(one) for one in drawn[1:]]
    exact = float(compute_epsilon(ORDERS, sum(apart), 1e-5)[0])
    assert exact < found < 1.04 * exact
    met = calibrate(4.0, 1e-5, accountant("rdp"), lambda z: Ledger((drawn[0].scaled(z),)))
    worth = priced("rdp", Ledger((drawn[0].scaled(met),)))
    assert 4.0 * (1 - 1e-9) <= worth <= 4.0
    steps = entry(tuple(1.02 ** np.arange(40)), 0.1, 40, law=law, rounds=drawn[0].rounds)
    each = _drawn_rdp(replace(steps, count=20, parameter=steps.parameter[:20], rounds=None))
    other = _drawn_rdp(replace(steps, count=20, parameter=steps.parameter[20:], rounds=None))
    assert _drawn_rdp(steps) == pytest.approx(each + other)  # levels on the steps stay there
    more = entry((*levels, 3.0), 0.1, 41, law=law, rounds=(*rounds, 41) if law == "fixed" else None)
    assert found < priced("rdp", Ledger((more,)))


def test_batches_of_nearly_all_records_cost_no_more_than_all() -> None:
    nearly, whole = (Ledger((entry(3.0, rate, 40),)) for rate in (0.999, None))
    assert priced("rdp", nearly) == priced("rdp", whole)


def test_epsilon_grows_with_every_release() -> None:
    for options in ({}, {"order": "paper"}, {"order": 5}):
        prices = [
            accountant("wang_rdp", options).epsilon(Ledger((entry(2.0, 0.05, n),)), DELTA)
            for n in (1, 2, 5, 50, 3000)
        ]
        assert all(
            one < other or one == pytest.approx(other, rel=1e-12) for one, other in pairwise(prices)
        )
        assert prices[0] < prices[-1]


def test_disjoint_parts_cost_what_one_does() -> None:
    """And what is begun of a further round of parts costs another one."""
    parts = Ledger((entry(2.0, None, 61, disjoint=15),))
    once = Ledger((entry(2.0, None, 5),))
    for name in ("gdp", "rdp", "zcdp", "wang_rdp"):
        assert priced(name, parts, DELTA) == priced(name, once, DELTA)
    pure = [Ledger((replace(one.entries[0], kind="pure", parameter=0.3),)) for one in (parts, once)]
    assert priced("pure", pure[0], DELTA) == pytest.approx(5 * 0.3)
    assert priced("pld", pure[0], DELTA) == priced("pld", pure[1], DELTA)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"disjoint": 4}, "no multiple"),  # parts of other epochs are others' records
        ({"disjoint": 2, "per_round": 3}, "no multiple"),
        ({"disjoint": 0}, "no multiple|disjoint=0"),
        ({"disjoint": 2, "per_round": 2, "rate": 0.5}, "not both"),
    ],
)
def test_parts_are_declared_by_whole_epochs_of_a_round(options: dict, match: str) -> None:
    with pytest.raises(PrivacyError, match=match):
        ReleaseSpec("gradient", **options)
    assert ReleaseSpec("gradient", per_round=4, disjoint=2).disjoint == 2


def test_amplification_is_for_replace_one() -> None:
    ledger = Ledger((entry(2.0, 0.05, 3, relation="zero_out"),))
    assert "replace_one" in str(accountant("wang_rdp").supports(ledger))


def test_calibration_says_when_no_noise_suffices() -> None:
    """The terms from j = 3 on do not vanish with the noise: Bank's floor is .768, MNIST's at 1000
    rounds 9.21.
    """
    paper = accountant("wang_rdp", {"order": "paper"})
    for records, count, floor in ((22605, 22600, 0.768), (1500, 15000, 9.21)):

        def ledger(z: float, records: int = records, count: int = count) -> Ledger:
            return Ledger((entry(z, BATCH / records, count),))

        with pytest.raises(PrivacyError, match="no noise reaches epsilon"):
            calibrate(0.98 * floor, DELTA, paper, ledger)
        calibrate(1.02 * floor, DELTA, paper, ledger)
