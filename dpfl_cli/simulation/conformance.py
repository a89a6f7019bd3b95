"""Attacks on a method as it runs: does it keep what its guarantee says?

Runs are played side by side, stacked: the first holds some data, the others neighbouring ones, the
last the first one's again. All are handed the releases of the first. What then differs has got
there round the mechanism, unless it is raw and the changed client's own; and the contributions that
are released may differ by their sensitivity.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import nan

import numpy as np
import torch
from torch import Tensor

from dpfl_cli.algorithms.base import State
from dpfl_cli.config.errors import DpflError, PrivacyError
from dpfl_cli.data.federation import Federation
from dpfl_cli.privacy.bounded import Bounded
from dpfl_cli.privacy.client_values import is_raw, of_cohort, opened, own_values
from dpfl_cli.privacy.draws import Cohort, among, members_of
from dpfl_cli.privacy.mechanism import Call
from dpfl_cli.privacy.releases import Release
from dpfl_cli.simulation.member import Member
from dpfl_cli.simulation.neighbours import CLIENT, Data, held, hostile, with_records
from dpfl_cli.simulation.noise_tests import no_noise, odd_noise
from dpfl_cli.simulation.results import failure_reason
from dpfl_cli.simulation.run_plan import Plan
from dpfl_cli.simulation.stack import Stack

CHECKS = ("marks", "influence", "sensitivity", "ledger", "noise")
SEEDS = 100  # runs whose noise is tested
DIRECTIONS, STEPS = 8, 6  # of an ascent
Fault = tuple[str, str]  # the check that fails, and why
ROUNDING = {torch.float64: 1e-9, torch.float32: 1e-5}


@dataclass(frozen=True)
class Contribution:
    """What a release was given, and what came out of it before any replay, of R runs.

    Attributes:
      values: [R, M, d] or [R, M].
      sensitivity: [R, M], as declared.
      charged: [R] in which runs it was made.
      noise: what was added: to every message [R, M, d], or to the mean [R, d].
      seen: whether what counts as a client's own message is what was received of it, or priced as
        such where only means are; None where nothing counts as one.
      lengths: what the mechanism makes of the replayed release for methods that ask, if it does.
    """

    name: str
    values: Tensor
    sensitivity: Tensor
    charged: np.ndarray
    cohort: Cohort | None
    noise: Tensor
    seen: bool | None = None
    lengths: list[Tensor] = field(default_factory=list)


class Play:
    """R runs of a plan side by side, to their end. With `replay` the releases of the first run are
    handed to all of them; what raw values a client keeps of one are its own.

    Attributes:
      contributions: what the mechanism was given.
      made: releases that noise was drawn for, charged or not.
      states: of every round, round 0 first; none where rounds are not shown, which takes longer.
    """

    def __init__(
        self,
        plans: Sequence[Plan],
        federations: Sequence[Federation],
        replay: bool = True,
        shown: bool = True,
    ) -> None:
        self.stack = stack = Stack([Member(plan) for plan in plans], federations)
        self.contributions: list[Contribution] = []
        self.made = 0
        self.states: list[State] = []
        self._replay = replay
        self._scopes = {entry.name: entry.scope for entry in plans[0].ledger().entries}
        self._mechanism = mechanism = stack.mechanism
        self._release, self._draw = mechanism.release, mechanism._released
        mechanism.release = self._recorded
        mechanism._released = self._counted
        for number in range(plans[0].last_round + 1):
            diagnostics = stack.step(shown) if number else {}
            if shown:
                stack.evaluate(diagnostics)
                state = stack.state  # clients' own are written in place where clients are drawn
                clients = {name: value.clone() for name, value in state.clients.items()}
                self.states.append(State(state.server, clients))
        stack.collect()

    def _counted(self, call: Call) -> Release:
        self.made += 1
        return self._draw(call)

    def _recorded(
        self, name: str, values: Bounded, rounds: np.ndarray, charged: np.ndarray | None = None
    ) -> Release:
        found, setup = self._release(name, values, rounds, charged), self.stack.plan.setup
        mean, received = found.averaged, found.received
        if mean is not None and received.dim() == mean.dim() and not torch.equal(received, mean):
            raise PrivacyError(f"what is received of '{name}' is not the mean that is averaged")
        plain, cohort = opened(values.values).clone(), values.cohort
        sensitivity = values.sensitivity(setup.relation)
        each = sensitivity.reshape(len(plain), -1).expand(plain.shape[:2])
        mask = np.ones(len(plain), bool) if charged is None else charged
        own, seen, echoes = found.own, None, not (found.own is None or is_raw(found.own))
        if found.received.shape == plain.shape:
            noise = found.received - plain
            seen = torch.equal(opened(own), found.received) if echoes else None
        else:
            noise = found.mean - among(cohort, plain).sum(dim=1) / setup.cohort
            seen = self._scopes[name] == "client" if echoes else None
        self.contributions += [made := Contribution(name, plain, each, mask, cohort, noise, seen)]
        if not self._replay:
            return found
        if echoes:
            own = of_cohort(own_values(_firsts(opened(own))), cohort)
        same = {"received": _firsts(found.received), "averaged": _firsts(found.mean)}
        given = replace(found, own=own, **same)
        ask = self._mechanism.squared_norms  # which dpfl's own make of the release alone
        if values.is_vector and not ask.__module__.startswith("dpfl_cli."):
            made.lengths.append(ask(given))
        return given

    def distances(self) -> Tensor:
        """[R] how far a run's contributions are at most from another's, in sensitivities, beyond
        rounding: all are neighbours with equal releases; the last but one may lack a record.
        """
        replaced = self.stack.plan.setup.relation == "replace_one"
        of_clients = self.stack.plan.dp.unit == "client"
        largest = torch.zeros(len(self.stack.members), dtype=torch.float64)
        for one in self.contributions:
            values = among(one.cohort, one.values).double()
            vectors = values.reshape(*values.shape[:2], -1)
            absent = torch.zeros_like(vectors[:1]) if of_clients else vectors[-2:][:1]
            moved = torch.linalg.vector_norm(vectors - absent, dim=2)
            if replaced:
                rows = vectors.transpose(0, 1)
                pairs = torch.cdist(rows, rows, compute_mode="donot_use_mm_for_euclid_dist")
                moved = pairs.amax(dim=2).T
            moved -= torch.finfo(one.values.dtype).eps * torch.linalg.vector_norm(
                vectors, dim=2
            ).amax(dim=0)
            ratios = torch.where(moved <= 0, 0.0, moved / one.sensitivity[:1]).amax(dim=1)
            largest = torch.maximum(largest, torch.nan_to_num(ratios, nan=torch.inf))
        return largest


@dataclass
class Kit:
    """The five checks of a method on one federation; `examine` makes them.

    Attributes:
      plans: of as many seeds as the noise is tested with; the first is attacked.
      longer: of two seeds and more rounds, to see whether runs mix.
      faults: check -> what is wrong, empty where it passed.
      reached: the largest distance between neighbours' contributions, in sensitivities.
      draws, variance: how much noise was looked at, and its variance over the priced one.
      cut_short: whether an error ended it before all was looked at.
    """

    plans: Sequence[Plan]
    federation: Federation
    longer: Sequence[Plan] = ()
    faults: dict[str, list[str]] = field(default_factory=lambda: {name: [] for name in CHECKS})
    reached: float = 0.0
    draws: int = 0
    variance: float = float("nan")
    cut_short: bool = False

    def examine(self) -> None:
        """All checks; the others are not made where the method does not run at all."""
        plan = self.plans[0]
        check, said = "marks", ""
        try:
            self._look(Play([plan], [self.federation]))
            check, said = "influence", "other data end the run: "
            features, targets = held(self.federation)
            if plan.dp.unit == "record":
                features, targets = features[:1], targets[:1]
            own = features, targets
            others = list(hostile(self.federation, own, np.random.default_rng(0)))
            if plan.dp.unit == "client":  # who has how many records is the client's own
                others.append((np.concatenate([features] * 2), np.concatenate([targets] * 2)))
            neighbours = [self._place(data) for data in others]
            beside = self._beside(neighbours)
            self._look(beside)
            runs = (self.longer or self.plans)[:2]
            self._note(company([runs[0], runs[-1]], [self.federation, neighbours[0]]))
            self._climb(others[-2])
            self._noise()
        except Exception as error:
            self.faults[check].append(said + failure_reason(error, private=False))
            self.cut_short = True

    def _place(self, data: Data) -> Federation:
        """The federation where the privacy unit, a client or its first record, holds other data."""
        if self.plans[0].dp.unit == "record":
            kept = (values[1:] for values in held(self.federation))
            features, targets = map(np.concatenate, zip(data, kept, strict=True))
            data = features, targets
        return with_records(self.federation, data)

    @cached_property
    def _without(self) -> list[Federation]:
        """Where a record may be absent, the federation where it is: a record that is not finite
        counts as none.
        """
        dp = self.plans[0].dp
        if dp.unit == "client" or dp.relation == "replace_one":
            return []
        features, targets = held(self.federation)
        return [self._place((np.full_like(features[:1], nan), targets[:1]))]

    def _beside(self, others: Sequence[Federation], shown: bool = True) -> Play:
        federations = [self.federation, *others, *self._without, self.federation]
        return Play([self.plans[0]] * len(federations), federations, shown=shown)

    def _look(self, play: Play) -> None:
        """Notes what a play shows of marks, influence, sensitivity, ledger and noise."""
        self._note(leaks(play))
        self._measure(play)
        self._note(misprints(play))

    def _note(self, found: Iterable[Fault]) -> None:
        for check, fault in found:
            self.faults[check].append(fault)

    def _measure(self, play: Play) -> Tensor:
        distances = play.distances()
        self.reached = max(self.reached, float(distances.max()))
        if self.reached > 1 + ROUNDING[play.stack.objective.dtype]:
            text = f"neighbours differ by {self.reached:.7g} times the declared sensitivity"
            self.faults["sensitivity"] = [text]
        return distances

    def _climb(self, start: Data) -> None:
        """Gradient ascent on the distance of contributions, over the data of the unit; the
        gradient by differences along random directions.
        """
        features, targets = start
        if not np.issubdtype(features.dtype, np.floating):
            return
        real = np.issubdtype(targets.dtype, np.floating)
        point = np.concatenate([features.ravel(), targets.ravel() if real else []])

        def data(values: np.ndarray) -> Data:
            own, label = np.split(values, [features.size])
            return own.reshape(features.shape), label.reshape(targets.shape) if real else targets

        generator = np.random.default_rng(1)
        for _ in range(STEPS):
            width = 0.01 * (np.abs(point).mean() + 1e-3)
            ways = generator.standard_normal((DIRECTIONS, len(point)))
            steps = [np.zeros_like(point), *ways]
            tried = [self._place(data(point + width * step)) for step in steps]
            found = self._measure(self._beside(tried, shown=False)).numpy()
            here, *there = found[1 : len(steps) + 1]
            slope = (np.array(there) - here) @ ways
            point = point + np.linalg.norm(point) * slope / (np.linalg.norm(slope) or 1.0)

    def _noise(self) -> None:
        """Tests the noise of many runs against what their ledgers price."""
        play = Play(self.plans, [self.federation] * len(self.plans), replay=False, shown=False)
        found = priced_noise(play)
        self._note(("noise", text) for text in odd_noise(found))
        self._note(("noise", text) for text in no_noise(play.contributions))
        self.draws += sum(draws.numel() for draws in found.values())
        if self.draws:
            total = sum(float(draws.square().sum()) for draws in found.values())
            self.variance = total / self.draws


def priced_noise(play: Play) -> dict[str, Tensor]:
    """Release -> [k, R, M, d] or [k, R, d] (fewer axes of scalars): the Gaussian noise of the
    releases that all runs made, over the standard deviation that their ledgers say.
    """
    setup = play.stack.plan.setup
    ledgers = [{one.name: one for one in member.ledger.entries} for member in play.stack.members]
    found: dict[str, list[Tensor]] = {}
    number: dict[str, np.ndarray] = {}
    for one in play.contributions:
        name = one.name
        before = number.setdefault(name, np.zeros(len(ledgers), int))
        number[name] = before + one.charged
        if not one.charged.all() or any(own[name].kind != "gaussian" for own in ledgers):
            continue
        each = [own[name].parameters()[i] for own, i in zip(ledgers, before, strict=True)]
        noise = one.noise
        std = torch.tensor(each).unsqueeze(1) * one.sensitivity  # of one message
        if noise.shape != one.values.shape:
            messages = ledgers[0][name].scope == "client"
            std = std.amax(dim=1) / (setup.clients**0.5 if messages else setup.cohort)
        scaled = noise.double() / std.reshape(*std.shape, *[1] * (noise.dim() - std.dim()))
        found.setdefault(name, []).append(scaled)
    return {name: torch.stack(draws) for name, draws in found.items()}


def misprints(play: Play) -> Iterator[Fault]:
    """Where ledgers are not what was planned, or not what was released."""
    made = play.contributions
    if play.made != len(made):
        yield "ledger", f"{play.made} releases drew noise, {len(made)} were asked for"
    for run, member in enumerate(play.stack.members):
        try:
            member.check_ledger()
        except DpflError as error:
            yield "ledger", str(error)
        times = Counter(one.name for one in made if one.charged[run])
        if times != Counter({one.name: one.count for one in member.ledger.entries}):
            yield "ledger", "the ledger does not count the releases that were made"


def leaks(play: Play) -> Iterator[Fault]:
    """What depends on the changed client's data round the mechanism: values that lost their mark,
    and what has reached the server, others, the files of a run or the noise.
    """
    for number, state in enumerate(play.states):
        for name, value in state.server.items():
            if not _same(value):
                yield "influence", f"server state '{name}' after round {number}"
        for name, value in state.clients.items():
            if not is_raw(value) and not _same(value):
                yield "marks", f"client state '{name}' holds client data unmarked"
            elif not _same(value, apart=True):
                yield "influence", f"client state '{name}' of another client or run"
    kinds = {entry.name: entry.kind for entry in play.stack.plan.ledger().entries}
    for one in [one for one in play.contributions if one.charged.any()]:
        if not _same(among(one.cohort, one.values), True, one.cohort):
            yield "influence", f"the contribution to '{one.name}' of another client or run"
        if not _same(one.sensitivity):
            yield "influence", f"the sensitivity of '{one.name}'"
        if not all(map(_same, one.lengths)):
            yield "influence", f"the squared norms of '{one.name}' are of more than was received"
        if one.seen is False:
            yield "marks", f"the echo of '{one.name}' counts as a message that nobody receives"
        noise = one.noise
        size = (noise[:1].abs() + one.sensitivity.max()) * 100 * ROUNDING[noise.dtype]
        if kinds.get(one.name) == "gaussian" and not ((noise - noise[:1]).abs() <= size).all():
            yield "noise", f"the noise on '{one.name}' depends on clients' data"
    first, *others = map(_files, play.stack.members)
    for name, content in first.items():
        if any(own[name] != content for own in others):
            yield "influence", name


def company(plans: Sequence[Plan], federations: list[Federation]) -> Iterator[Fault]:
    """Whether what the last of some runs comes to is another beside others than beside itself: what
    is reduced over all axes mixes runs, and then its price is not that of its own, nor would a play
    show others' data. (As many runs in both plays: rounding may depend on their number.)
    """
    mixed = Play(plans, federations, replay=False)
    alike = Play([plans[-1]] * len(plans), federations[-1:] * len(plans), replay=False)
    for number, states in enumerate(zip(mixed.states, alike.states, strict=True)):
        for side in ("server", "clients"):
            beside, alone = (getattr(state, side) for state in states)
            for name, value in beside.items():
                if not _same(torch.cat([opened(value)[-1:], opened(alone[name])[-1:]])):
                    fault = f"state '{name}' of {side} after round {number} depends on the runs"
                    yield "influence", f"{fault} beside its own: keep the first axis apart (dim=1)"


def _files(member: Member) -> dict[str, str]:
    """What a run publishes of itself, but for what it says to have looked up in private data."""
    hidden = member.unreleased
    public = [{name: row[name] for name in row if name not in hidden} for row in member.rows]
    return {
        "the ledger": str(member.ledger.to_json()),
        "the status": str(member.diverged),
        "the unreleased metrics": str(hidden),
        "metrics.csv": str(public),
    }


def _firsts(values: Tensor) -> Tensor:
    """[R, ...] the first run's, for all."""
    return values[:1].expand_as(values).clone()


def _same(values: Tensor, apart: bool = False, cohort: Cohort | None = None) -> bool:
    """Whether all runs, who have one cohort, have the first one's values, bit by bit (apart from
    the changed client's: those of the runs between the first and the last).
    """
    plain = torch.nan_to_num(opened(values), 1e30)  # a copy
    if apart:
        own = CLIENT if cohort is None else torch.from_numpy(members_of(cohort)[0] == CLIENT)
        plain[1:-1, own] = plain[:1, own]
    return torch.equal(plain, _firsts(plain))
