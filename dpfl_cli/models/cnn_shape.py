"""The shape of the two-convolution network: sizes of its layers and where each lies in the flat parameter vector.

conv(1 -> a, 4x4), activation, maxpool 2, conv(a -> b, 4x4), activation, maxpool 2, flatten, [fc hidden, ReLU], fc classes;
stride 1, no padding, pooling rounds down (Li et al., DP-FedEXP, MNIST experiments; SPEC 5.2).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from math import prod

KERNEL = 4  # side of a convolution
PATCH = KERNEL + 1  # side of the inputs that one 2x2 pooling window sees


@dataclass(frozen=True)
class Layer:
    """One layer's weight and bias as slices of the flat vector, weight first (the order of nn.Sequential.parameters())."""

    weight_shape: tuple[int, ...]  # OIHW, or [out, in]
    start: int

    @property
    def fan_in(self) -> int:
        return prod(self.weight_shape[1:])

    @property
    def weight(self) -> slice:
        return slice(self.start, self.start + prod(self.weight_shape))

    @property
    def bias(self) -> slice:
        return slice(self.weight.stop, self.weight.stop + self.weight_shape[0])


@dataclass(frozen=True)
class CnnShape:
    """Sizes of a network on grey images.

    Attributes:
      channels: (a, b), outputs of the two convolutions.
      hidden: width of the hidden fully connected layer, or None for no such layer.
      relu: whether a ReLU follows each convolution (one always follows the hidden layer).
    """

    height: int
    width: int
    channels: tuple[int, int]
    hidden: int | None
    classes: int
    relu: bool

    @staticmethod
    def pooled(side: int) -> int:
        """Side of the image after one convolution and one pooling; below 1 where the image is too small."""
        return (side - KERNEL + 1) // 2

    @property
    def first(self) -> tuple[int, int]:
        """Height and width after the first pooling."""
        return self.pooled(self.height), self.pooled(self.width)

    @property
    def second(self) -> tuple[int, int]:
        """Height and width after the second pooling."""
        return self.pooled(self.first[0]), self.pooled(self.first[1])

    @property
    def features(self) -> int:
        """Values that enter the fully connected part."""
        return self.channels[1] * self.second[0] * self.second[1]

    @property
    def layers(self) -> list[Layer]:
        """The layers in order: two convolutions, then one or two fully connected."""
        a, b = self.channels
        shapes: list[tuple[int, ...]] = [(a, 1, KERNEL, KERNEL), (b, a, KERNEL, KERNEL)]
        widths = [self.features, *([] if self.hidden is None else [self.hidden]), self.classes]
        shapes += [(out, into) for into, out in pairwise(widths)]
        layers: list[Layer] = []
        for shape in shapes:
            layers.append(Layer(shape, layers[-1].bias.stop if layers else 0))
        return layers

    @property
    def dimension(self) -> int:
        """Number of parameters."""
        return self.layers[-1].bias.stop
