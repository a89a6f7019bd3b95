"""EMNIST's digits and balanced splits (Cohen et al. 2017, arXiv 1702.05373), and what stands in where they are absent.

The published files are in MNIST's idx format, each image stored transposed; here it is upright. Their checksums are not
published: the catalogue verifies their sizes, the loader their structure (type, shape, numbers of images and labels, range of
the labels), and the sha256 of the content is part of a run's identity.

Where none of a split's files is here and `standin` allows it, other data stand in, under source "standin" and with a warning:
for the digits split MNIST itself; for the balanced split 47 classes of the same size made from MNIST and Fashion-MNIST
(`EmnistBalanced`). Damaged or incomplete files are an error; nothing stands in for those.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from dpfl_cli.config.component import Settings, component
from dpfl_cli.config.errors import ConfigError, DataError
from dpfl_cli.data.federation import Dataset, DatasetInfo, Records, Source
from dpfl_cli.data.idx import read_idx
from dpfl_cli.data.mnist import TEST, TRAIN
from dpfl_cli.data.sources import content_sha256, locate, status

logger = logging.getLogger("dpfl")

Part = Literal["train", "test"]
PIXELS = 28 * 28
ROWS = 1 << 12  # images that are worked on at once


class EmnistSettings(Settings):
    """How many of the records are used (the first ones; None: all), and whether other data may stand in for absent files.

    `standin` is no part of a run's identity: the data that are used are.
    """

    train_records: int | None = Field(default=None, ge=1)
    test_records: int | None = Field(default=None, ge=1)
    standin: bool = Field(default=True, exclude=True)


class EmnistBalancedSettings(EmnistSettings):
    """And principal components in place of pixels (None: pixels), and a test split held out from the training images.

    `test_fraction`: the last so many of each class's training images are the test split, and the test images are not used
    (0: they are it). DP-FedNew's FEMNIST holds out .2 in this way: 47 x 1920 + 47 x 480.
    """

    pca: int | None = Field(default=None, ge=1, le=PIXELS)
    test_fraction: float = Field(default=0.0, ge=0, lt=1)


@dataclass(frozen=True)
class Origin:
    """Where a split's records come from: the published files or what stands in for them, and the sha256 of all content."""

    name: str  # of the split
    source: Source
    sha256: str

    @property
    def kind(self) -> type[Emnist]:
        return KINDS[self.name]


class Emnist:
    """Images [N, 28, 28] float32 in [0, 1] and labels [N] int64."""

    name: ClassVar[str]
    classes: ClassVar[int]
    standins: ClassVar[tuple[str, ...]]  # the data sets that what stands in is made of
    standin: ClassVar[str]  # what stands in, in words

    @classmethod
    def standin_labels(cls, part: Part) -> np.ndarray:
        """[N] int64 labels of what stands in."""
        raise NotImplementedError

    @classmethod
    def standin_images(cls, part: Part, rows: np.ndarray) -> np.ndarray:
        """[len(rows), 28, 28] uint8 images of what stands in, by number."""
        raise NotImplementedError

    @classmethod
    def origin(cls, settings: EmnistSettings) -> Origin:
        """Finds and verifies the published files, or those of what stands in.

        Raises:
          DataError: some files are absent or damaged; or all are absent, and `standin` is false or its own files are absent.
        """
        found = status(cls.name)
        if found.files or found.problem is not None:
            return Origin(cls.name, "real", content_sha256(locate(cls.name)))
        try:
            if not settings.standin:
                locate(cls.name)
            files = {f"{name}/{file}": path for name in cls.standins for file, path in locate(name).items()}
        except DataError as error:
            more = f" (to stand in for {cls.name}, which is absent)" if settings.standin else "; or write dataset.standin=true"
            raise DataError(f"{error}{more}") from error
        _warn(cls.name, cls.standin)
        return Origin(cls.name, "standin", content_sha256(files))

    @classmethod
    def info(cls, settings: EmnistSettings) -> DatasetInfo:
        """Finds and verifies the files; the checksum covers all of them, whatever part of them is used."""
        origin = cls.origin(settings)
        train, _, _ = _split(origin, settings)
        pca = _pca(settings)
        return DatasetInfo(
            name=cls.name,
            source=origin.source,
            sha256=origin.sha256,
            feature_shape=(28, 28) if pca is None else (pca,),
            classes=cls.classes,
            records=len(train),
            clients=None,
            details={"standin": cls.standin} if origin.source == "standin" else {},
        )

    @classmethod
    def load(cls, settings: EmnistSettings, seed: int) -> Dataset:
        """The records; they do not depend on the seed."""
        return Dataset(cls.info(settings), *_records(cls.origin(settings), settings))


