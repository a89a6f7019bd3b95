"""The constants of PrivUnit x ScalarDP: the cap of the sphere, and the grid of norms.

Notation as in `privunit`; e0, e1, e2 are the budgets of the choice between cap and complement, of
the cap's size and of the norm.
"""

import math
from functools import lru_cache
from typing import Literal, NamedTuple

import scipy  # it imports its parts when they are used
from pydantic import PositiveFloat

from dpfl_cli.config.component import PositiveOrNone, Settings
from dpfl_cli.config.errors import ConfigError

GammaRule = Literal["paper", "exact"]
# how far 2b must be from an integer for NormEst to tell signs in float32 (its tolerance is 1e-3)
_SIGN_MARGIN = 2e-3


LARGEST_CAP = 30.0  # e0: beyond 37 expit(e0) is 1, and random numbers of 53 bits are near that
SMALLEST_SCALE = 1e-12  # m: messages have lengths of up to a thousand times C / m
LARGEST_DIRECTION = 24.0  # e1 of the exact rule: beyond, 1 - tanh(e1 / 2) is rounding


class PrivUnitSettings(Settings):
    """Settings of PrivUnit x ScalarDP.

    Attributes:
      epsilon_cap: e0, the budget of the choice between cap and complement.
      epsilon_direction: e1, the budget that bounds the cap's size.
      epsilon_norm: e2, the budget of the norm.
      epsilon: a total per round that replaces the three, split in their proportions; None for their
        sum.
      gamma_rule: the cap's threshold: "paper" (its sufficient condition) or "exact" (the largest
        that e1 allows).
      split: "given", or "optimal" for the split of e0 + e1 with the least mean squared error.
    """

    epsilon_cap: PositiveFloat
    epsilon_direction: PositiveFloat
    epsilon_norm: PositiveFloat
    epsilon: PositiveOrNone
    gamma_rule: GammaRule
    split: Literal["given", "optimal"]


class Cap(NamedTuple):
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


class Grid(NamedTuple):
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


def cap_of(settings: PrivUnitSettings, dimension: int) -> Cap:
    """PrivUnit's constants under these settings; a ConfigError below two dimensions, or where the
    probability of a side would be lost.
    """
    cap, direction, _ = budgets(settings)
    if settings.split == "optimal":
        found = optimal_cap(cap + direction, settings.gamma_rule, dimension)
    else:
        found = make_cap(cap, direction, settings.gamma_rule, dimension)
    if found.epsilon_cap > LARGEST_CAP:
        raise ConfigError(
            f"mechanism.epsilon_cap={found.epsilon_cap:g}, as set or split: above {LARGEST_CAP:g} "
            "the other side is hardly ever drawn, beyond 37 never, so that no epsilon would hold; "
            "write less"
        )
    return found


def make_cap(epsilon_cap: float, epsilon_direction: float, rule: GammaRule, dimension: int) -> Cap:
    """PrivUnit's constants.

    m in logs (no incomplete beta functions are subtracted, no 2^d is formed; right to 1e-11 at d =
    5046): m = (1 - gamma^2)^a / ((d - 1) B(a, 1/2)) * (p / mass - (1 - p) / (1 - mass)), a = (d -
    1) / 2, which is the paper's formula with the duplication 2^(d-2) B(a, a) = B(a, 1/2).
    """
    check_dimension(dimension)
    a = (dimension - 1) / 2
    threshold, gap = exact_threshold(epsilon_direction, dimension)
    if rule == "paper" and (lower := paper_threshold(epsilon_direction, dimension)) < threshold:
        threshold, gap = lower, 1 - lower
    elif epsilon_direction > LARGEST_DIRECTION:
        raise ConfigError(
            f"mechanism.epsilon_direction={epsilon_direction:g}: above {LARGEST_DIRECTION:g} the "
            "exact rule's probability loses its digits, and a release would cost more than is "
            "charged; write less, or mechanism.gamma_rule=paper"
        )
    inside = float(scipy.special.expit(epsilon_cap))
    outside = float(scipy.special.expit(-epsilon_cap))
    if gap < 0.5:
        mass = 0.5 * float(scipy.special.betainc(a, 0.5, gap * (2 - gap)))
        log_squared_sine = math.log(gap * (2 - gap)) if gap > 0 else -math.inf
    else:
        mass = 0.5 * float(scipy.special.betaincc(0.5, a, threshold**2))
        log_squared_sine = math.log1p(-(threshold**2))
    least = float(scipy.special.expit(-epsilon_direction))  # for which e1 pays
    if mass < (1 - 1e-12) * least:  # by rounding, where e1 is minute or above 10
        mass = least
    if mass <= 0:
        raise ConfigError(
            f"mechanism.epsilon_direction={epsilon_direction:g}: the cap is too small to draw "
            "from; choose a lower value"
        )
    log_prefactor = (
        a * log_squared_sine - math.log(dimension - 1) - float(scipy.special.betaln(a, 0.5))
    )
    scale = math.exp(log_prefactor) * (inside / mass - outside / (1 - mass))
    if scale < SMALLEST_SCALE:
        raise ConfigError(
            f"mechanism.epsilon_cap={epsilon_cap:g} and mechanism.epsilon_direction="
            f"{epsilon_direction:g}, as set or split: messages would be so long that numbers "
            "overflow, which tells what is in them; write more"
        )
    return Cap(epsilon_cap, epsilon_direction, threshold, mass, inside, scale)


