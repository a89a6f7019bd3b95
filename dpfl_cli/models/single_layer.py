"""Models of one linear layer, such as linear, logistic and softmax regression, with damped solves
and means of x x^T for second-order methods.

A record's gradient is s (x) x with s = dl/dz at the outputs z = W x, and its norm ||s|| ||x||. On
CPUs a compiled kernel computes what looks at records (`layer_kernel`); stacked tensor operations
(`dense`) serve other devices, and where the kernel cannot be built. The two are tested equal.

A record's Hessian is B (x) x x^T with B = d^2 l / dz^2: diag(p) - p p^T for softmax regression, a
number for one output. Curvature by features only is x x^T, the same for all outputs and rounds.

References:
  Krouka, Koskela, Kulkarni, "Communication Efficient Differentially Private Federated Learning
  Using Second Order Information", PoPETs 2025(1), sections 3 and 4 (what `damped_solve` serves).
  Boehning, "Multinomial logistic regression algorithm", Ann. Inst. Statist. Math. 44, 1992.
"""

from __future__ import annotations

import sys
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, get_args

import numpy as np
import torch
from torch import Tensor

from dpfl_cli.data.devices import free_memory, host_numbers
from dpfl_cli.data.federation import DatasetInfo
from dpfl_cli.data.programs import built_or_none
from dpfl_cli.models.curvature import (
    TOLERANCE,
    Curvature,
    clippable_norms,
    conjugate_gradients,
    covariance_gram,
    covariance_inverse,
    covariance_solve,
    curvature_product,
    hessian_by_cholesky,
    largest_eigenvalue,
    packed,
    precondition,
)
from dpfl_cli.models.dense import DTYPES, Dense
from dpfl_cli.models.losses import Loss, probabilities
from dpfl_cli.models.records import CPU_BLOCK, Block, bounded_shares, product, shared_product
from dpfl_cli.privacy.bounded import Bounded, per_run
from dpfl_cli.privacy.client_values import ClientValues, client_values, opened
from dpfl_cli.privacy.record_bounds import record_covariance

if TYPE_CHECKING:
    from dpfl_cli.models.layer_kernel import LayerKernel, Layouts

KEPT_FACTORS = 0.5  # of the memory that is still free: factored covariances kept between rounds


