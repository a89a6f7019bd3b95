"""Networks with trained weights that only look: batch norms folded in, channels last."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from dpfl_cli.config.errors import DataError


def frozen(network: nn.Module, name: str, weights: Mapping[str, Tensor]) -> nn.Module:
    """The network with these weights, in evaluation mode; each batch norm, which comes after a
    convolution, is folded into that in float64.

    Raises:
      DataError: a tensor is absent, has another shape, or is one too many.
    """
    try:
        network.load_state_dict(weights)
    except RuntimeError as error:
        reason = " ".join(str(error).split("\n\t")[1].split())[:160]
        raise DataError(f"the weights are not those of {name}: {reason}") from error
    network.double().eval().requires_grad_(False)
    for parent in list(network.modules()):
        before = ""
        for part, child in list(parent.named_children()):
            if isinstance(child, nn.BatchNorm2d):
                setattr(parent, before, fuse_conv_bn_eval(getattr(parent, before), child))
                setattr(parent, part, nn.Identity())
            before = part
    return network.float().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
