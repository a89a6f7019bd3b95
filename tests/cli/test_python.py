"""dpfl from Python: the runs, tables and errors of the command line."""

from __future__ import annotations

import math
import re
import subprocess
import sys
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.stats import norm

import dpfl_cli as dpfl
from dpfl_cli.algorithms.fedavg import FedAvg
from dpfl_cli.cli.main import main
from dpfl_cli.config.compose import compose_config
from dpfl_cli.config.paths import outputs_dir
from dpfl_cli.simulation.plan import make_plan

SMALL = ["dataset.clients=12", "dataset.dimension=5", "rounds=6"]
GRID = ["algorithm=fedexp,fedavg", "dp=cdp", "seed=range(2)", *SMALL]


def test_importing_it_is_cheap_and_what_it_lacks_is_an_attribute_error() -> None:
    code = "import dpfl_cli, sys; print({'torch', 'hydra', 'pandas'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
    assert {"run", "runs", "model"} <= set(dir(dpfl))
    with pytest.raises(AttributeError, match="no attribute nothing"):
        dpfl.nothing  # type: ignore[attr-defined] # noqa: B018


def test_a_grid_is_that_of_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--quiet", "-m", *GRID]) == 0
    printed = [line.rpartition("/")[2] for line in capsys.readouterr().out.split()]
    grid = dpfl.run(*GRID, quiet=True)
    assert [run.id for run in grid] == printed
    assert capsys.readouterr() == ("", "")
    assert all(run.status == "done" for run in grid)
    assert grid[0].result["origin"]["command"].startswith("dpfl run")

    table = dpfl.runs(where=["algorithm=fedexp", "seed=1"])
    assert table.run.tolist() == [grid[1].id]
    assert table.epsilon[0] == grid[1].result["privacy"]["epsilon"]
    assert len(dpfl.runs()) == len(dpfl.runs(where="status=done")) == 4
    assert table.guarantee[0] == grid[1].result["privacy"]["guarantee"]
    dpfl.run(*GRID, "dp.delta=0.2")
    assert "WARNING: delta is not below 1/n" in capsys.readouterr().err
    assert dpfl.runs(where="seed=7").empty

    lines = dpfl.curves(*grid, grid[0].id)
    assert len(lines) == 5 * 7
    assert lines.groupby("algorithm").seed.nunique().tolist() == [2, 2]
    swept = dpfl.curves(*dpfl.run("algorithm.clip_norm=0.3,3", *SMALL))
    assert swept.groupby("algorithm.clip_norm").run.nunique().to_dict() == {0.3: 1, 3.0: 1}
    last = lines[lines["round"] == 6].relative_distance
    assert last.iloc[0] == grid[0].result["metrics"]["last"]["relative_distance"]


