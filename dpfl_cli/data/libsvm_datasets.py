"""Datasets in LIBSVM's format: any file, and the named ones whose files the catalogue verifies.

Features are float64, as stored or as rows of unit L2 norm; labels become the classes 0..c-1 in ascending order, so that
-1, 0 or 1 (of 1 and 2) is class 0 and +1, 1 or 2 is class 1. What is drawn (a shuffle, records held out) is drawn from
`shuffle_seed`, not from the run's seed: runs with different seeds solve the same problem.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from dpfl_cli.config.component import Settings, component
from dpfl_cli.config.errors import ConfigError, DataError
from dpfl_cli.data.federation import Dataset, DatasetInfo, Records
from dpfl_cli.data.libsvm import SparseRecords, parse_libsvm, uncompressed
from dpfl_cli.data.sources import content_sha256, damage, locate
from dpfl_cli.data.streams import stream_generator


class LibsvmOptions(Settings):
    """Which records of the file train, in which order, and whether rows are scaled.

    `order`: `file` takes the first `records` in the order of the file; `shuffle` so many at random, in random order;
    `sorted` the same ones as `shuffle`, sorted by label and, within a label, in the order of the file. None: all records.
    """

    records: int | None = Field(default=None, ge=1)
    order: Literal["file", "shuffle", "sorted"] = "file"
    shuffle_seed: int = Field(default=0, ge=0, lt=2**63)
    normalise: bool = False


class WithoutTestFile(LibsvmOptions):
    """For data without a test file: the fraction of all records that is drawn at random and held out for testing."""

    test_fraction: float = Field(default=0.0, ge=0, lt=1)


class WithTestFile(LibsvmOptions):
    """For data with a test file: how many of its records are used (the first ones; None: all, 0: none)."""

    test_records: int | None = Field(default=None, ge=0)


class LibsvmSettings(WithoutTestFile):
    """Any file. The identity of a run has the content of the files, not where they lie.

    `dimension` is the number of features, None: the largest index of the files.
    """

    path: str | None = Field(default=None, exclude=True)
    test_path: str | None = Field(default=None, exclude=True)
    dimension: int | None = Field(default=None, ge=1)


class Ijcnn1Settings(WithTestFile):
    """The setting of arXiv 2308.01139: the first 2000 records, rows of unit norm; no test metrics unless asked for."""

    records: int | None = Field(default=2000, ge=1)
    normalise: bool = True
    test_records: int | None = Field(default=0, ge=0)


class A6aSettings(WithoutTestFile):
    """The setting of arXiv 2308.01139: all records, rows of unit norm."""

    normalise: bool = True


class A9aSettings(WithTestFile):
    """All records, rows of unit norm."""

    normalise: bool = True


@dataclass(frozen=True)
class LibsvmFile:
    """A file that has been read: its records, and the sha256 of its uncompressed content."""

    records: SparseRecords
    sha256: str


@dataclass(frozen=True)
class LibsvmFiles:
    """The files that a dataset reads, and their facts.

    Attributes:
      test: None where no test file is used.
      sha256: of all content.
      records, dimension, classes: of the training file: N, d, c.
      test_records: how many of the test file are used (the first ones; None: all).
    """

    train: Path
    test: Path | None
    sha256: str
    records: int
    dimension: int
    classes: int
    test_records: int | None = None


class LibsvmDataset:
    """Features [N, d] float64 and classes [N] int64 of a training file, with a test split from a file or held out."""

    name: ClassVar[str]

    @classmethod
    def files(cls, settings: LibsvmOptions) -> LibsvmFiles:
        """Finds and verifies the files."""
        raise NotImplementedError

    @classmethod
    def info(cls, settings: LibsvmOptions) -> DatasetInfo:
        """What is known of the data; the checksum covers whole files, whatever part of them is used."""
        files = cls.files(settings)
        return DatasetInfo(
            name=cls.name,
            source="real",
            sha256=files.sha256,
            feature_shape=(files.dimension,),
            classes=files.classes,
            records=_training_records(cls.name, settings, files.records),
            clients=None,
        )

    @classmethod
    def load(cls, settings: LibsvmOptions, seed: int) -> Dataset:
        """The records; they do not depend on the run's seed."""
        info = cls.info(settings)
        return Dataset(info, *_records(cls.files(settings), settings))


