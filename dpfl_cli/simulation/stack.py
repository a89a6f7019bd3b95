"""Runs of equal shapes stacked along a leading axis, that go on as one tensor program."""

import functools
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from types import SimpleNamespace
from typing import Any, NoReturn, get_args

import numpy as np
import torch
from torch import Tensor

from dpfl_cli.algorithms.base import Diagnostics, Round, State
from dpfl_cli.config.component import UNLIMITED, Settings
from dpfl_cli.config.errors import ConfigError, DpflError, PrivacyError, UnknownOption, nearest
from dpfl_cli.data.devices import noise_device, pick_device
from dpfl_cli.data.federation import Federation
from dpfl_cli.data.streams import Streams
from dpfl_cli.models.client_side import ClientSide
from dpfl_cli.privacy.client_values import (
    Diagnostic,
    Unreleased,
    client_values,
    number_shown,
    own_values,
    versions,
)
from dpfl_cli.privacy.draws import drawn_cohort
from dpfl_cli.privacy.ledger import BatchLedger
from dpfl_cli.privacy.mechanism import Site
from dpfl_cli.simulation.cohorts import Tensors, held_by, numbered, put_back, taken, view_of
from dpfl_cli.simulation.confined import PluginMemory, closed, confined, refuse_read
from dpfl_cli.simulation.member import Member
from dpfl_cli.simulation.run_plan import (
    Choice,
    Options,
    Plan,
    check_unchanged,
    noted,
)

# what the first run's declaration says for all; `per_round` is part of the addresses of noise
DECLARED = attrgetter(
    *("name", "rate", "batch", "disjoint", "per_round", "one_message", "sums_suffice", "echo")
)


def stack_key(plan: Plan) -> str:
    """Plans with equal keys can be stacked: they have the same shapes and the same code path, and
    differ in seed, rounds and numbers.
    """
    dp = plan.dp
    shapes = [
        [shape_of(plan.algorithm), shape_of(plan.mechanism)],
        [dp.trust, dp.unit, dp.relation, dp.mode, dp.noise],
        [plan.identity["dataset"], plan.partitioner.identity(), plan.model.identity()],
        [plan.participation, plan.evaluation, plan.runtime.device, plan.runtime.noise],
        [*map(DECLARED, plan.specs)],
    ]
    return str(shapes)


def shape_of(part: Choice) -> Options:
    """A component and its settings, numbers that may differ left out."""
    values = {
        name: "number" if _is_number(type(part.settings), name, value) else value
        for name, value in part.settings.model_dump().items()
    }
    return {"name": part.name, "revision": part.component.revision, **values}


def _is_number(settings: type[Settings], name: str, value: Any) -> bool:
    """Whether a setting is a number that may differ between the runs of a stack."""
    field = settings.model_fields[name]
    may_be_float = float in (field.annotation, *get_args(field.annotation))
    return may_be_float and (value is not None or UNLIMITED in field.metadata)


class Hyper(SimpleNamespace):
    """Options of a method by name."""

    def __getattr__(self, name: str) -> NoReturn:
        raise UnknownOption(f"no option of the method has this name; {nearest(name, vars(self))}")


def _kind(value: Any) -> str:
    """The name of a value's type, where nobody has named it after data."""
    kind = type(value)
    known = kind.__module__.partition(".")[0] in ("builtins", "dpfl_cli", "torch", "numpy")
    return kind.__name__ if known else "something else"


def stacked(settings: Sequence[Settings], device: torch.device) -> SimpleNamespace:
    """Settings of R runs as one object: numbers become tensors [R] (infinite where absence means
    that there is no limit), the rest is shared.
    """
    kind, values = type(settings[0]), {}
    for name in kind.model_fields:
        column = [getattr(one, name) for one in settings]
        values[name] = column[0]
        if _is_number(kind, name, column[0]):
            column = [float("inf") if value is None else value for value in column]
            values[name] = torch.tensor(column, dtype=torch.float64, device=device)
    return Hyper(**values)


