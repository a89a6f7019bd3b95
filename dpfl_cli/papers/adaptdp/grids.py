"""Table 3: the whole grids of step size and clip norm (appendix E.1)."""

from collections.abc import Sequence
from functools import partial
from itertools import product
from typing import Any

from dpfl_cli.papers.adaptdp import (
    APART,
    BEST_PAIRS,
    BOTH,
    BY_OTHERS,
    CHOSEN_BY,
    DECLARED,
    FACTORS,
    FRESHLY,
    IMAGES,
    LEVELS,
    LOWEST,
    MARGINS,
    METHODS,
    NOTES,
    ON_T1,
    TRAINED,
    as_squares,
    at_equal,
    losses,
    private,
    seeds_of,
)
from dpfl_cli.reproduction.api import (
    CHOSEN,
    Artifact,
    Claim,
    Comparisons,
    Figure,
    Judge,
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
    ratio,
    shape,
    sized,
)

STEPS = {"T1": (0.1, 0.3, 0.5), "T2": (0.01, 0.03, 0.1), "T3": (0.1, 0.3), "T4": (0.03, 0.1, 0.3)}
CLIPS = (0.5, 1.0, 3.0, 5.0)
CAPS = {"T1": CLIPS, **dict.fromkeys(TRAINED, (0.05, 0.1, 0.5))}
ROUNDS = {"T2": 4, "T3": 30, "T4": 30}  # at quick; 100 in the paper


def runs(scale: Scale) -> Runs:
    for task, steps in STEPS.items():
        words = "" if task == "T1" else f"rounds={ROUNDS[task] if scale == 'quick' else 100}"
        pairs = {"eta": steps, "cap": CAPS[task]}
        seeds = seeds_of(task, scale)
        levels = LEVELS if task == "T1" or scale == "paper" else (3,)
        for labels in grid(task=task, method=METHODS, **pairs, level=levels):
            yield private(labels, words, (labels["eta"], labels["cap"]), seeds=seeds)


OF_T1 = {"eta": STEPS["T1"], "cap": CLIPS, "level": LEVELS}


def _t1(rows: Rows, method: str, **some: Any) -> list[Sample]:
    """Losses of T1: every level of every clip norm of every step size, or some."""
    return rows.each("objective", method=method, **{**ON_T1, **OF_T1, **some})


# The cells of T1 that DP-FedAvg is done with after 150 rounds.
CONVERGED = [pair for pair in product(STEPS["T1"], CLIPS) if pair != (0.1, 0.5)]


def _wins(pair: tuple[float, float], **cells: Any) -> Judge:
    """A pair is the best of the grid of T1."""
    return shape(
        f"the best pair is {pair}",
        lambda one, cell: one.best("objective", "eta", "cap", **cell) == pair,
        **ON_T1,
        **cells,
    )


C3 = Claim(
    "c3",
    "on T1 the best pair of DP-FedAvg's grid is (0.3, 0.5) at every level",
    "Tables 2 and 3",
    _wins((0.3, 0.5), method="FedAvg", level=LEVELS),
    "holds",
)


SLOW = Claim(
    "c2_slow",
    "on T1 DP-FedAvg with step size 0.1 and clip norm 0.5 is not done after 150 rounds (loss above "
    "1)",
    "Table 3",
    every(above, "objective", **ON_T1, method="FedAvg", eta=0.1, cap=0.5, level=LEVELS, right=1),
    "holds",
)


@claim("Table 3", "holds")
def c2_law(rows: Rows) -> Comparisons:
    """on T1 DP-FedAvg's loss grows as the square of the noise, 1 to 4 to 11.1 within 10 %, in every
    other cell
    """
    for eta, cap in CONVERGED:
        yield from as_squares(*_t1(rows, "FedAvg", eta=eta, cap=cap))


@claim("Table 3", "holds")
def c2_clip(rows: Rows) -> Comparisons:
    """with step size 0.3 it grows as the square of the clip norm, 4 from 0.5 to 1 and 9 from 1 to
    3, within 10 %
    """
    for small, large, factor in ((0.5, 1.0, 4), (1.0, 3.0, 9)):
        for at in LEVELS:
            one, other = _t1(rows, "FedAvg", eta=0.3, cap=(small, large), level=at)
            yield ratio(other / one, factor, within=0.1)


