"""Runs side by side: a plot of their curves, and a metric by their keys."""

import io
import math
import sys
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from dpfl_cli.cli.cautions import cautions
from dpfl_cli.cli.selection import (
    CHOICES,
    order,
    repetitions,
    settings_of,
    short_names,
    short_text,
    shown_row,
    varying,
)
from dpfl_cli.cli.tables import SHOWN, epsilons_of, is_claimed, mean_text, print_table, privacy_of
from dpfl_cli.config.errors import ConfigError, nearest
from dpfl_cli.config.identity import content_id, text_of
from dpfl_cli.config.paths import outputs_dir
from dpfl_cli.data.files import write_output
from dpfl_cli.privacy.nominal import rounded_up
from dpfl_cli.simulation.store import RunRecord

HIGHER = ("accuracy", "dice")  # metrics that are better higher; others are better lower
LOG_FROM = 30  # a logarithmic axis where values differ by more than this factor
WIDTH = 84  # letters of a line of the legend


def plot_comparison(
    records: Sequence[RunRecord], metric: str | None = None, path: Path | None = None
) -> Path:
    """Draws a metric against rounds, one line for runs that are equal but for the seed: their mean
    and standard deviation. Of more settings than there are colours the best are drawn, and the
    title says so. Returns the file.

    Raises:
      ConfigError: the runs do not have the metric, or the file cannot be written.
    """
    from matplotlib.ticker import MaxNLocator

    from dpfl_cli.reproduction.look import LOOKS, canvas, draw_curve

    name = metric_of(records, metric)
    words = name.replace("_", " ")
    settings = [settings_of(record.config) for record in records]
    labels = _labels(settings)
    curves = []  # what the legend says of each; its mean and spread at the rounds that all have
    for group in repetitions(settings):
        runs = [run for run in map(records.__getitem__, group) if run.series(name)]
        values = pd.DataFrame([run.series(name) for run in runs]).T.dropna()
        if len(values):
            seeds = f"{len(runs)} seed{'s' if len(runs) > 1 else ''}"
            label = ", ".join([*labels[group[0]], _epsilon(runs), seeds])
            with np.errstate(all="ignore"):  # of values that are not finite
                curves.append((label, values.mean(axis=1), values.std(axis=1)))
    better = -1 if name.endswith(HIGHER) else 1
    curves.sort(key=lambda curve: better * curve[1].iloc[-1])
    shown = curves[: len(LOOKS)]
    legend = [textwrap.fill(label, WIDTH) for label, *_ in shown]
    lines = sum(1 + text.count("\n") for text in legend)
    with canvas(6.4, 4.0 + max(0.3 * len(shown), 0.2 * lines)) as (figure, axis):
        for (_, mean, spread), text, look in zip(shown, legend, LOOKS, strict=False):
            band = (mean - spread, mean + spread) if spread.notna().any() else ()
            draw_curve(axis, look, text, mean.index, mean, *band)
        sizes = pd.concat([mean.abs() for _, mean, _ in shown])
        if sizes.min() * LOG_FROM < sizes.max():
            axis.set_yscale("log")
        axis.set(xlabel="round", ylabel=f"{name} (%)" if name == "accuracy" else words)
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
        figure.legend(loc="outside lower left")
        deltas = ", ".join(sorted({f"{one.result['privacy']['delta']:g}" for one in records}))
        title = f"{words}; ε at δ = {deltas}"
        if any(spread.notna().any() for _, _, spread in shown):
            title += "; bands: ± 1 standard deviation over seeds"
        if len(shown) < len(curves):
            title += f"\nonly the best {len(shown)} of {len(curves)} settings, by the last value"
        axis.set_title(title)
        file = f"{content_id(sorted(record.id for record in records))}-{name}.png"
        target = path or outputs_dir() / "comparisons" / file
        buffer = io.BytesIO()
        try:
            figure.savefig(buffer, format=target.suffix.lstrip(".") or "png")
        except ValueError as error:
            raise ConfigError(
                f"{target}: cannot be drawn ({error}); give --output a .png or .pdf file"
            ) from error
    write_output(target, buffer.getvalue())
    return target


