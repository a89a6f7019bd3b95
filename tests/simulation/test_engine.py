"""The engine: a run's numbers do not depend on its company, and nothing passes by the door."""

from __future__ import annotations

import importlib
import itertools
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from dpfl_cli.algorithms.base import Later, State
from dpfl_cli.algorithms.fedavg import FedAvg
from dpfl_cli.algorithms.fedexp import FedExp
from dpfl_cli.config.compose import compose_config
from dpfl_cli.config.errors import PrivacyError
from dpfl_cli.data.streams import Streams
from dpfl_cli.privacy.bounded import clip
from dpfl_cli.simulation import engine
from dpfl_cli.simulation.engine import Batch, Member, batch_key, run_members
from dpfl_cli.simulation.plan import Plan, make_plan, with_values

SMALL = ["dataset.clients=300", "dataset.dimension=7", "rounds=5"]
METHODS = [
    (algorithm, dp)
    for algorithm in ("fedavg", "fedexp", "fedexp_naive", "scaffold")
    for dp in ("none", "ldp", "ldp_privunit", "cdp")
    if algorithm != "fedexp_naive" or dp.startswith("ldp")
]


def plans_of(*overrides: str, seeds: int = 1, **changes: list[Any]) -> list[Plan]:
    base = compose_config([*SMALL, *overrides])
    variants = [{"seed": seed} for seed in range(seeds)]
    for key, values in changes.items():
        path = key.replace("__", ".")
        variants = [{**variant, path: value} for variant in variants for value in values]
    return [make_plan(with_values(base, variant)) for variant in variants]


def finish(plans: list[Plan]) -> dict[str, Member]:
    return {member.plan.id: member for member in run_members([Member(plan) for plan in plans], lambda m: None, lambda m: None)}


@pytest.mark.parametrize(("algorithm", "dp"), METHODS)
def test_a_run_in_a_batch_equals_the_run_alone_bit_by_bit(algorithm: str, dp: str) -> None:
    clip = [0.3, 1.0] if dp != "none" else [None]
    plans = plans_of(f"algorithm={algorithm}", f"dp={dp}", seeds=3, algorithm__clip_norm=clip, rounds=[3, 5])
    assert len({batch_key(plan) for plan in plans}) == 1
    together = finish(plans)
    for plan in plans:
        alone = finish([plan])[plan.id]
        assert alone.rows == together[plan.id].rows
        assert alone.ledger == together[plan.id].ledger
        assert len(alone.rows) == plan.rounds + 1


def test_the_ledger_of_a_run_is_the_one_that_was_planned() -> None:
    for algorithm, dp in METHODS:
        plan = plans_of(f"algorithm={algorithm}", f"dp={dp}")[0]
        member = finish([plan])[plan.id]
        planned = plan.ledger()
        assert [(e.name, e.count, e.parameter, e.kind) for e in member.ledger.entries] == [
            (e.name, e.count, e.parameter, e.kind) for e in planned.entries
        ]


def test_a_checkpoint_goes_on_as_if_nothing_had_happened() -> None:
    for algorithm, dp in METHODS:
        plan = plans_of(f"algorithm={algorithm}", f"dp={dp}", "evaluation.average_last=3")[0]
        unbroken = finish([plan])[plan.id]
        for stop in (1, 2, 4):
            batch = Batch([Member(plan)])
            batch.evaluate({})
            for _ in range(stop):
                batch.evaluate(batch.step())
            batch.collect()
            member = Member.from_bytes(plan, batch.members[0].to_bytes())
            assert member.round == stop
            resumed = next(iter(run_members([member], lambda m: None, lambda m: None)))
            assert resumed.rows == unbroken.rows
            assert resumed.ledger == unbroken.ledger


