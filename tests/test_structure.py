"""The shape of the code: imports point one way, and the package is whole."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "dpfl_cli"
ORDER = ["cli", "reproduction", "simulation", "algorithms", ("privacy", "models"), "data", "config"]
LEVEL = {room: level for level, rooms in enumerate(ORDER) for room in ([rooms] if isinstance(rooms, str) else rooms)}
LEVEL["hydra_plugins"] = LEVEL["cli"]


def imports(path: Path) -> set[str]:
    """Rooms of dpfl_cli that a module imports."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        found |= {name.split(".")[1] for name in names if name.startswith("dpfl_cli.")}
    return found


@pytest.mark.parametrize("path", sorted(PACKAGE.glob("*/*.py")), ids=lambda path: f"{path.parent.name}/{path.name}")
def test_imports_point_one_way(path: Path) -> None:
    room = path.parent.name
    for other in imports(path):
        # models know the type of client values that they return; privacy knows nothing of models
        allowed = LEVEL[room] <= LEVEL[other] and not (room == "privacy" and other == "models")
        assert allowed, f"{room}/{path.name} imports {other}"


def test_every_room_is_packaged() -> None:
    import tomllib

    config = tomllib.loads((PACKAGE.parent / "pyproject.toml").read_text())
    packages = set(config["tool"]["setuptools"]["packages"])
    rooms = {f"dpfl_cli.{path.name}" for path in PACKAGE.iterdir() if path.is_dir() and list(path.glob("*.py"))}
    assert rooms - {"dpfl_cli.hydra_plugins"} <= packages
    assert "hydra_plugins" in packages
    assert "dpfl_cli.conf" in packages


def test_no_python_loop_over_clients_or_records_in_algorithms() -> None:
    for path in (PACKAGE / "algorithms").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.For | ast.comprehension):
                text = ast.unparse(node.iter)
                assert "client" not in text and "record" not in text, f"{path.name}: loop over {text}"  # noqa: PT018
