"""PrivUnit x ScalarDP and NormEst: constants, exact laws by enumeration and quadrature, and the
privacy of messages by count.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Literal

import numpy as np
import pytest
import torch
from scipy.integrate import quad
from scipy.special import betainc, gammaln
from scipy.stats import beta, kstest

from dpfl_cli.config.errors import ConfigError
from dpfl_cli.privacy.client_values import opened
from dpfl_cli.privacy.privunit import PrivUnit
from dpfl_cli.privacy.privunit_constants import (
    Cap,
    GammaRule,
    PrivUnitSettings,
    budgets,
    cap_of,
    exact_threshold,
    make_cap,
    make_grid,
    optimal_cap,
    paper_threshold,
    spent_epsilon,
)
from dpfl_cli.privacy.releases import Release, ReleaseSpec

ROUND = np.array([1])

# PRIVACY notes, section 6: d, gamma and m and MSE of the paper's rule, the same of the exact rule,
#   the best split of 4.
TABLE = [
    (
        10,
        0.318172241,
        0.402685172,
        "5.167",
        0.387956412,
        0.450320989,
        "3.931",
        "1.5021",
        "2.4979",
        "3.674",
    ),
    (
        100,
        0.095932540,
        0.127512795,
        "60.50",
        0.118373417,
        0.144276793,
        "47.04",
        "1.3466",
        "2.6534",
        "42.82",
    ),
    (
        237,
        0.062133746,
        0.082825213,
        "144.77",
        0.076713186,
        0.093773753,
        "112.72",
        "1.3373",
        "2.6627",
        "102.45",
    ),
    (
        5000,
        0.013500255,
        0.018031682,
        "3074.6",
        0.016674648,
        0.020424137,
        "2396.2",
        "1.3310",
        "2.6690",
        "2175.9",
    ),
]


def digits(value: float, printed: str) -> str:
    return f"{value:.{len(printed.split('.')[1])}f}"


@pytest.mark.parametrize("row", TABLE, ids=lambda row: f"d={row[0]}")
def test_constants_to_the_digits_known(row):
    dimension, gamma, scale, error, exact_gamma, exact_scale, exact_error, first, second, best = row
    paper = make_cap(2.0, 2.0, "paper", dimension)
    exact = make_cap(2.0, 2.0, "exact", dimension)
    split = optimal_cap(4.0, "exact", dimension)
    assert (round(paper.threshold, 9), round(paper.scale, 9)) == (gamma, scale)
    assert (round(exact.threshold, 9), round(exact.scale, 9)) == (exact_gamma, exact_scale)
    assert digits(mean_squared_error(paper), error) == error
    assert digits(mean_squared_error(exact), exact_error) == exact_error
    assert digits(split.epsilon_cap, first) == first
    assert digits(split.epsilon_direction, second) == second
    assert digits(mean_squared_error(split), best) == best


def test_scalar_constants_to_the_digits_known():
    grid = make_grid(2.0)
    assert grid.levels == 2
    assert [
        round(x, 9) for x in (grid.step, grid.shift, grid.keep, grid.linear, grid.constant)
    ] == [
        0.734776464,
        0.319520937,
        0.786986042,
        0.469552928,
        0.324240770,
    ]


def mean_squared_error(cap: Cap) -> float:
    """E ||z - u||^2."""
    return cap.scale**-2 - 1


def exact_loss(cap: Cap) -> float:
    """The log of the largest ratio of V's densities, e0 + ln((1 - mass) / mass)."""
    return cap.epsilon_cap + math.log1p(-cap.mass) - math.log(cap.mass)


def exact_epsilon(chosen, dimension: int) -> float:
    """The smallest epsilon for which one release is epsilon-DP.

    The ratio of densities is largest for two inputs whose caps do not coincide and whose norms are
    0 and C; both parts can be read from c = s z, so the two losses add.
    """
    return exact_loss(cap_of(chosen, dimension)) + budgets(chosen)[2]


