"""Synthetic(alpha, beta): its law, checked on what it draws."""

from __future__ import annotations

import numpy as np
import pytest

from dpfl_cli.config.errors import ConfigError
from dpfl_cli.data import synthetic as module
from dpfl_cli.data.partitioners import ClientsSettings, Natural
from dpfl_cli.data.streams import stream_generator
from dpfl_cli.data.synthetic import SyntheticAlphaBeta, SyntheticAlphaBetaSettings


def drawn(**options):
    """Settings, dataset, and all records [M, n, d] and [M, n] (no test split, not normalised unless
    asked for).
    """
    settings = SyntheticAlphaBetaSettings(**{"test_fraction": 0.0, "normalise": False, **options})
    data = SyntheticAlphaBeta.load(settings, 0)
    shape = (settings.clients, -1)
    return (
        data,
        data.train.features.reshape(*shape, settings.dimension),
        data.train.targets.reshape(shape),
    )


def within(values: np.ndarray, expected: float, errors: float = 4.5) -> None:
    """The mean of independent values is as expected, to so many standard errors."""
    error = values.std(ddof=1) / np.sqrt(len(values))
    assert abs(values.mean() - expected) < errors * error, (values.mean(), expected, error)


def test_every_client_has_its_own_records_and_test_records():
    settings = SyntheticAlphaBetaSettings(
        clients=7, records_per_client=13, test_fraction=0.31, classes=4, dimension=5
    )
    data = SyntheticAlphaBeta.load(settings, 3)
    info = SyntheticAlphaBeta.info(settings)
    assert data.info == info
    assert (info.name, info.source, info.sha256, info.classes, info.clients) == (
        "synthetic_alpha_beta",
        "synthetic",
        "",
        4,
        7,
    )
    assert info.records == len(data.train) == 7 * 9
    assert data.test is not None
    assert len(data.test) == 7 * 4
    assert data.train.features.dtype == np.float64
    assert data.train.targets.dtype == np.int64
    assert set(np.unique(data.train.targets)) <= set(range(4))
    partition = Natural.partition(ClientsSettings(), data, 0)
    assert partition.counts.tolist() == [9] * 7
    np.testing.assert_array_equal(partition.indices, np.arange(63))
    _, features, targets = drawn(clients=7, records_per_client=13, classes=4, dimension=5)
    options = {
        "clients": 7,
        "records_per_client": 13,
        "classes": 4,
        "dimension": 5,
        "test_fraction": 0.31,
    }
    split, kept, _ = drawn(**options)
    np.testing.assert_array_equal(kept, features[:, :9])
    np.testing.assert_array_equal(split.test.features.reshape(7, 4, 5), features[:, 9:])
    np.testing.assert_array_equal(split.test.targets.reshape(7, 4), targets[:, 9:])


@pytest.mark.parametrize("beta", [0.0, 5.0])
def test_the_clients_means_have_variance_beta_plus_one_in_every_coordinate(beta):
    """A mean of n records has variance beta + 1 + j^-1.2 / n over the clients, and coordinates are
    independent.
    """
    _, features, _ = drawn(clients=20_000, records_per_client=4, dimension=3, beta=beta)
    means = features.mean(axis=1)
    for j in range(3):
        within(means[:, j], 0.0)
        within(means[:, j] ** 2, beta + 1 + (j + 1) ** -1.2 / 4)
    within(means[:, 0] * means[:, 1], 0.0)
    within(means[:-1, 0] * means[1:, 0], 0.0)


def test_records_spread_around_their_clients_mean_by_the_power_law():
    _, features, _ = drawn(clients=20_000, records_per_client=2, dimension=60, beta=5.0)
    spread = (features[:, 0] - features[:, 1]) ** 2 / 2
    for j in (1, 2, 10, 60):
        within(spread[:, j - 1], j**-1.2)


