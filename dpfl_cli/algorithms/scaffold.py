"""DP-SCAFFOLD at client level: control variates against client drift, whole updates clipped and noised.

References:
  Karimireddy, Kale, Mohri, Reddi, Stich, Suresh, "SCAFFOLD: stochastic controlled averaging for federated learning", 2020,
    arXiv:1910.06378, Algorithm 1 with option II, full participation.
  Noble, Bellet, Dieuleveut, "Differentially private federated learning on heterogeneous data", 2022, arXiv:2111.09278
    (DP-SCAFFOLD, there with noise in the local steps).
  Takakura, Liew, Hasegawa, 2025, arXiv:2504.09850, compare with it without spelling it out; this is the client-level form whose
    curves agree with theirs.

Round, with server control c, client controls h_i, tau local steps of size eta_l:
    raw_i   = LOCAL(w, i) with steps v <- v - eta_l (grad f_i(v) - h_i + c)
    Delta_i = CLIP(raw_i)
    cbar    = what the mechanism makes of mean_i Delta_i
    h_i    <- h_i - c - X_i / (tau eta_l)
    w      <- w + eta_g cbar
    c      <- -cbar / (tau eta_l)               (= c + mean_i of the change of h_i, where X_i averages to cbar)
X_i by `control`: `sent` is what the client transmitted, its noisy message where it adds noise itself (local) and Delta_i where it
does not (central, none), and that with its share of the noise under secure aggregation; `clipped` is Delta_i; `raw` is raw_i,
zero where that is not finite.
With `warm_start` the first round begins with h_i <- a clipped gradient of f_i at w, as X_i by `control` holds it, and c <- what
the mechanism makes of its mean, one release more (Noble et al.; Krouka, Koskela, Kulkarni, PoPETs 2025(1), Algorithm 4).

With `release=double` the server control comes from a release of its own, c <- -kbar / (tau eta_l), where kbar is the mean of
"control", and `sent` controls take X_i from it. (The change of control, -c - Delta_i / (tau eta_l), is a known affine map of
Delta_i, so Delta_i is what is released.)

Releases:
  "warm_start"  (once) CLIP(grad f_i(w)): sensitivity as that of the update.
  "update"   Delta_i in a ball of radius C: sensitivity 2C under replace_one, C under zero_out and add_or_remove.
  "control"  (double) Delta_i once more, same sensitivity.
  single: c is post-processing of cbar and costs nothing. double: each has noise multiplier sqrt(2) z; two Gaussian releases of
  multiplier sqrt(2) z compose to one of multiplier z, so both options cost the same. (PrivUnit has no multiplier: double then
  costs twice as much, and the ledger says so.)

Proved under local and central trust for every control: h_i is a function of the client's own data and of what was released before
(under local trust the client's own messages are among that), and Delta_i is clipped whatever h_i is. So, given the past releases,
Delta_i depends on no other client's data and has the sensitivity above. Under secure aggregation the same holds of `clipped` and
`raw` controls, given the sums that were released before. `sent` controls hold the client's share of the noise, which no release
of the sum shows (not proved), unless every message carries the whole noise: then it is the messages that are priced.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from dpfl_cli.algorithms.base import Diagnostics, Later, State
from dpfl_cli.algorithms.local import (
    LocalSettings,
    batches_fit,
    check_clip_norm,
    first_round,
    kept_share_gap,
    local_update,
    per_run,
)
from dpfl_cli.config.component import component
from dpfl_cli.data.devices import on_device
from dpfl_cli.data.streams import Streams
from dpfl_cli.models.objective import ClientSide
from dpfl_cli.privacy.bounded import Bounded, clip
from dpfl_cli.privacy.client_values import client_values
from dpfl_cli.privacy.diagnostics import update_diagnostics
from dpfl_cli.privacy.mechanism import Mechanism, Release, ReleaseSpec


class ScaffoldSettings(LocalSettings):
    """Settings of `scaffold`."""

    later: ClassVar[frozenset[str]] = frozenset({"server_lr", "warm_start"})
    control: Literal["sent", "clipped", "raw"] = "sent"
    release: Literal["single", "double"] = "single"
    server_lr: float = Field(1.0, gt=0, allow_inf_nan=False)  # eta_g
    warm_start: bool = False


def _split(noise_multiplier: float, dimension: int, clients: int) -> float:
    """sqrt(2) z: two of these compose to one Gaussian release of multiplier z."""
    return math.sqrt(2.0) * noise_multiplier


@component("algorithm", "scaffold", revision=1, settings=ScaffoldSettings)
class Scaffold:
    """DP-SCAFFOLD: client updates corrected by control variates, clipped and averaged."""

    trusts: ClassVar[frozenset[str]] = frozenset({"none", "local", "central", "secure_aggregation"})
    units: ClassVar[frozenset[str]] = frozenset({"client"})
    paper: ClassVar[str] = "Karimireddy et al. 2020, arXiv:1910.06378; Noble et al. 2022, arXiv:2111.09278"

    def __init__(self, hyper: Any) -> None:
        self.hyper = hyper

    @staticmethod
    def gap(settings: ScaffoldSettings, trust: str, whole_noise: bool) -> str | None:
        """See the docstring of the file."""
        return kept_share_gap(settings.control, trust, whole_noise, instead="clipped")

    @staticmethod
    def releases(settings: ScaffoldSettings, trust: str) -> list[ReleaseSpec]:
        check_clip_norm(settings, trust)
        sent = settings.control == "sent"
        spec = partial(ReleaseSpec, echo=sent, sums_suffice=not sent, settle=batches_fit(settings.batch_size))
        note = "clipped to C: sensitivity 2C (replace_one), C (zero_out, add_or_remove)"
        first = [spec("warm_start", occurs=first_round, note=f"once, at the start: client gradient {note}")]
        first = first if settings.warm_start else []
        if settings.release == "single":
            return [*first, spec("update", note=f"client update {note}")]
        doubled = f"{note}; multiplier sqrt(2) z"
        return [
            *first,
            spec("update", multiplier=_split, note=f"client update {doubled}"),
            spec("control", multiplier=_split, note=f"the same update for the control, {doubled}"),
        ]

    def init(self, objective: ClientSide, streams: Streams) -> State:
        model = objective.initial(streams)
        own = model.new_zeros(objective.runs, objective.clients, objective.dimension)
        return State(server={"model": model, "control": torch.zeros_like(model)}, clients={"control": client_values(own)})

    def round(
        self, state: State, objective: ClientSide, mechanism: Mechanism, streams: Streams, rounds: np.ndarray
    ) -> tuple[State, Diagnostics]:
        hyper = self.hyper
        model, control = state.server["model"], state.server["control"]  # w, c
        own: Tensor = state.clients["control"]  # h_i
        if hyper.warm_start and (rounds == 1).any():
            control, own = self._warm_start(model, control, own, objective, mechanism, rounds)
        drift = control.unsqueeze(1) - own  # c - h_i
        raw = local_update(objective, model, hyper, streams, rounds, drift)
        update = clip(raw, hyper.clip_norm)  # Delta_i
        release = mechanism.release("update", update, rounds)
        settled = mechanism.release("control", update, rounds) if hyper.release == "double" else release

        memory = self._remembered(raw, update, settled)  # X_i
        length = hyper.local_steps * hyper.local_lr  # tau eta_l
        own = -torch.addcdiv(drift, memory, per_run(length, memory))  # h_i - c - X_i / (tau eta_l)
        model = model + per_run(hyper.server_lr, model) * release.mean
        server = {"model": model, "control": -settled.mean / per_run(length, settled.mean)}
        return State(server, {"control": own}), Later(lambda: update_diagnostics(update))

    def _remembered(self, raw: Tensor, bounded: Bounded, release: Release) -> Tensor:
        """[R, M, d] what client controls keep of a contribution."""
        if self.hyper.control == "sent":
            return release.echo
        if self.hyper.control == "clipped":
            return bounded.values
        return torch.where(torch.isfinite(raw).all(dim=-1, keepdim=True), raw, torch.zeros_like(raw))

    def _warm_start(
        self, model: Tensor, control: Tensor, own: Tensor, objective: ClientSide, mechanism: Mechanism, rounds: np.ndarray
    ) -> tuple[Tensor, Tensor]:
        """c and h_i from a clipped gradient at w, for the runs in their first round."""
        first = on_device(rounds == 1, model.device)
        gradient = objective.gradient(model.unsqueeze(1).expand(objective.runs, objective.clients, objective.dimension))
        bounded = clip(gradient, self.hyper.clip_norm)
        release = mechanism.release("warm_start", bounded, rounds, charged=rounds == 1)
        fresh = self._remembered(gradient, bounded, release)
        return torch.where(first.reshape(-1, 1), release.mean, control), torch.where(first.reshape(-1, 1, 1), fresh, own)
