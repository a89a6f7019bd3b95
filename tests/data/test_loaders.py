"""What holds for every data set: info is what is loaded, seeds, identities, bounds of settings."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_files import (
    FIRST,
    SUBJECTS,
    batches,
    entry_of,
    femnist_file,
    idx_bytes,
    image_files,
    nifti,
    put,
    reddit_file,
    write,
    written,
)

from dpfl_cli.config.component import components, lookup, parse_settings
from dpfl_cli.config.errors import ConfigError
from dpfl_cli.data.libsvm import LibsvmDataset
from dpfl_cli.data.loading import kept
from dpfl_cli.data.sources import CATALOGUE
from dpfl_cli.simulation.plan import load_components

load_components()
BANK = Path(__file__).with_name("small_bank.csv")


def emnist(name: str, classes: int) -> Callable[[int], dict[str, bytes]]:
    def made(seed: int) -> dict[str, bytes]:
        rng, files = np.random.default_rng(seed), {}
        for part, count in (("train", 141), ("test", 94)):
            stem = f"{name.replace('_', '-')}-{part}"
            images = rng.integers(0, 256, (count, 28, 28), dtype=np.uint8)
            files[f"{stem}-images-idx3-ubyte"] = idx_bytes(images)
            labels = rng.permutation(np.arange(count) % classes).astype(np.uint8)
            files[f"{stem}-labels-idx1-ubyte"] = idx_bytes(labels)
        return files

    return made


def rows(seed: int, count: int = 40) -> bytes:
    labels = np.random.default_rng(seed).integers(1, 3, count)
    return "".join(f"{label} 1:{number}\n" for number, label in enumerate(labels, 1)).encode()


def leaf(folder: Path, content: Callable[[int], dict]) -> None:
    for part, seed in (("train", 0), ("test", 1)):
        write(folder / part / "all.json", json.dumps(content(seed)).encode())


def femnist(folder: Path, seed: int) -> None:
    leaf(folder, lambda part: femnist_file(dict.fromkeys(FIRST, 9 + seed), start=50 * part))


def reddit(folder: Path, seed: int) -> None:
    users = {str(user): [f"a w{user} b", "c" * (1 + seed)] for user in range(4)}
    leaf(folder, lambda part: reddit_file(users))


def ixi(folder: Path, seed: int) -> None:
    rng = np.random.default_rng(seed)
    for name in SUBJECTS:
        image = rng.normal(size=(6, 5, 4)).astype("f4")
        write(folder / name / "T1" / f"{name}_image.nii.gz", nifti(image))
        write(folder / name / "label" / f"{name}_label.nii", nifti((image > 0).astype("u1")))


def photographs(folder: Path, seed: int) -> None:
    written(folder, *(["Image name,Ophthalmologic department,Retinopathy grade,Risk"] * seed))


# files of the catalogue by seed; folders by seed; settings
FILES: dict[str, Callable[[int], dict[str, bytes]]] = {
    "mnist": lambda seed: image_files(seed=seed),
    "fashion_mnist": lambda seed: image_files(seed=seed + 7),
    "cifar10": batches,
    "emnist_digits": emnist("emnist_digits", 10),
    "emnist_balanced": emnist("emnist_balanced", 47),
    "bank": lambda seed: {"bank-full.csv": BANK.read_bytes() + b"\n" * seed},
    **{
        name: lambda seed, name=name: {name: rows(seed), f"{name}.t": rows(seed + 5)}
        for name in ("ijcnn1", "a9a")
    },
    **{name: lambda seed, name=name: {name: rows(seed)} for name in ("a6a", "mushrooms")},
}
FOLDERS = {"femnist": femnist, "reddit": reddit, "fed_ixi": ixi, "messidor": photographs}
SETTINGS: dict[str, dict[str, Any]] = {
    "bank": {},
    "ijcnn1": {"records": 20, "test_records": 5},
    "femnist": {"share": 1.0, "clients": 2},
    "reddit": {"vocabulary": 9, "clients": 2, "train_records": None, "test_records": 1},
    "messidor": {"side": 8},
    "femnist_synth": {"clients": 2, "train_records": 5, "test_records": 3},
    "reddit_synth": {"train_records": 20, "test_records": 5},
    "ixi_synth": {"shape": [8, 8, 8], "train_records": [3, 2], "test_records": [1, 2]},
    "messidor_synth": {"side": 32, "train_records": 4, "test_records": 2},
    "synthetic": {"clients": 4, "records_per_client": 3, "dimension": 5},
    "quadratic": {"clients": 4, "records_per_client": 3, "dimension": 5},
    "synthetic_alpha_beta": {"clients": 4, "records_per_client": 9, "dimension": 5},
}
BY_SEED = ("synthetic", "quadratic")
GENERATED = [*BY_SEED, *(name for name in SETTINGS if "_synth" in name), "synthetic_alpha_beta"]
NAMES = [*FILES, *FOLDERS, "libsvm", *GENERATED]


class Small:
    """A data set of small files or size, and its settings."""

    def __init__(self, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.name, self.data, self.monkeypatch = name, tmp_path / "data", monkeypatch
        monkeypatch.setenv("DPFL_DATA", str(self.data))
        self.component = lookup("dataset", name)
        for needed in (name, *getattr(self.component.target, "sources", ())):
            self.publish(needed, 0)

    def publish(self, name: str, seed: int) -> None:
        """Puts the files there, others for another seed."""
        kept.cache_clear()
        if name in FOLDERS:
            shutil.rmtree(self.data / name, ignore_errors=True)
            FOLDERS[name](self.data / name, seed)
        elif name == "libsvm":
            write(self.data / "mine", rows(seed))
        elif name in FILES:
            files = FILES[name](seed)
            if name.endswith("mnist") and self.name == "femnist_synth":
                files = image_files(600, 300, seed=seed)
            folder = CATALOGUE[name].folder
            self.monkeypatch.setitem(CATALOGUE, name, entry_of(files, name, folder=folder))
            put(self.data / folder, files)
            target = lookup("dataset", name).target
            if issubclass(target, LibsvmDataset):
                self.monkeypatch.setattr(target, "size", 40)
                self.monkeypatch.setattr(target, "test_size", 40 * (len(files) - 1))

    def settings(self, **more: Any) -> Any:
        given = {"path": str(self.data / "mine")} if self.name == "libsvm" else {}
        return self.component.settings(**given | SETTINGS.get(self.name, {}) | more)

    def info(self, **more: Any) -> Any:
        return self.component.target.info(self.settings(**more))

    def load(self, seed: int = 0, **more: Any) -> Any:
        return self.component.target.load(self.settings(**more), seed)


@pytest.fixture
def small(request, tmp_path, monkeypatch) -> Small:
    return Small(request.param, tmp_path, monkeypatch)


def every(names: list[str]) -> Any:
    return pytest.mark.parametrize("small", names, indirect=True)


def test_every_data_set_that_can_be_small_is_tested() -> None:
    known = {name for name, found in components("dataset").items() if found.origin == "dpfl"}
    assert {name for name in known if not name.endswith("_features")} == {
        *NAMES,
        "arrays",  # a file of the user's own, see test_arrays
    }


@every(NAMES)
def test_info_is_what_load_holds(small) -> None:
    info, data = small.info(), small.load()
    assert data.info == info
    assert (info.name, info.source) == (
        small.name,
        "synthetic" if small.name.startswith(("synthetic", "quad")) else
        "standin" if small.name.endswith("_synth") else "real",
    )  # fmt: skip
    assert (len(info.sha256) == 64) == (small.name not in GENERATED or "femnist" in small.name)
    assert len(data.train) == info.records
    for records, natural in ((data.train, data.natural), (data.test, data.test_natural)):
        if records is None:
            continue
        assert len(records.features) == len(records.targets)
        assert records.features.shape[1:] == info.feature_shape
        assert records.targets.shape[1:] == info.target_shape
        assert np.isfinite(records.features).all()
        if info.classes is not None:
            assert records.targets.dtype == np.int64
            assert 0 <= records.targets.min() <= records.targets.max() < info.classes
        if natural is not None:
            assert len(natural) == len(records)
            assert set(natural) == set(range(info.clients))
    assert (data.natural is None) == (info.clients is None)


@every(NAMES)
def test_the_runs_seed_changes_what_is_drawn_from_it_and_nothing_else(small) -> None:
    first, other = small.load(0), small.load(1)
    assert small.load(0).train.features is first.train.features
    if small.name in BY_SEED:
        assert not np.isin(first.train.features, other.train.features).any()
    else:
        assert other.train.features is first.train.features
    if "data_seed" in type(small.settings()).model_fields:
        drawn = small.load(data_seed=5)
        parts = [(data.train.features, data.test.features, data.natural) for data in (first, drawn)]
        assert not all(map(np.array_equal, *parts))


@every([name for name in NAMES if name not in GENERATED or name == "femnist_synth"])
def test_the_identity_changes_with_the_content_and_the_records_with_it(small) -> None:
    before = small.load()
    small.publish("mnist" if small.name == "femnist_synth" else small.name, 1)
    after = small.load()
    assert after.info.sha256 != before.info.sha256
    assert after.train.features is not before.train.features
    assert small.load().info == after.info == small.info()


@every([*FILES, "libsvm"])
def test_more_records_than_there_are_is_refused(small) -> None:
    fields = {"records", "train_records", "test_records"} & set(type(small.settings()).model_fields)
    assert fields
    for field in fields:
        data = small.load(**{field: None})
        there = len(data.test if field == "test_records" else data.train)
        some = small.load(**{field: there - 1})
        assert len(some.test if field == "test_records" else some.train) == there - 1
        says = rf"^dataset\.{field}={there + 1}: {small.name} has {there} of them"
        with pytest.raises(ConfigError, match=says):
            small.info(**{field: there + 1})


def beyond(schema: dict[str, Any]) -> list[Any]:
    """Values that a field with this JSON schema must refuse."""
    values: list[Any] = [{}]
    for one in (schema, *schema.get("anyOf", ())):
        step = 1 if one.get("type") == "integer" else 0.5
        values += [one[key] - step for key in ("minimum",) if key in one]
        values += [one[key] + step for key in ("maximum",) if key in one]
        values += [one[key] for key in ("exclusiveMinimum", "exclusiveMaximum") if key in one]
        values += ["nonsense"] * ("enum" in one or one.get("type") in ("boolean", "integer"))
        values += [float("nan"), float("inf")] * (one.get("type") == "number")
        values += [[]] * (one.get("type") == "array")
    return values


@pytest.mark.parametrize(
    ("group", "name"),
    [
        (group, name)
        for group in ("dataset", "partitioner")
        for name, found in components(group).items()
        if found.origin == "dpfl"
    ],
)
def test_values_beyond_their_bounds_are_refused_by_their_names(group, name) -> None:
    settings = lookup(group, name).settings
    with pytest.raises(ConfigError, match=rf"^{group}\.strange: unknown option"):
        parse_settings(settings, {"strange": 1}, group)
    for field, schema in settings.model_json_schema()["properties"].items():
        for value in beyond(schema):
            with pytest.raises(ConfigError, match=rf"^{group}\.{field}") as refused:
                parse_settings(settings, {field: value}, group)
            assert "\n" not in str(refused.value)
