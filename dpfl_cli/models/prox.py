"""Non-smooth parts g of a problem min_x (1/M) sum_i f_i(x) + g(x), by their values and proximal
operators.

Every g: R^d -> R is convex and has a domain outside of which it is infinite (an indicator). Of
points [..., d], `value` [...] is meant on the domain; `prox`, argmin_u g(u) + ||u - v||^2 / (2
step) with a positive step that broadcasts against them, always lands in it.

References:
  Parikh, Boyd, "Proximal Algorithms", 2014, sections 2 and 6.
  Zhang, Fay, Johansson, "Dynamic Privacy Allocation for Locally Differentially Private Federated
  Learning with Composite Objectives", 2023, arXiv:2308.01139, section 5.2 (the weighted l1 norm on
  a box).
"""

from dataclasses import dataclass
from math import inf
from typing import Literal

import torch
from pydantic import NonNegativeFloat, PositiveFloat
from torch import Tensor

from dpfl_cli.config.component import Settings


@dataclass(frozen=True)
class L1Box:
    """g(x) = weight ||x||_1 where every |x_j| <= bound; 0 everywhere by default.

    Attributes:
      weight: omega >= 0.
      bound: alpha > 0.
    """

    weight: float = 0.0
    bound: float = inf

    def value(self, x: Tensor) -> Tensor:
        return self.weight * x.abs().sum(dim=-1)

    def prox(self, v: Tensor, step: Tensor | float) -> Tensor:
        """sign(v_j) min(max(|v_j| - step omega, 0), alpha): the threshold first, then the box."""
        if not self.weight:
            return v if self.bound == inf else v.clamp(-self.bound, self.bound)
        return (v.abs() - step * self.weight).clamp(0.0, self.bound) * v.sign()


@dataclass(frozen=True)
class Ball:
    """g(x) = 0 where ||x|| <= radius."""

    radius: float

    def value(self, x: Tensor) -> Tensor:
        return x.new_zeros(x.shape[:-1])

    def prox(self, v: Tensor, step: Tensor | float) -> Tensor:
        """The projection onto the ball."""
        norm = torch.linalg.vector_norm(v, dim=-1, keepdim=True)
        return v * torch.clamp(self.radius / norm, max=1.0)


Penalty = L1Box | Ball


class PenaltySettings(Settings):
    """The settings of a model that say what g is."""

    penalty: Literal["none", "l1_box", "box", "ball"]
    l1_weight: NonNegativeFloat  # omega
    box: PositiveFloat  # alpha
    radius: PositiveFloat


def penalty_of(settings: Settings) -> Penalty:
    """g; 0 where settings say nothing of it."""
    if not isinstance(settings, PenaltySettings):
        return L1Box()
    weight = settings.l1_weight if settings.penalty == "l1_box" else 0.0
    if settings.penalty in ("l1_box", "box"):
        return L1Box(weight, settings.box)
    return Ball(settings.radius) if settings.penalty == "ball" else L1Box()
