"""Bounded values: what a release takes. Only clipping (and what is derived from it here) can make one.

The sensitivity of ONE privacy unit's contribution is derived here, where the bound is enforced, and travels with the
values; a mechanism reads it from there and nowhere else.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import InitVar, dataclass, field
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from dpfl_cli.config.errors import PrivacyError
from dpfl_cli.data.devices import on_device
from dpfl_cli.privacy.client_values import ClientValues, Diagnostic, Unreleased, client_values, diagnostic, opened, versions

Relation = Literal["replace_one", "add_or_remove", "zero_out"]
Unit = Literal["client", "record"]
Side = Literal["project", "clip_auxiliary", "xi"]
Constant = Literal["tight", "paper", "xi_safe"]
_MAKER = object()
_BITS = {torch.float64: torch.int64, torch.float32: torch.int32}
_ORDINARY = 1e-100, 1e100  # lengths whose squares neither vanish nor overflow
_NORM_BLOCK = 64  # float32 sums of squares no longer than this keep a norm to 4e-7 whatever the magnitudes


@dataclass(frozen=True)
class Bounded:
    """One bounded contribution per client.

    What clipping gives is kept as the vectors that it was given and one factor per client, so that a mechanism that goes over the
    vectors anyway multiplies on the way (`factored`); the products are made when somebody asks for `values`.

    Attributes:
      raw: [R, M, d] vectors or [R, M] non-negative scalars, before any factors.
      factors: [R, M, 1] which the vectors are to be multiplied by, of their type; NaN where a vector counts as zero. None: 1.
      lengths: [R, M] float64 norms of `raw`, if they are kept, so that `norms` takes no look at the vectors.
      bound: [R], the largest norm (vectors) or value (scalars); infinite where nothing was clipped.
      replace_one: [R], or [R, M] where clients differ: how far one privacy unit can move a contribution (L2) when it is replaced.
      zero_out: the same when it is left out or zeroed (also the sensitivity under add_or_remove).
      unit: whose data one contribution is, or can change.
      proof: the line that says why the bound holds.
      repaired: [R] number of contributions that were not finite and were replaced by zero; a diagnostic.
      quantity: what they are of the contributions that were clipped: "" themselves, or their "squared_norms".
      proved: whether the bound is proved, or only claimed in a paper; a mechanism refuses the latter under dp.mode=sound.
    """

    raw: ClientValues
    bound: Tensor
    replace_one: Tensor
    zero_out: Tensor
    unit: Unit
    proof: str
    repaired: Diagnostic
    quantity: Literal["", "squared_norms"] = ""
    proved: bool = True
    factors: ClientValues | None = None
    lengths: ClientValues | None = None
    maker: InitVar[object] = None  # not a field, so that dataclasses.replace cannot copy it
    _versions: dict[str, tuple[int, ...]] = field(init=False, repr=False, compare=False)

    def __post_init__(self, maker: object) -> None:
        if maker is not _MAKER:
            raise PrivacyError("bounded values are made by clipping only: use clip(values, clip_norm)")
        object.__setattr__(self, "_versions", {"parts": self._current_versions()})

    @cached_property
    def values(self) -> ClientValues:
        """[R, M, d] or [R, M], the contributions."""
        if self.factors is None:
            return self.raw
        self.check()
        found = client_values(_products(opened(self.raw), opened(self.factors)))
        self._versions["values"] = versions((found,))
        return found

    @property
    def shape(self) -> torch.Size:
        """Of the values."""
        return self.raw.shape

    @property
    def is_vector(self) -> bool:
        return self.raw.dim() == 3

    def sensitivity(self, relation: Relation) -> Tensor:
        """L2 sensitivity of one contribution under a neighbouring relation: [R], or [R, M] where clients differ."""
        return self.replace_one if relation == "replace_one" else self.zero_out

    def check(self) -> None:
        """A PrivacyError where values or bounds were changed in place since clipping.

        Seen by torch's version counters (tensors made in inference mode have none and are not checked).
        """
        made = self._versions.get("values")
        if self._versions["parts"] != self._current_versions() or (made is not None and made != versions((self.values,))):
            raise PrivacyError("bounded values were changed in place after clipping: clip the changed values instead")

    def checked(self) -> Tensor:
        """The plain values, for a mechanism, after `check`."""
        self.check()
        return opened(self.values)

    def factored(self) -> tuple[Tensor, Tensor | None]:
        """The plain values as `raw` and `factors`, for a mechanism that multiplies on its way, after `check`."""
        self.check()
        return opened(self.raw), None if self.factors is None else opened(self.factors)

    def norms(self) -> ClientValues:
        """[R, M] float64 L2 norms of the vectors as they are, which a clipped one's may pass C by rounding."""
        self.check()
        if self.lengths is not None:
            if self.factors is None:
                return self.lengths
            factors = opened(self.factors).squeeze(-1).double().abs()
            # NaN, of what counts as zero, is no number at least 0
            return client_values(torch.where(factors >= 0, factors * opened(self.lengths), 0.0))
        if self.factors is None or "values" in self.__dict__:
            return own_norms(self.values)
        raw, factors = opened(self.raw), opened(self.factors)
        return client_values(vector_norms(raw * factors).masked_fill_(factors.squeeze(-1).isnan(), 0.0))

    def _current_versions(self) -> tuple[int, ...]:
        parts = (self.raw, self.bound, self.replace_one, self.zero_out, self.factors, self.lengths)
        return versions([part for part in parts if part is not None])


