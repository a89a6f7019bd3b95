"""`dpfl reproduce` end to end: every artifact at scale=smoke, resuming, failures, and what it refuses."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest

from dpfl_cli.algorithms.fedavg import FedAvg
from dpfl_cli.cli.main import main
from dpfl_cli.config.errors import DataError
from dpfl_cli.data.sources import locate
from dpfl_cli.reproduction import reproduce as module
from dpfl_cli.reproduction.declaration import artifact_names, load_artifact
from dpfl_cli.reproduction.grid import requests
from dpfl_cli.reproduction.publish import FILES
from tests.reproduction.fabricated import SMALL, declared

MINE = """\
# Mine: how much DP-FedEXP gains as clients are added
title: DP-FedEXP against DP-FedAvg
shows: The distance that is left after 20 rounds, by method and number of clients.
source: my own
scales:
  smoke: {seeds: 2, minutes: 0.1, set: {rounds: 3}}
  quick: {seeds: 3, minutes: 0.5}
  paper: {seeds: 10, minutes: 2}
runs:
  - overrides: [dataset=synthetic, dp=ldp, rounds=20]
    axes:
      method: {cases: {FedEXP: {overrides: [algorithm=fedexp]}, FedAvg: {overrides: [algorithm=fedavg]}}}
      clients: {key: dataset.clients, values: [100, 300]}
measures:
  distance: {metric: relative_distance, at: last, better: lower, decimals: 3, title: distance left}
