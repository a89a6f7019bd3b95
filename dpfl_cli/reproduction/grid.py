"""From an artifact to the runs that it asks for: labels, seed and plan of each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from dpfl_cli.config.compose import compose_config
from dpfl_cli.config.errors import ConfigError, DpflError
from dpfl_cli.reproduction.artifact import Artifact, Run, Scale
from dpfl_cli.reproduction.measure import BEST, MEASURE, RANK, ROUND, SEED
from dpfl_cli.simulation.plan import make_plan, with_values
from dpfl_cli.simulation.run_plan import Plan

RESERVED = {BEST, MEASURE, RANK, ROUND, SEED, "value", "text", "paper", "epsilon", "note"}


@dataclass(frozen=True)
class Request:
    """A run that an artifact asks for, with one seed."""

    run: Run
    seed: int

    def config(self) -> dict[str, Any]:
        """The composed config."""
        return with_values(
            composed(tuple(self.run.overrides)), {**self.run.values, "seed": self.seed}
        )


@dataclass(frozen=True)
class Cell:
    """A run that an artifact needs, planned."""

    run: Run
    seed: int
    plan: Plan


@lru_cache(maxsize=512)
def composed(overrides: tuple[str, ...]) -> dict[str, Any]:
    """The composed config of a list of overrides; not to be changed."""
    return compose_config(list(overrides))


def requests(artifact: Artifact, scale: Scale) -> list[Request]:
    """The runs that an artifact asks for at a scale, in its order, each with every seed.

    Raises:
      ConfigError: no runs at all, a label with a reserved name, or two runs with the same labels.
    """
    seeds = range(artifact.size(scale).seeds if artifact.trains else 1)
    runs = list(artifact.runs(scale))
    if not runs:
        raise ConfigError(f"artifact {artifact.name}: no runs at scale={scale}")
    seen: dict[tuple[Any, ...], Run] = {}
    for run in runs:
        taken = sorted(RESERVED & set(run.labels))
        if taken:
            raise ConfigError(
                f"artifact {artifact.name}: a label cannot be called {taken[0]}; rename it"
            )
        other = seen.setdefault(tuple(sorted(run.labels.items())), run)
        if other is not run and other != run:
            raise ConfigError(
                f"artifact {artifact.name}: two different runs ({_words(run)}); "
                "tell them apart by a label"
            )
    return [Request(run, seed) for run in runs for seed in seeds]


def cells(artifact: Artifact, scale: Scale) -> list[Cell]:
    """The same as plans: everything is validated, and data are found, before anything runs.

    Raises:
      ConfigError, DataError: with the artifact's name and the labels of the run in front.
    """
    return [Cell(one.run, one.seed, _plan(artifact, one)) for one in requests(artifact, scale)]


def _plan(artifact: Artifact, request: Request) -> Plan:
    try:
        return make_plan(request.config())
    except DpflError as error:
        raise type(error)(f"artifact {artifact.name} ({_words(request.run)}): {error}") from error


def _words(run: Run) -> str:
    return " ".join(f"{name}={value}" for name, value in run.labels.items())


def commands(artifact: Artifact, scale: Scale) -> Iterator[str]:
    """The `dpfl run` lines that an artifact's runs amount to, one a run, all its seeds in it."""
    count = artifact.size(scale).seeds if artifact.trains else 1
    yield from dict.fromkeys(_command(run, count) for run in artifact.runs(scale))


def _command(run: Run, seeds: int) -> str:
    words = [one for one in run.overrides if one.split("=")[0] not in run.values]
    words += [f"{key}={_text(value)}" for key, value in run.values.items()]
    quoted = [f"'{word}'" if set(word) & set("[]{}(), *") else word for word in words]
    many = ["-m", *quoted, f"'seed=range({seeds})'"] if seeds > 1 else [*quoted, "seed=0"]
    return " ".join(["dpfl run", *many])


def _text(value: Any) -> str:
    return (
        "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
    )
