"""Record-level DP-FedAvg, DP-SCAFFOLD and ISRL-DP against their lines, written as loops over
clients and records.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import test_fednew
from federated import D, clipped, grouped_federation, play, received

from dpfl_cli.config.compose import compose_config
from dpfl_cli.config.errors import ConfigError
from dpfl_cli.data.federation import Federation
from dpfl_cli.privacy.client_values import opened
from dpfl_cli.simulation.member import Member
from dpfl_cli.simulation.plan import make_plan
from dpfl_cli.simulation.stack import Stack
from tests.padding import own_records

C, LR, STEPS, Z = 0.3, 0.01, 3, 0.35
SIZES = [4, 1, 7, 2]
M = len(SIZES)
SENSITIVITY = 2 * C / np.array(SIZES)
TRUSTS = ["none", "local", "central", "secure_aggregation"]
METHODS = ["fedavg_record", "scaffold_record"]


def clipped_mean(federation: Federation, client: int, v: np.ndarray, c: float = C) -> np.ndarray:
    """(1 / m_i) sum_j CLIP(grad l_ij(v), C) for the loss (1/2) (x.v - y)^2, record by record."""
    features, targets = own_records(federation, client)
    each = zip(features, targets, strict=True)
    return sum(clipped((x @ v - y) * x, c) for x, y in each) / len(targets)


@pytest.mark.parametrize("trust", TRUSTS)
@pytest.mark.parametrize(
    ("name", "options"),
    [
        *((name, {"server_lr": eta}) for name in METHODS for eta in (1.0, 0.5)),
        *(
            (METHODS[1], {"warm_start": True, "warm_idle_rounds": idle, "extra_inv_n": inverse})
            for idle, inverse in ((2, False), (0, True), (2, True))
        ),
    ],
)
def test_equals_its_lines(name: str, options: dict[str, Any], trust: str) -> None:
    seeds, rounds, steps = [3, 4], 4, 1 if trust == "central" else STEPS
    federations = [grouped_federation(seed, SIZES) for seed in seeds]
    settings = {"local_steps": steps, "server_lr": 0.5, **options}
    played = play(name, trust, settings, seeds=seeds, federations=federations, noise=Z).go(rounds)
    idle, warm = options.get("warm_idle_rounds", 0), "warm_start" in options
    eta = settings["server_lr"] / (M if options.get("extra_inv_n") else 1)
    for run in range(len(seeds)):
        w, c, own_c = np.zeros(D), np.zeros(D), np.zeros((M, D))

        def released(v: np.ndarray, t: int, what: str = "gradient", run: int = run) -> Any:
            gradients = np.array([clipped_mean(federations[run], i, v[i]) for i in range(M)])
            return received(trust, seeds[run], what, gradients, SENSITIVITY, Z, t, echo=True)

        if warm:
            own_c, c = released(np.tile(w, (M, 1)), 1, "warm_start")
        for t in range(1, rounds + 1):
            v, means = np.tile(w, (M, 1)), []
            for k in range(steps):
                own, mean = released(v, t * steps + k)
                v = v - LR * (own + (c - own_c if name == "scaffold_record" else 0))
                means.append(mean)
            own_c = own_c - c + (w - v) / (steps * LR)
            c = np.mean(means, axis=0)
            w = w - (t > idle) * eta * LR * np.sum(means, axis=0)
            state = played.states[t]
            np.testing.assert_allclose(state.server["model"][run], w, rtol=1e-9, atol=1e-12)
            if name == "scaffold_record":
                np.testing.assert_allclose(state.server["control"][run], c, rtol=1e-8, atol=1e-10)
                np.testing.assert_allclose(
                    opened(state.clients["control"])[run], own_c, rtol=1e-8, atol=1e-10
                )
    ledger = played.ledger()
    counts = {"warm_start": 1} if warm else {}
    assert {one: entry.count for one, entry in ledger.items()} == counts | {
        "gradient": rounds * steps
    }
    assert {entry.unit for entry in ledger.values()} == {"record"}


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("warm", [False, True])
def test_gradient_descent_is_pooled_where_clients_hold_equally_many_records(
    name: str, warm: bool
) -> None:
    federation, eta = grouped_federation(3, [3, 3, 3, 3]), 0.7
    options = {"warm_start": warm} if name == "scaffold_record" else {}
    settings = {"local_steps": 1, "local_lr": 1.0, "server_lr": eta, **options}
    models = play(name, "none", settings, federations=[federation]).go(5).models()[:, 0]
    train, w = federation.dataset.train, np.zeros(D)
    for t in range(1, 6):
        pooled = [
            clipped((x @ w - y) * x, C) for x, y in zip(train.features, train.targets, strict=True)
        ]
        w = w - eta * np.mean(pooled, axis=0)
        np.testing.assert_allclose(models[t], w, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    ("preset", "component", "dp"),
    [("fedgd", "fedavg", "cdp"), ("fedgd_record", "fedavg_record", "record")],
)
def test_fedgd_is_what_it_presets(preset: str, component: str, dp: str) -> None:
    words = [
        f"dp={dp}",
        "dataset.clients=12",
        "dataset.dimension=5",
        "dataset.records_per_client=3",
    ]
    ours = make_plan(compose_config([*words, f"algorithm={preset}"]))
    written = [f"algorithm={component}", "algorithm.local_steps=1", "algorithm.local_lr=1.0"]
    assert ours.id == make_plan(compose_config([*words, *written])).id
    assert (ours.algorithm.settings.local_steps, ours.algorithm.settings.local_lr) == (1, 1.0)


def test_more_local_steps_under_a_trusted_server_are_refused() -> None:
    for name in METHODS:
        with pytest.raises(ConfigError, match=r"algorithm\.local_steps=2 under dp\.trust=central"):
            play(name, "central", {"local_steps": 2})


@pytest.mark.parametrize("name", [*METHODS, "isrl_dp"])
def test_steps_are_down_the_regulariser_too(name: str) -> None:
    (federation,), rate = test_fednew.toys([2]), 0.1
    own = {"step": rate} if name == "isrl_dp" else {"local_steps": 1, "local_lr": rate}
    settings, model = {"clip_norm": None, **own}, test_fednew.softmax
    found = play(name, "none", settings, federations=[federation], model=model).go(2).models()
    for before, after in itertools.pairwise(found[:, 0]):
        slopes = [test_fednew.mean_gradient(federation, i, before) for i in range(test_fednew.M)]
        slope = np.mean(slopes, axis=0) + test_fednew.L2 * before
        np.testing.assert_allclose(after, before - rate * slope, rtol=1e-9, atol=1e-12)


def test_a_client_without_records_would_only_add_noise() -> None:
    words = ["dataset=synthetic_alpha_beta", "dataset.clients=6", "dataset.dimension=5"]
    words += ["partitioner=dirichlet", "partitioner.kind=classwise", "partitioner.alpha=0.01"]
    words += ["partitioner.clients=20", "partitioner.records_per_client=null"]
    words += ["algorithm=fedavg_record", "dp=record", "model=softmax"]
    with pytest.raises(ConfigError, match="leaves a client without records"):
        Stack([Member(make_plan(compose_config(words)))])


@pytest.mark.parametrize("trust", TRUSTS)
@pytest.mark.parametrize("average", ["none", "uniform", "linear"])
@pytest.mark.parametrize("radius", [None, 0.02])
def test_isrl_equals_its_lines(trust: str, average: str, radius: float | None) -> None:
    federation, rounds = grouped_federation(3, SIZES), 5
    played = play(
        "isrl_dp",
        trust,
        {"average": average, "radius": radius},
        seeds=[3],
        federations=[federation],
        noise=Z,
    )
    played.go(rounds)
    x, iterates = np.zeros(D), []
    for t in range(1, rounds + 1):
        gradients = np.array([clipped_mean(federation, i, x) for i in range(M)])
        x = x - LR * received(trust, 3, "gradient", gradients, SENSITIVITY, Z, t, echo=False)[1]
        x = x if radius is None else x * min(1.0, radius / np.linalg.norm(x))
        iterates.append(x)
        weights = {
            "none": [0] * (t - 1) + [1],
            "uniform": [1] * t,
            "linear": list(range(1, t + 1)),
        }[average]
        expected = np.average(iterates, axis=0, weights=weights)
        np.testing.assert_allclose(
            played.states[t].server["model"][0], expected, rtol=1e-9, atol=1e-12
        )


def test_the_original_noise_is_its_formula_and_is_priced_as_what_it_is() -> None:
    settings = {"noise": "original", "original_epsilon": 2.0, "original_delta": 1e-4}
    played = play(
        "isrl_dp", "local", settings, federations=[grouped_federation(0, SIZES)], horizon=3000
    ).go(2)
    sigma = np.sqrt(
        256 * C**2 * 3000 * np.log(2.5 * 3000 / 1e-4) * np.log(2 / 1e-4) / (4**2 * 2.0**2)
    )  # m = 4
    z = played.ledger()["gradient"].parameter
    assert z == pytest.approx(sigma / (2 * C / 4))
    ours = np.sqrt(3000 / (2 * 0.0257628))  # what zCDP asks for at epsilon 1
    assert 300 < (2 * z / ours) ** 2 < 1000  # some 600 times the variance
    with pytest.raises(ConfigError, match=r"algorithm\.original_epsilon"):
        play("isrl_dp", "local", {"noise": "original"})
