"""Bounded values of clipped records, which one record moves by its share: means over a client's
records, and damped solves with their right sides.

Objectives make them of what they clipped record by record. That they did is a claim, which
`models.client_side` turns into a proof for dpfl's own models. Notation: m the public number of
records that a mean is over, C their clip norm.
"""

import math
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from dpfl_cli.config.errors import PrivacyError
from dpfl_cli.data.devices import on_device
from dpfl_cli.privacy.bounded import (
    CLAIM,
    SMALLEST_BOUND,
    Bounded,
    bounded,
    contributions,
    per_run,
    public,
    scaled_to_ball,
    to_ball,
    vector_norms,
)
from dpfl_cli.privacy.client_values import ClientValues, client_values, opened

Side = Literal["project", "clip_auxiliary", "xi"]
Constant = Literal["tight", "paper", "xi_safe"]


# Records of a client over which a float32 sum is proved: one record may decide whether those that
# are added after it are lost. Measured: 1.5 times the bound over 2^18 in gradients; in covariances
# 2.1 over 2^14 and 23 over 2^16.
MOST_ADDED, MOST_MULTIPLIED = 1 << 16, 1 << 12


def long_sums(kind: torch.dtype, longest: Sequence[int], most: int) -> dict[int, str]:
    """Run -> why the bound of its means over at most `longest` records [R], summed in this type, is
    not proved.
    """
    if kind == torch.float64:
        return {}
    why = (
        f"a float32 sum of more than {most:,} records of a client, whose rounding is not small; "
        "float64 is proved where there is model.precision"
    )
    return {run: why for run, held in enumerate(longest) if held > most}


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
    own, bound = mean.checked(), clip_norm.to(mean.dtype)
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
    smallest = SMALLEST_BOUND[inside.dtype]
    if limit.device.type != "cpu" or min(limit.tolist()) < smallest:
        refusal = (
            f"what a record gives is bounded by less than {smallest:g}, where squares are lost "
            "that would show which are longer: raise algorithm.clip_norm, or "
            "algorithm.feature_clip_norm, whose square it is"
        )
        limit = _demanded(limit, limit >= smallest, refusal)
    numbers = on_device(records, records.device, inside.dtype)
    return (limit.unsqueeze(-1) / numbers).expand(inside.shape[:2])


# --- damped solves --------------------------------------------------------------------------------


def solve_sensitivity(
    gradient_clip: Tensor,
    side_clip: Tensor,
    matrix_clip: Tensor,
    damping: Tensor,
    records: Tensor,
    constant: Constant,
) -> tuple[Tensor, Tensor]:
    """How far one record moves y = (H + gamma I)^-1 v, with H a mean of m matrices 0 <= H_j <= D I
    and ||v|| <= C2.

    y - y' = ((H + gamma I)^-1 - (H' + gamma I)^-1) v + (H' + gamma I)^-1 (v - v').

    Second term: ||v - v'|| / gamma, where one record moves the mean gradient by C1 / m when it is
    left out, by 2 C1 / m when it is replaced, and v is an L-Lipschitz function of it (L = 1, but
    see `xi_safe`).
    First term: with eta = D / m and B the matrix without the record, both inverses lie between
    (B + eta I)^-1 and B^-1, whose difference is at most eta / (gamma (gamma + eta)) I because
    B >= gamma I; so whether the record is left out or replaced, it is at most
    eta C2 / (gamma (gamma + eta)).

    Args:
      gradient_clip, side_clip, matrix_clip, damping: [R] C1, C2, D, gamma.
      records: [R, M] m.
      constant: "tight", as above (Krouka et al.'s Lemma 3 without its condition); "paper", Lemma 3
        itself, C1 / (gamma m) + D C2 / (gamma^2 m - gamma D), for gamma m > D, doubled under
        replace_one (Remark 5); "xi_safe", tight with L = C2 / sqrt(C2^2 - C1^2), C1 < C2, the
        Lipschitz constant of g -> g + xi(g) b.

    Returns:
      replace_one and zero_out, [R, M] each.
    """
    first, second, limit, gamma = (
        one.unsqueeze(-1) for one in (gradient_clip, side_clip, matrix_clip, damping)
    )
    if constant == "paper":
        refusal = (
            "the paper's constant needs damping * records > matrix_clip for every client: use "
            "sensitivity=tight"
        )
        gamma = _demanded(gamma, (gamma * records > limit).all(dim=-1, keepdim=True), refusal)
        whole = first / (gamma * records) + limit * second / (
            gamma.square() * records - gamma * limit
        )
        return 2 * whole, whole
    if constant == "xi_safe":
        refusal = (
            "the constant xi_safe needs a gradient clip below that of the right side (C1 < C2)"
        )
        gamma = _demanded(gamma, first < second, refusal)
        first = second / (second.square() - first.square()).sqrt() * first  # L C1
    gradient = first / (gamma * records)
    matrix = limit * second / (gamma * (gamma * records + limit))
    return 2 * gradient + matrix, gradient + matrix


