"""`dpfl calculate scaffnew`: what a paper's closed forms advise, for numbers or for a composed
run.
"""

import argparse
import math
from collections.abc import Sequence
from typing import Any

from dpfl_cli.algorithms.scaffnew_bound import MessageNoise, ScaffnewBound
from dpfl_cli.cli.pricing import add_run_arguments, plan_for_target
from dpfl_cli.cli.scaffnew import Question, publish, show
from dpfl_cli.config.errors import ConfigError, nearest
from dpfl_cli.privacy.nominal import clipped_sensitivity, proved_from, why_nominal, zcdp_v

CALCULATORS = {
    "scaffnew": "DP-ScaffNew (arXiv 2304.05127): step size, local steps, iterations and rounds "
    "that minimise its bound"
}
RELATIONS = ("zero_out", "add_or_remove", "replace_one")
ANSWERED = (  # overrides that the answer replaces
    "algorithm",
    "rounds",
    "algorithm.local_lr",
    "algorithm.local_steps",
    "algorithm.final_release",
)


NUMBERS = {  # option -> its symbol, and what it is
    "--mu": ("mu", "strong convexity of every client's loss, > 0"),
    "--smoothness": ("L", "smoothness of every client's loss, >= mu"),
    "--epsilon": ("epsilon", "target epsilon over all releases, > 0"),
    "--delta": ("delta", "target delta, between 0 and 1"),
    "--clip-norm": ("C", "clip norm of the update, > 0"),
    "--clients": ("N", "number of clients"),
    "--dimension": ("d", "number of parameters"),
    "--psi0": ("psi_0", "start: sum_i ||x_0 - x*||^2 + (eta/p)^2 sum_i ||grad f_i(x*)||^2, > 0"),
    "--v": ("v", "constant of the noise, > 0 (default: that of zCDP, from epsilon and delta)"),
}
WHOLE = ("--clients", "--dimension")
FLAGS = (*NUMBERS, "--relation")

