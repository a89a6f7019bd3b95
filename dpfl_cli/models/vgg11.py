"""VGG-11 without batch normalisation (Simonyan, Zisserman 2015, arXiv 1409.1556, configuration A),
as torchvision has it.

Dropout of the fully connected layers is left out: a pass draws nothing.

Initial values: `default`, PyTorch's own for its layers, weights of variance 1 / (3 fan_in), so that
with ReLU a layer's outputs are about 6^(-1/2) of its inputs and after eight layers little is left;
or `kaiming`, those of torchvision's VGG: convolutions N(0, 2 / (9 out)), with which gradients keep
their size from layer to layer (He, Zhang, Ren, Sun 2015, arXiv 1502.01852, eq. 14, fan_out), linear
layers N(0, 0.01^2), biases 0; or `unit`: weights N(0, 1), biases 0, and what a layer gives, bias
included, is multiplied by sqrt(2 / fan_in), in the last by sqrt(1 / fan_in) (equalized learning
rate: Karras, Aila, Laine, Lehtinen 2018, arXiv 1710.10196, section 4.1). The network starts as with
He's values by fan_in, and noise of one size on all parameters is of one size beside the weights of
every layer.
"""

from math import prod, sqrt
from typing import Literal

import numpy as np
from torch import Tensor, nn

from dpfl_cli.config.component import Count, component
from dpfl_cli.data.federation import DatasetInfo
from dpfl_cli.models.client_mean import ClientMeanNetwork, ClientMeanSettings
from dpfl_cli.models.images import ImageInputs, image_classes

LAYERS = (
    (1,),
    (2,),
    (4, 4),
    (8, 8),
    (8, 8),
)  # output channels in multiples of the first's; pooling after each group


class Vgg11Settings(ClientMeanSettings):
    """Width of the first convolution, of the two hidden fully connected layers (None: one layer on
    means over all places), and the law of the initial values (`unit`: of the factors too)."""

    width: Count
    hidden: Count | None
    init: Literal["default", "kaiming", "unit"] = "default"


class Times(nn.Module):
    """Its inputs times a constant."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, inputs: Tensor) -> Tensor:
        return self.factor * inputs


@component("model", "vgg11", Vgg11Settings, revision=2)
class Vgg11(ImageInputs, ClientMeanNetwork):
    """Eight 3x3 convolutions with ReLU and five max-poolings, fully connected layers,
    cross-entropy.
    """

    @classmethod
    def network(cls, settings: Vgg11Settings, info: DatasetInfo) -> nn.Module:
        into, _, _, classes = image_classes("vgg11", info, 32)

        def layer(own: nn.Conv2d | nn.Linear, gain: float = 2.0) -> list[nn.Module]:
            """The layer; with init=unit what it gives times sqrt(gain / fan_in)."""
            unit = settings.init == "unit"
            return [own, Times(sqrt(gain / own.weight[0].numel()))] if unit else [own]

        layers: list[nn.Module] = []
        for group in LAYERS:
            for multiple in group:
                out = multiple * settings.width
                layers += [*layer(nn.Conv2d(into, out, 3, padding=1)), nn.ReLU()]
                into = out
            layers.append(nn.MaxPool2d(2))
        side, hidden = (1, []) if settings.hidden is None else (7, 2 * [settings.hidden])
        layers += [nn.AdaptiveAvgPool2d(side), nn.Flatten()]
        into *= side**2
        for out in hidden:
            layers += [*layer(nn.Linear(into, out)), nn.ReLU()]
            into = out
        return nn.Sequential(*layers, *layer(nn.Linear(into, classes), gain=1.0))

    def initial_values(self, generator: np.random.Generator) -> np.ndarray:
        if self.settings.init == "default":
            return super().initial_values(generator)
        own = self.module.parameters()
        return np.concatenate([self._drawn(tuple(one.shape), generator).ravel() for one in own])

    def _drawn(self, shape: tuple[int, ...], generator: np.random.Generator) -> np.ndarray:
        """A convolution's weight [out, in, h, w], a linear layer's [out, in] or a bias [out], by
        `unit` or by the law of torchvision's VGG.
        """
        if len(shape) == 1:
            return np.zeros(shape)
        deviation = 0.01 if len(shape) == 2 else sqrt(2.0 / (shape[0] * prod(shape[2:])))
        return generator.normal(0.0, 1.0 if self.settings.init == "unit" else deviation, shape)
