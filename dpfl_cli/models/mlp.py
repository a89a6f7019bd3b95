"""Fully connected networks with cross-entropy, every (run, client) pair with weights of its own.

With inputs a_0 = x, layers l = 1 ... L and sigma the activation,

    z_l = W_l a_{l-1} + b_l,    a_l = sigma(z_l),    p = softmax(z_L),
    delta_L = p - e_t,    delta_l = (W_{l+1}^T delta_{l+1}) * sigma'(z_l)    for a record of class t,

and the record's gradient in layer l is delta_l (x) [a_{l-1}, 1]. So its squared norm is sum_l ||delta_l||^2 (||a_{l-1}||^2 + 1),
and a mean of clipped gradients is one product a layer with re-weighted columns of delta_l: no gradient of a single record is ever
made. A bias is the weight of one more input that is always 1.

References:
  Goodfellow, "Efficient per-example gradient computations", 2015, arXiv:1510.01799 (norms of per-record gradients of a layer).
  Zhang, Fay, Johansson, "Locally differentially private distributed optimisation with time-varying noise", 2023,
    arXiv:2308.01139, section 5 (784-200-10, sigmoid, on MNIST).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod, sqrt
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional

from dpfl_cli.config.component import component
from dpfl_cli.config.errors import ConfigError
from dpfl_cli.data.federation import DatasetInfo, Federation, Records
from dpfl_cli.data.streams import Streams
from dpfl_cli.models.classifier import DTYPES, EVALUATION_ROWS, Split, cross_entropy, evaluation_splits
from dpfl_cli.models.objective import Objective
from dpfl_cli.models.pairs import (
    ALIGNMENT,
    CPU_BLOCK,
    LARGEST_NORM,
    Block,
    Pool,
    bounded_shares,
    product,
    shared_product,
)
from dpfl_cli.models.prox import PenaltySettings, penalty_of
from dpfl_cli.privacy.bounded import Bounded, record_mean
from dpfl_cli.privacy.client_values import ClientValues, client_values, opened

CHUNK = 1024  # records of a pair in one product, always: the order of sums depends on it; a multiple of ALIGNMENT

Activation = Literal["sigmoid", "relu", "tanh"]


def sigmoid(z: Tensor, out: Tensor) -> None:
    """1 / (1 + exp(-z)). torch.sigmoid rounds an element otherwise where it lies at the end of a vector of the processor."""
    torch.neg(z, out=out).exp_().add_(1.0).reciprocal_()


# sigma(z), and delta * sigma'(z) from sigma(z) in place, in one pass
ACTIVATIONS: dict[Activation, Callable[[Tensor, Tensor], object]] = {
    "sigmoid": sigmoid,
    "relu": lambda z, out: torch.clamp(z, min=0.0, out=out),
    "tanh": lambda z, out: torch.tanh(z, out=out),
}
DERIVATIVES: dict[Activation, Callable[[Tensor, Tensor], object]] = {
    "sigmoid": lambda delta, a: torch.ops.aten.sigmoid_backward.grad_input(delta, a, grad_input=delta),
    "relu": lambda delta, a: torch.ops.aten.threshold_backward.grad_input(delta, a, 0.0, grad_input=delta),
    "tanh": lambda delta, a: torch.ops.aten.tanh_backward.grad_input(delta, a, grad_input=delta),
}


class MlpSettings(PenaltySettings):
    """Settings of `mlp`."""

    later: ClassVar[frozenset[str]] = frozenset({"gradient_quantiles"})

    hidden: Annotated[list[Annotated[int, Field(ge=1)]], Field(min_length=1)]
    activation: Activation
    average_pool: int = Field(ge=1)
    l2: float = Field(ge=0, allow_inf_nan=False)
    precision: Literal["float32", "float64"]
    gradient_quantiles: bool = False


@dataclass(frozen=True)
class Layer:
    """A layer's place in flat parameters [..., d]: weights [outputs, inputs], then biases [outputs].

    In products it is a matrix [outputs, width] with the columns [W, b, 0], filled up to a multiple of ALIGNMENT.
    """

    inputs: int
    outputs: int
    start: int

    @property
    def width(self) -> int:
        return -(-(self.inputs + 1) // ALIGNMENT) * ALIGNMENT

    @property
    def biases(self) -> int:
        """Where they begin."""
        return self.start + self.outputs * self.inputs

    @property
    def stop(self) -> int:
        return self.biases + self.outputs

    def matrix(self, flat: Tensor) -> Tensor:
        """[..., outputs, width] of flat parameters [..., d]."""
        matrix = flat.new_zeros(*flat.shape[:-1], self.outputs, self.width)
        matrix[..., : self.inputs] = flat[..., self.start : self.biases].unflatten(-1, (self.outputs, self.inputs))
        matrix[..., self.inputs] = flat[..., self.biases : self.stop]
        return matrix

    def flat(self, matrix: Tensor) -> Tensor:
        """[..., stop - start] the inverse of `matrix`: the layer's part of flat parameters."""
        return torch.cat((matrix[..., : self.inputs].flatten(-2), matrix[..., self.inputs]), dim=-1)


