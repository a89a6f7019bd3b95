"""Messidor (Decenciere et al. 2014): 1200 fundus photographs of three ophthalmologic departments,
with retinopathy grades.

Layout: the folder `messidor` with the images (.tif, .tiff, .png, .jpg) anywhere below it, as in
Base11 .. Base34, and one or more tables in csv (as published: Annotation_Base11.xls ..
Annotation_Base34.xls; save them as csv) with the columns Image name, Retinopathy grade and, where
the images do not lie in folders BaseNM, Ophthalmologic department. Department N is client N - 1.
Names of departments are numbered in the order of the alphabet. Images that no table names are left
out.

An image loses the rows and columns whose brightest value is at most 1, is resized to a square
(bilinear) and scaled by ImageNet's means and stds. Random flips and rotations of training images
are not offered: objectives see records by number, without a step to draw them for.

`messidor_synth` stands in: results say source=standin, and numbers on it are none on the real data.
"""

import io
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import numpy as np
from numpy import ndarray
from numpy.random import Generator
from pydantic import Field

from dpfl_cli.data.backbones import IMAGENET
from dpfl_cli.data.loading import (
    FOLDERS,
    Count,
    DataError,
    Dataset,
    DatasetInfo,
    Files,
    FolderDataset,
    Kept,
    NamedArrays,
    Pair,
    Pairs,
    Records,
    SeededSettings,
    Share,
    component,
    decoded,
    drawn_later,
    files_below,
    held_out,
    read_table,
    read_uncompressed,
    some_at_once,
    split_dataset,
)

BLACK = 1  # brightest value of a row or column that is cut away
IMAGES = (".tif", ".tiff", ".png", ".jpg", ".jpeg")
NAME, GRADE, DEPARTMENT = "image name", "retinopathy grade", "ophthalmologic department"
BASE = re.compile(r"base[ _-]?(\d)\d", re.IGNORECASE)
DECODER = 1  # raised when decoding changes


class MessidorSettings(SeededSettings):
    """The lowest grade of the positive class, the side of the images, and how much of each
    hospital's is held out.
    """

    positive_grade: Literal[1, 2] = 1
    side: int = Field(default=224, ge=8)
    test_fraction: Share = 0.25


def normalised(images: ndarray) -> ndarray:
    """[N, 3, h, w] float32 scaled by ImageNet's means and stds, from [N, h, w, 3] in 0..255."""
    scaled = np.divide(images, np.float32(255), dtype=np.float32)
    means, stds = np.array(IMAGENET, np.float32)
    scaled -= means
    scaled /= stds
    return np.ascontiguousarray(scaled.transpose(0, 3, 1, 2))


def cropped(image: ndarray) -> ndarray:
    """The image [h, w, 3] without the rows and columns whose brightest value is at most 1; whole
    where nothing would be left.
    """
    bright = image.max(axis=2) > BLACK
    rows, columns = bright.any(axis=1), bright.any(axis=0)
    return image[rows][:, columns] if rows.any() else image


@component("dataset", "messidor", MessidorSettings)
class Messidor(FolderDataset):
    """Messidor: fundus photographs of three hospitals, with or without diabetic retinopathy
    (Decenciere et al. 2014).

    Images [N, 3, side, side] float32 and labels [N] int64.
    """

    @staticmethod
    def make(settings: MessidorSettings, folder: Path) -> Dataset:
        """Of the files in the folder."""
        images, tables = files_below(folder, IMAGES), files_below(folder, (".csv",))
        if not images or not tables:
            what = "tables in csv" if images else "images"
            raise DataError(f"{folder}: no {what}; put {FOLDERS['messidor'].layout} there")
        graded = _graded(images, tables, folder)
        used = {name: images[name] for name in graded}
        key, side = f"{DECODER} side={settings.side}", settings.side
        sha256, arrays = decoded("messidor", used | tables, key, lambda: _decode(used, side))
        names, grades = zip(*graded.values(), strict=True)
        departments, hospital = np.unique(names, return_inverse=True)
        return split_dataset(
            DatasetInfo(
                "messidor", "real", sha256, (3, side, side), 2, len(grades), len(departments)
            ),
            Records(
                normalised(arrays["images"]),
                (np.array(grades) >= settings.positive_grade).astype(np.int64),
            ),
            hospital,
            held_out(hospital, settings),
        )


