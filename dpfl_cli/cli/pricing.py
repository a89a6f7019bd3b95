"""What commands about runs share: a plan from overrides, and the lines of a ledger."""

import argparse
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from dpfl_cli.config.errors import ConfigError
from dpfl_cli.simulation.plugins import add_plugin_option, load_plugins

if TYPE_CHECKING:
    from dpfl_cli.cli.tables import Report
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


def privacy_lines(plan: "Plan", report: "Report") -> list[str]:
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


def prices_of(record: "RunRecord", delta: float | None) -> "list[PrivacyCost]":
    """A run's ledger under every accountant; without an epsilon where the run itself has none: it
    failed, and when may tell of the data, or nothing in it is private.

    Args:
      delta: None for the run's own.
    """
    from dpfl_cli.privacy.accountants import price_all
    from dpfl_cli.simulation.plan import load_components

    load_components()
    privacy = record.result["privacy"]
    found = price_all(record.ledger, privacy["delta"] if delta is None else delta)
    if record.status != "failed" and privacy["trust"] != "none":
        return found
    return [replace(one, epsilon=None, reason=privacy["epsilon_reason"]) for one in found]


def release_line(entry: "LedgerEntry") -> str:
    """One entry of a ledger: what is released how often, and with what noise."""
    value = entry.parameter
    shown = f"array of {len(value)}" if isinstance(value, tuple | list) else str(value)
    often = f"{entry.count} x {entry.kind} per {entry.scope}"
    what = f"release {entry.name}: {often}, parameter {shown}"
    # of a run that is planned only, a sensitivity can be unknown as yet
    return what if entry.sensitivity is None else f"{what}, sensitivity {entry.sensitivity}"