def layers_of(sizes: Sequence[int]) -> list[Layer]:
    """Layers from one size to the next, one after another in flat parameters.

    >>> layers_of([784, 200, 10])[-1].stop
    159010
    """
    layers: list[Layer] = []
    for inputs, outputs in pairwise(sizes):
        layers.append(Layer(inputs, outputs, layers[-1].stop if layers else 0))
    return layers


@dataclass(frozen=True)
class Chunk:
    """Some of a block's records, filled up with zero rows to a multiple of ALIGNMENT, on which a product's rounding would depend.

    Attributes:
      features, labels, squared_norms: as of a `Block`; the bias input makes a record's squared norm at least 1.
      weights: [B, n] the records' shares of their client's mean; 0 for rows that are no records.
    """

    features: Tensor
    labels: Tensor
    squared_norms: Tensor
    weights: Tensor


def chunks_of(block: Block) -> Iterator[Chunk]:
    """The block's records, CHUNK of every pair at a time."""
    weights = torch.where(block.squared_norms > 0, block.weights, 0.0)
    for start in range(0, weights.shape[-1], CHUNK):
        features = block.features[:, start : start + CHUNK]
        missing = -features.shape[1] % ALIGNMENT
        if missing:
            features = functional.pad(features, (0, 0, 0, missing))
        others = (block.labels, block.squared_norms, weights)
        yield Chunk(features, *(functional.pad(values[:, start : start + CHUNK], (0, missing)) for values in others))


