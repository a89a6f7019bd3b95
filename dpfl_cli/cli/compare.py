"""Runs side by side: what differs between them, and a plot of their curves."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dpfl_cli.cli.files import write_output
from dpfl_cli.cli.report import is_claimed
from dpfl_cli.config.errors import ConfigError, nearest
from dpfl_cli.config.identity import content_id, flat
from dpfl_cli.config.paths import outputs_dir
from dpfl_cli.simulation.store import RunRecord

LEGEND_KEYS = 4  # differing keys that a legend names


def differences(records: Sequence[RunRecord]) -> dict[str, list[Any]]:
    """Config keys on which the runs differ, with each run's value."""
    configs = [flat(record.config) for record in records]
    keys = list(dict.fromkeys(key for config in configs for key in config))
    columns = {key: [config.get(key) for config in configs] for key in keys}
    return {key: values for key, values in columns.items() if any(value != values[0] for value in values)}


def plot_comparison(records: Sequence[RunRecord], metric: str | None = None, path: Path | None = None) -> Path:
    """Draws a metric against rounds, one line per config, mean and standard deviation over seeds; returns the file.

    Raises:
      ConfigError: the runs do not have the metric, or the file cannot be written.
    """
    import matplotlib as mpl
    import numpy as np
    from matplotlib.figure import Figure

    from dpfl_cli.reproduction.figure import COLOURS, STYLE, STYLES

    known = list(dict.fromkeys(name for record in records for row in record.rows for name in row if name != "round"))
    shared = [name for name in known if all(any(name in row for row in record.rows) for record in records)]
    name = metric or next(iter(shared), "")
    if name not in known:
        raise ConfigError(f"metric {name or '(none)'}: these runs do not have it in common; {nearest(name, shared or known)}")
    series: dict[str, list[RunRecord]] = {}
    for label, record in zip(_labels(records), records, strict=True):
        series.setdefault(label, []).append(record)
    target = path or outputs_dir() / "comparisons" / f"{content_id(sorted(r.id for r in records))}-{name}.png"
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(6.4, 4.0), layout="constrained")
        axis = figure.subplots()
        for number, (label, group) in enumerate(series.items()):
            curves = [record.series(name) for record in group]
            rounds = sorted(set.intersection(*(set(curve) for curve in curves)))
            values = np.array([[curve[round_] for round_ in rounds] for curve in curves])
            colour, style = COLOURS[number % len(COLOURS)], STYLES[number % len(STYLES)]
            privacy = group[0].result["privacy"]
            claimed = " claimed" if is_claimed(privacy) else ""
            epsilon = "not private" if privacy["epsilon"] is None else f"ε = {privacy['epsilon']:.3g}{claimed}"
            seeds = f"{len(group)} seed{'s' if len(group) > 1 else ''}"
            axis.plot(rounds, values.mean(axis=0), color=colour, linestyle=style, label=f"{label} ({epsilon}, {seeds})")
            if len(group) > 1:
                mean, spread = values.mean(axis=0), values.std(axis=0, ddof=1)
                axis.fill_between(rounds, mean - spread, mean + spread, color=colour, alpha=0.15, linewidth=0)
        axis.set_xlabel("round")
        axis.set_ylabel(f"{name} (%)" if name == "accuracy" else name.replace("_", " "))
        axis.legend()
        delta = sorted({f"{record.result['privacy']['delta']:g}" for record in records})
        axis.set_title(f"{name.replace('_', ' ')}; ε at δ = {', '.join(delta)}; bands: ± 1 standard deviation over seeds")
        buffer = io.BytesIO()
        try:
            figure.savefig(buffer, format=target.suffix.lstrip(".") or "png")
        except ValueError as error:
            raise ConfigError(f"{target}: cannot be drawn ({error}); give --output a .png or .pdf file") from error
    write_output(target, buffer.getvalue())
    return target


def _labels(records: Sequence[RunRecord]) -> list[str]:
    """A short name per run from what differs, apart from the seed."""
    differing = {key: values for key, values in differences(records).items() if not key.endswith(("seed", "revision"))}
    first = [key for key in ("algorithm.name", "dp.name", "dataset.name") if key in differing]
    # what follows from a choice already named (the parameters of another algorithm, say) is not named again
    chosen: list[str] = list(first)
    for key in differing:
        if len(chosen) >= LEGEND_KEYS:
            break
        groups = {tuple(str(differing[k][i]) for k in chosen) for i in range(len(records))}
        finer = {tuple(str(differing[k][i]) for k in [*chosen, key]) for i in range(len(records))}
        if len(finer) > len(groups):
            chosen.append(key)
    if not chosen:
        return [str(record.config["algorithm"]["name"]) for record in records]
    named = [
        [str(differing[key][i]) if key in first else f"{key.split('.')[-1]}={differing[key][i]}" for key in chosen]
        for i in range(len(records))
    ]
    return [", ".join(words) for words in named]
