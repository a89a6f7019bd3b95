"""Named random streams: what a run draws depends on its seed and on nothing else.

Every draw is addressed by (seed, stream name, key...), never by the state of a shared generator. A
run therefore draws the same numbers alone, in a batch of runs, after a resume, and under any block
size, number of threads or launcher.

Noise is drawn in tiles: `CLIENT_TILE` clients by a number of rounds that is fixed by the tile's
size alone, so that a tiny problem does not pay for a generator per round. Tiles are pure functions
of their address, so threads may draw them in any order; those of several rounds are kept while
their rounds last.

A device draws numbers itself where drawing on the host would be what a round waits for. They are
addressed as the host's are, never by the runs of a batch: a 64-bit hash of the address seeds
torch's counter-based generator of the device (Philox on GPUs), for which nothing waits. The numbers
are others than the host's, and may differ between kinds of GPUs.
"""

import zlib
from collections.abc import ItemsView, Iterable, Iterator, Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy import ndarray
from numpy.random import SFC64, Generator, SeedSequence
from torch import Tensor

from dpfl_cli.config.errors import ConfigError
from dpfl_cli.data.devices import Device, on_device
from dpfl_cli.data.normals import fill_normal
from dpfl_cli.data.threads import in_threads, slices, usable_threads

CLIENT_TILE = 256  # clients per tile
TILE_VALUES = 1 << 15  # a tile is of several rounds as long as it holds at most this many values
MAX_TILE_ROUNDS = 64
# fewer values (a quarter of a millisecond) are drawn sooner than a thread wakes up
THREAD_VALUES = 1 << 15
DEVICE_DOUBLES = 1 << 24  # that a device draws at once, to round them


def stream_generator(seed: int, name: str, *key: int) -> Generator:
    """The generator of stream `name` at `key` for a run's seed (SFC64 keyed by a SeedSequence)."""
    spawn_key = (zlib.crc32(name.encode()), *key)
    return Generator(SFC64(SeedSequence(seed, spawn_key=spawn_key)))


class Draw(NamedTuple):
    """Numbers of a law that are asked for, in the given round of each run.

    Attributes:
      name: of the stream, such as "noise/update".
      rounds: [R] integers, the round that each run is in.
      clients: M, or None for a single (server-side) draw.
      size: number of coordinates d.
      device: where the numbers are wanted.
    """

    law: Literal["normal", "uniform"]
    name: str
    rounds: ndarray
    clients: int | None
    size: int
    dtype: torch.dtype = torch.float64
    device: Device = "cpu"


class DeviceDraws:
    """The draws of a batch of runs with these seeds, on a device. Runs with equal seeds draw equal
    numbers.

    Normal numbers are drawn in double precision, and rounded. A GPU makes float32 ones of 32 bits,
    which end at 6.76: as noise of a message that is moved by 2.86 standard deviations (epsilon
    15.66 at delta 1e-5) they would tell so for sure with probability 4.7e-5. Double ones end at
    8.65.
    """

    def __init__(self, seeds: Sequence[int], device: Device) -> None:
        self.device = torch.device(device)
        self._seeds = list(seeds)
        self._generator = torch.Generator(self.device)

    def drawn(self, wanted: Draw) -> Tensor:
        """[R, M, d] values."""
        shape = len(self._seeds), wanted.clients or 1, wanted.size
        out = torch.empty(shape, dtype=wanted.dtype, device=self.device)
        fill = torch.Tensor.normal_ if wanted.law == "normal" else torch.Tensor.uniform_
        rounded = wanted.law == "normal" and out.dtype != torch.float64
        for run in self._first_runs(wanted.name, wanted.rounds, out):
            if not rounded:
                fill(out[run], generator=self._generator)
                continue
            for part in out[run].view(-1).split(DEVICE_DOUBLES):
                doubles = torch.empty_like(part, dtype=torch.float64)
                part.copy_(fill(doubles, generator=self._generator))
        return out

    def subset(self, name: str, rounds: ndarray, held: ndarray, size: int) -> Tensor:
        """[R, M, size] int64, ascending: the `size` records of every client with the smallest of
        uniform numbers.

        A run's subsets depend on the number of records of all its clients, unlike those that the
        host draws.

        Args:
          held: [R, M] number of records of every client, at least `size`.
        """
        out = torch.empty(*held.shape, size, dtype=torch.int64, device=self.device)
        for run in self._first_runs(name, rounds, out, [row.tobytes() for row in held]):
            numbers = torch.arange(int(held[run].max()), device=self.device)
            absent = numbers >= on_device(held[run], self.device).unsqueeze(-1)
            uniform = torch.empty(absent.shape, dtype=torch.float64, device=self.device).uniform_(
                generator=self._generator
            )
            order = uniform.masked_fill_(absent, 2.0).argsort(dim=-1)
            out[run] = order[:, :size].sort(dim=-1).values
        return out

    def _first_runs(
        self, name: str, rounds: ndarray, out: Tensor, *facts: Iterable[bytes]
    ) -> Iterator[int]:
        """The first run of every address, and facts, to be drawn into `out` with the generator,
        which is at its start; the others get the same.
        """
        for (seed, number, *_), (first, *others) in sharing(self._seeds, rounds.tolist(), *facts):
            self._generator.manual_seed(address_hash(seed, name, number))
            yield first
            for run in others:
                out[run] = out[first]


