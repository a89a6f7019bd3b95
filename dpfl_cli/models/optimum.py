"""The minimiser of a regularised logistic problem to machine precision, kept in memory and on disk.

    F(x) = sum_j w_j ln(1 + exp(-y_j a_j . x)) + (l2 / 2) ||x||^2 + g(x),    l2 > 0

has one minimiser x*, and x is it where the prox-gradient residual L ||x - prox_{g / L}(x - grad
f(x) / L)|| is zero. That is also how a stored one is verified. Without g the solver is L-BFGS and
Newton's method after it; with g, accelerated proximal gradient steps that restart.

References:
  Beck, Teboulle, "A fast iterative shrinkage-thresholding algorithm for linear inverse problems",
  2009 (FISTA). O'Donoghue, Candes, "Adaptive restart for accelerated gradient schemes", 2015 (the
  restart by the gradient's sign).
"""

from __future__ import annotations

import hashlib
import logging
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from dpfl_cli.data.cache import write_atomically
from dpfl_cli.data.federation import Federation
from dpfl_cli.data.sources import cache_dir
from dpfl_cli.models.prox import NoPenalty, Penalty

logger = logging.getLogger("dpfl")

# of the residual, relative to the largest gradient that the records can have (at least 1)
TOLERANCE = 1e-12
STEPS = 200_000  # after which a problem counts as too badly conditioned

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

    def value(self, x: Tensor) -> float:
        """F(x), for x in the domain of g."""
        losses = torch.logaddexp(self.features.new_zeros(()), -self.signs * (self.features @ x))
        return float(self.weights @ losses + self.l2 / 2 * x.square().sum() + self.penalty.value(x))

    def gradient(self, x: Tensor) -> Tensor:
        """[d] of the smooth part."""
        pull = -self.signs * torch.sigmoid(-self.signs * (self.features @ x))
        return self.features.T @ (self.weights * pull) + self.l2 * x

    def forward(self, x: Tensor, gradient: Tensor) -> Tensor:
        """[d] prox_{g / L}(x - gradient / L)."""
        return self.penalty.prox(
            x - gradient / self.smoothness, x.new_full((), 1 / self.smoothness)
        )

    def residual(self, x: Tensor) -> float:
        """L ||x - prox_{g / L}(x - grad f(x) / L)|| over the scale of gradients; without g that is
        ||grad f(x)||.
        """
        scale = max(1.0, float(self.weights @ torch.linalg.vector_norm(self.features, dim=-1)))
        return (
            self.smoothness
            * float(torch.linalg.vector_norm(x - self.forward(x, self.gradient(x))))
            / scale
        )

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
    """[d] x*, from memory, from disk, or computed and kept.

    Returns:
      x*, or None, saying so once, where the problem is too badly conditioned to reach the
      tolerance.
    """
    if problem.key not in _known:
        stored = _read(problem)
        if stored is None:
            stored = solve(problem)
            if stored is None:
                logger.warning(
                    "no optimum to machine precision (model.l2=%g is very small): not reported",
                    problem.l2,
                )
            else:
                _write(problem, stored)
        _known[problem.key] = stored
    return _known[problem.key]


def solve(problem: LogisticProblem) -> Tensor | None:
    """[d] x*, computed; None where the tolerance is not reached."""
    x = _newton(problem) if isinstance(problem.penalty, NoPenalty) else _proximal(problem)
    return x if problem.residual(x) <= TOLERANCE else None


def _newton(problem: LogisticProblem) -> Tensor:
    """L-BFGS from zero, then Newton steps as long as they help; their systems are solved by
    conjugate gradients.
    """
    from scipy.optimize import minimize
    from scipy.sparse.linalg import LinearOperator, cg

    def both(x: np.ndarray) -> tuple[float, np.ndarray]:
        point = torch.from_numpy(x)
        return problem.value(point), problem.gradient(point).numpy()

    d = problem.features.shape[1]
    options = {"maxiter": STEPS, "maxfun": STEPS, "gtol": 1e-10, "ftol": 0.0}
    x = torch.from_numpy(
        minimize(both, np.zeros(d), jac=True, method="L-BFGS-B", options=options).x
    )
    error = problem.residual(x)
    for _ in range(20):
        chance = torch.sigmoid(problem.features @ x)
        curvature = problem.weights * chance * (1 - chance)

        def apply(u: np.ndarray, curvature: Tensor = curvature) -> np.ndarray:
            direction = torch.from_numpy(u.reshape(-1))
            return (
                problem.features.T @ (curvature * (problem.features @ direction))
                + problem.l2 * direction
            ).numpy()

        step, _ = cg(
            LinearOperator((d, d), apply, dtype=np.float64), problem.gradient(x).numpy(), rtol=1e-12
        )
        better = x - torch.from_numpy(step)
        reached = problem.residual(better)
        if not reached < error:
            break
        x, error = better, reached
    return x


def _proximal(problem: LogisticProblem) -> Tensor:
    """Accelerated proximal gradient steps from zero; momentum starts anew whenever it points
    uphill.
    """
    x = problem.penalty.prox(
        problem.features.new_zeros(problem.features.shape[1]), torch.ones(()).double()
    )
    ahead, t = x, 1.0
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
    gram = scaled.T @ scaled if len(scaled) > scaled.shape[1] else scaled @ scaled.T
    return float(torch.linalg.eigvalsh(gram)[-1]) / 4 if len(gram) else 0.0


def smoothness(federation: Federation, l2: float) -> np.ndarray:
    """[M] L_i = lambda_max(A_i^T A_i) / (4 n_i) + l2 of the clients' losses f_i; each is
    l2-strongly convex (mu).
    """
    features, partition = federation.dataset.train.features, federation.partition
    found = np.full(federation.clients, l2)
    for client, count in enumerate(partition.counts):
        start = partition.offsets[client]
        rows = torch.as_tensor(
            features[partition.indices[start : start + count]], dtype=torch.float64
        )
        found[client] += largest_curvature(
            rows, torch.full((int(count),), 1.0 / max(int(count), 1), dtype=torch.float64)
        )
    return found


def _path(problem: LogisticProblem) -> Path:
    return cache_dir() / "optima" / f"{problem.key}.npy"


def _read(problem: LogisticProblem) -> Tensor | None:
    """A stored x*, if there is one and it is what it claims to be."""
    with suppress(OSError, ValueError, EOFError):
        found = torch.from_numpy(np.load(_path(problem), allow_pickle=False))
        # another machine may round the residual otherwise
        right = found.dtype == torch.float64 and found.shape == problem.features.shape[1:]
        if right and problem.residual(found) <= 10 * TOLERANCE:
            return found
    return None


def _write(problem: LogisticProblem, x: Tensor) -> None:
    """Stores x* under its name in one act. A cache folder that cannot be written only means to
    compute it again next time.
    """
    write_atomically(_path(problem), partial(_save, x.numpy()))


def _save(values: np.ndarray, path: Path) -> None:
    with path.open("wb") as file:
        np.save(file, values)
