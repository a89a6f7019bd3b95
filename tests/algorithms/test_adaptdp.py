"""AdaptDP, and local steps on batches, against their lines, written as loops over clients and
records.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from federated import (
    D,
    Play,
    clipped,
    grouped_federation,
    linear_regression,
    play,
    received,
)

from dpfl_cli.config.compose import compose_config
from dpfl_cli.config.errors import ConfigError, PrivacyError
from dpfl_cli.data.federation import Federation, Partition
from dpfl_cli.data.streams import Streams
from dpfl_cli.data.synthetic import Quadratic, QuadraticSettings
from dpfl_cli.models.client_side import ClientSide
from dpfl_cli.privacy.client_values import opened
from dpfl_cli.privacy.diagnostics import record_diagnostics
from dpfl_cli.simulation.plan import make_plan
from tests.padding import own_records

G, LR, Z = 0.8, 0.05, 0.35
SIZES = [6, 9, 5, 7]
M = len(SIZES)
T = 40  # rounds that the plays are planned for
TRUSTS = ["none", "local", "central", "secure_aggregation"]
PAPER = {
    "batch_size": 3,
    "radius_batch_size": 4,
    "sensitivity": "paper",
    "radius_noise_multiplier": 0.2,
}


def records_of(federation: Federation, client: int) -> list[tuple[np.ndarray, float]]:
    return list(zip(*own_records(federation, client), strict=True))


def gradients(federation: Federation, client: int, v: np.ndarray, numbers: Any) -> list[np.ndarray]:
    """Of (1/2) (x.v - y)^2, record by record."""
    held = records_of(federation, client)
    return [(x @ v - y) * x for x, y in (held[j] for j in numbers)]


def batch_of(seed: int, settings: dict[str, Any], t: int, k: int, client: int) -> Any:
    """The numbers of a client's records in the batch of step k of round t, from the draws of the
    run's streams.
    """
    size, steps, sampling = (
        settings.get("batch_size"),
        settings["local_steps"],
        settings.get("sampling", "without_replacement"),
    )
    if size is None:
        return range(SIZES[client])
    streams = Streams([seed])
    if sampling == "without_replacement":
        return streams.subset("batch", np.array([t * steps + k]), M, np.array(SIZES), size)[
            0, client
        ].tolist()
    if sampling == "with_replacement":
        draws = streams.uniform("batch", np.array([t * steps + k]), M, size)[0, client].numpy()
        return [int(u * SIZES[client]) for u in draws]
    epoch = min(SIZES) // size
    draws = streams.uniform("batch", np.array([t * steps + k // epoch]), M, max(SIZES))[
        0, client, : SIZES[client]
    ].numpy()
    start = k % epoch * size
    return np.argsort(draws)[start : start + size].tolist()


def step_gradient(
    federation: Federation, client: int, v: np.ndarray, c: float, numbers: Any, how: str
) -> np.ndarray:
    found = gradients(federation, client, v, numbers)
    if how == "batch_mean":
        return clipped(np.mean(found, axis=0), c)
    return np.mean([clipped(one, c) for one in found], axis=0)


def radius_of(
    federation: Federation, trust: str, seed: int, settings: dict[str, Any], x: np.ndarray, t: int
) -> float:
    """C_r as the paper's listing has it."""
    size = settings.get("radius_batch_size")
    if size is None:
        batches = [range(count) for count in SIZES]
    else:
        batches = (
            Streams([seed])
            .subset("radius batch", np.array([t]), M, np.array(SIZES), size)[0]
            .tolist()
        )
    means = [
        np.mean([min(g @ g, G**2) for g in gradients(federation, i, x, batches[i])])
        for i in range(M)
    ]
    factor = 2.0 if settings.get("sensitivity") == "paper" else 1.0
    sensitivity = factor * G**2 / np.array([len(batch) for batch in batches], float)
    z = settings.get("radius_noise_multiplier")
    if (
        z is None
        # as dear as all gradients at order 2, of which there are K a round; without batches the
        # curves
        # are a / (2 z^2)
    ):
        z = Z / np.sqrt(settings["local_steps"])
    contributions = np.array(means)[:, None]
    _, seen = received(trust, seed, "radius", contributions, sensitivity, z, t, echo=False)
    mean = float(seen[0])
    variance = {  # of the mean's noise
        "none": 0.0,
        "local": np.mean((z * sensitivity) ** 2) / M,
        "central": (z * sensitivity.max() / M) ** 2,
        "secure_aggregation": (z * sensitivity.max() / M) ** 2,
    }[trust]
    offset = np.sqrt(2 * variance) * np.sqrt(
        np.log(2 * M * T / settings.get("offset_failure", 0.01))
    )
    if settings.get("offset") == "none":
        offset = 0.0
    level = 2 * settings.get("radius_multiplier", 1.0) * (mean + offset)
    return min(max(np.sqrt(max(level, 0.0)), settings.get("radius_floor", 1e-9)), G)


