"""The kernel of linear layers and the stacked torch path are the same computation."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from numba import njit

from dpfl_cli.models import layer_kernel, single_layer, vectors
from dpfl_cli.models.softmax import SoftmaxRegression
from dpfl_cli.models.vectors import aligned, exp_of_negative
from dpfl_cli.privacy.client_values import client_values, opened
from tests.models.small import (
    everything,
    federation_of,
    objective_of,
    settings_of,
    softmax,
    softmax_records,
)

COUNTS = [5, 0, 67, 1, 9]
INDEX = [0, 1, 0, 2, 1, 0, 0]
MODELS: dict[str, Any] = {
    "linear": partial(objective_of, "linear_regression", loss_factor=0.7),
    "logistic": partial(objective_of, "logistic", l2=0.2),
    "softmax": partial(softmax, features=13, classes=7, l2=0.2, bias=True, precision="float64"),
    "softmax float32": partial(softmax, features=5, classes=3),
}
each_model = pytest.mark.parametrize("name", MODELS)


@pytest.fixture(autouse=True)
def _vectors_hold_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    """New memory is not zero: what the kernel reads it has written."""

    def anything(size: int, number: type, zeros: bool = True) -> np.ndarray:
        found = aligned(size, number, zeros)
        if not zeros:
            found[:] = np.nan
        return found

    monkeypatch.setattr(layer_kernel, "aligned", anything)


@each_model
@pytest.mark.parametrize("kept", [0, 1 << 30], ids=["laid out anew", "kept"])
def test_the_kernel_equals_torch(name: str, kept: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layer_kernel, "KEPT", kept)
    fast = everything(MODELS[name](COUNTS, INDEX), slice(None))
    monkeypatch.setattr(single_layer, "compiled_kernel", lambda dtype: None)
    slow = everything(MODELS[name](COUNTS, INDEX), slice(None))
    close = 2e-4 if name.endswith("32") else 1e-10
    for what, values in fast.items():
        size = max(float(slow[what].abs().max()), 1e-3)
        error = float((values - slow[what]).abs().max())
        assert error <= (1e-6 if what == "solve" else close) * size + close * 1e-3, what


@pytest.mark.parametrize("width", [1, 2, 9, 23, 100])
@pytest.mark.parametrize("classes", [2, 3, 4, 5, 11])
def test_any_length_and_number_of_outputs(width: int, classes: int) -> None:
    """No multiples of a vector or of a tile, and clients of more than one block."""
    counts = [5, 523, 64]
    federations = [federation_of(counts, 0, (width,), classes)]
    settings = settings_of("softmax", precision="float64", bias=False)
    objective = SoftmaxRegression(settings, federations, np.array([0, 0]))
    points = torch.from_numpy(np.random.default_rng(1).standard_normal((2, 3, classes * width)))
    for bound in (0.3, torch.inf):
        limit = torch.full((2,), bound, dtype=torch.float64)
        found = opened(objective.clipped_gradient(client_values(points), limit).values)
        for client in range(3):
            features, labels = softmax_records(objective, 1, client)
            z = features @ points[1, client].view(classes, width).T
            s = torch.softmax(z, 1) - torch.eye(classes, dtype=z.dtype)[labels]
            norms = s.norm(dim=1) * features.norm(dim=1)
            mean = (s * (bound / norms).clamp(max=1)[:, None]).T @ features / len(labels)
            torch.testing.assert_close(found[1, client], mean.flatten(), rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("bound", [0.02, torch.inf], ids=["clipped", "free"])
def test_float32_is_right_to_its_rounding(bound: float) -> None:
    """Clients of 1 to 60,000 records, features from 1e-4 to 1e4: against float64 on the same
    numbers, in units of float32's rounding of the mean of |x_k|.
    """
    counts, width, classes = [60_000, 1, 17, 0, 1_100], 37, 7
    federation = federation_of(counts, 0, (width,), classes, test=30)
    scales = np.logspace(-4, 4, width)
    features = federation.dataset.train.features
    features[:] = np.random.default_rng(0).standard_normal(features.shape) * scales
    features[:] = features.astype(np.float32)
    drawn = np.random.default_rng(1).standard_normal((2, len(counts), classes, width))
    points = torch.from_numpy((drawn / scales / width**0.5).reshape(2, len(counts), -1)).float()
    found = {}
    for precision, kind in (("float32", torch.float32), ("float64", torch.float64)):
        settings = settings_of("softmax", precision=precision, bias=False)
        objective = SoftmaxRegression(settings, [federation], np.array([0, 0]))
        at, rates = points.to(kind), torch.full((2,), 1e-12, dtype=torch.float64)
        limit = torch.full((2,), bound, dtype=torch.float64)
        found[precision] = [
            opened(objective.clipped_gradient(client_values(at), limit).values),
            opened(objective.local_descent(at[:, 0], rates, 3)) / rates[:, None, None],
        ]
    for (single, double), largest in zip(
        zip(*found.values(), strict=True), (bound, torch.inf), strict=True
    ):
        for client, count in enumerate(counts):
            rows = objective._pool.features[int(objective._pool.first[0, client]) :][:count, :width]
            shares = (largest / rows.norm(dim=1)).clamp(max=1)[:, None]
            size = (rows.abs() * shares).sum(dim=0) / max(count, 1)
            error = (single[:, client] - double[:, client]).abs().unflatten(-1, (classes, width))
            assert bool((error <= 4 * torch.finfo(torch.float32).eps * size).all()), client


@pytest.mark.parametrize("path", ["kernel", "torch"])
def test_a_clipped_float32_record_is_within_its_bound(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of any length; one that is too long or not finite counts as zero."""
    if path == "torch":
        monkeypatch.setattr(single_layer, "compiled_kernel", lambda dtype: None)
    lengths = np.array([1e-30, 1e-12, 1.0, 1e3, 1e9, 0.999e12, 1.001e12, 1e30, np.inf, np.nan])
    federation = federation_of([1] * len(lengths), 0, (5,), 3)
    train = federation.dataset.train.features
    train /= np.linalg.norm(train, axis=1, keepdims=True)
    train[federation.partition.indices] *= lengths[:, None]
    objective = SoftmaxRegression(
        settings_of("softmax", precision="float32", bias=False), [federation], np.arange(1)
    )
    gaps = torch.logspace(-2, 2, 5)[:, None, None]
    for points in gaps * torch.randn(1, len(lengths), 15, generator=torch.manual_seed(0)):
        limit = torch.tensor([0.1])
        found = opened(objective.clipped_gradient(client_values(points[None]), limit).values)[0]
        norms = found.double().norm(dim=-1)
        assert bool((norms <= 0.1 * (1 + 4 * torch.finfo(torch.float32).eps)).all())
        assert norms[6:].tolist() == [0.0] * 4


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_the_exponential_is_right_to_two_ulps(kind: type) -> None:
    @njit
    def fill(x, out):  # type: ignore[no-untyped-def]
        for i in range(len(x)):
            out[i] = exp_of_negative(x[i])

    drawn = np.random.default_rng(0).standard_normal((5, 20_000))
    sizes = np.array([[1e-3], [1.0], [10.0], [40.0], [300.0]])
    x = -np.abs(drawn * sizes).astype(kind).ravel()
    found, right = np.empty_like(x), np.exp(x.astype(np.longdouble))
    fill(x, found)
    assert (np.abs(found - right) <= 2 * np.spacing(right.astype(kind))).all()
    ends = np.empty(3, kind)
    fill(np.array([0.0, -1e5, -np.inf], kind), ends)
    assert ends.tolist() == [1.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("number", "columns"), [(np.float32, 1), (np.float64, 3), (np.float32, 10)]
)
def test_sums_are_the_same_whatever_stays_in_registers(
    number: type, columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A processor with AVX-512 has room for more of them than others: the bits are equal."""
    generator, many, width = np.random.default_rng(0), 7, 64
    lanes = 64 // np.dtype(number).itemsize
    features = vectors.aligned(many * width * lanes, number).reshape(many, width, lanes)
    features[:] = generator.standard_normal(features.shape)
    weights = generator.standard_normal((columns, width)).astype(number)
    found, written = [], []

    def both(features, weights, z, totals):  # type: ignore[no-untyped-def]
        many, width, columns = len(features), features.shape[1], len(weights)
        vectors.outputs(features, 0, many, width, weights, columns, z)
        vectors.accumulate(features, 0, many, width, z, columns, totals)

    for tile, together in ((16, 4), (5, 2), (1, 1)):
        monkeypatch.setattr(vectors, "TILE", tile)
        monkeypatch.setattr(vectors, "COLUMNS", together)
        z = vectors.aligned(columns * many * lanes, number).reshape(columns, -1)
        totals = vectors.aligned(columns * width, np.float64).reshape(columns, -1)
        compiled = njit(both)  # anew
        compiled(features, weights, z, totals)
        written.append(len(compiled.inspect_llvm(compiled.signatures[0])))
        found.append((z.copy(), totals.copy()))
    records = features.transpose(0, 2, 1).reshape(-1, width).astype(np.float64)
    assert len({*written}) == 3
    exact = weights.astype(np.float64) @ records.T
    tolerance = 1e-4 if number is np.float32 else 1e-12
    np.testing.assert_allclose(found[0][0], exact, tolerance, 10 * tolerance)
    np.testing.assert_allclose(found[0][1], found[0][0] @ records, tolerance, 100 * tolerance)
    for other in found[1:]:
        for one, same in zip(found[0], other, strict=True):
            np.testing.assert_array_equal(one, same)
