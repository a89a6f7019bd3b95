"""`dpfl calibrate OVERRIDES`: the noise with which a run meets dp.epsilon and dp.delta, or where it
has no such target the epsilon of its noise, without running it.
"""

import argparse

from dpfl_cli.cli.pricing import (
    add_run_arguments,
    noise_of,
    privacy_lines,
    private_plan,
    release_line,
)
from dpfl_cli.privacy.nominal import proved_from


def configure(parser: argparse.ArgumentParser) -> None:
    add_run_arguments(parser)
    parser.epilog = (
        "example: dpfl calibrate algorithm=fedexp dp=cdp dp.epsilon=8 dp.delta=1e-5 rounds=50. "
        "Without dp.epsilon it prints the epsilon of the noise that is set."
    )


def execute(args: argparse.Namespace) -> int:
    from dpfl_cli.simulation.results import privacy_report

    plan = private_plan(args.overrides, args.plugin)
    dp, ledger = plan.dp, plan.ledger()
    report = privacy_report(plan, ledger)
    for key, value in noise_of(plan).items():
        if value is not None:
            print(f"{key}={value!r}")
    for line in privacy_lines(plan, report):
        print(f"  {line}")
    if "calibration" in report and dp.epsilon is not None:
        enough = proved_from(dp.epsilon, dp.delta)
        known = "" if dp.v is None else f"; lemma1 is proved from v={enough} on"
        print(f"  noise by {report['calibration']}; dp.epsilon={dp.epsilon:g}{known}")
    for entry in ledger.entries:
        print(f"  {release_line(entry)}")
    return 0
