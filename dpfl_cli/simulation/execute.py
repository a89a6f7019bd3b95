"""Executing plans: skip what is finished, resume what was interrupted, stack what shares shapes,
publish what ends; and the engine (`run_members`), which runs members of a stack to their end, round
by round.
"""

import contextlib
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from dpfl_cli.config.errors import ConfigError, StoreError, nearest
from dpfl_cli.config.paths import is_own_process
from dpfl_cli.privacy.client_values import count_operations
from dpfl_cli.simulation.grouping import openings, stacks
from dpfl_cli.simulation.member import Member
from dpfl_cli.simulation.memory import keep_freed_memory, reset_peak
from dpfl_cli.simulation.progress import POLL, Progress
from dpfl_cli.simulation.results import failure_reason, run_files
from dpfl_cli.simulation.run_plan import Plan
from dpfl_cli.simulation.signals import handled, heard
from dpfl_cli.simulation.stack import Stack
from dpfl_cli.simulation.store import RunRecord, RunStore

EXIT_INTERRUPTED = 130
SHOW_CURSOR = "\x1b[?25h"  # which a bar of progress hides
PATIENCE = 3.0  # seconds in which a second interrupt is to have ended a run
LOOK_EVERY = 0.02  # seconds between looks at members and progress
Stop = Callable[[], bool]  # whether to stop, asked after every round


@dataclass(frozen=True)
class Outcome:
    """What became of one plan.

    Attributes:
      status: done, diverged or failed; of a forced rerun that failed, whose finished record is
        kept, too.
      cached: it was finished before.
    """

    plan: Plan
    status: str
    record: RunRecord
    reason: str | None = None
    cached: bool = False

    @property
    def value(self) -> float:
        """The last value of `launcher.metric`, of the first metric by default; NaN where the run
        was not done, or the value is not finite.

        Raises:
          ConfigError: the run has no such metric.
        """
        if self.status != "done":
            return math.nan
        last = self.record.result["metrics"]["last"]
        name = self.plan.launcher.metric or next(iter(last))
        if name not in last:
            raise ConfigError(f"launcher.metric={name}: no such metric; {nearest(name, last)}")
        return math.nan if last[name] is None else float(last[name])


def execute(
    plans: Sequence[Plan],
    store: RunStore,
    progress: Progress | None = None,
    force: bool = False,
    stop: Stop | None = None,
) -> list[Outcome]:
    """Brings every plan to an end; one outcome per plan, in order. Plans with one id are run once.

    A run that fails or diverges is recorded with its reason and does not stop the others. What
    another process is making is waited for, or gone on with where that process ends before it.

    Args:
      stop: asked after every round; True stops after a checkpoint. None: Ctrl-C does.

    Raises:
      StoreError: the store cannot be written.
      KeyboardInterrupt: after a checkpoint of the runs in flight.
    """
    store.prepare()
    keep_freed_memory()
    progress = progress or Progress("runs", 0, quiet=True)
    if force:
        plans = [
            replace(plan, runtime=plan.runtime.model_copy(update={"force": True})) for plan in plans
        ]
    began = time.time()
    outcomes, waiting = look_up(plans, store, progress)
    prepare_data(waiting, progress)
    said = False
    with deferred_interrupt(progress) if stop is None else contextlib.nullcontext(stop) as stopping:
        while waiting:
            for stack in stacks(waiting):
                with contextlib.ExitStack() as locks:
                    held = [plan for plan in stack if locks.enter_context(store.lock(plan.id))]
                    late, fresh = look_up(held, store, progress, began)
                    made = _run(fresh, store, progress, stopping)
                    outcomes |= late | {outcome.plan.id: outcome for outcome in made}
            elsewhere = [plan for plan in waiting if plan.id not in outcomes]
            if elsewhere and not said:
                progress.say(f"{len(elsewhere)} runs are made by another process: waiting for them")
                said = True
            if len(elsewhere) == len(waiting):
                if stopping():
                    raise KeyboardInterrupt
                time.sleep(POLL)
            waiting = elsewhere
    return [outcomes[plan.id] for plan in plans]


def execute_alone(plans: Sequence[Plan], store: RunStore, progress: Progress) -> list[Outcome]:
    """As `execute`, for their times: finished ones too are run again, one after another, each by
    itself.

    Two rounds of each are done beforehand and thrown away, so that compiling and filling caches is
    in nobody's time, and the floating-point operations of torch's products and convolutions are
    counted in them; the peak of memory begins anew after them.
    """
    store.prepare()
    outcomes = []
    for plan in plans:
        with store.lock(plan.id) as held:
            if held:  # from its beginning: a checkpoint may have been computed in company
                store.checkpoint_file(plan.id, forced=True).unlink(missing_ok=True)
        counted = plan
        with contextlib.suppress(Exception):  # recorded when the run itself is made
            counted = replace(plan, flops_per_round=_flops_per_round(plan))
        reset_peak()
        outcomes += execute([counted], store, progress, force=True)
    return outcomes


