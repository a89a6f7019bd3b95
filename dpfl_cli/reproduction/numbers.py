"""The numbers of one group of runs: what finished runs report, and what plans know beforehand."""

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from dpfl_cli.config.errors import ConfigError, nearest
from dpfl_cli.privacy.accountants import accountant, price
from dpfl_cli.privacy.nominal import rounded_up
from dpfl_cli.privacy.views import CONVENTIONS
from dpfl_cli.reproduction.artifact import Artifact
from dpfl_cli.reproduction.facts import FACTS, facts_of
from dpfl_cli.reproduction.grid import Cell
from dpfl_cli.reproduction.measure import (
    Fact,
    Measure,
    Metric,
    Price,
    Where,
)
from dpfl_cli.reproduction.rows import PRIVACY, Row, fitting
from dpfl_cli.simulation.checked import checks_since
from dpfl_cli.simulation.results import paper_price, privacy_statement
from dpfl_cli.simulation.run_plan import Plan
from dpfl_cli.simulation.store import RunRecord

TUNING = "tuning not included"


def row_of(labels: Where, measure: str, value: float | None, **more: Any) -> Row:
    """A row; what it does not say is filled in by `framed`."""
    return {"seeds": 1, **labels, "measure": measure, "value": value, **more}


def numbers_of(
    artifact: Artifact,
    cells: Sequence[Cell],
    records: Mapping[str, RunRecord],
    names: Iterable[str],
) -> list[Row]:
    """The rows of these measures of cells with equal labels, seed by seed.

    Args:
      records: run id -> record, of the runs that ended.
    """
    rows: list[Row] = []
    labels, plan, seeds = cells[0].run.labels, cells[0].plan, {"seeds": len(cells)}
    ended = {one.seed: records[one.plan.id] for one in cells if one.plan.id in records}
    for name in names:
        measure = artifact.measures[name]
        if not applies(measure, labels):
            continue
        if isinstance(measure, Metric):
            rows += [
                {**row, **_stated(plan, record), **seeds}
                for seed, record in ended.items()
                for row in _measured(name, measure, labels, seed, record)
            ]
            if not ended and measure.at != "series":
                rows.append(row_of(labels, name, math.nan, **seeds, note="no run ended"))
        else:
            rows.append(_planned(name, measure, labels, plan))
    shown = {
        name: known_of(plan, path, f"artifact {artifact.name}: show.{name}")
        for name, path in artifact.show.items()
    }
    return [{**row, **shown} for row in rows]


def applies(measure: Measure, labels: Where) -> bool:
    """Whether runs with these labels have the measure, as far as is known before a choice."""
    return all(
        fitting(wanted)(labels.get(name, ""))
        for name, wanted in measure.where.items()
        if name not in ("best", "rank")
    )


def _measured(name: str, measure: Metric, labels: Where, seed: int, record: RunRecord) -> list[Row]:
    """The rows of one measure of one run; none where it does not report the metric."""
    diverged = record.status == "diverged"
    row = partial(row_of, labels, name, seed=seed, diverged=diverged)
    found = _reported(name, measure, record)
    if measure.at == "series":
        if not found and measure.absent is not None:
            found = {int(one["round"]): measure.absent for one in record.rows if one["round"] >= 1}
        return [
            row(value if math.isfinite(value) else _bad(measure), round=number)
            for number, value in sorted(found.items())
            if number in (measure.rounds or found)
        ]
    value = _single(measure, found, record)
    if value is None:
        return []
    if isinstance(value, str):
        return [row(math.nan, text=value)]
    skipped = isinstance(measure.at, int) and math.isnan(value) and not diverged
    return [row(value, note=f"round {measure.at} was not evaluated" if skipped else "")]


def _reported(name: str, measure: Metric, record: RunRecord) -> Any:
    """What a run reports of a metric: round -> value, with the metrics that are added to it, or one
    fact of result.json; {} where it reports nothing.
    """
    if "." not in measure.metric:
        series = record.series(measure.metric)
        for more in measure.plus:
            for number, value in record.series(more).items():
                if number in series:
                    series[number] += value
        return series
    node: Any = record.result
    for part in measure.metric.split("."):
        node = node.get(part, {}) if isinstance(node, Mapping) else {}
    if measure.at != "series" and not isinstance(node, Mapping):
        return node
    try:
        return {int(number): float(value) for number, value in node.items()}
    except (AttributeError, TypeError, ValueError):
        raise ConfigError(
            f"measure {name}: metric={measure.metric} leads to no mapping of rounds in "
            "result.json; timing.compute is one"
        ) from None