class Stack:
    """Members with equal `stack_key`.

    Args:
      members: R of them, fresh or from checkpoints, at any rounds.
      federations: [R] their data, where they are not those of their plans.
      noise_seeds: [R] of what the mechanism draws, where they are not those of their plans.

    Attributes:
      plan: the first one's, for what all share.
      rounds: [R] rounds done.
      state: of all members, stacked.
      recent: the last models, [R, d] each, newest last; a member that has fewer repeats its oldest.
    """

    def __init__(
        self,
        members: Sequence[Member],
        federations: Sequence[Federation] | None = None,
        noise_seeds: Sequence[int] | None = None,
    ) -> None:
        self.members = members = list(members)
        plans = [member.plan for member in members]
        self.plan = first = plans[0]
        self.rounds = np.array([member.round for member in members])
        self._last = [plan.last_round for plan in plans]
        self._computing = 0.0  # seconds of the algorithm's work that no member has got yet
        self.device = device = pick_device(first.runtime.device)
        torch.backends.cudnn.allow_tf32 = False  # float32 is float32 in convolutions too
        torch.set_float32_matmul_precision("highest")  # and where a file of somebody's wants less
        self._federations = held_by(plans, federations)
        distinct, index = numbered(self._federations)
        if first.data_files:  # what is read when it is first looked at: not while a method computes
            parts = [part for one in distinct for part in (one.dataset.train, one.dataset.test)]
            with noted(first.dataset):
                for records in [part for part in parts if part is not None]:
                    _ = records.features, records.targets
            refuse_read(first.own_modules, first.data_files)
        self._files = first.data_files
        with closed(self._files):
            self.algorithm = first.algorithm.target(
                stacked([plan.algorithm.settings for plan in plans], device)
            )
            self.objective = first.model.target(first.model.settings, distinct, index, device)
        check_unchanged(first, "model")
        self.clients_view = ClientSide(self.objective, first.dp.unit)
        if first.dp.unit == "record" and first.dp.trust != "none" and not self.objective.held.all():
            raise ConfigError(
                f"partitioner={first.partitioner.name}: it leaves a client without records, which "
                "would only add noise; a record-level method needs at least one record at each "
                "client"
            )
        self.ledger = BatchLedger(
            [member.ledger for member in members], [member.batches for member in members]
        )
        self._noise = self._streams(noise_seeds)
        site = Site(
            setups=[plan.setup for plan in plans],
            specs=[{spec.name: spec for spec in plan.specs} for plan in plans],
            streams=self._noise,
            ledger=self.ledger,
            sound=first.dp.mode == "sound",
        )
        with closed(self._files):
            chosen = [plan.mechanism.settings for plan in plans]
            self.mechanism = first.mechanism.target(chosen, site)
        made = (first.algorithm, self.algorithm), (first.mechanism, self.mechanism)
        files = [one.target.__module__ for one, _ in (*made, (first.model, None)) if one.plugin]
        self._memory = PluginMemory([which for one, which in made if one.plugin], files)
        self.method_streams = self.mechanism.streams()
        self._begin()
        states = [member.state for member in members if member.state is not None]
        server, clients = (
            {
                name: torch.stack([getattr(state, side)[name].to(device) for state in states])
                for name in getattr(states[0], side)
            }
            for side in ("server", "clients")
        )
        own = set.intersection(*(set(member.own) for member in members))
        self.state = State(
            server,
            {
                name: own_values(value) if name in own else client_values(value)
                for name, value in clients.items()
            },
        )
        recent = [member.recent for member in members]
        self.recent = [
            torch.stack([models[-min(age, len(models))].to(device) for models in recent])
            for age in range(min(first.evaluation.average_last, 1 + max(self._last)), 0, -1)
        ]

    def _streams(self, seeds: Sequence[int] | None) -> Streams:
        if seeds is None and self.plan.dp.noise == "secret":  # of seeds that nobody keeps
            return Streams([secrets.randbits(128) for _ in self.members])
        drawn_by = noise_device(self.plan.runtime.noise, self.device)
        return Streams(seeds or [member.plan.seed for member in self.members], drawn_by)

    def _begin(self) -> None:
        """Sets up round 0 of the members that are at their beginning."""
        self.refuse_kept()
        fresh = [run for run, member in enumerate(self.members) if member.state is None]
        if not fresh:
            return
        began = time.perf_counter()
        initial, _ = self._of_method(
            lambda: (self.algorithm.init(self.clients_view, self.method_streams), {})
        )
        self._wait()
        self._computing += time.perf_counter() - began
        if self.plan.sampling is not None and self.plan.algorithm.target.away == "stateless":
            for name in initial.clients:
                raise PrivacyError(
                    f"client state '{name}' of {type(self.algorithm).__name__}, which is declared "
                    "to keep none: say what becomes of it at clients that are away"
                )
        for run in fresh:
            member = self.members[run]
            member.take(initial, run)
            member.recent = [initial.server["model"][run]]

    def step(self, shown: bool = True) -> Tensors:
        """One round of every member; returns the algorithm's diagnostics, as it marked them, none
        unless `shown`.
        """
        began = time.perf_counter()
        rounds = self.rounds + 1
        rounds.setflags(write=False)  # a method gets it, and so does a mechanism
        self.state, diagnostics = self._round(self.state, rounds)
        self.rounds = self.rounds + 1
        self.recent = [*self.recent[1:], self.state.server["model"]]
        found: Tensors = {}
        if shown:
            found = confined(self._files, diagnostics)() if callable(diagnostics) else diagnostics
            self._wait()
        self._computing += time.perf_counter() - began
        return found

    def _round(self, before: State, rounds: np.ndarray) -> tuple[State, Diagnostics]:
        """One round of the algorithm, with what it may not do checked."""
        sampling, whole, view = self.plan.sampling, before, self.clients_view
        if sampling is not None:
            cohort = drawn_cohort(self._noise, sampling, rounds)
            view = view_of(cohort, self.objective, self._federations)
            before = State(whole.server, taken(cohort, whole.clients))
        held = (*before.server.values(), *before.clients.values())
        unchanged = versions(held)
        at = Round(view, self.mechanism, self.method_streams, rounds)
        state, diagnostics = self._of_method(lambda: self.algorithm.round(before, at))
        if versions(held) != unchanged:
            raise PrivacyError(
                f"{type(self.algorithm).__name__} changed its state in place: return a new State "
                "with new tensors"
            )
        if sampling is not None:
            state = State(state.server, put_back(cohort, state.clients, whole.clients))
        return state, diagnostics

    def _of_method(
        self, compute: Callable[[], tuple[State, Diagnostics]]
    ) -> tuple[State, Diagnostics]:
        """What a method computes, unless its state holds what it may not, or it went on after a
        refusal, which may tell of the data.
        """
        raised = DpflError.raised
        made = confined(self._files, compute)()
        method = type(self.algorithm).__name__
        if DpflError.raised != raised:
            raise PrivacyError(
                f"{method} caught an error of dpfl and went on: what it does then may depend on "
                "clients' data; let it through"
            )
        state, diagnostics = made if isinstance(made, tuple) and len(made) == 2 else (made, {})
        shows = isinstance(diagnostics, Mapping) or callable(diagnostics)
        if not isinstance(state, State) or made is state or not shows:
            kinds = map(_kind, made if isinstance(made, tuple) else [made])
            raise ConfigError(
                f"{method} returned {', '.join(kinds)}: `init` returns State(server, clients), "
                "`round` that and its diagnostics, as State(server, clients), {}"
            )
        for side, values in (("server", state.server), ("client", state.clients)):
            for name, value in values.items() if isinstance(values, Mapping) else [("", values)]:
                if not isinstance(value, Tensor):
                    raise ConfigError(
                        f"{side} state '{name}' of {method} is {_kind(value)}: states are tensors "
                        "by name"
                    )
        for name, value in state.server.items():
            if isinstance(value, Unreleased):
                raise PrivacyError(
                    f"server state '{name}' of {method} was computed from client values that no "
                    "mechanism released"
                )
        for name, value in state.clients.items():
            if isinstance(value, Diagnostic):
                raise PrivacyError(
                    f"client state '{name}' of {method} holds a diagnostic: for display only"
                )
        self._check_model(state)
        return state, diagnostics

    def _check_model(self, state: State) -> None:
        """Shapes and types of models are no client's data, and can be told."""
        wanted = [len(self.members), self.objective.dimension], self.objective.dtype
        model = state.server.get("model")
        found = None if model is None else (list(model.shape), model.dtype)
        if found != wanted:
            is_now = "is not there" if found is None else f"is {found[0]} of {found[1]}"
            raise ConfigError(
                f"server state 'model' of {type(self.algorithm).__name__} {is_now}, and must be "
                f"{wanted[0]} of {wanted[1]}; shape every option [R] by per_run(option, values)"
            )

    def refuse_kept(self) -> None:
        """Asked before a run begins or goes on and when metrics are read: it reads whole files."""
        self.objective.refuse_kept()
        self._memory.refuse()

    def _wait(self) -> None:
        """Waits for the GPU, so that a clock can be read."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def until_event(self) -> int:
        """Rounds up to the next after which a member is evaluated or at its end."""
        after = self.plan.evaluation.after
        counted = zip(self.rounds.tolist(), self._last, strict=True)
        return min(min(after(done) or last, last) - done for done, last in counted)

    def evaluate(self, diagnostics: Tensors) -> None:
        """Appends a row to every member that is due, notes what in it looks at client data, and
        marks those that diverged.
        """
        self.write_back()
        runs = len(self.members)
        plain = {name: number_shown(name, value, runs) for name, value in diagnostics.items()}
        due = [(run, member) for run, member in enumerate(self.members) if member.due]
        if not due:
            return
        average = self._average()
        metrics = confined(self._files, self.objective.metrics)(average)
        self.mechanism.verify()
        self.refuse_kept()
        if clash := sorted(plain.keys() & {"round", "epsilon", "delta", "status", *metrics}):
            raise ConfigError(f"diagnostic '{clash[0]}': a column has this name; rename it")
        # of a plugin's model nobody knows what its metrics look at, of its data whose the tests are
        unknown = self.plan.model.plugin or self.plan.dataset.plugin
        looking = {*metrics} if unknown else self.objective.private(metrics)
        looking |= {name for name, value in diagnostics.items() if isinstance(value, Diagnostic)}
        values = {**metrics, **plain}
        finite = torch.isfinite(average).all(dim=1) & torch.isfinite(self.recent[-1]).all(dim=1)
        table = torch.stack([value.to(torch.float64) for value in (finite, *values.values())])
        rows = table.T.tolist()
        for run, member in due:
            is_finite, *found = rows[run]
            member.rows.append({"round": member.round, **dict(zip(values, found, strict=True))})
            member.compute_at[member.round] = member.computed
            member.unreleased = sorted({*member.unreleased, *looking})
            # asked of the model alone, which was released: a metric may tell of private data
            if not is_finite:
                member.diverged = f"the model is not finite after round {member.round}"

    def _average(self) -> Tensor:
        """[R, d] the mean of the last models that there are."""
        depth, dtype = len(self.recent), self.recent[-1].dtype
        known = torch.as_tensor(np.minimum(self.rounds + 1, depth), device=self.device)
        newest = torch.arange(depth, device=self.device).reshape(-1, 1) >= depth - known
        shares = newest.to(dtype) / known.to(dtype)  # [k, R]
        terms = [
            share.unsqueeze(-1) * model for share, model in zip(shares, self.recent, strict=True)
        ]
        return functools.reduce(torch.add, terms)  # one by one: their order must not depend on R

    def write_back(self, seconds: float = 0.0) -> None:
        """Gives every member what it knows of its rounds: their number, its share of the times."""
        for member, round_ in zip(self.members, self.rounds.tolist(), strict=True):
            member.round = round_
            member.seconds += seconds / len(self.members)
            member.computed += self._computing / len(self.members)
        self._computing = 0.0

    def collect(self) -> None:
        """Gives every member its slice of the state, its models and its ledger."""
        self.write_back()
        for run, member in enumerate(self.members):
            member.take(self.state, run)
            member.recent = [models[run] for models in self.recent[-member.round - 1 :]]
            member.ledger = self.ledger.of_run(run)
            member.batches = self.ledger.batches_of(run)
            member.claims = sorted({*member.claims, *self.mechanism.claims[run]})
