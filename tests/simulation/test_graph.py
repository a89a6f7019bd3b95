"""Graphs: rounds split into what the host does first and what a graph plays, with the bits of rounds that run as they are.

No CPU has CUDA graphs, so most tests play a stand-in's calls one by one: memory that was sent from the host by `on_device` counts
as the host's, all other as a device's, and whatever a CPU has compiled kernels for is left to torch, as on a device.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from dpfl_cli import algorithms, models, privacy
from dpfl_cli.config.compose import compose_config
from dpfl_cli.config.errors import PrivacyError
from dpfl_cli.data import streams
from dpfl_cli.models import linear, single_output, softmax
from dpfl_cli.models.softmax import SoftmaxRegression
from dpfl_cli.simulation import engine, replay
from dpfl_cli.simulation.engine import Batch, Member, run_members
from dpfl_cli.simulation.graph import CudaGraphs, Ungraphed, split
from dpfl_cli.simulation.plan import Plan, make_plan, with_values
from dpfl_cli.simulation.replay import Step, address
from tests.simulation.conftest import finish

SENT: list[Tensor] = []  # kept, so that their memory is nobody else's


class StandIn:
    """Graphs on a CPU."""

    largest = 64 << 20
    made: int  # how many graphs
    played: int  # how often
    spoiled: bool  # whether a graph gives other numbers

    def __init__(self) -> None:
        StandIn.made = StandIn.played = 0

    def on_host(self, tensor: Tensor) -> bool:
        return any(address(tensor) == address(one) for one in SENT)

    def captured(self, calls: Sequence[Callable[[], Any]]) -> Callable[[], Any]:
        for call in calls:
            call()
        StandIn.made += 1

        def play() -> None:
            StandIn.played += 1
            for call in calls[: -1 if StandIn.spoiled else None]:
                call()

        return play


def _sent(values: Any, device: Any, dtype: torch.dtype | None = None, *, always: bool = False) -> Tensor:
    """As `on_device`, to a device that is not the host."""
    tensor = torch.from_numpy(values) if isinstance(values, np.ndarray) else values
    if always or isinstance(values, np.ndarray):
        SENT.append(tensor)
        tensor = tensor.clone()
    return tensor if dtype is None else tensor.to(dtype)


@pytest.fixture(autouse=True)
def worthwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay, "WORTHWHILE", 4)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A CPU that takes itself for a device."""
    for package in (algorithms, models, privacy):
        for found in pkgutil.iter_modules(package.__path__):
            module = importlib.import_module(f"{package.__name__}.{found.name}")
            if hasattr(module, "on_device"):
                monkeypatch.setattr(module, "on_device", _sent)
    host_draws = lambda values, device: _sent(values, device, always=True)  # noqa: E731
    monkeypatch.setattr(streams, "on_device", host_draws)
    monkeypatch.setattr(engine, "graphs_of", lambda device: StandIn())
    monkeypatch.setattr(engine, "noise_device", lambda name, device: None if name == "host" else device)
    monkeypatch.setattr(linear, "linear_kernel", lambda: None)
    monkeypatch.setattr(single_output, "compiled_kernel", lambda: None)
    monkeypatch.setattr(softmax, "compiled_kernel", lambda dtype: None)
    steps_of = SoftmaxRegression._steps

    def steps(self: SoftmaxRegression, *args: Tensor) -> int | None:
        own, self.device = self.device, torch.device("meta")
        try:
            return steps_of(self, *args)
        finally:
            self.device = own

    monkeypatch.setattr(SoftmaxRegression, "_steps", steps)
    monkeypatch.setattr(StandIn, "spoiled", False, raising=False)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # a product of few pairs asks for one thread, on a CPU
    yield
    torch.set_num_threads(threads)
    SENT.clear()


