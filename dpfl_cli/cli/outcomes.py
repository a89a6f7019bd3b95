"""What `dpfl run` prints when runs have ended: results, epsilons, failures, folders."""

import sys
from collections.abc import Sequence

from dpfl_cli.cli.cautions import cautions
from dpfl_cli.cli.tables import collusion_text, print_results, print_table, wide_console
from dpfl_cli.privacy.nominal import epsilon_number
from dpfl_cli.simulation.checked import CHECKED
from dpfl_cli.simulation.execute import Outcome
from dpfl_cli.simulation.results import privacy_statement
from dpfl_cli.simulation.store import CLAIMED, MODEL

EXIT_RUNS_FAILED = 3
SETTINGS_SAID = 4  # of a grid, each with a line of its own


def report_outcomes(outcomes: Sequence[Outcome], quiet: bool) -> int:
    """Prints a table of the runs and returns the exit code; the last line of a single run is its
    folder, of a grid that of all runs, and if `quiet`, where no table has the ids, every folder.
    """
    if not quiet:
        console = wide_console()
        print_results(console, [outcome.record for outcome in outcomes], brief=True)
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
    folders = dict.fromkeys(outcome.record.folder for outcome in outcomes)
    if len(folders) > 1 and not quiet:
        folders = dict.fromkeys(folder.parent for folder in folders)
    print(*folders, sep="\n")
    return EXIT_RUNS_FAILED if bad else 0


def notes(outcomes: Sequence[Outcome]) -> list[str]:
    """What has to be said beside the numbers."""
    lines = []
    results = [outcome.record.result for outcome in outcomes]
    cached = sum(outcome.cached for outcome in outcomes)
    if cached:
        which = "This run was" if len(outcomes) == 1 else f"{cached} of {len(outcomes)} runs were"
        lines.append(f"{which} finished before: not run again (runtime.force=true does).")
        done = (one for one in outcomes if one.cached and one.plan.runtime.keep_model)
        if any(MODEL not in one.record.result["files"] for one in done):
            lines.append("Models were not kept then (runtime.force=true makes and keeps them).")
    stated = results[0]["privacy"].get("epsilon_paper") if len(results) == 1 else None
    if stated is not None and stated["value"] is not None:
        lines.append(
            f"Under the paper's convention ({stated['convention']}) epsilon is "
            f"{epsilon_number(stated['value'])}."
        )
    records = list({outcome.record.id: outcome.record for outcome in outcomes}.values())
    # what colluding clients would see, for each setting that the runs differ in
    seen = [f"{line}." for line in dict.fromkeys(map(collusion_text, results)) if line]
    left = len(seen) - SETTINGS_SAID
    if left > 0:
        seen[SETTINGS_SAID:] = [f"... and for {left} more settings: dpfl account RUN shows them."]
    return [*lines, *_of_today(outcomes), *_dealt(outcomes), *cautions(records), *seen]


def _of_today(outcomes: Sequence[Outcome]) -> list[str]:
    """What the guarantee of finished runs would be now: after a check of their plugins, or where
    dpfl no longer counts it as proved.
    """
    changed = []
    for one in outcomes:
        if one.cached and one.status == "done":
            own = any(getattr(one.plan, group).plugin for group in CHECKED)
            today = privacy_statement(one.plan, one.record.ledger)["guarantee"]
            stated = one.record.result["privacy"]["guarantee"]
            if today != stated and (own or (CLAIMED in today and CLAIMED not in stated)):
                since = "Since their check" if own else "By what dpfl knows now"
                changed.append(f"{since}: {today} (runtime.force=true notes it).")
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
