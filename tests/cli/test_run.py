"""`dpfl run` and its neighbours as a user calls them."""

from __future__ import annotations

import csv
import io
import json
import logging
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from dpfl_cli.cli.main import COMMANDS
from dpfl_cli.cli.tables import print_results, print_table
from dpfl_cli.config.compose import compose_config
from dpfl_cli.config.errors import ConfigError, StoreError
from dpfl_cli.config.paths import outputs_dir
from dpfl_cli.privacy.nominal import epsilon_number
from dpfl_cli.reproduction.published import INDEX, index_md
from dpfl_cli.simulation.archive import DIFFERS, TAKEN
from dpfl_cli.simulation.forecast import _round_seconds
from dpfl_cli.simulation.plan import make_plan
from dpfl_cli.simulation.plugins import load_plugins
from dpfl_cli.simulation.progress import Progress
from dpfl_cli.simulation.store import RunStore
from tests import apart

SMALL = ["dataset.clients=12", "dataset.dimension=5", "rounds=4"]
PLUGIN = str(Path(__file__).with_name("my_method.py"))
PLUGIN_TEXT = Path(PLUGIN).read_text()


def folders(out: str) -> list[Path]:
    """The folders of runs that a command printed last."""
    return [Path(line) for line in out.splitlines() if re.search("/[0-9a-f]{12}$", line)]


@pytest.mark.parametrize(
    ("words", "said"),
    [(["dp=ldp"], True), (["dp=ldp", "dp.noise=secret"], False), (["dp=none"], False)],
)
def test_of_one_run_it_is_said_whether_its_noise_can_be_taken_off(
    words: list[str], said: bool, printed
) -> None:
    assert ("Whoever knows the seed" in printed("run", *words, *SMALL)) is said
    out = printed("run", "-m", *words, *SMALL, "seed=1,2")  # whose models are not kept
    assert "Whoever knows the seed" not in out


def test_runs_that_noise_has_spoilt_say_so(dpfl, printed) -> None:
    """And runs that too large steps have."""
    words = ["algorithm=fedavg", "dp.epsilon=0.1", "dp.delta=1e-5", *SMALL]
    assert "relative_distance ends above where it began (1, then" in dpfl("run", "dp=ldp", *words)[
        1
    ].replace("\n", " ")
    out = printed("run", "-m", "dp=ldp,cdp", "dp.epsilon=0.1,1e5", *words[:1], *words[2:])
    assert re.search(r"began in [12] of 4 runs", out.replace("\n", " "))
    words = ["algorithm=fedavg", "dataset=quadratic", "dp=none", *SMALL]
    assert "too large steps." in printed("run", "algorithm.local_lr=9", *words)
    assert "above where it" not in printed("run", *words)


def test_one_answer_for_all_is_what_accuracy_is_compared_with(tmp_path: Path, printed) -> None:
    """Of 20 test records 15 have one class."""
    path = tmp_path / "records.npz"
    features = np.random.default_rng(0).normal(size=(20, 3))
    np.savez(path, features=features, targets=features[:, 0].argsort().argsort() < 5)
    words = ["dataset=arrays", f"dataset.path={path}", f"dataset.test_path={path}", "rounds=2"]
    words += ["algorithm=fedavg", "partitioner.clients=4", "dp=cdp", "model=softmax"]
    out = printed("run", "mechanism.noise_multiplier=50", *words).replace("\n", " ")
    assert "accuracy ends no higher than that of one answer for all test records" in out
    assert "(75.00 %)" in out
    longer = ["dp=none", "model.bias=true", "rounds=300", "algorithm.local_lr=1"]
    assert "one answer for all" not in printed("run", *words, *longer)


def test_a_finished_run_says_what_its_guarantee_is_since_a_check(dpfl, printed) -> None:
    own = ["run", "--plugin", PLUGIN, "algorithm=fedmomentum", "dp=cdp", *SMALL]
    assert "proved; not checked: dpfl check" in " ".join(printed(*own).split())
    assert "Since their check" not in printed(*own)
    assert dpfl("check", PLUGIN, "dp=cdp", "--quiet")[0] == 0
    said = " ".join(printed(*own).split())
    assert "Since their check: (epsilon, delta)-DP per client" in said
    assert "central trust: proved (runtime.force=true notes it)." in said
    found = " ".join(printed("runs", "list", "--where", "algorithm=fedmomentum").split())
    assert "dpfl check of the file as it was has passed, with some settings;" in found


def test_one_run_prints_its_folder_last(tmp_path: Path, printed) -> None:
    out = printed("run", "algorithm=fedexp", "dp=ldp", *SMALL)
    folder = Path(out.strip().splitlines()[-1])
    assert re.fullmatch("[0-9a-f]{12}", folder.name)
    assert {path.name for path in folder.iterdir()} == {
        "config.yaml",
        "metrics.csv",
        "ledger.json",
        "model.npz",
        "partition.npz",
        "result.json",
    }
    result = json.loads((folder / "result.json").read_text())
    assert result["status"] == "done"
    assert result["schema_version"] == 2
    assert result["origin"]["command"].startswith("dpfl run algorithm=fedexp dp=ldp ")
    privacy = result["privacy"]
    assert {
        "epsilon",
        "delta",
        "accountant",
        "unit",
        "relation",
        "releases",
        "guarantee",
        "vacuous",
        "not_covered",
    } <= set(privacy)
    assert privacy["epsilon_paper"]["value"] == pytest.approx(15.658124, abs=1e-6)
    assert "epsilon" in out
    assert "tuning not included" in out
    ledger = json.loads((folder / "ledger.json").read_text())
    assert [(entry["name"], entry["count"], entry["event"]) for entry in ledger] == [
        ("update", 4, "GaussianDpEvent")
    ]
    assert ledger[0]["sensitivity"] == pytest.approx(0.6)

    out = printed("run", "algorithm=fedexp", "dp=ldp", *SMALL)
    assert "not run again" in out
    assert "runtime.force=true" in out
    assert not (tmp_path / "hydra").exists()


def test_a_grid_is_a_product(printed) -> None:
    words = ("-m", "algorithm=fedexp,fedavg", "dp=ldp,ldp_privunit,cdp", "seed=range(2)", *SMALL)
    out = printed("run", *words, "--quiet")
    made = folders(out)
    assert len(set(made)) == len(out.splitlines()) == 12
    assert {*made, made[0].parent / ".partial"} == set(made[0].parent.iterdir())
    assert not Path("multirun").exists()


def test_a_grid_of_many_seeds_shows_their_means_alone(printed) -> None:
    """With a line and a folder for each of 22 runs the means were out of sight."""
    grid = ["run", "-m", "algorithm=fedexp,fedavg", "dp=cdp", *SMALL]
    few, many = (printed(*grid, f"seed=range({seeds})") for seeds in (2, 11))
    said = "Means of 22 runs; dpfl runs list shows each."
    for out, runs in ((few, 4), (many, 0)):
        assert len(re.findall("^[0-9a-f]{12} ", out, re.MULTILINE)) == runs
        assert (said in out) == (runs == 0)
        assert out.count(" ± ") == 2 * 3  # of two methods, three metrics
        assert out.splitlines()[-1].endswith("/outputs/runs")
    listed = printed("runs", "list")
    assert len(re.findall("^[0-9a-f]{12} ", listed, re.MULTILINE)) == 22