class Rows:
    """Vectors that do not change from round to round, with their lengths, taken here and once: what `clip_multiples` multiplies.

    They are kept, not copied; once torch has changed them in place, through whatever view of its own, nothing is made of them any
    more (what writes to their memory past torch, as numpy can, is not seen: nobody but the objective holds them).

    Args:
      table: [F, M, d] plain vectors of the clients of F federations.
      index: R numbers below F: which federation each run uses.
    """

    __slots__ = ("__lengths", "__vectors", "__versions")

    def __init__(self, table: Tensor, index: Sequence[int]) -> None:
        if table.dim() != 3 or isinstance(table, Unreleased) or not all(0 <= number < len(table) for number in index):
            raise PrivacyError(f"rows are [federations, clients, d] with one federation a run, not {list(table.shape)}")
        vectors, runs = table, list(index)
        lengths = _certain_norms(vectors)
        self.__lengths = client_values(lengths[runs])
        if len(table) == 1:
            vectors = vectors.expand(len(runs), -1, -1)
        elif runs != list(range(len(table))):
            vectors = vectors[runs]
        self.__vectors = client_values(vectors)
        self.__versions = versions((vectors, self.__lengths))

    def checked(self) -> tuple[ClientValues, ClientValues]:
        """The vectors [R, M, d] and their lengths [R, M], float64; a PrivacyError where either was changed in place."""
        if self.__versions != versions((self.__vectors, self.__lengths)):
            raise PrivacyError("rows were changed in place after their lengths were taken: make new ones of the changed rows")
        return self.__vectors, self.__lengths


def clip(values: Tensor, clip_norm: Tensor) -> Bounded:
    """CLIP(v) = v min(1, C / ||v||), with 0 |-> 0, per client and run.

    Two clipped vectors lie in a ball of radius C, so they differ by at most 2C (replace_one); one differs from nothing
    by at most C (zero_out, add_or_remove). A value that is not finite, or whose squared norm is not (a norm above 1.8e19 in
    float32, 1.3e154 in float64), is of a local run that diverged and counts as zero: the map stays total, and its image stays
    in the ball. Without a bound (C infinite) there is nothing to keep: a diverged run shows as what it is.

    Args:
      values: [R, M, d] client values; kept, not copied, so that no release takes them once they are changed in place.
      clip_norm: [R], C; infinite to leave the values as they are. Public: settings, or a function of past releases.
    """
    norms = vector_norms(opened(values)) if values.dim() == 3 else values
    return _clipped(values, norms, clip_norm, "clipped to the ball of radius C: 2C under replace_one, C otherwise")


