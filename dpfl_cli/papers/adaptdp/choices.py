"""Table 2: both methods at the selected step sizes and clip norms (section 5.2)."""

from collections.abc import Sequence
from dataclasses import replace

from dpfl_cli.papers.adaptdp import (
    BOTH,
    CLIPPED,
    FRESH,
    FRESHLY,
    IMAGES,
    LAST,
    LEVELS,
    LOWEST,
    METHODS,
    MISPRINT,
    NAMES,
    ON_T1,
    PRODUCTS,
    READ_AS,
    SELECTED,
    TASKS,
    TIE,
    TINY,
    TRAINED,
    losses,
    lower_at_equal,
    private,
    quotient,
)
from dpfl_cli.papers.adaptdp._levels import (
    CHOSEN,
    batch_mean_T2,
    c8_accuracy,
    c8_level,
    c8_tie,
    levels_T3_T4,
)
from dpfl_cli.reproduction.api import (
    Artifact,
    Comparisons,
    Derived,
    Figure,
    Metric,
    PaperNumbers,
    Price,
    Rows,
    Runs,
    Sample,
    Scale,
    Size,
    Table,
    above,
    below,
    claim,
    grid,
    level,
    near_paper,
)

OURS = {  # the best of table3
    "FedAvg": ((0.3, 0.5),) * 3,
    "AdaptDP": ((0.3, 0.5), (0.1, 1.0), (0.1, 1.0)),
}
CALIBRATED = ((0.2015, 0.0499), (0.3565, 0.1205), (0.5585, 0.34))  # at DP-FedAvg's epsilon: table1
ROUNDS = {"T2": 10, "T3": 100, "T4": 100}  # at quick
FEDAVG = {"task": "T1", "selection": "paper", "method": "FedAvg"}
INVALID = ("dp.mode=paper", "algorithm.clipping=batch_mean")


def runs(scale: Scale) -> Runs:
    for labels in grid(task=TASKS, method=METHODS, level=LEVELS):
        task, method, at = labels.values()
        fewer = {"rounds": ROUNDS[task]} if scale == "quick" and task in ROUNDS else {}
        values = TINY if scale == "smoke" else fewer
        seeds = FRESH if (task, scale) == ("T1", "paper") else ()
        yield private({**labels, "selection": "paper"}, values, seeds=seeds)
        if task == "T1":
            pair = OURS[method][at - 1]
            yield private({**labels, "selection": "ours"}, values, pair=pair, seeds=seeds)
            noise = CALIBRATED[at - 1] if method == "AdaptDP" else None
            labels["selection"] = "calibrated"
            yield private(labels, values, noise=noise, seeds=seeds)
        if (task, method, at) == ("T3", "AdaptDP", 2):
            yield private({**labels, "selection": "printed_noise"}, values, noise=MISPRINT)
    for task, rounds in ROUNDS.items() if scale != "smoke" else ():
        labels = {"task": task, "method": "FedAvg", "level": 3}
        values = {"rounds": rounds} if scale == "quick" else {}
        yield private({**labels, "selection": "invalid"}, values, INVALID)
        if task in IMAGES:
            raw = {**values, "dataset.pixels": "raw"}
            yield private({**labels, "selection": "invalid_raw"}, raw, INVALID)


def _half(rows: Rows, selection: str) -> Comparisons:
    cell = {"task": "T1", "selection": selection}
    for at in LEVELS:
        ours, theirs = rows.each("objective", method=BOTH, **cell, level=at)
        yield below(ours, 0.5 * theirs)


@claim("section 5.2, Table 2", "holds")
def c1(rows: Rows) -> Comparisons:
    """on T1 AdaptDP's loss is below half of DP-FedAvg's at every level, at the paper's choices"""
    yield from _half(rows, "paper")


@claim(
    "ours",
    "holds",
    note="the printed pairs spend more at level 3: epsilon 2947 against 1196 on T1 at the best "
    "order",
)
def c1_equal(rows: Rows) -> Comparisons:
    """it is with the noise that the paper's formulas give at DP-FedAvg's epsilon, too"""
    yield from _half(rows, "calibrated")


@claim("ours", "holds")
def c1_ours(rows: Rows) -> Comparisons:
    """it is also with either method's best pair of the grid"""
    yield from _half(rows, "ours")


@claim("Table 2", "holds")
def c2(rows: Rows) -> Comparisons:
    """on T1 DP-FedAvg's loss grows as sigma^2, as 1 to 4 to 11.1 within 10 %"""
    one, *others = rows.each("objective", level=LEVELS, **FEDAVG)
    for loss, factor in zip(others, (4, 11.111), strict=True):
        yield level(loss / one / factor, 1, within=0.1)


def _in_spread(rows: Rows) -> Comparisons:
    for loss in rows.each("objective", **FEDAVG, level=LEVELS):
        yield near_paper(loss)


@claim(
    "Table 2",
    "holds",
    note="with 100 dimensions, which is what the paper's losses imply; it does not say. The margin "
    "is ours",
    readings={
        "within the paper's printed spread": _in_spread,
        "within 50 %": {"within": 0.5},
        "within a factor 2": {"within": 1.0},
    },
)
def c1_level(rows: Rows, within: float = 0.3) -> Comparisons:
    """on T1 DP-FedAvg's losses are within 30 % of the paper's"""
    for loss in rows.each("objective", **FEDAVG, level=LEVELS):
        yield level(loss / loss.printed, 1, within=within)


