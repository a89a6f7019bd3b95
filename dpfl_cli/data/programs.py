"""Programs compiled by numba: built once on a machine, with a word about it; what cannot be built is done without."""

from __future__ import annotations

import hashlib
import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

logger = logging.getLogger("dpfl")
Built = TypeVar("Built")


def built(
    source: Callable[..., Any],
    name: str,
    seconds: int,
    signatures: Sequence[tuple[Any, ...]],
    uses: Sequence[ModuleType] = (),
    **options: Any,
) -> Any:
    """A function compiled for these types of arguments and no others; it leaves the interpreter's lock while it works.

    Building takes seconds the first time on a machine, later the code is read from disk.

    Args:
      name, seconds: what people are told is built, and how long it takes them.
      signatures: the arguments' types, a tuple for every variant.
      uses: modules besides its own that the code is made with; what is on disk is for these files as they are.
      options: of numba's `njit`.

    Raises:
      Exception: of any kind, where numba cannot compile; there is no list of what can go wrong in a compiler.
    """
    from numba import njit

    if uses:  # numba looks at the file of the function only
        files = b"".join(Path(str(module.__file__)).read_bytes() for module in uses)
        source.__qualname__ = f"{source.__name__}_{hashlib.sha256(files).hexdigest()[:12]}"
    program: Any = njit(nogil=True, **options)(source)
    with suppress(RuntimeError):  # no folder to keep it in: it is compiled again in the next process
        program.enable_caching()
    notice = threading.Timer(1.0, logger.info, [f"compiling {name}, once on this machine: about {seconds} s"])
    notice.daemon = True  # reading it from disk takes less than a second
    notice.start()
    try:
        for signature in signatures:
            program.compile(signature)
    finally:
        notice.cancel()
    program.disable_compile()
    return program


def built_or_none(make: Callable[[], Built], name: str, instead: str) -> Built | None:
    """What `make` builds, or None, saying so, where it cannot be built.

    Args:
      name: what is built.
      instead: what is done without it.
    """
    try:
        return make()
    except Exception as error:  # whatever a compiler may raise: there is another way to compute the same
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        logger.warning("%s cannot be compiled here (%s); %s", name, reason, instead)
        return None
