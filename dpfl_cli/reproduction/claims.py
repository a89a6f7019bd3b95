"""Verdicts: which of an artifact's claims hold in its rows, with the numbers that went in."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from dpfl_cli.config.errors import ConfigError
from dpfl_cli.reproduction.declaration import SCALES, Artifact, Claim
from dpfl_cli.reproduction.expression import Between, Untestable, evaluate
from dpfl_cli.reproduction.rows import Rows
from dpfl_cli.simulation.store import json_text

HOLDS, FAILS, UNTESTABLE = "holds", "does not hold", "not testable at this scale"


@dataclass(frozen=True)
class ClaimVerdict:
    """What was found of a claim.

    Attributes:
      verdict: holds, does not hold, or not testable at this scale.
      reason: why it is not testable.
      as_expected: None where nothing was expected or nothing could be tested.
      numbers: every number that the predicate asked for, with its spread, its number of runs and the paper's number.
      comparisons: every two cells that the predicate compared, with their standard deviations over seeds.
    """

    claim: Claim
    verdict: str
    expected: str
    reason: str = ""
    numbers: list[dict[str, Any]] = field(default_factory=list)
    comparisons: list[dict[str, Any]] = field(default_factory=list)

    @property
    def spread(self) -> str:
        """How many of the compared cells are within one standard deviation of one another; "" for none."""
        close = sum(bool(one["within_one_std"]) for one in self.comparisons)
        if not close:
            return ""
        which = "" if len(self.comparisons) == 1 else f"{close} of {len(self.comparisons)} comparisons "
        return f"{which}within one standard deviation"

    @property
    def as_expected(self) -> bool | None:
        if self.expected == "either" or self.verdict == UNTESTABLE:
            return None
        return self.verdict == self.expected

    def to_json(self) -> dict[str, Any]:
        return {
            "id": self.claim.id,
            "kind": self.claim.kind,
            "text": self.claim.text,
            "source": self.claim.source,
            "predicate": self.claim.predicate,
            "verdict": self.verdict,
            "expected": self.expected,
            "as_expected": self.as_expected,
            "reason": self.reason,
            "spread": self.spread,
            "note": self.claim.note,
            "numbers": self.numbers,
            "comparisons": self.comparisons,
        }


class _CellMean(float):
    """The mean of one cell, which remembers its spread until it is calculated with."""

    asked: str
    std: float | None

    def __new__(cls, value: float, asked: str, std: float | None) -> _CellMean:
        made = super().__new__(cls, value)
        made.asked, made.std = asked, std
        return made


class _Recorded:
    """Rows that remember which numbers were asked for and compared; cells that miss seeds are not given out."""

    def __init__(self, rows: Rows) -> None:
        self.rows = rows
        self.asked: dict[str, dict[str, Any]] = {}
        self.comparisons: list[dict[str, Any]] = []

    def compared(self, left: Any, right: Any) -> None:
        """Notes a comparison of two cells with a spread; within means: by at most the larger of the two deviations."""
        if not (isinstance(left, _CellMean) and isinstance(right, _CellMean)) or left.std is None or right.std is None:
            return
        gap = float(left) - float(right)
        self.comparisons.append(
            {
                "left": left.asked,
                "right": right.asked,
                "difference": gap,
                "std": [left.std, right.std],
                "within_one_std": abs(gap) <= max(left.std, right.std),
            }
        )

    def _note(self, what: str, measure: str, labels: dict[str, Any], number: Any) -> str:
        words = [repr(measure), *(f"{name}={_plain(value)!r}" for name, value in labels.items())]
        entry: dict[str, Any] = {"asked": f"{what}({', '.join(words)})", "measure": measure, "number": _number(number)}
        if what == "value":
            row = self.rows.one(measure, labels)
            entry |= {"std": row.std, "n": row.n}
            if row.paper is not None:
                entry |= {"paper": row.paper}
        asked = str(entry["asked"])
        self.asked[asked] = entry
        return asked

    def _asking(self, what: str, measure: str, labels: dict[str, Any]) -> Any:
        for row in self.rows.where(labels, [measure]):
            if row.n < row.seeds:
                which = ", ".join([measure, *(f"{name}={_plain(value)}" for name, value in labels.items())])
                raise Untestable(f"{row.n} of {row.seeds} seeds for {which}")
        number = getattr(self.rows, what)(measure, **labels)
        self._note(what, measure, labels, number)
        return number

    def value(self, measure: str, **labels: Any) -> float | str:
        number = self._asking("value", measure, labels)
        if isinstance(number, str):
            return number
        return _CellMean(number, self._note("value", measure, labels, number), self.rows.one(measure, labels).std)

    def std(self, measure: str, **labels: Any) -> float:
        return float(self._asking("std", measure, labels))

    def runs(self, measure: str, **labels: Any) -> float:
        return float(self._asking("runs", measure, labels))

    def diverged(self, measure: str, **labels: Any) -> float:
        return float(self._asking("diverged", measure, labels))

    def values(self, measure: str, **labels: Any) -> list[float]:
        return list(self._asking("values", measure, labels))

    def rounds(self, measure: str, **labels: Any) -> list[float]:
        return self.rows.rounds(measure, **labels)

    def paper(self, measure: str, **labels: Any) -> float:
        return float(self._asking("paper", measure, labels))

    def choices(self, label: str) -> list[Any]:
        return self.rows.choices(label)


def _plain(value: Any) -> Any:
    return f"{value.low:g}..{value.high:g}" if isinstance(value, Between) else value


def _number(value: Any) -> Any:
    if isinstance(value, list):
        return [_number(one) for one in value]
    return value if isinstance(value, str) or math.isfinite(value) else str(value)


def judge(artifact: Artifact, scale: str, rows: Rows) -> list[ClaimVerdict]:
    """The verdict on every claim of an artifact."""
    return [_judged(artifact, claim, scale, rows) for claim in artifact.declaration.claims]


def _judged(artifact: Artifact, claim: Claim, scale: str, rows: Rows) -> ClaimVerdict:
    expected = claim.expected_at(scale)
    if SCALES.index(scale) < SCALES.index(claim.scale):
        return ClaimVerdict(claim, UNTESTABLE, expected, f"needs scale={claim.scale}")
    recorded = _Recorded(rows)
    try:
        verdict, reason = HOLDS if evaluate(claim.predicate, recorded, recorded.compared) else FAILS, ""
    except Untestable as missing:
        verdict, reason = UNTESTABLE, str(missing)
    except ConfigError as error:
        raise ConfigError(f"artifact {artifact.name}: claim {claim.id}: {error}") from None
    return ClaimVerdict(claim, verdict, expected, reason, list(recorded.asked.values()), recorded.comparisons)


def claims_json(artifact: Artifact, scale: str, verdicts: Sequence[ClaimVerdict]) -> str:
    """claims.json."""
    return json_text({"artifact": artifact.name, "scale": scale, "claims": [verdict.to_json() for verdict in verdicts]})


def count_verdicts(verdicts: Sequence[ClaimVerdict]) -> str:
    """The verdicts in one line, invariants apart."""
    parts = []
    for kind in ("claim", "invariant"):
        mine = [one for one in verdicts if one.claim.kind == kind]
        if mine:
            parts.append(f"{kind}s: {_counted(mine)}")
    against = [one.claim.id for one in verdicts if one.as_expected is False]
    return "; ".join([*parts, *([f"against expectation: {', '.join(against)}"] if against else [])])


def _counted(verdicts: Sequence[ClaimVerdict]) -> str:
    counts = {kind: sum(one.verdict == kind for one in verdicts) for kind in (HOLDS, FAILS, UNTESTABLE)}
    plural = {HOLDS: "hold", FAILS: "do not hold"}
    return ", ".join(f"{count} {kind if count == 1 else plural.get(kind, kind)}" for kind, count in counts.items() if count)
