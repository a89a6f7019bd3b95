"""The CNN with weights of its own for every client, in torch: any device, any float type, no loop over clients.

Convolution and 2x2 pooling are one matrix product. A pooling window sees a 5x5 patch of the input, and its four
convolution outputs are a product of that patch with a Toeplitz matrix that holds the 4x4 kernel in four places:

    T[p, o, (c, r, s)] = W[o, c, r - p_y, s - p_x],  p = (p_y, p_x) in {0,1}^2,  zero outside the kernel
    z = T @ patches,  pooled = max_p z,  dT = dz @ patches^T,  dpatches = T^T @ dz

Samples are the innermost axis everywhere, so patches are copies of whole rows. The backward pass is written by hand.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from dpfl_cli.models.cnn_shape import KERNEL, PATCH, CnnShape, Layer

OFFSETS = [(0, 0), (0, 1), (1, 0), (1, 1)]  # positions of a pooling window in scan order: torch gives ties to the first


@dataclass(frozen=True)
class Batch:
    """Records of k clients, padded to n each.

    Attributes:
      patches: [k, 25, h*w*n] the image under every first pooling window.
      labels: [k, n] classes.
      weights: [k, n] weight of each record in its client's loss: 1 / count, or 0 where padded.
    """

    patches: Tensor
    labels: Tensor
    weights: Tensor


class StackedCnn:
    """Forward and backward pass for parameters [k, q, d]: k clients (or chunks of records), q runs that share their records."""

    def __init__(self, shape: CnnShape, device: torch.device) -> None:
        self.shape = shape
        self.layers = shape.layers
        self._spread = [_toeplitz(layer).to(device) for layer in self.layers[:2]]
        self._collect = [_kernel_places(layer).to(device) for layer in self.layers[:2]]

    def patches(self, images: Tensor) -> Tensor:
        """[k, 25, h*w*n] the patch under every first pooling window of images [k, n, height, width]."""
        return _patches(images.permute(0, 2, 3, 1).unsqueeze(1), self.shape.first)

    def batch(self, images: Tensor, labels: Tensor, weights: Tensor) -> Batch:
        """A batch from images [k, n, height, width], labels [k, n] and weights [k, n]."""
        return Batch(self.patches(images), labels, weights.to(images.dtype))

    def logits(self, parameters: Tensor, patches: Tensor) -> Tensor:
        """[k, q, classes, n] from parameters [k, q, d] and patches [k, 25, h*w*n]."""
        value = self._pooled_convolution(0, parameters, patches.unsqueeze(1))[0]
        value = self._pooled_convolution(1, parameters, self._second_patches(value))[0]
        value = value.unflatten(3, (-1, self._samples(patches))).flatten(2, 3)
        for number in range(2, len(self.layers)):
            value = self._weight(number, parameters) @ value + self._bias(number, parameters)
            if number + 1 < len(self.layers):
                value = torch.relu(value)
        return value

    def gradient(self, parameters: Tensor, batch: Batch) -> Tensor:
        """[k, q, d] gradient of sum_j weight_j * cross-entropy_j at parameters [k, q, d]."""
        q, n = parameters.shape[1], self._samples(batch.patches)
        pooled1, winner1 = self._pooled_convolution(0, parameters, batch.patches.unsqueeze(1))
        patches2 = self._second_patches(pooled1)
        pooled2, winner2 = self._pooled_convolution(1, parameters, patches2)
        inputs = [pooled2.unflatten(3, (-1, n)).flatten(2, 3)]  # of each fully connected layer: [k, q, features, n]
        for number in range(2, len(self.layers)):
            value = self._weight(number, parameters) @ inputs[-1] + self._bias(number, parameters)
            inputs.append(torch.relu(value) if number + 1 < len(self.layers) else value)

        # d loss / d logits = (softmax - one-hot) * weight
        delta = torch.softmax(inputs.pop(), dim=2)
        delta -= functional.one_hot(batch.labels, self.shape.classes).transpose(1, 2).unsqueeze(1)
        delta *= batch.weights[:, None, None, :]

        pieces: list[Tensor] = []  # from the last parameter to the first
        for number in reversed(range(2, len(self.layers))):
            value = inputs[number - 2]
            pieces += [delta.sum(3), (delta @ value.transpose(2, 3)).flatten(2)]
            delta = self._weight(number, parameters).transpose(2, 3) @ delta
            if number > 2:
                delta = delta * (value > 0)
        delta = delta.unflatten(2, (self.shape.channels[1], -1)).flatten(3)

        for number, pooled, winner, patches in (
            (1, pooled2, winner2, patches2),
            (0, pooled1, winner1, batch.patches.unsqueeze(1)),
        ):
            if self.shape.relu:
                delta = delta * (pooled > 0)
            bias = delta.sum(3)
            spread = _to_winners(delta, *winner).flatten(2, 3)
            if patches.shape[1] == q:
                products = spread @ patches.transpose(2, 3)
            else:  # all runs of a client see the same images
                products = (spread.flatten(1, 2) @ patches[:, 0].transpose(1, 2)).unflatten(1, (q, -1))
            pieces += [bias, products.flatten(2)[:, :, self._collect[number]].sum(-1)]
            if number == 1:
                delta = self._scatter_patches(self._toeplitz(1, parameters).transpose(2, 3) @ spread, n)
        return torch.cat(pieces[::-1], dim=2)

    def _samples(self, patches: Tensor) -> int:
        h, w = self.shape.first
        return patches.shape[-1] // (h * w)

    def _weight(self, number: int, parameters: Tensor) -> Tensor:
        layer = self.layers[number]
        return parameters[:, :, layer.weight].unflatten(2, layer.weight_shape)

    def _bias(self, number: int, parameters: Tensor) -> Tensor:
        return parameters[:, :, self.layers[number].bias].unsqueeze(3)

    def _toeplitz(self, number: int, parameters: Tensor) -> Tensor:
        kernel = functional.pad(parameters[:, :, self.layers[number].weight], (0, 1))  # the last entry is the zero
        return kernel[:, :, self._spread[number]]

    def _pooled_convolution(self, number: int, parameters: Tensor, patches: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Pooled activations [k, q, o, h*w*n] and the row and column (0 or 1) that won, from patches [k, q or 1, c*25, h*w*n]."""
        toeplitz = self._toeplitz(number, parameters)
        if patches.shape[1] == toeplitz.shape[1]:
            z = toeplitz @ patches
        else:
            z = (toeplitz.flatten(1, 2) @ patches[:, 0]).unflatten(1, toeplitz.shape[1:3])
        out = self.layers[number].weight_shape[0]
        z = z.unflatten(2, (4, out))
        upper, lower = torch.maximum(z[:, :, 0], z[:, :, 1]), torch.maximum(z[:, :, 2], z[:, :, 3])
        below = lower > upper
        right, right_below = z[:, :, 1] > z[:, :, 0], z[:, :, 3] > z[:, :, 2]
        right ^= below & (right ^ right_below)  # where(below, right_below, right), on bytes
        pooled = torch.maximum(upper, lower, out=upper).add_(self._bias(number, parameters))
        return (pooled.relu_() if self.shape.relu else pooled), (below.to(z.dtype), right.to(z.dtype))

    def _second_patches(self, pooled: Tensor) -> Tensor:
        k, q = pooled.shape[:2]
        images = pooled.unflatten(3, (*self.shape.first, -1)).flatten(0, 1)
        return _patches(images, self.shape.second).unflatten(0, (k, q))

    def _scatter_patches(self, patches: Tensor, n: int) -> Tensor:
        """The transpose of `_second_patches`: sums patch gradients [k, q, c*25, h*w*n] into [k, q, c, pixels * n]."""
        k, q = patches.shape[:2]
        h, w = self.shape.second
        parts = patches.reshape(k, q, -1, PATCH, PATCH, h, w, n)
        images = torch.zeros(k, q, parts.shape[2], *self.shape.first, n, dtype=patches.dtype, device=patches.device)
        for r in range(PATCH):
            for s in range(PATCH):
                images[:, :, :, r : r + 2 * h : 2, s : s + 2 * w : 2] += parts[:, :, :, r, s]
        return images.flatten(3)


