"""The mechanism: the one object through which client data reaches anybody else.

An algorithm declares its releases (`ReleaseSpec`); a mechanism refuses a name that was not declared. A release adds the
noise and writes its event to the ledger in one act, on values that carry their own sensitivity. No noise is ever used
twice: a release is addressed by its name, the run's round and its number within the round.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from dpfl_cli.config.errors import ConfigError, PrivacyError
from dpfl_cli.data.devices import on_device
from dpfl_cli.data.streams import Streams
from dpfl_cli.privacy.bounded import Bounded, Relation
from dpfl_cli.privacy.client_values import ClientValues, versions
from dpfl_cli.privacy.ledger import BatchLedger, LedgerEntry, Quantity, Shape

Trust = Literal["none", "local", "central", "secure_aggregation"]

AFTER_THE_LAST = "release '{name}' was made in a round after the last one"
AGAINST_SCHEDULE = "release '{name}' was made against its public schedule: give its spec `occurs`, and `charged`"
TOO_OFTEN = (
    "release '{name}' was made more than {most} times in a round, or in a round that is over: it would repeat its noise; declare "
    "it with per_round"
)


@dataclass(frozen=True)
class ReleaseSpec:
    """A release that a method makes, declared before anything runs.

    Attributes:
      name: its name in the ledger.
      shape: "vector" contributions as long as the model, a "scalar", or a "matrix": a packed one, of any length.
      per_round: how often in a round.
      group: releases of one group are functions of the same contributions and may be priced jointly.
      quantity: what is released of the group's contributions: "" themselves, or "squared_norms".
      multiplier: the noise multiplier of this release as a function of (the mechanism's noise multiplier, model dimension,
        number of clients); None for the mechanism's own.
      schedule: (number of rounds T, number of clients) -> [T] factors on the noise multiplier of rounds 1 to T, for noise that
        changes over time; None for noise that does not.
      occurs: (seed, T) -> [T] booleans, in which rounds it is made: a public schedule, drawn before the run; None for all.
      expected: T -> how many rounds it is made in on average, where that schedule is drawn at random; None where it is not. The
        noise may be calibrated for so many (dp.releases=expected).
      rate, disjoint: as in the ledger's entry; what a run's data decide, `settle` sets.
      settle: (this spec, number of rounds T, records of the client with the fewest) -> the spec of a run, once these are known.
      one_message: whether the `per_round` releases of a round are steps that leave a client as one message, counted as sent once.
      sums_suffice: whether releases of the sums cover the method under secure aggregation. They do not where a client goes on
        from its own message, which holds only its share of the noise; then only messages with the whole noise do.
      echo: whether the method reads the echo, what each client knows of its own message; where it does not, a mechanism whose
        clients add shares may draw the noise of the sum at once.
      note: the quantity, its sensitivity and the derivation, in one line for `dpfl list`.
    """

    name: str
    shape: Shape = "vector"
    per_round: int = 1
    group: str = ""
    quantity: Quantity = ""
    multiplier: Callable[[float, int, int], float] | None = None
    schedule: Callable[[int, int], np.ndarray] | None = None
    occurs: Callable[[int, int], np.ndarray] | None = None
    expected: Callable[[int], float] | None = None
    rate: float | None = None
    disjoint: int = 1
    settle: Callable[[ReleaseSpec, int, int], ReleaseSpec] | None = None
    one_message: bool = False
    sums_suffice: bool = True
    echo: bool = False
    note: str = ""

    def parameters(self, base: float, seed: int, rounds: int, clients: int) -> tuple[np.ndarray, np.ndarray]:
        """The ledger parameter of this release in every round, and in which rounds it is made: two arrays [rounds]."""
        factors = np.ones(rounds) if self.schedule is None else np.asarray(self.schedule(rounds, clients), float)
        made = np.ones(rounds, bool) if self.occurs is None else np.asarray(self.occurs(seed, rounds), bool)
        if factors.shape != (rounds,) or made.shape != (rounds,) or not (factors > 0).all():
            raise PrivacyError(f"release {self.name}: its schedule needs one positive factor, or one boolean, a round")
        return base * factors, made


@dataclass(frozen=True)
class Release:
    """What a release hands out. Runs that were not charged get zeros.

    Attributes:
      received: what the receiver sees: every client's message [R, M, d] (local), or only their mean [R, d], [R] (central,
        secure aggregation).
      mean: the mean over clients of what was received, [R, d] or [R].
      own: [R, M, d] what each client itself knows of its own part of the exchange, the message it sent; None where the release
        did not declare that its method reads it. Read it as `echo`.
      bound: [R] the public bound (clip norm) of the contributions.
      noise_std: the standard deviation of the Gaussian noise in each coordinate of `received`: [R], or [R, M] where clients
        differ; None where the noise is not Gaussian or there is none.
    """

    received: Tensor
    mean: Tensor
    own: ClientValues | None
    bound: Tensor
    noise_std: Tensor | None = None

    @property
    def echo(self) -> ClientValues:
        """[R, M, d] each client's own message; it may enter the clients' state only."""
        if self.own is None:
            raise PrivacyError("this release keeps no echo: declare it with ReleaseSpec(..., echo=True)")
        return self.own


@dataclass(frozen=True)
class Site:
    """Where a mechanism works: the batch of runs it serves and their streams and ledgers.

    Attributes:
      specs: the declared releases of every run by name; runs of a batch declare the same names, with numbers of their own.
      horizons: [R] number of rounds T of every run.
      sound: whether bounds that are only claimed are refused (dp.mode=sound); so they are unless somebody says otherwise.
      host: calls a function with arguments: what is done on the host in every round, beside torch, passes through it.
    """

    specs: Sequence[Mapping[str, ReleaseSpec]]
    horizons: Sequence[int]
    trust: Trust
    relation: Relation
    unit: str
    dimension: int
    clients: int
    streams: Streams
    ledger: BatchLedger
    sound: bool = True
    host: Callable[..., Any] = lambda function, *args: function(*args)


@dataclass(frozen=True)
class _Planned:
    """A release over the rounds of a batch.

    Attributes:
      entry: the ledger entry that the runs share but for its numbers.
      parameters: [R, T] ledger parameters of every round; [R, 1] where they stay what they are.
      made: [R, T] in which rounds it is made; None for all.
    """

    entry: LedgerEntry
    parameters: np.ndarray
    made: np.ndarray | None


class Mechanism(ABC):
    """One for a batch of runs, built from one `Settings` per run.

    Class attributes say what it is for; `plan` prices a release before anything runs, and `release` does it. Both take
    their event from `entry`, so the plan and the ledger cannot differ.
    """

    trusts: ClassVar[frozenset[str]]  # the trust models under which it makes sense
    relations: ClassVar[frozenset[str]] = frozenset({"replace_one", "add_or_remove", "zero_out"})
    shapes: ClassVar[frozenset[str]] = frozenset({"vector", "scalar", "matrix"})  # of contributions it can release
    noise_field: ClassVar[str | None] = None  # the setting that calibration solves for
    needs_bound: ClassVar[bool] = True  # whether contributions must be clipped

    def __init__(self, settings: Sequence[Any], site: Site) -> None:
        self.settings = list(settings)
        self.site = site
        self._horizons = np.array(site.horizons)
        self._places = np.arange(len(self.settings)) * max(site.horizons) - 1  # of round 0 in tables [R, T]
        self._plans: dict[str, _Planned] = {}
        self._free: dict[str, np.ndarray] = {}  # name -> [R] the first number that addresses noise that no release has used
        self._bounds: dict[str, tuple[Tensor, tuple[int, ...]]] = {}  # name -> the bound last found good, and its version
        self._unread: dict[str, Tensor] = {}  # name -> on a device, whether its bounds were good; see `verify`

    @classmethod
    @abstractmethod
    def entry(cls, settings: Any, spec: ReleaseSpec, relation: Relation, unit: str, dimension: int, clients: int) -> LedgerEntry:
        """The ledger entry (count 1, sensitivity None) of one release of `spec` under these settings."""

    @classmethod  # noqa: B027 (most mechanisms have nothing to check)
    def check(cls, settings: Any, dimension: int) -> None:
        """A ConfigError where these settings, now that any noise is calibrated, cannot work in this dimension."""

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

    @abstractmethod
    def release(self, name: str, values: Bounded, rounds: np.ndarray, charged: np.ndarray | None = None) -> Release:
        """Releases bounded values under a declared name and charges the ledger.

        Args:
          name: a declared release.
          values: one contribution per client.
          rounds: [R] the round each run is in, which addresses its noise.
          charged: [R] booleans: the runs in which this release happens; None for all. The others receive zeros.

        Raises:
          PrivacyError: the release was not declared, was made more often in a round than declared, has another shape or unit;
            the values were not clipped, or were changed since.
        """

    def squared_norms(self, release: Release) -> Tensor:
        """[R, M] estimates of ||v_i||^2 of the contributions behind received messages (post-processing).

        Only where the receiver sees messages (local trust).
        """
        raise PrivacyError(
            f"{type(self).__name__} hands out no messages of single clients, so no norms can be estimated from them"
        )

    def _begin(self, name: str, values: Bounded, rounds: np.ndarray, charged: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        """Checks a release against its declaration and charges it.

        Returns:
          The [R] ledger parameters, and the [R] numbers that address this release's noise.
        """
        site = self.site
        spec = site.specs[0].get(name)
        if spec is None:
            raise PrivacyError(f"release '{name}' was not declared: add a ReleaseSpec to the algorithm's releases")
        if type(values) is not Bounded:
            raise PrivacyError(f"release '{name}' got a {type(values).__name__}, not bounded values: clip them first")
        if site.sound and site.trust != "none" and not values.proved:
            raise PrivacyError(f"release '{name}': its bound is claimed, not proved ({values.proof}); dp.mode=paper runs it")
        values.check()
        shape: Shape = "scalar"
        if values.is_vector:
            shape = "matrix" if spec.shape == "matrix" else "vector"
        if shape != spec.shape or values.unit != site.unit:
            raise PrivacyError(
                f"release '{name}' was declared as a {spec.shape} per {site.unit}, but got a {shape} per {values.unit}"
            )
        if spec.quantity and values.quantity != spec.quantity:
            raise PrivacyError(f"release '{name}' was declared as {spec.quantity}: give it {spec.quantity}(bounded values)")
        if shape not in self.shapes:
            raise PrivacyError(f"release '{name}': {type(self).__name__} cannot release a {shape}")
        if shape == "vector" and values.shape[-1] != site.dimension:
            raise PrivacyError(f"release '{name}' has {values.shape[-1]} coordinates, the model {site.dimension}")
        runs = len(self.settings)
        if values.shape[:2] != (runs, site.clients) or rounds.shape != (runs,):
            raise PrivacyError(
                f"release '{name}' got contributions {list(values.shape)} of rounds {list(rounds.shape)}, "
                f"but serves {runs} runs of {site.clients} clients"
            )
        size = values.shape[-1] if values.is_vector else 1
        told = values.bound, values.sensitivity(site.relation), rounds, charged, size
        parameters, address = site.host(self._charge, spec, *told)
        return parameters, address

    def _charge(
        self, spec: ReleaseSpec, bound: Tensor, sensitivity: Tensor, rounds: np.ndarray, charged: np.ndarray | None, size: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """What a release of contributions of `size` numbers does in every round beside computing.

        It checks its bound and its round, charges the ledger and counts what was sent.

        Returns:
          The [R] ledger parameters, and the [R] numbers that address this release's noise.
        """
        name = spec.name
        if self.needs_bound:
            self._check_bound(name, bound)
        plan = self._planned(name)
        if np.count_nonzero(rounds > self._horizons):
            raise PrivacyError(AFTER_THE_LAST.format(name=name))
        steady = plan.parameters.shape[1] == 1
        parameters = plan.parameters[:, 0] if steady else plan.parameters.take(self._places + rounds)
        if plan.made is not None:
            made = plan.made.take(self._places + rounds)
            if not np.array_equal(made, np.ones(len(made), bool) if charged is None else charged):
                raise PrivacyError(AGAINST_SCHEDULE.format(name=name))
        address = self._address(spec, rounds, charged)
        sent = np.where(address == rounds * spec.per_round, size, 0) if spec.one_message else size
        self.site.ledger.charge(plan.entry, sensitivity, parameters, charged, sent)
        return parameters, address

    def _charge_rounds(
        self, spec: ReleaseSpec, told: Sequence[tuple[Tensor, Tensor, int]], rounds: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """All releases of `spec` in several rounds in a row, charged as `_charge` does one by one; where it refuses one, none is.

        Args:
          told: the bound, the sensitivity and the size of every release of a round, the same in every round.
          rounds: [k, R] their numbers, ascending by 1.

        Returns:
          The [k, R] ledger parameters, and the [k, len(told), R] numbers that address the releases' noise.
        """
        name = spec.name
        if self.needs_bound:
            for bound, _, _ in told:
                self._check_bound(name, bound)
        plan = self._planned(name)
        if np.count_nonzero(rounds[-1] > self._horizons):
            raise PrivacyError(AFTER_THE_LAST.format(name=name))
        if plan.made is not None and not plan.made.take(self._places + rounds).all():
            raise PrivacyError(AGAINST_SCHEDULE.format(name=name))
        steady = plan.parameters.shape[1] == 1
        parameters = (
            np.broadcast_to(plan.parameters[:, 0], rounds.shape) if steady else plan.parameters.take(self._places + rounds)
        )
        first = rounds * spec.per_round
        begin, free = first.copy(), self._free.get(name)
        if free is not None:
            begin[0] = np.maximum(begin[0], free)
        if np.count_nonzero(begin + len(told) > first + spec.per_round):
            raise PrivacyError(TOO_OFTEN.format(name=name, most=spec.per_round))
        self._free[name] = begin[-1] + len(told)
        addresses = begin[:, None] + np.arange(len(told)).reshape(-1, 1)
        counted = addresses == first[:, None] if spec.one_message else np.ones_like(addresses, bool)
        sent = (counted * np.array([size for _, _, size in told]).reshape(-1, 1)).sum(axis=(0, 1))
        self.site.ledger.charge_rounds(plan.entry, [sensitivity for _, sensitivity, _ in told], parameters, sent)
        return parameters, addresses

    def _check_bound(self, name: str, bound: Tensor) -> None:
        """Refuses a bound that bounds nothing.

        Read on the host where that costs nothing, else when metrics are read (`verify`): noise in proportion to an infinite bound
        drowns the values, so that nothing leaks until then.
        """
        known, version = self._bounds.get(name, (None, None))
        if known is bound and version == versions((bound,)):
            return
        good = (torch.isfinite(bound) & (bound > 0)).all()
        if bound.device.type == "cpu":
            self._demand(name, good)
        else:
            self._unread[name] = self._unread[name] & good if name in self._unread else good
        self._bounds[name] = bound, versions((bound,))

    def _demand(self, name: str, good: Tensor) -> None:
        if not bool(good):
            raise PrivacyError(f"release '{name}' needs clipped values: set algorithm.clip_norm to a positive, finite number")

    def verify(self) -> None:
        """Makes up for the checks of bounds that rounds on a device leave open, so as not to wait for it; reads the device.

        Called when metrics are read, and so before any result of these rounds is seen.

        Raises:
          PrivacyError: a bound bounds nothing.
        """
        for name, good in self._unread.items():
            self._demand(name, good)
        self._unread.clear()

    def _planned(self, name: str) -> _Planned:
        """The release's parameters over the rounds of every run, from the declarations; made once."""
        known = self._plans.get(name)
        if known is not None:
            return known
        site = self.site
        entries = []
        table = np.empty((len(site.specs), max(site.horizons)))  # after a run's end: as in its last round, and made in none
        masks = np.zeros(table.shape, bool)
        each = zip(self.settings, site.specs, site.streams.seeds, site.horizons, strict=True)
        for run, (one, specs, seed, horizon) in enumerate(each):
            entry = self.entry(one, specs[name], site.relation, site.unit, site.dimension, site.clients)
            entry = replace(entry, rate=specs[name].rate, disjoint=specs[name].disjoint)
            base = np.nan if entry.parameter is None else float(np.asarray(entry.parameter))
            entries.append(replace(entry, parameter=None, count=1, quantity=specs[name].quantity))
            table[run, :horizon], masks[run, :horizon] = specs[name].parameters(base, seed, horizon, site.clients)
            table[run, horizon:] = table[run, horizon - 1]
        if any(entry != entries[0] for entry in entries):
            raise PrivacyError(f"release '{name}': runs of one batch declare it differently")
        if all(specs[name].schedule is None for specs in site.specs):
            table = table[:, :1].copy()
        plan = self._plans[name] = _Planned(entries[0], table, masks if site.specs[0][name].occurs else None)
        return plan

    @classmethod
    def planned(
        cls,
        settings: Any,
        spec: ReleaseSpec,
        relation: Relation,
        unit: str,
        dimension: int,
        clients: int,
        seed: int,
        rounds: int,
        horizon: int,
    ) -> LedgerEntry | None:
        """The ledger entry of `spec` after the first `rounds` of `horizon` rounds; None where nothing was released."""
        whole = cls.entry(settings, spec, relation, unit, dimension, clients)
        entry = replace(whole, quantity=spec.quantity, rate=spec.rate, disjoint=spec.disjoint)
        base = np.nan if entry.parameter is None else float(np.asarray(entry.parameter))
        values, made = spec.parameters(base, seed, horizon, clients)
        kept = np.repeat(values[:rounds][made[:rounds]], spec.per_round)
        if not len(kept):
            return None
        if entry.parameter is None:
            return replace(entry, count=len(kept))
        same = bool((kept == kept[0]).all())
        return replace(entry, count=len(kept), parameter=float(kept[0]) if same else tuple(map(float, kept)))

    @property
    def trust(self) -> Trust:
        """The trust model of the runs it serves."""
        return self.site.trust

    @property
    def rounds(self) -> tuple[int, ...]:
        """[R] the number of rounds T of every run."""
        return tuple(self.site.horizons)

    def due(self, name: str, rounds: np.ndarray) -> np.ndarray:
        """[R] booleans: whether a release is to be made in this round, by its public schedule (`ReleaseSpec.occurs`)."""
        if name not in self.site.specs[0]:
            raise PrivacyError(f"release '{name}' was not declared: add a ReleaseSpec to the algorithm's releases")
        plan = self._planned(name)
        if plan.made is None:
            return np.ones(len(self.settings), bool)
        made: np.ndarray = plan.made.take(self._places + rounds)
        return made

    def _address(self, spec: ReleaseSpec, rounds: np.ndarray, charged: np.ndarray | None) -> np.ndarray:
        """[R] numbers, one per release of `spec` that a run may make; no charged run gets one twice."""
        first = rounds * spec.per_round
        free = self._free.get(spec.name)
        address = first if free is None else np.maximum(first, free)
        over = address >= first + spec.per_round
        if np.count_nonzero(over if charged is None else over & charged):
            raise PrivacyError(TOO_OFTEN.format(name=spec.name, most=spec.per_round))
        if charged is None:
            self._free[spec.name] = address + 1
            return address
        self._free[spec.name] = np.where(charged, address + 1, 0 if free is None else free)
        return np.minimum(address, first + spec.per_round - 1)

    def _per_run(self, values: np.ndarray | Tensor, like: Tensor) -> Tensor:
        """[R] or [R, M] numbers as a tensor shaped to multiply values [R, ...] or [R, M, ...]."""
        numbers = on_device(values, like.device, like.dtype)
        return numbers.reshape(*numbers.shape, *[1] * (like.dim() - numbers.dim()))

    def _charged_only(self, received: Tensor, charged: np.ndarray | None) -> Tensor:
        """Zeros for the runs that were not charged: they may learn nothing from this release."""
        if charged is None or charged.all():
            return received
        return torch.where(self._per_run(charged, received) > 0, received, torch.zeros_like(received))


def needs_noise(value: float | None, field: str) -> float:
    """A noise setting, or a ConfigError where it was left for calibration and none took place."""
    if value is None:
        raise ConfigError(f"mechanism.{field}: no noise level; give mechanism.{field}, or a target with dp.epsilon")
    return value
