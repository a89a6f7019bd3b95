"""A user's own records and partitions: read as they are, refused in one line where they do not fit,
and known by their content.
"""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpfl_cli.config.compose import compose_config
from dpfl_cli.config.errors import ConfigError, DataError, DpflError
from dpfl_cli.config.own_files import OwnFile
from dpfl_cli.data.arrays import Arrays, ArraysSettings, File
from dpfl_cli.data.federation import Partition
from dpfl_cli.data.loading import held_out_of
from dpfl_cli.simulation.member import Member
from dpfl_cli.simulation.plan import make_plan
from dpfl_cli.simulation.run_plan import federation_of
from dpfl_cli.simulation.stack import Stack

FEATURES = np.random.default_rng(0).normal(size=(12, 3))
LABELS = np.array([7, 3] * 6)
CLIENTS = np.array(["b", "a", "c"] * 4)
DATASET = """
import numpy as np
import torch

class Mine(torch.utils.data.Dataset):
    def __init__(self):
        with np.load(__file__.replace("data.py", "my.npz")) as file:
            self.columns = [file[name] for name in ("features", "targets", "clients")]
    def __len__(self):
        return 12
    def __getitem__(self, number):
        features, target, client = (column[number] for column in self.columns)
        return torch.from_numpy(features), int(target), str(client)

ready = Mine()
broken = [(1, 2), (3,)]
endless = iter([])
"""


def saved(folder: Path, name: str = "my.npz", **arrays: Any) -> str:
    np.savez(folder / name, **arrays)
    return str(folder / name)


@pytest.fixture
def mine(tmp_path: Path) -> str:
    (tmp_path / "data.py").write_text(DATASET)
    return saved(tmp_path, features=FEATURES, targets=LABELS, clients=CLIENTS)


@pytest.mark.parametrize("name", ["my.npz", "data.py:Mine", "data.py:ready"])
def test_records_are_as_given_and_labels_and_clients_become_numbers(mine: str, name: str) -> None:
    found = Arrays.load(ArraysSettings(path=str(Path(mine).with_name(name))), seed=3)
    assert np.array_equal(found.train.features, FEATURES)
    assert found.train.targets.tolist() == [1, 0] * 6
    assert found.natural is not None
    assert found.natural.tolist() == [1, 0, 2] * 4
    assert (found.info.classes, found.info.clients, found.info.records) == (2, 3, 12)
    assert found.info.sha256 == Arrays.info(ArraysSettings(path=mine)).sha256


def test_targets_that_are_floats_are_regression_and_features_floats(tmp_path: Path) -> None:
    path = saved(
        tmp_path, features=np.arange(24, dtype=np.uint8).reshape(12, 2), targets=FEATURES[:, 0]
    )
    found = Arrays.load(ArraysSettings(path=path), 0)
    assert found.info.classes is None
    assert found.train.features.dtype == np.float32
    assert np.array_equal(found.train.targets, FEATURES[:, 0])


def test_regression_is_tested_on_the_records_that_are_held_out(tmp_path: Path) -> None:
    """At zero the mean of squared targets: of those that are not trained on."""
    targets = np.arange(12.0)
    path = saved(tmp_path, features=FEATURES, targets=targets)
    words = [f"dataset.path={path}", "dataset.test_fraction=0.25", "model=linear_regression"]
    small = ["rounds=1", "partitioner.clients=3", "algorithm=fedavg", "dp=none"]
    plan = make_plan(compose_config(["dataset=arrays", *words, *small]))
    stack = Stack([Member(plan)])
    stack.evaluate({})
    row = stack.members[0].rows[0]
    held = federation_of(plan).dataset.test
    assert held is not None
    assert len(held) == 3
    assert row["test_loss"] == pytest.approx(np.mean(held.targets**2))
    assert row["train_loss"] == pytest.approx((np.sum(targets**2) - np.sum(held.targets**2)) / 9)
    assert {"test_loss", "train_loss"} <= set(stack.members[0].unreleased)  # private records
    other = saved(tmp_path, "other.npz", features=FEATURES[:5], targets=targets[:5])
    words[1] = f"dataset.test_path={other}"
    stack = Stack([Member(make_plan(compose_config(["dataset=arrays", *words, *small])))])
    stack.evaluate({})
    assert "test_loss" in stack.members[0].rows[0]
    assert "test_loss" not in stack.members[0].unreleased  # a file of its own is public