def lines(
    name: str, trust: str, federation: Federation, seed: int, settings: dict[str, Any], rounds: int
):
    """Models x_1 ... and radii C_1 ... of the method, line by line."""
    steps, x, models, radii = settings["local_steps"], np.zeros(D), [], []
    own_c, control = np.zeros((M, D)), np.zeros(D)
    for t in range(1, rounds + 1):
        c = radius_of(federation, trust, seed, settings, x, t) if name == "adaptdp" else G
        v, means = np.tile(x, (M, 1)), []
        for k in range(steps):
            batches = [batch_of(seed, settings, t, k, i) for i in range(M)]
            how = settings.get("clipping", "record")
            values = np.array(
                [step_gradient(federation, i, v[i], c, batches[i], how) for i in range(M)]
            )
            sensitivity = 2 * c / np.array([len(batch) for batch in batches], float)
            own, mean = received(
                trust, seed, "gradient", values, sensitivity, Z, t * steps + k, echo=True
            )
            v = v - LR * (own + (control - own_c if name == "scaffold_record" else 0))
            means.append(mean)
        own_c = own_c - control + (x - v) / (steps * LR)
        control = np.mean(means, axis=0)
        x = x - LR * np.sum(means, axis=0)
        bound = settings.get("projection_radius")
        if bound is not None:
            x = clipped(x, bound)
        models.append(x)
        radii.append(c)
    return np.array(models), np.array(radii)


def compare(name: str, trust: str, options: dict[str, Any], sound: bool | None = None) -> Play:
    seeds, rounds = [3, 4], 4
    settings = {
        "local_steps": 1 if trust == "central" else 3,
        "local_lr": LR,
        "clip_norm": G,
        **options,
    }
    federations = [grouped_federation(seed, SIZES) for seed in seeds]
    played = play(
        name, trust, settings, seeds=seeds, federations=federations, noise=Z, horizon=T, sound=sound
    ).go(rounds)
    for run, seed in enumerate(seeds):
        models, radii = lines(name, trust, federations[run], seed, settings, rounds)
        np.testing.assert_allclose(played.models()[1:, run], models, rtol=1e-9, atol=1e-12)
        if name == "adaptdp":
            seen = np.array([float(one["radius"][run]) for one in played.diagnostics])
            np.testing.assert_allclose(seen, radii, rtol=1e-9)
    return played


@pytest.mark.parametrize("trust", TRUSTS)
@pytest.mark.parametrize(
    "options",
    [
        {},
        PAPER,
        {
            **PAPER,
            "sensitivity": "tight",
            "offset": "none",
            "radius_multiplier": 0.02,
            "radius_floor": 0.03,
        },
        {
            **PAPER,
            "radius_batch_size": None,
            "offset_failure": 0.3,
            "projection_radius": 0.05,
            "radius_multiplier": 0.1,
        },
        {**PAPER, "sampling": "epoch_permutation", "batch_size": 2, "local_steps": 2},
    ],
    ids=["whole", "paper", "tight", "projected", "permuted"],
)
def test_equals_its_lines(trust: str, options: dict[str, Any]) -> None:
    if trust == "central" and "local_steps" in options:
        options = {**options, "local_steps": 1}
    compare("adaptdp", trust, options)


