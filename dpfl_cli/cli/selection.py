"""Which runs a command line means, and what can be asked of them: one flat row a run. What tells
runs apart: their settings, the presets that they follow, and which differ by the seed alone.
"""

import json
import logging
import math
import operator
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any

import yaml

from dpfl_cli.config.errors import ConfigError, StoreError, nearest
from dpfl_cli.config.identity import canonical_json, flat, text_of
from dpfl_cli.config.options import component_names, documented, option_files, parameters
from dpfl_cli.config.paths import outputs_dir
from dpfl_cli.privacy.nominal import epsilon_number
from dpfl_cli.simulation.store import RunRecord, RunStore

LOG = logging.getLogger("dpfl")
CHOICES = ("algorithm", "dp", "dataset")  # what a table of runs always shows
STATED = ("dp.unit", "dp.relation")  # of what an epsilon means: shown wherever they differ
QUIET = (".revision", ".sha256")  # how keys end that are shown only where nothing else differs
MANIFEST = "manifest.json"  # of an artifact
COMPARED = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


Options = Mapping[str, Any]  # of a run, in plain values
Needs = Callable[[RunRecord], object]  # reads of a run what must be whole


def row_of(record: RunRecord) -> dict[str, Any]:
    """What --where, --sort and tables can name: a run's choices, its last metrics, its epsilon, and
    every key of its config.
    """
    result = record.result
    config = record.config
    return {
        "run": record.id,
        **settings_of(config),
        **{
            group: preset_name(group, one)
            for group, one in config.items()
            if isinstance(one, dict) and "name" in one
        },
        **flat(config),
        **result["metrics"].get("last", {}),
        **{name: result["privacy"][name] for name in ("epsilon", "delta", "vacuous", "guarantee")},
        "status": record.status,
    }


def shown_row(record: RunRecord) -> dict[str, Any]:
    """`row_of`, with an epsilon as tables print it, by which runs are asked for and put together:
    3.9999982 is 4.
    """
    row = row_of(record)
    if row["epsilon"] is not None:
        row["epsilon"] = float(epsilon_number(row["epsilon"]))
    return row


def own_store() -> RunStore:
    """Of the outputs folder."""
    return RunStore(outputs_dir())


def chosen(names: Sequence[str]) -> list[RunRecord]:
    """The runs with these names, each once, or all of the store, oldest first; none of their files
    is read.

    Raises:
      StoreError: nothing fits a name.
    """
    store = own_store()
    named = (store.match(one) for name in names for one in _runs_of(name))
    return [*dict.fromkeys(named)] if names else store.all()


