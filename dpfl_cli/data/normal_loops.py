"""The loop that numba compiles for `normals`: SFC64 and the ziggurat, as numpy has them."""

import math

import numpy as np
from numba import njit

_WHOLE = np.uint64
_LOW = _WHOLE(2**32 - 1)


@njit(inline="always")
def _word(state, halves):  # type: ignore[no-untyped-def]
    """The next 64 bits, or 32 of them, the lower ones first; and the state after them."""
    a, b, c, counter, half, left = state
    if halves and left:
        return half, (a, b, c, counter, half, False)
    found = a + b + counter
    a, b = b ^ (b >> _WHOLE(11)), c + (c << _WHOLE(3))
    c, counter = ((c << _WHOLE(24)) | (c >> _WHOLE(40))) + found, counter + _WHOLE(1)
    return found & _LOW if halves else found, (a, b, c, counter, found >> _WHOLE(32), True)


@njit(inline="always")
def _uniform(state, halves):  # type: ignore[no-untyped-def]
    """In [0, 1); and the state after it."""
    word, state = _word(state, halves)
    if halves:
        return (word >> _WHOLE(8)) * 2.0**-24, state
    return (word >> _WHOLE(11)) * 2.0**-53, state


def normal_of(halves):  # type: ignore[no-untyped-def]
    """The loop that draws float32 of halves of words, or float64 of whole ones."""
    fraction = np.int64(2**23 - 1 if halves else 2**52 - 1)

    def normal(  # type: ignore[no-untyped-def]
        words, widths, inside, heights, edge, inverse_edge, out
    ):
        """Fills `out` with standard normal numbers.

        Args:
          words: [4] uint64 a, b, c and the counter of a new SFC64.
          widths: [512] of each layer the width, over the whole numbers that are drawn, and then
            those to the left of zero.
          inside, heights: [256] the number below which a point is under the curve, and the curve's
            height.
          edge, inverse_edge: where the tail begins, and its inverse.
        """
        state = words[0], words[1], words[2], words[3], _WHOLE(0), False
        number, layers, signed, one = out.dtype.type, _WHOLE(255), _WHOLE(511), _WHOLE(1)
        n, many = _WHOLE(0), _WHOLE(len(out))  # without a sign: no place is counted from the end
        while n < many:
            bits, state = _word(state, halves)
            layer = bits & layers
            place = np.int64(bits >> _WHOLE(9)) & fraction  # signed: a float is made of it quickly
            x = number(place) * widths[bits & signed]
            if place >= inside[layer]:
                if layer > _WHOLE(0):
                    step, state = _uniform(state, halves)
                    step = number(step) * (heights[layer - one] - heights[layer])
                    if not step + heights[layer] < math.exp(-0.5 * np.float64(x) * np.float64(x)):
                        continue
                else:
                    while True:
                        first, state = _uniform(state, halves)
                        second, state = _uniform(state, halves)
                        x = -inverse_edge * math.log1p(-number(first))
                        y = -math.log1p(-number(second))
                        if y + y > x * x:
                            break
                    x = -(edge + x) if place & 256 else edge + x
            out[n] = x
            n += one

    return normal