def test_a_run_that_states_no_epsilon_has_no_price(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that failed had released so much and no more, and when it did may tell of the data."""
    round_ = FedAvg.round

    def failing(self: FedAvg, state: Any, at: Any) -> Any:
        if at.number[0] == 3:
            raise ValueError
        return round_(self, state, at)

    (open_,) = dpfl.run("algorithm=fedavg", "dp=none", *SMALL, quiet=True)
    monkeypatch.setattr(FedAvg, "round", failing)
    (failed,) = dpfl.run("algorithm=fedavg", "dp=cdp", *SMALL, quiet=True)
    assert (open_.status, failed.status, failed.ledger.releases) == ("done", "failed", 2)
    for run, why in ((open_, "not private"), (failed, "the run failed")):
        priced = dpfl.account(run)
        assert priced.epsilon.isna().all()
        assert set(priced.reason) == {why}
    assert main(["account", open_.id, failed.id, "--together"]) == 2
    assert "is not private" in capsys.readouterr().err
    assert main(["account", failed.id]) == 0
    assert "2.28" not in capsys.readouterr().out  # what two releases cost


@pytest.fixture
def real(tmp_path: Path) -> list[str]:
    """Records that are the same whatever the seed is."""
    path, numbers = tmp_path / "records.npz", np.random.default_rng(0)
    np.savez(path, features=numbers.normal(size=(60, 4)), targets=np.arange(60) % 2)
    words = ["dataset=arrays", f"dataset.path={path}", "partitioner=iid", "model=softmax"]
    return [*words, "partitioner.clients=12"]


def test_runs_on_the_same_data_have_a_price_together(
    real: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """It covers a choice among them; of Gaussian releases it is that of mu^2 = sum 1 / z^2."""
    small = [*real, "partitioner.seed=0", "rounds=3", "dp=cdp", "algorithm=fedavg"]
    noise = [("seed=0", 2.0), ("seed=1", 3.0), ("seed=2", 5.0)]
    runs = [
        dpfl.run(seed, f"mechanism.noise_multiplier={z}", *small, quiet=True)[0]
        for seed, z in noise
    ]
    delta = runs[0].result["privacy"]["delta"]
    priced = dpfl.account(runs).set_index("accountant")
    mu = math.sqrt(sum(3 / z**2 for _, z in noise))
    found = priced.epsilon["gdp"]
    exact = norm.cdf(mu / 2 - found / mu) - math.exp(found) * norm.cdf(-mu / 2 - found / mu)
    assert exact == pytest.approx(delta, rel=1e-6)  # Dong, Roth and Su 2022, Corollary 2.13
    assert set(priced.releases) == {9}
    assert main(["account", *(run.id[:8] for run in runs), "--together"]) == 0
    out = capsys.readouterr().out
    assert "9 releases" in out
    assert "covered: these runs together, and a choice among them" in out
    secret = [*small, "dp.noise=secret", "mechanism.noise_multiplier=2"]
    twins = [dpfl.run(*secret, "runtime.force=true", quiet=True)[0] for _ in range(2)]
    assert twins[0].id == twins[1].id
    twins += dpfl.run(*secret, "rounds=2", quiet=True)
    assert set(dpfl.account(twins).releases) == {8}  # two of one id, and all of noise of their own
    assert set(dpfl.account([runs[0], runs[0]]).releases) == {3}
    drawn = [*small, "participation=poisson", "participation.cohort=3", "accountant=rdp"]
    apart = [dpfl.run(f"seed={seed}", *drawn, quiet=True)[0] for seed in (0, 1)]
    twice = dpfl.calibrate(*drawn, "rounds=6")  # rounds of one run have cohorts of their own, too
    both = dpfl.account(apart).set_index("accountant").epsilon["rdp"]
    assert both == pytest.approx(twice["epsilon"], rel=1e-9)
    assert both > apart[0].result["privacy"]["epsilon"]


@pytest.mark.parametrize(
    ("own", "others", "says"),
    [
        (["partitioner.seed=0"], ["rounds=2"], "of one seed, and so of the same noise"),
        (["partitioner.seed=0"], ["seed=1", "partitioner.seed=1"], "not the same records"),
        (
            ["partitioner.seed=0"],
            ["seed=1", "partitioner.seed=0", "dp.delta=1e-6"],
            "several deltas",
        ),
        (["dataset=synthetic", "partitioner=natural"], ["seed=1"], "not the same records"),
    ],
)
def test_runs_whose_epsilons_do_not_add_up_have_none(real, own, others, says: str) -> None:
    words = [*([] if "dataset=synthetic" in own else real), "rounds=1", "dp=cdp", *own]
    runs = [dpfl.run(*words, quiet=True)[0], dpfl.run(*words, *others, quiet=True)[0]]
    with pytest.raises(dpfl.ConfigError, match=says):
        dpfl.account(runs)


def test_a_ledger_its_prices_and_the_noise_for_a_target() -> None:
    (run,) = dpfl.run("dp=cdp", *SMALL, quiet=True)
    released = dpfl.ledger(run.id)
    assert released["count"].sum() == run.result["privacy"]["releases"]
    priced = dpfl.account(run).set_index("accountant")
    own = run.result["privacy"]
    assert priced.epsilon[own["accountant"]] == pytest.approx(own["epsilon"])
    smaller = dpfl.account(run, delta=1e-3).set_index("accountant")
    assert smaller.epsilon[own["accountant"]] < own["epsilon"]
    noise = dpfl.calibrate("dp=cdp", "dp.epsilon=3", *SMALL)
    assert noise["epsilon"] == pytest.approx(3, rel=1e-3)
    assert noise["mechanism.noise_multiplier"] > 0
    given = f"mechanism.noise_multiplier={noise['mechanism.noise_multiplier']}"
    (run,) = dpfl.run("dp=cdp", given, *SMALL)
    priced = dpfl.calibrate("dp=cdp", given, *SMALL)  # before it is run
    assert priced["epsilon"] == run.result["privacy"]["epsilon"] == noise["epsilon"]


def test_an_audit_is_the_command_lines(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("dp=cdp", "dp.epsilon=2", "dp.delta=1e-5", *SMALL)
    found = dpfl.audit(*words, canaries=20, quiet=True)
    assert found.pop("claim") == pytest.approx(2.0, abs=1e-3)
    assert found.pop("delta") == 1e-5
    assert main(["audit", *words, "--canaries", "20", "--quiet"]) == 0
    printed = capsys.readouterr().out
    sides = re.search(r"canaries (\d+) and (\d+); lower bounds on epsilon", printed)
    assert sum(map(int, sides.groups())) == 40
    assert found.keys() == {"gaussian", "one_run", "threshold"}
    assert all(f"{bound:7.3f} (" in printed for bound in found.values())
    assert len(list((outputs_dir() / "audits").glob("*/result.json"))) == 1  # made once


def test_a_check_is_the_command_lines(capsys: pytest.CaptureFixture[str]) -> None:
    found = dpfl.check("fedavg", "dp=cdp")
    assert found.check.tolist() == ["marks", "influence", "sensitivity", "ledger", "noise"]
    assert set(found.result) == {"pass"}
    assert main(["check", "fedavg", "dp=cdp", "--quiet"]) == 0
    printed = capsys.readouterr().out
    assert all(why in printed for why in found.why)


OWN = """
from dpfl_cli.reproduction.api import Artifact, Metric, Run, Size, claim


def runs(scale):
    yield Run({"method": "fedavg"}, ["algorithm=fedavg", "rounds=2"], {"dataset.clients": 10})


@claim("ours")
def nothing(rows):
    "nothing is compared"
    yield from ()


mine = Artifact(
    id="python",
    title="Mine",
    shows="How far it comes.",
    sizes={"quick": Size(seeds=2, minutes=0.1)},
    runs=runs,
    measures={"distance": Metric("relative_distance", "last")},
)
"""


def test_an_artifact_is_made_and_its_table_is_a_frame(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And one with a run that fails is incomplete."""
    path = tmp_path / "mine.py"
    path.write_text(OWN)
    (made,) = dpfl.reproduce(str(path), quiet=True)
    assert capsys.readouterr() == ("", "")
    assert made.name == "local/python"
    assert not made.gaps
    assert sorted(made.table.value) == pytest.approx(sorted(dpfl.runs().relative_distance))
    assert made.claims.id.tolist() == ["nothing"]
    assert (made.folder / "table.md").is_file()
    monkeypatch.setattr(FedAvg, "round", lambda *_: 1 / 0)
    assert main(["reproduce", str(path), "seeds=5-6", "--quiet"]) == 3
    assert capsys.readouterr().err.count("dpfl: local/python: ") == 2


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: dpfl.run("algorithm=fedxp"), "algorithm=fedxp: did you mean fedexp?"),
        (lambda: dpfl.run("rounds=0"), "rounds=0"),
        (lambda: dpfl.run("seed=range(0)"), "seed"),
        (lambda: dpfl.run("--help"), "not an override"),
        (lambda: dpfl.runs(where="seed"), "^dpfl.runs: seed: write KEY=VALUE"),
        (lambda: dpfl.calibrate("dp=none"), "adds no noise"),
        (lambda: dpfl.audit("dp=none"), "nothing is private"),
        (lambda: dpfl.audit("dp=cdp", canaries=2), "canaries 2: at least 20"),
        (lambda: dpfl.audit("dp=cdp", confidence=1.0), "confidence 1.0: from 0.5"),
        (lambda: dpfl.check("fedagv"), "check fedagv: did you mean fedavg"),
        (dpfl.reproduce, "reproduce what?"),
        (lambda: dpfl.reproduce("fedexp/fig1", "scale=quick"), "names of artifacts alone"),
        (lambda: dpfl.reproduce("fedexp/fig9"), "did you mean fedexp/fig"),
        (lambda: dpfl.reproduce("table4"), "from: adaptdp/table4, fedexp/table4, fednew/table4 "),
        (lambda: dpfl.reproduce("fedexp/fig1", scale="quik"), "did you mean quick"),
        (lambda: dpfl.model("abc"), "abc: no run"),
        (lambda: dpfl.account(dpfl.run("rounds=1", quiet=True)[0], delta=2), "between 0 and 1"),
        # wrong arguments
        (
            lambda: dpfl.run(["seed=1"]),
            r"dpfl.run: argument 0=\['seed=1'\]: input should be a valid str",
        ),
        (
            lambda: dpfl.run(plugins="mine.py"),
            r"dpfl.run: argument plugins='mine.py': .*\['mine.py'\]",
        ),
        (lambda: dpfl.runs(where=5), "dpfl.runs: argument where=5: input should be"),
        (lambda: dpfl.curves([]), r"dpfl.curves: argument 0.*; write \* before a list"),
        (lambda: dpfl.run(overrides=["a"]), "dpfl.run: argument overrides=.*are strings, such as"),
        (
            lambda: dpfl.reproduce("fedexp/fig1", plugin=["a.py"]),
            "dpfl.reproduce: argument plugin=.*did you mean plugins",
        ),
        (dpfl.account, "dpfl.account: argument run: missing"),
        (
            lambda: dpfl.run(epsilon=1),
            "dpfl.run: argument epsilon=1: .*; overrides are strings, such as",
        ),
    ],
)
def test_errors_are_the_lines_of_the_command_line(call, says: str) -> None:
    with pytest.raises(dpfl.DpflError, match=says) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_an_unknown_option_comes_without_what_hydra_says_of_it() -> None:
    with pytest.raises(dpfl.ConfigError) as caught:
        dpfl.run("algorithm=fedxp")
    assert "hydra/_internal" not in "".join(traceback.format_exception(caught.value))