@lru_cache(maxsize=4096)
def optimal_cap(epsilon: float, rule: GammaRule, dimension: int) -> Cap:
    """The split of e0 + e1 = epsilon that minimises the mean squared error, that is, maximises m
    (Asi et al. 2022).
    """
    from scipy.optimize import minimize_scalar  # importing it takes a quarter of a second

    def split(share: float) -> Cap:
        return make_cap(share * epsilon, (1 - share) * epsilon, rule, dimension)

    found = minimize_scalar(
        lambda share: -math.log(split(share).scale),
        bounds=(1e-9, 1 - 1e-9),
        method="bounded",
        options={"xatol": 1e-10},
    )
    return split(float(found.x))


def exact_threshold(epsilon: float, dimension: int) -> tuple[float, float]:
    """The largest gamma with P(<V, u> >= gamma) >= 1 / (1 + e^epsilon), which spends all of
    epsilon; and 1 - gamma.

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
    In two dimensions (a) can exceed what e1 allows, so the constants take no larger one than the
    exact rule's.
    """
    first = math.tanh(epsilon / 2) * math.sqrt(math.pi / (2 * (dimension - 1)))

    def excess(gamma: float) -> float:  # grows with gamma
        cost = (
            0.5 * math.log(dimension)
            + math.log(6)
            - (dimension - 1) / 2 * math.log1p(-(gamma**2))
            + math.log(gamma)
        )
        return cost - epsilon

    least, most = math.sqrt(2 / dimension), math.nextafter(1.0, 0.0)
    if least >= most or excess(least) > 0:
        return first
    from scipy.optimize import brentq

    return max(first, most if excess(most) <= 0 else float(brentq(excess, least, most, xtol=1e-15)))


def make_grid(epsilon: float) -> Grid:
    """ScalarDP's constants; a ConfigError where NormEst could not tell the sign of s.

    s = a (J - b) is negative where J < b, and |s| / a + b is then 2b - J: as long as 2b is no
    integer, the sign is known.
    """
    growth = math.exp(min(epsilon, 700.0))
    k = math.ceil(math.exp(min(epsilon, 700.0) / 3))
    twice = k * (k + 1) / (growth + k)
    if abs(twice - round(twice)) < _SIGN_MARGIN:
        raise ConfigError(
            f"mechanism.epsilon_norm={epsilon:g}: the estimate of norms cannot tell signs there "
            f"(2b = {twice:.6g} is an integer "
            "or close to one); choose another value, up to 18"
        )
    excess = math.expm1(epsilon)
    c1 = (k + 1) / excess
    variance = (2 * k + 1) * (growth + k) / (6 * k * excess) - (k + 1) / (4 * excess)
    return Grid(
        levels=k,
        keep=growth / (growth + k),
        step=(growth + k) / excess / k,
        shift=twice / 2,
        linear=c1,
        constant=(c1 + 1) / (4 * k**2) + c1 * variance,
    )


def check_dimension(dimension: int) -> None:
    if dimension < 2:
        raise ConfigError(
            f"mechanism=privunit needs at least 2 model parameters, not {dimension}; use "
            "mechanism=local_gaussian"
        )
