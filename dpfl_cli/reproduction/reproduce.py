"""Reproducing: gather the runs of all requested artifacts, check them, run what is missing, write
what can be written.
"""

import hashlib
import platform
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import torch

import dpfl_cli
from dpfl_cli.config.errors import AbsentData, AbsentGpu, DpflError
from dpfl_cli.data.devices import pick_device
from dpfl_cli.data.files import encoded
from dpfl_cli.reproduction.artifact import Artifact
from dpfl_cli.reproduction.audits import make_all
from dpfl_cli.reproduction.figure import draw
from dpfl_cli.reproduction.folder import (
    SEARCH,
    artifact_folder,
    pages_of,
    publish,
    read_folder,
)
from dpfl_cli.reproduction.grid import Cell
from dpfl_cli.reproduction.judge import Verdict, count_verdicts
from dpfl_cli.reproduction.measure import Fact
from dpfl_cli.reproduction.numbers import applies
from dpfl_cli.reproduction.reduce import edges_text, rows_of_runs
from dpfl_cli.reproduction.rehearse import check_metrics, made_up, rehearse
from dpfl_cli.reproduction.search import Job, search
from dpfl_cli.reproduction.tables import to_csv
from dpfl_cli.reproduction.verdict import FEWEST
from dpfl_cli.simulation.execute import Outcome, execute, execute_alone
from dpfl_cli.simulation.forecast import duration_text
from dpfl_cli.simulation.progress import Progress
from dpfl_cli.simulation.run_plan import Plan
from dpfl_cli.simulation.store import RunRecord, RunStore, json_text

# whether an artifact is left out whose data are not here, or the GPU that it needs; None: never
Without = Callable[[Artifact, AbsentData], bool] | None


@dataclass(frozen=True)
class Produced:
    """An artifact that was written.

    Attributes:
      gaps: runs that failed, one line each; empty where it is complete.
      edges: where chosen cells lie on the edge of their grid.
      kept: the folder holds a complete one from before, which this incomplete one did not replace.
    """

    job: Job
    folder: Path
    verdicts: Sequence[Verdict]
    gaps: Sequence[str]
    new: int
    edges: str
    kept: bool


def prepare(
    artifacts: Sequence[Artifact],
    store: RunStore,
    without: Without = None,
    quiet: bool = False,
) -> list[Job]:
    """Plans every run of every artifact that is known of, before anything runs.

    Args:
      without: asked of an artifact whose data are not here, or that takes too long without a GPU
        and is not finished: whether it is left out.

    Raises:
      ConfigError, DataError: the first run that cannot be made, with its artifact; or all are left
        out.
    """
    jobs: list[Job] = []
    absent: AbsentData | None = None
    with Progress("planning", len(artifacts), quiet) as progress:
        for done, artifact in enumerate(artifacts):
            progress.advance(bool(done), artifact.name)
            try:
                job = search(artifact, partial(_foreseen, artifact, store))
                rehearse(job)
            except DpflError as error:
                text = str(error)
                if not text.startswith("artifact "):
                    text = f"artifact {artifact.name}: {text}"
                if (
                    without
                    and isinstance(error, AbsentData)
                    and without(artifact, absent := AbsentData(text))
                ):
                    continue
                raise type(error)(text) from error
            if without and _needs_gpu(job, store):
                hours = artifact.size.minutes / 60
                absent = AbsentGpu(
                    f"{artifact.name}: without a GPU it takes about {hours:.0f} hours at "
                    f"scale={artifact.scale}; by its own name it is run here too"
                )
                if without(artifact, absent):
                    continue
            jobs.append(job)
    if absent is not None and not jobs:
        raise absent
    return jobs


def _needs_gpu(job: Job, store: RunStore) -> bool:
    """Whether it is to be run on a GPU and there is none."""
    slow = job.artifact.size.gpu and pick_device("auto").type == "cpu"
    return slow and not all(map(store.finished, job.plans))


def _foreseen(artifact: Artifact, store: RunStore, cells: Sequence[Cell]) -> dict[str, RunRecord]:
    """The runs that are finished, and made-up numbers for the others."""
    plans = [cell.plan for cell in cells]
    return {plan.id: store.finished(plan.id) or made_up(artifact, plan) for plan in plans}


