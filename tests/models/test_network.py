"""Networks given as a module against plain loops over records, in float64, and what must not change
their bits.
"""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from dpfl_cli.data.federation import Dataset, DatasetInfo, Federation, Partition, Records
from dpfl_cli.data.streams import Streams
from dpfl_cli.models import network
from dpfl_cli.models.modules import default_values
from dpfl_cli.models.network import Network
from dpfl_cli.models.objective import Objective
from dpfl_cli.privacy.client_values import ClientValues, opened

COUNTS = [5, 0, 12, 1]


@pytest.fixture(autouse=True)
def _several_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "PASS_RECORDS", 4)


CLASSES = 3


class Toy(Network):
    """A convolution, a normalisation, a frozen scale and a linear layer, on grey images."""

    dtype = torch.float64

    @classmethod
    def network(cls, settings, info: DatasetInfo) -> nn.Module:
        layers = nn.Sequential(
            nn.Conv2d(1, 4, 3),
            nn.GroupNorm(2, 4),
            nn.Tanh(),
            nn.Flatten(),
            nn.Linear(4 * 4 * 2, CLASSES),
        )
        layers[4].bias.requires_grad_(False)
        nn.init.constant_(layers[4].bias, 0.25)
        return layers

    def inputs(self, features: Tensor) -> Tensor:
        return features.unsqueeze(1)


