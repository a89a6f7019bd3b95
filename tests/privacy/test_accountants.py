"""Accountants against published figures, independent evaluations and each other."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpfl_cli.config.errors import ConfigError, PrivacyError
from dpfl_cli.privacy.accountants import Accountant, accountant, price, price_all
from dpfl_cli.privacy.gaussian_accountants import (
    gaussian_epsilon,
    joint_squared_mu,
)
from dpfl_cli.privacy.kinds import pure_rdp
from dpfl_cli.privacy.ledger import Ledger, LedgerEntry, together

DELTA = 1e-5
NAMES = ("gdp", "joint_gaussian", "rdp", "zcdp", "pld", "pure")


def entry(
    parameter: float | tuple[float, ...] | None,
    count: int = 1,
    kind: str = "gaussian",
    **changes: object,
) -> LedgerEntry:
    values = {
        "name": "update",
        "kind": kind,
        "count": count,
        "parameter": parameter,
        "sensitivity": None,
        "relation": "replace_one",
        "unit": "client",
        "scope": "federation",
        **changes,
    }
    return LedgerEntry(**values)  # type: ignore[arg-type]


def ledger(*entries: LedgerEntry) -> Ledger:
    return Ledger(entries)


Level = float | tuple[float, ...]


def two_releases(vector: Level, scalar: Level, count: int = 1, **changes: object) -> Ledger:
    return ledger(
        entry(vector, count, group="moments", **changes),
        entry(
            scalar,
            count,
            group="moments",
            name="squared norm",
            shape="scalar",
            quantity="squared_norms",
            **changes,
        ),
    )


def apart(of_vector: float | None = None, **changes: Any) -> Ledger:
    """Two releases, whose second one has been changed."""
    vector, scalar = two_releases(2.5, 12.5, 5).entries
    return ledger(replace(vector, sensitivity=of_vector), replace(scalar, **changes))


def fedexp(dimension: int, rounds: int) -> Ledger:
    """DP-FedEXP under central DP with 1000 clients: std 5C/M on the mean, 25 d C^2/M^2 on the mean
    squared norm.
    """
    return two_releases(2.5, dimension / 40, rounds)


def priced(name: str, composed: Ledger, delta: float = DELTA) -> float:
    return accountant(name).epsilon(composed, delta)


def mironov() -> Accountant:
    return accountant("rdp", {"conversion": "mironov"})


class TestPublishedFigures:
    """DP-FedEXP (arXiv 2504.09850): Table 1 recomputed, delta = 1e-5, M = 1000."""

    @pytest.mark.parametrize(
        ("releases", "rounds_49", "rounds_50", "mironov_50", "cks_50"),
        [
            (lambda rounds: ledger(entry(0.35, 1)), 15.658124, 15.658124, 17.7917, 16.7250),
            (lambda rounds: ledger(entry(2.5, rounds)), 15.257054, 15.456156, 17.5723, 16.5114),
            (lambda rounds: fedexp(500, rounds), 15.646201, 15.850909, 18.0011, 16.9288),
            (lambda rounds: fedexp(5046, rounds), 15.260897, 15.460054, 17.5765, 16.5155),
        ],
        ids=["local one round", "central fedavg", "central fedexp d=500", "central fedexp d=5046"],
    )
    def test_table(self, releases, rounds_49, rounds_50, mironov_50, cks_50):
        assert priced("gdp", releases(49)) == pytest.approx(rounds_49, abs=5e-7)
        assert priced("gdp", releases(50)) == pytest.approx(rounds_50, abs=6e-7)
        assert mironov().epsilon(releases(50), DELTA) == pytest.approx(mironov_50, abs=5.1e-5)
        assert priced("rdp", releases(50)) == pytest.approx(cks_50, abs=5.1e-5)

    def test_whole_training_under_local_dp(self):
        composed = ledger(entry(0.35, 50, scope="client"))
        assert priced("gdp", composed) == pytest.approx(289.34, abs=0.005)
        assert priced("rdp", composed) == pytest.approx(298.47, abs=0.005)
        assert mironov().epsilon(composed, DELTA) == pytest.approx(301.03, abs=0.005)

    def test_whole_training_with_privunit(self):
        composed = ledger(entry(6.0, 50, "pure", scope="client"))
        assert priced("pure", composed) == pytest.approx(300, rel=1e-14)
        assert priced("pld", composed) == pytest.approx(299.99999, abs=5e-6)

    def test_joint_accounting_makes_the_second_release_free(self):
        joint = accountant("joint_gaussian")
        alone = priced("gdp", ledger(entry(2.5, 50)))
        assert joint.epsilon(fedexp(500, 50), DELTA) == alone == pytest.approx(15.456156, abs=5e-7)
        assert joint.epsilon(fedexp(121, 50), DELTA) == alone  # d >= 121 at M = 1000
        assert (more := joint.epsilon(fedexp(120, 50), DELTA)) > alone
        halves = together({"one": fedexp(120, 20), "other": fedexp(120, 30)})
        assert joint.epsilon(halves, DELTA) == pytest.approx(more, rel=1e-12)

    def test_a_records_mean_and_norm_may_both_move_fully(self):
        """Of two records one that is replaced can take C e to 0: joint accounting is of clients."""
        two = two_releases(1.0, 1.0, unit="record")
        paid = priced("gdp", two)
        assert priced("joint_gaussian", two) == paid
        of_clients = two_releases(1.0, 1.0)
        assert priced("joint_gaussian", of_clients) < paid

    def test_joint_accounting_is_of_two_releases_and_a_third_is_paid_for(self):
        two = two_releases(2.0, 2.0, 10)
        three = ledger(*two.entries, entry(0.5, 10, name="third", group="moments", shape="matrix"))
        paid = priced("gdp", three)
        assert priced("joint_gaussian", three) == pytest.approx(paid, rel=1e-12)

    def test_zcdp_is_the_accountant_of_dynamic(self):
        """Time-varying local noise (dynamic paper): rho_tgt, and the exact epsilon of the same
        noise.
        """
        for epsilon, delta, rho, exact, cks in (
            (1.0, 1e-4, 0.0257628385, 0.693681, 0.775807),
            (0.5, 1e-5, 0.00531390423, 0.352156, 0.387804),
        ):
            weights = np.geomspace(1, 30, 8000)
            multipliers = np.sqrt(weights.sum() / weights / (2 * rho))  # sum 1 / (2 z_t^2) = rho
            composed = ledger(entry(tuple(multipliers), 8000, scope="client"))
            assert priced("zcdp", composed, delta) == pytest.approx(epsilon, rel=1e-8)
            assert priced("gdp", composed, delta) == pytest.approx(exact, abs=1e-6)
            assert priced("rdp", composed, delta) == pytest.approx(cks, abs=1e-6)


class TestGaussian:
    @pytest.mark.parametrize("mu", [1e-8, 1e-4, 0.03, 0.999, 1.001, 3.0, 40.0, 1500.0])
    @pytest.mark.parametrize("delta", [0.5, 1e-2, 1e-5, 1e-12, 1e-60, 1e-300])
    def test_against_high_precision(self, mu, delta):
        """delta(eps) = Phi(-eps/mu + mu/2) - e^eps Phi(-eps/mu - mu/2) evaluated with 400
        digits.
        """
        epsilon = gaussian_epsilon(mu, delta)

        def exact_delta(value: float) -> mpmath.mpf:
            with mpmath.workdps(400):
                eps, shift = mpmath.mpf(value), mpmath.mpf(mu)
                tail = lambda x: mpmath.erfc(x / mpmath.sqrt(2)) / 2
                return +(
                    tail(eps / shift - shift / 2) - mpmath.exp(eps) * tail(eps / shift + shift / 2)
                )

        if epsilon == 0:
            assert exact_delta(0.0) <= delta
            return
        assert exact_delta(epsilon * (1 + 1e-12)) <= delta <= exact_delta(epsilon * (1 - 1e-12))

    def test_no_shift_costs_nothing(self):
        assert gaussian_epsilon(0.0, DELTA) == 0.0
        assert priced("gdp", ledger(entry(math.inf, 3))) == 0.0


class TestAgainstEachOther:
    @pytest.mark.parametrize("delta", [1e-2, 1e-5, 1e-9])
    @pytest.mark.parametrize(
        "composed",
        [
            ledger(entry(0.35, 1)),
            ledger(entry(0.35, 50)),
            fedexp(500, 50),
            ledger(entry(20.0, 100), entry(tuple(np.geomspace(5, 500, 40)), 40, name="dynamic")),
            ledger(entry(3000.0, 5)),
        ],
        ids=["one", "large", "two", "dynamic", "tiny"],
    )
    def test_gaussian_ledgers(self, composed, delta):
        exact = priced("gdp", composed, delta)
        assert exact <= priced("pld", composed, delta) <= exact + 1e-3 * max(exact, 1e-3)

    def test_rdp_against_dp_accounting(self):
        """Not above dp-accounting's bound on its own orders, and below it by no more than those
        orders explain.
        """
        import dp_accounting

        orders = [1 + x for x in np.geomspace(0.011, 500, 4000)]
        for composed in (ledger(entry(2.5, 50)), fedexp(500, 50), ledger(entry(30.0, 200))):
            theirs = dp_accounting.rdp.RdpAccountant(orders)
            for part in composed.entries:
                event = dp_accounting.GaussianDpEvent(part.parameter)
                theirs.compose(event, part.count)
            ours = priced("rdp", composed)
            assert ours <= theirs.get_epsilon(DELTA) <= ours * (1 + 1e-5)

    @pytest.mark.parametrize(
        ("epsilon", "count"), [(6.0, 50), (0.5, 50), (0.1, 200), (0.01, 1000), (3.0, 3), (0.7, 1)]
    )
    def test_pure_ledgers(self, epsilon, count):
        """Against the exact composition of count epsilon-DP mechanisms (Kairouz, Oh and Viswanath
        2015, Theorem 3.3).
        """
        composed = ledger(entry(epsilon, count, "pure"))
        exact = _optimal_composition(epsilon, count, DELTA)
        assert exact - 1e-11 * exact <= priced("pld", composed) <= exact * (1 + 1e-6)
        assert exact - 1e-11 * exact <= priced("rdp", composed)
        assert priced("rdp", composed) <= priced("pure", composed) + 1e-9
        assert priced("rdp", composed) <= priced("zcdp", composed)

    def test_pure_rdp_is_the_divergence_of_randomised_response(self):
        for epsilon in (1e-3, 0.3, 2.0, 40.0):
            for excess in (1e-3, 0.5, 3.0, 50.0, 1e4):
                order = mpmath.mpf(1 + excess)
                with mpmath.workdps(60):
                    p = 1 / (1 + mpmath.exp(-mpmath.mpf(epsilon)))
                    q = p * mpmath.exp(-mpmath.mpf(epsilon))
                    exact = mpmath.log(
                        p**order * q ** (1 - order) + q**order * p ** (1 - order)
                    ) / (order - 1)
                found = float(pure_rdp(epsilon, np.array([excess]))[0])
                assert float(exact) * (1 - 1e-12) <= found <= float(exact) * (1 + 1e-9)

    def test_mixed_ledgers_cost_more_than_either_part(self):
        gaussian, pure = entry(5.0, 50), entry(0.5, 10, "pure", name="norm")
        for kind in (accountant("pld"), accountant("rdp"), mironov(), accountant("zcdp")):
            whole = kind.epsilon(ledger(gaussian, pure), DELTA)
            parts = [kind.epsilon(ledger(part), DELTA) for part in (gaussian, pure)]
            assert max(parts) < whole
        loose = priced("gdp", ledger(gaussian)) + priced("pure", ledger(pure))
        assert priced("pld", ledger(gaussian, pure)) <= loose

    def test_pld_with_several_pure_levels(self):
        """Rounding up to the grid costs at most the 0.1 % that is promised for the sum."""
        levels = ledger(entry((0.11, 0.23, 0.37), 3, "pure"))
        assert priced("pld", levels, 1e-9) == pytest.approx(0.71, rel=2e-3)
        assert priced("pld", levels, 1e-9) > 0.7099


def _optimal_composition(epsilon: float, count: int, delta: float) -> float:
    with mpmath.workdps(60):
        eps = mpmath.mpf(epsilon)
        p = 1 / (1 + mpmath.exp(-eps))
        masses = [
            mpmath.binomial(count, k) * p**k * (1 - p) ** (count - k) for k in range(count + 1)
        ]
        losses = [(2 * k - count) * eps for k in range(count + 1)]
        low, high = mpmath.mpf(0), count * eps
        for _ in range(50):
            middle = (low + high) / 2
            spent = sum(
                m * (1 - mpmath.exp(middle - loss))
                for m, loss in zip(masses, losses, strict=True)
                if loss > middle
            )
            low, high = (middle, high) if spent > delta else (low, middle)
        return float(high)


multipliers = st.floats(0.3, 200.0)
gaussians = st.lists(st.tuples(multipliers, st.integers(1, 60)), min_size=1, max_size=5)
pures = st.lists(st.tuples(st.floats(1e-3, 3.0), st.integers(1, 20)), min_size=1, max_size=5)


def _entries(releases: list[tuple[float, int]], kind: str) -> list[LedgerEntry]:
    return [
        entry(value, count, kind, name=f"{kind} {i}") for i, (value, count) in enumerate(releases)
    ]


class TestMonotone:
    @settings(max_examples=60, deadline=None)
    @given(gaussians, pures, multipliers, st.floats(1e-3, 3.0), st.floats(-9, -3))
    def test_every_release_costs(self, some, others, multiplier, epsilon, log_delta):
        delta = 10**log_delta
        gaussian, pure = ledger(*_entries(some, "gaussian")), ledger(*_entries(others, "pure"))
        both = Ledger((*gaussian.entries, *pure.entries))
        one_gaussian, one_pure = (
            entry(multiplier, name="more"),
            entry(epsilon, kind="pure", name="more"),
        )
        for name, before, more in (
            ("gdp", gaussian, one_gaussian),
            ("joint_gaussian", gaussian, one_gaussian),
            ("zcdp", both, one_gaussian),
            ("zcdp", both, one_pure),
            ("rdp", both, one_gaussian),
            ("rdp", both, one_pure),
            ("pure", pure, one_pure),
        ):
            kind = accountant(name)
            after = Ledger((*before.entries, more))
            less, greater = kind.epsilon(before, delta), kind.epsilon(after, delta)
            assert greater > less or (greater == less == 0), name

    @settings(max_examples=3, deadline=None)
    @given(gaussians, multipliers)
    def test_every_release_costs_under_pld(self, some, multiplier):
        before = ledger(*_entries([(max(z, 2.0), n) for z, n in some], "gaussian"))
        kind = accountant("pld")
        after = Ledger((*before.entries, entry(min(multiplier, 30.0), name="more")))
        assert kind.epsilon(after, DELTA) > kind.epsilon(before, DELTA)

    @settings(max_examples=60, deadline=None)
    @given(gaussians, st.floats(-9, -3))
    def test_bounds_are_in_order(self, some, log_delta):
        composed, delta = ledger(*_entries(some, "gaussian")), 10**log_delta
        exact = priced("gdp", composed, delta)
        improved, basic = (
            priced("rdp", composed, delta),
            mironov().epsilon(composed, delta),
        )
        assert exact <= improved <= basic
        assert basic == pytest.approx(priced("zcdp", composed, delta), rel=1e-9)

    @settings(max_examples=60, deadline=None)
    @given(st.lists(multipliers, min_size=1, max_size=30))
    def test_a_list_of_multipliers_is_its_releases(self, values):
        apart = ledger(*_entries([(value, 1) for value in values], "gaussian"))
        listed = ledger(entry(tuple(values), len(values)))
        for name in ("gdp", "zcdp", "rdp"):
            assert priced(name, listed) == pytest.approx(priced(name, apart), rel=1e-12)


class TestJointSensitivity:
    @settings(max_examples=200, deadline=None)
    @given(st.floats(0.05, 50), st.floats(0.05, 50))
    def test_between_the_vector_alone_and_both_apart(self, vector, scalar):
        joint = float(joint_squared_mu(np.array(vector), np.array(scalar)))
        assert vector**-2 * (1 - 1e-12) <= joint <= (vector**-2 + scalar**-2) * (1 + 1e-12)

    @pytest.mark.parametrize("ratio", [0.1, 1.9, 2.0, 2.5, 2.7725, 2.7726, 3.0, 8.0, 1e3, 1e8])
    def test_is_the_supremum(self, ratio):
        """Against a search over norms (a, b), and never below what random neighbours show."""
        vector = 1.3
        scalar = 2 * vector / math.sqrt(ratio)
        bound = float(joint_squared_mu(np.array(vector), np.array(scalar)))
        clip_norm, clients = 0.7, 10
        first, second = (
            vector * 2 * clip_norm / clients,
            scalar * clip_norm**2 / clients,
        )  # standard deviations

        def squared_shift(u: np.ndarray, v: np.ndarray) -> np.ndarray:
            moved = np.linalg.norm(u - v, axis=-1) / clients / first
            squares = ((u**2).sum(-1) - (v**2).sum(-1)) / clients / second
            return moved**2 + squares**2

        norms = np.linspace(0, clip_norm, 2001)
        opposite = squared_shift(
            np.stack([np.full_like(norms, clip_norm)], -1), np.stack([-norms], -1)
        )
        assert opposite.max() <= bound * (1 + 1e-9)
        assert opposite.max() >= bound * (1 - 1e-5)  # attained, so the bound is tight

        draw = np.random.default_rng(0)
        u, v = draw.normal(size=(2, 20000, 3))
        u *= clip_norm * draw.random((20000, 1)) ** 0.2 / np.linalg.norm(u, axis=-1, keepdims=True)
        v *= clip_norm * draw.random((20000, 1)) / np.linalg.norm(v, axis=-1, keepdims=True)
        assert squared_shift(u, v).max() <= bound * (1 + 1e-12)
        assert squared_shift(u, -u * 0.4).max() <= bound * (1 + 1e-12)

    def test_threshold(self):
        def gain(ratio: float) -> float:
            return float(joint_squared_mu(np.array(1.0), np.array(2 / math.sqrt(ratio)))) - 1

        assert gain(2.77254) <= 0 < gain(2.77256)

    def test_noise_that_changes_over_time(self):
        vector, scalar = (1.0, 2.0, 3.0), (0.4, 9.0, 1.0)
        listed = two_releases(vector, scalar, 3)
        mu = math.sqrt(
            sum(
                float(joint_squared_mu(np.array(v), np.array(s)))
                for v, s in zip(vector, scalar, strict=True)
            )
        )
        assert priced("joint_gaussian", listed) == pytest.approx(
            gaussian_epsilon(mu, DELTA), rel=1e-12
        )
        assert priced("joint_gaussian", listed) < priced("gdp", listed)

    @pytest.mark.parametrize(
        "composed",
        [
            two_releases(2.5, 12.5, 5, relation="zero_out"),
            two_releases(2.5, 12.5, 5, relation="add_or_remove"),
            apart(group="other"),
            ledger(entry(2.5, 5), entry(12.5, 5, name="s", shape="scalar")),
            apart(count=4),
            apart(shape="vector", quantity=""),
            apart(quantity=""),
            apart(sensitivity=0.5, of_vector=2.0),
        ],
        ids=[
            "zero_out",
            "add_or_remove",
            "other groups",
            "no group",
            "other counts",
            "two vectors",
            "other quantity",
            "other sensitivity",
        ],
    )
    def test_prices_separately_where_the_bound_does_not_apply(self, composed):
        assert priced("joint_gaussian", composed) == priced("gdp", composed)

    def test_float32_sensitivities_still_match(self):
        clip_norm = float(np.float32(0.3))
        of_vector, of_scalar = float(np.float32(2 * clip_norm)), float(np.float32(clip_norm) ** 2)
        composed = apart(of_vector, sensitivity=of_scalar)
        assert priced("joint_gaussian", composed) < priced("gdp", composed)


class TestRefusals:
    @pytest.mark.parametrize("name", NAMES)
    def test_nothing_released(self, name):
        assert accountant(name).supports(Ledger()) is None
        assert priced(name, Ledger()) == 0.0
        assert priced(name, ledger(entry(0.0, 0))) == 0.0

    @pytest.mark.parametrize("name", NAMES)
    @pytest.mark.parametrize(
        "rest", [[], [entry(1.0, 3, name="other")], [entry(1.0, 3, "pure", name="other")]]
    )
    def test_not_private(self, name, rest):
        composed = ledger(entry(None, 2, "nonprivate"), *rest)
        assert priced(name, composed) == math.inf
        found = price(composed, accountant(name), DELTA)
        assert (found.epsilon, found.reason, found.vacuous) == (None, "not private", True)

    @pytest.mark.parametrize("name", ["gdp", "joint_gaussian", "rdp", "zcdp", "pld"])
    def test_no_noise_is_not_private(self, name):
        assert priced(name, ledger(entry((1.0, 0.0), 2))) == math.inf

    @pytest.mark.parametrize("name", ["rdp", "zcdp", "pld", "pure"])
    def test_infinite_pure_epsilon_is_not_private(self, name):
        assert priced(name, ledger(entry(math.inf, 1, "pure"))) == math.inf

    @pytest.mark.parametrize(
        "changes", [{"relation": "zero_out"}, {"unit": "record"}, {"scope": "client"}]
    )
    @pytest.mark.parametrize("name", ["gdp", "joint_gaussian", "rdp", "zcdp", "pld"])
    def test_two_meanings_are_not_one_epsilon(self, name, changes):
        composed = ledger(entry(1.0), entry(1.0, name="other", **changes))
        (what, value) = next(iter(changes.items()))
        reason = accountant(name).supports(composed)
        assert reason is not None
        assert what in reason
        assert value in reason
        with pytest.raises(PrivacyError):
            priced(name, composed)
        assert getattr(price(composed, accountant(name), DELTA), what) is None

    def test_unsupported_kinds_say_what_to_use(self):
        gaussian, pure = ledger(entry(1.0)), ledger(entry(1.0, 1, "pure"))
        reason = accountant("pure").supports(gaussian)
        assert reason is not None
        assert "accountant=gdp" in reason
        assert reason.count("\n") == 0
        reason = accountant("gdp").supports(pure)
        assert reason is not None
        assert "rdp" in reason
        assert accountant("joint_gaussian").supports(pure) is not None
        for name in ("rdp", "zcdp", "pld"):
            assert (
                accountant(name).supports(
                    Ledger((*gaussian.entries, entry(1.0, 1, "pure", name="p")))
                )
                is None
            )

    @pytest.mark.parametrize("delta", [0.0, 1.0, -1e-5, 2.0, math.nan])
    def test_delta_out_of_range(self, delta):
        with pytest.raises(ConfigError, match=r"dp\.delta"):
            priced("gdp", ledger(entry(1.0)), delta)
        with pytest.raises(ConfigError, match=r"dp\.delta"):
            price(ledger(entry(1.0)), accountant("gdp"), delta)

    @pytest.mark.parametrize("parameter", [math.nan, -1.0])
    def test_meaningless_multiplier(self, parameter):
        with pytest.raises(PrivacyError, match="update"):
            priced("gdp", ledger(entry(parameter)))

    def test_unknown_name_or_setting(self):
        with pytest.raises(ConfigError, match="did you mean rdp"):
            accountant("rdpp")
        with pytest.raises(ConfigError, match=r"accountant\.conversion"):
            accountant("rdp", {"conversion": "other"})
        with pytest.raises(ConfigError, match=r"accountant\.interval"):
            accountant("pld", {"interval": 0.0})


class TestPldLimits:
    def test_above_epsilon_500(self):
        for composed in (ledger(entry(0.01, 50)), ledger(entry(11.0, 50, "pure"))):
            with pytest.raises(PrivacyError, match="above epsilon 500"):
                priced("pld", composed)

    def test_above_one_gibibyte(self):
        with pytest.raises(PrivacyError, match="GiB"):
            accountant("pld", {"interval": 1e-7}).epsilon(ledger(entry(2.5, 50)), DELTA)

    def test_delta_below_the_rounding(self):
        with pytest.raises(PrivacyError, match="delta=1e-30"):
            priced("pld", ledger(entry(2.5, 50)), 1e-30)
        composed = fedexp(500, 50)
        exact = priced("gdp", composed, 1e-11)
        assert exact <= priced("pld", composed, 1e-11) <= exact + 1e-2

    def test_too_many_pure_levels(self):
        levels = tuple(np.linspace(0.1, 0.2, 101))
        with pytest.raises(PrivacyError, match="101"):
            priced("pld", ledger(entry(levels, 101, "pure")))

    def test_a_given_interval_is_used(self):
        composed = fedexp(500, 50)
        exact = priced("gdp", composed)
        coarse = accountant("pld", {"interval": 0.02}).epsilon(composed, DELTA)
        assert exact < priced("pld", composed) < coarse < exact + 1e-2


class TestPrice:
    def test_carries_what_an_epsilon_needs(self):
        found = price(fedexp(500, 50), accountant("gdp"), DELTA)
        assert found.epsilon == pytest.approx(15.850909, abs=6e-7)
        assert (found.reason, found.releases, found.delta) == (None, 100, DELTA)
        assert (found.unit, found.relation, found.scope) == ("client", "replace_one", "federation")
        assert (found.accountant, found.guarantee, found.vacuous) == (
            "gdp",
            "(epsilon, delta)-DP",
            False,
        )

    def test_vacuous_above_20(self):
        for epsilon, vacuous in ((20.0, False), (20.01, True)):
            found = price(ledger(entry(epsilon, 1, "pure")), accountant("pure"), DELTA)
            assert found.vacuous is vacuous
            assert found.guarantee == "epsilon-DP"

    def test_all_accountants_with_refusals(self):
        found = {p.accountant: p for p in price_all(ledger(entry(0.01, 50)), DELTA)}
        assert set(NAMES) | {"rdp (conversion mironov)"} <= set(found)
        assert {name for name, p in found.items() if p.epsilon is None and name in NAMES} == {
            "pld",
            "pure",
        }
        assert found["pld"].reason is not None
        assert "500" in found["pld"].reason
        assert found["pure"].vacuous is False


def test_a_kind_that_nobody_knows_is_named() -> None:
    with pytest.raises(PrivacyError, match="kind 'skellam' is not known: write gaussian or pure"):
        type(accountant("zcdp")).knows("skellam")
