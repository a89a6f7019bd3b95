"""Code in a process of its own, forked from one that has imported `tests.warm` and run nothing."""

from __future__ import annotations

import multiprocessing
import os
import runpy
import sys
from collections.abc import Mapping, Sequence
from multiprocessing.context import ForkServerProcess
from pathlib import Path

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["tests.warm"])
FILE, SAID = "shown.py", "said.txt"
COMMAND = """import sys
from dpfl_cli.cli.main import entry
if __name__ == "__main__":  # workers import it
    sys.argv[1:] = {}
    entry()
"""


def perform(code: str, folder: Path, environment: Mapping[str, str] = os.environ) -> None:
    """Runs Python code as a file of a folder, which is its working folder and first on its path.

    Raises:
      AssertionError: it fails, with the end of what it printed.
    """
    process = started(code, folder, environment)
    process.join()
    assert process.exitcode == 0, said(folder)[-4000:]


def command(
    words: Sequence[str], folder: Path, environment: Mapping[str, str] = os.environ
) -> tuple[int | None, str]:
    """The exit code of `dpfl WORDS` in a folder, and what it says there."""
    process = started(COMMAND.format(list(words)), folder, environment)
    process.join()
    return process.exitcode, said(folder)


def started(
    code: str, folder: Path, environment: Mapping[str, str] = os.environ
) -> ForkServerProcess:
    """The process of `perform`, as soon as there is one."""
    (folder / FILE).write_text(code)
    process = CONTEXT.Process(target=_performed, args=(str(folder), dict(environment)))
    process.start()
    return process


def said(folder: Path) -> str:
    """All that a process of a folder has said so far."""
    return (folder / SAID).read_text()


def _performed(folder: str, environment: dict[str, str]) -> None:
    os.chdir(folder)
    with Path(SAID).open("w") as said:
        for stream in (1, 2):
            os.dup2(said.fileno(), stream)
    os.environ.clear()
    os.environ.update(environment)
    own = str(Path(__file__).parent)  # pytest puts folders of tests on the path, a reader has none
    sys.path[:] = [folder, *(one for one in sys.path if not one.startswith(own))]
    runpy.run_path(FILE, run_name="__main__")
