"""Figures 1 and 2: losses, the clip norm and quantiles of gradients over rounds (section 5.2)."""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from dpfl_cli.papers.adaptdp import BOTH, CLIPPED, LAST, NOT_SAID, ON_T1, QUANTILES, losses, private
from dpfl_cli.papers.adaptdp.choices import runs, table2
from dpfl_cli.reproduction.api import (
    Artifact,
    Claim,
    Comparisons,
    Fact,
    Facts,
    Figure,
    Judge,
    Metric,
    Rows,
    Runs,
    Scale,
    Size,
    Table,
    Where,
    above,
    below,
    below_share,
    between,
    claim,
    every,
    level,
    ratio,
    shape,
    sized,
)

ON_T3 = {"task": "T3"}


def curves(scale: Scale) -> Runs:
    for run in runs(scale):
        one = run.labels
        if one["selection"] == "paper" and one["level"] == 3 and one["task"] in ("T1", "T3"):
            yield run


LOWER = [
    Claim(
        "lower",
        "on T1 AdaptDP ends below DP-FedAvg's loss",
        "section 5.2, Figure 1 (a)",
        every(below_share, "last", "method", **ON_T1, method=BOTH, share=1),
        "holds",
        note="an earlier page asked for half of it, which is not in the paper: it says lower",
        readings={"below half of it": {"share": 0.5}},
    ),
    Claim(
        "lower_T3",
        "so it does on T3",
        "section 5.2, Figure 1 (b)",
        every(below_share, "last_loss", "method", **ON_T3, method=BOTH, share=1),
        note="at the paper's choices, as on T1 (notes). An earlier page judged no order here, for "
        "these differ in more than the method",
        readings={"below half of it": {"share": 0.5}},
    ),
]


@claim("ours", "holds")
def floor(rows: Rows) -> Comparisons:
    """on T1 DP-FedAvg is at its floor after 110 rounds (the mean of rounds 111 to 130 within
    20 % of that of rounds 131 to 150)
    """
    early, late = (
        rows.mean("objective", **ON_T1, method="FedAvg", round=between(*ends))
        for ends in ((111, 130), (131, 150))
    )
    yield ratio(early, late, within=0.2)


def _curve(measure: str, task: str) -> Figure:
    return Figure(
        "lines",
        "round",
        measure,
        series="method",
        log="y",
        title=f"{task}, level 3",
    )


fig1 = Artifact(
    id="fig1",
    title="Training loss over rounds at level 3, on the quadratic task and on MNIST",
    shows="Both methods at the paper's step sizes and clip norms with its printed noise of level "
    "3. On the quadratic task (T1) the noise of AdaptDP falls with its clip norm: it takes longer "
    "steps at first, and its loss stops falling sooner and at a lower floor.",
    source="Figure 1; its curves are not printed as numbers",
    sizes=table2.sizes,
    runs=curves,
    runs_of="adaptdp/table2",
    measures={
        **losses("series", "training loss", "T3"),
        **losses("final", f"training loss, {LAST}", "T3", names=("last", "last_loss")),
    },
    tables=[
        Table("Mean training loss of the last five rounds", "task", "method", ["last", "last_loss"])
    ],
    figures=[_curve("objective", "T1"), _curve("loss", "T3")],
    notes=[
        NOT_SAID,
        CLIPPED,
        "At level 3 the paper's choices differ in more than the method, on both tasks: the "
        "product of step size and clip norm is 0.15 for DP-FedAvg and 0.3 for AdaptDP on T1, 0.01 "
        "and 0.015 on T3, and AdaptDP's noise costs more than twice the epsilon (below). On T1 "
        "AdaptDP is lower at equal epsilon and at either method's best pair, too (table2: "
        "c1_equal, c1_ours); on T3 it is not at equal pairs (table3: equal_T3).",
    ],
)


# --- Figure 2 -------------------------------------------------------------------------------------

TASKS = ("T1", "T3")


def radii(scale: Scale) -> Runs:
    for task in TASKS:
        words = "model.gradient_quantiles=true"
        if (scale, task) == ("quick", "T3"):
            words += " rounds=100"
        yield private({"task": task}, words, method="AdaptDP", level=3)


