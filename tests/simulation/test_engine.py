"""The engine: a run's numbers do not depend on its company, and nothing passes by the door."""

from __future__ import annotations

import importlib
import io
import itertools
import random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from members import finish

from dpfl_cli.algorithms.base import Round, State
from dpfl_cli.algorithms.fedavg import FedAvg
from dpfl_cli.algorithms.fedexp import FedExp
from dpfl_cli.algorithms.local import bounded_local_update
from dpfl_cli.config.compose import compose_config
from dpfl_cli.config.errors import ConfigError, PrivacyError
from dpfl_cli.data.files import with_digest, without_digest
from dpfl_cli.privacy.client_values import diagnostic, is_raw, opened
from dpfl_cli.privacy.releases import ReleaseSpec, Setup
from dpfl_cli.simulation import execute, stack
from dpfl_cli.simulation.execute import run_members
from dpfl_cli.simulation.member import Member
from dpfl_cli.simulation.plan import make_plan, with_values
from dpfl_cli.simulation.run_plan import Plan
from dpfl_cli.simulation.stack import Stack, stack_key

SMALL = ["dataset.clients=300", "dataset.dimension=7", "rounds=5"]
BATCHES = "dataset.records_per_client=3 algorithm.batch_size=2"
METHODS = [
    (f"algorithm={words}", f"dp={dp}")
    for words in (
        *("fedavg", "fedexp", "fedexp_naive", "scaffold", "scaffnew", f"fedavg {BATCHES}"),
        "scaffold algorithm.release=double algorithm.control=raw",
        f"scaffnew algorithm.control=none algorithm.schedule=bernoulli {BATCHES}",
    )
    for dp in ("none", "ldp", "ldp_privunit", "cdp")
    if words != "fedexp_naive" or dp.startswith("ldp")
]


def plans_of(*overrides: str, seeds: int = 1, **changes: list[Any]) -> list[Plan]:
    base = compose_config([*SMALL, *overrides])
    variants = [{"seed": seed} for seed in range(seeds)]
    for key, values in changes.items():
        path = key.replace("__", ".")
        variants = [{**variant, path: value} for variant in variants for value in values]
    return [make_plan(with_values(base, variant)) for variant in variants]


@pytest.mark.parametrize(("words", "dp"), METHODS)
def test_a_run_in_a_batch_equals_the_run_alone_bit_by_bit(words: str, dp: str) -> None:
    own: dict[str, list[Any]] = {"algorithm__clip_norm": [0.3, 1.0] if dp != "dp=none" else [None]}
    steps = "scaffnew" in words  # as many as there are between its communications
    own |= (
        {"algorithm__local_steps": [2.0, 3.0]} if steps else {"algorithm__local_lr": [0.003, 0.1]}
    )
    plans = plans_of(*words.split(), dp, seeds=2, **own, rounds=[3, 5])
    assert len({stack_key(plan) for plan in plans}) == 1
    together = finish(plans)
    for plan in (*plans[::5], plans[-1]):  # of every seed, option and length
        alone = finish([plan])[plan.id]
        assert alone.rows == together[plan.id].rows
        assert alone.ledger == together[plan.id].ledger
        assert len(alone.rows) == plan.rounds + 1


def test_a_checkpoint_goes_on_as_if_nothing_had_happened() -> None:
    for words, dp in METHODS:
        plan = plans_of(*words.split(), dp, "evaluation.average_last=3")[0]
        unbroken = finish([plan])[plan.id]
        for stop in (1, 2, 4):
            batch = Stack([Member(plan)])
            batch.evaluate({})
            for _ in range(stop):
                batch.evaluate(batch.step())
            batch.collect()
            member = Member.from_bytes(plan, batch.members[0].to_bytes())
            assert member.round == stop
            resumed = next(iter(run_members([member])))
            assert resumed.rows == unbroken.rows
            assert resumed.ledger == unbroken.ledger


@pytest.mark.parametrize(
    "words",
    [
        "algorithm=fedexp dp=ldp",
        "algorithm=scaffnew dp=ldp algorithm.local_steps=3",
        "algorithm=scaffold dp=cdp algorithm.warm_start=true",
        "algorithm=scaffold_record dp=record algorithm.warm_start=true",
        "algorithm=fedfc_record dp=record",
    ],
)
def test_members_at_different_rounds_share_a_batch(words: str) -> None:
    plans = plans_of(*words.split(), seeds=2)
    unbroken = finish(plans)
    ahead = Stack([Member(plans[0])])
    ahead.evaluate({})
    ahead.evaluate(ahead.step())
    ahead.collect()
    both = Stack([ahead.members[0], Member(plans[1])]).state.clients
    raw = [name for name, value in ahead.state.clients.items() if is_raw(value)]
    assert all(is_raw(both[name]) for name in raw)  # though they are not at the other's beginning
    mixed = {m.plan.id: m for m in run_members([ahead.members[0], Member(plans[1])])}
    for plan in plans:
        assert mixed[plan.id].rows == unbroken[plan.id].rows
        assert mixed[plan.id].ledger == unbroken[plan.id].ledger


