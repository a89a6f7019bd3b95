"""FedNew at client level: damped Newton directions by one pass of ADMM, clipped as a whole; without
privacy, FedNew itself.

References:
  Krouka, Koskela, Kulkarni, "Communication Efficient Differentially Private Federated Learning
    Using Second Order Information", PoPETs 2025(1), 584-612, section 4.1, Algorithm 1 (client
    level); `curvature=covariance` is its FedNew-FC (section 4.3).
  Elgabli, Issaid, Bedi, Rajawat, Bennis, Aggarwal, "FedNew: A Communication-Efficient and
    Privacy-Preserving Newton-Type Method for Federated Learning", ICML 2022, arXiv:2206.08829
    (without privacy).

Round, with g_i and H_i the gradient and the curvature of f_i at theta, gamma = alpha + rho, duals
lambda_i = 0 at first:
    repeat `inner` times, g_i and H_i frozen:
      yhat_i    = CLIP((H_i + gamma I)^-1 (g_i - lambda_i + rho y))
      y         = what the mechanism makes of mean_i yhat_i
      lambda_i <- lambda_i + rho (Y_i - y)
    theta <- theta - eta y
Each pass is one step of ADMM on min sum_i y_i . (H_i + alpha I) y_i / 2 - y_i . g_i subject to
y_i = y; without clipping and noise, many of them with duals give the damped Newton direction
(mean_i H_i + alpha I)^-1 mean_i g_i. A model's regulariser is in g_i, not in H_i.

Y_i by `dual`:
    paper       what the client sent, its message with the noise that it added itself (local, secure
                aggregation), so that the lambda_i sum to zero;
    own_update  yhat_i, before noise; the same where clients add none (central, none);
    off         keeps lambda_i = 0.

Releases:
    "direction"  `inner` times a round: yhat_i in a ball of radius C, 2C when a client's data are
                 replaced, C when the client is left out or zeroed.

Proved, by `dual`:
    off         Under every trust model: yhat_i is a function of the client's data, y and theta,
                which are functions of releases.
    own_update  Under every trust model: lambda_i = rho sum_s (yhat_i^s - y^s) is a function of the
                client's own data and of releases, of no other client's data and of no noise that is
                not released. So, given past releases, yhat_i is what its client makes of its own
                data, clipped whatever lambda_i is; one client moves the sum by the sensitivity
                above, and adaptive composition applies as it stands. The price: the lambda_i sum to
                minus rho times all noise so far, so that the noise of the directions adds up from
                round to round.
    paper       Under local trust: lambda_i is a function of the client's past messages and of y,
                all released. Under central trust clients add no noise, and it is own_update. Under
                secure aggregation where each message carries the whole noise: messages protect by
                themselves, and everything after is computed from them; then it is they that are
                priced (`sums_suffice`).
                Not where clients add shares: lambda_i holds the client's share e_i of the noise,
                N(0, std^2 / M), which no sum shows. Since the lambda_i sum to zero the others hold
                -lambda_i: with A = (H + gamma I)^-1 the same for all, the next sum is moved through
                them by A rho sum_s (yhat_i^s + e_i^s), all past contributions once more. The
                client's own -A lambda_i cancels that only while its clip does not bind; where it
                does, round k is moved by up to C (1 + (k - 1) rho ||A||), not C (claimed epsilon 1
                over 70 rounds at rho = 1, alpha = 0.1 and H = 0: 31.9 in truth with 500 clients,
                91.5 with many more).
"""

from typing import Any, Literal

from dpfl_cli.algorithms.api import (
    CLIPPED,
    Bound,
    ClientSide,
    Count,
    NonNegative,
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
    per_run,
    torch,
    update_diagnostics,
    zeros_of,
)
from dpfl_cli.privacy.worst_cases import wound_up_dual


class SecondOrderSettings(Settings):
    """Settings of a damped second-order direction with a proximal penalty."""

    clip_norm: Bound  # C; C1 at record level
    curvature: Literal["hessian", "covariance"] = "hessian"
    damping: Positive = 0.1  # alpha
    penalty: NonNegative = 1.0  # rho
    server_lr: Positive = 1.0  # eta
    dual: Literal["off", "own_update", "paper"] = "off"


