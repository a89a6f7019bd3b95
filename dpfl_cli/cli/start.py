"""How commands that compute begin sooner."""

import contextlib
import gc
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def importing() -> Iterator[None]:
    """Imports inside make a million objects that stay: nobody looks for garbage among them, which
    takes a third of a second.
    """
    first = "torch" not in sys.modules and gc.isenabled()
    if first:
        gc.disable()
    try:
        yield
    finally:
        if first:
            gc.freeze()
            gc.enable()
