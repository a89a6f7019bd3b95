"""A user's own records: `dataset=arrays`, from a file of arrays or a PyTorch Dataset, and
`partitioner=file`, who holds which of them.
"""

from __future__ import annotations

import hashlib
import io
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from dpfl_cli.config.component import Settings, component
from dpfl_cli.config.errors import ConfigError, DataError, without_values
from dpfl_cli.config.own_files import OwnFile, OwnPath, content_of, is_code, own_object, read_own
from dpfl_cli.data.federation import Dataset, DatasetInfo, Partition, Records
from dpfl_cli.data.loading import HeldOut, fraction_of
from dpfl_cli.data.sources import DAMAGED, LARGEST, listing_sha256
from dpfl_cli.data.streams import stream_generator


class ArraysSettings(Settings):
    """Where the records are, and the fraction of them held out for testing where no second file
    has the test records. The identity of a run has their content, not where they lie.
    """

    path: OwnPath = None
    test_path: OwnPath = None
    test_fraction: HeldOut = 0.0


@dataclass(frozen=True)
class Pool:
    """Records as the user gave them.

    Attributes:
      features: [N, ...] finite numbers, float32 unless they were float64.
      targets: [N], whole numbers or strings (classes) or floats (regression).
      clients: [N] whose they are, in whatever names; None where nobody says.
    """

    features: np.ndarray
    targets: np.ndarray
    clients: np.ndarray | None

    def taken(self, rows: np.ndarray) -> Pool:
        """Some of the records."""
        clients = None if self.clients is None else self.clients[rows]
        return Pool(self.features[rows], self.targets[rows], clients)

    @property
    def sha256(self) -> str:
        """Of what the arrays hold."""
        found = hashlib.sha256()
        for one in (self.features, self.targets, self.clients):
            if one is not None:
                found.update(f"{one.dtype.str} {one.shape}\n".encode() + one.tobytes())
        return found.hexdigest()


@component("dataset", "arrays", revision=1, settings=ArraysSettings)
class Arrays:
    """Records of yours: arrays `features` [N, ...], `targets` [N] and, if you like, `clients` [N]
    of a .npz file, or a torch Dataset, as FILE.py:NAME.

    Targets that are whole numbers or texts are labels, and become classes in ascending order;
    floats are regression. A Dataset is map-style; its items are (features, target) or (features,
    target, client).
    """

    @classmethod
    def info(cls, settings: ArraysSettings) -> DatasetInfo:
        """Reads the records: their sizes are not known otherwise."""
        return cls.load(settings, 0).info

    @classmethod
    def load(cls, settings: ArraysSettings, seed: int) -> Dataset:
        """The records; they, and which are held out, do not depend on the run's seed."""
        if settings.path is None:
            raise ConfigError(
                "dataset.path: missing; name a file, as dataset.path=my.npz or data.py:NAME"
            )
        if settings.test_path is not None and settings.test_fraction:
            raise ConfigError(
                f"dataset.test_fraction={settings.test_fraction:g}: dataset.test_path already "
                "names the test records; drop one"
            )
        paths = [path for path in (settings.path, settings.test_path) if path]
        return _loaded(settings, tuple(map(content_of, paths)))


@component("partitioner", "file", revision=1, settings=OwnFile)
class File:
    """As a file says: a .npy array [N] with the client (0, 1, ...) of every training record, -1 for
    nobody's; or the partition.npz of a run.
    """

    @staticmethod
    def clients(settings: OwnFile, info: DatasetInfo) -> int:
        """M, as the file has it."""
        return _partition(settings.path, info.records).clients

    @staticmethod
    def partition(settings: OwnFile, dataset: Dataset, seed: int) -> Partition:
        """The file's; nothing is drawn."""
        return _partition(settings.path, len(dataset.train))


