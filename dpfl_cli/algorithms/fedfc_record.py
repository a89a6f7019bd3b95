"""DP-FedFC at record level: gradient descent, preconditioned by the covariance of the features.

Reference: Krouka, Koskela, Kulkarni, "Communication Efficient Differentially Private Federated
  Learning Using Second Order Information", PoPETs 2025(1), 584-612, appendix J, Algorithm 5.

Before round 1, with m_i records of client i and features x_j:
    K <- what the mechanism makes of mean_i (1/m_i) sum_j CLIP(x_j, C_c) CLIP(x_j, C_c)^T
    P <- (K + gamma I)^-1, eigenvalues of K + gamma I below gamma counting as gamma (`psd_floor`)
Round:
    G <- what the mechanism makes of mean_i (1/m_i) sum_j CLIP(grad l_ij(w), C_g)
    w <- w - eta (I_c (x) P) (G + grad h(w))
The server inverts once and solves for nobody else. `cov_norm=paper` sums over a client's records
where `mean` takes their mean (a factor m_i; the algorithm as printed divides the gradients only).

Releases:
    "covariance"  once, a packed triangle: C_c^2 / m when one record is left out, sqrt(2) C_c^2 / m
                  when it is replaced (`record_bounds.record_covariance`); times m with
                  `cov_norm=paper`.
    "gradient"    every round: 2 C_g / m (replace_one), C_g / m (zero_out, add_or_remove).
Their noise: `fedfc.releases`.

Proved under every trust model: the covariance is of the client's own data alone, gradients are
taken at w, a function of past releases, and clients hold no state. So every release is the
mechanism applied to a quantity of known sensitivity given the past releases, T + 1 of them.
"""

from dpfl_cli.algorithms.api import (
    ALL_TRUSTS,
    GRADIENT,
    Bounded,
    ClientSide,
    ReleaseSpec,
    Round,
    RoundResult,
    Setup,
    State,
    algorithm,
    per_run,
    scaled,
)
from dpfl_cli.algorithms.fedfc import (
    SecondMomentSettings,
    preconditioner,
    releases,
    start_state,
)


@algorithm(
    "fedfc_record",
    paper="Krouka, Koskela, Kulkarni 2025, PoPETs 2025(1), Algorithm 5",
    unit="record",
    proved=ALL_TRUSTS,
    needs={"clipped_gradient", "covariance"},
)
class FedFCRecord:
    """DP-FedFC at record level: noisy gradients, preconditioned by the noisy covariance of the
    features.
    """

    hyper: SecondMomentSettings

    @staticmethod
    def releases(settings: SecondMomentSettings, run: Setup) -> list[ReleaseSpec]:
        divided = " / m" if settings.cov_norm == "mean" else ""
        note = (
            f"covariance of features clipped to C: sensitivity sqrt(2) C^2{divided} (replace_one), "
            f"C^2{divided} (others)"
        )
        return releases(settings, run, GRADIENT, note)

    init = staticmethod(start_state)

    def round(self, state: State, at: Round) -> RoundResult:
        hyper, objective = self.hyper, at.objective
        model = state.server["model"]  # w
        inverse = preconditioner(at, hyper, self._covariance, state)  # P
        gradient = objective.clipped_gradient(at.at_clients(model), hyper.clip_norm)
        mean = at.release("gradient", gradient).mean  # G
        direction = objective.precondition(mean + objective.regulariser_gradient(model), inverse)
        model = model - per_run(hyper.server_lr, model) * direction
        return State({"model": model, "preconditioner": inverse}), {}

    def _covariance(self, objective: ClientSide) -> Bounded:
        """[R, M, p (p + 1) / 2] every client's covariance of clipped features."""
        mean = objective.clipped_covariance(self.hyper.feature_clip_norm)
        return scaled(mean, objective.records) if self.hyper.cov_norm == "paper" else mean
