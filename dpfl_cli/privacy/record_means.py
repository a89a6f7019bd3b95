"""Bounded means over a client's records, which one record moves by its share.

Objectives make them of what they clipped record by record. That they did is a claim, which
`models.client_side` turns into a proof for dpfl's own models. Notation: m the public number of
records that a mean is over, C their clip norm.
"""

import math

import torch
from torch import Tensor

from dpfl_cli.config.errors import PrivacyError
from dpfl_cli.data.devices import on_device
from dpfl_cli.privacy.bounded import CLAIM, Bounded, bounded, contributions, per_run, public
from dpfl_cli.privacy.norms import to_ball


def record_mean(values: Tensor, clip_norm: Tensor, records: Tensor) -> Bounded:
    """Means over a client's records of one vector per record, each clipped to C.

    One record's vector moves within a ball of radius C and is divided by m: 2C / m when it is
    replaced, C / m when it is left out while the divisor stays m. A record whose vector is not
    finite counts as zero, which objectives see to (were the whole mean dropped for it, one record
    would move all of it).

    Args:
      values: [R, M, d] (1 / m_i) sum_j CLIP(v_ij, C); norm at most C.
      clip_norm: [R], C.
      records: [M] or [R, M], m_i, at least 1; public and fixed, whatever neighbour the client
        holds.
    """
    inside, bound = contributions(values, clip_norm, "record means")
    moved = _share(bound, records, inside)
    proof = "mean over m records of vectors clipped to C: 2C / m under replace_one, C / m otherwise"
    return bounded(inside, bound, moved + moved, moved, "record", proof + CLAIM)


def record_covariance(values: Tensor, clip_norm: Tensor, records: Tensor) -> Bounded:
    """Means over a client's records of x x^T with x clipped to C, as packed triangles.

    A record's matrix has the Frobenius norm ||x||^2 <= C^2, and
    ||x x^T - y y^T||_F^2 = ||x||^4 + ||y||^4 - 2 (x . y)^2 <= 2 C^4. So the mean, divided by the
    public m, moves by C^2 / m when a record is left out and by sqrt(2) C^2 / m when it is replaced.
    The upper triangle holds every entry of the matrix once: its norms and distances are no larger
    than Frobenius'.

    Args:
      values: [R, M, p (p + 1) / 2] upper triangles, row by row.
      clip_norm, records: as in `record_mean`.
    """
    inside, bound = contributions(values, clip_norm, "covariances")
    limit = bound.square()
    moved = _share(limit, records, inside)
    proof = (
        "mean over m records of x x^T, x clipped to C: sqrt(2) C^2 / m under replace_one, C^2 / m "
        "otherwise"
    )
    far = math.sqrt(2.0) * moved
    return bounded(inside, limit, far, moved, "record", proof + CLAIM)


def number_mean(values: Tensor, limit: Tensor, records: Tensor, factor: float = 1.0) -> Bounded:
    """Means over a client's records of one number per record, each clipped to [0, B].

    One record's number moves within [0, B] and is divided by m: B / m under every relation. A
    number that is not finite counts as B where it is too large, as 0 where it is none.

    Args:
      values: [R, M, n] client values, such as squared gradient norms; entries beyond a client's
        records are 0.
      limit: [R], B; public.
      records: [M] or [R, M], m_i, at least 1; public and fixed.
      factor: at least 1, on the sensitivity (a paper's looser constant).

    Returns:
      values [R, M].
    """
    inside, bound = contributions(values, limit, "numbers")
    if factor < 1:
        raise PrivacyError(f"a sensitivity is not made smaller by a factor of {factor}")
    numbers = inside.nan_to_num(0.0, posinf=torch.inf).clamp(min=0.0)
    numbers = torch.minimum(numbers, per_run(bound, numbers))
    moved = factor * _share(bound, records, inside)
    sums = _sums(numbers, records)
    mean = torch.minimum(sums / records.to(inside.dtype), bound.unsqueeze(-1))
    proof = "mean over m records of numbers clipped to [0, B]: B / m"
    return bounded(mean, bound, moved, moved, "record", proof + CLAIM)


def mean_clipped(mean: Bounded, clip_norm: Tensor, records: Tensor) -> Bounded:
    """A mean over records that was not clipped per record, clipped as a whole, with the claim that
    one record moves it by 2C / m.

    NOT private at that claim: one record can move the clipped mean by 2C. What some code does in
    place of clipping records; for diagnosis under dp.mode=paper.

    Args:
      mean: [R, M, d] as `record_mean` with an infinite clip norm.
      clip_norm: [R], C.
      records: [M] or [R, M], m.
    """
    own, bound = mean.checked(), clip_norm.to(mean.values.dtype)
    claimed = _share(bound, records, own)
    proof = "mean clipped as a whole, sensitivity as if records were clipped (claimed)"
    values = to_ball(own, per_run(bound, own))
    return bounded(values, bound, 2 * claimed, claimed, "record", proof, batch=mean.batch)


def _sums(numbers: Tensor, records: Tensor) -> Tensor:
    """[R, M] of numbers [R, M, n], for every run over the width of its own largest client: another
    width, as that of a run which is stacked with it, would be added in another order. (Of a GPU,
    which it would have to wait for, the sums are over the common width.)
    """
    widths = records.expand(numbers.shape[:2]).amax(dim=1)
    if numbers.device.type != "cpu" or bool((widths == numbers.shape[-1]).all()):
        return numbers.sum(dim=-1)
    each = zip(numbers, widths.long().tolist(), strict=True)
    return torch.stack([own[:, :width].contiguous().sum(dim=-1) for own, width in each])


def _share(limit: Tensor, records: Tensor, inside: Tensor) -> Tensor:
    """[R, M] limit / m."""
    public("the number of records that a mean is divided by", records)
    numbers = on_device(records, records.device, inside.dtype)
    return (limit.unsqueeze(-1) / numbers).expand(inside.shape[:2])
