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
"""

import io
import re
import warnings
from pathlib import Path
from typing import Literal

import numpy as np
from pydantic import Field

from dpfl_cli.config.component import Seed, Settings, Share, component
from dpfl_cli.config.errors import DataError
from dpfl_cli.data.catalogue import FOLDERS
from dpfl_cli.data.federation import Dataset, DatasetInfo, Records
from dpfl_cli.data.folders import FolderDataset, NamedArrays, decoded, files_below
from dpfl_cli.data.loading import held_out, split_dataset
from dpfl_cli.data.sources import read_uncompressed
from dpfl_cli.data.streams import stream_generator
from dpfl_cli.data.tables import read_table

MEAN = (0.485, 0.456, 0.406)  # of ImageNet's channels, as usually published
STD = (0.229, 0.224, 0.225)
BLACK = 1  # brightest value of a row or column that is cut away
IMAGES = (".tif", ".tiff", ".png", ".jpg", ".jpeg")
NAME, GRADE, DEPARTMENT = "image name", "retinopathy grade", "ophthalmologic department"
BASE = re.compile(r"base[ _-]?(\d)\d", re.IGNORECASE)
DECODER = 1  # raised when decoding changes


class MessidorSettings(Settings):
    """The lowest grade of the positive class, the side of the images, and how much of each
    hospital's is held out.
    """

    positive_grade: Literal[1, 2] = 1
    side: int = Field(default=224, ge=8)
    test_fraction: Share = 0.25
    data_seed: Seed = 0


def normalised(images: np.ndarray) -> np.ndarray:
    """[N, 3, h, w] float32 scaled by ImageNet's means and stds, from [N, h, w, 3] in 0..255."""
    scaled = np.divide(images, np.float32(255), dtype=np.float32)
    scaled -= np.array(MEAN, np.float32)
    scaled /= np.array(STD, np.float32)
    return np.ascontiguousarray(scaled.transpose(0, 3, 1, 2))


def cropped(image: np.ndarray) -> np.ndarray:
    """The image [h, w, 3] without the rows and columns whose brightest value is at most 1; whole
    where nothing would be left.
    """
    bright = image.max(axis=2) > BLACK
    rows, columns = bright.any(axis=1), bright.any(axis=0)
    return image[rows][:, columns] if rows.any() else image


@component("dataset", "messidor", revision=1, settings=MessidorSettings)
class Messidor(FolderDataset):
    """Messidor: fundus photographs of three hospitals, with or without diabetic retinopathy
    (Decenciere et al. 2014).

    Images [N, 3, side, side] float32 and labels [N] int64.
    """

    name = "messidor"

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
        clients = len(departments)
        draws = (stream_generator(settings.data_seed, "data", number) for number in range(clients))
        return split_dataset(
            DatasetInfo("messidor", "real", sha256, (3, side, side), 2, len(grades), clients),
            Records(
                normalised(arrays["images"]),
                (np.array(grades) >= settings.positive_grade).astype(np.int64),
            ),
            hospital,
            held_out(hospital, settings.test_fraction, draws),
        )


def _graded(
    images: dict[str, Path], tables: dict[str, Path], folder: Path
) -> dict[str, tuple[str, int]]:
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


def _decode(images: dict[str, Path], side: int) -> NamedArrays:
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
