"""Shared by tests of the engine: whole stacks of runs, and what happens in a round."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from dpfl_cli.algorithms.base import Round, State
from dpfl_cli.simulation.execute import run_members
from dpfl_cli.simulation.member import Member
from dpfl_cli.simulation.run_plan import Plan


def finish(plans: list[Plan]) -> dict[str, Member]:
    """The runs of these plans at their end, by id."""
    return {member.plan.id: member for member in run_members([Member(plan) for plan in plans])}


def before_rounds(
    patch: pytest.MonkeyPatch, method: type, act: Callable[[State, Round], None]
) -> None:
    """Has `act` called with the state and the round before every round of a method."""
    original = method.round  # type: ignore[attr-defined]

    def round_(self: Any, state: State, at: Round) -> Any:
        act(state, at)
        return original(self, state, at)

    patch.setattr(method, "round", round_)
