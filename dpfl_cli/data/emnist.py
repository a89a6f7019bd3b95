"""EMNIST's digits and balanced splits (Cohen et al. 2017, arXiv 1702.05373), and what stands in
where they are absent.

The published files are in MNIST's idx format, each image stored transposed; here it is upright.
Their checksums are not published: the catalogue verifies their sizes, the loader their structure
(type, shape, numbers of images and labels, range of the labels), and the sha256 of the content is
part of a run's identity.

Where none of a split's files is here and `standin` allows it, other data stand in, under source
"standin" and with a warning: for the digits split MNIST itself; for the balanced split 47 classes
of the same size made from MNIST and Fashion-MNIST. Damaged or incomplete files are an error;
nothing stands in for those.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import lru_cache, partialmethod
from typing import Any, ClassVar

import numpy as np
from pydantic import Field

from dpfl_cli.config.component import component
from dpfl_cli.config.errors import ConfigError, DataError
from dpfl_cli.data.characters import (
    ORIGINS,
    characters,
    origin_files,
)
from dpfl_cli.data.federation import Dataset, DatasetInfo, Records, Source
from dpfl_cli.data.idx import SIDE, Part, idx_images, idx_labels
from dpfl_cli.data.loading import UsedSettings, ranks, used
from dpfl_cli.data.mnist import Mnist
from dpfl_cli.data.sources import content_sha256, locate, status

logger = logging.getLogger("dpfl")

SHAPE = (SIDE, SIDE)
PIXELS = SIDE * SIDE
AT_ONCE = 1 << 12  # images that are worked on at once


class EmnistSettings(UsedSettings):
    """How many of the records are used, and whether other data may stand in for absent files.

    `standin` is no part of a run's identity: the data that are used are.
    """

    pca: ClassVar[None] = None
    test_fraction: ClassVar[float] = 0.0
    standin: bool = Field(default=True, exclude=True)


class EmnistBalancedSettings(UsedSettings):
    """And principal components in place of pixels (None: pixels), and a test split held out from
    the training images.

    `test_fraction`: the last so many of each class's training images are the test split, and the
      test images are not used (0: they are it). DP-FedNew's FEMNIST holds out .2 in this way:
      47 x 1920 + 47 x 480.
    """

    standin: bool = Field(default=True, exclude=True)
    pca: int | None = Field(default=None, ge=1, le=PIXELS)
    test_fraction: float = Field(default=0.0, ge=0, lt=1)


@dataclass(frozen=True)
class Origin:
    """Where a split's records come from: the published files or what stands in for them, and the
    sha256 of all content.
    """

    kind: type[Emnist]
    source: Source
    sha256: str

    def labels(self, part: Part) -> np.ndarray:
        """[N] int64 labels; a DataError names a file that is not a split's labels."""
        if self.source == "standin":
            return self.kind.standin_labels(part)
        return idx_labels(self.kind.name, part, self.kind.classes)

    def images(self, part: Part) -> np.ndarray:
        """[N, 28, 28] uint8 upright images; a DataError names a file that is not a split's
        images.
        """
        if self.source == "standin":
            return self.kind.standin_images(part)
        return idx_images(self.kind.name, part, len(self.labels(part))).swapaxes(1, 2)


class Emnist:
    """Images [N, 28, 28] float32 in [0, 1] and labels [N] int64; MNIST stands in."""

    name: ClassVar[str]
    classes: ClassVar[int]
    standins: ClassVar[tuple[str, ...]] = ("mnist",)  # data sets that what stands in is made of
    standin: ClassVar[str] = "mnist"  # what stands in, in words

    @classmethod
    def standin_labels(cls, part: Part) -> np.ndarray:
        """[N] int64 labels of what stands in."""
        return Mnist.read(part)[1]

    @classmethod
    def standin_images(cls, part: Part) -> np.ndarray:
        """[N, 28, 28] uint8 images of what stands in."""
        return Mnist.read(part)[0]

    @classmethod
    def origin(cls, settings: Any) -> Origin:
        """Finds and verifies the published files, or those of what stands in.

        Raises:
          DataError: some files are absent or damaged; or all are absent, and `standin` is false or
            its own files are absent.
        """
        found = status(cls.name)
        if found.files or found.problem is not None:
            return Origin(cls, "real", content_sha256(locate(cls.name)))
        hint = f" (to stand in for {cls.name}, which is absent)"
        try:
            if not settings.standin:
                hint = "; or write dataset.standin=true"
                locate(cls.name)
            files = origin_files(cls.standins)
        except DataError as error:
            raise DataError(f"{error}{hint}") from error
        _warn(cls.name, cls.standin)
        return Origin(cls, "standin", content_sha256(files))

    @classmethod
    def info(cls, settings: Any) -> DatasetInfo:
        """Finds and verifies the files; the checksum covers all of them, whatever part of them is
        used.
        """
        origin = cls.origin(settings)
        return DatasetInfo(
            name=cls.name,
            source=origin.source,
            sha256=origin.sha256,
            feature_shape=SHAPE if settings.pca is None else (settings.pca,),
            classes=cls.classes,
            records=len(_split(origin, settings)[0]),
            clients=None,
            details={"standin": cls.standin} if origin.source == "standin" else {},
        )

    @classmethod
    def load(cls, settings: Any, seed: int, images: bool = True) -> Dataset:
        """The records; they do not depend on the seed. With images, or of no width."""
        return Dataset(cls.info(settings), *_records(cls.origin(settings), settings, images))

    outline = partialmethod(load, images=False)


