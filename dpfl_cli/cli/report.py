"""What `dpfl run` prints when runs have ended: results, epsilons, failures, folders."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from dpfl_cli.simulation.execute import Outcome

EXIT_RUNS_FAILED = 3
SHOWN = ("accuracy", "relative_distance", "distance", "train_loss", "test_loss")


def report_outcomes(outcomes: Sequence[Outcome], quiet: bool) -> int:
    """Prints a table of the runs and returns the exit code; the last line of a single run is its folder."""
    console = Console(highlight=False, soft_wrap=True)
    if not quiet:
        console.print(results_table([(outcome.record.config, outcome.record.result) for outcome in outcomes]))
        for line in notes(outcomes):
            console.print(line, markup=False)
    bad = [outcome for outcome in outcomes if outcome.status != "done"]
    if bad and len(outcomes) > 1:
        table = Table(title=f"{len(bad)} of {len(outcomes)} runs failed or diverged")
        for column in ("run", "status", "reason"):
            table.add_column(column)
        for outcome in bad:
            table.add_row(f"{outcome.plan.id} {outcome.plan.label}", outcome.status, outcome.reason or "")
        Console(stderr=True, highlight=False, soft_wrap=True).print(table)
    elif bad:
        Console(stderr=True, highlight=False, soft_wrap=True).print(f"{bad[0].status}: {bad[0].reason}", markup=False)
    for folder in dict.fromkeys(outcome.record.folder for outcome in outcomes):
        print(folder)
    return EXIT_RUNS_FAILED if bad else 0


def results_table(runs: Sequence[tuple[dict[str, Any], dict[str, Any]]]) -> Table:
    """A table of runs from their (config, result): what it was, metrics, epsilon with all that belongs to it."""
    metrics = _metrics([result for _, result in runs])
    table = Table()
    columns = (
        "run",
        "algorithm",
        "dp",
        "dataset",
        "seed",
        "round",
        *metrics,
        "epsilon",
        "delta",
        "accountant",
        "unit",
        "relation",
        "status",
    )
    for column in columns:
        table.add_column(column, justify="right" if column in (*metrics, "epsilon", "seed", "round") else "left")
    for config, result in runs:
        last = result["metrics"].get("last", {})
        privacy = result["privacy"]
        table.add_row(
            result["id"],
            _algorithm(config),
            config["dp"]["name"],
            config["dataset"]["name"] + (" (stand-in)" if result["data"]["source"] == "standin" else ""),
            str(result["seed"]),
            str(result["rounds"]),
            *[_number(last.get(name)) for name in metrics],
            epsilon_text(privacy),
            f"{privacy['delta']:g}",
            privacy["accountant"],
            privacy["unit"],
            privacy["relation"],
            result["status"],
        )
    return table


def epsilon_text(privacy: dict[str, Any]) -> str:
    """Epsilon in a table cell: a number, marked where it is vacuous, or why there is none."""
    if privacy["epsilon"] is None:
        return str(privacy.get("epsilon_reason") or "none")
    return f"{privacy['epsilon']:.4f}" + (" (vacuous)" if privacy["vacuous"] else "")


def notes(outcomes: Sequence[Outcome]) -> list[str]:
    """What has to be said beside the numbers."""
    lines = []
    cached = sum(outcome.cached for outcome in outcomes)
    if cached:
        which = "This run was" if len(outcomes) == 1 else f"{cached} of {len(outcomes)} runs were"
        lines.append(f"{which} finished before and not run again (runtime.force=true runs it again).")
    for outcome in outcomes if len(outcomes) == 1 else []:
        privacy = outcome.record.result["privacy"]
        lines.append(f"Privacy: {privacy['guarantee']}; {privacy['releases']} releases composed; tuning not included.")
        if "epsilon_paper" in privacy and privacy["epsilon_paper"]["value"] is not None:
            stated = privacy["epsilon_paper"]
            lines.append(f"The paper would state epsilon {stated['value']:.4f}: {stated['convention']}.")
    return lines


def _algorithm(config: dict[str, Any]) -> str:
    return str(config["algorithm"]["name"]) + (" (naive)" if config["algorithm"].get("step") == "naive" else "")


def _metrics(results: Sequence[dict[str, Any]]) -> list[str]:
    present = {name for result in results for name in result["metrics"].get("last", {})}
    return [name for name in SHOWN if name in present][:3]


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"
