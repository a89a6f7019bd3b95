"""Damped solves with softmax Hessians by Cholesky, compiled for CPUs: one client to a thread, its matrix in the core's cache.

The matrix (`curvature.hessian_by_cholesky`: Helmert's basis, N = (c - 1) q rows) is never made. Its lower half is a product,

    A_ab = V_a^T U_b for a > b,    A_bb = X^T E_b,    V_a = diag(h_a - t_a) X,    U_b = diag(w t_b) X,    E_b = diag(w e_b) X,

with e_b the diagonal entry of class b, and what a left-looking factorisation takes off it is one too. So for `COLUMNS` columns j
of class b at a time, and with Z_a the n rows of V_a (of X where a = b) above the rows of L^T found so far,

    S_aj = Z_a^T [U_j; -L_j^T] (E_j where a = b),    columns j of L: S_aj L_jj^-T with S_jj = L_jj L_jj^T,

one product of inner length n + j whose sums stay in registers. Z is kept in panels of one vector of rows, [panel, n + j, lanes],
so that it is read in order; the right operand is packed as w [n + j, COLUMNS]. Forward substitution goes along with the packing.

The products are written as LLVM code, as in `single_output_kernel`. Every sum runs over one pair's own numbers in a fixed order:
results do not depend on threads or on other pairs. Products may be contracted with sums (FMA); nothing else is relaxed.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from llvmlite.binding import get_host_cpu_features  # type: ignore[import-untyped]
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic
from numba.np.numpy_support import from_dtype

from dpfl_cli.data.programs import built
from dpfl_cli.data.threads import even_parts, in_threads
from dpfl_cli.models import single_output_kernel
from dpfl_cli.models.single_output_kernel import aligned

VECTOR_BYTES = 64  # of a panel's row; machines with shorter vectors take several
WIDE = "avx512f" in get_host_cpu_features()
COLUMNS = 8 if WIDE else 4  # of the factor, found at a time; divides the numbers in a vector
GROUP = 3 if WIDE else 1  # panels of rows whose sums for these columns stay in registers
PARTS = 8  # of a call's pairs for every thread, so that no thread waits long
SHARED_WORK = 1 << 24  # products and sums from which on several threads pay

_INT = ir.IntType(64)


class Code:
    """Writes vector code for one type of numbers: every method appends instructions at the builder's place."""

    def __init__(self, builder: Any, kind: Any) -> None:
        self.builder = builder
        self.single = {types.float32: ir.FloatType(), types.float64: ir.DoubleType()}[kind]
        self.size = kind.bitwidth // 8
        self.lanes = VECTOR_BYTES // self.size

    def number(self, value: int) -> Any:
        return ir.Constant(_INT, value)

    def at(self, *terms: Any) -> Any:
        """The sum of variables, (variable, stride) pairs and constants."""
        total = self.number(sum(term for term in terms if isinstance(term, int)))
        for term in terms:
            if not isinstance(term, int):
                scaled = self.builder.mul(term[0], self.number(term[1])) if isinstance(term, tuple) else term
                total = self.builder.add(total, scaled)
        return total

    def load(self, array: Any, index: Any, lanes: int) -> Any:
        return self.builder.load(self._address(array, index, lanes), align=self.size)

    def store(self, value: Any, array: Any, index: Any) -> None:
        self.builder.store(value, self._address(array, index, value.type.count), align=self.size)

    def load_number(self, array: Any, index: Any) -> Any:
        return self.builder.load(self.builder.gep(array, [index]))

    def spread(self, array: Any, index: Any, lanes: int) -> Any:
        """One number in all lanes."""
        undefined = ir.Constant(ir.VectorType(self.single, lanes), ir.Undefined)
        first = self.builder.insert_element(undefined, self.load_number(array, index), ir.Constant(ir.IntType(32), 0))
        return self.builder.shuffle_vector(first, undefined, ir.Constant(ir.VectorType(ir.IntType(32), lanes), [0] * lanes))

    def fma(self, a: Any, b: Any, c: Any) -> Any:
        """a * b + c."""
        name = f"llvm.fmuladd.v{a.type.count}f{8 * self.size}"
        function = cgutils.get_or_insert_function(self.builder.module, ir.FunctionType(a.type, [a.type] * 3), name)
        return self.builder.call(function, [a, b, c])

    def sums(self, count: int, lanes: int) -> list[Any]:
        """Accumulators that live in registers across the loop that follows; zeros."""
        kind = ir.VectorType(self.single, lanes)
        cells = [cgutils.alloca_once(self.builder, kind) for _ in range(count)]
        for cell in cells:
            self.builder.store(ir.Constant(kind, [0.0] * lanes), cell)
        return cells

    def accumulate(self, cell: Any, a: Any, b: Any) -> None:
        self.builder.store(self.fma(a, b, self.builder.load(cell)), cell)

    def _address(self, array: Any, index: Any, lanes: int) -> Any:
        return self.builder.bitcast(self.builder.gep(array, [index]), ir.VectorType(self.single, lanes).as_pointer())


