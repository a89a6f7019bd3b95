"""The mechanism: the one object through which client data reaches anybody else.

An algorithm declares its releases (`releases.ReleaseSpec`); a mechanism refuses a name that was not
declared. A release adds the noise and writes its event to the ledger in one act, on values that
carry their own sensitivity. No noise is ever used twice: a release is addressed by its name, the
run's round and its number within the round.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from dpfl_cli.config.errors import ConfigError, PrivacyError
from dpfl_cli.data.streams import Streams
from dpfl_cli.privacy.bounded import Bounded, per_run
from dpfl_cli.privacy.client_values import client_values, of_cohort, refuse_watchers
from dpfl_cli.privacy.draws import STREAM, MethodStreams, among
from dpfl_cli.privacy.ledger import BatchLedger, Ledger, LedgerEntry, ReleaseLog, Scope
from dpfl_cli.privacy.limits import Limits
from dpfl_cli.privacy.releases import Provenance, Release, ReleaseSpec, Setup, Trust

Event = tuple[str, float | None, Scope]  # kind, parameter and scope, as in `LedgerEntry`


@dataclass(frozen=True)
class Site:
    """Where a mechanism works: the batch of R runs it serves, their streams and ledgers.

    Attributes:
      setups: [R] what is known of every run; they differ in seed and rounds only.
      specs: [R] the declared releases of every run by name; runs of a batch declare the same
        names, with numbers of their own.
      sound: whether bounds that are only claimed are refused (dp.mode=sound); so they are unless
        somebody says otherwise.
    """

    setups: Sequence[Setup]
    specs: Sequence[Mapping[str, ReleaseSpec]]
    streams: Streams
    ledger: BatchLedger
    sound: bool = True

    @property
    def setup(self) -> Setup:
        """What the runs share."""
        return self.setups[0]


class Call(NamedTuple):
    """A release that has been checked and charged, and waits for its noise.

    Attributes:
      spec: its declaration.
      values: the contributions.
      parameters: [R] noise multipliers or pure epsilons, as charged.
      address: [R] the numbers that address its noise.
      sensitivity: [R] or [R, M] of one contribution.
      largest: [R] the largest of them among the clients.
    """

    spec: ReleaseSpec
    values: Bounded
    parameters: np.ndarray
    address: np.ndarray
    sensitivity: Tensor
    largest: Tensor


class Mechanism(ABC):
    """One for a batch of runs, built from one `Settings` per run.

    Class attributes say what it is for; `event` is what one release costs, `_released` makes one.
    """

    trusts: frozenset[str]  # the trust models under which it makes sense
    shapes = frozenset({"vector", "scalar", "matrix"})  # that it releases
    noise_field: str | None = None  # the setting that calibration solves for
    needs_bound = True  # whether contributions must be clipped
    varies = False  # whether its noise follows `Call.parameters`, which may change over rounds
    parts: tuple[str, ...] = ("",)  # how the names of a release's streams end

    def __init__(self, settings: Sequence[Any], site: Site) -> None:
        self.settings = list(settings)
        self._site = site
        self._last = np.array([setup.rounds for setup in site.setups])
        self._all = np.broadcast_to(True, self._last.shape)
        self._provenance = Provenance(site.ledger)
        # [R] why bounds of releases that were made are not proved
        self.claims: list[set[str]] = [set() for _ in self.settings]
        self._limits = Limits(site.sound, self.claims)

    @classmethod
    @abstractmethod
    def event(cls, settings: Any, spec: ReleaseSpec, setup: Setup) -> Event:
        """What one release of `spec` costs."""

    @abstractmethod
    def _released(self, call: Call) -> Release:
        """The values with noise; runs that are not charged are taken care of by `release`."""

    @classmethod  # noqa: B027
    def check(cls, settings: Any, dimension: int) -> None:
        """A ConfigError where these settings, now that any noise is calibrated, cannot work in this
        dimension.
        """

    @classmethod
    def whole_noise(cls, settings: Any) -> bool:
        """Whether every client's message carries noise that protects it by itself."""
        return cls.trusts == {"local"}

    @classmethod
    def gap(cls, settings: Any) -> str | None:
        """Why these settings have no proved guarantee, or None."""
        return None

    @classmethod
    def as_calibrated(cls, settings: Any) -> Any:
        """The settings whose ledger a target epsilon refers to."""
        return settings

    @classmethod
    def entry(cls, settings: Any, spec: ReleaseSpec, setup: Setup) -> LedgerEntry:
        """The ledger entry (count 1, sensitivity None) of one release of `spec`."""
        if spec.factors is not None and not cls.varies:
            raise ConfigError(
                f"release '{spec.name}': its noise is to change over rounds, but {cls.__name__} "
                "adds the same in all, and would be charged for other noise; take a schedule of "
                "equal noise, or Gaussian noise (dp=ldp)"
            )
        kind, parameter, scope = cls.event(settings, spec, setup)
        return LedgerEntry(
            name=spec.name,
            kind=kind,
            count=1,
            parameter=parameter,
            sensitivity=None,
            relation=setup.relation,
            unit=setup.unit,
            scope=scope,
            group=spec.group,
            shape=spec.shape,
            quantity=spec.quantity,
            rate=spec.rate if setup.sampling is None else setup.sampling.rate,
            disjoint=spec.disjoint,
            law="full" if setup.sampling is None else setup.sampling.law,
            batch=spec.batch,
        )

    @classmethod
    def planned(
        cls, settings: Any, specs: Sequence[ReleaseSpec], setup: Setup, rounds: int | None = None
    ) -> Ledger:
        """The ledger after the first `rounds` rounds (all of them by default)."""
        entries = []
        for spec in specs:
            entry = cls.entry(settings, spec, setup)
            times = spec.occurs(setup.rounds)[:rounds] * spec.per_round
            if times.any():
                entries.append(entry.in_rounds(spec.noise(entry, setup.rounds)[:rounds], times))
        return Ledger(tuple(entries))

    def streams(self) -> MethodStreams:
        """What methods and models may draw from: the site's streams, but for those of its noise."""
        names = [f"noise/{name}{part}" for name in self._site.specs[0] for part in self.parts]
        return MethodStreams(self._site.streams, [*names, STREAM])

    @torch.no_grad()  # a gradient through a release would have no noise
    def release(
        self, name: str, values: Bounded, rounds: np.ndarray, charged: np.ndarray | None = None
    ) -> Release:
        """Releases bounded values under a declared name and charges the ledger.

        Args:
          name: a declared release.
          values: one contribution per client.
          rounds: [R] the round each run is in, which addresses its noise.
          charged: [R] booleans: the runs in which this release happens; None for all. The others
            receive zeros.

        Raises:
          PrivacyError: the release was not declared, was made more often in a round than declared,
            has another shape or unit; the values were not clipped, or were changed since.
        """
        refuse_watchers()
        spec = self._checked(name, values, rounds)
        mask = self._all if charged is None else np.asarray(charged, bool)
        found = self._released(self._charge(spec, values, rounds, mask))
        if (found.averaged is None) != (self.trust == "local"):
            hidden = "only the mean is seen; give", "the mean is of messages; drop"
            wrong = hidden[self.trust == "local"]
            raise PrivacyError(
                f"{type(self).__name__}: under {self.trust} trust {wrong} Release(averaged=...)"
            )
        of_cohort(found.own, values.cohort)
        if charged is None or mask.all():
            return found
        received, mean = _only(mask, found.received), _only(mask, found.mean)
        own = None if found.own is None else client_values(_only(mask, found.own))
        return replace(found, received=received, own=own, averaged=mean)

    def squared_norms(self, release: Release) -> Tensor:
        """[R, M] estimates of ||v_i||^2 of the contributions behind received messages
        (post-processing).

        Only where the receiver sees messages (local trust).
        """
        raise PrivacyError(
            f"{type(self).__name__} hands out no messages of single clients, so no norms can be "
            "estimated from them"
        )

    @property
    def rate(self) -> float:
        """The probability with which a client takes part in a round; 1 where all do."""
        return self._site.setup.cohort / self._site.setup.clients

    @property
    def trust(self) -> Trust:
        """The trust model of the runs it serves."""
        return self._site.setup.trust

    @property
    def rounds(self) -> tuple[int, ...]:
        """[R] the number of rounds T of every run."""
        return tuple(setup.rounds for setup in self._site.setups)

    def due(self, name: str, rounds: np.ndarray) -> np.ndarray:
        """[R] booleans: whether a release is to be made in this round, by its public schedule."""
        self._spec(name)
        runs = zip(self._site.specs, self.rounds, rounds.tolist(), strict=True)
        return np.array([specs[name].occurs(last)[number - 1] for specs, last, number in runs])

    def verify(self) -> None:
        """Makes up for the checks of bounds that rounds on a device leave open, so as not to wait
        for it; reads the device.

        Called when metrics are read, and so before any result of these rounds is seen.

        Raises:
          PrivacyError: a bound bounds nothing, or is not proved of a mean (dp.mode=sound).
        """
        self._limits.verify()

    def _spec(self, name: str) -> ReleaseSpec:
        """The declaration of a release, of the first run."""
        spec = self._site.specs[0].get(name)
        if spec is None:
            raise PrivacyError(
                f"release '{name}' was not declared: add a ReleaseSpec to the algorithm's releases"
            )
        return spec

    def _checked(self, name: str, values: Bounded, rounds: np.ndarray) -> ReleaseSpec:
        """The declaration that a release keeps to; a PrivacyError where it does not."""
        site, spec = self._site, self._spec(name)
        if type(values) is not Bounded:
            raise PrivacyError(
                f"release '{name}' got a {type(values).__name__}, not bounded values: clip them "
                "first"
            )
        if site.sound and self.trust != "none" and not values.proved:
            why = next(iter(values.claims.values()))
            raise PrivacyError(
                f"release '{name}': its bound is claimed, not proved ({why}); dp.mode=paper runs it"
            )
        values.check()
        shape, setup = "scalar", site.setup
        if values.is_vector:
            shape = "matrix" if spec.shape == "matrix" else "vector"
        if shape != spec.shape or values.unit != setup.unit:
            hint = f'; a {shape} is declared by ReleaseSpec("{name}", shape="{shape}")'
            raise PrivacyError(
                f"release '{name}' was declared as a {spec.shape} per {setup.unit}, but got a "
                f"{shape} per {values.unit}{hint if shape != spec.shape else ''}"
            )
        if spec.quantity and values.quantity != spec.quantity:
            raise PrivacyError(
                f"release '{name}' was declared as {spec.quantity}: give it "
                f"{spec.quantity}(bounded values)"
            )
        if shape not in self.shapes:
            raise PrivacyError(f"release '{name}': {type(self).__name__} cannot release a {shape}")
        if shape == "vector" and values.shape[-1] != setup.dimension:
            raise PrivacyError(
                f"release '{name}' has {values.shape[-1]} coordinates, the model {setup.dimension}"
            )
        runs, sampling = len(self.settings), setup.sampling
        clients = setup.clients if sampling is None else sampling.rows
        if values.shape[:2] != (runs, clients) or rounds.shape != (runs,):
            raise PrivacyError(
                f"release '{name}' got contributions {list(values.shape)} of rounds "
                f"{list(rounds.shape)}, but serves {runs} runs of {clients} clients"
            )
        if self.needs_bound:
            self._limits.check(name, values, self.trust != "local")
        return spec

    def _charge(
        self, spec: ReleaseSpec, values: Bounded, rounds: np.ndarray, charged: np.ndarray
    ) -> Call:
        """Charges the ledger, where the release is made in its time and not too often."""
        if np.count_nonzero((rounds < 1) | (rounds > self._last)):
            raise PrivacyError(f"release '{spec.name}' was made in a round after the last one")
        if spec.made is not None and not np.array_equal(self.due(spec.name, rounds), charged):
            raise PrivacyError(
                f"release '{spec.name}' was made against its public schedule: give its spec "
                "`made`, and `charged`"
            )
        log = self._log(spec.name)
        parameters, number = log.known(rounds)
        if np.count_nonzero(charged & ((number >= spec.per_round) | (rounds < log.latest))):
            often = "twice" if spec.per_round == 1 else f"more than {spec.per_round} times"
            raise PrivacyError(
                f"release '{spec.name}' was made {often} in a round, or in a round that is over: "
                "it would repeat its noise; declare it with per_round"
            )
        if self.trust != "none":
            self._provenance.check(spec, values, rounds, number, charged, self._site.setups)
            for run, why in values.claims.items():
                if charged[run]:
                    self.claims[run].add(why)
        sensitivity = values.sensitivity(self._site.setup.relation)
        address = rounds
        if spec.per_round > 1:
            address = rounds * spec.per_round + np.minimum(number, spec.per_round - 1)
        largest = sensitivity if sensitivity.dim() == 1 else sensitivity.amax(dim=1)
        length = values.shape[-1] if values.is_vector else 1
        log.check_form(values.dtype, length, self._site.ledger.started)
        log.charge(rounds, charged, largest, length)
        return Call(spec, values, parameters, address, sensitivity, largest)

    def _mean(self, values: Bounded) -> Tensor:
        """[R, d] or [R] the sum over those that take part, divided by the public number of them."""
        own, cohort = values.checked(), values.cohort
        if cohort is None:
            return own.mean(dim=1)
        return among(cohort, own).sum(dim=1) / cohort.sampling.size

    def _log(self, name: str) -> ReleaseLog:
        """The log of a release, with the noise of every round by its declaration."""
        logs, site = self._site.ledger.logs, self._site
        if name not in logs:
            runs = zip(self.settings, site.specs, site.setups, strict=True)
            entries = [self.entry(own, specs[name], setup) for own, specs, setup in runs]
            shared = replace(entries[0], parameter=None)
            if any(replace(entry, parameter=None) != shared for entry in entries):
                raise PrivacyError(f"release '{name}': runs of one batch declare it differently")
            table = np.full((len(entries), self._last.max()), np.nan)  # after a run's end
            for row, entry, specs, last in zip(table, entries, site.specs, self._last, strict=True):
                row[:last] = specs[name].noise(entry, last)
            logs[name] = ReleaseLog(shared, table, site.specs[0][name].one_message)
        return logs[name]


def _only(charged: np.ndarray, values: Tensor) -> Tensor:
    """Zeros for the runs that were not charged: they may learn nothing from this release."""
    return torch.where(per_run(charged, values, torch.bool), values, 0.0)


def needs_noise(value: float | None, field: str) -> float:
    """A noise setting, or a ConfigError where it was left for calibration and none took place."""
    if value is None:
        raise ConfigError(
            f"mechanism.{field}: no noise level; give mechanism.{field}, or a target with "
            "dp.epsilon"
        )
    return value
