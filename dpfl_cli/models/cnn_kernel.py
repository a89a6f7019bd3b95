"""The CNN with weights of its own for every client, compiled for CPUs.

One thread computes one client from its first local step to its last, 16 records at a time: every value is a vector of 16
records, so weights are scalars that are broadcast and no convolution needs a copy of its input. Each stage below writes
the LLVM code of one layer, unrolled over the positions of a pooling window and the taps of a kernel, so that a group of
outputs stays in registers; numba compiles the stages, and the loop over records and steps around them, once.

Convolution, pooling and activation are one stage. The backward pass uses that only one of a window's four positions
carries a gradient: each lane *selects* the 4x4 inputs under its winner out of the window's 5x5 patch (36 selects and 16
products in place of 64 products), and likewise its weights.

The order of every sum is fixed by the client's own records: results do not depend on threads, on other clients or on
other runs. Products may be contracted with sums (FMA); nothing else is relaxed.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, fields
from itertools import pairwise
from math import log
from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from dpfl_cli.data.programs import built
from dpfl_cli.models.cnn_shape import KERNEL, PATCH, CnnShape

DESCENT, GRADIENT, EVALUATION = range(3)  # what a call computes

LANES = 16
TAPS = KERNEL * KERNEL
MASKS = 3  # bit masks kept for a pooling window: won by the right column, won by the lower row, passed by the activation
KEPT_BLOCKS = 64  # blocks of 16 records whose images stay transposed between local steps (3 MB for 28x28)

_INT = ir.IntType(64)
_FLOAT = ir.FloatType()
_VECTOR = ir.VectorType(_FLOAT, LANES)
_INTEGERS = ir.VectorType(ir.IntType(32), LANES)
_BITS = ir.IntType(LANES)
_MASK = ir.VectorType(ir.IntType(1), LANES)
OFFSETS = [(0, 0), (0, 1), (1, 0), (1, 1)]  # positions of a pooling window in scan order


class Code:
    """Writes vector code: every method appends instructions at the builder's place and returns the result."""

    def __init__(self, builder: Any) -> None:
        self.builder = builder

    def number(self, value: int) -> Any:
        return ir.Constant(_INT, value)

    def constant(self, value: float) -> Any:
        return ir.Constant(_VECTOR, [float(np.float32(value))] * LANES)

    def at(self, *terms: tuple[Any, int] | int) -> Any:
        """The index sum of variable * stride, and constants."""
        total = self.number(sum(term for term in terms if isinstance(term, int)))
        for term in terms:
            if not isinstance(term, int):
                total = self.builder.add(total, self.builder.mul(term[0], self.number(term[1])))
        return total

    def _address(self, array: Any, index: Any, kind: Any) -> Any:
        index = self.number(index) if isinstance(index, int) else index
        return self.builder.bitcast(self.builder.gep(array, [index]), kind.as_pointer())

    def load(self, array: Any, index: Any, kind: Any = _VECTOR) -> Any:
        return self.builder.load(self._address(array, index, kind), align=4)

    def store(self, value: Any, array: Any, index: Any) -> None:
        self.builder.store(value, self._address(array, index, value.type), align=4)

    def load_mask(self, array: Any, index: Any) -> Any:
        return self.builder.bitcast(self.builder.load(self._address(array, index, _BITS), align=2), _MASK)

    def store_mask(self, mask: Any, array: Any, index: Any) -> None:
        self.builder.store(self.builder.bitcast(mask, _BITS), self._address(array, index, _BITS), align=2)

    def spread(self, array: Any, index: Any) -> Any:
        """One scalar in all lanes."""
        index = self.number(index) if isinstance(index, int) else index
        scalar = self.builder.load(self.builder.gep(array, [index]), align=4)
        return self.spread_value(scalar)

    def spread_value(self, scalar: Any) -> Any:
        vector = ir.VectorType(scalar.type, LANES)
        single = self.builder.insert_element(ir.Constant(vector, ir.Undefined), scalar, ir.Constant(ir.IntType(32), 0))
        return self.builder.shuffle_vector(single, ir.Constant(vector, ir.Undefined), ir.Constant(_INTEGERS, [0] * LANES))

    def shuffle(self, a: Any, b: Any, order: list[int]) -> Any:
        return self.builder.shuffle_vector(a, b, ir.Constant(_INTEGERS, order))

    def fma(self, a: Any, b: Any, c: Any) -> Any:
        """a * b + c."""
        kind = ir.FunctionType(_VECTOR, [_VECTOR] * 3)
        function = cgutils.get_or_insert_function(self.builder.module, kind, "llvm.fmuladd.v16f32")
        return self.builder.call(function, [a, b, c])

    def add(self, a: Any, b: Any) -> Any:
        return self.builder.fadd(a, b)

    def greater(self, a: Any, b: Any) -> Any:
        """a > b, or either is not a number: such a value wins, so that it is not lost."""
        return self.builder.fcmp_unordered(">", a, b)

    def select(self, mask: Any, yes: Any, no: Any) -> Any:
        return self.builder.select(mask, yes, no)

    def where(self, mask: Any, value: Any) -> Any:
        return self.builder.select(mask, value, self.constant(0.0))

    def cells(self, count: int) -> list[Any]:
        """Accumulators that live in registers across the loops that follow."""
        return [cgutils.alloca_once(self.builder, _VECTOR) for _ in range(count)]

    def get(self, cell: Any) -> Any:
        return self.builder.load(cell)

    def put(self, value: Any, cell: Any) -> None:
        self.builder.store(value, cell)

    @contextmanager
    def loop(self, count: int) -> Iterator[Any]:
        if count == 1:
            yield self.number(0)
        else:
            with cgutils.for_range(self.builder, self.number(count)) as loop:
                yield loop.index


