"""A run that has been validated and resolved, and not yet started."""

import bisect
import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import numpy as np

from dpfl_cli.algorithms.local import BatchSettings, LocalSettings
from dpfl_cli.config.component import Component, Settings
from dpfl_cli.config.errors import DataError
from dpfl_cli.config.identity import canonical_json, content_id
from dpfl_cli.config.own_files import import_own, is_code, noted_for, read_by
from dpfl_cli.config.paths import expanded
from dpfl_cli.config.schema import (
    DpSettings,
    EvaluationSettings,
    LauncherSettings,
    ParticipationSettings,
    RuntimeSettings,
)
from dpfl_cli.data.federation import DatasetInfo, Federation
from dpfl_cli.data.sources import cache_dir, search_path
from dpfl_cli.privacy.accountants import TooLargeToPrice
from dpfl_cli.privacy.draws import COHORT_REVISION, Sampling
from dpfl_cli.privacy.ledger import Ledger
from dpfl_cli.privacy.releases import ReleaseSpec, Setup
from dpfl_cli.simulation.confined import closed

Options = dict[str, Any]  # as plain values
ENGINE_REVISION = 1  # raised when the engine, the streams or the evaluation change a run's numbers
CHOSEN = ("algorithm", "mechanism", "accountant", "dataset", "partitioner", "model")
SEEDED = (
    "knowledge of the seed, of which noise is a function: runs of one seed share it; "
    "dp.noise=secret is for a model that is published"
)
SECRET = (
    "noise that is not reproducible, by a generator (SFC64) that is not cryptographic; rounds that "
    "are made again after a kill, or by force, draw other noise and are counted once"
)
KEPT, KEPT_BYTES = 64, 2 << 30  # federations, and what their records may take
_kept: list[Federation] = []  # newest last
_alive: WeakValueDictionary[str, Federation] = WeakValueDictionary()  # by `dealt`: in use or kept


def _code_in(settings: Settings) -> dict[str, str]:
    """Those of settings that are FILE.py:NAME."""
    return {name: one for name, one in settings if isinstance(one, str) and is_code(one)}


@dataclass(frozen=True)
class Choice:
    """The component chosen of a group, and its settings."""

    component: Component
    settings: Settings

    @property
    def name(self) -> str:
        return self.component.name

    @property
    def target(self) -> Any:
        """The registered class."""
        return self.component.target

    @property
    def plugin(self) -> bool:
        """Whether it is a user's own code."""
        return self.component.origin != "dpfl"

    def identity(self) -> Options:
        """Name, revision and the options that a run's identity holds."""
        return {"name": self.name, "revision": self.component.revision, **self.settings.identity()}

    def config(self) -> Options:
        """Name, revision and all options."""
        return {**self.identity(), **self.settings.model_dump()}


def modules_of(*parts: Choice) -> list[str]:
    """The modules of plugins among components, and of a network, or a data set, that settings of
    dpfl's own name.
    """
    plugins = [part.target.__module__ for part in parts if part.plugin]
    named = [part for part in parts if part.component.group in ("model", "dataset")]
    for part in named:
        for name, code in _code_in(part.settings).items():
            option = f"{part.component.group}.{name}="
            plugins.append(import_own(code.rpartition(":")[0], option).__name__)
    return plugins


@contextmanager
def noted(part: Choice) -> Iterator[None]:
    """Inside, files that are opened are noted as opened by a plugin's component, or by what it
    names: what code keeps of them (functools.cache) is not read again while it computes, and what a
    data set is read from is closed to others.
    """
    with ExitStack() as noting:
        for module in modules_of(part):
            noting.enter_context(noted_for(module))
        yield


