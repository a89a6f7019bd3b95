"""Tables 5 and 6: MobileNet, and what adaptive clipping costs in time (appendices E.3, E.4)."""

from collections.abc import Sequence
from itertools import pairwise

from dpfl_cli.papers.adaptdp import BOTH, LEVELS, METHODS, private, quotient
from dpfl_cli.reproduction.api import (
    Artifact,
    Claim,
    Comparisons,
    Derived,
    Fact,
    Figure,
    Metric,
    Price,
    Rows,
    Runs,
    Scale,
    Size,
    Table,
    above,
    below,
    between,
    claim,
    every,
    grid,
    sized,
)

PAIR = (0.3, 0.05)  # step size, clip norm
MOBILENET = {
    "quick": "rounds=3 algorithm.local_steps=3 dataset.train_records=300 "
    "dataset.test_records=100 model.width=0.25",
    # the page reads training losses alone: to look at all 10,000 test images takes longer than a
    # round's steps
    "paper": "rounds=40 evaluation.every=5 dataset.test_records=100 model.version=v1 "
    "model.first_stride=2 model.width=0.5 model.groups=1",
}


def of_mobilenet(scale: Scale) -> Runs:
    for labels in grid(method=METHODS, level=LEVELS):
        yield private(labels, f"model=mobilenet {MOBILENET[scale]}", PAIR, task="T3")


WORKS = Claim(
    "works",
    "the training loss falls below its value before round 1 for both methods at every level",
    "ours",
    every(below, ["loss", "first"], method=METHODS, level=LEVELS),
)


@claim(
    "appendix E.3, Table 5",
    note="the text says lower without an exception; the paper's own table has 1.35e-4 beside "
    "8.12e-5 at level 1, which is taken here. Losses are so far above the paper's at this size "
    "(notes) that an order says little",
    readings={"levels 2 and 3 alone": {"levels": (2, 3)}, "level 1 alone": {"levels": (1,)}},
)
def paper_order(rows: Rows, levels: Sequence[int] = LEVELS) -> Comparisons:
    """AdaptDP's loss is lower at levels 2 and 3, DP-FedAvg's at level 1"""
    for at in levels:
        ours, theirs = rows.each("loss", method=BOTH, level=at)
        yield below(ours, theirs) if at > 1 else above(ours, theirs)


table5 = Artifact(
    id="table5",
    title="Lowest training loss of MobileNet on MNIST",
    shows="Both methods with MobileNet (group normalisation in place of batch normalisation, "
    "which has no per-record gradients) on 3000 images of MNIST and 2 clients, with the printed "
    "noise, step size 0.3 and clip norm 0.05.",
    source="Table 5; the version of MobileNet is not given",
    sizes=sized(
        Size(
            1,
            1.5,
            "version 2, width 0.25, 300 images, 3 rounds of 3 steps, one seed: that it works, not "
            "what the paper measures",
        ),
        Size(
            5,
            70,
            "reduced, for the paper's width 1 and 100 rounds take eight hours: version 1 with a "
            "first stride of 2 (as in Howard et al.), width 0.5, one group a normalisation, 3000 "
            "images, 40 rounds of 15 steps, 100 test images, of which nothing is shown; five seeds",
            full=False,
        ),
    ),
    runs=of_mobilenet,
    measures={
        "loss": Metric("train_loss", "min", better="lower", title="lowest training loss"),
        "first": Metric("train_loss", "first", title="training loss before round 1"),
        "parameters": Fact("dimension", decimals=0, title="parameters"),
        "eps": Price(title="epsilon"),
    },
    tables=[
        Table("Lowest training loss", "level", "method", "loss"),
        Table(
            "Before the first round, the number of parameters, and epsilon at delta 1e-4",
            "level",
            "method",
            ["first", "parameters", "eps"],
        ),
    ],
    figures=[Figure("bars", "level", "loss", series="method", log="y")],
    notes=[
        "Level 2 of AdaptDP uses sigma_p 0.0093; Table 1 prints 0.093.",
        "At scale=paper 600 of the paper's 1,500 steps are run, at half of its width: the lowest "
        "loss is 1.477 to 1.498 in the mean over seeds (2.363 before round 1; a constant answer "
        "which gives every digit a tenth has ln 10 = 2.303). The methods are at most 0.0084 "
        "apart, where seeds scatter by 0.162 to 0.176: of the paper's losses that says nothing, "
        "and of their order, told seed by seed, little. A page with width 0.25 and eight groups "
        "a normalisation stood here before, at 2.112 to 2.115 after as many rounds, with the "
        "same verdicts. Width and groups are those that learn the fastest in what can be run "
        "here: in trials of DP-SGD without noise, batches of 100, outside these seeds, 600 steps "
        "led to 1.83 with width 0.5 and 8 groups, 1.60 with 2, 1.57 with 1; 300 steps to 2.10 "
        "with width 0.5 and 8 groups, to 1.94 with width 1, which takes three times as long. "
        "Version and stride were chosen before, with seed 1000 at level 1: version 2 with stride "
        "1 was at 2.29 after 12 rounds with width 0.1, with stride 2 and width 0.25 at 2.28, "
        "version 1 with stride 1 at 2.27 after 16, with stride 2 at 2.22 after 22.",
    ],
)


