"""DP-FedEXP: a server step that adapts to the noise."""

from dpfl_cli.reproduction.artifact import Paper

PAPER = Paper(
    key="fedexp",
    authors="Takakura, Liew, Hasegawa",
    title=("Accelerating Differentially Private Federated Learning via Adaptive Extrapolation"),
    where="2025, arXiv:2504.09850",
)