def test_one_run_is_what_hydra_makes_of_it(printed) -> None:
    """A single run is composed without Hydra's main function, unless a flag asks for it."""
    words = ["algorithm=fedexp", "dp=cdp", "seed=3", *SMALL]
    ids = [
        Path(printed("run", *flags, *words, "--quiet").strip()).name for flags in ([], ["--run"])
    ]
    assert ids[0] == ids[1]
    assert re.fullmatch("[0-9a-f]{12}", ids[0])


@pytest.mark.parametrize(
    "how",
    [[], ["hydra.sweeper.max_batch_size=1"], ["hydra/launcher=basic"], ["hydra/sweeper=basic"]],
)
def test_a_grid_with_a_run_that_diverges_exits_with_3(how: list[str], dpfl) -> None:
    """Also where it is cut into several, and the last one is well."""
    lengths = ["algorithm.local_lr=1e200,0.001"]
    words = ["algorithm=fedavg", "dp=none", "algorithm.clip_norm=null", *lengths, *SMALL]
    code, out, err = dpfl("run", "-m", *how, *words)
    assert code == 3, err
    for said, where in (
        ("1 of 2 runs failed or diverged", err),
        ("not finite", err),
        ("done", out),
    ):
        assert said in where


def test_no_job_begins_after_one_was_interrupted(monkeypatch: pytest.MonkeyPatch, dpfl) -> None:
    begun = []

    def interrupted(configs: Any) -> int:
        begun.append(configs)
        raise KeyboardInterrupt

    monkeypatch.setattr("dpfl_cli.cli.run.execute_configs", interrupted)
    assert dpfl("run", "-m", "hydra/launcher=basic", "seed=1,2", *SMALL)[0] == 130
    assert len(begun) == 1


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("run -m algorithm=fedexp,fedxp", "algorithm=fedxp: did you mean fedexp?"),
        (
            "run -m algorithm=fedexp,fedavg algorithm.clip_norm=-1,1",
            "algorithm.clip_norm=-1",
        ),
        ("runn", "runn: no such command; did you mean run?"),
        ("run --no-such-flag", "--no-such-flag: no such option; choose from: --cfg"),
        ("run --multirum seed=1,2", "did you mean --multirun?"),
        ("run seed=1,2", "seed=1,2: several values make a grid; add -m to dpfl run"),
        (
            "run -m hydra/launcher=basic algorithm=fedexp,fedxp",
            "algorithm=fedxp: did you mean fedexp?",
        ),
        (
            "run dataset=libsvm dataset.path=${hydra:runtime.cwd}/no_such_file",
            "/no_such_file: cannot be read",
        ),
        ("run --cfg jobb", "--cfg/-c jobb: did you mean job?"),
        ("run --cfg", "--cfg/-c: expected one argument"),
        ("run -m seed=range(0)", "the grid is empty"),
        ("list algoritm", "did you mean algorithm?"),
        ("list algorithm fedxp", "did you mean fedexp?"),
        ("account ffff", "no run"),
        (
            "runs table --rows=seed --cols=dp --output t.csv",
            "runs table: --output: no such option; choose from: --best, --cols",
        ),
        ("runs list --jsn", "runs list: --jsn: no such option; did you mean --json?"),
        ("calibrate dp=none", "dp=none adds no noise"),
        ("reproduce fedexp/tabel4", "did you mean fedexp"),
        ("data fetch minst", "did you mean mnist?"),
        ("run --plugin no_such_file.py", "cannot be read"),
        ("run algorithm=fedavg.yaml", "not an option"),
        ("run ~participation", "every run has one; choose another"),
        ("run ~evaluation", "~evaluation: every run has one"),
        ("run +scale.name=quick", "scale.name: unknown option"),
        ("run hydra.run={dir:x}", "results go to one tree"),
        ("run -m hydra.sweeper.max_batch_size=0", "whole number of at least 1"),
        ("run -m seed=range(400) rounds=range(1,400)", "split it"),
        (f"run rounds={10**12}", "less than or equal to"),
        ("run -m algorithm.clip_norm=1,1.0", "a value is listed twice"),
        ("run runtime=null", "runtime=None"),
        ("run =1", "=1: not an override"),
        ("audit cc854d875f18", "cc854d875f18: a run, not an override; `dpfl runs show"),
        ("run 'dataset.path=a (1).csv'", "(for its signs); write \"dataset.path='a (1).csv'\""),
        ("run seed=range(3)", "seed=range(3): several values make a grid; add -m"),
        ("run -m seed=range(a)", "no sweep of Hydra's; write seed=range(3) or seed=1,2"),
        ("run +experiment=null", "+experiment=null: not an override"),
        ("run --resolve", "add --cfg job"),
        ("run --cfg job --package foo", "package 'foo' not found"),
        ("runs export --archive runs.zip", "name it so, as runs.tar.xz"),
        ("runs list --where seed==1", "write KEY=VALUE"),
        ("runs prune --unfinished --where seed=0", "drop the choice of runs"),
        ("runs export --output a.csv --archive b", "not allowed with"),
        ("new algorithm fedavg", "choose another name"),
        ("new model numpy", "choose another name"),
        (f"account {'f' * 5000}", "f...: no run"),
        ("run seed=\0", "not text; write it in UTF-8"),
        ("run dataset.path=\udce9.npz", "not text; write it in UTF-8"),
        ("reproduce fedexp/table1 scale=", "no scale=; choose from"),
        ("reproduce --list scale=quick", "scale=quick: --list and --check"),
        ("calculate --plugin mine.py", "required: METHOD"),
        ("run --experimental-rerun x", "--experimental-rerun: no such option"),
        ("run --shell-completion", "--shell-completion: no such option"),
        ("run --config-path x", "--config-path: no such option"),
        ("run experiment=fedexp/mnist", "write +experiment=fedexp/mnist"),
        ("run +experiment=fedexp/mnst", "`dpfl run --help` shows what there is"),
        ("run -m seed=interval(0,1)", "add hydra/sweeper=optuna"),
        ("new model test_mine", "test_ is for tests"),
        (
            "run algorithm=fedavg dp=cdp mechanism.noise_multiplier=1e155",
            "=1e+155: must be from 1e-50 to 1e50",
        ),
        (
            "run algorithm=fedavg accountant=wang_rdp accountant.order=an",
            "accountant.order='an': input should be a valid integer; or input should be "
            "'optimised' or 'paper'",
        ),
        (
            "run algorithm=fedavg dp=ldp_privunit dp.epsilon=200 rounds=1",
            "dp.epsilon=200: give another target; with",
        ),
        (
            "run -m algorithm=fedavg,scaffold algorithm.control=sent",
            "in a grid over algorithm= an option is one that all of them and the default have",
        ),
        *(  # whose squares are lost
            (
                f"run algorithm=fedavg dp=cdp algorithm.clip_norm={given}",
                f"algorithm.clip_norm={given}: must be from 1e-10 to 1e100",
            )
            for given in ("1e-11", "1e+101")
        ),
    ],
)
def test_wrong_use_is_one_line_and_runs_nothing(
    words: str, expected: str, tmp_path: Path, refused
) -> None:
    err = refused(*shlex.split(words))
    assert expected in err
    assert not list((tmp_path / "outputs").glob("runs/*"))


def test_absent_data_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused) -> None:
    monkeypatch.setenv("DPFL_DATA", str(tmp_path / "nothing"))
    monkeypatch.setenv("DPFL_CACHE", str(tmp_path / "cache"))
    err = refused("run", "dataset=mnist")
    assert "dpfl data fetch mnist" in err
    assert len(err.strip().splitlines()) == 1


