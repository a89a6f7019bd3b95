"""Named random streams: what a run draws depends on its seed and on nothing else.

Every draw is addressed by (seed, stream name, key...), never by the state of a shared generator. A run therefore draws
the same numbers alone, in a batch of runs, after a resume, and under any block size, number of threads or launcher.

Noise is drawn in tiles: `CLIENT_TILE` clients by a number of rounds that is fixed by the tile's size alone, so that a
tiny problem does not pay for a generator per round. Tiles are pure functions of their address, so threads may draw them in
any order; those that span several rounds are kept while their rounds last.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache, partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor

from dpfl_cli.config.errors import ConfigError
from dpfl_cli.data.device_draws import DeviceDraws
from dpfl_cli.data.devices import on_device
from dpfl_cli.data.programs import built_or_none
from dpfl_cli.data.threads import in_threads, usable_threads

if TYPE_CHECKING:
    from dpfl_cli.data.noise_kernel import NoiseKernel

CLIENT_TILE = 256  # clients per tile
TILE_VALUES = 1 << 15  # a tile spans several rounds as long as it holds at most this many values
MAX_TILE_ROUNDS = 64
THREAD_VALUES = 1 << 15  # fewer values (a quarter of a millisecond) are drawn sooner than a thread wakes up

Law = Literal["normal", "uniform"]


def stream_generator(seed: int, name: str, *key: int) -> np.random.Generator:
    """The generator of stream `name` at `key` for a run's seed (SFC64 keyed by a SeedSequence)."""
    spawn_key = (zlib.crc32(name.encode()), *key)
    return np.random.Generator(np.random.SFC64(np.random.SeedSequence(entropy=seed, spawn_key=spawn_key)))


@dataclass
class _Kept:
    """The tiles of all runs that span some rounds, kept while these last.

    Attributes:
      values: [n, depth, rows, size]; distinct (seed, epoch) take a row each, which may be fewer than there are runs.
      rows: (seed, epoch) -> its row of values.
      index: [e, R] the row of values of every run, for each of the epochs.
      epochs: the epochs that this is for, [e, R] integers as bytes; empty before the first draw.
    """

    values: np.ndarray
    rows: dict[tuple[int, int], int] = field(default_factory=dict)
    index: np.ndarray = field(default_factory=lambda: np.empty((0, 0), int))
    epochs: bytes = b""


