"""DP-ScaffNew against its lines, written as loops, and the facts that its paper states."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from federated import (
    SCAFFNEW,
    Play,
    clipped,
    federation_of,
    grouped_federation,
    play,
    reordered,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from dpfl_cli.algorithms.base import State
from dpfl_cli.algorithms.scaffnew import ScaffNewSettings, communicates
from dpfl_cli.config.compose import compose_config
from dpfl_cli.config.errors import ConfigError
from dpfl_cli.data.federation import Federation
from dpfl_cli.data.streams import Streams, stream_generator
from dpfl_cli.privacy.client_values import client_values, opened
from dpfl_cli.simulation.member import Member
from dpfl_cli.simulation.plan import make_plan, with_values
from dpfl_cli.simulation.results import privacy_report
from dpfl_cli.simulation.run_plan import Plan
from dpfl_cli.simulation.run_plan import federation_of as federation_of_plan
from dpfl_cli.simulation.stack import Stack, stack_key
from tests.padding import own_records

M, D, N = 6, 5, 3  # clients, coordinates, records of a client
DATA = [f"dataset.clients={M}", f"dataset.dimension={D}", f"dataset.records_per_client={N}"]
DP = {"none": "none", "local": "ldp", "central": "cdp", "secure_aggregation": "secure_aggregation"}
State_ = dict[str, np.ndarray]  # model [d], local and control [M, d] of a run after a round


def plans_of(*words: str, variants: list[dict[str, Any]] | None = None) -> list[Plan]:
    """Runs of ScaffNew that differ in `variants`, by dotted keys; `algorithm=` in words gives
    another method.
    """
    method = [] if words[0].startswith("algorithm=") else ["algorithm=scaffnew"]
    plain = [] if words[0] == "algorithm=fedavg" else ["algorithm.final_release=false"]
    base = compose_config([*method, *DATA, *plain, *words])
    return [make_plan(with_values(base, changes)) for changes in variants or [{}]]


def follow(plans: list[Plan]) -> dict[str, tuple[Member, list[State_]]]:
    """Runs plans as one batch to their end: every run's member, and its state after every round."""
    batch = Stack([Member(plan) for plan in plans])
    seen: dict[str, list[State_]] = {plan.id: [] for plan in plans}
    ended: dict[str, Member] = {}
    batch.evaluate({})
    while batch.members:
        batch.evaluate(batch.step())
        values = {**batch.state.server, **batch.state.clients}
        for run, member in enumerate(batch.members):
            seen[member.plan.id].append(
                {name: opened(value)[run].numpy().copy() for name, value in values.items()}
            )
        rest = [member for member in batch.members if not member.finished]
        if len(rest) < len(batch.members):
            batch.collect()
            for member in batch.members:
                if member.finished:
                    member.check_ledger()
                    ended[member.plan.id] = member
            if not rest:
                break
            batch = Stack(rest)
    return {plan.id: (ended[plan.id], seen[plan.id]) for plan in plans}


def slope(
    federation: Federation, client: int, w: np.ndarray, chosen: np.ndarray | None = None
) -> np.ndarray:
    """grad f_i(w) of the mean of (1/2) (x.w - y)^2 over the client's records, or over the chosen
    ones.
    """
    features, targets = own_records(federation, client)
    total, chosen = np.zeros(len(w)), np.arange(len(targets)) if chosen is None else chosen
    for x, y in zip(features[chosen], targets[chosen], strict=True):
        total = total + (x @ w - y) * x
    return total / len(chosen)


def coins_of(plan: Plan) -> list[bool]:
    """theta_1, ..., theta_T by their definition."""
    own, T = plan.algorithm.settings, plan.rounds
    if own.schedule == "bernoulli":
        theta = [
            u < 1 / own.local_steps for u in stream_generator(plan.seed, "coins").random(T).tolist()
        ]
    else:
        theta = [t % int(own.local_steps) == 0 for t in range(1, T + 1)]
    return [*theta[:-1], theta[-1] or own.final_release]


