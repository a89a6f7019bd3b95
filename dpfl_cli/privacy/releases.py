"""What a method declares before it runs: its releases, when each is made and with how much noise;
what a release hands out; and where its contributions come from, by which it is priced.

The declaration is the schedule of a run. The planned ledger, calibration, the mechanism at work and
what results report are all read from it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NoReturn

import numpy as np
from torch import Tensor

from dpfl_cli.config.errors import ConfigError, PrivacyError
from dpfl_cli.privacy.bounded import Bounded, Relation, Unit
from dpfl_cli.privacy.client_values import ClientValues
from dpfl_cli.privacy.draws import Batch, HidingLaw, Sampling
from dpfl_cli.privacy.ledger import BatchLedger, LedgerEntry, Quantity, Shape

REFILLED = (
    "dp.relation=add_or_remove: where a record is gone, a batch holds another one in its place, so "
    "that batches have the sensitivity of replacing; write dp.relation=replace_one or zero_out"
)
Trust = Literal["none", "local", "central", "secure_aggregation"]


@dataclass(frozen=True)
class Setup:
    """What is known of a run before its method declares releases.

    Attributes:
      dimension: d of the model.
      clients: M.
      seed, rounds: of the run; T rounds.
      sampling: how clients are drawn for a round; None where all take part.
      fewest: () -> the number of records of the client with the fewest. Looks at the data, so that
        a method asks only where its releases depend on it.
    """

    trust: Trust
    relation: Relation
    unit: Unit
    dimension: int
    clients: int
    seed: int
    rounds: int
    fewest: Callable[[], int]
    sampling: Sampling | None = None

    @property
    def cohort(self) -> float:
        """The public number of clients in a round, on average where it is random: what sums over
        clients are divided by.
        """
        return self.clients if self.sampling is None else self.sampling.size


@dataclass(frozen=True, eq=False)
class ReleaseSpec:
    """A release that a method makes.

    Attributes:
      name: its name in the ledger.
      shape: "vector" contributions as long as the model, a "scalar", or a "matrix": a packed one,
        of any length, the same in every round.
      per_round: how often in a round, at most.
      group: releases of one group are functions of the same contributions and may be priced
        jointly.
      quantity: what is released of the group's contributions: "" themselves, or "squared_norms".
      multiplier: the noise multiplier of this release as a function of the mechanism's; None for
        the mechanism's own.
      factors: [T] factors on the noise multiplier of rounds 1 to T, for noise that changes over
        time; None for noise that does not.
      made: [T] booleans, in which rounds it is made: a public schedule, drawn before the run; None
        for all.
      expected: in how many rounds it is made on average, where that schedule is drawn at random;
        None where it is not. The noise may be calibrated for so many (dp.releases=expected).
      rate, batch, disjoint: as in the ledger's entry; the parts of an epoch are released in one
        round.
      one_message: whether the `per_round` releases of a round are steps that leave a client as one
        message, counted as sent once.
      sums_suffice: whether releases of the sums cover the method under secure aggregation. They do
        not where a client goes on from its own message, which holds only its share of the noise;
        then only messages with the whole noise do.
      echo: whether the method reads the echo, what each client knows of its own message; where it
        does not, a mechanism whose clients add shares may draw the noise of the sum at once.
      note: the quantity, its sensitivity and the derivation, in one line for `dpfl list`.
    """

    name: str
    shape: Shape = "vector"
    per_round: int = 1
    group: str = ""
    quantity: Quantity = ""
    multiplier: Callable[[float], float] | None = None
    factors: np.ndarray | None = None
    made: np.ndarray | None = None
    expected: float | None = None
    rate: float | None = None
    batch: HidingLaw = "subset"
    disjoint: int = 1
    one_message: bool = False
    sums_suffice: bool = True
    echo: bool = False
    note: str = ""

    def __post_init__(self) -> None:
        if self.factors is not None and not np.all(np.asarray(self.factors) > 0):
            raise PrivacyError(f"release {self.name}: factors on its noise must be positive")
        for name in ("factors", "made"):
            if not isinstance(getattr(self, name), np.ndarray | None):
                raise ConfigError(f"release {self.name}: {name} is no array [T]: np.array(…)")
        if self.disjoint < 1 or self.per_round % self.disjoint:
            raise PrivacyError(
                f"release {self.name}: disjoint={self.disjoint}: a round is whole epochs of so "
                f"many parts, and per_round={self.per_round} is no multiple of that"
            )
        if self.disjoint > 1 and self.rate is not None:
            raise PrivacyError(
                f"release {self.name}: parts of an epoch are no fresh subsets: give disjoint or "
                "rate, not both"
            )

    def noise(self, entry: LedgerEntry, rounds: int) -> np.ndarray:
        """[T] the parameter of every round, for the `entry` of one release."""
        base = np.full(rounds, np.asarray(entry.parameter, float))  # NaN where there is none
        if self.factors is None:
            return base
        if self.factors.shape != (rounds,):
            raise PrivacyError(f"release {self.name}: its schedule needs one factor a round")
        return base * self.factors

    def occurs(self, rounds: int) -> np.ndarray:
        """[T] booleans, in which rounds it is made."""
        if self.made is None:
            return np.ones(rounds, bool)
        if self.made.shape != (rounds,):
            raise PrivacyError(f"release {self.name}: its schedule needs one boolean a round")
        return self.made


@dataclass(frozen=True, kw_only=True)
class Release:
    """What a release hands out. Runs that were not charged get zeros.

    Attributes:
      received: what the receiver sees: every client's message [R, M, d] (local), or only their mean
        [R, d], [R] (central, secure aggregation).
      own: [R, M, d] what each client itself knows of its own part of the exchange, the message it
        sent; None where the release did not declare that its method reads it. Read it as `echo`.
      bound: [R] the public bound (clip norm) of the contributions.
      noise_std: the standard deviation of the Gaussian noise in each coordinate of `received`: [R],
        or [R, M] where clients differ; None where the noise is not Gaussian or there is none.
      averaged: the mean over clients; None where it is that of the messages received (local).
    """

    received: Tensor
    own: ClientValues | None
    bound: Tensor
    noise_std: Tensor | None = None
    averaged: Tensor | None = None

    @classmethod
    def __torch_function__(cls, *given: Any) -> NoReturn:
        raise ConfigError("a release is no tensor: take what is in it, such as its .mean")

    @cached_property  # not every method reads it
    def mean(self) -> Tensor:
        """[R, d] or [R] the mean over clients of what was received."""
        return self.received.mean(dim=1) if self.averaged is None else self.averaged

    @property
    def echo(self) -> ClientValues:
        """[R, M, d] each client's own message; it may enter the clients' state only."""
        if self.own is None:
            raise PrivacyError(
                "this release keeps no echo: declare it with ReleaseSpec(..., echo=True)"
            )
        return self.own


class Provenance:
    """What a mechanism remembers of the contributions it released."""

    def __init__(self, ledger: BatchLedger) -> None:
        self._ledger = ledger  # knows the last batches, also of rounds in another process
        # group, number in the round -> [R] the round of every run, [R] of which contributions
        self._groups: dict[tuple[str, int], tuple[np.ndarray, np.ndarray]] = {}

    def check(
        self,
        spec: ReleaseSpec,
        values: Bounded,
        rounds: np.ndarray,
        number: np.ndarray,
        charged: np.ndarray,
        setups: Sequence[Setup],
    ) -> None:
        """Refuses contributions that are not what the release is priced by.

        Args:
          spec: of the first run; its rate is that of all.
          number: [R] how many of these releases were made in the round before.
          charged: [R] the runs in which it is made.
          setups: of every run.
        """
        sampling, cohort = setups[0].sampling, values.cohort
        # where clients are drawn, a release is of those who were drawn for this round
        if sampling is not None and (
            cohort is None
            or cohort.sampling != sampling
            or not np.array_equal(cohort.rounds, rounds)
        ):
            raise PrivacyError(
                f"release '{spec.name}' is priced by how its clients are drawn, afresh in every "
                "round: compute it from what the clients of this round hold"
            )
        # releases of one group that have the same number in a round of a run are of the same
        # contributions
        for which in np.unique(number[charged]).tolist() if spec.group else ():
            nothing = np.zeros_like(rounds), np.full(len(rounds), None, object)
            when, sources = self._groups.setdefault((spec.group, which), nothing)
            mine = charged & (number == which)
            if (mine & (when == rounds) & (sources != values.source)).any():
                raise PrivacyError(
                    f"release '{spec.name}' is declared to be of the contributions of its group "
                    f"'{spec.group}', with which it is priced jointly, but it is of others"
                )
            when[mine], sources[mine] = rounds[mine], values.source
        if spec.rate is None and spec.disjoint == 1:
            return
        # a release that is amplified, or shares its cost with others of its epoch, is of a batch
        # that was drawn for that, for this release alone
        most = (spec.rate or 1.0) * min(setup.fewest() for setup in setups)
        law = spec.batch if spec.disjoint == 1 else "part"
        batch = values.batch
        if not isinstance(batch, Batch) or batch.law != law:
            raise PrivacyError(
                f"release '{spec.name}' is priced by how its batch is drawn ({law} of the "
                "records): compute it on a batch of Round.batch or Round.epoch"
            )
        if batch.size > most * (1 + 1e-9):
            raise PrivacyError(
                f"release '{spec.name}' is of {batch.size} records a client, more than the rate "
                "that it is priced by"
            )
        last, piece = self._ledger.last_batch(batch.stream).T
        fresh = batch.numbers > last
        if law == "part":
            following = (batch.numbers == last) & (batch.part == piece + 1)
            fresh = np.where(batch.part == 0, fresh, following)
            fresh &= number % spec.disjoint == batch.part
        if not fresh.all():
            raise PrivacyError(
                f"release '{spec.name}' is of a batch that was released before, or not in its "
                "turn: draw a fresh one for every release"
            )
        last[:], piece[:] = batch.numbers, batch.part
