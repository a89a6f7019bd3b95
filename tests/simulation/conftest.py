"""Shared by tests of the engine: whole batches of runs, and the same without any replaying."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dpfl_cli.simulation import replay
from dpfl_cli.simulation.engine import Member, run_members
from dpfl_cli.simulation.plan import Plan


def finish(plans: list[Plan]) -> dict[str, Member]:
    """The runs of these plans at their end, by id."""
    return {member.plan.id: member for member in run_members([Member(plan) for plan in plans], lambda m: None, lambda m: None)}


@pytest.fixture
def as_it_is(monkeypatch: pytest.MonkeyPatch) -> Callable[[list[Plan]], dict[str, Member]]:
    """As `finish`, every round as it is: without replaying, leaps or graphs."""

    def run(plans: list[Plan]) -> dict[str, Member]:
        with monkeypatch.context() as patch:
            patch.setattr(replay, "WORTHWHILE", 10**9)
            return finish(plans)

    return run
