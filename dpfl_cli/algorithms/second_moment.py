"""What DP-FedFC's two forms share: the covariance of the features, released once, and the
preconditioner made of it.
"""

import math
from collections.abc import Callable
from typing import Literal

import numpy as np
from pydantic import Field
from torch import Tensor

from dpfl_cli.algorithms.base import Bound, Number, Positive, Round, State
from dpfl_cli.algorithms.local import first_round
from dpfl_cli.config.component import Settings
from dpfl_cli.config.errors import ConfigError
from dpfl_cli.data.streams import Streams
from dpfl_cli.models.client_side import ClientSide
from dpfl_cli.models.curvature import damped_inverse, unpacked
from dpfl_cli.privacy.bounded import Bounded
from dpfl_cli.privacy.releases import ReleaseSpec, Setup

SHARE = 0.1  # of the covariance, where nothing else is said


class SecondMomentSettings(Settings):
    """Settings of a method that is preconditioned by the covariance of features."""

    server_lr: Positive  # eta
    damping: Positive  # gamma
    clip_norm: Bound  # C_g
    feature_clip_norm: Bound  # C_c
    cov_norm: Literal["mean", "paper"]
    psd_floor: Literal["damping", "none"]
    budget: Literal["equal_sigma", "fraction"]
    covariance_share: Number = Field(SHARE, gt=0, lt=1)  # phi


def releases(
    settings: SecondMomentSettings, run: Setup, gradient: str, covariance: str
) -> list[ReleaseSpec]:
    """The covariance once, a gradient in every round.

    `equal_sigma`: all T + 1 have the mechanism's noise multiplier z, and compose to
    mu^2 = (T + 1) / z^2. `fraction` parts the same mu^2: 1 / z_c^2 = phi mu^2 and
    T / z_g^2 = (1 - phi) mu^2.

    Args:
      gradient, covariance: what each is, and its sensitivity.
    """
    share, rounds = settings.covariance_share, run.rounds
    first = later = None
    if settings.budget == "fraction":
        first = np.full(rounds, 1.0 / math.sqrt(share * (rounds + 1)))
        later = np.full(rounds, math.sqrt(rounds / ((1.0 - share) * (rounds + 1))))
    elif share != SHARE:
        raise ConfigError(
            f"algorithm.covariance_share={share:g}: algorithm.budget=equal_sigma has no shares and "
            "would ignore it; write algorithm.budget=fraction, or drop covariance_share"
        )
    once = first_round(run)
    note = f"once, at the start: {covariance}"
    return [
        ReleaseSpec("covariance", shape="matrix", made=once, factors=first, note=note),
        ReleaseSpec("gradient", factors=later, note=gradient),
    ]


def start_state(objective: ClientSide, streams: Streams) -> State:
    """The initial model, and a preconditioner [R, p, p] of zeros: there is none yet."""
    model, size = objective.initial(streams), objective.features
    return State({"model": model, "preconditioner": model.new_zeros(len(model), size, size)}, {})


def preconditioner(
    at: Round,
    hyper: SecondMomentSettings,
    covariance: Callable[[ClientSide], Bounded],
    known: Tensor,
) -> Tensor:
    """P = (K + gamma I)^-1 [R, p, p], K the released mean of the clients' covariances, for the runs
    in their first round.

    Everything after the release is post-processing: noise is drawn for the upper triangle and
    mirrored, and with `psd_floor=damping` the eigenvalues of K + gamma I that noise took below
    gamma are set to gamma.

    Args:
      covariance: makes every client's [R, M, p (p + 1) / 2].
      known: [R, p, p] of the others.
    """
    first = at.number == 1
    if not first.any():
        return known
    released = at.release("covariance", covariance(at.objective), charged=first).mean
    whole = unpacked(released, at.objective.features)
    fresh = damped_inverse(whole, hyper.damping, hyper.psd_floor == "damping")
    return at.where(first, fresh, known)
