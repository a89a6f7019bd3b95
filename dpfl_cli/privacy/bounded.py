"""Bounded values: what a release takes. Only clipping (and what is derived from it here) can make one.

The sensitivity of ONE privacy unit's contribution is derived here, where the bound is enforced, and travels with the
values; a mechanism reads it from there and nowhere else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from dpfl_cli.config.errors import PrivacyError
from dpfl_cli.privacy.client_values import ClientValues, client_values, opened

Relation = Literal["replace_one", "add_or_remove", "zero_out"]
Unit = Literal["client", "record"]
_MAKER = object()


@dataclass(frozen=True)
class Bounded:
    """One bounded contribution per client.

    Attributes:
      values: [R, M, d] vectors or [R, M] non-negative scalars.
      bound: [R], the largest norm (vectors) or value (scalars); infinite where nothing was clipped.
      replace_one: [R], the largest L2 distance between two values of one contribution.
      zero_out: [R], the largest L2 norm of one contribution (also the sensitivity under add_or_remove).
      unit: whose data one contribution is, or can change.
      proof: the line that says why the bound holds.
      repaired: [R] number of contributions that were not finite and were replaced by zero.
    """

    values: ClientValues
    bound: Tensor
    replace_one: Tensor
    zero_out: Tensor
    unit: Unit
    proof: str
    repaired: Tensor
    maker: object = None

    def __post_init__(self) -> None:
        if self.maker is not _MAKER:
            raise PrivacyError("bounded values are made by clipping only: use clip(values, clip_norm)")

    @property
    def is_vector(self) -> bool:
        return self.values.dim() == 3

    def sensitivity(self, relation: Relation) -> Tensor:
        """[R] L2 sensitivity of one contribution under a neighbouring relation."""
        return self.replace_one if relation == "replace_one" else self.zero_out


def clip(values: Tensor, clip_norm: Tensor) -> Bounded:
    """CLIP(v) = v min(1, C / ||v||), with 0 |-> 0, per client and run.

    Two clipped vectors lie in a ball of radius C, so they differ by at most 2C (replace_one); one differs from nothing
    by at most C (zero_out, add_or_remove). A value that is not finite (a local run that diverged) counts as zero: the map
    stays total, and its image stays in the ball.

    Args:
      values: [R, M, d] client values.
      clip_norm: [R], C; infinite to leave the values as they are.
    """
    inside = opened(values)
    norms = torch.linalg.vector_norm(inside, dim=-1, keepdim=True)
    finite = torch.isfinite(norms)
    bound = clip_norm.to(inside.dtype)
    limit = bound.reshape(-1, 1, 1)
    scale = torch.where(norms > limit, limit / norms, torch.ones_like(norms))
    clipped = torch.where(finite, inside * scale, torch.zeros_like(inside))
    return Bounded(
        values=client_values(clipped),
        bound=bound,
        replace_one=2 * bound,
        zero_out=bound,
        unit="client",
        proof="clipped to the ball of radius C: 2C under replace_one, C otherwise",
        repaired=(~finite).sum(dim=(1, 2)),
        maker=_MAKER,
    )


def squared_norms(vectors: Bounded) -> Bounded:
    """||v||^2 of bounded vectors: a number in [0, C^2], so C^2 under every relation.

    Returns:
      values [R, M].
    """
    if not vectors.is_vector:
        raise PrivacyError("squared norms are taken of bounded vectors [R, M, d]")
    values = opened(vectors.values).square().sum(dim=-1)
    bound = vectors.bound.square()
    return Bounded(
        values=client_values(values),
        bound=bound,
        replace_one=bound,
        zero_out=bound,
        unit=vectors.unit,
        proof="squared norm of a vector clipped to C: a number in [0, C^2]",
        repaired=torch.zeros_like(vectors.repaired),
        maker=_MAKER,
    )
