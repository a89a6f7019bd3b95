"""PrivUnit x ScalarDP: pure local DP for vectors, with an estimate of their norms.

Takakura et al. (arXiv 2504.09850), appendix D and Algorithms 3-5, after Bhowmick et al. (arXiv 1812.00984); the optimal
split of the direction's budget is Asi et al. (arXiv 2205.02466). A client whose clipped update is v = r u, with ||u|| = 1 and
0 <= r <= C, sends c = s z:

* z = PrivUnit(u): V is uniform on the cap {<V, u> >= gamma} of the sphere with probability p = e^e0 / (1 + e^e0), and
  uniform on its complement otherwise; z = V / m, so that E z = u and ||z|| = 1 / m. (The paper prints "with probability
  gamma" for p; with gamma z would be biased.)
* s = ScalarDP(r): r is rounded at random to the grid {0, C / k, ..., C}, k = ceil(e^(e2 / 3)), kept with probability
  e^e2 / (e^e2 + k), otherwise replaced by another grid point, and made unbiased: s = a (J - b), E s = r. (The paper prints
  k = e^ceil(e2 / 3), which is no integer.)
* NormEst(c), by anybody: ||c|| = |s| / m gives J, and from it an estimate of r^2 that is at most C^2 / (4 k^2) too small.

Densities of c for any two inputs differ by at most e^(e0 + e1 + e2), so a release is (e0 + e1 + e2)-DP, under replace_one and
therefore under every relation. That sum is what the ledger is charged. With the paper's rule for gamma the cap is larger
than e1 allows, and the exact loss is smaller: `exact_epsilon`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any, ClassVar, Literal

import numpy as np
import scipy  # it imports its parts when they are used
import torch
from pydantic import Field
from torch import Tensor

from dpfl_cli.config.component import Settings, component
from dpfl_cli.config.errors import ConfigError, PrivacyError
from dpfl_cli.data.devices import on_device
from dpfl_cli.privacy.bounded import Bounded, Relation, vector_norms
from dpfl_cli.privacy.client_values import client_values
from dpfl_cli.privacy.ledger import LedgerEntry
from dpfl_cli.privacy.mechanism import Mechanism, Release, ReleaseSpec, Site

GammaRule = Literal["paper", "exact"]
_NULL_NORM = 1e-30  # shorter vectors have no direction that float32 could carry; they count as zero
_SIGN_MARGIN = 2e-3  # how far 2b must be from an integer for NormEst to tell signs in float32 (its tolerance is 1e-3)


class PrivUnitSettings(Settings):
    """Settings of PrivUnit x ScalarDP.

    Attributes:
      epsilon_cap: e0, the budget of the choice between cap and complement.
      epsilon_direction: e1, the budget that bounds the cap's size.
      epsilon_norm: e2, the budget of the norm.
      epsilon: a total per round that replaces the three, split in their proportions; None for their sum.
      gamma_rule: the cap's threshold: "paper" (its sufficient condition) or "exact" (the largest that e1 allows).
      split: "given", or "optimal" for the split of e0 + e1 with the least mean squared error.
    """

    epsilon_cap: float = Field(gt=0, allow_inf_nan=False)
    epsilon_direction: float = Field(gt=0, allow_inf_nan=False)
    epsilon_norm: float = Field(gt=0, allow_inf_nan=False)
    epsilon: float | None = Field(gt=0, allow_inf_nan=False)
    gamma_rule: GammaRule
    split: Literal["given", "optimal"]


@dataclass(frozen=True)
class Cap:
    """The constants of PrivUnit in d dimensions.

    Attributes:
      epsilon_cap, epsilon_direction: e0, e1 after the split.
      threshold: gamma.
      mass: P(<V, u> >= gamma) for V uniform on the sphere.
      inside: p, the probability of the cap.
      scale: m, the mean of <V, u>.
    """

    epsilon_cap: float
    epsilon_direction: float
    threshold: float
    mass: float
    inside: float
    scale: float

    @property
    def mean_squared_error(self) -> float:
        """E ||z - u||^2 = 1 / m^2 - 1."""
        return self.scale**-2 - 1

    @property
    def exact_epsilon(self) -> float:
        """The log of the largest ratio of V's densities: e0 + ln((1 - mass) / mass), at most e0 + e1."""
        return self.epsilon_cap + math.log1p(-self.mass) - math.log(self.mass)


