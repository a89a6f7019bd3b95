"""Small CNNs on grey images, with weights of its own for every run and client.

Two ways to compute, tested equal: a compiled kernel for CPUs (`cnn_kernel`), and stacked tensor operations for any
device (`cnn_torch`), which also serve where the kernel cannot be built.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache, partial, reduce
from math import sqrt
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional

from dpfl_cli.config.component import Settings, component
from dpfl_cli.config.errors import ConfigError
from dpfl_cli.data.federation import DatasetInfo, Federation, Records
from dpfl_cli.data.streams import Streams
from dpfl_cli.models.cnn_shape import CnnShape
from dpfl_cli.models.cnn_torch import Batch, StackedCnn
from dpfl_cli.models.objective import Objective
from dpfl_cli.privacy.client_values import ClientValues, client_values, opened

if TYPE_CHECKING:
    from dpfl_cli.models.cnn_kernel import CnnKernel

logger = logging.getLogger("dpfl")

CPU_BLOCK = 28 << 20  # bytes of workspace: what stays in a CPU's cache is faster than what is larger
DEVICE_BLOCK = 2 << 30
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
        out = torch.zeros(self.runs, self.clients, self.dimension, dtype=values.dtype, device=values.device)
        for block in self._blocks():
            pairs = block.runs[None, :], block.clients[:, None]
            out[pairs] = self._block_gradient(values[pairs], self._batches(block))
        return client_values(out)

    def local_descent(self, start: Tensor, learning_rate: Tensor, steps: int, drift: Tensor | None = None) -> ClientValues:
        shift = None if drift is None else opened(drift)
        rates = learning_rate.to(self.device, self.dtype)
        kernel = self._kernel()
        if kernel is not None:
            return client_values(self._compiled(kernel, start, rates, steps, shift))
        # A client without records still follows the drift: v - w = -steps * lr * drift.
        idle = torch.zeros((), dtype=start.dtype, device=start.device) if shift is None else shift
        out = (-steps * rates[:, None, None] * idle).expand(self.runs, self.clients, self.dimension).clone()
        for block in self._blocks():
            pairs = block.runs[None, :], block.clients[:, None]
            begin = start[pairs[0]].expand(len(block.clients), -1, -1)
            parameters, rate = begin, rates[pairs[0]].unsqueeze(2)
            kept = list(self._batches(block)) if block.counts.max() <= self._block_samples(len(block.runs)) else None
            for _ in range(steps):
                slope = self._block_gradient(parameters, self._batches(block) if kept is None else kept)
                parameters = parameters - rate * (slope if shift is None else slope + shift[pairs])
            out[pairs] = parameters - begin
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
        images, labels = self._pool(federation.dataset.train)
        chunk, n = self._block_samples(len(block.runs)), int(block.counts.max())
        for first in range(0, n, chunk):
            rows = np.arange(first, min(first + chunk, n))[None, :]
            there = rows < block.counts[:, None]
            places = block.starts[:, None] + np.where(there, rows, 0)
            records = torch.from_numpy(federation.partition.indices[places]).to(self.device)
            weights = torch.from_numpy(there / block.counts[:, None]).to(self.device)
            yield self._stacked.batch(images[records], labels[records], weights)

    def _block_gradient(self, parameters: Tensor, batches: Iterable[Batch]) -> Tensor:
        return reduce(torch.add, (self._stacked.gradient(parameters, batch) for batch in batches))

    def _evaluate(self, parameters: Tensor, test: Records) -> tuple[Tensor, Tensor]:
        """Number of right answers and sum of losses, [runs] each."""
        images, labels = self._pool(test)
        runs, size = len(parameters), self._block_samples(len(parameters))
        right, loss = (torch.zeros(runs, dtype=self.dtype, device=self.device) for _ in range(2))
        for start in range(0, len(test), size):
            part, classes = images[None, start : start + size], labels[None, start : start + size]
            logits = self._stacked.logits(parameters.unsqueeze(0), self._stacked.patches(part))[0]  # [runs, classes, n]
            right += (logits.argmax(1) == classes).sum(1)
            loss += functional.cross_entropy(logits, classes.expand(runs, -1), reduction="none").sum(1)
        return right, loss

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
    try:
        from dpfl_cli.models.cnn_kernel import CnnKernel

        return CnnKernel(shape)
    except Exception as error:  # whatever a compiler may raise: the torch path serves as well
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        logger.warning("the CNN kernel cannot be compiled here (%s); using the torch path, which is slower", reason)
        return None
