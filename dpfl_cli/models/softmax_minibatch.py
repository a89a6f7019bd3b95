"""Minibatches of a softmax regression on a CPU that are so small that calls are what they cost.

The same operations on the same numbers as in `SoftmaxRegression.clipped_gradient`, in memory that is kept. What IEEE arithmetic
rounds in one way only (-, *, /, comparisons) numpy does, whose calls take half of torch's time or less; products, sums, exp and
sqrt stay torch's own. So the bits are the same on either way.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from dpfl_cli.models.pairs import Pool, product

SMALL = 1 << 15  # so many probabilities in a batch, and torch's threads share an elementwise operation


class Minibatch:
    """Means of clipped gradients over b records of each of R x M pairs.

    Args:
      pool: the records, on a CPU.
      runs, clients: R and M.
      records: b.
      classes, width: c and p; d = c p.
    """

    def __init__(self, pool: Pool, runs: int, clients: int, records: int, classes: int, width: int) -> None:
        self._table, self._shape = pool.rows(), (runs, clients, classes * width)
        self._first, self._counts = (part.numpy() for part in pool.places())
        like, numbers, row, pairs = *self._table[:2], self._table[0].shape[1], runs * clients
        self._rows = numbers.new_empty(pairs * records)
        # of the batch: features, labels and squared norms
        self._own = like.new_empty(pairs * records, row), numbers.new_empty(pairs * records), like.new_empty(pairs * records)
        self._features = self._own[0].view(pairs, records, row)
        self._transposed = self._features.mT
        self._places = self._own[1].view(pairs, 1, records)
        self._matrices = like.new_zeros(pairs, classes, row)  # W, and zeros beside what fills up a row
        self._residuals, self._squares = like.new_empty(2, pairs, classes, records)
        self._sums = like.new_empty(pairs, 1, records)
        self._products = like.new_empty(pairs, classes, row)
        self._share = np.asarray(1.0 / records, self._sums.numpy().dtype)
        # the same memory, for numpy
        self._rows_array = self._rows.numpy().reshape(runs, clients, records)
        self._inner, self._means = (whole.numpy()[..., :width] for whole in (self._matrices, self._products))
        self._norms_array = self._own[2].numpy().reshape(pairs, 1, records)
        self._arrays = self._residuals.numpy(), self._squares.numpy(), self._sums.numpy()

    def clipped_mean(self, values: Tensor, limit: Tensor, batch: Tensor) -> Tensor:
        """[R, M, d] (1 / b) sum_j CLIP((p_j - e_t) (x) x_j, C) at values [R, M, d] with C [R] for a batch [R, M, b]."""
        self._gather(batch.numpy())
        np.copyto(self._inner, values.numpy().reshape(self._inner.shape))
        product(self._matrices, self._transposed, self._residuals)
        limits = limit.numpy() if len(limit) == 1 else np.repeat(limit.numpy(), self._shape[1])[:, None, None]
        with np.errstate(all="ignore"):  # of records that count as zero
            self._reweight(limits)
        product(self._residuals, self._features, self._products)
        result = np.empty(self._shape, self._means.dtype)
        np.copyto(result.reshape(self._means.shape), self._means)
        return torch.from_numpy(result)

    def _gather(self, batch: np.ndarray) -> None:
        """The batch's records; a number that is none of the client's counts as no record, as in `Pool.blocks`."""
        own = batch >= 0
        own &= batch < self._counts
        np.add(self._first, batch, out=self._rows_array)
        self._rows_array *= own
        for whole, part in zip(self._table, self._own, strict=True):
            torch.index_select(whole, 0, self._rows, out=part)

    def _reweight(self, limits: np.ndarray) -> None:
        """From logits [k, c, b] to (1 / b) (p - e_t) min(1, C / ||g||), C [k, 1, 1]; zeros where a norm is not finite."""
        residuals, squares, sums = self._arrays
        np.maximum.reduce(residuals, axis=1, out=sums, keepdims=True)
        np.subtract(residuals, sums, residuals)
        self._residuals.exp_()
        torch.sum(self._residuals, 1, True, out=self._sums)
        np.divide(residuals, sums, residuals)
        self._residuals.scatter_(1, self._places, -1.0, reduce="add")
        np.multiply(residuals, residuals, squares)
        torch.sum(self._squares, 1, True, out=self._sums)
        np.multiply(sums, self._norms_array, sums)
        self._sums.sqrt_()  # ||g||
        unusable = ~(sums < np.inf)  # NaN among them
        np.divide(limits, sums, sums)
        np.minimum(sums, 1.0, out=sums)
        np.multiply(sums, self._share, sums)
        np.copyto(sums, 0.0, where=unusable)
        np.multiply(residuals, sums, residuals)
        np.copyto(residuals, 0.0, where=np.isnan(residuals))  # 0 * NaN, where a share is zero for that reason
