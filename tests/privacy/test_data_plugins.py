"""Models and data sets as somebody in a hurry writes them: what they do to a guarantee is harmless,
refused, or listed beside it; and where clients meet in a model, `dpfl check` finds it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import dpfl_cli as dpfl
import dpfl_cli.config.component as component_module
from dpfl_cli.cli.check import cases, checked
from dpfl_cli.config.component import lookup
from dpfl_cli.config.compose import compose_config
from dpfl_cli.config.errors import ConfigError
from dpfl_cli.data.federation import Federation
from dpfl_cli.data.streams import Streams
from dpfl_cli.models.client_side import ClientSide
from dpfl_cli.privacy.client_values import opened
from dpfl_cli.simulation.checked import _ways
from dpfl_cli.simulation.checks import proof_gap
from dpfl_cli.simulation.conformance import Kit
from dpfl_cli.simulation.member import Member
from dpfl_cli.simulation.neighbours import with_records
from dpfl_cli.simulation.plan import Plan, make_plan
from dpfl_cli.simulation.plugins import load_plugins
from dpfl_cli.simulation.results import privacy_report
from dpfl_cli.simulation.run_plan import federation_of
from dpfl_cli.simulation.stack import Stack

MODEL = """
import numpy as np
import torch
from dpfl_cli.config.component import component
from dpfl_cli.models.linear import LinearRegression, LinearRegressionSettings
from dpfl_cli.privacy.client_values import client_values, opened
from dpfl_cli.privacy.record_bounds import record_mean

@component("model", "hurried", revision=1, settings=LinearRegressionSettings)
class Hurried(LinearRegression):
    def pool(self):
        return self.federations[0].dataset.train

    def own(self, of):
        "[R, M] a number of every client's targets"
        found = []
        for run in self.index:
            one, pool = self.federations[run].partition, self.federations[run].dataset.train
            ends = zip(one.offsets[:-1], one.offsets[1:])
            found.append([float(of(pool.targets[one.indices[a:b]])) for a, b in ends])
        return torch.tensor(found)

    {BODY}