def _demanded(values: Tensor, good: Tensor, refusal: str) -> Tensor:
    """Values on which a bound rests; a PrivacyError unless all is good.

    A device is not asked, which would halt it: what is not good is NaN there, and so is the noise
    of a release; or, of a right side, zero after the solve. Methods check their settings before
    anything runs, so that this is for those who call in another way.
    """
    if good.device.type != "cpu":
        return torch.where(good, values, torch.nan)
    if not bool(good.all()):
        raise PrivacyError(refusal)
    return values


def joined_side(
    gradient: Bounded, auxiliary: Tensor, gradient_clip: Tensor, side_clip: Tensor, how: Side
) -> ClientValues:
    """v_i with ||v_i|| <= C2 from a client's bounded gradient g_i and an auxiliary vector b_i.

    A vector b_i that is not finite, or whose norm is beyond half of what `clip` takes, is of a run
    that diverged and counts as zero. That is asked of b_i alone: asked of g + b it would depend on
    g, and near the threshold v would jump with one record.

    Args:
      gradient: [R, M, d] record means, each clipped to C1 <= C2.
      auxiliary: [R, M, d] b_i.
      gradient_clip, side_clip: [R] C1, C2.
      how: "project", g + b in the ball of radius C2, a 1-Lipschitz function of g;
        "clip_auxiliary", g + CLIP(b, C2 - C1), whose second part does not depend on g; "xi" (Krouka
        et al., Lemma 4), where ||g + b|| > C2, g + xi b with the larger root xi of
        ||g + xi b|| = C2, which lies in [0, 1) while ||g|| <= C2. It depends on g, and near
        ||g|| = C2 its slope has no bound.
    """
    own = gradient.checked()
    if how != "project":
        refusal = (
            f"a right side by {how} needs a gradient clip of at most that of the right side "
            "(C1 <= C2)"
        )
        own = _demanded(own, per_run(gradient_clip <= side_clip, own, torch.bool), refusal)
    other = opened(auxiliary).to(gradient.dtype)
    length = vector_norms(other).unsqueeze(-1)
    usable = length <= math.sqrt(torch.finfo(own.dtype).max) / 2  # false for NaN
    other, length = torch.where(usable, other, 0.0), torch.where(usable, length, 0.0).to(own.dtype)
    limit = per_run(side_clip, own)
    if how == "clip_auxiliary":
        return client_values(own + to_ball(other, per_run(side_clip - gradient_clip, own)))
    together = own + other
    if how == "xi":
        along = (own * other).sum(dim=-1, keepdim=True) / length  # s
        short = own.square().sum(dim=-1, keepdim=True)
        # never negative while ||g|| <= C2, but for rounding
        root = (along.square() + limit.square() - short).clamp(min=0.0).sqrt()
        far = (vector_norms(together).unsqueeze(-1) > limit) & (length > 0)
        xi = torch.where(far, ((root - along) / length).clamp(0.0, 1.0), 1.0)
        torch.mul(other, xi, out=together).add_(own)
    return client_values(to_ball(together, limit))


