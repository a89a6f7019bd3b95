"""Launchers: the same bits whoever runs a grid; shares of cores, memory and work; nothing is lost
when a worker ends early.
"""

from __future__ import annotations

import importlib.util
import io
import itertools
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from members import before_rounds

from dpfl_cli.algorithms.fedavg import FedAvg
from dpfl_cli.cli.main import main
from dpfl_cli.config.compose import compose_config
from dpfl_cli.config.errors import ConfigError, StoreError
from dpfl_cli.config.options import documented, option_files
from dpfl_cli.data.files import without_digest
from dpfl_cli.simulation import grouping, workers
from dpfl_cli.simulation.backends import BACKENDS, make_backend
from dpfl_cli.simulation.execute import Outcome, execute
from dpfl_cli.simulation.plan import make_plans, with_values
from dpfl_cli.simulation.progress import Progress
from dpfl_cli.simulation.store import RunStore
from tests.apart import command

SMALL = ["dataset.clients=12", "dataset.dimension=5", "rounds=6", "runtime.checkpoint_every=1000.0"]
QUIET = Progress("runs", 0, quiet=True)
OWN = """
import torch
from dpfl_cli.algorithms.base import State
from dpfl_cli.algorithms.fedavg import FedAvg, FedAvgSettings
from dpfl_cli.config.component import component
@component("algorithm", "own_for_workers", revision=1, settings=FedAvgSettings)
class Own(FedAvg):
    'FedAvg whose fifth round divides by zero.'
    proved = FedAvg.proved
    def round(self, state, at):
        state, shown = super().round(state, at)
        model = state.server["model"] / torch.as_tensor(at.number != 5).reshape(-1, 1)
        return State({**state.server, "model": model}, state.clients), shown
"""


def numbers(outputs: Path) -> dict[str, bytes]:
    return {
        folder.name: (folder / "metrics.csv").read_bytes()
        for folder in (outputs / "runs").glob("[0-9a-f]*")
    }


