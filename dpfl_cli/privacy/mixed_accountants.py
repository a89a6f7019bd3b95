"""Accountants of Gaussian and pure releases alike: Renyi DP at the best order, zero-concentrated
DP, basic composition of pure DP, and privacy loss distributions, composed by dp-accounting.
"""

import math
from functools import lru_cache
from typing import ClassVar, Literal

import numpy as np

from dpfl_cli.config.component import Field, Settings, component
from dpfl_cli.config.errors import PrivacyError
from dpfl_cli.privacy.accountants import Accountant, TooLargeToPrice
from dpfl_cli.privacy.gaussian_accountants import GdpAccountant
from dpfl_cli.privacy.kinds import Losses, by_kind
from dpfl_cli.privacy.ledger import Entries, Ledger, LedgerEntry
from dpfl_cli.privacy.subsampling import without_replacement_rdp

# whole ones, at which the divergence of clients that are drawn is a finite sum
ORDERS = (*range(2, 64), *(2**power for power in range(6, 15)))
MOST_LEVELS, STEP = 32, 1.02
LEFT_OUT = ("add_or_remove", "zero_out")  # relations in which a record is not there
NARROWEST = 1e-16  # cell of a grid for dp-accounting's own accountant


@lru_cache(maxsize=256)
def poisson_rdp(orders: tuple[int, ...], rate: float, z: float) -> np.ndarray:
    """Renyi divergence, at whole orders a of at least 2, of a Gaussian release of clients, or of
    records, drawn by a Poisson law (Mironov, Talwar and Zhang 2019, arXiv:1908.10530, section 3.3):

      1 / (a - 1) ln sum_k w_k e^((k^2 - k) / (2 z^2)),  w_k = C(a, k) q^k (1 - q)^(a - k).

    The w_k sum to 1, so that the sum is 1 + sum_{k >= 2} w_k (e^((k^2 - k) / (2 z^2)) - 1): of
    positive terms, that no 1 hides where noise is strong. (dp-accounting adds up the first form,
    whose logarithm may come out negative, and then calls epsilon zero.)
    """
    from scipy.special import gammaln, logsumexp, xlog1py

    found = []
    for a in orders:
        k = np.arange(2.0, a + 1)
        chosen = gammaln(a + 1.0) - gammaln(k + 1) - gammaln(a - k + 1)
        weights = chosen + k * np.log(rate) + xlog1py(a - k, -rate)  # ln w_k
        with np.errstate(divide="ignore", over="ignore"):
            loss = (k * k - k) / 2 * z**-2.0
            terms = weights + loss + np.log(-np.expm1(-loss))
        found.append(np.logaddexp(0.0, logsumexp(terms)) / (a - 1))
    return np.array(found)


def _drawn_rdp(entry: LedgerEntry) -> np.ndarray:
    """Of all releases of an entry, at ORDERS: clients, or records, drawn by a Poisson law; or a
    uniform subset of them, under replace_one.

    A level of noise takes tens of milliseconds, but for Poisson cohorts. Of more than
    `MOST_LEVELS`, each counts as one up to `STEP` below it, which costs more: by powers of `STEP`
    from the first, which neither later releases move nor a common factor.
    """
    rate, total = entry.rate or 1.0, np.zeros(len(ORDERS))
    cohorts = entry.law == "poisson"
    levels, first = entry.levels(), float(entry.parameters()[0])
    for z, count in levels.items():
        taken = z
        if len(levels) > MOST_LEVELS and not cohorts:
            power = math.floor(math.log(z / first, STEP) + 1e-9)  # on a step it stays there
            taken = min(z, first * STEP**power)
        if cohorts or (entry.law == "full" and entry.batch == "poisson"):
            total += count * poisson_rdp(ORDERS, rate, taken)
        else:
            each = [without_replacement_rdp(a, rate, taken, theorem=27) for a in ORDERS]
            total += count * np.array(each)
    return total


class RdpSettings(Settings):
    """Settings of the RDP accountant."""

    conversion: Literal["cks", "mironov"] = "cks"