def clip_multiples(coefficients: Tensor, rows: Rows, clip_norm: Tensor) -> Bounded:
    """CLIP(a x), as `clip`, of vectors that are numbers a times rows x, without making them.

    Since ||a x|| = |a| ||x||, the clipped vector is sign(a) min(|a|, C / ||x||) x: one number per client, from lengths that were
    taken once. It counts as zero, unless C is infinite, where |a| ||x|| is none that `clip` would take.

    Args:
      coefficients: [R, M] client values a, of the rows' type.
      clip_norm: [R], C, as in `clip`.
    """
    if isinstance(clip_norm, Unreleased) or isinstance(coefficients, Diagnostic) or type(rows) is not Rows:
        raise PrivacyError(
            "clip_multiples takes client values, rows and a public clip norm: a setting, or computed from releases"
        )
    vectors, lengths = rows.checked()
    inside, long = opened(coefficients), opened(lengths)
    if inside.shape != vectors.shape[:2] or inside.dtype != vectors.dtype or clip_norm.shape != inside.shape[:1]:
        raise PrivacyError(
            f"clip_multiples takes numbers [runs, clients] for rows {list(vectors.shape)} and one clip norm a run, "
            f"not {list(inside.shape)} and {list(clip_norm.shape)}"
        )
    bound = clip_norm.to(inside.dtype)
    limit, sizes = bound.unsqueeze(-1), inside.double().abs()
    finite = sizes * long <= math.sqrt(torch.finfo(inside.dtype).max)  # false for NaN
    clipped = torch.minimum(sizes, limit / long).to(inside.dtype).copysign_(inside)
    # without a bound what is no number shows as what it is: a factor of NaN would stand for zero
    free = inside.nan_to_num(nan=torch.inf, posinf=torch.inf, neginf=-torch.inf)
    factors = torch.where(torch.isinf(limit), free, torch.where(finite, clipped, torch.nan))
    return Bounded(
        raw=vectors,
        factors=client_values(factors.unsqueeze(-1)),
        lengths=lengths,
        bound=bound,
        replace_one=2 * bound,
        zero_out=bound,
        unit="client",
        proof="clipped to the ball of radius C: 2C under replace_one, C otherwise",
        repaired=diagnostic((~finite).sum(dim=1)),
        maker=_MAKER,
    )


def runs_of_either(first: Tensor, one: Bounded, other: Bounded) -> Bounded:
    """Some runs' contributions of one kind, and the other runs' of another; each run keeps its own bound and norms.

    Args:
      first: [R] of booleans, public: the runs that are taken from `one`.
      one, other: vectors [R, M, d] of the same unit, as `clip` makes them.
    """
    alike = one.shape == other.shape and (one.unit, one.quantity, one.proved) == (other.unit, other.quantity, other.proved)
    plain = all(part.is_vector and part.replace_one.dim() == 1 for part in (one, other))
    if isinstance(first, Unreleased) or not (alike and plain) or first.shape != one.shape[:1] or first.dtype != torch.bool:
        raise PrivacyError("runs are chosen by public booleans, one a run, from bounded vectors of the same kind and shape")
    return Bounded(
        raw=client_values(torch.where(first.reshape(-1, 1, 1), one.checked(), other.checked())),
        lengths=client_values(torch.where(first.unsqueeze(-1), opened(one.norms()), opened(other.norms()))),
        bound=torch.where(first, one.bound, other.bound),
        replace_one=torch.where(first, one.replace_one, other.replace_one),
        zero_out=torch.where(first, one.zero_out, other.zero_out),
        unit=one.unit,
        proof=one.proof if one.proof == other.proof else f"{one.proof}; or {other.proof}",
        repaired=diagnostic(torch.where(first, opened(one.repaired), opened(other.repaired))),
        proved=one.proved,
        maker=_MAKER,
    )