class WithScale(nn.Module):
    """A number times what a network gives, and a parameter of no use."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.scale, self.unused = nn.Parameter(torch.tensor(2.0)), nn.Parameter(torch.ones(2))
        self.body = body

    def forward(self, inputs: Tensor) -> Tensor:
        return self.scale * self.body(inputs)


class Scaled(Toy):
    @classmethod
    def network(cls, settings, info: DatasetInfo) -> nn.Module:
        return WithScale(super().network(settings, info))


class Segmenting(Toy):
    """A class for every pixel, with a loss and scores of its own."""

    @classmethod
    def network(cls, settings, info: DatasetInfo) -> nn.Module:
        return nn.Conv2d(1, CLASSES, 3, padding=1)

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return functional.cross_entropy(outputs, targets, reduction="none").mean(dim=(1, 2))

    def scores(self, outputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        return {"agreement": (outputs.argmax(dim=1) == targets).double().mean(dim=(1, 2))}


def federation(
    counts=COUNTS, seed=0, pixels=False, test: int | None = 10, dataset=None
) -> Federation:
    generator = np.random.default_rng(seed)
    size, shape = (6, 4), (6, 4) if pixels else ()
    if dataset is None:
        records = sum(counts) + 3
        info = DatasetInfo("toy", "synthetic", "", size, CLASSES, records, None)
        parts = [
            Records(
                generator.random((n, *size), dtype=np.float32),
                generator.integers(0, CLASSES, (n, *shape)),
            )
            for n in (records, test or 0)
        ]
        dataset = Dataset(info, parts[0], parts[1] if test else None)
    ends, order = np.cumsum(counts), generator.permutation(len(dataset.train))
    return Federation(
        dataset,
        Partition.from_lists([order[end - n : end] for end, n in zip(ends, counts, strict=True)]),
    )


def objective_of(feds: list[Federation], index=(0,), kind=Toy, **settings) -> Network:
    return kind(SimpleNamespace(**settings), feds, np.array(index))


def scattered(objective: Objective, seed: int = 0) -> Tensor:
    """Parameters [R, M, d] that differ between runs and clients."""
    generator = torch.Generator().manual_seed(seed)
    size = objective.runs, objective.clients, objective.dimension
    return (0.5 * torch.randn(size, generator=generator, dtype=torch.float64)).to(objective.dtype)


def loss_of(objective: Network, values: Tensor, records: Records, number: int) -> Tensor:
    """The loss of one record at flat parameters [d]."""
    named, begin = {}, 0
    for name, parameter in objective.module.named_parameters():
        if parameter.requires_grad:
            named[name] = values[begin : begin + parameter.numel()].view(parameter.shape)
            begin += parameter.numel()
    assert begin == len(values) == objective.dimension
    image = torch.from_numpy(records.features[number : number + 1]).to(values.dtype)
    target = torch.from_numpy(records.targets[number : number + 1])
    return objective.losses(
        functional_call(objective.module, named, (objective.inputs(image),)), target
    )[0]


def record_gradients(objective: Network, fed: Federation, client: int, values: Tensor) -> Tensor:
    """[n, d] by automatic differentiation, record by record."""
    rows = [torch.zeros(0, objective.dimension, dtype=values.dtype)]
    for number in fed.partition.indices[
        fed.partition.offsets[client] : fed.partition.offsets[client + 1]
    ]:
        own = values.clone().requires_grad_()
        rows.append(
            torch.autograd.grad(loss_of(objective, own, fed.dataset.train, int(number)), own)[
                0
            ].unsqueeze(0)
        )
    return torch.cat(rows)


def clipped_mean(gradients: Tensor, clip_norm: float, divisor: int) -> Tensor:
    return (gradients * (clip_norm / gradients.norm(dim=1)).clamp(max=1.0).unsqueeze(1)).sum(
        0
    ) / max(divisor, 1)


@pytest.fixture(params=[1, 3], ids=["one thread", "three threads"])
def threads(request: pytest.FixtureRequest):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    assert torch.get_num_threads() == request.param
    torch.set_num_threads(before)


@pytest.mark.parametrize("kind", [Toy, Scaled, Segmenting])
def test_gradients_norms_and_clipped_means_are_those_of_the_records(
    kind, threads, monkeypatch
) -> None:
    monkeypatch.setattr(network.Network, "clipped_records", 3)
    feds = [
        federation(pixels=kind is Segmenting),
        federation([3, 8, 0, 6], seed=1, pixels=kind is Segmenting),
    ]
    objective = objective_of(feds, [0, 1, 0], kind)
    parameters, limits = scattered(objective), torch.tensor([0.1, 0.5, 1e9], dtype=torch.float64)
    plain, clipped = objective.gradient(parameters), objective.clipped_gradient(parameters, limits)
    squared = objective.squared_gradient_norms(parameters)
    assert all(isinstance(found, ClientValues) for found in (plain, squared))
    assert opened(squared).shape == (3, 4, 12)
    for run, fed in enumerate([feds[0], feds[1], feds[0]]):
        for client, count in enumerate(fed.partition.counts):
            each = record_gradients(objective, fed, client, parameters[run, client])
            mean = each.sum(0) / max(count, 1)
            torch.testing.assert_close(opened(plain)[run, client], mean, rtol=0, atol=1e-12)
            expected = clipped_mean(each, limits[run].item(), count)
            torch.testing.assert_close(clipped.checked()[run, client], expected, rtol=0, atol=1e-12)
            torch.testing.assert_close(
                opened(squared)[run, client, :count], each.square().sum(1), rtol=0, atol=1e-12
            )
            assert (opened(squared)[run, client, count:] == 0).all()
    records = objective.records.clamp(min=1)
    torch.testing.assert_close(
        clipped.replace_one, 2 * limits.unsqueeze(1) / records, rtol=1e-15, atol=0
    )
    assert (clipped.checked().norm(dim=-1) <= limits.unsqueeze(1) * (1 + 1e-12)).all()


def test_minibatches_are_of_the_records_they_name(monkeypatch) -> None:
    monkeypatch.setattr(network.Network, "clipped_records", 2)
    fed = federation()
    objective = objective_of([fed], [0, 0])
    parameters, limits = scattered(objective), torch.tensor([0.2, 0.6], dtype=torch.float64)
    batch = torch.stack(
        [torch.randperm(12, generator=torch.Generator().manual_seed(k))[:5] for k in range(8)]
    ).view(2, 4, 5)
    batch[0, 2, 1] = -1
    clipped, plain = (
        objective.clipped_gradient(parameters, limits, batch),
        objective.gradient(parameters, batch),
    )
    squared = opened(objective.squared_gradient_norms(parameters, batch))
    for run in range(2):
        for client, count in enumerate(fed.partition.counts):
            each = record_gradients(objective, fed, client, parameters[run, client])
            own = (batch[run, client] >= 0) & (
                batch[run, client] < count
            )  # a number that is none of the client's records counts as no record
            each = each[batch[run, client][own]]
            torch.testing.assert_close(
                clipped.checked()[run, client],
                clipped_mean(each, limits[run].item(), 5),
                rtol=0,
                atol=1e-12,
            )
            torch.testing.assert_close(
                opened(plain)[run, client], each.sum(0) / 5, rtol=0, atol=1e-12
            )
            torch.testing.assert_close(
                squared[run, client][own], each.square().sum(1), rtol=0, atol=1e-12
            )
            assert (squared[run, client][~own] == 0).all()
    torch.testing.assert_close(
        clipped.replace_one, (2 * limits / 5).unsqueeze(1).expand(2, 4), rtol=1e-15, atol=0
    )


@pytest.mark.parametrize("kind", [Toy, Scaled, Segmenting])
@pytest.mark.parametrize("calls", [1, 3, 100], ids=lambda pairs: f"{pairs} clients a call")
def test_one_call_for_all_clients_is_one_for_each(kind, calls, monkeypatch) -> None:
    """What a GPU computes; of runs with one pool dealt in two ways, and another pool."""
    pixels = kind is Segmenting
    first = federation(pixels=pixels)
    feds = [
        first,
        federation([3, 8, 2, 0], seed=1, pixels=pixels, dataset=first.dataset),
        federation([3, 8, 0, 6], seed=2, pixels=pixels),
    ]
    objective = objective_of(feds, [0, 2, 1, 0], kind)
    monkeypatch.setattr(network, "PASS_BYTES", calls * 5 * objective._kept_bytes)
    generator = torch.Generator().manual_seed(3)
    batch = torch.stack([torch.randperm(12, generator=generator)[:5] for _ in range(16)])
    batch = batch.view(4, 4, 5)
    batch[0, 2, 0] = -1  # none of its records
    parameters = scattered(objective)
    found = objective._minibatches_at_once(parameters, batch)
    expected = opened(objective.gradient(parameters, batch))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    assert not found[0, 1].any()
    assert found[0, 2].any()


def test_a_last_client_without_records_takes_none_of_a_larger_pool() -> None:
    """Numbers of the second pool's records are beyond the first one."""
    feds = [federation([3, 0]), federation([8, 60], seed=1)]
    assert feds[1].partition.indices[0] >= len(feds[0].dataset.train)
    objective = objective_of(feds, [0, 1])
    batch = torch.arange(3).expand(2, 2, 3)
    parameters = scattered(objective)
    found = objective._minibatches_at_once(parameters, batch)
    expected = opened(objective.gradient(parameters, batch))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


