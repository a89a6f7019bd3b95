"""What starts worker processes: joblib on this machine, Ray here or on a cluster, submitit here or
under Slurm.

Each is its own settings: the options under `hydra.launcher`.
"""

import contextlib
import importlib.util
import logging
import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import NonNegativeFloat, NonNegativeInt, PositiveInt

from dpfl_cli.config.component import PositiveOrNone, parse_settings
from dpfl_cli.config.errors import ConfigError
from dpfl_cli.simulation.signals import handled
from dpfl_cli.simulation.workers import Assignment, Backend, Entry, Future

IDLE = 5  # seconds after which a process without work ends by itself, should its parent be gone


class Joblib(Backend):
    """Processes of this machine, by joblib's loky."""

    package = "joblib"

    @contextlib.contextmanager
    def start(self, entry: Entry, assignments: Sequence[Assignment]) -> Iterator[Sequence[Future]]:
        from joblib.externals.loky import ProcessPoolExecutor

        pools = [
            ProcessPoolExecutor(max_workers=1, timeout=IDLE) for _ in assignments
        ]  # one each: a death takes no other along
        try:
            with handled(signal.SIG_IGN, signal.SIGINT):  # the parent tells its workers to stop
                futures = [
                    pool.submit(entry, one) for pool, one in zip(pools, assignments, strict=True)
                ]
            yield futures
        finally:
            for pool in pools:
                pool.shutdown(wait=True, kill_workers=True)


class Ray(Backend):
    """Ray tasks, on this machine or, with an address, on a cluster that sees the same files."""

    package = "ray"
    address: str | None
    cpus_per_worker: PositiveInt
    gpus_per_worker: NonNegativeFloat

    @property
    def local(self) -> bool:
        return self.address is None

    @contextlib.contextmanager
    def start(self, entry: Entry, assignments: Sequence[Assignment]) -> Iterator[Sequence[Future]]:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        import ray

        here: dict[str, Any] = (
            {"num_cpus": len(assignments), "include_dashboard": False} if self.local else {}
        )
        ray.init(
            address=self.address or "local",
            log_to_driver=False,
            logging_level=logging.ERROR,
            **here,
        )
        try:
            cpus = 1 if self.local else self.cpus_per_worker
            task = ray.remote(num_cpus=cpus, num_gpus=self.gpus_per_worker, max_retries=0)(entry)
            references = [task.remote(one) for one in assignments]
            try:
                yield [reference.future() for reference in references]
            finally:
                for reference in references:
                    ray.cancel(reference, force=True)
        finally:
            ray.shutdown()


class Submitit(Backend):
    """Jobs of submitit: processes of this machine, or of a Slurm cluster that sees the same
    files.
    """

    package = "submitit"
    executor: Literal["local", "slurm"]
    folder: str | None
    timeout: PositiveInt
    cpus_per_worker: PositiveInt
    gpus_per_worker: NonNegativeInt
    memory_per_worker: PositiveOrNone
    partition: str | None
    account: str | None
    slurm: dict[str, Any]

    @property
    def local(self) -> bool:
        return self.executor == "local"

    @contextlib.contextmanager
    def start(self, entry: Entry, assignments: Sequence[Assignment]) -> Iterator[Sequence[Future]]:
        import submitit

        executor = submitit.AutoExecutor(
            self.folder or Path(assignments[0].outputs) / "submitit", cluster=self.executor
        )
        executor.update_parameters(
            name="dpfl", timeout_min=self.timeout, gpus_per_node=self.gpus_per_worker
        )
        if not self.local:
            chosen = {
                "mem_gb": self.memory_per_worker,
                "slurm_partition": self.partition,
                "slurm_account": self.account,
            }
            executor.update_parameters(
                cpus_per_task=self.cpus_per_worker,
                slurm_additional_parameters=self.slurm,
                **{name: value for name, value in chosen.items() if value is not None},
            )
        with handled(signal.SIG_IGN, signal.SIGINT):  # the parent tells its workers to stop
            jobs = executor.map_array(entry, assignments)
        try:
            yield jobs
        finally:
            for job in jobs:
                if not job.done():
                    job.cancel(check=False)


BACKENDS: dict[str, type[Backend]] = {"joblib": Joblib, "ray": Ray, "submitit": Submitit}


def make_backend(name: str, options: Mapping[str, Any]) -> Backend:
    """The backend of `hydra/launcher=NAME` with its options.

    Raises:
      ConfigError: its package is not installed, or an option is wrong.
    """
    kind = BACKENDS[name]
    if importlib.util.find_spec(kind.package) is None:
        raise ConfigError(
            f"hydra/launcher={name}: the package {kind.package} is not installed; "
            f"pip install dpfl[{name}]"
        )
    backend: Backend = parse_settings(kind, dict(options), "hydra.launcher")
    return backend
