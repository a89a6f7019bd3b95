"""The fully connected network against PyTorch's own layers, one record at a time, in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import yaml
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from dpfl_cli.config.component import lookup, parse_settings
from dpfl_cli.config.errors import ConfigError
from dpfl_cli.config.paths import conf_dir
from dpfl_cli.data.federation import Dataset, DatasetInfo, Federation, Partition, Records
from dpfl_cli.data.streams import Streams
from dpfl_cli.models import dense
from dpfl_cli.models.mlp import Mlp, MlpSettings
from dpfl_cli.privacy.client_values import ClientValues, client_values, opened
from tests.padding import own_records

COUNTS = [5, 0, 12, 1, 9, 10]
CLASSES = 3
UNITS = {"sigmoid": nn.Sigmoid, "relu": nn.ReLU, "tanh": nn.Tanh}


def settings_of(**values) -> MlpSettings:
    usual = {
        "hidden": [7],
        "activation": "sigmoid",
        "average_pool": 1,
        "l2": 0.0,
        "precision": "float64",
    }
    usual |= {"penalty": "none", "l1_weight": 0.01, "box": 10.0, "radius": 10.0}
    return MlpSettings(**(usual | values))


def federation(counts=COUNTS, seed=0, size=(6, 4), dataset=None, test=70) -> Federation:
    generator = np.random.default_rng(seed)
    if dataset is None:
        records = sum(counts) + 4
        info = DatasetInfo("toy", "synthetic", "", size, CLASSES, records, None)
        splits = [
            Records(
                generator.random((number, *size), dtype=np.float32),
                generator.integers(0, CLASSES, number),
            )
            for number in (records, test)
        ]
        dataset = Dataset(info, splits[0], splits[1])
    ends, order = np.cumsum(counts), generator.permutation(len(dataset.train))
    return Federation(
        dataset,
        Partition.from_lists(
            [order[end - count : end] for end, count in zip(ends, counts, strict=True)]
        ),
    )


def objective_of(settings: MlpSettings, feds: list[Federation], index=(0,)) -> Mlp:
    return Mlp(settings, feds, np.array(index))


def scattered(objective: Mlp, scale: float = 1.0, seed: int = 0) -> Tensor:
    """Parameters [R, M, d] that differ between runs and clients."""
    generator = torch.Generator().manual_seed(seed)
    size = objective.runs, objective.clients, objective.dimension
    return (scale * torch.randn(size, generator=generator, dtype=torch.float64)).to(objective.dtype)


def network(settings: MlpSettings, inputs: int, parameters: Tensor) -> nn.Sequential:
    """The same network from PyTorch's layers, in float64, with parameters [d]."""
    layers: list[nn.Module] = []
    if settings.average_pool > 1:
        layers += [nn.Unflatten(1, (1, -1)), nn.AvgPool2d(settings.average_pool)]
    layers.append(nn.Flatten())
    for width in settings.hidden:
        layers += [nn.Linear(inputs, width), UNITS[settings.activation]()]
        inputs = width
    model = nn.Sequential(*layers, nn.Linear(inputs, CLASSES)).double()
    vector_to_parameters(parameters.double(), model.parameters())
    return model


def record_gradients(
    settings: MlpSettings, fed: Federation, client: int, parameters: Tensor
) -> Tensor:
    """[n, d] by automatic differentiation, record by record."""
    model = network(
        settings,
        int(np.prod(fed.dataset.info.feature_shape)) // settings.average_pool**2,
        parameters,
    )
    rows = []
    for image, label in zip(*own_records(fed, client), strict=True):
        scores = model(torch.from_numpy(image).double().unsqueeze(0))
        loss = functional.cross_entropy(scores, torch.tensor([label]))
        rows.append(parameters_to_vector(torch.autograd.grad(loss, list(model.parameters()))))
    return torch.stack(rows) if rows else torch.zeros(0, len(parameters), dtype=torch.float64)


def clipped_mean(gradients: Tensor, clip_norm: float, divisor: int) -> Tensor:
    norms = gradients.norm(dim=1)
    return (gradients * (clip_norm / norms).clamp(max=1.0).unsqueeze(1)).sum(0) / max(divisor, 1)


