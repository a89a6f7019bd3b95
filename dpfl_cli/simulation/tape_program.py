"""The compiled program that plays a tape: a loop over rounds, and in it one over instructions, on one array of numbers.

An instruction is a row of integers: what to do, a shape of three axes, and for each of three operands (the first is written)
where it begins in `memory`, how far it moves on from round to round, and its strides; all counted in numbers. What is drawn for
many rounds is read where it lies: a negative step is the number of a table of where, seen from `memory`. At the end stands one
more number, whose meaning is the instruction's. `TapeProgram.play` has no other work in a round than this.

The kernel of gradients is called by its address, so that it is the very code that `SingleOutputKernel.compute` runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic
from numpy.lib.stride_tricks import as_strided

from dpfl_cli.data.programs import built
from dpfl_cli.models import single_output_kernel
from dpfl_cli.models.single_output_kernel import INT, LANES, VECTOR, broadcast, llvm_code, load, many, store

ADD, SUBTRACT, MULTIPLY, DIVIDE, COPY, SUM, GRADIENT = range(7)
OPERANDS = 4  # where the operands begin: after the instruction and its shape
OPERAND = 5  # place, step from round to round, three strides
LAST = OPERANDS + 3 * OPERAND
WIDTH = LAST + 1
LEVELS = 4  # of sums in torch


def _calling(typing: Any, address: Any, arguments: Any) -> Any:
    """Calls compiled code at an address, with a tuple of arguments; it returns nothing."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        kinds, convention = signature.args[1].types, context.call_conv
        pointer = builder.inttoptr(values[0], convention.get_function_type(types.none, kinds).as_pointer())
        given = cgutils.unpack_tuple(builder, values[1])
        status, _ = convention.call_function(builder, pointer, types.none, kinds, given)
        with cgutils.if_unlikely(builder, status.is_error):
            convention.return_status_propagate(builder, status)
        return ir.Constant(context.get_value_type(types.none), None)

    return types.none(address, arguments), generate


_call: Any = intrinsic(_calling)


def _operations(builder: Any) -> dict[int, Callable[[Any, Any], Any]]:
    """(a, b) -> a (what) b, rounded once."""
    return {ADD: builder.fadd, SUBTRACT: builder.fsub, MULTIPLY: builder.fmul, DIVIDE: builder.fdiv, COPY: lambda a, b: a}


@llvm_code
def _elementwise(builder, memory, what, rows, n, out, one, other):  # type: ignore[no-untyped-def]
    """out[i, j] <- one[i, j] (what) other[i, j] for i < rows, j < n.

    Operands are (place in memory, stride of i, stride of j); the stride of j is 1, or 0 of `one` and `other`. Vectors of 8 j, the
    last of which begins at n - 8 and is read before the others are written, as `out` may be one of the operands.
    """
    operands = [cgutils.unpack_tuple(builder, operand) for operand in (out, one, other)]
    spread_one, spread_other = (builder.icmp_signed("==", strides, many(0)) for _, _, strides in operands[1:])
    broad = builder.icmp_signed(">=", n, many(LANES))
    form = builder.add(builder.zext(spread_one, INT), builder.shl(builder.zext(spread_other, INT), many(1)))
    choice = builder.add(builder.mul(what, many(8)), builder.add(form, builder.shl(builder.zext(broad, INT), many(2))))
    end = builder.append_basic_block()
    chosen = builder.switch(choice, end)

    def emit(operation: Callable[[Any, Any], Any], takes: int, spreads: tuple[bool, bool], wide: bool) -> None:
        def read(pointer: Any, index: Any) -> Any:
            return load(builder, pointer, index) if wide else builder.load(builder.gep(pointer, [index]))

        with cgutils.for_range(builder, rows) as row:
            into, *sources = [
                builder.gep(memory[0], [builder.add(place, builder.mul(row.index, stride))]) for place, stride, _ in operands
            ]
            fixed = [
                broadcast(builder, builder.load(source)) if wide else builder.load(source) if alike else None
                for source, alike in zip(sources[:takes], spreads, strict=False)
            ]

            def result(index: Any) -> Any:
                found = [
                    value if alike else read(source, index) for source, value, alike in zip(sources, fixed, spreads, strict=False)
                ]
                return operation(found[0], found[-1])

            if not wide:
                with cgutils.for_range(builder, n) as loop:
                    builder.store(result(loop.index), builder.gep(into, [loop.index]))
                return
            last = builder.sub(n, many(LANES))
            at_last = result(last)
            with cgutils.for_range_slice(builder, many(0), last, many(LANES)) as (index, _):
                store(builder, result(index), into, index)
            store(builder, at_last, into, last)

    for number, operation in _operations(builder).items():
        takes = 1 if number == COPY else 2
        for number_of_form in range(8):
            spreads = bool(number_of_form & 1), bool(number_of_form & 2)
            with builder.goto_block(builder.append_basic_block()):
                chosen.add_case(many(8 * number + number_of_form), builder.block)
                emit(operation, takes, spreads, bool(number_of_form & 4))
                builder.branch(end)
    builder.position_at_end(end)


