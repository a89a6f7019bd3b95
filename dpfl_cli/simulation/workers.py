"""Worker processes: a grid's runs are dealt to them in groups that stay stacked, each with its
share of the machine.

The parent has composed and planned every run. A worker gets plain configs, plans them again (to the
same ids) and executes them as a process alone would: locks, folders, checkpoints and failures are
the run store's. What a worker has to say goes through a file in a folder that both see, so that it
does not matter who started the process, and on which machine:

    <folder>/<number>   lines of JSON, written by worker <number>: rounds done, news
    <folder>/go-on      the parent takes it away: save a checkpoint after this round and end

This module is imported before a worker knows how many threads it may use; what computes is imported
inside functions.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import PositiveInt

from dpfl_cli.config.component import Settings
from dpfl_cli.config.errors import ConfigError, DpflError
from dpfl_cli.config.paths import COMMAND
from dpfl_cli.data.threads import cores_of_this_process
from dpfl_cli.simulation.plugins import ENVIRONMENT, load_plugins
from dpfl_cli.simulation.progress import POLL, Outbox, Progress, forwarded
from dpfl_cli.simulation.signals import handled
from dpfl_cli.simulation.store import RunRecord, RunStore

if TYPE_CHECKING:
    from dpfl_cli.simulation.execute import Outcome, Stop
    from dpfl_cli.simulation.run_plan import Options, Plan

GO_ON = "go-on"
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS")
Ended = tuple[str, str, str | None, bool]  # a run's id, status, reason, cached, as in `Outcome`
# what a worker executed, or what stopped it before the last run: None is an interruption
Report = list[Ended] | DpflError | None
Futures = Sequence[Future[Report]]


class WorkerError(DpflError):
    """A worker process that ended without saying what became of its runs."""

    exit_code = 3


@dataclass(frozen=True)
class Assignment:
    """What one worker gets; plain values, so that any backend can carry it.

    Attributes:
      configs: id -> the composed config of a run, by the parent's reckoning.
      outputs, folder, home: the outputs tree, where it reports, and the working directory;
        absolute.
      environment: variables of its process: threads, plugins, the command line that asked.
      cores: of this machine, that it may use; None where the backend assigns them.
      parent: the process whose end stops it; None where that may be on another machine.
    """

    number: int
    configs: dict[str, Options]
    outputs: Path
    folder: Path
    home: Path
    environment: dict[str, str]
    cores: list[int] | None
    parent: int | None


class Backend(Settings):
    """Who starts worker processes: its options under `hydra.launcher`.

    Attributes:
      workers: how many; None for one a core.
    """

    workers: PositiveInt | None

    @property
    def elsewhere(self) -> int | None:
        """The threads of a worker on another machine; None where workers run on this one, and so
        share its cores and memory.
        """
        return None

    def start(
        self, assignments: Sequence[Assignment]
    ) -> contextlib.AbstractContextManager[Futures]:
        """Starts one process an assignment, which calls `worker` with it; on leaving the context
        none is left.
        """
        raise NotImplementedError


def execute_on_workers(
    configs: Sequence[Options],
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
    from dpfl_cli.simulation.execute import Outcome, deferred_interrupt, look_up, prepare_data
    from dpfl_cli.simulation.grouping import deal, memory_budget
    from dpfl_cli.simulation.plan import with_values

    store.prepare()
    outcomes, missing = look_up(plans, store, progress)
    if not missing:
        return [outcomes[plan.id] for plan in plans]
    prepare_data(missing, progress)  # here, so that every worker finds it done
    by_id = {plan.id: plan for plan in missing}
    local = backend.elsewhere is None
    dealt = deal(missing, backend.workers or len(cores_of_this_process()))
    given = {plan.id: config for plan, config in zip(plans, configs, strict=True)}
    with tempfile.TemporaryDirectory(prefix="workers-", dir=store.partial.resolve()) as folder:
        assignments = []
        for number, mine in enumerate(dealt):
            cores = share_of_cores(number, len(dealt)) if local else None
            threads = str(backend.elsewhere or len(cores or ()))
            own = {name: os.environ.get(name, "") for name in (COMMAND, ENVIRONMENT)}
            one = Assignment(
                number,
                {
                    plan.id: with_values(
                        given[plan.id],
                        {"launcher.memory": memory_budget(plan, len(dealt))} if local else {},
                    )
                    for plan in mine
                },
                outputs=store.outputs.resolve(),
                folder=Path(folder),
                home=Path.cwd(),
                environment=own | dict.fromkeys(THREADS, threads),
                cores=cores,
                parent=os.getpid() if local else None,
            )
            assignments.append(one)
        with deferred_interrupt(progress, alone=False) as stop:
            ended = _attend(backend, assignments, progress, stop)
    for run_id, status, reason, cached in ended:
        record = RunRecord(run_id, store.runs / run_id)
        outcomes[run_id] = Outcome(by_id[run_id], status, record, reason, cached)
    return [outcomes[plan.id] for plan in plans]


def share_of_cores(number: int, workers: int) -> list[int]:
    """The cores of worker `number`: an equal part of all, or one that it shares where there are
    more workers than cores.
    """
    cores = cores_of_this_process()
    first, end = (len(cores) * one // workers for one in (number, number + 1))
    return cores[first : max(end, first + 1)]


def _attend(
    backend: Backend,
    assignments: Sequence[Assignment],
    progress: Progress,
    stop: Stop,
) -> list[Ended]:
    """Starts the workers, forwards what they say until all have ended, and gathers what became of
    their runs.
    """
    go_on = assignments[0].folder / GO_ON
    go_on.touch()
    files = [one.folder / str(one.number) for one in assignments]
    with backend.start(assignments) as futures:
        news = [forwarded(file, progress) for file in files]
        running = True
        while running:
            time.sleep(POLL)
            if stop():
                go_on.unlink(missing_ok=True)  # those without a file never started
            running = any(
                not future.done() and (file.exists() or not stop())
                for future, file in zip(futures, files, strict=True)
            )
            for one in news:
                next(one)
        reports: list[Report] = []
        for share, future in zip(assignments, futures, strict=True):
            try:
                reports.append(future.result() if future.done() else None)
            except Exception as error:  # each backend has kinds of its own for a process that died
                why = f"{type(error).__name__}: {str(error)[:200]}"
                reports.append(
                    WorkerError(
                        f"worker {share.number} ({len(share.configs)} runs) ended without a result "
                        f"({why}); the same command goes on from what is kept"
                    )
                )
    if None in reports:
        raise KeyboardInterrupt
    ended = []
    for report in reports:
        if isinstance(report, DpflError):
            raise report
        ended += report or []
    return ended


def prepare_process(own: Assignment) -> None:
    """Pins this process to its cores and threads; before anything that computes is imported."""
    os.chdir(own.home)
    if own.cores is not None and hasattr(os, "sched_setaffinity"):
        for thread in os.listdir("/proc/self/task"):  # also those that the backend has started
            with contextlib.suppress(ProcessLookupError):
                os.sched_setaffinity(int(thread), own.cores)
    os.environ |= own.environment


def worker(own: Assignment) -> Report:
    """What a worker process does: takes its cores, loads the plugins that its parent had, works."""
    prepare_process(own)
    load_plugins([])
    return work(own)


def work(own: Assignment) -> Report:
    """Executes its runs; what a worker process does once it is prepared and has its plugins."""
    from dpfl_cli.simulation.execute import execute
    from dpfl_cli.simulation.plan import make_plans

    with Outbox(own.folder / str(own.number)) as progress, _news_to(progress):
        try:
            plans = make_plans([*own.configs.values()])
            if [plan.id for plan in plans] != [*own.configs]:
                raise ConfigError(
                    f"worker {own.number}: its dpfl, plugins or data are not those of the process "
                    "that asked"
                )
            with _stop_asked(own) as stop:
                outcomes = execute(plans, RunStore(own.outputs), progress, stop=stop)
        except DpflError as error:
            return error
        except KeyboardInterrupt:
            return None
    return [(one.plan.id, one.status, one.reason, one.cached) for one in outcomes]


@contextlib.contextmanager
def _stop_asked(own: Assignment) -> Iterator[Stop]:
    """Yields whether to stop: the parent says so or is gone, or this process got SIGINT, SIGTERM or
    SIGUSR2 (its time is nearly up).
    """
    stopped = threading.Event()
    looked = 0.0

    def asked() -> bool:
        nonlocal looked
        if time.monotonic() - looked >= POLL:  # it is asked every round, and folders may be far
            looked = time.monotonic()
            if not (own.folder / GO_ON).exists() or not _alive(own.parent):
                stopped.set()
        return stopped.is_set()

    with handled(lambda *_: stopped.set(), signal.SIGINT, signal.SIGTERM, signal.SIGUSR2):
        yield asked


def _alive(process: int | None) -> bool:
    try:
        os.kill(process or os.getpid(), 0)
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
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
