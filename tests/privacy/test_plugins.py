"""Plausible methods whose printed guarantee would be false: each is refused under dp.mode=sound."""

from __future__ import annotations

import dataclasses
import importlib
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent.parent / "algorithms"))
from federated import Play, grouped_federation, play
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import dpfl_cli as dpfl
from dpfl_cli.algorithms.api import Round, State, bounded_local_update, clip
from dpfl_cli.algorithms.fedavg import FedAvg
from dpfl_cli.algorithms.fedexp import FedExp
from dpfl_cli.config.compose import compose_config
from dpfl_cli.config.errors import ConfigError, PrivacyError
from dpfl_cli.data.federation import Federation, Records
from dpfl_cli.data.streams import Streams
from dpfl_cli.models.client_side import ClientSide
from dpfl_cli.models.linear import LinearRegression, LinearRegressionSettings
from dpfl_cli.privacy import draws
from dpfl_cli.privacy.bounded import bounded, claimed, squared_norms
from dpfl_cli.privacy.client_values import client_values, is_raw, of_cohort, opened
from dpfl_cli.privacy.draws import MethodStreams
from dpfl_cli.privacy.ledger import BatchLedger, Ledger
from dpfl_cli.privacy.record_bounds import number_mean, record_covariance, record_mean
from dpfl_cli.privacy.releases import Provenance, ReleaseSpec
from dpfl_cli.simulation.checks import check_releases
from dpfl_cli.simulation.member import Member
from dpfl_cli.simulation.plan import make_plan
from dpfl_cli.simulation.results import failure_reason
from dpfl_cli.simulation.run_plan import federation_of
from dpfl_cli.simulation.stack import Stack

SIZES = [6, 8, 7]
FEDERATION = [grouped_federation(3, SIZES)]
STEP = {"local_steps": 1, "local_lr": 0.1, "clip_norm": 1.0}
ONE = torch.ones(1, dtype=torch.float64)
ZEROS = torch.zeros(1, 3, 5, dtype=torch.float64)


def record_play(trust: str = "local", **options: Any) -> Play:
    settings = {**STEP, **options}
    return play("fedavg_record", trust, settings, federations=FEDERATION)


def at(played: Play, number: int = 1) -> Round:
    streams = played.mechanism.streams()
    return Round(played.objective, played.mechanism, streams, np.array([number]))


# A bound per record holds at public points and at the client's own messages.


def clean_steps(played: Play, state: State) -> torch.Tensor:
    now = at(played)
    local = now.at_clients(state.server["model"])
    return local - 0.1 * now.objective.gradient(local)


def personal_model(played: Play, state: State) -> torch.Tensor:
    now = at(played)
    return now.objective.local_descent(state.server["model"], torch.tensor([0.1]), 2)


@pytest.mark.parametrize("point", [clean_steps, personal_model])
def test_a_clipped_gradient_at_a_raw_point_is_no_bound(point: Any) -> None:
    played = record_play()
    now, limit = at(played), ONE
    raw = point(played, played.states[0])
    assert is_raw(raw)
    gradient = now.objective.clipped_gradient(raw, limit)
    with pytest.raises(PrivacyError, match="depend on the client's data and on no release"):
        now.release("gradient", gradient)
    mean, _ = now.objective.squared_norms_mean(raw, limit)
    assert not mean.proved


def test_a_raw_auxiliary_vector_is_no_bound_and_messages_are() -> None:
    played = play("fednew_record", "local", {"dual": "paper"}, federations=FEDERATION).go(2)
    assert not is_raw(played.states[-1].clients["dual"])  # made of released messages
    now, one = at(played, 3), ONE
    start = now.at_clients(played.states[-1].server["model"])
    for vector, proved in ((now.objective.gradient(start), False), (start, True)):
        found = now.objective.newton_direction(start, vector, one, one, one, one)
        assert found.proved == proved


@pytest.mark.parametrize(("trust", "own"), [("local", True), ("secure_aggregation", False)])
def test_what_a_client_keeps_of_a_message_is_its_own_where_messages_are_priced(
    trust: str, own: bool
) -> None:
    played = play("scaffold_record", trust, STEP, federations=FEDERATION)
    assert not is_raw(played.states[0].clients["control"])
    assert is_raw(played.go(1).states[1].clients["control"]) == (not own)


# Only clipping, projection and bounded solves of dpfl's models make a bound.


def clipped_by_hand(values: Any, limit: Any, _: Any) -> Any:
    """With the constructor that clipping itself uses."""
    sizes = limit.unsqueeze(-1).expand(values.shape[:2])
    return bounded(opened(values), limit, 2 * sizes, sizes, "record", "clipped by hand")


def restated(values: Any, limit: Any, _: Any) -> Any:
    """Of what was clipped, for what was not."""
    return claimed(clip(values, limit), opened(values))


MAKERS = [record_mean, record_covariance, number_mean, clipped_by_hand, restated]


