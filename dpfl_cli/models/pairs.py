"""Records of (run, client) pairs, matrix products with one pair to a product, and shares of clipped records.

Classes come before records (`[classes, records]`): a product with ten rows is several times as fast as one with ten columns.
Every record is a row of one `Pool`, so a client's records are a view of it and a minibatch is one gather.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from dpfl_cli.data.federation import Federation, Records
from dpfl_cli.models.stacks import Index, index_of, put

ALIGNMENT = 4  # rows and columns are filled up to a multiple: 16 bytes, so that no pair's lie otherwise than another's
# Beyond this norm a residual so small that its square underflows can still make a large gradient.
LARGEST_NORM = {torch.float32: 1e12, torch.float64: 1e150}
CPU_BLOCK = 32 << 20  # bytes that one block of pairs works on: they stay in a CPU's last cache
DEVICE_BLOCK = 1 << 30


def product(left: Tensor, right: Tensor, out: Tensor | None = None, *, add: float = 0.0) -> Tensor:
    """left [k, a, b] @ right [k, b, c] -> [k, a, c], with the same bits for a pair whoever stands beside it.

    A BLAS that has more threads than products cuts a product among them, and takes a lone vector by another path; either rounds
    otherwise. So few products are computed by one thread, and a vector never alone.

    Args:
      out: where the result goes.
      add: unless 0, out becomes out + add * product.
    """
    if len(left) == 1 and min(left.shape[1], right.shape[2]) == 1:
        left, right = left.expand(2, -1, -1), right.expand(2, -1, -1)
        if out is None:
            return product(left, right)[:1]
        return out.copy_(product(left, right, out.repeat(2, 1, 1), add=add)[:1])
    threads = torch.get_num_threads()
    if left.is_cuda or len(left) >= threads:
        return _product(left, right, out, add)
    torch.set_num_threads(1)
    try:
        return _product(left, right, out, add)
    finally:
        torch.set_num_threads(threads)


def _product(left: Tensor, right: Tensor, out: Tensor | None, add: float) -> Tensor:
    if out is None or not add:
        return torch.bmm(left, right, out=out)
    return out.baddbmm_(left, right, alpha=add)


def shared_product(left: Tensor, right: Tensor, out: Tensor | None = None) -> Tensor:
    """left [S, B, a, b] @ right [B, b, c] -> [S, B, a, c]: the S runs share the right side, which is not copied for them."""
    runs, pairs = left.shape[:2]
    if runs == 1 and out is None:
        return product(left[0], right).unsqueeze(0)
    if out is None:
        out = left.new_empty(*left.shape[:3], right.shape[2])
    if pairs == 1:
        product(left[:, 0], right.expand(runs, -1, -1), out[:, 0])
        return out
    for run in range(runs):
        product(left[run], right, out[run])
    return out


def class_probabilities(logits: Tensor) -> Tensor:
    """softmax over the classes of logits [..., c, n], in place; torch's own rounds by how its threads cut the stack."""
    logits.sub_(logits.amax(dim=-2, keepdim=True)).exp_()
    return logits.div_(logits.sum(dim=-2, keepdim=True))


def bounded_shares(shares: Tensor, norms: Tensor, clip_norm: Tensor) -> Tensor:
    """w_j min(1, C / ||v_j||): the shares of clipped records; zero where the norm is not finite."""
    return torch.where(norms < torch.inf, shares * (clip_norm / norms).clamp(max=1.0), 0.0)