"""
GRADIENT = """def gradient(self, parameters, batch=None):
        plain = opened(super().gradient(parameters, batch))
        {LINE}
        return client_values(plain)"""


def _gradient(line: str) -> str:
    return GRADIENT.replace("{LINE}", line)


# what each computes is of one client's records, whatever it is: clipping bounds it
APART = {
    "a loss that is a sum over records": _gradient("plain = plain * self.records.unsqueeze(-1)"),
    "classes weighted by a client's own targets": _gradient(
        "plain = plain * self.own(np.mean).unsqueeze(-1)"
    ),
    "dropout with seeds of the data": _gradient(
        "\n        ".join(
            [
                "seeds = (1e6 * self.own(np.sum)).nan_to_num(0, 0, 0).long() % 2**31",
                "for r, m in np.ndindex(*seeds.shape):",
                "    generator = torch.Generator().manual_seed(int(seeds[r, m]))",
                "    plain[r, m] *= torch.rand(self.dimension, generator=generator) > 0.5",
            ]
        )
    ),
    "a client that stops once its gradient is small": _gradient(
        "plain = torch.where(plain.norm(dim=2, keepdim=True) > 0.1, plain, 0.0)"
    ),
    "a private count in place of the number of records": (
        "def divisors(self, batch):\n        return self.own(lambda targets: (targets > 0).sum())"
    ),
}
# clients meet inside: no epsilon covers it, which is listed, and the check tells
MEETING = {
    "running means of batch normalisation": _gradient(
        "self.running = 0.9 * getattr(self, 'running', 0.0) + plain.mean(dim=1, keepdim=True); "
        "plain = plain - self.running"
    ),
    "class weights from all labels": _gradient("plain = plain * float(self.pool().targets.mean())"),
    "standardising by all records": _gradient("plain = plain / float(self.pool().features.std())"),
    "a value of one client kept for the next": _gradient(
        "kept = getattr(self, 'kept', plain); self.kept = plain; plain = plain + kept.roll(1, 1)"
    ),
    "metrics as weights": (
        "def metrics(self, parameters):\n"
        "        found = super().metrics(parameters)\n"
        "        self.weight = found['train_loss'].reshape(-1, 1, 1)\n"
        "        return found\n\n    "
        + _gradient("plain = plain * getattr(self, 'weight', torch.ones(1))")
    ),
}
# what goes to everybody: computed on records of zeros, so that it cannot be of the data
COMMON = {
    "it begins at the mean of the records": (
        "def initial(self, streams):\n        start = super().initial(streams)\n"
        "        return start + float(self.pool().targets.mean())"
    ),
    "its regulariser pulls to the targets": (
        "def regulariser_gradient(self, parameters):\n"
        "        return parameters - float(self.pool().targets.mean())"
    ),
    "its proximal step is of the data's scale": (
        "def prox(self, values, step):\n"
        "        return values / (1 + step.reshape(-1, 1) * float(self.pool().features.std()))"
    ),
}
ALL = {**APART, **MEETING, **COMMON}
SMALL = ["rounds=3", "dataset=synthetic", "dataset.clients=12", "dataset.dimension=5"]
SMALL += ["partitioner=iid", "partitioner.clients=4", "algorithm.local_steps=2"]


@pytest.fixture
def plan(request: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Plan]:
    """Of a run with the model of this name."""
    monkeypatch.setenv("DPFL_OUTPUTS", str(tmp_path / "outputs"))
    file = tmp_path / f"{tmp_path.name}.py"
    file.write_text(MODEL.replace("{BODY}", ALL[request.param]))
    load_plugins([str(file)])
    yield make_plan(compose_config([*SMALL, "algorithm=fedavg", "dp=cdp", "model=hurried"]))
    component_module._registry["model"].pop("hurried")


def examined(plan: Plan) -> dict[str, list[str]]:
    kit = Kit([plan], federation_of(plan))
    kit.examine()
    return {name: found for name, found in kit.faults.items() if found}


@pytest.mark.parametrize("plan", APART, indirect=True)
def test_what_is_of_one_client_is_bounded_by_clipping(plan: Plan) -> None:
    assert examined(plan) == {}


@pytest.mark.parametrize("plan", MEETING, indirect=True)
def test_a_model_in_which_clients_meet_is_listed_and_found(plan: Plan) -> None:
    assert any("keeps from one client to another" in item for item in plan.not_covered())
    assert "influence" in examined(plan)


@pytest.mark.parametrize("option", ["softmax", "mnist_cnn_small"])
def test_a_gradient_of_ones_own_is_that_of_local_steps(option: str, tmp_path: Path) -> None:
    images = np.random.default_rng(0).random((20, 1, 28, 28), np.float32)
    np.savez(tmp_path / "images.npz", features=images, targets=np.arange(20) % 10)
    words = [f"model={option}", "dataset=arrays", f"dataset.path={tmp_path / 'images.npz'}"]
    words += ["partitioner=iid", "partitioner.clients=2", "algorithm=fedavg"]
    plan = make_plan(compose_config(words))
    made = plan.model.settings, [federation_of(plan)], np.zeros(1, int)
    says = {"gradient": lambda self, parameters, batch=None: parameters}
    model = plan.model.target
    own: Any = type("Own", (model,), says)
    mixed: Any = type("Mixed", (type("Mixin", (), says), model), {})
    start = model(*made).initial(Streams([0])) + 1.0
    rate = torch.tensor([0.5], dtype=start.dtype)
    for kind in (own, mixed):  # v <- v - v / 2, twice
        moved = opened(kind(*made).local_descent(start, rate, 2))
        torch.testing.assert_close(moved, -0.75 * start.unsqueeze(1).expand_as(moved))


def test_a_clients_records_are_gone_where_it_holds_others() -> None:
    """Code that takes records by their place in the pool would find them there."""
    known = federation_of(make_plan(compose_config([*SMALL, "algorithm=fedavg"])))
    mine = known.partition.lists()[0]
    old, targets = known.dataset.train.features, known.dataset.train.targets
    for count in (1, len(mine), len(mine) + 2):
        rows = np.full((count, old.shape[1]), 9.0, old.dtype), np.arange(count, dtype=targets.dtype)
        changed = with_records(known, rows)
        pool, held = changed.dataset.train, changed.partition.lists()
        assert np.array_equal(pool.features[held[0]], rows[0])
        assert np.array_equal(pool.targets[held[0]], rows[1])
        assert not np.isin(old[mine], pool.features).any()
        for before, now in zip(known.partition.lists()[1:], held[1:], strict=True):
            assert np.array_equal(old[before], pool.features[now])


@pytest.fixture
def _taken_away() -> Iterator[None]:
    yield
    component_module._registry["model"].pop("hurried")


CENTRES = """
import numpy as np
from torch import nn