def _pool(option: str, path: str) -> Pool:
    """The records of a .npz file or of a torch Dataset, checked."""
    where = f"{option}={path}"
    parts = _of_dataset(path, option) if is_code(path) else _of_file(path, option)
    if missing := [name for name in ("features", "targets") if name not in parts]:
        raise DataError(f"{where}: no array {' and no '.join(missing)}; it has {', '.join(parts)}")
    features, targets, clients = (parts.get(name) for name in ("features", "targets", "clients"))
    assert features is not None
    assert targets is not None
    kinds = {"features": "buif", "targets": "buifUS", "clients": "buifUS"}
    for name, one in zip(kinds, (features, targets, clients), strict=True):
        if one is None:
            continue
        if one.dtype.kind not in kinds[name]:
            raise DataError(f"{where}: {name} are {one.dtype}, not numbers")
        if one.dtype.kind == "f" and not np.isfinite(one).all():
            record = np.isfinite(one.reshape(len(one), -1)).all(axis=1).argmin()
            raise DataError(f"{where}: {name} are not finite in record {record}")
    sides = [one for one in (targets, clients) if one is not None]
    if (
        features.ndim < 2
        or not features.size
        or any(one.shape != (len(features),) for one in sides)
    ):
        shapes = ", ".join(f"{name} {list(one.shape)}" for name, one in parts.items())
        raise DataError(
            f"{where}: {shapes}; write features [N, ...], targets [N] and, if any, clients [N]"
        )
    if features.dtype != np.float64:
        features = features.astype(np.float32)
    return Pool(features, targets, clients)


def _of_file(path: str, option: str) -> Mapping[str, np.ndarray]:
    try:
        return dict(_numpy(read_own(path, f"{option}=")).items())
    except (ValueError, AttributeError) as error:
        raise DataError(
            f"{option}={path}: not a .npz file of arrays, or damaged ({error}); write one with "
            "numpy.savez, or name a torch Dataset as FILE.py:NAME"
        ) from error


def _numpy(content: bytes) -> Any:
    """The array of a .npy file, or those of a .npz file by name; a ValueError says what is wrong,
    such as an encrypted archive or one that unpacks to more than LARGEST bytes.
    """
    try:
        found = np.load(io.BytesIO(content), allow_pickle=False)
        if isinstance(found, np.ndarray):
            return found
        if sum(member.file_size for member in found.zip.infolist()) > LARGEST:
            raise ValueError(f"more than {LARGEST} bytes unpacked")
        arrays = {name: found[name] for name in found.files}
        if strange := [name for name, one in arrays.items() if not isinstance(one, np.ndarray)]:
            raise ValueError(f"{strange[0]} is no array")
        return arrays
    except (*DAMAGED, zipfile.BadZipFile, RuntimeError, MemoryError, TypeError) as error:
        raise ValueError(str(error)) from error


def _of_dataset(path: str, option: str) -> Mapping[str, np.ndarray]:
    """All items of a torch Dataset, or of what a class or function without arguments gives."""
    found = own_object(path, option, "data.py:NAME")
    try:
        data = found() if callable(found) else found
        rows = [data[number] for number in range(len(data))]
        columns = zip(*rows, strict=True)
        arrays = [np.stack([np.asarray(one) for one in column]) for column in columns]
    except Exception as error:
        raise ConfigError(
            f"{option}={path}: {without_values(error)}; it must be a Dataset with a length whose "
            "items are (features, target) or (features, target, client); --debug shows more"
        ) from error
    return dict(zip(("features", "targets", "clients"), arrays, strict=False))


