"""A rehearsal: an artifact's page from made-up numbers, so that what is mistyped is found before
anything runs: metrics' places, labels, measures, axes, and what claims ask for.
"""

import zlib
from collections.abc import Iterator
from dataclasses import replace
from itertools import accumulate, chain, groupby, islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from dpfl_cli.config.errors import ConfigError, DpflError, nearest
from dpfl_cli.config.identity import flat
from dpfl_cli.data.files import encoded
from dpfl_cli.reproduction.artifact import SCALES, Artifact
from dpfl_cli.reproduction.figure import canvas_of
from dpfl_cli.reproduction.folder import SEARCH, pages_of
from dpfl_cli.reproduction.grid import requests
from dpfl_cli.reproduction.numbers import applies
from dpfl_cli.reproduction.paper_numbers import check_numbers
from dpfl_cli.reproduction.reduce import rows_of_runs
from dpfl_cli.reproduction.rows import PSEUDO, check_values
from dpfl_cli.reproduction.search import Job
from dpfl_cli.reproduction.tables import label_of, to_csv
from dpfl_cli.simulation.execute import execute
from dpfl_cli.simulation.plan import make_plan, with_values
from dpfl_cli.simulation.run_plan import Plan
from dpfl_cli.simulation.store import RunRecord, RunStore, json_text

SHOWN, MORE = 25, 200  # rounds of a made-up curve, at first and where that is not enough
SEEDS = 2  # of every run, the first ones, are made up at first
TRIED = 3  # rounds of a trial run


def rehearse(job: Job) -> None:
    """Makes the artifact's rows, page, figure and verdicts from numbers that mean nothing.

    Names do not depend on how many seeds and rounds there are, but the code of a claim may (the
    value of round 50, or of seed 3): what fails with few of them is tried with more.

    Raises:
      ConfigError: something is mistyped, in one line with the nearest right name.
    """
    check_names(job.artifact)
    if not job.artifact.trains:
        return  # what is made from plans alone is made at once
    by_run = groupby(job.cells, key=lambda cell: cell.run)
    few = [cell for _, seeds in by_run for cell in islice(seeds, SEEDS)]
    try:
        _make(replace(job, cells=few), SHOWN)
    except DpflError:
        _make(job, MORE)


def _make(job: Job, shown: int) -> None:
    """All that is made of an artifact's runs, these being made up, in the way that it is made: from
    CSV files.
    """
    artifact = job.artifact
    records = {cell.plan.id: made_up(artifact, cell.plan, shown) for cell in job.cells}
    rows = rows_of_runs(artifact, job.cells, records, job.rows)
    manifest = json_text({"data": job.data, "tested_to": job.horizon, "gaps": []})
    files = encoded({**to_csv(rows), SEARCH: job.table, "manifest.json": manifest})
    rows, *_ = pages_of(artifact, files)
    if artifact.figures:
        canvas_of(artifact, rows)


def check_metrics(job: Job, store: RunStore) -> None:
    """Refuses metrics that no run reports, what is added to them too: those of finished runs are
    known, and what these lack is looked for in trial runs, one of each method and model, at the
    artifact's smallest size where it has them, for at most `TRIED` rounds in a store of their own.

    Raises:
      ConfigError: in one line with the nearest metric that is reported.
    """
    missing = {
        name
        for one in job.artifact.metrics
        if any(applies(one, cell.run.labels) for cell in job.cells)
        for name in (one.metric, *one.plus)
    }
    reported: set[str] = set()
    with TemporaryDirectory() as folder:
        finished = filter(None, (store.finished(cell.plan.id) for cell in job.cells))
        records = chain(finished, _tried(job, RunStore(Path(folder))))
        while not missing <= reported and (record := next(records, None)):
            reported |= _reported(record)
    for name in sorted(missing - reported) if reported else []:
        near = nearest(name, reported)
        raise ConfigError(f"artifact {job.artifact.name}: no run reports metric {name}; {near}")


def _reported(record: RunRecord) -> set[str]:
    """The metrics of a run, and all dotted paths into its result."""
    paths = chain.from_iterable(
        accumulate(path.split("."), "{}.{}".format) for path in flat(record.result)
    )
    return {*chain(*record.rows[:2]), *(path for path in paths if "." in path)}


