"""What `dpfl calculate scaffnew` answers: a table, a plot and its curves."""

import math
import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dpfl_cli.algorithms.scaffnew_bound import MessageNoise, ScaffnewBound
from dpfl_cli.cli.files import write_output
from dpfl_cli.cli.tables import epsilon_number, make_table, wide_console
from dpfl_cli.config.identity import content_id
from dpfl_cli.config.paths import outputs_dir

# Rows of the table: quantity | symbol | value | what it is
PROBLEM = """\
strong convexity | mu | {bound.strong_convexity:.4g} | of every client's loss
smoothness | L | {bound.smoothness:.4g} | the largest; L / mu = {bound.condition:.4g}
clients | N | {bound.clients} | all take part in every communication
dimension | d | {bound.dimension} | parameters
start | psi_0 | {bound.potential:.4g} | {asked.start}"""
NO_NOISE = "noise |  | none | dp=none"
NOISE = """\
epsilon, delta |  | {asked.target}, {noise.delta:g} | over all messages of a client
sensitivity | S | {noise.sensitivity:g} | of a clipped message, {asked.option}={asked.relation}
noise constant | v | {noise.constant:.4g} | from {noise.origin}"""
ADVICE = """\
step size | eta* | {bound.step:.6g} | 1 / L
communication probability | p* | {bound.probability:.6g} | sqrt(mu / L)
local steps | 1/p* | {bound.local_steps:.6g} | expected iterations per communication
iterations | T* | {iterations} | local steps in all; {exact}
rounds | p* T* | {rounds} | expected communications
noise | sigma | {bound.deviation:.4g} | std per coordinate of a message, for so many rounds"""
VALUE = """\
bound | B | {bound.least:.4g} | on E psi_T at T*; {share:.3g} of psi_0
argument of T* |  | {argument} | {meaning}"""
ARGUMENT = (
    "psi_0 r eps^2 / (v S^2 N d ln(1/delta)), r = -ln(1 - mu/L); real T*: its logarithm over r, "
    "or 0"
)


@dataclass(frozen=True)
class Question:
    """What is asked of the calculator, whether in numbers or as a run.

    Attributes:
      bound: the problem.
      noise: that of its messages; None without any.
      option: the option that gives the relation.
      relation: what is neighbouring.
      nominal: that epsilon is nominal, in a line; empty where it is proved.
      start: what psi_0 was made of.
      subject: what the plot is of, before its numbers.
      notes: what holds of the answer.
      overrides: of a run of it; None where it was asked in numbers.
    """

    bound: ScaffnewBound
    noise: MessageNoise | None
    option: str
    relation: str
    nominal: Sequence[str]
    start: str
    subject: Sequence[str]
    notes: Sequence[str]
    overrides: Sequence[str] | None = None

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
        private = ["without noise"]
        if noise is not None:
            private = [
                f"epsilon {self.target}",
                f"S {noise.sensitivity:g}",
                f"v {noise.constant:.3g}",
                f"delta {noise.delta:g}",
            ]
        return ", ".join([*self.subject, shape, *private])


def _rows(text: str, **values: Any) -> list[list[str]]:
    """The cells (quantity, symbol, value, what it is) of a text of rows."""
    return [line.split(" | ") for line in text.format(**values).splitlines()]


