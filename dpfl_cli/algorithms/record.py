"""What record-level methods share: noisy local steps, each a release of a clipped gradient."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from pydantic import Field
from torch import Tensor

from dpfl_cli.algorithms.local import check_clip_norm, per_run
from dpfl_cli.config.component import Settings
from dpfl_cli.config.errors import ConfigError
from dpfl_cli.models.objective import ClientSide
from dpfl_cli.privacy.mechanism import Mechanism, ReleaseSpec

GRADIENT = "mean of the records' gradients clipped to C: sensitivity 2C / m (replace_one), C / m (zero_out, add_or_remove)"


class RecordSettings(Settings):
    """Settings of local steps on clipped record gradients."""

    local_steps: int = Field(ge=1)  # K
    local_lr: float = Field(gt=0, allow_inf_nan=False)  # eta_l
    clip_norm: float | None = Field(gt=0, allow_inf_nan=False)  # C


class RecordHyper(Protocol):
    """The same for a batch of runs: local_lr and clip_norm are [R], an absent clip norm is infinite."""

    local_steps: int
    local_lr: Tensor
    clip_norm: Tensor


def gradient_release(settings: RecordSettings, trust: str) -> ReleaseSpec:
    """The releases of K noisy local steps, or a ConfigError where they make no sense."""
    check_clip_norm(settings, trust, "a gradient")
    if trust == "central" and settings.local_steps > 1:
        raise ConfigError(
            f"algorithm.local_steps={settings.local_steps} under dp.trust=central: nobody adds noise to a client's own steps, "
            "so the bound of a step does not hold for the next one; write algorithm.local_steps=1, or dp=record"
        )
    steps = settings.local_steps
    return ReleaseSpec("gradient", per_round=steps, one_message=True, sums_suffice=steps == 1, echo=True, note=GRADIENT)


def local_steps_gap(settings: RecordSettings, whole_noise: bool) -> str | None:
    """Why K noisy local steps are not proved, or None."""
    if settings.local_steps == 1 or whole_noise:
        return None
    return (
        f"the later ones of {settings.local_steps} local steps start where the client holds only its share of the noise, "
        "which no release of the sum covers"
    )


def noisy_steps(
    objective: ClientSide,
    mechanism: Mechanism,
    hyper: RecordHyper,
    model: Tensor,
    rounds: np.ndarray,
    drift: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """K local steps v_i <- v_i - eta_l (G_i(v_i) + grad h(v_i) + drift_i) on released gradients G_i, from v_i = w.

    The mean over clients of the v_i needs no release of its own: with drifts that sum to zero over clients it follows
    vbar <- vbar - eta_l (mean_i G_i + grad h(vbar)), because the regulariser's gradient is linear in v.

    Args:
      model: [R, d] w.
      drift: [R, M, d], with mean zero over clients, or None.

    Returns:
      The local models v_i [R, M, d] (client values) and their mean vbar [R, d] (public).
    """
    local = model.unsqueeze(1).expand(objective.runs, objective.clients, objective.dimension)
    mean = model
    for _ in range(hyper.local_steps):
        release = mechanism.release("gradient", objective.clipped_gradient(local, hyper.clip_norm), rounds)
        direction = release.echo + objective.regulariser_gradient(local)
        if drift is not None:
            direction = direction + drift
        local = local - per_run(hyper.local_lr, direction) * direction
        mean = mean - per_run(hyper.local_lr, mean) * (release.mean + objective.regulariser_gradient(mean))
    return local, mean
