"""What every model computes of records, against the records one after another by PyTorch's own
layers in float64; and what must not change its bits.
"""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from dpfl_cli.data.federation import Dataset, Federation, Records
from dpfl_cli.data.streams import Streams
from dpfl_cli.models import dense, layer_kernel, network, records, single_layer
from dpfl_cli.models.network import Network
from dpfl_cli.privacy.client_values import ClientValues, client_values, opened
from tests.models import test_client_mean as networks
from tests.models import test_cnn as cnn
from tests.models.small import (
    everything,
    federation_of,
    losses_of,
    model_of,
    objective_of,
    on,
    outputs_of,
    points,
    record_gradients,
)
from tests.models.toys import GREY, PIXELS, Scaled, Segmenting, Toy, own_network
from tests.padding import own_records


def papers_network(kind: Any, dtype: torch.dtype = torch.float64) -> Any:
    kind_of = type(kind.__name__, (kind,), {"dtype": dtype})

    def make(counts: list[int], index: list[int]) -> Network:
        tests = [1] * len(counts)
        feds = [networks.federation_of(kind, counts, tests) for _ in range(max(index) + 1)]
        return kind_of(networks.settings_of(kind), feds, np.array(index))

    return make


def mobilenet(version: str) -> Any:
    kind, settings = model_of("mobilenet", version=version, width=0.1)
    double = type("MobileNet", (kind,), {"dtype": torch.float64})

    def make(counts: list[int], index: list[int]) -> Network:
        feds = [federation_of(counts, seed, (16, 16)) for seed in range(max(index) + 1)]
        return double(settings, feds, np.array(index))

    return make


def option(name: str, data: dict[str, Any] | None = None, **changes: Any) -> Any:
    known = {"test": 30, **(data or {})}
    return lambda counts, index: objective_of(name, counts, index, known, **changes)


DOUBLE = {"precision": "float64"}
LAYERS = {
    "linear": option("linear_regression", loss_factor=0.7),
    "logistic": option("logistic"),
    "softmax": option("softmax", bias=True, l2=0.3, **DOUBLE),
    "softmax of two": option("softmax", {"classes": 2}, **DOUBLE),
    "softmax float32": option("softmax", {"classes": 3}, bias=True, l2=0.3),
}
MLP = {
    "mlp": option("mlp", GREY, hidden=[7], **DOUBLE),
    "mlp relu": option("mlp", GREY, hidden=[8, 5], activation="relu", **DOUBLE),
    "mlp tanh": option("mlp", GREY, hidden=[3, 6, 4], activation="tanh", l2=0.2, **DOUBLE),
    "mlp pooled": option("mlp", GREY, hidden=[1], average_pool=2, **DOUBLE),
    "mlp float32": option("mlp", GREY, hidden=[8, 5], activation="tanh", l2=0.2),
}
OWN = {
    "toy": own_network(Toy, GREY),
    "scaled": own_network(Scaled, GREY),
    "segmenting": own_network(Segmenting, PIXELS),
}
PAPERS = {kind.__name__: papers_network(kind) for kind in networks.KINDS} | {
    version: mobilenet(version) for version in ("v1", "v2")
}
SINGLE = {
    f"{kind.__name__} float32": papers_network(kind, torch.float32) for kind in networks.KINDS
}
CNN = {
    f"cnn {width} {kind.__name__}": partial(cnn.objective_of, kind, settings)
    for width, settings in (("large", cnn.LARGE), ("small", cnn.SMALL))
    for kind in (cnn.CnnObjective, cnn.Plain)
}
SOLVERS = {
    f"softmax {solver} {precision}": option(
        "softmax", {"classes": 3}, solver=solver, solver_precision=precision
    )
    for solver in ("cg", "cholesky")
    for precision in ("float32", "float64")
}
WIDE = {
    f"softmax of {classes}": option(
        "softmax", {"classes": classes, "shape": (67,)}, bias=True, **DOUBLE
    )
    for classes in (10, 47)
}
BY_TORCH = {f"{name} by torch": make for name, make in LAYERS.items()}
CASES = LAYERS | BY_TORCH | MLP | OWN | PAPERS | SINGLE
OTHERS = CNN | SOLVERS | WIDE  # whose bits are asked for
# the others are right to 1e-4 or, after many normalisations of few numbers, to 1e-9
TOLERANCES = {"float32": 1e-5} | dict.fromkeys(PAPERS, 1e-9) | dict.fromkeys(SINGLE, 1e-4)
CLIPS = {"active": 0.05, "partly": 0.6, "inactive": 1e6}


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Any:
    """made(case, counts, index): on small parts, so that a client has several."""
    monkeypatch.setattr(dense, "PART", 4)
    monkeypatch.setattr(network, "PASS_RECORDS", 4)
    monkeypatch.setattr(Network, "clipped_records", 3)

    def make(name: str, counts: list[int], index: list[int]) -> Any:
        if name in BY_TORCH:
            monkeypatch.setattr(single_layer, "compiled_kernel", lambda dtype: None)
        elif name in LAYERS:
            assert single_layer.compiled_kernel(torch.float64) is not None
        return (CASES | OTHERS)[name](counts, index)

    return make


