"""Logistic regression: both paths against autograd on single records, and the kernel against itself
in other company.
"""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from dpfl_cli.config.component import lookup, parse_settings
from dpfl_cli.config.errors import ConfigError
from dpfl_cli.data import programs
from dpfl_cli.data.federation import Dataset, DatasetInfo, Federation, Partition, Records
from dpfl_cli.data.streams import Streams
from dpfl_cli.models import layer_kernel, optimum, single_layer
from dpfl_cli.models.client_side import ClientSide
from dpfl_cli.models.logistic import LogisticRegression, LogisticSettings
from dpfl_cli.models.objective import Objective
from dpfl_cli.privacy.client_values import ClientValues, client_values, opened
from tests.padding import own_records

D = 6
SIZES = {
    "several records": [4] * 5,
    "unequal": [7, 1, 0, 70, 1, 140, 9],
    "one client": [13],
    "one client, one record": [1],
    "nobody has records but one": [0, 3, 0],
}
INDICES = {"R=1": [0], "R=2": [1, 0], "R=7": [0, 1, 0, 2, 1, 0, 0]}
CLIPS = {"active": 0.05, "partly": 0.6, "inactive": 100.0}
DEFAULTS: dict[str, Any] = {
    "l2": 0.1,
    "penalty": "none",
    "l1_weight": 0.01,
    "box": 10.0,
    "radius": 10.0,
    "init": "zeros",
}


@pytest.fixture(params=["kernel", "torch"])
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Which of the two paths computes."""
    if request.param == "torch":
        monkeypatch.setattr(single_layer, "compiled_kernel", lambda dtype: None)
    else:
        assert single_layer.compiled_kernel(torch.float64) is not None
    return str(request.param)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DPFL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(optimum, "_known", {})


def make_info(**changes: object) -> DatasetInfo:
    values = {
        "name": "test",
        "source": "synthetic",
        "sha256": "",
        "feature_shape": (D,),
        "classes": 2,
        "records": 9,
        "clients": None,
    }
    return DatasetInfo(**(values | changes))  # type: ignore[arg-type]


def make_federation(sizes: list[int], seed: int, test: int = 0, d: int = D) -> Federation:
    generator = np.random.default_rng(seed)
    records = sum(sizes)
    features = generator.standard_normal((records + test, d)) * generator.uniform(
        0.1, 3.0, (records + test, 1)
    )
    targets = (
        features @ generator.standard_normal(d) + generator.standard_normal(records + test) > 0
    ).astype(np.int64)
    order = generator.permutation(records)
    held = Records(features[records:], targets[records:]) if test else None
    info = make_info(records=records, feature_shape=(d,))
    dataset = Dataset(info, Records(features[:records], targets[:records]), held)
    return Federation(dataset, Partition.from_lists(np.split(order, np.cumsum(sizes)[:-1])))


def make_objective(
    sizes: list[int], index: list[int], test: int = 0, **changes: Any
) -> LogisticRegression:
    federations = [make_federation(sizes, seed, test) for seed in range(max(index) + 1)]
    return LogisticRegression(
        LogisticSettings(**(DEFAULTS | changes)), federations, np.array(index)
    )


def records_of(objective: Objective, run: int, client: int) -> tuple[Tensor, Tensor]:
    """Features [n, d] and y [n] of one client."""
    features, labels = own_records(objective.federations[objective.index[run]], client)
    return torch.from_numpy(features), torch.from_numpy(2.0 * labels - 1)


def record_gradients(objective: Objective, run: int, client: int, v: Tensor) -> list[Tensor]:
    """Gradients of the records' losses ln(1 + exp(-y a.v)) by autograd, one at a time."""
    found = []
    for a, y in zip(*records_of(objective, run, client), strict=True):
        point = v.clone().requires_grad_()
        loss = functional.softplus(-y * (a @ point), threshold=1000)
        found.append(torch.autograd.grad(loss, point)[0])
    return found


def clipped(gradient: Tensor, bound: float) -> Tensor:
    norm = float(gradient.norm())
    if not np.isfinite(norm):
        return torch.zeros_like(gradient)
    return gradient * min(1.0, bound / norm) if norm > 0 else gradient


def points_of(objective: Objective, seed: int = 5) -> Tensor:
    generator = np.random.default_rng(seed)
    return torch.from_numpy(generator.standard_normal((objective.runs, objective.clients, D)))


def close(found: Tensor, wanted: Tensor) -> None:
    np.testing.assert_allclose(opened(found).numpy(), wanted.numpy(), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    ("sizes", "index"),
    [("unequal", "R=1"), *((name, "R=7" if "several" in name else "R=2") for name in SIZES)],
)
def test_gradients_equal_autograd_on_single_records(path: str, sizes: str, index: str) -> None:
    check_gradients(SIZES[sizes], INDICES[index])