from dpfl_cli.config.component import component
from dpfl_cli.models.network import Network
from dpfl_cli.models.network_settings import NetworkSettings


@component("model", "hurried", revision=1, settings=NetworkSettings)
class Centred(Network):
    def __init__(self, settings, federations, *rest):
        super().__init__(settings, federations, *rest)
        self.first = federations[0].dataset.train.features[:1].astype("float32")

    @classmethod
    def network(cls, settings, info):
        return nn.Linear(info.feature_shape[0], 1, bias=False)

    def initial_values(self, generator):
        return self.first.ravel()
"""


@pytest.mark.usefixtures("_taken_away")
def test_what_a_network_took_from_the_data_is_not_in_its_beginning(tmp_path: Path) -> None:
    """Its `among` keeps what its constructor computed."""
    file = tmp_path / "centred.py"
    file.write_text(CENTRES)
    load_plugins([str(file)])
    plan = make_plan(compose_config([*SMALL, "algorithm=fedavg", "dp=cdp", "model=hurried"]))
    federation = federation_of(plan)
    model: Any = plan.model.target
    made = model(plan.model.settings, [federation], np.array([0]), torch.device("cpu"))
    view = ClientSide(made, "client")
    assert (view.initial(Streams([0])) == 0).all()


POOLED = """
import torch
from dpfl_cli.algorithms.api import algorithm
from dpfl_cli.algorithms.fedavg import FedAvg
from dpfl_cli.config.component import component
from dpfl_cli.models.linear import LinearRegression, LinearRegressionSettings
from dpfl_cli.privacy.client_values import client_values, opened


class PooledSettings(LinearRegressionSettings):
    robust: float = 0.0


@component("model", "hurried", revision=1, settings=PooledSettings)
class Pooled(LinearRegression):
    def damped_solve(self, parameters, right, damping, curvature="hessian", clip_norm=None):
        sides, found = opened(right), []
        for run, number in enumerate(self.index):
            x = torch.from_numpy(self.federations[number].dataset.train.features).double()
            matrix = x.T @ x / len(x) + damping[run] * torch.eye(x.shape[1], dtype=torch.float64)
            found.append(torch.linalg.solve(matrix, sides[run].T).T)
        return client_values(torch.stack(found))


@algorithm("needy", revision=1, paper="none", unit="client", needs={"damped_solve"})
class Needy(FedAvg):
    pass