# of the length of a solution, that its sensitivity has to be
SMALLEST = {torch.float64: 1e-6, torch.float32: 1e-4}


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
    longest: Sequence[int] = (),
) -> Bounded:
    """(H_i + gamma I)^-1 v_i of clipped records; what objectives make of damped solves.

    Its sensitivities, `solve_sensitivity`, hold for auxiliary vectors b_i that are public, or made
    of the client's own past messages where those were released. A solver that stops at a residual
    of r ||v_i|| is off by at most r C2 / gamma on either side, which is added where r is given.
    What no exact solve could give, a value that is not finite (nor is its square) or one beyond
    C2 / gamma, is brought back (to 0, to the ball). Where r is given and gamma below D / 10,
    nothing is proved: rounding may keep the solver from r; nor below D / 10^5 in float64. Nor is it
    where a sensitivity is below `SMALLEST` of the longest solution, whose last digits a neighbour
    may change, or its last step.

    Args:
      values: [R, M, d].
      gradient_clip, side_clip, matrix_clip, damping: [R] C1, C2, D, gamma; public.
      records: [R, M] m_i, at least 1; public and fixed, whatever neighbour the client holds.
      how: how v_i was made; the bound is proved for "project" and "clip_auxiliary", and for "xi"
        with the constant "xi_safe".
      residual: r, of a solver in float32; 0 for one that is exact to rounding.
      longest: [R] `Objective.solved_records`.
    """
    public("clips, damping and record counts", side_clip, matrix_clip, damping, records)
    inside, _ = contributions(values, gradient_clip, "damped solves")
    kind = inside.dtype
    numbers = (gradient_clip, side_clip, matrix_clip, damping, records)
    first, second, matrix, gamma, held = (one.double() for one in numbers)
    replaced, left_out = solve_sensitivity(first, second, matrix, gamma, held, constant)
    largest = second / gamma
    if residual:
        off = 2 * residual * largest.unsqueeze(-1)
        replaced, left_out = replaced + off, left_out + off
    # rounding may leave an exact solve this far outside
    limit = per_run((1 + 1e-5) * largest, inside)
    norms = vector_norms(inside).unsqueeze(-1)
    # what lies farther out is scaled by too few digits: the ball would be left
    usable = (norms <= math.sqrt(torch.finfo(kind).max)) | torch.isinf(limit)
    doubts: dict[int, str] = {}

    def doubt(runs: Tensor, why: str) -> None:
        doubts.update(dict.fromkeys(runs.nonzero().flatten().tolist(), f", {why}"))

    # by conjugate gradients in float32 with gamma = D / 1000, measured: 6 times the residual; by
    # Cholesky factors with gamma = D / 100, before records were clipped by more: 101 times
    small = gamma < matrix / (10 if residual else 1e5)
    if residual or small.device.type == "cpu":
        doubt(small, "whose damping is too small beside curvature_clip_norm")
    if residual:
        doubt(
            torch.tensor(longest) > MOST_MULTIPLIED,
            f"in float32 by Cholesky factors, or over more than {MOST_MULTIPLIED:,} records of a "
            "client; model.solver_precision=float64 is proved",
        )
    # a record may move a rounded number by its last digit; a GPU does not wait to be asked
    small = left_out < SMALLEST[kind] * largest.unsqueeze(-1)
    if small.device.type == "cpu":
        doubt(small.any(dim=-1), "whose rounding is not small beside what one record changes")
    proof = f"damped solve of clipped records, right side by {how}, constant {constant}"
    sure = "" if how == "xi" and constant != "xi_safe" else CLAIM
    return bounded(
        scaled_to_ball(inside, norms, limit, usable),
        largest.to(kind),
        replaced.to(kind),
        left_out.to(kind),
        "record",
        proof + sure,
        claims={run: proof + doubts.get(run, sure) for run in range(len(gamma))},
    )
