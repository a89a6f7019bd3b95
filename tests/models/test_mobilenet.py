"""MobileNet: its parameters counted, its shapes, and its clipped gradients against a plain loop."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import yaml
from torch import nn
from torch.func import functional_call

from dpfl_cli.config.component import lookup, parse_settings
from dpfl_cli.config.errors import ConfigError
from dpfl_cli.config.paths import conf_dir
from dpfl_cli.data.federation import Dataset, DatasetInfo, Federation, Partition, Records
from dpfl_cli.data.streams import Streams
from dpfl_cli.models import network
from dpfl_cli.models.mobilenet import MobileNet, MobileNetSettings, scaled
from dpfl_cli.privacy.client_values import opened

CONF = yaml.safe_load((conf_dir() / "model" / "mobilenet.yaml").read_text())
CONF.pop("name")


def settings_of(**values) -> MobileNetSettings:
    return MobileNetSettings(**(CONF | values))


def info_of(shape=(28, 28), classes: int | None = 10, **values) -> DatasetInfo:
    return DatasetInfo("toy", "synthetic", "", shape, classes, 6, None, **values)


def federation(counts=(4, 0, 2), size=(16, 16)) -> Federation:
    generator = np.random.default_rng(0)
    parts = [
        Records(generator.random((6, *size), dtype=np.float32), generator.integers(0, 10, 6))
        for _ in range(2)
    ]
    ends = np.cumsum(counts)
    lists = [np.arange(end - count, end) for end, count in zip(ends, counts, strict=True)]
    return Federation(Dataset(info_of(size), *parts), Partition.from_lists(lists))


# with one channel and ten classes: the SPEC of adaptdp, section 6; in colour 576 more (32 kernels
#   of 2 * 9)
@pytest.mark.parametrize(
    ("version", "shape", "count"),
    [
        ("v2", (28, 28), 2_236_106),
        ("v1", (28, 28), 3_216_650),
        ("v2", (3, 32, 32), 2_236_106 + 576),
        ("v1", (3, 32, 32), 3_216_650 + 576),
    ],
)
def test_parameters(version: str, shape: tuple[int, ...], count: int) -> None:
    assert MobileNet.dimension_of(settings_of(version=version), info_of(shape)) == count


def test_the_conf_is_the_papers() -> None:
    assert lookup("model", "mobilenet").target is MobileNet
    assert CONF == {
        "version": "v2",
        "width": 1.0,
        "groups": 8,
        "first_stride": 1,
        "gradient_quantiles": False,
        "watched_client": None,
        "train_loss_records": None,
    }


@pytest.mark.parametrize(("version", "side"), [("v2", 2), ("v1", 2)])
def test_images_of_28_end_as_2x2(version: str, side: int) -> None:
    network = MobileNet.network(settings_of(version=version, width=0.25), info_of())
    assert network[0](torch.zeros(1, 1, 28, 28)).shape[-2:] == (side, side)
    halved = MobileNet.network(settings_of(version=version, width=0.25, first_stride=2), info_of())
    assert halved[0](torch.zeros(1, 1, 28, 28)).shape[-2:] == (1, 1)


def test_numbers_of_channels_are_multiples_of_8() -> None:
    assert [scaled(channels, 0.25) for channels in (16, 24, 32, 96, 1280)] == [8, 8, 8, 24, 320]
    assert scaled(24, 0.75) == 24  # 16 would be more than a tenth too few
    network = MobileNet.network(settings_of(width=0.25), info_of())
    layers = [layer for layer in network.modules() if isinstance(layer, nn.GroupNorm)]
    assert len(layers) == 52
    assert all(layer.num_channels % 8 == 0 and layer.num_groups == 8 for layer in layers)
    assert layers[-1].num_channels == 1280  # the last convolution is not narrowed


class Double(MobileNet):
    dtype = torch.float64


@pytest.mark.parametrize("version", ["v2", "v1"])
def test_clipped_gradients_are_those_of_a_loop_over_records(version: str) -> None:
    fed = federation()
    objective = Double(settings_of(version=version, width=0.1), [fed], np.array([0]))
    start = objective.initial(Streams([0]))
    parameters = start.unsqueeze(1).expand(-1, 3, -1)
    limit = torch.tensor([20.0], dtype=torch.float64)
    found, squared = (
        objective.clipped_gradient(parameters, limit).checked(),
        objective.squared_gradient_norms(parameters),
    )
    shapes = {name: parameter.shape for name, parameter in objective.module.named_parameters()}
    parts = start[0].split([shape.numel() for shape in shapes.values()])
    named = {
        name: part.view(shape).requires_grad_()
        for (name, shape), part in zip(shapes.items(), parts, strict=True)
    }
    each = []
    for image, target in zip(fed.dataset.train.features, fed.dataset.train.targets, strict=True):
        outputs = functional_call(
            objective.module, named, (torch.from_numpy(image)[None, None].double(),)
        )
        loss = nn.functional.cross_entropy(outputs, torch.tensor([target]))
        each.append(
            torch.cat([part.flatten() for part in torch.autograd.grad(loss, list(named.values()))])
        )
    norms = torch.stack(each).norm(dim=1)
    assert bool((norms > 20).any())
    clipped = torch.stack(each) * (20 / norms).clamp(max=1.0).unsqueeze(1)
    expected = torch.stack([clipped[:4].mean(0), torch.zeros_like(clipped[0]), clipped[4:].mean(0)])
    torch.testing.assert_close(found[0], expected, rtol=0, atol=1e-9)
    torch.testing.assert_close(opened(squared)[0, 0], norms[:4].square(), rtol=1e-9, atol=0)
    torch.testing.assert_close(opened(squared)[0, 2, :2], norms[4:].square(), rtol=1e-9, atol=0)


@pytest.mark.parametrize(
    ("values", "says"),
    [
        (
            {"groups": 3},
            "model.groups=3: numbers of channels are multiples of 8, so it must be 1, 2, 4 or 8",
        ),
        ({"width": 0.0}, "model.width=0.0"),
        ({"version": "v3"}, "model.version='v3'"),
        ({"first_stride": 3}, "model.first_stride=3"),
    ],
)
def test_wrong_settings_are_refused(values: dict, says: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_settings(MobileNetSettings, CONF | values, "model")
    assert str(refused.value).startswith(says)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "info", [info_of((30,)), info_of(classes=None), info_of((28, 28), target_shape=(28, 28))]
)
def test_data_that_are_no_images_with_classes_are_refused(info: DatasetInfo) -> None:
    with pytest.raises(ConfigError, match="model=mobilenet: needs images"):
        MobileNet.dimension_of(settings_of(), info)


def test_the_workspace_counts_the_gradients_of_a_chunk() -> None:
    before, passes = torch.get_num_threads(), network.PASS_BYTES
    held = [MobileNet.workspace(settings_of(width=width), info_of(), 2) for width in (0.25, 1.0)]
    assert held[0] >= before * (
        passes + 4 * 25 * MobileNet.dimension_of(settings_of(width=0.25), info_of())
    )
    assert held[1] >= before * (passes + 4 * 15 * 2_236_106)


def test_a_group_of_a_single_number_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"model\.groups=8: the images shrink to one position"):
        MobileNet.dimension_of(settings_of(width=0.05, first_stride=2), info_of())
    MobileNet.dimension_of(settings_of(width=0.05, first_stride=2, groups=4), info_of())
    MobileNet.dimension_of(settings_of(width=0.05), info_of())
    with pytest.raises(ConfigError, match=r"write model\.groups=1"):
        MobileNet.dimension_of(settings_of(width=0.1), info_of((8, 8)))
    MobileNet.dimension_of(settings_of(width=0.1), info_of((16, 16)))
