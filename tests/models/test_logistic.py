"""Logistic regression: both paths against autograd on single records, and the kernel against itself
in other company.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from dpfl_cli.config.errors import ConfigError
from dpfl_cli.data import programs
from dpfl_cli.data.federation import Dataset, Federation, Partition, Records
from dpfl_cli.data.streams import Streams
from dpfl_cli.models import layer_kernel, optimum, single_layer
from dpfl_cli.models.client_side import ClientSide
from dpfl_cli.models.logistic import LogisticRegression
from dpfl_cli.privacy.client_values import client_values, opened
from tests.models.small import (
    federation_of,
    info_of,
    losses_of,
    objective_of,
    points,
    record_gradients,
    settings_of,
)
from tests.padding import own_records

D = 6
logistic = partial(objective_of, "logistic")


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DPFL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(optimum, "_known", {})


def close(found: Tensor, wanted: Tensor) -> None:
    np.testing.assert_allclose(opened(found).numpy(), wanted.numpy(), rtol=1e-10, atol=1e-12)


@pytest.fixture(params=["kernel", "torch"])
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Which of the two paths computes."""
    if request.param == "torch":
        monkeypatch.setattr(single_layer, "compiled_kernel", lambda dtype: None)
    return str(request.param)


def test_parameters_that_clients_share_need_no_copy(path: str) -> None:
    objective = logistic([7, 1, 0, 70, 1, 140, 9], [1, 0])
    model = points(objective)[:, :1]
    spread = model.expand(2, objective.clients, D)
    assert torch.equal(
        opened(objective.gradient(spread)), opened(objective.gradient(spread.contiguous()))
    )
    kept = spread.clone()
    objective.clipped_gradient(client_values(spread), torch.ones(2).double())
    assert torch.equal(spread, kept)


def test_any_margin_is_stable(path: str) -> None:
    """l = ln(1 + exp(-m)) and its derivative are right to rounding from m = -1e300 to 1e300, tiny
    results included.
    """
    from mpmath import exp, log1p, mp, mpf  # type: ignore[import-untyped]

    mp.dps = 40
    tail = [
        0.0,
        1e-300,
        1e-8,
        0.3,
        1.0,
        20.0,
        36.7,
        37.5,
        700.0,
        708.0,
        709.9,
        720.0,
        740.0,
        745.0,
        746.0,
        1e4,
        1e300,
    ]
    margins = np.array(
        [*(-m for m in tail), *tail, *np.random.default_rng(0).uniform(-40, 40, 200)]
    )
    info = info_of((1,), 2, 1)
    dataset = Dataset(
        info, Records(np.ones((1, 1)), np.ones(1, np.int64)), None
    )  # a = y = 1: the gradient is s
    federation = Federation(dataset, Partition.from_lists([np.array([0])] * len(margins)))
    objective = LogisticRegression(settings_of("logistic", l2=0.0), [federation], np.array([0]))
    found = (
        opened(objective.gradient(torch.from_numpy(margins).reshape(1, -1, 1))).flatten().tolist()
    )
    losses = [
        float(
            objective._scores(
                objective._pool, torch.tensor([[margin]]).double(), objective.loss.values
            )[0]
        )
        for margin in margins
    ]
    for number, (margin, value) in enumerate(zip(margins.tolist(), found, strict=True)):
        wanted = float(-1 / (1 + exp(mpf(margin))))
        loss = float(log1p(exp(mpf(-margin)))) if abs(margin) < 1e5 else max(0.0, -margin)
        assert losses[number] == pytest.approx(loss, rel=2e-15, abs=2e-308), margin
        tiny = (
            1e-300 if path == "torch" else 5e-324
        )  # torch flushes what is below the normal numbers
        assert value == pytest.approx(wanted, rel=2e-15, abs=2 * tiny), margin


def slow_loss(objective: LogisticRegression, run: int, x: Tensor) -> float:
    """(1/M) sum_i mean_j ln(1 + exp(-y a.x)) + l2 / 2 ||x||^2 + g(x)."""
    federation = objective.federations[objective.index[run]]
    each = [
        losses_of(objective, x, *own_records(federation, client)).mean()
        for client in range(objective.clients)
    ]
    total = float(sum(each)) / objective.clients
    penalty = (
        objective.settings.l1_weight * float(x.abs().sum())
        if objective.settings.penalty == "l1_box"
        else 0.0
    )
    return total + objective.settings.l2 / 2 * float(x @ x) + penalty