def test_what_has_no_data_is_left_out_of_a_paper_and_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dpfl
) -> None:
    """Not where it was called by its own name, or where nothing else is asked."""
    monkeypatch.setenv("DPFL_DATA", str(tmp_path / "nothing"))
    monkeypatch.setenv("DPFL_CACHE", str(tmp_path / "cache"))
    code, out, err = dpfl("reproduce", "fedexp", "scale=smoke", "--dry-run")
    assert code == 0
    assert "fedexp/fig1: " in out
    assert "fedexp/table4" not in out
    assert "left out: artifact fedexp/table4" in err
    assert all("dpfl data fetch mnist" in line for line in err.splitlines())
    for asked in (["fedexp", "fedexp/table4"], ["dynamic"]):
        code, _, err = dpfl("reproduce", *asked, "scale=smoke", "--dry-run")
        assert code == 2
        assert "left out" not in err.strip().splitlines()[-1]


def test_a_metric_that_overflowed_is_shown_as_not_finite(dpfl, printed) -> None:
    """The model is finite, its squared distance is not; result.json has null there."""
    words = ["algorithm=fedavg", "dp=none", "algorithm.local_lr=0.1", "rounds=30"]
    words += ["dataset.clients=20", "dataset.dimension=10", "seed=range(2)"]
    code, shown, _ = dpfl("run", "-m", *words)
    assert (code, "not finite" in shown) == (0, True)
    shown = printed("runs", "list")
    assert shown.count("not finite") >= 2
    assert "none (0 of 2 runs)" in shown
    for line in ("list --sort=-distance", "table --metric train_loss"):
        assert "TypeError" not in dpfl("runs", *line.split())[2]


def test_updates_that_were_not_finite_are_told_of(printed) -> None:
    words = ["algorithm=fedavg", "dp=ldp", "algorithm.local_steps=100", *SMALL]
    said = "replaced updates that were not finite by zero"
    out = printed("run", "-m", "algorithm.local_lr=0.001,1e9", "seed=0,1", *words)
    assert f"2 of 4 runs {said}, seen at evaluated rounds (column repaired of metrics.csv)." in out
    assert f"This run {said}" in printed("run", "algorithm.local_lr=1e9", "seed=0", *words)
    assert said not in printed("run", "algorithm.local_lr=0.001", "seed=0", *words)


def test_target_epsilon_calibrates_in_place(printed) -> None:
    for dp in ("ldp", "cdp", "ldp_privunit"):
        out = printed("run", f"dp={dp}", "dp.epsilon=8", *SMALL)
        result = json.loads((Path(out.strip().splitlines()[-1]) / "result.json").read_text())
        assert 8 * (1 - 1e-6) < result["privacy"]["epsilon"] <= 8


def test_help_config_and_quiet(dpfl, printed) -> None:
    out = printed("--help")
    assert all(name in out for name in COMMANDS)
    out = printed("run", "--help")
    assert "fedexp, fedexp_naive" in out
    out = printed("run", "--cfg", "job", "algorithm=fedavg")
    assert "name: fedavg" in out
    for words, runs in ((["--quiet"], 1), (["-m", "dp=ldp,cdp", "--quiet"], 2)):  # anywhere
        code, out, err = dpfl("run", *SMALL, *words)
        assert (code, len(out.splitlines()), err) == (0, runs, "")
    out = printed("doctor")
    assert "composes and validates" in out
    free = float(re.search(r"writable, (.*) GiB free", out)[1])
    assert free == pytest.approx(shutil.disk_usage(outputs_dir()).free / 2**30, abs=1)


@pytest.mark.parametrize("words", [["--info"], ["dp=cdp", "-i", "all"]])
def test_info_may_stand_anywhere(words: list[str], printed) -> None:
    root = logging.getLogger()
    before = root.level, list(root.handlers)
    out = printed("run", *words)
    assert (root.level, root.handlers) == before  # else whatever runs next logs all its debugging
    assert "dp: cdp" in out or words == ["--info"]
    assert "Config" in out


@pytest.mark.parametrize(
    ("place", "wrong", "said", "code"),
    [
        ("class FedMomentumSettings", "raise SystemExit(0)", "SystemExit: 0", 2),
        ("class FedMomentumSettings", "1 +", "SyntaxError: invalid syntax", 2),
        ("        return [ReleaseSpec(", "absent", "NameError (", 2),
        ("        update = bounded", "1 / 0", "ZeroDivisionError (", 3),
        ("        update = bounded", "update.mean", "UnboundLocalError (", 3),
    ],
)
def test_what_a_plugin_does_wrong_is_a_line_with_its_place(
    place: str, wrong: str, said: str, code: int, tmp_path: Path, dpfl
) -> None:
    own, tag = tmp_path / "own.py", f"_{abs(hash((place, wrong)))}"  # a name is taken once
    text = re.sub('"(fedmomentum|twin|twin_regression)"', rf'"\g<1>{tag}"', PLUGIN_TEXT)
    before, after = text.split(place)
    indent = place[: len(place) - len(place.lstrip())]
    own.write_text(f"{before}{indent}{wrong}\n{place}{after}")
    words = ["run", "--plugin", str(own), f"algorithm=fedmomentum{tag}", *SMALL]
    found, _, err = dpfl(*words, "--quiet")
    assert (found, err.count("\n")) == (code, 1)
    assert said in err
    assert f"({own}:{before.count(chr(10)) + 1})" in err


