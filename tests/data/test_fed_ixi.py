"""NIfTI-1 volumes and Fed-IXI's folders, from small files written here by the format's
description.
"""

from __future__ import annotations

import gzip
import struct

import numpy as np
import pytest
from small_files import SUBJECTS, TYPES, nifti, write

from dpfl_cli.config.errors import DataError
from dpfl_cli.data import loading
from dpfl_cli.data.fed_ixi import SHAPE, FedIxi, FedIxiSettings, read_nifti


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("kind", sorted(TYPES.values()))
def test_every_type_in_both_byte_orders(tmp_path, order, kind) -> None:
    values = np.arange(2 * 3 * 4).reshape(2, 3, 4).astype(kind)
    path = write(tmp_path / f"a.nii{'.gz' if order == '<' else ''}", nifti(values, order))
    found = read_nifti(path)
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, values)


def test_slope_and_intercept_apply_unless_the_slope_is_zero(tmp_path) -> None:
    values = np.arange(8, dtype="i2").reshape(2, 2, 2)
    np.testing.assert_allclose(
        read_nifti(write(tmp_path / "a.nii", nifti(values, slope=0.5, inter=-3))), values * 0.5 - 3
    )
    np.testing.assert_allclose(
        read_nifti(write(tmp_path / "b.nii", nifti(values, slope=0, inter=-3))), values
    )
    np.testing.assert_allclose(
        read_nifti(write(tmp_path / "c.nii", nifti(values, offset=400))), values
    )


@pytest.mark.parametrize(
    ("place", "form", "value", "said"),
    [
        (344, "4s", b"xxxx", "magic string"),
        (40, "<h", 2, "not that of one 3-D volume"),
        (42, "<h", -1, "not a NIfTI-1 volume"),
        (40, "<5h", (4, 2, 1, 2, 2), "not that of one 3-D volume"),
        (70, "<h", 128, "not a NIfTI-1 volume"),
        (108, "<f", 10.0, "offset 10"),
        (42, "<h", 3, "not a NIfTI-1 volume"),
        (112, "<2f", (1.0, float("nan")), "intercept"),
    ],
)
def test_a_damaged_header_is_named(tmp_path, place, form, value, said) -> None:
    content = nifti(np.zeros((2, 2, 2), "i2"))
    struct.pack_into(form, content, place, *(value if isinstance(value, tuple) else (value,)))
    with pytest.raises(DataError, match=said) as error:
        read_nifti(write(tmp_path / "a.nii", content))
    assert str(error.value).startswith(f"{tmp_path}/a.nii: ")


def test_short_compressed_and_not_finite_files_are_named(tmp_path) -> None:
    whole = gzip.compress(bytes(nifti(np.zeros((9, 9, 9), "f4"))))
    for content in (b"", bytes(100), whole[:50], whole[:20] + b"xxx" + whole[23:]):
        path = tmp_path / "b.nii.gz"
        path.write_bytes(content)
        with pytest.raises(DataError, match=r"b\.nii\.gz: "):
            read_nifti(path)
    with pytest.raises(DataError, match="not finite"):
        read_nifti(write(tmp_path / "c.nii", nifti(np.full((2, 2, 2), np.nan, "f4"))))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Ten subjects of each hospital; a volume is its subject's number + 1 at the mask and noise
    elsewhere.
    """
    monkeypatch.setenv("DPFL_DATA", str(tmp_path / "data"))
    loading.kept.cache_clear()
    rng = np.random.default_rng(0)
    folder = tmp_path / "data" / "fed_ixi"
    for name in SUBJECTS:
        shape = SHAPE if name == SUBJECTS[0] else (6, 5, 4)
        volume = rng.normal(size=shape).astype("f4")
        mask = np.zeros(shape, "u1")
        mask[: shape[0] // 2] = 1
        volume += 5 * mask
        base = folder / "7kd5wj7v7p-3" / "IXI_sample" / name
        write(base / "T1" / f"{name}_image.nii.gz", nifti(volume))
        write(base / "T2" / f"{name}_image.nii.gz", nifti(volume))  # another modality
        write(base / "label" / f"{name}_label.nii.gz", nifti(mask))
    return folder


def test_subjects_masks_and_hospitals(folder) -> None:
    data = FedIxi.load(FedIxiSettings(), seed=0)
    assert data.train.features.shape == (24, 1, *SHAPE)
    assert data.train.targets.shape == (24, *SHAPE)
    assert (data.train.targets.dtype, set(np.unique(data.train.targets))) == (np.uint8, {0, 1})
    assert np.bincount(data.natural).tolist() == [8, 8, 8]
    assert np.bincount(data.test_natural).tolist() == [2, 2, 2]
    flat = data.train.features.reshape(24, -1).astype(float)
    np.testing.assert_allclose(flat.mean(axis=1), 0, atol=1e-5)
    np.testing.assert_allclose(flat.std(axis=1), 1, atol=1e-5)
    np.testing.assert_array_equal(data.train.targets[:, : SHAPE[0] // 2], 1)
    np.testing.assert_array_equal(data.train.targets[:, SHAPE[0] // 2 :], 0)
    assert (data.info.classes, data.info.target_shape, data.info.clients) == (None, SHAPE, 3)
    again = FedIxi.load(FedIxiSettings(data_seed=1), seed=0)
    assert not np.array_equal(again.test.features, data.test.features)


def test_flambys_table_says_who_is_for_testing(folder) -> None:
    numbers = [int(name[3:6]) for name in SUBJECTS]
    lines = [f"{n},0,{'test' if n % 5 == 0 else 'train'}" for n in numbers]
    write(
        folder / "metadata_tiny.csv", "\n".join(["Patient ID,Manufacturer,Split", *lines]).encode()
    )
    before = FedIxi.load(FedIxiSettings(data_seed=3), seed=0)
    assert len(before.test) == sum(n % 5 == 0 for n in numbers)
    loading.kept.cache_clear()
    write(
        folder / "metadata_tiny.csv",
        "\n".join(["Patient ID,Manufacturer,Split", *lines[1:]]).encode(),
    )
    with pytest.raises(DataError, match=rf"neither train nor test of subject {SUBJECTS[0]}"):
        FedIxi.info(FedIxiSettings())


def test_what_does_not_fit_is_named(folder) -> None:
    def refused(said: str) -> None:
        loading.kept.cache_clear()
        with pytest.raises(DataError, match=said) as error:
            FedIxi.info(FedIxiSettings())
        assert "\n" not in str(error.value)

    base = folder / "7kd5wj7v7p-3" / "IXI_sample" / SUBJECTS[3]
    label = base / "label" / f"{SUBJECTS[3]}_label.nii.gz"
    write(label, nifti(np.zeros((6, 5, 3), "u1")))
    refused(r"_label\.nii\.gz: shape \[6, 5, 3\], but its image has \[6, 5, 4\]")
    write(label, nifti(np.full((6, 5, 4), 2, "u1")))
    refused("not a mask of zeros and ones")
    copy = folder / "again" / label.name
    write(copy, label.read_bytes())
    refused(rf"a second label of subject {SUBJECTS[3]}, besides ")
    copy.unlink()
    label.unlink()
    refused(rf"subject {SUBJECTS[3]} has no {SUBJECTS[3]}_label")
    write(
        folder / "IXI999-Nowhere-1" / "T1" / "IXI999-Nowhere-1_image.nii.gz",
        nifti(np.zeros((6, 5, 4), "u1")),
    )
    refused("hospital Nowhere is none of Guys, HH, IOP")
