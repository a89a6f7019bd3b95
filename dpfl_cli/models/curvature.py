"""Damped solves with the curvature of softmax regression, without a matrix per record.

With rows x_j, probabilities p_j (a record's column of P) and shares w_j, a client's Hessian is

    H = sum_j w_j (diag(p_j) - p_j p_j^T) (x) x_j x_j^T,    ||H_j||_F = ||x_j||^2 sqrt(sum p^2 - 2
    sum p^3 + (sum p^2)^2),

so clipping needs p and ||x|| alone, and H V = X^T (w (P Z - P sum(P Z))) with Z = X V. Curvature by
features only is K = sum_j w_j x_j x_j^T, the same for all classes and all rounds.

Reference: Krouka, Koskela, Kulkarni, "Communication Efficient Differentially Private Federated
Learning Using Second Order Information", PoPETs 2025(1), sections 4.2 and 4.3 (the matrices that it
inverts; the forms are this file's own).
"""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from dpfl_cli.data.devices import host_numbers, on_device
from dpfl_cli.data.threads import even_parts, one_thread_each, slices
from dpfl_cli.models.records import one_thread, product, shared_product

Curvature = Literal["hessian", "covariance"]
# relative residual at which conjugate gradients stop
TOLERANCE = {torch.float64: 1e-8, torch.float32: 1e-6}
# times c: see `clippable_norms`
ROUNDING_64 = 2e-8
ROUNDING = {torch.float64: ROUNDING_64, torch.float32: 1e3 * torch.finfo(torch.float32).eps}
PRECONDITIONED = 512  # rows of one product with a preconditioner
LANCZOS_STEPS = 16
ASKED = {"cpu": 1}  # steps of conjugate gradients after which it is asked whether a pair goes on,
SELDOM = 16  # and where that waits for a device


def hessian_norms(probabilities: Tensor, squared_norms: Tensor) -> Tensor:
    """||H_j||_F = ||x_j||^2 ||diag(p_j) - p_j p_j^T||_F.

    The square of the second factor is summed as sum_a (p_a - p_a^2)^2 + 2 sum_{a < b} p_a^2 p_b^2:
    the same, but no term cancels where one probability is nearly 1. Squares may underflow.

    Args:
      probabilities: [..., c, n].
      squared_norms: [..., n].
    """
    squares = probabilities.square()
    before = squares.cumsum(dim=-2)[..., :-1, :]  # sum_{a < b} p_a^2, for b = 1 ... c - 1
    off = before.mul_(squares[..., 1:, :]).sum(dim=-2)
    total = (probabilities - squares).square_().sum(dim=-2).add_(off, alpha=2.0)
    return squared_norms * total.sqrt_()


def clippable_norms(probabilities: Tensor, squared_norms: Tensor) -> Tensor:
    """`hessian_norms`, for clipping: at least `ROUNDING` c ||x||^2.

    Solvers compute a record's curvature to a rounding error of about c eps ||x||^2. Where one class
    has nearly all the probability, the curvature itself is smaller than that, and with a long x the
    error would pass any bound on the norm. So would what is lost where squares underflow. A record
    moves the errors of all others too, by the vector that curvature is multiplied with, or where
    products of single classes cancel: so the floor is 10^8 times eps, in float64, where the errors
    of 10^5 records are small beside the share of one.
    """
    floor = ROUNDING[probabilities.dtype] * probabilities.shape[-2] * squared_norms
    return torch.maximum(hessian_norms(probabilities, squared_norms), floor)


def curvature_product(
    features: Tensor, probabilities: Tensor | None, shares: Tensor
) -> Callable[[Tensor], Tensor]:
    """[S, B, c, q] -> H of it, written into the same memory every time; without probabilities
    X^T diag(w) X of every class.

    Args:
      features: [B, n, q] X.
      probabilities: [S, B, c, n] P.
      shares: [S, B, n] w.
    """
    weights = shares.unsqueeze(-2)
    if probabilities is None:
        return lambda direction: shared_product(
            shared_product(direction, features.mT).mul_(weights), features
        )
    weighted = probabilities * weights
    fitted, turned = torch.empty_like(weighted), torch.empty_like(weighted)
    applied = weighted.new_empty(*weighted.shape[:-1], features.shape[-1])

    def apply(direction: Tensor) -> Tensor:
        """w P (Z - sum(P Z)), the same as w (P Z - P sum(P Z)), between two products with X."""
        shared_product(direction, features.mT, fitted)
        torch.mul(fitted, probabilities, out=turned)
        fitted.sub_(turned.sum(dim=-2, keepdim=True)).mul_(weighted)
        return shared_product(fitted, features, applied)

    return apply


