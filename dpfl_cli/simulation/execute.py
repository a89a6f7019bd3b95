"""Executing plans: skip what is finished, resume what was interrupted, batch what shares shapes, publish what ends."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch

from dpfl_cli.config.errors import StoreError
from dpfl_cli.simulation.engine import Batch, Member, batch_key, run_members
from dpfl_cli.simulation.memory import reset_peak
from dpfl_cli.simulation.plan import Plan
from dpfl_cli.simulation.progress import Progress
from dpfl_cli.simulation.results import failure_reason, run_files
from dpfl_cli.simulation.store import RunRecord, RunStore

MOST_RUNS = 256  # in a batch: each holds a lock, which is an open file
LARGEST_BATCH = 2 << 30  # bytes: larger batches gain nothing on a CPU and fall out of its caches
COPIES = 8  # arrays of the size of all clients' parameters that a round may hold at once
COVARIANCES = 4  # the same of clients' covariances, where a method releases them


@dataclass(frozen=True)
class Outcome:
    """What became of one plan.

    Attributes:
      status: done, diverged or failed, as in result.json.
      cached: it was finished before.
    """

    plan: Plan
    status: Literal["done", "diverged", "failed"]
    record: RunRecord
    reason: str | None = None
    cached: bool = False


def execute(
    plans: Sequence[Plan],
    store: RunStore,
    progress: Progress | None = None,
    force: bool = False,
    stop: Callable[[], bool] | None = None,
) -> list[Outcome]:
    """Brings every plan to an end; one outcome per plan, in order. Plans with one id are run once.

    A run that fails or diverges is recorded with its reason and does not stop the others.

    Args:
      stop: asked after every round; True stops after a checkpoint. None: Ctrl-C does.

    Raises:
      StoreError: the store cannot be written, or another process is computing one of the runs.
      KeyboardInterrupt: after a checkpoint of the runs in flight.
    """
    store.prepare()
    keep_freed_memory()
    progress = progress or Progress("runs", 0, quiet=True)
    outcomes, waiting = settled([_forced(plan) for plan in plans] if force else plans, store, progress)
    prepare_data(waiting, progress)
    busy: list[str] = []
    with deferred_interrupt(progress) if stop is None else contextlib.nullcontext(stop) as stopping:
        for batch in batches(waiting):
            with contextlib.ExitStack() as locks:
                held = [plan for plan in batch if locks.enter_context(store.lock(plan.id))]
                busy += [plan.id for plan in batch if plan not in held]
                for plan in held:
                    store.recover(plan.id)
                # another process may have finished one while this one waited for its turn
                late = {plan.id: _finished(plan, store) for plan in held if not plan.runtime.force}
                outcomes |= {run_id: outcome for run_id, outcome in late.items() if outcome is not None}
                fresh = [plan for plan in held if plan.id not in outcomes]
                if fresh:
                    for outcome in _run_batch(fresh, store, progress, stopping):
                        outcomes[outcome.plan.id] = outcome
    if busy:
        raise StoreError(f"{', '.join(busy)}: another process is computing this; wait for it and start again, or stop it")
    return [outcomes[plan.id] for plan in plans]


def execute_alone(plans: Sequence[Plan], store: RunStore, progress: Progress) -> list[Outcome]:
    """As `execute`, for their times: finished ones too are run again, one after another, each the only run of its batch.

    Two rounds of each are done beforehand and thrown away, so that compiling and filling caches is in nobody's time, and the
    floating-point operations of torch's products and convolutions are counted in them; the peak of memory begins anew after them.
    """
    store.prepare()
    outcomes = []
    for plan in plans:
        with store.lock(plan.id) as held:
            if held:
                store.begin_forced(plan.id)  # from its beginning: what a checkpoint holds may have been computed in company
        counted = plan
        with contextlib.suppress(Exception):  # what is wrong is recorded when the run itself is made
            counted = replace(plan, flops_per_round=_flops_per_round(plan))
        reset_peak()
        outcomes += execute([counted], store, progress, force=True)
    return outcomes


def _flops_per_round(plan: Plan) -> float:
    """Operations of a run's first two rounds (or one) over their number, without compiled kernels and elementwise functions."""
    from torch.utils.flop_counter import FlopCounterMode

    rounds = min(plan.rounds, 2)
    batch = Batch([Member(replace(plan, rounds=rounds))])
    with FlopCounterMode(display=False) as counter:
        for _ in range(rounds):
            batch.step()
    return counter.get_total_flops() / rounds


