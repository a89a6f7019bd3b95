"""The records of a batch's clients, and matrix products whose bits do not depend on the batch.

Every record is a row of one `Pool`; runs that share a federation share its rows. A client's records
follow each other, filled up with zero rows to the largest of its bucket, so that a bucket is a view
`[clients, records, features]`, and a minibatch is one gather. Outputs come before records
(`[outputs, records]`): a product with ten rows is several times as fast as one with ten columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy import ndarray
from torch import Tensor
from torch.nn.functional import pad

from dpfl_cli.data.devices import on_device
from dpfl_cli.data.federation import Federation, Records
from dpfl_cli.data.threads import slices

# rows and columns are filled up to a multiple: 16 bytes, so that no pair's lie otherwise than
# another's
ALIGNMENT = 4
# Beyond this norm a residual so small that its square underflows can still make a large gradient;
# below the other one, the square of a norm bounds nothing.
LARGEST_NORM = {torch.float32: 1e12, torch.float64: 1e150}
SMALLEST_NORM = {torch.float32: 1e-18, torch.float64: 1e-150}
READ = 1 << 14  # records that are read at once
CPU_BLOCK = 32 << 20  # bytes that one block of pairs works on: they stay in a CPU's last cache
DEVICE_BLOCK = 1 << 30

# evenly spaced numbers as a slice, which makes a view; any others as a tensor
RecordIndex = slice | Tensor


def product(left: Tensor, right: Tensor, out: Tensor | None = None, *, add: float = 0.0) -> Tensor:
    """left [k, a, b] @ right [k, b, c] -> [k, a, c], with the same bits for a pair whoever stands
    beside it.

    A BLAS that has more threads than products cuts a product among them, and takes a vector by
    another path; either rounds otherwise. So few products are computed by one thread, and a vector
    is computed twice, as a matrix.

    Args:
      out: where the result goes.
      add: unless 0, out becomes out + add * product.
    """
    if left.shape[1] == 1 and not left.is_cuda:
        twice = None if out is None else out.expand(-1, 2, -1).contiguous()
        found = product(left.expand(-1, 2, -1).contiguous(), right, twice, add=add)[:, :1]
        return found if out is None else out.copy_(found)
    if right.shape[2] == 1 and not left.is_cuda:
        return product(right.mT, left.mT, None if out is None else out.mT, add=add).mT
    few = not left.is_cuda and left.shape[0] < torch.get_num_threads()  # `len` is Python's
    with one_thread() if few else nullcontext():
        if out is None or not add:
            return torch.bmm(left, right, out=out)
        return out.baddbmm_(left, right, alpha=add)


@contextmanager
def one_thread() -> Iterator[None]:
    """Torch computes on one thread: on more, a matrix is cut among them and rounds otherwise."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def shared_product(left: Tensor, right: Tensor, out: Tensor | None = None) -> Tensor:
    """left [S, B, a, b] @ right [B, b, c] -> [S, B, a, c]: the S runs share the right side, which
    is not copied for them.
    """
    runs, pairs = left.shape[:2]
    if out is None:
        out = left.new_empty(*left.shape[:3], right.shape[2])
    if pairs == 1:
        product(left[:, 0], right.expand(runs, -1, -1), out[:, 0])
        return out
    for run in range(runs):
        product(left[run], right, out[run])
    return out


def bounded_shares(shares: Tensor, norms: Tensor, clip_norm: Tensor) -> Tensor:
    """w_j min(1, C / ||v_j||): the shares of clipped records; zero where the norm is not finite."""
    return torch.where(norms < torch.inf, shares * (clip_norm / norms).clamp(max=1.0), 0.0)