@dataclass(frozen=True)
class Grid:
    """The constants of ScalarDP and NormEst for C = 1.

    Attributes:
      levels: k.
      keep: the probability that a grid point is kept.
      step: a, for C = 1.
      shift: b.
      linear, constant: c1 and c3 of NormEst, for C = 1 (and c2 = -c1).
    """

    levels: int
    keep: float
    step: float
    shift: float
    linear: float
    constant: float


def budgets(settings: PrivUnitSettings) -> tuple[float, float, float]:
    """(e0, e1, e2) as set, or scaled so that they sum to `epsilon`; before an optimal split."""
    parts = settings.epsilon_cap, settings.epsilon_direction, settings.epsilon_norm
    if settings.epsilon is None:
        return parts
    share = settings.epsilon / sum(parts)
    return parts[0] * share, parts[1] * share, parts[2] * share


def spent_epsilon(settings: PrivUnitSettings) -> float:
    """e0 + e1 + e2, what one release is charged."""
    return sum(budgets(settings)) if settings.epsilon is None else settings.epsilon


def exact_epsilon(settings: PrivUnitSettings, dimension: int) -> float:
    """The smallest epsilon for which one release in d dimensions is epsilon-DP; at most `spent_epsilon`.

    The ratio of densities is largest for two inputs whose caps do not coincide and whose norms are 0 and C; both parts can be
    read from c = s z, so the two losses add. With the paper's rule and 2 + 2 + 2 it is 5.5859 at d = 100.
    """
    return cap_of(settings, dimension).exact_epsilon + budgets(settings)[2]


def cap_of(settings: PrivUnitSettings, dimension: int) -> Cap:
    """PrivUnit's constants under these settings; a ConfigError below two dimensions."""
    cap, direction, _ = budgets(settings)
    if settings.split == "optimal":
        return optimal_cap(cap + direction, settings.gamma_rule, dimension)
    return make_cap(cap, direction, settings.gamma_rule, dimension)


@lru_cache(maxsize=4096)
def make_cap(epsilon_cap: float, epsilon_direction: float, rule: GammaRule, dimension: int) -> Cap:
    """PrivUnit's constants.

    m in logs (no incomplete beta functions are subtracted, no 2^d is formed; right to 1e-11 at d = 5046):
    m = (1 - gamma^2)^a / ((d - 1) B(a, 1/2)) * (p / mass - (1 - p) / (1 - mass)), a = (d - 1) / 2, which is the paper's
    formula with the duplication 2^(d-2) B(a, a) = B(a, 1/2).
    """
    _check_dimension(dimension)
    a = (dimension - 1) / 2
    threshold, gap = exact_threshold(epsilon_direction, dimension)
    if rule == "paper" and (lower := paper_threshold(epsilon_direction, dimension)) < threshold:
        threshold, gap = lower, 1 - lower
    inside, outside = float(scipy.special.expit(epsilon_cap)), float(scipy.special.expit(-epsilon_cap))
    if gap < 0.5:
        mass = 0.5 * float(scipy.special.betainc(a, 0.5, gap * (2 - gap)))
        log_squared_sine = math.log(gap * (2 - gap)) if gap > 0 else -math.inf
    else:
        mass = 0.5 * float(scipy.special.betaincc(0.5, a, threshold**2))
        log_squared_sine = math.log1p(-(threshold**2))
    if mass <= 0:
        raise ConfigError(
            f"mechanism.epsilon_direction={epsilon_direction:g}: the cap is too small to draw from; choose a lower value"
        )
    log_prefactor = a * log_squared_sine - math.log(dimension - 1) - float(scipy.special.betaln(a, 0.5))
    scale = math.exp(log_prefactor) * (inside / mass - outside / (1 - mass))
    return Cap(epsilon_cap, epsilon_direction, threshold, mass, inside, scale)


