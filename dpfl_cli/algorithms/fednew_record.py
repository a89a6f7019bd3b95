"""FedNew at record level: damped Newton directions of clipped gradients and curvatures.

References:
  Krouka, Koskela, Kulkarni, "Communication Efficient Differentially Private Federated Learning
    Using Second Order Information", PoPETs 2025(1), 584-612, section 4.2, Algorithm 2, Lemmas 3 and
    4, Remark 5; `curvature=covariance` is its FedNew-FC (section 4.3).
  Elgabli, Issaid, Bedi, Rajawat, Bennis, Aggarwal, "FedNew: A Communication-Efficient and
    Privacy-Preserving Newton-Type Method for Federated Learning", ICML 2022, arXiv:2206.08829
    (without privacy).

Round, with gamma = alpha + rho, a regulariser h that depends on no data, duals lambda_i = 0 at
first:
    g_i       = (1/m_i) sum_j CLIP(grad l_ij(theta), C1)
    H_i       = (1/m_i) sum_j CLIP(hess l_ij(theta), D), Frobenius norm;
                or I (x) (1/m_i) sum_j CLIP(x_ij x_ij^T, D)
    b_i       = -lambda_i + rho y + grad h(theta)
    v_i       = what `bound_aux` makes of g_i and b_i, ||v_i|| <= C2
    yhat_i    = (H_i + gamma I)^-1 v_i
    y         = what the mechanism makes of mean_i yhat_i
    lambda_i <- lambda_i + rho (Y_i - y)
    theta    <- theta - eta y
`bound_aux` (`record_bounds.joined_side`): `project` g_i + b_i onto the ball of radius C2;
`clip_auxiliary` g_i + CLIP(b_i, C2 - C1); `xi` g_i + xi b_i with the paper's xi, where g_i + b_i is
too long.
Y_i, with `dual=paper`, is what the client sent: its message where it adds noise itself, yhat_i
where it does not; `dual=off` keeps lambda_i = 0. The curvature of h is left to the damping. Without
privacy `clip_norm=null` lifts all three bounds.

Releases:
    "direction"  yhat_i without a clip of its own. With m the client's public, fixed number of
                 records, one record moves it by at most
                   C1 / (gamma m) + D C2 / (gamma (gamma m + D))     when it is left out,
                   2 C1 / (gamma m) + D C2 / (gamma (gamma m + D))   when it is replaced,
                 derived in `record_bounds.solve_sensitivity`. That is `sensitivity=tight`.
                 `paper` is Lemma 3's larger constant, which needs gamma m > D; `xi_safe` is tight
                 with C1 times C2 / sqrt(C2^2 - C1^2), the slope of g + xi(g) b. Under shared noise
                 it is the largest among the clients, that of the smallest m, which scales the
                 noise. For
                 I (x) K_i the same holds with the d_x x d_x matrix, because
                 ||A G||_F <= ||A||_2 ||G||_F.

Proved: the bound, for b_i that stay the same on both neighbours, with `project` and
`clip_auxiliary`, whose v_i move no further than g_i does. With `xi` only for `xi_safe`: xi is a
function of g_i, and near ||g_i|| = C2 its slope has no bound (C1 = C2 = 1, m = 500, gamma = 1.01:
yhat_i moves 15.9 times the paper's constant).
The composition, by `dual`:
    off    Under every trust model: b_i is a function of y and theta, functions of releases.
    paper  Under local trust: lambda_i is a function of the client's past messages and of y, all
           released, so b_i stays the same given past releases. Under secure aggregation where each
           message carries the whole noise: messages protect by themselves, everything after is
           computed from them, and it is they that are priced (`sums_suffice`). Not under central
           trust, where lambda_i is made of the client's own directions without noise, nor where
           clients add shares of it, which no sum shows: lambda_i then depends on the record beyond
           what is released, and the bound, for b_i held fixed, does not cover it.
"""

from math import inf
from typing import Literal

from dpfl_cli.algorithms.api import (
    Bound,
    ConfigError,
    Positive,
    ReleaseSpec,
    Round,
    RoundResult,
    Setup,
    State,
    algorithm,
    per_run,
    torch,
)
from dpfl_cli.algorithms.fednew import (
    SecondOrder,
    SecondOrderSettings,
    auxiliary,
    stepped,
)
from dpfl_cli.privacy.diagnostics import curvature_diagnostics
from dpfl_cli.privacy.record_bounds import Constant, Side
from dpfl_cli.privacy.worst_cases import claimed_sensitivities, moved_record, unequal_shares

SMALLEST_SHIFT = 1e-3  # gamma / D: eight thousand times what float32 resolves
NOTE = {
    "tight": "sensitivity C1 / (gamma m) + D C2 / (gamma (gamma m + D)), the first term twice "
    "under replace_one",
    "paper": "sensitivity C1 / (gamma m) + D C2 / (gamma^2 m - gamma D), twice that under "
    "replace_one",
    "xi_safe": "sensitivity as tight with C1 C2 / sqrt(C2^2 - C1^2) for C1",
}


class FedNewRecordSettings(SecondOrderSettings):
    """Settings of `fednew_record`."""

    clip_norm: Bound = 1.0  # C1
    side_clip_norm: Positive = 1.0  # C2
    curvature_clip_norm: Positive = 1.0  # D
    dual: Literal["off", "paper"] = "off"
    bound_aux: Side = "project"
    sensitivity: Constant = "tight"
    spectrum: bool = False


