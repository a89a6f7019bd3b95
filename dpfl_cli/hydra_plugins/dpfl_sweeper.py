"""Hydra sweeper: the basic one, without its trial where dpfl's launchers compose every job before
they run any.
"""

from __future__ import annotations

from collections.abc import Sequence

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra_plugins.dpfl_launcher import DpflLauncher


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
