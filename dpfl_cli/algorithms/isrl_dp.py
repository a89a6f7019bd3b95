"""ISRL-DP: noisy gradient descent with projection and averaged iterates, full batch.

References:
  Lowy, Razaviyayn, "Private Federated Learning Without a Trusted Server: Optimal Algorithms for
    Convex Losses", ICLR 2023, arXiv:2106.09779 (noisy minibatch SGD).
  Zhang, Fay, Johansson, "Dynamic Privacy Allocation for Locally Differentially Private Federated
    Learning with Composite Objectives", 2023, arXiv:2308.01139, compare with it.

Round t, with m_i records of client i:
    G <- mean over clients of what the mechanism makes of (1/m_i) sum_j CLIP(grad l_ij(x), C)
    x <- P(x - eta (G + grad h(x)))        P: onto the ball of radius `radius` (none: nothing to do)
Output after t rounds: x (`average=none`), (1/t) sum_s x_s (`uniform`) or
2 / (t (t + 1)) sum_s s x_s (`linear`).

Releases:
    "gradient"  2C / m_i when a record of client i is replaced, C / m_i when it is left out.
With `noise=original` the noise is the paper's own, of its Theorem 2.1,
sigma^2 = 256 C^2 T ln(2.5 T / delta) ln(2 / delta) / (m^2 epsilon^2), that is under replace_one the
noise multiplier sigma / (2C / m) = 8 sqrt(T ln(2.5 T / delta) ln(2 / delta)) / epsilon, in place of
the mechanism's own; it is priced as what it is.

Proved under every trust model: the gradient is taken at x, a function of past releases, and clients
hold no state.
"""

from math import log, sqrt
from typing import Literal

from dpfl_cli.algorithms.api import (
    ALL_TRUSTS,
    GRADIENT,
    Bound,
    ClientSide,
    ConfigError,
    Field,
    Number,
    Positive,
    PositiveOrNone,
    ReleaseSpec,
    Round,
    RoundResult,
    Settings,
    Setup,
    State,
    Streams,
    algorithm,
    per_run,
    projected,
)


class IsrlDpSettings(Settings):
    """Settings of `isrl_dp`."""

    step: Positive  # eta
    clip_norm: Bound  # C
    average: Literal["none", "uniform", "linear"] = "none"
    radius: PositiveOrNone = None
    noise: Literal["mechanism", "original"] = "mechanism"
    original_epsilon: PositiveOrNone = None
    original_delta: Number = Field(1e-5, gt=0, lt=1)


@algorithm(
    "isrl_dp",
    paper="Lowy, Razaviyayn 2023, arXiv:2106.09779",
    unit="record",
    proved=ALL_TRUSTS,
    needs={"clipped_gradient"},
)
class IsrlDp:
    """ISRL-DP: noisy full-batch gradient descent, with projection and averaging."""

    hyper: IsrlDpSettings

    @staticmethod
    def releases(settings: IsrlDpSettings, run: Setup) -> list[ReleaseSpec]:
        if settings.noise == "mechanism":
            return [ReleaseSpec("gradient", note=GRADIENT)]
        epsilon, delta, rounds = settings.original_epsilon, settings.original_delta, run.rounds
        if epsilon is None:
            raise ConfigError(
                "algorithm.noise=original needs the epsilon of its formula: give "
                "algorithm.original_epsilon"
            )
        own = 8 * sqrt(rounds * log(2.5 * rounds / delta) * log(2 / delta)) / epsilon
        note = f"{GRADIENT}; noise of the original paper"
        return [ReleaseSpec("gradient", multiplier=lambda z: own, note=note)]

    def init(self, objective: ClientSide, streams: Streams) -> State:
        model = objective.initial(streams)
        return State({"model": model, "iterate": model})

    def round(self, state: State, at: Round) -> RoundResult:
        hyper, objective = self.hyper, at.objective
        iterate = state.server["iterate"]  # x
        gradient = objective.clipped_gradient(at.at_clients(iterate), hyper.clip_norm)
        mean = at.release("gradient", gradient).mean  # G
        slope = mean + objective.regulariser_gradient(iterate)
        iterate = projected(iterate - per_run(hyper.step, iterate) * slope, hyper.radius)
        model, t = iterate, at.number
        if hyper.average != "none":
            # the newest iterate's share is 1 / t (uniform) or t / (1 + ... + t) (linear)
            share = 1 / t if hyper.average == "uniform" else 2 / (t + 1)
            average = state.server["model"]
            model = average + per_run(share, average) * (iterate - average)
        return State({"model": model, "iterate": iterate}), {}
