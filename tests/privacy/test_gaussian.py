"""No noise and Gaussian noise, measured end to end."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import pytest
import torch
from scipy.stats import chi2, kstest

from dpfl_cli.config.errors import ConfigError, PrivacyError
from dpfl_cli.data.streams import Streams
from dpfl_cli.privacy.bounded import as_computed, squared_norms
from dpfl_cli.privacy.client_values import ClientValues, client_values, opened
from dpfl_cli.privacy.record_bounds import number_mean, record_mean
from dpfl_cli.privacy.releases import ReleaseSpec

ROUND, HORIZON = np.array([1]), 10_000


def fedexp_multiplier(dimension: int, clients: int):
    """sigma_xi = d sigma^2 / M in units of its sensitivity C^2 / M, where sigma / sqrt(M) = z 2C /
    M.
    """
    return lambda z: 4 * dimension * z**2 / clients


def directions(runs: int, clients: int, dimension: int, dtype=torch.float64) -> torch.Tensor:
    generator = torch.Generator().manual_seed(7)
    return torch.randn(runs, clients, dimension, generator=generator, dtype=torch.float64).to(dtype)


def assert_normal(sample: torch.Tensor, std: float) -> None:
    """Mean 0, the variance (chi-square, 1e-6 in each tail) and the shape of a normal law."""
    flat = sample.double().flatten().numpy() / std
    n = flat.size
    assert abs(flat.mean()) < 5 / math.sqrt(n)
    assert chi2.ppf(1e-6, n) < np.square(flat).sum() < chi2.isf(1e-6, n)
    assert kstest(flat[:20_000], "norm").pvalue > 1e-4


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("relation", "sensitivity"), [("replace_one", 2.0), ("add_or_remove", 1.0), ("zero_out", 1.0)]
)
def test_local_noise_has_the_std_that_the_ledger_says(build, clipped, dtype, relation, sensitivity):
    clip_norms = [0.3, 3.0]
    mechanism = build(
        "local_gaussian",
        600,
        40,
        seeds=(1, 2),
        relation=relation,
        changes=[{}, {"noise_multiplier": 1.5}],
    )
    values = clipped(directions(2, 600, 40, dtype), clip_norms)
    release = mechanism.release("update", values, np.array([1, 1]))
    assert (release.received.dtype, release.mean.dtype) == (dtype, dtype)
    noise = release.received - opened(values.values)
    for run, (multiplier, clip_norm) in enumerate(zip([0.35, 1.5], clip_norms, strict=True)):
        std = multiplier * sensitivity * clip_norm
        assert_normal(noise[run], std)
        assert float(release.noise_std[run]) == pytest.approx(std, rel=1e-6)
        (entry,) = mechanism._site.ledger.of_run(run).entries
        assert (entry.kind, entry.count, entry.parameter, entry.scope) == (
            "gaussian",
            1,
            multiplier,
            "client",
        )
        assert entry.sensitivity == pytest.approx(sensitivity * clip_norm, rel=1e-6)
        assert entry.relation == relation
    torch.testing.assert_close(release.mean, release.received.mean(dim=1))
    assert isinstance(release.echo, ClientValues)
    assert torch.equal(opened(release.echo), release.received)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("relation", "sensitivity"), [("replace_one", 2.0), ("zero_out", 1.0)])
def test_central_noise_on_the_mean(build, clipped, dtype, relation, sensitivity):
    clients, clip_norm = 50, 0.3
    mechanism = build("central_gaussian", clients, 30_000, relation=relation)
    values = clipped(directions(1, clients, 30_000, dtype), clip_norm)
    release = mechanism.release("update", values, ROUND)
    assert release.received.shape == (1, 30_000)
    std = 2.5 * sensitivity * clip_norm / clients
    assert_normal(release.received - opened(values.values).mean(dim=1), std)
    assert float(release.noise_std[0]) == pytest.approx(std, rel=1e-6)
    assert torch.equal(release.mean, release.received)
    assert torch.equal(
        opened(release.echo), opened(values.values)
    )  # its own clipped contribution, without noise
    (entry,) = mechanism._site.ledger.of_run(0).entries
    assert (entry.kind, entry.parameter, entry.scope) == ("gaussian", 2.5, "federation")


def test_the_central_squared_norm_has_the_papers_noise(build, clipped):
    """z = 2.5, d = 500, M = 1000: a multiplier of 12.5, so mu = 0.08 = 40 / d a round, and std 25 d
    C^2 / M^2.
    """
    assert fedexp_multiplier(500, 1000)(2.5) == pytest.approx(12.5)
    clients, clip_norm, dimension, runs = 1000, 0.3, 500, 2000
    specs = [
        ReleaseSpec("update"),
        ReleaseSpec("norm", "scalar", multiplier=fedexp_multiplier(dimension, clients)),
    ]
    mechanism = build("central_gaussian", clients, dimension, seeds=range(runs), specs=specs)
    one = squared_norms(clipped(directions(1, clients, dimension), clip_norm))
    values = squared_norms(clipped(directions(1, clients, 1).expand(runs, clients, 1), clip_norm))
    release = mechanism.release("norm", values, np.ones(runs, int))
    assert release.received.shape == (runs,)
    std = 25 * dimension * clip_norm**2 / clients**2
    assert float(release.noise_std[0]) == pytest.approx(std)
    assert_normal(release.received - opened(values.values).mean(dim=1), std)
    (entry,) = mechanism._site.ledger.of_run(5).entries
    assert entry.parameter == pytest.approx(12.5)
    assert 1 / entry.parameter == pytest.approx(0.08)
    assert entry.sensitivity == pytest.approx(clip_norm**2)
    assert (entry.shape, entry.scope) == ("scalar", "federation")
    assert float(one.bound[0]) == pytest.approx(clip_norm**2)


def test_norms_behind_messages_are_estimated_without_bias(build, clipped):
    clients, dimension = 20_000, 10
    mechanism = build("local_gaussian", clients, dimension)
    values = clipped(0.5 * directions(1, clients, dimension), 2.0)
    release = mechanism.release("update", values, ROUND)
    errors = (mechanism.squared_norms(release) - opened(values.values).square().sum(dim=-1)).numpy()
    assert errors.shape == (1, clients)
    assert abs(errors.mean()) < 4 * errors.std() / math.sqrt(clients)
    naive = (
        release.received.square().sum(dim=-1) - opened(values.values).square().sum(dim=-1)
    ).numpy()
    assert naive.mean() > 100 * abs(errors.mean())  # what the correction d std^2 is for


def test_local_noise_is_independent_between_clients_rounds_runs_and_names(build, clipped):
    specs = [ReleaseSpec("update"), ReleaseSpec("control")]
    mechanism = build("local_gaussian", 300, 50, seeds=(0, 1), specs=specs)
    zeros = torch.zeros(2, 300, 50, dtype=torch.float64)
    draws = [
        mechanism.release(name, clipped(zeros), np.array([round_, round_])).received
        for round_ in (1, 2)
        for name in ("update", "control")
    ]
    rows = torch.cat([draw.reshape(-1, 15_000) for draw in draws])
    correlation = torch.corrcoef(rows) - torch.eye(len(rows))
    assert correlation.abs().max() < 5 / math.sqrt(15_000)
    between = torch.corrcoef(draws[0][0]) - torch.eye(300)
    assert between.abs().max() < 6 / math.sqrt(50)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [3, 400])
def test_messages_are_clipped_values_plus_noise_bit_by_bit(build, clipped, dtype, size):
    """With clients whose values are not finite."""
    updates = 3 * directions(3, 300, size, dtype)
    updates[0, 7, 1], updates[1, 0, 0], updates[2, 299, 2] = (
        math.nan,
        math.inf,
        -1e38 if dtype == torch.float32 else -1e300,
    )
    bounds = [0.3, 2.0, 1e9]
    build = partial(build, clients=300, dimension=size, seeds=(5, 6, 5))
    rounds = np.array([1, 1, 2])
    known = clipped(updates, bounds)
    plain = opened(known.values)
    release = build("local_gaussian").release("update", known, rounds)
    draws = Streams([5, 6, 5]).normal("noise/update", rounds, 300, size, dtype)
    expected = draws * release.noise_std.to(dtype).reshape(-1, 1, 1) + plain
    assert (plain[0, 7] == 0).all()
    assert (plain[1, 0] == 0).all()
    assert (plain[2, 299] == 0).all()
    assert torch.equal(release.received, expected)
    assert torch.equal(release.mean, expected.mean(dim=1))
    shared = [ReleaseSpec("update", echo=True)]
    one = build("shared_gaussian", specs=shared).release("update", clipped(updates, bounds), rounds)
    assert torch.equal(one.mean, opened(one.echo).mean(dim=1))
    std = (one.noise_std.double() * math.sqrt(300)).reshape(-1, 1, 1)  # of a share
    torch.testing.assert_close(
        opened(one.echo).double() - plain, draws.double() * std, rtol=1e-4, atol=1e-4
    )


def test_none_is_the_values_themselves_and_says_so(build, clipped):
    mechanism = build("none", 6, 5)
    values = clipped(100 * directions(1, 6, 5), math.inf)
    release = mechanism.release("update", values, ROUND)
    assert torch.equal(release.received, 100 * directions(1, 6, 5))
    torch.testing.assert_close(release.mean, release.received.mean(dim=1))
    torch.testing.assert_close(
        mechanism.squared_norms(release), release.received.square().sum(dim=-1)
    )
    assert release.noise_std is None
    (entry,) = mechanism._site.ledger.of_run(0).entries
    assert (entry.kind, entry.parameter, entry.sensitivity) == ("nonprivate", None, None)


@pytest.mark.parametrize("value", [0.0, -0.35, math.nan, math.inf, "0.35", True])
@pytest.mark.parametrize("name", ["local_gaussian", "central_gaussian"])
def test_impossible_noise_is_refused_in_one_line(settings, name, value):
    with pytest.raises(ConfigError, match=r"mechanism\.noise_multiplier") as caught:
        settings(name, noise_multiplier=value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["local_gaussian", "central_gaussian"])
def test_noise_left_for_calibration_cannot_be_used(build, clipped, name):
    mechanism = build(name, 3, 2, changes=[{"noise_multiplier": None}])
    with pytest.raises(
        ConfigError, match=r"mechanism\.noise_multiplier: no noise level.*dp\.epsilon"
    ):
        mechanism.release("update", clipped(torch.ones(1, 3, 2)), ROUND)
    with pytest.raises(ConfigError, match="no noise level"):
        type(mechanism).entry(mechanism.settings[0], ReleaseSpec("update"), mechanism._site.setup)
    assert mechanism._site.ledger.of_run(0).releases == 0


def test_a_trusted_server_hands_out_no_messages(build, clipped):
    mechanism = build("central_gaussian", 3, 2)
    release = mechanism.release("update", clipped(torch.ones(1, 3, 2)), ROUND)
    with pytest.raises(PrivacyError, match="no messages of single clients"):
        mechanism.squared_norms(release)


@pytest.mark.parametrize("echo", [False, True])
@pytest.mark.parametrize(("relation", "sensitivity"), [("replace_one", 2.0), ("zero_out", 1.0)])
def test_shares_add_up_to_the_noise_that_the_ledger_says(
    build, clipped, echo, relation, sensitivity
):
    clients, dimension, clip_norm = 40, 20_000, 0.3
    specs = [ReleaseSpec("update", echo=echo)]
    mechanism = build("shared_gaussian", clients, dimension, relation=relation, specs=specs)
    values = clipped(directions(1, clients, dimension), clip_norm)
    release = mechanism.release("update", values, ROUND)
    std = 2.5 * sensitivity * clip_norm  # of the sum
    assert release.received.shape == (1, dimension)
    assert_normal(release.received - opened(values.values).mean(dim=1), std / clients)
    assert float(release.noise_std[0]) == pytest.approx(std / clients)
    (entry,) = mechanism._site.ledger.of_run(0).entries
    assert (entry.kind, entry.parameter, entry.scope) == ("gaussian", 2.5, "federation")
    assert entry.sensitivity == pytest.approx(sensitivity * clip_norm)
    if not echo:
        with pytest.raises(PrivacyError, match="echo=True"):
            _ = release.echo
        return
    assert isinstance(release.echo, ClientValues)
    shares = opened(release.echo) - opened(values.values)
    assert_normal(shares, std / math.sqrt(clients))
    torch.testing.assert_close(release.received, opened(release.echo).mean(dim=1))


def record_means(runs: int, counts: list[int], dimension: int, clip_norm: float):
    """Zero means over clients of different sizes, which makes the noise all that is seen."""
    zeros = torch.zeros(runs, len(counts), dimension, dtype=torch.float64)
    mean = record_mean(
        client_values(zeros),
        torch.full((runs,), clip_norm, dtype=torch.float64),
        torch.tensor(counts),
    )
    return as_computed(mean, None, None)


@pytest.mark.parametrize(("relation", "factor"), [("replace_one", 2.0), ("add_or_remove", 1.0)])
def test_clients_of_different_size_get_noise_of_their_own_under_local_trust(
    build, relation, factor
):
    counts, dimension = [10, 40, 1], 40_000
    mechanism = build("local_gaussian", 3, dimension, relation=relation, unit="record")
    release = mechanism.release("update", record_means(1, counts, dimension, 0.5), ROUND)
    for client, count in enumerate(counts):
        assert_normal(release.received[0, client], 0.35 * factor * 0.5 / count)
    (entry,) = mechanism._site.ledger.of_run(0).entries
    assert (entry.parameter, entry.unit) == (0.35, "record")
    assert entry.sensitivity == pytest.approx(factor * 0.5)  # of the smallest client


@pytest.mark.parametrize("name", ["central_gaussian", "shared_gaussian"])
def test_a_mean_or_sum_over_clients_of_different_size_is_protected_for_the_smallest(build, name):
    counts, dimension = [10, 40, 4], 40_000
    mechanism = build(name, 3, dimension, unit="record")
    release = mechanism.release("update", record_means(1, counts, dimension, 0.5), ROUND)
    assert_normal(release.received, 2.5 * (2 * 0.5 / 4) / 3)


def test_no_other_number_is_released_as_a_squared_norm(build):
    """With which a vector's release would be priced jointly."""
    spec = ReleaseSpec("norm", "scalar", quantity="squared_norms")
    mechanism = build("central_gaussian", 3, 5, specs=[spec], unit="record")
    one, counts = torch.ones(1), torch.tensor([2, 2, 2])
    numbers = as_computed(number_mean(client_values(torch.ones(1, 3, 2)), one, counts), None, None)
    with pytest.raises(PrivacyError, match="was declared as squared_norms"):
        mechanism.release("norm", numbers, ROUND)


