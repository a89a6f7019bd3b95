"""Optima of logistic problems: their conditions, other solvers."""

from __future__ import annotations

import logging

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch import Tensor

from dpfl_cli.data.federation import Dataset, DatasetInfo, Federation, Partition, Records
from dpfl_cli.models import optimum
from dpfl_cli.models.optimum import (
    LogisticProblem,
    largest_curvature,
    minimiser,
    smoothness,
    solve,
)
from dpfl_cli.models.prox import Ball, L1Box, Penalty

PENALTIES = [L1Box(), L1Box(0.02, 0.6), L1Box(0.0, 0.4), Ball(0.7)]


@pytest.fixture(autouse=True)
def _nothing_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(optimum, "_known", {})


def make_problem(
    penalty: Penalty, l2: float = 0.01, records: int = 60, d: int = 5
) -> LogisticProblem:
    generator = np.random.default_rng(3)
    features = generator.standard_normal((records, d))
    signs = np.where(
        features @ generator.standard_normal(d) + generator.standard_normal(records) > 0, 1.0, -1.0
    )
    weights = generator.uniform(0.5, 1.5, records)
    parts = (features, signs, weights / weights.sum())
    return LogisticProblem(*(torch.from_numpy(part) for part in parts), l2, penalty)


def slow_value(problem: LogisticProblem, x: np.ndarray) -> float:
    total = problem.l2 / 2 * float(x @ x) + float(problem.penalty.value(torch.from_numpy(x)))
    for a, y, w in zip(
        problem.features.numpy(), problem.signs.numpy(), problem.weights.numpy(), strict=True
    ):
        total += w * np.logaddexp(0.0, -y * (a @ x))
    return float(total)


@pytest.mark.parametrize("penalty", PENALTIES, ids=repr)
def test_no_nearby_point_is_better(penalty: Penalty) -> None:
    problem = make_problem(penalty)
    x = solve(problem)
    assert x is not None
    generator = np.random.default_rng(0)
    for size in (1e-1, 1e-3, 1e-5):
        for _ in range(20):
            other = penalty.prox(
                x + size * torch.from_numpy(generator.standard_normal(5)),
                torch.tensor(1e-12).double(),
            )
            assert slow_value(problem, other.numpy()) >= slow_value(problem, x.numpy()) - 1e-15


def test_smooth_optimum_has_gradient_zero_and_agrees_with_scipy() -> None:
    problem = make_problem(L1Box())
    x = solve(problem)
    assert x is not None
    point = x.clone().requires_grad_()
    margins = problem.signs * (problem.features @ point)
    loss = (
        problem.weights @ torch.nn.functional.softplus(-margins, threshold=1000)
        + problem.l2 / 2 * point.square().sum()
    )
    (gradient,) = torch.autograd.grad(loss, point)
    assert float(gradient.norm()) < 1e-14
    found = minimize(
        lambda v: slow_value(problem, v), np.zeros(5), method="BFGS", options={"gtol": 1e-8}
    )
    np.testing.assert_allclose(x.numpy(), found.x, atol=1e-5)


def test_an_optimum_is_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    solved = []

    def counted(problem: LogisticProblem) -> Tensor | None:
        solved.append(problem)
        return solve(problem)

    monkeypatch.setattr(optimum, "solve", counted)
    first, again = (minimiser(make_problem(L1Box(0.0, 0.4))) for _ in range(2))
    assert first is again
    assert len(solved) == 1


def test_another_problem_has_another_key() -> None:
    base = make_problem(L1Box())
    others = [make_problem(penalty) for penalty in PENALTIES[1:]] + [
        make_problem(L1Box(), l2=0.02),
        make_problem(L1Box(0.0, 0.5)),
    ]
    shuffled = LogisticProblem(
        base.features.flip(0), base.signs, base.weights, base.l2, base.penalty
    )
    assert len({problem.key for problem in [base, shuffled, *others]}) == 7
    assert make_problem(L1Box()).key == base.key


def test_what_cannot_be_solved_is_said_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(optimum, "STEPS", 3)
    problem = make_problem(L1Box(0.02, 0.6), l2=1e-9)
    with caplog.at_level(logging.WARNING, logger="dpfl"):
        assert minimiser(problem) is None
        assert minimiser(problem) is None
    assert [record.message for record in caplog.records] == [
        "no optimum to machine precision (model.l2=1e-09 is very small): not reported"
    ]


@pytest.mark.parametrize("feature", [1e15, 1e200, float("inf")])
@pytest.mark.parametrize("penalty", [L1Box(), Ball(0.7)])
def test_no_record_ends_a_run_by_what_is_reported(
    penalty: Penalty, feature: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A singular or infinite Hessian has no minimiser to report, and that is all."""
    monkeypatch.setattr(optimum, "STEPS", 30)
    base = make_problem(penalty, l2=0.1)
    features = base.features.clone()
    features[0] = feature
    problem = LogisticProblem(features, base.signs, base.weights, base.l2, base.penalty)
    found = minimiser(problem)
    assert found is None or bool(torch.isfinite(found).all())
    assert largest_curvature(features, base.weights) > 0


def test_smoothness_bounds_the_curvature_and_is_reached() -> None:
    """L_i = lambda_max(A_i^T A_i) / (4 n_i) + l2 is the largest eigenvalue of client i's Hessian at
    0.
    """
    generator = np.random.default_rng(0)
    features, targets = generator.standard_normal((30, 4)), generator.integers(0, 2, 30)
    info = DatasetInfo("test", "synthetic", "", (4,), 2, 30, None)
    sizes = [20, 0, 7, 3]  # the last one holds fewer records than there are features
    parts = np.split(np.arange(30), np.cumsum(sizes)[:-1])
    federation = Federation(
        Dataset(info, Records(features, targets), None), Partition.from_lists(parts)
    )
    found = smoothness(federation) + 0.3
    for client, part in enumerate(parts):

        def loss(x: Tensor, part: np.ndarray = part) -> Tensor:
            signs = torch.from_numpy(2.0 * targets[part] - 1)
            each = torch.nn.functional.softplus(-signs * (torch.from_numpy(features[part]) @ x))
            return each.sum() / max(len(part), 1) + 0.15 * x.square().sum()

        hessian = torch.autograd.functional.hessian(loss, torch.zeros(4).double())
        assert found[client] == pytest.approx(float(torch.linalg.eigvalsh(hessian)[-1]), rel=1e-12)


def test_what_regularisers_follow_from_does_not_depend_on_threads() -> None:
    features = torch.randn(4000, 112, generator=torch.Generator().manual_seed(0)).double()
    before, found = torch.get_num_threads(), set()
    for threads in (1, 2):
        torch.set_num_threads(threads)
        found.add(largest_curvature(features, torch.full((4000,), 1 / 4000).double()))
    torch.set_num_threads(before)
    assert len(found) == 1
