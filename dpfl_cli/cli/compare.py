"""A plot of the curves of runs side by side."""

import io
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from dpfl_cli.cli.files import write_output
from dpfl_cli.cli.tables import SHOWN, is_claimed
from dpfl_cli.cli.varying import (
    CHOICES,
    repetitions,
    settings_of,
    short_names,
    varying,
)
from dpfl_cli.config.errors import ConfigError, nearest
from dpfl_cli.config.identity import content_id, text_of
from dpfl_cli.config.paths import outputs_dir
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
    curves = []  # what the legend says of each, and its values: [rounds that all have, seeds]
    for group in repetitions(settings):
        values = pd.DataFrame([records[number].series(name) for number in group]).T.dropna()
        if len(values):
            epsilon = _epsilon([records[number] for number in group])
            seeds = f"{len(group)} seed{'s' if len(group) > 1 else ''}"
            curves.append((", ".join([*labels[group[0]], epsilon, seeds]), values))
    better = -1 if name.endswith(HIGHER) else 1
    curves.sort(key=lambda curve: better * curve[1].iloc[-1].mean())
    shown = curves[: len(LOOKS)]
    with canvas(6.4, 4.0 + 0.3 * len(shown)) as (figure, axis):
        for (label, values), look in zip(shown, LOOKS, strict=False):
            with np.errstate(all="ignore"):  # of values that are not finite
                mean, spread = values.mean(axis=1), values.std(axis=1)
            band = (mean - spread, mean + spread) if values.shape[1] > 1 else ()
            draw_curve(axis, look, textwrap.fill(label, WIDTH), mean.index, mean, *band)
        sizes = pd.concat([values.mean(axis=1).abs() for _, values in shown])
        if sizes.min() * LOG_FROM < sizes.max():
            axis.set_yscale("log")
        axis.set(xlabel="round", ylabel=f"{name} (%)" if name == "accuracy" else words)
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
        figure.legend(loc="outside lower left")
        deltas = ", ".join(sorted({f"{one.result['privacy']['delta']:g}" for one in records}))
        title = f"{words}; ε at δ = {deltas}"
        if any(values.shape[1] > 1 for _, values in shown):
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
    if not name and known:
        raise ConfigError(
            f"these runs have no metric in common; name one by --metric: {', '.join(known)}"
        )
    if name not in known:
        raise ConfigError(
            f"metric {name or '(none)'}: these runs do not have it in common; "
            f"{nearest(name, shared or known)}"
        )
    return name


def _epsilon(records: Sequence[RunRecord]) -> str:
    """The epsilons of repetitions: where rounds are drawn at random they may differ."""
    reports = [record.result["privacy"] for record in records]
    found = {f"{one['epsilon']:.3g}" for one in reports if one["epsilon"] is not None}
    if not found:
        return "not private"
    values = "\u00a0to\u00a0".join(sorted(found, key=float))  # no line ends within
    return f"ε\u00a0=\u00a0{values}{' claimed' * is_claimed(reports[0])}"


def _labels(settings: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """What a curve's legend says of its settings: every key that varies."""
    columns = varying(settings)
    names = short_names(list(columns), ["epsilon"])
    return [
        [
            text_of(column[number]) if key in CHOICES else f"{names[key]}={text_of(column[number])}"
            for key, column in columns.items()
        ]
        or [str(one["algorithm"])]
        for number, one in enumerate(settings)
    ]
