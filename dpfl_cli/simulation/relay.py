"""A worker's progress, written to a file that its parent reads and shows: lines of JSON, a method
of `Progress` and its arguments each.
"""

import json
import time
from collections.abc import Iterator
from pathlib import Path

from dpfl_cli.simulation.progress import Progress

POLL = 0.2  # seconds between two looks at the folder, on either side


def forwarded(path: Path, progress: Progress) -> Iterator[None]:
    """The parent's side: passes on what is new, each time that it is asked for the next item."""
    while not path.exists():
        yield
    rest = ""
    with path.open() as file:
        while True:
            *lines, rest = (rest + file.read()).split("\n")  # the last one is not complete yet
            for line in lines:
                method, *values = json.loads(line)
                getattr(progress, method)(*values)
            yield


class Outbox(Progress):
    """The worker's side: a progress that is shown elsewhere."""

    def __init__(self, path: Path) -> None:
        super().__init__("", 0, quiet=True)
        self._file = path.open("w", buffering=1)
        self._steps = 0

    def advance(self, steps: int = 1, note: str = "") -> None:
        self._steps += steps
        self._note = note or self._note
        if time.monotonic() - self._last >= POLL:
            self._flush()

    def say(self, line: str) -> None:
        print(json.dumps(["say", line]), file=self._file)

    def __exit__(self, *error: object) -> None:
        self._flush()
        self._file.close()

    def _flush(self) -> None:
        self._last = time.monotonic()
        print(json.dumps(["advance", self._steps, self._note]), file=self._file)
        self._steps = 0
