"""Damped solves: closed forms, conjugate gradients, the blocked Cholesky and Woodbury, against
matrices that are written out.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd.functional import hessian
from torch.nn import functional

from dpfl_cli.config.errors import PrivacyError
from dpfl_cli.models import curvature, records, single_layer
from dpfl_cli.models.records import bounded_shares
from dpfl_cli.models.softmax import SoftmaxRegression
from dpfl_cli.privacy.client_values import ClientValues, client_values, opened
from tests.models.small import (
    federation_of,
    settings_of,
    softmax,
    softmax_records,
)

COUNTS = [5, 0, 17, 1, 4]


def record_hessian(matrix: Tensor, record: Tensor, label: Tensor) -> Tensor:
    """[d, d] of one record's cross-entropy, by torch."""

    def loss(values: Tensor) -> Tensor:
        return functional.cross_entropy(
            (values.view_as(matrix) @ record).unsqueeze(0), label.unsqueeze(0)
        )

    return hessian(loss, matrix.flatten())


def clipped(matrix: Tensor, bound: float) -> Tensor:
    return matrix * min(1.0, bound / float(matrix.norm()))


def slow_solve(
    objective: SoftmaxRegression,
    run: int,
    client: int,
    values: Tensor,
    right: Tensor,
    damping: float,
    bound: float,
    kind: str,
) -> Tensor:
    """(H + damping I)^-1 right with the mean of the records' clipped matrices."""
    features, labels = softmax_records(objective, run, client)
    classes = len(values) // features.shape[1] if len(features) else 1
    total = torch.zeros(len(values), len(values), dtype=torch.float64)
    for record, label in zip(features, labels, strict=True):
        if kind == "hessian":
            one = clipped(record_hessian(values.view(classes, -1), record, label), bound)
        else:
            one = torch.kron(
                torch.eye(classes, dtype=torch.float64), clipped(torch.outer(record, record), bound)
            )
        total += one / len(labels)
    return torch.linalg.solve(total + damping * torch.eye(len(values), dtype=torch.float64), right)


SOLVERS = {
    "cg": (
        {"solver": "cg"},
        "hessian",
        1e-7,
    ),  # its residual, 1e-8, times the condition of the matrices below
    "cholesky": ({"solver": "cholesky"}, "hessian", 1e-10),
    "cholesky float32": ({"solver": "cholesky", "solver_precision": "float32"}, "hessian", 1e-4),
    "cg float32": ({"solver": "cg", "solver_precision": "float32"}, "hessian", 1e-4),
    "covariance": ({}, "covariance", 1e-10),
    "covariance float32": ({"solver_precision": "float32"}, "covariance", 1e-4),
}


@pytest.fixture(params=SOLVERS)
def name(request: pytest.FixtureRequest) -> str:
    """A solver."""
    return str(request.param)


