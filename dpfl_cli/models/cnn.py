"""Small CNNs on grey images, with weights of its own for every run and client.

Two ways to compute, tested equal: a compiled kernel for CPUs (`cnn_kernel`), and stacked tensor operations for any
device (`cnn_torch`), which also serve where the kernel cannot be built.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from math import ceil, sqrt
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional

from dpfl_cli.config.component import Settings, component
from dpfl_cli.config.errors import ConfigError
from dpfl_cli.data.devices import on_device
from dpfl_cli.data.federation import DatasetInfo, Federation, Records
from dpfl_cli.data.programs import built_or_none
from dpfl_cli.data.streams import Streams
from dpfl_cli.models.cnn_shape import CnnShape
from dpfl_cli.models.cnn_torch import Batch, StackedCnn, Workbench, Workspace
from dpfl_cli.models.objective import Objective
from dpfl_cli.privacy.client_values import ClientValues, client_values, opened

if TYPE_CHECKING:
    from dpfl_cli.models.cnn_kernel import CnnKernel

CPU_BLOCK = 12 << 20  # bytes of workspace for each thread: what stays in a CPU's cache is faster than what is larger
DEVICE_BLOCK = 2 << 30
KEPT_BLOCKS = 4  # as many blocks of a large client's patches stay between local steps
EVALUATION_CHUNK = 256  # test records in one job of the kernel


class CnnSettings(Settings):
    """Settings of `model=mnist_cnn` and `model=mnist_cnn_small`."""

    channels: Annotated[list[Annotated[int, Field(ge=1)]], Field(min_length=2, max_length=2)]
    hidden: Annotated[int, Field(ge=1)] | None
    activation: Literal["relu", "none"]


def shape_of(settings: CnnSettings, info: DatasetInfo) -> CnnShape:
    """The network's shape on a dataset; a ConfigError where the two do not fit."""
    if len(info.feature_shape) != 2 or info.classes is None:
        kind = "no classes" if info.classes is None else f"{info.classes} classes"
        raise ConfigError(
            f"model: a cnn needs grey images [height, width] with classes, but dataset {info.name} has records of shape "
            f"{list(info.feature_shape)} and {kind}; choose dataset=mnist or another model"
        )
    height, width = info.feature_shape
    a, b = settings.channels
    shape = CnnShape(height, width, (a, b), settings.hidden, info.classes, settings.activation == "relu")
    if min(shape.second) < 1:
        raise ConfigError(
            f"model: a cnn with two 4x4 convolutions and poolings needs images of at least 13x13, but dataset {info.name} has "
            f"{height}x{width}; choose dataset=mnist or another model"
        )
    return shape


def _test(federation: Federation) -> Records:
    if federation.dataset.test is None:
        raise ConfigError(
            f"model: a cnn is evaluated on test records, but dataset {federation.dataset.info.name} has none; "
            "choose dataset=mnist or another model"
        )
    return federation.dataset.test


@dataclass(frozen=True)
class _Block:
    """Clients of one federation, with `chunks` of `size` records each (the last of a client's records may end before)."""

    federation: int
    clients: np.ndarray  # [k]
    chunks: int
    size: int