class NamedLibsvmDataset(LibsvmDataset):
    """A data set of the catalogue, known in size before its files are read."""

    dimension: ClassVar[int]
    size: ClassVar[int]  # records of the training file
    test_size: ClassVar[int] = 0  # records of the test file

    @classmethod
    def files(cls, settings: LibsvmOptions) -> LibsvmFiles:
        found = locate(cls.name)
        tested = settings.test_records if isinstance(settings, WithTestFile) else 0
        if tested is not None and tested > cls.test_size:
            raise ConfigError(_too_many("test_records", tested, cls.name, cls.test_size))
        test = None if tested == 0 else found[f"{cls.name}.t"]
        return LibsvmFiles(found[cls.name], test, content_sha256(found), cls.size, cls.dimension, 2, tested)


@component("dataset", "libsvm", revision=1, settings=LibsvmSettings)
class Libsvm(LibsvmDataset):
    """A file of yours in LIBSVM's format: dense or sparse, plain, gz, bz2 or xz."""

    name = "libsvm"

    @staticmethod
    def not_covered(settings: LibsvmSettings) -> list[str]:
        """Constants taken from the data, which no epsilon covers."""
        return ["number of features (largest index of the file)"] if settings.dimension is None else []

    @classmethod
    def files(cls, settings: LibsvmOptions) -> LibsvmFiles:
        """Reads the files: their sizes are not known otherwise."""
        assert isinstance(settings, LibsvmSettings)
        if settings.path is None:
            raise ConfigError("dataset.path: missing; name a file in LIBSVM's format, as dataset.path=FILE")
        if settings.test_path is not None and settings.test_fraction:
            raise ConfigError(
                f"dataset.test_fraction={settings.test_fraction:g}: dataset.test_path already names the test records; drop one"
            )
        paths = [Path(path).expanduser() for path in (settings.path, settings.test_path) if path is not None]
        read = [read_libsvm(path) for path in paths]
        dimension = settings.dimension or max(file.records.dimension for file in read)
        if not dimension:
            raise DataError(f"{paths[0]}: no record has a feature; write dataset.dimension if that is meant")
        for file in read:
            file.records.check_dimension(dimension)
        listing = "".join(f"{file.sha256}  {part}\n" for file, part in zip(read, ("train", "test"), strict=False))
        sha256 = hashlib.sha256(listing.encode()).hexdigest()
        train, test = read[0].records, paths[1] if len(paths) > 1 else None
        return LibsvmFiles(paths[0], test, sha256, len(train), dimension, len(label_values(train)))


@component("dataset", "ijcnn1", revision=1, settings=Ijcnn1Settings)
class Ijcnn1(NamedLibsvmDataset):
    """ijcnn1: engine misfires, 22 features (Prokhorov 2001; LIBSVM's transformed version)."""

    name = "ijcnn1"
    dimension = 22
    size = 49_990
    test_size = 91_701


@component("dataset", "a6a", revision=1, settings=A6aSettings)
class A6a(NamedLibsvmDataset):
    """a6a: 11,220 records of UCI Adult, 123 binary features (Platt 1998)."""

    name = "a6a"
    dimension = 123
    size = 11_220


@component("dataset", "a9a", revision=1, settings=A9aSettings)
class A9a(NamedLibsvmDataset):
    """a9a: UCI Adult, 123 binary features, with its test split a9a.t (Platt 1998)."""

    name = "a9a"
    dimension = 123
    size = 32_561
    test_size = 16_281


@component("dataset", "mushrooms", revision=1, settings=WithoutTestFile)
class Mushrooms(NamedLibsvmDataset):
    """mushrooms: UCI Mushroom, 112 binary features (Schlimmer 1987)."""

    name = "mushrooms"
    dimension = 112
    size = 8_124


def read_libsvm(path: Path) -> LibsvmFile:
    """A file, parsed; kept in the process until it changes.

    Raises:
      DataError: absent, unreadable, damaged, or not of the format; names the file, and the line where there is one.
    """
    try:
        stat = path.stat()
        return _read(path, stat.st_size, stat.st_mtime_ns)
    except OSError as error:
        raise DataError(f"{path}: {damage(error)}") from error