@component("dataset", "emnist_digits", revision=1, settings=EmnistSettings)
class EmnistDigits(Emnist):
    """EMNIST digits: handwritten digits, 28x28, 240,000 + 40,000 (Cohen et al. 2017); where absent, MNIST, labelled."""

    name = "emnist_digits"
    classes = 10
    standins = ("mnist",)
    standin = "mnist"

    @classmethod
    def standin_labels(cls, part: Part) -> np.ndarray:
        return _labels_of("mnist", part)

    @classmethod
    def standin_images(cls, part: Part, rows: np.ndarray) -> np.ndarray:
        return _images_of("mnist", part)[rows]


@component("dataset", "emnist_balanced", revision=1, settings=EmnistBalancedSettings)
class EmnistBalanced(Emnist):
    """EMNIST balanced: handwritten characters, 28x28, 47 classes (Cohen et al. 2017); where absent, a labelled stand-in.

    The stand-in has the same sizes, 47 x 2400 + 47 x 400, and comes from MNIST's and Fashion-MNIST's training and test images:
    classes 0..19 are the ten digits and the ten clothes as they are, 20..39 the same in negative, and 40..46 the digits 0..6
    with the halves swapped in both directions (what was in the middle is in the corners). Record r is of class r mod 47. Of a
    source class, the images as they are and those in negative are others, in the order of the file; those with swapped halves
    start over.
    """

    name = "emnist_balanced"
    classes = 47
    standins = ("mnist", "fashion_mnist")
    standin = "mnist and fashion_mnist: as they are, in negative, and digits 0..6 with swapped halves"
    per_class: ClassVar[dict[Part, int]] = {"train": 2400, "test": 400}

    @staticmethod
    def not_covered(settings: EmnistBalancedSettings) -> list[str]:
        """Constants taken from the data, which no epsilon covers."""
        return [] if settings.pca is None else ["principal components and mean of the training images (pca)"]

    @classmethod
    def standin_labels(cls, part: Part) -> np.ndarray:
        return np.tile(np.arange(cls.classes, dtype=np.int64), cls.per_class[part])

    @classmethod
    def standin_images(cls, part: Part, rows: np.ndarray) -> np.ndarray:
        pool = np.concatenate([_images_of(name, part) for name in cls.standins])
        sources = np.concatenate([_labels_of(name, part) + 10 * place for place, name in enumerate(cls.standins)])
        turns, labels = np.divmod(rows, cls.classes)
        kinds, classes = np.divmod(labels, 20)
        chosen = np.empty(len(rows), np.int64)
        for source in range(20):
            here, own = classes == source, np.flatnonzero(sources == source)
            if not len(own):
                raise DataError(f"{cls.standins[source // 10]}: no {part} images of class {source % 10} to make {cls.name} of")
            chosen[here] = own[(kinds[here] * cls.per_class[part] + turns[here]) % len(own)]
        images = pool[chosen]
        images[kinds == 1] = 255 - images[kinds == 1]
        images[kinds == 2] = np.roll(images[kinds == 2], (14, 14), (1, 2))
        return images


KINDS: dict[str, type[Emnist]] = {kind.name: kind for kind in (EmnistDigits, EmnistBalanced)}


@lru_cache(maxsize=8)
def _warn(name: str, standin: str) -> None:
    """Once in a process."""
    logger.warning(
        "WARNING: %s is not here, and other data STAND IN for it: %s; results say source=standin (dataset.standin=false refuses)",
        name,
        standin,
    )


def _pca(settings: EmnistSettings) -> int | None:
    return settings.pca if isinstance(settings, EmnistBalancedSettings) else None


def _labels(origin: Origin, part: Part) -> np.ndarray:
    """[N] int64 labels; a DataError names a file that is not a split's labels."""
    if origin.source == "standin":
        return origin.kind.standin_labels(part)
    path = _paths(origin, part)[1]
    labels = read_idx(path)
    if labels.dtype != np.uint8 or labels.ndim != 1 or not len(labels) or int(labels.max()) >= origin.kind.classes:
        raise DataError(
            f"{path}: {labels.dtype} of shape {list(labels.shape)}, largest {labels.max(initial=0)}: "
            f"not labels 0..{origin.kind.classes - 1}"
        )
    return labels.astype(np.int64)


def _images(origin: Origin, part: Part, rows: np.ndarray) -> np.ndarray:
    """[len(rows), 28, 28] uint8 upright images; a DataError names a file that is not a split's images."""
    if origin.source == "standin":
        return origin.kind.standin_images(part, rows)
    path = _paths(origin, part)[0]
    images = read_idx(path)
    expected = (len(_labels(origin, part)), 28, 28)
    if images.dtype != np.uint8 or images.shape != expected:
        raise DataError(f"{path}: {images.dtype} of shape {list(images.shape)}: not the images of {expected[0]} labels, 28x28")
    return images[rows].swapaxes(1, 2)


