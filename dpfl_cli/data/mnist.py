"""Published images with labels of ten classes: MNIST and Fashion-MNIST in four idx files, CIFAR-10
in its binary version, six files of records, each a label in one byte and 3072 bytes of pixels.

CIFAR-10's source: https://www.cs.toronto.edu/~kriz/cifar.html ("Binary version"): 1024 bytes of
red, then green, then blue, row by row.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy import ndarray
from pydantic import NonNegativeInt, model_validator

from dpfl_cli.data.loading import (
    ConfigError,
    DataError,
    Dataset,
    DatasetInfo,
    Kept,
    Records,
    Seed,
    UsedSettings,
    component,
    content_sha256,
    digest,
    locate,
    ranks,
    read_uncompressed,
    stream_generator,
    used,
)

SIDE = 28  # pixels of the images in idx files
Part = Literal["train", "test"]
# numbers of the records that may train; the part of those that test, and their numbers
Split = tuple[ndarray, Part, ndarray]
RECORD = 1 + 3 * 32 * 32  # bytes, of CIFAR-10


def read_idx(path: Path) -> ndarray:
    """The uint8 array in an idx file, plain or compressed, in its own dimensions.

    The format (http://yann.lecun.com/exdb/mnist/, "the IDX file format"): bytes 0, 0, a type (8:
    unsigned bytes), the number of dimensions, each as 32 bits, big-endian, then the values in
    row-major order.

    Raises:
      DataError: names the file and says what is wrong.
    """
    content = read_uncompressed(path)
    try:
        shape = np.frombuffer(content, ">u4", content[3], offset=4).tolist()
        if shape and content[:3] == b"\0\0\x08":
            return np.frombuffer(content, np.uint8, offset=4 + 4 * len(shape)).reshape(shape)
    except (ValueError, IndexError):
        pass  # not as long as the header says
    raise DataError(
        f"{path}: not a whole idx file of bytes: {len(content)} bytes, header {content[:20].hex()}"
    )


def idx_file(name: str, part: Part, what: str) -> Path:
    """A file of a data set whose catalogue entry lists images and labels of each part."""
    (path,) = (
        path
        for file, path in locate(name).items()
        if what in file and ("train" in file) == (part == "train")
    )
    return path


class ImageSettings(UsedSettings):
    """Which records are used (of a subset, None is all; tests are the first ones), whether models
    are tested on the last `held_out` training records, which no client then has, in place of the
    test file, and the scale of the pixels.
    """

    standardise: bool = False
    subset: Literal["first", "random", "stratified"] = "first"
    subset_seed: Seed = 0
    held_out: NonNegativeInt = 0
    pixels: Literal["unit", "raw"] = "unit"

    @model_validator(mode="after")
    def _one_scale(self) -> ImageSettings:
        if self.standardise and self.pixels == "raw":
            raise ValueError("pixels=raw are not standardised: drop one of the two")
        return self


class Pictures(Kept):
    """Images [N, *shape] float32 and labels [N] int64 in 0..classes - 1, which do not depend on the
    run's seed.
    """

    name: str
    shape: tuple[int, ...] = (SIDE, SIDE)
    classes = 10
    standin: str  # what may stand in for the files, in words

    @classmethod
    def size(cls, part: Part) -> int:
        """Number of records, from the size of the verified files alone."""
        return digest(idx_file(cls.name, part, "labels")).size - 8

    @classmethod
    def labels(cls, part: Part) -> ndarray:
        """[N] int64; a DataError names a file without labels 0..classes - 1."""
        path = idx_file(cls.name, part, "labels")
        labels = read_idx(path)
        if labels.ndim != 1 or labels.max(initial=0) >= cls.classes:
            raise DataError(
                f"{path}: shape {list(labels.shape)}: not a row of labels 0..{cls.classes - 1}"
            )
        return labels.astype(np.int64)

    @classmethod
    def images(cls, part: Part) -> ndarray:
        """[N, *shape] uint8; a DataError names a file that does not hold one for each label."""
        path, count = idx_file(cls.name, part, "images"), len(cls.labels(part))
        images = read_idx(path)
        if images.shape != (count, *cls.shape):
            raise DataError(
                f"{path}: shape {list(images.shape)}: not the images of {count} labels, 28x28"
            )
        return images

    @classmethod
    def content(cls, settings: Any) -> Origin:
        """Finds and verifies the files."""
        return Origin(cls, content_sha256(locate(cls.name)))

    @classmethod
    def features(cls, images: ndarray, origin: Origin, settings: Any) -> ndarray:
        """[n, ...] float32 of some of the images."""
        return np.divide(images, np.float32(255), order="C", dtype=np.float32)

    @classmethod
    def feature_shape(cls, settings: Any) -> tuple[int, ...]:
        """Of a record."""
        return cls.shape

    @classmethod
    def split(cls, settings: Any, pictures: type[Pictures]) -> Split:
        """Numbers of the records that may train, those to be taken first in front; the part that
        the test records are from, and their numbers. Here all of both files.

        Raises:
          ConfigError: none are left.
        """
        return np.arange(pictures.size("train")), "test", np.arange(pictures.size("test"))

    @classmethod
    def make(cls, settings: Any, origin: Origin) -> Dataset:
        """Neither images nor labels are read unless they are looked at."""
        pictures = origin.pictures
        standin = {} if pictures is cls else {"standin": cls.standin}
        train, test_part, test = cls.split(settings, pictures)
        note, wanted = " (a stand-in)" if standin else "", settings.train_records
        used(cls.name, "train_records", wanted, len(train), note)
        held = " (dataset.held_out)" * (test_part == "train")
        used(cls.name, "test_records", settings.test_records, len(test), held + note)
        train, test = np.sort(train[:wanted]), test[: settings.test_records]
        info = DatasetInfo(
            name=cls.name,
            source="standin" if standin else "real",
            sha256=origin.sha256,
            feature_shape=cls.feature_shape(settings),
            classes=cls.classes,
            records=len(train),
            details=standin,
        )

        def records(part: Part, rows: ndarray) -> Records:
            return Records(
                lambda: cls.features(pictures.images(part)[rows], origin, settings),
                lambda: pictures.labels(part)[rows],
            )

        tests = records(test_part, test)
        return Dataset(info, records("train", train), tests, tests_held=test_part == "train")


class Origin(NamedTuple):
    """Where the records of a data set come from.

    Attributes:
      pictures: what gives images and labels: the data set itself, or what stands in for it.
      sha256: of all content.
    """

    pictures: type[Pictures]
    sha256: str


class Images(Pictures):
    """Published images of ten classes.

    Pixels are in [0, 1], (x - mean) / std of that where standardised, or 0 to 255 where raw. A
    subset of the training records is the first ones of the file, random ones, or random ones with
    equal shares of the classes (to one record); it is drawn from its own seed, the same in all
    runs. Mean and std are the usual published constants of the training images' channels.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]
    scale = "pixel mean and std"  # what standardising takes from the data

    @classmethod
    def not_covered(cls, settings: ImageSettings) -> list[str]:
        """Constants taken from the data, which no epsilon covers."""
        taken = [f"{cls.scale} of the training images (standardising)"] * settings.standardise
        return taken + ["choice of the records by their classes"] * (
            settings.subset == "stratified"
        )

    @classmethod
    def split(cls, settings: ImageSettings, pictures: type[Pictures]) -> Split:
        train, part, test = super().split(settings, pictures)
        if settings.held_out >= len(train):
            raise ConfigError(
                f"dataset.held_out={settings.held_out}: {cls.name} has {len(train)} training "
                "records; write less"
            )
        if settings.held_out:
            train, test = np.split(train, [len(train) - settings.held_out])
            part = "train"
        if settings.subset != "first":
            train = stream_generator(settings.subset_seed, "subset").permutation(train)
        if settings.subset == "stratified":  # so that the first have classes as equal as can be
            labels = pictures.labels("train")[train]
            train = train[np.argsort(ranks(labels), kind="stable")]
        return train, part, test

    @classmethod
    def features(cls, images: ndarray, origin: Origin, settings: ImageSettings) -> ndarray:
        if settings.pixels == "raw":
            return images.astype(np.float32)
        scaled = super().features(images, origin, settings)
        if settings.standardise:
            scaled -= np.array(cls.mean, np.float32)[:, None, None]
            scaled /= np.array(cls.std, np.float32)[:, None, None]
        return scaled


