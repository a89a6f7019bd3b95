"""Table 2: the search over local step size and clip norm (appendix G.1)."""

from collections.abc import Callable
from typing import Any

import pandas as pd

from dpfl_cli.papers.fedexp import (
    AVERAGED,
    COMPARED,
    METHODS,
    PAIR,
    PAIRS,
    PAPER,
    PRIVUNIT,
    PROBLEM,
    SCAFFOLD,
    TRUSTS,
    WORDS,
)
from dpfl_cli.papers.fedexp.mnist import NETWORK, SETUP, SMALLER, on_mnist
from dpfl_cli.papers.fedexp.synthetic import on_synthetic
from dpfl_cli.reproduction.api import (
    CHOSEN,
    Artifact,
    Best,
    Claim,
    Comparisons,
    Figure,
    Judge,
    Metric,
    Missing,
    Rows,
    Runs,
    Scale,
    Search,
    Size,
    Table,
    Where,
    above,
    each_seed,
    every,
    grid,
    shape,
    sized,
)

# the paper's text exchanges the step sizes of the two data sets
SYNTHETIC_STEPS = (0.0001, 0.0003, 0.001, 0.003, 0.01)
MNIST_STEPS = (0.01, 0.03, 0.1, 0.3, 1.0)
CLIP_NORMS = (0.1, 0.3, 1.0, 3.0, 10.0)


def runs(scale: Scale) -> Runs:
    pairs = {"local_lr": SYNTHETIC_STEPS, "clip_norm": CLIP_NORMS}
    for labels in grid(dataset="synthetic", dp=TRUSTS, method=METHODS, **pairs):
        overrides = f"dp={labels['dp']} {METHODS[labels['method']]}"
        yield on_synthetic(labels, overrides, (labels["local_lr"], labels["clip_norm"]))
    if scale == "paper":
        pairs["local_lr"] = MNIST_STEPS
        for labels in grid(dataset="MNIST", dp=TRUSTS, method=METHODS, **pairs):
            pair = (labels["local_lr"], labels["clip_norm"])
            yield on_mnist(labels, pair, {})


# --- claims: the choice is made anew with every seed ----------------------------------------------


DATA = ("synthetic", "MNIST")
ON_SYNTHETIC, ON_MNIST = ({"dataset": one} for one in DATA)
GUESSED = {("ldp_privunit", "FedAvg"), ("ldp_privunit", "SCAFFOLD"), ("cdp", "FedAvg")}


# the best of the grid that is run at full size as a whole, which the search did not keep
MISSED_IN, MISSED = {"dataset": "MNIST", "dp": "ldp", "method": "FedEXP"}, (0.3, 0.3)


def _tried(rows: Rows, cell: Where, missed: bool = False, last: str = "") -> pd.Series:
    """The pairs of one seed, the best first: of the lowest training loss on the synthetic problem,
    of the highest test accuracy on MNIST, where the pairs are those that the search kept and the
    paper's, and if asked for the one that a check found; `last_` takes the last round's.
    """
    measure = last + ("loss" if cell["dataset"] == "synthetic" else "accuracy")
    found = rows.ranked(measure, *PAIR, **cell)
    return found if missed or cell != MISSED_IN else found.drop([MISSED], errors="ignore")


