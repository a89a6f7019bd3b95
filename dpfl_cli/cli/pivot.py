"""`dpfl runs table`: a metric of runs, by some keys down and others across."""

import sys
from collections.abc import Sequence

import numpy as np
import pandas as pd

from dpfl_cli.cli.compare import metric_of
from dpfl_cli.cli.selection import order, row_of
from dpfl_cli.cli.tables import mean_text, print_table
from dpfl_cli.cli.varying import repetitions, settings_of, varying
from dpfl_cli.config.errors import ConfigError, nearest
from dpfl_cli.config.identity import text_of
from dpfl_cli.simulation.store import RunRecord


def print_pivot(
    records: Sequence[RunRecord],
    rows: Sequence[str],
    cols: Sequence[str],
    metric: str | None,
    form: str | None,
) -> None:
    """Prints a metric at the end of runs, its mean and standard deviation over seeds: for a
    terminal, or as `latex`, `markdown` or `csv` (a line a cell).

    Raises:
      ConfigError: no run has a key, or runs of one cell differ by more than the seed.
    """
    from dpfl_cli.reproduction.layout import markdown

    chosen = "epsilon" if metric == "epsilon" else metric_of(records, metric)
    cells = _cells(records, [*rows, *cols], chosen)
    if form == "csv":
        cells.drop(columns="text").to_csv(sys.stdout)
        return
    wide = cells["text"].unstack(list(cols), fill_value="", sort=False)
    names = [", ".join(name) if isinstance(name, tuple) else str(name) for name in wide]
    header = [*rows, *names]
    lines = wide.reset_index().to_numpy().tolist()
    title = f"{chosen} by {', '.join(cols)}; mean ± standard deviation over seeds"
    if form == "latex":
        latex = pd.DataFrame(lines, columns=header).to_latex(index=False, escape=True)
        latex = latex.replace("±", "$\\pm$")
        print(f"% {title}\n{latex}", end="")
    elif form == "markdown":
        print(markdown(header, lines))
    else:
        print_table(header, lines, title)


def _cells(records: Sequence[RunRecord], keys: Sequence[str], metric: str) -> pd.DataFrame:
    """By the values of some keys as they are written: mean, std (ddof 1), seeds and text."""
    found = [(row_of(record), settings_of(record.config)) for record in records]
    known = {key for row, _ in found for key in row}
    for key in keys:
        if key not in known:
            raise ConfigError(f"{key}: no run has this key; {nearest(key, known)}")
        if keys.count(key) > 1:
            raise ConfigError(f"{key}: listed twice in --rows and --cols; write it once")
    found.sort(key=lambda pair: [order(pair[0].get(key)) for key in keys])
    frame = pd.DataFrame(
        {
            **{key: [text_of(row.get(key)) for row, _ in found] for key in keys},
            "value": [row.get(metric) if row["status"] == "done" else None for row, _ in found],
            "settings": [settings for _, settings in found],
        }
    )
    grouped = frame.astype({"value": float}).groupby(list(keys), sort=False)
    for cell, settings in grouped["settings"]:
        if len(repetitions(list(settings))) > 1:
            words = " ".join(f"{key}={value}" for key, value in zip(keys, cell, strict=True))
            raise ConfigError(
                f"{words}: its runs differ in {', '.join(varying(list(settings)))}; add that to "
                "--rows or --cols, or choose with --where"
            )
    with np.errstate(all="ignore"):  # of values that are not finite
        return grouped.agg(
            mean=("value", "mean"),
            std=("value", "std"),
            seeds=("value", "count"),
            text=("value", lambda one: mean_text(list(one.dropna()), len(one))),
        )
