"""The parser of LIBSVM's format: against a slow obvious reading, and every corruption refused by
its line.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from dpfl_cli.config.errors import DataError
from dpfl_cli.data.libsvm import parse_libsvm


def obvious(text: str) -> tuple[list[float], list[dict[int, float]]]:
    """Labels and features by index (from 1), read from the format's description."""
    labels, rows = [], []
    for line in text.split("\n"):
        words = line.partition("#")[0].split()
        if words:
            labels.append(float(words[0]))
            rows.append({int(word.split(":")[0]): float(word.split(":")[1]) for word in words[1:]})
    return labels, rows


def dense(rows: list[dict[int, float]], dimension: int) -> np.ndarray:
    features = np.zeros((len(rows), dimension))
    for row, entries in enumerate(rows):
        for index, value in entries.items():
            features[row, index - 1] = value
    return features


numbers = st.floats(allow_nan=False, allow_infinity=False)
written = st.sampled_from([repr, "{:e}".format, "{:+.3f}".format, "{:.6g}".format])
gaps = st.sampled_from([" ", "  ", "\t"])
endings = st.sampled_from(
    ["\n", " \n", "\r\n", "\n\n", " # a comment: 1:2\n", "\n# a line of comment\n \n"]
)


@st.composite
def files(draw: st.DrawFn) -> str:
    """A well-formed file of one to six records, up to index 30."""
    text = draw(st.sampled_from(["", "\n", "# head\n"]))
    for _ in range(draw(st.integers(1, 6))):
        text += draw(st.sampled_from(["+1", "-1", "0", "2", "1.0", "1e0"]))
        for index in sorted(draw(st.sets(st.integers(1, 30), max_size=5))):
            text += f"{draw(gaps)}{index}:{draw(written)(draw(numbers))}"
        text += draw(endings)
    return text if draw(st.booleans()) else text.rstrip("\r\n")


@given(text=files())
@settings(max_examples=150, deadline=None)
def test_a_file_is_read_as_the_format_says(text: str) -> None:
    found = parse_libsvm(text.encode(), "file")
    labels, rows = obvious(text)
    assert found.labels.tolist() == labels
    assert found.dimension == max((index for row in rows for index in row), default=0)
    np.testing.assert_array_equal(found.dense(np.arange(len(rows)), 30), dense(rows, 30))
    some = np.random.default_rng(0).integers(0, len(rows), 4)
    np.testing.assert_array_equal(found.dense(some, 40), dense(rows, 40)[some])


FEATURES = """1:1 2:x|1:1 2:|1:1 :2|1:1 2|1:1 2:3:4|1:1 2 :3|0:1|-2:1|2147483648:1
99999999999999999999:1|1.5:1|1e1:1|a:1|3:1 3:1|3:1 2:1|1:nan|1:-inf|1:1e999|1:1.2.3|1:0x10
1:\xff""".replace("\n", "|").split("|")
BAD = [f"+1 {features}" for features in FEATURES] + [
    f"{label} 1:1" for label in ("1:2", "x", "nan", "1,2", "--1")
]


@pytest.mark.parametrize("line", BAD)
@given(before=files(), after=files())
@settings(max_examples=8, deadline=None)
def test_a_corrupt_line_is_refused_by_its_number(line: str, before: str, after: str) -> None:
    before = before.rstrip("\r\n") + "\n"
    number = before.count("\n") + 1
    content = f"{before}{line}\n{after}".encode()
    with pytest.raises(DataError) as refused:
        parse_libsvm(content, "some/file")
    assert str(refused.value).startswith(f"some/file: line {number}: ")
    assert "\n" not in str(refused.value)


@given(text=files(), draw=st.data())
@settings(max_examples=100, deadline=None)
def test_the_first_of_several_corrupt_lines_is_named(text: str, draw: st.DataObject) -> None:
    lines = text.split("\n")
    assume(len(lines) >= 2)
    broken = sorted(draw.draw(st.sets(st.integers(0, len(lines) - 1), min_size=1)))
    for place in broken:
        lines[place] = draw.draw(st.sampled_from(BAD))
    with pytest.raises(DataError, match=rf"^file: line {broken[0] + 1}: "):
        parse_libsvm("\n".join(lines).encode(), "file")


@pytest.mark.parametrize("content", [b"", b"\n\n", b"# nothing but comments 1 1:1\n", b"  \r\n"])
def test_a_file_without_records_is_refused(content: bytes) -> None:
    with pytest.raises(
        DataError, match=rf"^file: no records in this file of {len(content)} bytes$"
    ):
        parse_libsvm(content, "file")


def test_what_is_too_large_to_be_dense_is_refused_before_it_is_made() -> None:
    found = parse_libsvm(b"1 2000000000:1\n-1 1:1\n", "file")
    with pytest.raises(
        DataError, match=r"^file: 2 records x 2000000000 features take 32\.0 GB as dense float64"
    ):
        found.dense(np.arange(2), found.dimension)
