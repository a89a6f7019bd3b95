"""The CNNs: both paths against PyTorch's own layers, and the compiled kernel against itself under other conditions."""

from __future__ import annotations

import logging

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from dpfl_cli.config.component import lookup, parse_settings
from dpfl_cli.config.errors import ConfigError
from dpfl_cli.data.federation import Dataset, DatasetInfo, Federation, Partition, Records
from dpfl_cli.data.streams import Streams
from dpfl_cli.models import cnn, cnn_kernel
from dpfl_cli.models.cnn import CnnObjective, CnnSettings
from dpfl_cli.models.objective import Objective
from dpfl_cli.privacy.client_values import client_values, opened

LARGE = CnnSettings(channels=[4, 8], hidden=32, activation="relu")
LARGE_LINEAR = CnnSettings(channels=[4, 8], hidden=32, activation="none")
SMALL = CnnSettings(channels=[2, 1], hidden=None, activation="relu")
SMALL_LINEAR = CnnSettings(channels=[2, 1], hidden=None, activation="none")
NETS = [LARGE, LARGE_LINEAR, SMALL, SMALL_LINEAR]
COUNTS = [5, 0, 17, 1, 33, 30]
UNEQUAL = [600, 1, 0, 77, 300, 2]


class Stacked(CnnObjective):
    """The torch path, whatever the kernel could do."""

    def _kernel(self) -> None:
        return None


class Wide(Stacked):
    """The torch path with runs side by side, as on a device."""

    def _runs_at_once(self, records: int) -> int:
        return 3


class Double(CnnObjective):
    dtype = torch.float64


class WideDouble(Wide):
    dtype = torch.float64


def federation(counts=COUNTS, seed=0, size=(28, 28), classes=10, test=300, images=None, dataset=None) -> Federation:
    generator = np.random.default_rng(seed)
    if dataset is None:
        records = sum(counts) + 9
        info = DatasetInfo("toy", "synthetic", "", size, classes, records, None)
        if images is None:
            images = generator.random((records, *size), dtype=np.float32)
        train = Records(images, generator.integers(0, classes, records))
        held_out = Records(generator.random((test, *size), dtype=np.float32), generator.integers(0, classes, test))
        dataset = Dataset(info, train, held_out)
    order = generator.permutation(len(dataset.train))
    ends = np.cumsum(counts)
    parts = [order[end - count : end] for end, count in zip(ends, counts, strict=True)]
    return Federation(dataset, Partition.from_lists(parts))


def network(settings: CnnSettings, features: int = 16, classes: int = 10) -> nn.Sequential:
    """The same network from PyTorch's layers, in float64."""
    a, b = settings.channels
    act = nn.ReLU if settings.activation == "relu" else nn.Identity
    layers = [nn.Conv2d(1, a, 4), act(), nn.MaxPool2d(2), nn.Conv2d(a, b, 4), act(), nn.MaxPool2d(2), nn.Flatten()]
    width = features * b
    if settings.hidden is not None:
        layers += [nn.Linear(width, settings.hidden), nn.ReLU()]
        width = settings.hidden
    return nn.Sequential(*layers, nn.Linear(width, classes)).double()


def client_records(fed: Federation, client: int) -> tuple[Tensor, Tensor]:
    partition = fed.partition
    places = partition.indices[partition.offsets[client] : partition.offsets[client + 1]]
    return torch.from_numpy(fed.dataset.train.features[places]).double().unsqueeze(1), torch.from_numpy(
        fed.dataset.train.targets[places]
    )


def autograd(model: nn.Sequential, fed: Federation, client: int, parameters: Tensor) -> Tensor:
    """Gradient of one client's mean loss; 0 without records."""
    images, labels = client_records(fed, client)
    if len(labels) == 0:
        return torch.zeros_like(parameters, dtype=torch.float64)
    vector_to_parameters(parameters.double(), model.parameters())
    loss = functional.cross_entropy(model(images), labels)
    return parameters_to_vector(torch.autograd.grad(loss, list(model.parameters())))


def descent(settings: CnnSettings, fed: Federation, client: int, start: Tensor, rate: float, steps: int) -> Tensor:
    """One client's update after plain local steps, in float64."""
    model, v = network(settings), start.double()
    for _ in range(steps):
        v = v - rate * autograd(model, fed, client, v)
    return v - start.double()


def scattered(objective: CnnObjective, seed: int = 0) -> Tensor:
    """Parameters [R, M, d] that differ between runs and clients."""
    generator = torch.Generator().manual_seed(seed)
    start = objective.initial(Streams(range(objective.runs))).unsqueeze(1)
    noise = torch.randn(objective.runs, objective.clients, objective.dimension, generator=generator, dtype=torch.float64)
    return start + (0.02 * noise).to(start.dtype)


