"""LEAF's JSON (Caldas et al. 2018, arXiv 1812.01097): users, and the records of each of them.

A file is {"users": [names], "num_samples": [numbers], "user_data": {name: {"x": [records], "y":
[targets]}}}. A folder holds either train/*.json and test/*.json, the split that LEAF's scripts
make, or all_data/*.json, or the *.json themselves; .gz and .bz2 are read too.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpfl_cli.config.errors import DataError
from dpfl_cli.data.folders import files_below
from dpfl_cli.data.sources import read_uncompressed

ENDINGS = (".json", ".json.gz", ".json.bz2")
Parts = dict[str, dict[str, Path]]  # "train" and "test", or "all" -> files by name


@dataclass(frozen=True)
class User:
    """One user's records in one file: x and y are lists of one length."""

    name: str
    x: list[Any]
    y: list[Any]
    where: str  # file and user, for errors


def leaf_parts(folder: Path, whole: bool = True) -> Parts:
    """The files of a folder by part; a DataError where it has none, or half a split.

    Args:
      whole: whether files without a split will do.
    """
    split = {part: files_below(folder / part, ENDINGS) for part in ("train", "test")}
    if all(split.values()):
        return split
    if any(split.values()) or not whole:
        found = "only one" if any(split.values()) else "neither"
        instead = ", or all_data/*.json in their place" if whole else ""
        raise DataError(
            f"{folder}: has {found} of train/*.json and test/*.json; put both there{instead}"
        )
    together = files_below(folder / "all_data", ENDINGS) or {
        name: path for name, path in files_below(folder, ENDINGS).items() if "/" not in name
    }
    if not together:
        raise DataError(
            f"{folder}: no LEAF files: neither train/*.json and test/*.json, nor all_data/*.json, "
            "nor *.json"
        )
    return {"all": together}


def leaf_files(parts: Parts) -> dict[str, Path]:
    """All files, by part and name."""
    return {f"{part}/{name}": path for part, named in parts.items() for name, path in named.items()}


def read_users(path: Path, counted: bool) -> Iterator[User]:
    """The users of one file, in its order.

    Args:
      counted: whether num_samples counts the records (in Reddit's splits it counts a user's records
        before the split).

    Raises:
      DataError: names the file and what is wrong with it.
    """
    try:
        content = json.loads(read_uncompressed(path))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: truncated, or not JSON: {error}") from error
    keys = ("users", "num_samples", "user_data")
    match [content.get(key) if isinstance(content, dict) else None for key in keys]:
        case [list(users), list(numbers), dict(data)]:
            names = list(map(str, users))
        case _:
            raise DataError(
                f"{path}: not LEAF's JSON: it needs the lists users and num_samples and the object "
                "user_data"
            )
    if len(numbers) != len(names) or sorted(names) != sorted(data):
        raise DataError(
            f"{path}: not LEAF's JSON: users, num_samples and user_data are not of the same users, "
            "each once"
        )
    for name, number in zip(names, numbers, strict=True):
        where = f"{path}: user {name}"
        match data.pop(name):  # frees them as it goes
            case {"x": list(x), "y": list(y)} if len(x) == len(y):
                pass
            case _:
                raise DataError(f"{where} has no lists x and y of one length")
        if counted and number != len(y):
            raise DataError(f"{where} has {len(y)} records, and num_samples says {number}")
        yield User(name, x, y, where)