def test_test_records_are_held_out_alike_for_every_seed_or_from_a_file(mine: str) -> None:
    settings = ArraysSettings(path=mine, test_fraction=0.25)
    found = Arrays.load(settings, 0)
    assert found.test is not None
    assert (len(found.train), len(found.test)) == (9, 3)
    rows = np.vstack([found.train.features, found.test.features])
    assert sorted(map(tuple, rows)) == sorted(map(tuple, FEATURES))
    assert Arrays.load(settings, 1) is found
    test = saved(Path(mine).parent, "test.npz", features=FEATURES[:2], targets=LABELS[:2])
    both = Arrays.load(ArraysSettings(path=mine, test_path=test), 0)
    assert both.test is not None
    assert both.test.targets.tolist() == [1, 0]
    assert both.info.sha256 != found.info.sha256


def test_a_label_that_only_held_out_records_have_is_one_of_the_file(tmp_path: Path) -> None:
    for place in range(12):  # wherever the one record of class 9 comes to be
        labels = np.where(np.arange(12) == place, 9, LABELS)
        path = saved(tmp_path, f"{place}.npz", features=FEATURES, targets=labels)
        found = Arrays.load(ArraysSettings(path=path, test_fraction=0.25), 0)
        assert found.test is not None
        assert found.info.classes == 3
        assert [*found.train.targets, *found.test.targets].count(2) == 1


@pytest.mark.parametrize(
    ("arrays", "says"),
    [
        ({"x": FEATURES}, "no array features and no targets; it has x"),
        ({"features": FEATURES[:5], "targets": LABELS}, r"features \[5, 3\], targets \[12\]"),
        ({"features": FEATURES[:, 0], "targets": LABELS}, r"write features \[N, ...\]"),
        ({"features": FEATURES, "targets": np.zeros(12, int)}, "all targets are equal"),
        ({"features": FEATURES.astype(str), "targets": LABELS}, "not numbers"),
        ({"features": FEATURES * [1, np.nan, 1], "targets": LABELS}, "not finite in record 0"),
        ({"features": FEATURES, "targets": LABELS, "clients": LABELS[:3]}, r"clients \[3\]"),
        ({"features": FEATURES[:, :0], "targets": LABELS}, r"features \[12, 0\]"),
        ({"features": FEATURES, "targets": LABELS, "clients": LABELS * 1j}, "clients are complex"),
        ({"features": FEATURES, "targets": np.array([None] * 12)}, "not a .npz file of arrays"),
    ],
)
def test_arrays_that_do_not_fit_are_one_line(tmp_path: Path, arrays: Any, says: str) -> None:
    with pytest.raises(DpflError, match=says) as caught:
        Arrays.info(ArraysSettings(path=saved(tmp_path, **arrays)))
    assert "\n" not in str(caught.value)


def encrypted(content: bytes) -> bytes:
    """A zip whose members say that they are."""
    flagged = bytearray(content)
    for mark, flags in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        place = -1
        while (place := content.find(mark, place + 1)) >= 0:
            flagged[place + flags] |= 1
    return bytes(flagged)


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (encrypted, "encrypted"),
        (lambda content: content[:200] + b"xxxxx" + content[205:], "Bad CRC"),
        (lambda content: content[:200], "not a zip"),
        (lambda content: b"", "it is empty"),
        (bytes, "more than 99 bytes unpacked"),
    ],
)
def test_an_archive_that_cannot_be_read_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spoil: Any, says: str
) -> None:
    path = Path(saved(tmp_path, features=FEATURES, targets=LABELS))
    path.write_bytes(spoil(path.read_bytes()))
    if spoil is bytes:
        monkeypatch.setattr("dpfl_cli.data.arrays.LARGEST", 99)
    with pytest.raises(DataError, match=says) as caught:
        Arrays.info(ArraysSettings(path=str(path)))
    assert "\n" not in str(caught.value)


def table(**changes: Any) -> pd.DataFrame:
    """FEATURES, LABELS and CLIENTS as columns."""
    columns = {f"x{number}": column for number, column in enumerate(FEATURES.T)}
    return pd.DataFrame({**columns, "label": LABELS, "hospital": CLIENTS} | changes)


NAMED = {"targets": "label", "clients": "hospital"}


