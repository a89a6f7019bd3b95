"""What an algorithm is: `init` and `round`, pure on an explicit state, and the releases it declares."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Protocol

import numpy as np
from torch import Tensor

from dpfl_cli.config.component import Settings
from dpfl_cli.data.streams import Streams
from dpfl_cli.models.objective import ClientSide
from dpfl_cli.privacy.mechanism import Mechanism, ReleaseSpec

Diagnostics = Mapping[str, Tensor]


class Later(Mapping[str, Tensor]):
    """Diagnostics that are computed when somebody looks at them, for in most rounds nobody may."""

    def __init__(self, compute: Callable[[], Diagnostics]) -> None:
        self._compute = compute

    @cached_property
    def _found(self) -> Diagnostics:
        return self._compute()

    def __getitem__(self, name: str) -> Tensor:
        return self._found[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)


@dataclass(frozen=True)
class State:
    """Everything that lasts from round to round, by who holds it.

    Attributes:
      server: name -> [R, ...] tensors. `model` [R, d] is always there. Depends on data only through releases.
      clients: name -> [R, M, ...] tensors, each row known to its own client only.
    """

    server: Mapping[str, Tensor]
    clients: Mapping[str, Tensor]


class Algorithm(Protocol):
    """A federated method for a batch of runs; `hyper` holds each of its settings, floats stacked as tensors [R].

    What lasts from round to round is in the state and nowhere else: an attribute that a round changes would be lost in a
    checkpoint.
    """

    trusts: ClassVar[frozenset[str]]  # trust models it is defined for
    proved: ClassVar[frozenset[str]]  # trust models for which its file says why the guarantee holds; empty unless it does
    # instead of `proved` where that depends on settings: (settings, trust, whether every message carries the whole noise) -> why
    # the guarantee is not proved, or None
    gap: ClassVar[Callable[[Any, str, bool], str | None]]
    units: ClassVar[frozenset[str]]  # privacy units
    needs: ClassVar[frozenset[str]]  # optional methods of objectives that it calls (`Objective.provides`); may be left out
    proximal: ClassVar[bool]  # whether it takes proximal steps, which a model's penalty needs; may be left out
    paper: ClassVar[str]
    hyper: Any

    @staticmethod
    def releases(settings: Settings, trust: str) -> list[ReleaseSpec]:
        """The releases of one round under a trust model."""
        ...

    def init(self, objective: ClientSide, streams: Streams) -> State:
        """The state before round 1."""
        ...

    def round(
        self, state: State, objective: ClientSide, mechanism: Mechanism, streams: Streams, rounds: np.ndarray
    ) -> tuple[State, Diagnostics]:
        """One round. `rounds` [R] is each run's round number, from 1; diagnostics are [R] tensors that nothing reads
        (`Later` where they take time)."""
        ...