def _more_accurate(rows: Rows) -> Comparisons:
    for at in (1, 2):
        yield above(*rows.each("accuracy", method=BOTH, task="T3", **CHOSEN, level=at))


@claim(
    "section 5.2, Table 2",
    "holds",
    note="the paper selects one pair for both at these levels. An earlier page compared all three "
    f"with a tolerance of 1 %, and T4's: {PRODUCTS}. At level 3 AdaptDP also spends twice the "
    "epsilon (below), and at equal pairs a tie counted as lower",
    readings={
        "equal to 1 % counts as well": {"share": 1.01},
        "that, and level 3 at the paper's choices": {"share": 1.01, "levels": LEVELS},
        "that on T4 at levels 1 and 2, at the paper's choices": {"share": 1.01, "task": "T4"},
        "by test accuracy": _more_accurate,
    },
)
def c7_T3(  # noqa: N802
    rows: Rows, share: float = TIE, task: str = "T3", levels: Sequence[int] = (1, 2)
) -> Comparisons:
    """on T3 AdaptDP's loss is lower than DP-FedAvg's (by more than 1 %) at levels 1 and 2"""
    yield from lower_at_equal(rows, share, task=task, **CHOSEN, level=levels)


def _scattered(accuracy: Sample) -> Sample:
    """How far it is from its mean over seeds (Levene's test of spreads)."""
    away = (accuracy.values - accuracy.mean).abs()
    return replace(accuracy, values=away, text=f"|{accuracy.text} - mean|", scale="linear")


@claim(
    "section 5.2",
    note="the paper's spreads are 5.5 and 7.25 points beside 1.0; three seeds tell little of one",
    readings={"at levels 1 and 2": {"levels": (1, 2)}, "on T4": {"task": "T4"}},
)
def variance(rows: Rows, task: str = "T3", levels: Sequence[int] = LEVELS) -> Comparisons:
    """on T3 the test accuracy of DP-FedAvg varies more over seeds than AdaptDP's, at every level"""
    for at in levels:
        ours, theirs = rows.each("accuracy", method=BOTH, task=task, **CHOSEN, level=at)
        yield below(_scattered(ours), _scattered(theirs))


@claim("ours", "holds")
def c7_cap(rows: Rows) -> Comparisons:
    """on T3 and T4 the radius stays at its cap"""
    for task in IMAGES:
        radii = rows.each("radius", task=task, **CHOSEN, method="AdaptDP", level=LEVELS)
        for radius, at in zip(radii, LEVELS, strict=True):
            _, cap = SELECTED[task, "adaptdp", at]
            yield level(radius / cap, 1, within=0.001)


def _at_choices(caption: str, *cells: str, notes: Sequence[str] = ()) -> Table:
    """At the paper's choices: a row for every task and level, both methods beside each other."""
    rows = ["task", "level"]
    return Table(caption, rows, "method", cells, where=CHOSEN, notes=notes)


table2 = Artifact(
    id="table2",
    title="Training loss and test accuracy at the selected step sizes and clip norms",
    shows="DP-FedAvg and AdaptDP-FedAvg on the quadratic task (T1), Bank Marketing (T2), MNIST "
    "(T3) and Fashion-MNIST (T4) at three levels of noise, with the step sizes and clip norms "
    "that the paper selected, and for T1 with those that our search selects. The noise is the "
    "printed one (Table 1); the epsilons stand with the rows, and nearly all of them are vacuous.",
    source="Table 2",
    sizes={
        "smoke": Size(1, 0.3, "2 rounds of 2 steps, to see that it works"),
        "quick": Size(
            3,
            2,
            "T1 as in the paper; T2 10 rounds of one epoch; T3 and T4 100 rounds, 3000 "
            "training and 10,000 test images",
        ),
        "paper": Size(3, 30, f"T1 150 rounds, T2 100, T3 and T4 1000. {FRESHLY}"),
    },
    claims=[
        *(c1, c1_equal, c1_ours, c2, c1_level, c7_T3),
        *(variance, c7_cap, levels_T3_T4, c8_tie, c8_level, batch_mean_T2, c8_accuracy),
    ],
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
        "selection": "step size and clip norm",
        "paper": "the paper's",
        "ours": "best of our grid (table3)",
        "printed_noise": "the paper's, sigma_p 0.093 as printed",
        "calibrated": "the paper's, noise by its formulas at one epsilon",
        "invalid": "the paper's, clipping of the minibatch's mean (no valid guarantee)",
        "invalid_raw": "the same on raw pixels, 0 to 255 (no valid guarantee)",
    },
    numbers=PaperNumbers(
        measures={"min_train_loss": ["objective", "loss"], "max_test_acc_pct": "accuracy"},
        columns={"task": "dataset", "level": "level", "method": "method"},
        names=NAMES,
        where=CHOSEN,
    ),
    tables=[
        Table(
            "T1, the quadratic task: lowest training loss",
            ["selection", "level"],
            "method",
            "objective",
            where=ON_T1,
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
            "epoch of 181 steps; the paper trains on all of them and tests on part of them.",
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
            where=ON_T1,
            log="y",
            y_title="lowest training loss, T1",
        )
    ],
    notes=[CLIPPED, READ_AS],
)
