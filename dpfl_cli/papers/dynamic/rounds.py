"""Figure 1: the final optimality against the number of rounds on ijcnn1 (section 5.1)."""

from collections.abc import Sequence
from itertools import pairwise, permutations
from typing import Any

from dpfl_cli.papers.dynamic import IJCNN1, OURS, PRINTED, after_rounds, least, optimality
from dpfl_cli.reproduction.api import (
    OTHERS,
    Artifact,
    Best,
    Claim,
    Comparisons,
    Metric,
    Price,
    Rows,
    Run,
    Runs,
    Sample,
    Scale,
    Size,
    Table,
    Values,
    Where,
    above,
    below,
    between,
    claim,
    every,
    falling,
    grid,
    sized,
)

ROUNDS = {
    "quick": (1000, 2000, 3000, 5000, 8000),
    "paper": range(1000, 9000, 1000),
}
METHODS = {
    "dynamic": "algorithm=primal_dual algorithm.strong_convexity=0.1",
    "static": "algorithm=primal_dual algorithm.schedule=static",
    "ISRL": "algorithm=isrl_dp",
    "FedAvg": "algorithm=fedavg_record",
    "SCAFFOLD": "algorithm=scaffold_record",
}
STATIC = ("ISRL", "FedAvg", "SCAFFOLD")
BY_T = ("dynamic", *STATIC)  # whose step is tuned for every T
ORDERS = {"sorted": "sorted", "order": "file"}
STEPS = (0.0005, 0.00125, 0.0025, 0.005, 0.0125, 0.05)  # how far the mean moves
WORKERS = 20
ONE_STEP = {"tuned": "fixed", "split": "sorted"}
BEST_STEP = {"tuned": "per_T", "best": True}
STEP_BY_OTHERS = {"tuned": "per_T", "best": OTHERS}


def _step(method: str, step: float, local_steps: int) -> Values:
    """Values with which the mean moves by `step` times the gradient in a round."""
    if method in ("dynamic", "static"):
        return {"algorithm.step": round(step * WORKERS, 6)}
    if method == "ISRL":
        return {"algorithm.step": step}
    local_lr = round(step / local_steps, 9)
    return {"algorithm.local_steps": local_steps, "algorithm.local_lr": local_lr}


def runs(scale: Scale) -> Runs:
    local_steps = 5 if scale == "paper" else 2

    def run(labels: Where, start: str, step: float, local_steps: int) -> Run:
        method = labels["method"]
        values = {"rounds": labels["T"], **_step(method, step, local_steps)}
        return Run(labels, f"{IJCNN1} {start} {METHODS[method]}", values)

    for labels in grid(tuned="fixed", split=ORDERS, T=ROUNDS[scale], method=METHODS):
        yield run(labels, f"dataset.order={ORDERS[labels['split']]}", 0.0125, local_steps)
    for labels in grid(tuned="per_T", split="sorted", T=ROUNDS[scale], method=BY_T, step=STEPS):
        if (labels["method"], labels["step"]) != ("dynamic", STEPS[-1]):
            yield run(labels, "model.init=zeros", labels["step"], 2)


def _lowest(cells: Sequence[Sample]) -> Sample:
    return min(cells, key=lambda one: one.mean)


def _flat(*cells: Sample, most: float = 1.5) -> Comparisons:
    """The largest is at most `most` times the smallest."""
    for one, other in permutations(cells, 2):
        yield below(one, most * other)


APART = "every seed's step chosen by the other seeds"
FIGURE_1 = "section 5.1, Figure 1"
TUNED_ZERO = "the best step for every T, from x0 = 0"
OTHER_RUNS: Where = {"records in file order": {"split": "order"}, TUNED_ZERO: BEST_STEP}
DYNAMIC = {"method": "dynamic"}
FEW = {**DYNAMIC, "T": (1000, 2000)}
FIXED = {"split": "sorted", "tuned": "fixed"}
TUNED_BASELINES = {"method": BY_T, **BEST_STEP}


def _ordered_on_average(rows: Rows) -> Comparisons:
    return falling(*(rows.mean("optimality", method=one, **ONE_STEP) for one in STATIC))


def _lower_apart(rows: Rows) -> Comparisons:
    for rounds in rows.choices("T"):
        best = rows("optimality", method=STATIC, T=rounds, **STEP_BY_OTHERS)
        yield below(best, 1.05 * rows("optimality", **DYNAMIC, T=rounds, **STEP_BY_OTHERS))


