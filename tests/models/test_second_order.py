"""Damped solves and largest eigenvalues of models with one output, against matrices that are
written out record by record.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor

from dpfl_cli.models.client_side import ClientSide
from dpfl_cli.models.curvature import Curvature, largest_eigenvalue
from dpfl_cli.models.losses import SQUARED
from dpfl_cli.models.single_layer import SingleLayer
from dpfl_cli.privacy.client_values import ClientValues, client_values, opened
from tests.models.small import objective_of, points, softmax
from tests.padding import own_records

D = 6
LOSS_FACTOR = 0.7
MODELS: dict[str, Callable[..., SingleLayer]] = {
    "linear": partial(objective_of, "linear_regression", loss_factor=LOSS_FACTOR),
    "logistic": partial(objective_of, "logistic", l2=0.0),
}
SIZES = {
    "unequal": [7, 1, 0, 3, 40],
    "one client": [13],
    "one record": [1],
    "nobody but one": [0, 3, 0],
}
INDICES = {"R=1": [0], "R=2 shared": [0, 0], "R=7": [0, 1, 0, 2, 1, 0, 0]}
each_model = pytest.mark.parametrize("name", MODELS)
each_kind = pytest.mark.parametrize("kind", ["hessian", "covariance"])


def records_of(objective: SingleLayer, run: int, client: int) -> np.ndarray:
    return own_records(objective.federations[objective.index[run]], client)[0]


def mean_matrix(
    objective: SingleLayer, run: int, client: int, v: np.ndarray, kind: str, bound: float
) -> np.ndarray:
    """(1 / n_i) sum_j CLIP(l'' a a^T, C), or of a a^T; records that are not finite count as
    zero.
    """
    rows, total = records_of(objective, run, client), np.zeros((D, D))
    for a in rows:
        if not np.isfinite(a).all() or np.linalg.norm(a) > 1e150:
            continue
        z = a @ v
        second = (
            2 * LOSS_FACTOR
            if objective.loss.number == SQUARED
            else 1 / (2 + np.exp(z) + np.exp(-z))
        )
        matrix = np.outer(a, a) * (second if kind == "hessian" else 1.0)
        total += matrix * min(1.0, bound / np.linalg.norm(matrix)) / len(rows)
    return total


def operands(objective: SingleLayer) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Parameters and right sides [R, M, d], dampings and bounds [R]."""
    generator = torch.Generator().manual_seed(0)
    values, right = torch.randn(
        2, objective.runs, objective.clients, D, dtype=torch.float64, generator=generator
    )
    numbers = torch.linspace(0.0, 1.0, objective.runs, dtype=torch.float64)
    return values, right, 0.3 + numbers, 0.4 + 2 * numbers


@each_model
@each_kind
@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES.keys())
@pytest.mark.parametrize("index", INDICES.values(), ids=INDICES.keys())
def test_damped_solves_and_eigenvalues_equal_dense_matrices(
    name: str, kind: Curvature, sizes: list[int], index: list[int]
) -> None:
    objective = MODELS[name](sizes, index)
    values, right, damping, bound = operands(objective)
    view = ClientSide(objective)
    for limits in (bound, None):
        solved = view.damped_solve(values, right, damping, kind, limits)
        largest = view.largest_curvature(values, kind, limits)
        assert isinstance(solved, ClientValues)
        assert isinstance(largest, ClientValues)
        for run in range(len(index)):
            for client in range(len(sizes)):
                limit = np.inf if limits is None else float(limits[run])
                matrix = mean_matrix(
                    objective, run, client, values[run, client].numpy(), kind, limit
                )
                expected = np.linalg.solve(
                    matrix + float(damping[run]) * np.eye(D), right[run, client].numpy()
                )
                np.testing.assert_allclose(
                    opened(solved)[run, client], expected, rtol=1e-9, atol=1e-11
                )
                top = np.linalg.eigvalsh(matrix)[-1]
                np.testing.assert_allclose(
                    float(opened(largest)[run, client]), top, rtol=1e-9, atol=1e-12
                )


