"""Figures 2, 4 and 6 to 9: test error against local steps (section 3.1, Observations 1 and 3)."""

from collections.abc import Iterable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

from dpfl_cli.papers.scaffnew import WORDS
from dpfl_cli.papers.scaffnew._tasks import (
    BY_OTHERS,
    BY_SEED,
    CLIP_NORMS,
    IMAGES_AND_TEXT,
    LARGEST,
    METHODS,
    NONE,
    OF_NETWORKS,
    OTHERS_CHOOSE,
    SAME_SEEDS,
    SCAFFNEW_ALONE,
    TASKS,
    TWO_MORE,
    WRONG_IF_CONSTANT,
    notes_of,
    on_task,
)
from dpfl_cli.reproduction.api import (
    CHOSEN,
    OTHERS,
    Artifact,
    Best,
    Claim,
    Comparison,
    Comparisons,
    Figure,
    Judge,
    Metric,
    Missing,
    Price,
    Prior,
    Rows,
    Runs,
    Sample,
    Scale,
    Size,
    Table,
    Where,
    below,
    best_by_others,
    every,
    grid,
    listed_labels,
    shape,
    sized,
)

# the paper tries all divisors of T; here those with 1, 2, 4, 8, 24 and 120 communications, and a
# few where there are few iterations
STEPS = {"ixi": (1, 5, 20), "messidor": (1, 5, 20)}
PAPER_STEPS = {"cifar10": (1, 5, 20, 50, 125, 250, 500), "messidor": (1, 5, 25, 100, 500)}
TARGETS = (*OF_NETWORKS, NONE)


def tried(scale: Scale, task: str) -> tuple[int, ...]:
    """The numbers of local steps that are tried; the last is T, one communication in all."""
    usual = STEPS.get(task, (1, 5, 15, 30, 60, 120))
    return PAPER_STEPS.get(task, usual) if scale == "paper" else usual


def over_steps(
    scale: Scale, tasks: Iterable[str], targets: Sequence[float | str], clip_norms: Sequence[float]
) -> Runs:
    """Without noise nothing is clipped: one run for all clip norms."""
    for task in tasks:
        steps = tried(scale, task)
        mine = [one for one in CLIP_NORMS[task] if one in clip_norms]
        for labels in grid(task=task, method=METHODS, eps=targets, C=mine, tau=steps):
            yield on_task(scale, labels, steps[-1])


# --- claims --------------------------------------------------------------------------------------


def inside(ends: str = "1 and T", least: float = 0.0, **cells: Any) -> Judge:
    """The best number (of local steps, or of iterations) between the ends is below both by more
    than `by`, which is `least` where a reading has no other; of those tried, all up to the place
    `until`.
    """

    def judge(rows: Rows, by: float = least, until: int | None = None, **other: Any) -> Comparisons:
        for cell in grid(**cells | other):
            found = rows.along("error", **cell)[:until]
            if len(found) < 3:
                raise Missing(f"no number between {ends}")
            first, *inner, last = found
            best = best_by_others(inner, f"best error between {ends} ({listed_labels(cell)})")
            yield below(best, first, by=by)
            yield below(best, last, by=by)

    return judge


def close(private: Sample, free: Sample, points: float) -> Comparison:
    return below(private - free, points)


def best_steps(rows: Rows, largest: bool = False, **cell: Any) -> list[float]:
    """The best numbers of local steps, over the nominal epsilons or at one; of several that are
    equally good the smallest, or the largest.
    """
    best = []
    for at in grid(**{"eps": OF_NETWORKS, **cell}):
        ranked = rows.ranked("error", "tau", **at)
        equal = ranked.index[ranked == ranked.iloc[0]]
        best.append(equal[-1 if largest else 0])
    return best


def _falls(rows: Rows, cell: Where, largest: bool = False) -> bool:
    return all(high <= 2 * low for low, high in pairwise(best_steps(rows, largest, **cell)))


def _rises(rows: Rows, cell: Where) -> bool:
    return all(high < low for low, high in pairwise(best_steps(rows, **cell)))


OF_FIGURE_2 = (10.0,)
NEAR_ENDS = {"as good as both ends, to 2 points": {"by": -2.0}}  # a reading


