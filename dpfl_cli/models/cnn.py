"""Small CNNs on grey images, for federations of many clients.

Two ways to compute, tested equal: a compiled kernel for CPUs (`cnn_kernel`), and torch. Where the
kernel cannot be built that is `Network`, client after client; a GPU takes many clients at once, by
torch.func.vmap.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
import torch
from annotated_types import Len
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from dpfl_cli.config.component import Count, Settings, component
from dpfl_cli.config.errors import ConfigError
from dpfl_cli.data.devices import on_device
from dpfl_cli.data.federation import DatasetInfo, Federation, Partition, Records
from dpfl_cli.data.programs import built_or_none
from dpfl_cli.models.cnn_shape import DESCENT, EVALUATION, GRADIENT, CnnShape
from dpfl_cli.models.images import Images, image_classes
from dpfl_cli.models.network import Network
from dpfl_cli.models.objective import misfit
from dpfl_cli.privacy.client_values import ClientValues, client_values, opened

if TYPE_CHECKING:
    from dpfl_cli.models.cnn_kernel import CnnKernel

STACKED_RECORDS = 1 << 16  # records of the clients that a GPU computes at once
SMALLEST = 13  # side of an image, of which two convolutions and poolings leave something
EVALUATED = 256  # test records that the kernel takes as one client


class CnnSettings(Settings):
    """Settings of `model=mnist_cnn` and `model=mnist_cnn_small`."""

    channels: Annotated[list[Count], Len(2, 2)]
    hidden: Count | None
    activation: Literal["relu", "none"]


def shape_of(settings: CnnSettings, info: DatasetInfo) -> CnnShape:
    """The network's shape on a dataset; a ConfigError where the two do not fit."""
    channels, height, width, classes = image_classes("cnn", info, SMALLEST)
    if channels > 1:
        raise misfit("cnn", "grey images", info, "dataset=mnist")
    a, b = settings.channels
    relu = settings.activation == "relu"
    return CnnShape(height, width, (a, b), settings.hidden, classes, relu)


