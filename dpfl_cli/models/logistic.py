"""Logistic regression on two classes, without a bias, in float64: f_i(x) = mean_j ln(1 + exp(-y_ij
a_ij . x)) + l2 / 2 ||x||^2.

The problem is min_x (1/M) sum_i f_i(x) + g(x), with g one of `prox`. With l2 > 0 it has one
minimiser x*, which is computed once (`optimum`), and metrics say how far a model is from it. l2 is
given, or follows from a condition number kappa = L / mu: with L_i = L0_i + l2, L0_i =
lambda_max(A_i^T A_i) / (4 n_i), and mu = l2, it is l2 = max_i L0_i / (kappa - 1), which looks at
all records without a release.

References:
  Zhang, Fay, Johansson, "Dynamic Privacy Allocation for Locally Differentially Private Federated
  Learning with Composite Objectives", 2023, arXiv:2308.01139, section 5 (l2 = 0.1; g none, or a
  weighted l1 norm on a box).
  Mishchenko, Malinovsky, Stich, Richtarik, "ProxSkip: Yes! Local Gradient Steps Provably Lead to
  Communication Acceleration! Finally!", 2022, arXiv:2202.09357, section 5 (l2 from a condition
  number).
"""

import math
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch
from pydantic import Field, ValidationInfo, field_validator
from torch import Tensor

from dpfl_cli.config.component import component
from dpfl_cli.config.errors import ConfigError
from dpfl_cli.data.federation import DatasetInfo, Federation
from dpfl_cli.models.losses import Logistic
from dpfl_cli.models.objective import ByName, Objective, misfit
from dpfl_cli.models.optimum import LogisticProblem, minimiser, smoothness
from dpfl_cli.models.passes import Layer
from dpfl_cli.models.prox import PenaltySettings
from dpfl_cli.models.single_layer import SingleLayer
from dpfl_cli.privacy.client_values import opened


class LogisticSettings(PenaltySettings):
    """Settings of `logistic_regression`."""

    l2: float | None = Field(ge=0)  # theta_2, lambda
    init: Literal["zeros", "normal"]
    gradient_quantiles: bool = False
    condition: float | None = Field(None, gt=1, validate_default=True)  # kappa

    @field_validator("condition")
    @classmethod
    def _one_regularisation(cls, value: float | None, known: ValidationInfo) -> float | None:
        weight = known.data.get("l2", 0.0)  # absent where it was refused itself
        if value is not None and weight is not None:
            raise ValueError(
                f"model.l2={weight:g} is given as well, which follows from a condition; write "
                "model.l2=null"
            )
        if value is None and weight is None:
            raise ValueError(
                "model.l2 is null as well, and one of the two is needed; write model.l2=0.1, or "
                "model.condition=100"
            )
        return value


