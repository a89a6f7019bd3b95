"""LIBSVM's text format: a record a line, `label index:value index:value ...`, indices from 1 and
ascending, the rest zero.

The format of Chang, Lin 2011, LIBSVM (README, "Data Format"); empty lines are skipped and `#`
begins a comment, as in SVMlight.
"""

from __future__ import annotations

import re
from array import array
from dataclasses import dataclass

import numpy as np

from dpfl_cli.config.errors import DataError

LARGEST_INDEX = 2**31 - 1  # the format's indices are C ints
LARGEST_DENSE = 1 << 32  # bytes of dense features
_NUMBER = rb"[+-]?(?:\d++\.?\d*+|\.\d++)(?:[eE][+-]?\d++)?+"
_GAP = rb"[ \t\r\f\v]"
_FORMAT = re.compile(
    rb"(?:%b*+(?:%b(?:%b++\+?\d++:%b)*+%b*+)?+\n)*+" % (_GAP, _NUMBER, _GAP, _NUMBER, _GAP)
)


@dataclass(frozen=True)
class SparseRecords:
    """N records: features `indices[k]` of record i are `values[k]` for offsets[i] <= k < offsets[i
    + 1], all others zero.

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
                f"{self.name}: line {line}: index {self.indices[beyond[0]] + 1} is beyond "
                f"dataset.dimension={dimension}; write at least {self.dimension}, or null for the "
                "largest index"
            )

    def dense(self, rows: np.ndarray, dimension: int) -> np.ndarray:
        """Features [len(rows), dimension] float64 of the given records, in the given order.

        Raises:
          DataError: an index beyond the dimension, or an array above LARGEST_DENSE bytes.
        """
        self.check_dimension(dimension)
        size = 8 * len(rows) * dimension
        if size > LARGEST_DENSE:
            raise DataError(
                f"{self.name}: {len(rows)} records x {dimension} features take {1e-9 * size:.1f} "
                "GB as dense float64, too much; lower dataset.records"
            )
        counts = np.diff(self.offsets)[rows]
        owners = np.repeat(np.arange(len(rows)), counts)
        within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        taken = self.offsets[rows][owners] + within
        features = np.zeros((len(rows), dimension))
        features[owners, self.indices[taken]] = self.values[taken]
        return features


def parse_libsvm(data: bytes, name: str) -> SparseRecords:
    """Parses the uncompressed content of a file, which messages call `name`.

    Raises:
      DataError: no records, or the first line that is not of the format, by its number and with
        what is wrong.
    """
    lines = re.sub(rb"#[^\n]*", b"", data).split(b"\n")
    found = _parsed(lines, name) if _FORMAT.fullmatch(b"\n".join([*lines, b""])) else None
    if found is None:
        for number, line in enumerate(lines, 1):
            try:
                _check(line.split())
            except ValueError as error:
                raise DataError(f"{name}: line {number}: {error}") from error
        raise DataError(f"{name}: not in LIBSVM's format")
    if not len(found):
        raise DataError(f"{name}: no records in this file of {len(data)} bytes")
    return found


def _parsed(texts: list[bytes], name: str) -> SparseRecords | None:
    """The records of lines in the right form; None where a number is beyond its bounds."""
    labels, values, indices = array("d"), array("d"), array("q")
    counts, lines = [0], []
    for line, text in enumerate(texts, 1):
        words = text.replace(b":", b" ").split()
        if words:
            labels.append(float(words[0]))
            try:
                indices.extend(map(int, words[1::2]))
            except OverflowError:
                return None
            values.extend(map(float, words[2::2]))
            counts.append(len(words) // 2)
            lines.append(line)
    offsets = np.cumsum(counts, dtype=np.int64)
    found = SparseRecords(
        name, np.array(labels), offsets, np.array(indices) - 1, np.array(values), np.array(lines)
    )
    steps = np.diff(found.indices, prepend=-1)
    steps[offsets[:-1][np.diff(offsets) > 0]] = 1  # the first of a record need not come after
    good = (
        np.isfinite(found.labels).all()
        and np.isfinite(found.values).all()
        and (steps > 0).all()
        and found.indices.min(initial=0) >= 0
        and found.dimension <= LARGEST_INDEX
    )
    return found if good else None


def _check(words: list[bytes]) -> None:
    """A ValueError says what is wrong with the first word of a line that is not of the format."""
    if not words:
        return
    label, last = words[0], 0
    if b":" in label:
        raise ValueError(f"begins with {_shown(label)}; the label comes first, then index:value")
    if b"," in label:
        raise ValueError(f"label {_shown(label)}: several labels on a record; dpfl reads one")
    _check_number(label, "label")
    for word in words[1:]:
        before, _, after = word.partition(b":")
        shown = _shown(word)
        if before == b"qid":
            raise ValueError(
                f"{shown}: query ids mean ranking data, which dpfl does not read; remove them"
            )
        if not before or not after:
            raise ValueError(f"{shown} is not index:value")
        if not re.fullmatch(rb"[+-]?\d+", before):
            raise ValueError(f"{shown}: index {_shown(before)} is not a whole number")
        index = int(before)
        if not 1 <= index <= LARGEST_INDEX:
            hint = "" if index else "; a file that counts from 0 must be shifted by one"
            raise ValueError(
                f"{shown}: index {_shown(before)}: indices count from 1 up to {LARGEST_INDEX}{hint}"
            )
        if index <= last:
            what = "comes twice" if index == last else f"comes after index {last}"
            raise ValueError(f"{shown}: index {index} {what}; indices must ascend")
        last = index
        _check_number(after, f"{shown}: value")


def _check_number(word: bytes, what: str) -> None:
    try:
        number = float(b"" if b"_" in word else word)  # underscores are Python's, not the format's
    except ValueError:
        raise ValueError(f"{what} {_shown(word)} is not a number") from None
    if not np.isfinite(number):
        raise ValueError(f"{what} {_shown(word)} is not finite")


def _shown(word: bytes) -> str:
    """A word for a message: readable, and not too long."""
    text = word.decode("utf-8", "backslashreplace")
    return repr(text if len(text) <= 40 else text[:37] + "...")