def test_places_that_are_not_there_are_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dpfl
) -> None:
    (tmp_path / "gone").mkdir()
    start = "import os, sys; os.chdir('gone'); os.rmdir('../gone');"
    call = "from dpfl_cli.cli.main import main; sys.exit(main(['run']))"
    done = subprocess.run(
        [sys.executable, "-c", start + call],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    monkeypatch.setenv("DPFL_DATA", "~nobody.at.all")
    code, _, err = dpfl("run", "dataset=mnist")
    assert (code, err) == (2, "dpfl: ~nobody.at.all: no such home; write the whole path\n")


@pytest.mark.parametrize(
    ("name", "text", "words", "says"),
    [
        ("own.py", "raise SystemExit", ["reproduce", "own.py"], "SystemExit"),
        (
            "algorithm/own.yaml",
            "name: &a\n  b: *a",
            ["run", "--config-dir", ".", "algorithm=own"],
            "holds itself",
        ),
        (
            "algorithm/own.yaml",
            f"name: fedavg\nlocal_lr: {'9' * 5000}",
            ["run", "--config-dir", ".", "algorithm=own"],
            "own.yaml: Exceeds the limit (4300 digits)",
        ),
    ],
)
def test_files_of_ones_own_that_cannot_be_read_through_are_one_line(
    name: str,
    text: str,
    words: list[str],
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    refused,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text(text)
    err = refused(*words)
    assert says in err


def test_a_config_that_does_not_begin_with_dpfls_is_one_line(tmp_path: Path) -> None:
    """In a process of its own: Hydra's logging, which such a config has, would end pytest's."""
    (tmp_path / "own.yaml").write_text("rounds: 4\nseed: 5")
    code, said = apart.command(["run", "--config-dir", ".", "--config-name", "own"], tmp_path)
    assert (code, said.count("\n")) == (2, 1)
    assert "defaults: [config, _self_]" in said


def test_calibrating_says_where_the_largest_epsilon_ends_the_run(printed) -> None:
    words = ["dp=cdp", "dp.epsilon=3", "dp.max_epsilon=1", "rounds=20", *SMALL[:2]]
    out = printed("calibrate", *words)
    assert re.search(r"the run ends before round \d+ of 20, .* above dp.max_epsilon=1;", out)
    assert "None" not in out
    assert not re.search(r"\.\d{9}", out)


def test_paper_mode_says_which_bounds_were_not_proved(dpfl, printed) -> None:
    """Found out as releases are made: no plan knows it."""
    words = ["run", "dataset=synthetic_alpha_beta", "dataset.clients=3", "model=softmax"]
    words += ["algorithm=fednew_record", "dp=record", "rounds=1", "model.solver=cholesky"]
    words += ["model.solver_precision=float32"]
    assert "its bound is claimed, not proved" in dpfl(*words)[2]
    out = printed(*words, "dp.mode=paper")
    assert "as claimed, not proved: damped solve of clipped records" in " ".join(out.split())


def test_paper_mode_says_of_each_run_of_a_stack_what_was_not_proved_in_it(dpfl) -> None:
    words = ["run", "dataset=synthetic_alpha_beta", "dataset.clients=3", "model=softmax"]
    words += ["algorithm=fednew_record", "dp=record", "dp.mode=paper", "rounds=1"]
    words += ["model.solver_precision=float32", "algorithm.penalty=0"]
    assert dpfl(*words, "-m", "algorithm.damping=1.0,0.05")[0] == 0
    said = {
        run.config["algorithm"]["damping"]: run.result["privacy"]["guarantee"]
        for run in RunStore(outputs_dir()).all()
    }
    assert said[1.0].endswith("local trust: proved")
    assert said[0.05].endswith("whose damping is too small beside curvature_clip_norm")


def test_a_forecast_leaves_out_what_is_built_in_the_first_rounds() -> None:
    timing = {"seconds": 12.0, "compute": {"0": 0.5, "1": 10.0, "4": 11.5}}
    assert _round_seconds({"rounds": 5, "timing": timing}) == pytest.approx((12 - 10) / (5 - 1))
    timing["compute"] = {"0": 0.5, "5": 11.5}
    assert _round_seconds({"rounds": 5, "timing": timing}) == pytest.approx(12 / 5)


@pytest.mark.parametrize("launcher", ["dpfl", "joblib"])
def test_a_dry_run_says_what_there_is_to_do_and_does_nothing(launcher: str, dpfl, printed) -> None:
    """Of three runs, one is finished."""
    assert dpfl("run", "--quiet", *SMALL)[0] == 0
    grid = ["-m", "seed=0,1,2", f"hydra/launcher={launcher}", *SMALL]
    for words in ([*grid, "--dry-run"], ["--dry-run", *grid]):
        code, out, _ = dpfl("run", *words)
        runs, stacks, cost, privacy = out.splitlines()
        assert code == 0
        assert runs == "runs: 3 (finished 1, to do 2)"
        assert stacks.startswith("stacks: 1 (runs in the largest 2); memory: at most ")
        assert "by the times of finished runs like these" in cost
    assert len(RunStore(outputs_dir()).all()) == 1
    code, out, _ = dpfl("run", "--dry-run", "algorithm=scaffold", *SMALL)
    assert "no finished run is like 1 of the runs" in out
    assert dpfl("run", *SMALL)[0] == 0  # not dry any more
    runs, privacy = printed("run", "--dry-run", *SMALL).splitlines()
    assert runs == "runs: 1 (finished 1, to do 0)"
    calibrated = printed("calibrate", *SMALL)
    assert privacy.removeprefix("privacy: fedexp, dp=ldp: ") in calibrated
    grid = ["-m", "dp=ldp,cdp,none", *SMALL]
    ldp, cdp, none = printed("run", "--dry-run", *grid).splitlines()[-3:]
    assert ldp == privacy != cdp
    assert none == "privacy: fedexp, dp=none: nothing is private"
    grid = ["-m", f"rounds={','.join(map(str, range(1, 12)))}", *SMALL[:2]]
    out = printed("run", "--dry-run", *grid)
    assert out.splitlines()[-1].startswith(
        "privacy: of 11 kinds of runs, for the noise that is set; `dpfl calibrate`"
    )
    grid = ["-m", "algorithm.clip_norm=0.1,0.3", *SMALL]  # whose releases cost the same
    assert printed("run", "--dry-run", *grid).splitlines()[-1:] == [privacy]
    assert printed("run", "--dry-run", *grid).count("privacy:") == 1
    bounded = printed("run", "--dry-run", "dp=cdp", "dp.max_epsilon=3", *SMALL)
    assert "dp=cdp: the run ends before round" in bounded


def test_list_names_every_option(printed) -> None:
    out = printed("list")
    for word in (
        "fedexp",
        "ldp_privunit",
        "joint_gaussian",
        "mnist_cnn_small",
        "dirichlet",
        "quick",
    ):
        assert word in out
    out = printed("list", "algorithm", "fedexp")
    for word in (
        "algorithm.clip_norm",
        "arXiv:2504.09850",
        "squared_norm",
        "trust models: central, local, none",
        "C^2",
    ):
        assert word in out


def test_what_is_only_claimed_says_so_wherever_runs_are_compared(
    tmp_path: Path, dpfl, printed
) -> None:
    words = [
        "algorithm=fednew",
        "algorithm.dual=off,paper",
        "dp=secure_aggregation",
        "dp.mode=paper",
        "seed=0,1",
        *SMALL,
    ]
    grid, quiet = (printed("run", "-m", *words, *flags) for flags in ([], ["--quiet"]))
    records = [json.loads((folder / "result.json").read_text()) for folder in folders(quiet)]
    claimed = [
        one
        for one in records
        if one["privacy"]["guarantee"].startswith("as claimed, not proved: algorithm.dual=paper")
    ]
    assert len(claimed) == 2
    proved = [one for one in records if one not in claimed]
    for out in (
        grid,
        printed("runs", "list"),
        printed("runs", "compare", *(one["id"] for one in records)),
    ):
        for one in records:
            line = next(line for line in out.splitlines() if one["id"] in line)
            assert (f"{epsilon_number(one['privacy']['epsilon'])} (claimed)" in line) == (
                one in claimed
            )
        said = " ".join(out.split())
        for one in (claimed[0], proved[0]):
            assert said.count(f"Guarantee of 2 of 4 runs: {one['privacy']['guarantee']}.") == 1
    largest = proved[0]["privacy"]["collusion"][-1]
    line = (
        "Against 6 of 12 colluding clients: epsilon "
        f"{epsilon_number(largest['epsilon'])} in place of "
        f"{epsilon_number(proved[0]['privacy']['epsilon'])}"
    )
    assert grid.count("colluding clients") == grid.count(f"{line}.\n") == 1

    out = printed("account", claimed[0]["id"])
    assert f"{epsilon_number(claimed[0]['privacy']['epsilon'], 6)} (claimed)" in out
    assert "guarantee: as claimed, not proved: algorithm.dual=paper" in out
    assert "colluding" not in out
    out = printed("account", proved[0]["id"])
    assert "(claimed)" not in out
    assert f"gdp: {line}\n" in out
    # which is of the run's own delta
    assert "colluding" not in printed("account", proved[0]["id"], "--delta", "1e-3")
    for delta in ("1e-3", "0.5"):  # of 12 clients: what is said is of this one
        asked = printed("account", proved[0]["id"], "--delta", delta)
        assert ("delta is not below 1/n" in asked) == (delta == "0.5")
    shown = json.loads(printed("runs", "show", claimed[0]["id"]))[0]["result"]["privacy"]
    assert list(shown)[:2] == ["epsilon", "epsilon_remark"]
    assert shown["epsilon_remark"] == "(claimed)"
    assert (
        "epsilon_remark"
        not in json.loads(printed("runs", "show", proved[0]["id"]))[0]["result"]["privacy"]
    )
    exported = list(
        csv.DictReader(io.StringIO(printed("runs", "export", claimed[0]["id"], proved[0]["id"])))
    )
    assert {(row["run"], row["epsilon_remark"]) for row in exported} == {
        (claimed[0]["id"], "(claimed)"),
        (proved[0]["id"], ""),
    }


def test_a_grid_of_many_settings_says_a_few_lines_about_collusion(printed) -> None:
    words = [
        "algorithm=fedavg",
        "dp=secure_aggregation",
        "mechanism.noise_multiplier=2,3,4,5,6,7",
        *SMALL,
    ]
    out = printed("run", "-m", *words)
    assert out.count("Against 6 of 12 colluding clients") == 4
    assert "... and for 2 more settings: dpfl account RUN shows them." in out


def test_account_says_where_the_draw_of_clients_is_not_counted(printed) -> None:
    drawn = ["participation=poisson", "participation.cohort=3"]
    for more, without in (([], set()), (drawn, {"gdp", "joint_gaussian", "wang_rdp", "zcdp"})):
        words = ["algorithm=fedavg", "dp=cdp", *SMALL, *more]
        out = printed("account", printed("run", *words).split()[-1])
        told = {line.split()[0] for line in out.splitlines() if "as if all took part" in line}
        assert told == without
        assert ("  participation: " in printed("calibrate", *words)) is bool(without)


def test_runs_account_and_prune(tmp_path: Path, dpfl, printed, refused) -> None:
    dpfl("run", "-m", "algorithm=fedexp,fedavg", "dp=cdp", *SMALL)
    out = printed("runs", "list", "--where", "algorithm.name=fedexp")
    assert "fedexp" in out
    assert "fedavg" not in out
    code, _, err = dpfl("runs", "list", "--where", "algorithm.name=fedexxp")
    assert code == 2
    assert "no run has fedexxp; did you mean fedexp?" in err
    code, _, err = dpfl("runs", "list", "--where", "algorithm.name=scaffold")
    assert code == 0
    assert err.endswith("match\n")
    store = tmp_path / "outputs" / "runs"
    first, second = sorted(path.name for path in store.iterdir() if not path.name.startswith("."))
    out = printed("account", first, second)
    for name in ("gdp", "rdp", "zcdp", "pld", "joint_gaussian", "pure"):
        assert name in out
    assert re.search(r"release update: 4 x gaussian per \w+, noise multiplier .*, sensitivity", out)
    assert "covered: a choice among" not in out
    out = printed("runs", "compare", first, second)
    assert "fedavg" in out
    plot = Path(out.strip().splitlines()[-1])
    assert plot.read_bytes().startswith(b"\x89PNG")
    out = printed("runs", "export", first)
    columns = {"run", "status", "epsilon", "epsilon_remark", "epsilon_target", "delta", "unit"}
    assert columns < set(out.splitlines()[0].split(","))
    assert len(out.splitlines()) == 6
    code, out, _ = dpfl("runs", "show", first)
    assert json.loads(out)[0]["result"]["id"] == first
    assert dpfl("runs", "prune")[0] == 2
    assert printed("runs", "prune", first, first[:9]).count("would delete") == 1
    assert (store / first).exists()
    code, out, _ = dpfl("runs", "prune", first, "--yes")
    assert not (store / first).exists()
    assert (store / second).exists()
    err = refused("runs", "list", "--where", "algorithm.nam=fedexp")
    assert "did you mean algorithm.name?" in err


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["runs", "list"], 2),
        (["run", *SMALL], 2),
        (["doctor"], 2),
        (["reproduce", "--list"], 0),
    ],
)
def test_outputs_are_in_a_folder(words: list[str], expected: int, tmp_path: Path, dpfl) -> None:
    (tmp_path / "outputs").touch()
    code, out, err = dpfl(*words)
    assert (code, len(err.splitlines()) <= 1) == (expected, True)
    assert ("cannot be written, for it is a file" in out + err) == (code == 2)
    assert ("minutes on two cores\n" in out) == ("\nfedexp/table4 " in out) == (code == 0)