@component("model", "cnn", revision=1, settings=CnnSettings)
class CnnObjective(Objective):
    """Two 4x4 convolutions with max-pooling, then one or two fully connected layers; cross-entropy."""

    dtype = torch.float32

    def __init__(
        self, settings: CnnSettings, federations: list[Federation], index: np.ndarray, device: torch.device | str = "cpu"
    ) -> None:
        super().__init__(settings, federations, index, device)
        self.shape = shape_of(settings, federations[0].dataset.info)
        self.dimension = self.shape.dimension
        self._stacked = StackedCnn(self.shape, self.dtype, self.device)
        self._tests = [_test(federation) for federation in federations]
        self._pools: dict[int, tuple[Tensor, Tensor]] = {}  # by identity of the records: runs share the bytes

    @classmethod
    def dimension_of(cls, settings: CnnSettings, info: DatasetInfo) -> int:
        return shape_of(settings, info).dimension

    def initial(self, streams: Streams) -> Tensor:
        """U(-1/sqrt(fan_in), 1/sqrt(fan_in)) for weights and biases, the default of PyTorch's layers."""
        rows = np.empty((self.runs, self.dimension))
        for run in range(self.runs):
            generator = streams.generator(run, "init")
            for layer in self.shape.layers:
                bound = 1.0 / sqrt(layer.fan_in)
                rows[run, layer.weight.start : layer.bias.stop] = generator.uniform(
                    -bound, bound, layer.bias.stop - layer.weight.start
                )
        return torch.from_numpy(rows).to(self.device, self.dtype)

    def gradient(self, parameters: Tensor) -> ClientValues:
        values = opened(parameters)
        kernel = self._kernel()
        if kernel is not None:
            return client_values(self._compiled(kernel, values))
        out = torch.zeros(self.runs, self.clients, self.dimension, dtype=self.dtype, device=self.device)

        def compute(runs: Tensor, clients: Tensor, parameters: Tensor, slope: Callable[[], Tensor]) -> None:
            parameters.copy_(values[runs, clients].flatten(0, 1))
            out[runs, clients] = slope().unflatten(0, (len(clients), -1))

        self._each_block(compute)
        return client_values(out)

    def local_descent(self, start: Tensor, learning_rate: Tensor, steps: int, drift: Tensor | None = None) -> ClientValues:
        shift = None if drift is None else opened(drift)
        rates = learning_rate.to(self.device, self.dtype)
        kernel = self._kernel()
        if kernel is not None:
            return client_values(self._compiled(kernel, start, rates, steps, shift))
        out = torch.zeros(self.runs, self.clients, self.dimension, dtype=self.dtype, device=self.device)
        if shift is not None:  # a client without records still follows the drift
            counts = np.stack([federation.partition.counts for federation in self.federations])[self.index]
            idle = tuple(on_device(part, self.device) for part in np.nonzero(counts == 0))
            out[idle] = -steps * rates[idle[0], None] * shift[idle]

        def compute(runs: Tensor, clients: Tensor, parameters: Tensor, slope: Callable[[], Tensor]) -> None:
            k = len(clients)
            begin, rate = (values[runs].expand(k, -1, -1).flatten(0, 1) for values in (start, -rates.unsqueeze(1)))
            own = None if shift is None else shift[runs, clients].flatten(0, 1)
            parameters.copy_(begin)
            for _ in range(steps):
                parameters.addcmul_(slope() if own is None else slope().add_(own), rate)
            out[runs, clients] = (parameters - begin).unflatten(0, (k, -1))

        self._each_block(compute)
        return client_values(out)

    def metrics(self, parameters: Tensor) -> dict[str, Tensor]:
        """accuracy [R] in percent and test_loss [R] (mean cross-entropy), both on the test split."""
        accuracy, loss = (torch.empty(self.runs, dtype=self.dtype, device=self.device) for _ in range(2))
        kernel = self._kernel()
        tests = [self._tests[number] for number in self.index]
        for test in {id(test): test for test in tests}.values():
            runs = torch.tensor([run for run in range(self.runs) if tests[run] is test], device=self.device)
            evaluate = self._evaluate if kernel is None else partial(self._evaluate_compiled, kernel)
            right, total = evaluate(parameters[runs], test)
            accuracy[runs], loss[runs] = 100.0 * right / len(test), total / len(test)
        return {"accuracy": accuracy, "test_loss": loss}

    def _pool(self, records: Records) -> tuple[Tensor, Tensor]:
        """images [N, height, width] and labels [N] on the device, once for each pool of records."""
        if id(records.features) not in self._pools:
            images = torch.from_numpy(np.require(records.features, requirements=["C", "W"])).to(self.device, self.dtype)
            self._pools[id(records.features)] = (images, torch.from_numpy(records.targets.astype(np.int64)).to(self.device))
        return self._pools[id(records.features)]

    # The stacked path.

    def _block_records(self) -> int:
        """How many records one block may hold, with one run."""
        budget = CPU_BLOCK if self.device.type == "cpu" else DEVICE_BLOCK
        return max(1, budget // (self.dtype.itemsize * self._stacked.record_values))

    def _runs_at_once(self, records: int) -> int:
        """How many runs are computed side by side, on so many records each.

        On a CPU one by one, so that a product is the same alone and in company; a device wants large products.
        """
        return 1 if self.device.type == "cpu" else max(1, self._block_records() // records)

    def _parts(self, runs: np.ndarray, records: int) -> list[Tensor]:
        """`runs` in parts [q] of one size; the last may overlap the one before."""
        q = ceil(len(runs) / ceil(len(runs) / self._runs_at_once(records)))
        firsts = [min(first, len(runs) - q) for first in range(0, len(runs), q)]
        return [on_device(runs[first : first + q], self.device) for first in firsts]

    def _blocks(self) -> Iterator[_Block]:
        """All clients with records. It depends on the federations and on nothing else, as the bits of a product may."""
        most = self._block_records()
        for number in np.unique(self.index):
            counts = self.federations[number].partition.counts
            for bucket in self.federations[number].buckets():
                first = 0
                while first < len(bucket) and (largest := int(counts[bucket[first]])) > 0:
                    chunks = ceil(largest / most)
                    clients = bucket[first : first + max(1, most // largest)]
                    yield _Block(int(number), clients, chunks, ceil(largest / chunks))
                    first += len(clients)

    def _batches(self, block: _Block, workspace: Workspace) -> Iterator[Batch]:
        """The block's chunks, in the memory of the workspace's batches in turn."""
        federation = self.federations[block.federation]
        images, labels = self._pool(federation.dataset.train)
        begins, counts = (part[block.clients, None] for part in (federation.partition.offsets, federation.partition.counts))
        for chunk in range(block.chunks):
            rows = chunk * block.size + np.arange(block.size)
            there = rows < counts
            records = on_device(federation.partition.indices[begins + np.where(there, rows, 0)], self.device)
            weights = on_device(there / counts, self.device)
            yield workspace.batch(images[records], labels[records], weights, chunk)

    def _each_block(self, compute: Callable[[Tensor, Tensor, Tensor, Callable[[], Tensor]], None]) -> None:
        """compute(runs [1, q], clients [k, 1], parameters [k * q, d], slope) for every block of clients and part of its runs.

        `compute` writes the parameters, and slope() is then the gradient at them [k * q, d].
        """

        def work(block: _Block, bench: Workbench) -> None:
            clients = on_device(block.clients, self.device).unsqueeze(1)
            parts = self._parts(np.flatnonzero(self.index == block.federation), len(clients) * block.size)
            kept = block.chunks <= KEPT_BLOCKS
            workspace = bench.workspace(len(clients), len(parts[0]), block.size, block.chunks if kept else 1)
            batches = list(self._batches(block, workspace)) if kept else None

            def slope() -> Tensor:
                return workspace.gradient(self._batches(block, workspace) if batches is None else batches)

            for runs in parts:
                compute(runs.unsqueeze(0), clients, workspace.parameters, slope)

        self._stacked.each(work, list(self._blocks()))

    def _evaluate(self, parameters: Tensor, test: Records) -> tuple[Tensor, Tensor]:
        """Number of right answers and sum of losses, [runs] each."""
        images, labels = self._pool(test)
        size = min(len(test), self._block_records())
        begins = range(0, len(test), size)
        parts = self._parts(np.arange(len(parameters)), size)
        right, loss = (torch.zeros(len(begins), len(parameters), dtype=torch.float64, device=self.device) for _ in range(2))

        def work(chunk: int, bench: Workbench) -> None:
            workspace = bench.workspace(1, len(parts[0]), size)
            records = torch.arange(begins[chunk], begins[chunk] + size, device=self.device)
            there, records = records < len(test), records.clamp(max=len(test) - 1)
            patches, classes = workspace.patches(images[None, records]), labels[None, records]
            for runs in parts:
                workspace.parameters.copy_(parameters[runs])
                logits = workspace.logits(patches)  # [q, classes, n]
                losses = functional.cross_entropy(logits, classes.expand(len(runs), -1), reduction="none")
                right[chunk, runs] = ((logits.argmax(1) == classes) & there).sum(1).double()
                loss[chunk, runs] = torch.where(there, losses, 0).double().sum(1)

        self._stacked.each(work, range(len(begins)))
        return right.sum(0).to(self.dtype), loss.sum(0).to(self.dtype)

    # The compiled path.

    def _kernel(self) -> CnnKernel | None:
        """The compiled kernel, where it applies: float32 on a CPU, and numba works."""
        return compiled_kernel(self.shape) if self.device.type == "cpu" and self.dtype == torch.float32 else None

    def _compiled(
        self, kernel: CnnKernel, start: Tensor, rates: Tensor | None = None, steps: int = 1, drift: Tensor | None = None
    ) -> Tensor:
        """[R, M, d] updates from start [R, d], or, without learning rates, gradients at start [R, M, d]."""
        from dpfl_cli.models.cnn_kernel import DESCENT, GRADIENT, Jobs

        out = np.empty((self.runs * self.clients, self.dimension), np.float32)
        rate = np.zeros(self.runs, np.float32) if rates is None else rates.numpy()
        jobs = []
        for number, federation in enumerate(self.federations):
            runs, partition = np.flatnonzero(self.index == number), federation.partition
            rows = (runs[:, None] * self.clients + np.arange(self.clients)).ravel()
            jobs.append(
                Jobs(
                    *self._arrays(federation.dataset.train),
                    np.require(partition.indices, np.int64, ["C", "W"]),
                    np.tile(partition.offsets[:-1], len(runs)),
                    np.tile(partition.counts, len(runs)),
                    rows,
                    rows if rates is None else np.repeat(runs, self.clients),
                    np.repeat(rate[runs], self.clients),
                )
            )
        kernel.compute(
            jobs,
            GRADIENT if rates is None else DESCENT,
            _table(start),
            out,
            torch.get_num_threads(),
            steps,
            None if drift is None else _table(drift),
        )
        return torch.from_numpy(out).reshape(self.runs, self.clients, self.dimension)

    def _evaluate_compiled(self, kernel: CnnKernel, parameters: Tensor, test: Records) -> tuple[Tensor, Tensor]:
        """As `_evaluate`: every chunk of test records is a job."""
        from dpfl_cli.models.cnn_kernel import EVALUATION, Jobs

        runs, begins = len(parameters), np.arange(0, len(test), EVALUATION_CHUNK)
        number = runs * len(begins)
        jobs = Jobs(
            *self._arrays(test),
            np.arange(len(test)),
            np.tile(begins, runs),
            np.tile(np.minimum(EVALUATION_CHUNK, len(test) - begins), runs),
            np.arange(number),
            np.repeat(np.arange(runs), len(begins)),
            np.zeros(number, np.float32),
        )
        out = np.empty((number, 2), np.float32)
        kernel.compute([jobs], EVALUATION, _table(parameters), out, torch.get_num_threads())
        loss, right = torch.from_numpy(out).reshape(runs, -1, 2).double().sum(1).to(self.dtype).unbind(1)
        return right, loss

    def _arrays(self, records: Records) -> tuple[np.ndarray, np.ndarray]:
        images, labels = self._pool(records)
        return images.numpy(), labels.numpy()


def _table(values: Tensor) -> np.ndarray:
    """[rows, d] float32 from [..., d], without a copy where the memory allows."""
    return values.detach().reshape(-1, values.shape[-1]).to(torch.float32).contiguous().numpy()


@cache
def compiled_kernel(shape: CnnShape) -> CnnKernel | None:
    """The kernel for a shape, or None, saying so once, where it cannot be built."""
    return built_or_none(partial(_kernel, shape), "the CNN kernel", "using the torch path, which is slower")


def _kernel(shape: CnnShape) -> CnnKernel:
    from dpfl_cli.models.cnn_kernel import CnnKernel  # the compiler takes its time to import

    return CnnKernel(shape)
