"""A small federation, the mechanisms at work on it, and local runs by explicit loops, for the tests
of algorithms.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dpfl_cli.algorithms.base import Round, State
from dpfl_cli.config.component import Settings, lookup, parse_settings
from dpfl_cli.data.federation import Dataset, Federation, Partition, Records
from dpfl_cli.data.streams import Streams
from dpfl_cli.data.synthetic import Synthetic, SyntheticSettings
from dpfl_cli.models.client_side import ClientSide
from dpfl_cli.models.linear import LinearRegression, LinearRegressionSettings
from dpfl_cli.models.objective import Objective
from dpfl_cli.privacy.client_values import shown
from dpfl_cli.privacy.gaussian import (
    CentralGaussian,
    GaussianSettings,
    LocalGaussian,
    NoNoise,
    SharedGaussian,
    SharedSettings,
)
from dpfl_cli.privacy.ledger import BatchLedger, Ledger
from dpfl_cli.privacy.mechanism import Mechanism, Site
from dpfl_cli.privacy.privunit import PrivUnit
from dpfl_cli.privacy.releases import Setup
from dpfl_cli.simulation.plan import load_components

load_components()
M, D = 12, 5
PRIVUNIT = {
    "epsilon_cap": 2.0,
    "epsilon_direction": 2.0,
    "epsilon_norm": 2.0,
    "epsilon": None,
    "gamma_rule": "paper",
    "split": "given",
}
MECHANISMS: dict[str, Any] = {
    "none": NoNoise,
    "local": LocalGaussian,
    "central": CentralGaussian,
    "secure_aggregation": SharedGaussian,
}
SETTINGS: dict[str, Any] = {
    "none": Settings,
    "local": GaussianSettings,
    "central": GaussianSettings,
    "secure_aggregation": SharedSettings,
}
DEFAULTS: dict[str, Any] = {
    "local_steps": 4,
    "local_lr": 0.01,
    "clip_norm": 0.3,
    "strong_convexity": 0.1,
}
FEDFC = {
    "server_lr": 0.5,
    "damping": 0.1,
    "feature_clip_norm": 1.5,
    "cov_norm": "mean",
    "psd_floor": "damping",
    "budget": "equal_sigma",
    "covariance_share": 0.1,
}
SCAFFNEW = {
    "local_steps": 2.0,
    "batch_size": None,
    "control": "sent",
    "schedule": "deterministic",
    "final_release": False,
    "watched_client": None,
}
STEPS = {
    "fedfc": FEDFC,
    "fedfc_record": FEDFC,
    "isrl_dp": {"step": 0.01},
    "primal_dual": {"step": 0.25},
    "scaffnew": SCAFFNEW,
}
HORIZON = 10_000  # rounds that a run is planned for


def federation_of(seed: int, clients: int = M, dimension: int = D) -> Federation:
    """SPEC 5.1's synthetic federation, one record a client."""
    dataset = Synthetic.load(SyntheticSettings(clients=clients, dimension=dimension), seed)
    return Federation(dataset, Partition.from_lists([np.array([i]) for i in range(clients)]))


def grouped_federation(seed: int, sizes: list[int], dimension: int = D) -> Federation:
    """The same kind of records, dealt to clients of several sizes."""
    dataset = Synthetic.load(SyntheticSettings(clients=sum(sizes), dimension=dimension), seed)
    bounds = np.cumsum([0, *sizes])
    return Federation(
        dataset, Partition.from_lists([np.arange(a, b) for a, b in itertools.pairwise(bounds)])
    )


def reordered(federation: Federation, order: np.ndarray) -> Federation:
    """The same clients under other numbers."""
    train = federation.dataset.train
    records = Records(train.features[order], train.targets[order])
    dataset = Dataset(federation.dataset.info, records, None, None, federation.dataset.truth)
    return Federation(dataset, federation.partition)


def hyper_of(settings: Any, runs: int) -> SimpleNamespace:
    """Settings stacked over runs: floats as tensors [R], an absent clip norm as infinity."""
    values = {name: getattr(settings, name) for name in type(settings).model_fields}
    for name in ("clip_norm", "feature_clip_norm"):
        if name in values and values[name] is None:
            values[name] = float("inf")
    stacked = {
        name: torch.full((runs,), value, dtype=torch.float64) if isinstance(value, float) else value
        for name, value in values.items()
    }
    return SimpleNamespace(**stacked)


def setup_of(trust: Any, **changes: Any) -> Setup:
    """Some run of 20 rounds, for declarations of releases."""
    facts = {"relation": "replace_one", "unit": "client", "dimension": 500, "clients": 1000}
    facts |= {"seed": 0, "rounds": 20, "fewest": lambda: 1000}
    return Setup(trust, **{**facts, **changes})


def linear_regression(federations: list[Federation], index: np.ndarray) -> Objective:
    return LinearRegression(LinearRegressionSettings(), federations, index)


@dataclass
class Play:
    """A method at work: its parts, and the states and diagnostics of the rounds played."""

    algorithm: Any
    objective: ClientSide
    mechanism: Mechanism
    streams: Streams
    states: list[State]
    diagnostics: list[Mapping[str, Tensor]]

    def go(self, rounds: int) -> Play:
        """Plays some more rounds, every run at the same round."""
        for _ in range(rounds):
            number = np.full(self.objective.runs, len(self.states))
            at = Round(self.objective, self.mechanism, self.mechanism.streams(), number)
            state, diagnostics = self.algorithm.round(self.states[-1], at)
            self.states.append(state)
            found = diagnostics() if callable(diagnostics) else diagnostics
            self.diagnostics.append({name: shown(value) for name, value in found.items()})
        return self

    def models(self) -> np.ndarray:
        """[T + 1, R, d]."""
        return torch.stack([state.server["model"] for state in self.states]).numpy()

    def ledger(self, run: int = 0) -> dict[str, Any]:
        return {entry.name: entry for entry in self.mechanism._site.ledger.of_run(run).entries}


