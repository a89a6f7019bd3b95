"""What FedNew's two forms share: settings, the start, the auxiliary vector b_i and the step of a
client's dual variable.
"""

from typing import Literal

import torch
from torch import Tensor

from dpfl_cli.algorithms.base import Bound, NonNegative, Positive, Round, State, zeros_of
from dpfl_cli.config.component import Settings
from dpfl_cli.data.streams import Streams
from dpfl_cli.models.client_side import ClientSide
from dpfl_cli.privacy.bounded import per_run


class SecondOrderSettings(Settings):
    """Settings of a damped second-order direction with a proximal penalty."""

    clip_norm: Bound
    curvature: Literal["hessian", "covariance"] = "hessian"
    damping: Positive = 0.1  # alpha
    penalty: NonNegative = 1.0  # rho
    server_lr: Positive = 1.0  # eta
    dual: Literal["off", "own_update", "paper"] = "off"


def start_state(objective: ClientSide, streams: Streams, dual: str) -> State:
    """theta from the model, y = 0, and lambda_i = 0 where there are duals."""
    model = objective.initial(streams)
    server = {"model": model, "direction": torch.zeros_like(model)}
    return State(server, {} if dual == "off" else {"dual": zeros_of(objective, model)})


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


def dual_step(hyper: SecondOrderSettings, dual: Tensor, own: Tensor, direction: Tensor) -> Tensor:
    """[R, M, d] lambda_i + rho (Y_i - y), with Y_i [R, M, d] what the client takes for its own
    direction.
    """
    return dual + per_run(hyper.penalty, own) * (own - direction.unsqueeze(1))


def stepped(
    hyper: SecondOrderSettings, model: Tensor, direction: Tensor, dual: Tensor | None
) -> State:
    """theta <- theta - eta y, and what else lasts."""
    model = model - per_run(hyper.server_lr, model) * direction
    server = {"model": model, "direction": direction}
    return State(server, {} if dual is None else {"dual": dual})
