"""The time that is left, of plain lines."""

import io

import pytest

from dpfl_cli.simulation.progress import Progress


def test_the_time_left_is_of_rounds_and_not_of_compiling(monkeypatch: pytest.MonkeyPatch) -> None:
    """40 rounds of 1 s are left after a first one of 60 s; 20 in the store took no time."""
    now = 0.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    monkeypatch.setattr("rich.console.monotonic", lambda: now)
    stream = io.StringIO()
    monkeypatch.setattr("sys.stderr", stream)
    with Progress("runs", 71) as progress:
        progress.advance(20)
        now += 60
        for _ in range(11):
            progress.advance(1, "accuracy 0.5")
            now += 1
    assert stream.getvalue().splitlines() == [
        "runs: 21/71  accuracy 0.5",  # a first round says nothing
        "runs: 31/71  1.0/s  40 s left  accuracy 0.5",
    ]


def test_a_terminal_on_which_no_bar_moves_gets_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setattr(Progress, "LINE_EVERY", 0.0)
    stream = Terminal()
    monkeypatch.setattr("sys.stderr", stream)
    with Progress("runs", 2) as progress:
        progress.advance(1, "accuracy 0.5")
        assert stream.getvalue() == "runs: 1/2  accuracy 0.5\n"


def test_a_display_that_nobody_reads_stops_no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    class Closed(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    monkeypatch.setattr("sys.stderr", Closed())
    with Progress("runs", 2) as progress:
        progress.say("news")
        progress.advance(2)
