"""Forward and backward passes of fully connected layers, stacked over runs and clients."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import pad

from dpfl_cli.models.losses import Loss
from dpfl_cli.models.records import ALIGNMENT, LARGEST_NORM, product, shared_product

Activation = Literal["sigmoid", "relu", "tanh"]


def sigmoid(z: Tensor, out: Tensor) -> None:
    """1 / (1 + exp(-z)). torch.sigmoid rounds an element otherwise where it lies at the end of a
    vector of the processor.
    """
    torch.neg(z, out=out).exp_().add_(1.0).reciprocal_()


_BACKWARD = torch.ops.aten
# sigma(z), and delta * sigma'(z) from sigma(z), each in one pass
ACTIVATIONS: dict[str, tuple[Callable[..., object], Callable[[Tensor, Tensor], Tensor]]] = {
    "sigmoid": (sigmoid, _BACKWARD.sigmoid_backward),
    "relu": (
        lambda z, out: torch.clamp(z, min=0.0, out=out),
        lambda delta, outputs: _BACKWARD.threshold_backward(delta, outputs, 0.0),
    ),
    "tanh": (torch.tanh, _BACKWARD.tanh_backward),
}


@dataclass(frozen=True)
class Layer:
    """A layer's place in flat parameters [..., d]: weights [outputs, inputs], then, unless it has
    none, biases [outputs].

    In products it is a matrix [outputs, width] with the columns [W, b, 0], filled up to a multiple
    of `ALIGNMENT`.
    """

    inputs: int
    outputs: int
    start: int = 0
    bias: bool = True

    @property
    def width(self) -> int:
        return -(-(self.inputs + self.bias) // ALIGNMENT) * ALIGNMENT

    @property
    def biases(self) -> int:
        """Where they begin."""
        return self.start + self.outputs * self.inputs

    @property
    def stop(self) -> int:
        return self.biases + self.outputs * self.bias

    def matrix(self, flat: Tensor) -> Tensor:
        """[..., outputs, width] of flat parameters [..., d]."""
        weights = flat[..., self.start : self.biases].unflatten(-1, (self.outputs, self.inputs))
        if not self.bias:
            missing = self.width - self.inputs
            return pad(weights, (0, missing)) if missing else weights  # pad copies even for none
        matrix = flat.new_zeros(*flat.shape[:-1], self.outputs, self.width)
        matrix[..., : self.inputs] = weights
        matrix[..., self.inputs] = flat[..., self.biases : self.stop]
        return matrix

    def flat(self, matrix: Tensor) -> Tensor:
        """[..., stop - start] the inverse of `matrix`: the layer's part of flat parameters."""
        weights = matrix[..., : self.inputs].flatten(-2)
        return torch.cat((weights, matrix[..., self.inputs]), dim=-1) if self.bias else weights


def layers_of(sizes: Sequence[int]) -> list[Layer]:
    """Layers from one size to the next, one after another in flat parameters.

    >>> layers_of([784, 200, 10])[-1].stop
    159010
    """
    layers: list[Layer] = []
    for inputs, outputs in pairwise(sizes):
        layers.append(Layer(inputs, outputs, layers[-1].stop if layers else 0))
    return layers


class Passes:
    """Forward and backward passes of S runs x B clients at parameters [S, B, d], some of their
    records at a time.

    For each part of a block: `forward`, `backward` and `collect`, which adds to `gradient`. Records
    are columns: activations are [S, B, width, n], with the bias's row of ones after the units and
    zeros below it.
    """

    def __init__(
        self, layers: Sequence[Layer], activation: str, loss: Loss, parameters: Tensor
    ) -> None:
        self._layers, self._loss = layers, loss
        self._activate, self._derive = ACTIVATIONS[activation]
        self._matrices = [layer.matrix(parameters) for layer in layers]
        self._gradients: list[Tensor] = []

    def forward(self, features: Tensor) -> Tensor:
        """[S, B, outputs, n] z_L of features [B, n, q] (with a column of ones where the layer has
        biases).
        """
        self._features = features
        self._activations: list[Tensor] = []  # a_1 ... a_{L-1}
        sums = shared_product(self._matrices[0], features.mT)
        for below, above, weights in zip(
            self._layers, self._layers[1:], self._matrices[1:], strict=False
        ):
            outputs = sums.new_empty(*sums.shape[:2], above.width, sums.shape[-1])
            self._activate(sums, out=outputs[:, :, : below.outputs])
            outputs[:, :, below.outputs] = 1.0
            outputs[:, :, below.outputs + 1 :] = 0.0
            self._activations.append(outputs)
            sums = _each(weights, outputs)
        self._outputs = sums
        return sums

    def backward(self, targets: Tensor) -> None:
        """delta_L ... delta_1 for targets [B, n]; delta_L overwrites z_L."""
        delta = self._loss.slopes(self._outputs, targets)
        self._deltas = [delta]
        for number in range(len(self._layers) - 1, 0, -1):
            units = self._layers[number].inputs
            delta = _each(self._matrices[number][..., :units].mT, delta)
            delta = self._derive(delta, self._activations[number - 1][:, :, :units])
            self._deltas.insert(0, delta)

    def squared_norms(self, inputs: Tensor) -> Tensor:
        """[S, B, n] sum_l ||delta_l||^2 (||a_{l-1}||^2 + 1), from the first layer's ||[a_0, 1]||^2
        [B, n].

        Not finite for a record whose inputs to some layer exceed `LARGEST_NORM`, as those of the
        first do in a `Block`.
        """
        total = _column_norms(self._deltas[0]).mul_(inputs)
        for delta, outputs in zip(self._deltas[1:], self._activations, strict=True):
            above = _column_norms(outputs)
            above.masked_fill_(above > LARGEST_NORM[above.dtype] ** 2, torch.inf)
            total.addcmul_(_column_norms(delta), above)
        return total

    def drop_non_finite(self) -> None:
        """Zeros in place of what is not finite: 0 times it is not 0, where a record's share is."""
        for values in (*self._deltas, *self._activations):
            values.nan_to_num_(0.0, 0.0, 0.0)

    def collect(self, shares: Tensor) -> None:
        """Adds sum_j share_j delta_lj (x) [a_{l-1,j}, 1] to the gradient, for shares [B, n] or [S,
        B, n].
        """
        first, *others = (delta.mul_(shares.unsqueeze(-2)) for delta in self._deltas)
        parts = [shared_product(first, self._features)]
        parts += [
            _each(*pair) for pair in zip(others, (a.mT for a in self._activations), strict=True)
        ]
        if self._gradients:
            parts = [old.add_(new) for old, new in zip(self._gradients, parts, strict=True)]
        self._gradients = parts

    def gradient(self) -> Tensor:
        """[S, B, d] what was collected."""
        parts = zip(self._layers, self._gradients, strict=True)
        return torch.cat([layer.flat(matrix) for layer, matrix in parts], dim=-1)


def _column_norms(values: Tensor) -> Tensor:
    """[S, B, n] squared norms of the columns of values [S, B, k, n]."""
    return values.square().sum(dim=-2)


def _each(left: Tensor, right: Tensor) -> Tensor:
    """A product of every run and client, of stacks [S, B, ...]."""
    out = left.new_empty(*left.shape[:3], right.shape[-1])
    product(left.flatten(0, 1), right.flatten(0, 1), out.flatten(0, 1))
    return out
