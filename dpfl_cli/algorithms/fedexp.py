"""DP-FedEXP: the server extrapolates by a step that it estimates from what the mechanism lets it see.

References:
  Takakura, Liew, Hasegawa, "Accelerating differentially private federated learning via adaptive extrapolation", 2025,
    arXiv:2504.09850: Algorithm 1 (local DP, Gaussian or PrivUnit), Algorithm 2 (central DP), eq. (8) and Algorithm 5 (norm
    estimation behind PrivUnit), Propositions 4.1 and 4.2 (privacy).
  Jhunjhunwala, Wang, Joshi, "FedExP: speeding up federated averaging via extrapolation", 2023, arXiv:2301.09604 (without privacy;
    its factor 1/2 and the constant in its denominator are the options `half` and `denominator_epsilon`).

Round:
    Delta_i = CLIP(LOCAL(w, i))
    cbar    = what the mechanism makes of mean_i Delta_i
    num     = an estimate of (1/M) sum_i ||Delta_i||^2
    eta_g   = max{1, num / ||cbar||^2}
    w      <- w + eta_g cbar

The numerator:
  local    The server sees c_i and computes num = (1/M) sum_i shat_i, where shat_i estimates ||Delta_i||^2 from c_i alone.
           Gaussian: shat_i = ||c_i||^2 - d sigma^2, without bias. PrivUnit: norm estimation, biased downwards by at most
           C^2 / (4 k^2).
  central  A second release "squared_norm" of (1/M) sum_i ||Delta_i||^2.
  none     The same without noise; the floor 1 then never binds (Jensen).
`step=naive` takes num = (1/M) sum_i ||c_i||^2 with its noise in it (the paper's warning example, local DP only).

Releases:
  "update"        Delta_i in a ball of radius C: sensitivity 2C under replace_one, C under zero_out and add_or_remove.
  "squared_norm"  (central, none) ||Delta_i||^2 in [0, C^2]: sensitivity C^2 under every relation, C^2 / M in the mean. Same
                  group as "update": both are functions of the same Delta_i.
  Its noise by the paper's rule has std sigma_xi = d sigma^2 / M on the mean, where sigma^2 / M is the variance per coordinate of
  the noise on mean_i Delta_i. With noise multiplier z under replace_one, sigma^2 / M = (2 C z / M)^2, so
  sigma_xi = 4 d C^2 z^2 / M^2; divided by C^2 / M that is the noise multiplier 4 d z^2 / M. Under zero_out and add_or_remove the
  noise on mean_i Delta_i is half as large for the same z, but the multiplier of this release stays 4 d z^2 / M: four times the
  paper's std, and priced as what it is.

Proved under local and central trust: Delta_i depends on the client's own data and on w; w and eta_g are functions of releases;
clients hold no state. Local: eta_g costs nothing, it is computed from messages that are already paid for.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from dpfl_cli.algorithms.base import Diagnostics, Later, State
from dpfl_cli.algorithms.local import LocalSettings, batches_fit, bounded_local_update, check_clip_norm, per_run
from dpfl_cli.config.component import component
from dpfl_cli.config.errors import ConfigError
from dpfl_cli.data.streams import Streams
from dpfl_cli.models.objective import ClientSide
from dpfl_cli.privacy.bounded import squared_norms, vector_norms
from dpfl_cli.privacy.diagnostics import update_diagnostics
from dpfl_cli.privacy.mechanism import Mechanism, Release, ReleaseSpec


class FedExpSettings(LocalSettings):
    """Settings of `fedexp`."""

    step: Literal["adaptive", "naive"] = "adaptive"
    half: bool = False
    denominator_epsilon: float = Field(0.0, ge=0, allow_inf_nan=False)
    squared_norm_noise: float | None = Field(None, gt=0, allow_inf_nan=False)


def _paper_rule(noise_multiplier: float, dimension: int, clients: int) -> float:
    """4 d z^2 / M: the noise multiplier of "squared_norm" for sigma_xi = d sigma^2 / M (derived above)."""
    return 4 * dimension * noise_multiplier**2 / clients


@component("algorithm", "fedexp", revision=1, settings=FedExpSettings)
class FedExp:
    """DP-FedEXP: server step extrapolated from the norms of the updates."""

    trusts: ClassVar[frozenset[str]] = frozenset({"none", "local", "central"})
    proved: ClassVar[frozenset[str]] = frozenset({"local", "central"})  # see the docstring of the file
    units: ClassVar[frozenset[str]] = frozenset({"client"})
    convention: ClassVar[str] = "fedexp"  # how the paper states its epsilon
    paper: ClassVar[str] = "Takakura, Liew, Hasegawa 2025, arXiv:2504.09850"

    def __init__(self, hyper: Any) -> None:
        self.hyper = hyper

    @staticmethod
    def releases(settings: FedExpSettings, trust: str) -> list[ReleaseSpec]:
        check_clip_norm(settings, trust)
        update = "client update clipped to C: sensitivity 2C (replace_one), C (zero_out, add_or_remove)"
        if trust == "local":
            if settings.squared_norm_noise is not None:
                raise ConfigError(
                    "algorithm.squared_norm_noise: under local trust the squared norms are estimated from the messages, "
                    "not released; leave it null"
                )
            return [ReleaseSpec("update", settle=batches_fit(settings.batch_size), note=update)]
        if settings.step == "naive":
            raise ConfigError(
                f"algorithm.step=naive under dp.trust={trust}: it needs every client's noisy message; "
                "use dp=ldp or dp=ldp_privunit, or algorithm.step=adaptive"
            )
        given = settings.squared_norm_noise
        multiplier: Callable[[float, int, int], float] = _paper_rule if given is None else lambda z, d, M: given
        return [
            ReleaseSpec("update", group="update", settle=batches_fit(settings.batch_size), note=update),
            ReleaseSpec(
                "squared_norm",
                shape="scalar",
                group="update",
                quantity="squared_norms",
                multiplier=multiplier,
                note="squared norm of the clipped update, in [0, C^2]: sensitivity C^2 under every relation",
            ),
        ]

    def init(self, objective: ClientSide, streams: Streams) -> State:
        return State(server={"model": objective.initial(streams)}, clients={})

    def round(
        self, state: State, objective: ClientSide, mechanism: Mechanism, streams: Streams, rounds: np.ndarray
    ) -> tuple[State, Diagnostics]:
        model = state.server["model"]  # w
        update = bounded_local_update(objective, model, self.hyper, streams, rounds)  # Delta_i
        release = mechanism.release("update", update, rounds)
        mean = release.mean  # cbar
        naive: Callable[[], Tensor] | None = None
        if mechanism.trust != "local":  # the server does not see messages
            numerator = mechanism.release("squared_norm", squared_norms(update), rounds).mean
        else:
            numerator = mechanism.squared_norms(release).mean(dim=-1)
            naive = cache(lambda: self._naive(release))
        adaptive = self._ratio(numerator, mean).clamp(min=1.0)  # eta_g
        step = naive() if naive is not None and self.hyper.step == "naive" else adaptive
        model = model + per_run(step, model) * mean

        def told() -> Diagnostics:
            diagnostics = update_diagnostics(update)
            target = self._ratio(diagnostics["mean_squared_norm"], mean)
            steps = {} if naive is None else {"server_step_naive": naive()}
            return {**steps, "server_step": step, "server_step_target": target, **diagnostics}

        return State({"model": model}, {}), Later(told)

    def _naive(self, release: Release) -> Tensor:
        """[R] the step of the numerator (1/M) sum_i ||c_i||^2, with the noise in it."""
        return self._ratio(vector_norms(release.received).square().mean(dim=-1), release.mean)

    def _ratio(self, numerator: Tensor, mean: Tensor) -> Tensor:
        """[R] numerator / ||cbar||^2; 1 where cbar is zero, for then no step moves the model.

        Jhunjhunwala et al.'s form has 2 (||cbar||^2 + epsilon) below.
        """
        squared = vector_norms(mean).square() + self.hyper.denominator_epsilon
        below = 2 * squared if self.hyper.half else squared
        return torch.where(below > 0, numerator / below, torch.ones_like(below))
