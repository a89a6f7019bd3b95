"""LEAF's JSON: FEMNIST and Reddit, from small files written here."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
from small_files import FIRST, SECOND, femnist_file, reddit_file

from dpfl_cli.config.compose import compose_config
from dpfl_cli.config.errors import ConfigError, DataError
from dpfl_cli.data import leaf_femnist, loading
from dpfl_cli.data.leaf_femnist import Femnist, FemnistSettings
from dpfl_cli.data.leaf_reddit import IGNORED, Reddit, RedditSettings

TINY = RedditSettings(vocabulary=8, clients=2, train_records=None, test_records=None)


def put(folder: Path, files: dict[str, dict]) -> None:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(content).encode()
        path.write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
    loading.kept.cache_clear()


@pytest.fixture
def femnist(tmp_path, monkeypatch):
    monkeypatch.setenv("DPFL_DATA", str(tmp_path / "data"))
    folder = tmp_path / "data" / "femnist"
    put(
        folder,
        {
            "all_data/all_data_0.json": femnist_file(FIRST),
            "all_data/all_data_1.json.gz": femnist_file(SECOND),
        },
    )
    return folder


def of(records) -> tuple[np.ndarray, np.ndarray]:
    """writer and place of each record."""
    flat = records.features.reshape(len(records), -1)
    return np.rint(flat[:, 0] * 10).astype(int), np.rint(flat[:, 1] * 100).astype(int)


def test_writers_stay_whole_and_every_record_is_used_once(femnist) -> None:
    data = Femnist.load(FemnistSettings(share=1.0, clients=2, split="writers"), seed=3)
    assert data.info.source == "real"
    assert data.train.features.shape == (len(data.train), 28, 28)
    assert data.train.features.dtype == np.float32
    writers, places = (
        np.concatenate(both) for both in zip(of(data.train), of(data.test), strict=True)
    )
    assert sorted(zip(writers, places, strict=True)) == [
        (w + 1, k) for w, n in enumerate([30, 10, 25, 40, 20]) for k in range(n)
    ]
    np.testing.assert_array_equal(of(data.train)[1] % 62, data.train.targets)
    client = np.concatenate([data.natural, data.test_natural])
    for writer in range(1, 6):
        assert len(set(client[writers == writer])) == 1
    for number in range(2):
        held, kept = (data.test_natural == number).sum(), (data.natural == number).sum()
        assert held == round(0.1 * (held + kept))
    assert data.info.records == len(data.natural)


def test_how_many_records_a_writer_has_moves_nobody_elses(femnist) -> None:
    settings = FemnistSettings(share=0.5, clients=5, split="writers", test_fraction=0.3)

    def trained() -> dict[int, set[int]]:
        loading.kept.cache_clear()
        data = Femnist.load(settings, seed=0)
        writers, places = of(data.train)
        return {one: {*places[writers == one].tolist()} for one in range(2, 6)}

    expected = trained()
    more = {**FIRST, next(iter(FIRST)): next(iter(FIRST.values())) + 1}
    put(femnist, {"all_data/all_data_0.json": femnist_file(more)})
    assert trained() == expected


def test_a_share_is_drawn_and_iid_deals_evenly(femnist) -> None:
    data = Femnist.load(FemnistSettings(share=0.5, clients=3), seed=0)
    assert FemnistSettings(share=0.5, clients=3) == FemnistSettings(
        share=0.5, clients=3, split="iid"
    )
    assert compose_config(["dataset=femnist"])["dataset"]["split"] == "iid"
    total = len(data.train) + len(data.test)
    assert 40 < total < 85  # of 125
    sizes = np.bincount(np.concatenate([data.natural, data.test_natural]))
    assert sizes.max() - sizes.min() <= 1
    other = Femnist.load(FemnistSettings(share=0.5, clients=3, split="iid", data_seed=1), seed=0)
    assert not np.array_equal(other.train.features, data.train.features)
    mixed = {number: set(of(data.train)[0][data.natural == number]) for number in range(3)}
    assert any(len(writers) > 2 for writers in mixed.values())


def test_a_published_split_is_used(femnist) -> None:
    put(
        femnist,
        {
            "train/a.json": femnist_file(FIRST),
            "test/a.json": femnist_file({"w1": 3, "w3": 4, "w2": 2}, start=50),
        },
    )
    data = Femnist.load(FemnistSettings(share=1.0, clients=2, split="writers"), seed=0)
    assert (len(data.train), len(data.test)) == (65, 9)
    assert of(data.test)[1].min() >= 50
    own = dict(zip(of(data.train)[0], data.natural, strict=True))
    assert all(
        own[writer] == client
        for writer, client in zip(of(data.test)[0], data.test_natural, strict=True)
    )


def test_the_checksum_follows_the_content_and_decoding_is_kept(femnist, monkeypatch) -> None:
    settings = FemnistSettings(share=1.0, clients=2)
    before = Femnist.info(settings).sha256
    loading.kept.cache_clear()
    monkeypatch.setattr(leaf_femnist, "_decode", None)  # a second process finds the decoded arrays
    assert Femnist.info(settings).sha256 == before
    monkeypatch.undo()
    monkeypatch.setenv("DPFL_DATA", str(femnist.parent))
    put(femnist, {"all_data/all_data_0.json": femnist_file({**FIRST, "w1": 29})})
    changed = Femnist.info(settings)
    assert changed.sha256 != before
    assert changed.records == len(Femnist.load(settings, 0).natural)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda content: content.pop("users"), "users: Field required"),
        (
            lambda content: content["num_samples"].__setitem__(0, 7),
            "another number of records",
        ),
        (lambda content: content["user_data"].pop("w2"), "not of the same users"),
        (lambda content: content["user_data"]["w1"]["y"].pop(), "one length"),
        (
            lambda content: content["user_data"]["w1"]["x"][2].pop(),
            "x 2: List should have at",
        ),
        (
            lambda content: content["user_data"]["w1"]["x"][2].__setitem__(5, 3.0),
            "x 2 5: Input should be less than or equal to 1",
        ),
        (
            lambda content: content["user_data"]["w3"]["y"].__setitem__(0, 62),
            "y 0: Input should",
        ),
    ],
)
def test_a_damaged_file_is_named(femnist, change, said) -> None:
    content = femnist_file(FIRST)
    change(content)
    put(femnist, {"all_data/all_data_0.json": content})
    with pytest.raises(DataError, match=said) as error:
        Femnist.info(FemnistSettings())
    assert "all_data_0.json" in str(error.value)
    assert "\n" not in str(error.value)


def test_truncated_files_half_splits_and_empty_folders_are_named(
    femnist, tmp_path, monkeypatch
) -> None:
    (femnist / "all_data" / "all_data_0.json").write_text('{"users": [')
    with pytest.raises(DataError, match=r"all_data_0\.json: not LEAF's JSON.*EOF"):
        Femnist.info(FemnistSettings())
    put(femnist, {"train/a.json": femnist_file(FIRST)})
    with pytest.raises(
        DataError, match=r"not both of train/\*\.json and .*, or all_data/\*\.json in their place$"
    ):
        Femnist.info(FemnistSettings())
    monkeypatch.setenv("DPFL_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(DataError, match=r"femnist: no folder femnist in DPFL_DATA=.*femnist_synth"):
        Femnist.info(FemnistSettings())


# Reddit


@pytest.fixture
def reddit(tmp_path, monkeypatch):
    monkeypatch.setenv("DPFL_DATA", str(tmp_path / "data"))
    folder = tmp_path / "data" / "reddit"
    train = {"1": ["a b a c", "a b"], "2": ["b a d e f g h i j k l m"], "3": ["c a"], "4": []}
    test = {"1": ["a zzz"], "2": ["b"], "3": ["c b"], "4": ["a"]}
    put(
        folder,
        {
            "train/reddit_0_train.json": reddit_file(train),
            "test/reddit_0_test.json": reddit_file(test),
        },
    )
    return folder


def test_the_vocabulary_and_the_sequences_by_hand(reddit) -> None:
    data = Reddit.load(TINY, seed=0)
    # in training inputs: a 5, then <BOS> 4 and <EOS> 4 (in the order of the tokens), b 3, c 2, d
    #   (first of those with 1)
    number = {"<PAD>": 0, "<UNK>": 1, "a": 2, "<BOS>": 3, "<EOS>": 4, "b": 5, "c": 6, "d": 7}
    first = [3, 2, 5, 2, 6, 4, 0, 0, 0, 0]  # <BOS> a b a c <EOS>
    place = np.flatnonzero((data.train.features == first).all(axis=1))
    assert len(place) == 1
    assert data.train.targets[place[0]].tolist() == [
        2,
        5,
        2,
        6,
        4,
        0,
        *[IGNORED] * 4,
    ]  # after <EOS> comes <PAD>, which counts
    long = (
        [3, 5, 2, 7, 1, 1, 1, 1, 1, 1],
        [1, 1, 1, 4, 0, 0, 0, 0, 0, 0],
    )  # two sequences of one comment; e .. m are <UNK>
    for row in long:
        assert (data.train.features == row).all(axis=1).any()
    assert len(data.train) == 5
    assert data.info.details == {"vocabulary": 8}
    assert (data.info.classes, data.info.feature_shape, data.info.target_shape) == (
        None,
        (10,),
        (10,),
    )
    assert (
        (data.test.features == [number["<BOS>"], number["a"], 1, number["<EOS>"], 0, 0, 0, 0, 0, 0])
        .all(axis=1)
        .any()
    )
    assert Reddit.not_covered(TINY) == [
        "vocabulary (the 6 most frequent tokens of the training data)"
    ]


def test_users_stay_with_one_client_in_training_and_test(reddit) -> None:
    words = [f"word{k}" for k in range(6)]  # a word of its own for each user
    put(
        reddit,
        {
            "train/reddit_0_train.json": reddit_file(
                {str(k): [word, word] for k, word in enumerate(words)}
            )
        },
    )
    put(
        reddit,
        {"test/reddit_0_test.json": reddit_file({str(k): [word] for k, word in enumerate(words)})},
    )
    data = Reddit.load(TINY.model_copy(update={"vocabulary": 100}), seed=0)
    owners = dict(zip(data.train.features[:, 1], data.natural, strict=True))
    assert len(owners) == len(words)
    assert sorted(np.bincount(list(owners.values()))) == [3, 3]
    for records, clients in ((data.train, data.natural), (data.test, data.test_natural)):
        assert all(
            owners[word] == client
            for word, client in zip(records.features[:, 1], clients, strict=True)
        )


def test_sequences_are_drawn_and_too_many_refused(reddit) -> None:
    some = TINY.model_copy(update={"train_records": 1, "test_records": 1})
    data = Reddit.load(some, seed=0)
    assert data.natural.tolist() == data.test_natural.tolist() == [0, 1]
    with pytest.raises(
        ConfigError, match=r"dataset\.train_records=100: client 0 of 2 has \d+ sequences"
    ):
        Reddit.load(TINY.model_copy(update={"train_records": 100}), seed=0)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda y: y.pop("target_tokens"), "target_tokens: Field required"),
        (lambda y: y["target_tokens"][0].pop(), "at least 10 items"),
        (lambda y: y["count_tokens"].pop(), "not as many targets or counts"),
        (lambda y: y["count_tokens"][0].__setitem__(0, 2), "valid boolean"),
        (lambda y: y["target_tokens"][0].__setitem__(0, 5), "valid string"),
    ],
)
def test_a_damaged_comment_is_named(reddit, change, said) -> None:
    content = reddit_file({"7": ["a b", "c"]})
    change(content["user_data"]["7"]["y"][1])
    put(reddit, {"train/reddit_0_train.json": content})
    with pytest.raises(DataError, match=said) as error:
        Reddit.info(TINY)
    assert "reddit_0_train.json: not LEAF's JSON: user_data 7" in str(error.value)


def test_what_reddit_advises_is_what_it_takes(reddit) -> None:
    (reddit / "test" / "reddit_0_test.json").unlink()
    with pytest.raises(
        DataError, match=r"not both of train/\*\.json and test/\*\.json; put both there$"
    ):
        Reddit.load(TINY, seed=0)
    (reddit / "train" / "reddit_0_train.json").unlink()
    put(reddit, {"all_data/all_data.json": reddit_file({"7": ["a b"]})})
    with pytest.raises(
        DataError, match=r"not both of train/\*\.json and test/\*\.json; put both there$"
    ):
        Reddit.load(TINY, seed=0)
