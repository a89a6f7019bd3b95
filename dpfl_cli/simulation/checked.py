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
    """Records what became of the check of a plugin's component, as this plan uses it."""
    path = _file(plan, group)
    write_atomically(path, json_text({**_known(plan, group), _way(plan, group): rows}).encode())


def passed(rows: list[Options]) -> bool:
    """Whether nothing failed; what could not be measured is said apart."""
    return not any(row["result"] == "FAIL" for row in rows)


def failed_check(plan: Plan) -> str | None:
    """What is to be said where a plugin failed its check as this run uses it."""
    failed = [
        f"FAILED its check: dpfl check {choice.component.origin}"
        for group in CHECKED
        if (choice := getattr(plan, group)).plugin
        and not passed(_known(plan, group).get(_way(plan, group), []))
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
        known, again = _known(plan, group), f"dpfl check {choice.component.origin}"
        rows = known.get(_way(plan, group))
        if not known:
            missing.append(f"not checked: {again}")
        elif rows is None:
            settings, fields = shape_of(choice), type(choice.settings).model_fields
            own = [
                f"{group}.{name}={settings[name]}"
                for name, field in fields.items()
                if settings[name] not in ("number", field.default)
            ]
            if plan.sampling is not None:
                own.append(f"participation={plan.participation.name}")
            missing.append(f"not checked with these settings: {' '.join([again, *own])}")
        elif passed(rows) and UNMEASURED in (row["result"] for row in rows):
            left = [row["check"] for row in rows if row["result"] == UNMEASURED]
            what = " and ".join(dict.fromkeys(left))
            missing.append(f"checked, but for its {what}, which is not measured: {again}")
    return "; ".join(dict.fromkeys(missing)) or None


def _way(plan: Plan, group: str) -> str:
    """How a plan uses a component: its settings, but for numbers, under which the same code runs;
    what is protected, and where a method is used, from whom, and whether clients are drawn.
    """
    trust = plan.dp.trust if group == "algorithm" else None
    way: list[Any] = [shape_of(getattr(plan, group)), plan.dp.unit, trust]
    if group == "algorithm" and plan.sampling is not None:
        way.append(plan.participation.name)
    return canonical_json(way)


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