def _tried(job: Job, store: RunStore) -> Iterator[RunRecord]:
    """The first run of every method and model, at the smallest size there is before these cells."""
    smallest = next(scale for scale in SCALES if scale in job.artifact.sizes)
    tried = set()
    for cell in chain(requests(job.artifact.at(smallest)), job.cells):
        config = cell.config()
        kind = config["algorithm"]["name"], config["model"]["name"]
        if kind not in tried:
            tried.add(kind)
            short = with_values(config, {"rounds": min(config["rounds"], TRIED)})
            (outcome,) = execute([make_plan(short)], store)
            if outcome.status != "failed":  # why is said when the artifact itself is run
                yield outcome.record


def check_names(artifact: Artifact) -> None:
    """Refuses labels, their values and measures that nothing defines, in measures, titles, tables,
    figures and choices.

    A label, or a value, of another scale only is known too.
    """
    labels, measures = list(artifact.choices), artifact.measure_names
    pseudo = [*labels, *PSEUDO]
    values = [one for many in artifact.choices.values() for one in many if isinstance(one, str)]
    names = {  # field -> what it names, and one of what
        "log": ("axis", ["x", "y", "colour"]),
        "over": ("label", labels),
        **dict.fromkeys(
            ("where", "per", "rows", "columns", "panels", "series", "y"), ("label", pseudo)
        ),
        "by": ("measure", list(artifact.measures)),
        **dict.fromkeys(("cells", "measures"), ("measure", measures)),
        "x": ("label or measure", [*pseudo, *measures]),
        "titles": ("label, value or measure", [*pseudo, *values, *measures]),
    }
    parts: dict[str, Any] = {
        "page": artifact,
        **{f"measure {name}": one for name, one in artifact.measures.items()},
        **{
            f"{kind}[{number}]": one
            for kind in ("best", "tables", "figures")
            for number, one in enumerate(getattr(artifact, kind))
        },
    }
    known = {"best": (True, False), "measure": measures, **artifact.choices}
    for place, part in parts.items():
        for field, (what, among) in names.items():
            given = getattr(part, field, None) or ()
            for name in [given] if isinstance(given, str) else given:
                if name not in among:
                    near = nearest(name, among)
                    raise ConfigError(f"{place}: {field}: no {what} '{name}'; {near}")
        try:
            check_values(getattr(part, "where", {}), known)
        except ConfigError as error:
            raise ConfigError(f"{place}: where: {error}") from None
    for rule in artifact.best:
        if artifact.measures[rule.by].better is None:
            raise ConfigError(
                f"measure {rule.by}: nobody knows whether more of it is better; say it, as "
                'better="higher"'
            )
    for number, figure in enumerate(artifact.figures):
        over = [label_of(one) for one in artifact.choices.get(figure.x, ())]
        if figure.kind == "lines" and over and all(isinstance(one, str) for one in over):
            raise ConfigError(f"figures[{number}]: x: {figure.x} {over[0]}: lines are over numbers")
        for name in figure.measures if figure.x == "round" else ():
            if getattr(artifact.measures.get(name), "at", "series") != "series":
                raise ConfigError(
                    f"figures[{number}]: x: round: measure {name} is not of every round; write "
                    'Metric(..., "series")'
                )
    check_numbers(artifact)


def made_up(artifact: Artifact, plan: Plan, shown: int = SHOWN) -> RunRecord:
    """A run that was not made: every metric that the artifact asks for, at about so many of the
    evaluated rounds, and those that it names.
    """
    draws = np.random.default_rng(zlib.crc32(plan.id.encode()))
    asked = artifact.metrics
    names = {name for one in asked for name in (one.metric, *one.plus)}
    every, alone = plan.evaluation.every, plan.evaluation.rounds
    step = every * max(1, plan.rounds // (shown * every))
    rounds = {0, every, *range(step, plan.rounds + 1, step), plan.rounds}
    rounds |= {at for one in asked for at in (*one.rounds, one.at) if isinstance(at, int)}
    rounds = rounds if alone is None else {0, *alone, plan.rounds}
    rows: list[dict[str, float]] = [
        {"round": number} | {name: float(draws.uniform(40, 60)) for name in sorted(names)}
        for number in sorted(rounds)
        if number <= plan.rounds
    ]
    result: dict[str, Any] = {
        "status": "done",
        "metrics": {"first": rows[0], "last": rows[-1], "final": rows[-1]},
        "privacy": {"trust": "none", "guarantee": "none: made up"},
    }
    for one in asked:
        if "." in one.metric:
            node = result
            *parents, last = one.metric.split(".")
            for part in parents:
                node = node.setdefault(part, {})
            curve = {str(row["round"]): row[one.metric] for row in rows}
            node.setdefault(last, curve if one.at == "series" else 50.0)
    record = RunRecord(plan.id, Path())
    record.__dict__.update(result=result, rows=rows, config=plan.config)
    return record
