"""The ledger: every release of a run, as it happened. Epsilon is computed from it and from nothing else.

An entry is one named release: what was added (an event), how often, with what sensitivity, under which relation, for
which unit, and who sees what (`scope`). Entries of one `group` are computed from the same bounded values in the same
round and may be priced jointly. Noise that changes over time is one entry with an array of noise multipliers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor

from dpfl_cli.config.errors import PrivacyError
from dpfl_cli.privacy.client_values import versions

if TYPE_CHECKING:
    import dp_accounting

Kind = Literal["gaussian", "pure", "nonprivate"]
Scope = Literal["client", "federation"]
Quantity = Literal["", "squared_norms"]
Shape = Literal["vector", "scalar", "matrix"]


@dataclass(frozen=True)
class LedgerEntry:
    """One named release of one run.

    Attributes:
      name: the release, such as "update".
      group: entries with the same non-empty group are functions of the same contributions in the same round.
      kind: "gaussian" (noise_multiplier), "pure" (epsilon) or "nonprivate".
      shape: what a contribution is: a "vector" as long as the model, a "scalar" or a packed "matrix".
      quantity: what was released of the group's contributions: "" themselves, "squared_norms" theirs.
      count: number of releases composed.
      parameter: noise multiplier = std / sensitivity, or pure epsilon; a list of `count` of them where it changes over
        time; None for nonprivate.
      sensitivity: L2 sensitivity under `relation`, of one contribution to the released quantity before averaging; None where it
        changes over time, or is not bounded (nonprivate). Epsilon does not depend on it: `parameter` is relative to it.
      rate: the share of a client's records that a fresh uniform batch without replacement holds, of the client with the fewest;
        None where the release is of all of them. Accountants that know no amplification price it as if it were not there.
      disjoint: so many consecutive releases are of disjoint parts of a client's records, which cost together what one does.
      floats: how many numbers one client sent with these releases: counted as they were made, no part of their price.
      scope: "client": each client's own sequence of messages is seen, and clients hold disjoint data (parallel composition,
        the worst client counts); "federation": one quantity computed from all clients.
    """

    name: str
    kind: Kind
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
    floats: int = field(default=0, compare=False)

    def __post_init__(self) -> None:
        if isinstance(self.parameter, tuple) and len(self.parameter) != self.count:
            raise PrivacyError(f"release {self.name}: {len(self.parameter)} parameters for {self.count} releases")
        if self.disjoint > 1 and isinstance(self.parameter, tuple):
            raise PrivacyError(f"release {self.name}: noise that changes over releases of disjoint parts cannot be priced")

    @property
    def charges(self) -> int:
        """How many releases it costs as much as: their count, or fewer where parts are disjoint."""
        return -(-self.count // self.disjoint)

    def parameters(self) -> np.ndarray:
        """[count] the noise multiplier (or pure epsilon) of every release."""
        if self.parameter is None:
            raise PrivacyError(f"release {self.name} is not private: it has no noise")
        if isinstance(self.parameter, tuple):
            return np.asarray(self.parameter, float)
        return np.full(self.count, float(self.parameter))

    def event(self) -> dp_accounting.DpEvent:
        """The entry as a dp-accounting event (composition of its releases)."""
        from dpfl_cli.privacy.events import composed

        return composed(self.kind, self.parameter, self.charges)

    def to_json(self) -> dict[str, Any]:
        """Plain values; noise that changes over time becomes a list."""
        values = asdict(self)
        if isinstance(self.parameter, tuple):
            values["parameter"] = list(self.parameter)
        values["event"] = {"gaussian": "GaussianDpEvent", "pure": "PureDpEvent", "nonprivate": "NonPrivateDpEvent"}[self.kind]
        return values

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> LedgerEntry:
        values = {key: value for key, value in values.items() if key != "event"}
        if isinstance(values["parameter"], list):
            values["parameter"] = tuple(values["parameter"])
        return cls(**values)


@dataclass(frozen=True)
class Ledger:
    """The releases of one run, in the order in which their names first appeared."""

    entries: tuple[LedgerEntry, ...] = ()

    def charged(self, entry: LedgerEntry) -> Ledger:
        """The ledger after one more release (`entry.count` of them) is written to it."""
        for position, known in enumerate(self.entries):
            if known.name != entry.name:
                continue
            before, now = (replace(one, count=0, parameter=None, sensitivity=None) for one in (known, entry))
            floats = known.floats + entry.floats
            if before != now:
                raise PrivacyError(f"release {entry.name} changed its kind, shape, relation, unit or scope during a run")
            sensitivity = known.sensitivity if known.sensitivity == entry.sensitivity else None
            if known.parameter == entry.parameter and not isinstance(known.parameter, tuple):
                merged = replace(known, count=known.count + entry.count, sensitivity=sensitivity, floats=floats)
            else:
                both = tuple(np.concatenate((known.parameters(), entry.parameters())).tolist())
                merged = replace(known, count=len(both), parameter=both, sensitivity=sensitivity, floats=floats)
            return Ledger((*self.entries[:position], merged, *self.entries[position + 1 :]))
        return Ledger((*self.entries, entry))

    @property
    def releases(self) -> int:
        """Number of releases composed, over all names."""
        return sum(entry.count for entry in self.entries)

    @property
    def floats(self) -> int:
        """How many numbers one client sent, over all names."""
        return sum(entry.floats for entry in self.entries)

    def to_json(self) -> list[dict[str, Any]]:
        return [entry.to_json() for entry in self.entries]

    @classmethod
    def from_json(cls, values: Sequence[dict[str, Any]]) -> Ledger:
        return cls(tuple(LedgerEntry.from_json(value) for value in values))


class _Log:
    """The releases of one name in a batch, as stretches of equal [R] parameters; and the range of the [R] sensitivity."""

    def __init__(self, entry: LedgerEntry, runs: int) -> None:
        self.entry = entry
        self.stretches = 0
        self._parameters = np.empty((8, runs))
        self._counts = np.zeros((8, runs), np.int64)
        self._last = b""  # the parameters of the last stretch
        self._floats = np.zeros(runs, np.int64)
        self._sensitivity: tuple[Tensor | None, Tensor | None] | None = None  # smallest and largest; None before the first
        self._seen: tuple[Tensor | None, tuple[int, ...]] = (None, ())  # the sensitivity of the last release, and its version

    @property
    def parameters(self) -> np.ndarray:
        """[stretches, R]."""
        return self._parameters[: self.stretches]

    @property
    def counts(self) -> np.ndarray:
        """[stretches, R] number of releases in each."""
        return self._counts[: self.stretches]

    def add(self, parameters: np.ndarray, charged: np.ndarray | None, floats: np.ndarray | int) -> None:
        """One release, for which each client sent `floats` numbers."""
        self._floats += floats if charged is None else floats * charged
        now = parameters.tobytes()
        if now != self._last:
            if self.stretches == len(self._counts):
                self._grow()
            self._parameters[self.stretches] = parameters
            self.stretches += 1
            self._last = now
        self._counts[self.stretches - 1] += 1 if charged is None else charged

    def add_rounds(self, parameters: np.ndarray, times: int, floats: np.ndarray) -> None:
        """`times` releases in each of k rounds with parameters [k, R]; with all of them each client sent `floats` [R] numbers."""
        self._floats += floats
        bits = np.ascontiguousarray(parameters).view(np.int64)  # nonprivate parameters are NaN, which is like itself here
        starts = np.flatnonzero(np.concatenate(([bits[0].tobytes() != self._last], (bits[1:] != bits[:-1]).any(axis=1))))
        lengths = np.diff(np.concatenate((starts, [len(bits)])))
        if not len(starts) or starts[0] > 0:
            self._counts[self.stretches - 1] += times * (starts[0] if len(starts) else len(bits))
        while self.stretches + len(starts) > len(self._counts):
            self._grow()
        new = slice(self.stretches, self.stretches + len(starts))
        self._parameters[new] = parameters[starts]
        self._counts[new] = times * lengths.reshape(-1, 1)
        self.stretches += len(starts)
        self._last = bits[-1].tobytes()

    def _grow(self) -> None:
        """Makes room for as many stretches again."""
        self._parameters = np.concatenate((self._parameters, np.empty_like(self._parameters)))
        self._counts = np.concatenate((self._counts, np.zeros_like(self._counts)))

    def floats(self, run: int) -> int:
        """How many numbers a client of this run sent."""
        return int(self._floats[run])

    def widen(self, sensitivity: Tensor | None) -> None:
        """Notes the sensitivity [R] or [R, M] of a release."""
        version = () if sensitivity is None else versions((sensitivity,))
        if self._sensitivity is not None and sensitivity is self._seen[0] and version == self._seen[1]:
            return
        self._seen = sensitivity, version
        largest = sensitivity.amax(dim=1) if sensitivity is not None and sensitivity.dim() > 1 else sensitivity
        if self._sensitivity is None:
            # a copy: a tensor that is written anew in every round must not change what was noted
            self._sensitivity = (None, None) if largest is None else (largest.clone(), largest.clone())
        elif largest is None or self._sensitivity[0] is None or self._sensitivity[1] is None:
            self._sensitivity = None, None
        else:
            self._sensitivity = torch.minimum(self._sensitivity[0], largest), torch.maximum(self._sensitivity[1], largest)

    def sensitivity(self, run: int) -> float | None:
        """The sensitivity of a run's releases; None where it changed, or is not bounded."""
        smallest, largest = self._sensitivity or (None, None)
        if smallest is None or largest is None or smallest[run] != largest[run] or not torch.isfinite(largest[run]):
            return None
        return float(largest[run])


