"""Accountants: an upper bound of epsilon from a ledger and delta, or a one-line refusal.

An accountant prices the whole ledger by sequential composition. A ledger of scope "client" holds one client's own sequence
of messages: clients hold disjoint data, so the guarantee of the worst client is the guarantee of all (parallel
composition), and nothing is added over clients. Composition is adaptive throughout: later releases may depend on earlier
ones.

Notation: z noise multiplier = std / sensitivity, mu = 1 / z, L = ln(1 / delta).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from dpfl_cli.config.component import Settings, component, components, lookup, parse_settings
from dpfl_cli.config.errors import ConfigError, PrivacyError
from dpfl_cli.privacy.ledger import Ledger, LedgerEntry

_KINDS = {"gaussian": "Gaussian", "pure": "pure-epsilon"}


class TooLargeToPrice(PrivacyError):
    """A ledger whose epsilon (or the grid that it needs) is above what an accountant works at; more noise would help."""


class NoSettings(Settings):
    """A component without settings."""


class Accountant(ABC):
    """Prices ledgers. Subclasses say which kinds of release they know and compute `_epsilon` of a checked ledger.

    Attributes:
      name: the registered name.
      guarantee: the kind of guarantee that its epsilon belongs to.
      kinds: the kinds of ledger entry that it can price.
      tolerance: the relative accuracy to which a noise level can be calibrated under it.
      variants: the settings under which `price_all` lists it.
    """

    name: ClassVar[str]
    guarantee: ClassVar[str] = "(epsilon, delta)-DP"
    kinds: ClassVar[frozenset[str]]
    tolerance: ClassVar[float] = 1e-9
    variants: ClassVar[tuple[dict[str, Any], ...]] = ({},)

    def __init__(self, settings: Any) -> None:
        self.settings = settings

    @property
    def label(self) -> str:
        """The name, with the settings that change what is computed."""
        return self.name

    def supports(self, ledger: Ledger) -> str | None:
        """None where the ledger can be priced, else the reason in one line."""
        entries = _charged(ledger)
        for what in ("relation", "unit", "scope"):
            values = sorted({str(getattr(entry, what)) for entry in entries})
            if len(values) > 1:
                return f"the ledger mixes {what}s ({', '.join(values)}): one epsilon needs one {what}; price the releases apart"
        kinds = {entry.kind for entry in entries} - {"nonprivate"}
        for entry in entries:
            if entry.kind in kinds - self.kinds:
                own = " and ".join(sorted(_KINDS[kind] for kind in self.kinds))
                others = sorted(name for name, known in components("accountant").items() if kinds <= known.target.kinds)
                return (
                    f"{self.name} prices {own} releases, but release '{entry.name}' is {_KINDS[entry.kind]}: "
                    f"use accountant={_one_of(others)}"
                )
        return None

    def epsilon(self, ledger: Ledger, delta: float) -> float:
        """Upper bound of epsilon at delta; 0 for an empty ledger, infinite where a release has no noise.

        Raises:
          PrivacyError: the ledger cannot be priced (`supports` says so), or not at this delta.
          ConfigError: delta is not between 0 and 1.
        """
        check_delta(delta)
        entries = _charged(ledger)
        if any(entry.kind == "nonprivate" for entry in entries):
            return math.inf
        reason = self.supports(ledger)
        if reason is not None:
            raise PrivacyError(reason)
        if not entries:
            return 0.0
        if any(_has_no_noise(entry) for entry in entries):
            return math.inf
        return self._epsilon(entries, delta)

    @abstractmethod
    def _epsilon(self, entries: list[LedgerEntry], delta: float) -> float:
        """Epsilon of a non-empty list of supported entries with noise."""


def accountant(name: str, options: dict[str, Any] | None = None) -> Accountant:
    """The accountant registered as `name` with these settings (defaults where not given).

    >>> accountant("gdp").name
    'gdp'
    """
    known = lookup("accountant", name)
    built: Accountant = known.target(parse_settings(known.settings, options or {}, "accountant"))
    return built


def check_delta(delta: float) -> None:
    """Raises a ConfigError unless 0 < delta < 1."""
    if not 0.0 < delta < 1.0:
        raise ConfigError(f"dp.delta={delta:g}: must lie between 0 and 1, both excluded; a common choice is dp.delta=1e-5")


def _one_of(names: list[str]) -> str:
    return " or ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def _charged(ledger: Ledger) -> list[LedgerEntry]:
    return [entry for entry in ledger.entries if entry.count > 0]


def _has_no_noise(entry: LedgerEntry) -> bool:
    """True where a multiplier is 0 or a pure epsilon is infinite; refuses parameters that mean nothing."""
    parameters = entry.parameters()
    if np.isnan(parameters).any() or (parameters < 0).any():
        raise PrivacyError(
            f"release '{entry.name}': noise multipliers and epsilons must be numbers of at least 0; mend the ledger"
        )
    return bool((parameters == 0).any() if entry.kind == "gaussian" else np.isinf(parameters).any())


def _squared_mu(entry: LedgerEntry) -> float:
    """sum 1 / z^2 over the releases of a Gaussian entry."""
    if isinstance(entry.parameter, tuple):
        return float(np.sum(entry.parameters() ** -2.0))
    try:
        return entry.charges * float(entry.parameters()[0]) ** -2.0
    except OverflowError:
        return math.inf


def _total_squared_mu(entries: Iterable[LedgerEntry]) -> float:
    return math.fsum(_squared_mu(entry) for entry in entries if entry.kind == "gaussian")


def _pure_epsilons(entries: Iterable[LedgerEntry]) -> dict[float, int]:
    """Positive pure epsilons and how often each was spent."""
    counts: dict[float, int] = defaultdict(int)
    for entry in entries:
        if entry.kind == "pure":
            for value, count in zip(*np.unique(entry.parameters(), return_counts=True), strict=True):
                if value > 0:
                    counts[float(value)] += int(count)
    return dict(counts)


# --- exact Gaussian composition -------------------------------------------------------------------------------------


@cache
def _quadrature() -> tuple[np.ndarray, np.ndarray]:
    nodes, weights = np.polynomial.legendre.leggauss(20)
    return (nodes + 1) / 2, weights / 2


def gaussian_log_delta(mu: float, excess: float) -> float:
    """ln delta of the Gaussian mechanism with mean shift mu at epsilon = mu * excess.

    delta(eps) = Phi(-s) - e^eps Phi(-s - mu) with s = eps / mu - mu / 2 (Balle and Wang 2018, Theorem 8; Dong, Roth and
    Su 2022, Corollary 2.13). As e^eps phi(s + mu) = phi(s), this is phi(s) (R(s) - R(s + mu)) with the Mills ratio
    R(t) = Phi(-t) / phi(t), which neither over- nor underflows. For small mu the difference is taken as the integral of
    -R'(t) = 1 - t R(t), so that nothing cancels.

    Args:
      mu: the mean shift in units of the standard deviation, positive.
      excess: eps / mu, at least 0.
    """
    from scipy.special import erfcx, ndtr

    s = excess - mu / 2
    mills = math.sqrt(math.pi / 2)
    if mu <= 1:
        nodes, weights = _quadrature()
        t = s + mu * nodes
        difference = mu * float(weights @ (1 - t * mills * erfcx(t / math.sqrt(2))))
    elif s >= 0:
        difference = mills * float(erfcx(s / math.sqrt(2)) - erfcx((s + mu) / math.sqrt(2)))
    else:
        density = math.exp(-s * s / 2) / math.sqrt(2 * math.pi)
        return math.log(float(ndtr(-s)) - density * mills * float(erfcx((s + mu) / math.sqrt(2))))
    return -s * s / 2 - math.log(2 * math.pi) / 2 + math.log(difference)


@lru_cache(maxsize=64)  # the runs of a grid often share their ledger
def gaussian_epsilon(mu: float, delta: float) -> float:
    """Smallest epsilon of the Gaussian mechanism with mean shift mu at delta, to rounding.

    >>> round(gaussian_epsilon(2 / 0.7, 1e-5), 6)
    15.658124
    """
    from scipy.special import ndtri

    if mu == 0:
        return 0.0
    if math.isinf(mu):
        return math.inf
    log_delta = math.log(delta)
    if gaussian_log_delta(mu, 0.0) <= log_delta:
        return 0.0
    # delta(eps) <= Phi(-s) bounds s, hence epsilon / mu = s + mu / 2, from above.
    below, above = 0.0, (mu / 2 - float(ndtri(delta))) * (1 + 1e-12) + 1e-12
    while True:
        middle = (below + above) / 2
        if not below < middle < above:
            return mu * above
        if gaussian_log_delta(mu, middle) <= log_delta:
            above = middle
        else:
            below = middle


@component("accountant", "gdp", revision=1, settings=NoSettings)
class GdpAccountant(Accountant):
    """Exact composition of Gaussian releases (Gaussian DP): no slack, Gaussian noise only.

    Releases with multipliers z_i compose to one Gaussian mechanism with mu = sqrt(sum 1 / z_i^2) (Dong, Roth and Su 2022,
    Corollary 3.3), whose delta(epsilon) is known in closed form (Balle and Wang 2018, Theorem 8).
    """

    name = "gdp"
    kinds = frozenset({"gaussian"})

    def _epsilon(self, entries: list[LedgerEntry], delta: float) -> float:
        return gaussian_epsilon(math.sqrt(self._squared_mu(entries)), delta)

    def _squared_mu(self, entries: list[LedgerEntry]) -> float:
        return _total_squared_mu(entries)


def joint_squared_mu(vector: np.ndarray, scalar: np.ndarray) -> np.ndarray:
    """mu^2 of releasing a mean of clipped vectors and the mean of their squared norms together, under replace_one.

    Args:
      vector: noise multipliers of the vector release, std / (2C / M).
      scalar: noise multipliers of the scalar release, std / (C^2 / M), of the same shape.

    Returns:
      mu^2 per release, of the same shape.

    One client's vector u becomes v, with norms a >= b (the case a < b is the mirror image) of at most C. The mean moves by
    at most (a + b) / M, reached by opposite directions, and the mean squared norm by (a^2 - b^2) / M. With standard
    deviations s1 / M and s2 / M the two independent Gaussians are one Gaussian with

      mu^2 = (a + b)^2 / s1^2 + (a^2 - b^2)^2 / s2^2 = (a + b)^2 [1 / s1^2 + (a - b)^2 / s2^2],

    which grows with a, so a = C. With x = b / C and r = (C s1 / s2)^2 = (2 z_vector / z_scalar)^2 (as s1 = 2C z_vector and
    s2 = C^2 z_scalar):

      mu^2 = f(x) / (4 z_vector^2),   f(x) = (1 + x)^2 [1 + r (1 - x)^2],   f'(x) = 2 (1 + x) [1 - 2 r x (1 - x)].

    f grows up to the smaller root x1 = (1 - sqrt(1 - 2 / r)) / 2 of 2 r x (1 - x) = 1, falls to the larger root and grows
    again up to x = 1; where r < 2 there is no root and it only grows. So sup f = max(f(1), f(x1)), and f(1) = 4 is the
    vector release alone. For r <= 2.77254 that is the larger one: the scalar release is then free.
    """
    ratio = (2 * vector / scalar) ** 2
    x = (1 - np.sqrt(np.maximum(1 - 2 / np.maximum(ratio, 2.0), 0.0))) / 2
    inner = (1 + x) ** 2 / (4 * vector**2) + (1 - x**2) ** 2 / scalar**2
    return np.maximum(vector**-2.0, np.where(ratio > 2, inner, 0.0))


@component("accountant", "joint_gaussian", revision=1, settings=NoSettings)
class JointGaussianAccountant(GdpAccountant):
    """Exact Gaussian composition that prices a mean and its mean squared norm by their joint sensitivity.

    As `gdp`, but a group of one vector release and one scalar release (the mean of the squared norms of the same clipped
    vectors, in the same rounds) costs what `joint_squared_mu` derives, because no client can move both to the full at
    once. Under zero_out and add_or_remove there is nothing to gain: a vector against nothing moves the two by a and a^2, both
    largest at a = C, so mu^2 = 1 / z_vector^2 + 1 / z_scalar^2 as in separate composition. Any other group is priced separately.
    """

    name = "joint_gaussian"

    def _squared_mu(self, entries: list[LedgerEntry]) -> float:
        groups: dict[object, list[LedgerEntry]] = defaultdict(list)
        for position, entry in enumerate(entries):
            groups[entry.group or position].append(entry)
        return math.fsum(self._squared_mu_of_group(group) for group in groups.values())

    @staticmethod
    def _squared_mu_of_group(group: list[LedgerEntry]) -> float:
        vectors = [entry for entry in group if entry.shape == "vector"]
        scalars = [entry for entry in group if entry.shape == "scalar"]
        if len(vectors) != 1 or len(scalars) != 1 or not _are_mean_and_squared_norms(vectors[0], scalars[0]):
            return _total_squared_mu(group)
        vector, scalar = vectors[0], scalars[0]
        if isinstance(vector.parameter, tuple) or isinstance(scalar.parameter, tuple):
            return float(np.sum(joint_squared_mu(vector.parameters(), scalar.parameters())))
        return vector.count * float(joint_squared_mu(vector.parameters()[:1], scalar.parameters()[:1])[0])


def _are_mean_and_squared_norms(vector: LedgerEntry, scalar: LedgerEntry) -> bool:
    """Whether the two fit the joint bound: replace_one, round by round, sensitivities 2C and C^2 (where they are known)."""
    if vector.quantity != "" or scalar.quantity != "squared_norms":
        return False
    if vector.relation != "replace_one" or vector.count != scalar.count:
        return False
    if vector.sensitivity is None or scalar.sensitivity is None:
        return True
    return math.isclose(scalar.sensitivity, (vector.sensitivity / 2) ** 2, rel_tol=1e-5)  # clip norms may be float32


# --- Rényi DP and zero-concentrated DP ------------------------------------------------------------------------------


class RdpSettings(Settings):
    """Settings of the RDP accountant."""

    conversion: Literal["cks", "mironov"] = "cks"


def pure_rdp(epsilon: float, excess: np.ndarray) -> np.ndarray:
    """Rényi divergence bound of an epsilon-DP mechanism at orders 1 + excess.

    Every epsilon-DP mechanism is a post-processing of randomised response at epsilon (Kairouz, Oh and Viswanath 2015),
    whose divergence of order a = 1 + x is ln(1 + (e^(x eps) - 1)(1 - e^(-a eps)) / (1 + e^-eps)) / x.
    """
    large = excess * epsilon > 30
    shrink = -np.expm1(-(1 + excess) * epsilon) / (1 + math.exp(-epsilon))
    # Beyond 30 the 1 in front is below rounding, and the rest is taken in logs.
    small = np.log1p(np.expm1(np.where(large, 0.0, excess * epsilon)) * shrink)
    return np.where(large, excess * epsilon + np.log(shrink) + 1e-13, small) / excess


def _smallest_over_orders(epsilon_of: Callable[[np.ndarray], np.ndarray]) -> float:
    """Minimum of a bound over orders 1 + x, x from 1e-9 to 1e18: a grid in ln x, refined around its smallest value.

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