def test_nobody_has_a_record_for_one_call() -> None:
    objective = objective_of([federation([0, 0])])
    batch = torch.zeros(1, 2, 3, dtype=torch.int64)
    assert not objective._minibatches_at_once(scattered(objective), batch).any()


@pytest.mark.parametrize("spoil", [np.nan, np.inf, 1e38])
def test_a_record_that_is_not_finite_counts_as_zero(spoil: float) -> None:
    fed = federation()
    train, spoilt = fed.dataset.train, int(fed.partition.indices[fed.partition.offsets[2] + 3])
    features = train.features.copy()
    features[spoilt] = spoil
    holed = Federation(
        Dataset(fed.dataset.info, Records(features, train.targets), None), fed.partition
    )

    class Linear(Toy):  # without a normalisation, which would tame 1e38
        dtype = torch.float32

        @classmethod
        def network(cls, settings, info):
            return nn.Sequential(nn.Flatten(), nn.Linear(24, CLASSES))

    objective, whole = objective_of([holed], kind=Linear), objective_of([fed], kind=Linear)
    parameters, limit = scattered(objective), torch.tensor([0.3])
    found = objective.clipped_gradient(parameters, limit).checked()[0]
    each = torch.cat(
        [
            record_gradients(whole, fed, 2, parameters[0, 2])[places]
            for places in (slice(3), slice(4, 12))
        ]
    )
    torch.testing.assert_close(found[2], clipped_mean(each, 0.3, 12), rtol=0, atol=1e-6)
    assert torch.equal(
        found[[0, 1, 3]], whole.clipped_gradient(parameters, limit).checked()[0, [0, 1, 3]]
    )
    assert opened(objective.squared_gradient_norms(parameters))[0, 2, 3].isposinf()
    # without clipping nothing is hidden; at 1e38 the gradient's entries are finite, its norm's
    # square is not
    assert bool(opened(objective.gradient(parameters))[0, 2].isfinite().all()) == (spoil == 1e38)
    assert opened(objective.gradient(parameters))[0, [0, 1, 3]].isfinite().all()


class Single(Toy):
    dtype = torch.float32


def test_bits_depend_neither_on_the_batch_of_runs_nor_on_threads() -> None:
    feds = [federation(), federation([3, 8, 0, 6], seed=1)]
    together = objective_of(feds, [1, 0, 1], Single)
    parameters, limits = scattered(together), torch.tensor([0.1, 0.2, 0.3])

    def all_of(objective: Network, runs: list[int]) -> list[Tensor]:
        own, limit = parameters[runs], limits[runs]
        return [
            opened(objective.gradient(own)),
            objective.clipped_gradient(own, limit).checked(),
            opened(objective.local_descent(own[:, 0], limit, 2)),
            *objective.metrics(own[:, 0]).values(),
        ]

    found = all_of(together, [0, 1, 2])
    alone = all_of(objective_of([feds[0]], [0], Single), [1])
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        threaded = all_of(together, [0, 1, 2])
    finally:
        torch.set_num_threads(before)
    for one, other, third in zip(found, alone, threaded, strict=True):
        assert torch.equal(one[1], other[0])
        assert torch.equal(one, third)


