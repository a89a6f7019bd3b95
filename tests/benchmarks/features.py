"""Workload J: features of images by a frozen network, image by image of a block, as `dpfl data
features` makes them.

EfficientNet-Lite0 on 28x28 grey images, resized to 224x224; the weights are random, which changes
no time. dpfl folds batch norms into convolutions and gives every thread images of its own. Beside
it the network as it is, in evaluation mode, on batches.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from dpfl_cli.data.backbones import (
    BACKBONES,
    EFFICIENTNET,
    Extractor,
    as_images,
    extracted,
    network_input,
)
from dpfl_cli.data.federation import Records
from dpfl_cli.data.networks import PIXEL_MEAN, PIXEL_STD, SIDE, efficientnet_lite0
from tests.benchmarks.harness import Case, Contender, Workload

IMAGES, PIXELS = 32, 28  # of a call, and their sides


def cases() -> Iterator[Case]:
    title = f"frozen EfficientNet-Lite0, features of a {PIXELS}x{PIXELS} image"
    yield Case("J", title, images, counted="images", floor=100, device=False)


def images(device: str) -> Workload:
    network, records = random_network(), random_images(IMAGES)
    with torch.inference_mode(), FlopCounterMode(display=False) as counter:
        plain(network, Records(records.features[:1], records.targets[:1]))
    extract = BACKBONES[EFFICIENTNET].build(network.state_dict(), torch.empty(0))
    return Workload(
        Contender(lambda: engine(extract, records), float(IMAGES)),
        {"loop": Contender(lambda: plain(network, records), float(IMAGES))},
        float(counter.get_total_flops()),
    )


def random_network() -> nn.Sequential:
    """With initial weights and statistics that are not those of a fresh batch norm."""
    generator = torch.Generator().manual_seed(0)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = efficientnet_lite0().eval()
    for name, buffer in network.named_buffers():
        if name.endswith("running_mean"):
            buffer.normal_(std=0.1, generator=generator)
        elif name.endswith("running_var"):
            buffer.uniform_(0.2, 0.5, generator=generator)
    return network


def random_images(count: int) -> Records:
    generator = np.random.default_rng(0)
    return Records(generator.random((count, PIXELS, PIXELS), np.float32), np.zeros(count, np.int64))


def engine(extract: Extractor, records: Records) -> np.ndarray:
    """[n, 1280] as dpfl computes them."""
    return extracted(extract, records.features)


def plain(network: nn.Sequential, records: Records) -> Tensor:
    """[n, 1280] by the network as it is, all images at once."""
    pixels = [PIXEL_MEAN] * 3, [PIXEL_STD] * 3
    with torch.inference_mode():
        given = network_input(as_images(records.features), SIDE, *pixels).contiguous()
        found: Tensor = network[:-1](given)
        return found
