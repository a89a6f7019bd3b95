"""Kinds of release: what each costs, as the curves that accountants add up.

A ledger names a kind; an accountant asks it for the one curve that it composes (`Accountant.curve`)
and refuses a kind that has no such method. A new kind of release is a class here and an entry of
`KINDS`. Entries are `ledger.LedgerEntry`s: `charges` releases with `parameters`.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

Entries = Iterable[Any]  # of `ledger.LedgerEntry`


@dataclass(frozen=True)
class Losses:
    """Privacy losses of some releases, as the `pld` accountant composes them.

    Attributes:
      width: of the interval that holds their composition's losses.
      count: how many compositions by FFT they take.
      level: the pure epsilon that should lie on the grid, if there is one.
      distribution: width of a grid cell -> dp-accounting's distribution of their composition.
    """

    width: float
    count: int
    level: float | None
    distribution: Callable[[float], Any]


class Kind:
    """A kind of release. Beside these, it has the curves that are known of it:

    squared_mu(entries)      sum of mu^2, of kinds that compose as Gaussians
    renyi(entries, excess)   Renyi divergence at orders 1 + excess
    rho(entries)             zero-concentrated DP
    epsilon(entries)         pure DP, by basic composition
    losses(entries)          [Losses]
    """

    name: str  # in ledgers
    label: str
    parameter: str  # what it is, in words
    event_name: str  # as dp-accounting calls the event of one release
    useless: float  # the parameter with which a release protects nothing


class Gaussian(Kind):
    """Gaussian noise; the parameter is the noise multiplier z = std / sensitivity."""

    name = "gaussian"
    label = "Gaussian"
    parameter = "noise multiplier (noise / sensitivity)"
    event_name = "GaussianDpEvent"
    useless = 0.0

    def squared_mu(self, entries: Entries) -> float:
        """sum 1 / z^2 (Dong, Roth and Su 2022, Corollary 3.3)."""
        return math.fsum(map(self._squared_mu, entries))

    def renyi(self, entries: Entries, excess: np.ndarray) -> np.ndarray:
        """sum a / (2 z^2) at order a = 1 + excess (Mironov 2017, Corollary 3)."""
        return self.rho(entries) * (1 + excess)

    def rho(self, entries: Entries) -> float:
        """sum 1 / (2 z^2) (Bun and Steinke 2016, Proposition 1.6)."""
        return self.squared_mu(entries) / 2

    def losses(self, entries: Entries) -> list[Losses]:
        """One distribution an entry; cut where e^-50 of the mass is left, about 10 deviations."""
        from dp_accounting.pld.privacy_loss_distribution import from_gaussian_mechanism

        def distribution(squared: float, cell: float) -> Any:
            std = 1 / math.sqrt(squared)
            return from_gaussian_mechanism(std, value_discretization_interval=cell)

        return [
            Losses(squared + 20 * math.sqrt(squared), 1, None, partial(distribution, squared))
            for squared in map(self._squared_mu, entries)
            if squared > 0
        ]

    @staticmethod
    def _squared_mu(entry: Any) -> float:
        if isinstance(entry.parameter, tuple):
            return (entry.parameters() ** -2.0).sum()
        try:
            return entry.charges * float(entry.parameters()[0]) ** -2.0
        except OverflowError:
            return math.inf


class Pure(Kind):
    """A mechanism of which only epsilon-DP is known; the parameter is epsilon."""

    name = "pure"
    label = "pure-epsilon"
    parameter = "epsilon"
    event_name = "PureDpEvent"
    useless = math.inf

    def renyi(self, entries: Entries, excess: np.ndarray) -> np.ndarray:
        """Of randomised response, of which every such mechanism is a post-processing."""
        total = np.zeros_like(excess)
        for value, count in self._levels(entries).items():
            total = total + count * pure_rdp(value, excess)
        return total

    def rho(self, entries: Entries) -> float:
        """sum epsilon^2 / 2 (Bun and Steinke 2016, Proposition 1.4)."""
        spent = self._levels(entries).items()
        return math.fsum(count * value**2 for value, count in spent) / 2

    def epsilon(self, entries: Entries) -> float:
        """Basic composition (Dwork and Roth 2014, Theorem 3.16)."""
        return math.fsum(value * count for value, count in self._levels(entries).items())

    def losses(self, entries: Entries) -> list[Losses]:
        """Of randomised response at the next multiple of the cell, which dominates."""
        from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

        def distribution(value: float, count: int, cell: float) -> Any:
            cells = math.ceil(value / cell * (1 - 1e-14))
            odds = math.exp(-cells * cell)
            masses = {cells: 1 / (1 + odds), -cells: odds / (1 + odds)}
            make = PrivacyLossDistribution.create_from_rounded_probability
            return make(masses, 0.0, cell).self_compose(count)

        return [
            Losses(2 * value * count, count, value, partial(distribution, value, count))
            for value, count in self._levels(entries).items()
        ]

    @staticmethod
    def _levels(entries: Entries) -> dict[float, int]:
        """Positive epsilons, and how often each was spent."""
        counts: Counter[float] = Counter()
        for entry in entries:
            counts.update(entry.levels())
        return {value: count for value, count in counts.items() if value > 0}


class NonPrivate(Kind):
    """No noise at all; there is no parameter."""

    name = "nonprivate"
    label = "non-private"
    event_name = "NonPrivateDpEvent"


KINDS: dict[str, Kind] = {kind.name: kind for kind in (Gaussian(), Pure(), NonPrivate())}


def by_kind(entries: Sequence[Any]) -> Mapping[Any, list[Any]]:
    """Kind -> its entries. Kinds are untyped here: which curves one has is for `hasattr`."""
    found: dict[Any, list[Any]] = defaultdict(list)
    for entry in entries:
        found[KINDS[entry.kind]].append(entry)
    return found


def pure_rdp(epsilon: float, excess: np.ndarray) -> np.ndarray:
    """Renyi divergence bound of an epsilon-DP mechanism at orders 1 + excess.

    Every epsilon-DP mechanism is a post-processing of randomised response at epsilon (Kairouz, Oh
    and Viswanath 2015), whose divergence of order a = 1 + x is
    ln(1 + (e^(x eps) - 1)(1 - e^(-a eps)) / (1 + e^-eps)) / x.
    """
    large = excess * epsilon > 30
    shrink = -np.expm1(-(1 + excess) * epsilon) / (1 + math.exp(-epsilon))
    # beyond 30 the 1 in front is below rounding, and the rest is taken in logs
    small = np.log1p(np.expm1(np.where(large, 0.0, excess * epsilon)) * shrink)
    return np.where(large, excess * epsilon + np.log(shrink) + 1e-13, small) / excess
