"""`dpfl audit OVERRIDES`: how much of its epsilon a run really gives away, from below."""

import argparse
from typing import TYPE_CHECKING

from dpfl_cli.cli.pricing import add_run_arguments, plan_of
from dpfl_cli.config.errors import ConfigError
from dpfl_cli.config.paths import outputs_dir
from dpfl_cli.data.files import write_output
from dpfl_cli.simulation.progress import Progress

if TYPE_CHECKING:
    from pathlib import Path

    from dpfl_cli.simulation.audit import Audit
    from dpfl_cli.simulation.run_plan import Plan

REFUTED = 3
FEWEST = 20  # canaries a side, of which something can be said
NAMES = {
    "gaussian": "Gaussian scores",
    "one_run": "one-run f-DP (Mahloujifar et al.)",
    "threshold": "best threshold (Clopper-Pearson)",
}
DESCRIPTION = """\
Lower bounds on a run's epsilon, beside what the run claims.

The run is made many times with a canary in it: the worst client (or record), which a fair coin puts
on one side or the other (+C or -C under replace_one, C or nothing otherwise). An adversary scores
every run. It knows all other data and sees what the receiver sees: every message under local trust,
the noisy mean under central trust and secure aggregation, but not which clients or records were
drawn. The bounds follow from the scores."""
EPILOG = """\
Bounds: gaussian is nearly tight, but needs noise that is all Gaussian, with nothing drawn. The
others hold for any mechanism and are loose.

Canaries are put in after clipping. `dpfl audit` therefore tests noise, relation, calibration and
accountant, but not the code that computes the values; `dpfl check` is for that.

example: dpfl audit algorithm=fedavg dp=cdp dp.epsilon=4 dp.delta=1e-5 rounds=3

The audit is kept in outputs/audits/ID/ (result.json, scores.csv, scores.png, scores.pdf), and is
read there the next time.
Exit codes: 0 no bound of 99.9 % is above the claim, 2 wrong use or config, 3 one is above it."""


def configure(parser: argparse.ArgumentParser) -> None:
    add_run_arguments(parser)
    parser.add_argument(
        "--canaries", type=int, default=1000, help="runs on each side, on average (default 1000)"
    )
    parser.add_argument(
        "--confidence",
        type=float,
        default=0.95,
        help="confidence of each bound shown (default 0.95)",
    )
    parser.add_argument("--quiet", action="store_true", help="no progress")


def audited(plan: "Plan", canaries: int, confidence: float, quiet: bool) -> "tuple[Audit, Path]":
    """The audit of a plan, and where it is kept; a ConfigError where there is none with so many
    canaries, or such a confidence.
    """
    if canaries < FEWEST:
        raise ConfigError(f"canaries {canaries}: at least {FEWEST} a side")
    if not 0.5 <= confidence < 1:
        raise ConfigError(f"confidence {confidence}: from 0.5 to below 1, as 0.95")
    from dpfl_cli.simulation.audit import kept_audit

    with Progress(f"audit {plan.label}", 2 * canaries, quiet) as progress:
        return kept_audit(plan, canaries, outputs_dir(), progress.advance)


def execute(args: argparse.Namespace) -> int:
    from dpfl_cli.cli.tables import epsilon_text
    from dpfl_cli.privacy.nominal import epsilon_number
    from dpfl_cli.simulation.audit import SURE
    from dpfl_cli.simulation.results import privacy_report

    plan = plan_of(args.overrides, args.plugin)
    found, folder = audited(plan, args.canaries, args.confidence, args.quiet)
    bounds, sure = found.bounds(args.confidence), found.bounds(SURE)
    low, high = int((~found.sides).sum()), int(found.sides.sum())
    claim = epsilon_text(privacy_report(plan, plan.ledger()))
    print(
        f"claim    epsilon {claim} at delta {found.delta:g} ({plan.accountant.name}, per "
        f"{plan.dp.unit}, {plan.dp.relation}, {plan.dp.trust}), {plan.last_round} rounds"
    )
    print(f"canaries {low} and {high}; lower bounds on epsilon:")
    for name, bound in bounds.items():
        print(
            f"  {NAMES[name]:<34} {bound:7.3f} ({100 * bound / found.claim:3.0f} % of the claim) "
            f"at {args.confidence:.4g}; {sure[name]:7.3f} at {SURE}"
        )
    for name, payload in _drawn(found, bounds, plan.label, epsilon_number(found.claim)).items():
        write_output(folder / name, payload)
    print(f"kept in {folder}")
    refuted = max(sure.values()) > found.claim
    if refuted:
        print(f"REFUTED: a bound of {SURE:.1%} is above the claim: this run is not as private")
    return REFUTED if refuted else 0


def _drawn(found: "Audit", bounds: dict[str, float], title: str, claim: str) -> dict[str, bytes]:
    """The scores of both sides, under the largest bound and the claim: scores.png and .pdf."""
    from dpfl_cli.reproduction.look import COLOURS, canvas, saved

    with canvas(6.4, 4.0) as (figure, axis):
        scores = [found.scores[~found.sides], found.scores[found.sides]]
        sides = ["one side", "other"]
        axis.hist(scores, 40, label=sides, histtype="stepfilled", alpha=0.6, color=COLOURS[:2])
        axis.set(xlabel="the adversary's score", ylabel="runs")
        axis.legend(title="canary")
        best = max(bounds.values())
        axis.set_title(f"{title}\nε at δ = {found.delta:g}: {claim} claimed, ≥ {best:.3f}")
        return saved(figure, "scores")