def load(found: Iterable[RunRecord], needs: Needs, named: Sequence[str] = ()) -> list[RunRecord]:
    """The runs of which the files that `needs` reads are whole.

    A damaged run is left out with a line on standard error; one that was asked for by name is an
    error.

    Args:
      named: the names that runs were asked for by, if any.

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
    """The runs that meet every condition, as `accuracy>80` or `dp=ldp,cdp` (one of them), in the
    order of a key, as `accuracy` or `-accuracy`.

    Raises:
      ConfigError: a condition cannot be read, no run has its key, or none its value, but one that
        is nearly the same.
    """
    if not where and sort is None:
        return list(records)
    rows = [(record, shown_row(record)) for record in records]
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
            given = [row[key] for _, row in rows if row.get(key) is not None]
            if given and all(_number(value) is None for value in given):
                raise ConfigError(f"--where {condition}: {key} is no number; compare it by = or !=")
        several = sign in ("=", "!=") and "[" not in wanted  # a list is one value
        values = wanted.split(",") if several else [wanted]
        met = all if sign == "!=" else any
        kept = {
            value: [
                met(_meets(one, sign, value) for one in _names(row, key, value)) for _, row in rows
            ]
            for value in values
        }
        for value, these in kept.items() if sign == "=" else ():
            if several and "=" in value:
                raise ConfigError(
                    f"--where {condition}: {value!r} is no value; write --where (in Python another "
                    "item of the list) for each condition"
                )
            if any(these):
                continue
            if (number := _number(value)) is not None:
                given = [row[key] for _, row in rows if isinstance(row.get(key), float)]
                near = [one for one in given if math.isclose(one, number, rel_tol=1e-3)]
                if near:
                    raise ConfigError(
                        f"--where {condition}: no run has {value}, but one {near[0]!r}; compare "
                        "it by > and <"
                    )
            else:
                hint = nearest(value, {text_of(row[key]) for _, row in rows if key in row})
                if hint.startswith("did you mean"):
                    raise ConfigError(f"--where {condition}: no run has {value}; {hint}")
            if len(values) > 1:
                LOG.warning("--where %s: no run has %s", condition, value)
        rows = [row for row, *these in zip(rows, *kept.values(), strict=True) if met(these)]
        others = {text_of(row.get(key)) for _, row in rows if f"{key}.name" in row} - {*values}
        if sign == "=" and others & {*component_names(key)} - {*component_names(key).values()}:
            LOG.warning(
                "--where %s: with them runs that are shown as %s; add %s!=%s to leave them out",
                condition,
                ", ".join(sorted(others)),
                key,
                ",".join(sorted(others)),
            )
    if sort is not None:
        key = sort.removeprefix("-")
        check("--sort", key)
        rows.sort(key=lambda pair: order(pair[1].get(key)), reverse=sort != key)
        rows.sort(key=lambda pair: pair[1].get(key) is None)  # runs that have none come last
    return [record for record, _ in rows]


def _names(row: Options, key: str, wanted: str) -> list[Any]:
    """What a run has of a key; of a choice its preset, the component behind that, and any preset of
    this component where none has the run's values or its name.
    """
    component = row.get(f"{key}.name")
    if component is None:
        return [row.get(key)]
    options = component_names(key)
    may_be = component not in options and row[key] == component == options.get(wanted)
    return [row[key], component, *[wanted] * may_be]


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
        sides = short_text(text_of(value), max(8, len(wanted))), wanted
    return bool(COMPARED[sign](*sides))


def short_text(text: str, digits: int = 12) -> str:
    """The first digits of a SHA-256; any other text as it is."""
    return text[:digits] if re.fullmatch("[0-9a-f]{64}", text) else text


def order(value: Any) -> tuple[bool, Any]:
    """Numbers by size, then all else by its text."""
    number = _number(value)
    return (number is None, text_of(value) if number is None else number)


# --- what tells runs apart ------------------------------------------------------------------------


def settings_of(config: Options) -> dict[str, Any]:
    """What was chosen in a run, but for the seed: CHOICES by the names of their presets, then the
    dotted keys of its config. Runs with equal settings are repetitions of one another.
    """
    left_out = {"seed"}
    if config["dp"].get("epsilon") is not None:
        left_out |= calibrated()
    names = {group: preset_name(group, config[group]) for group in CHOICES}
    return names | {key: value for key, value in flat(config).items() if key not in left_out}


@cache
def calibrated() -> set[str]:
    """The keys of mechanisms that are null where a target epsilon sets them."""
    return {
        key
        for path in option_files("mechanism")
        for key, value, _ in parameters("mechanism", path)
        if value == "null" or "dp.epsilon" in value
    }


def preset_name(group: str, chosen: Options) -> str:
    """The option of a group whose values a run has: the same for equal runs, however they were
    asked for.

    >>> preset_name("algorithm", {"name": "fedavg", "local_steps": 1, "local_lr": 1.0})
    'fedgd'
    """
    name = str(chosen["name"])
    for option, values in _presets(group, name).items():
        if all(chosen.get(key) == value for key, value in values.items()):
            return option
    return name


@cache
def _presets(group: str, component: str) -> dict[str, dict[str, Any]]:
    """The presets of a component, each with the values in which it differs from its namesake, or
    where there is none from any other.
    """
    files = {
        path.stem: {
            key.removeprefix(f"{group}."): yaml.safe_load(value)
            for key, value, _ in documented(path)
        }
        for path in option_files(group)
        if component_names(group)[path.stem] == component
    }
    own = files.pop(component, None)
    others = list(files.values()) if own is None else [own]
    return {
        preset: {
            key: value
            for key, value in values.items()
            if any(key in one and value != one[key] for one in others) and "${" not in str(value)
        }
        for preset, values in files.items()
    }


def repetitions(settings: Sequence[Options]) -> list[list[int]]:
    """The numbers of the runs that differ by the seed alone, together."""
    groups: dict[str, list[int]] = {}
    for number, one in enumerate(settings):
        groups.setdefault(canonical_json(one), []).append(number)
    return list(groups.values())


def varying(settings: Sequence[Options]) -> list[str]:
    """The keys in which runs differ. CHOICES come first, and what only follows from a choice (the
    parameters of another algorithm, say) is left out, unless it is a number that all runs have or
    says what an epsilon means.
    """

    def kinds(keys: Sequence[str]) -> int:
        """How many kinds of runs these keys tell apart."""
        return len({tuple([str(one.get(key)) for key in keys]) for one in settings})

    def stage(key: str) -> int:
        """Choices, names of components, values, what is shown only where nothing else differs."""
        return 0 if key in CHOICES else 1 if key.endswith(".name") else 2 + key.endswith(QUIET)

    def are_numbers(key: str) -> bool:
        return all(isinstance(one.get(key), int | float) for one in settings)

    known = dict.fromkeys(key for one in settings for key in one)
    varied = [key for key in known if kinds([key]) > 1]
    chosen: list[str] = []
    for number, keys in groupby(sorted(varied, key=stage), stage):
        chosen += [
            key
            for key in keys
            if number == 0
            or key in STATED
            or (number == 2 and are_numbers(key))
            or kinds([*chosen, key]) > kinds(chosen)
        ]
    return chosen


def short_names(keys: Sequence[str], taken: Sequence[str] = ()) -> dict[str, str]:
    """Key -> its last part (of a component's name its group), or the whole of it where two share
    that or it is the name of something else.

    >>> short_names(["accountant.name", "mechanism.epsilon", "rounds"], ["epsilon"])
    {'accountant.name': 'accountant', 'mechanism.epsilon': 'mechanism.epsilon', 'rounds': 'rounds'}
    """
    last = [key.removesuffix(".name").rpartition(".")[2] for key in keys]
    known = [*last, *taken]
    return {key: key if known.count(end) > 1 else end for key, end in zip(keys, last, strict=True)}


def cell_of(value: Any) -> str:
    """A config value in a table; empty where a run has none, as of another method's option."""
    return "" if value is None else short_text(text_of(value))
