"""The ledger: every release of a run, as it happened. Epsilon is computed from it and from nothing
else.

An entry is one named release: what was added (an event), how often, with what sensitivity, under
which relation, for which unit, and who sees what (`scope`). Entries of one `group` are computed
from the same bounded values in the same round and may be priced jointly. Noise that changes over
time is one entry with an array of noise multipliers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from dpfl_cli.config.errors import PrivacyError
from dpfl_cli.privacy.draws import HidingLaw, Law
from dpfl_cli.privacy.kinds import KINDS

Scope = Literal["client", "federation"]
Quantity = Literal["", "squared_norms"]
Shape = Literal["vector", "scalar", "matrix"]
Fields = dict[str, Any]  # of an entry, in JSON


@dataclass(frozen=True)
class LedgerEntry:
    """One named release of one run.

    Attributes:
      name: the release, such as "update".
      kind: one of `kinds.KINDS`: "gaussian" (noise multiplier), "pure" (epsilon), "nonprivate".
      count: number of releases composed.
      parameter: noise multiplier = std / sensitivity, or pure epsilon; a list of `count` of them
        where it changes over time; None for nonprivate.
      sensitivity: L2 sensitivity under `relation`, of one contribution to the released quantity
        before averaging; None where it changes over time, or is not bounded (nonprivate). Epsilon
        does not depend on it: `parameter` is relative to it.
      scope: "client": each client's own sequence of messages is seen, and clients hold disjoint
        data (parallel composition, the worst client counts); "federation": one quantity computed
        from all clients.
      group: entries with the same non-empty group are functions of the same contributions in the
        same round.
      shape: what a contribution is: a "vector" as long as the model, a "scalar" or a packed
        "matrix".
      quantity: what was released of the group's contributions: "" themselves, "squared_norms"
        theirs.
      rate: the share of a client's records that a fresh batch holds (by a Poisson law on average),
        of the client with the fewest; or, where clients are drawn (`law`), the probability of each
        to take part. None where the release is of all of them. Accountants that know no
        amplification price it as if it were not there.
      batch: how the records of that batch were drawn: a uniform "subset", or each by itself
        ("poisson").
      law: how the clients were drawn that took part (`draws.Law`).
      rounds: where they were drawn, the round of each release, for those of a round are of one
        cohort; else None.
      disjoint: so many consecutive releases are of disjoint parts of a client's records, which cost
        together what one does.
      floats: how many numbers one client sent with these releases: counted as they were made, no
        part of their price.
      form: type and length of a contribution, "float32[30]"; no part of the price; "" where it is
        not known, as in plans.
    """

    name: str
    kind: str
    count: int
    parameter: float | tuple[float, ...] | None
    sensitivity: float | None
    relation: str
    unit: str
    scope: Scope
    group: str = ""
    shape: Shape = "vector"
    quantity: Quantity = ""
    rate: float | None = None
    disjoint: int = 1
    law: Law = "full"
    batch: HidingLaw = "subset"
    rounds: tuple[int, ...] | None = None
    floats: int = field(default=0, compare=False)
    form: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        if self.rate is not None and not 0 < self.rate <= 1:
            raise PrivacyError(
                f"release {self.name}: rate={self.rate:g} is no share of records, or of clients: "
                "give one above 0 and up to 1, or None"
            )
        if self.batch not in (known := get_args(HidingLaw)):
            raise PrivacyError(
                f"release {self.name}: batch={self.batch!r}: batches are priced by "
                f"{', '.join(known)}"
            )
        if isinstance(self.parameter, tuple) and len(self.parameter) != self.count:
            raise PrivacyError(
                f"release {self.name}: {len(self.parameter)} parameters for {self.count} releases"
            )
        if self.disjoint > 1 and isinstance(self.parameter, tuple):
            raise PrivacyError(
                f"release {self.name}: noise that changes over releases of disjoint parts cannot "
                "be priced"
            )

    @property
    def charges(self) -> int:
        """How many releases it costs as much as: their count, or fewer where parts are disjoint."""
        return -(-self.count // self.disjoint)

    def parameters(self) -> np.ndarray:
        """[count] the noise multiplier (or pure epsilon) of every release."""
        if self.parameter is None:
            raise PrivacyError(f"release {self.name} is not private: it has no noise")
        return np.broadcast_to(np.asarray(self.parameter, float), self.count)

    def levels(self) -> dict[float, int]:
        """Noise multiplier (or pure epsilon) -> how many releases it costs as much as."""
        if isinstance(self.parameter, tuple):
            levels, counts = np.unique(self.parameters(), return_counts=True)
            return dict(zip(levels.tolist(), counts.tolist(), strict=True))
        return {float(self.parameters()[0]): self.charges}

    def scaled(self, factor: float) -> LedgerEntry:
        """With every noise multiplier times a factor."""
        return replace(self.of_releases(factor * self.parameters()), rounds=self.rounds)

    def of_releases(self, parameters: np.ndarray, rounds: np.ndarray | None = None) -> LedgerEntry:
        """This entry with so many releases [n], one noise multiplier (or pure epsilon) each.

        Args:
          rounds: [n] of the releases; kept where clients are drawn.
        """
        kept = None if rounds is None or self.law == "full" else tuple(rounds.tolist())
        parameter: float | tuple[float, ...] | None = None
        if self.kind != "nonprivate":
            same = bool((parameters == parameters[:1]).all())
            parameter = float(parameters[0]) if same else tuple(parameters.tolist())
        return replace(self, count=len(parameters), parameter=parameter, rounds=kept)

    def in_rounds(self, noise: np.ndarray, times: np.ndarray) -> LedgerEntry:
        """This entry with so many releases in every round [T], of that round's noise [T]."""
        rounds = np.repeat(np.arange(1, len(times) + 1), times)
        return self.of_releases(np.repeat(noise, times), rounds)

    def joined(self, later: LedgerEntry) -> LedgerEntry:
        """This entry and later releases of the same name.

        Raises:
          PrivacyError: they are releases of another kind.
        """
        both = self, later
        own, theirs = (
            replace(one, count=0, parameter=None, sensitivity=None, rounds=None) for one in both
        )
        if own != theirs:
            raise PrivacyError(
                f"release {self.name} changed its kind, shape, relation, unit or scope during a run"
            )
        noise = [np.broadcast_to(np.asarray(one.parameter, float), one.count) for one in both]
        rounds = np.array([*(self.rounds or ()), *(later.rounds or ())], int)
        return replace(
            self.of_releases(np.concatenate(noise), rounds),
            sensitivity=self.sensitivity if self.sensitivity == later.sensitivity else None,
            floats=self.floats + later.floats,
            form=later.form,
        )

    def to_json(self) -> Fields:
        """Plain values, and the name of the event."""
        return {**asdict(self), "event": KINDS[self.kind].event_name}

    @classmethod
    def from_json(cls, values: Fields) -> LedgerEntry:
        fields: Fields = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in values.items()
            if name != "event"
        }
        return cls(**fields)