@dataclass(frozen=True)
class Block:
    """S runs x B clients with their records, padded with zero rows to n.

    Attributes:
      features: [B, n, q]; the S runs share them.
      labels: [B, n] classes.
      squared_norms: [B, n] ||x||^2; infinite for a record that is not finite, or whose norm exceeds `LARGEST_NORM`: its features
        are zeros here, and it counts as zero where it is clipped.
      weights: [B, n] 1 / m_i, the records' shares of their client's mean; a scalar for a minibatch.
      runs, clients: which of the R runs and M clients; `runs` is None where the block holds pairs, `clients` of the R * M.
      numbers: the runs' numbers; empty for a minibatch.
      key: what names these records in the pool; None for a minibatch.
      every: whether these are all pairs of a minibatch, in their order: nothing is picked out then.
    """

    features: Tensor
    labels: Tensor
    squared_norms: Tensor
    weights: Tensor
    runs: Index | None
    clients: Index
    numbers: Sequence[int] = ()
    key: tuple[int, int] | None = None
    every: bool = False

    def of(self, values: Tensor) -> Tensor:
        """[S, B, ...] the block's part of [R, M, ...]."""
        if self.every:
            return values.reshape(1, -1, *values.shape[2:])
        if self.runs is None:
            return values.flatten(0, 1)[self.clients].unsqueeze(0)
        return values[self.runs][:, self.clients]

    def of_runs(self, values: Tensor, clients: int) -> Tensor:
        """[S, 1], or [1, B] or [1, 1] in a minibatch, the numbers of the block's runs out of [R]; `clients` is M."""
        if self.runs is None and len(values) == 1:
            return values.unsqueeze(0)
        if self.runs is None:
            return values.repeat_interleave(clients)[self.clients].unsqueeze(0)
        return values[self.runs].unsqueeze(1)

    def put(self, result: Tensor, values: Tensor) -> None:
        """Writes [S, B, ...] to the block's places in a contiguous result [R, M, ...]."""
        if self.runs is None:
            result.flatten(0, 1)[self.clients] = values[0]
        else:
            put(result, self.runs, self.clients, values)


@dataclass(frozen=True)
class _Segment:
    """A bucket of one federation's clients: rows [start, start + len(clients) * height) of the pool."""

    federation: int
    clients: np.ndarray
    start: int
    height: int