class SingleLayer(Dense):
    """Base of models of one linear layer without separate biases. Settings may have a `solver` and
    a `solver_precision`.

    Attributes:
      outputs: c, of the layer.
      features: p, its inputs.
      width: q >= p of the records' rows.
    """

    provides = Dense.provides | {"damped_solve", "covariance"}

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        (layer,) = self.layers
        self.outputs, self.features, self.width = layer.outputs, layer.inputs, layer.width
        self._laid_out: dict[torch.dtype, Layouts] = {}
        self._solver_dtype = DTYPES[getattr(self.settings, "solver_precision", "float64")]
        self._solver = getattr(self.settings, "solver", "cg")
        if self._solver_dtype == torch.float32:
            self.solver_residual = TOLERANCE[torch.float32]
            if self._solver == "cholesky":  # what its rounding moves has been bounded for no number
                self.solved_records = [sys.maxsize] * self.runs
        self._factors: dict[object, tuple[Tensor, Tensor]] = {}
        self._kept_bytes = 0  # of the factors
        self._seen: dict[str, tuple[Tensor, int, list[float]]] = {}

    @classmethod
    def features_of(cls, settings: Any, info: DatasetInfo) -> int:
        return cls.layers_for(settings, info)[0].inputs

    @cached_property
    def _kernel(self) -> LayerKernel | None:
        """None for a class with a loss or a regulariser of its own, which the kernel does not
        know.
        """
        regular = type(self).regulariser_gradient is Dense.regulariser_gradient
        known = regular and type(self.loss) in get_args(Loss)
        return compiled_kernel(self.dtype) if known and self.device.type == "cpu" else None

    def _layouts(self, dtype: torch.dtype) -> Layouts:
        """For the kernel, of every federation the runs that use it and the clients' records, laid
        out as numbers of a type.
        """
        from dpfl_cli.models.layer_kernel import layouts

        if dtype not in self._laid_out:
            self._laid_out[dtype] = layouts(self._pool, self.loss, self.outputs, dtype)
        return self._laid_out[dtype]

    def _means(self, values: Tensor, limit: Tensor | None, batch: Tensor | None) -> Tensor:
        kernel = self._kernel
        if kernel is None:
            return super()._means(values, limit, batch)
        drawn = None if batch is None else batch.unsqueeze(2)
        l2 = self.l2 if limit is None and batch is None else None
        return kernel.compute(self._layouts(self.dtype), values, batch=drawn, limits=limit, l2=l2)

    def local_descent(
        self,
        start: Tensor,
        learning_rate: Tensor,
        steps: int,
        drift: Tensor | None = None,
        batches: Tensor | None = None,
    ) -> ClientValues:
        """As the definition, a client's whole run at once; by the definition where a subclass says
        anew what a gradient is.
        """
        kernel, known = self._kernel, type(self).gradient is Dense.gradient
        if kernel is None or not known or not steps:
            return super().local_descent(start, learning_rate, steps, drift, batches)
        everywhere = start.unsqueeze(1).expand(-1, self.clients, -1)
        moved = kernel.compute(
            self._layouts(self.dtype),
            everywhere,
            batch=batches,
            l2=self.l2,
            steps=steps,
            rates=learning_rate,
            drift=None if drift is None else opened(drift),
        )
        return client_values(moved)

    def damped_solve(
        self,
        parameters: Tensor,
        right: Tensor,
        damping: Tensor,
        curvature: Curvature = "hessian",
        clip_norm: Tensor | None = None,
    ) -> ClientValues:
        """As `ClientSide.damped_solve`. A record's matrix that is not finite counts as zero; a
        client without records divides by the damping.

        Hessians of several outputs are solved by conjugate gradients to a relative residual of 1e-8
        (in float32: 1e-6), or by Cholesky factors; all else by the factors of x x^T. Those of the
        covariance are kept, for they do not depend on the parameters.
        """
        values, sides = opened(parameters), opened(right)
        shifts, limits = damping.to(self.device, self._solver_dtype), self._limits(clip_norm)
        result = torch.empty_like(sides, memory_format=torch.contiguous_format)
        if not self.held.all():  # the others' is written below
            torch.div(sides, per_run(damping, sides), out=result)
        kernel = self._kernel if self.outputs > 1 and self._solver == "cg" else None
        if kernel is not None and curvature == "hessian":
            numbers = shifts.double(), limits.double(), TOLERANCE[self._solver_dtype]
            kernel.solve(self._layouts(torch.float64), values, sides, *numbers, result)
            return client_values(result)
        layer = self.layers[0]
        keys, pair_bytes = None, self._solve_bytes
        if curvature == "covariance":
            keys = self._numbers("damping", damping), self._numbers("clip", clip_norm)
            pair_bytes = self._covariance_bytes
        for block in self._pool.blocks(None, pair_bytes):
            side = layer.matrix(block.of(sides))
            chances, shares = self._curved(block, values, limits, curvature)
            if chances is None:
                solved = self._by_rows(block, shares, side, shifts, keys)
            else:
                solved = self._by_hessians(block, chances, shares, side, shifts)
            block.put(result, layer.flat(solved).to(result.dtype))
        return client_values(result)

    def largest_curvature(
        self, parameters: Tensor, curvature: Curvature = "hessian", clip_norm: Tensor | None = None
    ) -> ClientValues:
        """As `ClientSide.largest_curvature`, by Lanczos in `solver_precision`."""
        values, limits = opened(parameters), self._limits(clip_norm)
        result = values.new_zeros(self.runs, self.clients)
        for block in self._pool.blocks(None, self._solve_bytes):
            curved = self._curved(block, values, limits, curvature)
            apply = curvature_product(block.features.to(self._solver_dtype), *curved)
            like = self.layers[0].matrix(block.of(values)).to(self._solver_dtype)
            block.put(result, largest_eigenvalue(apply, like).to(result.dtype))
        return client_values(result)

    def covariance(self) -> ClientValues:
        """As `ClientSide.covariance`."""
        return client_values(self._covariance(self._limits(None).to(self.dtype)))

    def clipped_covariance(self, clip_norm: Tensor) -> Bounded:
        """As `ClientSide.clipped_covariance`, by ||x x^T||_F = ||x||^2: every share is cut."""
        limit = clip_norm.to(self.device, self.dtype)
        means = client_values(self._covariance(limit.square()))
        return record_covariance(means, limit, self.divisors(None))

    def precondition(self, values: Tensor, matrices: Tensor) -> Tensor:
        """As `ClientSide.precondition`."""
        return precondition(opened(values), matrices, self.features)

    def _limits(self, clip_norm: Tensor | None) -> Tensor:
        """[R] bounds of the records' matrices."""
        if clip_norm is not None:
            return clip_norm.to(self.device, self._solver_dtype)
        return torch.full((self.runs,), torch.inf, dtype=self._solver_dtype, device=self.device)

    def _numbers(self, name: str, setting: Tensor | None) -> list[float]:
        """What factors are kept by: the numbers [R] of a setting, of which a device is asked when
        another tensor comes.
        """
        if setting is None:
            return [np.inf] * self.runs
        seen = self._seen.get(name)
        if seen is None or seen[0] is not setting or seen[1] != setting._version:
            seen = self._seen[name] = setting, setting._version, host_numbers(setting)
        return seen[2]

    def _curved(
        self, block: Block, values: Tensor, limits: Tensor, curvature: Curvature
    ) -> tuple[Tensor | None, Tensor]:
        """Probabilities [S, B, c, n], where there are several, and shares [S, B, n] of the records'
        matrices, each of them bounded; with one output a share has d^2 l / dz^2 in it.
        """
        dtype, limit = limits.dtype, limits[block.runs][:, None, None]
        weights, squared = block.weights.to(dtype), block.squared_norms.to(dtype)
        if curvature == "covariance":
            return None, bounded_shares(weights, squared.unsqueeze(0), limit)
        matrix, features = self.layers[0].matrix(block.of(values)), block.features.to(dtype)
        z = shared_product(matrix.to(dtype), features.mT)
        if self.outputs == 1:
            bends = self.loss.bends(z).squeeze(-2)
            shares = bounded_shares(weights, bends * squared, limit)
            return None, shares * bends.nan_to_num(0.0, 0.0, 0.0)
        chances = probabilities(z)
        shares = bounded_shares(weights, clippable_norms(chances, squared), limit)
        return chances.nan_to_num_(0.0), shares  # of records that count as zero

    def _by_hessians(
        self, block: Block, chances: Tensor, shares: Tensor, side: Tensor, shifts: Tensor
    ) -> Tensor:
        """(H + damping I)^-1 of right sides [S, B, c, q], for dampings [R]."""
        features, side = block.features.to(shares.dtype), side.to(shares.dtype)
        damping = shifts[block.runs]
        if self._solver == "cholesky":
            runs = zip(chances, shares, side, damping, strict=True)
            return torch.stack([hessian_by_cholesky(features, *run) for run in runs])
        times, damping = curvature_product(features, chances, shares), damping[:, None, None, None]
        return conjugate_gradients(lambda v: times(v).addcmul_(v, damping), side)

    def _by_rows(
        self,
        block: Block,
        shares: Tensor,
        side: Tensor,
        shifts: Tensor,
        keys: tuple[list[float], list[float]] | None,
    ) -> Tensor:
        """(sum_j w_j x_j x_j^T + damping I)^-1 of right sides [S, B, c, q], for shares w [S, B, n].

        The inverses are made in `solver_precision` and rounded to the records' type, in which they
        are applied: in float32 a solution is off by about 3e-7 ||right side|| / damping, as if its
        right side had been rounded a few times. With fewer records than features, where they nearly
        repeat each other, it is off by as much as 5e-8 lambda / damping of that quotient, lambda
        the matrix's largest eigenvalue: for dampings below a thousandth of it there is
        precision=float64.

        Args:
          keys: [R] damping and bounds that factors are kept by; None: they are used once.
        """
        factors: dict[object, tuple[Tensor, Tensor]] = {}  # of the block
        grams: dict[float, Tensor] = {}
        names: list[object] = []
        for place, run in enumerate(block.numbers):
            limit = place if keys is None else keys[1][run]
            name = (block.key, limit if keys is None else keys[0][run], limit)
            names.append(name)
            if name in factors:
                continue
            factor = None if keys is None else self._factors.get(name)
            if factor is None:
                roots = shares[place].sqrt()
                if limit not in grams:
                    grams[limit] = covariance_gram(block.features.to(shares.dtype), roots)
                inverse = covariance_inverse(grams[limit], shifts[run])
                factor = roots.to(side.dtype), inverse.to(side.dtype)
                kept = self._kept_bytes + sum(part.nbytes for part in factor)
                if keys is not None and kept <= KEPT_FACTORS * free_memory(self.device):
                    self._factors[name], self._kept_bytes = factor, kept
            factors[name] = factor
        found, damping = [factors[name] for name in names], per_run(shifts[block.runs], side)
        return covariance_solve(block.features, found, side, damping)

    def _solve_bytes(self, records: int) -> int:
        """Bytes that a solve of one pair works on."""
        wide, size = self.outputs * self.width, min(records, self.width)
        held = records * (2 * self.width + 6 * self.outputs) + 6 * wide + 2 * size**2
        if self._solver == "cholesky":
            held += 3 * wide**2 + records * wide
        return self._solver_dtype.itemsize * held

    def _covariance_bytes(self, records: int) -> int:
        """As `_solve_bytes`, with a covariance, in the records' type; less where a block would not
        have all runs, which share what is made, or a client for every thread.
        """
        wide, size = self.outputs * self.width, min(records, self.width)
        held = self.dtype.itemsize * (records * self.width + 4 * wide + size**2)
        return min(held, CPU_BLOCK // (self.runs * torch.get_num_threads()))

    def _covariance(self, limits: Tensor) -> Tensor:
        """[R, M, p (p + 1) / 2] means of x x^T, each clipped to a Frobenius norm [R]."""
        size = self.features * (self.features + 1) // 2
        kinds = [*zip(self.index.tolist(), host_numbers(limits), strict=True)]
        firsts = [kinds.index(kind) for kind in kinds]  # the first run that has the same
        some = sorted(set(firsts))
        made = 1 if len(some) == 1 else self.runs
        result = torch.zeros(made, self.clients, size, dtype=self.dtype, device=self.device)
        each = 2 * self.dtype.itemsize * self.width  # bytes of a row of what a pair works on
        for block in self._pool.blocks(None, lambda records: each * (records + self.width), some):
            for run in block.numbers:
                shares = bounded_shares(block.weights, block.squared_norms, limits[run])
                mean = product((block.features * shares.unsqueeze(-1)).mT, block.features)
                result[run, block.clients] = packed(mean, self.features)
        for run, first in enumerate(firsts[:made]):
            if run != first:
                result[run] = result[first]
        return result.expand(self.runs, -1, -1)


@cache
def compiled_kernel(dtype: torch.dtype) -> LayerKernel | None:
    """The kernel, or None, saying so once for each type of numbers, where it cannot be built."""

    def make() -> LayerKernel:
        from dpfl_cli.models.layer_kernel import LayerKernel  # the compiler takes time to import

        return LayerKernel(dtype)

    return built_or_none(make, "the kernel of linear layers", "using torch, which is slower")
