"""What is asked of a PyTorch module: its trainable parameters, their initial values, and what it
keeps for a backward pass.
"""

from collections.abc import Callable, Iterable, Iterator
from math import prod, sqrt

import numpy as np
import torch
from torch import Tensor, nn

_UNIFORM = (nn.Linear, nn.modules.conv._ConvNd)
_AFFINE = (nn.GroupNorm, nn.LayerNorm, nn.modules.batchnorm._NormBase)


def trainable(module: nn.Module) -> dict[str, nn.Parameter]:
    """Its parameters that need a gradient, by name."""
    named = module.named_parameters()
    return {name: parameter for name, parameter in named if parameter.requires_grad}


def kept_bytes(compute: Callable[[], Tensor], parameters: Iterable[Tensor]) -> int:
    """Bytes that a computation keeps for its backward pass, besides its parameters."""
    kept: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        kept[tensor.data_ptr()] = tensor
        return tensor

    hooks = torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor)
    with torch.enable_grad(), hooks:
        compute()
    own = {parameter.data_ptr() for parameter in parameters}
    return sum(tensor.nbytes for place, tensor in kept.items() if place not in own)


def default_values(module: nn.Module, generator: np.random.Generator) -> Iterator[np.ndarray]:
    """Initial values of the trainable parameters, in their order, by the laws that PyTorch's layers
    have by default.

    Linear layers, convolutions: U(-1/sqrt(fan_in), 1/sqrt(fan_in)), weights and biases.
    Normalisations: 1 and 0. Embeddings: N(0, 1), 0 for padding. Recurrent layers: U(-1/sqrt(h),
    1/sqrt(h)) with h hidden units. Slopes of PReLU: 1/4.
    """
    for path, parameter in trainable(module).items():
        place, _, name = path.rpartition(".")
        layer, shape = module.get_submodule(place), tuple(parameter.shape)
        if isinstance(layer, _UNIFORM):
            # of a transposed convolution [in, out, ...], and PyTorch's fan_in counts the second too
            bound = 1.0 / sqrt(prod(layer.weight.shape[1:]))
            yield generator.uniform(-bound, bound, shape)
        elif isinstance(layer, nn.RNNBase | nn.RNNCellBase):
            bound = 1.0 / sqrt(layer.hidden_size)
            yield generator.uniform(-bound, bound, shape)
        elif isinstance(layer, _AFFINE):
            yield np.full(shape, float(name == "weight"))
        elif isinstance(layer, nn.PReLU):
            yield np.full(shape, 0.25)
        elif isinstance(layer, nn.Embedding):
            values = generator.standard_normal(shape)
            if layer.padding_idx is not None:
                values[layer.padding_idx] = 0.0
            yield values
        else:
            raise TypeError(
                f"{type(layer).__name__}.{name}: no initial values are known; override "
                "initial_values"
            )