def _paths(origin: Origin, part: Part) -> tuple[Path, Path]:
    files = locate(origin.name)
    stem = f"{origin.name.replace('_', '-')}-{part}"
    return files[f"{stem}-images-idx3-ubyte"], files[f"{stem}-labels-idx1-ubyte"]


def _images_of(name: str, part: Part) -> np.ndarray:
    """[N, 28, 28] uint8 of MNIST or its like."""
    return read_idx(locate(name)[(TRAIN if part == "train" else TEST)[0]])


def _labels_of(name: str, part: Part) -> np.ndarray:
    """[N] int64 of MNIST or its like."""
    return read_idx(locate(name)[(TRAIN if part == "train" else TEST)[1]]).astype(np.int64)


@lru_cache(maxsize=4)
def _split(origin: Origin, settings: EmnistSettings) -> tuple[np.ndarray, Part, np.ndarray]:
    """Numbers of the records that train, the part that the test records are from, and their numbers.

    Raises:
      ConfigError: more records are asked for than there are, or a test fraction holds out none.
    """
    labels = _labels(origin, "train")
    part: Part = "test"
    train, test = np.arange(len(labels)), np.arange(len(_labels(origin, "test")))
    fraction = settings.test_fraction if isinstance(settings, EmnistBalancedSettings) else 0.0
    if fraction:
        order = np.argsort(labels, kind="stable")
        counts = np.bincount(labels, minlength=origin.kind.classes)
        places = np.arange(len(labels)) - np.repeat(np.cumsum(counts) - counts, counts)  # of a record in its class
        held = np.empty(len(labels), bool)
        held[order] = places >= np.repeat(counts - (fraction * counts).astype(np.int64), counts)
        part, train, test = "train", train[~held], train[held]
    for field, there in {"train_records": len(train), "test_records": len(test)}.items():
        wanted = getattr(settings, field)
        if wanted is not None and wanted > there:
            raise ConfigError(
                f"dataset.{field}={wanted}: {origin.name} has {there} of them{' (a stand-in)' * (origin.source == 'standin')}; "
                "write at most that, or null for all"
            )
    if not len(test):
        raise ConfigError(f"dataset.test_fraction={fraction:g}: holds out no record of any class; write more, or 0 for none")
    return train[: settings.train_records], part, test[: settings.test_records]


@lru_cache(maxsize=2)
def _records(origin: Origin, settings: EmnistSettings) -> tuple[Records, Records]:
    """Training and test records; kept by content, which is why the origin is an argument."""
    train, part, test = _split(origin, settings)
    pca = _pca(settings)
    basis = None if pca is None else principal_components(origin)

    def made(which: Part, rows: np.ndarray) -> Records:
        images = _images(origin, which, rows)
        labels = _labels(origin, which)[rows]
        if basis is None:
            return Records(np.divide(images, np.float32(255), order="C", dtype=np.float32), labels)
        mean, components = basis
        features = np.empty((len(rows), components[:, :pca].shape[1]), np.float32)
        for first in range(0, len(rows), ROWS):
            block = images[first : first + ROWS].reshape(-1, PIXELS).astype(np.float64)
            features[first : first + ROWS] = (block / 255 - mean) @ components[:, :pca]
        return Records(features, labels)

    return made("train", train), made(part, test)


@lru_cache(maxsize=2)
def principal_components(origin: Origin) -> tuple[np.ndarray, np.ndarray]:
    """mean [784] of all training images in [0, 1], and their principal components [784, 784] in columns, the largest first.

    The sign of a component is that which makes its largest entry positive. Sums of pixels and of their products are sums of
    whole numbers below 2^53, exact in float64 in any order: neither blocks nor threads change the covariance.
    """
    images = _images(origin, "train", np.arange(len(_labels(origin, "train"))))
    count = len(images)
    total, products = np.zeros(PIXELS), np.zeros((PIXELS, PIXELS))
    for first in range(0, count, ROWS):
        block = images[first : first + ROWS].reshape(-1, PIXELS).astype(np.float64)
        total += block.sum(axis=0)
        products += block.T @ block
    mean = total / count
    _, components = np.linalg.eigh(products / count - np.outer(mean, mean))
    components = components[:, ::-1]
    largest = components[np.abs(components).argmax(axis=0), np.arange(PIXELS)]
    return mean / 255, components * np.where(largest < 0, -1.0, 1.0)
