"""What a user installs: the wheel carries the configs and works from any folder; the README names
what there is.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib.metadata import distributions
from pathlib import Path

import pytest
from hydra.plugins.plugin import Plugin

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """dpfl, built as a wheel from a copy of the sources and unpacked into a folder of its own."""
    source = tmp_path_factory.mktemp("source")
    for name in ("dpfl_cli", "conf"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    target = tmp_path_factory.mktemp("installed")
    alone = ["--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    command = [sys.executable, "-m", "pip", "install", *alone, "--target", str(target), str(source)]
    subprocess.run(command, check=True, capture_output=True)
    return target


def test_the_package_works_from_any_folder(installed: Path, tmp_path: Path) -> None:
    assert (installed / "dpfl_cli" / "conf" / "config.yaml").is_file()
    assert (installed / "hydra_plugins" / "dpfl_launcher.py").is_file()
    assert (installed / "dpfl_cli" / "__init__.pyi").is_file()
    (own,) = distributions(path=[str(installed)])
    for plugin in own.entry_points.select(group="hydra.plugins"):  # as Hydra 1.4 finds them
        assert issubclass(plugin.load(), Plugin)
    assert list((installed / "dpfl_cli" / "reproduction" / "paper_numbers").glob("*/*.csv"))
    assert len(list((installed / "dpfl_cli" / "reproduction" / "templates").iterdir())) >= 8
    environment = {key: value for key, value in os.environ.items() if key != "DPFL_OUTPUTS"}
    environment |= {"PYTHONPATH": str(installed), "OMP_NUM_THREADS": "1"}
    environment["NUMBA_DISABLE_JIT"] = "1"  # nothing is compiled anew for a folder of a few seconds
    where = "import dpfl_cli.config.paths as p; print(p.conf_dir())"

    def printed(*words: str) -> str:
        done = subprocess.run(
            [sys.executable, *words],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert Path(printed("-c", where).strip()) == installed / "dpfl_cli" / "conf"
    command = ["-m", "dpfl_cli.cli.main"]
    small = ["dataset.clients=12", "dataset.dimension=5", "rounds=2"]
    printed(*command, "run", "-m", "algorithm=fedexp,fedavg", *small)
    assert len(list((tmp_path / "outputs" / "runs").glob("*/result.json"))) == 2
    assert "fedexp/table4" in printed(*command, "reproduce", "--list")


def test_the_readme_names_what_there_is() -> None:
    from dpfl_cli.cli.list import GROUPS, option_files

    text = (ROOT / "README.md").read_text()
    for group in GROUPS:
        for path in option_files(group):
            assert f"`{path.stem}`" in text, f"{group}={path.stem} is not in the README"
    assert "make test" in text
    assert "make test" in (ROOT / ".ci" / "run").read_text()


def test_examples_in_docstrings_hold() -> None:
    import doctest
    import importlib
    import pkgutil

    import dpfl_cli

    for module in pkgutil.walk_packages(dpfl_cli.__path__, "dpfl_cli."):
        if "hydra_plugins" not in module.name:  # imported under another name
            assert doctest.testmod(importlib.import_module(module.name)).failed == 0, module.name


def test_make_help_lists_every_target() -> None:
    shown = subprocess.run(
        ["make", "-s", "help"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    wanted = ["setup", "run", "test", "lint", "format", "typecheck", "bench", "reproduce-all"]
    assert [name for name in [*wanted, "clean", "help"] if f"make {name} " not in shown] == []


def test_an_old_python_is_refused_before_there_is_an_environment(tmp_path: Path) -> None:
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    old = tmp_path / "old"
    code = "import sys; sys.version_info = (3, 10, 1); exec(sys.argv[2])"
    old.write_text(f"#!/bin/sh\nexec {sys.executable} -c '{code}' \"$@\"\n")
    old.chmod(0o755)
    words = ["make", "-s", "setup", f"PYTHON={old}"]
    made = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert made.returncode == 2
    said = f"{old} is Python 3.10; dpfl needs 3.11 or later: make PYTHON=python3.11"
    assert made.stderr.splitlines()[0] == said
    assert not (tmp_path / ".venv").exists()
