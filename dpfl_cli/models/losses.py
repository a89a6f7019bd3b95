"""Losses l(z, t) of a record's outputs z and its target t, with their derivatives.

Records are the last axis, outputs the one before it. With outputs z [..., c, n] and targets [B, n]
of records, every loss has

- values [..., n];
- slopes [..., c, n], dl/dz, which may be written over z;
- bends [..., 1, n], d^2 l / dz^2 >= 0 of a loss of one output, which does not depend on t;
- a number, by which compiled code calls it, and a scale, a factor, which is 1 where it has none.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

CROSS_ENTROPY, LOGISTIC, SQUARED = range(3)


class CrossEntropy:
    """-ln p_t with p = softmax(z), for a class t."""

    number, scale = CROSS_ENTROPY, 1.0

    def values(self, z: Tensor, targets: Tensor) -> Tensor:
        chosen = z.gather(-2, _places(z, targets)).squeeze(-2)
        return torch.logsumexp(z, dim=-2) - chosen

    def slopes(self, z: Tensor, targets: Tensor) -> Tensor:
        """p - e_t, over z."""
        slopes = probabilities(z)
        places = _places(z, targets)
        return slopes.scatter_add_(-2, places, slopes.new_full((), -1.0).expand(places.shape))

    def bends(self, z: Tensor) -> Tensor:
        raise NotImplementedError


class Logistic:
    """ln(1 + exp(-y z)) for y = -1 or 1."""

    number, scale = LOGISTIC, 1.0

    def values(self, z: Tensor, targets: Tensor) -> Tensor:
        """max(0, -y z) + ln(1 + exp(-|y z|))."""
        margin = targets * z.squeeze(-2)
        return (-margin).clamp(min=0.0) + margin.abs().neg().exp().log1p()

    def slopes(self, z: Tensor, targets: Tensor) -> Tensor:
        """-y / (1 + exp(y z)); torch.sigmoid rounds by where an element lies."""
        y = targets.unsqueeze(-2)
        return -y / (y * z).exp_().add_(1.0)

    def bends(self, z: Tensor) -> Tensor:
        """1 / (2 + exp(z) + exp(-z))."""
        return (z.exp() + z.neg().exp()).add_(2.0).reciprocal_()


@dataclass(frozen=True)
class Squared:
    """scale (z - y)^2."""

    number = SQUARED
    scale: float

    def values(self, z: Tensor, targets: Tensor) -> Tensor:
        return self.scale * (z.squeeze(-2) - targets).square()

    def slopes(self, z: Tensor, targets: Tensor) -> Tensor:
        return z.sub_(targets.unsqueeze(-2)).mul_(2 * self.scale)

    def bends(self, z: Tensor) -> Tensor:
        return torch.full_like(z, 2 * self.scale)


Loss = CrossEntropy | Logistic | Squared


def right(loss: Loss, z: Tensor, targets: Tensor) -> Tensor:
    """[..., n] whether z stands for the class t: the largest output, or the sign of the only one
    (of class -1, where it is 0). Of equal outputs the first counts.
    """
    if isinstance(loss, Logistic):
        return (z.squeeze(-2) > 0) == (targets > 0)
    return z.max(dim=-2).indices == targets  # torch finds it there faster than by argmax


def probabilities(z: Tensor) -> Tensor:
    """softmax over the outputs z [..., c, n], in place; torch's own rounds by how its threads cut
    the stack.
    """
    return z.sub_(torch.logsumexp(z, dim=-2, keepdim=True)).exp_()


def _places(z: Tensor, targets: Tensor) -> Tensor:
    """[..., 1, n]."""
    return targets.unsqueeze(-2).expand(*z.shape[:-2], 1, -1)
