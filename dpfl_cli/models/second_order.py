"""Second-order methods for models of one linear layer: damped solves, and means of x x^T.

A record's Hessian is B (x) x x^T with B = d^2 l / dz^2: diag(p) - p p^T for softmax regression, a
number for one output. Curvature by features only is x x^T, the same for all outputs and rounds.

References:
  Krouka, Koskela, Kulkarni, "Communication Efficient Differentially Private Federated Learning
  Using Second Order Information", PoPETs 2025(1), sections 3 and 4 (what `damped_solve` serves).
  Boehning, "Multinomial logistic regression algorithm", Ann. Inst. Statist. Math. 44, 1992.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from dpfl_cli.data.devices import free_memory, host_numbers
from dpfl_cli.data.federation import DatasetInfo
from dpfl_cli.models.curvature import (
    TOLERANCE,
    Curvature,
    clippable_norms,
    conjugate_gradients,
    covariance_inverse,
    covariance_solve,
    curvature_product,
    hessian_by_cholesky,
    largest_eigenvalue,
    packed,
    precondition,
)
from dpfl_cli.models.dense import DTYPES
from dpfl_cli.models.losses import probabilities
from dpfl_cli.models.records import Block, bounded_shares, product, shared_product
from dpfl_cli.models.single_layer import SingleLayer
from dpfl_cli.privacy.bounded import Bounded
from dpfl_cli.privacy.client_values import ClientValues, client_values, opened
from dpfl_cli.privacy.record_means import record_covariance

KEPT_FACTORS = 0.5  # of the memory that is still free: factored covariances kept between rounds


class SecondOrder(SingleLayer):
    """A `SingleLayer` with damped solves and covariances. Settings may have a `solver` and a
    `solver_precision`.
    """

    provides = SingleLayer.provides | {"damped_solve", "covariance"}

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._solver_dtype = DTYPES[getattr(self.settings, "solver_precision", "float64")]
        self._solver = getattr(self.settings, "solver", "cg")
        if self._solver_dtype == torch.float32:
            self.solver_residual = TOLERANCE[torch.float32]
        self._factors: dict[object, tuple[Tensor, Tensor]] = {}
        self._kept_bytes = 0  # of the factors
        self._seen: dict[str, tuple[Tensor, int, list[float]]] = {}

    @classmethod
    def features_of(cls, settings: Any, info: DatasetInfo) -> int:
        return cls.layers_for(settings, info)[0].inputs

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
            torch.div(sides, damping.to(self.device, sides.dtype).reshape(-1, 1, 1), out=result)
        kernel = self._kernel if self.outputs > 1 and self._solver == "cg" else None
        if kernel is not None and curvature == "hessian":
            numbers = shifts.double(), limits.double(), TOLERANCE[self._solver_dtype]
            kernel.solve(self._layouts(torch.float64), values, sides, *numbers, result)
            return client_values(result)
        layer = self.layers[0]
        keys = self._numbers("damping", damping), self._numbers("clip", clip_norm)
        pair_bytes = self._solve_bytes if curvature == "hessian" else self._covariance_bytes
        for block in self._pool.blocks(None, pair_bytes):
            side = layer.matrix(block.of(sides))
            chances, shares = self._curved(block, values, limits, curvature)
            if chances is None:
                kept = keys if curvature == "covariance" else None
                solved = self._by_rows(block, shares, side, shifts, kept)
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
        free = torch.full((self.runs,), torch.inf, dtype=self.dtype, device=self.device)
        return client_values(self._covariance(free))

    def clipped_covariance(self, clip_norm: Tensor) -> Bounded:
        """As `ClientSide.clipped_covariance`, by ||x x^T||_F = ||x||^2: every share is cut."""
        limit = clip_norm.to(self.device, self.dtype)
        means = client_values(self._covariance(limit.square()))
        return record_covariance(means, limit, self.divisors(None))

    def precondition(self, values: Tensor, matrices: Tensor) -> Tensor:
        """As `ClientSide.precondition`."""
        applied = precondition(opened(values), matrices, self.features)
        return client_values(applied) if isinstance(values, ClientValues) else applied

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
        factors = []
        for place, run in enumerate(block.numbers):
            key = None if keys is None else (block.key, keys[0][run], keys[1][run])
            factor = self._factors.get(key)
            if factor is None:
                roots, features = shares[place].sqrt(), block.features.to(shares.dtype)
                inverse = covariance_inverse(features, roots, shifts[run])
                factor = roots.to(side.dtype), inverse.to(side.dtype)
                kept = self._kept_bytes + sum(part.nbytes for part in factor)
                if key is not None and kept <= KEPT_FACTORS * free_memory(self.device):
                    self._factors[key], self._kept_bytes = factor, kept
            factors.append(factor)
        own_roots, inverses = [one for one, _ in factors], [one for _, one in factors]
        damping = shifts[block.runs].reshape(-1, 1, 1, 1).to(side.dtype)
        return covariance_solve(block.features, own_roots, inverses, side, damping)

    def _solve_bytes(self, records: int) -> int:
        """Bytes that a solve of one pair works on."""
        wide, size = self.outputs * self.width, min(records, self.width)
        held = records * (2 * self.width + 6 * self.outputs) + 6 * wide + 2 * size**2
        if self._solver == "cholesky":
            held += 3 * wide**2 + records * wide
        return self._solver_dtype.itemsize * held

    def _covariance_bytes(self, records: int) -> int:
        """As `_solve_bytes`, with a covariance, in the records' type."""
        wide, size = self.outputs * self.width, min(records, self.width)
        return self.dtype.itemsize * (records * self.width + 4 * wide + size**2)

    def _covariance(self, limits: Tensor) -> Tensor:
        """[R, M, p (p + 1) / 2] means of x x^T, each clipped to a Frobenius norm [R]."""
        size = self.features * (self.features + 1) // 2
        result = torch.zeros(self.runs, self.clients, size, dtype=self.dtype, device=self.device)
        for block in self._pool.blocks(None, self._moment_bytes):
            means = []
            for run in block.numbers:
                shares = bounded_shares(block.weights, block.squared_norms, limits[run])
                mean = product((block.features * shares.unsqueeze(-1)).mT, block.features)
                means.append(packed(mean, self.features))
            block.put(result, torch.stack(means))
        return result

    def _moment_bytes(self, records: int) -> int:
        """Bytes that a covariance of one pair works on."""
        return self.dtype.itemsize * (2 * records * self.width + 2 * self.width**2)