@pytest.mark.parametrize("penalty", ["none", "l1_box", "box", "ball"])
def test_metrics_equal_explicit_loops(path: str, penalty: str) -> None:
    sizes = [7, 1, 30]
    objective = logistic(sizes, [0, 1, 0], data={"test": 11}, penalty=penalty, box=0.5, radius=0.5)
    x = torch.from_numpy(np.random.default_rng(1).standard_normal((3, D)))
    metrics = objective.metrics(x)
    assert list(metrics) == [
        "train_loss",
        "squared_error",
        "suboptimality",
        "accuracy",
        "test_loss",
    ]
    for run in range(3):
        best = objective._best[0][run]  # type: ignore[index]
        test = objective.federations[objective.index[run]].dataset.test
        assert test is not None
        signs, margins = (
            2 * test.targets - 1,
            (2 * test.targets - 1) * (test.features @ x[run].numpy()),
        )
        wanted = {
            "train_loss": slow_loss(objective, run, x[run]),
            "squared_error": float((x[run] - best).square().sum() / best.square().sum()),
            "suboptimality": slow_loss(objective, run, x[run]) - slow_loss(objective, run, best),
            "accuracy": 100 * np.mean((test.features @ x[run].numpy() > 0) == (signs > 0)),
            "test_loss": np.mean(np.logaddexp(0, -margins)),
        }
        for name, value in wanted.items():
            assert metrics[name][run].item() == pytest.approx(value, rel=1e-12), name
        # no feasible point is better than x*, which weighs clients equally whatever their sizes
        for _ in range(20):
            other = objective.prox(
                (best + 0.05 * torch.randn(D).double()).reshape(1, -1),
                torch.tensor([1e-12], dtype=torch.float64),
            )[0]
            assert slow_loss(objective, run, other) >= slow_loss(objective, run, best) - 1e-14
    at_best = objective.metrics(objective._best[0])  # type: ignore[index]
    assert bool(at_best["squared_error"].eq(0).all())
    assert bool(at_best["suboptimality"].eq(0).all())


def test_a_model_outside_of_the_domain_is_not_infinitely_bad() -> None:
    objective = logistic([5], [0], penalty="box", box=0.1)
    assert bool(torch.isfinite(objective.metrics(torch.ones(1, D).double())["train_loss"]).all())


def test_without_regularisation_there_is_no_optimum_to_report() -> None:
    objective = logistic([5], [0], l2=0.0)
    assert list(objective.metrics(objective.initial(Streams([0])))) == ["train_loss"]
    assert objective.private({"train_loss", "squared_error", "suboptimality", "accuracy"}) == {
        "train_loss",
        "squared_error",
        "suboptimality",
    }


def test_an_optimum_at_zero_has_no_relative_error() -> None:
    objective = logistic([5], [0], penalty="l1_box", l1_weight=100.0)
    metrics = objective.metrics(torch.ones(1, D).double())
    assert list(metrics) == ["train_loss", "suboptimality"]
    assert float(metrics["suboptimality"][0]) > 0


def test_initial_model_and_public_parts() -> None:
    zeros = logistic([5], [0, 0])
    assert torch.equal(zeros.initial(Streams([0, 1])), torch.zeros(2, D).double())
    normal = logistic([5], [0, 0], init="normal", penalty="l1_box", l1_weight=0.5, box=1.0)
    start = normal.initial(Streams([3, 4]))
    np.testing.assert_array_equal(
        start[1].numpy(), Streams([4]).generator(0, "init").standard_normal(D)
    )
    assert not torch.equal(start[0], start[1])
    assert torch.equal(normal.regulariser_gradient(start), 0.1 * start)
    moved = ClientSide(normal).prox(
        start.reshape(2, 1, D), torch.tensor([0.1, 2.0], dtype=torch.float64)
    )
    for run, threshold in enumerate((0.05, 1.0)):
        wanted = start[run].sign() * (start[run].abs() - threshold).clamp(0.0, 1.0)
        assert torch.equal(moved[run, 0], wanted)


