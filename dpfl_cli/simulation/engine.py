"""The engine: runs a batch of plans that share shapes, round by round, as one tensor program.

A `Member` is one run of a batch: what it needs to go on, alone or in another batch. The batch stacks its members' states
along a leading axis of runs; a member that has finished or diverged leaves it, and the rest goes on. Draws, ledgers,
checkpoints and results belong to members, so that nothing about a run depends on its company.
"""

from __future__ import annotations

import io
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, get_args

import numpy as np
import torch
from torch import Tensor

from dpfl_cli.algorithms.base import Later, State
from dpfl_cli.config.component import Settings
from dpfl_cli.config.errors import ConfigError, PrivacyError
from dpfl_cli.config.identity import canonical_json
from dpfl_cli.data.federation import Dataset, Federation, Partition
from dpfl_cli.data.streams import Streams
from dpfl_cli.models.objective import ClientSide
from dpfl_cli.privacy.client_values import Diagnostic, Unreleased, client_values, opened, shown, versions
from dpfl_cli.privacy.ledger import BatchLedger, Ledger
from dpfl_cli.privacy.mechanism import Site
from dpfl_cli.simulation.graph import graphs_of
from dpfl_cli.simulation.plan import Part, Plan
from dpfl_cli.simulation.replay import HostStreams, Replay

Row = dict[str, float]
LOOK_EVERY = 0.02  # seconds between looks at members and progress


@dataclass
class Member:
    """One run of a batch.

    Attributes:
      round: rounds done.
      server, clients: its slice of the state (no axis of runs), None before round 0 is set up.
      recent: [k] the last models, newest last, as many as the evaluation averages over.
      rows: one mapping per evaluated round.
      seconds: time spent on it, shared evenly among the members of a batch.
      computed: that part of them in which the algorithm computed (its setup and its rounds, no evaluation).
      compute_at: evaluated round -> `computed` until then.
      unreleased: names of reported metrics that look at client data without a release.
    """

    plan: Plan
    round: int = 0
    server: dict[str, Tensor] | None = None
    clients: dict[str, Tensor] | None = None
    recent: list[Tensor] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    ledger: Ledger = field(default_factory=Ledger)
    seconds: float = 0.0
    computed: float = 0.0
    compute_at: dict[int, float] = field(default_factory=dict)
    unreleased: list[str] = field(default_factory=list)
    diverged: str | None = None

    @property
    def finished(self) -> bool:
        return self.diverged is not None or self.round >= self.plan.rounds

    def to_bytes(self) -> bytes:
        """The member as a checkpoint."""
        buffer = io.BytesIO()
        tensors = {
            "server": {name: opened(value).cpu().clone() for name, value in (self.server or {}).items()},
            "clients": {name: opened(value).cpu().clone() for name, value in (self.clients or {}).items()},
            "recent": [value.cpu().clone() for value in self.recent],
        }
        facts = {
            "id": self.plan.id,
            "round": self.round,
            "rows": self.rows,
            "ledger": self.ledger.to_json(),
            "seconds": self.seconds,
            "computed": self.computed,
            "compute_at": list(self.compute_at.items()),
            "unreleased": self.unreleased,
        }
        torch.save({**tensors, "facts": json.dumps(facts)}, buffer)
        return buffer.getvalue()

    def check_ledger(self) -> None:
        """Refuses a run whose ledger is not the one that was planned: a release too many, one never made, other noise."""
        planned = [replace(entry, sensitivity=None) for entry in self.plan.ledger(self.round).entries]
        written = [replace(entry, sensitivity=None) for entry in self.ledger.entries]
        if sorted(planned, key=lambda entry: entry.name) != sorted(written, key=lambda entry: entry.name):
            made = ", ".join(f"{entry.name} x {entry.count}" for entry in written) or "nothing"
            meant = ", ".join(f"{entry.name} x {entry.count}" for entry in planned) or "nothing"
            raise PrivacyError(
                f"the ledger after {self.round} rounds ({made}) is not what algorithm={self.plan.algorithm.name} declared "
                f"({meant}): its releases and its round must agree"
            )

    @classmethod
    def from_bytes(cls, plan: Plan, payload: bytes) -> Member:
        """The member that a checkpoint holds; ValueError where it is not one of this plan."""
        try:
            saved = torch.load(io.BytesIO(payload), weights_only=True)
            facts = json.loads(saved["facts"])
        except Exception as error:  # torch.load raises many kinds on a damaged file
            raise ValueError(f"damaged checkpoint: {error}") from error
        if facts["id"] != plan.id:
            raise ValueError("checkpoint of another run")
        return cls(
            plan=plan,
            round=facts["round"],
            server=saved["server"],
            clients=saved["clients"],
            recent=saved["recent"],
            rows=facts["rows"],
            ledger=Ledger.from_json(facts["ledger"]),
            seconds=facts["seconds"],
            computed=facts.get("computed", 0.0),  # a checkpoint of an earlier dpfl has none
            compute_at=dict(facts.get("compute_at", [])),
            unreleased=facts["unreleased"],
        )


