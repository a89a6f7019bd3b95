"""Bank Marketing: who subscribes to a term deposit, from 16 attributes of a client and of the calls
(Moro, Cortez, Rita 2014).

The file has a line for every record and names of its columns in the first line. Numbers are
standardised with the mean and standard deviation of the training records; a word becomes one input
for each word of its column (one-hot), or its place among them, standardised like a number
(ordinal). The class is 1 where y is "yes". `duration` is known only when a call has ended, and with
it nearly the class; it is kept, as is usual.

What is drawn (the records held out) is drawn from `data_seed`, not from the run's seed.
"""

from pathlib import Path
from typing import Literal

import numpy as np

from dpfl_cli.data.derive import facts
from dpfl_cli.data.loading import (
    ConfigError,
    Count,
    DataError,
    Dataset,
    DatasetInfo,
    Files,
    Kept,
    OwnPath,
    Records,
    SeededSettings,
    catalogue_entry,
    component,
    content_sha256,
    expanded,
    locate,
    read_table,
    used,
)

HELD_OUT = 0.2
# Columns in the order of the file; a column of words has them in the order of their inputs.
COLUMNS: dict[str, list[str] | None] = facts("bank")
LEAKAGE = (
    "bank.csv, whose records are among those of bank-full.csv: test records are training records "
    "(leakage)"
)


class BankSettings(SeededSettings):
    """Which records test and train, and how words become numbers.

    `test`: `holdout20` holds out a fifth of the records at random; `bank_csv` tests on the
      published sample of 4,521 of the training records, as the adaptdp paper seems to; `none`.
    `train_records`: so many of the others at random; None: all.
    `path`, `test_path`: files of yours in the published format, whose content, not their place, is
      in a run's identity; without a `test_path` the sample is bank.csv beside the training file.
    """

    test: Literal["holdout20", "bank_csv", "none"] = "holdout20"
    categorical: Literal["onehot", "ordinal"] = "onehot"
    train_records: Count | None = None
    path: OwnPath = None
    test_path: OwnPath = None


def read_bank(path: Path) -> np.ndarray:
    """[N, 17] float64, the records of a file, plain or compressed: columns in the order of
    `COLUMNS`, numbers as written and words as their places, then `y`, 1 for yes.

    Raises:
      DataError: absent, unreadable, or not of the format; names the file, and record and column
        where there are any.
    """
    words_of = {**COLUMNS, "y": ["no", "yes"]}
    table = read_table(path, list(words_of))
    columns = [
        table.numbers(name) if words is None else table.places(name, words)
        for name, words in words_of.items()
    ]
    return np.column_stack(columns)


@component("dataset", "bank", BankSettings)
class Bank(Kept):
    """Bank Marketing: 45,211 calls of a Portuguese bank, 16 attributes, 2 classes (Moro, Cortez,
    Rita 2014).
    """

    @staticmethod
    def not_covered(settings: BankSettings) -> list[str]:
        """Constants taken from the data, which no epsilon covers, and a test split that is none."""
        items = ["means and standard deviations of the training records' numbers (standardising)"]
        return [*items, f"test split {LEAKAGE}"] if settings.test == "bank_csv" else items

    @staticmethod
    def content(settings: BankSettings) -> str:
        """The checksum of whole files, whatever part of them is used."""
        return content_sha256(_files(settings))

    @staticmethod
    def make(settings: BankSettings, sha256: str) -> Dataset:
        """Features [N, 51] (ordinal: [N, 16]) float64 and classes [N] int64, in the order of the
        files.
        """
        paths = _files(settings)
        files = {part: read_bank(path) for part, path in paths.items()}
        if "test" in files:  # no checksum of the sample is published: so much is known of it
            known, sample = (set(map(tuple, file.tolist())) for file in files.values())
            if not sample <= known:
                raise DataError(
                    f"{paths['test']}: has records that are none of {paths['train']}; it is no "
                    "part of that"
                )
        size = len(files["train"])
        count = int(HELD_OUT * size) if settings.test == "holdout20" else 0
        mixed = settings.generator().permutation(size)
        held, rest = np.split(mixed, [count])
        rows = np.sort(rest[: used("bank", "train_records", settings.train_records, len(rest))])
        train = files["train"][rows, :-1]
        means, deviations = train.mean(axis=0), train.std(axis=0)
        deviations[deviations == 0] = 1.0

        def made(part: str, rows: np.ndarray) -> Records:
            some, targets = files[part][rows, :-1], files[part][rows, -1].astype(np.int64)
            scaled = (some - means) / deviations
            if settings.categorical == "ordinal":
                return Records(scaled, targets)
            parts = [
                np.eye(len(words))[some[:, number].astype(np.int64)]
                if words
                else scaled[:, [number]]
                for number, words in enumerate(COLUMNS.values())
            ]
            return Records(np.concatenate(parts, axis=1), targets)

        records, test = made("train", rows), None
        if "test" in files:
            test = made("test", np.arange(len(files["test"])))
        elif count:
            test = made("train", np.sort(held))
        details = {"test_split": LEAKAGE} if "test" in files else {}
        shape = records.features.shape[1:]
        info = DatasetInfo("bank", "real", sha256, shape, 2, len(rows), details=details)
        return Dataset(info, records, test, tests_held=True)


def _files(settings: BankSettings) -> Files:
    """The file of the training records, and that of the test records where they have one of their
    own.
    """
    if settings.test_path is not None and settings.test != "bank_csv":
        raise ConfigError(
            f"dataset.test_path={settings.test_path}: dataset.test={settings.test} uses no file of "
            "test records; write dataset.test=bank_csv, or drop it"
        )
    path = expanded(settings.path) if settings.path else locate("bank")["bank-full.csv"]
    if settings.test != "bank_csv":
        return {"train": path}
    given = settings.test_path
    sample = path.with_name("bank.csv") if given is None else expanded(given)
    if given is None and not sample.exists():
        (archive,) = catalogue_entry("bank").sources
        raise DataError(
            f"dataset.test=bank_csv: no bank.csv beside {path}; take it from {archive}, or name "
            "it, as dataset.test_path=FILE"
        )
    return {"train": path, "test": sample}
