"""Messidor (Decenciere et al. 2014): 1200 fundus photographs of three ophthalmologic departments, with retinopathy grades.

Layout: the folder `messidor` with the images (.tif, .tiff, .png, .jpg) anywhere below it, as in Base11 .. Base34, and one or
more tables in csv (as published: Annotation_Base11.xls .. Annotation_Base34.xls; save them as csv) with the columns Image name,
Retinopathy grade and, where the images do not lie in folders BaseNM, Ophthalmologic department. Department N is client N - 1.
Names of departments are numbered in the order of the alphabet. Images that no table names are left out.

An image loses the rows and columns whose brightest value is at most 1, is resized to a square (bilinear) and scaled by
ImageNet's means and stds. Random flips and rotations of training images are not offered: objectives see records by number,
without a step to draw them for.
"""

from __future__ import annotations

import csv
import io
import re
import warnings
from functools import lru_cache
from pathlib import Path
from typing import Literal

import numpy as np
from pydantic import Field

from dpfl_cli.config.component import Settings, component
from dpfl_cli.config.errors import ConfigError, DataError
from dpfl_cli.data.catalogue import FOLDERS
from dpfl_cli.data.federation import Dataset, DatasetInfo, Records
from dpfl_cli.data.folders import Arrays, decoded, files_below, find_folder
from dpfl_cli.data.sources import read_uncompressed
from dpfl_cli.data.streams import stream_generator

MEAN = (0.485, 0.456, 0.406)  # of ImageNet's channels, as usually published
STD = (0.229, 0.224, 0.225)
BLACK = 1  # brightest value of a row or column that is cut away
IMAGES = (".tif", ".tiff", ".png", ".jpg", ".jpeg")
BASE = re.compile(r"base[ _-]?(\d)\d", re.IGNORECASE)
DECODER = 1  # raised when decoding changes


class MessidorSettings(Settings):
    """The lowest grade of the positive class, the side of the images, and how much of each hospital's is held out."""

    positive_grade: Literal[1, 2] = 1
    side: int = Field(default=224, ge=8)
    test_fraction: float = Field(default=0.25, gt=0, lt=1)
    data_seed: int = Field(default=0, ge=0, lt=2**63)


@component("dataset", "messidor", revision=1, settings=MessidorSettings)
class Messidor:
    """Messidor: fundus photographs of three hospitals, with or without diabetic retinopathy (Decenciere et al. 2014)."""

    @staticmethod
    def info(settings: MessidorSettings) -> DatasetInfo:
        """Reads the files, or what the cache keeps of them; the checksum covers all that are used."""
        return load_messidor(find_folder("messidor"), settings).info

    @staticmethod
    def load(settings: MessidorSettings, seed: int) -> Dataset:
        """Images [N, 3, side, side] float32 and labels [N] int64; they do not depend on the run's seed."""
        return load_messidor(find_folder("messidor"), settings)


def normalised(images: np.ndarray) -> np.ndarray:
    """[N, 3, h, w] float32 scaled by ImageNet's means and stds, from [N, h, w, 3] in 0..255."""
    scaled = np.divide(images, np.float32(255), dtype=np.float32)
    scaled -= np.array(MEAN, np.float32)
    scaled /= np.array(STD, np.float32)
    return np.ascontiguousarray(scaled.transpose(0, 3, 1, 2))


def cropped(image: np.ndarray) -> np.ndarray:
    """The image [h, w, 3] without the rows and columns whose brightest value is at most 1; whole where nothing would be left."""
    bright = image.max(axis=2) > BLACK
    rows, columns = bright.any(axis=1), bright.any(axis=0)
    return image[rows][:, columns] if rows.any() else image


