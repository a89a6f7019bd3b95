"""Products of records with weights, eight records to a vector, and what else the kernel of linear
layers is made of.

A tile of up to `TILE` vectors of sums stays in registers, and every record that is loaded meets
several columns of weights. The order of every sum is fixed by the records and by nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, wraps
from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from dpfl_cli.models.vector_code import Code, Index, Sum

LANES = 8  # float64 numbers in a vector
TILE = 16  # vectors of sums that stay in registers


def _code(emit: Callable[..., Any], result: Any = types.void) -> Any:
    """A function for numba from one that writes its code: arrays of float64 come to it as (pointer,
    strides in bytes), whole numbers as `Index`.
    """

    @wraps(emit)
    def typed(context: Any, *kinds: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            given: list[Any] = []
            for kind, value in zip(signature.args, values, strict=True):
                if isinstance(kind, types.Array):
                    array = cgutils.create_struct_proxy(kind)(context, builder, value)
                    given.append((array.data, cgutils.unpack_tuple(builder, array.strides)))
                else:
                    given.append(Index(builder, value))
            found = emit(Code(builder, ir.DoubleType()), *given)
            return context.get_dummy_value() if result is types.void else found

        return result(*kinds), generate

    return intrinsic(typed)


def _lane_sums(code: Code, vectors: list[Any]) -> Any:
    """The sums of the lanes of 8 vectors as one vector, each ((a0 + a4) + (a2 + a6)) + ((a1 + a5) +
    (a3 + a7)).
    """
    for lanes in (
        [0, 1, 2, 3, 8, 9, 10, 11],
        [0, 1, 8, 9, 4, 5, 12, 13],
        [0, 8, 2, 10, 4, 12, 6, 14],
    ):
        half = len(vectors) // 2
        others = [lane + half for lane in lanes]
        vectors = [
            code.builder.fadd(code.shuffled(a, b, lanes), code.shuffled(a, b, others))
            for a, b in zip(vectors[:half], vectors[half:], strict=True)
        ]
    return vectors[0]


@_code
def transposed(code, rows, numbers, tiles, features, vector):  # type: ignore[no-untyped-def]
    """features[vector, k, lane] = rows[numbers[lane], k] for k < 8 tiles; rows of either type."""
    kind = ir.VectorType(rows[0].type.pointee, LANES)
    into = code.row(features, vector)
    own = [code.row(rows, code.whole(numbers, lane)) for lane in range(LANES)]
    with code.loop(tiles) as tile:
        found = [code.load(row, tile, kind) for row in own]
        for apart in (4, 2, 1):  # halves of squares change places, then their quarters
            for i in (i for i in range(LANES) if not i & apart):
                a, b = found[i], found[i + apart]
                upper = [k if not k & apart else LANES + k - apart for k in range(LANES)]
                found[i] = code.shuffled(a, b, upper)
                found[i + apart] = code.shuffled(a, b, [k + apart for k in upper])
        for k, records in enumerate(found):
            wide = records if kind == code.vector else code.builder.fpext(records, code.vector)
            code.store(wide, into, tile * LANES + k)


@_code
def outputs(  # type: ignore[no-untyped-def]
    code, features, first, vectors, width, weights, columns, z
):
    """z[a, i lane] = sum_k weights[a, k] features[first + i, k, lane] for i < vectors, a < columns,
    k < width.
    """

    def tile(column: Index, together: int, start: Index, count: int) -> None:
        by, into = ([code.row(one, column + a) for a in range(together)] for one in (weights, z))
        rows = [code.row(features, first + (start + i)) for i in range(count)]
        sums = [[Sum(code) for _ in rows] for _ in by]
        with code.loop(width) as k:
            spread = [code.spread(one, k) for one in by]
            for i, row in enumerate(rows):
                records = code.load(row, k)
                for a, weight in enumerate(spread):
                    sums[a][i].add(weight, records)
        for row, cells in zip(into, sums, strict=True):
            for i, cell in enumerate(cells):
                code.store(cell.get(), row, start + i)

    def group(column: Index, together: int) -> None:
        most = min(LANES, TILE // together)
        code.in_groups(vectors, most, partial(tile, column, together))

    code.in_groups(columns, 4, group)


@_code
def accumulate(  # type: ignore[no-untyped-def]
    code, features, first, vectors, width, s, columns, totals
):
    """totals[a, k] += sum over i < vectors and lanes of s[a, i lane] features[first + i, k, lane]
    for a < columns and k < width, a multiple of 8.
    """

    def group(column: Index, together: int) -> None:
        by, into = ([code.row(one, column + a) for a in range(together)] for one in (s, totals))
        count = min(LANES, TILE // together)
        with code.loop(width // count) as place:
            sums = [[Sum(code) for _ in range(count)] for _ in by]
            with code.loop(vectors) as vector:
                row = code.row(features, first + vector)
                slopes = [code.load(one, vector) for one in by]
                for i in range(count):
                    records = code.load(row, place * count + i)
                    for a, slope in enumerate(slopes):
                        sums[a][i].add(slope, records)
            flat = [cell.get() for cells in sums for cell in cells]
            for begin in range(0, len(flat), LANES):
                found = _lane_sums(code, flat[begin : begin + LANES])
                for part in range(0, LANES, count):  # one column, or two of four numbers each
                    mine = code.shuffled(found, found, list(range(part, part + count)))
                    target = into[(begin + part) // count]
                    old = code.load(target, place, mine.type)
                    code.store(code.builder.fadd(old, mine), target, place)

    code.in_groups(columns, 4, group)


@partial(_code, result=types.float64)
def inner(code, one, other, number):  # type: ignore[no-untyped-def]
    """sum_k one[k] other[k] of dense arrays, k < number, a multiple of 8."""
    total = Sum(code)
    with code.loop(number // LANES) as k:
        total.add(code.load(one[0], k), code.load(other[0], k))
    sums = _lane_sums(code, [total.get(), *[code.zero] * (LANES - 1)])
    return code.builder.extract_element(sums, ir.IntType(32)(0))


def aligned(size: int) -> np.ndarray:
    """[size] float64, zero, beginning with a cache line, so that no vector lies across two."""
    raw = np.zeros(size + LANES)
    start = -raw.ctypes.data % 64 // 8
    return raw[start : start + size]


@njit(inline="always")
def exp_of_negative(x):  # type: ignore[no-untyped-def]
    """e^x for x <= 0 to an ulp or two.

    With n = round(x / ln 2), by adding and taking off 1.5 2^52, and |r| <= ln(2) / 2, e^x is 2^n
    e^r, e^r by Taylor's series. n goes into the exponent in two halves, so that results below the
    smallest normal number come out as well. No branch and no call: the loop around it becomes
    vector code.
    """
    x = -1000.0 if x < -1000.0 else x
    shifted = x * 1.4426950408889634 + 6755399441055744.0
    n = shifted - 6755399441055744.0
    r = (x - n * 6.93147180369123816490e-01) - n * 1.90821492927058770002e-10  # ln 2 in two parts
    p = 1.0 / 6227020800.0
    p = p * r + 1.0 / 479001600.0
    p = p * r + 1.0 / 39916800.0
    p = p * r + 1.0 / 3628800.0
    p = p * r + 1.0 / 362880.0
    p = p * r + 1.0 / 40320.0
    p = p * r + 1.0 / 5040.0
    p = p * r + 1.0 / 720.0
    p = p * r + 1.0 / 120.0
    p = p * r + 1.0 / 24.0
    p = p * r + 1.0 / 6.0
    p = (p * r + 0.5) * r + 1.0
    p = p * r + 1.0
    whole = np.float64(shifted).view(np.int64) - 4843621399236968448
    half = whole >> 1
    first = np.int64((half + 1023) << 52).view(np.float64)
    return p * first * np.int64((whole - half + 1023) << 52).view(np.float64)
