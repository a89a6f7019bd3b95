"""Softmax regression: gradients, clipping and metrics against autograd, record by record."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from dpfl_cli.config.errors import PrivacyError
from dpfl_cli.data.federation import Dataset, Federation, Partition, Records
from dpfl_cli.data.streams import Streams
from dpfl_cli.models import records
from dpfl_cli.models import softmax as module
from dpfl_cli.models.client_side import ClientSide
from dpfl_cli.models.dense import DTYPES
from dpfl_cli.models.losses import CrossEntropy, right
from dpfl_cli.models.softmax import SoftmaxRegression
from dpfl_cli.privacy.client_values import ClientValues, client_values, opened
from tests.models.small import (
    federation_of,
    info_of,
    points,
    settings_of,
    softmax,
    softmax_records,
)

COUNTS = [5, 0, 17, 1, 4]
INDICES = {"R=1": [0], "R=2 shared": [0, 0], "R=2": [1, 0], "R=7": [0, 1, 0, 2, 1, 0, 0]}


def softmax_on(federation: Federation, index: Any = (0,), **changes: Any) -> SoftmaxRegression:
    return SoftmaxRegression(settings_of("softmax", **changes), [federation], np.array(index))


def test_a_frozen_layer_is_a_public_feature_map_applied_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    federation = federation_of([6, 3], shape=(4,), classes=3)
    settings = settings_of("softmax", frozen_width=8, bias=True, precision="float64", frozen_seed=5)
    objective = SoftmaxRegression(settings, [federation], np.array([0, 0]))
    assert (
        objective.dimension
        == SoftmaxRegression.dimension_of(settings, federation.dataset.info)
        == 3 * 9
    )
    train = federation.dataset.train
    layer = module.stream_generator(5, "frozen layer").uniform(-1.0, 1.0, (8, 5)) / 2.0
    assert np.abs(layer).max() <= 0.5
    mapped = np.maximum(0.0, train.features @ layer[:, :-1].T + layer[:, -1])
    plain = Federation(
        Dataset(info_of((8,), 3, len(train)), Records(mapped, train.targets), None),
        federation.partition,
    )
    known = SoftmaxRegression(
        settings_of("softmax", bias=True, precision="float64"), [plain], np.array([0, 0])
    )
    values = client_values(points(objective))
    torch.testing.assert_close(
        opened(objective.gradient(values)), opened(known.gradient(values)), rtol=1e-12, atol=1e-12
    )

    monkeypatch.setattr(module, "stream_generator", None)  # nothing is drawn again
    again = SoftmaxRegression(settings, [federation], np.array([0, 0]))
    assert torch.equal(opened(again.gradient(values)), opened(objective.gradient(values)))


@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_a_frozen_layer_rounds_no_record_by_how_many_others_there_are(precision: str) -> None:
    """In one product of all they did: with chaotic local steps another client's update moved by
    0.11 of the sensitivity.
    """
    generator = np.random.default_rng(0)
    features, targets = generator.random((312, 784)), generator.integers(0, 3, 312)
    updates = []
    for held in (1, 30, 300):
        those = np.r_[0:held, 300:312]
        train = Records(features[those], targets[those])
        partition = Partition.from_counts(np.arange(held + 12), np.array([held, 4, 8]))
        dataset = Dataset(info_of((784,), 3, held + 12), train, None)
        federation = Federation(dataset, partition, counts_private=True)
        model = softmax_on(federation, frozen_width=512, bias=True, precision=precision)
        start = torch.zeros(1, model.dimension, dtype=model.dtype)
        updates.append(opened(model.local_descent(start, torch.ones(1), 2))[:, 1:])
    assert all(torch.equal(updates[0], other) for other in updates)


def test_the_frozen_map_is_let_go_with_its_records() -> None:
    federation = federation_of([2], shape=(4,))
    before = len(module._mapped)
    settings = settings_of("softmax", frozen_width=3)
    module.frozen_features(federation.dataset.train, settings, torch.device("cpu"), alone=False)
    assert len(module._mapped) == before + 1
    del federation
    assert len(module._mapped) == before


def test_feature_norm_and_pictures() -> None:
    federation = federation_of([3, 2], shape=(6,), classes=3)
    train = federation.dataset.train
    train.features[federation.partition.indices[0]] = 0.0
    norms = np.linalg.norm(train.features, axis=1, keepdims=True)
    unit = Records(train.features / np.where(norms > 0, norms, 1.0), train.targets)
    scaled = Federation(Dataset(federation.dataset.info, unit, None), federation.partition)
    pictures = Records(train.features.reshape(-1, 2, 3), train.targets)
    shaped = Federation(Dataset(info_of((2, 3), 3), pictures, None), federation.partition)
    objectives = [
        SoftmaxRegression(
            settings_of("softmax", bias=True, precision="float64"), [scaled], np.array([0])
        ),
        softmax_on(shaped, feature_norm="l2", bias=True, precision="float64"),
    ]
    found = [opened(one.gradient(client_values(points(one)))) for one in objectives]
    torch.testing.assert_close(*found, rtol=1e-12, atol=1e-12)


def test_initial_values() -> None:
    zero = softmax([2], [0, 0])
    assert not zero.initial(Streams([0, 1])).any()
    for init, deviation in (("normal", 0.5), ("uniform", (1 / 200) ** 0.5 / 3**0.5)):
        objective = softmax([2], [0, 0], features=200, init=init, init_scale=0.5, bias=True)
        values = objective.initial(Streams([3, 4]))
        alone = softmax([2], [0], features=200, init=init, init_scale=0.5, bias=True).initial(
            Streams([4])
        )
        assert torch.equal(values[1:], alone)
        assert float(values.std()) == pytest.approx(deviation, rel=0.1)


def test_a_regulariser_or_loss_of_ones_own_is_what_steps_are_taken_by() -> None:
    class Drawn(SoftmaxRegression):
        def regulariser_gradient(self, parameters: Tensor) -> Tensor:
            return 0.3 * (parameters - 1.0)

    class Doubled(CrossEntropy):
        def slopes(self, z: Tensor, targets: Tensor) -> Tensor:
            return 2.0 * super().slopes(z, targets)

    class Heavy(SoftmaxRegression):
        loss = Doubled()

    plain = softmax([4, 3], [0], precision="float64")
    made = (plain.settings, plain.federations, plain.index)
    start = points(plain)[:, 0]
    values, rate = points(plain)[:, :1].repeat(1, 2, 1), torch.tensor([0.1], dtype=torch.float64)
    slope = opened(plain.gradient(client_values(values)))
    for own, expected in (
        (Drawn(*made), slope + 0.3 * (values - 1.0)),
        (Heavy(*made), 2.0 * slope),
    ):
        torch.testing.assert_close(opened(own.gradient(client_values(values))), expected)
        moved = opened(own.local_descent(start, rate, 1))
        torch.testing.assert_close(moved, -0.1 * expected)


def test_algorithms_reach_it_through_the_client_side() -> None:
    objective = softmax([4, 3], [0, 0])
    view = ClientSide(objective)
    values = client_values(points(objective))
    assert objective.provides == {
        "clipped_gradient",
        "squared_gradient_norms",
        "damped_solve",
        "covariance",
    }
    assert view.clipped_gradient(
        values, torch.ones(2), torch.zeros(2, 2, 1, dtype=torch.int64)
    ).is_vector
    assert isinstance(view.damped_solve(values, values, torch.ones(2)), ClientValues)


@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_no_record_is_left_unclipped_where_its_residual_underflows(precision: str) -> None:
    """Records s e_1 and weights that leave a residual of any size: up to the largest norm each has
    at most norm C, then none.
    """
    largest = records.LARGEST_NORM[DTYPES[precision]]
    scales = largest * np.array([1e-9, 1e-3, 0.999, 1.001, 1e3, 1.8e7])
    gaps = np.linspace(0.0, 120.0 if precision == "float32" else 800.0, 241)
    federation = federation_of([1] * len(scales), shape=(2,), classes=2)
    train = federation.dataset.train
    train.features[:], train.targets[:] = 0.0, 0
    train.features[federation.partition.indices, 0] = scales
    objective = SoftmaxRegression(
        settings_of("softmax", bias=False, precision=precision),
        [federation],
        np.zeros(len(gaps), int),
    )
    values = torch.zeros(len(gaps), len(scales), 2, 2, dtype=torch.float64)
    values[:, :, 0, 0] = torch.from_numpy(gaps[:, None] / scales)
    where = client_values(values.flatten(2).to(objective.dtype))
    found = objective.clipped_gradient(where, torch.full((len(gaps),), 1e-4, dtype=objective.dtype))
    norms = opened(found.values).double().norm(dim=-1)
    assert float(norms.max()) <= 1e-4 * (1 + 1e-5)
    assert bool((norms[0, :3] > 0.99e-4).all())
    assert not bool(norms[:, 3:].any())
    assert not bool(torch.isfinite(opened(objective.gradient(where))[:, 3:]).any(dim=-1).all())


@pytest.mark.parametrize("index", INDICES.values(), ids=INDICES.keys())
@pytest.mark.parametrize("bias", [False, True])
def test_covariances_equal_loops_over_records(index: list[int], bias: bool) -> None:
    objective = softmax(COUNTS, index, precision="float64", bias=bias)
    limits = torch.tensor([0.5 + run for run in range(len(index))], dtype=torch.float64)
    plain, bounded = opened(objective.covariance()), objective.clipped_covariance(limits)
    size = objective.features
    assert size == 6 + bias == objective.features_of(objective.settings, info_of())
    rows, columns = np.triu_indices(size)
    for run in range(len(index)):
        for client in range(objective.clients):
            features, _ = softmax_records(objective, run, client)
            found = plain[run, client], opened(bounded.values)[run, client]
            for values, limit in zip(found, (torch.inf, limits[run]), strict=True):
                own = [x * min(1.0, float(limit / x.norm())) for x in features]
                whole = (
                    sum(torch.outer(x, x) for x in own) / max(len(own), 1)
                    if own
                    else torch.zeros(size, size).double()
                )
                torch.testing.assert_close(values, whole[rows, columns])
        torch.testing.assert_close(
            bounded.zero_out[run], limits[run] ** 2 / objective.records[run].clamp(min=1)
        )


def test_a_record_that_is_not_finite_has_no_covariance() -> None:
    federation = federation_of(COUNTS)
    clean = opened(softmax_on(federation).covariance())[0, 0]
    numbers = federation.partition.indices[:2]
    own = torch.from_numpy(federation.dataset.train.features[numbers]).float()
    federation.dataset.train.features[numbers] = np.array([[np.nan], [1e200]])
    spoiled = opened(softmax_on(federation).covariance())[0, 0]
    rows, columns = np.triu_indices(6)
    torch.testing.assert_close(spoiled, clean - (own.mT @ own)[rows, columns] / COUNTS[0])


def test_what_preconditions_is_public_and_of_the_right_size() -> None:
    side = ClientSide(softmax(COUNTS, [0]))
    matrices, model = torch.eye(6).expand(1, 6, 6), torch.zeros(1, 60)
    own = client_values(torch.zeros(1, len(COUNTS), 60))
    assert isinstance(side.precondition(own, matrices), ClientValues)
    assert not isinstance(side.precondition(model, matrices), ClientValues)
    values, squares = torch.randn(1, 60), torch.randn(1, 6, 6)
    by_class = values.unflatten(-1, (10, 6)) @ squares
    torch.testing.assert_close(side.precondition(values, squares), by_class.flatten(-2))
    for values, given in (
        (own, client_values(matrices)),
        (model, matrices[:, :5]),
        (client_values(torch.zeros(1, 1, 60)), matrices),
        (model[:, :6], matrices),
    ):
        with pytest.raises(PrivacyError):
            side.precondition(values, given)


def test_the_first_of_the_largest_outputs_is_the_class_that_counts() -> None:
    generator = torch.Generator().manual_seed(3)
    values = torch.tensor([-torch.inf, -1.0, 0.0, 2.0, torch.inf, torch.nan])
    for dtype in DTYPES.values():
        z = values.to(dtype)[torch.randint(0, 6, (5, 7, 400), generator=generator)]
        targets = torch.randint(0, 7, (400,), generator=generator)
        first = np.argmax(z.numpy(), axis=1)  # NaN, where there is one, is the largest
        assert np.array_equal(right(CrossEntropy(), z, targets).numpy(), first == targets.numpy())
