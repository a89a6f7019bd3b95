"""`dpfl calibrate OVERRIDES`: the noise with which a run meets dp.epsilon and dp.delta, without
running it.
"""

import argparse

from dpfl_cli.cli.pricing import add_run_arguments, plan_for_target, release_line
from dpfl_cli.cli.tables import epsilon_text
from dpfl_cli.privacy.nominal import proved_from


def configure(parser: argparse.ArgumentParser) -> None:
    add_run_arguments(parser)
    parser.epilog = (
        "example: dpfl calibrate algorithm=fedexp dp=cdp dp.epsilon=8 dp.delta=1e-5 rounds=50"
    )


def execute(args: argparse.Namespace) -> int:
    from dpfl_cli.simulation.results import privacy_report

    plan = plan_for_target(args.overrides, args.plugin)
    dp, ledger = plan.dp, plan.ledger()
    assert dp.epsilon is not None
    field = plan.mechanism.target.noise_field
    report = privacy_report(plan, ledger)
    print(f"mechanism.{field}={getattr(plan.mechanism.settings, field)!r}")
    print(
        f"  mechanism={plan.mechanism.name}: epsilon {epsilon_text(report)} at delta {dp.delta:g} "
        f"({plan.accountant.name}, per {dp.unit}, {dp.relation}), "
        f"{report['releases']} releases over {plan.rounds} rounds; tuning not included"
    )
    if "stopped" in report:
        print(f"  the run ends {report['stopped']}; dp.epsilon={dp.epsilon:g} sets its noise")
    if "participation" in report:
        print(f"  participation: {report['participation']}")
    if "calibration" in report:
        enough = proved_from(dp.epsilon, dp.delta)
        known = "" if dp.v is None else f"; lemma1 is proved from v={enough} on"
        print(f"  noise by {report['calibration']}; dp.epsilon={dp.epsilon:g}{known}")
    for entry in ledger.entries:
        print(f"  {release_line(entry)}")
    return 0