def _clipped(values: Tensor, lengths: Tensor, clip_norm: Tensor, proof: str) -> Bounded:
    """`clip` by given norms, float64 [R, M], which no two values' distance and no value's L2 norm exceed."""
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
    norms = lengths.unsqueeze(-1)
    finite = norms <= math.sqrt(torch.finfo(inside.dtype).max)  # false for NaN
    bound = clip_norm.to(inside.dtype)
    limit = bound.reshape(-1, 1, 1)
    scale = torch.where(norms > limit, limit / norms, torch.ones_like(norms))
    # what is not finite counts as zero, whatever its product with the scale is
    factors = scale.to(inside.dtype).masked_fill_(~(finite | torch.isinf(limit)), torch.nan)
    return Bounded(
        raw=client_values(inside),
        factors=client_values(factors),
        bound=bound,
        replace_one=2 * bound,
        zero_out=bound,
        unit="client",
        proof=proof,
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
        raw=client_values(values),
        bound=bound,
        replace_one=bound,
        zero_out=bound,
        unit=vectors.unit,
        proof="squared norm of a vector clipped to C: a number in [0, C^2]",
        repaired=diagnostic(torch.zeros_like(opened(vectors.repaired))),
        quantity="squared_norms",
        proved=vectors.proved,
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
        raw=client_values(inside),
        bound=bound,
        replace_one=moved + moved,
        zero_out=moved,
        unit="record",
        proof="mean over m records of vectors clipped to C: 2C / m under replace_one, C / m otherwise",
        repaired=diagnostic(torch.zeros_like(bound)),
        maker=_MAKER,
    )


def record_covariance(values: Tensor, clip_norm: Tensor, records: Tensor) -> Bounded:
    """Means over a client's records of x x^T with x clipped to C, as packed triangles; what objectives make of clipped features.

    A record's matrix has the Frobenius norm ||x||^2 <= C^2, and ||x x^T - y y^T||_F^2 = ||x||^4 + ||y||^4 - 2 (x . y)^2 <= 2 C^4.
    So the mean, divided by the public m, moves by C^2 / m when a record is left out and by sqrt(2) C^2 / m when it is replaced.
    The upper triangle holds every entry of the matrix once: its norms and distances are no larger than Frobenius'.

    Args:
      values: [R, M, p (p + 1) / 2] upper triangles, row by row.
      clip_norm: [R], C.
      records: [M] or [R, M], m_i, at least 1; public and fixed, whatever neighbour the client holds.
    """
    if isinstance(clip_norm, Unreleased) or isinstance(records, Unreleased) or isinstance(values, Diagnostic):
        raise PrivacyError("the clip norm and the number of records that a mean is divided by are public, never client values")
    inside = opened(values)
    bound = clip_norm.to(inside.dtype).square()
    if inside.dim() != 3 or bound.shape != inside.shape[:1]:
        raise PrivacyError(f"covariances are [runs, clients, p (p + 1) / 2] with one clip norm a run, not {list(inside.shape)}")
    moved = (bound.unsqueeze(-1) / records.to(inside.dtype)).expand(inside.shape[:2])
    return Bounded(
        raw=client_values(inside),
        bound=bound,
        replace_one=math.sqrt(2.0) * moved,
        zero_out=moved,
        unit="record",
        proof="mean over m records of x x^T, x clipped to C: sqrt(2) C^2 / m under replace_one, C^2 / m otherwise",
        repaired=diagnostic(torch.zeros_like(bound)),
        maker=_MAKER,
    )


