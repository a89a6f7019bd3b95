"""Which plugins were checked (`dpfl check`), and how: by the content of their files, so that a
changed file was not, and by the settings that decide which code runs.
"""

import json
from pathlib import Path
from typing import Any

from dpfl_cli.config.component import RECORDS, lookup
from dpfl_cli.config.identity import canonical_json
from dpfl_cli.config.paths import outputs_dir
from dpfl_cli.data.files import write_atomically
from dpfl_cli.simulation.run_plan import Choice, Options, Plan
from dpfl_cli.simulation.stack import shape_of
from dpfl_cli.simulation.store import json_text

UNMEASURED = "not measured"  # as the result of a check
CHECKED = ("algorithm", "model", "mechanism")  # the groups whose components a guarantee rests on
# methods, and how they protect, that try a model: those that need what it provides, and gradients
USERS = {
    ("fedavg", "central", "client"): None,
    ("scaffold", "central", "client"): None,
    ("fednew", "central", "client"): "damped_solve",
    ("fedfc", "central", "client"): "covariance",
    ("fedavg_record", "local", "record"): "clipped_gradient",
    ("adaptdp", "local", "record"): "squared_gradient_norms",
}


def note_check(plan: Plan, group: str, rows: list[Options]) -> None:
    """Records what became of the check of a plugin's component, as this plan uses it: of a model,
    of what its method needs of it.
    """
    found = _known(plan, group) | dict.fromkeys(_ways(plan, group), rows)
    component = getattr(plan, group).component
    path = _file(group, component.name, component.revision)
    write_atomically(path, json_text(found).encode())


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


def failed_since(config: Options) -> list[str]:
    """Lines on a finished run's plugins of which a check has failed, in whatever way it was: the
    run's own guarantee was written before.

    Args:
      config: the run's.
    """
    return [
        f"{group}={config[group]['name']}: dpfl check of the file as it was has FAILED (in one way "
        "of running it at least)"
        for group in CHECKED
        if not all(
            map(passed, _noted(group, config[group]["name"], config[group]["revision"]).values())
        )
    ]


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
                sizes = batch_sizes(plan.algorithm).items()
                own += [f"algorithm.{name}={size}" for name, size in sizes if size is not None]
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
    while they keep their sign; where a method is used, what is protected and from whom, and
    whether clients are drawn; of a model that, which method uses it, and whether on batches. Where
    a method is a plugin's, a model is to be tried by all that need no more than it.
    """
    choice, method = getattr(plan, group), plan.algorithm
    signs = {
        name: _kind(getattr(choice.settings, name)) for name in type(choice.settings).model_fields
    }
    way: list[Any] = [shape_of(choice) | signs]
    drawn = [plan.participation.name] if plan.sampling is not None else []
    if group == "algorithm":
        return [canonical_json([*way, plan.dp.unit, plan.dp.trust, *drawn])]
    if group == "mechanism":
        return [canonical_json([*way, plan.dp.unit])]
    batched = any(size is not None for size in batch_sizes(method).values())
    uses: list[tuple[str, str, bool]] = [(method.name, plan.dp.unit, batched)]
    if method.plugin:
        uses = [
            (name, unit, batches)
            for (name, _, unit), need in USERS.items()
            if need in {None, *method.target.needs}
            for batches in (False, True)[: 1 + bool(batch_options(name))]
        ]
    return [canonical_json([*way, *use, *drawn]) for use in uses]


def batch_options(method: str) -> list[str]:
    """The options of a method that say how many records a batch has."""
    fields = lookup("algorithm", method).settings.model_fields
    return [name for name, field in fields.items() if RECORDS in field.metadata]


def batch_sizes(method: Choice) -> Options:
    """The values of these options; None where no batches are drawn."""
    return {name: getattr(method.settings, name) for name in batch_options(method.name)}


def _kind(value: Any) -> Any:
    """A setting's value, of a number its sign."""
    return f"a number {(value > 0) - (value < 0):+d}" if isinstance(value, float) else value


def _rows(plan: Plan, group: str) -> list[Options] | None:
    """Those of its check as a plan uses it; None where it was not tried so."""
    known = _known(plan, group)
    ways = _ways(plan, group)
    return [row for way in ways for row in known[way]] if known.keys() >= {*ways} else None


def _known(plan: Plan, group: str) -> Options:
    component = getattr(plan, group).component
    return _noted(group, component.name, component.revision)


def _noted(group: str, name: str, revision: Any) -> Options:
    """way -> the rows of its check, of a component's file as it is: its revision ends in the hash
    of its file.
    """
    try:
        found = json.loads(_file(group, name, revision).read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _file(group: str, name: str, revision: Any) -> Path:
    _, _, digest = str(revision).partition("+")
    return outputs_dir() / "checks" / f"{group}-{name}-{digest}.json"