CLAIMS = [
    Claim(
        "c1",
        "with the dynamic schedule the final optimality stabilises, it does not depend on T once T "
        "is at least 3000 (largest at most 1.5 times smallest)",
        FIGURE_1,
        every(_flat, "optimality", "T", **DYNAMIC, T=between(3000, 8000), **FIXED),
        "holds",
        note="the 3000 rounds and the factor are ours",
        readings={
            "largest at most twice the smallest": {"most": 2.0},
            "from T = 4000 on": {"T": between(4000, 8000)},
            **OTHER_RUNS,
            f"that, {APART}": STEP_BY_OTHERS,
        },
    ),
    Claim(
        "c2",
        "the proposed method improves from 1000 to 2000 rounds",
        FIGURE_1,
        every(above, "optimality", "T", **FEW, **FIXED),
        "holds",
        note="from a start at N(0, I), which was chosen because it gives this; see c2_zero",
    ),
    Claim(
        "c2_zero",
        "it does so from x0 = 0 as well",
        "ours",
        every(above, "optimality", "T", **FEW, split="sorted", tuned="per_T", step=0.0125),
        "fails",
    ),
]


@claim(
    FIGURE_1,
    "holds",
    note="some T is that of the lowest mean",
    readings={TUNED_ZERO: {"methods": STATIC, **BEST_STEP}},
)
def c3(rows: Rows, methods: Sequence[str] = (*STATIC, "static"), **labels: Any) -> Comparisons:
    """with one step size for all T every baseline is U-shaped, some T is better than 1000 and 1.5
    times better than 8000"""
    labels = FIXED | labels
    for method in methods:
        few, many = rows.each("optimality", method=method, T=(1000, 8000), **labels)
        best = _lowest(rows.each("optimality", method=method, T=rows.choices("T"), **labels))
        yield above(few, best)
        yield above(many, 1.5 * best)


OF_BASELINES = [
    Claim(
        "c4",
        "at T = 8000 the proposed method is better than every baseline with the same step of the "
        "mean",
        FIGURE_1,
        every(least, "optimality", "method", method=(*BY_T, "static"), T=8000, **FIXED),
        "holds",
        note="the paper says so also for very large T; that it is judged at 8000, the largest "
        "here, and not at every T, is ours",
        readings={
            "at every T": {"T": ...},
            TUNED_ZERO: TUNED_BASELINES,
            f"{TUNED_ZERO}, at every T": {"T": ..., **TUNED_BASELINES},
        },
    ),
    Claim(
        "c5",
        "DP-FedAvg ends better than ISRL-DP, and DP-SCAFFOLD better than DP-FedAvg, at every T",
        FIGURE_1,
        every(falling, "optimality", "method", method=STATIC, T=..., **FIXED),
        "fails",
        note="the paper says so of its figure, whose T it does not single out; with the same noise "
        "for every gradient and the same step of the mean the three are the same method to first "
        "order in the step size, so that the order depends on how each is calibrated and tuned",
        readings={
            "on average over T": _ordered_on_average,
            **OTHER_RUNS,
            f"that, {APART}": STEP_BY_OTHERS,
            "by the squared error of the mean": {"measures": "error"},
            "that none is more than 1 % worse": {
                "compare": lambda *methods: (
                    below(after, 1.01 * one) for one, after in pairwise(methods)
                )
            },
        },
    ),
    Claim(
        "c6_flat",
        "with the best step for every T the static baselines are flat too (largest at most 1.5 "
        "times smallest)",
        "ours",
        every(_flat, "optimality", "T", method=STATIC, T=..., split="sorted", **BEST_STEP),
        "holds",
        note="the steps are chosen by the seeds that are then judged",
        readings={APART: STEP_BY_OTHERS},
    ),
    Claim(
        "c6_lower",
        "at every T some static baseline with its best step is within 5 % of the proposed method "
        "with its own best step, or better",
        "ours",
        every(
            lambda dynamic, *others: below(_lowest(others), 1.05 * dynamic),
            "optimality",
            "method",
            method=BY_T,
            T=...,
            split="sorted",
            **BEST_STEP,
        ),
        "holds",
        note="so from x0 = 0 the schedule's advantage is robustness to a wrong T; the baseline "
        "is that of the lowest mean over the same seeds, and the steps are chosen by them too",
        readings={"every seed's steps and baseline chosen by the other seeds": _lower_apart},
    ),
]


