"""dpfl as a process of its own: what becomes of its output, whoever reads it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

DPFL = (sys.executable, "-m", "dpfl_cli.cli.main")
# With it every word is written at once: what is left at the end is what was lost.
BUFFERED = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}


def dpfl(redirected: str, *words: str) -> tuple[int, str]:
    """The exit code and standard error of a command whose streams a shell redirects so."""
    shell = ["bash", "-c", f'"$@" {redirected}', "bash", *DPFL, *words]
    done = subprocess.run(shell, env=BUFFERED, stderr=subprocess.PIPE, text=True, check=False)
    return done.returncode, done.stderr


@pytest.mark.parametrize(
    "words", [["--help"], ["run", "--help"], ["completion", "bash"], ["completion", "zsh"]]
)
def test_a_reader_that_leaves_before_the_last_word_is_no_error(words: list[str]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as nobody:
        done = subprocess.run(
            [*DPFL, *words],
            env=BUFFERED,
            stdout=nobody,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("words", [["--help"], ["run", "--help"], ["list"]])
def test_a_full_disk_under_the_output_is_one_line(words: list[str]) -> None:
    assert dpfl(">/dev/full", *words) == (2, "dpfl: the output: No space left on device\n")


def test_an_error_is_told_before_what_nobody_reads() -> None:
    code, err = dpfl(">/dev/full", "data", "fetch", "nothing")
    assert (code, err.count("\n")) == (2, 1)
    assert "nothing" in err


RUN = ["run", "dataset.clients=12", "dataset.dimension=5", "rounds=2"]


@pytest.mark.parametrize(
    ("closed", "commands"),
    [(">&-", [RUN, ["runs", "export"]]), ("2>&-", [RUN]), ("<&- >&- 2>&-", [RUN])],
)
def test_closed_streams_stop_nothing(closed: str, commands: list[list[str]]) -> None:
    for words in commands:
        assert dpfl(closed, *words) == (0, "")
