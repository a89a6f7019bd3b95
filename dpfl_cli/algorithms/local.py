"""What client-level methods share: the bounded local update."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from pydantic import Field
from torch import Tensor

from dpfl_cli.config.component import Settings
from dpfl_cli.config.errors import ConfigError
from dpfl_cli.models.objective import ClientSide
from dpfl_cli.privacy.bounded import Bounded, clip


class LocalSettings(Settings):
    """Settings of a local run whose whole update is clipped."""

    local_steps: int = Field(ge=1)  # tau
    local_lr: float = Field(gt=0, allow_inf_nan=False)  # eta_l
    clip_norm: float | None = Field(gt=0, allow_inf_nan=False)  # C


class LocalHyper(Protocol):
    """The same for a batch of runs: local_lr and clip_norm are [R], an absent clip norm is infinite."""

    local_steps: int
    local_lr: Tensor
    clip_norm: Tensor


def bounded_local_update(objective: ClientSide, model: Tensor, hyper: LocalHyper, drift: Tensor | None = None) -> Bounded:
    """Delta_i = CLIP(LOCAL(w, i)), the update of one client's local run, clipped as a whole.

    LOCAL(w, i): v <- w; repeat tau times v <- v - eta_l (grad f_i(v) + drift_i); return v - w. What a client holds decides the
    whole of Delta_i, which lies in a ball of radius C: its sensitivity to one client is 2C under replace_one, C otherwise.

    Args:
      model: [R, d] w.
      drift: [R, M, d] or None, added to every gradient.
    """
    return clip(objective.local_descent(model, hyper.local_lr, hyper.local_steps, drift), hyper.clip_norm)


def per_run(numbers: Tensor, like: Tensor) -> Tensor:
    """[R] numbers, shaped and typed to multiply values [R, ...]."""
    return numbers.to(like.dtype).reshape(-1, *[1] * (like.dim() - 1))


def check_clip_norm(settings: Any, trust: str, what: str = "an update") -> None:
    """Refuses a private release of updates, or of what else is clipped, that nothing bounds."""
    if settings.clip_norm is None and trust != "none":
        raise ConfigError(
            f"algorithm.clip_norm=null under dp.trust={trust}: {what} without a bound has no sensitivity; "
            "give a positive clip norm, or write dp=none"
        )


def first_round(seed: int, rounds: int) -> np.ndarray:
    """When a release is made that is made once, at the start (`ReleaseSpec.occurs`)."""
    return np.arange(rounds) == 0
