"""EMNIST: the published format with small files, what stands in where they are absent, and
principal components.
"""

from __future__ import annotations

import gzip
import logging
import re
from dataclasses import replace

import numpy as np
import pytest
from small_files import entry_of, idx_bytes, image_arrays, image_files, looked_at, put

from dpfl_cli.config.compose import compose_config
from dpfl_cli.config.errors import ConfigError, DataError
from dpfl_cli.data import emnist, loading
from dpfl_cli.data.emnist import (
    EmnistBalanced,
    EmnistBalancedSettings,
    EmnistDigits,
    EmnistSettings,
    principal_components,
)
from dpfl_cli.data.sources import CATALOGUE
from dpfl_cli.simulation.plan import make_plan
from tests.apart import perform, said

KINDS = {EmnistDigits: (EmnistSettings, 10), EmnistBalanced: (EmnistBalancedSettings, 47)}
BOTH = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)


def arrays(kind, train: int = 141, test: int = 94, seed: int = 0) -> dict[str, np.ndarray]:
    """Random images as published (transposed) and labels, under the names of the files."""
    rng = np.random.default_rng(seed)
    stem = kind.name.replace("_", "-")
    made = {}
    for part, count in (("train", train), ("test", test)):
        made[f"{stem}-{part}-images-idx3-ubyte"] = rng.integers(
            0, 256, (count, 28, 28), dtype=np.uint8
        )
        made[f"{stem}-{part}-labels-idx1-ubyte"] = rng.permutation(
            np.arange(count) % KINDS[kind][1]
        ).astype(np.uint8)
    return made


def files_of(kind, **options) -> dict[str, bytes]:
    return {name: idx_bytes(values) for name, values in arrays(kind, **options).items()}


@pytest.fixture
def data(tmp_path, monkeypatch):
    """A folder named by DPFL_DATA with small MNIST and Fashion-MNIST, and small stand-ins made of
    them.
    """
    loading.warn_once.cache_clear()
    monkeypatch.setattr(logging.getLogger("dpfl"), "propagate", True)
    monkeypatch.setenv("DPFL_DATA", str(tmp_path / "data"))
    monkeypatch.setattr(emnist.BalancedStandIn, "per_class", {"train": 12, "test": 5})
    for name, seed in (("mnist", 0), ("fashion_mnist", 1)):
        files = image_files(600, 300, seed=seed)
        monkeypatch.setitem(CATALOGUE, name, entry_of(files, name))
        put(tmp_path / "data" / name, files)
    return tmp_path / "data"


@pytest.fixture
def publish(data, monkeypatch):
    """Puts small EMNIST files there, of sizes that the catalogue knows and without checksums, as
    the real entries.
    """

    def use(kind, files=None, known=None, folder=data / "emnist", form=""):
        files = files_of(kind) if files is None else files
        entry = entry_of(known or files, kind.name, folder="emnist")
        unchecked = tuple(file._replace(md5=None) for file in entry.files)
        monkeypatch.setitem(CATALOGUE, kind.name, replace(entry, files=unchecked))
        put(
            folder,
            {
                name + form: gzip.compress(content, 1) if form else content
                for name, content in files.items()
            },
        )

    return use


def refused(error: type[Exception], kind, settings, *words: str) -> str:
    with pytest.raises(error) as raised:
        looked_at(kind.load(settings, 0))
    line = str(raised.value)
    assert "\n" not in line
    for word in words:
        assert word in line
    return line


# --- the published files


@BOTH
@pytest.mark.parametrize("form", ["", ".gz"])
@pytest.mark.parametrize("below", ["emnist", "."])
def test_published_images_are_read_upright(data, publish, kind, form, below, caplog):
    publish(kind, folder=data / below, form=form)
    stem = kind.name.replace("_", "-")
    known = arrays(kind)
    found = kind.load(KINDS[kind][0](), 0)
    for part, records in (("train", found.train), ("test", found.test)):
        images, labels = (
            known[f"{stem}-{part}-{what}"] for what in ("images-idx3-ubyte", "labels-idx1-ubyte")
        )
        assert records.features.dtype == np.float32
        assert records.features.flags.c_contiguous
        np.testing.assert_array_equal(
            records.features[:, 3, 17], images[:, 17, 3].astype(np.float32) / np.float32(255)
        )
        np.testing.assert_array_equal(
            records.features, images.transpose(0, 2, 1).astype(np.float32) / np.float32(255)
        )
        np.testing.assert_array_equal(records.targets, labels)
    info = found.info
    assert (info.name, info.source, info.feature_shape, info.details) == (
        kind.name,
        "real",
        (28, 28),
        {},
    )
    assert (info.classes, info.records) == (KINDS[kind][1], 141)
    assert caplog.records == []


