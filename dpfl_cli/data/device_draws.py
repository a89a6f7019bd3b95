"""Random numbers drawn by a device itself, where drawing on the host would be what a round waits
for.

They are addressed as the host's are (`streams`): by (seed, stream name, round), never by the state
of a shared generator, nor by the runs of a batch. A 64-bit hash of the address seeds torch's
counter-based generator of the device (Philox on GPUs), for which nothing waits. The numbers are
others than the host's, and may differ between kinds of GPUs.
"""

from collections.abc import Callable, Iterable, Sequence
from hashlib import blake2b
from typing import Literal, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from dpfl_cli.data.devices import on_device

Address = TypeVar("Address")


class Draw(NamedTuple):
    """Numbers of a law that are asked for, in the given round of each run: see `Streams.normal`."""

    law: Literal["normal", "uniform"]
    name: str
    rounds: np.ndarray
    clients: int | None
    size: int
    dtype: torch.dtype


class DeviceDraws:
    """The draws of a batch of runs with these seeds, on a device. Runs with equal seeds draw equal
    numbers.
    """

    def __init__(self, seeds: Sequence[int], device: torch.device | str) -> None:
        self.device = torch.device(device)
        self._seeds = list(seeds)
        self._generator = torch.Generator(self.device)

    def drawn(self, wanted: Draw) -> Tensor:
        """[R, M, d] values."""
        shape = len(self._seeds), wanted.clients or 1, wanted.size
        out = torch.empty(shape, dtype=wanted.dtype, device=self.device)
        fill = torch.Tensor.normal_ if wanted.law == "normal" else torch.Tensor.uniform_
        self._each(
            wanted.name,
            wanted.rounds,
            [b""] * len(out),
            lambda run: fill(out[run], generator=self._generator),
            out,
        )
        return out

    def subset(self, name: str, rounds: np.ndarray, held: np.ndarray, size: int) -> Tensor:
        """[R, M, size] int64, ascending: the `size` records of every client with the smallest of
        uniform numbers.

        A run's subsets depend on the number of records of all its clients, unlike those that the
        host draws.

        Args:
          held: [R, M] number of records of every client, at least `size`.
        """
        out = torch.empty(*held.shape, size, dtype=torch.int64, device=self.device)

        def fill(run: int) -> None:
            numbers = torch.arange(int(held[run].max()), device=self.device)
            absent = numbers >= on_device(held[run], self.device).unsqueeze(-1)
            uniform = torch.empty(absent.shape, dtype=torch.float64, device=self.device).uniform_(
                generator=self._generator
            )
            order = uniform.masked_fill_(absent, 2.0).argsort(dim=-1)
            out[run] = order[:, :size].sort(dim=-1).values

        self._each(name, rounds, [row.tobytes() for row in held], fill, out)
        return out

    def _each(
        self,
        name: str,
        rounds: np.ndarray,
        facts: Sequence[bytes],
        fill: Callable[[int], object],
        out: Tensor,
    ) -> None:
        """fill(run) with the generator at the start of every run's address; runs that share it, and
        facts, share the draw.
        """
        shared = sharing(zip(self._seeds, rounds.tolist(), facts, strict=True))
        for (seed, number, _), (first, *others) in shared.items():
            self._generator.manual_seed(address_hash(seed, name, number))
            fill(first)
            for run in others:
                out[run] = out[first]


def sharing(addresses: Iterable[Address]) -> dict[Address, list[int]]:
    """The runs of each address: they share a draw."""
    found: dict[Address, list[int]] = {}
    for run, address in enumerate(addresses):
        found.setdefault(address, []).append(run)
    return found


def address_hash(seed: int, name: str, number: int) -> int:
    """64 bits that stand for the address of a draw."""
    digest = blake2b(f"{seed}/{number}/{name}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")
