"""Standard normal numbers as numpy draws them from SFC64, bit for bit, in less than half the time;
but for the tails of float32 ones.

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
from numpy.random import SFC64, Generator

from dpfl_cli.data.programs import built, built_or_none

FEW = 1 << 13  # numbers that are drawn sooner than a compiler is imported
CHECKED = (1 << 16) + 1  # numbers that are compared with numpy's
FAR = 7.0  # up to it float32 numbers have their law, to 1 %; 3 in 10^12 are beyond
Sampler = Callable[[Generator, ndarray], object]
_building = threading.Lock()


def fill_normal(generator: Generator, out: ndarray) -> None:
    """As `generator.standard_normal(out=out)`, of a new generator on SFC64 that is used for nothing
    else; float32 numbers beyond `FAR` are drawn anew.
    """
    compiled, single = None, out.dtype == np.float32
    if out.size >= FEW:
        with _building:
            compiled = _compiled(single)
    (compiled or _by_numpy)(generator, out)
    if single and max(out.max(initial=0), -out.min(initial=0)) > FAR:
        _draw_tails(generator, out)


def _draw_tails(generator: Generator, out: ndarray) -> None:
    """Numbers beyond `FAR` in double precision, of the same sign.

    Those of numpy are made of 24 bits and end at 8.2. As noise they would tell for sure of a
    release that is moved, where it comes out farther than 8.2 from where it would have been: moved
    by 2 standard deviations, which is epsilon 14.7 at delta 1e-10, with probability 2.8e-10. These
    end at 11.
    """
    from scipy.special import ndtr, ndtri  # importing it takes a while

    far = np.abs(out) > FAR
    (stream,) = generator.bit_generator.seed_seq.spawn(1)  # type: ignore[attr-defined]
    within = 1 - Generator(SFC64(stream)).random(np.count_nonzero(far))
    out[far] = np.copysign(-ndtri(within * ndtr(-FAR)), out[far])


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
