"""Gradients of models with one linear output per record, compiled for CPUs.

Records lie in vectors of 8, `features [V, d, 8]`, one record to a lane. For every client and run,

    z_j = sum_k v_k a_jk        the outputs: a weight is broadcast, and 8 vectors of sums stay in registers
    s_j = dl/dz (z_j, y_j)      clipped to |s_j| ||a_j|| <= C where that is asked for
    g_k = sum_j s_j a_jk        8 partial sums for every k, one to a lane, added up at the end; 8 k stay in registers

A core loads one vector and multiplies and adds one in the same time, so what is loaded of the records serves two runs at once
where there are two. What takes the time is written as LLVM code, for a compiler does not make it of plain loops: the two
products, and the logistic derivative of ordinary margins, whose chains of operations alternate; the rest is numba. The order of
every sum is fixed by the client's own records: results do not depend on threads, on other clients or on other runs. Products may
be contracted with sums (FMA); nothing else is relaxed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial, wraps
from itertools import chain
from math import factorial, log
from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from dpfl_cli.data.programs import built
from dpfl_cli.data.threads import even_parts, in_threads

LOSSES = ("logistic", "squared")  # l = ln(1 + exp(-y z)), or scale (z - y)^2
MODES = ("gradient", "clipped", "norms", "loss")  # what of the records: see `SingleOutputKernel.compute`
LOGISTIC, SQUARED = range(2)
GRADIENT, CLIPPED, NORMS, LOSS = range(4)
LANES = 8
GROUP = 8  # vectors whose sums stay in registers, for each of
RUNS = 2  # that are computed together
GROUPS = (GROUP, 4, 2, 1)  # numbers of vectors that code is written for
BLOCK = 64  # vectors at most whose outputs are kept
CACHED = 24 << 10  # bytes of features that stay in the nearest cache between the two products
SHARED_WORK = 1 << 21  # products and sums from which on several threads pay
PART_WORK = 1 << 18  # and of which a thread takes at least as many at once

INT, _BYTE = ir.IntType(64), ir.IntType(8)
VECTOR = ir.VectorType(ir.DoubleType(), LANES)
_WHOLE = ir.VectorType(INT, LANES)
_LANE_INDEX = ir.VectorType(ir.IntType(32), LANES)
_ZERO = ir.Constant(VECTOR, [0.0] * LANES)


def many(number: int) -> Any:
    return ir.Constant(INT, number)


def _moved(builder: Any, pointer: Any, size: Any) -> Any:
    """The pointer, this many bytes on."""
    return builder.bitcast(builder.gep(builder.bitcast(pointer, _BYTE.as_pointer()), [size]), pointer.type)


def load(builder: Any, pointer: Any, index: Any) -> Any:
    address = builder.bitcast(builder.gep(pointer, [index]), VECTOR.as_pointer())
    return builder.load(address, align=8)


def store(builder: Any, value: Any, pointer: Any, index: Any) -> None:
    builder.store(value, builder.bitcast(builder.gep(pointer, [index]), VECTOR.as_pointer()), align=8)


def _shuffled(builder: Any, one: Any, other: Any, lanes: list[int]) -> Any:
    return builder.shuffle_vector(one, other, ir.Constant(_LANE_INDEX, lanes))


def broadcast(builder: Any, single: Any) -> Any:
    """One scalar in all lanes."""
    undefined = ir.Constant(VECTOR, ir.Undefined)
    first = builder.insert_element(undefined, single, ir.Constant(ir.IntType(32), 0))
    return _shuffled(builder, first, undefined, [0] * LANES)


def _fma(builder: Any, a: Any, b: Any, c: Any) -> Any:
    """a * b + c."""
    kind = ir.FunctionType(VECTOR, [VECTOR] * 3)
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, "llvm.fmuladd.v8f64"), [a, b, c])


def _choose(builder: Any, number: Any, most: int, emit: Callable[[int], None]) -> None:
    """The code for every number up to `most`, one of which is chosen: values in registers need a fixed number."""
    end = builder.append_basic_block()
    choice = builder.switch(number, end)
    for fixed in range(1, most + 1):
        with builder.goto_block(builder.append_basic_block()):
            choice.add_case(many(fixed), builder.block)
            emit(fixed)
            builder.branch(end)
    builder.position_at_end(end)


def _in_groups(builder: Any, number: Any, sizes: Sequence[int], emit: Callable[[Any, int], None]) -> None:
    """The code for (first, how many) of groups of such sizes, falling to 1, that make up a number known when the code runs."""
    start: Any = many(0)
    for size in sizes:
        end = builder.sub(number, builder.srem(builder.sub(number, start), many(size)))
        with cgutils.for_range_slice(builder, start, end, many(size)) as (first, _):
            emit(first, size)
        start = end


def llvm_code(emit: Callable[..., Any], result: Any = types.void) -> Any:
    """A function for numba code from one that writes its LLVM code, which is given (pointer, strides in bytes) of arrays."""

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


@llvm_code
def outputs(  # type: ignore[no-untyped-def]
    builder, features, first, vectors, d, parameters, runs, place, together, client, z
):  # fmt: skip
    """z[r, i, lane] = sum_k v_r[k] features[first + i, k, lane] for i < vectors, with v_r = parameters[runs[place + r], client].

    `z` [RUNS, BLOCK, 8]; r < together <= RUNS.
    """
    (data, (of_run, of_client, of_k)), (held, (of_row, *_)) = parameters, z
    size = builder.mul(d, many(LANES))  # values of one vector of records
    begin = builder.gep(features[0], [builder.mul(first, size)])

    def group(runs_at_once: int, start: Any, fixed: int) -> None:
        weights = []  # where v_r starts
        for r in range(runs_at_once):
            run = builder.load(builder.gep(runs[0], [builder.add(place, many(r))]))
            apart = builder.add(builder.mul(run, of_run), builder.mul(client, of_client))
            weights.append(_moved(builder, data, apart))
        rows = [builder.gep(begin, [builder.mul(builder.add(start, many(i)), size)]) for i in range(fixed)]
        sums = [[cgutils.alloca_once(builder, VECTOR) for _ in rows] for _ in weights]
        for cell in chain(*sums):
            builder.store(_ZERO, cell)
        with cgutils.for_range(builder, d) as loop:
            step = builder.mul(loop.index, of_k)
            spread = [broadcast(builder, builder.load(_moved(builder, weight, step))) for weight in weights]
            for i, row in enumerate(rows):
                records = load(builder, row, builder.mul(loop.index, many(LANES)))
                for weight, cells in zip(spread, sums, strict=True):
                    builder.store(_fma(builder, weight, records, builder.load(cells[i])), cells[i])
        for r, cells in enumerate(sums):
            row = _moved(builder, held, builder.mul(many(r), of_row))
            for i, cell in enumerate(cells):
                store(builder, builder.load(cell), row, builder.mul(builder.add(start, many(i)), many(LANES)))

    _choose(builder, together, RUNS, lambda fixed: _in_groups(builder, vectors, GROUPS, partial(group, fixed)))


@llvm_code
def accumulate(builder, features, first, vectors, d, s, together, fresh, sums):  # type: ignore[no-untyped-def]
    """sums[r, k, lane] += sum_i s[r, i, lane] features[first + i, k, lane] for i < vectors; `fresh`: from zero.

    8 k at a time, so that their sums stay in registers. `s` [RUNS, BLOCK, 8]; r < together <= RUNS.
    """
    (held, (of_row, *_)), (totals, (of_sums, *_)) = s, sums
    size = builder.mul(d, many(LANES))
    begin = builder.gep(features[0], [builder.mul(first, size)])

    def group(runs_at_once: int, start: Any, fixed: int) -> None:
        weights = [_moved(builder, held, builder.mul(many(r), of_row)) for r in range(runs_at_once)]
        rows = [_moved(builder, totals, builder.mul(many(r), of_sums)) for r in range(runs_at_once)]
        places = [builder.mul(builder.add(start, many(i)), many(LANES)) for i in range(fixed)]
        cells = [[cgutils.alloca_once(builder, VECTOR) for _ in places] for _ in rows]
        with builder.if_else(fresh) as (new, old):
            with new:
                for cell in chain(*cells):
                    builder.store(_ZERO, cell)
            with old:
                for row, mine in zip(rows, cells, strict=True):
                    for place, cell in zip(places, mine, strict=True):
                        builder.store(load(builder, row, place), cell)
        with cgutils.for_range(builder, vectors) as loop:
            here = builder.gep(begin, [builder.add(builder.mul(loop.index, size), places[0])])
            spread = [load(builder, weight, builder.mul(loop.index, many(LANES))) for weight in weights]
            for i in range(fixed):
                records = load(builder, here, many(i * LANES))
                for weight, mine in zip(spread, cells, strict=True):
                    builder.store(_fma(builder, weight, records, builder.load(mine[i])), mine[i])
        for row, mine in zip(rows, cells, strict=True):
            for place, cell in zip(places, mine, strict=True):
                store(builder, builder.load(cell), row, place)

    _choose(builder, together, RUNS, lambda fixed: _in_groups(builder, d, GROUPS, partial(group, fixed)))


@llvm_code
def add_lanes(builder, sums, groups, out):  # type: ignore[no-untyped-def]
    """out[k] = ((a0 + a4) + (a2 + a6)) + ((a1 + a5) + (a3 + a7)) of the 8 lanes a of sums[k], for k < 8 groups, 8 k at once."""

    def added(vectors: list[Any], lanes: list[int]) -> list[Any]:
        """Of vectors i and half + i as one, 8 to 15 the lanes of the second: these lanes plus those `half` further on."""
        half = len(vectors) // 2
        pairs, others = zip(vectors[:half], vectors[half:], strict=True), [lane + half for lane in lanes]
        return [builder.fadd(_shuffled(builder, a, b, lanes), _shuffled(builder, a, b, others)) for a, b in pairs]

    with cgutils.for_range(builder, groups) as loop:
        start = builder.mul(loop.index, many(LANES))
        lanes = [load(builder, sums[0], builder.mul(builder.add(start, many(i)), many(LANES))) for i in range(LANES)]
        fours = added(lanes, [0, 1, 2, 3, 8, 9, 10, 11])  # of k and k + 4
        twos = added(fours, [0, 1, 8, 9, 4, 5, 12, 13])  # of k, k + 2, k + 4 and k + 6
        (all_lanes,) = added(twos, [0, 8, 2, 10, 4, 12, 6, 14])
        store(builder, all_lanes, out[0], start)


@llvm_code
def scaled(builder, totals, share, n, out, run, client):  # type: ignore[no-untyped-def]
    """out[run, client, k] = share totals[k] + 0 for k < n, at least 8: the last 8 overlap with others where n is no multiple.

    A product is rounded before the sum, as in `rounded_product`.
    """
    data, (of_run, of_client, _) = out
    into = _moved(builder, data, builder.add(builder.mul(run, of_run), builder.mul(client, of_client)))
    last = builder.sub(n, many(LANES))

    def at(place: Any) -> None:
        product = builder.fmul(load(builder, totals[0], place), broadcast(builder, share), flags=["arcp"])
        store(builder, builder.fadd(product, _ZERO, flags=["arcp"]), into, place)

    with cgutils.for_range_slice(builder, many(0), last, many(LANES)) as (place, _):
        at(place)
    at(last)


@partial(llvm_code, result=types.float64)
def rounded_product(builder, a, b):  # type: ignore[no-untyped-def]
    """a b, rounded before anything is added to it.

    numba marks a product for contraction unless it has another mark; that for reciprocals says nothing about products.
    """
    return builder.fmul(a, b, flags=["arcp"])


class _Lanes:
    """Numbers of code that is being written: several vectors, whose operations alternate, for one has to wait for its own result.

    Arithmetic reads as that of numbers does, so that a formula serves this and numba; a product may be contracted with a sum.
    """

    def __init__(self, builder: Any, vectors: list[Any]) -> None:
        self.builder, self.vectors = builder, vectors

    def _of(self, other: Any) -> list[Any]:
        return other.vectors if isinstance(other, _Lanes) else [ir.Constant(VECTOR, [other] * LANES)] * len(self.vectors)

    def _each(self, operation: Callable[..., Any], *others: Any) -> _Lanes:
        return _Lanes(self.builder, [operation(*each) for each in zip(self.vectors, *map(self._of, others), strict=True)])

    def __add__(self, other: Any) -> _Lanes:
        return self._each(partial(self.builder.fadd, flags=["contract"]), other)

    def __sub__(self, other: Any) -> _Lanes:
        return self._each(partial(self.builder.fsub, flags=["contract"]), other)

    def __mul__(self, other: Any) -> _Lanes:
        return self._each(partial(self.builder.fmul, flags=["contract"]), other)

    def __truediv__(self, other: Any) -> _Lanes:
        return self._each(self.builder.fdiv, other)

    __radd__, __rmul__ = __add__, __mul__

    def minimum(self, other: _Lanes) -> _Lanes:
        """self where it is less than other, else other."""
        return self._each(lambda a, b: self.builder.select(self.builder.fcmp_ordered("<", a, b), a, b), other)

    def bits(self, change: Callable[..., Any], *others: _Lanes) -> _Lanes:
        """The numbers whose bits `change` makes of those of these and others."""

        def changed(*vectors: Any) -> Any:
            return self.builder.bitcast(change(*(self.builder.bitcast(vector, _WHOLE) for vector in vectors)), VECTOR)

        return self._each(changed, *others)


_MAGIC = 1.5 * 2.0**52  # adding it leaves round(.) in the lowest bits
_MAGIC_BITS = int(np.float64(_MAGIC).view(np.int64))
_LN2_HIGH = 6.93147180369123816490e-01  # ln 2 in two parts, the first with 21 trailing zero bits
_LN2_LOW = 1.90821492927058770002e-10
_PER_LN2 = 1.0 / log(2.0)
_C2, _C3, _C4, _C5, _C6, _C7, _C8, _C9, _C10, _C11, _C12, _C13 = (1.0 / factorial(n) for n in range(2, 14))
_A3, _A5, _A7, _A9, _A11, _A13, _A15, _A17 = (1.0 / n for n in range(3, 18, 2))
_A19, _A21, _A23, _A25, _A27, _A29, _A31, _A33 = (1.0 / n for n in range(19, 34, 2))
_USUAL = 700.0  # e^-700 and its factors are normal numbers
_USUAL_BITS = int(np.float64(_USUAL).view(np.int64))
_ONE_BITS = int(np.float64(1.0).view(np.int64))
_SIGN = -(1 << 63)  # of a number, among its bits


def _reduced(x):  # type: ignore[no-untyped-def]
    """p and n, as the lowest bits of a number, of e^x = 2^n p: n = round(x / ln 2), p Taylor's series in |r| <= ln(2) / 2."""
    shifted = x * _PER_LN2 + _MAGIC
    n = shifted - _MAGIC
    r = (x - n * _LN2_HIGH) - n * _LN2_LOW
    p = _C12 + r * _C13
    p = _C10 + r * (_C11 + r * p)
    p = _C8 + r * (_C9 + r * p)
    p = _C6 + r * (_C7 + r * p)
    p = _C4 + r * (_C5 + r * p)
    p = _C2 + r * (_C3 + r * p)
    return 1.0 + r * (1.0 + r * p), shifted


