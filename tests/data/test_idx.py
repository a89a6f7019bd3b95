"""The idx reader: a good file comes back as it was, and nothing else passes or crashes."""

from __future__ import annotations

import gzip
import struct
import tempfile
from pathlib import Path

import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_files import idx_bytes

from dpfl_cli.config.errors import DataError
from dpfl_cli.data.mnist import read_idx

arrays = hnp.arrays(np.uint8, hnp.array_shapes(min_dims=1, max_dims=4, min_side=0, max_side=5))


@pytest.fixture(scope="module")
def folder():
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


def written(folder: Path, data: bytes, packed: bool) -> Path:
    path = folder / ("file.gz" if packed else "file")
    path.write_bytes(gzip.compress(data, 1) if packed else data)
    return path


def parsed(path: Path) -> np.ndarray | None:
    """The array, or None where the file is refused with its name; any other exception passes."""
    try:
        return read_idx(path)
    except DataError as error:
        if str(path) not in str(error):
            raise AssertionError(f"{error} does not name the file") from error
        return None


@given(values=arrays, packed=st.booleans())
@settings(max_examples=60, deadline=None)
def test_round_trip(folder, values, packed):
    path = written(folder, idx_bytes(values), packed)
    found = read_idx(path)
    assert found.dtype == values.dtype
    np.testing.assert_array_equal(found, values)


@given(values=arrays, packed=st.booleans(), data=st.data())
@settings(max_examples=60, deadline=None)
def test_every_truncation_is_refused(folder, values, packed, data):
    whole = written(folder, idx_bytes(values), packed).read_bytes()
    path = folder / ("cut.gz" if packed else "cut")
    path.write_bytes(whole[: data.draw(st.integers(0, len(whole) - 1))])
    with pytest.raises(
        DataError, match=r"cut(\.gz)?: .*(truncated|damaged|not a whole idx file)"
    ) as refused:
        read_idx(path)
    assert "\n" not in str(refused.value)


@given(values=arrays, data=st.data())
@settings(max_examples=200, deadline=None)
def test_a_flipped_header_byte_is_refused_or_is_another_header_of_the_same_length(
    folder, values, data
):
    content = bytearray(idx_bytes(values))
    at = data.draw(st.integers(0, 3 + 4 * values.ndim))
    content[at] ^= data.draw(st.integers(1, 255))
    path = written(folder, bytes(content), False)
    found = parsed(path)
    assert found is None or 4 + 4 * found.ndim + found.nbytes == len(
        content
    )  # the announced length happens to fit


@given(content=st.binary(max_size=64), packed=st.booleans())
@settings(max_examples=100, deadline=None)
def test_any_bytes_are_refused_or_parsed(folder, content, packed):
    path = folder / ("any.gz" if packed else "any")
    path.write_bytes(content)
    found = parsed(path)
    assert found is None or found.ndim > 0


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x00\x00\x08",
        b"\x00\x00\x08\x02\x00\x00\x00\x01",
        b"PK\x03\x04 something else",
        b"\x00\x00\x07\x01\x00\x00\x00\x00",
        b"\x00\x00\x08\x00",
        b"\x00\x00\x08\x01\x00\x00\x00\x02abc",
        b"\x00\x00\x08\x01\x00\x00\x00\x02a",
        b"\x00\x00\x08\x03" + struct.pack(">3I", 2**32 - 1, 2**32 - 1, 2**32 - 1),
        b"\x00\x00\x08\x03" + struct.pack(">3I", 0, 2**32 - 1, 2**32 - 1),
        b"\x00\x00\x08\xff" + struct.pack(">255I", *[1] * 255) + b"a",
    ],
)
def test_says_what_is_wrong(folder, content):
    path = folder / "bad"
    path.write_bytes(content)
    with pytest.raises(DataError, match="bad: not a whole idx file"):
        read_idx(path)
