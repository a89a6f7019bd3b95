"""`dpfl calibrate OVERRIDES`: the noise with which a run meets dp.epsilon and dp.delta, without
running it.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from dpfl_cli.cli.pricing import add_run_arguments, plan_for_target, release_line
from dpfl_cli.privacy.nominal import clipped_sensitivity, proved_from

if TYPE_CHECKING:
    from dpfl_cli.privacy.ledger import LedgerEntry
    from dpfl_cli.simulation.run_plan import Plan


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
    epsilon = report["epsilon"]
    if epsilon is None:
        worth = f"no epsilon ({report['epsilon_reason']})"
    else:
        number = f"{epsilon:.6f}" if epsilon < 1e6 else f"{epsilon:.6e}"
        worth = f"epsilon {number}{' (vacuous)' if report['vacuous'] else ''}"
    print(f"mechanism.{field}={getattr(plan.mechanism.settings, field)!r}")
    print(
        f"  mechanism={plan.mechanism.name}: {worth} at delta {dp.delta:g} "
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
        print(f"  {release_line(entry, *_deviation(plan, entry))}")
    return 0


def _deviation(plan: Plan, entry: LedgerEntry) -> list[str]:
    """The standard deviation of the noise that a multiplier means, where contributions are clipped
    to one number.
    """
    clip_norm = getattr(plan.algorithm.settings, "clip_norm", None)
    one_vector = (entry.kind, entry.unit, entry.shape) == ("gaussian", "client", "vector")
    if not one_vector or not isinstance(entry.parameter, float) or clip_norm is None:
        return []
    std = entry.parameter * clipped_sensitivity(clip_norm, entry.relation)
    if entry.scope == "client":
        return [f"std {std:.6g} in each coordinate of the message"]
    return [f"std {std / plan.setup.cohort:.6g} in each coordinate of the mean"]
