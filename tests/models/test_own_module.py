"""A module of the user's: what it is given, where it begins, what is refused; its gradients are
those of PyTorch.
"""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from dpfl_cli.cli.main import main
from dpfl_cli.config.compose import compose_config
from dpfl_cli.config.errors import ConfigError
from dpfl_cli.data.federation import Dataset, DatasetInfo, Federation, Partition, Records
from dpfl_cli.data.streams import Streams
from dpfl_cli.models.own_module import OwnModule, OwnModuleSettings
from dpfl_cli.privacy.client_values import opened
from dpfl_cli.simulation.plan import make_plan

FILE = """
import warnings

import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, shape, classes):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(*shape, 4), nn.Tanh(), nn.Dropout(), nn.GroupNorm(2, 4))
        self.head = nn.Linear(4, classes or 1)
        self.scale = nn.Parameter(torch.randn(1))
        self.register_buffer("fixed", torch.randn(4))

    def forward(self, x):
        return self.head(self.body(x) + self.fixed) * self.scale

class Fills(nn.Module):
    def __init__(self, shape, classes):
        super().__init__()
        self.weights = nn.Parameter(torch.ones(3))

    def forward(self, x):
        square = torch.zeros(5, 3)
        square[[0, 1, 2], [0, 1, 2]] = self.weights
        return x @ square

class Base(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.seen = nn.Linear(5, 3), []
        self.register_buffer("mean", torch.zeros(5))

class Meets(Base):
    def forward(self, x):
        return self.layer(x - x.mean(0))

class Follows(Base):
    def forward(self, x):
        return self.layer(x.cumsum(0))  # the first record's output is its own

class Remembers(Base):
    def forward(self, x):
        self.last = x.detach().sum()
        return self.layer(x)

class Counts(Base):
    def forward(self, x):
        self.seen.append(len(x))
        return self.layer(x)

class Running(Base):
    def forward(self, x):
        warnings.warn("slow")
        self.mean.mul_(0.9)
        return self.layer(x)

class Begins(Base):  # as data-dependent initialisation does
    def __init__(self):
        super().__init__()
        self.register_buffer("ready", torch.zeros(()))

    def forward(self, x):
        if not self.ready:
            with torch.no_grad():
                self.mean.copy_(x.mean(0))
                self.ready.fill_(1)
        return self.layer(x - self.mean)

class Knows(Base):
    def __init__(self):
        super().__init__()
        self.stats = {"mean": None}

    def forward(self, x):
        if self.stats["mean"] is None:
            self.stats["mean"] = x.detach().mean(0)
        return self.layer(x - self.stats["mean"])

STATS = {}

class Everywhere(Base):
    def __init__(self):
        super().__init__()
        STATS.clear()

    def forward(self, x):
        return self.layer(x - STATS.setdefault("mean", x.detach().mean(0)))

class Drifts(Base):
    def forward(self, x):
        if torch.is_grad_enabled():
            self.mean = 0.999 * self.mean + 0.001 * x.detach().mean(0)
        return self.layer(x - self.mean)

class Late(Base):
    def forward(self, x):
        if len(x) >= 10:
            self.mean.copy_(x.detach().mean(0))
        return self.layer(x - self.mean)

class Normalised(Base):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(3)

    def forward(self, x):
        return self.norm(self.layer(x))

class Recurrent(Base):
    def __init__(self, layer=nn.LSTM):
        super().__init__()
        self.steps = nn.Sequential(layer(5, 3))

class Cell(Recurrent):
    def __init__(self):
        super().__init__(nn.GRUCell)

class Wide(nn.Linear):
    def __init__(self):
        super().__init__(5, 7)

class Narrow(nn.Linear):
    def __init__(self):
        super().__init__(6, 3)

class Asks(nn.Linear):
    def __init__(self, width):
        super().__init__(5, width)

class Spare(Base):
    def __init__(self):
        super().__init__()
        self.spare = nn.Linear(2, 2)

    def forward(self, x):
        return self.layer(x)

def frozen():
    return nn.Linear(5, 3).requires_grad_(False)

ready = nn.Linear(5, 3)
seven = 7
"""


@pytest.fixture
def path(tmp_path: Path) -> str:
    (tmp_path / "net.py").write_text(FILE)
    return str(tmp_path / "net.py")


def info(classes: int | None) -> DatasetInfo:
    return DatasetInfo("mine", "real", "", (5,), classes, 12, 3)