def test_metrics_are_means_over_clients_and_over_test_records() -> None:
    feds = [federation(), federation([3, 8, 0, 6], seed=1)]
    objective = objective_of(feds, [0, 1])
    models = scattered(objective)[:, 0]
    found = objective.metrics(models)
    assert set(found) == {"train_loss", "accuracy", "test_loss"}
    for run, fed in enumerate(feds):
        partition, train, test = fed.partition, fed.dataset.train, fed.dataset.test
        means = []
        for client in range(4):
            own = partition.indices[partition.offsets[client] : partition.offsets[client + 1]]
            losses = [loss_of(objective, models[run], train, int(number)) for number in own]
            means.append(sum(losses) / max(len(losses), 1))
        assert found["train_loss"][run].item() == pytest.approx(float(sum(means)) / 4, rel=1e-12)
        tested = [loss_of(objective, models[run], test, number) for number in range(10)]
        assert found["test_loss"][run].item() == pytest.approx(float(sum(tested)) / 10, rel=1e-12)
        assert 0 <= found["accuracy"][run].item() <= 100
    assert objective.private(found) == {"train_loss"}
    assert set(objective_of([federation(test=None)]).metrics(models[:1])) == {"train_loss"}
    segmenting = objective_of([federation(pixels=True)], kind=Segmenting)
    assert set(segmenting.metrics(scattered(segmenting)[:, 0])) == {"train_loss", "agreement"}


def test_parameters_that_need_no_gradient_are_constants() -> None:
    objective = objective_of([federation()])
    assert (
        objective.dimension
        == 4 * 9 + 4 + 4 + 4 + 32 * 3
        == Toy.dimension_of(None, federation().dataset.info)
    )
    assert (objective.module[4].bias == 0.25).all()


def test_a_pass_keeps_no_more_than_its_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "PASS_RECORDS", 1000)
    # For the backward pass a record's image (24 numbers), the normalisation's and tanh's outputs
    # (32 each) are kept, the mean and the deviation of two groups, three chances and a target.
    numbers = 24 + 32 + 32 + 2 * 2 + 3 + 1
    for records in (1, 10):
        monkeypatch.setattr(network, "PASS_BYTES", int(1.6 * records * numbers * 8))
        found = objective_of([federation()])._pass_records
        assert records <= found <= 2 * records
    monkeypatch.setattr(network, "PASS_BYTES", 1)
    assert objective_of([federation()])._pass_records == 1


def test_initial_values_are_of_the_layers_laws_and_of_the_run_alone() -> None:
    objective = objective_of([federation()], [0, 0, 0])
    torch.manual_seed(1)
    state = torch.get_rng_state()
    found = objective.initial(Streams([5, 6, 5]))
    assert torch.equal(torch.get_rng_state(), state)
    objective_of([federation()])
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(found[0], found[2])
    assert not torch.equal(found[0], found[1])
    convolution, affine = found[0, :40], found[0, 40:48]
    assert convolution.abs().max() <= 1 / 3
    assert (affine == torch.tensor([1.0] * 4 + [0.0] * 4)).all()
    assert found[0, 48:].abs().max() <= 32**-0.5


@pytest.mark.parametrize(
    ("layer", "bound"),
    [
        (nn.Linear(25, 400), 0.2),
        (nn.Conv2d(8, 100, 5, groups=2), 0.1),
        (nn.ConvTranspose2d(100, 4, 5), 0.1),
        (nn.LSTM(7, 25, 2), 0.2),
    ],
)
def test_uniform_laws_are_those_of_pytorch(layer: nn.Module, bound: float) -> None:
    values = list(default_values(layer, np.random.default_rng(0)))
    assert [value.shape for value in values] == [
        tuple(parameter.shape) for parameter in layer.parameters()
    ]
    assert 0.99 * bound < max(np.abs(value).max() for value in values) <= bound
    assert 0.99 * bound < max(parameter.abs().max() for parameter in layer.parameters()) <= bound
    flat = np.concatenate([value.ravel() for value in values])
    assert flat.std() == pytest.approx(bound / 3**0.5, rel=0.1)


def test_embeddings_and_unknown_layers() -> None:
    (values,) = default_values(nn.Embedding(500, 20, padding_idx=3), np.random.default_rng(0))
    assert (values[3] == 0).all()
    assert values.std() == pytest.approx(1.0, rel=0.05)
    (slopes,) = default_values(nn.PReLU(3), np.random.default_rng(0))
    assert slopes.tolist() == [0.25] * 3
    with pytest.raises(TypeError, match=r"Bilinear\.weight: no initial values are known"):
        list(default_values(nn.Bilinear(2, 2, 2), np.random.default_rng(0)))