@algorithm(
    "fednew_record",
    paper="Krouka, Koskela, Kulkarni, PoPETs 2025(1)",
    unit="record",
    needs={"clipped_gradient", "damped_solve"},
)
class FedNewRecord(SecondOrder):
    """DP-FedNew at record level: damped Newton directions of clipped gradients and curvatures."""

    hyper: FedNewRecordSettings

    def __init__(self, hyper: FedNewRecordSettings) -> None:
        super().__init__(hyper)
        # C1, C2, D; all infinite where C1 is (clip_norm=null): nothing is bounded then
        free = torch.isinf(hyper.clip_norm)
        side = torch.where(free, torch.inf, hyper.side_clip_norm)
        curvature = torch.where(free, torch.inf, hyper.curvature_clip_norm)
        self._clips = hyper.clip_norm, side, curvature

    @staticmethod
    def gaps(settings: FedNewRecordSettings, trust: str, whole_noise: bool) -> list[str]:
        """See the docstring of the file."""
        found = []
        if settings.bound_aux == "xi" and settings.sensitivity != "xi_safe":
            found.append(
                f"algorithm.bound_aux=xi with algorithm.sensitivity={settings.sensitivity}: the "
                "scaling depends on the records, which the constant does not cover"
            )
        if settings.dual == "paper" and (trust == "central" or not whole_noise):
            held = "without noise" if trust == "central" else "with its share of the noise only"
            found.append(
                f"algorithm.dual=paper: a client's dual holds its past directions {held}, so that "
                "it depends on a record beyond what was released"
            )
        return found

    @staticmethod
    def releases(settings: FedNewRecordSettings, run: Setup) -> list[ReleaseSpec]:
        _check_clips(settings)
        if settings.sensitivity == "paper" and run.trust != "none":
            _check_constant(settings, run.fewest())  # without noise there is none
        note = f"damped direction of clipped records: {NOTE[settings.sensitivity]}"
        kept = settings.dual == "paper"
        return [ReleaseSpec("direction", sums_suffice=not kept, echo=kept, note=note)]

    @staticmethod
    def attack(
        settings: FedNewRecordSettings, rounds: int, counts: list[int], sens_scale: str
    ) -> tuple[float, float]:
        """How much further than claimed a record moves its client's share at the worst auxiliary
        vector; `unequal_shares`.
        """
        clips = settings.clip_norm or inf, settings.side_clip_norm, settings.curvature_clip_norm
        gamma = settings.damping + settings.penalty
        claimed = claimed_sensitivities(clips, gamma, counts, settings.sensitivity)
        factor = moved_record(clips, gamma, counts, settings.bound_aux, claimed)
        return factor, unequal_shares(claimed) if sens_scale == "own" else 1.0

    def round(self, state: State, at: Round) -> RoundResult:
        hyper, objective = self.hyper, at.objective
        model, direction = state.server["model"], state.server["direction"]  # theta, y
        dual = state.clients.get("dual")  # lambda_i
        start = at.at_clients(model)
        slope = at.at_clients(objective.regulariser_gradient(model))
        side = auxiliary(at, hyper, direction, dual) + slope  # b_i
        # without noise there is no constant to scale it with
        constant: Constant = "tight" if at.mechanism.trust == "none" else hyper.sensitivity
        update = objective.newton_direction(
            start, side, *self._clips, self._shift, hyper.curvature, hyper.bound_aux, constant
        )  # yhat_i
        release = at.release("direction", update)
        if dual is not None:
            own = release.echo  # Y_i
            dual = dual + per_run(hyper.penalty, own) * (own - release.mean.unsqueeze(1))
        found = stepped(hyper, model, release.mean, dual)
        if not hyper.spectrum:
            return found, {}
        return found, lambda: curvature_diagnostics(
            objective.largest_curvature(start, hyper.curvature, self._clips[2])
        )


def _check_constant(settings: FedNewRecordSettings, records: int) -> None:
    """Refuses a client so small that the paper's constant does not exist."""
    shift, limit = settings.damping + settings.penalty, settings.curvature_clip_norm
    if shift * records <= limit:
        raise ConfigError(
            "algorithm.sensitivity=paper: its constant needs (algorithm.damping + "
            "algorithm.penalty) times a client's records above algorithm.curvature_clip_norm; the "
            f"client with the fewest has {records}, and {shift:g} * {records} <= {limit:g}; raise "
            "damping, lower curvature_clip_norm, deal more records, or write "
            "algorithm.sensitivity=tight"
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
            f"curvature_clip_norm={settings.curvature_clip_norm:g} the solve would lose its "
            "digits, and with them its bound; "
            f"give at least {SMALLEST_SHIFT * settings.curvature_clip_norm:g}"
        )
    both = f"algorithm.clip_norm={first:g} and algorithm.side_clip_norm={second:g}"
    if first > second:
        raise ConfigError(
            f"{both}: a gradient may be longer than the bound of it and its auxiliary vector; give "
            "clip_norm <= side_clip_norm"
        )
    if first == second and settings.bound_aux == "clip_auxiliary":
        raise ConfigError(
            f"{both}: algorithm.bound_aux=clip_auxiliary leaves side_clip_norm - clip_norm = 0 for "
            "the auxiliary vector; give a "
            "larger side_clip_norm, or write algorithm.bound_aux=project"
        )
    if first == second and settings.sensitivity == "xi_safe":
        raise ConfigError(
            f"{both}: algorithm.sensitivity=xi_safe is infinite where they are equal; give a "
            "larger side_clip_norm, or write "
            "algorithm.bound_aux=project algorithm.sensitivity=tight"
        )
