"""Verdicts: which of an artifact's claims hold in its rows, with the numbers that went in."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dpfl_cli.config.errors import ConfigError, StoreError
from dpfl_cli.reproduction.declaration import SCALES, Artifact, Claim, load_artifact
from dpfl_cli.reproduction.expression import Between, Untestable, evaluate
from dpfl_cli.reproduction.rows import Rows

HOLDS, FAILS, UNTESTABLE = "holds", "does not hold", "not testable at this scale"


@dataclass(frozen=True)
class ClaimVerdict:
    """What was found of a claim.

    Attributes:
      verdict: holds, does not hold, or not testable at this scale.
      reason: why it is not testable.
      as_expected: None where nothing was expected or nothing could be tested.
      numbers: every number that the predicate asked for, with its spread, its number of runs and the paper's number.
    """

    claim: Claim
    verdict: str
    expected: str
    reason: str = ""
    numbers: list[dict[str, Any]] = field(default_factory=list)

    @property
    def as_expected(self) -> bool | None:
        if self.expected == "either" or self.verdict == UNTESTABLE:
            return None
        return self.verdict == self.expected

    def to_json(self) -> dict[str, Any]:
        return {
            "id": self.claim.id,
            "text": self.claim.text,
            "source": self.claim.source,
            "predicate": self.claim.predicate,
            "verdict": self.verdict,
            "expected": self.expected,
            "as_expected": self.as_expected,
            "reason": self.reason,
            "note": self.claim.note,
            "numbers": self.numbers,
        }


class _Recorded:
    """Rows that remember which numbers were asked for."""

    def __init__(self, rows: Rows) -> None:
        self.rows = rows
        self.asked: dict[str, dict[str, Any]] = {}

    def _note(self, what: str, measure: str, labels: dict[str, Any], number: Any) -> None:
        words = [repr(measure), *(f"{name}={_plain(value)!r}" for name, value in labels.items())]
        entry: dict[str, Any] = {"asked": f"{what}({', '.join(words)})", "number": _number(number)}
        if what == "value":
            row = self.rows.one(measure, labels)
            entry |= {"std": row.std, "n": row.n}
            if row.paper is not None:
                entry |= {"paper": row.paper}
        self.asked[str(entry["asked"])] = entry

    def _asking(self, what: str, measure: str, labels: dict[str, Any]) -> Any:
        number = getattr(self.rows, what)(measure, **labels)
        self._note(what, measure, labels, number)
        return number

    def value(self, measure: str, **labels: Any) -> float:
        return float(self._asking("value", measure, labels))

    def std(self, measure: str, **labels: Any) -> float:
        return float(self._asking("std", measure, labels))

    def runs(self, measure: str, **labels: Any) -> float:
        return float(self._asking("runs", measure, labels))

    def diverged(self, measure: str, **labels: Any) -> float:
        return float(self._asking("diverged", measure, labels))

    def values(self, measure: str, **labels: Any) -> list[float]:
        return list(self._asking("values", measure, labels))

    def paper(self, measure: str, **labels: Any) -> float:
        return float(self._asking("paper", measure, labels))

    def choices(self, label: str) -> list[Any]:
        return self.rows.choices(label)


def _plain(value: Any) -> Any:
    return f"{value.low:g}..{value.high:g}" if isinstance(value, Between) else value


def _number(value: Any) -> Any:
    if isinstance(value, list):
        return [_number(one) for one in value]
    return value if math.isfinite(value) else str(value)


def judge(artifact: Artifact, scale: str, rows: Rows) -> list[ClaimVerdict]:
    """The verdict on every claim of an artifact."""
    return [_judged(artifact, claim, scale, rows) for claim in artifact.declaration.claims]


def _judged(artifact: Artifact, claim: Claim, scale: str, rows: Rows) -> ClaimVerdict:
    expected = claim.expected_at(scale)
    if SCALES.index(scale) < SCALES.index(claim.scale):
        return ClaimVerdict(claim, UNTESTABLE, expected, f"needs scale={claim.scale}")
    recorded = _Recorded(rows)
    try:
        verdict, reason = HOLDS if evaluate(claim.predicate, recorded) else FAILS, ""
    except Untestable as missing:
        verdict, reason = UNTESTABLE, str(missing)
    except ConfigError as error:
        raise ConfigError(f"artifact {artifact.name}: claim {claim.id}: {error}") from None
    return ClaimVerdict(claim, verdict, expected, reason, list(recorded.asked.values()))


# --- the check of published verdicts --------------------------------------------------------------------------------


def check_published(folder: Path) -> tuple[int, list[str]]:
    """Compares every claims.json under a folder with what is expected now, and with its own table.

    A published verdict has to be the one that its table gives under today's predicate, it has to be there, and it must not be
    against the claim's `expected`.

    Returns:
      The number of verdicts compared, and one line per disagreement.

    Raises:
      StoreError: nothing is published, or a file is damaged.
    """
    files = sorted(folder.rglob("claims.json"))
    if not files:
        raise StoreError(f"{folder}: no claims.json here, so there is nothing to check; publish with dpfl reproduce all")
    compared, lines = 0, []
    for path in files:
        published = _read(path)
        artifact = load_artifact(str(published["artifact"]))
        scale = str(published["scale"])
        rows = Rows.from_csv(_text(path.with_name("table.csv")), str(path.with_name("table.csv")))
        found = {str(claim["id"]): str(claim["verdict"]) for claim in published["claims"]}
        where = f"{artifact.name} ({scale})"
        for verdict in judge(artifact, scale, rows):
            compared += 1
            lines += _disagreements(verdict, found.pop(verdict.claim.id, None), scale, where)
        lines += [f"{where}: claim {name} is published but no longer declared" for name in found]
    return compared, lines


def _disagreements(now: ClaimVerdict, published: str | None, scale: str, where: str) -> list[str]:
    claim = f"{where}: claim {now.claim.id}"
    if published is None:
        return [f"{claim} is declared but not published; reproduce it again"]
    lines = []
    if published != now.verdict:
        lines.append(f"{claim}: published '{published}', but its table gives '{now.verdict}' {now.reason}".rstrip())
    if now.expected == "either":
        return lines
    testable = SCALES.index(scale) >= SCALES.index(now.claim.scale)
    if now.verdict == UNTESTABLE and testable:
        lines.append(f"{claim}: expected '{now.expected}', but it could not be tested: {now.reason}")
    elif now.as_expected is False:
        lines.append(f"{claim}: expected '{now.expected}', found '{now.verdict}'")
    return lines


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError as error:
        raise StoreError(f"{path}: cannot be read ({error.strerror}); reproduce it again") from error


def _read(path: Path) -> dict[str, Any]:
    try:
        values = json.loads(_text(path))
        assert isinstance(values["claims"], list)
        assert {"artifact", "scale"} <= set(values)
        return dict(values)
    except (ValueError, KeyError, TypeError, AssertionError) as error:
        raise StoreError(f"{path}: damaged ({type(error).__name__}); reproduce it again") from None


def count_verdicts(verdicts: Sequence[ClaimVerdict]) -> str:
    """The verdicts in one line."""
    counts = {kind: sum(one.verdict == kind for one in verdicts) for kind in (HOLDS, FAILS, UNTESTABLE)}
    against = [one.claim.id for one in verdicts if one.as_expected is False]
    plural = {HOLDS: "hold", FAILS: "do not hold"}
    words = ", ".join(f"{count} {kind if count == 1 else plural.get(kind, kind)}" for kind, count in counts.items() if count)
    return words + (f"; against expectation: {', '.join(against)}" if against else "")
