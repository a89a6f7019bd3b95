"""Networks given as a PyTorch module: a base of models whose gradients come from automatic differentiation.

A subclass says what the network is, what a record's loss is, and what is measured on test records. Parameters are the module's
trainable ones, flat, in the order in which the module names them. A gradient of a single record is made by vmap over records, a
chunk at a time: it is clipped, added to its client's mean, and gone.

Runs, clients and chunks of records are tasks that threads take, one thread to a task: what a task computes, and the order in
which tasks are added, do not depend on how many threads there are or who else is in the batch. A minibatch is one pass where it
fits, and of a local run a thread takes all steps.

Clients and runs are not stacked: one pass is arithmetic enough for a core, and stacked it is no faster. A minibatch gradient by
vmap over four runs' clients takes 1.1 (cnn_femnist, vgg11_small, unet3d), 1.2 (lstm2), 1.4 (cnn_cifar) and 2.1 times
(cnn_cifar_small) as long on two cores, and lstm2 written with stacked products 1.15 times (`make bench`, workload H).
"""

from __future__ import annotations

import copy
import os
import threading
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import accumulate
from math import prod, sqrt
from typing import Annotated, Any, ClassVar, TypeVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional

from dpfl_cli.config.component import Settings
from dpfl_cli.data.devices import on_device
from dpfl_cli.data.federation import DatasetInfo, Federation, Records
from dpfl_cli.data.streams import Streams
from dpfl_cli.models.objective import Objective
from dpfl_cli.models.pairs import bounded_shares
from dpfl_cli.privacy.bounded import Bounded, record_mean, vector_norms
from dpfl_cli.privacy.client_values import ClientValues, client_values, opened

CLIPPED_RECORDS = 25  # records whose gradients are made at once, at most
CLIPPED_VALUES = 1 << 25  # as many numbers as their gradients may have together, where they are more than one
AHEAD = 2  # tasks that wait for their turn to be added, of every thread

Item = TypeVar("Item")
Result = TypeVar("Result")
_UNIFORM = (nn.Linear, nn.modules.conv._ConvNd)
_AFFINE = (nn.GroupNorm, nn.LayerNorm, nn.modules.batchnorm._NormBase)
WATCHED = "watched_train_loss"


class NetworkSettings(Settings):
    """What all networks can be asked.

    `watched_client`: the number of a client (from 0) whose own mean train loss at the global model is a metric,
    `watched_train_loss`. It looks at that client's records, and no epsilon covers it.
    `train_loss_records`: train losses are means over the first so many records of every client, not over all; an evaluation on
    all of them can take longer than a short run of minibatches.
    """

    later: ClassVar[frozenset[str]] = frozenset({"watched_client", "train_loss_records"})

    watched_client: Annotated[int, Field(ge=0)] | None = None
    train_loss_records: Annotated[int, Field(ge=1)] | None = None


@dataclass(frozen=True)
class Chunk:
    """Some records of one client in one run.

    Attributes:
      run, client: which of the R runs and M clients.
      numbers: [k] records of the pool that its federation deals from.
      places: [k] where they stand among the client's records, or in its batch.
    """

    run: int
    client: int
    numbers: np.ndarray
    places: np.ndarray


