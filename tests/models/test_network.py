"""Networks given as a module: one call for all clients, passes, initial values, interrupts."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from dpfl_cli.data.federation import Federation
from dpfl_cli.data.streams import Streams
from dpfl_cli.models import network
from dpfl_cli.models.modules import default_values
from dpfl_cli.models.network import Network
from dpfl_cli.privacy.client_values import client_values, opened
from tests.models.small import federation_of, points
from tests.models.toys import GREY, PIXELS, Scaled, Segmenting, Toy

COUNTS = [5, 0, 12, 1]


@pytest.fixture(autouse=True)
def _several_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "PASS_RECORDS", 4)


def objective_of(feds: list[Federation], index: Any = (0,), kind: type[Network] = Toy) -> Network:
    return kind(SimpleNamespace(), feds, np.array(index))


@pytest.mark.parametrize("kind", [Toy, Scaled, Segmenting])
@pytest.mark.parametrize("calls", [1, 3, 100], ids=lambda pairs: f"{pairs} clients a call")
def test_one_call_for_all_clients_is_one_for_each(kind, calls, monkeypatch) -> None:
    """What a GPU computes; of runs with one pool dealt in two ways, and another pool."""
    data = PIXELS if kind is Segmenting else GREY
    first = federation_of(COUNTS, **data)
    feds = [
        first,
        federation_of([3, 8, 2, 0], 1, dataset=first.dataset, **data),
        federation_of([3, 8, 0, 6], 2, **data),
    ]
    objective = objective_of(feds, [0, 2, 1, 0], kind)
    monkeypatch.setattr(network, "PASS_BYTES", calls * 5 * objective._kept_bytes)
    generator = torch.Generator().manual_seed(3)
    batch = torch.stack([torch.randperm(12, generator=generator)[:5] for _ in range(16)])
    batch = batch.view(4, 4, 5)
    batch[0, 2, 0] = -1  # none of its records
    parameters = points(objective, scale=0.5)
    found = objective._minibatches_at_once(parameters, batch)
    expected = opened(objective.gradient(parameters, batch))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    assert not found[0, 1].any()
    assert found[0, 2].any()


def test_a_last_client_without_records_takes_none_of_a_larger_pool() -> None:
    """Numbers of the second pool's records are beyond the first one."""
    feds = [federation_of([3, 0], **GREY), federation_of([8, 60], 1, **GREY)]
    assert feds[1].partition.indices[0] >= len(feds[0].dataset.train)
    objective = objective_of(feds, [0, 1])
    batch = torch.arange(3).expand(2, 2, 3)
    parameters = points(objective, scale=0.5)
    found = objective._minibatches_at_once(parameters, batch)
    expected = opened(objective.gradient(parameters, batch))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


def test_a_record_whose_squared_norm_overflows_counts_as_zero() -> None:
    """Its gradient's entries are finite, and so is what nobody clips."""
    fed = federation_of(COUNTS, **GREY)
    train, spoilt = fed.dataset.train, int(fed.partition.indices[fed.partition.offsets[2] + 3])
    train.features[spoilt] = 1e38

    class Linear(Toy):  # without a normalisation, which would tame it
        dtype = torch.float32

        @classmethod
        def network(cls, settings: Any, info: Any) -> nn.Module:
            return nn.Sequential(nn.Flatten(), nn.Linear(24, 3))

    objective = objective_of([fed], kind=Linear)
    at, limit = points(objective, scale=0.5), torch.tensor([0.3])
    found = objective.clipped_gradient(at, limit).checked()
    assert opened(objective.squared_gradient_norms(at))[0, 2, 3].isposinf()
    assert opened(objective.gradient(at)).isfinite().all()
    train.features[spoilt] = np.nan
    assert torch.equal(
        objective_of([fed], kind=Linear).clipped_gradient(at, limit).checked(), found
    )


def test_parameters_that_need_no_gradient_are_constants() -> None:
    objective = objective_of([federation_of(COUNTS, **GREY)])
    assert (
        objective.dimension
        == 4 * 9 + 4 + 4 + 4 + 32 * 3
        == Toy.dimension_of(None, federation_of(COUNTS, **GREY).dataset.info)
    )
    assert (objective.module[4].bias == 0.25).all()


def test_a_pass_keeps_no_more_than_its_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "PASS_RECORDS", 1000)
    # For the backward pass a record's image (24 numbers), the normalisation's and tanh's outputs
    # (32 each) are kept, the mean and the deviation of two groups, three chances and a target.
    numbers = 24 + 32 + 32 + 2 * 2 + 3 + 1
    for records in (1, 10):
        monkeypatch.setattr(network, "PASS_BYTES", int(1.6 * records * numbers * 8))
        found = objective_of([federation_of(COUNTS, **GREY)])._pass_records
        assert records <= found <= 2 * records
    monkeypatch.setattr(network, "PASS_BYTES", 1)
    assert objective_of([federation_of(COUNTS, **GREY)])._pass_records == 1


def test_initial_values_are_of_the_layers_laws_and_of_the_run_alone() -> None:
    objective = objective_of([federation_of(COUNTS, **GREY)], [0, 0, 0])
    torch.manual_seed(1)
    state = torch.get_rng_state()
    found = objective.initial(Streams([5, 6, 5]))
    assert torch.equal(torch.get_rng_state(), state)
    objective_of([federation_of(COUNTS, **GREY)])
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


def test_after_an_interrupt_the_next_call_is_right() -> None:
    class Interrupted(Toy):
        broken = False

        def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
            if self.broken:
                raise KeyboardInterrupt
            return super().losses(outputs, targets)

    objective = objective_of([federation_of([5, 3, 7], **GREY)], [0, 0], Interrupted)
    at, batch = client_values(points(objective)), torch.arange(3).expand(2, 3, 3)
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
    objective = objective_of([federation_of([5, 3, 7], **GREY)])
    at, batch = client_values(points(objective)), torch.arange(3).expand(1, 3, 3)
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
