"""What the code of a plugin's method may not do: keep values outside of its state, and open files
of data.

In its file, a class, a cache, a closure or a function's defaults, values would stay from run to
run, and no ledger of the later run pays for the earlier one's clients. What a method reads from a
file itself has no mark.
"""

import gc
import os
import sys
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from types import CellType, GeneratorType, MethodType, ModuleType, SimpleNamespace
from typing import Any

from dpfl_cli.algorithms.base import Round, State
from dpfl_cli.config.errors import PrivacyError, plugin_modules
from dpfl_cli.models.client_side import ClientSide
from dpfl_cli.privacy.bounded import Bounded
from dpfl_cli.privacy.client_values import KEPT_STATE, Unreleased
from dpfl_cli.privacy.releases import Release

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
_PLAIN = (int, float, str, bytes)
_OF_CLIENTS = (Unreleased, Bounded, Release, ClientSide, Round, State)
_closed: tuple[str, ...] = ()


def refuse_kept(made: object, given: Collection[str]) -> None:
    """A PrivacyError where the file of a method holds what clients compute, or compute with, or the
    method itself anything new, which a run that goes on after an interrupt has lost.

    Args:
      given: the attributes that it had before a run.
    """
    method = type(made)
    for name in vars(made):
        if name not in given:
            raise PrivacyError(
                f"{method.__name__} keeps self.{name} from round to round, and an interrupted run "
                "would go on without it: put it into the State that `round` returns"
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
            rest.extend((name, part) for part in _parts(value, module))


def refuse_changed(modules: Iterable[str]) -> None:
    """A PrivacyError where files of plugins hold something else than at the first look at them: the
    next run, or one that goes on after an interrupt, would compute otherwise.
    """
    for module in sys.modules.keys() & modules:
        first, now = _at_first(module), _held(module)
        if changed := [name for name in first | now if first.get(name) != now.get(name)]:
            raise PrivacyError(
                f"'{changed[0]}' in the file of a plugin changed while runs were made, and the "
                "next run, or one that goes on after an interrupt, would compute otherwise: keep "
                "what lasts in the State that `round` returns, or of a model in self"
            )


@cache
def _at_first(module: str) -> dict[str, Any]:
    return _held(module)


def _held(module: str) -> dict[str, Any]:
    """What a module and its classes hold: plain values, of containers how much, else which."""
    place = vars(sys.modules[module])
    own = [one for one in place.values() if getattr(one, "__module__", None) == module]
    found = dict(place)
    for one in filter(lambda one: isinstance(one, type), own):
        found |= {f"{one.__name__}.{name}": value for name, value in vars(one).items()}
    return {
        name: (type(value), value if isinstance(value, _PLAIN) else (id(value), _size(value)))
        for name, value in found.items()
        if "__" not in name
    }


def _size(value: Any) -> int | None:
    return len(value) if isinstance(value, list | dict | set | deque) else None


def _parts(value: Any, module: str) -> Iterable[Any]:
    """What a container holds, or a class, function, cache or object of the module."""
    if isinstance(value, Mapping):
        return value.values()
    if isinstance(value, ModuleType):
        return vars(value).values() if value.__name__ in plugin_modules else ()
    own = getattr(value, "__module__", None) in {module, *plugin_modules}
    if not (own or isinstance(value, _HOLDERS)):
        return ()
    # a wrapper of dpfl calls itself one of the module, and its globals are dpfl's
    elsewhere = getattr(value, "__globals__", None)
    return [part for part in gc.get_referents(value) if part is not elsewhere]


@contextmanager
def closed(paths: Sequence[Path]) -> Iterator[None]:
    """Inside, Python refuses to open these files, and those in these folders.

    Libraries that open files by themselves (HDF5's, torch's archives) are not seen.
    """
    global _closed
    if paths:
        _watch()
    before, _closed = _closed, tuple(os.path.realpath(path) for path in paths)
    try:
        yield
    finally:
        _closed = before


@cache
def _watch() -> None:
    sys.addaudithook(_refuse)


def _refuse(event: str, details: tuple[Any, ...]) -> None:
    if not _closed or event != "open" or not isinstance(details[0], str | bytes | os.PathLike):
        return
    path = os.path.realpath(os.fsdecode(details[0]))
    inside = any(path == one or path.startswith(one + os.sep) for one in _closed)
    if inside and not path.endswith((".py", ".pyc")):
        raise PrivacyError(
            f"{path}: opened by a method while it computes; what it needs of clients' data comes "
            "from `at.objective`, which marks it"
        )
