"""What a page says of a staged search, from its search.csv."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from statistics import median

import pandas as pd

from dpfl_cli.reproduction.artifact import SEARCH_SEEDS, Artifact, Scale
from dpfl_cli.reproduction.choose import chosen_rows, edges_text
from dpfl_cli.reproduction.measure import Best
from dpfl_cli.reproduction.rows import matching
from dpfl_cli.reproduction.search import FULL, REDUCED, WHOLE
from dpfl_cli.reproduction.tables import label_of


def search_section(artifact: Artifact, scale: Scale, text: str, rows: pd.DataFrame) -> list[str]:
    """Paragraphs: sizes of the stages, how close they were, and what they could have missed.

    Args:
      text: search.csv.
      rows: the artifact's, which say where chosen cells lie on the edge of their grid.
    """
    search = artifact.searched(scale)
    if search is None:
        return []
    frame = pd.read_csv(io.StringIO(text), dtype=str, keep_default_na=False)
    labels = [str(name) for name in frame.columns[1:-2]]
    frame[labels] = frame[labels].map(label_of).astype(object)
    frame["value"] = pd.to_numeric(frame["value"])
    frame["kept"] = frame["kept"] == "True"
    sizes = frame["stage"].value_counts()
    low, high = SEARCH_SEEDS
    last, best = artifact.size(scale).seeds - 1, "the best of each grid"
    if search.keep > 1:
        best = (
            f"the best {search.keep} of each grid, {sizes.get(FULL, 0)} in all, at full size with "
            f"seed {high}; {'all' if search.finalists else 'the best'} of these"
        )
    parts = [
        f"The cells of grids were found in stages: {sizes[REDUCED]} at reduced size ({search.note})"
        f" with seed {low}; {best} with {'seeds 0 to' if last else 'seed'} {last}, which no choice "
        "has seen. What is in no grid, and what "
        "claims ask for, has all seeds. Every value is in search.csv; tables show what has all "
        "seeds."
    ]
    for rule in artifact.best:
        beside = [name for name in labels if name not in rule.over]
        mine = matching(frame, rule.where, labels)
        grids = mine.groupby(beside or (lambda row: 0), sort=False)
        found = [_Grid(artifact, rule, one) for _, one in grids]
        parts += _closeness(artifact, rule, found)
        lines = [one.remark(beside) for one in found if one.is_checked]
        parts += ["\n".join(f"- {line}" for line in lines)] if lines else []
    edges = edges_text(artifact, chosen_rows(rows), labels)
    parts += [f"Winners at the end of their grid: {edges}."] if edges else []
    return parts


def _closeness(artifact: Artifact, rule: Best, found: Sequence[_Grid]) -> list[str]:
    """How sure the first stage was, in numbers over all grids of a rule."""
    known = [one for one in found if len(one.full)]
    if not known:
        return []
    gaps = [one.gap for one in known if math.isfinite(one.gap)]
    places = [one.place for one in known]
    lasts = sum(place == len(one.full) for place, one in zip(places, known, strict=True))
    by = artifact.title_of(rule.by)
    text = f"By {by}, over {', '.join(artifact.title_of(name) for name in rule.over)}: "
    if gaps:
        text += (
            f"at reduced size the last that was kept is ahead of the first that was dropped by "
            f"{median(gaps):.3g} in the median of {len(gaps)} grids, {min(gaps):.3g} at least. "
        )
    text += (
        f"The best at full size was the best at reduced size in {places.count(1)} of "
        f"{len(known)} grids, the last of those kept in {lasts}. A cell that is the best at full "
        "size and was not kept would be missed"
    )
    checks = sum(one.is_checked for one in found)
    return [text + (f"; {checks} grids were run at full size as a whole:" if checks else ".")]


class _Grid:
    """One grid: its stages, the best first."""

    def __init__(self, artifact: Artifact, rule: Best, rows: pd.DataFrame) -> None:
        lower = artifact.measures[rule.by].better == "lower"
        rows = rows.sort_values("value", ascending=lower, kind="stable")
        self.artifact, self.over, self.sign = artifact, rule.over, -1.0 if lower else 1.0
        self.rough, self.full, self.whole = (
            rows[rows["stage"] == stage] for stage in (REDUCED, FULL, WHOLE)
        )

    @property
    def is_checked(self) -> bool:
        return len(self.whole) > 0

    @property
    def gap(self) -> float:
        """By how much the last that was kept is ahead of the first that was dropped."""
        kept, dropped = (self.rough[self.rough["kept"] == one]["value"] for one in (True, False))
        if kept.empty or dropped.empty:
            return math.nan
        return float(self.sign * (kept.iloc[-1] - dropped.iloc[0]))

    @property
    def place(self) -> int:
        """Of the winner, at reduced size."""
        keys = [tuple(row) for row in self.rough[list(self.over)].to_numpy()]
        return 1 + keys.index(tuple(self.full.iloc[0][list(self.over)]))

    def remark(self, beside: Sequence[str]) -> str:
        """What the whole grid at full size says of the winner."""
        first = self.full.iloc[0] if len(self.full) else self.whole.iloc[0]
        where = ", ".join(self.artifact.title_of(first[one]) for one in beside if first[one] != "")
        other = self.whole.iloc[0]
        lost = float(self.sign * (other["value"] - first["value"]))
        count = len(self.full) + len(self.whole)
        if not lost > 0:
            return f"{where}: the best of all {count} is the one that was found."
        better = ", ".join(
            f"{self.artifact.title_of(name)} {self.artifact.title_of(other[name])}"
            for name in self.over
            if other[name] != ""
        )
        return f"{where}: another of the {count} is better by {lost:.3g} ({better})."
