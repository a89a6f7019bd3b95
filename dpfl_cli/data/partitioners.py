"""Partitioners: how the training records of a dataset are dealt to clients.

Every one deals each record once, or draws the number of records it is asked for without
replacement; never a record to two clients. All are determined by the run's seed (stream
"partition") or draw nothing, and end for every alpha and number of clients.
"""

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
from numpy import ndarray
from numpy.random import Generator
from pydantic import NonNegativeInt, PositiveFloat

from dpfl_cli.data.loading import (
    ConfigError,
    Count,
    Dataset,
    DatasetInfo,
    Partition,
    SeedOrNone,
    Settings,
    component,
    stream_generator,
)


class ClientsSettings(Settings):
    """Number of clients (None: the dataset's own)."""

    clients: Count | None = None


class DrawnSettings(ClientsSettings):
    """And the seed that the deal is drawn from (None: the run's), so that runs of several seeds
    share a partition.
    """

    seed: SeedOrNone = None


class IidSettings(DrawnSettings):
    """And records per client (None: all records, as evenly as possible)."""

    records_per_client: Count | None = None


class DirichletSettings(DrawnSettings):
    """Concentration of the class proportions, and how records follow them.

    `records_per_client` is for kind `clientwise` (None: as many as go round, records // clients).
    """

    kind: Literal["clientwise", "classwise"] = "clientwise"
    alpha: PositiveFloat = 0.3
    records_per_client: Count | None = None


class ShardsSettings(DrawnSettings):
    """And shards that each client gets."""

    shards_per_client: Count = 2


class MixedSettings(Settings):
    """Records drawn uniformly for all clients together, records of its own class that each client
    gets besides, and the seed that they are drawn from (None: the run's).
    """

    uniform_records: NonNegativeInt = 10_000
    own_class_records: Count = 2_850
    seed: SeedOrNone = None


# one record of another class may change what many clients hold
BY_CLASS = ("who holds what, which follows from the classes of all records",)


class Dealt:
    """As many clients as are asked for, or as the data come with."""

    deal: Callable[[Any, Dataset, int, Generator], Partition]  # of so many clients
    each = "records_per_client"  # the setting that says how many records a client needs
    by_class = ""  # the name of one that deals records by their classes

    @classmethod
    def clients(cls, settings: Any, info: DatasetInfo) -> int:
        """M, checked against the number of records, of which each client needs some."""
        if cls.by_class:
            _classes(cls.by_class, info)
        clients: int | None = settings.clients or info.clients
        if clients is None:
            raise ConfigError(
                f"partitioner.clients: dataset={info.name} comes without clients; write a number, "
                "as partitioner.clients=100"
            )
        each: int = getattr(settings, cls.each, None) or 1
        if clients > info.records:
            raise ConfigError(
                f"partitioner.clients={clients}: more clients than records: dataset={info.name} "
                f"has {info.records}; lower it"
            )
        if clients * each > info.records:
            raise ConfigError(
                f"partitioner.{cls.each}={each}: {clients} clients x {each} = {clients * each} "
                f"records, and dataset={info.name} has {info.records}; lower it or "
                "partitioner.clients"
            )
        return clients

    @classmethod
    def records(cls, settings: Any, info: DatasetInfo) -> int:
        """How many records it deals, where its settings say so; all there are, else."""
        each: int | None = getattr(settings, "records_per_client", None)
        return info.records if each is None else each * cls.clients(settings, info)

    @classmethod
    def partition(cls, settings: Any, dataset: Dataset, seed: int) -> Partition:
        """What `deal` makes with the generator of the partition's own seed where it has one, of the
        run's else.
        """
        own = getattr(settings, "seed", None)
        generator = stream_generator(seed if own is None else own, "partition")
        return cls.deal(settings, dataset, cls.clients(settings, dataset.info), generator)


@component("partitioner", "iid", IidSettings)
class Iid(Dealt):
    """Records dealt uniformly at random; sizes differ by at most one."""

    @staticmethod
    def deal(
        settings: IidSettings, dataset: Dataset, clients: int, generator: Generator
    ) -> Partition:
        """A random permutation of all records, or of a random sample of them, cut into M parts."""
        order = generator.permutation(dataset.info.records)
        if settings.records_per_client is not None:
            order = order[: clients * settings.records_per_client]
        return Partition.from_lists(np.array_split(order, clients))


@component("partitioner", "contiguous", ClientsSettings)
class Contiguous(Dealt):
    """Consecutive records in the order of the data; sizes differ by at most one, the first clients
    have the larger ones.
    """

    @staticmethod
    def deal(
        settings: ClientsSettings, dataset: Dataset, clients: int, generator: Generator
    ) -> Partition:
        """Segments that are the records in order; nothing is drawn."""
        return Partition.from_lists(np.array_split(np.arange(dataset.info.records), clients))


