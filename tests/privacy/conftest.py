"""Mechanisms on a small stage: a site with declared releases, and clipped contributions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch

import dpfl_cli.privacy.gaussian
import dpfl_cli.privacy.gaussian_accountants
import dpfl_cli.privacy.mixed_accountants
import dpfl_cli.privacy.privunit  # noqa: F401
from dpfl_cli.config.component import lookup, parse_settings
from dpfl_cli.data.streams import Streams
from dpfl_cli.privacy.bounded import Bounded, clip
from dpfl_cli.privacy.client_values import client_values
from dpfl_cli.privacy.ledger import BatchLedger, Ledger
from dpfl_cli.privacy.mechanism import Mechanism, Site
from dpfl_cli.privacy.releases import ReleaseSpec, Setup

HORIZON = 10_000
DEFAULTS: dict[str, dict[str, Any]] = {
    "none": {},
    "local_gaussian": {"noise_multiplier": 0.35},
    "central_gaussian": {"noise_multiplier": 2.5},
    "shared_gaussian": {"noise_multiplier": 2.5},
    "privunit": {
        "epsilon_cap": 2.0,
        "epsilon_direction": 2.0,
        "epsilon_norm": 2.0,
        "epsilon": None,
        "gamma_rule": "paper",
        "split": "given",
    },
}


@pytest.fixture
def settings() -> Callable[..., Any]:
    """settings(mechanism, **changes): its default settings, changed."""

    def make(name: str, **changes: Any) -> Any:
        return parse_settings(
            lookup("mechanism", name).settings, {**DEFAULTS[name], **changes}, "mechanism"
        )

    return make


@pytest.fixture
def build(settings: Callable[..., Any]) -> Callable[..., Mechanism]:
    """build(mechanism, clients, dimension, ...): the mechanism with an "update" release
    declared.
    """

    def make(
        name: str,
        clients: int,
        dimension: int,
        *,
        seeds: Sequence[int] = (0,),
        specs: Sequence[ReleaseSpec] = (ReleaseSpec("update"),),
        relation: Any = "replace_one",
        unit: str = "client",
        changes: Sequence[dict[str, Any]] | None = None,
        sound: bool = True,
    ) -> Mechanism:
        trust = sorted(lookup("mechanism", name).target.trusts)[0]
        site = Site(
            setups=[
                Setup(trust, relation, unit, dimension, clients, seed, HORIZON, lambda: 1)
                for seed in seeds
            ],
            specs=[{spec.name: spec for spec in specs}] * len(seeds),
            streams=Streams(seeds),
            ledger=BatchLedger([Ledger()] * len(seeds)),
            sound=sound,
        )
        return lookup("mechanism", name).target(
            [settings(name, **one) for one in changes or [{}] * len(seeds)], site
        )

    return make


@pytest.fixture
def clipped() -> Callable[..., Bounded]:
    """clipped(values [R, M, d], clip norm or norms): bounded client values."""

    def make(values: Any, clip_norm: float | Sequence[float] = 1.0) -> Bounded:
        tensor = torch.as_tensor(values)
        norms = torch.as_tensor(
            np.broadcast_to(clip_norm, tensor.shape[:1]).copy(), dtype=torch.float64
        )
        return clip(client_values(tensor), norms)

    return make
