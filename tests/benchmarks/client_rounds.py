"""Workload I: rounds of record-level methods on the layer behind a frozen network, eight runs
stacked.

500 clients with 120 records each, 10 classes, 64 or 1280 features, float32, every record's gradient
and curvature clipped, noise by secure aggregation: the sizes of DP-FedNew's experiments. A round of
dpfl is `Stack.step`: algorithm, mechanism and ledger. A round here is one of one run. DP-FedFC's
first round, with its covariances, is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache, partial

import torch
from torch import Tensor
from torch.func import grad, hessian, vmap

from dpfl_cli.algorithms.base import State
from dpfl_cli.config.component import Settings, component, registering_from
from dpfl_cli.config.compose import compose_config
from dpfl_cli.data.federation import Dataset, DatasetInfo
from dpfl_cli.privacy.client_values import opened
from dpfl_cli.simulation.member import Member
from dpfl_cli.simulation.plan import make_plan
from dpfl_cli.simulation.run_plan import federation_of
from dpfl_cli.simulation.stack import Stack
from tests.benchmarks.harness import Case, Contender, Workload
from tests.benchmarks.plain import clipped
from tests.benchmarks.record_level import softmax_federation
from tests.benchmarks.second_order import STACK, cross_entropy
from tests.padding import padded

RUNS, CLIENTS, RECORDS, NARROW, WIDE, CLASSES = 8, 500, 120, 64, 1280, 10
CLIP, STEPS, RATE, DAMPING, PENALTY = 1.0, 5, 0.1, 0.1, 1.0
LOOP_CLIENTS, SOLVING_CLIENTS = 10, 2  # the references' part of a round
STD = 1e-3  # of the references' noise, in every message

Sent = dict[str, Tensor]  # what clients get: the model [d], and what else the server keeps
# (features [n, p], labels [n], a client's control [d], sent, std) -> [d]
Message = Callable[[Tensor, Tensor, Tensor, Sent, float], Tensor]


class RandomSettings(Settings):
    """Settings of `random_records`."""

    clients: int
    records: int
    width: int
    classes: int


@lru_cache(maxsize=1)
def random_records(settings: RandomSettings) -> Dataset:
    """One object for runs of all seeds, so that they are of one federation."""
    made = softmax_federation(settings.clients, settings.records, settings.width, settings.classes)
    owners = torch.arange(settings.clients).repeat_interleave(settings.records).numpy()
    return Dataset(RandomRecords.info(settings), made.dataset.train, None, owners)


with registering_from("benchmarks", "1"):

    @component("dataset", "random_records", revision=1, settings=RandomSettings)
    class RandomRecords:
        """Random records of random classes, equally many for every client."""

        @staticmethod
        def info(settings: RandomSettings) -> DatasetInfo:
            total, shape = settings.clients * settings.records, (settings.width,)
            kind = "random_records", "synthetic", "", shape
            return DatasetInfo(*kind, settings.classes, total, settings.clients)

        @staticmethod
        def load(settings: RandomSettings, seed: int) -> Dataset:
            return random_records(settings)


def cases() -> Iterator[Case]:
    methods = {"DP-FedGD": "fedgd", "DP-FedFC": "fedfc", "DP-SCAFFOLD": "scaffold"}
    for width in (NARROW, WIDE):
        for title, method in {**methods, "DP-FedNew": "fednew"}.items():
            covariance = method == "fednew" and width == WIDE
            more = " with covariances" if covariance else ""
            more = f" of {STEPS} steps" if method == "scaffold" else more
            sizes = f"60,000 x {width} x {CLASSES}, {CLIENTS} clients"
            case = f"{title}{more}, {sizes}, {RUNS} runs stacked"
            yield Case("I", case, partial(rounds, method, width, covariance))


def stack_of(method: str, sizes: dict[str, int], runs: int, *overrides: str) -> Stack:
    """Runs of one federation past their first round, of so many rounds that none is the last."""
    words = [f"algorithm={method}_record", f"algorithm.clip_norm={CLIP}", "rounds=100000"]
    if method == "scaffold":
        words += [f"algorithm.local_steps={STEPS}", f"algorithm.local_lr={RATE}"]
    words += ["dataset=synthetic_alpha_beta", *overrides]
    plans = []
    for seed in range(runs):
        config = compose_config([*words, f"seed={seed}"])
        config["dataset"] = {"name": "random_records", **sizes}
        plans.append(make_plan(config))
    stack = Stack([Member(plan) for plan in plans])
    stack.rounds = stack.rounds + 1
    if method == "fedfc":
        size = stack.objective.features
        inverse = torch.eye(size, dtype=stack.objective.dtype, device=stack.device)
        server = stack.state.server | {"preconditioner": inverse.repeat(runs, 1, 1)}
        stack.state = State(server, stack.state.clients)
    return stack


def rounds(method: str, width: int, covariance: bool, device: str) -> Workload:
    sizes = {"clients": CLIENTS, "records": RECORDS, "width": width, "classes": CLASSES}
    privacy = ["dp=secure_aggregation", "dp.unit=record", "dp.relation=add_or_remove"]
    privacy += ["dp.mode=paper", "mechanism.noise_multiplier=1", f"runtime.device={device}"]
    chosen = ["algorithm.curvature=covariance"] if covariance else []
    stack = stack_of(method, sizes, RUNS, *privacy, *chosen)
    federation = federation_of(stack.members[0].plan)
    message = covariance_direction if covariance else MESSAGES[method]
    some = SOLVING_CLIENTS if method == "fednew" else LOOP_CLIENTS
    features, labels, _ = (torch.from_numpy(part) for part in padded(federation))
    part = features[:some].clone(), labels[:some].clone()
    server = {name: value[0].cpu() for name, value in stack.state.server.items()}
    controls = torch.zeros(some, stack.objective.dimension)

    def reference(how: Callable[..., Tensor]) -> Contender:
        found = partial(plain_round, method, message, how, *part, controls, server, STD)
        return Contender(found, some / CLIENTS)

    references = {"loop": reference(loop)}
    if method != "fednew":
        references["vmap"] = reference(stacked)
    records, dimension = CLIENTS * RECORDS, width * CLASSES
    flops: float | None = 4.0 * records * dimension  # outputs, and the re-weighted product
    if method == "scaffold":
        flops *= STEPS
    if method == "fedfc":
        flops += 2.0 * width * dimension
    if method == "fednew":  # as many products with Hessians as their condition takes; or Woodbury
        flops = flops + 2.0 * records * CLASSES * (2 * width + RECORDS) if covariance else None
    return Workload(Contender(stack.step, float(RUNS)), references, flops)


def gradient(values: Tensor, features: Tensor, labels: Tensor) -> Tensor:
    """[d] the mean of the records' clipped gradients."""
    each = vmap(grad(cross_entropy), in_dims=(None, 0, 0))(values, features, labels)
    return clipped(each, CLIP).mean(dim=0)


