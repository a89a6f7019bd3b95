"""The federation: padded arrays hold each client's records, buckets hold each client once and waste
little.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dpfl_cli.data.federation import Dataset, DatasetInfo, Federation, Partition, Records
from tests.padding import padded


def federation(counts: list[int], seed: int = 0) -> Federation:
    """Clients with the given numbers of records, drawn without order from a pool somewhat
    larger.
    """
    rng = np.random.default_rng(seed)
    total = sum(counts) + 3
    records = Records(
        rng.standard_normal((total, 2, 3)).astype(np.float32), rng.integers(0, 5, total)
    )
    info = DatasetInfo("made", "synthetic", "", (2, 3), 5, total, None)
    order = rng.permutation(total)[: sum(counts)]
    return Federation(
        Dataset(info, records, None), Partition.from_lists(np.split(order, np.cumsum(counts)[:-1]))
    )


@given(counts=st.lists(st.integers(0, 12), min_size=1, max_size=20), seed=st.integers(0, 99))
@settings(max_examples=50, deadline=None)
def test_padded_holds_each_clients_records_and_zeros(counts, seed):
    fed = federation(counts, seed)
    features, targets, found = padded(fed)
    assert found.tolist() == counts
    assert fed.clients == len(counts)
    assert features.shape == (len(counts), max(1, *counts, 1), 2, 3)
    assert features.dtype == np.float32
    assert targets.dtype == np.int64
    pool, offsets = fed.dataset.train, fed.partition.offsets
    for client, count in enumerate(counts):
        own = fed.partition.indices[offsets[client] : offsets[client + 1]]
        np.testing.assert_array_equal(features[client, :count], pool.features[own])
        np.testing.assert_array_equal(targets[client, :count], pool.targets[own])
        assert not features[client, count:].any()
        assert not targets[client, count:].any()


def check_buckets(counts: np.ndarray, groups: list[np.ndarray], waste: float) -> None:
    assert sorted(np.concatenate(groups).tolist()) == list(range(len(counts)))
    for group in groups:
        rows = len(group) * counts[group].max()
        assert rows - counts[group].sum() <= waste * rows
    empty = np.flatnonzero(counts == 0)
    assert not any(0 < np.isin(group, empty).sum() < len(group) for group in groups)


@given(
    counts=st.lists(st.integers(0, 600), min_size=1, max_size=200),
    waste=st.sampled_from([0.0, 0.05, 0.15, 0.5]),
)
@example(counts=[0, 0, 0], waste=0.15)
@example(counts=[600, 510, 509, 1, 0], waste=0.15)
@settings(max_examples=100, deadline=None)
def test_buckets_hold_every_client_once_and_keep_the_bound(counts, waste):
    fed = Federation(
        federation([1]).dataset,
        Partition(np.empty(0, np.int64), np.concatenate([[0], np.cumsum(counts)])),
    )
    check_buckets(np.array(counts), fed.buckets(waste), waste)


@pytest.mark.parametrize("seed", range(3))
def test_sizes_from_1_to_600_need_few_buckets(seed):
    counts = np.random.default_rng(seed).permutation(np.arange(1, 601))
    fed = Federation(
        federation([1]).dataset,
        Partition(np.empty(0, np.int64), np.concatenate([[0], np.cumsum(counts)])),
    )
    groups = fed.buckets()
    check_buckets(counts, groups, 0.15)
    assert len(groups) <= np.ceil(
        np.log(600) / -np.log(0.85)
    )  # one per factor of 0.85 in size, at most
    padded = sum(len(group) * counts[group].max() for group in groups)
    assert padded - counts.sum() <= 0.15 * padded
