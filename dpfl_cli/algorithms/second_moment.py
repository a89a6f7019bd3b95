"""What DP-FedFC's two forms share: the covariance of the features, released once, and the preconditioner made of it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from dpfl_cli.algorithms.local import check_clip_norm, first_round
from dpfl_cli.config.component import Settings
from dpfl_cli.config.errors import ConfigError
from dpfl_cli.data.devices import on_device
from dpfl_cli.models.curvature import damped_inverse, unpacked
from dpfl_cli.models.objective import ClientSide
from dpfl_cli.privacy.bounded import Bounded
from dpfl_cli.privacy.mechanism import Mechanism, ReleaseSpec

SHARE = 0.1  # of the covariance, where nothing else is said


class SecondMomentSettings(Settings):
    """Settings of a method that is preconditioned by the covariance of features."""

    server_lr: float = Field(gt=0, allow_inf_nan=False)  # eta
    damping: float = Field(gt=0, allow_inf_nan=False)  # gamma
    clip_norm: float | None = Field(gt=0, allow_inf_nan=False)  # C_g
    feature_clip_norm: float | None = Field(gt=0, allow_inf_nan=False)  # C_c
    cov_norm: Literal["mean", "paper"]
    psd_floor: Literal["damping", "none"]
    budget: Literal["equal_sigma", "fraction"]
    covariance_share: float = Field(SHARE, gt=0, lt=1)  # phi


def releases(settings: SecondMomentSettings, trust: str, gradient: str, covariance: str) -> list[ReleaseSpec]:
    """The covariance once, a gradient in every round.

    `equal_sigma`: all T + 1 have the mechanism's noise multiplier z, and compose to mu^2 = (T + 1) / z^2. `fraction` parts the
    same mu^2: 1 / z_c^2 = phi mu^2 and T / z_g^2 = (1 - phi) mu^2.

    Args:
      gradient, covariance: what each is, and its sensitivity.
    """
    check_clip_norm(settings, trust, "a gradient")
    if settings.feature_clip_norm is None and trust != "none":
        raise ConfigError(
            f"algorithm.feature_clip_norm=null under dp.trust={trust}: a covariance without a bound has no sensitivity; give a "
            "positive clip norm, or write dp=none"
        )
    if settings.budget == "equal_sigma" and settings.covariance_share != SHARE:
        raise ConfigError(
            f"algorithm.covariance_share={settings.covariance_share:g}: algorithm.budget=equal_sigma has no shares and would "
            "ignore it; write algorithm.budget=fraction, or drop covariance_share"
        )
    share = settings.covariance_share if settings.budget == "fraction" else None
    first, later = _factors(share)
    return [
        ReleaseSpec("covariance", shape="matrix", occurs=first_round, schedule=first, note=f"once, at the start: {covariance}"),
        ReleaseSpec("gradient", schedule=later, note=gradient),
    ]


Factors = Callable[[int, int], np.ndarray]


def _factors(share: float | None) -> tuple[Factors | None, Factors | None]:
    """What the noise multipliers of the covariance and of the gradients are of the mechanism's own; None for 1."""
    if share is None:
        return None, None

    def first(rounds: int, clients: int) -> np.ndarray:
        return np.full(rounds, 1.0 / math.sqrt(share * (rounds + 1)))

    def later(rounds: int, clients: int) -> np.ndarray:
        return np.full(rounds, math.sqrt(rounds / ((1.0 - share) * (rounds + 1))))

    return first, later


def blank(objective: ClientSide) -> Tensor:
    """[R, p, p] of a server that has no preconditioner yet."""
    return torch.zeros(objective.runs, objective.features, objective.features, dtype=objective.dtype, device=objective.device)


def feature_clip(hyper: Any, objective: ClientSide) -> Tensor:
    """[R] C_c; infinite where there is none."""
    if hyper.feature_clip_norm is None:
        return torch.full((objective.runs,), torch.inf, dtype=torch.float64, device=objective.device)
    limit: Tensor = hyper.feature_clip_norm
    return limit


def preconditioner(
    known: Tensor, covariance: Bounded, objective: ClientSide, mechanism: Mechanism, hyper: Any, rounds: np.ndarray
) -> Tensor:
    """P = (K + gamma I)^-1 [R, p, p], K the released mean of the clients' covariances, for the runs in their first round.

    Everything after the release is post-processing: noise is drawn for the upper triangle and mirrored, and with
    `psd_floor=damping` the eigenvalues of K + gamma I that noise took below gamma are set to gamma.

    Args:
      known: [R, p, p] of the others.
    """
    first = rounds == 1
    released = mechanism.release("covariance", covariance, rounds, charged=first).mean
    fresh = damped_inverse(unpacked(released, objective.features), hyper.damping, hyper.psd_floor == "damping")
    return torch.where(on_device(first, known.device).reshape(-1, 1, 1), fresh, known)