Entries = list[LedgerEntry]


@dataclass(frozen=True)
class Ledger:
    """The releases of one run, in the order in which their names first appeared."""

    entries: tuple[LedgerEntry, ...] = ()

    @property
    def releases(self) -> int:
        """Number of releases composed, over all names."""
        return sum(entry.count for entry in self.entries)

    @property
    def floats(self) -> int:
        """How many numbers one client sent, over all names."""
        return sum(entry.floats for entry in self.entries)

    def to_json(self) -> list[Fields]:
        return [entry.to_json() for entry in self.entries]

    @classmethod
    def from_json(cls, values: Sequence[Fields]) -> Ledger:
        return cls(tuple(LedgerEntry.from_json(value) for value in values))


def together(ledgers: Mapping[str, Ledger]) -> Ledger:
    """What runs on the same data released, as one ledger.

    Args:
      ledgers: by the name of the run, which comes before the names of its releases. Noise, and what
        clients and batches are drawn, are independent of the others'.
    """
    entries, before = list[LedgerEntry](), 0
    for run, ledger in ledgers.items():
        for entry in ledger.entries:
            group = f"{run} {entry.group}" if entry.group else ""
            # a round of another run has a cohort of its own
            rounds = entry.rounds and tuple(before + number for number in entry.rounds)
            entries.append(replace(entry, name=f"{run} {entry.name}", group=group, rounds=rounds))
        before = max([before, *(number for one in entries for number in one.rounds or ())])
    return Ledger(tuple(entries))


