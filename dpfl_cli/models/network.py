"""Networks given as a PyTorch module: a base of models whose gradients come from automatic
differentiation.

A subclass says what the network is, what a record's loss is, and what is measured on test records.
Parameters are the module's trainable ones, flat, in the order in which the module names them.
Gradients of single records are made by vmap, clipped, added to their client's mean, and gone; those
of a network whose layers are known never as a whole (`by_layers`).

On a CPU every client of every run is computed by one thread, which takes its records in order, as
many in a pass as keep within `PASS_BYTES` what the backward pass needs: small passes cost more than
their arithmetic, and what leaves the cache costs too. So a result's bits depend neither on the
number of threads nor on who else is in the batch. vmap over clients takes 1.1 to 2.1 times as long
(bench, workload H), for a pass is work enough for a core. It does not fill a GPU: there minibatches
of all clients are one call, whose rounding may depend on how many they are.
"""

from __future__ import annotations

import copy
import threading
from abc import abstractmethod
from collections.abc import Callable, Iterator
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from numpy import ndarray
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional

from dpfl_cli.data.devices import free_memory, on_device
from dpfl_cli.data.federation import DatasetInfo, Federation, Records
from dpfl_cli.data.streams import Streams
from dpfl_cli.data.threads import one_thread_each, slices
from dpfl_cli.models.layerwise import RecordGradients, RecordRows, layer_gradients
from dpfl_cli.models.modules import default_values, kept_bytes, trainable
from dpfl_cli.models.objective import ByName, Objective
from dpfl_cli.models.pools import ClientPart, HeldRecords, Pools
from dpfl_cli.models.records import bounded_shares
from dpfl_cli.privacy.bounded import Bounded
from dpfl_cli.privacy.client_values import ClientValues, client_values, opened
from dpfl_cli.privacy.record_bounds import record_mean

PASS_BYTES = 64 << 20  # of what a thread's pass keeps for its backward pass
DEVICE_BYTES = 2 << 30  # the same of a device's
PASS_RECORDS, CLIPPED_VALUES = 1000, 1 << 25  # in a pass; numbers of gradients made at once

_dimensions: dict[tuple[Any, str, str], int] = {}  # by what networks are made from, for a grid
Weighted = tuple[Records, ndarray, ndarray]  # some records of a pool, and their weights
Scores = Callable[[Tensor, Tensor], ByName]