def each(cases: dict[str, Any]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("name", cases)


def parameters_of(objective: Any, seed: int = 0) -> Tensor:
    """[R, M, d] where nothing is flat: of a paper's network initial values, disturbed."""
    if not isinstance(objective, Network) or isinstance(objective, Toy):
        return points(objective, seed, 0.5)
    start = objective.initial(Streams(range(3, 3 + objective.runs))).unsqueeze(1)
    return start + points(objective, seed, 0.01)


def close(name: str, found: Tensor, wanted: Tensor) -> None:
    """In norm, relative to what is wanted; zeros are zeros. In float32 means of softmax regression
    cancel, and are right beside 1.
    """
    kind = "float32" if name.split(" by", maxsplit=1)[0].endswith("float32") else name
    tolerance = TOLERANCES.get(name, TOLERANCES.get(kind, 1e-12))
    size = 1.0 if name.startswith("softmax float32") else float(wanted.norm())
    off = float((found.double() - wanted).norm())
    assert off <= tolerance * size, off


def clipped(gradients: Tensor, bound: float) -> Tensor:
    return gradients * (bound / gradients.norm(dim=1)).clamp(max=1.0).unsqueeze(1)


def regulariser(objective: Any) -> float:
    return getattr(objective.settings, "l2", 0.0)


SIZES = {
    "R=7": ([7, 1, 0, 3, 1, 20], [0, 1, 0, 2, 1, 0, 0]),
    "one record each": ([1, 1, 1], [1, 0]),
    "one client": ([3], [0, 0]),
    "nobody but one": ([0, 3, 0], [0]),
    "nobody": ([0, 0], [0]),
}
FEW = {"R=3": ([5, 0, 3], [0, 1, 0]), "one client": ([3], [0, 0])}
PAIRS = [
    pytest.param(name, *sizes, id=f"{name}, {size}")
    for name in CASES
    for size, sizes in (FEW if name in PAPERS | SINGLE else SIZES).items()
]


@pytest.mark.parametrize(("name", "counts", "index"), PAIRS)
def test_gradients_norms_and_clipped_means_are_those_of_the_records(
    name: str, counts: list[int], index: list[int], made: Any
) -> None:
    """Of all records, and of a batch, of which a number may come twice or be none of the client's:
    then it counts as a record of gradient zero, and reaches nobody else's.
    """
    objective = made(name, counts, index)
    at = client_values(parameters_of(objective))
    generator = np.random.default_rng(0)
    wide = np.maximum(counts, 1)[None, :, None]
    drawn = torch.from_numpy(generator.integers(0, wide, (len(index), len(counts), 5)))
    drawn[0, :, 1], drawn[-1, :, 2], drawn[-1, -1, 3] = -1, 99, counts[-1]
    rows = {
        place: record_gradients(objective, *place, opened(at)[place])
        for place in np.ndindex(len(index), len(counts))
    }
    for batch in (None, drawn):
        plain = objective.gradient(at, batch)
        squared = objective.squared_gradient_norms(at, batch)
        assert isinstance(plain, ClientValues)
        assert isinstance(squared, ClientValues)
        size = max(1, *counts) if batch is None else 5
        assert opened(squared).shape == (len(index), len(counts), size)
        divisor = np.maximum(counts, 1) if batch is None else np.full(len(counts), size)
        taken = {}
        for place, own in rows.items():
            numbers = torch.arange(len(own)) if batch is None else batch[place]
            known = (numbers >= 0) & (numbers < len(own))
            taken[place] = own[numbers[known]]
            h = regulariser(objective) * opened(at)[place].double()
            mean = taken[place].sum(0) / divisor[place[1]]
            whole = mean + h if batch is not None or len(own) else mean
            close(name, opened(plain)[place], whole)
            found = opened(squared)[place][: len(numbers)]
            close(name, found[known].sqrt(), taken[place].norm(dim=1))
            assert not found[~known].any()
            assert not opened(squared)[place][len(numbers) :].any()
        for bound in CLIPS.values():
            limits = torch.linspace(bound, 1.5 * bound, len(index), dtype=torch.float64)
            bounded = objective.clipped_gradient(at, limits, batch)
            assert bounded.unit == "record"
            moved = limits[:, None] / torch.from_numpy(divisor)
            torch.testing.assert_close(bounded.zero_out.double(), moved, rtol=1e-6, atol=0.0)
            torch.testing.assert_close(bounded.replace_one.double(), 2 * moved, rtol=1e-6, atol=0.0)
            for place, own in taken.items():
                mean = clipped(own, float(limits[place[0]])).sum(0) / divisor[place[1]]
                close(name, opened(bounded.values)[place], mean)


@pytest.mark.parametrize("drifting", [False, True], ids=["no drift", "drift"])
@pytest.mark.parametrize("batched", [False, True], ids=["all records", "batches"])
@each(LAYERS | BY_TORCH | MLP | OWN | {"Cnn5x5": None})
def test_local_descent_takes_plain_steps(
    name: str, batched: bool, drifting: bool, made: Any
) -> None:
    counts, index, steps = [5, 1, 3], [0, 1, 0], 3
    objective = made(name, counts, index)
    start, rates = parameters_of(objective)[:, 0], torch.tensor([0.02, 0.05, 0.1]).double()
    drift = 0.1 * points(objective, 5) if drifting else None
    marked = None if drift is None else client_values(drift)
    batches, held = None, torch.tensor(counts)[None, :, None, None]
    if batched:
        batches = torch.arange(3 * 3 * steps * 2).view(3, 3, steps, 2) * 7 % held
    update = objective.local_descent(start, rates, steps, marked, batches)
    assert isinstance(update, ClientValues)
    for run, client in np.ndindex(3, 3):
        v = start[run].double()
        for step in range(steps):
            own = record_gradients(objective, run, client, v)
            slope = own.mean(0) if batches is None else own[batches[run, client, step]].mean(0)
            slope = slope + regulariser(objective) * v
            v = v - rates[run] * (slope if drift is None else slope + drift[run, client].double())
        close(name, opened(update)[run, client], v - start[run].double())


NAMED = [(name, spoil) for name in LAYERS | BY_TORCH for spoil in (np.nan, np.inf, 1e200)]


@pytest.mark.parametrize(
    ("name", "spoil"), NAMED + [(name, np.nan) for name in MLP | OWN | {"v2": None}]
)
def test_a_record_that_is_not_finite_counts_as_zero_where_it_is_clipped(
    name: str, spoil: float, made: Any
) -> None:
    """Nothing is hidden where nothing is clipped, and other clients have the bits that they had."""
    whole = made(name, [5, 0, 4], [0])
    at, limit = client_values(parameters_of(whole)), torch.tensor([0.3], dtype=torch.float64)
    rows = record_gradients(whole, 0, 0, opened(at)[0, 0])
    before = whole.clipped_gradient(at, limit).checked().clone()
    federation = whole.federations[0]
    features = federation.dataset.train.features.copy()
    features[(federation.partition.indices[2], *[1] * (features.ndim - 1))] = spoil
    train = Records(features, federation.dataset.train.targets)
    holed = on(whole, Federation(Dataset(whole.info, train, None), federation.partition))
    found = holed.clipped_gradient(at, limit).checked()
    rest = clipped(rows, 0.3)
    rest[2] = 0.0
    close(name, found[0, 0], rest.sum(0) / 5)
    assert torch.equal(found[0, 1:], before[0, 1:])
    batch = torch.tensor([[[2, 0], [0, 1], [0, 1]]])
    close(name, holed.clipped_gradient(at, limit, batch).checked()[0, 0], rest[0] / 2)
    norms = opened(holed.squared_gradient_norms(at))
    assert norms.isposinf().nonzero().tolist() == [[0, 0, 2]]
    for gradient in (holed.gradient(at), holed.gradient(at, batch)):
        assert bool(opened(gradient)[0, 0].isfinite().all()) is False
        assert opened(gradient)[0, 1:].isfinite().all()


@each(LAYERS | BY_TORCH | MLP | OWN | CNN)
def test_a_diverged_client_is_not_hidden_and_spoils_no_other(name: str, made: Any) -> None:
    objective = made(name, [5, 4], [0])
    at = points(objective)
    at[0, 0, 3] = torch.nan
    plain = opened(objective.gradient(client_values(at)))
    assert plain[0, 0].isnan().any()
    assert plain[0, 1].isfinite().all()
    found = objective.clipped_gradient(client_values(at), torch.ones(1).double()).checked()
    assert not found[0, 0].any()
    assert found[0, 1].any()


@each(LAYERS | BY_TORCH | MLP | OWN | SINGLE | OTHERS)
def test_bits_depend_neither_on_company_nor_on_threads_nor_on_memory(
    name: str, made: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Alone on one thread, against seven runs with every piece of work shared between threads."""
    monkeypatch.setattr(layer_kernel, "SHARED_WORK", 0)
    monkeypatch.setattr(layer_kernel, "PART_WORK", 1)
    if name in OWN | SINGLE | CNN:
        counts, index, size = [5, 0, 2], [0, 1, 0], 3
    else:
        counts, index, size = [33, 0, 67, 1, 40], [0, 1, 0, 2, 1, 0, 0], 21
    batch, before, whole = made(name, counts, index), torch.get_num_threads(), slice(len(index))
    try:
        torch.set_num_threads(1)
        together = everything(batch, whole, size)
        monkeypatch.setattr(records, "CPU_BLOCK", 1 << 17)
        torch.set_num_threads(3)
        for what, values in everything(batch, whole, size).items():
            assert torch.equal(values, together[what]), what
        torch.set_num_threads(1)
        for run in range(1, len(index) - 1):
            alone = on(batch, batch.federations[index[run]])
            for what, values in everything(alone, slice(run, run + 1), size).items():
                assert torch.equal(values[0], together[what][run]), what
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("most", [None, 2, 100])
@each({name: None for name in CASES if name.startswith(("softmax", "mlp", "toy"))})
def test_metrics_are_means_over_clients_and_over_test_records(
    name: str, most: int | None, made: Any
) -> None:
    objective = made(name, [5, 0, 7, 1], [0, 1, 0])
    settings = {**vars(objective.settings), "train_loss_records": most}
    objective.settings = SimpleNamespace(**settings)
    models = points(objective)[:, 0]
    found = objective.metrics(models)
    assert set(found) == {"train_loss", "accuracy", "test_loss"}
    assert objective.private(found) == {"train_loss"}
    for run, which in enumerate(objective.index):
        federation, total = objective.federations[which], 0.0
        for client in range(4):
            own = (part[:most] for part in own_records(federation, client))
            losses = losses_of(objective, models[run].double(), *own)
            total += float(losses.mean()) if len(losses) else 0.0
        wanted = {"train_loss": total / 4}
        test = federation.dataset.test
        parts = test.features, test.targets
        wanted["test_loss"] = float(losses_of(objective, models[run].double(), *parts).mean())
        tolerance = 1e-5 if name.split(" by", maxsplit=1)[0].endswith("float32") else 1e-12
        for what, value in wanted.items():
            assert found[what][run].item() == pytest.approx(value, rel=tolerance), what
        outputs = outputs_of(objective, models[run].double(), test.features)
        right = 100 * np.mean(outputs.argmax(dim=1).numpy() == test.targets)
        assert found["accuracy"][run].item() == pytest.approx(right)
    bare = Federation(Dataset(objective.info, federation.dataset.train, None), federation.partition)
    assert list(on(objective, bare).metrics(models[:1])) == ["train_loss"]
