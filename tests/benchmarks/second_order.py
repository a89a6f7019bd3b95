"""Workload E: the damped solves of DP-FedNew for a softmax layer, with per-record clipping of the
curvature.

500 clients with 120 records. A round solves (H_i + damping I) y_i = g_i for every client, where H_i
is the mean of its records' Hessians (64 -> 10, anew every round), or of their covariances x x^T for
every class (2048 -> 10, the same in all rounds), each scaled to a Frobenius norm of at most C.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor
from torch.func import hessian, vmap
from torch.nn import functional

from dpfl_cli.models.curvature import Curvature
from dpfl_cli.models.dense import DTYPES
from dpfl_cli.models.softmax import SoftmaxRegression
from dpfl_cli.privacy.client_values import opened
from tests.benchmarks.harness import Case, Contender, Workload
from tests.benchmarks.record_level import softmax_federation, softmax_objective
from tests.padding import padded

CLIENTS, RECORDS, NARROW, WIDE, CLASSES = 500, 120, 64, 2048, 10
DAMPING, CLIP = 1.1, 0.1
LOOP_CLIENTS, VMAP_CLIENTS, DENSE_CLIENTS = 1, 2, 3  # the references' parts of a round
STACK = 4  # records whose Hessians vmap holds at once; more are slower


def cases() -> Iterator[Case]:
    narrow, wide = (f"solve {width}x10, 500 clients x 120 records" for width in (NARROW, WIDE))
    title = f"Hessian {narrow}, conjugate gradients in float64"
    yield Case("E", title, partial(hessian_solve, "float64"), floor=4000)
    title = f"covariance {wide}, float32"
    yield Case("E", title, partial(covariance_solve, "float32"), floor=200)


def hessian_solve(precision: str, device: str) -> Workload:
    federation = softmax_federation(CLIENTS, RECORDS, NARROW, CLASSES)
    objective = softmax_objective(federation, device, solver="cg", solver_precision=precision)
    features, labels, _ = (torch.from_numpy(part) for part in padded(federation))
    features, (values, right) = features.to(DTYPES[precision]), operands(objective)
    own = values[0].to("cpu", features.dtype), right[0].to("cpu", features.dtype)
    return Workload(
        engine=Contender(lambda: engine(objective, values, right, "hessian")),
        references={
            "loop": Contender(
                lambda: record_by_record(features, labels, *own, LOOP_CLIENTS),
                LOOP_CLIENTS / CLIENTS,
            ),
            "vmap": Contender(
                lambda: per_record_vmap(features, labels, *own, VMAP_CLIENTS),
                VMAP_CLIENTS / CLIENTS,
            ),
        },
        dtype=features.dtype,
    )


def covariance_solve(precision: str, device: str) -> Workload:
    federation = softmax_federation(CLIENTS, RECORDS, WIDE, CLASSES)
    objective = softmax_objective(federation, device, solver_precision=precision)
    features = (
        torch.from_numpy(federation.dataset.train.features)
        .unflatten(0, (CLIENTS, RECORDS))
        .to(DTYPES[precision])
    )
    values, right = operands(objective)
    own = right[0].to("cpu", features.dtype)
    return Workload(
        engine=Contender(lambda: engine(objective, values, right, "covariance")),
        references={
            "loop": Contender(lambda: dense(features, own, DENSE_CLIENTS), DENSE_CLIENTS / CLIENTS),
            "vmap": Contender(
                lambda: dense_stacked(features, own, DENSE_CLIENTS), DENSE_CLIENTS / CLIENTS
            ),
        },
        # two products with X, one with the factored n x n matrix
        flops=CLIENTS * 2.0 * CLASSES * RECORDS * (2 * WIDE + RECORDS),
        dtype=features.dtype,
    )


def operands(objective: SoftmaxRegression) -> tuple[Tensor, Tensor]:
    """[1, M, d] parameters and right sides."""
    generator = torch.Generator().manual_seed(0)
    shape = (1, objective.clients, objective.dimension)
    return tuple(
        scale * torch.randn(shape, generator=generator).to(objective.device) for scale in (0.1, 1.0)
    )


def engine(
    objective: SoftmaxRegression, values: Tensor, right: Tensor, curvature: Curvature
) -> Tensor:
    """[M, d] by the objective."""
    damping, clip_norm = (
        torch.tensor([number], device=values.device) for number in (DAMPING, CLIP)
    )
    return opened(objective.damped_solve(values, right, damping, curvature, clip_norm))[0]


def cross_entropy(values: Tensor, record: Tensor, label: Tensor) -> Tensor:
    return functional.cross_entropy(values.view(-1, len(record)) @ record, label)


def record_by_record(
    features: Tensor, labels: Tensor, values: Tensor, right: Tensor, clients: int
) -> Tensor:
    """[clients, d] with one torch.func.hessian after another; features [M, n, q], labels [M, n],
    values and right [M, d].
    """
    found = []
    for client in range(clients):
        total = DAMPING * torch.eye(values.shape[-1], dtype=values.dtype)
        for record, label in zip(features[client], labels[client], strict=True):
            matrix = hessian(cross_entropy)(values[client], record, label)
            total += matrix * (CLIP / matrix.norm()).clamp(max=1.0) / len(features[client])
        found.append(torch.linalg.solve(total, right[client]))
    return torch.stack(found)


def per_record_vmap(
    features: Tensor, labels: Tensor, values: Tensor, right: Tensor, clients: int
) -> Tensor:
    """As `record_by_record`, with the Hessians of `STACK` records at once."""
    each = vmap(hessian(cross_entropy), in_dims=(None, 0, 0))
    found = []
    for client in range(clients):
        total = DAMPING * torch.eye(values.shape[-1], dtype=values.dtype)
        for records, classes in zip(
            features[client].split(STACK), labels[client].split(STACK), strict=True
        ):
            matrices = each(values[client], records, classes)
            scale = (CLIP / matrices.flatten(1).norm(dim=1)).clamp(max=1.0) / len(features[client])
            total += torch.einsum("jab,j->ab", matrices, scale)
        found.append(torch.linalg.solve(total, right[client]))
    return torch.stack(found)


def dense(features: Tensor, right: Tensor, clients: int) -> Tensor:
    """[clients, d] with a q x q matrix of every client, made and solved, client by client."""
    found = []
    for client in range(clients):
        found.append(dense_stacked(features[client : client + 1], right[client : client + 1], 1))
    return torch.cat(found)


def dense_stacked(features: Tensor, right: Tensor, clients: int) -> Tensor:
    """As `dense`, the matrices of all these clients at once."""
    rows = features[:clients]
    shares = (CLIP / rows.square().sum(dim=-1, keepdim=True)).clamp(max=1.0) / rows.shape[1]
    matrices = (rows * shares).mT @ rows + DAMPING * torch.eye(rows.shape[-1], dtype=rows.dtype)
    sides = right[:clients].unflatten(-1, (-1, rows.shape[-1])).mT  # [clients, q, c]
    return torch.cholesky_solve(sides, torch.linalg.cholesky(matrices)).mT.flatten(1)
