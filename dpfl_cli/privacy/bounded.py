"""Bounded values: what a release takes. Only clipping (and what is derived from it here) can make one.

The sensitivity of ONE privacy unit's contribution is derived here, where the bound is enforced, and travels with the
values; a mechanism reads it from there and nowhere else.
"""

from __future__ import annotations

import math
from dataclasses import InitVar, dataclass, field
from typing import Literal

import torch
from torch import Tensor

from dpfl_cli.config.errors import PrivacyError
from dpfl_cli.privacy.client_values import ClientValues, Diagnostic, Unreleased, client_values, diagnostic, opened, versions

Relation = Literal["replace_one", "add_or_remove", "zero_out"]
Unit = Literal["client", "record"]
_MAKER = object()
_NORM_BLOCK = 64  # float32 sums of squares no longer than this keep a norm to 4e-7 whatever the magnitudes


@dataclass(frozen=True)
class Bounded:
    """One bounded contribution per client.

    Attributes:
      values: [R, M, d] vectors or [R, M] non-negative scalars.
      bound: [R], the largest norm (vectors) or value (scalars); infinite where nothing was clipped.
      replace_one: [R], or [R, M] where clients differ: how far one privacy unit can move a contribution (L2) when it is replaced.
      zero_out: the same when it is left out or zeroed (also the sensitivity under add_or_remove).
      unit: whose data one contribution is, or can change.
      proof: the line that says why the bound holds.
      repaired: [R] number of contributions that were not finite and were replaced by zero; a diagnostic.
      quantity: what they are of the contributions that were clipped: "" themselves, or their "squared_norms".
    """

    values: ClientValues
    bound: Tensor
    replace_one: Tensor
    zero_out: Tensor
    unit: Unit
    proof: str
    repaired: Diagnostic
    quantity: Literal["", "squared_norms"] = ""
    maker: InitVar[object] = None  # not a field, so that dataclasses.replace cannot copy it
    _versions: tuple[int, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self, maker: object) -> None:
        if maker is not _MAKER:
            raise PrivacyError("bounded values are made by clipping only: use clip(values, clip_norm)")
        object.__setattr__(self, "_versions", self._current_versions())

    @property
    def is_vector(self) -> bool:
        return self.values.dim() == 3

    def sensitivity(self, relation: Relation) -> Tensor:
        """L2 sensitivity of one contribution under a neighbouring relation: [R], or [R, M] where clients differ."""
        return self.replace_one if relation == "replace_one" else self.zero_out

    def checked(self) -> Tensor:
        """The plain values, for a mechanism; a PrivacyError where values or bounds were changed in place since clipping.

        Seen by torch's version counters (tensors made in inference mode have none and are not checked).
        """
        if self._versions != self._current_versions():
            raise PrivacyError("bounded values were changed in place after clipping: clip the changed values instead")
        return opened(self.values)

    def _current_versions(self) -> tuple[int, ...]:
        return versions((self.values, self.bound, self.replace_one, self.zero_out))


def clip(values: Tensor, clip_norm: Tensor) -> Bounded:
    """CLIP(v) = v min(1, C / ||v||), with 0 |-> 0, per client and run.

    Two clipped vectors lie in a ball of radius C, so they differ by at most 2C (replace_one); one differs from nothing
    by at most C (zero_out, add_or_remove). A value that is not finite, or whose squared norm is not (a norm above 1.8e19 in
    float32, 1.3e154 in float64), is of a local run that diverged and counts as zero: the map stays total, and its image stays
    in the ball. Without a bound (C infinite) there is nothing to keep: a diverged run shows as what it is.

    Args:
      values: [R, M, d] client values.
      clip_norm: [R], C; infinite to leave the values as they are. Public: settings, or a function of past releases.
    """
    if isinstance(clip_norm, Unreleased) or isinstance(values, Diagnostic):
        raise PrivacyError(
            "clip takes client values and a public clip norm: a setting, or computed from releases, never from client values or "
            "diagnostics"
        )
    inside = opened(values)
    if inside.dim() != 3 or clip_norm.shape != inside.shape[:1]:
        raise PrivacyError(
            f"clip takes values [runs, clients, d] and one clip norm a run, not {list(inside.shape)} and {list(clip_norm.shape)}"
        )
    norms = vector_norms(inside).unsqueeze(-1)
    finite = norms <= math.sqrt(torch.finfo(inside.dtype).max)  # false for NaN
    bound = clip_norm.to(inside.dtype)
    limit = bound.reshape(-1, 1, 1)
    scale = torch.where(norms > limit, limit / norms, torch.ones_like(norms))
    clipped = torch.where(finite | torch.isinf(limit), inside * scale.to(inside.dtype), 0.0)
    return Bounded(
        values=client_values(clipped),
        bound=bound,
        replace_one=2 * bound,
        zero_out=bound,
        unit="client",
        proof="clipped to the ball of radius C: 2C under replace_one, C otherwise",
        repaired=diagnostic((~finite).sum(dim=(1, 2))),
        maker=_MAKER,
    )