def test_the_share_of_replaced_labels():
    """With probability p a uniform class of c replaces the label: p (c - 1) / c of the labels
    change, to each class alike.
    """
    options = {"clients": 50, "records_per_client": 400, "dimension": 6, "classes": 4}
    _, features, clean = drawn(**options, label_noise=0.0)
    _, same, noisy = drawn(**options, label_noise=0.2)
    np.testing.assert_array_equal(same, features)
    changed = (noisy != clean).ravel()
    within(changed, 0.2 * 3 / 4)
    steps = ((noisy - clean) % 4).ravel()[changed]
    for step in (1, 2, 3):
        within(steps == step, 1 / 3)
    _, _, uniform = drawn(**options, label_noise=1.0)
    for label in range(4):
        within(uniform.ravel() == label, 0.25)
    default = SyntheticAlphaBetaSettings()
    assert (
        default.label_noise,
        default.records_per_client,
        default.test_fraction,
        default.data_seed,
    ) == (0.05, 500, 0.2, 0)


def test_without_noise_every_client_is_separated_by_a_linear_rule_of_its_own():
    """A perceptron of each client alone fits its labels; a client's rule fits another's records no
    better than by chance.
    """
    _, features, labels = drawn(
        clients=4, records_per_client=300, dimension=4, classes=2, label_noise=0.0, beta=0.0
    )
    rules = []
    for client in range(4):
        rows, signs = (
            np.pad(features[client], ((0, 0), (0, 1)), constant_values=1.0),
            2 * labels[client] - 1,
        )
        rule = np.zeros(5)
        for _ in range(100_000):
            wrong = np.flatnonzero(signs * (rows @ rule) <= 0)
            if not len(wrong):
                break
            rule += signs[wrong[0]] * rows[wrong[0]]
        assert not len(wrong)
        rules.append(rule / np.linalg.norm(rule))
    assert max(abs(one @ other) for k, one in enumerate(rules) for other in rules[:k]) < 0.999


@pytest.mark.parametrize("alpha", [0.0, 9.0])
def test_the_clients_rules_have_variance_alpha_plus_one(alpha):
    """Labels do not show the scale of a rule: the rules are drawn again here, as documented, and
    must explain every label.
    """

    def tasks(value: float) -> np.ndarray:
        centre = stream_generator(0, "data", module._TASKS).standard_normal((5000, 3, 2))
        own = stream_generator(0, "data", module._WEIGHTS).standard_normal((5000, 2, 2))
        bias = stream_generator(0, "data", module._BIASES).standard_normal((5000, 2))
        return np.sqrt(value) * centre + np.concatenate([own, bias[:, None]], axis=1)

    rules = tasks(alpha)
    within(rules.ravel() ** 2, alpha + 1)
    _, features, labels = drawn(
        clients=5000, records_per_client=3, dimension=2, classes=2, label_noise=0.0, alpha=alpha
    )
    outputs = np.einsum("mnd,mdc->mnc", features, rules[:, :2]) + rules[:, None, 2]
    np.testing.assert_array_equal(labels, outputs.argmax(axis=-1))


def test_normalised_records_are_on_the_sphere_and_keep_their_labels():
    options = {"clients": 5, "records_per_client": 20, "dimension": 7}
    _, raw, labels = drawn(**options)
    _, unit, same = drawn(**options, normalise=True)
    np.testing.assert_allclose(np.linalg.norm(unit, axis=-1), 1.0, rtol=1e-12)
    np.testing.assert_allclose(unit, raw / np.linalg.norm(raw, axis=-1, keepdims=True), rtol=1e-12)
    np.testing.assert_array_equal(same, labels)


def test_a_test_fraction_that_holds_out_nothing_is_refused():
    with pytest.raises(
        ConfigError, match=r"dataset\.test_fraction=0\.2: less than one of a client's 4 records"
    ):
        SyntheticAlphaBeta.info(SyntheticAlphaBetaSettings(records_per_client=4))
