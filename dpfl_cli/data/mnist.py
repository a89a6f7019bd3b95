"""MNIST and the data sets published in its format: grey images and labels in four idx files."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field, model_validator

from dpfl_cli.config.component import component
from dpfl_cli.config.errors import DataError
from dpfl_cli.data.federation import Dataset, DatasetInfo, Records
from dpfl_cli.data.idx import read_idx, read_shape
from dpfl_cli.data.loading import UsedSettings, ranks, used
from dpfl_cli.data.sources import content_sha256, locate
from dpfl_cli.data.streams import stream_generator

CLASSES = 10
SHAPE = (28, 28)
TRAIN = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte")
TEST = ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")


class IdxImagesSettings(UsedSettings):
    """Which records are used (of a subset, None is all; tests are the first ones of the file), and
    the scale of the pixels.
    """

    standardise: bool = False
    subset: Literal["first", "random", "stratified"] = "first"
    subset_seed: int = Field(default=0, ge=0)
    pixels: Literal["unit", "raw"] = "unit"

    @model_validator(mode="after")
    def _one_scale(self) -> IdxImagesSettings:
        if self.standardise and self.pixels == "raw":
            raise ValueError("pixels=raw are not standardised: drop one of the two")
        return self


class IdxImages:
    """Images [N, 28, 28] float32 and labels [N] int64 in 0..9.

    Pixels are in [0, 1], (x - mean) / std of that where standardised, or 0 to 255 where raw. A
    subset of the training records is the first ones of the file, random ones, or random ones with
    equal shares of the classes (to one record); it is drawn from its own seed, the same in all
    runs. Mean and std are the usual published constants of the training images.
    """

    name: ClassVar[str]
    mean: ClassVar[float]
    std: ClassVar[float]

    @staticmethod
    def not_covered(settings: IdxImagesSettings) -> list[str]:
        """Constants taken from the data, which no epsilon covers."""
        taken = "pixel mean and std of the training images (standardising)"
        return [taken] if settings.standardise else []

    @classmethod
    def info(cls, settings: IdxImagesSettings) -> DatasetInfo:
        """Finds and verifies the files; the checksum covers all four, whatever part of them is
        used.
        """
        files = locate(cls.name)
        train, test = (read_shape(files[images])[0] for images, _ in (TRAIN, TEST))
        records = used(cls.name, "train_records", settings.train_records, train)
        used(cls.name, "test_records", settings.test_records, test)
        return DatasetInfo(
            cls.name, "real", content_sha256(files), SHAPE, CLASSES, records, clients=None
        )

    @classmethod
    def load(cls, settings: IdxImagesSettings, seed: int) -> Dataset:
        """The records; they do not depend on the seed."""
        info = cls.info(settings)
        return Dataset(info, *_records(cls.name, cls.mean, cls.std, info.sha256, settings))


@component("dataset", "mnist", revision=1, settings=IdxImagesSettings)
class Mnist(IdxImages):
    """MNIST: handwritten digits, 28x28 (LeCun et al. 1998)."""

    name = "mnist"
    mean = 0.1307
    std = 0.3081


@component("dataset", "fashion_mnist", revision=1, settings=IdxImagesSettings)
class FashionMnist(IdxImages):
    """Fashion-MNIST: pictures of clothes in the format of MNIST (Xiao et al. 2017)."""

    name = "fashion_mnist"
    mean = 0.2860
    std = 0.3530


@lru_cache(maxsize=2)
def _records(
    name: str, mean: float, std: float, sha256: str, settings: IdxImagesSettings
) -> tuple[Records, Records]:
    """Training and test records; kept by content, which is why the checksum is an argument."""
    files = locate(name)

    def made(names: tuple[str, str], first: int | None, subset: str = "first") -> Records:
        labels = read_labels(files[names[1]], CLASSES)
        images = read_images(files[names[0]], len(labels))
        chosen: slice | np.ndarray = slice(first)
        if subset != "first" and first is not None:
            chosen = _subset(labels, first, subset == "stratified", settings.subset_seed)
        features = images[chosen].astype(np.float32)
        if settings.pixels == "unit":
            features /= 255.0
        if settings.standardise:
            features -= mean
            features /= std
        return Records(features, labels[chosen])

    train = made(TRAIN, settings.train_records, settings.subset)
    return train, made(TEST, settings.test_records)


def _subset(labels: np.ndarray, size: int, stratified: bool, seed: int) -> np.ndarray:
    """[size] numbers of the records of a random subset, ascending; stratified: classes as equal as
    they can be.
    """
    order = stream_generator(seed, "subset").permutation(len(labels))
    if stratified:
        order = order[np.argsort(ranks(labels[order]), kind="stable")]
    return np.sort(order[:size])


def read_labels(path: Path, classes: int) -> np.ndarray:
    """[N] int64 labels of a file; a DataError names one without labels 0..classes - 1."""
    labels = read_idx(path)
    good = labels.dtype == np.uint8 and labels.ndim == 1 and len(labels) and labels.max() < classes
    if not good:
        raise DataError(
            f"{path}: {labels.dtype} of shape {list(labels.shape)}, largest "
            f"{labels.max(initial=0)}: not labels 0..{classes - 1}"
        )
    return labels.astype(np.int64)


def read_images(path: Path, count: int) -> np.ndarray:
    """[N, 28, 28] uint8 images of a file; a DataError names one that does not hold so many."""
    images = read_idx(path)
    if images.dtype != np.uint8 or images.shape != (count, *SHAPE):
        raise DataError(
            f"{path}: {images.dtype} of shape {list(images.shape)}: not the images of {count} "
            "labels, 28x28"
        )
    return images
