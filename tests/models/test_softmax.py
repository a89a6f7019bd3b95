"""Softmax regression: gradients, clipping and metrics against autograd, record by record."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from dpfl_cli.config.component import lookup, parse_settings
from dpfl_cli.config.compose import compose_config
from dpfl_cli.config.errors import ConfigError, PrivacyError
from dpfl_cli.data.federation import Dataset, DatasetInfo, Federation, Partition, Records
from dpfl_cli.data.streams import Streams
from dpfl_cli.models import records, softmax
from dpfl_cli.models.client_side import ClientSide
from dpfl_cli.models.dense import DTYPES
from dpfl_cli.models.losses import CrossEntropy
from dpfl_cli.models.softmax import SoftmaxRegression, SoftmaxSettings
from dpfl_cli.privacy.client_values import ClientValues, client_values, opened
from tests.padding import own_records

COUNTS = [5, 0, 17, 1, 4]
INDICES = {"R=1": [0], "R=2 shared": [0, 0], "R=2": [1, 0], "R=7": [0, 1, 0, 2, 1, 0, 0]}


def make_info(
    features: int = 6, classes: int | None = 10, records: int = 100, **changes: object
) -> DatasetInfo:
    values = {
        "name": "toy",
        "source": "synthetic",
        "sha256": "",
        "feature_shape": (features,),
        "clients": None,
    }
    return DatasetInfo(**{**values, "classes": classes, "records": records, **changes})  # type: ignore[arg-type]


def make_federation(
    counts: list[int], seed: int = 0, features: int = 6, classes: int = 10, test: int | None = 30
) -> Federation:
    generator, total = np.random.default_rng(seed), sum(counts) + 3
    train = Records(
        generator.standard_normal((total, features)), generator.integers(0, classes, total)
    )
    held = None
    if test is not None:
        held = Records(
            generator.standard_normal((test, features)), generator.integers(0, classes, test)
        )
    parts = np.split(generator.permutation(total), np.cumsum(counts))[:-1]
    dataset = Dataset(make_info(features, classes, total), train, held)
    return Federation(dataset, Partition.from_lists(parts))


def make_settings(**changes: object) -> SoftmaxSettings:
    """What `model=softmax` composes, with some settings changed."""
    values = {**compose_config(["model=softmax"])["model"], **changes}
    values.pop("name")
    return parse_settings(SoftmaxSettings, values, "model")


def make_objective(
    counts: list[int], index: list[int], features: int = 6, classes: int = 10, **changes: object
) -> SoftmaxRegression:
    federations = [
        make_federation(counts, seed, features, classes) for seed in range(max(index) + 1)
    ]
    return SoftmaxRegression(make_settings(**changes), federations, np.array(index))


def records_of(objective: SoftmaxRegression, run: int, client: int) -> tuple[Tensor, Tensor]:
    """float64 features [n, width], the bias among them, and labels of a client's records."""
    found, labels = own_records(objective.federations[objective.index[run]], client)
    features = torch.from_numpy(found).double().flatten(1)
    if objective.settings.bias:
        features = torch.cat([features, torch.ones(len(features), 1, dtype=torch.float64)], dim=1)
    return features, torch.from_numpy(labels)


def record_gradients(features: Tensor, labels: Tensor, values: Tensor) -> Tensor:
    """[n, d] by autograd, one record at a time."""
    found = []
    for record, label in zip(features, labels, strict=True):
        leaf = values.double().clone().requires_grad_()
        functional.cross_entropy(
            (leaf.view(-1, len(record)) @ record).unsqueeze(0), label.unsqueeze(0)
        ).backward()
        found.append(leaf.grad)
    return torch.stack(found) if found else torch.zeros(0, len(values), dtype=torch.float64)


