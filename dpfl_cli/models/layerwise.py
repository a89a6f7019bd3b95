"""Gradients of single records, clipped and added up layer by layer, without holding them.

A layer's gradient of a record is sum_t g_t a_t^T over T positions, of what goes into the layer and
of the derivative by what comes out. Its norm follows from the T x T products of either, and the
weighted sum over records is one product of two matrices, so a record's gradient, which has as many
numbers as the network, need not be written down: one forward and one backward pass serve all
records. Where a layer is small beside its positions its gradients are (`RecordRows`).

References:
  Goodfellow, "Efficient per-example gradient computations", 2015, arXiv:1510.01799.
  Bu, Mao, Xu, "Scalable and efficient training of large convolutional neural networks with
    differential privacy", NeurIPS 2022, arXiv:2205.10683, section 3 (which of the two a layer has).
  Bu, Wang, Zha, Karypis, "Differentially private optimization on large model at small cost", ICML
    2023, arXiv:2210.00038 (one backward pass).
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from dpfl_cli.privacy.bounded import vector_norms, with_lost


@dataclass(frozen=True)
class RecordRows:
    """Gradients of n records by some parameters, as they are: `values` [n, k]."""

    values: Tensor

    def norms(self) -> Tensor:
        """[n] in float64, infinite or NaN where a gradient is not finite."""
        return _lengths(self.values)

    def combined(self, shares: Tensor) -> Tensor:
        """[k] sum_j shares[j] gradient_j; a share of 0 takes out what is not finite too."""
        return shares.to(self.values.dtype) @ _kept(self.values.contiguous(), shares)


@dataclass(frozen=True)
class RecordProducts:
    """Gradients of n records by a weight [p, q], sum_t outputs[:, t] inputs[:, t]^T, as factors.

    Attributes:
      inputs: [n, T, q] what went into the layer.
      outputs: [n, T, p] the derivatives of the records' losses by what came out.
    """

    inputs: Tensor
    outputs: Tensor

    def norms(self) -> Tensor:
        """[n] in float64, infinite or NaN where a gradient is not finite.

        No clipped gradient is longer than its bound: where positions cancel, `combined` rounds at
        the size of what cancels, sum_t |g_t| |a_t|, and T units of that are added; where a factor
        or the norm is so long that its square is not finite in the values' own type, a share would
        have too few digits, and the norm is infinite.
        """
        kind, positions = torch.finfo(self.inputs.dtype), self.inputs.shape[1]
        if positions == 1:
            ours, theirs = _lengths(self.inputs[:, 0]), _lengths(self.outputs[:, 0])
            found, longest = ours * theirs, torch.maximum(ours, theirs).square()
        else:
            ours, theirs = self.inputs.double(), self.outputs.double()
            ours, theirs = ours @ ours.mT, theirs @ theirs.mT
            both = ours.diagonal(0, 1, 2), theirs.diagonal(0, 1, 2)
            rounding = positions * kind.eps * (both[0] * both[1]).sqrt().sum(1)
            found = (ours * theirs).sum((1, 2)).clamp(min=0.0).sqrt() + rounding
            longest = torch.maximum(*both).amax(dim=1)
        return found.masked_fill((longest > kind.max) | (found.square() > kind.max), torch.inf)

    def combined(self, shares: Tensor) -> Tensor:
        """[p * q] sum_j shares[j] gradient_j; a share of 0 takes out what is not finite too."""
        weights = shares.to(self.outputs.dtype)[:, None, None]
        outputs = (weights * _kept(self.outputs, shares)).flatten(0, 1)
        return (outputs.T @ _kept(self.inputs, shares).flatten(0, 1)).flatten()


def _lengths(values: Tensor) -> Tensor:
    """[n] in float64 norms of vectors [n, k], which none exceeds."""
    return with_lost(vector_norms(values), values.shape[-1], values.dtype)


def _kept(values: Tensor, shares: Tensor) -> Tensor:
    """Values [n, ...], zeros for records with a share of 0: 0 times what is not finite is not 0."""
    lost = (shares == 0).view(-1, *[1] * (values.ndim - 1))
    some = values.device.type != "cpu" or bool(lost.any())  # nothing waits for a device
    return values.masked_fill(lost, 0.0) if some else values


RecordGradients = RecordRows | RecordProducts


def layer_gradients(module: nn.Module, losses: Callable[[], Tensor]) -> list[RecordGradients]:
    """The gradients of n records, in the order of the module's parameters.

    Args:
      module: its parameters are all of convolutions (in one group or one for every channel, without
        dilation, padded with zeros by numbers), linear layers of [n, q], and group normalisations,
        each called once.
      losses: calls the module on the n records, none of which changes another's outputs, and gives
        their losses [n].
    """
    passed: dict[nn.Module, tuple[Tensor, Tensor]] = {}

    def keep(layer: nn.Module, given: tuple[Tensor, ...], made: Tensor) -> None:
        passed[layer] = given[0].detach(), made

    layers = [one for one in module.modules() if [*one.parameters(recurse=False)]]
    hooks = [layer.register_forward_hook(keep) for layer in layers]
    try:
        with torch.enable_grad():
            total = losses().sum()
            derivatives = torch.autograd.grad(total, [passed[layer][1] for layer in layers])
    finally:
        for hook in hooks:
            hook.remove()
    pairs = zip(layers, derivatives, strict=True)
    return [one for layer, out in pairs for one in _by_layer(layer, passed[layer][0], out)]


def _by_layer(layer: nn.Module, given: Tensor, out: Tensor) -> list[RecordGradients]:
    """The gradients by a layer's own parameters, from its inputs and derivatives by its outputs."""
    match layer:
        case nn.GroupNorm():
            normal = functional.group_norm(given, layer.num_groups, eps=layer.eps)
            return [RecordRows(_over_places(normal * out)), RecordRows(_over_places(out))]
        case nn.Linear():
            weight: RecordGradients = RecordProducts(given[:, None], out[:, None])
        case nn.Conv2d() if layer.groups == 1:
            if layer.kernel_size == layer.stride == (1, 1) and layer.padding == (0, 0):
                places = given.flatten(2)
            else:
                size, stride = layer.kernel_size, layer.stride
                places = functional.unfold(given, size, padding=_padding(layer), stride=stride)
            weight = _smaller(places.mT, out.flatten(2).mT)
        case nn.Conv2d() if layer.groups == layer.in_channels == layer.out_channels:
            weight = RecordRows(_of_channels(layer, given, out))
        case _:
            raise TypeError(f"{type(layer).__name__}: its gradients by records are not known")
    return [weight] if layer.bias is None else [weight, RecordRows(_over_places(out))]


