"""Characters made of MNIST and Fashion-MNIST, which stand in for handwriting in up to 62 classes.

Classes 0..19 are the ten digits and the ten clothes as they are, 20..39 the same in negative,
40..59 the same with the halves swapped in both directions (what was in the middle is in the
corners), and 60 and 61 the digits 0 and 1 with swapped halves in negative.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal

import numpy as np

from dpfl_cli.data.mnist import CLASSES, TEST, TRAIN, read_images, read_labels
from dpfl_cli.data.sources import locate

ORIGINS = ("mnist", "fashion_mnist")
Part = Literal["train", "test"]


def origin_files(names: tuple[str, ...]) -> dict[str, Path]:
    """The verified files of some data sets, by name of the data set and of the file."""
    return {f"{name}/{file}": path for name in names for file, path in locate(name).items()}


def labels_of(name: str, part: Part) -> np.ndarray:
    """[N] int64 of MNIST or its like."""
    return read_labels(locate(name)[(TRAIN if part == "train" else TEST)[1]], CLASSES)


def images_of(name: str, part: Part) -> np.ndarray:
    """[N, 28, 28] uint8 of MNIST or its like."""
    path = locate(name)[(TRAIN if part == "train" else TEST)[0]]
    return read_images(path, len(labels_of(name, part)))


def characters(
    part: Part, labels: np.ndarray, pick: Callable[[int, np.ndarray, np.ndarray], np.ndarray]
) -> np.ndarray:
    """[N, 28, 28] uint8 images of labels [N] in 0..61.

    Args:
      pick: of a source class in 0..19, the places of the labels that are made of it, and the
        numbers of its images: which image is taken for each place.
    """
    pool = np.concatenate([images_of(name, part) for name in ORIGINS])
    sources = np.concatenate([labels_of(name, part) + 10 * k for k, name in enumerate(ORIGINS)])
    kinds, classes = np.divmod(labels, 20)
    chosen = np.empty(len(labels), np.int64)
    for source in range(20):
        here = np.flatnonzero(classes == source)
        chosen[here] = pick(source, here, np.flatnonzero(sources == source))
    images = pool[chosen]
    swapped, negative = kinds >= 2, kinds % 2 == 1
    images[swapped] = np.roll(images[swapped], (14, 14), (1, 2))
    images[negative] = 255 - images[negative]
    return images
