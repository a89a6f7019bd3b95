"""Small networks given as modules, on grey images."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dpfl_cli.models.network import Network
from tests.models.small import federation_of

GREY: dict[str, Any] = {"shape": (6, 4), "classes": 3}
PIXELS = {**GREY, "target_shape": (6, 4)}


class Toy(Network):
    """A convolution, a normalisation, a frozen scale and a linear layer, on grey images."""

    dtype = torch.float64

    @classmethod
    def network(cls, settings: Any, info: Any) -> nn.Module:
        outputs = nn.Linear(4 * 4 * 2, 3)
        outputs.bias.requires_grad_(False)
        nn.init.constant_(outputs.bias, 0.25)
        layers = nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.Tanh(), nn.Flatten()
        return nn.Sequential(*layers, outputs)

    def inputs(self, features: Tensor) -> Tensor:
        return features.unsqueeze(1)


class WithScale(nn.Module):
    """A number times what a network gives, and a parameter of no use."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.scale, self.unused = nn.Parameter(torch.tensor(2.0)), nn.Parameter(torch.ones(2))
        self.body = body

    def forward(self, inputs: Tensor) -> Tensor:
        return self.scale * self.body(inputs)


class Scaled(Toy):
    @classmethod
    def network(cls, settings: Any, info: Any) -> nn.Module:
        return WithScale(super().network(settings, info))


class Segmenting(Toy):
    """A class for every pixel, with a loss and scores of its own."""

    @classmethod
    def network(cls, settings: Any, info: Any) -> nn.Module:
        return nn.Conv2d(1, 3, 3, padding=1)

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return nn.functional.cross_entropy(outputs, targets, reduction="none").mean(dim=(1, 2))

    def scores(self, outputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        return {"agreement": (outputs.argmax(dim=1) == targets).double().mean(dim=(1, 2))}


def own_network(kind: type[Network], data: dict[str, Any]) -> Any:
    def make(counts: list[int], index: list[int]) -> Network:
        feds = [federation_of(counts, seed, test=10, **data) for seed in range(max(index) + 1)]
        return kind(SimpleNamespace(), feds, np.array(index))

    return make
