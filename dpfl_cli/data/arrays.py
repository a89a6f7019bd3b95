"""A user's own records: `dataset=arrays`, from a file of arrays, a table or a PyTorch Dataset, and
`partitioner=file`, who holds which of them.
"""

import hashlib
import io
import re
from itertools import zip_longest
from pathlib import Path
from textwrap import shorten
from typing import Any

import numpy as np
from numpy import ndarray

from dpfl_cli.config.component import component
from dpfl_cli.config.errors import ConfigError, DataError, nearest, without_values
from dpfl_cli.config.own_files import OwnFile, content_of, is_code, own_object, read_own
from dpfl_cli.data.federation import Dataset, DatasetInfo, Partition, Records
from dpfl_cli.data.loading import Kept, NamedArrays, OwnRecordsSettings, held_out_of, logger
from dpfl_cli.data.sources import LARGEST, listing_sha256
from dpfl_cli.data.tables import text_table

FEW = 4  # records a class has on average, where whole numbers are labels
SHOWN = 12  # names of features
MISSING = ("", "na", "nan", "n/a", "nat", "null", "none")  # as R, pandas and people write it


class ArraysSettings(OwnRecordsSettings):
    """And the arrays or columns that hold targets and clients."""

    targets: str = "targets"
    clients: str = "clients"


# Records as the user gave them: "features" [N, ...] finite numbers, float32 unless they were
# float64; "targets" [N], whole numbers or strings (classes) or floats (regression); and "clients"
# [N] whose they are, in whatever names, where somebody says so.
KINDS = {"features": "buif", "targets": "buifUS", "clients": "buifUS"}  # of the arrays' types
TABLES = (".csv", ".tsv", ".parquet")


def pool_sha256(pool: NamedArrays) -> str:
    """Of what the arrays hold."""
    found = hashlib.sha256()
    for one in pool.values():
        found.update(f"{one.dtype.str} {one.shape}\n".encode() + one.tobytes())
    return found.hexdigest()


@component("dataset", "arrays", ArraysSettings, revision=2)
class Arrays(Kept):
    """Records of yours: arrays `features` [N, ...], `targets` [N] and, if you like, `clients` [N]
    of a .npz file; a table (.csv, .tsv, .parquet) with columns of these names, all others being
    features; or a torch Dataset, as FILE.py:NAME.

    Targets that are whole numbers or texts are labels, and become classes in ascending order;
    floats are regression. A Dataset is map-style; its items are (features, target) or (features,
    target, client).
    """

    @staticmethod
    def content(settings: ArraysSettings) -> tuple[str, ...]:
        """Of the files."""
        paths = settings.files("my.npz or data.py:NAME")
        return tuple(content_of(path, f"dataset.{name}=") for name, path in paths.items())

    @staticmethod
    def not_covered(settings: ArraysSettings) -> list[str]:
        """Of a file of its own."""
        return settings.public()

    @staticmethod
    def make(settings: ArraysSettings, content: tuple[str, ...]) -> Dataset:
        """Which records are held out does not depend on the run's seed either."""
        paths = settings.files("my.npz")
        pools = {name: _pool(f"dataset.{name}", path, settings) for name, path in paths.items()}
        pool, test = pools["path"], pools.get("test_path")
        columns = [list(one.pop("columns", ())) for one in pools.values()]
        if columns[0] != columns[-1]:
            pairs = zip_longest(columns[0], columns[-1], fillvalue="missing")
            ours, theirs = next(pair for pair in pairs if pair[0] != pair[1])
            raise DataError(
                f"dataset.test_path={settings.test_path}: its features are not those of "
                f"dataset.path ({theirs} where that has {ours}); write the same columns in the "
                "same order"
            )
        if columns[0]:  # an id among them would be trained on
            shown = [*columns[0][:SHOWN], "..."][: len(columns[0])]
            logger.info("dataset.path=%s: features %s", settings.path, ", ".join(shown))
        contents = {name: pool_sha256(one) for name, one in pools.items()}
        trained = len(contents) > len({*contents.values()})
        if trained:
            logger.warning(
                "dataset.test_path=%s has the records of dataset.path: metrics are of what was "
                "trained on",
                settings.test_path,
            )
        sha256 = listing_sha256(contents)
        targets = pool["targets"]
        size = len(targets)
        labels = None if targets.dtype.kind == "f" else np.unique(targets)
        if labels is not None and len(labels) < 2:
            raise DataError(
                f"dataset.path={settings.path}: all targets are equal; classes need two labels, "
                "and regression floats"
            )
        if labels is not None and labels.dtype.kind in "iu" and len(labels) * FEW > size:
            logger.warning(
                "dataset.path=%s: %d whole numbers as targets of %d records are that many classes; "
                "for regression write floats (30.0)",
                settings.path,
                len(labels),
                size,
            )
        if settings.test_fraction:
            tested = held_out_of(pool, settings.test_fraction)
            pool, test = (
                {name: one[rows] for name, one in pool.items()} for rows in (~tested, tested)
            )
        features, targets = pool["features"], pool["targets"]
        natural, names = None, None
        if "clients" in pool:
            names, natural = np.unique(pool["clients"], return_inverse=True)
        whole = labels is None and (targets == np.floor(targets)).all()
        if whole and len(np.unique(targets)) <= FEW:
            logger.warning(
                "dataset.path=%s: targets are written as fractions (%.1f), and so regression; for "
                "classes write whole numbers or words",
                settings.path,
                targets[0],
            )
        info = DatasetInfo(
            name="arrays",
            source="real",
            sha256=sha256,
            feature_shape=features.shape[1:],
            classes=None if labels is None else len(labels),
            records=len(targets),
            clients=None if names is None else len(names),
        )
        train = Records(features, _encoded(targets, labels, "dataset.path"))
        if test is None:
            return Dataset(info, train, None, natural)
        unseen = test["features"]
        if unseen.shape[1:] != info.feature_shape:
            raise DataError(
                f"dataset.test_path={settings.test_path}: features {list(unseen.shape[1:])} "
                f"a record, and the training records have {list(info.feature_shape)}"
            )
        encoded = _encoded(test["targets"], labels, "dataset.test_path")
        tests = Records(unseen.astype(features.dtype), encoded)
        private = trained or settings.test_fraction > 0
        return Dataset(info, train, tests, natural, tests_held=private)


