"""Minibatches in the local steps of client-level methods: fresh records in every step, against
loops.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from federated import D, Play, clipped, grouped_federation, noise_of, play

from dpfl_cli.config.compose import compose_config
from dpfl_cli.config.errors import ConfigError
from dpfl_cli.data.streams import Streams
from dpfl_cli.simulation.execute import run_members
from dpfl_cli.simulation.member import Member
from dpfl_cli.simulation.plan import make_plan, with_values
from dpfl_cli.simulation.run_plan import Plan
from dpfl_cli.simulation.stack import stack_key

SIZES = [5, 3, 4, 8]  # records of the clients
M, C, LR, STEPS, Z = len(SIZES), 0.3, 0.02, 3, 0.35
FEDERATIONS = {seed: grouped_federation(seed, SIZES) for seed in (3, 4)}


def raw_updates(
    seed: int, t: int, w: np.ndarray, size: int | None, drift: np.ndarray | float = 0.0
) -> np.ndarray:
    """[M, D] LOCAL(w, i) in round t: step j looks at the records that the stream "batch" gives to
    step (t - 1) tau + j.
    """
    federation, streams = FEDERATIONS[seed], Streams([seed])
    train, partition = federation.dataset.train, federation.partition
    shift, updates = np.broadcast_to(drift, (M, D)), []
    for i in range(M):
        v, mine = w.copy(), partition.indices[partition.offsets[i] : partition.offsets[i + 1]]
        for j in range(1, STEPS + 1):
            chosen = np.arange(len(mine))
            if size is not None:
                address = np.array([(t - 1) * STEPS + j])
                chosen = streams.subset("batch", address, M, np.array(SIZES), size)[0, i].numpy()
                assert len(set(chosen.tolist())) == size
            slope = sum(
                (train.features[r] @ v - train.targets[r]) * train.features[r] for r in mine[chosen]
            ) / len(chosen)
            v = v - LR * (slope + shift[i])
        updates.append(v - w)
    return np.array(updates)


def played(name: str, trust: str, size: int | None, **own: Any) -> Play:
    values = {"local_steps": STEPS, "local_lr": LR, "clip_norm": C, "batch_size": size, **own}
    return play(
        name,
        trust,
        values,
        seeds=list(FEDERATIONS),
        federations=list(FEDERATIONS.values()),
        noise=Z,
    )


def released(seed: int, t: int, bounded: np.ndarray, trust: str) -> tuple[np.ndarray, np.ndarray]:
    """Messages [M, D] and their mean [D]."""
    if trust == "local":
        messages = bounded + Z * 2 * C * noise_of(seed, "update", t, M)
        return messages, messages.mean(axis=0)
    extra = 0.0 if trust == "none" else Z * 2 * C / M * noise_of(seed, "update", t, None)
    return bounded, bounded.mean(axis=0) + extra


each_size = pytest.mark.parametrize("size", [None, 1, 2, 3])


@each_size
@pytest.mark.parametrize("trust", ["none", "local", "central"])
def test_fedavg_equals_its_lines(trust: str, size: int | None) -> None:
    found = played("fedavg", trust, size, server_lr=0.7).go(4)
    models = found.models()
    assert [float(entry["server_step"][0]) for entry in found.diagnostics] == [0.7] * 4
    for run, seed in enumerate(FEDERATIONS):
        w = np.zeros(D)
        for t in range(1, 5):
            bounded = np.array([clipped(v, C) for v in raw_updates(seed, t, w, size)])
            w = w + 0.7 * released(seed, t, bounded, trust)[1]
            np.testing.assert_allclose(models[t, run], w, rtol=1e-9, atol=1e-12)


@each_size
@pytest.mark.parametrize(
    ("trust", "step"), [("none", "corrected"), ("local", "naive"), ("local", "corrected")]
)
def test_fedexp_equals_its_lines(trust: str, step: str, size: int | None) -> None:
    found = played("fedexp", trust, size, **({"step": "naive"} if step == "naive" else {})).go(4)
    assert ("squared_norm" in found.ledger()) == (trust == "none")
    for run, seed in enumerate(FEDERATIONS):
        w = np.zeros(D)
        for t in range(1, 5):
            bounded = np.array([clipped(v, C) for v in raw_updates(seed, t, w, size)])
            messages, mean = released(seed, t, bounded, trust)
            target, naive = (
                (one**2).sum(axis=1).mean() / (mean @ mean) for one in (bounded, messages)
            )
            off = D * (Z * 2 * C) ** 2 / (mean @ mean) * ((trust, step) == ("local", "corrected"))
            steps = {"": max(1.0, naive - off), "_target": target}
            steps |= {"_naive": naive} if trust == "local" else {}
            w = w + steps[""] * mean
            np.testing.assert_allclose(found.models()[t, run], w, rtol=1e-9, atol=1e-12)
            for name, value in steps.items():
                seen = float(found.diagnostics[t - 1][f"server_step{name}"][run])
                assert seen == pytest.approx(value)


def test_a_batch_of_all_records_is_the_full_gradient() -> None:
    """Of clients that hold as many."""
    federation = grouped_federation(1, [3, 3, 3])
    for name in ("fedavg", "scaffold", "fedexp"):
        whole, batches = (
            play(name, "none", {"batch_size": size, "clip_norm": None}, federations=[federation])
            .go(5)
            .models()
            for size in (None, 3)
        )
        np.testing.assert_allclose(batches, whole, rtol=1e-10, atol=1e-13)


# As runs.

DATA = ["dataset.clients=6", "dataset.dimension=5", "dataset.records_per_client=4", "rounds=6"]
METHODS = ("fedavg", "fedexp", "fedexp_naive", "scaffold")


def plan_of(*words: str, **changes: Any) -> Plan:
    config = compose_config([*DATA, "dp=ldp", "hints.local_steps=3", *words])
    return make_plan(
        with_values(config, {key.replace("__", "."): value for key, value in changes.items()})
    )


@pytest.mark.parametrize("name", METHODS)
def test_the_option_is_part_of_a_runs_identity_only_where_it_is_given(name: str) -> None:
    without = plan_of(f"algorithm={name}")
    assert "batch_size" not in without.identity["algorithm"]
    assert plan_of(f"algorithm={name}", "algorithm.batch_size=null").id == without.id
    given = plan_of(f"algorithm={name}", "algorithm.batch_size=2")
    assert given.identity["algorithm"]["batch_size"] == 2
    assert (
        given.ledger() == without.ledger()
    )  # a whole client is protected, whichever of its records it looks at
    assert stack_key(given) != stack_key(without)


@pytest.mark.parametrize("name", METHODS)
def test_a_batch_that_a_client_cannot_fill_is_refused_before_anything_runs(name: str) -> None:
    with pytest.raises(
        ConfigError,
        match=r"algorithm\.batch_size=5: a client holds fewer records; take less, or deal it more",
    ):
        plan_of(f"algorithm={name}", "algorithm.batch_size=5")
    assert plan_of(f"algorithm={name}", "algorithm.batch_size=4")


@pytest.mark.parametrize("name", ["fedavg", "scaffold"])
@pytest.mark.parametrize("size", ["null", "2"])
def test_a_diverging_run_ends_as_diverged(name: str, size: str) -> None:
    """A record whose gradient is not finite counts as zero in a batch, which must not make a lost
    model a finite one.
    """
    own = [
        "dp=none",
        f"algorithm={name}",
        "algorithm.clip_norm=null",
        f"algorithm.batch_size={size}",
        "algorithm.local_lr=1000.0",
    ]
    plan = plan_of(*own, rounds=200)
    (member,) = run_members([Member(plan)])
    assert member.diverged is not None
    assert member.round < 200
