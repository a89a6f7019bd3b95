"""The datasets: MNIST's format with small files, the law of the synthetic federation, and the real
files where they are.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from small_files import (
    TEST_IMAGES,
    TEST_LABELS,
    TRAIN_IMAGES,
    TRAIN_LABELS,
    entry_of,
    idx_bytes,
    image_arrays,
    image_files,
    looked_at,
    put,
)

from dpfl_cli.config.component import lookup, parse_settings
from dpfl_cli.config.errors import ConfigError, DataError
from dpfl_cli.config.paths import conf_dir
from dpfl_cli.data.mnist import FashionMnist, ImageSettings, Mnist
from dpfl_cli.data.sources import CATALOGUE, locate
from dpfl_cli.data.synthetic import Synthetic, SyntheticSettings
from dpfl_cli.simulation.plan import load_components


@pytest.fixture
def small(tmp_path, monkeypatch):
    """Small files under the name mnist; a function that replaces them."""
    monkeypatch.setenv("DPFL_DATA", str(tmp_path / "data"))
    monkeypatch.delitem(CATALOGUE, "fashion_mnist")

    def use(files: dict[str, bytes]) -> None:
        monkeypatch.setitem(CATALOGUE, "mnist", entry_of(files))
        put(tmp_path / "data" / "mnist", files)

    use(image_files())
    return use


# --- MNIST and its like


def test_images_and_labels_come_in_order_as_pixels_in_0_1(small):
    arrays = image_arrays()
    data = Mnist.load(ImageSettings(), seed=0)
    assert data.train.features.dtype == np.float32
    assert data.train.targets.dtype == np.int64
    np.testing.assert_array_equal(
        data.train.features, arrays[TRAIN_IMAGES].astype(np.float32) / np.float32(255)
    )
    np.testing.assert_array_equal(data.train.targets, arrays[TRAIN_LABELS])
    assert data.test is not None
    np.testing.assert_array_equal(
        data.test.features, arrays[TEST_IMAGES].astype(np.float32) / np.float32(255)
    )
    np.testing.assert_array_equal(data.test.targets, arrays[TEST_LABELS])
    assert data.natural is None
    assert data.train.features.min() >= 0
    assert data.train.features.max() == 1


def test_the_first_records_are_taken(small):
    whole, part = (
        Mnist.load(ImageSettings(), 0),
        Mnist.load(ImageSettings(train_records=5, test_records=3), 0),
    )
    np.testing.assert_array_equal(part.train.features, whole.train.features[:5])
    np.testing.assert_array_equal(part.train.targets, whole.train.targets[:5])
    np.testing.assert_array_equal(part.test.features, whole.test.features[:3])


def test_held_out_records_are_the_last_that_trained_and_no_test_record_is_seen(small):
    whole, settings = Mnist.load(ImageSettings(), 0), ImageSettings(held_out=12, test_records=10)
    part = Mnist.load(settings, 0)
    assert Mnist.info(settings).records == len(part.train) == 28
    np.testing.assert_array_equal(part.train.features, whole.train.features[:28])
    np.testing.assert_array_equal(part.test.features, whole.train.features[28:38])
    np.testing.assert_array_equal(part.test.targets, whole.train.targets[28:38])
    with pytest.raises(ConfigError, match="train_records=29: mnist has 28 of them"):
        Mnist.info(ImageSettings(held_out=12, train_records=29))
    with pytest.raises(ConfigError, match="held_out=40: mnist has 40 training records; write less"):
        Mnist.info(ImageSettings(held_out=40))


def test_labels_are_read_without_the_images(small, monkeypatch):
    monkeypatch.setattr(Mnist, "images", lambda part: pytest.fail("images were read"))
    settings = ImageSettings(held_out=12, train_records=20, subset="random", pixels="raw")
    data = Mnist.load(settings, 0)
    assert data.info == Mnist.info(settings)
    assert len(data.train.targets) == data.info.records == 20


@pytest.mark.parametrize(
    ("kind", "mean", "std"), [(Mnist, 0.1307, 0.3081), (FashionMnist, 0.2860, 0.3530)]
)
def test_standardising_uses_the_published_constants(small, monkeypatch, tmp_path, kind, mean, std):
    monkeypatch.setitem(CATALOGUE, kind.name, entry_of(image_files(), kind.name, folder="mnist"))
    raw, scaled = (
        kind.load(ImageSettings(), 0),
        kind.load(ImageSettings(standardise=True), 0),
    )
    np.testing.assert_allclose(
        scaled.train.features, (raw.train.features - mean) / std, rtol=1e-5, atol=1e-6
    )
    assert scaled.train.features.dtype == np.float32


@pytest.mark.parametrize(
    "wrong",
    [
        {TRAIN_LABELS: idx_bytes(np.zeros(39, np.uint8))},
        {TRAIN_LABELS: idx_bytes(np.full(40, 10, np.uint8))},
        {TRAIN_IMAGES: idx_bytes(np.zeros((40, 784), np.uint8))},
    ],
)
def test_files_that_do_not_belong_together_are_refused(small, wrong):
    small({**image_files(), **wrong})
    says = r"not (the images of \d+ labels, 28x28|a row of labels 0\.\.9)$"
    with pytest.raises(DataError, match=says):
        looked_at(Mnist.load(ImageSettings(), 0))


def test_absent_files_are_refused_before_anything_runs(monkeypatch, tmp_path):
    monkeypatch.setenv("DPFL_DATA", str(tmp_path))
    with pytest.raises(
        DataError, match=r"mnist: not found in DPFL_DATA=.*; run: dpfl data fetch mnist"
    ):
        Mnist.info(ImageSettings())


@pytest.mark.data
@pytest.mark.parametrize(
    ("kind", "mean", "std"), [(Mnist, 0.1307, 0.3081), (FashionMnist, 0.2860, 0.3530)]
)
def test_the_real_data_have_the_published_sizes_and_moments(kind, mean, std):
    try:
        locate(kind.name)
    except DataError as error:
        pytest.skip(str(error))
    data = kind.load(ImageSettings(), 0)
    assert data.train.features.shape == (60000, 28, 28)
    assert data.test.features.shape == (10000, 28, 28)
    assert set(np.unique(data.train.targets)) == set(range(10))
    assert round(float(data.train.features.mean(dtype=np.float64)), 4) == mean
    assert round(float(data.train.features.std(dtype=np.float64)), 4) == std
    if kind is Mnist:
        assert data.train.targets[:5].tolist() == [5, 0, 4, 1, 9]
        assert np.bincount(data.train.targets).tolist() == [
            5923,
            6742,
            5958,
            6131,
            5842,
            5421,
            5918,
            6265,
            5851,
            5949,
        ]


# --- the synthetic federation


def drawn(seed: int = 0, **settings):
    values = SyntheticSettings(**settings)
    data = Synthetic.load(values, seed)
    return data, data.train.features.reshape(
        values.clients, values.records_per_client, values.dimension
    )


@pytest.mark.parametrize("mean_kind", ["vector", "vector_u", "scalar"])
@pytest.mark.parametrize("each", [1, 3])
def test_the_system_is_consistent_and_shaped_as_announced(mean_kind, each):
    settings = SyntheticSettings(
        dimension=7, clients=11, records_per_client=each, mean_kind=mean_kind
    )
    data = Synthetic.load(settings, 3)
    info = Synthetic.info(settings)
    assert data.info == info
    assert (info.name, info.source, info.sha256, info.classes, info.clients) == (
        "synthetic",
        "synthetic",
        "",
        None,
        11,
    )
    assert info.records == len(data.train) == 11 * each
    assert data.train.features.shape == (11 * each, *info.feature_shape)
    assert data.train.features.dtype == data.train.targets.dtype == np.float64
    np.testing.assert_allclose(
        data.train.features @ data.truth["optimum"], data.train.targets, rtol=1e-12
    )
    np.testing.assert_array_equal(data.natural, np.repeat(np.arange(11), each))
    assert data.test is None


def test_options_of_the_clients_do_not_change_the_optimum():
    base, _ = drawn(5, dimension=6, clients=4)
    for options in (
        {"u_std": 0.5},
        {"mean_kind": "scalar"},
        {"records_per_client": 2},
        {"clients": 9},
    ):
        changed, _ = drawn(5, **{"dimension": 6, "clients": 4, **options})
        np.testing.assert_array_equal(changed.truth["optimum"], base.truth["optimum"])


def within(values: np.ndarray, expected: float, errors: float = 4.5) -> None:
    """The mean of independent values is as expected, to so many standard errors."""
    error = values.std(ddof=1) / np.sqrt(len(values))
    assert abs(values.mean() - expected) < errors * error, (values.mean(), expected, error)


@pytest.mark.parametrize(
    ("mean_kind", "between_coordinates"),
    # Two coordinates of one record share u_i (vector), nothing (vector_u), u_i and the scalar
    # mean's own draw (scalar).
    [("vector", 0.49), ("vector_u", 0.0), ("scalar", 1.49)],
)
def test_the_law_of_features(mean_kind, between_coordinates):
    """x has mean 0, variance 2 + u_std^2; covariances tell how the client's mean is drawn."""
    data, x = drawn(
        0, dimension=4, clients=40_000, records_per_client=2, u_std=0.7, mean_kind=mean_kind
    )
    within(x[:, 0, 0], 0.0)
    within(x[:, 0, 0] ** 2, 2.49)
    within(x[:, 0, 0] * x[:, 0, 1], between_coordinates)
    within(x[:, 0, 2] * x[:, 1, 2], 1.49)  # two records of a client share its mean
    within(x[:-1, 0, 0] * x[1:, 0, 0], 0.0)  # clients are independent
    assert data.truth["optimum"].shape == (4,)