@component("model", "cnn", revision=2, settings=CnnSettings)
class CnnObjective(Images, Network):
    """Two 4x4 convolutions with max-pooling, then one or two fully connected layers;
    cross-entropy.
    """

    unreleased_metrics = frozenset()

    def __init__(self, settings: CnnSettings, federations: list[Federation], *rest: Any) -> None:
        super().__init__(settings, federations, *rest)
        self.shape = shape_of(settings, federations[0].dataset.info)
        self._stacked = self.device.type != "cpu"
        for federation in federations:
            if federation.dataset.test is None:
                raise ConfigError(
                    "model: a cnn is evaluated on test records, but dataset "
                    f"{federation.dataset.info.name} has none; choose dataset=mnist or another "
                    "model"
                )

    @classmethod
    def network(cls, settings: CnnSettings, info: DatasetInfo) -> nn.Module:
        shape = shape_of(settings, info)
        layers: list[nn.Module] = []
        for one in shape.layers[:2]:
            layers += [nn.Conv2d(one.inputs, one.outputs, one.weight_shape[2]), nn.MaxPool2d(2)]
            layers += [nn.ReLU()] if one.relu else []
        layers.append(nn.Flatten())
        for one in shape.layers[2:]:
            layers += [nn.Linear(one.inputs, one.outputs), *([nn.ReLU()] if one.relu else [])]
        return nn.Sequential(*layers)

    @classmethod
    def workspace(cls, settings: CnnSettings, info: DatasetInfo, clients: int) -> int:
        """Nothing that grows with the runs."""
        return 0

    def gradient(self, parameters: Tensor, batch: Tensor | None = None) -> ClientValues:
        found = None if batch is not None else self._at_once(opened(parameters))
        return super().gradient(parameters, batch) if found is None else client_values(found)

    def local_descent(
        self,
        start: Tensor,
        learning_rate: Tensor,
        steps: int,
        drift: Tensor | None = None,
        batches: Tensor | None = None,
    ) -> ClientValues:
        found = None
        if batches is None:
            shift = None if drift is None else opened(drift)
            rates = learning_rate.to(self.device, self.dtype)
            found = self._at_once(start.unsqueeze(1), rates, steps, shift)
        if found is None:
            return super().local_descent(start, learning_rate, steps, drift, batches)
        return client_values(found)

    def metrics(self, parameters: Tensor) -> dict[str, Tensor]:
        """accuracy [R] in percent and test_loss [R] (mean cross-entropy), both on the test
        split.
        """
        kernel = self._kernel()
        if kernel is None:
            return self._tested(parameters)
        rows = np.empty((self.runs, 2))
        for number, federation in enumerate(self.federations):
            test, runs = federation.dataset.test, np.flatnonzero(self.index == number)
            assert test is not None
            ends = np.append(np.arange(0, len(test), EVALUATED), len(test))
            out = np.empty((self.runs, len(ends) - 1, 2), np.float32)
            part = Partition(np.arange(len(test)), ends)
            start = _table(parameters.unsqueeze(1))
            kernel.compute(EVALUATION, *self._flat(test), part, runs, start, out)
            rows[runs] = out[runs].sum(axis=1, dtype=np.float64) / len(test)
        loss, right = torch.from_numpy(rows).to(self.dtype).unbind(1)
        return {"accuracy": 100.0 * right, "test_loss": loss}

    def _at_once(
        self,
        start: Tensor,
        rates: Tensor | None = None,
        steps: int = 1,
        drift: Tensor | None = None,
    ) -> Tensor | None:
        """Updates [R, M, d] from start [R, 1, d] or, without learning rates, gradients at start [R,
        M, d]: by the kernel, or many clients at once on a GPU. None where neither is there.
        """
        kernel = self._kernel()
        if kernel is not None:
            return self._compiled(kernel, start, rates, steps, drift)
        if not self._stacked:
            return None
        start = start.expand(-1, self.clients, -1)
        result = torch.empty_like(start, memory_format=torch.contiguous_format)
        for run, number in enumerate(self.index):
            federation = self.federations[number]
            counts = federation.partition.counts
            for bucket in federation.buckets():
                together = max(1, STACKED_RECORDS // max(1, int(counts[bucket].max())))
                for begin in range(0, len(bucket), together):
                    clients = bucket[begin : begin + together]
                    slope, place = (
                        self._slope_of(federation, clients),
                        on_device(clients, start.device),
                    )
                    first = start[run, place]
                    if rates is None:
                        result[run, place] = slope(first)
                        continue
                    shift, own = 0.0 if drift is None else drift[run, place], first.clone()
                    for _ in range(steps):
                        own -= rates[run] * (slope(own) + shift)
                    result[run, place] = own - first
        return result

    def _slope_of(self, federation: Federation, clients: np.ndarray) -> Callable[[Tensor], Tensor]:
        """Gradients [k, d] of the clients' mean losses at parameters [k, d]."""
        partition = federation.partition
        counts = partition.counts[clients, None]
        places = np.arange(counts.max())
        there = places < counts
        if not there.any():
            return torch.zeros_like
        numbers = partition.indices[np.where(there, partition.offsets[clients, None] + places, 0)]
        inputs, targets = self._records(federation.dataset.train, numbers.ravel())
        shares = on_device(there / np.maximum(counts, 1), self.device).to(self.dtype)

        def loss(own: Tensor, inputs: Tensor, targets: Tensor, shares: Tensor) -> Tensor:
            outputs = functional_call(self.module, self._named(own), (inputs,))
            return self.losses(outputs, targets) @ shares

        split = partial(Tensor.unflatten, dim=0, sizes=numbers.shape)
        given = split(inputs), split(targets), shares
        return lambda values: vmap(grad(loss))(values, *given)

    def _kernel(self) -> CnnKernel | None:
        """The compiled kernel, where it applies: float32 on a CPU, and numba works."""
        fits = self.device.type == "cpu" and self.dtype == torch.float32
        return compiled_kernel(self.shape) if fits else None

    def _compiled(
        self,
        kernel: CnnKernel,
        start: Tensor,
        rates: Tensor | None,
        steps: int,
        drift: Tensor | None,
    ) -> Tensor:
        out = np.empty((self.runs, self.clients, self.dimension), np.float32)
        for number, federation in enumerate(self.federations):
            runs, train = np.flatnonzero(self.index == number), federation.dataset.train
            kernel.compute(
                GRADIENT if rates is None else DESCENT,
                *self._flat(train),
                federation.partition,
                runs,
                _table(start),
                out,
                None if rates is None else rates.numpy(),
                None if drift is None else _table(drift),
                steps,
            )
        return torch.from_numpy(out)

    def _flat(self, records: Records) -> tuple[np.ndarray, np.ndarray]:
        """[N, pixels] images and [N] labels."""
        images, labels = self._pools.of(records)
        return images.flatten(1).numpy(), labels.numpy()


def _table(values: Tensor) -> np.ndarray:
    """Float32 in one piece, without a copy where the memory allows."""
    return values.detach().to(torch.float32).contiguous().numpy()


@cache
def compiled_kernel(shape: CnnShape) -> CnnKernel | None:
    """The kernel for a shape, or None, saying so once, where it cannot be built."""

    def make() -> CnnKernel:
        from dpfl_cli.models.cnn_kernel import CnnKernel  # the compiler takes its time to import

        return CnnKernel(shape)

    return built_or_none(make, "the CNN kernel", "using the torch path, which is slower")