@component("partitioner", "dirichlet", DirichletSettings)
class Dirichlet(Dealt):
    """Label skew: class proportions drawn from a Dirichlet, client by client or class by class.

    `clientwise` (Hsu, Qi, Brown 2019, arXiv 1909.06335): each client draws class proportions
    q_i ~ Dir(alpha 1), then records one by one without replacement: a class from q_i, a record from
    what is left of the class; q_i is renormalised over the classes that have records left. All
    clients get the same number; the rest is not used.

    `classwise` (Yurochkin et al. 2019, arXiv 1905.12022): each class is split over the clients in
    proportions drawn from Dir(alpha 1). Every record is dealt once; clients are unequal and may be
    empty.
    """

    by_class, not_covered = "dirichlet", BY_CLASS

    @classmethod
    def clients(cls, settings: DirichletSettings, info: DatasetInfo) -> int:
        """M, checked against the number of records; refuses data without classes."""
        if settings.kind == "classwise" and settings.records_per_client is not None:
            raise ConfigError(
                f"partitioner.records_per_client={settings.records_per_client}: "
                "partitioner.kind=classwise deals every record once; write "
                "partitioner.records_per_client=null"
            )
        return super().clients(settings, info)

    @staticmethod
    def deal(
        settings: DirichletSettings, dataset: Dataset, clients: int, generator: Generator
    ) -> Partition:
        """Segments of equal size (clientwise; sorted by class within a client), or of all records
        (classwise).
        """
        pools = _class_pools(dataset, generator)
        if settings.kind == "classwise":
            return _classwise(pools, clients, settings.alpha, generator)
        each = settings.records_per_client or dataset.info.records // clients
        return _clientwise(pools, clients, each, settings.alpha, generator)


@component("partitioner", "shards", ShardsSettings)
class Shards(Dealt):
    """By class: records sorted by class, cut into shards, a few random shards for each client.

    McMahan et al. 2017 (arXiv 1602.05629), section 3. Every record is dealt once; shards differ by
    at most one record.
    """

    each, by_class, not_covered = "shards_per_client", "shards", BY_CLASS

    @staticmethod
    def deal(
        settings: ShardsSettings, dataset: Dataset, clients: int, generator: Generator
    ) -> Partition:
        """Segments made of `shards_per_client` shards each; within a class, records are in random
        order.
        """
        each = settings.shards_per_client
        by_class = np.concatenate(_class_pools(dataset, generator))
        shards = np.array_split(by_class, clients * each)
        dealt = generator.permutation(len(shards)).reshape(clients, each)
        return Partition.from_lists(
            [np.concatenate([shards[shard] for shard in own]) for own in dealt]
        )


@component("partitioner", "mixed", MixedSettings)
class Mixed(Dealt):
    """One client for each class: a share of a uniform draw, and more records of its own class.

    Zhang, Fay, Johansson 2023 (arXiv 2308.01139), section 5: of MNIST, 10,000 records drawn
    uniformly and dealt equally to ten clients, then 2,850 others of class k to client k.
    """

    not_covered = BY_CLASS

    @classmethod
    def clients(cls, settings: MixedSettings, info: DatasetInfo) -> int:
        """M, the number of classes, checked against the number of records; refuses data without
        classes.
        """
        classes, own = _classes("mixed", info), settings.own_class_records
        total = cls.records(settings, info)
        if total > info.records:
            raise ConfigError(
                f"partitioner.own_class_records={own}: {settings.uniform_records} + {classes} "
                f"clients x {own} = {total} records, and dataset={info.name} has {info.records}; "
                "lower it or partitioner.uniform_records"
            )
        return classes

    @classmethod
    def records(cls, settings: MixedSettings, info: DatasetInfo) -> int:
        """The uniform draw, and every class's own."""
        return settings.uniform_records + (info.classes or 0) * settings.own_class_records

    @staticmethod
    def deal(
        settings: MixedSettings, dataset: Dataset, clients: int, generator: Generator
    ) -> Partition:
        """Segments of a client's share of the draw (shares differ by at most one record), then its
        own class.
        """
        each, order = settings.own_class_records, generator.permutation(dataset.info.records)
        drawn, rest = np.split(order, [settings.uniform_records])
        labels = dataset.train.targets[rest]
        left = np.bincount(labels, minlength=clients)
        if left.min() < each:
            raise ConfigError(
                f"partitioner.own_class_records={each}: dataset={dataset.info.name} has "
                f"{left.min()} records of class {left.argmin()} left after the uniform draw; lower "
                "it or partitioner.uniform_records"
            )
        own = [rest[labels == label][:each] for label in range(clients)]
        shares = np.array_split(drawn, clients)
        return Partition.from_lists(list(map(np.concatenate, zip(shares, own, strict=True))))


