"""L2 norms that no bound is lost by: right in float32 where one entry hides thousands of others."""

import torch
from torch import Tensor

from dpfl_cli.privacy.client_values import ClientValues, client_values, of_cohort, opened

# float32 sums of squares no longer than this keep a norm to 4e-7 whatever the magnitudes
_BLOCK = 64


def vector_norms(values: Tensor) -> Tensor:
    """L2 norms over the last axis, in float64, right to 4e-7 also where one entry hides thousands
    of small ones.

    A plain float32 sum loses entries below half a unit of the running sum (2.5 % of the norm at
    d = 10^6, and by as much the ball would be left); blocks of 64 are summed in float32 and joined
    in float64, at no cost in time.

    Args:
      values: [..., d] plain values.

    Returns:
      [...] float64; infinite or NaN where the norm is not finite in the values' own type.
    """
    if values.dtype == torch.float64:
        return torch.linalg.vector_norm(values, dim=-1)
    whole = values.shape[-1] // _BLOCK * _BLOCK
    blocks = torch.linalg.vector_norm(values[..., :whole].unflatten(-1, (-1, _BLOCK)), dim=-1)
    rest = torch.linalg.vector_norm(values[..., whole:], dim=-1, keepdim=True)
    return torch.linalg.vector_norm(torch.cat((blocks, rest), dim=-1).double(), dim=-1)


def own_norms(values: Tensor) -> ClientValues:
    """[R, M] L2 norms of client values [R, M, d], which each client may know of its own."""
    norms = client_values(vector_norms(opened(values)))
    return of_cohort(norms, getattr(values, "cohort", None))


def to_ball(values: Tensor, limit: Tensor) -> Tensor:
    """v min(1, C / ||v||) over the last axis, of vectors with finite norms."""
    return scaled_to_ball(values, vector_norms(values).unsqueeze(-1), limit)


def scaled_to_ball(
    values: Tensor, norms: Tensor, limit: Tensor, usable: Tensor | None = None
) -> Tensor:
    """v min(1, C / ||v||) by given norms [..., 1]; zeros where a mask [..., 1] says so."""
    scale = torch.where(norms > limit, limit / norms, 1.0).to(values.dtype)
    inside = values * scale
    # nothing waits for a device
    if usable is not None and (usable.device.type != "cpu" or not usable.all()):
        return torch.where(usable, inside, 0.0)
    return inside
