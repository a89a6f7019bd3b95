"""Bank Marketing: inputs, held-out records, the sample, and what is said about files that are not
of the format.
"""

from __future__ import annotations

import csv
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from small_files import entry_of, put

from dpfl_cli.config.errors import ConfigError, DataError
from dpfl_cli.data.bank import COLUMNS, Bank, BankSettings, read_bank
from dpfl_cli.data.sources import CATALOGUE

FILE, SAMPLE = (
    Path(__file__).with_name(name) for name in ("small_bank.csv", "small_bank_sample.csv")
)
NUMBERS = [number for number, words in enumerate(COLUMNS.values()) if words is None]


def settings_of(**values) -> BankSettings:
    return BankSettings(**({"path": str(FILE)} | values))


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open() as stream:
        return list(csv.DictReader(stream, delimiter=";"))


def test_a_record_is_its_standardised_numbers_and_a_one_for_each_word() -> None:
    data, rows = Bank.load(settings_of(test="none"), 0), rows_of(FILE)
    assert data.train.features.shape == (60, 51)
    assert data.train.features.dtype == np.float64
    assert data.test is None
    np.testing.assert_array_equal(data.train.targets, [row["y"] == "yes" for row in rows])
    place = 0
    for name, words in COLUMNS.items():
        if words is None:
            values = np.array([float(row[name]) for row in rows])
            expected = ((values - values.mean()) / values.std())[:, None]
        else:
            expected = np.array([[row[name] == word for word in words] for row in rows], float)
        np.testing.assert_allclose(
            data.train.features[:, place : place + expected.shape[1]], expected, rtol=0, atol=1e-12
        )
        place += expected.shape[1]
    assert place == 51


def test_ordinal_words_are_their_places_standardised() -> None:
    data, rows = Bank.load(settings_of(test="none", categorical="ordinal"), 0), rows_of(FILE)
    assert Bank.info(settings_of(categorical="ordinal")).feature_shape == (16,)
    months = np.array([COLUMNS["month"].index(row["month"]) for row in rows], float)
    found = data.train.features[:, list(COLUMNS).index("month")]
    np.testing.assert_allclose(found, (months - months.mean()) / months.std(), rtol=0, atol=1e-12)
    np.testing.assert_allclose(data.train.features.mean(axis=0), 0, atol=1e-12)


def test_a_fifth_is_held_out_and_scaled_by_the_training_records() -> None:
    data, pool = Bank.load(settings_of(), 0), read_bank(FILE)
    assert (data.info.records, len(data.train), len(data.test)) == (48, 48, 12)
    both = np.concatenate([data.train.features, data.test.features])
    assert len(np.unique(both, axis=0)) == 60
    mean, deviation = data.train.features[:, 0].mean(), data.train.features[:, 0].std()
    assert (abs(mean) < 1e-12, abs(deviation - 1) < 1e-12) == (True, True)
    ages = pool[:, 0]
    scaled = sorted(both[:, 0])
    slope = (scaled[-1] - scaled[0]) / (ages.max() - ages.min())
    np.testing.assert_allclose(scaled, scaled[0] + slope * (np.sort(ages) - ages.min()), atol=1e-12)
    # the same whatever the run's seed, another with another data seed
    assert Bank.load(settings_of(), 7).train is data.train
    other = Bank.load(settings_of(data_seed=1), 0)
    assert not np.array_equal(other.test.features, data.test.features)


def test_some_training_records_leave_the_test_records_as_they_are() -> None:
    all_of, some = Bank.load(settings_of(), 0), Bank.load(settings_of(train_records=20), 0)
    assert (some.info.records, len(some.train), len(some.test)) == (20, 20, 12)
    np.testing.assert_array_equal(some.test.targets, all_of.test.targets)
    with pytest.raises(
        ConfigError, match=r"dataset\.train_records=49: bank has 48 of them; write at most that"
    ):
        Bank.info(settings_of(train_records=49))


def test_the_sample_is_labelled_as_leakage() -> None:
    settings = settings_of(test="bank_csv", test_path=str(SAMPLE))
    data = Bank.load(settings, 0)
    assert (len(data.train), len(data.test)) == (60, 12)
    np.testing.assert_array_equal(data.test.features, data.train.features[::5])
    assert "leakage" in data.info.details["test_split"]
    assert any("leakage" in item for item in Bank.not_covered(settings))
    assert not any("leakage" in item for item in Bank.not_covered(settings_of()))
    assert all("standard" in Bank.not_covered(one)[0] for one in (settings, settings_of()))
    assert (
        Bank.info(settings).sha256
        != Bank.info(settings_of(test="none")).sha256
        == Bank.info(settings_of()).sha256
    )


def test_a_file_of_test_records_that_nothing_uses_is_refused() -> None:
    with pytest.raises(
        ConfigError,
        match=r"dataset\.test=holdout20 uses no file of test records; write dataset\.test=bank_csv",
    ):
        Bank.info(settings_of(test_path=str(SAMPLE)))