def squared_norms(vectors: Bounded) -> Bounded:
    """||v||^2 of bounded vectors: a number in [0, C^2], so C^2 under every relation.

    Returns:
      values [R, M].
    """
    if not vectors.is_vector:
        raise PrivacyError("squared norms are taken of bounded vectors [R, M, d]")
    bound = vectors.bound.square()
    # a clipped vector's norm may pass C by rounding; the number may not pass C^2
    values = torch.minimum(vectors.checked().square().sum(dim=-1), bound.unsqueeze(-1))
    return Bounded(
        values=client_values(values),
        bound=bound,
        replace_one=bound,
        zero_out=bound,
        unit=vectors.unit,
        proof="squared norm of a vector clipped to C: a number in [0, C^2]",
        repaired=diagnostic(torch.zeros_like(opened(vectors.repaired))),
        quantity="squared_norms",
        maker=_MAKER,
    )


def record_mean(values: Tensor, clip_norm: Tensor, records: Tensor) -> Bounded:
    """Means over a client's records of one vector per record, each clipped to C; what objectives make of clipped gradients.

    One record's vector moves within a ball of radius C and is divided by m, the public number of records that the mean is over:
    2C / m when it is replaced, C / m when it is left out while the divisor stays m. A record whose vector is not finite counts as
    zero, which objectives see to (were the whole mean dropped for it, one record would move all of it).

    Args:
      values: [R, M, d] (1 / m_i) sum_j CLIP(v_ij, C); norm at most C.
      clip_norm: [R], C.
      records: [M] or [R, M], m_i, at least 1; public and fixed, whatever neighbour the client holds.
    """
    if isinstance(clip_norm, Unreleased) or isinstance(records, Unreleased) or isinstance(values, Diagnostic):
        raise PrivacyError("the clip norm and the number of records that a mean is divided by are public, never client values")
    inside = opened(values)
    bound = clip_norm.to(inside.dtype)
    if inside.dim() != 3 or bound.shape != inside.shape[:1]:
        raise PrivacyError(f"record means are [runs, clients, d] with one clip norm a run, not {list(inside.shape)}")
    moved = (bound.unsqueeze(-1) / records.to(inside.dtype)).expand(inside.shape[:2])
    return Bounded(
        values=client_values(inside),
        bound=bound,
        replace_one=2 * moved,
        zero_out=moved,
        unit="record",
        proof="mean over m records of vectors clipped to C: 2C / m under replace_one, C / m otherwise",
        repaired=diagnostic(torch.zeros_like(bound)),
        maker=_MAKER,
    )


def vector_norms(values: Tensor) -> Tensor:
    """L2 norms over the last axis, in float64, right to 4e-7 also where one entry hides thousands of small ones.

    A plain float32 sum loses entries below half a unit of the running sum (2.5 % of the norm at d = 10^6, and by as much
    the ball would be left); blocks of 64 are summed in float32 and joined in float64, at no cost in time.

    Args:
      values: [..., d] plain values.

    Returns:
      [...] float64; infinite or NaN where the norm is not finite in the values' own type.
    """
    if values.dtype == torch.float64:
        return torch.linalg.vector_norm(values, dim=-1)
    whole = values.shape[-1] // _NORM_BLOCK * _NORM_BLOCK
    blocks = torch.linalg.vector_norm(values[..., :whole].unflatten(-1, (-1, _NORM_BLOCK)), dim=-1)
    rest = torch.linalg.vector_norm(values[..., whole:], dim=-1, keepdim=True)
    return torch.linalg.vector_norm(torch.cat((blocks, rest), dim=-1).double(), dim=-1)