def check_gradients(sizes: list[int], index: list[int]) -> None:
    """Means, clipped or not, and norms of gradients against those of single records."""
    objective = make_objective(sizes, index)
    points = points_of(objective)
    plain, squared = (
        torch.zeros_like(points),
        torch.zeros(len(index), len(sizes), max(sizes)).double(),
    )
    means = {name: torch.zeros_like(points) for name in CLIPS}
    for run in range(len(index)):
        for client, size in enumerate(sizes):
            each = record_gradients(objective, run, client, points[run, client])
            for record, gradient in enumerate(each):
                plain[run, client] += gradient / size
                squared[run, client, record] = gradient.square().sum()
                for name, bound in CLIPS.items():
                    means[name][run, client] += clipped(gradient, bound) / size
            if size:
                plain[run, client] += 0.1 * points[run, client]
    gradient = objective.gradient(client_values(points))
    assert isinstance(gradient, ClientValues)
    close(gradient, plain)
    close(objective.squared_gradient_norms(client_values(points)), squared)
    for name, bound in CLIPS.items():
        norms = torch.full((len(index),), bound, dtype=torch.float64)
        bounded = objective.clipped_gradient(client_values(points), norms)
        close(bounded.values, means[name])
        assert bool(
            (torch.linalg.vector_norm(opened(bounded.values), dim=-1) <= bound * (1 + 1e-12)).all()
        )
        sensitivity = 2 * bound / np.maximum(sizes, 1)
        np.testing.assert_allclose(
            bounded.replace_one.numpy(), np.tile(sensitivity, (len(index), 1)), rtol=1e-15
        )
        assert bounded.unit == "record"


@pytest.mark.parametrize("numbers", ["some", "repeated", "more than a group of vectors"])
def test_batches_equal_autograd_on_single_records(path: str, numbers: str) -> None:
    sizes = [7, 1, 0, 70]
    objective = make_objective(sizes, [1, 0, 1])
    points, generator = points_of(objective), np.random.default_rng(0)
    width = {"some": 1, "repeated": 5, "more than a group of vectors": 75}[numbers]
    batch = generator.integers(0, np.maximum(sizes, 1)[:, None], (3, 4, width))
    if numbers == "repeated":
        batch[..., 1:3] = batch[..., :1]
    bounds = torch.tensor([0.2, 0.6, 3.0], dtype=torch.float64)
    mean, squared = torch.zeros_like(points), torch.zeros(3, 4, width).double()
    for run in range(3):
        for client in (0, 1, 3):
            each = record_gradients(objective, run, client, points[run, client])
            for place, number in enumerate(batch[run, client]):
                mean[run, client] += clipped(each[number], float(bounds[run])) / width
                squared[run, client, place] = each[number].square().sum()
    drawn = torch.from_numpy(batch)
    bounded = objective.clipped_gradient(client_values(points), bounds, drawn)
    close(bounded.values, mean)
    close(objective.squared_gradient_norms(client_values(points), drawn), squared)
    np.testing.assert_allclose(
        bounded.zero_out.numpy(), np.tile(bounds.numpy()[:, None] / width, (1, 4)), rtol=1e-15
    )

    strange = drawn.clone()
    strange[:, 3, 0], strange[:, 0, 0] = (
        70,
        -1,
    )  # none of the client's own: records of gradient zero, of no other client
    without = opened(objective.clipped_gradient(client_values(points), bounds, strange).values)
    for run in range(3):
        for client in (0, 3):
            first = record_gradients(objective, run, client, points[run, client])[
                batch[run, client, 0]
            ]
            close(
                without[run, client], mean[run, client] - clipped(first, float(bounds[run])) / width
            )


def test_parameters_that_clients_share_need_no_copy(path: str) -> None:
    objective = make_objective(SIZES["unequal"], INDICES["R=2"])
    model = points_of(objective)[:, :1]
    spread = model.expand(2, objective.clients, D)
    assert torch.equal(
        opened(objective.gradient(spread)), opened(objective.gradient(spread.contiguous()))
    )
    kept = spread.clone()
    objective.clipped_gradient(client_values(spread), torch.ones(2).double())
    assert torch.equal(spread, kept)


