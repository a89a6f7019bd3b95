"""Workload A: whole rounds of DP-FedAvg under local DP on linear regression, and the grid of 40
such runs.

1000 clients with one record, d = 500, 20 local steps, clipping, Gaussian noise on every client's
message, float64. A round of
dpfl is `Stack.step`: algorithm, mechanism and ledger.
"""

from __future__ import annotations

import atexit
import shutil
import tempfile
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor, nn

from dpfl_cli.config.compose import compose_config
from dpfl_cli.data import normals
from dpfl_cli.data import streams as streams_module
from dpfl_cli.data.streams import Streams
from dpfl_cli.privacy import gaussian_accountants
from dpfl_cli.simulation import results, run_plan
from dpfl_cli.simulation.execute import execute
from dpfl_cli.simulation.member import Member
from dpfl_cli.simulation.plan import make_plan, make_plans
from dpfl_cli.simulation.run_plan import Plan, federation_of
from dpfl_cli.simulation.stack import Stack
from dpfl_cli.simulation.store import RunStore
from tests.benchmarks.harness import Case, Contender, Workload
from tests.benchmarks.plain import clipped, train, train_stacked
from tests.padding import padded

LOOP_CLIENTS = 50  # the loop's part of a round
NOISE_PER_CLIP = 0.7  # standard deviation of the noise, in clip norms
GRID_SEEDS = 20
GRID_METHODS = ("fedexp", "fedavg")


def cases() -> Iterator[Case]:
    problem = "linear regression d=500, 1000 clients x 1 record, 20 steps"
    yield Case("A", f"{problem}, local DP: whole rounds", whole_rounds, floor=500)
    yield Case("A", f"{problem}: the clients' steps alone", local_steps)
    yield Case(
        "G",
        "dpfl run -m algorithm=fedexp,fedavg dp=ldp seed=range(20): a round of one of the 40 runs",
        grid,
        floor=2.5,
    )


def linear_plan(*overrides: str) -> Plan:
    """DP-FedAvg under local DP; of so many rounds that none is the last."""
    return make_plan(
        compose_config(
            ["algorithm=fedavg", "dp=ldp", "dataset.dimension=500", "rounds=100000", *overrides]
        )
    )


def whole_rounds(device: str) -> Workload:
    plan = linear_plan(f"runtime.device={device}")
    batch = Stack([Member(plan)])
    settings, streams, rounds = plan.algorithm.settings, Streams([1]), count(1)
    features, targets, _ = (torch.as_tensor(part) for part in padded(federation_of(plan)))
    fixed = (
        settings.local_steps,
        settings.local_lr,
        settings.clip_norm,
        NOISE_PER_CLIP * settings.clip_norm,
    )
    return Workload(
        engine=Contender(batch.step),
        references={
            "loop": Contender(
                lambda: loop(features[:LOOP_CLIENTS], targets[:LOOP_CLIENTS], *fixed),
                LOOP_CLIENTS / plan.clients,
            ),
            "vmap": Contender(lambda: stacked(features, targets, *fixed)),
            **noise(
                lambda: streams.normal(
                    "noise/update", np.array([next(rounds)]), plan.clients, plan.dimension
                )
            ),
        },
        # x.w and a x (the steps stay in the span of x), norm, clipping, noise, sum
        flops=plan.clients * 8.0 * plan.dimension,
        dtype=torch.float64,
    )


def local_steps(device: str) -> Workload:
    plan = linear_plan()
    federation, settings = federation_of(plan), plan.algorithm.settings
    objective = plan.model.target(plan.model.settings, [federation], np.array([0]), device)
    start = objective.initial(Streams([0]))
    rate = torch.tensor([settings.local_lr], dtype=torch.float64, device=device)
    features, targets, _ = (torch.as_tensor(part) for part in padded(federation))
    fixed = (settings.local_steps, settings.local_lr)
    return Workload(
        engine=Contender(lambda: objective.local_descent(start, rate, settings.local_steps)),
        references={
            "loop": Contender(
                lambda: updates(features[:LOOP_CLIENTS], targets[:LOOP_CLIENTS], *fixed),
                LOOP_CLIENTS / plan.clients,
            ),
            "vmap": Contender(lambda: updates_stacked(features, targets, *fixed)),
        },
        flops=plan.clients * 3.0 * plan.dimension,  # x.w and a x
        dtype=torch.float64,
    )


