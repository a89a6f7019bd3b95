"""ScaffNew's bound over the number of iterations and over the communication probability, as curves,
CSV and a figure.
"""

import math
import textwrap
from typing import Any

import numpy as np
import pandas as pd

from dpfl_cli.algorithms.scaffnew_bound import ScaffnewBound
from dpfl_cli.reproduction.look import GREY, LOOKS, canvas, draw_curve, saved

POINTS = 241  # of a curve
FACTORS = (0.5, 1.0, 2.0)  # of p*, whose curves over T are drawn, beside p = 1
TIMES = (0.25, 1.0, 4.0)  # of T*, whose curves over p are drawn


def curves(found: ScaffnewBound) -> pd.DataFrame:
    """B over T for some p, and over p for some T, around the best ones, a row a point.

    Columns: over (which varies: "iterations" or "probability"), iterations, probability, step
    (eta*), bound (B there).
    """
    # slow: iterations in which the rate at p* gains a factor e
    best, slow = found.iterations, 1.0 / found.decay
    if not 0 < best < math.inf:  # nothing to be near to: what the rate alone would take
        best = max(1.0, round((12.0 if math.isinf(best) else 5.0) * slow))
    times = np.linspace(0.0, max(3.0 * best, 5.0 * slow, 10.0), POINTS).round()
    chances = np.geomspace(min(found.probability / 10.0, 0.1), 1.0, POINTS)
    some_times = {max(1.0, float(round(best * factor))) for factor in TIMES}
    some_chances = {min(1.0, found.probability * factor) for factor in FACTORS} | {1.0}
    varied: dict[str, Any] = {
        "iterations": (np.unique(times), sorted(some_chances)),
        "probability": (sorted(some_times), np.union1d(chances, found.probability)),
    }
    parts = {
        over: pd.MultiIndex.from_product(axes, names=list(varied)).to_frame(index=False)
        for over, axes in varied.items()
    }
    points = pd.concat(parts, names=["over"]).reset_index("over")
    bound = found.bound(points["iterations"], points["probability"], found.step)
    return points.assign(step=found.step, bound=bound).astype({"iterations": int})


def draw_bound(found: ScaffnewBound, drawn: pd.DataFrame, setting: str) -> dict[str, bytes]:
    """bound.png and bound.pdf: a panel for what varies, a curve for every value of the other, and
    a line at the best.

    Args:
      drawn: the curves.
      setting: what the bound is of, in a line.
    """
    panels = (  # what varies, in words, what its curves differ in, and the best in words
        (
            "iterations",
            "local iterations T",
            "probability",
            "p = {:.4g}",
            found.iterations,
            f"T* = {found.iterations:,.0f}",
        ),
        (
            "probability",
            "communication probability p = 1 / local steps",
            "iterations",
            "T = {:,.0f}",
            found.probability,
            f"p* = {found.probability:.4g} ({found.local_steps:.4g} local steps)",
        ),
    )
    with canvas(9.2, 4.4, ncols=2, sharey=True) as (figure, axes):
        for axis, (over, x_title, other, title, best, star) in zip(axes, panels, strict=True):
            mine = drawn[drawn["over"] == over].groupby(other)
            for (value, points), look in zip(mine, LOOKS, strict=False):
                draw_curve(axis, look, title.format(value), points[over], points["bound"])
            if math.isfinite(best):
                axis.axvline(best, label=star, color=GREY, linestyle=":")
            axis.set(xlabel=x_title, yscale="log")
            axis.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=2)
        axes[0].set_ylabel("bound B on E ψ_T\n(squared distance to x*, summed over clients)")
        axes[1].set_xscale("log")
        words = textwrap.fill(setting, 120)
        figure.suptitle(f"DP-ScaffNew: utility bound at step size 1/L\n{words}", fontsize=10)
        return saved(figure, "bound")
