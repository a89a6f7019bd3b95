"""Noise that is allocated over time, for a primal-dual method."""

from dpfl_cli.reproduction.artifact import Paper

PAPER = Paper(
    key="dynamic",
    authors="Zhang, Fay, Johansson",
    title=(
        "Dynamic Privacy Allocation for Locally Differentially Private "
        "Federated Learning with Composite Objectives"
    ),
    where="2023, arXiv:2308.01139",
)