@pytest.mark.parametrize(("settings", "dimension"), [(LARGE, 5046), (SMALL, 237)])
def test_parameter_counts(settings: CnnSettings, dimension: int) -> None:
    assert CnnObjective.dimension_of(settings, federation().dataset.info) == dimension
    assert sum(p.numel() for p in network(settings).parameters()) == dimension


@pytest.mark.parametrize("settings", NETS)
@pytest.mark.parametrize("runs", [1, 2, 7])
def test_gradient_of_the_torch_path_is_autograds(settings: CnnSettings, runs: int) -> None:
    fed = federation()
    objective = Double(settings, [fed], np.zeros(runs, int))
    parameters, model = scattered(objective), network(settings)
    found = opened(objective.gradient(parameters))
    for run in {0, runs - 1}:
        for client in range(fed.clients):
            expected = autograd(model, fed, client, parameters[run, client])
            torch.testing.assert_close(found[run, client], expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("settings", NETS)
@pytest.mark.parametrize("runs", [1, 2, 7])
def test_gradient_of_the_kernel_is_autograds(settings: CnnSettings, runs: int) -> None:
    fed = federation()
    objective = CnnObjective(settings, [fed], np.zeros(runs, int))
    assert objective._kernel() is not None
    parameters, model = scattered(objective), network(settings)
    found = opened(objective.gradient(parameters)).double()
    for run in {0, runs - 1}:
        for client in range(fed.clients):
            expected = autograd(model, fed, client, parameters[run, client])
            assert (found[run, client] - expected).norm() <= 1e-5 * expected.norm() + 1e-12


@pytest.mark.parametrize("kind", [Double, Stacked, CnnObjective])
@pytest.mark.parametrize("settings", [LARGE, SMALL_LINEAR])
def test_ties_in_pooling_go_to_the_first_position(kind: type[CnnObjective], settings: CnnSettings) -> None:
    # Pixels 0 or 1 and weights in quarters: every sum is exact, so most windows hold exact ties in all arithmetics.
    images = (np.random.default_rng(5).random((95, 28, 28)) < 0.3).astype(np.float32)
    images[:20] = 1.0
    fed = federation(images=images)
    objective = kind(settings, [fed], np.zeros(1, int))
    generator = torch.Generator().manual_seed(2)
    weights = torch.randint(-2, 3, (1, fed.clients, objective.dimension), generator=generator).to(objective.dtype) / 4
    found, model = opened(objective.gradient(weights)).double(), network(settings)
    for client in range(fed.clients):
        expected = autograd(model, fed, client, weights[0, client])
        assert (found[0, client] - expected).norm() <= 1e-5 * expected.norm() + 1e-12


@pytest.mark.parametrize("with_drift", [False, True])
def test_local_descent_of_the_torch_path_is_plain_sgd(with_drift: bool) -> None:
    feds = [federation(), federation(seed=1)]
    objective = Double(SMALL, feds, np.array([0, 1, 0]))
    start, rates = objective.initial(Streams([3, 4, 5])), torch.tensor([0.3, 0.1, 0.05], dtype=torch.float64)
    drift = torch.randn(3, 6, 237, dtype=torch.float64) if with_drift else None
    found = opened(objective.local_descent(start, rates, 4, None if drift is None else client_values(drift)))
    model = network(SMALL)
    for run, which in enumerate(objective.index):
        for client in range(6):
            v = start[run].clone()
            for _ in range(4):
                gradient = autograd(model, feds[which], client, v)
                v = v - rates[run] * (gradient if drift is None else gradient + drift[run, client])
            torch.testing.assert_close(found[run, client], v - start[run], rtol=0, atol=1e-10)


@pytest.mark.parametrize("settings", [LARGE, SMALL])
@pytest.mark.parametrize("runs", [1, 2, 7])
@pytest.mark.parametrize("with_drift", [False, True])
def test_local_descent_of_the_kernel_is_its_definition(settings: CnnSettings, runs: int, with_drift: bool) -> None:
    shared = federation()
    feds = [shared, federation([20, 3, 1, 16, 0, 48], seed=1, dataset=shared.dataset)]
    index = np.arange(runs) % 2
    objective, slow = CnnObjective(settings, feds, index), Double(settings, feds, index)
    start, rates = objective.initial(Streams(range(runs))), torch.linspace(0.02, 0.2, runs)
    drift = 0.1 * torch.randn(runs, 6, objective.dimension, generator=torch.Generator().manual_seed(0)) if with_drift else None
    found = opened(objective.local_descent(start, rates, 3, drift)).double()
    shift = None if drift is None else drift.double()
    expected = opened(Objective.local_descent(slow, start.double(), rates.double(), 3, shift))
    assert (found - expected).abs().max() < 1e-4 * expected.abs().max()
    assert (found[0, 1] == 0).all() == (not with_drift)  # the client without records moves with the drift alone


@pytest.mark.parametrize("runs", [1, 2, 7])
@pytest.mark.parametrize(
    ("settings", "counts"), [(LARGE, UNEQUAL), (SMALL, UNEQUAL), (LARGE, [40]), (SMALL, [40]), (LARGE, [1]), (SMALL, [1])]
)
@pytest.mark.parametrize("kind", [Double, Stacked, CnnObjective])
def test_local_descent_with_any_sizes_is_plain_sgd(
    kind: type[CnnObjective], settings: CnnSettings, counts: list[int], runs: int
) -> None:
    fed = federation(counts)
    objective = kind(settings, [fed], np.zeros(runs, int))
    start, rates = objective.initial(Streams(range(runs))), torch.linspace(0.05, 0.2, runs, dtype=objective.dtype)
    found = opened(objective.local_descent(start, rates, 2)).double()
    assert found.shape == (runs, fed.clients, objective.dimension)
    run = runs - 1
    expected = torch.stack([descent(settings, fed, client, start[run], rates[run].item(), 2) for client in range(fed.clients)])
    # Among 600 records some pooling window is a tie but for float32's rounding, and one record's gradient then differs by some
    # thousandths. So float32 is held to the size of single records' gradients, not to their mean, where most cancel.
    bound = 1e-10 if objective.dtype == torch.float64 else 1e-4 * expected.abs().max()
    assert (found[run] - expected).abs().max() <= bound


@pytest.mark.parametrize("kind", [Wide, WideDouble])
@pytest.mark.parametrize("settings", NETS)
def test_runs_side_by_side_are_the_runs_one_by_one(kind: type[CnnObjective], settings: CnnSettings) -> None:
    shared = federation()
    feds = [shared, federation([20, 3, 1, 16, 0, 48], seed=1, dataset=shared.dataset)]
    index = np.array([0, 1, 0, 0, 0, 1, 0])  # five and two runs, in parts of at most three
    wide, double = kind(settings, feds, index), Double(settings, feds, index)
    parameters, drift = scattered(double), 0.1 * torch.randn(7, 6, double.dimension, dtype=torch.float64)
    start, rates = parameters[:, 0], torch.linspace(0.02, 0.2, 7, dtype=torch.float64)
    pairs = [
        (wide.gradient(parameters.to(kind.dtype)), double.gradient(parameters)),
        (
            wide.local_descent(start.to(kind.dtype), rates, 3, drift.to(kind.dtype)),
            double.local_descent(start, rates, 3, drift),
        ),
    ]
    for found, expected in pairs:
        size = opened(expected).abs().max()
        assert (opened(found).double() - opened(expected)).abs().max() <= (1e-12 if kind is WideDouble else 1e-4) * size


@pytest.mark.parametrize("settings", [LARGE, SMALL])
def test_ties_on_an_even_background_are_those_of_the_kernel(settings: CnnSettings) -> None:
    # Standardised images have a background that no arithmetic adds up exactly; yet its four sums are one and the same.
    images = np.full((95, 28, 28), -0.4242, np.float32)
    images[:, 8:20, 8:20] = np.random.default_rng(2).random((95, 12, 12))
    fed = federation(images=images)
    one, other = (kind(settings, [fed], np.zeros(1, int)) for kind in (Stacked, CnnObjective))
    parameters = scattered(one)
    found, expected = opened(one.gradient(parameters)), opened(other.gradient(parameters))
    assert (found - expected).norm() <= 1e-5 * expected.norm()


@pytest.mark.parametrize("counts", [[40], [1], [1, 1]])
@pytest.mark.parametrize("kind", [Double, CnnObjective])
def test_few_clients_and_records(counts: list[int], kind: type[CnnObjective]) -> None:
    fed = federation(counts)
    objective = kind(SMALL, [fed], np.zeros(2, int))
    parameters, model = scattered(objective), network(SMALL)
    found = opened(objective.gradient(parameters)).double()
    expected = torch.stack([torch.stack([autograd(model, fed, i, p) for i, p in enumerate(row)]) for row in parameters])
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-10 if kind is Double else 1e-5)


