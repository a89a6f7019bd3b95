"""Fed-IXI of FLamby (du Terrail et al. 2022, arXiv 2210.04620): brain volumes of three London hospitals and their brain masks.

Layout: the folder `fed_ixi` with IXI Tiny as published (566 subjects), anywhere below it

    IXI002-Guys-0828/T1/IXI002-Guys-0828_image.nii.gz
    IXI002-Guys-0828/label/IXI002-Guys-0828_label.nii.gz

where the second part of a name is the hospital: Guys, HH or IOP, clients 0, 1 and 2. FLamby's metadata_tiny.csv (Patient ID,
Manufacturer, Split), if it lies there too, says which subjects are for testing; without it a fraction of each hospital's is
drawn. Volumes of another shape are resized by averaging over areas, a mask is then where the average is at least 1/2 (FLamby
cuts it down to whole numbers). Each volume is scaled to mean 0 and std 1; histogram standardisation is not offered.
"""

from __future__ import annotations

import csv
import io
import re
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import Field

from dpfl_cli.config.component import Settings, component
from dpfl_cli.config.errors import ConfigError, DataError
from dpfl_cli.data.catalogue import FOLDERS
from dpfl_cli.data.federation import Dataset, DatasetInfo, Records
from dpfl_cli.data.folders import Arrays, decoded, files_below, find_folder
from dpfl_cli.data.nifti import read_nifti
from dpfl_cli.data.sources import read_uncompressed
from dpfl_cli.data.streams import stream_generator

HOSPITALS = ("Guys", "HH", "IOP")
SHAPE = (48, 60, 48)
SUBJECT = re.compile(r"(IXI(\d+)-([A-Za-z]+)-\d+)_(image|label)\.nii(\.gz)?")
METADATA = "metadata_tiny.csv"
DECODER = 1  # raised when decoding changes


class FedIxiSettings(Settings):
    """Fraction of each hospital's subjects that is held out, and its seed, where no metadata_tiny.csv says who is for testing."""

    test_fraction: float = Field(default=0.2, gt=0, lt=1)
    data_seed: int = Field(default=0, ge=0, lt=2**63)


@component("dataset", "fed_ixi", revision=1, settings=FedIxiSettings)
class FedIxi:
    """Fed-IXI: T1 brain volumes of three hospitals and their brain masks (FLamby, du Terrail et al. 2022)."""

    @staticmethod
    def info(settings: FedIxiSettings) -> DatasetInfo:
        """Reads the files, or what the cache keeps of them; the checksum covers all files."""
        return load_ixi(find_folder("fed_ixi"), settings).info

    @staticmethod
    def load(settings: FedIxiSettings, seed: int) -> Dataset:
        """Volumes [N, 1, 48, 60, 48] float32, each of mean 0 and std 1, and masks [N, 48, 60, 48] uint8."""
        return load_ixi(find_folder("fed_ixi"), settings)


def volumes_info(name: str, source: Any, sha256: str, shape: tuple[int, ...], records: int, clients: int) -> DatasetInfo:
    """Of volumes with a class for every voxel: there are no classes to deal records by, but `labels`."""
    return DatasetInfo(name, source, sha256, (1, *shape), None, records, clients, {"labels": 2}, target_shape=shape)


def standardised(volumes: np.ndarray) -> np.ndarray:
    """[N, x, y, z] float32 (v - mean) / std of each volume; zeros where a volume is constant."""
    flat = volumes.reshape(len(volumes), -1)
    mean, std = (part[:, None] for part in (flat.mean(axis=1, dtype=np.float64), flat.std(axis=1, dtype=np.float64)))
    return ((flat - mean) / np.where(std > 0, std, 1.0)).astype(np.float32).reshape(volumes.shape)


@lru_cache(maxsize=2)
def load_ixi(folder: Path, settings: FedIxiSettings) -> Dataset:
    """The data set in a folder; a run keeps what it read first, as files do not change under a run."""
    subjects = _subjects(folder)
    files = {path.relative_to(folder).as_posix(): path for pair in subjects.values() for path in pair}
    table = next(iter(files_below(folder, (METADATA,)).values()), None)
    if table is not None:
        files[table.relative_to(folder).as_posix()] = table
    sha256, arrays = decoded("fed_ixi", files, str(DECODER), lambda: _decode(subjects))
    hospital = np.array([HOSPITALS.index(name.split("-")[1]) for name in subjects])
    test = _held_out(hospital, settings) if table is None else _published(table, subjects)
    for number in range(len(HOSPITALS)):
        if not ((hospital == number) & test).any() or not ((hospital == number) & ~test).any():
            raise DataError(
                f"{folder}: no training or no test subject of hospital {HOSPITALS[number]}; needs all three hospitals"
            )
    volumes, masks = arrays["volumes"], arrays["masks"]
    info = volumes_info("fed_ixi", "real", sha256, SHAPE, int((~test).sum()), len(HOSPITALS))
    train = Records(volumes[~test], masks[~test])
    return Dataset(info, train, Records(volumes[test], masks[test]), hospital[~test], test_natural=hospital[test])