@each_model
@each_kind
@pytest.mark.parametrize("strange", [np.nan, np.inf, 1e200])
def test_a_record_that_is_not_finite_counts_as_zero(
    name: str, kind: Curvature, strange: float
) -> None:
    objective = MODELS[name]([4, 5], [0])
    federation = objective.federations[0]
    federation.dataset.train.features[federation.partition.indices[1]] = strange
    objective = type(objective)(objective.settings, [federation], np.array([0]))  # type: ignore[call-arg]
    values, right, damping, bound = operands(objective)
    solved = opened(objective.damped_solve(values, right, damping, kind, bound))
    for client in range(2):
        matrix = mean_matrix(objective, 0, client, values[0, client].numpy(), kind, float(bound))
        expected = np.linalg.solve(matrix + float(damping) * np.eye(D), right[0, client].numpy())
        np.testing.assert_allclose(solved[0, client], expected, rtol=1e-9, atol=1e-11)


@each_model
def test_parameters_that_overflow_stay_in_their_client(name: str) -> None:
    objective = MODELS[name]([4, 5], [0])
    values, right, damping, bound = operands(objective)
    usual = opened(objective.damped_solve(values, right, damping, "hessian", bound))
    values[0, 0] = np.inf
    solved = opened(
        objective.damped_solve(
            client_values(values), client_values(right), damping, "hessian", bound
        )
    )
    assert torch.equal(solved[0, 1], usual[0, 1])


@each_kind
@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_the_largest_eigenvalue_of_softmax_curvature(
    kind: Curvature, classes: int, precision: str
) -> None:
    counts, index = [5, 0, 17, 1], [0, 1, 0]
    objective = softmax(counts, index, classes=classes, features=5, bias=True, precision=precision)
    values, bound = points(objective), torch.tensor([0.4, 1.0, 3.0], dtype=torch.float64)
    found = opened(objective.largest_curvature(values, kind, bound)).double()
    one = torch.ones(len(index), dtype=torch.float64)
    columns = [  # [R, M, d] of every (H + I)^-1, whose smallest eigenvalue is 1 / (1 + lambda_max)
        opened(objective.damped_solve(values, unit.expand_as(values), one, kind, bound)).double()
        for unit in torch.eye(objective.dimension, dtype=values.dtype)
    ]
    smallest = torch.linalg.eigvalsh(torch.stack(columns, dim=-1))[..., 0]
    tolerance = 1e-6 if precision == "float64" else 1e-4
    expected = pytest.approx((1 / smallest - 1).numpy(), rel=tolerance, abs=tolerance)
    assert found.numpy() == expected


def test_lanczos_finds_the_largest_of_many_eigenvalues() -> None:
    generator = torch.Generator().manual_seed(1)
    basis = torch.linalg.qr(torch.randn(200, 200, dtype=torch.float64, generator=generator)).Q
    spectrum = torch.linspace(0.0, 1.0, 200, dtype=torch.float64) ** 3
    matrix = basis @ torch.diag(spectrum) @ basis.T
    like = torch.zeros(1, 1, 1, 200, dtype=torch.float64)
    found = float(largest_eigenvalue(lambda v: v @ matrix, like))
    assert found <= 1 + 1e-12
    assert found == pytest.approx(1.0, rel=1e-3)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_curvature_that_is_not_finite_ends_no_run(value: float) -> None:
    like = torch.ones(2, 1, 1, 6, dtype=torch.float64)
    scale = torch.tensor([2.0, value], dtype=torch.float64).reshape(2, 1, 1, 1)
    good, bad = largest_eigenvalue(lambda v: v * scale, like).flatten().tolist()
    assert good == pytest.approx(2.0)
    assert np.isnan(bad)