def _graded(images: Files, tables: Files, folder: Path) -> dict[str, tuple[str, int]]:
    """(department, grade) of every image that a table names, by its relative name; a DataError says
    what does not fit.
    """
    by_name: dict[str, str] = {}
    for relative, path in images.items():
        if (first := by_name.setdefault(path.name.lower(), relative)) != relative:
            raise DataError(f"{path}: a second image of this name, besides {folder / first}")
    graded: dict[str, tuple[str, int]] = {}
    for path in tables.values():
        table = read_table(path, (NAME, GRADE))
        grades = table.places(GRADE, ("0", "1", "2", "3")).tolist()
        said = list(table.cells.get(DEPARTMENT, [""] * len(table)))
        for row, (image, grade) in enumerate(zip(table.cells[NAME], grades, strict=True)):
            if (name := by_name.get(image.lower())) is None:
                raise table.error(row, f"there is no image {image} below {folder}")
            base = BASE.search(Path(name).parent.name)
            department = said[row] or (base[1] if base else "")
            if not department:
                raise table.error(
                    row,
                    f"no ophthalmologic department, and {name} does not lie in a folder BaseNM",
                )
            if graded.setdefault(name, (department, grade)) != (department, grade):
                raise table.error(row, f"{image} has been graded otherwise before")
    return dict(sorted(graded.items()))


def _decode(images: Files, side: int) -> NamedArrays:
    """images [N, side, side, 3] uint8, cropped and resized."""
    from PIL import Image

    pixels = np.empty((len(images), side, side, 3), np.uint8)
    for place, path in enumerate(images.values()):
        try:
            with warnings.catch_warnings():  # of pillow, about tags of a TIFF that it does not need
                warnings.simplefilter("ignore", UserWarning)
                with Image.open(io.BytesIO(read_uncompressed(path))) as picture:
                    whole = Image.fromarray(cropped(np.asarray(picture.convert("RGB"))))
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
            raise DataError(f"{path}: not an image that can be read: {error}") from error
        pixels[place] = np.asarray(whole.resize((side, side), Image.Resampling.BILINEAR))
    return {"images": pixels}


# --- what stands in -----------------------------------------------------------------------------

COLOURS = ((1.0, 1.0, 1.0), (0.9, 1.05, 1.1), (1.1, 0.95, 0.85))  # of the three hospitals
BLURS = (0.0, 0.5, 1.0)
POSITIVE = 0.55  # share of the records that are of class 1
ORANGE, DISC, VESSEL = (0.85, 0.45, 0.2), (1.0, 0.9, 0.6), (0.45, 0.12, 0.08)
RED, YELLOW = (0.35, 0.05, 0.05), (0.95, 0.85, 0.35)
SPOTS, BLOBS, VESSELS = (3, 12), (0, 4), (4, 6)  # smallest and largest number


class MessidorSynthSettings(SeededSettings):
    """Hospitals, training and test records of each of them, and the seed that they are drawn from;
    `side` of an image, and `lesion_size`, by which the radii of spots and blobs are multiplied.
    """

    clients: int = Field(default=3, ge=1, le=len(BLURS))
    train_records: Count = 300
    test_records: Count = 100
    side: int = Field(default=224, ge=32)
    lesion_size: float = Field(default=1.0, gt=0, le=10)


@component("dataset", "messidor_synth", MessidorSynthSettings)
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
            generator = settings.generator(hospital, key)
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
    hospital: int, labels: ndarray, side: int, generator: Generator, lesion_size: float = 1.0
) -> ndarray:
    """[N, side, side, 3] uint8 drawn images of one hospital."""
    from scipy.ndimage import gaussian_filter

    count = len(labels)
    rows, columns = np.indices((side, side), np.float32)
    middle = (side - 1) / 2
    from_middle = np.hypot(rows - middle, columns - middle)
    canvas = np.empty((count, side, side, 3), np.float32)
    shade = 1 - 0.5 * np.square(from_middle / (0.45 * side))
    canvas[:] = shade[..., None] * np.array(ORANGE, np.float32)

    def paint(cover: ndarray, colour: tuple[float, ...]) -> None:
        canvas[:] += cover[..., None] * (np.array(colour, np.float32) - canvas)

    def paint_discs(centres: ndarray, radii: ndarray, colour: tuple[float, ...]) -> None:
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


def _directions(angles: ndarray) -> ndarray:
    """[..., 2] unit vectors (row, column)."""
    return np.stack([np.sin(angles), np.cos(angles)], axis=-1)


def _vessels(optic: ndarray, side: int, generator: Generator) -> ndarray:
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
