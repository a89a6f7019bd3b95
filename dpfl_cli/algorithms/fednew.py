"""FedNew at client level: damped Newton directions by one pass of ADMM, clipped as a whole; without privacy, FedNew itself.

References:
  Krouka, Koskela, Kulkarni, "Communication efficient differentially private federated learning using second order information",
    PoPETs 2025(1) 584-612, Algorithm 1 (client level); `curvature=covariance` is its FedNew-FC.
  Elgabli, Issaid, Bedi, Rajawat, Bennis, Aggarwal, "FedNew: a communication-efficient and privacy-preserving Newton-type method
    for federated learning", ICML 2022, arXiv:2206.08829 (without privacy).

Round, with g_i and H_i the gradient and the curvature of f_i at theta, gamma = alpha + rho, duals lambda_i = 0 at first:
    repeat `inner` times, g_i and H_i frozen:
      yhat_i   = CLIP((H_i + gamma I)^-1 (g_i - lambda_i + rho y))
      y        = what the mechanism makes of mean_i yhat_i
      lambda_i <- lambda_i + rho (Y_i - y)
    theta <- theta - eta y
Each pass is one step of ADMM on min sum_i y_i . (H_i + alpha I) y_i / 2 - y_i . g_i subject to y_i = y; without clipping and
noise, many of them with duals give the damped Newton direction (mean_i H_i + alpha I)^-1 mean_i g_i. A model's regulariser is in
g_i, not in H_i.

Y_i by `dual`: `paper` what the client sent, its message with the noise that it added itself (local, secure aggregation), so that
the lambda_i sum to zero; `own_update` yhat_i, before noise, the same where clients add none (central, none); `off` keeps
lambda_i = 0.

Releases: "direction", `inner` times a round: yhat_i in a ball of radius C. Replacing a client's data moves it by at most 2C,
  leaving the client out or zeroing it by at most C.

Proved, by `dual`:
  off         Under every trust model: yhat_i is a function of the client's data, y and theta, which are functions of releases.
  own_update  Under every trust model: lambda_i = rho sum_s (yhat_i^s - y^s) is a function of the client's own data and of
              releases, of no other client's data and of no noise that is not released. So, given past releases, yhat_i is what
              its client makes of its own data, clipped whatever lambda_i is; one client moves the sum by the sensitivity
              above, and adaptive composition applies as it stands. The price: the lambda_i sum to minus rho times all noise
              so far, so that the noise of the directions adds up from round to round.
  paper       Under local trust: lambda_i is a function of the client's past messages and of y, all released. Under central
              trust clients add no noise, and it is own_update. Under secure aggregation where each message carries the whole
              noise: messages protect by themselves, and everything after is computed from them; then it is they that are
              priced (`sums_suffice`). Not where clients add shares: lambda_i holds the client's share e_i of the noise,
              N(0, std^2 / M), which no sum shows. Since the lambda_i sum to zero the others hold -lambda_i: with
              A = (H + gamma I)^-1 the same for all, the next sum is moved through them by A rho sum_s (yhat_i^s + e_i^s), all
              past contributions once more. The client's own -A lambda_i cancels that only while its clip does not bind; where
              it does, round k is moved by up to C (1 + (k - 1) rho ||A||), not C (claimed epsilon 1 over 70 rounds at rho = 1,
              alpha = 0.1, many clients and H = 0: 91.5 in truth).
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field
from torch import Tensor

from dpfl_cli.algorithms.base import Diagnostics, Later, State
from dpfl_cli.algorithms.local import check_clip_norm, per_run
from dpfl_cli.algorithms.second_order import SecondOrderSettings, auxiliary, dual_step, start_state
from dpfl_cli.config.component import component
from dpfl_cli.data.streams import Streams
from dpfl_cli.models.objective import ClientSide
from dpfl_cli.privacy.bounded import clip
from dpfl_cli.privacy.diagnostics import update_diagnostics
from dpfl_cli.privacy.mechanism import Mechanism, ReleaseSpec
from dpfl_cli.privacy.worst_cases import wound_up_dual


class FedNewSettings(SecondOrderSettings):
    """Settings of `fednew`."""

    clip_norm: float | None = Field(gt=0, allow_inf_nan=False)  # C
    dual: Literal["off", "own_update", "paper"] = "off"
    inner: int = Field(1, ge=1)


@component("algorithm", "fednew", revision=1, settings=FedNewSettings)
class FedNew:
    """DP-FedNew: damped Newton directions, clipped as a whole and averaged."""

    trusts: ClassVar[frozenset[str]] = frozenset({"none", "local", "central", "secure_aggregation"})
    units: ClassVar[frozenset[str]] = frozenset({"client"})
    needs: ClassVar[frozenset[str]] = frozenset({"damped_solve"})
    paper: ClassVar[str] = "Krouka, Koskela, Kulkarni, PoPETs 2025(1); Elgabli et al. 2022, arXiv:2206.08829"

    def __init__(self, hyper: Any) -> None:
        self.hyper = hyper
        self._shift = hyper.damping + hyper.penalty  # gamma; made once, for objectives on a device keep factors by the tensor

    @staticmethod
    def gap(settings: FedNewSettings, trust: str, whole_noise: bool) -> str | None:
        """See the docstring of the file."""
        if settings.dual != "paper" or trust != "secure_aggregation" or whole_noise:
            return None
        return (
            "algorithm.dual=paper: a client's dual holds only its share of the noise and the others' duals hold minus it, so "
            "that every sum releases all its past contributions again"
        )

    @staticmethod
    def releases(settings: FedNewSettings, trust: str) -> list[ReleaseSpec]:
        check_clip_norm(settings, trust, "a direction")
        return [
            ReleaseSpec(
                "direction",
                per_round=settings.inner,
                sums_suffice=settings.dual != "paper",
                echo=settings.dual == "paper",
                note="client direction clipped to C: sensitivity 2C (replace_one), C (zero_out, add_or_remove)",
            )
        ]

    @staticmethod
    def attack(settings: FedNewSettings, rounds: int, counts: list[int], sens_scale: str) -> tuple[float, float] | None:
        """How much further than claimed the worst data known move the sums, shares being equal; None of a proved variant."""
        return (wound_up_dual(rounds, settings.damping, settings.penalty), 1.0) if settings.dual == "paper" else None

    def init(self, objective: ClientSide, streams: Streams) -> State:
        return start_state(objective, streams, dual=self.hyper.dual != "off")

    def round(
        self, state: State, objective: ClientSide, mechanism: Mechanism, streams: Streams, rounds: np.ndarray
    ) -> tuple[State, Diagnostics]:
        hyper = self.hyper
        model, direction = state.server["model"], state.server["direction"]  # theta, y
        dual: Tensor | None = state.clients.get("dual")  # lambda_i
        start = model.unsqueeze(1).expand(objective.runs, objective.clients, objective.dimension)
        gradient = objective.gradient(start)  # g_i
        for _ in range(hyper.inner):
            right = gradient + auxiliary(objective, hyper, direction, dual)
            raw = objective.damped_solve(start, right, self._shift, hyper.curvature)
            update = clip(raw, hyper.clip_norm)  # yhat_i
            release = mechanism.release("direction", update, rounds)
            direction = release.mean
            if dual is not None:
                dual = dual_step(hyper, dual, release.echo if hyper.dual == "paper" else update.values, direction)
        model = model - per_run(hyper.server_lr, model) * direction
        clients = {} if dual is None else {"dual": dual}
        return State({"model": model, "direction": direction}, clients), Later(lambda: update_diagnostics(update))
