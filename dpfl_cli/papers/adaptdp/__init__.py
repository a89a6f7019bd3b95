"""AdaptDP: a clip norm that falls as the loss does."""

from dpfl_cli.reproduction.artifact import Paper

PAPER = Paper(
    key="adaptdp",
    authors="Fukami, Murata, Niwa",
    title=(
        "Adaptive Clipping for Differential Private Federated Learning in Interpolation Regimes"
    ),
    where="TMLR 2025, OpenReview vvSHlH3a8V",
)
