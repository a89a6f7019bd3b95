"""Bounded values: what a release takes. Clipping makes them, here and in `record_bounds`.

The sensitivity of ONE privacy unit's contribution is derived where the bound is enforced, and
travels with the values; a mechanism reads it from there and nowhere else.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from dpfl_cli.config.errors import ConfigError, PrivacyError
from dpfl_cli.data.devices import on_device
from dpfl_cli.privacy.client_values import (
    ClientValues,
    Diagnostic,
    Unreleased,
    client_values,
    diagnostic,
    of_cohort,
    opened,
    refuse_outside_releases,
    versions,
)
from dpfl_cli.privacy.draws import Batch, Cohort

GIVEN: Literal["given"] = "given"  # a batch of records whose numbers a method chose
OfRecords = Batch | Literal["given"] | None
Relation = Literal["replace_one", "add_or_remove", "zero_out"]
Unit = Literal["client", "record"]
Reasons = str | Mapping[int, str] | None  # of all runs, or by run
CLAIM = ", as whoever computed it says"  # of bounds that are proved once a model vouches for them
_BLOCK = 64  # float32 sums of so few squares keep a norm to 4e-7 whatever the magnitudes
# of bounds: squares that would show that a record exceeds a smaller one are lost; sums overflow
SMALLEST_BOUND = {torch.float32: 9e-10, torch.float64: 1e-10}
LARGEST_BOUND = {torch.float32: 1e15, torch.float64: 1e100}
BALL = "clipped to the ball of radius C: 2C under replace_one, C otherwise"


@dataclass(frozen=True, init=False)
class Bounded:
    """One bounded contribution per client.

    Attributes:
      values: [R, M, d] vectors or [R, M] non-negative scalars.
      bound: [R], the largest norm (vectors) or value (scalars); infinite where nothing was clipped.
      replace_one: [R], or [R, M] where clients differ: how far one privacy unit can move a
        contribution (L2) when it is replaced.
      zero_out: the same when it is left out or zeroed (also the sensitivity under add_or_remove).
      unit: whose data one contribution is, or can change.
      proof: the line that says why the bound holds.
      quantity: of the contributions that were clipped: "", or their "squared_norms".
      claims: run -> why its bound is only claimed, which a mechanism refuses under dp.mode=sound.
      source: what tells these contributions from all others; what is derived of them shares it.
      batch: the records that they are of, as they were drawn, or `GIVEN` by a method; None: all.
      shape, dtype: of the vectors or scalars.
    """

    values: ClientValues
    bound: Tensor
    replace_one: Tensor
    zero_out: Tensor
    unit: Unit
    proof: str
    quantity: Literal["", "squared_norms"]
    claims: Mapping[int, str]
    source: object
    batch: OfRecords
    shape: tuple[int, ...]
    dtype: torch.dtype
    _repaired: Tensor | None = field(repr=False)  # None: none were
    _versions: tuple[int, ...] = field(repr=False, compare=False)

    def __init__(self, *_: object, **__: object) -> None:  # nor does dataclasses.replace copy one
        raise PrivacyError("bounded values are made by clipping only: use clip(values, clip_norm)")

    @property
    def cohort(self) -> Cohort | None:
        """Those whose contributions they are; None where all clients take part."""
        return self.values.cohort

    @property
    def repaired(self) -> Diagnostic:
        """[R] how many contributions were not finite and were replaced by zero."""
        own = self._repaired
        return diagnostic(torch.zeros_like(self.bound) if own is None else own)

    @property
    def proved(self) -> bool:
        """Whether the bound is proved, in all runs."""
        return not self.claims

    @property
    def is_vector(self) -> bool:
        return len(self.shape) == 3

    def sensitivity(self, relation: Relation) -> Tensor:
        """L2 sensitivity of one contribution under a neighbouring relation: [R], or [R, M] where
        clients differ. Where a record is gone, a batch of one size holds another one in its place.
        """
        law = self.batch.law if isinstance(self.batch, Batch) else self.batch
        refilled = relation == "add_or_remove" and law not in (None, "poisson")
        return self.replace_one if refilled or relation == "replace_one" else self.zero_out

    def check(self) -> None:
        """A PrivacyError where values or bounds were changed in place since clipping, by torch's
        version counters (which tensors made in inference mode lack).
        """
        if self._versions != self._current_versions():
            raise PrivacyError(
                "bounded values were changed in place after clipping: clip what it became instead"
            )

    def checked(self) -> Tensor:
        """The plain values, for a mechanism, after `check`."""
        refuse_outside_releases()
        self.check()
        return opened(self.values)

    def _current_versions(self) -> tuple[int, ...]:
        return versions((self.values, self.bound, self.replace_one, self.zero_out))


def bounded(
    values: Tensor,
    bound: Tensor,
    replace_one: Tensor,
    zero_out: Tensor,
    unit: Unit,
    proof: str,
    *,
    repaired: Tensor | None = None,
    batch: OfRecords = None,
    cohort: Cohort | None = None,
    claims: Mapping[int, str] = {},
) -> Bounded:
    """The one constructor, of plain tensors. The bound is a claim: what proves one is in here."""
    return _made(
        values=of_cohort(client_values(values), cohort),
        bound=bound,
        replace_one=replace_one,
        zero_out=zero_out,
        unit=unit,
        proof=proof,
        _repaired=repaired,
        quantity="",
        claims=MappingProxyType(dict.fromkeys(range(len(bound)), proof) | {**claims}),
        source=object(),
        batch=batch,
        shape=values.shape,
        dtype=values.dtype,
    )


def _made(**attributes: Any) -> Bounded:
    """Bounded values with these attributes."""
    found = object.__new__(Bounded)
    vars(found).update(attributes)
    vars(found)["_versions"] = found._current_versions()
    return found


def _changed(values: Bounded, /, **changes: Any) -> Bounded:
    """Bounded values with other attributes."""
    return _made(**vars(values) | changes)


def _derived(values: Bounded, inside: Tensor, **changes: Any) -> Bounded:
    """What was computed here of bounded values, with what that changes; the proof carries over."""
    marked = of_cohort(client_values(inside), values.cohort)
    return _changed(values, values=marked, shape=inside.shape, dtype=inside.dtype, **changes)


def claimed(values: Bounded, inside: Tensor) -> Bounded:
    """Other contributions, of which somebody says that the bound holds for them too."""
    everywhere = dict.fromkeys(range(len(inside)), values.proof)
    return _derived(values, inside, claims=MappingProxyType(everywhere))


def public(what: str, *numbers: Tensor) -> None:
    """Refuses bounds, divisors and the like that are client values, or computed from them."""
    if any(isinstance(one, Unreleased) for one in numbers):
        raise PrivacyError(
            f"{what} must be public: a setting, or computed from releases, never from client "
            "values or diagnostics"
        )


def contributions(values: Tensor, limit: Tensor, what: str = "vectors") -> tuple[Tensor, Tensor]:
    """The plain [R, M, n] inside client values, and [R] the public limit of their type."""
    if not isinstance(limit, Tensor):
        raise ConfigError(
            f"a bound of {what} is no tensor: it must be one [R], a number for every run, as "
            "options of type Bound are: self.hyper.clip_norm"
        )
    public("a bound", limit)
    inside = opened(values)
    if isinstance(values, Diagnostic) or inside.dim() != 3 or limit.shape != inside.shape[:1]:
        raise PrivacyError(
            f"{what} to be bounded are client values [runs, clients, n] with one bound a run, not "
            f"{type(values).__name__} {list(inside.shape)} and {list(limit.shape)}"
        )
    if inside.dtype not in (torch.float32, torch.float64):
        raise PrivacyError(
            f"{what} to be bounded are float32 or float64, not {inside.dtype}: its norms are so "
            "coarse that the bound would be passed"
        )
    return inside, on_device(limit, limit.device, inside.dtype)


def clip(values: Tensor, clip_norm: Tensor) -> Bounded:
    """CLIP(v) = v min(1, C / ||v||), with 0 |-> 0, per client and run.

    Two clipped vectors lie in a ball of radius C: 2C apart at most (replace_one), C from nothing
    (zero_out, add_or_remove). A value that is not finite, or whose squared norm is not (above
    1.8e19 in float32, 1.3e154 in float64), is of a local run that diverged and counts as zero: the
    map stays total, and its image in the ball. Without a bound (C infinite) it shows as it is.

    Args:
      values: [R, M, d] client values; what becomes of them afterwards changes nothing.
      clip_norm: [R], C; infinite to leave the values as they are. Public: settings, or a function
        of past releases.
    """
    inside, bound = contributions(values, clip_norm)
    return _clipped(values, inside, vector_norms(inside), bound, BALL)


def clip_symmetric(values: Tensor, clip_norm: Tensor) -> Bounded:
    """Symmetric matrices clipped to the Frobenius norm C, A min(1, C / ||A||_F), as packed upper
    triangles, which hold every entry once: bounds, and what is not finite, are as in `clip`.

    Args:
      values: [R, M, p (p + 1) / 2] client values, upper triangles, row by row.
      clip_norm: [R], C, as in `clip`.
    """
    triangle, bound = contributions(values, clip_norm, "packed symmetric matrices")
    size = math.isqrt(2 * values.shape[-1])
    if size * (size + 1) != 2 * values.shape[-1]:
        raise PrivacyError(
            "symmetric matrices are packed as [runs, clients, p (p + 1) / 2], not "
            f"{list(values.shape)}"
        )
    row = torch.arange(size, device=triangle.device)
    diagonal = row * (2 * size - row + 1) // 2
    own = vector_norms(triangle.index_select(-1, diagonal)).square()
    # every entry beside the diagonal stands for two; a triangle's own norm is at most the matrix's
    norms = (2 * vector_norms(triangle).square() - own).clamp(min=0.0).sqrt()
    proof = "clipped to the Frobenius norm C: 2C under replace_one, C otherwise"
    return _clipped(values, triangle, norms, bound, proof)


def _clipped(values: Tensor, inside: Tensor, lengths: Tensor, bound: Tensor, proof: str) -> Bounded:
    """`clip` of what is inside client values by given norms, float64 [R, M], which no two values'
    distance and no value's L2 norm exceed.
    """
    norms, limit = lengths.unsqueeze(-1), per_run(bound, inside)
    finite = norms <= math.sqrt(torch.finfo(inside.dtype).max)  # false for NaN
    found = bounded(
        scaled_to_ball(inside, norms, limit, finite | torch.isinf(limit)),
        bound,
        2 * bound,
        bound,
        "client",
        proof,
        repaired=(~finite).sum(dim=(1, 2)),
        cohort=getattr(values, "cohort", None),
    )
    return _changed(found, claims=MappingProxyType({}))


def squared_norms(vectors: Bounded) -> Bounded:
    """[R, M] ||v||^2 of bounded vectors: a number in [0, C^2], so C^2 under every relation."""
    if not vectors.is_vector:
        raise PrivacyError("squared norms are taken of bounded vectors [R, M, d]")
    bound = vectors.bound.square()
    # a clipped vector's norm may pass C by rounding; the number may not pass C^2
    values = torch.minimum(vectors.checked().square().sum(dim=-1), bound.unsqueeze(-1))
    return _derived(
        vectors,
        values,
        bound=bound,
        replace_one=bound,
        zero_out=bound,
        proof="squared norm of a vector clipped to C: a number in [0, C^2]",
        quantity="squared_norms",
    )


def scaled(values: Bounded, factors: Tensor) -> Bounded:
    """Bounded values times public numbers; bounds and sensitivities grow with them.

    Args:
      factors: [R] or [R, M]; public.
    """
    public("what bounded values are multiplied by", factors)
    if values.quantity:
        raise PrivacyError("squared norms are not scaled: scale the vectors that they are of")
    inside = values.checked()
    numbers = per_run(factors, inside[..., 0] if values.is_vector else inside)
    numbers = numbers.expand(inside.shape[:2])
    sizes = numbers.abs()
    replaced, left_out = (
        per_run(one, sizes) * sizes for one in (values.replace_one, values.zero_out)
    )
    return _derived(
        values,
        inside * per_run(numbers, inside),
        bound=values.bound * sizes.amax(dim=1),
        replace_one=replaced,
        zero_out=left_out,
        proof=f"{values.proof}; times public numbers",
        source=object(),
    )


def as_computed(
    values: Bounded, why_not: Reasons, batch: Batch | Tensor | None, counts_public: bool = True
) -> Bounded:
    """What a model made of its records by `record_bounds`: proved, unless there is a reason not to.

    For `models.client_side` only, which knows at which points the model computed, and on which
    records. Where numbers of records are private, so are sensitivities, which are C over them.
    """
    values.check()
    if not counts_public:
        unknown = torch.full_like(values.bound, torch.inf)
        values = _changed(values, replace_one=unknown, zero_out=unknown)
    if isinstance(why_not, str):
        why_not = dict.fromkeys(range(len(values.bound)), why_not)
    left = {k: why for k, why in values.claims.items() if CLAIM not in why} | {**(why_not or {})}
    proof, claims = values.proof.replace(CLAIM, ""), MappingProxyType(left)
    own = GIVEN if isinstance(batch, Tensor) else batch
    return _changed(values, proof=proof, claims=claims, batch=own)


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


def with_lost(norms: Tensor, size: int, dtype: torch.dtype) -> Tensor:
    """Norms of vectors of so many entries of this type, which no vector exceeds: with what squares
    below the smallest normal number may have lost, where that shows.
    """
    lost = 2 * math.sqrt(size * torch.finfo(dtype).tiny)
    return torch.where(norms < 1e3 * lost, norms + lost, norms)


def own_norms(values: Tensor) -> ClientValues:
    """[R, M] L2 norms of client values [R, M, d], which each client may know of its own."""
    norms = client_values(vector_norms(opened(client_values(values))))
    return of_cohort(norms, getattr(values, "cohort", None))


def to_ball(values: Tensor, limit: Tensor) -> Tensor:
    """v min(1, C / ||v||) over the last axis, of vectors with finite norms."""
    return scaled_to_ball(values, vector_norms(values).unsqueeze(-1), limit)


def scaled_to_ball(
    values: Tensor, norms: Tensor, limit: Tensor, usable: Tensor | None = None
) -> Tensor:
    """v min(1, C / ||v||) by given norms [..., 1]; zeros where a mask [..., 1] says so."""
    norms = with_lost(norms, values.shape[-1], values.dtype)
    scale = torch.where(norms > limit, limit / norms, 1.0).to(values.dtype)
    inside = values * scale
    # nothing waits for a device
    if usable is not None and (usable.device.type != "cpu" or not usable.all()):
        return torch.where(usable, inside, 0.0)
    return inside


def per_run(numbers: Tensor | np.ndarray, like: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """[R] or [R, M] numbers, shaped and typed to multiply values [R, ...] or [R, M, ...]."""
    numbers = on_device(numbers, like.device, dtype or like.dtype)
    missing = like.dim() - numbers.dim()
    return numbers.reshape(*numbers.shape, *(1,) * missing) if missing else numbers
