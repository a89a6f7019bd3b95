"""Cohorts: the clients that take part in a round, with the law that they were drawn by.

Who takes part is drawn before the run, from a stream of its own, and nobody learns it: a release of
a cohort is amplified only against those who do not know whether a client was in it. So a cohort is
opaque to methods, made by `drawn` alone, and has the same number of rows in every round: some are
nobody's, and whose they are does not show. Values that clients compute carry their cohort, and a
mechanism compares it with what the release is priced by.

Notation: M clients, q the rate, m = q M the size of a cohort, exactly or on average: a public
number, by which sums over a cohort are divided. (By the number that happened to be drawn, a mean
would show whether a client was there.)
"""

import math
from dataclasses import InitVar, dataclass, field
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from dpfl_cli.config.errors import PrivacyError
from dpfl_cli.data.devices import on_device
from dpfl_cli.data.streams import Streams

# all clients; each with probability q, apart from the others; a uniform subset of m clients
Law = Literal["full", "poisson", "fixed"]
STREAM = "noise/cohort"  # in the key space that methods cannot draw from
NOBODY = -1
_OVERFLOW = 1e-18  # of a cohort with more clients than there are rows
_MAKER = object()


@dataclass(frozen=True)
class Sampling:
    """How clients are drawn for a round.

    Attributes:
      law: "poisson" or "fixed".
      size: m, the number of clients that take part: on average, or exactly.
      clients: M.
    """

    law: Law
    size: float
    clients: int

    @property
    def rate(self) -> float:
        """q = m / M."""
        return self.size / self.clients

    @property
    def rows(self) -> int:
        """How many rows a cohort has: its size or, where that is random, a number that it exceeds
        with a probability below 1e-18, by Bernstein's inequality P(S >= m + t) <= exp(-t^2 / (2 m
        + 2 t / 3)).
        """
        if self.law == "fixed":
            return int(self.size)
        third = -math.log(_OVERFLOW) / 3
        beyond = third + math.sqrt(third**2 + 6 * third * self.size)
        return min(self.clients, math.ceil(self.size + beyond))


@dataclass(frozen=True, eq=False)
class Cohort:
    """Those who take part in a round of R runs.

    Attributes:
      sampling: how they were drawn.
      rounds: [R] the round of every run that they were drawn for.
    """

    sampling: Sampling
    rounds: np.ndarray
    __members: np.ndarray = field(repr=False)
    maker: InitVar[object] = None

    def __post_init__(self, maker: object) -> None:
        if maker is not _MAKER:
            raise PrivacyError("cohorts are drawn by the engine, which knows their law")


def drawn(streams: Streams, sampling: Sampling, rounds: np.ndarray) -> Cohort:
    """The cohorts of the given round [R] of each run; a function of its seed and round alone.

    A number of clients is drawn (binomial, or m) and then so many, uniformly without replacement:
    time and memory follow the cohort, not M.
    """
    members = np.full((len(rounds), sampling.rows), NOBODY)
    for run, number in enumerate(rounds.tolist()):
        generator = streams.generator(run, STREAM, number)
        size = int(sampling.size)
        if sampling.law == "poisson":
            size = min(int(generator.binomial(sampling.clients, sampling.rate)), sampling.rows)
        chosen = generator.choice(sampling.clients, size, replace=False, shuffle=False)
        members[run, :size] = np.sort(chosen)
    return Cohort(sampling, rounds.copy(), members, maker=_MAKER)


def members_of(cohort: Cohort) -> np.ndarray:
    """[R, K] the clients' numbers, ascending, then `NOBODY`. For the engine only: who knows them
    has lost the amplification.
    """
    return cohort._Cohort__members  # type: ignore[attr-defined]


def among(cohort: Cohort | None, values: Tensor) -> Tensor:
    """Plain values [R, K, ...] with zeros in the rows that are nobody's; as they are where all
    clients take part. For mechanisms and diagnostics only.
    """
    if cohort is None:
        return values
    there = on_device(torch.from_numpy(members_of(cohort) != NOBODY), values.device)
    return torch.where(there.reshape(*there.shape, *[1] * (values.dim() - 2)), values, 0.0)
