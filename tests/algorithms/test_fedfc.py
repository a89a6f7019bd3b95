"""DP-FedFC at both levels against its lines, written as loops over clients and records, and its
released covariance.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from federated import D, clipped, grouped_federation, noise_of, play

from dpfl_cli.config.compose import compose_config
from dpfl_cli.config.errors import ConfigError
from dpfl_cli.data.federation import Federation
from dpfl_cli.models.curvature import damped_inverse, packed, precondition, unpacked
from dpfl_cli.simulation.execute import run_members
from dpfl_cli.simulation.grouping import bytes_per_run, stacks
from dpfl_cli.simulation.member import Member
from dpfl_cli.simulation.plan import make_plan
from dpfl_cli.simulation.stack import Stack
from tests.padding import own_records

C, COV, ETA, GAMMA, PHI, Z = 0.3, 1.5, 0.5, 0.1, 0.1, 0.35
SIZES = [4, 1, 7, 2]
M, ROUNDS = len(SIZES), 4
TRUSTS = ["none", "local", "central", "secure_aggregation"]
TRIANGLE = np.triu_indices(D)
NORMS = ["mean", "paper"]
SMALL = ["dataset.clients=12", "dataset.dimension=5", "rounds=3"]


def gradients(federation: Federation, client: int, w: np.ndarray) -> np.ndarray:
    x, y = own_records(federation, client)
    return (x @ w - y)[:, None] * x


def covariance(federation: Federation, client: int, level: str, norm: str) -> np.ndarray:
    """A client's contribution to the covariance, a whole symmetric matrix."""
    x, _ = own_records(federation, client)
    if level == "record":
        x = np.array([clipped(one, COV) for one in x])
    whole = x.T @ x / (len(x) if norm == "mean" else 1)
    return whole if level == "record" else whole * min(1.0, COV / np.linalg.norm(whole))


def mean_of(
    contributions: np.ndarray, noise: np.ndarray, trust: str, sensitivity: np.ndarray, z: float
) -> np.ndarray:
    """What the server sees the mean of contributions [M, k] as; `noise` is the mechanism's draw."""
    mean = contributions.mean(axis=0)
    if trust == "none":
        return mean
    if trust == "local":
        return mean + (z * sensitivity[:, None] * noise).mean(axis=0)
    return mean + z * sensitivity.max() / M * noise


