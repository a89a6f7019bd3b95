"""The best cell of a grid, chosen by the means over seeds."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from dpfl_cli.reproduction.artifact import Artifact
from dpfl_cli.reproduction.measure import (
    BEST,
    MEASURE,
    RANK,
    ROUND,
    Best,
    Metric,
)
from dpfl_cli.reproduction.numbers import (
    Row,
    row_of,
)
from dpfl_cli.reproduction.rows import matching, records


@dataclass(frozen=True)
class Choice:
    """What a `Best` chose.

    Attributes:
      names: the labels of a cell (without the round).
      cells: the chosen ones.
      ranks: labels of a cell, with the round where it is chosen at rounds -> rank, edge.
      added: rows best.<label>.
    """

    rule: Best
    labels: Sequence[str]
    at_rounds: bool
    names: Sequence[str]
    cells: set[tuple[Any, ...]]
    ranks: Mapping[tuple[Any, ...], tuple[int, str]]
    added: Sequence[Row]

    def mark(self, rows: pd.DataFrame) -> pd.DataFrame:
        """The rows with rank and edge where they belong to a chosen cell."""
        rows = rows.copy()
        inside = rows.index.isin(matching(rows, self.rule.where, self.labels).index)
        keys = [*self.names, ROUND] if self.at_rounds else list(self.names)
        of_series = rows[ROUND].to_numpy() != ""
        places = rows[keys].itertuples(index=False, name=None)
        found = [
            self.ranks.get(key) if fits else None for key, fits in zip(places, inside, strict=True)
        ]
        best, rank, edge = list(rows[BEST]), list(rows[RANK]), list(rows["edge"])
        for number, one in enumerate(found):
            if one is not None:
                best[number] = best[number] or one[0] == 1
                rank[number] = one[0] if self.rule.top > 1 else rank[number]
                edge[number] = edge[number] if of_series[number] and not self.at_rounds else one[1]
        return rows.assign(**{BEST: best, RANK: rank, "edge": edge})


def chosen(artifact: Artifact, rule: Best, rows: pd.DataFrame, labels: Sequence[str]) -> Choice:
    """Chooses the best cells by their means over seeds; diverged ones never are."""
    measure = artifact.measures[rule.by]
    at_rounds = isinstance(measure, Metric) and measure.at == "series"
    mine = matching(rows[rows[MEASURE] == rule.by], rule.where, labels)
    kept = [name for name in labels if name not in rule.over] + ([ROUND] if at_rounds else [])
    keys = [*kept, *rule.over]
    means = mine.groupby(keys, sort=False, dropna=False).agg(
        value=("value", "mean"), n=("value", "size"), seeds=("seeds", "first")
    )
    cells = records(means.reset_index())
    sign = 1.0 if measure.better == "lower" else -1.0
    ranks: dict[tuple[Any, ...], tuple[int, str]] = {}
    winners: set[tuple[Any, ...]] = set()
    added: list[Row] = []
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for cell in cells:
        groups.setdefault(tuple(cell[name] for name in kept), []).append(cell)
    for found in groups.values():
        finite = sorted(
            (cell for cell in found if math.isfinite(cell["value"])),
            key=lambda cell: sign * float(cell["value"]),
        )
        for rank, winner in enumerate(finite[: rule.top], start=1):
            edges = {name: edge for name in rule.over if (edge := _edge(name, winner, found))}
            place = tuple(winner[name] for name in labels)
            winners.add(place)
            ranks[(*place, winner[ROUND]) if at_rounds else place] = (
                rank,
                "; ".join(edges.values()),
            )
            rest = {name: winner[name] for name in kept}
            for name in rule.over:
                if winner[name] == "":  # a label of another method's grid
                    continue
                about = {"note": rule.note, "edge": edges.get(name, ""), BEST: rank == 1}
                about |= {RANK: rank} if rule.top > 1 else {}
                value = winner[name]
                number = isinstance(value, int | float) and not isinstance(value, bool)
                text = "" if number else artifact.title_of(value)
                row = row_of({}, f"best.{name}", float(value) if number else math.nan)
                added.append({**row, "text": text, **about, **rest})
    return Choice(rule, labels, at_rounds, list(labels), winners, ranks, added)


def _edge(name: str, winner: Row, found: Sequence[Row]) -> str:
    """Where the winner is at an end of a numeric axis with at least 2 values; "" elsewhere."""
    values = {cell[name] for cell in found} - {""}
    numeric = all(isinstance(one, int | float) and not isinstance(one, bool) for one in values)
    if len(values) < 2 or not numeric:
        return ""
    value = winner[name]
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