class Streams:
    """The random streams of a batch of runs.

    Args:
      seeds: one seed per run, R of them. Runs with equal seeds draw equal numbers.
      noise: the device that draws what is asked for on it (`device_draws`); None for the host, which draws for every device.
    """

    def __init__(self, seeds: Sequence[int], noise: torch.device | str | None = None) -> None:
        self.seeds = list(seeds)
        self._device = None if noise is None else DeviceDraws(seeds, noise)
        self._kept: dict[tuple[Any, ...], _Kept] = {}

    def take_over(self, before: Streams) -> None:
        """Goes on with the tiles drawn by the streams of a batch of at least as many runs, which will not draw again.

        Where a run leaves a batch, the others' tiles are good for some more rounds.
        """
        if len(self.seeds) <= len(before.seeds):
            self._kept = before._kept
            for kept in self._kept.values():
                kept.epochs = b""  # what is in which row is found anew

    def generator(self, run: int, name: str, *key: int) -> np.random.Generator:
        """A fresh generator at the start of stream `name`, `key`, of run number `run` in the batch."""
        return stream_generator(self.seeds[run], name, *key)

    def normal(
        self,
        name: str,
        rounds: np.ndarray,
        clients: int | None,
        size: int,
        dtype: torch.dtype = torch.float64,
        device: torch.device | str = "cpu",
    ) -> Tensor:
        """Standard normal values for the given round of each run.

        Args:
          name: stream name, such as "noise/update".
          rounds: [R] integers, the round that each run is in.
          clients: M, or None for a single (server-side) draw.
          size: number of coordinates d.

        Returns:
          [R, M, d], or [R, d] where clients is None; new memory, the caller's own.
        """
        return self._on_device("normal", name, rounds, clients, size, dtype, device)

    def noisy(self, name: str, rounds: np.ndarray, values: Tensor, std: Tensor, factors: Tensor | None = None) -> Tensor:
        """Values, times factors if there are any, plus Gaussian noise: std times what `normal` draws at this address.

        On a CPU the threads that draw also scale and add, while their numbers are at hand: the products are never in memory.

        Args:
          name, rounds: the address, as in `normal`.
          values: [R, M, d].
          std: [R] or [R, M] standard deviations, of the values' type.
          factors: [R, M, 1], of the values' type; NaN where the product is zero whatever the values are. None: 1.

        Returns:
          [R, M, d]; new memory, the caller's own.
        """
        clients, size = values.shape[1:]
        if values.device.type == "cpu" and self._drawing(values.device) is None:
            return self._draw("normal", name, rounds, clients, size, values.dtype, values, std, factors)
        if factors is not None:
            values = (values * factors).masked_fill_(factors.isnan(), 0.0)
        noise = self.normal(name, rounds, clients, size, values.dtype, values.device)
        return noise.mul_(std.reshape(*std.shape, *[1] * (3 - std.dim()))).add_(values)

    def uniform(
        self,
        name: str,
        rounds: np.ndarray,
        clients: int | None,
        size: int,
        dtype: torch.dtype = torch.float64,
        device: torch.device | str = "cpu",
    ) -> Tensor:
        """Uniform values in [0, 1), addressed and shaped as in `normal`."""
        return self._on_device("uniform", name, rounds, clients, size, dtype, device)

    def subset(
        self,
        name: str,
        rounds: np.ndarray,
        clients: int,
        populations: np.ndarray,
        size: int,
        device: torch.device | str = "cpu",
    ) -> Tensor:
        """Uniform subsets without replacement: `size` of each client's records, independent for every address and client.

        Args:
          name, rounds: the address, as in `normal`.
          clients: M.
          populations: [M] or [R, M] integers, the number of records of every client. A client's subset depends on its own only.
          size: records in a subset, at least 1.

        Returns:
          [R, M, size] int64 record numbers, ascending.

        Raises:
          ConfigError: a client holds fewer records.
        """
        held = np.broadcast_to(populations, (len(self.seeds), clients))
        if held.size and held.min() < size:
            client = int(held.argmin()) % clients
            raise ConfigError(
                f"{name}: cannot draw {size} records without replacement from client {client}, which holds {held.min()}; "
                "take at most that many, or deal the clients more records"
            )
        drawing = self._drawing(device)
        if drawing is not None:
            return drawing.subset(name, rounds, held.copy(), size)
        chosen = np.empty((len(self.seeds), clients, size), np.int64)
        done: dict[tuple[int, int, bytes], int] = {}
        for run, (seed, round_) in enumerate(zip(self.seeds, rounds.tolist(), strict=True)):
            first = done.setdefault((seed, round_, held[run].tobytes()), run)
            if first < run:
                chosen[run] = chosen[first]
                continue
            for tile, mine in enumerate(client_tiles(clients)):
                chosen[run, mine] = _subsets(stream_generator(seed, name, round_, tile), held[run, mine], size)
        return on_device(chosen, device)

    def _drawing(self, device: torch.device | str) -> DeviceDraws | None:
        """Who draws numbers that are asked for on a device, where it is that device itself."""
        drawing = self._device
        return drawing if drawing is not None and drawing.device.type == torch.device(device).type else None

    def _on_device(
        self,
        law: Law,
        name: str,
        rounds: np.ndarray,
        clients: int | None,
        size: int,
        dtype: torch.dtype,
        device: torch.device | str,
    ) -> Tensor:
        """[R, M, d] or [R, d] draws on a device, by whoever draws for it."""
        drawing = self._drawing(device)
        if drawing is None:
            return on_device(self._draw(law, name, rounds, clients, size, dtype), device)
        drawn = drawing.drawn(law, name, rounds, 1 if clients is None else clients, size, dtype)
        return drawn[:, 0] if clients is None else drawn

    def _draw(
        self,
        law: Law,
        name: str,
        rounds: np.ndarray,
        clients: int | None,
        size: int,
        dtype: torch.dtype,
        values: Tensor | None = None,
        scale: Tensor | None = None,
        factors: Tensor | None = None,
        out: Tensor | None = None,
    ) -> Tensor:
        """The draws [R, M, d], or where values [R, M, d] are given these, times any factors, plus scale [R] or [R, M] times the
        draws; in `out`, if it is given, such as an earlier result (dense)."""
        total = 1 if clients is None else clients
        if out is None:
            out = torch.empty(len(self.seeds), total, size, dtype=torch.float32 if dtype == torch.float32 else torch.float64)
        filled = out.numpy().reshape(len(self.seeds), total, size)
        onto: list[np.ndarray] = []
        if values is not None and scale is not None:
            onto = [np.broadcast_to(scale.numpy().reshape(len(filled), -1, 1), (*filled.shape[:2], 1)), values.numpy()]
            onto += [] if factors is None else [factors.numpy()]
        kernel = compiled_kernel() if len(onto) == 3 and filled.size >= THREAD_VALUES and onto[1][0].flags.c_contiguous else None
        add = _scaled if kernel is None else kernel.scaled
        jobs: list[Callable[[], None]] = []
        for tile, rows in enumerate(client_tiles(total)):
            place = filled[:, rows]
            if _depth(place.shape[1], size) > 1:
                kept, blocks = self._found(law, name, tile, rounds.reshape(1, -1), place.shape[1], size, place.dtype)
                # "clip" spares a copy, and clips nothing
                np.take(kept.values.reshape(-1, *place.shape[1:]), blocks[0], axis=0, out=place, mode="clip")
                if onto:
                    _scaled(place, *(part[:, rows] for part in onto))
                continue
            for (seed, round_), runs in self._sharing(rounds).items():
                targets = [[part[run, rows] for part in onto] for run in runs] if onto else None
                places = [place[run] for run in runs]
                jobs.append(partial(_fill, law, places, seed, name, round_, tile, targets=targets, add=add))
        in_threads(jobs, usable_threads() if filled.size >= THREAD_VALUES else 1)
        drawn = torch.from_numpy(filled)
        return drawn[:, 0] if clients is None else drawn

    def places(
        self, law: Law, name: str, rounds: np.ndarray, clients: int | None, size: int, dtype: np.dtype[Any]
    ) -> list[np.ndarray]:
        """Where the draws of several rounds lie, to be read there as long as these streams live and draw nothing else that shares
        the tiles: of this law, name, size and type for as many clients.

        Args:
          rounds: [k, R] integers; addressed otherwise as in `normal`.
          clients: M, in `client_tiles`; None for a server-side draw, which is one tile of one row.
          dtype: float64 or float32.

        Returns:
          For every tile [k, R] int64 addresses in memory of what `normal` and `uniform` give of it: [rows, size], dense.
        """
        found = []
        for tile, rows in enumerate(client_tiles(clients or 1)):
            kept, blocks = self._found(law, name, tile, rounds, rows.stop - rows.start, size, dtype)
            found.append(kept.values.ctypes.data + blocks * (kept.values[0, 0].size * kept.values.itemsize))
        return found

    def _found(
        self, law: Law, name: str, tile: int, rounds: np.ndarray, rows: int, size: int, dtype: np.dtype[Any]
    ) -> tuple[_Kept, np.ndarray]:
        """The tiles with the draws of rounds [k, R], and [k, R] which block [rows, size] of their values each is."""
        depth = _depth(rows, size)
        epochs = rounds // depth
        key = (law, name, tile, rows, size, dtype)
        kept = self._kept.get(key)
        if kept is None:
            kept = self._kept[key] = _Kept(np.empty((len(self.seeds), depth, rows, size), dtype))
        changes = (epochs[1:] != epochs[:-1]).any(axis=1)
        needed = epochs[np.append(True, changes)]
        if kept.epochs != needed.tobytes():
            self._renew(law, name, tile, needed, kept)
        return kept, kept.index[np.append(0, changes.cumsum())] * depth + (rounds - depth * epochs)

    def _renew(self, law: Law, name: str, tile: int, epochs: np.ndarray, kept: _Kept) -> None:
        """Draws what runs in these epochs [e, R] need, over what none of them needs any more."""
        needed = dict.fromkeys(address for numbers in epochs for address in self._sharing(numbers))
        kept.epochs = b""
        kept.rows = {address: row for address, row in kept.rows.items() if address in needed}
        if len(needed) > len(kept.values):
            more = np.empty((len(needed) - len(kept.values), *kept.values.shape[1:]), kept.values.dtype)
            kept.values = np.concatenate((kept.values, more))
        free = sorted(set(range(len(kept.values))) - set(kept.rows.values()), reverse=True)
        fresh = {address: free.pop() for address in needed if address not in kept.rows}
        jobs = [partial(_fill, law, [kept.values[row]], seed, name, epoch, tile) for (seed, epoch), row in fresh.items()]
        in_threads(jobs, usable_threads() if len(jobs) * kept.values[0].size >= THREAD_VALUES else 1)
        kept.rows.update(fresh)  # now that they are drawn: an error leaves the tiles without what it has not seen to its end
        kept.epochs = epochs.tobytes()
        kept.index = np.array([[kept.rows[address] for address in zip(self.seeds, row, strict=True)] for row in epochs.tolist()])

    def _sharing(self, numbers: np.ndarray) -> dict[tuple[int, int], list[int]]:
        """(seed, number) -> the runs that have both and so share a draw; numbers [R] are of rounds or epochs."""
        runs: dict[tuple[int, int], list[int]] = {}
        for run, address in enumerate(zip(self.seeds, numbers.tolist(), strict=True)):
            runs.setdefault(address, []).append(run)
        return runs


