"""From finished runs, or from plans alone, to an artifact's rows: one per measure, labels and seed.

Columns of the frame: the labels, then
  measure, round ("" where it is no point of a series), seed (NaN where it has none), value, text (a
  fact that is no number), diverged, seeds (how many were declared), best, rank, edge, note;
  paper, paper_std, paper_note; the columns of `show`; and what a row says of its epsilon (PRIVACY).
A label that a row does not have is "".
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pandas as pd

from dpfl_cli.config.errors import ConfigError
from dpfl_cli.reproduction.artifact import Artifact
from dpfl_cli.reproduction.choose import chosen, edge_of, marked, rows_of_winners
from dpfl_cli.reproduction.grid import Cell
from dpfl_cli.reproduction.measure import MEASURE, Derived
from dpfl_cli.reproduction.numbers import Row, numbers_of, row_of
from dpfl_cli.reproduction.paper_numbers import beside_paper
from dpfl_cli.reproduction.rows import LabelValues, Missing, Rows, matching, places
from dpfl_cli.reproduction.tables import framed, rows_of
from dpfl_cli.simulation.store import RunRecord


def rows_of_runs(
    artifact: Artifact,
    cells: Sequence[Cell],
    records: Mapping[str, RunRecord],
    searched: pd.DataFrame | None = None,
) -> Rows:
    """Rows of an artifact of runs and plans.

    Args:
      records: run id -> record, of the runs that ended (done or diverged).
      searched: the rows by which a search chooses among its cells, all of which it has; what these
        runs say of them has no part in it.
    """
    labels = list(dict.fromkeys(name for cell in cells for name in cell.run.labels))
    if searched is not None:
        labels = list(searched.columns[: searched.columns.get_loc(MEASURE)])
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
    choices = [(rule, chosen(artifact, rule, ground, labels)) for rule in artifact.best]
    best = {place for _, winners in choices for place in places(winners, labels)}
    inside = [
        one for one in cells if tuple(one.run.labels.get(name, "") for name in labels) in best
    ]
    of_best = measured(artifact, inside, records, late, labels)
    rows = pd.concat([rows, of_best], ignore_index=True)
    for rule, winners in choices:
        rows = marked(rule, winners, rows, labels)
    for name in late:
        mine = rows[rows[MEASURE] == name]
        rows = rows.drop(mine.index.difference(matching(mine, measures[name].where, labels).index))
    added = [row for choice in choices for row in rows_of_winners(artifact, *choice)]
    rows = pd.concat([rows, framed(artifact, labels, added)], ignore_index=True)
    for name, measure in derived.items():
        made = _derived(name, measure, rows_of(artifact, rows, labels))
        rows = pd.concat([rows, framed(artifact, labels, made)], ignore_index=True)
    return rows_of(artifact, beside_paper(artifact, rows), labels)


def measured(
    artifact: Artifact,
    cells: Sequence[Cell],
    records: Mapping[str, RunRecord],
    names: Sequence[str],
    labels: Sequence[str],
) -> pd.DataFrame:
    """The rows of some measures of cells alone, with nothing chosen."""
    groups: dict[LabelValues, list[Cell]] = {}
    for cell in cells:
        groups.setdefault(tuple(sorted(cell.run.labels.items())), []).append(cell)
    rows = [
        row
        for equal in groups.values()
        for row in numbers_of(artifact, sorted(equal, key=lambda one: one.seed), records, names)
    ]
    return framed(artifact, labels, rows)


def _derived(name: str, measure: Derived, rows: Rows) -> list[Row]:
    """The rows of a derived measure; unknown, with the reason, where a number is missing."""
    if not callable(measure.value):
        raise ConfigError(f"measure {name}: value is no function of rows")
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