@component("accountant", "rdp", RdpSettings, revision=3)
class RdpAccountant(Accountant):
    """Renyi DP with the best real order: an upper bound for Gaussian and pure releases.

    Orders add up over releases. To (epsilon, delta) at order a: `cks`
    rdp + ln(1 - 1/a) - (ln delta + ln a) / (a - 1) (Canonne, Kamath and Steinke 2020, Proposition
    12), or `mironov` rdp + ln(1/delta) / (a - 1) (Mironov 2017, Proposition 3).

    Clients that are drawn: `poisson_rdp`, or of a uniform subset under replace_one
    `without_replacement_rdp` by Theorem 27, at whole orders, converted by dp-accounting as by
    `cks`. Gaussian releases of batches of records, drawn by a Poisson law (add_or_remove, zero_out)
    or without replacement (replace_one): the same, or no amplification where that gives less.
    """

    curve = "renyi"
    variants = ({}, {"conversion": "mironov"})
    amplifies = ("poisson", "fixed")
    amplifies_batches: ClassVar = {"subset": ("replace_one",), "poisson": LEFT_OUT}

    def supports(self, ledger: Ledger) -> str | None:
        """As every accountant; where clients are drawn one conversion is dp-accounting's, and a
        uniform subset is for replace_one.
        """
        drawn = [one for one in ledger.entries if one.count and one.law in self.amplifies]
        if drawn and self.settings.conversion != "cks":
            return "clients that are drawn are priced with accountant.conversion=cks"
        reason = super().supports(ledger)
        if drawn and reason is None and drawn[0].law == "fixed":
            relation = drawn[0].relation
            if relation != "replace_one":
                return (
                    "rdp amplifies a uniform subset of the clients under replace_one, not under "
                    f"{relation}: use dp.relation=replace_one, or accountant=gdp"
                )
        return reason

    def _epsilon(self, entries: Entries, delta: float) -> float:
        if entries[0].law in self.amplifies:
            from dp_accounting.rdp import compute_epsilon

            return float(compute_epsilon(ORDERS, _drawn_rdp(entries[0]), delta)[0])
        groups = by_kind(entries)
        if all(kind.rho(own) == 0 for kind, own in groups.items()):
            return 0.0
        improved = self.settings.conversion == "cks"

        def converted(total: np.ndarray, excess: np.ndarray) -> np.ndarray:
            if improved:  # ln(1 - 1/a) = -ln(1 + 1/x) for a = 1 + x
                toll = (math.log(delta) + np.log1p(excess)) / excess
                return total - np.log1p(1 / excess) - toll
            return total - math.log(delta) / excess

        # over orders 1 + x, x from 1e-9 to 1e18: a grid in ln x, refined around its smallest value.
        # Every order gives a valid bound: the accuracy of the search is a matter of tightness only
        best, low, high, points = math.inf, math.log(1e-9), math.log(1e18), 2500
        for _ in range(4):
            grid = np.linspace(low, high, points)
            values = converted(_renyi(entries, np.exp(grid)), np.exp(grid))
            at = int(np.argmin(values))
            best = min(best, float(values[at]))
            low, high = float(grid[max(at - 1, 0)]), float(grid[min(at + 1, points - 1)])
            points = 60
        of_batches = [one for one in entries if one.rate is not None]
        if of_batches:
            excess = np.array(ORDERS) - 1.0
            total = _renyi([one for one in entries if one not in of_batches], excess)
            total += sum(map(_drawn_rdp, of_batches))
            best = min(best, float(converted(total, excess).min()))
        return max(0.0, best)


def _renyi(entries: Entries, excess: np.ndarray) -> np.ndarray:
    """Renyi divergence of releases at orders 1 + excess, added up."""
    kinds = by_kind(entries).items()
    return sum((kind.renyi(own, excess) for kind, own in kinds), np.zeros_like(excess))


@component("accountant", "zcdp", Settings)
class ZcdpAccountant(Accountant):
    """Zero-concentrated DP: epsilon = rho + 2 sqrt(rho ln(1/delta)); simple and loose.

    A Gaussian release is rho = 1 / (2 z^2), an epsilon-DP one rho = epsilon^2 / 2; rho adds up (Bun
    and Steinke 2016, Propositions 1.6 and 1.4, Lemma 1.7, Proposition 1.3).
    """

    curve = "rho"

    def _epsilon(self, entries: Entries, delta: float) -> float:
        rho = sum(kind.rho(own) for kind, own in by_kind(entries).items())
        return float(rho + 2 * math.sqrt(rho * -math.log(delta)))


@component("accountant", "pure", Settings)
class PureAccountant(Accountant):
    """Sum of pure epsilons: epsilon-DP whatever delta is; pure mechanisms only.

    Basic composition (Dwork and Roth 2014, Theorem 3.16). Messages of scope "client" add up along
    each client's own sequence; over clients, whose data are disjoint, the largest sum counts.
    """

    curve = "epsilon"
    guarantee = "epsilon-DP"

    def _epsilon(self, entries: Entries, delta: float) -> float:
        return math.fsum(kind.epsilon(own) for kind, own in by_kind(entries).items())