def points(objective: SoftmaxRegression, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    shape = (objective.runs, objective.clients, objective.dimension)
    return torch.randn(shape, dtype=torch.float64, generator=generator).to(objective.dtype)


@pytest.mark.parametrize(
    ("counts", "index"),
    [(COUNTS, [0]), (COUNTS, [1, 0]), ([1], [0, 0]), ([4], [1, 0]), ([1, 1, 1], INDICES["R=7"])],
    ids=["unequal alone", "unequal", "one record", "one client", "one record each"],
)
@pytest.mark.parametrize(
    ("classes", "bias", "precision"),
    [(10, True, "float64"), (2, False, "float64"), (3, True, "float32")],
)
def test_gradients_and_clipping_equal_autograd(
    counts: list[int], index: list[int], classes: int, bias: bool, precision: str
) -> None:
    tolerance = 1e-10 if precision == "float64" else 1e-5
    objective = make_objective(
        counts, index, classes=classes, bias=bias, precision=precision, l2=0.3
    )
    values = points(objective)
    own = client_values(values)
    clip_norm = torch.linspace(0.5, 3.0, len(index), dtype=torch.float64)
    plain = objective.gradient(own)
    bounded = objective.clipped_gradient(own, clip_norm)
    squared = objective.squared_gradient_norms(own)
    assert isinstance(plain, ClientValues)
    assert isinstance(squared, ClientValues)
    assert bounded.unit == "record"
    for run in range(len(index)):
        for client, count in enumerate(counts):
            each = record_gradients(*records_of(objective, run, client), values[run, client])
            norms = each.norm(dim=1)
            wanted = each.sum(0) / max(1, count) + (0.3 * values[run, client] if count else 0.0)
            assert (opened(plain)[run, client] - wanted).norm() <= tolerance * (1 + wanted.norm())
            wanted = (each * (clip_norm[run] / norms).clamp(max=1.0).unsqueeze(1)).sum(0) / max(
                1, count
            )
            assert (opened(bounded.values)[run, client] - wanted).norm() <= tolerance
            found = opened(squared)[run, client, :count].double()
            torch.testing.assert_close(found, norms.square(), rtol=tolerance, atol=tolerance)
            assert not opened(squared)[run, client, count:].any()
    moved = clip_norm.unsqueeze(1) / objective.records.clamp(min=1)
    torch.testing.assert_close(bounded.zero_out.double(), moved, rtol=1e-6, atol=0.0)
    torch.testing.assert_close(bounded.replace_one.double(), 2 * moved, rtol=1e-6, atol=0.0)


@pytest.mark.parametrize("index", INDICES.values(), ids=INDICES.keys())
@pytest.mark.parametrize("size", [1, 3])
def test_minibatches_equal_autograd_on_their_records(index: list[int], size: int) -> None:
    objective = make_objective(COUNTS, index, bias=True, precision="float64")
    values, generator = points(objective), np.random.default_rng(0)
    batch = torch.from_numpy(
        generator.integers(0, np.maximum(COUNTS, 1)[None, :, None], (len(index), len(COUNTS), size))
    )
    clip_norm = torch.linspace(0.5, 3.0, len(index), dtype=torch.float64)
    bounded = objective.clipped_gradient(client_values(values), clip_norm, batch)
    squared = opened(objective.squared_gradient_norms(client_values(values), batch))
    assert bounded.zero_out.shape == (len(index), len(COUNTS))
    torch.testing.assert_close(bounded.zero_out[:, 0], clip_norm / size)
    for run in range(len(index)):
        for client, count in enumerate(COUNTS):
            if not count:
                assert not opened(bounded.values)[run, client].any()
                assert not squared[run, client].any()
                continue
            features, labels = records_of(objective, run, client)
            mine = batch[run, client]
            each = record_gradients(features[mine], labels[mine], values[run, client])
            norms = each.norm(dim=1)
            wanted = (each * (clip_norm[run] / norms).clamp(max=1.0).unsqueeze(1)).mean(0)
            torch.testing.assert_close(
                opened(bounded.values)[run, client], wanted, rtol=1e-10, atol=1e-12
            )
            torch.testing.assert_close(squared[run, client], norms.square(), rtol=1e-10, atol=1e-12)


def test_numbers_of_records_that_a_client_does_not_have_reach_nobodys_records() -> None:
    objective = make_objective([2, 5, 0], [0], precision="float64")
    values, clip_norm = client_values(points(objective)), torch.tensor([1.0], dtype=torch.float64)
    batch = torch.tensor([[[0, 2, -1], [4, 5, 99], [0, 0, 0]]])
    squared = opened(objective.squared_gradient_norms(values, batch))[0]
    assert (squared > 0).tolist() == [
        [True, False, False],
        [True, False, False],
        [False, False, False],
    ]
    alone = objective.clipped_gradient(values, clip_norm, torch.tensor([[[0], [4], [0]]]))
    torch.testing.assert_close(
        3 * opened(objective.clipped_gradient(values, clip_norm, batch).values),
        opened(alone.values),
    )


@pytest.mark.parametrize("precision", ["float32", "float64"])
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("classes", [2, 10, 47])
def test_bits_alone_are_bits_in_company(
    precision: str, threads: int, classes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts, index = [33, 0, 7, 1, 80, 34], [0, 1, 0, 2]
    batch = make_objective(
        counts, index, features=67, classes=classes, bias=True, precision=precision
    )
    values, clip_norm = points(batch), torch.linspace(0.2, 2.0, len(index), dtype=torch.float64)
    generator = np.random.default_rng(0)
    numbers = torch.from_numpy(
        generator.integers(0, np.maximum(counts, 1)[None, :, None], (len(index), len(counts), 9))
    )

    def everything(objective: SoftmaxRegression, runs: slice) -> list[Tensor]:
        own = client_values(values[runs])
        return [
            opened(objective.gradient(own)),
            opened(objective.clipped_gradient(own, clip_norm[runs]).values),
            opened(objective.clipped_gradient(own, clip_norm[runs], numbers[runs]).values),
            opened(objective.squared_gradient_norms(own)),
            *objective.metrics(values[runs, 0]).values(),
        ]

    together = everything(batch, slice(None))
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    monkeypatch.setattr(records, "CPU_BLOCK", 1 << 17)
    try:
        for run, number in enumerate(index):
            alone = SoftmaxRegression(batch.settings, [batch.federations[number]], np.array([0]))
            for one, other in zip(everything(alone, slice(run, run + 1)), together, strict=True):
                assert torch.equal(one[0], other[run])
    finally:
        torch.set_num_threads(before)


def test_a_record_that_is_not_finite_counts_as_zero_where_it_is_clipped_and_shows_elsewhere() -> (
    None
):
    federation = make_federation([3, 3, 2], features=4, classes=3)
    wild = federation.partition.indices[[1, 4]]
    federation.dataset.train.features[wild[0]] = np.nan
    federation.dataset.train.features[wild[1], 2] = (
        1e30  # finite, but not its squared norm in float32
    )
    tame = make_federation([3, 3, 2], features=4, classes=3)
    tame.dataset.train.features[wild] = 0.0
    objective, other = (
        SoftmaxRegression(make_settings(), [one], np.array([0])) for one in (federation, tame)
    )
    values, clip_norm = client_values(points(objective)), torch.tensor([1.0])
    for batch in (None, torch.tensor([[[0, 1], [1, 2], [0, 1]]])):
        one, two = (
            opened(each.clipped_gradient(values, clip_norm, batch).values)
            for each in (objective, other)
        )
        torch.testing.assert_close(one, two)
    assert opened(objective.gradient(values)).isfinite().all(dim=-1).tolist() == [
        [False, False, True]
    ]
    diverged = client_values(torch.full((1, 3, objective.dimension), torch.nan))
    assert not opened(objective.clipped_gradient(diverged, clip_norm).values).any()


@pytest.mark.parametrize("most", [None, 2, 100])
def test_metrics_equal_explicit_loops(most: int | None) -> None:
    objective = make_objective(
        COUNTS, [0, 1, 0], bias=True, precision="float64", train_loss_records=most
    )
    weights = points(objective)[:, 0]
    metrics = objective.metrics(weights)
    assert list(metrics) == ["train_loss", "accuracy", "test_loss"]
    for run in range(3):
        table, total = weights[run].view(10, 7), 0.0
        for client, count in enumerate(COUNTS):
            features, labels = (part[:most] for part in records_of(objective, run, client))
            total += float(functional.cross_entropy(features @ table.T, labels)) if count else 0.0
        test = objective.federations[objective.index[run]].dataset.test
        logits = torch.from_numpy(test.features) @ table[:, :-1].T + table[:, -1]
        labels = torch.from_numpy(test.targets)
        assert metrics["train_loss"][run].item() == pytest.approx(total / len(COUNTS), rel=1e-12)
        assert metrics["test_loss"][run].item() == pytest.approx(
            float(functional.cross_entropy(logits, labels)), rel=1e-12
        )
        assert metrics["accuracy"][run].item() == pytest.approx(
            100 * float((logits.argmax(1) == labels).double().mean())
        )
    untested = SoftmaxRegression(
        make_settings(), [make_federation(COUNTS, test=None)], np.array([0])
    )
    assert list(untested.metrics(untested.initial(Streams([0])))) == ["train_loss"]


def test_a_frozen_layer_is_a_public_feature_map_applied_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    federation = make_federation([6, 3], features=4, classes=3)
    settings = make_settings(frozen_width=8, bias=True, precision="float64", frozen_seed=5)
    objective = SoftmaxRegression(settings, [federation], np.array([0, 0]))
    assert (
        objective.dimension
        == SoftmaxRegression.dimension_of(settings, federation.dataset.info)
        == 3 * 9
    )
    train = federation.dataset.train
    layer = softmax.stream_generator(5, "frozen layer").uniform(-1.0, 1.0, (8, 5)) / 2.0
    assert np.abs(layer).max() <= 0.5
    mapped = np.maximum(0.0, train.features @ layer[:, :-1].T + layer[:, -1])
    plain = Federation(
        Dataset(make_info(8, 3, len(train)), Records(mapped, train.targets), None),
        federation.partition,
    )
    known = SoftmaxRegression(
        make_settings(bias=True, precision="float64"), [plain], np.array([0, 0])
    )
    values = client_values(points(objective))
    torch.testing.assert_close(
        opened(objective.gradient(values)), opened(known.gradient(values)), rtol=1e-12, atol=1e-12
    )

    monkeypatch.setattr(softmax, "stream_generator", None)  # nothing is drawn again
    again = SoftmaxRegression(settings, [federation], np.array([0, 0]))
    assert torch.equal(opened(again.gradient(values)), opened(objective.gradient(values)))


def test_the_frozen_map_is_let_go_with_its_records() -> None:
    federation = make_federation([2], features=4)
    before = len(softmax._mapped)
    softmax.frozen_features(
        federation.dataset.train, make_settings(frozen_width=3), torch.device("cpu")
    )
    assert len(softmax._mapped) == before + 1
    del federation
    assert len(softmax._mapped) == before


def test_feature_norm_and_pictures() -> None:
    federation = make_federation([3, 2], features=6, classes=3)
    train = federation.dataset.train
    train.features[federation.partition.indices[0]] = 0.0
    norms = np.linalg.norm(train.features, axis=1, keepdims=True)
    unit = Records(train.features / np.where(norms > 0, norms, 1.0), train.targets)
    scaled = Federation(Dataset(federation.dataset.info, unit, None), federation.partition)
    pictures = Records(train.features.reshape(-1, 2, 3), train.targets)
    shaped = Federation(
        Dataset(make_info(feature_shape=(2, 3), classes=3), pictures, None), federation.partition
    )
    settings = make_settings(feature_norm="l2", bias=True, precision="float64")
    objectives = [
        SoftmaxRegression(make_settings(bias=True, precision="float64"), [scaled], np.array([0])),
        SoftmaxRegression(settings, [shaped], np.array([0])),
    ]
    found = [opened(one.gradient(client_values(points(one)))) for one in objectives]
    torch.testing.assert_close(*found, rtol=1e-12, atol=1e-12)


def test_initial_values() -> None:
    zero = make_objective([2], [0, 0])
    assert not zero.initial(Streams([0, 1])).any()
    for init, deviation in (("normal", 0.5), ("uniform", (1 / 200) ** 0.5 / 3**0.5)):
        objective = make_objective([2], [0, 0], features=200, init=init, init_scale=0.5, bias=True)
        values = objective.initial(Streams([3, 4]))
        alone = make_objective(
            [2], [0], features=200, init=init, init_scale=0.5, bias=True
        ).initial(Streams([4]))
        assert torch.equal(values[1:], alone)
        assert float(values.std()) == pytest.approx(deviation, rel=0.1)


def test_a_regulariser_or_loss_of_ones_own_is_what_steps_are_taken_by() -> None:
    class Drawn(SoftmaxRegression):
        def regulariser_gradient(self, parameters: Tensor) -> Tensor:
            return 0.3 * (parameters - 1.0)

    class Doubled(CrossEntropy):
        def slopes(self, z: Tensor, targets: Tensor) -> Tensor:
            return 2.0 * super().slopes(z, targets)

    class Heavy(SoftmaxRegression):
        loss = Doubled()

    plain = make_objective([4, 3], [0], precision="float64")
    made = (plain.settings, plain.federations, plain.index)
    start = points(plain)[:, 0]
    values, rate = points(plain)[:, :1].repeat(1, 2, 1), torch.tensor([0.1], dtype=torch.float64)
    slope = opened(plain.gradient(client_values(values)))
    for own, expected in (
        (Drawn(*made), slope + 0.3 * (values - 1.0)),
        (Heavy(*made), 2.0 * slope),
    ):
        torch.testing.assert_close(opened(own.gradient(client_values(values))), expected)
        moved = opened(own.local_descent(start, rate, 1))
        torch.testing.assert_close(moved, -0.1 * expected)


def test_algorithms_reach_it_through_the_client_side() -> None:
    objective = make_objective([4, 3], [0, 0])
    view = ClientSide(objective)
    values = client_values(points(objective))
    assert objective.provides == {
        "clipped_gradient",
        "squared_gradient_norms",
        "damped_solve",
        "covariance",
    }
    assert view.clipped_gradient(
        values, torch.ones(2), torch.zeros(2, 2, 1, dtype=torch.int64)
    ).is_vector
    assert isinstance(view.damped_solve(values, values, torch.ones(2)), ClientValues)


def test_settings_and_data_that_do_not_fit_are_refused() -> None:
    found = lookup("model", "softmax_regression")
    composed = {**compose_config(["model=frozen_mlp"])["model"]}
    composed.pop("name")
    assert parse_settings(found.settings, composed, "model").frozen_width == 512
    with pytest.raises(
        ConfigError, match=r"model\.solver='lu': input should be 'cg' or 'cholesky'"
    ):
        parse_settings(found.settings, {**composed, "solver": "lu"}, "model")
    with pytest.raises(
        ConfigError, match=r"needs records with classes .*, but dataset=toy has .* and no classes"
    ):
        SoftmaxRegression.dimension_of(make_settings(), make_info(classes=None))
    assert (
        SoftmaxRegression.dimension_of(make_settings(), make_info(feature_shape=(28, 28))) == 7840
    )


@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_no_record_is_left_unclipped_where_its_residual_underflows(precision: str) -> None:
    """Records s e_1 and weights that leave a residual of any size: up to the largest norm each has
    at most norm C, then none.
    """
    largest = records.LARGEST_NORM[DTYPES[precision]]
    scales = largest * np.array([1e-9, 1e-3, 0.999, 1.001, 1e3, 1.8e7])
    gaps = np.linspace(0.0, 120.0 if precision == "float32" else 800.0, 241)
    federation = make_federation([1] * len(scales), features=2, classes=2, test=None)
    train = federation.dataset.train
    train.features[:], train.targets[:] = 0.0, 0
    train.features[federation.partition.indices, 0] = scales
    objective = SoftmaxRegression(
        make_settings(bias=False, precision=precision), [federation], np.zeros(len(gaps), int)
    )
    values = torch.zeros(len(gaps), len(scales), 2, 2, dtype=torch.float64)
    values[:, :, 0, 0] = torch.from_numpy(gaps[:, None] / scales)
    where = client_values(values.flatten(2).to(objective.dtype))
    found = objective.clipped_gradient(where, torch.full((len(gaps),), 1e-4, dtype=objective.dtype))
    norms = opened(found.values).double().norm(dim=-1)
    assert float(norms.max()) <= 1e-4 * (1 + 1e-5)
    assert bool((norms[0, :3] > 0.99e-4).all())
    assert not bool(norms[:, 3:].any())
    assert not bool(torch.isfinite(opened(objective.gradient(where))[:, 3:]).any(dim=-1).all())


@pytest.mark.parametrize("index", INDICES.values(), ids=INDICES.keys())
@pytest.mark.parametrize("bias", [False, True])
def test_covariances_equal_loops_over_records(index: list[int], bias: bool) -> None:
    objective = make_objective(COUNTS, index, precision="float64", bias=bias)
    limits = torch.tensor([0.5 + run for run in range(len(index))], dtype=torch.float64)
    plain, bounded = opened(objective.covariance()), objective.clipped_covariance(limits)
    size = objective.features
    assert size == 6 + bias == objective.features_of(objective.settings, make_info())
    rows, columns = np.triu_indices(size)
    for run in range(len(index)):
        for client in range(objective.clients):
            features, _ = records_of(objective, run, client)
            found = plain[run, client], opened(bounded.values)[run, client]
            for values, limit in zip(found, (torch.inf, limits[run]), strict=True):
                own = [x * min(1.0, float(limit / x.norm())) for x in features]
                whole = (
                    sum(torch.outer(x, x) for x in own) / max(len(own), 1)
                    if own
                    else torch.zeros(size, size).double()
                )
                torch.testing.assert_close(values, whole[rows, columns])
        torch.testing.assert_close(
            bounded.zero_out[run], limits[run] ** 2 / objective.records[run].clamp(min=1)
        )


def test_covariances_and_preconditioning_have_the_same_bits_alone_and_in_company() -> None:
    federations, limits = (
        [make_federation(COUNTS, seed) for seed in range(3)],
        torch.tensor([0.5, 3.0, 0.5, 1.0]).double(),
    )
    index, generator = [0, 1, 2, 0], torch.Generator().manual_seed(0)
    together = SoftmaxRegression(make_settings(), federations, np.array(index))
    values = torch.randn(4, len(COUNTS), together.dimension, generator=generator)
    matrices = torch.randn(4, 6, 6, generator=generator)
    for run, number in enumerate(index):
        alone = SoftmaxRegression(make_settings(), [federations[number]], np.array([0]))
        one = opened(alone.clipped_covariance(limits[run : run + 1]).values)[0]
        assert torch.equal(opened(together.clipped_covariance(limits).values)[run], one)
        applied = opened(
            alone.precondition(client_values(values[run : run + 1]), matrices[run : run + 1])
        )[0]
        assert torch.equal(
            opened(together.precondition(client_values(values), matrices))[run], applied
        )
        by_class = values[run].unflatten(-1, (10, 6)) @ matrices[run]
        torch.testing.assert_close(applied, by_class.flatten(-2))


def test_a_record_that_is_not_finite_has_no_covariance() -> None:
    federation = make_federation(COUNTS)
    clean = opened(SoftmaxRegression(make_settings(), [federation], np.array([0])).covariance())[
        0, 0
    ]
    numbers = federation.partition.indices[:2]
    own = torch.from_numpy(federation.dataset.train.features[numbers]).float()
    federation.dataset.train.features[numbers] = np.array([[np.nan], [1e200]])
    spoiled = opened(SoftmaxRegression(make_settings(), [federation], np.array([0])).covariance())[
        0, 0
    ]
    rows, columns = np.triu_indices(6)
    torch.testing.assert_close(spoiled, clean - (own.mT @ own)[rows, columns] / COUNTS[0])


def test_what_preconditions_is_public_and_of_the_right_size() -> None:
    side = ClientSide(make_objective(COUNTS, [0]))
    matrices, model = torch.eye(6).expand(1, 6, 6), torch.zeros(1, 60)
    own = client_values(torch.zeros(1, len(COUNTS), 60))
    assert isinstance(side.precondition(own, matrices), ClientValues)
    assert not isinstance(side.precondition(model, matrices), ClientValues)
    for values, given in (
        (own, client_values(matrices)),
        (model, matrices[:, :5]),
        (client_values(torch.zeros(1, 1, 60)), matrices),
        (model[:, :6], matrices),
    ):
        with pytest.raises(PrivacyError):
            side.precondition(values, given)
