"""Clients that are drawn: accountants against closed forms, against each other and against
dp-accounting, and a ledger whose releases of a round are one.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from dp_accounting import (
    GaussianDpEvent,
    NeighboringRelation,
    PoissonSampledDpEvent,
    SampledWithoutReplacementDpEvent,
)
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant
from scipy.optimize import brentq
from scipy.stats import norm

from dpfl_cli.config.errors import PrivacyError
from dpfl_cli.privacy.accountants import accountant
from dpfl_cli.privacy.ledger import Ledger, LedgerEntry
from dpfl_cli.privacy.mixed_accountants import ORDERS, poisson_rdp
from dpfl_cli.simulation.plan import load_components

load_components()
DELTA = 1e-5
RELATIONS = {"poisson": "add_or_remove", "fixed": "replace_one"}


def entry(z: float, count: int, rate: float, law: str = "poisson", **others: object) -> LedgerEntry:
    values = {"name": "update", "rounds": tuple(range(1, count + 1))}
    values |= {"relation": RELATIONS[law], **others}
    return LedgerEntry(
        kind="gaussian",
        count=count,
        parameter=z,
        sensitivity=None,
        unit="client",
        scope="federation",
        rate=rate,
        law=law,
        **values,
    )  # type: ignore[arg-type]


def priced(name: str, *entries: LedgerEntry) -> float:
    return accountant(name).epsilon(Ledger(entries), DELTA)


def one_round(z: float, rate: float) -> float:
    """Epsilon of one Gaussian release of a Poisson cohort, from the two divergences between
    N(0, z^2) and (1 - q) N(0, z^2) + q N(1, z^2), whose ratio is monotone.
    """

    def delta(epsilon: float) -> float:
        worst = 0.0
        for level, sign in ((math.exp(epsilon), 1.0), (math.exp(-epsilon), -1.0)):
            share = (level - 1 + rate) / rate  # of e^{(2x - 1) / (2 z^2)} at the threshold
            if share <= 0:
                continue
            x = z**2 * math.log(share) + 0.5
            mixed = (1 - rate) * norm.sf(sign * x / z) + rate * norm.sf(sign * (x - 1) / z)
            plain = norm.sf(sign * x / z)
            first, second = (mixed, plain) if sign > 0 else (plain, mixed)
            worst = max(worst, first - math.exp(epsilon) * second)
        return worst

    return float(brentq(lambda epsilon: delta(epsilon) - DELTA, 1e-9, 100.0))


@pytest.mark.parametrize(("z", "rate"), [(1.0, 0.1), (0.5, 0.01), (3.0, 0.3)])
def test_one_release_of_a_poisson_cohort_by_its_closed_form(z: float, rate: float) -> None:
    exact = one_round(z, rate)
    assert priced("pld", entry(z, 1, rate)) == pytest.approx(exact, rel=2e-3)
    assert exact * (1 - 1e-6) <= priced("rdp", entry(z, 1, rate)) <= 3 * exact


@pytest.mark.parametrize(("z", "rate", "rounds"), [(1.0, 0.1, 50), (4.0, 0.02, 400)])
def test_accountants_of_cohorts_agree(z: float, rate: float, rounds: int) -> None:
    tight, loose = (priced(name, entry(z, rounds, rate)) for name in ("pld", "rdp"))
    public = PLDAccountant(NeighboringRelation.ADD_OR_REMOVE_ONE)
    public.compose(PoissonSampledDpEvent(rate, GaussianDpEvent(z)), rounds)
    assert tight == pytest.approx(public.get_epsilon(DELTA), rel=2e-3)
    assert tight * (1 - 2e-3) <= loose <= 1.4 * tight
    assert loose < 0.8 * priced("gdp", entry(z, rounds, rate))


@pytest.mark.parametrize(("z", "rate"), [(0.5, 0.2), (4.0, 0.02), (30.0, 1.0)])
def test_the_divergence_of_a_cohort_is_the_public_one(z: float, rate: float) -> None:
    public = RdpAccountant(ORDERS, NeighboringRelation.ADD_OR_REMOVE_ONE)
    public.compose(PoissonSampledDpEvent(rate, GaussianDpEvent(z)), 20)
    known = public.get_epsilon(DELTA)
    assert priced("rdp", entry(z, 20, rate)) == pytest.approx(known, rel=1e-9)


@pytest.mark.parametrize(("z", "rate", "rounds"), [(1e6, 1e-3, 1), (1e3, 1e-5, 10_000)])
def test_strong_noise_costs_something(z: float, rate: float, rounds: int) -> None:
    """At order 2 a divergence of ln(1 + q^2 (e^(1/z^2) - 1)), which is lost beside 1 in a float:
    what came out below 0 was priced as nothing. One release of N(0, z^2) against its shift with
    probability q has delta(0) = q (2 Phi(1 / (2 z)) - 1).
    """
    second = poisson_rdp((2,), rate, z)
    assert second[0] == pytest.approx(math.log1p(rate**2 * math.expm1(z**-2)), rel=1e-9)
    delta = rate * (2 * norm.cdf(1 / (2 * z)) - 1) / 10
    assert accountant("rdp").epsilon(Ledger((entry(z, rounds, rate),)), delta) > 0


@pytest.mark.parametrize(("name", "law"), [("rdp", "poisson"), ("wang_rdp", "fixed")])
def test_noise_that_no_number_holds_is_none(name: str, law: str) -> None:
    assert priced(name, entry(1e-170, 3, 0.1, law)) == math.inf


@pytest.mark.parametrize("name", ["gdp", "zcdp", "wang_rdp"])
def test_who_knows_no_amplification_prices_as_if_all_took_part(name: str) -> None:
    drawn, all_ = entry(2.0, 9, 0.1), entry(2.0, 9, 1.0)
    assert priced(name, drawn) == priced(name, all_)
    whole = [priced(one, all_) for one in ("gdp", "pld")]  # everybody takes part for sure
    assert whole[1] == pytest.approx(whole[0], rel=2e-3)
    assert priced("rdp", all_) >= whole[0]


@pytest.mark.parametrize(("z", "rounds"), [(2.5, 50), (0.8, 5)])
def test_a_fixed_cohort_has_the_sensitivity_of_replacing(z: float, rounds: int) -> None:
    """Replacing a client moves a sum by 2C, and z is std / (2C). dp-accounting's event takes
    std / C = 2z, half the true sensitivity, and then claims too little; at z it is a tighter form.
    """
    ours = priced("wang_rdp", entry(z, rounds, 0.1, "fixed"))

    def public(multiplier: float) -> float:
        # the best are below 33: orders up to 200 give the same epsilons, 20 times slower
        own = RdpAccountant(range(2, 65), NeighboringRelation.REPLACE_ONE)
        event = SampledWithoutReplacementDpEvent(1000, 100, GaussianDpEvent(multiplier))
        return float(own.compose(event, rounds).get_epsilon(DELTA))

    assert public(z) <= ours <= 1.3 * public(z) + 0.5
    assert public(2 * z) < 0.6 * ours
    of_batches = entry(z, rounds, 0.1, "fixed", batch="poisson")  # drawn otherwise than clients
    assert priced("rdp", of_batches) == priced("rdp", entry(z, rounds, 0.1, "fixed"))


def test_releases_of_a_round_are_of_one_cohort() -> None:
    """Amplified apart, two releases of one cohort would cost too little."""
    both = entry(2.0, 5, 0.1), entry(2.0, 5, 0.1, name="control")
    together = entry(2.0 / math.sqrt(2), 5, 0.1)
    for name in ("rdp", "pld"):
        assert priced(name, *both) == pytest.approx(priced(name, together), rel=1e-9)
        apart = priced(name, both[0], entry(2.0, 5, 0.1, name="control", rounds=range(6, 11)))
        assert apart < priced(name, *both)


@pytest.mark.parametrize("law", ["poisson", "fixed"])
def test_epsilon_grows_with_every_release_and_noise_may_change(law: str) -> None:
    name = "rdp" if law == "poisson" else "wang_rdp"
    found = [priced(name, entry(1.5, count, 0.05, law)) for count in range(1, 30, 4)]
    assert (np.diff(found) > 0).all()
    changing = entry(1.5, 3, 0.05, law).of_releases(np.array([1.5, 3.0, 1.0]), np.arange(1, 4))
    assert priced(name, entry(3.0, 3, 0.05, law)) < priced(name, changing)
    assert priced(name, changing) < priced(name, entry(1.0, 3, 0.05, law))


def test_a_ledger_that_says_less_is_refused_and_json_says_all() -> None:
    whole = entry(1.0, 3, 0.1)
    assert Ledger.from_json(Ledger((whole,)).to_json()) == Ledger((whole,))
    for less in ({"rounds": None}, {"rounds": (1,)}):
        with pytest.raises(PrivacyError, match="does not say at which rate, or for which rounds"):
            priced("rdp", entry(1.0, 3, 0.1, **less))
    with pytest.raises(PrivacyError, match="does not say at which rate"):
        priced("rdp", whole, entry(1.0, 3, 0.2, name="b"))
    mironov = accountant("rdp", {"conversion": "mironov"})
    assert "conversion=cks" in str(mironov.supports(Ledger((whole,))))
    with pytest.raises(PrivacyError, match="mixes laws"):
        priced("rdp", whole, entry(1.0, 3, 0.1, "fixed", relation="add_or_remove", name="b"))


@pytest.mark.parametrize("z", [1e6, 1e12, 1e100, 1e150])
def test_noise_of_any_strength_has_a_price(z: float) -> None:
    assert 0.0 <= priced("pld", entry(z, 3, 0.01)) <= priced("pld", entry(100.0, 3, 0.01))


@pytest.mark.parametrize("z", [3.0, 10.0])
def test_pld_is_a_bound_at_deltas_that_rounding_nearly_shows_at(z: float) -> None:
    """Where all take part the exact price is known: the FFT's rounding is taken off delta."""
    ledger = Ledger((entry(z, 100, 1.0),))
    found, exact = (accountant(one).epsilon(ledger, 1.05e-10) for one in ("pld", "gdp"))
    assert exact <= found < 1.01 * exact


@pytest.mark.parametrize("law", ["poisson", "fixed"])
def test_a_delta_below_that_of_a_cut_draw_is_refused(law: str) -> None:
    """One in 10^18 Poisson cohorts has more clients than there are rows, and who is left out then
    has not the law that is priced.
    """
    ledger = Ledger((entry(2.0, 100, 0.1, law),))
    assert accountant("rdp").epsilon(ledger, 1.1e-14) > 0
    assert accountant("gdp").epsilon(ledger, 1e-30) > 0  # nothing is amplified
    if law == "fixed":
        assert accountant("rdp").epsilon(ledger, 1e-30) > 0
        return
    with pytest.raises(PrivacyError, match=r"give one of at least 1\.1e-14"):
        accountant("rdp").epsilon(ledger, 0.9e-14)
