"""What DP-FedAvg shows of a round; its lines are in test_minibatches."""

from __future__ import annotations

import numpy as np
import pytest
from federated import D, M, federation_of, local_update, play

C, LR, STEPS, Z = 0.3, 0.01, 4, 0.35


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
