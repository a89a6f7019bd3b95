"""What a dataset and a partitioner are: the two contracts of this room's components."""

from contextlib import AbstractContextManager
from typing import Any, Protocol

from dpfl_cli.data.federation import Dataset, DatasetInfo, Partition


class Stage(Protocol):
    """A step with a known number of items, as whoever watches it sees it."""

    def advance(self, steps: int = 1) -> None:
        """So many items more are done."""
        ...


class Stages(Protocol):
    """Who watches how long preparations go."""

    def stage(self, title: str, total: int) -> AbstractContextManager[Stage]:
        """A step of `total` items begins, and ends with the context."""
        ...


class DatasetComponent(Protocol):
    """A component of the group `dataset`.

    One whose records take long to compute may have `prepare(settings, progress: Stages)` besides,
    which computes and keeps them: called before runs start, where it is seen, and harmless to call
    again.
    """

    def info(self, settings: Any) -> DatasetInfo:
        """What is known before records are read; finds and verifies the files.

        Raises:
          DataError: files are absent or damaged.
          ConfigError: the settings ask for what the files do not hold.
        """
        ...

    def load(self, settings: Any, seed: int) -> Dataset:
        """The dataset of a run with this seed; kept in the process, so callers must not write to
        its arrays.

        A dataset whose features take long to read or compute has `outline` besides, with the same
        arguments: the labels alone, or without classes as many records of no width.
        """
        ...


class PartitionerComponent(Protocol):
    """A component of the group `partitioner`."""

    def clients(self, settings: Any, info: DatasetInfo) -> int:
        """Number of clients M, before anything is read; a ConfigError where settings and dataset do
        not fit.
        """
        ...

    def partition(self, settings: Any, dataset: Dataset, seed: int) -> Partition:
        """The clients' segments, drawn from the stream "partition" of the run's seed."""
        ...