@pytest.mark.parametrize(
    ("dtype", "least", "most"), [(torch.float32, 1e-9, 1e15), (torch.float64, 1e-10, 1e100)]
)
def test_bounds_whose_squares_are_lost_or_overflow_are_refused(build, clipped, dtype, least, most):
    def release(bound: float) -> None:
        values = clipped(directions(1, 3, 4, dtype), bound)
        build("local_gaussian", 3, 4).release("update", values, np.array([1]))

    release(least)
    release(most)
    for bound in (least / 2, 2 * most):
        with pytest.raises(PrivacyError, match="needs clipped values"):
            release(bound)


@pytest.mark.parametrize("name", ["local_gaussian", "central_gaussian", "shared_gaussian"])
def test_a_matrix_may_be_of_another_size_than_the_model_and_a_vector_may_not(build, clipped, name):
    specs = [ReleaseSpec("covariance", shape="matrix"), ReleaseSpec("update")]
    mechanism = build(name, 5, 40, specs=specs)
    values = clipped(directions(1, 5, 100), [1.0])
    release = mechanism.release("covariance", values, ROUND)
    assert release.mean.shape == (1, 100)
    (entry,) = mechanism._site.ledger.of_run(0).entries
    assert (entry.name, entry.shape, entry.kind) == ("covariance", "matrix", "gaussian")
    with pytest.raises(PrivacyError, match="has 100 coordinates, the model 40"):
        mechanism.release("update", values, ROUND)


