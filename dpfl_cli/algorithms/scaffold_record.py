"""DP-SCAFFOLD at record level: control variates, and noise inside the local steps.

References:
  Noble, Bellet, Dieuleveut, "Differentially private federated learning on heterogeneous data", 2022, arXiv:2111.09278
    (DP-SCAFFOLD), with all clients and all records in every step.
  Karimireddy et al., "SCAFFOLD", 2020, arXiv:1910.06378, Algorithm 1 with option II.
  Zhang, Fay, Johansson 2023, arXiv:2308.01139, compare with it.

Round, with server control c = mean_i c_i and client controls c_i:
    v_i <- w; repeat K times:
      G_i <- what the mechanism makes of (1/m_i) sum_j CLIP(grad l_ij(v_i), C)
      v_i <- v_i - eta_l (G_i + grad h(v_i) - c_i + c)
    c_i <- c_i - c + (w - v_i) / (K eta_l)          (the mean of the K noisy gradients)
    w   <- w + eta_g mean_i (v_i - w)
    c   <- mean_i c_i
c = mean_i c_i, so the drifts c - c_i cancel in every mean over clients, and mean_i v_i and the new c follow from the released
means of the G_i alone. (Under central trust clients hold no noise, so c is mean_i c_i and the server's noise; that the noise
drops out of the drifts is part of the method there, which with its one local step is gradient descent.) With `warm_start` the
first round begins with c_i <- a noisy gradient at w, one release more. In the first `warm_idle_rounds` rounds w stays (Noble et
al.'s released code); with `extra_inv_n` its step is divided by the number of clients once more (a reading of Krouka et al.'s
figures, whose noise falls as the number of clients grows).

Releases: "gradient", K times a round, and "warm_start" once, both as in `fedavg_record`: sensitivity 2C / m_i under replace_one,
  C / m_i otherwise.

Proved: under local trust for any K: c_i and v_i are functions of the client's own past messages and of what the server sent.
Under central trust and secure aggregation for K = 1: c_i does not reach any released mean then, because gradients are taken at
w. With more local steps under secure aggregation v_i and c_i hold the client's share of the noise only (not proved).
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from dpfl_cli.algorithms.base import Diagnostics, State
from dpfl_cli.algorithms.local import first_round, per_run
from dpfl_cli.algorithms.record import GRADIENT, RecordSettings, gradient_release, local_steps_gap, noisy_steps
from dpfl_cli.config.component import component
from dpfl_cli.data.devices import on_device
from dpfl_cli.data.streams import Streams
from dpfl_cli.models.objective import ClientSide
from dpfl_cli.privacy.client_values import client_values
from dpfl_cli.privacy.mechanism import Mechanism, ReleaseSpec


class ScaffoldRecordSettings(RecordSettings):
    """Settings of `scaffold_record`."""

    later: ClassVar[frozenset[str]] = frozenset({"warm_idle_rounds", "extra_inv_n"})
    server_lr: float = Field(1.0, gt=0, allow_inf_nan=False)  # eta_g
    warm_start: bool = False
    warm_idle_rounds: int = Field(0, ge=0)
    extra_inv_n: bool = False


@component("algorithm", "scaffold_record", revision=1, settings=ScaffoldRecordSettings)
class ScaffoldRecord:
    """DP-SCAFFOLD at record level: control variates, local steps on clipped, noised gradients."""

    trusts: ClassVar[frozenset[str]] = frozenset({"none", "local", "central", "secure_aggregation"})
    units: ClassVar[frozenset[str]] = frozenset({"record"})
    needs: ClassVar[frozenset[str]] = frozenset({"clipped_gradient"})
    paper: ClassVar[str] = "Noble et al. 2022, arXiv:2111.09278; Karimireddy et al. 2020, arXiv:1910.06378"

    def __init__(self, hyper: Any) -> None:
        self.hyper = hyper

    @staticmethod
    def gap(settings: ScaffoldRecordSettings, trust: str, whole_noise: bool) -> str | None:
        """See the docstring of the file."""
        return local_steps_gap(settings, whole_noise)

    @staticmethod
    def releases(settings: ScaffoldRecordSettings, trust: str) -> list[ReleaseSpec]:
        steps = gradient_release(settings, trust)
        note = f"once, at the start: {GRADIENT}"
        first = ReleaseSpec("warm_start", occurs=first_round, echo=True, sums_suffice=steps.sums_suffice, note=note)
        return [first, steps] if settings.warm_start else [steps]

    def init(self, objective: ClientSide, streams: Streams) -> State:
        model = objective.initial(streams)
        own = model.new_zeros(objective.runs, objective.clients, objective.dimension)
        return State(server={"model": model, "control": torch.zeros_like(model)}, clients={"control": client_values(own)})

    def round(
        self, state: State, objective: ClientSide, mechanism: Mechanism, streams: Streams, rounds: np.ndarray
    ) -> tuple[State, Diagnostics]:
        hyper = self.hyper
        model, control = state.server["model"], state.server["control"]  # w, c
        own: Tensor = state.clients["control"]  # c_i
        if hyper.warm_start and (rounds == 1).any():
            control, own = self._warm_start(model, control, own, objective, mechanism, rounds)
        drift = control.unsqueeze(1) - own  # c - c_i
        local, mean = noisy_steps(objective, mechanism, hyper, model, rounds, streams, drift)  # v_i and mean_i v_i
        length = hyper.local_steps * hyper.local_lr  # K eta_l
        own = (model.unsqueeze(1) - local) / per_run(length, local) - drift
        control = (model - mean) / per_run(length, mean)
        step = per_run(hyper.server_lr, model) * (mean - model)
        if hyper.extra_inv_n:
            step = step / objective.clients
        if hyper.warm_idle_rounds and (rounds <= hyper.warm_idle_rounds).any():
            idle = on_device(rounds <= hyper.warm_idle_rounds, model.device)
            step = torch.where(idle.reshape(-1, 1), 0.0, step)
        return State({"model": model + step, "control": control}, {"control": own}), {}

    def _warm_start(
        self, model: Tensor, control: Tensor, own: Tensor, objective: ClientSide, mechanism: Mechanism, rounds: np.ndarray
    ) -> tuple[Tensor, Tensor]:
        """c and c_i from a noisy gradient at w, for the runs in their first round."""
        first = on_device(rounds == 1, model.device)
        start = model.unsqueeze(1).expand(objective.runs, objective.clients, objective.dimension)
        gradient = objective.clipped_gradient(start, self.hyper.clip_norm)
        release = mechanism.release("warm_start", gradient, rounds, charged=rounds == 1)
        fresh = release.echo + objective.regulariser_gradient(start)
        whole = release.mean + objective.regulariser_gradient(model)
        return torch.where(first.reshape(-1, 1), whole, control), torch.where(first.reshape(-1, 1, 1), fresh, own)