def _claims(task: str, clip_norms: Sequence[float], suffix: str) -> list[Claim]:
    """What Observations 1 and 3 say of a data set at these clip norms."""
    where = f"at C = {clip_norms[0]:g}" if len(clip_norms) == 1 else "at every C"
    where = f"on {WORDS[task]} {where}"
    both: Where = {"task": task, "method": METHODS, "C": clip_norms}

    def interior(name: str, text: str, eps: Any, prior: Prior = "holds", **of: Any) -> Claim:
        return Claim(
            f"{name}{suffix}",
            text,
            first,
            inside(**{**both, **of}, eps=eps),
            prior,
            note=BY_OTHERS,
            readings={**NEAR_ENDS, "one communication in all is not tried": {"until": -1}},
        )

    first, third = "section 3.1, Observation 1", "section 3.1, Observation 3"
    without = interior(
        "c1_none",
        f"{where} without noise too DP-ScaffNew has a best number of local steps that beats both 1 "
        "and T",
        NONE,
        "open",
        method="ScaffNew",
    )
    return [
        *([without] if clip_norms == OF_FIGURE_2 else ()),
        interior(
            "c1",
            f"{where}, for nominal epsilon at most 1 (here 0.5), both methods have a best number "
            "of local steps that beats both 1 and T",
            0.5,
        ),
        interior("c1_any", f"{where} they have one at nominal epsilon 3.3", 3.3),
        Claim(
            f"c2{suffix}",
            f"{where} the best number of local steps does not fall as epsilon falls (by more than "
            "a factor 2)",
            third,
            shape("best local steps do not rise with epsilon", _falls, **both),
            "holds",
            note=f"{BY_SEED}; the paper says that it grows, and what stays the same is ours",
            readings={
                "it grows": shape("best local steps fall with epsilon", _rises, **both),
                LARGEST: shape(
                    "best local steps do not rise with epsilon",
                    partial(_falls, largest=True),
                    **both,
                ),
            },
        ),
        Claim(
            f"c4{suffix}",
            f"{where}, at nominal epsilon 3.3 and the best local steps, both methods are within 5 "
            "points of the best error without noise",
            first,
            every(close, "error", "eps", **both, best=True, eps=(3.3, NONE), points=5),
            "holds",
            note="the paper says almost comparable; the 5 points and the epsilon are ours; "
            "v = 8/m^2, not chosen on results; see scaffnew/extra_nominal; " + SAME_SEEDS,
            readings={
                "within 10 points": {"points": 10},
                "at nominal epsilon 0.5": {"eps": (0.5, NONE)},
                **SCAFFNEW_ALONE,
                OTHERS_CHOOSE: {"best": OTHERS},
            },
        ),
    ]


# --- Figures 2, 4 and 6 to 9: error against local steps -------------------------------------------

ERROR = Metric("test_error", "last")
MEASURES = {
    "error": ERROR,
    "clipped": Metric(
        "clipped_fraction",
        "last",
        decimals=2,
        title="share of updates clipped",
        where={"eps": OF_NETWORKS},
    ),
    "honest": Price(where={"eps": OF_NETWORKS, "best": True}),
}
LOWEST = Best("tau", "error", note="lowest test error")


def by_steps(*side: str) -> Table:
    return Table(
        "Test error (%) by local steps between communications",
        ["task", "method", *side, "eps"],
        "tau",
        "error",
    )


def at_best(found: str) -> Table:
    return Table(
        f"{found}, the test error (%) there, the share of updates clipped, and the epsilon that is "
        "really spent",
        ["task", "method", "C"],
        "eps",
        ["best.tau", "error", "clipped", "honest"],
        where=CHOSEN,
    )


def against_steps(panel: str) -> Figure:
    return Figure(
        "lines",
        "tau",
        "error",
        series="eps",
        panels=[panel, "method"],
        log="x",
        x_title="local steps between communications",
    )


def sizes(
    quick: float, paper: float, seeds: int | range = 5, which: str = TWO_MORE
) -> dict[Scale, Size]:
    """Minutes at quick and paper; the seeds there, and why these."""
    return sized(
        Size(
            1,
            quick,
            "small networks on clients of the paper's sizes, 120 iterations (20 of the Fed-IXI and "
            "Messidor stand-ins) of batches of 8, 8, 8, 1 and 4",
        ),
        Size(
            seeds,
            paper,
            "reduced, for the paper's own size takes two cores weeks (its settings are the presets "
            "scaffnew/cifar10, femnist, reddit, ixi and messidor). CIFAR-10: a small network on "
            "clients of the paper's size, 500 iterations of batches of 16, all test images; "
            f"Messidor's stand-in: 500 iterations; the others as at quick, {which}",
            full=False,
        ),
    )