def stage(emit: Callable[..., None]) -> Any:
    """A function for numba code from an emitter `emit(code, *arguments)`; arrays arrive as pointers, the first gives the type."""

    def typed(context: Any, *arguments: Any) -> Any:
        return types.void(*arguments), generate

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        plain = [
            cgutils.create_struct_proxy(kind)(context, builder, value).data if isinstance(kind, types.Array) else value
            for kind, value in zip(signature.args, values, strict=True)
        ]
        emit(Code(builder, signature.args[0].dtype), *plain)
        return context.get_dummy_value()

    names = ["context", *list(inspect.signature(emit).parameters)[1:]]
    parameters = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in names]
    typed.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # numba wants the arguments by name
    typed.__name__, typed.__doc__ = emit.__name__, emit.__doc__
    return intrinsic(typed)


def _scale(
    code: Code, x: Any, first: Any, stride: Any, factors: Any, begin: Any, out: Any, target: Any, rows: Any, width: int
) -> None:
    with cgutils.for_range(code.builder, rows) as loop:
        factor = code.spread(factors, code.at(begin, loop.index), width)
        row = code.load(x, code.at(first, code.builder.mul(loop.index, stride)), width)
        code.store(code.builder.fmul(row, factor), out, code.at(target, (loop.index, width)))


@stage
def scale_panel(code: Code, x: Any, first: Any, stride: Any, factors: Any, begin: Any, out: Any, target: Any, rows: Any) -> None:
    """out[target + k lanes + i] = factors[begin + k] x[first + k stride + i] for k < rows and the lanes i of a vector."""
    _scale(code, x, first, stride, factors, begin, out, target, rows, code.lanes)


@stage
def scale_columns(
    code: Code, x: Any, first: Any, stride: Any, factors: Any, begin: Any, out: Any, target: Any, rows: Any
) -> None:
    """out[target + k COLUMNS + i] = factors[begin + k] x[first + k stride + i] for k < rows and i < COLUMNS."""
    _scale(code, x, first, stride, factors, begin, out, target, rows, COLUMNS)


@stage
def pack(code: Code, z: Any, first: Any, w: Any, target: Any, count: Any, y: Any, sums: Any) -> None:
    """w[target + k COLUMNS + c] = -z[first + k lanes + c], and sums[c] = sum_k of it times y[k], for k < count.

    `count` is a multiple of `COLUMNS`.
    """
    cells = code.sums(4, COLUMNS)
    with cgutils.for_range_slice(code.builder, code.number(0), count, code.number(COLUMNS), inc=True) as (k, _):
        for i in range(COLUMNS):
            row = code.builder.fneg(code.load(z, code.at(first, (k, code.lanes), i * code.lanes), COLUMNS))
            code.store(row, w, code.at(target, (k, COLUMNS), i * COLUMNS))
            code.accumulate(cells[i % 4], row, code.spread(y, code.at(k, i), COLUMNS))
    a, b, c, d = (code.builder.load(cell) for cell in cells)
    code.store(code.builder.fadd(code.builder.fadd(a, b), code.builder.fadd(c, d)), sums, code.number(0))