def batch_key(plan: Plan) -> str:
    """Plans with equal keys can share a batch: same shapes and same code path, differing in seed, rounds and numbers."""
    shapes = {
        "algorithm": _without_numbers(plan.algorithm),
        "mechanism": _without_numbers(plan.mechanism),
        "dp": [plan.dp.trust, plan.dp.unit, plan.dp.relation, plan.dp.mode],
        "data": [plan.identity["dataset"], plan.partitioner.identity(), plan.model.identity()],
        "releases": [[spec.name, spec.rate, spec.disjoint] for spec in plan.specs],
        "clients": plan.clients,
        "dimension": plan.dimension,
        "evaluation": plan.evaluation.model_dump(),
        "device": plan.runtime.device,
        "noise": plan.runtime.noise,
    }
    return canonical_json(shapes)


def is_number(settings: type[Settings], name: str) -> bool:
    """Whether a setting is a float (or an optional one) and so may differ between the runs of a batch."""
    annotation = settings.model_fields[name].annotation
    return annotation is float or float in get_args(annotation)


def _without_numbers(part: Part) -> dict[str, Any]:
    values = part.settings.model_dump()
    for name, value in values.items():
        if is_number(type(part.settings), name) and (value is not None or name == "clip_norm"):
            values[name] = "number"
    return {"name": part.name, "revision": part.component.revision, **values}


def stacked(settings: Sequence[Settings], device: torch.device) -> SimpleNamespace:
    """Settings of R runs as one object: floats become tensors [R] (a clip norm of None is infinite), the rest is shared."""
    kind = type(settings[0])
    values: dict[str, Any] = {}
    for name in kind.model_fields:
        column = [getattr(one, name) for one in settings]
        if name == "clip_norm":
            column = [float("inf") if value is None else value for value in column]
        if is_number(kind, name) and column[0] is not None:
            values[name] = torch.tensor(column, dtype=torch.float64, device=device)
        else:
            values[name] = column[0]
    return SimpleNamespace(**values)


_federations: dict[str, Federation] = {}
_KEPT_FEDERATIONS = 64


def federation_of(plan: Plan) -> Federation:
    """The plan's data, dealt to its clients; cached while the process lives."""

    key = canonical_json([plan.identity["dataset"], plan.partitioner.identity(), plan.seed])
    if key not in _federations:
        dataset = plan.dataset.target.load(plan.dataset.settings, plan.seed)
        partition = plan.partitioner.target.partition(plan.partitioner.settings, dataset, plan.seed)
        found = next((known for known in _federations.values() if _same_federation(known, dataset, partition)), None)
        while len(_federations) >= _KEPT_FEDERATIONS:
            del _federations[next(iter(_federations))]
        _federations[key] = found or Federation(dataset, partition)
    return _federations[key]


def _same_federation(known: Federation, dataset: Dataset, partition: Partition) -> bool:
    """Whether it is the one at hand: runs whose seed changes neither data nor partition share features in products."""
    return (
        known.dataset.train is dataset.train
        and known.dataset.test is dataset.test
        and np.array_equal(known.partition.offsets, partition.offsets)
        and np.array_equal(known.partition.indices, partition.indices)
    )


