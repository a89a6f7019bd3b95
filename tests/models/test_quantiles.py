"""Quantiles of squared gradient norms: their definition, and that every model that has norms
reports them when asked.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dpfl_cli.data.streams import Streams
from dpfl_cli.models.linear import LinearRegression, LinearRegressionSettings
from dpfl_cli.models.quantiles import MEAN, NAMES, gradient_quantiles
from dpfl_cli.privacy.client_values import client_values, opened
from tests.models.small import federation_of, model_of

COUNTS = [7, 0, 3]
SIZES = {"linear_regression": ((4,), None), "logistic": ((4,), 2), "mobilenet": ((16, 16), 2)}


def test_the_definition_by_hand() -> None:
    squared = torch.tensor(
        [[[4.0, 1.0, 0.0, 9.0], [7.0, 0.0, 0.0, 0.0]], [[0.0, 0.0, 5.0, 5.0], [5.0, 5.0, 0.0, 0.0]]]
    )
    found = gradient_quantiles(client_values(squared), torch.tensor([[4, 1], [0, 2]]))
    assert set(found) == set(NAMES)
    # run 0: 0, 1, 4, 7, 9 of mean 4.2; places ceil(5 q) = 3, 3, 4, 4, 5, 5. Run 1: 5, 5.
    assert found[MEAN].tolist() == [pytest.approx(4.2), 5.0]
    for percent, value in {50: 4, 60: 4, 70: 7, 80: 7, 90: 9, 100: 9}.items():
        assert found[f"tau_{percent}"][0].item() == pytest.approx(value / 4.2), percent
        assert found[f"tau_{percent}"][1].item() == 1.0


def test_zero_gradients_and_gradients_that_are_not_finite() -> None:
    counts = torch.tensor([[2], [2], [2]])
    found = gradient_quantiles(
        client_values(torch.tensor([[[0.0, 0.0]], [[1.0, torch.inf]], [[1.0, torch.nan]]])), counts
    )
    assert all(
        found[f"tau_{percent}"].tolist() == [0.0] * 3 for percent in (50, 60, 70, 80, 90, 100)
    )
    assert found[MEAN][0] == 0
    assert not found[MEAN][1:].isfinite().any()


@pytest.mark.parametrize(
    "option", ["linear_regression", "logistic", "softmax", "frozen_mlp", "mlp", "mobilenet"]
)
def test_every_model_with_norms_reports_them_when_asked(option: str) -> None:
    kind, settings = model_of(option, **({"width": 0.1} if option == "mobilenet" else {}))
    feds = [
        federation_of(counts, seed, *SIZES.get(option, ((4,), 3)))
        for seed, counts in enumerate((COUNTS, [2, 2, 2]))
    ]
    asked = kind(settings.model_copy(update={"gradient_quantiles": True}), feds, np.array([0, 1]))
    silent = kind(settings, feds, np.array([0, 1]))
    models = asked.initial(Streams([0, 1])) + 0.1
    metrics = asked.metrics(models)
    assert metrics.keys() - silent.metrics(models).keys() == set(NAMES) == asked.private(NAMES)
    squared = opened(asked.squared_gradient_norms(models.unsqueeze(1).expand(-1, 3, -1))).double()
    for run, fed in enumerate(feds):
        each = np.concatenate(
            [
                squared[run, client, :count].numpy()
                for client, count in enumerate(fed.partition.counts)
            ]
        )
        assert metrics[MEAN][run].item() == pytest.approx(each.mean(), rel=1e-6)
        assert metrics["tau_100"][run].item() == pytest.approx(each.max() / each.mean(), rel=1e-6)
        expected = np.quantile(each, 0.7, method="inverted_cdf") / each.mean()
        assert metrics["tau_70"][run].item() == pytest.approx(expected, rel=1e-6)


# --- the quadratic task's model
# ---------------------------------------------------------------------------------------


def linear(feds, index=(0,), **values) -> LinearRegression:
    return LinearRegression(LinearRegressionSettings(**values), feds, np.array(index))


def test_the_objective_is_the_mean_over_all_records_of_half_the_squared_residual() -> None:
    fed = federation_of([5, 5, 5], 0, (4,), None)
    objective = linear([fed], objective=True)
    model = torch.randn(1, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    rows, train = fed.partition.indices, fed.dataset.train
    residuals = train.features[rows] @ model[0].numpy() - train.targets[rows]
    found = objective.metrics(model)
    assert found["objective"].item() == pytest.approx((residuals**2).mean() / 2, rel=1e-12)
    assert found["train_loss"].item() == pytest.approx((residuals**2).mean(), rel=1e-12)
    assert objective.private(found) == {"train_loss", "objective"}
    assert "objective" not in linear([fed]).metrics(model)
    assert (
        linear([fed], objective=True, loss_factor=1.0).metrics(model)["objective"].item()
        == found["train_loss"].item()
    )


def test_initial_models() -> None:
    fed = federation_of(COUNTS, 0, (50,), None)
    normal = linear([fed], [0, 0, 0], init="normal").initial(Streams([3, 4, 3]))
    assert torch.equal(normal[0], normal[2])
    assert not torch.equal(normal[0], normal[1])
    assert normal[0].std().item() == pytest.approx(1.0, abs=0.3)
    assert bool((linear([fed]).initial(Streams([3])) == 0).all())
