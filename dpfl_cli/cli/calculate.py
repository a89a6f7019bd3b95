"""`dpfl calculate scaffnew`: what a paper's closed forms advise, for numbers or for a composed
run: a table, and a plot of the bound with its curves.
"""

import argparse
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from dpfl_cli.algorithms.scaffnew_bound import MessageNoise, ScaffnewBound
from dpfl_cli.cli.pricing import add_run_arguments, plan_of
from dpfl_cli.cli.tables import print_table
from dpfl_cli.config.errors import ConfigError
from dpfl_cli.config.identity import content_id
from dpfl_cli.config.paths import outputs_dir
from dpfl_cli.data.files import write_output
from dpfl_cli.privacy.nominal import (
    clipped_sensitivity,
    epsilon_number,
    proved_from,
    why_nominal,
    zcdp_v,
)

RELATIONS = ("zero_out", "add_or_remove", "replace_one")
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
EPILOG = """\
DP-ScaffNew (arXiv 2304.05127): step size, local steps, iterations and rounds that minimise its
bound. From numbers:
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
# Rows of the table: quantity | symbol | value | what it is
PROBLEM = """\
strong convexity | mu | {bound.strong_convexity:.4g} | of every client's loss
smoothness | L | {bound.smoothness:.4g} | the largest; L / mu = {bound.condition:.4g}
clients | N | {bound.clients} | all take part in every communication
dimension | d | {bound.dimension} | parameters
start | psi_0 | {bound.potential:.4g} | {asked.start}"""
NOISE = """
epsilon, delta |  | {asked.target}, {noise.delta:g} | over all messages of a client
sensitivity | S | {noise.sensitivity:g} | of a clipped message, relation={asked.relation}
noise constant | v | {noise.constant:.4g} | from {noise.origin}"""
ADVICE = """
step size | eta* | {bound.step:.6g} | 1 / L
communication probability | p* | {bound.probability:.6g} | sqrt(mu / L)
local steps | 1/p* | {bound.local_steps:.6g} | expected iterations per communication
iterations | T* | {bound.iterations:.0f} | local steps in all; real: {bound.best_time:.4g}
rounds | p* T* | {bound.rounds:.4g} | expected communications
noise | sigma | {bound.deviation:.4g} | std per coordinate of a message, for so many rounds
bound | B | {bound.least:.4g} | on E psi_T at T*
argument of T* |  | {bound.argument:.4g} | psi_0 r eps^2 / (v S^2 N d ln(1/delta)), \
r = -ln(1 - mu/L); real T*: its logarithm over r, or 0"""
WORTH = "\nworth | epsilon | {worth} | of p* T* messages with this sigma: proved (gdp)"
COVERED = (
    "Theorem 1 is for controls of what was sent, exact gradients, communications by coins, and "
    "updates that are not clipped (a run shows clipped_fraction). It is a worst case: expect the "
    "right order of magnitude"
)


@dataclass(frozen=True)
class Question:
    """What is asked of the calculator, whether in numbers or as a run.

    Attributes:
      bound: the problem.
      noise: that of its messages; None without any.
      relation: what is neighbouring.
      nominal: the line that epsilon is nominal; empty where it is proved.
      start: what psi_0 was made of.
      subject: what the plot is of, before its numbers; empty where it is of numbers alone.
      note: what holds of the answer; may be empty.
    """

    bound: ScaffnewBound
    noise: MessageNoise | None
    relation: str
    nominal: str
    start: str
    subject: str = ""
    note: str = ""

    @property
    def target(self) -> str:
        """Epsilon, marked where it is nominal."""
        assert self.noise is not None
        return f"{self.noise.epsilon:g}{' (nominal)' if self.nominal else ''}"

    @property
    def setting(self) -> str:
        """One line over the plot."""
        bound, noise = self.bound, self.noise
        shape = f"N = {bound.clients}, d = {bound.dimension}, L/mu = {bound.condition:.4g}"
        private = "without noise"
        if noise is not None:
            private = f"epsilon {self.target}, S {noise.sensitivity:g}, v {noise.constant:.3g}"
        return ", ".join(filter(None, (self.subject, shape, private)))


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("method", choices=("scaffnew",), metavar="METHOD", help="scaffnew")
    add_run_arguments(parser)
    for flag, (symbol, words) in NUMBERS.items():
        kind = int if flag in WHOLE else float
        parser.add_argument(flag, dest=flag, type=kind, metavar=symbol, help=words)
    parser.add_argument(
        "--relation",
        choices=RELATIONS,
        help="neighbouring relation: sensitivity S = C, 2C under replace_one (default: zero_out, "
        "the paper's; runs under dp=ldp: replace_one)",
    )


def execute(args: argparse.Namespace) -> int:
    in_numbers = args.relation or any(vars(args)[flag] is not None for flag in NUMBERS)
    if bool(in_numbers) == bool(args.overrides or args.plugin):
        raise ConfigError(
            "calculate: give either numbers (--mu --smoothness ...), or a run, as "
            "dataset=mushrooms dp.epsilon=3.3; dpfl calculate --help shows both"
        )
    asked = _of_numbers(args) if in_numbers else _of_run(args.overrides, args.plugin)
    _show(asked)
    print(_publish(asked))
    return 0


# --- the two ways of asking -----------------------------------------------------------------------


def _of_numbers(args: argparse.Namespace) -> Question:
    """A question in numbers."""
    given = vars(args)
    for flag, (symbol, words) in NUMBERS.items():
        value, what = given[flag], f"{flag} is {symbol}: {words}"
        if value is None and flag != "--v":
            raise ConfigError(f"calculate: {flag} is missing; {what}")
        if value is not None and not 0 < value < (1 if flag == "--delta" else math.inf):
            raise ConfigError(f"{flag} {value:g}: out of range; {what}")
    relation, constant = args.relation or RELATIONS[0], given["--v"]
    epsilon, delta = given["--epsilon"], given["--delta"]
    origin = "--v"
    if constant is None:
        constant = zcdp_v(epsilon, delta)
        origin = "zCDP: (sqrt(l + epsilon) + sqrt(l))^2 / (2 l), l = ln(1/delta)"
    sensitivity = clipped_sensitivity(given["--clip-norm"], relation)
    noise = MessageNoise(constant, origin, sensitivity, epsilon, delta)
    bound = ScaffnewBound(
        given["--mu"],
        given["--smoothness"],
        given["--clients"],
        given["--dimension"],
        given["--psi0"],
        noise.per_release,
    )
    nominal = _nominal("lemma1", constant, noise)
    return Question(bound, noise, relation, nominal, "at x_0 and h_0 = 0")


def _of_run(overrides: Sequence[str], plugins: Sequence[str]) -> Question:
    """A question about a run: its data, its model and its noise."""
    from dpfl_cli.reproduction.facts import noise_of, problem_facts, scaffnew_bound

    chosen = any(word.startswith("algorithm=") for word in overrides)
    plan = plan_of(overrides if chosen else ["algorithm=scaffnew", *overrides], plugins)
    bound, noise, facts = scaffnew_bound(plan), noise_of(plan), problem_facts(plan)
    return Question(
        bound,
        noise,
        plan.dp.relation,
        "" if noise is None else _nominal(plan.dp.calibration, plan.dp.v, noise),
        f"sum_i ||x_0 - x*||^2 = {facts['initial_distance']:.4g}, "
        f"sum_i ||grad f_i(x*)||^2 = {facts['optimum_gradients']:.4g}, at eta*, p*",
        f"{plan.dataset.name} ({plan.info.source})",
        "diagnostic, not private: mu, L, x* and psi_0 are computed from the records, without a "
        "release that epsilon covers",
    )


def _nominal(calibration: str, v: float | None, noise: MessageNoise) -> str:
    """The line that a target is nominal, where it is."""
    why = why_nominal(calibration, v, noise.epsilon, noise.delta)
    if why is None:
        return ""
    known = f"lemma1 is proved from v={proved_from(noise.epsilon, noise.delta)} on"
    if calibration == "record_heuristic":
        known = "it speaks of records, and no theorem of a whole client's update"
    return f"epsilon is nominal ({why}; {known}): the row 'worth' is what such noise proves"


# --- the answer -----------------------------------------------------------------------------------


def _show(asked: Question) -> None:
    """Prints the table of inputs and answers, and what holds of them."""
    from dpfl_cli.privacy.accountants import VACUOUS_EPSILON
    from dpfl_cli.privacy.gaussian_accountants import gaussian_epsilon

    bound, noise = asked.bound, asked.noise
    text = PROBLEM + (ADVICE if noise is None else NOISE + ADVICE + WORTH)
    worth = "0"
    if noise is not None and bound.iterations:
        # the epsilon that a ledger of the answer's messages has, whatever set their noise
        sent = math.ceil(bound.rounds * (1 - 1e-12))  # p* T* is rounded
        moved = math.sqrt(sent) * noise.sensitivity
        epsilon = gaussian_epsilon(
            moved / bound.deviation if bound.deviation else math.inf, noise.delta
        )
        worth = epsilon_number(epsilon) + (" (vacuous)" if epsilon > VACUOUS_EPSILON else "")
    rows = text.format(bound=bound, noise=noise, asked=asked, worth=worth).splitlines()
    columns = ("quantity", "symbol", "value", "what it is")
    title = "DP-ScaffNew in closed form (arXiv 2304.05127)"
    print_table(columns, [row.split(" | ") for row in rows], title)
    if bound.iterations == 0:
        print(
            f"  T* = 0: B(0) = psi_0 = {bound.potential:.4g} is the least: by the bound, noise "
            "costs more than training can gain, and the start is the best model"
        )
    for line in filter(None, (asked.note, asked.nominal, COVERED)):
        print(f"  {line}")


def _publish(asked: Question) -> Path:
    """Writes plot and curves of a question into its own folder; the path of the PNG.

    Raises:
      ConfigError: the folder cannot be written.
    """
    from dpfl_cli.reproduction.bound_figure import curves, draw_bound

    bound, setting = asked.bound, asked.setting
    drawn = curves(bound)
    files = {
        **draw_bound(bound, drawn, setting),
        "bound.csv": drawn.to_csv(index=False).encode(),
    }
    name = content_id({**asdict(bound), "setting": setting})
    folder = outputs_dir() / "calculate" / "scaffnew" / name
    for file, payload in files.items():
        write_output(folder / file, payload)
    return folder / "bound.png"