def test_what_is_published_is_held_against_what_is_declared(dpfl, tmp_path: Path) -> None:
    published = Path(__file__).parents[2] / "outputs" / "published" / "fedexp" / "table1"
    shutil.copytree(published, tmp_path / "fedexp" / "table1")
    (tmp_path / INDEX).write_text(index_md(tmp_path))
    words = ["reproduce", "fedexp/table1", "fedexp/fig1", "--check-published", str(tmp_path)]
    code, out, err = dpfl(*words)
    assert (code, err, "verdicts checked, 0 disagreements" in out) == (0, "", True)
    assert out.endswith("\nnot published yet: fedexp/fig1\n")
    claims = tmp_path / "fedexp" / "table1" / "quick" / "claims.json"
    claims.write_text(claims.read_text().replace('"finding": "holds"', '"finding": "fails"', 1))
    code, out, err = dpfl(*words)
    assert (code, f", {err.count('dpfl: ')} disagreements" in out) == (3, True)
    assert "fedexp/table1" in err


@pytest.mark.usefixtures("own_components")
def test_a_users_own_file(dpfl, printed, refused) -> None:
    """The README's plugin: an algorithm, a model and a data set from a file, without a fork."""
    own = ["--plugin", PLUGIN, "algorithm=fedmomentum"]
    words = ["dataset=twin", "model=twin_regression", "dp=ldp,none", "rounds=3"]
    code, out, err = dpfl("run", "-m", *own, "algorithm.momentum=0.0,0.3", *words, "--quiet")
    assert code == 0, err
    first, *others = folders(out)
    assert len(others) == 3
    # the file's content is part of the identity
    assert re.search(r"revision: 1\+[0-9a-f]{12}", (first / "config.yaml").read_text())
    assert "DP-FedAvg with server momentum" in printed("list", "--plugin", PLUGIN)
    err = refused("run", *own, "algorithm.momentum=2")
    assert "algorithm.momentum=2" in err


@pytest.mark.parametrize(
    ("command", "current", "offered", "not_offered"),
    [
        ("run", "algorithm=", {"algorithm=fedexp"}, set()),
        ("run", "algo", {"algorithm.clip_norm="}, set()),
        ("reproduce", "fed", {"fedexp/table4"}, set()),
        ("calculate", "", {"scaffnew", "--psi0", "dataset=", "model.condition="}, set()),
        ("calculate", "--", {"--mu", "--relation"}, set()),
        ("runs list", "--", {"--where", "--sort", "--all"}, {"--yes", "--metric"}),
        ("runs prune", "--", {"--unfinished", "--yes"}, {"--sort"}),
        ("runs list", "list", {"list", "prune"}, {"--where"}),  # the action itself
        ("data features", "dataset=", {"dataset=mnist_features"}, set()),
        ("reproduce fedexp/table1", "--", {"--force", "--at-most", "--debug"}, {"all"}),
        ("reproduce fedexp/table1", "scale=", {"scale=smoke", "scale=paper"}, {"--force"}),
    ],
)
def test_completion_offers_what_a_word_can_become(
    command: str, current: str, offered: set[str], not_offered: set[str], printed
) -> None:
    found = set(printed("completion", "--words", command, f" {current}").split())
    assert offered <= found
    assert not not_offered & found