def client_tiles(clients: int) -> list[slice]:
    """The clients of every tile."""
    return [slice(start, min(start + CLIENT_TILE, clients)) for start in range(0, clients, CLIENT_TILE)]


def _depth(rows: int, size: int) -> int:
    """How many rounds a tile of so many clients spans."""
    return max(1, min(MAX_TILE_ROUNDS, TILE_VALUES // max(1, rows * size)))


def _fill(
    law: Law,
    places: Sequence[np.ndarray],
    seed: int,
    name: str,
    *key: int,
    targets: Sequence[Sequence[np.ndarray]] | None = None,
    add: Callable[..., None] | None = None,
) -> None:
    """Draws into the first of the places, which are contiguous; the others get a copy. Then values are added by `add`, which is
    `_scaled` or the same compiled: targets hold what it takes beside a place, for each of these."""
    generator = stream_generator(seed, name, *key)
    draw = generator.standard_normal if law == "normal" else generator.random
    draw(out=places[0], dtype=places[0].dtype)
    for place in places[1:]:
        place[...] = places[0]
    if targets is not None and add is not None:
        for place, target in zip(places, targets, strict=True):
            add(place, *target)


def _scaled(place: np.ndarray, scale: np.ndarray, values: np.ndarray, factors: np.ndarray | None = None) -> None:
    """place <- values * factors + scale * place, where it holds the draws; a factor of NaN makes the product zero."""
    np.multiply(place, scale, out=place)
    if factors is not None:
        values = values * factors
        values[np.isnan(factors[..., 0])] = 0.0
    np.add(place, values, out=place)


@cache
def compiled_kernel() -> NoiseKernel | None:
    """The kernel, or None, saying so once, where it cannot be built."""
    return built_or_none(_kernel, "the kernel of noise", "using numpy, which is slower")


def _kernel() -> NoiseKernel:
    from dpfl_cli.data.noise_kernel import NoiseKernel  # the compiler takes its time to import

    return NoiseKernel()


def _subsets(generator: np.random.Generator, populations: np.ndarray, size: int) -> np.ndarray:
    """[B, size] the first `size` distinct records among uniform ones, drawn with replacement, of populations [B]; ascending.

    Any set of records is as likely to come first as any other, so the subsets are uniform (up to the 2^-53 of a uniform number).
    Numbers are drawn time by time, so that a client's do not depend on how many its neighbours in the tile need.
    """
    uniform = generator.random((_draws_for(int(populations.min()), size), len(populations)))
    while True:
        times = len(uniform)
        bits = times.bit_length()
        drawn = (uniform * populations).astype(np.int64)  # [times, B]
        order = np.sort((drawn.T << bits) | np.arange(times), axis=1)  # by record, then by the time of its draw
        record, time = order >> bits, order & ((1 << bits) - 1)
        time[:, 1:][record[:, 1:] == record[:, :-1]] = times  # had been drawn before
        last = np.partition(time, size - 1, axis=1)[:, size - 1 : size]
        if last.max() < times:
            return record[time <= last].reshape(-1, size)
        uniform = np.concatenate((uniform, generator.random(uniform.shape)))


@lru_cache(maxsize=1024)
def _draws_for(population: int, size: int) -> int:
    """How many draws with replacement nearly always hold `size` distinct records: their mean and six standard deviations.

    The (j+1)-th distinct record takes a geometric number of draws of success probability p_j = 1 - j / n, of mean 1 / p_j and
    variance (1 - p_j) / p_j^2.
    """
    success = 1 - np.arange(size) / population
    return int(np.ceil((1 / success).sum() + 6 * np.sqrt(((1 - success) / success**2).sum())))
