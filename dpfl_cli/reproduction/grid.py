"""From an artifact to the runs that it asks for: labels, seed and plan of each."""

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import pandas as pd

from dpfl_cli.config.compose import composed
from dpfl_cli.config.errors import ConfigError, DpflError, nearest
from dpfl_cli.config.identity import flat, text_of
from dpfl_cli.reproduction.artifact import SEARCH_SEEDS, TRIAL, Artifact, Run
from dpfl_cli.reproduction.measure import Best, Where
from dpfl_cli.reproduction.rows import FIXED, PAPER, PRIVACY, is_number, matching
from dpfl_cli.simulation.plan import make_plan, with_values
from dpfl_cli.simulation.plugins import plugin_words
from dpfl_cli.simulation.run_plan import Plan

RESERVED = {*FIXED, *PAPER, *PRIVACY, "stage", "kept"}  # of what a search writes, the last two

FEW = 2  # numbers of a label in a trial
SMALL = {  # the largest values of a trial's configs
    "rounds": 10,
    "algorithm.local_steps": 5,
    "dataset.clients": 50,
    "dataset.records": 500,
    "dataset.records_per_client": 100,
    "dataset.test_records": 100,
    "dataset.train_records": 2000,
    "partitioner.clients": 20,
    "partitioner.own_class_records": 10,
    "partitioner.records_per_client": 10,
    "partitioner.uniform_records": 10,
}


@dataclass(frozen=True)
class Cell:
    """A run that an artifact needs, with one seed."""

    run: Run
    seed: int

    def config(self) -> dict[str, Any]:
        """The composed config."""
        values = {**self.run.values, "seed": self.seed}
        # a target is composed too: a mechanism's default noise, say, gives way to it
        target = [f"dp.epsilon={value}"] if (value := values.get("dp.epsilon")) is not None else []
        return with_values(composed(*target, *self.run.overrides), values)

    @cached_property
    def plan(self) -> Plan:
        """What it is planned to be.

        Raises:
          ConfigError, DataError: with the labels of the run in front.
        """
        try:
            return make_plan(self.config())
        except DpflError as error:
            raise type(error)(f"run {_words(self.run)}: {error}") from error


def with_seeds(artifact: Artifact, seeds: range | None) -> Artifact:
    """The same with other seeds than those that are declared, where any are asked for.

    Raises:
      ConfigError: there are none, or a search has some of them.
    """
    if seeds is None:
        return artifact
    if not seeds or seeds.step != 1 or not 0 <= seeds[0] <= seeds[-1] < SEARCH_SEEDS[0]:
        raise ConfigError(
            "seeds=…: say how many, 12 for 0 to 11, or which, 5-16; those from "
            f"{SEARCH_SEEDS[0]} on are a search's"
        )
    if not artifact.trains:
        return artifact
    size = artifact.size
    note = (
        f"Seeds {seeds[0]} to {seeds[-1]} were asked for, in place of the {len(size.which)} that "
        "are declared. Intervals are of 95 % where that was settled before any result was seen; "
        "what more seeds are to decide is best judged by new ones alone."
    )
    if size is not TRIAL:
        minutes = size.minutes * len(seeds) / len(size.which)
        size = replace(size, seeds=seeds, minutes=minutes)
    sizes = {**artifact.sizes, artifact.scale: size}
    return replace(artifact, sizes=sizes, notes=(*artifact.notes, note), asked=seeds)


def runs_of(artifact: Artifact) -> Iterable[Run]:
    """Its runs; a trial has few of them, and small ones."""
    found = artifact.declared or ()
    return map(_small, _few(found)) if artifact.size is TRIAL else found


def _few(runs: Iterable[Run]) -> Iterator[Run]:
    """Of runs with the same words in their labels, those with the first numbers there."""
    known = defaultdict[Any, dict[float, None]](dict)
    for run in runs:
        numbers = {name: value for name, value in run.labels.items() if is_number(value)}
        words = frozenset(run.labels.items() - numbers.items())
        for name, value in numbers.items():
            known[words, name].setdefault(value)
        if all(value in [*known[words, name]][:FEW] for name, value in numbers.items()):
            yield run


def _small(run: Run) -> Run:
    """With no value above its limit."""
    known = flat(Cell(run, 0).config())
    limits = ((key, most) for key, most in SMALL.items() if is_number(known.get(key)))
    return replace(run, values={**run.values, **{key: min(known[key], one) for key, one in limits}})


