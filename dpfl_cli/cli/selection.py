"""Which runs a command line means, and what can be asked of them: one flat row a run."""

import json
import math
import operator
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from dpfl_cli.cli.varying import preset_name, settings_of
from dpfl_cli.config.errors import ConfigError, StoreError, nearest
from dpfl_cli.config.identity import flat, text_of
from dpfl_cli.simulation.store import RunRecord, RunStore

MANIFEST = "manifest.json"  # of an artifact
COMPARED = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


Needs = Callable[[RunRecord], object]  # reads of a run what must be whole


def row_of(record: RunRecord) -> dict[str, Any]:
    """What --where, --sort and tables can name: a run's choices, its last metrics, its epsilon, and
    every key of its config.
    """
    result = record.result
    parts = {name: one for name, one in record.config.items() if isinstance(one, dict)}
    return {
        "run": record.id,
        **settings_of(record.config),
        **{group: preset_name(group, one) for group, one in parts.items() if "name" in one},
        **flat(record.config),
        **result["metrics"].get("last", {}),
        "epsilon": result["privacy"]["epsilon"],
        "delta": result["privacy"]["delta"],
        "status": record.status,
    }


def chosen(store: RunStore, names: Sequence[str]) -> list[RunRecord]:
    """The runs with these names, or all of the store, oldest first; none of their files is read.

    Raises:
      StoreError: nothing fits a name.
    """
    named = dict.fromkeys(one for name in names for one in _runs_of(name))
    return [store.match(name) for name in named] if names else store.all()


def load(found: Iterable[RunRecord], needs: Needs, named: bool = False) -> list[RunRecord]:
    """The runs of which the files that `needs` reads are whole.

    A damaged run is left out with a line on standard error; one that was asked for by name is an
    error.

    Raises:
      StoreError: a named run is damaged.
    """
    records = []
    for record in found:
        try:
            needs(record)
        except StoreError as error:
            if named:
                raise
            print(f"dpfl: damaged: {error}", file=sys.stderr)
        else:
            records.append(record)
    return records


def _runs_of(name: str) -> list[str]:
    """The runs of an artifact, if it is one's manifest.json; else the name of a run."""
    path = Path(name)
    if path.name != MANIFEST:
        return [name]
    try:
        runs = json.loads(path.read_text())["runs"]
        return ["" + run["id"] for run in runs]  # a TypeError where no text
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StoreError(f"{path}: no artifact's {MANIFEST} ({error})") from error


def narrowed(
    records: Sequence[RunRecord], where: Sequence[str], sort: str | None = None
) -> list[RunRecord]:
    """The runs that meet every condition, as `accuracy>80`, in the order of a key, as `accuracy` or
    `-accuracy`.

    Raises:
      ConfigError: a condition cannot be read, or no run has its key.
    """
    if not where and sort is None:
        return list(records)
    rows = [(record, row_of(record)) for record in records]
    known = {key for _, row in rows for key in row}

    def check(option: str, key: str) -> None:
        if rows and key not in known:
            raise ConfigError(f"{option} {key}: no run has this key; {nearest(key, known)}")

    for condition in where:
        found = re.fullmatch(r"([^<>=!]+)(!=|<=|>=|=|<|>)([^<>=!].*)", condition)
        if not found:
            raise ConfigError(
                f"--where {condition}: write KEY=VALUE, as algorithm=fedexp, or accuracy>80"
            )
        key, sign, wanted = found.groups()
        check("--where", key)
        if sign[0] in "<>":
            number = _number(wanted)
            if number is None or math.isnan(number):
                raise ConfigError(f"--where {condition}: {wanted} is not a number")
            values = [row[key] for _, row in rows if row.get(key) is not None]
            if values and all(_number(value) is None for value in values):
                raise ConfigError(f"--where {condition}: {key} is no number; compare it by = or !=")
        rows = [(record, row) for record, row in rows if _meets(row.get(key), sign, wanted)]
    if sort is not None:
        key = sort.removeprefix("-")
        check("--sort", key)
        rows.sort(key=lambda pair: order(pair[1].get(key)), reverse=sort != key)
    return [record for record, _ in rows]


def _number(value: Any) -> float | None:
    try:
        return None if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        return None


def _meets(value: Any, sign: str, wanted: str) -> bool:
    """Numbers are compared as numbers, all else as it is written on a command line."""
    sides: tuple[Any, Any] = _number(value), _number(wanted)
    if None in sides:
        if sign[0] in "<>":
            return False
        sides = text_of(value), wanted
    return bool(COMPARED[sign](*sides))


def order(value: Any) -> tuple[bool, Any]:
    """Numbers by size, then all else by its text."""
    number = _number(value)
    return (number is None, text_of(value) if number is None else number)