def _figure(
    number: int,
    title: str,
    shows: str,
    minutes: tuple[float, float],
    tasks: Sequence[str],
    clip_norm: float | None = None,
    own: tuple[Any, ...] = (),
    ours: Sequence[Claim] = (),
) -> Artifact:
    """Of several data sets at one clip norm, or of one at all of its.

    Args:
      own: seeds that are not those of fig5, whose runs it has else, and why.
    """
    clip_norms = CLIP_NORMS[tasks[0]] if clip_norm is None else (clip_norm,)
    return Artifact(
        id=f"fig{number}",
        title=f"Test error against local steps{title}, by nominal epsilon",
        shows=f"{shows} The noise is that of Lemma 1 with v = 8/m^2, fixed beforehand; the epsilon "
        "really spent by it stands beside and says nothing about privacy.",
        source=f"Figure {number}; v is ours",
        sizes=sizes(*minutes, *own),
        runs=lambda scale: over_steps(scale, tasks, TARGETS, clip_norms),
        runs_of="" if own else "scaffnew/fig5",
        measures=MEASURES,
        best=[LOWEST],
        tables=[by_steps("C"), at_best("Best local steps")],
        figures=[against_steps("task" if clip_norm else "C")],
        claims=[
            one
            for task in tasks
            for one in _claims(task, clip_norms, f"_{task}" if clip_norm else "")
        ]
        + [*ours],
        notes=notes_of(tasks),
    )


fig2 = _figure(
    2,
    ", clip norm 10",
    "The smallest clip norm on all five data sets: is there a best number of local steps, does it "
    "grow as epsilon falls, and how near does it come to the curve without noise?",
    (3, 33),
    TASKS,
    *OF_FIGURE_2,
)
fig4 = _figure(
    4,
    " at three clip norms, FEMNIST stand-in",
    "The larger C, the more noise, so that fewer communications should be best.",
    (1.5, 10),
    ["femnist"],
)
fig6 = _figure(
    6,
    ", clip norm 50",
    "At C = 50 the noise is five times that of scaffnew/fig2.",
    (2.5, 25),
    IMAGES_AND_TEXT,
    50.0,
)
fig7 = _figure(
    7,
    ", clip norm 100",
    "At C = 100 the noise is ten times that of scaffnew/fig2.",
    (2.5, 25),
    IMAGES_AND_TEXT,
    100.0,
)
fig8 = _figure(
    8,
    " (100 - Dice) at three clip norms, Fed-IXI stand-in",
    "Noise on 246,156 parameters is far longer than an update.",
    (1, 8),
    ["ixi"],
)


FRESHLY = (
    "with five seeds (100 to 104), declared after a page with the seeds 0 to 2, which have no part "
    "in this one: of three seeds one learned nothing"
)
fig9 = _figure(
    9,
    " at three clip norms, Messidor stand-in",
    "The share of the larger class is what a network gets that has learned nothing.",
    (0.6, 20),
    ["messidor"],
    own=(range(100, 105), FRESHLY),
    ours=[
        Claim(
            "learns",
            "without noise both methods, at their best local steps, err less than one who always "
            "answers the larger class, which is wrong on 45 % of the test images",
            "ours",
            every(
                below,
                "error",
                method=METHODS,
                C=CLIP_NORMS["messidor"][0],
                eps=NONE,
                best=True,
                right=WRONG_IF_CONSTANT["messidor"],
            ),
            note="of the seeds 0 to 4, which figures 2, 5 and 10 have at scale=paper, seed 1 "
            "learns nothing: it starts with a train loss of 8.1 where a constant answer has 0.69, "
            "and within 50 iterations at a learning rate of 0.3 all images get one answer. Of 16 "
            "others (200 to 215), DP-FedAvg with 25 local steps and no noise, all learn: the "
            "errors are 0 to 7.7 %, 2.3 % in the mean. With 0.1 or 0.2 one of the first eight of "
            "them does not, and a network of twice the width does with an error of 1.7 %, but at "
            "nominal epsilon 3.3 and C = 10 (100 local steps) errs 7.4 % where this one has 3.7 %, "
            "DP-ScaffNew 34.0 and 11.0 %; " + SAME_SEEDS,
        )
    ],
)