@component("dataset", "emnist_digits", revision=1, settings=EmnistSettings)
class EmnistDigits(Emnist):
    """EMNIST digits: handwritten digits, 28x28, 240,000 + 40,000 (Cohen et al. 2017); where absent,
    MNIST, labelled.
    """

    name = "emnist_digits"
    classes = 10


@component("dataset", "emnist_balanced", revision=1, settings=EmnistBalancedSettings)
class EmnistBalanced(Emnist):
    """EMNIST balanced: handwritten characters, 28x28, 47 classes (Cohen et al. 2017); where absent,
    a labelled stand-in.

    The stand-in has the same sizes, 47 x 2400 + 47 x 400, and comes from MNIST's and
    Fashion-MNIST's training and test images: the first 47 classes of `characters`. Record r is of
    class r mod 47. Of a source class, the images as they are and those in negative are others, in
    the order of the file; those with swapped halves start over.
    """

    name = "emnist_balanced"
    classes = 47
    standins = ORIGINS
    standin = (
        "mnist and fashion_mnist: as they are, in negative, and digits 0..6 with swapped halves"
    )
    per_class: ClassVar[dict[Part, int]] = {"train": 2400, "test": 400}

    @staticmethod
    def not_covered(settings: EmnistBalancedSettings) -> list[str]:
        """Constants taken from the data, which no epsilon covers."""
        taken = "principal components and mean of the training images (pca)"
        return [] if settings.pca is None else [taken]

    @classmethod
    def standin_labels(cls, part: Part) -> np.ndarray:
        return np.tile(np.arange(cls.classes, dtype=np.int64), cls.per_class[part])

    @classmethod
    def standin_images(cls, part: Part) -> np.ndarray:
        labels, each = cls.standin_labels(part), cls.per_class[part]

        def pick(source: int, here: np.ndarray, own: np.ndarray) -> np.ndarray:
            if not len(own):
                raise DataError(
                    f"{ORIGINS[source // 10]}: no {part} images of class {source % 10} to make "
                    f"{cls.name} of"
                )
            first = labels[here] // 20 * each  # of the images as they are, in negative, swapped
            return own[(first + here // cls.classes) % len(own)]

        return characters(part, labels, pick)


@lru_cache(maxsize=8)
def _warn(name: str, standin: str) -> None:
    """Once in a process."""
    logger.warning(
        "WARNING: %s is not here, and other data STAND IN for it: %s; results say source=standin "
        "(dataset.standin=false refuses)",
        name,
        standin,
    )


@lru_cache(maxsize=4)
def _split(origin: Origin, settings: Any) -> tuple[np.ndarray, Part, np.ndarray]:
    """Numbers of the records that train, the part that the test records are from, and their
    numbers.

    Raises:
      ConfigError: more records are asked for than there are, or a test fraction holds out none.
    """
    labels = origin.labels("train")
    part: Part = "test"
    train, test = np.arange(len(labels)), np.arange(len(origin.labels("test")))
    if settings.test_fraction:
        counts = np.bincount(labels)
        kept = counts - (settings.test_fraction * counts).astype(np.int64)
        held = ranks(labels) >= kept[labels]
        part, train, test = "train", train[~held], train[held]
    note = " (a stand-in)" if origin.source == "standin" else ""
    sizes = [
        used(origin.kind.name, field, getattr(settings, field), len(numbers), note)
        for field, numbers in (("train_records", train), ("test_records", test))
    ]
    if not len(test):
        raise ConfigError(
            f"dataset.test_fraction={settings.test_fraction:g}: holds out no record of any class; "
            "write more, or 0 for none"
        )
    return train[: sizes[0]], part, test[: sizes[1]]


@lru_cache(maxsize=2)
def _records(origin: Origin, settings: Any, whole: bool) -> tuple[Records, Records]:
    """Training and test records; kept by content, which is why the origin is an argument."""
    train, test_part, test = _split(origin, settings)

    def made(part: Part, rows: np.ndarray) -> Records:
        labels = origin.labels(part)[rows]
        if not whole:
            return Records(np.empty((len(rows), 0), np.float32), labels)
        images = origin.images(part)[rows]
        if settings.pca is None:
            return Records(np.divide(images, np.float32(255), order="C", dtype=np.float32), labels)
        mean, components = principal_components(origin)
        features = np.empty((len(rows), settings.pca), np.float32)
        for first, pixels in _pixels(images):
            projected = (pixels / 255 - mean) @ components[:, : settings.pca]
            features[first : first + AT_ONCE] = projected
        return Records(features, labels)

    return made("train", train), made(test_part, test)


def _pixels(images: np.ndarray) -> Any:
    """(number of the first, [n, 784] float64 pixels) of images, some at a time."""
    for first in range(0, len(images), AT_ONCE):
        yield first, images[first : first + AT_ONCE].reshape(-1, PIXELS).astype(np.float64)


@lru_cache(maxsize=2)
def principal_components(origin: Origin) -> tuple[np.ndarray, np.ndarray]:
    """mean [784] of all training images in [0, 1], and their principal components [784, 784] in
    columns, the largest first.

    The sign of a component is that which makes its largest entry positive. Sums of pixels and of
    their products are sums of whole numbers below 2^53, exact in float64 in any order: neither how
    many are worked on at once nor threads change the covariance.
    """
    images = origin.images("train")
    total, products = np.zeros(PIXELS), np.zeros((PIXELS, PIXELS))
    for _, pixels in _pixels(images):
        total += pixels.sum(axis=0)
        products += pixels.T @ pixels
    mean = total / len(images)
    _, components = np.linalg.eigh(products / len(images) - np.outer(mean, mean))
    components = components[:, ::-1]
    largest = components[np.abs(components).argmax(axis=0), np.arange(PIXELS)]
    return mean / 255, components * np.where(largest < 0, -1.0, 1.0)
