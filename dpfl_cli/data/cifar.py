"""CIFAR-10 in its binary version: six files of records, each a label in one byte and 3072 bytes of pixels.

Source: https://www.cs.toronto.edu/~kriz/cifar.html ("Binary version"): 1024 bytes of red, then green, then blue, row by row.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

import numpy as np
from pydantic import Field

from dpfl_cli.config.component import Settings, component
from dpfl_cli.config.errors import ConfigError, DataError
from dpfl_cli.data.federation import Dataset, DatasetInfo, Records
from dpfl_cli.data.sources import content_sha256, digest, locate, read_uncompressed

CLASSES = 10
SHAPE = (3, 32, 32)
RECORD = 1 + 3 * 32 * 32  # bytes
TEST = "test_batch.bin"
MEAN = (0.4914, 0.4822, 0.4465)  # of the training images' channels, as usually published; they do not depend on the settings
STD = (0.2470, 0.2435, 0.2616)


class Cifar10Settings(Settings):
    """How many of the records are used (the first ones of the files; None: all), and the scale of the pixels."""

    train_records: int | None = Field(default=None, ge=1)
    test_records: int | None = Field(default=None, ge=1)
    standardise: bool = False


@component("dataset", "cifar10", revision=1, settings=Cifar10Settings)
class Cifar10:
    """CIFAR-10: photographs of ten kinds of things, 32x32 in colour (Krizhevsky 2009)."""

    @staticmethod
    def not_covered(settings: Cifar10Settings) -> list[str]:
        """Constants taken from the data, which no epsilon covers."""
        return ["channel means and stds of the training images (standardising)"] if settings.standardise else []

    @staticmethod
    def info(settings: Cifar10Settings) -> DatasetInfo:
        """Finds and verifies the files; the checksum covers all six, whatever part of them is used."""
        files = locate("cifar10")
        sizes = {name: digest(path).size // RECORD for name, path in files.items()}
        held = {"train_records": sum(sizes.values()) - sizes[TEST], "test_records": sizes[TEST]}
        for field, records in held.items():
            wanted = getattr(settings, field)
            if wanted is not None and wanted > records:
                raise ConfigError(f"dataset.{field}={wanted}: cifar10 has {records} of them; write at most that, or null for all")
        return DatasetInfo(
            name="cifar10",
            source="real",
            sha256=content_sha256(files),
            feature_shape=SHAPE,
            classes=CLASSES,
            records=settings.train_records or held["train_records"],
            clients=None,
        )

    @staticmethod
    def load(settings: Cifar10Settings, seed: int) -> Dataset:
        """Images [N, 3, 32, 32] float32 in [0, 1], or (x - mean) / std of each channel, and labels [N] int64 in 0..9.

        They do not depend on the seed.
        """
        return Dataset(Cifar10.info(settings), *_records(content_sha256(locate("cifar10")), settings))


def read_batch(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Images [N, 3, 32, 32] uint8 and labels [N] uint8 of one file, plain or compressed.

    Raises:
      DataError: names the file and says what is wrong: truncated, not whole records, a label beyond 9.
    """
    content = read_uncompressed(path)
    if not content or len(content) % RECORD:
        raise DataError(f"{path}: truncated, or not CIFAR-10's binary version: {len(content)} bytes, not records of {RECORD}")
    records = np.frombuffer(content, np.uint8).reshape(-1, RECORD)
    labels = records[:, 0]
    wrong = np.flatnonzero(labels >= CLASSES)
    if len(wrong):
        raise DataError(f"{path}: not CIFAR-10's binary version: record {wrong[0] + 1} has label {labels[wrong[0]]}, beyond 9")
    return records[:, 1:].reshape(-1, *SHAPE), labels


@lru_cache(maxsize=2)
def _records(sha256: str, settings: Cifar10Settings) -> tuple[Records, Records]:
    """Training and test records; kept by content, which is why the checksum is an argument."""
    files = locate("cifar10")
    train = {name: path for name, path in files.items() if name != TEST}
    return _read(train, settings.train_records, settings.standardise), _read(
        {TEST: files[TEST]}, settings.test_records, settings.standardise
    )


def _read(files: Mapping[str, Path], first: int | None, standardise: bool) -> Records:
    """The first records of some files (None: all), written file by file into their final place."""
    total = sum(digest(path).size // RECORD for path in files.values()) if first is None else first
    features, targets, done = np.empty((total, *SHAPE), np.float32), np.empty(total, np.int64), 0
    for path in files.values():
        if done == total:
            break
        images, labels = read_batch(path)
        place = slice(done, min(total, done + len(labels)))
        kept = place.stop - done
        np.divide(images[:kept], np.float32(255), out=features[place])
        targets[place] = labels[:kept]
        done += kept
    if standardise:
        features -= np.array(MEAN, np.float32)[:, None, None]
        features /= np.array(STD, np.float32)[:, None, None]
    return Records(features, targets)