@lru_cache(maxsize=4096)
def optimal_cap(epsilon: float, rule: GammaRule, dimension: int) -> Cap:
    """The split of e0 + e1 = epsilon that minimises the mean squared error, that is, maximises m (Asi et al. 2022)."""
    from scipy.optimize import minimize_scalar  # importing it takes a quarter of a second

    _check_dimension(dimension)

    def loss(share: float) -> float:
        return -math.log(make_cap(share * epsilon, (1 - share) * epsilon, rule, dimension).scale)

    found = minimize_scalar(loss, bounds=(1e-9, 1 - 1e-9), method="bounded", options={"xatol": 1e-10})
    return make_cap(float(found.x) * epsilon, (1 - float(found.x)) * epsilon, rule, dimension)


def exact_threshold(epsilon: float, dimension: int) -> tuple[float, float]:
    """The largest gamma with P(<V, u> >= gamma) >= 1 / (1 + e^epsilon), which spends all of epsilon; and 1 - gamma.

    Each of the two keeps its digits where it is small.
    """
    a = (dimension - 1) / 2
    gap = 2 * float(scipy.special.betaincinv(a, a, scipy.special.expit(-epsilon)))
    if gap < 0.5:
        return 1 - gap, gap
    # P(|<V, u>| < gamma) = tanh(epsilon / 2)
    threshold = math.sqrt(float(scipy.special.betaincinv(0.5, a, math.tanh(epsilon / 2))))
    return threshold, 1 - threshold


def paper_threshold(epsilon: float, dimension: int) -> float:
    """The paper's gamma (Algorithm 3): the larger of two sufficient conditions.

    (a) gamma <= tanh(e1 / 2) sqrt(pi / (2 (d - 1))); (b) gamma >= sqrt(2 / d) and
    e1 >= ln(d) / 2 + ln 6 - (d - 1) / 2 ln(1 - gamma^2) + ln gamma. At e1 = 2 no gamma meets (b).
    In two dimensions (a) can exceed what e1 allows, so the constants take no larger one than the exact rule's.
    """
    first = math.tanh(epsilon / 2) * math.sqrt(math.pi / (2 * (dimension - 1)))

    def excess(gamma: float) -> float:  # grows with gamma
        cost = 0.5 * math.log(dimension) + math.log(6) - (dimension - 1) / 2 * math.log1p(-(gamma**2)) + math.log(gamma)
        return cost - epsilon

    least, most = math.sqrt(2 / dimension), math.nextafter(1.0, 0.0)
    if least >= most or excess(least) > 0:
        return first
    from scipy.optimize import brentq

    return max(first, most if excess(most) <= 0 else float(brentq(excess, least, most, xtol=1e-15)))


@lru_cache(maxsize=4096)
def make_grid(epsilon: float) -> Grid:
    """ScalarDP's constants; a ConfigError where NormEst could not tell the sign of s.

    s = a (J - b) is negative where J < b, and |s| / a + b is then 2b - J: as long as 2b is no integer, the sign is known.
    """
    growth = math.exp(min(epsilon, 700.0))
    levels = math.ceil(math.exp(min(epsilon, 700.0) / 3))
    twice = levels * (levels + 1) / (growth + levels)
    if abs(twice - round(twice)) < _SIGN_MARGIN:
        raise ConfigError(
            f"mechanism.epsilon_norm={epsilon:g}: the estimate of norms cannot tell signs there (2b = {twice:.6g} is an integer "
            "or close to one); choose another value, up to 18"
        )
    k, c1 = levels, (levels + 1) / math.expm1(epsilon)
    variance = (2 * k + 1) * (growth + k) / (6 * k * math.expm1(epsilon)) - (k + 1) / (4 * math.expm1(epsilon))
    return Grid(
        levels=k,
        keep=growth / (growth + k),
        step=(growth + k) / math.expm1(epsilon) / k,
        shift=twice / 2,
        linear=c1,
        constant=(c1 + 1) / (4 * k**2) + c1 * variance,
    )


