"""What lies around a round: code that is run before it and after it, defaults, paths, checks that
are remembered, noise that is calibrated. None of it lets clients' data through unmarked, nor lets
a check, or a target, stand for what it was not made for.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import dpfl_cli as dpfl
from dpfl_cli.cli.main import main
from dpfl_cli.config.component import components
from dpfl_cli.config.compose import compose_config
from dpfl_cli.config.errors import PrivacyError
from dpfl_cli.simulation.plan import make_plan
from dpfl_cli.simulation.plugins import load_plugins
from dpfl_cli.simulation.results import privacy_report

METHOD = """
import os
from dpfl_cli.algorithms.api import *

def opened():
    return np.load(os.environ["OPENED"])

def counted():
    DEFAULT
    return 1.0

class EdgeSettings(LocalSettings):
    local_steps: int = 1
    local_lr: Number = 0.1
    clip_norm: Bound = Field(default_factory=counted)
    cap: Number = 1.0

@algorithm("edge", revision=1, paper="p", unit="client", trusts=["central"], proved=["central"])
class Edge:
    hyper: EdgeSettings

    def __init__(self, hyper):
        self.hyper = hyper
        BEGIN

    @staticmethod
    def releases(settings, run):
        return [ReleaseSpec("update"MULTIPLIER)]

    def init(self, objective, streams):
        return start(objective, streams)

    def round(self, state, at):
        model = state.server["model"]
        mean = at.release("update", bounded_local_update(at, model, self.hyper)).mean
        ROUND

        def shown():
            SHOWN
            return {"ones": torch.ones(len(model))}

        return State({"model": model + mean}), shown
"""
PLACES = ("DEFAULT", "BEGIN", "ROUND", "SHOWN")
pytestmark = pytest.mark.usefixtures("own_components")


def edge(folder: Path, multiplier: str = "", **parts: str) -> str:
    text = METHOD.replace("MULTIPLIER", multiplier)
    for place in PLACES:
        text = text.replace(place, parts.get(place, "pass"))
    file = folder / "edge.py"
    file.write_text(text)
    return str(file)


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home with a file of records and one of their clients, and a cache."""
    monkeypatch.setenv("DPFL_OUTPUTS", str(tmp_path / "outputs"))
    monkeypatch.setenv("DPFL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HOME", str(tmp_path))
    features = np.random.default_rng(0).normal(size=(12, 3))
    np.savez(tmp_path / "mine.npz", features=features, targets=np.arange(12) % 2)
    np.save(tmp_path / "owners.npy", np.arange(12) % 4)
    monkeypatch.setenv("DPFL_DATA", str(tmp_path / "shared"))
    for folder in ("cache", "shared"):
        (tmp_path / folder).mkdir()
        np.save(tmp_path / folder / "known.npy", features)
    return tmp_path


def made(folder: Path, plugin: str, path: str = "'~/mine.npz'") -> dpfl.Run:
    words = ["algorithm=edge", "dp=cdp", "rounds=1", "dataset=arrays", f"dataset.path={path}"]
    words += ["partitioner=file", f"partitioner.path={folder / 'owners.npy'}", "model=softmax"]
    (run,) = dpfl.run(*words, plugins=[plugin], quiet=True)
    return run


