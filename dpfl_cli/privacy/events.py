"""Ledger entries as dp-accounting events; apart from the ledger, because importing dp-accounting takes most of a second."""

from __future__ import annotations

from dataclasses import dataclass

import dp_accounting


@dataclass(frozen=True)
class PureDpEvent(dp_accounting.DpEvent):
    """A mechanism of which only pure epsilon-DP is known (dp-accounting has no such event)."""

    epsilon: float


def composed(kind: str, parameter: float | tuple[float, ...] | None, count: int) -> dp_accounting.DpEvent:
    """The composition of `count` releases of a kind; a tuple of parameters gives every release its own."""
    if kind == "nonprivate" or parameter is None:
        return dp_accounting.NonPrivateDpEvent()
    make = dp_accounting.GaussianDpEvent if kind == "gaussian" else PureDpEvent
    if isinstance(parameter, tuple):
        return dp_accounting.ComposedDpEvent([make(value) for value in parameter])
    return dp_accounting.SelfComposedDpEvent(make(parameter), count)