def _cascade(builder: Any, pointer: Any, stride: Any, count: Any, power: Any, kind: Any) -> Any:
    """Code for the sum of `count` numbers (or vectors of columns), a stride apart, in the order of torch's `multi_row_sum`.

    Runs of 2^power rows are added up one by one; runs of such runs again, on up to four levels.
    """
    zero = ir.Constant(kind, [0.0] * LANES if kind is VECTOR else 0.0)
    levels = [cgutils.alloca_once(builder, kind) for _ in range(LEVELS)]
    for level in levels:
        builder.store(zero, level)

    def carried(done: Any, level: int) -> None:
        """Takes a level that is full to the next one."""
        mask = builder.sub(builder.shl(many(1), builder.mul(power, many(level))), many(1))
        with builder.if_then(builder.icmp_signed("==", builder.and_(done, mask), many(0)), likely=False):
            builder.store(builder.fadd(builder.load(levels[level]), builder.load(levels[level - 1])), levels[level])
            builder.store(zero, levels[level - 1])
            if level + 1 < LEVELS:
                carried(done, level + 1)

    with cgutils.for_range(builder, count) as loop:
        place = builder.gep(pointer, [builder.mul(loop.index, stride)])
        row = load(builder, place, many(0)) if kind is VECTOR else builder.load(place)
        builder.store(builder.fadd(builder.load(levels[0]), row), levels[0])
        carried(builder.add(loop.index, many(1)), 1)
    with builder.if_then(builder.icmp_signed("!=", builder.ashr(count, power), many(0))):
        for level in levels[1:]:
            builder.store(builder.fadd(builder.load(levels[0]), builder.load(level)), levels[0])
    return builder.load(levels[0])


def _column(wide: bool, by_four: bool) -> Any:
    """A function that adds up a column of memory, or 8 columns side by side."""
    kind = VECTOR if wide else ir.DoubleType()

    @llvm_code
    def add_up(builder, memory, out, place, stride, count, power):  # type: ignore[no-untyped-def]
        """memory[out] <- the sum of `count` numbers from `place` on, a stride apart."""
        begin = builder.gep(memory[0], [place])
        if not by_four:
            total = _cascade(builder, begin, stride, count, power, kind)
        else:
            stride_of_4, quarter, cell = builder.mul(stride, many(4)), builder.sdiv(count, many(4)), None
            for k in range(4):
                start = builder.gep(begin, [builder.mul(stride, many(k))])
                part = _cascade(builder, start, stride_of_4, quarter, power, kind)
                if cell is None:
                    cell = cgutils.alloca_once(builder, kind)
                    builder.store(part, cell)
                    with cgutils.for_range_slice(builder, builder.mul(quarter, many(4)), count, many(1)) as (row, _):
                        left = builder.gep(begin, [builder.mul(row, stride)])
                        value = load(builder, left, many(0)) if wide else builder.load(left)
                        builder.store(builder.fadd(builder.load(cell), value), cell)
                else:
                    builder.store(builder.fadd(part, builder.load(cell)), cell)
            total = builder.load(cell)
        into = builder.gep(memory[0], [out])
        if wide:
            store(builder, total, into, many(0))
        else:
            builder.store(total, into)

    return add_up


