"""MNIST and the data sets published in its format: grey images and labels in four idx files."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field, model_validator

from dpfl_cli.config.component import Settings, component
from dpfl_cli.config.errors import ConfigError, DataError
from dpfl_cli.data.federation import Dataset, DatasetInfo, Records
from dpfl_cli.data.idx import read_idx, read_shape
from dpfl_cli.data.sources import content_sha256, locate
from dpfl_cli.data.streams import stream_generator

CLASSES = 10
TRAIN = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte")
TEST = ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")


class IdxImagesSettings(Settings):
    """Which records are used (None: all; tests are the first ones of the file), and the scale of the pixels."""

    later: ClassVar[frozenset[str]] = frozenset({"subset", "subset_seed", "pixels"})
    train_records: int | None = Field(default=None, ge=1)
    test_records: int | None = Field(default=None, ge=1)
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

    Pixels are in [0, 1], (x - mean) / std of that where standardised, or 0 to 255 where raw. A subset of the training records is
    the first ones of the file, random ones, or random ones with equal shares of the classes (to one record); it is drawn from its
    own seed, the same in all runs. Mean and std are the usual published constants of the training images.
    """

    name: ClassVar[str]
    mean: ClassVar[float]
    std: ClassVar[float]

    @staticmethod
    def not_covered(settings: IdxImagesSettings) -> list[str]:
        """Constants taken from the data, which no epsilon covers."""
        return ["pixel mean and std of the training images (standardising)"] if settings.standardise else []

    @classmethod
    def info(cls, settings: IdxImagesSettings) -> DatasetInfo:
        """Finds and verifies the files; the checksum covers all four, whatever part of them is used."""
        files = locate(cls.name)
        shape = read_shape(files[TRAIN[0]])
        held = {"train_records": shape[0], "test_records": read_shape(files[TEST[0]])[0]}
        for field, records in held.items():
            wanted = getattr(settings, field)
            if wanted is not None and wanted > records:
                raise ConfigError(
                    f"dataset.{field}={wanted}: {cls.name} has {records} of them; write at most that, or null for all"
                )
        return DatasetInfo(
            name=cls.name,
            source="real",
            sha256=content_sha256(files),
            feature_shape=shape[1:],
            classes=CLASSES,
            records=settings.train_records or shape[0],
            clients=None,
        )

    @classmethod
    def load(cls, settings: IdxImagesSettings, seed: int) -> Dataset:
        """The records; they do not depend on the seed."""
        files = locate(cls.name)
        scale = (cls.mean, cls.std) if settings.standardise else (0.0, 1.0)
        unit = 255.0 if settings.pixels == "unit" else 1.0
        chosen = (settings.subset, settings.subset_seed) if settings.train_records is not None else ("first", 0)
        sizes = settings.train_records, settings.test_records
        train, test = _records(cls.name, content_sha256(files), *sizes, *scale, unit, *chosen)
        return Dataset(cls.info(settings), train, test)


@lru_cache(maxsize=2)
def _records(
    name: str,
    sha256: str,
    first: int | None,
    first_test: int | None,
    mean: float,
    std: float,
    unit: float,
    subset: str,
    seed: int,
) -> tuple[Records, Records]:
    """Training and test records; kept by content, which is why the checksum is an argument."""
    files = locate(name)
    chosen = None
    if subset != "first" and first is not None:
        chosen = _subset(read_idx(files[TRAIN[1]]), first, subset == "stratified", seed)
    train = _read(files[TRAIN[0]], files[TRAIN[1]], first, mean, std, unit, chosen)
    return train, _read(files[TEST[0]], files[TEST[1]], first_test, mean, std, unit)


def _subset(labels: np.ndarray, size: int, stratified: bool, seed: int) -> np.ndarray:
    """[size] numbers of the records of a random subset, ascending; stratified: classes as equal as they can be."""
    order = stream_generator(seed, "subset").permutation(len(labels))
    if stratified:
        places = np.empty(len(labels), np.int64)  # how many of its class come before a record
        for label in range(CLASSES):
            own = order[labels[order] == label]
            places[own] = np.arange(len(own))
        order = order[np.argsort(places[order], kind="stable")]
    return np.sort(order[:size])


def _read(
    images_path: Path,
    labels_path: Path,
    first: int | None,
    mean: float,
    std: float,
    unit: float = 255.0,
    chosen: np.ndarray | None = None,
) -> Records:
    """The chosen records of a pair of files, else the first ones (None: all), pixels over `unit`, shifted and scaled."""
    images, labels = read_idx(images_path), read_idx(labels_path)
    if images.ndim != 3 or labels.shape != images.shape[:1] or int(labels.max(initial=0)) >= CLASSES:
        raise DataError(f"{images_path} {images.shape} and {labels_path} {labels.shape}: not images and their labels 0..9")
    taken = slice(first) if chosen is None else chosen
    features = images[taken].astype(np.float32)
    features /= unit
    if (mean, std) != (0.0, 1.0):
        features -= mean
        features /= std
    return Records(features, labels[taken].astype(np.int64))


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
