"""The networks of the ScaffNew paper: sizes, losses and metrics by hand, gradients against
differences, means over clients.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from dpfl_cli.config.component import lookup, parse_settings
from dpfl_cli.config.compose import compose_config
from dpfl_cli.config.errors import ConfigError
from dpfl_cli.data.federation import Dataset, DatasetInfo, Federation, Partition, Records
from dpfl_cli.data.leaf_reddit import IGNORED
from dpfl_cli.data.streams import Streams
from dpfl_cli.models.client_mean import own_clients, shares_of
from dpfl_cli.models.cnn5x5 import Cnn5x5, Cnn5x5Settings
from dpfl_cli.models.lstm2 import Lstm2, Lstm2Settings, PlainLstm
from dpfl_cli.models.unet3d import Convolution, Unet3d, Unet3dSettings
from dpfl_cli.models.vgg11 import Vgg11, Vgg11Settings
from dpfl_cli.simulation.plan import load_components, make_plan
from tests.padding import own_records

RNG = np.random.default_rng(0)
CIFAR = DatasetInfo("cifar10", "real", "", (3, 32, 32), 10, 50_000, None)
FEMNIST = DatasetInfo("femnist", "real", "", (28, 28), 62, 36_774, 6)
MESSIDOR = DatasetInfo("messidor", "real", "", (3, 224, 224), 2, 900, 3)


def volumes(shape: tuple[int, ...], records: int, clients: int) -> DatasetInfo:
    known = (1, *shape), None, records, clients, {"labels": 2}, shape
    return DatasetInfo("fed_ixi", "real", "", *known)


def sequences(vocabulary: int, records: int, clients: int) -> DatasetInfo:
    known = (10,), None, records, clients, {"vocabulary": vocabulary}, (10,)
    return DatasetInfo("reddit", "real", "", *known)


IXI = volumes((48, 60, 48), 453, 3)


def reddit(vocabulary: int) -> DatasetInfo:
    return sequences(vocabulary, 86_250, 3)


def settings_of(kind, **values):
    return {
        Cnn5x5: lambda: Cnn5x5Settings(channels=[2, 3], hidden=4, **values),
        Vgg11: lambda: Vgg11Settings(width=2, hidden=None, **values),
        Unet3d: lambda: Unet3dSettings(channels=2, groups=2, **values),
        Lstm2: lambda: Lstm2Settings(embedding=3, hidden=4, **values),
    }[kind]()


def federation_of(kind, counts: list[int], tests: list[int]) -> Federation:
    """Small data of a model's kind: clients with so many training and test records."""

    def records(n: int) -> Records:
        if kind is Cnn5x5:
            return Records(RNG.normal(size=(n, 8, 8)).astype("f4"), RNG.integers(0, 3, n))
        if kind is Vgg11:
            return Records(RNG.normal(size=(n, 3, 32, 32)).astype("f4"), RNG.integers(0, 2, n))
        if kind is Unet3d:
            return Records(
                RNG.normal(size=(n, 1, 5, 4, 6)).astype("f4"),
                RNG.integers(0, 2, (n, 5, 4, 6)).astype("u1"),
            )
        targets = RNG.integers(0, 12, (n, 10))
        targets[:, 7:] = IGNORED
        targets[::3, 2:] = IGNORED
        return Records(RNG.integers(0, 12, (n, 10)), targets)

    info = {
        Cnn5x5: DatasetInfo("images", "synthetic", "", (8, 8), 3, sum(counts), len(counts)),
        Vgg11: DatasetInfo("images", "synthetic", "", (3, 32, 32), 2, sum(counts), len(counts)),
        Unet3d: volumes((5, 4, 6), sum(counts), len(counts)),
        Lstm2: sequences(12, sum(counts), len(counts)),
    }[kind]
    natural, test_natural = (np.repeat(np.arange(len(counts)), part) for part in (counts, tests))
    dataset = Dataset(
        info, records(sum(counts)), records(sum(tests)), natural, test_natural=test_natural
    )
    return Federation(
        dataset,
        Partition.from_lists([np.flatnonzero(natural == client) for client in range(len(counts))]),
    )


KINDS = [Cnn5x5, Vgg11, Unet3d, Lstm2]


@pytest.fixture(params=KINDS, ids=lambda kind: kind.__name__)
def objective(request):
    return request.param(
        settings_of(request.param), [federation_of(request.param, [3, 2], [4, 1])], np.array([0, 0])
    )


def points(objective) -> torch.Tensor:
    return objective.initial(Streams([1, 2])).unsqueeze(1).repeat(1, objective.clients, 1)


