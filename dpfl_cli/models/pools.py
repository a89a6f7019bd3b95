"""Pools of records on a device, and which of them clients hold."""

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from numpy import ndarray
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

    def _tensor(self, values: ndarray) -> Tensor:
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
    numbers: ndarray
    places: ndarray
    share: float


class HeldRecords:
    """Which records of a pool the clients of R runs hold, on a device once it is asked.

    Args:
      federations: the runs' data.
      index: [R] which of them each run uses.
      held: [R, M] how many records each client holds, on the device.
    """

    def __init__(self, federations: Sequence[Federation], index: ndarray, held: Tensor) -> None:
        self._federations, self._index, self._held = federations, index, held

    def rows(self, batch: Tensor) -> Iterator[tuple[Tensor, Records, Tensor, Tensor]]:
        """For every pool: its runs [S], it, the records [S, M, b] of a batch [R, M, b] of the
        clients' own numbers, and which are records [S, M, b]: for a number that is none of the
        client's stands its first one, if it has any.
        """
        indices, first, pools = self._dealt
        inside = (batch >= 0) & (batch < self._held.unsqueeze(-1))
        rows = indices[first.unsqueeze(-1) + torch.where(inside, batch, 0)]
        for train, runs in pools.items():
            yield runs, train, rows[runs], inside[runs]

    @cached_property
    def _dealt(self) -> tuple[Tensor, Tensor, dict[Records, Tensor]]:
        """All clients' records, the places [R, M] of each one's first among them, and the runs of
        every pool.
        """
        parts, device = [one.partition for one in self._federations], self._held.device
        # the last client may hold nothing, and its first record is then one that every pool has
        own = [np.append(part.indices, 0) for part in parts]
        indices, starts = np.concatenate(own), np.cumsum([0, *map(len, own[:-1])])
        first = np.stack([part.offsets[:-1] for part in parts]) + starts[:, None]
        pools = [self._federations[number].dataset.train for number in self._index]
        runs = {
            train: on_device(np.flatnonzero([one is train for one in pools]), device)
            for train in dict.fromkeys(pools)
        }
        return on_device(indices, device), on_device(first[self._index], device), runs