def pick_device(name: str) -> torch.device:
    """auto: the GPU if there is one."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(name)


def noise_device(name: str, device: torch.device) -> torch.device | None:
    """Where noise is drawn that a run needs on its device: there, or on the host (None). auto: by a GPU itself.

    Never by torch's generator of a CPU, which keeps 32 bits of what it is seeded with: addresses would share their noise.
    """
    asked = name == "device" or (name == "auto" and device.type == "cuda")
    return device if asked and device.type != "cpu" else None


class Batch:
    """Members with equal `batch_key`, stacked."""

    def __init__(self, members: Sequence[Member]) -> None:
        self._begin(members, None)

    def restart(self, members: Sequence[Member]) -> None:
        """Stacks these members, some of those at hand; the state goes on from what each holds."""
        self.replay.close()
        self._begin(members, self.streams)

    def _begin(self, members: Sequence[Member], before: Streams | None) -> None:
        """`before`: the streams of a batch that has ended."""
        self.members = list(members)
        plans = [member.plan for member in self.members]
        first = plans[0]
        self.rounds = np.array([member.round for member in self.members])
        self._horizons = np.array([plan.rounds for plan in plans])
        self._computing = 0.0  # seconds of algorithm's work that no member has got yet
        self.device = pick_device(first.runtime.device)
        self.algorithm = first.algorithm.target(stacked([plan.algorithm.settings for plan in plans], self.device))
        self.replay = Replay(int((self._horizons - self.rounds).min()), self.algorithm, graphs_of(self.device))
        federations = [federation_of(plan) for plan in plans]
        distinct = list({id(item): item for item in federations}.values())
        position = {id(item): number for number, item in enumerate(distinct)}
        index = np.array([position[id(item)] for item in federations])
        self.objective = first.model.target(first.model.settings, distinct, index, self.device)
        self.objective.host = self.replay.host
        self._unreleased = sorted(self.objective.unreleased())  # and, once somebody looked at diagnostics, of these
        self.clients_view = ClientSide(self.objective)
        if first.dp.unit == "record" and first.dp.trust != "none" and not self.objective.held.all():
            raise ConfigError(
                f"partitioner={first.partitioner.name}: it leaves a client without records, which would only add noise; "
                "a record-level method needs at least one record at each client"
            )
        self.streams = HostStreams([plan.seed for plan in plans], self.replay, noise_device(first.runtime.noise, self.device))
        if before is not None:
            self.streams.take_over(before)
        self.ledger = BatchLedger(len(plans), started=[member.ledger for member in self.members])
        site = Site(
            specs=[{spec.name: spec for spec in plan.specs} for plan in plans],
            horizons=self._horizons.tolist(),
            trust=first.dp.trust,
            relation=first.dp.relation,
            unit=first.dp.unit,
            dimension=first.dimension,
            clients=first.clients,
            streams=self.streams,
            ledger=self.ledger,
            sound=first.dp.mode == "sound",
            host=self.replay.host,
        )
        self.mechanism = first.mechanism.target([plan.mechanism.settings for plan in plans], site)
        self.state = self._restore()
        self.recent = self._recent()

    def _restore(self) -> State:
        fresh = [member for member in self.members if member.server is None]
        began = time.perf_counter()
        initial = self.algorithm.init(self.clients_view, self.streams) if fresh else None
        self._settle()
        self._computing += time.perf_counter() - began
        if initial is not None:
            self._check(initial)
            for run, member in enumerate(self.members):
                if member.server is None:
                    member.server = {name: value[run] for name, value in initial.server.items()}
                    member.clients = {name: opened(value)[run] for name, value in initial.clients.items()}
                    member.recent = [member.server["model"]]
        server = self._stack([member.server or {} for member in self.members])
        clients = {name: client_values(value) for name, value in self._stack([m.clients or {} for m in self.members]).items()}
        return State(server, clients)

    def _stack(self, parts: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
        return {name: torch.stack([opened(part[name]).to(self.device) for part in parts]) for name in parts[0]}

    def _recent(self) -> list[Tensor]:
        """The last models, [R, d] each, newest last; a run that has fewer repeats its oldest (weights correct that)."""
        depth = self.members[0].plan.evaluation.average_last
        padded = [[member.recent[0]] * (depth - len(member.recent)) + member.recent for member in self.members]
        self._known = np.array([len(member.recent) for member in self.members])
        return [torch.stack([models[position].to(self.device) for models in padded]) for position in range(depth)]

    def step(self, shown: bool = True) -> Mapping[str, Tensor]:
        """One round of every member; returns the algorithm's diagnostics (not computed, or none, unless `shown`)."""
        began = time.perf_counter()
        self.rounds += 1  # in place: a replayed round finds its numbers here
        try:
            self.state, diagnostics = self.replay.round(self._round, self.state, self.rounds, shown)
        except BaseException:
            self.rounds -= 1
            raise
        model = self.state.server["model"]
        if self.replay.replaying and len(self.recent) > 1:
            model = model.clone()  # the next round is written over it
        self.recent = [*self.recent[1:], model]
        self._known = np.minimum(self._known + 1, len(self.recent))
        if shown:
            diagnostics = dict(diagnostics)
            self._settle()
        self._computing += time.perf_counter() - began
        return diagnostics

    def leap(self, most: int) -> int:
        """Does up to `most` rounds of every member at once, where that is possible; returns how many, perhaps none.

        Nobody sees the diagnostics of these rounds.
        """
        began = time.perf_counter()
        models = self.replay.leap(self.rounds, most)
        if models is None:
            return 0
        self.rounds += len(models)
        depth = len(self.recent)
        self.recent = [self.state.server["model"]] if depth == 1 else [*self.recent, *models[-depth:].clone()][-depth:]
        self._known = np.minimum(self._known + len(models), depth)
        self._computing += time.perf_counter() - began
        return len(models)

    def _settle(self) -> None:
        """Waits for the GPU, so that a clock can be read."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def _round(self, before: State, rounds: np.ndarray) -> tuple[State, Mapping[str, Tensor]]:
        """One round of the algorithm, with what it may not do checked."""
        held = (*before.server.values(), *before.clients.values())
        unchanged = versions(held)
        state, diagnostics = self.algorithm.round(before, self.clients_view, self.mechanism, self.streams, rounds)
        self._check(state)
        if versions(held) != unchanged:
            raise PrivacyError(f"{type(self.algorithm).__name__} changed its state in place: return a new State with new tensors")
        return state, Later(lambda: self._shown(diagnostics))

    def _shown(self, diagnostics: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The plain tensors inside an algorithm's diagnostics, whose marks are noted."""
        marked = {name for name, value in diagnostics.items() if isinstance(value, Diagnostic)}
        self._unreleased = sorted(marked | self.objective.unreleased())
        return {name: shown(value) for name, value in diagnostics.items()}

    def until_event(self) -> int:
        """Rounds up to the next after which a member is evaluated or at its end."""
        every = self.members[0].plan.evaluation.every
        return int(np.minimum(every - self.rounds % every, self._horizons - self.rounds).min())

    def write_back(self, seconds: float = 0.0) -> None:
        """Gives every member what it knows of its rounds: their number, the unreleased diagnostics, its share of the times."""
        for member, round_ in zip(self.members, self.rounds.tolist(), strict=True):
            if round_ > member.round:
                member.unreleased = sorted({*member.unreleased, *self._unreleased})
            member.round = round_
            member.seconds += seconds / len(self.members)
            member.computed += self._computing / len(self.members)
        self._computing = 0.0

    def _check(self, state: State) -> None:
        for name, value in state.server.items():
            if isinstance(value, Unreleased):
                raise PrivacyError(
                    f"server state '{name}' of {type(self.algorithm).__name__} was computed from client values that no "
                    "mechanism released"
                )
        for name, value in state.clients.items():
            if isinstance(value, Diagnostic):
                raise PrivacyError(
                    f"client state '{name}' of {type(self.algorithm).__name__} holds a diagnostic: for display only"
                )

    def evaluate(self, diagnostics: Mapping[str, Tensor]) -> None:
        """Appends a row to every member that is due and has none yet, and marks those that diverged."""
        self.write_back()
        due = [run for run, member in enumerate(self.members) if is_due(member)]
        if not due:
            return
        self.mechanism.verify()
        self.clients_view.verify()
        depth = len(self.recent)
        models = torch.stack(self.recent)  # [k, R, d]
        known = torch.as_tensor(self._known, device=self.device)
        newest = torch.arange(depth, device=self.device).reshape(-1, 1) >= depth - known
        weights = newest.to(models.dtype) / known.to(models.dtype)
        average = models[0] if depth == 1 else weights[0].unsqueeze(-1) * models[0]
        for own, model in zip(weights[1:], models[1:], strict=True):  # one by one: the order of a sum must not depend on R
            average = average + own.unsqueeze(-1) * model
        metrics = self.objective.metrics(average)
        values = {**metrics, **diagnostics}
        finite = torch.isfinite(average).all(dim=1) & torch.isfinite(self.recent[-1]).all(dim=1)
        table = torch.stack([value.to(torch.float64) for value in (finite, *values.values())]).cpu().numpy()
        for run in due:
            member = self.members[run]
            row: Row = {"round": member.round}
            row.update({name: float(table[number, run]) for number, name in enumerate(values, start=1)})
            member.rows.append(row)
            member.compute_at[member.round] = member.computed
            bad = [name for name in metrics if not np.isfinite(row[name])]
            if table[0, run] == 0.0:
                member.diverged = f"the model is not finite after round {member.round}"
            elif bad:
                member.diverged = f"{bad[0]} is not finite after round {member.round}"

    def collect(self) -> None:
        """Gives every member its slice of the state, its models and its ledger."""
        self.write_back()
        for run, member in enumerate(self.members):
            member.server = {name: value[run] for name, value in self.state.server.items()}
            member.clients = {name: opened(value)[run] for name, value in self.state.clients.items()}
            member.recent = [models[run] for models in self.recent[len(self.recent) - int(self._known[run]) :]]
            member.ledger = self.ledger.of_run(run)


