"""Messidor's folders and tables, from small images drawn here."""

from __future__ import annotations

import numpy as np
import pytest
from small_files import photograph, written

from dpfl_cli.config.errors import DataError
from dpfl_cli.data import loading
from dpfl_cli.data.backbones import IMAGENET
from dpfl_cli.data.messidor import Messidor, MessidorSettings, cropped

SMALL = {"side": 8}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("DPFL_DATA", str(tmp_path / "data"))
    return written(tmp_path / "data" / "messidor")


def test_dark_rows_and_columns_are_cut_away() -> None:
    image = np.zeros((6, 7, 3), np.uint8)
    image[1:3, 2:5] = (0, 2, 0)
    image[4, 6] = 1  # not brighter than 1
    assert cropped(image).shape == (2, 3, 3)
    assert (cropped(image) == (0, 2, 0)).all()
    assert cropped(np.ones((3, 4, 3), np.uint8)).shape == (3, 4, 3)


def test_images_labels_and_hospitals(folder) -> None:
    data = Messidor.load(MessidorSettings(**SMALL), seed=0)
    assert data.train.features.shape == (12, 3, 8, 8)
    assert np.bincount(data.natural).tolist() == [6, 3, 3]
    assert np.bincount(data.test_natural).tolist() == [2, 1, 1]
    seen = set()
    for records, clients in ((data.train, data.natural), (data.test, data.test_natural)):
        means, stds = np.array(IMAGENET)[..., None, None]
        whole = records.features * stds + means
        np.testing.assert_allclose(
            whole, np.broadcast_to(whole[:, :, :1, :1], whole.shape), atol=1e-6
        )  # of one colour
        for values, label, client in zip(
            np.rint(255 * whole[:, :, 0, 0]), records.targets, clients, strict=True
        ):
            place = int(values[2] - 60) // 10
            assert (values[0], label) == (40 * (client + 1), int(place >= 1))
            seen.add(tuple(values))
    assert len(seen) == 16
    stricter = Messidor.load(MessidorSettings(**SMALL, positive_grade=2), seed=0)
    assert stricter.train.targets.sum() + stricter.test.targets.sum() == 8
    assert data.train.targets.sum() + data.test.targets.sum() == 12


def test_departments_come_from_folders_where_the_table_has_none(folder) -> None:
    with_column = Messidor.load(MessidorSettings(**SMALL), seed=0)
    written(folder, "Image name,Retinopathy  grade,Risk", department=False)
    loading.kept.cache_clear()
    without = Messidor.load(MessidorSettings(**SMALL), seed=0)
    np.testing.assert_array_equal(with_column.natural, without.natural)
    assert with_column.info.sha256 != without.info.sha256  # tables are content too


def test_what_does_not_fit_is_named(folder) -> None:
    table = folder / "Annotation_Base21.csv"
    good = table.read_text()

    def refused(text: str, said: str) -> None:
        loading.kept.cache_clear()
        table.write_text(text)
        with pytest.raises(DataError, match=said) as error:
            Messidor.info(MessidorSettings(**SMALL))
        assert "\n" not in str(error.value)

    refused(
        good.replace("Retinopathy grade", "Grade"),
        r"Annotation_Base21\.csv: column 'retinopathy grade' is missing",
    )
    refused(
        good.replace("Service 2,3,0", "Service 2,4,0"),
        "line 5: column 'retinopathy grade' is none of 0, 1",
    )
    refused(good.replace("im21_1.tif", "im21_9.tif"), r"line 3: there is no image im21_9\.tif")
    refused(good.replace("Service 2,3,0", "Service 2"), "line 5: column 'retinopathy grade' is")
    refused(good + "im21_0.tif,Service 2,2,0\n", "line 6: im21_0.tif has been graded otherwise")
    table.write_text(good)
    (folder / "Base21" / "im21_0.tif").write_bytes(b"II*\0 no image")
    loading.kept.cache_clear()
    with pytest.raises(DataError, match=r"im21_0\.tif: not an image that can be read"):
        Messidor.info(MessidorSettings(**SMALL))
    loading.kept.cache_clear()
    photograph(folder / "Base21" / "im21_0.tif", (9, 9, 9))
    photograph(folder / "Base11" / "im21_0.tif", (9, 9, 9))
    with pytest.raises(DataError, match="a second image of this name"):
        Messidor.info(MessidorSettings(**SMALL))
