"""Worst cases of second-order methods whose guarantee is claimed: how far data that a neighbour may
hold move their releases.

Krouka, Koskela, Kulkarni (PoPETs 2025(1)) claim that one privacy unit moves each released sum by at
most the sensitivity. Each function gives the factor by which data move it further: exact, for data
that tests play through the methods themselves. Privacy is for all data; ordinary data, with clips
that do not bind, lose less. Releases of multiplier z that are moved by a factor f are releases of
multiplier z / f.
"""

import math

import numpy as np
import torch

from dpfl_cli.privacy.record_bounds import Constant, Side, solve_sensitivity


def wound_up_dual(rounds: int, damping: float, penalty: float, clients: float) -> float:
    """A hidden dual of a client whose clip binds in every round, without curvature.

    The duals sum to zero, so the other clients' hold minus this client's: each of T sums shows,
    beside its clipped direction and its share of the noise, all its past ones times
    a = rho / (alpha + rho). In units of the sum's noise that is A 1 + A e + f, with A = I + a L, L
    of ones below the diagonal, e of variance 1 / M and f, of the others, 1 - 1 / M. The factor is
    sqrt((A 1)^T (A A^T / M + (1 - 1 / M) I)^-1 A 1 / T): 1 for M = 1, and sqrt(mean_k s_k^2) with
    s_k = 1 + (k - 1) a for M to infinity.
    """
    wound = np.eye(rounds) + penalty / (damping + penalty) * np.tri(rounds, k=-1)
    shown = wound.sum(axis=1)
    noise = wound @ wound.T / clients + (1 - 1 / clients) * np.eye(rounds)
    return math.sqrt(shown @ np.linalg.solve(noise, shown) / rounds)


def turned_side(
    how: str, gradient_clip: float, side_clip: float, gamma: float, records: int
) -> float:
    """How far (v - v') / gamma is when one of m equal records, with gradients of norm C1 and no
    curvature, is left out.

    The auxiliary vector b is public, and the one that moves v furthest. For `xi` it is across the
    gradients: the rest of v is sqrt(C2^2 - ||g||^2) along b, whose slope has no bound as ||g||
    approaches C2. For the others it leaves g + b inside the ball, so that v moves as g does:
    turned by a b across it, v moves by half of that.
    """
    own, other = gradient_clip, gradient_clip * (1 - 1 / records)
    moved = own - other
    if how == "xi":
        rise = math.sqrt(side_clip**2 - other**2) - math.sqrt(max(side_clip**2 - own**2, 0.0))
        moved = math.hypot(moved, rise)
    return moved / gamma


def moved_record(
    clips: tuple[float, float, float],
    gamma: float,
    counts: list[int],
    how: Side,
    claimed: list[float],
) -> float:
    """How much further a record that is left out moves its client's share than claimed, with the
    worst auxiliary vector.

    Below 1 where data without curvature do not reach what is claimed for all data.

    Args:
      clips: C1, C2, D.
      counts: the clients' numbers of records.
      claimed: their sensitivities, as `claimed_sensitivities`.
    """
    return max(
        turned_side(how, clips[0], clips[1], gamma, records) / one
        for records, one in zip(counts, claimed, strict=True)
    )


def claimed_sensitivities(
    clips: tuple[float, float, float], gamma: float, counts: list[int], constant: Constant
) -> list[float]:
    """What a record that is left out is claimed to move each client's direction by:
    `solve_sensitivity` in float64.
    """
    first, second, limit, shift = torch.tensor([*clips, gamma], dtype=torch.float64).unsqueeze(-1)
    held = torch.tensor([counts], dtype=torch.float64)
    return solve_sensitivity(first, second, limit, shift, held, constant)[1][0].tolist()


def unequal_shares(claimed: list[float]) -> float:
    """max / rms of the clients' sensitivities: shares of noise for their own, while one record
    moves the sum by the largest.
    """
    return max(claimed) / math.sqrt(math.fsum(one**2 for one in claimed) / len(claimed))
