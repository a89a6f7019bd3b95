"""The papers' own numbers: CSV files in paper_numbers/<paper>/, matched to our labels."""

import math
from functools import lru_cache
from pathlib import Path
from typing import Any

import pandas as pd

from dpfl_cli.reproduction.artifact import Artifact, PaperNumbers
from dpfl_cli.reproduction.measure import MEASURE
from dpfl_cli.reproduction.rows import FIXED, PAPER, matching

NUMBERS = Path(__file__).resolve().parent / "paper_numbers"


def printed(paper: str, table: str, *cell: str) -> dict[tuple[Any, ...], tuple[float, ...]]:
    """What stands in some columns of a table of a paper's numbers -> the values there, in order."""
    lines = pd.read_csv(NUMBERS / paper / f"{table}.csv")
    return {place: tuple(values) for place, values in lines.groupby([*cell])["value"]}


def beside_paper(artifact: Artifact, rows: pd.DataFrame) -> pd.DataFrame:
    """The rows with the paper's numbers as they are declared now."""
    table = artifact.numbers
    rows = rows.assign(paper=math.nan, paper_std=math.nan, paper_note="")
    if table is None or artifact.paper is None:
        return rows
    labels = [str(name) for name in rows if name not in FIXED]
    mine = matching(rows, table.where, labels)
    words = mine[[MEASURE]].assign(
        **{
            column: [
                table.names.get(str(value)) or artifact.title_of(value)
                for value in (mine[name] if name in mine else [""] * len(mine))
            ]
            for name, column in table.columns.items()
        }
    )
    known = _paper_numbers(
        NUMBERS / artifact.paper.key / (table.file or f"{artifact.id}.csv"), table
    )
    keys = [MEASURE, *table.columns.values()]
    found = words.merge(known, "left", keys).set_axis(words.index).dropna(subset="paper")
    rows.loc[found.index, PAPER] = found[PAPER]
    return rows


def _paper_numbers(path: Path, table: PaperNumbers) -> pd.DataFrame:
    """Our measure and the CSV's words -> number, printed spread, remark."""
    lines, named = _csv(path), list(table.columns.values())
    known = lines[lines["value"] != ""]
    known = known.assign(**{MEASURE: known["metric"].map(dict(table.measures))}).explode(MEASURE)
    std = known["std"].replace("", "nan") if "std" in known else math.nan
    numbers = {"paper": known["value"], "paper_std": std}
    known = known.assign(paper_note=known[table.note] if table.note else "", **numbers)
    known = known.astype(dict.fromkeys(numbers, float))
    known[list(numbers)] *= table.factor
    return known.drop_duplicates([MEASURE, *named], keep="last")[[MEASURE, *named, *PAPER]]


@lru_cache(maxsize=64)
def _csv(path: Path) -> pd.DataFrame:
    return pd.read_csv(path, dtype=str, keep_default_na=False)
