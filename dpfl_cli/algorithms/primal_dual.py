"""Primal-dual proximal method with privacy noise allocated over time, for composite objectives
mean_i f_i + g.

Reference: Zhang, Fay, Johansson, "Dynamic Privacy Allocation for Locally Differentially Private
  Federated Learning with Composite Objectives", 2023, arXiv:2308.01139: section 3, Algorithm 1 in
  the form of its equation (7) (the listing's update line differs from (7) in a sign and in what
  gamma multiplies; with it the iteration diverges), the allocation of section 4, equation (11).

Round t, with n workers, m_i records each, gradients G_i = (1/m_i) sum_j CLIP(grad l_ij(x_i), B) and
a regulariser h inside f_i:
    xt_i     <- x_i - gamma ((G_i + grad h(x_i)) / n + zeta_i + Lambda_i),
                zeta_i ~ N(0, xi_t^2 I)                                      (sent to the server)
    xbar     <- mean_i xt_i
    Lambda_i <- Lambda_i + (xt_i - xbar)
    x_i      <- prox_{(gamma / n) g}(xt_i - gamma (xt_i - xbar))
The reported model is mean_i x_i (`report=local`) or xbar (`report=messages`).

Noise: with r = 1 - gamma min(mu_f, 1), mu_f = mu / n (mu: strong convexity of each f_i; the stacked
objective carries 1 / n) and q_t = r^(T - t), `schedule=dynamic` has xi_t^2 proportional to
1 / sqrt(q_t): it minimises sum_t q_t xi_t^2, the noise part of the bound (equations 9 and 12), at a
given total of 1 / xi_t^2, which is the budget. `static` has equal xi_t. As factors phi_t on the
noise multiplier, both have sum_t phi_t^-2 = T, so one base multiplier spends the same under either:
the static one.

Releases:
    "gradient"  G_i: 2B / m_i when a record of worker i is replaced, B / m_i when it is left out.
                The message xt_i is that with gamma / n, and n zeta_i is the noise on G_i: noise
                multiplier n xi_t m_i / (2B).

Proved under local trust: x_i and Lambda_i are functions of the worker's own past messages and of
what the server broadcast. Nothing that a worker holds is secret, so all of it is part of the public
state here.
"""

from typing import Literal

from dpfl_cli.algorithms.api import (
    GRADIENT,
    Bound,
    ClientSide,
    ConfigError,
    Field,
    Number,
    PositiveOrNone,
    ReleaseSpec,
    Round,
    RoundResult,
    Settings,
    Setup,
    State,
    Streams,
    algorithm,
    np,
    per_run,
    torch,
)


class PrimalDualSettings(Settings):
    """Settings of `primal_dual`."""

    # gamma; from 4/3 on the copies drift apart, whatever the data
    step: Number = Field(0.25, gt=0, lt=4 / 3)
    clip_norm: Bound = 1.0  # B
    schedule: Literal["dynamic", "static"] = "dynamic"
    # mu of each f_i; None for `static` only
    strong_convexity: PositiveOrNone
    report: Literal["local", "messages"] = "local"


def noise_factors(rounds: int, clients: int, step: float, strong_convexity: float) -> np.ndarray:
    """[T] factors phi_t on the noise multiplier of the dynamic schedule, with sum_t phi_t^-2 = T.

    xi_t^2 is proportional to q_t^(-1/2) = exp(-(T - t) ln(r) / 2), which spans tens of orders of
    magnitude: computed in logs.

    >>> factors = noise_factors(1000, 20, 0.25, 0.1)
    >>> bool(factors[0] > 1 > factors[-1]), round(float(np.sum(factors**-2.0)), 9)
    (True, 1000.0)
    """
    pace = step * min(strong_convexity / clients, 1.0)  # gamma min(mu_f, 1)
    if pace >= 1:
        raise ConfigError(
            f"algorithm.step={step:g} with algorithm.strong_convexity={strong_convexity:g}: the "
            "dynamic schedule needs step * min(strong_convexity / clients, 1) below 1, not "
            f"{pace:g}; lower one of them"
        )
    shrink = np.log1p(-pace)  # ln r
    logs = np.arange(rounds - 1, -1, -1) * shrink / 2  # ln sqrt(q_t) = ln phi_t^-2 up to a constant
    total = logs.max() + np.log(np.sum(np.exp(logs - logs.max())))
    return np.exp((total - np.log(rounds) - logs) / 2)


@algorithm(
    "primal_dual",
    paper="Zhang, Fay, Johansson 2023, arXiv:2308.01139",
    unit="record",
    trusts=("none", "local"),
    proved=("local",),
    needs={"clipped_gradient"},
    proximal=True,
)
class PrimalDual:
    """Primal-dual proximal method with noise allocated over time."""

    hyper: PrimalDualSettings

    @staticmethod
    def releases(settings: PrimalDualSettings, run: Setup) -> list[ReleaseSpec]:
        if settings.schedule == "static" or run.trust == "none":
            return [ReleaseSpec("gradient", note=GRADIENT)]
        if settings.strong_convexity is None:
            raise ConfigError(
                "algorithm.strong_convexity=null under algorithm.schedule=dynamic: the schedule "
                "needs it; give the strong convexity of each client's loss (model.l2 for a "
                "regularised convex loss), or write algorithm.schedule=static"
            )
        factors = noise_factors(run.rounds, run.clients, settings.step, settings.strong_convexity)
        note = f"{GRADIENT}; noise by the dynamic schedule"
        return [ReleaseSpec("gradient", factors=factors, note=note)]

    def init(self, objective: ClientSide, streams: Streams) -> State:
        model = objective.initial(streams)
        local = model.unsqueeze(1).repeat(1, objective.clients, 1)  # x_i
        return State({"model": model, "local": local, "dual": torch.zeros_like(local)})

    def round(self, state: State, at: Round) -> RoundResult:
        hyper, objective = self.hyper, at.objective
        workers = objective.clients
        local, dual = state.server["local"], state.server["dual"]  # x_i, Lambda_i
        gamma = per_run(hyper.step, local)
        gradient = objective.clipped_gradient(local, hyper.clip_norm)
        noisy = at.release("gradient", gradient).received + objective.regulariser_gradient(local)
        message = local - gamma * (noisy / workers + dual)  # xt_i
        mean = message.mean(dim=1, keepdim=True)  # xbar
        apart = message - mean
        local = objective.prox(message - gamma * apart, hyper.step / workers)
        centre = local.mean(dim=1)
        model = centre if hyper.report == "local" else mean.squeeze(1)
        server = {"model": model, "local": local, "dual": dual + apart}
        # of messages only: it costs nothing
        return State(server), lambda: {
            "consensus": (local - centre.unsqueeze(1)).square().sum(dim=-1).mean(dim=-1)
        }
