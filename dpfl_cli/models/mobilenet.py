"""MobileNet, versions 1 and 2, with group normalisation: under batch normalisation a record has no
gradient of its own.

Version 2 is a 3x3 convolution, seventeen inverted residual blocks (widened by a 1x1 convolution, a
3x3 convolution of every channel for itself, narrowed by a 1x1 convolution without activation; added
to the input where the shapes agree), a 1x1 convolution, the mean over positions and a linear layer.
Version 1 is a 3x3 convolution and thirteen pairs of a 3x3 convolution of every channel for itself
and a 1x1 convolution, the mean and a linear layer. Every convolution is followed by a
normalisation, and, but for the narrowing ones, by ReLU6 (version 1: ReLU). There is no dropout.

References:
  Howard et al., "MobileNets: efficient convolutional neural networks for mobile vision
    applications", 2017, arXiv:1704.04861.
  Sandler, Howard, Zhu, Zhmoginov, Chen, "MobileNetV2: inverted residuals and linear bottlenecks",
    2018, arXiv:1801.04381.
  Wu, He, "Group normalization", 2018, arXiv:1803.08494.
"""

from typing import Literal

import torch
from pydantic import PositiveFloat, field_validator
from torch import Tensor, nn

from dpfl_cli.config.component import Count, component
from dpfl_cli.config.errors import ConfigError
from dpfl_cli.data.federation import DatasetInfo
from dpfl_cli.models.images import ImageInputs, image_classes
from dpfl_cli.models.network import Network
from dpfl_cli.models.network_settings import NetworkSettings

UNIT = 8  # numbers of channels are multiples of it
# widening, channels, blocks and stride of the first of them
BLOCKS = {
    "v1": [(1, 64, 1, 1), (1, 128, 2, 2), (1, 256, 2, 2), (1, 512, 6, 2), (1, 1024, 2, 2)],
    "v2": [
        *((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2)),
        *((6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)),
    ],
}
FIRST, LAST = 32, 1280


class MobileNetSettings(NetworkSettings):
    """Settings of `mobilenet`."""

    version: Literal["v2", "v1"]
    width: PositiveFloat
    groups: Count
    first_stride: Literal[1, 2]
    gradient_quantiles: bool

    @field_validator("groups")
    @classmethod
    def _divides(cls, groups: int) -> int:
        if UNIT % groups:
            raise ValueError(
                f"numbers of channels are multiples of {UNIT}, so it must be 1, 2, 4 or 8"
            )
        return groups


@component("model", "mobilenet", MobileNetSettings, revision=3)
class MobileNet(ImageInputs, Network):
    """MobileNet, version 2 or 1, with group normalisation and cross-entropy; on images, grey or in
    colour.
    """

    by_layers = True

    @classmethod
    def network(cls, settings: MobileNetSettings, info: DatasetInfo) -> nn.Module:
        """The network for images [height, width] or [channels, height, width] with classes."""
        channels, height, width, classes = image_classes("mobilenet", info, 1)
        layers = convolutions(settings, channels)
        try:
            with torch.no_grad():
                outputs = layers(torch.zeros(1, channels, height, width)).shape[1]
        except ValueError as error:  # of nn.GroupNorm, which would make zeros of them
            raise ConfigError(
                f"model.groups={settings.groups}: the images shrink to one position, where at this "
                "model.width a group would be a single number; write model.groups=1"
            ) from error
        return nn.Sequential(
            layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(outputs, classes)
        )


class Residual(nn.Sequential):
    """Layers whose inputs are added to their outputs."""

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs + super().forward(inputs)


def convolutions(settings: MobileNetSettings, inputs: int) -> nn.Sequential:
    """All but the classifier; version 2's last convolution is not narrowed with a width below 1."""
    inverted, width = settings.version == "v2", settings.width

    def convolution(
        into: int, out: int, size: int = 1, stride: int = 1, parts: int = 1
    ) -> list[nn.Module]:
        """Without bias, of `parts` groups of channels; normalised."""
        own = nn.Conv2d(into, out, size, stride, size // 2, groups=parts, bias=False)
        return [own, nn.GroupNorm(settings.groups, out)]

    act = nn.ReLU6() if inverted else nn.ReLU()
    channels = scaled(FIRST, width)
    layers = [*convolution(inputs, channels, 3, settings.first_stride), act]
    for widening, wanted, blocks, first_stride in BLOCKS[settings.version]:
        outputs = scaled(wanted, width)
        for number in range(blocks):
            wide, stride = channels * widening, 1 if number else first_stride
            block = [*convolution(channels, wide), act] if widening > 1 else []
            block += [*convolution(wide, wide, 3, stride, parts=wide), act]
            block += convolution(wide, outputs)
            residual = inverted and stride == 1 and channels == outputs
            layers.append(Residual(*block) if residual else nn.Sequential(*block))
            layers += [] if inverted else [act]
            channels = outputs
    if inverted:
        layers += [*convolution(channels, scaled(LAST, max(1.0, width))), act]
    return nn.Sequential(*layers)


def scaled(channels: int, width: float) -> int:
    """width * channels to the nearest multiple of `UNIT`, up rather than down by more than a
    tenth.
    """
    nearest = max(UNIT, int(channels * width + UNIT / 2) // UNIT * UNIT)
    return nearest + UNIT if nearest < 0.9 * channels * width else nearest
