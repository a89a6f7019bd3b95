"""Hydra launcher: all jobs of a sweep go to dpfl's engine, which runs those that share shapes as one tensor program.

This folder is installed as the namespace package `hydra_plugins`, the only place where Hydra looks for launchers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from hydra.core.utils import JobReturn, JobStatus
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig


class DpflLauncher(Launcher):
    """Composes and validates every job before any is run, then executes them together."""

    last_exit_code: ClassVar[int] = 0

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self.hydra_context = hydra_context
        self.config = config

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        from dpfl_cli.cli.run import execute_configs
        from dpfl_cli.config.compose import plain

        loader = self.hydra_context.config_loader
        configs: list[dict[str, Any]] = [
            plain(loader.load_sweep_config(self.config, list(overrides))) for overrides in job_overrides
        ]
        DpflLauncher.last_exit_code = execute_configs(configs)
        results = []
        for overrides in job_overrides:
            result = JobReturn(overrides=list(overrides), status=JobStatus.COMPLETED)
            result.return_value = None
            results.append(result)
        return results
