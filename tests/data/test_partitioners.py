"""The partitioners: exact and terminating for any settings, determined by the seed, and of the
announced law.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

from dpfl_cli.config.component import lookup, parse_settings
from dpfl_cli.config.errors import ConfigError
from dpfl_cli.config.paths import conf_dir
from dpfl_cli.data.federation import Dataset, DatasetInfo, Partition, Records
from dpfl_cli.data.partitioners import (
    Dirichlet,
    DirichletSettings,
    DrawnSettings,
    Iid,
    IidSettings,
    Mixed,
    MixedSettings,
    Natural,
    Shards,
    ShardsSettings,
    log_gammas,
    proportions,
)
from dpfl_cli.simulation.plan import load_components


def dataset(
    labels, classes: int | None = None, natural=None, clients: int | None = None
) -> Dataset:
    """A dataset whose records are only their labels."""
    labels = np.asarray(labels)
    info = DatasetInfo("made", "synthetic", "", (1,), classes, len(labels), clients)
    return Dataset(info, Records(np.zeros((len(labels), 1)), labels), None, natural)


def balanced(records: int, classes: int) -> Dataset:
    return dataset(np.arange(records) % classes, classes)


def class_counts(partition: Partition, data: Dataset) -> np.ndarray:
    """[M, classes] records of each class at each client."""
    classes = data.info.classes
    owners = np.repeat(np.arange(partition.clients), partition.counts)
    flat = np.bincount(
        owners * classes + data.train.targets[partition.indices],
        minlength=partition.clients * classes,
    )
    return flat.reshape(partition.clients, classes)


def check(partition: Partition, clients: int, records: int, every: bool) -> None:
    """A valid partition of the pool into so many clients, of every record or of some, none
    twice.
    """
    assert partition.clients == clients
    assert partition.indices.dtype == partition.offsets.dtype == np.int64
    assert partition.offsets[0] == 0
    assert partition.offsets[-1] == len(partition.indices)
    assert (np.diff(partition.offsets) >= 0).all()
    assert len(np.unique(partition.indices)) == len(partition.indices)
    assert ((partition.indices >= 0) & (partition.indices < records)).all()
    if every:
        assert len(partition.indices) == records


def same(one: Partition, other: Partition) -> bool:
    return np.array_equal(one.indices, other.indices) and np.array_equal(one.offsets, other.offsets)


# --- for any data and settings

alphas = st.floats(-300, 300).map(lambda power: 10.0**power) | st.sampled_from(
    [5e-324, 1e-300, 1e-4, 0.3, 1.0, 1e300, 1.7e308]
)
seeds = st.integers(0, 2**63 - 1)


@st.composite
def labelled(draw) -> Dataset:
    """Records of up to 12 classes, some of which may be empty."""
    classes = draw(st.integers(1, 12))
    return dataset(draw(st.lists(st.integers(0, classes - 1), min_size=1, max_size=150)), classes)


@given(data=labelled(), alpha=alphas, seed=seeds, draw=st.data())
@settings(max_examples=150, deadline=None)
def test_clientwise_gives_each_client_its_number_of_distinct_records(data, alpha, seed, draw):
    records = len(data.train)
    clients = draw.draw(st.integers(1, records))
    each = draw.draw(st.none() | st.integers(1, records // clients))
    chosen = DirichletSettings(clients=clients, alpha=alpha, records_per_client=each)
    assert Dirichlet.clients(chosen, data.info) == clients
    found = Dirichlet.partition(chosen, data, seed)
    check(found, clients, records, every=False)
    assert (found.counts == (each or records // clients)).all()
    assert same(found, Dirichlet.partition(chosen, data, seed))


@given(data=labelled(), alpha=alphas, seed=seeds, draw=st.data())
@settings(max_examples=150, deadline=None)
def test_classwise_deals_every_record_once(data, alpha, seed, draw):
    clients = draw.draw(st.integers(1, len(data.train)))
    chosen = DirichletSettings(clients=clients, alpha=alpha, kind="classwise")
    found = Dirichlet.partition(chosen, data, seed)
    check(found, clients, len(data.train), every=True)
    assert same(found, Dirichlet.partition(chosen, data, seed))


@given(data=labelled(), seed=seeds, draw=st.data())
@settings(max_examples=80, deadline=None)
def test_iid_deals_evenly(data, seed, draw):
    records = len(data.train)
    clients = draw.draw(st.integers(1, records))
    each = draw.draw(st.none() | st.integers(1, records // clients))
    chosen = IidSettings(clients=clients, records_per_client=each)
    found = Iid.partition(chosen, data, seed)
    check(found, clients, records, every=each is None)
    assert found.counts.sum() == Iid.records(chosen, data.info)
    assert np.ptp(found.counts) <= (1 if each is None else 0)
    assert each is None or (found.counts == each).all()
    assert same(found, Iid.partition(chosen, data, seed))


@given(data=labelled(), seed=seeds, draw=st.data())
@settings(max_examples=80, deadline=None)
def test_shards_deal_every_record_once_in_few_runs_of_classes(data, seed, draw):
    records = len(data.train)
    clients = draw.draw(st.integers(1, records))
    per_client = draw.draw(st.integers(1, records // clients))
    chosen = ShardsSettings(clients=clients, shards_per_client=per_client)
    found = Shards.partition(chosen, data, seed)
    check(found, clients, records, every=True)
    assert np.ptp(found.counts) <= per_client
    assert same(found, Shards.partition(chosen, data, seed))
    # A shard that holds b class borders has b + 1 classes, and there are fewer borders than classes
    # in all.
    kinds = (class_counts(found, data) > 0).sum()
    assert kinds <= clients * per_client + data.info.classes - 1


@given(data=labelled(), seed=seeds, draw=st.data())
@settings(max_examples=100, deadline=None)
def test_mixed_adds_records_of_the_own_class_to_an_even_share(data, seed, draw):
    classes, sizes = data.info.classes, np.bincount(data.train.targets, minlength=data.info.classes)
    chosen = MixedSettings(
        uniform_records=draw.draw(st.integers(0, len(data.train))),
        own_class_records=draw.draw(st.integers(1, 5)),
    )
    try:
        found = Mixed.partition(chosen, data, seed)
    except ConfigError:  # the smallest class loses no more than the whole draw
        assert sizes.min() - chosen.uniform_records < chosen.own_class_records
        return
    check(found, classes, len(data.train), every=False)
    each = found.counts - chosen.own_class_records
    assert each.sum() == chosen.uniform_records
    assert found.counts.sum() == Mixed.records(chosen, data.info)
    assert np.ptp(each) <= 1
    for client, part in enumerate(np.split(found.indices, found.offsets[1:-1])):
        assert (data.train.targets[part[each[client] :]] == client).all()
    assert same(found, Mixed.partition(chosen, data, seed))


@given(natural=st.lists(st.integers(0, 9), min_size=1, max_size=60), seed=seeds, draw=st.data())
@settings(max_examples=80, deadline=None)
def test_natural_follows_the_data(natural, seed, draw):
    owners = np.array(natural)
    data = dataset(np.zeros(len(natural)), None, owners, clients=10)
    whole = Natural.partition(DrawnSettings(), data, seed)
    check(whole, 10, len(natural), every=True)
    parts = np.split(whole.indices, whole.offsets[1:-1])
    for client, part in enumerate(parts):
        assert part.tolist() == np.flatnonzero(owners == client).tolist()
    some = draw.draw(st.integers(1, 10))
    found = Natural.partition(DrawnSettings(clients=some), data, seed)
    check(found, some, len(natural), every=False)
    held = [part.tolist() for part in parts]
    assert all(part.tolist() in held for part in np.split(found.indices, found.offsets[1:-1]))
    assert same(found, Natural.partition(DrawnSettings(clients=some), data, seed))


@pytest.mark.parametrize("made", [Dirichlet, Shards, Mixed])
def test_deals_by_class_say_so(made):
    """One record of another class moves the borders of what many clients hold."""
    assert "classes of all records" in made.not_covered[0]


@pytest.mark.parametrize(
    ("kind", "chosen"),
    [
        (Iid, IidSettings(clients=20)),
        (Dirichlet, DirichletSettings(clients=20)),
        (Dirichlet, DirichletSettings(clients=20, kind="classwise")),
        (Shards, ShardsSettings(clients=20)),
        (Mixed, MixedSettings(uniform_records=100, own_class_records=20)),
    ],
)
def test_another_seed_is_another_partition(kind, chosen):
    data = balanced(400, 10)
    assert not same(kind.partition(chosen, data, 0), kind.partition(chosen, data, 1))


# --- the laws


def test_gamma_logs_have_the_moments_of_the_dirichlet():
    """Mean 1/K and variance (1/K)(1 - 1/K)/(K alpha + 1), on both sides of alpha = 1 where the
    sampler changes.
    """
    rng = np.random.default_rng(0)
    for alpha in (0.05, 0.3, 1.0, 1.5, 20.0):
        logs = log_gammas(rng, alpha, (8_000, 5))
        first = np.array([proportions(row, alpha)[0] for row in logs])
        variance = 0.2 * 0.8 / (5 * alpha + 1)
        assert abs(first.mean() - 0.2) < 4.5 * np.sqrt(variance / 8_000)
        spread = (first - 0.2) ** 2
        assert abs(spread.mean() - variance) < 4.5 * spread.std() / np.sqrt(8_000)


@pytest.mark.parametrize("alpha", [5e-324, 1e-300, 1e-10])
def test_a_subset_of_a_tiny_alpha_is_one_hot_at_its_own_largest(alpha):
    logs = log_gammas(np.random.default_rng(0), alpha, (200, 6))
    largest = [proportions(row, alpha).argmax() for row in logs]
    assert set(largest) == set(range(6))
    for row, first in zip(logs, largest, strict=True):
        rest = np.delete(row, first)
        shares = proportions(rest, alpha)
        assert sorted(shares) == [0, 0, 0, 0, 1]
        assert rest.argmax() == shares.argmax()


def literal_hsu(
    sizes: list[int], clients: int, each: int, alpha: float, rng: np.random.Generator
) -> np.ndarray:
    """[M, K] class counts by the definition: one record after the other, renormalising over what is
    left.
    """
    left = np.array(sizes)
    taken = np.zeros((clients, len(sizes)), int)
    for client in range(clients):
        q = rng.dirichlet(np.full(len(sizes), alpha))
        for _ in range(each):
            weights = np.where(left > 0, q, 0.0)
            label = rng.choice(len(sizes), p=weights / weights.sum())
            left[label] -= 1
            taken[client, label] += 1
    return taken


def test_clientwise_has_the_law_of_drawing_one_by_one_when_classes_run_out():
    sizes, clients, each, alpha, draws = [2, 4, 9], 3, 5, 0.7, 2500
    data = dataset(np.repeat(np.arange(3), sizes), 3)
    chosen = DirichletSettings(clients=clients, alpha=alpha, records_per_client=each)
    rng = np.random.default_rng(1)
    ours = np.array(
        [class_counts(Dirichlet.partition(chosen, data, seed), data) for seed in range(draws)]
    )
    literal = np.array([literal_hsu(sizes, clients, each, alpha, rng) for _ in range(draws)])
    for power in (1, 2):
        a, b = ours.astype(float) ** power, literal.astype(float) ** power
        error = np.sqrt((a.var(0) + b.var(0)) / draws)
        assert (np.abs(a.mean(0) - b.mean(0)) < 4.5 * error + 1e-12).all()


def test_clientwise_takes_all_records_of_a_class_alike():
    data = balanced(60, 3)
    chosen = DirichletSettings(clients=4, alpha=1.0, records_per_client=5)
    used = sum(
        np.bincount(Dirichlet.partition(chosen, data, seed).indices, minlength=60)
        for seed in range(1500)
    )
    assert np.abs(used - 500).max() < 4.5 * np.sqrt(1500 * (1 / 3) * (2 / 3))


@pytest.mark.parametrize(("kind", "each"), [("clientwise", 200), ("classwise", None)])
def test_alpha_decides_the_skew(kind, each):
    data = balanced(6000, 10)
    entropy = []
    for alpha in (1e-300, 0.1, 1.0, 10.0, 1e300):
        chosen = DirichletSettings(clients=20, alpha=alpha, kind=kind, records_per_client=each)
        found = Dirichlet.partition(chosen, data, 0)
        counts = class_counts(found, data)[found.counts > 0]
        shares = counts / counts.sum(1, keepdims=True)
        entropy.append(float(-(shares * np.log(np.maximum(shares, 1e-300))).sum(1).mean()))
    assert entropy == sorted(entropy)
    # Even shares at the end: ln 10, less 9 / (2 n) for n = 200 records drawn (clientwise).
    assert abs(entropy[-1] - (np.log(10) - (9 / 400 if each else 0))) < 0.01


def test_a_vanishing_alpha_gives_a_class_to_one_client_and_a_client_one_class():
    data = balanced(6000, 10)
    classwise = Dirichlet.partition(
        DirichletSettings(clients=20, alpha=1e-300, kind="classwise"), data, 0
    )
    assert ((class_counts(classwise, data) > 0).sum(0) == 1).all()
    clientwise = Dirichlet.partition(
        DirichletSettings(clients=20, alpha=1e-300, records_per_client=200), data, 0
    )
    # A client turns to a further class only when one runs out, which happens at most once per
    # class.
    assert (class_counts(clientwise, data) > 0).sum() <= 20 + 10


def test_classwise_rounds_shares_without_bias_and_by_less_than_one():
    """At a huge alpha each client's share of a class of 15 is 15/7: it gets 2 or 3, and 15/7 on
    average.
    """
    data = dataset(np.zeros(15, int), 1)
    chosen = DirichletSettings(clients=7, alpha=1e300, kind="classwise")
    counts = np.array([Dirichlet.partition(chosen, data, seed).counts for seed in range(3000)])
    assert set(np.unique(counts)) == {2, 3}
    assert (np.abs(counts.mean(0) - 15 / 7) < 4.5 * np.sqrt((1 / 7) * (6 / 7) / 3000)).all()


def test_shards_are_pure_when_borders_fit():
    data = balanced(600, 10)
    found = Shards.partition(ShardsSettings(clients=10, shards_per_client=2), data, 0)
    counts = class_counts(found, data)
    assert ((counts > 0).sum(1) <= 2).all()
    assert set(np.unique(counts)) <= {0, 30, 60}


def test_mixed_draws_its_shares_from_all_records_alike():
    data = balanced(60, 3)
    chosen = MixedSettings(uniform_records=12, own_class_records=8)
    used = np.zeros((3, 60))
    for seed in range(1500):
        found = Mixed.partition(chosen, data, seed)
        for client in range(3):
            used[client, found.indices[found.offsets[client] :][:4]] += 1
    assert np.abs(used - 100).max() < 4.5 * np.sqrt(1500 * (1 / 15) * (14 / 15))


def test_mixed_deals_the_papers_numbers():
    data = balanced(60_000, 10)
    found = Mixed.partition(MixedSettings(), data, 0)
    check(found, 10, 60_000, every=False)
    assert (found.counts == 3850).all()
    assert (np.diag(class_counts(found, data)) >= 2850).all()


# --- refusals

INFO = DatasetInfo("made", "synthetic", "", (1,), 3, 100, None)
REGRESSION = DatasetInfo("lines", "synthetic", "", (1,), None, 100, 50)


@pytest.mark.parametrize(
    ("kind", "chosen", "info", "says"),
    [
        (
            Iid,
            IidSettings(),
            INFO,
            "partitioner.clients: dataset=made comes without clients; write a number",
        ),
        (
            Iid,
            IidSettings(clients=101),
            INFO,
            "partitioner.clients=101: more clients than records: dataset=made has 100; lower it",
        ),
        (
            Iid,
            IidSettings(clients=10, records_per_client=11),
            INFO,
            "10 clients x 11 = 110 records, and dataset=made has 100",
        ),
        (
            Dirichlet,
            DirichletSettings(clients=5, kind="classwise", records_per_client=2),
            INFO,
            "partitioner.records_per_client=2: partitioner.kind=classwise deals every record once",
        ),
        (
            Dirichlet,
            DirichletSettings(clients=5),
            REGRESSION,
            "partitioner=dirichlet: dataset=lines has no classes",
        ),
        (
            Shards,
            ShardsSettings(clients=5),
            REGRESSION,
            "partitioner=shards: dataset=lines has no classes",
        ),
        (
            Shards,
            ShardsSettings(clients=40, shards_per_client=3),
            INFO,
            "partitioner.shards_per_client=3: 40 clients x 3 = 120 records, and dataset=made",
        ),
        (
            Mixed,
            MixedSettings(),
            REGRESSION,
            "partitioner=mixed: dataset=lines has no classes; choose",
        ),
        (
            Mixed,
            MixedSettings(uniform_records=50, own_class_records=20),
            INFO,
            "partitioner.own_class_records=20: 50 + 3 clients x 20 = 110 records, and dataset=made"
            " "
            "has 100; lower it or partitioner.uniform_records",
        ),
        (
            Natural,
            DrawnSettings(),
            INFO,
            "partitioner=natural: dataset=made comes without clients",
        ),
        (
            Natural,
            DrawnSettings(clients=51),
            REGRESSION,
            "partitioner.clients=51: dataset=lines has 50 clients",
        ),
    ],
)
def test_impossible_combinations_are_refused_in_one_line(kind, chosen, info, says):
    with pytest.raises(ConfigError) as refused:
        kind.clients(chosen, info)
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_class_that_runs_out_is_named():
    data = dataset(np.repeat(np.arange(3), [40, 4, 40]), 3)
    with pytest.raises(ConfigError) as refused:
        Mixed.partition(MixedSettings(uniform_records=0, own_class_records=5), data, 0)
    assert str(refused.value) == (
        "partitioner.own_class_records=5: dataset=made has 4 records of class 1 left after the "
        "uniform draw; lower it or partitioner.uniform_records"
    )


def test_the_datasets_own_number_of_clients_is_the_default():
    assert Iid.clients(IidSettings(), REGRESSION) == 50
    assert Natural.clients(DrawnSettings(), REGRESSION) == 50
    assert Natural.clients(DrawnSettings(clients=7), REGRESSION) == 7


@pytest.mark.parametrize(
    "path", sorted((conf_dir() / "partitioner").glob("*.yaml")), ids=lambda path: path.stem
)
def test_every_partitioner_config_names_a_component_and_all_its_settings(path: Path):
    text = path.read_text()
    assert text.startswith("# ")
    assert all("#" in line for line in text.splitlines())
    it = {"hints": {"clients": 1000}, "it": yaml.safe_load(text)}
    values = OmegaConf.to_container(OmegaConf.create(it), resolve=True)["it"]
    load_components()
    found = lookup("partitioner", values.pop("name"))
    assert set(values) == set(found.settings.model_fields)
    assert getattr(parse_settings(found.settings, values, "partitioner"), "clients", None) in (
        None,
        1000,
    )