@dataclass(frozen=True)
class Plan:
    """Everything about a run that can be known before it starts. A plan that exists can be run.

    Attributes:
      clients, dimension: M and d.
      specs: the releases that the method declares.
      flops_per_round: as counted beforehand, of a run that is made for its times; no part of its
        identity.
    """

    seed: int
    rounds: int
    evaluation: EvaluationSettings
    dp: DpSettings
    participation: ParticipationSettings
    runtime: RuntimeSettings
    launcher: LauncherSettings
    algorithm: Choice
    mechanism: Choice
    accountant: Choice
    dataset: Choice
    partitioner: Choice
    model: Choice
    info: DatasetInfo
    clients: int
    dimension: int
    specs: tuple[ReleaseSpec, ...] = ()
    flops_per_round: float | None = None

    @cached_property
    def identity(self) -> Options:
        """Everything that can change the run's numbers, as plain values; what the id hashes."""
        return self._values(lambda part: part.identity())

    @cached_property
    def config(self) -> Options:
        """The same with options at their registered defaults; the run's config.yaml."""
        return self._values(
            lambda part: part.config() if isinstance(part, Choice) else part.model_dump()
        )

    def _values(self, of: Callable[[Any], Options]) -> Options:
        names = ("evaluation", "dp", *CHOSEN, "participation")
        parts = {name: of(getattr(self, name)) for name in names}
        info = self.info
        parts["dataset"]["content"] = {"source": info.source, "sha256": info.sha256, **info.details}
        parts["participation"] |= {"revision": COHORT_REVISION} if self.sampling else {}
        root = {"engine": ENGINE_REVISION, "seed": self.seed, "rounds": self.rounds}
        return root | {name: values for name, values in parts.items() if values}

    @cached_property
    def id(self) -> str:
        return content_id(self.identity)

    @property
    def dealt(self) -> str:
        """What its data, and how they are dealt, follow from."""
        parts = [self.identity["dataset"], self.identity.get("partitioner", {}), self.seed]
        return canonical_json(parts)

    @property
    def records(self) -> int:
        """How many records the clients hold, as far as settings tell."""
        count = getattr(self.partitioner.target, "records", None)
        return self.info.records if count is None else count(self.partitioner.settings, self.info)

    @property
    def work(self) -> int:
        """About how many records its clients look at in all."""
        chosen, seen = self.algorithm.settings, self.records * self.rows // self.clients
        if isinstance(chosen, BatchSettings) and chosen.batch_size is not None:
            seen = self.rows * chosen.batch_size
        steps = chosen.local_steps if isinstance(chosen, LocalSettings) else 1
        return self.rounds * steps * seen

    @property
    def label(self) -> str:
        """A short name for progress and tables."""
        return f"{self.algorithm.name} {self.dp.name} {self.dataset.name} seed={self.seed}"

    @property
    def sampling(self) -> Sampling | None:
        """How clients are drawn for a round; None where all take part."""
        law, size = self.participation.name, self.participation.cohort
        return None if size is None else Sampling(law, size, self.clients)

    @property
    def rows(self) -> int:
        """How many clients a round computes with, at most."""
        return self.clients if self.sampling is None else self.sampling.rows

    @cached_property
    def setup(self) -> Setup:
        """What the method's declaration of its releases may depend on."""
        dp = self.dp
        return Setup(
            trust=dp.trust,
            relation=dp.relation,
            unit=dp.unit,
            dimension=self.dimension,
            clients=self.clients,
            seed=self.seed,
            rounds=self.rounds,
            fewest=cache(self._fewest),
            sampling=self.sampling,
        )

    def _fewest(self) -> int:
        """At least 1: the engine refuses clients without records."""
        with closed([]):  # dpfl may read them for a method that asks
            return max(int(federation_of(self).partition.counts.min()), 1)

    def ledger(self, rounds: int | None = None) -> Ledger:
        """The ledger after `rounds` rounds (all that are made by default), by the declared
        schedule.
        """
        chosen, made = self.mechanism, self.last_round if rounds is None else rounds
        return chosen.target.planned(chosen.settings, self.specs, self.setup, made)

    @cached_property
    def last_round(self) -> int:
        """The last round that is made: T, or the one before a release would take epsilon above
        dp.max_epsilon. A matter of the plan, and so of no data.
        """
        limit, accountant = self.dp.max_epsilon, self.accountant_object()
        if limit is None:
            return self.rounds

        def exceeds(rounds: int) -> bool:
            try:
                return bool(accountant.epsilon(self.ledger(rounds), self.dp.delta) > limit)
            except TooLargeToPrice:
                return True

        return bisect.bisect_left(range(1, self.rounds + 1), True, key=exceeds)

    @property
    def data_files(self) -> list[Path]:
        """Files and folders of data that code of the user's must not open while it computes; none
        where all code is dpfl's. Of data of the user's own those that have been read.
        """
        plugins = any(getattr(self, group).plugin for group in CHOSEN)
        if not plugins and not _code_in(self.model.settings):
            return []
        parts = self.dataset.settings, self.partitioner.settings
        given = [one for settings in parts for _, one in settings if isinstance(one, str)]
        read = read_by(modules_of(self.dataset, self.partitioner))
        # whatever is a text may name a file
        return [*search_path(), cache_dir(), *map(expanded, given), *read]

    @property
    def own_modules(self) -> list[str]:
        """The modules of plugins, and of a network of the user's, that compute with clients' data;
        what makes the records and deals them is not among them.
        """
        return modules_of(self.algorithm, self.model, self.mechanism)

    @property
    def own_data(self) -> bool:
        """Whether code of the user's makes the records, or deals them."""
        plugins = self.dataset.plugin or self.partitioner.plugin
        return plugins or bool(_code_in(self.dataset.settings))

    def accountant_object(self) -> Any:
        return self.accountant.target(self.accountant.settings)

    def not_covered(self) -> Iterator[str]:
        """What the epsilon does not cover; components name their own items at their source, some
        of them the same ones.
        """
        yield from (
            "choice of hyperparameters (tuning), and other runs on the same data, other seeds too",
            "reported diagnostics, such as the train loss",
            "numbers of clients, features and classes",
        )
        if self.dp.trust != "none":
            yield "rounding of floating-point noise (Mironov 2012)"
            yield SEEDED if self.dp.noise == "seeded" else SECRET
            if self.sampling is not None:
                yield "knowledge of who takes part in which round"
        if self.model.plugin:
            yield (
                "what a plugin's model keeps from one client to another, or from run to run, or "
                "reads from files"
            )
        uses = ["sets the noise"] if self.dp.calibration == "record_heuristic" else []
        chosen = self.algorithm.settings
        if isinstance(chosen, BatchSettings) and chosen.batch_size is not None:
            uses.append("limits the batches")
        if self.algorithm.plugin:
            uses.append("a plugin's method may ask for (Setup.fewest)")
        if self.own_data or self.dataset.name == "arrays":
            yield (
                "what was computed over the records of a data set of yours (scales, classes, "
                "copies, who holds what)"
            )
        come = self.info.clients
        if self.dp.unit == "client" and come is not None and self.partitioner.name != "natural":
            yield (
                f"the {come} clients that the records come with: protected are the {self.clients} "
                f"that partitioner={self.partitioner.name} makes"
            )
        if self.dp.unit == "record":
            yield "numbers of records per client, which count as public and fixed"
        elif uses:  # a client's own number is private where the whole client is
            yield f"numbers of records per client, the smallest of which {' and '.join(uses)}"
        for group in CHOSEN:
            choice = getattr(self, group)
            stated = getattr(choice.target, "not_covered", ())
            yield from stated(choice.settings) if callable(stated) else stated