def auxiliary(
    at: Round, hyper: SecondOrderSettings, direction: Tensor, dual: Tensor | None
) -> Tensor:
    """[R, M, d] b_i = rho y - lambda_i; public (rho y) without a dual.

    Args:
      direction: [R, d] y.
      dual: [R, M, d] lambda_i, or None.
    """
    pull = at.at_clients(per_run(hyper.penalty, direction) * direction)
    return pull if dual is None else pull - dual


def stepped(
    hyper: SecondOrderSettings, model: Tensor, direction: Tensor, dual: Tensor | None
) -> State:
    """theta <- theta - eta y, and what else lasts."""
    model = model - per_run(hyper.server_lr, model) * direction
    server = {"model": model, "direction": direction}
    return State(server, {} if dual is None else {"dual": dual})


class SecondOrder:
    """What FedNew is at both levels: its shift, and how it starts."""

    hyper: SecondOrderSettings

    def __init__(self, hyper: Any) -> None:
        self.hyper = hyper
        # gamma; made once, for objectives on a device keep factors by the tensor
        self._shift = hyper.damping + hyper.penalty

    def init(self, objective: ClientSide, streams: Streams) -> State:
        """theta from the model, y = 0, and lambda_i = 0 where there are duals."""
        model, dual = objective.initial(streams), self.hyper.dual
        server = {"model": model, "direction": torch.zeros_like(model)}
        return State(server, {} if dual == "off" else {"dual": zeros_of(objective, model)})


class FedNewSettings(SecondOrderSettings):
    """Settings of `fednew`."""

    inner: Count = 1


@algorithm(
    "fednew",
    paper="Krouka, Koskela, Kulkarni, PoPETs 2025(1); Elgabli et al. 2022, arXiv:2206.08829",
    unit="client",
    needs={"damped_solve"},
)
class FedNew(SecondOrder):
    """DP-FedNew: damped Newton directions, clipped as a whole and averaged."""

    hyper: FedNewSettings

    @staticmethod
    def gaps(settings: FedNewSettings, trust: str, whole_noise: bool) -> list[str]:
        """See the docstring of the file."""
        if settings.dual != "paper" or trust != "secure_aggregation" or whole_noise:
            return []
        return [
            "algorithm.dual=paper: a client's dual holds only its share of the noise and the "
            "others' duals hold minus it, so that every sum releases all its past contributions "
            "again"
        ]

    @staticmethod
    def releases(settings: FedNewSettings, run: Setup) -> list[ReleaseSpec]:
        sent = settings.dual == "paper"
        note = f"client direction {CLIPPED}"
        return [
            ReleaseSpec(
                "direction", per_round=settings.inner, sums_suffice=not sent, echo=sent, note=note
            )
        ]

    @staticmethod
    def attack(
        settings: FedNewSettings, rounds: int, counts: list[int], sens_scale: str
    ) -> tuple[float, float] | None:
        """How much further than claimed the worst data known move the sums, shares being equal;
        None of a proved variant.
        """
        if settings.dual != "paper":
            return None
        return wound_up_dual(rounds, settings.damping, settings.penalty, len(counts)), 1.0

    def round(self, state: State, at: Round) -> RoundResult:
        hyper, objective = self.hyper, at.objective
        model, direction = state.server["model"], state.server["direction"]  # theta, y
        dual = state.clients.get("dual")  # lambda_i
        start = at.at_clients(model)
        gradient = objective.gradient(start)  # g_i
        for _ in range(hyper.inner):
            right = gradient + auxiliary(at, hyper, direction, dual)
            raw = objective.damped_solve(start, right, self._shift, hyper.curvature)
            update = clip(raw, hyper.clip_norm)  # yhat_i
            release = at.release("direction", update)
            direction = release.mean
            if dual is not None:
                own = release.echo if hyper.dual == "paper" else update.values  # Y_i
                dual = dual + per_run(hyper.penalty, own) * (own - direction.unsqueeze(1))
        return stepped(hyper, model, direction, dual), lambda: update_diagnostics(update)
