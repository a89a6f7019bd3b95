"""Datasets in LIBSVM's format: any file, and the named ones whose files the catalogue verifies.

The format: a record a line, `label index:value index:value ...`, indices from 1 and ascending, the
rest zero (Chang, Lin 2011, LIBSVM, README, "Data Format"), as scikit-learn reads it.

Features are float64, as stored or as rows of unit L2 norm; labels become the classes 0..c-1 in
ascending order, so that -1, 0 or 1 (of 1 and 2) is class 0 and +1, 1 or 2 is class 1. What is drawn
(a shuffle, records held out) is drawn from `shuffle_seed`, not from the run's seed: runs with
different seeds solve the same problem.
"""

import filecmp
import io
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy import ndarray
from pydantic import NonNegativeInt

from dpfl_cli.data.loading import (
    Count,
    DataError,
    Dataset,
    DatasetInfo,
    HeldOut,
    Kept,
    OwnRecordsSettings,
    Pair,
    Pairs,
    Seed,
    Settings,
    component,
    content_sha256,
    expanded,
    fraction_of,
    lazy_records,
    locate,
    logger,
    read_uncompressed,
    stream_generator,
    unit_rows,
    used,
)

LARGEST_DENSE = 1 << 32  # bytes of dense features


class LibsvmOptions(Settings):
    """Which records of the file train, in which order, and whether rows are scaled.

    `order`: `file` takes the first `records` in the order of the file; `shuffle` so many at random,
      in random order; `sorted` the same ones as `shuffle`, sorted by label and, within a label, in
      the order of the file. None: all records.
    """

    records: Count | None = None
    order: Literal["file", "shuffle", "sorted"] = "file"
    shuffle_seed: Seed = 0
    normalise: bool = False


class WithoutTestFile(LibsvmOptions):
    """For data without a test file: the fraction of all records that is drawn at random and held
    out for testing.
    """

    test_fraction: HeldOut = 0.0


class WithTestFile(LibsvmOptions):
    """For data with a test file: how many of its records are used (the first ones; None: all, 0:
    none).
    """

    test_records: NonNegativeInt | None = None


class LibsvmSettings(LibsvmOptions, OwnRecordsSettings):
    """Any file; `dimension` is the number of features, None: the largest index of the files."""

    dimension: Count | None = None


class Ijcnn1Settings(WithTestFile):
    """The setting of arXiv 2308.01139: the first 2000 records, rows of unit norm; no test metrics
    unless asked for.
    """

    records: Count | None = 2000
    normalise: bool = True
    test_records: NonNegativeInt | None = 0


class A6aSettings(WithoutTestFile):
    """The setting of arXiv 2308.01139: all records, rows of unit norm."""

    normalise: bool = True


class A9aSettings(WithTestFile):
    """All records, rows of unit norm."""

    normalise: bool = True


@dataclass(frozen=True)
class SparseRecords:
    """The N records of a file.

    Attributes:
      name: the file, for messages.
      labels: [N] float64, as written.
      features: [N, largest index] float64, a scipy.sparse.csr_matrix.
      text: the file, uncompressed.
    """

    name: str
    labels: ndarray
    features: Any
    text: bytes

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def dimension(self) -> int:
        """The largest index of the file, counted from 1; 0 where no record has a feature."""
        return int(self.features.indices.max(initial=-1)) + 1

    def error(self, row: int, says: str) -> DataError:
        """What is wrong with a record; lines that are empty or a comment hold none."""
        lines = enumerate(self.text.split(b"\n"), 1)
        numbers = [number for number, line in lines if line.partition(b"#")[0].strip()]
        return DataError(f"{self.name}: line {numbers[row]}: {says}")

    def dense(self, rows: ndarray, dimension: int) -> ndarray:
        """Features [len(rows), dimension] float64 of the given records, in the given order; a
        DataError where they take more than LARGEST_DENSE bytes.
        """
        size = 8 * len(rows) * dimension
        if size > LARGEST_DENSE:
            raise DataError(
                f"{self.name}: {len(rows)} records x {dimension} features take {1e-9 * size:.1f} "
                "GB as dense float64, too much; lower dataset.records"
            )
        chosen = self.features[rows]
        chosen.resize(len(rows), dimension)
        return np.asarray(chosen.toarray())