@lru_cache(maxsize=64)  # runs of a grid often share their ledger, and so do methods
def _poisson_epsilon(entries: tuple[LedgerEntry, ...], delta: float, interval: float) -> float:
    """Epsilon of Gaussian releases, some of them of clients or records drawn by a Poisson law, by
    dp-accounting's own accountant.
    """
    import dp_accounting
    from dp_accounting.pld import PLDAccountant

    own = PLDAccountant(dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE, interval)
    for entry in entries:
        for z, count in entry.levels().items():
            event: dp_accounting.DpEvent = dp_accounting.GaussianDpEvent(z)
            if entry.rate is not None:
                event = dp_accounting.PoissonSampledDpEvent(entry.rate, event)
            own.compose(event, count)
    return float(own.get_epsilon(delta))


class PldSettings(Settings):
    """Settings of the PLD accountant.

    Attributes:
      interval: width of a grid cell of privacy loss; None: chosen by the ledger.
    """

    interval: float | None = Field(None, gt=0, le=100)


@component("accountant", "pld", PldSettings)
class PldAccountant(Accountant):
    """Privacy loss distributions composed on a grid, rounded up: a tight upper bound for Gaussian
    and pure releases.

    dp-accounting's pessimistic (connect-the-dots) distributions, composed by FFT. A pure release
    takes the distribution of randomised response, which dominates it. Refused above epsilon 500,
    where the grid would take more than 1 GiB, and at a delta so small that the rounding of the FFT
    would show; an allowance for it is taken off delta. Clients, or records of batches, drawn by a
    Poisson law: dp-accounting's own accountant.
    """

    curve = "losses"
    tolerance = 1e-4
    amplifies = ("poisson",)
    amplifies_batches: ClassVar = {"poisson": LEFT_OUT}

    largest_epsilon = 500.0
    largest_grid = 2.0**30  # bytes
    bytes_per_point = 200.0  # measured peak of dp-accounting's construction
    usual_points = 1 << 18
    points_of_round = 1 << 14  # where clients are drawn
    most_levels = 100  # distinct pure epsilons, one FFT each

    def _epsilon(self, entries: Entries, delta: float) -> float:
        if entries[0].law == "poisson" or any(one.rate is not None for one in entries):
            return self._drawn(entries, delta)
        parts: list[Losses] = [
            part for kind, own in by_kind(entries).items() for part in kind.losses(own)
        ]
        if not parts:
            return 0.0
        rounding = 1e-14 * sum(part.count for part in parts)
        self._check_delta(delta, rounding)
        pure = {part.level: part.count for part in parts if part.level is not None}
        bounding = RdpAccountant(RdpSettings()) if pure else GdpAccountant(self.settings)
        width = math.fsum(part.width for part in parts)
        interval = self.settings.interval
        if interval is None:
            interval = width / self.usual_points
            if len(pure) > 1:  # each is rounded up to the grid: keep their sum below 0.1 %
                total = math.fsum(value * count for value, count in pure.items())
                interval = min(interval, 1e-3 * total / sum(pure.values()))
            if len(pure) == 1:  # a grid on which the epsilon lies
                (value,) = pure
                interval = value / max(1, math.ceil(value / interval))
        self._check(bounding._epsilon(entries, delta), width / interval, len(pure))
        whole = parts[0].distribution(interval)
        for part in parts[1:]:
            whole = whole.compose(part.distribution(interval))
        return float(whole.get_epsilon_for_delta(delta - rounding))

    def _drawn(self, entries: Entries, delta: float) -> float:
        """Epsilon of Gaussian releases where clients, or records, are drawn by a Poisson law."""
        other = next((one for one in entries if one.kind != "gaussian"), None)
        if other is not None:
            raise PrivacyError(
                f"pld composes Poisson batches with Gaussian releases, not with '{other.name}': "
                "use accountant=rdp"
            )
        rounding = 1e-14 * sum(one.count for one in entries)
        self._check_delta(delta, rounding)
        bound = GdpAccountant(self.settings)._epsilon(entries, delta)  # as if all took part
        if bound > self.largest_epsilon:  # drawing them may help
            bound = RdpAccountant(RdpSettings())._epsilon(entries, delta)
        z = np.concatenate([one.parameters() for one in entries])
        width = float(0.5 * z.min() ** -2.0 + 10 / z.min())  # of a round's losses, ten deviations
        # dp-accounting takes no interval of next to nothing; a wider one is rounded up to
        interval = self.settings.interval or max(width / self.points_of_round, NARROWEST)
        self._check(bound, width / interval, len(np.unique(z)))
        return _poisson_epsilon(tuple(entries), delta - rounding, interval)

    @staticmethod
    def _check_delta(delta: float, rounding: float) -> None:
        """Refuses a delta that the rounding of the FFT would show at."""
        if delta < 100 * rounding:
            raise PrivacyError(
                f"pld cannot resolve delta={delta:g} in double precision: use accountant=rdp, "
                f"or a delta of at least {105 * rounding:.2g}"
            )

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
