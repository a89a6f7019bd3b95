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
Their noise: `second_moment.releases`.

Proved under every trust model: the covariance is of the client's own data alone; u_i is a function
of the client's own data, of w and of P, both functions of past releases; clients hold no state. So
every release is the mechanism applied to a quantity of known sensitivity given the past releases,
T + 1 of them.
"""

from dpfl_cli.algorithms.api import (
    ALL_TRUSTS,
    CLIPPED,
    Bounded,
    ClientSide,
    Diagnostics,
    ReleaseSpec,
    Round,
    Setup,
    State,
    Tensor,
    algorithm,
    clip,
    clip_symmetric,
    per_run,
    update_diagnostics,
)
from dpfl_cli.algorithms.second_moment import (
    SecondMomentSettings,
    preconditioner,
    releases,
    start_state,
)


@algorithm(
    "fedfc",
    revision=1,
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

    def round(self, state: State, at: Round) -> tuple[State, Diagnostics]:
        hyper, objective = self.hyper, at.objective
        model = state.server["model"]  # w
        inverse = preconditioner(at, hyper, self._covariance, state.server["preconditioner"])  # P
        gradient = objective.gradient(at.at_clients(model))
        update = clip(objective.precondition(gradient, inverse), hyper.clip_norm)  # u_i
        mean = at.release("gradient", update).mean
        model = model - per_run(hyper.server_lr, model) * mean
        server = {"model": model, "preconditioner": inverse}
        return State(server, {}), lambda: update_diagnostics(update)

    def _covariance(self, objective: ClientSide) -> Bounded:
        """[R, M, p (p + 1) / 2] every client's covariance, clipped as a whole."""
        own: Tensor = objective.covariance()
        if self.hyper.cov_norm == "paper":
            own = own * objective.records.to(own.dtype).unsqueeze(-1)
        return clip_symmetric(own, self.hyper.feature_clip_norm)
