"""What the file of a data set needs, in one import; what loaders share is here: how many records
are used, which are held out for testing; data sets that come as a folder of many files, and those
that are generated.

A folder is looked for by name below the folders of `DPFL_DATA` and then below the cache; it is
never fetched. No checksum of such a folder is published: the loader verifies the structure of the
files that it reads, and the sha256 of their content is part of a run's identity. Decoding thousands
of files takes minutes, so that its result is kept in the cache under that checksum.

What is prepared from data is kept below the cache folder, and verified by its content: a file
begins with the sha256 of the rest, a numpy archive, and one that is damaged is made anew.
"""

import fcntl
import hashlib
import io
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Annotated, Any
from zlib import crc32

import numpy as np
from numpy import ndarray
from pydantic import Field

from dpfl_cli.config.component import (
    Count,
    Seed,
    SeedOrNone,
    Settings,
    Share,
    component,
    lookup,
)
from dpfl_cli.config.errors import AbsentData, ConfigError, DataError
from dpfl_cli.config.own_files import OwnPath
from dpfl_cli.config.paths import expanded
from dpfl_cli.data.federation import Dataset, DatasetInfo, Partition, Records
from dpfl_cli.data.files import with_digest, without_digest, write_atomically
from dpfl_cli.data.programs import logger
from dpfl_cli.data.sources import (
    FOLDERS,
    Files,
    cache_dir,
    catalogue_entry,
    content_sha256,
    digest,
    locate,
    read_uncompressed,
    search_path,
    searched,
    status,
)
from dpfl_cli.data.streams import stream_generator
from dpfl_cli.data.tables import read_table
from dpfl_cli.data.threads import slices

NamedArrays = dict[str, ndarray]
AT_ONCE = 1 << 22  # numbers that a step of a generated data set works on at once
HeldOut = Annotated[float, Field(ge=0, lt=1)]  # share of the records that are for testing


@lru_cache(maxsize=64)
def warn_once(line: str) -> None:
    """Once in a process."""
    logger.warning("WARNING: %s", line)


class UsedSettings(Settings):
    """How many of the records are used: the first ones; None: all."""

    train_records: Count | None = None
    test_records: Count | None = None


class SeededSettings(Settings):
    """The seed of what a data set draws, which is not the run's: the same in runs of all seeds."""

    data_seed: Seed = 0

    def generator(self, *key: int) -> np.random.Generator:
        """The generator of its stream "data" at `key`."""
        return stream_generator(self.data_seed, "data", *key)


class OwnRecordsSettings(Settings):
    """Files of a user's records, and those that test: of a second file, or the fraction held out of
    the first one. The identity of a run has the files' content, not where they lie.
    """

    path: OwnPath = None
    test_path: OwnPath = None
    test_fraction: HeldOut = 0.0

    def files(self, example: str) -> dict[str, str]:
        """By the setting that names them, `path` and maybe `test_path`; a ConfigError where none is
        named, or test records are both named and held out.
        """
        if self.path is None:
            raise ConfigError(f"dataset.path: missing; name a file, as dataset.path={example}")
        if self.test_path is None:
            return {"path": self.path}
        if self.test_fraction:
            raise ConfigError(
                f"dataset.test_fraction={self.test_fraction:g}: dataset.test_path already names "
                "the test records; drop one"
            )
        return {"path": self.path, "test_path": self.test_path}

    def public(self) -> list[str]:
        """Who is tested on, in a file of its own, which no epsilon covers."""
        return ["records of dataset.test_path, which count as public"] * bool(self.test_path)


class Kept:
    """A data set that does not depend on the run's seed: made once for its settings and what it is
    made of, and kept in the process.
    """

    make: Callable[[Any, Any], Dataset]  # from the settings and `content`

    @staticmethod
    def content(settings: Any) -> Hashable:
        """What the records are made of besides the settings: files that are found and verified."""
        return None

    @classmethod
    def info(cls, settings: Any) -> DatasetInfo:
        """What is known of it; checksums cover whole files, whatever part of them is used."""
        return cls.load(settings, 0).info

    @classmethod
    def load(cls, settings: Any, seed: int) -> Dataset:
        """The records."""
        return kept(cls.make, settings, cls.content(settings))


@lru_cache(maxsize=4)
def kept(make: Callable[[Any, Any], Dataset], settings: Settings, content: Hashable) -> Dataset:
    """What a data set's `make` gives; the last four are kept."""
    return make(settings, content)