def clip_symmetric(values: Tensor, clip_norm: Tensor) -> Bounded:
    """Symmetric matrices clipped to the Frobenius norm C, as packed upper triangles: A min(1, C / ||A||_F).

    Matrices differ by at most 2C (replace_one), one from nothing by at most C, and so do their triangles, which hold every entry
    once. A matrix that is not finite, or whose squared norm is not, counts as zero, as in `clip`.

    Args:
      values: [R, M, p (p + 1) / 2] client values, upper triangles, row by row.
      clip_norm: [R], C, as in `clip`.
    """
    size = math.isqrt(2 * values.shape[-1])
    if values.dim() != 3 or size * (size + 1) != 2 * values.shape[-1]:
        raise PrivacyError(f"symmetric matrices are packed as [runs, clients, p (p + 1) / 2], not {list(values.shape)}")
    ends = torch.arange(size, 0, -1).cumsum(0)
    diagonal = on_device(torch.cat((ends.new_zeros(1), ends[:-1])), values.device)
    triangle = opened(values)
    own = vector_norms(triangle.index_select(-1, diagonal)).square()
    # every entry beside the diagonal stands for two; a triangle's own norm is at most the matrix's
    norms = (2 * vector_norms(triangle).square() - own).clamp(min=0.0).sqrt()
    return _clipped(values, norms, clip_norm, "clipped to the Frobenius norm C: 2C under replace_one, C otherwise")


def scaled(bounded: Bounded, factors: Tensor) -> Bounded:
    """Bounded values times public numbers, such as record counts; bounds and sensitivities grow with them.

    Args:
      factors: [R] or [R, M]; public.
    """
    if isinstance(factors, Unreleased) or bounded.quantity:
        raise PrivacyError("bounded values are scaled by public numbers, and squared norms are not scaled")
    inside = bounded.checked()
    numbers = factors.to(inside.dtype).reshape(*factors.shape, *[1] * (2 - factors.dim())).expand(inside.shape[:2])
    sizes = numbers.abs()
    return Bounded(
        raw=client_values(inside * numbers.reshape(*numbers.shape, *[1] * (inside.dim() - 2))),
        bound=bounded.bound * sizes.amax(dim=1),
        replace_one=_per_client(bounded.replace_one) * sizes,
        zero_out=_per_client(bounded.zero_out) * sizes,
        unit=bounded.unit,
        proof=f"{bounded.proof}; times public numbers",
        repaired=bounded.repaired,
        proved=bounded.proved,
        maker=_MAKER,
    )


def number_mean(values: Tensor, limit: Tensor, records: Tensor, factor: float = 1.0) -> Bounded:
    """Means over a client's records of one number per record, each clipped to [0, B].

    One record's number moves within [0, B] and is divided by m: B / m under every relation. A number that is not finite counts as
    B where it is too large, as 0 where it is none.

    Args:
      values: [R, M, n] client values, such as squared gradient norms; entries beyond a client's records are 0.
      limit: [R], B; public.
      records: [M] or [R, M], m_i, at least 1; public and fixed.
      factor: at least 1, on the sensitivity (a paper's looser constant).
    """
    if isinstance(limit, Unreleased) or isinstance(records, Unreleased) or isinstance(values, Diagnostic):
        raise PrivacyError("the limit of numbers and the record counts that a mean is divided by are public, never client values")
    inside = opened(values)
    bound = limit.to(inside.dtype)
    if inside.dim() != 3 or bound.shape != inside.shape[:1] or factor < 1:
        raise PrivacyError(f"number means take values [runs, clients, n] and one limit a run, not {list(inside.shape)}")
    numbers = torch.minimum(inside.nan_to_num(0.0, posinf=torch.inf).clamp(min=0.0), bound.reshape(-1, 1, 1))
    divisor = records.to(inside.dtype)
    moved = factor * (bound.unsqueeze(-1) / divisor).expand(inside.shape[:2])
    return Bounded(
        raw=client_values(torch.minimum(numbers.sum(dim=-1) / divisor, bound.unsqueeze(-1))),
        bound=bound,
        replace_one=moved,
        zero_out=moved,
        unit="record",
        proof="mean over m records of numbers clipped to [0, B]: B / m",
        repaired=diagnostic(torch.zeros_like(bound)),
        maker=_MAKER,
    )


