"""Table 2: both methods at the selected step sizes and clip norms (section 5.2)."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import product

from dpfl_cli.papers.adaptdp import (
    BOTH,
    DECLARED,
    FRESHLY,
    IMAGES,
    LAST,
    LEVELS,
    LOWEST,
    MARGINS,
    METHODS,
    MISPRINT,
    NOTES,
    ON_T1,
    PRODUCTS,
    SELECTED,
    TASKS,
    TRAINED,
    as_squares,
    at_equal,
    less_scattered,
    losses,
    private,
    quotient,
    seeds_of,
)
from dpfl_cli.reproduction.api import (
    Artifact,
    Claim,
    Comparisons,
    Derived,
    Figure,
    Judge,
    Metric,
    Price,
    Rows,
    Runs,
    Sample,
    Scale,
    Size,
    Table,
    Where,
    above,
    below,
    below_share,
    claim,
    every,
    grid,
    in_factor,
    level,
    near_paper,
    numbers_in,
    ratio,
    sized,
)

OURS = numbers_in("searches/adaptdp_table3", "method", "level")  # the best pairs of T1 at quick
CALIBRATED = ((0.2015, 0.0499), (0.3565, 0.1205), (0.5585, 0.34))  # at DP-FedAvg's epsilon: table1
ROUNDS = {"T2": 10, "T3": 100, "T4": 100}  # at quick
FEDAVG = {"task": "T1", "selection": "paper", "method": "FedAvg"}
CHOSEN = {"selection": "paper"}
LEVEL_3 = {"method": "FedAvg", "level": 3}
INVALID = "dp.mode=paper algorithm.clipping=batch_mean"


def runs(scale: Scale) -> Runs:
    quick = scale == "quick"
    fewer = {task: f"rounds={rounds}" for task, rounds in ROUNDS.items() if quick}
    for labels in grid(task=TASKS, method=METHODS, level=LEVELS):
        task, method, at = labels.values()
        selections: dict[str, Where] = {"paper": {}}
        if task == "T1":
            selections["ours"] = {"pair": OURS[method, at]}
            noise = {"noise": CALIBRATED[at - 1]} if method == "AdaptDP" else {}
            selections["calibrated"] = noise
        if (task, method, at) == ("T3", "AdaptDP", 2):
            selections["printed_noise"] = {"noise": MISPRINT}
        for selection, own in selections.items():
            cell = {**labels, "selection": selection}
            yield private(cell, fewer.get(task, ""), seeds=seeds_of(task, scale), **own)
    for task in ROUNDS:
        labels, words = {"task": task, **LEVEL_3}, f"{INVALID} {fewer.get(task, '')}"
        yield private({**labels, "selection": "invalid"}, words)
        if task in IMAGES:
            yield private({**labels, "selection": "invalid_raw"}, f"{words} dataset.pixels=raw")


def _half(selection: str) -> Judge:
    cells = {"selection": selection, "level": LEVELS}
    return every(below_share, "objective", "method", method=BOTH, **ON_T1, **cells, share=0.5)


HALF = [
    Claim(
        "c1",
        "on T1 AdaptDP's loss is below half of DP-FedAvg's at every level, at the paper's choices",
        "section 5.2, Table 2",
        _half("paper"),
        "holds",
        note="the paper says lower; half is ours",
    ),
    Claim(
        "c1_equal",
        "it is with the noise that the paper's formulas give at DP-FedAvg's epsilon, too",
        "ours",
        _half("calibrated"),
        "holds",
        note="the printed pairs spend more at level 3: epsilon 2947 against 1196 on T1 at the best "
        "order",
    ),
    Claim(
        "c1_ours",
        "it is also with either method's best pair of the grid",
        "ours",
        _half("ours"),
        "holds",
        note="the pairs are those that the seeds 0 to 2 chose in table3 at scale=quick: the seeds "
        "that judge them here at that scale, and have no part in it at scale=paper",
    ),
]


@claim("Table 2", "holds")
def c2(rows: Rows) -> Comparisons:
    """on T1 DP-FedAvg's loss grows as sigma^2, as 1 to 4 to 11.1 within 10 %"""
    yield from as_squares(*rows.each("objective", level=LEVELS, **FEDAVG))


OF_T3 = {"method": BOTH, "task": "T3", **CHOSEN}


@claim(
    "section 5.2, Table 2",
    note=f"the paper says that it consistently is; {PRODUCTS}. On T3 at levels 1 and 2 both have "
    "one pair, and on T2 at level 1. On T4 the pairs that the paper chose for DP-FedAvg are not "
    "the best of its own Table 3: at level 1 (0.3, 0.1) has 1.52e-2 there beside 2.02e-2 of its "
    "choice, at level 2 (0.1, 0.5) 9.57e-3 beside 3.39e-2",
    readings={
        "on T1 and T4": {"tasks": ("T1", "T4")},
        "on T3": {"tasks": ("T3",)},
        "on T2": {"tasks": ("T2",)},
    },
)
def lower(rows: Rows, tasks: Sequence[str] = tuple(TASKS)) -> Comparisons:
    """at the paper's choices AdaptDP's loss is lower than DP-FedAvg's on every task at every
    level"""
    for task in tasks:
        measure = "objective" if task == "T1" else "loss"
        cells = {"task": task, **CHOSEN, "level": LEVELS}
        yield from every(below, measure, "method", method=BOTH, **cells)(rows)


