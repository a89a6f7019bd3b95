"""DP-FedNew: second-order steps under differential privacy."""

from dpfl_cli.reproduction.artifact import Paper

PAPER = Paper(
    key="fednew",
    authors="Krouka, Koskela, Kulkarni",
    title=(
        "Communication Efficient Differentially Private Federated Learning "
        "Using Second Order Information"
    ),
    where="PoPETs 2025(1), 584–612",
)