ROUNDS = ["rounds=13", "evaluation.every=4"]
LINEAR = ["dataset.clients=6", "dataset.dimension=5", "dataset.records_per_client=3", *ROUNDS]
MANY = ["dataset=synthetic_alpha_beta", "dataset.clients=5", "dataset.records_per_client=12", "dataset.dimension=6", *ROUNDS]
LOGISTIC, SOFTMAX = [*MANY, "dataset.classes=2", "model=logistic"], [*MANY, "dataset.classes=3", "model=softmax"]
RECORD = ["dp=record", "dp.mode=paper", "mechanism.noise_multiplier=1.0"]
PROBLEMS: dict[str, list[str]] = {
    **{f"fedavg {dp}": [*LINEAR, "algorithm=fedavg", f"dp={dp}"] for dp in ("none", "ldp", "cdp", "secure_aggregation")},
    **{f"fedexp {dp}": [*LINEAR, "algorithm=fedexp", f"dp={dp}"] for dp in ("none", "ldp", "cdp")},
    **{f"scaffold {dp}": [*LINEAR, "algorithm=scaffold", f"dp={dp}"] for dp in ("ldp", "cdp")},
    "one record": [*LINEAR, "algorithm=fedavg", "dp=ldp", "dataset.records_per_client=1"],
    "last models": [*LINEAR, "algorithm=fedavg", "dp=ldp", "evaluation.average_last=3"],
    "noise of the host": [*LINEAR, "algorithm=fedexp", "dp=cdp", "runtime.noise=host"],
    "primal_dual": [*LOGISTIC, "algorithm=primal_dual", *RECORD],
    "fedavg_record": [*LOGISTIC, "algorithm=fedavg_record", *RECORD],
    "isrl_dp": [*LOGISTIC, "algorithm=isrl_dp", *RECORD],
    "fednew": [*SOFTMAX, "algorithm=fednew", "dp=cdp"],
    "fednew local": [*SOFTMAX, "algorithm=fednew", "dp=ldp"],
    "fedavg_record softmax": [*SOFTMAX, "algorithm=fedavg_record", *RECORD],
    "fednew cholesky": [*SOFTMAX, "algorithm=fednew", "dp=cdp", "model.solver=cholesky"],
}


