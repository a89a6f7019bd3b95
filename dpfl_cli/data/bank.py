"""Bank Marketing: who subscribes to a term deposit, from 16 attributes of a client and of the calls (Moro, Cortez, Rita 2014).

The file has a line for every record, fields between `;`, words in quotes, and names of its columns in the first line. Numbers
are standardised with the mean and standard deviation of the training records; a word becomes one input for each word of its
column (one-hot), or its place among them, standardised like a number (ordinal). The class is 1 where y is "yes". `duration` is
known only when a call has ended, and with it nearly the class; it is kept, as is usual.

What is drawn (the records held out) is drawn from `data_seed`, not from the run's seed.
"""

from __future__ import annotations

import csv
import hashlib
import io
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal

import numpy as np
from pydantic import Field

from dpfl_cli.config.component import Settings, component
from dpfl_cli.config.errors import ConfigError, DataError
from dpfl_cli.data.catalogue import catalogue_entry
from dpfl_cli.data.federation import Dataset, DatasetInfo, Records
from dpfl_cli.data.sources import locate, read_uncompressed
from dpfl_cli.data.streams import stream_generator

HELD_OUT = 0.2
_YES_NO, _UNKNOWN = ("no", "yes"), "unknown"
# Columns in the order of the file; a column of words has them in the order of their inputs.
COLUMNS: dict[str, tuple[str, ...] | None] = {
    "age": None,
    "job": (
        *("admin.", "blue-collar", "entrepreneur", "housemaid", "management", "retired", "self-employed", "services"),
        *("student", "technician", "unemployed", _UNKNOWN),
    ),
    "marital": ("divorced", "married", "single"),
    "education": ("primary", "secondary", "tertiary", _UNKNOWN),
    "default": _YES_NO,
    "balance": None,
    "housing": _YES_NO,
    "loan": _YES_NO,
    "contact": ("cellular", "telephone", _UNKNOWN),
    "day": None,
    "month": ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"),
    "duration": None,
    "campaign": None,
    "pdays": None,
    "previous": None,
    "poutcome": ("failure", "other", "success", _UNKNOWN),
}
TARGET = "y"
LEAKAGE = "bank.csv, whose records are among those of bank-full.csv: test records are training records (leakage)"


class BankSettings(Settings):
    """Which records test and train, and how words become numbers.

    `test`: `holdout20` holds out a fifth of the records at random; `bank_csv` tests on the published sample of 4,521 of the
    training records, as the adaptdp paper seems to; `none`. `train_records`: so many of the others at random; None: all.
    `path`, `test_path`: files of yours in the published format, whose content, not their place, is in a run's identity;
    without a `test_path` the sample is bank.csv beside the training file.
    """

    test: Literal["holdout20", "bank_csv", "none"] = "holdout20"
    categorical: Literal["onehot", "ordinal"] = "onehot"
    train_records: int | None = Field(default=None, ge=1)
    data_seed: int = Field(default=0, ge=0, lt=2**63)
    path: str | None = Field(default=None, exclude=True)
    test_path: str | None = Field(default=None, exclude=True)


@dataclass(frozen=True)
class BankRecords:
    """A file that has been read.

    Attributes:
      columns: [N, 16] float64, numbers as written, words as their places; in the order of `COLUMNS`.
      targets: [N] int64, 1 for yes.
      lines: [N] line of the file, counted from 1.
      sha256: of the uncompressed content.
    """

    columns: np.ndarray
    targets: np.ndarray
    lines: Sequence[int]
    sha256: str

    def whole(self) -> np.ndarray:
        """[N, 17] columns and targets."""
        return np.column_stack((self.columns, self.targets))

    def __len__(self) -> int:
        return len(self.targets)