@component("model", "logistic_regression", LogisticSettings, revision=3)
class LogisticRegression(SingleLayer):
    """Logistic regression on two classes, optionally with l2 regularisation and a non-smooth
    penalty.
    """

    loss = Logistic()

    @staticmethod
    def not_covered(settings: LogisticSettings) -> list[str]:
        """What the model looks at without a release."""
        return (
            []
            if settings.condition is None
            else ["the regularisation model.l2, set from the records by model.condition"]
        )

    @classmethod
    def layers_for(cls, settings: LogisticSettings, info: DatasetInfo) -> list[Layer]:
        """d is the length of a record's feature vector."""
        if info.classes != 2 or len(info.feature_shape) != 1:
            needs = "feature vectors with two classes"
            raise misfit("logistic", needs, info, "dataset=ijcnn1")
        return [Layer(info.feature_shape[0], 1, bias=False)]

    def encoded(self, targets: np.ndarray) -> np.ndarray:
        """-1 for class 0, 1 for class 1."""
        return 2.0 * targets - 1.0

    def metrics(self, parameters: Tensor) -> ByName:
        """Each [R]: `train_loss`, F = (1/M) sum_i f_i + g with g on its domain (a model outside is
        not infinitely bad); with l2 > 0, of the minimiser x* of F, `squared_error` ||x - x*||^2 /
        ||x*||^2 (unless x* = 0, which a large l1 weight makes) and `suboptimality` F(x) - F(x*);
        and where there is a test split, `accuracy` in percent and `test_loss`, the mean of
        ln(1 + exp(-y a . x)); and `gradient_quantiles`, where settings ask for them.
        """
        loss = self._objective(parameters)
        found = {"train_loss": loss, **self.asked_quantiles(parameters)}
        if self._best is not None:
            best, least, away_from_zero = self._best
            if away_from_zero:
                apart = torch.linalg.vector_norm(
                    parameters - best, dim=-1
                ) / torch.linalg.vector_norm(best, dim=-1)
                found |= {"squared_error": apart.square()}
            found |= {"suboptimality": loss - least}
        return found | self._test_scores(parameters)

    def problem(self, start: Tensor) -> dict[str, float]:
        """Facts of the first run's problem and of a start [d]; diagnostics, for they depend on the
        records. Empty without an x*.

        Returns:
          initial_distance: sum_i ||start - x*||^2 over the clients.
          optimum_gradients: sum_i ||grad f_i(x*)||^2, 0 where all clients have one minimiser.
          dual_norm: sum_i ||Lambda_i*||^2 of the primal-dual method, Lambda_i* = (mean_j grad
            f_j(x*) - grad f_i(x*)) / M, by the stationarity of its messages at x*.
          optimum_norm: ||x*||.
          smoothness, strong_convexity: the largest L_i, and mu, of the f_i.
        """
        if self._best is None:
            return {}
        best, l2 = self._best[0], float(self.l2[0])
        gradients = opened(self.gradient(best.unsqueeze(1).repeat(1, self.clients, 1)))[0]  # [M, d]
        duals = (gradients.mean(dim=0) - gradients) / self.clients
        return {
            "initial_distance": self.clients * float((start - best[0]).square().sum()),
            "optimum_gradients": float(gradients.square().sum()),
            "dual_norm": float(duals.square().sum()),
            "optimum_norm": float(torch.linalg.vector_norm(best[0])),
            "smoothness": l2 + float(smoothness(self.federations[int(self.index[0])]).max()),
            "strong_convexity": l2,
        }

    def _objective(self, model: Tensor) -> Tensor:
        """[R] F at models [R, d]."""
        (loss,) = self._scores(self._pool, model, self.loss.values)
        smooth = loss + self.l2 / 2 * model.square().sum(dim=-1)
        return smooth + self.penalty.value(model)

    def among(self, federations: list[Federation], index: np.ndarray) -> Objective:
        other: Any = super().among(federations, index)
        other.l2 = self.l2  # of all clients, also where it follows from their records
        return other

    @cached_property
    def l2(self) -> Tensor:
        """[R] l2 of every run."""
        kappa = self.settings.condition
        if kappa is None:
            return super().l2
        found = [
            float(smoothness(federation).max()) / (kappa - 1.0) for federation in self.federations
        ]
        if not all(0.0 < weight < math.inf for weight in found):
            raise ConfigError(
                f"model.condition={kappa:g}: the records of dataset={self.info.name} have no "
                "curvature that l2 could follow from (all features are zero, or too large); write "
                "model.condition=null, and model.l2"
            )
        return torch.tensor(found, dtype=self.dtype)[torch.from_numpy(self.index)].to(self.device)

    @cached_property
    def _best(self) -> tuple[Tensor, Tensor, bool] | None:
        """x* [R, d], F(x*) [R], and whether no x* is zero, where they are known for all runs."""
        optima = [self._optimum(number) for number in range(len(self.federations))]
        known = [optimum for optimum in optima if optimum is not None]
        if len(known) < len(optima):
            return None
        best = torch.stack(known)[torch.from_numpy(self.index)].to(self.device)
        return best, self._objective(best), bool((best != 0).any(dim=-1).all())

    def _optimum(self, federation: int) -> Tensor | None:
        """x* [d] of a federation's problem, where it is known."""
        pool, l2 = self._pool, float(self.l2[int(self._pool.runs(federation)[0])])
        rows = pool.rows(federation)
        if not l2 or not bool(torch.isfinite(pool.squared_norms[rows]).all()):
            return None
        features = pool.features[rows, : self.dimension]
        weights = pool.weights[rows] / self.clients
        parts = features.cpu(), pool.targets[rows].cpu(), weights.cpu()
        return minimiser(LogisticProblem(*parts, l2, self.penalty))