def test_the_optimum_is_standard_normal():
    optimum = drawn(1, dimension=50_000, clients=1)[0].truth["optimum"]
    within(optimum, 0.0)
    within(optimum**2, 1.0)


# --- configs


@pytest.mark.parametrize(
    "path", sorted((conf_dir() / "dataset").glob("*.yaml")), ids=lambda path: path.stem
)
def test_every_dataset_config_names_a_component_and_all_its_settings(path: Path):
    text = path.read_text()
    assert text.startswith(
        "# @package _global_\n# "
    )  # Hydra reads the header from the first line only
    values = yaml.safe_load(text)["dataset"]
    name = values.pop("name")
    load_components()
    found = lookup("dataset", name)
    assert set(values) == set(found.settings.model_fields)
    settings = parse_settings(found.settings, values, "dataset")
    assert (settings == found.settings()) == (
        path.stem == name
    )  # others are presets: the component with values of their own
    body = text.partition("\ndataset:\n")[2]
    assert all("#" in line for line in body.splitlines())


@pytest.mark.parametrize("stratified", [False, True])
@given(
    seed=st.integers(0, 5),
    size=st.integers(1, 200),
    counts=st.lists(st.integers(1, 40), min_size=10, max_size=10),
)
def test_a_subset_is_random_without_repeats_and_stratified_where_asked(
    stratified, seed, size, counts
):
    labels = np.repeat(np.arange(10), counts)
    size = min(size, len(labels))
    settings = ImageSettings(subset="stratified" if stratified else "random", subset_seed=seed)

    class Pictured(Mnist):
        @classmethod
        def labels(cls, part):
            return labels

        @classmethod
        def size(cls, part):
            return len(labels)

    def taken_first():
        return np.sort(Mnist.split(settings, Pictured)[0][:size])

    chosen = taken_first()
    assert len(np.unique(chosen)) == size == len(chosen)
    assert (np.diff(chosen) > 0).all()
    assert np.array_equal(chosen, taken_first())
    if stratified:  # no class that has records left is more than one behind another
        taken = np.bincount(labels[chosen], minlength=10)
        left = taken < np.array(counts)
        assert not left.any() or taken.max() <= taken[left].min() + 1
