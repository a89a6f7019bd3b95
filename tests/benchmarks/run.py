"""`make bench`: dpfl's speed as ratios, in one process, to loops as research code has them, to
vmap, and to matrix products.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from dpfl_cli.config.paths import outputs_dir
from dpfl_cli.data.files import write_atomically
from dpfl_cli.simulation.memory import keep_freed_memory
from dpfl_cli.simulation.plan import load_components
from dpfl_cli.simulation.store import json_text
from tests.benchmarks import (
    client_rounds,
    convex,
    features,
    images,
    linear,
    networks,
    own_module,
    record_level,
    second_order,
)
from tests.benchmarks.command import start_up
from tests.benchmarks.harness import Case, Row, machine, measure

START_UP = "start"
BUSY = 0.5  # load that is worth a warning
MOST_MEMORY = 4 << 30  # bytes that a workload may take at its peak
MODULES = (
    linear,
    images,
    record_level,
    second_order,
    convex,
    networks,
    client_rounds,
    features,
    own_module,
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures, prints a table, writes outputs/bench/bench.json. Returns the exit code: 1 where a
    workload takes too much.
    """
    every = sorted(
        (case for module in MODULES for case in module.cases()), key=lambda case: case.key.lower()
    )
    keys = [*dict.fromkeys(case.key for case in every), START_UP]
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default=",".join(keys), help=f"some of {','.join(keys)}")
    parser.add_argument(
        "--repeats", type=int, default=5, help="samples of everything, of which the median counts"
    )
    parser.add_argument("--markdown", action="store_true", help="print a table for a page too")
    args = parser.parse_args(arguments)
    wanted = args.only.split(",")
    if unknown := set(wanted) - set(keys):
        parser.error(f"--only {unknown.pop()}: no such workload; some of {','.join(keys)}")
    facts = machine()
    if facts["load"] > BUSY:
        print(
            f"other work runs on this machine (load {facts['load']:.1f}): times are too long, "
            "ratios rough",
            file=sys.stderr,
        )
    load_components()
    keep_freed_memory()  # as in every run of dpfl
    rows = measured([case for case in every if case.key in wanted], args.repeats)
    started = start_up(min(args.repeats, 3)) if START_UP in wanted else {}
    Console(width=150).print(table(rows, args.repeats))
    for command, seconds in started.items():
        print(f"{command}: {seconds:.2f} s")
    if args.markdown:
        print(markdown(rows))
    target = outputs_dir() / "bench" / "bench.json"
    write_atomically(
        target,
        json_text(
            {"machine": facts, "repeats": args.repeats, "results": rows, "start_up": started}
        ).encode(),
    )
    print(target)
    for row in rows:
        if row["floor_met"] is False:
            print(f"{row['workload']} {row['title']}: {row['floor']:,} asked", file=sys.stderr)
    excessive = too_large(rows)
    for line in excessive:
        print(line, file=sys.stderr)
    return 1 if excessive else 0


def too_large(rows: Sequence[Row]) -> list[str]:
    """A line for each workload whose peak exceeds `MOST_MEMORY`."""
    peaks = [
        (row, row["peak_memory_bytes"]) for row in rows if row["peak_memory_bytes"] is not None
    ]
    return [
        f"{row['workload']} {row['title']}: a peak of {peak / 2**30:.2f} GiB of memory, more than "
        f"{MOST_MEMORY / 2**30:.0f} GiB"
        for row, peak in peaks
        if peak > MOST_MEMORY
    ]


def measured(cases: Sequence[Case], repeats: int) -> list[Row]:
    """The rows of all cases, with news of each on standard error."""
    rows = []
    for position, case in enumerate(cases, start=1):
        print(f"[{position}/{len(cases)}] {case.key} {case.title}", file=sys.stderr, flush=True)
        row = measure(case, repeats)
        rows.append(row)
        found = f"{number(row['seconds_per_round'], 1e3)} ms a round"
        if row["ratio_to_loop"] is not None:
            found += f", {number(row['ratio_to_loop'])} times as fast as the loop"
        print(f"    {found}", file=sys.stderr, flush=True)
    return rows


def table(rows: Sequence[Row], repeats: int) -> Table:
    """All rows, for people."""
    shown = Table(
        title=f"dpfl, {machine()['threads']} threads, medians of {repeats}; 'times': how many "
        "times as long the others take"
    )
    shown.add_column("workload", max_width=58)
    for name in (
        "ms a round",
        "times loop",
        "asked",
        "times vmap",
        "others",
        "of noise",
        "of numpy's",
        "GFLOP/s",
        "of peak",
        "MiB",
    ):
        shown.add_column(name, justify="right")
    gpu = any(row["gpu_seconds_per_round"] is not None for row in rows)
    if gpu:
        shown.add_column("GPU ms", justify="right")
    for row in rows:
        others = "\n".join(f"{name} {ratio:.3g}" for name, ratio in row["other_ratios"].items())
        cells = [
            f"{row['workload']}. {row['title']}",
            number(row["seconds_per_round"], 1e3),
            number(row["ratio_to_loop"]),
            number(row["floor"]) + (" missed" if row["floor_met"] is False else ""),
            number(row["ratio_to_vmap"]),
            others,
            number(row["times_noise"]),
            number(row["times_numpy_noise"]),
            number(row["gflops"]),
            number(row["fraction_of_peak"]),
            number(row["peak_memory_bytes"], 2.0**-20),
        ]
        shown.add_row(*cells, *([number(row["gpu_seconds_per_round"], 1e3)] if gpu else []))
    return shown


def markdown(rows: Sequence[Row]) -> str:
    """All rows, for a page of documentation."""
    noise = ("of noise", "of numpy's noise")
    names = (
        "ms a round",
        "times the loop",
        "asked",
        "times vmap",
        *noise,
        "GFLOP/s",
        "of the peak",
    )
    lines = [f"| workload | {' | '.join(names)} |", "|---" * (1 + len(names)) + "|"]
    for row in rows:
        values = (
            row["ratio_to_loop"],
            row["floor"],
            row["ratio_to_vmap"],
            row["times_noise"],
            row["times_numpy_noise"],
            row["gflops"],
            row["fraction_of_peak"],
        )
        title, time = f"{row['workload']}. {row['title']}", number(row["seconds_per_round"], 1e3)
        lines.append("| " + " | ".join([title, time, *map(number, values)]) + " |")
    return "\n".join(lines)


def number(value: Any, scale: float = 1.0) -> str:
    """Three digits, or nothing where there is no number."""
    if value is None:
        return ""
    scaled = value * scale
    return f"{scaled:,.0f}" if scaled >= 100 else f"{scaled:.3g}"


if __name__ == "__main__":
    sys.exit(main())