def metric_of(records: Sequence[RunRecord], metric: str | None) -> str:
    """The metric to show: of those that all runs have the first that tables show, or of others the
    first; or one that is named and any run has.
    """
    had = [
        {name: 0 for row in record.rows for name in row if name != "round"} for record in records
    ]
    known = list(dict.fromkeys(name for names in had for name in names))
    shared = [name for name in known if all(name in names for names in had)]
    name = metric or next((one for one in (*SHOWN, *shared) if one in shared), "")
    if not name:
        raise ConfigError(
            f"these runs have no metric in common: choose runs with --where, or --metric of "
            f"{', '.join(known)}"
        )
    if name not in known:
        raise ConfigError(f"--metric {name}: no run has it; {nearest(name, known)}")
    return name


def _epsilon(records: Sequence[RunRecord]) -> str:
    """The epsilons of repetitions: where rounds are drawn at random they may differ."""
    reports = [record.result["privacy"] for record in records]
    known = (one["epsilon"] for one in reports if one["epsilon"] is not None)
    found = {
        f"{one and rounded_up(one, 2 - math.floor(math.log10(one))):.3g}"  # to three digits
        for one in known
    }
    if not found:
        return "not private"
    values = "\u00a0to\u00a0".join(sorted(found, key=float))  # no line ends within
    return f"ε\u00a0=\u00a0{values}{' claimed' * any(map(is_claimed, reports))}"