def test_damaged_checkpoints_are_refused() -> None:
    plan = plans_of()[0]
    batch = Stack([Member(plan)])
    batch.collect()
    payload = batch.members[0].to_bytes()
    bits = random.Random(0).sample(range(8 * len(payload)), 100)
    flipped = [
        payload[: b // 8] + bytes([payload[b // 8] ^ 1 << b % 8]) + payload[b // 8 + 1 :]
        for b in bits
    ]
    lacking = io.BytesIO()
    saved = torch.load(io.BytesIO(without_digest(payload)), weights_only=True)
    torch.save({name: value for name, value in saved.items() if name != "rows"}, lacking)
    lacks = with_digest(lacking.getvalue())
    for damaged in (b"", payload[: len(payload) // 2], b"x" * len(payload), lacks, *flipped):
        with pytest.raises(ValueError, match="damaged"):
            Member.from_bytes(plan, damaged)
    other = plans_of(seeds=2)[1]
    with pytest.raises(ValueError, match="another run"):
        Member.from_bytes(other, payload)


def test_evaluation_averages_the_last_models_there_are() -> None:
    plain = plans_of("algorithm=fedavg", "dp=none")[0]
    averaged = plans_of("algorithm=fedavg", "dp=none", "evaluation.average_last=2")[0]
    models = []
    batch = Stack([Member(plain)])
    for _ in range(plain.rounds):
        models.append(batch.state.server["model"].clone())
        batch.step()
    models.append(batch.state.server["model"].clone())
    rows = finish([averaged])[averaged.id].rows
    truth = torch.from_numpy(batch.objective.federations[0].dataset.truth["optimum"])
    expected = [torch.linalg.vector_norm(models[0][0] - truth)]
    expected += [
        torch.linalg.vector_norm((a[0] + b[0]) / 2 - truth) for a, b in itertools.pairwise(models)
    ]
    np.testing.assert_allclose(
        [row["distance"] for row in rows], [float(value) for value in expected], rtol=1e-12
    )


def test_more_models_than_there_are_cost_nothing() -> None:
    rounds = plans_of("algorithm=fedavg", "dp=none")[0].rounds
    few, whole, many = (
        [
            one.rows
            for one in finish(
                plans_of("algorithm=fedavg", "dp=none", f"evaluation.average_last={count}")
            ).values()
        ]
        for count in (rounds, rounds + 1, 10**12)
    )
    assert few != whole == many  # the model of round 0 is one of them


def test_a_diverging_run_stops_alone() -> None:
    plans = plans_of("algorithm=fedavg", "dp=none", "rounds=40", algorithm__local_lr=[0.003, 1e6])
    members = finish(plans)
    good, bad = members[plans[0].id], members[plans[1].id]
    assert good.diverged is None
    assert good.round == 40
    assert bad.diverged is not None
    assert bad.round < 40
    assert good.rows == finish([plans[0]])[plans[0].id].rows


@pytest.mark.parametrize("algorithm", ["fedexp", "fedavg", "scaffold"])
def test_diagnostics_are_computed_in_rounds_that_are_shown_only(
    algorithm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And those that are shown are what they would be if all were."""
    module = importlib.import_module(f"dpfl_cli.algorithms.{algorithm}")
    genuine, looks = module.update_diagnostics, []
    monkeypatch.setattr(
        module, "update_diagnostics", lambda update: looks.append(1) or genuine(update)
    )
    found = {}
    # after all of 7 rounds, after 3, 6 and 7, after 2, 5 and 7
    for words, times in (("every=1", 7), ("every=3", 3), ("rounds=[2,5]", 3)):
        (plan,) = plans_of(f"algorithm={algorithm}", f"evaluation.{words}", rounds=[7])
        (member,) = finish([plan]).values()
        assert len(looks) == times
        looks.clear()
        found[words] = {row["round"]: row for row in member.rows}
        assert {"clipped_fraction", "mean_squared_norm", "repaired"} <= set(member.unreleased)
    assert sorted(found["every=3"]) == [0, 3, 6, 7]
    assert sorted(found["rounds=[2,5]"]) == [0, 2, 5, 7]
    for some in found.values():
        assert some == {number: found["every=1"][number] for number in some}


def test_rounds_are_counted_at_events_and_a_round_that_broke_is_not_done(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plans = plans_of("evaluation.every=3", seeds=2, rounds=[4, 5])
    batch = Stack([Member(plan) for plan in plans])
    assert batch.until_event() == 3
    for _ in range(3):
        batch.step()
    assert batch.until_event() == 1  # the first ones end
    batch.step()
    batch.write_back(seconds=2.0)
    assert [member.round for member in batch.members] == [4] * 4
    assert [member.seconds for member in batch.members] == [0.5] * 4

    def broken(*_: Any) -> Any:
        raise ValueError("broken")

    alone = Stack([Member(plans[0])])
    alone.step()
    monkeypatch.setattr(FedExp, "round", broken)
    with pytest.raises(ValueError, match="broken"):
        alone.step()
    alone.collect()
    assert alone.members[0].round == 1


def test_the_algorithms_own_seconds_are_known_at_every_evaluated_round(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A clock that only init (32 s), rounds (4 s) and evaluations (1000 s) move; two members share
    what their batch takes.
    """
    now = [0.0]
    for module in (execute, stack):
        monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: now[0]))

    def taking(seconds: float, original: Any) -> Any:
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            now[0] += seconds
            return original(*args, **kwargs)

        return wrapped

    monkeypatch.setattr(FedExp, "init", staticmethod(taking(32.0, FedExp.init)))
    monkeypatch.setattr(FedExp, "round", taking(4.0, FedExp.round))
    monkeypatch.setattr(Stack, "evaluate", taking(1000.0, Stack.evaluate))
    plans = plans_of("evaluation.every=2", "rounds=5", seeds=2)
    alone = finish(plans[:1])[plans[0].id]
    assert alone.compute_at == {0: 32.0, 2: 40.0, 4: 48.0, 5: 52.0}
    assert finish(plans)[plans[1].id].compute_at == {
        number: seconds / 2 for number, seconds in alone.compute_at.items()
    }
    batch = Stack([Member(plans[0])])
    batch.evaluate({})
    for _ in range(3):
        batch.evaluate(batch.step())
    batch.collect()
    (half,) = batch.members
    rest = Stack([Member.from_bytes(plans[0], half.to_bytes())])
    for _ in range(2):
        rest.evaluate(rest.step())
    assert rest.members[0].compute_at == alone.compute_at


def test_progress_and_interruption_are_looked_at_often_enough(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan = plans_of("evaluation.every=5", "rounds=30")[0]
    for look_every, expected in ((0.0, list(range(1, 31))), (1e9, list(range(5, 31, 5)))):
        monkeypatch.setattr(execute, "LOOK_EVERY", look_every)
        seen: list[int] = []
        note = lambda active, seen=seen: seen.append(active[0].round)
        list(run_members([Member(plan)], advance=note))
        assert seen == expected
    monkeypatch.setattr(execute, "LOOK_EVERY", 0.0)
    saved: list[int] = []
    with pytest.raises(KeyboardInterrupt):
        list(run_members([Member(plan)], lambda m: saved.append(m.round), stop=lambda: True))
    assert saved == [1]


def kept(raw: Any, state: State) -> Any:
    return State({**state.server, "leak": raw}, {}), {}


def remembered(raw: Any, state: State) -> Any:
    return State(state.server, {"mean": diagnostic(opened(raw))}), {}


def in_place(raw: Any, state: State) -> Any:
    state.server["model"].add_(1.0)
    return state, {}


def shown(raw: Any, state: State) -> Any:
    return state, {"norm": raw}


def shown_later(raw: Any, state: State) -> Any:
    return state, lambda: {"norm": raw}


@pytest.mark.parametrize(
    ("leak", "message"),
    [
        (kept, "computed from client values that no mechanism released"),
        (remembered, "holds a diagnostic: for display only"),
        (in_place, "changed its state in place"),
        (shown, "values of single clients are no diagnostic"),
        (shown_later, "values of single clients are no diagnostic"),
    ],
)
def test_a_leaking_algorithm_is_stopped(
    leak: Any, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def round_(self: Any, state: State, at: Round) -> Any:
        raw = at.objective.local_descent(state.server["model"], self.hyper.local_lr, 1)
        return leak(raw, state)

    monkeypatch.setattr(FedAvg, "round", round_)
    (plan,) = plans_of("algorithm=fedavg", rounds=[2])
    batch = Stack([Member(plan)])
    with pytest.raises(PrivacyError, match=message):
        batch.evaluate(batch.step())


@pytest.mark.parametrize(
    ("wrong", "is_now"), [(lambda model: model, r"\[1, \d+\]"), (lambda _: 1.0, "float")]
)
def test_a_diagnostic_is_a_number_a_run(
    wrong: Any, is_now: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        FedAvg, "round", lambda self, state, at: (state, {"own": wrong(state.server["model"])})
    )
    (plan,) = plans_of("algorithm=fedavg", rounds=[2])
    batch = Stack([Member(plan)])
    with pytest.raises(ConfigError, match=rf"diagnostic 'own' is {is_now}: .*tensor \[1\]"):
        batch.evaluate(batch.step())


@pytest.mark.parametrize("name", ["round", "distance", "train_loss"])
def test_a_diagnostic_has_a_name_of_its_own(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    values = lambda self, state, at: (state, {name: state.server["model"].sum(dim=1)})
    monkeypatch.setattr(FedAvg, "round", values)
    batch = Stack([Member(plans_of("algorithm=fedavg", rounds=[2])[0])])
    with pytest.raises(ConfigError, match=f"diagnostic '{name}': a column has this name"):
        batch.evaluate(batch.step())


def test_runs_of_a_batch_may_differ_in_what_they_declare() -> None:
    plans = plans_of("algorithm=fedexp", "dp=cdp", algorithm__squared_norm_noise=[0.5, 50.0])
    assert stack_key(plans[0]) == stack_key(plans[1])
    together = finish(plans)
    for plan, noise in zip(plans, (0.5, 50.0), strict=True):
        assert {entry.name: entry.parameter for entry in together[plan.id].ledger.entries}[
            "squared_norm"
        ] == noise
        assert together[plan.id].rows == finish([plan])[plan.id].rows


def test_runs_that_release_as_often_as_their_seeds_say_are_stacked_apart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """How often is part of the address of a release's noise: in a stack it would be the first
    run's, and when that leaves, others would draw the noise of earlier rounds again.
    """

    def releases(settings: Any, run: Any) -> list[ReleaseSpec]:
        return [ReleaseSpec("update", per_round=1 + run.seed % 2)]

    monkeypatch.setattr(FedAvg, "releases", staticmethod(releases))
    plans = plans_of("algorithm=fedavg", seed=[0, 1, 2])
    keys = [stack_key(plan) for plan in plans]
    assert keys[0] == keys[2] != keys[1]


@pytest.mark.parametrize(
    ("releases", "says"),
    [
        (lambda: ReleaseSpec("update"), "releases gives ReleaseSpec; return a list of ReleaseSpec"),
        (lambda: ["update"], "releases gives str; return a list"),
        (lambda: None, "releases gives NoneType; return a list"),
        (lambda: [ReleaseSpec("update", factors=[1.0, 2.0])], r"factors is no array \[T\]"),
    ],
)
def test_releases_that_are_none_are_told(
    releases: Any, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FedAvg, "releases", staticmethod(lambda settings, run: releases()))
    with pytest.raises(ConfigError, match=says):
        plans_of("algorithm=fedavg", "dp=cdp", rounds=[2])


def test_a_ledger_that_is_not_the_declared_one_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plans_of("algorithm=fedavg")[0]
    monkeypatch.setattr(FedAvg, "round", lambda self, state, at: (state, {}))  # makes none
    with pytest.raises(PrivacyError, match=r"update x 5"):
        finish([plan])


def test_noise_may_follow_a_schedule_and_releases_a_public_calendar(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What time-varying noise and coins will need: the plan and the ledger agree on every round's
    event.
    """

    def releases(settings: Any, run: Setup) -> list[ReleaseSpec]:
        numbers = np.arange(run.rounds)
        return [
            ReleaseSpec("update", factors=2.0**numbers),
            ReleaseSpec("coin", made=(numbers + run.seed) % 2 == 0),
        ]

    original = FedAvg.round

    def both(self: Any, state: State, at: Round) -> Any:
        shown = at.mechanism.due("coin", at.number)
        update = bounded_local_update(at, state.server["model"], self.hyper)
        release = at.release("coin", update, charged=shown)
        assert not release.received[~torch.from_numpy(shown)].any()
        return original(self, state, at)

    monkeypatch.setattr(FedAvg, "releases", staticmethod(releases))
    monkeypatch.setattr(FedAvg, "round", both)
    plans = plans_of("algorithm=fedavg", "dp=cdp", seeds=2)
    members = finish(plans)
    for plan in plans:
        entries = {entry.name: entry for entry in members[plan.id].ledger.entries}
        assert entries["update"].parameter == tuple(2.5 * 2.0**t for t in range(5))
        assert entries["coin"].count == (3 if plan.seed == 0 else 2)


def test_a_method_cannot_change_how_far_a_run_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def round_(self: Any, state: State, at: Round) -> Any:
        at.number[:] += 1
        return state, {}

    monkeypatch.setattr(FedAvg, "round", round_)
    (plan,) = plans_of("algorithm=fedavg", rounds=[2])
    with pytest.raises(ValueError, match="read-only"):
        Stack([Member(plan)]).step()