def find_folder(name: str) -> Path:
    """The first folder of this name, one of `FOLDERS`, below DPFL_DATA or the cache.

    Raises:
      AbsentData: there is none; says where it was looked for and what to put there.
    """
    for base in (*search_path(), cache_dir()):
        if (base / name).is_dir():
            return base / name
    entry = FOLDERS[name]
    raise AbsentData(
        f"{name}: no folder {name} in {searched()}; it is not fetched: put {entry.layout} there, "
        f"or use dataset={entry.standin}"
    )


class FolderDataset(Kept):
    """A data set in a folder of its name, which is read whole even for what is known of it. A run
    keeps what it read first, as files do not change under a run.
    """

    name: str

    @classmethod
    def content(cls, settings: Any) -> Path:
        """The folder."""
        return find_folder(cls.name)


def files_below(folder: Path, endings: tuple[str, ...]) -> Files:
    """The files below a folder whose names end so (in any case), by relative name and in its order;
    hidden ones are left out.
    """
    found = {
        path.relative_to(folder).as_posix(): path
        for path in folder.rglob("*")
        if path.name.lower().endswith(endings) and path.is_file()
    }
    return {name: found[name] for name in sorted(found) if "/." not in f"/{name}"}


def cached(path: Path, make: Callable[[], NamedArrays]) -> NamedArrays:
    """The arrays that are kept at a path, which `make` makes where there are no good ones; of
    several processes one makes them, and the others wait.
    """
    found = _read(path)
    if found is None:
        with _locked(path.parent):
            found = _read(path)  # what another process made meanwhile
            if found is None:
                found = make()
                stream = io.BytesIO()
                np.savez(stream, **dict[str, Any](found))
                with suppress(OSError):  # a folder that cannot be written: it is made again
                    write_atomically(path, with_digest(stream.getvalue()))
    return found


def _read(path: Path) -> NamedArrays | None:
    """None where the file is absent, or damaged, which is said once: the file goes."""
    try:
        content = without_digest(path.read_bytes())
    except OSError:
        return None
    except ValueError:
        logger.warning("%s: damaged (its checksum is another); made anew", path)
        path.unlink(missing_ok=True)
        return None
    with np.load(io.BytesIO(content), allow_pickle=False) as kept:
        return {name: kept[name] for name in kept.files}


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = (folder / ".lock").open("w")
    except OSError as error:
        logger.warning(
            "%s: cannot be written (%s), and nothing is kept; set DPFL_CACHE to a folder that can",
            folder,
            error.strerror,
        )
        yield
        return
    with handle:
        with suppress(OSError):  # of a file system without locks
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def decoded(
    what: str, files: Files, key: str, decode: Callable[[], NamedArrays]
) -> tuple[str, NamedArrays]:
    """sha256 of the content of all files, and the arrays decoded from them, which the cache keeps.

    Args:
      what: name of the data set.
      files: all files that the arrays come from.
      key: what else the arrays depend on: settings, and a number that changes with the code.
      decode: makes the arrays.
    """
    sha256 = content_sha256(files)
    address = hashlib.sha256(f"{sha256}\n{key}".encode()).hexdigest()[:32]
    path = cache_dir() / "decoded" / f"{what}-{address}.npz"

    def made() -> NamedArrays:
        logger.info("%s: decoding %d files", what, len(files))
        return decode()

    return sha256, cached(path, made)


Pair = tuple[ndarray, ndarray]  # features and targets
Pairs = tuple[Pair, Pair]  # of training and of test records


def lazy_records(make: Callable[[], Sequence[Pair]]) -> tuple[Records, Records]:
    """Training and test records, made when one of them is first looked at."""
    made = cache(make)

    def records(part: int) -> Records:
        return Records(lambda: made()[part][0], lambda: made()[part][1])

    return records(0), records(1)


def drawn_later(
    info: DatasetInfo,
    train: int | Sequence[int],
    test: int | Sequence[int],
    draw: Callable[[], Iterable[Pairs]],
) -> Dataset:
    """Clients with so many training and test records each (a number: all alike), drawn when one is
    first looked at.

    Args:
      draw: makes clients' records, in their order, as many clients at once as it likes.
    """

    def together() -> list[Pair]:
        parts = (zip(*clients, strict=True) for clients in zip(*draw(), strict=True))
        return [(np.concatenate(features), np.concatenate(targets)) for features, targets in parts]

    records, tests = lazy_records(together)
    clients = np.arange(info.clients or 0)
    natural, test_natural = (np.repeat(clients, counts) for counts in (train, test))
    known = tests if len(test_natural) else None
    return Dataset(info, records, known, natural, test_natural=test_natural)