def estimate(jobs: Sequence[Job], store: RunStore, force: bool = False) -> str:
    """How much is to be done, in one line; a run that several artifacts share counts once."""
    seen: set[str] = set()  # run for a job before, or finished
    minutes, missing, alone = 0.0, 0, 0
    for job in jobs:
        rest = set(job.plans) - seen - job.exclusive
        new = job.exclusive | {run for run in rest if force or store.finished(run) is None}
        seen |= new
        alone += len(job.exclusive)
        missing += len(new)
        work = {run: plan.work for run, plan in job.plans.items()}
        share = sum(work[run] for run in new) / sum(work.values()) if work else 1
        minutes += job.artifact.size.minutes * share
    total = len({run for job in jobs for run in job.plans})
    which = f"{len(jobs)} artifact{'s' if len(jobs) != 1 else ''}"
    where = f"{which} at scale={jobs[0].artifact.scale}"
    if total and not missing:
        return f"{where}: {total} runs, all finished"
    anew = f" ({alone} alone and anew, for their times)" if alone else ""
    work_left = f"{total} runs, {missing} to do{anew}" if total else "nothing to train"
    return f"{where}: {work_left}, about {duration_text(60 * minutes)} on two cores"


def produce(
    job: Job,
    store: RunStore,
    quiet: bool,
    repeated: set[str] | None,
) -> Produced:
    """Runs what an artifact misses, stage by stage where it searches, and its exclusive runs anew,
    and writes its folder.

    Args:
      repeated: as for `_executed`.
    """
    artifact = job.artifact
    outcomes: dict[str, Outcome] = {}

    def ended(cells: Sequence[Cell]) -> dict[str, RunRecord]:
        made = _executed(replace(job, cells=cells, stages=()), store, quiet, repeated)
        outcomes.update(made)
        return {run: one.record for run, one in made.items() if one.status != "failed"}

    if job.stages:
        job = search(artifact, ended, job.first)
    made = ended(job.cells)
    _audit(job, store.outputs, quiet)
    rows = rows_of_runs(artifact, job.cells, made, job.rows)
    edges = edges_text(artifact, rows)
    gaps = [
        f"run {run} ({outcome.plan.label}) failed: {outcome.reason}"
        for run, outcome in outcomes.items()
        if outcome.status == "failed"
    ]
    manifest = json_text(_manifest(job, outcomes, gaps, edges))
    search_csv = {SEARCH: job.table} if job.stages else {}
    files = encoded({**to_csv(rows), **search_csv, "manifest.json": manifest})
    rows, verdicts, pages = pages_of(artifact, files)
    folder = artifact_folder(store.outputs, artifact)
    new = sum(not outcome.cached for outcome in outcomes.values())
    kept = bool(gaps) and read_folder(folder).complete
    if not kept:
        publish(folder, {**files, **pages, **draw(artifact, rows)})
    return Produced(job, folder, verdicts, gaps, new, edges, kept)


def _executed(
    job: Job, store: RunStore, quiet: bool, repeated: set[str] | None
) -> dict[str, Outcome]:
    """The outcomes of its runs, by id.

    Args:
      repeated: the runs that have been forced already, which are added to; None: nothing is forced.
    """
    if not job.plans:
        return {}
    others = job.plans.keys() - job.exclusive
    forced = set[str]() if repeated is None else others - repeated

    def those(runs: Set[str]) -> list[Plan]:
        return [plan for run, plan in job.plans.items() if run in runs]

    rounds = sum(plan.last_round for plan in job.plans.values())
    with Progress(job.artifact.name, rounds, quiet=quiet) as progress:
        outcomes = [
            *execute(those(forced), store, progress, force=True),
            *execute(those(others - forced), store, progress),
            *execute_alone(those(job.exclusive), store, progress),
        ]
    if repeated is not None:  # a batch would cost those that were alone their times
        repeated |= forced | job.exclusive
    return {outcome.plan.id: outcome for outcome in outcomes}


def _audit(job: Job, outputs: Path, quiet: bool) -> None:
    """Makes the audits that measures are of, before rows ask for one after another."""
    asked = [
        one
        for one in job.artifact.measures.values()
        if isinstance(one, Fact) and str(one.value).startswith("audit.") and not one.of_chosen
    ]
    cells = [one for one in job.cells if any(applies(fact, one.run.labels) for fact in asked)]
    if cells:
        make_all(cells, outputs, job.artifact.name, quiet)


