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

from collections.abc import Callable
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
from numpy import ndarray
from pydantic import Field

from dpfl_cli.data.loading import (
    DataError,
    HeldOut,
    UsedSettings,
    component,
    content_sha256,
    fraction_of,
    locate,
    ranks,
    slices,
    status,
    warn_once,
)
from dpfl_cli.data.mnist import SIDE, FashionMnist, Mnist, Origin, Part, Pictures, Split

ORIGINS = ("mnist", "fashion_mnist")  # of `characters`
PIXELS = SIDE * SIDE
AT_ONCE = 1 << 12  # images that are worked on at once


def origin_sha256(names: tuple[str, ...], why: str) -> str:
    """Of the verified files of some data sets, by name of the data set and of the file; a DataError
    says why they are asked for.
    """
    try:
        return content_sha256(
            {f"{name}/{file}": path for name in names for file, path in locate(name).items()}
        )
    except DataError as error:
        raise type(error)(f"{error} ({why})") from error


def characters(
    part: Part, labels: ndarray, pick: Callable[[int, ndarray, ndarray], ndarray]
) -> ndarray:
    """[N, 28, 28] uint8 images of labels [N] in 0..61, made of MNIST and Fashion-MNIST, which stand
    in for handwriting.

    Classes 0..19 are the ten digits and the ten clothes as they are, 20..39 the same in negative,
    40..59 the same with the halves swapped in both directions (what was in the middle is in the
    corners), and 60 and 61 the digits 0 and 1 with swapped halves in negative.

    Args:
      pick: of a source class in 0..19, the places of the labels that are made of it, and the
        numbers of its images: which image is taken for each place.
    """
    kinds = Mnist, FashionMnist
    pool = np.concatenate([kind.images(part) for kind in kinds])
    sources = np.concatenate([kind.labels(part) + 10 * k for k, kind in enumerate(kinds)])
    forms, places = np.divmod(labels, 20)
    chosen = np.empty(len(labels), np.int64)
    for source in range(20):
        here = np.flatnonzero(places == source)
        chosen[here] = pick(source, here, np.flatnonzero(sources == source))
    made = pool[chosen]
    swapped, negative = forms >= 2, forms % 2 == 1
    made[swapped] = np.roll(made[swapped], (14, 14), (1, 2))
    made[negative] = 255 - made[negative]
    return made


class EmnistSettings(UsedSettings):
    """How many of the records are used, and whether other data may stand in for absent files.

    `standin` is no part of a run's identity: the data that are used are.
    """

    standin: bool = Field(default=True, exclude=True)


class EmnistBalancedSettings(EmnistSettings):
    """And principal components in place of pixels (None: pixels), and a test split held out from
    the training images.

    `test_fraction`: the last so many of each class's training images are the test split, and the
      test images are not used (0: they are it). DP-FedNew's FEMNIST holds out .2 in this way:
      47 x 1920 + 47 x 480.
    """

    pca: int | None = Field(default=None, ge=1, le=PIXELS)
    test_fraction: HeldOut = 0.0


class Emnist(Pictures):
    """Pixels in [0, 1]; other data may stand in."""

    standins: tuple[str, ...]  # data sets that what stands in is made of
    instead: type[Pictures]  # what stands in

    @classmethod
    def images(cls, part: Part) -> ndarray:
        return super().images(part).swapaxes(1, 2)

    @classmethod
    def content(cls, settings: Any) -> Origin:
        """Finds and verifies the published files, or those of what stands in.

        Raises:
          DataError: files are absent or damaged, of what stands in too.
        """
        if status(cls.name).files or not settings.standin:
            return super().content(settings)
        why = f"to stand in for {cls.name}, which is absent"
        sha256 = origin_sha256(cls.standins, why)
        warn_once(
            f"{cls.name} is not here, and other data STAND IN for it: {cls.standin}; results say "
            "source=standin (dataset.standin=false refuses)"
        )
        return Origin(cls.instead, sha256)


@component("dataset", "emnist_digits", EmnistSettings)
class EmnistDigits(Emnist):
    """EMNIST digits: handwritten digits, 28x28, 240,000 + 40,000 (Cohen et al. 2017); where absent,
    MNIST, labelled.
    """

    standin, standins, instead = "mnist", ("mnist",), Mnist