@lru_cache(maxsize=4)
def _loaded(settings: ArraysSettings, stamps: tuple[str, ...]) -> Dataset:
    """The data of settings, whose files have these contents; runs that share data share it."""
    given = {"path": settings.path, "test_path": settings.test_path}
    pools = {name: _pool(f"dataset.{name}", path) for name, path in given.items() if path}
    pool, test = pools["path"], pools.get("test_path")
    sha256 = listing_sha256({name: one.sha256 for name, one in pools.items()})
    held = fraction_of(settings.test_fraction, len(pool.targets), f"{len(pool.targets)} records")
    if held:
        mixed = stream_generator(0, "data").permutation(len(pool.targets))
        pool, test = pool.taken(np.sort(mixed[held:])), pool.taken(np.sort(mixed[:held]))
    labels = None if pool.targets.dtype.kind == "f" else np.unique(pool.targets)
    if labels is not None and len(labels) < 2:
        raise DataError(
            f"dataset.path={settings.path}: all targets are equal; classes need two labels, and "
            "regression floats"
        )
    names = None if pool.clients is None else np.unique(pool.clients, return_inverse=True)
    info = DatasetInfo(
        name="arrays",
        source="real",
        sha256=sha256,
        feature_shape=pool.features.shape[1:],
        classes=None if labels is None else len(labels),
        records=len(pool.targets),
        clients=None if names is None else len(names[0]),
    )
    train = Records(pool.features, _encoded(pool.targets, labels, "dataset.path"))
    made = Dataset(info, train, None, None if names is None else names[1].astype(np.int64))
    if test is not None:
        if test.features.shape[1:] != info.feature_shape:
            raise DataError(
                f"dataset.test_path={settings.test_path}: features {list(test.features.shape[1:])} "
                f"a record, and the training records have {list(info.feature_shape)}"
            )
        encoded = _encoded(test.targets, labels, "dataset.test_path")
        made = replace(made, test=Records(test.features.astype(pool.features.dtype), encoded))
    return made


def _encoded(targets: np.ndarray, labels: np.ndarray | None, option: str) -> np.ndarray:
    """The places of targets among the labels, or the numbers themselves."""
    if labels is None:
        if targets.dtype.kind in "US":
            raise DataError(f"{option}: targets are texts, and those of dataset.path numbers")
        return targets.astype(np.float64)
    if not np.isin(targets, labels).all():
        raise DataError(f"{option}: a label is none of those in dataset.path")
    return np.searchsorted(labels, targets).astype(np.int64)


def _partition(path: str | None, records: int) -> Partition:
    """A partition file, checked against the number of training records."""
    if path is None:
        raise ConfigError("partitioner.path: missing; name a file, as partitioner.path=clients.npy")
    where, content = f"partitioner.path={path}", read_own(path, "partitioner.path=")
    try:
        found = _numpy(content)
        if isinstance(found, np.ndarray):
            owners = found.astype(np.int64, casting="same_kind")
            order = np.argsort(owners, kind="stable")
            if owners.max(initial=0) > len(owners):
                raise DataError(
                    f"{where}: a client's number is above that of the {len(owners)} records; "
                    "number clients 0, 1, ..."
                )
            counts = np.bincount(owners[owners >= 0])
            made = Partition.from_counts(order[len(owners) - counts.sum() :], counts)
            size = len(owners)
        else:
            parts = (np.atleast_1d(found[name]) for name in ("indices", "offsets"))
            made = Partition(*(part.astype(np.int64, casting="same_kind") for part in parts))
            size = records
    except (ValueError, TypeError, KeyError) as error:
        raise DataError(
            f"{where}: neither a .npy array of clients [N] nor a run's partition.npz ({error})"
        ) from error
    inside = made.indices[(made.indices >= 0) & (made.indices < records)]
    cuts = made.offsets
    whole = len(cuts) > 1 and cuts[0] == 0 and cuts[-1] == len(made.indices)
    whole = whole and bool((made.counts >= 0).all())
    if size != records or len(np.unique(inside)) < len(made.indices) or not whole:
        raise DataError(
            f"{where}: does not deal the {records} training records of this dataset, each to one "
            "client at most; make it from the same records (those held out for the test, as by "
            "dataset.test_fraction, are not among them)"
        )
    return made
