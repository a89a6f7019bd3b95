"""Components: what a config group's option names in code, and the settings it accepts.

A component is registered under (group, name) with its settings (a pydantic model: types, ranges, no
unknown keys) and a revision, a number that is raised whenever its code changes the numbers a run
produces. Settings of every component that a run uses, and their revisions, are part of the run's
identity.

The same decorator is the hook for a user's own code: a file given with `--plugin FILE`, or a
package with an entry point in the group `dpfl.plugins`, registers its components on import.
"""

import inspect
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from dpfl_cli.config.errors import ConfigError, alternatives, nearest


def _within(low: str, high: str) -> AfterValidator:
    def refuse(value: float | None) -> float | None:
        if value is not None and not float(low) <= value <= float(high):
            raise ValueError(f"must be from {low} to {high}")
        return value

    return AfterValidator(refuse)


UNLIMITED = "absent: no limit"
# a positive number with a square that is one; None limits nothing, as an infinite one would
Limit = Annotated[float | None, UNLIMITED, Field(gt=0), _within("1e-10", "1e100")]
# a positive number, or none where absence means something else
PositiveOrNone = Annotated[float | None, Field(gt=0)]
# a noise multiplier, or none; powers of others are no numbers
NoiseOrNone = Annotated[float | None, Field(gt=0), _within("1e-50", "1e50")]
Count = Annotated[int, Field(ge=1)]
SEED = "a seed"
Seed = Annotated[int, SEED, Field(ge=0, lt=2**63)]
SeedOrNone = Annotated[int | None, SEED, Field(ge=0, lt=2**63)]
Share = Annotated[float, Field(gt=0, lt=1)]
CLIENT = "one of the clients"
# the number of a client, from 0; refused where there is none of that number
ClientNumber = Annotated[int | None, CLIENT, Field(ge=0)]
RECORDS = "records of every client"
# how many records of a client a batch holds (None: all); refused where a client has fewer
BatchSize = Annotated[int | None, RECORDS, Field(ge=1)]
OF_PYDANTIC = re.compile(r"(function-|constrained-|literal\[|(int|float|str|bool|none)$)")
GROUPS = (
    "algorithm",
    "dp",
    "participation",
    "mechanism",
    "accountant",
    "dataset",
    "partitioner",
    "model",
)
PARTS = {  # what a component of the group must have
    "algorithm": ("unit", "trusts", "needs", "proximal", "away", "releases", "init", "round"),
    "dataset": ("info", "load"),
    "partitioner": ("clients", "partition"),
    "model": ("dimension_of", "workspace", "initial", "gradient", "metrics"),
}


class Settings(BaseModel):
    """Typed settings of a component: unknown keys and wrong types are refused, values cannot
    change.

    A default given here is the registered default: it is not hashed (see `config.identity`), and
    changing it raises the component's revision.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    def identity(self) -> dict[str, Any]:
        """The options that a run's identity holds: those that are not at a registered default."""
        return self.model_dump(exclude_defaults=True)

    def __hash__(self) -> int:  # of those that hold lists, too
        return hash(self.model_dump_json())


@dataclass(frozen=True)
class Component:
    """A registered class, its settings and its revision."""

    group: str
    name: str
    revision: int | str
    settings: type[Settings]
    target: Any
    origin: str  # "dpfl", or the plugin it came from

    @property
    def summary(self) -> str:
        """The first paragraph of the class's docstring, on one line."""
        return " ".join((self.target.__doc__ or "").strip().split("\n\n")[0].split())


TAKES = {  # what they are called with
    "algorithm": {
        "releases": ["settings", "run"],
        "init": ["self", "objective", "streams"],
        "round": ["self", "state", "at"],
    }
}
_registry: dict[str, dict[str, Component]] = {group: {} for group in GROUPS}
_origin = "dpfl", ""  # of what is registered now, and the content hash of a plugin

T = TypeVar("T")