def test_exact_loss_of_a_round(settings):
    for dimension, value in ((100, 5.5859), (237, 5.5861)):
        assert round(exact_epsilon(settings("privunit"), dimension), 4) == value
    exact = settings("privunit", gamma_rule="exact")
    assert exact_epsilon(exact, 100) == pytest.approx(6, abs=1e-9)
    assert spent_epsilon(settings("privunit")) == spent_epsilon(exact) == 6.0


def density(dimension: int):
    """The density of one coordinate of a uniform point of the sphere."""
    log_constant = gammaln(dimension / 2) - gammaln((dimension - 1) / 2) - 0.5 * math.log(math.pi)
    return lambda t: math.exp(log_constant + (dimension - 3) / 2 * math.log1p(-t * t))


@pytest.mark.parametrize("dimension", [3, 10, 100, 5046])
@pytest.mark.parametrize("rule", ["paper", "exact"])
def test_mass_and_mean_by_quadrature(dimension, rule):
    """An independent way to P(cap) and m: integrals of the coordinate's density."""
    cap = make_cap(1.0, 3.0, rule, dimension)
    law = density(dimension)
    reach = min(1.0, 12 / math.sqrt(dimension))

    def integral(f, low, high):
        return quad(f, low, high, epsabs=1e-13, epsrel=1e-12, limit=400)[0]

    mass = integral(law, cap.threshold, reach)
    assert cap.mass == pytest.approx(mass, rel=1e-9)
    inside = integral(lambda t: t * law(t), cap.threshold, reach) / mass
    outside = integral(lambda t: t * law(t), -reach, cap.threshold) / (1 - mass)
    assert cap.scale == pytest.approx(cap.inside * inside + (1 - cap.inside) * outside, rel=1e-8)


@pytest.mark.parametrize("dimension", [2, 3, 4, 10, 100, 237, 5046, 1_000_000])
@pytest.mark.parametrize("rule", ["paper", "exact"])
def test_the_loss_never_exceeds_the_budget(dimension, rule):
    """The largest ratio of V's densities, in closed form: cap against complement."""
    for first, second in itertools.product(
        [0.01, 0.5, 1.0, 2.0, 4.0, 8.0], [0.01, 0.5, 1.0, 2.0, 3.2, 6.0, 12.0]
    ):
        cap = make_cap(first, second, rule, dimension)
        ratio = (cap.inside / cap.mass) / ((1 - cap.inside) / (1 - cap.mass))
        assert ratio >= 1
        assert math.log(ratio) == pytest.approx(exact_loss(cap), rel=1e-9)
        assert math.log(ratio) <= first + second + 1e-9
        if rule == "exact":
            assert exact_loss(cap) == pytest.approx(first + second, abs=1e-8)
        assert cap.scale > 0


@pytest.mark.parametrize("dimension", [10, 237, 600, 5046, 100_000])
def test_the_exact_rule_is_exact_or_refused(dimension):
    """tanh(36 / 2) is 1 to fewer digits than the budget has."""
    for second in (16.0, 20.0, 24.0):
        loss = exact_loss(make_cap(0.066, second, "exact", dimension))
        assert 0.066 + second - 1e-5 < loss < 0.066 + second + 1e-11
    with pytest.raises(ConfigError, match="loses its digits"):
        make_cap(0.066, 36.2, "exact", dimension)


@pytest.mark.parametrize("second", [2e-9, 1e-6, 17.0, 23.9])
@pytest.mark.parametrize("dimension", [2, 3, 253, 812, 150_532])
def test_rounding_costs_no_more_than_is_charged(dimension, second):
    """The incomplete beta function loses digits where the cap is nearly half of the sphere (1.6 %
    of a budget of 2e-9), and tanh above 10.
    """
    assert exact_loss(make_cap(1e-5, second, "exact", dimension)) < 1e-5 + second + 5e-12


