"""The runs that an artifact needs at a scale; where it has a `Search`, found in stages, each a set
of ordinary runs, chosen by its `Best` rules; and what a page says of that.
"""

import io
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from statistics import median
from typing import Any

import pandas as pd

from dpfl_cli.config.errors import ConfigError
from dpfl_cli.reproduction.artifact import SEARCH_SEEDS, Artifact
from dpfl_cli.reproduction.grid import Cell, cells, labelled, runs_of
from dpfl_cli.reproduction.measure import Best, Where
from dpfl_cli.reproduction.reduce import chosen, measured
from dpfl_cli.reproduction.rows import LabelValues, matching, places
from dpfl_cli.reproduction.tables import label_of
from dpfl_cli.reproduction.templating import template
from dpfl_cli.simulation.run_plan import Plan
from dpfl_cli.simulation.store import RunRecord

REDUCED, FULL, WHOLE = "reduced", "full", "whole"  # stages of search.csv
Ended = Callable[[Sequence[Cell]], Mapping[str, RunRecord]]


@dataclass(frozen=True)
class Job:
    """An artifact with the runs that it needs, and what its search came to, if there is
    one; before that is made, what it comes to among made-up numbers where runs are not finished.

    Attributes:
      cells: what the artifact's rows are made of; no seed of theirs had a part in a choice.
      stages: the runs at reduced size, and those at full size with one seed.
      rows: every cell of the search with the value at full size, or none where it was dropped.
      table: search.csv: the stage of a run, its labels, the value that it is chosen by, and whether
        it was kept; runs of whole grids that were no candidates are a stage of their own.
      first: the cells that do not depend on what the search finds.
    """

    artifact: Artifact
    cells: Sequence[Cell]
    stages: Sequence[Sequence[Cell]] = ()
    rows: pd.DataFrame | None = None
    table: str = ""
    first: Sequence[Cell] = ()

    @cached_property
    def plans(self) -> dict[str, Plan]:
        """The runs to be trained, each once, by id."""
        every = chain(*self.stages, self.cells) if self.artifact.trains else ()
        return {cell.plan.id: cell.plan for cell in every}

    @property
    def horizon(self) -> str:
        """How far it is tested: rounds, training records, clients, seeds, part of the cells."""
        ranges = []
        if self.artifact.trains:
            plans = [cell.plan for cell in self.cells]
            seeds = [len(self.artifact.seeds(cell.run)) for cell in self.cells]
            ranges = [
                _range([plan.last_round for plan in plans], "round"),
                _range([plan.records for plan in plans], "training record"),
                _range([plan.clients for plan in plans], "client"),
                _range(seeds, "seed"),
            ]
        return "; ".join(filter(None, [", ".join(ranges), self.artifact.size.cells]))

    @property
    def data(self) -> list[str]:
        """The names of its data, each with where it comes from."""
        return sorted({f"{cell.plan.info.name} ({cell.plan.info.source})" for cell in self.cells})

    @cached_property
    def exclusive(self) -> set[str]:
        """Those of them that are run alone and anew, for their times."""
        return {cell.plan.id for cell in self.cells if cell.run.exclusive} & set(self.plans)


def _range(numbers: Sequence[int], what: str) -> str:
    low, high = min(numbers), max(numbers)
    shown = f"{low:,}" if low == high else f"{low:,} to {high:,}"
    return f"{shown} {what}{'s' if high > 1 else ''}"