@component("partitioner", "natural", DrawnSettings)
class Natural(Dealt):
    """The clients that the data come with, or some of them drawn at random."""

    @staticmethod
    def not_covered(settings: DrawnSettings) -> list[str]:
        """Who takes part, where the draw can be known."""
        known = settings.clients is not None and settings.seed is not None
        return ["which clients are drawn, by the order of all clients' names"] * known

    @classmethod
    def clients(cls, settings: DrawnSettings, info: DatasetInfo) -> int:
        """M; refuses data that come without clients."""
        if info.clients is None:
            raise ConfigError(
                f"partitioner=natural: dataset={info.name} comes without clients; choose "
                "partitioner=iid, dirichlet or shards"
            )
        if settings.clients is not None and settings.clients > info.clients:
            raise ConfigError(
                f"partitioner.clients={settings.clients}: dataset={info.name} has {info.clients} "
                "clients; write at most that, or null for all"
            )
        return settings.clients or info.clients

    @staticmethod
    def deal(
        settings: DrawnSettings, dataset: Dataset, clients: int, generator: Generator
    ) -> Partition:
        """Segments in the order of client numbers, records in the order of the data."""
        assert dataset.natural is not None
        everyone = dataset.info.clients or 0
        whole = _by_group(np.arange(len(dataset.natural)), dataset.natural, everyone)
        if clients == everyone:
            return whole
        chosen = generator.choice(everyone, clients, replace=False)
        return whole.of(np.sort(chosen))


def _classes(name: str, info: DatasetInfo) -> int:
    """The number of classes; refuses data without."""
    if info.classes is None:
        raise ConfigError(
            f"partitioner={name}: dataset={info.name} has no classes; choose partitioner=natural "
            "or iid"
        )
    return info.classes


def _class_pools(dataset: Dataset, generator: Generator) -> list[ndarray]:
    """For each class, the numbers of its records in random order."""
    order = generator.permutation(dataset.info.records)
    return _by_group(order, dataset.train.targets[order], dataset.info.classes or 0).lists()


def _by_group(records: ndarray, groups: ndarray, number: int) -> Partition:
    """The partition that gives `records[k]` to client, or class, `groups[k]` of so many."""
    counts = np.bincount(groups, minlength=number)
    return Partition.from_counts(records[np.argsort(groups, kind="stable")], counts)


def log_gammas(generator: Generator, alpha: float, shape: tuple[int, int]) -> ndarray:
    """min(alpha, 1) log g of independent Gamma(alpha) variates g, for `proportions`.

    For alpha <= 1, by Gamma(a) = Gamma(a + 1) U^(1/a), a log Gamma(a) is of moderate size for every
    a, while g itself underflows.
    """
    if alpha > 1.0:
        return np.log(generator.standard_gamma(alpha, shape))
    logs = alpha * np.log(generator.standard_gamma(alpha + 1.0, shape))
    return logs - generator.standard_exponential(shape)


def proportions(logs: ndarray, alpha: float) -> ndarray:
    """g / sum g of some `log_gammas`: a draw from Dir(alpha 1), renormalised over these.

    Normalised before the division by alpha, so that even for the smallest alpha proportions are
    right: one-hot at the largest g.
    """
    with np.errstate(over="ignore"):
        weights = np.exp((logs - logs.max()) / min(alpha, 1.0))
    return weights / weights.sum()


def _clientwise(
    pools: list[ndarray], clients: int, each: int, alpha: float, generator: Generator
) -> Partition:
    """Every client's class counts, then its records from the front of what is left of the shuffled
    pools.

    Drawing one by one and skipping exhausted classes has the law of drawing all at once, keeping
    what the pools can give, and drawing the excess again over the classes that are left; each pass
    exhausts a class or is the last.
    """
    logs = log_gammas(generator, alpha, (clients, len(pools)))
    sizes = np.array([len(pool) for pool in pools])
    left, parts = sizes.copy(), []
    for client in range(clients):
        before, excess = left.copy(), each
        while excess:
            there = np.flatnonzero(left)
            drawn = generator.multinomial(excess, proportions(logs[client, there], alpha))
            kept = np.minimum(drawn, left[there])
            left[there] -= kept
            excess -= int(kept.sum())
        taken = zip(pools, sizes - before, sizes - left, strict=True)
        parts += [pool[begin:end] for pool, begin, end in taken]
    return Partition.from_counts(np.concatenate(parts), np.full(clients, each))


def _classwise(pools: list[ndarray], clients: int, alpha: float, generator: Generator) -> Partition:
    """Each class cut at the cumulated proportions.

    Proportions become whole numbers of records by systematic rounding, one uniform offset per
    class: client i gets floor or ceil of its share, its share on average, and small classes do not
    all favour the same clients.
    """
    logs = log_gammas(generator, alpha, (len(pools), clients))
    owners = []
    for own, pool in zip(logs, pools, strict=True):
        shares = np.cumsum(proportions(own, alpha)) * len(pool)
        cuts = np.floor(shares + generator.random()).astype(np.int64).clip(max=len(pool))
        cuts[-1] = len(pool)
        owners.append(np.repeat(np.arange(clients), np.diff(cuts, prepend=0)))
    return _by_group(np.concatenate(pools), np.concatenate(owners), clients)
