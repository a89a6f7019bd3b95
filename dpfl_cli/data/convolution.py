"""Convolutions of trained networks, batch norm folded in: what a network in eval mode is made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from dpfl_cli.config.errors import DataError


@dataclass(frozen=True)
class Convolution:
    """A convolution with the batch norm after it folded in: weight [out, in / groups, k, k] with k odd, bias [out].

    Attributes:
      symmetric: padding of k // 2 on every side (PyTorch's networks); otherwise TensorFlow's "same" (`padded`).
    """

    weight: Tensor
    bias: Tensor
    stride: int = 1
    groups: int = 1
    symmetric: bool = False

    def __call__(self, x: Tensor) -> Tensor:
        """x [B, in, H, W] -> [B, out, ceil(H / stride), ceil(W / stride)]."""
        kernel = self.weight.shape[-1]
        if self.symmetric or self.stride == 1:  # at stride 1 the two paddings are the same
            return F.conv2d(x, self.weight, self.bias, self.stride, kernel // 2, groups=self.groups)
        return F.conv2d(padded(x, kernel, self.stride), self.weight, self.bias, self.stride, groups=self.groups)


def padded(x: Tensor, kernel: int, stride: int) -> Tensor:
    """TensorFlow's "same": zeros so that ceil(n / stride) outputs fit, the odd one at the end.

    >>> [tuple(padded(torch.zeros(1, 1, n, n), 3, 2).shape[2:]) for n in (7, 8)]
    [(9, 9), (9, 9)]
    """
    totals = [max((-(-n // stride) - 1) * stride + kernel - n, 0) for n in (x.shape[3], x.shape[2])]
    return F.pad(x, [part for total in totals for part in (total // 2, total - total // 2)])


class WeightsOf:
    """The state dict of a network, taken tensor by tensor.

    Args:
      network: its name, for errors.
      epsilon: of its batch norms.
    """

    def __init__(self, network: str, weights: Mapping[str, Tensor], epsilon: float, symmetric: bool = False) -> None:
        self.network, self.epsilon, self.symmetric = network, epsilon, symmetric
        self._left = {name: value for name, value in weights.items() if not name.endswith("num_batches_tracked")}

    def take(self, name: str, *shape: int) -> Tensor:
        """The tensor of that name; a DataError where it is absent or has another shape."""
        value = self._left.pop(name, None)
        if not isinstance(value, Tensor) or tuple(value.shape) != shape:
            found = f"of shape {tuple(value.shape)}" if isinstance(value, Tensor) else "absent"
            raise DataError(f"the weights are not those of {self.network}: {name} is {found}, and not of shape {shape}")
        return value

    def convolution(
        self, name: str, norm: str, inside: int, out: int, kernel: int = 1, stride: int = 1, groups: int = 1
    ) -> Convolution:
        """A convolution and the batch norm after it, folded in float64."""
        weight = self.take(f"{name}.weight", out, inside // groups, kernel, kernel).double()
        gain, shift, mean, variance = (
            self.take(f"{norm}.{part}", out).double() for part in ("weight", "bias", "running_mean", "running_var")
        )
        scale = gain / (variance + self.epsilon).sqrt()
        folded = (weight * scale[:, None, None, None]).float().contiguous(memory_format=torch.channels_last)
        return Convolution(folded, (shift - mean * scale).float(), stride, groups, self.symmetric)

    def check_all_taken(self) -> None:
        """A DataError where a tensor is left over."""
        if self._left:
            raise DataError(f"the weights are not those of {self.network}: {min(self._left)} is one too many")
