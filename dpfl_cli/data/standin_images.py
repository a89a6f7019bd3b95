"""Generated data in the shapes of Fed-IXI and Messidor, for runs without the real ones; see
`standins`."""

from collections.abc import Iterator
from typing import Annotated

import numpy as np
from numpy.random import Generator
from pydantic import Field

from dpfl_cli.config.component import Count, Seed, Settings, component
from dpfl_cli.config.errors import ConfigError
from dpfl_cli.data.fed_ixi import standardised, volumes_info
from dpfl_cli.data.federation import Dataset, DatasetInfo
from dpfl_cli.data.loading import Kept, Pair, Pairs, drawn_later
from dpfl_cli.data.messidor import normalised
from dpfl_cli.data.standins import EqualSettings, some_at_once
from dpfl_cli.data.streams import stream_generator

Counts = Annotated[list[Count], Field(min_length=1)]
GAIN, BIAS = (1.0, 1.25, 0.8), (0.0, 0.1, -0.1)  # of the three hospitals
SLOPE, NOISE = (0.0, 0.2, -0.2), (0.05, 0.08, 0.12)


class IxiSynthSettings(Settings):
    """Settings of `ixi_synth`: voxels of a volume, and training and test volumes of each hospital
    (three at most).
    """

    shape: Annotated[list[Annotated[int, Field(ge=8)]], Field(min_length=3, max_length=3)] = Field(
        default=[48, 60, 48]
    )
    train_records: Counts = Field(default=[249, 145, 59])
    test_records: Counts = Field(default=[62, 36, 15])
    data_seed: Seed = 0


@component("dataset", "ixi_synth", revision=1, settings=IxiSynthSettings)
class IxiSynth(Kept):
    """Stands in for Fed-IXI: an ellipsoid brain in a shell of skull, its mask, and hospitals with
    other scanners.

    Lengths are in voxels of a volume of 48 x 60 x 48, and scale with its first side. Brain:
    semi-axes 14-18, 19-23, 14-18, centre within 2 of the middle along each axis, rotated by up to
    10 degrees about each axis, intensity 1 and a Gaussian field of std .15 smoothed with sigma 4.
    Skull: a shell of thickness 2 at a gap of 2, intensity .9-1.3. Hospital i scales by
    (1, 1.25, .8), shifts by (0, .1, -.1), has a field that grows along the first axis from 1 - s to
    1 + s, s = (0, .2, -.2), and noise of std (.05, .08, .12).
    """

    @staticmethod
    def make(settings: IxiSynthSettings, content: None) -> Dataset:
        """Volumes [N, 1, x, y, z] float32, each of mean 0 and std 1, and masks [N, x, y, z]
        uint8.
        """
        train, test, shape = settings.train_records, settings.test_records, tuple(settings.shape)
        if len(train) != len(test) or len(train) > len(GAIN):
            raise ConfigError(
                f"dataset.train_records={train} and dataset.test_records={test}: one number for "
                f"each hospital, as many in both and {len(GAIN)} at most"
            )

        def draw() -> Iterator[Pairs]:
            for hospital, (first, rest) in enumerate(zip(train, test, strict=True)):
                generator = stream_generator(settings.data_seed, "data", hospital)
                volumes, masks = _brains(hospital, first + rest, shape, generator)
                yield (volumes[:first], masks[:first]), (volumes[first:], masks[first:])

        info = volumes_info("ixi_synth", "standin", "", shape, sum(train), len(train))
        return drawn_later(info, train, test, draw)