def settled(plans: Sequence[Plan], store: RunStore, progress: Progress) -> tuple[dict[str, Outcome], list[Plan]]:
    """(the outcomes of what the store holds finished, by id; the plans that are to be run, each id once)."""
    outcomes: dict[str, Outcome] = {}
    waiting: dict[str, Plan] = {}
    for plan in plans:
        found = None if plan.runtime.force else _finished(plan, store)
        if found is not None:
            outcomes[plan.id] = found
            progress.advance(plan.rounds)
        else:
            waiting.setdefault(plan.id, plan)
    return outcomes, list(waiting.values())


def prepare_data(plans: Sequence[Plan], progress: Progress) -> None:
    """Lets the data sets of the plans compute what takes long and is kept (features of images), each once, where it is seen."""
    distinct = {(plan.dataset.name, plan.dataset.settings.model_dump_json()): plan.dataset for plan in plans}
    for part in distinct.values():
        prepare = getattr(part.target, "prepare", None)
        if prepare is not None:
            prepare(part.settings, progress)


def _finished(plan: Plan, store: RunStore) -> Outcome | None:
    """The outcome of a run that is in the store as done or diverged; failed ones are tried again."""
    record = store.find(plan.id)
    if record is None:
        return None
    record.check()
    if record.status not in ("done", "diverged"):
        return None
    store.forget_unfinished(plan.id)  # what a kill right after publishing left behind
    status: Literal["done", "diverged"] = "done" if record.status == "done" else "diverged"
    return Outcome(plan, status, record, record.result.get("reason"), cached=True)


def _forced(plan: Plan) -> Plan:
    return replace(plan, runtime=plan.runtime.model_copy(update={"force": True}))


def keep_freed_memory() -> None:
    """Tells glibc to keep freed memory: a round takes the same large arrays again, and fresh pages cost more than arithmetic."""
    try:
        libc = ctypes.CDLL(None)
        libc.mallopt(-4, 0)  # M_MMAP_MAX: no array lives in a mapping of its own
        libc.mallopt(-1, 2**31 - 1)  # M_TRIM_THRESHOLD: the heap is not given back between rounds
    except (OSError, AttributeError):
        pass  # another C library: slower, not wrong


def groups(plans: Sequence[Plan]) -> list[list[Plan]]:
    """Plans that can share a batch, group by group, in the order in which they come."""
    found: dict[str, list[Plan]] = {}
    for plan in plans:
        found.setdefault(batch_key(plan), []).append(plan)
    return list(found.values())


