"""The idx format of the MNIST files: bytes 0, 0, a type (8: unsigned bytes), the number of
dimensions, each as 32 bits, big-endian, then the values in row-major order.

Source: http://yann.lecun.com/exdb/mnist/ ("the IDX file format").
"""

from pathlib import Path
from typing import Literal

import numpy as np

from dpfl_cli.config.errors import DataError
from dpfl_cli.data.sources import locate, read_uncompressed

SIDE = 28  # pixels of the images
Part = Literal["train", "test"]


def read_idx(path: Path) -> np.ndarray:
    """The uint8 array in an idx file, plain or compressed, in its own dimensions.

    Raises:
      DataError: names the file and says what is wrong.
    """
    content = read_uncompressed(path)
    start = 4 + 4 * content[3] if content[:3] == b"\0\0\x08" and len(content) > 4 else 0
    try:
        shape = np.frombuffer(content[4:start], ">u4").tolist()
        if shape and len(content) >= start:
            return np.frombuffer(content, np.uint8)[start:].reshape(shape)
    except ValueError:
        pass  # not as long as the header says
    raise DataError(
        f"{path}: not a whole idx file of bytes: {len(content)} bytes, header "
        f"{content[:start].hex()[:40]}"
    )


def idx_file(name: str, part: Part, what: str) -> Path:
    """A file of a data set whose catalogue entry lists images and labels of each part."""
    (path,) = (
        path
        for file, path in locate(name).items()
        if what in file and ("train" in file) == (part == "train")
    )
    return path