@pytest.mark.parametrize("trust", ["none", "local", "secure_aggregation"])
@pytest.mark.parametrize(
    "sampling", ["without_replacement", "epoch_permutation", "with_replacement"]
)
@pytest.mark.parametrize("name", ["fedavg_record", "scaffold_record", "adaptdp"])
def test_steps_on_batches_equal_their_lines(name: str, trust: str, sampling: str) -> None:
    options = {"batch_size": 2, "sampling": sampling, "local_steps": 4}  # of 2 steps an epoch
    options |= {"radius_noise_multiplier": 0.2} if name == "adaptdp" else {}
    if sampling == "with_replacement" and trust != "none":
        with pytest.raises(PrivacyError, match=r"several times.*dp\.mode=paper"):
            compare(name, trust, options, sound=True)
    compare(name, trust, options, sound=False)


@pytest.mark.parametrize(
    "options",
    [
        {"batch_size": 2, "sampling": "epoch_permutation", "local_steps": 2},
        {"batch_size": 2, "radius_batch_size": None},
    ],
    ids=["epochs", "radius of all records"],
)
def test_a_run_is_the_same_bit_by_bit_whoever_is_stacked_with_it(options: dict[str, Any]) -> None:
    """Also where the largest clients are of other sizes."""
    options = {**PAPER, **options}
    known = [grouped_federation(3, SIZES), grouped_federation(4, [5, 6, 31, 8])]
    together = play("adaptdp", "local", options, seeds=[3, 4], federations=known, sound=False)
    models = together.go(6).models()
    for run, one in enumerate(known):
        alone = play("adaptdp", "local", options, seeds=[3 + run], federations=[one], sound=False)
        assert np.array_equal(alone.go(6).models()[:, 0], models[:, run])


@pytest.mark.parametrize("name", ["fedavg_record", "adaptdp"])
def test_the_clipped_mean_is_refused_as_a_bound(name: str) -> None:
    options = {"batch_size": 2, "clipping": "batch_mean"} | (
        {"radius_noise_multiplier": 0.2} if name == "adaptdp" else {}
    )
    with pytest.raises(PrivacyError, match="claimed, not proved"):
        compare(name, "local", options, sound=True)
    compare(name, "local", options, sound=False)


def quadratic(seed: int = 0, clients: int = 2, records: int = 40, dimension: int = D) -> Federation:
    dataset = Quadratic.load(
        QuadraticSettings(dimension=dimension, clients=clients, records_per_client=records), seed
    )
    bounds = np.arange(0, clients * records + 1, records)
    return Federation(dataset, Partition.from_lists([np.arange(a, b) for a, b in pairwise(bounds)]))


def losses(played: Play, federation: Federation) -> np.ndarray:
    """[T + 1] mean of half squares over all records."""
    train = federation.dataset.train
    return np.array(
        [
            0.5 * np.mean((train.features @ model - train.targets) ** 2)
            for model in played.models()[:, 0]
        ]
    )


@pytest.mark.parametrize("trust", ["none", "local"])
def test_a_huge_multiplier_is_fedavg_at_the_cap(trust: str) -> None:
    settings = {"local_steps": 3, "local_lr": LR, "clip_norm": 0.3, "batch_size": 3}
    federations = [grouped_federation(5, SIZES)]
    fixed = play("fedavg_record", trust, settings, seeds=[5], federations=federations).go(5)
    options = settings | PAPER | {"radius_multiplier": 1e30}
    huge = play("adaptdp", trust, options, seeds=[5], federations=federations).go(5)
    np.testing.assert_allclose(huge.models(), fixed.models(), rtol=1e-12, atol=1e-15)