def search(artifact: Artifact, ended: Ended, first: Sequence[Cell] = ()) -> Job:
    """Goes through the stages, if there is a search; the numbers of their runs do not depend on
    what is found, where as many cells end as are kept.

    Args:
      ended: run id -> record of those of these runs that end (done or diverged), made or found.
      first: that of its job from before, if there is one: planning takes long.

    Raises:
      ConfigError: there is nothing to choose, or it names cells that there are not.
    """
    declared, first = artifact.searched, first or cells(artifact)
    if declared is None:
        return Job(artifact, first)
    reduced = [cell for cell in first if cell.seed == SEARCH_SEEDS[0]]
    if not reduced:
        raise ConfigError(f"artifact {artifact.name}: search: no grid of several cells in best")
    runs = list(runs_of(artifact))
    every = [*runs, *declared.beyond()]
    frame = labelled(every)
    labels = list(frame.columns)
    by_place = dict(zip(places(frame, labels), every, strict=True))
    besides = set(list(by_place)[len(runs) :])
    names = list(dict.fromkeys(rule.by for rule in artifact.best))

    def named(what: str, wheres: Sequence[Where]) -> set[LabelValues]:
        found = [set(places(matching(frame, where), labels)) for where in wheres]
        if not all(found):
            raise ConfigError(f"artifact {artifact.name}: search: {what}: no run has these labels")
        return set[LabelValues]().union(*found)

    def best(rows: pd.DataFrame, keep: int = 0) -> set[LabelValues]:
        rules = [replace(rule, top=keep or rule.top) for rule in artifact.best]
        found = (chosen(artifact, rule, rows) for rule in rules)
        return {place for winners in found for place in places(winners, labels)}

    checked, always = named("whole", declared.whole), named("always", declared.always)
    rough = measured(artifact, reduced, ended(reduced), names, labels)
    searched, kept = set(places(rough, labels)), best(rough, declared.keep)
    near = rough["kept"] = pd.Series([place in kept for place in places(rough, labels)], dtype=bool)
    compared = kept if declared.keep > 1 else set[LabelValues]()  # one that is kept has won
    asked = compared | checked & searched | besides
    full = [
        Cell(replace(run, exclusive=False), SEARCH_SEEDS[1])
        for place, run in by_place.items()
        if place in asked
    ]
    exact = measured(artifact, full, ended(full), names, labels)
    exact["stage"] = [FULL if place in kept else WHOLE for place in places(exact, labels)]
    final = exact[exact["stage"] == FULL] if compared else rough[near]
    # with those that were dropped, so that the ends of a grid are known
    rows = pd.concat([final, rough[~near].assign(value=math.nan)], ignore_index=True)
    winners = best(rows)
    lasting = winners | always | (kept if declared.finalists else set())
    last = [
        Cell(run, seed)
        for place, run in by_place.items()
        if place not in searched | besides or place in lasting
        for seed in artifact.seeds(run)
    ]
    exact["kept"] = [place in winners for place in places(exact, labels)]
    table = pd.concat([rough.assign(stage=REDUCED), exact])
    by_rule = [matching(table[table["measure"] == rule.by], rule.where) for rule in artifact.best]
    text = pd.concat(by_rule)[["stage", *labels, "value", "kept"]].to_csv(index=False)
    return Job(artifact, last, (reduced, full), rows, text, first)


# --- what a page says of it, from search.csv -----------------------------------------------------


def search_section(artifact: Artifact, text: str) -> str:
    """Sizes of the stages, how close they were, and what they could have missed.

    Args:
      text: search.csv.
    """
    frame = pd.read_csv(io.StringIO(text), dtype=str, keep_default_na=False)
    labels = [str(name) for name in frame.columns[1:-2]]
    frame[labels] = frame[labels].map(label_of).astype(object)
    frame["value"] = pd.to_numeric(frame["value"])
    frame["kept"] = frame["kept"] == "True"
    rules = []
    for rule in artifact.best:
        beside = [name for name in labels if name not in rule.over]
        grids = matching(frame, rule.where).groupby(beside or (lambda row: 0), sort=False)
        rules.append(_compared(artifact, rule, [grid for _, grid in grids], beside))
    return template("search.md.j2")(
        title_of=artifact.title_of,
        search=artifact.searched,
        seeds=SEARCH_SEEDS,
        own=artifact.size.which,
        sizes=frame["stage"].value_counts(),
        rules=rules,
        median=median,
    )


def _compared(
    artifact: Artifact, rule: Best, grids: Sequence[pd.DataFrame], beside: Sequence[str]
) -> dict[str, Any]:
    """Of a rule's grids: `gaps`, by how much the last that was kept is ahead of the first that was
    dropped; `places` of the winners at reduced size, `last_kept` of them the last that was kept;
    `remarks`, what whole grids at full size say of them.
    """
    title, over = artifact.title_of, list(rule.over)
    lower = artifact.measures[rule.by].better == "lower"
    sign = -1.0 if lower else 1.0
    gaps, ranks, remarks, lasts = [], [], list[str](), 0
    for grid in grids:
        ranked = grid.sort_values("value", ascending=lower, kind="stable")
        rough, full, whole = (ranked[ranked["stage"] == one] for one in (REDUCED, FULL, WHOLE))
        tried = places(rough, over)
        kept, dropped = (rough[rough["kept"] == one]["value"] for one in (True, False))
        if len(kept) and len(dropped):
            gaps.append(sign * float(kept.iloc[-1] - dropped.iloc[0]))
        if len(full):
            ranks.append(1 + tried.index(places(full, over)[0]))
            lasts += ranks[-1] == len(full)
        if len(whole):
            first, other = (full if len(full) else whole).iloc[0], whole.iloc[0]
            where = ", ".join(title(first[one]) for one in beside if first[one] != "")
            lost, count = sign * (other["value"] - first["value"]), f"{len(full) + len(whole)}"
            if alone := sum(place not in tried for place in places(whole, over)):
                count += f" ({alone} of them run for this check alone)"
            found = f"the best of all {count} is the one that was found"
            if lost > 0:
                better = [f"{title(one)} {title(other[one])}" for one in over if other[one] != ""]
                found = f"another of the {count} is better by {lost:.3g} ({', '.join(better)})"
            remarks.append(f"{where}: {found}.")
    finite = [gap for gap in gaps if math.isfinite(gap)]
    return {
        "rule": rule,
        "gaps": finite,
        "places": ranks,
        "last_kept": lasts,
        "remarks": remarks,
    }
