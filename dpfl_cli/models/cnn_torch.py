"""The CNN with weights of its own for every client, in torch: any device, any float type, no loop over clients.

Convolution and 2x2 pooling are one matrix product. A pooling window sees a 5x5 patch of the input, and its four
convolution outputs are a product of that patch with a Toeplitz matrix that holds the 4x4 kernel in four places:

    T[p, o, (c, r, s)] = W[o, c, r - p_y, s - p_x],  p = (p_y, p_x) in {0,1}^2,  zero outside the kernel
    z = T @ patches,  pooled = max_p z,  dT = dz @ patches^T,  dpatches = T^T @ dz

A last row of ones under the patches, and the bias as T's last column, make the bias a weight like the others.

Samples are the innermost axis everywhere, so patches are copies of whole rows. The first layer's windows lie in four
planes, by the parity of row and column: windows that are neighbours in the second layer's input, of stride 2, are
neighbours in memory too. The backward pass is written by hand. It knows of the pooling who won, as signs of two
differences: z[p_x = 1] - z[p_x = 0] in each row, and the lower row's maximum less the upper one's. Only a positive
difference moves the gradient to the second of two positions, so ties go to the first, as in torch.

A pass allocates nothing: a workspace holds the memory of one size of block, and every view that the pass needs.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from math import prod
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.nn import functional

from dpfl_cli.models.cnn_shape import KERNEL, PATCH, CnnShape, Layer

OFFSETS = [(0, 0), (0, 1), (1, 0), (1, 1)]  # positions of a pooling window in scan order: torch gives ties to the first

ALIGNMENT = 16  # values: every array starts on a cache line, for a product may round otherwise where it does not

Task = TypeVar("Task")

_masked: Any = torch.ops.aten.threshold_backward.grad_input  # (g, x, 0): g where x > 0 or is not a number, else 0, in one pass


@dataclass(frozen=True)
class Batch:
    """Records of k clients, padded to n each.

    Attributes:
      patches: [k, 26, windows * n] the patch under every first pooling window that the second layer sees, and ones.
      weights: [k, 1, n] weight of each record in its client's loss: 1 / count, or 0 where padded.
      targets: [k, classes, n] minus weight at the record's class, 0 elsewhere.
    """

    patches: Tensor
    weights: Tensor
    targets: Tensor


@dataclass(frozen=True)
class Plane:
    """The first layer's windows (2 i + row, 2 j + column), i < rows, j < columns; they start at window `start`."""

    row: int
    column: int
    rows: int
    columns: int
    start: int

    @property
    def stop(self) -> int:
        return self.start + self.rows * self.columns

    def of(self, values: Tensor, n: int) -> Tensor:
        """This plane [..., rows, columns * n] of values [..., windows * n], n records a window."""
        return values[..., self.start * n : self.stop * n].unflatten(-1, (self.rows, self.columns * n))


def planes_of(shape: CnnShape) -> list[Plane]:
    """The four planes, without the windows at the lower and right edge that no second pooling window sees."""
    height, width = shape.second
    planes: list[Plane] = []
    for row, column in OFFSETS:
        start = planes[-1].stop if planes else 0
        planes.append(Plane(row, column, height + 2 - row, width + 2 - column, start))
    return planes


