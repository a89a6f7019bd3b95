"""The guides are real: their code is run as a reader would, in order, in one folder.

Python blocks that begin with `# FILE.py` are files, the others are executed; the lines of blocks
marked `sh` are commands. Runs are cut short, artifacts are at scale=smoke as they say.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from pathlib import Path

import pytest

from tests.apart import perform

ROOT = Path(__file__).parent.parent
DOCS = sorted((ROOT / "docs").glob("*.md"))
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", *DOCS]
RUNNING = [page for page in PAGES if re.search("^```(python|sh)$", page.read_text(), re.MULTILINE)]


def read(code: str, folder: Path) -> None:
    """Runs the code of a page in a process of its own, in a folder."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    environment.pop("DPFL_OUTPUTS", None)
    perform(code, folder, environment)


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
    read("\n".join(parts), tmp_path)


def command(line: str) -> str:
    """Python that runs a command of a guide; runs take two rounds, so said that all runs of a grid
    share the composition of their options.
    """
    program, name, *words = shlex.split(line, comments=True)
    assert program == "dpfl"
    short = ["rounds=2"] if name == "run" else []
    return f"assert main({[name, *words, *short]!r}) == 0, {line!r}"


def test_the_method_that_a_guide_shows_is_the_one_that_tests_run() -> None:
    guide = (ROOT / "docs" / "own-algorithm.md").read_text()
    (shown,) = re.findall("^class FedMomentumSettings.*?(?=^```$)", guide, re.DOTALL | re.MULTILINE)
    assert shown in (ROOT / "tests" / "cli" / "my_method.py").read_text()


def test_links_lead_somewhere_and_pages_stay_short() -> None:
    for page in PAGES:
        for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
            assert (page.parent / link).exists(), f"{page.name}: {link}"
    assert len(PAGES[0].read_text().splitlines()) <= 200


def test_the_ways_through_the_files_name_what_they_have() -> None:
    """A line of a table: a file of the package, and what is defined there or is a file itself."""
    package, said = ROOT / "dpfl_cli", (ROOT / "docs" / "architecture.md").read_text()
    lines = re.findall(r"^\| `([\w/]+\.py)` \| (.*) \|$", said, re.MULTILINE)
    assert len(lines) > 30
    for file, what in lines:
        source = (package / file).read_text()
        for named in re.findall("`([^`]+)`", what):
            if "/" in named:
                assert (package / named).exists() or (ROOT / named).exists(), named
                continue
            for part in named.split("."):
                defined = rf"^ *((def|class) {part}\b|{part}: )"
                assert re.search(defined, source, re.MULTILINE), f"{file}: {named}"


def test_the_notebook_runs(tmp_path: Path) -> None:
    """Its cells, in order, in one process; what IPython shows of a cell's last line is not."""
    notebook = json.loads((ROOT / "docs" / "first_steps.ipynb").read_text())
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert not any(cell["outputs"] for cell in cells)
    read("\n".join("".join(cell["source"]) for cell in cells), tmp_path)
    assert len(list((tmp_path / "outputs" / "runs").glob("*/model.npz"))) == 1