fig1 = Artifact(
    id="fig1",
    title="Final optimality against the number of rounds, regularised logistic regression on "
    "ijcnn1",
    shows="Every T is a run of its own, its noise calibrated to epsilon 1 over all T rounds. With "
    "one step size for all T the methods with equal noise in every round (DP-FedAvg, "
    "DP-SCAFFOLD, ISRL-DP, and the proposed method with a static schedule) first improve and "
    "then drown in noise; the dynamic schedule, which spends the budget late, improves like "
    "them up to T = 2000 and changes little from there on. From x0 = 0, with two local steps and a "
    "step size tuned for every T, the static baselines change little either, and all methods end "
    "near each other: there the schedule buys robustness to a wrong T, not a lower floor. Steps "
    "tuned for every T from the other start were not run.",
    source="Figure 1",
    sizes=sized(
        Size(5, 3.4, "20 workers with 100 records each, 2 local steps"),
        Size(20, 10, "20 workers with 100 records each, 5 local steps (2 where the step is tuned)"),
    ),
    runs=runs,
    measures={
        "optimality": optimality("last", "optimality"),
        "error": Metric("squared_error", "last", title="relative squared error of the mean"),
        "epsilon": Price("zcdp", decimals=6, title="epsilon by zCDP", where=ONE_STEP),
        "exact": Price("gdp", decimals=6, title="exact epsilon", where=ONE_STEP),
        "consensus": Metric(
            "consensus",
            "last",
            absent=0.0,
            decimals=3,
            title="distance between the workers' copies",
        ),
    },
    best=[
        Best(
            "step",
            "optimality",
            where={"tuned": "per_T"},
            note="lowest optimality, tuned with x* in hand",
        )
    ],
    titles={
        "split": "records of the workers",
        "tuned": "step size",
        "step": "step of the mean",
        "fixed": "one for all T",
        "per_T": "best for every T",
        "sorted": "sorted by label",
        "order": "in file order",
        "dynamic": "proposed, dynamic noise",
        "static": "proposed, static noise",
    },
    tables=[
        Table(
            "Final optimality, one step size for all T (x0 normal)",
            ["split", "method"],
            "T",
            "optimality",
            where={"tuned": "fixed"},
        ),
        Table(
            "Final optimality, best step size for every T (sorted by label, x0 = 0)",
            "method",
            "T",
            "optimality",
            where=BEST_STEP,
        ),
        Table("The step that was the best", "method", "T", "best.step"),
        Table(
            "Its two terms: relative squared error of the mean model, and distance between "
            "the workers' copies",
            ["split", "method"],
            "T",
            ["error", "consensus"],
            where={"tuned": "fixed"},
        ),
        Table(
            "What every run spends at delta 1e-4: the paper's accountant, and exact "
            "Gaussian composition",
            "method",
            "T",
            ["epsilon", "exact"],
        ),
    ],
    figures=[
        after_rounds(
            series="method",
            panels="split",
            where={"tuned": "fixed"},
            share_y=True,
            title="one step size for all T",
        ),
        after_rounds(series="method", where=BEST_STEP, title="best step size for every T, x0 = 0"),
    ],
    notes=[
        f"{OURS}; 2,000 records drawn at random and sorted by label, and beside them the first "
        "2,000 in file order, which are other records: what differs between the panels is not due "
        "to the order alone; baselines with the same step of the mean, the number of local steps, "
        "and a start drawn from N(0, I). That start, the unit norms and the step were chosen among "
        "several because the shapes that the paper describes come out; with the start at 0 some do "
        "not (c2_zero).",
        "The paper tunes the parameters of all methods for the best performance (section 5.1), and "
        "says neither what came out nor whether they were tuned once or for every T: the first "
        "panels have one step for all T, which is not tuned, the last one the best for every T.",
        "The paper gives no numbers for this figure: the factors of 1.5 in c1 and c3 are ours.",
        PRINTED,
        "Baselines add equal noise to every noisy gradient, under the same accountant as the "
        "proposed method.",
        "The best step for every T has the lowest mean over the seeds that are then judged, for "
        "every method alike: optimalities with it are a little low.",
    ],
)