class BalancedStandIn(Pictures):
    """What stands in for the balanced split."""

    name, classes = "emnist_balanced", 47
    per_class: ClassVar[dict[Part, int]] = {"train": 2400, "test": 400}

    @classmethod
    def size(cls, part: Part) -> int:
        return cls.classes * cls.per_class[part]

    @classmethod
    def labels(cls, part: Part) -> ndarray:
        return np.arange(cls.size(part)) % cls.classes

    @classmethod
    def images(cls, part: Part) -> ndarray:
        labels, each = cls.labels(part), cls.per_class[part]

        def pick(source: int, here: ndarray, own: ndarray) -> ndarray:
            first = labels[here] // 20 * each  # of the images as they are, in negative, swapped
            return own[(first + here // cls.classes) % len(own)]

        return characters(part, labels, pick)


@component("dataset", "emnist_balanced", EmnistBalancedSettings)
class EmnistBalanced(Emnist):
    """EMNIST balanced: handwritten characters, 28x28, 47 classes (Cohen et al. 2017); where absent,
    a labelled stand-in.

    The stand-in has the same sizes, 47 x 2400 + 47 x 400, and comes from MNIST's and
    Fashion-MNIST's training and test images: the first 47 classes of `characters`. Record r is of
    class r mod 47. Of a source class, the images as they are and those in negative are others, in
    the order of the file; those with swapped halves start over.
    """

    classes = BalancedStandIn.classes
    standins, instead = ORIGINS, BalancedStandIn
    standin = (
        "mnist and fashion_mnist: as they are, in negative, and digits 0..6 with swapped halves"
    )

    @classmethod
    def feature_shape(cls, settings: EmnistBalancedSettings) -> tuple[int, ...]:
        return super().feature_shape(settings) if settings.pca is None else (settings.pca,)

    @classmethod
    def split(cls, settings: EmnistBalancedSettings, pictures: type[Pictures]) -> Split:
        if not settings.test_fraction:
            return super().split(settings, pictures)
        labels = pictures.labels("train")
        counts = np.bincount(labels)
        fraction_of(settings.test_fraction, counts.max(), "the images of any class")
        kept = counts - (settings.test_fraction * counts).astype(np.int64)
        held = ranks(labels) >= kept[labels]
        return np.flatnonzero(~held), "train", np.flatnonzero(held)

    @staticmethod
    def not_covered(settings: EmnistBalancedSettings) -> list[str]:
        """Constants taken from the data, which no epsilon covers."""
        taken = ["principal components and mean of the training images (pca)"]
        held = ["choice of the test records by their classes"] * (settings.test_fraction > 0)
        return taken * (settings.pca is not None) + held

    @classmethod
    def features(cls, images: ndarray, origin: Origin, settings: EmnistBalancedSettings) -> ndarray:
        if settings.pca is None:
            return super().features(images, origin, settings)
        mean, components = principal_components(origin)
        found = np.empty((len(images), settings.pca), np.float32)
        for some, pixels in _pixels(images):
            found[some] = (pixels / 255 - mean) @ components[:, : settings.pca]
        return found


def _pixels(images: ndarray) -> Any:
    """(which, [n, 784] float64 pixels) of images, some at a time."""
    for some in slices(len(images), AT_ONCE):
        yield some, images[some].reshape(-1, PIXELS).astype(np.float64)


@lru_cache(maxsize=2)
def principal_components(origin: Origin) -> tuple[ndarray, ndarray]:
    """mean [784] of all training images in [0, 1], and their principal components [784, 784] in
    columns, the largest first.

    The sign of a component is that which makes its largest entry positive. Sums of pixels and of
    their products are sums of whole numbers below 2^53, exact in float64 in any order: neither how
    many are worked on at once nor threads change the covariance.
    """
    images = origin.pictures.images("train")
    total, products = np.zeros(PIXELS), np.zeros((PIXELS, PIXELS))
    for _, pixels in _pixels(images):
        total += pixels.sum(axis=0)
        products += pixels.T @ pixels
    mean = total / len(images)
    _, components = np.linalg.eigh(products / len(images) - np.outer(mean, mean))
    components = components[:, ::-1]
    largest = components[np.abs(components).argmax(axis=0), np.arange(PIXELS)]
    return mean / 255, components * np.where(largest < 0, -1.0, 1.0)