def test_members_at_different_rounds_share_a_batch() -> None:
    plans = plans_of("algorithm=fedexp", "dp=ldp", seeds=2)
    unbroken = finish(plans)
    ahead = Batch([Member(plans[0])])
    ahead.evaluate({})
    ahead.evaluate(ahead.step())
    ahead.collect()
    mixed = {m.plan.id: m for m in run_members([ahead.members[0], Member(plans[1])], lambda m: None, lambda m: None)}
    for plan in plans:
        assert mixed[plan.id].rows == unbroken[plan.id].rows


def test_damaged_checkpoints_are_refused() -> None:
    plan = plans_of()[0]
    batch = Batch([Member(plan)])
    batch.collect()
    payload = batch.members[0].to_bytes()
    for damaged in (b"", payload[: len(payload) // 2], b"x" * len(payload)):
        with pytest.raises(ValueError, match="damaged"):
            Member.from_bytes(plan, damaged)
    other = plans_of(seeds=2)[1]
    with pytest.raises(ValueError, match="another run"):
        Member.from_bytes(other, payload)


def test_evaluation_averages_the_last_models_there_are() -> None:
    plain = plans_of("algorithm=fedavg", "dp=none")[0]
    averaged = plans_of("algorithm=fedavg", "dp=none", "evaluation.average_last=2")[0]
    models = []
    batch = Batch([Member(plain)])
    for _ in range(plain.rounds):
        models.append(batch.state.server["model"].clone())
        batch.step()
    models.append(batch.state.server["model"].clone())
    rows = finish([averaged])[averaged.id].rows
    truth = torch.from_numpy(batch.objective.federations[0].dataset.truth["optimum"])
    expected = [torch.linalg.vector_norm(models[0][0] - truth)]
    expected += [torch.linalg.vector_norm((a[0] + b[0]) / 2 - truth) for a, b in itertools.pairwise(models)]
    np.testing.assert_allclose([row["distance"] for row in rows], [float(value) for value in expected], rtol=1e-12)


def test_every_and_the_last_round_are_evaluated() -> None:
    plan = plans_of("evaluation.every=3")[0]
    assert [row["round"] for row in finish([plan])[plan.id].rows] == [0, 3, 5]


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
def test_diagnostics_are_computed_in_rounds_that_are_shown_only(algorithm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """And those that are shown are what they would be if all were."""
    module = importlib.import_module(f"dpfl_cli.algorithms.{algorithm}")
    genuine, looks = module.update_diagnostics, []
    monkeypatch.setattr(module, "update_diagnostics", lambda update: looks.append(1) or genuine(update))
    found = {}
    for every, times in ((1, 7), (3, 3)):  # after 3, 6 and 7 rounds
        (plan,) = plans_of(f"algorithm={algorithm}", f"evaluation.every={every}", rounds=[7])
        (member,) = finish([plan]).values()
        assert len(looks) == times
        looks.clear()
        found[every] = {row["round"]: row for row in member.rows}
        assert {"clipped_fraction", "mean_squared_norm", "repaired"} <= set(member.unreleased)
    assert sorted(found[3]) == [0, 3, 6, 7]
    assert found[3] == {number: found[1][number] for number in found[3]}


def test_diagnostics_that_come_later_are_checked_like_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def leaking(self: Any, state: State, objective: Any, mechanism: Any, streams: Any, rounds: Any) -> Any:
        update = clip(objective.local_descent(state.server["model"], self.hyper.local_lr, 1), self.hyper.clip_norm)
        mechanism.release("update", update, rounds)
        return state, Later(lambda: {"norm": update.norms()})

    monkeypatch.setattr(FedAvg, "round", leaking)
    with pytest.raises(PrivacyError, match="values of single clients are no diagnostic"):
        Batch([Member(plan) for plan in plans_of("algorithm=fedavg", rounds=[2])]).step()


def test_rounds_are_counted_at_events_and_a_round_that_broke_is_not_done(monkeypatch: pytest.MonkeyPatch) -> None:
    plans = plans_of("evaluation.every=3", seeds=2, rounds=[4, 5])
    batch = Batch([Member(plan) for plan in plans])
    assert batch.until_event() == 3
    for _ in range(3):
        batch.step()
    assert batch.until_event() == 1  # the first ones end
    batch.step()
    batch.write_back(seconds=2.0)
    assert [member.round for member in batch.members] == [4] * 4
    assert [member.seconds for member in batch.members] == [0.5] * 4
    assert all(member.unreleased for member in batch.members)

    def broken(*_: Any) -> Any:
        raise ValueError("broken")

    alone = Batch([Member(plans[0])])
    alone.step()
    monkeypatch.setattr(FedExp, "round", broken)
    with pytest.raises(ValueError, match="broken"):
        alone.step()
    alone.collect()
    assert alone.members[0].round == 1


def test_the_algorithms_own_seconds_are_known_at_every_evaluated_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that only init (32 s), rounds (4 s) and evaluations (1000 s) move; two members share what their batch takes."""
    now = [0.0]
    monkeypatch.setattr(engine, "time", SimpleNamespace(perf_counter=lambda: now[0]))

    def taking(seconds: float, original: Any) -> Any:
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            now[0] += seconds
            return original(*args, **kwargs)

        return wrapped

    monkeypatch.setattr(FedExp, "init", taking(32.0, FedExp.init))
    monkeypatch.setattr(FedExp, "round", taking(4.0, FedExp.round))
    monkeypatch.setattr(Batch, "evaluate", taking(1000.0, Batch.evaluate))
    plans = plans_of("evaluation.every=2", "rounds=5", seeds=2)
    alone = finish(plans[:1])[plans[0].id]
    assert alone.compute_at == {0: 32.0, 2: 40.0, 4: 48.0, 5: 52.0}
    assert finish(plans)[plans[1].id].compute_at == {number: seconds / 2 for number, seconds in alone.compute_at.items()}
    batch = Batch([Member(plans[0])])
    batch.evaluate({})
    for _ in range(3):
        batch.evaluate(batch.step())
    batch.collect()
    (half,) = batch.members
    rest = Batch([Member.from_bytes(plans[0], half.to_bytes())])
    for _ in range(2):
        rest.evaluate(rest.step())
    assert rest.members[0].compute_at == alone.compute_at


def test_progress_and_interruption_are_looked_at_often_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plans_of("evaluation.every=5", "rounds=30")[0]
    for look_every, expected in ((0.0, list(range(1, 31))), (1e9, list(range(5, 31, 5)))):
        monkeypatch.setattr(engine, "LOOK_EVERY", look_every)
        seen: list[int] = []
        list(run_members([Member(plan)], lambda m: None, lambda active, seen=seen: seen.append(active[0].round)))
        assert seen == expected
    monkeypatch.setattr(engine, "LOOK_EVERY", 0.0)
    saved: list[int] = []
    with pytest.raises(KeyboardInterrupt):
        list(run_members([Member(plan)], lambda m: saved.append(m.round), lambda m: None, stop=lambda: True))
    assert saved == [1]


class Leaking(FedAvg):
    """Puts the mean of raw updates into the server state, in the way that `how` says."""

    how = "mean"

    def round(self, state: State, objective: Any, mechanism: Any, streams: Streams, rounds: np.ndarray) -> Any:
        raw = objective.local_descent(state.server["model"], self.hyper.local_lr, 1)
        if self.how == "mean":
            leaked = raw.mean(dim=1)
        elif self.how == "client":
            leaked = raw[:, 0]
        elif self.how == "copy":
            leaked = torch.zeros_like(state.server["model"])
            leaked.copy_(raw[:, 0])
        elif self.how == "keep":
            leaked = raw
        else:
            leaked = torch.tensor(raw.sum().item())
        return State({"model": state.server["model"], "leak": leaked}, {}), {}


@pytest.mark.parametrize("how", ["mean", "client", "copy", "keep", "item"])
def test_a_leaking_algorithm_is_stopped(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plans_of("algorithm=fedavg")[0]
    batch = Batch([Member(plan)])
    leaking = Leaking(batch.algorithm.hyper)
    monkeypatch.setattr(Leaking, "how", how)
    batch.algorithm = leaking
    with pytest.raises(PrivacyError):
        batch.step()


def test_streams_are_addressed_not_consumed() -> None:
    rounds = np.array([3, 7])
    streams = Streams([5, 6])
    first = streams.normal("noise/a", rounds, 300, 4)
    assert torch.equal(first, streams.normal("noise/a", rounds, 300, 4))
    assert not torch.equal(first, streams.normal("noise/b", rounds, 300, 4))
    alone = Streams([6]).normal("noise/a", np.array([7]), 300, 4)
    assert torch.equal(alone[0], first[1])
    fewer = Streams([6]).normal("noise/a", np.array([7]), 256, 4)
    assert torch.equal(fewer[0], first[1, :256])
    assert abs(float(first.mean())) < 0.1
    assert abs(float(first.std()) - 1) < 0.05


def test_consecutive_rounds_and_tiles_do_not_repeat() -> None:
    streams = Streams([1])
    values = torch.cat([streams.normal("n", np.array([t]), 600, 3).flatten() for t in range(70)])
    assert len(torch.unique(values)) == len(values)


def test_runs_of_a_batch_may_differ_in_what_they_declare() -> None:
    plans = plans_of("algorithm=fedexp", "dp=cdp", algorithm__squared_norm_noise=[0.5, 50.0])
    assert batch_key(plans[0]) == batch_key(plans[1])
    together = finish(plans)
    for plan, noise in zip(plans, (0.5, 50.0), strict=True):
        assert {entry.name: entry.parameter for entry in together[plan.id].ledger.entries}["squared_norm"] == noise
        assert together[plan.id].rows == finish([plan])[plan.id].rows


class Silent(FedAvg):
    """Declares a release that it never makes."""

    def round(self, state: State, objective: Any, mechanism: Any, streams: Streams, rounds: np.ndarray) -> Any:
        return state, {}


def test_a_ledger_that_is_not_the_declared_one_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plans_of("algorithm=fedavg")[0]
    monkeypatch.setattr(FedAvg, "round", Silent.round)
    with pytest.raises(PrivacyError, match=r"update x 5"):
        finish([plan])


def test_noise_may_follow_a_schedule_and_releases_a_public_calendar(monkeypatch: pytest.MonkeyPatch) -> None:
    """What time-varying noise and coins will need: the plan and the ledger agree on every round's event."""
    from dpfl_cli.privacy.mechanism import ReleaseSpec

    def releases(settings: Any, trust: str) -> list[ReleaseSpec]:
        return [
            ReleaseSpec("update", schedule=lambda rounds, clients: 2.0 ** np.arange(rounds)),
            ReleaseSpec("coin", occurs=lambda seed, rounds: (np.arange(rounds) + seed) % 2 == 0),
        ]

    original = FedAvg.round

    def both(self: Any, state: State, objective: Any, mechanism: Any, streams: Streams, rounds: np.ndarray) -> Any:
        from dpfl_cli.algorithms.local import bounded_local_update

        shown = (rounds - 1 + np.array(streams.seeds)) % 2 == 0
        update = bounded_local_update(objective, state.server["model"], self.hyper, streams, rounds)
        release = mechanism.release("coin", update, rounds, charged=shown)
        assert not release.received[~torch.from_numpy(shown)].any()
        return original(self, state, objective, mechanism, streams, rounds)

    monkeypatch.setattr(FedAvg, "releases", staticmethod(releases))
    monkeypatch.setattr(FedAvg, "round", both)
    plans = plans_of("algorithm=fedavg", "dp=cdp", seeds=2)
    members = finish(plans)
    for plan in plans:
        entries = {entry.name: entry for entry in members[plan.id].ledger.entries}
        assert entries["update"].parameter == tuple(2.5 * 2.0**t for t in range(5))
        assert entries["coin"].count == (3 if plan.seed == 0 else 2)
