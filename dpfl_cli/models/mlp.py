"""Fully connected networks with cross-entropy.

Reference: Zhang, Fay, Johansson, "Dynamic Privacy Allocation for Locally Differentially Private
Federated Learning with Composite Objectives", 2023, arXiv:2308.01139, section A.4 (784-200-10,
sigmoid, on MNIST).
"""

from math import prod
from typing import Annotated, Literal

import numpy as np
from annotated_types import Len
from pydantic import NonNegativeFloat
from torch import Tensor
from torch.nn import functional

from dpfl_cli.config.component import Count, component
from dpfl_cli.config.errors import ConfigError
from dpfl_cli.data.federation import DatasetInfo, Records
from dpfl_cli.models.dense import Dense, classes_of
from dpfl_cli.models.passes import Activation, Layer, layers_of
from dpfl_cli.models.prox import PenaltySettings


class MlpSettings(PenaltySettings):
    """Settings of `mlp`."""

    hidden: Annotated[list[Count], Len(1)]
    activation: Activation
    average_pool: Count
    l2: NonNegativeFloat
    precision: Literal["float32", "float64"]
    gradient_quantiles: bool = False
    train_loss_records: Count | None = None


@component("model", "mlp", MlpSettings, revision=3)
class Mlp(Dense):
    """Fully connected network with sigmoid, ReLU or tanh units and cross-entropy.

    Parameters are flat, layer by layer: weights, then biases.
    """

    @classmethod
    def layers_for(cls, settings: MlpSettings, info: DatasetInfo) -> list[Layer]:
        """Inputs, hidden units of every layer, classes."""
        classes, side, shape = classes_of("mlp", info), settings.average_pool, info.feature_shape
        if side > 1 and (len(shape) != 2 or any(length % side for length in shape)):
            raise ConfigError(
                f"model.average_pool={side}: needs images whose sides it divides, but "
                f"dataset={info.name} has records of shape {list(shape)}; write "
                "model.average_pool=1"
            )
        return layers_of([prod(shape) // side**2, *settings.hidden, classes])

    def inputs(self, records: Records, numbers: np.ndarray) -> Tensor:
        """Pooled, and flat."""
        flat = super().inputs(records, numbers)
        if self.settings.average_pool == 1:
            return flat
        images = flat.unflatten(1, (1, *records.features.shape[1:]))
        return functional.avg_pool2d(images, self.settings.average_pool).flatten(1)
