"""FedNew at record level: damped Newton directions of clipped gradients and curvatures.

References:
  Krouka, Koskela, Kulkarni, "Communication efficient differentially private federated learning using second order information",
    PoPETs 2025(1) 584-612, Algorithm 2, Lemmas 3 and 4, Remark 5; `curvature=covariance` is its FedNew-FC.
  Elgabli et al., "FedNew", ICML 2022, arXiv:2206.08829 (without privacy).

Round, with gamma = alpha + rho, a regulariser h that depends on no data, duals lambda_i = 0 at first:
    g_i       = (1/m_i) sum_j CLIP(grad l_ij(theta), C1)
    H_i       = (1/m_i) sum_j CLIP(hess l_ij(theta), D), Frobenius norm; or I (x) (1/m_i) sum_j CLIP(x_ij x_ij^T, D)
    b_i       = -lambda_i + rho y + grad h(theta)
    v_i       = what `bound_aux` makes of g_i and b_i, ||v_i|| <= C2
    yhat_i    = (H_i + gamma I)^-1 v_i
    y         = what the mechanism makes of mean_i yhat_i
    lambda_i <- lambda_i + rho (Y_i - y)
    theta    <- theta - eta y
`bound_aux` (`bounded.joined_side`): `project` g_i + b_i onto the ball of radius C2; `clip_auxiliary` g_i + CLIP(b_i, C2 - C1);
`xi` g_i + xi b_i with the paper's xi, where g_i + b_i is too long. Y_i, with `dual=paper`, is what the client sent: its message
where it adds noise itself, yhat_i where it does not; `dual=off` keeps lambda_i = 0. The curvature of h is left to the damping.
Without privacy `clip_norm=null` lifts all three bounds.

Releases: "direction", yhat_i without a clip of its own. With m the client's public, fixed number of records, one record that is
  left out moves it by at most C1 / (gamma m) + D C2 / (gamma (gamma m + D)), one that is replaced by at most
  2 C1 / (gamma m) + D C2 / (gamma (gamma m + D)); derived in `bounded.solve_sensitivity`. That is `sensitivity=tight`. `paper` is
  Lemma 3's larger constant, which needs gamma m > D; `xi_safe` is tight with C1 times C2 / sqrt(C2^2 - C1^2), the slope of
  g + xi(g) b. Under shared noise it is the largest among the clients, that of the smallest m, which scales the noise.
  For I (x) K_i the same holds with the d_x x d_x matrix, because ||A G||_F <= ||A||_2 ||G||_F.

Proved: the bound, for b_i that stay the same on both neighbours, with `project` and `clip_auxiliary`, whose v_i move no further
than g_i does. With `xi` only for `xi_safe`: xi is a function of g_i, and near ||g_i|| = C2 its slope has no bound (C1 = C2 = 1,
m = 500, gamma = 1.01: yhat_i moves 15.9 times the paper's constant).
The composition, by `dual`:
  off    Under every trust model: b_i is a function of y and theta, which are functions of releases.
  paper  Under local trust: lambda_i is a function of the client's past messages and of y, all released, so b_i stays the same
         given past releases. Under secure aggregation where each message carries the whole noise: messages protect by themselves,
         everything after is computed from them, and it is they that are priced (`sums_suffice`). Not under central trust, where
         lambda_i is made of the client's own directions without noise, nor where clients add shares of it, which no sum
         shows: lambda_i then depends on the record beyond what is released, and the bound, for b_i held fixed, does not cover it.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from math import inf
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from dpfl_cli.algorithms.base import Diagnostics, Later, State
from dpfl_cli.algorithms.local import check_clip_norm, per_run
from dpfl_cli.algorithms.second_order import SecondOrderSettings, auxiliary, dual_step, start_state
from dpfl_cli.config.component import component
from dpfl_cli.config.errors import ConfigError
from dpfl_cli.data.streams import Streams
from dpfl_cli.models.objective import ClientSide
from dpfl_cli.privacy.bounded import Constant
from dpfl_cli.privacy.diagnostics import curvature_diagnostics
from dpfl_cli.privacy.mechanism import Mechanism, ReleaseSpec
from dpfl_cli.privacy.worst_cases import claimed_sensitivities, moved_record, unequal_shares

SMALLEST_SHIFT = 1e-3  # gamma / D: eight thousand times what float32 resolves
NOTE = {
    "tight": "sensitivity C1 / (gamma m) + D C2 / (gamma (gamma m + D)), the first term twice under replace_one",
    "paper": "sensitivity C1 / (gamma m) + D C2 / (gamma^2 m - gamma D), twice that under replace_one",
    "xi_safe": "sensitivity as tight with C1 C2 / sqrt(C2^2 - C1^2) for C1",
}


class FedNewRecordSettings(SecondOrderSettings):
    """Settings of `fednew_record`."""

    clip_norm: float | None = Field(1.0, gt=0, allow_inf_nan=False)  # C1
    side_clip_norm: float = Field(1.0, gt=0, allow_inf_nan=False)  # C2
    curvature_clip_norm: float = Field(1.0, gt=0, allow_inf_nan=False)  # D
    dual: Literal["off", "paper"] = "off"
    bound_aux: Literal["project", "clip_auxiliary", "xi"] = "project"
    sensitivity: Literal["tight", "paper", "xi_safe"] = "tight"
    spectrum: bool = False


@component("algorithm", "fednew_record", revision=1, settings=FedNewRecordSettings)
class FedNewRecord:
    """DP-FedNew at record level: damped Newton directions of clipped gradients and curvatures."""

    trusts: ClassVar[frozenset[str]] = frozenset({"none", "local", "central", "secure_aggregation"})
    units: ClassVar[frozenset[str]] = frozenset({"record"})
    needs: ClassVar[frozenset[str]] = frozenset({"clipped_gradient", "damped_solve"})
    paper: ClassVar[str] = "Krouka, Koskela, Kulkarni, PoPETs 2025(1)"

    def __init__(self, hyper: Any) -> None:
        self.hyper = hyper
        # made once, for objectives on a device keep factors by the tensor
        self._shift = hyper.damping + hyper.penalty  # gamma
        self._clips = _clips(hyper)

    @staticmethod
    def gap(settings: FedNewRecordSettings, trust: str, whole_noise: bool) -> str | None:
        """See the docstring of the file."""
        if settings.bound_aux == "xi" and settings.sensitivity != "xi_safe":
            return (
                f"algorithm.bound_aux=xi with algorithm.sensitivity={settings.sensitivity}: the scaling depends on the records, "
                "which the constant does not cover"
            )
        if settings.dual == "paper" and (trust == "central" or not whole_noise):
            held = "without noise" if trust == "central" else "with its share of the noise only"
            return (
                f"algorithm.dual=paper: a client's dual holds its past directions {held}, so that it depends on a record beyond "
                "what was released"
            )
        return None

    @staticmethod
    def releases(settings: FedNewRecordSettings, trust: str) -> list[ReleaseSpec]:
        check_clip_norm(settings, trust, "a gradient")
        _check_clips(settings)
        note = f"damped direction of clipped records: {NOTE[settings.sensitivity]}"
        kept = settings.dual == "paper"
        spec = ReleaseSpec("direction", sums_suffice=not kept, echo=kept, note=note)
        limited = settings.sensitivity == "paper" and trust != "none"  # without noise there is no constant
        return [replace(spec, settle=partial(_settled, settings)) if limited else spec]

    @staticmethod
    def attack(settings: FedNewRecordSettings, rounds: int, counts: list[int], sens_scale: str) -> tuple[float, float]:
        """How much further than claimed a record moves its client's share at the worst auxiliary vector; `unequal_shares`."""
        clips = settings.clip_norm or inf, settings.side_clip_norm, settings.curvature_clip_norm
        gamma = settings.damping + settings.penalty
        claimed = claimed_sensitivities(clips, gamma, counts, settings.sensitivity)
        factor = moved_record(clips, gamma, counts, settings.bound_aux, claimed)
        return factor, unequal_shares(claimed) if sens_scale == "own" else 1.0

    def init(self, objective: ClientSide, streams: Streams) -> State:
        return start_state(objective, streams, dual=self.hyper.dual != "off")

    def round(
        self, state: State, objective: ClientSide, mechanism: Mechanism, streams: Streams, rounds: np.ndarray
    ) -> tuple[State, Diagnostics]:
        hyper = self.hyper
        model, direction = state.server["model"], state.server["direction"]  # theta, y
        dual: Tensor | None = state.clients.get("dual")  # lambda_i
        start = model.unsqueeze(1).expand(objective.runs, objective.clients, objective.dimension)
        side = auxiliary(objective, hyper, direction, dual) + objective.regulariser_gradient(start)  # b_i
        constant: Constant = "tight" if mechanism.trust == "none" else hyper.sensitivity  # without noise there is none to scale
        bounds = *self._clips, self._shift
        update = objective.newton_direction(start, side, *bounds, hyper.curvature, hyper.bound_aux, constant)  # yhat_i
        release = mechanism.release("direction", update, rounds)
        direction = release.mean
        if dual is not None:
            dual = dual_step(hyper, dual, release.echo, direction)
        model = model - per_run(hyper.server_lr, model) * direction
        clients = {} if dual is None else {"dual": dual}
        return State({"model": model, "direction": direction}, clients), Later(lambda: self._diagnostics(objective, start))

    def _diagnostics(self, objective: ClientSide, start: Tensor) -> Diagnostics:
        if not self.hyper.spectrum:
            return {}
        return curvature_diagnostics(objective.largest_curvature(start, self.hyper.curvature, self._clips[2]))