@BOTH
def test_files_that_are_no_split_are_named(data, publish, kind):
    good = files_of(kind)
    stem = kind.name.replace("_", "-")
    images, labels = f"{stem}-train-images-idx3-ubyte", f"{stem}-test-labels-idx1-ubyte"
    options, classes = KINDS[kind]
    wrong = [
        (images, good[images][:-1], "truncated"),
        (images, good[images] + b"\0", "bytes, published"),
        (images, b"\0\0\x09" + good[images][3:], "not a whole idx file"),
        (
            images,
            idx_bytes(np.zeros((141, 14, 56), np.uint8)),
            "shape [141, 14, 56]: not the images of 141 labels",
        ),
        (images, b"PK" + good[images][2:], "not a whole idx file"),
        (images, good[images][:8] + good[images][8:12][::-1] + good[images][12:], "not a whole"),
        (labels, good[labels][:-1] + bytes([classes]), f"not a row of labels 0..{classes - 1}"),
        (labels, b"\0\0\x09" + good[labels][3:], "not a whole idx file"),
    ]
    for name, content, says in wrong:
        publish(kind, {**good, name: content}, known=good)
        refused(DataError, kind, options(), str(data / "emnist" / name), says)
    publish(
        kind, {**good, labels: idx_bytes(np.zeros(93, np.uint8))}
    )  # sizes of its own, which do not fit together
    refused(
        DataError,
        kind,
        options(),
        f"{stem}-test-images-idx3-ubyte: ",
        "not the images of 93 labels",
    )


@BOTH
def test_incomplete_and_damaged_files_are_refused_and_nothing_stands_in(
    data, publish, kind, caplog
):
    publish(kind)
    gone = next((data / "emnist").glob("*train-labels*"))
    gone.unlink()
    refused(DataError, kind, KINDS[kind][0](), f"{kind.name}: {gone.name} not found in")
    gone.with_name(gone.name + ".gz").write_bytes(b"\x1f\x8b nothing")
    refused(DataError, kind, KINDS[kind][0](), f"{gone.name}.gz: damaged", "replace or remove it")
    assert caplog.records == []


# --- what stands in


@BOTH
def test_a_standin_is_labelled_everywhere_and_warned_of_once(data, kind, caplog):
    for seed in (0, 1):
        info = kind.load(KINDS[kind][0](), seed).info
    assert info.source == "standin"
    assert "standin" not in KINDS[kind][0](standin=False).identity()
    assert info.details == {"standin": kind.standin}
    assert "mnist" in kind.standin
    (warning,) = caplog.records
    assert warning.levelno == logging.WARNING
    for word in (kind.name, kind.standin, "STAND IN", "dataset.standin=false"):
        assert word in warning.getMessage()
    content = make_plan(compose_config([f"dataset={kind.name}", "partitioner.clients=3"])).identity[
        "dataset"
    ]["content"]
    assert content == {"source": "standin", "sha256": info.sha256, "standin": kind.standin}


def test_the_warning_is_one_line_on_standard_error_even_when_quiet(data, tmp_path):
    code = (
        "import os; os.dup2(os.open('out', os.O_CREAT | os.O_WRONLY), 1); "
        "from dpfl_cli.cli import main; main.show_log(quiet=True); "
        "from dpfl_cli.data.loading import warn_once; "
        "warn_once('data STAND IN'); warn_once('data STAND IN')"
    )
    perform(code, tmp_path)
    assert re.fullmatch("dpfl: WARNING: data STAND IN.*\n", said(tmp_path))
    assert (tmp_path / "out").read_text() == ""


@BOTH
def test_a_standin_that_is_not_allowed_or_absent_itself_is_refused_in_one_line(
    data, kind, monkeypatch, caplog
):
    options = KINDS[kind][0]
    refused(
        DataError,
        kind,
        options(standin=False),
        f"{kind.name}: not found in DPFL_DATA={data}",
        f"run: dpfl data fetch {kind.name}",
    )
    monkeypatch.setenv("DPFL_DATA", str(data / "nowhere"))
    refused(
        DataError,
        kind,
        options(),
        "run: dpfl data fetch mnist",
        f"to stand in for {kind.name}, which is absent",
    )
    assert caplog.records == []


@BOTH
def test_a_standin_changes_with_its_content(data, kind, monkeypatch):
    before = kind.info(KINDS[kind][0]()).sha256
    files = image_files(600, 300, seed=7)
    monkeypatch.setitem(CATALOGUE, "mnist", entry_of(files, "mnist"))
    put(data / "mnist", files)
    assert kind.info(KINDS[kind][0]()).sha256 != before


def test_mnist_stands_in_for_the_digits(data):
    known = image_arrays(600, 300)
    found = EmnistDigits.load(EmnistSettings(train_records=50), 0)
    np.testing.assert_array_equal(found.train.features * 255, known["train-images-idx3-ubyte"][:50])
    np.testing.assert_array_equal(found.train.targets, known["train-labels-idx1-ubyte"][:50])
    np.testing.assert_array_equal(found.test.features * 255, known["t10k-images-idx3-ubyte"])
    assert found.info.records == 50