@dataclass(frozen=True)
class Block:
    """S runs x B clients with their records, filled up with zero rows to n.

    Attributes:
      features: [B, n, q]; the S runs share them.
      targets: [B, n] classes, or numbers y.
      squared_norms: [B, n] ||x||^2; infinite for a record that is not finite, or whose norm exceeds
        `LARGEST_NORM`: its features are zeros here, and it counts as zero where it is clipped.
      weights: [B, n] 1 / m_i, the records' shares of their client's mean; 0 for rows that are no
        records.
      runs, clients: which of the R runs and M clients; `runs` is None where the block holds pairs
        of a minibatch, `clients` of the R * M.
      numbers: the runs' numbers; empty for a minibatch.
      key: what names these records in the pool; None for a minibatch.
    """

    features: Tensor
    targets: Tensor
    squared_norms: Tensor
    weights: Tensor
    runs: RecordIndex | None
    clients: RecordIndex
    numbers: Sequence[int] = ()
    key: tuple[int, int, int] | None = None

    def of(self, values: Tensor) -> Tensor:
        """[S, B, ...] the block's part of [R, M, ...]."""
        if self.runs is None:
            return values.flatten(0, 1)[self.clients].unsqueeze(0)
        return values[self.runs][:, self.clients]

    def put(self, result: Tensor, values: Tensor) -> None:
        """Writes [S, B, ...] to the block's places in a contiguous result [R, M, ...]."""
        runs = self.runs
        if runs is None:
            result.flatten(0, 1)[self.clients] = values[0]
            return
        if isinstance(runs, Tensor) and isinstance(self.clients, Tensor):
            runs = runs.unsqueeze(-1)
        result[runs, self.clients] = values

    def parts(self, size: int) -> Iterator[Block]:
        """The same pairs with `size` of their records at a time, filled up to a multiple of
        `ALIGNMENT`, on which a product's rounding would depend.
        """
        for some in slices(self.weights.shape[-1], size):
            names = ("features", "targets", "squared_norms", "weights")
            kept: dict[str, Any] = {name: getattr(self, name)[:, some] for name in names}
            missing = -kept["weights"].shape[1] % ALIGNMENT
            if missing:  # padding copies even where nothing is to be added
                kept = {
                    name: pad(part, (*(0, 0) * (part.dim() - 2), 0, missing))
                    for name, part in kept.items()
                }
            yield replace(self, **kept)


class _Segment(NamedTuple):
    """A bucket of one federation's clients: rows of the pool from `start` on, `height` to each."""

    federation: int
    clients: ndarray
    start: int
    height: int