def sharing(*parts: Iterable[Any]) -> ItemsView[tuple[Any, ...], list[int]]:
    """Each address, whose parts are given run by run, and its runs: they share a draw."""
    found: dict[tuple[Any, ...], list[int]] = {}
    for run, address in enumerate(zip(*parts, strict=True)):
        found.setdefault(address, []).append(run)
    return found.items()


def address_hash(seed: int, name: str, number: int) -> int:
    """64 bits that stand for the address of a draw."""
    digest = blake2b(f"{seed}/{number}/{name}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


class Streams:
    """The random streams of a batch of runs.

    Args:
      seeds: one seed per run, R of them. Runs with equal seeds draw equal numbers.
      noise: the device that draws what is asked for on it (`DeviceDraws`); None for the host,
        which draws for every device.
    """

    def __init__(self, seeds: Sequence[int], noise: Device | None = None) -> None:
        self.seeds = list(seeds)
        self._runs = np.arange(len(self.seeds))
        self._device = None if noise is None else DeviceDraws(seeds, noise)
        # of a tile the multiples of its rounds that runs are in, and their first [R, rounds, ...]
        self._kept: dict[tuple[Any, ...], tuple[list[int], ndarray]] = {}

    def generator(self, run: int, name: str, *key: int) -> Generator:
        """A fresh generator at the start of stream `name`, `key`, of run number `run` in the
        batch.
        """
        return stream_generator(self.seeds[run], name, *key)

    def normal(self, *wanted: Any, **options: Any) -> Tensor:
        """Standard normal values: [R, M, d], or [R, d] where clients is None; new memory, the
        caller's own. What is wanted is given as `Draw` has it, from the name on.
        """
        return self._drawn(Draw("normal", *wanted, **options))

    def uniform(self, *wanted: Any, **options: Any) -> Tensor:
        """Uniform values in [0, 1), addressed and shaped as in `normal`."""
        return self._drawn(Draw("uniform", *wanted, **options))

    def subset(
        self,
        name: str,
        rounds: ndarray,
        clients: int,
        populations: ndarray,
        size: int,
        device: Device = "cpu",
    ) -> Tensor:
        """Uniform subsets without replacement: `size` of each client's records, independent for
        every address and client.

        Args:
          name, rounds: the address, as in `Draw`.
          clients: M.
          populations: [M] or [R, M] integers, the number of records of every client. A client's
            subset depends on its own only.
          size: records in a subset, at least 1.

        Returns:
          [R, M, size] int64 record numbers, ascending.

        Raises:
          ConfigError: a client holds fewer records.
        """
        held = np.broadcast_to(populations, (len(self.seeds), clients))
        if held.size and held.min() < size:
            raise ConfigError(  # which client, and how many it holds, may be private
                f"{name}: cannot draw {size} records without replacement: a client holds fewer; "
                "take fewer, or deal the clients more records"
            )
        drawing = self._drawing(device)
        if drawing is not None:
            return drawing.subset(name, rounds, held.copy(), size)
        chosen = np.empty((len(self.seeds), clients, size), np.int64)
        facts = (row.tobytes() for row in held)
        for (seed, round_, _), runs in sharing(self.seeds, rounds.tolist(), facts):
            for tile, mine in enumerate(slices(clients, CLIENT_TILE)):
                generator = stream_generator(seed, name, round_, tile)
                chosen[runs, mine] = _subsets(generator, held[runs[0], mine], size)
        return on_device(chosen, device)

    def _drawing(self, device: Device) -> DeviceDraws | None:
        """Who draws numbers that are asked for on a device, where it is that device itself."""
        own = self._device
        return own if own and own.device.type == torch.device(device).type else None

    def _drawn(self, wanted: Draw) -> Tensor:
        """[R, M, d] or [R, d] draws on their device, by whoever draws for it."""
        own = self._drawing(wanted.device)
        drawn = on_device(self._draw(wanted), wanted.device) if own is None else own.drawn(wanted)
        return drawn[:, 0] if wanted.clients is None else drawn

    def _draw(self, wanted: Draw) -> ndarray:
        """The draws [R, M, d] of the host."""
        dtype = np.float32 if wanted.dtype == torch.float32 else np.float64
        clients, size = wanted.clients or 1, wanted.size
        if clients <= CLIENT_TILE and _depth(clients, size) > 1:
            return self._tile(wanted, 0, clients, dtype)
        out = np.empty((len(self.seeds), clients, size), dtype)
        jobs = []
        for tile, mine in enumerate(slices(clients, CLIENT_TILE)):
            if _depth(mine.stop - mine.start, size) > 1:
                out[:, mine] = self._tile(wanted, tile, mine.stop - mine.start, dtype)
                continue
            jobs += [
                (wanted, out, runs, mine, (*address, tile))
                for address, runs in sharing(self.seeds, wanted.rounds.tolist())
            ]
        if jobs:
            in_threads(_fill, jobs, usable_threads() if out.size >= THREAD_VALUES else 1)
        return out

    def _tile(self, wanted: Draw, tile: int, clients: int, dtype: type[np.floating]) -> ndarray:
        """[R, clients, d] draws of a tile of several rounds; tiles are kept while these last."""
        depth = _depth(clients, wanted.size)
        multiples, within = np.divmod(wanted.rounds, depth)
        epochs: list[int] = multiples.tolist()
        key = wanted.law, wanted.name, tile, clients, wanted.size, dtype
        known, values = self._kept.get(key, ([], np.empty((0, 0))))
        if known != epochs:
            values = np.empty((len(epochs), depth, clients, wanted.size), dtype)
            jobs = [
                (wanted, values, runs, slice(None), (*address, tile))
                for address, runs in sharing(self.seeds, epochs)
            ]
            in_threads(_fill, jobs, usable_threads() if values.size >= THREAD_VALUES else 1)
            self._kept[key] = epochs, values
        return values[self._runs, within]


def _depth(clients: int, size: int) -> int:
    """How many rounds a tile of so many clients is of."""
    return max(1, min(MAX_TILE_ROUNDS, TILE_VALUES // max(1, clients * size)))


def _fill(
    wanted: Draw, out: ndarray, runs: Sequence[int], mine: slice, address: Sequence[int]
) -> None:
    """Draws into out[run, mine] [clients, ...] for the runs, which share the draw."""
    seed, *key = address
    generator, first = stream_generator(seed, wanted.name, *key), out[runs[0], mine]
    if wanted.law == "normal":
        fill_normal(generator, first)
    else:
        generator.random(out=first, dtype=out.dtype)
    for run in runs[1:]:
        out[run, mine] = first


def _subsets(generator: Generator, populations: ndarray, size: int) -> ndarray:
    """[B, size] the first `size` distinct records among uniform ones, drawn with replacement, of
    populations [B]; ascending.

    Any set of records is as likely to come first as any other, so the subsets are uniform (up to
    the 2^-53 of a uniform number). Numbers are drawn time by time, so that a client's do not depend
    on how many its neighbours in the tile need.
    """
    uniform = generator.random((_draws_for(int(populations.min()), size), len(populations)))
    while True:
        times = len(uniform)
        bits = times.bit_length()
        drawn = (uniform * populations).astype(np.int64)  # [times, B]
        order = np.sort(
            (drawn.T << bits) | np.arange(times), axis=1
        )  # by record, then by the time of its draw
        record, time = order >> bits, order & ((1 << bits) - 1)
        time[:, 1:][record[:, 1:] == record[:, :-1]] = times  # had been drawn before
        last = np.partition(time, size - 1, axis=1)[:, size - 1 : size]
        if last.max() < times:
            return record[time <= last].reshape(-1, size)
        uniform = np.concatenate((uniform, generator.random(uniform.shape)))


@lru_cache(maxsize=1024)
def _draws_for(population: int, size: int) -> int:
    """How many draws with replacement nearly always hold `size` distinct records: their mean and
    six standard deviations.

    The (j+1)-th distinct record takes a geometric number of draws of success probability p_j = 1 -
    j / n, of mean 1 / p_j and variance (1 - p_j) / p_j^2.
    """
    success = 1 - np.arange(size) / population
    return int(np.ceil((1 / success).sum() + 6 * np.sqrt(((1 - success) / success**2).sum())))