NETS = [
    settings_of(),
    settings_of(activation="relu", hidden=[8, 5]),
    settings_of(activation="tanh", hidden=[3, 6, 4], l2=0.2),
    settings_of(average_pool=2, hidden=[1]),
]


@pytest.mark.parametrize("settings", NETS)
@pytest.mark.parametrize("runs", [1, 2, 7])
def test_gradients_norms_and_clipped_means_are_those_of_the_records(
    settings: MlpSettings, runs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dense, "PART", 4)  # clients of one chunk and of several
    feds = [federation(), federation([3, 8, 0, 1, 20, 2], seed=1)][:runs]
    objective = objective_of(settings, feds, np.arange(runs) % 2)
    parameters, limits = scattered(objective), torch.linspace(0.5, 1.5, runs, dtype=torch.float64)
    plain, clipped = (
        opened(objective.gradient(parameters)),
        objective.clipped_gradient(parameters, limits).checked(),
    )
    squared = opened(objective.squared_gradient_norms(parameters))
    assert squared.shape == (runs, 6, 20 if runs > 1 else 12)
    for run in {0, runs - 1}:
        fed = feds[run % len(feds)]
        for client, count in enumerate(fed.partition.counts):
            own = parameters[run, client]
            each = record_gradients(settings, fed, client, own)
            mean = each.mean(0) + settings.l2 * own if count else torch.zeros_like(own)
            torch.testing.assert_close(plain[run, client], mean, rtol=0, atol=1e-10)
            expected = clipped_mean(each, limits[run].item(), count)
            torch.testing.assert_close(clipped[run, client], expected, rtol=0, atol=1e-10)
            torch.testing.assert_close(
                squared[run, client, :count], each.square().sum(1), rtol=0, atol=1e-10
            )
            assert (squared[run, client, count:] == 0).all()


@pytest.mark.parametrize("settings", NETS)
def test_minibatches_are_of_the_records_they_name(
    settings: MlpSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dense, "PART", 4)
    fed = federation()
    objective = objective_of(settings, [fed], [0, 0])
    parameters, limits = scattered(objective), torch.tensor([0.7, 1.1], dtype=torch.float64)
    batch = torch.randint(0, 12, (2, 6, 5), generator=torch.Generator().manual_seed(1))
    batch = torch.where(
        batch < objective.records.unsqueeze(-1), batch, 0
    )  # one record of a client may come twice
    clipped = objective.clipped_gradient(parameters, limits, batch)
    squared = opened(objective.squared_gradient_norms(parameters, batch))
    for run in range(2):
        for client, count in enumerate(fed.partition.counts):
            each = record_gradients(settings, fed, client, parameters[run, client])
            each = (
                each[batch[run, client]] if count else each
            )  # no number is one of a client without records
            expected = clipped_mean(each, limits[run].item(), 5)
            torch.testing.assert_close(clipped.checked()[run, client], expected, rtol=0, atol=1e-10)
            norms = each.square().sum(1) if count else torch.zeros(5, dtype=torch.float64)
            torch.testing.assert_close(squared[run, client], norms, rtol=0, atol=1e-10)
    torch.testing.assert_close(
        clipped.replace_one, (2 * limits / 5).unsqueeze(1).expand(2, 6), rtol=1e-15, atol=0
    )


@pytest.mark.parametrize("settings", NETS)
def test_float32_is_right_to_rounding(settings: MlpSettings) -> None:
    fed = federation()
    single = objective_of(settings.model_copy(update={"precision": "float32"}), [fed])
    double = objective_of(settings, [fed])
    parameters, limit = scattered(single), torch.tensor([0.8])
    pairs = [
        (single.gradient(parameters), double.gradient(parameters.double())),
        (
            single.clipped_gradient(parameters, limit).values,
            double.clipped_gradient(parameters.double(), limit.double()).values,
        ),
        (
            single.squared_gradient_norms(parameters),
            double.squared_gradient_norms(parameters.double()),
        ),
    ]
    for found, expected in pairs:
        assert opened(found).dtype == torch.float32
        assert (opened(found).double() - opened(expected)).norm() <= 1e-5 * opened(expected).norm()