def mean_clipped(mean: Bounded, clip_norm: Tensor, records: Tensor) -> Bounded:
    """A mean over records that was not clipped per record, clipped as a whole, with the claim that one record moves it by 2C / m.

    NOT private at that claim: one record can move the clipped mean by 2C. What some code does in place of clipping records;
    for diagnosis under dp.mode=paper.

    Args:
      mean: [R, M, d] as `record_mean` with an infinite clip norm.
      clip_norm: [R], C.
      records: [M] or [R, M], m.
    """
    own, bound = mean.checked(), clip_norm.to(mean.raw.dtype)
    claimed = (bound.unsqueeze(-1) / records.to(bound.dtype)).expand(own.shape[:2])
    return Bounded(
        raw=client_values(_to_ball(own, bound.reshape(-1, 1, 1))),
        bound=bound,
        replace_one=2 * claimed,
        zero_out=claimed,
        unit="record",
        proof="mean clipped as a whole, sensitivity as if records were clipped (claimed)",
        repaired=mean.repaired,
        proved=False,
        maker=_MAKER,
    )


def unproved(bounded: Bounded, why: str) -> Bounded:
    """The same, as a claim only."""
    return Bounded(
        raw=bounded.raw,
        factors=bounded.factors,
        lengths=bounded.lengths,
        bound=bounded.bound,
        replace_one=bounded.replace_one,
        zero_out=bounded.zero_out,
        unit=bounded.unit,
        proof=why,
        repaired=bounded.repaired,
        quantity=bounded.quantity,
        proved=False,
        maker=_MAKER,
    )


def solve_sensitivity(
    gradient_clip: Tensor, side_clip: Tensor, matrix_clip: Tensor, damping: Tensor, records: Tensor, constant: Constant
) -> tuple[Tensor, Tensor]:
    """How far one record moves y = (H + gamma I)^-1 v, with H a mean of m matrices 0 <= H_j <= D I and ||v|| <= C2.

    y - y' = ((H + gamma I)^-1 - (H' + gamma I)^-1) v + (H' + gamma I)^-1 (v - v').

    Second term: ||v - v'|| / gamma, where one record moves the mean gradient by C1 / m when it is left out, by 2 C1 / m when it
    is replaced, and v is an L-Lipschitz function of it (L = 1, but see `xi_safe`).
    First term: with eta = D / m and B the matrix without the record, both inverses lie between (B + eta I)^-1 and B^-1, whose
    difference is at most eta / (gamma (gamma + eta)) I because B >= gamma I; so whether the record is left out or replaced, it is
    at most eta C2 / (gamma (gamma + eta)). ("tight": Krouka et al.'s Lemma 3 without its condition.)
    "paper": Lemma 3 itself, C1 / (gamma m) + D C2 / (gamma^2 m - gamma D), for gamma m > D; doubled under replace_one (Remark 5).
    "xi_safe": tight with L = C2 / sqrt(C2^2 - C1^2), C1 < C2, the Lipschitz constant of g -> g + xi(g) b.

    Args:
      gradient_clip, side_clip, matrix_clip, damping: [R] C1, C2, D, gamma.
      records: [R, M] m.

    Returns:
      replace_one and zero_out, [R, M] each.
    """
    first, second, limit, gamma = (one.unsqueeze(-1) for one in (gradient_clip, side_clip, matrix_clip, damping))
    if constant == "xi_safe":
        gamma = _demanded(
            gamma, first < second, "the constant xi_safe needs a gradient clip below that of the right side (C1 < C2)"
        )
    if constant == "paper":
        refusal = "the paper's constant needs damping * records > matrix_clip for every client: use sensitivity=tight"
        gamma = _demanded(gamma, (gamma * records > limit).all(dim=-1, keepdim=True), refusal)
        whole = first / (gamma * records) + limit * second / (gamma.square() * records - gamma * limit)
        return 2 * whole, whole
    lipschitz = torch.ones_like(first) if constant == "tight" else second / (second.square() - first.square()).sqrt()
    gradient = lipschitz * first / (gamma * records)
    matrix = limit * second / (gamma * (gamma * records + limit))
    return 2 * gradient + matrix, gradient + matrix