"""


@pytest.mark.usefixtures("_taken_away")
def test_a_model_is_tried_with_what_methods_need_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DPFL_OUTPUTS", str(tmp_path / "outputs"))
    file = tmp_path / "pooled.py"
    file.write_text(POOLED)
    load_plugins([str(file)])

    def said(*words: str) -> str:
        plan = make_plan(compose_config([*SMALL[:-1], "model=hurried", *words]))
        return str(privacy_report(plan, plan.ledger())["guarantee"])

    fedavg = "algorithm=fedavg", "dp=cdp"
    fednew = "algorithm=fednew", "dp=cdp", "algorithm.clip_norm=0.5"
    assert f"not checked: dpfl check {file}" in said(*fedavg)
    checked("fedavg", ["dp=cdp", "model=hurried"])
    assert "check" not in said(*fedavg, "model.loss_factor=0.7")
    assert f"{file} algorithm=fednew" in said(*fednew)  # its solves were not looked at
    other = said("algorithm=fedavg", "dp=cdp", "algorithm.batch_size=2")
    assert f"{file} algorithm=fedavg algorithm.batch_size=2" in other
    assert f"{file} algorithm=scaffold" in said("algorithm=scaffold", "dp=cdp")  # drifts
    tried = [case.label for case in cases(lookup("model", "hurried"))]
    assert len(tried) == len({*tried}) == 10
    assert sum("batch_size=2" in label for label in tried) == 4
    sizes = [f"algorithm.{name}=1" for name in ("local_steps", "local_lr", "clip_norm")]
    needy = ["dp=cdp", "dp.mode=paper", *sizes, "algorithm.batch_size=null"]
    own = make_plan(compose_config([*SMALL[:-1], "model=hurried", "algorithm=needy", *needy]))
    methods = [json.loads(way)[2] for way in _ways(own, "model")]  # all that try a model
    twice = ["adaptdp", "fedavg", "fedavg_record", "scaffold"]
    assert sorted(methods) == sorted([*twice, *twice, "fedfc", "fednew"])
    curved = said(*fednew, "algorithm.curvature=covariance")
    assert "not checked with these settings" in curved  # solves of another matrix
    assert f"{file} algorithm=fedavg model.robust=1.0" in said(*fedavg, "model.robust=1")
    checked(str(file), ["algorithm=fedavg_record", "dp=record", "dp.mode=paper"])
    recorded = ["algorithm=fedavg_record", "dp=record", "dp.mode=paper"]
    assert "not checked" not in said(*recorded)
    rows = checked(str(file), ["algorithm=fednew", "dp=cdp"])
    assert [row["check"] for row in rows if row["result"] == "FAIL"] == ["influence"]
    assert "FAILED its check" in said(*fednew)
    assert "FAILED" not in said(*fedavg)


def of_everybody(plan: Plan, federation: Federation) -> list[torch.Tensor]:
    objective = plan.model.target(plan.model.settings, [federation], np.array([0]))
    side = ClientSide(objective, "client")
    start = side.initial(Streams([0]))
    own = side.gradient(start.unsqueeze(1).expand(-1, side.clients, -1))
    step = torch.ones(1, dtype=torch.float64)
    return [start, side.regulariser_gradient(start), side.prox(start, step), opened(own)]


@pytest.mark.parametrize("plan", COMMON, indirect=True)
def test_what_goes_to_everybody_is_not_of_the_data(plan: Plan) -> None:
    federation = federation_of(plan)
    rows = np.full((2, 5), 7.0), np.full(2, 9.0)
    mine, other = (of_everybody(plan, one) for one in (federation, with_records(federation, rows)))
    assert all(torch.equal(*pair) for pair in zip(mine[:-1], other[:-1], strict=True))
    assert not torch.equal(mine[-1], other[-1])


@pytest.mark.parametrize("plan", list(APART)[-1:], indirect=True)
def test_what_batches_are_divided_by_is_their_size(plan: Plan) -> None:
    federation = federation_of(plan)
    objective = plan.model.target(plan.model.settings, [federation], np.array([0]))
    side = ClientSide(objective, "client")
    batch = torch.zeros(1, 4, 1, dtype=torch.long)
    assert torch.equal(side.divisors(batch), torch.ones(1, 4, dtype=torch.float64))


@pytest.mark.parametrize("plan", ALL, indirect=True)
def test_no_bound_per_record_is_proved(plan: Plan) -> None:
    words = ["algorithm=fedavg_record", "dp=record", "model=hurried"]
    with pytest.raises(ConfigError, match=r"its model is a plugin's.*dp[.]mode=paper runs it"):
        make_plan(compose_config([*SMALL, *words]))
    own = make_plan(compose_config([*SMALL, *words, "dp.mode=paper"]))
    stack = Stack([Member(own)])
    stack.step()
    assert "its model is a plugin's" in str(proof_gap(own))


# Data sets.

DATA = """
import numpy as np
from dpfl_cli.config.component import Settings, component
from dpfl_cli.data.federation import Dataset, DatasetInfo, Partition, Records

class Mine(Settings):
    pass

FEATURES = np.random.default_rng(0).normal(size=(24, 3))
TARGETS = FEATURES.sum(1)

@component("dataset", "hurried", revision=1, settings=Mine)
class Hurried:
    @staticmethod
    def info(settings):
        {INFO}
        return DatasetInfo("hurried", "real", "0" * 64, (3,), None, 24, 4)

    @staticmethod
    def load(settings, seed):
        features, targets = FEATURES, TARGETS
        {LOAD}
        found = Hurried.info(settings)
        return Dataset(found, Records(features, targets), None, natural=np.arange(24) % 4)

