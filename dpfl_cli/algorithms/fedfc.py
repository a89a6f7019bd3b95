"""DP-FedFC at client level: preconditioned gradients, clipped and averaged.

Reference: Krouka, Koskela, Kulkarni, "Communication-efficient federated second-order methods with differential privacy
  (DP-FedNew)", PoPETs 2025(1), Algorithm 6.

Before round 1, with m_i records of client i and features x_j:
    K <- what the mechanism makes of mean_i CLIP((1/m_i) sum_j x_j x_j^T, C_c)       (Frobenius norm)
    P <- (K + gamma I)^-1, eigenvalues of K + gamma I below gamma counting as gamma (`psd_floor`); sent to the clients
Round:
    u_i <- CLIP((I_c (x) P) grad f_i(w), C_g)
    w   <- w - eta (what the mechanism makes of mean_i u_i)
`cov_norm=paper` clips the sum over a client's records, as printed, where `mean` clips their mean; C_c then grows with m_i.

Releases:
  "covariance"  once, a packed triangle: a matrix in a ball of radius C_c, 2 C_c (replace_one), C_c (zero_out, add_or_remove).
  "gradient"    every round: a vector in a ball of radius C_g, 2 C_g or C_g.
  Their noise: `second_moment.releases`.

Proved under every trust model: the covariance is of the client's own data alone; u_i is a function of the client's own data, of
w and of P, both functions of past releases; clients hold no state. So every release is the mechanism applied to a quantity of
known sensitivity given the past releases, T + 1 of them.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from torch import Tensor

from dpfl_cli.algorithms.base import Diagnostics, Later, State
from dpfl_cli.algorithms.local import per_run
from dpfl_cli.algorithms.second_moment import SecondMomentSettings, blank, feature_clip, preconditioner, releases
from dpfl_cli.config.component import component
from dpfl_cli.data.streams import Streams
from dpfl_cli.models.objective import ClientSide
from dpfl_cli.privacy.bounded import Bounded, clip, clip_symmetric
from dpfl_cli.privacy.diagnostics import update_diagnostics
from dpfl_cli.privacy.mechanism import Mechanism, ReleaseSpec


class FedFCSettings(SecondMomentSettings):
    """Settings of `fedfc`."""


@component("algorithm", "fedfc", revision=1, settings=FedFCSettings)
class FedFC:
    """DP-FedFC: client gradients, preconditioned by the noisy covariance of the features, clipped and averaged."""

    trusts: ClassVar[frozenset[str]] = frozenset({"none", "local", "central", "secure_aggregation"})
    proved: ClassVar[frozenset[str]] = frozenset({"local", "central", "secure_aggregation"})  # see the docstring of the file
    units: ClassVar[frozenset[str]] = frozenset({"client"})
    needs: ClassVar[frozenset[str]] = frozenset({"covariance"})
    paper: ClassVar[str] = "Krouka, Koskela, Kulkarni 2025, PoPETs 2025(1), Algorithm 6"

    def __init__(self, hyper: Any) -> None:
        self.hyper = hyper

    @staticmethod
    def releases(settings: FedFCSettings, trust: str) -> list[ReleaseSpec]:
        note = "clipped to C: sensitivity 2C (replace_one), C (zero_out, add_or_remove)"
        return releases(settings, trust, f"preconditioned client gradient {note}", f"client covariance of features {note}")

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
        update = clip(objective.precondition(objective.gradient(start), inverse), hyper.clip_norm)  # u_i
        mean = mechanism.release("gradient", update, rounds).mean
        model = model - per_run(hyper.server_lr, model) * mean
        return State({"model": model, "preconditioner": inverse}, {}), Later(lambda: update_diagnostics(update))

    def _covariance(self, objective: ClientSide) -> Bounded:
        """[R, M, p (p + 1) / 2] every client's covariance, clipped as a whole."""
        own: Tensor = objective.covariance()
        if self.hyper.cov_norm == "paper":
            own = own * objective.records.to(own.dtype).unsqueeze(-1)
        return clip_symmetric(own, feature_clip(self.hyper, objective))
