"""Small federations, an objective of every model on them, and the gradients of its records by
automatic differentiation, one after another.
"""

from __future__ import annotations

import copy
from functools import cache, lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from dpfl_cli.config.component import lookup, parse_settings
from dpfl_cli.config.compose import compose_config
from dpfl_cli.data.federation import Dataset, DatasetInfo, Federation, Partition, Records
from dpfl_cli.models.linear import LinearRegression
from dpfl_cli.models.logistic import LogisticRegression
from dpfl_cli.models.mlp import Mlp
from dpfl_cli.models.network import Network
from dpfl_cli.models.objective import Objective
from dpfl_cli.models.softmax import SoftmaxRegression
from dpfl_cli.privacy.client_values import client_values, opened
from dpfl_cli.simulation.plan import load_components
from tests.padding import own_records

CLASSES = {"linear_regression": None, "logistic": 2}
UNITS = {"sigmoid": nn.Sigmoid, "relu": nn.ReLU, "tanh": nn.Tanh}


def info_of(
    shape: tuple[int, ...] = (6,), classes: int | None = 10, records: int = 100, **changes: Any
) -> DatasetInfo:
    return DatasetInfo("toy", "synthetic", "", shape, classes, records, **changes)


def federation_of(
    counts: list[int],
    seed: int = 0,
    shape: tuple[int, ...] = (6,),
    classes: int | None = 10,
    test: int = 0,
    target_shape: tuple[int, ...] = (),
    dataset: Dataset | None = None,
) -> Federation:
    """Clients with so many of the records of a pool, which has three more. The records' lengths
    differ by a factor of thirty.
    """
    generator, lengths = np.random.default_rng(seed), np.random.default_rng(seed + 100)
    total = sum(counts) + 3

    def records(n: int) -> Records:
        features = generator.standard_normal((n, *shape))
        features *= lengths.uniform(0.1, 3.0, (n, *[1] * len(shape)))
        if classes is None:
            return Records(features, generator.standard_normal(n))
        return Records(features, generator.integers(0, classes, (n, *target_shape)))

    if dataset is None:
        info = info_of(shape, classes, total, target_shape=target_shape)
        dataset = Dataset(info, records(total), records(test) if test else None)
    dealt = generator.permutation(len(dataset.train))[: sum(counts)]
    return Federation(dataset, Partition.from_counts(dealt, np.array(counts)))


@cache
def _composed(option: str) -> dict[str, Any]:
    load_components()
    return dict(compose_config([f"model={option}"])["model"])


def model_of(option: str, **changes: Any) -> tuple[Any, Any]:
    """The class and the settings of `model=OPTION`, with some changed."""
    values = {**_composed(option)}
    found = lookup("model", values.pop("name"))
    return found.target, parse_settings(found.settings, values | changes, "model")


def settings_of(option: str, **changes: Any) -> Any:
    return model_of(option, **changes)[1]


def objective_of(
    option: str,
    counts: list[int],
    index: list[int] | tuple[int, ...] = (0,),
    data: dict[str, Any] | None = None,
    **changes: Any,
) -> Any:
    """On as many federations as the index names."""
    kind, settings = model_of(option, **changes)
    known = {"classes": CLASSES.get(option, 10)} | (data or {})
    federations = [federation_of(counts, seed, **known) for seed in range(max(index) + 1)]
    return kind(settings, federations, np.array(index))


def softmax(
    counts: list[int],
    index: list[int] | tuple[int, ...] = (0,),
    features: int = 6,
    classes: int = 10,
    **changes: Any,
) -> SoftmaxRegression:
    data = {"shape": (features,), "classes": classes, "test": 30}
    return objective_of("softmax", counts, index, data, **changes)


def softmax_records(objective: SoftmaxRegression, run: int, client: int) -> tuple[Tensor, Tensor]:
    """float64 features [n, width], the bias among them, and labels of a client's records."""
    found, labels = own_records(objective.federations[objective.index[run]], client)
    features = torch.from_numpy(found).double()
    if objective.settings.bias:
        features = torch.cat([features, torch.ones(len(features), 1, dtype=torch.float64)], dim=1)
    return features, torch.from_numpy(labels)


def on(objective: Any, *federations: Federation, index: list[int] | tuple[int, ...] = (0,)) -> Any:
    """The same model on other federations."""
    return type(objective)(objective.settings, [*federations], np.array(index))


def points(objective: Objective, seed: int = 0, scale: float = 1.0) -> Tensor:
    """Parameters [R, M, d] that differ between runs and clients."""
    generator = torch.Generator().manual_seed(seed)
    shape = (objective.runs, objective.clients, objective.dimension)
    return scale * torch.randn(shape, dtype=torch.float64, generator=generator).to(objective.dtype)


class WithOnes(nn.Linear):
    """A linear layer whose biases are the last column of its weights, where it has them."""

    def forward(self, inputs: Tensor) -> Tensor:
        ones = inputs.new_ones(len(inputs), self.in_features - inputs.shape[1])
        return functional.linear(torch.cat([inputs, ones], dim=1), self.weight)


