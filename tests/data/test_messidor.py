"""Messidor's folders and tables, from small images drawn here."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dpfl_cli.config.errors import ConfigError, DataError
from dpfl_cli.data import messidor
from dpfl_cli.data.messidor import MEAN, STD, Messidor, MessidorSettings, cropped

SMALL = {"side": 8}
HEADER = "Image name,Ophthalmologic department,Retinopathy grade,Risk of macular edema "


def colour(base: str, place: int) -> tuple[int, int, int]:
    """A colour that says which image it is."""
    return 40 * int(base[0]), 10 * int(base[1]), 60 + 10 * place


def photograph(path: Path, inside: tuple[int, int, int]) -> None:
    """A square of one colour, framed in black (values up to 1)."""
    pixels = np.ones((20, 30, 3), np.uint8)
    pixels[4:16, 9:21] = inside
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)


def written(folder: Path, header: str = HEADER, department: bool = True) -> Path:
    """Four images in each of Base11, Base12, Base21 and Base31, of grades 0, 1, 2, 3; kinds of files mixed."""
    messidor.load_messidor.cache_clear()
    for base, ending in (("11", "tif"), ("12", "png"), ("21", "tif"), ("31", "png")):
        rows = [header]
        for place in range(4):
            name = f"im{base}_{place}.{ending}"
            photograph(folder / f"Base{base}" / name, colour(base, place))
            rows.append(f"{name},{f'Service {base[0]},' if department else ''}{place},0")
        (folder / f"Annotation_Base{base}.csv").write_text("\n".join(rows) + "\n")
    return folder


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
        whole = records.features * np.array(STD)[:, None, None] + np.array(MEAN)[:, None, None]
        np.testing.assert_allclose(whole, np.broadcast_to(whole[:, :, :1, :1], whole.shape), atol=1e-6)  # of one colour
        for values, label, client in zip(np.rint(255 * whole[:, :, 0, 0]), records.targets, clients, strict=True):
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
    without = Messidor.load(MessidorSettings(**SMALL), seed=0)
    np.testing.assert_array_equal(with_column.natural, without.natural)
    assert with_column.info.sha256 != without.info.sha256  # tables are content too


def test_what_does_not_fit_is_named(folder) -> None:
    table = folder / "Annotation_Base21.csv"
    good = table.read_text()

    def refused(text: str, said: str) -> None:
        messidor.load_messidor.cache_clear()
        table.write_text(text)
        with pytest.raises(DataError, match=said) as error:
            Messidor.info(MessidorSettings(**SMALL))
        assert "\n" not in str(error.value)

    refused(
        good.replace("Retinopathy grade", "Grade"), r"Annotation_Base21\.csv: the first line names no column retinopathy grade"
    )
    refused(good.replace("Service 2,3,0", "Service 2,4,0"), "line 5: retinopathy grade '4' is none of")
    refused(good.replace("im21_1.tif", "im21_9.tif"), r"line 3: there is no image im21_9\.tif")
    refused(good.replace("Service 2,3,0", "Service 2,3"), "line 5 has 3 cells")
    refused(good + "im21_0.tif,Service 2,2,0\n", "line 6: im21_0.tif has been graded otherwise")
    table.write_text(good)
    (folder / "Base21" / "im21_0.tif").write_bytes(b"II*\0 no image")
    messidor.load_messidor.cache_clear()
    with pytest.raises(DataError, match=r"im21_0\.tif: not an image that can be read"):
        Messidor.info(MessidorSettings(**SMALL))
    messidor.load_messidor.cache_clear()
    photograph(folder / "Base21" / "im21_0.tif", (9, 9, 9))
    photograph(folder / "Base11" / "im21_0.tif", (9, 9, 9))
    with pytest.raises(DataError, match="a second image of this name"):
        Messidor.info(MessidorSettings(**SMALL))


def test_a_fraction_that_holds_out_nothing_is_refused(folder) -> None:
    with pytest.raises(ConfigError, match=r"dataset\.test_fraction=0\.1: leaves no .* of department Service 2"):
        Messidor.info(MessidorSettings(**SMALL, test_fraction=0.1))
