"""Which plugins were checked (`dpfl check`), and how: by the content of their files, so that a
changed file was not, and by the settings that decide which code runs.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpfl_cli.config.component import RECORDS, lookup
from dpfl_cli.config.identity import canonical_json
from dpfl_cli.config.paths import outputs_dir
from dpfl_cli.data.files import write_atomically
from dpfl_cli.simulation.store import RunRecord, json_text

if TYPE_CHECKING:  # commands that only look import this file, and no torch
    from dpfl_cli.simulation.run_plan import Choice, Options, Plan

UNMEASURED, NOT_REACHED = "not measured", "not reached"  # as the result of a check
FAILED = "FAILED (in one way of running it at least)"
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
    of what its method needs of it. What has failed once stays so, whatever another trial finds, but
    for a trial that an error has ended.
    """
    ways, method = _ways(plan, group), plan.algorithm
    if group == "model" and not method.plugin:
        sizes = (getattr(method.settings, name) for name in batch_options(method.name))
        batches = any(size is not None for size in sizes)
        ways.append(  # in short: whatever else the method was set to
            canonical_json([_shape(plan.model), plan.dp.unit, method.name, batches, *_drawn(plan)])
        )
    named = getattr(plan, group).identity()
    known = _noted(group, named)
    failed = {
        way
        for way, of in known.items()
        if not passed(of) and all(row["result"] != NOT_REACHED for row in of)
    }
    fresh = {way: rows for way in ways if way not in failed or not passed(rows)}
    write_atomically(_file(group, named), json_text(known | fresh).encode())


def passed(rows: list[Options]) -> bool:
    """Whether nothing failed; what could not be measured is said apart."""
    return all(row["result"] != "FAIL" for row in rows)


def failed_check(plan: Plan) -> str | None:
    """What is to be said where a plugin failed its check as this run uses it."""
    failed = [
        f"FAILED its check: dpfl check {choice.component.origin}"
        for group in CHECKED
        if (choice := getattr(plan, group)).plugin
        and not all(
            passed(_noted(group, choice.identity()).get(way, [])) for way in _ways(plan, group)
        )
    ]
    return "; ".join(dict.fromkeys(failed)) or None


def checks_since(record: RunRecord) -> list[str]:
    """Lines on a finished run's plugins that were checked, as their files were, since then or with
    other settings: its own guarantee says nothing of that. A check has failed, in whatever way it
    was.
    """
    lines, config = [], record.config
    for group in CHECKED:
        if "+" not in str(config.get(group, {}).get("revision")):  # of no file of somebody's own
            continue
        known = _noted(group, config[group])
        since = f"{group}={config[group]['name']}: dpfl check of the file as it was has"
        if not all(map(passed, known.values())):
            lines.append(f"{since} {FAILED}")
        elif known and "not checked" in record.result["privacy"]["guarantee"]:
            which = "with some settings; the same dpfl run says whether with its own"
            lines.append(f"{since} passed, {which}")
    return lines


def failed_since(record: RunRecord) -> bool:
    """Whether a finished run's plugin failed its check, whatever its guarantee said before."""
    return any(line.endswith(FAILED) for line in checks_since(record))


def unchecked(plan: Plan) -> str | None:
    """What is to be said of a run's plugins that never passed their check as this run uses them;
    None where all did.
    """
    missing = []
    for group in CHECKED:
        choice = getattr(plan, group)
        if not choice.plugin:
            continue
        known, ways = _noted(group, choice.identity()), _ways(plan, group)
        rows = [row for way in ways for row in known.get(way, [])]
        left = [row["check"] for row in rows if row["result"] == UNMEASURED]
        again = f"dpfl check {choice.component.origin}"
        if not known:
            missing.append(f"not checked: {again}")
        elif not known.keys() >= {*ways}:
            own = [
                f"{group}.{name}={value}"
                for name, field in type(choice.settings).model_fields.items()
                if _kind(value := getattr(choice.settings, name)) != _kind(field.default)
            ]
            if group == "model" and not plan.algorithm.plugin:
                again += f" algorithm={plan.algorithm.name}"
                values, sizes = plan.algorithm.settings, batch_options(plan.algorithm.name)
                own += [
                    f"algorithm.{name}={value}"
                    for name, value in values
                    if isinstance(value, str) or (name in sizes and value is not None)
                ]
            if group == "mechanism":
                own.append(f"dp.relation={plan.dp.relation}")
            if plan.sampling is not None:
                own.append(f"participation={plan.participation.name}")
            missing.append(f"not checked with these settings: {' '.join([again, *own])}")
        elif left and passed(rows):
            what = " and ".join(dict.fromkeys(left))
            missing.append(f"checked, but for its {what}, which is not measured: {again}")
    return "; ".join(dict.fromkeys(missing)) or None


def _ways(plan: Plan, group: str) -> list[str]:
    """How a plan uses a component: its settings, but for numbers, under which the same code runs
    while they keep their sign; what is protected; of a method, or a mechanism, from whom; whether
    clients are drawn; of a mechanism what neighbours are, for which its noise may be wrong; of a
    model the method that uses it, and how. Where that is a plugin's, a model is to be tried by all
    that try it.
    """
    choice, method = getattr(plan, group), plan.algorithm
    way: list[Any] = [_shape(choice), plan.dp.unit]
    drawn = _drawn(plan)
    if group == "algorithm":
        return [canonical_json([*way, plan.dp.trust, *drawn])]
    if group == "mechanism":
        return [canonical_json([*way, plan.dp.trust, plan.dp.relation, *drawn])]
    if not method.plugin:
        return [canonical_json([*way, _coarse(method), *drawn])]
    provided = {None, *choice.target.provides}
    return [
        canonical_json([_shape(choice), unit, name, batches, *drawn])  # as `note_check` has it
        for (name, _, unit), need in USERS.items()
        if need in provided and (not drawn or lookup("algorithm", name).target.away)
        for batches in (False, True)[: 1 + bool(batch_options(name))]
    ]


def _drawn(plan: Plan) -> list[str]:
    return [plan.participation.name] if plan.sampling is not None else []


def _coarse(method: Choice) -> Options:
    """A method and its settings, but for numbers: of whole ones whether they are more than 1."""
    found = _shape(method)
    return found | {
        name: f"{'more than ' * (value > 1)}1"
        for name, value in found.items()
        if type(value) is int and name != "revision"
    }


def _shape(choice: Choice) -> Options:
    """A component, its settings, and of numbers their signs."""
    kinds = {name: _kind(value) for name, value in choice.settings}
    return {"name": choice.name, "revision": choice.component.revision, **kinds}


def batch_options(method: str) -> list[str]:
    """The options of a method that say how many records a batch has."""
    fields = lookup("algorithm", method).settings.model_fields
    return [name for name, field in fields.items() if RECORDS in field.metadata]


def _kind(value: Any) -> Any:
    """A setting's value, of a number its sign."""
    return f"a number {(value > 0) - (value < 0):+d}" if isinstance(value, float) else value


def _noted(group: str, chosen: Options) -> Options:
    """way -> the rows of its check, of a component's file as it is: its revision ends in the hash
    of its file.
    """
    try:
        found = json.loads(_file(group, chosen).read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _file(group: str, chosen: Options) -> Path:
    _, _, digest = str(chosen["revision"]).partition("+")
    return outputs_dir() / "checks" / f"{group}-{chosen['name']}-{digest}.json"
