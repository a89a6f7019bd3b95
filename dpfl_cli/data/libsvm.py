"""LIBSVM's text format: a record a line, `label index:value index:value ...`, indices from 1 and ascending, the rest zero.

The format of Chang, Lin 2011, LIBSVM (README, "Data Format"); empty lines are skipped and `#` begins a comment, as in SVMlight.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import re
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import compress

import numpy as np

from dpfl_cli.config.errors import DataError

BLOCK = 1 << 24  # bytes of text parsed at a time
LARGEST_INDEX = 2**31 - 1  # the format's indices are C ints
LARGEST_DENSE = 1 << 32  # bytes of dense features
_USUAL = b"0123456789+-.eE: \t\r\n"  # bytes of a file without nan, inf, qid or comments
_COMPRESSED: dict[bytes, Callable[[bytes], bytes]] = {
    b"\x1f\x8b": gzip.decompress,
    b"BZh": bz2.decompress,
    b"\xfd7zXZ\x00": lzma.decompress,
}


@dataclass(frozen=True)
class SparseRecords:
    """N records: features `indices[k]` of record i are `values[k]` for offsets[i] <= k < offsets[i + 1], all others zero.

    Attributes:
      name: the file, for messages.
      labels: [N] float64, as written.
      offsets: [N + 1] int64.
      indices: [K] int64, counted from 0, ascending within a record.
      values: [K] float64.
      lines: [N] int64, line of the file on which the record stands, counted from 1.
    """

    name: str
    labels: np.ndarray
    offsets: np.ndarray
    indices: np.ndarray
    values: np.ndarray
    lines: np.ndarray

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def dimension(self) -> int:
        """The largest index of the file, counted from 1; 0 where no record has a feature."""
        return int(self.indices.max(initial=-1)) + 1

    def check_dimension(self, dimension: int) -> None:
        """A DataError that names the first line with an index beyond the dimension."""
        beyond = np.flatnonzero(self.indices >= dimension)
        if len(beyond):
            line = self.lines[np.searchsorted(self.offsets, beyond[0], side="right") - 1]
            raise DataError(
                f"{self.name}: line {line}: index {self.indices[beyond[0]] + 1} is beyond dataset.dimension={dimension}; "
                f"write at least {self.dimension}, or null for the largest index"
            )

    def dense(self, rows: np.ndarray, dimension: int) -> np.ndarray:
        """Features [len(rows), dimension] float64 of the given records, in the given order.

        Raises:
          DataError: an index beyond the dimension, or an array above LARGEST_DENSE bytes.
        """
        self.check_dimension(dimension)
        if 8 * len(rows) * dimension > LARGEST_DENSE:
            raise DataError(
                f"{self.name}: {len(rows)} records x {dimension} features take {8e-9 * len(rows) * dimension:.1f} GB as dense "
                "float64, too much; lower dataset.records"
            )
        counts = np.diff(self.offsets)[rows]
        owners = np.repeat(np.arange(len(rows)), counts)
        within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        taken = self.offsets[rows][owners] + within
        features = np.zeros((len(rows), dimension))
        features[owners, self.indices[taken]] = self.values[taken]
        return features


def uncompressed(data: bytes) -> bytes:
    """The content of a gz, bz2 or xz file, told by its first bytes; any other data as they are.

    Raises:
      DataError: the compressed data are damaged or end too early; says what, not where.
    """
    for magic, decompress in _COMPRESSED.items():
        if data.startswith(magic):
            try:
                return decompress(data)
            except (OSError, EOFError, ValueError, lzma.LZMAError, zlib.error) as error:
                raise DataError(f"the compressed data are damaged or end too early: {error}") from error
    return data


def parse_libsvm(data: bytes, name: str) -> SparseRecords:
    """Parses the uncompressed content of a file.

    Args:
      data: the whole file.
      name: what messages call it.

    Raises:
      DataError: no records, or the first line that is not of the format, by its number and with what is wrong.
    """
    parts, line = [], 1
    for block in _blocks(re.sub(rb"#[^\n]*", b"", data) if b"#" in data else data):
        parts.append(_parse_at_once(block, line) or _parse_by_line(block, line, name))
        line += block.count(b"\n")
    labels, counts, indices, values, lines = (np.concatenate(columns) for columns in zip(*[_NOTHING, *parts], strict=True))
    if not len(labels):
        raise DataError(f"{name}: no records in this file of {len(data)} bytes")
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    return SparseRecords(name, labels, offsets, indices - 1, values, lines)


_Columns = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]  # labels, counts, indices from 1, values, lines
_NOTHING: _Columns = (np.empty(0), np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0), np.empty(0, np.int64))


def _blocks(data: bytes) -> Iterator[bytes]:
    """Whole lines, about BLOCK bytes at a time."""
    start = 0
    while start < len(data):
        stop = data.find(b"\n", start + BLOCK) + 1 or len(data)
        yield data[start:stop]
        start = stop


def _parse_at_once(block: bytes, first_line: int) -> _Columns | None:
    """Array operations over a whole block; None where anything is unusual, which `_parse_by_line` then names or reads.

    A number is an index if a colon follows it, a value if a colon precedes it, and else a label. The block is well-formed
    iff every colon joins an index to the next number, a value and no index, and the labels are the first numbers of the lines.
    """
    if block.translate(None, _USUAL):
        return None
    text = np.frombuffer(b" " + block + b" ", np.uint8)
    colon = text == ord(":")
    inside = ~colon & (text > ord(" "))
    edges = np.flatnonzero(inside[1:] != inside[:-1]) + 1
    starts, stops = edges[::2], edges[1::2]
    line = np.searchsorted(np.flatnonzero(text == ord("\n")), starts)
    is_index, is_value = colon[stops], colon[starts - 1]
    is_label = ~(is_index | is_value)
    is_first = np.diff(line, prepend=-1) > 0
    well_formed = (
        np.array_equal(is_index[:-1], is_value[1:])
        and not (is_value[:1].any() or is_index[-1:].any() or (is_index & is_value).any())
        and np.count_nonzero(colon) == np.count_nonzero(is_value)
        and np.array_equal(is_label, is_first)
    )
    if not well_formed:
        return None
    words = block.replace(b":", b" ").split()
    try:
        numbers = np.fromiter(map(float, compress(words, (~is_index).tolist())), np.float64)
        indices = np.fromiter(map(int, compress(words, is_index.tolist())), np.int64)
    except (ValueError, OverflowError):
        return None
    owner = np.cumsum(is_label)[is_index] - 1
    ascending = (np.diff(indices) > 0) | (np.diff(owner) > 0)
    if not np.isfinite(numbers).all() or not ascending.all() or ((indices < 1) | (indices > LARGEST_INDEX)).any():
        return None
    counts = np.bincount(owner, minlength=np.count_nonzero(is_label)).astype(np.int64)
    values = is_value[~is_index]
    return numbers[~values], counts, indices, numbers[values], line[is_label] + first_line


def _parse_by_line(block: bytes, first_line: int, name: str) -> _Columns:
    """The definition: line by line, word by word."""
    labels: list[float] = []
    counts: list[int] = []
    indices: list[int] = []
    values: list[float] = []
    lines: list[int] = []
    for number, line in enumerate(block.split(b"\n"), first_line):
        words = line.split()
        if not words:
            continue
        try:
            labels.append(_label(words[0]))
            last = 0
            for word in words[1:]:
                last, value = _feature(word, last)
                indices.append(last)
                values.append(value)
        except ValueError as error:
            raise DataError(f"{name}: line {number}: {error}") from error
        counts.append(len(words) - 1)
        lines.append(number)
    return (
        np.array(labels, np.float64),
        np.array(counts, np.int64),
        np.array(indices, np.int64),
        np.array(values, np.float64),
        np.array(lines, np.int64),
    )


def _label(word: bytes) -> float:
    """The label of a record; a ValueError says what is wrong."""
    if b":" in word:
        raise ValueError(f"begins with {_shown(word)}; the label comes first, then index:value")
    if b"," in word:
        raise ValueError(f"label {_shown(word)}: several labels on a record; dpfl reads one")
    return _finite(word, "label")


def _feature(word: bytes, last: int) -> tuple[int, float]:
    """Index (from 1) and value of a feature that comes after index `last`; a ValueError says what is wrong."""
    before, colon, after = word.partition(b":")
    if before == b"qid":
        raise ValueError(f"{_shown(word)}: query ids mean ranking data, which dpfl does not read; remove them")
    if not colon or not before or not after:
        raise ValueError(f"{_shown(word)} is not index:value")
    try:
        index = int(_plain(before))
    except ValueError:
        raise ValueError(f"{_shown(word)}: index {_shown(before)} is not a whole number") from None
    if not 1 <= index <= LARGEST_INDEX:
        hint = "; a file that counts from 0 must be shifted by one" if index == 0 else f" up to {LARGEST_INDEX}"
        raise ValueError(f"{_shown(word)}: index {_shown(before)}: indices count from 1{hint}")
    if index <= last:
        what = f"index {index} comes twice" if index == last else f"index {index} comes after index {last}"
        raise ValueError(f"{_shown(word)}: {what}; indices must ascend")
    return index, _finite(after, f"{_shown(word)}: value")


def _finite(word: bytes, what: str) -> float:
    try:
        number = float(_plain(word))
    except ValueError:
        raise ValueError(f"{what} {_shown(word)} is not a number") from None
    if not np.isfinite(number):
        raise ValueError(f"{what} {_shown(word)} is not finite")
    return number


def _plain(word: bytes) -> bytes:
    """The word, unless it has the underscores that Python allows in numbers and the format does not."""
    if b"_" in word:
        raise ValueError
    return word


def _shown(word: bytes) -> str:
    """A word for a message: readable, and not too long."""
    text = word.decode("utf-8", "backslashreplace")
    return repr(text if len(text) <= 40 else text[:37] + "...")
