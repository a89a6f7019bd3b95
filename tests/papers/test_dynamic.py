"""The noise part of the bound in closed form, against its sum over the rounds."""

from __future__ import annotations

from math import log, sqrt

import pytest

from dpfl_cli.papers.dynamic.bounds import noise_part


@pytest.mark.parametrize("schedule", ["dynamic", "static"])
@pytest.mark.parametrize("convexity", [0.01, 0.1, 2.0])
def test_the_noise_part_of_the_bound_is_the_sum_over_rounds(
    schedule: str, convexity: float
) -> None:
    workers, records, dimension, rounds, step, bound = 4, 200, 7, 60, 0.25, 0.8
    facts = {
        "clients": workers,
        "records": records,
        "dimension": dimension,
        "rounds": rounds,
        "algorithm.step": step,
        "algorithm.clip_norm": bound,
        "algorithm.schedule": schedule,
        "algorithm.strong_convexity": convexity,
        "model.l2": 0.1,
        "dp.epsilon": 1.0,
        "dp.delta": 1e-4,
    }
    rho = (sqrt(1 - log(1e-4)) - sqrt(-log(1e-4))) ** 2
    each = records / workers
    true, own = (1 - step * min(one / workers, 1) for one in (0.1, convexity))
    pace = 1.0 if schedule == "static" else own
    weights = [pace ** ((rounds - t) / 2) for t in range(1, rounds + 1)]
    variances = [
        2 * bound**2 * sum(weights) / (rho * workers**2 * each**2) / weight for weight in weights
    ]
    decay = [true ** (rounds - t) for t in range(1, rounds + 1)]
    total = sum(q * variance for q, variance in zip(decay, variances, strict=True))
    expected = 2.5 * workers * dimension * step**2 * total
    assert noise_part(facts.__getitem__) == pytest.approx(expected, rel=1e-12)
    spent = sum(2 * bound**2 / (workers**2 * each**2 * one) for one in variances)
    assert spent == pytest.approx(rho, rel=1e-12)
