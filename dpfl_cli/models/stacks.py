"""Stacks: a batch's clients as padded tensors, and matrix products whose bits do not depend on the batch.

Runs that share a federation share its features. Clients that hold about equally many records form a bucket, padded with zeros.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from dpfl_cli.data.devices import on_device
from dpfl_cli.data.federation import Federation, Partition

RUN_BLOCK = 8  # runs that stand side by side in a matrix product, always
Index = slice | Tensor  # evenly spaced numbers as a slice, which makes a view; any others as a tensor


@dataclass(frozen=True)
class Bucket:
    """B clients of one federation that hold about equally many records, padded with zero rows to n.

    Attributes:
      clients: which of the M clients.
      features: [B, n, p].
      targets: [B, n].
      counts: [B] records per client, at least 1.
      squared_norms: [B] ||x_i||^2 of the first record.
    """

    clients: Index
    features: Tensor
    targets: Tensor
    counts: Tensor
    squared_norms: Tensor


@dataclass(frozen=True)
class Group:
    """The S runs that use one federation.

    Attributes:
      runs: which of the R runs.
    """

    runs: Index
    buckets: list[Bucket]


def groups_of(
    federations: Sequence[Federation], index: np.ndarray, dtype: torch.dtype, device: torch.device | str
) -> list[Group]:
    """One group per distinct federation of a batch, in their order.

    Args:
      index: [R] which federation each run uses.
      dtype: of features and targets.
    """
    return [
        Group(
            runs=index_of(np.flatnonzero(index == position), device),
            buckets=[bucket_of(federation, clients, dtype, device) for clients in federation.buckets() if len(clients)],
        )
        for position, federation in enumerate(federations)
    ]


def bucket_of(federation: Federation, clients: np.ndarray, dtype: torch.dtype, device: torch.device | str) -> Bucket:
    """The given clients' records, side by side."""
    if not np.array_equal(clients, np.arange(federation.clients)):
        partition = federation.partition
        starts, stops = partition.offsets[clients], partition.offsets[clients + 1]
        parts = [partition.indices[start:stop] for start, stop in zip(starts, stops, strict=True)]
        federation = Federation(federation.dataset, Partition.from_lists(parts))
    features, targets, counts = federation.padded()
    inputs = torch.as_tensor(features, dtype=dtype, device=device)
    return Bucket(
        clients=index_of(clients, device),
        features=inputs,
        targets=torch.as_tensor(targets, dtype=dtype, device=device),
        counts=torch.as_tensor(np.maximum(counts, 1), dtype=dtype, device=device),
        squared_norms=inputs[:, 0].square().sum(dim=-1),
    )


def optimum_of(federation: Federation, dtype: torch.dtype, device: torch.device | str) -> Tensor | None:
    """[d] the parameter that generated the data, where it is known."""
    optimum = federation.dataset.truth.get("optimum")
    return None if optimum is None else torch.as_tensor(optimum, dtype=dtype, device=device)


def index_of(numbers: np.ndarray, device: torch.device | str) -> Index:
    """Positions as a slice where they are evenly spaced, else as a tensor."""
    step = int(numbers[1] - numbers[0]) if len(numbers) > 1 else 1
    if len(numbers) and step > 0 and (np.diff(numbers) == step).all():
        return slice(int(numbers[0]), int(numbers[-1]) + 1, step)
    return on_device(numbers, device)


def filled(columns: Tensor) -> Tensor:
    """[..., S] columns, filled up with zeros to whole blocks of runs."""
    missing = -columns.shape[-1] % RUN_BLOCK
    return torch.nn.functional.pad(columns, (0, missing)) if missing else columns.contiguous()


def by_blocks(compute: Callable[[Tensor], Tensor], columns: Tensor) -> Tensor:
    """compute(columns [..., S]) -> [..., S], in blocks of runs of one size.

    A matrix product may round a column otherwise when it has more or fewer neighbours. With blocks of one size a run gets the
    same bits alone and in any company.
    """
    parts = [compute(part) for part in filled(columns).split(RUN_BLOCK, dim=-1)]
    return (parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1))[..., : columns.shape[-1]]


def put(result: Tensor, runs: Index, clients: Index, values: Tensor) -> None:
    """Writes values [S, B, d] to their runs and clients of result [R, M, d]."""
    if isinstance(runs, Tensor) and isinstance(clients, Tensor):
        runs = runs.unsqueeze(-1)
    result[runs, clients] = values
