"""Progress of long work: a live bar on a terminal, plain lines elsewhere, nothing when quiet."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from typing import Any, Self, TextIO


class Progress:
    """Counts rounds (or any steps) of a known total; shows rate, time left and the metric that
    matters.

    Use as a context manager. `say` prints a line without breaking the bar.
    """

    LINE_EVERY = 10.0  # seconds between plain lines

    def __init__(
        self, title: str, total: int, quiet: bool = False, stream: TextIO | None = None
    ) -> None:
        self.title, self.total, self.quiet = title, total, quiet
        self.stream = stream or sys.stderr
        self.done = 0
        self._bar: Any = None  # rich's, on a terminal
        self._task: Any = None
        self._start = self._last = time.monotonic()
        self._note = ""

    def __enter__(self) -> Self:
        if not self.quiet and self.stream.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
            from rich.progress import Progress as Bar

            self._bar = Bar(
                TextColumn("{task.description}"),
                BarColumn(bar_width=28),
                MofNCompleteColumn(),
                TextColumn("{task.fields[rate]}"),
                TimeRemainingColumn(),
                TextColumn("{task.fields[note]}"),
                console=Console(file=self.stream),
            )
            self._bar.start()
            self._task = self._bar.add_task(self.title, total=self.total, rate="", note="")
        return self

    def advance(self, steps: int = 1, note: str = "") -> None:
        """`steps` more are done; `note` is the metric to show."""
        self.done += steps
        self._note = note or self._note
        now = time.monotonic()
        rate = self.done / max(now - self._start, 1e-9)
        if self._bar is not None:
            self._bar.update(self._task, advance=steps, rate=f"{rate:.1f}/s", note=self._note)
        elif not self.quiet and now - self._last >= self.LINE_EVERY:
            self._last = now
            left = (self.total - self.done) / max(rate, 1e-9)
            print(
                f"{self.title}: {self.done}/{self.total}  {rate:.1f}/s  {left:.0f} s left  "
                f"{self._note}",
                file=self.stream,
                flush=True,
            )

    @contextlib.contextmanager
    def stage(self, title: str, total: int) -> Iterator[Progress]:
        """A step before what is counted here, with a bar or lines of its own."""
        begun = time.monotonic()
        step = Progress(title, total, self.quiet, self.stream)
        self.say(f"{title}: {total} to do")
        step._bar = self._bar
        if self._bar is not None:
            step._task = self._bar.add_task(title, total=total, rate="", note="")
        try:
            yield step
        finally:
            if self._bar is not None:
                self._bar.remove_task(step._task)
            seconds = time.monotonic() - begun
            self._start += seconds  # the rate is of what is counted
            rate = step.done / max(seconds, 1e-9)
            self.say(f"{title}: {step.done} done in {seconds:.1f} s, {rate:.1f}/s")

    def say(self, line: str) -> None:
        """One line of news, unless quiet."""
        if self.quiet:
            return
        if self._bar is not None:
            self._bar.console.print(line, markup=False, highlight=False)
        else:
            print(line, file=self.stream, flush=True)

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar.stop()
