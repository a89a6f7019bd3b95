"""The guides are real: their code is run as a reader would, in order, in one folder.

Python blocks that begin with `# FILE.py` are files, the others are executed; the lines of blocks
marked `sh` are commands. Runs are cut short, artifacts are at scale=smoke as they say.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
DOCS = sorted((ROOT / "docs").glob("*.md"))
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", *DOCS]
RUNNING = [page for page in PAGES if re.search("^```(python|sh)$", page.read_text(), re.MULTILINE)]


def perform(code: str, folder: Path) -> None:
    """Runs Python code in a process of its own, in a folder."""
    (folder / "shown.py").write_text(code)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    environment.pop("DPFL_OUTPUTS", None)
    done = subprocess.run(
        [sys.executable, "shown.py"],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.parametrize("page", RUNNING, ids=lambda page: page.stem)
def test_what_a_guide_shows_runs(page: Path, tmp_path: Path) -> None:
    parts = ["from dpfl_cli.cli.main import main"]
    blocks = re.findall(r"^```(python|sh)\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE)
    for kind, code in blocks:
        if kind == "python" and (named := re.match(r"# (\w+\.py)\n", code)):
            (tmp_path / named[1]).write_text(code)
        elif kind == "python":
            parts.append(code)
        else:
            parts += [command(line) for line in code.splitlines()]
    perform("\n".join(parts), tmp_path)


def command(line: str) -> str:
    """Python that runs a command of a guide; runs take two rounds."""
    program, name, *words = shlex.split(line, comments=True)
    assert program == "dpfl"
    short = ["++rounds=2"] if name == "run" else []
    return f"assert main({[name, *words, *short]!r}) == 0, {line!r}"


def test_links_lead_somewhere_and_pages_stay_short() -> None:
    for page in PAGES:
        for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
            assert (page.parent / link).exists(), f"{page.name}: {link}"
    assert len(PAGES[0].read_text().splitlines()) <= 200


def test_the_notebook_runs(tmp_path: Path) -> None:
    """Its cells, in order, in one process; what IPython shows of a cell's last line is not."""
    notebook = json.loads((ROOT / "docs" / "first_steps.ipynb").read_text())
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert not any(cell["outputs"] for cell in cells)
    perform("\n".join("".join(cell["source"]) for cell in cells), tmp_path)
    assert len(list((tmp_path / "outputs" / "runs").glob("*/model.npz"))) == 1
