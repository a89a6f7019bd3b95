"""Workload K: local training of a user's own nn.Module on full batches, against a plain loop.

10 clients with 6000 grey images of 28x28 each, 5 steps of gradient descent on all of a client's
images, float32. The module is a small convolutional network that dpfl knows nothing about.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from dpfl_cli.data.federation import DatasetInfo, Federation
from dpfl_cli.data.streams import Streams
from dpfl_cli.models.network import Network
from dpfl_cli.models.network_settings import NetworkSettings
from dpfl_cli.privacy.client_values import opened
from tests.benchmarks.harness import Case, Contender, Workload
from tests.benchmarks.images import federation_of, images_of, weights_of
from tests.benchmarks.plain import train

CLIENTS, IMAGES, STEPS, RATE = 10, 6000, 5, 0.1
LOOP_CLIENTS = 2  # the loop's part of a round


class Own(Network):
    """A network as a user's plugin has it."""

    @classmethod
    def network(cls, settings: NetworkSettings, info: DatasetInfo) -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(1, 8, 5, stride=2),
            nn.GroupNorm(2, 8),
            nn.Tanh(),
            nn.Conv2d(8, 16, 5, stride=2),
            nn.Tanh(),
            nn.Flatten(),
            nn.Linear(256, 10),
        )

    def inputs(self, features: Tensor) -> Tensor:
        return features.unsqueeze(1)


def cases() -> Iterator[Case]:
    title = f"a user's own nn.Module, {CLIENTS} clients x {IMAGES} images, {STEPS} full-batch steps"
    yield Case("K", title, full_batches, floor=1)


def full_batches(device: str) -> Workload:
    federation = federation_of(np.full(CLIENTS, IMAGES))
    objective = Own(NetworkSettings(), [federation], np.array([0]), device)
    start = objective.initial(Streams([0]))
    own = start[0].cpu()
    reference = Contender(lambda: loop(federation, LOOP_CLIENTS, own), LOOP_CLIENTS / CLIENTS)
    return Workload(Contender(lambda: engine(objective, start)), {"loop": reference})


def engine(objective: Own, start: Tensor) -> Tensor:
    """[M, d] updates by the objective."""
    rate = torch.tensor([RATE], device=start.device)
    return opened(objective.local_descent(start, rate, STEPS))[0]


def loop(federation: Federation, clients: int, start: Tensor) -> Tensor:
    """[clients, d] updates, client by client."""
    module = Own.network(NetworkSettings(), federation.dataset.info)
    weights, updates = weights_of(module, start), []
    for client in range(clients):
        images, labels = images_of(federation, client)
        updates.append(
            train(module, weights, images, [labels], STEPS, RATE, functional.cross_entropy)
        )
    return torch.stack(updates)
