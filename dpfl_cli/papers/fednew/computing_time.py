"""Figure 4: accuracy against computing time (section 6.6)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

from dpfl_cli.papers.fednew import ADULT, FEATURES, PAPER, TITLES
from dpfl_cli.papers.fednew._claims import crossing
from dpfl_cli.papers.fednew._search import ACCURACY, NARROW, Values, run
from dpfl_cli.reproduction.api import (
    Artifact,
    Comparisons,
    Derived,
    Figure,
    Metric,
    Rows,
    Runs,
    Scale,
    Size,
    Table,
    below,
    claim,
    each_seed,
)

ROUNDS = (1, *range(5, 75, 5))
METHODS = ("FN", "FN_FC", "FGD", "Scaf")


def chosen(method: str, task: str) -> Values:
    """The best of 100 clients at epsilon 1, of table 8 on Adult and of table 4 elsewhere."""
    adult = task == "adult"
    if method == "FGD":
        return {"algorithm.server_lr": 3.0 if adult else 10.0}
    if method == "Scaf":
        return {"algorithm.local_steps": 1, "algorithm.local_lr": 2.0}
    return {
        "algorithm.damping": 0.1,
        "algorithm.penalty": 1.0 if adult else 0.1,
        "algorithm.curvature_clip_norm": 0.1 if adult else 0.01,
    }


def runs(scale: Scale) -> Runs:
    for method, (task, (preset, values)) in product(METHODS, NARROW[scale].items()):
        clients: Values = {"partitioner.clients": 10 if task == "tiny" else 50}
        rounds = {"rounds": 5} if scale == "smoke" else {}
        own = {**values, **clients, **rounds, **chosen(method, task)}
        yield run(preset, {"task": task, "method": method}, own, exclusive=True)


def share(rows: Rows) -> float:
    """The computing time so far over that of all rounds of DP-FedNew on the same data."""
    return rows.value("seconds") / rows.beside(method="FN", round="").value("total")


def until(rows: Rows, task: str, other: str) -> float:
    """Seconds that DP-FedNew computes until it has another method's final accuracy."""
    curve = rows.values("curve", method="FN", task=task)
    seconds: Sequence[float] = rows.values("seconds", method="FN", task=task)
    return crossing(curve, rows.value("accuracy", method=other, task=task), seconds)


@claim(
    "section 6.6, Figure 4",
    note="at steps of 5 rounds; depends on the step that DP-FedGD may take, here its best",
)
def time(rows: Rows) -> Comparisons:
    """DP-FedNew reaches the final accuracy of DP-FedGD and of DP-SCAFFOLD within a quarter of its
    own computing time
    """
    for task, other in product(rows.choices("task"), ("FGD", "Scaf")):

        def soon(one: Rows, task: str = task, other: str = other) -> bool:
            return until(one, task, other) < 0.25 * one.value("total", method="FN", task=task)

        yield each_seed(rows.by_seed(), soon, f"{TITLES[other]}'s within a quarter ({task})")


@claim("ours", note="computing time only; rounds of communication are not in it")
def time_first_order(rows: Rows) -> Comparisons:
    """all 70 rounds of DP-FedGD take less time than DP-FedNew takes to DP-FedGD's final accuracy"""
    for task in rows.choices("task"):

        def sooner(one: Rows, task: str = task) -> bool:
            return one.value("total", method="FGD", task=task) < until(one, task, "FGD")

        yield each_seed(rows.by_seed(), sooner, f"DP-FedGD is done first ({task})")


@claim(
    "section 6.6, Figure 4",
    note="the narrower the layer and the fewer the records, the less a round of DP-FedNew costs",
)
def covariance(rows: Rows) -> Comparisons:
    """DP-FedNew-FC computes less than half as long as DP-FedNew"""
    for task in rows.choices("task"):
        whole = rows("total", method="FN", task=task)
        yield below(rows("total", method="FN_FC", task=task), 0.5 * whole)


def by_round(caption: str, measure: str) -> Table:
    return Table(
        caption,
        rows=["task", "method"],
        columns="round",
        cells=measure,
        where={"round": [5, 10, 20, 30, 50, 70]},
    )


SHARE = "computing time, DP-FedNew in all = 1"
fig4 = Artifact(
    paper=PAPER,
    id="fig4",
    title="Test accuracy against computing time, record level, 50 clients",
    shows=(
        "How long DP-FedNew, DP-FedNew-FC, DP-FedGD and DP-SCAFFOLD compute, all clients and the "
        "server together, for what accuracy, over 70 rounds at epsilon 1. Times are shares of what "
        "all rounds of DP-FedNew take on the same data, for seconds are one machine's. A round of "
        "DP-FedNew solves a linear system per client, so what fewer rounds are worth in time "
        "depends on the implementation. The floats that clients send stand beside them."
    ),
    source="Figure 4",
    sizes={
        "smoke": Size(1, 0.2, "10 clients with 20 images each and 5 rounds; times mean nothing"),
        "quick": Size(1, 0.3, "Adult whole, and 6000 images"),
        "paper": Size(5, 60),
    },
    runs=runs,
    measures={
        "accuracy": ACCURACY,
        "curve": Metric("accuracy", "series", rounds=ROUNDS),
        "seconds": Metric(
            "timing.compute", "series", rounds=ROUNDS, title="computing time", unit="s"
        ),
        "total": Metric(
            "timing.compute",
            "last",
            title="computing time of all rounds (s)",
            unit="s",
            scale="log",
        ),
        "operations": Metric(
            "timing.flops_per_round",
            title="floating-point operations a round (FLOP)",
            unit="FLOP",
        ),
        "floats": Metric(
            "communication.uplink_floats", decimals=0, title="floats that a client sends"
        ),
        "share": Derived(share, ["task", "method", "round"], decimals=3, title=SHARE),
        "ratio": Derived(
            lambda rows: rows.value("total") / rows.beside(method="FN").value("total"),
            ["task", "method"],
            decimals=2,
            title=SHARE,
        ),
    },
    show={"origin": "source"},
    titles=TITLES,
    tables=[
        by_round("Computing time after so many rounds, DP-FedNew's of all rounds = 1", "share"),
        by_round("Test accuracy (%) after so many rounds", "curve"),
        Table(
            "In all",
            rows=["task", "method"],
            columns="measure",
            cells=["accuracy", "ratio", "total", "operations", "floats"],
            notes="operations are those of torch's products, counted in two rounds beforehand",
        ),
    ],
    figures=[
        Figure(
            "lines",
            x="share",
            measures="curve",
            series="method",
            panels="task",
            x_title=SHARE,
            y_title="test accuracy (%)",
        )
    ],
    claims=[time, time_first_order, covariance],
    notes=[
        "Every run is alone on the machine, one after another, and anew whenever the artifact is "
        "made; evaluation is not in the times.",
        ADULT,
        FEATURES,
    ],
)