class Network(Objective):
    """Base of models that are PyTorch modules. f_i is the mean loss of client i's records.

    In a batch a number that is none of the client's counts as a record of gradient zero.
    """

    dtype = torch.float32
    provides = frozenset({"clipped_gradient", "squared_gradient_norms"})
    at_once = True  # its minibatch gradients can be one call of vmap over the parameters too
    blank_anew = True  # `among` keeps what a subclass computed of the records
    by_layers = False  # its layers are those of `layer_gradients`
    clipped_records = 25  # whose gradients are made at once, at most

    def __init__(self, settings: Any, federations: list[Federation], *rest: Any) -> None:
        super().__init__(settings, federations, *rest)
        with torch.random.fork_rng(devices=[]):  # layers draw initial values that nobody uses
            module = self.network(settings, self.info)
        self._module, self._own = module.to(self.device, self.dtype).eval(), threading.local()
        self._shapes = {name: value.shape for name, value in trainable(module).items()}
        self.dimension = sum(shape.numel() for shape in self._shapes.values())
        self._threads = None if self.device.type == "cpu" else 1  # as many as torch has
        self._pools = Pools(self.device, self.dtype)

    def _hold(self, federations: list[Federation], index: ndarray) -> None:
        super()._hold(federations, index)
        self._held_records = HeldRecords(federations, index, self.records)

    def among(self, federations: list[Federation], index: ndarray) -> Network:
        other = copy.copy(self)
        other._hold(federations, index)
        return other  # which shares the network and the data on the device

    @property
    def module(self) -> nn.Module:
        """The network in evaluation mode, a copy for every thread that shares its tensors.

        Values of trainable parameters mean nothing (every pass replaces them); all else is public.
        """
        if not hasattr(self._own, "module"):
            shared = (*self._module.parameters(), *self._module.buffers())
            self._own.module = copy.deepcopy(self._module, {id(one): one for one in shared})
        module: nn.Module = self._own.module
        return module

    @classmethod
    @abstractmethod
    def network(cls, settings: Any, info: DatasetInfo) -> nn.Module:
        """The network for a dataset; a ConfigError where the two do not fit. It takes `inputs` and
        gives outputs [n, ...], each from its own record: no layer lets records of a pass meet, and
        none draws. Every operation has a rule of `torch.func.vmap` (over parameters too, unless
        `at_once` is False), or one in `record_gradients`.
        """

    def inputs(self, features: Tensor) -> Tensor:
        """What the network takes, from features [n, ...] as `Pools` has them."""
        return features

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """[n] the records' losses: cross-entropy of logits [n, c], or the squared error where
        targets are real.
        """
        if self.info.classes is None:
            return (outputs.reshape(targets.shape) - targets).square()
        return functional.cross_entropy(outputs, targets, reduction="none")

    def scores(self, outputs: Tensor, targets: Tensor) -> ByName:
        """Name -> [n]; metrics are their means over test records. `accuracy`, of classes, is in
        percent.
        """
        found = {"test_loss": self.losses(outputs, targets)}
        if self.info.classes is None:
            return found
        return {"accuracy": 100.0 * (outputs.argmax(dim=1) == targets), **found}

    def test_weights(self, federation: Federation, tests: Records) -> ndarray:
        """[N] weights in metrics of a federation's test records, whose sum is 1; all equal."""
        return np.full(len(tests), 1.0 / len(tests))

    def initial_values(self, generator: np.random.Generator) -> ndarray:
        """[d] initial parameters of one run; those of PyTorch's layers (`default_values`)."""
        return np.concatenate([value.ravel() for value in default_values(self._module, generator)])

    # The objective.

    @classmethod
    def dimension_of(cls, settings: Any, info: DatasetInfo) -> int:
        """d, the number of trainable parameters."""
        if (key := (cls, repr(settings), repr(info))) not in _dimensions:
            with torch.device("meta"):
                own = trainable(cls.network(settings, info)).values()
            _dimensions[key] = sum(one.numel() for one in own)
        return _dimensions[key]

    @classmethod
    def workspace(cls, settings: Any, info: DatasetInfo, clients: int) -> int:
        """What all threads hold at once: a pass, gradients of some records, and the parameters."""
        d = cls.dimension_of(settings, info)
        values = 2 * max(d, min(cls.clipped_records * d, CLIPPED_VALUES)) + 3 * d
        return torch.get_num_threads() * (PASS_BYTES + cls.dtype.itemsize * values)

    def initial(self, streams: Streams) -> Tensor:
        """As `initial_values`, from each run's stream "init"."""
        rows = [self.initial_values(streams.generator(run, "init")) for run in range(self.runs)]
        return torch.from_numpy(np.stack(rows)).to(self.device, self.dtype)

    def gradient(self, parameters: Tensor, batch: Tensor | None = None) -> ClientValues:
        """[R, M, d] of all records or of a batch [R, M, b] of them; 0 for a client without any."""
        if batch is not None and self.device.type != "cpu" and self.at_once:
            return client_values(self._minibatches_at_once(opened(parameters), batch))

        def work(part: ClientPart, out: Tensor) -> None:
            for inputs, targets, _ in self._passes(part, self._pass_records):
                own = self._named(part.values, needs_gradient=True)
                with torch.enable_grad():
                    mean = self._losses(own, inputs, targets).sum() * part.share
                    # zeros of what a forward pass does not use
                    gradients = torch.autograd.grad(mean, [*own.values()], materialize_grads=True)
                out += torch.cat([gradient.flatten() for gradient in gradients])

        return self._each_client(work, parameters, batch, self.dimension)

    def clipped_gradient(
        self, parameters: Tensor, clip_norm: Tensor, batch: Tensor | None = None
    ) -> Bounded:
        limits = clip_norm.to(self.device, torch.float64)

        def work(part: ClientPart, out: Tensor) -> None:
            for each, norms, _ in self._record_gradients(part):
                shares = bounded_shares(norms.new_full((), part.share), norms, limits[part.run])
                out += torch.cat([one.combined(shares) for one in each])

        means = self._each_client(work, parameters, batch, self.dimension)
        return record_mean(means, clip_norm.to(self.device), self.divisors(batch))

    def squared_gradient_norms(
        self, parameters: Tensor, batch: Tensor | None = None
    ) -> ClientValues:
        """[R, M, b] squared norms; infinite for a record whose gradient is not finite."""

        def work(part: ClientPart, out: Tensor) -> None:
            for _, norms, places in self._record_gradients(part):
                squared = norms.square().nan_to_num(torch.inf, torch.inf)
                out[on_device(places, self.device)] = squared.to(self.dtype)

        width = max(1, int(self.held.max())) if batch is None else batch.shape[-1]
        return self._each_client(work, parameters, batch, width)

    def metrics(self, parameters: Tensor) -> ByName:
        """Each [R]: `train_loss`, (1/M) sum_i of the clients' mean losses; `scores` of test
        records; and where asked `watched_train_loss`, a client's own, and `gradient_quantiles`.
        """
        found = self._train_loss(parameters, "train_loss")
        watched = getattr(self.settings, "watched_client", None)
        if watched is not None:
            found |= self._train_loss(parameters, "watched_train_loss", watched)
        return found | self.asked_quantiles(parameters) | self._tested(parameters)

    def _tested(self, parameters: Tensor) -> ByName:
        """Each [R]: means of `scores` over test records; none where a federation has none."""
        tests: list[Weighted] = []
        for federation in self.federations:
            records = federation.dataset.test
            if records is None:
                return {}
            tests.append((records, np.arange(len(records)), self.test_weights(federation, records)))
        return self._evaluated(parameters, self.scores, tests)

    def record_gradients(
        self, parameters: ByName, inputs: Tensor, targets: Tensor
    ) -> list[RecordGradients]:
        """Gradients of n records' losses, by every parameter in order."""
        if self.by_layers:
            return layer_gradients(self.module, lambda: self._losses(parameters, inputs, targets))

        def loss(own: ByName, one: Tensor, target: Tensor) -> Tensor:
            return self._losses(own, one.unsqueeze(0), target.unsqueeze(0)).squeeze(0)

        found = vmap(grad(loss), in_dims=(None, 0, 0))(parameters, inputs, targets)
        return [RecordRows(one.reshape(len(one), -1)) for one in found.values()]

    def _minibatches_at_once(self, parameters: Tensor, batch: Tensor) -> Tensor:
        """[R, M, d] gradients of a batch [R, M, b] by one call, as `gradient` on a device."""

        def mean_loss(own: ByName, inputs: Tensor, targets: Tensor, shares: Tensor) -> Tensor:
            return self._losses(own, inputs, targets) @ shares

        result = torch.zeros_like(parameters)
        most = max(1, self._pass_bytes // (batch.shape[-1] * self._kept_bytes))
        of_clients = vmap(grad(mean_loss), chunk_size=most)
        for runs, train, rows, inside in self._held_records.rows(on_device(batch, self.device)):
            features, targets = self._pools.of(train)
            pairs = rows.flatten(0, 1)
            inputs = self.inputs(features[pairs.flatten()]).unflatten(0, pairs.shape)
            own = self._named(parameters[runs].flatten(0, 1))
            shares = inside.flatten(0, 1).to(self.dtype) / batch.shape[-1]
            found = of_clients(own, inputs, targets[pairs], shares).values()
            rows_of = torch.cat([one.reshape(len(one), -1) for one in found], dim=1)
            # 0 times what is not finite is not 0, and who has no record has the share of another's
            rows_of = torch.where(shares.any(-1, keepdim=True), rows_of, 0.0)
            result[runs] = rows_of.unflatten(0, rows.shape[:2])
        return result

    # Threads and passes.

    def _each_client(
        self,
        work: Callable[[ClientPart, Tensor], None],
        parameters: Tensor,
        batch: Tensor | None,
        width: int,
    ) -> ClientValues:
        """[R, M, width] of what work(part, out) adds to zeros, at parameters [R, M, d] and for all
        records or a batch [R, M, b] of them.
        """
        size, values = (self.runs, self.clients, width), opened(parameters)
        result = torch.zeros(size, dtype=self.dtype, device=self.device)
        drawn = None if batch is None else batch.cpu().numpy()
        for federation in self.federations:
            self._pools.of(federation.dataset.train)  # before threads ask for it

        def job(run: int, client: int) -> None:
            federation = self.federations[self.index[run]]
            partition = federation.partition
            own = partition.indices[partition.offsets[client] : partition.offsets[client + 1]]
            numbers = np.arange(len(own)) if drawn is None else drawn[run, client]
            places = np.flatnonzero((numbers >= 0) & (numbers < len(own)))
            records, share = federation.dataset.train, 1.0 / max(1, len(numbers))
            part = ClientPart(
                run, values[run, client], records, own[numbers[places]], places, share
            )
            with torch.no_grad():
                work(part, result[run, client])

        one_thread_each(job, np.ndindex(self.runs, self.clients), self._threads)
        return client_values(result)

    def _passes(self, part: ClientPart, most: int) -> Iterator[tuple[Tensor, Tensor, ndarray]]:
        """Inputs, targets and places of a client's records, `most` at a time."""
        for some in slices(len(part.numbers), most):
            yield *self._records(part.records, part.numbers[some]), part.places[some]

    def _record_gradients(
        self, part: ClientPart
    ) -> Iterator[tuple[list[RecordGradients], Tensor, ndarray]]:
        """`record_gradients` of k records, their norms [k] in float64, infinite or NaN where they
        are not finite, and places, for some records at a time.
        """
        most = self._pass_records
        if not self.by_layers:
            most = min(self.clipped_records, max(1, CLIPPED_VALUES // self.dimension), most)
        for inputs, targets, places in self._passes(part, most):
            own = self._named(part.values, needs_gradient=self.by_layers)
            each = self.record_gradients(own, inputs, targets)
            norms = torch.stack([one.norms() for one in each])
            yield each, torch.linalg.vector_norm(norms, dim=0), places

    @property
    def _pass_records(self) -> int:
        """How many records a pass takes."""
        return max(1, min(PASS_RECORDS, self._pass_bytes // self._kept_bytes))

    @cached_property
    def _pass_bytes(self) -> int:
        """What a pass may keep; on a GPU, which has one at a time, as much as fits well."""
        on_cpu = self.device.type == "cpu"
        return PASS_BYTES if on_cpu else min(DEVICE_BYTES, free_memory(self.device) // 8)

    @cached_property
    def _kept_bytes(self) -> int:
        """What a record keeps for the backward pass."""
        some = self._records(self.federations[0].dataset.train, np.zeros(1, np.int64))
        inputs, targets = map(torch.zeros_like, some)  # of no record
        zeros = torch.zeros(self.dimension, dtype=self.dtype, device=self.device)
        own = self._named(zeros, needs_gradient=True)
        losses = partial(self._losses, own, inputs, targets)
        return max(1, kept_bytes(losses, own.values()))

    def _losses(self, own: ByName, inputs: Tensor, targets: Tensor) -> Tensor:
        """[n] the records' losses at parameters by name."""
        return self.losses(functional_call(self.module, own, (inputs,)), targets)

    def _named(self, values: Tensor, needs_gradient: bool = False) -> ByName:
        """The parameters [..., *shape] by name, from [..., d], apart, for a product's bits."""
        parts = values.split([shape.numel() for shape in self._shapes.values()], dim=-1)
        named = zip(self._shapes.items(), parts, strict=True)
        return {
            name: part.clone().view((*part.shape[:-1], *shape)).requires_grad_(needs_gradient)
            for (name, shape), part in named
        }

    def _train_loss(self, parameters: Tensor, name: str, client: int | None = None) -> ByName:
        """[R] by this name: the train loss of one client, or the mean of all."""
        most = getattr(self.settings, "train_loss_records", None)
        records: list[Weighted] = []
        for federation in self.federations:
            part = federation.partition
            if client is not None:
                part = part.of(np.array([client]))
            if most is not None:
                part = part.first(most)
            weights = np.repeat(1.0 / np.maximum(part.counts, 1) / part.clients, part.counts)
            records.append((federation.dataset.train, part.indices, weights))
        return self._evaluated(parameters, lambda *given: {name: self.losses(*given)}, records)

    def _evaluated(self, parameters: Tensor, scores: Scores, records: list[Weighted]) -> ByName:
        """Each [R]: weighted sums of scores at parameters [R, d], of every federation's records."""
        rows = [
            self._means(values, records[number], scores)
            for values, number in zip(parameters, self.index, strict=True)
        ]
        return {name: torch.stack([row[name] for row in rows]).to(self.dtype) for name in rows[0]}

    def _means(self, parameters: Tensor, given: Weighted, scores: Scores) -> ByName:
        """Weighted sums, in float64, of the scores of some records at parameters [d]."""
        records, numbers, weights = given
        parts = slices(max(1, len(numbers)), self._pass_records)
        named = self._named(parameters)
        self._pools.of(records)

        def job(part: slice) -> ByName:
            inputs, targets = self._records(records, numbers[part])
            share = on_device(weights[part], self.device)
            with torch.no_grad():
                values = scores(functional_call(self.module, named, (inputs,)), targets)
            return {name: value.double() @ share for name, value in values.items()}

        found = one_thread_each(job, zip(parts), self._threads)
        return {name: torch.stack([part[name] for part in found]).sum() for name in found[0]}

    def _records(self, records: Records, numbers: ndarray) -> tuple[Tensor, Tensor]:
        """The network's inputs and the targets of some records."""
        features, targets = self._pools.of(records)
        rows = on_device(numbers, self.device)
        return self.inputs(features[rows]), targets[rows]
