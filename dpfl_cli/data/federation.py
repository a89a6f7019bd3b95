"""The federation: records of a dataset, dealt to clients.

A `Dataset` is a pool of records with an evaluation split and its provenance; a `Partition` deals
indices of the pool to clients as ragged segments; a `Federation` is the two together, for one run.
Runs whose partitions differ share the pool.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import inf
from typing import Any, Literal

import numpy as np
from numpy import ndarray

SourceKind = Literal["real", "standin", "synthetic"]
ArrayOrMaker = ndarray | Callable[[], ndarray]  # an array, or what makes it


@dataclass(frozen=True)
class DatasetInfo:
    """What is known of a dataset before its records are read, enough for a run's identity and its
    plan.

    `sha256` is of the content (uncompressed), empty for generated data, which its settings and
    revision identify.
    """

    name: str
    source: SourceKind
    sha256: str
    feature_shape: tuple[int, ...]
    classes: int | None  # None: regression
    records: int  # in the training pool
    clients: int | None = None  # number of natural clients, where the data has any
    details: Mapping[str, Any] = field(default_factory=dict)
    # of a record's target, where it is more than one class or number
    target_shape: tuple[int, ...] = ()


class Records:
    """Features and targets of N records. What takes long to read or compute is given as a function
    and made when it is first looked at: a plan gets by without.
    """

    def __init__(self, features: ArrayOrMaker, targets: ArrayOrMaker) -> None:
        self._features, self._targets = features, targets

    @cached_property
    def features(self) -> ndarray:
        """[N, ...]."""
        return self._features() if callable(self._features) else self._features

    @cached_property
    def targets(self) -> ndarray:
        """[N, *target_shape]: integer classes, or real values."""
        return self._targets() if callable(self._targets) else self._targets

    def __len__(self) -> int:
        return len(self.targets)

    def blank(self) -> Records:
        """One record of zeros in their place."""
        return Records(np.zeros_like(self.features[:1]), np.zeros_like(self.targets[:1]))


@dataclass(frozen=True)
class Dataset:
    """A pool of training records, an optional test split, and provenance.

    Attributes:
      natural: [N] client number of each training record where the data comes with clients, else
        None.
      truth: public facts for diagnostics, such as the generating parameter `optimum` [d] of a
        synthetic problem.
      test_natural: [N_test] client number of each test record, where the clients have test records
        of their own.
      tests_held: the test records were held out of those that clients would have.
    """

    info: DatasetInfo
    train: Records
    test: Records | None
    natural: ndarray | None = None
    truth: Mapping[str, ndarray] = field(default_factory=dict)
    test_natural: ndarray | None = None
    tests_held: bool = False

    @property
    def tests_owned(self) -> bool:
        """Whether test records are clients' own, so that metrics on them tell of private data."""
        return self.tests_held or self.test_natural is not None


@dataclass(frozen=True)
class Partition:
    """Ragged segments: client i holds pool records `indices[offsets[i]:offsets[i + 1]]`."""

    indices: ndarray  # [K] int64
    offsets: ndarray  # [M + 1] int64

    @property
    def clients(self) -> int:
        return len(self.offsets) - 1

    @property
    def counts(self) -> ndarray:
        """[M] number of records per client."""
        return np.diff(self.offsets)

    def lists(self) -> list[ndarray]:
        """One index array per client, as `from_lists` takes them."""
        return np.split(self.indices, self.offsets[1:-1])

    def of(self, clients: ndarray) -> Partition:
        """Some of the clients, in this order; a negative number is a client without records."""
        counts = np.where(clients < 0, 0, self.counts[clients])
        return self._taken(self.offsets[clients], counts)

    def first(self, records: int) -> Partition:
        """The first so many records of every client, or all where it has fewer."""
        return self._taken(self.offsets[:-1], np.minimum(self.counts, records))

    def _taken(self, starts: ndarray, counts: ndarray) -> Partition:
        """Clients with so many of the indices from a place on."""
        places = np.repeat(starts - np.cumsum(counts) + counts, counts)
        return self.from_counts(self.indices[places + np.arange(len(places))], counts)

    @classmethod
    def from_counts(cls, indices: ndarray, counts: ndarray) -> Partition:
        """Clients of so many records, one after the other."""
        offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        return cls(indices.astype(np.int64), offsets)

    @classmethod
    def from_lists(cls, lists: list[ndarray]) -> Partition:
        """One index array per client."""
        counts = np.array([len(part) for part in lists])
        return cls.from_counts(np.concatenate([*lists, np.empty(0, np.int64)]), counts)


@dataclass(frozen=True, eq=False)
class Federation:
    """One run's clients: a dataset and the partition that deals its training records to them.

    Attributes:
      counts_private: whether it is a client's own how many records it holds. Then nobody's rows are
        padded for another's: sums over them would be rounded otherwise, and local steps may make
        much of that.
    """

    dataset: Dataset
    partition: Partition
    counts_private: bool = False

    @property
    def clients(self) -> int:
        return self.partition.clients

    def blank(self) -> Federation:
        """The same clients with a record of zeros each: what is computed from it tells nothing of
        theirs.
        """
        known = self.dataset
        test = None if known.test is None else known.test.blank()
        data = Dataset(known.info, known.train.blank(), test, truth=known.truth)
        shared = np.zeros(self.clients, np.int64)
        return Federation(data, Partition.from_counts(shared, np.ones_like(shared)))

    def buckets(self, waste: float = 0.15) -> list[ndarray]:
        """Client numbers grouped so that padding each group to its largest client wastes at most
        `waste` of its rows; nothing where counts are private.

        Clients without records form a group of their own (they compute nothing). Within a group,
        sizes differ by less than the factor 1 / (1 - waste), so every group keeps the bound by
        itself.
        """
        counts = self.partition.counts
        order = np.argsort(-counts, kind="stable")
        groups: list[list[int]] = []
        largest = inf
        for client, size in zip(order.tolist(), counts[order].tolist(), strict=True):
            if size < (1.0 if self.counts_private else 1.0 - waste) * largest:
                groups.append([])
                largest = size
            groups[-1].append(client)
        return [np.array(group) for group in groups]
