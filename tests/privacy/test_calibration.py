"""Calibration against published noise levels, and its limits."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpfl_cli.config.errors import PrivacyError
from dpfl_cli.privacy import calibration
from dpfl_cli.privacy.accountants import accountant
from dpfl_cli.privacy.calibration import calibrate
from dpfl_cli.privacy.ledger import Ledger
from tests.privacy.test_accountants import entry, two_releases


def releases(count: int):
    return lambda noise: Ledger((entry(noise, count),))


def central_fedexp(dimension: int, clients: int, rounds: int):
    """The squared norm's std is d s^2 / M: with s sqrt(M) = 2C z its multiplier is 4 d z^2 / M."""
    return lambda noise: two_releases(noise, 4 * dimension * noise**2 / clients, rounds)


class TestPublishedFigures:
    @pytest.mark.parametrize(
        ("epsilon", "zcdp", "rdp", "gdp", "levels"),
        [
            (
                0.5,
                (2.0432, 8.1728),
                (1.2765, 5.1060),
                (1.0737, 4.2949),
                (14.0637, 44.4732, 140.637, 444.732),
            ),
            (
                1.0,
                (2.0860, 8.3438),
                (1.4213, 5.6851),
                (1.2089, 4.8355),
                (7.46126, 23.5946, 74.6126, 235.946),
            ),
            (
                2.0,
                (2.1702, 8.6810),
                (1.6047, 6.4188),
                (1.3812, 5.5246),
                (3.98762, 12.6100, 39.8762, 126.100),
            ),
            (
                3.3,
                (2.2776, 9.1105),
                (1.7802, 7.1210),
                (1.5469, 6.1876),
                (2.55764, 8.08796, 25.5764, 80.8796),
            ),
        ],
    )
    def test_scaffnew(self, epsilon, zcdp, rdp, gdp, levels):
        """v = sigma^2 eps^2 / (C^2 rounds ln(1/delta)) for sensitivities C and 2C, and sigma / C
        for 2C, delta = 1e-5.
        """
        delta = 1e-5
        for name, printed in (("zcdp", zcdp), ("rdp", rdp), ("gdp", gdp)):
            for rounds in (1, 1000):
                noise = calibrate(epsilon, delta, accountant(name), releases(rounds))
                for sensitivity, v in zip((1, 2), printed, strict=True):
                    found = (sensitivity * noise) ** 2 * epsilon**2 / rounds / math.log(1 / delta)
                    assert found == pytest.approx(v, abs=5.1e-5)
        for rounds, level in zip((1, 10, 100, 1000), levels, strict=True):
            assert 2 * calibrate(
                epsilon, delta, accountant("gdp"), releases(rounds)
            ) == pytest.approx(level, rel=5e-6)

    @pytest.mark.parametrize(
        ("records", "printed"),
        [
            (
                60000,
                (246.233, 90.5567, 56.8098, 41.8089, 30.2418, 16.2180, 11.3350, 4.91934, 4.10228),
            ),
            (
                32561,
                (232.635, 86.2931, 54.3255, 40.0695, 29.0511, 15.6505, 10.9686, 4.79412, 4.00450),
            ),
            (
                240000,
                (275.538, 99.7792, 62.1936, 45.5828, 32.8289, 17.4543, 12.1345, 5.19344, 4.31642),
            ),
        ],
    )
    def test_fednew(self, records, printed):
        """sigma for T = 70 releases of sensitivity 1 at delta = 1 / N."""
        for epsilon, sigma in zip((0.1, 0.3, 0.5, 0.7, 1, 2, 3, 8, 10), printed, strict=True):
            assert calibrate(
                epsilon, 1 / records, accountant("gdp"), releases(70)
            ) == pytest.approx(sigma, rel=5e-6)

    def test_dynamic(self):
        for epsilon, delta, rho in ((1.0, 1e-4, 0.0257628385), (0.5, 1e-5, 0.00531390423)):
            noise = calibrate(epsilon, delta, accountant("zcdp"), releases(8000))
            assert 8000 / (2 * noise**2) == pytest.approx(rho, rel=1e-8)
        for epsilon, delta, exact_rho in ((1.0, 1e-4, 0.0492674), (0.5, 1e-5, 0.0101119)):
            noise = calibrate(epsilon, delta, accountant("gdp"), releases(8000))
            assert 8000 / (2 * noise**2) == pytest.approx(exact_rho, rel=5e-6)


