"""Amplification by subsampling without replacement: Rényi DP of a mechanism on a fresh uniform
batch, in the log domain.

Reference: Wang, Balle, Kasiviswanathan, "Subsampled Rényi differential privacy and analytical
  moments accountant", AISTATS 2019, arXiv:1808.00087, Theorem 9 (replace-one neighbours, integer
  orders).

With the mechanism's own curve e(j), a batch of b out of n records, g = b / n, and e(inf) = inf
(Gaussian), so that min(2, (e^e(inf) - 1)^j) = 2, the batched mechanism has at integer orders a >= 2

    S(a) = 1 / (a - 1) ln(1 + g^2 C(a, 2) min(4 (e^e(2) - 1), 2 e^e(2)) + sum_{j=3}^a 2 g^j C(a, j)
    e^((j - 1) e(j))).

Theorem 27 is for Gaussian noise: from j = 3 on it has 4 (B(2 floor(j/2)) B(2 ceil(j/2)))^(1/2)
where that is smaller than 2 e^((j - 1) e(j)), with B(l) = E_Q (P/Q - 1)^l of the two Gaussians.
"""

import math
from bisect import bisect_left
from functools import lru_cache
from typing import Annotated, Any, ClassVar, Literal

import numpy as np

from dpfl_cli.config.component import Field, Settings, component
from dpfl_cli.privacy.accountants import Accountant
from dpfl_cli.privacy.ledger import Entries, Ledger

LARGEST_ORDER = 1 << 20
# theorem 27 is taken up to this order, for it takes time, and from this noise multiplier on, below
# which 9 is as tight; 9 holds at larger orders, looser, which small epsilons show
TIGHT_ORDERS, TIGHT_FROM = 256, 0.25


def gaussian_rdp(orders: Any, noise_multiplier: float) -> Any:
    """a / (2 z^2): Rényi divergence of a Gaussian release with noise multiplier z (Mironov 2017,
    Corollary 3).
    """
    return orders / (2.0 * noise_multiplier**2)


@lru_cache(maxsize=256)
def _log_moments(noise_multiplier: float) -> np.ndarray:
    """ln B(l) for l = 2, 4 ... TIGHT_ORDERS.

    The integral over Q of a power of P/Q - 1 that is positive everywhere, by the trapezoidal rule,
    which is exact to rounding for so smooth an integrand; as an alternating sum of e^((j - 1) e(j))
    it would lose all digits where noise is strong.
    """
    mu = 1 / noise_multiplier
    powers = np.arange(2.0, TIGHT_ORDERS + 1, 2)
    ends = math.sqrt(TIGHT_ORDERS) + 12, max(TIGHT_ORDERS * mu, math.sqrt(TIGHT_ORDERS)) + 12
    points, step = np.linspace(-ends[0], ends[1], math.ceil(5 * sum(ends)) + 1, retstep=True)
    loss = mu * points - mu**2 / 2  # ln P/Q
    with np.errstate(divide="ignore"):  # where it is 0
        logs = np.maximum(loss, 0.0) + np.log(-np.expm1(-np.abs(loss)))  # ln |P/Q - 1|
    masses = math.log(step) - (points**2 + math.log(2 * math.pi)) / 2
    terms = powers[:, None] * logs + masses
    largest = terms.max(axis=1)
    found: np.ndarray = largest + np.log(np.exp(terms - largest[:, None]).sum(axis=1))
    return found


