"""What `dpfl run` prints when runs have ended: results, epsilons, failures, folders."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

from dpfl_cli.privacy.nominal import NOMINAL_SIGN
from dpfl_cli.simulation.store import CLAIMED

if TYPE_CHECKING:
    from dpfl_cli.simulation.execute import Outcome

EXIT_RUNS_FAILED = 3
COMMON = ("delta", "status", "dataset", "dp", "algorithm", "seed")  # what may be said once for all runs, in this order
LEFT = ("run", "algorithm", "dp", "dataset", "seed", "status")
SHOWN = ("accuracy", "relative_distance", "distance", "train_loss", "test_loss")
SETTINGS_SAID = 4  # of a grid, each with a line about colluding clients


def report_outcomes(outcomes: Sequence[Outcome], quiet: bool) -> int:
    """Prints a table of the runs and returns the exit code; the last line of a single run is its folder."""
    console = wide_console()
    if not quiet:
        print_results(console, [(outcome.record.config, outcome.record.result) for outcome in outcomes])
        for line in notes(outcomes):
            console.print(line, markup=False)
    drawn = [outcome.record for outcome in outcomes if outcome.status == "done"]
    if len({record.id for record in drawn}) > 1 and not quiet:
        from dpfl_cli.cli.compare import plot_comparison

        print(f"Plot: {plot_comparison(list({record.id: record for record in drawn}.values()))}")
    bad = [outcome for outcome in outcomes if outcome.status != "done"]
    if bad and len(outcomes) > 1:
        table = Table(title=f"{len(bad)} of {len(outcomes)} runs failed or diverged")
        for column in ("run", "status", "reason"):
            table.add_column(column)
        for outcome in bad:
            table.add_row(f"{outcome.plan.id} {outcome.plan.label}", outcome.status, outcome.reason or "")
        wide_console(stderr=True).print(table)
    elif bad:
        print(f"{bad[0].status}: {bad[0].reason}", file=sys.stderr)
    for folder in dict.fromkeys(outcome.record.folder for outcome in outcomes):
        print(folder)
    return EXIT_RUNS_FAILED if bad else 0


def wide_console(stderr: bool = False) -> Console:
    """A console that never cuts a table because the output is not a terminal."""
    console = Console(highlight=False, stderr=stderr)
    return console if console.is_terminal else Console(highlight=False, stderr=stderr, width=200)


def print_results(console: Console, runs: Sequence[tuple[dict[str, Any], dict[str, Any]]]) -> None:
    """Prints a table of runs from their (config, result), and below it what holds for all of them.

    Where the console is too narrow for a line a run, columns whose cells are all equal go below the table, then metrics are
    left out, the last first.
    """
    columns = _columns(runs)
    common: list[str] = []
    for name in (*COMMON, *reversed(_metrics([result for _, result in runs])[1:])):
        if _width(console, columns) <= console.width:
            break
        cells = columns.get(name, [])
        if name not in COMMON:
            del columns[name]
        elif cells and len(set(cells)) == 1:
            common.append(f"{name} {cells[0]}")
            del columns[name]
    console.print(_table(columns))
    if common:
        console.print(", ".join(common), markup=False)
    console.print(_caption([result["privacy"] for _, result in runs]), markup=False)
    reports = [result["privacy"] for _, result in runs]
    for line in (*_calibrations(reports), *_guarantees(reports)):
        console.print(line, markup=False)


def _columns(runs: Sequence[tuple[dict[str, Any], dict[str, Any]]]) -> dict[str, list[str]]:
    """Column -> one cell a run: what it was, metrics, epsilon."""
    columns = {
        "run": [result["id"] for _, result in runs],
        "algorithm": [_algorithm(config) for config, _ in runs],
        "dp": [config["dp"]["name"] for config, _ in runs],
        "dataset": [
            config["dataset"]["name"] + (" (stand-in)" if result["data"]["source"] == "standin" else "")
            for config, result in runs
        ],
        "seed": [str(result["seed"]) for _, result in runs],
    }
    for name in _metrics([result for _, result in runs]):
        columns[name] = [_number(result["metrics"].get("last", {}).get(name)) for _, result in runs]
    columns["epsilon"] = [epsilon_text(result["privacy"]) for _, result in runs]
    columns["delta"] = [f"{result['privacy']['delta']:g}" for _, result in runs]
    columns["status"] = [result["status"] for _, result in runs]
    return columns


def _table(columns: dict[str, list[str]]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in columns:
        table.add_column(name, justify="left" if name in LEFT else "right", no_wrap=name == "run")
    for cells in zip(*columns.values(), strict=True):
        table.add_row(*cells)
    return table


def _width(console: Console, columns: dict[str, list[str]]) -> int:
    """What the table takes where no cell is broken."""
    return Measurement.get(console, console.options.update(max_width=10_000), _table(columns)).maximum


def _caption(reports: Sequence[dict[str, Any]]) -> str:
    """Whose epsilon it is, under which relation, by which accountant, over how many releases."""
    private = [report for report in reports if report["trust"] != "none"]
    if not private:
        return "no privacy"
    parts = [
        "/".join(sorted({prefix + str(report[key]) + suffix for report in private}))
        for prefix, key, suffix in (
            ("per ", "unit", ""),
            ("", "relation", ""),
            ("", "trust", " trust"),
            ("", "accountant", " accountant"),
            ("", "releases", " releases"),
        )
    ]
    return f"epsilon: {', '.join(parts)}; tuning not included"


def _guarantees(reports: Sequence[dict[str, Any]]) -> list[str]:
    """Each guarantee that the runs have, once, with the number of its runs where they differ."""
    counts = Counter(report["guarantee"] for report in reports if "guarantee" in report)
    if len(counts) == 1:
        return [f"Guarantee: {next(iter(counts))}."]
    return [f"Guarantee of {count} of {len(reports)} runs: {text}." for text, count in counts.items()]


def _calibrations(reports: Sequence[dict[str, Any]]) -> list[str]:
    """What set the noise where it was not the run's accountant: each once, with the number of its runs where they differ."""
    counts = Counter(report["calibration"] for report in reports if "calibration" in report)
    if len(counts) == 1 and sum(counts.values()) == len(reports):
        return [f"Noise by {next(iter(counts))}."]
    return [f"Noise of {count} of {len(reports)} runs by {text}." for text, count in counts.items()]


