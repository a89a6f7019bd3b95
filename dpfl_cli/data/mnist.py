"""Published images with labels of ten classes: MNIST and Fashion-MNIST in four idx files, CIFAR-10
in its binary version, six files of records, each a label in one byte and 3072 bytes of pixels.

CIFAR-10's source: https://www.cs.toronto.edu/~kriz/cifar.html ("Binary version"): 1024 bytes of
red, then green, then blue, row by row.
"""

from __future__ import annotations

from functools import lru_cache, partialmethod
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field, model_validator

from dpfl_cli.config.component import component, lookup
from dpfl_cli.config.errors import ConfigError, DataError
from dpfl_cli.data.federation import Dataset, DatasetInfo, Records
from dpfl_cli.data.idx import SIDE, Part, idx_file, idx_images, idx_labels
from dpfl_cli.data.loading import UsedSettings, ranks, used
from dpfl_cli.data.sources import content_sha256, digest, locate, read_uncompressed
from dpfl_cli.data.streams import stream_generator

CLASSES = 10
RECORD = 1 + 3 * 32 * 32  # bytes, of CIFAR-10
PARTS: dict[Part, str] = {"train": "train_records", "test": "test_records"}


class ImageSettings(UsedSettings):
    """Which records are used (of a subset, None is all; tests are the first ones), whether models
    are tested on the last `held_out` training records, which no client then has, in place of the
    test file, and the scale of the pixels.
    """

    standardise: bool = False
    subset: Literal["first", "random", "stratified"] = "first"
    subset_seed: int = Field(default=0, ge=0)
    held_out: int = Field(default=0, ge=0)
    pixels: Literal["unit", "raw"] = "unit"

    @model_validator(mode="after")
    def _one_scale(self) -> ImageSettings:
        if self.standardise and self.pixels == "raw":
            raise ValueError("pixels=raw are not standardised: drop one of the two")
        return self


class Images:
    """Images [N, *shape] float32 and labels [N] int64 in 0..9.

    Pixels are in [0, 1], (x - mean) / std of that where standardised, or 0 to 255 where raw. A
    subset of the training records is the first ones of the file, random ones, or random ones with
    equal shares of the classes (to one record); it is drawn from its own seed, the same in all
    runs. Mean and std are the usual published constants of the training images' channels.
    """

    name: ClassVar[str]
    shape: ClassVar[tuple[int, ...]] = (SIDE, SIDE)
    mean: ClassVar[tuple[float, ...]]
    std: ClassVar[tuple[float, ...]]
    scale: ClassVar[str] = "pixel mean and std"  # what standardising takes from the data

    @classmethod
    def size(cls, part: Part) -> int:
        """Number of records, from the size of the verified files alone."""
        return digest(idx_file(cls.name, part, "labels")).size - 8

    @classmethod
    def sizes(cls, settings: ImageSettings) -> dict[Part, int]:
        """Number of records to train and to test with, whatever is used of them."""
        train, held = cls.size("train"), settings.held_out
        if held >= train:
            raise ConfigError(
                f"dataset.held_out={held}: {cls.name} has {train} training records; write less"
            )
        return {"train": train - held, "test": held or cls.size("test")}

    @classmethod
    def read(cls, part: Part) -> tuple[np.ndarray, np.ndarray]:
        """Images [N, *shape] uint8 and labels [N] int64; a DataError names a file that does not
        hold such.
        """
        labels = idx_labels(cls.name, part, CLASSES)
        return idx_images(cls.name, part, len(labels)), labels

    @classmethod
    def not_covered(cls, settings: ImageSettings) -> list[str]:
        """Constants taken from the data, which no epsilon covers."""
        taken = f"{cls.scale} of the training images (standardising)"
        return [taken] if settings.standardise else []

    @classmethod
    def info(cls, settings: ImageSettings) -> DatasetInfo:
        """Finds and verifies the files; the checksum covers all of them, whatever part of them is
        used.
        """
        sha256 = content_sha256(locate(cls.name))
        records, _ = (
            used(cls.name, PARTS[part], getattr(settings, PARTS[part]), there)
            for part, there in cls.sizes(settings).items()
        )
        return DatasetInfo(cls.name, "real", sha256, cls.shape, CLASSES, records, clients=None)

    @classmethod
    def load(cls, settings: ImageSettings, seed: int, width: int | None = None) -> Dataset:
        """The records; they do not depend on the seed. Of so many columns of the images."""
        info = cls.info(settings)
        return Dataset(info, *_records(cls.name, info.sha256, settings, width))

    outline = partialmethod(load, width=0)


