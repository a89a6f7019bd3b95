"""The papers' own numbers: CSV files in paper_numbers/<paper>/, matched to our labels."""

from __future__ import annotations

import math
from functools import lru_cache
from pathlib import Path

import pandas as pd

from dpfl_cli.config.errors import ConfigError, nearest
from dpfl_cli.reproduction.artifact import Artifact, PaperNumbers
from dpfl_cli.reproduction.measure import (
    MEASURE,
)
from dpfl_cli.reproduction.rows import FIXED, matching, records

NUMBERS = Path(__file__).resolve().parent / "paper_numbers"


def beside_paper(artifact: Artifact, rows: pd.DataFrame) -> pd.DataFrame:
    """The rows with the paper's numbers as they are declared now."""
    table = artifact.numbers
    rows = rows.assign(paper=math.nan, paper_std=math.nan, paper_note="")
    if table is None or artifact.paper is None:
        return rows
    known = _paper_numbers(
        NUMBERS / artifact.paper.key / (table.file or f"{artifact.id}.csv"), table
    )
    labels = [name for name in table.columns if name in rows]
    inside = matching(rows, table.where, [str(name) for name in rows if name not in FIXED])
    found = []
    for place, measure, *values in inside[[MEASURE, *labels]].itertuples(name=None):
        names = dict(zip(labels, values, strict=True))
        words = (names.get(name, "") for name in table.columns)
        key = tuple(table.names.get(str(one)) or artifact.title_of(one) for one in words)
        if (measure, *key) in known:
            found.append((place, *known[measure, *key]))
    if found:
        places, numbers, spreads, notes = zip(*found, strict=True)
        rows.loc[list(places), "paper"] = list(numbers)
        rows.loc[list(places), "paper_std"] = list(spreads)
        rows.loc[list(places), "paper_note"] = list(notes)
    return rows


def _paper_numbers(
    path: Path, table: PaperNumbers
) -> dict[tuple[str, ...], tuple[float, float, str]]:
    """(our measure, the CSV's words) -> number, printed spread, remark."""
    lines = _csv(path)
    for column in (
        *table.columns.values(),
        *([table.note] if table.note else []),
        "metric",
        "value",
    ):
        if column not in lines:
            raise ConfigError(
                f"{path.name}: no column '{column}'; "
                f"{nearest(column, [str(name) for name in lines])}"
            )
    known: dict[tuple[str, ...], tuple[float, float, str]] = {}
    for line in records(lines):
        ours = table.measures.get(line["metric"], ())
        if not line["value"]:
            continue
        spread = table.factor * float(line.get("std") or "nan")
        number = (
            table.factor * float(line["value"]),
            spread,
            line[table.note] if table.note else "",
        )
        words = tuple(line[column] for column in table.columns.values())
        known |= {(one, *words): number for one in ([ours] if isinstance(ours, str) else ours)}
    return known


@lru_cache(maxsize=64)
def _csv(path: Path) -> pd.DataFrame:
    try:
        return pd.read_csv(path, dtype=str, keep_default_na=False)
    except OSError as error:
        raise ConfigError(
            f"{path}: the paper's numbers cannot be read ({error.strerror}); reinstall dpfl"
        ) from error
