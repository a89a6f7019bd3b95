"""The shape of the code: imports point one way, and the package is whole."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "dpfl_cli"
ORDER = ["cli", "reproduction", "simulation", "algorithms", ("privacy", "models"), "data", "config"]
LEVEL = {room: level for level, rooms in enumerate(ORDER) for room in ([rooms] if isinstance(rooms, str) else rooms)}
LEVEL["hydra_plugins"] = LEVEL["cli"]


def imports(tree: ast.AST, room: str) -> set[str]:
    """Rooms of dpfl_cli that a module of a room imports, however it is written."""
    found = set()
    for node in ast.walk(tree):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            package = ["dpfl_cli", room][: 3 - node.level] if node.level else []  # from .x is this room, from ..x the package
            base = ".".join([*package, *([node.module] if node.module else [])])
            names = [base, *(f"{base}.{alias.name}" for alias in node.names)]
        found |= {name.split(".")[1] for name in names if name.startswith("dpfl_cli.")}
    return found & set(LEVEL)


@pytest.mark.parametrize(
    "line",
    [
        "import dpfl_cli.simulation.plan",
        "from dpfl_cli.simulation.plan import Plan",
        "from dpfl_cli.simulation import plan",
        "from dpfl_cli import simulation",
        "from ..simulation import plan",
        "from ..simulation.plan import Plan",
        "from .. import simulation",
        "def f():\n    import dpfl_cli.simulation as s",
    ],
)
def test_every_way_of_importing_is_seen(line: str) -> None:
    assert imports(ast.parse(line), "data") == {"simulation"}
    assert imports(ast.parse("from dpfl_cli import __version__\nfrom .streams import Streams"), "data") == {"data"}


@pytest.mark.parametrize("path", sorted(PACKAGE.glob("*/**/*.py")), ids=lambda path: f"{path.parent.name}/{path.name}")
def test_imports_point_one_way(path: Path) -> None:
    room = path.relative_to(PACKAGE).parts[0]
    for other in imports(ast.parse(path.read_text()), room):
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


def loops(tree: ast.AST) -> list[str]:
    """Python loops over something else than a public list, in `init`, `round` and what else a method computes with."""
    found = []
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef) or function.name in DECLARING:
            continue
        for node in ast.walk(function):
            if isinstance(node, ast.While):
                found.append(f"{function.name}: while {ast.unparse(node.test)}")
            elif isinstance(node, ast.For | ast.comprehension) and not public(node.iter):
                found.append(f"{function.name}: for {ast.unparse(node.target)} in {ast.unparse(node.iter)}")
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("map", "filter"):
                found.append(f"{function.name}: {ast.unparse(node)}")
    return found


DECLARING = ("releases", "__init__")  # run once, on settings alone


def public(node: ast.expr) -> bool:
    """A literal of literals, a named constant, or a range over a literal or a setting (`hyper.local_steps`)."""
    if isinstance(node, ast.Tuple | ast.List | ast.Set):
        return all(isinstance(element, ast.Constant) for element in node.elts)
    if isinstance(node, ast.Name):
        return node.id.isupper() and len(node.id) > 1
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "range":
        return all(isinstance(a, ast.Constant) or ast.unparse(a).removeprefix("self.").startswith("hyper.") for a in node.args)
    return False


def test_no_python_loop_over_clients_or_records_in_algorithms() -> None:
    for path in (PACKAGE / "algorithms").glob("*.py"):
        assert loops(ast.parse(path.read_text())) == [], path.name


@pytest.mark.parametrize(
    ("body", "seen"),
    [
        ("for i in range(M): pass", True),
        ("for i in range(objective.clients): pass", True),
        ("for row in update: pass", True),
        ("x = [f(row) for row in update]", True),
        ("x = sum(f(row) for row in update)", True),
        ("x = {k: v for k, v in state.items()}", True),
        ("x = list(map(f, update))", True),
        ("while i < M: pass", True),
        ("for name in ('model', 'control'): pass", False),
        ("for name in NAMES: pass", False),
        ("for step in range(self.hyper.local_steps): pass", False),
    ],
)
def test_loops_are_seen(body: str, seen: bool) -> None:
    assert bool(loops(ast.parse(f"class A:\n    def round(self):\n        {body}"))) == seen


def test_only_objectives_bound_values_that_they_computed_by_rows() -> None:
    """What a row table holds is never marked as client values: algorithms have no business with it."""
    doors = {"Rows", "clip_multiples", "runs_of_either"}
    for path in sorted(PACKAGE.rglob("*.py")):
        names = {
            alias.name
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.ImportFrom) and node.module == "dpfl_cli.privacy.bounded"
            for alias in node.names
        }
        assert not names & doors or path.parent.name == "models", path
