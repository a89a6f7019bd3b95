"""What the experiments share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dpfl_cli.reproduction.api import Metric

Facts = Callable[[str], Any]  # looks up what is known of a run before it starts

OURS = (
    "Ours, for the paper does not say: rows have unit norm, record gradients are clipped at B = 1, "
    "step size 1/4 for the proposed method"
)


def optimality(at: Any, title: str) -> Metric:
    """Relative squared error of the mean, and the squared distance between the workers' copies."""
    return Metric("squared_error", plus=["consensus"], at=at, title=title)


def per_worker(facts: Facts) -> float:
    """d B^2 / (n m^2), which all bounds have."""
    records = facts("records") / facts("clients")
    bound = facts("algorithm.clip_norm") ** 2 * facts("dimension")
    return float(bound / (facts("clients") * records**2))