def stage(emit: Callable[..., None]) -> Any:
    """A function for numba code from an emitter `emit(code, shape, *arguments)`; arrays arrive as pointers."""

    def typed(context: Any, key: Any, *arguments: Any) -> Any:
        shape = _shape(key.literal_value)

        def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            plain = [
                cgutils.create_struct_proxy(kind)(context, builder, value).data if isinstance(kind, types.Array) else value
                for kind, value in zip(signature.args[1:], values[1:], strict=True)
            ]
            emit(Code(builder), shape, *plain)
            return context.get_dummy_value()

        return types.void(key, *arguments), generate

    names = ["context", "key", *list(inspect.signature(emit).parameters)[2:]]
    parameters = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in names]
    typed.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # numba wants the arguments by name
    typed.__name__ = emit.__name__
    typed.__doc__ = emit.__doc__
    return intrinsic(prefer_literal=True)(typed)


def _key(shape: CnnShape) -> str:
    """The shape as a word: a literal that types every stage, and part of the name in numba's cache."""
    numbers = (shape.height, shape.width, *shape.channels, shape.hidden or 0, shape.classes, int(shape.relu))
    return " ".join(map(str, numbers))


def _shape(key: str) -> CnnShape:
    height, width, a, b, hidden, classes, relu = map(int, key.split())
    return CnnShape(height, width, (a, b), hidden or None, classes, bool(relu))


def _share(total: int, most: int) -> int:
    """The largest divisor of `total` up to `most`."""
    return max(n for n in range(1, most + 1) if total % n == 0)


