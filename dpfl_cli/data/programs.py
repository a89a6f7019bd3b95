"""Programs compiled by numba: built once on a machine, with a word about it; what cannot be built
is done without.
"""

import fcntl
import hashlib
import inspect
import logging
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

logger = logging.getLogger("dpfl")
Built = TypeVar("Built")
fallbacks: list[str] = []  # what this process does without, and why: of a result's environment


def built(
    source: Callable[..., Any], name: str, seconds: int, signature: str, **options: Any
) -> Any:
    """A function compiled for arguments of these types and no others; it leaves the interpreter's
    lock while it works.

    Building takes seconds the first time on a machine, later the code is read from disk.

    Args:
      name, seconds: what people read is built, and how long it takes them.
      signature: the arguments' types as numba writes them, "int64, float32[:, ::1]".
      options: of numba's `njit`.

    Raises:
      Exception: of any kind, where numba cannot compile; there is no list of what can go wrong in a
        compiler.
    """
    from numba import njit
    from numba.core.event import Event, Listener, install_listener

    # numba keeps compiled code by the file of the function; it may be made of those beside it too
    own = Path(inspect.getfile(source))
    made_of = b"".join(file.read_bytes() for file in sorted(own.parent.glob("*.py")))
    made_with = hashlib.sha256(made_of).hexdigest()[:12]
    source.__qualname__ = f"{source.__name__}_{made_with}"
    program: Any = njit(nogil=True, **options)(source)
    with suppress(RuntimeError):  # no folder to keep it in: the next process compiles it again
        program.enable_caching()

    class Notice(Listener):
        def on_start(self, event: Event) -> None:  # not where it is read from disk
            if event.data["dispatcher"] is program:
                logger.info("compiling %s, once on this machine: about %d s", name, seconds)

        def on_end(self, event: Event) -> None:
            pass

    with install_listener("numba:compile", Notice()), own.open() as file:
        with suppress(OSError):  # of a file system without locks
            fcntl.flock(file, fcntl.LOCK_EX)  # what another process builds just now is read then
        program.compile(signature)
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
    except Exception as error:  # whatever a compiler may raise: another way computes the same
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        fallbacks.append(f"{name} cannot be compiled here ({reason}); {instead}")
        logger.warning(fallbacks[-1])
        return None
