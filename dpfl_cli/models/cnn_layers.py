"""Layers of the compiled CNN as LLVM code, for numba.

Every value is a vector of records ("lanes"), so weights are scalars that are broadcast and no
convolution needs a copy of its input. The routines are unrolled over the positions of a pooling
window and the taps of a kernel, so that a group of sums stays in registers.

Convolution, pooling and activation are one routine. The backward pass uses that only one of a
window's four positions carries a gradient: each lane *selects* the 4x4 inputs under its winner out
of the window's 5x5 patch (36 selects and 16 products in place of 64 products), and likewise its
weights.
"""

from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]

from dpfl_cli.models.cnn_shape import KERNEL, PATCH, CnnLayer, CnnShape
from dpfl_cli.models.vector_code import WIDE, Code, Index, Sum, written

# Float32 numbers in a vector, vectors of sums that stay in registers, or a few more, and rows of a
# patch whose sums do.
LANES, SUMS, ROWS = (16, 16, 5) if WIDE else (8, 8, 1)
TAPS = KERNEL * KERNEL
# bits kept of a pooling window: won by the right column, by the lower row, passed by the activation
MASKS = 3

OFFSETS = list(product(range(2), repeat=2))  # positions of a pooling window in scan order


def _share(total: int, most: int) -> int:
    """The largest divisor of `total` up to `most`."""
    return max(n for n in range(1, most + 1) if total % n == 0)


def _rows(total: int) -> list[range]:
    """The rows whose sums stay in registers together."""
    return [range(first, min(first + ROWS, total)) for first in range(0, total, ROWS)]


