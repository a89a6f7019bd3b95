"""The artificial least squares of adaptdp: its law, its draws, and what is public of it."""

from __future__ import annotations

import numpy as np
import pytest

from dpfl_cli.data.synthetic import Quadratic, QuadraticSettings


def test_the_law() -> None:
    settings = QuadraticSettings(
        dimension=50, clients=4, records_per_client=500, z_scale=2.0, b_scale=3.0
    )
    data = Quadratic.load(settings, 3)
    rows, optimum = data.train.features, data.truth["optimum"]
    assert rows.shape == (2000, 50)
    assert data.test is None
    np.testing.assert_array_equal(
        data.train.targets, rows @ optimum
    )  # every record's loss is zero at b
    np.testing.assert_array_equal(data.natural, np.repeat([0, 1, 2, 3], 500))
    assert rows.std() == pytest.approx(2.0, rel=0.02)
    assert abs(rows.mean()) < 0.03
    correlation = rows.T @ rows / 2000 / 4
    assert np.abs(correlation - np.eye(50)).max() < 0.15
    assert np.sqrt((optimum**2).mean()) == pytest.approx(3.0, rel=0.35)
    assert not np.allclose(optimum, rows[0] * 1.5)


def test_draws_are_the_seeds_and_scales_only_scale() -> None:
    settings = QuadraticSettings(dimension=5, clients=2, records_per_client=3)
    one, again, other = (Quadratic.load(settings, seed) for seed in (1, 1, 2))
    assert one is again
    assert not np.allclose(one.train.features, other.train.features)
    assert not np.allclose(one.truth["optimum"], other.truth["optimum"])
    scaled = Quadratic.load(settings.model_copy(update={"z_scale": 4.0, "b_scale": 0.5}), 1)
    np.testing.assert_array_equal(scaled.train.features, 4 * one.train.features)
    np.testing.assert_array_equal(scaled.truth["optimum"], one.truth["optimum"] / 2)
