"""FEMNIST of LEAF (Caldas et al. 2018, arXiv 1812.01097): handwritten characters by writer, 28x28, 62 classes.

Layout: the folder `femnist` with LEAF's files (see `leaf`); x is a list of 784 numbers in [0, 1] (ink is 0, paper 1), y a class
in 0..61 (digits, capitals, small letters). A random share of the records is kept. The records are dealt evenly at random to
a few clients, whoever wrote them, or the writers are, whole (unequal, non-iid). Files without a split of their own are split by
client. EMNIST's files by class are not taken in the place of LEAF's, and images are not scaled up to 128x128.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Literal

import numpy as np
from pydantic import Field

from dpfl_cli.config.component import Settings, component
from dpfl_cli.config.errors import ConfigError, DataError
from dpfl_cli.data.federation import Dataset, DatasetInfo, Records
from dpfl_cli.data.folders import Arrays, decoded, find_folder
from dpfl_cli.data.leaf import User, leaf_parts, read_users
from dpfl_cli.data.streams import stream_generator

CLASSES = 62
PIXELS = 28 * 28
DECODER = 1  # raised when decoding changes
_SHARE, _CLIENTS, _SPLIT = range(3)  # keys of the stream "data"


class FemnistSettings(Settings):
    """Which records are used, how they are dealt to clients, and the seed of both.

    `test_fraction`: of each client's records; where the files come with a split, that split is used and this is not.
    """

    share: float = Field(default=0.05, gt=0, le=1)
    clients: int = Field(default=6, ge=1)
    split: Literal["iid", "writers"] = "iid"
    test_fraction: float = Field(default=0.1, gt=0, lt=1)
    data_seed: int = Field(default=0, ge=0, lt=2**63)


@component("dataset", "femnist", revision=1, settings=FemnistSettings)
class Femnist:
    """FEMNIST: handwritten characters by writer, 28x28, 62 classes (LEAF, Caldas et al. 2018)."""

    @staticmethod
    def info(settings: FemnistSettings) -> DatasetInfo:
        """Reads the files, or what the cache keeps of them; the checksum covers all files."""
        return load_femnist(find_folder("femnist"), settings).info

    @staticmethod
    def load(settings: FemnistSettings, seed: int) -> Dataset:
        """Images [N, 28, 28] float32 in [0, 1] and labels [N] int64; they do not depend on the run's seed."""
        return load_femnist(find_folder("femnist"), settings)


@lru_cache(maxsize=2)
def load_femnist(folder: Path, settings: FemnistSettings) -> Dataset:
    """The data set in a folder; a run keeps what it read first, as files do not change under a run."""
    parts = leaf_parts(folder)
    files = {f"{part}/{name}": path for part, named in parts.items() for name, path in named.items()}
    key = f"{DECODER} share={settings.share!r} seed={settings.data_seed}"
    sha256, arrays = decoded("femnist", files, key, lambda: _decode(folder, parts, settings))
    labels, client = arrays["labels"].astype(np.int64), _dealt(arrays, settings)
    test = arrays["test"] if "test" in parts else _held_out(client, settings)
    for number in range(settings.clients):
        if not ((client == number) & ~test).any() or not ((client == number) & test).any():
            raise ConfigError(
                f"dataset.clients={settings.clients}: client {number} gets no training or no test records of the "
                f"{len(labels)} kept; write fewer clients, or a larger dataset.share"
            )
    images = arrays["images"].reshape(-1, 28, 28)
    info = DatasetInfo("femnist", "real", sha256, (28, 28), CLASSES, int((~test).sum()), settings.clients)
    train = Records(images[~test], labels[~test])
    return Dataset(info, train, Records(images[test], labels[test]), client[~test], test_natural=client[test])


def _decode(folder: Path, parts: dict[str, dict[str, Path]], settings: FemnistSettings) -> Arrays:
    """images [N, 784] float32, labels, writer and test [N] of the kept records, and writers: how many there are."""
    generator = stream_generator(settings.data_seed, "data", _SHARE)
    writers: dict[str, int] = {}
    images, labels, writer, test = [], [], [], []
    for part, files in parts.items():
        for path in files.values():
            for user in read_users(path, counted=True):
                number = writers.setdefault(user.name, len(writers))
                kept = np.flatnonzero(generator.random(len(user.y)) < settings.share)
                pixels, classes = _checked(user)
                images.append(pixels[kept])
                labels.append(classes[kept])
                writer.append(np.full(len(kept), number))
                test.append(np.full(len(kept), part == "test"))
    if not sum(len(part) for part in labels):
        raise DataError(f"{folder}: no records are left of the files with dataset.share={settings.share:g}")
    joined = {"images": images, "labels": labels, "writer": writer, "test": test}
    return {**{name: np.concatenate(rows) for name, rows in joined.items()}, "writers": np.array(len(writers))}


def _checked(user: User) -> tuple[np.ndarray, np.ndarray]:
    """images [n, 784] float32 and classes [n] int64 of a user."""
    try:
        pixels, classes = np.array(user.x, np.float32), np.array(user.y)
    except (ValueError, TypeError) as error:
        raise DataError(f"{user.where}: x is not lists of {PIXELS} numbers: {error}") from error
    if not len(classes):
        return np.empty((0, PIXELS), np.float32), np.empty(0, np.int64)
    if pixels.shape != (len(classes), PIXELS) or not (np.isfinite(pixels).all() and pixels.min() >= 0 and pixels.max() <= 1):
        raise DataError(f"{user.where}: x is not lists of {PIXELS} numbers in [0, 1]")
    if not np.issubdtype(classes.dtype, np.integer) or classes.ndim != 1 or classes.min() < 0 or classes.max() >= CLASSES:
        raise DataError(f"{user.where}: y is not classes 0..{CLASSES - 1}")
    return pixels, classes.astype(np.int64)


def _dealt(arrays: Arrays, settings: FemnistSettings) -> np.ndarray:
    """[N] client of each kept record."""
    generator = stream_generator(settings.data_seed, "data", _CLIENTS)
    if settings.split == "iid":
        return _spread(len(arrays["labels"]), settings.clients, generator)
    return _spread(int(arrays["writers"]), settings.clients, generator)[arrays["writer"]]


def _spread(count: int, clients: int, generator: np.random.Generator) -> np.ndarray:
    """[count] a client for each, at random, as evenly as possible."""
    return generator.permutation(np.arange(count) % clients)


def _held_out(client: np.ndarray, settings: FemnistSettings) -> np.ndarray:
    """[N] bool: the test records, so large a fraction of each client's, at random."""
    generator = stream_generator(settings.data_seed, "data", _SPLIT)
    held = np.zeros(len(client), bool)
    for number in range(settings.clients):
        own = generator.permutation(np.flatnonzero(client == number))
        held[own[: round(settings.test_fraction * len(own))]] = True
    return held
