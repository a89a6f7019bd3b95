"""`dpfl new`: what it writes passes its own test and the project's linter."""

from __future__ import annotations

import sys
from errno import ENOSPC
from pathlib import Path

import pytest

from dpfl_cli.cli.main import main
from dpfl_cli.cli.new import TRY

NAMES = [f"my_{kind}" for kind in TRY]


@pytest.mark.usefixtures("own_components")
def test_what_is_written_passes_its_own_test(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In this process, which has imported what most of it needs; modules are forgotten after it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    for kind, name in zip(TRY, NAMES, strict=True):
        assert main(["new", kind, name]) == 0
        assert capsys.readouterr().out.splitlines()[:2] == [f"{name}.py", f"test_{name}.py"]
        assert main(["new", kind, name]) == 2
        assert "is there already" in capsys.readouterr().err
    try:
        plugins = [word for name in ("cacheprovider", "xdist") for word in ("-p", f"no:{name}")]
        assert pytest.main(["-q", "-s", *plugins, "."]) == 0, capsys.readouterr().out
    finally:
        for name in [one for one in sys.modules if one.removeprefix("test_") in NAMES]:
            del sys.modules[name]


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


def test_a_full_disk_leaves_no_part_of_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(path: Path) -> None:
        raise OSError(ENOSPC, "No space left on device")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("dpfl_cli.data.files._sync", full)
    assert main(["new", "artifact", "my_table"]) == 2
    assert "my_table.py: cannot be written" in capsys.readouterr().err
    assert not list(tmp_path.glob("*my_table*"))