def _demanded(values: Tensor, good: Tensor, refusal: str) -> Tensor:
    """Values on which a bound rests; a PrivacyError unless all is good.

    A device is not asked, which would halt it: what is not good is NaN there, and so is the noise of a release; or, of a right
    side, zero after the solve.
    Methods check their settings before anything runs, so that this is for those who call in another way.
    """
    if good.device.type != "cpu":
        return torch.where(good, values, torch.nan)
    if not bool(good.all()):
        raise PrivacyError(refusal)
    return values


def joined_side(gradient: Bounded, auxiliary: Tensor, gradient_clip: Tensor, side_clip: Tensor, how: Side) -> ClientValues:
    """v_i with ||v_i|| <= C2 from a client's bounded gradient g_i and an auxiliary vector b_i.

    "project": g + b in the ball of radius C2, a 1-Lipschitz function of g.
    "clip_auxiliary": g + CLIP(b, C2 - C1), whose second part does not depend on g.
    "xi" (Krouka et al., Lemma 4): where ||g + b|| > C2, g + xi b with the larger root xi of ||g + xi b|| = C2, which lies in
      [0, 1) while ||g|| <= C2. It depends on g, and near ||g|| = C2 its slope has no bound.

    A vector b_i that is not finite, or whose norm is beyond half of what `clip` takes, is of a run that diverged and counts as
    zero. That is asked of b_i alone: asked of g + b it would depend on g, and near the threshold v would jump with one record.

    Args:
      gradient: [R, M, d] record means, each clipped to C1 <= C2.
      auxiliary: [R, M, d] b_i.
      gradient_clip, side_clip: [R] C1, C2.
    """
    own = gradient.checked()
    if how != "project":
        refusal = f"a right side by {how} needs a gradient clip of at most that of the right side (C1 <= C2)"
        own = _demanded(own, (gradient_clip <= side_clip).reshape(-1, 1, 1), refusal)
    other = opened(auxiliary).to(gradient.raw.dtype)
    length = vector_norms(other).unsqueeze(-1)
    usable = length <= math.sqrt(torch.finfo(own.dtype).max) / 2  # false for NaN
    other, length = torch.where(usable, other, 0.0), torch.where(usable, length, 0.0).to(own.dtype)
    limit = side_clip.to(own.dtype).reshape(-1, 1, 1)
    if how == "clip_auxiliary":
        return client_values(own + _to_ball(other, (side_clip - gradient_clip).to(own.dtype).reshape(-1, 1, 1)))
    together = own + other
    if how == "project":
        return client_values(_to_ball(together, limit))
    along = (own * other).sum(dim=-1, keepdim=True) / length  # s
    # never negative while ||g|| <= C2, but for rounding
    root = (along.square() + limit.square() - own.square().sum(dim=-1, keepdim=True)).clamp(min=0.0).sqrt()
    xi = ((root - along) / length).clamp(0.0, 1.0)
    far = vector_norms(together).unsqueeze(-1) > limit
    return client_values(_to_ball(torch.where(far & (length > 0), own + xi * other, together), limit))