def test_the_papers_rule_overspends_in_two_dimensions_unless_it_is_cut():
    raw = paper_threshold(2.0, 2)
    mass = 0.5 * betainc(0.5, 0.5, 1 - raw**2)
    assert math.log((1 - mass) / mass) > 2.2  # e1 is 2
    assert make_cap(2.0, 2.0, "paper", 2).threshold == exact_threshold(2.0, 2)[0]


def test_the_papers_second_condition_takes_over_at_large_budgets():
    assert paper_threshold(2.0, 100) == pytest.approx(math.tanh(1) * math.sqrt(math.pi / 198))
    gamma = paper_threshold(12.0, 100)
    assert gamma > math.tanh(6) * math.sqrt(math.pi / 198)
    cost = 0.5 * math.log(100) + math.log(6) - 49.5 * math.log1p(-(gamma**2)) + math.log(gamma)
    assert cost == pytest.approx(12)


@pytest.mark.parametrize("rule", ["paper", "exact"])
def test_no_split_of_the_budget_beats_the_optimal_one(rule):
    for dimension, total in ((2, 1.0), (10, 4.0), (237, 4.0), (100, 0.2)):
        best = optimal_cap(total, rule, dimension)
        assert best.epsilon_cap + best.epsilon_direction == pytest.approx(total)
        for share in np.linspace(0.01, 0.99, 99):
            other = make_cap(share * total, (1 - share) * total, rule, dimension)
            assert mean_squared_error(best) <= mean_squared_error(other) * (1 + 1e-9)


def split_messages(release: Release, values, mechanism):
    """s [R, M], Z [R, M, d] of messages whose levels NormEst can tell."""
    grid = make_grid(mechanism.settings[0].epsilon_norm)
    scale = mechanism._cap.scale
    bound = values.bound.double().numpy()[:, None]
    received = release.received.double().numpy()
    size = np.linalg.norm(received, axis=-1) * scale / bound
    candidates = grid.step * (np.arange(grid.levels + 1) - grid.shift)
    level = np.abs(size[..., None] - np.abs(candidates)).argmin(axis=-1)
    signed = candidates[level] * bound
    return level, signed, received / signed[..., None], size, candidates


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("dimension", [2, 3, 10, 237])
def test_messages_have_exactly_the_lengths_they_should(build, clipped, dtype, dimension):
    """||Z|| = 1 / m, so a message is |s| / m long: one of k + 1 lengths."""
    mechanism = build("privunit", 500, dimension)
    values = clipped(
        torch.randn(1, 500, dimension, dtype=dtype, generator=torch.Generator().manual_seed(1)), 0.7
    )
    release = mechanism.release("update", values, ROUND)
    assert release.received.dtype == dtype
    level, _, z, size, candidates = split_messages(release, values, mechanism)
    tolerance = 2e-6 if dtype == torch.float32 else 1e-12
    np.testing.assert_allclose(size, np.abs(candidates)[level], rtol=tolerance)
    np.testing.assert_allclose(np.linalg.norm(z, axis=-1) * mechanism._cap.scale, 1, rtol=tolerance)
    assert set(np.unique(level)) == {0, 1, 2}