@dataclass
class ReleaseLog:
    """The releases of one name in a batch of R runs over at most T rounds.

    Attributes:
      entry: the release with count 1, but for the numbers of single runs.
      parameters: [R, T] the noise multiplier or pure epsilon of every round.
      one_message: whether the releases of a round are sent as one message.
      form: of a contribution, as of an entry; None before the first.
      counts: [R, T] how many were made in every round.
      floats: [R] how many numbers each client sent.
      latest: [R] the last round with a release.
    """

    entry: LedgerEntry
    parameters: np.ndarray
    one_message: bool = False
    form: str | None = None

    def __post_init__(self) -> None:
        runs, rounds = self.parameters.shape
        self.counts = np.zeros((runs, rounds), np.int32)
        self._counted = self.counts.reshape(-1)  # the same memory
        self._before = np.arange(runs) * rounds - 1  # where a run's rounds begin in it, less one
        self.floats, self.latest = np.zeros((2, runs), np.int64)
        self._range: tuple[Tensor, Tensor] | None = None  # smallest and largest sensitivity [R]

    def known(self, rounds: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """[R] the parameters of these rounds, and how many releases were made in them."""
        at = self._before + rounds
        return self.parameters.take(at), self._counted.take(at)

    def check_form(self, dtype: torch.dtype, length: int, started: Iterable[Ledger]) -> None:
        """A PrivacyError where contributions had another form before: draws are told apart by their
        name and number alone, so that a shorter one would be a piece of a longer one's noise.

        Args:
          dtype, length: of a contribution.
          started: what the runs had released before they went on.
        """
        form = f"{str(dtype).removeprefix('torch.')}[{length}]"
        if self.form is None:
            before = {
                one.form for own in started for one in own.entries if one.name == self.entry.name
            }
            self.form = min(before - {""}, default=form)
        if self.form != form:
            raise PrivacyError(
                f"release '{self.entry.name}' is {form}, and was {self.form} before: noise would "
                "be used twice; declare a release of its own for each length, in one type of number"
            )

    def charge(self, rounds: np.ndarray, charged: np.ndarray, largest: Tensor, size: int) -> None:
        """One release, for the runs of the mask `charged` [R].

        Args:
          largest: [R] the largest sensitivity among the clients; not read before the end, so that
            nothing waits for a device.
          size: numbers that each client sends for it, unless it is part of a message sent before.
        """
        at = self._before + rounds
        before = self._counted.take(at)
        self.floats += size * (charged & (before == 0) if self.one_message else charged)
        self._counted[at] = before + charged
        np.copyto(self.latest, rounds, where=charged)
        low, high = self._range or (largest.clone(), largest)
        self._range = torch.minimum(low, largest), torch.maximum(high, largest)

    def of_run(self, run: int) -> LedgerEntry | None:
        """The entry of one run so far; None where nothing was released."""
        times = self.counts[run]
        if not times.any() or self._range is None:
            return None
        smallest, largest = (float(bound[run]) for bound in self._range)
        known = smallest == largest and np.isfinite(largest)
        return replace(
            self.entry.in_rounds(self.parameters[run], times),
            sensitivity=largest if known else None,
            floats=int(self.floats[run]),
            form=self.form or "",
        )


LastBatches = dict[str, tuple[int, int]]  # stream -> the address and part of a batch


class BatchLedger:
    """The ledgers of a batch of runs, written by mechanisms as they release: cheap in the loop,
    folded into `Ledger`s by `of_run`.

    Args:
      started: what each run had released before.
      batches: stream -> the last batch that a run had released before.
    """

    def __init__(self, started: Sequence[Ledger], batches: Sequence[LastBatches] = ()) -> None:
        self.started = started
        self.logs: dict[str, ReleaseLog] = {}
        self._batches: dict[str, np.ndarray] = {}
        for run, known in enumerate(batches):
            for stream, last in known.items():
                self.last_batch(stream)[run] = last

    def last_batch(self, stream: str) -> np.ndarray:
        """[R, 2] the address and the part of the last batch of every run that was released, to be
        written to; -1 before the first.
        """
        if stream not in self._batches:
            self._batches[stream] = np.full((len(self.started), 2), -1)
        return self._batches[stream]

    def batches_of(self, run: int) -> LastBatches:
        """Stream -> the last batch that one run released."""
        pairs = self._batches.items()
        return {name: (int(last[run, 0]), int(last[run, 1])) for name, last in pairs}

    def of_run(self, run: int) -> Ledger:
        """The ledger of one run so far."""
        entries = {entry.name: entry for entry in self.started[run].entries}
        for name, log in self.logs.items():
            if (made := log.of_run(run)) is not None:
                entries[name] = entries[name].joined(made) if name in entries else made
        return Ledger(tuple(entries.values()))
