"""Figure 11: how long the updates of a client of Fed-IXI are, and what clipping them changes."""

from collections.abc import Callable

from dpfl_cli.papers.scaffnew._tasks import METHODS
from dpfl_cli.reproduction.api import (
    Artifact,
    Claim,
    Comparisons,
    Derived,
    Figure,
    Metric,
    Missing,
    Rows,
    Run,
    Runs,
    Scale,
    Size,
    Table,
    below,
    claim,
    each_seed,
    every,
    grid,
    ratio,
    sized,
)

CLIPPING = {"at_1": 1.0, "at_10": 10.0, "never": None}  # 1 is ours, short enough to matter
WORDS = (
    "+experiment=scaffnew/ixi dp=none dataset.shape=[16,20,16] dataset.test_records=[2,2,2] "
    "rounds=75 evaluation.every=5 algorithm.local_steps=5 algorithm.local_lr=0.5 "
    "model.train_loss_records=10 model.watched_client=0 algorithm.watched_client=0"
)


def runs(scale: Scale) -> Runs:
    for labels in grid(task="ixi", method=METHODS, clipping=CLIPPING):
        words = f"{WORDS} {METHODS[labels['method']]}"
        yield Run(labels, words, {"algorithm.clip_norm": CLIPPING[labels["clipping"]]})


FIGURE_11 = "appendix C.1, Figure 11"


SHORT = Claim(
    "c7",
    "from the fifth communication on, client 1's updates are shorter than C = 10",
    FIGURE_11,
    every(below, "later", method=METHODS, clipping="never", right=10),
    "holds",
    note="without noise",
)


@claim(
    FIGURE_11,
    "holds",
    note="the paper says minimal; 5 % is ours",
    readings={"with and without clipping at 1, which acts": {"at": "at_1"}},
)
def c7_loss(rows: Rows, at: str = "at_10") -> Comparisons:
    """client 1's train loss at the end differs by less than 5 % with and without clipping at 10"""
    both = {"method": METHODS, "clipping": (at, "never")}
    pairs = [rows.each("last_loss", **{**both, "method": one}) for one in METHODS]
    if all(clipped.values.equals(free.values) for clipped, free in pairs):
        idle = "both ways give the same losses, clipping never acts"
        yield each_seed((idle for _ in rows.by_seed()), f"{at} beside never")
        return
    yield from every(ratio, "last_loss", "clipping", **both, within=0.05)(rows)


@claim(
    FIGURE_11,
    note="the paper has them fall below C within five rounds; local steps and learning rate are "
    "ours here",
    readings={
        "longer than 5, half of it": {"than": 5},
        "longer than 1, which is ours": {"than": 1},
        "all updates laid end to end, as long as one of 75 local steps may be": {"of": sum},
    },
)
def c7_first(rows: Rows, than: float = 10, of: Callable[[list[float]], float] = max) -> Comparisons:
    """some update of client 1 is longer than C = 10, so that clipping acts at all"""
    longer = (
        max(of(one.values("length", method=method, clipping="never")) for method in METHODS) > than
        for one in rows.by_seed()
    )
    yield each_seed(longer, f"longest(clipping=never) > {than:g} for a method")


def _later(rows: Rows) -> float:
    lengths = rows.values("length")[4:]
    if not lengths:
        raise Missing("fewer than five communications")
    return max(lengths)


fig11 = Artifact(
    id="fig11",
    title="Length of a client's updates and its train loss with and without clipping, Fed-IXI "
    "stand-in",
    shows="How long the updates of client 1 are before clipping, communication by communication, "
    "and its train loss without clipping, with the paper's clip norm 10, and with 1, ours, which "
    "is short enough to act. Noise is made for updates as long as the clip norm, however short "
    "they are.",
    source="Figure 11; local steps are ours",
    sizes=sized(
        Size(
            1,
            0.9,
            "volumes of 16 x 20 x 16, 15 communications of 5 local steps with learning rate 0.5",
        ),
        Size(5, 5, "reduced, as at quick with five seeds", full=False),
    ),
    runs=runs,
    measures={
        "length": Metric(
            "watched_norm", "series", title="length of client 1's update before clipping"
        ),
        "loss": Metric("watched_train_loss", "series", decimals=4, title="train loss of client 1"),
        "last_loss": Metric(
            "watched_train_loss", "last", decimals=4, title="train loss of client 1 at the end"
        ),
        "longest": Metric("watched_norm", "max", title="longest update of client 1"),
        "communications": Metric("communications", "series", title="communications"),
        "later": Derived(
            _later, ["task", "method", "clipping"], title="longest from the fifth communication on"
        ),
    },
    titles={
        "at_1": "clipped at 1",
        "at_10": "clipped at 10",
        "never": "not clipped",
        "round": "local iterations",
    },
    tables=[
        Table(
            "Length of client 1's update before clipping, and its train loss, after so "
            "many local iterations",
            ["method", "clipping"],
            "round",
            ["length", "loss"],
            where={"round": [2, 4, 5, 10, 15, 25, 50, 75, 125, 250, 375]},
        ),
        Table(
            "Longest update, and the loss at the end",
            ["method", "clipping"],
            "measure",
            ["longest", "later", "last_loss"],
        ),
    ],
    figures=[
        Figure(
            "lines",
            "communications",
            measure,
            series="clipping",
            panels="method",
            log=log,
            share_y=True,
            y_title=y_title,
        )
        for measure, log, y_title in (
            ("length", "y", "length of client 1's update"),
            ("loss", (), ""),
        )
    ],
    notes=[
        "Fed-IXI is replaced by a generated stand-in. The length is of the client's own update "
        "before clipping, a diagnostic without a release; nothing is noised here.",
        "A communication is shown when the model is evaluated, which is after each.",
    ],
)
