"""`make bench`: speed as ratios, measured side by side in one process, alternating, medians of several.

Every workload is one round of local training of all clients. It is compared with a plain per-client PyTorch loop, written the
way research code is (nn.Module, state_dict, SGD), and with this machine's matrix product of the same precision.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import nn

from dpfl_cli.config.compose import compose_config
from dpfl_cli.config.paths import outputs_dir
from dpfl_cli.data.federation import Dataset, DatasetInfo, Federation, Partition, Records
from dpfl_cli.models.cnn import CnnObjective
from dpfl_cli.simulation.plan import make_plan
from dpfl_cli.simulation.store import json_text, write_atomically

CLIENTS = 1000
IMAGES = 60


@dataclass(frozen=True)
class Workload:
    """`engine` runs one round; `loop` runs `part` of it (a fraction), as research code would."""

    name: str
    engine: Callable[[], object]
    loop: Callable[[], object]
    part: float
    flops: float


def linear() -> Workload:
    """A. linear regression, 1000 clients with one record, d = 500, 20 local steps, float64."""
    plan = make_plan(compose_config(["dataset.dimension=500", "algorithm=fedavg"]))
    dataset = plan.dataset.target.load(plan.dataset.settings, 0)
    partition = plan.partitioner.target.partition(plan.partitioner.settings, dataset, 0)
    federation = Federation(dataset, partition)
    objective = plan.model.target(plan.model.settings, [federation], np.array([0]))
    rate = torch.tensor([0.001], dtype=torch.float64)
    start = objective.initial(None)
    features, targets, _ = (torch.as_tensor(part) for part in federation.padded())
    some = 20

    def loop() -> None:
        module = nn.Linear(500, 1, bias=False, dtype=torch.float64)
        weights = {key: torch.zeros_like(value) for key, value in module.state_dict().items()}
        for client in range(some):
            train(
                module,
                weights,
                features[client],
                targets[client],
                20,
                0.001,
                lambda a, b: 0.5 * (a.squeeze(-1) - b).square().mean(),
            )

    return Workload(
        "A linear d=500", lambda: objective.local_descent(start, rate, 20), loop, some / CLIENTS, CLIENTS * 20 * 4 * 500.0
    )


def images(name: str, channels: list[int], hidden: int | None, flops: float) -> Workload:
    """B, C. the MNIST CNNs, 1000 clients with 60 images, 10 full-batch local steps, float32 (random images)."""
    generator = np.random.default_rng(0)
    pool = Records(generator.random((CLIENTS * IMAGES, 28, 28), np.float32), generator.integers(0, 10, CLIENTS * IMAGES))
    info = DatasetInfo("random", "synthetic", "", (28, 28), 10, len(pool), None)
    partition = Partition(np.arange(len(pool)), np.arange(CLIENTS + 1) * IMAGES)
    federation = Federation(Dataset(info, pool, Records(pool.features[:100], pool.targets[:100])), partition)
    overrides = ["model.channels=" + str(channels).replace(" ", ""), f"model.hidden={'null' if hidden is None else hidden}"]
    settings = cnn_settings(overrides)
    objective = CnnObjective(settings, [federation], np.array([0]))
    start = 0.05 * torch.randn(1, objective.dimension, generator=torch.Generator().manual_seed(0))
    rate = torch.tensor([0.1])
    some = 10

    def loop() -> None:
        first, second = channels
        layers: list[nn.Module] = [nn.Conv2d(1, first, 4), nn.ReLU(), nn.MaxPool2d(2)]
        layers += [nn.Conv2d(first, second, 4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()]
        layers += (
            [nn.Linear(16 * second, 10)] if hidden is None else [nn.Linear(16 * second, hidden), nn.ReLU(), nn.Linear(hidden, 10)]
        )
        module = nn.Sequential(*layers)
        weights = {key: value.clone() for key, value in module.state_dict().items()}
        for client in range(some):
            rows = slice(client * IMAGES, (client + 1) * IMAGES)
            inputs = torch.from_numpy(pool.features[rows]).unsqueeze(1)
            train(module, weights, inputs, torch.from_numpy(pool.targets[rows]), 10, 0.1, nn.functional.cross_entropy)

    total = CLIENTS * IMAGES * 10 * flops
    return Workload(name, lambda: objective.local_descent(start, rate, 10), loop, some / CLIENTS, total)


def cnn_settings(overrides: list[str]) -> object:
    """The CNN's settings as the config composes them."""
    from dpfl_cli.config.component import components, parse_settings
    from dpfl_cli.simulation.plan import load_components

    load_components()
    values = compose_config(["model=mnist_cnn", *overrides])["model"]
    values.pop("name")
    return parse_settings(components("model")["cnn"].settings, values, "model")


def train(
    module: nn.Module, weights: dict, inputs: torch.Tensor, targets: torch.Tensor, steps: int, lr: float, loss: Callable
) -> dict:
    """One client's local training, and its update."""
    module.load_state_dict(weights)
    optimiser = torch.optim.SGD(module.parameters(), lr=lr)
    for _ in range(steps):
        optimiser.zero_grad()
        loss(module(inputs), targets).backward()
        optimiser.step()
    return {key: value - weights[key] for key, value in module.state_dict().items()}


def product_rate(dtype: torch.dtype) -> Callable[[], float]:
    """FLOP/s of a matrix product."""
    matrix = torch.randn(1536, 1536, dtype=dtype)

    def measure() -> float:
        start = time.perf_counter()
        matrix @ matrix
        return 2 * 1536**3 / (time.perf_counter() - start)

    return measure


def measure(workload: Workload, repeats: int) -> dict[str, float | str]:
    """Medians of alternating repeats."""
    peak = product_rate(torch.float64 if workload.name.startswith("A") else torch.float32)
    workload.engine()
    workload.loop()
    peak()
    engine, loop, peaks = [], [], []
    for _ in range(repeats):
        for function, times in ((workload.engine, engine), (workload.loop, loop)):
            start = time.perf_counter()
            function()
            times.append(time.perf_counter() - start)
        peaks.append(peak())
    seconds = statistics.median(engine)
    return {
        "workload": workload.name,
        "seconds_per_round": seconds,
        "ratio_to_loop": statistics.median(loop) / workload.part / seconds,
        "gflops": workload.flops / seconds / 1e9,
        "fraction_of_product": workload.flops / seconds / statistics.median(peaks),
    }


def main() -> None:
    """Measures, prints a table, writes outputs/bench/bench.json."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    workloads = [linear(), images("B CNN 5046", [4, 8], 32, 430e3), images("C CNN 237", [2, 1], None, 100e3)]
    results = [measure(workload, args.repeats) for workload in workloads]
    table = Table(title=f"one round, {torch.get_num_threads()} threads, medians of {args.repeats}")
    for column in results[0]:
        table.add_column(column.replace("_", " "), justify="left" if column == "workload" else "right")
    for result in results:
        table.add_row(*[f"{value:.3g}" if isinstance(value, float) else str(value) for value in result.values()])
    Console(width=120).print(table)
    target = outputs_dir() / "bench" / "bench.json"
    target.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(target, json_text({"threads": torch.get_num_threads(), "results": results}).encode())
    print(json.dumps(str(target)).strip('"'))


if __name__ == "__main__":
    main()