class Pool:
    """The records of a batch's clients as rows of one tensor; runs that share a federation share its rows.

    Args:
      index: [R] which federation each run uses.
      rows: (records, numbers [k]) -> features [k, q] of those records, on the device.
      width: q.
    """

    def __init__(
        self,
        federations: Sequence[Federation],
        index: np.ndarray,
        rows: Callable[[Records, np.ndarray], Tensor],
        width: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self._index, self._device = index, device
        self.width, self.dtype = width, dtype
        self._shares: dict[int, Tensor] = {}
        self._no_record = torch.zeros((), dtype=torch.int64, device=device)  # row 0 of the pool
        self._segments, total = _segments(federations)
        self._features = torch.zeros(total, width, dtype=dtype, device=device)
        self._labels = torch.zeros(total, dtype=torch.int64, device=device)
        self._squared_norms = torch.zeros(total, dtype=dtype, device=device)
        self._weights = torch.zeros(total, dtype=dtype, device=device)
        first = np.zeros((len(federations), federations[0].clients), np.int64)
        for segment in self._segments:
            federation = federations[segment.federation]
            partition, train = federation.partition, federation.dataset.train
            for position, client in enumerate(segment.clients):
                numbers = partition.indices[partition.offsets[client] : partition.offsets[client + 1]]
                start = segment.start + position * segment.height
                first[segment.federation, client] = start
                mine = slice(start, start + len(numbers))
                self._features[mine] = rows(train, numbers)
                self._labels[mine] = torch.from_numpy(train.targets[numbers].astype(np.int64)).to(device)
                self._weights[mine] = 1.0 / len(numbers)
            self._measure(slice(segment.start, segment.start + len(segment.clients) * segment.height))
        counts = np.stack([federation.partition.counts for federation in federations])
        self._first = torch.from_numpy(first[index]).to(device).unsqueeze(-1)
        self._counts = torch.from_numpy(counts[index]).to(device).unsqueeze(-1)
        self.largest = max(1, int(counts.max(initial=0)))

    def _measure(self, rows: slice) -> None:
        """Squared norms of rows, summed in float64; rows beyond `LARGEST_NORM` or not finite become zeros of infinite norm."""
        largest = LARGEST_NORM[self._features.dtype] ** 2
        for part in range(rows.start, rows.stop, 1 << 14):
            features = self._features[part : min(part + (1 << 14), rows.stop)]
            squared = features.double().square().sum(dim=-1)
            strange = ~(squared <= largest)  # NaN among them
            features.masked_fill_(strange.unsqueeze(-1), 0.0)
            self._squared_norms[part : part + len(features)] = squared.masked_fill_(strange, torch.inf)

    def blocks(self, batch: Tensor | None, pair_bytes: Callable[[int], int]) -> Iterator[Block]:
        """All pairs that have records, in blocks under the byte budget.

        Args:
          batch: [R, M, b] record numbers of every client, or None for all its records. A number that is none of the client's own
            counts as no record: a row of zeros.
          pair_bytes: n -> bytes that the work on one pair with n records takes.
        """
        yield from self._full(pair_bytes) if batch is None else self._gathered(batch, pair_bytes)

    def _full(self, pair_bytes: Callable[[int], int]) -> Iterator[Block]:
        budget = _budget(self._device)
        for number, segment in enumerate(self._segments):
            runs, height = np.flatnonzero(self._index == segment.federation), segment.height
            several = max(1, min(len(runs), budget // pair_bytes(height)))
            size = max(1, budget // (pair_bytes(height) * several))
            for begin in range(0, len(segment.clients), size):
                clients = segment.clients[begin : begin + size]
                rows = slice(segment.start + begin * height, segment.start + (begin + len(clients)) * height)
                where = index_of(clients, self._device)
                for start in range(0, len(runs), several):
                    yield Block(
                        self._features[rows].unflatten(0, (-1, height)),
                        self._labels[rows].unflatten(0, (-1, height)),
                        self._squared_norms[rows].unflatten(0, (-1, height)),
                        self._weights[rows].unflatten(0, (-1, height)),
                        index_of(runs[start : start + several], self._device),
                        where,
                        runs[start : start + several].tolist(),
                        (number, begin),
                    )

    def _gathered(self, batch: Tensor, pair_bytes: Callable[[int], int]) -> Iterator[Block]:
        records, pairs = batch.shape[-1], batch.shape[0] * batch.shape[1]
        own = (batch >= 0).logical_and_(batch < self._counts)
        rows = torch.where(own, self._first + batch, self._no_record).view(-1)
        size = max(1, _budget(self._device) // pair_bytes(records))
        weights = self._share(records)
        for start in range(0, pairs, size):
            some = rows if size >= pairs else rows[start * records : (start + size) * records]
            yield Block(
                self._features.index_select(0, some).view(-1, records, self._features.shape[1]),
                self._labels.index_select(0, some).view(-1, records),
                self._squared_norms.index_select(0, some).view(-1, records),
                weights,
                None,
                slice(start, start + size),
                every=size >= pairs,
            )

    def rows(self) -> tuple[Tensor, Tensor, Tensor]:
        """Features [N, q], labels [N] and squared norms [N] of all records as `Block` has them; row 0 is no record."""
        return self._features, self._labels, self._squared_norms

    def places(self) -> tuple[Tensor, Tensor]:
        """[R, M, 1] where the rows of every pair's records begin, and how many they are."""
        return self._first, self._counts

    def _share(self, records: int) -> Tensor:
        """1 / b as a scalar tensor; made once."""
        if records not in self._shares:
            self._shares[records] = self._weights.new_full((), 1.0 / records)
        return self._shares[records]


def _segments(federations: Sequence[Federation]) -> tuple[list[_Segment], int]:
    """The buckets' places in the pool, after row 0, and the number of rows."""
    segments, total = [], 1
    for number, federation in enumerate(federations):
        for clients in federation.buckets():
            height = int(federation.partition.counts[clients].max(initial=0))
            if height:
                segments.append(_Segment(number, clients, total, height))
                total += len(clients) * height
    return segments, total


def _budget(device: torch.device) -> int:
    return CPU_BLOCK if device.type == "cpu" else DEVICE_BLOCK
