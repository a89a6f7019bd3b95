"""Hydra sweeper: the basic one, without its trial where dpfl's launchers compose every job before
they run any.
"""

from collections.abc import Sequence
from typing import Any

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra_plugins.dpfl_launcher import DpflLauncher

from dpfl_cli.config.errors import ConfigError


class DpflSweeper(BasicSweeper):
    """Every combination of the values given, in their order; a bad one is refused before the first
    one runs.
    """

    def validate_batch_is_legal(self, batch: Sequence[Sequence[str]]) -> None:
        """Hydra composes every job here and throws it away, a tenth of a second each; so does no
        launcher of ours.
        """
        if not isinstance(self.launcher, DpflLauncher):
            super().validate_batch_is_legal(batch)

    @staticmethod
    def split_arguments(overrides: list[list[str]], max_batch_size: Any) -> list[list[list[str]]]:
        """The jobs in batches of at most so many."""
        if max_batch_size is not None and (type(max_batch_size) is not int or max_batch_size < 1):
            raise ConfigError(
                f"hydra.sweeper.max_batch_size={max_batch_size}: write a whole number of at least 1"
            )
        return list(BasicSweeper.split_arguments(overrides, max_batch_size))