@pytest.mark.parametrize("sums_suffice", [True, False])
@pytest.mark.parametrize("echo", [False, True])
def test_whole_noise_in_every_message(build, clipped, echo, sums_suffice):
    """Each message holds N(0, std^2), the sum sqrt(M) times as much; the ledger prices the one that
    covers the method.
    """
    clients, dimension, std = 25, 20_000, 2.5 * 2 * 0.3
    specs = [ReleaseSpec("update", echo=echo, sums_suffice=sums_suffice)]
    mechanism = build(
        "shared_gaussian", clients, dimension, specs=specs, changes=[{"noise_share": False}]
    )
    values = clipped(directions(1, clients, dimension), 0.3)
    release = mechanism.release("update", values, ROUND)
    assert_normal(release.received - opened(values.values).mean(dim=1), std / math.sqrt(clients))
    assert float(release.noise_std[0]) == pytest.approx(std / math.sqrt(clients))
    if echo:
        assert_normal(opened(release.echo) - opened(values.values), std)
    (entry,) = mechanism._site.ledger.of_run(0).entries
    wanted = (2.5 * 5, "federation") if sums_suffice else (2.5, "client")
    assert (entry.parameter, entry.scope) == (pytest.approx(wanted[0]), wanted[1])
    assert type(mechanism).whole_noise(mechanism.settings[0])
    shares = type(mechanism).as_calibrated(mechanism.settings[0])
    assert (shares.noise_share, shares.noise_multiplier) == (True, 2.5)