def _vectors(count: int) -> int:
    return -(-count // LANES)


# Convolution, pooling, activation


def _convolve(code: Code, shape: CnnShape, number: int, x: Any, v: Any, out: Any, masks: Any) -> None:
    """out[o, i, j] = act(max_p bias_o + sum_{c, ky, kx} W[o, c, ky, kx] x[c, 2i + p_y + ky, 2j + p_x + kx])."""
    layer = shape.layers[number]
    width = shape.width if number == 0 else shape.first[1]
    plane = (shape.height if number == 0 else shape.first[0]) * width
    h, w = shape.first if number == 0 else shape.second
    outputs, inputs = layer.weight_shape[:2]
    group = _share(outputs, 4)
    sums = [code.cells(4) for _ in range(group)]
    with code.loop(h) as i, code.loop(w) as j, code.loop(outputs // group) as g:
        for o in range(group):
            for p in range(4):
                code.put(code.spread(v, code.at((g, group), layer.bias.start + o)), sums[o][p])
        with code.loop(inputs) as c:
            corner = code.at((i, 2 * width * LANES), (j, 2 * LANES), (c, plane * LANES))
            kernel = code.at((g, group * inputs * TAPS), (c, TAPS))
            patch = {
                (r, s): code.load(x, code.at((corner, 1), (r * width + s) * LANES)) for r in range(PATCH) for s in range(PATCH)
            }
            local = [[code.get(cell) for cell in row] for row in sums]
            for ky in range(KERNEL):
                for kx in range(KERNEL):
                    for o in range(group):
                        tap = layer.weight.start + o * inputs * TAPS + ky * KERNEL + kx
                        weight = code.spread(v, code.at((kernel, 1), tap))
                        for p, (y, x_) in enumerate(OFFSETS):
                            local[o][p] = code.fma(weight, patch[ky + y, kx + x_], local[o][p])
            for row, cells in zip(local, sums, strict=True):
                for value, cell in zip(row, cells, strict=True):
                    code.put(value, cell)
        for o in range(group):
            z = [code.get(cell) for cell in sums[o]]
            upper_right, lower_right = code.greater(z[1], z[0]), code.greater(z[3], z[2])
            upper, lower = code.select(upper_right, z[1], z[0]), code.select(lower_right, z[3], z[2])
            below = code.greater(lower, upper)
            best = code.select(below, lower, upper)
            window = code.at((g, group * h * w), (i, w), (j, 1), o * h * w)
            code.store_mask(code.select(below, lower_right, upper_right), masks, code.at((window, MASKS)))
            code.store_mask(below, masks, code.at((window, MASKS), 1))
            if shape.relu:
                passed = code.greater(best, code.constant(0.0))
                code.store_mask(passed, masks, code.at((window, MASKS), 2))
                best = code.where(passed, best)
            code.store(best, out, code.at((window, LANES)))


@stage
def first_convolution(code: Code, shape: CnnShape, x: Any, x_start: Any, v: Any, out: Any, masks: Any) -> None:
    _convolve(code, shape, 0, code.builder.gep(x, [x_start]), v, out, masks)


@stage
def second_convolution(code: Code, shape: CnnShape, x: Any, v: Any, out: Any, masks: Any) -> None:
    _convolve(code, shape, 1, x, v, out, masks)


def _kernel_gradient(code: Code, shape: CnnShape, number: int, x: Any, delta: Any, masks: Any, gradient: Any) -> None:
    """gradient[o, c, ky, kx] += sum_{i, j} delta[o, i, j] x[c, 2i + p_y + ky, 2j + p_x + kx] where p is the winner of (o, i, j).

    `gradient` keeps a vector for each parameter, by its place in the flat parameters: lanes are added up at the end.
    """
    layer = shape.layers[number]
    width = shape.width if number == 0 else shape.first[1]
    plane = (shape.height if number == 0 else shape.first[0]) * width
    h, w = shape.first if number == 0 else shape.second
    outputs, inputs = layer.weight_shape[:2]
    sums, total = code.cells(TAPS), code.cells(1)[0]
    with code.loop(outputs) as o, code.loop(inputs) as c:
        place = code.at((o, inputs * TAPS * LANES), (c, TAPS * LANES), layer.weight.start * LANES)
        for t in range(TAPS):
            code.put(code.load(gradient, code.at((place, 1), t * LANES)), sums[t])
        code.put(code.constant(0.0), total)
        with code.loop(h) as i, code.loop(w) as j:
            window = code.at((o, h * w), (i, w), (j, 1))
            right, below = (code.load_mask(masks, code.at((window, MASKS), k)) for k in range(2))
            g = code.load(delta, code.at((window, LANES)))
            if shape.relu:
                g = code.where(code.load_mask(masks, code.at((window, MASKS), 2)), g)
            code.put(code.add(code.get(total), g), total)
            corner = code.at((i, 2 * width * LANES), (j, 2 * LANES), (c, plane * LANES))
            last: list[Any] = []
            for r in range(PATCH):
                line = [code.load(x, code.at((corner, 1), (r * width + s) * LANES)) for s in range(PATCH)]
                chosen = [code.select(right, line[s + 1], line[s]) for s in range(KERNEL)]
                if r > 0:
                    for s in range(KERNEL):
                        cell = sums[(r - 1) * KERNEL + s]
                        code.put(code.fma(g, code.select(below, chosen[s], last[s]), code.get(cell)), cell)
                last = chosen
        for t in range(TAPS):
            code.store(code.get(sums[t]), gradient, code.at((place, 1), t * LANES))
        with code.builder.if_then(code.builder.icmp_signed("==", c, code.number(0))):
            bias = code.at((o, LANES), layer.bias.start * LANES)
            code.store(code.add(code.load(gradient, bias), code.get(total)), gradient, bias)


@stage
def first_kernel_gradient(code: Code, shape: CnnShape, x: Any, x_start: Any, delta: Any, masks: Any, gradient: Any) -> None:
    _kernel_gradient(code, shape, 0, code.builder.gep(x, [x_start]), delta, masks, gradient)


@stage
def second_kernel_gradient(code: Code, shape: CnnShape, x: Any, delta: Any, masks: Any, gradient: Any) -> None:
    _kernel_gradient(code, shape, 1, x, delta, masks, gradient)


@stage
def second_input_gradient(code: Code, shape: CnnShape, v: Any, delta: Any, masks: Any, out: Any) -> None:
    """out[c, 2i + p_y + ky, 2j + p_x + kx] += sum_o W[o, c, ky, kx] delta[o, i, j] where p is the winner of (o, i, j).

    A 5x5 patch of sums moves along a row of windows; the columns that it leaves are added to `out`, which starts at 0.
    Over patch place (r, s) lies W[r - p_y, s - p_x]: each lane selects its weight, and a place outside the kernel gets 0.
    """
    layer = shape.layers[1]
    width = shape.first[1]
    plane = shape.first[0] * width
    h, w = shape.second
    outputs, inputs = layer.weight_shape[:2]
    sums = [code.cells(PATCH) for _ in range(PATCH)]
    zero = code.constant(0.0)

    def flush(corner: Any, columns: range) -> None:
        for r in range(PATCH):
            for s in columns:
                place = code.at((corner, 1), (r * width + s) * LANES)
                code.store(code.add(code.load(out, place), code.get(sums[r][s])), out, place)

    with code.loop(inputs) as c, code.loop(h) as i:
        for row in sums:
            for cell in row:
                code.put(zero, cell)
        line = code.at((c, plane * LANES), (i, 2 * width * LANES))
        with code.loop(w) as j:
            with code.loop(outputs) as o:
                window = code.at((o, h * w), (i, w), (j, 1))
                right, below = (code.load_mask(masks, code.at((window, MASKS), k)) for k in range(2))
                g = code.load(delta, code.at((window, LANES)))
                if shape.relu:
                    g = code.where(code.load_mask(masks, code.at((window, MASKS), 2)), g)
                g_left, g_right = code.select(right, zero, g), code.select(right, g, zero)
                kernel = code.at((o, inputs * TAPS), (c, TAPS), layer.weight.start)
                for r in range(PATCH):
                    above, here = (
                        [code.spread(v, code.at((kernel, 1), k * KERNEL + s)) if 0 <= k < KERNEL else zero for s in range(KERNEL)]
                        for k in (r - 1, r)
                    )
                    taps = [code.select(below, yes, no) for yes, no in zip(above, here, strict=True)]
                    middle = [(code.select(right, taps[s - 1], taps[s]), g) for s in range(1, KERNEL)]
                    for s, (weight, part) in enumerate([(taps[0], g_left), *middle, (taps[-1], g_right)]):
                        code.put(code.fma(weight, part, code.get(sums[r][s])), sums[r][s])
            flush(code.at((line, 1), (j, 2 * LANES)), range(2))
            for row in sums:
                for s in range(PATCH):
                    code.put(code.get(row[s + 2]) if s + 2 < PATCH else zero, row[s])
        flush(code.at((line, 1), 2 * w * LANES), range(PATCH - 2))


# Fully connected layers: `number` counts from 0


def _connect(code: Code, shape: CnnShape, number: int, x: Any, v: Any, out: Any) -> None:
    """out[o] = bias_o + sum_f W[o, f] x[f]; ReLU where it is the hidden layer."""
    layer = shape.layers[2 + number]
    outputs, inputs = layer.weight_shape
    group = _share(outputs, 16)
    sums = code.cells(group)
    with code.loop(outputs // group) as g:
        for o in range(group):
            code.put(code.spread(v, code.at((g, group), layer.bias.start + o)), sums[o])
        with code.loop(inputs) as f:
            value = code.load(x, code.at((f, LANES)))
            for o in range(group):
                weight = code.spread(v, code.at((g, group * inputs), (f, 1), layer.weight.start + o * inputs))
                code.put(code.fma(weight, value, code.get(sums[o])), sums[o])
        for o in range(group):
            value = code.get(sums[o])
            if 3 + number < len(shape.layers):
                value = code.where(code.greater(value, code.constant(0.0)), value)
            code.store(value, out, code.at((g, group * LANES), o * LANES))


@stage
def first_connected(code: Code, shape: CnnShape, x: Any, v: Any, out: Any) -> None:
    _connect(code, shape, 0, x, v, out)


@stage
def second_connected(code: Code, shape: CnnShape, x: Any, v: Any, out: Any) -> None:
    _connect(code, shape, 1, x, v, out)


def _connect_back(code: Code, shape: CnnShape, number: int, x: Any, v: Any, delta: Any, out: Any) -> None:
    """out[f] = sum_o W[o, f] delta[o], and 0 where the hidden layer's ReLU (x its output) is closed."""
    layer = shape.layers[2 + number]
    outputs, inputs = layer.weight_shape
    group = _share(inputs, 16)
    sums = code.cells(group)
    with code.loop(inputs // group) as g:
        for cell in sums:
            code.put(code.constant(0.0), cell)
        with code.loop(outputs) as o:
            value = code.load(delta, code.at((o, LANES)))
            for f in range(group):
                weight = code.spread(v, code.at((o, inputs), (g, group), layer.weight.start + f))
                code.put(code.fma(weight, value, code.get(sums[f])), sums[f])
        for f in range(group):
            place = code.at((g, group * LANES), f * LANES)
            value = code.get(sums[f])
            if number > 0:
                value = code.where(code.greater(code.load(x, place), code.constant(0.0)), value)
            code.store(value, out, place)


@stage
def first_connected_back(code: Code, shape: CnnShape, x: Any, v: Any, delta: Any, out: Any) -> None:
    _connect_back(code, shape, 0, x, v, delta, out)


@stage
def second_connected_back(code: Code, shape: CnnShape, x: Any, v: Any, delta: Any, out: Any) -> None:
    _connect_back(code, shape, 1, x, v, delta, out)


def _transpose(code: Code, rows: list[Any]) -> list[Any]:
    """The transpose of a 16x16 block held in 16 vectors."""
    for step in (8, 4, 2, 1):  # swap the off-diagonal blocks of size `step` within blocks of twice the size
        low = [lane if not lane & step else LANES + lane - step for lane in range(LANES)]
        high = [lane + step if not lane & step else LANES + lane for lane in range(LANES)]
        done = list(rows)
        for r in range(LANES):
            if not r & step:
                done[r] = code.shuffle(rows[r], rows[r + step], low)
                done[r + step] = code.shuffle(rows[r], rows[r + step], high)
        rows = done
    return rows


def _connected_gradient(
    code: Code, shape: CnnShape, number: int, x: Any, delta: Any, turned: Any, gradient: Any, bias: Any
) -> None:
    """gradient[o, f] += sum over the 16 records of delta[o] x[f]: here features are in the lanes, so x is turned first.

    `gradient` has rows of whole vectors: [outputs, ceil(inputs / 16) * 16]; `bias` keeps a vector for each output.
    """
    outputs, inputs = shape.layers[2 + number].weight_shape
    vectors = _vectors(inputs)
    for part in range(vectors):
        rows = [
            code.load(x, (part * LANES + r) * LANES) if part * LANES + r < inputs else code.constant(0.0) for r in range(LANES)
        ]
        for record, row in enumerate(_transpose(code, rows)):
            code.store(row, turned, (record * vectors + part) * LANES)
    across = _share(vectors, 4)
    down = _share(outputs, 20 // across)
    sums = [code.cells(across) for _ in range(down)]
    with code.loop(outputs // down) as g, code.loop(vectors // across) as k:
        corner = code.at((g, down * vectors * LANES), (k, across * LANES))
        for o in range(down):
            for f in range(across):
                code.put(code.load(gradient, code.at((corner, 1), (o * vectors + f) * LANES)), sums[o][f])
        with code.loop(LANES) as record:
            values = [
                code.load(turned, code.at((record, vectors * LANES), (k, across * LANES), f * LANES)) for f in range(across)
            ]
            for o in range(down):
                factor = code.spread(delta, code.at((g, down * LANES), (record, 1), o * LANES))
                for f in range(across):
                    code.put(code.fma(factor, values[f], code.get(sums[o][f])), sums[o][f])
        for o in range(down):
            for f in range(across):
                code.store(code.get(sums[o][f]), gradient, code.at((corner, 1), (o * vectors + f) * LANES))
    with code.loop(outputs) as o:
        place = code.at((o, LANES))
        code.store(code.add(code.load(bias, place), code.load(delta, place)), bias, place)


@stage
def first_connected_gradient(code: Code, shape: CnnShape, x: Any, delta: Any, turned: Any, gradient: Any, bias: Any) -> None:
    _connected_gradient(code, shape, 0, x, delta, turned, gradient, bias)


@stage
def second_connected_gradient(code: Code, shape: CnnShape, x: Any, delta: Any, turned: Any, gradient: Any, bias: Any) -> None:
    _connected_gradient(code, shape, 1, x, delta, turned, gradient, bias)


# Loss


def _exp(code: Code, x: Any) -> Any:
    """e^x for x <= 0, to 1e-7: 2^n e^r with n = round(x / ln 2), a polynomial in r (Cephes), and n put into the exponent."""
    builder = code.builder
    lowest = code.constant(-87.0)  # e^-87 is the smallest normal number
    x = code.select(builder.fcmp_ordered("<", x, lowest), lowest, x)
    magic = code.constant(1.5 * 2**23)  # adding it leaves round(.) in the lowest bits
    shifted = code.fma(x, code.constant(1.0 / log(2.0)), magic)
    n = builder.fsub(shifted, magic)
    r = code.fma(n, code.constant(-0.693359375), x)  # ln 2 in two parts
    r = code.fma(n, code.constant(0.693359375 - log(2.0)), r)
    p = code.constant(1.9875691500e-4)
    for coefficient in (1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1, 1.0, 1.0):
        p = code.fma(p, r, code.constant(coefficient))
    bits = builder.bitcast(shifted, _INTEGERS)
    first = int(np.float32(1.5 * 2**23).view(np.int32)) - 127
    exponent = builder.sub(bits, ir.Constant(_INTEGERS, [first] * LANES))
    scale = builder.bitcast(builder.shl(exponent, ir.Constant(_INTEGERS, [23] * LANES)), _VECTOR)
    return builder.fmul(p, scale)


@stage
def loss_gradient(code: Code, shape: CnnShape, logits: Any, labels: Any, weights: Any, first: Any, out: Any) -> None:
    """out[c] = (softmax(logits)[c] - 1{label = c}) * weight, for the 16 records at `first`."""
    builder = code.builder
    values = [code.load(logits, c * LANES) for c in range(shape.classes)]
    top = values[0]
    for value in values[1:]:
        top = code.select(code.greater(value, top), value, top)
    powers = [_exp(code, builder.fsub(value, top)) for value in values]
    total = powers[0]
    for power in powers[1:]:
        total = code.add(total, power)
    weight = code.load(weights, first)
    scale = builder.fdiv(weight, total)
    label = code.load(labels, first, _INTEGERS)
    for c, power in enumerate(powers):
        hit = builder.icmp_signed("==", label, ir.Constant(_INTEGERS, [c] * LANES))
        code.store(builder.fsub(builder.fmul(power, scale), code.where(hit, weight)), out, c * LANES)


@stage
def add_lanes(code: Code, shape: CnnShape, vectors: Any, groups: Any, out: Any) -> None:
    """out[t] = the sum of the 16 lanes of vector t, for 16 * groups vectors."""
    with cgutils.for_range(code.builder, groups) as loop:
        rows = _transpose(code, [code.load(vectors, code.at((loop.index, LANES * LANES), t * LANES)) for t in range(LANES)])
        while len(rows) > 1:
            rows = [code.add(a, b) for a, b in zip(rows[0::2], rows[1::2], strict=True)]
        code.store(rows[0], out, code.at((loop.index, LANES)))


@stage
def turn_images(code: Code, shape: CnnShape, pool: Any, rows: Any, x: Any, x_start: Any) -> None:
    """x[pixel, lane] from 16 images: `rows` [16] are their places in the pool."""
    pixels = shape.height * shape.width
    starts = [code.builder.mul(code.load(rows, lane, _INT), code.number(pixels)) for lane in range(LANES)]
    with code.loop(pixels // LANES) as part:
        block = _transpose(code, [code.load(pool, code.at((start, 1), (part, LANES))) for start in starts])
        for pixel, row in enumerate(block):
            code.store(row, x, code.at((x_start, 1), (part, LANES * LANES), pixel * LANES))
    for pixel in range(pixels // LANES * LANES, pixels):
        for lane, start in enumerate(starts):
            value = code.builder.load(code.builder.gep(pool, [code.at((start, 1), pixel)]))
            code.builder.store(value, code.builder.gep(x, [code.at((x_start, 1), pixel * LANES + lane)]))


def _program(key: str) -> Any:
    """The loop over jobs, steps and blocks of records for one shape, compiled."""
    shape = _shape(key)
    d, classes = shape.dimension, shape.classes
    pixels = shape.height * shape.width
    convolved = _vectors(shape.layers[1].bias.stop)  # vectors of the convolutions' parameters: the first in the flat vector
    hidden = shape.hidden is not None
    outputs1, inputs1 = shape.layers[2].weight_shape
    outputs2, inputs2 = shape.layers[-1].weight_shape
    weight1, bias1 = shape.layers[2].weight.start, shape.layers[2].bias.start
    weight2, bias2 = shape.layers[-1].weight.start, shape.layers[-1].bias.start
    stride1, stride2 = _vectors(inputs1) * LANES, _vectors(inputs2) * LANES
    groups1, groups2 = _vectors(outputs1), _vectors(outputs2)
    lanes, kept_blocks, descent, evaluation = LANES, KEPT_BLOCKS, DESCENT, EVALUATION

    def compute(  # type: ignore[no-untyped-def]
        pool, labels, indices, begins, counts, rows, starts, rates, start, drift, has_drift, out, first, last, steps, mode,
        x, p1, m1, d1, p2, m2, d2, h, dh, z, dz, turned, lane_gradient, g1, b1, g2, b2, v, gradient,
        block_labels, block_weights, records,
    ):  # fmt: skip
        for job in range(first, last):
            count = counts[job]
            begin = begins[job]
            blocks = (count + lanes - 1) // lanes
            weight = np.float32(1.0) / np.float32(max(count, 1))
            loss, hits = 0.0, 0.0
            source = start[starts[job]]
            for t in range(d):
                v[t] = source[t]
            for step in range(steps):
                lane_gradient[:] = 0.0
                g1[:] = 0.0
                b1[:] = 0.0
                g2[:] = 0.0
                b2[:] = 0.0
                for block in range(blocks):
                    slot = block % kept_blocks
                    x_start = slot * pixels * lanes
                    label_start = slot * lanes
                    if step == 0 or blocks > kept_blocks:
                        for lane in range(lanes):
                            there = block * lanes + lane < count
                            records[lane] = indices[begin + (block * lanes + lane if there else 0)]
                            block_labels[label_start + lane] = labels[records[lane]]
                            block_weights[label_start + lane] = weight if there else np.float32(0.0)
                        turn_images(key, pool, records, x, x_start)
                    first_convolution(key, x, x_start, v, p1, m1)
                    second_convolution(key, p1, v, p2, m2)
                    if hidden:
                        first_connected(key, p2, v, h)
                        second_connected(key, h, v, z)
                    else:
                        first_connected(key, p2, v, z)
                    if mode == evaluation:
                        for lane in range(min(lanes, count - block * lanes)):
                            best = 0
                            for c in range(1, classes):
                                if z[c * lanes + lane] > z[best * lanes + lane]:
                                    best = c
                            total = 0.0
                            for c in range(classes):
                                total += np.exp(np.float64(z[c * lanes + lane]) - np.float64(z[best * lanes + lane]))
                            label = block_labels[label_start + lane]
                            loss += np.log(total) + np.float64(z[best * lanes + lane]) - np.float64(z[label * lanes + lane])
                            hits += 1.0 if best == label else 0.0
                        continue
                    loss_gradient(key, z, block_labels, block_weights, label_start, dz)
                    if hidden:
                        second_connected_gradient(key, h, dz, turned, g2, b2)
                        second_connected_back(key, h, v, dz, dh)
                        first_connected_gradient(key, p2, dh, turned, g1, b1)
                        first_connected_back(key, p2, v, dh, d2)
                    else:
                        first_connected_gradient(key, p2, dz, turned, g2, b2)
                        first_connected_back(key, p2, v, dz, d2)
                    second_kernel_gradient(key, p1, d2, m2, lane_gradient)
                    d1[:] = 0.0
                    second_input_gradient(key, v, d2, m2, d1)
                    first_kernel_gradient(key, x, x_start, d1, m1, lane_gradient)
                add_lanes(key, lane_gradient, convolved, gradient)
                if hidden:
                    for o in range(outputs1):
                        for f in range(inputs1):
                            gradient[weight1 + o * inputs1 + f] = g1[o * stride1 + f]
                    add_lanes(key, b1, groups1, h)
                    for o in range(outputs1):
                        gradient[bias1 + o] = h[o]
                for o in range(outputs2):
                    for f in range(inputs2):
                        gradient[weight2 + o * inputs2 + f] = g2[o * stride2 + f]
                add_lanes(key, b2, groups2, z)
                for o in range(outputs2):
                    gradient[bias2 + o] = z[o]
                if mode == descent:
                    rate = rates[job]
                    if has_drift:
                        shift = drift[rows[job]]
                        for t in range(d):
                            v[t] -= rate * (gradient[t] + shift[t])
                    else:
                        for t in range(d):
                            v[t] -= rate * gradient[t]
            target = out[rows[job]]
            if mode == evaluation:
                target[0] = loss
                target[1] = hits
            elif mode == descent:
                for t in range(d):
                    target[t] = v[t] - source[t]
            else:
                for t in range(d):
                    target[t] = gradient[t]

    return built(compute, "the CNN kernel of this network", 5, [_signature()], fastmath={"contract"})


def _signature() -> tuple[Any, ...]:
    floats, integers, masks = types.float32[::1], types.int64[::1], types.int16[::1]
    table = types.float32[:, ::1]
    jobs = (types.float32[:, :, ::1], *[integers] * 6, floats, table, table, types.boolean, table, *[types.int64] * 4)
    scratch = (floats, floats, masks, floats, floats, masks, *[floats] * 13, types.int32[::1], floats, integers)
    return (*jobs, *scratch)


def _aligned(size: int, dtype: Any) -> np.ndarray:
    """An uninitialised array that starts on a cache line, so that no vector lies across two."""
    length = size * np.dtype(dtype).itemsize
    raw = np.empty(length + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + length].view(dtype)


def _workspace(shape: CnnShape) -> list[np.ndarray]:
    """What one thread needs, in the order of `compute`'s arguments."""
    first = shape.channels[0] * shape.first[0] * shape.first[1]
    hidden, classes = shape.hidden or 1, shape.classes
    outputs1, inputs1 = shape.layers[2].weight_shape
    outputs2, inputs2 = shape.layers[-1].weight_shape
    convolved = _vectors(shape.layers[1].bias.stop) * LANES
    sizes = {
        "x": KEPT_BLOCKS * shape.height * shape.width * LANES,
        "p1": first * LANES,
        "m1": first * MASKS,
        "d1": first * LANES,
        "p2": shape.features * LANES,
        "m2": shape.features * MASKS,
        "d2": shape.features * LANES,
        "h": hidden * LANES,
        "dh": hidden * LANES,
        "z": classes * LANES,
        "dz": classes * LANES,
        "turned": max(_vectors(inputs1), _vectors(inputs2)) * LANES * LANES,
        "lane_gradient": convolved * LANES,
        "g1": outputs1 * _vectors(inputs1) * LANES,
        "b1": _vectors(outputs1) * LANES * LANES,
        "g2": outputs2 * _vectors(inputs2) * LANES,
        "b2": _vectors(outputs2) * LANES * LANES,
        "v": shape.dimension,
        "gradient": max(shape.dimension, convolved),
    }
    arrays = [_aligned(size, np.int16 if name in ("m1", "m2") else np.float32) for name, size in sizes.items()]
    blocks = KEPT_BLOCKS * LANES
    return [*arrays, _aligned(blocks, np.int32), _aligned(blocks, np.float32), _aligned(LANES, np.int64)]


@dataclass(frozen=True)
class Jobs:
    """Clients to compute, J of them, that share a pool of records and a list of indices into it.

    Attributes:
      images: [N, height, width] float32.
      labels: [N] int64.
      indices: [K] int64 places in the pool; job j has those from begins[j] on, counts[j] of them.
      begins, counts: [J] int64.
      rows: [J] int64 row of the output, and of the drift.
      starts: [J] int64 row of the parameters to start from.
      rates: [J] float32 learning rates.
    """

    images: np.ndarray
    labels: np.ndarray
    indices: np.ndarray
    begins: np.ndarray
    counts: np.ndarray
    rows: np.ndarray
    starts: np.ndarray
    rates: np.ndarray


class CnnKernel:
    """The compiled program of one shape. Building it takes seconds the first time on a machine, later it is read from disk.

    Raises:
      Exception: of any kind, where numba cannot compile; there is no list of what can go wrong in a compiler.
    """

    def __init__(self, shape: CnnShape) -> None:
        self.shape = shape
        self._program = _program(_key(shape))
        self._spare: list[list[np.ndarray]] = []

    def compute(
        self,
        jobs: list[Jobs],
        mode: int,
        start: np.ndarray,
        out: np.ndarray,
        threads: int,
        steps: int = 1,
        drift: np.ndarray | None = None,
    ) -> None:
        """Computes all jobs on `threads` threads; the numbers do not depend on how many there are.

        Args:
          mode: DESCENT: out[row] = v - start after `steps` steps v <- v - rate * (gradient + drift[row]);
            GRADIENT: out[row] = gradient of the mean loss; EVALUATION: out[row] = (sum of losses, number of right answers).
          start: [rows, d] float32.
          out: [rows, d], or [rows, 2] for an evaluation, float32.
          drift: [rows of out, d] float32, or None.
        """
        shift = np.zeros((1, 1), np.float32) if drift is None else drift
        tasks: list[tuple[Any, ...]] = []
        total = sum(int(group.counts.sum()) for group in jobs)
        for group in jobs:
            arrays = [getattr(group, field.name) for field in fields(group)]
            load = np.cumsum(group.counts) // max(1, total // (32 * threads))  # small parts, so that no thread waits long
            cuts = [0, *(np.flatnonzero(np.diff(load)) + 1).tolist(), len(load)]
            for first, last in pairwise(cuts):
                tasks.append((*arrays, start, shift, drift is not None, out, first, last, steps, mode))
        remaining = iter(tasks)
        lock = threading.Lock()

        def work() -> None:
            with lock:
                workspace = self._spare.pop() if self._spare else _workspace(self.shape)
            try:
                while True:
                    with lock:
                        task = next(remaining, None)
                    if task is None:
                        break
                    self._program(*task, *workspace)
            finally:
                with lock:
                    self._spare.append(workspace)

        if threads == 1:
            work()
            return
        with ThreadPoolExecutor(threads) as pool:
            workers = [pool.submit(work) for _ in range(min(threads, len(tasks)))]
            try:
                for worker in workers:
                    worker.result()
            finally:
                with lock:
                    remaining = iter(())  # an interrupt ends the other threads after their part
