"""Executing: nothing is run twice, nothing is lost, one bad run does not stop the others, kill -9
changes no number.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import pytest
import torch
from members import before_rounds

from dpfl_cli.algorithms.fedavg import FedAvg
from dpfl_cli.algorithms.fedexp import FedExp
from dpfl_cli.config.compose import compose_config
from dpfl_cli.config.errors import ConfigError, StoreError
from dpfl_cli.data import files as files_module
from dpfl_cli.data.partitioners import Natural
from dpfl_cli.simulation import execute as execute_module
from dpfl_cli.simulation import grouping, run_plan
from dpfl_cli.simulation.execute import execute, execute_alone, run_members
from dpfl_cli.simulation.grouping import stacks
from dpfl_cli.simulation.member import Member
from dpfl_cli.simulation.plan import make_plan, with_values
from dpfl_cli.simulation.plugins import load_plugins
from dpfl_cli.simulation.progress import Progress
from dpfl_cli.simulation.results import run_files
from dpfl_cli.simulation.run_plan import Plan
from dpfl_cli.simulation.stack import Stack
from dpfl_cli.simulation.store import RunStore

SMALL = ["dataset.clients=60", "dataset.dimension=6", "rounds=12", "runtime.checkpoint_every=1e-9"]


@pytest.mark.usefixtures("own_components")
@pytest.mark.parametrize("count", [1, 5, 6, 7, 60])
def test_runs_of_a_plugin_are_never_as_many_as_its_clients_or_coordinates(count: int) -> None:
    """An option [R] that its author forgot to shape would be taken for one of each of those."""
    load_plugins([str(Path(__file__).parents[1] / "cli" / "my_method.py")])
    base = compose_config([*SMALL, "algorithm=fedmomentum", "dp=cdp"])
    plans = [make_plan(with_values(base, {"seed": seed})) for seed in range(count)]
    assert (plans[0].rows, plans[0].dimension) == (60, 6)
    found = stacks(plans)
    assert sorted(plan.id for stack in found for plan in stack) == sorted(plan.id for plan in plans)
    assert not {6, 60} & {len(stack) for stack in found}
    if count in (5, 7):
        assert len(found) == 1


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
        plans += [
            make_plan(with_values(base, {"seed": seed, "rounds": rounds}))
            for seed in (0, 1)
            for rounds in (5, 12)
        ]
    return plans


def contents(store: RunStore) -> dict[str, dict[str, Any]]:
    """What must not depend on interruptions: everything but times."""
    result = {}
    for record in store.all():
        record.check()
        stable = {
            key: value for key, value in record.result.items() if key not in ("timing", "origin")
        }
        result[record.id] = {
            "rows": record.rows,
            "ledger": record.ledger,
            "config": record.config,
            "result": stable,
        }
    return result


def contents_of_unbroken(plans: list[Plan], folder: Path) -> dict[str, dict[str, Any]]:
    store = RunStore(folder)
    execute(plans, store)
    return contents(store)


def one_fedavg() -> Plan:
    return make_plan(compose_config([*SMALL, "algorithm=fedavg", "dp=ldp"]))


def breaks_in_round(number: int, seed: int | None = None) -> Callable[[Any, Any], None]:
    """An act for `before_rounds`."""

    def act(state: Any, at: Any) -> None:
        seeds = at.streams._MethodStreams__streams.seeds  # which a method is not shown
        if int(at.number.max()) == number and seed in (None, *seeds):
            raise RuntimeError("out of\nluck")

    return act


def test_a_finished_run_is_not_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Be it done or diverged, unless it is forced."""
    store = RunStore(tmp_path)
    words = [*SMALL, "algorithm=fedavg", "dp=none", "algorithm.local_lr=1e9", "rounds=40"]
    plans = [*grid()[:3], make_plan(compose_config(words))]
    first = execute([*plans, plans[0]], store)
    assert [(one.cached, one.status) for one in first] == [
        *[(False, "done")] * 3,
        (False, "diverged"),
        (False, "done"),
    ]
    assert len(store.all()) == 4
    assert "not finite after round" in (first[3].reason or "")

    def never(*args: object, **kwargs: object) -> None:
        raise AssertionError("ran again")

    with monkeypatch.context() as patch:
        patch.setattr(execute_module, "run_members", never)
        again = execute(plans, store)
    assert [(one.cached, one.status, one.reason) for one in again] == [
        (True, one.status, one.reason) for one in first[:4]
    ]
    assert not any(outcome.cached for outcome in execute(plans, store, force=True))


