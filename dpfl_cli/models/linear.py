"""Linear regression: f_i(w) = loss_factor * mean_j (x_ij . w - y_ij)^2 in float64.

Runs that share a federation share its features: they are the columns of one product per bucket of clients. A client with one
record never leaves the span of that record (and of its drift), so its whole local run is a recursion in one number. A compiled
kernel takes these clients on CPUs (`linear_kernel`); stacked tensor operations serve other devices, and where the kernel cannot
be built. The two are tested equal.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from dpfl_cli.config.component import Settings, component
from dpfl_cli.config.errors import ConfigError
from dpfl_cli.data.federation import DatasetInfo, Federation
from dpfl_cli.data.programs import built_or_none
from dpfl_cli.data.streams import Streams
from dpfl_cli.models.single_output import SingleOutput
from dpfl_cli.models.stacks import RUN_BLOCK, Bucket, Group, by_blocks, filled, groups_of, optimum_of, put
from dpfl_cli.privacy.bounded import Bounded, Rows, clip_multiples, runs_of_either
from dpfl_cli.privacy.client_values import ClientValues, client_values, opened

if TYPE_CHECKING:
    from dpfl_cli.models.linear_kernel import Layout, LinearKernel


SUMMED = 1024  # clients whose losses are added up at once


class LinearRegressionSettings(Settings):
    """Settings of `linear_regression`."""

    later: ClassVar[frozenset[str]] = frozenset({"init", "objective", "gradient_quantiles"})

    loss_factor: float = Field(0.5, gt=0, allow_inf_nan=False)
    init: Literal["zeros", "normal"] = "zeros"
    objective: bool = False
    gradient_quantiles: bool = False


@dataclass(frozen=True)
class _Span:
    """S runs of B clients with one record each, whose local runs are a recursion (`_descend_in_spans`).

    Attributes:
      decay, pull: [S, B] 1 - k ||x||^2 and -k r.
      turn: [S, B] k lr x.g; None without a drift.
      drift: [S, B, d] g, or None.
      rate: [S, 1] lr.
    """

    group: Group
    bucket: Bucket
    decay: Tensor
    pull: Tensor
    turn: Tensor | None
    drift: Tensor | None
    rate: Tensor


@component("model", "linear_regression", revision=2, settings=LinearRegressionSettings)
class LinearRegression(SingleOutput):
    """Linear regression with squared loss, float64, started at zero (unless init says otherwise).

    Reference: Takakura, Liew, Hasegawa (2025), section 5 (the factor 1/2 of the loss is what its step sizes imply).
    """

    kernel_loss = "squared"

    def __init__(
        self,
        settings: LinearRegressionSettings,
        federations: list[Federation],
        index: np.ndarray,
        device: torch.device | str = "cpu",
    ) -> None:
        super().__init__(settings, federations, index, device)
        self.features = self.dimension = self.dimension_of(settings, federations[0].dataset.info)
        self.kernel_scale = settings.loss_factor
        self._groups = groups_of(federations, index, self.dtype, self.device)
        optima = [optimum_of(federation, self.dtype, self.device) for federation in federations]
        known = [optima[number] for number in index.tolist()]
        self._optimum = None if any(one is None for one in known) else torch.stack(known)  # [R, d]

    @classmethod
    def dimension_of(cls, settings: LinearRegressionSettings, info: DatasetInfo) -> int:
        """d, the length of a record's feature vector."""
        if info.classes is not None or len(info.feature_shape) != 1 or info.target_shape:
            raise ConfigError(
                f"model=linear_regression: needs feature vectors with real targets, but dataset={info.name} has features of "
                f"shape {list(info.feature_shape)} and {info.classes or 'no'} classes; choose dataset=synthetic or another model"
            )
        return info.feature_shape[0]

    def initial(self, streams: Streams) -> Tensor:
        """[R, d] zeros, or N(0, I)."""
        values = np.zeros((self.runs, self.dimension))
        if self.settings.init == "normal":
            for run in range(self.runs):
                values[run] = streams.generator(run, "init").standard_normal(self.dimension)
        return torch.from_numpy(values).to(self.device)

    def unreleased(self) -> frozenset[str]:
        """As the contract, with `objective`."""
        return super().unreleased() | (frozenset({"objective"}) if self.settings.objective else frozenset())

    def encoded(self, targets: np.ndarray) -> np.ndarray:
        """y itself."""
        return targets

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """loss_factor (x . v - y)^2."""
        return self.settings.loss_factor * (outputs - targets).square()

    def derivative(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """2 loss_factor (x . v - y)."""
        return 2 * self.settings.loss_factor * (outputs - targets)

    def second_derivative(self, outputs: Tensor) -> Tensor:
        """2 loss_factor."""
        return torch.full_like(outputs, 2 * self.settings.loss_factor)

    def local_descent(self, start: Tensor, learning_rate: Tensor, steps: int, drift: Tensor | None = None) -> ClientValues:
        """As the definition; clients with one record take the recursion in its span."""
        rate = learning_rate.to(self.dtype)
        shift = None if drift is None else opened(drift)
        kernel = self._kernel()
        if kernel is None:
            result = torch.empty(self.runs, self.clients, self.dimension, dtype=self.dtype, device=self.device)
        else:  # with the updates of these clients, and the others' to be written yet
            result = self.host(self._updates, kernel, start, rate, steps, shift)
        spans = []
        for group, bucket in self._buckets(beside=kernel):
            model, pace = start[group.runs], rate[group.runs]
            extra = None if shift is None else shift[group.runs][:, bucket.clients]
            if bucket.features.shape[1] == 1:
                spans.append(self._span(group, bucket, model, pace, extra))
            elif isinstance(group.runs, slice) and isinstance(bucket.clients, slice):
                self._descend(bucket, model, pace, steps, extra, result[group.runs, bucket.clients])
            else:
                update = result.new_empty(len(model), len(bucket.counts), self.dimension)
                self._descend(bucket, model, pace, steps, extra, update)
                put(result, group.runs, bucket.clients, update)
        self._descend_in_spans(spans, steps, result)
        return client_values(result)

    def bounded_descent(self, start: Tensor, learning_rate: Tensor, steps: int, clip_norm: Tensor) -> Bounded:
        """As the contract. Where every client has one record at most, its update is a number a times that record x, and the door
        clips a x from a and ||x||: no update is ever written.

        A run's federation decides this, not its company in a batch, for the bits of the two ways differ.
        """
        kernel, spans = self._kernel(), self._in_spans
        if kernel is None or not spans.any():
            return super().bounded_descent(start, learning_rate, steps, clip_norm)
        rate = learning_rate.to(self.dtype)
        along = self.host(self._coefficients, kernel, start, rate, steps)
        quick = clip_multiples(along, self._rows, clip_norm)
        if spans.all():
            return quick
        return runs_of_either(torch.from_numpy(spans), quick, super().bounded_descent(start, learning_rate, steps, clip_norm))

    def metrics(self, parameters: Tensor) -> dict[str, Tensor]:
        """`distance` ||w - w*|| and `relative_distance` ||w - w*|| / ||w*|| (where the optimum w* is known), and `train_loss`
        (1/M) sum_i mean_j (x_ij . w - y_ij)^2, each [R]; where settings ask for them `objective`, (1/M) sum_i f_i, which is
        loss_factor times that, and `gradient_quantiles`."""
        losses = parameters.new_zeros(self.runs, -(-self.clients // SUMMED) * SUMMED)
        kernel = self._kernel()
        if kernel is not None:
            kernel.squared_errors(self._singles, parameters.contiguous().numpy(), losses.numpy(), torch.get_num_threads())
        for group, bucket in self._buckets(beside=kernel):
            fitted = by_blocks(bucket.features.matmul, parameters[group.runs].T)  # [B, n, S]
            squared = (fitted - bucket.targets.unsqueeze(-1)).square_().sum(dim=1) / bucket.counts.unsqueeze(-1)
            put(losses, group.runs, bucket.clients, squared.T)
        # along memory and in two steps: the order of the sum depends neither on R nor on threads
        loss = losses.unflatten(-1, (-1, SUMMED)).sum(dim=-1).sum(dim=-1) / self.clients
        more = {"objective": self.settings.loss_factor * loss} if self.settings.objective else {}
        more |= self.asked_quantiles(parameters)
        if self._optimum is None:
            return {"train_loss": loss, **more}
        distance = torch.linalg.vector_norm(parameters - self._optimum, dim=-1)
        return {
            "distance": distance,
            "relative_distance": distance / torch.linalg.vector_norm(self._optimum, dim=-1),
            "train_loss": loss,
            **more,
        }

    def _buckets(self, beside: LinearKernel | None) -> Iterator[tuple[Group, Bucket]]:
        """All buckets with their groups, or those that are left beside the kernel."""
        for group in self._groups:
            for bucket in group.buckets:
                if beside is None or bucket.features.shape[1] > 1:
                    yield group, bucket

    def _kernel(self) -> LinearKernel | None:
        """The kernel, where there is one and something for it to do."""
        single = any(bucket.features.shape[1] == 1 for _, bucket in self._buckets(beside=None))
        return linear_kernel() if single and self.device.type == "cpu" else None

    @staticmethod
    def _single(group: Group) -> bool:
        """Whether no client of a federation has more than one record."""
        return all(bucket.features.shape[1] == 1 for bucket in group.buckets)

    @cached_property
    def _in_spans(self) -> np.ndarray:
        """[R] of the runs: `_single`."""
        return np.array([self._single(self._groups[number]) for number in self.index.tolist()])

    def _found(self) -> list[tuple[Group, Bucket]]:
        """Clients with one record, or none."""
        return [(group, bucket) for group, bucket in self._buckets(beside=None) if bucket.features.shape[1] == 1]

    @cached_property
    def _records(self) -> Tensor:
        """[K, d] the records of these clients (zeros for none), of which their buckets hold views from now on."""
        records = torch.cat([bucket.features[:, 0] for _, bucket in self._found()])
        parts = iter(records.split([len(bucket.counts) for _, bucket in self._found()]))
        for group in self._groups:
            for number, bucket in enumerate(group.buckets):
                if bucket.features.shape[1] == 1:
                    group.buckets[number] = replace(bucket, features=next(parts).unsqueeze(1))
        return records

    @cached_property
    def _singles(self) -> Layout:
        """Clients with one record, or none, for the kernel."""
        from dpfl_cli.models.linear_kernel import Layout

        records, found = self._records, self._found()
        runs, clients = np.arange(self.runs), np.arange(self.clients)
        return Layout.of(
            records.numpy(),
            torch.cat([bucket.targets[:, 0] for _, bucket in found]).numpy(),
            torch.cat([bucket.squared_norms for _, bucket in found]).numpy(),
            np.concatenate([clients[bucket.clients] for _, bucket in found]),
            [(runs[group.runs], len(bucket.counts)) for group, bucket in found],
        )

    @cached_property
    def _rows(self) -> Rows:
        """Every client's record, or zeros, where no client of a federation has more; of the same memory, where it has this order.

        Federations whose clients have more are of zeros.
        """
        records, shape = self._records, (len(self._groups), self.clients, self.dimension)
        if all(self._single(group) and len(group.buckets) == 1 for group in self._groups):
            return Rows(records.view(shape), self.index.tolist())
        table = records.new_zeros(shape)
        for rows, group in zip(table, self._groups, strict=True):
            for bucket in group.buckets if self._single(group) else []:
                rows[bucket.clients] = bucket.features[:, 0]
        return Rows(table, self.index.tolist())

    def _updates(
        self, kernel: LinearKernel, start: Tensor, rate: Tensor, steps: int, drift: Tensor | None, out: Tensor | None = None
    ) -> Tensor:
        """`local_descent` of the clients with one record; what it gives for the others is of no meaning."""
        result = torch.empty(self.runs, self.clients, self.dimension, dtype=self.dtype) if out is None else out
        models, rates = start.contiguous().numpy(), rate.contiguous().numpy()
        shifts = None if drift is None else drift.contiguous().numpy()
        scale, threads = self.settings.loss_factor, torch.get_num_threads()
        kernel.updates(self._singles, scale, models, rates, steps, shifts, result.numpy(), threads)
        return result

    def _coefficients(self, kernel: LinearKernel, start: Tensor, rate: Tensor, steps: int, out: Tensor | None = None) -> Tensor:
        """[R, M] a of the updates a x without a drift (`_descend_in_spans`), of clients with one record; 0 of the others."""
        result = torch.zeros(self.runs, self.clients, dtype=self.dtype) if out is None else out
        models, rates = start.contiguous().numpy(), rate.contiguous().numpy()
        kernel.coefficients(
            self._singles, self.settings.loss_factor, models, rates, steps, result.numpy(), torch.get_num_threads()
        )
        return result

    def _gradient(
        self, bucket: Bucket, parameters: Tensor, residual: Tensor | None = None, gradient: Tensor | None = None
    ) -> Tensor:
        """[B, d, S] gradients at parameters [B, d, S] of one block of S runs: two products per client, runs as columns.

        `residual` [B, n, S] and `gradient` [B, d, S] are memory to work in.
        """
        scale = 2 * self.settings.loss_factor / bucket.counts
        targets = bucket.targets.unsqueeze(-1)
        residual = torch.baddbmm(targets, bucket.features, parameters, beta=-1, out=residual)  # X v - y, zero on padding
        return torch.bmm(bucket.features.mT, residual.mul_(scale.reshape(-1, 1, 1)), out=gradient)

    def _descend(self, bucket: Bucket, model: Tensor, rate: Tensor, steps: int, drift: Tensor | None, out: Tensor) -> None:
        """Local updates [S, B, d] by `steps` gradient steps v <- v - lr (grad f_i(v) + drift_i), block by block of runs."""
        residual = model.new_empty(*bucket.targets.shape, RUN_BLOCK)
        gradient = model.new_empty(len(bucket.counts), self.dimension, RUN_BLOCK)
        for first in range(0, len(model), RUN_BLOCK):
            block = slice(first, first + RUN_BLOCK)
            start = filled(model[block].T)  # [d, S]
            pace = filled(rate[block])
            columns = start.repeat(len(bucket.counts), 1, 1)  # [B, d, S]
            shift = None if drift is None else filled(drift[block].permute(1, 2, 0))
            for _ in range(steps):
                self._gradient(bucket, columns, residual, gradient)
                if shift is not None:
                    gradient += shift
                columns -= gradient.mul_(pace)
            out[block] = (columns - start).permute(2, 0, 1)[: len(out[block])]

    def _span(self, group: Group, bucket: Bucket, model: Tensor, rate: Tensor, drift: Tensor | None) -> _Span:
        """What the local run of clients with one record depends on, from their models [S, d] and drifts [S, B, d]."""
        record = bucket.features[:, 0]  # [B, d]
        lr = rate.unsqueeze(-1)
        k = 2 * self.settings.loss_factor * lr  # [S, 1]
        return _Span(
            group=group,
            bucket=bucket,
            decay=1 - k * bucket.squared_norms,
            pull=-k * (by_blocks(record.matmul, model.T).T - bucket.targets[:, 0]),
            turn=None if drift is None else k * lr * torch.linalg.vecdot(drift, record),  # k lr x.g
            drift=drift,
            rate=lr,
        )

    def _descend_in_spans(self, spans: list[_Span], steps: int, result: Tensor) -> None:
        """Writes local updates of clients with one record (x, y), by a recursion in one number per client, to result [R, M, d].

        With k = 2 loss_factor lr, r = x.w - y and drift g, every iterate is v_j = w + a_j x - j lr g, because the gradient is
        2 loss_factor (x.v_j - y) x and x.v_j - y = r + a_j ||x||^2 - j lr x.g. So a_0 = 0 and

            a_{j+1} = (1 - k ||x||^2) a_j - k r + j k lr x.g,

        for all runs and clients at once. Padding of a client without records is x = 0, y = 0, for which the same formula holds.
        """
        if not spans:
            return
        decay = torch.cat([span.decay.flatten() for span in spans])
        pull = torch.cat([span.pull.flatten() for span in spans])
        turns = [span.turn.flatten() for span in spans if span.turn is not None]
        turn = torch.cat(turns) if turns else None
        along = torch.zeros_like(pull)  # a_j
        for _ in range(steps):
            torch.addcmul(pull, along, decay, out=along)
            if turn is not None:
                pull += turn
        for span, part in zip(spans, along.split([span.pull.numel() for span in spans]), strict=True):
            self._write_span(span, part.reshape(span.pull.shape), steps, result)

    @staticmethod
    def _write_span(span: _Span, along: Tensor, steps: int, result: Tensor) -> None:
        """The updates a x - steps lr g, from along [S, B]."""
        runs, clients = span.group.runs, span.bucket.clients
        shape = *along.shape, result.shape[-1]
        direct = isinstance(runs, slice) and isinstance(clients, slice)
        update = result[runs, clients] if direct else result.new_empty(shape)
        torch.mul(along.unsqueeze(-1), span.bucket.features[:, 0], out=update)
        if span.drift is not None:
            update.addcmul_(span.drift, -steps * span.rate.unsqueeze(-1))
        if not direct:
            put(result, runs, clients, update)


@cache
def linear_kernel() -> LinearKernel | None:
    """The kernel, or None, saying so once, where it cannot be built."""
    return built_or_none(_kernel, "the kernel of linear regression", "using torch, which is slower")


def _kernel() -> LinearKernel:
    from dpfl_cli.models.linear_kernel import LinearKernel  # the compiler takes its time to import

    return LinearKernel()
