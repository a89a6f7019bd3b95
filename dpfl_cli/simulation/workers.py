"""Worker processes: a grid's runs are dealt to them in groups that stay stacked, or audits of
runs, each with its share of the machine.

The parent has composed and planned every run. A worker gets plain configs, plans them again (to the
same ids) and executes them as a process alone would: locks, folders, checkpoints and failures are
the run store's. What a worker has to say goes through a file in a folder that both see, so that it
does not matter who started the process, and on which machine:

    <folder>/<number>   lines of JSON, written by worker <number>: rounds done, news
    <folder>/stop       written by the parent: save a checkpoint after this round and end

This module is imported before a worker knows how many threads it may use; what computes is imported
inside functions.
"""

from __future__ import annotations

import contextlib
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
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from pydantic import PositiveInt

from dpfl_cli.config.component import Settings
from dpfl_cli.config.errors import ConfigError, DpflError
from dpfl_cli.config.paths import COMMAND
from dpfl_cli.simulation.dealing import cores_of_this_process, deal, share_of_cores
from dpfl_cli.simulation.progress import Progress
from dpfl_cli.simulation.relay import POLL, Inbox, Outbox
from dpfl_cli.simulation.signals import handled

if TYPE_CHECKING:
    from dpfl_cli.simulation.execute import Outcome
    from dpfl_cli.simulation.run_plan import Plan
    from dpfl_cli.simulation.store import RunStore

STOP = "stop"
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS")


class WorkerError(DpflError):
    """A worker process that ended without saying what became of its runs."""

    exit_code = 3