class StackedCnn:
    """A network with the index tables of its Toeplitz matrices, and threads to compute it."""

    def __init__(self, shape: CnnShape, dtype: torch.dtype, device: torch.device) -> None:
        self.shape, self.dtype, self.device = shape, dtype, device
        self.planes = planes_of(shape)
        self.windows = self.planes[-1].stop
        self.spread = [_toeplitz(layer, shape.dimension).to(device) for layer in shape.layers[:2]]
        self.collect = [_places(layer).to(device) for layer in shape.layers[:2]]
        self._benches: list[Workbench] = []

    def each(self, work: Callable[[Task, Workbench], None], tasks: Sequence[Task]) -> None:
        """work(task, bench) for every task: on a CPU on `torch.get_num_threads()` threads, with a bench for each.

        Every thread computes alone, for the bits of a product depend on how many threads it has.
        """
        threads = torch.get_num_threads()
        number = min(threads, len(tasks)) if self.device.type == "cpu" else 1
        self._benches += [Workbench(self) for _ in range(len(self._benches), number)]
        remaining, lock = iter(tasks), threading.Lock()

        def loop(bench: Workbench) -> None:
            while True:
                with lock:
                    task = next(remaining, None)
                if task is None:
                    break
                work(task, bench)

        torch.set_num_threads(1)  # the new threads take it over
        try:
            if number <= 1:
                for task in tasks:
                    work(task, self._benches[0])
                return
            with ThreadPoolExecutor(number) as pool:
                workers = [pool.submit(loop, bench) for bench in self._benches[:number]]
                try:
                    for worker in workers:
                        worker.result()
                finally:
                    with lock:
                        remaining = iter(())  # an interrupt ends the other threads after their task
        finally:
            torch.set_num_threads(threads)

    @property
    def record_values(self) -> int:
        """Numbers that a workspace holds for each record."""
        (a, b), second = self.shape.channels, prod(self.shape.second)
        patches = (PATCH * PATCH + 1) * self.windows + (PATCH * PATCH * a + 1) * second
        pooled = 10  # of every output: four products, two differences, two rows' maxima, one difference, the maximum
        connected = 2 * (self.shape.hidden or 0) + 2 * self.shape.classes
        return self.shape.height * self.shape.width + patches + pooled * (a * self.windows + b * second) + connected