def _over_places(values: Tensor) -> Tensor:
    """[n, c] sums over the positions of [n, c, ...]."""
    return values.flatten(2).sum(2) if values.ndim > 2 else values


def _smaller(inputs: Tensor, outputs: Tensor) -> RecordGradients:
    """Factors where products of positions are fewer numbers than the gradients, else the latter."""
    if 2 * inputs.shape[1] ** 2 < inputs.shape[2] * outputs.shape[2]:
        return RecordProducts(inputs, outputs)
    return RecordRows((outputs.mT @ inputs).flatten(1))


def _padding(layer: nn.Conv2d) -> tuple[int, ...]:
    """Of both sides, by axis."""
    if isinstance(layer.padding, str):
        raise TypeError(f"padding={layer.padding!r}: its gradients by records are not known")
    return layer.padding


def _of_channels(layer: nn.Conv2d, given: Tensor, out: Tensor) -> Tensor:
    """[n, channels * size] the gradients by a kernel for every channel: one product for each place
    of it, over the positions where it meets no padding.
    """
    found = out.new_zeros(*out.shape[:2], *layer.kernel_size)
    lengths = [*zip(given.shape[2:], out.shape[2:], layer.stride, strict=True)]
    for place in np.ndindex(*layer.kernel_size):
        ours, theirs = [], []
        for (size, count, stride), at, pad in zip(lengths, place, _padding(layer), strict=True):
            start = at - pad  # position r is at start + stride * r
            first, stop = max(0, -(start // stride)), min(count, (size - 1 - start) // stride + 1)
            ours.append(slice(start + first * stride, max(0, start + stop * stride), stride))
            theirs.append(slice(first, stop))
        found[:, :, *place] = (given[:, :, *ours] * out[:, :, *theirs]).sum((2, 3))
    return found.flatten(1)
