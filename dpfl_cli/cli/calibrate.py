"""`dpfl calibrate OVERRIDES`: the noise with which a run meets dp.epsilon and dp.delta, without running it."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from dpfl_cli.cli.plugins import load_plugins
from dpfl_cli.config.compose import compose_config
from dpfl_cli.config.errors import ConfigError

if TYPE_CHECKING:
    from dpfl_cli.privacy.ledger import LedgerEntry
    from dpfl_cli.simulation.plan import Plan


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("overrides", nargs="*", metavar="OVERRIDE", help="as of `dpfl run`; dp.epsilon is needed")
    parser.add_argument("--plugin", action="append", default=[], metavar="FILE", help="a Python file with your own components")
    parser.epilog = "example: dpfl calibrate algorithm=fedexp dp=cdp dp.epsilon=8 dp.delta=1e-5 rounds=50"


def execute(args: argparse.Namespace) -> int:
    from dpfl_cli.privacy.nominal import proved_from
    from dpfl_cli.simulation.plan import make_plan
    from dpfl_cli.simulation.results import privacy_report

    load_plugins(args.plugin)
    config = compose_config(args.overrides)
    if config["dp"]["epsilon"] is None:
        raise ConfigError("calibrate: no target; add dp.epsilon=VALUE (and dp.delta=VALUE)")
    plan = make_plan(config)
    assert plan.dp.epsilon is not None
    ledger = plan.ledger()
    field = plan.mechanism.target.noise_field
    report = privacy_report(plan, ledger)
    print(f"mechanism.{field}={getattr(plan.mechanism.settings, field)!r}")
    if report["epsilon"] is None:
        worth = f"no epsilon ({report['epsilon_reason']})"
    else:
        worth = f"epsilon {report['epsilon']:.6f}" if report["epsilon"] < 1e6 else f"epsilon {report['epsilon']:.6e}"
        worth += " (vacuous)" if report["vacuous"] else ""
    print(
        f"  mechanism={plan.mechanism.name}: {worth} at delta {plan.dp.delta:g} ({plan.accountant.name}, "
        f"per {plan.dp.unit}, {plan.dp.relation}), {report['releases']} releases over {plan.rounds} rounds; tuning not included"
    )
    if "calibration" in report:
        known = f"; lemma1 is proved from v={proved_from(plan.dp.epsilon, plan.dp.delta)} on" if plan.dp.v is not None else ""
        print(f"  noise by {report['calibration']}; dp.epsilon={plan.dp.epsilon:g}{known}")
    for entry in ledger.entries:
        print(f"  release {entry.name}: {entry.count} x {entry.kind}, parameter {entry.parameter}{_std(plan, entry)}")
    return 0


def _std(plan: Plan, entry: LedgerEntry) -> str:
    """The standard deviation of the noise that a multiplier means, where contributions are clipped to one number."""
    clip_norm = getattr(plan.algorithm.settings, "clip_norm", None)
    one = entry.kind == "gaussian" and entry.unit == "client" and entry.shape == "vector" and isinstance(entry.parameter, float)
    if not one or clip_norm is None:
        return ""
    assert isinstance(entry.parameter, float)
    sensitivity = clip_norm * (2 if entry.relation == "replace_one" else 1)
    where, of = ("message", 1) if entry.scope == "client" else ("mean", plan.clients)
    return f", std {entry.parameter * sensitivity / of:.6g} in each coordinate of the {where}"
