"""Fed-IXI of FLamby (du Terrail et al. 2022, arXiv 2210.04620): brain volumes of three London
hospitals and their brain masks.

Layout: the folder `fed_ixi` with IXI Tiny as published (566 subjects), anywhere below it

    IXI002-Guys-0828/T1/IXI002-Guys-0828_image.nii.gz
    IXI002-Guys-0828/label/IXI002-Guys-0828_label.nii.gz

where the second part of a name is the hospital: Guys, HH or IOP, clients 0, 1 and 2. FLamby's
metadata_tiny.csv (Patient ID, Manufacturer, Split), if it lies there too, says which subjects are
for testing; without it a fraction of each hospital's is drawn. Volumes of another shape are resized
by averaging over areas, a mask is then where the average is at least 1/2 (FLamby cuts it down to
whole numbers). Each volume is scaled to mean 0 and std 1; histogram standardisation is not offered.
"""

import re
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dpfl_cli.config.component import Seed, Settings, Share, component
from dpfl_cli.config.errors import DataError
from dpfl_cli.data.catalogue import FOLDERS
from dpfl_cli.data.federation import Dataset, DatasetInfo, Records
from dpfl_cli.data.folders import FolderDataset, NamedArrays, decoded, files_below
from dpfl_cli.data.loading import held_out, split_dataset
from dpfl_cli.data.sources import DAMAGED, damage, read_uncompressed
from dpfl_cli.data.streams import stream_generator
from dpfl_cli.data.tables import read_table

HOSPITALS = ("Guys", "HH", "IOP")
SHAPE = (48, 60, 48)
SUBJECT = re.compile(r"(IXI(\d+)-([A-Za-z]+)-\d+)_(image|label)\.nii(\.gz)?")
DECODER = 1  # raised when decoding changes


class FedIxiSettings(Settings):
    """Fraction of each hospital's subjects that is held out, and its seed, where no
    metadata_tiny.csv says who is for testing.
    """

    test_fraction: Share = 0.2
    data_seed: Seed = 0


def volumes_info(
    name: str, source: Any, sha256: str, shape: tuple[int, ...], records: int, clients: int
) -> DatasetInfo:
    """Of volumes with a class for every voxel: there are no classes to deal records by, but
    `labels`.
    """
    return DatasetInfo(
        name, source, sha256, (1, *shape), None, records, clients, {"labels": 2}, target_shape=shape
    )


def standardised(volumes: np.ndarray) -> np.ndarray:
    """[N, x, y, z] float32 (v - mean) / std of each volume; zeros where a volume is constant."""
    flat = volumes.reshape(len(volumes), -1)
    mean = flat.mean(axis=1, dtype=np.float64)[:, None]
    std = flat.std(axis=1, dtype=np.float64)[:, None]
    return ((flat - mean) / np.where(std > 0, std, 1.0)).astype(np.float32).reshape(volumes.shape)


@component("dataset", "fed_ixi", revision=1, settings=FedIxiSettings)
class FedIxi(FolderDataset):
    """Fed-IXI: T1 brain volumes of three hospitals and their brain masks (FLamby, du Terrail et al.
    2022).

    Volumes [N, 1, 48, 60, 48] float32, each of mean 0 and std 1, and masks [N, 48, 60, 48] uint8.
    """

    name = "fed_ixi"

    @staticmethod
    def make(settings: FedIxiSettings, folder: Path) -> Dataset:
        """Of the files in the folder."""
        subjects = _subjects(folder)
        tables = list(files_below(folder, ("metadata_tiny.csv",)).values())[:1]
        paths = [path for pair in subjects.values() for path in pair] + tables
        files = {path.relative_to(folder).as_posix(): path for path in paths}
        sha256, arrays = decoded("fed_ixi", files, str(DECODER), lambda: _decode(subjects))
        hospital = np.array([HOSPITALS.index(name.split("-")[1]) for name in subjects])
        if tables:
            test = _published(tables[0], list(subjects))
        else:
            draws = (stream_generator(settings.data_seed, "data", k) for k in range(len(HOSPITALS)))
            test = held_out(hospital, settings.test_fraction, draws)
        return split_dataset(
            volumes_info("fed_ixi", "real", sha256, SHAPE, len(subjects), len(HOSPITALS)),
            Records(arrays["volumes"], arrays["masks"]),
            hospital,
            test,
        )