@pytest.mark.parametrize("maker", MAKERS)
def test_a_bound_that_somebody_states_is_a_claim(maker: Any) -> None:
    played = record_play()
    now, one = at(played), ONE
    raw = now.objective.gradient(now.at_clients(played.states[0].server["model"]))
    stated = maker(1e6 * raw, one, now.objective.records)
    assert not stated.proved
    if stated.is_vector:
        with pytest.raises(PrivacyError, match="claimed, not proved"):
            now.release("gradient", stated)


class Careless(LinearRegression):
    """Does not clip."""

    def clipped_gradient(self, parameters: Any, clip_norm: Any, batch: Any = None) -> Any:
        return record_mean(1e6 * self.gradient(parameters), clip_norm, self.divisors(batch))


def test_a_plugins_model_makes_no_bound_per_record() -> None:
    played = play(
        "fedavg_record",
        "local",
        STEP,
        federations=FEDERATION,
        model=lambda known, index: Careless(LinearRegressionSettings(), known, index),
    )
    with pytest.raises(PrivacyError, match="its model is a plugin's"):
        played.go(1)


# A batch carries the law that it was drawn by.


def test_the_same_records_in_every_round_are_not_priced_as_subsampled() -> None:
    played = record_play(batch_size=2)
    limit = ONE
    model = played.states[0].server["model"]

    def gradient(now: Round, batch: Any) -> Any:
        return now.objective.clipped_gradient(now.at_clients(model), limit, batch)

    first, one = at(played, 1), torch.tensor([0, 1]).expand(1, 3, 2)
    for batch in (one, None):  # chosen by hand; all records
        with pytest.raises(PrivacyError, match="priced by how its batch is drawn"):
            first.release("gradient", gradient(first, batch))
    address = first.number.copy()
    first.release("gradient", gradient(first, before := first.batch(2, address)))
    second = at(played, 2)
    again = second.batch(2, address)
    address += 1  # which is no new address of what was drawn
    for batch in (before, again):
        with pytest.raises(PrivacyError, match="a batch that was released before"):
            second.release("gradient", gradient(second, batch))
    larger = second.batch(3, second.number)
    with pytest.raises(PrivacyError, match="more than the rate"):
        second.release("gradient", gradient(second, larger))
    second.release("gradient", gradient(second, second.batch(2, second.number)))


def test_parts_of_an_epoch_come_in_turn_and_once() -> None:
    played = record_play(batch_size=2, local_steps=3, sampling="epoch_permutation")
    now, limit = at(played), ONE
    start = now.at_clients(played.states[0].server["model"])
    parts = now.epoch(2, now.number)
    now.release("gradient", now.objective.clipped_gradient(start, limit, parts[0]))
    other = now.epoch(2, now.number + 1)
    for wrong in (parts[0], parts[2], other[1], now.batch(2, now.number + 1)):
        with pytest.raises(PrivacyError, match=r"in its turn|priced by how"):
            now.release("gradient", now.objective.clipped_gradient(start, limit, wrong))
    for part in parts[1:]:
        now.release("gradient", now.objective.clipped_gradient(start, limit, part))
    again = now.objective.clipped_gradient(start, limit, parts[0])
    with pytest.raises(PrivacyError, match="in its turn"):
        at(played, 2).release("gradient", again)


def test_who_sees_a_batch_sees_no_records() -> None:
    batch = at(record_play(batch_size=2)).batch(2, np.array([1]))
    assert not any(isinstance(value, torch.Tensor) for value in (batch.size, batch.stream))
    with pytest.raises(PrivacyError, match=r"drawn by Round\.batch"):
        type(batch)("subset", 2, "batch", np.array([1]), torch.zeros(1, 3, 2))


# Noise has a key space of its own.


@pytest.mark.parametrize("name", ["noise/gradient", "noise/other", "noise"])
def test_nobody_draws_the_mechanisms_noise(name: str) -> None:
    streams = at(record_play()).streams
    for draw in (streams.normal, streams.uniform):
        with pytest.raises(PrivacyError, match="which nobody else draws"):
            draw(name, np.array([1]), 3, 2)
    with pytest.raises(PrivacyError, match="which nobody else draws"):
        streams.generator(0, name, 1)
    assert not hasattr(streams, "seeds")


def test_nor_by_a_name_that_collides_with_it() -> None:
    """crc32("plumless") == crc32("buckeroo")."""
    streams = MethodStreams(Streams([0]), ["buckeroo"])
    with pytest.raises(PrivacyError, match="has the key of a mechanism's noise"):
        streams.normal("plumless", np.array([1]), 3, 2)
    streams.normal("plumes", np.array([1]), 3, 2)


def test_no_two_releases_have_one_noise(monkeypatch: Any) -> None:
    """crc32("noise/plumless") == crc32("noise/buckeroo")."""
    specs = [ReleaseSpec("plumless"), ReleaseSpec("buckeroo")]
    monkeypatch.setattr(FedAvg, "releases", staticmethod(lambda settings, run: specs))
    plan = make_plan(compose_config([*SMALL, "algorithm=fedavg"]))
    with pytest.raises(PrivacyError, match="would have the same noise"):
        Stack([Member(plan)])


