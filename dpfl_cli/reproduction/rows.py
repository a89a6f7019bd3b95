"""The tidy table of an artifact: one row per measure and labels, averaged over seeds, to CSV and back."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dpfl_cli.config.errors import ConfigError, StoreError
from dpfl_cli.reproduction.declaration import BEST, MEASURE, ROUND, Where
from dpfl_cli.reproduction.expression import Between, Untestable
from dpfl_cli.reproduction.grid import same

# Everything that a row with an epsilon says about it.
PRIVACY = (
    "epsilon",
    "epsilon_reason",
    "epsilon_target",
    "calibration",
    "delta",
    "accountant",
    "unit",
    "relation",
    "trust",
    "releases",
    "guarantee",
    "vacuous",
    "epsilon_paper",
    "epsilon_paper_convention",
    "not_covered",
)
_NUMBERS = ("value", "text", "std", "n", "seeds", "diverged", "paper", "paper_std", "paper_note", "best", "edge", "note")
COLUMNS = ("artifact", "scale", MEASURE, *_NUMBERS, *PRIVACY)  # of table.csv, beside the labels


@dataclass(frozen=True)
class Row:
    """One number.

    Attributes:
      labels: the choices it belongs to, with `round` for a point of a series.
      measure: what it is.
      value: the mean over seeds; infinite where a run diverged, nan where nothing is known.
      std: sample standard deviation over seeds (ddof 1); None for one seed.
      n: number of runs; seeds: how many were declared; diverged: how many of the runs diverged.
      text: a fact that is no number.
      paper, paper_std, paper_note: the paper's number, where there is one.
      best: whether a `best` rule chose this cell.
      edge: where a chosen cell lies on the edge of its grid, such as "local_lr=0.01 (largest of 3)".
      note: such as "edge of the grid".
      extras: config values shown beside.
      privacy: the keys of PRIVACY.
    """

    labels: Mapping[str, Any]
    measure: str
    value: float
    std: float | None = None
    n: int = 1
    seeds: int = 1
    diverged: int = 0
    paper: float | None = None
    paper_std: float | None = None
    paper_note: str = ""
    best: bool = False
    edge: str = ""
    note: str = ""
    text: str = ""
    extras: Mapping[str, Any] = field(default_factory=dict)
    privacy: Mapping[str, Any] = field(default_factory=dict)

    def get(self, name: str) -> Any:
        """A label's value, or that of a pseudo-label; "" where the row has no such label."""
        if name == MEASURE:
            return self.measure
        if name == BEST:
            return self.best
        return self.labels.get(name, "")

    def matches(self, where: Where | Mapping[str, Any]) -> bool:
        return all(_fits(self.get(name), wanted) for name, wanted in where.items())


def _fits(value: Any, wanted: Any) -> bool:
    if isinstance(wanted, Between):
        return isinstance(value, int | float) and not isinstance(value, bool) and wanted.low <= value <= wanted.high
    return same(value, wanted)


