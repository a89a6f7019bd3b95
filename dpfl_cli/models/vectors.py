"""Products of records with weights, eight records to a vector, written as LLVM code for numba.

A compiler does not keep a tile of sums in registers that it finds in plain loops, so these loops
are written out: a tile of up to `TILE` vectors of sums, every record that is loaded meeting several
columns of weights. The order of every sum is fixed by the records and by nothing else. Products may
be contracted with sums (FMA).
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

LANES = 8  # float64 numbers in a vector
TILE = 16  # vectors of sums that stay in registers

_INT, _BYTE, _LANE = ir.IntType(64), ir.IntType(8), ir.IntType(32)
_VECTOR = ir.VectorType(ir.DoubleType(), LANES)
_ZERO = ir.Constant(_VECTOR, [0.0] * LANES)


def _code(emit: Callable[..., Any], result: Any = types.void) -> Any:
    """A function for numba from one that writes its LLVM code; arrays come as (pointer, strides in
    bytes).
    """

    @wraps(emit)
    def typed(context: Any, *kinds: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            given = []
            for kind, value in zip(signature.args, values, strict=True):
                if isinstance(kind, types.Array):
                    array = cgutils.create_struct_proxy(kind)(context, builder, value)
                    given.append((array.data, cgutils.unpack_tuple(builder, array.strides)))
                else:
                    given.append(value)
            found = emit(builder, *given)
            return context.get_dummy_value() if result is types.void else found

        return result(*kinds), generate

    return intrinsic(typed)


def _many(number: int) -> Any:
    return ir.Constant(_INT, number)


def _row(builder: Any, array: Any, number: Any) -> Any:
    """Where row `number` of an array begins."""
    data, (apart, *_) = array
    bytes_ = builder.bitcast(data, _BYTE.as_pointer())
    return builder.bitcast(builder.gep(bytes_, [builder.mul(number, apart)]), data.type)


def _load(builder: Any, pointer: Any, index: Any, kind: Any = _VECTOR) -> Any:
    address = builder.bitcast(builder.gep(pointer, [index]), kind.as_pointer())
    return builder.load(address, align=8)


def _store(builder: Any, value: Any, pointer: Any, index: Any) -> None:
    address = builder.bitcast(builder.gep(pointer, [index]), value.type.as_pointer())
    builder.store(value, address, align=8)


def _shuffled(builder: Any, one: Any, other: Any, lanes: list[int]) -> Any:
    order = ir.Constant(ir.VectorType(_LANE, len(lanes)), lanes)
    return builder.shuffle_vector(one, other, order)


def _broadcast(builder: Any, number: Any) -> Any:
    """A number in all lanes."""
    undefined = ir.Constant(_VECTOR, ir.Undefined)
    first = builder.insert_element(undefined, number, ir.Constant(_LANE, 0))
    return _shuffled(builder, first, undefined, [0] * LANES)


def _add_product(builder: Any, a: Any, b: Any, cell: Any) -> None:
    """cell += a b."""
    kind = ir.FunctionType(_VECTOR, [_VECTOR] * 3)
    fma = cgutils.get_or_insert_function(builder.module, kind, "llvm.fmuladd.v8f64")
    builder.store(builder.call(fma, [a, b, builder.load(cell)]), cell)


def _zeros(builder: Any, columns: int, others: int) -> list[list[Any]]:
    """Cells of vectors [columns][others], zero."""
    cells = [[cgutils.alloca_once(builder, _VECTOR) for _ in range(others)] for _ in range(columns)]
    for column in cells:
        for cell in column:
            builder.store(_ZERO, cell)
    return cells


def _lane_sums(builder: Any, vectors: list[Any]) -> Any:
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
            builder.fadd(_shuffled(builder, a, b, lanes), _shuffled(builder, a, b, others))
            for a, b in zip(vectors[:half], vectors[half:], strict=True)
        ]
    return vectors[0]


def _in_groups(builder: Any, number: Any, most: int, emit: Callable[[Any, int], None]) -> None:
    """The code for (first, how many) of groups of `most`, half of it, ... 1, that make up a number
    known when the code runs.
    """
    start: Any = _many(0)
    while most:
        end = builder.sub(number, builder.srem(builder.sub(number, start), _many(most)))
        with cgutils.for_range_slice(builder, start, end, _many(most)) as (first, _):
            emit(first, most)
        start, most = end, most // 2


@_code
def outputs(  # type: ignore[no-untyped-def]
    builder, features, first, vectors, width, weights, columns, z
):
    """z[a, i lane] = sum_k weights[a, k] features[first + i, k, lane] for i < vectors, a < columns,
    k < width.
    """

    def tile(column: Any, together: int, start: Any, count: int) -> None:
        at = [builder.add(column, _many(a)) for a in range(together)]
        by = [_row(builder, weights, a) for a in at]
        places = [builder.add(start, _many(i)) for i in range(count)]
        rows = [_row(builder, features, builder.add(first, place)) for place in places]
        cells = _zeros(builder, together, count)
        with cgutils.for_range(builder, width) as loop:
            spread = [_broadcast(builder, builder.load(builder.gep(w, [loop.index]))) for w in by]
            for i, row in enumerate(rows):
                records = _load(builder, row, builder.mul(loop.index, _many(LANES)))
                for a in range(together):
                    _add_product(builder, spread[a], records, cells[a][i])
        for a in range(together):
            into = _row(builder, z, at[a])
            for place, cell in zip(places, cells[a], strict=True):
                _store(builder, builder.load(cell), into, builder.mul(place, _many(LANES)))

    def group(column: Any, together: int) -> None:
        most = min(LANES, TILE // together)
        _in_groups(builder, vectors, most, partial(tile, column, together))

    _in_groups(builder, columns, 4, group)


@_code
def accumulate(  # type: ignore[no-untyped-def]
    builder, features, first, vectors, width, s, columns, totals
):
    """totals[a, k] += sum over i < vectors and lanes of s[a, i lane] features[first + i, k, lane]
    for a < columns and k < width, a multiple of 8.
    """

    def group(column: Any, together: int) -> None:
        at = [builder.add(column, _many(a)) for a in range(together)]
        by, into = ([_row(builder, array, a) for a in at] for array in (s, totals))
        count = min(LANES, TILE // together)
        with cgutils.for_range_slice(builder, _many(0), width, _many(count)) as (place, _):
            cells = _zeros(builder, together, count)
            with cgutils.for_range(builder, vectors) as loop:
                row = _row(builder, features, builder.add(first, loop.index))
                there = builder.mul(loop.index, _many(LANES))
                slopes = [_load(builder, one, there) for one in by]
                for i in range(count):
                    here = builder.mul(builder.add(place, _many(i)), _many(LANES))
                    records = _load(builder, row, here)
                    for a in range(together):
                        _add_product(builder, slopes[a], records, cells[a][i])
            flat = [builder.load(cell) for column in cells for cell in column]
            for begin in range(0, len(flat), LANES):
                sums = _lane_sums(builder, flat[begin : begin + LANES])
                for part in range(0, LANES, count):  # one column, or two of four numbers each
                    mine = sums
                    if count < LANES:
                        mine = _shuffled(builder, sums, sums, list(range(part, part + count)))
                    target = into[(begin + part) // count]
                    old = _load(builder, target, place, mine.type)
                    _store(builder, builder.fadd(old, mine), target, place)

    _in_groups(builder, columns, 4, group)


@partial(_code, result=types.float64)
def inner(builder, one, other, number):  # type: ignore[no-untyped-def]
    """sum_k one[k] other[k] of dense arrays, k < number, a multiple of 8."""
    ((cell,),) = _zeros(builder, 1, 1)
    with cgutils.for_range_slice(builder, _many(0), number, _many(LANES)) as (k, _):
        _add_product(builder, _load(builder, one[0], k), _load(builder, other[0], k), cell)
    sums = _lane_sums(builder, [builder.load(cell), *[_ZERO] * (LANES - 1)])
    return builder.extract_element(sums, ir.Constant(_LANE, 0))


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