def test_one_failing_run_does_not_stop_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is recorded with its reason and what it had done, and tried again the next time."""
    plans = [plan for plan in grid() if plan.algorithm.name == "fedavg"]
    store = RunStore(tmp_path)
    with monkeypatch.context() as patch:
        before_rounds(patch, FedAvg, breaks_in_round(3, seed=1))
        outcomes = execute(plans, store)
    told = {one.plan.seed: (one.status, str(one.reason).split(" (")[0]) for one in outcomes}
    assert told == {0: ("done", "None"), 1: ("failed", "RuntimeError")}  # its message may hold data
    for one in outcomes:
        if one.status == "failed":
            assert [row["round"] for row in one.record.rows] == [0, 1, 2]
            assert one.record.ledger.releases == 2
    assert {outcome.status for outcome in execute(plans, store)} == {"done"}
    assert contents(store) == contents_of_unbroken(plans, tmp_path / "other")


@pytest.mark.parametrize("error", [StoreError("no room"), RuntimeError("no thread")])
def test_an_error_of_publishing_is_known_while_others_still_run(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk ends the command soon; after any other error the runs go on one by one."""
    base = compose_config([*SMALL, "algorithm=fedavg", "runtime.checkpoint_every=1000.0"])
    plans = [make_plan(with_values(base, {"rounds": rounds})) for rounds in (5, 1000)]
    store, rounds, errors = RunStore(tmp_path), list[int](), [error]
    original = store.publish

    def publish(run_id: str, *files: Any) -> Any:
        if run_id == plans[0].id and errors:
            raise errors.pop()
        return original(run_id, *files)

    monkeypatch.setattr(store, "publish", publish)
    before_rounds(monkeypatch, FedAvg, lambda state, at: rounds.append(int(at.number.max())))
    if isinstance(error, RuntimeError):
        assert [one.status for one in execute(plans, store)] == ["done", "done"]
        return
    with pytest.raises(StoreError, match="no room"):
        execute(plans, store)
    assert max(rounds) < 1000


def test_data_that_cannot_be_built_fail_their_run_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plans = [plan for plan in grid() if plan.algorithm.name == "fedavg"]
    original = Natural.partition

    def failing(settings: Any, dataset: Any, seed: int) -> Any:
        if seed == 1:
            raise MemoryError("no room")
        return original(settings, dataset, seed)

    run_plan._kept.clear()
    run_plan._alive.clear()
    monkeypatch.setattr(Natural, "partition", staticmethod(failing))
    outcomes = execute(plans, RunStore(tmp_path))
    assert {(one.plan.seed, one.status) for one in outcomes} == {(0, "done"), (1, "failed")}
    failed = next(outcome.record for outcome in outcomes if outcome.status == "failed")
    assert failed.result["privacy"]["epsilon"] is None
    assert "no room" not in failed.result["reason"]
    assert failed.result["reason"].startswith("MemoryError (")