@component("partitioner", "hurried", revision=1, settings=Mine)
class Dealt:
    @staticmethod
    def clients(settings, info):
        return 4

    @staticmethod
    def partition(settings, dataset, seed):
        order = np.argsort(dataset.train.targets)
        return Partition.from_lists(np.array_split(order, 4))
"""
OVER_RECORDS = {
    "standardised by private means": "features = (features - features.mean(0)) / features.std(0)",
    "targets encoded": "features = features * np.where(targets > 0, targets[targets > 0].mean(), 1)"
    "[:, None]",
    "copies of the rare": "features[12:], targets[12:] = features[:12], targets[:12]",
    "outliers dropped": "targets = np.clip(targets, *np.quantile(targets, [0.05, 0.95]))",
}


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setenv("DPFL_OUTPUTS", str(tmp_path / "outputs"))
    file = tmp_path / f"{tmp_path.name}.py"

    def written(load: str = "pass", info: str = "pass") -> str:
        file.write_text(DATA.replace("{LOAD}", load).replace("{INFO}", info))
        return str(file)

    yield written
    for group in ("dataset", "partitioner"):
        component_module._registry[group].pop("hurried", None)


WORDS = ["algorithm=fedavg", "algorithm.local_steps=1", "algorithm.local_lr=0.1", "dp=cdp"]
WORDS += ["algorithm.clip_norm=1", "rounds=2"]


@pytest.mark.parametrize("load", OVER_RECORDS.values(), ids=OVER_RECORDS)
def test_what_is_computed_over_records_is_listed(load: str, data: Any) -> None:
    words = [*WORDS, "dataset=hurried", "partitioner=natural"]
    (run,) = dpfl.run(*words, plugins=[data(load)], quiet=True)
    listed = "; ".join(run.result["privacy"]["not_covered"])
    assert run.status == "done"
    for item in ("computed over the records of a data set of yours", "features and classes"):
        assert item in listed


def test_who_holds_what_by_the_data_is_listed(data: Any) -> None:
    load_plugins([data()])
    words = [*WORDS, "dataset=synthetic", "dataset.clients=12", "partitioner=hurried"]
    plan = make_plan(compose_config(words))
    assert any("who holds what" in item for item in plan.not_covered())


@pytest.mark.parametrize(
    ("deal", "says"),
    [
        ("[np.arange(12)] * 2", "more than once"),
        ("[np.array([0, 1, 1]), np.array([2])]", "more than once"),
        ("[np.array([0, 11]), np.array([-1])]", "not among 0 to 11"),
        ("[np.array([0, 11]), np.array([12])]", "not among 0 to 11"),
        ("np.array_split(np.random.permutation(12), 2)", "draw by the seed alone"),
    ],
)
def test_a_deal_is_of_records_that_there_are_once(deal: str, says: str, data: Any) -> None:
    path = Path(data())
    text = (
        path.read_text().replace("np.array_split(order, 4)", deal).replace("return 4", "return 2")
    )
    path.write_text(text)
    words = [*WORDS, "dataset=synthetic", "dataset.clients=12", "partitioner=hurried"]
    (run,) = dpfl.run(*words, plugins=[str(path)], quiet=True)
    assert run.status == "failed"
    assert says in run.result["reason"]


def test_errors_of_data_say_no_values(data: Any) -> None:
    words = [*WORDS, "dataset=hurried", "partitioner=natural"]
    fails = "raise ValueError(f'{TARGETS[0]:.12f}')"
    (run,) = dpfl.run(*words, plugins=[data(load=fails)], quiet=True)
    value = f"{np.random.default_rng(0).normal(size=(24, 3))[0].sum():.12f}"
    assert run.status == "failed"
    assert "ValueError (" in run.result["reason"]
    assert value not in str(run.result)
    with pytest.raises(ConfigError, match=r"ValueError \(.*py:16\); --debug") as refused:
        dpfl.run(*words, plugins=[data(info=fails)], quiet=True)
    assert value not in str(refused.value)
