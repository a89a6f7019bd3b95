"""Tables of runs, and how an epsilon is written wherever one is shown."""

import math
import re
import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Console

from dpfl_cli.cli.columns import table_lines
from dpfl_cli.cli.selection import CHOICES, cell_of, repetitions, settings_of, short_names, varying
from dpfl_cli.privacy.nominal import NOMINAL_SIGN, epsilon_number
from dpfl_cli.simulation.checked import checks_since, failed_since
from dpfl_cli.simulation.store import CLAIMED, LARGE_DELTA, MODEL, RunRecord

# What is said once where it is equal for all runs.
COMMON = ("algorithm", "dp", "dataset", "seed", "delta", "status")
TextRow = dict[str, str]  # column -> cell
Report = dict[str, Any]  # on the privacy of a run, of its result.json
SHOWN = ("accuracy", "relative_distance", "distance", "train_loss", "test_loss")
CELL = 40  # letters of a reason that a cell can hold
METRICS = 3  # of SHOWN, the first that the runs have
FEW = 20  # runs that have a line each beside their means
BELOW = {  # key of reports -> how each of its texts is told once, of which runs where they differ
    "participation": "Participation{}: {}.",
    "batches": "Batches{}: {}.",
    "stopped": "Stopped{} {}.",
    "calibration": "Noise{} by {}.",
    "guarantee": "Guarantee{}: {}.",
    "epsilon_reason": "No epsilon{}: {}.",
}
FLOAT = re.compile(r"=-?\d+(\.\d+(e[-+]?\d+)?|e[-+]?\d+)")


def wide_console(stderr: bool = False) -> Console:
    """A console that neither breaks nor cuts a line because the output is not a terminal."""
    console = Console(highlight=False, emoji=False, markup=False, stderr=stderr)
    if not console.is_terminal:
        console.width = 10_000
    return console


def print_table(
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    title: str | None = None,
    stderr: bool = False,
) -> None:
    """Prints a table below its title."""
    console = wide_console(stderr)
    lines = table_lines(columns, rows, console.width)
    console.out("\n".join([title, *lines] if title else lines))


# --- epsilons -------------------------------------------------------------------------------------


def is_nominal(privacy: Report) -> bool:
    """Whether the target of a report is nominal: no theorem says that the noise meets it."""
    return privacy.get("calibration", "").endswith(NOMINAL_SIGN)


def is_claimed(privacy: Report) -> bool:
    """Whether the epsilon of a report is as a paper claims it, and not proved."""
    return privacy["epsilon"] is not None and privacy["guarantee"].startswith(CLAIMED)


def some_claimed(records: Iterable[RunRecord]) -> bool:
    """Whether the epsilon of one of some runs is only claimed, or its plugin failed its check."""
    return any(is_claimed(one.result["privacy"]) or failed_since(one) for one in records)


