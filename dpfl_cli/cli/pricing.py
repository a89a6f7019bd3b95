"""What commands about runs share: a plan from overrides, and the lines of a ledger."""

import argparse
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from dpfl_cli.config.errors import ConfigError
from dpfl_cli.simulation.plugins import add_plugin_option, load_plugins

if TYPE_CHECKING:
    from dpfl_cli.privacy.accountants import PrivacyCost
    from dpfl_cli.privacy.ledger import LedgerEntry
    from dpfl_cli.simulation.run_plan import Plan
    from dpfl_cli.simulation.store import RunRecord


def add_run_arguments(parser: argparse.ArgumentParser) -> None:
    """OVERRIDE ... and --plugin, of a command about a run that is not run."""
    parser.add_argument("overrides", nargs="*", metavar="OVERRIDE", help="as of `dpfl run`")
    add_plugin_option(parser)


def plan_of(overrides: Sequence[str], plugins: Sequence[str]) -> "Plan":
    """The plan of `dpfl run OVERRIDES`.

    Raises:
      ConfigError: the run cannot be planned.
    """
    from dpfl_cli.config.compose import compose_config
    from dpfl_cli.simulation.plan import make_plan

    load_plugins(plugins)
    return make_plan(compose_config(overrides))


def private_plan(overrides: Sequence[str], plugins: Sequence[str]) -> "Plan":
    """The plan of a run with noise; a ConfigError where there is none."""
    plan = plan_of(overrides, plugins)
    if plan.dp.trust == "none":
        raise ConfigError("calibrate: dp=none adds no noise; choose dp=ldp or dp=cdp, say")
    return plan


def noise_of(plan: "Plan") -> dict[str, Any]:
    """The option of a plan's mechanism that says how much noise there is -> its value, if it has
    one.
    """
    field = plan.mechanism.target.noise_field
    return {f"mechanism.{field}": getattr(plan.mechanism.settings, field)} if field else {}


def privacy_lines(plan: "Plan", report: dict[str, Any]) -> list[str]:
    """What a planned run's releases cost, and what ends them early or spares them, by its
    `privacy_report`.
    """
    from dpfl_cli.cli.tables import epsilon_text

    dp = plan.dp
    if dp.trust == "none":
        return ["nothing is private"]
    lines = [
        f"mechanism={plan.mechanism.name}: epsilon {epsilon_text(report)} at delta {dp.delta:g} "
        f"({plan.accountant.name}, per {dp.unit}, {dp.relation}), "
        f"{report['releases']} releases over {plan.rounds} rounds; tuning not included"
    ]
    if "stopped" in report:
        target = "" if dp.epsilon is None else f"; dp.epsilon={dp.epsilon:g} sets its noise"
        lines.append(f"the run ends {report['stopped']}{target}")
    drawn = (key for key in ("participation", "batches") if key in report)
    lines += [f"{key}: {report[key]}" for key in drawn]
    return lines


def prices_of(records: "Sequence[RunRecord]", delta: float | None) -> "list[PrivacyCost]":
    """What runs released, together, under every accountant; without an epsilon where a run itself
    has none: it failed, and when may tell of the data, or nothing in it is private.

    Args:
      delta: None for the runs' own.

    Raises:
      ConfigError: the runs are not of the same data, have the same noise, or several deltas.
    """
    from dpfl_cli.privacy.accountants import price_all
    from dpfl_cli.privacy.ledger import together
    from dpfl_cli.simulation.plan import load_components

    load_components()
    records = distinct(records)
    _check_together(records)
    reports = [one.result["privacy"] for one in records]
    deltas = {one["delta"] for one in reports} if delta is None else {delta}
    if len(deltas) > 1:
        raise ConfigError("account: the runs have several deltas: say at which, --delta 1e-5")
    ledger = records[0].ledger
    if len(records) > 1:
        ledger = together({f"{k}:{one.id}": one.ledger for k, one in enumerate(records)})
    found = price_all(ledger, deltas.pop())
    for record, privacy in zip(records, reports, strict=True):
        if record.status == "failed" or privacy["trust"] == "none":
            reason = privacy["epsilon_reason"]
            return [replace(one, epsilon=None, reason=reason) for one in found]
    return found


def distinct(records: "Iterable[RunRecord]") -> "list[RunRecord]":
    """Each run once: of one id there are two where noise is secret and they were made apart."""
    return [*{(one.id, one.result["files"]["metrics.csv"]): one for one in records}.values()]


def _check_together(records: "Sequence[RunRecord]") -> None:
    """Refuses runs whose releases do not compose: a unit of one is not the same in another, or
    their noise is not independent.
    """

    def of(record: "RunRecord") -> tuple[Any, ...]:
        data, seed = record.result["data"], record.result["seed"]
        units = record.result["files"].get("partition.npz")  # of records as the options order them
        return record.config["dataset"], data["sha256"] or seed, units

    if not records:
        raise ConfigError("account: name a run")
    first = records[0]
    seeds = dict[int, str]()
    for record in records:
        if len(records) > 1 and record.result["privacy"]["trust"] == "none":
            raise ConfigError(
                f"account: {record.id} is not private (dp=none): no epsilon holds for it and others"
            )
        both = f"account: {first.id} and {record.id}"
        if of(record) != of(first):
            raise ConfigError(
                f"{both}: not the same records, dealt to the same clients, so that their epsilons "
                "do not add up; partitioner.seed=0, say, deals alike whatever the seed is (of data "
                "that are made up by the seed, and of other options of dataset, nothing does)"
            )
        if record.config["dp"].get("noise") == "secret":
            continue
        if (other := seeds.setdefault(record.result["seed"], record.id)) != record.id:
            raise ConfigError(
                f"account: {other} and {record.id}: of one seed, and so of the same noise, which "
                "somebody who sees both takes out: no epsilon holds for the two; give each a seed "
                "of its own, or dp.noise=secret"
            )


def release_line(entry: "LedgerEntry") -> str:
    """One entry of a ledger: what is released how often, and with what noise."""
    from dpfl_cli.privacy.kinds import KINDS

    value = entry.parameter
    often = f"{entry.count} x {entry.kind} per {entry.scope}"
    what = f"release {entry.name}: {often}"
    if value is not None:
        shown = f"array of {len(value)}" if isinstance(value, tuple | list) else f"{value:.7g}"
        known = KINDS.get(entry.kind)  # of a plugin, which is not loaded here
        what += f", {known.parameter if known else 'parameter'} {shown}"
    # of a run that is planned only, a sensitivity can be unknown as yet
    return what if entry.sensitivity is None else f"{what}, sensitivity {entry.sensitivity}"