class Network(Objective):
    """Base of models that are PyTorch modules. f_i is the mean loss of client i's records.

    Attributes:
      module: the network, in evaluation mode. The values of its trainable parameters mean nothing: they are replaced in every
        pass. Those that need no gradient, and buffers, are public constants. Every thread sees a copy of its own.
      gradient_records: records in one pass of a plain gradient of all records.
      batch_records: records in one pass of a minibatch's gradient, at most.
      evaluation_records: records in one pass of an evaluation.
    """

    dtype = torch.float32
    provides: ClassVar[frozenset[str]] = frozenset({"clipped_gradient", "squared_gradient_norms"})
    unreleased_metrics: ClassVar[frozenset[str]] = frozenset({"train_loss"})
    gradient_records: ClassVar[int] = 50
    batch_records: ClassVar[int] = 128
    evaluation_records: ClassVar[int] = 250

    def __init__(
        self, settings: Any, federations: list[Federation], index: np.ndarray, device: torch.device | str = "cpu"
    ) -> None:
        super().__init__(settings, federations, index, device)
        with torch.random.fork_rng(devices=[]):  # layers draw initial values that nobody uses
            module = self.network(settings, federations[0].dataset.info).to(self.device, self.dtype).eval()
        self._watched: int | None = getattr(settings, "watched_client", None)
        self._loss_records: int | None = getattr(settings, "train_loss_records", None)
        self._modules, self._own = [module], threading.local()
        self._workers: _Workers | None = None
        named = _trainable(module)
        self._shapes = {name: parameter.shape for name, parameter in named.items()}
        ends = list(accumulate(shape.numel() for shape in self._shapes.values()))
        self._parts = [slice(end - shape.numel(), end) for end, shape in zip(ends, self._shapes.values(), strict=True)]
        self.dimension = ends[-1]
        self._clipped_records = clipped_records(self.dimension)
        self._pools: dict[int, tuple[Tensor, Tensor]] = {}  # by identity of the records: runs share the bytes

    @property
    def batch_device(self) -> torch.device:
        """The host, where records are dealt to the tasks."""
        return torch.device("cpu")

    @property
    def module(self) -> nn.Module:
        module: nn.Module = getattr(self._own, "module", self._modules[0])
        return module

    # What a subclass gives.

    @classmethod
    @abstractmethod
    def network(cls, settings: Any, info: DatasetInfo) -> nn.Module:
        """The network for a dataset; a ConfigError where the two do not fit.

        It takes `inputs` and gives outputs [n, ...], each from its own record: no layer lets records of a pass meet, and none
        draws. Every operation needs a rule of `torch.func.vmap`, or `record_gradients` a definition of its own.
        """

    def inputs(self, features: Tensor) -> Tensor:
        """What the network takes, from features [n, ...] as the dataset has them (whole numbers int64, others float32)."""
        return features

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """[n] the records' losses; cross-entropy of logits [n, c]."""
        return functional.cross_entropy(outputs, targets, reduction="none")

    def scores(self, outputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        """Name -> [n], whose means over test records are metrics: `accuracy` in percent, and `test_loss`."""
        return {"accuracy": 100.0 * (outputs.argmax(dim=1) == targets), "test_loss": self.losses(outputs, targets)}

    def test_weights(self, federation: Federation) -> np.ndarray:
        """[N] weights of the test records in metrics, whose sum is 1; all equal."""
        assert federation.dataset.test is not None
        return np.full(len(federation.dataset.test), 1.0 / len(federation.dataset.test))

    def initial_values(self, generator: np.random.Generator) -> np.ndarray:
        """[d] initial parameters of one run; those of PyTorch's layers (`default_values`)."""
        return np.concatenate([value.ravel() for value in default_values(self.module, generator)])

    # The objective.

    @classmethod
    def dimension_of(cls, settings: Any, info: DatasetInfo) -> int:
        """d, the number of trainable parameters."""
        with torch.device("meta"):
            return sum(parameter.numel() for parameter in _trainable(cls.network(settings, info)).values())

    @classmethod
    def workspace(cls, settings: Any, info: DatasetInfo, clients: int) -> int:
        """What every thread holds at once: gradients of a chunk's records, and the parameters."""
        dimension = cls.dimension_of(settings, info)
        return cls.dtype.itemsize * torch.get_num_threads() * (2 * clipped_records(dimension) + AHEAD + 1) * dimension

    def initial(self, streams: Streams) -> Tensor:
        """As `initial_values`, from each run's stream "init"."""
        rows = np.empty((self.runs, self.dimension))
        for run in range(self.runs):
            rows[run] = self.initial_values(streams.generator(run, "init"))
        return torch.from_numpy(rows).to(self.device, self.dtype)

    def unreleased(self) -> frozenset[str]:
        return super().unreleased() | (frozenset() if self._watched is None else {WATCHED})

    def gradient(self, parameters: Tensor, batch: Tensor | None = None) -> ClientValues:
        """[R, M, d] gradients of mean losses of all records, or of a batch [R, M, b] of them; 0 for a client without records."""
        if batch is not None:
            return self.minibatch_gradient(parameters, batch)
        return client_values(self.host(self._gradients, opened(parameters)))

    def minibatch_gradient(self, parameters: Tensor, batch: Tensor) -> ClientValues:
        """As the contract. A number in a batch that is none of the client's records counts as a record of gradient zero."""
        return client_values(self.host(self._batch_gradients, opened(parameters), batch))

    def clipped_gradient(self, parameters: Tensor, clip_norm: Tensor, batch: Tensor | None = None) -> Bounded:
        """As the contract. A number in a batch that is none of the client's records counts as a record of gradient zero."""
        means = self.host(self._clipped_means, opened(parameters), clip_norm.to(self.device, torch.float64), batch)
        return record_mean(client_values(means), clip_norm.to(self.device), self.divisors(batch))

    def squared_gradient_norms(self, parameters: Tensor, batch: Tensor | None = None) -> ClientValues:
        """[R, M, b] squared norms; infinite for a record whose gradient is not finite."""
        return client_values(self.host(self._squared_norms, opened(parameters), batch))

    def local_descent(self, start: Tensor, learning_rate: Tensor, steps: int, drift: Tensor | None = None) -> ClientValues:
        """As the definition, client after client: a thread takes all steps of a client."""
        shift = None if drift is None else opened(drift)
        return client_values(self.host(self._descents, start, learning_rate.to(self.device, self.dtype), steps, shift, None))

    def minibatch_descent(
        self, start: Tensor, learning_rate: Tensor, batches: Tensor, drift: Tensor | None = None
    ) -> ClientValues:
        """As the definition, client after client: a thread takes all steps of a client."""
        shift, rates = None if drift is None else opened(drift), learning_rate.to(self.device, self.dtype)
        return client_values(self.host(self._descents, start, rates, batches.shape[2], shift, batches))

    def metrics(self, parameters: Tensor) -> dict[str, Tensor]:
        """Each [R]: `train_loss`, (1/M) sum_i of the clients' mean losses; `scores` of the test split, where there is one; and
        `watched_train_loss`, the watched client's mean loss, and `gradient_quantiles`, where settings ask for them."""
        found = {"train_loss": torch.empty_like(parameters[:, 0])}
        for run, number in enumerate(self.index):
            federation = self.federations[number]
            numbers, counts = self._loss_numbers(federation)
            weights = np.repeat(1.0 / np.maximum(counts, 1) / self.clients, counts)
            records = federation.dataset.train, numbers, weights
            found["train_loss"][run] = self._evaluated(parameters[run], *records, self._train_loss)["train_loss"]
        if self._watched is not None:
            found[WATCHED] = self._watched_losses(parameters, self._watched)
        found |= self.asked_quantiles(parameters)
        if any(federation.dataset.test is None for federation in self.federations):
            return found
        for run, number in enumerate(self.index):
            test = self.federations[number].dataset.test
            assert test is not None
            weights = self.test_weights(self.federations[number])
            for name, value in self._evaluated(parameters[run], test, np.arange(len(test)), weights, self.scores).items():
                found.setdefault(name, torch.empty_like(parameters[:, 0]))[run] = value
        return found

    def record_gradients(self, parameters: dict[str, Tensor], inputs: Tensor, targets: Tensor) -> list[Tensor]:
        """[n, *shape] gradients of every record's loss, one tensor for every parameter, in their order."""

        def loss(own: dict[str, Tensor], one: Tensor, target: Tensor) -> Tensor:
            outputs = functional_call(self.module, own, (one.unsqueeze(0),))
            return self.losses(outputs, target.unsqueeze(0)).squeeze(0)

        return list(vmap(grad(loss), in_dims=(None, 0, 0))(parameters, inputs, targets).values())

    # Tasks.

    def _gradients(self, values: Tensor) -> Tensor:
        return self._sums(lambda chunk, share: self._gradient(self._named(values[chunk.run, chunk.client]), chunk, share), None)

    def _batch_gradients(self, values: Tensor, batch: Tensor) -> Tensor:
        result = torch.empty(self.runs, self.clients, self.dimension, dtype=self.dtype, device=self.device)
        drawn = batch.cpu().numpy()

        def computed(pair: tuple[int, int]) -> None:
            self._batch_gradient(values[pair], *pair, drawn[pair], result[pair])

        self._each(computed, np.ndindex(self.runs, self.clients), lambda pair, nothing: None)
        return result

    def _clipped_means(self, values: Tensor, limits: Tensor, batch: Tensor | None) -> Tensor:
        def clipped(chunk: Chunk, share: float) -> Tensor:
            each, norms = self._record_gradients(values, chunk)
            shares = bounded_shares(norms.new_full((), share), norms, limits[chunk.run])
            # a gradient that is not finite has the share 0, but 0 times it is not 0
            lost = (shares == 0).unsqueeze(-1)
            rows = [part.flatten(1).contiguous().masked_fill_(lost, 0.0) for part in each]
            return torch.cat([shares.to(self.dtype) @ part for part in rows])

        return self._sums(clipped, batch, self._clipped_records)

    def _squared_norms(self, values: Tensor, batch: Tensor | None) -> Tensor:
        width = max(1, int(self.held.max())) if batch is None else batch.shape[-1]
        result = torch.zeros(self.runs, self.clients, width, dtype=self.dtype, device=self.device)

        def put(chunk: Chunk, squared: Tensor) -> None:
            result[chunk.run, chunk.client, on_device(chunk.places, self.device)] = squared

        def squared(chunk: Chunk) -> Tensor:
            return self._record_gradients(values, chunk)[1].square().nan_to_num(torch.inf, torch.inf).to(self.dtype)

        self._each(squared, self._chunks(batch, self._clipped_records), put)
        return result

    def _descents(self, start: Tensor, rates: Tensor, steps: int, drift: Tensor | None, batches: Tensor | None) -> Tensor:
        result = torch.empty(self.runs, self.clients, self.dimension, dtype=self.dtype, device=self.device)
        drawn = None if batches is None else batches.cpu().numpy()

        def descended(pair: tuple[int, int]) -> None:
            (run, client), rate = pair, rates[pair[0]]
            own, slope = start[run].clone(), torch.empty_like(start[run])
            for step in range(steps):
                if drawn is not None:
                    self._batch_gradient(own, run, client, drawn[run, client, step], slope)
                else:
                    slope.zero_()
                    for chunk in self._chunks(None, self.gradient_records, [pair]):
                        slope += self._gradient(self._named(own), chunk, 1.0 / self.held[run, client])
                own -= rate * (slope if drift is None else slope + drift[run, client])
            torch.sub(own, start[run], out=result[pair])

        self._each(descended, np.ndindex(self.runs, self.clients), lambda pair, nothing: None)
        return result

    def _sums(self, work: Callable[[Chunk, float], Tensor], batch: Tensor | None, size: int | None = None) -> Tensor:
        """[R, M, d] sums over a client's chunks of work(chunk, share), with share one record's part of a mean."""
        result = torch.zeros(self.runs, self.clients, self.dimension, dtype=self.dtype, device=self.device)
        shares = 1.0 / (np.maximum(self.held, 1) if batch is None else np.full_like(self.held, batch.shape[-1]))

        def computed(chunk: Chunk) -> Tensor:
            return work(chunk, float(shares[chunk.run, chunk.client]))

        def add(chunk: Chunk, part: Tensor) -> None:
            result[chunk.run, chunk.client] += part

        self._each(computed, self._chunks(batch, size), add)
        return result

    def _chunks(
        self, batch: Tensor | None, size: int | None = None, pairs: Iterable[tuple[int, int]] | None = None
    ) -> Iterator[Chunk]:
        """All records, or those of a batch [R, M, b], in chunks of `size` of one client; of the given (run, client) or all."""
        size, chosen = size or self.gradient_records, None if batch is None else batch.cpu().numpy()
        for run, client in pairs or np.ndindex(self.runs, self.clients):
            partition = self.federations[self.index[run]].partition
            own = partition.indices[partition.offsets[client] : partition.offsets[client + 1]]
            numbers = np.arange(len(own)) if chosen is None else chosen[run, client]
            places = np.flatnonzero((numbers >= 0) & (numbers < len(own)))
            for begin in range(0, len(places), size):
                some = places[begin : begin + size]
                yield Chunk(run, client, own[numbers[some]], some)

    def _each(self, work: Callable[[Item], Result], items: Iterable[Item], take: Callable[[Item, Result], object]) -> None:
        """take(item, work(item)) in the order of the items; on a CPU `torch.get_num_threads()` threads work.

        Every thread computes alone, for the bits of a product depend on how many threads it has. Also one thread is not the
        caller's, whose modes of torch (the recording of a round) have no rules for what happens here.
        """
        threads = torch.get_num_threads()
        number = threads if self.device.type == "cpu" else 1
        waiting: deque[tuple[Item, Future[Result]]] = deque()
        torch.set_num_threads(1)  # the new threads take it over
        try:
            if self._workers is None or (self._workers.number, self._workers.process) != (number, os.getpid()):
                self._workers = _Workers(number, self._copies(number), self._own)
            try:
                for item in items:
                    if len(waiting) == AHEAD * number:
                        first, result = waiting.popleft()
                        take(first, result.result())
                    waiting.append((item, self._workers.pool.submit(work, item)))
                for item, result in waiting:
                    take(item, result.result())
            except BaseException:  # an error or an interrupt: the threads end after their task, and the next call has new ones
                workers, self._workers = self._workers, None
                workers.pool.shutdown(wait=True, cancel_futures=True)
                raise
        finally:
            torch.set_num_threads(threads)

    def _copies(self, number: int) -> list[nn.Module]:
        """So many copies of the network, which share its tensors: a pass puts other parameters into their places for a while."""
        shared = {id(tensor): tensor for tensor in (*self._modules[0].parameters(), *self._modules[0].buffers())}
        while len(self._modules) < number:
            self._modules.append(copy.deepcopy(self._modules[0], dict(shared)))
        return self._modules[:number]

    # Passes.

    def _named(self, values: Tensor) -> dict[str, Tensor]:
        """The parameters by name, from [d]; in memory of their own: where a product's rows begin may change its bits."""
        parts = zip(self._shapes.items(), self._parts, strict=True)
        return {name: values[part].clone().view(shape) for (name, shape), part in parts}

    def _gradient(self, parameters: dict[str, Tensor], chunk: Chunk, share: float, out: Tensor | None = None) -> Tensor:
        """[d] gradient of share times the sum of the records' losses."""
        own = {name: value.requires_grad_() for name, value in parameters.items()}
        inputs, targets = self._records_of(chunk)
        total = self.losses(functional_call(self.module, own, (inputs,)), targets).sum() * share
        parts = [part.flatten() for part in torch.autograd.grad(total, list(own.values()))]
        return torch.cat(parts) if out is None else torch.cat(parts, out=out)

    def _batch_gradient(self, values: Tensor, run: int, client: int, numbers: np.ndarray, out: Tensor) -> None:
        """Writes the gradient at values [d] of the mean loss of the client's records `numbers` [b] to out [d]."""
        partition = self.federations[self.index[run]].partition
        own = partition.indices[partition.offsets[client] : partition.offsets[client + 1]]
        rows, size = own[numbers[(numbers >= 0) & (numbers < len(own))]], self.batch_records
        if not len(rows):
            out.zero_()
        for begin in range(0, len(rows), size):
            some = rows[begin : begin + size]
            chunk = Chunk(run, client, some, np.arange(begin, begin + len(some)))
            if begin:
                out += self._gradient(self._named(values), chunk, 1.0 / len(numbers))
            else:
                self._gradient(self._named(values), chunk, 1.0 / len(numbers), out)

    def _record_gradients(self, values: Tensor, chunk: Chunk) -> tuple[list[Tensor], Tensor]:
        """`record_gradients` at values [R, M, d], and their norms [k] in float64, infinite or NaN where they are not finite."""
        with torch.no_grad():
            each = self.record_gradients(self._named(values[chunk.run, chunk.client]), *self._records_of(chunk))
            norms = torch.stack([vector_norms(part.flatten(1)) for part in each])
            return each, torch.linalg.vector_norm(norms, dim=0)

    def _watched_losses(self, parameters: Tensor, client: int) -> Tensor:
        """[R] the client's mean train loss at global parameters [R, d]; 0 where it has no records."""
        found = torch.zeros_like(parameters[:, 0])
        for run, number in enumerate(self.index):
            federation = self.federations[number]
            numbers, counts = self._loss_numbers(federation)
            held, begin = int(counts[client]), int(counts[:client].sum())
            if held:
                records = numbers[begin : begin + held], np.full(held, 1.0 / held)
                found[run] = self._evaluated(parameters[run], federation.dataset.train, *records, self._train_loss)["train_loss"]
        return found

    def _loss_numbers(self, federation: Federation) -> tuple[np.ndarray, np.ndarray]:
        """[sum of counts] the records that train losses are means over, client after client, and [M] how many are each one's."""
        partition = federation.partition
        if self._loss_records is None:
            return partition.indices, partition.counts
        counts = np.minimum(partition.counts, self._loss_records)
        places = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        return partition.indices[np.repeat(partition.offsets[:-1], counts) + places], counts

    def _train_loss(self, outputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        return {"train_loss": self.losses(outputs, targets)}

    def _evaluated(
        self,
        parameters: Tensor,
        records: Records,
        numbers: np.ndarray,
        weights: np.ndarray,
        of: Callable[[Tensor, Tensor], dict[str, Tensor]],
    ) -> dict[str, Tensor]:
        """Weighted sums, in float64, of what `of` says of the outputs on some records."""
        named, pool = self._named(parameters), self._pool(records)
        sums: dict[str, Tensor] = {}

        def evaluated(start: int) -> dict[str, Tensor]:
            part = slice(start, start + self.evaluation_records)
            rows, share = on_device(numbers[part], self.device), on_device(weights[part], self.device)
            with torch.no_grad():
                values = of(functional_call(self.module, named, (self.inputs(pool[0][rows]),)), pool[1][rows])
            return {name: value.double() @ share for name, value in values.items()}

        def add(_: int, found: dict[str, Tensor]) -> None:
            for name, value in found.items():
                sums[name] = sums[name] + value if name in sums else value

        self._each(evaluated, range(0, len(numbers), self.evaluation_records), add)
        return sums

    def _records_of(self, chunk: Chunk) -> tuple[Tensor, Tensor]:
        """The network's inputs and the targets of a chunk's records."""
        features, targets = self._pool(self.federations[self.index[chunk.run]].dataset.train)
        rows = on_device(chunk.numbers, self.device)
        return self.inputs(features[rows]), targets[rows]

    def _pool(self, records: Records) -> tuple[Tensor, Tensor]:
        """Features and targets [N, ...] on the device, once for each pool of records."""
        if id(records.features) not in self._pools:
            self._pools[id(records.features)] = self._tensor(records.features), self._tensor(records.targets)
        return self._pools[id(records.features)]

    def _tensor(self, values: np.ndarray) -> Tensor:
        whole = np.issubdtype(values.dtype, np.integer)
        plain = torch.from_numpy(np.require(values, requirements=["C", "W"]))
        return plain.to(self.device, torch.int64 if whole else self.dtype)


class _Workers:
    """Threads that stay from one call to the next, each with a copy of the network; as they begin, torch has one thread.

    Attributes:
      number: of threads.
      process: where they live: a fork of it has none of them.
    """

    def __init__(self, number: int, modules: Sequence[nn.Module], own: threading.local) -> None:
        self.number, self.process = number, os.getpid()
        copies, ready = iter(modules), threading.Barrier(number + 1)

        def begin() -> None:
            torch.set_num_threads(1)
            own.module = next(copies)
            ready.wait()

        self.pool = ThreadPoolExecutor(number, thread_name_prefix="dpfl-network", initializer=begin)
        try:
            for _ in range(number):
                self.pool.submit(int)  # starts one
            ready.wait()  # until all have begun: one that began later would set the number of threads in the middle of other work
        except BaseException:
            ready.abort()
            raise


def clipped_records(dimension: int) -> int:
    """How many records' gradients of d numbers are made at once."""
    return max(1, min(CLIPPED_RECORDS, CLIPPED_VALUES // dimension))


def default_values(module: nn.Module, generator: np.random.Generator) -> Iterator[np.ndarray]:
    """Initial values of the trainable parameters, in their order, by the laws that PyTorch's layers have by default.

    Linear layers, convolutions: U(-1/sqrt(fan_in), 1/sqrt(fan_in)), weights and biases. Normalisations: 1 and 0. Embeddings:
    N(0, 1), 0 for padding. Recurrent layers: U(-1/sqrt(h), 1/sqrt(h)) with h hidden units. Slopes of PReLU: 1/4.
    """
    seen: set[int] = set()
    for layer in module.modules():
        for name, parameter in layer.named_parameters(recurse=False):
            if id(parameter) in seen or not parameter.requires_grad:
                continue
            seen.add(id(parameter))
            yield _default(layer, name, tuple(parameter.shape), generator)


def _default(layer: nn.Module, name: str, shape: Sequence[int], generator: np.random.Generator) -> np.ndarray:
    if isinstance(layer, _UNIFORM):
        weight = layer.weight.shape  # of a transposed convolution [in, out, ...], and PyTorch's fan_in counts the second too
        bound = 1.0 / sqrt(prod(weight[1:]))
        return generator.uniform(-bound, bound, shape)
    if isinstance(layer, nn.RNNBase | nn.RNNCellBase):
        bound = 1.0 / sqrt(layer.hidden_size)
        return generator.uniform(-bound, bound, shape)
    if isinstance(layer, _AFFINE):
        return np.full(shape, float(name == "weight"))
    if isinstance(layer, nn.PReLU):
        return np.full(shape, 0.25)
    if isinstance(layer, nn.Embedding):
        values = generator.standard_normal(shape)
        if layer.padding_idx is not None:
            values[layer.padding_idx] = 0.0
        return values
    raise TypeError(f"{type(layer).__name__}.{name}: no initial values are known; override initial_values")


def _trainable(module: nn.Module) -> dict[str, nn.Parameter]:
    return {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}
