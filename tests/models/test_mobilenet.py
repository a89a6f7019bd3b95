"""MobileNet: its shapes, and how large its groups and its workspace are."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn

from dpfl_cli.data.federation import DatasetInfo
from dpfl_cli.models import network
from dpfl_cli.models.mobilenet import MobileNet, scaled
from tests.models import small

settings_of = partial(small.settings_of, "mobilenet")


def info_of(shape: tuple[int, ...] = (28, 28)) -> DatasetInfo:
    return small.info_of(shape, records=6)


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


def test_the_workspace_counts_the_gradients_of_a_chunk() -> None:
    before, passes = torch.get_num_threads(), network.PASS_BYTES
    held = [MobileNet.workspace(settings_of(width=width), info_of(), 2) for width in (0.25, 1.0)]
    assert held[0] >= before * (
        passes + 4 * 25 * MobileNet.dimension_of(settings_of(width=0.25), info_of())
    )
    assert held[1] >= before * (passes + 4 * 15 * 2_236_106)