@pytest.mark.parametrize("rule", ["paper", "exact"])
@pytest.mark.parametrize("dimension", [2, 3, 10, 100])
def test_the_cosine_has_its_law(build, clipped, dimension, rule):
    """<V, u> against its distribution function (a mixture of two pieces of a Beta law)."""
    clients = 40_000
    mechanism = build("privunit", clients, dimension, changes=[{"gamma_rule": rule}])
    values = clipped(
        torch.randn(
            1, clients, dimension, dtype=torch.float64, generator=torch.Generator().manual_seed(2)
        )
    )
    release = mechanism.release("update", values, ROUND)
    cap = make_cap(2.0, 2.0, rule, dimension)
    _, _, z, _, _ = split_messages(release, values, mechanism)
    inside = opened(values.values).numpy()
    unit = inside / np.linalg.norm(inside, axis=-1, keepdims=True)
    cosine = (z * unit).sum(axis=-1)[0] * cap.scale
    law = beta((dimension - 1) / 2, (dimension - 1) / 2)

    def distribution(t):
        below = law.cdf((1 + t) / 2)
        outside = np.minimum(below, 1 - cap.mass) / (1 - cap.mass)
        return (1 - cap.inside) * outside + cap.inside * np.maximum(
            below - (1 - cap.mass), 0
        ) / cap.mass

    assert kstest(cosine, distribution).pvalue > 1e-4
    share = (cosine >= cap.threshold).mean()
    assert abs(share - cap.inside) < 5 * math.sqrt(cap.inside * (1 - cap.inside) / clients)


@pytest.mark.parametrize(
    "u",
    [
        [1.0, 0, 0, 0],
        [-1.0, 0, 0, 0],
        [0, 0, 0, 1.0],
        [-1e-9, 1.0, 1.0, 1.0],
        [0.5, -0.5, 0.5, 0.5],
    ],
)
def test_the_direction_around_u_is_uniform_and_the_mean_is_u(build, clipped, u):
    """Also for u at and opposite to the axis of the reflection."""
    clients = 60_000
    mechanism = build("privunit", clients, 4)
    values = clipped(torch.tensor(u, dtype=torch.float64).expand(1, clients, 4))
    release = mechanism.release("update", values, ROUND)
    _, _, z, _, _ = split_messages(release, values, mechanism)
    unit = np.array(u) / np.linalg.norm(u)
    mean, error = z[0].mean(axis=0), z[0].std(axis=0) / math.sqrt(clients)
    assert (np.abs(mean - unit) < 4.5 * error).all()
    across = z[0] - (z[0] @ unit)[:, None] * unit
    across /= np.linalg.norm(across, axis=1, keepdims=True)
    basis = np.linalg.svd(unit[None])[2][1:]  # an orthonormal basis of the complement of u
    coordinates = across @ basis.T
    for coordinate in coordinates.T:  # of the sphere in three dimensions: uniform on [-1, 1]
        assert kstest(coordinate, "uniform", args=(-1, 2)).pvalue > 1e-4


def test_a_zero_vector_has_a_uniform_direction_and_mean_zero(build, clipped):
    clients = 60_000
    for dtype in (torch.float32, torch.float64):
        for tiny in (0.0, 1e-42, 1e-31):
            mechanism = build("privunit", clients, 3)
            values = clipped(torch.full((1, clients, 3), tiny, dtype=dtype))
            release = mechanism.release("update", values, ROUND)
            _, _, z, _, _ = split_messages(release, values, mechanism)
            v = z[0] * float(mechanism._cap.scale[0, 0])
            for coordinate in v.T:
                assert kstest(coordinate, "uniform", args=(-1, 2)).pvalue > 1e-4
            message = release.received[0].double().numpy()
            assert (
                np.abs(message.mean(axis=0)) < 5 * message.std(axis=0) / math.sqrt(clients)
            ).all()


@pytest.mark.parametrize("norm", [1e-22, 1e-20, 1e-18, 1e-10, 1.0])
def test_no_length_of_an_update_makes_a_message_overflow(build, clipped, norm):
    """A message that is not finite would tell that its update is short."""
    weak = {"epsilon_cap": 1e-6, "epsilon_direction": 1e-6}
    mechanism = build("privunit", 400, 50, changes=[weak])
    mechanism.check(mechanism.settings[0], 50)
    values = torch.full((1, 400, 50), norm / math.sqrt(50), dtype=torch.float32)
    received = mechanism.release("update", clipped(values, 1e15), ROUND).received
    assert torch.isfinite(received).all()


