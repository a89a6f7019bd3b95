"""Workload F: runs of the primal-dual method on a small convex problem, where overhead is what
there is to save.

20 clients with 100 records of 22 features, rows of unit norm, logistic loss with l2, float64, noise
on every message: the shape of ijcnn1's first 2000 records, drawn at random. dpfl does whole runs,
as `dpfl run` would: ledger, metrics, and runs that leave the stack as they end. A round is one
round of one run.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import grad, vmap
from torch.nn import functional

from dpfl_cli.config.compose import compose_config
from dpfl_cli.simulation.execute import run_members
from dpfl_cli.simulation.member import Member
from dpfl_cli.simulation.plan import make_plans
from dpfl_cli.simulation.run_plan import Plan, federation_of
from tests.benchmarks.harness import Case, Contender, Workload
from tests.benchmarks.plain import clipped
from tests.padding import padded

CLIENTS, RECORDS, WIDTH, L2, CLIP, STEP = 20, 100, 22, 0.1, 1.0, 0.25
HORIZONS, SEEDS = range(1000, 8001, 1000), 20
EVALUATED = 250  # rounds between two evaluations
LOOP_ROUNDS, RECORD_LOOP_ROUNDS = 50, 1

Gradient = Callable[
    [nn.Linear, Tensor, Tensor], Tensor
]  # (model, inputs [n, d], targets [n]) -> [d] of the mean loss


def cases() -> Iterator[Case]:
    problem = "logistic regression, 20 clients x 100 x 22, float64, primal-dual"
    title = f"{problem}: {SEEDS * len(HORIZONS)} runs of {HORIZONS[0]} to {HORIZONS[-1]} rounds"
    yield Case("F", title, partial(whole_runs, range(SEEDS), HORIZONS), floor=100)
    yield Case(
        "F",
        f"{problem}: one run of {HORIZONS[-1]} rounds",
        partial(whole_runs, [0], [HORIZONS[-1]]),
        floor=8,
    )


def whole_runs(seeds: Sequence[int], horizons: Sequence[int], device: str) -> Workload:
    folder = tempfile.TemporaryDirectory()
    written = random_problem(Path(folder.name), CLIENTS * RECORDS, WIDTH)
    config = problem_config(
        written, CLIENTS, "dp=record", "mechanism.noise_multiplier=20", f"runtime.device={device}"
    )
    plans = make_plans(
        [config | {"seed": seed, "rounds": rounds} for rounds in horizons for seed in seeds]
    )
    features, targets = records_of(plans[0])

    def run() -> None:
        assert folder  # the data stay as long as this does
        whole([Member(one) for one in plans])

    fixed = (STEP, L2, 0.1)
    return Workload(
        engine=Contender(run, float(sum(one.rounds for one in plans))),
        references={
            "loop": Contender(
                lambda: loop(features, targets, LOOP_ROUNDS, *fixed, mean_gradient),
                float(LOOP_ROUNDS),
            ),
            "vmap": Contender(
                lambda: stacked(features, targets, LOOP_ROUNDS, *fixed), float(LOOP_ROUNDS)
            ),
            "record loop": Contender(
                lambda: loop(features, targets, RECORD_LOOP_ROUNDS, *fixed, clipped_gradient),
                float(RECORD_LOOP_ROUNDS),
            ),
        },
        flops=CLIENTS * RECORDS * 4.0 * WIDTH,  # logits, and the gradient
        dtype=torch.float64,
    )


def random_problem(folder: Path, records: int, width: int) -> Path:
    """A file in LIBSVM's format with random records of two classes."""
    generator = np.random.default_rng(0)
    rows = [
        " ".join(
            [f"{label:+d}", *(f"{number}:{value:.9g}" for number, value in enumerate(row, start=1))]
        )
        for label, row in zip(
            generator.choice([-1, 1], records),
            generator.standard_normal((records, width)),
            strict=True,
        )
    ]
    (folder / "random").write_text("\n".join(rows) + "\n")
    return folder / "random"


