"""Generated data in the shapes of FEMNIST, Reddit, Fed-IXI and Messidor, for runs without the real ones.

They stand in: results say source=standin, and numbers on them are no numbers on the real data. All of them come with clients
and with test records of each client, depend on `dataset.data_seed` and not on the run's seed, and are kept in the process.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Annotated

import numpy as np
from numpy.random import Generator
from pydantic import Field

from dpfl_cli.config.component import Settings, component
from dpfl_cli.config.errors import ConfigError, DataError
from dpfl_cli.data.fed_ixi import standardised, volumes_info
from dpfl_cli.data.federation import Dataset, DatasetInfo, Records
from dpfl_cli.data.idx import read_idx
from dpfl_cli.data.leaf_femnist import CLASSES
from dpfl_cli.data.leaf_reddit import IGNORED, LENGTH, PAD, sequences_info
from dpfl_cli.data.messidor import normalised
from dpfl_cli.data.mnist import TEST, TRAIN
from dpfl_cli.data.sources import content_sha256, locate
from dpfl_cli.data.streams import stream_generator

Count = Annotated[int, Field(ge=1)]
Counts = Annotated[list[Count], Field(min_length=1)]
BLOCK_VALUES = 1 << 22  # numbers that a step works on at once


class EqualSettings(Settings):
    """Clients, training and test records of each of them, and the seed that the data are drawn from."""

    clients: Count
    train_records: Count
    test_records: Count
    data_seed: int = Field(default=0, ge=0, lt=2**63)


def _dataset(info: DatasetInfo, train: list[Records], test: list[Records]) -> Dataset:
    """Clients' records one after the other."""

    def joined(parts: list[Records]) -> tuple[Records, np.ndarray]:
        records = Records(np.concatenate([one.features for one in parts]), np.concatenate([one.targets for one in parts]))
        return records, np.repeat(np.arange(len(parts)), [len(one) for one in parts])

    (records, natural), (test_records, test_natural) = joined(train), joined(test)
    return Dataset(info, records, test_records, natural, test_natural=test_natural)