def requests(artifact: Artifact) -> list[Cell]:
    """The runs that an artifact asks for, in its order and once, each with every seed,
    not planned yet; the cells of a `Search` at reduced size with its first seed.

    Raises:
      ConfigError: no runs at all, a label with a reserved name or a value that is a list, or two
        runs with the same labels.
    """
    seen: dict[tuple[Any, ...], Run] = {}
    for run in runs_of(artifact):
        if not isinstance(run, Run):
            raise ConfigError(
                f"artifact {artifact.name}: runs: {run!r} is no run; yield Run(labels, overrides)"
            )
        lists = [name for name, one in run.labels.items() if not isinstance(one, Hashable)]
        if lists:
            raise ConfigError(
                f"artifact {artifact.name}: label {lists[0]}={run.labels[lists[0]]!r}: "
                "write a number or a text"
            )
        taken = sorted(RESERVED & set(run.labels))
        if taken:
            raise ConfigError(
                f"artifact {artifact.name}: a label cannot be called {taken[0]}, which is a column "
                "of table.csv or search.csv; rename it"
            )
        other = seen.setdefault(tuple(sorted(run.labels.items())), run)
        if other is not run and other != run:
            raise ConfigError(
                f"artifact {artifact.name}: two different runs ({_words(run)}); "
                "tell them apart by a label"
            )
    runs = list(seen.values())
    search = artifact.searched
    inside = _in_grids(artifact.best, search.where, runs) if search else set[int]()
    found: list[Cell] = []
    for number, run in enumerate(runs):
        if search and number in inside:
            reduced = search.reduced(run)
            if not isinstance(reduced, Mapping):
                raise ConfigError(
                    f"artifact {artifact.name}: search: reduced gives {reduced!r}; return config "
                    'values, as {"rounds": 3}'
                )
            values = {**run.values, **reduced}
            cheap = replace(run, values=values, exclusive=False)
            found.append(Cell(cheap, SEARCH_SEEDS[0]))
        else:
            found += [Cell(run, seed) for seed in artifact.seeds(run)]
    if not found:
        raise ConfigError(
            f"artifact {artifact.name}: no runs at scale={artifact.scale}; yield some, with seeds"
        )
    return found


def labelled(runs: Sequence[Run]) -> pd.DataFrame:
    """The labels of runs, a row each; "" where a run has not got one."""
    frame = pd.DataFrame([dict(run.labels) for run in runs], dtype=object)
    return frame.where(frame.notna(), "")


def _in_grids(rules: Sequence[Best], where: Where, runs: Sequence[Run]) -> set[int]:
    """Which runs have these labels and are in a grid of several cells."""
    frame, inside = labelled(runs), set[int]()
    labels = list(frame.columns)
    for rule in rules:
        for name in rule.over:
            if name not in labels:
                raise ConfigError(f"search: best: over: no label '{name}'; {nearest(name, labels)}")
        mine = matching(matching(frame, where), rule.where)
        beside = [name for name in labels if name not in rule.over] or (lambda row: 0)
        many = mine.groupby(beside, dropna=False)[rule.over[0]].transform("size") > 1
        inside |= set(mine.index[many])
    return inside


def cells(artifact: Artifact) -> list[Cell]:
    """The same, planned: everything is validated, and data are found, before anything runs."""
    found = requests(artifact)
    for cell in found:
        _ = cell.plan
    return found


def _words(run: Run) -> str:
    return " ".join(f"{name}={value}" for name, value in run.labels.items())


def commands(artifact: Artifact) -> Iterator[str]:
    """The `dpfl run` lines that an artifact's runs amount to, one a run, all its seeds in it; of a
    search those of its first stage, and in words what follows.
    """
    plugins = plugin_words() if artifact.paper is None else ""
    lines: dict[str, list[int]] = {}
    for one in requests(artifact):
        lines.setdefault(_words_of_command(one.run), []).append(one.seed)
    for words, seeds in lines.items():
        first, end = min(seeds), max(seeds) + 1
        ends = f"{first},{end}" if first else f"{end}"
        many = f"-m {words} 'seed=range({ends})'" if end - first > 1 else f"{words} seed={first}"
        yield f"dpfl run{plugins} {many}"
    if search := artifact.searched:
        low, high = SEARCH_SEEDS
        best, mine = "the best cell of each grid", artifact.size.which
        if search.keep > 1:
            these = "all" if search.finalists else "the best"
            best = (
                f"the best {search.keep} cells of each grid with seed={high}, and {these} of these"
            )
        small = f"what makes runs with seed={low} small ({search.note})"
        check = f"; as a check {len(search.whole)} grids as a whole with seed={high}"
        yield (
            f"# Then, without {small}: {best} with seeds {mine[0]} to {mine[-1]}, as "
            f"what is in no grid and what claims ask for{check if search.whole else ''}."
        )


def _words_of_command(run: Run) -> str:
    words = [one for one in run.overrides if one.split("=")[0] not in run.values]
    words += [f"{key}={text_of(value)}" for key, value in run.values.items()]
    return " ".join(f"'{word}'" if set(word) & set("[]{}(), *") else word for word in words)
