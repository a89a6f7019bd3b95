"""Linear regression on clients that hold one record each, compiled for CPUs.

With the record (x, y), k = 2 loss_factor lr, and perhaps a drift g, a client's local run from w comes to

    r       = x . w - y
    a_0     = 0,    a_{j+1} = (1 - k ||x||^2) a_j - k r + j k lr x . g
    v - w   = a_steps x - steps lr g

(`LinearRegression._descend_in_spans` says why). What it costs is memory: x is read twice and v - w is written. So a block of
clients at a time is taken through all three lines: the second time their records come from the cache, and so they do for other
runs on the same data. The rows of a block are read one by one, for a processor fetches ahead along one stream.

The loops over d are written as LLVM code: a sum in 4 vectors of 8 partial sums is not what a compiler makes of a plain loop,
which it may not reorder. The rest is numba. The order of every sum is fixed by d: results do not depend on threads, on other
clients or on other runs. Products may be contracted with sums (FMA); nothing else is relaxed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from dpfl_cli.data.programs import built
from dpfl_cli.data.threads import even_parts, in_threads

BLOCK_BYTES = 1 << 16  # of the records that are computed together: they stay in a core's own cache
FEWEST = 8  # records computed together: one vector of the recursion
SHARED_VALUES = 1 << 19  # features, counted once for every run, from which on several threads pay
PARTS = 4  # for every thread, so that none waits long for another
UPDATE, COEFFICIENT, LOSS = range(3)  # what is computed: v - w, a_steps, or (x . w - y)^2
LANES = 8  # numbers in a vector
SUMS = 4  # vectors of partial sums, so that none waits for its last addition

_INT, _DOUBLE, _PLACE = ir.IntType(64), ir.DoubleType(), ir.IntType(32)
_VECTOR = ir.VectorType(_DOUBLE, LANES)


def _load(builder: Any, pointer: Any, k: Any, kind: Any) -> Any:
    """One number, or a vector, from number k on; it need not begin at a multiple of anything."""
    return builder.load(builder.bitcast(builder.gep(pointer, [k]), kind.as_pointer()), align=8)


def _fma(builder: Any, a: Any, b: Any, c: Any) -> Any:
    """a * b + c, of numbers or of vectors."""
    name = "llvm.fmuladd.f64" if a.type == _DOUBLE else f"llvm.fmuladd.v{LANES}f64"
    kind = ir.FunctionType(a.type, [a.type] * 3)
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), [a, b, c])


def _spread(builder: Any, number: Any) -> Any:
    """A vector with one number in all lanes."""
    undefined = ir.Constant(_VECTOR, ir.Undefined)
    single = builder.insert_element(undefined, number, ir.Constant(_PLACE, 0))
    return builder.shuffle_vector(single, undefined, ir.Constant(ir.VectorType(_PLACE, LANES), [0] * LANES))


def _added(builder: Any, vector: Any) -> Any:
    """The sum of the lanes: the upper half is added to the lower one, until one number is left."""
    undefined, size = ir.Constant(vector.type, ir.Undefined), LANES // 2
    while size:
        kind = ir.VectorType(_PLACE, size)
        lower, upper = (ir.Constant(kind, list(range(first, first + size))) for first in (0, size))
        vector = builder.fadd(*(builder.shuffle_vector(vector, undefined, half) for half in (lower, upper)))
        undefined, size = ir.Constant(vector.type, ir.Undefined), size // 2
    return builder.extract_element(vector, ir.Constant(_PLACE, 0))


def _start(context: Any, builder: Any, kind: Any, array: Any, place: Any) -> Any:
    """Where number `place` of a dense array is."""
    return builder.gep(cgutils.create_struct_proxy(kind)(context, builder, array).data, [place])


def _product(context: Any, one: Any, i: Any, other: Any, j: Any, d: Any) -> Any:
    """sum_k one[i + k] other[j + k] over k < d."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        kinds, (one, i, other, j, d) = signature.args, values
        pointers = [_start(context, builder, kinds[0], one, i), _start(context, builder, kinds[2], other, j)]
        blocks, whole = (builder.and_(d, ir.Constant(_INT, -size)) for size in (SUMS * LANES, LANES))
        cells = [cgutils.alloca_once_value(builder, ir.Constant(_VECTOR, [0.0] * LANES)) for _ in range(SUMS)]

        def add(k: Any, cell: Any, kind: Any) -> None:
            x, w = (_load(builder, pointer, k, kind) for pointer in pointers)
            builder.store(_fma(builder, x, w, builder.load(cell)), cell)

        with cgutils.for_range_slice(builder, ir.Constant(_INT, 0), blocks, ir.Constant(_INT, SUMS * LANES)) as (k, _):
            for number, cell in enumerate(cells):
                add(builder.add(k, ir.Constant(_INT, number * LANES)), cell, _VECTOR)
        with cgutils.for_range_slice(builder, blocks, whole, ir.Constant(_INT, LANES)) as (k, _):
            add(k, cells[0], _VECTOR)
        parts = [builder.load(cell) for cell in cells]
        while len(parts) > 1:
            parts = [builder.fadd(*pair) for pair in zip(parts[::2], parts[1::2], strict=True)]
        total = cgutils.alloca_once(builder, _DOUBLE)
        builder.store(_added(builder, parts[0]), total)
        with cgutils.for_range_slice(builder, whole, d, ir.Constant(_INT, 1)) as (k, _):
            add(k, total, _DOUBLE)
        return builder.load(total)

    return types.float64(one, i, other, j, d), generate