def play(
    name: str,
    trust: str,
    settings: dict[str, Any],
    *,
    seeds: list[int] | None = None,
    federations: list[Federation] | None = None,
    noise: float = 0.35,
    relation: str = "replace_one",
    horizon: int = HORIZON,
    mechanism_options: dict[str, Any] | None = None,
    change: Callable[[Any], None] = lambda hyper: None,
    model: Callable[[list[Federation], np.ndarray], Objective] = linear_regression,
    sound: bool | None = None,
) -> Play:
    """A method before round 1. Run r has seeds[r] and federations[r] (by default that seed's);
    trust may be "privunit".
    """
    seeds = [0] if seeds is None else seeds
    known = {seed: federation_of(seed) for seed in seeds} if federations is None else {}
    federations = [known[seed] for seed in seeds] if federations is None else federations
    distinct = list({id(one): one for one in federations}.values())
    index = np.array([[one is item for item in distinct].index(True) for one in federations])
    objective = model(distinct, index)

    found = lookup("algorithm", name)
    defaults = {
        key: value
        for key, value in DEFAULTS.items()
        if key in found.settings.model_fields and key not in settings
    }
    parsed = parse_settings(found.settings, defaults | STEPS.get(name, {}) | settings, "algorithm")
    hyper = hyper_of(parsed, len(seeds))
    change(hyper)
    streams = Streams(seeds)
    fewest = max(int(objective.records.min()), 1)
    setups = [
        Setup(
            "local" if trust == "privunit" else trust,  # type: ignore[arg-type]
            relation,  # type: ignore[arg-type]
            found.target.unit,
            objective.dimension,
            objective.clients,
            seed,
            horizon,
            lambda: fewest,
        )
        for seed in seeds
    ]
    site = Site(
        setups=setups,
        specs=[{spec.name: spec for spec in found.target.releases(parsed, one)} for one in setups],
        streams=streams,
        ledger=BatchLedger([Ledger()] * len(seeds)),
        # as a plan: what is not proved runs as a claim
        sound=not _gaps(found.target, parsed, trust, mechanism_options or {})
        if sound is None
        else sound,
    )
    if trust == "privunit":
        one = parse_settings(lookup("mechanism", "privunit").settings, PRIVUNIT, "mechanism")
        mechanism: Mechanism = PrivUnit([one] * len(seeds), site)
    else:
        given = {} if trust == "none" else {"noise_multiplier": noise, **(mechanism_options or {})}
        one = SETTINGS[trust](**given)
        mechanism = MECHANISMS[trust]([one] * len(seeds), site)
    algorithm, view = found.target(hyper), ClientSide(objective, found.target.unit)
    return Play(algorithm, view, mechanism, streams, [algorithm.init(view, streams)], [])


def _gaps(target: Any, parsed: Any, trust: str, options: Mapping[str, Any]) -> list[str]:
    """Why this is not proved, so that a plan would not run it as sound."""
    whole = trust in ("local", "privunit") or not options.get("noise_share", True)
    return target.gaps(parsed, trust, whole) if hasattr(target, "gaps") else []


def local_update(
    federation: Federation,
    client: int,
    w: np.ndarray,
    lr: float,
    steps: int,
    drift: np.ndarray | float = 0.0,
) -> np.ndarray:
    """LOCAL(w, i) by its definition, for the loss (1/2) (x.w - y)^2 of the client's one record."""
    x, y = federation.dataset.train.features[client], federation.dataset.train.targets[client]
    v = w.copy()
    for _ in range(steps):
        v = v - lr * ((x @ v - y) * x + drift)
    return v - w


def clipped(v: np.ndarray, c: float) -> np.ndarray:
    norm = np.linalg.norm(v)
    return v if norm <= c else v * c / norm


def noise_of(seed: int, name: str, round_: int, clients: int | None, size: int = D) -> np.ndarray:
    """The standard normal draw that a run's mechanism makes in a round."""
    return Streams([seed]).normal(f"noise/{name}", np.array([round_]), clients, size)[0].numpy()


def received(
    trust: str,
    seed: int,
    name: str,
    values: np.ndarray,
    sensitivity: np.ndarray | float,
    z: float,
    address: int,
    echo: bool,
    whole: bool = False,
) -> tuple[np.ndarray, np.ndarray]:
    """What every client and the server have of values [M, k] after a release: own messages and
    their mean. Shares of the noise are `whole` where every message carries all of it.
    """
    if trust == "none":
        return values, values.mean(axis=0)
    clients, size = values.shape
    drawn = clients if trust == "local" or (trust == "secure_aggregation" and echo) else None
    each = np.broadcast_to(sensitivity, clients)
    std = each[:, None] if trust == "local" else each.max() / (1 if whole else np.sqrt(clients))
    noise = z * std * noise_of(seed, name, address, drawn, size)
    if drawn is None:  # as the mean of so many messages has it
        return values, values.mean(axis=0) + noise / np.sqrt(clients)
    return values + noise, (values + noise).mean(axis=0)