def largest_eigenvalue(apply: Callable[[Tensor], Tensor], like: Tensor) -> Tensor:
    """[S, B] the largest eigenvalue of a positive semidefinite A of every pair, from below, by
    `LANCZOS_STEPS` steps of Lanczos; NaN where A is not finite.

    The largest eigenvalue of the tridiagonal matrix is the largest Rayleigh quotient in the Krylov
    space of the first vector, which is the same for every pair; that rounding makes later vectors
    lose their orthogonality only repeats it.

    Args:
      apply: [S, B, c, q] -> A of it; may write its result into the same memory every time.
      like: [S, B, c, q].
    """
    start = np.random.default_rng(0).standard_normal(like.shape[2:])
    current = on_device(start / np.linalg.norm(start), like.device, like.dtype).expand_as(like)
    before, length = torch.zeros_like(like), torch.zeros_like(like[..., :1, :1])
    diagonal, beside = [], []
    for _ in range(min(LANCZOS_STEPS, start.size)):
        rest = apply(current)
        along = _inner(current, rest)
        diagonal.append(along[..., 0, 0])
        rest.addcmul_(along, current, value=-1).addcmul_(length, before, value=-1)
        length = _inner(rest, rest).sqrt()
        beside.append(length[..., 0, 0])
        # zeros where the space is exhausted
        before, current = current, rest * torch.where(length > 0, 1 / length, 0.0)
    matrix = torch.diag_embed(torch.stack(diagonal, dim=-1))
    matrix += torch.diag_embed(torch.stack(beside, dim=-1)[..., :-1], -1)  # eigvalsh reads it
    usable = torch.isfinite(matrix).all(dim=(-2, -1))  # it would raise, and end a run by its data
    values = torch.linalg.eigvalsh(torch.where(usable[..., None, None], matrix, 0.0))
    return torch.where(usable, values[..., -1], torch.nan)


def conjugate_gradients(apply: Callable[[Tensor], Tensor], right: Tensor) -> Tensor:
    """A^-1 right for a positive definite A of every pair, started at zero.

    A pair stops when its residual (as updated) is at most `TOLERANCE` times the right side, and
    stays as it is from then on; what it gets does not depend on the others. After 2 d steps it
    stops wherever it is: rounding keeps it from the tolerance.

    Args:
      apply: [..., c, q] -> A of it; may write its result into the same memory every time.
      right: [..., c, q].

    Returns:
      [..., c, q]; NaN where the right side is not finite.
    """
    solution, residual, direction = torch.zeros_like(right), right.clone(), right.clone()
    squared = _inner(residual, residual)
    goal = squared * TOLERANCE[right.dtype] ** 2
    often = ASKED.get(right.device.type, SELDOM)
    for step in range(2 * right.shape[-2] * right.shape[-1]):
        active = squared > goal
        if step % often == 0 and not host_numbers(active.any()):
            break
        applied = apply(direction)
        pace = torch.where(active, squared / _inner(direction, applied), 0.0)
        solution.addcmul_(pace, direction)
        residual.addcmul_(pace, applied, value=-1)
        fresh = torch.where(active, _inner(residual, residual), squared)
        direction.mul_(torch.where(active, fresh / squared, 0.0)).add_(residual)
        squared = fresh
    return solution.add_(0.0 * goal)  # NaN where the right side is not finite


def _inner(one: Tensor, other: Tensor) -> Tensor:
    """[..., 1, 1] inner products of [..., c, q]; summed in two steps, whose order does not depend
    on the number of pairs.
    """
    return (one * other).sum(dim=-1).sum(dim=-1)[..., None, None]


def hessian_by_cholesky(
    features: Tensor, probabilities: Tensor, shares: Tensor, right: Tensor, damping: Tensor
) -> Tensor:
    """(H + damping I)^-1 right of one run by Cholesky factorisations, one matrix [c q, c q] to a
    pair.

    H is made as X^T diag(w p_a) X in the diagonal tile of every class a, minus G^T G, where record
    j's row of G is sqrt(w_j) p_j (x) x_j.

    Args:
      features: [B, n, q] X.
      probabilities: [B, c, n] P.
      shares: [B, n] w.
      right: [B, c, q].
      damping: a number.

    Returns:
      [B, c, q]; NaN where rounding makes the matrix indefinite, or it is not finite.
    """
    pairs, classes, _ = probabilities.shape
    size = features.shape[-1]
    roots = (probabilities * shares.sqrt().unsqueeze(1)).mT
    rows = (roots.unsqueeze(3) * features.unsqueeze(2)).flatten(2)  # G [B, n, c q]
    matrix = product(rows.mT, rows).neg_()
    for a in range(classes):
        tile = slice(a * size, (a + 1) * size)
        weights = (probabilities[:, a] * shares).unsqueeze(-1)
        matrix[:, tile, tile] += product((features * weights).mT, features)
    matrix.diagonal(dim1=1, dim2=2).add_(damping)
    with one_thread():
        factor, failed = torch.linalg.cholesky_ex(matrix)
        solved = torch.cholesky_solve(right.reshape(pairs, -1, 1), factor)
    return solved.masked_fill_((failed > 0)[:, None, None], torch.nan).view(right.shape)


def packed(matrices: Tensor, size: int) -> Tensor:
    """[..., p (p + 1) / 2] upper triangles, row by row, of the leading p x p parts of matrices
    [..., q, q].
    """
    indices = _triangle(size, matrices.shape[-1], matrices.device)
    return matrices.flatten(-2).index_select(-1, indices)


