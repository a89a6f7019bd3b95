"""DP-FedOpt against the paper's lines, written as loops, and against DP-FedAvg."""

from __future__ import annotations

import numpy as np
import pytest
from federated import D, M, clipped, federation_of, local_update, noise_of, play

C, LR, STEPS, Z = 0.3, 0.01, 4, 0.35
DEFAULTS = {"optimizer": "adam", "server_lr": 0.1, "beta1": 0.9, "beta2": 0.99, "adaptivity": 1e-3}


@pytest.mark.parametrize("trust", ["none", "local", "central"])
@pytest.mark.parametrize("optimizer", ["adam", "yogi", "adagrad"])
def test_equals_the_papers_lines(trust: str, optimizer: str) -> None:
    seeds, rounds = [3, 4], 4
    own = {"optimizer": optimizer, "beta1": 0.7, "beta2": 0.8, "adaptivity": 0.05}
    played = play("fedopt", trust, DEFAULTS | own, seeds=seeds, noise=Z).go(rounds)
    for run, seed in enumerate(seeds):
        federation, w = federation_of(seed), np.zeros(D)
        m, v = np.zeros(D), np.full(D, 0.05**2)
        for t in range(1, rounds + 1):
            messages = np.array(
                [clipped(local_update(federation, i, w, LR, STEPS), C) for i in range(M)]
            )
            if trust == "local":
                messages = messages + Z * 2 * C * noise_of(seed, "update", t, M)
            mean = sum(messages) / M
            if trust == "central":
                mean = mean + Z * 2 * C / M * noise_of(seed, "update", t, None)
            for k in range(D):
                m[k] = 0.7 * m[k] + 0.3 * mean[k]
                square = mean[k] ** 2
                if optimizer == "adagrad":
                    v[k] += square
                elif optimizer == "adam":
                    v[k] = 0.8 * v[k] + 0.2 * square
                else:
                    v[k] += 0.2 * square if square > v[k] else -0.2 * square
            w = w + 0.1 * m / (np.sqrt(v) + 0.05)
            np.testing.assert_allclose(played.models()[t, run], w, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("optimizer", ["yogi", "adagrad"])
def test_far_above_the_updates_it_is_federated_averaging(optimizer: str) -> None:
    """A large tau hides the squares: w <- w + eta / (2 tau) cbar."""
    own = {"optimizer": optimizer, "beta1": 0.0, "beta2": 0.9, "adaptivity": 1e6, "server_lr": 1e6}
    ours = play("fedopt", "central", DEFAULTS | own, noise=Z).go(3)
    theirs = play("fedavg", "central", {"server_lr": 0.5}, noise=Z).go(3)
    np.testing.assert_allclose(ours.models(), theirs.models(), rtol=1e-6, atol=1e-9)


def test_steps_are_alike_whatever_the_scale_of_the_updates() -> None:
    """Adagrad's first step, tau far below: eta (1 - beta1) in every coordinate."""
    own = {"optimizer": "adagrad", "adaptivity": 1e-12, "beta1": 0.5}
    for clip_norm in (0.3, 1e-4):
        played = play("fedopt", "none", DEFAULTS | own | {"clip_norm": clip_norm}).go(1)
        np.testing.assert_allclose(np.abs(played.models()[1]), 0.05, rtol=1e-4)
