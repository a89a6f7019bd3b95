"""Small CNNs on grey images, for federations of many clients.

Two ways to compute, tested equal: a compiled kernel (`cnn_kernel`), on the host whatever the device
is, and, where it cannot be built, torch client after client (`Network`).
"""

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Annotated, Any, Literal

import numpy as np
import torch
from annotated_types import Len
from torch import Tensor, nn

from dpfl_cli.config.component import Count, Settings, component
from dpfl_cli.data.federation import DatasetInfo, Federation, Partition, Records
from dpfl_cli.data.programs import built_or_none
from dpfl_cli.data.threads import even_parts, in_threads
from dpfl_cli.models.cnn_shape import DESCENT, EVALUATION, GRADIENT, KERNEL, CnnShape
from dpfl_cli.models.images import ImageInputs, image_classes
from dpfl_cli.models.network import Network
from dpfl_cli.models.objective import ByName, misfit
from dpfl_cli.models.pools import Pools
from dpfl_cli.privacy.client_values import ClientValues, client_values, opened

Kernel = Callable[..., None]  # as `cnn_kernel` makes it
NO_RATES = torch.zeros(0)
SMALLEST = 13  # side of an image, of which two convolutions and poolings leave something
EVALUATED = 256  # test records that the kernel takes as one client
PARTS = 32  # of a thread's work: small, so that no thread waits long for the others
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
        return client_values(self._computed(kernel, GRADIENT, opened(parameters)).to(self.device))

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
        shift = None if drift is None else opened(drift)
        moved = self._computed(kernel, DESCENT, start.unsqueeze(1), learning_rate, shift, steps)
        return client_values(moved.to(self.device))

    def metrics(self, parameters: Tensor) -> ByName:
        """accuracy [R] in percent and test_loss [R] (mean cross-entropy), both on the test split;
        where a federation has none, what other networks have.
        """
        tests = [one.dataset.test for one in self.federations if one.dataset.test is not None]
        if len(tests) < len(self.federations):
            return super().metrics(parameters)
        kernel = self._kernel()
        if kernel is None:
            return self._tested(parameters)
        found = self._computed(kernel, EVALUATION, parameters.unsqueeze(1), tests=tests)
        sizes = np.array([len(test) for test in tests])[self.index]
        means = found.numpy().sum(axis=1, dtype=np.float64) / sizes[:, None]
        loss, right = torch.from_numpy(means).to(self.device, self.dtype).unbind(1)
        return {"accuracy": 100.0 * right, "test_loss": loss}

    def _kernel(self) -> Kernel | None:
        """The compiled kernel, where it applies: float32, numba works, and no subclass says
        otherwise what the kernel computes.
        """
        kinds = type(self).__mro__
        own = any(KERNELS & vars(kind).keys() for kind in kinds[: kinds.index(CnnObjective)])
        return None if own or self.dtype != torch.float32 else compiled_kernel(self.shape)

    def _computed(
        self,
        kernel: Kernel,
        mode: int,
        start: Tensor,
        rates: Tensor = NO_RATES,
        drift: Tensor | None = None,
        steps: int = 1,
        tests: Sequence[Records] = (),
    ) -> Tensor:
        """What the kernel makes, on the host: [R, M, d] of the clients' records, or of each
        federation's test records, in pieces, [R, pieces, 2]; as `cnn_kernel` has it. The numbers do
        not depend on the threads.
        """
        held = [(federation.dataset.train, federation.partition) for federation in self.federations]
        if tests:
            held = [(test, _pieces(len(test))) for test in tests]
        most = max(part.clients for _, part in held)
        out = np.zeros((self.runs, most, 2 if tests else self.dimension), np.float32)
        shift = torch.zeros(1, 1, self.dimension) if drift is None else drift
        numbers = _table(start), _table(rates), _table(shift), steps, out
        threads = torch.get_num_threads()
        for number, (records, part) in enumerate(held):
            images, labels = self._host.of(records)
            whose = part.indices, part.offsets, np.flatnonzero(self.index == number)
            call = partial(
                kernel, mode, images.flatten(1).numpy(), labels.numpy(), *whose, *numbers
            )
            jobs = even_parts(len(whose[-1]) * part.clients, PARTS * threads)
            in_threads(call, jobs, threads)
        return torch.from_numpy(out)


def _pieces(records: int) -> Partition:
    """All records, so many to a client that threads share them."""
    return Partition(np.arange(records), np.append(np.arange(0, records, EVALUATED), records))


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