LEVELS_AND_ORDERS = [
    Claim(
        "c1_level",
        "on T1 DP-FedAvg's losses are within 30 % of the paper's",
        "Table 2",
        every(ratio, "objective", **FEDAVG, level=LEVELS, within=0.3),
        "holds",
        note="with 100 dimensions, a round number near what the paper's losses suggest; it does "
        "not say. The margin is ours: an independent run before it was 22 % above. The spread over "
        "seeds that the paper prints is 3 to 8 %",
        readings={
            "within the paper's printed spread": {"compare": near_paper, "within": None},
            "within 50 %": {"within": 0.5},
            "within a factor 2": {"within": 1.0},
        },
    ),
    Claim(
        "c7_T3",
        "on T3 AdaptDP's loss is lower than DP-FedAvg's (by more than 1 %) at levels 1 and 2",
        "section 5.2, Table 2",
        at_equal(task="T3", **CHOSEN, level=(1, 2)),
        "holds",
        note="the paper selects one pair for both at these levels. An earlier page compared all "
        f"three with a tolerance of 1 %, and T4's: {PRODUCTS}. At level 3 AdaptDP also spends "
        "twice the epsilon (below), and at equal pairs a tie counted as lower",
        readings={
            **MARGINS,
            "that, and level 3 at the paper's choices": {"share": 1.01, "level": LEVELS},
            "that on T4 at levels 1 and 2, at the paper's choices": {"share": 1.01, "task": "T4"},
            "by test accuracy": {"compare": above, "measures": "accuracy", "share": None},
        },
    ),
    Claim(
        "variance",
        "on T3 the test accuracy of DP-FedAvg varies more over seeds than AdaptDP's, at every "
        "level",
        "section 5.2",
        every(less_scattered, "accuracy", "method", **OF_T3, level=LEVELS),
        note="the paper speaks of 5.5 and 7.25 points at levels 1 and 2, beside 0.5 and 1.0; at "
        "level 3 its table has 0.35 beside 1.2. Three seeds tell little of a spread",
        readings={"at levels 1 and 2": {"level": (1, 2)}, "on T4": {"task": "T4"}},
    ),
]


@claim("ours", "holds")
def c7_cap(rows: Rows) -> Comparisons:
    """on T3 and T4 the radius stays at its cap"""
    for task, at in product(IMAGES, LEVELS):
        _, cap = SELECTED[task, "AdaptDP", at]
        radius = rows("radius", task=task, **CHOSEN, method="AdaptDP", level=at)
        yield ratio(radius, cap, within=0.001)


def _invalid(rows: Rows, **cell: str) -> Sample:
    """A loss beside the paper's number, which is of its choices."""
    shown = rows("loss", **cell | CHOSEN, **LEVEL_3)
    return replace(rows("loss", **cell, **LEVEL_3), paper=shown.paper)


def _factor_of_mean(rows: Rows) -> Comparisons:
    for task in IMAGES:
        yield from in_factor(_invalid(rows, task=task, selection="invalid_raw"), 10)


def _near_by_mean(rows: Rows) -> Comparisons:
    yield near_paper(_invalid(rows, selection="invalid", task="T2"), within=0.03)


BY_MEAN = "clipping of the minibatch's mean, a guarantee that does not hold (DP-FedAvg, level 3)"
T2 = {"task": "T2", **CHOSEN}
EACH = {"method": METHODS, "level": LEVELS}
BESIDE_THE_PAPER = [
    Claim(
        "levels_T3_T4",
        "the losses on T3 and T4 are within a factor of 10 of the paper's",
        "Table 2",
        every(in_factor, "loss", task=IMAGES, **CHOSEN, **EACH, factor=10),
        "fails",
        note="the paper says that gradients are clipped record by record, and so they are here. "
        "What else its runs did is not known",
        readings={
            "within a factor of 100": {"factor": 100},
            f"pixels of 0 to 255 and {BY_MEAN}": _factor_of_mean,
        },
    ),
    Claim(
        "c8_tie",
        "on T2 the two losses are within 0.01 of each other at every level",
        "Table 2",
        every(level, "loss", "method", method=METHODS, **T2, level=LEVELS, within=0.01),
        note="the paper's clip norms differ at levels 2 (0.5 and 0.1) and 3 (0.05 and 0.1)",
        readings={
            "at level 1, of equal clip norms": {"level": (1,)},
            "within 0.1": {"within": 0.1},
        },
    ),
    Claim(
        "c8_level",
        "the losses on T2 are near the paper's 0.313 (within 0.03)",
        "Table 2",
        every(near_paper, "loss", **T2, **EACH, within=0.03),
        "fails",
        note="with clipping per record at clip norms of 0.05 and 0.1 the loss rises again after "
        "its lowest value, to 0.70 and more in the end; clipping the minibatch's mean (the invalid "
        "reading below) goes further down",
        readings={"within 0.1": {"within": 0.1}, BY_MEAN: _near_by_mean},
    ),
    Claim(
        "batch_mean_T2",
        "on T2 clipping the minibatch's mean in place of the records reaches a loss that is lower "
        "by more than 0.02, at a claim of privacy that does not hold",
        "ours",
        every(
            above,
            "loss",
            "selection",
            selection=("paper", "invalid"),
            task="T2",
            **LEVEL_3,
            by=0.02,
        ),
        "holds",
    ),
    Claim(
        "c8_accuracy",
        "on T2 test accuracies are between 87 and 91 %",
        "Table 2",
        every(level, "accuracy", **T2, **EACH, right=89, within=2),
        "holds",
        note="88.50 % of the test records are of the larger class: but for DP-FedAvg at level 2 "
        "(88.96) no mean accuracy is above that of the constant answer",
    ),
]