@component("accountant", "rdp", revision=1, settings=RdpSettings)
class RdpAccountant(Accountant):
    """Rényi DP with the best real order: an upper bound for Gaussian and pure releases.

    A Gaussian release costs a / (2 z^2) at order a (Mironov 2017, Corollary 3), a pure one at most what randomised response
    does; orders add up. To (epsilon, delta): `cks` rdp + ln(1 - 1/a) - (ln delta + ln a) / (a - 1) (Canonne, Kamath and
    Steinke 2020, Proposition 12), or `mironov` rdp + ln(1/delta) / (a - 1) (Mironov 2017, Proposition 3).
    """

    name = "rdp"
    kinds = frozenset({"gaussian", "pure"})
    variants = ({}, {"conversion": "mironov"})

    @property
    def label(self) -> str:
        return "rdp" if self.settings.conversion == "cks" else f"rdp ({self.settings.conversion})"

    def _epsilon(self, entries: list[LedgerEntry], delta: float) -> float:
        rho = _total_squared_mu(entries) / 2
        pure = _pure_epsilons(entries)
        if rho == 0 and not pure:
            return 0.0
        improved = self.settings.conversion == "cks"

        def epsilon_of(excess: np.ndarray) -> np.ndarray:
            total = rho * (1 + excess)
            for value, count in pure.items():
                total = total + count * pure_rdp(value, excess)
            if improved:  # ln(1 - 1/a) = -ln(1 + 1/x) for a = 1 + x
                return total - np.log1p(1 / excess) - (math.log(delta) + np.log1p(excess)) / excess
            return total - math.log(delta) / excess

        return max(0.0, _smallest_over_orders(epsilon_of))


