"""From finished runs, or from plans alone, to an artifact's rows: one per measure, labels and seed.

Columns of the frame: the labels, then
  measure, round ("" where it is no point of a series), seed (NaN where it has none), value, text (a
  fact that is no number), diverged, seeds (how many were declared), best, rank, edge, note;
  paper, paper_std, paper_note; the columns of `show`; and what a row says of its epsilon (PRIVACY).
A label that a row does not have is "".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from dpfl_cli.config.errors import ConfigError
from dpfl_cli.reproduction.artifact import Artifact
from dpfl_cli.reproduction.choose import chosen
from dpfl_cli.reproduction.grid import Cell, Request
from dpfl_cli.reproduction.layers import layer_sizes
from dpfl_cli.reproduction.measure import (
    MEASURE,
    SEED,
    Derived,
    Layers,
)
from dpfl_cli.reproduction.numbers import (
    Group,
    Row,
    numbers_of,
    row_of,
)
from dpfl_cli.reproduction.paper_numbers import beside_paper
from dpfl_cli.reproduction.rows import FIXED, Missing, Rows, matching, places
from dpfl_cli.reproduction.tables import framed, rows_of
from dpfl_cli.simulation.store import RunRecord

Which = Callable[[Mapping[str, Any]], bool]


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
    groups = _groups(cells, records)

    def reduced(names: Iterable[str], which: Which) -> list[Row]:
        return [
            row for one in groups if which(one.labels) for row in numbers_of(artifact, one, names)
        ]

    labels = list(dict.fromkeys(name for one in groups for name in one.labels))
    if searched is not None:
        labels = [str(name) for name in searched.columns[: searched.columns.get_loc(MEASURE)]]
    return _finished(artifact, reduced, labels, searched)


def measured(
    artifact: Artifact,
    cells: Sequence[Cell],
    records: Mapping[str, RunRecord],
    names: Iterable[str],
    labels: Sequence[str],
) -> pd.DataFrame:
    """The rows of some measures of runs alone, with nothing chosen."""
    found = [row for one in _groups(cells, records) for row in numbers_of(artifact, one, names)]
    return framed(artifact, labels, found)


def _groups(cells: Sequence[Cell], records: Mapping[str, RunRecord]) -> list[Group]:
    return [
        Group(
            dict(members[0].run.labels),
            members[0].plan,
            members,
            {one.seed: records[one.plan.id] for one in members if one.plan.id in records},
        )
        for members in _grouped(cells)
    ]


def _grouped(cells: Sequence[Cell]) -> list[list[Cell]]:
    found: dict[tuple[Any, ...], list[Cell]] = {}
    for cell in cells:
        found.setdefault(tuple(sorted(cell.run.labels.items())), []).append(cell)
    return [sorted(members, key=lambda cell: cell.seed) for members in found.values()]


def rows_of_layers(artifact: Artifact, asked: Sequence[Request]) -> Rows:
    """Rows of an artifact of layer sizes."""
    rows: list[Row] = []
    for request in asked:
        model = request.config()["model"]
        for layer in layer_sizes(model, tuple(artifact.input_shape), artifact.classes):
            output = "x".join(str(size) for size in layer.output)
            labels = {**request.run.labels, "layer": layer.name, "output": output}
            rows += [
                row_of(labels, name, float(getattr(layer, measure.of)))
                for name, measure in artifact.measures.items()
                if isinstance(measure, Layers)
            ]
    names = [name for name in rows[0] if name not in FIXED]
    return _finished(
        artifact,
        lambda wanted, which: [one for one in rows if one[MEASURE] in wanted and which(one)],
        names,
    )


def _finished(
    artifact: Artifact,
    reduced: Callable[[Iterable[str], Which], list[Row]],
    labels: Sequence[str],
    searched: pd.DataFrame | None = None,
) -> Rows:
    """All rows: those that cells are chosen by, those of chosen cells, those derived from
    others.
    """
    measures = artifact.measures
    known = {name: one for name, one in measures.items() if not isinstance(one, Derived)}
    first = [name for name, one in known.items() if not one.of_chosen]
    late = [name for name, one in known.items() if one.of_chosen]
    rows = framed(artifact, labels, reduced(first, lambda _: True))
    ground = rows if searched is None else _replaced(rows, searched, labels)
    choices = [chosen(artifact, rule, ground, labels) for rule in artifact.best]
    if late:
        cells = {key for one in choices for key in one.cells}

        def was_chosen(own: Mapping[str, Any]) -> bool:
            return any(
                tuple(own.get(name, "") for name in one.names) in one.cells for one in choices
            )

        more = framed(artifact, labels, reduced(late, was_chosen) if cells else [])
        rows = pd.concat([rows, more], ignore_index=True) if len(more) else rows
    for choice in choices:
        rows = choice.mark(rows)
    keep = np.ones(len(rows), bool)
    for name in late:
        mine = (rows[MEASURE] == name).to_numpy()
        fits = rows.index.isin(matching(rows[mine], measures[name].where, labels).index)
        keep &= ~mine | fits
    rows = rows[keep]
    added = [row for choice in choices for row in choice.added]
    if added:
        rows = pd.concat([rows, framed(artifact, labels, added)], ignore_index=True)
    for name, measure in measures.items():
        if isinstance(measure, Derived):
            made = _derived(name, measure, rows_of(artifact, rows, labels))
            if made:
                rows = pd.concat([rows, framed(artifact, labels, made)], ignore_index=True)
    return rows_of(artifact, beside_paper(artifact, rows), labels)


def _replaced(rows: pd.DataFrame, searched: pd.DataFrame, labels: Sequence[str]) -> pd.DataFrame:
    """The rows, those of searched cells replaced by those of the search."""
    cells = set(places(searched, labels))
    others = rows[[place not in cells for place in places(rows, labels)]]
    return pd.concat([others, searched], ignore_index=True)


def _derived(name: str, measure: Derived, rows: Rows) -> list[Row]:
    """The rows of a derived measure; unknown, with the reason, where a number is missing."""
    if not callable(measure.value):
        raise ConfigError(f"measure {name}: value is no function of rows")
    within = rows.where(**measure.where) if measure.where else rows
    made = []
    wholes = {float(one.frame[SEED].max()): one for one in rows.by_seed()}
    # without labels, pandas drops no duplicates: one combination, not one of every row
    combinations = within.frame[list(measure.per)].drop_duplicates()
    for key in dict.fromkeys(combinations.itertuples(index=False, name=None)):
        if "" in key:
            continue
        labels = dict(zip(measure.per, key, strict=True))
        mine = rows.where(**labels) if labels else rows
        seeds: list[tuple[float, Rows]] = [(math.nan, mine)]
        if measure.by_seed and not mine.frame[SEED].isna().all():
            seeds = [(float(one.frame[SEED].max()), one) for one in mine.by_seed()]
        for seed, one in seeds:
            combination = replace(one, whole=wholes.get(seed, rows), place=labels)
            try:
                value, note = float(measure.value(combination)), ""
            except Missing as missing:
                value, note = math.nan, str(missing)
            made.append(row_of(labels, name, value, seed=seed, seeds=len(seeds)) | {"note": note})
    return made
