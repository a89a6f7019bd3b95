"""Products of records with weights, as many records as a vector has lanes at once, and what else
the kernel of linear layers is made of, for float32 and float64.

A tile of about `TILE` vectors of sums stays in registers, and every record that is loaded meets
several columns of weights. The order of every sum is fixed by the records and by nothing else, so
that it is the same whatever a processor has room for.
"""

from functools import partial
from math import factorial
from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.extending import overload

from dpfl_cli.models.vector_code import COLUMNS, TILE, VECTOR_BYTES, Code, Index, Sum, written


def _lane_sums(code: Code, vectors: list[Any]) -> Any:
    """The sums of the lanes of as many vectors as there are lanes, as one vector; of eight each
    ((a0 + a4) + (a2 + a6)) + ((a1 + a5) + (a3 + a7)).
    """
    quad, apart = 16 // code.size, code.lanes  # quarters of a vector are changed most quickly
    vectors = [vectors[quad * q + k] for k in range(quad) for q in range(4)]
    while apart := apart // 2:
        # of every two vectors the lanes without the bit `apart`, to which those with it are added
        own = [lane for lane in range(2 * code.lanes) if not lane & apart]
        if apart < quad:
            own.sort(key=lambda lane: lane % code.lanes // quad)
        others = [lane + apart for lane in own]
        vectors = [
            code.builder.fadd(code.shuffled(a, b, own), code.shuffled(a, b, others))
            for a, b in zip(vectors[::2], vectors[1::2], strict=True)
        ]
    return vectors[0]


@written
def transposed(code, features, vector, rows, numbers, tiles):  # type: ignore[no-untyped-def]
    """features[vector, k, lane] = rows[numbers[lane], k] for k < tiles times the lanes; rows of the
    type of features, or of float32.
    """
    kind = ir.VectorType(rows[0].type.pointee, code.lanes)
    into = code.row(features, vector)
    whole = numbers[0].type.pointee
    places = [code.load(numbers[0], code.index(lane), whole) for lane in range(code.lanes)]
    own = [code.row(rows, Index(code.builder, place)) for place in places]
    with code.loop(tiles) as tile:
        found, apart = [code.load(row, tile, kind) for row in own], code.lanes
        while apart := apart // 2:  # halves of squares change places, then their quarters
            for i in (i for i in range(code.lanes) if not i & apart):
                a, b = found[i], found[i + apart]
                upper = [k if not k & apart else code.lanes + k - apart for k in range(code.lanes)]
                found[i] = code.shuffled(a, b, upper)
                found[i + apart] = code.shuffled(a, b, [k + apart for k in upper])
        for k, records in enumerate(found):
            code.store(code.widened(records, code.number), into, tile * code.lanes + k)


@written
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
            records = [code.load(row, k) for row in rows]
            for one, cells in zip(by, sums, strict=True):
                weight = code.spread(one, k)
                for cell, loaded in zip(cells, records, strict=True):
                    cell.add(weight, loaded)
        for row, cells in zip(into, sums, strict=True):
            for i, cell in enumerate(cells):
                code.store(cell.get(), row, start + i)

    def group(column: Index, together: int) -> None:
        most = min(code.lanes, -(-TILE // together))
        code.in_groups(vectors, most, partial(tile, column, together))

    code.in_groups(columns, 5, group)


@written
def accumulate(  # type: ignore[no-untyped-def]
    code, features, first, vectors, width, s, columns, totals
):
    """totals[a, k] += sum over i < vectors and lanes of s[a, i lane] features[first + i, k, lane]
    for a < columns and k < width, a multiple of the lanes. Totals are of the type of features, or
    of float64.
    """

    def group(column: Index, together: int) -> None:
        by = [code.row(s, column + a) for a in range(together)]
        count, tile = min(code.lanes, 16 // together), -(-TILE // together)
        with code.loop(width // count) as place:
            sums = [[Sum(code) for _ in range(count)] for _ in by]
            for begin in range(0, count, tile):
                with code.loop(vectors) as vector:
                    row = code.row(features, first + vector)
                    slopes = [code.load(one, vector) for one in by]
                    for i in range(begin, min(begin + tile, count)):
                        records = code.load(row, place * count + i)
                        for a, slope in enumerate(slopes):
                            sums[a][i].add(slope, records)
            flat = [cell.get() for cells in sums for cell in cells]
            for begin in range(0, len(flat), code.lanes):
                found = _lane_sums(code, flat[begin : begin + code.lanes])
                for part in range(0, code.lanes, count):  # the numbers of one column, and of others
                    mine = code.shuffled(found, found, list(range(part, part + count)))
                    target = code.row(totals, column + (begin + part) // count)
                    mine = code.widened(mine, target.type.pointee)
                    old = code.load(target, place, mine.type)
                    code.store(code.builder.fadd(old, mine), target, place)

    code.in_groups(columns, COLUMNS, group)


@partial(written, result=types.float64)
def inner(code, one, other, number):  # type: ignore[no-untyped-def]
    """sum_k one[k] other[k] of dense arrays of float64, k < number, a multiple of 8."""
    total = Sum(code)
    with code.loop(number // code.lanes) as k:
        total.add(code.load(one[0], k), code.load(other[0], k))
    sums = _lane_sums(code, [total.get(), *[code.zero] * (code.lanes - 1)])
    return code.builder.extract_element(sums, ir.IntType(32)(0))


def aligned(size: int, number: type, zeros: bool = True) -> np.ndarray:
    """[size] zeros, or anything, beginning with a cache line, so that no vector lies across two."""
    many = size + VECTOR_BYTES // 4
    raw: np.ndarray = np.zeros(many, number) if zeros else np.empty(many, number)
    start = -raw.ctypes.data % VECTOR_BYTES // raw.itemsize
    return raw[start : start + size]


def exp_of_negative(x):  # type: ignore[no-untyped-def]
    """e^x for x <= 0 to an ulp or two, in the type of x; for compiled code.

    With n = round(x / ln 2), by adding and taking off a number whose last digit is 1, and |r| <=
    ln(2) / 2, e^x is 2^n e^r, e^r by Taylor's series. n goes into the exponent in two halves, so
    that results below the smallest normal number come out as well. No branch and no call: a loop
    around it becomes vector code.
    """
    raise NotImplementedError


@overload(exp_of_negative)
def _exp_of_negative(x):  # type: ignore[no-untyped-def]
    number: Any
    whole: Any
    number, whole, digits, bias, least, terms = np.float64, np.int64, 52, 1023, -1000.0, 13
    ln2 = 6.93147180369123816490e-01, 1.90821492927058770002e-10  # in two parts
    if x == types.float32:
        number, whole, digits, bias, least, terms = np.float32, np.int32, 23, 127, -120.0, 7
        ln2 = 0.693359375, -2.12194440054690583e-4
    lowest, turns, high, low = (number(one) for one in (least, 1.4426950408889634, *ln2))
    shift = number(1.5 * 2**digits)
    bits = shift.view(whole)
    series = tuple(number(1.0 / factorial(k)) for k in range(terms, -1, -1))

    def compiled(x):  # type: ignore[no-untyped-def]
        x = lowest if x < lowest else x
        shifted = x * turns + shift
        n = shifted - shift
        r = (x - n * high) - n * low
        p = series[0]
        for term in series[1:]:
            p = p * r + term
        exponent = whole(number(shifted).view(whole) - bits)
        half = exponent >> 1
        first = whole((half + bias) << digits).view(number)
        return p * first * whole((exponent - half + bias) << digits).view(number)

    return compiled
