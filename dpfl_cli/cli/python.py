"""dpfl from Python: what `import dpfl_cli as dpfl` offers.

The same runs, in the same store (`DPFL_OUTPUTS`, or `outputs` in the working folder), as the
command line makes. Every function raises `DpflError` (wrong overrides: `ConfigError`) with the one
line that the command line prints.
"""

import logging
import os
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial, wraps
from inspect import signature
from operator import attrgetter
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import numpy as np
import pandas as pd
from pydantic import ConfigDict, ValidationError, validate_call

from dpfl_cli.cli import run as command
from dpfl_cli.cli.audit import audited
from dpfl_cli.cli.check import checked
from dpfl_cli.cli.main import show_log
from dpfl_cli.cli.outcomes import notes
from dpfl_cli.cli.pricing import noise_of, plan_of, prices_of, private_plan
from dpfl_cli.cli.reproduce import left_out
from dpfl_cli.cli.selection import (
    CHOICES,
    load,
    narrowed,
    own_store,
    row_of,
    settings_of,
    varying,
)
from dpfl_cli.cli.tables import privacy_of, some_claimed
from dpfl_cli.config.errors import ConfigError as ConfigError
from dpfl_cli.config.errors import DpflError as DpflError
from dpfl_cli.config.errors import alternatives, nearest
from dpfl_cli.config.paths import note_command, outputs_dir
from dpfl_cli.simulation.plugins import load_plugins, pass_on
from dpfl_cli.simulation.results import privacy_report
from dpfl_cli.simulation.store import RunRecord as Run

P = ParamSpec("P")
T = TypeVar("T")
FOUND = ["id", "text", "source", "finding", "state", "reason"]  # of a claim
_one_at_a_time = threading.Lock()  # Hydra, and what was run, are a process's: threads take turns


def _plain(value: Any) -> Any:
    """Paths as texts and numpy's numbers as Python's, also within lists."""
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, np.generic):
        return value.item()
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def _typed(function: Callable[P, T]) -> Callable[P, T]:
    """Holds arguments against annotations; a ConfigError says what is wrong with the first one."""
    config = ConfigDict(strict=True, arbitrary_types_allowed=True)
    checked = validate_call(config=config)(function)

    @wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            named = {name: _plain(value) for name, value in kwargs.items()}
            return checked(*map(_plain, args), **named)
        except ValidationError as error:
            errors = error.errors()
        first = errors[0]
        at, *within = first["loc"]  # and perhaps which of several types was tried
        where = ".".join(map(str, [at, *(one for one in within if isinstance(one, int))]))
        message = alternatives(errors)
        given, hint = f"={first['input']!r:.80}", ""
        if first["type"] == "unexpected_keyword_argument":
            takes = signature(function).parameters
            names = [name for name, one in takes.items() if one.kind is not one.VAR_POSITIONAL]
            hint = f"; {nearest(where, names)}"
            if "overrides" in takes and "did you mean" not in hint:
                hint = "; overrides are strings, such as 'dp.epsilon=1'"
        elif isinstance(first["input"], list | tuple) and isinstance(first["loc"][0], int):
            hint = "; write * before a list"
        elif first["type"] == "sequence_str":
            hint = f"; write [{first['input']!r}]"
        elif first["type"].startswith("missing"):
            given = ""
        raise ConfigError(f"dpfl.{function.__name__}: argument {where}{given}: {message}{hint}")

    return called


@_typed
def run(*overrides: str, plugins: Sequence[str] = (), quiet: bool = False) -> list[Run]:
    """Runs a grid, as `dpfl run -m OVERRIDES` does, and returns its runs in the grid's order.

    Runs that the store holds finished are not run again. One that fails or diverges is returned
    too: look at its `status`.

    Args:
      overrides: as on the command line, such as "algorithm=fedexp,fedavg" or "seed=range(5)".
      plugins: files with your own components (--plugin).
      quiet: without a progress bar, and without the lines about privacy on standard error.

    Raises:
      ConfigError: an override does not fit; nothing was run.

    >>> runs = run("dp=cdp", "rounds=2", "seed=range(3)")  # doctest: +SKIP
    """
    with _one_at_a_time:
        note_command(["run", "-m", *overrides])
        if not logging.getLogger("dpfl").handlers:
            show_log(quiet)
        command.perform(overrides, {"multirun": True}, plugins, quiet)
        outcomes = command.current.executed
        made = [outcome.record for outcome in outcomes]
        if made and not quiet:
            print(*privacy_of(made), *notes(outcomes), sep="\n", file=sys.stderr)
        return made


@_typed
def runs(where: str | Sequence[str] = ()) -> pd.DataFrame:
    """The finished runs of the store, oldest first: a row each, with its choices, its last metrics,
    its epsilon and every key of its config.

    Args:
      where: conditions as of `dpfl runs list --where`: "algorithm=fedexp", "accuracy>80".
    """
    conditions = [where] if isinstance(where, str) else where
    found = load(own_store().all(), attrgetter("result"))
    try:
        records = narrowed(found, conditions)
    except ConfigError as error:  # which is of the option
        raise ConfigError(f"dpfl.runs: {str(error).removeprefix('--where ')}") from None
    return pd.DataFrame([row_of(record) for record in records])