def show(asked: Question) -> None:
    """Prints the table of inputs and answers, and what holds of them."""
    bound, noise = asked.bound, asked.noise
    console = wide_console()
    inputs = f"{PROBLEM}\n{NO_NOISE if noise is None else NOISE}"
    table = make_table(
        ("quantity", "symbol", "value", "what it is"),
        _rows(inputs, bound=bound, noise=noise, asked=asked),
        title="DP-ScaffNew in closed form (arXiv 2304.05127)",
    )
    table.add_section()
    for row in _answers(asked):
        table.add_row(*row)
    if noise is not None:  # first: numbers and runs start from different relations
        mine = " (the paper's)" if asked.relation == "zero_out" else ""
        times, other = "C", "runs under dp=ldp: replace_one, S = 2C, by default"
        if asked.relation == "replace_one":
            times, other = "2C", "the paper's is zero_out, S = C"
        said = f"sensitivity S = {times} = {noise.sensitivity:g}; {other}"
        console.print(f"{asked.option}={asked.relation}{mine}: {said}", markup=False)
    console.print(table, markup=False)
    for line in [*_meaning(bound), *asked.notes, *asked.nominal]:
        console.print(f"  {line}", markup=False)
    if asked.overrides is not None and bound.iterations and not bound.is_endless:
        words = [
            f"algorithm.local_lr={bound.step:.6g}",
            f"algorithm.local_steps={max(1, round(bound.local_steps))}",
            f"rounds={bound.iterations:.0f}",
            # no iteration is lost, also where T* is no multiple of the local steps
            "algorithm.final_release=true",
        ]
        command = shlex.join(["dpfl", "run", "algorithm=scaffnew", *asked.overrides, *words])
        console.print(f"  to run it: {command}", markup=False, soft_wrap=True)


def _answers(asked: Question) -> list[list[str]]:
    """The rows of what the closed forms say."""
    bound = asked.bound
    meaning, exact = (
        ARGUMENT,
        f"real: {bound.best_time:.4g}, of its neighbours that with the smaller B",
    )
    if bound.is_endless:
        meaning, exact = "no noise to divide by", "without noise the bound falls for ever"
    elif math.isinf(bound.decay):
        meaning = (
            "mu = L: one iteration ends at the optimum but for the noise, r = -ln(1 - mu/L) is "
            "infinite, and T* 0 or 1"
        )
        exact = "0 or 1, that with the smaller B"
    values = {
        "bound": bound,
        "exact": exact,
        "iterations": "no limit" if bound.is_endless else f"{bound.iterations:.0f}",
        "rounds": "no limit" if bound.is_endless else f"{bound.rounds:.4g}",
        "share": bound.least / bound.potential,
        "argument": "infinite" if math.isinf(bound.argument) else f"{bound.argument:.4g}",
        "meaning": meaning,
    }
    return [*_rows(ADVICE, **values), *_worth(asked), *_rows(VALUE, **values)]


def _worth(asked: Question) -> list[list[str]]:
    """The row with the epsilon that a ledger of the answer's messages has, whatever set their
    noise.
    """
    from dpfl_cli.privacy.accountants import VACUOUS_EPSILON
    from dpfl_cli.privacy.gaussian_accountants import gaussian_epsilon

    bound, noise = asked.bound, asked.noise
    if noise is None or bound.is_endless:
        return []
    if bound.iterations == 0:
        return [["worth", "epsilon", "0", "nothing is sent"]]
    sent = max(1, math.ceil(bound.rounds * (1 - 1e-12)))  # p* T* is rounded
    shift = math.sqrt(sent) * noise.sensitivity / bound.deviation if bound.deviation else math.inf
    epsilon = gaussian_epsilon(shift, noise.delta)
    shown = epsilon_number(epsilon) + (" (vacuous)" if epsilon > VACUOUS_EPSILON else "")
    messages = f"of {sent} message{'s' if sent > 1 else ''} (p* T* rounded up)"
    return [["worth", "epsilon", shown, f"{messages} with this sigma: proved (gdp)"]]


def _meaning(bound: ScaffnewBound) -> list[str]:
    """What the answer means."""
    if bound.is_endless:
        return [
            "without noise more iterations are always better; 1/p* is the largest number of local "
            "steps that costs no rate"
        ]
    if bound.iterations == 0:
        one = float(bound.bound(1.0, bound.probability, bound.step))
        return [
            f"T* = 0: B(1) = {one:.4g} is not below B(0) = psi_0 = {bound.potential:.4g}: by the "
            "bound, noise costs more than training can gain, and the start is the best model",
            "a larger epsilon, a smaller clip norm, fewer parameters or a worse start raise it",
        ]
    return [
        "T* minimises a worst-case bound: expect the right order of magnitude in runs, not the "
        "very number"
    ]


def publish(asked: Question) -> Path:
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
        write_output(folder / file, payload, "set DPFL_OUTPUTS to a folder that can")
    return folder / "bound.png"
