"""The papers' own numbers: CSV files in `paper_numbers/<paper>/`, matched to our labels by an artifact's declaration."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from dpfl_cli.config.errors import ConfigError, nearest
from dpfl_cli.reproduction.declaration import Artifact

FOLDER = Path(__file__).resolve().parent / "paper_numbers"


@dataclass(frozen=True)
class PaperNumber:
    """A printed number, its printed spread, and a remark (such as how well it can be read)."""

    value: float
    std: float | None
    note: str


class PaperNumbers:
    """Looks up the paper's number for a measure and labels of an artifact."""

    def __init__(self, artifact: Artifact) -> None:
        self.artifact = artifact
        self.table = artifact.declaration.paper_numbers
        self._known: dict[tuple[str, ...], PaperNumber] = {}
        if self.table is None:
            return
        path = FOLDER / artifact.paper / self.table.file
        lines = _lines(path)
        named = [*self.table.columns.values(), *([self.table.note] if self.table.note else [])]
        for column in [*named, "metric", "value"]:
            if lines and column not in lines[0]:
                raise ConfigError(f"artifact {artifact.name}: {path.name} has no column '{column}'; {nearest(column, lines[0])}")
        for line in lines:
            if not line["value"]:
                continue
            words = [line[column] for column in self.table.columns.values()]
            spread = line.get("std") or ""
            note = line[self.table.note] if self.table.note else ""
            factor = self.table.factor
            number = PaperNumber(factor * float(line["value"]), factor * float(spread) if spread else None, note)
            self._known |= {(measure, *words): number for measure in self.table.measures_of(line["metric"])}

    def find(self, measure: str, labels: Mapping[str, Any]) -> PaperNumber | None:
        """The number, or None where the paper gives none."""
        if self.table is None:
            return None
        values = [labels.get(label, "") for label in self.table.columns]
        words = [self.table.names.get(str(value)) or self.artifact.title_of(value) for value in values]
        return self._known.get((measure, *words))

    def __len__(self) -> int:
        return len(self._known)


@lru_cache(maxsize=64)
def _lines(path: Path) -> list[dict[str, str]]:
    try:
        with path.open(newline="") as handle:
            return list(csv.DictReader(handle))
    except OSError as error:
        raise ConfigError(f"{path}: the paper's numbers cannot be read ({error.strerror}); reinstall dpfl") from error