@component("accountant", "zcdp", revision=1, settings=NoSettings)
class ZcdpAccountant(Accountant):
    """Zero-concentrated DP: epsilon = rho + 2 sqrt(rho ln(1/delta)); simple and loose.

    A Gaussian release is rho = 1 / (2 z^2), an epsilon-DP one rho = epsilon^2 / 2; rho adds up (Bun and Steinke 2016,
    Propositions 1.6 and 1.4, Lemma 1.7, Proposition 1.3).
    """

    name = "zcdp"
    kinds = frozenset({"gaussian", "pure"})

    def _epsilon(self, entries: list[LedgerEntry], delta: float) -> float:
        pure = math.fsum(count * value**2 for value, count in _pure_epsilons(entries).items())
        rho = (_total_squared_mu(entries) + pure) / 2
        return rho + 2 * math.sqrt(rho * -math.log(delta))


# --- privacy loss distributions -------------------------------------------------------------------------------------


class PldSettings(Settings):
    """Settings of the PLD accountant."""

    interval: float | None = Field(default=None, gt=0)  # width of a grid cell of privacy loss; None: chosen by the ledger


@dataclass(frozen=True)
class _Grid:
    interval: float
    points: float


@component("accountant", "pld", revision=1, settings=PldSettings)
class PldAccountant(Accountant):
    """Privacy loss distributions composed on a grid, rounded up: a tight upper bound for Gaussian and pure releases.

    dp-accounting's pessimistic (connect-the-dots) distributions, composed by FFT. A pure release takes the distribution of
    randomised response, which dominates it. Refused above epsilon 500, where the grid would take more than 1 GiB, and at a
    delta so small that the rounding of the FFT would show; an allowance for that rounding is taken off delta.
    """

    name = "pld"
    kinds = frozenset({"gaussian", "pure"})
    tolerance = 1e-4

    largest_epsilon: ClassVar[float] = 500.0
    largest_grid: ClassVar[float] = 2.0**30  # bytes
    bytes_per_point: ClassVar[float] = 200.0  # measured peak of dp-accounting's construction
    usual_points: ClassVar[int] = 1 << 18
    most_levels: ClassVar[int] = 100  # distinct pure epsilons, one FFT each

    def _epsilon(self, entries: list[LedgerEntry], delta: float) -> float:
        squared_mu = [_squared_mu(entry) for entry in entries if entry.kind == "gaussian"]
        squared_mu = [value for value in squared_mu if value > 0]
        pure = _pure_epsilons(entries)
        if not squared_mu and not pure:
            return 0.0
        rounding = 1e-14 * (len(squared_mu) + sum(pure.values()))
        if delta < 100 * rounding:
            raise PrivacyError(
                f"pld cannot resolve delta={delta:g} in double precision: use accountant=rdp, "
                f"or a delta of at least {100 * rounding:.1g}"
            )
        if len(pure) > self.most_levels:
            raise PrivacyError(
                f"pld takes at most {self.most_levels} distinct pure epsilons, got {len(pure)}: use accountant=rdp"
            )
        bound = gaussian_epsilon(math.sqrt(math.fsum(squared_mu)), delta)
        if pure:
            bound = RdpAccountant(RdpSettings())._epsilon(entries, delta)
        if bound > self.largest_epsilon:
            raise TooLargeToPrice(
                f"pld is not computed above epsilon {self.largest_epsilon:g} (here about {bound:.4g}): "
                "use accountant=gdp, pure or rdp"
            )
        grid = self._grid(squared_mu, pure)
        if grid.points * self.bytes_per_point > self.largest_grid:
            raise TooLargeToPrice(
                f"pld would need about {grid.points * self.bytes_per_point / 2**30:.2g} GiB for its grid, more than 1 GiB: "
                "set a larger accountant.interval, or use accountant=rdp"
            )
        return self._compose(squared_mu, pure, grid.interval, delta - rounding)

    def _grid(self, squared_mu: list[float], pure: dict[float, int]) -> _Grid:
        # A Gaussian's losses are cut where e^-50 of the mass is left, about 10 standard deviations: mu^2 + 20 mu wide.
        width = math.fsum(value + 20 * math.sqrt(value) for value in squared_mu)
        width += math.fsum(2 * value * count for value, count in pure.items())
        interval = self.settings.interval
        if interval is None:
            interval = width / self.usual_points
            if len(pure) > 1:  # each epsilon is rounded up to the grid: keep the sum of that below 0.1 %
                total, count = math.fsum(value * n for value, n in pure.items()), sum(pure.values())
                interval = min(interval, 1e-3 * total / count)
            elif pure:  # a grid on which the epsilon lies
                (value,) = pure
                interval = value / math.ceil(value / interval)
        return _Grid(interval, width / interval)

    @staticmethod
    def _compose(squared_mu: list[float], pure: dict[float, int], interval: float, delta: float) -> float:
        from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution, from_gaussian_mechanism

        parts = [from_gaussian_mechanism(1 / math.sqrt(value), value_discretization_interval=interval) for value in squared_mu]
        for value, count in pure.items():
            # Randomised response at the next multiple of the interval, which dominates every mechanism of a smaller epsilon.
            cells = math.ceil(value / interval * (1 - 1e-14))
            odds = math.exp(-cells * interval)
            masses = {cells: 1 / (1 + odds), -cells: odds / (1 + odds)}
            response = PrivacyLossDistribution.create_from_rounded_probability(masses, 0.0, interval)
            parts.append(response.self_compose(count))
        whole = parts[0]
        for part in parts[1:]:
            whole = whole.compose(part)
        return float(whole.get_epsilon_for_delta(delta))