def _blocks(count: int, values: int) -> Iterator[slice]:
    """Slices of `count` records of so many values each that a step works on at once."""
    size = max(1, BLOCK_VALUES // values)
    return (slice(start, min(start + size, count)) for start in range(0, count, size))


# FEMNIST


class FemnistSynthSettings(EqualSettings):
    """Settings of `femnist_synth`."""

    clients: Count = 6
    train_records: Count = 6129
    test_records: Count = 684


@component("dataset", "femnist_synth", revision=1, settings=FemnistSynthSettings)
class FemnistSynth:
    """Stands in for FEMNIST: 62 classes of 28x28 images made of MNIST and Fashion-MNIST; there are no writers.

    Classes 0..19 are the ten digits and the ten clothes as they are, 20..39 the same in negative, 40..59 the same with the
    halves swapped in both directions (what was in the middle is in the corners), and 60 and 61 the digits 0 and 1 with swapped
    halves in negative. No image is used twice; the test records are made of the test images. Records are dealt evenly at random
    (iid).
    """

    sources = ("mnist", "fashion_mnist")

    @classmethod
    def info(cls, settings: FemnistSynthSettings) -> DatasetInfo:
        """Finds and verifies the files of MNIST and Fashion-MNIST; the checksum covers all of them."""
        try:
            files = {f"{name}/{file}": path for name in cls.sources for file, path in locate(name).items()}
        except DataError as error:
            raise DataError(f"{error} (femnist_synth is made of it)") from error
        return DatasetInfo(
            name="femnist_synth",
            source="standin",
            sha256=content_sha256(files),
            feature_shape=(28, 28),
            classes=CLASSES,
            records=settings.clients * settings.train_records,
            clients=settings.clients,
        )

    @classmethod
    def load(cls, settings: FemnistSynthSettings, seed: int) -> Dataset:
        """Images [N, 28, 28] float32 in [0, 1] and labels [N] int64."""
        return _femnist(cls.info(settings).sha256, settings)


@lru_cache(maxsize=2)
def _femnist(sha256: str, settings: FemnistSynthSettings) -> Dataset:
    parts = []
    for part, names in enumerate((TRAIN, TEST)):
        files = [locate(name) for name in FemnistSynth.sources]
        pool = np.concatenate([read_idx(found[names[0]]) for found in files])
        sources = np.concatenate([read_idx(found[names[1]]).astype(np.int64) + 10 * k for k, found in enumerate(files)])
        each = settings.test_records if part else settings.train_records
        generator = stream_generator(settings.data_seed, "data", part)
        labels = generator.permutation(np.arange(settings.clients * each) % CLASSES)
        images = _characters(pool, sources, labels, generator, "test_records" if part else "train_records")
        scaled = np.divide(images, np.float32(255), dtype=np.float32)
        cuts = range(each, settings.clients * each, each)
        parts.append([Records(*both) for both in zip(np.split(scaled, cuts), np.split(labels, cuts), strict=True)])
    return _dataset(FemnistSynth.info(settings), *parts)


def _characters(pool: np.ndarray, sources: np.ndarray, labels: np.ndarray, generator: Generator, field: str) -> np.ndarray:
    """[N, 28, 28] uint8 images of the labels, each made of another of the pool's."""
    kinds, classes = np.divmod(labels, 20)
    classes = np.where(kinds == 3, labels - 60, classes)
    chosen = np.empty(len(labels), np.int64)
    for source in range(20):
        here, own = np.flatnonzero(classes == source), generator.permutation(np.flatnonzero(sources == source))
        if len(here) > len(own):
            raise ConfigError(
                f"dataset.{field}: femnist_synth needs {len(here)} images of class {source % 10} of "
                f"{FemnistSynth.sources[source // 10]}, which has {len(own)}; write less, or fewer dataset.clients"
            )
        chosen[here] = own[: len(here)]
    images = pool[chosen]
    swapped, negative = kinds >= 2, kinds % 2 == 1
    images[swapped] = np.roll(images[swapped], (14, 14), (1, 2))
    images[negative] = 255 - images[negative]
    return images


# Reddit

SUCCESSORS = (0.5, 0.2, 0.1, 0.1, 0.05)  # probabilities of a token's successors; what is left is a restart
ZIPF = 1.1  # exponent of the tokens' law
PADDED, LONGEST = 0.3, 3  # probability that a sequence begins with padding, and its largest length


class RedditSynthSettings(EqualSettings):
    """Settings of `reddit_synth`. `remixed`: share of the tokens whose successors are another draw for each client."""

    vocabulary: int = Field(default=200, ge=16)
    clients: Count = 3
    train_records: Count = 2000
    test_records: Count = 500
    remixed: float = Field(default=0.2, ge=0, le=1)


@component("dataset", "reddit_synth", revision=1, settings=RedditSynthSettings)
class RedditSynth:
    """Stands in for Reddit: sequences of a Markov chain on tokens, most of it shared by the clients.

    Token 0 is <PAD> and 1 <UNK>, which never occurs; token r + 1, r = 1, 2, .., has the weight r^-1.1. Every token has five
    successors, drawn by these weights, with the probabilities .5, .2, .1, .1 and .05; else the chain restarts by the weights. A
    client's chain has other successors for a share of the tokens. A sequence of 11 tokens, begun by the weights, is ten tokens
    and their ten next ones; with probability .3 padding takes its first 1, 2 or 3 places. The best prediction is right about
    every second time.
    """

    @staticmethod
    def info(settings: RedditSynthSettings) -> DatasetInfo:
        """Known from the settings alone; there is no content to hash."""
        records = settings.clients * settings.train_records
        return sequences_info("reddit_synth", "standin", "", settings.vocabulary, records, settings.clients)

    @staticmethod
    def load(settings: RedditSynthSettings, seed: int) -> Dataset:
        """Tokens [N, 10] int64 and next tokens [N, 10] int64, -1 where the next is padding."""
        return _reddit(settings)


@lru_cache(maxsize=4)
def _reddit(settings: RedditSynthSettings) -> Dataset:
    tokens = settings.vocabulary - 2
    weights = np.arange(1, tokens + 1) ** -ZIPF
    shared = _successors(weights, tokens, stream_generator(settings.data_seed, "data", 0))
    train, test = [], []
    for client in range(settings.clients):
        generator = stream_generator(settings.data_seed, "data", 1 + client)
        successors = shared.copy()
        remixed = generator.permutation(tokens)[: round(settings.remixed * tokens)]
        successors[remixed] = _successors(weights, len(remixed), generator)
        records = _sequences(weights, successors, settings.train_records + settings.test_records, generator)
        train.append(Records(records[0][: settings.train_records], records[1][: settings.train_records]))
        test.append(Records(records[0][settings.train_records :], records[1][settings.train_records :]))
    return _dataset(RedditSynth.info(settings), train, test)


def _successors(weights: np.ndarray, count: int, generator: Generator) -> np.ndarray:
    """[k, 5] different successors of k tokens, drawn one after the other by weight.

    The first of a weighted draw without replacement are those with the smallest E / weight, E exponential.
    """
    drawn = np.empty((count, len(SUCCESSORS)), np.int64)
    for block in _blocks(count, len(weights)):
        times = generator.standard_exponential((block.stop - block.start, len(weights))) / weights
        first = np.argpartition(times, len(SUCCESSORS), axis=1)[:, : len(SUCCESSORS)]
        order = np.argsort(np.take_along_axis(times, first, axis=1), axis=1)
        drawn[block] = np.take_along_axis(first, order, axis=1)
    return drawn


def _sequences(weights: np.ndarray, successors: np.ndarray, count: int, generator: Generator) -> tuple[np.ndarray, np.ndarray]:
    """tokens [N, 10] and next tokens [N, 10] of a chain."""
    law, choices = np.cumsum(weights) / weights.sum(), np.cumsum(SUCCESSORS)

    def fresh() -> np.ndarray:
        return np.minimum(np.searchsorted(law, generator.random(count), side="right"), len(law) - 1)

    states = [fresh()]
    for _ in range(LENGTH):
        choice = np.searchsorted(choices, generator.random(count), side="right")
        followed = successors[states[-1], np.minimum(choice, len(SUCCESSORS) - 1)]
        states.append(np.where(choice < len(SUCCESSORS), followed, fresh()))
    sequences = np.stack(states, axis=1) + 2
    padding = np.where(generator.random(count) < PADDED, generator.integers(1, LONGEST + 1, count), 0)
    sequences[np.arange(LENGTH + 1) < padding[:, None]] = PAD
    following = sequences[:, 1:]
    return sequences[:, :-1].copy(), np.where(following == PAD, IGNORED, following)


# Fed-IXI

GAIN, BIAS, SLOPE, NOISE = (1.0, 1.25, 0.8), (0.0, 0.1, -0.1), (0.0, 0.2, -0.2), (0.05, 0.08, 0.12)  # of the three hospitals


class IxiSynthSettings(Settings):
    """Settings of `ixi_synth`: voxels of a volume, and training and test volumes of each hospital (three at most)."""

    shape: Annotated[list[Annotated[int, Field(ge=8)]], Field(min_length=3, max_length=3)] = Field(default=[48, 60, 48])
    train_records: Counts = Field(default=[249, 145, 59])
    test_records: Counts = Field(default=[62, 36, 15])
    data_seed: int = Field(default=0, ge=0, lt=2**63)


@component("dataset", "ixi_synth", revision=1, settings=IxiSynthSettings)
class IxiSynth:
    """Stands in for Fed-IXI: an ellipsoid brain in a shell of skull, its mask, and hospitals with other scanners.

    Lengths are in voxels of a volume of 48 x 60 x 48, and scale with its first side. Brain: semi-axes 14-18, 19-23, 14-18,
    centre within 2 of the middle along each axis, rotated by up to 10 degrees about each axis, intensity 1 and a Gaussian field
    of std .15 smoothed with sigma 4. Skull: a shell of thickness 2 at a gap of 2, intensity .9-1.3. Hospital i scales by (1,
    1.25, .8), shifts by (0, .1, -.1), has a field that grows along the first axis from 1 - s to 1 + s, s = (0, .2, -.2), and
    noise of std (.05, .08, .12).
    """

    @staticmethod
    def info(settings: IxiSynthSettings) -> DatasetInfo:
        """Known from the settings alone; there is no content to hash."""
        records, hospitals = sum(settings.train_records), len(settings.train_records)
        if hospitals != len(settings.test_records) or hospitals > len(GAIN):
            raise ConfigError(
                f"dataset.train_records={settings.train_records} and dataset.test_records={settings.test_records}: one number "
                f"for each hospital, as many in both and {len(GAIN)} at most"
            )
        return volumes_info("ixi_synth", "standin", "", tuple(settings.shape), records, hospitals)

    @staticmethod
    def load(settings: IxiSynthSettings, seed: int) -> Dataset:
        """Volumes [N, 1, x, y, z] float32, each of mean 0 and std 1, and masks [N, x, y, z] uint8."""
        return _ixi(settings.model_dump_json())


@lru_cache(maxsize=2)
def _ixi(dumped: str) -> Dataset:
    settings = IxiSynthSettings.model_validate_json(dumped)
    info, train, test = IxiSynth.info(settings), [], []
    for hospital, (first, rest) in enumerate(zip(settings.train_records, settings.test_records, strict=True)):
        generator = stream_generator(settings.data_seed, "data", hospital)
        volumes, masks = _brains(hospital, first + rest, tuple(settings.shape), generator)
        train.append(Records(volumes[:first], masks[:first]))
        test.append(Records(volumes[first:], masks[first:]))
    return _dataset(info, train, test)


def _brains(hospital: int, count: int, shape: tuple[int, ...], generator: Generator) -> tuple[np.ndarray, np.ndarray]:
    """volumes [N, 1, x, y, z] and masks [N, x, y, z] of one hospital."""
    from scipy.ndimage import gaussian_filter

    scale = shape[0] / 48
    axes = scale * generator.uniform((14, 19, 14), (18, 23, 18), (count, 3))
    centres = (np.array(shape) - 1) / 2 + scale * generator.uniform(-2, 2, (count, 3))
    turns = _rotations(np.deg2rad(generator.uniform(-10, 10, (count, 3))))
    skulls = generator.uniform(0.9, 1.3, count)
    grid = np.stack(np.meshgrid(*(np.arange(side) for side in shape), indexing="ij"), axis=-1).reshape(-1, 3)
    field = 1 + SLOPE[hospital] * np.linspace(-1, 1, shape[0])
    volumes, masks = np.empty((count, *shape), np.float32), np.empty((count, *shape), np.uint8)
    for block in _blocks(count, 3 * len(grid)):
        own = (grid - centres[block, None]) @ turns[block]  # [b, voxels, 3] along the axes of the ellipsoid
        brain, inner, outer = (
            (np.square(own / (axes[block] + scale * wider)[:, None]).sum(axis=-1) < 1).reshape(-1, *shape) for wider in (0, 2, 4)
        )
        smooth = gaussian_filter(generator.standard_normal(brain.shape, np.float32), (0, *(3 * [4 * scale])))
        smooth *= 0.15 / smooth.std(axis=(1, 2, 3), keepdims=True)
        clean = brain * (1 + smooth) + (outer & ~inner) * skulls[block, None, None, None]
        scanned = GAIN[hospital] * clean * field[:, None, None] + BIAS[hospital]
        volumes[block] = scanned + NOISE[hospital] * generator.standard_normal(brain.shape, np.float32)
        masks[block] = brain
    return standardised(volumes)[:, None], masks


def _rotations(angles: np.ndarray) -> np.ndarray:
    """[N, 3, 3] rotations about the three axes in turn, by angles [N, 3]."""
    product = np.eye(3)
    for axis in range(3):
        turn = np.zeros((len(angles), 3, 3))
        i, j = (axis + 1) % 3, (axis + 2) % 3
        turn[:, axis, axis] = 1
        turn[:, i, i] = turn[:, j, j] = np.cos(angles[:, axis])
        turn[:, j, i] = np.sin(angles[:, axis])
        turn[:, i, j] = -turn[:, j, i]
        product = product @ turn
    return product


# Messidor

COLOURS, BLURS = ((1.0, 1.0, 1.0), (0.9, 1.05, 1.1), (1.1, 0.95, 0.85)), (0.0, 0.5, 1.0)  # of the three hospitals
POSITIVE = 0.55  # share of the records that are of class 1
ORANGE, DISC, VESSEL, RED, YELLOW = (
    (0.85, 0.45, 0.2),
    (1.0, 0.9, 0.6),
    (0.45, 0.12, 0.08),
    (0.35, 0.05, 0.05),
    (0.95, 0.85, 0.35),
)
SPOTS, BLOBS, VESSELS = (3, 12), (0, 4), (4, 6)  # smallest and largest number


class MessidorSynthSettings(EqualSettings):
    """Settings of `messidor_synth`: `side` of an image, and records of each hospital (three at most)."""

    side: int = Field(default=224, ge=32)
    clients: int = Field(default=3, ge=1, le=len(BLURS))
    train_records: Count = 300
    test_records: Count = 100


@component("dataset", "messidor_synth", revision=1, settings=MessidorSynthSettings)
class MessidorSynth:
    """Stands in for Messidor: drawn fundus images, in class 1 with dark red spots and yellow blobs.

    Of width W: an orange disc of radius .45 W, darker towards its edge, on black; a bright optic disc at .25 W to the left or
    right; 4-6 dark vessels that wander from there. Class 1 (55 in 100 of a hospital's training and of its test records) has
    3-12 dark red spots of radius .01-.02 W and 0-4 yellow blobs of .015-.03 W. Hospitals differ in colour and blur (0, .5 and 1
    pixel).
    """

    @staticmethod
    def info(settings: MessidorSynthSettings) -> DatasetInfo:
        """Known from the settings alone; there is no content to hash."""
        return DatasetInfo(
            name="messidor_synth",
            source="standin",
            sha256="",
            feature_shape=(3, settings.side, settings.side),
            classes=2,
            records=settings.clients * settings.train_records,
            clients=settings.clients,
        )

    @staticmethod
    def load(settings: MessidorSynthSettings, seed: int) -> Dataset:
        """Images [N, 3, side, side] float32, scaled by ImageNet's means and stds, and labels [N] int64."""
        return _messidor(settings)


@lru_cache(maxsize=2)
def _messidor(settings: MessidorSynthSettings) -> Dataset:
    parts: list[list[Records]] = [[], []]
    for hospital in range(settings.clients):
        for part, count in enumerate((settings.train_records, settings.test_records)):
            generator = stream_generator(settings.data_seed, "data", hospital, part)
            labels = generator.permutation((np.arange(count) < round(POSITIVE * count)).astype(np.int64))
            images = np.empty((count, 3, settings.side, settings.side), np.float32)
            for block in _blocks(count, 8 * settings.side**2):
                images[block] = normalised(fundus_images(hospital, labels[block], settings.side, generator))
            parts[part].append(Records(images, labels))
    return _dataset(MessidorSynth.info(settings), *parts)


def fundus_images(hospital: int, labels: np.ndarray, side: int, generator: Generator) -> np.ndarray:
    """[N, side, side, 3] uint8 drawn images of one hospital."""
    from scipy.ndimage import gaussian_filter

    count = len(labels)
    rows, columns = np.meshgrid(np.arange(side, dtype=np.float32), np.arange(side, dtype=np.float32), indexing="ij")
    middle = (side - 1) / 2
    from_middle = np.hypot(rows - middle, columns - middle)
    canvas = np.empty((count, side, side, 3), np.float32)
    canvas[:] = (1 - 0.5 * np.square(from_middle / (0.45 * side)))[..., None] * np.array(ORANGE, np.float32)

    def paint(cover: np.ndarray, colour: tuple[float, ...]) -> None:
        canvas[:] += cover[..., None] * (np.array(colour, np.float32) - canvas)

    def paint_discs(centres: np.ndarray, radii: np.ndarray, colour: tuple[float, ...]) -> None:
        """Discs at centres [N, k, 2] of radii [N, k] (0: none), with an edge of one pixel."""
        for centre, radius in zip(centres.swapaxes(0, 1), radii.T, strict=True):  # disc by disc, of all images at once
            y, x, r = (part.astype(np.float32)[:, None, None] for part in (centre[:, 0], centre[:, 1], radius))
            edge = np.where(r > 0, r - np.hypot(rows - y, columns - x) + 0.5, 0)
            paint(np.clip(edge, 0, 1), colour)

    left_or_right = np.where(generator.random(count) < 0.5, -0.25, 0.25) * side
    optic = np.stack([middle + generator.normal(0, 0.02 * side, count), middle + left_or_right], axis=1)
    paint_discs(optic[:, None], np.full((count, 1), 0.07 * side), DISC)
    paint(0.8 * _vessels(optic, side, generator), VESSEL)
    sick = labels[:, None] == 1
    for (least, most), (small, large), colour in ((SPOTS, (0.01, 0.02), RED), (BLOBS, (0.015, 0.03), YELLOW)):
        there = sick & (np.arange(most) < generator.integers(least, most + 1, count)[:, None])
        distance, angle = 0.4 * side * np.sqrt(generator.random((count, most))), generator.uniform(0, 2 * np.pi, (count, most))
        centres = middle + distance[..., None] * np.stack([np.sin(angle), np.cos(angle)], axis=-1)
        paint_discs(centres, np.where(there, generator.uniform(small, large, there.shape) * side, 0), colour)
    canvas *= np.array(COLOURS[hospital], np.float32)
    canvas[:, from_middle > 0.45 * side] = 0
    if BLURS[hospital]:
        canvas = gaussian_filter(canvas, (0, BLURS[hospital], BLURS[hospital], 0))
    return np.rint(255 * np.clip(canvas, 0, 1)).astype(np.uint8)


def _vessels(optic: np.ndarray, side: int, generator: Generator) -> np.ndarray:
    """[N, side, side] float32 cover of the vessels: walks of steps of half a pixel whose direction wanders."""
    from scipy.ndimage import maximum_filter

    count, (least, most), steps = len(optic), VESSELS, 2 * side
    there = np.arange(most) < generator.integers(least, most + 1, count)[:, None]
    turns = generator.normal(0, 0.5 / np.sqrt(side), (count, most, steps)).cumsum(axis=2)
    directions = generator.uniform(0, 2 * np.pi, (count, most, 1)) + turns
    walks = optic[:, None, None, :] + np.stack([np.sin(directions), np.cos(directions)], axis=-1).cumsum(axis=2) / 2
    places = np.rint(walks).astype(np.int64)
    inside = there[..., None] & (places >= 0).all(axis=-1) & (places < side).all(axis=-1)
    cover = np.zeros((count, side, side), np.float32)
    image = np.broadcast_to(np.arange(count)[:, None, None], inside.shape)[inside]
    cover[image, places[inside][:, 0], places[inside][:, 1]] = 1
    width = max(1, round(side / 75))
    return maximum_filter(cover, (1, width, width)) if width > 1 else cover