def test_paths_and_numbers_of_numpy_are_taken() -> None:
    (run,) = dpfl.run("dp=cdp", *SMALL, quiet=True)
    assert len(dpfl.curves(run.folder)) == len(dpfl.curves(run))
    delta = np.float64(1e-3)
    pd.testing.assert_frame_equal(dpfl.account(run.folder, delta), dpfl.account(run, 1e-3))
    with pytest.raises(dpfl.ConfigError, match=r"--plugin nope\.py: cannot be read"):
        dpfl.run(plugins=[Path("nope.py")])


def test_a_single_runs_model_is_kept_and_a_grids_where_asked() -> None:
    words = ["dp=cdp", "evaluation.average_last=2", *SMALL]
    (single,) = dpfl.run(*words, "seed=5", quiet=True)
    model = dpfl.model(single)
    truth = single.result["metrics"]["last"]["distance"]
    dataset = np.load(single.folder / "model.npz")
    assert dataset["model"].shape == model.shape == (5,)
    several = dpfl.run(*words, "seed=5,6", "runtime.force=true", quiet=True)
    with pytest.raises(dpfl.DpflError, match=r"was not kept; runtime.force=true"):
        dpfl.model(several[0])
    kept = dpfl.run(*words, "seed=5,6", "runtime.force=true", "runtime.keep_model=true", quiet=True)
    assert [run.id for run in kept] == [run.id for run in several]  # no part of the identity
    assert kept[0].id == single.id
    assert np.array_equal(dpfl.model(kept[0]), model)
    # it is the model that was evaluated last
    plan = make_plan(compose_config([*words, "seed=5"]))
    optimum = plan.dataset.target.load(plan.dataset.settings, 5).truth["optimum"]
    assert np.linalg.norm(model - optimum) == pytest.approx(truth)
    (single.folder / "model.npz").write_bytes(b"changed")
    with pytest.raises(dpfl.DpflError, match="was changed after it was written"):
        dpfl.model(single.id)


def test_a_sweeper_is_told_the_last_value_of_the_metric(monkeypatch: pytest.MonkeyPatch) -> None:
    from hydra_plugins.dpfl_sweeper import DpflSweeper

    told: list[float] = []
    sweep = DpflSweeper.sweep

    def watched(self, arguments):
        (results,) = sweep(self, arguments)
        told.extend(result.return_value for result in results)

    monkeypatch.setattr(DpflSweeper, "sweep", watched)
    grid = dpfl.run(*GRID, "launcher.metric=train_loss", quiet=True)
    assert told == [run.result["metrics"]["last"]["train_loss"] for run in grid]
    with pytest.raises(dpfl.ConfigError, match="did you mean train_loss"):
        dpfl.run(*GRID, "launcher.metric=train_los", quiet=True)


def test_threads_take_turns() -> None:
    """Each gets its own runs: not an error of Hydra's, nor another's."""
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda seed: dpfl.run(*SMALL, f"seed={seed}", quiet=True), range(4)))
    assert [[run.config["seed"] for run in runs] for runs in found] == [[0], [1], [2], [3]]