@pytest.mark.parametrize("kind", ["hessian", "covariance"])
@pytest.mark.parametrize("classes", [2, 10])
@pytest.mark.parametrize(
    ("counts", "index"),
    [(COUNTS, [0]), (COUNTS, [0, 1]), ([3, 0], [0, 1, 0, 1, 0, 0, 1]), ([4], [0]), ([1], [0, 0])],
    ids=["R=1", "R=2", "R=7", "one client", "one record"],
)
def test_a_damped_solve_equals_the_matrices_written_out(
    kind: str, classes: int, counts: list[int], index: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By every solver, compiled and by torch."""
    size = {"features": 5, "classes": classes, "bias": True, "precision": "float64"}
    plain = softmax(counts, index, **size)
    generator = torch.Generator().manual_seed(0)
    shape = (len(index), len(counts), plain.dimension)
    values, right = (torch.randn(shape, dtype=torch.float64, generator=generator) for _ in range(2))
    damping = torch.linspace(0.3, 1.5, len(index), dtype=torch.float64)
    bounds = (torch.linspace(0.4, 3.0, len(index), dtype=torch.float64), None)
    wanted = [torch.empty(shape, dtype=torch.float64) for _ in bounds]
    for expected, bound in zip(wanted, bounds, strict=True):
        for run, client in np.ndindex(*shape[:2]):
            parts = values[run, client], right[run, client], float(damping[run])
            limit = float("inf") if bound is None else float(bound[run])
            expected[run, client] = slow_solve(plain, run, client, *parts, limit, kind)
    for way in ("compiled", "torch"):
        if way == "torch":
            monkeypatch.setattr(single_layer, "compiled_kernel", lambda dtype: None)
        for name in [name for name, (_, own, _) in SOLVERS.items() if own == kind]:
            changes, _, tolerance = SOLVERS[name]
            objective = softmax(counts, index, **size, **changes)
            for expected, bound in zip(wanted, bounds, strict=True):
                limits = () if bound is None else (bound,)
                found = objective.damped_solve(
                    client_values(values), client_values(right), damping, kind, *limits
                )  # type: ignore[arg-type]
                assert isinstance(found, ClientValues)
                off = (opened(found) - expected).norm(dim=2) / expected.norm(dim=2)
                assert off.max() <= tolerance, (name, way)


@pytest.mark.parametrize(
    "counts",
    [[3, 3, 2], [9, 9, 8]],
    ids=["fewer records than features", "more records than features"],
)
def test_covariance_takes_the_smaller_matrix_and_keeps_it(
    counts: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    objective = softmax(counts, [0, 0, 0], features=6, precision="float64")
    made = []
    factor = curvature.covariance_inverse
    monkeypatch.setattr(
        "dpfl_cli.models.single_layer.covariance_inverse",
        lambda *args: made.append(factor(*args)) or made[-1],
    )
    values = client_values(torch.randn(3, 3, objective.dimension, dtype=torch.float64))
    damping = torch.tensor([0.5, 0.7, 0.5], dtype=torch.float64)
    first = objective.damped_solve(values, values, damping, "covariance")
    rows = sum(len(inverse) for inverse in made)
    assert rows == 2 * 3  # 3 clients under 2 dampings
    assert max(inverse.shape[-1] for inverse in made) == min(max(counts), 8)
    again = objective.damped_solve(values, values, damping, "covariance")
    assert sum(len(inverse) for inverse in made) == rows
    assert torch.equal(opened(first), opened(again))
    monkeypatch.setattr("dpfl_cli.models.single_layer.KEPT_FACTORS", 0)
    fresh = softmax(counts, [0, 0, 0], features=6, precision="float64")
    assert torch.equal(
        opened(fresh.damped_solve(values, values, damping, "covariance")), opened(first)
    )
    assert not fresh._factors
    for entries in ([2.0, -5.0], [-5.0, 2.0]):  # rounding may make a matrix indefinite
        assert factor(torch.diag(torch.tensor(entries))[None], 1.0).isnan().all()


@pytest.mark.parametrize("records", [20, 120], ids=["fewer than features", "more"])
@pytest.mark.parametrize("damping", [1e-3, 1.1])
def test_a_covariance_solve_in_float32_is_off_by_rounding_and_does_not_see_other_runs(
    records: int, damping: float
) -> None:
    """Records in float32 beside the same in float64, off by at most 1e-6 ||v|| / damping."""
    shape = {"features": 64, "classes": 10, "feature_norm": "l2"}
    generator = torch.Generator().manual_seed(0)
    right = torch.randn(5, 4, 640, generator=generator)
    found = {}
    for precision, dtype in (("float32", torch.float32), ("float64", torch.float64)):
        for runs in (1, 5):
            objective = softmax([records] * 4, [0] * runs, precision=precision, **shape)
            side = client_values(right[:runs].to(dtype))
            gamma, bound = (torch.full((runs,), one, dtype=dtype) for one in (damping, 1.0))
            solved = objective.damped_solve(side, side, gamma, "covariance", bound)
            found[precision, runs] = opened(solved)
    assert torch.equal(found["float32", 1], found["float32", 5][:1])
    off = (found["float32", 5].double() - found["float64", 5]).norm(dim=-1)
    assert float(off.max()) > 0.0
    assert bool((off <= 1e-6 * right.norm(dim=-1) / damping).all())


@given(st.integers(2, 12), st.floats(0.0, 30.0), st.integers(0, 2**31))
@settings(max_examples=60, deadline=None)
def test_the_closed_form_of_a_hessians_norm(classes: int, sharpness: float, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = sharpness * torch.randn(classes, 1, dtype=torch.float64, generator=generator)
    p, squared = (
        torch.softmax(logits, dim=0),
        torch.rand(1, dtype=torch.float64, generator=generator),
    )
    expected = squared * (torch.diag(p[:, 0]) - p @ p.T).norm()
    torch.testing.assert_close(curvature.hessian_norms(p, squared), expected, rtol=1e-10, atol=0.0)
    single = curvature.hessian_norms(p.float(), squared.float()).double()
    # ||x||^2 sqrt(sum p^2 - 2 sum p^3 + (sum p^2)^2) is off by 3e-4 in float32, where one class
    # has nearly all
    assert bool((single - expected).abs() <= 1e-6 * squared)


def test_a_hessian_is_clipped_where_the_squares_in_its_norm_underflow() -> None:
    """||H|| = ||x||^2 sqrt(2) p (1 - p) for two classes, in float32; p^4 vanishes."""
    small = 0.5 * 10.0 ** torch.linspace(-40.0, 0.0, 81, dtype=torch.float64)
    p = torch.stack((small, 1.0 - small)).float()
    for scale in (1e3, 1e6, 1e9, 1e12):
        squared = torch.full((81,), scale**2)
        norms = curvature.clippable_norms(p, squared)
        assert bool((norms >= 2 * curvature.ROUNDING[torch.float32] * squared).all())
        shares = bounded_shares(torch.ones(81), norms, torch.tensor(1.0))
        true = squared.double() * 2**0.5 * small * (1.0 - small)
        assert bool((shares * true <= 1.0 + 1e-5).all())
        assert bool((shares > 0).all())


def test_clipping_binds_and_a_record_without_a_finite_norm_counts_as_zero() -> None:
    norms = torch.tensor([0.0, 0.5, 2.0, torch.inf, torch.nan])
    shares = bounded_shares(torch.full((5,), 0.5), norms, torch.tensor(1.0))
    assert shares.tolist() == [0.5, 0.5, 0.25, 0.0, 0.0]
    assert bounded_shares(torch.full((5,), 0.5), norms, torch.tensor(torch.inf)).tolist() == [
        0.5,
        0.5,
        0.5,
        0.0,
        0.0,
    ]


CONDITIONS = [1.0, 30.0, 1e3]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("condition", CONDITIONS)
def test_how_often_a_device_is_asked_changes_no_bit(
    condition: float, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spectra that conjugate gradients find hard; on right sides that favour them or do not, and
    zero, tiny, not finite ones.
    """
    generator = torch.Generator().manual_seed(0)
    size = 120
    chebyshev = (1 - torch.cos(torch.linspace(0, torch.pi, size, dtype=torch.float64))) / 2
    spectra = torch.stack(
        [
            torch.logspace(0, np.log10(condition), size, dtype=torch.float64),
            1 + (condition - 1) * chebyshev,
        ]
    )
    right = torch.randn(4, 2, 1, size, dtype=torch.float64, generator=generator)
    right[1] *= spectra.sqrt().unsqueeze(1)
    right[2, 0], right[2, 1, 0, 3], right[3] = 0.0, torch.nan, 1e-19 * right[3]
    diagonal = spectra.unsqueeze(1).to(dtype)
    right = right.to(dtype)
    asked = curvature.conjugate_gradients(lambda v: v * diagonal, right)
    assert asked.isnan().flatten(1).any(dim=1).tolist() == [False, False, True, False]
    for often in (7, curvature.SELDOM):
        monkeypatch.setitem(curvature.ASKED, "cpu", often)
        again = curvature.conjugate_gradients(lambda v: v * diagonal, right)
        assert torch.equal(asked.nan_to_num(7.0), again.nan_to_num(7.0))


def test_a_client_that_has_converged_is_frozen_and_does_not_see_the_others() -> None:
    """Three matrices, of which one is solved by one step and one needs many."""
    spectra = torch.stack(
        [torch.full((12,), 2.0), torch.logspace(0, 5, 12), torch.linspace(1, 2, 12)]
    ).double()
    right = torch.randn(3, 3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    together = curvature.conjugate_gradients(lambda v: v * spectra.view(3, 3, 4), right)
    for one in range(3):
        alone = curvature.conjugate_gradients(
            lambda v, one=one: v * spectra[one].view(1, 3, 4), right[one : one + 1]
        )
        assert torch.equal(together[one : one + 1], alone)
    residual = (together * spectra.view(3, 3, 4) - right).flatten(1).norm(dim=1) / right.flatten(
        1
    ).norm(dim=1)
    assert bool((residual <= 2e-8).all())
    assert torch.equal(
        curvature.conjugate_gradients(lambda v: v, torch.zeros(1, 2, 3)), torch.zeros(1, 2, 3)
    )
    assert bool(
        curvature.conjugate_gradients(lambda v: v, torch.full((1, 2, 3), torch.nan)).isnan().all()
    )


def test_what_is_not_finite_stays_in_its_record_or_its_client(name: str) -> None:
    federation = federation_of([3, 3], shape=(4,), classes=3)
    wild = federation.partition.indices[1]
    federation.dataset.train.features[wild] = np.inf
    tame = federation_of([3, 3], shape=(4,), classes=3)
    tame.dataset.train.features[wild] = 0.0  # a matrix of zeros, the mean still over 3
    damping, bound = torch.tensor([0.5]), torch.tensor([1.0])
    changes, kind, _ = SOLVERS[name]
    found = []
    for one in (federation, tame):
        objective = SoftmaxRegression(settings_of("softmax", **changes), [one], np.array([0]))
        values = client_values(torch.ones(1, 2, objective.dimension))
        found.append(opened(objective.damped_solve(values, values, damping, kind, bound)))  # type: ignore[arg-type]
    assert torch.equal(*found)
    assert bool(found[0].isfinite().all())


@pytest.mark.parametrize(
    ("index", "bounds", "products"),
    [
        ([0, 0, 0, 0], [1.0, 1.0, 1.0, 1.0], 1),
        ([0, 0, 0, 0], [1.0, 0.1, 1.0, 0.1], 2),
        ([0, 1, 0, 1], [1.0, 1.0, 0.1, 1.0], 3),
    ],
    ids=["all alike", "two bounds", "two federations"],
)
def test_runs_share_the_covariances_of_one_bound_and_federation(
    index: list[int], bounds: list[float], products: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the bits of each run by itself."""
    counts, made = [5, 5, 5], []
    own = single_layer.product
    monkeypatch.setattr(
        single_layer, "product", lambda left, right: made.append(len(left)) or own(left, right)
    )

    def found(index: list[int], bounds: list[float]) -> Tensor:
        objective = softmax(counts, index, features=6)
        limits = torch.tensor(bounds, dtype=torch.float64)
        return opened(objective.clipped_covariance(limits).values).clone()

    together = found(index, bounds)
    assert sum(made) == products * len(counts)
    for run, (one, bound) in enumerate(zip(index, bounds, strict=True)):
        alone = found([*range(one + 1)], [bound] * (one + 1))[one]
        assert torch.equal(together[run], alone)


def test_no_method_writes_into_the_covariances_that_runs_share() -> None:
    objective = softmax([5, 5], [0] * 3, features=6)
    own, known = objective.covariance(), opened(objective.covariance()).clone()
    with pytest.raises(PrivacyError, match="mul_"):
        own.mul_(2.0)
    assert torch.equal(opened(own), known)
    assert torch.equal(opened(own * 2.0), 2.0 * known)


def test_kept_factors_are_of_their_clients_whatever_the_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With other threads the clients of a block are others."""
    for module in (records, single_layer):
        monkeypatch.setattr(module, "CPU_BLOCK", 1 << 16)
    objective = softmax([50] * 7, [0, 0], features=60, precision="float64")
    values = client_values(torch.randn(2, 7, objective.dimension, dtype=torch.float64))
    damping, before = torch.full((2,), 0.5, dtype=torch.float64), torch.get_num_threads()
    found = []
    try:
        for threads in (1, 8, 3, 2):
            torch.set_num_threads(threads)
            found.append(opened(objective.damped_solve(values, values, damping, "covariance")))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(one, found[0]) for one in found)


def test_the_kernel_knows_the_floor_of_a_hessians_norm(monkeypatch: pytest.MonkeyPatch) -> None:
    """A long record, of which one class has nearly all the probability."""
    federation = federation_of([1], shape=(2,), classes=2)
    federation.dataset.train.features[:] = [1e5, 0.0]
    values, found = torch.tensor([3e-4, 0.0, 0.0, 0.0]).double().view(1, 1, 4), []
    for _ in range(2):
        settings = settings_of("softmax", bias=False, precision="float64")
        objective = SoftmaxRegression(settings, [federation], np.array([0]))
        right = torch.tensor([1.0, 0.0, 0.0, 0.0]).double().view(1, 1, 4)
        numbers = torch.tensor([1e-3]).double(), "hessian", torch.ones(1).double()
        found.append(opened(objective.damped_solve(values, right, *numbers)))  # type: ignore[arg-type]
        monkeypatch.setattr(single_layer, "compiled_kernel", lambda dtype: None)
    torch.testing.assert_close(*found, rtol=1e-3, atol=1.0)  # of about 1000, or 500 without