@stage
def multiply(code: Code, z: Any, starts: Any, panel: Any, panels: Any, w: Any, count: Any) -> None:
    """z[s + (count + c) lanes + i] = sum_{k < count} z[s + k lanes + i] w[k COLUMNS + c], s = starts[panel], for a few panels.

    The code of every number of panels is written out, and one of them chosen: sums in registers need a fixed number.
    """
    builder = code.builder
    end = builder.append_basic_block()
    choice = builder.switch(panels, end)
    for vectors in range(1, GROUP + 1):
        with builder.goto_block(builder.append_basic_block()):
            choice.add_case(code.number(vectors), builder.block)
            firsts = [code.load_number(starts, code.at(panel, i)) for i in range(vectors)]
            cells = [code.sums(COLUMNS, code.lanes) for _ in firsts]
            with cgutils.for_range(builder, count) as loop:
                rows = [code.load(z, code.at(first, (loop.index, code.lanes)), code.lanes) for first in firsts]
                for c in range(COLUMNS):
                    factor = code.spread(w, code.at((loop.index, COLUMNS), c), code.lanes)
                    for row, own in zip(rows, cells, strict=True):
                        code.accumulate(own[c], row, factor)
            for first, own in zip(firsts, cells, strict=True):
                for c, cell in enumerate(own):
                    code.store(builder.load(cell), z, code.at(first, (count, code.lanes), c * code.lanes))
            builder.branch(end)
    builder.position_at_end(end)


@stage
def solve_columns(code: Code, z: Any, starts: Any, panel: Any, last: Any, count: Any, factor: Any) -> None:
    """The `COLUMNS` rows of z from row `count` on become columns of L, for panels panel ... last - 1.

    L_c = (S_c - sum_{e < c} L_ce L_e) / L_cc, with factor[c, e] = -L_ce and factor[c, c] = 1 / L_cc.
    """
    builder = code.builder
    with cgutils.for_range_slice(builder, panel, last, code.number(1), inc=True) as (p, _):
        first = code.at(code.load_number(starts, p), (count, code.lanes))
        found: list[Any] = []
        for c in range(COLUMNS):
            total = code.load(z, code.at(first, c * code.lanes), code.lanes)
            for e, earlier in enumerate(found):
                total = code.fma(earlier, code.spread(factor, code.number(c * COLUMNS + e), code.lanes), total)
            scale = code.spread(factor, code.number(c * COLUMNS + c), code.lanes)
            found.append(builder.fmul(total, scale))
            code.store(found[-1], z, code.at(first, c * code.lanes))


@stage
def transposed_product(code: Code, z: Any, starts: Any, panel: Any, last: Any, row: Any, x: Any, out: Any) -> None:
    """out[c lanes + i] = sum_p z[starts[p] + (row + c) lanes + i] x[p lanes + i] for c < COLUMNS, p = panel ... last - 1."""
    cells = code.sums(COLUMNS, code.lanes)
    with cgutils.for_range_slice(code.builder, panel, last, code.number(1), inc=True) as (p, _):
        first = code.at(code.load_number(starts, p), (row, code.lanes))
        own = code.load(x, code.at((p, code.lanes)), code.lanes)
        for c, cell in enumerate(cells):
            code.accumulate(cell, code.load(z, code.at(first, c * code.lanes), code.lanes), own)
    for c, cell in enumerate(cells):
        code.store(code.builder.load(cell), out, code.number(c * code.lanes))


def _multiply_all(z, starts, panel, last, w, count):  # type: ignore[no-untyped-def]
    """`multiply` for panels panel ... last - 1; four are two and two, which is faster than three and one."""
    while panel < last:
        some = 2 if GROUP == 3 and last - panel == 4 else min(GROUP, last - panel)
        multiply(z, starts, panel, some, w, count)
        panel += some


def _factor_corner(z, corner, lanes, damping, one, factor):  # type: ignore[no-untyped-def]
    """The factor that `solve_columns` takes, of the matrix at z[corner], its columns `lanes` apart, + damping I."""
    for c in range(COLUMNS):
        pivot = z[corner + c * lanes + c] + damping
        for e in range(c):
            pivot -= factor[c * COLUMNS + e] * factor[c * COLUMNS + e]
        inverse = one / np.sqrt(pivot) if 0.0 < pivot < np.inf else (one - one) / (one - one)  # NaN
        factor[c * COLUMNS + c] = inverse
        for r in range(c + 1, COLUMNS):
            total = z[corner + c * lanes + r]
            for e in range(c):
                total -= factor[r * COLUMNS + e] * factor[c * COLUMNS + e]
            factor[r * COLUMNS + c] = -total * inverse


