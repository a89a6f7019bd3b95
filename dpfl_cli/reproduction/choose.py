"""The best cell of a grid, chosen by the means over seeds."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from dpfl_cli.reproduction.artifact import Artifact
from dpfl_cli.reproduction.measure import BEST, MEASURE, RANK, ROUND, Best, Metric
from dpfl_cli.reproduction.numbers import Row, row_of
from dpfl_cli.reproduction.rows import Place, is_number, matching, places, records


@dataclass(frozen=True)
class Choice:
    """What a `Best` chose.

    Attributes:
      winners: the labels of the chosen cells, with the round where one is chosen at each, and the
        rank and edge of each.
      added: rows best.<label>.
    """

    rule: Best
    labels: Sequence[str]
    winners: pd.DataFrame
    added: Sequence[Row]

    @property
    def cells(self) -> set[Place]:
        return set(places(self.winners, self.labels))

    def mark(self, rows: pd.DataFrame) -> pd.DataFrame:
        """The rows with rank and edge where they belong to a chosen cell."""
        keys = [name for name in self.winners if name not in (RANK, "edge")]
        mine = matching(rows, self.rule.where, self.labels)[keys]
        found = mine.merge(self.winners, "left", keys).set_axis(mine.index).dropna(subset=RANK)
        rows = rows.copy()
        rows.loc[found.index, BEST] |= found[RANK] == 1
        if self.rule.top > 1:
            rows.loc[found.index, RANK] = found[RANK]
        if ROUND not in keys:  # a curve has no edge
            found = found[rows.loc[found.index, ROUND] == ""]
        rows.loc[found.index, "edge"] = found["edge"]
        return rows


def chosen(artifact: Artifact, rule: Best, rows: pd.DataFrame, labels: Sequence[str]) -> Choice:
    """Chooses the best cells by their means over seeds; diverged ones never are."""
    measure = artifact.measures[rule.by]
    at_rounds = isinstance(measure, Metric) and measure.at == "series"
    mine = matching(rows[rows[MEASURE] == rule.by], rule.where, labels)
    beside = [name for name in labels if name not in rule.over] + ([ROUND] if at_rounds else [])
    keys = [*beside, *rule.over]
    means = mine.groupby(keys, sort=False, dropna=False)["value"].mean().reset_index()
    lower = measure.better == "lower"
    winners, added = list[Row](), list[Row]()
    for _, grid in means.groupby(beside or (lambda row: 0), sort=False, dropna=False):
        finite = grid[np.isfinite(grid["value"])]
        best = finite.sort_values("value", ascending=lower, kind="stable").head(rule.top)
        for rank, winner in enumerate(records(best), start=1):
            edges = {name: _edge(name, winner[name], grid[name]) for name in rule.over}
            place = {name: winner[name] for name in beside}
            where = "; ".join(filter(None, edges.values()))
            winners.append({name: winner[name] for name in keys} | {RANK: rank, "edge": where})
            for name, edge in edges.items():
                value = winner[name]
                if value == "":  # a label of another method's grid
                    continue
                number = is_number(value)
                about: Row = {"text": "" if number else artifact.title_of(value), "note": rule.note}
                about |= {"edge": edge, BEST: rank == 1, RANK: rank if rule.top > 1 else ""}
                shown = float(value) if number else math.nan
                added.append(row_of(place, f"best.{name}", shown, **about))
    frame = pd.DataFrame(winners, columns=[*keys, RANK, "edge"], dtype=object)
    return Choice(rule, labels, frame, added)


def _edge(name: str, value: Any, column: pd.Series) -> str:
    """Where a value is at an end of a numeric axis with at least 2 values; "" elsewhere."""
    values = set(column) - {""}
    if len(values) < 2 or not all(map(is_number, values)):
        return ""
    ends = ("smaller", "larger") if len(values) == 2 else ("smallest", "largest")
    which = ends[0] if value == min(values) else ends[1] if value == max(values) else ""
    return f"{name}={value:g} ({which} of {len(values)})" if which else ""


def chosen_rows(rows: pd.DataFrame) -> list[Row]:
    """The rows that say what was chosen."""
    return records(rows[rows[MEASURE].str.startswith("best.")])


def edges_text(artifact: Artifact, cells: Sequence[Row], names: Sequence[str]) -> str:
    """Where chosen cells lie on the edge of their grid, each place once, with in how many cells."""
    names = [name for name in names if name != MEASURE]
    places = {
        (edge, *(cell.get(name, "") for name in names)): edge
        for cell in cells
        if cell["edge"]
        for edge in cell["edge"].split("; ")
    }
    counts = Counter(places.values())
    return ", ".join(
        f"{artifact.title_of(edge.partition('=')[0])} {edge.partition('=')[2]}"
        + (f" in {count} cells" if count > 1 else "")
        for edge, count in counts.items()
    )
