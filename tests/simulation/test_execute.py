"""Executing: nothing is run twice, nothing is lost, one bad run does not stop the others, kill -9 changes no number."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from dpfl_cli.algorithms.fedavg import FedAvg
from dpfl_cli.config.compose import compose_config
from dpfl_cli.config.errors import ConfigError, StoreError
from dpfl_cli.simulation import engine
from dpfl_cli.simulation import execute as execute_module
from dpfl_cli.simulation import store as store_module
from dpfl_cli.simulation.execute import batches, execute, execute_alone
from dpfl_cli.simulation.plan import Plan, make_plan, with_values
from dpfl_cli.simulation.progress import Progress
from dpfl_cli.simulation.store import RunStore

SMALL = ["dataset.clients=60", "dataset.dimension=6", "rounds=12", "runtime.checkpoint_every=1e-9"]


def grid(*overrides: str) -> list[Plan]:
    plans = []
    for algorithm, dp in (
        ("fedexp", "ldp"),
        ("fedavg", "ldp"),
        ("fedexp", "ldp_privunit"),
        ("fedexp", "cdp"),
        ("scaffold", "cdp"),
    ):
        base = compose_config([*SMALL, f"algorithm={algorithm}", f"dp={dp}", *overrides])
        plans += [make_plan(with_values(base, {"seed": seed, "rounds": rounds})) for seed in (0, 1) for rounds in (5, 12)]
    return plans


def contents(store: RunStore) -> dict[str, dict[str, Any]]:
    """What must not depend on interruptions: everything but times."""
    result = {}
    for record in store.all():
        record.check()
        stable = {key: value for key, value in record.result.items() if key != "timing"}
        result[record.id] = {"rows": record.rows, "ledger": record.ledger, "config": record.config, "result": stable}
    return result


def test_a_finished_run_is_not_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = RunStore(tmp_path)
    plans = grid()[:3]
    first = execute([*plans, plans[0]], store)
    assert [outcome.cached for outcome in first] == [False] * 4
    assert len(store.all()) == 3

    def never(*args: object, **kwargs: object) -> None:
        raise AssertionError("ran again")

    monkeypatch.setattr(execute_module, "run_members", never)
    again = execute(plans, store)
    assert all(outcome.cached and outcome.status == "done" for outcome in again)
    monkeypatch.undo()
    assert not any(outcome.cached for outcome in execute(plans, store, force=True))


def test_one_failing_run_does_not_stop_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plans = [plan for plan in grid() if plan.algorithm.name == "fedavg"]
    original = FedAvg.round

    def failing(self: Any, state: Any, objective: Any, mechanism: Any, streams: Any, rounds: Any) -> Any:
        if 1 in streams.seeds and int(rounds.max()) == 3:
            raise RuntimeError("out of\nluck")
        return original(self, state, objective, mechanism, streams, rounds)

    monkeypatch.setattr(FedAvg, "round", failing)
    store = RunStore(tmp_path)
    outcomes = execute(plans, store)
    assert {(outcome.plan.seed, outcome.status) for outcome in outcomes} == {(0, "done"), (1, "failed")}
    assert {outcome.reason for outcome in outcomes if outcome.status == "failed"} == {"RuntimeError: out of luck"}
    monkeypatch.undo()
    mended = execute(plans, store)
    assert {outcome.status for outcome in mended} == {"done"}
    assert contents(store) == contents_of_unbroken(plans, tmp_path / "other")


def contents_of_unbroken(plans: list[Plan], folder: Path) -> dict[str, dict[str, Any]]:
    store = RunStore(folder)
    execute(plans, store)
    return contents(store)


def test_data_that_cannot_be_built_fail_their_run_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from dpfl_cli.data.partitioners import Natural

    plans = [plan for plan in grid() if plan.algorithm.name == "fedavg"]
    original = Natural.partition

    def failing(settings: Any, dataset: Any, seed: int) -> Any:
        if seed == 1:
            raise MemoryError("no room")
        return original(settings, dataset, seed)

    engine._federations.clear()
    monkeypatch.setattr(Natural, "partition", staticmethod(failing))
    outcomes = execute(plans, RunStore(tmp_path))
    assert {(outcome.plan.seed, outcome.status) for outcome in outcomes} == {(0, "done"), (1, "failed")}
    failed = next(outcome.record for outcome in outcomes if outcome.status == "failed")
    assert failed.result["privacy"]["epsilon"] is None
    assert "no room" in failed.result["reason"]


def test_a_forced_rerun_never_costs_the_result_it_repeats(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = next(plan for plan in grid() if plan.algorithm.name == "fedavg" and plan.rounds == 12)
    store = RunStore(tmp_path)
    execute([plan], store)
    before = contents(store)
    original = FedAvg.round

    def failing(self: Any, state: Any, objective: Any, mechanism: Any, streams: Any, rounds: Any) -> Any:
        if int(rounds[0]) == 7:
            raise RuntimeError("broken")
        return original(self, state, objective, mechanism, streams, rounds)

    monkeypatch.setattr(FedAvg, "round", failing)
    outcome = execute([plan], store, force=True)[0]
    assert outcome.status == "failed"
    assert "is kept" in (outcome.reason or "")
    assert contents(store) == before
    monkeypatch.undo()
    assert execute([plan], store)[0].cached
    assert store.is_forced(plan.id)  # the unfinished rerun is still there, and is gone on with
    started: list[int] = []

    def watching(self: Any, state: Any, objective: Any, mechanism: Any, streams: Any, rounds: Any) -> Any:
        started.append(int(rounds[0]))
        return original(self, state, objective, mechanism, streams, rounds)

    monkeypatch.setattr(FedAvg, "round", watching)
    assert execute([plan], store, force=True)[0].status == "done"
    assert started[0] == 7
    assert contents(store) == before
    assert not store.is_forced(plan.id)


def test_runs_alone_are_run_anew_one_by_one_and_never_cost_a_finished_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plans = [plan for plan in grid() if plan.algorithm.name == "fedavg" and plan.rounds == 12][:2]
    store = RunStore(tmp_path)
    execute(plans, store)
    before = contents(store)
    sizes: list[tuple[int, int]] = []
    original = FedAvg.round

    def watching(self: Any, state: Any, objective: Any, mechanism: Any, streams: Any, rounds: Any) -> Any:
        sizes.append((state.server["model"].shape[0], int(rounds[0])))
        return original(self, state, objective, mechanism, streams, rounds)

    monkeypatch.setattr(FedAvg, "round", watching)
    outcomes = execute_alone(plans, store, Progress("", 0, quiet=True))
    assert [(outcome.status, outcome.cached) for outcome in outcomes] == [("done", False)] * len(plans)
    one = [(1, number) for number in (1, 2, *range(1, 13))]  # two rounds to warm up, then all of them
    assert sizes == one * len(plans)
    assert contents(store) == before
    times = outcomes[0].record.result["timing"]["compute"]
    assert list(times) == [str(int(row["round"])) for row in outcomes[0].record.rows]
    assert sorted(times.values()) == list(times.values())

    def failing(self: Any, state: Any, objective: Any, mechanism: Any, streams: Any, rounds: Any) -> Any:
        if int(rounds[0]) == 7:
            raise RuntimeError("broken")
        return watching(self, state, objective, mechanism, streams, rounds)

    monkeypatch.setattr(FedAvg, "round", failing)
    assert execute_alone(plans[:1], store, Progress("", 0, quiet=True))[0].status == "failed"
    assert contents(store) == before
    sizes.clear()
    monkeypatch.setattr(FedAvg, "round", watching)
    assert execute_alone(plans[:1], store, Progress("", 0, quiet=True))[0].status == "done"
    assert sizes == one  # from the beginning, not from the checkpoint of what failed


def test_a_diverged_result_is_a_finished_one_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    overrides = ["dataset=synthetic", "dataset.clients=4", "dataset.dimension=3", "algorithm=fedavg", "dp=none", "rounds=400"]
    plan = make_plan(compose_config([*overrides, "algorithm.local_lr=90"]))
    store = RunStore(tmp_path)
    assert execute([plan], store)[0].status == "diverged"
    before = contents(store)

    def failing(*_: Any) -> Any:
        raise RuntimeError("broken")

    monkeypatch.setattr(FedAvg, "round", failing)
    assert execute([plan], store, force=True)[0].status == "failed"
    assert contents(store) == before


def test_a_failed_run_keeps_what_it_had_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = next(plan for plan in grid() if plan.algorithm.name == "fedavg" and plan.rounds == 12)
    original = FedAvg.round

    def failing(self: Any, state: Any, objective: Any, mechanism: Any, streams: Any, rounds: Any) -> Any:
        if int(rounds[0]) == 7:
            raise RuntimeError("broken")
        return original(self, state, objective, mechanism, streams, rounds)

    monkeypatch.setattr(FedAvg, "round", failing)
    store = RunStore(tmp_path)
    record = execute([plan], store)[0].record
    assert [row["round"] for row in record.rows] == list(range(7))
    assert record.ledger.releases == 6
    monkeypatch.undo()
    assert execute([plan], store)[0].status == "done"
    assert contents(store) == contents_of_unbroken([plan], tmp_path / "other")


def test_divergence_is_recorded_and_not_repeated(tmp_path: Path) -> None:
    base = compose_config([*SMALL, "algorithm=fedavg", "dp=none", "algorithm.local_lr=1e9", "rounds=40"])
    store = RunStore(tmp_path)
    outcome = execute([make_plan(base)], store)[0]
    assert outcome.status == "diverged"
    assert "not finite after round" in (outcome.reason or "")
    again = execute([make_plan(base)], store)[0]
    assert again.cached
    assert again.status == "diverged"


def test_memory_budget_cuts_batches_and_changes_no_number(tmp_path: Path) -> None:
    plans = grid()
    tight = [make_plan(with_values(compose_config([*SMALL, "dp=ldp"]), {"seed": s, "launcher.memory": "50kB"})) for s in range(5)]
    assert len(batches(tight)) > 1
    roomy = [make_plan(with_values(compose_config([*SMALL, "dp=ldp"]), {"seed": s})) for s in range(5)]
    assert len(batches(roomy)) == 1
    assert sorted(plan.id for batch in batches(plans) for plan in batch) == sorted(plan.id for plan in plans)
    cut = RunStore(tmp_path / "cut")
    execute(tight, cut)
    assert contents(cut) == contents_of_unbroken(roomy, tmp_path / "whole")


def test_a_run_takes_what_its_model_says(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = make_plan(compose_config(SMALL))
    values = execute_module.COPIES * 8 * 60 * 6  # float64 [M, d]
    assert execute_module.bytes_per_run(plan) == values
    model = plan.model.target
    monkeypatch.setattr(model, "dtype", torch.float32)
    monkeypatch.setattr(model, "workspace", classmethod(lambda cls, settings, info, clients: 1000 * clients))
    assert execute_module.bytes_per_run(plan) == values // 2 + 60_000


def test_a_budget_is_shared_by_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    given = make_plan(compose_config([*SMALL, "launcher.memory=4GiB"]))
    assert [execute_module.memory_budget(given, workers) for workers in (1, 4)] == [4 * 2**30, 2**30]
    free = make_plan(compose_config(SMALL))
    monkeypatch.setattr(os, "sysconf", {"SC_AVPHYS_PAGES": 1000, "SC_PAGE_SIZE": 4096}.__getitem__)
    assert [execute_module.memory_budget(free, workers) for workers in (1, 4)] == [500 * 4096, 125 * 4096]


@pytest.mark.parametrize("text", ["4 apples", "-3", "0", "GiB", "true", "4GiB5", "[1]"])
def test_a_wrong_amount_of_memory_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^launcher\.memory=.*; write bytes, or a text such as 4GiB or 500MB$"):
        make_plan(compose_config([*SMALL, f"launcher.memory={text}"]))


@pytest.mark.parametrize(
    ("text", "wanted"), [("1024", 1024), ("1.5 KiB", 1536), ("500MB", 5 * 10**8), ("2gib", 2**31), ("7B", 7), ("null", None)]
)
def test_amounts_of_memory(text: str, wanted: int | None) -> None:
    plan = make_plan(compose_config([*SMALL, f"launcher.memory={text}"]))
    assert plan.launcher.memory == wanted
    assert plan.id == make_plan(compose_config(SMALL)).id


def test_a_run_in_other_hands_is_named(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    store.prepare()
    plan = grid()[0]
    with store.lock(plan.id), pytest.raises(StoreError, match="another process"):
        execute([plan], store)


def test_interrupt_saves_and_the_next_start_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = make_plan(compose_config([*SMALL, "runtime.checkpoint_every=1000.0"]))
    original = FedAvg.round
    store = RunStore(tmp_path)

    from dpfl_cli.algorithms.fedexp import FedExp

    original = FedExp.round

    def interrupted(self: Any, state: Any, objective: Any, mechanism: Any, streams: Any, rounds: Any) -> Any:
        if int(rounds[0]) == 7:
            os.kill(os.getpid(), signal.SIGINT)
        return original(self, state, objective, mechanism, streams, rounds)

    monkeypatch.setattr(FedExp, "round", interrupted)
    with pytest.raises(KeyboardInterrupt):
        execute([plan], store)
    monkeypatch.undo()
    assert store.find(plan.id) is None
    assert store.checkpoint_file(plan.id).is_file()
    execute([plan], store)
    assert contents(store) == contents_of_unbroken([plan], tmp_path / "other")


def _run_and_die(folder: Path, plans: list[Plan], die_at_call: int | None) -> None:
    """In a child process: executes the grid; kills itself (SIGKILL) at the n-th file operation of the store."""
    calls = 0

    def deadly(function: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == die_at_call:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*args, **kwargs)

        return wrapper

    if die_at_call is not None:
        store_module._write = deadly(store_module._write)
        store_module._sync = deadly(store_module._sync)
        Path.rename = deadly(Path.rename)  # type: ignore[method-assign]
        Path.replace = deadly(Path.replace)  # type: ignore[method-assign]
        store_module.shutil.rmtree = deadly(store_module.shutil.rmtree)
    execute(plans, RunStore(folder))


@pytest.mark.parametrize("seed", [1, 2])
def test_kill_9_at_random_instants_changes_no_number(tmp_path: Path, seed: int) -> None:
    """Twenty kills in all: ten of each grid, half inside the store's file operations, half at any instant."""
    plans = grid()
    expected = contents_of_unbroken(plans, tmp_path / "unbroken")
    context = multiprocessing.get_context("fork")
    dice = random.Random(seed)
    killed = passes = 0
    while killed < 10:
        folder = tmp_path / f"broken{passes}"
        passes += 1
        for attempt in range(40):  # until ten kills struck, or this pass is whole and the next one begins
            inside = dice.randint(1, 60) if attempt % 2 else None
            child = context.Process(target=_run_and_die, args=(folder, plans, inside))
            child.start()
            if inside is None:
                time.sleep(dice.uniform(0.01, 0.15))
                child.kill()
            child.join()
            for record in RunStore(folder).all():
                record.check()  # whatever is published is whole
                assert record.status == "done"
            if len(RunStore(folder).all()) == len(plans):
                break
            killed += child.exitcode == -signal.SIGKILL
            if killed >= 10:
                break
        finished = {record.id: record.folder.stat().st_mtime_ns for record in RunStore(folder).all()}
        execute(plans, RunStore(folder))
        store = RunStore(folder)
        assert contents(store) == expected
        assert {run_id: store.folder(run_id).stat().st_mtime_ns for run_id in finished} == finished  # none was done twice
        assert not [path for path in store.partial.iterdir() if path.is_dir()]
