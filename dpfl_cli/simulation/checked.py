"""Which plugins were checked (`dpfl check`): by the content of their files, so that a changed file
was not.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from dpfl_cli.config.component import Component
from dpfl_cli.config.paths import outputs_dir
from dpfl_cli.simulation.run_plan import Plan
from dpfl_cli.simulation.store import json_text, write_atomically


def note_check(component: Component, passed: bool, rows: list[dict[str, Any]]) -> None:
    """Records what became of the check of a plugin's component."""
    path = _file(component)
    path.parent.mkdir(parents=True, exist_ok=True)
    found = {"origin": component.origin, "passed": passed, "checks": rows}
    write_atomically(path, json_text(found).encode())


def unchecked(plan: Plan) -> str | None:
    """What is to be said of a run's plugins that never passed their check; None where all did."""
    missing = []
    for group in ("algorithm", "model", "mechanism"):
        component = getattr(plan, group).component
        if component.origin == "dpfl":
            continue
        try:
            passed = bool(json.loads(_file(component).read_text())["passed"])
        except (OSError, ValueError, KeyError):
            missing.append(f"not checked: dpfl check {component.origin}")
            continue
        if not passed:
            missing.append(f"FAILED its check: dpfl check {component.origin}")
    return "; ".join(dict.fromkeys(missing)) or None


def _file(component: Component) -> Path:
    """Where the check of a component stands: its revision ends in the hash of its file."""
    _, _, digest = str(component.revision).partition("+")
    return outputs_dir() / "checks" / f"{component.group}-{component.name}-{digest}.json"
