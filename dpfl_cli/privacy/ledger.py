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

if TYPE_CHECKING:
    import dp_accounting

Kind = Literal["gaussian", "pure", "nonprivate"]
Scope = Literal["client", "federation"]
Quantity = Literal["", "squared_norms"]


@dataclass(frozen=True)
class LedgerEntry:
    """One named release of one run.

    Attributes:
      name: the release, such as "update".
      group: entries with the same non-empty group are functions of the same contributions in the same round.
      kind: "gaussian" (noise_multiplier), "pure" (epsilon) or "nonprivate".
      shape: "vector" or "scalar", what a contribution is.
      quantity: what was released of the group's contributions: "" themselves, "squared_norms" theirs.
      count: number of releases composed.
      parameter: noise multiplier = std / sensitivity, or pure epsilon; a list of `count` of them where it changes over
        time; None for nonprivate.
      sensitivity: L2 sensitivity under `relation`, of one contribution to the released quantity before averaging; None where it
        changes over time, or is not bounded (nonprivate). Epsilon does not depend on it: `parameter` is relative to it.
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
    shape: Literal["vector", "scalar"] = "vector"
    quantity: Quantity = ""

    def __post_init__(self) -> None:
        if isinstance(self.parameter, tuple) and len(self.parameter) != self.count:
            raise PrivacyError(f"release {self.name}: {len(self.parameter)} parameters for {self.count} releases")

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

        return composed(self.kind, self.parameter, self.count)

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
            if before != now:
                raise PrivacyError(f"release {entry.name} changed its kind, shape, relation, unit or scope during a run")
            sensitivity = known.sensitivity if known.sensitivity == entry.sensitivity else None
            if known.parameter == entry.parameter and not isinstance(known.parameter, tuple):
                merged = replace(known, count=known.count + entry.count, sensitivity=sensitivity)
            else:
                both = tuple(float(value) for value in (*known.parameters(), *entry.parameters()))
                merged = replace(known, count=len(both), parameter=both, sensitivity=sensitivity)
            return Ledger((*self.entries[:position], merged, *self.entries[position + 1 :]))
        return Ledger((*self.entries, entry))

    @property
    def releases(self) -> int:
        """Number of releases composed, over all names."""
        return sum(entry.count for entry in self.entries)

    def to_json(self) -> list[dict[str, Any]]:
        return [entry.to_json() for entry in self.entries]

    @classmethod
    def from_json(cls, values: Sequence[dict[str, Any]]) -> Ledger:
        return cls(tuple(LedgerEntry.from_json(value) for value in values))


@dataclass
class _Log:
    """The releases of one name in a batch: runs of equal [R] parameters, and the range of the [R] sensitivity."""

    entry: LedgerEntry
    smallest: Tensor | None
    largest: Tensor | None
    parts: list[tuple[np.ndarray, np.ndarray]] = field(default_factory=list)  # parameters, counts


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
        self, entry: LedgerEntry, sensitivity: Tensor | None, parameters: np.ndarray, charged: np.ndarray | None = None
    ) -> None:
        """Writes one release for every run (or those of the mask `charged` [R]).

        Args:
          entry: the release with count 1; its parameter and sensitivity are replaced run by run.
          sensitivity: [R] tensor, or [R, M] where clients differ (the largest is written), not read before the end, so that
            nothing waits for a device; or None.
          parameters: [R] noise multiplier or pure epsilon of this release.
          charged: [R] booleans, None for all.
        """
        mask = np.ones(self.runs, bool) if charged is None else charged
        if sensitivity is not None and sensitivity.dim() > 1:
            sensitivity = sensitivity.amax(dim=1)
        log = self._log.get(entry.name)
        if log is None:
            log = self._log[entry.name] = _Log(entry, sensitivity, sensitivity)
        elif sensitivity is None or log.smallest is None or log.largest is None:
            log.smallest = log.largest = None
        else:
            log.smallest = torch.minimum(log.smallest, sensitivity)
            log.largest = torch.maximum(log.largest, sensitivity)
        if log.parts and np.array_equal(log.parts[-1][0], parameters, equal_nan=True):
            log.parts[-1][1][:] += mask
        else:
            log.parts.append((parameters.copy(), mask.astype(np.int64)))

    def of_run(self, run: int) -> Ledger:
        """The ledger of one run so far."""
        ledger = self.started[run]
        for log in self._log.values():
            counts = [int(counts[run]) for _, counts in log.parts]
            if not sum(counts):
                continue
            values: list[float] = []
            for (parameters, _), count in zip(log.parts, counts, strict=True):
                values += [float(parameters[run])] * count
            parameter: float | tuple[float, ...] | None = values[0] if len(set(values)) == 1 else tuple(values)
            if log.entry.kind == "nonprivate":
                parameter = None
            sensitivity = None
            if log.smallest is not None and log.largest is not None and log.smallest[run] == log.largest[run]:
                sensitivity = float(log.largest[run])
            if sensitivity is not None and not np.isfinite(sensitivity):
                sensitivity = None
            ledger = ledger.charged(replace(log.entry, count=len(values), parameter=parameter, sensitivity=sensitivity))
        return ledger
