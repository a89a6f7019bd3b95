"""ScaffNew's bound over the number of iterations and over the communication probability, as curves,
CSV and a figure.
"""

import math
import textwrap
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dpfl_cli.algorithms.scaffnew_bound import ScaffnewBound
from dpfl_cli.reproduction.look import COLOURS, GREY, STYLE, STYLES, saved

POINTS = 241  # of a curve
FACTORS = (0.5, 1.0, 2.0)  # of p*, whose curves over T are drawn, beside p = 1
TIMES = (0.25, 1.0, 4.0)  # of T*, whose curves over p are drawn


def curves(found: ScaffnewBound) -> pd.DataFrame:
    """B over T for some p, and over p for some T, around the best ones, a row a point.

    Columns: over (which varies: "iterations" or "probability"), iterations, probability, step
    (eta*), bound (B there), best (whether the one that is fixed is at its best value).
    """
    chances = sorted({min(1.0, found.probability * factor) for factor in FACTORS} | {1.0})
    # slow: iterations in which the rate at p* gains a factor e
    best, slow = found.iterations, 1.0 / found.decay
    if not 0 < best < math.inf:  # nothing to be near to: what the rate alone would take
        best = max(1.0, round((12.0 if math.isinf(best) else 5.0) * slow))
    last = max(3.0 * best, 5.0 * slow, 10.0)
    times = np.unique(np.round(np.linspace(0.0, last, POINTS)))
    least = min(found.probability / 10.0, 0.1)
    probabilities = np.unique(np.append(np.geomspace(least, 1.0, POINTS), found.probability))
    lengths = sorted({max(1.0, float(round(best * factor))) for factor in TIMES})
    over_times = pd.DataFrame({"probability": chances}).merge(
        pd.DataFrame({"iterations": times}), "cross"
    )
    over_chances = pd.DataFrame({"iterations": lengths}).merge(
        pd.DataFrame({"probability": probabilities}), "cross"
    )
    over_times["best"] = over_times["probability"] == found.probability
    over_chances["best"] = over_chances["iterations"] == found.iterations
    parts = {"iterations": over_times, "probability": over_chances}
    points = pd.concat(parts, names=["over"]).reset_index(level="over")
    iterations, probability = (points[name].to_numpy() for name in parts)
    bound = found.bound(iterations, probability, found.step)
    points = points.assign(step=found.step, bound=bound).astype({"iterations": int})
    columns = ["over", "iterations", "probability", "step", "bound", "best"]
    return points[columns].reset_index(drop=True)


def draw_bound(found: ScaffnewBound, drawn: pd.DataFrame, setting: str) -> dict[str, bytes]:
    """bound.png and bound.pdf.

    Args:
      drawn: the curves.
      setting: what the bound is of, in a line.
    """
    p_star = f"p* = {found.probability:.4g} ({found.local_steps:.4g} local steps)"
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(9.2, 4.4), layout="constrained")
        left, right = figure.subplots(1, 2, sharey=True)
        _panel(left, drawn, "iterations", "p = {:.4g}", " = p*")
        _panel(right, drawn, "probability", "T = {:,.0f}", " = T*")
        line: Any = {"color": GREY, "linewidth": 1.2, "linestyle": ":"}
        if math.isfinite(found.iterations):
            left.axvline(found.iterations, label=f"T* = {found.iterations:,.0f}", **line)
        if not found.noise:
            falls = "no T*: without noise the bound falls for ever"
            left.plot([], [], linestyle="none", label=falls)
        right.axvline(found.probability, label=p_star, **line)
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


def _panel(axis: Axes, drawn: pd.DataFrame, over: str, fixed: str, star: str) -> None:
    """The curves over one of the two, each named by the value of the other."""
    other = "probability" if over == "iterations" else "iterations"
    mine = drawn[drawn["over"] == over].groupby([other, "best"])
    for ((value, best), curve), colour, style in zip(mine, COLOURS, STYLES, strict=False):
        axis.plot(
            curve[over],
            curve["bound"],
            color=colour,
            linestyle=style,
            linewidth=2.4 if best else 1.5,
            label=fixed.format(value) + (star if best else ""),
        )
