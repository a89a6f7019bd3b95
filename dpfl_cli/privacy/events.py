"""Events that dp-accounting lacks; apart, because importing it takes most of a second."""

from dataclasses import dataclass

import dp_accounting


@dataclass(frozen=True)
class PureDpEvent(dp_accounting.DpEvent):
    """A mechanism of which only pure epsilon-DP is known."""

    epsilon: float