@component("partitioner", "file", OwnFile)
class File:
    """As a file says: a .npy array [N] with the client (0, 1, ...) of every training record, -1 for
    nobody's; or the partition.npz of a run.
    """

    not_covered = ("who holds what, where it follows from the records",)

    @staticmethod
    def clients(settings: OwnFile, info: DatasetInfo) -> int:
        """M, as the file has it."""
        return _partition(settings.path, info.records).clients

    @staticmethod
    def partition(settings: OwnFile, dataset: Dataset, seed: int) -> Partition:
        """The file's; nothing is drawn."""
        return _partition(settings.path, len(dataset.train))


def _pool(option: str, path: str, settings: ArraysSettings) -> NamedArrays:
    """The records of a file or of a torch Dataset, checked; of a table also the names of the
    features, "columns".
    """
    where = f"{option}={path}"
    if is_code(path):
        if (settings.targets, settings.clients) != ("targets", "clients"):
            raise ConfigError(
                "dataset.targets, dataset.clients: names in files; an item of a Dataset is "
                "(features, target) or (features, target, client)"
            )
        given = _of_dataset(path, option)
    elif settings.targets == settings.clients:
        raise ConfigError(f"dataset.clients={settings.clients}: has the targets; name another")
    else:
        read = _of_table if Path(path).suffix.lower() in TABLES else _of_arrays
        given = read(read_own(path, f"{option}="), where, settings)
    if missing := [name for name in ("features", "targets") if name not in given]:
        raise DataError(f"{where}: no {' and no '.join(missing)}; it has {', '.join(given)}")
    pool = {name: given[name] for name in KINDS if name in given}
    for name, one in pool.items():
        if one.dtype.kind not in KINDS[name]:
            raise DataError(f"{where}: {name} are {one.dtype}, not numbers")
        if one.dtype.kind == "f" and not np.isfinite(one).all():
            record = np.isfinite(one.reshape(len(one), -1)).all(axis=1).argmin()
            raise DataError(f"{where}: {name} are not finite in record {record}")
    features, *sides = pool.values()
    fits = all(one.shape == features.shape[:1] for one in sides)
    if features.ndim < 2 or not features.size or not fits:
        shapes = ", ".join(f"{name} {list(one.shape)}" for name, one in pool.items())
        raise DataError(
            f"{where}: {shapes}; write features [N, ...], targets [N] and, if any, clients [N]"
        )
    if features.dtype != np.float64:
        pool["features"] = features.astype(np.float32)
    return pool | ({"columns": given["columns"]} if "columns" in given else {})