def test_only_empty_clients() -> None:
    for kind in (Double, CnnObjective):
        objective = kind(SMALL, [federation([0, 0])], np.zeros(2, int))
        start, rates = objective.initial(Streams([0, 1])), torch.tensor([0.1, 0.2], dtype=objective.dtype)
        assert (opened(objective.local_descent(start, rates, 2)) == 0).all()
        drift = torch.ones(2, 2, 237, dtype=objective.dtype)
        moved = opened(objective.local_descent(start, rates, 2, drift))
        torch.testing.assert_close(moved, (-2 * rates)[:, None, None] * drift, rtol=0, atol=1e-6)


@pytest.mark.parametrize("size", [(17, 22), (13, 13)])
def test_other_sizes(size: tuple[int, int]) -> None:
    # Neither features nor pixels nor outputs fill whole vectors here.
    settings = CnnSettings(channels=[3, 5], hidden=7, activation="relu")
    fed = federation([18, 4], size=size, classes=3)
    slow, fast = (kind(settings, [fed], np.zeros(2, int)) for kind in (Double, CnnObjective))
    parameters = scattered(fast)
    model = network(settings, fast.shape.features // 5, 3)
    expected = torch.stack([torch.stack([autograd(model, fed, i, p) for i, p in enumerate(row)]) for row in parameters])
    torch.testing.assert_close(opened(slow.gradient(parameters.double())), expected, rtol=0, atol=1e-10)
    torch.testing.assert_close(opened(fast.gradient(parameters)).double(), expected, rtol=0, atol=1e-5)
    assert fast._kernel() is not None


def test_large_clients_are_cut_into_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    fed = federation([cnn_kernel.KEPT_BLOCKS * cnn_kernel.LANES + 75, 9])  # more than the kernel keeps between steps
    whole, fast = Double(SMALL, [fed], np.zeros(2, int)), CnnObjective(SMALL, [fed], np.zeros(2, int))
    start, rates = whole.initial(Streams([0, 1])), torch.tensor([0.1, 0.2], dtype=torch.float64)
    expected = opened(whole.local_descent(start, rates, 2))
    assert (opened(fast.local_descent(start.float(), rates, 2)) - expected).abs().max() < 1e-4 * expected.abs().max()
    monkeypatch.setattr(cnn, "CPU_BLOCK", 4 << 20)
    assert whole._block_records() < 100
    torch.testing.assert_close(opened(whole.local_descent(start, rates, 2)), expected, rtol=0, atol=1e-10)


def test_block_size_does_not_change_the_torch_path(monkeypatch: pytest.MonkeyPatch) -> None:
    objective = Double(LARGE, [federation()], np.zeros(3, int))
    parameters = scattered(objective)
    expected = opened(objective.gradient(parameters))
    for block in (1, 1 << 20, 8 << 20):
        monkeypatch.setattr(cnn, "CPU_BLOCK", block)
        torch.testing.assert_close(opened(objective.gradient(parameters)), expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("kind", [Stacked, CnnObjective])
@pytest.mark.parametrize("settings", [LARGE, SMALL])
def test_bits_are_the_same_alone_and_on_any_number_of_threads(kind: type[CnnObjective], settings: CnnSettings) -> None:
    shared = federation()
    feds = [shared, federation(seed=3, dataset=shared.dataset)]
    index = np.array([0, 1, 0, 1])
    batch = kind(settings, feds, index)
    start, rates = batch.initial(Streams(range(4))), torch.tensor([0.1, 0.2, 0.3, 0.4])
    drift = torch.randn(4, 6, batch.dimension)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        expected, loss = opened(batch.local_descent(start, rates, 3, drift)), batch.metrics(start)["test_loss"]
        for number in (2, 3):
            torch.set_num_threads(number)
            assert torch.equal(opened(batch.local_descent(start, rates, 3, drift)), expected)
            assert torch.equal(batch.metrics(start)["test_loss"], loss)
    finally:
        torch.set_num_threads(threads)
    for run, which in enumerate(index):
        alone = kind(settings, [feds[which]], np.zeros(1, int))
        one = slice(run, run + 1)
        assert torch.equal(opened(alone.local_descent(start[one], rates[one], 3, drift[one]))[0], expected[run])
        assert torch.equal(alone.metrics(start[one])["test_loss"], loss[one])


@pytest.mark.parametrize("kind", [Double, Stacked, CnnObjective])
@pytest.mark.parametrize("settings", [LARGE, SMALL])
def test_metrics(kind: type[CnnObjective], settings: CnnSettings) -> None:
    feds = [federation(), federation(seed=8)]  # data sets of their own, so test splits too
    objective = kind(settings, feds, np.array([0, 1, 0]))
    parameters = 3 * objective.initial(Streams([0, 1, 2]))
    found, model = objective.metrics(parameters), network(settings)
    assert list(found) == ["accuracy", "test_loss"]
    for run, which in enumerate(objective.index):
        test = feds[which].dataset.test
        assert test is not None
        vector_to_parameters(parameters[run].double(), model.parameters())
        with torch.no_grad():
            logits = model(torch.from_numpy(test.features).double().unsqueeze(1))
        labels = torch.from_numpy(test.targets)
        right = (logits.argmax(1) == labels).double().mean().item()
        assert found["accuracy"][run].item() == pytest.approx(100 * right, rel=1e-6)
        assert found["test_loss"][run].item() == pytest.approx(functional.cross_entropy(logits, labels).item(), rel=1e-5)


@pytest.mark.parametrize("kind", [Stacked, CnnObjective])
def test_a_diverged_client_is_not_hidden(kind: type[CnnObjective]) -> None:
    objective = kind(SMALL, [federation([16, 16])], np.zeros(1, int))
    parameters = scattered(objective)
    parameters[0, 1, 0] = torch.nan
    gradient = opened(objective.gradient(parameters))
    assert gradient[0, 0].isfinite().all()
    assert gradient[0, 1].isnan().any()


def test_initial_parameters_follow_pytorchs_law() -> None:
    objective = CnnObjective(LARGE, [federation()], np.zeros(3, int))
    rows = objective.initial(Streams([7, 8, 7]))
    assert rows.dtype == torch.float32
    assert torch.equal(rows[0], rows[2])
    assert not torch.equal(rows[0], rows[1])
    bounds = [torch.full((p.numel(),), 1 / fan_in**0.5) for p, fan_in in zip(network(LARGE).parameters(), FAN_IN, strict=True)]
    unit = rows / torch.cat(bounds)
    assert unit.abs().max() <= 1
    assert unit.square().mean(1).allclose(torch.tensor(1 / 3), atol=0.02)  # variance of U(-1, 1); its standard error is 0.004


FAN_IN = [16, 16, 64, 64, 128, 128, 32, 32]


def test_settings_are_checked() -> None:
    kind = lookup("model", "cnn").settings
    assert parse_settings(kind, {"channels": [2, 1], "hidden": None, "activation": "relu"}, "model") == SMALL
    bad = [("channels", [2]), ("channels", [0, 1]), ("hidden", 0), ("activation", "tanh"), ("kernel", 4)]
    for key, value in bad:
        with pytest.raises(ConfigError, match=rf"^model\.{key}"):
            parse_settings(kind, {"channels": [2, 1], "hidden": None, "activation": "relu", key: value}, "model")


@pytest.mark.parametrize(
    ("shape", "classes", "message"),
    [((100,), 10, "grey images"), ((28, 28), None, "no classes"), ((12, 28), 10, "at least 13x13"), ((3, 32, 32), 10, "grey")],
)
def test_data_that_do_not_fit_are_refused(shape: tuple[int, ...], classes: int | None, message: str) -> None:
    info = DatasetInfo("toy", "synthetic", "", shape, classes, 100, None)
    with pytest.raises(ConfigError, match=message) as error:
        CnnObjective.dimension_of(LARGE, info)
    assert "\n" not in str(error.value)
    assert "toy" in str(error.value)


def test_data_without_a_test_split_are_refused() -> None:
    fed = federation()
    bare = Federation(Dataset(fed.dataset.info, fed.dataset.train, None), fed.partition)
    with pytest.raises(ConfigError, match="test records"):
        CnnObjective(SMALL, [bare], np.zeros(1, int))


def test_without_a_compiler_the_torch_path_serves(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def broken(shape: object) -> None:
        raise RuntimeError("no code generator\nfor this machine")

    fed = federation()
    expected = opened(Stacked(SMALL, [fed], np.zeros(1, int)).gradient(torch.full((1, 6, 237), 0.1)))
    monkeypatch.setattr(cnn_kernel, "CnnKernel", broken)
    cnn.compiled_kernel.cache_clear()
    try:
        with caplog.at_level(logging.WARNING, logger="dpfl"):
            objective = CnnObjective(SMALL, [fed], np.zeros(1, int))
            for _ in range(3):
                assert torch.equal(opened(objective.gradient(torch.full((1, 6, 237), 0.1))), expected)
    finally:
        cnn.compiled_kernel.cache_clear()
    said = [record.getMessage() for record in caplog.records if record.name == "dpfl"]
    assert len(said) == 1
    assert "no code generator" in said[0]
    assert "\n" not in said[0]
