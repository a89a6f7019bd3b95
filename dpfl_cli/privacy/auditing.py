"""Empirical lower bounds on epsilon from what an adversary scored: functions of scores alone.

The game: a mechanism is run many times; each time a fair coin decides on which side the canary is
(`side`, False or True), and the adversary gives the outcome a score, high for True. Every bound
holds with the stated confidence, whatever the mechanism is, under what its function says of the
scores.
"""

import math

import numpy as np
from scipy.optimize import brentq
from scipy.special import betaincinv, ndtr, ndtri
from scipy.stats import nct

from dpfl_cli.privacy.gaussian_accountants import gaussian_epsilon

MOST = 100.0  # no bound on epsilon or mu is looked for above
GUESSED = 0.1  # the share of canaries that the one-run adversary guesses: the extreme scores


def gaussian_bound(scores: np.ndarray, sides: np.ndarray, delta: float, confidence: float) -> float:
    """For scores that are Gaussian on both sides with one unknown variance: a bound on mu of
    Gaussian DP (Dong, Roth and Su 2022), as epsilon at delta.

    mu is the distance of the means in standard deviations, so that Student's t of the two samples
    is noncentral with ncp = mu / sqrt(1 / n_0 + 1 / n_1) and n_0 + n_1 - 2 degrees of freedom: the
    bound is exact.
    """
    low, high = scores[~sides], scores[sides]
    freedom = len(scores) - 2
    if min(len(low), len(high)) < 2:
        return 0.0
    squares = sum(((side - side.mean()) ** 2).sum() for side in (low, high))
    spread = math.sqrt(1 / len(low) + 1 / len(high))
    if squares == 0:
        return math.inf if high.mean() > low.mean() else 0.0
    found = (high.mean() - low.mean()) / (math.sqrt(squares / freedom) * spread)

    def excess(mu: float) -> float:
        return nct.sf(found, freedom, mu / spread) - (1 - confidence)

    if excess(0.0) >= 0:
        return 0.0
    return gaussian_epsilon(brentq(excess, 0.0, found * spread), delta)


def threshold_bound(
    scores: np.ndarray, sides: np.ndarray, delta: float, confidence: float
) -> float:
    """For scores of any law: (epsilon, delta)-DP bounds the rates of every test, P(say True | True)
    <= e^epsilon P(say True | False) + delta, and so with the sides changed (Kairouz, Oh and
    Viswanath 2015). The threshold is chosen on the first half of the scores; on the second,
    Clopper-Pearson bounds on the two rates, at half the error each, give epsilon.
    """
    half = len(scores) // 2
    thresholds = np.unique(np.quantile(scores[:half], np.linspace(0.002, 0.998, 250)))
    error, best = (1 - confidence) / 2, (-math.inf, 0.0)  # known on the first half, found after

    def gains(some: slice, thresholds: np.ndarray, above: bool) -> np.ndarray:
        """[n] ln((p - delta) / q) of the tests `score > threshold` for True, or, not `above`,
        `score <= threshold` for False, the rates p and q of being right and of false alarms bounded
        from below and from above; -inf where nothing follows.
        """
        both = (scores[some][sides[some] == side] for side in (above, not above))
        present, absent = map(np.sort, both)
        hits, alarms = (side.searchsorted(thresholds, side="right") for side in (present, absent))
        if above:
            hits, alarms = len(present) - hits, len(absent) - alarms
        right = betaincinv(np.maximum(hits, 1), len(present) - hits + 1, error)
        lower = np.where(hits > 0, right, 0.0)
        rest = len(absent) - alarms
        upper = np.where(rest > 0, betaincinv(alarms + 1, np.maximum(rest, 1), 1 - error), 1.0)
        gain = np.maximum(lower - delta, 0.0) / upper
        return np.log(gain, out=np.full_like(gain, -np.inf), where=gain > 0)

    for above in (True, False):
        known = gains(slice(half), thresholds, above)
        (after,) = gains(slice(half, None), thresholds[[known.argmax()]], above)
        best = max(best, (known.max(), float(after)))
    return max(best[1], 0.0)


def one_run_bound(
    scores: np.ndarray, sides: np.ndarray, delta: float, confidence: float, gaussian: bool
) -> float:
    """For canaries whose sides are independent fair coins, in one run or each in its own: the
    smallest epsilon of a family of trade-off curves f under which so many right guesses are
    plausible (Mahloujifar, Melis and Chaudhuri 2025, "Auditing f-differential privacy in one run",
    theorem 3.2 and its numerical appendix).

    The adversary guesses the sides of the canaries of the lowest and the highest scores, a fixed
    number of them, and names no others.

    Args:
      gaussian: whether the mechanism is known to be Gaussian DP, whose f is that of mu; else f is
        that of (epsilon, delta)-DP.
    """
    canaries, each = len(scores), max(int(len(scores) * GUESSED / 2), 1)
    order = np.argsort(scores)
    right = int((~sides[order[:each]]).sum() + sides[order[-each:]].sum())

    def least(event: float, parameter: float) -> float:
        """What an event of this probability keeps at least on the other side, 1 - f's inverse: of
        mu Phi(Phi^-1(x) - mu), of epsilon max(0, e^-eps (x - delta), 1 - delta - e^eps (1 - x)).
        """
        if gaussian:
            return float(ndtr(ndtri(min(event, 1.0)) - parameter))
        grown = math.exp(parameter)
        return max(0.0, (event - delta) / grown, 1 - delta - grown * (1 - min(event, 1.0)))

    def plausible(parameter: float) -> bool:
        """Whether an adversary may be right in at least `right` of its guesses with probability
        1 - confidence, under f-DP.

        Let p_i be the probability of i right guesses of c, r_i = sum_{j >= i} (j / m) p_j and h_i =
        sum_{j >= i} ((c - j) / m) p_j: that a canary picked at random is guessed rightly (wrongly),
        and at least i are right. Changing its side costs as f says: h_{i-1} is at least what f
        leaves of r_i. From the tail that is supposed, with all of it at `right`, follow the
        smallest r_0 + h_0, which is c / m of all probability: if it is more, so likely a tail
        cannot be.
        """
        guesses, chance = 2 * each, 1 - confidence
        sure, wrong = chance * right / canaries, chance * (guesses - right) / canaries
        for i in range(right - 1, -1, -1):
            before = wrong
            wrong = max(wrong, least(sure, parameter))
            sure += i / (guesses - i) * (wrong - before)
            if sure + wrong > guesses / canaries:  # neither ever falls
                return False
        return True

    if plausible(0.0):
        return 0.0
    low, high = 0.0, MOST
    while high - low > 1e-4:
        middle = (low + high) / 2
        low, high = (low, middle) if plausible(middle) else (middle, high)
    return gaussian_epsilon(low, delta) if gaussian else low
