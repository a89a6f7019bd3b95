"""What a plugin's method keeps outside of its state: in its file, a class, a cache, a closure or a
function's defaults.

There it would stay from run to run, and no ledger of the later run pays for the earlier one's
clients.
"""

import gc
import sys
from collections import deque
from collections.abc import Iterable, Mapping
from functools import partial
from types import CellType, GeneratorType, MethodType, SimpleNamespace
from typing import Any

from dpfl_cli.algorithms.base import Round, State
from dpfl_cli.config.errors import PrivacyError
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
_OF_CLIENTS = (Unreleased, Bounded, Release, ClientSide, Round, State)


def refuse_kept(method: type) -> None:
    """A PrivacyError where the file of a method holds what clients compute, or compute with."""
    module = method.__module__
    place: Any = sys.modules.get(module, method)
    rest, seen = deque([(name, one) for name, one in vars(place).items()]), set()
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


def _parts(value: Any, module: str) -> Iterable[Any]:
    """What a container holds, or a class, function, cache or object of the module."""
    if isinstance(value, Mapping):
        return value.values()
    own = getattr(value, "__module__", None) == module
    if not (own or isinstance(value, _HOLDERS)):
        return ()
    # a wrapper of dpfl calls itself one of the module, and its globals are dpfl's
    elsewhere = getattr(value, "__globals__", None)
    return [part for part in gc.get_referents(value) if part is not elsewhere]
