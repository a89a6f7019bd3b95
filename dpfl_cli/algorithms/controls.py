"""What DP-SCAFFOLD's two forms share: control variates, their start and their warm start."""

import torch
from torch import Tensor

from dpfl_cli.algorithms.base import Round, State, zeros_of
from dpfl_cli.data.streams import Streams
from dpfl_cli.models.client_side import ClientSide


def start_state(objective: ClientSide, streams: Streams) -> State:
    """The initial model w, and controls of zero: c at the server, one at every client."""
    model = objective.initial(streams)
    server = {"model": model, "control": torch.zeros_like(model)}
    return State(server, {"control": zeros_of(objective, model)})


def warmed(at: Round, state: State, control: Tensor, own: Tensor) -> State:
    """The state with these controls for the runs in their first round."""
    first, server, clients = at.number == 1, dict(state.server), dict(state.clients)
    server["control"] = at.where(first, control, server["control"])
    clients["control"] = at.where(first, own, clients["control"])
    return State(server, clients)