def plans_of(words: list[str], runs: int = 1, **changes: list[Any]) -> list[Plan]:
    base = compose_config(words)
    several = {key.replace("__", "."): values for key, values in changes.items()}
    return [
        make_plan(with_values(base, {"seed": run // 2, **{key: values[run % len(values)] for key, values in several.items()}}))
        for run in range(runs)
    ]


def after_rounds(plan: Plan, rounds: int = 5) -> Batch:
    batch = Batch([Member(plan)])
    for _ in range(rounds):
        batch.step(shown=False)
    return batch


def same(one: Member, other: Member) -> None:
    assert one.rows == other.rows
    assert one.ledger == other.ledger
    assert one.unreleased == other.unreleased
    for side in ("server", "clients"):
        for name, value in getattr(one, side).items():
            assert torch.equal(value, getattr(other, side)[name])


@pytest.mark.parametrize("name", list(PROBLEMS))
def test_rounds_as_graphs_have_the_same_bits(name: str, device: None, as_it_is: Any) -> None:
    plan = plans_of(PROBLEMS[name])[0]
    batch = after_rounds(plan)
    assert batch.replay.replaying, batch.replay.refused
    assert batch.replay.ungraphed is None
    assert len(batch.replay._calls[False]) <= 16  # what is left beside the graph: of five releases charges, sends and draws
    assert (StandIn.made, StandIn.played) == (2, 2 + 2)  # on the second round, for both kinds; the fourth and the fifth
    played = finish([plan])[plan.id]
    assert StandIn.played == 2 + 10
    same(played, as_it_is([plan])[plan.id])


@pytest.mark.parametrize("runs", [2, 7])
@pytest.mark.parametrize("name", ["fedexp ldp", "fedavg cdp", "primal_dual", "fednew"])
def test_runs_that_leave_a_batch_and_those_that_go_on(name: str, runs: int, device: None, as_it_is: Any) -> None:
    plans = plans_of(PROBLEMS[name], runs, rounds=[9, 17, 13])
    together = finish(plans)
    assert StandIn.played > 0
    for plan in plans:
        same(together[plan.id], as_it_is([plan])[plan.id])


def test_a_diverging_run_leaves_and_the_others_go_on(device: None, as_it_is: Any) -> None:
    plans = plans_of([*LINEAR, "algorithm=fedavg", "dp=none", "rounds=60"], 2, algorithm__local_lr=[0.003, 1e6])
    together = finish(plans)
    assert together[plans[1].id].diverged == as_it_is([plans[1]])[plans[1].id].diverged is not None
    same(together[plans[0].id], as_it_is([plans[0]])[plans[0].id])


@pytest.mark.parametrize("stop", [3, 4, 7])
@pytest.mark.parametrize("name", ["scaffold ldp", "primal_dual"])
def test_a_checkpoint_goes_on(name: str, stop: int, device: None, as_it_is: Any) -> None:
    plan = plans_of([*PROBLEMS[name], "evaluation.every=1", "evaluation.average_last=2"])[0]
    batch = Batch([Member(plan)])
    batch.evaluate({})
    for _ in range(stop):
        batch.evaluate(batch.step())
    batch.collect()
    resumed = finish_member(Member.from_bytes(plan, batch.members[0].to_bytes()))
    eager = as_it_is([plan])[plan.id]
    assert resumed.rows == eager.rows
    assert resumed.ledger == eager.ledger


def finish_member(member: Member) -> Member:
    return next(iter(run_members([member], lambda m: None, lambda m: None)))


def test_a_release_too_many_is_refused_before_a_graph_is_played(device: None) -> None:
    batch = after_rounds(plans_of(PROBLEMS["fedavg ldp"])[0])
    model, played = batch.state.server["model"].clone(), StandIn.played
    assert played > 0
    batch.rounds -= 1  # the round that was just done, once more
    with pytest.raises(PrivacyError, match="more than 1 times in a round"):
        batch.step()
    assert StandIn.played == played
    assert torch.equal(batch.state.server["model"], model)


# What is no graph goes call by call.


def test_a_host_that_needs_what_the_device_computes(device: None, as_it_is: Any) -> None:
    """Noise that is added where it is drawn needs the values that it is added to."""
    plan = plans_of([*LINEAR, "algorithm=fedavg", "dp=ldp", "runtime.noise=host"])[0]
    batch = after_rounds(plan)
    assert batch.replay.replaying, batch.replay.refused
    assert batch.replay.ungraphed is not None
    assert "_draw needs the host, and what the device computes" in batch.replay.ungraphed
    assert StandIn.played == 0
    same(finish([plan])[plan.id], as_it_is([plan])[plan.id])


@pytest.mark.parametrize("when", ["at once", "half way", "one of two"])
def test_a_capture_that_fails(when: str, device: None, monkeypatch: pytest.MonkeyPatch, as_it_is: Any) -> None:
    captured = StandIn.captured

    def fails(self: StandIn, calls: Sequence[Callable[[], Any]]) -> Callable[[], Any]:
        if when == "one of two" and StandIn.made == 0:
            return captured(self, calls)
        for call in calls if when == "half way" else []:
            call()
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(StandIn, "captured", fails)
    plan = plans_of(PROBLEMS["scaffold ldp"])[0]
    batch = after_rounds(plan)
    assert batch.replay.replaying
    assert batch.replay.ungraphed == "operation not permitted when stream is capturing"
    watched = finish([plan])[plan.id]
    assert (StandIn.played > 0) is (when == "one of two")
    same(watched, as_it_is([plan])[plan.id])


def test_a_graph_that_gives_other_numbers_is_not_used(device: None, monkeypatch: pytest.MonkeyPatch, as_it_is: Any) -> None:
    monkeypatch.setattr(StandIn, "spoiled", True)
    plan = plans_of(PROBLEMS["fedexp cdp"])[0]
    batch = after_rounds(plan)
    assert batch.replay.ungraphed is not None
    assert "the replayed round has another" in batch.replay.ungraphed
    assert StandIn.played == 1  # the other one is not tried
    same(finish([plan])[plan.id], as_it_is([plan])[plan.id])


def test_rounds_that_make_more_than_a_device_should_keep(device: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StandIn, "largest", 1000)
    assert "too much" in (after_rounds(plans_of(PROBLEMS["fedavg ldp"])[0]).replay.refused or "")


def _step(reads: set[int], writes: set[int], host: bool = False) -> Step:
    return Step("named", (), {}, [], reads, writes, [] if host else None)


@pytest.mark.parametrize(("steps", "first"), [
    ([_step({1}, {2}), _step({7}, {3}, True), _step({2, 3}, {4})], [1]),
    ([_step(set(), {3}, True), _step({3}, {3}), _step({3}, {4})], [0]),  # noise, scaled in place
    ([_step({1}, {2}), _step({2}, {3}, True)], None),  # reads a result
    ([_step({9}, {3}, True), _step({1}, {2})], None),  # reads the state, of which it may keep the version
    ([_step({1}, {2}), _step(set(), {2}, True)], None),  # overwrites a result
    ([_step({3}, {2}), _step(set(), {3}, True)], None),  # overwrites what has been read, of the last round
    ([_step({2}, {3}, True), _step({1}, {2})], None),  # reads what the last round left
])  # fmt: skip
def test_what_can_come_first(steps: list[Step], first: list[int] | None) -> None:
    if first is None:
        with pytest.raises(Ungraphed, match="named needs the host"):
            split(dict(enumerate(steps)), {9}, lambda tensor: False)
    else:
        rest = [number for number in range(len(steps)) if number not in first]
        assert split(dict(enumerate(steps)), {9}, lambda tensor: False) == (first, rest)


def test_what_is_asked_of_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls are warmed up on the stream that captures them, where waits are errors, and the caller's stream waits for that."""
    log: list[str] = []
    monkeypatch.setattr(CudaGraphs, "_failed", None)

    def refuse(reason: str) -> None:
        raise RuntimeError(reason)

    @contextmanager
    def within(name: str) -> Iterator[None]:
        log.append(f"{name} begins")
        try:
            yield
        finally:
            log.append(f"{name} ends")

    def stream(name: str) -> Any:
        return SimpleNamespace(name=name, wait_stream=lambda other: log.append(f"{name} waits for {other.name}"))

    caller = stream("caller")
    fakes = {
        "Stream": lambda device: stream("side"),
        "current_stream": lambda device: caller,
        "stream": lambda one: within(one.name),
        "graph": lambda graph, stream, capture_error_mode: within(f"capture on {stream.name}"),
        "CUDAGraph": lambda: SimpleNamespace(replay=lambda: log.append("replay")),
        "get_sync_debug_mode": lambda: 1,
        "set_sync_debug_mode": lambda mode: log.append(f"mode {mode}"),
    }
    for name, fake in fakes.items():
        monkeypatch.setattr(torch.cuda, name, fake)
    monkeypatch.setattr(torch._C, "_cuda_clearCublasWorkspaces", lambda: log.append("cuBLAS has no workspaces"), raising=False)
    graphs = CudaGraphs(torch.device("cuda"))
    play = graphs.captured([lambda: log.append("call")])
    warm = ["side waits for caller", "side begins", "mode error", "call", "mode 1", "side ends", "caller waits for side"]
    none = "cuBLAS has no workspaces"
    capture = [none, "caller begins", "capture on side begins", "call", "capture on side ends", "caller ends", none]
    assert log == [*warm, *capture]
    log.clear()
    play()
    assert log == ["replay"]
    log.clear()
    with pytest.raises(ZeroDivisionError):
        graphs.captured([lambda: 1 // 0])
    assert log == [line for line in warm if line != "call"]
    log.clear()
    with pytest.raises(RuntimeError, match="captured"):  # after it, no graph is tried any more
        graphs.captured([lambda: refuse("cannot be captured") if "capture on side begins" in log else None])
    assert log[-1] == none
    log.clear()
    with pytest.raises(Ungraphed, match="earlier capture failed: cannot be captured"):
        graphs.captured([lambda: log.append("call")])
    assert not log


# On a GPU, where there is one.

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")


def on_gpu(words: list[str], runs: int = 1, **changes: list[Any]) -> list[Plan]:
    return plans_of([*words, "runtime.device=cuda"], runs, **changes)


@needs_gpu
@pytest.mark.parametrize("name", list(PROBLEMS))
def test_graphs_on_a_gpu_give_the_numbers_of_rounds_as_they_are(name: str, as_it_is: Any) -> None:
    plans = on_gpu(PROBLEMS[name], 2, rounds=[13, 17])
    batch = after_rounds(plans[0])
    assert batch.replay.replaying, batch.replay.refused
    assert batch.replay.ungraphed is None
    together = finish(plans)
    expected = as_it_is(plans)
    for plan in plans:
        same(together[plan.id], expected[plan.id])


@needs_gpu
@pytest.mark.parametrize("name", list(PROBLEMS))
def test_no_replayed_round_waits_for_a_gpu(name: str) -> None:
    batch = after_rounds(on_gpu(PROBLEMS[name])[0])
    assert batch.replay.replaying, batch.replay.refused
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(3):
            batch.step(shown=False)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@needs_gpu
def test_noise_in_flight_is_not_written_over(as_it_is: Any) -> None:
    """Host noise of more than `STAGED` bytes, for rounds that nothing waits between."""
    words = ["dataset.clients=6", "dataset.dimension=20000", "rounds=60", "evaluation.every=60", "dp=cdp", "runtime.noise=host"]
    plan = on_gpu([*words, "algorithm=fedavg"])[0]
    assert after_rounds(plan).replay.ungraphed is None
    same(finish([plan])[plan.id], as_it_is([plan])[plan.id])


@needs_gpu
def test_a_capture_that_waits_is_refused_and_harms_nothing() -> None:
    graphs, place = CudaGraphs(torch.device("cuda")), torch.zeros(3, device="cuda")
    before = torch.cuda.current_stream()
    with pytest.raises(RuntimeError, match="synchroniz"):
        graphs.captured([lambda: place.add_(1), lambda: place.sum().item()])
    assert torch.cuda.current_stream() == before
    play = graphs.captured([lambda: place.add_(1)])
    torch.cuda.synchronize()
    start = place.tolist()
    play()
    assert place.tolist() == [value + 1 for value in start]