@lru_cache(maxsize=4)
def _read(path: Path, size: int, changed: int) -> LibsvmFile:
    """`size` and `changed` tell one content of the path from another."""
    try:
        content = uncompressed(path.read_bytes())
    except DataError as error:
        raise DataError(f"{path}: {error}") from error
    return LibsvmFile(parse_libsvm(content, str(path)), hashlib.sha256(content).hexdigest())


def label_values(records: SparseRecords) -> np.ndarray:
    """The labels that occur, ascending; the place of a label is its class.

    Raises:
      DataError: a label that is not a whole number (regression, not classes), or one label only.
    """
    broken = np.flatnonzero(records.labels % 1)
    if len(broken):
        raise DataError(
            f"{records.name}: line {records.lines[broken[0]]}: label {records.labels[broken[0]]:g} is not a whole number; "
            "dpfl reads labels as classes"
        )
    values = np.unique(records.labels)
    if len(values) < 2:
        raise DataError(f"{records.name}: every label is {values[0]:g}; classes need at least two labels")
    return values


def _training_records(name: str, options: LibsvmOptions, size: int) -> int:
    """How many records train, of `size` in the file; a ConfigError where there are not so many."""
    left = size - _held_out(options, size)
    if options.records is not None and options.records > left:
        raise ConfigError(_too_many("records", options.records, name, left, left < size))
    return options.records or left


def _too_many(field: str, wanted: int, name: str, there: int, held_out: bool = False) -> str:
    left = " left beside the test records" if held_out else ""
    return f"dataset.{field}={wanted}: {name} has {there} of them{left}; write at most that, or null for all"


def _held_out(options: LibsvmOptions, size: int) -> int:
    """Number of records held out for testing."""
    if not isinstance(options, WithoutTestFile) or not options.test_fraction:
        return 0
    held = int(options.test_fraction * size)
    if not held:
        raise ConfigError(
            f"dataset.test_fraction={options.test_fraction:g}: less than one of {size} records; write more, or 0 for none"
        )
    return held


@lru_cache(maxsize=4)
def _records(files: LibsvmFiles, options: LibsvmOptions) -> tuple[Records, Records | None]:
    """Training and test records."""
    pool = read_libsvm(files.train).records
    values = label_values(pool)
    train, held = _arranged(pool.labels, options)
    tested, rows = pool, held
    if files.test is not None:
        tested = read_libsvm(files.test).records
        rows = np.arange(len(tested))[: files.test_records]
    test = _made(tested, rows, values, files, options.normalise) if len(rows) else None
    return _made(pool, train, values, files, options.normalise), test


def _arranged(labels: np.ndarray, options: LibsvmOptions) -> tuple[np.ndarray, np.ndarray]:
    """Numbers of the records that train, in their order, and of those held out, in the order of the file."""
    mixed = stream_generator(options.shuffle_seed, "data").permutation(len(labels))
    held, rest = np.split(mixed, [_held_out(options, len(labels))])
    if options.order == "file":
        return np.sort(rest)[: options.records], np.sort(held)
    train = rest[: options.records]
    if options.order == "sorted":
        train = np.sort(train)
        train = train[np.argsort(labels[train], kind="stable")]
    return train, np.sort(held)


def _made(records: SparseRecords, rows: np.ndarray, values: np.ndarray, files: LibsvmFiles, normalise: bool) -> Records:
    """Some records as arrays; a DataError names the first whose label is none of `values`."""
    labels = records.labels[rows]
    targets = np.searchsorted(values, labels).clip(max=len(values) - 1)
    strange = np.flatnonzero(values[targets] != labels)
    if len(strange):
        raise DataError(
            f"{records.name}: line {records.lines[rows[strange[0]]]}: label {labels[strange[0]]:g} is none of those in "
            f"{files.train}: {', '.join(f'{value:g}' for value in values)}"
        )
    features = records.dense(rows, files.dimension)
    return Records(unit_rows(features) if normalise else features, targets.astype(np.int64))


def unit_rows(features: np.ndarray) -> np.ndarray:
    """Rows [N, d] scaled to unit L2 norm; zero rows stay zero. Scaled by the largest entry first: squares may overflow."""
    largest = np.abs(features).max(axis=1, keepdims=True)
    scaled = np.divide(features, largest, out=np.zeros_like(features), where=largest > 0)
    norms = np.sqrt(np.square(scaled).sum(axis=1, keepdims=True))
    return np.divide(scaled, norms, out=scaled, where=norms > 0)