tables: [{rows: [method], columns: [clients], cells: [distance]}]
figure: {kind: bars, x: clients, measures: [distance], series: method}
"""


REAL = {  # dataset=... -> what has to be on the machine; features at smoke are principal components, which need no weights
    **{data: (data,) for data in ("mnist", "fashion_mnist", "bank", "ijcnn1", "a6a", "a9a", "mushrooms", "cifar10")},
    **{f"{data}_features": (data,) for data in ("mnist", "fashion_mnist", "cifar10")},
    "emnist_digits_features": ("mnist",),
    **dict.fromkeys(("emnist_balanced", "femnist_synth", "femnist_synth_small"), ("mnist", "fashion_mnist")),
}


def needed_data(name: str) -> set[str]:
    words = {word for request in requests(load_artifact(name), "smoke") for word in request.overrides}
    return {file for data, files in REAL.items() if f"dataset={data}" in words for file in files}


def is_here(data: str) -> bool:
    try:
        locate(data)
    except DataError:
        return False
    return True


SYNTHETIC = [name for name in artifact_names() if not needed_data(name)]
WITH_DATA = [name for name in artifact_names() if needed_data(name)]


@pytest.fixture
def outputs() -> Path:
    return Path(os.environ["DPFL_OUTPUTS"])


def hashes(root: Path) -> dict[str, str]:
    files = (path for path in root.rglob("*") if path.is_file())
    return {str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def check_folders(root: Path, names: list[str]) -> None:
    for name in names:
        folder = root / "artifacts" / name / "smoke"
        assert sorted(path.name for path in folder.iterdir()) == sorted(FILES)
        claims = json.loads((folder / "claims.json").read_text())
        declared_ids = [claim.id for claim in load_artifact(name).declaration.claims]
        assert [claim["id"] for claim in claims["claims"]] == declared_ids
        assert all(claim["as_expected"] is not False for claim in claims["claims"])
        manifest = json.loads((folder / "manifest.json").read_text())
        assert manifest["complete"] is True
        assert {run["status"] for run in manifest["runs"]} <= {"done", "diverged"}
        assert all((root / "runs" / run["id"] / "result.json").is_file() for run in manifest["runs"])
        assert f"[{name} (smoke)]" in (root / "artifacts" / "index.md").read_text()


def test_every_artifact_without_data_at_smoke_and_again_for_nothing(outputs: Path, capsys: Any) -> None:
    assert main(["reproduce", *SYNTHETIC, "scale=smoke"]) == 0
    first = capsys.readouterr()
    assert first.out.splitlines() == [
        *(str(outputs / "artifacts" / name / "smoke") for name in SYNTHETIC),
        str(outputs / "artifacts" / "index.html"),
    ]
    check_folders(outputs, SYNTHETIC)
    before = hashes(outputs)
    again = ["fedexp/fig1", "fedexp/table1", "fedexp/table3"]
    assert main(["reproduce", *again, "scale=smoke"]) == 0
    second = capsys.readouterr()
    assert "all finished" in second.err
    assert [line.split(": ")[1].split(";")[0] for line in second.err.splitlines() if line.startswith("[")] == [
        f"{len(requests(load_artifact('fedexp/fig1'), 'smoke'))} runs (0 new)",
        "no training",
        "no training",
    ]
    assert hashes(outputs) == before


def test_an_artifact_of_ones_own_is_a_short_file(outputs: Path, tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "mine.yaml").write_text(MINE)
    assert main(["reproduce", str(tmp_path / "mine.yaml"), "scale=smoke", "--quiet"]) == 0
    folder = outputs / "artifacts" / "local" / "mine" / "smoke"
    assert capsys.readouterr().out.splitlines()[0] == str(folder)
    assert sorted(path.name for path in folder.iterdir()) == sorted(FILES)
    assert len(json.loads((folder / "manifest.json").read_text())["runs"]) == 8
    table = (folder / "table.md").read_text()
    assert "| method | clients 100 | clients 300 |" in table
    assert main(["reproduce", str(tmp_path / "mine.yaml"), "scale=smoke", "--publish"]) == 2
    assert "put it into conf/artifact" in capsys.readouterr().err


@pytest.mark.data
def test_every_artifact_on_real_data_at_smoke(outputs: Path) -> None:
    absent = {data for name in WITH_DATA for data in needed_data(name) if not is_here(data)}
    names = [name for name in WITH_DATA if not needed_data(name) & absent]
    if not {"fedexp/table4", "fedexp/fig2_right", "fedexp/fig3_right"} <= set(names):
        pytest.skip(f"not here: {', '.join(sorted(absent))}")
    assert main(["reproduce", *names, "scale=smoke", "--quiet"]) == 0
    check_folders(outputs, names)
    runs = {
        name: {run["id"] for run in json.loads((outputs / "artifacts" / name / "smoke/manifest.json").read_text())["runs"]}
        for name in names
    }
    assert runs["fedexp/fig2_right"] == runs["fedexp/fig3_right"] < runs["fedexp/table4"]
    assert len(list((outputs / "runs").glob("*/result.json"))) == len(set().union(*runs.values()))


def test_absent_data_are_one_line_before_anything_runs(
    outputs: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Any
) -> None:
    monkeypatch.setenv("DPFL_DATA", str(tmp_path / "nowhere"))
    monkeypatch.setenv("DPFL_CACHE", str(tmp_path / "cache"))
    assert main(["reproduce", "fedexp", "scale=smoke"]) == 2
    error = capsys.readouterr().err
    assert len(error.splitlines()) == 1
    assert "mnist" in error
    assert not list(outputs.glob("runs/*/result.json"))


def test_a_run_that_fails_leaves_a_gap_and_is_made_up_for_later(
    outputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    artifact = declared(tmp_path / "own")
    whole = FedAvg.round

    def broken(self: Any, *arguments: Any) -> Any:
        raise RuntimeError("no memory left")

    monkeypatch.setattr(FedAvg, "round", broken)
    assert main(["reproduce", str(artifact.path), "scale=smoke"]) == 3
    error = capsys.readouterr().err
    assert "no memory left" in error
    folder = outputs / "artifacts" / "local" / "small" / "smoke"
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["complete"] is False
    assert len(manifest["gaps"]) == 6
    assert "**Incomplete**" in (folder / "table.md").read_text()
    monkeypatch.setattr(FedAvg, "round", whole)
    assert main(["reproduce", str(artifact.path), "scale=smoke"]) == 0
    assert "12 runs (6 new)" in capsys.readouterr().err
    assert json.loads((folder / "manifest.json").read_text())["complete"] is True
    whole = hashes(folder)
    monkeypatch.setattr(FedAvg, "round", broken)
    for words in ([], ["--publish"]):
        assert main(["reproduce", str(artifact.path), "scale=smoke", "--force", *words]) == (2 if words else 3)
        assert words or "the complete one from before was kept" in capsys.readouterr().err
        assert hashes(folder) == whole


def test_borrowed_runs_are_estimated_once(tmp_path: Path) -> None:
    lender = declared(tmp_path)
    use = {"artifact": str(lender.path), "where": {"method": "FedEXP"}}
    borrower = declared(tmp_path, "borrower", runs=None, scales=None, use=use, claims=None)
    store = module.RunStore(tmp_path / "outputs")
    for artifacts in ([lender, borrower], [borrower, lender]):
        assert module.estimate(module.prepare(artifacts, "quick"), store).endswith(
            "18 runs, 18 to do, about 60 seconds on two cores"
        )
    assert "9 runs, 9 to do, about 30 seconds" in module.estimate(module.prepare([borrower], "quick"), store)


def test_divergence_is_data_not_a_gap(outputs: Path, tmp_path: Path, capsys: Any) -> None:
    runs: list[Any] = json.loads(
        json.dumps(
            [
                {
                    "overrides": [
                        "dataset=synthetic",
                        "dp=none",
                        "algorithm=fedavg",
                        "dataset.clients=4",
                        "dataset.dimension=3",
                        "rounds=400",
                    ],
                    "axes": {"local_lr": {"key": "algorithm.local_lr", "values": [0.001, 90.0]}},
                    "labels": {"method": "FedAvg"},
                }
            ]
        )
    )
    claims = [
        {
            "id": "diverges",
            "text": "the large step diverges",
            "source": "a test",
            "predicate": 'diverged("distance", local_lr=90.0) == 1 and value("distance", local_lr=90.0) > 1000000',
            "expected": "holds",
        }
    ]
    sizes = {scale: {"seeds": 1, "minutes": 0.1} for scale in ("smoke", "quick", "paper")}
    artifact = declared(
        tmp_path / "own",
        runs=runs,
        claims=claims,
        scales=sizes,
        figure={"kind": "bars", "x": "local_lr", "measures": ["distance"]},
    )
    assert main(["reproduce", str(artifact.path)]) == 0
    folder = outputs / "artifacts" / "local" / "small" / "quick"
    assert json.loads((folder / "claims.json").read_text())["claims"][0]["verdict"] == "holds"
    assert "diverged (1 of 1 diverged)" in (folder / "table.md").read_text()


def test_an_interrupted_pass_keeps_what_was_finished_and_goes_on(
    outputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    runs = json.loads(json.dumps(SMALL["runs"]))
    runs[0]["overrides"].append("dataset.u_std=0.3")
    own = tmp_path / "own"
    words = ["reproduce", str(declared(own).path), str(declared(own, "other", runs=runs).path), "scale=smoke"]
    assert main(words) == 0
    whole = hashes(outputs / "artifacts")
    again = tmp_path / "again"
    monkeypatch.setenv("DPFL_OUTPUTS", str(again))
    execute, calls = module.execute, []

    def interrupted(plans: Any, store: Any, progress: Any, force: bool = False) -> Any:
        calls.append(len(plans))
        if len(calls) == 2:
            execute(plans[:5], store, progress)
            raise KeyboardInterrupt
        return execute(plans, store, progress, force=force)

    monkeypatch.setattr(module, "execute", interrupted)
    assert main(words) == 130
    assert (again / "artifacts/local/small/smoke/claims.json").is_file()
    assert not (again / "artifacts/local/other").exists()
    capsys.readouterr()
    monkeypatch.setattr(module, "execute", execute)
    assert main(words) == 0
    error = capsys.readouterr().err
    assert "local/small: 12 runs (0 new)" in error
    assert "local/other: 12 runs (7 new)" in error
    assert hashes(again / "artifacts") == whole


def test_shared_runs_are_run_once_and_force_runs_them_again_once(
    outputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    first = declared(tmp_path / "own")
    use = {"artifact": str(first.path), "where": {"method": "FedEXP"}}
    second = declared(tmp_path / "own", "second", runs=None, scales=None, use=use, claims=None)
    words = ["reproduce", str(first.path), str(second.path), "scale=smoke"]
    assert main(words) == 0
    error = capsys.readouterr().err
    assert "2 artifacts at scale=smoke: 12 runs, 12 to do" in error
    assert "local/second: 6 runs (0 new)" in error
    before = {path: path.stat().st_mtime_ns for path in outputs.glob("runs/*/result.json")}
    assert len(before) == 12
    forced: list[str] = []
    execute = module.execute

    def counted(plans: Any, store: Any, progress: Any, force: bool = False) -> Any:
        forced.extend(plan.id for plan in plans if force)
        return execute(plans, store, progress, force=force)

    monkeypatch.setattr(module, "execute", counted)
    assert main([*words, "--force"]) == 0
    assert sorted(forced) == sorted(path.parent.name for path in before)
    assert all(path.stat().st_mtime_ns > moment for path, moment in before.items())


def test_exclusive_runs_are_made_anew_and_alone_whenever_the_artifact_is(
    outputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    runs: list[Any] = json.loads(json.dumps([SMALL["runs"][0], SMALL["runs"][0]]))
    del runs[1]["axes"]["local_lr"]
    runs[0]["labels"] = {"what": "search"}
    runs[1] |= {"labels": {"what": "timed", "local_lr": 0.003}, "set": {"algorithm.local_lr": 0.003}, "exclusive": True}
    figure = {"kind": "lines", "x": "seconds", "measures": ["curve"], "series": "method", "where": {"what": "timed"}}
    measures = {
        **SMALL["measures"],
        "seconds": {"metric": "timing.compute", "at": "series", "where": {"what": "timed"}},
        "ratio": {
            "derived": 'values("seconds")[-1] / values("seconds", method="FedAvg")[-1]',
            "per": ["method"],
            "where": {"what": "timed"},
        },
    }
    claims = [
        {
            "id": "ratio",
            "text": "a method takes as long as itself",
            "source": "a test",
            "scale": "smoke",
            "predicate": 'value("ratio", method="FedAvg") == 1 and increasing(values("seconds", method="FedEXP"))',
            "expected": "holds",
        }
    ]
    best = [{"over": ["local_lr"], "measure": "distance", "where": {"what": "search"}}]
    changes: dict[str, Any] = {"runs": runs, "measures": measures, "figure": figure, "claims": claims, "best": best}
    artifact = declared(tmp_path / "own", **changes)
    other = declared(tmp_path / "own", "other", **changes)
    alone: list[list[str]] = []
    execute_alone = module.execute_alone
    monkeypatch.setattr(
        module, "execute_alone", lambda plans, *rest: alone.append([plan.id for plan in plans]) or execute_alone(plans, *rest)
    )
    assert main(["reproduce", str(artifact.path), "scale=smoke"]) == 0
    error = capsys.readouterr().err
    assert "12 runs, 12 to do (4 alone and anew, for their times)" in error
    assert "12 runs (12 new)" in error
    folder = outputs / "artifacts" / "local" / "small" / "smoke"
    manifest = json.loads((folder / "manifest.json").read_text())
    timed = [run["id"] for run in manifest["runs"] if run.get("exclusive")]
    assert alone == [timed]
    assert {run["labels"]["what"] for run in manifest["runs"] if run["id"] in timed} == {"search", "timed"}
    assert json.loads((folder / "claims.json").read_text())["claims"][0]["verdict"] == "holds"
    results = {path: path.read_bytes() for path in outputs.glob("runs/*/result.json")}
    metrics = {path: path.read_bytes() for path in outputs.glob("runs/*/metrics.csv")}
    assert main(["reproduce", str(artifact.path), str(other.path), "scale=smoke"]) == 0
    error = capsys.readouterr().err
    assert "12 runs, 4 to do (4 alone" in error
    assert "local/small: 12 runs (4 new)" in error
    assert "local/other: 12 runs (0 new)" in error  # once a pass
    assert sorted(path.parent.name for path, bytes_ in results.items() if path.read_bytes() != bytes_) == sorted(timed)
    assert {path: path.read_bytes() for path in metrics} == metrics
    assert main(["reproduce", str(artifact.path), "scale=smoke", "--force"]) == 0
    assert "12 runs (12 new)" in capsys.readouterr().err
    assert alone == [timed] * 3
    whole, original = hashes(folder), FedAvg.round

    def broken(self: Any, *arguments: Any) -> Any:
        raise RuntimeError("no memory left")

    monkeypatch.setattr(FedAvg, "round", broken)
    assert main(["reproduce", str(artifact.path), "scale=smoke"]) == 3
    assert "the complete one from before was kept" in capsys.readouterr().err
    assert hashes(folder) == whole
    assert all(json.loads(path.read_text())["status"] == "done" for path in results)
    monkeypatch.setattr(FedAvg, "round", original)
    assert main(["reproduce", str(artifact.path), "scale=smoke"]) == 0


def test_the_edge_of_a_grid_is_said_by_command_page_and_index(outputs: Path, tmp_path: Path, capsys: Any) -> None:
    artifact = declared(tmp_path / "own", tables=[{"rows": ["method"], "cells": ["best.local_lr"]}])
    assert main(["reproduce", str(artifact.path), "scale=smoke"]) == 0
    folder = outputs / "artifacts" / "local" / "small" / "smoke"
    said = json.loads((folder / "manifest.json").read_text())["edges"]
    assert "(largest of 3)" in said or "(smallest of 3)" in said
    assert f"best at the edge of the grid: {said}" in capsys.readouterr().err
    assert "(edge): the chosen point lies at the end of what was searched" in (folder / "table.md").read_text()
    assert f"- [local/small (smoke)](#local-small-smoke): {said}" in (outputs / "artifacts" / "index.md").read_text()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "reproduce what?"),
        (["fedexp/table5"], "did you mean fedexp/table"),
        (["fedexp/fig1", "scale=qick"], "did you mean quick?"),
        (["fedexp/fig1", "seeds=3"], "not seeds"),
        (["fedexp/fig1", "--scale", "quick"], "--scale: no such option"),
        (["fedexp/fig1", "scale=quick", "scale=smoke"], "scale=quick was given already"),
        (["--check-published"], "nothing to check; make publish"),
    ],
)
def test_wrong_use_is_one_line(words: list[str], says: str, capsys: Any) -> None:
    assert main(["reproduce", *words]) == 2
    error = capsys.readouterr().err
    assert says in error
    assert len(error.splitlines()) == 1


def test_an_outputs_folder_that_cannot_be_written_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("DPFL_OUTPUTS", str(tmp_path / "file"))
    assert main(["reproduce", "fedexp/table3", "scale=smoke"]) == 2
    assert "cannot be written" in capsys.readouterr().err


def test_the_list_names_every_artifact(capsys: Any) -> None:
    assert main(["reproduce", "--list"]) == 0
    listed = capsys.readouterr().out
    assert all(name in listed for name in artifact_names())
    assert all(len(line) <= 100 for line in listed.splitlines())
    assert "(runs of fedexp/table4)" in listed


def test_quiet_says_only_where_things_are(outputs: Path, capsys: Any) -> None:
    assert main(["reproduce", "fedexp/table1", "scale=smoke", "--quiet"]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    assert len(captured.out.splitlines()) == 2