# Joint pricing is for releases of the same contributions.


def test_releases_of_a_group_are_of_the_same_contributions() -> None:
    played = play("fedexp", "central", STEP)
    now, model = at(played), played.states[0].server["model"]
    update = bounded_local_update(now, model, played.algorithm.hyper)
    other = clip(-update.values, ONE)
    now.release("update", update)
    with pytest.raises(PrivacyError, match="of the contributions of its group"):
        now.release("squared_norm", squared_norms(other))
    now.release("squared_norm", squared_norms(update))


def test_several_releases_of_a_group_in_a_round_are_told_apart() -> None:
    """All vectors first, then the norms of others."""
    one, rounds, provenance = (
        ONE,
        np.array([1]),
        Provenance(BatchLedger([Ledger()])),
    )
    specs = [ReleaseSpec("update", per_round=2, group="g")]
    specs += [ReleaseSpec("norm", "scalar", 2, "g", "squared_norms")]
    vectors = [clip(client_values(torch.ones(1, 3, 5).double()), one) for _ in range(3)]

    def released(spec: ReleaseSpec, values: Any, number: int) -> None:
        setups: Any = [SimpleNamespace(sampling=None)]
        provenance.check(spec, values, rounds, np.array([number]), np.array([True]), setups)

    for number in (0, 1):
        released(specs[0], vectors[number], number)
    with pytest.raises(PrivacyError, match="of the contributions of its group"):
        released(specs[1], squared_norms(vectors[2]), 0)
    for number in (0, 1):
        released(specs[1], squared_norms(vectors[number]), number)


@pytest.mark.parametrize("first", ["vectors", "norms"])
def test_releases_of_a_group_are_compared_run_by_run(first: str) -> None:
    """Two vectors, each for one of two runs, and norms of one of them for both; or the reverse."""
    rounds, one = np.array([1, 1]), torch.ones(2).double()
    provenance = Provenance(BatchLedger([Ledger()] * 2))
    vector = ReleaseSpec("update", group="g")
    norm = ReleaseSpec("norm", "scalar", group="g", quantity="squared_norms")
    known, other = (clip(client_values(torch.ones(2, 3, 5).double()), one) for _ in range(2))

    def released(spec: ReleaseSpec, values: Any, number: list[int], charged: list[bool]) -> None:
        setups: Any = [SimpleNamespace(sampling=None)]
        values = values if spec is vector else squared_norms(values)
        provenance.check(spec, values, rounds, np.array(number), np.array(charged), setups)

    apart, both = (vector, norm) if first == "vectors" else (norm, vector)
    released(apart, known, [0, 0], [True, False])
    released(apart, other, [1, 0], [False, True])
    with pytest.raises(PrivacyError, match="of the contributions of its group"):
        released(both, known, [0, 0], [True, True])
    released(both, known, [0, 0], [True, False])
    with pytest.raises(PrivacyError, match="of the contributions of its group"):
        released(both, known, [1, 0], [False, True])
    released(both, other, [1, 0], [False, True])
    released(apart, known, [2, 1], [True, False])
    released(apart, other, [3, 2], [True, True])


@pytest.mark.parametrize("other", ["nobody", "law", "size", "round"])
def test_a_release_is_of_the_cohort_that_it_is_priced_by(other: str) -> None:
    """Drawn by the law of the run, as many, and for this round."""
    own, one = draws.Sampling("fixed", 3, 9), ONE
    changes: dict[str, Any] = {"law": {"law": "poisson"}, "size": {"size": 4}}

    def released(sampling: draws.Sampling, later: bool = False, marked: bool = True) -> None:
        number = np.array([2])
        cohort = draws.drawn_cohort(Streams([0]), sampling, number)
        number += later
        values = client_values(torch.ones(1, sampling.rows, 5).double())
        made = clip(of_cohort(values, cohort if marked else None), one)
        setups: Any = [SimpleNamespace(sampling=own)]
        given = number, np.array([0]), np.array([True]), setups
        Provenance(BatchLedger([Ledger()])).check(ReleaseSpec("update"), made, *given)

    released(own)
    changed = dataclasses.replace(own, **changes.get(other, {}))
    with pytest.raises(PrivacyError, match="priced by how its clients are drawn"):
        released(changed, later=other == "round", marked=other != "nobody")


@pytest.mark.parametrize(
    "other", [{"made": np.array([True, False])}, {"per_round": 2}], ids=["made", "per_round"]
)
def test_releases_of_a_group_are_made_together(other: Any, monkeypatch: Any) -> None:
    """Updates in odd rounds and norms in even ones are as many, and nothing of one another."""
    plan = make_plan(compose_config([*SMALL, "algorithm=fedexp", "rounds=2"]))
    check_releases(plan)
    vector, scalar = plan.specs
    apart = [dataclasses.replace(vector, **other), scalar]
    monkeypatch.setattr(FedExp, "releases", staticmethod(lambda settings, run: apart))
    with pytest.raises(ConfigError, match="but are not made together"):
        make_plan(compose_config([*SMALL, "algorithm=fedexp", "rounds=2"]))