_reduced_number = njit(inline="always")(_reduced)


@partial(llvm_code, result=types.boolean)
def usual_logistic_slopes(  # type: ignore[no-untyped-def]
    builder, z, targets, inverses, first, vectors, clipped, bound, s
):  # fmt: skip
    """Whether all |y z| <= 700; s[i] is then what `logistic_derivatives` and, if clipped, `clip` make of z[i], i < vectors.

    The same bits with fewer operations: e = exp(-|y z|) is a normal number, |s| = (e or 1) / (1 + e) <= 1 and its sign that of
    -y. y is -1, 1, or 0 where there is no record; there s is some number, as the features are 0.
    """
    unusual = cgutils.alloca_once_value(builder, ir.Constant(_WHOLE, [0] * LANES))  # a sign bit of 1 in the lanes that are

    def whole(number: int) -> Any:
        return ir.Constant(_WHOLE, [number] * LANES)

    def group(start: Any, fixed: int) -> None:
        here = [builder.mul(builder.add(start, many(i)), many(LANES)) for i in range(fixed)]
        there = [builder.add(builder.mul(first, many(LANES)), place) for place in here]
        y = _Lanes(builder, [load(builder, targets[0], place) for place in there])
        margin = y * _Lanes(builder, [load(builder, z[0], place) for place in here])
        down = margin.bits(lambda bits: builder.or_(bits, whole(_SIGN)))  # -|y z|
        for vector in down.vectors:
            size = builder.and_(builder.bitcast(vector, _WHOLE), whole(~_SIGN))
            beyond = builder.sub(whole(_USUAL_BITS), size)  # negative for NaN too
            builder.store(builder.or_(builder.load(unusual), beyond), unusual)
        p, shifted = _reduced(down)
        e = p.bits(lambda bits, n: builder.add(bits, builder.shl(n, whole(52))), shifted)
        top = e.bits(lambda bits, m: builder.select(builder.icmp_signed(">=", m, whole(0)), bits, whole(_ONE_BITS)), margin)
        size = top / (1.0 + e)

        def finish(size: _Lanes) -> None:
            signed = size.bits(lambda bits, t: builder.or_(bits, builder.and_(builder.not_(t), whole(_SIGN))), y)
            for vector, place in zip(signed.vectors, here, strict=True):
                store(builder, vector, s[0], place)

        with builder.if_else(clipped) as (limited, free):
            with limited:
                limit = _Lanes(builder, [load(builder, inverses[0], place) for place in there])
                finish(size.minimum(limit * _Lanes(builder, [broadcast(builder, bound)] * fixed)))
            with free:
                finish(size)

    _in_groups(builder, vectors, (4, 1), group)
    lanes = builder.icmp_signed("<", builder.load(unusual), whole(0))
    return builder.icmp_signed("==", builder.bitcast(lanes, _BYTE), ir.Constant(_BYTE, 0))


