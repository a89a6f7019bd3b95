"""What is prepared from data is kept below the cache folder, and verified by its content: a file
begins with the sha256 of the rest, a numpy archive, and one that is damaged is made anew.
"""

import fcntl
import hashlib
import io
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from dpfl_cli.data.files import write_atomically

logger = logging.getLogger("dpfl")
DIGEST = 32  # bytes
NamedArrays = dict[str, np.ndarray]


def cached(path: Path, make: Callable[[], NamedArrays]) -> NamedArrays:
    """The arrays that are kept at a path, which `make` makes where there are no good ones; of
    several processes one makes them, and the others wait.
    """
    found = _read(path)
    if found is None:
        with _locked(path.parent):
            found = _read(path)  # what another process made meanwhile
            if found is None:
                found = make()
                stream = io.BytesIO()
                np.savez(stream, **dict[str, Any](found))
                content = stream.getvalue()
                whole = hashlib.sha256(content).digest() + content
                with suppress(OSError):  # a folder that cannot be written: it is made again
                    write_atomically(path, whole)
    return found


def _read(path: Path) -> NamedArrays | None:
    """None where the file is absent, or damaged, which is said once: the file goes."""
    try:
        content = path.read_bytes()
    except OSError:
        return None
    if hashlib.sha256(content[DIGEST:]).digest() != content[:DIGEST]:
        logger.warning("%s: damaged (its checksum is another); made anew", path)
        path.unlink(missing_ok=True)
        return None
    with np.load(io.BytesIO(content[DIGEST:]), allow_pickle=False) as kept:
        return {name: kept[name] for name in kept.files}


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = (folder / ".lock").open("w")
    except OSError as error:
        logger.warning(
            "%s: cannot be written (%s), and nothing is kept; set DPFL_CACHE to a folder that can",
            folder,
            error.strerror,
        )
        yield
        return
    with handle:
        with suppress(OSError):  # of a file system without locks
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
