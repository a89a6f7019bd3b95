"""Tables in csv, as publishers of data sets and spreadsheets write them."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dpfl_cli.config.errors import DataError
from dpfl_cli.data.sources import read_uncompressed


@dataclass(frozen=True)
class Table:
    """The cells of a file below the first line, which names the columns.

    Attributes:
      lines: [N] line of the file that a row ends on, counted from 1.
      columns: name of the column, in small letters with single spaces -> [N] cells, stripped.
    """

    path: Path
    lines: Sequence[int]
    columns: Mapping[str, Sequence[str]]

    def __len__(self) -> int:
        return len(self.lines)

    def error(self, row: int, says: str) -> DataError:
        """What is wrong in a row."""
        return DataError(f"{self.path}: line {self.lines[row]}: {says}")

    def numbers(self, name: str) -> np.ndarray:
        """[N] float64 of a column; a DataError names the first cell that is no finite number."""
        return self._made(name, _number, "is not a finite number")

    def places(self, name: str, words: Sequence[str]) -> np.ndarray:
        """[N] float64 places of a column's cells among the words; a DataError names the first that
        is none of them.
        """
        known = {word: float(place) for place, word in enumerate(words)}
        says = f"is none of the categories {', '.join(words)}"
        return self._made(name, lambda cell: known.get(cell, np.nan), says)

    def _made(self, name: str, value: Callable[[str], float], says: str) -> np.ndarray:
        values = np.array([value(cell) for cell in self.columns[name]], np.float64)
        strange = np.flatnonzero(~np.isfinite(values))
        if len(strange):
            cell = self.columns[name][strange[0]]
            raise self.error(strange[0], f"column '{name}': '{cell}' {says}")
        return values


def _number(cell: str) -> float:
    try:
        return float(cell)
    except ValueError:
        return np.nan


def read_table(path: Path, wanted: Sequence[str], others: bool = True) -> Table:
    """The table in a file, plain or compressed, whose columns stand between commas,
    semicolons or tabs.

    Args:
      wanted: columns that it must have, each once.
      others: whether it may have more.

    Raises:
      DataError: names the file and the line, and what is wrong with it.
    """
    content = read_uncompressed(path)
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise DataError(
            f"{path}: line {line}: byte {content[error.start]:#04x} is no UTF-8 text"
        ) from error
    first = next((line for line in text.splitlines() if line.strip()), "")
    delimiter = max(",;\t", key=first.count)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    rows, lines = [], []
    try:
        for row in reader:
            if any(map(str.strip, row)):  # empty lines are between records, or at the end
                rows.append(list(map(str.strip, row)))
                lines.append(reader.line_num)
    except csv.Error as error:
        raise DataError(f"{path}: line {reader.line_num}: {error}") from error
    if len(rows) < 2:
        raise DataError(f"{path}: {'no records below the first line' if rows else 'empty'}")
    names = [" ".join(name.lower().split()) for name in rows[0]]
    for name in (*wanted, *names):
        there = names.count(name)
        if there != 1 or not (others or name in wanted):
            what = "missing" if not there else "twice" if there > 1 else "none of this format"
            raise DataError(
                f"{path}: line {lines[0]}: column '{name}' is {what}; the columns are "
                f"{', '.join(wanted)}"
            )
    for line, row in zip(lines, rows, strict=True):
        if len(row) != len(names):
            raise DataError(
                f"{path}: line {line}: {len(row)} fields, but the first line names {len(names)} "
                "columns"
            )
    return Table(path, lines[1:], dict(zip(names, zip(*rows[1:], strict=True), strict=True)))
