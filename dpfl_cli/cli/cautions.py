"""What has to be said beside numbers of runs that are compared."""

from collections.abc import Iterator, Sequence
from math import inf, nan

from dpfl_cli.config.component import UNLIMITED, components
from dpfl_cli.simulation.store import RunRecord

LOSSES = ("relative_distance", "train_loss")  # the first that a run has is looked at


def cautions(records: Sequence[RunRecord]) -> list[str]:
    """Lines on distinct runs: those that noise, or steps, have spoilt, and unlike limits."""
    found = _repairs, _worse, _trivial, _limits, _unlike, _clipped
    return [line for lines in found for line in lines(records)]


def _unlike(records: Sequence[RunRecord]) -> Iterator[str]:
    """That a promise is weaker at an equal epsilon, which may look like a better method."""
    reports = [record.result["privacy"] for record in records]
    relations = {one["relation"] for one in reports if one["trust"] != "none"}
    if len(relations) > 1 and "replace_one" in relations:
        weaker = " and ".join(sorted(relations - {"replace_one"}))
        yield (
            f"Runs differ in dp.relation: at an equal epsilon {weaker} promises less than "
            "replace_one."
        )


def _clipped(records: Sequence[RunRecord]) -> Iterator[str]:
    """That what stands for no privacy was clipped all the same."""
    free = [one for one in records if one.result["privacy"]["trust"] == "none"]
    limits = {one.config["algorithm"].get("clip_norm") for one in free} - {None, inf}
    if limits:
        shown = ", ".join(f"{limit:g}" for limit in sorted(limits))
        yield (
            f"Runs without privacy were clipped too (algorithm.clip_norm={shown}); for what the "
            "method does without, algorithm.clip_norm=null."
        )


def _limits(records: Sequence[RunRecord]) -> Iterator[str]:
    """That methods which are compared have unlike limits (clip norms), which may decide between
    them.
    """
    from dpfl_cli.simulation.plan import load_components

    methods = {record.config["algorithm"]["name"] for record in records}
    if len(methods) < 2:
        return
    load_components()
    known = components("algorithm")  # a plugin may not be there any more
    found: dict[str, dict[str, set[float]]] = {}
    for settings in [record.config["algorithm"] for record in records]:
        method = settings["name"]
        fields = known[method].settings.model_fields if method in known else {}
        for name in [name for name, field in fields.items() if UNLIMITED in field.metadata]:
            if settings.get(name) is not None:
                found.setdefault(name, {}).setdefault(method, set()).add(settings[name])
    for name, limits in found.items():
        if len({frozenset(values) for values in limits.values()}) > 1:
            each = (
                f"{' '.join(f'{value:g}' for value in sorted(values))} of {method}"
                for method, values in limits.items()
            )
            yield f"Methods differ in algorithm.{name}: {', '.join(each)}."


def _repairs(records: Sequence[RunRecord]) -> Iterator[str]:
    """That updates counted as zero because they were not finite: such a run ends like any other."""
    mended = sum(any(row.get("repaired", 0) > 0 for row in record.rows) for record in records)
    if mended:
        which = "This run" if len(records) == 1 else f"{mended} of {len(records)} runs"
        yield (
            f"{which} replaced updates that were not finite by zero, seen at evaluated rounds "
            "(column repaired of metrics.csv)."
        )


def _worse(records: Sequence[RunRecord]) -> Iterator[str]:
    """That runs ended further from what they look for than they began, as they do where noise is
    too large, or steps are: nothing else says so beside one number.
    """
    done = [record for record in records if record.status == "done"]
    quiet = all(record.result["privacy"]["trust"] == "none" for record in done)
    ways: dict[str, list[tuple[float, float]]] = {}  # by the first of LOSSES that a run has
    for rows in (record.rows for record in done):
        name = next((one for one in LOSSES if one in rows[0]), None)
        if name:
            ways.setdefault(name, []).append((rows[0][name], rows[-1].get(name, nan)))
    for name, both in ways.items():
        worse = [(first, last) for first, last in both if not last <= first]  # or no number
        if worse:
            first, last = max(worse, key=lambda way: way[1] - way[0])
            which = "" if len(both) == 1 else f" in {len(worse)} of {len(both)} runs"
            why = "too large steps" if quiet else "too much noise, or too large steps"
            yield f"{name} ends above where it began{which} ({first:.4g}, then {last:.4g}): {why}."


def _trivial(records: Sequence[RunRecord]) -> Iterator[str]:
    """That runs end no better than one answer for all test records, which accuracy alone hides."""
    known = [
        (record.rows[-1]["accuracy"], share)
        for record in records
        if record.status == "done" and (share := record.result["data"].get("largest_class"))
        if "accuracy" in record.rows[-1]
    ]
    poor = [share for accuracy, share in known if accuracy <= share]
    if poor:
        which = "" if len(known) == 1 else f" in {len(poor)} of {len(known)} runs"
        share = " to ".join(dict.fromkeys(f"{one:.2f}" for one in (min(poor), max(poor))))
        yield (
            f"accuracy ends no higher{which} than that of one answer for all test records, their "
            f"largest class ({share} %)."
        )
