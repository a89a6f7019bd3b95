"""Progress of long work: a live bar on a terminal, plain lines elsewhere, nothing when quiet.

A worker's is written to a file that its parent reads and shows: lines of JSON, a method of
`Progress` and its arguments each.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self, TextIO

POLL = 0.2  # seconds between two looks at the folder of a worker, on either side


class Progress:
    """Counts rounds (or any steps) of a known total; shows rate, time left and the metric that
    matters.

    Use as a context manager. `say` prints a line without breaking the bar. Rate and time left are
    rich's on a terminal and elsewhere: of the last half minute without its first step, so that
    neither what is compiled once nor runs found in the store count as rounds.
    """

    LINE_EVERY = 10.0  # seconds between plain lines

    def __init__(
        self, title: str, total: int, quiet: bool = False, stream: TextIO | None = None
    ) -> None:
        self.title, self.total, self.quiet = title, total, quiet
        self.stream = stream or sys.stderr
        self.done = 0
        self._bar: Any = None  # rich's; it draws on a terminal alone
        self._task: Any = None
        self._last = time.monotonic()
        self._note = ""

    def __enter__(self) -> Self:
        if not self.quiet:
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
            from rich.progress import Progress as Bar

            console = Console(file=self.stream)
            self._bar = Bar(
                TextColumn("{task.description}"),
                BarColumn(bar_width=28),
                MofNCompleteColumn(),
                TextColumn("{task.fields[rate]}"),
                TimeRemainingColumn(),
                TextColumn("{task.fields[note]}"),
                console=console,
                disable=console.is_dumb_terminal or not self.stream.isatty(),
            )
            self._bar.start()
            self._add_to(self._bar)
        return self

    def _add_to(self, bar: Any) -> None:
        bar.add_task(self.title, total=self.total, rate="", note="")
        self._bar, self._task = bar, bar.tasks[-1]

    def advance(self, steps: int = 1, note: str = "") -> None:
        """`steps` more are done; `note` is the metric to show."""
        self.done += steps
        self._note = note or self._note
        if self._bar is None:
            return
        self._bar.update(self._task.id, completed=self.done, note=self._note)
        rate = f"{self._task.speed:.1f}/s" if self._task.speed else ""
        self._task.fields["rate"] = rate
        if self._bar.disable and time.monotonic() - self._last >= self.LINE_EVERY:
            self._last = time.monotonic()
            left = self._task.time_remaining
            rest = "" if left is None else f"{left:.0f} s left"
            said = (f"{self.title}: {self.done}/{self.total}", rate, rest, self._note)
            self.say("  ".join(filter(None, said)))

    @contextlib.contextmanager
    def stage(self, title: str, total: int) -> Iterator[Progress]:
        """A step before what is counted here, with a bar or lines of its own."""
        begun = time.monotonic()
        step = Progress(title, total, self.quiet, self.stream)
        self.say(f"{title}: {total} to do")
        if self._bar is not None:
            step._add_to(self._bar)
        try:
            yield step
        finally:
            if self._bar is not None:
                self._bar.remove_task(step._task.id)
            seconds = time.monotonic() - begun
            rate = step.done / max(seconds, 1e-9)
            self.say(f"{title}: {step.done} done in {seconds:.1f} s, {rate:.1f}/s")

    def say(self, line: str) -> None:
        """One line of news, unless quiet."""
        if self.quiet:
            return
        with contextlib.suppress(OSError):  # nobody reads it: no reason for a run to fail
            if self._bar is None or self._bar.disable:
                print(line, file=self.stream, flush=True)
            else:
                self._bar.console.print(line, markup=False, highlight=False)

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar.stop()


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
