"""Linear regression: f_i(w) = loss_factor * mean_j (x_ij . w - y_ij)^2 in float64."""

from functools import cached_property
from typing import Literal

import numpy as np
import torch
from pydantic import PositiveFloat
from torch import Tensor

from dpfl_cli.config.component import Settings, component
from dpfl_cli.data.federation import DatasetInfo
from dpfl_cli.models.losses import Squared
from dpfl_cli.models.objective import ByName, misfit
from dpfl_cli.models.passes import Layer
from dpfl_cli.models.single_layer import SingleLayer


class LinearRegressionSettings(Settings):
    """Settings of `linear_regression`."""

    loss_factor: PositiveFloat = 0.5
    init: Literal["zeros", "normal"] = "zeros"
    objective: bool = False
    gradient_quantiles: bool = False


@component("model", "linear_regression", LinearRegressionSettings, revision=5)
class LinearRegression(SingleLayer):
    """Linear regression with squared loss, float64, started at zero (unless init says otherwise).

    Reference: Takakura, Liew, Hasegawa, "Accelerating Differentially Private Federated Learning via
    Adaptive Extrapolation", 2025, arXiv:2504.09850, section 5 (the factor 1/2 of the loss is what
    its step sizes imply).
    """

    public_metrics = frozenset({"distance", "relative_distance"})

    @classmethod
    def layers_for(cls, settings: LinearRegressionSettings, info: DatasetInfo) -> list[Layer]:
        """d is the length of a record's feature vector."""
        if info.classes is not None or len(info.feature_shape) != 1 or info.target_shape:
            needs = "feature vectors with real targets"
            raise misfit("linear_regression", needs, info, "dataset=synthetic")
        return [Layer(info.feature_shape[0], 1, bias=False)]

    @property
    def loss(self) -> Squared:  # type: ignore[override]
        return Squared(self.settings.loss_factor)

    def encoded(self, targets: np.ndarray) -> np.ndarray:
        """y itself."""
        return targets.astype(np.float64)

    def metrics(self, parameters: Tensor) -> ByName:
        """`distance` ||w - w*|| and `relative_distance` ||w - w*|| / ||w*|| (where the optimum w*
        is known), and `train_loss` (1/M) sum_i mean_j (x_ij . w - y_ij)^2, each [R]; where there is
        a test split `test_loss`, its mean of the same; where settings ask for them `objective`,
        (1/M) sum_i f_i, which is loss_factor times `train_loss`, and `gradient_quantiles`.
        """
        (objective,) = self._scores(self._pool, parameters, self.loss.values)
        found = {"train_loss": objective / self.settings.loss_factor}
        if self.settings.objective:
            found["objective"] = objective
        found |= self.asked_quantiles(parameters)
        if self._tests is not None:
            (loss,) = self._scores(self._tests, parameters, self.loss.values)
            found["test_loss"] = loss / self.settings.loss_factor
        if self._optimum is None:
            return found
        distance = torch.linalg.vector_norm(parameters - self._optimum, dim=-1)
        relative = distance / torch.linalg.vector_norm(self._optimum, dim=-1)
        return {"distance": distance, "relative_distance": relative, **found}

    @cached_property
    def _optimum(self) -> Tensor | None:
        """[R, d] the parameters that generated the data, where they are known."""
        known = [federation.dataset.truth.get("optimum") for federation in self.federations]
        if any(one is None for one in known):
            return None
        chosen = np.stack(known)[self.index]  # type: ignore[arg-type]
        return torch.as_tensor(chosen, dtype=self.dtype, device=self.device)
