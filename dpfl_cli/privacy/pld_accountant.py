"""Privacy loss distributions, composed by dp-accounting."""

import math
from functools import lru_cache

import numpy as np

from dpfl_cli.config.component import PositiveOrNone, Settings, component
from dpfl_cli.config.errors import PrivacyError
from dpfl_cli.privacy.accountants import Accountant, TooLargeToPrice
from dpfl_cli.privacy.gaussian_accountants import GdpAccountant
from dpfl_cli.privacy.kinds import Losses, by_kind
from dpfl_cli.privacy.ledger import LedgerEntry
from dpfl_cli.privacy.renyi_accountants import RdpAccountant, RdpSettings

NARROWEST = 1e-16  # cell of a grid for dp-accounting's own accountant


@lru_cache(maxsize=64)  # runs of a grid often share their ledger, and so do methods
def _poisson_epsilon(entry: LedgerEntry, delta: float, interval: float) -> float:
    """Epsilon of one release a round of clients drawn by a Poisson law, by dp-accounting's own
    accountant.
    """
    import dp_accounting
    from dp_accounting.pld import PLDAccountant

    own = PLDAccountant(dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE, interval)
    for z, count in entry.levels().items():
        event = dp_accounting.PoissonSampledDpEvent(entry.rate, dp_accounting.GaussianDpEvent(z))
        own.compose(event, count)
    return float(own.get_epsilon(delta))


class PldSettings(Settings):
    """Settings of the PLD accountant.

    Attributes:
      interval: width of a grid cell of privacy loss; None: chosen by the ledger.
    """

    interval: PositiveOrNone = None


@component("accountant", "pld", revision=1, settings=PldSettings)
class PldAccountant(Accountant):
    """Privacy loss distributions composed on a grid, rounded up: a tight upper bound for Gaussian
    and pure releases.

    dp-accounting's pessimistic (connect-the-dots) distributions, composed by FFT. A pure release
    takes the distribution of randomised response, which dominates it. Refused above epsilon 500,
    where the grid would take more than 1 GiB, and at a delta so small that the rounding of the FFT
    would show; an allowance for that rounding is taken off delta. Clients drawn by a Poisson law:
    dp-accounting's own accountant.
    """

    name = "pld"
    curve = "losses"
    tolerance = 1e-4
    amplifies = ("poisson",)

    largest_epsilon = 500.0
    largest_grid = 2.0**30  # bytes
    bytes_per_point = 200.0  # measured peak of dp-accounting's construction
    usual_points = 1 << 18
    points_of_round = 1 << 14  # where clients are drawn
    most_levels = 100  # distinct pure epsilons, one FFT each

    def _epsilon(self, entries: list[LedgerEntry], delta: float) -> float:
        if entries[0].law == "poisson":
            return self._drawn(entries[0], delta)
        parts: list[Losses] = [
            part for kind, own in by_kind(entries).items() for part in kind.losses(own)
        ]
        if not parts:
            return 0.0
        rounding = 1e-14 * sum(part.count for part in parts)
        if delta < 100 * rounding:
            raise PrivacyError(
                f"pld cannot resolve delta={delta:g} in double precision: use accountant=rdp, "
                f"or a delta of at least {105 * rounding:.2g}"
            )
        pure = {part.level: part.count for part in parts if part.level is not None}
        bounding = RdpAccountant(RdpSettings()) if pure else GdpAccountant(self.settings)
        width = math.fsum(part.width for part in parts)
        interval = self.settings.interval or self._interval(pure, width)
        self._check(bounding._epsilon(entries, delta), width / interval, len(pure))
        whole = parts[0].distribution(interval)
        for part in parts[1:]:
            whole = whole.compose(part.distribution(interval))
        return float(whole.get_epsilon_for_delta(delta - rounding))

    def _drawn(self, entry: LedgerEntry, delta: float) -> float:
        """Epsilon of one release a round of clients drawn by a Poisson law."""
        bound = GdpAccountant(self.settings)._epsilon([entry], delta)  # as if all took part
        if bound > self.largest_epsilon:  # drawing them may help
            bound = RdpAccountant(RdpSettings())._epsilon([entry], delta)
        z = entry.parameters()
        width = float(0.5 * z.min() ** -2.0 + 10 / z.min())  # of a round's losses, ten deviations
        # dp-accounting takes no interval of next to nothing; a wider one is rounded up to
        interval = self.settings.interval or max(width / self.points_of_round, NARROWEST)
        self._check(bound, width / interval, len(np.unique(z)))
        return _poisson_epsilon(entry, delta, interval)

    def _check(self, bound: float, points: float, levels: int) -> None:
        """Refuses what would take too long, or too much memory.

        Args:
          bound: on epsilon.
          points: of the grid.
          levels: of noise, each of which is composed by itself.
        """
        size = points * self.bytes_per_point
        if not bound <= self.largest_epsilon or size > self.largest_grid:
            raise TooLargeToPrice(
                f"pld is not computed above epsilon {self.largest_epsilon:g} (here about "
                f"{bound:.4g}) or on a grid above 1 GiB (here {size / 2**30:.2g}): use "
                "accountant=rdp, or a larger accountant.interval"
            )
        if levels > self.most_levels:
            raise PrivacyError(
                f"pld takes at most {self.most_levels} levels of noise, got {levels}: use "
                "accountant=rdp"
            )

    def _interval(self, pure: dict[float, int], width: float) -> float:
        """The width of a grid cell, where none is given.

        Args:
          pure: epsilon of pure releases -> their number.
        """
        interval = width / self.usual_points
        if len(pure) > 1:  # each is rounded up to the grid: keep their sum below 0.1 %
            total = math.fsum(value * count for value, count in pure.items())
            return min(interval, 1e-3 * total / sum(pure.values()))
        for value in pure:  # a grid on which the epsilon lies
            interval = value / max(1, math.ceil(value / interval))
        return interval
