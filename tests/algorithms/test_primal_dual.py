"""The primal-dual proximal method against equation (7) written as loops, its schedule, and the
facts of its analysis.
"""

from __future__ import annotations

import numpy as np
import pytest
from federated import D, grouped_federation, noise_of, play
from hypothesis import given
from hypothesis import strategies as st
from test_record import SIZES, C, M, Z, clipped_mean

from dpfl_cli.algorithms.primal_dual import noise_factors
from dpfl_cli.config.errors import ConfigError

GAMMA, MU = 0.25, 0.1


@pytest.mark.parametrize("report", ["local", "messages"])
@pytest.mark.parametrize("schedule", ["dynamic", "static"])
def test_equals_equation_7(schedule: str, report: str) -> None:
    federation, rounds = grouped_federation(3, SIZES), 6
    settings = {"step": GAMMA, "schedule": schedule, "strong_convexity": MU, "report": report}
    played = play(
        "primal_dual",
        "local",
        settings,
        seeds=[3],
        federations=[federation],
        noise=Z,
        horizon=rounds,
    ).go(rounds)
    factors = noise_factors(rounds, M, GAMMA, MU) if schedule == "dynamic" else np.ones(rounds)
    x, dual = np.zeros((M, D)), np.zeros((M, D))
    for t in range(1, rounds + 1):
        gradients = np.array([clipped_mean(federation, i, x[i]) for i in range(M)])
        std = factors[t - 1] * Z * 2 * C / np.array(SIZES)[:, None]  # n xi_t
        zeta = std / M * noise_of(3, "gradient", t, M)
        message = x - GAMMA * (gradients / M + zeta + dual)
        mean = message.mean(axis=0)
        dual = dual + message - mean
        x = message - GAMMA * (message - mean)
        state = played.states[t].server
        np.testing.assert_allclose(state["local"][0], x, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(state["dual"][0], dual, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(
            state["model"][0], x.mean(axis=0) if report == "local" else mean, rtol=1e-9, atol=1e-12
        )
        np.testing.assert_allclose(state["dual"][0].sum(axis=0), 0, atol=1e-12)
        spread = np.mean(np.sum((x - x.mean(axis=0)) ** 2, axis=1))
        np.testing.assert_allclose(
            played.diagnostics[t - 1]["consensus"][0], spread, rtol=1e-8, atol=1e-15
        )
    entry = played.ledger()["gradient"]
    np.testing.assert_allclose(entry.parameters(), Z * factors, rtol=1e-12)
    assert (entry.unit, entry.count) == ("record", rounds)


@given(st.integers(1, 9000), st.integers(1, 50), st.floats(0.01, 0.25), st.floats(1e-4, 60.0))
def test_every_schedule_spends_the_same(rounds: int, clients: int, step: float, mu: float) -> None:
    factors = noise_factors(rounds, clients, step, mu)
    assert np.sum(factors**-2.0) == pytest.approx(rounds, rel=1e-10)
    assert (np.diff(factors) <= 0).all()  # noise falls


@pytest.mark.parametrize("mu", [MU, 60.0])
def test_the_schedule_is_the_formula(mu: float) -> None:
    """xi_t^2 = sqrt(pi) / sqrt(q_t), sqrt(pi) = 2 B^2 sum_t sqrt(q_t) / (rho n^2 m^2), by the sums
    as they stand.
    """
    rounds, n, m, bound, rho = 200, 20, 100, 1.0, 0.0257628
    q = (1 - GAMMA * min(mu / n, 1.0)) ** (rounds - np.arange(1, rounds + 1))
    xi = np.sqrt(2 * bound**2 * np.sum(np.sqrt(q)) / (rho * n**2 * m**2) / np.sqrt(q))
    base = np.sqrt(rounds / (2 * rho))  # the static multiplier
    np.testing.assert_allclose(
        base * noise_factors(rounds, n, GAMMA, mu), n * xi * m / (2 * bound), rtol=1e-10
    )
    assert np.sum(2 * bound**2 / (n**2 * m**2 * xi**2)) == pytest.approx(rho, rel=1e-12)


def test_no_other_schedule_of_the_budget_has_less_weighted_noise() -> None:
    rounds, n, generator = 400, 20, np.random.default_rng(0)
    q = (1 - GAMMA * MU / n) ** (rounds - np.arange(1, rounds + 1))
    best = np.sum(q * noise_factors(rounds, n, GAMMA, MU) ** 2)
    for scale in (0.01, 0.1, 1.0):
        for _ in range(200):
            other = noise_factors(rounds, n, GAMMA, MU) * np.exp(
                scale * generator.standard_normal(rounds)
            )
            other *= np.sqrt(np.sum(other**-2.0) / rounds)
            assert np.sum(q * other**2) > best


def test_forty_orders_of_magnitude_do_not_overflow() -> None:
    factors = noise_factors(8000, 1, 0.25, 0.1)  # gamma mu_f T = 200
    assert np.isfinite(factors).all()
    assert factors[0] / factors[-1] > 1e20  # xi^2 spans forty
    assert np.sum(factors**-2.0) == pytest.approx(8000, rel=1e-12)


def test_without_noise_it_reaches_the_common_minimiser_and_the_duals_the_gradients() -> None:
    federation = grouped_federation(7, [6, 6, 6])
    settings = {"step": GAMMA, "clip_norm": None, "schedule": "static"}
    played = play(
        "primal_dual", "none", settings, seeds=[7], federations=[federation], horizon=4000
    ).go(4000)
    x, y = federation.dataset.train.features, federation.dataset.train.targets
    best = np.linalg.lstsq(x, y, rcond=None)[0]
    state = played.states[-1].server
    np.testing.assert_allclose(state["local"][0], np.tile(best, (3, 1)), atol=1e-7)
    gradients = np.array([clipped_mean(federation, i, best, np.inf) for i in range(3)])
    np.testing.assert_allclose(
        state["dual"][0], (gradients.mean(axis=0) - gradients) / 3, atol=1e-7
    )


def test_what_is_missing_is_said() -> None:
    with pytest.raises(
        ConfigError, match=r"algorithm\.strong_convexity=null under algorithm\.schedule=dynamic"
    ):
        play("primal_dual", "local", {"strong_convexity": None})
