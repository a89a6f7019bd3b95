"""The numbers of an artifact, one row per measure, labels and seed, and how claims ask for them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from itertools import product, takewhile
from typing import Any, cast

import numpy as np
import pandas as pd

from dpfl_cli.config.errors import ConfigError, nearest
from dpfl_cli.reproduction.comparison import Sample, best_by_others
from dpfl_cli.reproduction.measure import Measure, Metric, Where

# Columns of every frame beside the labels.
FIXED = [
    "measure",
    "round",
    "rank",
    "seed",
    "value",
    "text",
    "diverged",
    "seeds",
    "best",
    "edge",
    "note",
]
PAPER = ["paper", "paper_std", "paper_note"]  # the paper's number of a row
PRIVACY = [  # everything that a row with an epsilon says about it
    "epsilon",
    "epsilon_reason",
    "epsilon_target",
    "calibration",
    "delta",
    "accountant",
    "unit",
    "relation",
    "trust",
    "releases",
    "guarantee",
    "vacuous",
    "epsilon_paper",
    "epsilon_paper_convention",
    "not_covered",
]
SOURCES = "sources of data"  # a column that `judge` adds: "real standin"
PSEUDO = ("best", "measure", "rank", "round")  # columns that are asked for like labels
Row = dict[str, Any]  # column -> its value
LabelValues = tuple[Any, ...]  # the values of some labels, in their order
OTHERS = "by the other seeds"  # as best=OTHERS: for every seed the cell that the others choose
CHOSEN = {"best": True}  # labels of what a `Best` chose
MANY = list | tuple | set | range | Mapping  # several values of a label, or the names of a mapping


class Missing(Exception):
    """A number that is not there at this size; the message says which."""


@dataclass(frozen=True)
class between:  # written as a function is: clients=between(10, 100)
    """As the value of a label: a range, ends included."""

    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.low:g}..{self.high:g}"


def as_list(wanted: Any) -> list[Any]:
    """The values of a label that is given as one or as several."""
    return list(wanted) if isinstance(wanted, MANY) else [wanted]


def grid(**labels: Any) -> Iterator[Row]:
    """Every combination of labels given as several values, the last label varying fastest."""
    many = map(as_list, labels.values())
    return (dict(zip(labels, one, strict=True)) for one in product(*many))


@dataclass(frozen=True)
class Rows:
    """Rows of an artifact.

    Attributes:
      frame: columns: the labels; measure, round, seed, value, text, best, rank, and what tables
        show. A label that a row does not have is "".
      measures: by name; those that `Best` adds are not among them.
    """

    frame: pd.DataFrame
    measures: dict[str, Measure]
    known: Mapping[str, Sequence[Any]]  # values of labels, and all measures, best.<label> too
    whole: Rows | None = None  # in a derived measure: the rows of all combinations
    place: Where = field(default_factory=dict)  # and the labels of this one
    # where the data of all cells come from that were asked for, if the column SOURCES says it
    origins: set[str] = field(default_factory=set, compare=False)

    @cached_property
    def labels(self) -> list[str]:
        """The names of the labels."""
        return labels_of(self.frame)

    def where(self, **labels: Any) -> Rows:
        """The rows with these labels: a value, a list of values, or between(low, high)."""
        check_values(labels, self.known)
        return replace(self, frame=matching(self.frame, labels))

    def __call__(self, measure: str, **labels: Any) -> Sample:
        """One cell, seed by seed; with best=OTHERS the best of those with the other labels, which
        for every seed the other seeds choose.
        """
        by_others = labels.get("best") == OTHERS
        rows, _ = self._found(measure, labels, math.inf if by_others else 0)
        if by_others:
            cells = self.frame.iloc[rows][[*self.labels, "round", "rank"]].drop_duplicates()
            tried = [self(measure, **cell) for cell in records(cells)]
            highest = self.measures[measure].better == "higher"
            return best_by_others(tried, _words(measure, labels), highest=highest)
        known, column = self.measures.get(measure, Measure()), self._columns
        seeds = column("seed")[rows].astype(float)
        noisy = isinstance(known, Metric) or not np.isnan(seeds).all()
        values = pd.Series(column("value")[rows].astype(float), index=seeds)
        if values.isna().any():
            note = column("note")[rows[0]] or "unknown"
            raise Missing(f"no number for {_words(measure, labels)}: {note}")
        first = (column(name)[rows[0]] for name in ("paper", "paper_std"))
        paper, std = (None if pd.isna(one) else float(one) for one in first)
        text, scale = _words(measure, labels), known.even_scale
        return Sample(values, text, measure, scale, not noisy, paper, std)

    def beside(self, **labels: Any) -> Rows:
        """In a derived measure: the rows of another combination, which differs in these labels
        (None: has any value of it).
        """
        wanted = {**self.place, **labels}
        known = {name: one for name, one in wanted.items() if one is not None}
        return (self.whole or self).where(**known)

    def value(self, measure: str, **labels: Any) -> float:
        """The mean over seeds of one cell."""
        return self(measure, **labels).mean

    def text(self, measure: str, **labels: Any) -> str:
        """A fact that is no number."""
        rows, _ = self._found(measure, labels, 0)
        return str(self._columns("text")[rows[0]])

    def each(self, measure: str, **labels: Any) -> list[Sample]:
        """The cells of every combination of labels given as several values, one after another:
        each("loss", method=METHODS, level=3).
        """
        return [self(measure, **cell) for cell in grid(**labels)]

    def along(self, measure: str, **labels: Any) -> list[Sample]:
        """The cells that differ in one label (the rounds of a series, say), in its order."""
        rows, name = self._found(measure, labels, 1)
        places = [{name: one} for one in in_order(self._columns(name)[rows])] if name else [labels]
        return [self(measure, **{**place, **labels, **place}) for place in places]

    def mean(self, measure: str, **labels: Any) -> Sample:
        """Their mean, seed by seed."""
        cells = self.along(measure, **labels)
        values = pd.concat([one.values for one in cells], axis=1, join="inner").mean(axis=1)
        text = f"mean {_words(measure, labels)}"
        return replace(cells[0], values=values, text=text, paper=None, paper_std=None)

    def values(self, measure: str, **labels: Any) -> list[float]:
        """Their means over seeds."""
        return [one.mean for one in self.along(measure, **labels)]

    def places(self, measure: str, **labels: Any) -> list[Any]:
        """The values of the one label in which they differ, such as the rounds of a series."""
        rows, name = self._found(measure, labels, 1)
        return in_order(self._columns(name)[rows]) if name else []

    def choices(self, label: str) -> list[Any]:
        """The values of a label that occur, numbers in order of size."""
        check_label(label, self.labels)
        return in_order(value for value in self.frame[label] if value != "")

    def ranked(self, measure: str, *over: str, **labels: Any) -> pd.Series:
        """A measure's means over seeds by labels in which its cells differ, the best first; last
        those that are unknown for a seed, as long as one is known.
        """
        rows, _ = self._found(measure, labels, math.inf)
        found = self.frame.iloc[rows]
        if found.duplicated([*over]).any():  # of several seeds; pandas takes its time
            by_cell = found.groupby([*over], sort=False)["value"]
            means = by_cell.transform(lambda values: values.mean(skipna=False))
            found = found.assign(value=means).drop_duplicates([*over])
        rising = self.measures[measure].better == "lower"
        ranked = found.sort_values("value", ascending=rising, kind="stable")
        if math.isnan(ranked["value"].iloc[0]):
            note = ranked["note"].iloc[0] or "unknown"
            raise Missing(f"no number for {_words(measure, labels)}: {note}")
        return ranked.set_index([*over])["value"]

    def best(self, measure: str, *over: str, **labels: Any) -> Any:
        """Where it is the best: the value of a label, or those of several."""
        return self.ranked(measure, *over, **labels).index[0]

    @property
    def seeds(self) -> dict[float, Rows]:
        """Every seed -> its rows, with those that have none."""
        of, seeds = self.frame["seed"], sorted(self.frame["seed"].dropna().unique())
        return {one: replace(self, frame=self.frame[(of == one) | of.isna()]) for one in seeds}

    @cached_property
    def printed(self) -> Rows:
        """The numbers that the paper prints in place of ours, as if of one seed."""
        frame = self.frame[self.frame["paper"].notna()]
        frame = frame.drop_duplicates([*self.labels, "measure", "round", "rank"])
        frame = frame.assign(value=frame["paper"], seed=0.0, paper=math.nan, paper_std=math.nan)
        return replace(self, frame=frame, origins=set())

    def by_seed(self) -> Iterator[Rows]:
        """The rows of every seed, with those that have none."""
        return iter(self.seeds.values())

    @cached_property
    def means(self) -> pd.DataFrame:
        """One row a cell: `value` the mean over seeds (or what `summary` says), `std` with ddof 1,
        `n` runs, `diverged` of them, `unknown` values; privacy that of the run with the
        largest epsilon.
        """
        keys, frame = [*self.labels, "measure", "round", "rank"], self.frame
        spent = frame["epsilon"].astype(float).fillna(math.inf)
        grouped = frame.assign(spent=spent).groupby(keys, sort=False, dropna=False)
        values = grouped["value"]
        std, same = values.std(), values.nunique(dropna=False) == 1
        columns = {
            "value": values.sum() / values.count(),  # pandas' own mean knows no infinite values
            "std": std.mask(same & std.notna(), 0.0),  # not what rounding leaves of it
            "n": values.size(),
            "unknown": values.size() - values.count(),
            "diverged": grouped["diverged"].sum(),
            "text": grouped["text"].agg(lambda one: ", ".join(dict.fromkeys(one))),
            "seeds": grouped["seeds"].max(),
        }
        worst = frame.loc[grouped["spent"].idxmax()].reset_index(drop=True)
        found = worst.assign(**{name: column.to_numpy() for name, column in columns.items()})
        for name, measure in self.measures.items():
            if measure.summary != "mean":
                mine = (found["measure"] == name) & np.isfinite(found["value"])
                ends = getattr(values, measure.summary)()
                found.loc[mine, "value"] = ends.reset_index(drop=True)[mine]
                found.loc[mine, "std"] = math.nan
        return found

    @cached_property
    def _columns(self) -> Callable[[str], np.ndarray]:
        """Columns as arrays, each made once: claims ask for thousands of cells."""
        return cache(lambda name: self.frame[name].to_numpy(dtype=object))

    @cached_property
    def _of_measure(self) -> Mapping[Any, Any]:
        """Measure -> the numbers of its rows."""
        return self.frame.groupby("measure", sort=False).indices

    def _found(self, measure: str, labels: Where, free: float) -> tuple[np.ndarray, str]:
        """The numbers of a measure's rows with these labels, and the first of the others in which
        they differ; so many of them may be left free.
        """
        check_values({"measure": measure, **labels}, self.known)
        for name in labels:
            check_label(name, self.labels)
        rows = _narrowed(self._columns, labels, self._of_measure.get(measure, np.arange(0)))
        if not len(rows):
            raise Missing(f"no number for {_words(measure, labels)}")
        if SOURCES in self.frame:
            self.origins.update(" ".join(self._columns(SOURCES)[rows]).split())
        several = [*self.labels, "round", "rank"] if len(rows) > 1 else []
        varied = [name for name in several if len({*self._columns(name)[rows]}) > 1]
        if len(varied) > free:
            which = " and ".join(varied) + (", all but one" if free else "")
            raise ConfigError(f"{_words(measure, labels)}: several; say which {which}")
        return rows, varied[0] if varied else ""


def check_values(where: Where, known: Mapping[str, Sequence[Any]]) -> None:
    """Refuses a value that a label has at no scale ("": rows without it), with the nearest one."""
    for name, wanted in where.items():
        values = [*known.get(name, ()), ""]
        for value in as_list(wanted):
            if name not in known or isinstance(value, between):
                continue
            if not any(map(fitting(value), values)):
                near = nearest(str(value), map(str, known[name]))
                raise ConfigError(f"no {name} '{value}'; {near}")


def check_label(name: str, labels: Iterable[str]) -> None:
    """Refuses a name that is asked for as a label and is none, with the nearest one."""
    known = [*labels, *PSEUDO]
    if name not in known:
        raise ConfigError(f"no label '{name}'; {nearest(name, known)}")


def labels_of(frame: pd.DataFrame) -> list[str]:
    """The labels of a frame of rows: its columns before the measure."""
    return list(takewhile(lambda name: name != "measure", map(str, frame)))


def matching(frame: pd.DataFrame, where: Where) -> pd.DataFrame:
    """The rows with these labels; a ConfigError names a label that there is not."""
    for name in where:
        check_label(name, labels_of(frame))
        if name not in frame:
            return frame.iloc[:0]
    rows = np.arange(len(frame))
    return frame.iloc[_narrowed(lambda name: frame[name].to_numpy(dtype=object), where, rows)]


def _narrowed(column: Callable[[str], np.ndarray], where: Where, rows: np.ndarray) -> np.ndarray:
    """Those of some rows, by their numbers, with these labels."""
    for name, wanted in where.items():
        if not isinstance(wanted, MANY | between) and wanted != OTHERS:  # of all
            rows = rows[column(name)[rows] == wanted]
    for name, wanted in where.items():  # slowly, of the rows that are left
        if isinstance(wanted, MANY | between) or wanted in (0, 1):  # true is not 1
            rows = rows[np.fromiter(map(fitting(wanted), column(name)[rows]), bool, len(rows))]
    return rows


def fitting(wanted: Any) -> Callable[[Any], bool]:
    """Whether a label's value is the one that is wanted, one of several, or between two."""
    if isinstance(wanted, between):
        return lambda value: is_number(value) and wanted.low <= value <= wanted.high
    many = as_list(wanted)  # true is not 1
    return lambda value: (
        value in many
        and any(value == one and isinstance(value, bool) == isinstance(one, bool) for one in many)
    )


def places(rows: pd.DataFrame, labels: Iterable[str]) -> list[LabelValues]:
    """The values of labels, row by row."""
    return [tuple(row) for row in rows[list(labels)].to_numpy(dtype=object)]


def records(frame: pd.DataFrame) -> list[Row]:
    """The rows of a frame as mappings."""
    return cast(list[Row], frame.to_dict("records"))


def in_order(values: Iterable[Any]) -> list[Any]:
    """Every different value once: texts before the first number, the numbers by size, other
    texts.
    """
    found = list(dict.fromkeys(values))
    before = takewhile(lambda value: not is_number(value), found)
    return list(dict.fromkeys([*before, *sorted(filter(is_number, found)), *found]))


def is_number(value: Any) -> bool:
    """Whether a label's value is one: true is none."""
    return isinstance(value, int | float) and not isinstance(value, bool) and not math.isnan(value)


def listed_labels(labels: Where) -> str:
    """As texts of comparisons have them."""
    return ", ".join(f"{name}={value}" for name, value in labels.items())


def _words(measure: str, labels: Where) -> str:
    return f"{measure}({listed_labels(labels)})"