@dataclass(frozen=True)
class Assignment:
    """What one worker gets; plain values, so that any backend can carry it.

    Attributes:
      configs, ids: the composed configs of its runs, and their ids by the parent's reckoning.
      canaries: the runs are not executed but audited, with so many canaries a side; None: executed.
      plugins: files with the user's components.
      outputs, folder, home: the outputs tree, where it reports, and the working directory;
        absolute.
      command: the command line that asked for the runs.
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
    command: str
    cores: tuple[int, ...] | None
    threads: int
    parent: int | None
    canaries: int | None = None


@dataclass(frozen=True)
class Report:
    """What a worker returns.

    Attributes:
      ended: (id, status, reason, cached) of executed runs, as in `Outcome`; the rest is in the
        store.
      error, interrupted: what stopped it before the last one, if anything did.
    """

    ended: list[tuple[str, str, str | None, bool]]
    error: DpflError | None = None
    interrupted: bool = False


class Future(Protocol):
    """The result of a worker to come."""

    def done(self) -> bool: ...

    def result(self) -> Report: ...


Entry = Callable[[Assignment], Report]


class Backend(Settings):
    """Who starts worker processes: its options under `hydra.launcher`.

    Attributes:
      workers: how many; None for one a core.
    """

    package: ClassVar[str]
    workers: PositiveInt | None

    @property
    def local(self) -> bool:
        """Whether the workers run on this machine, and so share its cores and memory."""
        return True

    @property
    def threads(self) -> int:
        """Of a worker on another machine."""
        return int(getattr(self, "cpus_per_worker", 1))

    def start(
        self, entry: Entry, assignments: Sequence[Assignment]
    ) -> contextlib.AbstractContextManager[Sequence[Future]]:
        """Starts one process an assignment, which calls `entry` with it; on leaving the context
        none is left.
        """
        raise NotImplementedError


def execute_on_workers(
    configs: Sequence[Mapping[str, Any]],
    plans: Sequence[Plan],
    store: RunStore,
    progress: Progress,
    backend: Backend,
) -> list[Outcome]:
    """As `execute`, with the runs dealt to the processes of a backend.

    Args:
      configs: the composed config of every plan.

    Raises:
      WorkerError: a worker process died.
      StoreError, KeyboardInterrupt: as `execute`, when every worker has ended.
    """
    from dpfl_cli.simulation.execute import Outcome, look_up
    from dpfl_cli.simulation.grouping import groups

    store.prepare()
    outcomes, missing = look_up(plans, store, progress)
    if not missing:
        return [outcomes[plan.id] for plan in plans]
    composed = {plan.id: config for plan, config in zip(plans, configs, strict=True)}
    reports = on_workers(composed, groups(missing), store, progress, backend)
    by_id = {plan.id: plan for plan in missing}
    for run_id, status, reason, cached in (one for report in reports for one in report.ended):
        record = store.find(run_id)
        assert record is not None, run_id
        outcomes[run_id] = Outcome(by_id[run_id], status, record, reason, cached)
    return [outcomes[plan.id] for plan in plans]


def on_workers(
    composed: Mapping[str, Mapping[str, Any]],
    groups: Sequence[Sequence[Plan]],
    store: RunStore,
    progress: Progress,
    backend: Backend,
    canaries: int | None = None,
) -> list[Report]:
    """Deals groups of runs to the processes of a backend; their reports, when all have ended.

    Args:
      composed: id -> config.
      canaries: as of an `Assignment`.

    Raises: as `execute_on_workers`.
    """
    from dpfl_cli.simulation.execute import deferred_interrupt, prepare_data
    from dpfl_cli.simulation.grouping import memory_budget
    from dpfl_cli.simulation.memory import keep_freed_memory
    from dpfl_cli.simulation.plan import with_values
    from dpfl_cli.simulation.plugins import listed_plugins

    plans = [plan for group in groups for plan in group]
    keep_freed_memory()
    prepare_data(plans, progress)  # here, so that every worker finds it done
    local = backend.local
    workers = min(backend.workers or len(cores_of_this_process()), len(plans))
    with tempfile.TemporaryDirectory(prefix="workers-", dir=store.partial.resolve()) as folder:
        assignments = []
        for number, mine in enumerate(deal(groups, workers)):
            cores = share_of_cores(number, workers) if local else None
            shares = {
                plan.id: memory_budget(plan, workers) if local else plan.launcher.memory
                for plan in mine
            }
            one = Assignment(
                number=number,
                configs=[with_values(composed[i], {"launcher.memory": shares[i]}) for i in shares],
                ids=list(shares),
                plugins=listed_plugins(),
                outputs=str(store.outputs.resolve()),
                folder=folder,
                home=str(Path.cwd()),
                command=os.environ.get(COMMAND, ""),
                cores=cores,
                threads=len(cores) if cores else backend.threads,
                parent=os.getpid() if local else None,
                canaries=canaries,
            )
            assignments.append(one)
        with deferred_interrupt(progress) as stop:
            return _attend(backend, assignments, progress, stop)


def _attend(
    backend: Backend,
    assignments: Sequence[Assignment],
    progress: Progress,
    stop: Callable[[], bool],
) -> list[Report]:
    """Starts the workers, forwards what they say until all have ended, and gathers their
    reports.
    """
    inboxes = [Inbox(Path(one.folder) / str(one.number)) for one in assignments]
    with backend.start(worker, assignments) as futures:
        running = list(zip(futures, inboxes, strict=True))
        while running:
            time.sleep(POLL)
            if stop():
                (Path(assignments[0].folder) / STOP).touch()
                # the others never started
                running = [(future, inbox) for future, inbox in running if inbox.path.exists()]
            running = [(future, inbox) for future, inbox in running if not future.done()]
            for inbox in inboxes:
                inbox.forward(progress)
        reports, died = [], []
        for one, future in zip(assignments, futures, strict=True):
            try:
                reports += [future.result()] if future.done() else []
            except Exception as error:  # each backend has kinds of its own for a process that died
                died.append((one, f"{type(error).__name__}: {str(error)[:200]}"))
    if any(report.interrupted for report in reports) or (
        stop() and len(reports) < len(assignments)
    ):
        raise KeyboardInterrupt
    if died:
        lost, why = died[0]
        raise WorkerError(
            f"worker {lost.number} ({len(lost.ids)} runs) ended without a result ({why}); "
            "the same command goes on from what is kept"
        )
    for report in reports:
        if report.error is not None:
            raise report.error
    return reports


def prepare_process(own: Assignment) -> None:
    """Pins this process to its cores and threads; before anything that computes is imported."""
    os.chdir(own.home)
    if own.cores is not None and hasattr(os, "sched_setaffinity"):
        for thread in os.listdir("/proc/self/task"):  # also those that the backend has started
            with contextlib.suppress(ProcessLookupError):
                os.sched_setaffinity(int(thread), own.cores)
    os.environ |= {COMMAND: own.command, **dict.fromkeys(THREADS, str(own.threads))}


def worker(own: Assignment) -> Report:
    """What a worker process does: takes its cores, loads the plugins that its parent had, works."""
    prepare_process(own)
    from dpfl_cli.simulation.plugins import load_plugins

    load_plugins(own.plugins)
    return work(own)


def work(own: Assignment) -> Report:
    """Executes, or audits, its runs; what a worker process does once it is prepared and has its
    plugins.
    """
    import torch

    from dpfl_cli.simulation.audit import make_audits
    from dpfl_cli.simulation.execute import execute
    from dpfl_cli.simulation.plan import make_plans
    from dpfl_cli.simulation.store import RunStore

    torch.set_num_threads(own.threads)
    if "numba" in sys.modules:  # the backend had it; otherwise it reads the environment
        sys.modules["numba"].set_num_threads(
            min(own.threads, sys.modules["numba"].config.NUMBA_NUM_THREADS)
        )
    with (
        Outbox(Path(own.folder) / str(own.number)) as progress,
        _news_to(progress),
        _stop_asked(own) as stop,
    ):
        try:
            plans = make_plans(own.configs)
            for plan, run_id in zip(plans, own.ids, strict=True):
                if plan.id != run_id:
                    raise ConfigError(
                        f"worker {own.number}: its dpfl, plugins or data are not those of the "
                        "process that asked"
                    )
            if own.canaries is not None:
                make_audits(plans, own.canaries, Path(own.outputs), progress, stop)
                return Report([])
            outcomes = execute(plans, RunStore(Path(own.outputs)), progress, stop=stop)
        except DpflError as error:
            return Report([], error=error)
        except KeyboardInterrupt:
            return Report([], interrupted=True)
    return Report([(one.plan.id, one.status, one.reason, one.cached) for one in outcomes])


@contextlib.contextmanager
def _stop_asked(own: Assignment) -> Iterator[Callable[[], bool]]:
    """Yields whether to stop: the parent says so or is gone, or this process got SIGINT, or SIGUSR2
    (its time is nearly up).
    """
    signalled = threading.Event()
    looked = 0.0
    file = Path(own.folder) / STOP

    def asked() -> bool:
        nonlocal looked
        if not signalled.is_set() and time.monotonic() - looked >= POLL:
            looked = time.monotonic()
            if (
                file.exists()
                or not file.parent.exists()
                or (own.parent is not None and not _alive(own.parent))
            ):
                signalled.set()
        return signalled.is_set()

    with handled(lambda *_: signalled.set(), signal.SIGINT, signal.SIGUSR2):
        yield asked


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
    handler.emit = (  # type: ignore[method-assign]
        lambda record: progress.say(f"dpfl: {record.getMessage()}")
    )
    before = logger.handlers, logger.level, logger.propagate
    logger.handlers, logger.propagate = [handler], False
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.handlers, logger.propagate = before[0], before[2]
        logger.setLevel(before[1])
