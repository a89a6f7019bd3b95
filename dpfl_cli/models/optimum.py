"""The minimiser of a regularised logistic problem to machine precision.

    F(x) = sum_j w_j ln(1 + exp(-y_j a_j . x)) + (l2 / 2) ||x||^2 + g(x),    l2 > 0

has one minimiser x*, and x is it where the prox-gradient residual L ||x - prox_{g / L}(x - grad
f(x) / L)|| is zero. Without g the solver is Newton's method; with g, accelerated proximal gradient
steps that restart.

References:
  Beck, Teboulle, "A fast iterative shrinkage-thresholding algorithm for linear inverse problems",
  2009 (FISTA). O'Donoghue, Candes, "Adaptive restart for accelerated gradient schemes", 2015 (the
  restart by the gradient's sign).
"""

import hashlib
from dataclasses import dataclass
from functools import cached_property
from math import inf

import numpy as np
import torch
from torch import Tensor

from dpfl_cli.data.federation import Federation
from dpfl_cli.data.programs import logger
from dpfl_cli.models.prox import L1Box, Penalty
from dpfl_cli.models.records import one_thread

# of the residual, relative to the largest gradient that the records can have (at least 1)
TOLERANCE = 1e-12
STEPS = 200_000  # after which a problem counts as too badly conditioned
NEWTON_STEPS, HALVINGS = 100, 30

_known: dict[str, Tensor | None] = {}


@dataclass(frozen=True)
class LogisticProblem:
    """F, in float64 on the CPU.

    Attributes:
      features: [N, d] a_j, finite.
      signs: [N] y_j, each -1 or 1.
      weights: [N] w_j, non-negative; 1 / (M n_i) for a record of client i weighs clients equally.
      l2: positive.
      penalty: g.
    """

    features: Tensor
    signs: Tensor
    weights: Tensor
    l2: float
    penalty: Penalty

    @cached_property
    def smoothness(self) -> float:
        """L = lambda_max(sum_j w_j a_j a_j^T) / 4 + l2, of the smooth part."""
        return largest_curvature(self.features, self.weights) + self.l2

    def gradient(self, x: Tensor) -> Tensor:
        """[d] of the smooth part."""
        pull = -self.signs * torch.sigmoid(-self.signs * (self.features @ x))
        return self.features.T @ (self.weights * pull) + self.l2 * x

    def forward(self, x: Tensor, gradient: Tensor) -> Tensor:
        """[d] prox_{g / L}(x - gradient / L)."""
        return self.penalty.prox(x - gradient / self.smoothness, 1 / self.smoothness)

    def residual(self, x: Tensor) -> float:
        """L ||x - prox_{g / L}(x - grad f(x) / L)|| over the scale of gradients; without g that is
        ||grad f(x)||.
        """
        scale = max(1.0, float(self.weights @ torch.linalg.vector_norm(self.features, dim=-1)))
        moved = torch.linalg.vector_norm(x - self.forward(x, self.gradient(x)))
        return self.smoothness * float(moved) / scale

    @cached_property
    def key(self) -> str:
        """A hash of the content."""
        digest = hashlib.sha256(
            f"logistic {tuple(self.features.shape)} {self.l2!r} {self.penalty!r}".encode()
        )
        for part in (self.features, self.signs, self.weights):
            digest.update(part.contiguous().numpy().data)
        return digest.hexdigest()


def minimiser(problem: LogisticProblem) -> Tensor | None:
    """[d] x*, computed once in a process.

    Returns:
      x*, or None, saying so once, where the problem is too badly conditioned to reach the
      tolerance.
    """
    if problem.key not in _known:
        _known[problem.key] = solve(problem)
        if _known[problem.key] is None:
            logger.warning(
                "no optimum to machine precision (model.l2=%g is very small): not reported",
                problem.l2,
            )
    return _known[problem.key]


def solve(problem: LogisticProblem) -> Tensor | None:
    """[d] x*, computed; None where the tolerance is not reached."""
    with one_thread():
        x = _newton(problem) if problem.penalty == L1Box() else _proximal(problem)
        return x if problem.residual(x) <= TOLERANCE else None


def _newton(problem: LogisticProblem) -> Tensor:
    """Newton's method from zero, each step halved until the gradient is shorter; where no part of
    a step shortens it, rounding is all that is left.
    """
    x = problem.features.new_zeros(problem.features.shape[1])
    error = problem.residual(x)
    for _ in range(NEWTON_STEPS):
        chance = torch.sigmoid(problem.features @ x)
        rows = problem.features * (problem.weights * chance * (1 - chance)).sqrt().unsqueeze(-1)
        hessian = rows.T @ rows
        hessian.diagonal().add_(problem.l2)
        step, failed = torch.linalg.solve_ex(hessian, problem.gradient(x))
        if failed:  # no record may end a run: its residual says that there is no minimiser
            break
        parts = (x - step / 2**halved for halved in range(HALVINGS))
        better = next((part for part in parts if problem.residual(part) < error), None)
        if better is None:
            break
        x, error = better, problem.residual(better)
    return x


def _proximal(problem: LogisticProblem) -> Tensor:
    """Accelerated proximal gradient steps from zero; momentum starts anew whenever it points
    uphill.
    """
    x = ahead = problem.features.new_zeros(problem.features.shape[1])
    t = 1.0
    for step in range(STEPS):
        if step % 20 == 0 and problem.residual(x) <= TOLERANCE / 10:
            break
        new = problem.forward(ahead, problem.gradient(ahead))
        if float((ahead - new) @ (new - x)) > 0:
            t = 1.0
        following = (1 + (1 + 4 * t * t) ** 0.5) / 2
        ahead, x, t = new + (t - 1) / following * (new - x), new, following
    return x


def largest_curvature(features: Tensor, weights: Tensor) -> float:
    """lambda_max(sum_j w_j a_j a_j^T) / 4, for 1/4 is the largest curvature of ln(1 + exp(-z))."""
    scaled = features * weights.sqrt().unsqueeze(-1)
    with one_thread():  # what regularisers follow from
        gram = scaled.T @ scaled if len(scaled) > scaled.shape[1] else scaled @ scaled.T
        if not gram.isfinite().all():  # eigvalsh would raise, and end a run by its data
            return inf
        return float(torch.linalg.eigvalsh(gram)[-1]) / 4 if len(gram) else 0.0


def smoothness(federation: Federation) -> np.ndarray:
    """[M] L_i - l2 = lambda_max(A_i^T A_i) / (4 n_i) of the clients' losses f_i."""
    features, found = federation.dataset.train.features, np.zeros(federation.clients)
    for client, own in enumerate(federation.partition.lists()):
        rows = torch.as_tensor(features[own], dtype=torch.float64)
        found[client] = largest_curvature(rows, rows.new_full((len(own),), 1.0 / max(len(own), 1)))
    return found
