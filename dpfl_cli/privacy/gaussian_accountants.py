"""Exact composition of Gaussian releases, apart or with a mean and its mean squared norm priced
together.
"""

import math
from collections import defaultdict
from functools import lru_cache

import numpy as np

from dpfl_cli.config.component import Settings, component
from dpfl_cli.privacy.accountants import Accountant
from dpfl_cli.privacy.kinds import Gaussian
from dpfl_cli.privacy.ledger import Entries

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(20)


def gaussian_log_delta(mu: float, excess: float) -> float:
    """ln delta of the Gaussian mechanism with mean shift mu at epsilon = mu * excess.

    delta(eps) = Phi(-s) - e^eps Phi(-s - mu) with s = eps / mu - mu / 2 (Balle and Wang 2018,
    Theorem 8; Dong, Roth and Su 2022, Corollary 2.13). As e^eps phi(s + mu) = phi(s), this is
    phi(s) (R(s) - R(s + mu)) with the Mills ratio R(t) = Phi(-t) / phi(t), which neither over- nor
    underflows. For small mu the difference is taken as the integral of -R'(t) = 1 - t R(t), so that
    nothing cancels.

    Args:
      mu: the mean shift in units of the standard deviation, positive.
      excess: eps / mu, at least 0.
    """
    from scipy.special import erfcx, ndtr

    s, root = excess - mu / 2, math.sqrt(2)
    mills = math.sqrt(math.pi / 2)
    if mu <= 1:
        t = s + mu * ((_NODES + 1) / 2)
        difference = mu * (_WEIGHTS / 2 @ (1 - t * mills * erfcx(t / root)))
    elif s >= 0:
        difference = mills * (erfcx(s / root) - erfcx((s + mu) / root))
    else:
        density = math.exp(-s * s / 2) / math.sqrt(2 * math.pi)
        return math.log(ndtr(-s) - density * mills * erfcx((s + mu) / root))
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
    # delta(eps) <= Phi(-s) bounds s, hence epsilon / mu = s + mu / 2, from above
    below, above = 0.0, (mu / 2 - float(ndtri(delta))) * (1 + 1e-12) + 1e-12
    while True:
        middle = (below + above) / 2
        if not below < middle < above:
            return mu * above
        if gaussian_log_delta(mu, middle) <= log_delta:
            above = middle
        else:
            below = middle


@component("accountant", "gdp", Settings)
class GdpAccountant(Accountant):
    """Exact composition of Gaussian releases (Gaussian DP): no slack, Gaussian noise only.

    Releases with multipliers z_i compose to one Gaussian mechanism with mu = sqrt(sum 1 / z_i^2)
    (Dong, Roth and Su 2022, Corollary 3.3), whose delta(epsilon) is known in closed form (Balle and
    Wang 2018, Theorem 8).
    """

    curve = "squared_mu"

    def _epsilon(self, entries: Entries, delta: float) -> float:
        return gaussian_epsilon(math.sqrt(self._squared_mu(entries)), delta)

    def _squared_mu(self, entries: Entries) -> float:
        return Gaussian().squared_mu(entries)


def joint_squared_mu(vector: np.ndarray, scalar: np.ndarray) -> np.ndarray:
    """mu^2 of releasing a mean of clipped vectors and the mean of their squared norms together,
    under replace_one.

    One client's vector u becomes v, with norms a >= b (the case a < b is the mirror image) of at
    most C. The mean moves by at most (a + b) / M, reached by opposite directions, and the mean
    squared norm by (a^2 - b^2) / M. With standard deviations s1 / M and s2 / M the two independent
    Gaussians are one Gaussian with

      mu^2 = (a + b)^2 / s1^2 + (a^2 - b^2)^2 / s2^2 = (a + b)^2 [1 / s1^2 + (a - b)^2 / s2^2],

    which grows with a, so a = C. With x = b / C and r = (C s1 / s2)^2 = (2 z_vector / z_scalar)^2
    (as s1 = 2C z_vector and s2 = C^2 z_scalar):

      mu^2  = f(x) / (4 z_vector^2),   f(x) = (1 + x)^2 [1 + r (1 - x)^2],
      f'(x) = 2 (1 + x) [1 - 2 r x (1 - x)].

    f grows up to the smaller root x1 = (1 - sqrt(1 - 2 / r)) / 2 of 2 r x (1 - x) = 1, falls to the
    larger root and grows again up to x = 1; where r < 2 there is no root and it only grows. So
    sup f = max(f(1), f(x1)), and f(1) = 4 is the vector release alone. For r <= 2.77254 that is the
    larger one: the scalar release is then free.

    Args:
      vector: noise multipliers of the vector release, std / (2C / M).
      scalar: noise multipliers of the scalar release, std / (C^2 / M), of the same shape.

    Returns:
      mu^2 per release, of the same shape.
    """
    ratio = (2 * vector / scalar) ** 2
    x = (1 - np.sqrt(np.maximum(1 - 2 / np.maximum(ratio, 2.0), 0.0))) / 2
    inner = (1 + x) ** 2 / (4 * vector**2) + (1 - x**2) ** 2 / scalar**2
    return np.maximum(vector**-2.0, np.where(ratio > 2, inner, 0.0))


@component("accountant", "joint_gaussian", Settings)
class JointGaussianAccountant(GdpAccountant):
    """Exact Gaussian composition that prices a mean and its mean squared norm by their joint
    sensitivity.

    As `gdp`, but a group of one vector release and one scalar release (the mean of the squared
    norms of the same clipped vectors, in the same rounds) costs what `joint_squared_mu` derives,
    because no client can move both to the full at once. Under zero_out and add_or_remove there is
    nothing to gain: a vector against nothing moves the two by a and a^2, both largest at a = C, so
    mu^2 = 1 / z_vector^2 + 1 / z_scalar^2 as in separate composition. Any other group is priced
    separately.
    """

    def _squared_mu(self, entries: Entries) -> float:
        groups: dict[object, Entries] = defaultdict(list)
        for position, entry in enumerate(entries):
            groups[entry.group or position].append(entry)
        return math.fsum(self._squared_mu_of_group(group) for group in groups.values())

    def _squared_mu_of_group(self, group: Entries) -> float:
        pair = sorted(group, key=lambda entry: entry.shape, reverse=True)  # the vector first
        if not _are_mean_and_squared_norms(pair):
            return super()._squared_mu(group)
        multipliers = [entry.parameters() for entry in pair]
        if any(isinstance(entry.parameter, tuple) for entry in pair):
            return joint_squared_mu(*multipliers).sum()
        return pair[0].count * joint_squared_mu(*(part[:1] for part in multipliers))[0]


def _are_mean_and_squared_norms(entries: Entries) -> bool:
    """Whether they are the two of the joint bound: replace_one of whole clients (a record may move
    the vector and its norm fully), round by round, sensitivities 2C and C^2 (where they are known).
    """
    kinds = [(entry.shape, entry.quantity) for entry in entries]
    if kinds != [("vector", ""), ("scalar", "squared_norms")]:
        return False
    vector, scalar = entries
    if (vector.unit, vector.relation, vector.count) != ("client", "replace_one", scalar.count):
        return False
    if vector.sensitivity is None or scalar.sensitivity is None:
        return True
    # clip norms may be float32
    return math.isclose(scalar.sensitivity, (vector.sensitivity / 2) ** 2, rel_tol=1e-5)
