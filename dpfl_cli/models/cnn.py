"""Small CNNs on grey images, for federations of many clients.

Two ways to compute, tested equal: a compiled kernel (`cnn_kernel`), on the host whatever the device
is, and, where it cannot be built, torch client after client (`Network`).
"""

from collections.abc import Callable
from functools import cache
from typing import Annotated, Any, Literal

import numpy as np
import torch
from annotated_types import Len
from torch import Tensor, nn

from dpfl_cli.config.component import Count, Settings, component
from dpfl_cli.data.federation import DatasetInfo, Federation, Partition, Records
from dpfl_cli.data.programs import built_or_none
from dpfl_cli.models.cnn_shape import DESCENT, EVALUATION, GRADIENT, KERNEL, CnnShape
from dpfl_cli.models.images import ImageInputs, image_classes
from dpfl_cli.models.network import Network
from dpfl_cli.models.objective import ByName, misfit
from dpfl_cli.models.pools import Pools
from dpfl_cli.privacy.client_values import ClientValues, client_values, opened

Kernel = Callable[..., None]  # as `cnn_kernel` makes it
SMALLEST = 13  # side of an image, of which two convolutions and poolings leave something
EVALUATED = 256  # test records that the kernel takes as one client
KERNELS = {"network", "inputs", "losses", "scores"}  # what the kernel knows as they are here


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


@component("model", "cnn", CnnSettings, revision=2)
class CnnObjective(ImageInputs, Network):
    """Two 4x4 convolutions with max-pooling, then one or two fully connected layers;
    cross-entropy.
    """

    def __init__(self, settings: CnnSettings, federations: list[Federation], *rest: Any) -> None:
        super().__init__(settings, federations, *rest)
        self.shape = shape_of(settings, self.info)
        self._host = Pools(torch.device("cpu"), torch.float32)

    @classmethod
    def network(cls, settings: CnnSettings, info: DatasetInfo) -> nn.Module:
        shape = shape_of(settings, info)
        layers: list[nn.Module] = []
        for one in shape.layers:
            if len(one.weight_shape) > 2:
                layers += [nn.Conv2d(one.inputs, one.outputs, KERNEL), nn.MaxPool2d(2)]
            else:
                layers += [nn.Flatten(), nn.Linear(one.inputs, one.outputs)]
            layers += [nn.ReLU()] if one.relu else []
        return nn.Sequential(*layers)

    @classmethod
    def workspace(cls, settings: CnnSettings, info: DatasetInfo, clients: int) -> int:
        """Nothing that grows with the runs."""
        return 0

    def gradient(self, parameters: Tensor, batch: Tensor | None = None) -> ClientValues:
        kernel = self._kernel()
        if kernel is None or batch is not None:
            return super().gradient(parameters, batch)
        return self._computed(kernel, GRADIENT, opened(parameters))

    def local_descent(
        self,
        start: Tensor,
        learning_rate: Tensor,
        steps: int,
        drift: Tensor | None = None,
        batches: Tensor | None = None,
    ) -> ClientValues:
        """As the definition, which is used where a subclass says anew what a gradient is."""
        kernel, known = self._kernel(), type(self).gradient is CnnObjective.gradient
        if kernel is None or not known or batches is not None:
            return super().local_descent(start, learning_rate, steps, drift, batches)
        shift = None if drift is None else _table(opened(drift))
        rates = _table(learning_rate)
        return self._computed(kernel, DESCENT, start.unsqueeze(1), rates, shift, steps)

    def metrics(self, parameters: Tensor) -> ByName:
        """accuracy [R] in percent and test_loss [R] (mean cross-entropy), both on the test split;
        where a federation has none, what other networks have.
        """
        if any(federation.dataset.test is None for federation in self.federations):
            return super().metrics(parameters)
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
            kernel(EVALUATION, *self._flat(test), part, runs, start, out)
            rows[runs] = out[runs].sum(axis=1, dtype=np.float64) / len(test)
        loss, right = torch.from_numpy(rows).to(self.device, self.dtype).unbind(1)
        return {"accuracy": 100.0 * right, "test_loss": loss}

    def _kernel(self) -> Kernel | None:
        """The compiled kernel, where it applies: float32, numba works, and no subclass says
        otherwise what the kernel computes.
        """
        kinds = type(self).__mro__
        own = any(KERNELS & vars(kind).keys() for kind in kinds[: kinds.index(CnnObjective)])
        return None if own or self.dtype != torch.float32 else compiled_kernel(self.shape)

    def _computed(self, kernel: Kernel, mode: int, start: Tensor, *numbers: Any) -> ClientValues:
        """[R, M, d] what the kernel makes of the clients' records; `numbers` as it takes them."""
        first, out = _table(start), np.empty((self.runs, self.clients, self.dimension), np.float32)
        for number, federation in enumerate(self.federations):
            runs, records = np.flatnonzero(self.index == number), federation.dataset.train
            partition = federation.partition
            kernel(mode, *self._flat(records), partition, runs, first, out, *numbers)
        return client_values(torch.from_numpy(out).to(self.device))

    def _flat(self, records: Records) -> tuple[np.ndarray, np.ndarray]:
        """[N, pixels] images and [N] labels."""
        images, labels = self._host.of(records)
        return images.flatten(1).numpy(), labels.numpy()


def _table(values: Tensor) -> np.ndarray:
    """Float32 on the host in one piece, without a copy where the memory allows."""
    return values.detach().to("cpu", torch.float32).contiguous().numpy()


@cache
def compiled_kernel(shape: CnnShape) -> Kernel | None:
    """The kernel for a shape, or None, saying so once, where it cannot be built."""

    def make() -> Kernel:
        from dpfl_cli.models.cnn_kernel import cnn_kernel  # the compiler takes its time to import

        return cnn_kernel(shape)

    return built_or_none(make, "the CNN kernel", "using the torch path, which is slower")
