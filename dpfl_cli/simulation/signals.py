"""Signals, handled for as long as something lasts."""

import contextlib
import signal
import threading
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def handled(handler: Any, *numbers: signal.Signals) -> Iterator[None]:
    """These signals go to a handler, as of `signal.signal`, and afterwards to whom they went
    before. Only a process's main thread can ask for that: in others nothing changes.
    """
    main = threading.current_thread() is threading.main_thread()
    before = {number: signal.signal(number, handler) for number in numbers if main}
    try:
        yield
    finally:
        for number, former in before.items():
            signal.signal(number, former)
