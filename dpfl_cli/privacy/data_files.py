"""A plugin's method has no business with files of data: what it reads itself has no mark."""

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from dpfl_cli.config.errors import PrivacyError

_closed: tuple[str, ...] = ()


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