def _of_arrays(content: bytes, where: str, settings: ArraysSettings) -> NamedArrays:
    try:
        found = dict(_numpy(content).items())
    except (ValueError, AttributeError) as error:
        raise DataError(
            f"{where}: not a .npz file of arrays, or damaged ({error}); write one with "
            f"numpy.savez or a table ({', '.join(TABLES)}), or name a torch Dataset as FILE.py:NAME"
        ) from error
    names = {"features": "features", "targets": settings.targets, "clients": settings.clients}
    if missing := [name for name in names.values() if name not in {*found, "clients"}]:
        raise DataError(f"{where}: no array {' and no '.join(missing)}; it has {', '.join(found)}")
    return {kind: found[name] for kind, name in names.items() if name in found}


def _of_table(content: bytes, where: str, settings: ArraysSettings) -> NamedArrays:
    """The columns of targets and clients, all others as "features" and their names as "columns".

    Cells of text files are read as texts: what pandas makes of a column may differ from part to
    part of it, so that one client would become two.
    """
    import pandas as pd  # half a second, which other runs do not wait for

    try:
        if content.startswith(b"PAR1"):
            table = pd.read_parquet(io.BytesIO(content))
        else:
            table = text_table(content.decode("utf-8-sig"))
    except ImportError as error:
        raise ConfigError(
            f"{where}: needs pyarrow: pip install '.[parquet]' in dpfl's folder, or write .csv"
        ) from error
    except Exception as error:  # there is no list of what reading a damaged one raises
        known = isinstance(error, pd.errors.ParserError | pd.errors.EmptyDataError | DataError)
        what = str(error).strip().partition("\n")[0] if known else type(error).__name__
        if isinstance(error, UnicodeDecodeError):
            what = "no text in UTF-8: save it as that"
        raise DataError(f"{where}: not a table ({what})") from error
    given: dict[str, ndarray] = {}
    for kind, name in (("targets", settings.targets), ("clients", settings.clients)):
        if name in table:
            column = table.pop(name)
            if (empty := column.isna() | (column == "")).any():
                raise DataError(
                    f"{where}: column {name} is empty in record {empty.argmax()} (counted from 0); "
                    "leave that record out, or write what is missing"
                )
            odd = ~np.isfinite(pd.to_numeric(column, errors="coerce").to_numpy(np.float64))
            words = column[odd].astype(str).str.strip().str.lower()
            # a missing number is no class, nor a client, of its own; among texts it may be one
            if odd.any() and words.isin([*MISSING, "inf", "-inf"]).all():
                raise DataError(
                    f"{where}: column {name} is {column[odd].iloc[0]!r} in record {odd.argmax()} "
                    "(counted from 0), and numbers in all others: leave that record out, or write "
                    "another word"
                )
            given[kind] = _values(column, fractions=kind == "targets")
        elif name != "clients":
            raise DataError(
                f"{where}: no column {name}; {nearest(name, map(str, table))} (name that with "
                f"{kind} by dataset.{kind}=COLUMN)"
            )
    if table.empty:
        records, features = table.shape
        raise DataError(f"{where}: {records} records of {features} features; write at least one")
    for name in map(str, table):
        numbers = pd.to_numeric(table[name].replace({"True": 1, "False": 0}), errors="coerce")
        good = np.isfinite(numbers.to_numpy(np.float64, na_value=np.nan)) & table[name].notna()
        if not good.all() or table[name].dtype.kind in "mM":
            record, how = good.argmin(), "write categories as numbers, as pandas.get_dummies does"
            if re.fullmatch(r"\s*[+-]?\d*,\d+\s*", str(table[name].iloc[record])):
                how = "write decimals with a point"
            if "clients" not in given:
                how += f" (dataset.clients={name} where it says whose a record is)"
            what = f"{table[name].iloc[record]!r}, no finite number,"
            if str(table[name].iloc[record]).strip().lower() in MISSING:
                what, how = "empty", "fill it (with a mean of the records no epsilon would hold)"
            raise DataError(
                f"{where}: column {name} is {what} in record {record} (counted from 0); leave it "
                f"out, or {how}"
            )
        table[name] = numbers.astype(np.float64)
    return {"features": table.to_numpy(np.float64), **given, "columns": np.array([*table], str)}


