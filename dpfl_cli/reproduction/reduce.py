"""From finished runs, or from plans alone, to the tidy table: means over seeds, best cells of grids, the paper's numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dpfl_cli.config.errors import ConfigError
from dpfl_cli.privacy.accountants import accountant, price
from dpfl_cli.privacy.conventions import priced_part
from dpfl_cli.reproduction.declaration import ROUND, Artifact, Best, Measure
from dpfl_cli.reproduction.expression import compute
from dpfl_cli.reproduction.grid import Cell, Request
from dpfl_cli.reproduction.layers import layer_sizes
from dpfl_cli.reproduction.paper_numbers import PaperNumbers
from dpfl_cli.reproduction.problems import problem_facts
from dpfl_cli.reproduction.rows import PRIVACY, Row, Rows, rounded_up
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
    rows: list[Row] = []
    for group in _groups(cells, records):
        extras = _extras(artifact, group.plan)
        if not group.records:
            rows += [
                Row(dict(group.labels), name, math.nan, n=0, seeds=group.seeds, note=NONE_ENDED, extras=extras)
                for name, measure in artifact.declaration.measures.items()
                if _applies(measure, group.labels) and not measure.is_series
            ]
            continue
        privacy = _worst([record.result["privacy"] for record in group.records])
        for name, measure in artifact.declaration.measures.items():
            if _applies(measure, group.labels):
                if measure.trains:
                    found = [replace(row, privacy=privacy) for row in _measured(name, measure, group)]
                else:  # of the plan, which the seeds share
                    found = [replace(_planned(name, measure, group.labels, group.plan), n=len(group.records))]
                rows += [replace(row, seeds=group.seeds, extras=extras) for row in found]
    return _finished(artifact, rows)


def reduce_plans(artifact: Artifact, cells: Sequence[Cell]) -> Rows:
    """Rows of an artifact of prices and facts: nothing is trained."""
    rows: list[Row] = []
    for cell in cells:
        extras = _extras(artifact, cell.plan)
        for name, measure in artifact.declaration.measures.items():
            if _applies(measure, cell.labels):
                rows.append(replace(_planned(name, measure, cell.labels, cell.plan), extras=extras))
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
    return _finished(artifact, rows)


def _applies(measure: Measure, labels: Mapping[str, Any]) -> bool:
    return Row(labels, "", 0.0).matches(measure.where)


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
    values = [_single(measure, record) for record in group.records]
    if all(value is None for value in values):
        return []
    numbers = [math.nan if value is None else value for value in values]
    row = _averaged(dict(group.labels), name, numbers, _diverged(group))
    if measure.seeds == "mean" or math.isnan(row.value):
        return [row]
    return [replace(row, value=min(numbers) if measure.seeds == "min" else max(numbers), std=None)]


def _single(measure: Measure, record: RunRecord) -> float | None:
    """The number of one run; None where it does not report the metric."""
    metric = str(measure.metric)
    if "." in metric:
        node: Any = record.result
        for part in metric.split("."):
            node = node.get(part) if isinstance(node, Mapping) else None
        return None if node is None else float(node)
    summary = record.result["metrics"]
    known = metric in summary.get("last", {}) or any(metric in row for row in record.rows)
    if not known:
        return measure.absent
    if record.status == "diverged" and measure.at in ("last", "final"):
        return _bad(measure)  # its last finite value is not where it went; what came before is as for any run
    if measure.at in ("first", "last", "final"):
        found = summary.get(measure.at, {})
        value = found.get(metric)
        return _bad(measure) if value is None else float(value) + sum(float(found.get(more, 0.0)) for more in measure.plus)
    series = [value for value in _rounds(measure, record).values() if math.isfinite(value)]
    if not series:
        return _bad(measure)
    return min(series) if measure.at == "min" else max(series)


def _rounds(measure: Measure, record: RunRecord) -> dict[int, float]:
    """Round -> value of a run's metric, with those that are added to it; empty where it is not reported."""
    series = dict(record.series(str(measure.metric)))
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
    known = [_rounds(measure, record) for record in group.records]
    if not any(known):
        if measure.absent is None:
            return []
        known = [{int(row[ROUND]): measure.absent for row in record.rows if row[ROUND] >= 1} for record in group.records]
    rounds = sorted({number for series in known for number in series})
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


def _fact(plan: Plan, path: str, where: str) -> Any:
    node: Any = {"problem": problem_facts(plan)} if path.startswith("problem.") else facts(plan)
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


def _finished(artifact: Artifact, rows: list[Row]) -> Rows:
    labels = list(artifact.labels)
    for rule in artifact.declaration.best:
        rows = _with_best(artifact, rule, rows, labels)
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


def _with_best(artifact: Artifact, rule: Best, rows: list[Row], labels: Sequence[str]) -> list[Row]:
    """Marks the best cells, points of series included, and adds a row best.<label> for each label that was chosen.

    Diverged cells are never best.
    """
    better = artifact.declaration.measures[rule.measure].better
    if better is None:
        raise ConfigError(f"artifact {artifact.name}: best.measure={rule.measure}: say which is better, as better: lower")
    kept = [name for name in labels if name not in rule.over and name != ROUND]
    candidates: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        if row.measure == rule.measure and row.matches(rule.where):
            candidates.setdefault(tuple(row.get(name) for name in kept), []).append(row)
    chosen: set[tuple[Any, ...]] = set()
    added: list[Row] = []
    for key, found in candidates.items():
        finite = [row for row in found if math.isfinite(row.value)]
        if not finite:
            continue
        winner = (min if better == "lower" else max)(finite, key=lambda row: row.value)
        chosen.add((key, tuple(winner.get(name) for name in rule.over)))
        rest = {name: value for name, value in winner.labels.items() if name not in rule.over}
        for name in rule.over:
            value = winner.get(name)
            grid = sorted({row.get(name) for row in found})
            edge = len(grid) > 1 and value in (grid[0], grid[-1])
            note = "; ".join(part for part in ("edge of the grid" if edge else "", rule.note) if part)
            fewest = min(found, key=lambda row: row.n - row.seeds)  # a choice is as complete as the least complete cell
            added.append(Row(rest, f"best.{name}", float(value), n=fewest.n, seeds=fewest.seeds, best=True, note=note))
    marked = [
        replace(row, best=True)
        if row.matches(rule.where)
        and (tuple(row.get(name) for name in kept), tuple(row.get(name) for name in rule.over)) in chosen
        else row
        for row in rows
    ]
    return marked + added