@claim("Table 3", "holds", note="with 100 dimensions, which is what these cells imply")
def c2_cells(rows: Rows) -> Comparisons:
    """on T1 every converged cell of DP-FedAvg (but the misprint) is between 0.9 and 1.5 times the
    paper's
    """
    for eta, cap in CONVERGED:
        levels = (2, 3) if (eta, cap) == (0.3, 5.0) else LEVELS
        for loss in _t1(rows, "FedAvg", eta=eta, cap=cap, level=levels):
            yield ratio(loss, to=1.2, within=0.3)


def _near_best(rows: Rows, share: float) -> Comparisons:
    for at in (2, 3):
        found = {**ON_T1, "method": "AdaptDP", "level": at}
        best = rows("objective", **found, best=True)
        yield below(rows("objective", **found, eta=0.1, cap=3.0), share * best)


BEST_ADAPTDP = Claim(
    "best_adaptdp",
    "on T1 the best pair of AdaptDP's grid is (0.1, 3) at levels 2 and 3, as the paper selects",
    "Table 2",
    _wins((0.1, 3.0), method="AdaptDP", level=(2, 3)),
    "fails",
    readings={
        "at level 3 alone": {"level": 3},
        "its loss at most 1.5 times the best pair's": partial(_near_best, share=1.5),
        "its loss at most 10 times the best pair's": partial(_near_best, share=10),
    },
)


def _pairs(task: str) -> Where:
    """Every cell of a grid of classifiers, at the levels that were run."""
    return {"task": task, "eta": STEPS[task], "cap": CAPS[task], "level": ...}


LOWER = {"T3": "16 of these 18", "T4": "19 of these 27"}  # cells of the paper's Table 3


def _equal(task: str, text: str) -> Claim:
    best = {"task": task, "method": BOTH, "level": ...}
    return Claim(
        f"equal_{task}",
        text,
        "section 5.2; appendix E.1, Table 3",
        at_equal(**_pairs(task)),
        note="equal pairs; the choices of Table 2 differ in their product. The paper says lower of "
        f"its choices, not of every pair: its own Table 3 has it in {LOWER[task]}",
        readings={
            **MARGINS,
            "either method's best pair, lower by any amount": every(
                below, "loss", "method", **best, best=True
            ),
            f"that, {APART}": every(below, "loss", "method", **best, **BY_OTHERS),
        },
    )


BESIDE = [
    Claim(
        "best_wins",
        "on T1 AdaptDP's best pair has a lower loss than DP-FedAvg's best pair, at every level",
        "ours",
        every(below, "objective", "method", **ON_T1, method=BOTH, level=LEVELS, best=True),
        "holds",
        note="the pairs are chosen by the seeds that are then judged",
        readings={APART: BY_OTHERS},
    ),
    Claim(
        "adaptdp_levels",
        "on T1 every cell of AdaptDP is within a factor of 3 of the paper's",
        "Table 3",
        every(in_factor, "objective", **ON_T1, method="AdaptDP", **OF_T1, factor=3),
        "fails",
        note="with step sizes of 0.3 and more the paper's values mostly hardly depend on the cap, "
        "and 18 of 24 are larger than ours, as if its radius had a floor of its own; the cause is "
        "unknown",
        readings={
            **FACTORS,
            "at step size 0.1 and caps of 3 and 5": {"eta": 0.1, "cap": (3.0, 5.0)},
        },
    ),
    _equal(
        "T3",
        "on T3 AdaptDP's loss is lower than DP-FedAvg's (by more than 1 %) at every equal step "
        "size and clip norm",
    ),
    _equal("T4", "on T4 it is lower (by more than 1 %) at every equal step size and clip norm"),
]


@claim("ours", note="the radius stays at its cap, and most records are clipped in these rounds")
def same(rows: Rows) -> Comparisons:
    """on T3 and T4 the two losses are equal within 1 % at every equal step size and clip norm"""
    for task in IMAGES:
        yield from every(ratio, "loss", "method", method=BOTH, **_pairs(task), within=0.01)(rows)