@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("my.csv", partial(pd.DataFrame.to_csv, index=False)),
        ("my.CSV", partial(pd.DataFrame.to_csv, index=False, sep=";", encoding="utf-8-sig")),
        ("my.tsv", partial(pd.DataFrame.to_csv, index=False, sep="\t")),
        ("my.parquet", pd.DataFrame.to_parquet),
    ],
)
def test_a_table_gives_the_records_that_arrays_give(mine: str, name: str, write: Any) -> None:
    path = Path(mine).with_name(name)
    write(table(), path)
    settings = ArraysSettings(path=str(path), test_path=str(path), **NAMED)
    found, like = Arrays.load(settings, 0), Arrays.load(ArraysSettings(path=mine), 0)
    assert found.test is not None
    for part in (found.train, found.test):
        assert np.array_equal(part.features, like.train.features)
        assert part.targets.tolist() == like.train.targets.tolist()
    assert found.natural is not None
    assert like.natural is not None
    assert found.natural.tolist() == like.natural.tolist()
    assert found.info.feature_shape == like.info.feature_shape


@pytest.mark.parametrize(
    ("changes", "options", "says"),
    [
        ({}, {}, "no column targets; choose from: hospital, label, x0, x1, x2"),
        ({}, {"targets": "lable"}, "no column lable; did you mean label.*dataset.targets="),
        ({}, {**NAMED, "clients": "ward"}, "no column ward.*dataset.clients"),
        (
            {"job": ["smith"] * 12},
            NAMED,
            "column job is 'smith', no finite number, in record 0 .*get_dummies",
        ),
        (
            {"x1": [*FEATURES[1:, 1], None]},
            NAMED,
            "column x1 is empty in record 11 .*; leave it out, or fill it",
        ),
        ({"label": [*LABELS[1:], None]}, NAMED, "label is empty in record 11 .*; leave that"),
        (
            {"x0": ["0,5", *FEATURES[1:, 0]]},
            NAMED,
            "column x0 is '0,5', .* in record 0 .*; leave it out, or write decimals with a point",
        ),
        ({"hospital": [None, *CLIENTS[1:]]}, NAMED, "column hospital is empty in record 0"),
        ({"label": [0, "NA", *[1] * 10]}, NAMED, "column label is 'NA' in record 1 "),
        ({"label": [0.5, "-inf", *[1.5] * 10]}, NAMED, "column label is '-inf' in record 1 "),
        ({"hospital": [*[7] * 11, "nan"]}, NAMED, "column hospital is 'nan' in record 11 "),
    ],
)
def test_a_table_that_does_not_fit_is_one_line(
    tmp_path: Path, changes: Any, options: Any, says: str
) -> None:
    table(**changes).to_csv(tmp_path / "my.csv", index=False)
    with pytest.raises(DataError, match=says) as caught:
        Arrays.info(ArraysSettings(path=str(tmp_path / "my.csv"), **options))
    assert "\n" not in str(caught.value)


def test_a_test_table_has_the_columns_of_the_first(tmp_path: Path) -> None:
    first, second = str(tmp_path / "a.csv"), str(tmp_path / "b.csv")
    table().to_csv(first, index=False)
    table()[["x1", "x0", "x2", "label"]].to_csv(second, index=False)
    settings = ArraysSettings(path=first, test_path=second, targets="label", clients="hospital")
    with pytest.raises(DataError, match="no column hospital"):
        Arrays.info(settings)
    table()[["x1", "x0", "x2", "label", "hospital"]].to_csv(second, index=False)
    with pytest.raises(DataError, match=r"x1 where that has x0.*same columns in the same order"):
        Arrays.info(settings)
    table(label=["other", *LABELS[1:]]).to_csv(second, index=False)
    with pytest.raises(DataError, match=r"test_path: label other is none of those in dataset.path"):
        Arrays.info(settings)


def test_who_is_tested_on_from_a_file_counts_as_public(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("dpfl"), "propagate", True)
    path = str(tmp_path / "a.csv")
    table().to_csv(path, index=False)
    settings = ArraysSettings(path=path, test_path=path, targets="label", clients="hospital")
    assert "count as public" in Arrays.not_covered(settings)[0]
    assert not Arrays.not_covered(settings.model_copy(update={"test_path": None}))
    with caplog.at_level(logging.INFO, "dpfl"):
        Arrays.info(settings)
    assert "features x0, x1, x2" in caplog.text
    assert "metrics are of what was trained on" in caplog.text