def epsilon_remark(privacy: Report) -> str:
    """What an epsilon does not say of itself: that it is vacuous, only claimed, off its target, or
    at a delta that means nothing; else empty.
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
        "(delta >= 1/n)": LARGE_DELTA in privacy["guarantee"],
    }
    return " ".join(mark for mark, holds in marks.items() if holds)


def epsilon_text(privacy: Report) -> str:
    """Epsilon in a table cell: a number and what is to be said of it, or why there is none."""
    if privacy["epsilon"] is None:
        return str(privacy.get("epsilon_reason") or "none")
    return f"{epsilon_number(privacy['epsilon'])} {epsilon_remark(privacy)}".rstrip()


def collusion_text(result: dict[str, Any]) -> str:
    """What the largest coalition would see of a run, in one line; empty where that is no
    question.
    """
    privacy, clients = result["privacy"], result["data"]["clients"]
    found = privacy.get("collusion")
    if isinstance(found, str) or not found:
        return f"Colluding clients: {found}" if found else ""
    worth, plain = epsilon_number(found[-1]["epsilon"]), epsilon_number(privacy["epsilon"])
    who = f"{found[-1]['colluding']} of {clients} colluding clients"
    return f"Against {who}: epsilon {worth} in place of {plain}"


# --- runs -----------------------------------------------------------------------------------------


def print_results(
    console: Console, records: Sequence[RunRecord], means: bool = True, brief: bool = False
) -> None:
    """Prints a table of runs, and below it what holds for all of them.

    Means over seeds follow where there are any, unless `means` is False; if `brief`, in place of
    more than `FEW` runs.
    """
    rows, averages = _rows(records)
    brief = brief and bool(averages) and len(rows) > FEW
    common = {name: rows[0][name] for name in COMMON if len({row[name] for row in rows}) == 1}
    for table in ([] if brief else [rows]) + ([averages] if means and averages else []):
        shown = [{name: row[name] for name in row if name not in common} for row in table]
        cells = [list(row.values()) for row in shown]
        console.out("\n".join([*table_lines(list(shown[0]), cells, console.width), ""]))
    if brief:
        console.print(f"Means of {len(rows)} runs; dpfl runs list shows each.")
    for line in (
        ", ".join(f"{name} {cell}" for name, cell in common.items()),
        *privacy_of(records),
    ):
        console.print(line)


def privacy_of(records: Sequence[RunRecord]) -> list[str]:
    """What stands below every table of runs: whose epsilon it is, and by what."""
    reports = [record.result["privacy"] for record in records]
    told = [{**report, "epsilon_reason": _long(report)} for report in reports]
    lines = [_caption(reports)]
    for key, form in BELOW.items():
        alike = defaultdict[str, list[str]](list)
        for text in (report[key] for report in told if report.get(key)):
            # one command to check a plugin where they differ in numbers that are the same to it
            alike[FLOAT.sub("=", text) if "dpfl check" in text else text].append(text)
        for texts in alike.values():
            of = "" if len(texts) == len(told) else f" of {len(texts)} of {len(told)} runs"
            lines.append(form.format(of, texts[0]))
    lines += dict.fromkeys(f"{line}." for one in records for line in checks_since(one))
    # where a model was kept under a guarantee: who can take the noise off it, and where it is said
    # what is not covered
    private = [one for one in records if one.result["privacy"]["trust"] != "none"]
    kept = [one for one in private if MODEL in one.result["files"]]
    lines += [f"Not covered: see `dpfl account {one.id}`." for one in kept[:1]]
    if any(one.config["dp"].get("noise") == "seeded" for one in kept):
        lines.append(
            "Whoever knows the seed can take the noise off: dp.noise=secret for a published model."
        )
    return lines


def _long(report: Report) -> str:
    """Why there is no epsilon, where that does not fit into a cell; else empty."""
    reason = report.get("epsilon_reason") or ""
    return reason.removesuffix(".") if len(reason) > CELL else ""


def epsilons_of(reports: Sequence[Report]) -> str:
    """The smallest and the largest epsilon, as they are told: claimed, nominal."""
    known = sorted(reports, key=lambda one: one["epsilon"] or 0.0)
    text = " to ".join(dict.fromkeys(epsilon_text(one) for one in (known[0], known[-1])))
    claimed = sum(map(is_claimed, reports))
    return text + f" ({claimed} of {len(reports)} claimed)" * (
        claimed > 0 and "claimed" not in text
    )


def _rows(records: Sequence[RunRecord]) -> tuple[list[TextRow], list[TextRow]]:
    """A row a run: what it was, every key that varies, metrics, epsilon; and one for the runs that
    differ by the seed alone, with their means, none where no two do.
    """
    results = [record.result for record in records]
    last = [result["metrics"].get("last", {}) for result in results]
    metrics = [name for name in SHOWN if any(name in values for values in last)][:METRICS]
    settings = [settings_of(record.config) for record in records]
    swept = [key for key in varying(settings) if key not in CHOICES]
    names = short_names(swept, ["run", *COMMON, "epsilon", *metrics])
    rows: list[TextRow] = []
    for chosen, result, values in zip(settings, results, last, strict=True):
        # null in a result is a value that was not finite
        shown = {k: "not finite" if v is None else f"{v:.4g}" for k, v in values.items()}
        standin = " (stand-in)" if result["data"]["source"] == "standin" else ""
        rows.append(
            {
                "run": result["id"],
                "algorithm": chosen["algorithm"],
                "dp": chosen["dp"],
                "dataset": chosen["dataset"] + standin,
                **{name: cell_of(chosen.get(key)) for key, name in names.items()},
                "seed": str(result["seed"]),
                **{name: shown.get(name, "") for name in metrics},
                "epsilon": "none" if _long(result["privacy"]) else epsilon_text(result["privacy"]),
                "delta": f"{result['privacy']['delta']:g}",
                "status": result["status"],
            }
        )
    means = []
    for group in repetitions(settings):
        done = [number for number in group if rows[number]["status"] == "done"]
        averages = {
            name: mean_text(
                [value for one in done if (value := last[one].get(name)) is not None], len(group)
            )
            for name in metrics
            if not done or any(name in last[one] for one in done)
        }
        epsilon = epsilons_of([results[one]["privacy"] for one in done or group])
        mean = rows[group[0]] | dict.fromkeys(metrics, "") | averages
        mean |= {"epsilon": epsilon, "seeds": str(len(group))}
        means.append({name: mean[name] for name in mean if name not in ("run", "seed", "status")})
    return rows, means if len(means) < len(rows) else []


def mean_text(values: Sequence[float], runs: int) -> str:
    """Mean ± standard deviation (ddof 1), and how many of the runs it is of where not of all.

    >>> mean_text([1.0, 2.0], 2), mean_text([1.0], 2)
    ('1.50 ± 0.71', '1 (1 of 2 runs)')
    >>> mean_text([5000.0, 5226.0], 2), mean_text([19.0, 21.0], 2)
    ('5113 ± 160', '20.0 ± 1.4')
    >>> mean_text([53.91, 69.91], 2), mean_text([3e6, 3e6 + 80], 2)
    ('62 ± 11', '3000040 ± 57')
    >>> mean_text([math.inf, 1.0], 2)
    'inf ± nan'
    """
    mean = statistics.fmean(values) if values else 0.0
    text = f"{mean:.4g}" if values else "none"
    if len(values) > 1:
        spread = statistics.stdev(values) if all(map(math.isfinite, values)) else math.nan
        if 1e-4 <= spread < 1e4:  # as many places as the spread has with two digits
            places = max(0, 1 - math.floor(math.log10(spread)))
            text = f"{mean:.{places}f} ± {spread:.{places}f}"
        else:
            text += f" ± {spread:.2g}"
    return text if len(values) == runs else f"{text} ({len(values)} of {runs} runs)"


def _caption(reports: Sequence[Report]) -> str:
    """Whose epsilon it is, under which relation, by which accountant, over how many releases."""
    private = [report for report in reports if report["trust"] != "none"]
    if not private:
        return "no privacy"
    forms = ["per {unit}", "{relation}", "{trust} trust", "{accountant} accountant"]
    if len({report["delta"] for report in private}) > 1:
        forms.append("delta {delta:g}")
    parts = ["/".join(sorted({form.format(**report) for report in private})) for form in forms]
    counts = [report["releases"] for report in private if report["releases"]] or [0]
    ends = " to ".join(map(str, sorted({min(counts), max(counts)})))
    parts.append(f"{ends} release{'' if ends == '1' else 's'}")
    return f"epsilon: {', '.join(parts)}; tuning not included"