def test_a_sample_of_other_records_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.csv"
    path.write_text(SAMPLE.read_text().replace(";1417;", ";1418;"))
    with pytest.raises(DataError, match=rf"{path}: has records that are none of {FILE}"):
        Bank.info(settings_of(test="bank_csv", test_path=str(path)))


def test_the_identity_has_the_content_and_not_the_place() -> None:
    assert "path" not in settings_of().identity()


def changed(line: int, change: Callable[[str], str]) -> str:
    lines = FILE.read_text().splitlines()
    lines[line - 1] = change(lines[line - 1])
    return "\n".join(lines) + "\n"


def without_month(text: str) -> str:
    return "\n".join(
        ";".join(part for k, part in enumerate(line.split(";")) if k != 10)
        for line in text.splitlines()
    )


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "not a table in csv: No columns"),
        ("\n\n", "not a table in csv"),
        (FILE.read_text().splitlines()[0], "no records below"),
        (FILE.read_text().replace(";", "|"), "column 'age' is missing"),
        (
            without_month(FILE.read_text()),
            "column 'month' is missing; the columns are age, job,",
        ),
        (
            changed(1, lambda line: line.replace('"day"', '"month"')),
            "column 'day' is missing",
        ),
        (changed(1, lambda line: line + ';"age"'), "column 'age' is twice"),
        (
            changed(7, lambda line: line + ';"no"'),
            "C error: Expected 17 fields in line 7, saw 18",
        ),
        (
            changed(61, lambda line: line.rpartition(";")[0]),
            "line 61: column 'y' is none of no, yes",
        ),
        (
            changed(9, lambda line: line.replace('"aug"', '"augu"')),
            "line 9: column 'month' is none of jan",
        ),
        (
            changed(5, lambda line: "x" + line),
            "line 5: column 'age' is no finite number",
        ),
        (
            changed(4, lambda line: "nan" + line[line.index(";") :]),
            "line 4: column 'age' is no finite number",
        ),
        (
            changed(4, lambda line: line[line.index(";") :]),
            "line 4: column 'age' is no finite number",
        ),
        (
            changed(6, lambda line: line.rpartition(";")[0] + ';"maybe"'),
            "line 6: column 'y' is none of no, yes",
        ),
    ],
)
def test_a_file_that_is_not_of_the_format_is_named_with_line_and_column(
    tmp_path: Path, content: str, says: str
) -> None:
    path = tmp_path / "mine.csv"
    path.write_text(content)
    with pytest.raises(DataError) as refused:
        read_bank(path)
    assert str(refused.value).startswith(f"{path}: ")
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)


def test_other_bytes_and_absent_files_are_named(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_bytes(FILE.read_bytes().replace(b"student", b"\xe9tudiant", 1))
    with pytest.raises(DataError, match=r"not a table in csv: .*0xe9"):
        read_bank(path)
    with pytest.raises(DataError, match=r"absent\.csv: cannot be read: No such file"):
        read_bank(tmp_path / "absent.csv")


@pytest.mark.parametrize("delimiter", [";", ",", "\t"])
def test_columns_may_stand_in_another_order_and_lines_end_as_they_like(
    tmp_path: Path, delimiter: str
) -> None:
    turned = "\r\n".join(
        delimiter.join(reversed(line.split(";"))) for line in FILE.read_text().splitlines()
    )
    path = tmp_path / "turned.csv"
    path.write_bytes(turned.encode())
    np.testing.assert_array_equal(read_bank(path), read_bank(FILE))


def test_the_published_names_are_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DPFL_DATA", str(tmp_path))
    monkeypatch.setitem(
        CATALOGUE,
        "bank",
        replace(
            CATALOGUE["bank"], files=entry_of({"bank-full.csv": FILE.read_bytes()}, "bank").files
        ),
    )
    put(tmp_path / "bank", {"bank-full.csv": FILE.read_bytes()})
    assert Bank.info(BankSettings()).records == 48
    with pytest.raises(
        DataError,
        match=r"no bank\.csv beside .*bank-full\.csv; take it from https://.*bank\.zip, or name it",
    ):
        Bank.info(BankSettings(test="bank_csv"))
    put(tmp_path / "bank", {"bank.csv": SAMPLE.read_bytes()})
    assert len(Bank.load(BankSettings(test="bank_csv"), 0).test) == 12


@pytest.mark.data
def test_the_real_file() -> None:
    try:
        data = Bank.load(BankSettings(), 0)
    except DataError as absent:
        pytest.skip(str(absent))
    assert data.info.sha256 == Bank.info(BankSettings(test="none")).sha256
    assert (len(data.train), len(data.test), data.train.features.shape[1]) == (36_169, 9_042, 51)
    assert data.train.targets.sum() + data.test.targets.sum() == 5_289
    np.testing.assert_array_equal(data.train.features[:, -4:].sum(axis=1), 1.0)  # poutcome
    whole = Bank.load(BankSettings(test="none"), 0)
    assert (whole.info.records, whole.test) == (45_211, None)