def _values(column: Any, fractions: bool) -> ndarray:
    """[N] the cells of a column: whole numbers where all of them are written as such, without
    leading zeros; floats, where they may be; else texts, in which 01 and 1 are two.
    """
    values: ndarray = column.to_numpy()
    if values.dtype.kind != "O":
        return values
    texts = column.astype(str)
    if texts.str.fullmatch(r"0|-?[1-9]\d{0,17}").all():
        return values.astype(np.int64)
    decimal = texts.str.fullmatch(r"-?\d*\.?\d+([eE][-+]?\d+)?|-?\d+\.")
    if fractions and decimal.all() and texts.str.contains(r"[.eE]").any():
        return values.astype(np.float64)
    return values.astype(str)


def _numpy(content: bytes) -> Any:
    """The array of a .npy file, or those of a .npz file by name; a ValueError says what is wrong,
    such as an encrypted archive or one that unpacks to more than LARGEST bytes.
    """
    if not content.startswith((b"PK", b"\x93NUMPY")):
        raise ValueError("it begins as neither .npz nor .npy does" if content else "it is empty")
    try:
        found = np.load(io.BytesIO(content), allow_pickle=False)
        if isinstance(found, ndarray):
            return found
        if sum(member.file_size for member in found.zip.infolist()) > LARGEST:
            raise ValueError(f"more than {LARGEST} bytes unpacked")
        return {name: np.asarray(found[name]) for name in found.files}
    except Exception as error:  # there is no list of what reading a damaged one raises
        raise ValueError(str(error)) from error


def _of_dataset(path: str, option: str) -> NamedArrays:
    """All items of a torch Dataset, or of what a class or function without arguments gives."""
    found = own_object(path, option, "data.py:NAME")
    try:
        data = found() if callable(found) else found
        columns = zip(*(data[number] for number in range(len(data))), strict=True)
        arrays = [np.stack([np.asarray(one) for one in column]) for column in columns]
    except Exception as error:
        raise ConfigError(
            f"{option}={path}: {without_values(error)}; it must be a Dataset with a length whose "
            "items are (features, target) or (features, target, client); --debug shows more"
        ) from error
    return dict(zip(("features", "targets", "clients"), arrays, strict=False))


def _encoded(targets: ndarray, labels: ndarray | None, option: str) -> ndarray:
    """The places of targets among the labels, or the numbers themselves."""
    if labels is None:
        if targets.dtype.kind in "US":
            raise DataError(f"{option}: targets are texts, and those of dataset.path numbers")
        return targets.astype(np.float64)
    if not (known := np.isin(targets, labels)).all():
        some = shorten(", ".join(map(str, labels)), 60, placeholder=" ...")
        other = targets[known.argmin()]
        raise DataError(f"{option}: label {other} is none of those in dataset.path ({some})")
    return np.searchsorted(labels, targets).astype(np.int64)


def _partition(path: str | None, records: int) -> Partition:
    """A partition file, checked against the number of training records."""
    if path is None:
        raise ConfigError("partitioner.path: missing; name a file, as partitioner.path=clients.npy")
    where, content = f"partitioner.path={path}", read_own(path, "partitioner.path=")
    try:
        found = _numpy(content)
        if isinstance(found, ndarray):
            owners, size = found.astype(np.int64, casting="same_kind"), len(found)
            if owners.max(initial=0) > size or owners.min(initial=0) < -1:
                raise ValueError(
                    f"a client's number is below -1 or above {size}, the number of records"
                )
            counts = np.bincount(owners[owners >= 0])
            order = np.argsort(owners, kind="stable")
            made = Partition.from_counts(order[size - counts.sum() :], counts)
        else:
            parts = (np.atleast_1d(found[name]) for name in ("indices", "offsets"))
            made = Partition(*(part.astype(np.int64, casting="same_kind") for part in parts))
            size = records
    except (ValueError, TypeError, KeyError) as error:
        raise DataError(
            f"{where}: neither a .npy array of clients [N] nor a run's partition.npz ({error})"
        ) from error
    cuts = made.offsets
    whole = len(cuts) > 1 and cuts[0] == 0 and cuts[-1] == len(made.indices)
    known = np.intersect1d(made.indices, np.arange(records))  # each of them once
    if size != records or len(known) < len(made.indices) or not whole or made.counts.min() < 0:
        raise DataError(
            f"{where}: does not deal the {records} training records of this dataset, each to one "
            "client at most; make it from the same records (those held out for the test, as by "
            "dataset.test_fraction, are not among them)"
        )
    return made