def by_loops(plan: Plan) -> list[State_]:
    """The lines of the method's file, one client and one iteration at a time."""
    own, trust, seed = plan.algorithm.settings, plan.dp.trust, plan.seed
    federation, streams = federation_of_plan(plan), Streams([seed])
    eta, C = own.local_lr, math.inf if own.clip_norm is None else own.clip_norm
    p = 1 / own.local_steps
    z = 0.0 if trust == "none" else plan.mechanism.settings.noise_multiplier
    std = 0.0 if trust == "none" else z * C * (2 if plan.dp.relation == "replace_one" else 1)
    x, local, h = np.zeros(D), np.zeros((M, D)), np.zeros((M, D))
    after, last = [], 0  # the last communication
    longest, times = np.zeros(M), np.zeros(M)
    for t, theta in enumerate(coins_of(plan), start=1):
        now, xhat = np.array([t]), np.empty((M, D))
        for i in range(M):
            chosen = None
            if own.batch_size is not None:
                chosen = streams.subset(
                    "batch", now, M, federation.partition.counts, own.batch_size
                )[0, i].numpy()
            xhat[i] = local[i] - eta * (slope(federation, i, local[i], chosen) - h[i])
        if not theta:
            local = xhat
        else:
            apart = eta * (t - last) * h if own.control == "apart" else np.zeros((M, D))
            bounded, last = np.array([clipped(xhat[i] - x - apart[i], C) for i in range(M)]), t
            lengths = np.array([np.linalg.norm(xhat[i] - x - apart[i]) for i in range(M)])
            longest, times = np.maximum(longest, lengths), times + (lengths > C)
            sent, extra = bounded, np.zeros(D)
            if trust == "local":
                sent = bounded + std * streams.normal("noise/update", now, M, D)[0].numpy()
            elif trust == "secure_aggregation" and own.control == "sent":
                sent = (
                    bounded
                    + std / np.sqrt(M) * streams.normal("noise/update", now, M, D)[0].numpy()
                )
            elif trust in ("central", "secure_aggregation"):
                extra = std / M * streams.normal("noise/update", now, None, D)[0].numpy()
            mean = sum(sent[i] for i in range(M)) / M + extra
            x = x + mean
            if own.control != "none":
                kept = sent if own.control == "sent" else bounded
                h = np.array([h[i] + p / eta * (mean - (kept[i] + apart[i])) for i in range(M)])
            local = np.array([x for _ in range(M)])
        known = {"model": x, "local": local, "longest": longest, "clipped": times}
        after.append(known if own.control == "none" else {**known, "control": h})
    return after


VARIANTS: list[dict[str, Any]] = [  # of one batch, in all that may differ
    {"seed": 3, "algorithm.local_steps": 2.0, "rounds": 7},
    {"seed": 4, "algorithm.local_steps": 3.0, "rounds": 9, "algorithm.local_lr": 0.02},
    {"seed": 4, "algorithm.local_steps": 1.0, "rounds": 4, "algorithm.clip_norm": 0.9},
    {"seed": 5, "algorithm.local_steps": 5.0, "rounds": 11, "algorithm.clip_norm": 50.0},
]
WORDS = ["algorithm.local_lr=0.01", "algorithm.clip_norm=0.3", "algorithm.local_steps=2"]


def words_of(trust: str, control: str) -> list[str]:
    paper = ["dp.mode=paper"] if (trust, control) == ("secure_aggregation", "sent") else []
    noise = [] if trust == "none" else ["mechanism.noise_multiplier=0.4"]
    return [*WORDS, f"dp={DP[trust]}", f"algorithm.control={control}", *noise, *paper]


def check_equals_loops(plans: list[Plan]) -> None:
    assert len({stack_key(plan) for plan in plans}) == 1
    for plan, (member, states) in zip(plans, follow(plans).values(), strict=True):
        expected = by_loops(plan)
        assert len(states) == len(expected) == plan.rounds
        for state, wanted in zip(states, expected, strict=True):
            assert set(state) - {"communications", "since"} == set(wanted)
            for name, value in wanted.items():
                np.testing.assert_allclose(state[name], value, rtol=1e-9, atol=1e-12, err_msg=name)
        coins = coins_of(plan)
        assert [row["local_steps"] for row in member.rows[1:]] == list(range(1, plan.rounds + 1))
        assert [row["communications"] for row in member.rows[1:]] == list(
            itertools.accumulate(coins)
        )
        assert member.ledger.releases == plan.ledger().releases == sum(coins)