EPILOG = """\
from numbers:
  dpfl calculate scaffnew --mu 0.01 --smoothness 1 --epsilon 3.3 --delta 1e-5 --clip-norm 1e-3 \\
      --clients 5 --dimension 112 --psi0 30
from the records of a dataset, with overrides as of `dpfl run` (algorithm=scaffnew goes without
saying):
  dpfl calculate scaffnew dataset=mushrooms partitioner.clients=5 model.condition=100 \\
      dp.epsilon=3.3 dp.relation=zero_out
  dpfl calculate scaffnew dataset=mushrooms model.condition=100 dp.epsilon=3.3 \\
      dp.calibration=lemma1 dp.v=1e-7
Plot (PNG, PDF) and curves (CSV) are written to outputs/calculate/scaffnew/<id>/.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = EPILOG
    parser.add_argument(
        "method",
        nargs="?",
        choices=CALCULATORS,
        metavar="METHOD",
        help=f"one of {', '.join(CALCULATORS)}; without one: what there is",
    )
    add_run_arguments(parser)
    for flag, (symbol, words) in NUMBERS.items():
        kind = int if flag in WHOLE else float
        parser.add_argument(flag, type=kind, metavar=symbol, help=words)
    parser.add_argument(
        "--relation",
        choices=RELATIONS,
        help="neighbouring relation: sensitivity S = C, 2C under replace_one (default: zero_out, "
        "the paper's; runs under dp=ldp: replace_one)",
    )


def execute(args: argparse.Namespace) -> int:
    if args.method is None and args.plugin:
        raise ConfigError(f"calculate: no METHOD; {nearest('', CALCULATORS)}")
    if args.method is None:
        for name, summary in CALCULATORS.items():
            print(f"{name}  {summary}")
        print("dpfl calculate METHOD --help shows how")
        return 0
    given = [flag for flag in FLAGS if _value(args, flag) is not None]
    if given and (args.overrides or args.plugin):
        other = args.overrides[0] if args.overrides else "--plugin"
        raise ConfigError(
            f"calculate: {given[0]} and {other} exclude each other: either numbers, or a run to "
            "take them from"
        )
    if not given and not args.overrides:
        raise ConfigError(
            "calculate: nothing to calculate with; give numbers (--mu --smoothness ...), or a run, "
            "as dataset=mushrooms dp.epsilon=3.3; dpfl calculate --help shows both"
        )
    asked = _of_numbers(args) if given else _of_run(args.overrides, args.plugin)
    show(asked)
    print(publish(asked))
    return 0


def _value(args: argparse.Namespace, flag: str) -> Any:
    return getattr(args, flag.removeprefix("--").replace("-", "_"))


# --- the two ways of asking -----------------------------------------------------------------------


def _of_numbers(args: argparse.Namespace) -> Question:
    """A question in numbers."""
    for flag, (symbol, words) in NUMBERS.items():
        value, what = _value(args, flag), f"{flag} is {symbol}: {words}"
        if value is None and flag != "--v":
            raise ConfigError(f"calculate: {flag} is missing; {what}")
        if value is not None and not 0 < value < (1 if flag == "--delta" else math.inf):
            raise ConfigError(f"{flag} {value:g}: out of range; {what}")
    relation = args.relation or RELATIONS[0]
    constant, origin = args.v, "--v"
    if constant is None:
        constant = zcdp_v(args.epsilon, args.delta)
        origin = "zCDP: (sqrt(l + epsilon) + sqrt(l))^2 / (2 l), l = ln(1/delta)"
    sensitivity = clipped_sensitivity(args.clip_norm, relation)
    noise = MessageNoise(constant, origin, sensitivity, args.epsilon, args.delta)
    problem = (args.mu, args.smoothness, args.clients, args.dimension, args.psi0)
    return Question(
        bound=ScaffnewBound(*problem, noise.per_release),
        noise=noise,
        option="relation",
        relation=relation,
        nominal=_nominal("lemma1", constant, noise),
        start="at x_0 and h_0 = 0",
        subject=(),
        notes=[_unclipped(args.clip_norm)],
    )


def _of_run(overrides: Sequence[str], plugins: Sequence[str]) -> Question:
    """A question about a run: its data, its model and its noise."""
    from dpfl_cli.reproduction.facts import noise_of, problem_facts, scaffnew_bound

    chosen = {word.partition("=")[0] for word in overrides}
    if "algorithm" in chosen and "algorithm=scaffnew" not in overrides:
        raise ConfigError(
            "calculate scaffnew: another algorithm= was given; leave it out, or write "
            "algorithm=scaffnew"
        )
    words = [*overrides, *([] if "algorithm" in chosen else ["algorithm=scaffnew"])]
    plan = plan_for_target("calculate", words, plugins, or_without_noise=True)
    if plan.algorithm.settings.control == "none":  # type: ignore[attr-defined]
        raise ConfigError(
            "algorithm.control=none: without control variates it is DP-FedAvg, which the bound is "
            "not about; write algorithm.control=sent"
        )
    noise, facts = noise_of(plan), problem_facts(plan)
    return Question(
        bound=scaffnew_bound(plan),
        noise=noise,
        option="dp.relation",
        relation=plan.dp.relation,
        nominal=[] if noise is None else _nominal(plan.dp.calibration, plan.dp.v, noise),
        start=f"sum_i ||x_0 - x*||^2 = {facts['initial_distance']:.4g}, "
        f"sum_i ||grad f_i(x*)||^2 = {facts['optimum_gradients']:.4g}, at eta*, p*",
        subject=[f"{plan.dataset.name} ({plan.info.source})"],
        notes=[
            "diagnostic, not private: mu, L, x* and psi_0 are computed from the records, without a "
            "release that epsilon covers",
            *_uncovered(plan.algorithm.settings, noise is not None),
        ],
        overrides=[
            *(f"--plugin={name}" for name in plugins),
            *(word for word in overrides if word.partition("=")[0] not in ANSWERED),
        ],
    )


def _nominal(calibration: str, v: float | None, noise: MessageNoise) -> list[str]:
    """That a target is nominal, where it is."""
    why = why_nominal(calibration, v, noise.epsilon, noise.delta)
    if why is None:
        return []
    known = f"lemma1 is proved from v={proved_from(noise.epsilon, noise.delta)} on"
    if calibration == "record_heuristic":
        known = "it speaks of records, and no theorem of a whole client's update"
    return [f"epsilon is nominal ({why}; {known}): the row 'worth' is what such noise proves"]


def _unclipped(clip_norm: float) -> str:
    return (
        f"Theorem 1 is for updates that are not clipped: C = {clip_norm:g} must exceed the norm of "
        "every one (a run shows clipped_fraction)"
    )


def _uncovered(chosen: Any, noisy: bool) -> list[str]:
    """What Theorem 1 does not cover of the settings of a run."""
    size, schedule, control = chosen.batch_size, chosen.schedule, chosen.control
    lines = {
        f"exact gradients: the error of algorithm.batch_size={size} is not in the bound": size,
        f"communications by coins (algorithm.schedule=bernoulli): algorithm.schedule={schedule} "
        "has as many, at equal distances": schedule != "bernoulli",
        "controls of what was sent (algorithm.control=sent), not for "
        f"algorithm.control={control}": noisy and control != "sent",
    }
    clipped = [] if chosen.clip_norm is None else [_unclipped(chosen.clip_norm)]
    return [*clipped, *(f"Theorem 1 is for {line}" for line, holds in lines.items() if holds)]
