"""The CNNs: every way to compute them against PyTorch's own layers in float64, and bits that depend
on nothing else.
"""

from __future__ import annotations

import logging

import numpy as np
import pytest
import torch
from numba import njit
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from dpfl_cli.data.federation import Dataset, DatasetInfo, Federation, Partition, Records
from dpfl_cli.data.streams import Streams
from dpfl_cli.models import cnn, cnn_kernel, cnn_layers
from dpfl_cli.models.cnn import CnnObjective, CnnSettings
from dpfl_cli.models.cnn_layers import compute_layer
from dpfl_cli.models.cnn_shape import CnnShape
from dpfl_cli.privacy.client_values import client_values, opened
from tests.padding import own_records

LARGE = CnnSettings(channels=[4, 8], hidden=32, activation="relu")
SMALL = CnnSettings(channels=[2, 1], hidden=None, activation="relu")
SMALL_LINEAR = CnnSettings(channels=[2, 1], hidden=None, activation="none")
ODD = CnnSettings(channels=[3, 5], hidden=7, activation="relu")
ODD_LINEAR = CnnSettings(channels=[3, 5], hidden=7, activation="none")
COUNTS = [5, 0, 17, 1, 33, 30]


class Plain(CnnObjective):
    """As where the kernel cannot be compiled: client after client."""

    def _kernel(self) -> None:
        return None


class PlainDouble(Plain):
    dtype = torch.float64


class Smoothed(CnnObjective):
    def losses(self, outputs, targets):
        return functional.cross_entropy(outputs, targets, reduction="none", label_smoothing=0.5)


KINDS = [CnnObjective, PlainDouble]


def test_a_loss_of_a_subclass_is_computed_whatever_the_kernel_knows() -> None:
    fed = federation([5, 7])
    own, usual = (kind(SMALL, [fed], np.array([0])) for kind in (Smoothed, CnnObjective))
    at = own.initial(Streams([0])).unsqueeze(1).expand(1, 2, -1)
    whole = opened(own.gradient(at))
    batch = torch.arange(5).expand(1, 2, 5)  # all that the first client holds
    torch.testing.assert_close(whole[:, 0], opened(own.gradient(at, batch))[:, 0])
    assert not torch.allclose(whole, opened(usual.gradient(at)), rtol=1e-3)


def federation(
    counts=COUNTS, seed=0, size=(28, 28), classes=10, test=300, images=None, dataset=None
) -> Federation:
    generator = np.random.default_rng(seed)
    if dataset is None:
        records = sum(counts) + 9
        info = DatasetInfo("toy", "synthetic", "", size, classes, records, None)
        if images is None:
            images = generator.random((records, *size), dtype=np.float32)
        train = Records(images, generator.integers(0, classes, records))
        held_out = Records(
            generator.random((test, *size), dtype=np.float32), generator.integers(0, classes, test)
        )
        dataset = Dataset(info, train, held_out)
    order = generator.permutation(len(dataset.train))
    ends = np.cumsum(counts)
    parts = [order[end - count : end] for end, count in zip(ends, counts, strict=True)]
    return Federation(dataset, Partition.from_lists(parts))


def objective_of(
    kind: type[CnnObjective], settings: CnnSettings, counts: list[int], index: list[int]
) -> CnnObjective:
    return kind(settings, [federation(counts, seed) for seed in {*index}], np.array(index))


def network(settings: CnnSettings, features: int = 16, classes: int = 10) -> nn.Sequential:
    """The same network from PyTorch's layers, in float64."""
    a, b = settings.channels
    act = nn.ReLU if settings.activation == "relu" else nn.Identity
    layers = [
        nn.Conv2d(1, a, 4),
        act(),
        nn.MaxPool2d(2),
        nn.Conv2d(a, b, 4),
        act(),
        nn.MaxPool2d(2),
        nn.Flatten(),
    ]
    width = features * b
    if settings.hidden is not None:
        layers += [nn.Linear(width, settings.hidden), nn.ReLU()]
        width = settings.hidden
    return nn.Sequential(*layers, nn.Linear(width, classes)).double()


