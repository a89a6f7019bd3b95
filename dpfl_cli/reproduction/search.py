"""A staged search: the stages of an artifact's `Search`, each a set of ordinary runs, chosen by its
`Best` rules.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from dpfl_cli.config.errors import ConfigError
from dpfl_cli.reproduction.artifact import SEARCH_SEEDS, Artifact, Scale
from dpfl_cli.reproduction.choose import chosen
from dpfl_cli.reproduction.grid import Cell, cells, labelled
from dpfl_cli.reproduction.measure import MEASURE, Where
from dpfl_cli.reproduction.reduce import measured
from dpfl_cli.reproduction.rows import LabelValues, matching, places
from dpfl_cli.simulation.store import RunRecord

REDUCED, FULL, WHOLE = "reduced", "full", "whole"  # stages of search.csv
Ended = Callable[[Sequence[Cell]], Mapping[str, RunRecord]]


@dataclass(frozen=True)
class Found:
    """What a search came to; without one, the cells alone.

    Attributes:
      cells: what the artifact's rows are made of; no seed of theirs had a part in a choice.
      stages: the runs at reduced size, and those at full size with one seed.
      rows: every cell of the search with the value at full size, or none where it was dropped.
      table: search.csv: the stage of a run, its labels, the value that it is chosen by, and whether
        it was kept; runs of whole grids that were no candidates are a stage of their own.
    """

    cells: Sequence[Cell]
    stages: Sequence[Sequence[Cell]] = ()
    rows: pd.DataFrame | None = None
    table: str = ""


def search(artifact: Artifact, scale: Scale, ended: Ended) -> Found:
    """Goes through the stages, if there is a search; the numbers of their runs do not depend on
    what is found, where as many cells end as are kept.

    Args:
      ended: run id -> record of those of these runs that end (done or diverged), made or found.

    Raises:
      ConfigError: there is nothing to choose, or it names cells that there are not.
    """
    declared, first = artifact.searched(scale), cells(artifact, scale)
    if declared is None:
        return Found(first)
    reduced = [cell for cell in first if cell.seed == SEARCH_SEEDS[0]]
    if not reduced:
        raise ConfigError(f"artifact {artifact.name}: search: no grid of several cells in best")
    runs, beyond = list(artifact.runs(scale)), list(declared.beyond())
    frame = labelled([*runs, *beyond])
    labels = [str(name) for name in frame]
    by_place = dict(zip(places(frame, labels), [*runs, *beyond], strict=True))
    besides = set(list(by_place)[len(runs) :])
    names = list(dict.fromkeys(rule.by for rule in artifact.best))

    def named(what: str, wheres: Sequence[Where]) -> set[LabelValues]:
        found = [set(places(matching(frame, where, labels), labels)) for where in wheres]
        if not all(found):
            raise ConfigError(f"artifact {artifact.name}: search: {what}: no run has these labels")
        return {place for one in found for place in one}

    def best(rows: pd.DataFrame, keep: int = 0) -> set[LabelValues]:
        rules = [replace(rule, top=keep or rule.top) for rule in artifact.best]
        found = (chosen(artifact, rule, rows, labels) for rule in rules)
        return {place for winners in found for place in places(winners, labels)}

    checked, always = named("whole", declared.whole), named("always", declared.always)
    rough = measured(artifact, reduced, ended(reduced), names, labels)
    searched = set(places(rough, labels))
    kept = best(rough, declared.keep)
    compared = kept if declared.keep > 1 else set[LabelValues]()  # one that is kept has won
    asked = compared | checked & searched | besides
    again = [run for place, run in by_place.items() if place in asked]
    full = [Cell(replace(run, exclusive=False), SEARCH_SEEDS[1], artifact.name) for run in again]
    exact = measured(artifact, full, ended(full), names, labels)
    there = places(exact, labels)
    near = np.array([place in kept for place in places(rough, labels)])
    final = exact[[place in kept for place in there]] if compared else rough[near]
    # with those that were dropped, so that the ends of a grid are known
    rows = pd.concat([final, rough[~near].assign(value=math.nan)], ignore_index=True)
    winners = best(rows)
    lasting = winners | always | (kept if declared.finalists else set())
    last = [
        Cell(run, seed, artifact.name)
        for place, run in by_place.items()
        if place not in searched | besides or place in lasting
        for seed in artifact.seeds(scale, run)
    ]
    stages = [FULL if place in kept else WHOLE for place in there]
    won = [place in winners for place in there]
    table = pd.concat(
        [rough.assign(stage=REDUCED, kept=near), exact.assign(stage=stages, kept=won)]
    )
    by_rule = [
        matching(table[table[MEASURE] == rule.by], rule.where, labels) for rule in artifact.best
    ]
    text = pd.concat(by_rule)[["stage", *labels, "value", "kept"]].to_csv(index=False)
    return Found(last, (reduced, full), rows, text)
