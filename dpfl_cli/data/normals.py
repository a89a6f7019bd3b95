"""Standard normal numbers as numpy draws them from SFC64, bit for bit, in less than half the time.

numpy calls a function for every word that it draws; here generator and ziggurat are one compiled
loop. It is used where it is found to draw what numpy draws.

References:
  Marsaglia, Tsang, "The ziggurat method for generating random variables", J. Stat. Softw. 5(8),
    2000, with numpy's 256 layers.
  Doty-Humphrey, PractRand, 2010 (SFC64).
"""

import threading
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import numpy as np
from numpy import ndarray
from numpy.random import Generator

from dpfl_cli.data.programs import built, built_or_none

FEW = 1 << 13  # numbers that are drawn sooner than a compiler is imported
CHECKED = (1 << 16) + 1  # numbers that are compared with numpy's
Sampler = Callable[[Generator, ndarray], object]
_building = threading.Lock()


def fill_normal(generator: Generator, out: ndarray) -> None:
    """As `generator.standard_normal(out=out)`, of a new generator on SFC64 that is used for nothing
    else.
    """
    compiled = None
    if out.size >= FEW:
        with _building:
            compiled = _compiled(out.dtype == np.float32)
    (compiled or _by_numpy)(generator, out)


def _by_numpy(generator: Generator, out: ndarray) -> None:
    generator.standard_normal(out=out, dtype=out.dtype)


@cache
def _compiled(single: bool) -> Sampler | None:
    """The same in single or double precision; None where it cannot be built."""
    instead = "numpy draws the same numbers, which is slower"
    return built_or_none(partial(_checked, single), "the drawing of normal numbers", instead)


def _checked(single: bool) -> Sampler:
    from numba.np.random import _constants as tables

    from dpfl_cli.data.normal_loops import normal_of

    kind: Any = np.float32 if single else np.float64
    name, number = ("float", "float32") if single else ("double", "float64")
    widths, inside, heights = (getattr(tables, f"{one}_{name}") for one in ("wi", "ki", "fi"))
    signed = np.concatenate((widths, -widths)).astype(kind)
    layers = signed, inside.astype(np.int64), heights.astype(kind)
    edges = kind(tables.ziggurat_nor_r), kind(tables.ziggurat_nor_inv_r)
    numbers = f"{number}[::1]"
    types = f"uint64[::1], {numbers}, int64[::1], {numbers}, {number}, {number}, {numbers}"
    program = built(normal_of(single), "the drawing of normal numbers", 2, types)

    def draw(generator: Generator, out: ndarray) -> None:
        known: Any = generator.bit_generator.state
        if not out.flags.c_contiguous:  # it would be a copy that is filled
            raise ValueError("out of a draw is not contiguous")
        program(known["state"]["state"], *layers, *edges, out.reshape(-1))

    found, wanted = np.empty((2, CHECKED), kind)
    for made, drawn in ((draw, found), (_by_numpy, wanted)):
        made(Generator(np.random.SFC64(0)), drawn)
    if not np.array_equal(found, wanted):
        raise ValueError("this numpy draws others")
    return draw