# --- pure composition -----------------------------------------------------------------------------------------------


@component("accountant", "pure", revision=1, settings=NoSettings)
class PureAccountant(Accountant):
    """Sum of pure epsilons: epsilon-DP whatever delta is; pure mechanisms only.

    Basic composition (Dwork and Roth 2014, Theorem 3.16). Messages of scope "client" add up along each client's own
    sequence; over clients, whose data are disjoint, the largest sum counts.
    """

    name = "pure"
    guarantee = "epsilon-DP"
    kinds = frozenset({"pure"})

    def _epsilon(self, entries: list[LedgerEntry], delta: float) -> float:
        return math.fsum(value * count for value, count in _pure_epsilons(entries).items())


# --- prices ---------------------------------------------------------------------------------------------------------

VACUOUS_EPSILON = 20.0  # above it, a guarantee says next to nothing


@dataclass(frozen=True)
class Price:
    """The epsilon of a ledger under one accountant, or the reason why there is none.

    Attributes:
      epsilon: upper bound; None where it is infinite or refused.
      reason: why there is no epsilon, else None.
      accountant: the accountant, with the settings that change what it computes.
      guarantee: the kind of guarantee, "(epsilon, delta)-DP" or "epsilon-DP".
      releases: number of releases composed.
      unit, relation, scope: of the ledger; None where it is empty or mixes them.
      vacuous: epsilon is above 20, or infinite.
    """

    epsilon: float | None
    reason: str | None
    accountant: str
    guarantee: str
    delta: float
    releases: int
    unit: str | None
    relation: str | None
    scope: str | None
    vacuous: bool


