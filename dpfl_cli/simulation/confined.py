"""What the code of a plugin's method may not do: keep values outside of its state, and open files
of data.

In its file, a class, a cache, a closure or a function's defaults, values would stay from run to
run, and no ledger of the later run pays for the earlier one's clients. What a method reads from a
file itself has no mark.
"""

import gc
import inspect
import os
import sys
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from enum import EnumType
from functools import cached_property, partial
from pathlib import Path
from types import CellType, FunctionType, GeneratorType, MethodType, ModuleType, SimpleNamespace
from typing import Any, ParamSpec, TypeVar

from dpfl_cli.algorithms.base import Round, State
from dpfl_cli.config.errors import PrivacyError, plugin_modules
from dpfl_cli.config.own_files import imports_of, opened_by, told_of_files
from dpfl_cli.models.client_side import ClientSide
from dpfl_cli.privacy.bounded import Bounded
from dpfl_cli.privacy.client_values import KEPT_STATE, Unreleased
from dpfl_cli.privacy.mechanism import Mechanism
from dpfl_cli.privacy.releases import Release

P = ParamSpec("P")
T = TypeVar("T")
_HOLDERS = (
    list,
    tuple,
    set,
    frozenset,
    deque,
    partial,
    SimpleNamespace,
    CellType,
    GeneratorType,
    MethodType,
)
# what dpfl itself keeps in one, or puts there to look on
_OF_MECHANISMS = frozenset(dir(Mechanism)).union(
    ("settings", "_site", "_last", "_limits", "_provenance", "claims")
)
_PLAIN = (int, float, str, bytes)
_LATE = "a function or class"
LARGE = 1000  # entries of a container, of which only the number is looked at
_spoilt: dict[str, str] = {}  # modules of plugins -> what changed in them while runs were made
_OF_CLIENTS = (Unreleased, Bounded, Release, ClientSide, Round, State)
_closed: tuple[str, ...] = ()


class PluginMemory:
    """What plugins' methods, mechanisms and files hold when runs begin, to be looked at again.

    Args:
      made: the method and the mechanism, where they are plugins'.
      modules: of the plugins' method, model and mechanism.
    """

    def __init__(self, made: Collection[object], modules: Collection[str]) -> None:
        self._made, self._modules = made, modules
        self._given = [own_attributes(one) for one in made]
        self._first = held_by(modules)

    def refuse(self) -> None:
        """A PrivacyError where something is kept from run to run, or would be lost by a kill: of
        the method, or where files hold something else than when runs began, now or in runs of this
        process before. Numbers deep inside objects are not seen, nor functions and classes that are
        imported late.
        """
        for made, given in zip(self._made, self._given, strict=True):
            refuse_kept(made, given)
        now, first = held_by(self._modules), self._first
        changed = [name for name, value in now.items() if first.get(name, _LATE) != value]
        if changed:
            _spoilt.update(dict.fromkeys(self._modules, changed[0]))
        for name in [_spoilt[module] for module in self._modules if module in _spoilt]:
            raise PrivacyError(
                f"{name} changed while runs were made, and the next run, or one that goes on after "
                "an interrupt, would compute otherwise: keep what lasts in the State that `round` "
                "returns, constants by functools.cache, what is counted for a log in a diagnostic; "
                "then start anew"
            )


def own_attributes(made: object) -> dict[str, Any]:
    """A method's attributes, and those of its settings, or a mechanism's own; what is computed of
    these once is none.
    """
    known = _OF_MECHANISMS if isinstance(made, Mechanism) else ()
    parts = {"": made, "hyper.": getattr(made, "hyper", None)}
    return {
        f"{place}{name}": sketch(value)
        for place, part in parts.items()
        for name, value in getattr(part, "__dict__", {}).items()
        if name not in known
        and not isinstance(inspect.getattr_static(type(part), name, None), cached_property)
    }


def refuse_kept(made: object, given: Mapping[str, Any]) -> None:
    """A PrivacyError where the file of a method holds what clients compute, or compute with, or the
    method itself something new, which a run that goes on after an interrupt has lost.

    Args:
      given: its `own_attributes` before a run.
    """
    method = type(made)
    for name, value in own_attributes(made).items():
        if name not in given or given[name] != value:
            noise = isinstance(made, Mechanism)
            how = "draw by call.address" if noise else "put it into the State that `round` returns"
            raise PrivacyError(
                f"{method.__name__} keeps self.{name} from round to round, and an interrupted run "
                f"would go on without it: {how}"
            )
    module = method.__module__
    place: Any = sys.modules.get(module, method)
    rest, seen = list(vars(place).items()), set()
    while rest:
        name, value = rest.pop()
        if isinstance(value, _OF_CLIENTS):
            raise PrivacyError(
                f"'{name}' in the file of {method.__name__} holds values of clients, which would "
                f"stay from run to run: {KEPT_STATE}"
            )
        if id(value) not in seen:
            seen.add(id(value))
            parts = _parts(value, module)
            rest.extend((name, part) for part in parts if not isinstance(part, _PLAIN))


