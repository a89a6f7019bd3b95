"""ScaffNew's bound over the number of iterations and over the communication probability, as curves,
CSV and a figure.
"""

from __future__ import annotations

import csv
import io
import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from dpfl_cli.algorithms.scaffnew_bound import ScaffnewBound
from dpfl_cli.reproduction.look import COLOURS, GREY, STYLE, STYLES, saved

POINTS = 241  # of a curve
FACTORS = (0.5, 1.0, 2.0)  # of p*, whose curves over T are drawn, beside p = 1
TIMES = (0.25, 1.0, 4.0)  # of T*, whose curves over p are drawn
COLUMNS = ("over", "iterations", "probability", "step", "bound")


@dataclass(frozen=True)
class Curve:
    """B at `iterations` and `probability`, one of which varies; eta is eta*.

    Attributes:
      over: which varies.
      best: whether the other one is at its best value.
    """

    over: Literal["iterations", "probability"]
    iterations: NDArray[np.float64]
    probability: NDArray[np.float64]
    bound: NDArray[np.float64]
    best: bool


def curves(found: ScaffnewBound) -> list[Curve]:
    """B over T for some p, and over p for some T, around the best ones."""
    chances = sorted({min(1.0, found.probability * factor) for factor in FACTORS} | {1.0})
    best, slow = (
        found.iterations,
        1.0 / found.decay,
    )  # slow: iterations in which the rate at p* gains a factor e
    if not 0 < best < math.inf:  # nothing to be near to: what the rate alone would take
        best = max(1.0, round((12.0 if math.isinf(best) else 5.0) * slow))
    last = max(3.0 * best, 5.0 * slow, 10.0)
    times = np.unique(np.round(np.linspace(0.0, last, POINTS)))
    made = [
        _curve(found, "iterations", times, np.full_like(times, p), p == found.probability)
        for p in chances
    ]
    least = min(found.probability / 10.0, 0.1)
    probabilities = np.unique(np.append(np.geomspace(least, 1.0, POINTS), found.probability))
    lengths = sorted({max(1.0, float(round(best * factor))) for factor in TIMES})
    return made + [
        _curve(
            found,
            "probability",
            np.full_like(probabilities, time),
            probabilities,
            time == found.iterations,
        )
        for time in lengths
    ]


def _curve(
    found: ScaffnewBound,
    over: Literal["iterations", "probability"],
    iterations: NDArray[np.float64],
    probability: NDArray[np.float64],
    best: bool,
) -> Curve:
    return Curve(
        over, iterations, probability, found.bound(iterations, probability, found.step), best
    )


def curves_csv(found: ScaffnewBound, drawn: Sequence[Curve]) -> str:
    """The curves as CSV, a row a point; floats with their shortest exact digits."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    for curve in drawn:
        for time, chance, value in zip(
            curve.iterations, curve.probability, curve.bound, strict=True
        ):
            writer.writerow(
                [curve.over, int(time), repr(float(chance)), repr(found.step), repr(float(value))]
            )
    return out.getvalue()


def draw_bound(found: ScaffnewBound, drawn: Sequence[Curve], setting: str) -> dict[str, bytes]:
    """bound.png and bound.pdf.

    Args:
      setting: what the bound is of, in a line.
    """
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(9.2, 4.4), layout="constrained")
        left, right = figure.subplots(1, 2, sharey=True)
        _panel(left, [curve for curve in drawn if curve.over == "iterations"], found)
        _panel(right, [curve for curve in drawn if curve.over == "probability"], found)
        left.set_xlabel("local iterations T")
        left.set_ylabel("bound B on E ψ_T\n(squared distance to x*, summed over clients)")
        right.set_xlabel("communication probability p = 1 / local steps")
        right.set_xscale("log")
        for axis in (left, right):
            axis.set_yscale("log")
            axis.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=2)
        figure.suptitle(
            f"DP-ScaffNew: utility bound at step size 1/L\n{textwrap.fill(setting, 120)}",
            fontsize=10,
        )
        return saved(figure, "bound")


def _panel(axis: Axes, drawn: Sequence[Curve], found: ScaffnewBound) -> None:
    for number, curve in enumerate(drawn):
        over_time = curve.over == "iterations"
        fixed = (
            f"p = {curve.probability[0]:.4g}" if over_time else f"T = {curve.iterations[0]:,.0f}"
        )
        star = (" = p*" if over_time else " = T*") if curve.best else ""
        xs = curve.iterations if over_time else curve.probability
        width = 2.4 if curve.best else 1.5
        axis.plot(
            xs,
            curve.bound,
            color=COLOURS[number],
            linestyle=STYLES[number],
            linewidth=width,
            label=fixed + star,
        )
    over_time = drawn[0].over == "iterations"
    place, text = (
        (found.iterations, f"T* = {found.iterations:,.0f}")
        if over_time
        else (
            found.probability,
            f"p* = {found.probability:.4g} ({found.local_steps:.4g} local steps)",
        )
    )
    if math.isfinite(place):
        axis.axvline(place, color=GREY, linewidth=1.2, linestyle=":", label=text)
    if over_time and not found.noise:
        axis.plot([], [], linestyle="none", label="no T*: without noise the bound falls for ever")