# Everything that a sensitivity depends on, under every trust model; the others in turn.
OTHERS = list(itertools.product(["damping", "none"], ["equal_sigma", "fraction"]))
CASES = [
    (*case, *OTHERS[(number + number // 4) % 4])
    for number, case in enumerate(
        itertools.product(TRUSTS, ["replace_one", "zero_out"], ["record", "client"], NORMS)
    )
]


@pytest.mark.parametrize(("trust", "relation", "level", "norm", "floor", "budget"), CASES)
def test_equals_its_lines(
    trust: str, relation: str, level: str, norm: str, floor: str, budget: str
) -> None:
    seeds = [3, 4]
    federations = [grouped_federation(seed, SIZES) for seed in seeds]
    name = "fedfc_record" if level == "record" else "fedfc"
    settings = {"cov_norm": norm, "psd_floor": floor, "budget": budget}
    common: dict[str, Any] = {
        "seeds": seeds,
        "federations": federations,
        "noise": Z,
        "relation": relation,
        "horizon": ROUNDS,
    }
    played = play(name, trust, settings, **common).go(ROUNDS)
    first = Z / np.sqrt(PHI * (ROUNDS + 1)) if budget == "fraction" else Z
    later = Z * np.sqrt(ROUNDS / ((1 - PHI) * (ROUNDS + 1))) if budget == "fraction" else Z
    replaced, each = relation == "replace_one", np.array(SIZES) if norm == "mean" else np.ones(M)
    moved = {  # of the covariance and of the gradient
        "record": (
            (np.sqrt(2) if replaced else 1) * COV**2 / each,
            (1 + replaced) * C / np.array(SIZES),
        ),
        "client": ((1 + replaced) * COV * np.ones(M), (1 + replaced) * C * np.ones(M)),
    }[level]
    drawn = M if trust == "local" else None
    for run, seed in enumerate(seeds):
        federation, w = federations[run], np.zeros(D)
        triangles = np.array([covariance(federation, i, level, norm)[TRIANGLE] for i in range(M)])
        noise = noise_of(seed, "covariance", 1, drawn, D * (D + 1) // 2)
        upper = mean_of(triangles, noise, trust, moved[0], first)
        whole = np.zeros((D, D))
        whole[TRIANGLE] = upper
        whole = whole + np.triu(whole, 1).T + GAMMA * np.eye(D)
        values, vectors = np.linalg.eigh(whole)
        values = np.maximum(values, GAMMA) if floor == "damping" else values
        inverse = vectors @ np.diag(1 / values) @ vectors.T
        for t in range(1, ROUNDS + 1):
            own = [gradients(federation, i, w) for i in range(M)]
            if level == "record":
                sent = np.array([np.mean([clipped(g, C) for g in one], axis=0) for one in own])
            else:
                sent = np.array([clipped(inverse @ one.mean(axis=0), C) for one in own])
            mean = mean_of(sent, noise_of(seed, "gradient", t, drawn), trust, moved[1], later)
            w = w - ETA * (inverse @ mean if level == "record" else mean)
            state = played.states[t]
            np.testing.assert_allclose(
                state.server["preconditioner"][run], inverse, rtol=1e-8, atol=1e-10
            )
            np.testing.assert_allclose(state.server["model"][run], w, rtol=1e-8, atol=1e-10)
    entries = played.ledger()
    assert {one: entry.count for one, entry in entries.items()} == {
        "covariance": 1,
        "gradient": ROUNDS,
    }
    assert {entry.unit for entry in entries.values()} == {level}
    if trust != "none":
        precision = sum(float((entry.parameters() ** -2.0).sum()) for entry in entries.values())
        assert precision == pytest.approx((ROUNDS + 1) / Z**2)  # mu^2, whatever the budget
        share = float((entries["covariance"].parameters() ** -2.0).sum()) / precision
        assert share == pytest.approx(PHI if budget == "fraction" else 1 / (ROUNDS + 1))


def test_without_noise_and_bounds_a_full_step_on_one_client_solves_least_squares() -> None:
    federation = grouped_federation(2, [40])
    settings = {"clip_norm": None, "feature_clip_norm": None, "damping": 1e-9, "server_lr": 1.0}
    for name in ("fedfc", "fedfc_record"):
        model = play(name, "none", settings, federations=[federation]).go(1).models()[1, 0]
        x, y = own_records(federation, 0)
        np.testing.assert_allclose(model, np.linalg.lstsq(x, y, rcond=None)[0], rtol=1e-6)


def test_the_floor_acts_where_noise_makes_the_matrix_indefinite() -> None:
    federations = [grouped_federation(5, SIZES)]
    found = {}
    for floor in ("damping", "none"):
        played = play(
            "fedfc_record", "local", {"psd_floor": floor}, federations=federations, noise=5.0
        ).go(1)
        found[floor] = np.linalg.eigvalsh(played.states[1].server["preconditioner"][0].numpy())
    assert found["none"].min() < 0
    assert found["damping"].min() > 0
    assert found["damping"].max() <= 1 / GAMMA * (1 + 1e-12)


def test_triangles_and_preconditioners() -> None:
    generator = torch.Generator().manual_seed(0)
    half = torch.randn(3, 4, 7, 7, generator=generator, dtype=torch.float64)
    matrices = half + half.mT
    triangles = packed(matrices, 5)
    rows, columns = np.triu_indices(5)
    np.testing.assert_array_equal(triangles.numpy(), matrices.numpy()[..., rows, columns])
    assert torch.equal(unpacked(triangles, 5), matrices[..., :5, :5])
    square = matrices[:, 0, :5, :5]
    values = torch.randn(
        3, 700, 20, generator=generator, dtype=torch.float64
    )  # 2800 rows of length 5
    expected = (values.unflatten(-1, (4, 5)) @ square.unsqueeze(1)).flatten(-2)
    torch.testing.assert_close(precondition(values, square, 5), expected)
    torch.testing.assert_close(precondition(values[:, 0], square, 5), expected[:, 0])
    alone = torch.cat(
        [precondition(values[run : run + 1], square[run : run + 1], 5) for run in range(3)]
    )
    assert torch.equal(alone, precondition(values, square, 5))
    damping = torch.tensor([0.5, 20.0, 20.0], dtype=torch.float64)
    positive = square @ square.mT
    eye = torch.eye(5, dtype=torch.float64)
    for floor in (True, False):
        inverse = damped_inverse(positive, damping, floor)
        torch.testing.assert_close(
            inverse @ (positive + damping[:, None, None] * eye), eye.expand(3, 5, 5)
        )
    torch.testing.assert_close(
        damped_inverse(square, damping, False) @ (square + damping[:, None, None] * eye),
        eye.expand(3, 5, 5),
    )
    square[1, 2, 2] = torch.inf
    inverse = damped_inverse(square, damping, True)
    assert bool(inverse[1].isnan().all())
    assert bool(inverse[[0, 2]].isfinite().all())


def test_a_client_that_diverges_spoils_nobody() -> None:
    federation = grouped_federation(5, SIZES)
    federation.dataset.train.features[0] = 1e200
    for name in ("fedfc", "fedfc_record"):
        assert np.isfinite(play(name, "local", {}, federations=[federation]).go(3).models()).all()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["algorithm=fedfc", "dp=cdp", "algorithm.feature_clip_norm=null"],
            r"algorithm\.feature_clip_norm=null under dp\.trust=central",
        ),
        (
            ["algorithm=fedfc", "dp=cdp", "algorithm.clip_norm=null"],
            r"algorithm\.clip_norm=null under dp\.trust=central",
        ),
        (
            ["algorithm=fedfc", "dp=ldp_privunit"],
            "releases a matrix .*; write mechanism=local_gaussian",
        ),
        (
            ["algorithm=fedfc_record", "dp=record", "algorithm.covariance_share=1.0"],
            r"algorithm\.covariance_share=1\.0",
        ),
        (
            ["algorithm=fedfc", "dp=cdp", "algorithm.covariance_share=0.3"],
            "has no shares .* write algorithm.budget=fraction",
        ),
        (
            ["algorithm=fedfc_record", "dp=record", "algorithm.covariance_share=0.3"],
            "algorithm.budget=equal_sigma has no shares",
        ),
        (
            ["algorithm=fedfc_record", "dp=record", "model=mlp"],
            "needs covariance, which model=mlp does not have; write model=",
        ),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_line(words: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        make_plan(compose_config([*SMALL, *words]))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("trust", "arrays"), [("cdp", 2), ("ldp", 4)])
def test_the_covariances_count_in_the_memory_of_a_run(trust: str, arrays: int) -> None:
    """What clients have, that clipped, and with a local mechanism the noise and the messages."""
    words = ["dataset=synthetic", "dataset.clients=20", "dataset.dimension=300", f"dp={trust}"]
    plain, ours = (
        make_plan(compose_config([*words, f"algorithm={one}"])) for one in ("fedavg", "fedfc")
    )
    assert bytes_per_run(ours) - bytes_per_run(plain) >= arrays * 8 * 20 * 300 * 301 // 2


def test_runs_whose_covariances_do_not_fit_together_are_stacked_after_their_first_round(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sizes: list[int] = []
    step = Stack.step

    def counted(self: Stack, **how: bool) -> Any:
        sizes.append(len(self.members))
        return step(self, **how)

    monkeypatch.setattr(Stack, "step", counted)

    def finished(memory: str, rounds: int) -> dict[str, Member]:
        words = ["dataset=synthetic", "dataset.clients=6", "dataset.dimension=40", "dp=cdp"]
        words += ["algorithm=fedfc", f"rounds={rounds}", "evaluation.every=3"]
        plans = [
            make_plan(compose_config([*words, f"launcher.memory={memory}", f"seed={seed}"]))
            for seed in range(5)
        ]
        sizes.clear()
        (stack,) = stacks(plans)
        return {one.plan.id: one for one in run_members([Member(plan) for plan in stack])}

    for rounds in (1, 7):
        whole = finished("null", rounds)
        assert sizes == [5] * rounds
        parted = finished("350kB", rounds)
        assert sizes == [2, 2, 1, *[5] * (rounds - 1)]
        assert whole.keys() == parted.keys()
        for name, one in whole.items():
            assert (one.rows, one.ledger) == (parted[name].rows, parted[name].ledger)
