"""Softmax regression: one linear layer with cross-entropy, on plain features or behind a frozen layer.

A record's gradient is (p - e_t) (x) x, with p = softmax(W x), its class t and e_t the t-th unit vector. So its norm is
||p - e_t|| ||x||, and a mean of clipped gradients is one product with re-weighted rows of p - e_t: no gradient of a single record
is ever made. A bias is one more feature that is always 1, and a frozen layer is a feature map, applied once.

References:
  Goodfellow, "Efficient per-example gradient computations", 2015, arXiv:1510.01799 (norms of per-record gradients of a layer).
  Krouka, Koskela, Kulkarni, "DP-FedNew", PoPETs 2025(1) (the second-order methods that `damped_solve` serves).
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from math import sqrt
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional

from dpfl_cli.config.component import Settings, component
from dpfl_cli.config.errors import ConfigError
from dpfl_cli.data.devices import read_once
from dpfl_cli.data.federation import DatasetInfo, Federation, Records
from dpfl_cli.data.streams import Streams, stream_generator
from dpfl_cli.models.classifier import DTYPES, EVALUATION_ROWS, cross_entropy, evaluation_splits
from dpfl_cli.models.curvature import (
    TOLERANCE,
    clippable_norms,
    compiled_kernel,
    covariance_inverse,
    covariance_product,
    covariance_solve,
    enough_steps,
    hessian_by_cholesky,
    hessian_by_conjugate_gradients,
    hessian_product,
    largest_eigenvalue,
    packed,
    precondition,
    solved_by_kernel,
)
from dpfl_cli.models.objective import Curvature, Objective
from dpfl_cli.models.pairs import (
    ALIGNMENT,
    CPU_BLOCK,
    Block,
    Pool,
    bounded_shares,
    class_probabilities,
    product,
    shared_product,
)
from dpfl_cli.models.softmax_minibatch import SMALL, Minibatch
from dpfl_cli.privacy.bounded import Bounded, record_covariance, record_mean
from dpfl_cli.privacy.client_values import ClientValues, client_values, opened

if TYPE_CHECKING:
    from dpfl_cli.models.curvature_kernel import CurvatureKernel

KEPT_FACTORS = 1 << 30  # bytes of factored covariances that are kept from round to round; others are factored every time
MAP_ROWS = 1 << 13  # records that pass the frozen layer at once

_Bounds = tuple[tuple[object, ...], float | Tensor, float | Tensor]

_mapped: dict[tuple[object, ...], tuple[weakref.ref[np.ndarray], Tensor]] = {}


class SoftmaxSettings(Settings):
    """Settings of `softmax_regression`."""

    later: ClassVar[frozenset[str]] = frozenset({"gradient_quantiles"})
    revised: ClassVar[Mapping[str, Mapping[str, int]]] = {"solver": {"cholesky": 2}}

    bias: bool
    l2: float = Field(ge=0, allow_inf_nan=False)
    init: Literal["zeros", "normal", "uniform"]
    init_scale: float = Field(gt=0, allow_inf_nan=False)
    frozen_width: int | None = Field(ge=1)
    frozen_seed: int = Field(ge=0)
    feature_norm: Literal["none", "l2"]
    precision: Literal["float32", "float64"]
    solver: Literal["cg", "cholesky"]
    solver_precision: Literal["float32", "float64"]
    gradient_quantiles: bool = False


@component("model", "softmax_regression", revision=1, settings=SoftmaxSettings)
class SoftmaxRegression(Objective):
    """Softmax regression: one linear layer and cross-entropy, on plain features or behind a frozen layer.

    Parameters are flat by class: block j of length p (or p + 1, the bias last) holds the weights of class j. f_i is the mean
    cross-entropy of client i's records, + l2 / 2 ||w||^2.
    """

    provides: ClassVar[frozenset[str]] = frozenset({"clipped_gradient", "squared_gradient_norms", "damped_solve", "covariance"})
    unreleased_metrics: ClassVar[frozenset[str]] = frozenset({"train_loss"})

    def __init__(
        self, settings: SoftmaxSettings, federations: list[Federation], index: np.ndarray, device: torch.device | str = "cpu"
    ) -> None:
        super().__init__(settings, federations, index, device)
        info = federations[0].dataset.info
        self.dtype = DTYPES[settings.precision]
        self.dimension = self.dimension_of(settings, info)
        self._classes = classes_of(info)
        self.features = self._width = self.dimension // self._classes  # of a record, the bias among them
        self._row = -(-self._width // ALIGNMENT) * ALIGNMENT
        self._solver_dtype = DTYPES[settings.solver_precision]
        self.solver_residual = TOLERANCE[torch.float32] if settings.solver_precision == "float32" else 0.0
        self._pool = Pool(federations, index, self._rows, self._row, self.dtype, self.device)
        self._filled: tuple[Tensor, Tensor] | None = None
        self._minibatches: dict[int, Minibatch] = {}
        self._factors: dict[tuple[object, ...], tuple[Tensor, Tensor]] = {}
        self._enough: int | None = None
        self._given: tuple[tuple[Tensor, int], ...] = ()  # on a device, what these are for: settings and their versions
        self._tests = evaluation_splits(federations, self._rows)

    @classmethod
    def dimension_of(cls, settings: SoftmaxSettings, info: DatasetInfo) -> int:
        """d = c p, or c (p + 1) with a bias; p is the number of features, or the width of the frozen layer."""
        inputs = int(np.prod(info.feature_shape)) if settings.frozen_width is None else settings.frozen_width
        return classes_of(info) * (inputs + settings.bias)

    @classmethod
    def features_of(cls, settings: SoftmaxSettings, info: DatasetInfo) -> int:
        """p, or p + 1 with a bias."""
        return cls.dimension_of(settings, info) // classes_of(info)

    @classmethod
    def workspace(cls, settings: SoftmaxSettings, info: DatasetInfo, clients: int) -> int:
        """The rows of its records, as many as a federation may have, and the block of pairs that is worked on."""
        width = cls.dimension_of(settings, info) // classes_of(info)
        return DTYPES[settings.precision].itemsize * info.records * width + CPU_BLOCK

    def initial(self, streams: Streams) -> Tensor:
        """[R, d] zeros, N(0, init_scale^2), or U(-1/sqrt(p), 1/sqrt(p)), the default of PyTorch's linear layers."""
        values = np.zeros((self.runs, self.dimension))
        bound = 1.0 / sqrt(self._width - self.settings.bias)
        for run in range(self.runs):
            if self.settings.init == "normal":
                values[run] = self.settings.init_scale * streams.generator(run, "init").standard_normal(self.dimension)
            if self.settings.init == "uniform":
                values[run] = streams.generator(run, "init").uniform(-bound, bound, self.dimension)
        return torch.from_numpy(values).to(self.device, self.dtype)

    def gradient(self, parameters: Tensor) -> ClientValues:
        """[R, M, d] grad f_i(v_i) = (1 / n_i) sum_j (p_j - e_{t_j}) (x) x_j + l2 v_i; 0 for a client without records."""
        values, result = opened(parameters), None
        for block in self._pool.blocks(None, self._pair_bytes):
            residuals = self._residuals(block, values)
            # a record that is not finite makes the gradient what it is: not finite
            residuals.mul_((block.weights * (1.0 + 0.0 * block.squared_norms)).unsqueeze(-2))
            result = self._with_gradient(block, residuals, result)
        result = self._or_zeros(result)
        if self.settings.l2:
            result.addcmul_(values, (self.records > 0).unsqueeze(-1).to(self.dtype), value=self.settings.l2)
        return client_values(result)

    def clipped_gradient(self, parameters: Tensor, clip_norm: Tensor, batch: Tensor | None = None) -> Bounded:
        """As the contract, by ||g_j|| = ||p_j - e_t|| ||x_j||: each p_j - e_t is re-weighted before it meets x_j.

        A record that is not finite, or whose features' norm exceeds `pairs.LARGEST_NORM`, counts as zero.
        """
        values, limit = opened(parameters), clip_norm.to(self.device, self.dtype)
        result: Tensor | None = None
        if batch is not None and self._is_small(batch):
            result = self.host(self._minibatch(batch.shape[-1]).clipped_mean, values, limit, batch)
            return record_mean(result, limit, self.divisors(batch))
        for block in self._pool.blocks(batch, self._pair_bytes):
            residuals = self._residuals(block, values)
            norms = self._squared_gradient_norms(block, residuals).sqrt_()
            shares = bounded_shares(block.weights, norms, block.of_runs(limit, self.clients).unsqueeze(-1))
            residuals.mul_(shares.unsqueeze(-2)).nan_to_num_(0.0, 0.0, 0.0)  # 0 * NaN, where a share is zero for that reason
            result = self._with_gradient(block, residuals, result)
        return record_mean(self._or_zeros(result), limit, self.divisors(batch))

    def squared_gradient_norms(self, parameters: Tensor, batch: Tensor | None = None) -> ClientValues:
        """[R, M, b] ||p_j - e_t||^2 ||x_j||^2."""
        values = opened(parameters)
        width = self._pool.largest if batch is None else batch.shape[-1]
        result = values.new_zeros(self.runs, self.clients, width)
        for block in self._pool.blocks(batch, self._pair_bytes):
            squared = self._squared_gradient_norms(block, self._residuals(block, values))
            block.put(result, functional.pad(squared, (0, width - squared.shape[-1])))
        return client_values(result)

    def damped_solve(
        self,
        parameters: Tensor,
        right: Tensor,
        damping: Tensor,
        curvature: Curvature = "hessian",
        clip_norm: Tensor | None = None,
    ) -> ClientValues:
        """As the contract. A record's matrix that is not finite counts as zero; a client without records divides by the damping.

        The solver works in `solver_precision`: conjugate gradients to a relative residual of 1e-8 (float32: 1e-6), or a Cholesky
        factorisation. The covariance is factored once for each damping and bound, and kept.
        """
        sides, dtype = opened(right), self._solver_dtype
        shifts = damping.to(self.device, dtype)
        limits = torch.full_like(shifts, torch.inf) if clip_norm is None else clip_norm.to(self.device, dtype)
        result = torch.empty_like(sides, memory_format=torch.contiguous_format)
        if not self.held.all():  # blocks have all clients that hold records
            torch.div(sides, damping.to(self.device, sides.dtype).reshape(-1, 1, 1), out=result)
        if curvature == "hessian":
            steps = self._steps(shifts, limits)
            for block in self._pool.blocks(None, self._hessian_bytes):
                side = self._by_class(block.of(sides)).to(dtype)
                solved = self._solve_hessian(block, opened(parameters), side, shifts[block.runs], limits[block.runs], steps)
                block.put(result, solved[..., : self._width].flatten(-2).to(result.dtype))
        else:
            bounds = self._bounds_of_runs(damping, clip_norm, shifts, limits)
            for block in self._pool.blocks(None, self._covariance_bytes):
                self._solve_covariance(block, sides, [bounds[run] for run in block.numbers], result)
        return client_values(result)

    def covariance(self) -> ClientValues:
        """As the contract."""
        return client_values(self._covariance(torch.full((self.runs,), torch.inf, dtype=self.dtype, device=self.device)))

    def clipped_covariance(self, clip_norm: Tensor) -> Bounded:
        """As the contract, by ||x x^T||_F = ||x||^2: every record's share is cut."""
        limit = clip_norm.to(self.device, self.dtype)
        return record_covariance(client_values(self._covariance(limit.square())), limit, self.divisors(None))

    def precondition(self, values: Tensor, matrices: Tensor) -> Tensor:
        """As the contract."""
        applied = precondition(opened(values), matrices, self._width)
        return client_values(applied) if isinstance(values, ClientValues) else applied

    def largest_curvature(
        self, parameters: Tensor, curvature: Curvature = "hessian", clip_norm: Tensor | None = None
    ) -> ClientValues:
        """As the contract, by Lanczos in `solver_precision`."""
        values, dtype = opened(parameters), self._solver_dtype
        limits = torch.full((self.runs,), torch.inf, device=self.device) if clip_norm is None else clip_norm
        limits = limits.to(self.device, dtype)
        result = values.new_zeros(self.runs, self.clients)
        for block in self._pool.blocks(None, self._hessian_bytes):
            features = block.features.to(dtype)
            if curvature == "hessian":
                probabilities, shares = self._curvature(block, values, features, limits[block.runs])
                apply = hessian_product(features, probabilities, shares)
            else:
                norms = block.squared_norms.to(dtype).unsqueeze(0)
                shares = bounded_shares(block.weights.to(dtype), norms, limits[block.runs][:, None, None])
                apply = covariance_product(features, shares)
            found = largest_eigenvalue(apply, self._by_class(block.of(values)).to(dtype))
            block.put(result, found.to(result.dtype))
        return client_values(result)

    def regulariser_gradient(self, parameters: Tensor) -> Tensor:
        """l2 w."""
        return self.settings.l2 * parameters

    def metrics(self, parameters: Tensor) -> dict[str, Tensor]:
        """`train_loss`, (1/M) sum_i of the clients' mean cross-entropy, and on the test split, where there is one, `accuracy` in
        percent and `test_loss` (mean cross-entropy), each [R]; and `gradient_quantiles`, where settings ask for them."""
        everywhere = parameters.unsqueeze(1).expand(-1, self.clients, -1)
        losses = parameters.new_zeros(self.runs, self.clients)
        for block in self._pool.blocks(None, self._pair_bytes):
            each = cross_entropy(self._logits(block, everywhere), block.labels)
            block.put(losses, (each * block.weights).sum(dim=-1))
        found = {"train_loss": losses.sum(dim=-1) / self.clients, **self.asked_quantiles(parameters)}
        if any(test is None for test in self._tests):
            return found
        accuracy, loss = torch.empty_like(parameters[:, 0]), torch.empty_like(parameters[:, 0])
        for run, number in enumerate(self.index):
            accuracy[run], loss[run] = self._evaluate(parameters[run], *self._tests[number])
        return {**found, "accuracy": accuracy, "test_loss": loss}

    # Features.

    def _rows(self, records: Records, numbers: np.ndarray) -> Tensor:
        """[k, q] features of the given records: flat, mapped, normed, with the bias, and zeros up to a whole row."""
        if self.settings.frozen_width is None:
            inputs = torch.from_numpy(records.features[numbers].reshape(len(numbers), -1)).to(self.device, self.dtype)
        else:
            inputs = frozen_features(records, self.settings, self.device)[torch.from_numpy(numbers).to(self.device)]
        if self.settings.feature_norm == "l2":
            norms = torch.linalg.vector_norm(inputs, dim=-1, keepdim=True)
            inputs = inputs / torch.where(norms > 0, norms, 1.0)
        if self.settings.bias:
            inputs = functional.pad(inputs, (0, 1), value=1.0)
        return functional.pad(inputs, (0, self._row - inputs.shape[-1]))

    def _by_class(self, values: Tensor) -> Tensor:
        """[..., c, q] from flat parameters [..., d]; zeros beside what fills up a row of features."""
        matrices = values.unflatten(-1, (self._classes, self._width))
        return matrices if self._row == self._width else functional.pad(matrices, (0, self._row - self._width))

    # Blocks.

    def _pair_bytes(self, records: int) -> int:
        """Bytes that a gradient of one pair works on."""
        return self.dtype.itemsize * (records * (self._row + 2 * self._classes) + 2 * self._classes * self._row)

    def _hessian_bytes(self, records: int) -> int:
        """Bytes that a Hessian solve of one pair works on."""
        held = records * (self._row + 6 * self._classes) + 6 * self._classes * self._row
        if self.settings.solver == "cholesky" and self._solver_kernel is None:
            held += (self._classes * self._row) ** 2 // 2
        return self._solver_dtype.itemsize * held

    def _covariance_bytes(self, records: int) -> int:
        """Bytes that a covariance solve of one pair works on; most of them to factor it."""
        copies, size = 1 + (self._solver_dtype != self.dtype), min(records, self._row)
        return self._solver_dtype.itemsize * (copies * records * self._row + 2 * size**2 + 2 * self._classes * self._row)

    def _logits(self, block: Block, values: Tensor) -> Tensor:
        """[S, B, c, n] W x."""
        return shared_product(self._filled_up(block.of(values)), block.features.mT)

    def _filled_up(self, values: Tensor) -> Tensor:
        """`_by_class` of [S, B, d] in memory that the next call takes again."""
        if self._row == self._width:
            return self._by_class(values)
        shape = (*values.shape[:2], self._classes, self._row)
        if self._filled is None or self._filled[0].shape != shape:
            filled = values.new_zeros(shape)
            self._filled = filled, filled[..., : self._width]
        filled, inner = self._filled
        inner.copy_(values.view(inner.shape))
        return filled

    def _is_small(self, batch: Tensor) -> bool:
        """Whether a batch [R, M, b] is so small that calls are what it costs: on a CPU, and one block."""
        held = self.runs * self.clients * self._pair_bytes(batch.shape[-1])
        return self.device.type == "cpu" and batch.numel() * self._classes < SMALL and held <= CPU_BLOCK

    def _minibatch(self, records: int) -> Minibatch:
        """For small batches of so many records."""
        if records not in self._minibatches:
            shape = self.runs, self.clients, records, self._classes, self._width
            self._minibatches[records] = Minibatch(self._pool, *shape)
        return self._minibatches[records]

    def _residuals(self, block: Block, values: Tensor) -> Tensor:
        """[S, B, c, n] p - e_t."""
        residuals = class_probabilities(self._logits(block, values))
        places = block.labels.unsqueeze(-2).expand(*residuals.shape[:2], 1, -1)
        return residuals.scatter_(-2, places, -1.0, reduce="add")

    def _squared_gradient_norms(self, block: Block, residuals: Tensor) -> Tensor:
        """[S, B, n]."""
        return residuals.square().sum(dim=-2).mul_(block.squared_norms)

    def _with_gradient(self, block: Block, residuals: Tensor, result: Tensor | None) -> Tensor:
        """result [R, M, d], made on first need, with sum_j (residual of j) (x) x_j at the block's places."""
        sums = shared_product(residuals, block.features)[..., : self._width]
        if block.every:
            return sums.reshape(self.runs, self.clients, self.dimension)
        result = self._or_zeros(result)
        block.put(result.unflatten(-1, (self._classes, self._width)), sums)
        return result

    def _or_zeros(self, result: Tensor | None) -> Tensor:
        """[R, M, d]."""
        if result is not None:
            return result
        return torch.zeros(self.runs, self.clients, self.dimension, dtype=self.dtype, device=self.device)

    def _steps(self, damping: Tensor, limits: Tensor) -> int | None:
        """How many steps conjugate gradients take on a device; None on a CPU, where they ask.

        H_i's eigenvalues are at most mean_j min(||x_j||^2 / 2, D), for those of diag(p) - p p^T are at most 1/2 (Boehning, Ann.
        Inst. Statist. Math. 44, 1992) and none passes its matrix's Frobenius norm, D once clipped. With damping gamma, the
        condition number is at most 1 + mean_j min(||x_j||^2 / 2, D) / gamma, here for the worst run and client. What the first
        round has found is kept; should damping fall, or the bounds D grow, so far that it is not enough, solves are NaN.

        Args:
          damping, limits: [R] gamma and D.
        """
        if self.device.type == "cpu" or self.settings.solver != "cg":
            return None
        if self._enough is None:
            ratios = []
            for block in self._pool.blocks(None, self._hessian_bytes):
                squared = torch.where(block.squared_norms.isfinite(), block.squared_norms, 0.0).to(damping.dtype)  # [B, n]
                largest = torch.minimum(squared / 2, limits[block.runs][:, None, None]) * block.weights.to(damping.dtype)
                ratios.append((largest.sum(dim=-1) / damping[block.runs].unsqueeze(-1)).amax())
            self._enough = enough_steps(1.0 + read_once(torch.stack(ratios).amax()), damping.dtype) if ratios else 0
        return self._enough

    def _solve_hessian(
        self, block: Block, values: Tensor, right: Tensor, damping: Tensor, limit: Tensor, steps: int | None
    ) -> Tensor:
        """[S, B, c, q] with damping and limit [S], and `_steps`."""
        features = block.features.to(self._solver_dtype)
        probabilities, shares = self._curvature(block, values, features, limit)
        if self.settings.solver == "cg":
            return hessian_by_conjugate_gradients(features, probabilities, shares, right, damping[:, None, None, None], steps)
        kernel = self._solver_kernel
        if kernel is None:
            return hessian_by_cholesky(features, probabilities, shares, right, damping)
        solved: Tensor = self.host(solved_by_kernel, kernel, features, probabilities, shares, right, damping)
        return solved

    @property
    def _solver_kernel(self) -> CurvatureKernel | None:
        """What factors Hessians on CPUs, where it can be compiled."""
        return compiled_kernel(self._solver_dtype) if self.device.type == "cpu" else None

    def _curvature(self, block: Block, values: Tensor, features: Tensor, limit: Tensor) -> tuple[Tensor, Tensor]:
        """Probabilities [S, B, c, n] and the records' shares [S, B, n], each Hessian bounded by limit [S]."""
        dtype = features.dtype
        probabilities = class_probabilities(shared_product(self._by_class(block.of(values)).to(dtype), features.mT))
        norms = clippable_norms(probabilities, block.squared_norms.to(dtype))
        shares = bounded_shares(block.weights.to(dtype), norms, limit[:, None, None])
        probabilities.nan_to_num_(0.0)  # of records that count as zero
        return probabilities, shares

    def _bounds_of_runs(self, damping: Tensor, clip_norm: Tensor | None, shifts: Tensor, limits: Tensor) -> list[_Bounds]:
        """What every run's covariance is damped and clipped by, and the key under which its factors are kept.

        On a CPU the numbers are the key, so that runs share factors. Reading them would halt a device: there a run is the key,
        for as long as the same settings come, unchanged.
        """
        if self.device.type == "cpu":
            return [((shift, limit), shift, limit) for shift, limit in zip(shifts.tolist(), limits.tolist(), strict=True)]
        given = tuple((one, one._version) for one in (damping, clip_norm) if one is not None)
        pairs = zip(given, self._given, strict=False)
        if len(given) != len(self._given) or any(a is not b or v != w for (a, v), (b, w) in pairs):
            self._given = given
            self._factors.clear()
        return [((run,), shifts[run], limits[run]) for run in range(self.runs)]

    def _solve_covariance(self, block: Block, sides: Tensor, bounds: list[_Bounds], result: Tensor) -> None:
        """Writes the block's part of the result [R, M, d] for right sides [R, M, d]; bounds are of the block's runs."""
        features, right = block.features.to(self._solver_dtype), block.of(sides).unflatten(-1, (self._classes, self._width))
        direct = isinstance(block.runs, slice) and isinstance(block.clients, slice)
        solved = block.of(result).unflatten(-1, right.shape[-2:]) if direct else torch.empty_like(right, dtype=result.dtype)
        for side, out, (key, damping, limit) in zip(right, solved, bounds, strict=True):
            roots, inverse = self._factor((block.key, *key), block, features, damping, limit)
            covariance_solve(features, roots, inverse, side, damping, out)
        if not direct:
            block.put(result, solved.flatten(-2))

    def _covariance(self, limits: Tensor) -> Tensor:
        """[R, M, p (p + 1) / 2] means of x x^T, each clipped to a Frobenius norm [R]."""
        size = self.features * (self.features + 1) // 2
        result = torch.zeros(self.runs, self.clients, size, dtype=self.dtype, device=self.device)
        for block in self._pool.blocks(None, self._moment_bytes):
            means: list[Tensor] = []
            for run in block.numbers:
                shares = bounded_shares(block.weights, block.squared_norms, limits[run])
                means.append(packed(product((block.features * shares.unsqueeze(-1)).mT, block.features), self.features))
            block.put(result, torch.stack(means))
        return result

    def _moment_bytes(self, records: int) -> int:
        """Bytes that a covariance of one pair works on."""
        return self.dtype.itemsize * (2 * records * self._row + 2 * self._row**2)

    def _factor(
        self, key: tuple[object, ...], block: Block, features: Tensor, damping: float | Tensor, limit: float | Tensor
    ) -> tuple[Tensor, Tensor]:
        """Roots [B, n] of the records' shares and `covariance_inverse`, kept while there is room."""
        if key in self._factors:
            return self._factors[key]
        squared_norms, weights = block.squared_norms.to(features.dtype), block.weights.to(features.dtype)
        bound = limit if isinstance(limit, Tensor) else squared_norms.new_full((), limit)
        roots = bounded_shares(weights, squared_norms, bound).sqrt_()  # ||x x^T||_F = ||x||^2
        inverse = covariance_inverse(features, roots, damping)
        kept = sum(part.nbytes for parts in self._factors.values() for part in parts)
        if kept + roots.nbytes + inverse.nbytes <= KEPT_FACTORS:
            self._factors[key] = roots, inverse
        return roots, inverse

    def _evaluate(self, parameters: Tensor, features: Tensor, labels: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Accuracy in percent and mean cross-entropy of one run's parameters [d] on test records."""
        matrix = self._by_class(parameters).expand(len(features), -1, -1)
        right, loss = torch.empty_like(weights), torch.empty_like(weights)
        size = max(1, CPU_BLOCK // (features[0].nbytes + self.dtype.itemsize * EVALUATION_ROWS * self._classes))
        for start in range(0, len(features), size):
            part = slice(start, start + size)
            logits = product(matrix[part], features[part].mT)
            right[part] = (logits.argmax(dim=1) == labels[part]) * weights[part]
            loss[part] = cross_entropy(logits, labels[part]) * weights[part]
        return 100.0 * right.sum(dim=-1).sum(), loss.sum(dim=-1).sum()


def classes_of(info: DatasetInfo) -> int:
    """c; a ConfigError where a dataset has no classes."""
    if info.classes is None:
        raise ConfigError(
            f"model=softmax_regression: needs records with classes, but dataset={info.name} has real targets; "
            "choose dataset=mnist or another model"
        )
    return info.classes


def frozen_features(records: Records, settings: SoftmaxSettings, device: torch.device) -> Tensor:
    """[N, H] max(0, A x + b) of all records, with A and b ~ U(-1/sqrt(p), 1/sqrt(p)) drawn from `frozen_seed`.

    The layer is public and the same for all clients and runs: neither its seed nor its values come from data or from a run's
    seed. The result is kept as long as the records live.
    """
    key = (id(records.features), settings.frozen_width, settings.frozen_seed, settings.precision, str(device))
    kept = _mapped.get(key)
    if kept is not None and kept[0]() is records.features:
        return kept[1]
    inputs, width, dtype = int(np.prod(records.features.shape[1:])), settings.frozen_width or 0, DTYPES[settings.precision]
    draw = stream_generator(settings.frozen_seed, "frozen layer").uniform(-1.0, 1.0, (width, inputs + 1)) / sqrt(inputs)
    layer = torch.from_numpy(draw).to(device, dtype)
    mapped = torch.empty(len(records), width, dtype=dtype, device=device)
    for start in range(0, len(records), MAP_ROWS):
        part = torch.from_numpy(records.features[start : start + MAP_ROWS].reshape(-1, inputs)).to(device, dtype)
        mapped[start : start + MAP_ROWS] = torch.addmm(layer[:, -1], part, layer[:, :-1].T).relu_()
    _mapped[key] = (weakref.ref(records.features, lambda _: _mapped.pop(key, None)), mapped)
    return mapped
