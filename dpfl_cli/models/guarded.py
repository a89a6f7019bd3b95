"""Objectives of plugins, of which nobody knows what they do with the data."""

from collections.abc import Callable
from functools import partial
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
        return partial(self._call, name, found) if callable(found) else found

    @staticmethod
    def _call(name: str, method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        try:
            return method(*args, **kwargs)
        except (DpflError, MemoryError):
            raise
        except Exception as error:
            raise PrivacyError(f"{name} of the model failed: {without_values(error)}") from error
