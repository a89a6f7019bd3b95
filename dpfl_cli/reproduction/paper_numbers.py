"""The papers' own numbers: CSV files in paper_numbers/<paper>/, or beside an artifact's own file,
in the words of our labels.
"""

import math
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from dpfl_cli.config.errors import ConfigError, nearest
from dpfl_cli.data.loading import warn_once
from dpfl_cli.reproduction.artifact import Artifact
from dpfl_cli.reproduction.measure import Derived
from dpfl_cli.reproduction.rows import PAPER

HERE = Path(__file__).parent
NUMBERS = HERE / "paper_numbers"
NAMES = {"value": "paper", "std": "paper_std", "note": "paper_note"}  # column of a file -> of rows


def numbers_in(file: str, *cell: str) -> dict[tuple[Any, ...], tuple[float, ...]]:
    """What stands in some columns of a file of numbers -> the values there, in order.

    Args:
      file: "paper_numbers/<paper>/<table>", or "searches/<name>" of what searches of ours found.
    """
    lines = pd.read_csv(HERE / f"{file}.csv")
    return {place: tuple(values.tolist()) for place, values in lines.groupby([*cell])["value"]}


def beside_paper(artifact: Artifact, rows: pd.DataFrame) -> pd.DataFrame:
    """The rows, each with the paper's number where the artifact's file has a line for it."""
    rows = rows.assign(paper=math.nan, paper_std=math.nan, paper_note="")
    lines = _lines(_file_of(artifact))
    keys = [name for name in lines if name not in PAPER]
    if lines.empty:
        return rows
    texts = rows.reindex(columns=keys, fill_value="").map(_text)
    found = texts.merge(lines, "left", keys).set_axis(rows.index).dropna(subset="paper")
    rows.loc[found.index, PAPER] = found[PAPER]
    if artifact.numbers and found.empty:
        warn_once(
            f"{_file_of(artifact)}: none of its {len(lines)} lines stands beside a row; what a "
            "line leaves empty a row must lack (leave the column out for any value)"
        )
    return rows


def check_numbers(artifact: Artifact) -> None:
    """Refuses a file of a paper's numbers that names what the artifact does not have. Values of
    labels in dpfl's own files may be of cells that are not run, but not all of them.
    """
    path, own = _file_of(artifact), bool(artifact.numbers)
    if own and not path.is_file():
        raise ConfigError(f"page: numbers: no file {path}")
    lines = _lines(path)
    if lines.empty and not own:
        return
    keys = [str(name) for name in lines if name not in PAPER]
    known: dict[str, Sequence[Any]] = {
        "measure": artifact.measure_names,
        "best": (True, False),
        "round": (),
        "rank": (),
        **{name: [*values, *_none(artifact, name)] for name, values in artifact.choices.items()},
    }
    for name in keys:
        if name not in known:
            near = nearest(name, [*known, *NAMES])
            raise ConfigError(f"{path}: column {name}: no label of the artifact; {near}")
        values = [*map(_text, known[name])]
        given = [one for one in lines[name].unique() if one not in values]
        if values and given and (own or name == "measure" or len(given) == lines[name].nunique()):
            raise ConfigError(f"{path}: {name} {given[0] or 'empty'}: {nearest(given[0], values)}")
    twice = lines.loc[lines.duplicated(keys), keys]
    if len(twice):
        raise ConfigError(f"{path}: two numbers of {' '.join(twice.iloc[0])}")


def _none(artifact: Artifact, label: str) -> list[str]:
    """[""] where rows may lack a label: a run does, or they are of several runs."""
    several = artifact.best or any(isinstance(one, Derived) for one in artifact.measures.values())
    runs = (run for scale in artifact.sizes for run in artifact.at(scale).declared)
    return [""] if several or any(label not in run.labels for run in runs) else []


def _file_of(artifact: Artifact) -> Path:
    if artifact.numbers:
        return artifact.path.parent / artifact.numbers
    return NUMBERS / f"{artifact.name}.csv"


@lru_cache(maxsize=4096, typed=True)
def _text(value: Any) -> str:
    """As a label's values are compared: 1, 1.0 and "1.0" are one, and what is absent is empty."""
    text = "" if pd.isna(value) else str(value).strip()
    try:
        return f"{float(text):.12g}"
    except ValueError:
        return text


def _lines(path: Path) -> pd.DataFrame:
    """A measure and labels, as texts; the number there, its printed spread, and a remark on it. No
    lines where there is no file.
    """
    if not path.is_file():
        return pd.DataFrame(columns=["measure", *PAPER])
    try:
        read = pd.read_csv(path, dtype=str, keep_default_na=False)
        lines = read.rename(columns=NAMES)
        if not {"measure", "paper"} <= {*lines}:
            raise ValueError(
                "needs columns measure and value, and one for each label (by commas); has "
                + ", ".join(map(str, read))
            )
        lines = lines.assign(**{name: "" for name in PAPER if name not in lines})
        numbers = ["paper", "paper_std"]
        lines[numbers] = lines[numbers].replace("", "nan").astype(float)
        if np.isinf(lines[numbers]).any(axis=None) or (lines["paper_std"] < 0).any():
            raise ValueError("a value is infinite, or a std is below 0")
    except (OSError, ValueError) as error:  # pandas' own errors of bad files are ValueErrors
        raise ConfigError(f"{path}: no paper's numbers: {error}") from error
    keys = [name for name in lines if name not in PAPER]
    return lines.assign(**lines[keys].map(_text))
