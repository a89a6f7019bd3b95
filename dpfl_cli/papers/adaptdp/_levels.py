"""Table 2: claims on how large the losses are, beside the paper's."""

from collections.abc import Sequence

from dpfl_cli.papers.adaptdp import IMAGES, LEVELS, METHODS
from dpfl_cli.reproduction.api import Comparisons, Rows, above, below, claim, level, near_paper

CHOSEN = {"selection": "paper"}


LEVEL_3 = {"method": "FedAvg", "level": 3}


def _factor_of_mean(rows: Rows) -> Comparisons:
    for task in IMAGES:
        loss = rows("loss", task=task, selection="invalid_raw", **LEVEL_3)
        yield below(loss, 10 * rows("loss", task=task, **CHOSEN, **LEVEL_3).printed)


BY_MEAN = "clipping of the minibatch's mean, a guarantee that does not hold (DP-FedAvg, level 3)"


@claim(
    "Table 2",
    "fails",
    note="the paper says that gradients are clipped record by record, and so they are here. What "
    "else its runs did is not known",
    readings={
        "within a factor of 100": {"factor": 100},
        f"pixels of 0 to 255 and {BY_MEAN}": _factor_of_mean,
    },
)
def levels_T3_T4(rows: Rows, factor: float = 10) -> Comparisons:  # noqa: N802
    """the losses on T3 and T4 are within a factor of 10 of the paper's"""
    for loss in rows.each("loss", task=IMAGES, **CHOSEN, method=METHODS, level=LEVELS):
        yield below(loss, factor * loss.printed)


@claim(
    "Table 2",
    "holds",
    note="the paper's clip norms differ at level 2, 0.5 and 0.1",
    readings={
        "at levels 1 and 3, of equal clip norms": {"levels": (1, 3)},
        "within 0.1": {"within": 0.1},
    },
)
def c8_tie(rows: Rows, within: float = 0.01, levels: Sequence[int] = LEVELS) -> Comparisons:
    """on T2 the two losses are within 0.01 of each other at every level"""
    for at in levels:
        both = rows.each("loss", method=METHODS, task="T2", **CHOSEN, level=at)
        yield level(*both, within=within)


def _near_by_mean(rows: Rows) -> Comparisons:
    loss, shown = (rows("loss", task="T2", selection=one, **LEVEL_3) for one in BY_EITHER)
    yield level(loss, shown.printed, within=0.03)


BY_EITHER = ("invalid", "paper")


@claim(
    "Table 2",
    "fails",
    note="with clipping per record nearly every record is clipped, and the loss rises after two or "
    "three rounds; clipping the minibatch's mean (the invalid reading below) goes further down",
    readings={"within 0.1": {"within": 0.1}, BY_MEAN: _near_by_mean},
)
def c8_level(rows: Rows, within: float = 0.03) -> Comparisons:
    """the losses on T2 are near the paper's 0.313 (within 0.03)"""
    for loss in rows.each("loss", task="T2", **CHOSEN, method=METHODS, level=LEVELS):
        yield near_paper(loss, within=within)


@claim("ours", "holds")
def batch_mean_T2(rows: Rows) -> Comparisons:  # noqa: N802
    """on T2 clipping the minibatch's mean in place of the records reaches a loss that is lower by
    more than 0.02, at a claim of privacy that does not hold
    """
    cell = {"task": "T2", "method": "FedAvg", "level": 3}
    yield above(*rows.each("loss", selection=("paper", "invalid"), **cell), by=0.02)


@claim(
    "Table 2",
    "holds",
    note="88.50 % of the test records are of the larger class: every method gives the constant "
    "answer",
)
def c8_accuracy(rows: Rows) -> Comparisons:
    """on T2 test accuracies are between 87 and 91 %"""
    for accuracy in rows.each("accuracy", task="T2", **CHOSEN, method=METHODS, level=LEVELS):
        yield level(accuracy, 89, within=2)