@pytest.mark.parametrize("split", ["given", "optimal"])
def test_budgets_that_leave_no_direction_are_refused(settings, split):
    """The mean m of <V, u> would be zero to rounding, and a message infinite, or no number in those
    coordinates where the update is zero.
    """
    weak = settings("privunit", epsilon_cap=1e-17, epsilon_direction=1e-17, split=split)
    with pytest.raises(ConfigError, match="numbers overflow"):
        cap_of(weak, 50)


def scalar_law(mechanism, radius: float) -> dict[int, float]:
    """The exact distribution of ScalarDP's level, by enumeration of the dice through the
    mechanism's own code.
    """
    grid = make_grid(mechanism.settings[0].epsilon_norm)
    position = grid.levels * radius
    share = position - math.floor(position)
    law: dict[int, float] = dict.fromkeys(range(grid.levels + 1), 0.0)
    almost_one = math.nextafter(1.0, 0.0)
    rounding = [
        (max(share - 1e-9, 0.0), share),
        (min(share + 1e-9, almost_one), 1 - share),
    ]  # either side of the threshold
    keeping = [(grid.keep - 1e-9, grid.keep), (grid.keep + 1e-9, 1 - grid.keep)]
    others = [
        ((j + end) / grid.levels, 0.5 / grid.levels)
        for j in range(grid.levels)
        for end in (1e-9, 1 - 1e-9)
    ]
    for (r, pr), (k, pk), (o, po) in itertools.product(rounding, keeping, others):
        if pr == 0:
            continue
        one = torch.tensor([[1.0]], dtype=torch.float64)
        value = mechanism._private_norm(radius * one, one, r * one, k * one, o * one)
        law[round(float(value) / grid.step + grid.shift)] += pr * pk * po
    return law


RADII = [0.0, 0.1, 0.25, 1 / 3, 0.5, 0.6180339887, 0.75, 0.999, 1.0]
RADII += [1 + 5e-11]  # clipped values may be longer than C by rounding


