"""Renyi DP at the best order, zero-concentrated DP, and basic composition of pure DP."""

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Literal

import numpy as np

from dpfl_cli.config.component import Settings, component
from dpfl_cli.privacy.accountants import Accountant
from dpfl_cli.privacy.kinds import by_kind
from dpfl_cli.privacy.ledger import Ledger, LedgerEntry
from dpfl_cli.privacy.subsampling import without_replacement_rdp

# whole ones, at which the divergence of clients that are drawn is a finite sum
ORDERS = (*range(2, 64), *(2**power for power in range(6, 15)))


@lru_cache(maxsize=256)
def poisson_rdp(orders: tuple[int, ...], rate: float, z: float) -> np.ndarray:
    """Renyi divergence, at whole orders a of at least 2, of a Gaussian release of clients drawn by
    a Poisson law (Mironov, Talwar and Zhang 2019, arXiv:1908.10530, section 3.3):

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


def _subset_rdp(orders: tuple[int, ...], rate: float, z: float) -> np.ndarray:
    """The same of a uniform subset of the clients, under replace_one."""
    return np.array([without_replacement_rdp(a, rate, z, theorem=27) for a in orders])


class RdpSettings(Settings):
    """Settings of the RDP accountant."""

    conversion: Literal["cks", "mironov"] = "cks"


@component("accountant", "rdp", revision=2, settings=RdpSettings)
class RdpAccountant(Accountant):
    """Renyi DP with the best real order: an upper bound for Gaussian and pure releases.

    Orders add up over releases. To (epsilon, delta) at order a: `cks`
    rdp + ln(1 - 1/a) - (ln delta + ln a) / (a - 1) (Canonne, Kamath and Steinke 2020, Proposition
    12), or `mironov` rdp + ln(1/delta) / (a - 1) (Mironov 2017, Proposition 3).

    Clients that are drawn: `poisson_rdp`, or of a uniform subset under replace_one
    `without_replacement_rdp` by Theorem 27, at whole orders, converted by dp-accounting as by
    `cks`.
    """

    name = "rdp"
    curve = "renyi"
    variants = ({}, {"conversion": "mironov"})
    amplifies = ("poisson", "fixed")

    @property
    def label(self) -> str:
        return "rdp" if self.settings.conversion == "cks" else f"rdp ({self.settings.conversion})"

    def supports(self, ledger: Ledger) -> str | None:
        """As every accountant; where clients are drawn one conversion is dp-accounting's, and a
        uniform subset is for replace_one.
        """
        drawn = [entry for entry in ledger.entries if entry.law in self.amplifies]
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

    def _epsilon(self, entries: list[LedgerEntry], delta: float) -> float:
        if entries[0].law in self.amplifies:
            from dp_accounting.rdp import compute_epsilon

            of_law = poisson_rdp if entries[0].law == "poisson" else _subset_rdp
            rate = entries[0].rate or 1.0
            total = sum(count * of_law(ORDERS, rate, z) for z, count in entries[0].levels().items())
            return float(compute_epsilon(ORDERS, total, delta)[0])
        groups = by_kind(entries)
        if all(kind.rho(own) == 0 for kind, own in groups.items()):
            return 0.0
        improved = self.settings.conversion == "cks"

        def epsilon_of(excess: np.ndarray) -> np.ndarray:
            total = sum(kind.renyi(own, excess) for kind, own in groups.items())
            if improved:  # ln(1 - 1/a) = -ln(1 + 1/x) for a = 1 + x
                toll = (math.log(delta) + np.log1p(excess)) / excess
                return total - np.log1p(1 / excess) - toll
            return total - math.log(delta) / excess

        return max(0.0, _smallest_over_orders(epsilon_of))


def _smallest_over_orders(epsilon_of: Callable[[np.ndarray], np.ndarray]) -> float:
    """Minimum of a bound over orders 1 + x, x from 1e-9 to 1e18: a grid in ln x, refined around its
    smallest value.

    Every order gives a valid bound, so the accuracy of the search is a matter of tightness only.
    """
    low, high, points = math.log(1e-9), math.log(1e18), 2500
    best = math.inf
    for _ in range(4):
        grid = np.linspace(low, high, points)
        values = epsilon_of(np.exp(grid))
        at = int(np.argmin(values))
        best = min(best, float(values[at]))
        low, high, points = float(grid[max(at - 1, 0)]), float(grid[min(at + 1, points - 1)]), 60
    return best


@component("accountant", "zcdp", revision=1, settings=Settings)
class ZcdpAccountant(Accountant):
    """Zero-concentrated DP: epsilon = rho + 2 sqrt(rho ln(1/delta)); simple and loose.

    A Gaussian release is rho = 1 / (2 z^2), an epsilon-DP one rho = epsilon^2 / 2; rho adds up (Bun
    and Steinke 2016, Propositions 1.6 and 1.4, Lemma 1.7, Proposition 1.3).
    """

    name = "zcdp"
    curve = "rho"

    def _epsilon(self, entries: list[LedgerEntry], delta: float) -> float:
        rho = sum(kind.rho(own) for kind, own in by_kind(entries).items())
        return float(rho + 2 * math.sqrt(rho * -math.log(delta)))


@component("accountant", "pure", revision=1, settings=Settings)
class PureAccountant(Accountant):
    """Sum of pure epsilons: epsilon-DP whatever delta is; pure mechanisms only.

    Basic composition (Dwork and Roth 2014, Theorem 3.16). Messages of scope "client" add up along
    each client's own sequence; over clients, whose data are disjoint, the largest sum counts.
    """

    name = "pure"
    curve = "epsilon"
    guarantee = "epsilon-DP"

    def _epsilon(self, entries: list[LedgerEntry], delta: float) -> float:
        return math.fsum(kind.epsilon(own) for kind, own in by_kind(entries).items())