def test_without_noise_and_offset_the_radius_and_the_loss_vanish() -> None:
    federation = quadratic()
    settings = {
        "local_steps": 10,
        "local_lr": 0.1,
        "clip_norm": 1.0,
        "batch_size": 10,
        "radius_batch_size": 10,
    }
    played = play("adaptdp", "none", settings, federations=[federation]).go(60)
    radii = [float(one["radius"]) for one in played.diagnostics]
    assert radii[0] == 1.0
    assert radii[-1] < 1e-6
    assert losses(played, federation)[0] > 1e-3
    assert losses(played, federation)[-1] < 1e-13
    assert min(radii) >= 1e-9


def test_started_at_the_solution_it_stays_there() -> None:
    federation = quadratic(3)
    played = play("adaptdp", "none", {"clip_norm": 1.0, "batch_size": 5}, federations=[federation])
    optimum = torch.from_numpy(federation.dataset.truth["optimum"]).unsqueeze(0)
    played.states[0] = replace(played.states[0], server={"model": optimum})
    played.go(4)
    np.testing.assert_allclose(
        played.models(), np.broadcast_to(optimum.numpy(), played.models().shape), atol=1e-9
    )


def test_the_share_of_clipped_records_is_counted_over_all_clients() -> None:
    federation, size = quadratic(4), 10
    settings = {
        "clip_norm": 2.0,
        "radius_batch_size": size,
        "radius_multiplier": 0.5,
        "local_steps": 1,
        "batch_size": 4,
    }
    played = play("adaptdp", "none", settings, federations=[federation]).go(3)
    assert {str(type(one["clipped_fraction"]).__name__) for one in played.diagnostics} == {"Tensor"}
    for t in (1, 2, 3):
        x, c = played.models()[t - 1, 0], float(played.diagnostics[t - 1]["radius"])
        batches = (
            Streams([0])
            .subset("radius batch", np.array([t]), 2, np.array([40, 40]), size)[0]
            .tolist()
        )
        longer = [
            np.linalg.norm(g) > c for i in range(2) for g in gradients(federation, i, x, batches[i])
        ]
        assert float(played.diagnostics[t - 1]["clipped_fraction"]) == pytest.approx(
            np.mean(longer)
        )
    whole = linear_regression([grouped_federation(0, SIZES)], np.array([0]))
    zeros = torch.zeros(1, M, D, dtype=torch.float64)
    _, norms = ClientSide(whole).squared_norms_mean(zeros, torch.ones(1))
    everybody = record_diagnostics(norms, torch.tensor([1e-12]), whole.records)["clipped_fraction"]
    assert float(opened(everybody)) == 1.0  # what pads shorter clients does not count


def words(*more: str, method: str = "adaptdp") -> list[str]:
    batches = [
        "algorithm.batch_size=100",
        *(["algorithm.radius_batch_size=50"] if method == "adaptdp" else []),
    ]
    return [
        "dataset=quadratic",
        "dataset.dimension=2",
        "dp=record",
        "rounds=30",
        f"algorithm={method}",
        *batches,
        *more,
    ]


def test_the_planned_ledger() -> None:
    plan = make_plan(compose_config(words("accountant=wang_rdp")))
    entries = {entry.name: entry for entry in plan.ledger().entries}
    assert {
        name: (e.shape, e.count, e.rate, e.disjoint, e.scope) for name, e in entries.items()
    } == {
        "radius": ("scalar", 30, 50 / 1500, 1, "client"),
        "gradient": ("vector", 600, 100 / 1500, 1, "client"),
    }
    permuted = make_plan(
        compose_config(words("algorithm.sampling=epoch_permutation", "algorithm.local_steps=30"))
    )
    steps = {entry.name: entry for entry in permuted.ledger().entries}["gradient"]
    assert (steps.count, steps.rate, steps.disjoint, steps.charges) == (
        900,
        None,
        15,
        60,
    )  # two epochs a round
    whole = make_plan(compose_config(words("algorithm.batch_size=1500", "accountant=wang_rdp")))
    assert {entry.name: entry.rate for entry in whole.ledger().entries} == {
        "radius": 50 / 1500,
        "gradient": None,
    }


