"""`dpfl new`: what it writes passes its own test and the project's linter."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dpfl_cli.cli.main import main
from dpfl_cli.cli.new import TRY
from tests.apart import perform


def test_what_is_written_passes_its_own_test(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for kind in TRY:
        name = f"my_{kind}"
        assert main(["new", kind, name]) == 0
        assert capsys.readouterr().out.splitlines()[:2] == [f"{name}.py", f"test_{name}.py"]
    options = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "."]
    perform(f"import pytest; raise SystemExit(pytest.main({options}))", tmp_path, {**os.environ})
    for kind in TRY:
        assert main(["new", kind, f"my_{kind}"]) == 2
        assert "is there already" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["algorithm", "My-Method"], "write small letters"),
        (["metod", "my_method"], "did you mean model?"),
    ],
)
def test_wrong_names_are_one_line(
    words: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["new", *words]) == 2
    assert says in capsys.readouterr().err
