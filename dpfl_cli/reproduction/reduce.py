"""From finished runs, or from plans alone, to an artifact's rows: one per measure, labels and seed.

Columns of the frame: the labels, then
  measure, round ("" where it is no point of a series), seed (NaN where it has none), value, text (a
  fact that is no number), diverged, seeds (how many were declared), best, rank, edge, note;
  paper, paper_std, paper_note; the columns of `show`; and what a row says of its epsilon (PRIVACY).
A label that a row does not have is "".
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

import numpy as np
import pandas as pd

from dpfl_cli.reproduction.artifact import Artifact
from dpfl_cli.reproduction.grid import Cell
from dpfl_cli.reproduction.measure import Best, Derived, Metric
from dpfl_cli.reproduction.numbers import numbers_of, row_of
from dpfl_cli.reproduction.rows import (
    Missing,
    Row,
    Rows,
    is_number,
    labels_of,
    matching,
    places,
    records,
)
from dpfl_cli.reproduction.tables import framed, rows_of
from dpfl_cli.simulation.store import RunRecord

EDGES = "edges"  # column of winners: label -> where it is at an end of its axis


def rows_of_runs(
    artifact: Artifact,
    cells: Sequence[Cell],
    records: Mapping[str, RunRecord],
    searched: pd.DataFrame | None = None,
) -> Rows:
    """Rows of an artifact of runs and plans, to be written: the paper's numbers come beside them as
    they are read again (`from_csv`).

    Args:
      records: run id -> record, of the runs that ended (done or diverged).
      searched: the rows by which a search chooses among its cells, all of which it has; what these
        runs say of them has no part in it.
    """
    labels = list(dict.fromkeys(name for cell in cells for name in cell.run.labels))
    if searched is not None:
        labels = labels_of(searched)
    measures = artifact.measures
    late = [name for name, one in measures.items() if one.of_chosen]
    derived = {name: one for name, one in measures.items() if isinstance(one, Derived)}
    first = [name for name in measures if name not in (*late, *derived)]
    rows = measured(artifact, cells, records, first, labels)
    ground = rows
    if searched is not None:
        found = set(places(searched, labels))
        others = rows[[place not in found for place in places(rows, labels)]]
        ground = pd.concat([others, searched], ignore_index=True)
    choices = [(rule, chosen(artifact, rule, ground)) for rule in artifact.best]
    best = {place for _, winners in choices for place in places(winners, labels)}
    inside = [
        one for one in cells if tuple(one.run.labels.get(name, "") for name in labels) in best
    ]
    of_best = measured(artifact, inside, records, late, labels)
    rows = pd.concat([rows, of_best], ignore_index=True)
    for rule, winners in choices:
        rows = marked(rule, winners, rows)
    for name in late:
        mine = rows[rows["measure"] == name]
        rows = rows.drop(mine.index.difference(matching(mine, measures[name].where).index))
    added = [row for choice in choices for row in rows_of_winners(artifact, *choice)]
    rows = pd.concat([rows, framed(artifact, labels, added)], ignore_index=True)
    for name, measure in derived.items():
        made = _derived(name, measure, rows_of(artifact, rows))
        rows = pd.concat([rows, framed(artifact, labels, made)], ignore_index=True)
    return rows_of(artifact, rows)


def measured(
    artifact: Artifact,
    cells: Sequence[Cell],
    records: Mapping[str, RunRecord],
    names: Sequence[str],
    labels: Sequence[str],
) -> pd.DataFrame:
    """The rows of some measures of cells alone, in which a run's stand together; nothing chosen."""
    rows = [
        row
        for _, equal in groupby(cells, lambda cell: cell.run.labels)
        for row in numbers_of(artifact, sorted(equal, key=lambda one: one.seed), records, names)
    ]
    return framed(artifact, labels, rows)


def _derived(name: str, measure: Derived, rows: Rows) -> list[Row]:
    """The rows of a derived measure; unknown, with the reason, where a number is missing."""
    within = rows.where(**measure.where)
    made = []
    wholes = rows.seeds
    for key in dict.fromkeys(places(within.frame, measure.per)):
        if "" in key:
            continue
        labels = dict(zip(measure.per, key, strict=True))
        mine = rows.where(**labels)
        seeds = (mine.seeds if measure.by_seed else {}) or {math.nan: mine}
        for seed, one in seeds.items():
            combination = replace(one, whole=wholes.get(seed, rows), place=labels)
            try:
                value, note = float(measure.value(combination)), ""
            except Missing as missing:
                value, note = math.nan, str(missing)
            row = row_of(labels, name, value, seed=seed, seeds=len(seeds), note=note)
            if measure.over:
                row["edge"] = edge_of(measure.over, value, one.frame[measure.over])
            made.append(row)
    return made


# --- the best cell of a grid, chosen by the means over seeds -------------------------------------


def chosen(artifact: Artifact, rule: Best, rows: pd.DataFrame) -> pd.DataFrame:
    """The best cells of every grid by their means over seeds, each once; diverged ones never are.

    Columns: the labels, the round where one is chosen at each, rank, edges (by label).
    """
    measure = artifact.measures[rule.by]
    at_rounds = isinstance(measure, Metric) and measure.at == "series"
    mine = matching(rows[rows["measure"] == rule.by], rule.where)
    beside = [name for name in labels_of(rows) if name not in rule.over] + (
        ["round"] if at_rounds else []
    )
    keys = [*beside, *rule.over]
    means = mine.groupby(keys, sort=False, dropna=False)["value"].mean().reset_index()
    lower = measure.better == "lower"
    winners = []
    for _, grid in means.groupby(beside or (lambda row: 0), sort=False, dropna=False):
        finite = grid[np.isfinite(grid["value"])]
        best = finite.sort_values("value", ascending=lower, kind="stable").head(rule.top)
        for rank, winner in enumerate(records(best[keys]), start=1):
            edges = {name: edge_of(name, winner[name], grid[name]) for name in rule.over}
            winners.append({**winner, "rank": rank, EDGES: edges})
    return pd.DataFrame(winners, columns=[*keys, "rank", EDGES], dtype=object)


def marked(rule: Best, winners: pd.DataFrame, rows: pd.DataFrame) -> pd.DataFrame:
    """The rows with rank and edge where they belong to a chosen cell."""
    keys = list(winners.columns.drop(["rank", EDGES]))
    mine = matching(rows, rule.where)[keys]
    found = mine.merge(winners, "left", keys).set_axis(mine.index).dropna(subset="rank")
    rows = rows.copy()
    rows.loc[found.index, "best"] |= found["rank"] == 1
    if rule.top > 1:
        rows.loc[found.index, "rank"] = found["rank"]
    if "round" not in keys:  # a curve has no edge
        found = found[rows.loc[found.index, "round"] == ""]
    joined = ["; ".join(filter(None, edges.values())) for edges in found[EDGES]]
    rows.loc[found.index, "edge"] = joined
    return rows


def rows_of_winners(artifact: Artifact, rule: Best, winners: pd.DataFrame) -> list[Row]:
    """The rows best.<label>."""
    rows = []
    for winner in records(winners):
        rank, edges = winner.pop("rank"), winner.pop(EDGES)
        place = {name: one for name, one in winner.items() if name not in rule.over}
        about = {"best": rank == 1, "rank": rank if rule.top > 1 else "", "note": rule.note}
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
    cells = records(rows.means[rows.means["measure"].map(artifact.is_choice)])
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