@pytest.mark.parametrize("content", [b"", b"a,b\n1,2,3\n4\n", b"\xff\xfe", b"PAR1 no more"])
def test_a_damaged_table_is_one_line(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "my.csv").write_bytes(content)
    with pytest.raises(DataError, match=r"not a table|no column") as caught:
        Arrays.info(ArraysSettings(path=str(tmp_path / "my.csv")))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("clients,a,targets\n7,1.5,0,99\n8,1.5,1,99\n", "not a table .*line 2"),
        ("1.5,0\n2.5,1\n", "first line has numbers in place of names"),
        ("a,targets,targets\n1,2,0\n3,4,1\n", "names a column twice"),
        (",a,targets\n0,1,0\n1,3,1\n", "a column has no name"),
        ("a,b,targets\n1,2,0\n3,4\n", "column targets is empty in record 1"),
        ("a,b,targets\n", "0 records of 2 features"),
        ("targets\n1\n0\n", "2 records of 0 features"),
    ],
)
def test_columns_never_shift(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "my.csv").write_text(text)
    with pytest.raises(DataError, match=says):
        Arrays.info(ArraysSettings(path=str(tmp_path / "my.csv")))


def test_clients_of_a_large_table_are_what_is_written(tmp_path: Path) -> None:
    """Where all of a part of a column are digits pandas would read 001 as 1."""
    names = np.array(["000", "001", "002"] * 100_000 + ["x9", "NA", "1", "1.0"])
    rows = "\n".join(f"{number % 2}, {name},{number % 3}" for number, name in enumerate(names))
    (tmp_path / "my.csv").write_text(f"targets,clients,a\n{rows}\n")
    found = Arrays.load(ArraysSettings(path=str(tmp_path / "my.csv")), 0)
    assert found.info.clients == 7
    assert found.natural is not None
    assert sorted(np.bincount(found.natural)) == [1, 1, 1, 1, 100_000, 100_000, 100_000]


@pytest.mark.parametrize(
    ("labels", "classes"), [("0 1 2", 3), ("01 1 2", 3), ("a b NA", 3), ("True False True", 2)]
)
def test_labels_are_classes_as_written(tmp_path: Path, labels: str, classes: int) -> None:
    rows = "\n".join(f"{label},True,{number}" for number, label in enumerate(labels.split()))
    (tmp_path / "my.csv").write_text(f"targets,yes,a\n{rows}\n")
    found = Arrays.load(ArraysSettings(path=str(tmp_path / "my.csv")), 0)
    assert found.info.classes == classes
    assert found.train.features[:, 0].tolist() == [1.0] * 3


def test_dates_are_no_numbers(tmp_path: Path) -> None:
    path = tmp_path / "my.parquet"
    table(x1=pd.to_datetime(["2020-01-01"] * 11 + [None])).to_parquet(path)
    with pytest.raises(DataError, match="column x1 is empty"):
        Arrays.info(ArraysSettings(path=str(path), **NAMED))


def test_arrays_may_have_other_names(tmp_path: Path) -> None:
    path = saved(tmp_path, features=FEATURES, y=LABELS, who=CLIENTS)
    found = Arrays.load(ArraysSettings(path=path, targets="y", clients="who"), 0)
    assert found.natural is not None
    assert found.train.targets.tolist() == [1, 0] * 6
    with pytest.raises(DataError, match="no array targets; it has features, y, who"):
        Arrays.info(ArraysSettings(path=path))


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("data.py:broken", "items are \\(features, target\\)"),
        ("data.py:endless", "a Dataset with a length"),
        ("data.py:Mime", "did you mean Mine"),
        ("data.py", "not a .npz file"),
        ("absent.npz", "dataset.path=.*absent.npz: cannot be read"),
        (None, "dataset.path: missing"),
    ],
)
def test_paths_that_do_not_fit_are_one_line(mine: str, name: str | None, says: str) -> None:
    path = None if name is None else str(Path(mine).with_name(name))
    with pytest.raises(DpflError, match=says):
        Arrays.info(ArraysSettings(path=path))


def test_a_partition_file_deals_as_it_says(mine: str, tmp_path: Path) -> None:
    dataset = Arrays.load(ArraysSettings(path=mine), 0)
    path = str(tmp_path / "clients.npy")
    np.save(path, [0, 1, -1, 1, 0, 0, 1, 1, 2, -1, 2, 0])
    found = File.partition(OwnFile(path=path), dataset, seed=5)
    parts = np.split(found.indices, found.offsets[1:-1])
    assert [part.tolist() for part in parts] == [[0, 4, 5, 11], [1, 3, 6, 7], [8, 10]]
    kept = saved(tmp_path, "partition.npz", indices=found.indices, offsets=found.offsets)
    again = File.partition(OwnFile(path=kept), dataset, seed=5)
    assert np.array_equal(again.indices, found.indices)
    assert File.clients(OwnFile(path=kept), dataset.info) == 3


