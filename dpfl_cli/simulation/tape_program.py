"""The compiled program that plays a tape: a loop over rounds, and in it one over instructions, on one array of numbers.

An instruction is a row of integers: what to do, a shape of three axes, and for each of three operands (the first is written)
where it begins in `memory`, how far it moves on from round to round, and its strides; all counted in numbers. At the end stands
one more number, whose meaning is the instruction's. `TapeProgram.run` has no other work in a round than this.

The kernel of gradients is called by its address, so that it is the very code that `SingleOutputKernel.compute` runs.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic
from numpy.lib.stride_tricks import as_strided

logger = logging.getLogger("dpfl")

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


@njit
def _elementwise(what, out, one, other):  # type: ignore[no-untyped-def]
    """out <- one (what) other, [n] each; `one` and `other` may be single numbers [1], and `out` one of them."""
    n = len(out)
    if len(one) == n and len(other) == n:
        if what == ADD:
            for i in range(n):
                out[i] = one[i] + other[i]
        elif what == SUBTRACT:
            for i in range(n):
                out[i] = one[i] - other[i]
        elif what == MULTIPLY:
            for i in range(n):
                out[i] = one[i] * other[i]
        elif what == DIVIDE:
            for i in range(n):
                out[i] = one[i] / other[i]
        else:
            for i in range(n):
                out[i] = one[i]
    elif len(one) == n:
        b = other[0]
        if what == ADD:
            for i in range(n):
                out[i] = one[i] + b
        elif what == SUBTRACT:
            for i in range(n):
                out[i] = one[i] - b
        elif what == MULTIPLY:
            for i in range(n):
                out[i] = one[i] * b
        elif what == DIVIDE:
            for i in range(n):
                out[i] = one[i] / b
        else:
            for i in range(n):
                out[i] = one[i]
    else:
        a = one[0]
        for i in range(n):
            b = other[i] if len(other) == n else other[0]
            if what == ADD:
                out[i] = a + b
            elif what == SUBTRACT:
                out[i] = a - b
            elif what == MULTIPLY:
                out[i] = a * b
            elif what == DIVIDE:
                out[i] = a / b
            else:
                out[i] = a


@njit
def _cascade(memory, place, stride, count, levels):  # type: ignore[no-untyped-def]
    """levels[0] <- the sum of `count` rows of numbers, a stride apart, in the order of torch's `multi_row_sum`.

    Runs of 2^p rows are added up one by one; runs of such runs again, on up to four levels.
    """
    bits = 0  # ceil(log2(count))
    while (1 << bits) < count:
        bits += 1
    power = max(4, bits // LEVELS)
    columns = levels.shape[1]
    levels[:] = 0.0
    for done in range(1, count + 1):
        row = memory[place + (done - 1) * stride : place + (done - 1) * stride + columns]
        total = levels[0]
        for j in range(columns):
            total[j] += row[j]
        level = 1
        while level < LEVELS and not done & ((1 << (level * power)) - 1):
            for j in range(columns):
                levels[level, j] += levels[level - 1, j]
                levels[level - 1, j] = 0.0
            level += 1
    for level in range(1, LEVELS if count >> power else 1):
        for j in range(columns):
            levels[0, j] += levels[level, j]


@njit
def _sum(memory, out, place, stride, count, one_by_one, levels):  # type: ignore[no-untyped-def]
    """memory[out:] <- the sum of `count` rows, the first columns as in `_cascade`, the others in the order of torch's `row_sum`:
    rows 0, 4, 8..., 1, 5, 9... and so on apart, and then together."""
    some = levels[:, :one_by_one]
    if one_by_one:
        _cascade(memory, place, stride, count, some)
        for j in range(one_by_one):
            memory[out + j] = some[0, j]
    columns = levels.shape[1] - one_by_one
    if not columns:
        return
    out, place = out + one_by_one, place + one_by_one
    rest, total = levels[:, one_by_one:], memory[out : out + columns]
    for k in range(4):
        _cascade(memory, place + k * stride, 4 * stride, count // 4, rest)
        for j in range(columns):
            total[j] = rest[0, j] + (total[j] if k else 0.0)
        for i in range(count // 4 * 4, count if k == 0 else 0):
            for j in range(columns):
                total[j] += memory[place + i * stride + j]


def _play(  # type: ignore[no-untyped-def]
    memory, code, rounds, kernel, runs, starts,
    loss, scale, l2, mode, features, rows, targets, norms, inverses, firsts, counts, bounds, batched, batch,
):  # fmt: skip
    """Plays the code `rounds` times. The arguments from `loss` on are those of the kernel of gradients (`joined`); the runs of
    federation s, of `firsts` and `counts` [S, M], are runs[starts[s] : starts[s + 1]]."""
    space = np.empty(LEVELS * np.max(code[:, OPERANDS - 1]))  # of sums
    for number in range(rounds):
        for line in range(len(code)):
            what, outer, middle, inner = code[line, 0], code[line, 1], code[line, 2], code[line, 3]
            first = code[line, OPERANDS:]
            second, third = first[OPERAND:], first[2 * OPERAND :]
            out, one, other = first[0] + number * first[1], second[0] + number * second[1], third[0] + number * third[1]
            if what == GRADIENT:
                result = memory[out : out + outer * middle * inner].reshape(outer, middle, inner)
                strides = (8 * second[2], 8 * second[3], 8 * second[4])
                parameters = as_strided(memory[one:], (outer, middle, inner), strides)
                for s in range(len(firsts)):
                    some = runs[starts[s] : starts[s + 1]]
                    _call(kernel, (
                        loss, scale, l2, mode, features, rows, targets, norms, inverses, firsts[s], counts[s],
                        some, parameters, bounds, batched, batch, result, 0, len(some) * middle,
                    ))  # fmt: skip
                continue
            for i in range(outer):
                if what == SUM:  # over the middle axis
                    x, y = out + i * first[2], one + i * second[2]
                    levels = space[: LEVELS * inner].reshape(LEVELS, inner)
                    _sum(memory, x, y, second[3], middle, code[line, LAST], levels)
                    continue
                for j in range(middle):
                    x = out + i * first[2] + j * first[3]
                    y = one + i * second[2] + j * second[3]
                    z = other + i * third[2] + j * third[3]
                    _elementwise(
                        what, memory[x : x + inner], memory[y : y + (inner if second[4] else 1)],
                        memory[z : z + (inner if third[4] else 1)],
                    )  # fmt: skip


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
        self._program: Any = njit(nogil=True, error_model="numpy")(_play)
        numbers, tables = types.int64[::1], types.int64[:, ::1]
        fixed = settings(kernel)
        own = (types.float64[::1], tables, types.int64, types.int64, numbers, numbers)
        signature = (*own, *fixed[:9], tables, tables, *fixed[11:])
        with suppress(RuntimeError):  # no folder to keep it in: it is compiled again in the next process
            self._program.enable_caching()
        message = "compiling the program for many rounds at once, once on this machine: about 2 s"
        notice = threading.Timer(1.0, logger.info, [message])  # reading it from disk takes less
        notice.daemon = True
        notice.start()
        try:
            self._program.compile(signature)
        finally:
            notice.cancel()
        self._program.disable_compile()

    def play(
        self, memory: np.ndarray, code: np.ndarray, rounds: int, kernel: int, runs: np.ndarray, starts: np.ndarray, fixed: Any
    ) -> None:
        """Plays the code so many times.

        Args:
          memory: [n] float64, read and written.
          code: [lines, WIDTH] int64 instructions.
          kernel: the address of the kernel of gradients, which is called with the `joined` settings `fixed`.
          runs, starts: which runs gradients are computed for; those of federation s begin at starts[s].
        """
        self._program(memory, code, rounds, kernel, runs, starts, *fixed)
