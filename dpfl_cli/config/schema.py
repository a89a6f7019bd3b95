"""Typed config of the parts that every run has; components bring their own settings."""

from __future__ import annotations

import re
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field

from dpfl_cli.config.component import Settings


class DpSettings(Settings):
    """The trust model, what is protected, how epsilon is stated, and how noise is set from a target.

    Attributes:
      calibration: what sets the noise for the target: "accountant" the run's own; "zcdp" and "analytic" proved closed forms;
        "lemma1" and "record_heuristic" formulas of papers, under which the target may be nominal (`privacy.nominal`).
      v: the constant of lemma1.
      releases: how many the noise is for: those of the run's own schedule, or as many as a random schedule makes on average.
    """

    later: ClassVar[frozenset[str]] = frozenset({"calibration", "v", "releases"})
    name: str
    trust: Literal["none", "local", "central", "secure_aggregation"]
    unit: Literal["client", "record"]
    relation: Literal["replace_one", "add_or_remove", "zero_out"]
    mode: Literal["sound", "paper"]
    epsilon: float | None = Field(gt=0)
    convention: str | None
    delta: float = Field(gt=0, lt=1)
    calibration: Literal["accountant", "zcdp", "analytic", "lemma1", "record_heuristic"] = "accountant"
    v: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    releases: Literal["realised", "expected"] = "realised"


class EvaluationSettings(Settings):
    """When models are evaluated, and which."""

    every: int = Field(ge=1)
    average_last: int = Field(ge=1)
    final_window: int = Field(ge=1)


class RuntimeSettings(Settings):
    """How a run is computed; not part of its identity.

    Attributes:
      noise: who draws noise and batches: "auto" is a GPU itself, the host where there is none; "host" draws on the CPU whatever
        the device, the same numbers on both; "device" draws on the GPU, other numbers of the same law.
    """

    device: Literal["auto", "cpu", "cuda"]
    noise: Literal["auto", "host", "device"] = "auto"
    checkpoint_every: float = Field(gt=0)
    force: bool


UNITS = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}
UNITS |= {"kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40}


def bytes_of(value: Any) -> int | None:
    """Bytes from a number of them, or from a text with a unit; None stays None.

    >>> bytes_of("4GiB"), bytes_of("500 MB"), bytes_of(1024)
    (4294967296, 500000000, 1024)

    Raises:
      ValueError: it says no positive number of bytes.
    """
    if value is None:
        return None
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", str(value).lower())
    unit = UNITS.get(found.group(2)) if found else None
    size = int(float(found.group(1)) * unit) if found and unit else 0
    if size <= 0 or isinstance(value, bool):
        raise ValueError("not an amount of memory; write bytes, or a text such as 4GiB or 500MB")
    return size


class LauncherSettings(Settings):
    """What the runs of a command share; not part of a run's identity."""

    memory: Annotated[int | None, BeforeValidator(bytes_of)]


class RootSettings(Settings):
    """The scalars at the root of a run's config."""

    seed: int = Field(ge=0, lt=2**63)
    rounds: int = Field(ge=1)
