"""DP-FedEXP against the paper's lines, written as loops, and the facts that the paper proves."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from federated import (
    D,
    Federation,
    M,
    clipped,
    federation_of,
    local_update,
    noise_of,
    play,
    reordered,
    setup_of,
)

from dpfl_cli.algorithms.fedexp import FedExp, FedExpSettings
from dpfl_cli.config.errors import ConfigError
from dpfl_cli.privacy.client_values import opened

C, LR, STEPS, Z = 0.3, 0.01, 4, 0.35


def bounded_updates(federation: Federation, w: np.ndarray) -> np.ndarray:
    return np.array(
        [clipped(local_update(federation, i, w, LR, STEPS), C) for i in range(federation.clients)]
    )


def mean_square(vectors: np.ndarray) -> float:
    return float(np.mean([v @ v for v in vectors]))


@pytest.mark.parametrize("given", [None, 0.9], ids=["paper's rule", "own multiplier"])
@pytest.mark.parametrize("relation", ["replace_one", "zero_out"])
def test_central_gaussian_equals_algorithm_2(given: float | None, relation: str) -> None:
    seed, rounds = 5, 3
    played = play(
        "fedexp", "central", {"squared_norm_noise": given}, seeds=[seed], noise=Z, relation=relation
    ).go(rounds)
    sensitivity = 2 * C if relation == "replace_one" else C
    deviation = Z * sensitivity / M  # on the mean update: sigma / sqrt(M)
    paper = (
        D * (deviation**2) * (1 if relation == "replace_one" else 4)
    )  # sigma_xi = d sigma^2 / M, four times it under zero_out
    xi = paper if given is None else given * C**2 / M
    federation, w = federation_of(seed), np.zeros(D)
    for t in range(1, rounds + 1):
        updates = bounded_updates(federation, w)
        mean = sum(updates) / M + deviation * noise_of(seed, "update", t, None)
        numerator = mean_square(updates) + xi * noise_of(seed, "squared_norm", t, None, 1)[0]
        step = max(1.0, numerator / (mean @ mean))
        w = w + step * mean
        np.testing.assert_allclose(played.models()[t, 0], w, rtol=1e-9)
        assert float(played.diagnostics[t - 1]["server_step"]) == pytest.approx(step)
    ledger = played.ledger()
    assert list(ledger) == ["update", "squared_norm"]
    assert ledger["update"].group == ledger["squared_norm"].group != ""
    assert ledger["squared_norm"].sensitivity == pytest.approx(C**2)
    assert ledger["squared_norm"].parameter == pytest.approx(
        4 * D * Z**2 / M if given is None else given
    )


def test_the_papers_rule_prices_as_in_the_paper() -> None:
    """d = 500, M = 1000, sigma = 5C / sqrt(M): mu_b = 40 / d = 0.08 beside mu_a = 0.4."""
    settings = FedExpSettings(local_steps=20, local_lr=0.001, clip_norm=0.3)
    update, squared_norm = FedExp.releases(settings, setup_of("central"))
    assert update.multiplier is None
    assert squared_norm.multiplier is not None
    assert 1 / squared_norm.multiplier(2.5) == pytest.approx(0.08)


@pytest.mark.parametrize(("half", "epsilon"), [(True, 0.0), (False, 0.001), (True, 0.001)])
def test_the_options_of_fedexp_2023(half: bool, epsilon: float) -> None:
    played = play("fedexp", "none", {"half": half, "denominator_epsilon": epsilon}, seeds=[1]).go(1)
    updates = bounded_updates(federation_of(1), np.zeros(D))
    mean = sum(updates) / M
    step = max(1.0, mean_square(updates) / ((2 if half else 1) * (mean @ mean + epsilon)))
    assert float(played.diagnostics[0]["server_step"]) == pytest.approx(step)
    assert step > 1


@pytest.mark.parametrize("trust", ["none", "local", "central", "privunit"])
def test_is_fedavg_where_the_step_is_forced_to_one(trust: str) -> None:
    extrapolated = play("fedexp", trust, {"denominator_epsilon": 1e9}, seeds=[1, 2]).go(3)
    averaged = play("fedavg", trust, {}, seeds=[1, 2]).go(3)
    np.testing.assert_array_equal(extrapolated.models(), averaged.models())


def test_equal_clients_need_no_extrapolation() -> None:
    alike = reordered(federation_of(2), np.zeros(M, int))
    played = play("fedexp", "none", {}, federations=[alike]).go(1)
    assert float(played.diagnostics[0]["server_step"]) == pytest.approx(1.0, rel=1e-12)


def test_a_zero_mean_gives_step_one() -> None:
    still = reordered(federation_of(1), np.arange(M))
    still.dataset.train.targets[:] = 0.0  # the model at zero is the optimum of every client
    played = play("fedexp", "none", {}, federations=[still]).go(2)
    assert [float(entry["server_step"]) for entry in played.diagnostics] == [1.0, 1.0]
    np.testing.assert_array_equal(played.models(), np.zeros_like(played.models()))


def test_the_local_numerator_has_no_bias() -> None:
    """E[num | Delta] = mean ||Delta_i||^2: 2000 runs of one round, with clients different enough
    that the floor never binds.
    """
    runs, clients, d = 2000, 60, 8
    federation = federation_of(0, clients, d)
    played = play(
        "fedexp", "local", {}, seeds=list(range(runs)), federations=[federation] * runs, noise=0.1
    ).go(1)
    step = played.diagnostics[0]["server_step"].numpy()
    assert step.min() > 1
    below = np.square(played.models()[1] / step[:, None]).sum(-1)  # w = eta_g cbar, from w = 0
    numerators = step * below
    truth = mean_square(bounded_updates(federation, np.zeros(d)))
    error = numerators.std() / np.sqrt(runs)
    assert abs(numerators.mean() - truth) < 4 * error
    assert error < 0.003 * truth
    naive = played.diagnostics[0]["server_step_naive"].numpy() * below
    assert naive.mean() - truth == pytest.approx(d * (0.1 * 2 * C) ** 2, rel=0.05)


def test_privunit_takes_its_numerator_from_the_norm_estimates(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    played = play("fedexp", "privunit", {}, seeds=[7, 8])
    kept = []
    release = played.mechanism.release
    monkeypatch.setattr(
        played.mechanism, "release", lambda *args: kept.append(release(*args)) or kept[-1]
    )
    played.go(2)
    for t, one in enumerate(kept):
        estimates = played.mechanism.squared_norms(one).mean(dim=1)
        step = torch.clamp(estimates / one.received.mean(dim=1).square().sum(-1), min=1.0)
        torch.testing.assert_close(played.diagnostics[t]["server_step"], step)
        moved = torch.from_numpy(played.models()[t + 1] - played.models()[t])
        torch.testing.assert_close(moved, step.unsqueeze(-1) * opened(one.echo).mean(dim=1))
    assert played.ledger()["update"].count == 2


def test_naive_is_refused_where_no_messages_are_seen() -> None:
    settings = FedExpSettings(local_steps=1, local_lr=0.1, clip_norm=0.3, step="naive")
    for trust in ("central", "none"):
        with pytest.raises(
            ConfigError,
            match=f"algorithm.step=naive under dp.trust={trust}: .* use dp=ldp or dp=ldp_privunit",
        ):
            FedExp.releases(settings, setup_of(trust))