def test_whole_noise_of_a_scheduled_or_derived_multiplier(build, clipped):
    specs = [
        ReleaseSpec("fading", factors=1.0 + np.arange(HORIZON), sums_suffice=False),
        ReleaseSpec("norm", "scalar", multiplier=lambda z: 3 * z),
    ]
    changes = [{"noise_share": False}] * 4000
    mechanism = build("shared_gaussian", 9, 4, seeds=range(4000), specs=specs, changes=changes)
    values = clipped(torch.zeros(4000, 9, 4, dtype=torch.float64), 1.0)
    release = mechanism.release("fading", values, np.full(4000, 3))
    assert_normal(
        release.received, 3 * 2.5 * 2 * 3 / 9
    )  # third factor, z, sensitivity, sqrt(M) of the sum, mean
    norm = mechanism.release("norm", squared_norms(values), np.full(4000, 3))
    assert_normal(norm.received, 3 * 2.5 * 1 * 3 / 9)
    fading, scalar = mechanism._site.ledger.of_run(7).entries
    assert (fading.parameter, fading.scope) == (7.5, "client")
    assert (scalar.parameter, scalar.scope) == (pytest.approx(22.5), "federation")


@pytest.mark.parametrize("noise_share", [True, False])
@pytest.mark.parametrize("echo", [False, True])
def test_shares_for_a_clients_own_sensitivity(build, echo, noise_share):
    counts, dimension = [10, 40, 4], 40_000
    own = np.array([2.5 * 2 * 0.5 / count for count in counts]) / (
        math.sqrt(3) if noise_share else 1.0
    )
    changes = [{"sens_scale": "own", "noise_share": noise_share}]
    specs = [ReleaseSpec("update", echo=echo)]
    mechanism = build("shared_gaussian", 3, dimension, unit="record", specs=specs, changes=changes)
    release = mechanism.release("update", record_means(1, counts, dimension, 0.5), ROUND)
    total = math.sqrt(np.square(own).sum())
    assert_normal(release.received, total / 3)
    assert float(release.noise_std[0]) == pytest.approx(total / 3)
    for client in range(3) if echo else []:
        assert_normal(opened(release.echo)[0, client], own[client])
    assert "moves it by the largest" in type(mechanism).gap(mechanism.settings[0])