_columns, _column_alone = _column(wide=True, by_four=False), _column(wide=False, by_four=False)
_columns_by_four, _column_alone_by_four = _column(wide=True, by_four=True), _column(wide=False, by_four=True)


@njit
def _power(count):  # type: ignore[no-untyped-def]
    """Of how many rows, as a power of 2, `_cascade` makes runs."""
    bits = 0  # ceil(log2(count))
    while (1 << bits) < count:
        bits += 1
    return max(4, bits // LEVELS)


@njit
def _sum(memory, out, place, stride, count, columns, one_by_one):  # type: ignore[no-untyped-def]
    """memory[out:] <- the sum of `count` rows, the first columns as in `_cascade`, the others in the order of torch's `row_sum`:
    rows 0, 4, 8..., 1, 5, 9... and so on apart, and then together.

    From the last column to the first, 8 at a time: those that a vector has too many are written once more, by the right code.
    """
    power, column = _power(count // 4), columns
    while column > one_by_one:
        if column >= LANES:
            column -= LANES
            _columns_by_four(memory, out + column, place + column, stride, count, power)
        else:
            column -= 1
            _column_alone_by_four(memory, out + column, place + column, stride, count, power)
    power, column = _power(count), one_by_one
    while column > 0:
        if column >= LANES:
            column -= LANES
            _columns(memory, out + column, place + column, stride, count, power)
        else:
            column -= 1
            _column_alone(memory, out + column, place + column, stride, count, power)


@njit
def _begin(line, operand, number, run, tables):  # type: ignore[no-untyped-def]
    """Where an operand begins, for one index of its first axis, in a round of this number."""
    place, step = line[operand], line[operand + 1]
    return tables[-1 - step, number, place + run] if step < 0 else place + number * step + run * line[operand + 2]


@njit
def _do(memory, line, number, run, tables):  # type: ignore[no-untyped-def]
    """An instruction [WIDTH] for one index of its first axis, in a round of this number."""
    what, middle, inner, second, third = line[0], line[2], line[3], OPERANDS + OPERAND, OPERANDS + 2 * OPERAND
    out, one = _begin(line, OPERANDS, number, run, tables), _begin(line, second, number, run, tables)
    if what == SUM:  # over the middle axis
        _sum(memory, out, one, line[second + 3], middle, inner, line[LAST])
        return
    other = _begin(line, third, number, run, tables)
    _elementwise(
        memory, what, middle, inner, (out, line[OPERANDS + 3], line[OPERANDS + 4]),
        (one, line[second + 3], line[second + 4]), (other, line[third + 3], line[third + 4]),
    )  # fmt: skip


def _play(  # type: ignore[no-untyped-def]
    memory, code, rounds, tables, kernel, runs, starts, apart,
    loss, scale, l2, mode, features, rows, targets, norms, inverses, firsts, counts, bounds, batched, batch,
):  # fmt: skip
    """Plays the code `rounds` times. The arguments from `loss` on are those of the kernel of gradients (`joined`); the runs of
    federation s, of `firsts` and `counts` [S, M], are runs[starts[s] : starts[s + 1]]. What lies between two gradients is done
    for one of `apart` runs after the other, whose numbers are at hand then, or if that is 0 line by line for all of them."""
    for number in range(rounds):
        line = 0
        while line < len(code):
            if code[line, 0] == GRADIENT:
                outer, middle, inner = code[line, 1], code[line, 2], code[line, 3]
                first = code[line, OPERANDS:]
                second = first[OPERAND:]
                out, one = first[0] + number * first[1], second[0] + number * second[1]
                result = memory[out : out + outer * middle * inner].reshape(outer, middle, inner)
                strides = (8 * second[2], 8 * second[3], 8 * second[4])
                parameters = as_strided(memory[one:], (outer, middle, inner), strides)
                for s in range(len(firsts)):
                    some = runs[starts[s] : starts[s + 1]]
                    _call(kernel, (
                        loss, scale, l2, mode, features, rows, targets, norms, inverses, firsts[s], counts[s],
                        some, parameters, bounds, batched, batch, result, 0, len(some) * middle,
                    ))  # fmt: skip
                line += 1
                continue
            end = line
            while end < len(code) and code[end, 0] != GRADIENT:
                end += 1
            if apart:
                for run in range(apart):
                    for place in range(line, end):
                        _do(memory, code[place], number, run, tables)
            else:
                for place in range(line, end):
                    for index in range(code[place, 1]):
                        _do(memory, code[place], number, index, tables)
            line = end


def instruction(what: int, shape: Sequence[int], *operands: tuple[int, int, Sequence[int]], last: int = 0) -> np.ndarray:
    """[WIDTH] an instruction on operands (place, step from round to round, strides)."""
    line = np.zeros(WIDTH, np.int64)
    line[0], line[LAST] = what, last
    line[1 : 1 + len(shape)] = shape
    for number, (place, step, strides) in enumerate(operands):
        begin = OPERANDS + number * OPERAND
        line[begin : begin + 2 + len(strides)] = place, step, *strides
    return line


def settings(arguments: Sequence[Any]) -> tuple[Any, ...]:
    """Of the kernel's arguments those that are the same for all runs and calls: without runs, parameters, results and jobs."""
    return (*arguments[:11], *arguments[13:16])


def joined(calls: Sequence[tuple[Any, ...]]) -> tuple[Any, ...]:
    """The `settings` of calls for several federations, whose records come one after the other; firsts and counts are [S, M]."""
    one = settings(calls[0])
    if len(calls) == 1:
        return (*one[:9], one[9].reshape(1, -1), one[10].reshape(1, -1), *one[11:])
    features, targets, norms, inverses = (np.concatenate([call[place] for call in calls]) for place in (4, 6, 7, 8))
    before = np.cumsum([0, *(len(call[6]) for call in calls[:-1])])
    firsts = np.stack([call[9] + start for call, start in zip(calls, before, strict=True)])
    rows = np.empty((0, features.shape[1]))  # they are for batches
    return (*one[:4], features, rows, targets, norms, inverses, firsts, np.stack([call[10] for call in calls]), *one[11:])


class TapeProgram:
    """The compiled program. Building it takes seconds the first time on a machine, later it is read from disk.

    Raises:
      Exception: of any kind, where numba cannot compile.
    """

    def __init__(self, kernel: tuple[Any, ...]) -> None:
        """`kernel`: the signature of the kernel of gradients."""
        numbers, tables = types.int64[::1], types.int64[:, ::1]
        fixed = settings(kernel)
        own = (types.float64[::1], tables, types.int64, types.int64[:, :, ::1], types.int64, numbers, numbers, types.int64)
        signature = (*own, *fixed[:9], tables, tables, *fixed[11:])
        name = "the program for many rounds at once"
        self._program: Any = built(_play, name, 2, [signature], uses=[single_output_kernel], error_model="numpy")

    def play(
        self,
        memory: np.ndarray,
        code: np.ndarray,
        rounds: int,
        tables: np.ndarray,
        kernel: int,
        runs: np.ndarray,
        starts: np.ndarray,
        apart: int,
        fixed: Any,
    ) -> None:
        """Plays the code so many times.

        Args:
          memory: [n] float64, read and written.
          code: [lines, WIDTH] int64 instructions.
          tables: [t, rounds, R] int64 where draws begin that lie elsewhere, counted in numbers from `memory` on.
          kernel: the address of the kernel of gradients, which is called with the `joined` settings `fixed`.
          runs, starts: which runs gradients are computed for; those of federation s begin at starts[s].
          apart: the first axis of all other instructions, where what they do along it is apart from each other; else 0.
        """
        self._program(memory, code, rounds, tables, kernel, runs, starts, apart, *fixed)