@njit(inline="always")
def exp_of_negative(x):  # type: ignore[no-untyped-def]
    """e^x for x <= 0 to an ulp or two.

    n goes into the exponent in two halves, so that results below the smallest normal number come out as well. No branch and no
    call: the loop around it becomes vector code.
    """
    p, shifted = _reduced_number(-1000.0 if x < -1000.0 else x)
    whole = np.float64(shifted).view(np.int64) - _MAGIC_BITS
    half = whole >> 1
    first = np.int64((half + 1023) << 52).view(np.float64)
    second = np.int64((whole - half + 1023) << 52).view(np.float64)
    return p * first * second


@njit(inline="always")
def logistic_derivatives(z, targets, s):  # type: ignore[no-untyped-def]
    """s[j] = -y / (1 + exp(y z)), written with exp(-|y z|) so that nothing overflows."""
    for j in range(len(z)):
        margin = targets[j] * z[j]
        e = exp_of_negative(-abs(margin))
        s[j] = -targets[j] * (e if margin > 0.0 else 1.0) / (1.0 + e)


@njit(inline="always")
def logistic_losses(z, targets):  # type: ignore[no-untyped-def]
    """z[j] <- ln(1 + exp(-y z)) = max(0, -y z) + ln(1 + e), e = exp(-|y z|).

    ln(1 + e) = 2 artanh(s) = 2 (s + s^3 / 3 + s^5 / 5 + ...) with s = e / (2 + e) <= 1/3.
    """
    for j in range(len(z)):
        margin = targets[j] * z[j]
        e = exp_of_negative(-abs(margin))
        s = e / (2.0 + e)
        square = s * s
        p = _A31 + square * _A33
        p = _A27 + square * (_A29 + square * p)
        p = _A23 + square * (_A25 + square * p)
        p = _A19 + square * (_A21 + square * p)
        p = _A15 + square * (_A17 + square * p)
        p = _A11 + square * (_A13 + square * p)
        p = _A7 + square * (_A9 + square * p)
        p = _A3 + square * (_A5 + square * p)
        p = 1.0 + square * p
        z[j] = 2.0 * s * p + (0.0 if margin > 0.0 else -margin)