class TestMeetsTheTarget:
    @pytest.mark.parametrize("name", ["gdp", "joint_gaussian", "rdp", "zcdp", "pld"])
    def test_central_fedexp(self, name):
        """The second release's multiplier follows the first one's."""
        kind = accountant(name)
        plan = central_fedexp(500, 1000, 50)
        noise = calibrate(8.0, 1e-5, kind, plan)
        assert 8.0 * (1 - kind.tolerance) <= kind.epsilon(plan(noise), 1e-5) <= 8.0

    @settings(max_examples=60, deadline=None)
    @given(
        st.floats(-6, 6),
        st.floats(-300, -1),
        st.integers(1, 10000),
        st.sampled_from(["gdp", "rdp", "zcdp"]),
    )
    def test_any_target(self, log_epsilon, log_delta, count, name):
        target, delta, kind = 10**log_epsilon, 10**log_delta, accountant(name)
        noise = calibrate(target, delta, kind, releases(count))
        assert target * (1 - 1e-9) <= kind.epsilon(releases(count)(noise), delta) <= target

    @pytest.mark.parametrize("name", ["rdp", "zcdp", "pure", "pld"])
    def test_pure_releases(self, name):
        kind = accountant(name)

        def plan(value: float) -> Ledger:
            return Ledger((entry(value, 50, "pure"),))

        found = calibrate(2.0, 1e-5, kind, plan, increasing=True)
        assert 2.0 * (1 - kind.tolerance) <= kind.epsilon(plan(found), 1e-5) <= 2.0

    def test_takes_few_evaluations(self):
        asked = []

        def plan(noise: float) -> Ledger:
            asked.append(noise)
            return releases(70)(noise)

        calibrate(1.0, 1e-5, accountant("gdp"), plan)
        assert len(asked) < 25


class TestRefusals:
    def test_no_noise_suffices(self):
        """A release whose cost does not depend on the noise sets a floor, which is named."""
        with pytest.raises(PrivacyError, match=r"smallest epsilon within reach is 2\.99999"):
            calibrate(
                1.0,
                1e-5,
                accountant("rdp"),
                lambda noise: Ledger((entry(noise, 10), entry(3.0, 1, "pure", name="fixed"))),
            )

    def test_bounds_on_the_noise(self, monkeypatch):
        monkeypatch.setattr(calibration, "MOST", 5.0)
        with pytest.raises(PrivacyError, match="no noise reaches"):
            calibrate(1.0, 1e-5, accountant("gdp"), releases(50))
        monkeypatch.setattr(calibration, "MOST", 100.0)
        monkeypatch.setattr(calibration, "LEAST", 0.5)
        with pytest.raises(PrivacyError, match="met with any noise"):
            calibrate(20.0, 1e-5, accountant("gdp"), releases(1))

    def test_nothing_released(self):
        with pytest.raises(PrivacyError, match="nothing is released"):
            calibrate(1.0, 1e-5, accountant("gdp"), lambda noise: Ledger())

    def test_not_private(self):
        with pytest.raises(PrivacyError, match="'update' is made without noise"):
            calibrate(
                1.0, 1e-5, accountant("gdp"), lambda noise: Ledger((entry(None, 1, "nonprivate"),))
            )

    def test_jump_over_the_target(self):
        """Epsilon that jumps over the target (here by rounding the noise to whole numbers) is said,
        not looped on.
        """
        with pytest.raises(PrivacyError, match="epsilon jumps from"):
            calibrate(1.0, 1e-5, accountant("gdp"), lambda noise: releases(10)(math.ceil(noise)))

    def test_more_than_the_accountant_works_at(self):
        with pytest.raises(PrivacyError, match="more than can be priced"):
            calibrate(2000.0, 1e-5, accountant("pld"), releases(1))