def test_a_target_is_that_of_shares_and_what_is_added_beyond_shows():
    """dp.epsilon calibrates shares; whole noise at that level has sqrt(M) times the multiplier on
    the sum.
    """
    from dpfl_cli.config.compose import compose_config
    from dpfl_cli.simulation.plan import make_plan
    from dpfl_cli.simulation.results import privacy_report

    words = [
        "algorithm=fedavg",
        "dataset.clients=16",
        "dataset.dimension=5",
        "rounds=6",
        "dp=secure_aggregation",
        "dp.epsilon=1",
    ]
    shares, whole = (
        make_plan(compose_config([*words, *more])) for more in ([], ["mechanism.noise_share=false"])
    )
    assert shares.mechanism.settings.noise_multiplier == whole.mechanism.settings.noise_multiplier
    (one,), (other,) = shares.ledger().entries, whole.ledger().entries
    assert other.parameter == pytest.approx(4 * one.parameter)
    told = [privacy_report(plan, plan.ledger()) for plan in (shares, whole)]
    assert told[0]["epsilon"] == pytest.approx(1.0, rel=1e-5)
    assert told[1]["epsilon"] < 0.3
    assert told[1]["epsilon_target"] == 1.0


# Means over many clients in float32.


def crossing(clients: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Neighbouring contributions [1, M, 4] of float32, apart by 2 in the first client's: their sum
    over the first half of the clients is just below a power of two, or there, where the sums that
    are added after are rounded to twice as much.
    """
    half = clients // 2
    power = 2.0 ** math.floor(math.log2(half))
    last_digit = power * 2.0**-24
    few = torch.zeros(clients, dtype=torch.float64)
    few[:half] = (power - 4 * last_digit - 2) / half
    parts = half // 16 if clients < 1 << 18 else half // 32
    few[half:] = (1 + 2**-9) * last_digit / parts
    few[0] = -0.9
    few[1] += power - 4 * last_digit - 2 - few[:half].sum()
    low = few.float().reshape(1, -1, 1).expand(1, clients, 4).clone()
    high = low.clone()
    high[:, 0] += 2
    return low, high


@pytest.mark.parametrize("name", ["central_gaussian", "shared_gaussian", "local_gaussian"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_float32_mean_over_more_than_65536_clients_is_not_proved(build, clipped, name, dtype):
    values = [clipped(torch.ones(1, clients, 1, dtype=dtype)) for clients in (65536, 65537)]
    build(name, 65536, 1).release("update", values[0], ROUND)
    mechanism = build(name, 65537, 1)
    if dtype == torch.float64 or name == "local_gaussian":
        mechanism.release("update", values[1], ROUND)
        return
    with pytest.raises(PrivacyError, match="float32 mean over all clients"):
        mechanism.release("update", values[1], ROUND)


@pytest.mark.parametrize(("records", "proved"), [(655, True), (656, False)])
def test_a_float32_mean_over_the_records_of_many_clients_is_not_proved(build, records, proved):
    """A record moves the mean over 100 clients by no more than one of 65,600 clients does."""
    values = client_values(torch.zeros(1, 100, 3, dtype=torch.float32))
    held = torch.full((1, 100), records)
    mean = as_computed(record_mean(values, torch.ones(1), held), None, None)
    mechanism = build("central_gaussian", 100, 3, unit="record")
    if proved:
        mechanism.release("update", mean, ROUND)
    else:
        with pytest.raises(PrivacyError, match="float32 mean over all clients"):
            mechanism.release("update", mean, ROUND)
    mechanism = build("central_gaussian", 100, 3, unit="record", sound=False)
    mechanism.release("update", mean, ROUND)
    assert bool(mechanism.claims[0]) == (not proved)


def test_a_client_moves_a_float32_mean_over_many_by_more_than_its_share():
    """Why: it decides to how many digits all is rounded that is added after."""
    for clients, least, most in ((1 << 16, 1.0, 1.02), (1 << 18, 1.05, 2.0)):
        low, high = crossing(clients)
        moved = (high.mean(dim=1).double() - low.mean(dim=1).double()).norm()
        own = (high[0, 0].double() - low[0, 0].double()).norm() / clients
        assert least <= float(moved / own) <= most