def _subjects(folder: Path) -> dict[str, tuple[Path, Path]]:
    """Paths of image and label by subject, in the order of subjects; a DataError where they are not
    pairs.
    """
    found: dict[str, dict[str, Path]] = {}
    for path in files_below(folder, (".nii", ".nii.gz")).values():
        match = SUBJECT.fullmatch(path.name)
        if match is None or (
            match[4] == "image" and path.parent.name not in ("T1", "image", match[1])
        ):
            continue  # another modality, or another file
        if match[3] not in HOSPITALS:
            raise DataError(f"{path}: hospital {match[3]} is none of {', '.join(HOSPITALS)}")
        first = found.setdefault(match[1], {}).setdefault(match[4], path)
        if first != path:
            raise DataError(f"{path}: a second {match[4]} of subject {match[1]}, besides {first}")
    if not found:
        raise DataError(f"{folder}: no IXI volumes; put {FOLDERS['fed_ixi'].layout} there")
    for name, pair in found.items():
        for kind in {"image", "label"} - pair.keys():
            raise DataError(f"{folder}: subject {name} has no {name}_{kind}.nii.gz")
    return {name: (found[name]["image"], found[name]["label"]) for name in sorted(found)}


def _decode(subjects: dict[str, tuple[Path, Path]]) -> NamedArrays:
    """volumes [N, 1, 48, 60, 48] float32 and masks [N, 48, 60, 48] uint8."""
    volumes = np.empty((len(subjects), *SHAPE), np.float32)
    masks = np.empty((len(subjects), *SHAPE), np.uint8)
    for place, (image, label) in enumerate(subjects.values()):
        volume, mask = read_nifti(image), read_nifti(label)
        if volume.shape != mask.shape:
            raise DataError(
                f"{label}: shape {list(mask.shape)}, but its image has {list(volume.shape)}"
            )
        if not np.isin(mask, (0, 1)).all():
            raise DataError(f"{label}: not a mask of zeros and ones")
        volumes[place], masks[place] = _resized(volume), _resized(mask) >= 0.5
    return {"volumes": standardised(volumes)[:, None], "masks": masks}


def read_nifti(path: Path) -> np.ndarray:
    """The volume [x, y, z] float32 of a NIfTI-1 file (.nii, .nii.gz); axes of length 1 after the
    third are dropped. A DataError names the file and what is wrong with it.
    """
    import nibabel

    try:
        image: Any = nibabel.nifti1.Nifti1Image.from_bytes(read_uncompressed(path))
        volume = image.get_fdata(dtype=np.float64)
    except (
        nibabel.filebasedimages.ImageFileError,
        nibabel.spatialimages.HeaderDataError,
        nibabel.wrapstruct.WrapStructError,
        ValueError,
        TypeError,
    ) as error:
        raise DataError(f"{path}: not a NIfTI-1 volume that can be read: {error}") from error
    except DAMAGED as error:
        raise DataError(f"{path}: {damage(error)}") from error
    if volume.ndim < 3 or volume.size != prod(volume.shape[:3]):
        raise DataError(f"{path}: shape {list(volume.shape)} is not that of one 3-D volume")
    if not np.isfinite(volume).all():
        raise DataError(f"{path}: holds voxels that are not finite numbers")
    return np.ascontiguousarray(volume.reshape(volume.shape[:3]), np.float32)


def _resized(volume: np.ndarray) -> np.ndarray:
    if volume.shape == SHAPE:
        return volume
    whole = torch.from_numpy(volume)[None, None]
    return torch.nn.functional.interpolate(whole, SHAPE, mode="area")[0, 0].numpy()


def _published(path: Path, subjects: list[str]) -> np.ndarray:
    """[N] bool: the subjects that FLamby's table says are for testing."""
    table = read_table(path, ("patient id", "split"))
    test = table.places("split", ("train", "test")) > 0
    split = dict(zip(table.numbers("patient id").tolist(), test.tolist(), strict=True))
    found = []
    for name in subjects:
        number = int(name[3:].split("-")[0])
        if number not in split:
            raise DataError(f"{path}: says neither train nor test of subject {name}")
        found.append(split[number])
    return np.array(found)