@component("dataset", "mnist", ImageSettings)
class Mnist(Images):
    """MNIST: handwritten digits, 28x28 (LeCun et al. 1998)."""

    mean, std = (0.1307,), (0.3081,)


@component("dataset", "fashion_mnist", ImageSettings)
class FashionMnist(Images):
    """Fashion-MNIST: pictures of clothes in the format of MNIST (Xiao et al. 2017)."""

    mean, std = (0.2860,), (0.3530,)


@component("dataset", "cifar10", ImageSettings)
class Cifar10(Images):
    """CIFAR-10: photographs of ten kinds of things, 32x32 in colour (Krizhevsky 2009)."""

    shape = (3, 32, 32)
    mean, std = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
    scale = "channel means and stds"

    @classmethod
    def size(cls, part: Part) -> int:
        return sum(digest(path).size // RECORD for path in _batches(part))

    @classmethod
    def labels(cls, part: Part) -> ndarray:
        return np.concatenate([one[:, 0].astype(np.int64) for one in _records(part)])

    @classmethod
    def images(cls, part: Part) -> ndarray:
        return np.concatenate([one[:, 1:] for one in _records(part)]).reshape(-1, *cls.shape)


def _batches(part: Part) -> list[Path]:
    *train, test = locate("cifar10").values()
    return train if part == "train" else [test]


def _records(part: Part) -> Iterator[ndarray]:
    """[n, RECORD] uint8 of each file; that these are the published ones, their checksums say."""
    for path in _batches(part):
        yield np.frombuffer(read_uncompressed(path), np.uint8).reshape(-1, RECORD)