def _offset(of: Facts) -> float:
    """sqrt(2 tau nu): the clip norm that the offset of the radius's noise gives by itself."""
    clients, cap = of("clients"), of("algorithm.clip_norm")
    sigma = 2 * of("ledger.radius.noise_multiplier") / of("algorithm.radius_batch_size")
    failures = 2 * clients * of("rounds") / of("algorithm.offset_failure")
    nu = sigma * cap**2 * math.sqrt(2 / clients) * math.sqrt(math.log(failures))
    return math.sqrt(2 * of("algorithm.radius_multiplier") * nu)


def _smallest(one: Rows, cell: Where, **rounds: Any) -> float:
    """The smallest clip norm of a seed, over its cap."""
    return min(one.values("radius", **cell, **rounds)) / one.value("cap", **cell)


def _at_cap(text: str, task: str, **rounds: Any) -> Judge:
    return shape(text, lambda one, cell: _smallest(one, cell, **rounds) >= 0.999, task=task)


CHANGES = (
    "the paper says that its figure shows adaptive changes of C_r, and gives no number; these are "
    "ours"
)


C4_CAP = Claim(
    "c4_cap",
    "on T1 the clip norm is at its cap in the first 10 rounds",
    "section 5.2, Figure 2",
    _at_cap("C_r >= 0.999 G in rounds 1 to 10", "T1", round=between(1, 10)),
    "holds",
    note=CHANGES,
)


@claim("section 5.2, Figure 2", "holds", note=CHANGES)
def c4_falls(rows: Rows) -> Comparisons:
    """on T1 its mean over the last 50 rounds is below a quarter of the cap"""
    late = rows.mean("radius", **ON_T1, round=between(101, 150))
    yield below(late, 0.25 * rows("cap", **ON_T1))


IN_ANY_ROUND = shape(
    "C_r < G / 2 in some round", lambda one, cell: _smallest(one, cell) < 0.5, **ON_T3
)
WHERE_IT_ENDS = [
    Claim(
        "c5",
        "on T1 it ends within 0.5 and 1.5 times sqrt(2 tau nu), the clip norm that its noise "
        "offset alone gives",
        "ours",
        every(ratio, ["last_radius", "floor"], **ON_T1, within=0.5),
        "holds",
    ),
    Claim(
        "b1_falls",
        "on T3 the clip norm adapts: it ends below half of its cap",
        "section 5.2, Figure 2 (b1)",
        every(below_share, ["last_radius", "cap"], **ON_T3, share=0.5),
        "fails",
        note="the paper says that its figure shows adaptive changes of C_r, and gives no number; "
        "half of the cap is ours. The share of clipped records falls here, to about 80 % in round "
        "1000, and the radius stays at its cap",
        readings={"below 95 % of its cap": {"share": 0.95}, "in any round": IN_ANY_ROUND},
    ),
    Claim(
        "c6",
        "in late rounds tau_0.7 is between 0.5 and 1.5 on both tasks",
        "section 5.2, Figure 2",
        every(level, "last_70", task=TASKS, right=1, within=0.5),
        "holds",
    ),
]


@claim(
    "section 5.2, Figure 2",
    "holds",
    note="that quantiles grow with q is true of any; the paper says of q >= 0.8 that tau_q "
    "converges to a moderate value, which is judged of tau_1 at the end alone: it says moderate, "
    "0.05 n is ours",
)
def c6_order(rows: Rows) -> Comparisons:
    """tau_q grows with q, and tau_1 is small beside its bound n = 3000 (below 0.05 n)"""
    for task in TASKS:
        ordered = [rows(f"last_{q}", task=task) for q in (50, 70, 90, 100)]
        for low, high in pairwise(ordered):
            yield above(high, low)
        yield below(ordered[-1], 150)


@claim("ours", "holds")
def c6_flat(rows: Rows) -> Comparisons:
    """on T1 tau_0.7 does not move (rounds 101 to 150 within 20 % of rounds 1 to 20)"""
    late, early = (
        rows.mean("tau_70", **ON_T1, round=between(*ends)) for ends in ((101, 150), (1, 20))
    )
    yield ratio(late, early, within=0.2)