def _manifest(
    job: Job, outcomes: Mapping[str, Outcome], gaps: Sequence[str], edges: str
) -> dict[str, Any]:
    """What the artifact was made from; no dates, so that making it again gives the same file."""
    runs = [
        {
            "id": cell.plan.id,
            "labels": dict(cell.run.labels),
            "seed": cell.seed,
        }
        | _took(outcomes[cell.plan.id])
        | ({"exclusive": True} if cell.run.exclusive else {})
        for cell in chain(*job.stages, job.cells)
        if cell.plan.id in outcomes
    ]
    return {
        "artifact": job.artifact.name,
        "scale": job.artifact.scale,
        "complete": not gaps,
        "gaps": list(gaps),
        **({"edges": edges} if edges else {}),
        "declaration_sha256": hashlib.sha256(job.artifact.path.read_bytes()).hexdigest(),
        "runs_of": job.artifact.runs_of or job.artifact.name,
        "tested_to": job.horizon,
        "data": job.data,
        "versions": {
            "dpfl": dpfl_cli.__version__,
            "python": platform.python_version(),
            "numpy": np.__version__,
            "torch": torch.__version__,
            "matplotlib": mpl.__version__,
        },
        "runs": runs,
    }


def _took(outcome: Outcome) -> dict[str, Any]:
    """How a run ended, what it took when it was made, its share of what ran at once; and on which
    GPU.
    """
    result = outcome.record.result
    device = result.get("environment", {}).get("device", "cpu")
    seconds = round(result.get("timing", {}).get("seconds", 0.0), 4)
    took = {"status": outcome.status, "seconds": seconds}
    return took if device == "cpu" else {**took, "gpu": device}


def dry_run(
    artifacts: Sequence[Artifact],
    outputs: Path,
    quiet: bool = False,
    force: bool = False,
    without: Without = None,
) -> list[str]:
    """What a pass would run, an artifact a line with the stages of its search, and what all of it
    costs.
    """
    store, lines = RunStore(outputs), []
    jobs = prepare(artifacts, store, without, quiet)
    for job in jobs:
        price = estimate([job], store, force)
        if job.stages:
            reduced, full = map(len, job.stages)
            price = f"a search of {reduced} runs at reduced size, {full} at full size; {price}"
        lines.append(f"{job.artifact.name}: {job.horizon or 'nothing is trained'}; {price}")
    if len(jobs) > 1:
        lines.append(f"in all: {estimate(jobs, store, force)}")
    return [*lines, *_undecidable(jobs)]


def _undecidable(jobs: Sequence[Job]) -> Iterator[str]:
    """Of whose claims none can be decided, which is to be known before the runs are made."""
    few = [
        job.artifact.name
        for job in jobs
        if job.artifact.trains
        and job.artifact.claims
        and all(len(job.artifact.seeds(cell.run)) < FEWEST for cell in job.cells)
    ]
    if few:
        yield (
            f"too few seeds to decide a claim on runs, which takes {FEWEST} at least "
            f"(seeds={FEWEST}): {', '.join(few)}"
        )


def reproduce(
    artifacts: Sequence[Artifact],
    outputs: Path,
    quiet: bool = False,
    force: bool = False,
    without: Without = None,
) -> Iterator[Produced]:
    """Makes all artifacts, each written as soon as its runs are there, and yielded then.

    Args:
      quiet: without progress on standard error.
      without: as for `prepare`.

    Raises:
      ConfigError, DataError: before anything runs.
      StoreError: the outputs cannot be written.
    """
    store = RunStore(outputs)
    jobs = prepare(artifacts, store, without, quiet)
    store.prepare()
    for job in jobs:
        check_metrics(job, store)

    def say(line: str) -> None:
        if not quiet:
            print(line, file=sys.stderr, flush=True)

    for line in (estimate(jobs, store, force), *_undecidable(jobs)):
        say(line)
    repeated = set[str]() if force else None
    for number, job in enumerate(jobs, start=1):
        one = produce(job, store, quiet, repeated)
        say(f"[{number}/{len(jobs)}] {_line(one)}")
        yield one


def _line(one: Produced) -> str:
    runs = len(one.job.plans)
    parts = [f"{runs} runs ({one.new} new)"] if runs else ["no training"]
    if one.verdicts:
        parts.append(count_verdicts(one.verdicts))
    if one.edges:
        parts.append(f"best at the edge of the grid: {one.edges}")
    if one.gaps:
        more = f" and {len(one.gaps) - 1} more" if len(one.gaps) > 1 else ""
        parts.append(f"INCOMPLETE: {one.gaps[0]}{more}")
    if one.kept:
        parts.append("the complete one from before was kept")
    return f"{one.job.artifact.name}: {'; '.join(parts)}"
