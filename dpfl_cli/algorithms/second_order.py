"""What FedNew's two forms share: settings, the start, the auxiliary vector b_i and the step of a client's dual variable."""

from __future__ import annotations

from typing import Literal, Protocol

import torch
from pydantic import Field
from torch import Tensor

from dpfl_cli.algorithms.base import State
from dpfl_cli.algorithms.local import per_run
from dpfl_cli.config.component import Settings
from dpfl_cli.data.streams import Streams
from dpfl_cli.models.objective import ClientSide
from dpfl_cli.privacy.client_values import client_values


class SecondOrderSettings(Settings):
    """Settings of a damped second-order direction with a proximal penalty."""

    curvature: Literal["hessian", "covariance"] = "hessian"
    damping: float = Field(0.1, gt=0, allow_inf_nan=False)  # alpha
    penalty: float = Field(1.0, ge=0, allow_inf_nan=False)  # rho
    server_lr: float = Field(1.0, gt=0, allow_inf_nan=False)  # eta


class SecondOrderHyper(Protocol):
    """The same for a batch of runs: damping and penalty are [R]."""

    damping: Tensor
    penalty: Tensor


def start_state(objective: ClientSide, streams: Streams, dual: bool) -> State:
    """theta from the model, y = 0, and lambda_i = 0 where there are duals."""
    model = objective.initial(streams)
    server = {"model": model, "direction": torch.zeros_like(model)}
    if not dual:
        return State(server, {})
    own = model.new_zeros(objective.runs, objective.clients, objective.dimension)
    return State(server, {"dual": client_values(own)})


def auxiliary(objective: ClientSide, hyper: SecondOrderHyper, direction: Tensor, dual: Tensor | None) -> Tensor:
    """[R, M, d] b_i = rho y - lambda_i; public (rho y) without a dual.

    Args:
      direction: [R, d] y.
      dual: [R, M, d] lambda_i, or None.
    """
    pull = (per_run(hyper.penalty, direction) * direction).unsqueeze(1)
    return pull.expand(objective.runs, objective.clients, objective.dimension) if dual is None else pull - dual


def dual_step(hyper: SecondOrderHyper, dual: Tensor, own: Tensor, direction: Tensor) -> Tensor:
    """[R, M, d] lambda_i + rho (y_i - y), with y_i [R, M, d] what the client takes for its own direction."""
    return dual + per_run(hyper.penalty, own) * (own - direction.unsqueeze(1))