@dataclass(frozen=True)
class Rows:
    """All rows of an artifact; the numbers that predicates ask for."""

    rows: Sequence[Row]
    labels: Sequence[str]  # the order of columns

    def where(self, where: Where | Mapping[str, Any], measures: Iterable[str] | None = None) -> list[Row]:
        """Rows with these labels, of these measures."""
        wanted = None if measures is None else set(measures)
        return [row for row in self.rows if (wanted is None or row.measure in wanted) and row.matches(where)]

    def choices(self, label: str) -> list[Any]:
        """The values of a label, in order of appearance; numbers in order of size."""
        return in_order(row.get(label) for row in self.rows if row.get(label) != "")

    def one(self, measure: str, labels: Mapping[str, Any]) -> Row:
        """The only row with these labels.

        Raises:
          Untestable: there is none.
          ConfigError: there are several.
        """
        found = self.where(labels, [measure])
        words = ", ".join([measure, *(f"{name}={value}" for name, value in labels.items())])
        if not found:
            raise Untestable(f"no number for {words}")
        if len(found) > 1:
            others = sorted({name for name in self.labels if len({row.get(name) for row in found}) > 1})
            raise ConfigError(f"{len(found)} rows for {words}: say which {' and '.join(others)}")
        return found[0]

    def value(self, measure: str, **labels: Any) -> float | str:
        row = self.one(measure, labels)
        return row.text or self._number(row)

    def std(self, measure: str, **labels: Any) -> float:
        row = self.one(measure, labels)
        if row.std is None:
            raise Untestable(f"{measure}: no spread with {row.n} run")
        return row.std

    def runs(self, measure: str, **labels: Any) -> float:
        return float(self.one(measure, labels).n)

    def diverged(self, measure: str, **labels: Any) -> float:
        return float(self.one(measure, labels).diverged)

    def paper(self, measure: str, **labels: Any) -> float:
        row = self.one(measure, labels)
        if row.paper is None:
            raise Untestable(f"{measure}: the paper gives no number here")
        return row.paper

    def values(self, measure: str, **labels: Any) -> list[float]:
        return [self._number(row) for row in self._ordered(measure, labels)]

    def rounds(self, measure: str, **labels: Any) -> list[float]:
        found = [row.get(ROUND) for row in self._ordered(measure, labels)]
        if not all(isinstance(number, int) for number in found):
            raise ConfigError(f"rounds of {measure}: not a series; write at: series")
        return found

    def _ordered(self, measure: str, labels: Mapping[str, Any]) -> list[Row]:
        """The rows that differ in one label, in its order."""
        found = self.where(labels, [measure])
        if not found:
            words = ", ".join([measure, *(f"{name}={value}" for name, value in labels.items())])
            raise Untestable(f"no numbers for {words}")
        varying = [name for name in self.labels if len({row.get(name) for row in found}) > 1]
        if len(varying) > 1:
            raise ConfigError(f"values of {measure} differ in {' and '.join(varying)}: give all labels but one")
        if varying and all(isinstance(row.get(varying[0]), int | float) for row in found):
            found = sorted(found, key=lambda row: row.get(varying[0]))
        return found

    def _number(self, row: Row) -> float:
        if math.isnan(row.value):
            why = f"{row.diverged} of {row.n} runs diverged" if row.diverged else row.note or "not a number"
            raise Untestable(f"{row.measure}: {why}")
        return row.value

    def to_csv(self, artifact: str, scale: str) -> str:
        """The table as CSV; floats with their shortest exact digits."""
        extras = list(dict.fromkeys(name for row in self.rows for name in row.extras))
        calibrated = any(row.privacy.get("calibration") is not None for row in self.rows)
        privacy = [name for name in PRIVACY if name != "calibration" or calibrated]
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(["artifact", "scale", *self.labels, MEASURE, *_NUMBERS, *extras, *privacy])
        for row in self.rows:
            numbers = [getattr(row, name) for name in _NUMBERS]
            cells = [*(row.labels.get(name) for name in self.labels), row.measure, *numbers]
            cells += [*(row.extras.get(name) for name in extras), *(row.privacy.get(name) for name in privacy)]
            writer.writerow([artifact, scale, *(_cell(value) for value in cells)])
        return out.getvalue()

    @classmethod
    def from_csv(cls, text: str, where: str) -> Rows:
        """The table that `to_csv` wrote (without extras); a StoreError names what is damaged."""
        reader = csv.DictReader(io.StringIO(text))
        columns = list(reader.fieldnames or [])
        if columns[:2] != ["artifact", "scale"] or MEASURE not in columns:
            raise StoreError(f"{where}: not a table of an artifact; make it again with dpfl reproduce")
        labels = columns[2 : columns.index(MEASURE)]
        rows = []
        for line, cells in enumerate(reader, start=2):
            try:
                rows.append(
                    Row(
                        labels={name: _label(cells[name]) for name in labels if cells[name] != ""},
                        measure=cells[MEASURE],
                        value=float(cells["value"] or "nan"),
                        std=float(cells["std"]) if cells["std"] else None,
                        n=int(cells["n"]),
                        seeds=int(cells["seeds"]),
                        diverged=int(cells["diverged"]),
                        paper=float(cells["paper"]) if cells["paper"] else None,
                        paper_std=float(cells["paper_std"]) if cells["paper_std"] else None,
                        paper_note=cells["paper_note"],
                        best=cells["best"] == "true",
                        edge=cells.get("edge") or "",
                        note=cells["note"],
                        text=cells["text"],
                        privacy=_privacy(cells),
                    )
                )
            except (KeyError, TypeError, ValueError) as error:
                raise StoreError(f"{where}: line {line} is damaged ({error}); make it again with dpfl reproduce") from None
        return cls(rows, labels)


def _privacy(cells: Mapping[str, str]) -> dict[str, Any]:
    """The columns PRIVACY as they were before they became text; {} where all are empty."""
    if not any(cells.get(name) for name in PRIVACY):
        return {}
    found: dict[str, Any] = {name: cells.get(name) or None for name in PRIVACY}
    for name in ("epsilon", "epsilon_target", "delta", "epsilon_paper"):
        found[name] = None if found[name] is None else float(found[name])
    found["releases"] = None if found["releases"] is None else int(found["releases"])
    found["vacuous"] = None if found["vacuous"] is None else found["vacuous"] == "true"
    found["not_covered"] = (found["not_covered"] or "").split("; ") if found["not_covered"] else []
    return found


def in_order(values: Iterable[Any]) -> list[Any]:
    """Every different value once: texts that come before the first number, the numbers in order of size, the other texts."""
    found = list(dict.fromkeys(values))
    numbers = sorted(value for value in found if isinstance(value, int | float))
    if not numbers:
        return found
    first = next(place for place, value in enumerate(found) if isinstance(value, int | float))
    return found[:first] + numbers + [value for value in found[first:] if not isinstance(value, int | float)]


def rounded_up(value: float, decimals: int) -> float:
    """The value rounded up, as an epsilon has to be."""
    return math.ceil(value * 10**decimals) / 10**decimals


def _cell(value: Any) -> str:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return repr(float(value))
    if isinstance(value, list | tuple):
        return "; ".join(str(one) for one in value)
    return str(value)


def _label(text: str) -> Any:
    if text in ("true", "false"):
        return text == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