@pytest.mark.parametrize("settings", NETS)
def test_a_record_that_is_not_finite_counts_as_zero(settings: MlpSettings) -> None:
    fed = federation()
    train, spoilt = fed.dataset.train, int(fed.partition.indices[fed.partition.offsets[2]])
    features = train.features.copy()
    features[spoilt, 1, 1] = np.nan
    holed = Federation(
        Dataset(fed.dataset.info, Records(features, train.targets), None), fed.partition
    )
    objective, whole = objective_of(settings, [holed]), objective_of(settings, [fed])
    parameters, limit = scattered(objective), torch.tensor([0.8], dtype=torch.float64)
    found = objective.clipped_gradient(parameters, limit).checked()[0]
    each = record_gradients(settings, fed, 2, parameters[0, 2])[1:]
    torch.testing.assert_close(found[2], clipped_mean(each, 0.8, 12), rtol=0, atol=1e-10)
    others = [0, 1, 3, 4, 5]
    assert torch.equal(
        found[others], whole.clipped_gradient(parameters, limit).checked()[0, others]
    )
    # without clipping nothing is hidden
    first = torch.arange(3).expand(1, 6, 3)  # whose first record is the spoilt one
    for gradient in (objective.gradient(parameters), objective.gradient(parameters, first)):
        assert opened(gradient)[0, 2].isnan().any()
        assert opened(gradient)[0, others].isfinite().all()


def test_a_hidden_unit_that_overflows_drops_its_record_alone() -> None:
    settings = settings_of(activation="relu", hidden=[2, 2], precision="float32")
    fed = federation([4])
    features = fed.dataset.train.features.copy()
    features[:] = 0.5
    first = fed.partition.indices[0]
    features[first, 0, 0] = (
        1e20  # its squared norm overflows, and with the weights below its second layer, too
    )
    fed = Federation(
        Dataset(fed.dataset.info, Records(features, fed.dataset.train.targets), None), fed.partition
    )
    objective = objective_of(settings, [fed])
    parameters = torch.full((1, 1, objective.dimension), 0.1)
    parameters[..., 50:56] = 1e20
    parameters[..., 48:50] = 0.0
    huge = objective.clipped_gradient(parameters, torch.tensor([1.0])).checked()
    assert huge.isfinite().all()


def test_a_diverged_client_is_not_hidden_and_spoils_no_other() -> None:
    objective = objective_of(NETS[0], [federation()])
    parameters = scattered(objective)
    parameters[0, 2, 3] = torch.nan
    gradient = opened(objective.gradient(parameters))[0]
    assert gradient[2].isnan().any()
    assert gradient[[0, 1, 3, 4, 5]].isfinite().all()
    assert (
        objective.clipped_gradient(parameters, torch.ones(1, dtype=torch.float64)).checked()[0, 2]
        == 0
    ).all()


@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_bits_are_the_same_alone_and_on_any_number_of_threads(
    precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dense, "PART", 256)
    settings = settings_of(hidden=[33, 17], precision=precision)
    shared = federation([307, 1, 70, 270, 0, 64], size=(9, 11), test=1100)
    feds = [shared, federation([90, 301, 0, 5, 6, 291], seed=3, dataset=shared.dataset)]
    index = np.array([0, 1, 0, 0, 0])
    batch = objective_of(settings, feds, index)
    parameters, limits = scattered(batch, 0.2), torch.linspace(0.5, 1.0, 5)
    rows = torch.randint(0, 64, (5, 6, 9), generator=torch.Generator().manual_seed(0))

    def values(objective: Mlp, runs: slice) -> list[Tensor]:
        own = parameters[runs]
        return [
            opened(objective.gradient(own)),
            objective.clipped_gradient(own, limits[runs]).checked(),
            objective.clipped_gradient(own, limits[runs], rows[runs]).checked(),
            *objective.metrics(own[:, 0]).values(),
        ]

    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        expected = values(batch, slice(None))
        for number in (2, 3):
            torch.set_num_threads(number)
            assert all(
                torch.equal(*pair)
                for pair in zip(values(batch, slice(None)), expected, strict=True)
            )
    finally:
        torch.set_num_threads(threads)
    for run, which in enumerate(index[:3]):
        one = slice(run, run + 1)
        alone = values(objective_of(settings, [feds[which]]), one)
        assert all(
            torch.equal(found, all_runs[one])
            for found, all_runs in zip(alone, expected, strict=True)
        )