def _pair(cell: Where) -> Claim:
    dataset, trust, method = cell.values()
    pair = PAIRS[dataset, trust, method]
    synthetic = dataset == "synthetic"
    name = f"pair_{method.lower()}_{trust}" + ("" if synthetic else "_mnist")
    where = "the synthetic problem" if synthetic else "MNIST"
    note = "some neighbouring pair has a loss within 2 % of the best"
    if not synthetic:
        note = (
            "with every seed the best on test data, as in the paper, of the pairs that the "
            "search kept and the paper's. Earlier the claim took the search's one choice for all "
            "seeds, which no number of seeds could decide"
        )
        if method == "SCAFFOLD" and trust != "cdp":
            note += (
                ". At the search's reduced size all 25 pairs are right on about a tenth of the "
                "images, which is guessing, so that what it keeps is chance; all 25 at full size, "
                "run as a check, have the same best one, and all others guess there too"
            )
    elif (trust, method) in GUESSED:
        note += "; which of the printed numbers belong here is a guess"

    def is_best(tried: pd.Series) -> bool:
        return tried.index[0] == pair

    def is_near(tried: pd.Series) -> bool:
        steps = SYNTHETIC_STEPS if synthetic else MNIST_STEPS
        places = zip((steps, CLIP_NORMS), tried.index[0], pair, strict=True)
        return all(abs(some.index(one) - some.index(other)) <= 1 for some, one, other in places)

    def is_close(tried: pd.Series) -> bool:
        if pair not in tried:
            raise Missing(f"the pair {pair} was not run (dp={trust}, method={method})")
        best, own = tried.iloc[0], tried[pair]
        return own <= 1.1 * best if synthetic else own >= best - 2

    def judge(
        rows: Rows,
        found: str = "best pair",
        test: Callable[[pd.Series], bool] = is_best,
        **which: Any,
    ) -> Comparisons:
        truths = (test(_tried(one, cell, **which)) for one in rows.by_seed())
        yield each_seed(truths, f"{found}(dp={trust}, method={method}) = {pair}")

    more = {"with (0.3, 0.3) too, the best of all 25 at full size with seed 1001": {"missed": True}}
    return Claim(
        name,
        f"the search finds the paper's pair for {PAPER.titles[method]} under {WORDS[trust]} on "
        f"{where}",
        "appendix G.1, Table 2",
        judge,
        note=note,
        readings={
            "that the best pair is at most one place of the grid away in either": {
                "found": "at most one place from the best pair",
                "test": is_near,
            },
            f"that the paper's pair is within {'10 %' if synthetic else '2 points'} of the best": {
                "found": "as good as the best pair",
                "test": is_close,
            },
            "by the last round, in place of the mean of the last five": {"last": "last_"},
            **(more if cell == MISSED_IN else {}),
        },
    )


EVERY_PAIR = [_pair(cell) for cell in grid(dataset=DATA, dp=TRUSTS, method=METHODS)]


def _step(trust: str, local_lr: float) -> Judge:
    return shape(
        f"the best local step is {local_lr}",
        lambda one, cell: _tried(one, cell).index[0][0] == local_lr,
        dataset="synthetic",
        dp=trust,
        method=METHODS,
    )


STEPS = [
    Claim(
        "step_ldp",
        "under local Gaussian DP step size 0.003 is the best on the synthetic problem for every "
        "method",
        "appendix G.1, Table 2",
        _step("ldp", 0.003),
        "holds",
    ),
    Claim(
        "step_cdp",
        "under central DP step size 0.001 is the best on the synthetic problem for every method",
        "ours",
        _step("cdp", 0.001),
        "holds",
        note="the paper prints 0.003 once on this line, for DP-FedAvg by its position",
    ),
]


AT = {**ON_SYNTHETIC, "dp": "cdp", "method": "FedAvg", "clip_norm": 3.0}
MISPRINT_CDP = Claim(
    "misprint_cdp",
    "DP-FedAvg under central DP is worse at the printed step size 0.003 than at 0.001 (clip norm "
    "3)",
    "ours",
    every(above, "loss", "local_lr", local_lr=(0.003, 0.001), **AT),
    "holds",
    note="0.003 stands in Table 2, for this method by its position",
)


def _smaller_clip(one: Rows, cell: Where) -> bool:
    ours, theirs = (_tried(one, {**cell, "method": name}).index[0][1] for name in COMPARED)
    return ours < theirs


LARGER_CLIP = Claim(
    "larger_clip",
    "DP-FedEXP is best at a smaller clip norm than DP-FedAvg under every trust model, on the "
    "synthetic problem",
    "appendix G.1, Table 2",
    shape("best clip norm: FedEXP < FedAvg", _smaller_clip, dataset="synthetic", dp=TRUSTS),
    "holds",
)


