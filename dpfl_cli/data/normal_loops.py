"""The loop that numba compiles for `normals`: SFC64 and the ziggurat, as numpy has them."""

from __future__ import annotations

import math

import numpy as np
from numba import njit

_WHOLE = np.uint64
_LOW = _WHOLE(2**32 - 1)


@njit(inline="always")
def _word(s, halves):  # type: ignore[no-untyped-def]
    """The next 64 bits, or 32 of them, the lower ones first."""
    if halves and s[5]:
        s[5] = 0
        return s[4]
    found = s[0] + s[1] + s[3]
    s[3] += _WHOLE(1)
    s[0] = s[1] ^ (s[1] >> _WHOLE(11))
    s[1] = s[2] + (s[2] << _WHOLE(3))
    s[2] = ((s[2] << _WHOLE(24)) | (s[2] >> _WHOLE(40))) + found
    if halves:
        s[4], s[5] = found >> _WHOLE(32), 1
        return found & _LOW
    return found


@njit(inline="always")
def _uniform(s, like):  # type: ignore[no-untyped-def]
    """In [0, 1), of the type of an array."""
    if like.itemsize == 4:
        return like.dtype.type((_word(s, True) >> _WHOLE(8)) * 2.0**-24)
    return like.dtype.type((_word(s, False) >> _WHOLE(11)) * 2.0**-53)


def normal(s, widths, inside, heights, edge, inverse_edge, out):  # type: ignore[no-untyped-def]
    """Fills `out` with standard normal numbers.

    Args:
      s: [6] uint64 a, b, c and the counter of SFC64, the half of a word that is left over, and
        whether one is.
      widths, inside, heights: [256] of each layer the width, over the whole numbers that are drawn,
        those below which a point is under the curve, and the curve's height.
      edge, inverse_edge: where the tail begins, and its inverse.
    """
    fraction, n = _WHOLE(2**23 - 1 if out.itemsize == 4 else 2**52 - 1), 0
    while n < len(out):
        bits = _word(s, out.itemsize == 4)
        layer, place = bits & _WHOLE(255), (bits >> _WHOLE(9)) & fraction
        x = out.dtype.type(place) * widths[layer]
        if bits & _WHOLE(256):
            x = -x
        if place >= inside[layer]:
            if layer > 0:
                step = (heights[layer - _WHOLE(1)] - heights[layer]) * _uniform(s, out)
                if not step + heights[layer] < math.exp(-0.5 * np.float64(x) * np.float64(x)):
                    continue
            else:
                while True:
                    x = -inverse_edge * math.log1p(-_uniform(s, out))
                    y = -math.log1p(-_uniform(s, out))
                    if y + y > x * x:
                        break
                x = -(edge + x) if place & _WHOLE(256) else edge + x
        out[n] = x
        n += 1
