"""Minibatch gradients and local runs on them, of every model, against plain loops over clients in
float64.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.func import functional_call

from dpfl_cli.data.federation import Dataset, DatasetInfo, Federation, Partition, Records
from dpfl_cli.data.streams import Streams
from dpfl_cli.models import network
from dpfl_cli.models.client_side import ClientSide
from dpfl_cli.models.cnn5x5 import Cnn5x5
from dpfl_cli.models.lstm2 import Lstm2
from dpfl_cli.models.mobilenet import MobileNet
from dpfl_cli.models.network import Network
from dpfl_cli.models.objective import Objective
from dpfl_cli.models.unet3d import Unet3d
from dpfl_cli.models.vgg11 import Vgg11
from dpfl_cli.privacy.client_values import ClientValues, client_values, opened
from tests.models import test_client_mean as networks
from tests.models import test_linear as linear
from tests.models import test_logistic as logistic
from tests.models import test_mlp as mlp
from tests.models import test_mobilenet as mobilenet
from tests.models import test_softmax as softmax
from tests.padding import own_records

UNEQUAL, ALONE = [5, 3, 7], [6]
RUNS = {"R=1": [0], "R=2": [0, 1], "R=7": [0, 1, 0, 1, 1, 0, 0]}
KINDS = [Cnn5x5, Vgg11, Unet3d, Lstm2, MobileNet]
# MobileNet's fifty normalisations of few numbers enlarge rounding: in float32 it is not right to
# 1e-4
PRECISIONS = [(kind, torch.float64, 1e-9) for kind in KINDS] + [
    (kind, torch.float32, 1e-4) for kind in KINDS[:-1]
]
SIZE = 3  # of a batch


def pictures(counts: list[int]) -> Federation:
    generator, total = np.random.default_rng(1), sum(counts)
    train = Records(generator.random((total, 16, 16), np.float32), generator.integers(0, 10, total))
    ends = np.cumsum(counts)
    parts = [np.arange(end - count, end) for end, count in zip(ends, counts, strict=True)]
    return Federation(
        Dataset(DatasetInfo("toy", "synthetic", "", (16, 16), 10, total, None), train, None),
        Partition.from_lists(parts),
    )


def network_of(
    kind: type[Network], counts: list[int], index: list[int], dtype: torch.dtype = torch.float32
) -> Network:
    """A network on as many federations as the index names."""
    if dtype != kind.dtype:
        kind = type(kind.__name__, (kind,), {"dtype": dtype})
    if issubclass(kind, MobileNet):
        return kind(
            mobilenet.settings_of(width=0.1), [pictures(counts)] * (max(index) + 1), np.array(index)
        )
    known = next(one for one in KINDS if issubclass(kind, one))
    federations = [
        networks.federation_of(known, counts, [1] * len(counts)) for _ in range(max(index) + 1)
    ]
    return kind(networks.settings_of(known), federations, np.array(index))


def points(objective: Objective, seed: int = 0) -> Tensor:
    """[R, M, d] parameters that differ between runs and clients: initial values, disturbed."""
    start = objective.initial(Streams([3 + run for run in range(objective.runs)])).unsqueeze(1)
    noise = torch.randn(
        objective.runs,
        objective.clients,
        objective.dimension,
        generator=torch.Generator().manual_seed(seed),
    )
    return start + 0.01 * noise.to(start.dtype)


def drawn(objective: Objective, step: int = 1, size: int = SIZE) -> Tensor:
    """[R, M, b] as algorithms draw them."""
    rounds = np.full(objective.runs, step)
    return Streams(list(range(objective.runs))).subset(
        "batch", rounds, objective.clients, objective.held, size
    )


def slow_gradient(
    objective: Network, run: int, client: int, values: Tensor, numbers: list[int]
) -> Tensor:
    """[d] in float64: the mean of the records' gradients, one after another."""
    federation = objective.federations[objective.index[run]]
    own = federation.partition.indices[
        federation.partition.offsets[client] : federation.partition.offsets[client + 1]
    ]
    module = copy.deepcopy(objective.module).double()
    total = torch.zeros(len(values), dtype=torch.float64)
    for number in own[numbers]:
        train = federation.dataset.train
        image = torch.from_numpy(train.features[number : number + 1])
        image = image.double() if image.is_floating_point() else image
        leaf, named, start = values.double().clone().requires_grad_(), {}, 0
        for name, parameter in module.named_parameters():
            named[name] = leaf[start : start + parameter.numel()].view(parameter.shape)
            start += parameter.numel()
        outputs = functional_call(module, named, (objective.inputs(image),))
        loss = objective.losses(outputs, torch.from_numpy(train.targets[number : number + 1]))[0]
        total += torch.autograd.grad(loss, leaf)[0] / len(numbers)
    return total