def updates(features: Tensor, targets: Tensor, steps: int, rate: float) -> Tensor:
    """[k, d] the clients' updates from zero, client by client; features [k, n, d], targets [k,
    n].
    """
    module, weights = model_and_weights(features)
    pairs = zip(features, targets, strict=True)
    return torch.stack(
        [
            train(module, weights, inputs, [own], steps, rate, half_squared_error)
            for inputs, own in pairs
        ]
    )


def updates_stacked(features: Tensor, targets: Tensor, steps: int, rate: float) -> Tensor:
    """As `updates`, by torch.func."""
    return train_stacked(
        *model_and_weights(features), features, [targets], steps, rate, half_squared_error
    )


def model_and_weights(features: Tensor) -> tuple[nn.Linear, dict[str, Tensor]]:
    module = nn.Linear(features.shape[-1], 1, bias=False, dtype=features.dtype)
    return module, {name: torch.zeros_like(value) for name, value in module.state_dict().items()}


def loop(
    features: Tensor, targets: Tensor, steps: int, rate: float, clip_norm: float, std: float
) -> Tensor:
    """[d] the mean of the clients' noisy clipped updates from zero, client by client."""
    total = torch.zeros(features.shape[-1], dtype=features.dtype)
    for update in updates(features, targets, steps, rate):
        total += clipped(update, clip_norm) + std * torch.randn_like(update)
    return total / len(features)


def stacked(
    features: Tensor, targets: Tensor, steps: int, rate: float, clip_norm: float, std: float
) -> Tensor:
    """As `loop`, by torch.func."""
    bounded = clipped(updates_stacked(features, targets, steps, rate), clip_norm)
    return (bounded + std * torch.randn_like(bounded)).mean(dim=0)


def half_squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    return 0.5 * (outputs.squeeze(-1) - targets).square().mean()


def grid(device: str, *overrides: str) -> Workload:
    """The whole command but for its start: data, rounds, metrics, epsilon and result files, against
    its noise alone.
    """
    plans = make_plans(
        [
            compose_config(
                [
                    *(f"algorithm={method}", "dp=ldp", f"seed={seed}"),
                    *(f"runtime.device={device}", *overrides),
                ]
            )
            for method in GRID_METHODS
            for seed in range(GRID_SEEDS)
        ]
    )
    first, folder, numbers = plans[0], tempfile.mkdtemp(), count()
    atexit.register(
        shutil.rmtree, folder, ignore_errors=True
    )  # deleting results is no part of the command

    def run() -> None:
        for kept in (
            run_plan._kept.clear,
            results._partition.cache_clear,
            gaussian_accountants.gaussian_epsilon.cache_clear,
        ):
            kept()  # a new command has no data yet, nor what was made of it
        execute(plans, RunStore(Path(folder) / str(next(numbers))))

    def draw() -> None:
        for _ in GRID_METHODS:
            streams = Streams(list(range(GRID_SEEDS)))
            for number in range(1, first.rounds + 1):
                streams.normal(
                    "noise/update", np.full(GRID_SEEDS, number), first.clients, first.dimension
                )

    rounds = float(len(plans) * first.rounds)
    return Workload(Contender(run, rounds), noise(draw, rounds), dtype=torch.float64)


def noise(draw: Callable[[], object], rounds: float = 1.0) -> dict[str, Contender]:
    """Drawing noise as dpfl does, and as numpy's generator does: the same numbers, memory and
    threads.
    """

    def by_numpy() -> None:
        with patch.object(streams_module, "fill_normal", normals._by_numpy):
            draw()

    return {"noise": Contender(draw, rounds), "numpy": Contender(by_numpy, rounds)}