def _clips(hyper: Any) -> tuple[Tensor, Tensor, Tensor]:
    """[R] C1, C2, D; all infinite where C1 is (clip_norm=null): nothing is bounded then."""
    free, side, curvature = torch.isinf(hyper.clip_norm), hyper.side_clip_norm, hyper.curvature_clip_norm
    return hyper.clip_norm, torch.where(free, torch.inf, side), torch.where(free, torch.inf, curvature)


def _settled(settings: FedNewRecordSettings, spec: ReleaseSpec, rounds: int, records: int) -> ReleaseSpec:
    """The spec as it is, or a ConfigError where the paper's constant does not exist for the client with the fewest records."""
    shift, limit = settings.damping + settings.penalty, settings.curvature_clip_norm
    if shift * records > limit:
        return spec
    raise ConfigError(
        f"algorithm.sensitivity=paper: its constant needs (algorithm.damping + algorithm.penalty) times a client's records above "
        f"algorithm.curvature_clip_norm; the client with the fewest has {records}, and {shift:g} * {records} <= {limit:g}; raise "
        "damping, lower curvature_clip_norm, deal more records, or write algorithm.sensitivity=tight"
    )


def _check_clips(settings: FedNewRecordSettings) -> None:
    """Refuses clip norms for which `bound_aux` or the constant makes no sense."""
    first, second = settings.clip_norm, settings.side_clip_norm
    if first is None:
        return
    shift = settings.damping + settings.penalty
    if shift < SMALLEST_SHIFT * settings.curvature_clip_norm:
        raise ConfigError(
            f"algorithm.damping + algorithm.penalty = {shift:g}: beside curvatures of up to "
            f"curvature_clip_norm={settings.curvature_clip_norm:g} the solve would lose its digits, and with them its bound; "
            f"give at least {SMALLEST_SHIFT * settings.curvature_clip_norm:g}"
        )
    both = f"algorithm.clip_norm={first:g} and algorithm.side_clip_norm={second:g}"
    if first > second:
        raise ConfigError(
            f"{both}: a gradient may be longer than the bound of it and its auxiliary vector; give clip_norm <= side_clip_norm"
        )
    if first == second and settings.bound_aux == "clip_auxiliary":
        raise ConfigError(
            f"{both}: algorithm.bound_aux=clip_auxiliary leaves side_clip_norm - clip_norm = 0 for the auxiliary vector; give a "
            "larger side_clip_norm, or write algorithm.bound_aux=project"
        )
    if first == second and settings.sensitivity == "xi_safe":
        raise ConfigError(
            f"{both}: algorithm.sensitivity=xi_safe is infinite where they are equal; give a larger side_clip_norm, or write "
            "algorithm.bound_aux=project algorithm.sensitivity=tight"
        )