@component("dataset", "bank", revision=1, settings=BankSettings)
class Bank:
    """Bank Marketing: 45,211 calls of a Portuguese bank, 16 attributes, 2 classes (Moro, Cortez, Rita 2014)."""

    @staticmethod
    def not_covered(settings: BankSettings) -> list[str]:
        """Constants taken from the data, which no epsilon covers, and a test split that is none."""
        items = ["means and standard deviations of the training records' numbers (standardising)"]
        return [*items, f"test split {LEAKAGE}"] if settings.test == "bank_csv" else items

    @staticmethod
    def info(settings: BankSettings) -> DatasetInfo:
        """Finds, verifies and reads the files; the checksum covers whole files, whatever part of them is used."""
        train, test = _files(settings)
        left = len(train) - _held_out(settings, train)
        if settings.train_records is not None and settings.train_records > left:
            raise ConfigError(
                f"dataset.train_records={settings.train_records}: bank has {left} of them; write at most that, or null for all"
            )
        listing = "".join(f"{file.sha256}  {part}\n" for file, part in ((train, "train"), (test, "test")) if file is not None)
        return DatasetInfo(
            name="bank",
            source="real",
            sha256=hashlib.sha256(listing.encode()).hexdigest(),
            feature_shape=(_inputs(settings),),
            classes=2,
            records=settings.train_records or left,
            clients=None,
            details={"test_split": LEAKAGE} if settings.test == "bank_csv" else {},
        )

    @staticmethod
    def load(settings: BankSettings, seed: int) -> Dataset:
        """Features [N, 51] (ordinal: [N, 16]) float64 and classes [N] int64; they do not depend on the run's seed."""
        info = Bank.info(settings)
        return Dataset(info, *_records(info.sha256, settings))


def _inputs(settings: BankSettings) -> int:
    return len(COLUMNS) if settings.categorical == "ordinal" else sum(len(words or (None,)) for words in COLUMNS.values())


def _files(settings: BankSettings) -> tuple[BankRecords, BankRecords | None]:
    """The file of the training records, and that of the test records where they have one of their own."""
    if settings.test_path is not None and settings.test != "bank_csv":
        raise ConfigError(
            f"dataset.test_path={settings.test_path}: dataset.test={settings.test} uses no file of test records; "
            "write dataset.test=bank_csv, or drop it"
        )
    path = Path(settings.path).expanduser() if settings.path else locate("bank")["bank-full.csv"]
    train = read_bank(path)
    if settings.test != "bank_csv":
        return train, None
    sample = Path(settings.test_path).expanduser() if settings.test_path else path.with_name("bank.csv")
    if settings.test_path is None and not sample.exists():
        (archive,) = catalogue_entry("bank").sources
        raise DataError(
            f"dataset.test=bank_csv: no bank.csv beside {path}; take it from {archive}, or name it, as dataset.test_path=FILE"
        )
    test = read_bank(sample)
    known = {row.tobytes() for row in train.whole()}
    strange = next((line for row, line in zip(test.whole(), test.lines, strict=True) if row.tobytes() not in known), None)
    if strange is not None:  # no checksum of the sample is published: this is what is known of it
        raise DataError(f"{sample}: line {strange}: a record that is none of {path}, of which the sample is a part")
    return train, test


def _held_out(settings: BankSettings, train: BankRecords) -> int:
    """Number of records held out for testing; a DataError where nothing would train or test."""
    if settings.test != "holdout20":
        return 0
    held = int(HELD_OUT * len(train))
    if not held:
        raise DataError(f"bank: a fifth of {len(train)} records is less than one; write dataset.test=none")
    return held


def read_bank(path: Path) -> BankRecords:
    """A file, plain or compressed; kept in the process until it changes.

    Raises:
      DataError: absent, unreadable, or not of the format; names the file, and line and column where there are any.
    """
    try:
        stat = path.stat()
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from error
    return _read(path, stat.st_size, stat.st_mtime_ns)


