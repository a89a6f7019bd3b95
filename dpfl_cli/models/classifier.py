"""What classifiers on (run, client) pairs share: precisions, cross-entropy, and test records in products of one size."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from dpfl_cli.data.federation import Federation, Records

DTYPES = {"float32": torch.float32, "float64": torch.float64}
EVALUATION_ROWS = 500  # test records in one product

Split = tuple[Tensor, Tensor, Tensor]  # features, labels and weights: see `evaluation_splits`


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """[..., n] log sum_c exp(z_c) - z_t from logits [..., c, n] and classes t, labels [B, n]."""
    places = labels.unsqueeze(-2).expand(*logits.shape[:-2], 1, -1)
    return torch.logsumexp(logits, dim=-2) - logits.gather(-2, places).squeeze(-2)


def evaluation_splits(federations: Sequence[Federation], rows: Callable[[Records, np.ndarray], Tensor]) -> list[Split | None]:
    """The federations' test splits, None where there is none; federations that share a split share its rows.

    Args:
      rows: (records, numbers [k]) -> features [k, q] of those records, on the device.

    Returns:
      features [k, EVALUATION_ROWS, q], labels and weights 1 / N [k, EVALUATION_ROWS], filled up with rows of weight 0.
    """
    tests = [federation.dataset.test for federation in federations]
    splits = {key: _split(test, rows) for key, test in {id(test): test for test in tests if test is not None}.items()}
    return [splits.get(id(test)) for test in tests]


def _split(test: Records, rows: Callable[[Records, np.ndarray], Tensor]) -> Split:
    missing = -len(test) % EVALUATION_ROWS
    features = functional.pad(rows(test, np.arange(len(test))), (0, 0, 0, missing))
    labels = functional.pad(torch.from_numpy(test.targets.astype(np.int64)), (0, missing)).to(features.device)
    weights = functional.pad(features.new_full((len(test),), 1.0 / len(test)), (0, missing))
    parts = (-1, EVALUATION_ROWS)
    return features.unflatten(0, parts), labels.unflatten(0, parts), weights.unflatten(0, parts)