def parse_libsvm(data: bytes, name: str) -> SparseRecords:
    """Parses the uncompressed content of a file, which messages call `name`.

    Raises:
      DataError: no records, or the first line that is not of the format, by its number and with
        what is wrong.
    """
    try:
        features, labels = _parsed(data)
    except (ValueError, OverflowError):
        for number, line in enumerate(data.split(b"\n"), 1):  # slow, to name the line
            try:
                _parsed(line)
            except (ValueError, OverflowError) as error:  # whose text has the record's values
                raise DataError(
                    f"{name}: line {number}: not `label index:value ...` with ascending indices "
                    "from 1 and finite numbers"
                ) from error
        raise
    if not len(labels):
        raise DataError(f"{name}: no records in this file of {len(data)} bytes")
    return SparseRecords(name, labels, features, data)


def _parsed(data: bytes) -> tuple[Any, ndarray]:
    from sklearn.datasets import load_svmlight_file

    features, labels = load_svmlight_file(io.BytesIO(data), zero_based=False)
    if not (np.isfinite(labels).all() and np.isfinite(features.data).all()):
        raise ValueError("a number that is not finite")
    return features, labels


# checksum of all content; the training and maybe a test file
VerifiedFiles = tuple[str, tuple[Path, ...]]
Read = Callable[[], list[SparseRecords]]  # of these files


class LibsvmDataset(Kept):
    """Features [N, d] float64 and classes [N] int64 of a training file, with a test split from a
    file or held out. A data set of the catalogue is known in size before its files are read.
    """

    name: str
    dimension: int
    size: int  # records of the training file
    test_size = 0  # records of the test file

    @staticmethod
    def not_covered(settings: Any) -> list[str]:
        """An order by label, in which one record of another class moves many."""
        return ["order of the records, which is of their labels"] * (settings.order == "sorted")

    @classmethod
    def content(cls, settings: Any) -> VerifiedFiles:
        """Finds and verifies the files."""
        found, tested = locate(cls.name), 0
        if isinstance(settings, WithTestFile):
            tested = used(cls.name, "test_records", settings.test_records, cls.test_size)
        return content_sha256(found), tuple(found.values())[: 2 if tested else 1]

    @classmethod
    def facts(cls, settings: Any, read: Read) -> tuple[int, int, int]:
        """Records, features and classes of the training file."""
        return cls.size, cls.dimension, 2

    @classmethod
    def make(cls, settings: Any, files: VerifiedFiles) -> Dataset:
        """Files of known size are read when a record is looked at."""
        sha256, paths = files
        read = cache(lambda: [parse_libsvm(read_uncompressed(path), str(path)) for path in paths])
        size, dimension, classes = cls.facts(settings, read)
        held = fraction_of(getattr(settings, "test_fraction", 0.0), size, f"{size} records")
        note = " left beside the test records" if held else ""
        info = DatasetInfo(
            name=cls.name,
            source="real",
            sha256=sha256,
            feature_shape=(dimension,),
            classes=classes,
            records=used(cls.name, "records", settings.records, size - held, note),
        )
        train, test = lazy_records(lambda: _records(read(), dimension, held, settings))
        tests = test if held or paths[1:] else None
        trained = len(paths) > 1 and filecmp.cmp(paths[0], paths[1], shallow=False)
        if trained:
            logger.warning("%s has the records of %s: metrics are of what was trained on", *paths)
        return Dataset(info, train, tests, tests_held=held > 0 or trained)


