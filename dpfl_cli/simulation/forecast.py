"""What executing plans would do and cost, without running any of them."""

import contextlib
import statistics
from collections.abc import Sequence

from dpfl_cli.config.errors import StoreError
from dpfl_cli.config.identity import canonical_json
from dpfl_cli.simulation.grouping import bytes_per_run, fitting, stacks
from dpfl_cli.simulation.run_plan import Options, Plan
from dpfl_cli.simulation.store import RunStore

NEWEST = 200  # finished runs whose times are looked at


def forecast(plans: Sequence[Plan], store: RunStore) -> list[str]:
    """What `execute` would do with these plans, as lines of text."""
    distinct = {plan.id: plan for plan in plans}
    missing = [
        plan for plan in distinct.values() if plan.runtime.force or store.finished(plan.id) is None
    ]
    started = sum(store.checkpoint_file(plan.id, plan.runtime.force).is_file() for plan in missing)
    lines = [
        f"runs: {len(distinct)} (finished {len(distinct) - len(missing)}, to do {len(missing)}"
        + (f", from a checkpoint {started})" if started else ")")
    ]
    if not missing:
        return lines
    together = stacks(missing)
    largest = max(
        min(len(stack), fitting(stack[0], after_first)) * bytes_per_run(stack[0], after_first)
        for stack in together
        for after_first in (False, True)
    )
    lines.append(
        f"stacks: {len(together)} (runs in the largest {max(map(len, together))}); "
        f"memory: at most {_bytes(largest)} at once, and the data"
    )
    times: dict[str, list[float]] = {}  # kind of run -> seconds of a round of finished ones
    for record in store.all()[-NEWEST:]:
        with contextlib.suppress(StoreError):  # a damaged one
            if record.status == "done":
                times.setdefault(_kind(record.config), []).append(_round_seconds(record.result))
    kinds = [(plan.last_round, _kind(plan.config)) for plan in missing]
    timed = [rounds * statistics.median(times[kind]) for rounds, kind in kinds if kind in times]
    cost = [f"{sum(plan.last_round for plan in missing)} rounds"]
    if timed:
        cost.append(f"about {duration_text(sum(timed))} by the times of finished runs like these")
    if len(timed) < len(missing):
        cost.append(f"no finished run is like {len(missing) - len(timed)} of the runs")
    return [*lines, f"cost: {', '.join(cost)}"]


def _round_seconds(result: Options) -> float:
    """Seconds of one round of a finished run, without those until its first evaluated one where
    more came: what is built or read once, is then.
    """
    rounds, seconds = result["rounds"], result["timing"]["seconds"]
    until = {int(number): one for number, one in result["timing"].get("compute", {}).items()}
    first = min((number for number in until if 0 < number < rounds), default=0)
    begun = until[first] if first else 0.0
    return float((seconds - begun) / max(rounds - first, 1))


def _kind(config: Options) -> str:
    """Runs of one kind take about the same time a round."""
    method = {k: v for k, v in config["algorithm"].items() if not isinstance(v, float)}
    return canonical_json(
        [method, config["dataset"]["name"], config["partitioner"], config["model"]]
    )


def _bytes(count: float) -> str:
    """
    >>> _bytes(1.67e3 * 2**20), _bytes(8.38e3 * 2**30)
    ('1,670 MiB', '8,380 GiB')
    """
    return f"{count / 2**20:,.0f} MiB" if count < 2**34 else f"{count / 2**30:,.0f} GiB"


def duration_text(seconds: float) -> str:
    """
    >>> duration_text(1), duration_text(300), duration_text(9000)
    ('1 s', '5 min', '2.5 h')
    """
    if seconds < 90:
        return f"{max(seconds, 1):.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
