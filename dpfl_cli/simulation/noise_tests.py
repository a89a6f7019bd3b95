"""Is noise what a ledger prices: of that variance, Gaussian, and drawn anew for every number?"""

from collections.abc import Iterable, Iterator, Mapping
from itertools import combinations
from typing import Any

from scipy.special import chdtr, chdtrc
from scipy.stats import kstest
from torch import Tensor, finfo

UNLIKELY = 1e-6  # noise as priced fails with this probability, once and for all: seeds are fixed


def odd_noise(found: Mapping[str, Tensor]) -> Iterator[str]:
    """Chi-square tests of noise over what the ledger priced, as it is and summed over releases,
    clients and coordinates, or with that of another release (used again?); and Kolmogorov's, that
    it is Gaussian.

    Args:
      found: release -> [k, R, M, d] or [k, R, d] (fewer axes of scalars), over the priced standard
        deviation.
    """
    for name, draws in found.items():
        axes = [axis for axis in (0, 2, 3) if axis < draws.dim() and draws.shape[axis] > 1]
        every = draws, *(draws.sum(axis) / draws.shape[axis] ** 0.5 for axis in axes)
        odd = [text for values in every for text in _other_variance(f"'{name}' has", values)]
        yield from odd
        if not odd and kstest(draws.flatten().numpy(), "norm").pvalue < UNLIKELY:
            yield f"'{name}' is not Gaussian, as it is priced"
    for (name, draws), (other, more) in combinations(found.items(), 2):
        if draws.shape == more.shape:
            both = (draws + more) / 2**0.5
            yield from _other_variance(f"'{name}' and '{other}', added, have", both)


def no_noise(contributions: Iterable[Any]) -> Iterator[str]:
    """Releases that come out as they went in, but for rounding, whatever law their noise has."""
    seen: dict[str, bool] = {}
    for one in contributions:
        rounding = 10 * finfo(one.values.dtype).eps * one.values.abs().max()
        noisy = bool((one.noise[one.charged].abs() > rounding).any())
        seen[one.name] = seen.get(one.name, not one.charged.any()) or noisy
    for name in [name for name, noisy in seen.items() if not noisy]:
        yield f"'{name}' comes out as it went in, without noise: its epsilon is infinite"


def _other_variance(what: str, values: Tensor) -> Iterator[str]:
    square, count = float(values.square().sum()), values.numel()
    if 2 * min(chdtr(count, square), chdtrc(count, square)) < UNLIKELY:
        yield f"{what} {square / count:.4g} times the variance that is priced"