def slow_gradient(
    settings: CnnSettings, fed: Federation, client: int, values: Tensor, drift: Tensor | float = 0.0
) -> Tensor:
    """Of a client's mean loss, by automatic differentiation in float64; 0 without records."""
    images, labels = map(torch.from_numpy, own_records(fed, client))
    if len(labels) == 0:
        return torch.zeros_like(values, dtype=torch.float64) + drift
    height, width = images.shape[1:]
    places = ((((height - 3) // 2) - 3) // 2) * ((((width - 3) // 2) - 3) // 2)
    model = network(settings, places, fed.dataset.info.classes)
    vector_to_parameters(values.double(), model.parameters())
    loss = functional.cross_entropy(model(images.double().unsqueeze(1)), labels)
    return parameters_to_vector(torch.autograd.grad(loss, list(model.parameters()))) + drift


def slow_descent(settings, fed, client, start, rate, steps, drift=0.0) -> Tensor:
    values = start.double()
    for _ in range(steps):
        values = values - rate * slow_gradient(settings, fed, client, values, drift)
    return values - start.double()


def scattered(objective: CnnObjective, seed: int = 0) -> Tensor:
    """Parameters [R, M, d] that differ between runs and clients."""
    size = objective.runs, objective.clients, objective.dimension
    noise = torch.randn(size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    start = objective.initial(Streams(range(objective.runs))).unsqueeze(1)
    return start + (0.02 * noise).to(start.dtype)


def close(found: Tensor, expected: Tensor) -> None:
    """To rounding; in float32 beside the largest entry, for one pooling window may be a tie but for
    its rounding, and what cancels in a mean does not cancel in that.
    """
    exact = found.dtype == torch.float64
    bound = 1e-10 if exact else 1e-4 * float(expected.abs().max()) + 1e-7
    assert float((found.double() - expected).abs().max()) <= bound


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("settings", "size"),
    # in the last two neither features nor pixels nor outputs fill whole vectors
    [
        *((one, (28, 28)) for one in (LARGE, SMALL, SMALL_LINEAR)),
        (ODD, (17, 22)),
        (ODD_LINEAR, (13, 13)),
    ],
)
def test_gradients_are_those_of_autograd(kind, settings, size) -> None:
    # those of 10 classes are compiled for other tests too
    shared = federation(size=size, classes=10 if size == (28, 28) else 7)
    feds = [shared, federation([20, 3, 1, 16, 0, 48], 1, dataset=shared.dataset)]
    objective = kind(settings, feds, np.array([0, 1, 0]))
    parameters = scattered(objective)
    found = opened(objective.gradient(parameters))
    for run, client in ((0, 0), (0, 1), (1, 5), (2, 2), (2, 3)):
        fed = feds[objective.index[run]]
        close(found[run, client], slow_gradient(settings, fed, client, parameters[run, client]))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("drifting", [False, True])
@pytest.mark.parametrize(
    ("settings", "counts"),
    [(LARGE, COUNTS), (SMALL, [300, 1, 0, 77]), (SMALL, [1]), (SMALL, [0, 0])],
)
def test_local_runs_are_plain_steps(kind, settings, counts, drifting) -> None:
    feds = [federation(counts), federation(counts, seed=1)]
    objective = kind(settings, feds, np.array([0, 1]))
    start, rates = objective.initial(Streams([3, 4])), torch.tensor([0.05, 0.2])
    drift = 0.1 * scattered(objective, 5) if drifting else None
    marked = None if drift is None else client_values(drift)
    found = opened(objective.local_descent(start, rates, 3, marked))
    for run, client in np.ndindex(2, len(counts)):
        more = 0.0 if drift is None else drift[run, client].double()
        rate = rates[run].to(objective.dtype).item()
        close(
            found[run, client],
            slow_descent(settings, feds[run], client, start[run], rate, 3, more),
        )


def test_the_kernel_takes_clients_larger_than_it_keeps() -> None:
    fed = federation([cnn_kernel.KEPT_BLOCKS * cnn_layers.LANES + 75, 9])
    objective = CnnObjective(SMALL, [fed], np.zeros(1, int))
    start = objective.initial(Streams([0]))
    found = opened(objective.local_descent(start, torch.tensor([0.1]), 2))
    for client in range(2):
        rate = torch.tensor(0.1).item()
        close(found[0, client], slow_descent(SMALL, fed, client, start[0], rate, 2))


@pytest.mark.parametrize("kind", [PlainDouble, Plain, CnnObjective])
@pytest.mark.parametrize("settings", [LARGE, SMALL_LINEAR])
def test_ties_in_pooling_go_to_the_first_position(kind, settings: CnnSettings) -> None:
    # Pixels 0 or 1 and weights in quarters: every sum is exact, so most windows hold exact ties in
    # all arithmetics.
    images = (np.random.default_rng(5).random((95, 28, 28)) < 0.3).astype(np.float32)
    images[:20] = 1.0
    fed = federation(images=images)
    objective = kind(settings, [fed], np.zeros(1, int))
    size, generator = (1, fed.clients, objective.dimension), torch.Generator().manual_seed(2)
    weights = torch.randint(-2, 3, size, generator=generator).to(objective.dtype) / 4
    found = opened(objective.gradient(weights)).double()
    for client in range(fed.clients):
        expected = slow_gradient(settings, fed, client, weights[0, client])
        assert (found[0, client] - expected).norm() <= 1e-5 * expected.norm() + 1e-12


@pytest.mark.parametrize("settings", [LARGE, SMALL])
def test_ties_on_an_even_background_are_those_of_torch(settings: CnnSettings) -> None:
    # Standardised images have a background that no arithmetic adds up exactly; yet its four sums
    # are one and the same.
    images = np.full((95, 28, 28), -0.4242, np.float32)
    images[:, 8:20, 8:20] = np.random.default_rng(2).random((95, 12, 12))
    fed = federation(images=images)
    one, other = (kind(settings, [fed], np.zeros(1, int)) for kind in (Plain, CnnObjective))
    parameters = scattered(one)
    found, expected = opened(one.gradient(parameters)), opened(other.gradient(parameters))
    assert (found - expected).norm() <= 1e-5 * expected.norm()


@pytest.mark.parametrize("kind", [Plain, CnnObjective])
@pytest.mark.parametrize("settings", [LARGE, SMALL])
def test_metrics(kind, settings: CnnSettings) -> None:
    feds = [federation(), federation(seed=8)]  # data sets of their own, so test splits too
    objective = kind(settings, feds, np.array([0, 1, 0]))
    parameters = 3 * objective.initial(Streams([0, 1, 2]))
    found, model = objective.metrics(parameters), network(settings)
    assert set(found) == {"accuracy", "test_loss"}
    assert not objective.private(found)
    for run, which in enumerate(objective.index):
        test = feds[which].dataset.test
        assert test is not None
        vector_to_parameters(parameters[run].double(), model.parameters())
        with torch.no_grad():
            logits = model(torch.from_numpy(test.features).double().unsqueeze(1))
        labels = torch.from_numpy(test.targets)
        right = (logits.argmax(1) == labels).double().mean().item()
        loss = functional.cross_entropy(logits, labels).item()
        assert found["accuracy"][run].item() == pytest.approx(100 * right, rel=1e-6)
        assert found["test_loss"][run].item() == pytest.approx(loss, rel=1e-5)


def test_without_test_records_there_is_the_train_loss_which_is_not_released() -> None:
    fed = federation([5, 17])
    bare = Federation(Dataset(fed.dataset.info, fed.dataset.train, None), fed.partition)
    objective = CnnObjective(SMALL, [bare], np.zeros(1, int))
    parameters, model = objective.initial(Streams([0])), network(SMALL)
    found = objective.metrics(parameters)
    assert {*found} == {"train_loss"} == objective.private(found)
    vector_to_parameters(parameters[0].double(), model.parameters())
    losses = []
    for client in range(2):
        images, labels = map(torch.from_numpy, own_records(bare, client))
        images = images.double().unsqueeze(1)
        losses.append(functional.cross_entropy(model(images), labels).item())
    assert found["train_loss"].item() == pytest.approx(sum(losses) / 2, rel=1e-5)


def test_without_a_compiler_the_torch_path_serves(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(shape: object) -> None:
        raise RuntimeError("no code generator\nfor this machine")

    fed = federation()
    at = torch.full((1, 6, 237), 0.1)
    expected = opened(Plain(SMALL, [fed], np.zeros(1, int)).gradient(at))
    monkeypatch.setattr(cnn_kernel, "cnn_kernel", broken)
    cnn.compiled_kernel.cache_clear()
    try:
        with caplog.at_level(logging.WARNING, logger="dpfl"):
            objective = CnnObjective(SMALL, [fed], np.zeros(1, int))
            for _ in range(3):
                assert torch.equal(opened(objective.gradient(at)), expected)
    finally:
        cnn.compiled_kernel.cache_clear()
    said = [record.getMessage() for record in caplog.records if record.name == "dpfl"]
    assert len(said) == 1
    assert "no code generator" in said[0]
    assert "\n" not in said[0]


def test_sums_are_the_same_whatever_stays_in_registers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A processor with AVX-512 has room for more of them than others: the bits are equal."""
    shape = CnnShape(13, 15, (4, 6), 10, 10, relu=True)
    key, layers, found, written = repr(shape), shape.layers, [], []

    def both_ways(image, v, p1, m1, p2, m2, h, back, d1, gradient):  # type: ignore[no-untyped-def]
        compute_layer(key, 0, "convolve", image, v, p1, m1)
        compute_layer(key, 1, "convolve", p1, v, p2, m2)
        compute_layer(key, 2, "connect", p2, v, h, h)
        compute_layer(key, 2, "connect_back", h, v, p2, back)
        compute_layer(key, 1, "kernel_gradient", p1, back, m2, gradient)
        compute_layer(key, 1, "input_gradient", back, v, m2, d1)
        compute_layer(key, 0, "kernel_gradient", image, d1, m1, gradient)

    drawn = np.random.default_rng(0)
    v = drawn.standard_normal(shape.dimension).astype(np.float32)
    image = drawn.standard_normal((layers[0].plane, 16)).astype(np.float32)
    for lanes, sums, rows in ((16, 16, 5), (8, 8, 1), (16, 4, 2)):
        monkeypatch.setattr(cnn_layers, "LANES", lanes)
        monkeypatch.setattr(cnn_layers, "SUMS", sums)
        monkeypatch.setattr(cnn_layers, "ROWS", rows)
        sizes = [layers[0].values, layers[1].values, layers[2].values, layers[1].values]
        p1, p2, h, back = (np.zeros((size, lanes), np.float32) for size in sizes)
        d1, gradient = np.zeros_like(p1), np.zeros((layers[1].stop, lanes), np.float32)
        m1, m2 = (np.zeros(cnn_layers.MASKS * one.values * 2, np.uint8) for one in layers[:2])
        compiled = njit(both_ways)  # anew
        some = image[:, :lanes].copy()
        compiled(some, v, p1, m1, p2, m2, h, back, d1, gradient)
        written.append(len(compiled.inspect_llvm(compiled.signatures[0])))
        found.append([one[:, :8] for one in (p1, p2, h, back, d1, gradient)])
    assert len({*written}) == 3
    assert all(part.any() for part in found[0])
    for other in found[1:]:
        for one, same in zip(found[0], other, strict=True):
            np.testing.assert_array_equal(one, same)