def _patches(images: Tensor, windows: tuple[int, int]) -> Tensor:
    """[B, c*25, h*w*n]: the 5x5 patches with stride 2 of images [B, c, height, width, n]."""
    h, w = windows
    batch, channels, _, _, n = images.shape
    view = images.unfold(2, PATCH, 2).unfold(3, PATCH, 2)  # [B, c, h, w, n, 5, 5]
    return view.permute(0, 1, 5, 6, 2, 3, 4).reshape(batch, channels * PATCH * PATCH, h * w * n)


def _to_winners(delta: Tensor, below: Tensor, right: Tensor) -> Tensor:
    """[k, q, 4, o, w] delta [k, q, o, w] at the position that won, 0 at the other three; the winner as two 0/1 coordinates."""
    k, q, *rest = delta.shape
    out = torch.empty(k, q, 4, *rest, dtype=delta.dtype, device=delta.device)
    lower = delta * below
    upper = delta - lower
    for row, part in enumerate((upper, lower)):
        torch.mul(part, right, out=out[:, :, 2 * row + 1])
        torch.sub(part, out[:, :, 2 * row + 1], out=out[:, :, 2 * row])
    return out


def _toeplitz(layer: Layer) -> Tensor:
    """[4 * out, in * 25] index into the flat kernel with a zero appended, see the module's formula for T."""
    out, into = layer.weight_shape[:2]
    index = torch.full((4, out, into, PATCH, PATCH), out * into * KERNEL * KERNEL)
    kernel = torch.arange(out * into * KERNEL * KERNEL).reshape(layer.weight_shape)
    for place, (y, x) in enumerate(OFFSETS):
        index[place, :, :, y : y + KERNEL, x : x + KERNEL] = kernel
    return index.reshape(4 * out, into * PATCH * PATCH)


def _kernel_places(layer: Layer) -> Tensor:
    """[out * in * 16, 4] the four places of each kernel weight in the flat T."""
    out, into = layer.weight_shape[:2]
    number = torch.arange(4 * out * into * PATCH * PATCH).reshape(4, out, into, PATCH, PATCH)
    places = [number[p, :, :, y : y + KERNEL, x : x + KERNEL].flatten() for p, (y, x) in enumerate(OFFSETS)]
    return torch.stack(places, dim=1)