@pytest.mark.parametrize(
    ("values", "says"),
    [
        (np.zeros(5, int), "does not deal the 12 training records"),
        (np.full(12, -1), "does not deal the 12 training records"),
        (np.full(12, 0.5), "neither a .npy array"),
        (np.full(12, 10**8), "a client's number is below -1 or above 12, the number of records"),
        (np.full(12, -2), "a client's number is below -1"),
        ({"indices": np.array([0, 0]), "offsets": np.array([0, 2])}, "does not deal"),
        ({"indices": np.array([0, 12]), "offsets": np.array([0, 2])}, "does not deal"),
        ({"indices": np.array([0, 1]), "offsets": np.array([0, 3])}, "does not deal"),
        ({"indices": np.array([0, 1, 2]), "offsets": np.array([0, 2, 1, 3])}, "does not deal"),
        ({"x": np.zeros(2)}, "neither a .npy array"),
    ],
)
def test_a_partition_that_does_not_fit_is_one_line(
    mine: str, tmp_path: Path, values: Any, says: str
) -> None:
    if isinstance(values, dict):
        path = saved(tmp_path, "deal.npz", **values)
    else:
        np.save(path := str(tmp_path / "deal.npy"), values)
    with pytest.raises(DpflError, match=says):
        File.clients(OwnFile(path=path), Arrays.info(ArraysSettings(path=mine)))


def test_a_partition_of_its_own_seed_is_shared_by_runs_of_all_seeds(mine: str) -> None:
    def dealt(*words: str) -> Partition:
        data = ["dataset=arrays", f"dataset.path={mine}", "partitioner.clients=4"]
        plan = make_plan(compose_config([*data, *words]))
        settings = plan.partitioner.settings
        dataset = plan.dataset.target.load(plan.dataset.settings, plan.seed)
        found: Partition = plan.partitioner.target.partition(settings, dataset, plan.seed)
        return found

    one, other = dealt("seed=1"), dealt("seed=2")
    assert not np.array_equal(one.indices, other.indices)
    for seed in (1, 2):
        fixed = dealt(f"seed={seed}", "partitioner.seed=1")
        assert np.array_equal(fixed.indices, one.indices)


def test_every_client_keeps_a_record(tmp_path: Path) -> None:
    path = saved(tmp_path, features=FEATURES, targets=LABELS, clients=CLIENTS)
    found = Arrays.load(ArraysSettings(path=path, test_fraction=0.99), 0)
    assert len(found.train) == found.info.clients == 3
    path = saved(tmp_path, features=FEATURES, targets=LABELS, clients=np.arange(12))
    with pytest.raises(ConfigError, match="each of the 12 clients keeps one"):
        Arrays.load(ArraysSettings(path=path, test_fraction=0.5), 0)


@given(data=st.data())
def test_how_many_records_a_client_has_moves_no_other_clients_test_records(
    data: st.DataObject,
) -> None:
    """Nor what it is called, nor whether it is there at all."""
    counts = data.draw(st.lists(st.integers(1, 9), min_size=2, max_size=6))
    fraction = data.draw(st.sampled_from([0.2, 0.5, 0.8]))
    mine = data.draw(st.integers(0, len(counts) - 1))
    owner = np.repeat([f"clinic {one}" for one in range(len(counts))], counts)

    def of_others(owner: np.ndarray, mine: str) -> dict[str, list[bool]]:
        pool = {"targets": np.zeros(len(owner)), "clients": owner}
        try:
            found = held_out_of(pool, fraction)
        except ConfigError:  # nobody was drawn
            found = np.zeros(len(owner), bool)
        return {one: found[owner == one].tolist() for one in {*owner.tolist()} - {mine}}

    name = f"clinic {mine}"
    expected = of_others(owner, name)
    assert of_others(np.append(owner, name), name) == expected
    assert of_others(owner[owner != name], name) == expected
    renamed = np.where(owner == name, "another", owner)
    assert of_others(renamed, "another") == expected


def test_a_fraction_is_held_out_on_average(tmp_path: Path) -> None:
    owner = np.repeat(np.arange(2000), 3)
    found = held_out_of({"targets": np.zeros(6000), "clients": owner}, 0.25)
    assert abs(found.sum() - 1500) < 4 * np.sqrt(2000 * 0.25 * 0.75)
    assert np.bincount(owner, found).max() == 1  # 0.75 of a record


def test_a_file_that_is_trained_on_and_tested_on_is_not_public(mine: str) -> None:
    assert Arrays.load(ArraysSettings(path=mine, test_path=mine), 0).tests_owned
