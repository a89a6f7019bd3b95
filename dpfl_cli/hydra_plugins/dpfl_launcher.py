"""Hydra launcher: all jobs of a sweep go to dpfl's engine, which runs those that share shapes as
one tensor program.

This folder is installed as the namespace package `hydra_plugins`, the only place where Hydra looks
for launchers.
"""

from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

from hydra.core.utils import JobReturn, JobStatus
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf


class DpflLauncher(Launcher):
    """Composes and validates every job before any is run, then executes them together: here, or on
    worker processes.

    Args:
      name: the option of hydra/launcher: `dpfl` for this process, or who starts workers.
      options: of that one, for `simulation.backends`.
    """

    def __init__(self, name: str, **options: Any) -> None:
        self.name = name
        self.options = OmegaConf.to_container(OmegaConf.create(options), resolve=True)

    def setup(
        self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig
    ) -> None:
        self.hydra_context = hydra_context
        self.config = config

    def launch(
        self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int
    ) -> Sequence[JobReturn]:
        from dpfl_cli.cli.run import execute_configs
        from dpfl_cli.config.compose import compose_jobs
        from dpfl_cli.simulation.backends import make_backend

        backend = None if self.name == "dpfl" else make_backend(self.name, self.options)
        configs = compose_jobs(self.hydra_context.config_loader, self.config, job_overrides)
        values = [outcome.value for outcome in execute_configs(configs, backend)]
        results = []
        for overrides, value in zip_longest(job_overrides, values):  # no values of a dry run
            result = JobReturn(overrides=list(overrides), status=JobStatus.COMPLETED)
            result.return_value = value  # what a sweeper such as Optuna's goes by
            results.append(result)
        return results