@pytest.mark.parametrize("broken", [np.nan, np.inf, 1e200], ids=["nan", "inf", "norm overflows"])
def test_a_record_that_is_not_finite_counts_as_zero_where_it_is_clipped(
    path: str, broken: float
) -> None:
    federation = make_federation([5, 4], seed=0)
    victim = federation.partition.indices[2]  # of client 0
    whole = LogisticRegression(LogisticSettings(**DEFAULTS), [federation], np.array([0]))
    points, bounds = points_of(whole), torch.tensor([0.3], dtype=torch.float64)
    each = [clipped(gradient, 0.3) for gradient in record_gradients(whole, 0, 0, points[0, 0])]
    other = opened(whole.clipped_gradient(points, bounds).values)[0, 1].clone()

    federation.dataset.train.features[victim, 1] = broken
    objective = LogisticRegression(LogisticSettings(**DEFAULTS), [federation], np.array([0]))
    found = opened(objective.clipped_gradient(points, bounds).values)
    close(found[0, 0], (sum(each, torch.zeros(D).double()) - each[2]) / 5)
    assert torch.equal(found[0, 1], other)
    drawn = torch.tensor([[[2, 0], [0, 1]]])
    close(opened(objective.clipped_gradient(points, bounds, drawn).values)[0, 0], each[0] / 2)
    norms = opened(objective.squared_gradient_norms(points))
    assert norms.isinf().nonzero().tolist() == [[0, 0, 2]]
    plain = opened(objective.gradient(points))  # nothing is hidden where nothing is clipped
    assert bool(plain[0, 0].isnan().all())
    assert bool(plain[0, 1].isfinite().all())


def test_a_model_that_is_not_finite_gives_zero_where_it_is_clipped(path: str) -> None:
    objective = make_objective([5, 4], [0])
    points = points_of(objective)
    points[0, 0, 3] = torch.nan
    found = opened(objective.clipped_gradient(points, torch.ones(1).double()).values)
    assert bool(found[0, 0].eq(0).all())
    assert bool(found[0, 1].ne(0).all())


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
    info = make_info(feature_shape=(1,), records=1)
    dataset = Dataset(
        info, Records(np.ones((1, 1)), np.ones(1, np.int64)), None
    )  # a = y = 1: the gradient is s
    federation = Federation(dataset, Partition.from_lists([np.array([0])] * len(margins)))
    objective = LogisticRegression(
        LogisticSettings(**(DEFAULTS | {"l2": 0.0})), [federation], np.array([0])
    )
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
    total = 0.0
    for client in range(objective.clients):
        features, signs = records_of(objective, run, client)
        for a, y in zip(features, signs, strict=True):
            total += (
                float(functional.softplus(-y * (a @ x), threshold=1000))
                / len(features)
                / objective.clients
            )
    penalty = (
        objective.settings.l1_weight * float(x.abs().sum())
        if objective.settings.penalty == "l1_box"
        else 0.0
    )
    return total + objective.settings.l2 / 2 * float(x @ x) + penalty


@pytest.mark.parametrize("penalty", ["none", "l1_box", "box", "ball"])
def test_metrics_equal_explicit_loops(path: str, penalty: str) -> None:
    sizes = [7, 1, 30]
    objective = make_objective(sizes, [0, 1, 0], test=11, penalty=penalty, box=0.5, radius=0.5)
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
    objective = make_objective([5], [0], penalty="box", box=0.1)
    assert bool(torch.isfinite(objective.metrics(torch.ones(1, D).double())["train_loss"]).all())


def test_without_regularisation_there_is_no_optimum_to_report() -> None:
    objective = make_objective([5], [0], l2=0.0)
    assert list(objective.metrics(objective.initial(Streams([0])))) == ["train_loss"]
    assert objective.private({"train_loss", "squared_error", "suboptimality", "accuracy"}) == {
        "train_loss",
        "squared_error",
        "suboptimality",
    }


def test_an_optimum_at_zero_has_no_relative_error() -> None:
    objective = make_objective([5], [0], penalty="l1_box", l1_weight=100.0)
    metrics = objective.metrics(torch.ones(1, D).double())
    assert list(metrics) == ["train_loss", "suboptimality"]
    assert float(metrics["suboptimality"][0]) > 0


def test_initial_model_and_public_parts() -> None:
    zeros = make_objective([5], [0, 0])
    assert torch.equal(zeros.initial(Streams([0, 1])), torch.zeros(2, D).double())
    normal = make_objective([5], [0, 0], init="normal", penalty="l1_box", l1_weight=0.5, box=1.0)
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