def test_completion_is_a_script_for_a_shell(printed) -> None:
    script = printed("completion")
    assert "complete -o default -F" in script  # or names of files
    assert printed("completion", "bash") == script
    assert "compdef _dpfl dpfl" in printed("completion", "zsh")


LONG = ["dataset.clients=200", "dataset.dimension=50", "rounds=1000000", "evaluation.every=1000"]
HOURS = ["rounds=2", "algorithm.local_steps=1000000000", "dp=none"]  # a round is one compiled call


@pytest.mark.parametrize(
    ("words", "began", "signals"),
    [
        (LONG, "*/checkpoint.pt", [signal.SIGINT]),
        (LONG, "*/checkpoint.pt", [signal.SIGTERM]),
        (HOURS, "*.lock", [signal.SIGINT] * 2),  # nothing else interrupts it
    ],
    ids=["interrupt", "terminate", "second interrupt"],
)
def test_interrupting_a_process_exits_130_and_loses_nothing(
    tmp_path: Path, words: list[str], began: str, signals: list[signal.Signals]
) -> None:
    words = ["run", *words, "runtime.checkpoint_every=1"]
    child = apart.started(apart.COMMAND.format(words), tmp_path)
    unfinished, deadline = tmp_path / "outputs" / "runs" / ".partial", time.monotonic() + 120
    while not (found := list(unfinished.glob(began))):
        assert child.exitcode is None, apart.said(tmp_path)
        assert time.monotonic() < deadline
        time.sleep(0.02)
    before = found[0].stat().st_ino
    assert child.pid is not None
    for number in signals:
        time.sleep(len(signals) - 1)  # the one call has begun, or has not yet: both end
        os.kill(child.pid, number)
    child.join(60)
    assert child.exitcode == 130
    assert "goes on from the last checkpoint" in apart.said(tmp_path)
    if words[1:-1] == LONG:  # written anew: what was computed since the last one is not lost
        assert found[0].stat().st_ino != before


@pytest.mark.parametrize(
    ("raised", "code"),
    [
        (ConfigError("no"), 2),
        (StoreError("no"), 2),
        (KeyboardInterrupt(), 130),
        (PermissionError(13, "Permission denied", "outputs"), 2),
        (ZeroDivisionError("no"), 1),
    ],
)
def test_debug_shows_the_traceback_and_keeps_the_exit_code(
    raised: BaseException, code: int, monkeypatch: pytest.MonkeyPatch, dpfl
) -> None:
    def fail(*_: object) -> int:
        raise raised

    monkeypatch.setattr("dpfl_cli.cli.doctor.execute", fail)
    seen, _, err = dpfl("doctor")
    assert seen == code
    assert len(err.strip().splitlines()) == 1
    assert "Traceback" not in err
    seen, _, err = dpfl("doctor", "--debug")
    assert seen == code
    assert "Traceback" in err
    assert "in fail" in err


@pytest.mark.parametrize("action", ["export", "compare"])
def test_output_files_of_runs(action: str, tmp_path: Path, dpfl, printed, refused) -> None:
    assert dpfl("run", *SMALL)[0] == 0
    target = tmp_path / "new" / "folder" / ("x.csv" if action == "export" else "x.png")
    out = printed("runs", action, "--output", str(target))
    assert out.strip().splitlines()[-1] == str(target)
    assert target.stat().st_size > 0
    (tmp_path / "file").write_text("")
    for wrong in (tmp_path / "file" / target.name, tmp_path / "new"):
        err = refused("runs", action, "--output", str(wrong))
        assert f"{wrong}: cannot be" in err
    link = tmp_path / f"null{target.suffix}"
    link.symlink_to(os.devnull)
    assert dpfl("runs", action, "--output", str(link))[0] == 0
    assert Path(os.devnull).is_char_device()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("result.json", '{"schema_version": 2, "id'),
        ("result.json", "[]"),
        ("result.json", '{"schema_version": 1}'),
        ("metrics.csv", "\xff"),
        ("ledger.json", "[]"),
    ],
)
def test_a_damaged_run_is_named_and_left_out(
    name: str, content: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dpfl
) -> None:
    monkeypatch.setattr(  # what is drawn is seen by others
        "matplotlib.figure.Figure.savefig", lambda figure, buffer, **_: buffer.write(b"x")
    )
    assert dpfl("run", "-m", "seed=0,1", *SMALL)[0] == 0
    folders = sorted(
        path for path in (tmp_path / "outputs" / "runs").iterdir() if not path.name.startswith(".")
    )
    damaged, whole = folders
    (damaged / name).write_text(content)
    if name == "metrics.csv":  # of the others, tables are made all the same
        code, _, err = dpfl("runs", "table", "--rows", "algorithm", "--cols", "dp")
        assert (code, err.count(str(damaged / name))) == (0, 1)
    readers = {"metrics.csv": ["export", "compare"], "ledger.json": ["show"]}
    for words in readers.get(name, ["export", "compare", "show", "list"]):
        code, out, err = dpfl("runs", words)
        assert code == 0
        assert whole.name in out
        (line,) = (line for line in err.splitlines() if damaged.name in line)
        assert str(damaged / name) in line
    code, out, err = dpfl("runs", "verify")
    assert code == 3
    assert f"damaged: {damaged / name}: " in err
    assert "1 of 2 runs are whole" in out
    if name != "metrics.csv":
        code, _, err = dpfl("account", damaged.name)
        assert code == 2
        assert len(err.strip().splitlines()) == 1
    code, _, err = dpfl("run", "-m", "seed=0,1", *SMALL)
    assert code == 0
    assert f"run again: {damaged / name}: " in err
    assert dpfl("runs", "verify")[0] == 0
    (damaged / name).write_text(content)
    assert dpfl("runs", "prune", damaged.name, "--yes")[0] == 0
    assert not damaged.exists()
    damaged.symlink_to("nowhere")
    code, out, err = dpfl("runs", "list")
    assert code == 0
    assert f"damaged: {damaged}" in err
    assert whole.name in out
    assert dpfl("runs", "prune", damaged.name, "--yes")[0] == 0
    assert not damaged.is_symlink()


