"""Objectives of plugins, of which nobody knows what they do with the data."""

from typing import Any

from dpfl_cli.config.errors import DpflError, PrivacyError, without_values
from dpfl_cli.models.objective import Objective


class Guarded:
    """An objective whose errors say where they come from and nothing of the data."""

    __slots__ = ("objective",)

    def __init__(self, objective: Objective) -> None:
        self.objective = objective

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.objective, name)

        def call(*args: Any, **options: Any) -> Any:
            try:
                return found(*args, **options)
            except (DpflError, MemoryError):
                raise
            except Exception as error:
                said = without_values(error)
                raise PrivacyError(f"{name} of the model failed: {said}") from error

        return call if callable(found) else found