def _labels(settings: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """What a curve's legend says of its settings: every key that varies."""
    names = short_names(varying(settings), ["epsilon"])
    return [
        [_heading(name, short_text(text_of(one.get(key)))) for key, name in names.items()]
        or [str(one["algorithm"])]
        for one in settings
    ]


# --- a metric by keys -----------------------------------------------------------------------------


def print_pivot(
    records: Sequence[RunRecord],
    rows: Sequence[str],
    cols: Sequence[str],
    best: Sequence[str],
    metric: str | None,
    form: str | None,
) -> None:
    """Prints a metric at the end of runs, its mean and standard deviation over seeds: for a
    terminal, or as `latex`, `markdown` or `csv` (a line a cell).

    Args:
      best: keys of which a cell has the values with the best mean.

    Raises:
      ConfigError: no run has a key, or runs of one cell differ by more than the seed.
    """
    from dpfl_cli.reproduction.layout import markdown

    found = [(record, shown_row(record)) for record in records]
    known, keys = {key for _, row in found for key in row}, [*rows, *cols, *best]
    for key in keys:
        if key not in known:
            raise ConfigError(f"{key}: no run has this key; {nearest(key, known)}")
        if keys.count(key) > 1:
            raise ConfigError(f"{key}: listed twice in --rows, --cols and --best; write it once")
    chosen = "epsilon" if metric == "epsilon" else metric_of(records, metric)
    cells = _cells(found, keys, chosen)
    how = []
    if best:
        cells = _best_of(cells, [*rows, *cols], best, chosen)
        note = f"In brackets {', '.join(best)}"
        if (tried := cells["tried"].max()) > 1:
            note += (
                f" with the best mean, of up to {tried}: chosen by these runs, which flatters it, "
                "and covered by no epsilon (see `dpfl account --together`)"
            )
        how.append(f"{note}.")
    if form == "csv":
        cells = cells.drop(columns="text").rename(columns={"privacy": "epsilon_spent"})
        cells.insert(0, "metric", chosen)
        cells.to_csv(sys.stdout)
        return
    wide = cells["text"].unstack(list(cols), fill_value="", sort=False)
    labels = {name: name if isinstance(name, tuple) else (name,) for name in wide}
    wide = wide[sorted(wide, key=lambda name: [*map(order, labels[name])])]
    header = [*rows, *(", ".join(map(_heading, cols, labels[name])) for name in wide)]
    lines = wide.reset_index().to_numpy().tolist()
    few, many = cells["seeds"].min(), cells["seeds"].max()
    over = f"{many} seed{'s' if many > 1 else ''}" if few == many else f"{few} to {many} seeds"
    title = f"{chosen} by {', '.join(cols)}; mean ± standard deviation over {over}"
    reports = [record.result["privacy"] for record in records]
    deltas = " and ".join(f"{one:g}" for one in sorted({report["delta"] for report in reports}))
    spent = f"epsilon {epsilons_of(reports)} at delta {deltas}"
    notes = [*how, spent, *privacy_of(records), *cautions(records)]
    if form == "latex":
        latex = pd.DataFrame(lines, columns=header).to_latex(index=False, escape=True)
        latex = latex.replace("±", "$\\pm$")
        print("\n".join([f"% {line}" for line in (title, *notes)] + [latex]), end="")
    elif form == "markdown":
        print("\n".join([title, "", markdown(header, lines), "", *notes]))
    else:
        print_table(header, lines, title)
        print("\n".join(notes))


def _heading(key: str, value: str) -> str:
    """
    >>> _heading("epsilon", "4.0"), _heading("algorithm", "fedavg")
    ('epsilon=4.0', 'fedavg')
    """
    return value if key in CHOICES else f"{key}={value}"


def _best_of(
    cells: pd.DataFrame, keys: Sequence[str], best: Sequence[str], metric: str
) -> pd.DataFrame:
    """By keys the one of `_cells` with the best mean, and how many were tried; those that lack a
    run's value only where all do.
    """
    sign = 1 if metric.endswith(HIGHER) else -1
    ranked = cells.assign(whole=cells["seeds"] == cells["runs"], worth=sign * cells["mean"])
    ranked = ranked.sort_values(["whole", "worth"], ascending=False, kind="stable")
    grouped = ranked.reset_index(list(best)).groupby(list(keys), sort=False)
    found = grouped.head(1).drop(columns=["whole", "worth"]).assign(tried=grouped.size())
    values = [" ".join(one) for one in found[list(best)].to_numpy().tolist()]
    found["text"] += [f" ({value})" for value in values]
    order_of_cells = cells.reset_index(list(best)).index.unique()
    return found.loc[order_of_cells]


def _cells(
    found: Sequence[tuple[RunRecord, Mapping[str, Any]]], keys: Sequence[str], metric: str
) -> pd.DataFrame:
    """By the values of some keys as they are written: mean, std (ddof 1), seeds, runs and text."""
    found = sorted(found, key=lambda pair: [order(pair[1].get(key)) for key in keys])
    frame = pd.DataFrame(
        {
            **{key: [text_of(row.get(key)) for _, row in found] for key in keys},
            "value": [row.get(metric) if row["status"] == "done" else None for _, row in found],
            "settings": [settings_of(record.config) for record, _ in found],
            "report": [record.result["privacy"] for record, _ in found],
        }
    )
    grouped = frame.astype({"value": float}).groupby(list(keys), sort=False)
    for cell, settings in grouped["settings"]:
        if differing := varying(list(settings)):
            words = " ".join(f"{key}={value}" for key, value in zip(keys, cell, strict=True))
            raise ConfigError(
                f"{words}: its runs differ in {', '.join(differing)}; add that to --rows, "
                "--cols or --best, or choose with --where"
            )
    with np.errstate(all="ignore"):  # of values that are not finite
        return grouped.agg(
            mean=("value", "mean"),
            std=("value", "std"),
            seeds=("value", "count"),
            runs=("value", "size"),
            text=("value", lambda one: mean_text(list(one.dropna()), len(one))),
            privacy=("report", lambda one: epsilons_of(list(one))),
            delta=("report", lambda one: " ".join(sorted({f"{each['delta']:g}" for each in one}))),
        )
