"""The closed-form calculator of ScaffNew against search, limits and the paper's own statements."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpfl_cli.algorithms.scaffnew_bound import MessageNoise, ScaffnewBound
from dpfl_cli.config.errors import ConfigError
from dpfl_cli.privacy.nominal import lemma1, zcdp_v

MUSHROOMS = {
    "clients": 5,
    "dimension": 112,
    "potential": 27.620655901473622,
}  # psi_0 on the real data at kappa = 100


def between(low: float, high: float) -> st.SearchStrategy[float]:
    """Numbers of all sizes from low to high."""
    return st.floats(math.log(low), math.log(high)).map(math.exp)


@st.composite
def problems(draw: Any, smallest: float = 1e-3, largest: float = 1e4) -> ScaffnewBound:
    """Problems whose logarithm has an argument between the two bounds."""
    smoothness = draw(between(1e-3, 1e3))
    kappa = draw(between(1.05, 300.0))
    clients, dimension = draw(st.integers(1, 50)), draw(st.integers(1, 500))
    potential = draw(between(1e-3, 1e3))
    argument = draw(between(smallest, largest))
    decay = -math.log1p(-1 / kappa)
    noise = potential * decay / (clients * dimension * argument)
    return ScaffnewBound(smoothness / kappa, smoothness, clients, dimension, potential, noise)


def defined(problem: ScaffnewBound, time: float, probability: float, step: float) -> float:
    """B as the theorem and the lemma state it, with nothing simplified."""
    sigma_squared = problem.noise * (probability * time)
    rho = max(1 - problem.strong_convexity * step, 1 - probability**2)
    return (
        rho** time * problem.potential
        + probability * problem.clients * problem.dimension * sigma_squared / (1 - rho)
    )


@given(problems(), st.integers(0, 400), st.floats(0.01, 1.0), st.floats(0.05, 1.0))
def test_the_bound_is_that_of_theorem_and_lemma(
    problem: ScaffnewBound, time: int, probability: float, share: float
) -> None:
    step = share / problem.smoothness
    found = float(problem.bound(time, probability, step))
    assert found == pytest.approx(defined(problem, time, probability, step), rel=1e-9)


@given(problems())
def test_no_number_of_iterations_is_better(problem: ScaffnewBound) -> None:
    times = np.arange(0, int(3 * problem.best_time) + 50)
    values = problem.bound(times, problem.probability, problem.step)
    at_best = float(problem.bound(problem.iterations, problem.probability, problem.step))
    assert at_best <= values.min() * (1 + 1e-12)
    assert abs(problem.iterations - problem.best_time) < 1


@given(problems(), st.integers(1, 300))
def test_no_probability_and_no_step_is_better(problem: ScaffnewBound, time: int) -> None:
    """p* and eta* minimise at every T, not at T* alone; a smaller p never has less noise, a larger
    one never a better rate.
    """
    probabilities = np.unique(
        np.append(np.geomspace(problem.probability / 50, 1.0, 301), problem.probability)
    )
    steps = problem.step * np.linspace(0.02, 1.0, 50)
    values = problem.bound(float(time), probabilities[:, None], steps[None, :])
    best = float(problem.bound(time, problem.probability, problem.step))
    assert best <= values.min() * (1 + 1e-12)
    smaller, larger = probabilities < problem.probability, probabilities > problem.probability
    slow = problem.strong_convexity * problem.step  # 1 - rho at p*
    rates = 1 - np.minimum(slow, probabilities**2)
    assert (rates[smaller] >= 1 - slow).all()
    np.testing.assert_allclose(rates[larger], 1 - slow, rtol=1e-12)


@given(problems(), between(1.01, 5.0))
def test_more_privacy_means_fewer_iterations(problem: ScaffnewBound, factor: float) -> None:
    """T* grows with epsilon and falls with C: both enter by their ratio alone, and p* and eta* do
    not see it.
    """
    quieter = replace(problem, noise=problem.noise / factor**2)  # epsilon * factor, or C / factor
    assert quieter.best_time >= problem.best_time
    assert quieter.iterations >= problem.iterations
    if problem.argument > 1.001:
        assert quieter.best_time - problem.best_time == pytest.approx(
            2 * math.log(factor) / problem.decay, rel=1e-6
        )
    assert (quieter.probability, quieter.step) == (problem.probability, problem.step)


@given(problems(smallest=1e-6, largest=0.999))
def test_too_much_noise_means_no_training(problem: ScaffnewBound) -> None:
    assert (problem.best_time, problem.iterations, problem.rounds) == (0.0, 0.0, 0.0)
    times = np.arange(1, 200)
    assert (
        problem.bound(times, problem.probability, problem.step) > problem.potential * (1 - 1e-12)
    ).all()


@given(
    between(0.01, 20.0),
    between(1e-12, 0.1),
    between(1e-6, 100.0),
    between(1.0, 4.0),
    st.integers(1, 10_000),
)
def test_the_noise_is_that_of_lemma_1(
    epsilon: float, delta: float, clip_norm: float, v: float, releases: int
) -> None:
    sigma_squared = releases * MessageNoise(v, "", clip_norm, epsilon, delta).per_release
    assert sigma_squared == pytest.approx(
        (clip_norm * lemma1(epsilon, delta, releases, v)) ** 2, rel=1e-12
    )


@pytest.mark.parametrize(("epsilon", "time"), [(0.5, 243), (1.0, 381), (2.0, 519), (3.3, 618)])
def test_the_reference_numbers(epsilon: float, time: int) -> None:
    """Real mushrooms, five clients, kappa = 100, v C^2 such that the argument at epsilon = 3.3 is
    500.
    """
    decay = -math.log1p(-0.01)
    noise = MUSHROOMS["potential"] * decay / (5 * 112 * 500) * (3.3 / epsilon) ** 2
    problem = ScaffnewBound(0.034356218443972186, 3.4356218443972186, noise=noise, **MUSHROOMS)  # type: ignore[arg-type]
    assert problem.iterations == time
    assert problem.local_steps == pytest.approx(10)
    assert problem.probability == pytest.approx(0.1)
    assert problem.rounds == pytest.approx(time / 10)
    assert problem.argument == pytest.approx(500 * (epsilon / 3.3) ** 2)
    assert noise * epsilon**2 / math.log(1e5) == pytest.approx(9.4e-7, rel=0.01)  # v C^2


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 2.0, 3.3])
def test_the_honest_noise_leaves_nothing_to_learn(epsilon: float) -> None:
    """v C^2 = 57 for C = 5 at epsilon 3.3: T* = 0 at every epsilon."""
    noise = MessageNoise(zcdp_v(epsilon, 1e-5), "", 5.0, epsilon, 1e-5).per_release
    assert zcdp_v(3.3, 1e-5) * 25 == pytest.approx(57, abs=0.1)
    assert ScaffnewBound(0.01, 1.0, noise=noise, **MUSHROOMS).iterations == 0  # type: ignore[arg-type]


def test_limits() -> None:
    free = ScaffnewBound(0.01, 1.0, 5, 112, 30.0, 0.0)
    assert free.best_time == free.iterations == free.argument == math.inf
    assert float(free.bound(2000, free.probability, free.step)) == pytest.approx(30 * 0.99**2000)
    round_ball = ScaffnewBound(1.0, 1.0, 2, 3, 30.0, 0.1)  # mu = L: one step reaches the optimum
    assert (
        round_ball.probability,
        round_ball.local_steps,
        round_ball.best_time,
        round_ball.iterations,
    ) == (1.0, 1.0, 0.0, 1.0)
    assert float(round_ball.bound(1, 1.0, 1.0)) == pytest.approx(2 * 3 * 0.1)
    assert replace(round_ball, noise=10.0).iterations == 0  # and its noise would cost 60
    np.testing.assert_allclose(round_ball.bound([0, 1, 2], 1.0, 1.0), [30.0, 0.6, 1.2])


@given(problems(), between(1.01, 100.0))
def test_a_worse_condition_asks_for_more_local_steps(problem: ScaffnewBound, factor: float) -> None:
    worse = replace(problem, smoothness=problem.smoothness * factor)
    assert worse.local_steps == pytest.approx(problem.local_steps * math.sqrt(factor))
    assert worse.step < problem.step


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"strong_convexity": 0.0}, "mu=0"),
        ({"strong_convexity": math.nan}, "mu=nan"),
        ({"strong_convexity": 2.0}, "at least mu=2"),
        ({"smoothness": math.inf}, "L=inf"),
        ({"potential": 0.0}, "psi_0=0"),
        ({"noise": -1.0}, "not negative"),
        ({"noise": math.inf}, "finite"),
        ({"strong_convexity": 1e-200}, "kappa"),
    ],
)
def test_numbers_of_no_problem_are_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        replace(ScaffnewBound(0.01, 1.0, 5, 112, 30.0, 1.0), **changes)
