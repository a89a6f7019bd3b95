"""Hydra sweeper: the basic one without its trial, for dpfl's launchers compose every job before they run any."""

from __future__ import annotations

from collections.abc import Sequence

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper


class DpflSweeper(BasicSweeper):
    """Every combination of the values given, in their order; a bad one is refused by the launcher."""

    def validate_batch_is_legal(self, batch: Sequence[Sequence[str]]) -> None:
        """Hydra composes every job here and throws it away: a tenth of a second each."""
