"""LIBSVM's files of UCI data, computed from the UCI files: the same bytes, which the catalogue's checksums confirm.

Which column and value becomes which feature is a fact about the published files; `derivations/*.json` states it.
"""

from __future__ import annotations

import base64
import json
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.resources import files
from typing import Any

import numpy as np

from dpfl_cli.config.errors import DataError


@dataclass(frozen=True)
class Derivation:
    """A file's content as a function of another file's."""

    origin: str  # the other file's name
    content: Callable[[bytes], bytes]


def adult_to_libsvm(content: bytes) -> bytes:
    """adult.data or adult.test as a9a or a9a.t.

    Raises:
      DataError: a line that is not of UCI Adult.
    """
    facts = _facts("adult")
    rows = (
        line.rstrip(".").split(", ")
        for line in content.decode(errors="replace").splitlines()
        if line and not line.startswith("|")
    )
    return _encoded(((row[:-1], row[-1]) for row in rows), facts["columns"], facts["label"])


def adult_to_a6a(content: bytes) -> bytes:
    """adult.data as a6a: some of the rows of a9a."""
    facts = _facts("a6a")
    bits = np.frombuffer(base64.b64decode("".join(facts["rows"])), np.uint8)
    kept = np.unpackbits(bits, count=facts["size"]).astype(bool)
    lines = adult_to_libsvm(content).splitlines(keepends=True)
    if len(lines) != len(kept):
        raise DataError(f"{len(lines)} rows where UCI Adult has {len(kept)}")
    return b"".join(line for line, keep in zip(lines, kept.tolist(), strict=True) if keep)


def mushroom_to_libsvm(content: bytes) -> bytes:
    """mushroom.csv as mushrooms.

    Raises:
      DataError: a line that is not of UCI Mushroom.
    """
    facts = _facts("mushroom")
    header, *lines = [line.split(",") for line in content.decode(errors="replace").splitlines()] or [[]]
    wanted = [facts["label_column"], *(column["column"] for column in facts["columns"])]
    absent = [name for name in wanted if name not in header]
    if absent:
        raise DataError(f"no column {absent[0]}")
    label, *places = [header.index(name) for name in wanted]
    rows = ([*row, *[""] * (len(header) - len(row))] for row in lines)
    return _encoded((([row[place] for place in places], row[label]) for row in rows), facts["columns"], facts["label"])


DERIVATIONS = {
    "a9a": Derivation("adult.data", adult_to_libsvm),
    "a9a.t": Derivation("adult.test", adult_to_libsvm),
    "a6a": Derivation("adult.data", adult_to_a6a),
    "mushrooms": Derivation("mushroom.csv", mushroom_to_libsvm),
}


def _facts(name: str) -> Any:
    return json.loads(files("dpfl_cli.data").joinpath("derivations", f"{name}.json").read_text())


def _encoded(rows: Iterator[tuple[Sequence[str], str]], columns: Sequence[Mapping[str, Any]], labels: Mapping[str, str]) -> bytes:
    """Rows of (values, label) one-hot in LIBSVM's format: a feature for each value, or each interval between bounds."""
    codes = list(_codes(columns))
    lines = []
    for number, (values, label) in enumerate(rows, 1):
        try:
            indices = [code(value) for code, value in zip(codes, values, strict=True)]
            lines.append(f"{labels[label]} " + "".join(f"{index}:1 " for index in indices if index))
        except (KeyError, ValueError) as error:
            raise DataError(f"record {number} is none of the UCI data set ({error})") from error
    return "".join(f"{line}\n" for line in lines).encode()


def _codes(columns: Sequence[Mapping[str, Any]]) -> Iterator[Callable[[str], int]]:
    """For each column, the index of the feature that a value sets (0: none)."""
    first = 1
    for column in columns:
        if "bounds" in column:
            yield partial(_interval, first, column["bounds"])
            first += len(column["bounds"]) + 1
        else:
            yield {**{value: first + k for k, value in enumerate(column["values"])}, "?": 0}.__getitem__
            first += len(column["values"])


def _interval(first: int, bounds: Sequence[int], value: str) -> int:
    """`first` + the number k of the interval (bounds[k - 1], bounds[k]] that holds the value."""
    return first + bisect_left(bounds, int(value))
