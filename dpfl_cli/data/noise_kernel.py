"""Noise on rows of values that are scaled on the way, compiled for CPUs: one pass over memory in place of three.

The same numbers as `streams._scaled`, bit by bit: every product and every sum is rounded, nothing is contracted.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types

from dpfl_cli.data.programs import built


def _scaled(place, scale, values, factors):  # type: ignore[no-untyped-def]
    """place[i] <- values[i] factors[i] + scale[i] place[i]; a factor of NaN makes the product zero."""
    for i in range(len(place)):
        times, factor = scale[i], factors[i]
        if np.isnan(factor):
            for j in range(place.shape[1]):
                place[i, j] = place[i, j] * times + 0.0
        else:
            for j in range(place.shape[1]):
                place[i, j] = place[i, j] * times + values[i, j] * factor


class NoiseKernel:
    """The compiled program. Building it takes a second the first time on a machine, later it is read from disk.

    Raises:
      Exception: of any kind, where numba cannot compile; there is no list of what can go wrong in a compiler.
    """

    def __init__(self) -> None:
        signatures = []
        for number in (types.float64, types.float32):
            rows = types.Array(number, 2, "C", readonly=True)
            per_row = types.Array(number, 1, "A", readonly=True)
            signatures.append((types.Array(number, 2, "C"), per_row, rows, per_row))
        self._program: Any = built(_scaled, "the kernel of noise", 2, signatures, error_model="numpy")

    def scaled(self, place: np.ndarray, scale: np.ndarray, values: np.ndarray, factors: np.ndarray) -> None:
        """place <- values factors + scale place, in place.

        Args:
          place, values: [B, d] dense, float32 or float64 like all.
          scale, factors: [B, 1].
        """
        self._program(place, scale[:, 0], values, factors[:, 0])