def component(
    group: str, name: str, settings: type[Settings], *, revision: int = 1
) -> Callable[[type[T]], type[T]]:
    """Class decorator: register the class as option `name` of `group`, which becomes its `name`.

    Args:
      revision: raised whenever a change moves the numbers of runs.

    Raises:
      ConfigError: the group does not exist, another component has the name, or the class lacks a
        part of what its group needs.
    """

    def register(target: type[T]) -> type[T]:
        if group not in _registry:
            raise ConfigError(f"component {name}: no group '{group}'; {nearest(group, GROUPS)}")
        if not isinstance(name, str) or not name or not isinstance(revision, int):
            raise ConfigError(
                f"{group} {name!r}, revision {revision!r}: a name is a text, a revision a whole "
                "number"
            )
        origin, content = _origin
        known = _registry[group].get(name)
        if known is not None and Path(known.origin).resolve() != Path(origin).resolve():
            raise ConfigError(
                f"{group}={name} from {origin}: the name is taken by {known.origin}; "
                "choose another name"
            )
        lacking = [part for part in PARTS.get(group, ()) if not hasattr(target, part)]
        if lacking := [*lacking, *sorted(getattr(target, "__abstractmethods__", ()))]:
            raise ConfigError(
                f"{group}={name} from {origin}: class {target.__name__} lacks "
                f"{', '.join(lacking)}; `dpfl new` writes an example of what is needed"
            )
        _check_forms(group, name, target)
        known_by: Any = target
        known_by.name = name
        _registry[group][name] = Component(
            group, name, f"{revision}+{content}" if content else revision, settings, target, origin
        )
        return target

    return register


def _check_forms(group: str, name: str, target: type) -> None:
    """Refuses methods that cannot be called as they will be."""
    for method, takes in TAKES.get(group, {}).items():
        if (given := getattr(target, method, None)) is None:
            continue  # which is told by its name
        bound = inspect.getattr_static(target, method)
        plain = isinstance(bound, staticmethod | classmethod) or not hasattr(bound, "__get__")
        wanted = takes[plain and takes[0] == "self" :]
        try:
            inspect.signature(given).bind(*wanted)
        except TypeError as error:
            raise ConfigError(
                f"{group}={name}: {method} must take ({', '.join(takes)}): {error}"
            ) from error


@contextmanager
def registering_from(origin: str, revision: str) -> Iterator[None]:
    """Components registered inside belong to a plugin, whose content hash joins their revisions."""
    global _origin
    before, _origin = _origin, (origin, revision)
    try:
        yield
    finally:
        _origin = before


def revise(content: str, other: str) -> None:
    """Gives what a plugin of this content hash has registered another one."""
    for known in _registry.values():
        for name, one in known.items():
            number, _, own = str(one.revision).partition("+")
            if own == content:
                known[name] = replace(one, revision=f"{number}+{other}")


def components(group: str) -> dict[str, Component]:
    """All registered components of a group, by name; {} of one whose options are config alone."""
    return dict(_registry.get(group, {}))


def lookup(group: str, name: str) -> Component:
    """The component registered as `name` in `group`, or a ConfigError with the nearest name."""
    found = _registry[group].get(name)
    if found is None:
        raise ConfigError(
            f"{group}.name={name}: no such {group}; {nearest(name, _registry[group])}"
        )
    return found


def parse_settings(kind: type[Settings], values: Any, where: str) -> Any:
    """Typed settings from plain values; a ConfigError names the first bad key by its config path,
    which begins with `where` (at the root: empty).
    """
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        errors = error.errors()
    first = errors[0]
    keys = [str(part) for part in first["loc"]]  # with steps of pydantic's own
    own = (key for key in keys if not OF_PYDANTIC.match(key))
    path = ".".join([where, *own]).lstrip(".")
    if first["type"] == "extra_forbidden":
        raise ConfigError(f"{path}: unknown option; {nearest(keys[-1], kind.model_fields, where)}")
    if first["type"] == "missing":
        raise ConfigError(f"{path}: missing; give it a value, as {path}=…")
    message = alternatives(errors)
    hint = kind.model_fields[keys[0]].description if keys else None  # of a field that has one
    raise ConfigError(f"{path}={first['input']!r}: {message}{f'; {hint}' if hint else ''}")
