"""`dpfl run` and its neighbours as a user calls them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from dpfl_cli.cli.main import COMMANDS, main

SMALL = ["dataset.clients=12", "dataset.dimension=5", "rounds=4"]
PLUGIN = str(Path(__file__).with_name("my_method.py"))


def dpfl(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main(list(words))
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_one_run_prints_its_folder_last(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, out, _ = dpfl(capsys, "run", "algorithm=fedexp", "dp=ldp", *SMALL)
    assert code == 0
    folder = Path(out.strip().splitlines()[-1])
    assert re.fullmatch("[0-9a-f]{12}", folder.name)
    assert {path.name for path in folder.iterdir()} == {
        "config.yaml",
        "metrics.csv",
        "ledger.json",
        "partition.npz",
        "result.json",
    }
    result = json.loads((folder / "result.json").read_text())
    assert result["status"] == "done"
    assert result["schema_version"] == 1
    privacy = result["privacy"]
    assert {"epsilon", "delta", "accountant", "unit", "relation", "releases", "guarantee", "vacuous", "not_covered"} <= set(
        privacy
    )
    assert privacy["epsilon_paper"]["value"] == pytest.approx(15.658124, abs=1e-6)
    assert "epsilon" in out
    assert "tuning not included" in out
    ledger = json.loads((folder / "ledger.json").read_text())
    assert [(entry["name"], entry["count"], entry["event"]) for entry in ledger] == [("update", 4, "GaussianDpEvent")]
    assert ledger[0]["sensitivity"] == pytest.approx(0.6)

    code, out, _ = dpfl(capsys, "run", "algorithm=fedexp", "dp=ldp", *SMALL)
    assert code == 0
    assert "not run again" in out
    assert "runtime.force=true" in out
    assert not (tmp_path / "hydra").exists()


def test_a_grid_is_a_product(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("-m", "algorithm=fedexp,fedavg", "dp=ldp,ldp_privunit,cdp", "seed=range(2)", *SMALL)
    code, out, _ = dpfl(capsys, "run", *words)
    assert code == 0
    folders = [line for line in out.splitlines() if re.search("/[0-9a-f]{12}$", line)]
    assert len(set(folders)) == 12
    root = Path(folders[0]).parent
    assert {path.name for path in root.iterdir()} == {Path(folder).name for folder in folders} | {".partial"}
    assert not Path("multirun").exists()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["run", "algorithm=fedxp"], "algorithm=fedxp: did you mean fedexp?"),
        (["run", "-m", "algorithm=fedexp,fedxp"], "algorithm=fedxp: did you mean fedexp?"),
        (["run", "-m", "algorithm=fedexp,fedavg", "algorithm.clip_norm=-1,1"], "algorithm.clip_norm=-1"),
        (["run", "-m", "dp=cdp,ldp", "mechanism=privunit"], "write mechanism=central_gaussian"),
        (["runn"], "runn: no such command; did you mean run?"),
        (["run", "algorithm.clipnorm=1"], "did you mean clip_norm?"),
        (["run", "rounds=(1"], "not an override"),
        (["run", "--no-such-flag"], ""),
        (["list", "algoritm"], "did you mean algorithm?"),
        (["list", "algorithm", "fedxp"], "did you mean fedexp?"),
        (["account", "ffff"], "no run"),
        (["calibrate", "dp=ldp"], "no target"),
        (["calibrate", "dp=none", "dp.epsilon=1"], "adds no noise"),
        (["reproduce", "fedexp/tabel4"], "did you mean fedexp"),
        (["data", "fetch", "minst"], "did you mean mnist?"),
        (["run", "--plugin", "no_such_file.py"], "cannot be read"),
        (["run", "partitioner=iid", "partitioner.clients=0"], "partitioner.clients=0"),
        (["run", "partitioner=iid", "partitioner.clients=5000"], "5000"),
        (["run", "dataset=mnist", "partitioner.alpha=0"], "partitioner.alpha=0"),
    ],
)
def test_wrong_use_is_one_line_and_runs_nothing(
    words: list[str], expected: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    code, out, err = dpfl(capsys, *words)
    assert code == 2
    if expected:
        assert len(err.strip().splitlines()) == 1, err
        assert expected in err
    assert "Traceback" not in out + err
    assert not list((tmp_path / "outputs").glob("runs/*"))


def test_an_unwritable_outputs_folder_is_one_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocker = tmp_path / "file"
    blocker.write_text("")
    monkeypatch.setenv("DPFL_OUTPUTS", str(blocker))
    code, _, err = dpfl(capsys, "run", *SMALL)
    assert code == 2
    assert "cannot be written" in err
    assert len(err.strip().splitlines()) == 1


def test_absent_data_is_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DPFL_DATA", str(tmp_path / "nothing"))
    monkeypatch.setenv("DPFL_CACHE", str(tmp_path / "cache"))
    code, _, err = dpfl(capsys, "run", "dataset=mnist")
    assert code == 2
    assert "dpfl data fetch mnist" in err
    assert len(err.strip().splitlines()) == 1


def test_a_truncated_data_file_is_named(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "data" / "mnist"
    folder.mkdir(parents=True)
    for name in ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"):
        (folder / name).write_bytes(b"\x00\x00\x08\x03\x00\x00")
    monkeypatch.setenv("DPFL_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("DPFL_CACHE", str(tmp_path / "cache"))
    code, _, err = dpfl(capsys, "run", "dataset=mnist")
    assert code == 2
    assert "-ubyte" in err
    assert len(err.strip().splitlines()) == 1


def test_divergence_exits_3_and_is_recorded(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("-m", "algorithm=fedavg", "dp=none", "algorithm.local_lr=0.001,1e9", "dataset.clients=12", "rounds=40")
    code, out, err = dpfl(capsys, "run", *words)
    assert code == 3
    assert "1 of 2 runs failed or diverged" in err
    assert "not finite" in err
    assert "done" in out


def test_target_epsilon_calibrates_in_place(capsys: pytest.CaptureFixture[str]) -> None:
    for dp in ("ldp", "cdp", "ldp_privunit"):
        code, out, _ = dpfl(capsys, "run", f"dp={dp}", "dp.epsilon=8", *SMALL)
        assert code == 0
        result = json.loads((Path(out.strip().splitlines()[-1]) / "result.json").read_text())
        assert 8 * (1 - 1e-6) < result["privacy"]["epsilon"] <= 8


def test_help_config_and_quiet(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = dpfl(capsys, "--help")
    assert code == 0
    assert all(name in out for name in COMMANDS)
    code, out, _ = dpfl(capsys, "run", "--help")
    assert code == 0
    assert "fedexp, fedexp_naive" in out
    code, out, _ = dpfl(capsys, "run", "--cfg", "job", "algorithm=fedavg")
    assert code == 0
    assert "name: fedavg" in out
    code, out, err = dpfl(capsys, "run", "--quiet", *SMALL)
    assert code == 0
    assert len(out.strip().splitlines()) == 1
    assert err == ""


def test_flags_may_stand_anywhere(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = dpfl(capsys, "run", *SMALL, "-m", "dp=ldp,cdp", "--quiet")
    assert code == 0
    assert len(out.strip().splitlines()) == 2


def test_list_names_every_option(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = dpfl(capsys, "list")
    assert code == 0
    for word in ("fedexp", "ldp_privunit", "joint_gaussian", "mnist_cnn_small", "dirichlet", "quick"):
        assert word in out
    code, out, _ = dpfl(capsys, "list", "algorithm", "fedexp")
    assert code == 0
    for word in ("algorithm.clip_norm", "arXiv:2504.09850", "squared_norm", "trust models: central, local, none", "C^2"):
        assert word in out


def test_runs_account_and_prune(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    dpfl(capsys, "run", "-m", "algorithm=fedexp,fedavg", "dp=cdp", *SMALL)
    code, out, _ = dpfl(capsys, "runs", "list", "--where", "algorithm.name=fedexp")
    assert code == 0
    assert "fedexp" in out
    assert "fedavg" not in out
    store = tmp_path / "outputs" / "runs"
    first, second = sorted(path.name for path in store.iterdir() if not path.name.startswith("."))
    code, out, _ = dpfl(capsys, "account", first, second)
    assert code == 0
    for name in ("gdp", "rdp", "zcdp", "pld", "joint_gaussian", "pure"):
        assert name in out
    code, out, _ = dpfl(capsys, "runs", "compare", first, second)
    assert code == 0
    assert "algorithm.name" in out
    plot = Path(out.strip().splitlines()[-1])
    assert plot.read_bytes().startswith(b"\x89PNG")
    code, out, _ = dpfl(capsys, "runs", "export", first)
    assert code == 0
    assert out.splitlines()[0].startswith("run,status,epsilon,delta")
    assert len(out.splitlines()) == 6
    code, out, _ = dpfl(capsys, "runs", "show", first)
    assert json.loads(out)[0]["result"]["id"] == first
    assert dpfl(capsys, "runs", "prune")[0] == 2
    code, out, _ = dpfl(capsys, "runs", "prune", first)
    assert "would delete" in out
    assert (store / first).exists()
    code, out, _ = dpfl(capsys, "runs", "prune", first, "--yes")
    assert not (store / first).exists()
    assert (store / second).exists()
    code, _, err = dpfl(capsys, "runs", "list", "--where", "algorithm.nam=fedexp")
    assert code == 2
    assert "did you mean algorithm.name?" in err


def test_a_users_own_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The README's plugin: an algorithm, a model and a data set from a file, without a fork."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    words = [
        "run",
        "-m",
        "--plugin",
        PLUGIN,
        "algorithm=fedmomentum",
        "algorithm.momentum=0.0,0.3",
        "dataset=twin",
        "model=twin_regression",
        "dp=ldp,none",
        "rounds=3",
    ]
    done = subprocess.run(
        [sys.executable, "-m", "dpfl_cli.cli.main", *words], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    folders = [Path(line) for line in done.stdout.splitlines() if re.search("/[0-9a-f]{12}$", line)]
    assert len(folders) == 4
    config = (folders[0] / "config.yaml").read_text()
    assert re.search(r"revision: 1\+[0-9a-f]{12}", config)  # the file's content is part of the identity
    listed = subprocess.run(
        [sys.executable, "-m", "dpfl_cli.cli.main", "list", "--plugin", PLUGIN],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "DP-FedAvg with server momentum" in listed.stdout
    wrong = subprocess.run(
        [sys.executable, "-m", "dpfl_cli.cli.main", "run", "--plugin", PLUGIN, "algorithm=fedmomentum", "algorithm.momentum=2"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert wrong.returncode == 2
    assert "algorithm.momentum=2" in wrong.stderr


def test_a_package_is_a_plugin_too(tmp_path: Path) -> None:
    """An installed package with an entry point in the group dpfl.plugins is found by itself."""
    package = tmp_path / "site"
    info = package / "momentum-1.0.dist-info"
    info.mkdir(parents=True)
    (package / "momentum_methods.py").write_text(Path(PLUGIN).read_text())
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: momentum\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[dpfl.plugins]\nmomentum = momentum_methods\n")
    environment = {**os.environ, "PYTHONPATH": str(package), "OMP_NUM_THREADS": "1"}
    words = ["run", "algorithm=fedmomentum", *SMALL]
    done = subprocess.run(
        [sys.executable, "-m", "dpfl_cli.cli.main", *words], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_completion_offers_groups_options_and_keys(capsys: pytest.CaptureFixture[str]) -> None:
    assert "complete -F" in dpfl(capsys, "completion", "bash")[1]
    assert "algorithm=fedexp" in dpfl(capsys, "completion", "--words", "run", "algorithm=")[1].split()
    assert "algorithm.clip_norm=" in dpfl(capsys, "completion", "--words", "run", "algo")[1].split()
    assert "fedexp/table4" in dpfl(capsys, "completion", "--words", "reproduce", "fed")[1].split()


def test_doctor_is_content_here(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = dpfl(capsys, "doctor")
    assert code == 0
    assert "composes and validates" in out


def test_interrupting_a_process_exits_130_and_loses_nothing(tmp_path: Path) -> None:
    import signal
    import time

    words = ["run", "dataset.clients=200", "dataset.dimension=50", "rounds=100000", "evaluation.every=1000"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    child = subprocess.Popen(
        [sys.executable, "-m", "dpfl_cli.cli.main", *words], env=environment, stderr=subprocess.PIPE, text=True
    )
    time.sleep(8)
    child.send_signal(signal.SIGINT)
    _, err = child.communicate(timeout=60)
    assert child.returncode == 130
    assert "goes on from the last checkpoint" in err
    assert list((tmp_path / "outputs" / "runs" / ".partial").glob("*/checkpoint.pt"))
