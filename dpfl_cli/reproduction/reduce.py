"""From finished runs, or from plans alone, to the tidy table: means over seeds, best cells of grids, the paper's numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from dpfl_cli.config.errors import ConfigError
from dpfl_cli.privacy.accountants import accountant, price
from dpfl_cli.privacy.conventions import priced_part
from dpfl_cli.reproduction.attacks import attack_facts
from dpfl_cli.reproduction.declaration import BEST, RANK, ROUND, Artifact, Best, Measure, Where
from dpfl_cli.reproduction.expression import Untestable, compute, number_of
from dpfl_cli.reproduction.grid import Cell, Request
from dpfl_cli.reproduction.layers import layer_sizes
from dpfl_cli.reproduction.paper_numbers import PaperNumbers
from dpfl_cli.reproduction.problems import problem_facts
from dpfl_cli.reproduction.rows import PRIVACY, Row, Rows, rounded_up
from dpfl_cli.reproduction.sizes import size_facts
from dpfl_cli.reproduction.theory import theory_facts
from dpfl_cli.simulation.plan import Plan
from dpfl_cli.simulation.results import privacy_report
from dpfl_cli.simulation.store import RunRecord

TUNING = "tuning not included"
NONE_ENDED = "no run ended"


@dataclass(frozen=True)
class Group:
    """Runs that differ only in their seed, in order of seeds; a failed run is left out, though `seeds` counts it."""

    labels: Mapping[str, Any]
    plan: Plan
    records: Sequence[RunRecord]
    seeds: int


def reduce_runs(artifact: Artifact, cells: Sequence[Cell], records: Mapping[str, RunRecord]) -> Rows:
    """Rows of an artifact that trains.

    Args:
      records: run id -> record, of the runs that ended (done or diverged).
    """
    groups = _groups(cells, records)
    return _finished(
        artifact,
        lambda names, which: [row for group in groups if which(group.labels) for row in _of_group(artifact, group, names)],
    )


def _of_group(artifact: Artifact, group: Group, names: Iterable[str]) -> list[Row]:
    """The rows of these measures of one group."""
    extras = _extras(artifact, group.plan)
    wanted = {name: artifact.declaration.measures[name] for name in names}
    wanted = {name: measure for name, measure in wanted.items() if _applies(measure, group.labels)}
    if not group.records:
        return [
            Row(dict(group.labels), name, math.nan, n=0, seeds=group.seeds, note=NONE_ENDED, extras=extras)
            for name, measure in wanted.items()
            if not measure.is_series
        ]
    rows: list[Row] = []
    privacy = _worst([record.result["privacy"] for record in group.records]) if wanted else {}
    for name, measure in wanted.items():
        if measure.trains:
            found = [replace(row, privacy=privacy) for row in _measured(name, measure, group)]
        else:  # of the plan, which the seeds share
            found = [replace(_planned(name, measure, group.labels, group.plan), n=len(group.records))]
        rows += [replace(row, seeds=group.seeds, extras=extras) for row in found]
    return rows


def reduce_plans(artifact: Artifact, cells: Sequence[Cell]) -> Rows:
    """Rows of an artifact of prices and facts: nothing is trained."""

    def rows(names: Iterable[str], which: Callable[[Mapping[str, Any]], bool]) -> list[Row]:
        return [
            replace(_planned(name, measure, cell.labels, cell.plan), extras=_extras(artifact, cell.plan))
            for cell in cells
            if which(cell.labels)
            for name, measure in artifact.declaration.measures.items()
            if name in names and _applies(measure, cell.labels)
        ]

    return _finished(artifact, rows)


def reduce_layers(artifact: Artifact, asked: Sequence[Request]) -> Rows:
    """Rows of an artifact of layer sizes."""
    rows: list[Row] = []
    for request in asked:
        model = request.config()["model"]
        for layer in layer_sizes(model, tuple(artifact.declaration.input_shape), artifact.declaration.classes):
            labels = {**request.labels, "layer": layer.name, "output": "x".join(str(size) for size in layer.output)}
            for name, measure in artifact.declaration.measures.items():
                assert measure.layers is not None
                rows.append(Row(labels, name, float(getattr(layer, measure.layers))))
    return _finished(artifact, lambda names, which: [row for row in rows if row.measure in names and which(row.labels)])


def _applies(measure: Measure, labels: Mapping[str, Any]) -> bool:
    """Whether runs with these labels have the measure, as far as is known before a choice."""
    return Row(labels, "", 0.0).matches({name: wanted for name, wanted in measure.where.items() if name not in (BEST, RANK)})


def _groups(cells: Sequence[Cell], records: Mapping[str, RunRecord]) -> list[Group]:
    grouped: dict[tuple[tuple[str, Any], ...], list[Cell]] = {}
    for cell in cells:
        grouped.setdefault(tuple(cell.labels.items()), []).append(cell)
    return [
        Group(
            labels=dict(key),
            plan=members[0].plan,
            records=[records[cell.plan.id] for cell in sorted(members, key=lambda cell: cell.seed) if cell.plan.id in records],
            seeds=len(members),
        )
        for key, members in grouped.items()
    ]


# --- measures of runs -----------------------------------------------------------------------------------------------


def _measured(name: str, measure: Measure, group: Group) -> list[Row]:
    """The rows of one measure of one group; none where the runs do not report the metric."""
    assert measure.metric is not None
    if measure.is_series:
        return _series(name, measure, group)
    values = [_single(name, measure, record) for record in group.records]
    if all(value is None for value in values):
        return []
    texts = [value for value in values if isinstance(value, str)]
    if texts:
        return [Row(dict(group.labels), name, math.nan, n=len(values), diverged=_diverged(group), text=_text(_unique(texts)))]
    numbers = [math.nan if value is None else float(value) for value in values]
    row = _averaged(dict(group.labels), name, numbers, _diverged(group))
    if isinstance(measure.at, int) and math.isnan(row.value) and not row.diverged:
        row = replace(row, note=f"round {measure.at} was not evaluated")
    if measure.seeds == "mean" or math.isnan(row.value):
        return [row]
    return [replace(row, value=min(numbers) if measure.seeds == "min" else max(numbers), std=None)]


def _single(name: str, measure: Measure, record: RunRecord) -> float | str | None:
    """The number (or text) of one run; None where it does not report the metric."""
    metric = str(measure.metric)
    if "." in metric:
        node = _inside(record, metric)
        if not isinstance(node, Mapping):
            return _told(node, f"measures.{name}.metric={metric}")
    summary = record.result["metrics"]
    known = "." in metric or metric in summary.get("last", {}) or any(metric in row for row in record.rows)
    if not known:
        return measure.absent
    if record.status == "diverged" and measure.at in ("last", "final"):
        return _bad(measure)  # its last finite value is not where it went; what came before is as for any run
    if measure.at in ("first", "last", "final") and "." not in metric:
        found = summary.get(str(measure.at), {})
        value = found.get(metric)
        return _bad(measure) if value is None else float(value) + sum(float(found.get(more, 0.0)) for more in measure.plus)
    series = _rounds(name, measure, record)
    if isinstance(measure.at, int):
        if record.status == "diverged" and not math.isfinite(series.get(measure.at, math.nan)):
            return _bad(measure)
        return series.get(measure.at, math.nan)
    finite = [value for _, value in sorted(series.items()) if math.isfinite(value)]
    if not finite:
        return _bad(measure)
    window = int(record.config["evaluation"]["final_window"]) if measure.at == "final" else 1
    return {
        "first": finite[0],
        "last": finite[-1],
        "final": math.fsum(finite[-window:]) / len(finite[-window:]),
        "min": min(finite),
        "max": max(finite),
    }[str(measure.at)]


def _inside(record: RunRecord, path: str) -> Any:
    """What a dotted path into result.json leads to; None where it leads nowhere."""
    node: Any = record.result
    for part in path.split("."):
        node = node.get(part) if isinstance(node, Mapping) else None
    return node


def _told(node: Any, where: str) -> float | str | None:
    """A number or a text of result.json; a yes or no in words."""
    if isinstance(node, bool):
        return "yes" if node else "no"
    if node is None or isinstance(node, int | float | str):
        return node
    raise ConfigError(f"{where} leads to a {type(node).__name__} in result.json, not to a number")


def _unique(texts: Sequence[str]) -> Any:
    return texts[0] if len(set(texts)) == 1 else list(dict.fromkeys(texts))


def _rounds(name: str, measure: Measure, record: RunRecord) -> dict[int, float]:
    """Round -> value of a run's metric, with those that are added to it; empty where it is not reported."""
    metric = str(measure.metric)
    if "." in metric:
        node = _inside(record, metric)
        if node is None:
            return {}
        try:
            return {int(number): float(value) for number, value in node.items()}
        except (AttributeError, TypeError, ValueError):
            raise ConfigError(
                f"measures.{name}.metric={metric} leads to no mapping of rounds in result.json; timing.compute is one"
            ) from None
    series = dict(record.series(metric))
    for more in measure.plus:
        for number, value in record.series(more).items():
            if number in series:
                series[number] += value
    return series


