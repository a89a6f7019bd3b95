"""The closed-form calculator of DP-ScaffNew: how many local steps, and how many iterations,
minimise its utility bound.

With N clients, d parameters, losses f_i that are mu-strongly convex and L-smooth, step size eta, a
communication in every iteration with probability p, and noise of standard deviation sigma on every
coordinate of every message, T iterations leave

    E psi_T <= B = rho^T psi_0 + p N d sigma^2 / (1 - rho),    rho = max(1 - mu eta, 1 - p^2)
    (Theorem 1) psi_t = sum_i ||x_t^(i) - x*||^2 + (eta / p)^2 sum_i ||h_t^(i) - grad f_i(x*)||^2

For (epsilon, delta) over the p T messages that a client is expected to send, each of sensitivity S,

    sigma^2 = v S^2 p T ln(1 / delta) / epsilon^2
    (Lemma 1)

so more iterations come closer and cost more noise. B is smallest at (Corollary 1), with q = mu / L
and r = -ln(1 - q),

    eta* = 1 / L,    p* = sqrt(q),    T* = ln(psi_0 r / (N d s)) / r,    s = v S^2 ln(1 / delta) /
    epsilon^2

and at T* = 0 where the argument is at most 1: then the first iterations already cost more noise
than they come closer. At T > 0, p* is the only minimiser: a smaller p has the same noise and a
slower rate, a larger one the same rate and more noise. psi_0 is held fixed while p varies, as the
corollary does.

Read with the errata of the paper's analysis: rho is the rate (the printed theta stands for it and
for the coin), 1 - rho = min(mu eta, p^2), the one-step bound ends in p N d sigma^2, and epsilon's
upper limit u p T has an unspecified u and is left out.

Reference: Hou, Khirirat, Yaqub, Horvath, "Balancing Privacy and Performance for Private Federated
  Learning Algorithms", 2023, arXiv:2304.05127.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpfl_cli.config.errors import ConfigError

Numbers = NDArray[np.float64]
WORST_CONDITION = 1e30  # kappa; 1 / kappa keeps its digits in what is computed here


@dataclass(frozen=True)
class MessageNoise:
    """The noise of every message of a client, as Lemma 1 writes it.

    Attributes:
      constant: v.
      origin: where v comes from, in words.
      sensitivity: S, of one message.
      epsilon, delta: what all messages of a client are to cost.
    """

    constant: float
    origin: str
    sensitivity: float
    epsilon: float
    delta: float

    @property
    def per_release(self) -> float:
        """s = v S^2 ln(1 / delta) / epsilon^2, so that sigma^2 = s R for R messages (Lemma 1; z and
        v: see `privacy.nominal`).
        """
        ratio = self.sensitivity / self.epsilon
        return self.constant * ratio * ratio * -math.log(self.delta)


@dataclass(frozen=True)
class ScaffnewBound:
    """B and its minimisers for one problem.

    Attributes:
      strong_convexity: mu, 0 < mu <= L.
      smoothness: L.
      clients: N.
      dimension: d.
      potential: psi_0 > 0.
      noise: s >= 0, the variance of the noise on a coordinate of a message, per message that is
        sent.
    """

    strong_convexity: float
    smoothness: float
    clients: int
    dimension: int
    potential: float
    noise: float

    def __post_init__(self) -> None:
        """Refuses numbers of no problem, in one line."""
        mu, smooth = self.strong_convexity, self.smoothness
        if not 0 < mu <= smooth < math.inf:
            raise ConfigError(
                f"strong convexity mu={mu:g}, smoothness L={smooth:g}: must be positive and "
                f"finite, and L at least mu={mu:g}"
            )
        if self.condition > WORST_CONDITION:
            raise ConfigError(
                f"kappa=L/mu={self.condition:g}: more than {WORST_CONDITION:g} is no number"
            )
        if not 0 < self.potential < math.inf:
            raise ConfigError(
                f"psi_0={self.potential:g}: must be positive and finite; at 0 the start is the "
                "optimum"
            )
        if not 0 <= self.noise < math.inf:
            raise ConfigError(
                f"noise s={self.noise:g} per release: must be finite and not negative"
            )

    @property
    def condition(self) -> float:
        """kappa = L / mu."""
        return self.smoothness / self.strong_convexity

    @property
    def step(self) -> float:
        """eta* = 1 / L."""
        return 1.0 / self.smoothness

    @property
    def probability(self) -> float:
        """p* = sqrt(mu / L)."""
        return math.sqrt(self.strong_convexity / self.smoothness)

    @property
    def local_steps(self) -> float:
        """1 / p*, expected iterations from one communication to the next."""
        return math.sqrt(self.condition)

    @property
    def decay(self) -> float:
        """r = -ln(1 - mu / L); infinite where mu = L."""
        ratio = self.strong_convexity / self.smoothness
        return -math.log1p(-ratio) if ratio < 1.0 else math.inf

    @property
    def argument(self) -> float:
        """psi_0 r / (N d s), of the logarithm in T*; infinite without noise."""
        return self.decay * (self.potential / self.cost) if self.cost > 0 else math.inf

    @property
    def cost(self) -> float:
        """N d s, by which B grows with every iteration at p*."""
        return self.clients * self.dimension * self.noise

    @property
    def best_time(self) -> float:
        """T*, real: 0 where the argument is at most 1 (and where mu = L, its limit), infinite
        without noise.
        """
        if self.is_endless:
            return math.inf
        if math.isinf(self.decay):
            return 0.0
        logarithm = math.log(self.decay) + math.log(self.potential) - math.log(self.cost)
        return max(logarithm, 0.0) / self.decay

    @property
    def iterations(self) -> float:
        """The whole number with the smallest bound, next to T*; the smaller of two that tie,
        infinite without noise.
        """
        if self.is_endless:
            return math.inf
        below = float(math.floor(self.best_time))
        less, more = self.bound([below, below + 1.0], self.probability, self.step)
        return below if less <= more else below + 1.0

    @property
    def rounds(self) -> float:
        """p* T, expected communications in T = `iterations`."""
        return self.probability * self.iterations

    @property
    def is_endless(self) -> bool:
        """Whether there is no noise, so that the bound falls for ever."""
        return self.noise == 0

    @property
    def deviation(self) -> float:
        """sigma, for the noise of as many messages as `rounds`; 0 where nothing is sent, or without
        noise."""
        return 0.0 if self.is_endless else math.sqrt(self.noise * self.rounds)

    @property
    def least(self) -> float:
        """B at T = `iterations`, p* and eta*; 0, its limit, without noise."""
        if self.is_endless:
            return 0.0
        return float(self.bound(self.iterations, self.probability, self.step))

    def bound(self, iterations: ArrayLike, probability: ArrayLike, step: ArrayLike) -> Numbers:
        """B(T, p, eta) = rho^T psi_0 + p^2 N d s T / (1 - rho), elementwise.

        Args:
          iterations: T >= 0.
          probability: p in (0, 1].
          step: eta in (0, 1 / L].
        """
        times, chances = np.asarray(iterations, float), np.asarray(probability, float)
        slow = np.minimum(
            self.strong_convexity * np.asarray(step, float), chances**2
        )  # 1 - rho, to all digits
        with np.errstate(divide="ignore", invalid="ignore"):  # ln 0 where mu eta = p = 1
            left = np.where(times > 0, np.exp(times * np.log1p(-slow)), 1.0)
        return np.asarray(left * self.potential + chances**2 * self.cost * times / slow)
