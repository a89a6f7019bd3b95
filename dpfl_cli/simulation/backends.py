"""What starts worker processes: joblib on this machine, Ray here or on a cluster, submitit here or
under Slurm.

Each is its own settings: the options under `hydra.launcher`.
"""

import importlib.util
import logging
import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal

from pydantic import NonNegativeFloat, NonNegativeInt, PositiveInt

from dpfl_cli.config.component import PositiveOrNone, parse_settings
from dpfl_cli.config.errors import ConfigError
from dpfl_cli.simulation.signals import handled
from dpfl_cli.simulation.workers import Assignment, Backend, Futures, worker

IDLE = 5  # seconds after which a process without work ends by itself, should its parent be gone


class Joblib(Backend):
    """Processes of this machine, by joblib's loky."""

    @contextmanager
    def start(self, assignments: Sequence[Assignment]) -> Iterator[Futures]:
        from joblib.externals.loky import ProcessPoolExecutor

        pools = [
            ProcessPoolExecutor(max_workers=1, timeout=IDLE) for _ in assignments
        ]  # one each: a death takes no other along
        try:
            # the parent tells its workers to stop
            with handled(signal.SIG_IGN, signal.SIGINT, signal.SIGTERM):
                futures = [
                    pool.submit(worker, one) for pool, one in zip(pools, assignments, strict=True)
                ]
            yield futures
        finally:
            for pool in pools:
                pool.shutdown(kill_workers=True)


class Ray(Backend):
    """Ray tasks, on this machine or, with an address, on a cluster that sees the same files."""

    address: str | None
    cpus_per_worker: PositiveInt
    gpus_per_worker: NonNegativeFloat

    @property
    def elsewhere(self) -> int | None:
        return None if self.address is None else self.cpus_per_worker

    @contextmanager
    def start(self, assignments: Sequence[Assignment]) -> Iterator[Futures]:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        import ray

        here: dict[str, Any] = {"num_cpus": len(assignments), "include_dashboard": False}
        ray.init(
            address=self.address or "local",
            log_to_driver=False,
            logging_level=logging.ERROR,
            **({} if self.elsewhere else here),
        )
        try:
            each = {"num_cpus": self.elsewhere or 1, "num_gpus": self.gpus_per_worker}
            task = ray.remote(**each, max_retries=0)(worker)
            yield [task.remote(one).future() for one in assignments]
        finally:
            ray.shutdown()  # which ends the tasks of this process, wherever they run


class Submitit(Backend):
    """Jobs of submitit: processes of this machine, or of a Slurm cluster that sees the same
    files.
    """

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
    def elsewhere(self) -> int | None:
        return None if self.executor == "local" else self.cpus_per_worker

    @contextmanager
    def start(self, assignments: Sequence[Assignment]) -> Iterator[Futures]:
        import submitit

        executor = submitit.AutoExecutor(
            self.folder or assignments[0].outputs / "submitit", cluster=self.executor
        )
        executor.update_parameters(
            name="dpfl", timeout_min=self.timeout, gpus_per_node=self.gpus_per_worker
        )
        if self.elsewhere:
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
        # the parent tells its workers to stop
        with handled(signal.SIG_IGN, signal.SIGINT, signal.SIGTERM):
            jobs: Sequence[Any] = executor.map_array(worker, assignments)
        try:
            yield jobs
        finally:
            for job in jobs:
                if not job.done():
                    job.cancel(check=False)


# by the names of their packages
BACKENDS: dict[str, type[Backend]] = {"joblib": Joblib, "ray": Ray, "submitit": Submitit}


def make_backend(name: str, options: Mapping[str, Any]) -> Backend:
    """The backend of `hydra/launcher=NAME` with its options.

    Raises:
      ConfigError: its package is not installed, or an option is wrong.
    """
    if importlib.util.find_spec(name) is None:
        raise ConfigError(
            f"hydra/launcher={name}: the package {name} is not installed; "
            f"pip install '.[{name}]' in dpfl's folder"
        )
    return parse_settings(BACKENDS[name], dict(options), "hydra.launcher")