@pytest.mark.parametrize("block", [1, 1 << 16, 1 << 30])
def test_the_memory_of_blocks_does_not_change_bits(
    block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dpfl_cli.models import records

    objective = objective_of(settings_of(precision="float32"), [federation()], [0, 0, 0])
    parameters, limits = scattered(objective), torch.ones(3)
    expected = objective.clipped_gradient(parameters, limits).checked()
    monkeypatch.setattr(records, "CPU_BLOCK", block)
    assert torch.equal(objective.clipped_gradient(parameters, limits).checked(), expected)


@pytest.mark.parametrize("settings", NETS)
def test_metrics(settings: MlpSettings) -> None:
    feds = [
        federation(test=dense.PART + 30),
        federation(seed=8),
    ]  # data sets of their own, so test splits too
    objective = objective_of(settings, feds, [0, 1, 0])
    parameters = objective.initial(Streams([0, 1, 2]))
    found = objective.metrics(parameters)
    assert list(found) == ["train_loss", "accuracy", "test_loss"]
    assert objective.private(found) == {"train_loss"}
    for run, which in enumerate(objective.index):
        fed = feds[which]
        model = network(settings, 24 // settings.average_pool**2, parameters[run])
        test, train, partition = fed.dataset.test, fed.dataset.train, fed.partition
        with torch.no_grad():
            logits, fitted = (
                model(torch.from_numpy(split.features).double()) for split in (test, train)
            )
        labels = torch.from_numpy(test.targets)
        assert found["accuracy"][run].item() == pytest.approx(
            100 * (logits.argmax(1) == labels).double().mean().item()
        )
        assert found["test_loss"][run].item() == pytest.approx(
            functional.cross_entropy(logits, labels).item()
        )
        losses = functional.cross_entropy(
            fitted, torch.from_numpy(train.targets), reduction="none"
        ).numpy()
        means = [
            losses[part].mean()
            for part in np.split(partition.indices, partition.offsets[1:-1])
            if len(part)
        ]
        assert found["train_loss"][run].item() == pytest.approx(sum(means) / 6)


@pytest.mark.parametrize("penalty", ["none", "l1_box", "box", "ball"])
def test_the_proximal_step_is_the_penaltys(penalty: str) -> None:
    settings = settings_of(penalty=penalty, l1_weight=0.5, box=0.4, radius=2.0, precision="float32")
    objective = objective_of(settings, [federation()], [0, 0])
    values, step = scattered(objective), torch.tensor([0.1, 0.2], dtype=torch.float64)
    found = objective.prox(client_values(values), step)
    assert isinstance(found, ClientValues)
    assert found.dtype == torch.float32
    shrunk = (values.abs() - 0.5 * step.float()[:, None, None]).clamp(min=0) * values.sign()
    expected = {
        "none": values,
        "l1_box": shrunk.clamp(-0.4, 0.4),
        "box": values.clamp(-0.4, 0.4),
        "ball": values * (2.0 / values.norm(dim=-1, keepdim=True)).clamp(max=1.0),
    }
    torch.testing.assert_close(opened(found), expected[penalty], rtol=1e-6, atol=1e-7)


def test_only_empty_clients() -> None:
    objective = objective_of(NETS[2], [federation([0, 0])])
    parameters, limit = scattered(objective), torch.ones(1, dtype=torch.float64)
    assert (opened(objective.gradient(parameters)) == 0).all()
    assert (objective.clipped_gradient(parameters, limit).checked() == 0).all()
    assert (opened(objective.squared_gradient_norms(parameters)) == 0).all()


def test_initial_parameters_follow_pytorchs_law() -> None:
    objective = objective_of(
        settings_of(hidden=[200], precision="float32"), [federation(size=(28, 28))], [0] * 3
    )
    rows = objective.initial(Streams([7, 8, 7]))
    assert rows.dtype == torch.float32
    assert torch.equal(rows[0], rows[2])
    assert not torch.equal(rows[0], rows[1])
    first = 784 * 200 + 200
    for part, inputs in ((rows[0, :first], 784), (rows[0, first:], 200)):
        unit = part * inputs**0.5
        assert unit.abs().max() <= 1
        # variance 1/3 of U(-1, 1), whose squares have variance 4/45
        assert abs(unit.square().mean() - 1 / 3) < 4.5 * (4 / 45 / len(part)) ** 0.5


@pytest.mark.parametrize(
    ("hidden", "side", "dimension"), [([200], 1, 159_010), ([32], 2, 6_634), ([30, 20], 1, 24_380)]
)
def test_parameter_counts(hidden: list[int], side: int, dimension: int) -> None:
    info = DatasetInfo("digits", "real", "", (28, 28), 10, 60_000, None)
    assert Mlp.dimension_of(settings_of(hidden=hidden, average_pool=side), info) == dimension


def test_the_config_is_the_papers_network() -> None:
    values = yaml.safe_load((conf_dir() / "model" / "mlp.yaml").read_text())
    found = lookup("model", values.pop("name"))
    settings = parse_settings(found.settings, values, "model")
    assert (
        Mlp.dimension_of(settings, DatasetInfo("digits", "real", "", (28, 28), 10, 60_000, None))
        == 159_010
    )
    assert settings.activation == "sigmoid"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("hidden", []),
        ("hidden", [0]),
        ("activation", "gelu"),
        ("average_pool", 0),
        ("l2", -1.0),
        ("width", 3),
    ],
)
def test_settings_are_checked(key: str, value: object) -> None:
    usual = settings_of().model_dump() | {key: value}
    with pytest.raises(ConfigError, match=rf"^model\.{key}"):
        parse_settings(MlpSettings, usual, "model")


