"""`dpfl calculate scaffnew`: what a paper's closed forms advise, for numbers or for a composed run; table, plot and CSV."""

from __future__ import annotations

import argparse
import math
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpfl_cli.config.errors import ConfigError, nearest
from dpfl_cli.config.identity import content_id
from dpfl_cli.config.paths import outputs_dir

if TYPE_CHECKING:
    from dpfl_cli.algorithms.scaffnew_bound import ScaffnewBound

CALCULATORS = {
    "scaffnew": "DP-ScaffNew (arXiv 2304.05127): step size, local steps, iterations and rounds that minimise its bound"
}
RELATIONS = ("zero_out", "add_or_remove", "replace_one")


@dataclass(frozen=True)
class _Number:
    """An option that gives a number: its symbol, what it is, and whether it is needed."""

    symbol: str
    words: str
    whole: bool = False
    needed: bool = True


NUMBERS = {
    "--mu": _Number("mu", "strong convexity of every client's loss, > 0"),
    "--smoothness": _Number("L", "smoothness of every client's loss, >= mu"),
    "--epsilon": _Number("epsilon", "target epsilon over all releases, > 0"),
    "--delta": _Number("delta", "target delta, between 0 and 1"),
    "--clip-norm": _Number("C", "clip norm of the update, > 0"),
    "--clients": _Number("N", "number of clients", whole=True),
    "--dimension": _Number("d", "number of parameters", whole=True),
    "--psi0": _Number("psi_0", "start: sum_i ||x_0 - x*||^2 + (eta/p)^2 sum_i ||grad f_i(x*)||^2, > 0"),
    "--v": _Number("v", "constant of the noise, > 0 (default: that of zCDP, from epsilon and delta)", needed=False),
}
FLAGS = (*NUMBERS, "--relation")

EPILOG = """\
from numbers:
  dpfl calculate scaffnew --mu 0.01 --smoothness 1 --epsilon 3.3 --delta 1e-5 --clip-norm 1e-3 \\
      --clients 5 --dimension 112 --psi0 30
from the records of a dataset, with overrides as of `dpfl run` (algorithm=scaffnew goes without saying):
  dpfl calculate scaffnew dataset=mushrooms partitioner.clients=5 model.condition=100 dp.epsilon=3.3 dp.relation=zero_out
  dpfl calculate scaffnew dataset=mushrooms model.condition=100 dp.epsilon=3.3 dp.calibration=lemma1 dp.v=1e-7
Plot (PNG, PDF) and curves (CSV) are written to outputs/calculate/scaffnew/<id>/.
"""


@dataclass(frozen=True)
class _Asked:
    """A question to the calculator.

    Attributes:
      bound: the problem and its noise.
      relation: what is neighbouring, and the sensitivity that this gives: the first line.
      inputs: (quantity, symbol, value, remark), as the table shows them.
      setting: one line over the plot.
      private: sensitivity S and delta of the messages; None where they carry no noise.
      notes: what holds of the answer.
      overrides: of a run of it.
    """

    bound: ScaffnewBound
    relation: str
    inputs: Sequence[tuple[str, str, str, str]]
    setting: str
    private: tuple[float, float] | None
    notes: Sequence[str] = ()
    overrides: Sequence[str] = field(default_factory=list)