# --- Table 6 --------------------------------------------------------------------------------------

TIMED = 23  # rounds, of which the first 3 are not counted


def timed(scale: Scale) -> Runs:
    for method in METHODS:
        labels = {"method": method}
        yield private(labels, f"rounds={TIMED}", PAIR, exclusive=True, task="T3", level=3)


def _seconds(rows: Rows) -> float:
    """The shortest of the counted rounds."""
    clock = rows.values("clock", round=between(3, TIMED))
    return min(after - before for before, after in pairwise(clock))


def _ratio(measure: str, title: str) -> Derived:
    title = f"{title}, AdaptDP over DP-FedAvg"
    return Derived(lambda rows: quotient(rows, measure), decimals=3, title=title)


AT_MOST = [
    Claim(
        "c10_memory",
        "AdaptDP takes at most 10 % more memory",
        "appendix E.4, Table 6",
        every(below, "memory_ratio", right=1.1),
        "holds",
    ),
    Claim(
        "c10_time",
        "AdaptDP takes at most 10 % more time",
        "appendix E.4, Table 6",
        every(below, "time_ratio", right=1.1),
        note="one pass more, without gradients, beside 15 steps; rounds take hundredths of a "
        "second (above), of which the least disturbed is taken: other work on the machine can turn "
        "the verdict",
    ),
]


table6 = Artifact(
    id="table6",
    title="Time and memory of a round, with and without the adaptive clip norm",
    shows="DP-FedAvg and AdaptDP-FedAvg on MNIST (T3), each run alone, 20 rounds after 3 that are "
    "not counted. The clip norm takes one more pass over a batch in a round of 15 steps, no "
    "gradient, and one number sent.",
    source="Table 6; its times are of another machine and program",
    sizes=sized(
        Size(8, 0.4, "3000 images, 8 runs of each"), Size(10, 1, "3000 images, 10 runs of each")
    ),
    runs=timed,
    measures={
        "clock": Metric("timing.compute", "series", title="computing time until a round", unit="s"),
        "all": Metric(
            "timing.compute", TIMED, summary="min", title="computing time of 23 rounds", unit="s"
        ),
        "seconds": Derived(_seconds, "method", title="a round: shortest of 20", unit="s"),
        "peak": Metric("timing.peak_bytes", summary="min", title="peak memory", unit="bytes"),
        "gigabytes": Derived(
            lambda rows: rows.value("peak") / 1e9,
            "method",
            decimals=3,
            title="peak memory",
            unit="GB",
        ),
        "sent": Metric(
            "communication.uplink_floats", decimals=0, title="numbers that a client sent"
        ),
        "time_ratio": _ratio("seconds", "time"),
        "memory_ratio": _ratio("peak", "memory"),
    },
    tables=[
        Table(
            "Time of a round, peak memory of the process (libraries and data with it), and "
            "what a client sent in 23 rounds",
            "method",
            cells=["seconds", "gigabytes", "sent"],
        ),
        Table("Ratios", [], cells=["time_ratio", "memory_ratio"]),
    ],
    figures=[Figure("bars", "method", "all", spread=False)],
    notes=[
        "The figure has the shortest time of all 23 rounds among the runs, without the spread; the "
        "claim is about the shortest of the 20 counted rounds of every run (the table)."
    ],
)
