"""AdaptDP-FedAvg: record-level local steps whose clip norm follows a private estimate of the gradients' size.

Reference: "Adaptive clipping for differentially private federated learning under interpolation", TMLR 2025, its Algorithm 1; with
  the clip norm fixed it is `fedavg_record` (its Algorithm 2).

Round r of R, with P clients, model x and a batch of b (or b_C) fresh records of a client in every line that has one:
    s_p <- what the mechanism makes of (1/b_C) sum_j min(||grad l_pj(x)||^2, G^2)
    nu   = sqrt(2 mean_p sd_p^2 / P) sqrt(ln(2 P R / u)),  sd_p the standard deviation of the noise in s_p
    C_r  = min(sqrt(max(0, 2 tau (mean_p s_p + nu))), G)
    v_p <- x; K times: v_p <- v_p - eta (what the mechanism makes of (1/b) sum_j CLIP(grad l_pj(v_p), C_r) + grad h(v_p))
    x   <- x + mean_p (v_p - x), projected onto the ball of radius B (none: as it is)
(The paper's listing evaluates the gradient of a step at the step's own result; its proof and Algorithm 2 do as above.)

Releases:
  "radius"    once a round, a number in [0, G^2] per record: replacing one of the b_C records moves the mean by at most G^2 / b_C
    (`sensitivity=tight`); the paper takes 2 G^2 / b_C, which is as valid and noisier (`paper`).
  "gradient"  K times a round: 2 C_r / b (replace_one), C_r / b (others) on a fixed batch. C_r is a function of past releases.
  Batches are fresh uniform subsets without replacement at every step (`sampling=without_replacement`), which is what the
  amplification of accountant=wang_rdp is for. With `epoch_permutation` the steps of an epoch take the parts of one permutation:
  every record is in one of them, so that an epoch costs what one step does, without amplification. `with_replacement` may
  hold a record several times, for which no sensitivity is proved.

Noise of the radius: `radius_noise_multiplier`, std over sensitivity; null makes the radius releases of all rounds cost, at order
1 + ceil(2 ln(1 / delta) / epsilon) of the target, as much as all gradient releases (the paper's split of its budget).

Diagnostics: `radius`, C_r, which is released; `clipped_fraction`, the share of the radius's batch that C_r clips at x: not.

Proved as `fedavg_record` is: under local trust for any K, under central trust and secure aggregation for K = 1.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from math import ceil, log
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from dpfl_cli.algorithms.base import Diagnostics, State
from dpfl_cli.algorithms.record import RecordSettings, gradient_release, local_steps_gap, noisy_steps
from dpfl_cli.config.component import component
from dpfl_cli.config.errors import ConfigError
from dpfl_cli.data.devices import on_device
from dpfl_cli.data.streams import Streams
from dpfl_cli.models.objective import ClientSide
from dpfl_cli.privacy.bounded import number_mean, vector_norms
from dpfl_cli.privacy.diagnostics import record_diagnostics
from dpfl_cli.privacy.mechanism import Mechanism, ReleaseSpec
from dpfl_cli.privacy.subsampling import balanced_multiplier

RADIUS = "mean of the records' squared gradient norms, each clipped to G^2: sensitivity G^2 / m under every relation"


class AdaptDpSettings(RecordSettings):
    """Settings of `adaptdp`; clip_norm is the cap G of the radius."""

    radius_batch_size: int | None = Field(None, ge=1)  # b_C
    radius_multiplier: float = Field(1.0, gt=0, allow_inf_nan=False)  # tau
    radius_floor: float = Field(1e-9, gt=0, allow_inf_nan=False)
    radius_noise_multiplier: float | None = Field(None, gt=0, allow_inf_nan=False)
    sensitivity: Literal["tight", "paper"] = "tight"
    offset: Literal["formula", "none"] = "formula"  # nu
    offset_failure: float = Field(0.01, gt=0, lt=1)  # u
    projection_radius: float | None = Field(None, gt=0, allow_inf_nan=False)  # B
    target_epsilon: float | None = Field(None, gt=0)
    target_delta: float = Field(1e-4, gt=0, lt=1)


@component("algorithm", "adaptdp", revision=1, settings=AdaptDpSettings)
class AdaptDp:
    """AdaptDP-FedAvg: noisy local steps, clipped at a private estimate of the gradients' size."""

    trusts: ClassVar[frozenset[str]] = frozenset({"none", "local", "central", "secure_aggregation"})
    units: ClassVar[frozenset[str]] = frozenset({"record"})
    needs: ClassVar[frozenset[str]] = frozenset({"clipped_gradient", "squared_gradient_norms"})
    paper: ClassVar[str] = "AdaptDP, TMLR 2025"

    def __init__(self, hyper: Any) -> None:
        self.hyper = hyper

    @staticmethod
    def gap(settings: AdaptDpSettings, trust: str, whole_noise: bool) -> str | None:
        """See the docstring of the file."""
        return local_steps_gap(settings, whole_noise)

    @staticmethod
    def releases(settings: AdaptDpSettings, trust: str) -> list[ReleaseSpec]:
        steps = gradient_release(settings, trust)
        radius = ReleaseSpec(
            "radius", "scalar", sums_suffice=steps.sums_suffice, settle=partial(_settled_radius, settings, steps), note=RADIUS
        )
        return [radius, steps]

    def init(self, objective: ClientSide, streams: Streams) -> State:
        return State(server={"model": objective.initial(streams)}, clients={})

    def round(
        self, state: State, objective: ClientSide, mechanism: Mechanism, streams: Streams, rounds: np.ndarray
    ) -> tuple[State, Diagnostics]:
        hyper = self.hyper
        model = state.server["model"]  # x
        radius, clipped = self._radius(model, objective, mechanism, streams, rounds)  # C_r
        _, mean = noisy_steps(objective, mechanism, hyper, model, rounds, streams, clip_norm=radius)
        if hyper.projection_radius is not None:
            mean = mean * (hyper.projection_radius / vector_norms(mean)).clamp(max=1.0).to(mean.dtype).unsqueeze(-1)
        return State({"model": mean}, {}), {"radius": radius, **clipped}

    def _radius(
        self, model: Tensor, objective: ClientSide, mechanism: Mechanism, streams: Streams, rounds: np.ndarray
    ) -> tuple[Tensor, Diagnostics]:
        """[R] C_r, from one release; and the share of the radius's batch that it clips at x, a diagnostic."""
        hyper, cap = self.hyper, self.hyper.clip_norm
        start = model.unsqueeze(1).expand(objective.runs, objective.clients, objective.dimension)
        size = hyper.radius_batch_size
        batch, divisor = None, objective.records
        if size is not None:
            batch = streams.subset("radius batch", rounds, objective.clients, objective.held, size, objective.batch_device)
            divisor = torch.full_like(objective.records, size)
        norms = objective.squared_gradient_norms(start, batch)
        factor = 2.0 if hyper.sensitivity == "paper" else 1.0
        release = mechanism.release("radius", number_mean(norms, cap.square(), divisor, factor), rounds)
        level = 2 * hyper.radius_multiplier * (release.mean + self._offset(release.noise_std, mechanism, objective.clients))
        radius = level.clamp(min=0.0).sqrt()
        radius = torch.minimum(torch.maximum(radius, hyper.radius_floor.to(radius.dtype)), cap.to(radius.dtype))
        return radius, record_diagnostics(norms, radius, divisor)

    def _offset(self, std: Tensor | None, mechanism: Mechanism, clients: int) -> Tensor | float:
        """nu [R]; the noise of one client's number has the standard deviation std [R] or [R, M], that of their mean 1 / P of it
        summed in squares, whoever adds it."""
        if std is None or self.hyper.offset == "none":
            return 0.0
        squares = std.square() if std.dim() == 1 else std.square().mean(dim=1)
        if mechanism.trust == "local":
            squares = squares / clients
        failure = self.hyper.offset_failure.to(squares.dtype)
        horizons = on_device(np.array(mechanism.rounds), squares.device, squares.dtype)
        return (2 * squares).sqrt() * (2 * clients * horizons / failure).log().sqrt()


def _settled_radius(settings: AdaptDpSettings, steps: ReleaseSpec, spec: ReleaseSpec, rounds: int, records: int) -> ReleaseSpec:
    """The radius release of a run: the share of the records that its batch holds, and its noise."""
    size = settings.radius_batch_size or records
    if size > records:
        raise ConfigError(
            f"algorithm.radius_batch_size={size}: a client holds only {records} records; take at most that many, or deal it more"
        )
    rate = size / records if size < records else None
    given = settings.radius_noise_multiplier
    if given is not None:
        return replace(spec, rate=rate, multiplier=lambda z, d, M: given)
    own = steps if steps.settle is None else steps.settle(steps, rounds, records)
    order = 2
    if settings.target_epsilon is not None:
        order = 1 + ceil(2 * log(1 / settings.target_delta) / settings.target_epsilon)
    share = own.per_round / own.disjoint  # releases of gradients to one of the radius
    return replace(spec, rate=rate, multiplier=lambda z, d, M: balanced_multiplier(z, own.rate, share, rate, order))
