"""What is drawn before anybody computes: the clients that take part in a round, the records of a
batch; and the streams that methods and models draw from themselves.

A release of a cohort, or of a batch, is amplified only against those who do not know who or what
was drawn for it, afresh and for it alone. So both are opaque, made here alone, and say by which law
they were drawn. Values that are computed from them carry them, and a mechanism compares them with
what the release is priced by.

Cohorts: who takes part is drawn before the run, from a stream of its own, and nobody learns it. A
cohort has the same number of rows in every round: some are nobody's, and whose they are does not
show. Notation: M clients, q the rate, m = q M the size of a cohort, exactly or on average: a public
number, by which sums over a cohort are divided. (By the number that happened to be drawn, a mean
would show whether a client was there.)
"""

import math
import sys
import zlib
from collections.abc import Iterable
from dataclasses import InitVar, dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from dpfl_cli.config.errors import ConfigError, PrivacyError
from dpfl_cli.data.devices import on_device
from dpfl_cli.data.streams import Draw, Streams

# all clients; each with probability q, apart from the others; a uniform subset of m clients
Law = Literal["full", "poisson", "fixed"]
# a fresh uniform subset; one of disjoint parts of a random order; each record with the same
# probability, apart from the others; records that may come repeatedly
BatchLaw = Literal["subset", "part", "poisson", "repeats"]
FreshLaw = Literal["subset", "poisson", "repeats"]  # of a batch that is drawn by itself
HidingLaw = Literal["subset", "poisson"]  # by which a batch may be amplified
STREAM = "noise/cohort"  # in the key space that methods cannot draw from
NOBODY = -1
COHORT_REVISION = 2  # raised when the clients of a round, or their rows, change
OVERFLOW = 1e-18  # of a cohort with more clients than there are rows
_MAKER = object()


@dataclass(frozen=True, eq=False)
class Drawn:
    """What this file alone makes."""

    maker: InitVar[object] = field(default=None, kw_only=True)

    def __post_init__(self, maker: object) -> None:
        if maker is not _MAKER:
            raise PrivacyError(
                "batches are drawn by Round.batch and Round.epoch, which know their law, and "
                "cohorts by the engine"
            )


# --- the clients of a round -----------------------------------------------------------------------


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
        third = -math.log(OVERFLOW) / 3
        beyond = third + math.sqrt(third**2 + 6 * third * self.size)
        return min(self.clients, math.ceil(self.size + beyond))


@dataclass(frozen=True, eq=False)
class Cohort(Drawn):
    """Those who take part in a round of R runs.

    Attributes:
      sampling: how they were drawn.
      rounds: [R] the round of every run that they were drawn for.
    """

    sampling: Sampling
    rounds: np.ndarray
    __members: np.ndarray = field(repr=False)


def drawn_cohort(streams: Streams, sampling: Sampling, rounds: np.ndarray) -> Cohort:
    """The cohorts of the given round [R] of each run; a function of its seed and round alone.

    A number of clients is drawn (binomial, or m) and then so many, uniformly without replacement:
    time and memory follow the cohort, not M. They are put into rows at random, so that which rows
    the others have does not hang on whether a client is there: what it sends may follow from its
    row.
    """
    members = np.full((len(rounds), sampling.rows), NOBODY)
    for run, number in enumerate(rounds.tolist()):
        generator = streams.generator(run, STREAM, number)
        size = int(sampling.size)
        if sampling.law == "poisson":
            size = min(int(generator.binomial(sampling.clients, sampling.rate)), sampling.rows)
        chosen = generator.choice(sampling.clients, size, replace=False, shuffle=False)
        members[run, generator.permutation(sampling.rows)[:size]] = chosen
    return Cohort(sampling, rounds.copy(), members, maker=_MAKER)


