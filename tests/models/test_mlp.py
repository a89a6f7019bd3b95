"""The fully connected network: overflow, its proximal step and its initial values."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dpfl_cli.data.federation import Dataset, Federation, Records
from dpfl_cli.data.streams import Streams
from dpfl_cli.privacy.client_values import ClientValues, client_values, opened
from tests.models.small import federation_of, model_of, objective_of, on, points


def test_a_hidden_unit_that_overflows_drops_its_record_alone() -> None:
    data = {"shape": (6, 4), "classes": 3}
    plain = objective_of("mlp", [4], (0,), data, activation="relu", hidden=[2, 2])
    fed = plain.federations[0]
    features = fed.dataset.train.features.copy()
    features[:] = 0.5
    first = fed.partition.indices[0]
    features[first, 0, 0] = (
        1e20  # its squared norm overflows, and with the weights below its second layer, too
    )
    fed = Federation(
        Dataset(fed.dataset.info, Records(features, fed.dataset.train.targets), None), fed.partition
    )
    objective = on(plain, fed)
    parameters = torch.full((1, 1, objective.dimension), 0.1)
    parameters[..., 50:56] = 1e20
    parameters[..., 48:50] = 0.0
    huge = objective.clipped_gradient(parameters, torch.tensor([1.0])).checked()
    assert huge.isfinite().all()


@pytest.mark.parametrize("penalty", ["none", "l1_box", "box", "ball"])
def test_the_proximal_step_is_the_penaltys(penalty: str) -> None:
    changes = {"penalty": penalty, "l1_weight": 0.5, "box": 0.4, "radius": 2.0}
    objective = objective_of("mlp", [5, 0, 12], [0, 0], hidden=[7], **changes)
    values, step = points(objective), torch.tensor([0.1, 0.2], dtype=torch.float64)
    found = objective.prox(client_values(values), step)
    assert isinstance(found, ClientValues)
    assert found.dtype == torch.float32
    shrunk = (values.abs() - 0.5 * step.float()[:, None, None]).clamp(min=0) * values.sign()
    expected = {
        "none": values,
        "l1_box": shrunk.clamp(-0.4, 0.4),
        "box": values.clamp(-0.4, 0.4),
        "ball": values * (2.0 / values.norm(dim=-1, keepdim=True)).clamp(max=1.0),
    }
    torch.testing.assert_close(opened(found), expected[penalty], rtol=1e-6, atol=1e-7)


def test_initial_parameters_follow_pytorchs_law() -> None:
    data = {"shape": (28, 28), "classes": 3}
    objective = objective_of("mlp", [5], [0] * 3, data)
    rows = objective.initial(Streams([7, 8, 7]))
    assert rows.dtype == torch.float32
    assert torch.equal(rows[0], rows[2])
    assert not torch.equal(rows[0], rows[1])
    first = 784 * 200 + 200
    for part, inputs in ((rows[0, :first], 784), (rows[0, first:], 200)):
        unit = part * inputs**0.5
        assert unit.abs().max() <= 1
        # variance 1/3 of U(-1, 1), whose squares have variance 4/45
        assert abs(unit.square().mean() - 1 / 3) < 4.5 * (4 / 45 / len(part)) ** 0.5


@pytest.mark.parametrize(
    ("activation", "layer"), [("sigmoid", 0), ("relu", 0), ("relu", 1)]
)  # sigmoids are at most 1
def test_no_record_is_left_unclipped_where_its_residual_underflows(
    activation: str, layer: int
) -> None:
    """A layer's inputs of any norm and residuals of any size: each record has at most norm C,
    beyond the largest norm none.
    """
    scales = np.array([1e3, 1e9, 0.999e12, 1.001e12, 1e15, 1.8e19], np.float32)
    gaps = np.linspace(0.0, 120.0, 121)
    fed = federation_of([1] * len(scales), shape=(1, 1), classes=3)
    train = fed.dataset.train
    train.targets[:] = 0
    train.features[fed.partition.indices, 0, 0] = scales if layer == 0 else 1.0
    kind, settings = model_of("mlp", hidden=[1], activation=activation)
    objective = kind(settings, [fed], np.zeros(len(gaps), int))
    values = torch.zeros(len(gaps), len(scales), objective.dimension, dtype=torch.float64)
    unit = (
        1.0 if activation == "relu" else 0.5
    )  # the hidden unit's output, where its inputs are weighed by nothing
    values[..., 0] = torch.from_numpy(scales).double() if layer == 1 else 0.0
    values[..., 1] = 1.0 if layer == 0 and activation == "relu" else 0.0  # the hidden unit's bias
    outputs = torch.from_numpy(scales).double() if layer == 1 else unit
    values[..., 2] = torch.from_numpy(gaps)[:, None] / outputs  # the weight of class 0
    parameters = client_values(values.float())
    found = objective.clipped_gradient(parameters, torch.full((len(gaps),), 1e-4))
    norms = opened(found.values).double().norm(dim=-1)
    assert float(norms.max()) <= 1e-4 * (1 + 1e-5)
    assert bool((norms[1, :3] > 0.99e-4).all())
    assert not bool(norms[:, 3:].any())