def configure(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = EPILOG
    parser.add_argument(
        "method", nargs="?", metavar="METHOD", help=f"one of {', '.join(CALCULATORS)}; without one: what there is"
    )
    parser.add_argument("overrides", nargs="*", metavar="OVERRIDE", help="as of `dpfl run`; dp.epsilon is needed")
    parser.add_argument("--plugin", action="append", default=[], metavar="FILE", help="a Python file with your own components")
    for flag, number in NUMBERS.items():
        parser.add_argument(flag, type=int if number.whole else float, metavar=number.symbol, help=number.words)
    parser.add_argument(
        "--relation",
        metavar="|".join(RELATIONS),
        help="neighbouring relation: sensitivity S = C, 2C under replace_one (default: zero_out, the paper's; runs under dp=ldp: "
        "replace_one)",
    )


def execute(args: argparse.Namespace) -> int:
    if args.method is None:
        for name, summary in CALCULATORS.items():
            print(f"{name}  {summary}")
        print("dpfl calculate METHOD --help shows how")
        return 0
    if args.method not in CALCULATORS:
        hint = "write dpfl calculate scaffnew OVERRIDES" if "=" in args.method else nearest(args.method, CALCULATORS)
        raise ConfigError(f"calculate {args.method}: no such calculator; {hint}")
    given = [flag for flag in FLAGS if _value(args, flag) is not None]
    if given and (args.overrides or args.plugin):
        other = args.overrides[0] if args.overrides else "--plugin"
        raise ConfigError(f"calculate: {given[0]} and {other} exclude each other: either numbers, or a run to take them from")
    if not given and not args.overrides:
        raise ConfigError(
            "calculate: nothing to calculate with; give numbers (--mu --smoothness ...), or a run, as dataset=mushrooms "
            "dp.epsilon=3.3; dpfl calculate --help shows both"
        )
    asked = _of_numbers(args) if given else _of_run(args.overrides, args.plugin)
    _show(asked)
    print(_published(asked))
    return 0


def _value(args: argparse.Namespace, flag: str) -> Any:
    return getattr(args, flag.removeprefix("--").replace("-", "_"))


# --- the two ways of asking -----------------------------------------------------------------------------------------


def _of_numbers(args: argparse.Namespace) -> _Asked:
    """A question in numbers."""
    from dpfl_cli.algorithms.scaffnew_bound import ScaffnewBound, noise_per_release
    from dpfl_cli.privacy.nominal import zcdp_v

    missing = [flag for flag, number in NUMBERS.items() if number.needed and _value(args, flag) is None]
    if missing:
        number = NUMBERS[missing[0]]
        rest = f" (and {', '.join(missing[1:])})" if missing[1:] else ""
        raise ConfigError(f"calculate: {missing[0]} is missing{rest}; {missing[0]} is {number.symbol}: {number.words}")
    for flag, number in NUMBERS.items():
        value = _value(args, flag)
        if value is not None and not 0 < value < (1 if flag == "--delta" else math.inf):
            raise ConfigError(f"{flag} {value:g}: out of range; {flag} is {number.symbol}: {number.words}")
    if args.smoothness < args.mu:
        raise ConfigError(
            f"--smoothness {args.smoothness:g} and --mu {args.mu:g}: L is at least mu (kappa = L / mu >= 1); swap the two?"
        )
    relation = args.relation or RELATIONS[0]
    if relation not in RELATIONS:
        raise ConfigError(f"--relation {relation}: {nearest(relation, RELATIONS)}")
    sensitivity = 2 * args.clip_norm if relation == "replace_one" else args.clip_norm
    constant = zcdp_v(args.epsilon, args.delta) if args.v is None else args.v
    bound = ScaffnewBound(
        strong_convexity=args.mu,
        smoothness=args.smoothness,
        clients=args.clients,
        dimension=args.dimension,
        potential=args.psi0,
        noise=noise_per_release(constant, sensitivity, args.epsilon, args.delta),
    )
    nominal = _nominal("lemma1", constant, args.epsilon, args.delta)
    aim = f"{args.epsilon:g}{_mark(nominal)}"
    origin = "--v" if args.v is not None else "that of zCDP: (sqrt(l + epsilon) + sqrt(l))^2 / (2 l), l = ln(1/delta)"
    return _Asked(
        bound=bound,
        relation=_relation(relation, sensitivity, "relation"),
        inputs=[
            *_problem(bound, ""),
            ("epsilon, delta", "", f"{aim}, {args.delta:g}", "over all messages of a client"),
            ("sensitivity", "S", f"{sensitivity:g}", f"of a message clipped to C = {args.clip_norm:g}, {relation}"),
            ("noise constant", "v", f"{constant:.4g}", origin),
        ],
        setting=f"{_shape(bound)}, epsilon {aim}, delta {args.delta:g}, S {sensitivity:g}, v {constant:.3g}",
        private=(sensitivity, args.delta),
        notes=[_unclipped(args.clip_norm), *nominal],
    )


def _of_run(overrides: Sequence[str], plugins: Sequence[str]) -> _Asked:
    """A question about a run: its data, its model and its noise."""
    from dpfl_cli.cli.plugins import load_plugins
    from dpfl_cli.config.compose import compose_config
    from dpfl_cli.reproduction.problems import problem_facts
    from dpfl_cli.reproduction.theory import noise_of, scaffnew_bound
    from dpfl_cli.simulation.plan import make_plan

    load_plugins(list(plugins))
    chosen = {word.partition("=")[0] for word in overrides}
    if "algorithm" in chosen and "algorithm=scaffnew" not in overrides:
        raise ConfigError("calculate scaffnew: another algorithm= was given; leave it out, or write algorithm=scaffnew")
    config = compose_config([*overrides, *(["algorithm=scaffnew"] if "algorithm" not in chosen else [])])
    if config["dp"]["epsilon"] is None and config["dp"]["trust"] != "none":
        raise ConfigError(
            "calculate: no target; add dp.epsilon=VALUE (and dp.delta=VALUE), or dp=none for a problem without noise"
        )
    plan = make_plan(config)
    if plan.algorithm.settings.control == "none":  # type: ignore[attr-defined]
        raise ConfigError(
            "algorithm.control=none: without control variates it is DP-FedAvg, which the bound is not about; write "
            "algorithm.control=sent"
        )
    noise, bound, facts = noise_of(plan), scaffnew_bound(plan), problem_facts(plan)
    parts = (
        f"sum_i ||x_0 - x*||^2 = {facts['initial_distance']:.4g}, sum_i ||grad f_i(x*)||^2 = {facts['optimum_gradients']:.4g}, "
        "at eta*, p*"
    )
    nominal: list[str] = []
    if noise is None:
        private, target = [("noise", "", "none", "dp=none")], "without noise"
    else:
        assert plan.dp.epsilon is not None
        nominal = _nominal(plan.dp.calibration, plan.dp.v, plan.dp.epsilon, plan.dp.delta)
        aim = f"{plan.dp.epsilon:g}{_mark(nominal)}"
        target = f"epsilon {aim}, S {noise.sensitivity:g}, v {noise.constant:.3g}"
        private = [
            ("epsilon, delta", "", f"{aim}, {plan.dp.delta:g}", "over all messages of a client"),
            ("sensitivity", "S", f"{noise.sensitivity:g}", f"of a clipped message, dp.relation={plan.dp.relation}"),
            ("noise constant", "v", f"{noise.constant:.4g}", f"from {noise.origin}"),
        ]
    notes = ["diagnostic, not private: mu, L, x* and psi_0 are computed from the records, without a release that epsilon covers"]
    notes += _uncovered(plan.algorithm.settings, noise is not None)
    return _Asked(
        bound=bound,
        relation="" if noise is None else _relation(plan.dp.relation, noise.sensitivity, "dp.relation"),
        inputs=[*_problem(bound, parts), *private],
        setting=f"{plan.dataset.name} ({plan.info.source}), {_shape(bound)}, {target}",
        private=None if noise is None else (noise.sensitivity, plan.dp.delta),
        notes=[*notes, *nominal],
        overrides=[
            *(f"--plugin={name}" for name in plugins),
            *(word for word in overrides if word.partition("=")[0] not in RUN_KEYS),
        ],
    )


RUN_KEYS = ("algorithm", "rounds", "algorithm.local_lr", "algorithm.local_steps", "algorithm.final_release")  # the answer's


def _relation(relation: str, sensitivity: float, option: str) -> str:
    """The first line: what is neighbouring; numbers and runs start from different relations."""
    own, times = " (the paper's)" if relation == "zero_out" else "", "C"
    other = "runs under dp=ldp: replace_one, S = 2C, by default"
    if relation == "replace_one":
        times, other = "2C", "the paper's is zero_out, S = C"
    return f"{option}={relation}{own}: sensitivity S = {times} = {sensitivity:g}; {other}"


def _nominal(calibration: str, v: float | None, epsilon: float, delta: float) -> list[str]:
    """That a target is nominal, where it is."""
    from dpfl_cli.privacy.nominal import proved_from, why_nominal

    why = why_nominal(calibration, v, epsilon, delta)
    if why is None:
        return []
    known = f"lemma1 is proved from v={proved_from(epsilon, delta)} on"
    if calibration == "record_heuristic":
        known = "it speaks of records, and no theorem of a whole client's update"
    return [f"epsilon is nominal ({why}; {known}): the row 'worth' is what such noise proves"]


def _mark(nominal: Sequence[str]) -> str:
    """What follows a target in the table and over the plot."""
    return " (nominal)" if nominal else ""


def _unclipped(clip_norm: float) -> str:
    return (
        f"Theorem 1 is for updates that are not clipped: C = {clip_norm:g} must exceed the norm of every one (a run shows "
        "clipped_fraction)"
    )


def _uncovered(chosen: Any, noisy: bool) -> list[str]:
    """What Theorem 1 does not cover of the settings of a run."""
    lines = [] if chosen.clip_norm is None else [_unclipped(chosen.clip_norm)]
    if chosen.batch_size is not None:
        lines.append(
            f"Theorem 1 is for exact gradients: the error of algorithm.batch_size={chosen.batch_size} is not in the bound"
        )
    if chosen.schedule != "bernoulli":
        lines.append(
            "Theorem 1 is for communications by coins (algorithm.schedule=bernoulli): "
            f"algorithm.schedule={chosen.schedule} has as many, at equal distances"
        )
    if noisy and chosen.control != "sent":
        lines.append(
            f"Theorem 1 is for controls of what was sent (algorithm.control=sent), not for algorithm.control={chosen.control}"
        )
    return lines


def _problem(bound: ScaffnewBound, start: str) -> list[tuple[str, str, str, str]]:
    return [
        ("strong convexity", "mu", f"{bound.strong_convexity:.4g}", "of every client's loss"),
        ("smoothness", "L", f"{bound.smoothness:.4g}", f"the largest of the clients'; L / mu = {bound.condition:.4g}"),
        ("clients", "N", f"{bound.clients}", "all take part in every communication"),
        ("dimension", "d", f"{bound.dimension}", "parameters"),
        ("start", "psi_0", f"{bound.potential:.4g}", start or "at x_0 and h_0 = 0"),
    ]


def _shape(bound: ScaffnewBound) -> str:
    return f"N = {bound.clients}, d = {bound.dimension}, L/mu = {bound.condition:.4g}"


# --- the answer -----------------------------------------------------------------------------------------------------


def _show(asked: _Asked) -> None:
    """Prints the table of inputs and answers, and what holds of them."""
    from rich.table import Table

    from dpfl_cli.cli.report import wide_console

    bound = asked.bound
    best, free = bound.iterations, math.isinf(bound.iterations)
    value = 0.0 if free else float(bound.bound(best, bound.probability, bound.step))
    std = math.sqrt(bound.noise * bound.rounds) if best and not free else 0.0
    argument = "psi_0 r eps^2 / (v S^2 N d ln(1/delta)), r = -ln(1 - mu/L); real T*: its logarithm over r, or 0"
    exact = f"real: {bound.best_time:.4g}, of its neighbours that with the smaller B"
    if free:
        argument, exact = "no noise to divide by", "without noise the bound falls for ever"
    elif math.isinf(bound.decay):
        argument = "mu = L: one iteration ends at the optimum but for the noise, r = -ln(1 - mu/L) is infinite, and T* 0 or 1"
        exact = "0 or 1, that with the smaller B"
    answers = [
        ("step size", "eta*", f"{bound.step:.6g}", "1 / L"),
        ("communication probability", "p*", f"{bound.probability:.6g}", "sqrt(mu / L)"),
        ("local steps", "1/p*", f"{bound.local_steps:.6g}", "expected iterations from one communication to the next"),
        ("iterations", "T*", "no limit" if free else f"{best:.0f}", f"local steps in all; {exact}"),
        ("rounds", "p* T*", "no limit" if free else f"{bound.rounds:.4g}", "expected communications"),
        ("noise", "sigma", f"{std:.4g}", "std per coordinate of a message, for so many rounds"),
        *_worth(asked, std),
        ("bound", "B", f"{value:.4g}", f"on E psi_T at T*; {value / bound.potential:.3g} of psi_0"),
        ("argument of T*", "", "infinite" if math.isinf(bound.argument) else f"{bound.argument:.4g}", argument),
    ]
    console = wide_console()
    table = Table(title="DP-ScaffNew in closed form (arXiv 2304.05127)")
    for name in ("quantity", "symbol", "value", "what it is"):
        table.add_column(name)
    for row in asked.inputs:
        table.add_row(*row)
    table.add_section()
    for row in answers:
        table.add_row(*row)
    if asked.relation:
        console.print(asked.relation, markup=False)
    console.print(table, markup=False)
    for line in [*_words(bound), *asked.notes]:
        console.print(f"  {line}", markup=False)
    if asked.overrides and best and not free:
        steps = max(1, round(bound.local_steps))
        words = [f"algorithm.local_lr={bound.step:.6g}", f"algorithm.local_steps={steps}", f"rounds={best:.0f}"]
        words.append("algorithm.final_release=true")  # no iteration is lost, also where T* is no multiple of the local steps
        command = shlex.join(["dpfl", "run", "algorithm=scaffnew", *asked.overrides, *words])
        console.print(f"  to run it: {command}", markup=False, soft_wrap=True)


def _worth(asked: _Asked, std: float) -> list[tuple[str, str, str, str]]:
    """The row with the epsilon that a ledger of the answer's messages has, whatever set their noise.

    Args:
      std: sigma.
    """
    from dpfl_cli.cli.report import epsilon_number
    from dpfl_cli.privacy.accountants import VACUOUS_EPSILON, gaussian_epsilon

    if asked.private is None or math.isinf(asked.bound.iterations):
        return []
    if asked.bound.iterations == 0:
        return [("worth", "epsilon", "0", "nothing is sent")]
    sensitivity, delta = asked.private
    sent = max(1, math.ceil(asked.bound.rounds * (1 - 1e-12)))  # p* T* is rounded
    epsilon = gaussian_epsilon(math.sqrt(sent) * sensitivity / std, delta) if std > 0 else math.inf
    vacuous = " (vacuous)" if epsilon > VACUOUS_EPSILON else ""
    messages = f"{sent} message{'s' if sent > 1 else ''}"
    return [
        ("worth", "epsilon", epsilon_number(epsilon) + vacuous, f"of {messages} (p* T* rounded up) with this sigma: proved (gdp)")
    ]


def _words(bound: ScaffnewBound) -> list[str]:
    """What the answer means."""
    if math.isinf(bound.iterations):
        return ["without noise more iterations are always better; 1/p* is the largest number of local steps that costs no rate"]
    if bound.iterations == 0:
        one = float(bound.bound(1.0, bound.probability, bound.step))
        return [
            f"T* = 0: B(1) = {one:.4g} is not below B(0) = psi_0 = {bound.potential:.4g}: by the bound, noise costs more than "
            "training can gain, and the start is the best model",
            "a larger epsilon, a smaller clip norm, fewer parameters or a worse start raise it",
        ]
    return ["T* minimises a worst-case bound: expect the right order of magnitude in runs, not the very number"]


def _published(asked: _Asked) -> Path:
    """Writes plot and curves of a question into its own folder; the path of the PNG.

    Raises:
      ConfigError: the folder cannot be written.
    """
    from dataclasses import asdict

    from dpfl_cli.reproduction.bound_figure import curves, curves_csv, draw_bound
    from dpfl_cli.simulation.store import write_atomically

    drawn = curves(asked.bound)
    files = {**draw_bound(asked.bound, drawn, asked.setting), "bound.csv": curves_csv(asked.bound, drawn).encode()}
    folder = outputs_dir() / "calculate" / "scaffnew" / content_id({**asdict(asked.bound), "setting": asked.setting})
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, payload in files.items():
            write_atomically(folder / name, payload)
    except OSError as error:
        raise ConfigError(f"{folder}: cannot be written ({error.strerror}); set DPFL_OUTPUTS to a folder that can") from error
    return folder / "bound.png"
