"""The shape of the two-convolution network: sizes of its layers and where each lies in the flat
parameter vector.

conv(1 -> a, 4x4), activation, maxpool 2, conv(a -> b, 4x4), activation, maxpool 2, flatten, [fc
hidden, ReLU], fc classes; stride 1, no padding, pooling rounds down (Takakura, Liew, Hasegawa 2025,
arXiv:2504.09850, section 5, MNIST).
"""

from dataclasses import dataclass
from itertools import pairwise
from math import prod

KERNEL = 4  # side of a convolution
DESCENT, GRADIENT, EVALUATION = range(3)  # what a call of the compiled network computes
PATCH = KERNEL + 1  # side of the inputs that one 2x2 pooling window sees


@dataclass(frozen=True)
class CnnLayer:
    """One layer's place in the flat vector: weights, then biases (the order of
    nn.Sequential.parameters()).

    Attributes:
      weight_shape: OIHW of a convolution, which a pooling follows, or [out, in].
      height, width: of a convolution's input; 1 of a fully connected layer's.
      rectified, relu: whether a ReLU is before it, and after it.
    """

    weight_shape: tuple[int, ...]
    start: int
    height: int
    width: int
    rectified: bool
    relu: bool

    @property
    def outputs(self) -> int:
        return self.weight_shape[0]

    @property
    def inputs(self) -> int:
        return self.weight_shape[1]

    @property
    def plane(self) -> int:
        """Values of an input channel."""
        return self.height * self.width

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of what it puts out, after the pooling; below 1 where the input is too
        small.
        """
        if len(self.weight_shape) == 2:
            return 1, 1
        return (self.height - KERNEL + 1) // 2, (self.width - KERNEL + 1) // 2

    @property
    def values(self) -> int:
        """How many it puts out."""
        return self.outputs * prod(self.size)

    @property
    def biases(self) -> int:
        """Where they begin."""
        return self.start + prod(self.weight_shape)

    @property
    def stop(self) -> int:
        return self.biases + self.outputs


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

    @property
    def layers(self) -> list[CnnLayer]:
        """The layers in order: two convolutions, then one or two fully connected."""
        a, b = self.channels
        first = CnnLayer((a, 1, KERNEL, KERNEL), 0, self.height, self.width, False, self.relu)
        place = first.stop, *first.size
        second = CnnLayer((b, a, KERNEL, KERNEL), *place, self.relu, self.relu)
        layers, hidden = [first, second], [] if self.hidden is None else [self.hidden]
        widths = [second.values, *hidden, self.classes]
        for into, out in pairwise(widths):
            before, relu = layers[-1], len(layers) < len(widths)  # not after the last
            layers.append(CnnLayer((out, into), before.stop, 1, 1, before.relu, relu))
        return layers

    @property
    def dimension(self) -> int:
        """Number of parameters."""
        return self.layers[-1].stop