def _flops_per_round(plan: Plan) -> float | None:
    """Operations of a run's first two rounds (or one) over their number, without compiled kernels
    and elementwise functions; None where nothing else is.
    """
    rounds = min(plan.rounds, 2)
    stack = Stack([Member(plan)])
    with count_operations() as counter:
        for _ in range(rounds):
            stack.step()
    return counter.get_total_flops() / rounds or None


def look_up(
    plans: Sequence[Plan], store: RunStore, progress: Progress, began: float | None = None
) -> tuple[dict[str, Outcome], list[Plan]]:
    """(the outcomes of what the store holds finished, by id; the plans that are to be run, each id
    once). Damaged ones are run again, which is said.

    Args:
      began: seconds since the epoch: what another process has published since counts, even a
        failure, and even where runs are forced. None at the first look.
    """
    outcomes = {}
    missing: dict[str, Plan] = {}
    for plan in plans:
        record = store.whole(plan.id, progress.say if began is None else None)
        if record is None or not (
            (record.finished and not plan.runtime.force)
            or (began is not None and record.folder.stat().st_mtime >= began)
        ):
            missing.setdefault(plan.id, plan)
            continue
        store.forget_unfinished(plan.id)
        reason = record.result.get("reason")
        outcomes[plan.id] = Outcome(plan, record.status, record, reason, cached=True)
        progress.advance(plan.last_round)
    return outcomes, list(missing.values())


def prepare_data(plans: Sequence[Plan], progress: Progress) -> None:
    """Lets the data sets of the plans compute what takes long and is kept (features of images),
    each once, where it is seen.
    """
    # by all settings, those too that are no part of a run's identity, such as where a file is
    for part in dict.fromkeys(plan.dataset for plan in plans):
        prepare = getattr(part.target, "prepare", None)
        if prepare is not None:
            prepare(part.settings, progress.stage)


def _run(plans: Sequence[Plan], store: RunStore, progress: Progress, stop: Stop) -> list[Outcome]:
    """Runs one stack; when an exception stops it, its members go on one by one, so that only the
    culprit fails.
    """
    if not plans:
        return []
    members = [_begin(plan, store, progress) for plan in plans]
    counted = sum(member.round for member in members)
    outcomes = []

    def advance(active: Sequence[Member]) -> None:
        nonlocal counted
        rounds = sum(member.round for member in members)
        progress.advance(rounds - counted, _note(active))
        counted = rounds

    def checkpoint(member: Member) -> None:
        plan = member.plan
        store.write_checkpoint(plan.id, member.to_bytes(), plan.runtime.force)

    try:
        for member in run_members(members, checkpoint, advance, stop):
            plan, reason = member.plan, member.diverged
            status = "done" if reason is None else "diverged"
            record = store.publish(plan.id, run_files(member, status, reason))
            outcomes.append(Outcome(plan, status, record, reason))
            progress.advance(plan.last_round - member.round)
    except (StoreError, KeyboardInterrupt):
        raise
    except Exception as error:
        reason = failure_reason(error, plans[0].dp.trust != "none")
        done = {outcome.plan.id for outcome in outcomes}
        left = [member for member in members if member.plan.id not in done]
        if len(plans) == 1:
            return outcomes + [_failed(member, store, reason) for member in left]
        hint = "; is every option [R] that is a float shaped by per_run(option, values)?"
        progress.say(
            f"{len(left)} runs together stopped ({reason}); they go on one by one"
            f"{hint * plans[0].algorithm.plugin}"
        )
        for member in left:
            outcomes += _run([member.plan], store, progress, stop)
    return outcomes


def _begin(plan: Plan, store: RunStore, progress: Progress) -> Member:
    """The run at its last checkpoint, or at its beginning."""
    path = store.checkpoint_file(plan.id, plan.runtime.force)
    if not path.is_file():
        return Member(plan)
    try:
        member = Member.from_bytes(plan, path.read_bytes())
    except (OSError, ValueError) as error:
        progress.say(f"{path}: {error}; the run starts from its beginning")
        return Member(plan)
    progress.say(f"{plan.id}: resumed after round {member.round} of {plan.last_round}")
    progress.advance(member.round)
    return member


