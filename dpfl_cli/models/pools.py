"""Pools of records on a device, and which of them clients hold."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from dpfl_cli.data.devices import on_device
from dpfl_cli.data.federation import Federation, Records


class Pools:
    """Features and targets on a device, of every pool of records once: runs share the bytes."""

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        self._device, self._dtype = device, dtype
        self._known: dict[Records, tuple[Tensor, Tensor]] = {}

    def of(self, records: Records) -> tuple[Tensor, Tensor]:
        """[N, ...] each: whole numbers as int64, others in the network's type; bytes of volumes
        (masks) stay bytes.
        """
        if records not in self._known:
            self._known[records] = self._tensor(records.features), self._tensor(records.targets)
        return self._known[records]

    def _tensor(self, values: np.ndarray) -> Tensor:
        whole = np.issubdtype(values.dtype, np.integer)
        dtype = torch.int64 if whole else self._dtype
        if values.dtype == np.uint8 and values.ndim > 3:
            dtype = torch.uint8
        plain = torch.from_numpy(np.require(values, requirements=["C", "W"]))
        return plain.to(self._device, dtype)


class ClientPart(NamedTuple):
    """One client of one run, with its records that are looked at.

    Attributes:
      values: [d] its parameters.
      numbers, places: [k] which of the pool `records` they are, and where they stand in a batch.
      share: a record's part of the client's mean.
    """

    run: int
    values: Tensor
    records: Records
    numbers: np.ndarray
    places: np.ndarray
    share: float


class HeldRecords:
    """Which records of a pool the clients of R runs hold, on a device once it is asked.

    Args:
      federations: the runs' data.
      index: [R] which of them each run uses.
    """

    def __init__(self, federations: Sequence[Federation], index: np.ndarray) -> None:
        self._federations, self._index = federations, index
        # by pool its runs; and of them all clients' records, the places [S, M] of each one's first,
        # and their numbers [S, M]
        self._known: dict[Records, tuple[Tensor, Tensor, Tensor, Tensor]] = {}

    def rows(self, batch: Tensor) -> Iterator[tuple[Tensor, Records, Tensor, Tensor]]:
        """For every pool: its runs [S], it, the records [S, M, b] of a batch [R, M, b] of the
        clients' own numbers, and which are records [S, M, b]: for a number that is none of the
        client's stands its first one, if it has any.
        """
        if not self._known:
            self._deal(batch.device)
        for train, (runs, indices, first, held) in self._known.items():
            numbers, most = batch[runs], held.unsqueeze(-1)
            inside = (numbers >= 0) & (numbers < most)
            places = first.unsqueeze(-1) + torch.where(inside, numbers, 0)
            yield runs, train, indices[places], inside

    def _deal(self, device: torch.device) -> None:
        pools = [one.dataset.train for one in self._federations]
        for train in dict.fromkeys(pools):
            runs = np.flatnonzero([pools[number] is train for number in self._index])
            used = self._index[runs].tolist()
            parts = {number: self._federations[number].partition for number in used}
            ends = np.cumsum([len(part.indices) for part in parts.values()]).tolist()
            starts = dict(zip(parts, [0, *ends], strict=False))
            # the last client may hold nothing: there is no place where its first record would be
            indices = np.concatenate([*(part.indices for part in parts.values()), [0]])
            first = np.stack([starts[number] + parts[number].offsets[:-1] for number in used])
            held = np.stack([parts[number].counts for number in used])
            self._known[train] = (
                on_device(runs, device),
                on_device(indices, device),
                on_device(first, device),
                on_device(held, device),
            )
