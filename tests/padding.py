"""A federation as plain arrays, for references that loop over clients."""

from __future__ import annotations

import numpy as np

from dpfl_cli.data.federation import Federation


def own_records(federation: Federation, client: int) -> tuple[np.ndarray, np.ndarray]:
    """features [n, ...] and targets [n] of a client's records."""
    partition, train = federation.partition, federation.dataset.train
    rows = partition.indices[slice(*partition.offsets[client : client + 2])]
    return train.features[rows], train.targets[rows]


def padded(federation: Federation) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """features [M, n_max, ...], targets [M, n_max], counts [M]; rows past a client's count are
    zero.
    """
    partition, train = federation.partition, federation.dataset.train
    counts = partition.counts
    rows = np.repeat(np.arange(federation.clients), counts)
    columns = np.arange(len(partition.indices)) - np.repeat(partition.offsets[:-1], counts)
    shape = federation.clients, max(1, int(counts.max(initial=0)))
    features = np.zeros((*shape, *train.features.shape[1:]), train.features.dtype)
    targets = np.zeros(shape, train.targets.dtype)
    features[rows, columns] = train.features[partition.indices]
    targets[rows, columns] = train.targets[partition.indices]
    return features, targets, counts
