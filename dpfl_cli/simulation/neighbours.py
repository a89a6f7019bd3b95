"""Neighbouring federations: the same but for the data of one client, or for one of its records."""

from collections.abc import Iterator
from dataclasses import replace
from math import inf, nan

import numpy as np

from dpfl_cli.data.federation import Federation, Partition, Records

CLIENT = 0  # whose data change
Data = tuple[np.ndarray, np.ndarray]  # features [n, ...], targets [n, ...]


def held(federation: Federation) -> Data:
    """The client's records, copied."""
    chosen, train = federation.partition.lists()[CLIENT], federation.dataset.train
    return train.features[chosen], train.targets[chosen]


def with_records(federation: Federation, records: Data) -> Federation:
    """The federation where the client holds other records, of any number. They take the places of
    its own, which are gone: code that looks at the whole pool would find them there.
    """
    train, indices = federation.dataset.train, federation.partition.lists()
    its = np.setdiff1d(  # and nobody else's
        indices[CLIENT], np.concatenate([[], *indices[CLIENT + 1 :]])
    )
    pools = []
    for old, new in zip((train.features, train.targets), records, strict=True):
        whole = np.concatenate([old, new[len(its) :].astype(old.dtype)])
        whole[its] = 0
        whole[its[: len(new)]] = new[: len(its)]
        pools.append(whole)
    both = Records(*pools)
    indices[CLIENT] = np.concatenate([its[: len(records[1])], np.arange(len(train), len(both))])
    dataset = replace(federation.dataset, train=both)
    return Federation(dataset, Partition.from_lists(indices))


def with_constant_features(federation: Federation) -> Federation:
    """The federation whose records differ in their targets only."""
    train = federation.dataset.train
    records = Records(np.ones_like(train.features), train.targets)
    return Federation(replace(federation.dataset, train=records), federation.partition)


def hostile(federation: Federation, own: Data, generator: np.random.Generator) -> Iterator[Data]:
    """Records to stand in place of the client's `own`: duplicates of one of another client's,
    relabelled, sign-flipped, large, huge, tiny, zero, not finite, random.
    """
    features, targets = own
    train = federation.dataset.train
    lists = federation.partition.lists()
    others = np.concatenate([*lists[CLIENT + 1 :], [0]])  # 0 if there are none
    copied = np.full(len(targets), others[0], int)
    yield train.features[copied], train.targets[copied]
    drawn = generator.integers(len(train), size=len(targets))
    yield features, train.targets[drawn]
    if not np.issubdtype(features.dtype, np.floating):
        yield train.features[drawn], targets
        return
    real = np.issubdtype(targets.dtype, np.floating)
    for scale in (-1.0, 1e3, 1e30 if features.dtype == np.float32 else 1e200, 1e-12, 0.0, inf, nan):
        with np.errstate(invalid="ignore", over="ignore"):  # inf times 0
            scaled = scale * features, scale * targets if real else targets
        yield scaled[0], targets
        if real:
            yield features, scaled[1]
    for scale in (1.0, 10.0):
        noise = scale * generator.standard_normal(features.shape)
        if real:
            targets = scale * generator.standard_normal(targets.shape)
        yield noise, targets
