"""Signals, handled for as long as something lasts."""

import contextlib
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
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


@contextlib.contextmanager
def heard(act: Callable[[int], None]) -> Iterator[None]:
    """Calls act(number) in a thread of its own for every signal that somebody handles: also while
    the main thread is in a compiled program, after which its handlers are called. Only a process's
    main thread can ask for that: in others nothing changes.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def listen() -> None:
        while number := ours.recv(1):
            if before != -1:  # somebody listened before, as asyncio does
                with contextlib.suppress(OSError):
                    os.write(before, number)
            act(number[0])

    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    before = signal.set_wakeup_fd(theirs.fileno(), warn_on_full_buffer=False)
    listener = threading.Thread(target=listen, daemon=True)
    listener.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        theirs.close()  # ends the thread
        listener.join()
        ours.close()


def _deaf() -> None:
    with contextlib.suppress(ValueError):  # not of the main thread
        signal.set_wakeup_fd(-1)


os.register_at_fork(after_in_child=_deaf)  # signals of a child are not its parent's