@_typed
def curves(*chosen: Run | str) -> pd.DataFrame:
    """The metrics of runs: a row for every evaluated round, with the run, its algorithm, trust
    model, data set and seed, and the other settings that tell the runs apart.

    Args:
      chosen: runs, or ids (a unique beginning of one will do).
    """
    rows, records = [], [_found(one) for one in chosen]
    settings = [settings_of(record.config) for record in records]
    shown = dict.fromkeys([*CHOICES, *varying(settings)])
    for record, of in zip(records, settings, strict=True):
        about = {"run": record.id, **{key: of.get(key) for key in shown}}
        about["seed"] = record.config["seed"]
        rows += [{**about, **row} for row in record.rows]
    return pd.DataFrame(rows)


@_typed
def ledger(run: Run | str) -> pd.DataFrame:
    """What a run released: a row for each entry of its ledger."""
    return pd.DataFrame([asdict(entry) for entry in _found(run).ledger.entries])


@_typed
def model(run: Run | str) -> np.ndarray:
    """[d] a run's final model, flat, in the order of the model's parameters.

    Raises:
      StoreError: it was not kept; single runs keep it, and runtime.keep_model=true a grid's.
    """
    found: np.ndarray = _found(run).model
    return found


@_typed
def account(run: Run | str | Sequence[Run | str], delta: float | None = None) -> pd.DataFrame:
    """A run's ledger under every accountant: epsilon, or why there is none, and whether it is only
    claimed. Of several runs on the same data, with independent noise: of all that they released,
    together.

    Args:
      delta: None for the runs' own.
    """
    runs = [run] if isinstance(run, Run | str) else run
    records = [_found(one) for one in runs]
    claimed = some_claimed(records)
    return pd.DataFrame([asdict(one) | {"claimed": claimed} for one in prices_of(records, delta)])


@_typed
def calibrate(*overrides: str, plugins: Sequence[str] = ()) -> dict[str, Any]:
    """The noise with which `dpfl run OVERRIDES` meets its dp.epsilon, or without one the epsilon of
    the noise that is set, without running it.

    Returns:
      the mechanism's option and its value, if it has one, and the privacy report of such a run.
    """
    with _one_at_a_time:
        plan = private_plan(overrides, plugins)
    return noise_of(plan) | privacy_report(plan, plan.ledger())


@_typed
def audit(
    *overrides: str,
    plugins: Sequence[str] = (),
    canaries: int = 1000,
    confidence: float = 0.95,
    quiet: bool = False,
) -> dict[str, float]:
    """Lower bounds on the epsilon of `dpfl run OVERRIDES`, by `dpfl audit OVERRIDES`.

    Args:
      canaries: runs a side, on average.
      confidence: of each bound.

    Returns:
      `claim`, the epsilon that the run states; its `delta`; and every bound by name.
    """
    with _one_at_a_time:
        plan = plan_of(overrides, plugins)
        found, _ = audited(plan, canaries, confidence, quiet)
    return {"claim": found.claim, "delta": found.delta, **found.bounds(confidence)}


@_typed
def check(target: str, *overrides: str) -> pd.DataFrame:
    """Attacks on a plugin's file, or on a method, model or mechanism by its name, as `dpfl check`
    makes them.

    Returns:
      a row a check: of, check, result (pass, FAIL, refused, not measured, not reached), why.
    """
    with _one_at_a_time:
        return pd.DataFrame(checked(target, overrides), columns=["of", "check", "result", "why"])


@dataclass(frozen=True)
class Reproduced:
    """An artifact that was made.

    Attributes:
      folder: of its page, figure and files.
      table: a row for every measure, cell, seed and round of a series, with the paper's number
        where it has one. Where runs failed, and it had been whole before, as it was then.
      claims: a row for every claim, with what was found of it.
      gaps: runs that failed, one line each; the artifact is whole where there are none.
    """

    name: str
    folder: Path
    table: pd.DataFrame
    claims: pd.DataFrame
    gaps: Sequence[str]


@_typed
def reproduce(
    *names: str,
    scale: str = "quick",
    seeds: int | range | None = None,
    plugins: Sequence[str] = (),
    quiet: bool = False,
) -> list[Reproduced]:
    """Makes artifacts, as `dpfl reproduce NAMES scale=SCALE` does. Those of a paper, or of all,
    whose data are not here are left out.

    Args:
      names: "fedexp/table4", a paper, "all", or a file of your own.
      seeds: so many, 0, 1, ..., or which, in place of the declared ones; for a folder of their own.
      quiet: without progress.
    """
    from dpfl_cli.papers import select
    from dpfl_cli.reproduction.grid import with_seeds
    from dpfl_cli.reproduction.reproduce import reproduce as make
    from dpfl_cli.reproduction.tables import CSV, from_csv

    if not names:
        raise ConfigError("reproduce what? Give an artifact, a paper or all")
    for name in names:
        if "=" in name:
            raise ConfigError(f"{name}: names of artifacts alone; write scale='quick' outside them")

    with _one_at_a_time:
        note_command(["reproduce", *names, f"scale={scale}"])
        load_plugins(plugins)
        pass_on(plugins)
        outputs = outputs_dir()
        which = range(seeds) if isinstance(seeds, int) else seeds
        chosen = [with_seeds(one.at(scale), which) for one in select(names)]
        absent = partial(left_out, names, [])
        made = list(make(chosen, outputs, quiet, without=absent))
    return [
        Reproduced(
            one.job.artifact.name,
            one.folder,
            from_csv(
                one.job.artifact, {file: (one.folder / file).read_text() for file in CSV}
            ).frame,
            pd.DataFrame(map(attrgetter(*FOUND), one.verdicts), columns=FOUND),
            one.gaps,
        )
        for one in made
    ]


def _found(run: Run | str) -> Run:
    return own_store().match(run) if isinstance(run, str) else run
