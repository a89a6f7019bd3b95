"""DP-FedAvg at record level: noise inside the local steps.

References:
  Noble, Bellet, Dieuleveut, "Differentially private federated learning on heterogeneous data", 2022, arXiv:2111.09278
    (DP-FedAvg there), with all clients and all records in every step.
  Zhang, Fay, Johansson 2023, arXiv:2308.01139, compare with it; Krouka, Koskela, Kulkarni 2025 call its form with one local step
    DP-FedGD.

Round, with m_i records of client i, losses l_ij and a regulariser h that depends on no data:
    v_i <- w; repeat K times:
      G_i <- what the mechanism makes of (1/m_i) sum_j CLIP(grad l_ij(v_i), C)
      v_i <- v_i - eta_l (G_i + grad h(v_i))
    w   <- w + eta_g mean_i (v_i - w)

Releases: "gradient", K times a round. Replacing one record of client i moves its mean of clipped gradients by at most 2C / m_i,
  leaving it out (with 1 / m_i fixed and public) by at most C / m_i. mean_i (v_i - w) is computed from the released means.

Proved: under local trust for any K: v_i is a function of the client's own past messages and of w, both released, so every G_i is
the mechanism applied to a quantity of known sensitivity given past releases; adaptive composition over K T messages. Under
central trust and secure aggregation for K = 1, where the gradient is taken at w itself. With more local steps under secure
aggregation v_i holds only the client's share of the noise, which no release shows: composition over the sums does not cover it.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from pydantic import Field

from dpfl_cli.algorithms.base import Diagnostics, State
from dpfl_cli.algorithms.local import per_run
from dpfl_cli.algorithms.record import RecordSettings, gradient_release, local_steps_gap, noisy_steps
from dpfl_cli.config.component import component
from dpfl_cli.data.streams import Streams
from dpfl_cli.models.objective import ClientSide
from dpfl_cli.privacy.mechanism import Mechanism, ReleaseSpec


class FedAvgRecordSettings(RecordSettings):
    """Settings of `fedavg_record`."""

    server_lr: float = Field(1.0, gt=0, allow_inf_nan=False)  # eta_g


@component("algorithm", "fedavg_record", revision=1, settings=FedAvgRecordSettings)
class FedAvgRecord:
    """DP-FedAvg at record level: local steps on clipped, noised gradients."""

    trusts: ClassVar[frozenset[str]] = frozenset({"none", "local", "central", "secure_aggregation"})
    units: ClassVar[frozenset[str]] = frozenset({"record"})
    needs: ClassVar[frozenset[str]] = frozenset({"clipped_gradient"})
    paper: ClassVar[str] = "Noble et al. 2022, arXiv:2111.09278"

    def __init__(self, hyper: Any) -> None:
        self.hyper = hyper

    @staticmethod
    def gap(settings: FedAvgRecordSettings, trust: str, whole_noise: bool) -> str | None:
        """See the docstring of the file."""
        return local_steps_gap(settings, whole_noise)

    @staticmethod
    def releases(settings: FedAvgRecordSettings, trust: str) -> list[ReleaseSpec]:
        return [gradient_release(settings, trust)]

    def init(self, objective: ClientSide, streams: Streams) -> State:
        return State(server={"model": objective.initial(streams)}, clients={})

    def round(
        self, state: State, objective: ClientSide, mechanism: Mechanism, streams: Streams, rounds: np.ndarray
    ) -> tuple[State, Diagnostics]:
        model = state.server["model"]  # w
        _, mean = noisy_steps(objective, mechanism, self.hyper, model, rounds, streams)  # mean_i v_i
        model = model + per_run(self.hyper.server_lr, model) * (mean - model)
        return State({"model": model}, {}), {}
