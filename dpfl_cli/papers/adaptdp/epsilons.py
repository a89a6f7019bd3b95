"""Ours: the same comparison at epsilons that mean something."""

from itertools import product

from dpfl_cli.papers.adaptdp import (
    APART,
    BEST_PAIRS,
    BOTH,
    BY_OTHERS,
    CHOSEN_BY,
    DECLARED,
    LAST,
    NOT_SAID,
    TASKS,
    losses,
)
from dpfl_cli.reproduction.api import (
    CHOSEN,
    Artifact,
    Claim,
    Comparisons,
    Fact,
    Figure,
    Metric,
    Price,
    Rows,
    Run,
    Runs,
    Scale,
    Size,
    Table,
    above,
    below,
    claim,
    every,
    grid,
    level,
    sized,
)

TARGETS = {"e1": 1, "e4": 4, "e8": 8}
METHODS = {
    "FedAvg": "algorithm=fedavg_record",
    "AdaptDP": "algorithm=adaptdp algorithm.radius_batch_size=100",
}
GRIDS = {  # step sizes, clip norms
    "T1": ((0.001, 0.01, 0.03, 0.1), (0.5, 1.0, 3.0, 5.0)),
    "T2": ((0.03, 0.1, 0.3), (0.5, 1.0, 3.0)),
}


def runs(scale: Scale) -> Runs:
    for task, (steps, caps) in GRIDS.items():
        fewer = {"rounds": 5} if (scale, task) == ("quick", "T2") else {}
        for labels in grid(task=task, target=TARGETS, method=METHODS, eta=steps, cap=caps):
            target, method = TARGETS[labels["target"]], METHODS[labels["method"]]
            overrides = (
                f"+experiment=adaptdp/{TASKS[task]} accountant=rdp dp.epsilon={target} {method}"
            )
            chosen = {"algorithm.local_lr": labels["eta"], "algorithm.clip_norm": labels["cap"]}
            yield Run(labels, overrides, chosen | fewer)


@claim("ours", "holds", invariant=True)
def met(rows: Rows) -> Comparisons:
    """every run's epsilon is at most its target, and within 0.1 % of it"""
    for task, (target, epsilon) in product(GRIDS, TARGETS.items()):
        for spent in rows.each("eps", task=task, target=target, method=METHODS):
            yield level(spent / epsilon, 0.9995, within=0.0005 + 1e-9)


T1 = Claim(
    "T1",
    "on T1 AdaptDP's best loss is below DP-FedAvg's best loss at every epsilon",
    "ours",
    every(below, "objective", "method", task="T1", target=TARGETS, method=BOTH, **CHOSEN),
    note="half of the budget goes to the radius, whose offset keeps it at or near its cap under "
    "this much noise",
    readings={APART: BY_OTHERS},
)


@claim(
    "ours",
    note="the paper's theorem, which knows no amplification here below about 6, asked for nine "
    "and eight times the noise of DP-FedAvg at epsilon 1 and 4, where its losses were 93 and 81",
)
def T1_learns(rows: Rows) -> Comparisons:  # noqa: N802
    """on T1 both methods end below a tenth of the loss before round 1 at every epsilon"""
    for cell in grid(task="T1", target=TARGETS, method=METHODS):
        yield above(0.1 * rows("start", **cell), rows("objective", **cell, **CHOSEN))


T2 = Claim(
    "T2",
    "on T2 the two methods' best losses are within 0.01 of each other at every epsilon",
    "ours",
    every(level, "loss", "method", task="T2", target=TARGETS, method=BOTH, **CHOSEN, within=0.01),
    note="the best cap is the largest of the grid, 3, and the adaptive clip norm ends at half of "
    "it; at scale=quick the best pairs are the largest of the grid, after so few rounds: the cap "
    "that is best clips nearly nothing, and the adaptive clip norm is below it",
    readings={APART: BY_OTHERS},
)


def _bars(measure: str, task: str, *log: str) -> Figure:
    return Figure(
        "bars",
        "target",
        measure,
        series="method",
        where=CHOSEN,
        log=log,
        title=f"{task}: training loss, best pairs",
        y_title="training loss",
    )


eps_honest = Artifact(
    id="eps_honest",
    title="DP-FedAvg and AdaptDP at epsilon 1, 4 and 8",
    shows="The quadratic task (T1) and Bank Marketing (T2) with noise calibrated to epsilon 1, 4 "
    "and 8 at delta 1e-4 for the whole training, in place of the paper's levels, most of whose "
    "epsilons lie between 100 and a million. Each method with the best pair of its grid. Does the "
    "adaptive clip norm still help? Batches are amplified by theorem 27 of Wang, Balle and "
    "Kasiviswanathan (accountant=rdp). On T1 the accountant decides as much as the methods: the "
    "paper's own, by theorem 9, knows no amplification there below about 6.",
    source="its methods; the comparison is ours",
    sizes=sized(
        Size(3, 1.5, "T1 150 rounds of 20 steps; T2 5 rounds of 181"),
        Size(3, 5, f"T1 150 rounds of 20 steps; T2 100 rounds of 181; {DECLARED}"),
    ),
    runs=runs,
    measures={
        **losses("final", f"training loss, {LAST}", "T2"),
        **losses(
            "first",
            "training loss before round 1",
            "T2",
            names=("start", "start_loss"),
            better=None,
            **CHOSEN,
        ),
        "accuracy": Metric(
            "accuracy", title=f"test accuracy, {LAST}", where={"task": "T2", **CHOSEN}
        ),
        "radius": Metric(
            "radius", title=f"clip norm C_r, {LAST}", where={"method": "AdaptDP", **CHOSEN}
        ),
        "noise": Fact("ledger.gradient.noise_multiplier", title="noise multiplier", where=CHOSEN),
        "eps": Price(decimals=4, title="epsilon", where=CHOSEN),
        "eps_wang": Price(
            "wang_rdp", decimals=4, title="epsilon by theorem 9 at its best order", where=CHOSEN
        ),
        "eps_paper": Price(
            "wang_rdp",
            options={"order": "paper"},
            decimals=4,
            title="epsilon at the paper's order, by theorem 9 as printed",
            where=CHOSEN,
        ),
    },
    best=BEST_PAIRS,
    titles={
        "target": "target epsilon",
        **{name: f"epsilon {epsilon}" for name, epsilon in TARGETS.items()},
    },
    tables=[
        Table(
            "Training loss of the last five rounds with each method's best pair, beside "
            "the loss before round 1",
            ["task", "target"],
            "method",
            ["objective", "start", "loss", "start_loss"],
            where=CHOSEN,
        ),
        Table(
            "The best pairs, and the clip norm that AdaptDP ended with",
            ["task", "target"],
            "method",
            ["best.eta", "best.cap", "radius"],
        ),
        Table("Test accuracy (%) on T2", "target", "method", "accuracy"),
        Table(
            "What the noise costs: by theorem 27, by theorem 9 at its best order, and as the paper "
            "prices it",
            ["task", "target"],
            "method",
            ["noise", "eps", "eps_wang", "eps_paper"],
            notes="As printed theorem 9 has terms that do not fall with the noise: on T1 no noise "
            "reaches an epsilon below 6.14 in the paper's way; accountant.order=paper refuses such "
            "targets in one line.",
        ),
    ],
    figures=[_bars("objective", "T1", "y"), _bars("loss", "T2")],
    notes=[NOT_SAID, CHOSEN_BY],
)