@pytest.mark.parametrize("paper", [[], ["accountant.order=paper"]])
@pytest.mark.parametrize("method", ["adaptdp", "fedavg_record"])
def test_epsilon_grows_with_rounds(method: str, paper: list[str]) -> None:
    options = ["accountant=wang_rdp", "mechanism.noise_multiplier=2", *paper]
    plan = make_plan(compose_config(words(*options, method=method)))
    prices = [
        plan.accountant_object().epsilon(plan.ledger(rounds), 1e-4) for rounds in (1, 5, 10, 20, 30)
    ]
    if paper:  # the paper's order changes in steps, and between them epsilon may stay
        assert all(one <= other for one, other in pairwise(prices))
        assert prices[0] < prices[-1]
    else:
        assert all(one < other for one, other in pairwise(prices))
    with_radius, alone = (
        make_plan(compose_config(words(*options, method=name)))
        for name in ("adaptdp", "fedavg_record")
    )
    price = with_radius.accountant_object().epsilon
    assert price(with_radius.ledger(), 1e-4) >= price(alone.ledger(), 1e-4) * (
        1 if paper else 1 + 1e-9
    )


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (
            ["algorithm.batch_size=1501"],
            r"algorithm\.batch_size=1501: a client holds only 1500 records",
        ),
        (
            ["algorithm.radius_batch_size=1501"],
            r"algorithm\.radius_batch_size=1501: a client holds only 1500 records",
        ),
        (
            ["algorithm.sampling=epoch_permutation"],
            r"algorithm\.local_steps=20 with sampling=epoch_permutation: an epoch has 15",
        ),
        (
            ["algorithm.sampling=with_replacement"],
            r"several times, so that no sensitivity is proved\): dp\.mode=sound",
        ),
        (
            ["algorithm.clipping=batch_mean"],
            r"can move the clipped mean by 2C, not 2C / m\): dp\.mode=sound",
        ),
        (["dp.relation=zero_out", "accountant=wang_rdp"], "use dp.relation=replace_one"),
        (
            ["dp.epsilon=1", "accountant=wang_rdp", "accountant.order=paper"],
            "no noise reaches epsilon 1",
        ),
        (["algorithm.radius_noise_multiplier=0"], r"algorithm\.radius_noise_multiplier"),
    ],
)
def test_what_makes_no_sense_is_one_line(options: list[str], says: str) -> None:
    with pytest.raises((ConfigError, PrivacyError), match=says) as refusal:
        make_plan(compose_config(words(*options)))
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    "option", ["algorithm.sampling=with_replacement", "algorithm.clipping=batch_mean"]
)
def test_what_is_not_proved_runs_as_the_papers_and_without_amplification(option: str) -> None:
    plan = make_plan(compose_config(words(option, "dp.mode=paper", "accountant=wang_rdp")))
    steps = {entry.name: entry for entry in plan.ledger().entries}["gradient"]
    assert steps.rate == (None if "sampling" in option else 100 / 1500)


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 8.0])
def test_radius_and_gradients_share_a_target(epsilon: float) -> None:
    plan = make_plan(
        compose_config(words("dp.delta=1e-4", f"dp.epsilon={epsilon}", "accountant=wang_rdp"))
    )
    assert 0.999 * epsilon <= plan.accountant_object().epsilon(plan.ledger(), 1e-4) <= epsilon
    entries = {entry.name: entry for entry in plan.ledger().entries}
    assert entries["radius"].parameter < entries["gradient"].parameter  # one release to 20
