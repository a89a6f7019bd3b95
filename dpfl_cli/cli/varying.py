"""What tells runs apart: their settings, the presets that they follow, and which differ by the seed
alone.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from itertools import groupby
from typing import Any

import yaml

from dpfl_cli.config.identity import canonical_json, flat, text_of
from dpfl_cli.config.options import component_names, documented, option_files, parameters

CHOICES = ("algorithm", "dp", "dataset")  # what a table of runs always shows
STATED = ("dp.unit", "dp.relation")  # of what an epsilon means: shown wherever they differ
QUIET = (".revision", ".sha256")  # how keys end that are shown only where nothing else differs


def settings_of(config: Mapping[str, Any]) -> dict[str, Any]:
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


def preset_name(group: str, chosen: Mapping[str, Any]) -> str:
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


def repetitions(settings: Sequence[Mapping[str, Any]]) -> list[list[int]]:
    """The numbers of the runs that differ by the seed alone, together."""
    groups: dict[str, list[int]] = {}
    for number, one in enumerate(settings):
        groups.setdefault(canonical_json(one), []).append(number)
    return list(groups.values())


def varying(settings: Sequence[Mapping[str, Any]]) -> list[str]:
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
    return "" if value is None else text_of(value)