@njit(inline="always")
def squared_losses(z, targets, scale):  # type: ignore[no-untyped-def]
    """z[j] <- scale (z - y)^2."""
    for j in range(len(z)):
        z[j] = scale * (z[j] - targets[j]) ** 2


@njit(inline="always")
def squared_derivatives(z, targets, scale, s):  # type: ignore[no-untyped-def]
    """s[j] = 2 scale (z - y)."""
    for j in range(len(z)):
        s[j] = 2.0 * scale * (z[j] - targets[j])


@njit(inline="always")
def clip(s, norms, inverses, bound):  # type: ignore[no-untyped-def]
    """s[j] <- s[j] min(1, C / (|s[j]| ||a_j||)), and 0 where the gradient is not finite."""
    for j in range(len(s)):
        full = s[j]
        limit = bound * inverses[j]
        near = full if full < limit else limit
        near = near if near > -limit else -limit
        s[j] = near if abs(full) * norms[j] < np.inf else 0.0


@njit(inline="always")
def slopes(loss, scale, clipped, bound, z, targets, norms, inverses, first, vectors, s):  # type: ignore[no-untyped-def]
    """s = dl/dz of the first vectors of z, clipped or not; their records' targets, norms and inverses start at vector `first`."""
    if loss == LOGISTIC and usual_logistic_slopes(z, targets, inverses, first, vectors, clipped, bound, s):
        return
    part = slice(first * LANES, (first + vectors) * LANES)
    mine, y = s[: vectors * LANES], targets[part]
    if loss == LOGISTIC:
        logistic_derivatives(z[: vectors * LANES], y, mine)
    else:
        squared_derivatives(z[: vectors * LANES], y, scale, mine)
    if clipped:
        clip(mine, norms[part], inverses[part], bound)