@claim(
    "section 5.2",
    note="the paper says that about 0.05, with tau = 1, tends to do well, of the tasks together; "
    "10 % is ours, set when it was known that 0.5 is the best cap on T3 and T4 here. In the "
    "paper's own Table 3 it is so on T2 and T3, not on T4. T1's caps are larger",
    readings={
        **{f"on {task} alone": {"tasks": [task]} for task in TRAINED},
        "at most twice the best": {"share": 2},
    },
)
def small_cap(rows: Rows, tasks: Sequence[str] = TRAINED, share: float = 1.1) -> Comparisons:
    """on T2, T3 and T4 AdaptDP's loss with cap 0.05, at its best step size, is at most 10 % above
    the best of its grid, at every level
    """
    for task in tasks:
        for at in rows.where(task=task).choices("level"):
            mine = {"task": task, "method": "AdaptDP", "level": at}
            small = rows.each("loss", **mine, eta=STEPS[task], cap=0.05)
            least = min(small, key=lambda one: one.mean)
            yield below_share(least, rows("loss", **mine, best=True), share=share)


def _varies_less(one: Rows, cell: Where) -> bool:
    def spread(method: str) -> float:
        losses = [loss.mean for loss in _t1(one, method, eta=0.1, cap=CLIPS[1:], **cell)]
        return max(losses) / min(losses)

    return spread("AdaptDP") < spread("FedAvg")


C11 = Claim(
    "c11",
    "on T1 at step size 0.1 AdaptDP's loss varies less over caps of at least 1 (largest over "
    "smallest) than DP-FedAvg's over clip norms, at levels 1 and 3",
    "Table 3",
    shape("AdaptDP varies less", _varies_less, **ON_T1, level=(1, 3)),
    "fails",
    note="the paper's own table has 7 and 2.9 times against 23",
)


table3 = Artifact(
    id="table3",
    title="Lowest training loss at every step size and clip norm",
    shows="Both methods on the grids of the paper, with its printed noise: 12 pairs for the "
    "quadratic task (T1), 9 for Bank Marketing (T2), 6 for MNIST (T3), 9 for Fashion-MNIST (T4). "
    "The best pair of every grid stands beside; it is chosen on the private training loss, which "
    "no epsilon covers.",
    source="Table 3",
    sizes=sized(
        Size(
            3,
            1.5,
            "T1 as in the paper, with 3 seeds; the others at level 3 only: T2 4 rounds, T3 "
            "and T4 30",
        ),
        Size(
            3, 60, f"all levels: T1 150 rounds, the others 100. T2 to T4 have {DECLARED}; {FRESHLY}"
        ),
    ),
    runs=runs,
    measures={**losses("min", LOWEST), "eps": Price(title="epsilon", where=CHOSEN)},
    best=BEST_PAIRS,
    tables=[
        Table(
            "T1: lowest training loss",
            ["method", "eta", "cap"],
            "level",
            "objective",
            notes="The paper's 2.80e-3 for DP-FedAvg at step size 0.3, clip norm 5 and level 1 "
            "repeats that of level 2; its own C^2 law gives 7.0e-4.",
        ),
        Table(
            "T2 to T4: lowest training loss",
            ["task", "method", "eta", "cap"],
            "level",
            "loss",
        ),
        Table(
            "The best pair of every grid; an edge of a grid is marked",
            ["task", "level"],
            "method",
            ["best.eta", "best.cap"],
            notes="Printed as selected (step size, clip norm): T1 DP-FedAvg (0.3, 0.5) at all "
            "levels, AdaptDP (0.1, 1), (0.1, 3), (0.1, 3); T2 level 3 (0.03, 0.05) and (0.03, "
            "0.1); T3 level 3 (0.1, 0.1) and (0.3, 0.05); T4 level 3 (0.03, 0.1) and (0.3, 0.05). "
            "Some of them are not the lowest loss of the paper's own Table 3.",
        ),
        Table(
            "Epsilon at delta 1e-4 of the best cell's training; the search is not covered",
            ["task", "level"],
            "method",
            "eps",
        ),
    ],
    figures=[
        Figure(
            "heatmap",
            "cap",
            y="eta",
            measures="objective",
            panels=["method", "level"],
            log="colour",
            title="T1, the quadratic task",
        )
    ],
    notes=[
        *NOTES,
        CHOSEN_BY,
        "T2 holds out a fifth of the records for the test: an epoch has 181 steps, in the paper "
        "226.",
    ],
)