def problem_config(data: Path, clients: int, *overrides: str) -> dict[str, Any]:
    """The primal-dual method on the data's rows of unit norm."""
    words = [
        "dataset=libsvm",
        f"dataset.path={data}",
        "dataset.normalise=true",
        f"partitioner.clients={clients}",
    ]
    words += [
        "algorithm=primal_dual",
        f"algorithm.step={STEP}",
        f"algorithm.clip_norm={CLIP}",
        f"model.l2={L2}",
    ]
    return compose_config([*words, f"evaluation.every={EVALUATED}", *overrides])


def records_of(plan: Plan) -> tuple[Tensor, Tensor]:
    """features [M, n, d] and targets [M, n], 0 or 1."""
    features, targets, _ = (
        torch.as_tensor(part, dtype=torch.float64) for part in padded(federation_of(plan))
    )
    return features, targets


def whole(members: list[Member]) -> list[Member]:
    """The members at their end."""
    return list(run_members(members, checkpoint=lambda member: None, advance=lambda active: None))


def mean_gradient(model: nn.Linear, inputs: Tensor, targets: Tensor) -> Tensor:
    """By one backward pass: rows of unit norm bound every record's gradient by 1, so nothing is
    clipped.
    """
    model.zero_grad()
    functional.binary_cross_entropy_with_logits(model(inputs).squeeze(-1), targets).backward()
    return model.weight.grad.flatten()


def clipped_gradient(model: nn.Linear, inputs: Tensor, targets: Tensor) -> Tensor:
    """By a backward pass for every record, clipped one by one."""
    total = torch.zeros(inputs.shape[-1], dtype=inputs.dtype)
    for record in range(len(inputs)):
        model.zero_grad()
        functional.binary_cross_entropy_with_logits(
            model(inputs[record]), targets[record : record + 1]
        ).backward()
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        total += model.weight.grad.flatten()
    return total / len(inputs)


def loop(
    features: Tensor,
    targets: Tensor,
    rounds: int,
    step: float,
    l2: float,
    std: float,
    gradient: Gradient,
) -> Tensor:
    """[M, d] the clients' models after some rounds from zero (`algorithms.primal_dual` has the
    equations), client by client.
    """
    clients, _, width = features.shape
    models = [nn.Linear(width, 1, bias=False, dtype=features.dtype) for _ in range(clients)]
    for model in models:
        nn.init.zeros_(model.weight)
    duals = [torch.zeros(width, dtype=features.dtype) for _ in range(clients)]
    for _ in range(rounds):
        messages = []
        for model, dual, inputs, outputs in zip(models, duals, features, targets, strict=True):
            local = model.weight.detach().flatten()
            noisy = (
                gradient(model, inputs, outputs) + l2 * local + std * torch.randn_like(local)
            ) / clients
            messages.append(local - step * (noisy + dual))
        mean = torch.stack(messages).mean(dim=0)
        for model, dual, message in zip(models, duals, messages, strict=True):
            dual.add_(message - mean)
            model.load_state_dict({"weight": (message - step * (message - mean)).unsqueeze(0)})
    return torch.cat([model.weight.detach() for model in models])


def stacked(
    features: Tensor, targets: Tensor, rounds: int, step: float, l2: float, std: float
) -> Tensor:
    """As `loop`, all clients' records at once by torch.func, clipped one by one."""

    def loss(values: Tensor, record: Tensor, target: Tensor) -> Tensor:
        return functional.binary_cross_entropy_with_logits(record @ values, target)

    each = vmap(vmap(grad(loss), in_dims=(None, 0, 0)))
    local = torch.zeros(len(features), features.shape[-1], dtype=features.dtype)
    dual = torch.zeros_like(local)
    for _ in range(rounds):
        gradients = clipped(each(local, features, targets), CLIP).mean(dim=1)
        noisy = (gradients + l2 * local + std * torch.randn_like(local)) / len(local)
        messages = local - step * (noisy + dual)
        apart = messages - messages.mean(dim=0)
        dual, local = dual + apart, messages - step * apart
    return local