class Passes:
    """Forward and backward passes of S runs x B clients, a chunk of their records at a time, in memory that is used again.

    `load` takes the pairs' parameters. Then, for each chunk, `forward`, `backward` and `collect`, which adds to `gradient`.
    Records are columns: activations are [S, B, width, n], with the bias's row of ones after the units and zeros below it.
    """

    def __init__(self, layers: Sequence[Layer], activation: Activation) -> None:
        self._layers = layers
        self._activate, self._derive = ACTIVATIONS[activation], DERIVATIVES[activation]
        self._memory: dict[tuple[str, int], Tensor] = {}

    def load(self, parameters: Tensor) -> None:
        """Takes parameters [S, B, d], or [1, 1, d] for any number of clients."""
        self._matrices = [layer.matrix(parameters) for layer in self._layers]
        self._gradients: list[Tensor] = []

    def forward(self, features: Tensor) -> Tensor:
        """[S, B, classes, n] z_L of features [B, n, q] (with a column of ones); valid until the next pass."""
        self._features = features
        self._activations: list[Tensor] = []  # a_1 ... a_{L-1}
        for number, (layer, matrix) in enumerate(zip(self._layers, self._matrices, strict=True)):
            weights = matrix.expand(-1, len(features), -1, -1)
            sums = self._take("sums", number, *weights.shape[:3], features.shape[1])
            if number == 0:
                shared_product(weights, features.mT, sums)
            else:
                product(weights.flatten(0, 1), self._activations[-1].flatten(0, 1), sums.flatten(0, 1))
            if layer is not self._layers[-1]:
                outputs = self._take("outputs", number, *weights.shape[:2], self._layers[number + 1].width, features.shape[1])
                self._activate(sums, outputs[:, :, : layer.outputs])
                outputs[:, :, layer.outputs] = 1.0
                outputs[:, :, layer.outputs + 1 :] = 0.0
                self._activations.append(outputs)
        self._logits = sums
        return sums

    def backward(self, labels: Tensor) -> None:
        """delta_L ... delta_1 for labels [B, n]; they overwrite z_L ... z_1."""
        # exp(z - log sum exp z), for torch.softmax over this axis rounds otherwise when other threads share the work
        delta = self._logits.sub_(torch.logsumexp(self._logits, dim=-2, keepdim=True)).exp_()
        places = labels.unsqueeze(-2).expand(*delta.shape[:2], 1, -1)
        delta.scatter_add_(-2, places, delta.new_full((), -1.0).expand(places.shape))
        self._deltas = [delta]
        for number in range(len(self._layers) - 1, 0, -1):
            units = self._layers[number].inputs
            weights = self._matrices[number][..., :units]
            below = self._take("sums", number - 1, *delta.shape[:2], units, delta.shape[-1])
            product(weights.flatten(0, 1).mT, delta.flatten(0, 1), below.flatten(0, 1))
            self._derive(below, self._activations[number - 1][:, :, :units])
            self._deltas.append(delta := below)
        self._deltas.reverse()

    def squared_norms(self, inputs: Tensor) -> Tensor:
        """[S, B, n] sum_l ||delta_l||^2 (||a_{l-1}||^2 + 1), from ||a_0||^2 + 1 [B, n].

        Not finite for a record whose inputs to some layer exceed `LARGEST_NORM`, as those of the first do in a `Block`.
        """
        total = self._column_norms(self._deltas[0]).mul_(inputs)
        for delta, outputs in zip(self._deltas[1:], self._activations, strict=True):
            above = self._column_norms(outputs)
            above.masked_fill_(above > LARGEST_NORM[above.dtype] ** 2, torch.inf)
            total.addcmul_(self._column_norms(delta), above)
        return total

    def drop_non_finite(self) -> None:
        """Zeros in place of what is not finite: 0 times it is not 0, where a record's share is."""
        for values in (*self._deltas, *self._activations):
            values.nan_to_num_(0.0, 0.0, 0.0)

    def collect(self, shares: Tensor) -> None:
        """Adds sum_j share_j delta_lj (x) [a_{l-1,j}, 1] to the gradient, for shares [B, n] or [S, B, n]."""
        first = not self._gradients
        for number, delta in enumerate(self._deltas):
            delta.mul_(shares.unsqueeze(-2))
            out = self._take("gradient" if first else "chunk", number, *delta.shape[:3], self._layers[number].width)
            if number == 0:
                shared_product(delta, self._features, out)
            else:
                product(delta.flatten(0, 1), self._activations[number - 1].mT.flatten(0, 1), out.flatten(0, 1))
            if first:
                self._gradients.append(out)
            else:
                self._gradients[number].add_(out)

    def gradient(self) -> Tensor:
        """[S, B, d] what was collected since `load`."""
        return torch.cat([layer.flat(matrix) for layer, matrix in zip(self._layers, self._gradients, strict=True)], dim=-1)

    def _column_norms(self, values: Tensor) -> Tensor:
        """[S, B, n] squared norms of the columns."""
        return torch.mul(values, values, out=self._take("squares", 0, *values.shape)).sum(dim=-2)

    def _take(self, name: str, layer: int, *sizes: int) -> Tensor:
        """Memory under a name, not cleared: fresh memory from the system costs more than a pass over it."""
        kept, size = self._memory.get((name, layer)), prod(sizes)
        if kept is None or len(kept) < size:
            like = self._matrices[0]
            kept = self._memory[name, layer] = torch.empty(size, dtype=like.dtype, device=like.device)
        return kept[:size].view(sizes)