@lru_cache(maxsize=2)
def by_torch(objective: Any) -> tuple[nn.Module, Any]:
    """A model from PyTorch's layers, in float64, its parameters in the objective's order; and the
    losses [n] of outputs and targets.
    """
    shape, settings = objective.info.feature_shape, objective.settings
    if isinstance(objective, Network):
        return copy.deepcopy(objective.module).double(), objective.losses
    if isinstance(objective, LinearRegression):
        module, factor = WithOnes(*shape, 1, bias=False), settings.loss_factor
        return module.double(), lambda z, y: factor * (z[:, 0] - y).square()
    if isinstance(objective, LogisticRegression):
        module = WithOnes(*shape, 1, bias=False)
        return module.double(), lambda z, y: functional.softplus((1 - 2 * y) * z[:, 0], 1, 1000)

    def losses(z: Tensor, y: Tensor) -> Tensor:
        return functional.cross_entropy(z, y, reduction="none")

    classes = objective.info.classes
    if isinstance(objective, SoftmaxRegression):
        return WithOnes(shape[0] + settings.bias, classes, bias=False).double(), losses
    assert isinstance(objective, Mlp)
    layers: list[nn.Module] = []
    if settings.average_pool > 1:
        layers += [nn.Unflatten(1, (1, -1)), nn.AvgPool2d(settings.average_pool)]
    layers.append(nn.Flatten())
    width = int(np.prod(shape)) // settings.average_pool**2
    for outputs in settings.hidden:
        layers += [nn.Linear(width, outputs), UNITS[settings.activation]()]
        width = outputs
    return nn.Sequential(*layers, nn.Linear(width, classes)).double(), losses


def outputs_of(objective: Any, values: Tensor, features: np.ndarray) -> Tensor:
    """What a model gives for records [n, ...] at parameters [d], in float64."""
    module, named, start = by_torch(objective)[0], {}, 0
    for name, parameter in module.named_parameters():
        if parameter.requires_grad:
            named[name] = values[start : start + parameter.numel()].view(parameter.shape)
            start += parameter.numel()
    assert start == len(values) == objective.dimension
    given = torch.from_numpy(features)
    given = given.double() if given.is_floating_point() else given
    given = objective.inputs(given) if isinstance(objective, Network) else given
    return functional_call(module, named, (given,))


def losses_of(objective: Any, values: Tensor, features: np.ndarray, targets: np.ndarray) -> Tensor:
    """[n] losses of records at parameters [d], in float64."""
    outputs = outputs_of(objective, values, features)
    return by_torch(objective)[1](outputs, torch.from_numpy(targets))


def record_gradients(objective: Any, run: int, client: int, values: Tensor) -> Tensor:
    """[n, d] of a client's records at parameters [d], in float64, without the regulariser."""
    rows = [torch.zeros(0, objective.dimension, dtype=torch.float64)]
    for x, y in zip(*own_records(objective.federations[objective.index[run]], client), strict=True):
        leaf = values.double().clone().requires_grad_()
        (loss,) = losses_of(objective, leaf, x[None], y[None])
        rows.append(torch.autograd.grad(loss, leaf)[0].unsqueeze(0))
    return torch.cat(rows)


def everything(objective: Any, runs: slice, batch: int = 21) -> dict[str, Tensor]:
    """All that looks at records, or at so many drawn ones, for some runs of a batch of seven."""
    drawn = np.random.default_rng(0)
    clients, d = objective.clients, objective.dimension
    start, own, drift = (
        0.2 * torch.from_numpy(drawn.standard_normal(shape))[runs].to(objective.dtype)
        for shape in ((7, d), (7, clients, d), (7, clients, d))
    )
    batches = torch.from_numpy(drawn.integers(0, 9, (7, clients, 3, batch)))[runs]
    bound, rate = (torch.linspace(0.05, 2, 7).double()[runs] * part for part in (1, 0.1))
    at, shift = client_values(own), client_values(drift)
    found = {
        "gradient": objective.gradient(at),
        "clipped": objective.clipped_gradient(at, bound).values,
        "batch": objective.clipped_gradient(at, bound, batches[:, :, 0]).values,
        "norms": objective.squared_gradient_norms(at),
        "batch norms": objective.squared_gradient_norms(at, batches[:, :, 1]),
        "descent": objective.local_descent(start, rate, 4, shift),
        "batch descent": objective.local_descent(start, rate, batches.shape[2], shift, batches),
        **objective.metrics(start),
    }
    if "damped_solve" in objective.provides:
        damping = 0.5 + bound
        found["solve"] = objective.damped_solve(at, shift, damping, "hessian", bound)
        found["covariance"] = objective.damped_solve(at, shift, damping, "covariance", bound)
        found["clipped covariance"] = objective.clipped_covariance(bound).values
        size = objective.features
        matrices = torch.from_numpy(drawn.standard_normal((7, size, size)))[runs]
        found["preconditioned"] = objective.precondition(at, matrices.to(objective.dtype))
    return {what: opened(values) for what, values in found.items()}