def _single(measure: Metric, found: Any, record: RunRecord) -> float | str | None:
    """The number (or text) of one run; None where it does not report the metric."""
    if isinstance(found, bool):
        return "yes" if found else "no"
    if isinstance(found, str | None):
        return found
    if not isinstance(found, Mapping):
        return float(found)
    if not found:
        return measure.absent
    diverged = record.status == "diverged"
    if diverged and measure.at in ("last", "final"):
        return _bad(measure)  # its last finite value is not where it went
    summary = {} if "." in measure.metric else record.result["metrics"]
    if measure.at in summary:
        known = summary[measure.at]
        value = known.get(measure.metric)
        more = sum(float(known.get(one, 0.0)) for one in measure.plus)
        return _bad(measure) if value is None else float(value) + more
    if isinstance(measure.at, int):
        value = found.get(measure.at, math.nan)
        return _bad(measure) if diverged and not math.isfinite(value) else value
    finite = [value for _, value in sorted(found.items()) if math.isfinite(value)]
    if not finite:
        return _bad(measure)
    ends = {"first": finite[0], "min": min(finite), "max": max(finite)}
    return ends.get(measure.at, finite[-1])


def _bad(measure: Measure) -> float:
    """What a diverged run counts as: infinitely bad, or unknown."""
    return {"lower": math.inf, "higher": -math.inf, None: math.nan}[measure.better]


def _stated(plan: Plan, record: RunRecord) -> Row:
    """What a run says of its privacy, and what a check of its plugins has found since; older ones
    count the data set in n, not what is dealt.
    """
    cells = privacy_cells(record.result["privacy"])
    counted, dealt = (f", n = {n} records:" for n in (plan.info.records, plan.records))
    guarantee = str(cells["guarantee"]).replace(counted, dealt)
    return cells | {"guarantee": "; ".join([guarantee, *checks_since(record)])}


def _planned(name: str, measure: Measure, labels: Where, plan: Plan) -> Row:
    if isinstance(measure, Fact):
        fact = partial(known_of, plan, where=f"measure {name}", labels=labels)
        known = measure.value(fact) if callable(measure.value) else fact(measure.value)
        if isinstance(known, int | float) and not isinstance(known, bool):
            return row_of(labels, name, float(known))
        return row_of(labels, name, math.nan, text=_text(known))
    assert isinstance(measure, Price)
    own = measure.accountant == "run"
    priced = (
        plan.accountant_object() if own else accountant(measure.accountant, dict(measure.options))
    )
    ledger, words = plan.ledger(), ""
    stated = privacy_statement(plan, ledger)
    if plan.dp.trust != "none":
        stated |= paper_price(plan, ledger)
    if measure.part == "convention":
        if plan.dp.convention is None:
            raise ConfigError(f"measure {name}: part=convention needs runs with dp.convention")
        ledger, words = CONVENTIONS[plan.dp.convention](ledger)
    found = price(ledger, priced, plan.dp.delta)
    value = found.epsilon
    if value is not None and measure.round_up is not None:
        value = rounded_up(value, measure.round_up)
    about = privacy_cells(stated) | {
        "epsilon": found.epsilon,
        "epsilon_reason": found.reason,
        "accountant": found.accountant,
        "releases": found.releases,
        "vacuous": found.vacuous,
    }
    if words:
        about["guarantee"] = f"covers {words} only, not the whole run"
    return row_of(labels, name, value, **about, note=found.reason or words)


def known_of(plan: Plan, path: str, where: str, labels: Where | None = None) -> Any:
    """A fact of a plan: a config key, clients, dimension, records, source, labels.*, ledger.*, or
    FACTS.
    """
    first = path.partition(".")[0]
    node: Any = {
        **plan.config,
        "clients": plan.clients,
        "dimension": plan.dimension,
        "records": plan.info.records,
        "source": plan.info.source,
        "labels": labels or {},
    }
    if first in FACTS:
        node[first] = facts_of(first, plan)
    elif first == "ledger":
        node["ledger"] = {
            one.name: {"count": one.count, "noise_multiplier": one.parameter, "rate": one.rate}
            for one in plan.ledger().entries
        }
    for part in path.split("."):
        if not isinstance(node, Mapping) or part not in node:
            near = nearest(part, list(node)) if isinstance(node, Mapping) else "it has no parts"
            raise ConfigError(f"{where}: {path}: nothing that a run knows; {near}")
        node = node[part]
    return node


def _text(fact: Any) -> str:
    if isinstance(fact, list | tuple):
        return ", ".join(str(one) for one in fact)
    return "none" if fact is None else str(fact)


def privacy_cells(report: Mapping[str, Any]) -> Row:
    """A result's privacy report as the columns PRIVACY; without a mechanism nothing is priced."""
    if report.get("trust") == "none":
        known = {name: report.get(name) for name in ("trust", "guarantee", "epsilon_reason")}
    else:
        items = [item for item in report.get("not_covered", []) if "tuning" not in item]
        uncovered = [TUNING, *(f"does not cover {item}" for item in items)]
        paper = report.get("epsilon_paper") or {}
        known = {
            **report,
            "epsilon_paper": paper.get("value"),
            "epsilon_paper_convention": paper.get("convention"),
            "not_covered": "; ".join(dict.fromkeys(uncovered)),
        }
    return {name: known.get(name) for name in PRIVACY}
