"""Workload D: record-level local steps of a 512 -> 10 head, against three ways to clip that
research code uses.

2 clients with 1500 records, 15 local steps a round, each on a fresh batch of 100 without
replacement, in float32: v <- v - rate * mean of the clipped gradients of the batch's records, for
  every client. The noise is left out everywhere.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import grad, vmap
from torch.nn import functional

from dpfl_cli.config.component import parse_settings
from dpfl_cli.config.compose import compose_config
from dpfl_cli.data.federation import Dataset, DatasetInfo, Federation, Partition, Records
from dpfl_cli.models.softmax import SoftmaxRegression, SoftmaxSettings
from dpfl_cli.privacy.client_values import client_values, opened
from tests.benchmarks.harness import Case, Contender, Workload
from tests.benchmarks.plain import clipped
from tests.padding import padded

CLIENTS, RECORDS, WIDTH, CLASSES = 2, 1500, 512, 10
STEPS, BATCH, CLIP, RATE = 15, 100, 0.5, 0.1
LOOP_STEPS = 3  # the loop's part of a round


def cases() -> Iterator[Case]:
    yield Case(
        "D",
        "record-level steps of a 512 -> 10 head, 2 clients x 1500 records, 15 batches of 100",
        record_level,
        floor=150,
    )


def record_level(device: str) -> Workload:
    federation = softmax_federation(CLIENTS, RECORDS, WIDTH, CLASSES)
    objective = softmax_objective(federation, device, bias=True)
    start, numbers = (
        torch.zeros(CLIENTS, objective.dimension),
        batches(STEPS, CLIENTS, RECORDS, BATCH),
    )
    features, labels, _ = (torch.from_numpy(part) for part in padded(federation))
    here, drawn = start.to(device), numbers.to(device)
    return Workload(
        engine=Contender(lambda: engine(objective, here, drawn)),
        references={
            "loop": Contender(
                lambda: record_by_record(features, labels, start, numbers[:LOOP_STEPS]),
                LOOP_STEPS / STEPS,
            ),
            "vmap": Contender(lambda: per_record_vmap(features, labels, start, numbers)),
            "materialised": Contender(lambda: materialised(features, labels, start, numbers)),
        },
        flops=STEPS
        * CLIENTS
        * BATCH
        * 4.0
        * CLASSES
        * (WIDTH + 1),  # logits, and the re-weighted product
    )


def softmax_federation(clients: int, records: int, width: int, classes: int) -> Federation:
    """Random records, equally many for every client."""
    generator, total = np.random.default_rng(0), clients * records
    features = generator.standard_normal((total, width), np.float32)
    features /= np.float32(np.sqrt(width))
    info = DatasetInfo("random", "synthetic", "", (width,), classes, total, None)
    pool = Records(features, generator.integers(0, classes, total))
    return Federation(
        Dataset(info, pool, None), Partition(np.arange(total), np.arange(clients + 1) * records)
    )


def softmax_objective(
    federation: Federation, device: str = "cpu", **changes: object
) -> SoftmaxRegression:
    """The model of `model=softmax` with some settings changed."""
    values = {**compose_config(["model=softmax"])["model"], **changes}
    values.pop("name")
    return SoftmaxRegression(
        parse_settings(SoftmaxSettings, values, "model"), [federation], np.array([0]), device
    )


def batches(steps: int, clients: int, records: int, size: int) -> Tensor:
    """[steps, clients, size] record numbers, without replacement."""
    generator = np.random.default_rng(0)
    drawn = [[generator.permutation(records)[:size] for _ in range(clients)] for _ in range(steps)]
    return torch.from_numpy(np.array(drawn))


def engine(objective: SoftmaxRegression, start: Tensor, numbers: Tensor) -> Tensor:
    """[clients, d] where the clients' steps lead from start [clients, d], by the objective."""
    clip_norm = torch.tensor([CLIP], device=start.device)
    values = client_values(start.unsqueeze(0).clone())
    for batch in numbers:
        values.sub_(
            objective.clipped_gradient(values, clip_norm, batch.unsqueeze(0)).values, alpha=RATE
        )
    return opened(values)[0]


def record_by_record(features: Tensor, labels: Tensor, start: Tensor, numbers: Tensor) -> Tensor:
    """As `engine`, in micro-batches of one record: backward, clip, accumulate."""
    width, classes = features.shape[-1], start.shape[-1] // (features.shape[-1] + 1)
    module, found = nn.Linear(width, classes), []
    optimiser = torch.optim.SGD(module.parameters(), lr=RATE)
    for client, begin in enumerate(start):
        table = begin.view(classes, width + 1)
        module.load_state_dict({"weight": table[:, :-1], "bias": table[:, -1]})
        for batch in numbers[:, client]:
            sums = [torch.zeros_like(parameter) for parameter in module.parameters()]
            for record in batch:
                optimiser.zero_grad()
                functional.cross_entropy(
                    module(features[client, record]), labels[client, record]
                ).backward()
                nn.utils.clip_grad_norm_(module.parameters(), CLIP)
                for total, parameter in zip(sums, module.parameters(), strict=True):
                    total.add_(parameter.grad)
            for total, parameter in zip(sums, module.parameters(), strict=True):
                parameter.grad = total / len(batch)
            optimiser.step()
        found.append(
            torch.cat([module.weight.detach(), module.bias.detach().unsqueeze(1)], dim=1).flatten()
        )
    return torch.stack(found)


def per_record_vmap(features: Tensor, labels: Tensor, start: Tensor, numbers: Tensor) -> Tensor:
    """As `engine`, with per-record gradients by torch.func, for all clients at once."""
    width, classes = features.shape[-1], start.shape[-1] // (features.shape[-1] + 1)

    def loss(values: Tensor, record: Tensor, label: Tensor) -> Tensor:
        table = values.view(classes, width + 1)
        return functional.cross_entropy(table[:, :-1] @ record + table[:, -1], label)

    each = vmap(vmap(grad(loss), in_dims=(None, 0, 0)))
    values, clients = start, torch.arange(len(start)).unsqueeze(1)
    for batch in numbers:
        gradients = each(values, features[clients, batch], labels[clients, batch])
        values = values - RATE * clipped(gradients, CLIP).mean(dim=1)
    return values


def materialised(features: Tensor, labels: Tensor, start: Tensor, numbers: Tensor) -> Tensor:
    """As `engine`, with the per-record gradients of the layer written out, [clients, batch,
    classes, width + 1].
    """
    clients, width, classes = (
        len(start),
        features.shape[-1],
        start.shape[-1] // (features.shape[-1] + 1),
    )
    every, ones = torch.arange(clients).unsqueeze(1), torch.ones(*numbers.shape[1:], 1)
    table = start.view(clients, classes, width + 1)
    for batch in numbers:
        inputs = torch.cat([features[every, batch], ones], dim=-1)
        residual = torch.softmax(inputs @ table.mT, dim=-1) - functional.one_hot(
            labels[every, batch], classes
        )
        gradients = torch.einsum("kbc,kbp->kbcp", residual, inputs)
        scale = (CLIP / gradients.flatten(2).norm(dim=-1)).clamp(max=1.0)
        table = table - RATE * torch.einsum("kbcp,kb->kcp", gradients, scale) / batch.shape[-1]
    return table.flatten(1)
