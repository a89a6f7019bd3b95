"""Rows as frames: their columns, CSV files and back."""

import io
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from dpfl_cli.config.errors import ConfigError
from dpfl_cli.reproduction.artifact import Artifact
from dpfl_cli.reproduction.paper_numbers import beside_paper
from dpfl_cli.reproduction.rows import FIXED, PAPER, PRIVACY, Row, Rows, labels_of

CSV = ("table.csv", "series.csv")  # all rows of an artifact
NUMBERS = ["seeds", "epsilon", "epsilon_target", "delta", "epsilon_paper", "releases"]


def framed(
    artifact: Artifact, labels: Sequence[str], rows: Sequence[Row] | pd.DataFrame
) -> pd.DataFrame:
    """A frame with all columns, and in each what stands for nothing."""
    columns = [*labels, *FIXED, *PAPER, *artifact.show, *PRIVACY]
    frame = pd.DataFrame(rows, columns=columns, dtype=object)
    frame = frame.astype(dict.fromkeys(("seed", "value", "paper", "paper_std"), float))
    for name in (*labels, "round", "rank", "text", "edge", "note", "paper_note"):
        frame[name] = frame[name].where(frame[name].notna(), "")
    for name in ("best", "diverged"):
        frame[name] = [value is True for value in frame[name]]
    return frame


def rows_of(artifact: Artifact, frame: pd.DataFrame) -> Rows:
    """A frame with what the artifact declares, which is what claims are checked against."""
    known = {**artifact.choices, "measure": artifact.measure_names}
    # columns of one type lie together when copied: rows are taken of it in half of the time
    plain = frame.astype(dict.fromkeys(frame.select_dtypes("string"), object)).copy()
    return Rows(plain, dict(artifact.measures), known)


def to_csv(rows: Rows) -> dict[str, str]:
    """table.csv, every seed of every number, and series.csv, every seed of every curve."""
    frame = rows.frame.drop(columns=PAPER)
    alone = frame["round"] == ""
    short = [*rows.labels, "measure", "round", "rank", "seed", "value", "diverged", "best", "seeds"]
    return {
        "table.csv": frame[alone].drop(columns="round").to_csv(index=False),
        "series.csv": frame.loc[~alone, short].to_csv(index=False),
    }


def from_csv(artifact: Artifact, files: Mapping[str, str]) -> Rows:
    """The rows that `to_csv` wrote, beside the paper's numbers of today.

    Raises:
      ConfigError: a file is damaged.
    """
    plain = {"": None, "True": True, "False": False}
    try:
        parts = [
            pd.read_csv(io.StringIO(files[name]), dtype=str, keep_default_na=False) for name in CSV
        ]
        labels = labels_of(parts[0])
        frame = pd.concat(parts, ignore_index=True).map(lambda text: plain.get(text, text))
        for name in (*labels, "round", "rank"):
            values = [label_of(text) for text in frame[name]]
            frame[name] = pd.Series(values, dtype=object)  # a whole number stays one
        frame = framed(artifact, labels, frame.astype(dict.fromkeys(NUMBERS, float)))
    except (ValueError, KeyError) as error:
        raise ConfigError(
            f"table.csv: damaged ({error}); make it again with dpfl reproduce"
        ) from None
    return rows_of(artifact, beside_paper(artifact, frame))


def label_of(text: Any) -> Any:
    """A label as it was before it was written: a number where the text is one."""
    if not isinstance(text, str):
        return text
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
