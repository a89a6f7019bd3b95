"""Fully connected models of any number of layers, every (run, client) pair with weights of its own.

With inputs a_0 = x, layers l = 1 ... L, sigma the activation and a loss of the outputs z_L,

    z_l = W_l a_{l-1} + b_l,    a_l = sigma(z_l),
    delta_L = dloss/dz_L,    delta_l = (W_{l+1}^T delta_{l+1}) * sigma'(z_l),

and a record's gradient in layer l is delta_l (x) [a_{l-1}, 1]. So its squared norm is sum_l
||delta_l||^2 (||a_{l-1}||^2 + 1), and a mean of clipped gradients is one product a layer with
re-weighted columns of delta_l: no gradient of a single record is ever made. A bias is the weight of
one more input that is always 1.

Reference: Goodfellow, "Efficient per-example gradient computations", 2015, arXiv:1510.01799 (norms
of per-record gradients of a layer).
"""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property, partial
from math import sqrt
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from dpfl_cli.data.devices import on_device
from dpfl_cli.data.federation import Dataset, DatasetInfo, Federation, Partition, Records
from dpfl_cli.data.streams import Streams
from dpfl_cli.data.threads import one_thread_each
from dpfl_cli.models.losses import CrossEntropy, Loss, right
from dpfl_cli.models.objective import ByName, Objective, misfit
from dpfl_cli.models.passes import Layer, Passes
from dpfl_cli.models.prox import Penalty, penalty_of
from dpfl_cli.models.records import (
    CPU_BLOCK,
    Block,
    Pool,
    bounded_shares,
)
from dpfl_cli.privacy.bounded import Bounded, per_run
from dpfl_cli.privacy.client_values import ClientValues, client_values, opened
from dpfl_cli.privacy.record_bounds import record_mean

DTYPES = {"float32": torch.float32, "float64": torch.float64}
# records of a pair in one product, always: the order of sums depends on it; a multiple of ALIGNMENT
PART = 1024