def test_the_47_classes_are_what_the_documentation_says(data):
    """Each stand-in image is undone to one of its source class, in the part and the order that is
    documented.
    """
    found = EmnistBalanced.load(EmnistBalancedSettings(), 0)
    for part, prefix, each in (("train", "train", 12), ("test", "t10k", 5)):
        records = getattr(found, part)
        pixels = np.rint(records.features * 255).astype(np.uint8)
        np.testing.assert_array_equal(records.targets, np.arange(47 * each) % 47)
        for label in range(47):
            kind, source = divmod(label, 20)
            known = image_arrays(600, 300, seed=source // 10)
            own = known[f"{prefix}-images-idx3-ubyte"][
                known[f"{prefix}-labels-idx1-ubyte"] == source % 10
            ]
            images = pixels[label::47]
            if kind == 1:
                images = 255 - images
            if kind == 2:  # halves swapped twice are where they were
                images = np.concatenate([images[:, 14:], images[:, :14]], axis=1)
                images = np.concatenate([images[:, :, 14:], images[:, :, :14]], axis=2)
            np.testing.assert_array_equal(images, own[(kind * each + np.arange(each)) % len(own)])


# --- records, held out and not


def test_a_test_fraction_is_held_out_of_every_class_and_of_training_images_only(publish):
    publish(EmnistBalanced)
    whole = EmnistBalanced.load(EmnistBalancedSettings(), 0)
    split = EmnistBalanced.load(EmnistBalancedSettings(test_fraction=0.4), 0)
    assert split.info.records == len(split.train) == 47 * 2
    assert np.bincount(split.train.targets).tolist() == [2] * 47
    assert np.bincount(split.test.targets).tolist() == [1] * 47
    for label in range(47):
        own = whole.train.features[whole.train.targets == label]
        np.testing.assert_array_equal(split.train.features[split.train.targets == label], own[:2])
        np.testing.assert_array_equal(split.test.features[split.test.targets == label], own[2:])
    few = EmnistBalanced.load(
        EmnistBalancedSettings(test_fraction=0.4, train_records=5, test_records=3), 0
    )
    np.testing.assert_array_equal(few.train.features, split.train.features[:5])
    np.testing.assert_array_equal(few.test.features, split.test.features[:3])
    refused(
        ConfigError,
        EmnistBalanced,
        EmnistBalancedSettings(test_fraction=0.3),
        "dataset.test_fraction=0.3: less than one of the images",
    )
    refused(
        ConfigError,
        EmnistBalanced,
        EmnistBalancedSettings(test_fraction=0.4, train_records=95),
        "dataset.train_records=95: emnist_balanced has 94 of them; write at most that",
    )


@BOTH
@pytest.mark.parametrize(
    ("field", "held"), [("train_records", (600, 564)), ("test_records", (300, 235))]
)
def test_more_records_than_there_are_is_refused(data, kind, field, held):
    options, there = KINDS[kind][0], held[kind is EmnistBalanced]
    assert kind.info(options(**{field: there}))
    refused(
        ConfigError,
        kind,
        options(**{field: there + 1}),
        f"dataset.{field}={there + 1}: {kind.name} has {there} of them (a stand-in); write at most",
    )


# --- principal components


def test_principal_components_are_those_of_all_training_images(publish):
    """Compared with the singular value decomposition of the centred images, up to the sign that is
    documented.
    """
    publish(EmnistBalanced, files_of(EmnistBalanced, train=470))
    whole = EmnistBalanced.load(EmnistBalancedSettings(), 0)
    found = EmnistBalanced.load(EmnistBalancedSettings(pca=9, train_records=20, test_records=30), 0)
    assert found.info.feature_shape == (9,)
    assert found.train.features.shape == (20, 9)
    assert found.train.features.dtype == np.float32
    rows = whole.train.features.reshape(470, -1).astype(np.float64)
    mean = rows.mean(axis=0)
    components = np.linalg.svd(rows - mean, full_matrices=False)[2][:9]
    components *= np.sign(components[np.arange(9), np.abs(components).argmax(axis=1)])[:, None]
    np.testing.assert_allclose(found.train.features, (rows[:20] - mean) @ components.T, atol=2e-6)
    tested = whole.test.features.reshape(94, -1)[:30].astype(np.float64)
    np.testing.assert_allclose(found.test.features, (tested - mean) @ components.T, atol=2e-6)
    assert "principal components" in EmnistBalanced.not_covered(EmnistBalancedSettings(pca=9))[0]
    assert EmnistBalanced.not_covered(EmnistBalancedSettings()) == []


def test_principal_components_do_not_depend_on_the_block_and_are_kept(data, monkeypatch):
    origin = EmnistBalanced.content(EmnistBalancedSettings())
    first = principal_components(origin)
    assert principal_components(origin) is first
    principal_components.cache_clear()
    monkeypatch.setattr(emnist, "AT_ONCE", 7)
    again = principal_components(origin)
    np.testing.assert_array_equal(again[0], first[0])
    np.testing.assert_array_equal(again[1], first[1])


def test_the_entries_announce_the_published_numbers():
    """Images and labels of the sizes in the catalogue are as many as are published."""
    for kind, train, test in ((EmnistDigits, 240_000, 40_000), (EmnistBalanced, 112_800, 18_800)):
        sizes = [file.size for file in CATALOGUE[kind.name].files]
        assert sizes == [16 + 784 * train, 8 + train, 16 + 784 * test, 8 + test]
