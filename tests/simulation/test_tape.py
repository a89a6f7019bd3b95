"""Tape: leaps of several rounds give the same bits as rounds one by one, charge the same, and know what they do not know."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dpfl_cli.config.compose import compose_config
from dpfl_cli.config.errors import PrivacyError
from dpfl_cli.data import streams as streams_module
from dpfl_cli.data.streams import Streams, client_tiles
from dpfl_cli.models.single_output import SingleOutput
from dpfl_cli.simulation import replay, tape
from dpfl_cli.simulation import store as store_module
from dpfl_cli.simulation.engine import Batch, Member, run_members
from dpfl_cli.simulation.execute import execute
from dpfl_cli.simulation.plan import Plan, make_plan, with_values
from dpfl_cli.simulation.replay import Replay
from dpfl_cli.simulation.store import RunStore
from tests.simulation.conftest import finish

METHODS = {
    "primal_dual": ["algorithm=primal_dual", "algorithm.strong_convexity=0.1", "dp=record"],
    "primal_dual static": ["algorithm=primal_dual", "algorithm.schedule=static", "algorithm.report=messages", "dp=record"],
    "isrl_dp": ["algorithm=isrl_dp", "dp=record"],
    "isrl_dp uniform": ["algorithm=isrl_dp", "algorithm.average=uniform", "dp=record"],
    "isrl_dp linear": ["algorithm=isrl_dp", "algorithm.average=linear", "dp=record"],
    "isrl_dp central": ["algorithm=isrl_dp", "dp=record", "dp.trust=central", "mechanism=central_gaussian"],
    "isrl_dp sums": ["algorithm=isrl_dp", "dp=record", "dp.trust=secure_aggregation", "mechanism=shared_gaussian"],
    "isrl_dp none": ["algorithm=isrl_dp", "dp=none", "dp.unit=record"],
    "fedavg_record": ["algorithm=fedavg_record", "dp=record"],
    "fedavg_record one step": ["algorithm=fedavg_record", "algorithm.local_steps=1", "dp=record"],
    "scaffold_record": ["algorithm=scaffold_record", "dp=record"],
}


@pytest.fixture(autouse=True)
def worthwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay, "WORTHWHILE", 4)


@pytest.fixture
def problem(tmp_path: Path) -> Callable[..., list[Plan]]:
    """problem(method, overrides, seeds, **values): plans of a small logistic problem, clients of unequal size."""

    def plans(method: str, *overrides: str, seeds: int = 1, **changes: list[Any]) -> list[Plan]:
        rows = np.random.default_rng(0).standard_normal((31, 11))
        lines = (f"{1 if row[0] > 0 else -1} " + " ".join(f"{k}:{x:.4f}" for k, x in enumerate(row, start=1)) for row in rows)
        (tmp_path / "data").write_text("\n".join(lines) + "\n")
        data = ["dataset=libsvm", f"dataset.path={tmp_path}/data", "model=logistic", "model.l2=0.1", "partitioner=contiguous"]
        noise = [] if "dp=none" in METHODS[method] else ["mechanism.noise_multiplier=1.0"]
        words = [*data, "partitioner.clients=5", *METHODS[method], *noise, "rounds=90", "evaluation.every=40", *overrides]
        base = compose_config(words)
        variants: list[dict[str, Any]] = [{"seed": seed} for seed in range(seeds)]
        for key, values in changes.items():
            variants = [{**variant, key.replace("__", "."): value} for variant in variants for value in values]
        return [make_plan(with_values(base, variant)) for variant in variants]

    return plans


@pytest.fixture
def leaps(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The lengths of all leaps of this test."""
    lengths: list[int] = []
    leap = Replay.leap

    def noted(self: Replay, *args: Any) -> Any:
        models = leap(self, *args)
        lengths.extend([] if models is None else [len(models)])
        return models

    monkeypatch.setattr(Replay, "leap", noted)
    return lengths


def begun(plan: Plan, rounds: int = 3) -> Batch:
    """A batch that leaps, from these rounds on."""
    batch = Batch([Member(plan)])
    for _ in range(rounds):
        batch.step()
    assert batch.replay.replaying, batch.replay.refused
    return batch


