"""DP-FedFC at record level: gradient descent, preconditioned by the covariance of the features.

Reference: Krouka, Koskela, Kulkarni, "Communication-efficient federated second-order methods with differential privacy
  (DP-FedNew)", PoPETs 2025(1), Algorithm 5.

Before round 1, with m_i records of client i and features x_j:
    K <- what the mechanism makes of mean_i (1/m_i) sum_j CLIP(x_j, C_c) CLIP(x_j, C_c)^T
    P <- (K + gamma I)^-1, eigenvalues of K + gamma I below gamma counting as gamma (`psd_floor`)
Round:
    G <- what the mechanism makes of mean_i (1/m_i) sum_j CLIP(grad l_ij(w), C_g)
    w <- w - eta (I_c (x) P) (G + grad h(w))
The server inverts once and solves for nobody else. `cov_norm=paper` sums over a client's records where `mean` takes their mean (a
factor m_i; the algorithm as printed divides the gradients only).

Releases:
  "covariance"  once, a packed triangle: C_c^2 / m when one record is left out, sqrt(2) C_c^2 / m when it is replaced
    (`bounded.record_covariance`); times m with `cov_norm=paper`.
  "gradient"    every round: 2 C_g / m (replace_one), C_g / m (zero_out, add_or_remove).
  Their noise: `second_moment.releases`.

Proved under every trust model: the covariance is of the client's own data alone, gradients are taken at w, a function of past
releases, and clients hold no state. So every release is the mechanism applied to a quantity of known sensitivity given the past
releases, T + 1 of them.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from dpfl_cli.algorithms.base import Diagnostics, State
from dpfl_cli.algorithms.local import per_run
from dpfl_cli.algorithms.record import GRADIENT
from dpfl_cli.algorithms.second_moment import SecondMomentSettings, blank, feature_clip, preconditioner, releases
from dpfl_cli.config.component import component
from dpfl_cli.data.streams import Streams
from dpfl_cli.models.objective import ClientSide
from dpfl_cli.privacy.bounded import Bounded, scaled
from dpfl_cli.privacy.mechanism import Mechanism, ReleaseSpec


class FedFCRecordSettings(SecondMomentSettings):
    """Settings of `fedfc_record`."""


@component("algorithm", "fedfc_record", revision=1, settings=FedFCRecordSettings)
class FedFCRecord:
    """DP-FedFC at record level: noisy gradients, preconditioned by the noisy covariance of the features."""

    trusts: ClassVar[frozenset[str]] = frozenset({"none", "local", "central", "secure_aggregation"})
    proved: ClassVar[frozenset[str]] = frozenset({"local", "central", "secure_aggregation"})  # see the docstring of the file
    units: ClassVar[frozenset[str]] = frozenset({"record"})
    needs: ClassVar[frozenset[str]] = frozenset({"clipped_gradient", "covariance"})
    paper: ClassVar[str] = "Krouka, Koskela, Kulkarni 2025, PoPETs 2025(1), Algorithm 5"

    def __init__(self, hyper: Any) -> None:
        self.hyper = hyper

    @staticmethod
    def releases(settings: FedFCRecordSettings, trust: str) -> list[ReleaseSpec]:
        divided = " / m" if settings.cov_norm == "mean" else ""
        note = f"covariance of features clipped to C: sensitivity sqrt(2) C^2{divided} (replace_one), C^2{divided} (others)"
        return releases(settings, trust, GRADIENT, note)

    def init(self, objective: ClientSide, streams: Streams) -> State:
        return State({"model": objective.initial(streams), "preconditioner": blank(objective)}, {})

    def round(
        self, state: State, objective: ClientSide, mechanism: Mechanism, streams: Streams, rounds: np.ndarray
    ) -> tuple[State, Diagnostics]:
        hyper = self.hyper
        model, inverse = state.server["model"], state.server["preconditioner"]  # w, P
        if (rounds == 1).any():
            inverse = preconditioner(inverse, self._covariance(objective), objective, mechanism, hyper, rounds)
        start = model.unsqueeze(1).expand(objective.runs, objective.clients, objective.dimension)
        mean = mechanism.release("gradient", objective.clipped_gradient(start, hyper.clip_norm), rounds).mean  # G
        direction = objective.precondition(mean + objective.regulariser_gradient(model), inverse)
        model = model - per_run(hyper.server_lr, model) * direction
        return State({"model": model, "preconditioner": inverse}, {}), {}

    def _covariance(self, objective: ClientSide) -> Bounded:
        """[R, M, p (p + 1) / 2] every client's covariance of clipped features."""
        mean = objective.clipped_covariance(feature_clip(self.hyper, objective))
        return scaled(mean, objective.records) if self.hyper.cov_norm == "paper" else mean
