"""Objectives of plugins, of which nobody knows what they do with the data."""

from typing import Any

from torch import Tensor

from dpfl_cli.config.errors import DpflError, PrivacyError, without_values
from dpfl_cli.models.objective import Objective
from dpfl_cli.privacy.client_values import Unreleased


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


def as_given(given: Tensor, found: Tensor) -> Tensor:
    """What a model's regulariser or prox makes of values; client values stay what they are."""
    if isinstance(found, Unreleased) != isinstance(given, Unreleased):
        raise PrivacyError(
            "a model's regulariser and prox are public functions: of client values they make "
            "client values, of public ones public ones"
        )
    return found