def test_a_kernel_that_cannot_be_built_is_said_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(dtype: type) -> None:
        raise RuntimeError("no compiler\nand more")

    objective = logistic([5, 3], [0])
    at = points(objective)
    wanted = opened(objective.gradient(at))
    monkeypatch.setattr(layer_kernel, "LayerKernel", broken)
    monkeypatch.setattr(programs, "fallbacks", [])
    single_layer.compiled_kernel.cache_clear()
    try:
        with caplog.at_level(logging.WARNING, logger="dpfl"):
            for _ in range(2):
                close(logistic([5, 3], [0]).gradient(at), wanted)
        assert (
            [record.message for record in caplog.records]
            == programs.fallbacks
            == [
                "the kernel of linear layers cannot be compiled here (RuntimeError: no compiler); "
                "using torch, which is slower"
            ]
        )
    finally:
        single_layer.compiled_kernel.cache_clear()


def test_preconditioning_of_one_output_is_by_the_whole_matrix() -> None:
    objective = logistic([5, 0, 17, 1], [0, 0])
    matrices = torch.ones(2, objective.dimension, objective.dimension, dtype=torch.float64)
    model = torch.arange(2.0 * objective.dimension, dtype=torch.float64).view(2, -1)
    torch.testing.assert_close(
        objective.precondition(model, matrices), model.sum(dim=1, keepdim=True).expand_as(model)
    )


KAPPA = {"l2": None, "condition": 40.0}


def test_l2_follows_from_a_condition_number(path: str) -> None:
    """Every run has the l2 that gives its own data the condition number, and computes what it would
    with that l2 given.
    """
    sizes = [4] * 5
    both = logistic(sizes, [1, 0], **KAPPA)
    at = points(both)
    start, models = Streams([0, 0]), at[:, 0]
    for run, which in enumerate([1, 0]):
        federation = both.federations[which]
        free = optimum.smoothness(federation).max()
        weight = float(free / 39.0)
        assert (free + weight) / weight == pytest.approx(40.0)
        alone = LogisticRegression(settings_of("logistic", l2=weight), [federation], np.array([0]))
        own = at[run : run + 1]
        close(
            opened(both.gradient(client_values(at)))[run],
            opened(alone.gradient(client_values(own)))[0],
        )
        close(both.regulariser_gradient(at)[run], alone.regulariser_gradient(own)[0])
        wanted = alone.metrics(models[run : run + 1])
        found = both.metrics(models)
        assert set(found) == set(wanted)
        for name in wanted:
            close(found[name][run], wanted[name][0])
    facts = both.problem(both.initial(start)[0])
    assert facts["smoothness"] / facts["strong_convexity"] == pytest.approx(40.0)


def test_a_problem_knows_how_far_clients_are_apart() -> None:
    objective = logistic([4] * 5, [0])
    facts = objective.problem(torch.zeros(D).double())
    best = objective._best[0]  # type: ignore[index]
    clients = range(objective.clients)
    each = [record_gradients(objective, 0, i, best[0]).mean(dim=0) + 0.1 * best[0] for i in clients]
    assert facts["optimum_gradients"] == pytest.approx(
        float(sum(gradient.square().sum() for gradient in each))
    )
    assert facts["initial_distance"] == pytest.approx(
        objective.clients * facts["optimum_norm"] ** 2
    )
    assert (
        float(torch.stack(each).sum(dim=0).norm()) < 1e-10
    )  # the client gradients at x* add up to zero


def test_a_condition_is_no_part_of_older_runs_and_is_not_covered() -> None:
    older, newer = settings_of("logistic"), settings_of("logistic", **KAPPA)
    assert "condition" not in older.identity()
    assert newer.identity()["condition"] == 40.0
    assert LogisticRegression.not_covered(older) == []
    assert "model.condition" in LogisticRegression.not_covered(newer)[0]


def test_records_without_curvature_have_no_condition() -> None:
    federation = federation_of([3, 2], classes=2)
    federation.dataset.train.features[:] = 0.0
    objective = LogisticRegression(settings_of("logistic", **KAPPA), [federation], np.array([0]))
    with pytest.raises(ConfigError, match="no curvature"):
        objective.regulariser_gradient(torch.zeros(1, 2, D).double())