def _bad(measure: Measure) -> float:
    """What a diverged run counts as: infinitely bad, or unknown."""
    return {"lower": math.inf, "higher": -math.inf, None: math.nan}[measure.better]


def _series(name: str, measure: Measure, group: Group) -> list[Row]:
    assert measure.metric is not None
    known = [_rounds(name, measure, record) for record in group.records]
    if not any(known):
        if measure.absent is None:
            return []
        known = [{int(row[ROUND]): measure.absent for row in record.rows if row[ROUND] >= 1} for record in group.records]
    rounds = sorted({number for series in known for number in series if not measure.rounds or number in measure.rounds})
    diverged = _diverged(group)
    rows = []
    for number in rounds:
        values = [series.get(number, math.nan) for series in known]
        values = [value if math.isfinite(value) else _bad(measure) for value in values]
        rows.append(_averaged({**group.labels, ROUND: number}, name, values, diverged))
    return rows


def _diverged(group: Group) -> int:
    return sum(record.status == "diverged" for record in group.records)


def _averaged(labels: Mapping[str, Any], name: str, values: Sequence[float], diverged: int) -> Row:
    """Mean and sample standard deviation over seeds."""
    finite = all(math.isfinite(value) for value in values)
    mean = math.fsum(values) / len(values) if finite else float(np.sum(values))
    std = float(np.std(values, ddof=1)) if finite and len(values) > 1 else None
    if len(values) > 1 and all(value == values[0] for value in values):
        std = 0.0  # not what rounding leaves of it
    return Row(labels, name, mean, std, len(values), diverged=diverged)


