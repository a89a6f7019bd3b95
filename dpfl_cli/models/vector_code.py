"""The words in which compiled kernels are written: vectors of 64 bytes, sums that stay in
registers, and loops, as LLVM code for numba.

A compiler does not keep a tile of sums in registers that it finds in plain loops, so these loops
are written out. Every lane of a vector is a record. Products may be contracted with sums (FMA);
nothing else is relaxed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partialmethod, wraps
from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from llvmlite.binding import get_host_cpu_features  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

VECTOR_BYTES = 64
# With AVX-512 there are 32 registers of a vector's size, elsewhere 16 of half of it, or so.
WIDE = bool(get_host_cpu_features().get("avx512f"))
# Vectors of sums that stay in registers, or a few more, and columns that `vectors.accumulate` adds
# to at once.
TILE, COLUMNS = (16, 4) if WIDE else (5, 2)
_BYTE, _LANE, _WHOLE = ir.IntType(8), ir.IntType(32), ir.IntType(64)


class Index:
    """A whole number that the compiled code computes."""

    def __init__(self, builder: Any, value: Any) -> None:
        self.builder, self.value = builder, value

    def _with(self, operation: str, other: Index | int) -> Index:
        term = other.value if isinstance(other, Index) else self.value.type(other)
        return Index(self.builder, getattr(self.builder, operation)(self.value, term))

    __add__, __sub__ = partialmethod(_with, "add"), partialmethod(_with, "sub")
    __mul__, __floordiv__ = partialmethod(_with, "mul"), partialmethod(_with, "sdiv")


class Sum:
    """A vector that is added to, in a register across the loops that follow; at first zero, or what
    is given.
    """

    def __init__(self, code: Code, value: Any = None) -> None:
        self._code, self._cell = code, cgutils.alloca_once(code.builder, code.vector)
        self.set(value or code.zero)

    def set(self, value: Any) -> None:
        self._code.builder.store(value, self._cell)

    def get(self) -> Any:
        return self._code.builder.load(self._cell)

    def add(self, a: Any, b: Any) -> None:
        """Adds a * b."""
        code = self._code
        kind = ir.FunctionType(code.vector, [code.vector] * 3)
        name = f"llvm.fmuladd.v{code.lanes}f{8 * code.size}"
        function = cgutils.get_or_insert_function(code.builder.module, kind, name)
        self.set(code.builder.call(function, [a, b, self.get()]))


class Code:
    """Writes vector code. Arrays are pointers to numbers of one type; an index of a vector or mask
    counts those, of a number (`spread`) numbers.

    Attributes:
      size, lanes: bytes of a number, and how many are a vector.
      vector, zero: the type of a vector, and the vector of zeros.
    """

    def __init__(self, builder: Any, number: Any, width: int = VECTOR_BYTES) -> None:
        self.builder, self.select = builder, builder.select
        self.size = 4 if number == ir.FloatType() else 8
        self.lanes = width // self.size
        self.number, self.vector = number, ir.VectorType(number, self.lanes)
        self.zero = ir.Constant(self.vector, [0.0] * self.lanes)

    def index(self, number: int) -> Index:
        return Index(self.builder, _WHOLE(number))

    def row(self, array: tuple[Any, tuple[Any, ...]], number: Index) -> Any:
        """Where row `number` of an array begins, which comes as (pointer, strides in bytes)."""
        data, (apart, *_) = array
        start = self.builder.mul(number.value, apart)
        place = self.builder.gep(self.builder.bitcast(data, _BYTE.as_pointer()), [start])
        return self.builder.bitcast(place, data.type)

    def _place(self, array: Any, index: Index, kind: Any) -> Any:
        return self.builder.gep(self.builder.bitcast(array, kind.as_pointer()), [index.value])

    def load(self, array: Any, index: Index, kind: Any = None) -> Any:
        """A vector, or one of another kind, which the index then counts."""
        return self.builder.load(self._place(array, index, kind or self.vector), align=1)

    def store(self, value: Any, array: Any, index: Index) -> None:
        self.builder.store(value, self._place(array, index, value.type), align=1)

    def shuffled(self, one: Any, other: Any, lanes: list[int]) -> Any:
        order = ir.Constant(ir.VectorType(_LANE, len(lanes)), lanes)
        return self.builder.shuffle_vector(one, other, order)

    def widened(self, vector: Any, number: Any) -> Any:
        """A vector in float64 that is of float32; unchanged where it is of that type already."""
        kind = ir.VectorType(number, vector.type.count)
        return vector if vector.type == kind else self.builder.fpext(vector, kind)

    def spread(self, array: Any, index: Index) -> Any:
        """One number in all lanes."""
        number = self.builder.load(self.builder.gep(array, [index.value]), align=self.size)
        none = ir.Constant(self.vector, ir.Undefined)
        single = self.builder.insert_element(none, number, _LANE(0))
        return self.shuffled(single, none, [0] * self.lanes)

    def greater(self, a: Any, b: Any) -> Any:
        """a > b, or either is not a number: such a value wins, so that it is not lost."""
        return self.builder.fcmp_unordered(">", a, b)

    @contextmanager
    def loop(self, count: Index | int) -> Iterator[Index]:
        if count == 1:
            yield self.index(0)
        else:
            last = count if isinstance(count, Index) else self.index(count)
            with cgutils.for_range(self.builder, last.value) as loop:
                yield Index(self.builder, loop.index)

    def in_groups(self, number: Index, most: int, emit: Callable[[Index, int], None]) -> None:
        """The code for (first, how many) of groups of `most`, half of it, ... 1, that make up a
        number known when the code runs.
        """
        done = self.index(0)
        while most:
            groups, first = (number - done) // most, done
            with self.loop(groups) as group:
                emit(first + group * most, most)
            done, most = first + groups * most, most // 2


def written(emit: Callable[..., Any], result: Any = types.void, literal: bool = False) -> Any:
    """A function for numba from one that writes its code, in the type of the first array: arrays
    come to it as (pointer, strides in bytes), whole numbers as `Index`, and literals, which it gets
    where it asks for them, as they are.
    """

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        given: list[Any] = []
        arrays = []
        for kind, value in zip(signature.args, values, strict=True):
            if isinstance(kind, types.Array):
                array = cgutils.create_struct_proxy(kind)(context, builder, value)
                arrays.append(array.data)
                given.append((array.data, cgutils.unpack_tuple(builder, array.strides)))
            elif isinstance(kind, types.Literal):
                given.append(kind.literal_value)
            else:
                given.append(Index(builder, value))
        found = emit(Code(builder, arrays[0].type.pointee), *given)
        return context.get_dummy_value() if signature.return_type == types.void else found

    @wraps(emit)
    def typed(context: Any, *kinds: Any) -> Any:
        return result(*kinds), generate

    return intrinsic(prefer_literal=literal)(typed)