def mean_loss(objective, values: torch.Tensor, client: int, numbers: list[int]) -> torch.Tensor:
    """The mean loss of some records of a client, in float64, by the module itself."""
    own = own_records(objective.federations[0], client)
    features, targets = (torch.from_numpy(part[numbers]) for part in own)
    features = features.double() if features.is_floating_point() else features
    named, start = {}, 0
    for name, parameter in objective.module.named_parameters():
        named[name] = values[start : start + parameter.numel()].view(parameter.shape)
        start += parameter.numel()
    outputs = torch.func.functional_call(
        objective.module.double(), named, (objective.inputs(features),)
    )
    return objective.losses(outputs, targets).mean()


def test_metrics_on_clients_own_records_are_marked(objective) -> None:
    found = objective.metrics(objective.initial(Streams([0, 1])))
    assert set(found) == objective.private(found)
    main = "dice" if isinstance(objective, Unet3d) else "accuracy"
    torch.testing.assert_close(found["test_error"], 100 - found[main])
    assert set(found) == {"train_loss", "test_loss", "test_error", main}


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_the_watched_clients_own_loss_is_a_metric_without_a_release(kind) -> None:
    federation = federation_of(kind, [3, 2], [4, 1])
    plain, watched = (
        kind(settings_of(kind, **one), [federation], np.array([0, 0]))
        for one in ({}, {"watched_client": 1})
    )
    at = plain.initial(Streams([1, 2]))
    found = watched.metrics(at)
    assert plain.metrics(at).keys() | {"watched_train_loss"} == set(found) == watched.private(found)
    for run in range(2):
        wanted = mean_loss(watched, at[run].double(), 1, [0, 1])
        watched.module.float()
        assert found["watched_train_loss"][run].item() == pytest.approx(float(wanted), rel=1e-4)
    others = plain.metrics(at)
    assert all(torch.equal(found[name], others[name]) for name in others)


@pytest.mark.parametrize("counts", [[5, 3, 1], [2, 0, 4]])
def test_train_losses_on_the_first_records_of_every_client(counts: list[int]) -> None:
    federation = federation_of(Cnn5x5, counts, [1, 1, 1])
    limited = Cnn5x5(
        settings_of(Cnn5x5, train_loss_records=2, watched_client=2), [federation], np.array([0])
    )
    at = limited.initial(Streams([1]))
    found = limited.metrics(at)
    means = [
        float(mean_loss(limited, at[0].double(), i, list(range(min(n, 2))))) if n else 0.0
        for i, n in enumerate(counts)
    ]
    assert found["train_loss"].item() == pytest.approx(sum(means) / 3, rel=1e-5)
    assert found["watched_train_loss"].item() == pytest.approx(means[2], rel=1e-5)
    whole = Cnn5x5(settings_of(Cnn5x5), [federation], np.array([0])).metrics(at)
    assert found["train_loss"].item() != whole["train_loss"].item()
    assert found["test_loss"].item() == whole["test_loss"].item()
    wide = Cnn5x5(settings_of(Cnn5x5, train_loss_records=9), [federation], np.array([0])).metrics(
        at
    )
    assert wide["train_loss"].item() == whole["train_loss"].item()


def test_a_watched_client_without_records_or_that_is_none() -> None:
    empty = federation_of(Cnn5x5, [3, 0], [1, 1])
    model = Cnn5x5(settings_of(Cnn5x5, watched_client=1), [empty], np.array([0]))
    assert model.metrics(model.initial(Streams([0])))["watched_train_loss"].tolist() == [0.0]
    with pytest.raises(
        ConfigError, match=r"model\.watched_client=3: there are 3 clients, numbered from 0"
    ) as error:
        make_plan(
            compose_config(
                [
                    "dataset=messidor_synth_small",
                    "dp=none",
                    "algorithm=fedavg",
                    "model.watched_client=3",
                ]
            )
        )
    assert "\n" not in str(error.value)
    with pytest.raises(ConfigError, match="watched_client"):
        parse_settings(
            Cnn5x5Settings, {"channels": [2, 3], "hidden": 4, "watched_client": -1}, "model"
        )