def held_by(modules: Iterable[str]) -> dict[str, Any]:
    """What the files of plugins hold, and those that they import, by module and name."""
    named = {one for module in modules for one in (module, *imports_of.get(module, ()))}
    return {
        f"{module}: {name}": value
        for module in sorted(sys.modules.keys() & named)
        for name, value in _held(sys.modules[module]).items()
    }


def _held(module: ModuleType) -> dict[str, Any]:
    """What a module and its classes hold."""
    found = {name: one for name, one in vars(module).items() if not isinstance(one, ModuleType)}
    for kind in [one for one in found.values() if isinstance(one, type)]:
        if kind.__module__ == module.__name__ and not isinstance(kind, EnumType):
            found |= {f"{kind.__name__}.{name}": one for name, one in vars(kind).items()}
    return {
        name: sketch(one)
        for name, one in found.items()
        if not name.rpartition(".")[2].startswith("__")
    }


def sketch(value: Any) -> Any:
    """What tells whether a value is another one now: a plain one itself, of a container what it
    holds (of a large one how much), else which object it is.
    """
    if isinstance(value, FunctionType | type):
        return _LATE
    if not isinstance(value, dict | list | tuple | set | deque):
        return _plain(value)
    if len(value) > LARGE:
        return id(value), len(value)
    return [*map(_plain, value), *map(_plain, value.values() if isinstance(value, dict) else ())]


def _plain(value: Any) -> Any:
    return (type(value), value) if isinstance(value, _PLAIN) else id(value)


def _of_plugin(module: str | None) -> bool:
    return str(module).partition(".")[0] in plugin_modules


def _parts(value: Any, module: str) -> Iterable[Any]:
    """What a container holds, or a class, function, cache or object of the module."""
    if isinstance(value, Mapping):
        return value.values()
    if isinstance(value, ModuleType):
        return vars(value).values() if _of_plugin(value.__name__) else ()
    named = getattr(value, "__module__", None)
    own = named == module or _of_plugin(named)
    if not (own or isinstance(value, _HOLDERS)):
        return ()
    # a wrapper of dpfl calls itself one of the module, and its globals are dpfl's
    elsewhere = getattr(value, "__globals__", None)
    return [part for part in gc.get_referents(value) if part is not elsewhere]


def refuse_read(modules: Sequence[str], paths: Sequence[Path]) -> None:
    """A PrivacyError where such a module, or its package, opened one of these files, or one in
    these folders, before the run: when it was imported, or asked for defaults or sizes.
    """
    for module in modules:
        parts = {module, module.partition(".")[0]}
        for path in sorted({path for part in parts for path in opened_by.get(part, ())}):
            if _inside(path, [os.path.realpath(one) for one in paths]):
                raise PrivacyError(
                    f"{path}: opened before the run by the file of {module}; what it needs of "
                    "clients' data comes from `at.objective`, which marks it (a data set or "
                    "partitioner of yours belongs into a file of its own)"
                )


def _inside(path: str, places: Sequence[str]) -> bool:
    return not path.endswith((".py", ".pyc")) and any(
        path == one or path.startswith(one + os.sep) for one in places
    )


@contextmanager
def closed(paths: Sequence[Path]) -> Iterator[None]:
    """Inside, Python refuses to open these files, and those in these folders, and no others; what
    `told_of_files` does not see is not refused.
    """
    global _closed
    before, _closed = _closed, tuple(os.path.realpath(path) for path in paths)
    try:
        with told_of_files(_refuse) if paths else nullcontext():
            yield
    finally:
        _closed = before


def confined(paths: Sequence[Path], compute: Callable[P, T]) -> Callable[P, T]:
    """Code of a user's that computes with these files closed; dpfl's own, of none, as it is."""
    return closed(paths)(compute) if paths else compute


def _refuse(path: str) -> None:
    if _inside(path, _closed):
        raise PrivacyError(
            f"{path}: opened by code of yours while it computes; what it needs of clients' data "
            "comes from `at.objective`, which marks it"
        )