def _subjects(folder: Path) -> dict[str, tuple[Path, Path]]:
    """Paths of image and label by subject, in the order of subjects; a DataError where they are not pairs."""
    found: dict[str, dict[str, Path]] = {}
    for path in files_below(folder, (".nii", ".nii.gz")).values():
        match = SUBJECT.fullmatch(path.name)
        if match is None or (match[4] == "image" and path.parent.name not in ("T1", "image", match[1])):
            continue  # another modality, or another file
        if match[3] not in HOSPITALS:
            raise DataError(f"{path}: hospital {match[3]} is none of {', '.join(HOSPITALS)}")
        if match[4] in found.setdefault(match[1], {}):
            raise DataError(f"{path}: a second {match[4]} of subject {match[1]}, besides {found[match[1]][match[4]]}")
        found[match[1]][match[4]] = path
    if not found:
        raise DataError(f"{folder}: no IXI volumes; put {FOLDERS['fed_ixi'].layout} there")
    for name, pair in found.items():
        for kind in ("image", "label"):
            if kind not in pair:
                raise DataError(f"{folder}: subject {name} has no {name}_{kind}.nii.gz")
    return {name: (found[name]["image"], found[name]["label"]) for name in sorted(found)}


def _decode(subjects: dict[str, tuple[Path, Path]]) -> Arrays:
    """volumes [N, 1, 48, 60, 48] float32 and masks [N, 48, 60, 48] uint8."""
    volumes, masks = np.empty((len(subjects), *SHAPE), np.float32), np.empty((len(subjects), *SHAPE), np.uint8)
    for place, (image, label) in enumerate(subjects.values()):
        volume, mask = read_nifti(image), read_nifti(label)
        if volume.shape != mask.shape:
            raise DataError(f"{label}: shape {list(mask.shape)}, but its image has {list(volume.shape)}")
        if not np.isin(mask, (0, 1)).all():
            raise DataError(f"{label}: not a mask of zeros and ones")
        volumes[place], masks[place] = _resized(volume), _resized(mask) >= 0.5
    return {"volumes": standardised(volumes)[:, None], "masks": masks}


def _resized(volume: np.ndarray) -> np.ndarray:
    if volume.shape == SHAPE:
        return volume
    return torch.nn.functional.interpolate(torch.from_numpy(volume)[None, None], SHAPE, mode="area")[0, 0].numpy()


def _held_out(hospital: np.ndarray, settings: FedIxiSettings) -> np.ndarray:
    """[N] bool: so large a fraction of each hospital's subjects, at random."""
    held = np.zeros(len(hospital), bool)
    for number, name in enumerate(HOSPITALS):
        own = stream_generator(settings.data_seed, "data", number).permutation(np.flatnonzero(hospital == number))
        kept = round(settings.test_fraction * len(own))
        if len(own) and not 0 < kept < len(own):
            raise ConfigError(
                f"dataset.test_fraction={settings.test_fraction:g}: leaves no training or no test subject of the {len(own)} of "
                f"hospital {name}; write another fraction"
            )
        held[own[:kept]] = True
    return held


def _published(table: Path, subjects: dict[str, tuple[Path, Path]]) -> np.ndarray:
    """[N] bool: the subjects that FLamby's table says are for testing."""
    try:
        rows = list(csv.DictReader(io.StringIO(read_uncompressed(table).decode())))
        split = {int(row["Patient ID"]): row["Split"].strip() for row in rows}
    except (KeyError, ValueError, AttributeError, csv.Error) as error:
        raise DataError(f"{table}: not FLamby's table with the columns Patient ID, Manufacturer, Split ({error})") from error
    numbers = [int(name[3:].split("-")[0]) for name in subjects]
    for name, number in zip(subjects, numbers, strict=True):
        if split.get(number) not in ("train", "test"):
            raise DataError(f"{table}: says neither train nor test of subject {name}")
    return np.array([split[number] == "test" for number in numbers])