class _Arena:
    """Memory for one workspace after another: fresh memory from the system costs more than a pass over it."""

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        self._buffer = torch.empty(0, dtype=dtype, device=device)
        self._used = 0

    def restart(self) -> None:
        """All memory is free again; there is room for what was asked for since the last time."""
        if self._used > len(self._buffer):
            self._buffer = self._buffer.new_empty(self._used + self._used // 8)
        self._used = 0

    def take(self, *sizes: int) -> Tensor:
        start, size = self._used, prod(sizes)
        self._used += -(-size // ALIGNMENT) * ALIGNMENT
        if self._used > len(self._buffer):
            return self._buffer.new_empty(sizes)
        return self._buffer[start : start + size].view(sizes)


class _Convolution:
    """A convolution with its pooling and activation, on patches [k, K, columns] that q runs share, b = k * q.

    Attributes:
      pooled: [b, out, columns] the layer's outputs.
      delta: [b, out, columns] gradient of the loss at `pooled`: written by the next layer, then overwritten.
    """

    def __init__(self, cnn: StackedCnn, arena: _Arena, number: int, k: int, q: int, columns: int) -> None:
        layer = cnn.shape.layers[number]
        out, rows = layer.weight_shape[0], layer.weight_shape[1] * PATCH * PATCH + 1
        b = k * q
        self._relu, self._spread, self._collect = cnn.shape.relu, cnn.spread[number], cnn.collect[number]
        self._kernel = slice(layer.weight.start, layer.bias.stop)
        self._flat_toeplitz = arena.take(b, 4 * out * rows)
        self.toeplitz = self._flat_toeplitz.view(b, 4 * out, rows)
        self.z = arena.take(b, 4 * out, columns)
        self._products = (k, q * 4 * out)  # the runs of a client stand side by side in products with its patches
        parts = self.z.view(b, 2, 2, out, columns)
        self._left, self._right = parts[:, :, 0], parts[:, :, 1]
        self._difference = arena.take(b, 2, out, columns)  # right - left, of both rows
        self._rows = arena.take(b, 2, out, columns)
        self._upper, self._lower = self._rows.unbind(1)
        self._below = arena.take(b, out, columns)  # lower - upper
        self.pooled = arena.take(b, out, columns)
        self.delta = self._upper  # where the backward pass begins to take it apart
        self._toeplitz_gradient = arena.take(k, rows, q * 4 * out)
        self._taken = arena.take(b, 4, layer.bias.stop - layer.weight.start)

    def forward(self, parameters: Tensor, patches: Tensor) -> None:
        """Pools the products of patches [k, K, columns] with the weights in parameters [b, d + 1], whose last entry is 0."""
        torch.index_select(parameters, 1, self._spread, out=self._flat_toeplitz)
        torch.bmm(self.toeplitz.view(*self._products, -1), patches, out=self.z.view(*self._products, -1))
        torch.sub(self._right, self._left, out=self._difference)
        torch.maximum(self._left, self._right, out=self._rows)
        torch.sub(self._lower, self._upper, out=self._below)
        torch.maximum(self._upper, self._lower, out=self.pooled)
        if self._relu:
            self.pooled.relu_()

    def backward(self, patches: Tensor, gradient: Tensor) -> None:
        """Writes the layer's part of gradient [b, d]; leaves the gradient of the products in `z`."""
        if self._relu:
            _masked(self.delta, self.pooled, 0, grad_input=self.delta)
        _masked(self.delta, self._below, 0, grad_input=self._lower)
        torch.sub(self.delta, self._lower, out=self._upper)
        _masked(self._rows, self._difference, 0, grad_input=self._right)
        torch.sub(self._rows, self._right, out=self._left)
        torch.bmm(patches, self.z.view(*self._products, -1).transpose(1, 2), out=self._toeplitz_gradient)
        b, four_out, rows = self.toeplitz.shape
        by_run = self._toeplitz_gradient.view(len(patches), rows, -1, four_out).transpose(1, 2).reshape(b, -1)
        torch.index_select(by_run, 1, self._collect, out=self._taken.view(b, -1))
        torch.sum(self._taken, 1, out=gradient[:, self._kernel])


class _Connected:
    """A fully connected layer on inputs [b, in, n].

    Attributes:
      outputs: [b, out, n].
      delta: [b, out, n] gradient of the loss at `outputs`: written by the next layer, then overwritten.
    """

    def __init__(
        self, arena: _Arena, layer: Layer, relu: bool, parameters: Tensor, gradient: Tensor, inputs: Tensor, into: Tensor
    ) -> None:
        b, n = len(inputs), inputs.shape[2]
        self._relu, self._inputs, self._into = relu, inputs, into
        self.outputs, self.delta = (arena.take(b, layer.weight_shape[0], n) for _ in range(2))
        self._weight = parameters[:, layer.weight].unflatten(1, layer.weight_shape)
        self._bias = parameters[:, layer.bias].unsqueeze(2)
        self._weight_gradient = gradient[:, layer.weight].unflatten(1, layer.weight_shape)
        self._bias_gradient = gradient[:, layer.bias]

    def forward(self) -> None:
        torch.baddbmm(self._bias, self._weight, self._inputs, out=self.outputs)
        if self._relu:
            self.outputs.relu_()

    def backward(self) -> None:
        """Writes the layer's part of the gradient, and the gradient at its inputs."""
        if self._relu:
            _masked(self.delta, self.outputs, 0, grad_input=self.delta)
        torch.bmm(self.delta, self._inputs.transpose(1, 2), out=self._weight_gradient)
        torch.sum(self.delta, 2, out=self._bias_gradient)
        torch.bmm(self._weight.transpose(1, 2), self.delta, out=self._into)


class Workspace:
    """Forward and backward pass for k clients with q runs and n records each, b = k * q; clients' records are padded to n.

    Attributes:
      parameters: [b, d] where a pass is taken, client by client; the caller writes them.
    """

    def __init__(self, cnn: StackedCnn, arena: _Arena, k: int, q: int, n: int, batches: int) -> None:
        shape, b = cnn.shape, k * q
        self.sizes = (k, q, n, batches)
        self._cnn, self._n = cnn, n
        self._padded = arena.take(b, shape.dimension + 1)
        self._padded[:, -1] = 0  # the zero of the Toeplitz matrices
        self.parameters = self._padded[:, :-1]
        self._slope, self._total = (arena.take(b, shape.dimension) for _ in range(2))

        self._images = arena.take(k, shape.height, shape.width, n)
        self._inputs = [arena.take(k, PATCH * PATCH + 1, cnn.windows * n) for _ in range(batches)]
        columns = prod(shape.second) * n
        self._patches = arena.take(b, PATCH * PATCH * shape.channels[0] + 1, columns)
        for patches in (*self._inputs, self._patches):
            patches[:, -1] = 1
        self._first = _Convolution(cnn, arena, 0, k, q, cnn.windows * n)
        self._second = _Convolution(cnn, arena, 1, b, 1, columns)
        self._copies = list(_copies(cnn, self._first.pooled, self._patches[:, :-1], n))
        self._shifts = list(_shifts(cnn, self._first.delta, self._patches[:, :-1], n))

        inputs, into = (part.unflatten(2, (-1, n)).flatten(1, 2) for part in (self._second.pooled, self._second.delta))
        self._connected: list[_Connected] = []
        for layer in shape.layers[2:]:
            last = layer.bias.stop == shape.dimension
            self._connected.append(_Connected(arena, layer, not last, self._padded, self._slope, inputs, into))
            inputs, into = self._connected[-1].outputs, self._connected[-1].delta

    def patches(self, images: Tensor, number: int = 0) -> Tensor:
        """[k, 26, windows * n] of batch `number`, from images [k, n, height, width]; as many as there is memory for, in turn."""
        self._images.copy_(images.permute(0, 2, 3, 1))
        out = self._inputs[number % len(self._inputs)]
        for plane in self._cnn.planes:
            corner = self._images[:, 2 * plane.row :, 2 * plane.column :]
            squares = corner.unfold(1, PATCH, 4).unfold(2, PATCH, 4)[:, : plane.rows, : plane.columns]  # [k, i, j, n, 5, 5]
            part = plane.of(out[:, :-1], self._n).unflatten(1, (PATCH, PATCH))
            part.copy_(squares.permute(0, 4, 5, 1, 2, 3).flatten(4))
        return out

    def batch(self, images: Tensor, labels: Tensor, weights: Tensor, number: int = 0) -> Batch:
        """Batch `number` from images [k, n, height, width], labels [k, n] and weights [k, n]; see `patches` for its memory."""
        hot = functional.one_hot(labels, self._cnn.shape.classes).transpose(1, 2)
        weights = weights.unsqueeze(1).to(self._cnn.dtype)
        return Batch(self.patches(images, number), weights, -weights * hot)

    def logits(self, patches: Tensor) -> Tensor:
        """[b, classes, n], valid until the next pass."""
        self._first.forward(self._padded, patches)
        for target, source in self._copies:
            target.copy_(source)
        self._second.forward(self._padded, self._patches)
        for layer in self._connected:
            layer.forward()
        return self._connected[-1].outputs

    def gradient(self, batches: Iterable[Batch]) -> Tensor:
        """[b, d] gradient of the sum over all records of weight * cross-entropy, valid until the next pass."""
        self._total.zero_()
        for batch in batches:
            self._backward(batch)
            self._total += self._slope
        return self._total

    def _backward(self, batch: Batch) -> None:
        logits, delta = self.logits(batch.patches), self._connected[-1].delta
        # d loss / d logits = (softmax - one-hot) * weight
        torch.softmax(logits, 1, out=delta)
        by_client = delta.unflatten(0, (len(batch.weights), -1))
        torch.addcmul(batch.targets.unsqueeze(1), by_client, batch.weights.unsqueeze(1), out=by_client)
        for layer in reversed(self._connected):
            layer.backward()
        self._second.backward(self._patches, self._slope)
        patches = self._patches[:, :-1]  # no longer needed: their gradients take their place
        torch.bmm(self._second.toeplitz[:, :, :-1].transpose(1, 2), self._second.z, out=patches)
        self._first.delta.zero_()
        for target, source in self._shifts:
            target.add_(source)
        self._first.backward(batch.patches, self._slope)


def _copies(cnn: StackedCnn, pooled: Tensor, patches: Tensor, n: int) -> Iterator[tuple[Tensor, Tensor]]:
    """(target, source) of the copies that make the second layer's patches [b, a*25, h*w*n] of its inputs [b, a, windows*n]."""
    h, w = cnn.shape.second
    squares = patches.unflatten(2, (h, w * n)).unflatten(1, (-1, PATCH, PATCH))
    for plane in cnn.planes:
        image = plane.of(pooled, n)
        yield squares[:, :, plane.row :: 2, plane.column :: 2], image.unfold(2, h, 1).unfold(3, w * n, n)


def _shifts(cnn: StackedCnn, delta: Tensor, patches: Tensor, n: int) -> Iterator[tuple[Tensor, Tensor]]:
    """(target, source) of the sums that are the transpose of `_copies`: gradients of patches to gradients of inputs."""
    h, w = cnn.shape.second
    squares = patches.unflatten(2, (h, w * n)).unflatten(1, (-1, PATCH, PATCH))
    for plane in cnn.planes:
        image = plane.of(delta, n)
        for r in range(plane.row, PATCH, 2):
            for s in range(plane.column, PATCH, 2):
                i, j = r // 2, s // 2
                yield image[:, :, i : i + h, j * n : (j + w) * n], squares[:, :, r, s]


def _toeplitz(layer: Layer, zero: int) -> Tensor:
    """[4 * out * (in * 25 + 1)] places in the parameters of T and its column of biases; `zero` is the place of a zero."""
    out, into = layer.weight_shape[:2]
    index = torch.full((4, out, into, PATCH, PATCH), zero)
    kernel = torch.arange(layer.weight.start, layer.weight.stop).reshape(layer.weight_shape)
    for place, (y, x) in enumerate(OFFSETS):
        index[place, :, :, y : y + KERNEL, x : x + KERNEL] = kernel
    bias = torch.arange(layer.bias.start, layer.bias.stop).expand(4, -1).unsqueeze(2)
    return torch.cat([index.flatten(2), bias], dim=2).flatten()


def _places(layer: Layer) -> Tensor:
    """[4 * (weights + biases)] places of the layer's parameters in T^T [in * 25 + 1, 4 * out], for each position of a window."""
    out, into = layer.weight_shape[:2]
    number = torch.arange((into * PATCH * PATCH + 1) * 4 * out).reshape(-1, 4, out).permute(1, 2, 0)  # [4, out, in * 25 + 1]
    squares, biases = number[:, :, :-1].unflatten(2, (into, PATCH, PATCH)), number[:, :, -1]
    parts = []
    for place, (y, x) in enumerate(OFFSETS):
        parts += [squares[place, :, :, y : y + KERNEL, x : x + KERNEL].flatten(), biases[place]]
    return torch.cat(parts)


class Workbench:
    """What one thread computes in: the workspace of one size of block at a time."""

    def __init__(self, cnn: StackedCnn) -> None:
        self._cnn = cnn
        self._arena = _Arena(cnn.dtype, cnn.device)
        self._workspace: Workspace | None = None

    def workspace(self, k: int, q: int, n: int, batches: int = 1) -> Workspace:
        """The workspace for these sizes, with memory for the patches of some batches; the one before it is gone."""
        if self._workspace is None or self._workspace.sizes != (k, q, n, batches):
            self._workspace = None
            self._arena.restart()
            self._workspace = Workspace(self._cnn, self._arena, k, q, n, batches)
        return self._workspace
