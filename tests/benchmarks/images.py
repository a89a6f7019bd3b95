"""Workloads B and C: local training of CNNs on images, 10 full-batch steps a client, with and
without the compiled kernel.

1000 clients with 60 random images of 28x28 each, or with 1 to 300 (shares of a Dirichlet(1) law,
the same total), float32. Per
round: every client's update from one start.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from dpfl_cli.config.component import parse_settings
from dpfl_cli.config.compose import compose_config
from dpfl_cli.data.federation import Dataset, DatasetInfo, Federation, Partition, Records
from dpfl_cli.data.streams import Streams
from dpfl_cli.models.cnn import CnnObjective, CnnSettings
from dpfl_cli.privacy.client_values import opened
from tests.benchmarks.harness import Case, Contender, Workload
from tests.benchmarks.plain import train, train_stacked

CLIENTS, IMAGES, LARGEST, SIDE, CLASSES = 1000, 60, 300, 28, 10
STEPS, RATE = 10, 0.1
# the references' part of a round: stacks at even distances in the order of the clients' sizes
STACKS = 4
STACK = 10  # clients of about one size that vmap trains at once; more are no faster


class TorchPath(CnnObjective):
    """The CNN as where the kernel cannot be compiled."""

    def _kernel(self) -> None:
        return None


def cases() -> Iterator[Case]:
    networks = {
        "B": ("mnist_cnn", "MNIST CNN, 5046 parameters", 24),
        "C": ("mnist_cnn_small", "small CNN, 237 parameters", 75),
    }
    federations = {"": (equal_sizes(), "60 images"), "'": (unequal_sizes(), "1 to 300 images")}
    for key, (model, network, floor) in networks.items():
        for mark, (sizes, images) in federations.items():
            title = f"{network}, 1000 clients x {images}, 10 steps"
            training = partial(local_training, CnnObjective, model, sizes)
            yield Case(key, title, training, floor=floor)
            if not mark:
                yield Case(
                    key,
                    f"{title}, without the compiled kernel",
                    partial(local_training, TorchPath, model, sizes),
                )


def equal_sizes() -> np.ndarray:
    return np.full(CLIENTS, IMAGES)


def unequal_sizes(
    clients: int = CLIENTS, total: int = CLIENTS * IMAGES, largest: int = LARGEST
) -> np.ndarray:
    """[clients] sizes from 1 to `largest` with a given sum."""
    generator = np.random.default_rng(0)
    sizes = np.clip(np.round(generator.dirichlet(np.ones(clients)) * total).astype(int), 1, largest)
    while sizes.sum() != total:
        step = np.sign(total - sizes.sum())
        free = np.flatnonzero((sizes + step >= 1) & (sizes + step <= largest))
        sizes[generator.choice(free, min(len(free), abs(total - sizes.sum())), replace=False)] += (
            step
        )
    return sizes


def federation_of(sizes: np.ndarray) -> Federation:
    """Clients with so many random images each."""
    generator, total = np.random.default_rng(0), int(sizes.sum())
    pool = Records(
        generator.random((total, SIDE, SIDE), np.float32), generator.integers(0, CLASSES, total)
    )
    info = DatasetInfo("random", "synthetic", "", (SIDE, SIDE), CLASSES, total, None)
    test = Records(pool.features[:1], pool.targets[:1])
    return Federation(
        Dataset(info, pool, test),
        Partition(np.arange(total), np.concatenate([[0], np.cumsum(sizes)])),
    )


def settings_of(model: str) -> CnnSettings:
    """As the config has them."""
    values = {
        key: value
        for key, value in compose_config([f"model={model}", "dataset=mnist"])["model"].items()
        if key != "name"
    }
    return parse_settings(CnnSettings, values, "model")


def local_training(
    kind: type[CnnObjective], model: str, sizes: np.ndarray, device: str
) -> Workload:
    federation, settings = federation_of(sizes), settings_of(model)
    objective = kind(settings, [federation], np.array([0]), device)
    start, rate = objective.initial(Streams([0])), torch.tensor([RATE], device=device)
    some = (
        np.argsort(sizes)
        .reshape(-1, STACK)[CLIENTS // STACK // STACKS // 2 :: CLIENTS // STACK // STACKS]
        .ravel()
    )
    part = float(sizes[some].sum() / sizes.sum())
    return Workload(
        engine=Contender(lambda: objective.local_descent(start, rate, STEPS)),
        references={
            "loop": Contender(
                lambda: loop(settings, federation, some, start[0].cpu(), STEPS), part
            ),
            "vmap": Contender(
                lambda: stacked(settings, federation, some, start[0].cpu(), STEPS), part
            ),
        },
        flops=float(sizes.sum()) * STEPS * flops_per_image(settings),
    )


def flops_per_image(settings: CnnSettings) -> float:
    """Two operations for every product of the forward pass, the weights' gradients, and all layers'
    inputs' but the first's.

    Of the convolutions' outputs, those that a pooling window holds (24x24 and 8x8); behind a
    pooling, a gradient has one position in four.
    """
    first, second = settings.channels
    widths = [16 * second, *([] if settings.hidden is None else [settings.hidden]), CLASSES]
    full = sum(into * out for into, out in pairwise(widths))
    one, two = 24 * 24 * first * 16, 8 * 8 * second * first * 16
    return 2.0 * (one + two + full + (one + two) / 4 + full + two / 4 + full)


def network(settings: CnnSettings) -> nn.Sequential:
    """The same network from PyTorch's layers."""
    first, second = settings.channels
    layers: list[nn.Module] = [nn.Conv2d(1, first, 4), nn.ReLU(), nn.MaxPool2d(2)]
    layers += [nn.Conv2d(first, second, 4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()]
    width = 16 * second
    if settings.hidden is not None:
        layers += [nn.Linear(width, settings.hidden), nn.ReLU()]
        width = settings.hidden
    return nn.Sequential(*layers, nn.Linear(width, CLASSES))


def weights_of(module: nn.Module, start: Tensor) -> dict[str, Tensor]:
    """Flat parameters [d] as a state dict."""
    nn.utils.vector_to_parameters(start.clone(), module.parameters())  # they become views of it
    return {name: value.detach().clone() for name, value in module.state_dict().items()}


def images_of(federation: Federation, client: int) -> tuple[Tensor, Tensor]:
    """[n, 1, 28, 28] images and [n] labels."""
    train_records, offsets = federation.dataset.train, federation.partition.offsets
    rows = federation.partition.indices[offsets[client] : offsets[client + 1]]
    return torch.from_numpy(train_records.features[rows]).unsqueeze(1), torch.from_numpy(
        train_records.targets[rows]
    )


def loop(
    settings: CnnSettings, federation: Federation, clients: Sequence[int], start: Tensor, steps: int
) -> Tensor:
    """[k, d] updates, client by client."""
    module = network(settings)
    weights = weights_of(module, start)
    updates = []
    for client in clients:
        images, labels = images_of(federation, client)
        updates.append(
            train(module, weights, images, [labels], steps, RATE, functional.cross_entropy)
        )
    return torch.stack(updates)


def stacked(
    settings: CnnSettings, federation: Federation, clients: Sequence[int], start: Tensor, steps: int
) -> Tensor:
    """[k, d] updates, `STACK` clients at once, padded to the largest of them."""
    module = network(settings)
    weights = weights_of(module, start)
    updates = []
    for first in range(0, len(clients), STACK):
        own = [images_of(federation, client) for client in clients[first : first + STACK]]
        images = nn.utils.rnn.pad_sequence([images for images, _ in own], batch_first=True)
        labels = nn.utils.rnn.pad_sequence([labels for _, labels in own], batch_first=True)
        shares = nn.utils.rnn.pad_sequence(
            [torch.full((len(labels),), 1 / len(labels)) for _, labels in own], batch_first=True
        )
        updates.append(
            train_stacked(
                module, weights, images, [labels, shares], steps, RATE, weighted_cross_entropy
            )
        )
    return torch.cat(updates)


def weighted_cross_entropy(outputs: Tensor, labels: Tensor, shares: Tensor) -> Tensor:
    return (functional.cross_entropy(outputs, labels, reduction="none") * shares).sum()


def engine(objective: CnnObjective, start: Tensor, steps: int) -> Tensor:
    """[M, d] updates by the objective."""
    return opened(objective.local_descent(start, torch.tensor([RATE]), steps))[0]
