"""NIfTI-1 volumes in one file (.nii, or compressed .nii.gz): a strict reader of what 3-D images
need.

Source: Cox et al. 2004, the header nifti1.h (348 bytes): sizeof_hdr at byte 0, dim[8] int16 at 40,
  datatype int16 at 70, bitpix
int16 at 72, vox_offset float32 at 108, scl_slope and scl_inter float32 at 112 and 116, magic at
344. Byte order: that in which sizeof_hdr is 348. Stored values v mean scl_slope v + scl_inter, or v
  itself where the slope is 0. The first axis varies
fastest.
"""

from __future__ import annotations

import struct
from math import isfinite, prod
from pathlib import Path

import numpy as np

from dpfl_cli.config.errors import DataError
from dpfl_cli.data.sources import read_uncompressed

HEADER = 348  # bytes
TYPES = {  # datatype code: numpy's type
    2: "u1",
    4: "i2",
    8: "i4",
    16: "f4",
    64: "f8",
    256: "i1",
    512: "u2",
    768: "u4",
}


def read_nifti(path: Path) -> np.ndarray:
    """The volume [x, y, z] as float32; axes of length 1 after the third are dropped.

    Raises:
      DataError: names the file and what is wrong with it.
    """
    content = read_uncompressed(path)
    if len(content) < HEADER:
        raise DataError(
            f"{path}: truncated: {len(content)} bytes, less than a NIfTI-1 header of {HEADER}"
        )
    order = next(
        (mark for mark in "<>" if struct.unpack_from(f"{mark}i", content)[0] == HEADER), None
    )
    magic = content[344:348]
    if order is None or magic not in (b"n+1\0", b"ni1\0"):
        raise DataError(
            f"{path}: not NIfTI-1: its header does not begin with {HEADER} and end in n+1"
        )
    if magic == b"ni1\0":
        raise DataError(
            f"{path}: a NIfTI-1 header without its image (.hdr/.img); convert the pair to one "
            ".nii file"
        )
    dim = struct.unpack_from(f"{order}8h", content, 40)
    shape = dim[1 : 1 + dim[0]] if 3 <= dim[0] <= 7 else ()
    if len(shape) < 3 or min(shape) < 1 or prod(shape[3:]) != 1:
        raise DataError(f"{path}: dim {list(dim)} is not of one 3-D volume")
    code, bits = struct.unpack_from(f"{order}2h", content, 70)
    if code not in TYPES:
        raise DataError(
            f"{path}: datatype {code} is none of those read here ({', '.join(map(str, TYPES))})"
        )
    kind = np.dtype(order + TYPES[code])
    if bits != 8 * kind.itemsize:
        raise DataError(
            f"{path}: bitpix {bits} does not fit datatype {code}, of {8 * kind.itemsize} bits"
        )
    offset, slope, inter = struct.unpack_from(f"{order}3f", content, 108)
    if not isfinite(offset) or offset != int(offset) or offset < HEADER:
        raise DataError(
            f"{path}: vox_offset {offset:g} lies inside the header of {HEADER} bytes, or is not a "
            "whole number"
        )
    needed = int(offset) + prod(shape) * kind.itemsize
    if len(content) < needed:
        raise DataError(
            f"{path}: truncated: {len(content)} bytes, and {list(shape[:3])} voxels need {needed}"
        )
    values = np.frombuffer(content, kind, prod(shape), int(offset)).reshape(shape[:3], order="F")
    scaled = slope != 0 and isfinite(slope)
    if scaled and not isfinite(inter):
        raise DataError(f"{path}: scl_inter {inter} is not a number")
    volume = (values.astype(np.float64) * slope + inter if scaled else values).astype(np.float32)
    if not np.isfinite(volume).all():
        raise DataError(f"{path}: holds voxels that are not finite numbers")
    return np.ascontiguousarray(volume)
