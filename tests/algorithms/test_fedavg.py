"""DP-FedAvg against the paper's lines, written as loops."""

from __future__ import annotations

import numpy as np
import pytest
from federated import D, M, clipped, federation_of, local_update, noise_of, play

C, LR, STEPS, Z = 0.3, 0.01, 4, 0.35


@pytest.mark.parametrize("trust", ["none", "local", "central"])
@pytest.mark.parametrize("server_lr", [1.0, 0.5])
def test_equals_the_papers_lines(trust: str, server_lr: float) -> None:
    seeds, rounds = [3, 4], 3
    played = play("fedavg", trust, {"server_lr": server_lr}, seeds=seeds, noise=Z).go(rounds)
    for run, seed in enumerate(seeds):
        federation, w = federation_of(seed), np.zeros(D)
        for t in range(1, rounds + 1):
            messages = np.array(
                [clipped(local_update(federation, i, w, LR, STEPS), C) for i in range(M)]
            )
            if trust == "local":
                messages = messages + Z * 2 * C * noise_of(seed, "update", t, M)
            mean = sum(messages) / M
            if trust == "central":
                mean = mean + Z * 2 * C / M * noise_of(seed, "update", t, None)
            w = w + server_lr * mean
            np.testing.assert_allclose(played.models()[t, run], w, rtol=1e-10, atol=1e-12)
    assert [float(entry["server_step"][0]) for entry in played.diagnostics] == [server_lr] * rounds


def test_diagnostics_count_clipped_and_broken_updates() -> None:
    federation = federation_of(0)
    raw = [np.linalg.norm(local_update(federation, i, np.zeros(D), LR, STEPS)) for i in range(M)]
    limit = float(np.median(raw))
    played = play("fedavg", "none", {"clip_norm": limit}).go(1)
    diagnostics = played.diagnostics[0]
    assert float(diagnostics["clipped_fraction"]) == pytest.approx(
        sum(norm > limit for norm in raw) / M
    )
    assert float(diagnostics["mean_squared_norm"]) == pytest.approx(
        np.mean(np.minimum(raw, limit) ** 2)
    )
    assert int(diagnostics["repaired"]) == 0

    wild = play("fedavg", "local", {"local_lr": 1e3, "local_steps": 200}).go(1)
    assert int(wild.diagnostics[0]["repaired"]) > 0
    assert np.isfinite(wild.models()).all()
