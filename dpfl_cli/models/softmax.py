"""Softmax regression: one linear layer with cross-entropy, on plain features or behind a frozen
layer.

A bias is one more feature that is always 1, and a frozen layer is a feature map, applied once.
"""

from math import prod, sqrt
from typing import Literal
from weakref import WeakKeyDictionary

import numpy as np
import torch
from pydantic import NonNegativeFloat, PositiveFloat
from torch import Tensor
from torch.nn.functional import pad

from dpfl_cli.config.component import Count, Seed, Settings, component
from dpfl_cli.data.federation import DatasetInfo, Records
from dpfl_cli.data.streams import stream_generator
from dpfl_cli.data.threads import slices
from dpfl_cli.models.dense import DTYPES, classes_of
from dpfl_cli.models.passes import Layer
from dpfl_cli.models.records import product
from dpfl_cli.models.single_layer import SingleLayer

MAP_ROWS = 1 << 13  # records that pass the frozen layer at once

_mapped: WeakKeyDictionary[Records, dict[tuple[object, ...], Tensor]] = WeakKeyDictionary()


class SoftmaxSettings(Settings):
    """Settings of `softmax_regression`."""

    bias: bool
    l2: NonNegativeFloat
    init: Literal["zeros", "normal", "uniform"]
    init_scale: PositiveFloat
    frozen_width: Count | None
    frozen_seed: Seed
    feature_norm: Literal["none", "l2"]
    precision: Literal["float32", "float64"]
    solver: Literal["cg", "cholesky"]
    solver_precision: Literal["float32", "float64"]
    gradient_quantiles: bool = False
    train_loss_records: Count | None = None


@component("model", "softmax_regression", SoftmaxSettings, revision=5)
class SoftmaxRegression(SingleLayer):
    """Softmax regression: one linear layer and cross-entropy, on plain features or behind a frozen
    layer.

    Parameters are flat by class: part j of length p (or p + 1, the bias last) holds the weights of
    class j. p is the number of features, or the width of the frozen layer.
    """

    @classmethod
    def layers_for(cls, settings: SoftmaxSettings, info: DatasetInfo) -> list[Layer]:
        classes = classes_of("softmax_regression", info)
        inputs = settings.frozen_width or prod(info.feature_shape)
        return [Layer(inputs + settings.bias, classes, bias=False)]

    @property
    def ones(self) -> int:  # type: ignore[override]
        return int(self.settings.bias)

    def inputs(self, records: Records, numbers: np.ndarray) -> Tensor:
        """Flat, mapped, normed, with the bias."""
        if self.settings.frozen_width is None:
            inputs = super().inputs(records, numbers)
        else:
            alone = self.federations[0].counts_private
            mapped = frozen_features(records, self.settings, self.device, alone)
            inputs = mapped[torch.from_numpy(numbers).to(self.device)]
        if self.settings.feature_norm == "l2":
            norms = torch.linalg.vector_norm(inputs, dim=-1, keepdim=True)
            inputs = inputs / torch.where(norms > 0, norms, 1.0)
        return pad(inputs, (0, 1), value=1.0) if self.settings.bias else inputs


def frozen_features(
    records: Records, settings: SoftmaxSettings, device: torch.device, alone: bool
) -> Tensor:
    """[N, H] max(0, A x + b) of all records, with A and b ~ U(-1/sqrt(p), 1/sqrt(p)) drawn from
    `frozen_seed`.

    The layer is public and the same for all clients and runs: neither its seed nor its values come
    from data or from a run's seed. The result is kept as long as the records live.

    Args:
      alone: every record in a product of its own, which takes several times as long: in one of
        many, how many they are rounds each, and tells how many records somebody else holds.
    """
    width, seed, precision = settings.frozen_width or 0, settings.frozen_seed, settings.precision
    key, known = (width, seed, precision, device, alone), _mapped.setdefault(records, {})
    if key in known:
        return known[key]
    inputs, dtype = prod(records.features.shape[1:]), DTYPES[precision]
    uniform = stream_generator(seed, "frozen layer").uniform(-1.0, 1.0, (width, inputs + 1))
    layer = torch.from_numpy(uniform / sqrt(inputs)).to(device, dtype)
    mapped = torch.empty(len(records), width, dtype=dtype, device=device)
    for some in slices(len(records), MAP_ROWS):
        part = torch.from_numpy(records.features[some].reshape(-1, inputs)).to(device, dtype)
        if alone:
            sums = product(part.unsqueeze(1), layer[:, :-1].T.expand(len(part), -1, -1))
            mapped[some] = (sums.squeeze(1) + layer[:, -1]).relu_()
        else:
            mapped[some] = torch.addmm(layer[:, -1], part, layer[:, :-1].T).relu_()
    known[key] = mapped
    return mapped
