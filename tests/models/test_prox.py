"""Proximal operators, by what makes a point the minimum of g(u) + ||u - v||^2 / (2 step)."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from torch import Tensor

from dpfl_cli.models.prox import Ball, L1Box, Penalty
from dpfl_cli.privacy.client_values import ClientValues, client_values, opened

NUMBERS = st.floats(-50, 50, allow_subnormal=False)
POSITIVE = st.floats(1e-3, 20)
POINTS = arrays.arrays(np.float64, 4, elements=NUMBERS).map(torch.from_numpy)
PENALTIES = st.one_of(
    st.just(L1Box()),
    st.builds(L1Box, st.floats(0, 5), POSITIVE),
    st.builds(L1Box, st.just(0.0), POSITIVE),
    st.builds(Ball, POSITIVE),
)


def inside(penalty: Penalty, x: Tensor) -> bool:
    if isinstance(penalty, Ball):
        return float(x.norm()) <= penalty.radius * (1 + 1e-12)
    bound = getattr(penalty, "bound", np.inf)
    return float(x.abs().max()) <= bound


@settings(max_examples=150, deadline=None)
@given(PENALTIES, POINTS, st.floats(1e-3, 10), POINTS)
def test_prox_satisfies_its_optimality_condition(
    penalty: Penalty, v: Tensor, step: float, other: Tensor
) -> None:
    """(v - p) / step is a subgradient of g at p: g(u) >= g(p) + (v - p) . (u - p) / step for every
    u of the domain.
    """
    p = penalty.prox(v, torch.tensor(step, dtype=torch.float64))
    assert inside(penalty, p)
    u = penalty.prox(
        other, torch.tensor(1e-9, dtype=torch.float64)
    )  # a point of the domain, near `other` where that lies in it
    slope = (v - p) / step
    scale = 1 + float(slope.abs().max()) * float((u - p).abs().max())
    assert float(penalty.value(u)) >= float(penalty.value(p) + slope @ (u - p)) - 1e-11 * scale


@settings(max_examples=50, deadline=None)
@given(POINTS, st.floats(1e-3, 10), st.floats(0, 5), POSITIVE)
def test_threshold_comes_before_the_box(
    v: Tensor, step: float, weight: float, bound: float
) -> None:
    p = L1Box(weight, bound).prox(v, torch.tensor(step, dtype=torch.float64))
    for new, old in zip(p.tolist(), v.tolist(), strict=True):
        kept = max(abs(old) - step * weight, 0.0)
        assert new == pytest.approx(np.sign(old) * min(kept, bound), abs=1e-12)


@pytest.mark.parametrize(
    "penalty",
    [L1Box(), L1Box(0.5, 1.0), L1Box(0.0, 1.0), Ball(1.0)],
    ids=lambda p: type(p).__name__,
)
def test_rows_and_marks_are_kept(penalty: Penalty) -> None:
    """Every row by itself, zeros and values that are not finite included, and client values stay
    what they are.
    """
    v = torch.randn(3, 2, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 3
    v[0, 0], v[1, 1, 2] = 0.0, torch.nan
    step = torch.tensor([0.1, 1.0, 2.0]).double().reshape(3, 1, 1)
    moved = penalty.prox(client_values(v), step)
    assert isinstance(moved, ClientValues)
    for run in range(3):
        for client in range(2):
            alone = penalty.prox(v[run, client], step[run, 0, 0])
            torch.testing.assert_close(
                opened(moved)[run, client], alone, rtol=1e-15, atol=0, equal_nan=True
            )
    assert bool(opened(moved)[0, 0].eq(0).all())
    assert bool(opened(moved)[1, 1, 2].isnan())
    assert penalty.value(v).shape == (3, 2)