def bits(value: Any) -> bytes:
    return np.ascontiguousarray(torch.as_tensor(value).detach().as_subclass(torch.Tensor).numpy()).tobytes()


def same(one: Member, other: Member) -> None:
    assert repr(one.rows) == repr(other.rows)  # NaN is like itself
    assert one.ledger == other.ledger
    assert one.unreleased == other.unreleased
    assert one.diverged == other.diverged
    for mine, theirs in ((one.server, other.server), (one.clients, other.clients)):
        assert {name: bits(value) for name, value in (mine or {}).items()} == {
            name: bits(value) for name, value in (theirs or {}).items()
        }
    assert list(map(bits, one.recent)) == list(map(bits, other.recent))


@pytest.mark.parametrize("method", list(METHODS))
def test_leaps_have_the_same_bits(method: str, problem: Any, as_it_is: Any, leaps: list[int]) -> None:
    plan = problem(method)[0]
    assert begun(plan).replay.untaped is None
    member = finish([plan])[plan.id]
    assert sum(leaps) == 90 - 3 - 3  # all but those before the tape, and those with diagnostics that are looked at
    same(member, as_it_is([plan])[plan.id])


@pytest.mark.parametrize("clients", [1, 2, 256])
@pytest.mark.parametrize("values", [1, 70, 1 << 15])
@pytest.mark.parametrize("method", ["primal_dual", "fedavg_record", "isrl_dp central"])
def test_leaps_read_noise_in_tiles_of_any_size(
    method: str, values: int, clients: int, problem: Any, as_it_is: Any, leaps: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tiles of one round, of a few, which end in the middle of a leap, and of many; all clients in one, or five in several."""
    monkeypatch.setattr(streams_module, "TILE_VALUES", values)
    monkeypatch.setattr(streams_module, "CLIENT_TILE", clients)
    plans = problem(method, seeds=2, algorithm__clip_norm=[0.1, 1.0])
    together = finish(plans)
    assert max(leaps) > 30
    alone = as_it_is(plans)
    for plan in plans:
        same(together[plan.id], alone[plan.id])


@pytest.mark.parametrize("method", ["primal_dual", "fedavg_record", "isrl_dp central"])
@pytest.mark.parametrize("runs", [2, 7])
@pytest.mark.parametrize("size", [1, 3, 8])
def test_runs_of_a_batch_leap_as_they_do_alone(
    method: str, runs: int, size: int, problem: Any, as_it_is: Any, leaps: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    values = {"mechanism__noise_multiplier": [0.5, 2.0], "rounds": [40, 53]}
    plans = problem(method, "evaluation.average_last=3", seeds=2, **values)[:runs]
    with monkeypatch.context() as patch:
        patch.setattr(tape, "RUNS", size)
        patch.setattr(tape, "SHARED_WORK", 1)
        patch.setattr(tape, "usable_threads", lambda: 2)
        together = finish(plans)
    assert leaps
    for plan in plans:
        same(together[plan.id], as_it_is([plan])[plan.id])


def test_one_client_and_averages_of_more_models_than_a_leap_has(problem: Any, as_it_is: Any, leaps: list[int]) -> None:
    overrides = ["partitioner.clients=1", "evaluation.average_last=70", "rounds=150", "evaluation.every=75"]
    plan = problem("primal_dual", *overrides)[0]
    member = finish([plan])[plan.id]
    assert max(leaps) == tape.LONGEST
    same(member, as_it_is([plan])[plan.id])


@pytest.mark.parametrize("average", [1, 4])
@pytest.mark.parametrize("stop", [1, 3, 5])
def test_a_run_goes_on_from_a_checkpoint_between_leaps(
    average: int, stop: int, problem: Any, as_it_is: Any, leaps: list[int]
) -> None:
    plan = problem("primal_dual", f"evaluation.average_last={average}")[0]
    looks: list[int] = []
    saved: list[bytes] = []

    def stopping() -> bool:
        looks.append(1)
        return len(looks) > stop

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dpfl_cli.simulation.engine.LOOK_EVERY", 0.0)
        patch.setattr(tape, "LONGEST", 7)
        with pytest.raises(KeyboardInterrupt):
            list(run_members([Member(plan)], lambda member: saved.append(member.to_bytes()), lambda m: None, stopping))
    member = Member.from_bytes(plan, saved[-1])
    assert 0 < member.round < 40
    resumed = next(iter(run_members([member], lambda m: None, lambda m: None)))
    assert leaps
    same(resumed, as_it_is([plan])[plan.id])


def test_a_diverging_run_leaves_and_the_others_go_on(problem: Any, as_it_is: Any, leaps: list[int]) -> None:
    plans = problem("isrl_dp", algorithm__step=[0.1, 1e200])
    together = finish(plans)
    assert leaps
    assert together[plans[1].id].diverged is not None
    for plan in plans:
        alone = as_it_is([plan])[plan.id]
        assert together[plan.id].diverged == alone.diverged
        assert repr(together[plan.id].rows) == repr(alone.rows)


def test_records_and_members_of_several_rounds(problem: Any, as_it_is: Any) -> None:
    """Members that are at different rounds draw from different tiles."""
    plans = problem("primal_dual", seeds=2)
    ahead = begun(plans[1], 30)
    ahead.collect()
    late = Member.from_bytes(plans[1], ahead.members[0].to_bytes())
    late.rows = [{"round": 0}]
    both = {m.plan.id: m for m in run_members([Member(plans[0]), late], lambda m: None, lambda m: None)}
    alone = as_it_is(plans)
    same(both[plans[0].id], alone[plans[0].id])
    assert both[plans[1].id].rows[1:] == alone[plans[1].id].rows[1:]
    assert both[plans[1].id].ledger == alone[plans[1].id].ledger


def test_a_leap_beyond_the_end_is_refused_and_changes_nothing(problem: Any) -> None:
    batch = begun(problem("primal_dual")[0])
    batch.leap(60)
    model, ledger = batch.state.server["model"].clone(), batch.ledger.of_run(0)
    rounds = batch.rounds.copy()
    with pytest.raises(PrivacyError, match="after the last one"):
        batch.leap(60)
    assert torch.equal(batch.state.server["model"], model)
    assert batch.ledger.of_run(0) == ledger
    assert batch.rounds.tolist() == rounds.tolist()
    assert batch.leap(int(90 - rounds[0])) == 90 - rounds[0]


def test_a_release_too_many_is_refused_in_a_leap(problem: Any) -> None:
    batch = begun(problem("fedavg_record")[0])
    batch.rounds -= 1  # the round that was just done, once more
    with pytest.raises(PrivacyError, match="more than 5 times in a round"):
        batch.leap(9)
    assert batch.rounds.tolist() == [2]


def test_what_the_tape_does_not_know_is_replayed(problem: Any, monkeypatch: pytest.MonkeyPatch, leaps: list[int]) -> None:
    assert "takes" in (begun(problem("isrl_dp", "algorithm.radius=0.5")[0]).replay.untaped or "")
    with monkeypatch.context() as patch:
        patch.setattr(tape, "MOST_WORK", 1000)
        assert "more work" in (begun(problem("primal_dual")[0]).replay.untaped or "")
    with monkeypatch.context() as patch:
        patch.setattr(tape, "VECTORS", (1000,))
        tape.torch_order.cache_clear()
        assert "order" in (begun(problem("primal_dual")[0]).replay.untaped or "")
    monkeypatch.setattr("dpfl_cli.models.single_output.compiled_kernel", lambda: None)
    assert "kernel" in (begun(problem("isrl_dp none")[0]).replay.untaped or "")
    assert not leaps


@pytest.mark.parametrize("wrong", ["sub", "kernel", "noise"])
def test_a_tape_that_gives_other_bits_is_not_used(wrong: str, problem: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = problem("primal_dual")[0]
    if wrong == "sub":
        monkeypatch.setitem(tape.ARITHMETIC, "sub", tape.ADD)
    elif wrong == "kernel":
        arguments = SingleOutput.kernel_arguments
        altered = lambda *args: [(0, 1.0, 0.0, 0, *call[4:]) for call in arguments(*args)]  # noqa: E731 (not clipped)
        monkeypatch.setattr(SingleOutput, "kernel_arguments", altered)
        plan = problem("primal_dual", "algorithm.clip_norm=0.001")[0]
    else:
        places = Streams.places
        wrong_rounds = lambda self, law, name, rounds, *shape: places(self, law, name, rounds + 1, *shape)  # noqa: E731
        monkeypatch.setattr(Streams, "places", wrong_rounds)
    assert "gives another" in (begun(plan).replay.untaped or "")


@pytest.mark.parametrize("name", ["ADD", "SUBTRACT", "MULTIPLY", "DIVIDE", "COPY"])
@pytest.mark.parametrize("n", [1, 3, 7, 8, 9, 16, 22, 65])
@pytest.mark.parametrize("in_place", [False, True])
def test_instructions_are_arithmetic(name: str, n: int, in_place: bool) -> None:
    """Of rows and of single numbers, in vectors and the rest of one, in place or not, run by run or not."""
    operation: Callable[[Any, Any], Any] = {
        "ADD": np.add, "SUBTRACT": np.subtract, "MULTIPLY": np.multiply, "DIVIDE": np.divide, "COPY": lambda a, b: a
    }[name]  # fmt: skip
    runs, rows, steps, nothing = 3, 4, 2, np.empty(0, np.int64)
    no_tables, size = np.empty((0, 0, 0), np.int64), runs * rows * n
    generator = np.random.default_rng(n)
    dense, single = (rows * n, n, 1), (0, 0, 0)
    pairs = [(dense, dense), (dense, single), (dense, (1, 0, 0)), ((rows, 1, 0), (n, 0, 1)), ((0, 1, 0), (1, 0, 0))]
    for one_strides, other_strides in pairs:
        numbers = generator.standard_normal(4 * size)
        numbers[::11], numbers[5::13], numbers[7::17] = np.nan, np.inf, -0.0
        if in_place and one_strides[2] == 0:
            continue
        out = size if in_place else 0
        for apart in (0, runs):
            memory = numbers.copy()
            operands = (out, 0, dense), (size, 0, one_strides), (2 * size, 1, other_strides)
            code = tape.instruction(getattr(tape, name), (runs, rows, n), *operands).reshape(1, -1)
            tape.program().play(memory, code, steps, no_tables, 0, nothing, nothing, apart, tape._no_kernel())
            expected = numbers.copy()
            views = [
                np.lib.stride_tricks.as_strided(expected[place:], (runs, rows, n), [8 * stride for stride in strides])
                for place, strides in [(out, dense), (size, one_strides)]
            ]
            for step in range(steps):
                other = np.lib.stride_tricks.as_strided(
                    expected[2 * size + step :], (runs, rows, n), [8 * stride for stride in other_strides]
                )
                with np.errstate(all="ignore"):
                    views[0][...] = operation(views[1], other)
            assert np.array_equal(memory, expected, equal_nan=True)
            assert np.array_equal(np.signbit(memory) & ~np.isnan(memory), np.signbit(expected) & ~np.isnan(expected))


def test_sums_are_added_up_in_the_order_of_torch() -> None:
    for runs in (1, 3):
        for rows in (1, 2, 3, 5, 15, 16, 17, 20, 31, 64, 100, 257, 1100):
            for columns in (2, 3, 4, 7, 8, 9, 15, 16, 22, 31, 33, 64, 100):
                tape.torch_order(runs, rows, columns, rows * columns, columns)  # refuses where no order gives torch's bits


@pytest.mark.parametrize("clients", [None, 1, 5, 300])
@pytest.mark.parametrize("size", [3, 40, 20000])
@pytest.mark.parametrize("law", ["normal", "uniform"])
def test_draws_of_many_rounds_lie_where_they_are_said_to(law: Any, size: int, clients: int | None) -> None:
    if size == 20000 and clients == 300:
        pytest.skip("48 MB a round, for nothing that smaller ones do not show")
    seeds = [0, 1, 1, 2]
    many, single = Streams(seeds), Streams(seeds)
    for start in (60, 61, 90, 50):  # there are tiles already, good for some of the rounds or none
        rounds = np.arange(start, start + (10 if size < 1000 else 3)).reshape(-1, 1) + np.array([0, 7, 7, 1])
        tiles = client_tiles(clients or 1)
        found = many.places(law, "noise/update", rounds, clients, size, np.dtype(np.float64))
        assert len(found) == len(tiles)
        for number, row in enumerate(rounds):
            expected = getattr(single, law)("noise/update", row, clients, size).numpy().reshape(4, -1, size)
            for rows, addresses in zip(tiles, found, strict=True):
                for run, address in enumerate(addresses[number].tolist()):
                    block = expected[run, rows]
                    there = np.ctypeslib.as_array((ctypes.c_double * block.size).from_address(address))
                    assert np.array_equal(there.reshape(block.shape), block)


def test_noise_whose_drawing_failed_is_drawn_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not taken from what was there before."""

    def fails(*args: Any) -> None:
        raise MemoryError

    streams = Streams([0, 1])
    streams.normal("noise/update", np.array([1, 1]), 2, 3)
    with monkeypatch.context() as patch:
        patch.setattr(streams_module, "in_threads", fails)
        with pytest.raises(MemoryError):
            streams.normal("noise/update", np.array([70, 1]), 2, 3)
    for rounds in ([70, 1], [1, 70]):
        expected = Streams([0, 1]).normal("noise/update", np.array(rounds), 2, 3)
        assert torch.equal(streams.normal("noise/update", np.array(rounds), 2, 3), expected)


def test_tiles_of_a_batch_are_good_for_those_that_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[tuple[Any, ...]] = []
    fill = streams_module._fill
    monkeypatch.setattr(streams_module, "_fill", lambda *args, **kwargs: (drawn.append(args[2:]), fill(*args, **kwargs)))
    before = Streams([4, 2, 4, 7])
    before.normal("noise/update", np.array([3, 9, 70, 3]), 3, 5)
    after = Streams([4, 7, 9])
    after.take_over(before)
    more = Streams([4, 7, 9, 1, 2])
    more.take_over(before)  # there is no room for as many
    for rounds in ([71, 4, 4], [72, 64, 5], [3, 5, 64]):
        already = len(drawn)
        found = after.normal("noise/update", np.array(rounds), 3, 5)
        if rounds[0] == 71:
            assert len(drawn) == already + 1  # that of seed 9
        assert torch.equal(found, Streams([4, 7, 9]).normal("noise/update", np.array(rounds), 3, 5))
        five = np.array([*rounds, 3, 9])
        assert torch.equal(more.normal("noise/update", five, 3, 5)[:3], found)


def _run_and_die(folder: Path, plans: list[Plan], die_at_call: int) -> None:
    """In a child process: executes the plans; kills itself (SIGKILL) at the n-th write of the store."""
    calls = 0
    write = store_module._write

    def deadly(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == die_at_call:
            os.kill(os.getpid(), signal.SIGKILL)
        return write(*args, **kwargs)

    store_module._write = deadly
    execute(plans, RunStore(folder))


@pytest.mark.parametrize("die_at_call", [2, 3, 5])
def test_kill_9_between_leaps_changes_no_number(
    die_at_call: int, problem: Any, as_it_is: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tape, "LONGEST", 7)
    monkeypatch.setattr("dpfl_cli.simulation.engine.LOOK_EVERY", 0.0)  # a checkpoint after every leap
    plans = problem("primal_dual", "runtime.checkpoint_every=1e-9", seeds=2)
    child = multiprocessing.get_context("fork").Process(target=_run_and_die, args=(tmp_path / "runs", plans, die_at_call))
    child.start()
    child.join()
    assert child.exitcode == -signal.SIGKILL
    execute(plans, RunStore(tmp_path / "runs"))
    for plan in plans:
        result = RunStore(tmp_path / "runs").find(plan.id)
        assert result is not None
        alone = as_it_is([plan])[plan.id]
        assert [row["round"] for row in result.rows] == [row["round"] for row in alone.rows]
        assert [row["train_loss"] for row in result.rows] == [row["train_loss"] for row in alone.rows]
        assert result.ledger == alone.ledger
