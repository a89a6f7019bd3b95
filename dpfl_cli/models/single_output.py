"""Models with one linear output per record: l(a . v, y), such as linear and logistic regression, in float64.

With s_j = dl/dz at z_j = a_j . v, a record's gradient is s_j a_j and its norm |s_j| ||a_j||, so

    mean of gradients          (1/n) A^T s
    mean of clipped gradients  (1/n) A^T (s min(1, C / (|s| ||a||)))

and no gradient of a single record is ever made. With the loss's second derivative l'' a record's Hessian is l'' a a^T, of norm
|l''| ||a||^2, and a client's is A^T diag(w) A. A record whose gradient or matrix is not finite counts as zero where it is
clipped. A compiled kernel computes gradients on CPUs (`single_output_kernel`); stacked tensor operations serve other devices, and
where the kernel cannot be built. The two are tested equal.

Reference: Goodfellow, "Efficient per-example gradient computations", 2015, arXiv:1510.01799.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from dpfl_cli.data.devices import on_device
from dpfl_cli.data.federation import DatasetInfo, Federation
from dpfl_cli.data.programs import built_or_none
from dpfl_cli.models.curvature import (
    covariance_inverse,
    covariance_product,
    covariance_solve,
    largest_eigenvalue,
    packed,
    precondition,
)
from dpfl_cli.models.objective import Curvature, Objective
from dpfl_cli.models.pairs import CPU_BLOCK, LARGEST_NORM, bounded_shares, product
from dpfl_cli.models.stacks import RUN_BLOCK, filled, index_of, put
from dpfl_cli.privacy.bounded import Bounded, record_covariance, record_mean
from dpfl_cli.privacy.client_values import ClientValues, client_values, opened

if TYPE_CHECKING:
    from dpfl_cli.models.single_output_kernel import Layout, SingleOutputKernel


ROW_UNIT = 8  # every client starts at a multiple: a vector of the kernel
SMALLEST_NORM = 1e-150  # of features; the squares of smaller ones are no normal numbers
Mode = Literal["gradient", "clipped", "norms", "loss"]


@dataclass(frozen=True)
class Shard:
    """The records of one federation's clients, client after client, each filled up with zero rows to a multiple of `ROW_UNIT`.

    A record that is not finite, or whose norm exceeds `LARGEST_NORM`, has features 0 and the target NaN: its gradient is not
    finite, and infects no other in a product as long as it counts as zero. A record whose norm is below `SMALLEST_NORM` has
    features 0: a norm whose squares underflow bounds nothing.

    Attributes:
      runs: [S] which of the R runs use the federation.
      rows: [K, d] features; the last row is of no record.
      targets: [K] y; 0 where there is no record.
      norms, inverses: [K] ||a|| and 1 / ||a||.
      weights: [K] 1 / (M n_i), which sum to 1 where every client has records; 0 where there is no record.
      firsts, counts: [M] int64 row of each client's first record, and number of its records.
      buckets: clients that hold about equally many records.
    """

    runs: np.ndarray
    rows: Tensor
    targets: Tensor
    norms: Tensor
    inverses: Tensor
    weights: Tensor
    firsts: np.ndarray
    counts: np.ndarray
    buckets: list[np.ndarray]

    @cached_property
    def layout(self) -> Layout:
        """The same for the kernel."""
        from dpfl_cli.models.single_output_kernel import LANES, Layout, aligned

        rows = self.rows.numpy()
        features = aligned(rows.size).reshape(-1, rows.shape[1], LANES)
        np.copyto(features, rows.reshape(-1, LANES, rows.shape[1]).transpose(0, 2, 1))
        plain = (self.targets.numpy(), self.norms.numpy(), self.inverses.numpy())
        return Layout(features, rows, *plain, self.firsts, self.counts)

    def places(self, clients: np.ndarray, numbers: np.ndarray) -> np.ndarray:
        """[k, n] rows of the given clients' records [k, n] by number; the last row for a number that is none of the client's."""
        own = (numbers >= 0) & (numbers < self.counts[clients, None])
        return np.where(own, self.firsts[clients, None] + numbers, len(self.rows) - 1)


class SingleOutput(Objective):
    """Base of models with one linear output per record. A subclass gives the loss, and what of it the kernel needs to know.

    Attributes:
      kernel_loss: the loss's name in the kernel.
      kernel_scale: its factor there.
      l2: h(x) = l2 / 2 ||x||^2 is part of every f_i.
    """

    dtype = torch.float64
    provides: ClassVar[frozenset[str]] = frozenset({"clipped_gradient", "squared_gradient_norms", "covariance", "damped_solve"})
    unreleased_metrics: ClassVar[frozenset[str]] = frozenset({"train_loss"})
    kernel_loss: ClassVar[str]
    kernel_scale = 1.0
    l2 = 0.0

    @abstractmethod
    def encoded(self, targets: np.ndarray) -> np.ndarray:
        """[N] y as the loss takes them, float64."""

    @abstractmethod
    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """l(z, y), elementwise."""

    @abstractmethod
    def derivative(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """s = dl/dz, elementwise."""

    @abstractmethod
    def second_derivative(self, outputs: Tensor) -> Tensor:
        """l'' = d^2 l / dz^2 >= 0, elementwise; of these losses it does not depend on y."""

    def gradient(self, parameters: Tensor) -> ClientValues:
        """[R, M, d] grad f_i(v_i) = (1 / n_i) A_i^T s + l2 v_i; 0 for a client without records."""
        return client_values(self._computed("gradient", opened(parameters)))

    def clipped_gradient(self, parameters: Tensor, clip_norm: Tensor, batch: Tensor | None = None) -> Bounded:
        """As the contract. A number in a batch that is none of the client's records counts as a record of gradient zero."""
        limit = clip_norm.to(self.device, self.dtype)
        means = self._computed("clipped", opened(parameters), limit, batch)
        records = self.divisors(batch)
        return record_mean(client_values(means), limit, records)

    def squared_gradient_norms(self, parameters: Tensor, batch: Tensor | None = None) -> ClientValues:
        """[R, M, b] s^2 ||a||^2; infinite for a record whose gradient is not finite."""
        return client_values(self._computed("norms", opened(parameters), None, batch))

    def damped_solve(
        self,
        parameters: Tensor,
        right: Tensor,
        damping: Tensor,
        curvature: Curvature = "hessian",
        clip_norm: Tensor | None = None,
    ) -> ClientValues:
        """As the contract, by a factor of A^T diag(w) A + damping I, or where n < d of the smaller matrix of Woodbury's identity.

        A record's matrix that is not finite counts as zero; a client without records divides by the damping.
        """
        sides, shifts = opened(right), damping.to(self.device, self.dtype)
        result = sides / shifts.reshape(-1, 1, 1)
        for run, clients, features, shares in self._curvatures(opened(parameters), curvature, clip_norm):
            side, roots = sides[run, clients].unsqueeze(1), shares.sqrt()
            inverse, solved = covariance_inverse(features, roots, shifts[run]), torch.empty_like(side)
            covariance_solve(features, roots, inverse, side, shifts[run], solved)
            result[run, clients] = solved.squeeze(1)
        return client_values(result)

    def largest_curvature(
        self, parameters: Tensor, curvature: Curvature = "hessian", clip_norm: Tensor | None = None
    ) -> ClientValues:
        """As the contract, by Lanczos."""
        values = opened(parameters)
        result = values.new_zeros(self.runs, self.clients)
        for run, clients, features, shares in self._curvatures(values, curvature, clip_norm):
            like = values[run, clients][None, :, None]
            result[run, clients] = largest_eigenvalue(covariance_product(features, shares.unsqueeze(0)), like)[0]
        return client_values(result)

    @classmethod
    def features_of(cls, settings: Any, info: DatasetInfo) -> int:
        """d: there is one output."""
        return cls.dimension_of(settings, info)

    def covariance(self) -> ClientValues:
        """As the contract."""
        return client_values(self._covariance(torch.full((self.runs,), torch.inf, dtype=self.dtype, device=self.device)))

    def clipped_covariance(self, clip_norm: Tensor) -> Bounded:
        """As the contract."""
        limit = clip_norm.to(self.device, self.dtype)
        return record_covariance(client_values(self._covariance(limit.square())), limit, self.divisors(None))

    def precondition(self, values: Tensor, matrices: Tensor) -> Tensor:
        """As the contract."""
        applied = precondition(opened(values), matrices, self.dimension)
        return client_values(applied) if isinstance(values, ClientValues) else applied

    def regulariser_gradient(self, parameters: Tensor) -> Tensor:
        """l2 x."""
        return self.l2 * parameters

    def mean_losses(self, model: Tensor) -> Tensor:
        """[R, M] mean over a client's records of their losses at models [R, d], without h; 0 where there are none."""
        return self._computed("loss", model.unsqueeze(1).expand(-1, self.clients, -1)).squeeze(-1)

    @cached_property
    def _largest(self) -> int:
        """The largest number of records that a client holds, at least 1."""
        return max(1, int(self.held.max()))

    @cached_property
    def _shards(self) -> list[Shard]:
        return [self._shard(federation, np.flatnonzero(self.index == n)) for n, federation in enumerate(self.federations)]

    def _shard(self, federation: Federation, runs: np.ndarray) -> Shard:
        partition, train = federation.partition, federation.dataset.train
        counts = partition.counts
        heights = -(-counts // ROW_UNIT) * ROW_UNIT
        firsts = np.cumsum(heights) - heights
        total = int(heights.sum()) + ROW_UNIT
        places = np.repeat(firsts - partition.offsets[:-1], counts) + np.arange(len(partition.indices))
        rows, targets, weights = np.zeros((total, self.dimension)), np.zeros(total), np.zeros(total)
        rows[places] = train.features[partition.indices]
        targets[places] = self.encoded(train.targets[partition.indices])
        weights[places] = np.repeat(1.0 / np.maximum(counts, 1) / len(counts), counts)
        norms = torch.linalg.vector_norm(torch.from_numpy(rows), dim=-1).numpy()
        tiny, strange = norms < SMALLEST_NORM, ~(norms <= LARGEST_NORM[self.dtype])  # NaN among the latter
        rows[tiny | strange], norms[tiny | strange], targets[strange] = 0.0, 0.0, np.nan
        inverses = 1.0 / np.maximum(norms, np.finfo(np.float64).tiny)
        return Shard(
            runs=runs,
            rows=torch.from_numpy(rows).to(self.device),
            targets=torch.from_numpy(targets).to(self.device),
            norms=torch.from_numpy(norms).to(self.device),
            inverses=torch.from_numpy(inverses).to(self.device),
            weights=torch.from_numpy(weights).to(self.device),
            firsts=firsts,
            counts=counts,
            buckets=[clients for clients in federation.buckets() if counts[clients].any()],
        )

    def _computed(self, mode: Mode, values: Tensor, bounds: Tensor | None = None, batch: Tensor | None = None) -> Tensor:
        """[R, M, d] means over records, [R, M, b] squared norms or [R, M, 1] mean losses, at parameters [R, M, d]."""
        width = {"norms": self._largest if batch is None else batch.shape[-1], "loss": 1}.get(mode, self.dimension)
        kernel = compiled_kernel() if self.device.type == "cpu" else None
        if kernel is None:
            return self._stacked(mode, values, bounds, batch, width)
        computed: Tensor = self.host(self._compiled, kernel, mode, values, bounds, batch, width)
        return computed

    def _compiled(
        self, kernel: SingleOutputKernel, mode: Mode, values: Tensor, bounds: Tensor | None, batch: Tensor | None, width: int
    ) -> Tensor:
        """As `_computed`, by the kernel."""
        result = torch.empty(self.runs, self.clients, width, dtype=self.dtype)
        loss = self.kernel_loss, self.kernel_scale, self.l2
        given, out = values.numpy(), result.numpy()
        limits = None if bounds is None else bounds.contiguous().numpy()
        numbers = None if batch is None else batch.numpy()
        for shard in self._shards:
            kernel.compute(mode, *loss, shard.layout, shard.runs, given, out, limits, numbers, torch.get_num_threads())
        return result

    def kernel_arguments(
        self, kernel: SingleOutputKernel, mode: Mode, values: Tensor, bounds: Tensor | None, batch: Tensor | None, width: int
    ) -> list[tuple[Any, ...]]:
        """What `_compiled` calls the kernel with, once for every federation; the result is not filled."""
        given, out = values.numpy(), np.empty((self.runs, self.clients, width))
        limits = None if bounds is None else bounds.contiguous().numpy()
        numbers = None if batch is None else batch.numpy()
        loss = self.kernel_loss, self.kernel_scale, self.l2
        return [kernel.arguments(mode, *loss, s.layout, s.runs, given, out, limits, numbers) for s in self._shards]

    def _curvatures(
        self, values: Tensor, curvature: Curvature, clip_norm: Tensor | None
    ) -> Iterator[tuple[int, Tensor, Tensor, Tensor]]:
        """Blocks of one run's clients [k] that have records: (run, clients, rows A [k, n, d], shares w [k, n])."""
        limits = values.new_full((self.runs,), torch.inf) if clip_norm is None else clip_norm.to(self.device, self.dtype)
        for shard in self._shards:
            for bucket in shard.buckets:
                held = bucket[shard.counts[bucket] > 0]
                height = int(shard.counts[held].max())
                size = max(1, CPU_BLOCK // (self.dtype.itemsize * height * (2 * self.dimension + 4)))
                for start in range(0, len(held), size):
                    some = held[start : start + size]
                    numbers = np.broadcast_to(np.arange(height), (len(some), height))
                    places = on_device(shard.places(some, numbers), self.device)
                    clients = on_device(some, self.device)
                    features, squared = shard.rows[places], shard.norms[places].square()
                    squared = torch.where(shard.targets[places].isfinite(), squared, torch.inf)  # records that count as zero
                    weights = shard.weights[places] * self.clients
                    for run in shard.runs.tolist():
                        curved = torch.ones_like(weights)
                        if curvature == "hessian":
                            curved = self.second_derivative(product(features, values[run, clients].unsqueeze(-1)).squeeze(-1))
                        shares = bounded_shares(weights, curved * squared, limits[run])
                        yield run, clients, features, shares * curved.nan_to_num(0.0, 0.0, 0.0)

    def _covariance(self, limits: Tensor) -> Tensor:
        """[R, M, d (d + 1) / 2] means of a a^T, each clipped to a Frobenius norm [R]."""
        result = torch.zeros(self.runs, self.clients, self.dimension * (self.dimension + 1) // 2, dtype=self.dtype)
        result = result.to(self.device)
        for shard in self._shards:
            for clients in shard.buckets:
                counts = shard.counts[clients]
                numbers = np.broadcast_to(np.arange(counts.max()), (len(clients), counts.max()))
                places = on_device(shard.places(clients, numbers), self.device)
                rows, squared = shard.rows[places], shard.norms[places].square()
                weights = on_device(1.0 / np.maximum(counts, 1), rows.device, rows.dtype).unsqueeze(-1)
                for run in shard.runs.tolist():
                    shares = bounded_shares(weights, squared, limits[run])
                    result[run, clients] = packed(product((rows * shares.unsqueeze(-1)).mT, rows), self.dimension)
        return result

    # The torch path.

    def _stacked(self, mode: Mode, values: Tensor, bounds: Tensor | None, batch: Tensor | None, width: int) -> Tensor:
        """As `_computed`: a client's runs are the columns of a product, `RUN_BLOCK` at a time; with a batch, one run."""
        result = values.new_zeros(self.runs, self.clients, width)
        limits = values.new_full((self.runs,), torch.inf) if bounds is None else bounds
        everybody = np.arange(self.clients)
        for shard in self._shards:
            if batch is not None:
                for run in shard.runs.tolist():
                    places = self._places(shard, everybody, batch[run])
                    found = self._block(mode, shard, places, values[run].unsqueeze(-1), limits[run : run + 1])
                    result[run] = found.squeeze(-1) / (1 if mode == "norms" else batch.shape[-1])
                continue
            for clients in shard.buckets:
                counts = shard.counts[clients]
                numbers = np.broadcast_to(np.arange(counts.max()), (len(clients), counts.max()))
                places = on_device(shard.places(clients, numbers), self.device)
                divisors = on_device(counts, values.device, values.dtype)[:, None, None]
                for start in range(0, len(shard.runs), RUN_BLOCK):
                    runs = index_of(shard.runs[start : start + RUN_BLOCK], self.device)
                    where = index_of(clients, self.device)
                    columns = filled(values[runs][:, where].permute(1, 2, 0))
                    found = self._block(mode, shard, places, columns, filled(limits[runs]))
                    found = found if mode == "norms" else found / divisors
                    missing = (0, width - found.shape[1])
                    kept = torch.nn.functional.pad(found[..., : len(limits[runs])].permute(2, 0, 1), missing)
                    put(result, runs, where, kept)
        if mode == "gradient" and self.l2:
            result.addcmul_(values, (self.records > 0).unsqueeze(-1).to(self.dtype), value=self.l2)
        return result

    def _places(self, shard: Shard, clients: np.ndarray, numbers: Tensor) -> Tensor:
        """`Shard.places` of record numbers [k, n] where they are: those drawn on the host go to a device as places."""
        if numbers.device.type == "cpu":
            return on_device(shard.places(clients, numbers.numpy()), self.device)
        firsts, counts = (on_device(part[clients, None], self.device) for part in (shard.firsts, shard.counts))
        return torch.where((numbers >= 0) & (numbers < counts), firsts + numbers, len(shard.rows) - 1)

    def _block(self, mode: Mode, shard: Shard, places: Tensor, columns: Tensor, limits: Tensor) -> Tensor:
        """Sums over records [k, d, S] at parameters [k, d, S], squared norms [k, n, S] or sums of losses [k, 1, S].

        Args: `places` [k, n], `limits` [S].
        """
        features = shard.rows[places]
        outputs, targets = product(features, columns), shard.targets[places].unsqueeze(-1)
        if mode == "loss":
            there = (shard.weights[places] > 0).to(outputs.dtype).unsqueeze(-2)
            return product(there, self.loss(outputs, targets))
        s = self.derivative(outputs, targets)
        norms = shard.norms[places].unsqueeze(-1)
        if mode == "norms":
            return (s * norms).square().nan_to_num(torch.inf, torch.inf)
        if mode == "clipped":
            reach = limits * shard.inverses[places].unsqueeze(-1)
            s = torch.where(s.abs() * norms < torch.inf, torch.minimum(torch.maximum(s, -reach), reach), 0.0)
        return product(features.mT, s)


@cache
def compiled_kernel() -> SingleOutputKernel | None:
    """The kernel, or None, saying so once, where it cannot be built."""
    return built_or_none(_kernel, "the kernel of linear models", "using torch, which is slower")


def _kernel() -> SingleOutputKernel:
    from dpfl_cli.models.single_output_kernel import SingleOutputKernel  # the compiler takes its time to import

    return SingleOutputKernel()