def price(ledger: Ledger, accountant: Accountant, delta: float) -> Price:
    """Prices a ledger; what the accountant refuses becomes a reason, not an error.

    Raises:
      ConfigError: delta is not between 0 and 1.
    """
    check_delta(delta)
    epsilon: float | None = None
    reason = None
    try:
        epsilon = accountant.epsilon(ledger, delta)
    except PrivacyError as refusal:
        reason = str(refusal)
    vacuous = epsilon is not None and epsilon > VACUOUS_EPSILON
    if epsilon is not None and math.isinf(epsilon):
        epsilon, reason = None, "not private"
    return Price(
        epsilon=epsilon,
        reason=reason,
        accountant=accountant.label,
        guarantee=accountant.guarantee,
        delta=delta,
        releases=ledger.releases,
        unit=_common(ledger, "unit"),
        relation=_common(ledger, "relation"),
        scope=_common(ledger, "scope"),
        vacuous=vacuous,
    )


def price_all(ledger: Ledger, delta: float) -> list[Price]:
    """The ledger under every registered accountant (and its `variants`), refusals included."""
    known = components("accountant")
    return [price(ledger, accountant(name, options), delta) for name in known for options in known[name].target.variants]


def _common(ledger: Ledger, what: str) -> str | None:
    values = {str(getattr(entry, what)) for entry in ledger.entries if entry.count}
    return values.pop() if len(values) == 1 else None