@njit(inline="always")
def add_losses(loss, scale, z, targets, first, size, sums):  # type: ignore[no-untyped-def]
    """sums[lane] += the losses of the first `size` records of z, which are overwritten; their targets start at vector `first`."""
    vectors = (size + LANES - 1) // LANES
    mine, y = z[: vectors * LANES], targets[first * LANES : (first + vectors) * LANES]
    if loss == LOGISTIC:
        logistic_losses(mine, y)
    else:
        squared_losses(mine, y, scale)
    mine[size:] = 0.0
    for start in range(0, len(mine), LANES):
        for lane in range(LANES):
            sums[lane] += mine[start + lane]


@njit(inline="always")
def add_norms(s, norms, first, squares):  # type: ignore[no-untyped-def]
    """squares[j] = (s[j] ||a_j||)^2 of records whose norms start at vector `first`; infinite where that is not finite."""
    for j in range(len(squares)):
        squared = (s[j] * norms[first * LANES + j]) ** 2
        squares[j] = squared if squared < np.inf else np.inf


@njit(inline="always")
def gather(batch, begin, size, first, count, rows, targets, norms, inverses, found, some):  # type: ignore[no-untyped-def]
    """The records batch[begin : begin + size] of a client: found [., d, 8] in vectors, some [3, .] targets, norms, inverses.

    A number that is none of the client's `count`, from row `first` on, is the last row, which is zero.
    """
    for j in range((size + LANES - 1) // LANES * LANES):
        number = batch[begin + j] if j < size else -1
        place = first + number if 0 <= number < count else len(targets) - 1
        some[0, j], some[1, j], some[2, j] = targets[place], norms[place], inverses[place]
        for k in range(rows.shape[1]):
            found[j // LANES, k, j % LANES] = rows[place, k]


def aligned(size: int) -> np.ndarray:
    """[size] float64, uninitialised, starting on a cache line, so that no vector lies across two."""
    raw = np.empty(size + LANES)
    start = -raw.ctypes.data % 64 // 8
    return raw[start : start + size]


_aligned = njit(aligned)


def _compute(  # type: ignore[no-untyped-def]
    loss, scale, l2, mode, features, rows, targets, norms, inverses, firsts, counts,
    runs, parameters, bounds, batched, batch, out, first_job, last_job,
):  # fmt: skip
    """Jobs first_job..last_job - 1 of (client, run) pairs, runs innermost, so that a client's records stay in the cache.

    Without a batch, two runs of a client are computed together where they follow each other: what is loaded serves both.
    """
    d = features.shape[1]
    block = max(GROUP, min(BLOCK, CACHED // (8 * LANES * d) // GROUP * GROUP))  # vectors
    groups = (d + GROUP - 1) // GROUP
    z, s = _aligned(RUNS * BLOCK * LANES).reshape(RUNS, -1), _aligned(RUNS * BLOCK * LANES).reshape(RUNS, -1)
    sums, totals = _aligned(RUNS * groups * GROUP * LANES).reshape(RUNS, -1, LANES), _aligned(groups * GROUP)
    gathered = _aligned(block * d * LANES if batched else 0).reshape(-1, d, LANES)
    some = _aligned(3 * BLOCK * LANES if batched else 0).reshape(3, -1)
    held, y, norm, inverse = features, targets, norms, inverses  # a client's records from vector `first` on
    if batched:
        held, y, norm, inverse = gathered, some[0], some[1], some[2]
    clipped, job = mode == CLIPPED, first_job
    while job < last_job:
        client, place = job // len(runs), job % len(runs)
        together = 1 if batched else min(RUNS, last_job - job, len(runs) - place)
        job += together
        records = batch.shape[2] if batched else counts[client]
        if mode == LOSS or records == 0:
            sums[:] = 0.0
        for begin in range(0, records, block * LANES):
            size = min(block * LANES, records - begin)
            vectors, first = (size + LANES - 1) // LANES, 0 if batched else (firsts[client] + begin) // LANES
            if batched:
                mine = batch[runs[place], client]
                gather(mine, begin, size, firsts[client], counts[client], rows, targets, norms, inverses, gathered, some)
            outputs(held, first, vectors, d, parameters, runs, place, together, client, z)
            for r in range(together):
                run = runs[place + r]
                if mode == LOSS:
                    add_losses(loss, scale, z[r], y, first, size, sums[r, 0])
                    continue
                slopes(loss, scale, clipped, bounds[run] if clipped else 0.0, z[r], y, norm, inverse, first, vectors, s[r])
                if mode == NORMS:
                    add_norms(s[r], norm, first, out[run, client, begin : begin + size])
            if mode == GRADIENT or clipped:
                accumulate(held, first, vectors, d, s, together, begin == 0, sums)
        share = 1.0 / max(records, 1)
        decays = mode == GRADIENT and records > 0 and l2 > 0.0
        for r in range(together):
            run = runs[place + r]
            if mode == NORMS:
                out[run, client, records:] = 0.0
                continue
            add_lanes(sums[r], 1 if mode == LOSS else groups, totals)
            if not decays and out.shape[2] >= LANES:
                scaled(totals, share, out.shape[2], out, run, client)
                continue
            for k in range(out.shape[2]):
                decay = rounded_product(l2, parameters[run, client, k]) if decays else 0.0
                out[run, client, k] = rounded_product(totals[k], share) + decay


def signature() -> tuple[Any, ...]:
    """The types of the compiled code's arguments."""
    values, numbers = types.float64[::1], types.int64[::1]
    per_client = types.float64[:, :, :]  # any strides: parameters that clients share are not copied for them
    return (
        types.int64, types.float64, types.float64, types.int64,
        types.float64[:, :, ::1], types.float64[:, ::1], values, values, values, numbers, numbers,
        numbers, per_client, values, types.boolean, types.int64[:, :, :], types.float64[:, :, ::1], types.int64, types.int64,
    )  # fmt: skip


@dataclass(frozen=True)
class Layout:
    """Records of one federation's clients, as the kernel reads them; every client starts a new vector.

    Attributes:
      features: [V, d, 8] float64, one record to a lane; `rows` [8 V, d] has the same records as rows.
      targets: [8 V] y, -1 or 1 for the logistic loss; 0 where there is no record, as in the last row.
      norms, inverses: [8 V] ||a|| and 1 / ||a||.
      firsts: [M] int64 row of each client's first record.
      counts: [M] int64 number of its records.
    """

    features: np.ndarray
    rows: np.ndarray
    targets: np.ndarray
    norms: np.ndarray
    inverses: np.ndarray
    firsts: np.ndarray
    counts: np.ndarray


class SingleOutputKernel:
    """The compiled program. Building it takes seconds the first time on a machine, later it is read from disk.

    Raises:
      Exception: of any kind, where numba cannot compile; there is no list of what can go wrong in a compiler.
    """

    def __init__(self) -> None:
        name = "the gradient kernel of linear models"
        self._program: Any = built(_compute, name, 3, [signature()], error_model="numpy", fastmath={"contract"})
        self._no_bounds = np.empty(0)
        self._no_batch = np.empty((0, 0, 0), np.int64)

    def compute(
        self,
        mode: str,
        loss: str,
        scale: float,
        l2: float,
        layout: Layout,
        runs: np.ndarray,
        parameters: np.ndarray,
        out: np.ndarray,
        bounds: np.ndarray | None = None,
        batch: np.ndarray | None = None,
        threads: int = 1,
    ) -> None:
        """Computes all clients for the given runs; the numbers do not depend on how many threads there are.

        Args:
          mode: one of `MODES`. "gradient": out = mean gradient + l2 v (0 for a client without records); "clipped": out = mean of
            clipped gradients; "norms": out = squared norms of the records' gradients, infinite where not finite, 0 where there is
            no record; "loss": out = mean loss of the records.
          loss, scale: one of `LOSSES`, and the factor of a squared loss.
          runs: [S] int64 which of the R runs.
          parameters: [R, M, d] float64.
          out: [R, M, d], [R, M, b] for norms, or [R, M, 1] for losses.
          bounds: [R] clip norms.
          batch: [R, M, b] int64 numbers of the client's records (a number that is none of them counts as no record), or None.
        """
        jobs = len(runs) * len(layout.counts)
        records = int(layout.counts.sum()) if batch is None else batch.shape[2] * len(layout.counts)
        work = 2 * records * len(runs) * layout.features.shape[1]
        fixed = self.arguments(mode, loss, scale, l2, layout, runs, parameters, out, bounds, batch)
        if threads == 1 or work < SHARED_WORK:
            self._program(*fixed, 0, jobs)
            return
        parts = max(threads, min(8 * threads, work // PART_WORK))  # small ones, for threads begin late
        in_threads([partial(self._program, *fixed, *part) for part in even_parts(jobs, parts)], threads)

    def arguments(
        self,
        mode: str,
        loss: str,
        scale: float,
        l2: float,
        layout: Layout,
        runs: np.ndarray,
        parameters: np.ndarray,
        out: np.ndarray,
        bounds: np.ndarray | None = None,
        batch: np.ndarray | None = None,
    ) -> tuple[Any, ...]:
        """What `compute` calls the compiled code with; the first and the last job come after it."""
        return (
            LOSSES.index(loss), scale, l2, MODES.index(mode),
            layout.features, layout.rows, layout.targets, layout.norms, layout.inverses, layout.firsts, layout.counts,
            runs, parameters, self._no_bounds if bounds is None else bounds,
            batch is not None, self._no_batch if batch is None else batch, out,
        )  # fmt: skip

    @property
    def address(self) -> int:
        """Where the compiled code is, for other compiled code to call."""
        compiled = self._program.overloads[signature()]
        address: int = compiled.library.get_pointer_to_function(compiled.fndesc.llvm_func_name)
        return address