def _check_dimension(dimension: int) -> None:
    if dimension < 2:
        raise ConfigError(f"mechanism=privunit needs at least 2 model parameters, not {dimension}; use mechanism=local_gaussian")


@component("mechanism", "privunit", revision=1, settings=PrivUnitSettings)
class PrivUnit(Mechanism):
    """PrivUnit x ScalarDP: every client sends a pure-DP direction and norm (local trust).

    All randomness comes from streams `noise/<release>/...`, one address per run, round and client.
    """

    trusts: ClassVar[frozenset[str]] = frozenset({"local"})
    shapes: ClassVar[frozenset[str]] = frozenset({"vector"})
    noise_field: ClassVar[str | None] = "epsilon"

    def __init__(self, settings: Sequence[Any], site: Site) -> None:
        super().__init__(settings, site)
        caps = [cap_of(one, site.dimension) for one in self.settings]
        grids = [make_grid(budgets(one)[2]) for one in self.settings]
        self._cap = {name: np.array([[getattr(cap, name)] for cap in caps]) for name in ("mass", "inside", "scale")}
        self._grid = {one.name: np.array([[getattr(grid, one.name)] for grid in grids], float) for one in fields(Grid)}

    @classmethod
    def check(cls, settings: Any, dimension: int) -> None:
        """The constants of the cap and of the grid exist."""
        cap_of(settings, dimension)
        make_grid(budgets(settings)[2])

    @classmethod
    def entry(cls, settings: Any, spec: ReleaseSpec, relation: Relation, unit: str, dimension: int, clients: int) -> LedgerEntry:
        """A pure event of e0 + e1 + e2, whatever the rule for gamma."""
        _check_dimension(dimension)
        epsilon = spent_epsilon(settings)
        return LedgerEntry(spec.name, "pure", 1, epsilon, None, relation, unit, "client", spec.group, spec.shape)

    def release(self, name: str, values: Bounded, rounds: np.ndarray, charged: np.ndarray | None = None) -> Release:
        """Messages c = s z [R, M, d]; a client's echo is its own message.

        A vector with norm 0 has a direction drawn uniformly from the sphere, and so has its V.
        """
        _, address = self._begin(name, values, rounds, charged)
        contributions = values.checked()
        _, clients, size = contributions.shape
        if size != self.site.dimension:
            raise PrivacyError(f"release '{name}' has {size} dimensions, but privunit was set up for {self.site.dimension}")
        streams, device, dtype = self.site.streams, contributions.device, contributions.dtype

        def uniform(part: str) -> Tensor:
            return streams.uniform(f"noise/{name}/{part}", address, clients, 1)[..., 0]

        cosine = self._cosine(uniform("cap").numpy(), uniform("quantile").numpy())
        cosine = on_device(cosine, device)
        norms = vector_norms(contributions)
        bound = values.bound.double().unsqueeze(-1)
        dice = [on_device(uniform(part), device) for part in ("round", "keep", "other")]
        length = self._private_norm(norms, bound, *dice) / on_device(self._cap["scale"], device)

        # x = (cosine, sine * a random direction of the other d - 1 coordinates) has <x, e_1> = cosine. The reflection
        # that takes e_1 to -+u, along w = u +- e_1 (the sign that keeps w away from 0), takes x to V:
        # V = -+(x - w <w, x> / (1 + |u_1|)). It keeps lengths to rounding, near e_1 too, and needs no orthogonalisation.
        null = norms < _NULL_NORM
        x = streams.normal(f"noise/{name}/direction", address, clients, size, dtype, device)
        rest = vector_norms(x[..., 1:])
        x[..., 1] = torch.where(rest == 0, torch.ones_like(x[..., 1]), x[..., 1])  # float32 can draw an exact 0, at d = 2
        rest = torch.where(rest == 0, torch.ones_like(rest), rest)
        first = x[..., 0].double()
        cosine = torch.where(null, first / torch.hypot(first, rest), cosine)
        sine = ((1 - cosine) * (1 + cosine)).sqrt()
        x.mul_((sine / rest).to(dtype).unsqueeze(-1))
        x[..., 0] = cosine.to(dtype)
        divisor = torch.where(null, torch.ones_like(norms), norms)
        head = contributions[..., 0].double() / divisor
        inner = (contributions * x).sum(dim=-1).double() / divisor
        sign = torch.where(head >= 0, 1.0, -1.0).double()
        along = (inner + sign * cosine) / (1 + head.abs())
        along = torch.where(null, torch.zeros_like(along), along)
        x.mul_((torch.where(null, torch.ones_like(sign), -sign) * length).to(dtype).unsqueeze(-1))
        x.addcmul_(contributions, (sign * along * length / divisor).to(dtype).unsqueeze(-1))
        x[..., 0] += (along * length).to(dtype)

        received = self._charged_only(x, charged)
        return Release(received, received.mean(dim=1), client_values(received), values.bound)

    def squared_norms(self, release: Release) -> Tensor:
        """[R, M] NormEst of the messages (Algorithm 5).

        Its expectation is r^2 - (C / k)^2 (1/4 - f (1 - f)), r = ||v_i||, f = frac(k r / C).
        """
        received = release.received
        grid = {name: on_device(value, received.device) for name, value in self._grid.items()}
        bound = release.bound.double().unsqueeze(-1)
        size = vector_norms(received) * on_device(self._cap["scale"], received.device) / bound  # |s| / C
        level = size / grid["step"] + grid["shift"]
        tolerance = 1e-6 if received.dtype == torch.float64 else 1e-3
        nearest = level.round()
        positive = ((level - nearest).abs() <= tolerance) & (nearest >= 0) & (nearest <= grid["levels"])
        signed = torch.where(positive, size, -size)
        linear = grid["linear"]
        return (bound.square() * (signed.square() + linear * signed - grid["constant"]) / (1 + linear)).to(received.dtype)

    def _cosine(self, choice: np.ndarray, quantile: np.ndarray) -> Tensor:
        """<V, u> by inversion, from two uniform draws [R, M]: in the cap with probability p, else in its complement."""
        a = (self.site.dimension - 1) / 2
        inside = choice < self._cap["inside"]
        mass = np.where(inside, self._cap["mass"], 1 - self._cap["mass"])
        # (1 + <V, u>) / 2 is Beta(a, a); the tail's probability is inverted from the tail's own side, where it is exact
        tail = scipy.special.betaincinv(a, a, mass * (1 - quantile))
        return torch.from_numpy(np.where(inside, 1 - 2 * tail, 2 * tail - 1))

    def _private_norm(self, norms: Tensor, bound: Tensor, rounding: Tensor, keep: Tensor, other: Tensor) -> Tensor:
        """ScalarDP (Algorithm 4) of norms [R, M], from three uniform draws."""
        grid = {name: on_device(value, norms.device) for name, value in self._grid.items()}
        levels = grid["levels"]
        position = levels * (norms / bound).clamp(max=1)
        below = position.floor()
        level = below + (rounding < position - below)
        replacement = torch.minimum((other * levels).floor(), levels - 1)
        replacement = replacement + (replacement >= level)
        level = torch.where(keep < grid["keep"], level, replacement)
        return bound * grid["step"] * (level - grid["shift"])