@lru_cache(maxsize=4)
def _read(path: Path, size: int, changed: int) -> BankRecords:
    """`size` and `changed` tell one content of the path from another."""
    content = read_uncompressed(path)
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise DataError(f"{path}: line {line}: byte {content[error.start]:#04x} is no UTF-8 text") from error
    head = next((line for line in text.splitlines() if line.strip()), "")
    if ";" not in head and (mark := next((mark for mark in (",", "\t", "|") if mark in head), None)):
        raise DataError(f"{path}: line 1: no ';', between which columns stand in this format; the file seems to have {mark!r}")
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=";", strict=True)
    rows, lines = [], []
    try:
        for row in reader:
            if row:  # lines without a field are between records, or at the end
                rows.append(row)
                lines.append(reader.line_num)
    except csv.Error as error:
        raise DataError(f"{path}: line {reader.line_num}: {error}") from error
    if not rows:
        raise DataError(f"{path}: empty; the first line names the columns age;job;...;y")
    places = _places(path, lines[0], rows[0])
    if len(rows) == 1:
        raise DataError(f"{path}: no records below the names of the columns")
    for row, line in zip(rows, lines, strict=True):
        if len(row) != len(rows[0]):
            raise DataError(f"{path}: line {line}: {len(row)} fields, but the first line names {len(rows[0])} columns")
    fields, lines = list(zip(*rows[1:], strict=True)), lines[1:]
    columns = np.empty((len(lines), len(COLUMNS)))
    for number, (name, words) in enumerate(COLUMNS.items()):
        column = fields[places[name]]
        columns[:, number] = _numbers(path, lines, name, column) if words is None else _codes(path, lines, name, column, words)
    targets = _codes(path, lines, TARGET, fields[places[TARGET]], _YES_NO).astype(np.int64)
    return BankRecords(columns, targets, lines, hashlib.sha256(content).hexdigest())


def _places(path: Path, line: int, names: list[str]) -> dict[str, int]:
    """Column name -> its place, for all columns and no others."""
    wanted = [*COLUMNS, TARGET]
    where = f"{path}: line {line}"
    for name in wanted:
        if name not in names:
            raise DataError(f"{where}: no column '{name}'; the columns are {', '.join(wanted)}")
    for place, name in enumerate(names):
        if name not in wanted or name in names[:place]:
            what = "twice" if name in wanted else "which is none of this format"
            raise DataError(f"{where}: column '{name}', {what}; the columns are {', '.join(wanted)}")
    return {name: place for place, name in enumerate(names)}


def _numbers(path: Path, lines: Sequence[int], name: str, column: Sequence[str]) -> np.ndarray:
    """[N] float64; finite."""
    try:
        values = np.array(column, dtype=np.float64)
    except ValueError:
        values = np.array([_number(field) for field in column])
    strange = np.flatnonzero(~np.isfinite(values))
    if len(strange):
        raise DataError(f"{path}: line {lines[strange[0]]}: column '{name}': '{column[strange[0]]}' is not a finite number")
    return values


def _number(field: str) -> float:
    try:
        return float(field)
    except ValueError:
        return np.nan


def _codes(path: Path, lines: Sequence[int], name: str, column: Sequence[str], words: Sequence[str]) -> np.ndarray:
    """[N] float64 places of the column's words."""
    known = {word: float(place) for place, word in enumerate(words)}
    values = np.array([known.get(field, np.nan) for field in column])
    strange = np.flatnonzero(np.isnan(values))
    if len(strange):
        raise DataError(
            f"{path}: line {lines[strange[0]]}: column '{name}': unknown category '{column[strange[0]]}'; "
            f"the categories are {', '.join(words)}"
        )
    return values


@lru_cache(maxsize=4)
def _records(sha256: str, settings: BankSettings) -> tuple[Records, Records | None]:
    """Training and test records, in the order of their files; kept by content, which is why the checksum is an argument."""
    pool, sample = _files(settings)
    mixed = stream_generator(settings.data_seed, "data").permutation(len(pool))
    held, rest = np.split(mixed, [_held_out(settings, pool)])
    rows = np.sort(rest[: settings.train_records])
    train = pool.columns[rows]
    means, deviations = train.mean(axis=0), train.std(axis=0)
    deviations[deviations == 0] = 1.0

    def made(columns: np.ndarray, targets: np.ndarray) -> Records:
        scaled = (columns - means) / deviations
        if settings.categorical == "ordinal":
            return Records(scaled, targets)
        parts = [
            scaled[:, [number]] if words is None else np.eye(len(words))[columns[:, number].astype(np.int64)]
            for number, words in enumerate(COLUMNS.values())
        ]
        return Records(np.concatenate(parts, axis=1), targets)

    tested = (
        (sample.columns, sample.targets) if sample is not None else (pool.columns[np.sort(held)], pool.targets[np.sort(held)])
    )
    return made(train, pool.targets[rows]), made(*tested) if len(tested[1]) else None
