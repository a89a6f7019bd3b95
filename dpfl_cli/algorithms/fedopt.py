"""DP-FedOpt at client level: DP-FedAvg's mean update, taken by an adaptive optimiser of the server.

Reference: Reddi, Charles, Zaheer, Garrett, Rush, Konečný, Kumar, McMahan, "Adaptive Federated
  Optimization", ICLR 2021, arXiv:2003.00295, Algorithm 2 (FedAdagrad, FedYogi, FedAdam).

From m = 0 and v = tau^2, coordinate by coordinate, round by round:
    cbar <- what the mechanism makes of mean_i CLIP(LOCAL(w, i))
    m    <- beta1 m + (1 - beta1) cbar
    v    <- v + cbar^2                                   (adagrad)
            v - (1 - beta2) cbar^2 sign(v - cbar^2)      (yogi)
            beta2 v + (1 - beta2) cbar^2                 (adam)
    w    <- w + eta m / (sqrt(v) + tau)

cbar^2 holds the variance of the noise: where that is large, steps are about as long in every
coordinate.

Releases: "update", as of `fedavg`.

Proved under every trust model, as `fedavg`: what the server does to cbar is post-processing.
"""

from typing import Literal

from dpfl_cli.algorithms.api import (
    ALL_TRUSTS,
    ClientSide,
    Field,
    LocalSettings,
    Number,
    Positive,
    Round,
    RoundResult,
    State,
    Streams,
    algorithm,
    bounded_local_update,
    per_run,
    torch,
    update_diagnostics,
)
from dpfl_cli.algorithms.fedavg import FedAvg


class FedOptSettings(LocalSettings):
    """Settings of `fedopt`."""

    optimizer: Literal["adam", "yogi", "adagrad"]
    server_lr: Positive  # eta
    beta1: Number = Field(ge=0, lt=1)
    beta2: Number = Field(ge=0, lt=1)
    adaptivity: Positive  # tau


@algorithm(
    "fedopt",
    paper="Reddi et al. 2021, arXiv:2003.00295, Algorithm 2",
    unit="client",
    away="stateless",
    proved=ALL_TRUSTS,
)
class FedOpt:
    """DP-FedAvg with an adaptive optimiser at the server."""

    hyper: FedOptSettings

    releases = staticmethod(FedAvg.releases)

    def init(self, objective: ClientSide, streams: Streams) -> State:
        model = objective.initial(streams)
        squares = torch.ones_like(model) * per_run(self.hyper.adaptivity, model) ** 2
        return State({"model": model, "momentum": torch.zeros_like(model), "squares": squares})

    def round(self, state: State, at: Round) -> RoundResult:
        hyper, model = self.hyper, state.server["model"]  # w
        update = bounded_local_update(at, model, hyper)
        mean = at.release("update", update).mean  # cbar
        beta1, beta2 = per_run(hyper.beta1, model), per_run(hyper.beta2, model)
        momentum = beta1 * state.server["momentum"] + (1 - beta1) * mean  # m
        squares, new = state.server["squares"], mean.square()  # v
        if hyper.optimizer == "adagrad":
            squares = squares + new
        elif hyper.optimizer == "yogi":
            squares = squares - (1 - beta2) * new * (squares - new).sign()
        else:
            squares = beta2 * squares + (1 - beta2) * new
        length = squares.sqrt() + per_run(hyper.adaptivity, model)
        model = model + per_run(hyper.server_lr, model) * momentum / length
        server = {"model": model, "momentum": momentum, "squares": squares}
        return State(server), lambda: update_diagnostics(update)