def members_of(cohort: Cohort) -> np.ndarray:
    """[R, K] the number of every row's client, or `NOBODY`. For the engine only: who knows them has
    lost the amplification.
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


# --- the records of a batch -----------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Batch(Drawn):
    """Records of every client.

    Attributes:
      law: how they were drawn.
      size: b; of "poisson" on average, by which means are divided too.
      stream, numbers: the name of the random stream and [R] the address in it that they came from.
      part: which part of the random order at this address.
    """

    law: BatchLaw
    size: int
    stream: str
    numbers: np.ndarray
    __records: Tensor = field(repr=False)
    part: int = 0


def records_of(batch: Batch | list[Batch]) -> Tensor:
    """[R, M, b] record numbers, or [R, M, steps, b] of several batches of one size; of "poisson"
    [R, M, `Sampling.rows`], `NOBODY` after the last one. For objectives only: who knows them has
    lost the amplification.
    """
    if isinstance(batch, Batch):
        return batch._Batch__records  # type: ignore[attr-defined]
    if any(one.law == "poisson" for one in batch):
        raise PrivacyError(
            "local_descent divides by the number of records that were drawn, which of a Poisson "
            "batch is nobody's to know: draw batches of one size, or take a gradient at a time"
        )
    return torch.stack([records_of(one) for one in batch], dim=2)


def excess(batch: Batch | Tensor | None) -> float:
    """Rows of a batch, by which models divide, over the number that means over it are divided by; 1
    where they agree.
    """
    if not isinstance(batch, Batch) or batch.law != "poisson":
        return 1.0
    return records_of(batch).shape[-1] / batch.size


def drawn_batches(
    streams: Streams,
    stream: str,
    numbers: np.ndarray,
    held: np.ndarray,
    size: int,
    device: torch.device,
    law: BatchLaw,
) -> list[Batch]:
    """A fresh batch of every client's records, from an address of a stream; of the law "part" the
    disjoint ones of a random order, as many as the smallest client fills.

    Args:
      numbers: [R] addresses.
      held: [R, M] number of records m of every client, at least b but for "repeats".
      law: "poisson" takes each record with the probability b / m.
    """
    if type(streams) is not MethodStreams:
        raise PrivacyError(
            "batches are drawn from the run's own streams, which nobody else knows: use Round.batch"
        )
    streams, clients = streams._of_batches(stream), held.shape[1]

    def for_each() -> Tensor:
        """[R, M, m] a uniform number for every record of every client; 2 where there is none."""
        widths = held.max(axis=1)
        most, draws = int(widths.max()), torch.zeros((), device=device)
        for width in np.unique(widths).tolist():  # a run's own, whoever is stacked with it
            part = streams.uniform(stream, numbers, clients, width, device=device)
            mine = on_device(widths == width, part.device).reshape(-1, 1, 1)
            draws = torch.where(mine, pad(part, (0, most - width)), draws)
        absent = torch.arange(most) >= torch.from_numpy(held).unsqueeze(-1)
        return draws.masked_fill(on_device(absent, device), 2.0)

    if law == "poisson":
        if held.min() < size:
            raise ConfigError(
                f"{stream}: {size} records on average are more than a client holds; take fewer, or "
                "deal the clients more records"
            )
        draws = for_each()
        found = draws < on_device(size / held, device).unsqueeze(-1)
        rows, counted = Sampling("poisson", size, sys.maxsize).rows, found.cumsum(dim=-1)
        # those who are not in, or beyond the last row, go into one more, which is cut off
        places = torch.where(found & (counted <= rows), counted - 1, rows)
        every = torch.arange(found.shape[-1], device=found.device).expand_as(places)
        records = places.new_full((*held.shape, rows + 1), NOBODY)
        pieces = [records.scatter_(-1, places, every)[..., :rows].contiguous()]
    elif law == "repeats":
        draws = streams.uniform(stream, numbers, clients, size, device=device)
        pieces = [(draws * on_device(held, device).unsqueeze(-1)).long()]
    elif law == "part":
        parts = int(held.min()) // size
        order = for_each().argsort(dim=-1)[..., : parts * size]
        # ascending within a part, as subsets are
        pieces = [*order.unflatten(-1, (parts, size)).sort(dim=-1).values.unbind(dim=2)]
    else:
        pieces = [streams.subset(stream, numbers, clients, held, size, device)]
    own = numbers.copy()
    return [
        Batch(law, size, stream, own, records, part, maker=_MAKER)
        for part, records in enumerate(pieces)
    ]


# --- the streams of methods -----------------------------------------------------------------------


class MethodStreams(Streams):
    """A batch's streams without the key space of noise: who draws what a mechanism adds can take it
    off again.

    A stream's key is the crc32 of its name (`data.streams.stream_generator`); a name that is
    noise's, or whose key is, is refused.

    Args:
      streams: those of the batch.
      noise: names that the mechanism draws from.
    """

    def __init__(self, streams: Streams, noise: Iterable[str]) -> None:
        self.__streams = streams
        keys = [zlib.crc32(name.encode()) for name in noise]
        self.__noise = set(keys)
        if len(self.__noise) < len(keys):
            raise PrivacyError(
                "the names of two releases have one key, and would have the same noise: give one "
                "of them another name"
            )
        # key -> the name that first asked for it, and whether for batches
        self.__taken: dict[int, tuple[str, bool]] = {}

    def generator(self, run: int, name: str, *key: int) -> np.random.Generator:
        return self.__streams.generator(run, self._own(name), *key)

    def _drawn(self, wanted: Draw) -> Tensor:
        """What `normal` and `uniform` are asked for."""
        self._own(wanted.name)
        return self.__streams._drawn(wanted)

    def subset(self, name: str, *where: Any, **options: Any) -> Tensor:
        return self.__streams.subset(self._own(name), *where, **options)

    def _of_batches(self, name: str) -> Streams:
        """The streams, for batches from the stream of this name."""
        self._own(name, of_batches=True)
        return self.__streams

    def _own(self, name: str, of_batches: bool = False) -> str:
        """The name, unless it is of noise or another use has its key."""
        key = zlib.crc32(name.encode())
        if name.split("/", maxsplit=1)[0] == "noise" or key in self.__noise:
            raise PrivacyError(
                f"stream '{name}' has the key of a mechanism's noise, which nobody else draws: "
                "take another name"
            )
        known, batches = self.__taken.setdefault(key, (name, of_batches))
        if known != name:
            raise PrivacyError(
                f"streams '{known}' and '{name}' have one key, and would be one: take another name"
            )
        if batches != of_batches:
            raise PrivacyError(
                f"stream '{name}' is of batches, and somebody draws from it besides, who would "
                "know their records: take another name"
            )
        return name
