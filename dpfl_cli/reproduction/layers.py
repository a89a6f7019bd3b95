"""The layers of a model and their sizes, read from the model's own shape."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from dpfl_cli.config.component import lookup, parse_settings
from dpfl_cli.config.errors import ConfigError
from dpfl_cli.data.federation import DatasetInfo
from dpfl_cli.models.cnn import CnnObjective, shape_of
from dpfl_cli.models.cnn_shape import KERNEL, CnnShape


@dataclass(frozen=True)
class LayerSize:
    """A layer in words, the shape of what it puts out, and its number of parameters, biases
    included.
    """

    name: str
    output: tuple[int, ...]
    parameters: int

    @property
    def outputs(self) -> int:
        return prod(self.output) if self.output else 0


def layer_sizes(
    model: Mapping[str, Any], shape: tuple[int, ...], classes: int | None
) -> list[LayerSize]:
    """The layers of a model (its config node) on inputs of a shape; the last row is the total.

    Raises:
      ConfigError: the model does not say what its layers are, or does not fit the inputs.
    """
    component = lookup("model", str(model["name"]))
    settings = parse_settings(
        component.settings, {key: value for key, value in model.items() if key != "name"}, "model"
    )
    if component.target is not CnnObjective:
        raise ConfigError(
            f"model={component.name}: its layers are not described; a table of layers needs a cnn"
        )
    info = DatasetInfo("inputs", "synthetic", "", shape, classes, 0, None)
    return _cnn(shape_of(settings, info))


def _cnn(shape: CnnShape) -> list[LayerSize]:
    convolved = [
        (shape.height - KERNEL + 1, shape.width - KERNEL + 1),
        (shape.first[0] - KERNEL + 1, shape.first[1] - KERNEL + 1),
    ]
    rows: list[LayerSize] = []
    for layer, size in zip(shape.layers[:2], convolved, strict=True):
        out, into, height, width = layer.weight_shape
        rows.append(
            LayerSize(
                f"conv {into}->{out} {height}x{width}", (out, *size), layer.bias.stop - layer.start
            )
        )
    rows.append(LayerSize("flatten", (shape.features,), 0))
    for layer in shape.layers[2:]:
        out, into = layer.weight_shape
        rows.append(LayerSize(f"fc {into}->{out}", (out,), layer.bias.stop - layer.start))
    return [*rows, LayerSize("total", (), shape.dimension)]
