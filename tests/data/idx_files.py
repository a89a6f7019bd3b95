"""Small idx files and catalogue entries for them."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from dpfl_cli.data.catalogue import DatasetEntry, Source, SourceFile

TRAIN_IMAGES, TRAIN_LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"
TEST_IMAGES, TEST_LABELS = "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"
CODES = {"u1": 0x08, "i1": 0x09, "i2": 0x0B, "i4": 0x0C, "f4": 0x0D, "f8": 0x0E}


def idx_bytes(values: np.ndarray) -> bytes:
    """The array as an idx file, written from the format's description."""
    kind = values.dtype.str[1:]
    header = bytes([0, 0, CODES[kind], values.ndim]) + struct.pack(f">{values.ndim}I", *values.shape)
    return header + values.astype(values.dtype.newbyteorder(">")).tobytes()


def image_arrays(train: int = 40, test: int = 12, seed: int = 0) -> dict[str, np.ndarray]:
    """Random images and labels under the names of the MNIST files."""
    rng = np.random.default_rng(seed)
    return {
        TRAIN_IMAGES: rng.integers(0, 256, (train, 28, 28), dtype=np.uint8),
        TRAIN_LABELS: rng.integers(0, 10, train, dtype=np.uint8),
        TEST_IMAGES: rng.integers(0, 256, (test, 28, 28), dtype=np.uint8),
        TEST_LABELS: rng.integers(0, 10, test, dtype=np.uint8),
    }


def image_files(train: int = 40, test: int = 12, seed: int = 0) -> dict[str, bytes]:
    return {name: idx_bytes(values) for name, values in image_arrays(train, test, seed).items()}


def entry_of(
    files: Mapping[str, bytes], name: str = "mnist", sources: Sequence[Source] = (), folder: str | None = None
) -> DatasetEntry:
    """A catalogue entry that publishes these files."""
    listed = tuple(SourceFile(key, len(data), hashlib.md5(data).hexdigest()) for key, data in files.items())
    return DatasetEntry(name, "test images", "CC0", "nobody", listed, tuple(sources), folder or name)


def put(folder: Path, files: Mapping[str, bytes]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        (folder / name).write_bytes(data)
