"""`dpfl calibrate OVERRIDES`: the noise with which a run meets dp.epsilon and dp.delta, without running it."""

from __future__ import annotations

import argparse

from dpfl_cli.cli.plugins import load_plugins
from dpfl_cli.config.compose import compose_config
from dpfl_cli.config.errors import ConfigError


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("overrides", nargs="*", metavar="OVERRIDE", help="as of `dpfl run`; dp.epsilon is needed")
    parser.add_argument("--plugin", action="append", default=[], metavar="FILE", help="a Python file with your own components")
    parser.epilog = "example: dpfl calibrate algorithm=fedexp dp=cdp dp.epsilon=8 dp.delta=1e-5 rounds=50"


def execute(args: argparse.Namespace) -> int:
    from dpfl_cli.simulation.plan import make_plan
    from dpfl_cli.simulation.results import privacy_report

    load_plugins(args.plugin)
    config = compose_config(args.overrides)
    if config["dp"]["epsilon"] is None:
        raise ConfigError("calibrate: no target; add dp.epsilon=VALUE (and dp.delta=VALUE)")
    plan = make_plan(config)
    field = plan.mechanism.target.noise_field
    report = privacy_report(plan, plan.ledger())
    print(f"mechanism.{field}={getattr(plan.mechanism.settings, field)!r}")
    print(
        f"  mechanism={plan.mechanism.name}: epsilon {report['epsilon']:.6f} at delta {plan.dp.delta:g} ({plan.accountant.name}, "
        f"per {plan.dp.unit}, {plan.dp.relation}), {report['releases']} releases over {plan.rounds} rounds; tuning not included"
    )
    for entry in plan.ledger().entries:
        print(f"  release {entry.name}: {entry.count} x {entry.kind}, parameter {entry.parameter}")
    return 0