@lru_cache(maxsize=1 << 14)
def without_replacement_rdp(
    order: int,
    rate: float,
    noise_multiplier: float,
    capped: bool = True,
    theorem: Literal[9, 27] = 9,
) -> float:
    """S(a) of a Gaussian release on a fresh uniform batch without replacement.

    Args:
      order: a, an integer of at least 2.
      rate: g = b / n in (0, 1]; at 1 there is no batch to hide in, and the mechanism's own curve is
        returned.
      noise_multiplier: z = std / sensitivity of the release on its batch, positive.
      capped: never above the mechanism's own curve, which bounds the mixture over batches too
        (Renyi divergence is jointly quasi-convex). Without it the terms from j = 3 on do not vanish
        as the noise grows: the theorem as printed has a floor.
      theorem: 27 within `TIGHT_ORDERS` and `TIGHT_FROM` where asked for, else 9.

    Returns:
      The bound at this order.
    """
    from scipy.special import gammaln, logsumexp

    if order < 2 or int(order) != order or not 0 < rate <= 1 or not noise_multiplier > 0:
        raise ValueError(
            f"order {order}, rate {rate}, noise multiplier {noise_multiplier}: need an integer >= "
            "2, (0, 1], > 0"
        )
    own = gaussian_rdp(order, noise_multiplier)
    if rate == 1:
        return own
    second = gaussian_rdp(2.0, noise_multiplier)  # e(2)
    # ln min(4 (e^e(2) - 1), 2 e^e(2)): the first is the smaller one while e^e(2) < 2
    factor = (
        np.log(4.0) + np.log(np.expm1(second)) if second < np.log(2.0) else np.log(2.0) + second
    )
    j = np.arange(3, order + 1, dtype=float)
    chosen = gammaln(order + 1.0) - gammaln(j + 1.0) - gammaln(order - j + 1.0)  # ln C(a, j)
    terms = np.log(2.0) + (j - 1.0) * gaussian_rdp(j, noise_multiplier)
    if theorem == 27 and order <= TIGHT_ORDERS and noise_multiplier >= TIGHT_FROM:
        moments, halves = _log_moments(noise_multiplier), np.arange(3, order + 1)
        both = moments[halves // 2 - 1] + moments[(halves + 1) // 2 - 1]
        terms = np.minimum(terms, np.log(4.0) + both / 2)
    terms += j * np.log(rate) + chosen
    pairs = 2.0 * np.log(rate) + np.log(order * (order - 1.0) / 2.0) + factor
    bound = float(logsumexp(np.concatenate(([0.0, pairs], terms)))) / (order - 1.0)
    return min(bound, own) if capped else bound


def balanced_multiplier(
    noise_multiplier: float,
    rate: float | None,
    releases: float,
    other_rate: float | None,
    order: int,
) -> float:
    """The noise multiplier at which one release costs, at an order, what `releases` releases of
    another one cost.

    Args:
      noise_multiplier, rate, releases: of the other ones; rate None where a release is of all
        records.
      other_rate: the rate of the one that is sought.

    Returns:
      The smallest such multiplier, to 12 digits and at most 1e12. Of the bounds that do not exceed
      a release's own curve: by the theorem as printed, whose terms from j = 3 on stay, it would not
        grow with the noise of the other ones.
    """
    goal = releases * without_replacement_rdp(order, rate or 1.0, noise_multiplier)
    low, high = 1e-12, 1e12

    def fits(other: float) -> bool:
        return without_replacement_rdp(order, other_rate or 1.0, other) <= goal

    while high / low > 1 + 1e-12:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high


class WangRdpSettings(Settings):
    """Settings of `wang_rdp`.

    Attributes:
      order: an integer, "optimised" over integers, or "paper": 1 + ceil(2 ln(1 / delta) / epsilon)
        at the epsilon that comes out, with half of it for the releases, by the theorem as printed,
        and half for the conversion.
    """

    order: Annotated[int, Field(ge=2)] | Literal["optimised", "paper"] = "optimised"


@component("accountant", "wang_rdp", WangRdpSettings)
class WangRdpAccountant(Accountant):
    """Renyi DP at integer orders, amplified by subsampling without replacement: Gaussian releases,
    replace_one.

    Releases on fresh uniform batches of records, or of a uniform subset of the clients, cost
    `without_replacement_rdp` (Wang, Balle and Kasiviswanathan 2019, Theorem 9), others a / (2 z^2).
    To (epsilon, delta): total + ln(1 / delta) / (a - 1) (Mironov 2017, Proposition 3).
    """

    curve = "squared_mu"
    variants = ({}, {"order": "paper"})
    amplifies = ("fixed",)
    amplifies_batches: ClassVar = {"subset": ("replace_one",)}

    def supports(self, ledger: Ledger) -> str | None:
        """As every accountant; and amplification is for replace_one."""
        for entry in ledger.entries:
            batch = entry.rate is not None and "poisson" not in (entry.law, entry.batch)
            if entry.count and batch and entry.relation != "replace_one":
                return (
                    "wang_rdp amplifies batches without replacement under replace_one, but "
                    f"release '{entry.name}' is priced "
                    f"under {entry.relation}: use dp.relation=replace_one, or accountant=gdp"
                )
        return super().supports(ledger)

    def _epsilon(self, entries: Entries, delta: float) -> float:
        toll, order = -math.log(delta), self.settings.order
        if order == "paper":
            return self._implied(entries, toll)
        if isinstance(order, int):
            return rdp_of(entries, order) + toll / (order - 1)
        return self._smallest(entries, toll)

    @staticmethod
    def _implied(entries: Entries, toll: float) -> float:
        """min{e : total(a(e)) <= e / 2} with a(e) = 1 + ceil(2 toll / e).

        a(e) = a for 2 toll / (a - 1) <= e < 2 toll / (a - 2), and total(a) grows with a: the
        largest order with 2 total(a) < 2 toll / (a - 2) gives the smallest e.
        """

        def exceeds(order: int) -> bool:
            return rdp_of(entries, order, capped=False) >= toll / (order - 2)

        low, high = 2, 4  # the first of which does not exceed it
        while high < LARGEST_ORDER and not exceeds(high):
            low, high = high, 2 * high
        low += bisect_left(range(low + 1, high), True, key=exceeds)
        return max(2 * rdp_of(entries, low, capped=False), 2 * toll / (low - 1))

    @staticmethod
    def _smallest(entries: Entries, toll: float) -> float:
        """The minimum over integer orders: every order is valid, so that the search is a matter of
        tightness only.
        """
        spread = np.geomspace(33, LARGEST_ORDER, 120).astype(int).tolist()
        orders = sorted({*range(2, 33), *spread})
        best, at = math.inf, 2
        for order in orders:
            total = rdp_of(entries, order)
            if total + toll / (order - 1) < best:
                best, at = total + toll / (order - 1), order
            if total > best:
                break  # it grows with the order
        step = max(1, at // 8)
        while step:
            for order in (at - step, at + step):
                value = rdp_of(entries, order) + toll / (order - 1) if order >= 2 else math.inf
                if value < best:
                    best, at = value, order
            step //= 2
        return best


def rdp_of(entries: Entries, order: int, capped: bool = True) -> float:
    """Renyi divergence of Gaussian releases at an integer order, added up."""
    return math.fsum(
        count * without_replacement_rdp(order, entry.rate or 1.0, level, capped)
        for entry in entries
        for level, count in entry.levels().items()
    )
