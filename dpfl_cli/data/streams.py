"""Named random streams: what a run draws depends on its seed and on nothing else.

Every draw is addressed by (seed, stream name, key...), never by the state of a shared generator. A run therefore draws
the same numbers alone, in a batch of runs, after a resume, and under any block size or launcher.

Noise is drawn in tiles: `CLIENT_TILE` clients by a number of rounds that is fixed by the tile's size alone, so that a
tiny problem does not pay for a generator per round. Tiles are pure functions of their address; a cache keeps the current one.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

CLIENT_TILE = 256  # clients per tile
TILE_VALUES = 1 << 15  # a tile spans several rounds as long as it holds at most this many values
MAX_TILE_ROUNDS = 64


def stream_generator(seed: int, name: str, *key: int) -> np.random.Generator:
    """The generator of stream `name` at `key` for a run's seed (SFC64 keyed by a SeedSequence)."""
    spawn_key = (zlib.crc32(name.encode()), *key)
    return np.random.Generator(np.random.SFC64(np.random.SeedSequence(entropy=seed, spawn_key=spawn_key)))


class Streams:
    """The random streams of a batch of runs.

    Args:
      seeds: one seed per run, R of them. Runs with equal seeds draw equal numbers.
    """

    def __init__(self, seeds: Sequence[int]) -> None:
        self.seeds = list(seeds)
        self._tiles: dict[tuple[Any, ...], tuple[int, np.ndarray]] = {}

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
          [R, M, d], or [R, d] where clients is None.
        """
        return self._draw("normal", name, rounds, clients, size, dtype).to(device)

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
        return self._draw("uniform", name, rounds, clients, size, dtype).to(device)

    def _draw(self, law: str, name: str, rounds: np.ndarray, clients: int | None, size: int, dtype: torch.dtype) -> Tensor:
        numpy_dtype = np.float32 if dtype == torch.float32 else np.float64
        total = 1 if clients is None else clients
        out = np.empty((len(self.seeds), total, size), numpy_dtype)
        done: dict[tuple[int, int], int] = {}
        for run, (seed, round_) in enumerate(zip(self.seeds, rounds.tolist(), strict=True)):
            if (seed, round_) in done:  # runs that share seed and round share the draw
                out[run] = out[done[seed, round_]]
                continue
            done[seed, round_] = run
            for start in range(0, total, CLIENT_TILE):
                stop = min(start + CLIENT_TILE, total)
                out[run, start:stop] = self._tile(law, seed, name, round_, start // CLIENT_TILE, stop - start, size, numpy_dtype)
        values = torch.from_numpy(out)
        return values[:, 0] if clients is None else values

    def _tile(self, law: str, seed: int, name: str, round_: int, tile: int, rows: int, size: int, dtype: type) -> np.ndarray:
        depth = max(1, min(MAX_TILE_ROUNDS, TILE_VALUES // max(1, rows * size)))
        epoch, offset = divmod(round_, depth)
        address = (law, seed, name, tile, rows, size, dtype)
        cached = self._tiles.get(address)
        if cached is not None and cached[0] == epoch:
            return cached[1][offset]
        generator = stream_generator(seed, name, epoch, tile)
        draw = generator.standard_normal if law == "normal" else generator.random
        values = draw((depth, rows, size), dtype=dtype)
        if depth > 1:
            self._tiles[address] = (epoch, values)
        return values[offset]