@pytest.mark.usefixtures("own_components")
def test_a_grid_has_the_same_bits_under_every_launcher(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Six runs of a built-in method and of a plugin's, which the workers have to load and whose
    runs diverge; under every launcher that is installed.
    """
    (tmp_path / "own.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    words = ["run", "--quiet", "--plugin", "own.py"]
    words += ["-m", "algorithm=fedexp,own_for_workers", "seed=range(3)", *SMALL]
    words += [f"++algorithm.{one}" for one in ("local_steps=2", "local_lr=0.1", "clip_norm=1.0")]
    monkeypatch.setenv("DPFL_OUTPUTS", str(tmp_path / "dpfl"))
    assert main([*words, "hydra/launcher=dpfl"]) == 3
    alone, found = numbers(tmp_path / "dpfl"), {}
    for name in filter(importlib.util.find_spec, BACKENDS):
        monkeypatch.setenv("DPFL_OUTPUTS", str(tmp_path / name))
        shared = ["hydra.launcher.workers=2", "launcher.memory=1GiB"]
        # a process of its own, as a user would: a backend may do what it likes with the streams of
        #   its process
        code, said = command([*words, f"hydra/launcher={name}", *shared], tmp_path)
        assert code == 3, said
        assert "3 of 6 runs failed or diverged" in said
        found[name] = numbers(tmp_path / name)
    assert all(list(each.glob("runs/.partial/*")) == [] for each in tmp_path.iterdir())
    assert len(alone) == 6
    assert found
    assert all(one == alone for one in found.values())


def test_ctrl_c_stops_workers_after_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DPFL_OUTPUTS", str(tmp_path))
    partial = tmp_path / "runs" / ".partial"

    def press() -> None:
        while (
            len([file for file in partial.glob("workers-*/*") if file.stat().st_size > 0]) < 2
        ):  # both compute
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=press, daemon=True).start()
    words = [
        "run",
        "--quiet",
        "-m",
        "algorithm=fedexp,fedavg",
        *SMALL,
        "rounds=10000000",
        "evaluation.every=1000000",
    ]
    assert main([*words, "hydra/launcher=joblib", "hydra.launcher.workers=2"]) == 130
    assert sorted(path.name for path in partial.iterdir()) == sorted(
        path.parent.name for path in partial.glob("*/checkpoint.pt")
    )
    rounds = [
        torch.load(io.BytesIO(without_digest(path.read_bytes())), weights_only=True)["round"]
        for path in partial.glob("*/checkpoint.pt")
    ]
    assert len(rounds) == 2
    assert min(rounds) > 0


class Threads:
    """A backend without processes, for what does not depend on them."""

    def __init__(
        self, workers: int, started: Callable[[workers.Assignment], None] = lambda share: None
    ) -> None:
        self.workers, self.started = workers, started
        self.elsewhere = None

    @contextmanager
    def start(self, shares: Sequence[workers.Assignment]) -> Iterator[list[Future[workers.Report]]]:
        def run(share: workers.Assignment) -> workers.Report:
            self.started(share)
            return workers.work(share)  # this process keeps its cores and its folder

        with ThreadPoolExecutor(1) as pool:
            yield [pool.submit(run, share) for share in shares]


@pytest.fixture
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "cores_of_this_process", lambda: [0, 1])


def grid(*overrides: str) -> list[dict[str, Any]]:
    return [
        with_values(compose_config([*SMALL, f"algorithm={algorithm}", *overrides]), {"seed": seed})
        for algorithm in ("fedexp", "fedavg")
        for seed in (0, 1)
    ]


def spread(
    configs: list[dict[str, Any]], store: RunStore, backend: Any, progress: Progress = QUIET
) -> list[Outcome]:
    return workers.execute_on_workers(configs, make_plans(configs), store, progress, backend)


@pytest.mark.usefixtures("two_cores")
@pytest.mark.parametrize("count", [1, 2, 7])
def test_outcomes_come_in_order_and_what_is_finished_is_not_dealt(
    count: int, tmp_path: Path
) -> None:
    store, configs = RunStore(tmp_path), grid()
    execute(make_plans(configs[1:2]), store)
    dealt: list[str] = []
    outcomes = spread(
        [*configs, configs[0]], store, Threads(count, lambda share: dealt.extend(share.configs))
    )
    ids = [plan.id for plan in make_plans(configs)]
    assert [outcome.plan.id for outcome in outcomes] == [*ids, ids[0]]
    assert [outcome.cached for outcome in outcomes] == [False, True, False, False, False]
    assert sorted(dealt) == sorted({*ids} - {ids[1]})
    spread(configs, store, Threads(count, lambda share: pytest.fail("nothing was left to do")))


@pytest.mark.usefixtures("two_cores")
def test_failures_and_divergence_are_gathered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def act(state: Any, at: Any) -> None:
        if 1 in at.streams._MethodStreams__streams.seeds:  # which a method is not shown
            raise RuntimeError("out of luck")

    before_rounds(monkeypatch, FedAvg, act)
    outcomes = spread(
        grid("dp=none", "algorithm.local_lr=1e9", "rounds=40"), RunStore(tmp_path), Threads(2)
    )
    assert [outcome.status for outcome in outcomes] == [
        "diverged",
        "diverged",
        "diverged",
        "failed",
    ]
    assert outcomes[3].reason == "RuntimeError: out of luck"


@pytest.mark.usefixtures("two_cores")
def test_the_parent_shows_one_progress(tmp_path: Path) -> None:
    progress = Progress("runs", 0, quiet=True)
    spread(grid(), RunStore(tmp_path), Threads(2), progress)
    assert progress._task.completed == 4 * 6
    assert "distance" in progress._task.fields["note"]


@pytest.mark.usefixtures("two_cores")
def test_a_worker_that_dies_costs_its_own_runs_only(tmp_path: Path) -> None:
    def dying(share: workers.Assignment) -> None:
        if share.number == 0:
            raise MemoryError("no room")

    store = RunStore(tmp_path)
    with pytest.raises(
        workers.WorkerError,
        match=r"worker 0 \(2 runs\) ended without a result \(MemoryError: no room\)",
    ) as caught:
        spread(grid(), store, Threads(2, dying))
    assert caught.value.exit_code == 3
    assert len(store.all()) == 2


@pytest.mark.usefixtures("two_cores")
def test_what_a_worker_cannot_do_is_said_by_the_parent(tmp_path: Path) -> None:
    store, configs = RunStore(tmp_path), grid()
    store.prepare()
    (store.partial / make_plans(configs)[0].id).touch()  # where its checkpoints belong
    with pytest.raises(StoreError, match="cannot be"):
        spread(configs, store, Threads(2))
    assert len(store.all()) >= 2


@pytest.mark.usefixtures("two_cores")
def test_a_worker_with_other_plugins_or_data_is_refused(tmp_path: Path) -> None:
    def strange(share: workers.Assignment) -> None:
        share.configs["0" * 12] = share.configs.popitem()[1]

    with pytest.raises(ConfigError, match="not those of the process that asked"):
        spread(grid(), RunStore(tmp_path), Threads(2, strange))


@pytest.mark.usefixtures("two_cores")
def test_workers_stop_when_they_are_told_or_left_alone(tmp_path: Path) -> None:
    def told(share: workers.Assignment) -> None:
        (share.folder / workers.GO_ON).unlink(missing_ok=True)

    def orphaned(share: workers.Assignment) -> None:
        gone = multiprocessing.get_context("fork").Process(target=int)
        gone.start()
        gone.join()
        object.__setattr__(share, "parent", gone.pid)

    for number, event in enumerate((told, orphaned)):
        store = RunStore(tmp_path / str(number))
        with pytest.raises(KeyboardInterrupt):
            spread(grid("rounds=100000"), store, Threads(2, event))
        assert store.all() == []
        assert len(list(store.partial.glob("*/checkpoint.pt"))) == 4


def test_a_process_takes_its_cores_and_threads(tmp_path: Path) -> None:
    core = workers.cores_of_this_process()[-1]
    share = workers.Assignment(
        0,
        {},
        *[tmp_path] * 3,
        environment={"OMP_NUM_THREADS": "1"},
        cores=[core],
        parent=None,
    )

    def child() -> None:
        idle = threading.Event()
        threading.Thread(target=idle.wait, daemon=True).start()  # a thread of the backend's
        workers.prepare_process(share)
        pinned = [os.sched_getaffinity(int(thread)) for thread in os.listdir("/proc/self/task")]
        assert pinned == [{core}] * 2
        assert os.environ["OMP_NUM_THREADS"] == "1"
        assert Path.cwd() == tmp_path
        os._exit(7)

    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    process.join()
    assert process.exitcode == 7


@given(cores=st.integers(1, 40), count=st.integers(1, 40))
def test_cores_are_dealt_evenly(cores: int, count: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(workers, "cores_of_this_process", lambda: list(range(100, 100 + cores)))
        shares = [workers.share_of_cores(number, count) for number in range(count)]
    assert set(itertools.chain(*shares)) == set(range(100, 100 + min(cores, max(count, cores))))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1
    if count <= cores:
        assert len(list(itertools.chain(*shares))) == cores  # nobody shares a core


def fake_plans(sizes: Sequence[int], rounds: Sequence[int]) -> list[Any]:
    """Plans of groups of these sizes, mixed."""
    return [
        SimpleNamespace(last_round=rounds[group], rows=3, dimension=2, group=group)
        for number in range(max(sizes))
        for group, size in enumerate(sizes)
        if number < size
    ]


@given(st.data())
def test_every_run_is_dealt_once_and_everybody_has_work(data: st.DataObject) -> None:
    sizes = data.draw(st.lists(st.integers(1, 30), min_size=1, max_size=6))
    lengths = st.lists(st.integers(1, 50), min_size=len(sizes), max_size=len(sizes))
    plans, count = fake_plans(sizes, data.draw(lengths)), data.draw(st.integers(1, 8))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(grouping, "stack_key", lambda plan: str(plan.group))
        dealt = grouping.deal(plans, count)
    assert len(dealt) <= count
    assert all(dealt)
    assert sorted(id(plan) for part in dealt for plan in part) == sorted(map(id, plans))
    loads = [sum(plan.last_round for plan in part) for part in dealt]
    assert max(loads) <= sum(loads) / count + max(plan.last_round for plan in plans)


@pytest.mark.parametrize(
    ("sizes", "count", "wanted"),
    [
        ((10, 11), 2, [[10], [11]]),  # about equal: no group is split
        ((30, 1), 2, [[15], [15, 1]]),
        ((20,), 4, [[5], [5], [5], [5]]),
        ((6, 6, 6), 2, [[6, 3], [3, 6]]),
        ((3, 3), 1, [[3, 3]]),
        ((1, 1), 5, [[1], [1]]),
    ],
)
def test_runs_of_one_stack_stay_side_by_side(
    sizes: tuple[int, ...], count: int, wanted: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grouping, "stack_key", lambda plan: str(plan.group))
    dealt = grouping.deal(fake_plans(sizes, [5] * len(sizes)), count)
    assert [
        [len(list(run)) for _, run in itertools.groupby(part, lambda plan: plan.group)]
        for part in dealt
    ] == wanted


@pytest.mark.parametrize("name", list(BACKENDS))
def test_a_missing_package_is_refused_before_anything_runs(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    original = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda wanted, *rest: None if wanted == name else original(wanted, *rest),
    )
    monkeypatch.setenv("DPFL_OUTPUTS", str(tmp_path))
    assert main(["run", "-m", f"hydra/launcher={name}", "seed=0,1", *SMALL]) == 2
    assert capsys.readouterr().err == (
        f"dpfl: hydra/launcher={name}: the package {name} is not installed; "
        f"pip install '.[{name}]' in dpfl's folder\n"
    )
    assert list(tmp_path.iterdir()) == []


def test_options_of_a_launcher_are_checked() -> None:
    with pytest.raises(ConfigError, match=r"^hydra\.launcher\.workers=0: "):
        make_backend("joblib", {"workers": 0})
    with pytest.raises(
        ConfigError, match=r"^hydra\.launcher\.executor='pbs': input should be 'local' or 'slurm'"
    ):
        make_backend("submitit", {**options_of("submitit"), "executor": "pbs"})


def options_of(name: str) -> dict[str, Any]:
    config = compose_config_with_hydra([f"hydra/launcher={name}"])
    return {key: value for key, value in config.items() if key not in ("_target_", "name")}


def compose_config_with_hydra(overrides: list[str]) -> dict[str, Any]:
    from hydra import compose, initialize_config_dir
    from omegaconf import OmegaConf

    from dpfl_cli.config.compose import VERSION_BASE
    from dpfl_cli.config.paths import conf_dir

    with initialize_config_dir(str(conf_dir()), version_base=VERSION_BASE, job_name="dpfl"):
        values = OmegaConf.to_container(
            compose("config", overrides, return_hydra_config=True).hydra.launcher
        )
    assert isinstance(values, dict)
    return {str(key): value for key, value in values.items()}


def test_every_launcher_has_its_options_documented() -> None:
    files = {path.stem: path for path in option_files("hydra/launcher")}
    assert set(files) == {"dpfl", *BACKENDS}
    for name, kind in BACKENDS.items():
        assert {key for key, _, _ in documented(files[name])} - {"_target_", "name"} == set(
            kind.model_fields
        )


def test_slurm_jobs_get_what_they_are_allotted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The script that sbatch would get, from an sbatch that only notes it."""
    pytest.importorskip("submitit")
    sbatch = tmp_path / "bin" / "sbatch"
    sbatch.parent.mkdir()
    sbatch.write_text(f'#!/bin/sh\ncp "$1" {tmp_path}/script\necho Submitted batch job 12\n')
    scancel = sbatch.with_name("scancel")
    scancel.write_text("#!/bin/sh\n")
    for program in (sbatch, scancel, sbatch.with_name("srun"), sbatch.with_name("sacct")):
        program.touch()
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{sbatch.parent}{os.pathsep}{os.environ['PATH']}")
    given = {
        "executor": "slurm",
        "cpus_per_worker": 8,
        "partition": "long",
        "timeout": 90,
        "slurm": {"qos": "high"},
    }
    backend = make_backend("submitit", options_of("submitit") | given)
    assert backend.elsewhere == 8
    share = workers.Assignment(0, {}, *[tmp_path] * 3, environment={}, cores=None, parent=None)
    with backend.start([share]):
        script = (tmp_path / "script").read_text()
    for line in ("--partition=long", "--cpus-per-task=8", "--time=90", "--qos=high"):
        assert f"#SBATCH {line}" in script