def _failed(member: Member, store: RunStore, reason: str) -> Outcome:
    """Records a failure with what the run had done. A finished result is never replaced by it, and
    its checkpoint stays.
    """
    plan = member.plan
    known = store.finished(plan.id)
    if known is not None:
        return Outcome(plan, "failed", known, f"{reason} (the finished result of before is kept)")
    record = store.publish(plan.id, run_files(member, "failed", reason), keep_checkpoint=True)
    return Outcome(plan, "failed", record, reason)


def _note(active: Sequence[Member]) -> str:
    """The newest first metric of the first member, for the progress bar."""
    row = active[0].rows[-1]
    _, *names = row  # the first is the round
    if not names:
        return ""
    together = f" ({len(active)} runs)" if len(active) > 1 else ""
    return f"{names[0]} {row[names[0]]:.4g}{together}"


@contextlib.contextmanager
def deferred_interrupt(progress: Progress, alone: bool = True) -> Iterator[Stop]:
    """Yields whether Ctrl-C was pressed or SIGTERM came (as from a cluster whose time is up), so
    that the round in flight ends and is saved; a second one stops at once.

    Args:
      alone: no other processes are to be ended. Then a second one ends this one, if it is a
        command's, also where a compiled program, which nothing interrupts, goes on for longer than
        `PATIENCE`.
    """
    stop, left = threading.Event(), threading.Event()
    numbers = signal.SIGINT, signal.SIGTERM
    seen, handled_before = 0, False

    def hear(number: int) -> None:  # in a thread of its own
        nonlocal seen
        seen += number in numbers
        if number in numbers and seen == 1:
            stop.set()
            progress.say("interrupted: stopping when what is done is kept (again to stop at once)")
        elif number in numbers and alone and is_own_process() and not left.wait(PATIENCE):
            progress.say("stopped; the same command goes on from the last checkpoint")
            if sys.stderr.isatty():
                print(SHOW_CURSOR, end="", file=sys.stderr, flush=True)
            os._exit(EXIT_INTERRUPTED)

    def handler(number: int, frame: object) -> None:
        nonlocal handled_before
        if handled_before or seen > 1:
            left.set()
            raise KeyboardInterrupt
        handled_before = True
        stop.set()

    with heard(hear), handled(handler, *numbers):
        try:
            yield stop.is_set
        finally:
            left.set()


# --- the engine -----------------------------------------------------------------------------------


def run_members(
    members: Sequence[Member],
    checkpoint: Callable[[Member], None] = lambda member: None,
    advance: Callable[[Sequence[Member]], None] = lambda active: None,
    stop: Stop = lambda: False,
    opening: bool = False,
) -> Iterator[Member]:
    """Runs members to their end; yields each as it finishes or diverges, with its state collected.

    A member that has finished leaves the stack, and the rest goes on.

    Args:
      members: runs with equal stack keys, fresh or from checkpoints, at any rounds.
      checkpoint: called with each unfinished member every `runtime.checkpoint_every` seconds.
      advance: called with the members in flight, whose `round` says how far each is; `LOOK_EVERY`
        seconds apart and when a member is evaluated.
      stop: asked as often; True saves a checkpoint of every unfinished member and raises
        KeyboardInterrupt.
      opening: one round alone, after which all are collected.
    """
    if not opening:
        for some in openings(members):
            yield from run_members(some, checkpoint, advance, stop, opening=True)
    stack = Stack(members)
    try:
        stack.evaluate({})  # round 0 of the fresh ones
        clock = saved = time.perf_counter()
        while True:
            done = [member for member in stack.members if member.finished]
            if done:
                stack.collect()
                for member in done:
                    member.check_ledger()
                yield from done
                rest = [member for member in stack.members if not member.finished]
                if not rest:
                    return
                stack = Stack(rest)
            for left in reversed(range(1 if opening else stack.until_event())):
                diagnostics = stack.step(shown=left == 0)
                if left == 0:
                    stack.evaluate(diagnostics)
                now = time.perf_counter()
                if left and now - clock < LOOK_EVERY:
                    continue
                stopping = stop()
                stack.write_back(now - clock)
                clock = now
                advance(stack.members)
                if stopping or now - saved >= stack.plan.runtime.checkpoint_every:
                    stack.collect()
                    unfinished = [member for member in stack.members if not member.finished]
                    for member in unfinished:
                        checkpoint(member)
                    if stopping and unfinished:
                        raise KeyboardInterrupt
                    saved = time.perf_counter()
            if opening:
                stack.collect()
                return
    except Exception:
        # what the members had when they stopped, for the record of a failure; the ledger may hold
        # part of the round that broke
        stack.collect()
        raise
