"""The papers' own numbers: CSV files in paper_numbers/<paper>/, in the words of our labels."""

import math
from functools import lru_cache
from pathlib import Path
from typing import Any

import pandas as pd

from dpfl_cli.reproduction.artifact import Artifact
from dpfl_cli.reproduction.rows import PAPER

NUMBERS = Path(__file__).with_name("paper_numbers")
NAMES = {"value": "paper", "std": "paper_std", "note": "paper_note"}  # column of a file -> of rows


def printed(paper: str, table: str, *cell: str) -> dict[tuple[Any, ...], tuple[float, ...]]:
    """What stands in some columns of a table of a paper's numbers -> the values there, in order."""
    lines = pd.read_csv(NUMBERS / paper / f"{table}.csv")
    return {place: tuple(values) for place, values in lines.groupby([*cell])["value"]}


def beside_paper(artifact: Artifact, rows: pd.DataFrame) -> pd.DataFrame:
    """The rows, each with the paper's number where the artifact's file has a line for it."""
    rows = rows.assign(paper=math.nan, paper_std=math.nan, paper_note="")
    path = NUMBERS / f"{artifact.name}.csv"
    if not path.is_file():
        return rows
    lines = _lines(path)
    keys = [name for name in lines if name not in PAPER]
    texts = rows.reindex(columns=keys, fill_value="").astype(str)  # as table.csv has them
    found = texts.merge(lines, "left", keys).set_axis(rows.index).dropna(subset="paper")
    rows.loc[found.index, PAPER] = found[PAPER]
    return rows


@lru_cache(maxsize=64)
def _lines(path: Path) -> pd.DataFrame:
    """A measure and labels, as texts; the number there, its printed spread, and a remark on it."""
    lines = pd.read_csv(path, dtype=str, keep_default_na=False).rename(columns=NAMES)
    lines = lines.assign(**{name: "" for name in PAPER if name not in lines})
    numbers = ["paper", "paper_std"]
    lines[numbers] = lines[numbers].replace("", "nan").astype(float)
    return lines
