"""Figure 4: accuracy against computing time (section 6.6)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dpfl_cli.papers.fednew import PAPER
from dpfl_cli.papers.fednew._common import ADULT, FEATURES, TITLES, accuracy, crossing, run
from dpfl_cli.papers.fednew._over_rounds import NARROW, NARROW_TASKS, TASK_TITLES
from dpfl_cli.reproduction.api import (
    Artifact,
    Comparison,
    Figure,
    Metric,
    Rows,
    Run,
    Scale,
    Size,
    Table,
    below,
    claim,
    each_seed,
)

ROUNDS = (1, *range(5, 75, 5))
METHODS = ("FN", "FN_FC", "FGD", "Scaf")


def chosen(method: str, task: str) -> Mapping[str, Any]:
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


def runs(scale: Scale) -> Iterator[Run]:
    for method in METHODS:
        for task in NARROW_TASKS[scale]:
            preset, values = NARROW[task]
            clients: Mapping[str, Any] = {"partitioner.clients": 10 if task == "tiny" else 50}
            rounds = {"rounds": 5} if scale == "smoke" else {}
            labels = {"task": task, "method": method}
            sizes = {**values, **clients, **rounds, **chosen(method, task)}
            yield run(preset, labels, sizes, exclusive=True)


def until(rows: Rows, task: str, other: str) -> float:
    """Seconds that DP-FedNew computes until it has another method's final accuracy."""
    curve = rows.values("curve", method="FN", task=task)
    seconds: Sequence[float] = rows.values("seconds", method="FN", task=task)
    return crossing(curve, rows.value("accuracy", method=other, task=task), seconds)


@claim(
    source="section 6.6, Figure 4",
    note="at steps of 5 rounds; depends on the step that DP-FedGD may take, here its best",
)
def time(rows: Rows) -> Iterator[Comparison]:
    """DP-FedNew reaches the final accuracy of DP-FedGD and of DP-SCAFFOLD within a quarter of its
    own computing time
    """
    for task in rows.choices("task"):
        for other in ("FGD", "Scaf"):

            def soon(one: Rows, task: str = task, other: str = other) -> bool:
                return until(one, task, other) < 0.25 * one.value("total", method="FN", task=task)

            yield each_seed(rows.by_seed(), soon, f"{TITLES[other]}'s within a quarter ({task})")


@claim(source="ours", note="computing time only; rounds of communication are not in it")
def time_first_order(rows: Rows) -> Iterator[Comparison]:
    """all 70 rounds of DP-FedGD take less time than DP-FedNew takes to DP-FedGD's final accuracy"""
    for task in rows.choices("task"):

        def sooner(one: Rows, task: str = task) -> bool:
            return one.value("total", method="FGD", task=task) < until(one, task, "FGD")

        yield each_seed(rows.by_seed(), sooner, f"DP-FedGD is done first ({task})")


@claim(
    source="section 6.6, Figure 4",
    note="the narrower the layer and the fewer the records, the less a round of DP-FedNew costs",
)
def covariance(rows: Rows) -> Iterator[Comparison]:
    """DP-FedNew-FC computes less than half as long as DP-FedNew"""
    for task in rows.choices("task"):
        whole = rows("total", method="FN", task=task)
        yield below(rows("total", method="FN_FC", task=task), 0.5 * whole)


def by_round(caption: str, measure: str) -> Table:
    return Table(
        caption=caption,
        rows=["task", "method"],
        columns=["round"],
        cells=[measure],
        where={"round": [5, 10, 20, 30, 50, 70]},
    )


fig4 = Artifact(
    paper=PAPER,
    id="fig4",
    title="Test accuracy against computing time, record level, 50 clients",
    shows=(
        "How long DP-FedNew, DP-FedNew-FC, DP-FedGD and DP-SCAFFOLD compute, all clients and the "
        "server together, for what accuracy, over 70 rounds at epsilon 1. A round of DP-FedNew "
        "solves a linear system per client, so what fewer rounds are worth in time depends on the "
        "implementation. Seconds are one machine's: what counts is their ratio. The floats that "
        "clients send stand beside them."
    ),
    source="Figure 4",
    sizes={
        "smoke": Size(1, 0.2, "10 clients with 20 images each and 5 rounds; times mean nothing"),
        "quick": Size(1, 0.3, "Adult whole, and 6000 images"),
        "paper": Size(5, 60),
    },
    runs=runs,
    measures={
        "accuracy": accuracy("test accuracy after the last round (%)", at="last"),
        "curve": accuracy("test accuracy", at="series", rounds=ROUNDS),
        "seconds": Metric(
            metric="timing.compute", at="series", rounds=ROUNDS, title="computing time", unit="s"
        ),
        "total": Metric(
            metric="timing.compute",
            at="last",
            title="computing time of all rounds (s)",
            unit="s",
            scale="log",
        ),
        "operations": Metric(
            metric="timing.flops_per_round",
            title="floating-point operations a round (FLOP)",
            unit="FLOP",
        ),
        "floats": Metric(
            metric="communication.uplink_floats", decimals=0, title="floats that a client sends"
        ),
    },
    show={"origin": "source"},
    titles={**TITLES, **TASK_TITLES},
    tables=[
        by_round("Computing time (s) after so many rounds", "seconds"),
        by_round("Test accuracy (%) after so many rounds", "curve"),
        Table(
            caption="In all",
            rows=["task", "method"],
            columns=["measure"],
            cells=["accuracy", "total", "operations", "floats"],
            notes=["operations are those of torch's products, counted in two rounds beforehand"],
        ),
    ],
    figures=[
        Figure(
            kind="lines",
            x="seconds",
            measures=["curve"],
            series="method",
            panels=["task"],
            x_title="computing time (s)",
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