@pytest.mark.parametrize("batch", [{"rate": 0.1}, {"disjoint": 2, "per_round": 2}])
def test_batches_of_records_hide_no_client(batch: Any, monkeypatch: Any) -> None:
    specs = [ReleaseSpec("update", **batch)]
    monkeypatch.setattr(FedAvg, "releases", staticmethod(lambda settings, run: specs))
    for accountant in ("rdp", "wang_rdp", "gdp"):
        words = [*SMALL, "algorithm=fedavg", "dp=cdp", f"accountant={accountant}"]
        with pytest.raises(ConfigError, match="which hide a record and no client"):
            make_plan(compose_config(words))


# Numbers of records are a client's own where the client is what is protected.


def test_what_a_method_writes_into_numbers_of_records_changes_no_sensitivity() -> None:
    """Weights made of them in place were divisors a hundred times too large."""
    objective = at(record_play()).objective
    before = objective.clipped_gradient(ZEROS, ONE).replace_one.clone()
    for numbers in (objective.records, objective.divisors(None)):
        numbers.mul_(100)
    assert torch.equal(objective.clipped_gradient(ZEROS, ONE).replace_one, before)


def test_products_are_of_float32_whatever_a_file_asks_of_torch() -> None:
    """Scripts ask for "medium" at their top; a clipped gradient is longer by what that rounds."""
    torch.set_float32_matmul_precision("medium")
    try:
        Stack([Member(make_plan(compose_config(["dataset.clients=4", "rounds=1"])))])
        assert torch.get_float32_matmul_precision() == "highest"
    finally:
        torch.set_float32_matmul_precision("highest")


def test_counts_are_private_where_clients_are() -> None:
    for name, private in (("fedavg", True), ("fedavg_record", False)):
        played = play(name, "local", STEP)
        assert is_raw(played.objective.records) == private
        assert not hasattr(played.objective, "held")


# Nobody looks on while an objective or a mechanism computes with plain numbers.


