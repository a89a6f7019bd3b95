"""Gradients of models with one linear output per record, compiled for CPUs.

Records lie in vectors of 8, `features [V, d, 8]`, one record to a lane. For every client and run, 8 vectors at a time,

    z_j = sum_k v_k a_jk        the outputs: a weight is broadcast, and 8 vectors of sums stay in registers
    s_j = dl/dz (z_j, y_j)      clipped to |s_j| ||a_j|| <= C where that is asked for
    g_k = sum_j s_j a_jk        8 partial sums for every k, one to a lane, added up at the end

The two products are written as LLVM code, for a loop over d with 8 vectors in registers is not what a compiler makes of plain
loops; the rest is numba. The order of every sum is fixed by the client's own records: results do not depend on threads, on other
clients or on other runs. Products may be contracted with sums (FMA); nothing else is relaxed.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from math import factorial, log
from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from dpfl_cli.data.threads import in_threads

logger = logging.getLogger("dpfl")

LOSSES = ("logistic", "squared")  # l = ln(1 + exp(-y z)), or scale (z - y)^2
MODES = ("gradient", "clipped", "norms", "loss")  # what of the records: see `SingleOutputKernel.compute`
LOGISTIC, SQUARED = range(2)
GRADIENT, CLIPPED, NORMS, LOSS = range(4)
LANES = 8
GROUP = 8  # vectors whose sums stay in registers
SHARED_WORK = 1 << 21  # products and sums from which on several threads pay

_INT = ir.IntType(64)
_VECTOR = ir.VectorType(ir.DoubleType(), LANES)
_LANE_INDEX = ir.VectorType(ir.IntType(32), LANES)


def _load(builder: Any, pointer: Any, index: Any) -> Any:
    address = builder.bitcast(builder.gep(pointer, [index]), _VECTOR.as_pointer())
    return builder.load(address, align=8)


def _store(builder: Any, value: Any, pointer: Any, index: Any) -> None:
    builder.store(value, builder.bitcast(builder.gep(pointer, [index]), _VECTOR.as_pointer()), align=8)


def _spread(builder: Any, pointer: Any, index: Any) -> Any:
    """One scalar in all lanes."""
    undefined = ir.Constant(_VECTOR, ir.Undefined)
    single = builder.insert_element(undefined, builder.load(builder.gep(pointer, [index])), ir.Constant(ir.IntType(32), 0))
    return builder.shuffle_vector(single, undefined, ir.Constant(_LANE_INDEX, [0] * LANES))


def _fma(builder: Any, a: Any, b: Any, c: Any) -> Any:
    """a * b + c."""
    kind = ir.FunctionType(_VECTOR, [_VECTOR] * 3)
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, "llvm.fmuladd.v8f64"), [a, b, c])


def _product(emit: Callable[..., None]) -> Any:
    """A function (features, first, count, d, one, other) for numba code from an emitter for a fixed number of vectors.

    The code of every count up to `GROUP` is written out, and one of them chosen: sums in registers need a fixed number.
    """

    def typed(context: Any, features: Any, first: Any, count: Any, d: Any, one: Any, other: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            pointers = [
                cgutils.create_struct_proxy(kind)(context, builder, value).data if isinstance(kind, types.Array) else value
                for kind, value in zip(signature.args, values, strict=True)
            ]
            features, first, count, d, one, other = pointers
            size = builder.mul(d, ir.Constant(_INT, LANES))  # values of one vector of records
            end = builder.append_basic_block()
            choice = builder.switch(count, end)
            for vectors in range(1, GROUP + 1):
                with builder.goto_block(builder.append_basic_block()):
                    choice.add_case(ir.Constant(_INT, vectors), builder.block)
                    starts = [builder.mul(builder.add(first, ir.Constant(_INT, i)), size) for i in range(vectors)]
                    emit(builder, [builder.gep(features, [start]) for start in starts], d, one, other)
                    builder.branch(end)
            builder.position_at_end(end)
            return context.get_dummy_value()

        return types.void(features, first, count, d, one, other), generate

    typed.__name__ = emit.__name__
    typed.__doc__ = emit.__doc__
    return intrinsic(typed)


@contextmanager
def _coordinates(builder: Any, d: Any) -> Iterator[tuple[Any, Any]]:
    """A loop over k < d; gives k, and where vector k starts."""
    with cgutils.for_range(builder, d) as loop:
        yield loop.index, builder.mul(loop.index, ir.Constant(_INT, LANES))


@_product
def outputs(builder: Any, rows: list[Any], d: Any, v: Any, z: Any) -> None:
    """z[i, lane] = sum_k v[k] features[first + i, k, lane]."""
    zero = ir.Constant(_VECTOR, [0.0] * LANES)
    sums = [cgutils.alloca_once(builder, _VECTOR) for _ in rows]
    for cell in sums:
        builder.store(zero, cell)
    with _coordinates(builder, d) as (k, place):
        weight = _spread(builder, v, k)
        for row, cell in zip(rows, sums, strict=True):
            builder.store(_fma(builder, weight, _load(builder, row, place), builder.load(cell)), cell)
    for i, cell in enumerate(sums):
        _store(builder, builder.load(cell), z, ir.Constant(_INT, i * LANES))


@_product
def accumulate(builder: Any, rows: list[Any], d: Any, s: Any, sums: Any) -> None:
    """sums[k, lane] += sum_i s[i, lane] features[first + i, k, lane]."""
    weights = [_load(builder, s, ir.Constant(_INT, i * LANES)) for i in range(len(rows))]
    with _coordinates(builder, d) as (_, place):
        total = _load(builder, sums, place)
        for row, weight in zip(rows, weights, strict=True):
            total = _fma(builder, weight, _load(builder, row, place), total)
        _store(builder, total, sums, place)


_MAGIC = 1.5 * 2.0**52  # adding it leaves round(.) in the lowest bits
_MAGIC_BITS = int(np.float64(_MAGIC).view(np.int64))
_LN2_HIGH = 6.93147180369123816490e-01  # ln 2 in two parts, the first with 21 trailing zero bits
_LN2_LOW = 1.90821492927058770002e-10
_PER_LN2 = 1.0 / log(2.0)
_C2, _C3, _C4, _C5, _C6, _C7, _C8, _C9, _C10, _C11, _C12, _C13 = (1.0 / factorial(n) for n in range(2, 14))


_A3, _A5, _A7, _A9, _A11, _A13, _A15, _A17 = (1.0 / n for n in range(3, 18, 2))
_A19, _A21, _A23, _A25, _A27, _A29, _A31, _A33 = (1.0 / n for n in range(19, 34, 2))


@njit(inline="always")
def exp_of_negative(x):  # type: ignore[no-untyped-def]
    """e^x for x <= 0 to an ulp or two: 2^n e^r with n = round(x / ln 2), Taylor's series in |r| <= ln(2) / 2.

    n goes into the exponent in two halves, so that results below the smallest normal number come out as well. No branch and no
    call: the loop around it becomes vector code.
    """
    x = -1000.0 if x < -1000.0 else x
    shifted = x * _PER_LN2 + _MAGIC
    n = shifted - _MAGIC
    r = (x - n * _LN2_HIGH) - n * _LN2_LOW
    p = _C12 + r * _C13
    p = _C10 + r * (_C11 + r * p)
    p = _C8 + r * (_C9 + r * p)
    p = _C6 + r * (_C7 + r * p)
    p = _C4 + r * (_C5 + r * p)
    p = _C2 + r * (_C3 + r * p)
    p = 1.0 + r * (1.0 + r * p)
    whole = np.float64(shifted).view(np.int64) - _MAGIC_BITS
    half = whole >> 1
    first = np.int64((half + 1023) << 52).view(np.float64)
    second = np.int64((whole - half + 1023) << 52).view(np.float64)
    return p * first * second


@njit(inline="always")
def logistic_derivatives(z, targets):  # type: ignore[no-untyped-def]
    """z[j] <- -y / (1 + exp(y z)), written with exp(-|y z|) so that nothing overflows."""
    for j in range(len(z)):
        margin = targets[j] * z[j]
        e = exp_of_negative(-abs(margin))
        z[j] = -targets[j] * (e if margin > 0.0 else 1.0) / (1.0 + e)


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
def squared_derivatives(z, targets, scale):  # type: ignore[no-untyped-def]
    """z[j] <- 2 scale (z - y)."""
    for j in range(len(z)):
        z[j] = 2.0 * scale * (z[j] - targets[j])


@njit(inline="always")
def clip(z, norms, inverses, bound):  # type: ignore[no-untyped-def]
    """z[j] <- z[j] min(1, C / (|z[j]| ||a_j||)), and 0 where the gradient is not finite."""
    for j in range(len(z)):
        s = z[j]
        limit = bound * inverses[j]
        near = s if s < limit else limit
        near = near if near > -limit else -limit
        z[j] = near if abs(s) * norms[j] < np.inf else 0.0


@njit(inline="always")
def _added(a):  # type: ignore[no-untyped-def]
    """The sum of 8 lanes."""
    return ((a[0] + a[4]) + (a[2] + a[6])) + ((a[1] + a[5]) + (a[3] + a[7]))


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
    """Jobs first_job..last_job - 1 of (client, run) pairs, runs innermost, so that a client's records stay in the cache."""
    d = features.shape[1]
    nothing = len(targets) - 1  # a row of zeros
    values, v, sums = _aligned(GROUP * LANES), np.empty(d), _aligned(d * LANES).reshape(d, LANES)
    gathered = _aligned(GROUP * d * LANES if batched else 0).reshape(-1, d, LANES)
    some = _aligned(3 * GROUP * LANES).reshape(3, -1)
    for job in range(first_job, last_job):
        client, run = job // len(runs), runs[job % len(runs)]
        records = batch.shape[2] if batched else counts[client]
        base = firsts[client]
        for k in range(d):
            v[k] = parameters[run, client, k]
        sums[:] = 0.0
        for begin in range(0, records, GROUP * LANES):
            size = min(GROUP * LANES, records - begin)
            vectors = (size + LANES - 1) // LANES
            if batched:
                for j in range(vectors * LANES):
                    number = batch[run, client, begin + j] if j < size else -1
                    place = base + number if 0 <= number < counts[client] else nothing
                    some[0, j], some[1, j], some[2, j] = targets[place], norms[place], inverses[place]
                    vector, lane = j // LANES, j % LANES
                    for k in range(d):
                        gathered[vector, k, lane] = rows[place, k]
            if batched:
                outputs(gathered, 0, vectors, d, v, values)
                y, norm, inverse = some[0], some[1], some[2]
            else:
                outputs(features, (base + begin) // LANES, vectors, d, v, values)
                part = slice(base + begin, base + begin + vectors * LANES)
                y, norm, inverse = targets[part], norms[part], inverses[part]
            z = values[: vectors * LANES]
            if mode == LOSS:
                if loss == LOGISTIC:
                    logistic_losses(z, y)
                else:
                    squared_losses(z, y, scale)
                z[size:] = 0.0
                for first in range(0, len(z), LANES):
                    for lane in range(LANES):
                        sums[0, lane] += z[first + lane]
                continue
            if loss == LOGISTIC:
                logistic_derivatives(z, y)
            else:
                squared_derivatives(z, y, scale)
            if mode == NORMS:
                for j in range(size):
                    squared = (z[j] * norm[j]) ** 2
                    out[run, client, begin + j] = squared if squared < np.inf else np.inf
                continue
            if mode == CLIPPED:
                clip(z, norm, inverse, bounds[run])
            if batched:
                accumulate(gathered, 0, vectors, d, values, sums)
            else:
                accumulate(features, (base + begin) // LANES, vectors, d, values, sums)
        if mode == NORMS:
            out[run, client, records:] = 0.0
            continue
        share = 1.0 / max(records, 1)
        if mode == LOSS:
            out[run, client, 0] = _added(sums[0]) * share
            continue
        decays = mode == GRADIENT and records > 0 and l2 > 0.0
        for k in range(d):
            out[run, client, k] = _added(sums[k]) * share + (l2 * v[k] if decays else 0.0)


def _signature() -> tuple[Any, ...]:
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
      targets: [8 V] y; 0 where there is no record, as in the last row.
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
        self._program: Any = njit(nogil=True, error_model="numpy", fastmath={"contract"})(_compute)
        with suppress(RuntimeError):  # no folder to keep it in: it is compiled again in the next process
            self._program.enable_caching()
        message = "compiling the gradient kernel of linear models, once on this machine: about 3 s"
        notice = threading.Timer(1.0, logger.info, [message])  # reading it from disk takes less
        notice.daemon = True
        notice.start()
        try:
            self._program.compile(_signature())
        finally:
            notice.cancel()
        self._program.disable_compile()
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
        fixed: tuple[Any, ...] = (
            LOSSES.index(loss), scale, l2, MODES.index(mode),
            layout.features, layout.rows, layout.targets, layout.norms, layout.inverses, layout.firsts, layout.counts,
            runs, parameters, self._no_bounds if bounds is None else bounds,
            batch is not None, self._no_batch if batch is None else batch, out,
        )  # fmt: skip
        if threads == 1 or work < SHARED_WORK:
            self._program(*fixed, 0, jobs)
            return
        cuts = np.linspace(0, jobs, 1 + min(jobs, 4 * threads), dtype=np.int64).tolist()
        in_threads([partial(self._program, *fixed, *part) for part in pairwise(cuts)], threads)