@component("model", "mlp", revision=1, settings=MlpSettings)
class Mlp(Objective):
    """Fully connected network with sigmoid, ReLU or tanh units and cross-entropy.

    Parameters are flat, layer by layer: weights, then biases. f_i is the mean cross-entropy of client i's records, + l2 / 2
    ||w||^2.
    """

    provides: ClassVar[frozenset[str]] = frozenset({"clipped_gradient", "squared_gradient_norms"})
    unreleased_metrics: ClassVar[frozenset[str]] = frozenset({"train_loss"})

    def __init__(
        self, settings: MlpSettings, federations: list[Federation], index: np.ndarray, device: torch.device | str = "cpu"
    ) -> None:
        super().__init__(settings, federations, index, device)
        self._layers = layers_of(sizes_of(settings, federations[0].dataset.info))
        self.dtype, self.dimension = DTYPES[settings.precision], self._layers[-1].stop
        self._pool = Pool(federations, index, self._rows, self._layers[0].width, self.dtype, self.device)
        self._passes = Passes(self._layers, settings.activation)
        self._penalty = penalty_of(self.settings)
        self._tests = evaluation_splits(federations, self._rows)

    @classmethod
    def dimension_of(cls, settings: MlpSettings, info: DatasetInfo) -> int:
        """d, the number of weights and biases."""
        return layers_of(sizes_of(settings, info))[-1].stop

    @classmethod
    def workspace(cls, settings: MlpSettings, info: DatasetInfo, clients: int) -> int:
        """The rows of its records, as many as a federation may have."""
        return DTYPES[settings.precision].itemsize * info.records * layers_of(sizes_of(settings, info))[0].width

    def initial(self, streams: Streams) -> Tensor:
        """U(-1/sqrt(fan_in), 1/sqrt(fan_in)) for weights and biases, the default of PyTorch's layers."""
        rows = np.empty((self.runs, self.dimension))
        for run in range(self.runs):
            generator = streams.generator(run, "init")
            for layer in self._layers:
                bound = 1.0 / sqrt(layer.inputs)
                rows[run, layer.start : layer.stop] = generator.uniform(-bound, bound, layer.stop - layer.start)
        return torch.from_numpy(rows).to(self.device, self.dtype)

    def gradient(self, parameters: Tensor) -> ClientValues:
        values = opened(parameters)
        result = torch.zeros_like(values, memory_format=torch.contiguous_format)
        for block in self._blocks(None):
            self._passes.load(block.of(values))
            for chunk in chunks_of(block):
                self._backward(chunk)
                # a record that is not finite makes the gradient what it is: not finite
                self._passes.collect(chunk.weights * (1.0 + 0.0 * chunk.squared_norms))
            block.put(result, self._passes.gradient())
        if self.settings.l2:
            result.addcmul_(values, (self.records > 0).unsqueeze(-1).to(self.dtype), value=self.settings.l2)
        return client_values(result)

    def clipped_gradient(self, parameters: Tensor, clip_norm: Tensor, batch: Tensor | None = None) -> Bounded:
        """As the contract. A record that is not finite, or whose inputs to a layer exceed `LARGEST_NORM`, counts as zero."""
        values = opened(parameters)
        limit = clip_norm.to(self.device, self.dtype)
        result = torch.zeros_like(values, memory_format=torch.contiguous_format)
        for block in self._blocks(batch):
            self._passes.load(block.of(values))
            own = block.of_runs(limit, self.clients).unsqueeze(-1)
            for chunk in chunks_of(block):
                norms = self._squared_norms(chunk).sqrt_()
                self._passes.drop_non_finite()
                self._passes.collect(bounded_shares(chunk.weights, norms, own))
            block.put(result, self._passes.gradient())
        records = self.divisors(batch)
        return record_mean(client_values(result), clip_norm.to(self.device), records)

    def squared_gradient_norms(self, parameters: Tensor, batch: Tensor | None = None) -> ClientValues:
        values = opened(parameters)
        width = self._pool.largest if batch is None else batch.shape[-1]
        result = values.new_zeros(self.runs, self.clients, width)
        for block in self._blocks(batch):
            self._passes.load(block.of(values))
            squared = torch.cat([self._squared_norms(chunk) for chunk in chunks_of(block)], dim=-1)
            block.put(result, functional.pad(squared, (0, width - squared.shape[-1])))  # cut, where it was filled up
        return client_values(result)

    def regulariser_gradient(self, parameters: Tensor) -> Tensor:
        """l2 w."""
        return self.settings.l2 * parameters

    def prox(self, values: Tensor, step: Tensor) -> Tensor:
        """As the contract, for the penalty g on all weights and biases."""
        return self._penalty.prox(values, step.to(values.dtype).reshape(-1, *[1] * (values.dim() - 1)))

    def metrics(self, parameters: Tensor) -> dict[str, Tensor]:
        """`train_loss`, (1/M) sum_i of the clients' mean cross-entropy, and on the test split, where there is one, `accuracy` in
        percent and `test_loss` (mean cross-entropy), each [R]; and `gradient_quantiles`, where settings ask for them."""
        everywhere = parameters.unsqueeze(1).expand(-1, self.clients, -1)
        losses = parameters.new_zeros(self.runs, self.clients)
        for block in self._blocks(None):
            self._passes.load(block.of(everywhere))
            each = [
                cross_entropy(self._passes.forward(chunk.features), chunk.labels) * chunk.weights for chunk in chunks_of(block)
            ]
            block.put(losses, torch.cat(each, dim=-1).sum(dim=-1))
        found = {"train_loss": losses.sum(dim=-1) / self.clients, **self.asked_quantiles(parameters)}
        if any(test is None for test in self._tests):
            return found
        accuracy, loss = torch.empty_like(parameters[:, 0]), torch.empty_like(parameters[:, 0])
        for run, number in enumerate(self.index):
            accuracy[run], loss[run] = self._evaluate(parameters[run], self._tests[number])
        return {**found, "accuracy": accuracy, "test_loss": loss}

    # Records.

    def _rows(self, records: Records, numbers: np.ndarray) -> Tensor:
        """[k, q] inputs of the given records: pooled, flat, a one for the biases, and zeros up to a whole row."""
        features = torch.from_numpy(records.features[numbers]).to(self.device, self.dtype)
        if self.settings.average_pool > 1:
            features = functional.avg_pool2d(features.unsqueeze(1), self.settings.average_pool)
        inputs = functional.pad(features.flatten(1), (0, 1), value=1.0)
        return functional.pad(inputs, (0, self._layers[0].width - inputs.shape[-1]))

    # Blocks.

    def _blocks(self, batch: Tensor | None) -> Iterator[Block]:
        return self._pool.blocks(batch, self._pair_bytes)

    def _pair_bytes(self, records: int) -> int:
        """Bytes that a gradient of one pair works on; less than that where threads would have no pairs to share."""
        chunk = min(records, CHUNK)
        held = chunk * self._layers[0].width
        held += sum(chunk * (layer.outputs + layer.width) + 3 * layer.outputs * layer.width for layer in self._layers)
        return min(self.dtype.itemsize * held, CPU_BLOCK // torch.get_num_threads())

    def _backward(self, chunk: Chunk) -> None:
        self._passes.forward(chunk.features)
        self._passes.backward(chunk.labels)

    def _squared_norms(self, chunk: Chunk) -> Tensor:
        """[S, B, n] of the records' gradients, after both passes; 0 for rows that are no records."""
        self._backward(chunk)
        return torch.where(chunk.squared_norms > 0, self._passes.squared_norms(chunk.squared_norms), 0.0)

    def _evaluate(self, parameters: Tensor, test: Split) -> tuple[Tensor, Tensor]:
        """Accuracy in percent and mean cross-entropy of one run's parameters [d]."""
        features, labels, weights = test
        right, loss = torch.empty_like(weights), torch.empty_like(weights)
        self._passes.load(parameters[None, None])
        size = max(1, CPU_BLOCK // self._pair_bytes(EVALUATION_ROWS))
        for start in range(0, len(features), size):
            part = slice(start, start + size)
            logits = self._passes.forward(features[part])[0]
            right[part] = (logits.argmax(dim=1) == labels[part]) * weights[part]
            loss[part] = cross_entropy(logits, labels[part]) * weights[part]
        return 100.0 * right.sum(dim=-1).sum(), loss.sum(dim=-1).sum()


def sizes_of(settings: MlpSettings, info: DatasetInfo) -> list[int]:
    """Inputs, hidden units of every layer, classes; a ConfigError where model and dataset do not fit."""
    if info.classes is None:
        raise ConfigError(
            f"model=mlp: needs records with classes, but dataset={info.name} has real targets; "
            "choose dataset=mnist or another model"
        )
    side, shape = settings.average_pool, info.feature_shape
    if side > 1 and (len(shape) != 2 or any(length % side for length in shape)):
        raise ConfigError(
            f"model.average_pool={side}: needs images whose sides it divides, but dataset={info.name} has records of shape "
            f"{list(shape)}; write model.average_pool=1"
        )
    return [prod(shape) // side ** (2 * (side > 1)), *settings.hidden, info.classes]
