"""Compiled programs are built once on a machine, and read from disk afterwards."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

NORMALS = """
from dpfl_cli.data.normals import _checked
_checked(single=True), _checked(single=False)
"""


def test_another_process_reads_what_one_has_built(tmp_path: Path) -> None:
    shown = "import logging; logging.basicConfig(level=logging.INFO)\n"

    def compilations() -> int:
        done = subprocess.run(
            [sys.executable, "-c", shown + NORMALS],
            env=os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)},
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stderr.count("compiling")

    assert [compilations(), compilations()] == [2, 0]