def _at_choices(caption: str, *cells: str, notes: Sequence[str] = ()) -> Table:
    """At the paper's choices: a row for every task and level, both methods beside each other."""
    return Table(caption, ["task", "level"], "method", cells, where=CHOSEN, notes=notes)


table2 = Artifact(
    id="table2",
    title="Training loss and test accuracy at the selected step sizes and clip norms",
    shows="DP-FedAvg and AdaptDP-FedAvg on the quadratic task (T1), Bank Marketing (T2), MNIST "
    "(T3) and Fashion-MNIST (T4) at three levels of noise, with the step sizes and clip norms "
    "that the paper selected, and for T1 with those that our search selects. The noise is the "
    "printed one (Table 1); the epsilons stand with the rows, and nearly all of them are vacuous.",
    source="Table 2",
    sizes=sized(
        Size(
            3,
            2,
            "T1 as in the paper; T2 10 rounds of one epoch; T3 and T4 100 rounds, 3000 "
            "training and 10,000 test images",
        ),
        Size(3, 30, f"T1 150 rounds, T2 100, T3 and T4 1000. T2 to T4 have {DECLARED}; {FRESHLY}"),
    ),
    runs=runs,
    measures={
        **losses("min", LOWEST),
        "accuracy": Metric(
            "accuracy", "max", title="highest test accuracy", where={"task": TRAINED}
        ),
        **losses("final", LAST, names=("last_objective", "last_loss")),
        "radius": Metric("radius", title=f"clip norm C_r, {LAST}", where={"method": "AdaptDP"}),
        "eps": Price(
            title="epsilon", where={"selection": ["paper", "calibrated", "printed_noise"]}
        ),
        "ratio": Derived(
            lambda rows: quotient(rows, "objective"),
            ["task", "level", "selection"],
            where=ON_T1,
            title="AdaptDP over DP-FedAvg",
        ),
    },
    show={"clip_norm": "algorithm.clip_norm", "local_lr": "algorithm.local_lr"},
    titles={
        "ours": "best of our grid (table3)",
        "printed_noise": "the paper's, sigma_p 0.093 as printed",
        "calibrated": "the paper's, noise by its formulas at one epsilon",
        "invalid": "the paper's, clipping of the minibatch's mean (no valid guarantee)",
        "invalid_raw": "the same on raw pixels, 0 to 255 (no valid guarantee)",
    },
    tables=[
        Table(
            "T1, the quadratic task: lowest training loss",
            ["selection", "level"],
            "method",
            "objective",
        ),
        Table(
            "T1: AdaptDP's loss over DP-FedAvg's (the paper's: 0.050, 0.142, 0.239)",
            "selection",
            "level",
            "ratio",
        ),
        _at_choices("T2 to T4: lowest training loss, at the paper's choices", "loss"),
        _at_choices(
            "T2 to T4: highest test accuracy (%), at the paper's choices",
            "accuracy",
            notes="T2 holds out a fifth of the records for the test: 18,084 records a client, an "
            "epoch of 181 steps; the paper trains on all 45,211 and does not say what its separate "
            "test set is.",
        ),
        Table(
            "T3 with the misprinted noise, and a reading without a valid guarantee: the "
            "minibatch's mean is clipped, which one record can move by 2C",
            ["selection", "task", "level"],
            "method",
            ["loss", "accuracy"],
            where={"selection": ["invalid", "invalid_raw", "printed_noise"]},
            notes="Pixels are in [0, 1] but where it says raw.",
        ),
        _at_choices(
            "The last rounds, where the lowest value over rounds is an optimistic one",
            *("last_objective", "last_loss", "radius"),
        ),
        _at_choices("Epsilon at delta 1e-4 of each row's whole training", "eps"),
    ],
    figures=[
        Figure(
            "bars",
            "level",
            "objective",
            series="method",
            panels="selection",
            log="y",
            y_title="lowest training loss, T1",
        )
    ],
    notes=NOTES,
)