def is_due(member: Member) -> bool:
    """Whether a member's model after the round it is at is to be evaluated: round 0, every `every`, and the last, once."""
    if member.rows and member.rows[-1]["round"] >= member.round:
        return False
    return member.round % member.plan.evaluation.every == 0 or member.round >= member.plan.rounds


def run_members(
    members: Sequence[Member],
    checkpoint: Callable[[Member], None],
    advance: Callable[[Sequence[Member]], None],
    stop: Callable[[], bool] = lambda: False,
) -> Iterator[Member]:
    """Runs members to their end; yields each as it finishes or diverges, with its state collected.

    Args:
      members: runs with equal batch keys, fresh or from checkpoints, at any rounds.
      checkpoint: called with each unfinished member every `runtime.checkpoint_every` seconds.
      advance: called with the members in flight, whose `round` says how far each is; `LOOK_EVERY` seconds apart and when a member
        is evaluated.
      stop: asked as often; True saves a checkpoint of every unfinished member and raises KeyboardInterrupt.
    """
    batch = Batch(members)
    try:
        yield from _rounds(batch, checkpoint, advance, stop)
    except Exception:
        # what the members had when they stopped, for the record of a failure; the ledger may hold part of the round that broke
        batch.collect()
        raise


def _rounds(
    batch: Batch,
    checkpoint: Callable[[Member], None],
    advance: Callable[[Sequence[Member]], None],
    stop: Callable[[], bool],
) -> Iterator[Member]:
    batch.evaluate({})  # round 0 of the fresh ones
    clock = time.perf_counter()
    saved = clock
    while True:
        done = [member for member in batch.members if member.finished]
        if done:
            batch.collect()
            for member in done:
                member.check_ledger()
            yield from done
            rest = [member for member in batch.members if not member.finished]
            if not rest:
                return
            batch.restart(rest)
        left = batch.until_event()
        while left:
            taken = batch.leap(left - 1)
            if taken:
                left -= taken
            else:
                left -= 1
                diagnostics = batch.step(shown=left == 0)
                if left == 0:
                    batch.evaluate(diagnostics)
            now = time.perf_counter()
            if left and now - clock < LOOK_EVERY:
                continue
            stopping = stop()
            batch.write_back(now - clock)
            clock = now
            advance(batch.members)
            if stopping or now - saved >= batch.members[0].plan.runtime.checkpoint_every:
                batch.collect()
                for member in batch.members:
                    if not member.finished:
                        checkpoint(member)
                if stopping and any(not member.finished for member in batch.members):
                    raise KeyboardInterrupt
                saved = time.perf_counter()