@cache
def _triangle(size: int, width: int, device: torch.device) -> Tensor:
    """[p (p + 1) / 2] where those entries lie; finding it takes longer than taking them."""
    rows, columns = torch.triu_indices(size, size, device=device)
    return rows * width + columns


def unpacked(triangles: Tensor, size: int) -> Tensor:
    """[..., p, p] the symmetric matrices with these upper triangles [..., p (p + 1) / 2]."""
    rows, columns = torch.triu_indices(size, size, device=triangles.device)
    matrices = triangles.new_empty(*triangles.shape[:-1], size, size)
    matrices[..., rows, columns] = triangles
    matrices[..., columns, rows] = triangles
    return matrices


def damped_inverse(matrices: Tensor, damping: Tensor, floor: bool) -> Tensor:
    """(A + gamma I)^-1 of symmetric matrices, in float64.

    Args:
      matrices: [R, p, p] A; noise may have made them indefinite.
      damping: [R] gamma.
      floor: eigenvalues of A + gamma I below gamma count as gamma.

    Returns:
      [R, p, p] in the matrices' type; NaN where A is not finite.
    """
    result = torch.empty_like(matrices)

    def invert(one: Tensor, gamma: Tensor, out: Tensor) -> None:
        usable = torch.isfinite(one).all()
        values, vectors = torch.linalg.eigh(torch.where(usable, one, 0.0))
        shifted = (values.clamp(min=0.0) if floor else values) + gamma
        out.copy_(torch.where(usable, (vectors / shifted) @ vectors.mT, torch.nan))

    runs = zip(matrices.double(), damping.double(), result, strict=True)
    one_thread_each(invert, runs, None if matrices.is_cpu else 1)
    return result


def precondition(values: Tensor, matrices: Tensor, width: int) -> Tensor:
    """P v for every part of length p of v, at most `PRECONDITIONED` parts to a product.

    Args:
      values: [R, ..., d] plain values, d a multiple of p = `width`.
      matrices: [R, p, p] symmetric P.
    """
    rows, matrices = values.reshape(len(values), -1, width), matrices.to(values.dtype)
    result = torch.empty_like(rows)
    # each by itself: else a BLAS may round otherwise
    jobs = [
        (own[None, part], matrix[None], out[None, part])
        for own, matrix, out in zip(rows, matrices, result, strict=True)
        for part in slices(len(own), PRECONDITIONED)
    ]
    one_thread_each(product, jobs, None if values.is_cpu else 1)
    return result.view(values.shape)


def covariance_gram(features: Tensor, roots: Tensor) -> Tensor:
    """G = K = X^T diag(w) X or, where n < q, the smaller X_w X_w^T.

    Args:
      features: [B, n, q] X.
      roots: [B, n] sqrt(w); X_w has the rows sqrt(w_j) x_j.

    Returns:
      [B, min(n, q), min(n, q)].
    """
    rows = features * roots.unsqueeze(-1)
    if features.shape[1] < features.shape[2]:
        return product(rows, rows.mT)
    return product(rows.mT, rows)


def covariance_inverse(gram: Tensor, damping: float | Tensor) -> Tensor:
    """What `covariance_solve` needs of K: (damping I + G)^-1 [B, k, k] for a positive damping; NaN
    where the matrix is not positive definite.
    """
    result = torch.empty_like(gram)
    unit = torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)

    def invert(first: int, stop: int) -> None:
        damped = gram[first:stop].clone()
        damped.diagonal(dim1=1, dim2=2).add_(damping)
        factor, failed = torch.linalg.cholesky_ex(damped)
        inverse = torch.linalg.solve_triangular(factor, unit.expand_as(damped), upper=False)
        inverse.masked_fill_((failed > 0)[:, None, None], torch.nan)
        product(inverse.mT, inverse, result[first:stop])

    threads = torch.get_num_threads() if gram.is_cpu else 1
    one_thread_each(invert, even_parts(len(gram), threads), threads)
    return result


def covariance_solve(
    features: Tensor,
    factors: Sequence[tuple[Tensor, Tensor]],
    right: Tensor,
    damping: Tensor,
) -> Tensor:
    """(K + damping I)^-1 for every class; by Woodbury, (g - X_w^T (damping I + X_w X_w^T)^-1 X_w g)
    / damping, where n < q.

    Args:
      features: as for `covariance_gram`, and all else, of the right sides' type.
      factors: of each of the S runs, its roots and what it gave.
      right: [S, B, c, q].
      damping: [S, 1, 1, 1].

    Returns:
      [S, B, c, q].
    """
    woodbury = features.shape[1] < features.shape[2]
    solved = torch.empty_like(right, memory_format=torch.contiguous_format)
    for own, (roots, inverse), out in zip(right, factors, solved, strict=True):
        if not woodbury:
            product(own, inverse, out)
            continue
        inside = product(own, features.mT).mul_(roots.unsqueeze(1))
        inside = product(inside, inverse).mul_(roots.unsqueeze(1))
        product(inside, features, out.copy_(own), add=-1.0)
    return solved.div_(damping) if woodbury else solved