def _worst(reports: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The privacy of a group: that of its run with the largest epsilon (runs of public random length may differ)."""
    report = max(reports, key=lambda one: math.inf if one.get("epsilon") is None else float(one["epsilon"]))
    return privacy_cells(report)


def privacy_cells(report: Mapping[str, Any]) -> dict[str, Any]:
    """A result's privacy report as the columns PRIVACY."""
    stated = report.get("epsilon_paper") or {}
    flat = {**report, "epsilon_paper": stated.get("value"), "epsilon_paper_convention": stated.get("convention")}
    if report.get("trust") == "none":  # nothing is priced, so no accountant and no delta belongs to it
        flat |= dict.fromkeys(("epsilon", "delta", "accountant", "unit", "relation", "releases", "vacuous", "epsilon_paper"))
        return {**{name: flat.get(name) for name in PRIVACY}, "not_covered": []}
    uncovered = [f"does not cover {item}" for item in report.get("not_covered", []) if "tuning" not in item]
    return {**{name: flat.get(name) for name in PRIVACY}, "not_covered": list(dict.fromkeys([TUNING, *uncovered]))}


# --- measures of plans ----------------------------------------------------------------------------------------------


def facts(plan: Plan) -> dict[str, Any]:
    """What is known of a run before it starts: its config, clients, dimension and records (and see `problem_facts`)."""
    return {
        **plan.identity,
        "clients": plan.clients,
        "dimension": plan.dimension,
        "records": plan.info.records,
        "source": plan.info.source,
    }


def ledger_facts(plan: Plan) -> dict[str, Any]:
    """What its releases will be, by name: count, noise multiplier, and the share of the records that a batch holds."""
    return {
        entry.name: {"count": entry.count, "noise_multiplier": entry.parameter, "rate": entry.rate}
        for entry in plan.ledger().entries
    }


def _fact(plan: Plan, path: str, where: str) -> Any:
    known = {
        "problem": problem_facts,
        "attack": attack_facts,
        "ledger": ledger_facts,
        "theory": theory_facts,
        "sizes": size_facts,
    }
    first = path.partition(".")[0]
    node: Any = {first: known[first](plan)} if first in known else facts(plan)
    for part in path.split("."):
        if not isinstance(node, Mapping) or part not in node:
            raise ConfigError(f"{where}: {path}: nothing that a run knows; try clients, dimension, records or a config key")
        node = node[part]
    return node


def _text(fact: Any) -> str:
    """A fact that is no number, in words."""
    if isinstance(fact, list | tuple):
        return ", ".join(str(one) for one in fact)
    return "none" if fact is None else str(fact)


def _extras(artifact: Artifact, plan: Plan) -> dict[str, Any]:
    return {name: _fact(plan, path, f"artifact {artifact.name}: show.{name}") for name, path in artifact.declaration.show.items()}


def _planned(name: str, measure: Measure, labels: Mapping[str, Any], plan: Plan) -> Row:
    if measure.fact is not None:
        known = _fact(plan, measure.fact, f"measures.{name}")
        if isinstance(known, int | float):
            return Row(labels, name, float(known))
        return Row(labels, name, math.nan, text=_text(known))
    if measure.formula is not None:
        return Row(labels, name, compute(measure.formula, lambda path: _fact(plan, path, f"measures.{name}")))
    assert measure.price is not None
    priced = plan.accountant_object() if measure.price == "run" else accountant(measure.price, dict(measure.options))
    ledger, words = plan.ledger(), ""
    if measure.part == "convention":
        if plan.dp.convention is None:
            raise ConfigError(f"measures.{name}: part=convention needs a run with dp.convention, such as dp.convention=fedexp")
        ledger, words = priced_part(plan.dp.convention, ledger)
    found = price(ledger, priced, plan.dp.delta)
    value = math.nan if found.epsilon is None else found.epsilon
    if measure.round_up is not None and found.epsilon is not None:
        value = rounded_up(found.epsilon, measure.round_up)
    privacy = privacy_cells(privacy_report(plan, plan.ledger()))
    privacy |= {
        "epsilon": found.epsilon,
        "epsilon_reason": found.reason,
        "accountant": found.accountant,
        "releases": found.releases,
        "vacuous": found.vacuous,
    }
    if measure.part == "convention":
        privacy["guarantee"] = f"covers {words} only, not the whole run"
    return Row(labels, name, value, privacy=privacy, note=found.reason or words)


# --- best cells, the paper's numbers --------------------------------------------------------------------------------


def _finished(artifact: Artifact, reduced: Callable[[Iterable[str], Callable[[Mapping[str, Any]], bool]], list[Row]]) -> Rows:
    """All rows of an artifact: those that cells are chosen by, those of chosen cells, those derived from others.

    Args:
      reduced: the rows of measures with these names, of the runs whose labels pass.
    """
    measures, labels = artifact.declaration.measures, list(artifact.labels)
    of_all = [name for name, measure in measures.items() if not measure.of_chosen and measure.derived is None]
    of_chosen = [name for name, measure in measures.items() if measure.of_chosen]
    rows = reduced(of_all, lambda labels: True)
    choices = [_choice(artifact, rule, rows, labels) for rule in artifact.declaration.best]
    more = reduced(of_chosen, lambda labels: any(choice.has(labels) for choice in choices)) if of_chosen else []
    rows, more = [_marked(row, choices) for row in rows], [_marked(row, choices) for row in more]
    rows += [row for row in more if row.matches(measures[row.measure].where)]
    rows += [row for choice in choices for row in choice.added]
    for name, measure in measures.items():
        if measure.derived is not None:
            rows += _derived(artifact, name, measure, Rows(rows, labels))
    return Rows(beside_paper(artifact, rows), labels)


def beside_paper(artifact: Artifact, rows: Sequence[Row]) -> list[Row]:
    """The rows with the paper's numbers as they are declared now."""
    declared = artifact.declaration.paper_numbers
    numbers = PaperNumbers(artifact)

    def beside(row: Row) -> Row:
        found = numbers.find(row.measure, row.labels) if declared is not None and row.matches(declared.where) else None
        if found is None:
            return replace(row, paper=None, paper_std=None, paper_note="")
        return replace(row, paper=found.value, paper_std=found.std, paper_note=found.note)

    return [beside(row) for row in rows]


@dataclass(frozen=True)
class Choice:
    """What a `best` rule chose.

    Attributes:
      kept: the labels for whose every combination it chose separately.
      ranks: values of `kept`, values of `over` -> rank (1 is the best), and where on the edge of the grid it lies.
      added: rows best.<label>.
    """

    rule: Best
    kept: Sequence[str]
    ranks: Mapping[tuple[Any, ...], tuple[int, str]]
    added: Sequence[Row]

    def of(self, row: Row) -> tuple[int, str] | None:
        """Rank and edge of a row's cell; None where it was not chosen."""
        if not row.matches(self.rule.where):
            return None
        return self.ranks.get((*(row.get(name) for name in self.kept), *(row.get(name) for name in self.rule.over)))

    def has(self, labels: Mapping[str, Any]) -> bool:
        """Whether the runs with these labels are a chosen cell, at some round."""
        return tuple(labels.get(name, "") for name in (*self.kept, *self.rule.over) if name != ROUND) in self._cells

    @cached_property
    def _cells(self) -> set[tuple[Any, ...]]:
        names = (*self.kept, *self.rule.over)
        return {tuple(value for name, value in zip(names, key, strict=True) if name != ROUND) for key in self.ranks}


def _choice(artifact: Artifact, rule: Best, rows: Sequence[Row], labels: Sequence[str]) -> Choice:
    """Chooses the best cells; diverged ones never are."""
    measure = artifact.declaration.measures[rule.measure]
    sign = {"lower": 1.0, "higher": -1.0}[str(measure.better)]
    # points of series belong to the cell that one number chose, unless the choice is at rounds
    kept = [name for name in labels if name not in rule.over and name != RANK and (name != ROUND or measure.is_series)]
    candidates: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        if row.measure == rule.measure and row.matches(rule.where):
            candidates.setdefault(tuple(row.get(name) for name in kept), []).append(row)
    ranks: dict[tuple[Any, ...], tuple[int, str]] = {}
    added: list[Row] = []
    for key, found in candidates.items():
        finite = sorted((row for row in found if math.isfinite(row.value)), key=lambda row: sign * row.value)
        fewest = min(found, key=lambda row: row.n - row.seeds)  # a choice is as complete as the least complete cell
        for rank, winner in enumerate(finite[: rule.top], start=1):
            edges = {name: edge for name in rule.over if (edge := _edge(name, winner, found))}
            ranks[(*key, *(winner.get(name) for name in rule.over))] = (rank, "; ".join(edges.values()))
            rest = {name: value for name, value in winner.labels.items() if name not in rule.over}
            rest |= {RANK: rank} if rule.top > 1 else {}
            for name in rule.over:
                value = winner.get(name)
                if value == "":  # a label of another method's grid
                    continue
                note = "; ".join(part for part in ("edge of the grid" if name in edges else "", rule.note) if part)
                row = Row(rest, f"best.{name}", math.nan, n=fewest.n, seeds=fewest.seeds, best=rank == 1, note=note)
                plain = isinstance(value, int | float) and not isinstance(value, bool)
                row = replace(row, value=float(value)) if plain else replace(row, text=artifact.title_of(value))
                added.append(replace(row, edge=edges.get(name, "")))
    return Choice(rule, kept, ranks, added)


def _edge(name: str, winner: Row, found: Sequence[Row]) -> str:
    """Where the winner is at an end of a numeric axis with at least 2 values; "" elsewhere. Of 2 values either is an end."""
    values = {row.get(name) for row in found} - {""}
    if len(values) < 2 or not all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        return ""
    value = winner.get(name)
    ends = ("smaller", "larger") if len(values) == 2 else ("smallest", "largest")
    which = ends[0] if value == min(values) else ends[1] if value == max(values) else ""
    return f"{name}={value:g} ({which} of {len(values)})" if which else ""


def _marked(row: Row, choices: Sequence[Choice]) -> Row:
    """The row with what the rules chose: its rank where several are, and the grid's edge (of a series: at chosen rounds)."""
    for choice in choices:
        found = choice.of(row)
        if found is not None:
            rank, edge = found
            labels = {**row.labels, RANK: rank} if choice.rule.top > 1 else row.labels
            said = edge if ROUND not in row.labels or ROUND in choice.kept else ""
            row = replace(row, labels=labels, best=row.best or rank == 1, edge=said or row.edge)
    return row


# --- numbers from other rows ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Asked(Rows):
    """Rows that remember which of them were asked for."""

    asked: list[Row] = field(default_factory=list)

    def where(self, where: Where | Mapping[str, Any], measures: Iterable[str] | None = None) -> list[Row]:
        found = super().where(where, measures)
        self.asked.extend(found)
        return found


def _derived(artifact: Artifact, name: str, measure: Measure, rows: Rows) -> list[Row]:
    """The rows of a derived measure: one per combination of its labels; unknown, with the reason, where a number is missing."""
    assert measure.derived is not None
    found = [tuple(row.get(label) for label in measure.per) for row in rows.where(measure.where)]
    made = []
    for key in dict.fromkeys(found):
        if "" in key:
            continue
        labels = dict(zip(measure.per, key, strict=True))
        known = _Asked(rows.rows, rows.labels)
        try:
            value, note = number_of(measure.derived, known, labels), ""
        except Untestable as missing:
            value, note = math.nan, str(missing)
        except ConfigError as error:
            raise ConfigError(f"artifact {artifact.name}: measures.{name}.derived: {error}") from None
        fewest = min(
            known.asked, key=lambda row: row.n - row.seeds, default=Row({}, "", 0.0)
        )  # as complete as what it is made from
        best = measure.where.get(BEST) is True
        made.append(Row(labels, name, value, n=fewest.n, seeds=fewest.seeds, best=best, note=note))
    return made