@pytest.mark.parametrize("place", [*PLACES, None])
def test_wherever_a_method_opens_the_records_it_ends_the_run(
    place: str | None, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it is made, in a round, for a diagnostic, or where a default is asked for."""
    monkeypatch.setenv("OPENED", str(data / "mine.npz"))
    run = made(data, edge(data, **({} if place is None else {place: "opened()"})))
    assert run.status == ("done" if place is None else "failed")
    if place is not None:
        assert f"{data / 'mine.npz'}: opened " in run.result["reason"]


@pytest.mark.parametrize(
    "opened", ["mine.npz", "owners.npy", "cache/known.npy", "shared/known.npy"]
)
def test_whatever_names_the_records_it_is_closed(
    opened: str, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A path below one's home, who holds what, the cache of what was fetched, DPFL_DATA."""
    monkeypatch.setenv("OPENED", str(data / opened))
    run = made(data, edge(data, ROUND="opened()"))
    assert run.status == "failed"
    assert "opened by code of yours while it computes" in run.result["reason"]


READ = """
import os
import numpy as np
from dpfl_cli.config.component import Settings, component
from dpfl_cli.data.federation import Dataset, DatasetInfo, Records

def table():
    return dict(np.load(os.environ["OPENED"]))

class Items:
    def __init__(self):
        self.table = table()

    def __len__(self):
        return 12

    def __getitem__(self, number):
        return self.table["features"][number], self.table["targets"][number]

@component("dataset", "edge", revision=1, settings=Settings)
class Edge:
    @staticmethod
    def info(settings):
        return DatasetInfo("edge", "real", "", (3,), 2, 12)

    @classmethod
    def load(cls, settings, seed):
        parts = ("features", "targets")
        return Dataset(cls.info(settings), Records(*(lambda p=p: table()[p] for p in parts)), None)
"""


@pytest.mark.parametrize("reads", [True, False])
@pytest.mark.parametrize("plugin", [True, False])
def test_what_a_data_set_of_ones_own_is_read_from_is_closed(
    plugin: bool, reads: bool, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where no option says which file that is: as a plugin, which reads late, or as a Dataset."""
    monkeypatch.setenv("OPENED", str(data / "mine.npz"))
    source = data / "source.py"
    source.write_text(READ)
    names = ["dataset=edge"] if plugin else ["dataset=arrays", f"dataset.path={source}:Items"]
    words = ["algorithm=edge", "dp=cdp", "rounds=1", "model=softmax", *names]
    words += ["partitioner=iid", "partitioner.clients=3"]
    plugins = [edge(data, ROUND="opened()" if reads else "pass"), *[str(source)] * plugin]
    (run,) = dpfl.run(*words, plugins=plugins, quiet=True)
    assert run.status == ("failed" if reads else "done")
    assert ("opened by code of yours while" in run.result.get("reason", "")) == reads


KEPT = """
import functools
import os

import numpy as np
from torch import nn

from dpfl_cli.config.component import component
from dpfl_cli.models.linear import LinearRegression, LinearRegressionSettings

@functools.cache
def scale():
    if "read" == "{WHAT}":
        np.load(os.environ["OPENED"])
    return 1.0

def network():
    scale()
    return nn.Linear(3, 2)

@component("model", "edge", revision=1, settings=LinearRegressionSettings)
class Edge(LinearRegression):
    def metrics(self, parameters):
        return {name: value * scale() for name, value in super().metrics(parameters).items()}
"""


@pytest.mark.parametrize("what", ["read", "nothing"])
@pytest.mark.parametrize("where", ["gaps", "network", "metrics"])
def test_what_was_read_before_and_is_kept_is_refused_too(
    where: str, what: str, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By what is asked of a method, or a network made, as a run is planned; or by what its metrics
    read before the first round.
    """
    monkeypatch.setenv("OPENED", str(data / "mine.npz"))
    own = data / "kept.py"
    own.write_text(KEPT.replace("{WHAT}", what))
    words = ["algorithm=fedavg", "model=torch", f"model.path={own}:network"]
    plugins = []
    if where == "gaps":
        keeps = "@staticmethod\n    @functools.cache\n    def gaps(settings, trust, whole):\n"
        keeps += f"        return [][:{'len(opened())' if what == 'read' else 0}]\n\n"
        text = Path(edge(data)).read_text().replace("import os", "import functools\nimport os")
        own.write_text(text.replace("@staticmethod", f"{keeps}    @staticmethod"))
        words, plugins = ["algorithm=edge", "model=softmax"], [str(own)]
    elif where == "metrics":
        words, plugins = ["algorithm=fedavg", "model=edge"], [str(own)]
        real = np.random.default_rng(0).normal(size=(12, 3))
        np.savez(data / "mine.npz", features=real, targets=real[:, 0])
    words += ["dp=cdp", "rounds=1", "dataset=arrays", f"dataset.path={data / 'mine.npz'}"]
    words += ["partitioner=iid", "partitioner.clients=3"]
    (run,) = dpfl.run(*words, plugins=plugins, quiet=True)
    assert run.status == ("done" if what == "nothing" else "failed"), run.result
    if what == "read":
        assert f"{data / 'mine.npz'}: opened " in run.result["reason"]


def test_a_method_does_not_open_what_it_has_bounded(data: Path) -> None:
    """As a mechanism does, which the guide shows: the plain values have no mark."""
    run = made(data, edge(data, ROUND="bounded_local_update(at, model, self.hyper).checked()"))
    assert run.status == "failed"
    assert "they are a mechanism's to open" in run.result["reason"]


def test_noise_for_a_target_is_found_anew_where_a_method_bends_it(data: Path) -> None:
    """Two methods' noise may agree at the levels that are compared, and nowhere else."""
    own = edge(data, multiplier=", multiplier=lambda z: z if z <= 2 else z / settings.cap")
    words = ["algorithm=edge", "algorithm.cap=1,30", "dp=cdp", "dp.epsilon=0.2", "rounds=1"]
    words += ["dataset.clients=10", "dataset.dimension=3"]
    for run in dpfl.run(*words, plugins=[own], quiet=True):
        assert run.result["privacy"]["epsilon"] == pytest.approx(0.2, rel=1e-5)


DATASET = """
import numpy as np
from dpfl_cli.config.component import Settings, component
from dpfl_cli.data.federation import Dataset, DatasetInfo, Records

class EdgeData(Settings):
    records: int = 20

@component("dataset", "edge", revision=1, settings=EdgeData)
class Edge:
    @staticmethod
    def info(settings):
        return DatasetInfo("edge", "real", "", (3,), 2, settings.records)

    @classmethod
    def load(cls, settings, seed):
        features, targets = np.random.default_rng(0).normal(size=(30, 3)), np.arange(30) % 2
        parts = slice(20), slice(20, 30)
        train, test = (Records(features[some], targets[some]) for some in parts)
        return Dataset(cls.info(settings), train, test)
"""


def test_data_of_ones_own_are_as_many_as_they_say_and_their_tests_nobodys(data: Path) -> None:
    """A delta is held against the number of records."""
    own = data / "data.py"
    own.write_text(DATASET)
    words = ["dataset=edge", "model=softmax", "partitioner=iid", "partitioner.clients=4"]
    words += ["algorithm=fedavg", "dp=cdp", "rounds=1"]
    (run,) = dpfl.run(*words, plugins=[str(own)], quiet=True)
    assert {"accuracy", "largest_class"} <= {*run.result["diagnostics"]}
    (run,) = dpfl.run(*words, "dataset.records=5", plugins=[str(own)], quiet=True)
    assert run.status == "failed"
    assert "says 5 training records, and 20 are loaded" in run.result["reason"]


@pytest.mark.parametrize("same", [True, False])
def test_a_file_that_is_tested_on_and_trained_on_is_the_clients_own(same: bool, data: Path) -> None:
    for name, shift in (("train", 0.0), ("test", 1.0 - same)):
        lines = (f"{number % 2} 1:{number + shift} 2:{number % 3}" for number in range(1, 13))
        (data / f"{name}.txt").write_text("\n".join(lines))
    paths = [f"dataset.path={data / 'train.txt'}", f"dataset.test_path={data / 'test.txt'}"]
    words = ["dataset=libsvm", *paths, "model=softmax", "partitioner=iid", "partitioner.clients=4"]
    (run,) = dpfl.run(*words, "algorithm=fedavg", "dp=cdp", "rounds=1", quiet=True)
    assert ("accuracy" in run.result["diagnostics"]) == same
    listed = run.result["privacy"]["not_covered"]
    assert "records of dataset.test_path, which count as public" in listed


MECHANISM = """
from dpfl_cli.config.component import component
from dpfl_cli.privacy.bounded import per_run
from dpfl_cli.privacy.client_values import own_values
from dpfl_cli.privacy.gaussian import CentralGaussian, GaussianSettings, LocalGaussian
from dpfl_cli.privacy.releases import Release

class EdgeNoise(GaussianSettings):
    noise_multiplier: float | None = 2.5

@component("mechanism", "edge", revision=1, settings=EdgeNoise)
class Edge(BASE):
    def BODY
"""
CENTRAL = """_released(self, call):
        size, clients = SIZE
        std = per_run(call.parameters, size) * size / clients
        mean = self._noisy(call, self._mean(call.values), std)
        own = OWN
        return Release(received=mean, own=own, bound=call.values.bound, averaged=mean)
"""
LOCAL = """_released(self, call):
        found, plain = super()._released(call), call.values.checked()
        own, averaged = RESULT
        return Release(received=found.received, own=own, bound=found.bound, averaged=averaged)
"""
BESIDE = (
    CENTRAL.replace("SIZE", "call.largest, self._site.setup.cohort")
    .replace("OWN", "call.values.values")
    .replace("received=mean", "received=self._mean(call.values)")
)
ONE_STREAM = """_noisy(self, call, values, std):
        where = call.address, values.shape[1], values.shape[2], values.dtype, values.device
        drawn = self._site.streams.normal("noise/mine", *where)
        return values + drawn * per_run(std, values)
"""
REMEMBERED = """__init__(self, *given):
        super().__init__(*given)
        self._lengths = None

    def _released(self, call):
        self._lengths = call.values.checked().square().sum(dim=-1)
        return super()._released(call)

    def squared_norms(self, release):
        found, self._lengths = self._lengths, None
        return found
"""
OWN = "call.values.values"


def noise(folder: Path, base: str, body: str) -> str:
    file = folder / "noise.py"
    file.write_text(MECHANISM.replace("BASE", base).replace("BODY", body))
    return str(file)


def told_of(file: str, *words: str) -> dict[str, str]:
    """check -> why it fails."""
    rows = dpfl.check(file, *words).to_dict("records")
    return {row["check"]: row["why"] for row in rows if row["result"] == "FAIL"}


def guarantee(file: str, *words: str) -> str:
    load_plugins([file])
    words = ("mechanism=edge", "algorithm=fedavg", "dp=cdp", "dp.mode=paper", "rounds=2", *words)
    plan = make_plan(compose_config([*words, "dataset.clients=8"]))
    return str(privacy_report(plan, plan.ledger())["guarantee"])


@pytest.mark.parametrize(
    ("size", "tried", "used"),
    [
        (
            "call.largest, self._site.setup.clients",
            [],
            ["participation=poisson", "participation.cohort=4"],
        ),
        ("call.values.bound, self._site.setup.cohort", ["dp.relation=zero_out"], []),
    ],
)
def test_a_check_of_noise_stands_for_the_cohorts_and_neighbours_that_it_was_made_for(
    size: str, tried: list[str], used: list[str], data: Path
) -> None:
    """Noise for all clients where some are drawn, or for the clip norm where that is half of what
    a neighbour moves, is right where it was tried.
    """
    file = noise(data, "CentralGaussian", CENTRAL.replace("SIZE", size).replace("OWN", OWN))
    assert not told_of(file, *tried)
    assert "check" not in guarantee(file, *tried)
    said = guarantee(file, *used)
    assert f"not checked with these settings: dpfl check {file}" in said
    again = said.partition(f"dpfl check {file} ")[2].split()  # as it says
    assert "noise" in told_of(file, *again)
    assert "FAILED its check" in guarantee(file, *used)


@pytest.mark.parametrize("few", ["rounds=1", "partitioner.clients=1"])
def test_a_check_in_which_little_can_show_is_not_remembered(few: str, data: Path) -> None:
    """As of noise that is the same in every round."""
    body = """_noisy(self, call, mean, std):
        return super()._noisy(call._replace(address=0 * call.address), mean, std)
"""
    file = noise(data, "CentralGaussian", body)
    one = few == "rounds=1"
    assert ("noise" in told_of(file, few)) != one
    if one:
        assert f"not checked: dpfl check {file}" in guarantee(file)
    own = edge(data)
    assert not told_of(own, few)
    load_plugins([own])
    plan = make_plan(compose_config(["algorithm=edge", "dp=cdp", "dataset.clients=8"]))
    assert "not checked" in str(privacy_report(plan, plan.ledger())["guarantee"])


@pytest.mark.parametrize("how", ["reads", "finds"])
def test_what_a_file_reads_as_it_is_imported_is_part_of_its_revision(
    how: str, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A check of other numbers, or of another helper, is none of these."""
    monkeypatch.syspath_prepend(str(data))
    scale = {
        "reads": "float((Path(__file__).parent / 'strength.txt').read_text())",
        "finds": "importlib.import_module('a_helper').SCALE",
    }
    body = """_noisy(self, call, mean, std):
        return super()._noisy(call, mean, SCALE * std)
"""
    file = Path(noise(data, "CentralGaussian", body))
    code = f"import importlib\nfrom pathlib import Path\nSCALE = {scale[how]}\n"
    file.write_text(code + file.read_text())
    said, ids = [], set()
    for strength in ("1.00", "0.10"):
        (data / "strength.txt").write_text(strength)
        (data / "a_helper.py").write_text(f"SCALE = {strength}")
        if not said:
            assert not told_of(str(file))
        said.append(guarantee(str(file)))
        ids.add(str(components("mechanism")["edge"].revision))
    assert "check" not in said[0]
    assert f"not checked: dpfl check {file}" in said[1]
    assert len(ids) == 2


@pytest.mark.parametrize(
    ("base", "body", "check", "why"),
    [
        ("LocalGaussian", ONE_STREAM, "noise", "added, have"),
        (
            "LocalGaussian",
            LOCAL.replace("RESULT", "own_values(plain), None"),
            "marks",
            "counts as a message",
        ),
        (
            "CentralGaussian",
            CENTRAL.replace("SIZE", "call.largest, self._site.setup.cohort").replace(
                "OWN", "own_values(call.values.checked())"
            ),
            "marks",
            "counts as a message",
        ),
        ("LocalGaussian", REMEMBERED, "influence", "squared norms of 'update' are of more"),
        (
            "LocalGaussian",
            LOCAL.replace("RESULT", "found.own, plain.mean(dim=1)"),
            "marks",
            "the mean is of messages",
        ),
        ("CentralGaussian", BESIDE, "marks", "what is received of 'update' is not the mean"),
    ],
)
def test_what_a_mechanism_hands_out_besides_is_looked_at(
    base: str, body: str, check: str, why: str, data: Path
) -> None:
    """The noise of two releases that are one, a clean echo that counts as a message, lengths that
    are not estimated, a clean mean of noisy messages, or beside the noisy one.
    """
    assert why in told_of(noise(data, base, body))[check]


COMMON = """_noisy(self, call, values, std):
        where = call.address, None, values.shape[2], values.dtype, values.device
        drawn = self._site.streams.normal(f"noise/{call.spec.name}", *where).unsqueeze(1)
        turn = (-1.0) ** torch.arange(values.shape[1], dtype=values.dtype)
        return values + drawn * turn.reshape(1, -1, 1) * per_run(std, values)
"""


def test_nobody_says_what_a_mean_of_messages_hides_whose_noise_may_be_one(data: Path) -> None:
    """Noise in pairs that are opposite: every message has all that is priced, and their mean none
    of it.
    """
    file = Path(noise(data, "LocalGaussian", COMMON))
    file.write_text("import torch\n" + file.read_text())
    words = ["algorithm=fedavg", "dp=ldp", "dp.mode=paper", "rounds=1", "dataset.clients=8"]
    for mechanism, said in (("edge", False), ("local_gaussian", True)):
        (run,) = dpfl.run(*words, f"mechanism={mechanism}", plugins=[str(file)], quiet=True)
        assert ("epsilon_central" in run.result["privacy"]) == said


@pytest.mark.parametrize("where", ["own", "file"])
def test_a_mechanism_does_not_count_its_releases(where: str, data: Path) -> None:
    """After an interrupt, or where another run of a grid ends, it would begin anew, and draw the
    noise of the first rounds again.
    """
    count = {
        "own": "self.made = number = getattr(self, 'made', 0) + 1",
        "file": "MADE.append(number := len(MADE) + 1)",
    }
    body = f"""_noisy(self, call, mean, std):
        {count[where]}
        still = call._replace(address=0 * call.address + number)
        return super()._noisy(still, mean, std)
"""
    file = Path(noise(data, "CentralGaussian", body))
    file.write_text("MADE = []\n" + file.read_text())
    words = ["mechanism=edge", "algorithm=fedavg", "dp=cdp", "dp.mode=paper", "rounds=2"]
    (run,) = dpfl.run(*words, "dataset.clients=8", plugins=[str(file)], quiet=True)
    assert run.status == "failed"
    said = "keeps self.made from round to round" if where == "own" else "MADE changed while runs"
    assert said in run.result["reason"]


def test_the_mean_of_messages_is_not_given_apart(data: Path) -> None:
    body = LOCAL.replace("RESULT", "found.own, plain.mean(dim=1)")
    words = ["mechanism=edge", "algorithm=fedavg", "dp=ldp", "dp.mode=paper", "rounds=1"]
    file = noise(data, "LocalGaussian", body)
    (run,) = dpfl.run(*words, "dataset.clients=8", plugins=[file], quiet=True)
    assert run.status == "failed"
    assert "the mean is of messages; drop Release(averaged=...)" in run.result["reason"]
    assert PrivacyError.__name__ not in run.result["reason"]


def test_an_epsilon_is_claimed_once_its_method_has_failed_its_check(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The run was made, and its guarantee written, before."""
    leak = "model = model + opened(bounded_local_update(at, model, self.hyper).values).mean(1)"
    file = Path(edge(data, ROUND=leak))
    code = file.read_text().replace("def opened():", "def opened_file():")
    file.write_text(f"from dpfl_cli.privacy.client_values import opened\n{code}")
    words = ["algorithm=edge", "dp=cdp", "rounds=1", "dataset.clients=8", "dataset.dimension=3"]
    (run,) = dpfl.run(*words, plugins=[str(file)], quiet=True)
    assert not dpfl.account(run)["claimed"].any()
    assert "influence" in told_of(str(file))
    assert dpfl.account(run)["claimed"].all()
    assert main(["account", run.id]) == 0
    assert "(claimed)" in capsys.readouterr().out