@pytest.mark.parametrize(
    ("shape", "classes", "side", "message"),
    [
        ((100,), None, 1, "dataset=toy has .* and no classes"),
        (
            (100,),
            10,
            2,
            r"average_pool=2: needs images .* shape \[100\]; write model.average_pool=1",
        ),
        ((28, 27), 10, 2, r"average_pool=2: needs images .* shape \[28, 27\]"),
    ],
)
def test_data_that_do_not_fit_are_refused(
    shape: tuple[int, ...], classes: int | None, side: int, message: str
) -> None:
    info = DatasetInfo("toy", "synthetic", "", shape, classes, 100, None)
    with pytest.raises(ConfigError, match=message) as error:
        Mlp.dimension_of(settings_of(average_pool=side), info)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("activation", "layer"), [("sigmoid", 0), ("relu", 0), ("relu", 1)]
)  # sigmoids are at most 1
def test_no_record_is_left_unclipped_where_its_residual_underflows(
    activation: str, layer: int
) -> None:
    """A layer's inputs of any norm and residuals of any size: each record has at most norm C,
    beyond the largest norm none.
    """
    scales = np.array([1e3, 1e9, 0.999e12, 1.001e12, 1e15, 1.8e19], np.float32)
    gaps = np.linspace(0.0, 120.0, 121)
    fed = federation([1] * len(scales), size=(1, 1))
    train = fed.dataset.train
    train.targets[:] = 0
    train.features[fed.partition.indices, 0, 0] = scales if layer == 0 else 1.0
    objective = objective_of(
        settings_of(hidden=[1], activation=activation, precision="float32"), [fed], [0] * len(gaps)
    )
    values = torch.zeros(len(gaps), len(scales), objective.dimension, dtype=torch.float64)
    unit = (
        1.0 if activation == "relu" else 0.5
    )  # the hidden unit's output, where its inputs are weighed by nothing
    values[..., 0] = torch.from_numpy(scales).double() if layer == 1 else 0.0
    values[..., 1] = 1.0 if layer == 0 and activation == "relu" else 0.0  # the hidden unit's bias
    outputs = torch.from_numpy(scales).double() if layer == 1 else unit
    values[..., 2] = torch.from_numpy(gaps)[:, None] / outputs  # the weight of class 0
    parameters = client_values(values.float())
    found = objective.clipped_gradient(parameters, torch.full((len(gaps),), 1e-4))
    norms = opened(found.values).double().norm(dim=-1)
    assert float(norms.max()) <= 1e-4 * (1 + 1e-5)
    assert bool((norms[1, :3] > 0.99e-4).all())
    assert not bool(norms[:, 3:].any())