@component("dataset", "mnist", revision=1, settings=ImageSettings)
class Mnist(Images):
    """MNIST: handwritten digits, 28x28 (LeCun et al. 1998)."""

    name = "mnist"
    mean, std = (0.1307,), (0.3081,)


@component("dataset", "fashion_mnist", revision=1, settings=ImageSettings)
class FashionMnist(Images):
    """Fashion-MNIST: pictures of clothes in the format of MNIST (Xiao et al. 2017)."""

    name = "fashion_mnist"
    mean, std = (0.2860,), (0.3530,)


@component("dataset", "cifar10", revision=1, settings=ImageSettings)
class Cifar10(Images):
    """CIFAR-10: photographs of ten kinds of things, 32x32 in colour (Krizhevsky 2009)."""

    name = "cifar10"
    shape = (3, 32, 32)
    mean, std = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
    scale = "channel means and stds"

    @classmethod
    def size(cls, part: Part) -> int:
        return sum(digest(path).size // RECORD for path in _batches(part))

    @classmethod
    def read(cls, part: Part) -> tuple[np.ndarray, np.ndarray]:
        images, labels = zip(*map(read_batch, _batches(part)), strict=True)
        return np.concatenate(images), np.concatenate(labels)


def _batches(part: Part) -> list[Path]:
    *train, test = locate("cifar10").values()
    return train if part == "train" else [test]


def read_batch(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Images [N, 3, 32, 32] uint8 and labels [N] int64 of a file of CIFAR-10, plain or compressed.

    Raises:
      DataError: names the file and says what is wrong: not whole records, a label beyond 9.
    """
    content = read_uncompressed(path)
    whole = content[: len(content) // RECORD * RECORD]
    records = np.frombuffer(whole, np.uint8).reshape(-1, RECORD)
    labels = records[:, 0].astype(np.int64)
    if whole != content or not len(labels) or labels.max() >= CLASSES:
        raise DataError(
            f"{path}: not CIFAR-10's binary version: {len(content)} bytes in records of {RECORD}, "
            f"labels 0..{CLASSES - 1}"
        )
    return records[:, 1:].reshape(-1, *Cifar10.shape), labels


@lru_cache(maxsize=2)
def _records(
    name: str, sha256: str, settings: ImageSettings, width: int | None
) -> tuple[Records, Records]:
    """Training and test records; kept by content, which is why the checksum is an argument."""

    data = lookup("dataset", name).target

    def made(part: Part) -> Records:
        images, labels = data.read("train" if settings.held_out else part)
        if settings.held_out:
            left = len(labels) - settings.held_out
            own = slice(left) if part == "train" else slice(left, None)
            images, labels = images[own], labels[own]
        wanted: int | None = getattr(settings, PARTS[part])
        chosen: slice | np.ndarray = slice(wanted)
        if part == "train" and settings.subset != "first" and wanted is not None:
            chosen = _subset(labels, wanted, settings)
        features = images[chosen][..., :width].astype(np.float32)
        if settings.pixels == "unit":
            features /= 255.0
        if settings.standardise:
            features -= np.array(data.mean, np.float32)[:, None, None]
            features /= np.array(data.std, np.float32)[:, None, None]
        return Records(features, labels[chosen])

    return made("train"), made("test")


def _subset(labels: np.ndarray, size: int, settings: ImageSettings) -> np.ndarray:
    """[size] numbers of the records of a random subset, ascending; stratified: classes as equal as
    they can be.
    """
    order = stream_generator(settings.subset_seed, "subset").permutation(len(labels))
    if settings.subset == "stratified":
        order = order[np.argsort(ranks(labels[order]), kind="stable")]
    return np.sort(order[:size])
