"""ISRL-DP: noisy gradient descent with projection and averaged iterates, full batch.

Reference: Lowy, Razaviyayn, "Private federated learning without a trusted server: optimal algorithms for convex losses", 2023,
  arXiv:2106.09779 (noisy minibatch SGD), as Zhang, Fay, Johansson 2023, arXiv:2308.01139, compare with it.

Round t, with m_i records of client i:
    G <- mean over clients of what the mechanism makes of (1/m_i) sum_j CLIP(grad l_ij(x), C)
    x <- P(x - eta (G + grad h(x)))                 P: onto the ball of radius `radius` (none: nothing to do)
Output after t rounds: x (`average=none`), (1/t) sum_s x_s (`uniform`) or 2 / (t (t + 1)) sum_s s x_s (`linear`).

Releases: "gradient". Replacing one record of client i moves its contribution by at most 2C / m_i, leaving it out by at most
  C / m_i.
  With `noise=original` the noise is the paper's own, sigma^2 = 256 C^2 T ln(2.5 T / delta) ln(2 / delta) / (m^2 epsilon^2) (its
  Theorem 2.1, quoted), that is under replace_one the noise multiplier sigma / (2C / m) = 8 sqrt(T ln(2.5 T / delta)
  ln(2 / delta)) / epsilon, in place of the mechanism's own; it is priced as what it is.

Proved under every trust model: the gradient is taken at x, a function of past releases, and clients hold no state.
"""

from __future__ import annotations

from math import log
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field

from dpfl_cli.algorithms.base import Diagnostics, State
from dpfl_cli.algorithms.local import check_clip_norm, per_run
from dpfl_cli.algorithms.record import GRADIENT
from dpfl_cli.config.component import Settings, component
from dpfl_cli.config.errors import ConfigError
from dpfl_cli.data.streams import Streams
from dpfl_cli.models.objective import ClientSide
from dpfl_cli.privacy.bounded import vector_norms
from dpfl_cli.privacy.mechanism import Mechanism, ReleaseSpec


class IsrlDpSettings(Settings):
    """Settings of `isrl_dp`."""

    step: float = Field(gt=0, allow_inf_nan=False)  # eta
    clip_norm: float | None = Field(gt=0, allow_inf_nan=False)  # C
    average: Literal["none", "uniform", "linear"] = "none"
    radius: float | None = Field(None, gt=0, allow_inf_nan=False)
    noise: Literal["mechanism", "original"] = "mechanism"
    original_epsilon: float | None = Field(None, gt=0, allow_inf_nan=False)
    original_delta: float = Field(1e-5, gt=0, lt=1)


def original_multiplier(rounds: int, epsilon: float, delta: float) -> float:
    """8 sqrt(T ln(2.5 T / delta) ln(2 / delta)) / epsilon, the original noise over the sensitivity 2C / m (see above)."""
    return 8 * float(np.sqrt(rounds * log(2.5 * rounds / delta) * log(2 / delta))) / epsilon


@component("algorithm", "isrl_dp", revision=1, settings=IsrlDpSettings)
class IsrlDp:
    """ISRL-DP: noisy full-batch gradient descent, with projection and averaging."""

    trusts: ClassVar[frozenset[str]] = frozenset({"none", "local", "central", "secure_aggregation"})
    proved: ClassVar[frozenset[str]] = frozenset({"local", "central", "secure_aggregation"})  # see the docstring of the file
    units: ClassVar[frozenset[str]] = frozenset({"record"})
    needs: ClassVar[frozenset[str]] = frozenset({"clipped_gradient"})
    paper: ClassVar[str] = "Lowy, Razaviyayn 2023, arXiv:2106.09779"

    def __init__(self, hyper: Any) -> None:
        self.hyper = hyper

    @staticmethod
    def releases(settings: IsrlDpSettings, trust: str) -> list[ReleaseSpec]:
        check_clip_norm(settings, trust, "a gradient")
        if settings.noise == "mechanism":
            return [ReleaseSpec("gradient", note=GRADIENT)]
        target, delta = settings.original_epsilon, settings.original_delta
        if target is None:
            raise ConfigError("algorithm.noise=original needs the epsilon of its formula: give algorithm.original_epsilon")
        return [
            ReleaseSpec(
                "gradient",
                multiplier=lambda z, d, M: 1.0,
                schedule=lambda rounds, clients: np.full(rounds, original_multiplier(rounds, target, delta)),
                note=f"{GRADIENT}; noise of the original paper",
            )
        ]

    def init(self, objective: ClientSide, streams: Streams) -> State:
        model = objective.initial(streams)
        weight = torch.zeros(objective.runs, dtype=torch.float64, device=model.device)
        return State(server={"model": model, "iterate": model, "rounds": weight}, clients={})

    def round(
        self, state: State, objective: ClientSide, mechanism: Mechanism, streams: Streams, rounds: np.ndarray
    ) -> tuple[State, Diagnostics]:
        hyper = self.hyper
        iterate = state.server["iterate"]  # x
        start = iterate.unsqueeze(1).expand(objective.runs, objective.clients, objective.dimension)
        mean = mechanism.release("gradient", objective.clipped_gradient(start, hyper.clip_norm), rounds).mean
        iterate = iterate - per_run(hyper.step, iterate) * (mean + objective.regulariser_gradient(iterate))
        if hyper.radius is not None:
            norms = vector_norms(iterate)
            iterate = iterate * per_run((hyper.radius / norms).clamp(max=1.0), iterate)
        count = state.server["rounds"] + 1  # t
        model = iterate
        if hyper.average != "none":  # the newest iterate's share is 1 / t (uniform) or t / (1 + ... + t) (linear)
            share = 1 / count if hyper.average == "uniform" else 2 / (count + 1)
            average = state.server["model"]
            model = average + per_run(share, average) * (iterate - average)
        return State({"model": model, "iterate": iterate, "rounds": count}, {}), {}
