"""Small files of every format, written from the formats' descriptions, and catalogue entries."""

from __future__ import annotations

import gzip
import hashlib
import struct
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dpfl_cli.data import fetching
from dpfl_cli.data.federation import Dataset
from dpfl_cli.data.sources import CATALOGUE, DatasetEntry, Source, SourceFile

TRAIN_IMAGES, TRAIN_LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"
TEST_IMAGES, TEST_LABELS = "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"
CODES = {"u1": 0x08, "i1": 0x09, "i2": 0x0B, "i4": 0x0C, "f4": 0x0D, "f8": 0x0E}


def looked_at(data: Dataset) -> Dataset:
    """The data set, every record of which has been made."""
    for records in (data.train, data.test):
        assert records is None or len(records.features) == len(records.targets)
    return data


def idx_bytes(values: np.ndarray) -> bytes:
    """The array as an idx file, written from the format's description."""
    kind = values.dtype.str[1:]
    header = bytes([0, 0, CODES[kind], values.ndim]) + struct.pack(
        f">{values.ndim}I", *values.shape
    )
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
    files: Mapping[str, bytes],
    name: str = "mnist",
    sources: Sequence[Source] = (),
    folder: str | None = None,
) -> DatasetEntry:
    """A catalogue entry that publishes these files."""
    listed = tuple(
        SourceFile(key, len(data), hashlib.md5(data).hexdigest()) for key, data in files.items()
    )
    return DatasetEntry(
        name, "test images", "CC0", "nobody", listed, tuple(sources), folder or name
    )


def put(folder: Path, files: Mapping[str, bytes]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        (folder / name).write_bytes(data)


def give_package(monkeypatch: pytest.MonkeyPatch, members: Mapping[str, bytes]) -> None:
    """Lets the clients of all registries find a package with these members."""

    def packed(source: object, work: Path) -> Path:
        with zipfile.ZipFile(work / "package.zip", "w") as package:
            for name, content in members.items():
                package.writestr(name, content)
        return work / "package.zip"

    monkeypatch.setattr(fetching, "_packed", packed)


FIRST = {"w1": 30, "w2": 10, "w3": 25}


SECOND = {"w4": 40, "w5": 20}


def writer_image(writer: str, place: int) -> list[float]:
    """An image that says whose it is: its first pixel is the writer's number / 10, the next the
    place / 100.
    """
    return [int(writer[1:]) / 10, place / 100] + [0.5] * 782


def femnist_file(writers: dict[str, int], start: int = 0) -> dict:
    return {
        "users": list(writers),
        "num_samples": list(writers.values()),
        "hierarchies": [],
        "user_data": {
            name: {
                "x": [writer_image(name, start + k) for k in range(count)],
                "y": [k % 62 for k in range(count)],
            }
            for name, count in writers.items()
        },
    }


def comment(words: str) -> tuple[list[list[str]], dict]:
    """x and y as LEAF's preprocess.py makes them."""
    tokens, targets = ["<BOS>", *words.split(), "<EOS>"], [*words.split(), "<EOS>", "<PAD>"]
    counts, missing = [1.0] * len(tokens), -len(tokens) % 10
    rows = [
        [*tokens, *["<PAD>"] * missing],
        [*targets, *["<PAD>"] * missing],
        [*counts, *[0.0] * missing],
    ]
    x, y, count = ([row[k : k + 10] for k in range(0, len(row), 10)] for row in rows)
    return x, {
        "subreddit": "r",
        "created_utc": 1,
        "score": 1,
        "target_tokens": y,
        "count_tokens": count,
    }


def reddit_file(comments: dict[str, list[str]]) -> dict:
    made = {user: [comment(words) for words in texts] for user, texts in comments.items()}
    return {
        "users": list(comments),
        "num_samples": [99] * len(comments),  # of the file before LEAF split it
        "user_data": {
            user: {"x": [x for x, _ in pairs], "y": [y for _, y in pairs]}
            for user, pairs in made.items()
        },
    }


TYPES = {2: "u1", 4: "i2", 8: "i4", 16: "f4", 64: "f8", 256: "i1", 512: "u2", 768: "u4"}
NIFTI_CODES = {np.dtype(kind): code for code, kind in TYPES.items()}


def nifti(
    volume: np.ndarray, order: str = "<", slope: float = 0.0, inter: float = 0.0, offset: int = 352
) -> bytearray:
    """A .nii file, field by field."""
    kind = volume.dtype.newbyteorder("=")
    header = bytearray(offset)
    struct.pack_into(f"{order}i", header, 0, 348)
    struct.pack_into(f"{order}8h", header, 40, 3, *volume.shape, 1, 1, 1, 1)
    struct.pack_into(f"{order}2h", header, 70, NIFTI_CODES[kind], 8 * kind.itemsize)
    struct.pack_into(f"{order}8f", header, 76, *[1.0] * 8)
    struct.pack_into(f"{order}3f", header, 108, offset, slope, inter)
    header[344:348] = b"n+1\0"
    return header + volume.astype(kind.newbyteorder(order)).tobytes(order="F")


def write(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(
        gzip.compress(bytes(content), mtime=0) if path.suffix == ".gz" else bytes(content)
    )
    return path


SUBJECTS = [f"IXI{k:03d}-{('Guys', 'HH', 'IOP')[k % 3]}-{700 + k:04d}" for k in range(2, 32)]


HEADER = "Image name,Ophthalmologic department,Retinopathy grade,Risk of macular edema "


def colour(base: str, place: int) -> tuple[int, int, int]:
    """A colour that says which image it is."""
    return 40 * int(base[0]), 10 * int(base[1]), 60 + 10 * place


def photograph(path: Path, inside: tuple[int, int, int]) -> None:
    """A square of one colour, framed in black (values up to 1)."""
    pixels = np.ones((20, 30, 3), np.uint8)
    pixels[4:16, 9:21] = inside
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)


def written(folder: Path, header: str = HEADER, department: bool = True) -> Path:
    """Four images in each of Base11, Base12, Base21 and Base31, of grades 0, 1, 2, 3; kinds of
    files mixed.
    """
    for base, ending in (("11", "tif"), ("12", "png"), ("21", "tif"), ("31", "png")):
        rows = [header]
        for place in range(4):
            name = f"im{base}_{place}.{ending}"
            photograph(folder / f"Base{base}" / name, colour(base, place))
            rows.append(f"{name},{f'Service {base[0]},' if department else ''}{place},0")
        (folder / f"Annotation_Base{base}.csv").write_text("\n".join(rows) + "\n")
    return folder


BATCHES = [file.name for file in CATALOGUE["cifar10"].files]


EACH = 3  # records of a small batch


def cifar_images(count: int = EACH * len(BATCHES), seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Random images [N, 3, 32, 32] and labels [N]."""
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (count, 3, 32, 32), dtype=np.uint8), rng.integers(
        0, 10, count, dtype=np.uint8
    )


def batch(pixels: np.ndarray, labels: np.ndarray) -> bytes:
    """A file, record by record as the format is described: label, red rows, green rows, blue
    rows.
    """
    return b"".join(
        bytes([label, *image[0].ravel(), *image[1].ravel(), *image[2].ravel()])
        for image, label in zip(pixels, labels, strict=True)
    )


def batches(seed: int = 0) -> dict[str, bytes]:
    pixels, labels = cifar_images(seed=seed)
    return {
        name: batch(pixels[k * EACH :][:EACH], labels[k * EACH :][:EACH])
        for k, name in enumerate(BATCHES)
    }
