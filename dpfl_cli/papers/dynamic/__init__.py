"""Privacy spent late: noise that falls over the rounds. What its experiments share."""

from typing import Any

from dpfl_cli.reproduction.api import Comparisons, Figure, Metric, Paper, Sample, below

PAPER = Paper(
    key="dynamic",
    authors="Zhang, Fay, Johansson",
    title="Dynamic Privacy Allocation for Locally Differentially Private Federated Learning with "
    "Composite Objectives",
    where="2023, arXiv:2308.01139",
    looks={
        "method": {"dynamic": 0, "proposed": 0, "static": 1, "ISRL": 2, "FedAvg": 3, "SCAFFOLD": 4}
    },
    titles={
        "T": "number of rounds T",
        "FedAvg": "DP-FedAvg",
        "SCAFFOLD": "DP-SCAFFOLD",
        "ISRL": "ISRL-DP",
    },
)
IJCNN1 = "+experiment=dynamic/ijcnn1"
OURS = (
    "Ours, for the paper does not say: rows have unit norm, record gradients are clipped at B = 1, "
    "step size 1/4 for the proposed method"
)

PRINTED = (
    "Algorithm 1 prints an update that differs from equation 7 in a sign and in what gamma "
    "multiplies; the equation is run, for with the listing the iteration diverges."
)


def optimality(at: Any, title: str) -> Metric:
    """Relative squared error of the mean, and the squared distance between the workers' copies."""
    return Metric("squared_error", at, plus=["consensus"], title=title)


def least(first: Sample, *others: Sample) -> Comparisons:
    """The first is smaller than each of the others."""
    return (below(first, other) for other in others)


def after_rounds(**more: Any) -> Figure:
    """The final optimality against the number of rounds."""
    return Figure("lines", "T", "optimality", log="y", y_title="optimality after T rounds", **more)
