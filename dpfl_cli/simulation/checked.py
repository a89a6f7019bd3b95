"""Which plugins were checked (`dpfl check`), and how: by the content of their files, so that a
changed file was not, and by the settings that decide which code runs.
"""

import json
from pathlib import Path
from typing import Any

from dpfl_cli.config.identity import canonical_json
from dpfl_cli.config.paths import outputs_dir
from dpfl_cli.data.files import write_atomically
from dpfl_cli.simulation.run_plan import Options, Plan
from dpfl_cli.simulation.stack import shape_of
from dpfl_cli.simulation.store import json_text

UNMEASURED = "not measured"  # as the result of a check
CHECKED = ("algorithm", "model", "mechanism")  # the groups whose components a guarantee rests on


def note_check(plan: Plan, group: str, rows: list[Options]) -> None:
    """Records what became of the check of a plugin's component, as this plan uses it: of a model,
    of what its method needs of it.
    """
    found = _known(plan, group) | dict.fromkeys(_ways(plan, group), rows)
    write_atomically(_file(plan, group), json_text(found).encode())


def passed(rows: list[Options]) -> bool:
    """Whether nothing failed; what could not be measured is said apart."""
    return not any(row["result"] == "FAIL" for row in rows)


def failed_check(plan: Plan) -> str | None:
    """What is to be said where a plugin failed its check as this run uses it."""
    failed = [
        f"FAILED its check: dpfl check {choice.component.origin}"
        for group in CHECKED
        if (choice := getattr(plan, group)).plugin
        and not all(passed(_known(plan, group).get(way, [])) for way in _ways(plan, group))
    ]
    return "; ".join(dict.fromkeys(failed)) or None


def unchecked(plan: Plan) -> str | None:
    """What is to be said of a run's plugins that never passed their check as this run uses them;
    None where all did.
    """
    missing = []
    for group in CHECKED:
        choice = getattr(plan, group)
        if not choice.plugin:
            continue
        rows, again = _rows(plan, group), f"dpfl check {choice.component.origin}"
        if not _known(plan, group):
            missing.append(f"not checked: {again}")
        elif rows is None:
            own = [
                f"{group}.{name}={value}"
                for name, field in type(choice.settings).model_fields.items()
                if _kind(value := getattr(choice.settings, name)) != _kind(field.default)
            ]
            if group == "model" and not plan.algorithm.plugin:
                again += f" algorithm={plan.algorithm.name}"
            if plan.sampling is not None:
                own.append(f"participation={plan.participation.name}")
            missing.append(f"not checked with these settings: {' '.join([again, *own])}")
        elif passed(rows) and UNMEASURED in (row["result"] for row in rows):
            left = [row["check"] for row in rows if row["result"] == UNMEASURED]
            what = " and ".join(dict.fromkeys(left))
            missing.append(f"checked, but for its {what}, which is not measured: {again}")
    return "; ".join(dict.fromkeys(missing)) or None


def _ways(plan: Plan, group: str) -> list[str]:
    """How a plan uses a component: its settings, but for numbers, under which the same code runs
    while they keep their sign; what is protected, and where a method is used, from whom, and
    whether clients are drawn; of a model each thing that the method needs beside gradients.
    """
    choice = getattr(plan, group)
    signs = {
        name: _kind(getattr(choice.settings, name)) for name in type(choice.settings).model_fields
    }
    way: list[Any] = [shape_of(choice) | signs, plan.dp.unit]
    if group == "algorithm":
        drawn = [plan.participation.name] if plan.sampling is not None else []
        return [canonical_json([*way, plan.dp.trust, *drawn])]
    needs = sorted(plan.algorithm.target.needs) if group == "model" else []
    return [canonical_json([*way, need]) for need in needs or [None]]


def _kind(value: Any) -> Any:
    """A setting's value, of a number its sign."""
    return f"a number {(value > 0) - (value < 0):+d}" if isinstance(value, float) else value


def _rows(plan: Plan, group: str) -> list[Options] | None:
    """Those of its check as a plan uses it; None where it was not tried so."""
    known = _known(plan, group)
    ways = _ways(plan, group)
    return [row for way in ways for row in known[way]] if known.keys() >= {*ways} else None


def _known(plan: Plan, group: str) -> Options:
    """way -> the rows of its check, of a component's file as it is: its revision ends in the hash
    of its file.
    """
    try:
        found = json.loads(_file(plan, group).read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _file(plan: Plan, group: str) -> Path:
    component = getattr(plan, group).component
    _, _, digest = str(component.revision).partition("+")
    return outputs_dir() / "checks" / f"{group}-{component.name}-{digest}.json"