def is_nominal(privacy: dict[str, Any]) -> bool:
    """Whether the target of a report is nominal: no theorem says that the noise meets it."""
    return str(privacy.get("calibration", "")).endswith(NOMINAL_SIGN)


def epsilon_number(value: float) -> str:
    """An epsilon to 4 decimals; from a million on, where it says no more than that, to 5 digits.

    >>> epsilon_number(15.658124), epsilon_number(500004264889.8)
    ('15.6581', '5.0000e+11')
    """
    return f"{value:.4f}" if value < 1e6 else f"{value:.4e}"


def is_claimed(privacy: dict[str, Any]) -> bool:
    """Whether the epsilon of a report is as a paper claims it, and not proved."""
    return privacy["epsilon"] is not None and str(privacy.get("guarantee", "")).startswith(CLAIMED)


def epsilon_remark(privacy: dict[str, Any]) -> str:
    """What an epsilon does not say of itself: that it is vacuous, only claimed, off its target; else empty."""
    if privacy["epsilon"] is None:
        return ""
    target = privacy.get("epsilon_target")
    missed = target is not None and abs(privacy["epsilon"] - target) > 1e-3 * target
    marks = {
        f"(nominal {target or 0:g})": is_nominal(privacy),
        f"(target {target or 0:g})": missed and not is_nominal(privacy),
        "(vacuous)": privacy["vacuous"],
        "(claimed)": is_claimed(privacy),
    }
    return " ".join(mark for mark, holds in marks.items() if holds)


def epsilon_text(privacy: dict[str, Any]) -> str:
    """Epsilon in a table cell: a number and what is to be said of it, or why there is none."""
    if privacy["epsilon"] is None:
        return str(privacy.get("epsilon_reason") or "none")
    return f"{epsilon_number(privacy['epsilon'])} {epsilon_remark(privacy)}".rstrip()


def notes(outcomes: Sequence[Outcome]) -> list[str]:
    """What has to be said beside the numbers."""
    lines = []
    cached = sum(outcome.cached for outcome in outcomes)
    if cached:
        which = "This run was" if len(outcomes) == 1 else f"{cached} of {len(outcomes)} runs were"
        lines.append(f"{which} finished before and not run again (runtime.force=true runs it again).")
    for outcome in outcomes if len(outcomes) == 1 else []:
        privacy = outcome.record.result["privacy"]
        if "epsilon_paper" in privacy and privacy["epsilon_paper"]["value"] is not None:
            stated = privacy["epsilon_paper"]
            lines.append(f"Under the paper's convention ({stated['convention']}) epsilon is {stated['value']:.4f}.")
    return lines + _repairs(outcomes) + _collusion_lines([outcome.record.result for outcome in outcomes])


def _repairs(outcomes: Sequence[Outcome]) -> list[str]:
    """That updates counted as zero because they were not finite: such a run ends like any other."""
    runs = {outcome.record.id: outcome.record for outcome in outcomes}
    counting = [record for record in runs.values() if "repaired" in record.result["metrics"].get("last", {})]
    mended = sum(any(row.get("repaired", 0) > 0 for row in record.rows) for record in counting)
    if not mended:
        return []
    which = "This run" if len(runs) == 1 else f"{mended} of {len(runs)} runs"
    return [f"{which} replaced updates that were not finite by zero, seen at evaluated rounds (column repaired of metrics.csv)."]


def _collusion_lines(results: Sequence[dict[str, Any]]) -> list[str]:
    """What colluding clients would see: a line for each setting that the runs differ in, the first few."""
    said: dict[str, None] = {}
    for result in results:
        privacy = result["privacy"]
        if "collusion" in privacy:
            line = collusion_text(privacy["collusion"], result["data"]["clients"])
            alone = len(results) == 1 or isinstance(privacy["collusion"], str) or privacy["epsilon"] is None
            said[line if alone else f"{line.removesuffix('.')} in place of {privacy['epsilon']:.4f}."] = None
    lines = list(said)
    if len(lines) > SETTINGS_SAID:
        left = len(lines) - SETTINGS_SAID
        lines[SETTINGS_SAID:] = [f"... and for {left} more setting{'s' if left > 1 else ''}: dpfl account RUN tells."]
    return lines


def collusion_text(collusion: str | list[dict[str, Any]], clients: int) -> str:
    """What the largest coalition would see, in one line."""
    if isinstance(collusion, str):
        return f"Colluding clients: {collusion}."
    if not collusion:
        return "Colluding clients: there is one client only."
    largest = collusion[-1]
    epsilon = "none" if largest["epsilon"] is None else f"{largest['epsilon']:.4f}"
    return f"Against {largest['colluding']} of {clients} colluding clients: epsilon {epsilon}."


def _algorithm(config: dict[str, Any]) -> str:
    chosen = config["algorithm"]
    variant = " (naive)" if chosen.get("step") == "naive" else " (control=none)" if chosen.get("control") == "none" else ""
    return f"{chosen['name']}{variant}"


def _metrics(results: Sequence[dict[str, Any]]) -> list[str]:
    present = {name for result in results for name in result["metrics"].get("last", {})}
    return [name for name in SHOWN if name in present][:3]


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"