def _combination(terms: int) -> Any:
    """A function (out, place, d, (factor, array, first) of every term): out[place + k] = sum of factor * array[first + k]."""

    def typed(context: Any, out: Any, place: Any, d: Any, given: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            target, d = _start(context, builder, signature.args[0], *values[:2]), values[2]
            kinds, parts = signature.args[3].types, cgutils.unpack_tuple(builder, values[3])
            factors = parts[::3]
            pointers = [_start(context, builder, kinds[n], *parts[n : n + 2]) for n in range(1, 3 * terms, 3)]
            spread = [_spread(builder, factor) for factor in factors]
            whole = builder.and_(d, ir.Constant(_INT, -LANES))
            for kind, first, last, size, by in (
                (_VECTOR, ir.Constant(_INT, 0), whole, LANES, spread),
                (_DOUBLE, whole, d, 1, factors),
            ):
                with cgutils.for_range_slice(builder, first, last, ir.Constant(_INT, size)) as (k, _):
                    total = builder.fmul(by[0], _load(builder, pointers[0], k, kind))
                    for factor, pointer in zip(by[1:], pointers[1:], strict=True):
                        total = _fma(builder, factor, _load(builder, pointer, k, kind), total)
                    builder.store(total, builder.bitcast(builder.gep(target, [k]), kind.as_pointer()), align=8)
            return context.get_dummy_value()

        return types.void(out, place, d, given), generate

    typed.__name__ = f"combination_{terms}"
    return intrinsic(typed)


product: Any = intrinsic(_product)
scaled, combined = _combination(1), _combination(2)


def _compute(  # type: ignore[no-untyped-def]
    mode, scale, steps, rows, targets, squares, clients, jobs, models, rates, drifting, drift, out, stride, first_job, last_job
):
    """Jobs first_job..last_job - 1; a client's values stand in row run * stride + client of `drift` and `out`."""
    d = len(models) // len(rates)
    most = jobs[first_job:last_job, 1].max()
    r, a, decay, turn = np.empty(most), np.empty(most), np.empty(most), np.empty(most)
    for job in range(first_job, last_job):
        first, count, run = jobs[job, 0], jobs[job, 1], jobs[job, 2]
        for i in range(count):
            r[i] = product(rows, (first + i) * d, models, run * d, d) - targets[first + i]
        if mode == LOSS:
            for i in range(count):
                out[run * stride + clients[first + i]] = r[i] * r[i]
            continue
        lr = rates[run]
        k = 2.0 * scale * lr
        for i in range(count):
            a[i], decay[i], r[i] = 0.0, 1.0 - k * squares[first + i], -k * r[i]
        if drifting:
            for i in range(count):
                place = (run * stride + clients[first + i]) * d
                turn[i] = k * lr * product(rows, (first + i) * d, drift, place, d)
        for _ in range(steps):
            for i in range(count):
                a[i] = a[i] * decay[i] + r[i]
            if drifting:
                for i in range(count):
                    r[i] += turn[i]
        if mode == COEFFICIENT:
            for i in range(count):
                out[run * stride + clients[first + i]] = a[i]
            continue
        for i in range(count):
            place = (run * stride + clients[first + i]) * d
            if drifting:
                combined(out, place, d, (a[i], rows, (first + i) * d, -steps * lr, drift, place))
            else:
                scaled(out, place, d, (a[i], rows, (first + i) * d))


def _signature() -> tuple[Any, ...]:
    values, number = types.float64[::1], types.int64
    return (
        number, types.float64, number,
        types.Array(types.float64, 1, "C", readonly=True), values, values, types.int64[::1], types.int64[:, ::1],
        values, values, types.boolean, values, values, number, number, number,
    )  # fmt: skip


@dataclass(frozen=True)
class Layout:
    """Clients of one or more federations with one record each, K of them in all, federation after federation.

    A client without records may be among them, with zeros for one.

    Attributes:
      rows, targets, squares: [K d] x (not to be written to), [K] y and [K] ||x||^2.
      clients: [K] int64 numbers of the clients in their federation.
      jobs: [J, 3] int64 first row, number of rows and run; a federation's runs take turns at each block of its records.
      work: features in the rows of all jobs.
    """

    rows: np.ndarray
    targets: np.ndarray
    squares: np.ndarray
    clients: np.ndarray
    jobs: np.ndarray
    work: int

    @classmethod
    def of(
        cls,
        rows: np.ndarray,
        targets: np.ndarray,
        squares: np.ndarray,
        clients: np.ndarray,
        parts: Sequence[tuple[np.ndarray, int]],
    ) -> Layout:
        """From rows [K, d] and the rest as above, dense, and for each federation its runs, and how many of the K are its own."""
        size = max(FEWEST, BLOCK_BYTES // (rows.itemsize * rows.shape[1]) // FEWEST * FEWEST)
        found, begin = [], 0
        for runs, count in parts:
            firsts = np.arange(0, count, size)
            blocks = np.stack([begin + firsts, np.minimum(count - firsts, size)], axis=1)
            found.append(np.column_stack([blocks.repeat(len(runs), axis=0), np.tile(runs, len(blocks))]))
            begin += count
        jobs = np.concatenate(found).astype(np.int64)
        flat = rows.reshape(-1)
        flat.flags.writeable = False  # what clips the updates knows how long they are
        return cls(flat, targets, squares, clients, jobs, int(jobs[:, 1].sum()) * rows.shape[1])


class LinearKernel:
    """The compiled program. Building it takes seconds the first time on a machine, later it is read from disk.

    Raises:
      Exception: of any kind, where numba cannot compile; there is no list of what can go wrong in a compiler.
    """

    def __init__(self) -> None:
        self._program: Any = built(
            _compute,
            "the kernel of linear regression",
            3,
            [_signature()],
            error_model="numpy",
            fastmath={"contract"},
        )
        self._none = np.empty(0)

    def updates(
        self,
        layout: Layout,
        scale: float,
        models: np.ndarray,
        rates: np.ndarray,
        steps: int,
        drift: np.ndarray | None,
        out: np.ndarray,
        threads: int = 1,
    ) -> None:
        """Writes v - w after the clients' local runs; the numbers do not depend on how many threads there are.

        Args:
          scale: loss_factor.
          models: [R, d] w, float64 and dense as all here.
          rates: [R] lr.
          drift: [R, M, d] g, or None.
          out: [R, M, d]; rows of other clients are left alone.
        """
        shift = self._none if drift is None else drift.reshape(-1)
        self._run(threads, UPDATE, scale, steps, layout, models, rates, drift is not None, shift, out)

    def coefficients(
        self,
        layout: Layout,
        scale: float,
        models: np.ndarray,
        rates: np.ndarray,
        steps: int,
        out: np.ndarray,
        threads: int = 1,
    ) -> None:
        """Writes a_steps of local runs without a drift to out [R, M]; entries of other clients are left alone. Otherwise as
        `updates`."""
        self._run(threads, COEFFICIENT, scale, steps, layout, models, rates, False, self._none, out)

    def squared_errors(self, layout: Layout, models: np.ndarray, out: np.ndarray, threads: int = 1) -> None:
        """Writes (x . w - y)^2 to out [R, M], dense; entries of other clients are left alone. Otherwise as `updates`."""
        self._run(threads, LOSS, 1.0, 0, layout, models, models[:, 0], False, self._none, out)

    def _run(
        self,
        threads: int,
        mode: int,
        scale: float,
        steps: int,
        layout: Layout,
        models: np.ndarray,
        rates: np.ndarray,
        drifting: bool,
        drift: np.ndarray,
        out: np.ndarray,
    ) -> None:
        jobs = len(layout.jobs)
        fixed = (
            mode, scale, steps, layout.rows, layout.targets, layout.squares, layout.clients, layout.jobs,
            models.reshape(-1), np.ascontiguousarray(rates), drifting, drift, out.reshape(-1), out.shape[1],
        )  # fmt: skip
        if threads == 1 or layout.work < SHARED_VALUES:
            self._program(*fixed, 0, jobs)
            return
        in_threads([partial(self._program, *fixed, *part) for part in even_parts(jobs, PARTS * threads)], threads)