_multiplied = njit(inline="always")(_multiply_all)
_factored = njit(inline="always", error_model="numpy", fastmath={"contract"})(_factor_corner)


def _solve(  # type: ignore[no-untyped-def]
    features, probabilities, shares, right, damping, out, heights, numbers, first_job, last_job,
    z, starts, w, x, s, diagonal, beside, below, before, ones, inverses, factor, sums, partial,
):  # fmt: skip
    """Pairs first_job..last_job - 1, runs innermost."""
    runs, _, classes, n = probabilities.shape
    q, blocks, lanes = features.shape[2], classes - 1, VECTOR_BYTES // z.itemsize
    own = (q + lanes - 1) // lanes  # panels of a class
    width = own * lanes
    panels = blocks * own
    one = ones[0]
    zero = one - one  # of the arrays' type
    for job in range(first_job, last_job):
        client, run = job // runs, job % runs
        shift = damping[run]
        for k in range(n):
            for f in range(q):
                x[k * width + f] = features[client, k, f]
            for f in range(q, width):
                x[k * width + f] = zero
            before[k] = probabilities[run, client, 0, k]
        for a in range(blocks):
            h, number = heights[a], numbers[a]
            for k in range(n):
                p, share = probabilities[run, client, a + 1, k], shares[run, client, k]
                t = h * (before[k] - number * p)
                diagonal[a * n + k] = share * (h * h * (before[k] + number * number * p) - t * t)  # w e_a
                beside[a * n + k] = share * t
                below[a * n + k] = h - t
                before[k] += p
            for i in range(own):
                scale_panel(x, i * lanes, width, below, a * n, z, starts[a * own + i], n)
        # s: the right side in Helmert's basis; `before` [width]: the sum of the classes so far
        strange = zero  # NaN where a right side is not finite
        for f in range(width):
            before[f] = right[run, client, 0, f] if f < q else zero
            strange += zero * before[f]
        for a in range(blocks):
            for f in range(width):
                side = right[run, client, a + 1, f] if f < q else zero
                s[a * width + f] = heights[a] * (before[f] - numbers[a] * side)
                before[f] += side
                strange += zero * side
        for b in range(blocks):
            for i in range(own):
                scale_panel(x, i * lanes, width, ones, 0, z, starts[b * own + i], n)
            for f in range(0, width, COLUMNS):
                j = b * width + f
                count, panel, lane = n + j, j // lanes, j % lanes
                pack(z, starts[panel] + n * lanes + lane, w, COLUMNS * n, j, s, sums)
                scale_columns(x, f, width, diagonal, b * n, w, 0, n)
                _multiplied(z, starts, panel, (b + 1) * own, w, count)
                _factored(z, starts[panel] + count * lanes + lane, lanes, shift, one, factor)
                solve_columns(z, starts, panel, (b + 1) * own, count, factor)
                scale_columns(x, f, width, beside, b * n, w, 0, n)
                _multiplied(z, starts, (b + 1) * own, panels, w, count)
                solve_columns(z, starts, (b + 1) * own, panels, count, factor)
                for c in range(COLUMNS):
                    total = s[j + c] + sums[c]
                    for e in range(c):
                        total += factor[c * COLUMNS + e] * s[j + e]
                    inverses[j + c] = factor[c * COLUMNS + c]
                    s[j + c] = total * factor[c * COLUMNS + c]
        for panel in range(panels - 1, -1, -1):
            j = panel * lanes
            for part in range(0, lanes, COLUMNS):
                transposed_product(z, starts, panel + 1, panels, n + j + part, s, partial)
                for c in range(COLUMNS):
                    total = partial[c * lanes]
                    for lane in range(1, lanes):
                        total += partial[c * lanes + lane]
                    s[j + part + c] -= total
            for c in range(lanes - 1, -1, -1):
                s[j + c] *= inverses[j + c]
                for e in range(c):
                    s[j + e] -= z[starts[panel] + (n + j + e) * lanes + c] * s[j + c]
        for f in range(q):
            free = before[f] / (shift * classes) + strange
            before[f] = zero
            for a in range(blocks, -1, -1):
                if a < blocks:
                    before[f] += heights[a] * s[a * width + f]
                lower = numbers[a - 1] * heights[a - 1] * s[(a - 1) * width + f] if a > 0 else zero
                out[run, client, a, f] = before[f] - lower + free