BY_COINS, BY_STEPS = ("bernoulli", False), ("deterministic", True)


@pytest.mark.parametrize(
    ("trust", "control", "schedule", "final_release"),
    [
        *(
            (trust, control, *how)
            for trust in DP
            for control in ("sent", "clipped", "apart", "none")
            for how in (BY_COINS, BY_STEPS)
        ),
        ("local", "sent", "bernoulli", True),
        ("central", "clipped", "deterministic", False),
    ],
)
def test_equals_its_lines(trust: str, control: str, schedule: str, final_release: bool) -> None:
    words = [
        *words_of(trust, control),
        f"algorithm.schedule={schedule}",
        f"algorithm.final_release={final_release}",
    ]
    check_equals_loops(plans_of(*words, variants=VARIANTS))


@pytest.mark.parametrize(
    ("trust", "control", "size"),
    [
        *((trust, control, 2) for trust in DP for control in ("sent", "none")),
        ("local", "sent", 1),
        ("central", "none", N),
    ],
)
def test_equals_its_lines_with_minibatches(trust: str, control: str, size: int) -> None:
    words = [
        *words_of(trust, control),
        "algorithm.schedule=bernoulli",
        f"algorithm.batch_size={size}",
    ]
    check_equals_loops(plans_of(*words, variants=VARIANTS))


def test_the_noise_is_that_of_the_relation() -> None:
    words = [*words_of("local", "sent"), "dp.relation=zero_out"]
    check_equals_loops(plans_of(*words, variants=VARIANTS[:2]))


def test_without_a_bound_and_without_privacy() -> None:
    check_equals_loops(
        plans_of(
            *WORDS, "dp=none", "algorithm.clip_norm=null", variants=[{}, {"seed": 1, "rounds": 5}]
        )
    )


# What the paper states.


def controls(played: Play) -> np.ndarray:
    """[T + 1, R, M, d]."""
    return np.stack([opened(state.clients["control"]).numpy() for state in played.states])


def with_controls(played: Play, control: np.ndarray) -> Play:
    """The same before its first round, with controls [R, M, d] of its own."""
    start = played.states[0]
    played.states = [
        State(start.server, {**start.clients, "control": client_values(torch.from_numpy(control))})
    ]
    return played


@settings(max_examples=15, deadline=None)
@given(
    trust=st.sampled_from(["none", "local", "secure_aggregation"]),
    schedule=st.sampled_from(["deterministic", "bernoulli"]),
    tau=st.integers(1, 4),
    clip=st.floats(0.01, 3.0),
    noise=st.floats(0.1, 5.0),
    seed=st.integers(0, 1000),
)
def test_controls_sum_to_zero_for_ever(
    trust: str, schedule: str, tau: int, clip: float, noise: float, seed: int
) -> None:
    own = {"local_steps": float(tau), "clip_norm": clip, "schedule": schedule, "control": "sent"}
    played = play("scaffnew", trust, own, seeds=[seed, seed + 1], noise=noise, sound=False).go(12)
    found = controls(played)
    scale = np.abs(found).max()
    assert np.abs(found.sum(axis=2)).max() <= 1e-12 * max(scale, 1.0) * found.shape[2]
    if schedule == "deterministic":
        assert scale > 0


