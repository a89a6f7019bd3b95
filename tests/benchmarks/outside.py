"""dpfl beside Flower: the same federation, without noise, ends in the same model.

    pip install '.[outside]'
    python -m tests.benchmarks.outside

Clients with unequal data train a network, every round by some full-batch steps: once in dpfl, once
in Flower's simulation (Beutel et al. 2020) with torch's SGD in its clients and FedAvg (McMahan et
al. 2017) as its strategy. Clients count the same, as they do in dpfl. Exit code 1 says that a
parameter differs by more than 1e-5.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional

CLIENTS, ROUNDS, STEPS, RATE = 8, 10, 5, 0.2
FEATURES, CLASSES = 20, 4
LARGEST = 1e-5


def network() -> nn.Module:
    """What is trained; it begins the same for both."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(FEATURES, 16), nn.Tanh(), nn.Linear(16, CLASSES))


def records() -> dict[str, np.ndarray]:
    """Features, classes and owners: client k has 10 (k + 1) records, around a place of its own."""
    generator = np.random.default_rng(0)
    clients = np.repeat(np.arange(CLIENTS), 10 * np.arange(1, CLIENTS + 1))
    places = generator.normal(size=(CLIENTS, FEATURES))
    features = places[clients] + generator.normal(size=(len(clients), FEATURES))
    classes = (features @ generator.normal(size=(FEATURES, CLASSES))).argmax(1)
    return {"features": features.astype(np.float32), "targets": classes, "clients": clients}


def by_dpfl(data: dict[str, np.ndarray]) -> np.ndarray:
    """[d] the final model of `dpfl run`."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["DPFL_OUTPUTS"] = folder
        import dpfl_cli as dpfl

        np.savez(Path(folder) / "records.npz", **data)
        (run,) = dpfl.run(
            "model=torch",
            f"model.path={__file__}:network",
            "dataset=arrays",
            f"dataset.path={folder}/records.npz",
            "partitioner=natural",
            "algorithm=fedavg",
            "dp=none",
            "algorithm.clip_norm=null",
            f"algorithm.local_steps={STEPS}",
            f"algorithm.local_lr={RATE}",
            f"rounds={ROUNDS}",
            quiet=True,
        )
        return dpfl.model(run)


def by_flower(data: dict[str, np.ndarray]) -> np.ndarray:
    """[d] the final model of a simulation by Flower."""
    from flwr.client import ClientApp, NumPyClient
    from flwr.common import Context, ndarrays_to_parameters
    from flwr.server import ServerApp, ServerAppComponents, ServerConfig
    from flwr.server.strategy import FedAvg
    from flwr.simulation import run_simulation

    class Client(NumPyClient):
        def __init__(self, number: int) -> None:
            mine = data["clients"] == number
            self.features = torch.from_numpy(data["features"][mine])
            self.targets = torch.from_numpy(data["targets"][mine])

        def fit(self, parameters, config):
            module = network()
            for parameter, values in zip(module.parameters(), parameters, strict=True):
                parameter.data = torch.from_numpy(values.copy())
            optimizer = torch.optim.SGD(module.parameters(), lr=RATE)
            for _ in range(STEPS):
                optimizer.zero_grad()
                functional.cross_entropy(module(self.features), self.targets).backward()
                optimizer.step()
            return _arrays(module), 1, {}  # one: clients count the same

    def client(context: Context):
        return Client(int(context.node_config["partition-id"])).to_client()

    models = []

    def server(context: Context) -> ServerAppComponents:
        strategy = FedAvg(
            fraction_evaluate=0.0,
            min_fit_clients=CLIENTS,
            min_available_clients=CLIENTS,
            initial_parameters=ndarrays_to_parameters(_arrays(network())),
            evaluate_fn=lambda _, parameters, __: models.append(parameters),
        )
        return ServerAppComponents(strategy=strategy, config=ServerConfig(num_rounds=ROUNDS))

    run_simulation(ServerApp(server_fn=server), ClientApp(client_fn=client), CLIENTS)
    assert len(models) == ROUNDS + 1, "a round of Flower's failed"
    return np.concatenate([one.ravel() for one in models[-1]])


def _arrays(module: nn.Module) -> list[np.ndarray]:
    return [parameter.detach().numpy().copy() for parameter in module.parameters()]


def main() -> int:
    data = records()
    start = np.concatenate([one.ravel() for one in _arrays(network())])
    ours, theirs = by_dpfl(data), by_flower(data)
    moved, apart = np.abs(ours - start).max(), np.abs(ours - theirs).max()
    print(f"{len(ours)} parameters after {ROUNDS} rounds of {STEPS} steps by {CLIENTS} clients:")
    print(f"they moved by up to {moved:.3g}; dpfl and Flower differ by at most {apart:.2g}")
    return int(apart > LARGEST)


if __name__ == "__main__":
    sys.exit(main())
