"""The best cell of a grid, chosen by the means over seeds."""

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from dpfl_cli.reproduction.artifact import Artifact
from dpfl_cli.reproduction.measure import BEST, MEASURE, RANK, ROUND, Best, Metric
from dpfl_cli.reproduction.numbers import Row, row_of
from dpfl_cli.reproduction.rows import Rows, is_number, matching, records

EDGES = "edges"  # column of winners: label -> where it is at an end of its axis


def chosen(
    artifact: Artifact, rule: Best, rows: pd.DataFrame, labels: Sequence[str]
) -> pd.DataFrame:
    """The best cells of every grid by their means over seeds, each once; diverged ones never are.

    Columns: the labels, the round where one is chosen at each, rank, edges (by label).
    """
    measure = artifact.measures[rule.by]
    at_rounds = isinstance(measure, Metric) and measure.at == "series"
    mine = matching(rows[rows[MEASURE] == rule.by], rule.where, labels)
    beside = [name for name in labels if name not in rule.over] + ([ROUND] if at_rounds else [])
    keys = [*beside, *rule.over]
    means = mine.groupby(keys, sort=False, dropna=False)["value"].mean().reset_index()
    lower = measure.better == "lower"
    winners = []
    for _, grid in means.groupby(beside or (lambda row: 0), sort=False, dropna=False):
        finite = grid[np.isfinite(grid["value"])]
        best = finite.sort_values("value", ascending=lower, kind="stable").head(rule.top)
        for rank, winner in enumerate(records(best[keys]), start=1):
            edges = {name: edge_of(name, winner[name], grid[name]) for name in rule.over}
            winners.append({**winner, RANK: rank, EDGES: edges})
    return pd.DataFrame(winners, columns=[*keys, RANK, EDGES], dtype=object)


def marked(
    rule: Best, winners: pd.DataFrame, rows: pd.DataFrame, labels: Sequence[str]
) -> pd.DataFrame:
    """The rows with rank and edge where they belong to a chosen cell."""
    keys = [name for name in winners if name not in (RANK, EDGES)]
    mine = matching(rows, rule.where, labels)[keys]
    found = mine.merge(winners, "left", keys).set_axis(mine.index).dropna(subset=RANK)
    rows = rows.copy()
    rows.loc[found.index, BEST] |= found[RANK] == 1
    if rule.top > 1:
        rows.loc[found.index, RANK] = found[RANK]
    if ROUND not in keys:  # a curve has no edge
        found = found[rows.loc[found.index, ROUND] == ""]
    joined = ["; ".join(filter(None, edges.values())) for edges in found[EDGES]]
    rows.loc[found.index, "edge"] = joined
    return rows


def rows_of_winners(artifact: Artifact, rule: Best, winners: pd.DataFrame) -> list[Row]:
    """The rows best.<label>."""
    rows = []
    for winner in records(winners):
        rank, edges = winner.pop(RANK), winner.pop(EDGES)
        place = {name: one for name, one in winner.items() if name not in rule.over}
        about = {BEST: rank == 1, RANK: rank if rule.top > 1 else "", "note": rule.note}
        for name in rule.over:
            value = winner[name]
            if value == "":  # a label of another method's grid
                continue
            number = is_number(value)
            text = "" if number else artifact.title_of(value)
            about |= {"text": text, "edge": edges[name]}
            rows.append(row_of(place, f"best.{name}", value if number else math.nan, **about))
    return rows


def edge_of(name: str, value: Any, column: pd.Series) -> str:
    """Where a value is at an end of a numeric axis with at least 2 values; "" elsewhere."""
    values = set(column) - {""}
    if len(values) < 2 or not all(map(is_number, values)):
        return ""
    low, high = ("smaller", "larger") if len(values) == 2 else ("smallest", "largest")
    which = {min(values): low, max(values): high}.get(value)
    return f"{name}={value:g} ({which} of {len(values)})" if which else ""


def edges_text(artifact: Artifact, rows: Rows) -> str:
    """Where chosen points lie at the end of their grid, with in how many cells."""
    cells = records(rows.means[rows.means[MEASURE].map(artifact.is_choice)])
    places = {
        (edge, *(cell[name] for name in rows.labels)): edge
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
