"""Code in a process of its own, forked from one that has imported `tests.warm` and run nothing."""

from __future__ import annotations

import multiprocessing
import os
import runpy
import sys
from pathlib import Path

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["tests.warm"])
FILE, SAID = "shown.py", "said.txt"


def perform(code: str, folder: Path, environment: dict[str, str]) -> None:
    """Runs Python code as a file of a folder, which is its working folder and first on its path.

    Raises:
      AssertionError: it fails, with the end of what it printed.
    """
    (folder / FILE).write_text(code)
    process = CONTEXT.Process(target=_performed, args=(str(folder), environment))
    process.start()
    process.join()
    assert process.exitcode == 0, (folder / SAID).read_text()[-4000:]


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
