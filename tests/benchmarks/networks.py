"""Workload H: one minibatch gradient of every client of 4 runs, of large networks with few clients:
stacked, or in turn?

The networks, batch sizes and numbers of clients of arXiv 2304.05127 on random records (volumes and
fundus images small), float32. dpfl computes client after client, a thread each. Beside it a plain
loop whose operations all threads share ("loop"), torch.func.vmap over runs and clients with all
records of a batch ("vmap"), and for the LSTM products stacked by hand.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call, grad, vmap
from torch.nn import functional

from dpfl_cli.config.component import lookup, parse_settings
from dpfl_cli.config.compose import compose_config
from dpfl_cli.data.federation import Dataset, DatasetInfo, Federation, Partition, Records
from dpfl_cli.data.leaf_reddit import IGNORED, LENGTH
from dpfl_cli.data.streams import Streams
from dpfl_cli.models.lstm2 import LAYERS, Lstm2
from dpfl_cli.models.network import Network
from dpfl_cli.privacy.client_values import opened
from dpfl_cli.simulation.plan import load_components
from tests.benchmarks.harness import Case, Contender, Workload

RUNS = 4
BATCHES = 2  # records of a client, in batches: what a batch holds changes no time
VOCABULARY = 200


@dataclass(frozen=True)
class Problem:
    """A network on random records.

    Attributes:
      model: the option.
      shape: of a record's features; classes: of images.
      clients, batch: M and b.
    """

    model: str
    shape: tuple[int, ...]
    classes: int | None
    clients: int
    batch: int


PROBLEMS = (
    Problem("cnn_cifar_small", (3, 32, 32), 10, 5, 64),
    Problem("cnn_cifar", (3, 32, 32), 10, 5, 64),
    Problem("cnn_femnist", (28, 28), 62, 6, 16),
    Problem("vgg11_small", (3, 64, 64), 2, 3, 4),
    Problem("unet3d", (1, 24, 30, 24), None, 3, 1),
    Problem("lstm2", (LENGTH,), None, 3, 64),
)


def cases() -> Iterator[Case]:
    for problem in PROBLEMS:
        title = (
            f"{problem.model}, {RUNS} runs x {problem.clients} clients, minibatch gradient of "
            f"{problem.batch}"
        )
        yield Case("H", title, partial(minibatches, problem))


def minibatches(problem: Problem, device: str) -> Workload:
    objective = objective_of(problem, {}, device)
    at, batch = points(objective), drawn(objective, problem)
    references = {
        "loop": Contender(lambda: loop(objective, at, batch)),
        "vmap": Contender(lambda: stacked(objective, at, batch)),
    }
    if isinstance(objective, Lstm2):
        references["stacked products"] = Contender(lambda: stacked_lstm(objective, at, batch))
    return Workload(Contender(lambda: engine(objective, at, batch)), references)


def objective_of(problem: Problem, changes: dict[str, Any], device: str = "cpu") -> Network:
    """The model as the config has it, with some settings changed."""
    load_components()
    values = {**compose_config([f"model={problem.model}"])["model"], **changes}
    found = lookup("model", values.pop("name"))
    objective: Network = found.target(
        parse_settings(found.settings, values, "model"),
        [federation_of(problem)],
        np.zeros(RUNS, int),
        device,
    )
    return objective


def federation_of(problem: Problem) -> Federation:
    generator, shape, clients = np.random.default_rng(0), problem.shape, problem.clients
    each = BATCHES * problem.batch
    total = clients * each
    if problem.classes is not None:
        info = DatasetInfo("random", "synthetic", "", shape, problem.classes, total, clients)
        train = Records(
            generator.standard_normal((total, *shape), np.float32),
            generator.integers(0, problem.classes, total),
        )
    elif len(shape) > 1:
        known = None, total, clients, {"labels": 2}, shape[1:]
        info = DatasetInfo("random", "synthetic", "", shape, *known)
        truth = generator.integers(0, 2, (total, *shape[1:])).astype(np.uint8)
        train = Records(generator.standard_normal((total, *shape), np.float32), truth)
    else:
        known = None, total, clients, {"vocabulary": VOCABULARY}, shape
        info = DatasetInfo("random", "synthetic", "", shape, *known)
        train = Records(*(generator.integers(0, VOCABULARY, (total, *shape)) for _ in range(2)))
    return Federation(
        Dataset(info, train, None), Partition(np.arange(total), each * np.arange(clients + 1))
    )


def points(objective: Network) -> Tensor:
    """[R, M, d] initial parameters."""
    return (
        objective.initial(Streams(list(range(RUNS)))).unsqueeze(1).repeat(1, objective.clients, 1)
    )


def drawn(objective: Network, problem: Problem) -> Tensor:
    """[R, M, b] record numbers."""
    rounds = np.ones(RUNS, int)
    return Streams(list(range(RUNS))).subset(
        "batch", rounds, objective.clients, objective.held, problem.batch
    )


def engine(objective: Network, at: Tensor, batch: Tensor) -> Tensor:
    """[R, M, d]."""
    return opened(objective.gradient(at, batch))


def gathered(objective: Network, batch: Tensor) -> tuple[Tensor, Tensor]:
    """Inputs and targets [R * M, b, ...] of the batches."""
    federation = objective.federations[0]
    rows = torch.from_numpy(federation.partition.offsets[:-1]).unsqueeze(-1) + batch.cpu()
    train = federation.dataset.train
    features = torch.from_numpy(train.features)[rows.flatten()].to(objective.device)
    targets = torch.from_numpy(train.targets)[rows.flatten()].to(objective.device)
    split = (len(rows.flatten(0, 1)), batch.shape[-1])
    return objective.inputs(features).unflatten(0, split), targets.unflatten(0, split)


def named(objective: Network, at: Tensor) -> dict[str, Tensor]:
    """Parameters [..., d] by name, [..., *shape]."""
    found, begin = {}, 0
    for name, parameter in objective.module.named_parameters():
        found[name] = at[..., begin : begin + parameter.numel()].unflatten(-1, parameter.shape)
        begin += parameter.numel()
    return found


def flat(gradients: list[Tensor]) -> Tensor:
    """[R * M, d] from tensors [R * M, ...]."""
    return torch.cat([part.flatten(1) for part in gradients], dim=1)


def loop(objective: Network, at: Tensor, batch: Tensor) -> Tensor:
    """[R, M, d], one after another."""
    rows = []
    for own, inputs, targets in zip(at.flatten(0, 1), *gathered(objective, batch), strict=True):
        weights = {
            name: part.clone().requires_grad_() for name, part in named(objective, own).items()
        }
        loss = objective.losses(
            functional_call(objective.module, weights, (inputs,)), targets
        ).mean()
        rows.append(
            torch.cat(
                [part.flatten() for part in torch.autograd.grad(loss, list(weights.values()))]
            )
        )
    return torch.stack(rows).view_as(at)


def stacked(objective: Network, at: Tensor, batch: Tensor) -> Tensor:
    """[R, M, d], by vmap."""

    def loss(weights: dict[str, Tensor], inputs: Tensor, targets: Tensor) -> Tensor:
        return objective.losses(
            functional_call(objective.module, weights, (inputs,)), targets
        ).mean()

    gradients = vmap(grad(loss))(named(objective, at.flatten(0, 1)), *gathered(objective, batch))
    return flat(list(gradients.values())).view_as(at)


def stacked_lstm(objective: Network, at: Tensor, batch: Tensor) -> Tensor:
    """[R, M, d] of the LSTM: every product is one of stacks [R * M, ...]."""
    tokens, targets = gathered(objective, batch)
    leaves = [part.clone().requires_grad_() for part in named(objective, at.flatten(0, 1)).values()]
    stack, records = tokens.shape[:2]
    values = leaves[0][torch.arange(stack, device=at.device).reshape(-1, 1, 1), tokens]
    for layer in range(LAYERS):
        into, over, bias, bias_over = leaves[1 + 4 * layer : 5 + 4 * layer]
        gates = torch.baddbmm(
            (bias + bias_over).unsqueeze(1), values.flatten(1, 2), into.mT
        ).unflatten(1, (records, -1))
        state = cell = gates.new_zeros(stack, records, over.shape[-1])
        outputs = []
        for step in gates.unbind(2):
            enter, forget, content, leave = torch.baddbmm(step, state, over.mT).chunk(4, dim=2)
            cell = torch.sigmoid(forget) * cell + torch.sigmoid(enter) * torch.tanh(content)
            state = torch.sigmoid(leave) * torch.tanh(cell)
            outputs.append(state)
        values = torch.stack(outputs, dim=2)
    logits = torch.baddbmm(leaves[-1].unsqueeze(1), values.flatten(1, 2), leaves[-2].mT).flatten(
        0, 1
    )
    each = functional.cross_entropy(
        logits, targets.flatten(), ignore_index=IGNORED, reduction="none"
    ).view_as(targets)
    total = (each.sum(dim=2) / (targets != IGNORED).sum(dim=2).clamp(min=1)).mean(dim=1).sum()
    return flat(list(torch.autograd.grad(total, leaves))).view_as(at)
