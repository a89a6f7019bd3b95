"""What a method declares before it runs: its releases, when each is made and with how much noise;
and what a release hands out.

The declaration is the schedule of a run. The planned ledger, calibration, the mechanism at work and
what results report are all read from it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from torch import Tensor

from dpfl_cli.config.errors import PrivacyError
from dpfl_cli.privacy.bounded import Relation, Unit
from dpfl_cli.privacy.client_values import ClientValues
from dpfl_cli.privacy.cohorts import Sampling
from dpfl_cli.privacy.ledger import LedgerEntry, Quantity, Shape

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
        of any length.
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
      rate, disjoint: as in the ledger's entry; the parts of an epoch are released in one round.
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
    disjoint: int = 1
    one_message: bool = False
    sums_suffice: bool = True
    echo: bool = False
    note: str = ""

    def __post_init__(self) -> None:
        if self.factors is not None and not (self.factors > 0).all():
            raise PrivacyError(f"release {self.name}: factors on its noise must be positive")
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
