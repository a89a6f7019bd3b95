"""What a page says of a staged search, from its search.csv."""

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
from dpfl_cli.reproduction.templating import template


def search_section(artifact: Artifact, scale: Scale, text: str, rows: pd.DataFrame) -> str:
    """Sizes of the stages, how close they were, and what they could have missed.

    Args:
      text: search.csv.
      rows: the artifact's, which say where chosen cells lie on the edge of their grid.
    """
    frame = pd.read_csv(io.StringIO(text), dtype=str, keep_default_na=False)
    labels = [str(name) for name in frame.columns[1:-2]]
    frame[labels] = frame[labels].map(label_of).astype(object)
    frame["value"] = pd.to_numeric(frame["value"])
    frame["kept"] = frame["kept"] == "True"
    rules = []
    for rule in artifact.best:
        beside = [name for name in labels if name not in rule.over]
        grids = matching(frame, rule.where, labels).groupby(beside or (lambda row: 0), sort=False)
        rules.append((rule, [_Grid(artifact, rule, one, beside) for _, one in grids]))
    return template("search.md.j2")(
        title_of=artifact.title_of,
        search=artifact.searched(scale),
        seeds=SEARCH_SEEDS,
        last=artifact.size(scale).seeds - 1,
        sizes=frame["stage"].value_counts(),
        rules=rules,
        median=median,
        edges=edges_text(artifact, chosen_rows(rows), labels),
    )


class _Grid:
    """One grid: its stages, the best first."""

    def __init__(
        self, artifact: Artifact, rule: Best, rows: pd.DataFrame, beside: Sequence[str]
    ) -> None:
        lower = artifact.measures[rule.by].better == "lower"
        rows = rows.sort_values("value", ascending=lower, kind="stable")
        self.artifact, self.over, self.beside = artifact, rule.over, beside
        self.sign = -1.0 if lower else 1.0
        self.rough, self.full, self.whole = (
            rows[rows["stage"] == stage] for stage in (REDUCED, FULL, WHOLE)
        )

    @property
    def gap(self) -> float | None:
        """By how much the last that was kept is ahead of the first that was dropped."""
        kept, dropped = (self.rough[self.rough["kept"] == one]["value"] for one in (True, False))
        if kept.empty or dropped.empty:
            return None
        gap = float(self.sign * (kept.iloc[-1] - dropped.iloc[0]))
        return gap if math.isfinite(gap) else None

    @property
    def place(self) -> int:
        """Of the winner, at reduced size."""
        keys = [tuple(row) for row in self.rough[list(self.over)].to_numpy()]
        return 1 + keys.index(tuple(self.full.iloc[0][list(self.over)]))

    @property
    def was_last(self) -> bool:
        """Whether the winner was the last that was kept."""
        return self.place == len(self.full)

    @property
    def remark(self) -> str:
        """What the whole grid at full size says of the winner."""
        first = self.full.iloc[0] if len(self.full) else self.whole.iloc[0]
        where = ", ".join(
            self.artifact.title_of(first[one]) for one in self.beside if first[one] != ""
        )
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
