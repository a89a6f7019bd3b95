"""The shape of the code: imports go one way and in no circle, files and lines stay short, rooms are
packaged.
"""

from __future__ import annotations

import ast
import tomllib
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from tests.faults import FAULTS

PACKAGE = Path(__file__).parent.parent / "dpfl_cli"
# Rooms from the top down: each imports its own and those of later lines.
ORDER = [
    {"cli", "hydra_plugins"},
    {"papers"},
    {"reproduction"},
    {"simulation"},
    {"algorithms"},
    {"models"},  # which know the type of client values; privacy knows nothing of models
    {"privacy"},
    {"data"},
    {"config"},
]
LEVEL = {room: level for level, rooms in enumerate(ORDER) for room in rooms}

LONGEST = 400  # lines of a file
WIDEST = 100  # columns of a line


def dotted(path: Path) -> str:
    """dpfl_cli/data/mnist.py -> dpfl_cli.data.mnist; a package is named as it is imported."""
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


FILES = {dotted(path): path for path in sorted(PACKAGE.rglob("*.py"))}
ROOM = {name: name.split(".")[1] for name in FILES if "." in name}


def imports(tree: ast.AST, name: str, known: set[str]) -> set[str]:
    """Modules among `known` that module `name` imports, however and wherever it is written."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = name.split(".")[: -node.level] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            parts = {f"{module}.{alias.name}" for alias in node.names}
            found |= parts & known or {module}  # a module of a package, or a name in a module
    return (found & known) - {name}


@pytest.mark.parametrize(
    "line",
    [
        "import dpfl_cli.simulation.plan",
        "from dpfl_cli.simulation.plan import Plan",
        "from dpfl_cli.simulation import plan",
        "from ..simulation import plan",
        "from ..simulation.plan import Plan",
        "def f():\n    import dpfl_cli.simulation.plan as p",
        "if TYPE_CHECKING:\n    from dpfl_cli.simulation.plan import Plan",
    ],
)
def test_every_way_of_importing_is_seen(line: str) -> None:
    found = imports(ast.parse(line), "dpfl_cli.data.mnist", set(FILES))
    assert found == {"dpfl_cli.simulation.plan"}


@pytest.fixture(scope="module")
def graph() -> dict[str, set[str]]:
    """Who imports whom; read once, and by nobody who only collects tests."""
    files = FILES.items()
    return {name: imports(ast.parse(path.read_text()), name, set(FILES)) for name, path in files}


def test_imports_go_one_way(graph: dict[str, set[str]]) -> None:
    upwards = [
        f"{name} imports {other}"
        for name, others in graph.items()
        for other in others
        if name in ROOM and other in ROOM and LEVEL[ROOM[name]] > LEVEL[ROOM[other]]
    ]
    assert not upwards


def circle(graph: dict[str, set[str]]) -> list[str]:
    """Modules that import one another in a circle, in order, first and last the same; none: []."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_no_files_form_a_circle(graph: dict[str, set[str]]) -> None:
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"a"}})
    assert circle(graph) == []


def test_files_are_short() -> None:
    long = [name for name, path in FILES.items() if path.read_text().count("\n") > LONGEST]
    assert not long


def test_lines_are_short() -> None:
    wide = [
        f"{name}:{number}"
        for name, path in FILES.items()
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if len(line) > WIDEST
    ]
    assert not wide


def test_every_seeded_fault_is_one_place_of_the_code() -> None:
    stale = [
        (fault.name, fault.file)
        for fault in FAULTS
        if fault.old and (PACKAGE / fault.file).read_text().count(fault.old) != 1
    ]
    assert not stale


def test_every_room_is_packaged() -> None:
    config = tomllib.loads((PACKAGE.parent / "pyproject.toml").read_text())
    packages = set(config["tool"]["setuptools"]["packages"])
    rooms = {name for name, path in FILES.items() if path.name == "__init__.py"}
    assert rooms | {"hydra_plugins", "dpfl_cli.conf"} == packages


def test_a_class_name_means_one_thing() -> None:
    """No two classes have one name, nor a class and a type alias."""
    classes, aliases = list[str](), set[str]()
    for path in FILES.values():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                classes.append(node.name)
            elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                aliases |= {node.targets[0].id}
    assert sorted(classes) == sorted({*classes} - aliases)


def test_no_setting_is_special_by_name() -> None:
    """What only some components have is looked up through what these declare."""
    by_name = [
        f"{name}: {ast.unparse(node)}"
        for name, path in FILES.items()
        if ROOM.get(name) in ("simulation", "cli", "reproduction")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "getattr"
        if "settings" in ast.unparse(node.args[0]) and isinstance(node.args[1], ast.Constant)
    ]
    assert not by_name


def loops(tree: ast.AST) -> list[str]:
    """Python loops over something else than a public list, in `init`, `round` and what else a
    method computes with.
    """
    found = []
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef) or function.name in DECLARING:
            continue
        for node in ast.walk(function):
            if isinstance(node, ast.While):
                found.append(f"{function.name}: while {ast.unparse(node.test)}")
            elif isinstance(node, ast.For | ast.comprehension) and not public(node.iter):
                found.append(
                    f"{function.name}: for {ast.unparse(node.target)} in {ast.unparse(node.iter)}"
                )
            elif (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id in ("map", "filter")
            ):
                found.append(f"{function.name}: {ast.unparse(node)}")
    return found


DECLARING = ("releases", "__init__")  # run once, on settings alone


def public(node: ast.expr) -> bool:
    """A literal of literals, a named constant, or a range over a literal or a setting
    (`hyper.local_steps`).
    """
    if isinstance(node, ast.Tuple | ast.List | ast.Set):
        return all(isinstance(element, ast.Constant) for element in node.elts)
    if isinstance(node, ast.Name):
        return node.id.isupper() and len(node.id) > 1
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "range":
        return all(
            isinstance(a, ast.Constant) or ast.unparse(a).removeprefix("self.").startswith("hyper.")
            for a in node.args
        )
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
