"""CIFAR-10 in its binary version: six files of records, each a label in one byte and 3072 bytes of
pixels.

Source: https://www.cs.toronto.edu/~kriz/cifar.html ("Binary version"): 1024 bytes of red, then
green, then blue, row by row.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import numpy as np

from dpfl_cli.config.component import component
from dpfl_cli.config.errors import DataError
from dpfl_cli.data.federation import Dataset, DatasetInfo, Records
from dpfl_cli.data.loading import UsedSettings, used
from dpfl_cli.data.sources import content_sha256, digest, locate, read_uncompressed

CLASSES = 10
SHAPE = (3, 32, 32)
RECORD = 1 + 3 * 32 * 32  # bytes
MEAN = (0.4914, 0.4822, 0.4465)  # of the training images' channels, as usually published
STD = (0.2470, 0.2435, 0.2616)


class Cifar10Settings(UsedSettings):
    """How many of the records are used, and the scale of the pixels."""

    standardise: bool = False


@component("dataset", "cifar10", revision=1, settings=Cifar10Settings)
class Cifar10:
    """CIFAR-10: photographs of ten kinds of things, 32x32 in colour (Krizhevsky 2009)."""

    @staticmethod
    def not_covered(settings: Cifar10Settings) -> list[str]:
        """Constants taken from the data, which no epsilon covers."""
        taken = "channel means and stds of the training images (standardising)"
        return [taken] if settings.standardise else []

    @staticmethod
    def info(settings: Cifar10Settings) -> DatasetInfo:
        """Finds and verifies the files; the checksum covers all six, whatever part of them is
        used.
        """
        files = locate("cifar10")
        *train, test = (digest(path).size // RECORD for path in files.values())
        records = used("cifar10", "train_records", settings.train_records, sum(train))
        used("cifar10", "test_records", settings.test_records, test)
        return DatasetInfo(
            "cifar10", "real", content_sha256(files), SHAPE, CLASSES, records, clients=None
        )

    @staticmethod
    def load(settings: Cifar10Settings, seed: int) -> Dataset:
        """Images [N, 3, 32, 32] float32 in [0, 1], or (x - mean) / std of each channel, and labels
        [N] int64 in 0..9.

        They do not depend on the seed.
        """
        info = Cifar10.info(settings)
        return Dataset(info, *_records(info.sha256, settings))


def read_batch(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Images [N, 3, 32, 32] uint8 and labels [N] uint8 of one file, plain or compressed.

    Raises:
      DataError: names the file and says what is wrong: truncated, not whole records, a label beyond
        9.
    """
    content = read_uncompressed(path)
    if not content or len(content) % RECORD:
        raise DataError(
            f"{path}: truncated, or not CIFAR-10's binary version: {len(content)} bytes, not "
            f"records of {RECORD}"
        )
    records = np.frombuffer(content, np.uint8).reshape(-1, RECORD)
    labels = records[:, 0]
    wrong = np.flatnonzero(labels >= CLASSES)
    if len(wrong):
        raise DataError(
            f"{path}: not CIFAR-10's binary version: record {wrong[0] + 1} has label "
            f"{labels[wrong[0]]}, beyond 9"
        )
    return records[:, 1:].reshape(-1, *SHAPE), labels


@lru_cache(maxsize=2)
def _records(sha256: str, settings: Cifar10Settings) -> tuple[Records, Records]:
    """Training and test records; kept by content, which is why the checksum is an argument."""
    *train, test = map(read_batch, locate("cifar10").values())

    def made(batches: list[tuple[np.ndarray, np.ndarray]], first: int | None) -> Records:
        images, labels = (np.concatenate(parts)[:first] for parts in zip(*batches, strict=True))
        features = np.divide(images, np.float32(255), dtype=np.float32)
        if settings.standardise:
            features -= np.array(MEAN, np.float32)[:, None, None]
            features /= np.array(STD, np.float32)[:, None, None]
        return Records(features, labels.astype(np.int64))

    return made(train, settings.train_records), made([test], settings.test_records)