def objective(
    path: str, name: str, classes: int | None, runs: int = 1, device: str = "cpu"
) -> OwnModule:
    generator = np.random.default_rng(0)
    targets = generator.integers(3, size=12) if classes else generator.normal(size=12)
    records = Records(generator.normal(size=(12, 5)).astype(np.float32), targets)
    dataset = Dataset(info(classes), records, records)
    federation = Federation(dataset, Partition.from_counts(np.arange(12), np.array([5, 4, 3])))
    settings = OwnModuleSettings(path=f"{path}:{name}")
    return OwnModule(settings, [federation], np.zeros(runs, np.int64), device)


@pytest.mark.parametrize("classes", [3, None])
def test_its_gradients_are_those_of_pytorch(path: str, classes: int | None) -> None:
    own = objective(path, "Net", classes)
    start = own.initial(Streams([1]))
    assert own.dimension == OwnModule.dimension_of(own.settings, info(classes)) == start.shape[1]
    module = copy.deepcopy(own.module).double()
    nn.utils.vector_to_parameters(start[0].double(), module.parameters())
    train = own.federations[0].dataset.train
    wanted, sizes = [], []
    for rows in (slice(0, 5), slice(5, 9), slice(9, 12)):
        features, targets = torch.from_numpy(train.features[rows]).double(), train.targets[rows]
        outputs = module(features)
        losses = (
            nn.functional.cross_entropy(outputs, torch.from_numpy(targets), reduction="none")
            if classes
            else (outputs[:, 0] - torch.from_numpy(targets)).square()
        )
        each = []  # a record's gradient
        for loss in losses:
            parts = torch.autograd.grad(loss, list(module.parameters()), retain_graph=True)
            each.append(torch.cat([part.flatten() for part in parts]))
        wanted.append(torch.stack(each).mean(dim=0))
        sizes += [float(one.abs().max()) for one in each]
    everywhere = start.unsqueeze(1).expand(1, 3, -1)
    free = torch.full((1,), 1e6, dtype=torch.float64)
    expected = torch.stack(wanted).unsqueeze(0)
    # of a record's whole gradient: entries of different records cancel in the mean
    rounding = 4 * torch.finfo(torch.float32).eps * max(sizes)
    for found in (own.gradient(everywhere), own.clipped_gradient(everywhere, free).values):
        torch.testing.assert_close(opened(found).double(), expected, rtol=0, atol=rounding)
    assert ("accuracy" in own.metrics(start)) == bool(classes)


def test_what_a_forward_pass_does_not_use_has_a_gradient_of_zero(path: str) -> None:
    own = objective(path, "Spare", 3)
    start = own.initial(Streams([1])).unsqueeze(1).expand(1, 3, -1)
    whole = opened(own.gradient(start))
    free = torch.full((1,), 1e6, dtype=torch.float64)
    torch.testing.assert_close(whole, opened(own.clipped_gradient(start, free).values).float())
    assert whole[..., :18].abs().sum() > 0
    assert not whole[..., 18:].any()


def test_only_what_vmap_goes_over_the_parameters_of_is_one_call(path: str) -> None:
    """As it does not where a matrix is filled from them; a GPU then takes client after client."""
    assert objective(path, "Net", 3, device="meta").at_once
    assert not objective(path, "Fills", 3, device="meta").at_once


def test_it_begins_as_its_layers_draw_by_the_runs_seed(path: str) -> None:
    own = objective(path, "Net", 3, runs=3)
    first, again, other = own.initial(Streams([1, 1, 2]))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    fixed = objective(path, "Net", 3).module.get_buffer("fixed")
    assert torch.equal(own.module.get_buffer("fixed"), fixed)  # in every run and process
    ready = objective(path, "ready", 3, runs=2).initial(Streams([1, 2]))
    assert torch.equal(ready[0], ready[1])


