"""Closed forms of attacks against the paper's numbers; `test_second_order_privacy` plays the same
data through the methods.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from dpfl_cli.privacy.client_values import client_values, opened
from dpfl_cli.privacy.record_bounds import joined_side, record_mean
from dpfl_cli.privacy.worst_cases import (
    claimed_sensitivities,
    moved_record,
    turned_side,
    unequal_shares,
    wound_up_dual,
)


@pytest.mark.parametrize(("rounds", "factor"), [(1, 1.0), (10, 5.7), (70, 37.2)])
def test_a_hidden_dual_winds_up(rounds, factor):
    assert wound_up_dual(rounds, 0.1, 1.0, math.inf) == pytest.approx(factor, abs=0.05)
    assert wound_up_dual(rounds, 1.0, 0.0, 500) == pytest.approx(1.0)  # there is no dual
    assert wound_up_dual(rounds, 0.1, 1.0, 1) == pytest.approx(1.0)  # all noise winds up too


def test_a_hidden_dual_winds_up_its_share_of_the_noise_too():
    """Beside the noise of the sums as a simulation of the duals has it."""
    rounds, clients, damping, penalty, draws = 12, 5, 0.1, 1.0, 200_000
    slope, random = penalty / (damping + penalty), np.random.default_rng(0)
    own = random.standard_normal((draws, rounds)) / math.sqrt(clients)
    others = random.standard_normal((draws, rounds)) * math.sqrt(1 - 1 / clients)
    dual, sums, signal, moved = np.zeros(draws), [], 0.0, []
    for k in range(rounds):
        sums.append(own[:, k] + others[:, k] + slope * dual)
        moved.append(1 + slope * signal)
        dual, signal = dual + own[:, k], signal + 1
    covariance, mean = np.cov(np.stack(sums)), np.array(moved)
    factor = math.sqrt(mean @ np.linalg.solve(covariance, mean) / rounds)
    assert wound_up_dual(rounds, damping, penalty, clients) == pytest.approx(factor, rel=0.01)


@pytest.mark.parametrize(
    ("gamma", "records", "limit", "factor"),
    [(1.01, 500, 1.0, 15.9), (1.1, 500, 1.0, 16.6), (1.1, 3000, 0.1, 71.0), (1.1, 61, 1.0, 5.7)],
)
def test_the_papers_scaling(gamma, records, limit, factor):
    moved = (
        turned_side("xi", 1.0, 1.0, gamma, records)
        / claimed_sensitivities((1.0, 1.0, limit), gamma, [records], "paper")[0]
    )
    assert moved == pytest.approx(factor, abs=0.06)


@pytest.mark.parametrize("how", ["project", "clip_auxiliary", "xi"])
@pytest.mark.parametrize("first", [0.4, 0.7, 0.99, 1.0])
def test_no_length_of_the_auxiliary_vector_moves_the_side_further(how, first):
    """And one of the lengths tried comes near."""
    records, gamma = 50, 1.1
    lengths = torch.cat(
        [
            torch.logspace(-3, 3, 800, dtype=torch.float64),
            torch.tensor([first * math.sqrt(1 - 1 / records)]),
        ]
    )
    gradients, across = (
        torch.zeros(2, len(lengths), 2, dtype=torch.float64),
        torch.zeros(2, len(lengths), 2, dtype=torch.float64),
    )
    gradients[0, :, 0], gradients[1, :, 0] = first, first * (1 - 1 / records)
    across[..., 1] = lengths
    clips = torch.full((2,), first, dtype=torch.float64), torch.ones(2, dtype=torch.float64)
    bounded = record_mean(
        client_values(gradients), clips[0], torch.full((2, len(lengths)), records)
    )
    sides = opened(joined_side(bounded, client_values(across), *clips, how))  # type: ignore[arg-type]
    moved = float((sides[0] - sides[1]).norm(dim=-1).max()) / gamma
    stated = turned_side(how, first, 1.0, gamma, records)
    assert moved <= stated * (1 + 1e-9)
    assert moved >= 0.99 * stated


def test_what_holds_is_not_exceeded():
    for how, constant in (("project", "tight"), ("clip_auxiliary", "tight"), ("xi", "xi_safe")):
        for first in (0.3, 0.9, 0.99):
            assert (
                turned_side(how, first, 1.0, 1.1, 80)
                <= claimed_sensitivities((first, 1.0, 0.1), 1.1, [80], constant)[0]
            )


@pytest.mark.parametrize(("limit", "factor"), [(1.0, 0.55), (0.1, 0.92)])
def test_projection_does_not_reach_what_is_claimed(limit, factor):
    """(C1 / gamma) / (C1 / gamma + D C2 / gamma^2) to 1 / m: without curvature the constant's
    second term stays unused.
    """
    clips, counts = (0.99, 1.0, limit), [400, 500, 400]
    claimed_ = claimed_sensitivities(clips, 1.1, counts, "tight")
    moved = moved_record(clips, 1.1, counts, "project", claimed_)
    assert moved == pytest.approx(0.99 / (0.99 + limit / 1.1), rel=2e-3)
    assert moved == pytest.approx(factor, abs=0.03)


def test_unequal_shares():
    for counts, factor in (([100] * 49 + [20], 4.2), ([500] * 9 + [50], 3.0)):
        shares = unequal_shares(claimed_sensitivities((1.0, 1.0, 1.0), 1.1, counts, "paper"))
        assert shares == pytest.approx(factor, abs=0.05)
        assert shares > unequal_shares(
            [1 / count for count in counts]
        )  # the paper's constant is not in proportion to 1 / m
    assert unequal_shares([3.0] * 7) == pytest.approx(1.0)