@pytest.mark.parametrize("epsilon", [0.2, 0.7, 2.0, 5.0])
def test_scalar_is_exactly_private_and_unbiased_and_its_estimate_as_known(build, epsilon):
    """By enumeration: ratios at most and somewhere exactly e^e2; E s = r; E NormEst = r^2 - (1/4 -
    f (1 - f)) / k^2.
    """
    mechanism = build("privunit", 1, 3, changes=[{"epsilon_norm": epsilon}])
    grid = make_grid(epsilon)
    levels = np.arange(grid.levels + 1)
    scale = float(mechanism._cap.scale[0, 0])
    # a message of level j is |a (j - b)| / m long; NormEst sees nothing else
    lengths = np.abs(grid.step * (levels - grid.shift)) / scale
    estimates = []
    for length in lengths:
        received = torch.tensor([[[length, 0.0, 0.0]]], dtype=torch.float64)
        release = Release(received=received, own=received, bound=torch.ones(1, dtype=torch.float64))
        estimates.append(float(mechanism.squared_norms(release)))
    laws = []
    for radius in RADII:
        law = np.array(list(scalar_law(mechanism, radius).values()))
        assert law.sum() == pytest.approx(1, abs=1e-12)
        laws.append(law)
        assert law @ (grid.step * (levels - grid.shift)) == pytest.approx(radius, abs=1e-10)
        fraction = math.modf(grid.levels * radius)[0]
        bias = (0.25 - fraction * (1 - fraction)) / grid.levels**2
        assert law @ np.array(estimates) == pytest.approx(radius**2 - bias, abs=1e-9)
    table = np.array(laws)
    assert (table.max(axis=0) / table.min(axis=0)).max() == pytest.approx(
        math.exp(epsilon), rel=1e-10
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_estimated_norms_end_to_end(build, clipped, dtype):
    """With clipping active (r = C) the estimate is C^2 / 16 too small at e2 = 2, and never by
    more.
    """
    clients, clip_norm = 40_000, 0.3
    mechanism = build("privunit", clients, 20)
    values = clipped(
        torch.randn(1, clients, 20, dtype=dtype, generator=torch.Generator().manual_seed(3)),
        clip_norm,
    )
    release = mechanism.release("update", values, ROUND)
    estimate = mechanism.squared_norms(release).double().numpy()[0]
    assert (
        len(np.unique(np.round(estimate / clip_norm**2, 4))) == 3
    )  # one value a level: every sign was told
    expected = clip_norm**2 * (1 - 1 / 16)
    assert abs(estimate.mean() - expected) < 5 * estimate.std() / math.sqrt(clients)


def test_messages_of_neighbours_are_as_close_as_the_budget_says(build, clipped):
    """Counts of whole messages (angle x length, d = 2) under pairs of inputs; e = 1.5 in all.

    The ratio of frequencies of any cell may exceed e^1.5 only by chance (5 standard errors), and
    the exact loss is reached.
    """
    clients = 120_000
    budget = {
        "epsilon_cap": 0.5,
        "epsilon_direction": 0.4,
        "epsilon_norm": 0.6,
        "gamma_rule": "exact",
    }
    inputs = [[1.0, 0.0], [-1.0, 0.0], [0.0, 0.0], [0.0, 0.5], [0.3, 0.4], [-0.6, 0.8]]
    histograms = []
    for seed, row in enumerate(inputs):
        mechanism = build("privunit", clients, 2, seeds=(seed,), changes=[budget])
        values = clipped(torch.tensor(row, dtype=torch.float64).expand(1, clients, 2))
        message = mechanism.release("update", values, ROUND).received[0].numpy()
        length = np.linalg.norm(message, axis=1)
        lengths = np.unique(np.round(length, 9))
        angle = (
            np.arctan2(message[:, 1], message[:, 0]) / (2 * math.pi) + 1 / 16
        ) % 1  # cells are centred on the axes
        cell = np.floor(angle * 8).astype(int) + 8 * np.searchsorted(lengths, np.round(length, 9))
        histograms.append(np.bincount(cell, minlength=8 * 3))
        assert len(lengths) == 3
    counts = np.array(histograms, float)
    logs = np.log(counts)
    errors = np.sqrt(1 / counts[:, None] + 1 / counts[None])
    excess = logs[:, None] - logs[None]
    assert (excess - 5 * errors < 1.5).all()
    assert excess.max() > 1.4  # tight: the same test with a budget of 1.4 would not hold
    assert (excess - 5 * errors).max() > 1.3


@pytest.mark.parametrize(
    ("epsilon", "refused"),
    [(math.log(4), True), (1e-3, True), (19.0, True), (2.0, False), (18.0, False)],
)
def test_budgets_at_which_signs_cannot_be_told_are_refused(build, settings, epsilon, refused):
    """2b = k (k + 1) / (e^e2 + k) must not be an integer; at ln 4 it is 1."""
    if not refused:
        build("privunit", 2, 3, changes=[{"epsilon_norm": epsilon}])
        return
    own = settings("privunit", epsilon_norm=epsilon)
    with pytest.raises(ConfigError, match=r"mechanism\.epsilon_norm=.*cannot tell signs") as caught:
        PrivUnit.check(own, 3)
    assert "\n" not in str(caught.value)


def test_one_dimension_is_refused_before_anything_runs(build, settings):
    with pytest.raises(ConfigError, match="at least 2 model parameters"):
        build("privunit", 3, 1)
    mechanism = build("privunit", 3, 2)
    setup = replace(mechanism._site.setup, dimension=1)
    with pytest.raises(ConfigError, match="at least 2 model parameters"):
        type(mechanism).entry(settings("privunit"), ReleaseSpec("update"), setup)


@pytest.mark.parametrize("field", ["epsilon_cap", "epsilon_direction", "epsilon_norm", "epsilon"])
@pytest.mark.parametrize("value", [0.0, -2.0, math.inf, math.nan, "2"])
def test_impossible_budgets_are_refused(settings, field, value):
    with pytest.raises(ConfigError, match=rf"mechanism\.{field}"):
        settings("privunit", **{field: value})


def test_a_total_is_split_in_the_proportions_of_the_three(build, settings):
    total = settings("privunit", epsilon_cap=1.0, epsilon_norm=3.0, epsilon=1.5)
    assert spent_epsilon(total) == 1.5
    mechanism = build("privunit", 2, 5, changes=[total.model_dump()])
    cap, grid = make_cap(0.25, 0.5, "paper", 5), make_grid(0.75)
    assert mechanism._cap.scale[0, 0] == pytest.approx(cap.scale)
    assert mechanism._grid.step[0, 0] == pytest.approx(grid.step)


def test_the_ledger_is_charged_the_sum_whatever_the_rule(build, clipped):
    changes = [
        {},
        {"gamma_rule": "exact"},
        {"gamma_rule": "exact", "split": "optimal"},
        {"epsilon": 0.16},
    ]
    mechanism = build("privunit", 4, 6, seeds=range(4), changes=changes)
    for round_ in (1, 2):
        mechanism.release("update", clipped(torch.ones(4, 4, 6)), np.full(4, round_))
    for run, epsilon in enumerate((6.0, 6.0, 6.0, 0.16)):
        (entry,) = mechanism._site.ledger.of_run(run).entries
        assert (entry.kind, entry.count, entry.parameter, entry.scope) == (
            "pure",
            2,
            epsilon,
            "client",
        )


def test_noise_that_is_to_change_over_rounds_is_refused(build, clipped):
    """A message costs its whole epsilon in every round, whatever a schedule says."""
    spec = ReleaseSpec("update", factors=np.linspace(0.1, 1.0, 10_000))
    mechanism = build("privunit", 4, 6, specs=[spec])
    with pytest.raises(ConfigError, match="would be charged for other noise"):
        mechanism.release("update", clipped(torch.ones(1, 4, 6)), ROUND)
    with pytest.raises(ConfigError, match="take a schedule of equal noise"):
        type(mechanism).planned(mechanism.settings[0], [spec], mechanism._site.setup)
    gaussian = build("local_gaussian", 4, 6, specs=[spec])
    gaussian.release("update", clipped(torch.ones(1, 4, 6)), ROUND)


def test_the_optimal_split_lowers_the_error_of_messages(build, clipped):
    clients = 4000
    changes = [{}, {"gamma_rule": "exact"}, {"gamma_rule": "exact", "split": "optimal"}]
    mechanism = build("privunit", clients, 100, seeds=(0, 1, 2), changes=changes)
    values = clipped(torch.ones(3, clients, 100, dtype=torch.float64))
    release = mechanism.release("update", values, np.ones(3, int))
    _, _, z, _, _ = split_messages(release, values, mechanism)
    errors = np.square(z - 0.1).sum(axis=-1).mean(axis=-1)
    np.testing.assert_allclose(errors, [60.50, 47.04, 42.82], rtol=0.02)


@pytest.mark.parametrize(
    ("direction", "rule", "split", "dimension"),
    [(2.0, "exact", "given", 100), (160.0, "paper", "optimal", 3)],
)
def test_the_other_side_of_a_cap_is_drawn_or_it_is_refused(
    direction: float, rule: GammaRule, split: Literal["given", "optimal"], dimension: int
) -> None:
    """expit(37) is 1."""
    settings = PrivUnitSettings(
        epsilon_cap=40.0,
        epsilon_direction=direction,
        epsilon_norm=2.0,
        epsilon=None,
        gamma_rule=rule,
        split=split,
    )
    with pytest.raises(ConfigError, match="the other side is hardly ever drawn"):
        cap_of(settings, dimension)