@pytest.mark.parametrize(
    ("name", "says"),
    [
        (":Meets", "depends on the other records"),
        (":Follows", "depends on the other records"),
        (":Remembers", "keeps something"),
        (":Counts", "keeps something"),
        (":Running", "mutate a captured Tensor"),
        (":Begins", "keeps something"),
        (":Knows", "keeps something"),
        (":Everywhere", "keeps something"),
        (":Drifts", "keeps something"),
        (":Late", "keeps something"),
        (":Normalised", "write GroupNorm"),
        (":Recurrent", "nn.LSTM: recurrent layers .* write its steps with nn.Linear"),
        (":Cell", "nn.GRUCell: recurrent layers"),
        (":Wide", r"gives \[3, 7\] for 3 records, not \[3, 3\]"),
        (":Narrow", r"on records of shape \[5\]"),
        (":Asks", "without arguments but shape and classes"),
        (":frozen", "no parameter to train"),
        (":seven", "must be a module"),
        (":Base", "NotImplementedError"),
        (":Nett", "no Nett there; did you mean Net"),
        (":functional", "choose from: .*, ready"),
        ("", "write FILE.py:NAME"),
        (None, "model.path: missing"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(
    path: str, name: str | None, says: str, recwarn: pytest.WarningsRecorder
) -> None:
    settings = OwnModuleSettings(path=None if name is None else path + name)
    with pytest.raises(ConfigError, match=says) as caught:
        OwnModule.dimension_of(settings, info(3))
    assert "\n" not in str(caught.value)
    assert not recwarn.list


def test_the_identity_has_the_content_and_the_name(path: str) -> None:
    before = OwnModuleSettings(path=f"{path}:Net").identity()
    assert before != OwnModuleSettings(path=f"{path}:ready").identity()
    moved = Path(path).with_name("moved.py")
    moved.write_text(FILE)
    assert before == OwnModuleSettings(path=f"{moved}:Net").identity()
    moved.write_text(FILE + "# edited\n")
    assert before != OwnModuleSettings(path=f"{moved}:Net").identity()


LATE = """
import torch
from torch import nn

SEEN = {}

class Plain(nn.Module):
    def __init__(self, shape, classes):
        super().__init__()
        self.layer = nn.Linear(shape[0], classes)
        self.register_buffer("mean", torch.zeros(shape[0]))
        self.register_buffer("ready", torch.tensor(False))

    def forward(self, x):
        return self.layer(x)

class Begins(Plain):
    def forward(self, x):
        if len(x) >= 40 and not self.ready:
            self.mean.copy_(x.detach().mean(0))
            self.ready.fill_(True)
        return self.layer(x - self.mean)

class Runs(Plain):
    def forward(self, x):
        if len(x) >= 40:
            self.mean.lerp_(x.detach().mean(0), 1e-6)
        return self.layer(x - self.mean)

class Holds(Plain):
    scale = 1.0

    def forward(self, x):
        if len(x) >= 40:
            self.scale = float(x.detach().std())
        return self.layer(x / self.scale)

class Stats:
    records, scale = 0, 1.0

    def __call__(self, x):
        self.records += len(x)
        if self.records >= 200:
            self.scale = float(x.detach().std())
        return x / self.scale

class Waits(Plain):
    def __init__(self, shape, classes):
        super().__init__(shape, classes)
        self.stats = Stats()

    def forward(self, x):
        return self.layer(self.stats(x))

class Everywhere(Plain):
    def forward(self, x):
        if len(x) >= 40 and "scale" not in SEEN:
            SEEN["scale"] = 1 + 0.1 * float(x.detach().std())
        return self.layer(x / SEEN.get("scale", 1.0))
"""


@pytest.mark.parametrize(
    ("name", "status"),
    [("Plain", 0), ("Begins", 3), ("Runs", 3), ("Holds", 3), ("Waits", 3), ("Everywhere", 3)],
)
@pytest.mark.parametrize(
    "words", [["algorithm=fedavg", "dp=cdp"], ["algorithm=fedavg_record", "dp=record"]]
)
def test_what_is_kept_of_many_records_ends_a_run_before_it_has_a_result(
    name: str, status: int, words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No trial sees what begins with the fortieth record of a pass; a run looks where it reads
    metrics, and so does the next one in the same process.
    """
    file = tmp_path / f"{name}.py"
    file.write_text(f"{LATE}# {tmp_path}\n")  # a module of its own
    data = ["dataset=synthetic_alpha_beta", "dataset.clients=6"]
    for seed in (0, 1):
        run = [*words, *data, "model=torch", f"model.path={file}:{name}", "rounds=2"]
        assert main(["run", *run, f"seed={seed}", "--quiet"]) == status
        assert ("keeps something of the records" in capsys.readouterr().err) == (status == 3)


@pytest.mark.parametrize("words", [["model=torch"], ["dataset=arrays"]], ids=["model", "dataset"])
def test_a_file_that_cannot_be_imported_is_named_with_its_option(tmp_path, words):
    file = tmp_path / "broken.py"
    file.write_text("1 / 0\n")
    option = words[0].partition("=")[0]
    config = compose_config(
        ["dataset=synthetic", "algorithm=fedavg", "dp=none", *words, f"{option}.path={file}:Net"]
    )
    with pytest.raises(ConfigError, match=rf"^{option}\.path=.*broken\.py: ZeroDivisionError"):
        make_plan(config)