def close(found: Tensor, wanted: Tensor, tolerance: float) -> None:
    """In norm, relative to what is wanted."""
    assert float((found.double() - wanted.double()).norm()) <= tolerance * float(wanted.norm())


@pytest.mark.parametrize("counts", [UNEQUAL, ALONE], ids=["unequal", "one client"])
@pytest.mark.parametrize(
    ("kind", "dtype", "tolerance"),
    PRECISIONS,
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_a_networks_minibatch_gradient_is_the_mean_of_its_records(
    kind, dtype, tolerance, counts: list[int]
) -> None:
    objective = network_of(kind, counts, [0, 1], dtype)
    at, batch = points(objective), drawn(objective)
    found = ClientSide(objective).gradient(client_values(at), batch)
    assert isinstance(found, ClientValues)
    for run, client in np.ndindex(2, len(counts)):
        wanted = slow_gradient(objective, run, client, at[run, client], batch[run, client].tolist())
        close(opened(found)[run, client], wanted, tolerance)


@pytest.mark.parametrize("drifting", [False, True])
def test_a_networks_local_run_is_that_of_the_loop(drifting: bool) -> None:
    """Of one kind: all take the definition's steps."""
    objective, steps = network_of(Cnn5x5, UNEQUAL, [0, 1], torch.float64), 2
    start, rates = points(objective)[:, 0], torch.tensor([0.02, 0.05]).double()
    batches = torch.stack([drawn(objective, step) for step in range(steps)], dim=2)
    drift = points(objective, 1) - points(objective, 2) if drifting else None
    marked = None if drift is None else client_values(drift)
    found = opened(ClientSide(objective).local_descent(start, rates, steps, marked, batches))
    for run, client in np.ndindex(2, len(UNEQUAL)):
        values = start[run]
        for step in range(steps):
            slope = slow_gradient(
                objective, run, client, values, batches[run, client, step].tolist()
            )
            values = values - rates[run] * (slope if drift is None else slope + drift[run, client])
        close(found[run, client], values - start[run], 1e-9)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_batch_of_all_records_gives_the_full_gradient(
    kind: type[Network], monkeypatch: pytest.MonkeyPatch
) -> None:
    objective = network_of(kind, [4, 4], [0, 1], torch.float64)
    at, batch = points(objective), torch.arange(4).expand(2, 2, 4)
    full = opened(objective.gradient(client_values(at)))
    close(opened(objective.gradient(client_values(at), batch)), full, 1e-10)
    monkeypatch.setattr(network, "PASS_RECORDS", 3)  # a batch in several passes
    objective = network_of(kind, [4, 4], [0, 1], torch.float64)
    at = points(objective)
    full = opened(objective.gradient(client_values(at)))
    close(opened(objective.gradient(client_values(at), batch)), full, 1e-10)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_bits_depend_neither_on_company_nor_on_threads(kind: type[Network]) -> None:
    objective = network_of(kind, UNEQUAL, RUNS["R=7"])
    at, rates = points(objective), torch.linspace(0.01, 0.07, 7)
    batches = torch.stack([drawn(objective, step) for step in range(2)], dim=2)

    def both(runs: list[int]) -> list[Tensor]:
        some = kind(objective.settings, objective.federations, objective.index[runs])
        slope = some.gradient(client_values(at[runs]), batches[runs][:, :, 0])
        return [
            opened(slope),
            opened(some.local_descent(at[runs][:, 0], rates[runs], 2, None, batches[runs])),
            opened(some.local_descent(at[runs][:, 0], rates[runs], 2)),
            some.initial(Streams(runs)),
            *some.metrics(at[runs][:, 0]).values(),
        ]

    together = both(list(range(7)))
    for runs in ([3], [1, 2]):
        assert all(
            torch.equal(some, whole[runs]) for some, whole in zip(both(runs), together, strict=True)
        )
    before = torch.get_num_threads()
    try:
        for number in (1, 3):
            torch.set_num_threads(number)
            assert all(
                torch.equal(some, whole[[1, 2]])
                for some, whole in zip(both([1, 2]), together, strict=True)
            )
    finally:
        torch.set_num_threads(before)


def test_after_an_interrupt_the_next_call_is_right() -> None:
    class Interrupted(Cnn5x5):
        broken = False

        def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
            if self.broken:
                raise KeyboardInterrupt
            return super().losses(outputs, targets)

    whole = network_of(Cnn5x5, UNEQUAL, [0, 1])
    objective = Interrupted(whole.settings, whole.federations, whole.index)
    at, batch = client_values(points(objective)), drawn(objective)
    wanted = opened(objective.gradient(at, batch))
    before = torch.get_num_threads()
    objective.broken = True
    with pytest.raises(KeyboardInterrupt):
        objective.gradient(at, batch)
    assert torch.get_num_threads() == before
    objective.broken = False
    assert torch.equal(opened(objective.gradient(at, batch)), wanted)


@pytest.mark.skipif(
    not hasattr(os, "fork") or torch.cuda.is_available(),
    reason="this system has no fork, or a GPU's torch refuses derivatives after one",
)
def test_a_forked_process_has_threads_of_its_own() -> None:
    objective = network_of(Cnn5x5, UNEQUAL, [0])
    at, batch = client_values(points(objective)), drawn(objective)
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # OpenMP's own threads do not outlive a fork
    try:
        wanted = opened(objective.gradient(at, batch))
        child = os.fork()
        if child == 0:
            same = False
            try:
                same = torch.equal(opened(objective.gradient(at, batch)), wanted)
            finally:
                os._exit(0 if same else 1)  # whatever happens: it must not go on with the tests
        assert os.waitpid(child, 0)[1] == 0
    finally:
        torch.set_num_threads(before)


# Models whose minibatch gradient is their clipped one without a bound


def linear_case(
    counts: list[int], index: list[int]
) -> tuple[Objective, Callable[[int, int, Tensor], Tensor]]:
    objective = linear.make_objective(counts, index)

    def each(run: int, client: int, at: Tensor) -> Tensor:
        features, targets = own_records(objective.federations[objective.index[run]], client)
        return torch.from_numpy((features @ at.numpy() - targets)[:, None] * features)

    return objective, each


def logistic_case(
    counts: list[int], index: list[int]
) -> tuple[Objective, Callable[[int, int, Tensor], Tensor]]:
    objective = logistic.make_objective(counts, index)
    return (
        objective,
        lambda run, client, at: (
            torch.stack(logistic.record_gradients(objective, run, client, at)) + 0.1 * at
        ),
    )


def softmax_case(
    counts: list[int], index: list[int]
) -> tuple[Objective, Callable[[int, int, Tensor], Tensor]]:
    objective = softmax.make_objective(counts, index, precision="float64", l2=0.3)

    def each(run: int, client: int, at: Tensor) -> Tensor:
        return softmax.record_gradients(*softmax.records_of(objective, run, client), at) + 0.3 * at

    return objective, each


def mlp_case(
    counts: list[int], index: list[int]
) -> tuple[Objective, Callable[[int, int, Tensor], Tensor]]:
    federations = [mlp.federation(counts, seed) for seed in range(max(index) + 1)]
    objective = mlp.objective_of(mlp.settings_of(l2=0.2), federations, tuple(index))

    def each(run: int, client: int, at: Tensor) -> Tensor:
        return (
            mlp.record_gradients(objective.settings, federations[index[run]], client, at) + 0.2 * at
        )

    return objective, each


@pytest.mark.parametrize("index", RUNS.values(), ids=RUNS)
@pytest.mark.parametrize(
    "case",
    [linear_case, logistic_case, softmax_case, mlp_case],
    ids=lambda case: case.__name__[:-5],
)
def test_minibatches_of_other_models_have_the_regulariser_and_no_bound(
    case, index: list[int]
) -> None:
    objective, each = case(UNEQUAL, index)
    assert objective.dtype == torch.float64
    at = 100.0 * points(objective) + 1.0  # gradients far from short
    side, batch = ClientSide(objective), drawn(objective)
    found = opened(side.gradient(client_values(at), batch))
    for run, client in np.ndindex(len(index), len(UNEQUAL)):
        wanted = each(run, client, at[run, client])[batch[run, client]].mean(dim=0)
        torch.testing.assert_close(found[run, client], wanted, rtol=1e-10, atol=1e-10)
    # a local run, step by step
    start, rates = at[:, 0], torch.linspace(0.01, 0.05, len(index), dtype=torch.float64)
    batches = torch.stack([drawn(objective, step) for step in range(3)], dim=2)
    update = opened(side.local_descent(start, rates, 3, None, batches))
    for run, client in np.ndindex(len(index), len(UNEQUAL)):
        values = start[run]
        for step in range(3):
            values = values - rates[run] * each(run, client, values)[
                batches[run, client, step]
            ].mean(dim=0)
        torch.testing.assert_close(update[run, client], values - start[run], rtol=1e-10, atol=1e-10)
