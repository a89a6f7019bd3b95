"""Non-interference: given the releases, a client's data reach its own contributions and its own
state, and nothing else.

Two plays differ in the data of one client of one run. The second is handed the first one's
releases. Whatever then differs has got there round the mechanism, so the server's state and
everything of the other clients and runs must be equal bit by bit.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from federated import Federation, Play, federation_of, play, reordered
from torch import Tensor

from dpfl_cli.algorithms.base import Round, State
from dpfl_cli.algorithms.fedavg import FedAvg
from dpfl_cli.config.component import components
from dpfl_cli.privacy.client_values import opened, versions

CLIENT, SEEDS, ROUNDS = 4, [3, 4], 3  # the client of run 0 whose data change
METHODS: list[tuple[str, dict[str, Any]]] = [
    ("fedavg", {}),
    ("fedexp", {}),
    ("fedexp", {"step": "naive"}),
    *(
        ("scaffold", {"control": c, "release": r})
        for c in ("sent", "clipped", "raw")
        for r in ("single", "double")
    ),
    ("fedavg_record", {}),
    ("fedavg_record", {"local_steps": 1}),
    ("scaffold_record", {}),
    ("scaffold_record", {"local_steps": 1}),
    *(
        (name, {"batch_size": 1, "sampling": "epoch_permutation"})
        for name in ("fedavg_record", "scaffold_record")
    ),
    ("adaptdp", {"clip_norm": 100.0}),
    (
        "adaptdp",
        {
            "clip_norm": 100.0,
            "batch_size": 1,
            "radius_batch_size": 1,
            "projection_radius": 0.1,
            "local_steps": 1,
        },
    ),
    ("scaffold", {"control": "clipped", "warm_start": True}),
    ("fedavg", {"batch_size": 1}),
    ("scaffold", {"batch_size": 1}),
    *(("scaffnew", {"control": control}) for control in ("sent", "clipped", "none")),
    ("scaffnew", {"local_steps": 1.5, "schedule": "bernoulli", "final_release": True}),
    ("scaffnew", {"local_steps": 1.0, "batch_size": 1, "watched_client": 4}),
    (
        "scaffold_record",
        {"local_steps": 1, "warm_start": True, "warm_idle_rounds": 1, "extra_inv_n": True},
    ),
    ("fedfc", {}),
    ("fedfc", {"cov_norm": "paper", "budget": "fraction"}),
    ("fedfc_record", {}),
    ("fedfc_record", {"cov_norm": "paper", "psd_floor": "none", "budget": "fraction"}),
    *(
        ("fednew", {"dual": dual, "inner": inner})
        for dual in ("off", "own_update", "paper")
        for inner in (1, 2)
    ),
    *(("fednew_record", {"dual": dual}) for dual in ("off", "paper")),
    (
        "fednew_record",
        {"bound_aux": "xi", "sensitivity": "xi_safe", "side_clip_norm": 2.0, "spectrum": True},
    ),
    ("isrl_dp", {"average": "linear", "radius": 1.0}),
    ("primal_dual", {}),
    ("primal_dual", {"schedule": "static", "report": "messages"}),
]


def makes_sense(name: str, settings: dict[str, Any], trust: str) -> bool:
    method = components("algorithm")[name].target
    record = "record" in method.units
    if trust == "privunit":
        return (
            "local" in method.trusts and not record and name != "fedfc"
        )  # which releases a matrix
    stepping = "local_steps" in components("algorithm")[name].settings.model_fields
    if record and trust == "central" and stepping and settings.get("local_steps", 4) > 1:
        return False
    return trust in method.trusts and (settings.get("step") != "naive" or trust == "local")


PLAYS = [
    pytest.param(name, settings, trust, id="-".join([name, *map(str, settings.values()), trust]))
    for name, settings in METHODS
    for trust in ("none", "local", "central", "secure_aggregation", "privunit")
    if makes_sense(name, settings, trust)
]


class Replay:
    """A mechanism that keeps what it is given, and hands out the releases of another one where it
    has them.
    """

    def __init__(self, mechanism: Any, releases: list[Any] | None = None) -> None:
        self.mechanism = mechanism
        self.given: list[Tensor] = []
        self.releases: list[Any] = []
        self._other = releases

    def release(
        self, name: str, values: Any, rounds: np.ndarray, charged: np.ndarray | None = None
    ) -> Any:
        self.given.append(opened(values.values).clone())
        release = self.mechanism.release(name, values, rounds, charged)
        if (
            self._other is not None
        ):  # a client's echo is its own; what the receiver sees is replayed
            other = self._other[len(self.releases)]
            release = replace(release, received=other.received, mean=other.mean)
        self.releases.append(release)
        return release

    def __getattr__(self, name: str) -> Any:
        return getattr(self.mechanism, name)


def changed(federation: Federation, scale: float) -> Federation:
    """The same federation with other data for one client."""
    other = reordered(federation, np.arange(federation.clients))
    records, generator = other.dataset.train, np.random.default_rng(1)
    records.features[CLIENT] = scale * generator.standard_normal(records.features.shape[1])
    records.targets[CLIENT] = scale
    return other


def influences(before: Play, after: Play) -> set[str]:
    """What the change of a client's data changed, given the releases, apart from what is that
    client's own.
    """
    first = before.mechanism = Replay(before.mechanism)  # type: ignore[assignment]
    before.go(ROUNDS)
    second = after.mechanism = Replay(after.mechanism, first.releases)  # type: ignore[assignment]
    after.go(ROUNDS)
    found = set()
    for one, other in zip(before.states, after.states, strict=True):
        for name in one.server:
            if not same(one.server[name], other.server[name]):
                found.add(f"server/{name}")
        for name in one.clients:
            if not same(apart(one.clients[name]), apart(other.clients[name])):
                found.add(f"clients/{name}")
    for one, other in zip(first.given, second.given, strict=True):
        if not same(apart(one), apart(other)):
            found.add("contribution")
    assert not same(first.given[0][0, CLIENT], second.given[0][0, CLIENT])  # the change was one
    return found


def apart(values: Tensor) -> Tensor:
    """Client values without those of the changed client of the changed run."""
    kept = opened(values).clone()
    kept[0, CLIENT] = 0
    return kept


def same(one: Tensor, other: Tensor) -> bool:
    return torch.equal(
        torch.nan_to_num(opened(one), nan=1e300), torch.nan_to_num(opened(other), nan=1e300)
    )


@pytest.mark.parametrize("scale", [10.0, 1e200], ids=["other data", "data that diverge"])
@pytest.mark.parametrize(("name", "settings", "trust"), PLAYS)
def test_a_clients_data_reach_others_by_releases_only(
    name: str, settings: dict[str, Any], trust: str, scale: float
) -> None:
    federations = [federation_of(seed) for seed in SEEDS]
    before = play(name, trust, settings, seeds=SEEDS, federations=federations)
    after = play(
        name,
        trust,
        settings,
        seeds=SEEDS,
        federations=[changed(federations[0], scale), federations[1]],
    )
    assert influences(before, after) == set()


def test_every_algorithm_of_the_package_is_among_them() -> None:
    ours = {
        name
        for name, one in components("algorithm").items()
        if one.target.__module__.startswith("dpfl_cli.")
    }
    assert {name for name, _ in METHODS} == ours


class Leaky(FedAvg):
    """Goes round the mechanism in the way that `how` says."""

    how = ""

    def init(self, objective: Any, streams: Any) -> State:
        state = super().init(objective, streams)
        own = state.server["model"].new_zeros(
            objective.runs, objective.clients, objective.dimension
        )
        return State(state.server, {"own": own})

    def round(self, state: State, at: Round) -> Any:
        raw = opened(at.objective.local_descent(state.server["model"], self.hyper.local_lr, 1))
        after, diagnostics = super().round(state, at)
        if self.how == "server":
            return State(
                {"model": after.server["model"] + raw.mean(dim=1)}, state.clients
            ), diagnostics
        axis = {"clients": 1, "runs": 0}[self.how]
        return State(after.server, {"own": raw.roll(1, axis)}), diagnostics


@pytest.mark.parametrize(
    ("how", "found"),
    [("server", "server/model"), ("clients", "clients/own"), ("runs", "clients/own")],
)
def test_a_leak_is_seen(how: str, found: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Leaky, "how", how)
    federations = [federation_of(seed) for seed in SEEDS]
    plays = []
    for chosen in (federations, [changed(federations[0], 10.0), federations[1]]):
        played = play("fedavg", "central", {}, seeds=SEEDS, federations=chosen)
        played.algorithm = Leaky(played.algorithm.hyper)
        played.states = [played.algorithm.init(played.objective, played.streams)]
        plays.append(played)
    assert found in influences(*plays)


@pytest.mark.parametrize(("name", "settings", "trust"), PLAYS)
def test_a_round_changes_nothing_in_place(name: str, settings: dict[str, Any], trust: str) -> None:
    played = play(name, trust, settings, seeds=SEEDS).go(1)
    state = played.states[-1]
    held = [*state.server.values(), *state.clients.values()]
    before, copies = versions(held), [opened(one).clone() for one in held]
    played.go(1)
    assert versions(held) == before
    assert all(torch.equal(opened(one), copy) for one, copy in zip(held, copies, strict=True))


def test_a_change_in_place_is_counted() -> None:
    played = play("scaffold", "local", {}).go(1)
    state = played.states[-1]
    for one in (state.server["model"], state.clients["control"]):
        before = versions([one])
        one.add_(1.0)
        assert versions([one]) != before