def _brains(
    hospital: int, count: int, shape: tuple[int, ...], generator: Generator
) -> tuple[np.ndarray, np.ndarray]:
    """volumes [N, 1, x, y, z] and masks [N, x, y, z] of one hospital."""
    from scipy.ndimage import gaussian_filter
    from scipy.spatial.transform import Rotation

    scale = shape[0] / 48
    axes = scale * generator.uniform((14, 19, 14), (18, 23, 18), (count, 3))
    centres = (np.array(shape) - 1) / 2 + scale * generator.uniform(-2, 2, (count, 3))
    turns = Rotation.from_euler("XYZ", generator.uniform(-10, 10, (count, 3)), True).as_matrix()
    skulls = generator.uniform(0.9, 1.3, count)
    grid = np.argwhere(np.ones(shape))  # [voxels, 3]
    field = 1 + SLOPE[hospital] * np.linspace(-1, 1, shape[0])
    volumes, masks = np.empty((count, *shape), np.float32), np.empty((count, *shape), np.uint8)
    for some in some_at_once(count, 3 * len(grid)):
        along = (grid - centres[some, None]) @ turns[some]  # [b, voxels, 3], axes of the ellipsoid
        brain, inner, outer = (
            np.square(along / (axes[some] + scale * wider)[:, None]).sum(axis=-1) < 1
            for wider in (0, 2, 4)
        )
        brain, shell = brain.reshape(-1, *shape), (outer & ~inner).reshape(-1, *shape)
        white = generator.standard_normal(brain.shape, np.float32)
        smooth = gaussian_filter(white, (0, *(3 * [4 * scale])))
        smooth *= 0.15 / smooth.std(axis=(1, 2, 3), keepdims=True)
        clean = brain * (1 + smooth) + shell * skulls[some, None, None, None]
        scanned = GAIN[hospital] * clean * field[:, None, None] + BIAS[hospital]
        noise = generator.standard_normal(brain.shape, np.float32)
        volumes[some] = scanned + NOISE[hospital] * noise
        masks[some] = brain
    return standardised(volumes)[:, None], masks


COLOURS = ((1.0, 1.0, 1.0), (0.9, 1.05, 1.1), (1.1, 0.95, 0.85))  # of the three hospitals
BLURS = (0.0, 0.5, 1.0)
POSITIVE = 0.55  # share of the records that are of class 1
ORANGE, DISC, VESSEL = (0.85, 0.45, 0.2), (1.0, 0.9, 0.6), (0.45, 0.12, 0.08)
RED, YELLOW = (0.35, 0.05, 0.05), (0.95, 0.85, 0.35)
SPOTS, BLOBS, VESSELS = (3, 12), (0, 4), (4, 6)  # smallest and largest number


class MessidorSynthSettings(EqualSettings):
    """Settings of `messidor_synth`: `side` of an image, `lesion_size`, by which the radii of spots
    and blobs are multiplied, and records of each hospital (three at most).
    """

    side: int = Field(default=224, ge=32)
    lesion_size: float = Field(default=1.0, gt=0, le=10)
    clients: int = Field(default=3, ge=1, le=len(BLURS))
    train_records: Count = 300
    test_records: Count = 100


@component("dataset", "messidor_synth", revision=1, settings=MessidorSynthSettings)
class MessidorSynth(Kept):
    """Stands in for Messidor: drawn fundus images, in class 1 with dark red spots and yellow blobs.

    Of width W: an orange disc of radius .45 W, darker towards its edge, on black; a bright optic
    disc at .25 W to the left or right; 4-6 dark vessels that wander from there. Class 1 (55 in 100
    of a hospital's training and of its test records) has 3-12 dark red spots of radius .01-.02 W
    and 0-4 yellow blobs of .015-.03 W. Hospitals differ in colour and blur (0, .5 and 1 pixel).

    Of 224 pixels spots have radii of 2.2-4.5; of 64 they would have .6-1.3, less than a 3x3 filter
    sees. With lesion_size=3.5 an image of 64 has them, in pixels, as one of 224.
    """

    @staticmethod
    def make(settings: MessidorSynthSettings, content: None) -> Dataset:
        """Images [N, 3, side, side] float32, scaled by ImageNet's means and stds, and labels [N]
        int64.
        """
        each, side = (settings.train_records, settings.test_records), settings.side

        def drawn(hospital: int, key: int) -> Pair:
            generator = stream_generator(settings.data_seed, "data", hospital, key)
            sick = np.arange(each[key]) < round(POSITIVE * each[key])
            labels = generator.permutation(sick.astype(np.int64))
            images = [
                fundus_images(hospital, labels[some], side, generator, settings.lesion_size)
                for some in some_at_once(len(labels), 8 * side**2)
            ]
            return normalised(np.concatenate(images)), labels

        def draw() -> Iterator[Pairs]:
            for hospital in range(settings.clients):
                yield drawn(hospital, 0), drawn(hospital, 1)

        clients, shape = settings.clients, (3, side, side)
        info = DatasetInfo("messidor_synth", "standin", "", shape, 2, clients * each[0], clients)
        return drawn_later(info, *each, draw)


