"""Worker processes: a grid's runs are dealt to them in groups that stay vectorised, each with its share of the machine.

The parent has composed and planned every run. A worker gets plain configs, plans them again (to the same ids) and executes
them as a process alone would: locks, folders, checkpoints and failures are the run store's. What a worker has to say goes
through a file in a folder that both see, so that it does not matter who started the process, and on which machine:

    <folder>/<number>   lines of JSON, written by worker <number>: rounds done, news
    <folder>/stop       written by the parent: save a checkpoint after this round and end

This module is imported before a worker knows how many threads it may use; what computes is imported inside functions.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from dpfl_cli.config.errors import ConfigError, DpflError
from dpfl_cli.simulation.progress import Progress

if TYPE_CHECKING:
    from dpfl_cli.simulation.execute import Outcome
    from dpfl_cli.simulation.plan import Plan
    from dpfl_cli.simulation.store import RunStore

POLL = 0.2  # seconds between two looks at the folder, on either side
IMBALANCE = 1.25  # the largest load of a worker that is accepted, in fair shares
STOP = "stop"
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS")


class WorkerError(DpflError):
    """A worker process that ended without saying what became of its runs."""

    exit_code = 3


@dataclass(frozen=True)
class Share:
    """What one worker gets; plain values, so that any backend can carry it.

    Attributes:
      configs, ids: the composed configs of its runs, and their ids by the parent's reckoning.
      plugins: files with the user's components.
      outputs, folder, home: the outputs tree, where it reports, and the working directory; absolute.
      cores: of this machine, that it may use; None where the backend assigns them.
      threads: that it may use.
      parent: the process whose end stops it; None where that may be on another machine.
    """

    number: int
    configs: list[dict[str, Any]]
    ids: list[str]
    plugins: list[str]
    outputs: str
    folder: str
    home: str
    cores: tuple[int, ...] | None
    threads: int
    parent: int | None


@dataclass(frozen=True)
class Ended:
    """What became of a run, without what can be read from the store."""

    id: str
    status: Any
    reason: str | None
    cached: bool


@dataclass(frozen=True)
class Report:
    """What a worker returns: how its runs ended, and what stopped it before the last one, if anything did."""

    ended: list[Ended]
    error: DpflError | None = None
    interrupted: bool = False


class Future(Protocol):
    """The result of a worker to come."""

    def done(self) -> bool: ...

    def result(self) -> Report: ...


Entry = Callable[[Share], Report]


class Backend(Protocol):
    """Who starts worker processes.

    Attributes:
      workers: how many; None for one a core.
      local: whether they run on this machine, and so share its cores and memory.
      threads: of a worker that is not local.
    """

    workers: int | None

    @property
    def local(self) -> bool: ...

    @property
    def threads(self) -> int: ...

    def start(self, entry: Entry, shares: Sequence[Share]) -> contextlib.AbstractContextManager[Sequence[Future]]:
        """Starts one process a share; on leaving the context none is left."""
        ...


def execute_on_workers(
    configs: Sequence[Mapping[str, Any]],
    plans: Sequence[Plan],
    store: RunStore,
    progress: Progress,
    backend: Backend,
    entry: Entry,
    plugins: Sequence[str] = (),
) -> list[Outcome]:
    """As `execute`, with the runs dealt to the processes of a backend.

    Args:
      configs: the composed config of every plan.
      entry: what a worker process calls: loads plugins, then `work`.

    Raises:
      WorkerError: a worker process died.
      StoreError, KeyboardInterrupt: as `execute`, when every worker has ended.
    """
    from dpfl_cli.simulation.execute import Outcome, deferred_interrupt, groups, keep_freed_memory, prepare_data, settled

    store.prepare()
    outcomes, waiting = settled(plans, store, progress)
    if waiting:
        keep_freed_memory()
        prepare_data(waiting, progress)  # here, so that every worker finds it done
        composed = {plan.id: config for plan, config in zip(plans, configs, strict=True)}
        workers = min(backend.workers or len(cores_of_this_process()), len(waiting))
        dealt = deal(groups(waiting), workers)
        with tempfile.TemporaryDirectory(prefix="workers-", dir=store.partial.resolve()) as folder:
            shares = [
                _share(number, part, workers, composed, store, folder, backend, plugins) for number, part in enumerate(dealt)
            ]
            with deferred_interrupt(progress) as stop:
                reports = _attend(backend, entry, shares, progress, stop)
        by_id = {plan.id: plan for plan in waiting}
        for one in (one for report in reports for one in report.ended):
            record = store.find(one.id)
            assert record is not None, one.id
            outcomes[one.id] = Outcome(by_id[one.id], one.status, record, one.reason, one.cached)
    return [outcomes[plan.id] for plan in plans]


def deal(groups: Sequence[Sequence[Plan]], workers: int) -> list[list[Plan]]:
    """Groups dealt to workers, the longest first to whom has the least; groups are split until nobody has much too much.

    Groups are kept whole where that leaves the workers about equal, for runs in one batch cost less than runs apart.

    Args:
      workers: at most as many as there are plans; each gets at least one.
    """
    parts = [1] * len(groups)  # into how many pieces each group is cut
    fair = sum(_work(group) for group in groups) / workers
    while True:
        pieces = [piece for group, count in zip(groups, parts, strict=True) for piece in _cut(group, count)]
        dealt: list[list[Plan]] = [[] for _ in range(workers)]
        loads = [0] * workers
        for piece in sorted(pieces, key=_work, reverse=True):
            least = loads.index(min(loads))
            dealt[least] += piece
            loads[least] += _work(piece)
        divisible = [number for number, group in enumerate(groups) if parts[number] < len(group)]
        if not divisible or (min(loads) > 0 and max(loads) <= IMBALANCE * fair):
            return dealt
        parts[max(divisible, key=lambda number: _work(groups[number]) / parts[number])] += 1


def _work(plans: Sequence[Plan]) -> int:
    """What plans cost, in a measure for comparing them."""
    return sum(plan.rounds * plan.clients * max(plan.dimension, 1) for plan in plans)


def _cut(group: Sequence[Plan], count: int) -> list[Sequence[Plan]]:
    """The group in `count` pieces of about equal length."""
    return [group[len(group) * i // count : len(group) * (i + 1) // count] for i in range(count)]


def cores_of_this_process() -> list[int]:
    """Numbers of the cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def share_of_cores(number: int, workers: int) -> tuple[int, ...]:
    """The cores of worker `number`: an equal part of all, or one that it shares where there are more workers than cores."""
    cores = cores_of_this_process()
    if workers > len(cores):
        return (cores[number % len(cores)],)
    return tuple(cores[len(cores) * number // workers : len(cores) * (number + 1) // workers])


def _share(
    number: int,
    plans: Sequence[Plan],
    workers: int,
    composed: Mapping[str, Mapping[str, Any]],
    store: RunStore,
    folder: str,
    backend: Backend,
    plugins: Sequence[str],
) -> Share:
    from dpfl_cli.simulation.execute import memory_budget
    from dpfl_cli.simulation.plan import with_values

    cores = share_of_cores(number, workers) if backend.local else None
    budgets = {plan.id: memory_budget(plan, workers) if backend.local else plan.launcher.memory for plan in plans}
    return Share(
        number=number,
        configs=[with_values(composed[plan.id], {"launcher.memory": budgets[plan.id]}) for plan in plans],
        ids=[plan.id for plan in plans],
        plugins=list(plugins),
        outputs=str(store.outputs.resolve()),
        folder=folder,
        home=str(Path.cwd()),
        cores=cores,
        threads=len(cores) if cores else backend.threads,
        parent=os.getpid() if backend.local else None,
    )


def _attend(
    backend: Backend, entry: Entry, shares: Sequence[Share], progress: Progress, stop: Callable[[], bool]
) -> list[Report]:
    """Starts the workers, forwards what they say until all have ended, and gathers their reports."""
    inboxes = [Inbox(Path(share.folder) / str(share.number)) for share in shares]
    with backend.start(entry, shares) as futures:
        running = list(zip(futures, inboxes, strict=True))
        while running:
            time.sleep(POLL)
            if stop():
                (Path(shares[0].folder) / STOP).touch()
                running = [(future, inbox) for future, inbox in running if inbox.path.exists()]  # the others never started
            running = [(future, inbox) for future, inbox in running if not future.done()]
            for inbox in inboxes:
                inbox.forward(progress)
        reports, died = [], []
        for share, future in zip(shares, futures, strict=True):
            try:
                reports += [future.result()] if future.done() else []
            except Exception as error:  # each backend has kinds of its own for a process that died
                died.append((share, f"{type(error).__name__}: {str(error)[:200]}"))
    if any(report.interrupted for report in reports) or (stop() and len(reports) < len(shares)):
        raise KeyboardInterrupt
    if died:
        share, why = died[0]
        raise WorkerError(
            f"worker {share.number} ({len(share.ids)} runs) ended without a result ({why}); "
            "the same command goes on from the last checkpoints"
        )
    for report in reports:
        if report.error is not None:
            raise report.error
    return reports


class Inbox:
    """The parent's side of a worker's file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._read = 0

    def forward(self, progress: Progress) -> None:
        """Passes on what is new."""
        if not self.path.exists():
            return
        with self.path.open("rb") as file:
            file.seek(self._read)
            lines = file.read().split(b"\n")
        for line in lines[:-1]:  # the last one is not complete yet
            self._read += len(line) + 1
            said = json.loads(line)
            if "say" in said:
                progress.say(said["say"])
            else:
                progress.advance(said["steps"], said["note"])


class Outbox(Progress):
    """The worker's side: a progress that is shown elsewhere."""

    def __init__(self, path: Path) -> None:
        super().__init__("", 0, quiet=True)
        self._file = path.open("w")
        self._steps = 0

    def advance(self, steps: int = 1, note: str = "") -> None:
        self._steps += steps
        self._note = note or self._note
        if time.monotonic() - self._last >= POLL:
            self._flush()

    def say(self, line: str) -> None:
        self._write({"say": line})

    def __exit__(self, *error: object) -> None:
        self._flush()
        self._file.close()

    def _flush(self) -> None:
        self._last = time.monotonic()
        self._write({"steps": self._steps, "note": self._note})
        self._steps = 0

    def _write(self, said: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(said) + "\n")
        self._file.flush()


def prepare_process(share: Share) -> None:
    """Pins this process to its cores and threads; before anything that computes is imported."""
    os.chdir(share.home)
    if share.cores is not None and hasattr(os, "sched_setaffinity"):
        for thread in os.listdir("/proc/self/task"):  # also those that the backend has started
            with contextlib.suppress(ProcessLookupError):
                os.sched_setaffinity(int(thread), share.cores)
    os.environ |= dict.fromkeys(THREADS, str(share.threads))


def work(share: Share) -> Report:
    """Executes a share; what a worker process does once it is prepared and has its plugins."""
    import torch

    from dpfl_cli.simulation.execute import execute
    from dpfl_cli.simulation.plan import make_plans
    from dpfl_cli.simulation.store import RunStore

    torch.set_num_threads(share.threads)
    if "numba" in sys.modules:  # the backend had it; otherwise it reads the environment
        sys.modules["numba"].set_num_threads(min(share.threads, sys.modules["numba"].config.NUMBA_NUM_THREADS))
    with Outbox(Path(share.folder) / str(share.number)) as progress, _news_to(progress), _stop_asked(share) as stop:
        try:
            plans = make_plans(share.configs)
            for plan, run_id in zip(plans, share.ids, strict=True):
                if plan.id != run_id:
                    raise ConfigError(f"worker {share.number}: its dpfl, plugins or data are not those of the process that asked")
            outcomes = execute(plans, RunStore(Path(share.outputs)), progress, stop=stop)
        except DpflError as error:
            return Report([], error=error)
        except KeyboardInterrupt:
            return Report([], interrupted=True)
    return Report([Ended(one.plan.id, one.status, one.reason, one.cached) for one in outcomes])


@contextlib.contextmanager
def _stop_asked(share: Share) -> Iterator[Callable[[], bool]]:
    """Yields whether to stop: the parent says so or is gone, or this process got SIGINT, or SIGUSR2 (its time is nearly up)."""
    signalled = threading.Event()
    main = threading.current_thread() is threading.main_thread()
    before = {number: signal.signal(number, lambda *_: signalled.set()) for number in (signal.SIGINT, signal.SIGUSR2) if main}
    looked = 0.0
    file = Path(share.folder) / STOP

    def asked() -> bool:
        nonlocal looked
        if not signalled.is_set() and time.monotonic() - looked >= POLL:
            looked = time.monotonic()
            if file.exists() or not file.parent.exists() or (share.parent is not None and not _alive(share.parent)):
                signalled.set()
        return signalled.is_set()

    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


@contextlib.contextmanager
def _news_to(progress: Progress) -> Iterator[None]:
    """Sends the library's log (a kernel being compiled, a fall-back) to the parent."""
    logger, handler = logging.getLogger("dpfl"), logging.Handler()
    handler.emit = lambda record: progress.say(f"dpfl: {record.getMessage()}")  # type: ignore[method-assign]
    before = logger.handlers, logger.level, logger.propagate
    logger.handlers, logger.propagate = [handler], False
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.handlers, logger.propagate = before[0], before[2]
        logger.setLevel(before[1])