def federation_of(plan: Plan) -> Federation:
    """The plan's data, dealt to its clients; kept while the process lives, the last `KEPT` of them,
    or fewer if their records take more than `KEPT_BYTES`.

    Runs whose seeds change neither data nor partition get the same object, so that stacked they
    share features in products.
    """
    key = plan.dealt
    made = _alive.get(key)
    if made is None:
        check_unchanged(plan, "partitioner")
        data, partitioner = plan.dataset, plan.partitioner
        with noted(data):
            dataset = data.target.load(data.settings, plan.seed)
        if dataset.info.sha256 != plan.info.sha256:
            raise _changed(plan, "dataset")
        if data.plugin and len(dataset.train) != plan.info.records:  # which a delta is held against
            raise DataError(
                f"dataset={data.name}: its info says {plan.info.records} training records, and "
                f"{len(dataset.train)} are loaded; say as many"
            )
        deal = partial(partitioner.target.partition, partitioner.settings, dataset, plan.seed)
        partition = deal()
        if partitioner.plugin:  # sensitivities are those of one record in one place
            name, dealt = f"partitioner={partitioner.name}", np.sort(partition.indices)
            if len(dealt) and not 0 <= dealt[0] <= dealt[-1] < len(dataset.train):
                raise DataError(
                    f"{name} deals record numbers that are not among 0 to {len(dataset.train) - 1}"
                )
            if (dealt[1:] == dealt[:-1]).any():
                raise DataError(
                    f"{name} deals a record more than once: deal each to one client at most"
                )
            # only one deal is kept beside the run
            pairs = zip(vars(partition).values(), vars(deal()).values(), strict=True)
            if not all(np.array_equal(*pair) for pair in pairs):
                raise DataError(
                    f"{name} deals otherwise when it is asked again: draw by the seed alone"
                )
        made = Federation(dataset, partition)
        made = next((known for known in _kept if _same(known, made)), made)
        _alive[key] = made
        _kept.append(made)
        while len(_kept) > KEPT or (len(_kept) > 1 and _kept_bytes() > KEPT_BYTES):
            del _kept[0]
    return made


def _kept_bytes() -> int:
    """At most what the records of all federations that are kept take."""
    infos = {id(one.dataset.train): one.dataset.info for one in _kept}
    return sum(8 * one.records * math.prod(one.feature_shape) for one in infos.values())


def check_unchanged(plan: Plan, group: str) -> None:
    """Refuses a user's file that is not what it was when the run was planned, whose content its id
    has.
    """
    if getattr(plan, group).identity() != plan.identity.get(group, {}):
        raise _changed(plan, group)


def _changed(plan: Plan, group: str) -> DataError:
    return DataError(
        f"{group}={getattr(plan, group).name}: a file of it has changed since the run was planned, "
        "and the run's id has its content: start again"
    )


def _same(one: Federation, other: Federation) -> bool:
    return (
        one.dataset.train is other.dataset.train
        and one.dataset.test is other.dataset.test
        and np.array_equal(one.partition.offsets, other.partition.offsets)
        and np.array_equal(one.partition.indices, other.partition.indices)
    )