def convolve(code: Code, layer: CnnLayer, x: Any, v: Any, out: Any, masks: Any) -> None:
    """out[o, i, j] = act(max_p bias_o + sum_{c, ky, kx} W[o, c, ky, kx] x[c, 2i + p_y + ky, 2j +
    p_x + kx]), and who won.
    """
    h, w = layer.size
    group = _share(layer.outputs, SUMS // len(OFFSETS))
    with code.loop(h) as i, code.loop(w) as j, code.loop(layer.outputs // group) as g:
        sums = [
            [Sum(code, code.spread(v, g * group + (layer.biases + o))) for _ in OFFSETS]
            for o in range(group)
        ]
        with code.loop(layer.inputs) as c:
            corner = c * layer.plane + i * (2 * layer.width) + j * 2
            first = g * (group * layer.inputs * TAPS) + c * TAPS + layer.start
            for ky, kx, o in product(range(KERNEL), range(KERNEL), range(group)):
                weight = code.spread(v, first + (o * layer.inputs * TAPS + ky * KERNEL + kx))
                for cell, (y, z) in zip(sums[o], OFFSETS, strict=True):
                    cell.add(weight, code.load(x, corner + ((ky + y) * layer.width + kx + z)))
        for o, row in enumerate(sums):
            upper, upper_right, lower, lower_right = (cell.get() for cell in row)
            right = code.greater(upper_right, upper), code.greater(lower_right, lower)
            upper = code.select(right[0], upper_right, upper)
            lower = code.select(right[1], lower_right, lower)
            below = code.greater(lower, upper)
            best = code.select(below, lower, upper)
            passed = code.greater(best, code.zero)
            place = g * (group * h * w) + i * w + j + o * h * w
            code.store(code.select(passed, best, code.zero) if layer.relu else best, out, place)
            for k, mask in enumerate((code.select(below, *reversed(right)), below, passed)):
                bits = code.builder.bitcast(mask, ir.IntType(code.lanes))
                code.store(bits, masks, place * MASKS + k)


def _window(
    code: Code, layer: CnnLayer, o: Index, i: Index, j: Index, delta: Any, masks: Any
) -> tuple[Any, Any, Any]:
    """A pooling window's gradient, and whether its right column and its lower row won."""
    h, w = layer.size
    place = o * (h * w) + i * w + j
    bits, kind = ir.IntType(code.lanes), ir.VectorType(ir.IntType(1), code.lanes)
    right, below, passed = (
        code.builder.bitcast(code.load(masks, place * MASKS + k, bits), kind) for k in range(MASKS)
    )
    gradient = code.load(delta, place)
    return code.select(passed, gradient, code.zero) if layer.relu else gradient, right, below


def kernel_gradient(
    code: Code, layer: CnnLayer, x: Any, delta: Any, masks: Any, gradient: Any
) -> None:
    """gradient[o, c, ky, kx] += sum_{i, j} delta[o, i, j] x[c, 2i + p_y + ky, 2j + p_x + kx] where
    p is the winner of (o, i, j).

    `gradient` keeps a vector for each parameter, by its place in the flat parameters: lanes are
    added up at the end.
    """
    h, w = layer.size
    with code.loop(layer.outputs) as o, code.loop(layer.inputs) as c:
        place = o * (layer.inputs * TAPS) + c * TAPS + layer.start
        for rows in _rows(KERNEL):
            sums = {
                (r, s): Sum(code, code.load(gradient, place + (r * KERNEL + s)))
                for r, s in product(rows, range(KERNEL))
            }
            with code.loop(h) as i, code.loop(w) as j:
                g, right, below = _window(code, layer, o, i, j, delta, masks)
                corner = c * layer.plane + i * (2 * layer.width) + j * 2
                for r in rows:
                    lower, upper = (
                        [code.load(x, corner + (k * layer.width + s)) for s in range(PATCH)]
                        for k in (r + 1, r)
                    )
                    row = [code.select(below, *pair) for pair in zip(lower, upper, strict=True)]
                    for s in range(KERNEL):
                        sums[r, s].add(g, code.select(right, row[s + 1], row[s]))
            for (r, s), cell in sums.items():
                code.store(cell.get(), gradient, place + (r * KERNEL + s))
    one = ir.Constant(code.vector, [1.0] * code.lanes)
    with code.loop(layer.outputs) as o:
        total = Sum(code, code.load(gradient, o + layer.biases))
        with code.loop(h) as i, code.loop(w) as j:
            total.add(one, _window(code, layer, o, i, j, delta, masks)[0])
        code.store(total.get(), gradient, o + layer.biases)


def input_gradient(code: Code, layer: CnnLayer, delta: Any, v: Any, masks: Any, out: Any) -> None:
    """out[c, 2i + p_y + ky, 2j + p_x + kx] += sum_o W[o, c, ky, kx] delta[o, i, j] where p is the
    winner of (o, i, j).

    Over place (r, s) of a window's patch lies W[r - p_y, s - p_x]: each lane selects its weight,
    and a place outside the kernel gets 0.
    """
    h, w = layer.size
    with code.loop(layer.inputs) as c, code.loop(h) as i, code.loop(w) as j:
        corner = c * layer.plane + i * (2 * layer.width) + j * 2
        for rows in _rows(PATCH):
            sums = {
                (r, s): Sum(code, code.load(out, corner + (r * layer.width + s)))
                for r, s in product(rows, range(PATCH))
            }
            with code.loop(layer.outputs) as o:
                g, right, below = _window(code, layer, o, i, j, delta, masks)
                first = o * (layer.inputs * TAPS) + c * TAPS + layer.start
                taps = {
                    (r, s): code.spread(v, first + (r * KERNEL + s))
                    for r, s in product(range(KERNEL), repeat=2)
                }
                for r in rows:
                    above, here = (
                        [taps.get((k, s), code.zero) for s in range(-1, PATCH)] for k in (r - 1, r)
                    )
                    row = [code.select(below, *pair) for pair in zip(above, here, strict=True)]
                    for s in range(PATCH):
                        sums[r, s].add(g, code.select(right, row[s], row[s + 1]))
            for (r, s), cell in sums.items():
                code.store(cell.get(), out, corner + (r * layer.width + s))


def _connect(
    back: bool, code: Code, layer: CnnLayer, x: Any, v: Any, before: Any, out: Any
) -> None:
    """out[o] = act(bias_o + sum_f W[o, f] x[f]); or, back, out[f] = sum_o W[o, f] x[o], where the
    ReLU before the layer put out more than 0 (before[f]).
    """
    rows, depth, apart, along = layer.outputs, layer.inputs, layer.inputs, 1
    if back:
        rows, depth, apart, along = depth, rows, along, apart
    group, cut = _share(rows, SUMS), layer.rectified if back else layer.relu
    with code.loop(rows // group) as g:
        places = [g * group + r for r in range(group)]
        sums = [Sum(code, None if back else code.spread(v, o + layer.biases)) for o in places]
        with code.loop(depth) as j:
            value, first = code.load(x, j), g * (group * apart) + j * along + layer.start
            for r, cell in enumerate(sums):
                cell.add(code.spread(v, first + r * apart), value)
        for place, cell in zip(places, sums, strict=True):
            value = cell.get()
            passed = code.greater(code.load(before, place) if back else value, code.zero)
            code.store(code.select(passed, value, code.zero) if cut else value, out, place)


ROUTINES: dict[str, Callable[..., None]] = {
    "convolve": convolve,
    "kernel_gradient": kernel_gradient,
    "input_gradient": input_gradient,
    "connect": partial(_connect, False),
    "connect_back": partial(_connect, True),
}


@partial(written, literal=True)
def compute_layer(code, key, number, routine, a, b, c, d):  # type: ignore[no-untyped-def]
    """A routine on layer `number` of the shape `key`, its `repr`, for numba code; all three are
    literals, for every layer is of a type of its own.
    """
    layer = eval(key, {"CnnShape": CnnShape}).layers[number]
    narrow = Code(code.builder, code.number, code.size * LANES)
    ROUTINES[routine](narrow, layer, *(pointer for pointer, _ in (a, b, c, d)))
