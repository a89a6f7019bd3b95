"""FEMNIST of LEAF (Caldas et al. 2018, arXiv 1812.01097): handwritten characters by writer, 28x28,
62 classes.

Layout: the folder `femnist` with LEAF's files (see `leaf`); x is a list of 784 numbers in [0, 1]
(ink is 0, paper 1), y a class in 0..61 (digits, capitals, small letters). A random share of the
records is kept. The records are dealt evenly at random to a few clients, whoever wrote them, or the
writers are, whole (unequal, non-iid). Files without a split of their own are split by client.
EMNIST's files by class are not taken in the place of LEAF's, and images are not scaled up to
128x128.

`femnist_synth` stands in: results say source=standin, and numbers on it are none on the real data.
"""

from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from annotated_types import Len
from numpy import ndarray
from pydantic import Field

from dpfl_cli.data.emnist import ORIGINS, PIXELS, characters, origin_sha256
from dpfl_cli.data.leaf import LeafFile, UserRecords, leaf_files, read_users
from dpfl_cli.data.loading import (
    ConfigError,
    Count,
    Dataset,
    DatasetInfo,
    Files,
    FolderDataset,
    Kept,
    NamedArrays,
    Pair,
    Records,
    SeededSettings,
    Share,
    component,
    decoded,
    drawn_later,
    held_out,
    split_dataset,
)
from dpfl_cli.data.mnist import Part

CLASSES = 62
DECODER = 2  # raised when decoding changes
_SHARE, _CLIENTS, _SPLIT = range(3)  # keys of the stream "data"


class Writer(UserRecords):
    """Images and their classes."""

    x: list[Annotated[list[Annotated[float, Field(ge=0, le=1)]], Len(PIXELS, PIXELS)]]
    y: list[Annotated[int, Field(ge=0, lt=CLASSES)]]


class FemnistSettings(SeededSettings):
    """Which records are used, how they are dealt to clients, and the seed of both.

    `test_fraction`: of each client's records; where the files come with a split, that split is used
      and this is not.
    """

    share: float = Field(default=0.05, gt=0, le=1)
    clients: Count = 6
    split: Literal["iid", "writers"] = "iid"
    test_fraction: Share = 0.1


@component("dataset", "femnist", FemnistSettings, revision=2)
class Femnist(FolderDataset):
    """FEMNIST: handwritten characters by writer, 28x28, 62 classes (LEAF, Caldas et al. 2018).

    Images [N, 28, 28] float32 in [0, 1] and labels [N] int64.
    """

    @staticmethod
    def make(settings: FemnistSettings, folder: Path) -> Dataset:
        """Of the files in the folder."""
        files = leaf_files(folder)
        key = f"{DECODER} share={settings.share!r} seed={settings.data_seed}"
        sha256, arrays = decoded("femnist", files, key, lambda: _decode(files, settings))
        clients = settings.clients
        by_writer = settings.split == "writers"
        dealt = int(arrays["writers"]) if by_writer else len(arrays["labels"])
        # of a writer, or a record
        client = settings.generator(_CLIENTS).permutation(np.arange(dealt) % clients)
        if by_writer:
            client = client[arrays["writer"]]
        test = arrays["test"]
        if not test.any():
            test = held_out(client, settings, _SPLIT)
        return split_dataset(
            DatasetInfo("femnist", "real", sha256, (28, 28), CLASSES, len(client), clients),
            Records(arrays["images"].reshape(-1, 28, 28), arrays["labels"].astype(np.int64)),
            client,
            test,
        )


def _decode(files: Files, settings: FemnistSettings) -> NamedArrays:
    """images [N, 784] float32, labels, writer and test [N] of the kept records, and writers: how
    many there are.
    """
    writers: dict[str, int] = {}
    rows = []
    for part, name, user in read_users(files, LeafFile[Writer], counted=True):
        writer = writers.setdefault(name, len(writers))
        draws = settings.generator(_SHARE, writer, int(part == "test"))  # nobody else's
        kept = np.flatnonzero(draws.random(len(user.y)) < settings.share)
        images = np.array(user.x, np.float32).reshape(-1, PIXELS)[kept]
        labels = np.array(user.y, np.int64)[kept]
        sides = np.full(len(kept), writer), np.full(len(kept), part == "test")
        rows.append((images, labels, *sides))
    columns = zip(("images", "labels", "writer", "test"), zip(*rows, strict=True), strict=True)
    arrays = {name: np.concatenate(column) for name, column in columns}
    return arrays | {"writers": np.array(len(writers))}


# --- what stands in -----------------------------------------------------------------------------


class FemnistSynthSettings(SeededSettings):
    """Clients, training and test records of each of them, and the seed that they are drawn from."""

    clients: Count = 6
    train_records: Count = 6129
    test_records: Count = 684


@component("dataset", "femnist_synth", FemnistSynthSettings)
class FemnistSynth(Kept):
    """Stands in for FEMNIST: 62 classes of 28x28 images made of MNIST and Fashion-MNIST; there are
    no writers.

    The classes are those of `characters`. No image is used twice; the test records are made of the
    test images. Records are dealt evenly at random (iid).
    """

    sources = ORIGINS

    @staticmethod
    def content(settings: FemnistSynthSettings) -> str:
        """The checksum of the files of MNIST and Fashion-MNIST."""
        return origin_sha256(ORIGINS, "femnist_synth is made of it")

    @staticmethod
    def make(settings: FemnistSynthSettings, sha256: str) -> Dataset:
        """Images [N, 28, 28] float32 in [0, 1] and labels [N] int64."""
        clients, each = settings.clients, (settings.train_records, settings.test_records)

        def drawn(part: Part, key: int) -> Pair:
            generator = settings.generator(key)
            labels = generator.permutation(np.arange(clients * each[key]) % CLASSES)

            def another(source: int, here: ndarray, own: ndarray) -> ndarray:
                if len(here) > len(own):
                    raise ConfigError(
                        f"dataset.{part}_records: femnist_synth needs {len(here)} images of class "
                        f"{source % 10} of {ORIGINS[source // 10]}, which has {len(own)}; write "
                        "less, or fewer dataset.clients"
                    )
                return generator.permutation(own)[: len(here)]

            images = characters(part, labels, another)
            return np.divide(images, np.float32(255), dtype=np.float32), labels

        shape, records = (28, 28), clients * settings.train_records
        info = DatasetInfo("femnist_synth", "standin", sha256, shape, CLASSES, records, clients)
        return drawn_later(info, *each, lambda: [(drawn("train", 0), drawn("test", 1))])
