"""Characters made of MNIST and Fashion-MNIST, which stand in for handwriting in up to 62 classes.

Classes 0..19 are the ten digits and the ten clothes as they are, 20..39 the same in negative,
40..59 the same with the halves swapped in both directions (what was in the middle is in the
corners), and 60 and 61 the digits 0 and 1 with swapped halves in negative.
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np

from dpfl_cli.data.idx import Part
from dpfl_cli.data.mnist import FashionMnist, Mnist
from dpfl_cli.data.sources import locate

ORIGINS = ("mnist", "fashion_mnist")


def origin_files(names: tuple[str, ...]) -> dict[str, Path]:
    """The verified files of some data sets, by name of the data set and of the file."""
    return {f"{name}/{file}": path for name in names for file, path in locate(name).items()}


def characters(
    part: Part, labels: np.ndarray, pick: Callable[[int, np.ndarray, np.ndarray], np.ndarray]
) -> np.ndarray:
    """[N, 28, 28] uint8 images of labels [N] in 0..61.

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
