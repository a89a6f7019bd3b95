"""Components: what a config group's option names in code, and the settings it accepts.

A component is registered under (group, name) with its settings (a pydantic model: types, ranges, no unknown keys)
and a revision, a number that is raised whenever its code changes the numbers a run produces. Settings of every
component that a run uses, and their revisions, are part of the run's identity.

The same decorator is the hook for a user's own code: a file given with `--plugin FILE`, or a package with an entry
point in the group `dpfl.plugins`, registers its components on import.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from dpfl_cli.config.errors import ConfigError, nearest

GROUPS = ("algorithm", "dp", "mechanism", "accountant", "dataset", "partitioner", "model")


class Settings(BaseModel):
    """Typed settings of a component: unknown keys and wrong types are refused, values cannot change.

    Attributes:
      later: options that came after runs had been made: at their defaults, with which they change nothing, they are no part of a
        run's identity, so that those runs stay what they are.
      revised: option -> (value -> revision), where code changed that only this value of the option uses: so that runs with other
        values stay what they are, while those with this one get a new identity.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)
    later: ClassVar[frozenset[str]] = frozenset()
    revised: ClassVar[Mapping[str, Mapping[Any, int]]] = {}

    def identity(self) -> dict[str, Any]:
        """The settings as a run's identity holds them."""
        values = self.model_dump()
        later = frozenset().union(*(vars(base).get("later", ()) for base in type(self).__mro__))
        defaults = {name: type(self).model_fields[name].default for name in later}
        told = {name: value for name, value in values.items() if name not in defaults or value != defaults[name]}
        revisions = {name: numbers.get(values[name]) for name, numbers in self.revised.items()}
        return told | {f"{name}_revision": number for name, number in revisions.items() if number is not None}


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
        """The first line of the class's docstring."""
        return (self.target.__doc__ or "").strip().splitlines()[0]


_registry: dict[str, dict[str, Component]] = {group: {} for group in GROUPS}
_origin = "dpfl"
_origin_revision = ""

T = TypeVar("T")


def component(group: str, name: str, *, revision: int, settings: type[Settings]) -> Callable[[type[T]], type[T]]:
    """Class decorator: register the class as option `name` of `group`.

    Raises:
      ConfigError: the group does not exist, or another component has the name.
    """

    def register(target: type[T]) -> type[T]:
        if group not in _registry:
            raise ConfigError(f"component {name}: no group '{group}'; {nearest(group, GROUPS)}")
        known = _registry[group].get(name)
        if known is not None and known.origin != _origin:
            raise ConfigError(f"{group}={name} from {_origin}: the name is taken by {known.origin}; choose another name")
        tagged: int | str = f"{revision}+{_origin_revision}" if _origin_revision else revision
        _registry[group][name] = Component(group, name, tagged, settings, target, _origin)
        return target

    return register


class registering_from:
    """Context: components registered inside belong to a plugin, whose content hash joins their revisions."""

    def __init__(self, origin: str, revision: str) -> None:
        self._new = (origin, revision)

    def __enter__(self) -> None:
        global _origin, _origin_revision
        self._old = (_origin, _origin_revision)
        _origin, _origin_revision = self._new

    def __exit__(self, *_: object) -> None:
        global _origin, _origin_revision
        _origin, _origin_revision = self._old


def components(group: str) -> dict[str, Component]:
    """All registered components of a group, by name."""
    return dict(_registry[group])


def lookup(group: str, name: str) -> Component:
    """The component registered as `name` in `group`, or a ConfigError with the nearest name."""
    found = _registry[group].get(name)
    if found is None:
        raise ConfigError(f"{group}.name={name}: no such {group}; {nearest(name, _registry[group])}")
    return found


def parse_settings(kind: type[Settings], values: dict[str, Any], where: str) -> Any:
    """Typed settings from plain values; a ConfigError names the first bad key by its config path."""
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        path = ".".join([where, *(str(part) for part in first["loc"] if not str(part).startswith(("function-", "constrained-")))])
        if first["type"] == "extra_forbidden":
            key = str(first["loc"][-1])
            raise ConfigError(f"{path}: unknown option; {nearest(key, kind.model_fields)}") from None
        if first["type"] == "missing":
            raise ConfigError(f"{path}: missing; give it a value, as {path}=…") from None
        message = first["msg"].removeprefix("Value error, ")
        raise ConfigError(f"{path}={first['input']!r}: {message[0].lower()}{message[1:]}") from None
