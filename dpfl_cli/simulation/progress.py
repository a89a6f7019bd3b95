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
from typing import Any, Self

POLL = 0.2  # seconds between two looks at the folder of a worker, on either side


class Progress:
    """Counts rounds (or any steps) of a known total; shows rate, time left and the metric that
    matters.

    Use as a context manager. `say` prints a line without breaking the bar. Rate and time left are
    rich's on a terminal and elsewhere: of the last half minute without its first step, so that
    neither what is compiled once nor runs found in the store count as rounds.

    Args:
      bar: rich's, where it is shown beside what another one counts.
    """

    LINE_EVERY = 10.0  # seconds between plain lines

    def __init__(self, title: str, total: int, quiet: bool = False, bar: Any = None) -> None:
        self.quiet = quiet
        self._bar = bar or _new_bar(quiet)
        self._bar.add_task(title, total=total, rate="", note="")
        self._task = self._bar.tasks[-1]
        self._last = time.monotonic()

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def advance(self, steps: int = 1, note: str = "") -> None:
        """`steps` more are done; `note` is the metric to show."""
        task, fields = self._task, self._task.fields
        self._bar.update(task.id, advance=steps, note=note or fields["note"])
        if self.quiet:
            return
        fields["rate"] = f"{task.speed:.1f}/s" if task.speed else ""
        if self._bar.disable and time.monotonic() - self._last >= self.LINE_EVERY:
            self._last = time.monotonic()
            left = task.time_remaining
            rest = "" if left is None else f"{left:.0f} s left"
            counted = f"{task.description}: {task.completed}/{task.total}"
            self.say("  ".join(filter(None, (counted, fields["rate"], rest, fields["note"]))))

    @contextlib.contextmanager
    def stage(self, title: str, total: int) -> Iterator[Progress]:
        """A step before what is counted here, with a bar or lines of its own."""
        self.say(f"{title}: {total} to do")
        step = Progress(title, total, self.quiet, self._bar)
        try:
            yield step
        finally:
            self._bar.remove_task(step._task.id)
            seconds, done = step._task.elapsed, step._task.completed
            rate = done / max(seconds, 1e-9)
            self.say(f"{title}: {done} done in {seconds:.1f} s, {rate:.1f}/s")

    def say(self, line: str) -> None:
        """One line of news, unless quiet."""
        if self.quiet:
            return
        with contextlib.suppress(OSError):  # nobody reads it: no reason for a run to fail
            if self._bar.disable:
                print(line, file=sys.stderr, flush=True)
            else:
                self._bar.console.print(line, markup=False, highlight=False)

    def __exit__(self, *error: object) -> None:
        self._bar.stop()


def _new_bar(quiet: bool) -> Any:
    """rich's bar, which draws on a terminal alone."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    console = Console(stderr=True)
    return Bar(
        TextColumn("{task.description}"),
        BarColumn(bar_width=28),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
        console=console,
        disable=quiet or console.is_dumb_terminal or not sys.stderr.isatty(),
    )


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
        self._steps, self._note = 0, ""

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