@claim("ours", "holds")
def clipped_T1(rows: Rows) -> Comparisons:  # noqa: N802
    """on T1 the clip norm clips more than half of the records in round 20 and fewer than 5 % after
    round 100
    """
    yield above(rows("clipped", **ON_T1, round=20), 0.5)
    yield below(rows.mean("clipped", **ON_T1, round=between(101, 150)), 0.05)


@claim(
    "section 5.2",
    note="the first and last five rounds; the paper says it of AdaptDP, but as T3's radius is at "
    "its cap in every round, it is true of a fixed clip norm there",
    readings={"on T1": {"tasks": ["T1"]}, "on T3": {"tasks": ["T3"]}},
)
def unclipped_grows(rows: Rows, tasks: Sequence[str] = TASKS) -> Comparisons:
    """as the training goes on, fewer records are clipped on both tasks"""
    for task in tasks:
        rounds = rows.where(task=task).places("clipped")
        early, late = (
            rows.mean("clipped", task=task, round=between(ends[0], ends[-1]))
            for ends in (rounds[:5], rounds[-5:])
        )
        yield below(late, early)


CAP_T3 = Claim(
    "cap_T3",
    "on T3 the clip norm never leaves its cap",
    "ours",
    _at_cap("C_r >= 0.999 G in every round", "T3"),
    "holds",
    note="so AdaptDP is DP-FedAvg with that clip norm there, but for its noise",
)


fig2 = Artifact(
    id="fig2",
    title="The clip norm of AdaptDP and the quantiles of the records' squared gradient norms",
    shows="AdaptDP at level 3 on the quadratic task (T1) and on MNIST (T3): its clip norm C_r, and "
    "tau_q, the q-quantile of the records' squared gradient norms over their mean. On T1 the clip "
    "norm leaves its cap after some 30 rounds and falls to what its own noise offset allows; tau_q "
    "does not move, because least squares on Gaussian records has the same shape everywhere. On T3 "
    "the clip norm never leaves its cap.",
    source="Figure 2",
    sizes=sized(
        Size(3, 0.3, "T1 as in the paper, T3 100 rounds"), Size(5, 4, "T1 150 rounds, T3 1000")
    ),
    runs=radii,
    measures={
        "radius": Metric("radius", "series", title="clip norm C_r"),
        "clipped": Metric(
            "clipped_fraction", "series", title="share of the records that C_r clips"
        ),
        **{f"tau_{q}": Metric(f"tau_{q}", "series", title=f"q = {q / 100:g}") for q in QUANTILES},
        "cap": Fact("algorithm.clip_norm", title="cap G"),
        "floor": Fact(_offset, title="sqrt(2 tau nu)"),
        "last_radius": Metric("radius", title="clip norm, mean of the last five rounds"),
        **{f"last_{q}": Metric(f"tau_{q}", title=f"tau_{q / 100:g}") for q in (50, 70, 90, 100)},
    },
    tables=[
        Table(
            "The clip norm, its cap and what its offset allows; quantiles over the mean, "
            "mean of the last five rounds",
            "task",
            cells=["cap", "floor", "last_radius", "last_50", "last_70", "last_90", "last_100"],
            notes="The paper reads tau_0.7 as about 1. The quantiles and the share of clipped "
            "records are diagnostics that no epsilon covers.",
        )
    ],
    figures=[
        Figure("lines", "round", "radius", where=ON_T1, log="y", title="T1: clip norm"),
        Figure("lines", "round", "radius", where=ON_T3, y_range=(0.0, 0.06), title="T3: clip norm"),
        Figure(
            "lines",
            "round",
            "clipped",
            panels="task",
            y_range=(0.0, 1.05),
            y_title="share of clipped records",
            title="clipped records",
        ),
        Figure(
            "lines",
            "round",
            [f"tau_{q}" for q in QUANTILES],
            panels="task",
            log="y",
            y_title="quantile / mean",
            title="quantiles of squared gradient norms",
        ),
    ],
    notes=[NOT_SAID, CLIPPED],
)