def used(name: str, field: str, wanted: int | None, there: int, note: str = "") -> int:
    """How many of `there` records are used, all where `wanted` is None; a ConfigError where there
    are not so many, with a note on what there is.
    """
    if wanted is not None and wanted > there:
        raise ConfigError(
            f"dataset.{field}={wanted}: {name} has {there} of them{note}; write at most that, or "
            "null for all"
        )
    return there if wanted is None else wanted


def fraction_of(fraction: float, size: int, what: str) -> int:
    """How many records a fraction for testing holds out of `size`; a ConfigError where that is
    none.
    """
    held = int(fraction * size)
    if fraction and not held:
        raise ConfigError(
            f"dataset.test_fraction={fraction:g}: less than one of {what}; write more, or 0 for "
            "none"
        )
    return held


def unit_rows(features: ndarray) -> ndarray:
    """Rows [N, d] scaled to unit L2 norm; zero rows stay zero. Scaled by the largest entry first:
    squares may overflow.
    """
    largest = np.abs(features).max(axis=1, keepdims=True)
    scaled = np.divide(features, largest, out=np.zeros_like(features), where=largest > 0)
    norms = np.sqrt(np.square(scaled).sum(axis=1, keepdims=True))
    return np.divide(scaled, norms, out=scaled, where=norms > 0)


def ranks(labels: ndarray) -> ndarray:
    """[N] for each record, how many before it have its label.

    >>> ranks(np.array([7, 3, 7, 7])).tolist()
    [0, 0, 1, 2]
    """
    import pandas as pd

    return pd.Series(labels).groupby(labels).cumcount().to_numpy()


def held_out(client: ndarray, settings: Any, *key: int) -> ndarray:
    """[N] bool: the settings' `test_fraction` of each client's records, drawn by a generator of the
    client's own: that of stream "data" at `key` and its number.
    """
    held = np.zeros(len(client), bool)
    for number in np.unique(client).tolist():
        draws = settings.generator(*key, number)
        own = draws.permutation(np.flatnonzero(client == number))
        held[own[: round(settings.test_fraction * len(own))]] = True
    return held


def held_out_of(pool: NamedArrays, fraction: float) -> ndarray:
    """[N] bool: which of arrays of one's own are held out for testing, the same for every seed.

    Of every client that they come with such a fraction on average, but for one record, drawn by a
    generator of its own name: how many records a client has must say nothing about who of the
    others is held out, or trains.
    """
    size = len(pool["targets"])
    found = np.zeros(size, bool)
    if "clients" not in pool:
        mixed = stream_generator(0, "data").permutation(size)
        found[mixed[: fraction_of(fraction, size, f"{size} records")]] = True
        return found
    names, owner = np.unique(pool["clients"], return_inverse=True)
    ends = np.cumsum(np.bincount(owner))[:-1]
    for name, own in zip(names, np.split(np.argsort(owner, kind="stable"), ends), strict=True):
        draws = stream_generator(0, "data", crc32(str(name).encode()))
        held = min(int(fraction * len(own) + draws.random()), len(own) - 1)
        found[draws.permutation(own)[:held]] = True
    if not found.any():
        raise ConfigError(
            f"dataset.test_fraction={fraction:g}: no record is held out, for each of the "
            f"{len(names)} clients keeps one; write more, or dataset.test_path=FILE"
        )
    return found


def split_dataset(info: DatasetInfo, records: Records, client: ndarray, test: ndarray) -> Dataset:
    """Records [N] of clients [N], all of which `info` counts, split by test [N] bool."""
    train, held = (Records(records.features[some], records.targets[some]) for some in (~test, test))
    known = replace(info, records=len(train))
    return Dataset(known, train, held if len(held) else None, client[~test], {}, client[test])


def some_at_once(count: int, values: int) -> list[slice]:
    """Slices of `count` records of so many values each that a step works on at once."""
    return slices(count, max(1, AT_ONCE // values))