def batches(plans: Sequence[Plan]) -> list[list[Plan]]:
    """The groups of the plans, each cut so that a batch stays within the memory budget."""
    cut: list[list[Plan]] = []
    for group in groups(plans):
        size = min(max(1, memory_budget(group[0]) // bytes_per_run(group[0])), MOST_RUNS)
        cut += [group[start : start + size] for start in range(0, len(group), size)]
    return cut


def memory_budget(plan: Plan, workers: int = 1) -> int:
    """Bytes that a batch may take on each of the workers that share this machine.

    A share of `launcher.memory`, or of half of what is free, up to a ceiling.
    """
    if plan.launcher.memory is not None:
        return max(plan.launcher.memory // workers, 1)
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return max(min(free // 2 // workers, LARGEST_BATCH), 1)


def bytes_per_run(plan: Plan) -> int:
    """An upper estimate of what one run of a batch holds at once: values [M, d], and what the model works in."""
    model = plan.model.target
    dtype = getattr(model, "dtype", torch.float64)  # the larger one where its settings decide
    values = COPIES * dtype.itemsize * plan.clients * max(plan.dimension, 1)
    if "covariance" in getattr(plan.algorithm.target, "needs", ()):  # clients' triangles, and the server's matrices in float64
        size = model.features_of(plan.model.settings, plan.info)
        values += COVARIANCES * dtype.itemsize * (plan.clients * size * (size + 1) // 2 + size**2)
    return int(values + model.workspace(plan.model.settings, plan.info, plan.clients))


def _run_batch(plans: list[Plan], store: RunStore, progress: Progress, stop: Callable[[], bool]) -> list[Outcome]:
    """Runs one batch; when an exception stops it, its members go on one by one, so that only the culprit fails."""
    members = [_begin(plan, store, progress) for plan in plans]
    counted = [member.round for member in members]
    outcomes: list[Outcome] = []

    def advance(active: Sequence[Member]) -> None:
        rounds = [member.round for member in members]
        progress.advance(sum(rounds) - sum(counted), _note(active))
        counted[:] = rounds

    try:
        for member in run_members(
            members,
            checkpoint=lambda member: store.write_checkpoint(member.plan.id, member.to_bytes()),
            advance=advance,
            stop=stop,
        ):
            status: Literal["done", "diverged"] = "done" if member.diverged is None else "diverged"
            record = store.publish(member.plan.id, run_files(member, status, member.diverged))
            progress.advance(member.plan.rounds - member.round)
            outcomes.append(Outcome(member.plan, status, record, member.diverged))
    except (StoreError, KeyboardInterrupt):
        raise
    except Exception as error:
        finished = {outcome.plan.id for outcome in outcomes}
        rest = [member for member in members if member.plan.id not in finished]
        for member in rest if len(plans) == 1 else []:
            outcomes.append(_failed(member, store, failure_reason(error)))
        if len(plans) > 1:
            progress.say(f"a batch of {len(rest)} runs stopped ({failure_reason(error)}); they go on one by one")
            for member in rest:
                outcomes += _run_batch([member.plan], store, progress, stop)
            return outcomes
    return outcomes


def _failed(member: Member, store: RunStore, reason: str) -> Outcome:
    """Records a failure with what the run had done. A finished result is never replaced by it, and its checkpoint stays."""
    known = store.find(member.plan.id)
    if known is not None and known.status in ("done", "diverged"):
        return Outcome(member.plan, "failed", known, f"{reason} (the finished result of before is kept)")
    record = store.publish(member.plan.id, run_files(member, "failed", reason), keep_checkpoint=True)
    return Outcome(member.plan, "failed", record, reason)


@contextlib.contextmanager
def deferred_interrupt(progress: Progress) -> Iterator[Callable[[], bool]]:
    """Yields whether Ctrl-C was pressed, so that the round in flight ends and is saved; a second one stops at once."""
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop.is_set
        return

    def handler(number: int, frame: object) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()
        progress.say("interrupted: saving a checkpoint after this round (again to stop at once)")

    before = signal.signal(signal.SIGINT, handler)
    try:
        yield stop.is_set
    finally:
        signal.signal(signal.SIGINT, before)


def _begin(plan: Plan, store: RunStore, progress: Progress) -> Member:
    """The run at its last checkpoint, or at its beginning."""
    path = store.checkpoint_file(plan.id)
    if plan.runtime.force and not store.is_forced(plan.id):
        store.begin_forced(plan.id)
        return Member(plan)
    if not path.is_file():
        return Member(plan)
    try:
        member = Member.from_bytes(plan, path.read_bytes())
    except (OSError, ValueError) as error:
        progress.say(f"{path}: {error}; the run starts from its beginning")
        return Member(plan)
    progress.say(f"{plan.id}: resumed after round {member.round} of {plan.rounds}")
    progress.advance(member.round)
    return member


def _note(active: Sequence[Member]) -> str:
    member = active[0]
    if not member.rows:
        return ""
    name, value = next((name, value) for name, value in member.rows[-1].items() if name != "round")
    return f"{name} {value:.4g}" + (f" ({len(active)} runs)" if len(active) > 1 else "")
