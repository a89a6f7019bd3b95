"""Small CNNs on grey images, with weights of its own for every run and client.

Two ways to compute, tested equal: a compiled kernel for CPUs (`cnn_kernel`), and stacked tensor operations for any
device (`cnn_torch`), which also serve where the kernel cannot be built.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import sqrt
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional

from dpfl_cli.config.component import Settings, component
from dpfl_cli.config.errors import ConfigError
from dpfl_cli.data.federation import DatasetInfo, Federation
from dpfl_cli.data.streams import Streams
from dpfl_cli.models.cnn_shape import CnnShape
from dpfl_cli.models.cnn_torch import Batch, StackedCnn
from dpfl_cli.models.objective import Objective
from dpfl_cli.privacy.client_values import ClientValues, client_values, opened

if TYPE_CHECKING:
    from dpfl_cli.models.cnn_kernel import CnnKernel

CPU_BLOCK = 32 << 20  # bytes of workspace: what stays in a CPU's cache is faster than what is larger
DEVICE_BLOCK = 2 << 30


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


@dataclass(frozen=True)
class _Block:
    """Clients of one federation with the runs that use it; `starts` and `counts` [k] are segments of its indices."""

    federation: int
    runs: np.ndarray  # [q]
    clients: np.ndarray  # [k]
    starts: np.ndarray
    counts: np.ndarray


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
        self._stacked = StackedCnn(self.shape, self.device)
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
            return client_values(self._compiled(kernel, values, GRADIENT))
        out = torch.zeros_like(values, memory_format=torch.contiguous_format)
        for block in self._blocks():
            here = (torch.as_tensor(block.runs)[None, :], torch.as_tensor(block.clients)[:, None])  # [k, q] pairs
            out[here] = self._block_gradient(values[here], list(self._batches(block)))
        return client_values(out)

    def local_descent(self, start: Tensor, learning_rate: Tensor, steps: int, drift: Tensor | None = None) -> ClientValues:
        shift = None if drift is None else opened(drift)
        rates = learning_rate.to(self.device, self.dtype)
        kernel = self._kernel()
        if kernel is not None:
            return client_values(self._compiled(kernel, start, DESCENT, rates, steps, shift))
        out = torch.zeros(self.runs, self.clients, self.dimension, dtype=start.dtype, device=start.device)
        for block in self._blocks():
            runs, clients = torch.as_tensor(block.runs)[None, :], torch.as_tensor(block.clients)[:, None]
            begin = start[runs].expand(len(block.clients), -1, -1)
            rate = rates[runs].unsqueeze(2)
            parameters = begin
            fits = block.counts.max() <= self._block_samples(1)
            batches = list(self._batches(block)) if fits else None
            for _ in range(steps):
                step = self._block_gradient(parameters, self._batches(block) if batches is None else batches)
                if shift is not None:
                    step = step + shift[runs, clients]
                parameters = parameters - rate * step
            out[runs, clients] = parameters - begin
        if shift is not None:
            self._drift_alone(out, rates, steps, shift)
        return client_values(out)

    def metrics(self, parameters: Tensor) -> dict[str, Tensor]:
        """accuracy [R] in percent and test_loss [R] (mean cross-entropy), both on the test split."""
        accuracy = torch.empty(self.runs, dtype=self.dtype, device=self.device)
        loss = torch.empty_like(accuracy)
        tests = [federation.dataset.test for federation in self.federations]
        for identity in {id(test) for test in tests}:
            runs = torch.tensor([run for run, which in enumerate(self.index) if id(tests[which]) == identity])
            if not len(runs):
                continue
            test = next(test for test in tests if id(test) == identity)
            if test is None:
                name = self.federations[0].dataset.info.name
                raise ConfigError(
                    f"model: a cnn is evaluated on test records, but dataset {name} has none; choose another dataset"
                )
            images, labels = self._pool(test.features, test.targets)
            accuracy[runs], loss[runs] = self._evaluate(parameters[runs], images, labels)
        return {"accuracy": accuracy, "test_loss": loss}

    def _evaluate(self, parameters: Tensor, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        right = torch.zeros(len(parameters), dtype=self.dtype, device=self.device)
        loss = torch.zeros_like(right)
        size = self._block_samples(len(parameters))
        for start in range(0, len(labels), size):
            part, classes = images[None, start : start + size], labels[None, start : start + size]
            patches = self._stacked.batch(part, classes, torch.empty_like(classes, dtype=self.dtype)).patches
            logits = self._stacked.logits(parameters.unsqueeze(0), patches)[0]  # [R, classes, n]
            right += (logits.argmax(1) == classes).sum(1)
            loss += functional.cross_entropy(logits, classes.expand(len(parameters), -1), reduction="none").sum(1)
        return 100.0 * right / len(labels), loss / len(labels)

    def _pool(self, features: np.ndarray, targets: np.ndarray) -> tuple[Tensor, Tensor]:
        """images [N, height, width] and labels [N] on the device, once for each pool of records."""
        if id(features) not in self._pools:
            images = torch.from_numpy(np.ascontiguousarray(features)).to(self.device, self.dtype)
            self._pools[id(features)] = (images, torch.from_numpy(targets.astype(np.int64)).to(self.device))
        return self._pools[id(features)]

    # The stacked path.

    def _block_samples(self, runs: int) -> int:
        """How many records (of each of `runs` runs) one block may hold."""
        (h1, w1), (h2, w2), (a, b) = self.shape.first, self.shape.second, self.shape.channels
        shared = 25 * h1 * w1
        own = 16 * a * h1 * w1 + (75 * a + 16 * b) * h2 * w2 + 4 * (self.shape.hidden or 0) + 4 * self.shape.classes
        budget = CPU_BLOCK if self.device.type == "cpu" else DEVICE_BLOCK
        return max(1, budget // (torch.finfo(self.dtype).bits // 8 * (shared + runs * own)))

    def _blocks(self) -> Iterator[_Block]:
        for number, federation in enumerate(self.federations):
            runs = np.flatnonzero(self.index == number)
            counts, offsets = federation.partition.counts, federation.partition.offsets
            if not len(runs):
                continue
            for bucket in federation.buckets():
                n = int(counts[bucket].max())
                if n == 0:
                    continue  # no records: gradient 0
                for first in range(0, len(runs), q := min(len(runs), max(1, self._block_samples(len(runs)) * len(runs) // n))):
                    k = max(1, self._block_samples(q) // n)
                    for start in range(0, len(bucket), k):
                        clients = bucket[start : start + k]
                        yield _Block(number, runs[first : first + q], clients, offsets[clients], counts[clients])

    def _batches(self, block: _Block) -> Iterator[Batch]:
        """The block's records, all at once or, for a client that is too large for a block, in chunks."""
        federation = self.federations[block.federation]
        images, labels = self._pool(federation.dataset.train.features, federation.dataset.train.targets)
        chunk = self._block_samples(len(block.runs))
        for first in range(0, int(block.counts.max()), chunk):
            rows = np.arange(first, min(first + chunk, int(block.counts.max())))[None, :]
            there = rows < block.counts[:, None]
            places = np.where(there, block.starts[:, None] + rows, block.starts[:, None])
            records = torch.from_numpy(federation.partition.indices[places]).to(self.device)
            weights = torch.from_numpy(there / np.maximum(block.counts, 1)[:, None]).to(self.device)
            yield self._stacked.batch(images[records], labels[records], weights)

    def _block_gradient(self, parameters: Tensor, batches: Iterator[Batch] | list[Batch]) -> Tensor:
        total = None
        for batch in batches:
            part = self._stacked.gradient(parameters, batch)
            total = part if total is None else total + part
        assert total is not None
        return total

    def _drift_alone(self, out: Tensor, rates: Tensor, steps: int, shift: Tensor) -> None:
        """Clients without records still follow the drift: v - w = -steps * lr * drift."""
        for number, federation in enumerate(self.federations):
            runs = torch.from_numpy(np.flatnonzero(self.index == number))[:, None]
            empty = torch.from_numpy(np.flatnonzero(federation.partition.counts == 0))[None, :]
            out[runs, empty] = -steps * rates[runs].unsqueeze(2) * shift[runs, empty]

    # The compiled path.

    def _kernel(self) -> CnnKernel | None:
        """The compiled kernel, where it applies: float32 on a CPU, and numba works."""
        return compiled_kernel(self.shape) if self.device.type == "cpu" and self.dtype == torch.float32 else None

    def _compiled(
        self, kernel: CnnKernel, start: Tensor, mode: int, rates: Tensor | None = None, steps: int = 1, drift: Tensor | None = None
    ) -> Tensor:
        """[R, M, d] updates or gradients by the kernel, from start [R, d], or [R, M, d] where every client has its own."""
        from dpfl_cli.models.cnn_kernel import Jobs

        out = torch.empty(self.runs, self.clients, self.dimension, dtype=self.dtype)
        rate = np.zeros(self.runs, np.float32) if rates is None else rates.numpy()
        jobs = []
        for number, federation in enumerate(self.federations):
            runs, partition = np.flatnonzero(self.index == number), federation.partition
            rows = (runs[:, None] * self.clients + np.arange(self.clients)).ravel()
            jobs.append(
                Jobs(
                    *self._records(federation.dataset.train),
                    np.require(partition.indices, np.int64, ["C", "W"]),
                    np.tile(partition.offsets[:-1], len(runs)),
                    np.tile(partition.counts, len(runs)),
                    rows,
                    rows if start.dim() == 3 else np.repeat(runs, self.clients),
                    np.repeat(rate[runs], self.clients),
                )
            )
        tables = [None if table is None else table.reshape(-1, self.dimension).contiguous().numpy() for table in (start, drift, out)]
        kernel.compute(jobs, mode, tables[0], tables[2], torch.get_num_threads(), steps, tables[1])
        return out

    def _evaluate_compiled(self, kernel: CnnKernel, parameters: Tensor, test: Records) -> tuple[Tensor, Tensor]:
        from dpfl_cli.models.cnn_kernel import EVALUATION, Jobs

        runs, size = len(parameters), len(test)
        begins = np.arange(0, size, 256)
        jobs = Jobs(
            *self._records(test),
            np.arange(size),
            np.tile(begins, runs),
            np.tile(np.minimum(256, size - begins), runs),
            np.arange(runs * len(begins)),
            np.repeat(np.arange(runs), len(begins)),
            np.zeros(runs * len(begins), np.float32),
        )
        out = np.empty((runs * len(begins), 2), np.float32)
        kernel.compute([jobs], EVALUATION, parameters.contiguous().numpy(), out, torch.get_num_threads())
        loss, right = torch.from_numpy(out).reshape(runs, -1, 2).double().sum(1).to(self.dtype).unbind(1)
        return 100.0 * right / size, loss / size

    def _records(self, records: Records) -> tuple[np.ndarray, np.ndarray]:
        images, labels = self._pool(records.features, records.targets)
        return images.numpy(), labels.numpy()


@lru_cache(maxsize=None)
def compiled_kernel(shape: CnnShape) -> CnnKernel | None:
    """The kernel for a shape, or None, saying so once, where it cannot be built."""
    try:
        from dpfl_cli.models.cnn_kernel import CnnKernel

        return CnnKernel(shape)
    except Exception as error:  # whatever a compiler may raise: the torch path serves as well
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        logger.warning("the CNN kernel cannot be compiled here (%s); using the torch path, which is slower", reason)
        return None
