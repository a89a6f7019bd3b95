"""DP-FedNew at both levels against its lines, written as loops over clients and records, and what
follows from them.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from federated import clipped, grouped_federation, play, received
from hypothesis import given, settings
from hypothesis import strategies as st

from dpfl_cli.algorithms.fednew import FedNew, FedNewSettings
from dpfl_cli.algorithms.fednew_record import FedNewRecord, FedNewRecordSettings
from dpfl_cli.config.compose import compose_config
from dpfl_cli.config.errors import ConfigError
from dpfl_cli.data.federation import Federation
from dpfl_cli.models import single_layer
from dpfl_cli.models.softmax import SoftmaxRegression
from dpfl_cli.privacy.client_values import client_values, opened
from dpfl_cli.privacy.record_bounds import joined_side, record_mean
from dpfl_cli.simulation import stack
from dpfl_cli.simulation.member import Member
from dpfl_cli.simulation.plan import make_plan
from dpfl_cli.simulation.stack import Stack
from tests.models.small import federation_of, settings_of
from tests.padding import own_records

SIZES, P, CLASSES = [6, 4, 7], 4, 3
M, D = len(SIZES), P * CLASSES
Z, ALPHA, RHO, ETA, L2 = 0.35, 0.1, 1.5, 0.8, 0.4
C, C1, C2, DH = 0.3, 0.25, 0.3, 0.2
TRUSTS = ["none", "local", "central", "secure_aggregation"]
COMMON = {"damping": ALPHA, "penalty": RHO, "server_lr": ETA}
CLIPS = {"clip_norm": C1, "side_clip_norm": C2, "curvature_clip_norm": DH}


def softmax(federations: list[Federation], index: np.ndarray) -> SoftmaxRegression:
    changes: dict[str, Any] = {
        "precision": "float64",
        "solver": "cholesky",
        "l2": L2,
        "init": "normal",
        "init_scale": 0.3,
    }
    return SoftmaxRegression(settings_of("softmax", **changes), federations, index)


def toys(seeds: list[int]) -> list[Federation]:
    return [federation_of(SIZES, seed, (P,), CLASSES) for seed in seeds]


def records_of(federation: Federation, client: int) -> list[tuple[np.ndarray, int]]:
    return list(zip(*own_records(federation, client), strict=True))


def mean_gradient(
    federation: Federation, client: int, theta: np.ndarray, c: float = np.inf
) -> np.ndarray:
    """(1 / m_i) sum_j CLIP((p - e_t) (x) x, C)."""
    total = np.zeros(D)
    for x, t in records_of(federation, client):
        p = np.exp(theta.reshape(CLASSES, P) @ x)
        total += clipped(np.kron(p / p.sum() - np.eye(CLASSES)[t], x), c)
    return total / SIZES[client]


def mean_curvature(
    federation: Federation, client: int, theta: np.ndarray, kind: str, c: float = np.inf
) -> np.ndarray:
    """(1 / m_i) sum_j CLIP((diag(p) - p p^T) (x) x x^T, C), or I (x) CLIP(x x^T, C)."""
    total = np.zeros((D, D))
    for x, _ in records_of(federation, client):
        p = np.exp(theta.reshape(CLASSES, P) @ x)
        p /= p.sum()
        outer = np.outer(x, x)
        if kind == "hessian":
            matrix = np.kron(np.diag(p) - np.outer(p, p), outer)
            total += matrix * min(1.0, c / np.linalg.norm(matrix))
        else:
            total += np.kron(np.eye(CLASSES), outer * min(1.0, c / np.linalg.norm(outer)))
    return total / SIZES[client]


@pytest.mark.parametrize("trust", TRUSTS)
@pytest.mark.parametrize("dual", ["off", "own_update", "paper"])
@pytest.mark.parametrize(
    ("curvature", "inner"), [("hessian", 1), ("covariance", 1), ("hessian", 3)]
)
def test_fednew_equals_its_lines(trust: str, dual: str, curvature: str, inner: int) -> None:
    seeds, rounds, gamma = [3, 4], 3, ALPHA + RHO
    federations = toys(seeds)
    options = {**COMMON, "clip_norm": C, "dual": dual, "curvature": curvature, "inner": inner}
    played = play(
        "fednew", trust, options, seeds=seeds, federations=federations, noise=Z, model=softmax
    ).go(rounds)
    bound = 0
    for run, seed in enumerate(seeds):
        theta, y, lam = played.models()[0, run], np.zeros(D), np.zeros((M, D))
        for t in range(1, rounds + 1):
            g = [mean_gradient(federations[run], i, theta) + L2 * theta for i in range(M)]
            h = [mean_curvature(federations[run], i, theta, curvature) for i in range(M)]
            for k in range(inner):
                raw = [
                    np.linalg.solve(h[i] + gamma * np.eye(D), g[i] - lam[i] + RHO * y)
                    for i in range(M)
                ]
                own = np.array([clipped(v, C) for v in raw])
                bound += sum(np.linalg.norm(v) > C for v in raw)
                sent, y = received(
                    trust, seed, "direction", own, 2 * C, Z, t * inner + k, dual == "paper"
                )
                if dual != "off":
                    lam = lam + RHO * ((sent if dual == "paper" else own) - y)
            theta = theta - ETA * y
            state = played.states[t]
            np.testing.assert_allclose(state.server["model"][run], theta, rtol=1e-9, atol=1e-12)
            np.testing.assert_allclose(state.server["direction"][run], y, rtol=1e-9, atol=1e-12)
            if dual != "off":
                np.testing.assert_allclose(
                    opened(state.clients["dual"])[run], lam, rtol=1e-9, atol=1e-12
                )
    assert bound  # clipping took part
    assert set(played.states[-1].clients) == (set() if dual == "off" else {"dual"})
    (entry,) = played.ledger().values()
    assert (entry.name, entry.count, entry.unit) == ("direction", rounds * inner, "client")


def constant(kind: str, relation: str, m: int, gamma: float) -> float:
    gradient = C1 / (gamma * m)
    if kind == "paper":
        return (2 if relation == "replace_one" else 1) * (
            gradient + DH * C2 / (gamma**2 * m - gamma * DH)
        )
    if kind == "xi_safe":
        gradient *= C2 / np.sqrt(C2**2 - C1**2)
    return (2 if relation == "replace_one" else 1) * gradient + DH * C2 / (gamma * (gamma * m + DH))


def joined(g: np.ndarray, b: np.ndarray, how: str) -> np.ndarray:
    """SPEC A2.3."""
    if how == "clip_auxiliary":
        return g + clipped(b, C2 - C1)
    if how == "project" or np.linalg.norm(g + b) <= C2:
        return clipped(g + b, C2)
    s = g @ b / np.linalg.norm(b)
    return g + (-s + np.sqrt(max(0.0, s**2 + C2**2 - g @ g))) / np.linalg.norm(b) * b


SENT = [*((trust, False) for trust in TRUSTS), ("secure_aggregation", True)]
RECORD_CASES = [  # all but the dual, which is there in every other one
    (*sent, ("off", "paper")[number % 2], how, kind)
    for number, (sent, how, kind) in enumerate(
        itertools.product(SENT, ["project", "clip_auxiliary", "xi"], ["tight", "paper", "xi_safe"])
    )
]


@pytest.mark.parametrize(("trust", "whole", "dual", "how", "kind"), RECORD_CASES)
def test_fednew_record_equals_its_lines(
    trust: str, whole: bool, dual: str, how: str, kind: str
) -> None:
    relation = "add_or_remove" if how == "project" else "replace_one"
    curvature = "covariance" if kind == "paper" else "hessian"
    seed, rounds, gamma = 5, 4, ALPHA + RHO
    (federation,) = toys([seed])
    played = play(
        "fednew_record",
        trust,
        {
            **COMMON,
            **CLIPS,
            "dual": dual,
            "bound_aux": how,
            "sensitivity": kind,
            "curvature": curvature,
            "spectrum": True,
        },
        seeds=[seed],
        federations=[federation],
        noise=Z,
        relation=relation,
        model=softmax,
        mechanism_options={"noise_share": not whole} if trust == "secure_aggregation" else None,
    ).go(rounds)
    sensitivity = np.array([constant(kind, relation, m, gamma) for m in SIZES])
    theta, y, lam, long = played.models()[0, 0], np.zeros(D), np.zeros((M, D)), 0
    for t in range(1, rounds + 1):
        g = [mean_gradient(federation, i, theta, C1) for i in range(M)]
        h = [mean_curvature(federation, i, theta, curvature, DH) for i in range(M)]
        b = [-lam[i] + RHO * y + L2 * theta for i in range(M)]
        auxiliary = how == "clip_auxiliary"  # which bounds b alone
        sides = [np.linalg.norm(b[i] if auxiliary else g[i] + b[i]) for i in range(M)]
        long += sum(side > (C2 - C1 if auxiliary else C2) for side in sides)
        own = np.array(
            [np.linalg.solve(h[i] + gamma * np.eye(D), joined(g[i], b[i], how)) for i in range(M)]
        )
        sent, y = received(trust, seed, "direction", own, sensitivity, Z, t, dual == "paper", whole)
        if dual == "paper":
            lam = lam + RHO * (sent - y)
            np.testing.assert_allclose(
                opened(played.states[t].clients["dual"])[0], lam, rtol=1e-8, atol=1e-11
            )
        largest = np.mean([np.linalg.eigvalsh(one)[-1] for one in h])
        assert float(played.diagnostics[t - 1]["largest_curvature"]) == pytest.approx(
            largest, rel=1e-9
        )
        theta = theta - ETA * y
        np.testing.assert_allclose(
            played.states[t].server["model"][0], theta, rtol=1e-8, atol=1e-11
        )
        np.testing.assert_allclose(
            played.states[t].server["direction"][0], y, rtol=1e-8, atol=1e-11
        )
    assert long  # the side's bound took part
    (entry,) = played.ledger().values()
    assert (entry.name, entry.count, entry.unit) == ("direction", rounds, "record")
    if trust != "none":
        messages = trust == "local" or (whole and dual == "paper")
        assert entry.scope == ("client" if messages else "federation")
        assert entry.parameter == pytest.approx(Z * np.sqrt(M) if whole and dual == "off" else Z)


@pytest.mark.parametrize("trust", ["none", "local", "secure_aggregation"])
@pytest.mark.parametrize("name", ["fednew", "fednew_record"])
def test_duals_of_messages_sum_to_zero(name: str, trust: str) -> None:
    options = {**COMMON, "dual": "paper"}
    played = play(name, trust, options, seeds=[1, 2], federations=toys([1, 2]), model=softmax).go(6)
    for before, after in itertools.pairwise(played.states):
        lam, y = opened(after.clients["dual"]), after.server["direction"]
        assert float(lam.abs().max()) > 1e-3
        np.testing.assert_allclose(lam.sum(dim=1), 0.0, atol=1e-10)
        old = opened(before.clients["dual"])
        own = (lam - old) / RHO + y.unsqueeze(1)  # what clients sent
        np.testing.assert_allclose((own + old / RHO).mean(dim=1), y, atol=1e-10)  # eq. (3.3)


@pytest.mark.parametrize("curvature", ["hessian", "covariance"])
def test_least_squares_reaches_the_pooled_optimum(curvature: str) -> None:
    federation = grouped_federation(7, [8, 6, 9])
    settings = {
        **COMMON,
        "server_lr": 1.0,
        "clip_norm": None,
        "dual": "paper",
        "curvature": curvature,
    }
    model = (
        play("fednew", "none", settings, seeds=[7], federations=[federation])
        .go(400)
        .models()[-1, 0]
    )
    rows, targets = federation.dataset.train.features, federation.dataset.train.targets
    bounds, left, right = [0, 8, 14, 23], np.zeros((5, 5)), np.zeros(5)
    for begin, end in itertools.pairwise(bounds):
        left += rows[begin:end].T @ rows[begin:end] / (end - begin)
        right += rows[begin:end].T @ targets[begin:end] / (end - begin)
    np.testing.assert_allclose(model, np.linalg.solve(left, right), rtol=1e-6, atol=1e-8)


def test_many_passes_are_a_damped_pooled_newton_step() -> None:
    (federation,) = toys([2])
    settings = {**COMMON, "clip_norm": None, "dual": "paper", "inner": 600}
    played = play(
        "fednew", "none", settings, seeds=[2], federations=[federation], model=softmax
    ).go(1)
    start = played.models()[0, 0]
    h = np.mean([mean_curvature(federation, i, start, "hessian") for i in range(M)], axis=0)
    g = np.mean([mean_gradient(federation, i, start) + L2 * start for i in range(M)], axis=0)
    np.testing.assert_allclose(
        played.states[-1].server["direction"][0],
        np.linalg.solve(h + ALPHA * np.eye(D), g),
        atol=1e-8,
    )
    off = play(
        "fednew",
        "none",
        settings | {"dual": "off"},
        seeds=[2],
        federations=[federation],
        model=softmax,
    ).go(1)
    assert not np.allclose(
        off.models()[-1], played.models()[-1], atol=1e-4
    )  # the dual is what brings the clients together


@pytest.mark.parametrize("dual", ["off", "paper"])
@pytest.mark.parametrize(
    ("how", "kind"), [("project", "tight"), ("clip_auxiliary", "paper"), ("xi", "xi_safe")]
)
def test_without_bounds_both_levels_are_one_method(dual: str, how: str, kind: str) -> None:
    common: dict[str, Any] = {"seeds": [4], "federations": toys([4]), "model": softmax}
    options = {**COMMON, "clip_norm": None, "dual": dual}
    whole = play("fednew", "none", options, **common).go(5)
    record = play(
        "fednew_record",
        "none",
        {**options, "bound_aux": how, "sensitivity": kind, "spectrum": True},
        **common,
    ).go(5)
    np.testing.assert_allclose(record.models(), whole.models(), rtol=1e-10, atol=1e-12)


vectors = st.integers(0, 2**32 - 1).map(
    lambda seed: np.random.default_rng(seed).standard_normal((2, 4))
)


@given(vectors, st.floats(0.01, 1.0), st.floats(1e-3, 30.0), st.floats(1.0, 3.0))
@settings(max_examples=200, deadline=None)
def test_xi_scales_the_side_to_its_bound(
    pair: np.ndarray, part: float, length: float, ratio: float
) -> None:
    first, second = 0.7, 0.7 * ratio  # C1 <= C2
    g, b = (v / np.linalg.norm(v) for v in pair)
    g, b = first * part * g, length * b
    limits = torch.tensor([first], dtype=torch.float64), torch.tensor([second], dtype=torch.float64)
    bounded = record_mean(
        client_values(torch.from_numpy(g)[None, None]), limits[0], torch.tensor([3])
    )
    v = opened(joined_side(bounded, torch.from_numpy(b)[None, None], *limits, "xi"))[0, 0].numpy()
    xi = (v - g) @ b / (b @ b)
    np.testing.assert_allclose(v, g + xi * b, atol=1e-9)
    assert -1e-9 <= xi <= 1 + 1e-9
    if np.linalg.norm(g + b) > second:
        assert np.linalg.norm(v) == pytest.approx(second, abs=1e-9)
    else:
        assert xi == pytest.approx(1.0)


def test_xi_is_clamped_where_rounding_makes_its_root_imaginary() -> None:
    g = torch.nn.functional.normalize(
        torch.randn(1, 64, 5, dtype=torch.float64, generator=torch.manual_seed(0)), dim=-1
    )
    g = g * (1 + 2e-16)
    b = torch.linalg.cross(
        g[..., :3], g[..., 2:]
    )  # any vectors at a right angle to g in its first three coordinates
    b = torch.cat([b, torch.zeros(1, 64, 2, dtype=torch.float64)], dim=-1)
    one = torch.ones(1, dtype=torch.float64)
    v = opened(
        joined_side(record_mean(client_values(g), one, torch.tensor([5])), b, one, one, "xi")
    )
    assert bool(v.isfinite().all())
    assert float(torch.linalg.vector_norm(v, dim=-1).max()) <= 1 + 1e-12


@pytest.mark.parametrize("trust", TRUSTS[1:])
@pytest.mark.parametrize("whole", [False, True])
def test_what_is_proved_of_fednew(trust: str, whole: bool) -> None:
    for dual in ("off", "own_update", "paper"):
        gaps = FedNew.gaps(FedNewSettings(clip_norm=1.0, dual=dual), trust, whole)
        assert (gaps == []) == (dual != "paper" or trust != "secure_aggregation" or whole)


@pytest.mark.parametrize("trust", TRUSTS[1:])
@pytest.mark.parametrize("whole", [False, True])
def test_what_is_proved_of_fednew_record(trust: str, whole: bool) -> None:
    choices = ("off", "paper"), ("project", "clip_auxiliary", "xi"), ("tight", "paper", "xi_safe")
    for dual, how, kind in itertools.product(*choices):
        options: dict[str, Any] = {"dual": dual, "bound_aux": how, "sensitivity": kind}
        gaps = FedNewRecord.gaps(FedNewRecordSettings(**options), trust, whole)
        bound = how != "xi" or kind == "xi_safe"
        composed = dual == "off" or (whole and trust != "central")
        assert len(gaps) == (not bound) + (not composed), options  # each is named


RECORD = ["algorithm=fednew_record", "dp.unit=record", "dataset.records_per_client=3"]
SMALL = ["dataset.clients=6", "dataset.dimension=3", "rounds=2"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["algorithm=fednew", "dp=secure_aggregation", "algorithm.dual=paper"],
            "algorithm.dual=paper: a client's dual holds only",
        ),
        (
            [*RECORD, "dp=secure_aggregation", "algorithm.dual=paper"],
            "with its share of the noise only",
        ),
        ([*RECORD, "dp=cdp", "algorithm.dual=paper"], "without noise"),
        ([*RECORD, "dp=cdp", "algorithm.bound_aux=xi"], "the scaling depends on the records"),
        ([*RECORD, "dp=cdp", "algorithm.clip_norm=2"], "give clip_norm <= side_clip_norm"),
        ([*RECORD, "dp=cdp", "algorithm.bound_aux=clip_auxiliary"], "= 0 for the auxiliary vector"),
        (
            [*RECORD, "dp=cdp", "algorithm.bound_aux=xi", "algorithm.sensitivity=xi_safe"],
            "xi_safe is infinite",
        ),
        (["algorithm=fednew", "dp=cdp", "algorithm.penalty=-1"], "algorithm.penalty=-1"),
        (["algorithm=fednew", "dp=cdp", "algorithm.inner=0"], "algorithm.inner=0"),
        (
            ["algorithm=fednew", "dp=ldp", "dp.unit=record"],
            "(dp=ldp); write algorithm=fednew_record, or dp.unit=client",
        ),
        (
            ["algorithm=fednew", "dp=record"],
            "write algorithm=fednew_record, or dp=ldp or dp=cdp, or dp.unit=client",
        ),
        (
            ["algorithm=fednew_record", "dp=secure_aggregation"],
            "write dp.unit=record, or dp=record, or algorithm=fednew for whole clients",
        ),
        (["algorithm=isrl_dp", "dp=cdp"], "(dp=cdp); write dp.unit=record, or dp=record"),
    ],
)
def test_what_is_not_proved_or_makes_no_sense_is_refused_in_one_line(
    words: list[str], message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        make_plan(compose_config([*SMALL, *words]))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("how", ["tight", "paper"])
def test_the_papers_constant_needs_enough_records_before_anything_runs(how: str) -> None:
    """gamma m > D, with gamma = 1/4 + 1 and m = 3: up to D = 3.75."""
    words = [
        *SMALL,
        *RECORD,
        "dp=cdp",
        "algorithm.damping=0.25",
        "algorithm.penalty=1.0",
        f"algorithm.sensitivity={how}",
    ]
    below = compose_config([*words, "algorithm.curvature_clip_norm=3.74"])
    make_plan(below)
    beyond = compose_config([*words, "algorithm.curvature_clip_norm=3.75"])
    if how == "tight":
        make_plan(beyond)
        return
    named = (
        r"algorithm\.damping \+ algorithm\.penalty.*algorithm\.curvature_clip_norm.*"
        r"has 3, and 1\.25 \* 3 <= 3\.75"
    )
    with pytest.raises(ConfigError, match=named) as caught:
        make_plan(beyond)
    assert "\n" not in str(caught.value)
    without = [*(word for word in words if word not in ("dp=cdp", "dp.unit=record")), "dp=none"]
    make_plan(compose_config([*without, "algorithm.curvature_clip_norm=3.75"]))


def test_lemma_3_needs_damping_over_the_records() -> None:
    """Of the client with the fewest; the bound itself refuses too
    (tests/privacy/test_second_order_privacy.py).
    """
    options = {"sensitivity": "paper", "penalty": 0.0}
    with pytest.raises(ConfigError, match=r"has 3, .*sensitivity=tight"):
        play("fednew_record", "local", options, federations=[grouped_federation(0, [3, 4])])


@pytest.mark.parametrize(
    "method",
    [["fednew", "dp=ldp"], ["fednew_record", "dp=ldp", "dp.unit=record"]],
    ids=lambda words: words[0],
)
def test_rounds_on_a_device_share_their_covariance_factors(
    method: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A device is asked for the damping and the bound once, and not whether they are the same as
    before: they have to be the same tensors.
    """
    made, asked = [], []
    factor = single_layer.covariance_inverse
    monkeypatch.setattr(
        single_layer, "covariance_inverse", lambda *args: made.append(args) or factor(*args)
    )
    monkeypatch.setattr(
        single_layer, "host_numbers", lambda values: asked.append(values) or [1.0] * len(values)
    )
    monkeypatch.setattr(stack, "pick_device", lambda name: torch.device("meta"))
    data = [
        "dataset=synthetic_alpha_beta",
        "dataset.clients=5",
        "dataset.records_per_client=12",
        "dataset.classes=3",
    ]
    words = [
        f"algorithm={method[0]}",
        *method[1:],
        "dp.mode=paper",
        *data,
        "model=softmax",
        "algorithm.curvature=covariance",
    ]
    batch = Stack([Member(make_plan(compose_config([*words, "rounds=4"])))])
    batch.step(shown=False)
    first = len(made), len(asked)
    batch.step(shown=False)
    assert 0 not in first
    assert first == (len(made), len(asked))
