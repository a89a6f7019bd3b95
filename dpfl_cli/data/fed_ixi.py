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

`ixi_synth` stands in: results say source=standin, and numbers on it are none on the real data.
"""

import re
from collections.abc import Iterable, Iterator
from math import prod
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from numpy import ndarray
from pydantic import Field

from dpfl_cli.data.loading import (
    FOLDERS,
    ConfigError,
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

HOSPITALS = ("Guys", "HH", "IOP")
SHAPE = (48, 60, 48)
LABELS = {"labels": 2}  # a class for every voxel: there are none to deal records by
SUBJECT = re.compile(r"(IXI(\d+)-([A-Za-z]+)-\d+)_(image|label)\.nii(\.gz)?")
DECODER = 1  # raised when decoding changes


class FedIxiSettings(SeededSettings):
    """Fraction of each hospital's subjects that is held out, and its seed, where no
    metadata_tiny.csv says who is for testing.
    """

    test_fraction: Share = 0.2


def standardised(volumes: ndarray) -> ndarray:
    """[N, x, y, z] float32 (v - mean) / std of each volume; zeros where a volume is constant."""
    flat = volumes.reshape(len(volumes), -1)
    mean = flat.mean(axis=1, dtype=np.float64)[:, None]
    std = flat.std(axis=1, dtype=np.float64)[:, None]
    return ((flat - mean) / np.where(std > 0, std, 1.0)).astype(np.float32).reshape(volumes.shape)


@component("dataset", "fed_ixi", FedIxiSettings)
class FedIxi(FolderDataset):
    """Fed-IXI: T1 brain volumes of three hospitals and their brain masks (FLamby, du Terrail et al.
    2022).

    Volumes [N, 1, 48, 60, 48] float32, each of mean 0 and std 1, and masks [N, 48, 60, 48] uint8.
    """

    @staticmethod
    def make(settings: FedIxiSettings, folder: Path) -> Dataset:
        """Of the files in the folder."""
        subjects = _subjects(folder)
        tables = list(files_below(folder, ("metadata_tiny.csv",)).values())[:1]
        paths = [path for pair in subjects.values() for path in pair] + tables
        files = {path.relative_to(folder).as_posix(): path for path in paths}
        sha256, arrays = decoded("fed_ixi", files, str(DECODER), lambda: _decode(subjects))
        records, clients = len(subjects), len(HOSPITALS)
        hospital = np.array([HOSPITALS.index(name.split("-")[1]) for name in subjects])
        test = _published(tables[0], subjects) if tables else held_out(hospital, settings)
        info = DatasetInfo(
            "fed_ixi", "real", sha256, (1, *SHAPE), None, records, clients, LABELS, SHAPE
        )
        return split_dataset(info, Records(arrays["volumes"], arrays["masks"]), hospital, test)


def _subjects(folder: Path) -> dict[str, tuple[Path, Path]]:
    """Paths of image and label by subject, in the order of subjects; a DataError where they are not
    pairs.
    """
    found: dict[str, Files] = {}
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


def read_nifti(path: Path) -> ndarray:
    """The volume [x, y, z] float32 of a NIfTI-1 file (.nii, .nii.gz); axes of length 1 after the
    third are dropped. A DataError names the file and what is wrong with it.
    """
    import nibabel

    content = read_uncompressed(path)
    try:
        image: Any = nibabel.nifti1.Nifti1Image.from_bytes(content)
        volume = image.get_fdata(dtype=np.float64)
    except MemoryError:
        raise
    except Exception as error:  # nibabel's errors have no class of their own
        raise DataError(f"{path}: not a NIfTI-1 volume that can be read: {error}") from error
    if volume.ndim < 3 or volume.size != prod(volume.shape[:3]):
        raise DataError(f"{path}: shape {list(volume.shape)} is not that of one 3-D volume")
    if not np.isfinite(volume).all():
        raise DataError(f"{path}: holds voxels that are not finite numbers")
    return np.ascontiguousarray(volume.reshape(volume.shape[:3]), np.float32)


def _resized(volume: ndarray) -> ndarray:
    if volume.shape == SHAPE:
        return volume
    whole = torch.from_numpy(volume)[None, None]
    return torch.nn.functional.interpolate(whole, SHAPE, mode="area")[0, 0].numpy()


def _published(path: Path, subjects: Iterable[str]) -> ndarray:
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


# --- what stands in -----------------------------------------------------------------------------

Counts = Annotated[list[Count], Field(min_length=1)]
GAIN, BIAS = (1.0, 1.25, 0.8), (0.0, 0.1, -0.1)  # of the three hospitals
SLOPE, NOISE = (0.0, 0.2, -0.2), (0.05, 0.08, 0.12)


class IxiSynthSettings(SeededSettings):
    """Settings of `ixi_synth`: voxels of a volume, and training and test volumes of each hospital
    (three at most).
    """

    shape: Annotated[list[Annotated[int, Field(ge=8)]], Field(min_length=3, max_length=3)] = Field(
        default=[48, 60, 48]
    )
    train_records: Counts = Field(default=[249, 145, 59])
    test_records: Counts = Field(default=[62, 36, 15])


@component("dataset", "ixi_synth", IxiSynthSettings)
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
                generator = settings.generator(hospital)
                volumes, masks = _brains(hospital, first + rest, shape, generator)
                yield (volumes[:first], masks[:first]), (volumes[first:], masks[first:])

        info = DatasetInfo(
            "ixi_synth", "standin", "", (1, *shape), None, sum(train), len(train), LABELS, shape
        )
        return drawn_later(info, train, test, draw)


def _brains(
    hospital: int, count: int, shape: tuple[int, ...], generator: np.random.Generator
) -> Pair:
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