@lru_cache(maxsize=2)
def load_messidor(folder: Path, settings: MessidorSettings) -> Dataset:
    """The data set in a folder; a run keeps what it read first, as files do not change under a run."""
    images = files_below(folder, IMAGES)
    tables = files_below(folder, (".csv",))
    if not images or not tables:
        raise DataError(f"{folder}: no {'tables in csv' if images else 'images'}; put {FOLDERS['messidor'].layout} there")
    grades = _graded(images, tables, folder)
    files = {**{name: images[name] for name in grades}, **tables}
    sha256, arrays = decoded(
        "messidor", files, f"{DECODER} side={settings.side}", lambda: _decode(images, list(grades), settings.side)
    )
    departments = sorted({department for department, _ in grades.values()})
    hospital = np.array([departments.index(department) for department, _ in grades.values()])
    labels = np.array([grade >= settings.positive_grade for _, grade in grades.values()]).astype(np.int64)
    test = np.zeros(len(hospital), bool)
    for number, department in enumerate(departments):
        own = stream_generator(settings.data_seed, "data", number).permutation(np.flatnonzero(hospital == number))
        kept = round(settings.test_fraction * len(own))
        if not 0 < kept < len(own):
            raise ConfigError(
                f"dataset.test_fraction={settings.test_fraction:g}: leaves no training or no test image of the {len(own)} of "
                f"department {department}; write another fraction"
            )
        test[own[:kept]] = True
    shape = (3, settings.side, settings.side)
    info = DatasetInfo("messidor", "real", sha256, shape, 2, int((~test).sum()), len(departments))
    pixels = normalised(arrays["images"])
    train = Records(pixels[~test], labels[~test])
    return Dataset(info, train, Records(pixels[test], labels[test]), hospital[~test], test_natural=hospital[test])


def _graded(images: dict[str, Path], tables: dict[str, Path], folder: Path) -> dict[str, tuple[str, int]]:
    """(department, grade) of every image that a table names, by its relative name; a DataError says what does not fit."""
    by_name: dict[str, str] = {}
    for relative, path in images.items():
        if path.name.lower() in by_name:
            raise DataError(f"{path}: a second image of this name, besides {folder / by_name[path.name.lower()]}")
        by_name[path.name.lower()] = relative
    graded: dict[str, tuple[str, int]] = {}
    for path in tables.values():
        for line, row in enumerate(_rows(path), start=2):
            if (name := by_name.get(row["image name"].lower())) is None:
                raise DataError(f"{path}: line {line}: there is no image {row['image name']} below {folder}")
            if row["retinopathy grade"] not in ("0", "1", "2", "3"):
                raise DataError(f"{path}: line {line}: retinopathy grade {row['retinopathy grade']!r} is none of 0, 1, 2, 3")
            base = BASE.search(Path(name).parent.name)
            department = row.get("ophthalmologic department") or (base[1] if base else "")
            if not department:
                raise DataError(f"{path}: line {line}: no ophthalmologic department, and {name} does not lie in a folder BaseNM")
            found = department, int(row["retinopathy grade"])
            if graded.setdefault(name, found) != found:
                raise DataError(f"{path}: line {line}: {row['image name']} has been graded otherwise before")
    return {name: graded[name] for name in sorted(graded)}


def _rows(path: Path) -> list[dict[str, str]]:
    """The rows of a table by column, names of columns in small letters with single spaces, values stripped."""
    try:
        text = read_uncompressed(path).decode("utf-8-sig")
        delimiter = ";" if text.split("\n", 1)[0].count(";") > text.split("\n", 1)[0].count(",") else ","
        lines = [line for line in csv.reader(io.StringIO(text), delimiter=delimiter) if any(cell.strip() for cell in line)]
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path}: not a table in csv: {error}") from error
    header = [" ".join(cell.lower().split()) for cell in lines[0]] if lines else []
    missing = {"image name", "retinopathy grade"} - set(header)
    if missing:
        raise DataError(f"{path}: the first line names no column {' and '.join(sorted(missing))}")
    for number, line in enumerate(lines[1:], start=2):
        if len(line) != len(header):
            raise DataError(f"{path}: line {number} has {len(line)} cells, the first has {len(header)}")
    return [dict(zip(header, map(str.strip, line), strict=True)) for line in lines[1:]]


def _decode(images: dict[str, Path], names: list[str], side: int) -> Arrays:
    """images [N, side, side, 3] uint8, cropped and resized."""
    from PIL import Image

    pixels = np.empty((len(names), side, side, 3), np.uint8)
    for place, name in enumerate(names):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # of pillow, about tags of a TIFF that it does not need
                with Image.open(images[name]) as picture:
                    whole = np.asarray(picture.convert("RGB"))
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
            raise DataError(f"{images[name]}: not an image that can be read: {error}") from error
        pixels[place] = np.asarray(Image.fromarray(cropped(whole)).resize((side, side), Image.Resampling.BILINEAR))
    return {"images": pixels}