table2 = Artifact(
    id="table2",
    title="Grid search over local step size and clip norm: the criterion at every pair, the best "
    "one framed",
    shows="Pairs of local step size and clip norm for every method and trust model; the best pair "
    "beside the paper's. On the synthetic problem the criterion is the lowest training loss, "
    "on MNIST the highest test accuracy (tuned on test data, as in the paper), both averaged "
    "over the last five rounds. No epsilon covers the search.",
    source="Table 2; its two grids of step sizes are exchanged in the text",
    sizes=sized(
        Size(1, 0.5, "synthetic only, all 25 pairs"),
        Size(
            5,
            100,
            "all 25 pairs, with all seeds on the synthetic problem; on MNIST in stages, where the "
            "pairs that were kept, the paper's and the one that a check found have all seeds",
        ),
    ),
    runs=runs,
    measures={
        "loss": Metric("train_loss", better="lower", title="training loss", where=ON_SYNTHETIC),
        "accuracy": Metric("accuracy", where=ON_MNIST),
        "last_loss": Metric(
            "train_loss",
            "last",
            better="lower",
            title="training loss, last round",
            where=ON_SYNTHETIC,
        ),
        "last_accuracy": Metric(
            "accuracy", "last", title="test accuracy, last round", where=ON_MNIST
        ),
    },
    best=[
        Best([*PAIR], "loss", where=ON_SYNTHETIC, note="lowest training loss"),
        Best(
            [*PAIR],
            "accuracy",
            where=ON_MNIST,
            note="highest test accuracy, tuned on test data",
        ),
    ],
    search=Search(
        where=ON_MNIST,
        reduced=lambda run: SMALLER,
        note="25 of 50 rounds and 12 of 60 images a client, 2000 test images",
        keep=2,
        whole=[
            *grid(dataset="MNIST", dp="ldp", method=METHODS),
            {"dataset": "MNIST", "dp": "ldp_privunit", "method": "SCAFFOLD"},
        ],
        always=[
            {**cell, **dict(zip(PAIR, PAIRS[*cell.values()], strict=True))}
            for cell in grid(dataset="MNIST", dp=TRUSTS, method=METHODS)
        ]
        + [{**MISSED_IN, "local_lr": MISSED[0], "clip_norm": MISSED[1]}],
        finalists=True,
    ),
    titles={
        **dict(zip(METHODS, METHODS, strict=True)),
        "dataset": "data",
        "local_lr": "local step size",
        "clip_norm": "clip norm",
    },
    tables=[
        Table(
            "Best pair: local step size, clip norm (how well the paper's pair can be read: "
            "H certain, M probable, L a guess)",
            ["dataset", "dp"],
            "method",
            ["best.local_lr", "best.clip_norm"],
        ),
        Table(
            "Test accuracy (%) on MNIST of the pairs that the claims choose among: those that the "
            "search kept, the paper's, and in a reading the one that a whole grid found",
            ["dp", "local_lr", "clip_norm"],
            "method",
            "accuracy",
        ),
        Table(
            "Training loss at the best pair, synthetic",
            "dp",
            "method",
            "loss",
            where=CHOSEN,
        ),
    ],
    figures=[
        Figure(
            "heatmap",
            "clip_norm",
            y="local_lr",
            measures="loss",
            panels=["dp", "method"],
            log="colour",
            title="training loss on the synthetic problem",
        )
    ],
    notes=[
        PROBLEM,
        SCAFFOLD,
        PRIVUNIT,
        f"{SETUP} {NETWORK} {AVERAGED}",
        "The choice of a claim is made anew with every seed. The table of best pairs chooses by "
        "the mean on the synthetic problem; on MNIST it has what the search chose with seed 1001, "
        "so not (0.3, 0.3) of DP-FedEXP under local Gaussian DP, which is 0.3 points better in the "
        "mean of the seeds that judge, nor (0.1, 1) of DP-FedAvg under PrivUnit, which is 1.0 "
        "points better.",
    ],
)