def solved_mean(
    values: Tensor,
    gradient_clip: Tensor,
    side_clip: Tensor,
    matrix_clip: Tensor,
    damping: Tensor,
    records: Tensor,
    how: Side,
    constant: Constant,
    residual: float = 0.0,
) -> Bounded:
    """(H_i + gamma I)^-1 v_i of clipped records; what objectives make of damped solves. Sensitivities: `solve_sensitivity`.

    They hold for auxiliary vectors b_i that are public, or made of the client's own past messages where those were released.
    A solver that stops at a residual of r ||v_i|| is off by at most r C2 / gamma on either side, which is added where r is told.
    What no exact solve could give, a value that is not finite or one beyond C2 / gamma, is brought back (to 0, to the ball).

    Args:
      values: [R, M, d].
      gradient_clip, side_clip, matrix_clip, damping: [R] C1, C2, D, gamma; public.
      records: [R, M] m_i, at least 1; public and fixed, whatever neighbour the client holds.
      how: how v_i was made; the bound is proved for "project" and "clip_auxiliary", and for "xi" with the constant "xi_safe".
      residual: r; 0 for a solver that is exact to rounding.
    """
    public = (gradient_clip, side_clip, matrix_clip, damping, records)
    if any(isinstance(one, Unreleased) for one in public) or isinstance(values, Diagnostic):
        raise PrivacyError("clips, damping and record counts of a damped solve are public, never client values")
    inside = opened(values)
    kind = inside.dtype
    replaced, left_out = solve_sensitivity(
        gradient_clip.double(), side_clip.double(), matrix_clip.double(), damping.double(), records.double(), constant
    )
    largest = side_clip.double() / damping.double()
    if residual:
        replaced, left_out = (one + 2 * residual * largest.unsqueeze(-1) for one in (replaced, left_out))
    # rounding may leave an exact solve this far outside
    limit = ((1 + 1e-5) * largest).to(kind).reshape(-1, 1, 1)
    finite = torch.isfinite(vector_norms(inside)).unsqueeze(-1)
    return Bounded(
        raw=client_values(_to_ball(torch.where(finite | torch.isinf(limit), inside, 0.0), limit)),
        bound=(side_clip / damping).to(kind),
        replace_one=replaced.to(kind),
        zero_out=left_out.to(kind),
        unit="record",
        proof=f"damped solve of clipped records, right side by {how}, constant {constant} (solve_sensitivity)",
        repaired=diagnostic(torch.zeros_like(side_clip)),
        proved=how != "xi" or constant == "xi_safe",
        maker=_MAKER,
    )


def _products(raw: Tensor, factors: Tensor) -> Tensor:
    """[R, M, d] raw times factors [R, M, 1], zero where these are NaN."""
    products = raw * factors
    bits = _BITS[products.dtype]
    # masked_fill_ would do the same in five times the time
    products.view(bits).bitwise_and_(torch.where(factors.isnan(), 0, -1).to(bits))
    return products


def _to_ball(values: Tensor, limit: Tensor) -> Tensor:
    """v min(1, C / ||v||) over the last axis, of vectors with finite norms."""
    norms = vector_norms(values).unsqueeze(-1)
    return values * torch.where(norms > limit, limit / norms, torch.ones_like(norms)).to(values.dtype)


def _per_client(numbers: Tensor) -> Tensor:
    """[R, 1] or [R, M]."""
    return numbers.unsqueeze(-1) if numbers.dim() == 1 else numbers


def own_norms(values: Tensor) -> ClientValues:
    """[R, M] L2 norms of client values [R, M, d], which each client may know of its own (`vector_norms`)."""
    return client_values(vector_norms(opened(values)))


def _certain_norms(values: Tensor) -> Tensor:
    """`vector_norms`, which are none too small where squares vanish: a large factor could make anything of such a vector."""
    norms = vector_norms(values)
    largest = values.double().abs().amax(dim=-1)  # NaN where there is one
    size = torch.where(largest > 0, largest, 1.0)
    # rounding may have cost a whole unit where numbers are below the normal ones
    careful = torch.nextafter(size * vector_norms(values.double() / size.unsqueeze(-1)), torch.full_like(norms, torch.inf))
    ordinary = (norms > _ORDINARY[0]) & (norms < _ORDINARY[1])
    return torch.where(ordinary | (largest == 0), norms, careful)


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