@dataclass
class BatchLedger:
    """The ledgers of a batch of runs, written by mechanisms as they release; cheap in the loop, exact at the end.

    Releases are logged per name as arrays over runs and folded into `Ledger`s by `of_run`.
    """

    runs: int
    started: list[Ledger] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.started = self.started or [Ledger() for _ in range(self.runs)]
        self._log: dict[str, _Log] = {}

    def charge(
        self,
        entry: LedgerEntry,
        sensitivity: Tensor | None,
        parameters: np.ndarray,
        charged: np.ndarray | None = None,
        floats: np.ndarray | int = 0,
    ) -> None:
        """Writes one release for every run (or those of the mask `charged` [R]).

        Args:
          entry: the release with count 1; its parameter and sensitivity are replaced run by run.
          sensitivity: [R] tensor, or [R, M] where clients differ (the largest is written), not read before the end, so that
            nothing waits for a device; or None.
          parameters: [R] noise multiplier or pure epsilon of this release.
          charged: [R] booleans, None for all.
          floats: numbers that each client sends for it, [R] where runs differ.
        """
        log = self._log.get(entry.name)
        if log is None:
            log = self._log[entry.name] = _Log(entry, self.runs)
        log.widen(sensitivity)
        log.add(parameters, charged, floats)

    def charge_rounds(
        self, entry: LedgerEntry, sensitivities: Sequence[Tensor | None], parameters: np.ndarray, floats: np.ndarray
    ) -> None:
        """Writes the releases of one name of several rounds in a row, for every run: as `charge` does one by one.

        Args:
          entry: as in `charge`.
          sensitivities: those of the releases of a round, the same in every round.
          parameters: [k, R] those of every round.
          floats: [R] numbers that each client sends for all of them.
        """
        log = self._log.get(entry.name)
        if log is None:
            log = self._log[entry.name] = _Log(entry, self.runs)
        for sensitivity in sensitivities:
            log.widen(sensitivity)
        log.add_rounds(parameters, len(sensitivities), floats)

    def of_run(self, run: int) -> Ledger:
        """The ledger of one run so far."""
        ledger = self.started[run]
        for log in self._log.values():
            values = np.repeat(log.parameters[:, run], log.counts[:, run])
            if not len(values):
                continue
            parameter: float | tuple[float, ...] | None = None
            if log.entry.kind != "nonprivate":
                parameter = float(values[0]) if (values == values[0]).all() else tuple(values.tolist())
            sensitivity = log.sensitivity(run)
            told = {"count": len(values), "parameter": parameter, "sensitivity": sensitivity, "floats": log.floats(run)}
            ledger = ledger.charged(replace(log.entry, **told))  # type: ignore[arg-type]
        return ledger