def test_local_descent_takes_the_regulariser_along(path: str) -> None:
    objective = make_objective([7, 1, 20], [0, 1])
    start, rate = points_of(objective)[:, 0], torch.tensor([0.1, 0.3], dtype=torch.float64)
    update = opened(objective.local_descent(start, rate, 3))
    for run in range(2):
        for client in range(3):
            v = start[run]
            for _ in range(3):
                each = record_gradients(objective, run, client, v)
                v = v - rate[run] * (torch.stack(each).mean(dim=0) + 0.1 * v)
            close(update[run, client], v - start[run])


def test_settings_and_data_that_do_not_fit_are_refused() -> None:
    found = lookup("model", "logistic_regression")
    assert parse_settings(found.settings, DEFAULTS, "model").l2 == 0.1
    for key, bad in [
        ("l2", -1.0),
        ("box", 0.0),
        ("radius", 0.0),
        ("l1_weight", -1.0),
        ("penalty", "l2"),
        ("init", "ones"),
    ]:
        with pytest.raises(ConfigError, match=rf"model\.{key}="):
            parse_settings(found.settings, DEFAULTS | {key: bad}, "model")
    for changes in ({"classes": 10}, {"classes": None}, {"feature_shape": (28, 28)}):
        with pytest.raises(
            ConfigError,
            match=r"model=logistic: needs feature vectors with two classes, but dataset=test has",
        ):
            LogisticRegression.dimension_of(LogisticSettings(**DEFAULTS), make_info(**changes))


def test_a_kernel_that_cannot_be_built_is_said_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(dtype: type) -> None:
        raise RuntimeError("no compiler\nand more")

    objective = make_objective([5, 3], [0])
    points = points_of(objective)
    wanted = opened(objective.gradient(points))
    monkeypatch.setattr(layer_kernel, "LayerKernel", broken)
    monkeypatch.setattr(programs, "fallbacks", [])
    single_layer.compiled_kernel.cache_clear()
    try:
        with caplog.at_level(logging.WARNING, logger="dpfl"):
            for _ in range(2):
                close(make_objective([5, 3], [0]).gradient(points), wanted)
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
    objective = make_objective([5, 0, 17, 1], [0, 0])
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
    sizes = SIZES["several records"]
    both = make_objective(sizes, [1, 0], **KAPPA)
    points = points_of(both)
    start, models = Streams([0, 0]), points[:, 0]
    for run, which in enumerate([1, 0]):
        federation = both.federations[which]
        free = optimum.smoothness(federation).max()
        weight = float(free / 39.0)
        assert (free + weight) / weight == pytest.approx(40.0)
        alone = LogisticRegression(
            LogisticSettings(**(DEFAULTS | {"l2": weight})), [federation], np.array([0])
        )
        own = points[run : run + 1]
        close(
            opened(both.gradient(client_values(points)))[run],
            opened(alone.gradient(client_values(own)))[0],
        )
        close(both.regulariser_gradient(points)[run], alone.regulariser_gradient(own)[0])
        wanted = alone.metrics(models[run : run + 1])
        found = both.metrics(models)
        assert set(found) == set(wanted)
        for name in wanted:
            close(found[name][run], wanted[name][0])
    facts = both.problem(both.initial(start)[0])
    assert facts["smoothness"] / facts["strong_convexity"] == pytest.approx(40.0)


def test_a_problem_knows_how_far_clients_are_apart() -> None:
    objective = make_objective(SIZES["several records"], [0])
    facts = objective.problem(torch.zeros(D).double())
    best = objective._best[0]  # type: ignore[index]
    clients = range(objective.clients)
    each = [
        torch.stack(record_gradients(objective, 0, i, best[0])).mean(dim=0) + 0.1 * best[0]
        for i in clients
    ]
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
    older, newer = LogisticSettings(**DEFAULTS), LogisticSettings(**(DEFAULTS | KAPPA))
    assert "condition" not in older.identity()
    assert newer.identity()["condition"] == 40.0
    assert LogisticRegression.not_covered(older) == []
    assert "model.condition" in LogisticRegression.not_covered(newer)[0]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"condition": 40.0}, "l2=0.1 is given as well"),
        ({"l2": None}, "one of the two is needed"),
        ({"l2": None, "condition": 1.0}, "greater than 1"),
    ],
)
def test_l2_and_condition_exclude_each_other(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        parse_settings(LogisticSettings, DEFAULTS | changes, "model")


def test_records_without_curvature_have_no_condition() -> None:
    federation = make_federation([3, 2], 0)
    federation.dataset.train.features[:] = 0.0
    objective = LogisticRegression(
        LogisticSettings(**(DEFAULTS | KAPPA)), [federation], np.array([0])
    )
    with pytest.raises(ConfigError, match="no curvature"):
        objective.regulariser_gradient(torch.zeros(1, 2, D).double())
