"""DP-FedFC at client level: preconditioned gradients, clipped and averaged.

Reference: Krouka, Koskela, Kulkarni, "Communication Efficient Differentially Private Federated
  Learning Using Second Order Information", PoPETs 2025(1), 584-612, appendix J, Algorithm 6.

Before round 1, with m_i records of client i and features x_j:
    K <- what the mechanism makes of mean_i CLIP((1/m_i) sum_j x_j x_j^T, C_c)     (Frobenius norm)
    P <- (K + gamma I)^-1, eigenvalues of K + gamma I below gamma counting as gamma (`psd_floor`);
         sent to the clients
Round:
    u_i <- CLIP((I_c (x) P) grad f_i(w), C_g)
    w   <- w - eta (what the mechanism makes of mean_i u_i)
`cov_norm=paper` clips the sum over a client's records, as printed, where `mean` clips their mean;
C_c then grows with m_i.

Releases:
    "covariance"  once, a packed triangle: a matrix in a ball of radius C_c, 2 C_c (replace_one),
                  C_c (zero_out, add_or_remove).
    "gradient"    every round: a vector in a ball of radius C_g, 2 C_g or C_g.
Their noise: `releases`.

Proved under every trust model: the covariance is of the client's own data alone; u_i is a function
of the client's own data, of w and of P, both functions of past releases; clients hold no state. So
every release is the mechanism applied to a quantity of known sensitivity given the past releases,
T + 1 of them.
"""

import math
from collections.abc import Callable
from typing import Literal

from dpfl_cli.algorithms.api import (
    ALL_TRUSTS,
    CLIPPED,
    Bound,
    Bounded,
    ClientSide,
    ConfigError,
    Field,
    Number,
    Positive,
    ReleaseSpec,
    Round,
    RoundResult,
    Settings,
    Setup,
    State,
    Streams,
    Tensor,
    algorithm,
    clip,
    clip_symmetric,
    first_round,
    np,
    per_run,
    update_diagnostics,
)
from dpfl_cli.models.curvature import damped_inverse, unpacked

SHARE = 0.1  # of the covariance, where nothing else is said


class SecondMomentSettings(Settings):
    """Settings of a method that is preconditioned by the covariance of features."""

    server_lr: Positive  # eta
    damping: Positive  # gamma
    clip_norm: Bound  # C_g
    feature_clip_norm: Bound  # C_c
    cov_norm: Literal["mean", "paper"]
    psd_floor: Literal["damping", "none"]
    budget: Literal["equal_sigma", "fraction"]
    covariance_share: Number = Field(SHARE, gt=0, lt=1)  # phi


def releases(
    settings: SecondMomentSettings, run: Setup, gradient: str, covariance: str
) -> list[ReleaseSpec]:
    """The covariance once, a gradient in every round.

    `equal_sigma`: all T + 1 have the mechanism's noise multiplier z, and compose to
    mu^2 = (T + 1) / z^2. `fraction` parts the same mu^2: 1 / z_c^2 = phi mu^2 and
    T / z_g^2 = (1 - phi) mu^2.

    Args:
      gradient, covariance: what each is, and its sensitivity.
    """
    share, rounds = settings.covariance_share, run.rounds
    first = rest = None
    if settings.budget == "fraction":
        first = np.full(rounds, 1.0 / math.sqrt(share * (rounds + 1)))
        rest = np.full(rounds, math.sqrt(rounds / ((1.0 - share) * (rounds + 1))))
    elif share != SHARE:
        raise ConfigError(
            f"algorithm.covariance_share={share:g}: algorithm.budget=equal_sigma has no shares and "
            "would ignore it; write algorithm.budget=fraction, or drop covariance_share"
        )
    once = first_round(run)
    note = f"once, at the start: {covariance}"
    return [
        ReleaseSpec("covariance", shape="matrix", made=once, factors=first, note=note),
        ReleaseSpec("gradient", factors=rest, note=gradient),
    ]


def start_state(objective: ClientSide, streams: Streams) -> State:
    """The initial model, and a preconditioner [R, p, p] of zeros: there is none yet."""
    model, size = objective.initial(streams), objective.features
    return State({"model": model, "preconditioner": model.new_zeros(len(model), size, size)})


def preconditioner(
    at: Round,
    hyper: SecondMomentSettings,
    covariance: Callable[[ClientSide], Bounded],
    state: State,
) -> Tensor:
    """P = (K + gamma I)^-1 [R, p, p], K the released mean of the clients' covariances, for the runs
    in their first round.

    Everything after the release is post-processing: noise is drawn for the upper triangle and
    mirrored, and with `psd_floor=damping` the eigenvalues of K + gamma I that noise took below
    gamma are set to gamma.

    Args:
      covariance: makes every client's [R, M, p (p + 1) / 2].
      state: holds that of the others.
    """
    first, known = at.number == 1, state.server["preconditioner"]
    if not first.any():
        return known
    released = at.release("covariance", covariance(at.objective), charged=first).mean
    whole = unpacked(released, at.objective.features)
    fresh = damped_inverse(whole, hyper.damping, hyper.psd_floor == "damping")
    return at.where(first, fresh, known)


@algorithm(
    "fedfc",
    paper="Krouka, Koskela, Kulkarni 2025, PoPETs 2025(1), Algorithm 6",
    unit="client",
    proved=ALL_TRUSTS,
    needs={"covariance"},
)
class FedFC:
    """DP-FedFC: client gradients, preconditioned by the noisy covariance of the features, clipped
    and averaged.
    """

    hyper: SecondMomentSettings

    @staticmethod
    def releases(settings: SecondMomentSettings, run: Setup) -> list[ReleaseSpec]:
        gradient = f"preconditioned client gradient {CLIPPED}"
        return releases(settings, run, gradient, f"client covariance of features {CLIPPED}")

    init = staticmethod(start_state)

    def round(self, state: State, at: Round) -> RoundResult:
        hyper, objective = self.hyper, at.objective
        model = state.server["model"]  # w
        inverse = preconditioner(at, hyper, self._covariance, state)  # P
        gradient = objective.gradient(at.at_clients(model))
        update = clip(objective.precondition(gradient, inverse), hyper.clip_norm)  # u_i
        mean = at.release("gradient", update).mean
        model = model - per_run(hyper.server_lr, model) * mean
        server = {"model": model, "preconditioner": inverse}
        return State(server), lambda: update_diagnostics(update)

    def _covariance(self, objective: ClientSide) -> Bounded:
        """[R, M, p (p + 1) / 2] every client's covariance, clipped as a whole."""
        own: Tensor = objective.covariance()
        if self.hyper.cov_norm == "paper":
            own = own * per_run(objective.records, own)
        return clip_symmetric(own, self.hyper.feature_clip_norm)