class Dense(Objective):
    """Base of fully connected models: a subclass gives layers, loss, and a record's inputs and
    target.

    f_i is the mean loss of client i's records, + l2 / 2 ||w||^2.

    Attributes:
      layers, loss: of the network; most have cross-entropy.
      ones: how many of a layer's inputs are always 1 and count as no input of initial values.
    """

    provides = frozenset({"clipped_gradient", "squared_gradient_norms"})
    loss: Loss = CrossEntropy()
    ones = 0

    def __init__(self, settings: Any, federations: list[Federation], *rest: Any) -> None:
        super().__init__(settings, federations, *rest)
        self.dtype = self.dtype_of(settings)
        self.layers = self.layers_for(settings, self.info)
        self.dimension = self.layers[-1].stop
        self._pool = Pool(federations, self.index, self._rows, self.encoded)

    @classmethod
    @abstractmethod
    def layers_for(cls, settings: Any, info: DatasetInfo) -> list[Layer]:
        """The layers; a ConfigError where model and dataset do not fit."""

    def inputs(self, records: Records, numbers: np.ndarray) -> Tensor:
        """[k, p] what the first layer sees of some records, on the device, a 1 for biases left
        out: their features, flat.
        """
        return torch.from_numpy(records.features[numbers]).flatten(1).to(self.device, self.dtype)

    @staticmethod
    def dtype_of(settings: Any) -> torch.dtype:
        """Of parameters and gradients."""
        return DTYPES[getattr(settings, "precision", "float64")]

    def encoded(self, targets: np.ndarray) -> np.ndarray:
        """[N] targets as the loss takes them: int64 classes."""
        return targets.astype(np.int64)

    @classmethod
    def dimension_of(cls, settings: Any, info: DatasetInfo) -> int:
        """d, the number of weights and biases."""
        return cls.layers_for(settings, info)[-1].stop

    @classmethod
    def workspace(cls, settings: Any, info: DatasetInfo, clients: int) -> int:
        """The rows of its records, as many as a federation may have. (The block of pairs that is
        worked on is one for all runs.)
        """
        width = cls.layers_for(settings, info)[0].width
        return cls.dtype_of(settings).itemsize * info.records * width

    @cached_property
    def l2(self) -> Tensor:
        """[R] the weight of the regulariser."""
        weight = getattr(self.settings, "l2", 0.0)
        return torch.full((self.runs,), weight, dtype=self.dtype, device=self.device)

    def initial(self, streams: Streams) -> Tensor:
        """[R, d] by the setting `init`: zeros, N(0, init_scale^2), or (default)
        U(-1/sqrt(fan_in), 1/sqrt(fan_in)) for weights and biases, as PyTorch's layers have it.
        """
        how = getattr(self.settings, "init", "uniform")
        rows = np.zeros((self.runs, self.dimension))
        for run in range(self.runs if how != "zeros" else 0):
            generator = streams.generator(run, "init")
            if how == "normal":
                scale = getattr(self.settings, "init_scale", 1.0)
                rows[run] = scale * generator.standard_normal(self.dimension)
                continue
            for layer in self.layers:
                bound, size = 1.0 / sqrt(layer.inputs - self.ones), layer.stop - layer.start
                rows[run, layer.start : layer.stop] = generator.uniform(-bound, bound, size)
        return torch.from_numpy(rows).to(self.device, self.dtype)

    def gradient(self, parameters: Tensor, batch: Tensor | None = None) -> ClientValues:
        """[R, M, d] (1 / n_i) sum_j grad l_ij(v_i) + l2 v_i, over all records or a batch; of all, 0
        for a client without records.
        """
        values = opened(parameters)
        means = self._means(values, None, batch)
        if batch is not None:  # whose gradients are without it
            means += self.regulariser_gradient(values)
        return client_values(means)

    def clipped_gradient(
        self, parameters: Tensor, clip_norm: Tensor, batch: Tensor | None = None
    ) -> Bounded:
        """As the contract. A record counts as zero where it, its inputs' norm to a layer beyond
        `LARGEST_NORM`, or its gradient's squared norm is not finite.
        """
        limit = on_device(clip_norm, self.device, self.dtype)
        means = self._means(opened(parameters), limit, batch)
        return record_mean(means, limit, self.divisors(batch))

    def squared_gradient_norms(
        self, parameters: Tensor, batch: Tensor | None = None
    ) -> ClientValues:
        """As the contract; infinite for a record whose gradient is not finite."""
        values = opened(parameters)
        width = self._pool.largest if batch is None else batch.shape[-1]
        result = values.new_zeros(self.runs, self.clients, width)
        for block in self._pool.blocks(batch, self._pair_bytes):
            passes = self._passes(block.of(values))
            parts = [_squared_norms(passes, part) for part in block.parts(PART)]
            squared = torch.cat(parts, dim=-1)
            squared.nan_to_num_(torch.inf, torch.inf)
            block.put(result, pad(squared, (0, width - squared.shape[-1])))
        return client_values(result)

    @cached_property
    def _free(self) -> bool:
        """Whether there is no regulariser, on a CPU (asking a GPU would wait for it)."""
        return self.device.type == "cpu" and not bool(self.l2.any())

    def regulariser_gradient(self, parameters: Tensor) -> Tensor:
        """l2 w."""
        if self._free:  # zeros that take no memory
            return torch.zeros_like(parameters[..., :1]).expand_as(parameters)
        return per_run(self.l2, parameters) * parameters

    @cached_property
    def penalty(self) -> Penalty:
        """g."""
        return penalty_of(self.settings)

    def prox(self, values: Tensor, step: Tensor) -> Tensor:
        """As the contract, for the penalty g that settings name."""
        return self.penalty.prox(values, per_run(step, values))

    def metrics(self, parameters: Tensor) -> ByName:
        """`train_loss`, (1/M) sum_i of the clients' mean loss (of their first records, where
        settings have `train_loss_records`), and on the test split, where there is one, `accuracy`
        in percent and `test_loss` (mean loss), each [R]; and `gradient_quantiles`, where settings
        ask for them.
        """
        (loss,) = self._scores(self._evaluated, parameters, self.loss.values)
        found = {"train_loss": loss, **self.asked_quantiles(parameters)}
        return found | self._test_scores(parameters)

    def _test_scores(self, models: Tensor) -> ByName:
        """`accuracy` and `test_loss` at models [R, d], where there is a test split."""
        if self._tests is None:
            return {}
        scores = self.loss.values, partial(right, self.loss)
        loss, accuracy = self._scores(self._tests, models, *scores)
        return {"accuracy": 100.0 * accuracy, "test_loss": loss}

    @cached_property
    def _evaluated(self) -> Pool:
        """The records that train losses are means over."""
        most = getattr(self.settings, "train_loss_records", None)
        if most is None or most >= self._pool.largest:
            return self._pool
        held = [replace(one, partition=one.partition.first(most)) for one in self.federations]
        return Pool(held, self.index, self._rows, self.encoded)

    @cached_property
    def _tests(self) -> Pool | None:
        """The test splits, each held by one client; federations that share a split share its
        rows.
        """
        tests = [self.federations[number].dataset.test for number in self.index]
        distinct = list(dict.fromkeys(tests))
        if None in distinct:
            return None
        held = [
            Federation(Dataset(self.info, test, None), Partition.from_lists([np.arange(len(test))]))
            for test in distinct
            if test is not None
        ]
        index = np.array([distinct.index(test) for test in tests])
        return Pool(held, index, self._rows, self.encoded)

    def _rows(self, records: Records, numbers: np.ndarray) -> Tensor:
        """[k, q] inputs of the given records, a one for the biases, and zeros up to a whole row."""
        first = self.layers[0]
        inputs = self.inputs(records, numbers)
        if first.bias:
            inputs = pad(inputs, (0, 1), value=1.0)
        return pad(inputs, (0, first.width - inputs.shape[-1]))

    # In torch; a subclass may compute the same otherwise.

    def _means(self, values: Tensor, limit: Tensor | None, batch: Tensor | None) -> Tensor:
        """[R, M, d] mean gradients, of all records with the regulariser, or with clip norms [R]
        mean clipped gradients, at [R, M, d].
        """
        result = torch.zeros_like(values, memory_format=torch.contiguous_format)
        limits = None if limit is None else limit.unsqueeze(1).expand(-1, self.clients)
        for block in self._pool.blocks(batch, self._pair_bytes):
            passes = self._passes(block.of(values))
            for part in block.parts(PART):
                norms = _squared_norms(passes, part).sqrt_()
                if limits is None:
                    # a record that is not finite makes the gradient what it is: not finite
                    shares = part.weights * (1.0 + 0.0 * part.squared_norms)
                else:
                    passes.drop_non_finite()
                    shares = bounded_shares(part.weights, norms, block.of(limits).unsqueeze(-1))
                passes.collect(shares)
            block.put(result, passes.gradient())
        if limit is None and batch is None:
            result += (self.records > 0).unsqueeze(-1) * self.regulariser_gradient(values)
        return result

    def _scores(self, pool: Pool, models: Tensor, *scores: Callable[..., Tensor]) -> list[Tensor]:
        """[R] each, means over a pool's clients of their records' mean scores (functions of outputs
        and targets, as of the loss) at models [R, d]; a client without records has 0.
        """
        result = models.new_zeros(len(models), 1, len(scores))
        threads = torch.get_num_threads() if self.device.type == "cpu" else 1
        # every thread has a part of its own of a block
        for block in pool.together(lambda records: threads * self._pair_bytes(records)):
            given = block.of(models.unsqueeze(1))
            jobs = ((given, part, scores) for part in block.parts(PART))
            sums = one_thread_each(self._part_scores, jobs, threads)
            block.put(result, sum(sums, result.new_zeros(())))
        return list((result[:, 0] / pool.counts.shape[1]).unbind(-1))

    def _part_scores(
        self, parameters: Tensor, part: Block, scores: Sequence[Callable[..., Tensor]]
    ) -> Tensor:
        """[S, B, scores] sums over some records of their shares of `_scores`."""
        z = self._passes(parameters).forward(part.features)
        shares = [(one(z, part.targets) * part.weights).sum(dim=-1) for one in scores]
        return torch.stack(shares, dim=-1)

    def _passes(self, parameters: Tensor) -> Passes:
        units = getattr(self.settings, "activation", "relu")  # one layer has none
        return Passes(self.layers, units, self.loss, parameters)

    def _pair_bytes(self, records: int) -> int:
        """Bytes that a gradient of one pair works on; less than that where threads would have no
        pairs to share.
        """
        part = min(records, PART)
        held = part * self.layers[0].width
        held += sum(
            part * (layer.outputs + layer.width) + 3 * layer.outputs * layer.width
            for layer in self.layers
        )
        return min(self.dtype.itemsize * held, CPU_BLOCK // torch.get_num_threads())


def _squared_norms(passes: Passes, part: Block) -> Tensor:
    """[S, B, n] squared norms of the records' gradients, after both passes; 0 for rows that are no
    records.
    """
    passes.forward(part.features)
    passes.backward(part.targets)
    return torch.where(part.weights > 0, passes.squared_norms(part.squared_norms), 0.0)


def classes_of(model: str, info: DatasetInfo) -> int:
    """c; a ConfigError where a dataset has no classes."""
    if info.classes is None:
        raise misfit(
            model,
            "records with classes (targets: whole numbers or texts)",
            info,
            "model=linear_regression, dataset=mnist",
        )
    return info.classes