class Pool:
    """The records of a batch's clients.

    Args:
      index: [R] which federation each run uses.
      features_of: (records, numbers [k]) -> features [k, q] of those records, on the device.
      targets_of: targets [k] of records -> classes (int64) or numbers y, for a `Block`.

    Attributes:
      features, targets, squared_norms, weights: [N, q] and [N], as of a `Block`; row 0 is no
        record.
      first, counts: [F, M] of every federation the row of each client's first record, and number of
        its records.
      largest: the largest number of records that a client holds, at least 1.
    """

    def __init__(
        self,
        federations: Sequence[Federation],
        index: ndarray,
        features_of: Callable[[Records, ndarray], Tensor],
        targets_of: Callable[[ndarray], ndarray],
    ) -> None:
        self.index = index
        self.counts = np.stack([federation.partition.counts for federation in federations])
        self.first = np.zeros_like(self.counts)
        self.largest = max(1, int(self.counts.max(initial=0)))
        self._segments, self._ends = _segments(federations)
        total = self._ends[-1]
        like = features_of(federations[0].dataset.train, np.arange(0))
        self.device = like.device
        self.features = like.new_zeros(total, like.shape[1])
        self.squared_norms, self.weights = like.new_zeros(2, total)
        kind = torch.from_numpy(targets_of(federations[0].dataset.train.targets[:0])).dtype
        self.targets = torch.zeros(total, dtype=kind, device=self.device)
        for segment in self._segments:
            federation = federations[segment.federation]
            own, train = federation.partition.of(segment.clients), federation.dataset.train
            starts = segment.start + segment.height * np.arange(own.clients)
            self.first[segment.federation, segment.clients] = starts
            each = np.repeat(np.arange(own.clients), own.counts)  # whose record it is
            rows = starts[each] + np.arange(len(each)) - own.offsets[each]
            for some in slices(len(rows), READ):
                numbers, places = own.indices[some], on_device(rows[some], self.device)
                self.features[places] = features_of(train, numbers)
                self.targets[places] = on_device(targets_of(train.targets[numbers]), self.device)
                shares = 1.0 / own.counts[each[some]]
                self.weights[places] = on_device(shares, self.device, self.weights.dtype)
        self._measure()
        self._first, self._counts = (
            on_device(part[index], self.device).unsqueeze(-1) for part in (self.first, self.counts)
        )

    def _measure(self) -> None:
        """Squared norms, summed in float64; rows beyond `LARGEST_NORM` or not finite become zeros
        of infinite norm, those below `SMALLEST_NORM` zeros.
        """
        dtype = self.features.dtype
        for some in slices(len(self.features), READ):
            features = self.features[some]
            squared = features.double().square().sum(dim=-1)
            strange = ~(squared <= LARGEST_NORM[dtype] ** 2)  # NaN among them
            tiny = squared < SMALLEST_NORM[dtype] ** 2
            features.masked_fill_((strange | tiny).unsqueeze(-1), 0.0)
            squared.masked_fill_(strange, torch.inf).masked_fill_(tiny, 0.0)
            self.squared_norms[some] = squared

    def runs(self, federation: int) -> ndarray:
        """[S] the runs that use it."""
        return np.flatnonzero(self.index == federation)

    def blocks(
        self,
        batch: Tensor | None,
        pair_bytes: Callable[[int], int],
        runs: Sequence[int] | None = None,
    ) -> Iterator[Block]:
        """All pairs that have records, in blocks under the byte budget.

        Args:
          batch: [R, M, b] record numbers of every client, or None for all its records. A number
            that is none of the client's own counts as no record: a row of zeros.
          pair_bytes: n -> bytes that the work on one pair with n records takes.
          runs: those of these runs alone, of all records.
        """
        if batch is None:
            return self._full(self._segments, pair_bytes, runs)
        return self._gathered(batch, pair_bytes)

    def together(self, pair_bytes: Callable[[int], int]) -> Iterator[Block]:
        """All records, as if client 0 held those of all its federation's clients; their weights
        remain their shares of their own client's mean. Federations of one run and of equal size
        come side by side, as the pairs of a minibatch.
        """
        heights = np.diff(self._ends).tolist()
        alone = np.array_equal(self.index, np.arange(len(heights)))
        if alone and heights[0] and len(set(heights)) == 1:
            size = max(1, self._budget // pair_bytes(heights[0]))
            for some in slices(len(heights), size):
                rows = slice(self._ends[some.start], self._ends[some.stop])
                yield self._block(rows, heights[0], None, some)
            return
        segments = [
            _Segment(number, np.zeros(1, np.int64), self._ends[number], height)
            for number, height in enumerate(heights)
            if height
        ]
        yield from self._full(segments, pair_bytes)

    def rows(self, federation: int) -> slice:
        """Where its records are, with rows of zeros, whose weight is zero, among them."""
        return slice(self._ends[federation], self._ends[federation + 1])

    def _full(
        self,
        segments: Sequence[_Segment],
        pair_bytes: Callable[[int], int],
        among: Sequence[int] | None = None,
    ) -> Iterator[Block]:
        for number, segment in enumerate(segments):
            runs, height = self.runs(segment.federation), segment.height
            if among is not None:
                runs = runs[np.isin(runs, among)]
            each = pair_bytes(height)
            several = max(1, min(len(runs), self._budget // each))
            size = max(1, self._budget // (each * several))
            if size > (threads := torch.get_num_threads()):  # each as many clients as the other
                size -= size % threads
            for part in slices(len(segment.clients), size):
                clients, key = segment.clients[part], (number, part.start, part.stop)
                start = segment.start + part.start * height
                rows = slice(start, start + len(clients) * height)
                where = _index(clients, self.device)
                for some in (runs[few] for few in slices(len(runs), several)):
                    places = _index(some, self.device)
                    yield self._block(rows, height, places, where, some.tolist(), key)

    def _block(self, rows: slice, height: int, *whose: Any) -> Block:
        """Rows of the pool as a block, `height` of them to a pair."""
        parts = self.features, self.targets, self.squared_norms, self.weights
        return Block(*(part[rows].unflatten(0, (-1, height)) for part in parts), *whose)

    @property
    def _budget(self) -> int:
        return CPU_BLOCK if self.device.type == "cpu" else DEVICE_BLOCK

    def _gathered(self, batch: Tensor, pair_bytes: Callable[[int], int]) -> Iterator[Block]:
        own = (batch >= 0).logical_and_(batch < self._counts)
        rows = torch.where(own, self._first + batch, 0).view(-1, batch.shape[-1])
        size = max(1, self._budget // pair_bytes(batch.shape[-1]))
        for pairs in slices(len(rows), size):
            some = rows[pairs]
            features, targets, norms = (
                part.index_select(0, some.view(-1)).unflatten(0, some.shape)
                for part in (self.features, self.targets, self.squared_norms)
            )
            weights = (some > 0).to(norms.dtype) / batch.shape[-1]
            yield Block(features, targets, norms, weights, None, pairs)


def _segments(federations: Sequence[Federation]) -> tuple[list[_Segment], list[int]]:
    """The buckets' places in the pool, after row 0, and where the rows of every federation begin
    and those of the last one end.
    """
    segments, ends = [], [1]
    for number, federation in enumerate(federations):
        total = ends[-1]
        for clients in federation.buckets():
            height = int(federation.partition.counts[clients].max(initial=0))
            if height:
                segments.append(_Segment(number, clients, total, height))
                total += len(clients) * height
        ends.append(total)
    return segments, ends


def _index(numbers: ndarray, device: torch.device) -> RecordIndex:
    """Positions as a slice where they are evenly spaced, else as a tensor."""
    step = int(numbers[1] - numbers[0]) if len(numbers) > 1 else 1
    if len(numbers) and step > 0 and (np.diff(numbers) == step).all():
        return slice(int(numbers[0]), int(numbers[-1]) + 1, step)
    return on_device(numbers, device)
