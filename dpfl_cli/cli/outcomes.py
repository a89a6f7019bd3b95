"""What `dpfl run` prints when runs have ended: results, epsilons, failures, folders."""

import sys
from collections.abc import Sequence
from math import inf
from typing import Any

from dpfl_cli.cli.tables import (
    collusion_text,
    epsilon_number,
    print_results,
    print_table,
    wide_console,
)
from dpfl_cli.config.component import UNLIMITED
from dpfl_cli.simulation.execute import Outcome
from dpfl_cli.simulation.store import MODEL

EXIT_RUNS_FAILED = 3
LOSSES = ("relative_distance", "train_loss")  # the first that a run has is looked at
SETTINGS_SAID = 4  # of a grid, each with a line of its own


def report_outcomes(outcomes: Sequence[Outcome], quiet: bool) -> int:
    """Prints a table of the runs and returns the exit code; the last line of a single run is its
    folder.
    """
    if not quiet:
        console = wide_console()
        print_results(console, [outcome.record for outcome in outcomes])
        for line in notes(outcomes):
            console.print(line)
        done = {one.record.id: one.record for one in outcomes if one.status == "done"}
        if len(done) > 1:
            from dpfl_cli.cli.compare import plot_comparison

            print(f"Plot: {plot_comparison(list(done.values()))}")
    bad = [outcome for outcome in outcomes if outcome.status != "done"]
    if bad and len(outcomes) > 1:
        rows = [(f"{one.plan.id} {one.plan.label}", one.status, one.reason or "") for one in bad]
        title = f"{len(bad)} of {len(outcomes)} runs failed or diverged"
        print_table(("run", "status", "reason"), rows, title, stderr=True)
    elif bad:
        print(f"{bad[0].status}: {bad[0].reason}", file=sys.stderr)
    for folder in dict.fromkeys(outcome.record.folder for outcome in outcomes):
        print(folder)
    return EXIT_RUNS_FAILED if bad else 0


def notes(outcomes: Sequence[Outcome]) -> list[str]:
    """What has to be said beside the numbers."""
    lines = []
    results = [outcome.record.result for outcome in outcomes]
    cached = sum(outcome.cached for outcome in outcomes)
    if cached:
        which = "This run was" if len(outcomes) == 1 else f"{cached} of {len(outcomes)} runs were"
        lines.append(f"{which} finished before and not run again (runtime.force=true does).")
        done = (one for one in outcomes if one.cached and one.plan.runtime.keep_model)
        if any(MODEL not in one.record.result["files"] for one in done):
            lines.append("Models were not kept then (runtime.force=true keeps them).")
    stated = results[0]["privacy"].get("epsilon_paper") if len(results) == 1 else None
    if stated is not None and stated["value"] is not None:
        lines.append(
            f"Under the paper's convention ({stated['convention']}) epsilon is "
            f"{epsilon_number(stated['value'])}."
        )
    beside = _of_today, _dealt, _repairs, _worse, _limits
    return [*lines, *(line for told in beside for line in told(outcomes)), *_collusions(results)]


def _of_today(outcomes: Sequence[Outcome]) -> list[str]:
    """What the guarantee of finished runs with plugins would be now, after a check of these."""
    from dpfl_cli.simulation.checked import CHECKED
    from dpfl_cli.simulation.results import privacy_statement

    changed = []
    for one in outcomes:
        own = any(getattr(one.plan, group).plugin for group in CHECKED)
        if one.cached and own and one.status == "done":
            today = privacy_statement(one.plan, one.record.ledger)["guarantee"]
            if today != one.record.result["privacy"]["guarantee"]:
                changed.append(f"Since their check: {today} (runtime.force=true notes it).")
    return [*dict.fromkeys(changed)][:SETTINGS_SAID]


def _dealt(outcomes: Sequence[Outcome]) -> list[str]:
    """What a partitioner leaves out, or does to the clients that data come with: its defaults may
    be others than a user thinks.
    """
    lines = []
    distinct = {
        f"{one.plan.partitioner!r} {one.plan.info!r}": one
        for one in outcomes
        if one.status != "failed"
    }
    for one in distinct.values():
        info, name = one.plan.info, one.plan.partitioner.name
        if (held := one.record.dealt) < info.records:
            lines.append(f"partitioner={name} deals {held:,} of {info.records:,} records.")
        if info.clients is not None and name != "natural":
            lines.append(
                f"The records come with {info.clients:,} clients, and partitioner={name} deals "
                f"them anew to {one.plan.clients:,} others (partitioner=natural keeps theirs)."
            )
    return [*dict.fromkeys(lines)][:SETTINGS_SAID]


def _limits(outcomes: Sequence[Outcome]) -> list[str]:
    """That methods which are compared have unlike limits (clip norms), which may decide between
    them.
    """
    found: dict[str, dict[str, set[float]]] = {}
    for one in outcomes:
        settings = one.plan.algorithm.settings
        for name, field in type(settings).model_fields.items():
            if UNLIMITED in field.metadata and (limit := getattr(settings, name)) is not None:
                found.setdefault(name, {}).setdefault(one.plan.algorithm.name, set()).add(limit)
    lines = []
    for name, limits in found.items():
        if len({frozenset(values) for values in limits.values()}) > 1:
            each = (
                f"{' '.join(f'{value:g}' for value in sorted(values))} of {method}"
                for method, values in limits.items()
            )
            lines.append(f"Methods differ in algorithm.{name}: {', '.join(each)}.")
    return lines


def _repairs(outcomes: Sequence[Outcome]) -> list[str]:
    """That updates counted as zero because they were not finite: such a run ends like any other."""
    runs = {outcome.record.id: outcome.record for outcome in outcomes}
    mended = sum(any(row.get("repaired", 0) > 0 for row in record.rows) for record in runs.values())
    if not mended:
        return []
    which = "This run" if len(runs) == 1 else f"{mended} of {len(runs)} runs"
    return [
        f"{which} replaced updates that were not finite by zero, seen at evaluated rounds "
        "(column repaired of metrics.csv)."
    ]


def _worse(outcomes: Sequence[Outcome]) -> list[str]:
    """That private runs ended further from what they look for than they began, as they do where
    noise is too large: nothing else says so beside one number.
    """
    done = {one.record.id: one.record for one in outcomes if one.status == "done"}
    private = [one for one in done.values() if one.result["privacy"]["trust"] != "none"]
    ways: dict[str, list[tuple[float, float]]] = {}  # by the first of LOSSES that a run has
    for rows in (record.rows for record in private if record.rows):
        name = next((one for one in LOSSES if one in rows[0]), None)
        if name and rows[0]["round"] == 0:
            last = rows[-1].get(name, inf)  # no cell: not finite
            ways.setdefault(name, []).append((rows[0][name], last))
    lines = []
    for name, both in ways.items():
        worse = [(first, last) for first, last in both if last > first]
        if worse:
            first, last = max(worse, key=lambda way: way[1] - way[0])
            which = "" if len(both) == 1 else f" in {len(worse)} of {len(both)} runs"
            lines.append(
                f"{name} ends above where it began{which} ({first:.4g}, then {last:.4g}): too much "
                "noise, or too large steps."
            )
    return lines


def _collusions(results: Sequence[dict[str, Any]]) -> list[str]:
    """What colluding clients would see: a line for each setting that the runs differ in, the first
    few.
    """
    lines = [f"{line}." for line in dict.fromkeys(map(collusion_text, results)) if line]
    left = len(lines) - SETTINGS_SAID
    if left > 0:
        lines[SETTINGS_SAID:] = [f"... and for {left} more settings: dpfl account RUN shows them."]
    return lines
