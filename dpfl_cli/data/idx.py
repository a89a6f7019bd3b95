"""The idx format of the MNIST files: a magic number, the dimensions, and the values in row-major
order, big-endian.

Source: http://yann.lecun.com/exdb/mnist/ ("the IDX file format"): bytes 0, 0, type code, number of
dimensions, then one unsigned 32-bit size per dimension, then the values.
"""

from __future__ import annotations

import math
import struct
from pathlib import Path

import numpy as np

from dpfl_cli.config.errors import DataError
from dpfl_cli.data.sources import read_uncompressed

_TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
_MAX_HEADER = 4 + 4 * 255  # bytes


def read_idx(path: Path) -> np.ndarray:
    """The array in an idx file, plain or compressed, in its own dimensions and the machine's byte
    order.

    Raises:
      DataError: names the file and says what is wrong: not idx, truncated, too long, damaged.
    """
    content = read_uncompressed(path)
    dtype, shape, start = _header(content, path)
    expected = start + math.prod(shape) * dtype.itemsize
    if len(content) != expected:
        what = "truncated" if len(content) < expected else "not a good idx file"
        raise DataError(
            f"{path}: {what}: {len(content)} bytes where the header announces {expected}"
        )
    try:
        values = np.frombuffer(content, dtype, offset=start).reshape(shape)
    except ValueError as error:  # more dimensions than numpy has
        raise DataError(f"{path}: not a good idx file: {error}") from error
    return values.astype(dtype.newbyteorder("="))


def read_shape(path: Path) -> tuple[int, ...]:
    """The dimensions that an idx file's header announces; reads the header only."""
    return _header(read_uncompressed(path, _MAX_HEADER), path)[1]


def _header(content: bytes, path: Path) -> tuple[np.dtype, tuple[int, ...], int]:
    """Type of the values, dimensions, and the offset of the first value."""
    start = 4 + 4 * content[3] if len(content) >= 4 else 4
    if len(content) >= 4 and (content[:2] != b"\0\0" or content[2] not in _TYPES or start == 4):
        raise DataError(f"{path}: not an idx file: it begins with {content[:4].hex()}")
    if len(content) < start:
        raise DataError(
            f"{path}: truncated: {len(content)} bytes, less than its idx header of {start}"
        )
    return np.dtype(_TYPES[content[2]]), struct.unpack(f">{content[3]}I", content[4:start]), start