def _signature(kind: Any) -> tuple[Any, ...]:
    row, whole = kind[::1], types.int64
    scratch = (row, types.int64[::1], *[row] * 12)
    return (
        kind[:, :, ::1], kind[:, :, :, ::1], kind[:, :, ::1], kind[:, :, :, ::1], row, kind[:, :, :, ::1], row, row, whole, whole,
        *scratch,
    )  # fmt: skip


def _workspace(kind: Any, classes: int, n: int, q: int) -> list[np.ndarray]:
    """What one thread needs, in the order of `_solve`'s arguments."""
    lanes = VECTOR_BYTES // kind.itemsize
    width = -(-q // lanes) * lanes
    size, panels = (classes - 1) * width, (classes - 1) * width // lanes
    ends = np.cumsum((n + lanes * np.arange(1, panels + 1)) * lanes)  # panel i has n + lanes (i + 1) rows
    sizes = {
        "w": (n + size) * COLUMNS,
        "x": n * width,
        "s": size,
        "diagonal": (classes - 1) * n,
        "beside": (classes - 1) * n,
        "below": (classes - 1) * n,
        "before": max(n, width),
        "ones": max(n, 1),
        "inverses": size,
        "factor": COLUMNS * COLUMNS,
        "sums": COLUMNS,
        "partial": COLUMNS * lanes,
    }
    arrays = {name: _numbers(length, kind) for name, length in sizes.items()}
    arrays["ones"][:] = 1.0
    starts = np.concatenate(([0], ends)).astype(np.int64)
    return [_numbers(int(starts[-1]), kind), starts, *arrays.values()]


def _numbers(size: int, kind: Any) -> np.ndarray:
    return aligned(-(-size * kind.itemsize // 8)).view(kind)[:size]


class CurvatureKernel:
    """The compiled program for one type of numbers. Building it takes seconds the first time, later it is read from disk.

    Raises:
      Exception: of any kind, where numba cannot compile; there is no list of what can go wrong in a compiler.
    """

    def __init__(self, kind: Any) -> None:
        self._kind = np.dtype(kind)
        self._program: Any = built(
            _solve,
            "the curvature kernel",
            3,
            [_signature(from_dtype(self._kind))],
            uses=[single_output_kernel],
            error_model="numpy",
            fastmath={"contract"},
        )

    def solve(
        self,
        features: np.ndarray,
        probabilities: np.ndarray,
        shares: np.ndarray,
        right: np.ndarray,
        damping: np.ndarray,
        out: np.ndarray,
        threads: int,
    ) -> None:
        """Solves for all pairs; the numbers do not depend on how many threads there are.

        Args:
          features, probabilities, shares, right, damping: as for `curvature.hessian_by_cholesky`; contiguous, of its type.
          out: [S, B, c, q] the solutions; NaN for a pair whose matrix is not positive definite, or that is not finite itself.
        """
        runs, clients, classes, n = probabilities.shape
        numbers = np.arange(1, classes, dtype=self._kind)
        heights = 1 / np.sqrt(numbers * (numbers + 1))
        fixed = features, probabilities, shares, right, damping, out, heights, numbers
        pairs, size = runs * clients, (classes - 1) * features.shape[2]
        if pairs * size**2 * (n + size / 3) < SHARED_WORK:
            threads = 1
        remaining = iter(even_parts(pairs, PARTS * threads))  # threads take the next part off it, which is atomic

        def work() -> None:
            workspace = _workspace(self._kind, classes, n, features.shape[2])
            for part in remaining:
                self._program(*fixed, *part, *workspace)

        in_threads([work] * min(pairs, threads), threads)
