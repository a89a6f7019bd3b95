"""Overrides and sweeps."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from dpfl_cli.config.component import GROUPS
from tests.wrong_inputs import LONG, SMALL, Input

NUMBERS = (
    "seed",
    "rounds",
    "dataset.clients",
    "dataset.dimension",
    "dp.epsilon",
    "dp.delta",
    "dp.max_epsilon",
    "mechanism.noise_multiplier",
    "algorithm.local_lr",
    "algorithm.local_steps",
    "algorithm.clip_norm",
    "evaluation.every",
    "runtime.checkpoint_every",
    "partitioner.clients",
    "partitioner.seed",
    "launcher.memory",
    "participation.cohort",
)
NO_NUMBERS = (
    "nan",
    "-1",
    "abc",
    "",
    "[1,2]",
    "{a:1}",
    "true",
    LONG,
    f"-{LONG}",
    "${nothing.there}",
)
WHOLE = ("seed", "rounds", "dataset.clients", "dataset.dimension")
NO_WHOLE_NUMBERS = ("1.5", "1e400", "1e20", "null", "'3'")
NO_OPTIONS = ("null", "", "1", "true", "[]", "{}", "foo", "../algorithm/fedavg", "/etc/passwd", "~")
NO_GROUPS = ("~{}", "{}.name=foo", "++{}.name=foo", "{}.nothing=1", "+{}.nothing=1", "~{}.name")
ODD = ("a" * 100_000, "seed=" + "[" * 3000, "seed=" + "{a:" * 500, "seed=1\n2", "\n", "seed=\0")
SIZES = ("0", "-1", "13", "nan", "1e30", "foo", "null", "true", "[3]", LONG)  # of 12 clients


def overrides() -> Iterator[Input]:
    """Wrong values of every kind of option, and words that are no text; others are in
    commands.txt.
    """
    for key, value in [*product(NUMBERS, NO_NUMBERS), *product(WHOLE, NO_WHOLE_NUMBERS)]:
        yield Input("numbers", ("run", *SMALL, f"{key}={value}"))
    for group, value in product((*GROUPS, "scale"), NO_OPTIONS):
        yield Input("groups", ("run", *SMALL, f"{group}={value}"))
    for group, form in product(GROUPS, NO_GROUPS):
        yield Input("groups", ("run", *SMALL, form.format(group)))
    for word in (*ODD, "seed=\ud800", "dataset.path=\udce9.npz"):
        yield Input("overrides", ("run", *SMALL, word))
    for law, size in product(("fixed", "poisson"), SIZES):
        words = ("dp=cdp", f"participation={law}", f"participation.cohort={size}")
        yield Input("overrides", ("run", *SMALL, *words))
    for key in NUMBERS:
        yield Input("sweeps", ("run", "-m", *SMALL, f"{key}=range(0,1,0)"))
    for group in GROUPS:
        yield Input("sweeps", ("run", "-m", *SMALL, f"{group}=foo,bar"))