def noisy(values: Tensor, std: float) -> Tensor:
    return values + std * torch.randn_like(values)


def gradient_message(
    features: Tensor, labels: Tensor, own: Tensor, sent: Sent, std: float
) -> Tensor:
    """DP-FedGD's and DP-FedFC's."""
    return noisy(gradient(sent["model"], features, labels), std)


def local_steps(features: Tensor, labels: Tensor, own: Tensor, sent: Sent, std: float) -> Tensor:
    """DP-SCAFFOLD's: the mean of the noisy gradients of its steps, which is its next control."""
    values, drift, total = sent["model"], sent["control"] - own, torch.zeros_like(own)
    for _ in range(STEPS):
        found = noisy(gradient(values, features, labels), std)
        values, total = values - RATE * (found + drift), total + found
    return total / STEPS


def solved(matrix: Tensor, sides: Tensor) -> Tensor:
    """Of the symmetric matrix [q, q] of a mean curvature, damped; sides [q, k]."""
    damped = matrix + (DAMPING + PENALTY) * torch.eye(len(matrix), dtype=matrix.dtype)
    return torch.cholesky_solve(sides, torch.linalg.cholesky(damped))


def right_side(features: Tensor, labels: Tensor, sent: Sent) -> Tensor:
    """[d] the clipped gradient and the pull towards the last direction, in the unit ball."""
    pull = PENALTY * sent["direction"]
    return clipped(gradient(sent["model"], features, labels) + pull, CLIP)


def hessian_direction(
    features: Tensor, labels: Tensor, own: Tensor, sent: Sent, std: float
) -> Tensor:
    """DP-FedNew's, with Hessians by torch.func."""
    each = vmap(hessian(cross_entropy), in_dims=(None, 0, 0))
    parts = []
    for records, classes in zip(features.split(STACK), labels.split(STACK), strict=True):
        matrices = each(sent["model"], records, classes)
        shares = (CLIP / matrices.flatten(1).norm(dim=1)).clamp(max=1.0) / len(features)
        parts.append(torch.einsum("jab,j->ab", matrices, shares))
    mean = torch.stack(parts).sum(dim=0)
    side = right_side(features, labels, sent)
    return noisy(solved(mean, side.unsqueeze(-1)).squeeze(-1), std)


def covariance_direction(
    features: Tensor, labels: Tensor, own: Tensor, sent: Sent, std: float
) -> Tensor:
    """DP-FedNew's, with the covariance of the features for every class."""
    shares = (CLIP / features.square().sum(dim=-1, keepdim=True)).clamp(max=1.0) / len(features)
    sides = right_side(features, labels, sent).view(-1, features.shape[-1]).mT
    return noisy(solved((features * shares).mT @ features, sides).mT.flatten(), std)


MESSAGES: dict[str, Message] = {
    "fedgd": gradient_message,
    "fedfc": gradient_message,
    "scaffold": local_steps,
    "fednew": hessian_direction,
}


def loop(message: Message, features: Tensor, labels: Tensor, own: Tensor, *given: object) -> Tensor:
    """[k, d] the clients' messages, client by client."""
    clients = zip(features, labels, own, strict=True)
    return torch.stack([message(*client, *given) for client in clients])


def stacked(
    message: Message, features: Tensor, labels: Tensor, own: Tensor, *given: object
) -> Tensor:
    """As `loop`, by torch.func, all clients at once."""
    every = vmap(lambda *client: message(*client, *given), randomness="different")
    return every(features, labels, own)


def plain_round(
    method: str,
    message: Message,
    how: Callable[..., Tensor],
    features: Tensor,
    labels: Tensor,
    own: Tensor,
    server: Sent,
    std: float,
) -> tuple[Sent, Tensor]:
    """What the server keeps after a round (server step 1), and the clients' controls [k, d]."""
    messages = how(message, features, labels, own, server, std)
    mean, model = messages.mean(dim=0), server["model"]
    if method == "fedfc":
        step = (mean.view(-1, features.shape[-1]) @ server["preconditioner"]).flatten()
        return server | {"model": model - step}, own
    if method == "scaffold":
        return {"model": model - STEPS * RATE * mean, "control": mean}, messages
    if method == "fednew":
        return {"model": model - mean, "direction": mean}, own
    return {"model": model - mean}, own


def engine(stack: Stack) -> tuple[Sent, Tensor | None]:
    """What the first run's server, and its clients, keep after a round of dpfl's."""
    stack.step()
    own = stack.state.clients.get("control")
    server = {name: value[0] for name, value in stack.state.server.items()}
    return server, None if own is None else opened(own)[0]