@component("dataset", "libsvm", LibsvmSettings)
class Libsvm(LibsvmDataset):
    """A file of yours in LIBSVM's format: dense or sparse, plain, gz, bz2 or xz."""

    @staticmethod
    def not_covered(settings: LibsvmSettings) -> list[str]:
        """And what is taken from the file: its labels, the number of features."""
        taken = ["number of features (largest index of the file)"] * (settings.dimension is None)
        classes = "which labels there are, and so which class each of them is"
        return [classes, *taken, *settings.public(), *LibsvmDataset.not_covered(settings)]

    @classmethod
    def content(cls, settings: Any) -> VerifiedFiles:
        """The files that the settings name."""
        paths = tuple(map(expanded, settings.files("FILE").values()))
        return content_sha256(dict(zip(("train", "test"), paths, strict=False))), paths

    @classmethod
    def facts(cls, settings: Any, read: Read) -> tuple[int, int, int]:
        """Reads the files: their sizes are not known otherwise."""
        train, dimension = read()[0], settings.dimension
        dimension = dimension or max(records.dimension for records in read())
        if not dimension:
            raise DataError(
                f"{train.name}: no record has a feature; write dataset.dimension if that is meant"
            )
        for records in read():
            if records.dimension > dimension:
                raise DataError(
                    f"{records.name}: index {records.dimension} is beyond dataset.dimension="
                    f"{dimension}; write at least that, or null for the largest index"
                )
        return len(train), dimension, len(label_values(train))


@component("dataset", "ijcnn1", Ijcnn1Settings)
class Ijcnn1(LibsvmDataset):
    """ijcnn1: engine misfires, 22 features (Prokhorov 2001; LIBSVM's transformed version)."""

    dimension = 22
    size = 49_990
    test_size = 91_701


@component("dataset", "a6a", A6aSettings)
class A6a(LibsvmDataset):
    """a6a: 11,220 records of UCI Adult, 123 binary features (Platt 1998)."""

    dimension = 123
    size = 11_220


@component("dataset", "a9a", A9aSettings)
class A9a(LibsvmDataset):
    """a9a: UCI Adult, 123 binary features, with its test split a9a.t (Platt 1998)."""

    dimension = 123
    size = 32_561
    test_size = 16_281


@component("dataset", "mushrooms", WithoutTestFile)
class Mushrooms(LibsvmDataset):
    """mushrooms: UCI Mushroom, 112 binary features (Schlimmer 1987)."""

    dimension = 112
    size = 8_124


def label_values(records: SparseRecords) -> ndarray:
    """The labels that occur, ascending; the place of a label is its class.

    Raises:
      DataError: a label that is not a whole number (regression, not classes), or one label only.
    """
    broken = np.flatnonzero(records.labels % 1)
    if len(broken):
        raise records.error(
            broken[0], "the label is not a whole number; dpfl reads labels as classes"
        )
    values = np.unique(records.labels)
    if len(values) < 2:
        raise DataError(f"{records.name}: all labels are equal; classes need at least two labels")
    return values


def _records(
    read: list[SparseRecords], dimension: int, held_out: int, options: LibsvmOptions
) -> Pairs:
    """Of the training and of the test records, which may be none."""
    pool, *tested = read
    values = label_values(pool)
    mixed = stream_generator(options.shuffle_seed, "data").permutation(len(pool))
    held, rest = np.split(mixed, [held_out])
    train = (np.sort(rest) if options.order == "file" else rest)[: options.records]
    if options.order == "sorted":
        train = np.sort(train)
        train = train[np.argsort(pool.labels[train], kind="stable")]

    def made(records: SparseRecords, rows: ndarray) -> Pair:
        labels = records.labels[rows]
        targets = np.searchsorted(values, labels).clip(max=len(values) - 1)
        strange = np.flatnonzero(values[targets] != labels)
        if len(strange):
            raise records.error(rows[strange[0]], f"the label is none of those in {pool.name}")
        features = records.dense(rows, dimension)
        scaled = unit_rows(features) if options.normalise else features
        return scaled, targets.astype(np.int64)

    test, rows = pool, np.sort(held)
    if tested:
        (test,) = tested
        rows = np.arange(len(test))[: getattr(options, "test_records", None)]
    return made(pool, train), made(test, rows)