@pytest.mark.parametrize("hidden", [None, 40])
def test_vggs_other_initial_values_are_torchvisions_in_law(hidden: int | None) -> None:
    federation = federation_of(Vgg11, [1], [1])
    model = Vgg11(
        Vgg11Settings(width=8, hidden=hidden, init="kaiming"), [federation], np.array([0, 0])
    )
    values, start = model.initial(Streams([0, 1]))[0], 0
    reference = Vgg11.network(model.settings, federation.dataset.info)
    for layer in reference.modules():  # torchvision/models/vgg.py
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
            nn.init.constant_(layer.bias, 0)
        elif isinstance(layer, nn.Linear):
            nn.init.normal_(layer.weight, 0, 0.01)
            nn.init.constant_(layer.bias, 0)
    for parameter in reference.parameters():
        own = values[start : start + parameter.numel()].view(parameter.shape)
        start += parameter.numel()
        if own.dim() == 1:
            assert (own == 0).all()
            assert (parameter == 0).all()
            continue
        deviation = 0.01 if own.dim() == 2 else (2 / (9 * len(own))) ** 0.5
        for drawn in (own, parameter.detach()):
            error = 5 * drawn.numel() ** -0.5
            assert abs(float(drawn.mean())) < error * deviation
            assert float(drawn.std()) == pytest.approx(deviation, rel=error)
        ordered = (own.flatten().sort().values / deviation)[
            [own.numel() // 4, 3 * own.numel() // 4]
        ]
        torch.testing.assert_close(
            ordered, torch.tensor([-0.6745, 0.6745]), rtol=0, atol=6 * own.numel() ** -0.5
        )  # normal
    assert start == len(values)
    assert not torch.equal(values, model.initial(Streams([0, 1]))[1])


@pytest.mark.parametrize("hidden", [None, 40])
def test_vggs_unit_values_are_he_normal_by_what_layers_are_multiplied_with(
    hidden: int | None,
) -> None:
    """The outputs are those of plain layers whose weights and biases hold the factors."""
    federation = federation_of(Vgg11, [1], [1])
    settings = Vgg11Settings(width=8, hidden=hidden, init="unit")
    model = Vgg11(settings, [federation], np.array([0]))
    values = model.initial(Streams([0]))[0]
    info = federation.dataset.info
    plain = Vgg11.network(settings.model_copy(update={"init": "default"}), info)
    scaled = Vgg11.network(settings, info)
    own = [one for one in plain.modules() if isinstance(one, nn.Conv2d | nn.Linear)]
    nn.utils.vector_to_parameters(values, scaled.parameters())
    for parameter in scaled.parameters():
        if parameter.dim() == 1:
            assert (parameter == 0).all()
            nn.init.normal_(parameter)  # so that biases are seen in the outputs
        else:
            error = 5 * parameter.numel() ** -0.5
            assert abs(float(parameter.detach().mean())) < error
            assert float(parameter.detach().std()) == pytest.approx(1.0, rel=error)
    nn.utils.vector_to_parameters(
        nn.utils.parameters_to_vector(scaled.parameters()), plain.parameters()
    )
    with torch.no_grad():
        for layer in own:
            gain = 1.0 if layer is own[-1] else 2.0
            fan_in = layer.weight.numel() / len(layer.weight)
            layer.weight *= (gain / fan_in) ** 0.5
            layer.bias *= (gain / fan_in) ** 0.5
        images = torch.randn(4, 3, 32, 32)
        torch.testing.assert_close(scaled(images), plain(images), rtol=1e-4, atol=1e-5)


# Means over clients


def test_weights_are_means_over_clients_then_over_records() -> None:
    federation = federation_of(Cnn5x5, [3, 2, 1], [4, 1, 2])
    ones = np.ones(7)
    np.testing.assert_allclose(
        shares_of(federation, "clients", ones), np.repeat([1 / 12, 1 / 3, 1 / 6], [4, 1, 2])
    )
    np.testing.assert_allclose(shares_of(federation, "pooled", ones), 1 / 7)
    sizes = np.array([1, 2, 3, 0, 5, 1, 1.0])
    np.testing.assert_allclose(
        shares_of(federation, "clients", sizes),
        np.array([1 / 6, 2 / 6, 3 / 6, 0, 1, 1 / 2, 1 / 2]) / 3,
    )
    some = replace(
        federation, partition=Partition.from_lists([np.array([5]), np.array([0, 1, 2])])
    )  # clients 2 and 0 take part
    assert own_clients(some).tolist() == [2, 0]
    np.testing.assert_allclose(
        shares_of(some, "clients", ones), np.repeat([1 / 8, 0, 1 / 4], [4, 1, 2])
    )
    dealt = replace(
        federation, partition=Partition.from_lists([np.array([0, 5]), np.array([1, 2, 3, 4])])
    )
    assert own_clients(dealt) is None
    np.testing.assert_allclose(shares_of(dealt, "clients", ones), 1 / 7)
    without = replace(federation, dataset=replace(federation.dataset, test_natural=None))
    np.testing.assert_allclose(shares_of(without, "clients", ones), 1 / 7)


def test_accuracy_is_the_mean_of_the_clients() -> None:
    federation = federation_of(Cnn5x5, [3, 2], [40, 10])
    test = federation.dataset.test
    found = {}
    for average in ("clients", "pooled"):
        objective = Cnn5x5(settings_of(Cnn5x5, average=average), [federation], np.array([0]))
        at = objective.initial(Streams([3]))
        found[average] = objective.metrics(at)["accuracy"].item()
    named, start = {}, 0
    for name, parameter in objective.module.named_parameters():
        named[name] = at[0, start : start + parameter.numel()].view(parameter.shape)
        start += parameter.numel()
    outputs = torch.func.functional_call(
        objective.module, named, (torch.from_numpy(test.features).unsqueeze(1),)
    )
    right = (outputs.argmax(dim=1).numpy() == test.targets).astype(float)
    assert found["clients"] == pytest.approx(
        100 * (right[:40].mean() + right[40:].mean()) / 2, rel=1e-5
    )
    assert found["pooled"] == pytest.approx(100 * right.mean(), rel=1e-5)
    assert right[:40].mean() != right[40:].mean()


# Each network's own


def test_the_lstm_is_pytorchs() -> None:
    torch.manual_seed(0)
    layer = PlainLstm(3, 5, 2, batch_first=True)
    inputs = torch.randn(4, 10, 3)
    torch.testing.assert_close(layer(inputs), nn.LSTM.forward(layer, inputs)[0])


def test_next_tokens_are_right_where_they_count_and_are_known() -> None:
    model = Lstm2(settings_of(Lstm2), [federation_of(Lstm2, [2], [2])], np.array([0]))
    predicted = torch.tensor([[5, 6, 0, 1, 7, 2, 2, 2, 2, 2], [3, 3, 3, 3, 3, 3, 3, 3, 3, 3]])
    targets = torch.tensor([[5, 7, 0, 1, 7, *[IGNORED] * 5], [IGNORED] * 10])
    outputs = 4.0 * functional.one_hot(predicted, 12).float()
    scores = model.scores(outputs, targets)
    assert scores["accuracy"].tolist() == pytest.approx(
        [40.0, 0.0]
    )  # 5 and 7; padding, unknown and 6 for 7 are wrong
    right = -np.log(np.exp(4) / (np.exp(4) + 11))
    assert model.losses(outputs, targets).tolist() == pytest.approx([right + 4 / 5, 0.0])


def test_accuracy_of_tokens_is_by_position() -> None:
    federation = federation_of(Lstm2, [2], [3])
    model = Lstm2(settings_of(Lstm2), [federation], np.array([0]))
    counted = (federation.dataset.test.targets != IGNORED).sum(axis=1)
    assert counted.tolist() == [2, 7, 7]
    np.testing.assert_allclose(
        model.test_weights(federation, federation.dataset.test), counted / 16
    )


def test_dice_by_hand() -> None:
    model = Unet3d(settings_of(Unet3d), [federation_of(Unet3d, [1], [1])], np.array([0]))
    targets = torch.tensor([[1, 1, 0, 0]]).reshape(1, 2, 2, 1)
    p = torch.tensor([0.9, 0.6, 0.2, 0.1])  # probability of label 1
    outputs = torch.stack([torch.log(1 - p), torch.log(p)]).reshape(1, 2, 2, 2, 1)
    one, zero = 2 * 1.5 / (1.8 + 2), 2 * 1.7 / (2.2 + 2)
    assert model.scores(outputs, targets)["dice"].item() == pytest.approx(100 * (one + zero) / 2)
    assert model.losses(outputs, targets).item() == pytest.approx(1 - (one + zero) / 2)
    sure = torch.tensor([200.0, -200.0]).reshape(1, 2, 1, 1, 1).expand(1, 2, 2, 2, 1)
    assert model.scores(sure, torch.zeros_like(targets))["dice"].item() == pytest.approx(
        100.0
    )  # label 1: nowhere, and found nowhere


@pytest.mark.parametrize("shape", [(5, 6, 7), (8, 3, 4), (1, 3, 3)])
def test_a_convolution_in_halves_is_the_whole_one(shape) -> None:
    layer = Convolution(2, 3, 3, padding=1)
    volume = torch.randn(1, 2, *shape)
    torch.testing.assert_close(layer(volume), nn.Conv3d.forward(layer, volume))


def test_groups_must_divide_and_regression_refuses_sequences() -> None:
    with pytest.raises(ConfigError, match=r"model\.groups=3"):
        Unet3d.dimension_of(Unet3dSettings(channels=2, groups=3), IXI)
    load_components()
    linear = lookup("model", "linear_regression")
    with pytest.raises(ConfigError, match="linear_regression: needs feature vectors"):
        linear.target.dimension_of(linear.settings(), reddit(200))
