"""Wrong inputs by the hundred: `python -m tests.wrong_inputs [KIND ...]`.

Each is given as a user gives it, all in one process: overrides, sweeps, config files, arrays,
partitions, modules, plugins, commands, archives, the environment, calls from Python. It has to end
with exit code 2 (130 where the input stands for Ctrl-C) and one line, without a traceback, and
without a change to the runs that are there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

LONG = "9" * 5000
SMALL = ("dataset.clients=12", "dataset.dimension=5", "rounds=3")


@dataclass(frozen=True)
class Input:
    """What is given: words of a command line, or a call from Python."""

    kind: str
    words: tuple[str, ...]
    code: int = 2
    environment: Mapping[str, str] = field(default_factory=dict)
    call: Callable[[], object] | None = None
