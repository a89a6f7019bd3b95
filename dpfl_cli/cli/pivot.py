"""`dpfl runs table`: a metric of runs, by some keys down and others across."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from dpfl_cli.cli.compare import metric_of
from dpfl_cli.cli.selection import order, row_of
from dpfl_cli.cli.tables import make_table, mean_text, wide_console
from dpfl_cli.cli.varying import repetitions, settings_of, text_of, varying
from dpfl_cli.config.errors import ConfigError, nearest
from dpfl_cli.simulation.store import RunRecord


@dataclass(frozen=True)
class Pivot:
    """A row a cell: the values of `rows` and `cols`, then mean, std (ddof 1), seeds and text."""

    cells: pd.DataFrame
    rows: Sequence[str]
    cols: Sequence[str]
    metric: str


def pivot(
    records: Sequence[RunRecord], rows: Sequence[str], cols: Sequence[str], metric: str | None
) -> Pivot:
    """The table of a metric at the end of runs, its mean and standard deviation over seeds.

    Raises:
      ConfigError: no run has a key, or runs of one cell differ by more than the seed.
    """
    chosen = "epsilon" if metric == "epsilon" else metric_of(records, metric)
    found = [row_of(record) for record in records]
    keys = [*rows, *cols]
    known = {key for row in found for key in row}
    for key in keys:
        if key not in known:
            raise ConfigError(f"{key}: no run has this key; {nearest(key, known)}")
    cells: dict[tuple[str, ...], list[int]] = {}
    for number in sorted(
        range(len(found)), key=lambda n: [order(found[n].get(key)) for key in keys]
    ):
        cells.setdefault(tuple(text_of(found[number].get(key)) for key in keys), []).append(number)
    lines: list[dict[str, Any]] = []
    for cell, members in cells.items():
        settings = [settings_of(records[number].config) for number in members]
        if len(repetitions(settings)) > 1:
            words = " ".join(f"{key}={value}" for key, value in zip(keys, cell, strict=True))
            raise ConfigError(
                f"{words}: its runs differ in {', '.join(varying(settings))}; add that to --rows "
                "or --cols, or choose with --where"
            )
        done = [number for number in members if records[number].status == "done"]
        values = pd.Series([found[number].get(chosen) for number in done], dtype=float)
        lines.append(
            {
                **dict(zip(keys, cell, strict=True)),
                "mean": values.mean(),
                "std": values.std(),
                "seeds": len(values),
                "text": mean_text(list(values.dropna()), len(members)),
            }
        )
    return Pivot(pd.DataFrame(lines), rows, cols, chosen)


def print_pivot(table: Pivot, form: str | None) -> None:
    """Prints it for a terminal, or as `latex`, `markdown` or `csv` (a line a cell)."""
    from dpfl_cli.reproduction.layout import markdown

    if form == "csv":
        table.cells.drop(columns="text").to_csv(sys.stdout, index=False)
        return
    down, across = (
        [tuple(line) for line in table.cells[keys].to_numpy()]
        for keys in (list(table.rows), list(table.cols))
    )
    texts = dict(zip(zip(down, across, strict=True), table.cells["text"], strict=True))
    names = list(dict.fromkeys(across))
    header = [*table.rows, *(", ".join(name) for name in names)]
    lines = [[*row, *(texts.get((row, name), "") for name in names)] for row in dict.fromkeys(down)]
    title = f"{table.metric} by {', '.join(table.cols)}; mean ± standard deviation over seeds"
    if form == "latex":
        latex = pd.DataFrame(lines, columns=header).to_latex(index=False, escape=True)
        latex = latex.replace("±", "$\\pm$")
        print(f"% {title}\n{latex}", end="")
    elif form == "markdown":
        print(markdown(header, lines))
    else:
        wide_console().print(make_table(header, lines, title=title))
