"""Linear regression: every fast path against explicit loops over runs, clients, records and
steps.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from dpfl_cli.data.federation import Dataset, Federation, Partition, Records
from dpfl_cli.data.streams import Streams
from dpfl_cli.models import single_layer
from dpfl_cli.models.linear import LinearRegression, LinearRegressionSettings
from dpfl_cli.privacy.bounded import clip
from dpfl_cli.privacy.client_values import client_values, opened, shown
from tests.models.small import federation_of, info_of, objective_of, record_gradients
from tests.padding import own_records

D = 6
UNEQUAL = [7, 1, 0, 3, 1, 40]


def slow_descent(
    objective: LinearRegression, start: Tensor, rate: Tensor, steps: int, drift: Tensor
) -> Tensor:
    result = torch.zeros_like(drift)
    for run, client in np.ndindex(objective.runs, objective.clients):
        v = start[run]
        for _ in range(steps):
            own = record_gradients(objective, run, client, v).sum(0)
            v = v - rate[run] * (
                own / objective.records[run, client].clamp(min=1) + drift[run, client]
            )
        result[run, client] = v - start[run]
    return result


WIDTHS = [
    1,
    8,
    32,
    45,
    77,
]  # within a vector of the kernel, whole ones, whole blocks of them, and what is left over


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("steps", [0, 1, 20])
@pytest.mark.parametrize("with_drift", [False, True], ids=["no drift", "drift"])
def test_local_descent_of_any_width_and_number_of_steps(
    width: int, steps: int, with_drift: bool
) -> None:
    sizes, index = [1, 0, 3, *[1] * 20], [1, 0, 1]
    data = {"shape": (width,)}
    objective = objective_of("linear_regression", sizes, index, data, loss_factor=0.7)
    generator = np.random.default_rng(5)
    start = torch.from_numpy(generator.standard_normal((3, width)))
    rate = torch.from_numpy(generator.uniform(0.001, 0.01, 3))
    drift = torch.from_numpy(generator.standard_normal((3, len(sizes), width)) * with_drift)
    update = opened(
        objective.local_descent(start, rate, steps, client_values(drift) if with_drift else None)
    )
    assert update.is_contiguous()
    wanted = slow_descent(objective, start, rate, steps, drift)
    torch.testing.assert_close(update, wanted, rtol=1e-10, atol=1e-12)
    # the same numbers, otherwise laid out
    by_columns, apart = start.T.contiguous().T, drift.mT.contiguous().mT
    marked, rates = client_values(apart) if with_drift else None, rate.repeat_interleave(2)[::2]
    again = opened(objective.local_descent(by_columns, rates, steps, marked))
    assert torch.equal(again, update)


def test_a_loss_of_many_clients_has_the_same_bits_alone_and_with_any_threads() -> None:
    """Torch shares a single long sum between its threads."""
    federation = federation_of([1] * 40_000, 0, (2,), None)
    starts = torch.randn(3, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    losses, before = [], torch.get_num_threads()
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            batch = LinearRegression(LinearRegressionSettings(), [federation], np.array([0, 0, 0]))
            alone = LinearRegression(LinearRegressionSettings(), [federation], np.array([0]))
            together = batch.metrics(starts)["train_loss"]
            losses += [
                together,
                torch.cat([alone.metrics(starts[run : run + 1])["train_loss"] for run in range(3)]),
            ]
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(loss, losses[0]) for loss in losses[1:])


def test_metrics_equal_explicit_loops() -> None:
    objective = objective_of("linear_regression", UNEQUAL, [0, 1, 0])
    best = np.random.default_rng(2).standard_normal(D)
    for one in objective.federations:
        one.dataset.truth["optimum"] = best
    w = np.random.default_rng(1).standard_normal((3, D))
    metrics = objective.metrics(torch.from_numpy(w))
    assert list(metrics) == ["distance", "relative_distance", "train_loss"]
    for run in range(3):
        federation, loss = objective.federations[objective.index[run]], 0.0
        for client in range(federation.clients):
            features, targets = own_records(federation, client)
            residuals = features @ w[run] - targets
            loss += (residuals @ residuals) / max(len(targets), 1) / federation.clients
        distance = np.linalg.norm(w[run] - best)
        assert metrics["train_loss"][run].item() == pytest.approx(loss, rel=1e-12)
        assert metrics["distance"][run].item() == pytest.approx(distance, rel=1e-12)
        assert metrics["relative_distance"][run].item() == pytest.approx(
            distance / np.linalg.norm(best), rel=1e-12
        )


def test_distance_is_left_out_where_the_optimum_is_not_known() -> None:
    objective = objective_of("linear_regression", [2, 3])
    assert list(objective.metrics(objective.initial(Streams([0])))) == ["train_loss"]


def test_divergence_reaches_clipping_as_zero_and_stays_in_its_client() -> None:
    federation = federation_of([1, 1, 3], classes=None)
    wild = federation.partition.indices[[0, 2]]  # the first client, and one record of the third
    federation.dataset.train.features[:] = 0.1
    federation.dataset.train.features[wild] *= 1e3
    objective = LinearRegression(LinearRegressionSettings(), [federation], np.array([0]))
    update = objective.local_descent(torch.ones(1, D).double(), torch.tensor([10.0]).double(), 200)
    finite = torch.isfinite(opened(update)).all(dim=-1)
    assert not finite[0, 0]
    assert not finite[0, 2]
    bounded = clip(update, torch.tensor([1.0]).double())
    norms = torch.linalg.vector_norm(opened(bounded.values), dim=-1)
    assert norms[0, 0] == 0
    assert norms[0, 2] == 0
    assert shown(bounded.repaired).tolist() == [int((~finite).sum())]
    assert bool((norms <= 1 + 1e-12).all())


def test_initial_is_zero_and_arguments_are_left_alone() -> None:
    objective = objective_of("linear_regression", UNEQUAL, [0, 1])
    start = objective.initial(Streams([0, 1]))
    assert start.dtype == torch.float64
    assert torch.equal(start, torch.zeros(2, D).double())
    drift = client_values(torch.ones(2, 6, D).double())
    first = objective.local_descent(start, torch.tensor([0.1, 0.1]).double(), 3, drift)
    kept = opened(first).clone()
    objective.local_descent(start + 1, torch.tensor([0.2, 0.1]).double(), 5, drift)
    assert torch.equal(opened(first), kept)
    assert torch.equal(start, torch.zeros(2, D).double())
    assert torch.equal(opened(drift), torch.ones(2, 6, D).double())


@pytest.mark.parametrize("kernel", [True, False], ids=["kernel", "torch"])
def test_a_record_whose_gradient_overflows_counts_as_zero_where_it_is_clipped(
    kernel: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not kernel:
        monkeypatch.setattr(single_layer, "compiled_kernel", lambda dtype: None)
    federation = federation_of([4, 3], classes=None)
    federation.dataset.train.features[federation.partition.indices[:4]] *= (
        1e4  # x.v overflows for every record of client 0
    )
    objective = LinearRegression(LinearRegressionSettings(), [federation], np.array([0]))
    points = torch.ones(1, 2, D).double()
    points[0, 0] = 1e306
    found = opened(objective.clipped_gradient(client_values(points), torch.ones(1).double()).values)
    assert bool(found[0, 0].eq(0).all())
    assert float(found[0, 1].norm()) > 0
    assert not bool(torch.isfinite(opened(objective.gradient(client_values(points)))[0, 0]).all())


SCALES = [
    1e-320,
    1e-308,
    1e-200,
    1e-165,
    1e-160,
    9e-151,
    1.1e-150,
    1e-80,
    1.0,
    1e80,
    9e149,
    1.1e150,
    1e153,
    1e155,
    1e308,
]
TARGETS = [1e-300, 1.0, -1e150, 5.5e142, 1.3e154, 1e165, 1e300, 1e308, -1e308]


@pytest.mark.parametrize("kernel", [True, False], ids=["kernel", "torch"])
@pytest.mark.parametrize("batched", [False, True], ids=["all records", "batch"])
@pytest.mark.parametrize("width", [1, D])
@pytest.mark.parametrize("bound", [1e-6, 1.0, 1e6])
def test_no_record_moves_a_clipped_mean_by_more_than_its_sensitivity(
    kernel: bool, batched: bool, width: int, bound: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients hold 5 plain records and 0, 1 or 2 (in run 0, 1, 2) with features and targets that
    under- or overflow.
    """
    if not kernel:
        monkeypatch.setattr(single_layer, "compiled_kernel", lambda dtype: None)
    generator = np.random.default_rng(8)
    cases = [(scale, target) for scale in SCALES for target in TARGETS]
    features = generator.standard_normal((len(cases), 7, width))
    targets = generator.standard_normal((len(cases), 7))
    shapes = generator.choice([-1.0, 1.0], (len(cases), 1, width)) * 10.0 ** -generator.integers(
        0, 20, (len(cases), 1, width)
    )
    federations = []
    for strange in range(3):
        features[:, 5:], targets[:, 5:] = 0.0, 0.0
        stop = 5 + strange
        features[:, 5:stop] = np.array([scale for scale, _ in cases])[:, None, None] * shapes
        targets[:, 5:stop] = np.array([target for _, target in cases])[:, None]
        records = Records(features.reshape(-1, width).copy(), targets.flatten())
        dataset = Dataset(info_of((width,), None, len(records)), records, None)
        federations.append(
            Federation(dataset, Partition.from_lists(np.split(np.arange(len(records)), len(cases))))
        )
    objective = LinearRegression(
        LinearRegressionSettings(loss_factor=0.5), federations, np.arange(3)
    )
    points = client_values(torch.ones(3, len(cases), width, dtype=torch.float64))
    batch = torch.arange(7).flip(0).expand(3, len(cases), 7) if batched else None
    found = objective.clipped_gradient(points, torch.full((3,), bound, dtype=torch.float64), batch)
    means = opened(found.values)
    for strange in (1, 2):
        moved = (means[strange] - means[0]).norm(dim=-1)
        assert bool((moved <= strange * found.zero_out[0] * (1 + 1e-9)).all())
    assert (
        float((means[1] - means[0]).norm(dim=-1).max()) > 0.99 * bound / 7
    )  # some are as far as they may go