def test_a_forced_rerun_never_costs_the_result_it_repeats(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, store = one_fedavg(), RunStore(tmp_path)
    execute([plan], store)
    before = contents(store)
    with monkeypatch.context() as patch:
        before_rounds(patch, FedAvg, breaks_in_round(7))
        outcome = execute([plan], store, force=True)[0]
    assert outcome.status == "failed"
    assert "is kept" in (outcome.reason or "")
    assert contents(store) == before
    assert execute([plan], store)[0].cached
    # the unfinished rerun is still there, and is gone on with
    assert store.checkpoint_file(plan.id, forced=True).exists()
    started: list[int] = []
    before_rounds(monkeypatch, FedAvg, lambda state, at: started.append(int(at.number[0])))
    assert execute([plan], store, force=True)[0].status == "done"
    assert started[0] == 7
    assert contents(store) == before
    assert not store.checkpoint_file(plan.id).parent.exists()


def test_runs_alone_are_run_anew_one_by_one_and_never_cost_a_finished_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plans = [plan for plan in grid() if plan.algorithm.name == "fedavg" and plan.rounds == 12][:2]
    store, quiet = RunStore(tmp_path), Progress("", 0, quiet=True)
    execute(plans, store)
    before = contents(store)
    sizes: list[tuple[int, int]] = []
    before_rounds(
        monkeypatch,
        FedAvg,
        lambda state, at: sizes.append((len(state.server["model"]), int(at.number[0]))),
    )
    outcomes = execute_alone(plans, store, quiet)
    assert [(one.status, one.cached) for one in outcomes] == [("done", False)] * len(plans)
    one = [(1, number) for number in (1, 2, *range(1, 13))]  # two rounds to warm up, then all
    assert sizes == one * len(plans)
    assert contents(store) == before
    times = outcomes[0].record.result["timing"]["compute"]
    assert list(times) == [str(int(row["round"])) for row in outcomes[0].record.rows]
    assert sorted(times.values()) == list(times.values())
    with monkeypatch.context() as patch:
        before_rounds(patch, FedAvg, breaks_in_round(7))
        assert execute_alone(plans[:1], store, quiet)[0].status == "failed"
    assert contents(store) == before
    sizes.clear()
    assert execute_alone(plans[:1], store, quiet)[0].status == "done"
    assert sizes == one  # from the beginning, not from the checkpoint of what failed


def test_memory_budget_cuts_stacks_and_changes_no_number(tmp_path: Path) -> None:
    base = compose_config([*SMALL, "dp=ldp"])
    tight, roomy = (
        [make_plan(with_values(base, {"seed": seed, **more})) for seed in range(5)]
        for more in ({"launcher.memory": "50kB"}, {})
    )
    assert len(stacks(tight)) > 1
    assert len(stacks(roomy)) == 1
    plans = grid()
    assert sorted(plan.id for group in stacks(plans) for plan in group) == sorted(
        plan.id for plan in plans
    )
    cut = RunStore(tmp_path / "cut")
    execute(tight, cut)
    assert contents(cut) == contents_of_unbroken(roomy, tmp_path / "whole")


def test_a_run_takes_what_its_model_says(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = make_plan(compose_config(SMALL))
    values = grouping.COPIES * 8 * 60 * 6  # float64 [M, d]
    model = plan.model.target
    for dtype, share, each in ((torch.float64, 1, 0), (torch.float32, 2, 1000)):
        monkeypatch.setattr(model, "dtype_of", lambda settings, dtype=dtype: dtype)
        work = classmethod(lambda cls, settings, info, clients, each=each: each * clients)
        monkeypatch.setattr(model, "workspace", work)
        assert grouping.bytes_per_run(plan) == values // share + each * 60


def test_what_clients_keep_who_are_away_is_counted() -> None:
    words = [*SMALL, "algorithm=scaffold", "dp=cdp", "participation=poisson"]
    base = compose_config([*words, "participation.cohort=5", "accountant=rdp"])
    few, many = (
        grouping.bytes_per_run(make_plan(with_values(base, {"dataset.clients": clients})))
        for clients in (60, 6060)
    )
    assert many - few >= 2 * 8 * 6000 * 6  # the controls before and after a round


def test_what_is_no_longer_as_it_was_planned_is_refused(tmp_path: Path) -> None:
    """The id of a run has the content of the user's files."""
    own, net = tmp_path / "mine.npz", tmp_path / "net.py"
    rows = np.random.default_rng(0).normal(size=(12, 5))
    arrays = {"targets": np.arange(12) % 3, "clients": np.arange(12) % 4}
    np.savez(own, features=rows, **arrays)
    who = tmp_path / "who.npy"
    np.save(who, np.arange(12) % 4)
    net.write_text("from torch import nn\n\ndef net():\n    return nn.Linear(5, 3)\n")
    words = ["dataset=arrays", f"dataset.path={own}", "model=torch", f"model.path={net}:net"]
    words += ["partitioner=file", f"partitioner.path={who}", "algorithm=fedavg", "dp=cdp"]
    for seed, change in enumerate(
        (
            lambda: np.savez(own, features=2 * rows, **arrays),
            lambda: np.save(who, np.arange(12) % 2),
            lambda: net.write_text(net.read_text() + "# other\n"),
        )
    ):
        plan = make_plan(compose_config([*words, "rounds=1", f"seed={seed}"]))
        change()
        (outcome,) = execute([plan], RunStore(tmp_path / "store"))
        assert outcome.status == "failed"
        assert "has changed since the run was planned" in str(outcome.reason)


def test_federations_are_kept_by_what_they_take(monkeypatch: pytest.MonkeyPatch) -> None:
    base = compose_config([*SMALL, "dp=cdp"])
    plans = [make_plan(with_values(base, {"seed": seed})) for seed in range(5)]
    monkeypatch.setattr(run_plan, "_kept", [])
    monkeypatch.setattr(run_plan, "_alive", WeakValueDictionary())
    monkeypatch.setattr(run_plan, "KEPT_BYTES", 3 * 8 * plans[0].info.records * 6)
    held = [run_plan.federation_of(plan) for plan in plans]
    assert run_plan._kept == held[2:]
    assert run_plan.federation_of(plans[0]) is held[0]  # which a run holds


@pytest.mark.parametrize(("given", "bytes_"), [("4GiB", 4 * 2**30), ("null", 500 * 4096)])
def test_a_budget_is_shared_by_workers(
    given: str, bytes_: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is given, or half of what is free."""
    plan = make_plan(compose_config([*SMALL, f"launcher.memory={given}"]))
    assert plan.id == make_plan(compose_config(SMALL)).id
    monkeypatch.setattr(grouping, "free_memory", lambda device: 1000 * 4096)
    assert [grouping.memory_budget(plan, workers) for workers in (1, 4)] == [bytes_, bytes_ // 4]


def test_a_stack_on_a_device_may_take_half_of_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """And half of the host's, whatever a CPU's caches hold."""
    plan, free = make_plan(compose_config(SMALL)), {"meta": 1 << 40, "cpu": 1 << 42}
    monkeypatch.setattr(grouping, "free_memory", lambda device: free[str(device)])
    assert grouping.memory_budget(plan) == grouping.MOST_BYTES
    monkeypatch.setattr(grouping, "pick_device", lambda name: torch.device("meta"))
    assert grouping.memory_budget(plan) == 1 << 39
    free["cpu"] = 1 << 36
    assert grouping.memory_budget(plan, workers=2) == 1 << 34


def test_float32_is_that_in_convolutions_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    Stack([Member(make_plan(compose_config(SMALL)))])
    assert not torch.backends.cudnn.allow_tf32


@pytest.mark.parametrize("text", ["4 apples", "-3", "0", "GiB"])
def test_a_wrong_amount_of_memory_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^launcher\.memory=[^\n]*$"):
        make_plan(compose_config([*SMALL, f"launcher.memory={text}"]))


def test_processes_share_a_grid(tmp_path: Path) -> None:
    """Nothing is run twice, and each ends with all runs, though one of them is killed."""
    plans = [plan for plan in grid() if plan.rounds == 12]
    context = multiprocessing.get_context("fork")
    children = [
        context.Process(target=_run_and_die, args=(tmp_path, plans, die)) for die in (None, 9, None)
    ]
    for child in children:
        child.start()
    outcomes = execute(plans, RunStore(tmp_path))
    for child in children:
        child.join()
    assert [child.exitcode for child in children][::2] == [0, 0]
    assert [outcome.plan.id for outcome in outcomes] == [plan.id for plan in plans]
    assert contents(RunStore(tmp_path)) == contents_of_unbroken(plans, tmp_path / "other")


@pytest.mark.parametrize("force", [False, True])
def test_a_run_in_other_hands_is_waited_for(
    force: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And counts as it ends there, even failed: not every process has to fail once more."""
    plan, store = one_fedavg(), RunStore(tmp_path)
    other = execute([plan], RunStore(tmp_path / "other"))[0].record
    store.prepare()
    lock = store.lock(plan.id)
    assert lock.__enter__()
    ended: list[str] = []

    def ends(seconds: float) -> None:
        files = {path.name: path.read_bytes() for path in other.folder.iterdir()}
        os.utime(store.publish(plan.id, files).folder, (time.time() + 1,) * 2)
        lock.__exit__(None, None, None)
        ended.append(plan.id)

    monkeypatch.setattr(execute_module.time, "sleep", ends)
    (outcome,) = execute([plan], store, force=force)
    assert (outcome.cached, outcome.status, ended) == (True, "done", [plan.id])
    monkeypatch.setattr(execute_module.time, "sleep", lambda seconds: None)
    with store.lock(plan.id), pytest.raises(KeyboardInterrupt):
        execute([plan], store, force=True, stop=lambda: True)


def test_few_open_files_make_small_stacks(monkeypatch: pytest.MonkeyPatch) -> None:
    base = compose_config(SMALL)
    plans = [make_plan(with_values(base, {"seed": seed})) for seed in range(40)]
    monkeypatch.setattr(grouping.resource, "getrlimit", lambda kind: (64, 64))
    assert [len(stack) for stack in stacks(plans)] == [16, 16, 8]


def test_a_run_that_no_memory_holds_is_refused_before_others_start(tmp_path: Path) -> None:
    sizes = ({}, {"dataset.clients": 10**6, "dataset.dimension": 10**6})
    plans = [make_plan(with_values(compose_config(SMALL), size)) for size in sizes]
    with pytest.raises(
        ConfigError, match=r"1000000 clients, 1000000 parameters .* take at least 8.38e\+03 GiB"
    ):
        execute(plans, RunStore(tmp_path))
    assert RunStore(tmp_path).all() == []


def test_results_and_checkpoints_grow_with_evaluated_rounds_only() -> None:
    sizes = []
    for rounds in (20, 2000):
        words = ["dataset.clients=5", f"rounds={rounds}", f"evaluation.every={rounds}", "dp=cdp"]
        member = Member(make_plan(compose_config([*SMALL, *words])))
        list(run_members([member]))
        files = run_files(member, "done")
        sizes.append(sum(map(len, files.values())) + len(member.to_bytes()))
    assert abs(sizes[1] - sizes[0]) < 100  # some digits


def test_interrupt_saves_and_the_next_start_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = make_plan(compose_config([*SMALL, "runtime.checkpoint_every=1000.0"]))
    store = RunStore(tmp_path)

    def press(state: Any, at: Any) -> None:
        if int(at.number[0]) == 7:
            os.kill(os.getpid(), signal.SIGINT)

    with monkeypatch.context() as patch:
        before_rounds(patch, FedExp, press)
        with pytest.raises(KeyboardInterrupt):
            execute([plan], store)
    assert store.find(plan.id) is None
    assert store.checkpoint_file(plan.id).is_file()
    execute([plan], store)
    assert contents(store) == contents_of_unbroken([plan], tmp_path / "other")


def _run_and_die(folder: Path, plans: list[Plan], die_at_call: int | None) -> None:
    """In a child process: executes the grid; kills itself (SIGKILL) at the n-th file operation of
    the store.
    """
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
        files_module._write = deadly(files_module._write)
        files_module._sync = deadly(files_module._sync)
        Path.rename = deadly(Path.rename)  # type: ignore[method-assign]
        Path.replace = deadly(Path.replace)  # type: ignore[method-assign]
        files_module.shutil.rmtree = deadly(files_module.shutil.rmtree)
    execute(plans, RunStore(folder))


@pytest.mark.parametrize("seed", [1, 2])
def test_kill_9_at_random_instants_changes_no_number(tmp_path: Path, seed: int) -> None:
    """Twenty kills in all: ten of each grid, half inside the store's file operations, half at any
    instant.
    """
    plans = grid()
    expected = contents_of_unbroken(plans, tmp_path / "unbroken")
    context = multiprocessing.get_context("fork")
    dice = random.Random(seed)
    killed = passes = 0
    while killed < 10:
        folder = tmp_path / f"broken{passes}"
        passes += 1
        for attempt in range(
            40
        ):  # until ten kills struck, or this pass is whole and the next one begins
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
        finished = {
            record.id: record.folder.stat().st_mtime_ns for record in RunStore(folder).all()
        }
        execute(plans, RunStore(folder))
        store = RunStore(folder)
        assert contents(store) == expected
        assert {
            run_id: (store.runs / run_id).stat().st_mtime_ns for run_id in finished
        } == finished  # none was done twice
        assert not [path for path in store.partial.iterdir() if path.is_dir()]
