"""Tables of runs, and how an epsilon is written wherever one is shown."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table

from dpfl_cli.cli.varying import (
    CHOICES,
    repetitions,
    settings_of,
    short_names,
    text_of,
    varying,
)
from dpfl_cli.privacy.nominal import NOMINAL_SIGN
from dpfl_cli.simulation.store import CLAIMED

# What may be said once for all runs where a table is too wide, in this order.
COMMON = ("delta", "status", "dataset", "dp", "algorithm", "seed")
LEFT = ("run", "algorithm", "dp", "dataset", "seed", "status", "settings")  # texts
SHOWN = ("accuracy", "relative_distance", "distance", "train_loss", "test_loss")
METRICS = 3  # of SHOWN, the first that the runs have
KNOWN = (*LEFT, *SHOWN, "seeds", "epsilon", "delta")  # columns that are not swept keys


def wide_console(stderr: bool = False) -> Console:
    """A console that never cuts a table because the output is not a terminal."""
    console = Console(highlight=False, stderr=stderr)
    return console if console.is_terminal else Console(highlight=False, stderr=stderr, width=200)


def make_table(
    columns: Iterable[str], rows: Iterable[Sequence[str]], title: str | None = None
) -> Table:
    """A table with lines around its cells."""
    table = Table(*columns, title=title)
    for row in rows:
        table.add_row(*row)
    return table


# --- epsilons -------------------------------------------------------------------------------------


def epsilon_number(value: float) -> str:
    """An epsilon to 4 decimals; from a million on, where it says no more than that, to 5 digits.

    >>> epsilon_number(15.658124), epsilon_number(500004264889.8)
    ('15.6581', '5.0000e+11')
    """
    return f"{value:.4f}" if value < 1e6 else f"{value:.4e}"


def is_nominal(privacy: dict[str, Any]) -> bool:
    """Whether the target of a report is nominal: no theorem says that the noise meets it."""
    return str(privacy.get("calibration", "")).endswith(NOMINAL_SIGN)


def is_claimed(privacy: dict[str, Any]) -> bool:
    """Whether the epsilon of a report is as a paper claims it, and not proved."""
    return privacy["epsilon"] is not None and str(privacy.get("guarantee", "")).startswith(CLAIMED)


def epsilon_remark(privacy: dict[str, Any]) -> str:
    """What an epsilon does not say of itself: that it is vacuous, only claimed, off its target;
    else empty.
    """
    if privacy["epsilon"] is None:
        return ""
    target = privacy.get("epsilon_target")
    missed = target is not None and abs(privacy["epsilon"] - target) > 1e-3 * target
    nominal = is_nominal(privacy)
    marks = {
        f"(nominal {target or 0:g})": nominal,
        f"(target {target or 0:g})": missed and not nominal,
        "(vacuous)": privacy["vacuous"],
        "(claimed)": is_claimed(privacy),
    }
    return " ".join(mark for mark, holds in marks.items() if holds)


def epsilon_text(privacy: dict[str, Any]) -> str:
    """Epsilon in a table cell: a number and what is to be said of it, or why there is none."""
    if privacy["epsilon"] is None:
        return str(privacy.get("epsilon_reason") or "none")
    return f"{epsilon_number(privacy['epsilon'])} {epsilon_remark(privacy)}".rstrip()


def collusion_text(collusion: str | list[dict[str, Any]], clients: int) -> str:
    """What the largest coalition would see, in one line."""
    if isinstance(collusion, str):
        return f"Colluding clients: {collusion}."
    if not collusion:
        return "Colluding clients: there is one client only."
    largest = collusion[-1]
    epsilon = "none" if largest["epsilon"] is None else f"{largest['epsilon']:.4f}"
    return f"Against {largest['colluding']} of {clients} colluding clients: epsilon {epsilon}."


# --- runs -----------------------------------------------------------------------------------------


def print_results(console: Console, runs: Sequence[tuple[dict[str, Any], dict[str, Any]]]) -> None:
    """Prints a table of runs from their (config, result), and below it what holds for all of them.

    Means over seeds follow where there are any. Where the console is too narrow for a line a run,
    columns whose cells are all equal go below the table, then metrics are left out, the last first,
    then the swept keys fold.
    """
    columns, means = _columns(runs)
    reports = [result["privacy"] for _, result in runs]
    common: dict[str, None] = {}
    for shown in (columns, means):
        if shown:
            table, left_out = _fitted(console, shown)
            if isinstance(table, str):
                console.out(table)
            else:
                console.print(table, crop=False)
            common |= dict.fromkeys(left_out)
    for line in (
        *([", ".join(common)] if common else []),
        _caption(reports),
        *_each(reports, "calibration", "Noise", " by "),
        *_each(reports, "guarantee", "Guarantee", ": "),
    ):
        console.print(line, markup=False)


def _columns(
    runs: Sequence[tuple[dict[str, Any], dict[str, Any]]],
) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """Column -> one cell a run: what it was, every key that varies, metrics, epsilon; and the same
    of the means over runs that differ by the seed alone, empty where none do.
    """
    last = [result["metrics"].get("last", {}) for _, result in runs]
    metrics = [name for name in SHOWN if any(name in values for values in last)][:METRICS]
    settings = [settings_of(config) for config, _ in runs]
    swept = {key: column for key, column in varying(settings).items() if key not in CHOICES}
    names = short_names(list(swept))
    whats = [
        {
            "algorithm": chosen["algorithm"],
            "dp": chosen["dp"],
            "dataset": chosen["dataset"]
            + (" (stand-in)" if result["data"]["source"] == "standin" else ""),
            **{names[key]: text_of(column[number]) for key, column in swept.items()},
        }
        for number, (chosen, (_, result)) in enumerate(zip(settings, runs, strict=True))
    ]
    worths = [
        {
            "epsilon": epsilon_text(result["privacy"]),
            "delta": f"{result['privacy']['delta']:g}",
        }
        for _, result in runs
    ]
    rows = [
        {
            "run": result["id"],
            **what,
            "seed": str(result["seed"]),
            **{name: _number(values.get(name)) for name in metrics},
            **worth,
            "status": result["status"],
        }
        for what, worth, (_, result), values in zip(whats, worths, runs, last, strict=True)
    ]
    means = []
    for group in repetitions(settings):
        done = [number for number in group if runs[number][1]["status"] == "done"]
        averages = {
            name: mean_text([last[i][name] for i in done if name in last[i]], len(group))
            for name in metrics
        }
        epsilons = dict.fromkeys(worths[number]["epsilon"] for number in group)
        worth = {**worths[group[0]], "epsilon": "; ".join(epsilons)}
        means.append({**whats[group[0]], "seeds": str(len(group)), **averages, **worth})
    return _turned(rows), _turned(means) if len(means) < len(runs) else {}


def _turned(rows: Sequence[dict[str, str]]) -> dict[str, list[str]]:
    return {name: [row[name] for row in rows] for name in rows[0]}


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def mean_text(values: Sequence[float], runs: int) -> str:
    """Mean ± standard deviation (ddof 1), and how many of the runs it is of where not of all.

    >>> mean_text([1.0, 2.0], 2), mean_text([1.0], 2)
    ('1.5 ± 0.71', '1 (1 of 2 runs)')
    """
    text = _number(statistics.fmean(values)) if values else "none"
    if len(values) > 1:
        text += f" ± {statistics.stdev(values):.2g}"
    return text if len(values) == runs else f"{text} ({len(values)} of {runs} runs)"


def _fitted(console: Console, columns: dict[str, list[str]]) -> tuple[Table | str, list[str]]:
    """A table with a line a row where the console is wide enough, and what was said once for all of
    its rows instead. In a narrower one the swept keys fold in one column; nothing is cut.

    Lines are a text of their own: rich takes 20 s for 5,000 of them.
    """
    common: list[str] = []
    metrics = [name for name in reversed(SHOWN) if name in columns][:-1]
    for name in (*COMMON, *metrics, ""):
        cells = [[name, *column] for name, column in columns.items()]
        widths = [max(map(cell_len, column)) for column in cells]
        if sum(widths) + 2 * len(widths) - 2 <= console.width:
            return _lines(columns, widths), common
        if name in metrics:
            del columns[name]
        elif name and name in columns and len(set(columns[name])) == 1:
            common.append(f"{name} {columns.pop(name)[0]}")
        elif not name:
            columns = _folded(columns)
    table = _table(columns)
    table.width = max(console.measure(table).minimum, console.width)
    return table, common


def _lines(columns: dict[str, list[str]], widths: Sequence[int]) -> str:
    """Columns as lines of text, each as wide as its widest cell."""
    padded = []
    for (name, column), width in zip(columns.items(), widths, strict=True):
        cells = [(cell, " " * (width - cell_len(cell))) for cell in (name, *column)]
        padded.append([cell + pad if name in LEFT else pad + cell for cell, pad in cells])
    head, *rows = ["  ".join(cells).rstrip() for cells in zip(*padded, strict=True)]
    return "\n".join([head, "─" * (sum(widths) + 2 * len(widths) - 2), *rows, ""])


def _folded(columns: dict[str, list[str]]) -> dict[str, list[str]]:
    """All swept keys in one column."""
    swept = [name for name in columns if name not in KNOWN]
    if not swept:
        return columns
    cells = zip(*(columns[name] for name in swept), strict=True)
    words = [
        " ".join(f"{name}={one}" for name, one in zip(swept, row, strict=True)) for row in cells
    ]
    kept = {name: column for name, column in columns.items() if name in KNOWN}
    return {**kept, "settings": words}


def _table(columns: dict[str, list[str]]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name, cells in columns.items():
        longest = max(len(word) for cell in cells for word in [*cell.split(), ""])
        table.add_column(
            name,
            justify="left" if name in LEFT else "right",
            no_wrap=name == "run",
            overflow="fold",
            min_width=longest,
        )
    for row in zip(*columns.values(), strict=True):
        table.add_row(*row)
    return table


def _caption(reports: Sequence[dict[str, Any]]) -> str:
    """Whose epsilon it is, under which relation, by which accountant, over how many releases."""
    private = [report for report in reports if report["trust"] != "none"]
    if not private:
        return "no privacy"
    forms = ("per {unit}", "{relation}", "{trust} trust", "{accountant} accountant")
    parts = [
        "/".join(sorted({form.format(**report) for report in private}))
        for form in (*forms, "{releases} releases")
    ]
    return f"epsilon: {', '.join(parts)}; tuning not included"


def _each(reports: Sequence[dict[str, Any]], key: str, word: str, joint: str) -> list[str]:
    """Each text that reports have under a key, once, with the number of its runs where they
    differ.
    """
    counts = Counter(report[key] for report in reports if key in report)
    return [
        f"{word}{'' if count == len(reports) else f' of {count} of {len(reports)} runs'}"
        f"{joint}{text}."
        for text, count in counts.items()
    ]
