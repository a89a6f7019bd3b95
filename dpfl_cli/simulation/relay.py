"""A worker's progress, written to a file that its parent reads and shows."""

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dpfl_cli.simulation.progress import Progress

POLL = 0.2  # seconds between two looks at the folder, on either side


class Inbox:
    """The parent's side of a worker's file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._read = 0

    def forward(self, progress: Progress) -> None:
        """Passes on what is new."""
        if not self.path.exists():
            return
        with self.path.open("rb") as file:
            file.seek(self._read)
            lines = file.read().split(b"\n")
        for line in lines[:-1]:  # the last one is not complete yet
            self._read += len(line) + 1
            said = json.loads(line)
            if "say" in said:
                progress.say(said["say"])
            else:
                progress.advance(said["steps"], said["note"])


class Outbox(Progress):
    """The worker's side: a progress that is shown elsewhere."""

    def __init__(self, path: Path) -> None:
        super().__init__("", 0, quiet=True)
        self._file = path.open("w")
        self._steps = 0

    def advance(self, steps: int = 1, note: str = "") -> None:
        self._steps += steps
        self._note = note or self._note
        if time.monotonic() - self._last >= POLL:
            self._flush()

    def say(self, line: str) -> None:
        self._write({"say": line})

    def __exit__(self, *error: object) -> None:
        self._flush()
        self._file.close()

    def _flush(self) -> None:
        self._last = time.monotonic()
        self._write({"steps": self._steps, "note": self._note})
        self._steps = 0

    def _write(self, said: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(said) + "\n")
        self._file.flush()
