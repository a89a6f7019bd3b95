"""Neighbouring federations: the same but for the data of one client, or for one of its records."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from dpfl_cli.data.federation import Federation, Partition, Records

Data = tuple[np.ndarray, np.ndarray]  # features [n, ...], targets [n, ...]


def held(federation: Federation, client: int) -> Data:
    """The records of a client."""
    chosen = federation.partition.indices[_segment(federation, client)]
    train = federation.dataset.train
    return train.features[chosen], train.targets[chosen]


def with_records(federation: Federation, client: int, records: Data) -> Federation:
    """The federation where a client holds other records, as many as there are."""
    train, partition = federation.dataset.train, federation.partition
    features, targets = (
        np.concatenate([old, new.astype(old.dtype)])
        for old, new in zip((train.features, train.targets), records, strict=True)
    )
    own = _segment(federation, client)
    fresh = np.arange(len(train), len(targets))
    indices = np.concatenate([partition.indices[: own.start], fresh, partition.indices[own.stop :]])
    counts = partition.counts.copy()
    counts[client] = len(fresh)
    dataset = replace(federation.dataset, train=Records(features, targets))
    return Federation(dataset, Partition.from_counts(indices, counts))


def with_first(federation: Federation, client: int, record: Data) -> Federation:
    """The federation where another record [1, ...] stands in place of a client's first."""
    own = held(federation, client)
    features, targets = (
        np.concatenate([new.astype(old.dtype), old[1:]])
        for new, old in zip(record, own, strict=True)
    )
    return with_records(federation, client, (features, targets))


def with_constant_features(federation: Federation) -> Federation:
    """The federation whose records differ in their targets only."""
    train = federation.dataset.train
    records = Records(np.ones_like(train.features), train.targets)
    return Federation(replace(federation.dataset, train=records), federation.partition)


def hostile(
    federation: Federation, client: int, own: Data, generator: np.random.Generator
) -> Iterator[tuple[str, Data]]:
    """Records to stand in place of `own`, each with what is odd about it: random, sign-flipped,
    huge, tiny, zero, not finite, duplicates of one of another client's.
    """
    features, targets = own
    train = federation.dataset.train
    others = np.delete(federation.partition.indices, _segment(federation, client))
    copied = np.full(len(targets), others[0] if len(others) else 0)
    yield "duplicate", (train.features[copied], train.targets[copied])
    drawn = generator.integers(len(train), size=len(targets))
    yield "relabelled", (features, train.targets[drawn])
    if not np.issubdtype(features.dtype, np.floating):
        yield "random", (train.features[drawn], targets)
        return
    most = 1e30 if features.dtype == np.float32 else 1e200
    for name, scale in (
        ("sign-flipped", -1.0),
        ("large", 1e3),
        ("huge", most),
        ("tiny", 1e-12),
        ("zero", 0.0),
        ("infinite", np.inf),
        ("undefined", np.nan),
    ):
        yield name, (scale * features, targets)
        if np.issubdtype(targets.dtype, np.floating):
            yield f"{name} target", (features, scale * targets)
    for scale in (1.0, 10.0):
        noise = scale * generator.standard_normal(features.shape)
        if np.issubdtype(targets.dtype, np.floating):
            targets = scale * generator.standard_normal(targets.shape)
        yield "random", (noise, targets)


def _segment(federation: Federation, client: int) -> slice:
    offsets = federation.partition.offsets
    return slice(int(offsets[client]), int(offsets[client + 1]))
