"""Local training as others write it: client by client with modules and optimisers, or all clients
at once by torch.func.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

Loss = Callable[..., Tensor]  # (outputs, *targets) -> the mean over records


def train(
    module: nn.Module,
    weights: dict[str, Tensor],
    inputs: Tensor,
    targets: Iterable[Tensor],
    steps: int,
    rate: float,
    loss: Loss,
) -> Tensor:
    """[d] one client's update after local steps of gradient descent from `weights`."""
    module.load_state_dict(weights)
    optimiser = torch.optim.SGD(module.parameters(), lr=rate)
    for _ in range(steps):
        optimiser.zero_grad()
        loss(module(inputs), *targets).backward()
        optimiser.step()
    return torch.cat(
        [(value - weights[name]).flatten() for name, value in module.state_dict().items()]
    )


def train_stacked(
    module: nn.Module,
    weights: dict[str, Tensor],
    inputs: Tensor,
    targets: Iterable[Tensor],
    steps: int,
    rate: float,
    loss: Loss,
) -> Tensor:
    """[k, d] the updates of k clients, vmapped over stacked parameters, inputs [k, n, ...] and
    targets [k, n].
    """

    def local_loss(parameters: dict[str, Tensor], inputs: Tensor, *targets: Tensor) -> Tensor:
        return loss(functional_call(module, parameters, (inputs,)), *targets)

    gradient = vmap(grad(local_loss))
    parameters = {
        name: value.expand(len(inputs), *value.shape).clone() for name, value in weights.items()
    }
    for _ in range(steps):
        slopes = gradient(parameters, inputs, *targets)
        parameters = {name: value - rate * slopes[name] for name, value in parameters.items()}
    return torch.cat(
        [(value - weights[name]).flatten(1) for name, value in parameters.items()], dim=1
    )


def clipped(updates: Tensor, clip_norm: float) -> Tensor:
    """[..., d] scaled to a norm of at most C."""
    return updates * (clip_norm / updates.norm(dim=-1, keepdim=True)).clamp(max=1.0)
