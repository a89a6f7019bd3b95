"""The mechanism: the one object through which client data reaches anybody else.

An algorithm declares its releases (`ReleaseSpec`); a mechanism refuses a name that was not declared. A release adds the
noise and writes its event to the ledger in one act, on values that carry their own sensitivity.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from dpfl_cli.config.component import Settings
from dpfl_cli.config.errors import PrivacyError
from dpfl_cli.data.streams import Streams
from dpfl_cli.privacy.bounded import Bounded, Relation
from dpfl_cli.privacy.client_values import ClientValues
from dpfl_cli.privacy.ledger import BatchLedger, LedgerEntry

Trust = Literal["none", "local", "central", "secure_aggregation"]


@dataclass(frozen=True)
class ReleaseSpec:
    """A release that a method makes, declared before anything runs.

    Attributes:
      name: its name in the ledger.
      shape: "vector" or "scalar" contributions.
      per_round: how often in a round.
      group: releases of one group are functions of the same contributions and may be priced jointly.
      multiplier: the noise multiplier of this release as a function of (the mechanism's noise multiplier, model dimension,
        number of clients); None for the mechanism's own.
      note: the quantity, its sensitivity and the derivation, in one line for `dpfl list`.
    """

    name: str
    shape: Literal["vector", "scalar"] = "vector"
    per_round: int = 1
    group: str = ""
    multiplier: Callable[[float, int, int], float] | None = None
    note: str = ""


@dataclass(frozen=True)
class Release:
    """What a release hands out.

    Attributes:
      received: what the receiver sees: every client's message [R, M, d] (local), or only their mean [R, d], [R] (central,
        secure aggregation).
      mean: the mean over clients of what was received, [R, d] or [R].
      echo: [R, M, d] what each client itself knows of its own part of the exchange: the message it sent. It may enter
        the clients' state only.
    """

    received: Tensor
    mean: Tensor
    echo: ClientValues


@dataclass(frozen=True)
class Site:
    """Where a mechanism works: the batch of runs it serves and their streams and ledgers."""

    specs: dict[str, ReleaseSpec]
    relation: Relation
    unit: str
    dimension: int
    clients: int
    streams: Streams
    ledger: BatchLedger


class Mechanism(ABC):
    """One for a batch of runs, built from one `Settings` per run.

    Class attributes say what it is for; `plan` prices a release before anything runs, and `release` does it. Both take
    their event from `entry`, so the plan and the ledger cannot differ.
    """

    trusts: ClassVar[frozenset[str]]  # the trust models under which it makes sense
    relations: ClassVar[frozenset[str]] = frozenset({"replace_one", "add_or_remove", "zero_out"})
    shapes: ClassVar[frozenset[str]] = frozenset({"vector", "scalar"})  # of contributions it can release
    noise_field: ClassVar[str | None] = None  # the setting that calibration solves for

    def __init__(self, settings: list[Settings], site: Site) -> None:
        self.settings = settings
        self.site = site

    @classmethod
    @abstractmethod
    def entry(
        cls, settings: Settings, spec: ReleaseSpec, relation: Relation, unit: str, dimension: int, clients: int
    ) -> LedgerEntry:
        """The ledger entry (count 1, sensitivity None) of one release of `spec` under these settings."""

    @abstractmethod
    def release(self, name: str, values: Bounded, rounds: np.ndarray, charged: np.ndarray | None = None) -> Release:
        """Releases bounded values under a declared name and charges the ledger.

        Args:
          name: a declared release.
          values: one contribution per client.
          rounds: [R] the round each run is in, which addresses its noise.
          charged: [R] booleans: the runs in which this release happens; None for all.
        """

    def squared_norms(self, received: Tensor) -> Tensor:
        """[R, M] estimates of ||v_i||^2 of the contributions behind received messages (post-processing).

        Only where the receiver sees messages (local trust).
        """
        raise PrivacyError(f"{type(self).__name__} has no estimate of the norms behind its messages")

    def _begin(self, name: str, values: Bounded, charged: np.ndarray | None) -> tuple[ReleaseSpec, np.ndarray]:
        """Checks a release against its declaration and charges it; returns its spec and [R] parameters."""
        site = self.site
        spec = site.specs.get(name)
        if spec is None:
            raise PrivacyError(f"release '{name}' was not declared: add a ReleaseSpec to the algorithm's releases")
        shape = "vector" if values.is_vector else "scalar"
        if shape != spec.shape or values.unit != site.unit:
            raise PrivacyError(
                f"release '{name}' was declared as a {spec.shape} per {site.unit}, but got a {shape} per {values.unit}"
            )
        entries = [self.entry(s, spec, site.relation, site.unit, site.dimension, site.clients) for s in self.settings]
        parameters = np.array([np.nan if e.parameter is None else e.parameter for e in entries], float)
        sensitivity = values.sensitivity(site.relation)
        site.ledger.charge(entries[0], sensitivity, parameters, charged)
        return spec, parameters

    def _per_run(self, values: np.ndarray, like: Tensor) -> Tensor:
        """[R] numbers as a tensor shaped to multiply values [R, ...]."""
        return torch.as_tensor(values, dtype=like.dtype, device=like.device).reshape(-1, *[1] * (like.dim() - 1))
