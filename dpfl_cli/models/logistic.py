"""Logistic regression on two classes, without a bias, in float64: f_i(x) = mean_j ln(1 + exp(-y_ij a_ij . x)) + l2 / 2 ||x||^2.

The problem is min_x (1/M) sum_i f_i(x) + g(x), with g one of `prox`. With l2 > 0 it has one minimiser x*, which is computed once
(`optimum`), and metrics say how far a model is from it. l2 is given, or follows from a condition number kappa = L / mu: with
L_i = L0_i + l2, L0_i = lambda_max(A_i^T A_i) / (4 n_i), and mu = l2, it is l2 = max_i L0_i / (kappa - 1), which looks at all
records without a release.

References:
  Zhang, Fay, Johansson 2023, arXiv:2308.01139, section 5 (l2 = 0.1; g none, or a weighted l1 norm on a box).
  Mishchenko, Malinovsky, Stich, Richtarik 2022, arXiv:2202.09357, section 5 (l2 from a condition number).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Literal

import numpy as np
import torch
from pydantic import Field, ValidationInfo, field_validator
from torch import Tensor
from torch.nn.functional import pad

from dpfl_cli.config.component import component
from dpfl_cli.config.errors import ConfigError
from dpfl_cli.data.federation import DatasetInfo, Federation, Records
from dpfl_cli.data.streams import Streams
from dpfl_cli.models.optimum import LogisticProblem, minimiser, smoothness
from dpfl_cli.models.prox import PenaltySettings, penalty_of
from dpfl_cli.models.single_output import ROW_UNIT, Shard, SingleOutput
from dpfl_cli.models.stacks import by_blocks
from dpfl_cli.privacy.client_values import ClientValues, client_values, opened


class LogisticSettings(PenaltySettings):
    """Settings of `logistic_regression`."""

    later: ClassVar[frozenset[str]] = frozenset({"gradient_quantiles", "condition"})

    l2: float | None = Field(ge=0, allow_inf_nan=False)  # theta_2, lambda
    init: Literal["zeros", "normal"]
    gradient_quantiles: bool = False
    condition: float | None = Field(None, gt=1, allow_inf_nan=False, validate_default=True)  # kappa

    @field_validator("condition")
    @classmethod
    def _one_regularisation(cls, value: float | None, known: ValidationInfo) -> float | None:
        weight = known.data.get("l2", 0.0)  # absent where it was refused itself
        if value is not None and weight is not None:
            raise ValueError(f"model.l2={weight:g} is given as well, which follows from a condition; write model.l2=null")
        if value is None and weight is None:
            raise ValueError("model.l2 is null as well, and one of the two is needed; write model.l2=0.1, or model.condition=100")
        return value


@component("model", "logistic_regression", revision=1, settings=LogisticSettings)
class LogisticRegression(SingleOutput):
    """Logistic regression on two classes, optionally with l2 regularisation and a non-smooth penalty."""

    kernel_loss: ClassVar[str] = "logistic"
    unreleased_metrics: ClassVar[frozenset[str]] = frozenset({"train_loss", "squared_error", "suboptimality"})

    def __init__(
        self, settings: LogisticSettings, federations: list[Federation], index: np.ndarray, device: torch.device | str = "cpu"
    ) -> None:
        super().__init__(settings, federations, index, device)
        self.features = self.dimension = self.dimension_of(settings, federations[0].dataset.info)
        self.l2 = settings.l2 or 0.0  # what all runs share; l2 from a condition number is that of a run's own data
        self.penalty = penalty_of(settings)

    @staticmethod
    def not_covered(settings: LogisticSettings) -> list[str]:
        """What the model looks at without a release."""
        return [] if settings.condition is None else ["the regularisation model.l2, set from the records by model.condition"]

    @classmethod
    def dimension_of(cls, settings: LogisticSettings, info: DatasetInfo) -> int:
        """d, the length of a record's feature vector."""
        if info.classes != 2 or len(info.feature_shape) != 1:
            raise ConfigError(
                f"model=logistic: needs feature vectors with two classes, but dataset={info.name} has features of shape "
                f"{list(info.feature_shape)} and {info.classes or 'no'} classes; choose dataset=ijcnn1 or another model"
            )
        return info.feature_shape[0]

    def initial(self, streams: Streams) -> Tensor:
        """[R, d] zeros, or N(0, I)."""
        values = np.zeros((self.runs, self.dimension))
        if self.settings.init == "normal":
            for run in range(self.runs):
                values[run] = streams.generator(run, "init").standard_normal(self.dimension)
        return torch.from_numpy(values).to(self.device)

    def encoded(self, targets: np.ndarray) -> np.ndarray:
        """-1 for class 0, 1 for class 1."""
        return 2.0 * targets - 1.0

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """ln(1 + exp(-y z)) = max(0, -y z) + ln(1 + exp(-|y z|))."""
        margin = targets * outputs
        return (-margin).clamp(min=0.0) + margin.abs().neg().exp().log1p()

    def derivative(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """-y / (1 + exp(y z))."""
        return -targets * torch.sigmoid(-targets * outputs)

    def second_derivative(self, outputs: Tensor) -> Tensor:
        """sigmoid(z) sigmoid(-z)."""
        return torch.sigmoid(outputs) * torch.sigmoid(-outputs)

    def gradient(self, parameters: Tensor) -> ClientValues:
        """As for all models with one output, with the run's own l2."""
        found = super().gradient(parameters)
        if self.settings.condition is None:
            return found
        held = (self.records > 0).unsqueeze(-1).to(self.dtype)
        return client_values(opened(found) + held * self.regulariser_gradient(opened(parameters)))

    def regulariser_gradient(self, parameters: Tensor) -> Tensor:
        """l2 x."""
        if self.settings.condition is None:
            return super().regulariser_gradient(parameters)
        return self._weights.reshape(-1, *[1] * (parameters.dim() - 1)) * parameters

    def prox(self, values: Tensor, step: Tensor) -> Tensor:
        """As the contract, for the penalty g."""
        return self.penalty.prox(values, step.reshape(-1, *[1] * (values.dim() - 1)))

    def metrics(self, parameters: Tensor) -> dict[str, Tensor]:
        """Each [R]: `train_loss`, F = (1/M) sum_i f_i + g with g on its domain (a model outside is not infinitely bad); with
        l2 > 0, of the minimiser x* of F, `squared_error` ||x - x*||^2 / ||x*||^2 (unless x* = 0, which a large l1 weight makes)
        and `suboptimality` F(x) - F(x*); and where there is a test split, `accuracy` in percent and `test_loss`, the mean of
        ln(1 + exp(-y a . x)); and `gradient_quantiles`, where settings ask for them.
        """
        loss = self._objective(parameters)
        found = {"train_loss": loss, **self.asked_quantiles(parameters)}
        if self._best is not None:
            best, least, away_from_zero = self._best
            if away_from_zero:
                apart = torch.linalg.vector_norm(parameters - best, dim=-1) / torch.linalg.vector_norm(best, dim=-1)
                found |= {"squared_error": apart.square()}
            found |= {"suboptimality": loss - least}
        if all(test is not None for test in self._tests):
            accuracy, test_loss = torch.empty_like(loss), torch.empty_like(loss)
            for shard, test in zip(self._shards, self._tests, strict=True):
                assert test is not None
                accuracy[shard.runs] = 100.0 * test.mean(_hits, parameters[shard.runs])
                test_loss[shard.runs] = test.mean(self.loss, parameters[shard.runs])
            found |= {"accuracy": accuracy, "test_loss": test_loss}
        return found

    def problem(self, start: Tensor) -> dict[str, float]:
        """Facts of the first run's problem and of a start [d]; diagnostics, for they depend on the records. Empty without an x*.

        Returns:
          initial_distance: sum_i ||start - x*||^2 over the clients.
          optimum_gradients: sum_i ||grad f_i(x*)||^2, 0 where all clients have one minimiser.
          dual_norm: sum_i ||Lambda_i*||^2 of the primal-dual method, Lambda_i* = (mean_j grad f_j(x*) - grad f_i(x*)) / M, by
            the stationarity of its messages at x*.
          optimum_norm: ||x*||.
          smoothness, strong_convexity: the largest L_i, and mu, of the f_i.
        """
        if self._best is None:
            return {}
        best = self._best[0]
        gradients = opened(self.gradient(best.unsqueeze(1).repeat(1, self.clients, 1)))[0]  # [M, d]
        duals = (gradients.mean(dim=0) - gradients) / self.clients
        return {
            "initial_distance": self.clients * float((start - best[0]).square().sum()),
            "optimum_gradients": float(gradients.square().sum()),
            "dual_norm": float(duals.square().sum()),
            "optimum_norm": float(torch.linalg.vector_norm(best[0])),
            "smoothness": float(smoothness(self.federations[int(self.index[0])], float(self._weights[0])).max()),
            "strong_convexity": float(self._weights[0]),
        }

    def _objective(self, model: Tensor) -> Tensor:
        """[R] F at models [R, d]."""
        weight: float | Tensor = self.l2 if self.settings.condition is None else self._weights
        smooth = self.mean_losses(model).sum(dim=-1) / self.clients + weight / 2 * model.square().sum(dim=-1)
        return smooth + self.penalty.value(model)

    @cached_property
    def _weights(self) -> Tensor:
        """[R] l2 of every run."""
        kappa = self.settings.condition
        if kappa is None:
            return torch.full((self.runs,), self.l2, dtype=self.dtype, device=self.device)
        found = [float(smoothness(federation, 0.0).max()) / (kappa - 1.0) for federation in self.federations]
        if not all(0.0 < weight < math.inf for weight in found):
            raise ConfigError(
                f"model.condition={kappa:g}: the records of dataset={self.federations[0].dataset.info.name} have no curvature "
                "that l2 could follow from (all features are zero, or too large); write model.condition=null, and model.l2"
            )
        return torch.tensor(found, dtype=self.dtype)[torch.from_numpy(self.index)].to(self.device)

    @cached_property
    def _best(self) -> tuple[Tensor, Tensor, bool] | None:
        """x* [R, d], F(x*) [R], and whether no x* is zero, where they are known for all runs."""
        optima = [self._optimum(shard) for shard in self._shards]
        known = [optimum for optimum in optima if optimum is not None]
        if len(known) < len(optima):
            return None
        best = torch.stack(known)[torch.from_numpy(self.index)].to(self.device)
        return best, self._objective(best), bool((best != 0).any(dim=-1).all())

    def _optimum(self, shard: Shard) -> Tensor | None:
        """x* [d] of a federation's problem, where it is known."""
        used = shard.weights > 0
        rows, signs, weights = (part[used].cpu() for part in (shard.rows, shard.targets, shard.weights))
        weight = float(self._weights[int(shard.runs[0])])
        if not weight or not bool(torch.isfinite(signs).all()):
            return None
        return minimiser(LogisticProblem(rows, signs, weights, weight, self.penalty))

    @cached_property
    def _tests(self) -> list[_Weighted | None]:
        """The test split of every federation; those that share it share the bytes."""
        made: dict[int, _Weighted] = {}
        for test in (federation.dataset.test for federation in self.federations):
            if test is not None and id(test) not in made:
                made[id(test)] = self._weighted(test)
        return [made.get(id(federation.dataset.test)) for federation in self.federations]

    def _weighted(self, test: Records) -> _Weighted:
        missing = -len(test) % ROW_UNIT
        rows = torch.from_numpy(test.features.astype(np.float64))
        signs = torch.from_numpy(self.encoded(test.targets))
        weights = torch.full((len(test),), 1.0 / len(test), dtype=self.dtype)
        padded = pad(rows, (0, 0, 0, missing)), pad(signs, (0, missing)), pad(weights, (0, missing))
        return _Weighted(*(part.to(self.device) for part in padded))


@dataclass(frozen=True)
class _Weighted:
    """Records [K, d] with y and weights [K], K a multiple of `ROW_UNIT`."""

    rows: Tensor
    targets: Tensor
    weights: Tensor

    def mean(self, of: Callable[[Tensor, Tensor], Tensor], model: Tensor) -> Tensor:
        """[S] weighted sums over records of a function of outputs [K, S] and y [K, 1], at models [S, d]."""

        def block(columns: Tensor) -> Tensor:
            each = of(self.rows @ columns, self.targets.unsqueeze(-1)) * self.weights.unsqueeze(-1)
            # along memory and in two steps: the order of the sum depends neither on S nor on threads
            return each.T.contiguous().unflatten(-1, (-1, ROW_UNIT)).sum(dim=-1).sum(dim=-1)

        return by_blocks(block, model.T)


def _hits(outputs: Tensor, targets: Tensor) -> Tensor:
    """1 where the sign is right, 0 elsewhere; an output of 0 stands for class 0."""
    return ((outputs > 0) == (targets > 0)).to(outputs.dtype)
