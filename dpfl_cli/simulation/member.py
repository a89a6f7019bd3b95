"""A run in progress: what it needs to go on, alone or stacked with others."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from operator import itemgetter

import torch
from torch import Tensor

from dpfl_cli.algorithms.base import State
from dpfl_cli.config.errors import PrivacyError
from dpfl_cli.data.files import with_digest, without_digest
from dpfl_cli.privacy.client_values import is_raw, opened
from dpfl_cli.privacy.ledger import LastBatches, Ledger
from dpfl_cli.simulation.run_plan import Plan

MetricsRow = dict[str, float]
PLAIN = (
    "round",
    "rows",
    "seconds",
    "computed",
    "compute_at",
    "unreleased",
    "claims",
    "own",
    "batches",
)  # saved as they are


@dataclass
class Member:
    """One run of a stack.

    Draws, ledger, checkpoints and results belong to it, so that nothing about a run depends on its
    company.

    Attributes:
      round: rounds done.
      state: its slice of the stack's (plain tensors, no axis of runs); None before round 0 is set
        up.
      own: names of client states that are own values (`privacy.client_values`).
      recent: [k] the last models, newest last, as many as the evaluation averages over.
      rows: one mapping per evaluated round.
      batches: the last ones that it released: none is released again.
      seconds: time spent on it, shared evenly among the members of a stack.
      computed: that part of them in which the algorithm computed (its setup and its rounds, no
        evaluation).
      compute_at: evaluated round -> `computed` until then.
      unreleased: names of reported metrics that look at client data without a release.
      claims: why bounds of releases were not proved, where dp.mode=paper made them all the same.
      diverged: why it did; None where it did not.
    """

    plan: Plan
    round: int = 0
    state: State | None = None
    own: list[str] = field(default_factory=list)
    recent: list[Tensor] = field(default_factory=list)
    rows: list[MetricsRow] = field(default_factory=list)
    ledger: Ledger = field(default_factory=Ledger)
    batches: LastBatches = field(default_factory=dict)
    seconds: float = 0.0
    computed: float = 0.0
    compute_at: dict[int, float] = field(default_factory=dict)
    unreleased: list[str] = field(default_factory=list)
    claims: list[str] = field(default_factory=list)
    diverged: str | None = None

    @property
    def finished(self) -> bool:
        """Whether it has no rounds to come."""
        return self.diverged is not None or self.round >= self.plan.last_round

    @property
    def due(self) -> bool:
        """Whether its model is to be evaluated now, once: at round 0, where `evaluation` says so,
        and after the last round.
        """
        number, plan = self.round, self.plan
        if number in self.compute_at:
            return False
        return number in (0, plan.last_round, plan.evaluation.after(number - 1))

    def take(self, state: State, run: int) -> None:
        """Keeps its slice of the state of a stack, in which it is this run."""
        self.state = plain(state, itemgetter(run))
        self.own = [name for name, value in state.clients.items() if not is_raw(value)]

    def check_ledger(self) -> None:
        """Refuses a run whose ledger is not the one that was planned: a release too many, one never
        made, other noise.
        """
        planned, written = (
            {entry.name: replace(entry, sensitivity=None) for entry in ledger.entries}
            for ledger in (self.plan.ledger(self.round), self.ledger)
        )
        if planned != written:
            meant, made = (
                ", ".join(f"{entry.name} x {entry.count}" for entry in entries.values())
                or "nothing"
                for entries in (planned, written)
            )
            raise PrivacyError(
                f"the ledger after {self.round} rounds ({made}) is not what "
                f"algorithm={self.plan.algorithm.name} declared ({meant}): its releases and its "
                "round must agree"
            )

    def to_bytes(self) -> bytes:
        """The member as a checkpoint: what torch saves, `with_digest`."""
        buffer = io.BytesIO()
        saved = {
            "id": self.plan.id,
            "state": None if self.state is None else vars(plain(self.state, _own)),
            "recent": [_own(value) for value in self.recent],
            "ledger": self.ledger.to_json(),
            **{name: getattr(self, name) for name in PLAIN},
        }
        torch.save(saved, buffer)
        return with_digest(buffer.getvalue())

    @classmethod
    def from_bytes(cls, plan: Plan, payload: bytes) -> Member:
        """The member that a checkpoint holds.

        Raises:
          ValueError: it is damaged, or of another run.
        """
        try:
            # those of before have no claims
            saved = {"claims": []} | torch.load(
                io.BytesIO(without_digest(payload)), weights_only=True
            )
            run_id, state = saved["id"], saved["state"]
            member = cls(
                plan,
                state=None if state is None else State(**state),
                recent=saved["recent"],
                ledger=Ledger.from_json(saved["ledger"]),
                **{name: saved[name] for name in PLAIN},
            )
        except Exception as error:  # torch.load raises many kinds on a damaged file
            raise ValueError(f"damaged checkpoint: {error}") from error
        if run_id != plan.id:
            raise ValueError("checkpoint of another run")
        return member


def plain(state: State, change: Callable[[Tensor], Tensor]) -> State:
    """A state of plain tensors, each of them changed."""
    sides = state.server, state.clients
    return State(*({name: change(opened(one)) for name, one in side.items()} for side in sides))


def _own(value: Tensor) -> Tensor:
    """A tensor in memory of its own: a slice would be saved with all that it is cut from."""
    return value.cpu().clone()