def test_a_reader_that_leaves_is_no_error(dpfl) -> None:
    assert dpfl("run", "-m", "seed=range(60)", "--quiet", *SMALL)[0] == 0
    call = "from dpfl_cli.cli.main import main; import sys; sys.exit(main(['runs', 'list']))"
    environment = {**os.environ, "COLUMNS": "4000"}  # more than a pipe holds
    with subprocess.Popen(
        [sys.executable, "-c", call],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as lister:
        assert lister.stdout is not None
        assert lister.stderr is not None
        lister.stdout.close()
        assert (lister.stderr.read(), lister.wait()) == ("", 0)


def test_prune_of_what_is_unfinished_takes_nothing_else(
    tmp_path: Path, dpfl, printed, refused
) -> None:
    store = RunStore(outputs_dir())
    store.write_checkpoint("0" * 12, b"")
    assert "and 1 interrupted" in dpfl("runs", "list")[2]
    assert dpfl("run", "--quiet", *SMALL)[0] == 0
    (record,) = store.all()
    store.write_checkpoint(record.id, b"of a forced rerun")
    (store.partial / "workers-abc").mkdir()
    assert "and 1 interrupted or being run, as 000000000000" in printed("runs", "list")
    assert dpfl("runs", "prune", "--unfinished", "--yes")[0] == 0
    assert "interrupted" not in printed("runs", "list")
    assert [path.name for path in store.partial.iterdir()] == ["workers-abc"]
    assert store.find(record.id)
    outside = tmp_path / "outside"
    store.partial.rename(outside)
    (outside / ("1" * 12)).mkdir()
    store.partial.symlink_to(outside)
    err = refused("runs", "prune", "--unfinished", "--yes")
    assert "a link" in err
    assert (outside / ("1" * 12)).exists()


def test_a_copy_of_a_store_without_hidden_files_can_be_pruned(dpfl, printed) -> None:
    (folder,) = folders(printed("run", *SMALL))
    shutil.rmtree(folder.parent / ".partial")
    code, out, _ = dpfl("runs", "prune", folder.name, "--yes")
    assert (code, out) == (0, f"deleted {folder.name}\n")


@pytest.mark.parametrize("one", ["3", "null"])
def test_a_manifest_whose_ids_are_no_text_is_one_line(one: str, tmp_path: Path, refused) -> None:
    manifest = tmp_path / "manifest.json"
    manifest.write_text(f'{{"runs": [{{"id": {one}}}]}}')
    err = refused("runs", "list", str(manifest))
    assert "no artifact's manifest.json" in err


def test_an_archive_is_taken_by_another_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dpfl, printed, refused
) -> None:
    folder = folders(printed("run", *SMALL))[0]
    file = str(tmp_path / "new" / "runs.tar.xz")
    assert dpfl("runs", "export", "--archive", file)[0] == 0
    monkeypatch.setenv("DPFL_OUTPUTS", str(tmp_path / "elsewhere"))
    assert len(printed("runs", "export", str(folder)).splitlines()) == 6  # not here yet
    monkeypatch.setattr(Progress, "LINE_EVERY", 0.0)
    for became in ("taken", "here already"):
        code, out, err = dpfl("runs", "import", file)
        assert (code, out) == (0, f"{file}: 1 {became}\n")
        assert err.startswith("runs.tar.xz: 1/1")
    table = ["runs", "table", "--rows", "algorithm", "--cols", "dp", "--csv"]
    assert ",,1,1," in printed(*table, str(folder), folder.name)  # a seed, and no spread
    twice = printed(*table, "--rows", "seed")
    assert twice == printed(*table[:3], "algorithm,seed", *table[4:])
    err = refused("runs", "prune", str(folder), "--yes")
    assert "of another store; prune deletes nothing outside" in err
    assert "finished before" in printed("run", *SMALL)
    err = refused("runs", "import", str(folder / "metrics.csv"))
    assert "not an archive" in err


def test_an_archive_of_a_store_leaves_damaged_runs_out_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dpfl, printed
) -> None:
    out = printed("run", "-m", "seed=0,1,2", "--quiet", *SMALL)
    damaged, *whole = map(Path, out.splitlines())
    (damaged / "ledger.json").write_text("[]")
    file = tmp_path / "runs.tar.xz"
    code, out, err = dpfl("runs", "export", "--archive", str(file))
    assert (code, out) == (3, f"2 runs in {file}\n")
    assert err.startswith(f"dpfl: damaged: {damaged / 'ledger.json'}: was changed")
    assert len(err.splitlines()) == 1
    none = tmp_path / "none.tar.xz"
    for expected, *words in ((2, damaged.name), (3, "--where", "seed=0")):
        assert dpfl("runs", "export", *words, "--archive", str(none))[0] == expected
    assert not none.exists()
    monkeypatch.setenv("DPFL_OUTPUTS", str(tmp_path / "elsewhere"))
    code, out, _ = dpfl("runs", "import", str(file))
    assert (code, out) == (0, f"{file}: 2 taken\n")
    for run in whole:
        assert (tmp_path / "elsewhere" / "runs" / run.name / "result.json").exists()


def test_an_archive_says_how_many_failed_runs_it_leaves_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dpfl, printed
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("dpfl_cli.algorithms.fedavg.FedAvg.round", lambda *_: 1 / 0)
        assert dpfl("run", *SMALL, "algorithm=fedavg")[0] == 3
    assert dpfl("run", *SMALL, "algorithm=fedavg", "seed=1")[0] == 0
    # a metric that the failed one came to no round of
    assert dpfl("runs", "compare", "--metric", "clipped_fraction")[0] == 0
    file = tmp_path / "runs.tar.xz"
    code, out, _ = dpfl("runs", "export", "--archive", str(file))
    assert (code, out) == (0, f"left out, as they failed: 1\n1 runs in {file}\n")
    assert "interrupted" not in printed("runs", "list")


def test_an_import_names_the_runs_that_differ(monkeypatch: pytest.MonkeyPatch, dpfl) -> None:
    became = [("0" * 12, DIFFERS), ("1" * 12, TAKEN), ("2" * 12, TAKEN)]
    monkeypatch.setattr("dpfl_cli.cli.runs.take", lambda file, store: became)
    code, out, _ = dpfl("runs", "import", "runs.tar.xz")
    assert (code, out) == (3, "runs.tar.xz: 1 differs, 2 taken\n000000000000 differs\n")


def test_a_run_imports_nothing_slow_that_it_does_not_use() -> None:
    """Nor does a plan of a network, where layers that draw on no device import a compiler."""
    slow = "'pandas', 'matplotlib', 'sklearn', 'nibabel', 'dp_accounting', 'scipy.stats'"
    code = (
        "import sys; from dpfl_cli.cli.main import main; main(sys.argv[1:]);"
        "from dpfl_cli.config.compose import compose_config;"
        "from dpfl_cli.simulation.plan import make_plan;"
        "make_plan(compose_config(['dataset=reddit_synth', 'model=lstm2', 'dp=none']));"
        f"print({{{slow}, 'torch._dynamo'}} & set(sys.modules))"
    )
    words = [sys.executable, "-c", code, "run", *SMALL, "dp=cdp"]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "set()"


def test_looking_imports_nothing_slow(dpfl) -> None:
    """Commands that only look answer at once."""
    assert dpfl("run", *SMALL)[0] == 0
    code = (
        "import sys; from dpfl_cli.cli.main import main; main(sys.argv[1:]);"
        "print({'torch', 'pandas'} & set(sys.modules), file=sys.stderr)"
    )
    for words in (
        ["runs", "list"],
        ["list"],
        ["completion", "--words", "run", "algo"],
        ["--help"],
    ):
        done = subprocess.run(
            [sys.executable, "-c", code, *words], capture_output=True, text=True, check=True
        )
        assert done.stderr.strip() == "set()", words


@pytest.mark.parametrize("width", [30, 60, 80, 200])
def test_tables_cut_nothing_on_narrow_terminals(
    width: int, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich takes standard output for a terminal
    monkeypatch.setenv("COLUMNS", str(width))
    row = ("joint_gaussian", "24.716078", "use accountant=gdp, joint_gaussian", "0.9499 ± 0.065")
    print_table(("accountant", "epsilon", "remark", "with a name of many words"), [row], "prices")
    text = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out)
    assert max(map(len, text.splitlines())) <= width
    for word in " ".join(["accountant epsilon remark prices", *row]).split():
        assert word in text


