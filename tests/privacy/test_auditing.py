"""Every auditor on mechanisms whose epsilon is known, before it is let near one whose is not."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import brentq

from dpfl_cli.privacy.auditing import gaussian_bound, one_run_bound, threshold_bound
from dpfl_cli.privacy.gaussian_accountants import gaussian_epsilon

DELTA = 1e-5
CANARIES = 2000  # on both sides
TRIALS = 100
EPSILONS = (1.0, 4.0, 8.0)


def mu_of(epsilon: float) -> float:
    return brentq(lambda mu: gaussian_epsilon(mu, DELTA) - epsilon, 1e-3, 20)


def gaussian_scores(
    epsilon: float, generator: np.random.Generator, noise: float = 1.0
) -> tuple[np.ndarray, np.ndarray]:
    """Scores of the Gaussian mechanism, whose noise is `noise` of what it should be."""
    sides = generator.random(CANARIES) < 0.5
    shift = 3.0 + sides * mu_of(epsilon)  # neither location nor scale is known
    return 7.0 * (shift + noise * generator.standard_normal(CANARIES)), sides


def randomised_response(
    epsilon: float, generator: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Tells the side with probability e^eps / (1 + e^eps): (eps, 0)-DP, and no better."""
    sides = generator.random(CANARIES) < 0.5
    told = sides ^ (generator.random(CANARIES) > 1 / (1 + np.exp(-epsilon)))
    return told + 0.01 * generator.standard_normal(CANARIES), sides


def bounds(scores, sides, confidence, gaussian):
    found = {
        "one_run": one_run_bound(scores, sides, DELTA, confidence, gaussian),
        "threshold": threshold_bound(scores, sides, DELTA, confidence),
    }
    if gaussian:
        found["gaussian"] = gaussian_bound(scores, sides, DELTA, confidence)
    return found


@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize("mechanism", [gaussian_scores, randomised_response])
def test_a_bound_exceeds_the_known_epsilon_as_rarely_as_it_says(mechanism, epsilon):
    generator = np.random.default_rng(1)
    wrong: dict[str, int] = {}
    for _ in range(TRIALS):
        scores, sides = mechanism(epsilon, generator)
        gaussian = mechanism is gaussian_scores
        for name, bound in bounds(scores, sides, 0.95, gaussian).items():
            wrong[name] = wrong.get(name, 0) + (bound > epsilon)
        assert max(bounds(scores, sides, 0.9999, gaussian).values()) <= epsilon
    # more than 11 of 100 at 5 % each has a probability of 0.4 %
    assert max(wrong.values()) <= 11, wrong
    if mechanism is gaussian_scores:
        assert wrong["gaussian"] >= 1  # it is exact: a bound that is never wrong would be loose


@pytest.mark.parametrize(("epsilon", "share"), [(1.0, 0.55), (4.0, 0.85), (8.0, 0.85)])
def test_the_gaussian_bound_is_nearly_tight(epsilon, share):
    generator = np.random.default_rng(2)
    found = [
        gaussian_bound(*gaussian_scores(epsilon, generator), DELTA, 0.95) for _ in range(TRIALS)
    ]
    assert np.mean(found) >= share * epsilon


def test_bounds_without_a_law_of_scores_find_most_of_what_randomised_response_gives():
    scores, sides = randomised_response(2.0, np.random.default_rng(3))
    found = bounds(scores, sides, 0.95, gaussian=False)
    assert min(found.values()) >= 0.7 * 2.0, found


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_half_the_noise_is_caught(epsilon):
    scores, sides = gaussian_scores(epsilon, np.random.default_rng(4), noise=0.5)
    assert gaussian_bound(scores, sides, DELTA, 0.999) > epsilon


@pytest.mark.parametrize("confidence", [0.95, 0.999])
def test_scores_that_tell_nothing_give_nothing(confidence):
    generator = np.random.default_rng(5)
    scores, sides = generator.standard_normal(CANARIES), generator.random(CANARIES) < 0.5
    assert max(bounds(scores, sides, confidence, True).values()) <= 0.1
    assert gaussian_bound(-scores - 10 * sides, sides, DELTA, confidence) == 0.0
