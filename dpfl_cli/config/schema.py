"""Typed config of the parts that every run has; components bring their own settings."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from dpfl_cli.config.component import Settings


class DpSettings(Settings):
    """The trust model, what is protected, and how epsilon is stated."""

    name: str
    trust: Literal["none", "local", "central", "secure_aggregation"]
    unit: Literal["client", "record"]
    relation: Literal["replace_one", "add_or_remove", "zero_out"]
    mode: Literal["sound", "paper"]
    epsilon: float | None = Field(gt=0)
    convention: str | None
    delta: float = Field(gt=0, lt=1)


class EvaluationSettings(Settings):
    """When models are evaluated, and which."""

    every: int = Field(ge=1)
    average_last: int = Field(ge=1)
    final_window: int = Field(ge=1)


class RuntimeSettings(Settings):
    """How a run is computed; not part of its identity."""

    device: Literal["auto", "cpu", "cuda"]
    memory: int | None = Field(gt=0)
    checkpoint_every: float = Field(gt=0)
    force: bool


class RootSettings(Settings):
    """The scalars at the root of a run's config."""

    seed: int = Field(ge=0, lt=2**63)
    rounds: int = Field(ge=1)
