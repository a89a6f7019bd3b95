"""Generated stand-ins: their laws, their sizes, and that they say what they are."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import ndimage
from small_files import entry_of, idx_bytes, looked_at, put

from dpfl_cli.config.component import parse_settings
from dpfl_cli.config.errors import ConfigError
from dpfl_cli.data.backbones import IMAGENET
from dpfl_cli.data.fed_ixi import IxiSynth, IxiSynthSettings
from dpfl_cli.data.leaf_femnist import FemnistSynth, FemnistSynthSettings
from dpfl_cli.data.leaf_reddit import IGNORED, PAD, RedditSynth, RedditSynthSettings
from dpfl_cli.data.messidor import RED, MessidorSynth, MessidorSynthSettings
from dpfl_cli.data.partitioners import DrawnSettings, Natural
from dpfl_cli.data.sources import CATALOGUE

REDDIT = RedditSynthSettings(train_records=4000, test_records=400)
IXI = IxiSynthSettings(shape=[24, 30, 24], train_records=[6, 4, 4], test_records=[2, 1, 1])
MESSIDOR = MessidorSynthSettings(side=64, train_records=20, test_records=10)
MEAN, STD = IMAGENET


def test_reddit_is_a_chain_with_five_successors_and_padding() -> None:
    data = RedditSynth.load(REDDIT, seed=0)
    tokens, following = data.train.features, data.train.targets
    np.testing.assert_array_equal(
        tokens[:, 1:], np.where(following[:, :-1] == IGNORED, PAD, following[:, :-1])
    )
    padded = tokens[:, 0] == PAD
    assert abs(padded.mean() - 0.3) < 0.02
    lengths = (tokens[padded] == PAD).sum(axis=1)
    np.testing.assert_allclose(
        np.bincount(lengths, minlength=4)[1:] / len(lengths), 1 / 3, atol=0.04
    )
    assert set(np.unique(tokens)) <= {PAD, *range(2, 200)}
    # of one client, what follows the token seen most often: probabilities .5, .2, .1, .1, .05 and a
    #   twentieth by the weights
    own = data.natural == 0
    here = (tokens[own] != PAD) & (following[own] != IGNORED)
    pairs, after = tokens[own][here], following[own][here]
    often = np.bincount(pairs).argmax()
    shares = np.sort(np.bincount(after[pairs == often]) / (pairs == often).sum())[::-1]
    np.testing.assert_allclose(shares[:5], [0.5, 0.2, 0.1, 0.1, 0.05], atol=0.04)
    assert shares[5:].sum() < 0.07


def best_next(data, client: int, least: int = 40) -> dict[int, int]:
    """The token that most often follows each token that a client has often."""
    rows = data.natural == client
    counts = np.zeros((200, 200), int)
    counted = (data.train.targets[rows] != IGNORED) & (data.train.features[rows] != PAD)
    np.add.at(counts, (data.train.features[rows][counted], data.train.targets[rows][counted]), 1)
    return {
        token: int(counts[token].argmax()) for token in np.flatnonzero(counts.sum(axis=1) >= least)
    }


@pytest.mark.parametrize(
    ("remixed", "least", "most"), [(0.0, 0.97, 1.0), (0.2, 0.5, 0.8), (1.0, 0.0, 0.3)]
)
def test_clients_of_reddit_share_what_is_not_remixed(remixed, least, most) -> None:
    data = RedditSynth.load(REDDIT.model_copy(update={"remixed": remixed}), seed=0)
    one, other = best_next(data, 0), best_next(data, 1)
    common = [token for token in one if token in other]
    assert len(common) > 20
    assert least <= np.mean([one[token] == other[token] for token in common]) <= most


def test_a_brain_is_one_ellipsoid_between_the_sizes_of_the_recipe() -> None:
    data = IxiSynth.load(IXI, seed=0)
    assert np.bincount(data.natural).tolist() == [6, 4, 4]
    for volume, mask in zip(data.train.features[:, 0], data.train.targets, strict=True):
        assert ndimage.label(mask)[1] == 1
        assert 4 / 3 * np.pi * 7 * 9.5 * 7 * 0.95 < mask.sum() < 4 / 3 * np.pi * 9 * 11.5 * 9 * 1.05
        assert abs(volume.mean()) < 1e-5
        assert abs(volume.std() - 1) < 1e-5
        background = ~ndimage.binary_dilation(mask, iterations=5)
        assert volume[mask == 1].mean() > volume[background].mean() + 1
        gap = ndimage.binary_dilation(mask, iterations=2) & ~ndimage.binary_dilation(
            mask, iterations=1
        )
        assert gap.any()


def test_hospitals_differ_in_noise() -> None:
    data = IxiSynth.load(IXI, seed=0)
    contrasts = []
    for hospital in range(3):
        own = data.natural == hospital
        corner = data.train.features[own, 0, :3, :3, :3].std(axis=(1, 2, 3))
        brain = np.array(
            [
                v[m == 1].mean()
                for v, m in zip(data.train.features[own, 0], data.train.targets[own], strict=True)
            ]
        )
        contrasts.append((corner / brain).mean())
    assert contrasts[0] < contrasts[1] < contrasts[2]


def test_only_sick_eyes_have_spots() -> None:
    data = MessidorSynth.load(MESSIDOR, seed=0)
    images = data.train.features.transpose(0, 2, 3, 1) * np.array(STD, np.float32) + np.array(
        MEAN, np.float32
    )
    first = data.natural == 0  # the hospital without blur
    for hospital in range(3):
        assert data.train.targets[data.natural == hospital].sum() == 11  # 55 in 100
    red = (np.abs(images[first] - np.array(RED)).max(axis=-1) < 0.04).sum(axis=(1, 2))
    sick = data.train.targets[first] == 1
    assert (red[sick] > 0).mean() > 0.9
    assert (red[~sick] == 0).all()
    assert (images[:, 0, 0] < 1e-6).all()  # black outside of the disc
    assert np.median(images[first][:, 24:40, 24:40, 0]) > 1.5 * np.median(
        images[first][:, 24:40, 24:40, 2]
    )  # orange


def test_larger_lesions_cover_more_of_sick_eyes_and_nothing_of_others() -> None:
    small, large = (
        MessidorSynth.load(MESSIDOR.model_copy(update={"lesion_size": size}), seed=0)
        for size in (1.0, 3.5)
    )
    np.testing.assert_array_equal(small.train.targets, large.train.targets)
    sick, first = small.train.targets == 1, small.natural == 0
    np.testing.assert_array_equal(small.train.features[~sick], large.train.features[~sick])
    red = []
    for data in (small, large):
        images = data.train.features[sick & first].transpose(0, 2, 3, 1)
        images = images * np.array(STD, np.float32) + np.array(MEAN, np.float32)
        red.append((np.abs(images - np.array(RED)).max(axis=-1) < 0.04).sum())
    assert red[1] > 5 * red[0]
    with pytest.raises(ConfigError, match=r"dataset\.lesion_size"):
        parse_settings(MessidorSynthSettings, {"lesion_size": 0}, "dataset")


@pytest.mark.parametrize(
    ("kind", "settings", "draw"),
    [
        (RedditSynth, REDDIT, "leaf_reddit._sequences"),
        (IxiSynth, IXI, "fed_ixi._brains"),
        (MessidorSynth, MESSIDOR, "messidor.fundus_images"),
    ],
)
def test_clients_and_counts_are_known_before_a_record_is_drawn(
    kind, settings, draw, monkeypatch
) -> None:
    monkeypatch.setattr(f"dpfl_cli.data.{draw}", lambda *_: pytest.fail("drawn"))
    other = settings.model_copy(update={"data_seed": 7})
    data, federation = (
        kind.load(other, 0),
        Natural.partition(DrawnSettings(), kind.load(other, 0), 0),
    )
    monkeypatch.undo()
    assert federation.counts.sum() == data.info.records == len(data.train)
    assert len(data.natural) == len(data.train)
    assert len(data.test_natural) == len(data.test)


def test_three_hospitals_at_most_are_drawn() -> None:
    for train, test in ((4, 4), (2, 3)):
        with pytest.raises(ConfigError, match="3 at most"):
            IxiSynth.info(IxiSynthSettings(train_records=[1] * train, test_records=[1] * test))
    with pytest.raises(ConfigError, match=r"dataset\.clients"):
        parse_settings(MessidorSynthSettings, {"clients": 4}, "dataset")


# FEMNIST


@pytest.fixture
def grey(tmp_path, monkeypatch) -> None:
    """Small MNIST and Fashion-MNIST: 40 training and 20 test images of each class, which say at two
    places what they are.
    """
    monkeypatch.setenv("DPFL_DATA", str(tmp_path / "data"))
    for offset, name in enumerate(FemnistSynth.sources):
        arrays = {}
        for part, count in (("train", 40), ("t10k", 20)):
            labels = np.tile(np.arange(10, dtype=np.uint8), count)
            images = np.zeros((10 * count, 28, 28), np.uint8)
            images[:, 0, 0] = 1 + labels + 10 * offset  # the source class
            images[:, 0, 1] = (
                1 + np.arange(10 * count) // 10 + 40 * (part == "t10k")
            )  # which image of it
            arrays |= {f"{part}-images-idx3-ubyte": images, f"{part}-labels-idx1-ubyte": labels}
        files = {key: idx_bytes(values) for key, values in arrays.items()}
        monkeypatch.setitem(CATALOGUE, name, entry_of(files, name))
        put(tmp_path / "data" / name, files)


def test_characters_are_made_as_said_and_no_image_twice(grey) -> None:
    settings = FemnistSynthSettings(clients=4, train_records=124, test_records=62)
    data, info = FemnistSynth.load(settings, seed=0), FemnistSynth.info(settings)
    assert (info.source, info.classes, info.records, info.clients) == ("standin", 62, 496, 4)
    assert info.sha256
    for records, test in ((data.train, False), (data.test, True)):
        used = set()
        pixels = np.rint(255 * records.features).astype(np.uint8)
        for image, label in zip(pixels, records.targets, strict=True):
            kind, source = (3, label - 60) if label >= 60 else divmod(label, 20)
            upright = 255 - image if kind % 2 else image
            upright = np.roll(upright, (-14, -14), (0, 1)) if kind >= 2 else upright
            assert upright[0, 0] == 1 + source
            assert (upright.ravel()[2:] == 0).all()
            assert (upright[0, 1] > 40) == test
            used.add((upright[0, 0], upright[0, 1]))
        assert len(used) == len(records)
        assert np.bincount(records.targets).tolist() == [len(records) // 62] * 62
    assert np.bincount(data.natural).tolist() == [124] * 4


def test_more_characters_than_images_are_refused(grey) -> None:
    with pytest.raises(
        ConfigError,
        match=r"dataset\.train_records: femnist_synth needs \d+ images of class 0 of mnist, which",
    ):
        looked_at(
            FemnistSynth.load(
                FemnistSynthSettings(clients=6, train_records=200, test_records=1), seed=0
            )
        )
