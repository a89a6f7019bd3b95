"""Tables in csv, as publishers of data sets and spreadsheets write them, read by pandas."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy import ndarray

from dpfl_cli.config.errors import DataError
from dpfl_cli.data.sources import read_uncompressed

if TYPE_CHECKING:  # half a second, which a run does not wait for
    import pandas as pd


@dataclass(frozen=True)
class TextTable:
    """The cells of a file below the first line, which names the columns. Errors say where a cell
    is, not what is in it: records may be private.

    Attributes:
      cells: N rows of stripped text; names of columns are in small letters with single spaces.
      text: the file, uncompressed.
    """

    path: Path
    cells: pd.DataFrame
    text: str

    def __len__(self) -> int:
        return len(self.cells)

    def error(self, row: int, says: str) -> DataError:
        """What is wrong in a row; lines that are empty hold none."""
        numbers = [number for number, line in enumerate(self.text.split("\n"), 1) if line.strip()]
        return DataError(f"{self.path}: line {numbers[row + 1]}: {says}")

    def numbers(self, name: str) -> ndarray:
        """[N] float64 of a column; a DataError names the first cell that is no finite number."""
        import pandas as pd

        values = pd.to_numeric(self.cells[name], errors="coerce").to_numpy(np.float64)
        return self._good(name, values, np.isfinite(values), "is no finite number")

    def places(self, name: str, words: Sequence[str]) -> ndarray:
        """[N] int64 places of a column's cells among the words; a DataError names the first that
        is none of them.
        """
        import pandas as pd

        places = pd.Index(words).get_indexer(pd.Index(self.cells[name]))
        return self._good(name, places, places >= 0, f"is none of {', '.join(words)}")

    def _good(self, name: str, values: ndarray, good: ndarray, says: str) -> ndarray:
        if not good.all():
            raise self.error(int(good.argmin()), f"column '{name}' {says}")
        return values


def read_table(path: Path, wanted: Sequence[str]) -> TextTable:
    """The table in a file, plain or compressed, whose columns stand between commas,
    semicolons or tabs.

    Args:
      wanted: columns that it must have, each once; it may have more.

    Raises:
      DataError: names the file, and what is wrong with it.
    """
    try:
        text = read_uncompressed(path).decode("utf-8-sig")
        cells = _cells(text)
    except ValueError as error:  # no UTF-8, or of pandas: no table
        raise DataError(f"{path}: not a table in csv: {error}") from error
    names = [" ".join(str(name).lower().split()) for name in cells.iloc[0]]
    for name in wanted:
        if names.count(name) != 1:
            what = "twice" if name in names else "missing"
            raise DataError(
                f"{path}: column '{name}' is {what}; the columns are {', '.join(wanted)}"
            )
    if len(cells) < 2:
        raise DataError(f"{path}: no records below the first line")
    return TextTable(path, cells[1:].set_axis(names, axis=1), text)


def text_table(text: str) -> pd.DataFrame:
    """The stripped cells of a text below its first line, which names the columns.

    Raises:
      DataError: names are repeated or numbers; says nothing of what is in a cell.
    """
    import pandas as pd

    cells = _cells(text).astype(object)
    names = [str(name) for name in cells.iloc[0]]
    if pd.to_numeric(cells.iloc[0], errors="coerce").notna().any():
        raise DataError("its first line has numbers in place of names")
    if any(not name or name.startswith("Unnamed: ") for name in names):
        raise DataError("a column has no name (of pandas' index? write to_csv(..., index=False))")
    if len(set(names)) < len(names):
        raise DataError("its first line names a column twice")
    return cells[1:].set_axis(names, axis=1).reset_index(drop=True)


def _cells(text: str) -> pd.DataFrame:
    """The stripped cells of all lines; the first says what stands between them."""
    import pandas as pd

    sep = max(",;\t", key=text.lstrip().partition("\n")[0].count)
    cells = pd.read_csv(io.StringIO(text), sep=sep, header=None, dtype=str, keep_default_na=False)
    return cells.apply(lambda column: column.str.strip())