class _Watching(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


class _Dispatching(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    "watch",
    [
        _Watching,
        _Dispatching,
        lambda: torch.device("cpu"),
        lambda: torch.autograd.graph.saved_tensors_hooks(lambda seen: seen, lambda kept: kept),
    ],
)
def test_objectives_and_mechanisms_are_not_watched(watch: Any) -> None:
    now = at(record_play())
    start, limit = ZEROS, ONE
    bounded = now.objective.clipped_gradient(start, limit)
    for act in (
        lambda: now.objective.gradient(start),
        lambda: now.objective.clipped_gradient(start, limit),
        lambda: now.objective.local_descent(start[:, 0], limit, 1),
        now.objective.covariance,
        lambda: now.release("gradient", bounded),
    ):
        with watch(), pytest.raises(PrivacyError, match="under a mode, a hook or a transform"):
            act()
    now.release("gradient", bounded)


# What a model hands over is public, or stays what it was.


class Leaky(LinearRegression):
    """Gives clients' values away where public ones are due."""

    def initial(self, streams: Any) -> Any:
        return self.gradient(ZEROS)[:, :, 0]

    def prox(self, values: Any, step: Any) -> Any:
        return torch.zeros(1, 3, 5)


class Regularised(LinearRegression):
    """A regulariser of clients' values."""

    def regulariser_gradient(self, parameters: Any) -> Any:
        limit = ONE
        return self.clipped_gradient(ZEROS, limit).values


def test_what_a_model_hands_over_is_public_or_stays_what_it_was() -> None:
    side = ClientSide(Leaky(LinearRegressionSettings(), FEDERATION, np.zeros(1, int)), "client")
    with pytest.raises(PrivacyError, match="the initial model goes to every client"):
        side.initial(Streams([0]))
    with pytest.raises(PrivacyError, match="public functions"):
        side.prox(side.gradient(ZEROS), torch.ones(1))
    own = Regularised(LinearRegressionSettings(), FEDERATION, np.zeros(1, int))
    with pytest.raises(PrivacyError, match="public functions"):
        ClientSide(own, "client").regulariser_gradient(ZEROS)


# What an hour of plausible code found: gradients through releases, changes that nobody sees,
# refusals that are caught, numbers behind bounds, streams of batches, inherited words.


@pytest.mark.parametrize("of", ["model", "clip norm"])
def test_no_gradient_goes_through_a_release(of: str) -> None:
    played = play("fedavg", "central", STEP)
    now, limit = at(played), torch.full((1,), 0.01, dtype=torch.float64)
    start = now.at_clients(played.states[0].server["model"])
    gradient, knob = now.objective.gradient(start), torch.ones(1, 1, 5, dtype=torch.float64)
    (limit if of == "clip norm" else knob.requires_grad_()).requires_grad_()
    released = now.release("update", clip(gradient * knob, limit))
    assert released.noise_std is not None
    assert not released.mean.requires_grad
    assert not released.noise_std.requires_grad


def test_changes_in_place_are_not_hidden_by_inference_mode() -> None:
    played = play("fedavg", "central", STEP)
    now, model = at(played), played.states[0].server["model"]
    with torch.inference_mode(), pytest.raises(PrivacyError, match="inference_mode"):
        bounded_local_update(now, model, played.algorithm.hyper).values.mul_(100)


def test_how_many_values_are_positive_is_no_part_of_a_message() -> None:
    now = at(record_play())
    gradient = now.objective.gradient(torch.ones(1, 3, 5, dtype=torch.float64))
    with pytest.raises(PrivacyError) as refused:
        torch.where(gradient > 0)
    assert str(int((opened(gradient) > 0).sum())) not in str(refused.value)


class Failing(LinearRegression):
    """Says a value where it fails."""

    def gradient(self, parameters: Any, batch: Any = None) -> Any:
        raise ValueError("of record 4711")


def test_a_models_error_carries_no_values_and_is_a_refusal() -> None:
    side = ClientSide(Failing(LinearRegressionSettings(), FEDERATION, np.zeros(1, int)), "client")
    with pytest.raises(PrivacyError, match=r"gradient of the model failed: ValueError") as failed:
        side.gradient(ZEROS)
    assert "4711" not in failure_reason(failed.value, private=True)
    assert "4711" in failure_reason(failed.value, private=False)
    assert "4711" not in failure_reason(ValueError("4711"), private=True)


def test_bounds_and_epochs_tell_no_numbers_of_records_where_clients_are_protected() -> None:
    model = LinearRegression(LinearRegressionSettings(), FEDERATION, np.zeros(1, int))
    limit = ONE
    for unit, told in (("client", False), ("record", True)):
        side = ClientSide(model, unit)
        bounded = side.clipped_gradient(ZEROS, limit)
        assert bool(torch.isfinite(bounded.zero_out).all()) == told
    streams = MethodStreams(Streams([0]), [])
    with pytest.raises(PrivacyError, match="how many batches"):
        ClientSide(model, "client").batches(streams, "batch", np.array([1]), 2, "part")


def test_nobody_else_draws_from_the_streams_of_batches() -> None:
    now = at(record_play())
    now.batch(2, now.number)
    with pytest.raises(PrivacyError, match="is of batches"):
        now.streams.uniform("batch", now.number, 3, 2)
    now.streams.uniform("mine", now.number, 3, 2)
    with pytest.raises(PrivacyError, match="is of batches"):
        now.batch(2, now.number, stream="mine")
    with pytest.raises(PrivacyError, match="the run's own streams"):
        now.objective.batches(Streams([0]), "batch", now.number, 2, "subset")


def test_batches_of_names_that_collide_are_no_fresh_ones() -> None:
    """crc32("plumless") == crc32("buckeroo"): two streams would give the same records."""
    now = at(record_play(batch_size=2))
    now.batch(2, now.number, stream="plumless")
    now.batch(2, now.number, stream="plumless")
    with pytest.raises(PrivacyError, match="have one key"):
        now.batch(2, now.number, stream="buckeroo")


PLUGIN = """
from dpfl_cli.algorithms.api import *
from dpfl_cli.algorithms.fedavg import FedAvg, FedAvgSettings
from dpfl_cli.algorithms.scaffold import Scaffold, ScaffoldSettings
from dpfl_cli.config.component import component
from dpfl_cli.privacy.gaussian import CentralGaussian, GaussianSettings
TRUSTS = ("central", "secure_aggregation")

class MineSettings(LocalSettings):
    local_steps: int = 1
    local_lr: Number = 0.1
    clip_norm: Bound = 1.0

@algorithm("echoing", revision=1, paper="p", unit="client", trusts=TRUSTS, proved=TRUSTS)
class Echoing:
    hyper: MineSettings

    @staticmethod
    def releases(settings, run):
        return [ReleaseSpec("update", echo=True)]

    def init(self, objective, streams):
        return start(objective, streams)

    def round(self, state, at):
        try:
            bool((at.objective.records > 1))
        except Exception:
            return state, {}

@algorithm("heir", revision=1, paper="p", unit="client", trusts=TRUSTS)
class Heir(Scaffold):
    hyper: ScaffoldSettings

@component("algorithm", "relative", revision=1, settings=FedAvgSettings)
class Relative(FedAvg):
    "Another method, of which nobody says that it is proved."

@component("mechanism", "mine", revision=1, settings=GaussianSettings)
class Mine(CentralGaussian):
    "Mine."
"""
KEEPING = """
import functools
import types

from dpfl_cli.algorithms.api import *
CACHE, TABLE, COUNTS, CELL = [], {}, [], {"rounds": 0}

class Store:
    pass

class Slots:
    __slots__ = ("last",)

def closed():
    kept = []
    return lambda value: kept.append(value)

@functools.cache
def cached(name):
    return []

STORE, NAMES, NARROW, CLOSED = Store(), types.SimpleNamespace(), Slots(), closed()

@functools.cache
def cached_number(name):
    return name + 1

class KeepingSettings(LocalSettings):
    local_steps: int = 1
    local_lr: Number = 0.1
    clip_norm: Bound = 1.0

TRUSTS = ["central"]

@algorithm("keeps_PLACE", revision=1, paper="p", unit="client", trusts=TRUSTS, proved=TRUSTS)
class Keeping:
    hyper: KeepingSettings

    def __init__(self, hyper):
        self.hyper, self.known = hyper, 0

    @functools.cached_property
    def once(self):
        return 2

    @classmethod
    def releases(cls, settings, run):
        run.fewest()
        return [ReleaseSpec("update")]

    def init(self, objective, streams):
        print("init")
        return start(objective, streams)

    def round(self, state, at):
        model = state.server["model"]
        update = bounded_local_update(at, model, self.hyper)
        places = {
            "list": lambda: CACHE.append(update.values),
            "dict": lambda: TABLE.update(last=(at.objective,)),
            "global": lambda: globals().update(LAST=update),
            "class": lambda: setattr(Keeping, "last", update.values),
            "store": lambda: setattr(STORE, "last", [update.values]),
            "default": lambda: self.remember(update.values),
            "keyword": lambda: self.remember_by_name(value=update.values),
            "namespace": lambda: setattr(NAMES, "last", update.values),
            "slots": lambda: setattr(NARROW, "last", update.values),
            "closure": lambda: CLOSED(update.values),
            "cache": lambda: cached("last").append(update.values),
            "object": lambda: setattr(self, "last", update.values),
            "own_number": lambda: setattr(self, "rounds", 1),
            "own_count": lambda: setattr(self, "known", self.known + 1),
            "cell": lambda: CELL.update(rounds=CELL["rounds"] + 1),
            "once": lambda: self.once + cached_number(2),
            "number": lambda: globals().update(ROUNDS=int(at.number[0])),
            "count": lambda: COUNTS.append(1),
            "class_number": lambda: setattr(Keeping, "rounds", int(at.number[0])),
        }
        places["PLACE"]()
        return State({"model": model + at.release("update", update).mean}, {}), {}

    def remember(self, values, seen=[]):
        seen.append(values)

    def remember_by_name(self, *, value, seen=[]):
        seen.append(value)
"""
SMALL = ["dataset.clients=4", "dataset.dimension=3", "rounds=1", "dp=cdp"]
SIZED = ["algorithm.local_steps=1", "algorithm.local_lr=0.1", "algorithm.clip_norm=1.0"]


@pytest.mark.parametrize(
    ("words", "match"),
    [
        (["algorithm=echoing", "dp=secure_aggregation"], "shares of the noise"),
        (["algorithm=heir", *SIZED], "its file gives no proof"),
        (["algorithm=relative", *SIZED], "its file gives no proof"),
        (
            ["algorithm=fedavg", "mechanism=mine", "mechanism.noise_multiplier=1.0"],
            "mechanism=mine is a plugin's",
        ),
    ],
)
def test_what_nobody_proved_is_refused(words: list[str], match: str, plugin: str) -> None:
    with pytest.raises(ConfigError, match=match):
        dpfl.run(*SMALL, *words, plugins=[plugin], quiet=True)


def test_a_refusal_that_is_caught_ends_the_run(plugin: str) -> None:
    (run,) = dpfl.run(*SMALL, "algorithm=echoing", plugins=[plugin], quiet=True)
    assert run.status == "failed"
    assert "caught an error of dpfl" in run.result["reason"]


KEPT_IN = [
    *("list", "dict", "global", "class", "store", "default", "keyword"),
    *("namespace", "slots", "closure", "cache"),
]


@pytest.mark.parametrize("where", [*KEPT_IN, "object"])
def test_what_would_stay_from_run_to_run_is_refused(
    where: str, plugin: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A later run's releases would be of the earlier run's clients, whom its ledger does not pay;
    what a method object holds ends with its run, or with an interrupt of it.
    """
    own = Path(plugin).with_name("keeping.py")
    own.write_text(KEEPING.replace("PLACE", where))
    (run,) = dpfl.run(*SMALL, f"algorithm=keeps_{where}", plugins=[str(own)], quiet=True)
    assert run.status == "failed"
    if where == "object":
        assert "keeps self.last from round to round" in run.result["reason"]
    else:
        assert "would stay from run to run" in run.result["reason"]
        assert "init" in capsys.readouterr().out
        words = [*SMALL, f"algorithm=keeps_{where}", "seed=1"]
        (later,) = dpfl.run(*words, plugins=[str(own)], quiet=True)
        assert "would stay from run to run" in later.result["reason"]
        assert "init" not in capsys.readouterr().out  # nothing of the later run was computed


@pytest.mark.parametrize(
    "where", ["own_number", "own_count", "number", "count", "cell", "class_number"]
)
def test_numbers_that_a_run_would_lose_are_refused(where: str, plugin: str) -> None:
    """They are of no client, and a run that goes on after a kill would end with other ones."""
    own = Path(plugin).with_name("counting.py")
    own.write_text(KEEPING.replace("PLACE", where))
    kept = {"own_number": "self.rounds", "own_count": "self.known"}
    said = kept.get(where, "changed while runs were made")
    for seed in range(2):
        words = [*SMALL, f"algorithm=keeps_{where}", f"seed={seed}"]
        (run,) = dpfl.run(*words, plugins=[str(own)], quiet=True)
        assert run.status == "failed"
        assert said in run.result["reason"]


def test_constants_and_fewest_are_no_private_memory(plugin: str, tmp_path: Path) -> None:
    """What is computed once from settings is the same in every run; dpfl counts records itself."""
    own = Path(plugin).with_name("once.py")
    own.write_text(KEEPING.replace("PLACE", "once"))
    data = ["dataset=arrays", f"dataset.path={tmp_path / 'data' / 'mine.npz'}"]
    words = ["algorithm=keeps_once", "dp=cdp", "rounds=2", *data, "partitioner=natural"]
    for run in dpfl.run(*words, "seed=0,1", plugins=[str(own)], quiet=True):
        assert run.status == "done", run.result["reason"]


def test_what_is_loaded_between_runs_is_nobodys_memory(plugin: str) -> None:
    """A file with a method may have data too, which it keeps for the next run."""
    own = Path(plugin).with_name("with_data.py")
    text = KEEPING.replace("keeps_PLACE", "with_data").replace("PLACE", "once")
    own.write_text(text + LOADED)
    for name in ("First", "Second", "First"):
        data = ["dataset=arrays", f"dataset.path={own}:{name}", "partitioner=natural"]
        (run,) = dpfl.run("algorithm=with_data", "dp=cdp", "rounds=1", *data, plugins=[str(own)])
        assert run.status == "done", run.result["reason"]


LOADED = """

import numpy as np

TABLES = {}

class First:
    name = "first"

    def __init__(self):
        TABLES[self.name] = np.arange(24.0).reshape(12, 2)

    def __len__(self):
        return 12

    def __getitem__(self, number):
        return TABLES[self.name][number], number % 2, number % 4

class Second(First):
    name = "second"
"""


def test_what_a_plugin_imports_is_part_of_its_revision_and_looked_at(
    plugin: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, beside = (Path(plugin).with_name(name) for name in ("alone.py", "its_helper"))
    monkeypatch.syspath_prepend(str(own.parent))
    text = KEEPING.replace("keeps_PLACE", "keeps_beside").replace("PLACE", "list")
    text = text.replace("CACHE.append", "deeper.KEPT.append")
    own.write_text(text.replace("import types", "import types\nfrom its_helper import deeper"))
    beside.mkdir()
    (beside / "between.py").write_text("from its_helper.facts import FACTOR")
    (beside / "deeper.py").write_text("KEPT = []")
    found = {}
    for factor in (1.0, 0.25):  # of other length: within a second Python sees no other change
        (beside / "facts.py").write_text(f"FACTOR = {factor}")
        (run,) = dpfl.run(*SMALL, "algorithm=keeps_beside", plugins=[str(own)], quiet=True)
        assert "would stay from run to run" in run.result["reason"]
        found[run.id] = importlib.import_module("its_helper.between").FACTOR
    assert list(found.values()) == [1.0, 0.25]


def test_what_releases_are_is_declared_without_the_data(plugin: str, tmp_path: Path) -> None:
    data, own = tmp_path / "data" / "mine.npz", Path(plugin).with_name("declares.py")
    peeking = f"np.load({str(data)!r}); return [ReleaseSpec"
    text = KEEPING.replace("keeps_PLACE", "declares").replace("return [ReleaseSpec", peeking)
    own.write_text(text.replace("PLACE", "list"))
    words = ["algorithm=declares", "dp=cdp", "rounds=1", "dataset=arrays", "partitioner=natural"]
    with pytest.raises(PrivacyError, match="opened by code"):
        dpfl.run(*words, f"dataset.path={data}", plugins=[str(own)], quiet=True)


NETWORK = """
import numpy as np
from torch import nn
TOP
def made():
    INSIDE
    return nn.Linear(3, 2)
"""


@pytest.mark.parametrize("where", ["method", "TOP", "INSIDE", "nowhere"])
def test_code_that_reads_data_as_it_begins_ends_the_run(
    where: str, plugin: str, tmp_path: Path
) -> None:
    """A method's file that is imported, a network's, or what makes one: what it computes of the
    records would count as public.
    """
    data, own = tmp_path / "records.npz", tmp_path / "begins.py"
    np.savez(
        data, features=np.random.default_rng(0).normal(size=(12, 3)), targets=np.arange(12) % 2
    )
    load = f"np.load({str(data)!r})"
    words = ["dp=cdp", "rounds=1", "dataset=arrays", f"dataset.path={data}"]
    words += ["partitioner=iid", "partitioner.clients=3"]
    if where == "method":
        text = KEEPING.replace("keeps_PLACE", "begins").replace("PLACE", "list")
        own.write_text(f"import numpy as np\n{load}\n{text}")
        words, plugins = [*words, "algorithm=begins", "model=softmax"], [str(own)]
    else:
        text = NETWORK.replace(where, load).replace("TOP", "").replace("INSIDE", "pass")
        own.write_text(text)
        words, plugins = [*words, "algorithm=fedavg", "model=torch", f"model.path={own}:made"], []
    (run,) = dpfl.run(*words, plugins=plugins, quiet=True)
    assert run.status == ("done" if where == "nowhere" else "failed")
    if where != "nowhere":
        assert f"{data}: opened " in run.result["reason"]
        assert "comes from `at.objective`" in run.result["reason"]


def test_what_dpfl_reads_late_is_not_held_against_a_method(
    plugin: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records that are read when they are first looked at, with any plugin in the run."""
    plan = make_plan(compose_config([*SMALL, "algorithm=fedavg", "dp=cdp"]))
    known, read = federation_of(plan), []
    file = tmp_path / "data" / "features.npy"
    np.save(file, known.dataset.train.features)

    def features() -> Any:
        read.append(True)
        with file.open("rb") as opened:
            return np.load(opened)

    late = dataclasses.replace(known.dataset, train=Records(features, known.dataset.train.targets))
    monkeypatch.setattr(type(plan), "data_files", [file.parent])
    Stack([Member(plan)], [Federation(late, known.partition)]).step()
    assert read == [True]


def test_who_is_in_a_batch_or_a_cohort_is_in_no_attribute_to_be_read() -> None:
    batch = at(record_play(batch_size=2)).batch(2, np.array([1]))
    cohort = draws.drawn_cohort(Streams([0]), draws.Sampling("fixed", 3, 9), np.array([1]))
    for one, names in ((batch, ["_records"]), (cohort, ["_members", "_there"])):
        assert "[" not in repr(one).replace("array([1])", "")
        for name in names:
            with pytest.raises(AttributeError):
                getattr(one, name)


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("DPFL_OUTPUTS", str(tmp_path / "outputs"))
    file = tmp_path / "plausible.py"
    data = tmp_path / "data" / "mine.npz"
    data.parent.mkdir()
    np.savez(data, features=np.ones((8, 3)), targets=np.arange(8) % 2, clients=np.arange(8) % 4)
    file.write_text(PLUGIN)
    return str(file)


def _ends(change: Callable[[FedAvg, State, Round], Any], monkeypatch: pytest.MonkeyPatch) -> str:
    """What is told of a private run whose method computes this in a round."""
    words = ["algorithm=fedavg", "dp=cdp", "dataset.clients=4", "dataset.dimension=3"]
    stack = Stack([Member(make_plan(compose_config(words)))])
    monkeypatch.setattr(FedAvg, "round", change)
    with pytest.raises(Exception) as failed:  # noqa: PT011
        stack.step()
    return failure_reason(failed.value, private=True)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda own, state, at: {"model": 4711.0}, "FedAvg returned dict: `init` returns State"),
        (lambda own, state, at: state, "FedAvg returned State: `init` returns State"),
        (lambda own, state, at: (state, None), "FedAvg returned State, NoneType: "),
        (lambda own, state, at: (State({}), {}), "'model' of FedAvg is not there, and must be"),
        (
            lambda own, state, at: (State({"model": state.server["model"][:, :2]}), {}),
            r"is \[1, 2\] of torch.float64, and must be \[1, 3\] of torch.float64",
        ),
        (
            lambda own, state, at: (State({"model": state.server["model"].float()}), {}),
            r"is \[1, 3\] of torch.float32, and must be \[1, 3\] of torch.float64; shape every",
        ),
        (
            lambda own, state, at: (State({"model": [4711.0]}), {}),
            "server state 'model' of FedAvg is list: states are tensors",
        ),
        (
            lambda own, state, at: (State(state.server, {"c": type("s4711", (), {})()}), {}),
            "client state 'c' of FedAvg is something else: states are tensors",
        ),
        (lambda own, state, at: (State(None), {}), "server state '' of FedAvg is NoneType"),
        (lambda own, state, at: own.hyper.clip_nrom, "no option .* this name; did you mean clip_"),
        (
            lambda own, state, at: clip(at.at_clients(state.server["model"]), 4711.0),
            "a bound of vectors is no tensor: it must be one",
        ),
        (
            lambda own, state, at: (
                state.server["model"]
                - at.release("update", bounded_local_update(at, state.server["model"], own.hyper))
            ),
            "a release is no tensor: take what is in it, such as its .mean",
        ),
    ],
)
def test_a_mistake_in_a_method_is_named_without_what_it_holds(
    change: Any, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = _ends(change, monkeypatch)
    assert re.search(says, told)
    assert "4711" not in told


def test_a_method_may_ask_for_an_option_that_it_may_have(monkeypatch: pytest.MonkeyPatch) -> None:
    def asks(own: FedAvg, state: State, at: Round) -> Any:
        assert getattr(own.hyper, "momentum", None) is None
        assert not hasattr(own.hyper, "momentum")
        raise ConfigError("4711")  # an error of dpfl's, with words of one's own

    assert "4711" not in (told := _ends(asks, monkeypatch))
    assert told.startswith("ConfigError")