def fundus_images(
    hospital: int, labels: np.ndarray, side: int, generator: Generator, lesion_size: float = 1.0
) -> np.ndarray:
    """[N, side, side, 3] uint8 drawn images of one hospital."""
    from scipy.ndimage import gaussian_filter

    count = len(labels)
    rows, columns = np.indices((side, side), np.float32)
    middle = (side - 1) / 2
    from_middle = np.hypot(rows - middle, columns - middle)
    canvas = np.empty((count, side, side, 3), np.float32)
    shade = 1 - 0.5 * np.square(from_middle / (0.45 * side))
    canvas[:] = shade[..., None] * np.array(ORANGE, np.float32)

    def paint(cover: np.ndarray, colour: tuple[float, ...]) -> None:
        canvas[:] += cover[..., None] * (np.array(colour, np.float32) - canvas)

    def paint_discs(centres: np.ndarray, radii: np.ndarray, colour: tuple[float, ...]) -> None:
        """Discs at centres [N, k, 2] of radii [N, k] (0: none), with an edge of one pixel."""
        for disc in np.concatenate([centres.T, radii.T[None]]).swapaxes(0, 1):  # of all images
            y, x, r = disc.astype(np.float32)[..., None, None]
            edge = np.where(r > 0, r - np.hypot(rows - y, columns - x) + 0.5, 0)
            paint(np.clip(edge, 0, 1), colour)

    left_or_right = np.where(generator.random(count) < 0.5, -0.25, 0.25) * side
    optic = np.stack(
        [middle + generator.normal(0, 0.02 * side, count), middle + left_or_right], axis=1
    )
    paint_discs(optic[:, None], np.full((count, 1), 0.07 * side), DISC)
    paint(0.8 * _vessels(optic, side, generator), VESSEL)
    sick = labels[:, None] == 1
    for (least, most), (small, large), colour in (
        (SPOTS, (0.01, 0.02), RED),
        (BLOBS, (0.015, 0.03), YELLOW),
    ):
        there = sick & (np.arange(most) < generator.integers(least, most + 1, count)[:, None])
        distance = 0.4 * side * np.sqrt(generator.random((count, most)))
        angle = generator.uniform(0, 2 * np.pi, (count, most))
        radii = generator.uniform(small, large, there.shape) * side * lesion_size
        centres = middle + distance[..., None] * _directions(angle)
        paint_discs(centres, np.where(there, radii, 0), colour)
    canvas *= np.array(COLOURS[hospital], np.float32)
    canvas[:, from_middle > 0.45 * side] = 0
    if BLURS[hospital]:
        canvas = gaussian_filter(canvas, (0, BLURS[hospital], BLURS[hospital], 0))
    return np.rint(255 * np.clip(canvas, 0, 1)).astype(np.uint8)


def _directions(angles: np.ndarray) -> np.ndarray:
    """[..., 2] unit vectors (row, column)."""
    return np.stack([np.sin(angles), np.cos(angles)], axis=-1)


def _vessels(optic: np.ndarray, side: int, generator: Generator) -> np.ndarray:
    """[N, side, side] float32 cover of the vessels: walks of steps of half a pixel whose direction
    wanders.
    """
    from scipy.ndimage import maximum_filter

    count, (least, most), steps = len(optic), VESSELS, 2 * side
    there = np.arange(most) < generator.integers(least, most + 1, count)[:, None]
    turns = generator.normal(0, 0.5 / np.sqrt(side), (count, most, steps)).cumsum(axis=2)
    angles = generator.uniform(0, 2 * np.pi, (count, most, 1)) + turns
    walks = optic[:, None, None, :] + _directions(angles).cumsum(axis=2) / 2
    places = np.rint(walks).astype(np.int64)
    inside = there[..., None] & (places >= 0).all(axis=-1) & (places < side).all(axis=-1)
    cover = np.zeros((count, side, side), np.float32)
    image = np.broadcast_to(np.arange(count)[:, None, None], inside.shape)[inside]
    cover[image, places[inside][:, 0], places[inside][:, 1]] = 1
    width = max(1, round(side / 75))
    return maximum_filter(cover, (1, width, width)) if width > 1 else cover