@pytest.mark.parametrize("schedule", ["deterministic", "bernoulli"])
def test_controls_apart_are_the_papers_where_nothing_is_clipped_or_noised(schedule: str) -> None:
    words = [
        *WORDS,
        "dp=none",
        "algorithm.clip_norm=null",
        f"algorithm.schedule={schedule}",
        "rounds=24",
    ]
    plans = plans_of(
        *words, variants=[{"algorithm.control": control} for control in ("sent", "apart")]
    )
    (_, paper), (_, apart) = (follow([plan])[plan.id] for plan in plans)
    for one, other in zip(paper, apart, strict=True):
        for name in ("model", "local", "control"):
            np.testing.assert_allclose(other[name], one[name], rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("trust", ["central", "secure_aggregation"])
def test_noise_of_the_mean_is_in_the_model_once_where_controls_are_apart(trust: str) -> None:
    """||x|| on data that are all zero, where the model is the sum of what noise was added: a walk,
    or a walk of walks.
    """
    federation, rounds = federation_of(0, clients=4), 200
    federation.dataset.train.features[:] = 0.0
    federation.dataset.train.targets[:] = 0.0
    lengths = {}
    for control in ("clipped", "apart", "none"):
        own = {"local_steps": 1.0, "local_lr": 0.1, "clip_norm": 1e6, "control": control}
        played = play(
            "scaffnew", trust, own, seeds=list(range(20)), noise=1e-6, federations=[federation] * 20
        ).go(rounds)
        lengths[control] = float(np.sqrt(np.mean(played.models()[-1] ** 2)))
    assert lengths["apart"] < 1.5 * lengths["none"]
    assert lengths["clipped"] > 20 * lengths["none"]  # grows with T^(3/2), not with T^(1/2)


@pytest.mark.parametrize("schedule", ["deterministic", "bernoulli"])
def test_communication_at_every_step_is_gradient_descent_for_any_controls_that_sum_to_zero(
    schedule: str,
) -> None:
    sizes, rate, rounds = [3] * 4, 0.05, 20
    federations = [grouped_federation(seed, sizes) for seed in (1, 2)]
    own = {"local_steps": 1.0, "local_lr": rate, "clip_norm": None, "schedule": schedule}
    played = play("scaffnew", "none", own, seeds=[1, 2], federations=federations)
    start = np.random.default_rng(0).standard_normal((2, 4, D)) * 3
    start -= start.mean(axis=1, keepdims=True)
    models = with_controls(played, start).go(rounds).models()
    for run, federation in enumerate(federations):
        w = np.zeros(D)
        for t in range(1, rounds + 1):
            w = w - rate * sum(slope(federation, i, w) for i in range(4)) / 4
            np.testing.assert_allclose(models[t, run], w, rtol=1e-9, atol=1e-12)
    biased = play("scaffnew", "none", own, seeds=[1, 2], federations=federations)
    assert (
        np.abs(with_controls(biased, start + 1.0).go(3).models()[3] - models[3]).max() > 1e-3
    )  # not for any others


def copied(federation: Federation) -> Federation:
    """The same with records of its own, for data sets are kept and shared."""
    return reordered(federation, np.arange(len(federation.dataset.train)))


def quadratic(
    seed: int, clients: int = 4, records: int = 40
) -> tuple[Federation, np.ndarray, np.ndarray, float, float]:
    """Least squares of clients that disagree: the federation, x*, grad f_i(x*) [M, d], and mu, L of
    the worst f_i.
    """
    federation = copied(grouped_federation(seed, [records] * clients))
    train = federation.dataset.train
    noise = np.random.default_rng(seed).standard_normal(len(train.targets))
    train.targets[:] = train.targets + 2 * noise  # records and clients have no common solution
    parts = [slice(i * records, (i + 1) * records) for i in range(clients)]
    values = np.concatenate(
        [
            np.linalg.eigvalsh(train.features[mine].T @ train.features[mine] / records)
            for mine in parts
        ]
    )
    best = np.linalg.lstsq(train.features, train.targets, rcond=None)[0]
    return (
        federation,
        best,
        np.array([slope(federation, i, best) for i in range(clients)]),
        values.min(),
        values.max(),
    )


@pytest.mark.parametrize("schedule", ["deterministic", "bernoulli"])
def test_without_noise_it_converges_linearly_to_the_solution_and_fedavg_stalls(
    schedule: str,
) -> None:
    federation, best, gradients, mu, smooth = quadratic(3)
    assert np.linalg.norm(gradients, axis=1).min() > 0.1  # heterogeneous
    tau = float(round(math.sqrt(smooth / mu)))
    assert tau >= 2
    own = {"local_steps": tau, "local_lr": 1 / smooth, "clip_norm": None, "schedule": schedule}
    rounds = int(60 * smooth / mu)
    played = play("scaffnew", "none", own, seeds=[7], federations=[federation], horizon=rounds).go(
        rounds
    )
    errors = np.linalg.norm(played.models()[:, 0] - best, axis=1)
    rate = max(1 - mu / smooth, 1 - 1 / tau**2)
    assert errors[-1] < 1e-10
    assert errors[rounds // 4] < 100 * errors[0] * rate ** (rounds / 8)  # the error, not its square
    np.testing.assert_allclose(controls(played)[-1, 0], gradients, atol=1e-8)
    stalled = play(
        "scaffnew",
        "none",
        {**own, "control": "none"},
        seeds=[7],
        federations=[federation],
        horizon=rounds,
    ).go(rounds)
    assert np.linalg.norm(stalled.models()[-1, 0] - best) > 1e-3


def psi(
    played: Play, t: int, best: np.ndarray, gradients: np.ndarray, eta: float, p: float
) -> np.ndarray:
    """[R] psi_t = sum_i ||x_i - x*||^2 + (eta / p)^2 sum_i ||h_i - grad f_i(x*)||^2."""
    local = opened(played.states[t].clients["local"]).numpy()
    held = controls(played)[t]
    return ((local - best) ** 2).sum(axis=(1, 2)) + (eta / p) ** 2 * ((held - gradients) ** 2).sum(
        axis=(1, 2)
    )


@pytest.mark.parametrize(
    ("tau", "std"), [(1.0, 0.01), (1.0, 2.0), (3.0, 0.2), (8.0, 0.01), (8.0, 2.0)]
)
def test_psi_stays_below_the_bound_of_theorem_1(tau: float, std: float) -> None:
    """E psi_T <= rho^T psi_0 + p N d sigma^2 / (1 - rho), for noise of std sigma in every message
    and no clipping.
    """
    federation, best, gradients, mu, smooth = quadratic(5)
    clients, repetitions, rounds, eta, p, C = 4, 3000, 40, 1 / smooth, 1 / tau, 1e6
    own = {"local_steps": tau, "local_lr": eta, "clip_norm": C, "schedule": "bernoulli"}
    runs = {"seeds": list(range(repetitions)), "federations": [federation] * repetitions}
    played = play(
        "scaffnew", "local", own, **runs, noise=std / C, relation="zero_out", horizon=rounds
    ).go(rounds)
    assert all(bool((entry["clipped_fraction"] == 0).all()) for entry in played.diagnostics)
    rho, first = max(1 - mu * eta, 1 - p**2), psi(played, 0, best, gradients, eta, p)[0]
    for t in (1, 2, 5, 10, 20, rounds):
        found = psi(played, t, best, gradients, eta, p)
        bound = rho**t * first + p * clients * D * std**2 * (1 - rho**t) / (1 - rho)
        mean, error = found.mean(), found.std(ddof=1) / math.sqrt(repetitions)
        assert mean + 3 * error < bound, (t, mean, error, bound)
    if std == 2.0:  # where noise is nearly all there is, the bound is nearly reached
        first_step = psi(played, 1, best, gradients, eta, p).mean()
        assert first_step > 0.6 * (rho * first + p * clients * D * std**2)


# The method without controls, and other methods.


def synchronised(states: list[State_], tau: int) -> np.ndarray:
    """[T / tau, d] the models after the communications of a run."""
    return np.stack([state["model"] for state in states[tau - 1 :: tau]])


@pytest.mark.parametrize(
    ("tau", "clip", "size"), [(1, "0.2", "1"), (2, "0.2", "null"), (4, "null", "2")]
)
def test_without_controls_it_is_fedavg(tau: int, clip: str, size: str) -> None:
    own = [
        f"algorithm.local_steps={tau}",
        "algorithm.local_lr=0.02",
        f"algorithm.clip_norm={clip}",
        f"algorithm.batch_size={size}",
    ]
    scheduled = plans_of(
        "algorithm=fedavg_scheduled", "dp=none", "rounds=8", *own, variants=[{}, {"seed": 1}]
    )
    averaged = plans_of(
        "algorithm=fedavg", "dp=none", f"rounds={8 // tau}", *own, variants=[{}, {"seed": 1}]
    )
    corrected = plans_of("dp=none", "rounds=8", *own, variants=[{}, {"seed": 1}])
    for one, other, apart in zip(
        *(follow(plans).values() for plans in (scheduled, averaged, corrected)), strict=True
    ):
        wanted = synchronised(other[1], 1)
        np.testing.assert_allclose(synchronised(one[1], tau), wanted, rtol=1e-10, atol=1e-13)
        assert (
            tau == 1 or np.abs(synchronised(apart[1], tau) - wanted).max() > 1e-4
        )  # where they have one, controls act


# C and epsilon.


@pytest.mark.parametrize("algorithm", ["scaffnew", "fedavg_scheduled"])
@pytest.mark.parametrize("schedule", ["deterministic", "bernoulli"])
@pytest.mark.parametrize("how", ["lemma1", "noise"])
def test_without_active_clipping_only_the_ratio_of_c_and_epsilon_counts(
    algorithm: str, schedule: str, how: str
) -> None:
    words = [
        f"algorithm={algorithm}",
        "dp=ldp",
        "dp.relation=zero_out",
        "rounds=24",
        f"algorithm.schedule={schedule}",
    ]
    words += ["algorithm.local_steps=3", "algorithm.local_lr=0.02"]

    def run(C: float, epsilon: float) -> tuple[Plan, list[State_]]:
        noise = ["dp.calibration=lemma1", "dp.v=1e-7", f"dp.epsilon={epsilon}"]
        noise = noise if how == "lemma1" else [f"mechanism.noise_multiplier={1e-3 / epsilon}"]
        (plan,) = plans_of(*words, f"algorithm.clip_norm={C}", *noise)
        member, states = follow([plan])[plan.id]
        assert all(row["clipped_fraction"] == 0 for row in member.rows[1:])
        return plan, states

    first, states = run(40.0, 0.5)
    for factor in (10.0, 1000.0) if how == "lemma1" else (2.0, 7.3):
        plan, others = run(40.0 * factor, 0.5 * factor)
        assert plan.id != first.id
        for state, other in zip(states, others, strict=True):
            np.testing.assert_allclose(other["model"], state["model"], rtol=1e-10, atol=1e-12)
    _, noisier = run(80.0, 0.5)
    assert np.abs(noisier[-1]["model"] - states[-1]["model"]).max() > 1e-4


# A run and its company.


# Coins, releases and epsilon.


def of(**values: Any) -> ScaffNewSettings:
    given = {**SCAFFNEW, "local_lr": 0.1, "clip_norm": 1.0, "schedule": "bernoulli"}
    return ScaffNewSettings(**{**given, **values})


def test_coins_are_the_seeds_own_and_fair() -> None:
    coins = np.stack([communicates(of(local_steps=4.0), seed, 500) for seed in range(40)])
    assert len(np.unique(coins, axis=0)) == 40
    assert abs(coins.mean() - 0.25) < 4 * math.sqrt(0.25 * 0.75 / coins.size)
    assert (
        abs(coins.mean(axis=0) - 0.25) < 6 * math.sqrt(0.25 * 0.75 / 40)
    ).all()  # at every place
    for other in (
        of(local_steps=4.0, local_lr=9.0, clip_norm=7.0, control="none"),
        of(local_steps=4.0, batch_size=3),
    ):
        assert np.array_equal(communicates(other, 7, 500), coins[7])
    assert np.array_equal(communicates(of(local_steps=4.0), 7, 200), coins[7][:200])
    assert communicates(of(local_steps=1.0), 7, 50).all()


def test_the_realised_number_of_releases_is_priced() -> None:
    words = [
        "dp=ldp",
        "rounds=60",
        "algorithm.local_steps=4",
        "algorithm.schedule=bernoulli",
        "mechanism.noise_multiplier=5.0",
    ]
    plans = plans_of(*words, variants=[{"seed": seed} for seed in range(6)])
    ended = follow(plans)
    counts = [sum(coins_of(plan)) for plan in plans]
    assert len(set(counts)) > 2
    for plan, count in zip(plans, counts, strict=True):
        member = ended[plan.id][0]
        (entry,) = member.ledger.entries
        assert (entry.name, entry.kind, entry.count, entry.parameter) == (
            "update",
            "gaussian",
            count,
            5.0,
        )
        regular = plans_of(
            "dp=ldp", f"rounds={count}", "algorithm.local_steps=1", "mechanism.noise_multiplier=5.0"
        )[0]
        price = plan.accountant_object().epsilon
        assert (
            price(member.ledger, 1e-5)
            == price(plan.ledger(), 1e-5)
            == price(regular.ledger(), 1e-5)
        )
        assert privacy_report(plan, member.ledger)["epsilon"] == pytest.approx(
            price(regular.ledger(), 1e-5)
        )


def test_a_target_epsilon_is_that_of_the_runs_own_coins() -> None:
    words = [
        "dp=ldp",
        "rounds=60",
        "algorithm.local_steps=4",
        "algorithm.schedule=bernoulli",
        "dp.epsilon=3.3",
    ]
    variants = [{"seed": seed} for seed in range(8)]
    found = [
        plan.accountant_object().epsilon(plan.ledger(), 1e-5)
        for plan in plans_of(*words, variants=variants)
    ]
    assert all(3.3 * (1 - 1e-4) < epsilon <= 3.3 for epsilon in found)
    plans = plans_of(*words, "dp.releases=expected", variants=variants)
    for plan in plans:
        epsilon = plan.accountant_object().epsilon(plan.ledger(), 1e-5)
        assert (epsilon > 3.3) == (
            sum(coins_of(plan)) > 15
        )  # p T: the guarantee fails on about half of the runs
    assert len({plan.mechanism.settings.noise_multiplier for plan in plans}) == 1
    (final,) = plans_of(*words, "algorithm.final_release=true")
    assert [one.specs[0].expected for one in (*plans, final)] == [15.0] * 8 + [15.75]


@pytest.mark.parametrize("schedule", ["deterministic", "bernoulli"])
def test_epsilon_grows_with_every_release_and_with_nothing_else(schedule: str) -> None:
    words = ["dp=ldp", "rounds=20", "algorithm.local_steps=3", f"algorithm.schedule={schedule}"]
    (plan,) = plans_of(*words)
    coins, before = coins_of(plan), 0.0
    assert 3 < sum(coins) < 15
    for t, theta in enumerate(coins, start=1):
        epsilon = plan.accountant_object().epsilon(plan.ledger(t), 1e-5)
        assert epsilon > before if theta else epsilon == before
        before = epsilon


@pytest.mark.parametrize("schedule", ["deterministic", "bernoulli"])
def test_a_final_release_is_one_more_where_none_is_due(schedule: str) -> None:
    for T, seed in itertools.product((8, 9, 10), (0, 1, 2, 3)):
        plain = communicates(of(local_steps=3.0, schedule=schedule), seed, T)
        final = communicates(of(local_steps=3.0, schedule=schedule, final_release=True), seed, T)
        assert final[-1]
        assert np.array_equal(final[:-1], plain[:-1])
        assert final.sum() - plain.sum() == (0 if plain[-1] else 1)
    words = ["dp=ldp", "rounds=10", "algorithm.local_steps=3"]
    counts = [
        plans_of(*words, f"algorithm.final_release={value}")[0].ledger().releases
        for value in ("false", "true")
    ]
    assert counts == [3, 4]
    lost, kept = (
        plans_of(*words, "algorithm.local_steps=20", f"algorithm.final_release={v}", "rounds=20")[0]
        for v in ("false", "true")
    )
    assert lost.ledger().releases == kept.ledger().releases == 1


# The door.


# What is wrong is said in one line.


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["algorithm.local_steps=2.5"],
            r"algorithm.local_steps=2.5 with algorithm.schedule=deterministic: must be a "
            r"whole number",
        ),
        (
            ["algorithm.local_steps=9"],
            r"algorithm.local_steps=9: clients would not communicate once in rounds=8; .*"
            r"final_release=true",
        ),
    ],
)
def test_wrong_settings_are_refused_before_anything_runs(words: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        plans_of("dp=ldp", "rounds=8", *words)
    assert "\n" not in str(caught.value)
    assert (
        plans_of("dp=ldp", "rounds=8", "algorithm.local_steps=9", "algorithm.final_release=true")[0]
        .ledger()
        .releases
        == 1
    )
    assert plans_of(
        "dp=ldp", "rounds=8", "algorithm.local_steps=2.5", "algorithm.schedule=bernoulli"
    )


def test_a_watched_client_must_be_one() -> None:
    with pytest.raises(
        ConfigError, match=r"algorithm\.watched_client=6: there are 6 clients, numbered from 0"
    ):
        plans_of("dp=ldp", "rounds=4", "algorithm.local_steps=3", "algorithm.watched_client=6")
    (plan,) = plans_of(
        "dp=none",
        "algorithm.clip_norm=null",
        "rounds=4",
        "algorithm.local_steps=3",
        "algorithm.watched_client=5",
    )
    member, _ = follow([plan])[plan.id]
    expected = by_loops(plan)
    before = [np.zeros(D), *(state["model"] for state in expected)]
    for t in (1, 2, 4):  # at 3 the local model has been given up for the common one
        wanted = np.linalg.norm(expected[t - 1]["local"][5] - before[t - 1])
        assert member.rows[t]["watched_norm"] == pytest.approx(wanted, rel=1e-9)
        assert member.rows[t]["update_norm"] == pytest.approx(
            np.linalg.norm(expected[t - 1]["local"] - before[t - 1], axis=1).mean()
        )
    assert "watched_norm" in member.unreleased
    assert {"update_norm", "clipped_fraction"} <= set(member.unreleased)
    assert not {"local_steps", "communications"} & set(member.unreleased)


def test_clipped_fraction_is_of_all_that_was_communicated_so_far() -> None:
    words = [
        "dp=none",
        "algorithm.local_steps=3",
        "algorithm.clip_norm=0.08",
        "algorithm.local_lr=0.02",
        "evaluation.every=4",
    ]
    (plan,) = plans_of("rounds=12", *words)
    member, _ = follow([plan])[plan.id]
    expected = by_loops(plan)
    for row in member.rows[1:]:
        state, communications = expected[int(row["round"]) - 1], int(row["round"]) // 3
        assert row["clipped_fraction"] == pytest.approx(
            state["clipped"].sum() / (M * communications)
        )
        assert row["longest_update"] == pytest.approx(state["longest"].max())
    assert 0 < member.rows[-1]["clipped_fraction"] < 1
    (loose,) = plans_of(
        "dp=none", "rounds=9", "algorithm.local_steps=3", "algorithm.clip_norm=null"
    )
    assert follow([loose])[loose.id][0].rows[-1]["clipped_fraction"] == 0


def test_a_run_ends_early_by_its_model_only() -> None:
    """What is not finite in a client is sent as zero, so that an overflow of clients ends no run
    while the released model is finite: an end would tell of the clients.
    """
    words = ["dp=none", "rounds=400", "algorithm.local_steps=2", "evaluation.every=2"]
    ended = []
    for size, clip, rate in (("null", "null", 1e30), ("2", "null", 1e30), ("2", "1.0", 1e160)):
        plans = plans_of(
            *[*words, f"algorithm.clip_norm={clip}", f"algorithm.batch_size={size}"],
            variants=[{"algorithm.local_lr": rate}, {"algorithm.local_lr": 0.01}],
        )
        (bad, states), (good, _) = follow(plans).values()
        finite = bool(np.isfinite(states[-1]["model"]).all())
        assert (bad.diverged is None) == finite == (bad.round == 400)
        assert (good.diverged, good.round) == (None, 400)
        assert max(row.get("repaired", 0) for row in bad.rows) > 0 == good.rows[-1]["repaired"]
        ended.append(finite)
    assert ended == [False, False, True]  # either end is tried


def test_settings_that_a_batch_does_not_share() -> None:
    apart = [
        ["algorithm.control=none"],
        ["algorithm.schedule=bernoulli"],
        ["algorithm.batch_size=2"],
    ]
    assert len({stack_key(plans_of(*WORDS, "dp=ldp", *words)[0]) for words in ([], *apart)}) == 4