@pytest.mark.parametrize("runs", [1, 12])
def test_tables_keep_a_run_on_a_line_at_80_columns(runs: int) -> None:
    results: Any = [
        SimpleNamespace(
            config={
                "algorithm": {"name": "fedexp"},
                "dp": {"name": "ldp_privunit"},
                "dataset": {"name": "fashion_mnist"},
            },
            result={
                "id": f"{number:012x}",
                "seed": number,
                "status": "done",
                "files": {},
                "metrics": {"last": {"accuracy": 71.25, "train_loss": 0.5, "test_loss": 0.5}},
                "data": {"source": "standin"},
                "privacy": {
                    "epsilon": 300.0 + number,
                    "vacuous": True,
                    "delta": 1e-5,
                    "trust": "local",
                    "unit": "client",
                    "relation": "replace_one",
                    "accountant": "pure",
                    "releases": 50,
                    "guarantee": "proved",
                },
            },
        )
        for number in range(runs)
    ]
    narrow, wide = (
        Console(width=width, file=io.StringIO(), highlight=False) for width in (80, 200)
    )
    for console in (narrow, wide):
        print_results(console, results)
        text = console.file.getvalue()
        for number in range(runs):
            (line,) = (line for line in text.splitlines() if f"{number:012x}" in line)
            assert f"{300 + number}.0000 (vacuous)" in line
            assert "71.25" in line
        for said in (
            "fedexp",
            "ldp_privunit",
            "fashion_mnist (stand-in)",
            "1e-05",
            "tuning not included",
        ):
            assert said in text
        assert max(map(len, text.splitlines())) <= console.width


def ids(plugins: Sequence[str] = ()) -> list[str]:
    """The ids of a run of a built-in and of one of the plugin's own algorithm."""
    load_plugins(plugins)
    return [make_plan(compose_config(words)).id for words in (BUILT_IN_WORDS, OWN_WORDS)]


OWN = """
from dpfl_cli.algorithms.fedavg import FedAvg, FedAvgSettings
from dpfl_cli.config.component import component
@component("algorithm", "own", revision=1, settings=FedAvgSettings)
class Own(FedAvg):
    'FedAvg under a name of its own.'
    proved = FedAvg.proved
"""
EDITED = """
from dpfl_cli.algorithms.fedavg import FedAvg, FedAvgSettings
from dpfl_cli.config.component import component
class More(FedAvgSettings):
    more: int = 3
@component("algorithm", "own", revision=1, settings=More)
class Own(FedAvg):
    'FedAvg under a name of its own.'
    proved = FedAvg.proved
"""
OWN_WORDS = [
    "algorithm=own",
    "algorithm.local_steps=2",
    "algorithm.local_lr=0.1",
    "algorithm.clip_norm=1.0",
    *SMALL,
]
BUILT_IN_WORDS = ["algorithm=fedavg", *SMALL]


@pytest.mark.usefixtures("own_components")
def test_a_plugin_file_changes_the_ids_of_its_own_runs_only(tmp_path: Path) -> None:
    known, plugin = make_plan(compose_config(BUILT_IN_WORDS)).id, tmp_path / "own.py"
    plugin.write_text(OWN)
    built_in, own = ids([str(plugin)])
    assert built_in == known
    # edited while Python runs, as in a notebook: it has other defaults from then on
    plugin.write_text(EDITED)
    still, changed = ids([str(plugin)])
    assert still == built_in
    assert changed != own
    assert compose_config(OWN_WORDS)["algorithm"]["more"] == 3


@pytest.mark.usefixtures("own_components")
@pytest.mark.parametrize(
    ("module", "edited"),
    [("own_methods", "own_methods.py"), ("own_package", "own_package/method.py")],
)
def test_a_plugin_package_changes_the_ids_of_its_own_runs_only(
    module: str, edited: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = make_plan(compose_config(BUILT_IN_WORDS)).id
    info = tmp_path / "own-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: own\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[dpfl.plugins]\nown = {module}\n")
    source = tmp_path / edited
    source.parent.mkdir(exist_ok=True)
    source.write_text(OWN)
    if source.parent != tmp_path:
        (source.parent / "__init__.py").write_text("from . import method\n")
    monkeypatch.syspath_prepend(tmp_path)
    built_in, own = ids()
    assert built_in == known
    for name in [one for one in sys.modules if one.partition(".")[0] == module]:
        del sys.modules[name]  # as in the next process
    source.write_text(EDITED)
    still, changed = ids()
    assert still == built_in
    assert changed != own


LACKING = """
from dpfl_cli.algorithms.api import LocalSettings, algorithm
from dpfl_cli.config.component import Settings, component
from dpfl_cli.models.network import Network
{code}
"""
METHOD = '@algorithm("own", revision=1, paper="", unit="client")\nclass Own:\n    '


@pytest.mark.usefixtures("own_components")
@pytest.mark.parametrize(
    ("code", "words", "says"),
    [
        (METHOD + "hyper: LocalSettings", [], "class Own lacks releases, init, round"),
        (METHOD + "pass", [], "class Own lacks its settings"),
        (METHOD + "hyper: int", [], "class Own lacks its settings"),
        (
            METHOD + "hyper: LocalSettings\n    releases = staticmethod(lambda settings, run: [])"
            "\n    init = lambda self, objective, streams: 0\n    round = lambda self, state: 0",
            [],
            "algorithm=own: round must take (self, state, at): too many positional arguments",
        ),
        (
            METHOD.replace('"own"', "5") + "hyper: LocalSettings",
            [],
            "5, revision 1: a name is a text",
        ),
        (METHOD.replace("=1", "='x'") + "hyper: LocalSettings", [], "'x': a name is a text"),
        ("class Own: pass", [], "own.py: registers nothing; put @component over a class"),
        (
            METHOD.replace("unit", 'trusts=["none", "locl"], unit') + "pass",
            [],
            "algorithm=own: trusts: locl: did you mean local?",
        ),
        (
            METHOD.replace("unit", 'trusts=("none"), unit') + "pass",
            [],
            "algorithm=own: trusts='none': write a list of names",
        ),
        (
            METHOD.replace("unit", 'trusts=["none"], proved=["central"], unit') + "pass",
            [],
            "algorithm=own: proved: central: choose from: none",
        ),
        (
            METHOD.replace('"client"', '"clients"') + "pass",
            [],
            "algorithm=own: unit: clients: did you mean client?",
        ),
        (
            '@component("model", "own", revision=1, settings=Settings)\nclass Own(Network): pass',
            [],
            "class Own lacks network",
        ),
        (
            '@component("dataset", "own", revision=1, settings=Settings)\nclass Own:\n'
            "    def info(settings): return None\n    def load(settings, seed): return None",
            ["dataset=own"],
            "AttributeError (",
        ),
    ],
)
def test_a_plugin_that_lacks_a_part_is_told_which(
    tmp_path: Path, code: str, words: list[str], says: str, dpfl
) -> None:
    plugin = tmp_path / "own.py"
    plugin.write_text(LACKING.format(code=code))
    found, _, err = dpfl("run", "--plugin", str(plugin), *words, "rounds=1")
    assert found == 2
    assert says in err
    assert "own" in err
    assert len(err.splitlines()) == 1
