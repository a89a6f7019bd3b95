"""A staged search: its stages, what they may see, what a page says of them, what a kill costs."""

from __future__ import annotations

import dataclasses
import io
import json
import re
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from dpfl_cli.cli import reproduce as commanding
from dpfl_cli.cli.main import main
from dpfl_cli.config.errors import ConfigError
from dpfl_cli.papers import artifacts
from dpfl_cli.reproduction import reproduce as reproducing
from dpfl_cli.reproduction.api import Artifact, Runs, Scale, Search, Size
from dpfl_cli.reproduction.grid import Cell, commands
from dpfl_cli.reproduction.published import check_published, publish_artifact
from dpfl_cli.reproduction.reduce import edges_text, rows_of_runs
from dpfl_cli.reproduction.rehearse import made_up
from dpfl_cli.reproduction.reproduce import Produced, dry_run, reproduce
from dpfl_cli.reproduction.search import search, search_section
from dpfl_cli.simulation.execute import deferred_interrupt
from dpfl_cli.simulation.progress import Progress
from dpfl_cli.simulation.signals import handled
from dpfl_cli.simulation.store import RunRecord
from tests.reproduction.small import ONE, SIZES

ALWAYS = {"method": "fedavg", "clip": 0.1}
SEARCH = Search(
    reduced=lambda run: {"rounds": 2},
    note="2 of 3 rounds",
    keep=2,
    whole=[{"method": "fedavg"}],
    always=[ALWAYS],
)
STAGED = dataclasses.replace(ONE, search=SEARCH)
STAGES = [(6, {1000}), (5, {1001})]  # two grids of three; two of each, and one as a whole
Calls = list[tuple[int, set[int]]]


def make(root: Path, artifact: Artifact = STAGED, **more: Any) -> Produced:
    (made,) = reproduce([artifact.at("paper")], root, quiet=True, **more)
    return made


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    """How many plans are executed together, and their seeds."""
    found: Calls = []
    execute = reproducing.execute

    def watched(plans: Sequence[Any], *more: Any, **named: Any) -> Any:
        if plans:
            found.append((len(plans), {plan.seed for plan in plans}))
        return execute(plans, *more, **named)

    monkeypatch.setattr(reproducing, "execute", watched)
    return found


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("outputs")
    assert not make(root).gaps
    return root


def folder(outputs: Path) -> Path:
    return outputs / "artifacts/demo/one/paper"


def content(outputs: Path) -> dict[str, bytes]:
    """All files, but for how long runs took."""
    found = {path.name: path.read_bytes() for path in folder(outputs).iterdir()}
    found["manifest.json"] = re.sub(rb'("seconds": )[\d.e-]+', rb"\g<1>0", found["manifest.json"])
    return found


# --- stages -------------------------------------------------------------------------------------

# distance by clip norm: at reduced size, at full size with the search's seed, with the final seeds
VALUES = {0.1: (3.0, 1.0, 0.1), 0.3: (1.0, 3.0, 3.0), 1.0: (2.0, 2.0, 0.5)}


def measured_by_hand(cells: Sequence[Cell]) -> dict[str, RunRecord]:
    records = {}
    for cell in cells:
        record = made_up(STAGED, cell.plan)
        place = 2 if cell.seed < 1000 else cell.seed - 1000
        assert (cell.plan.rounds == 2) == (place == 0)
        value = VALUES[cell.run.labels["clip"]][place]
        for row in (*record.rows, *record.result["metrics"].values()):
            row["relative_distance"] = value
        records[cell.plan.id] = record
    return records


def test_the_choice_is_made_stage_by_stage_and_by_the_seeds_of_the_search_alone() -> None:
    """0.1 is the best at full size and was dropped; 1.0 beats 0.3 with seed 1001; with the final
    seeds 0.1, which DP-FedAvg always has, is ahead of 1.0, which changes nothing."""
    found = search(STAGED.at("paper"), measured_by_hand)
    reduced, full = found.stages
    assert [cell.run.labels["clip"] for cell in reduced] == [0.1, 0.3, 1.0] * 2
    asked = [(cell.run.labels["method"], cell.run.labels["clip"]) for cell in full]
    assert asked == [("fedexp", 0.3), ("fedexp", 1.0), *(("fedavg", clip) for clip in VALUES)]
    last = [(*cell.run.labels.values(), cell.seed) for cell in found.cells]
    wanted = [("fedexp", 1.0), ("fedavg", 0.1), ("fedavg", 1.0)]
    assert last == [(*cell, seed) for cell in wanted for seed in range(5)]
    rows = rows_of_runs(STAGED, found.cells, measured_by_hand(found.cells), found.rows)
    for method in ("fedexp", "fedavg"):
        assert rows.value("best.clip", method=method) == 1.0
        assert rows.value("distance", method=method, best=True) == 0.5
    assert rows.value("distance", **ALWAYS) == 0.1
    edges = set(rows.where(measure="best.clip").frame["edge"])
    assert edges == {"clip=1 (largest of 3)"}  # of the whole grid
    page = search_section(STAGED.at("paper"), found.table)
    assert "6 at reduced size (2 of 3 rounds) with seed 1000" in page
    assert "the best 2 of each grid, 4 in all, at full size with seed 1001" in page
    assert "ahead of the first that was dropped by 1 in the median of 2 grids, 1 at least" in page
    assert "the best at reduced size in 0 of 2 grids, the last of those kept in 2" in page
    assert "DP-FedAvg: another of the 3 is better by 1 (clip norm C 0.1)." in page
    assert edges_text(STAGED, rows) == "clip norm C 1 (largest of 3) in 2 cells"


def test_all_that_were_kept_may_have_all_seeds() -> None:
    """They and what claims ask for; the choice is the search's all the same."""
    artifact = dataclasses.replace(ONE, search=dataclasses.replace(SEARCH, finalists=True))
    found = search(artifact.at("paper"), measured_by_hand)
    last = [(*cell.run.labels.values(), cell.seed) for cell in found.cells]
    wanted = [("fedexp", 0.3), ("fedexp", 1.0), *(("fedavg", clip) for clip in VALUES)]
    assert last == [(*cell, seed) for cell in wanted for seed in range(5)]
    rows = rows_of_runs(artifact, found.cells, measured_by_hand(found.cells), found.rows)
    assert rows.value("best.clip", method="fedavg") == 1.0
    page = search_section(artifact.at("paper"), found.table)
    assert "all of these with seeds 0 to 4" in page


def test_grids_outside_where_have_all_seeds_and_are_chosen_by_them() -> None:
    """The best of DP-FedEXP by the final seeds is 0.1."""
    part = dataclasses.replace(SEARCH, where={"method": "fedavg"}, always=[])
    artifact = dataclasses.replace(ONE, search=part)
    found = search(artifact.at("paper"), measured_by_hand)
    assert {cell.run.labels["method"] for stage in found.stages for cell in stage} == {"fedavg"}
    assert len(found.cells) == (3 + 1) * 5
    records = measured_by_hand(found.cells)
    for cell in found.cells:  # DP-FedAvg's winner by the search is the worst of all by these seeds
        if cell.run.labels["method"] == "fedavg":
            records[cell.plan.id].result["metrics"]["last"]["relative_distance"] = 100.0
    rows = rows_of_runs(artifact, found.cells, records, found.rows)
    assert [rows.value("best.clip", method=one) for one in ("fedexp", "fedavg")] == [0.1, 1.0]
    assert rows.value("distance", method="fedavg", best=True) == 100.0


def test_a_whole_grid_that_finds_the_same_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(VALUES, 0.1, (3.0, 9.0, 0.1))
    found = search(STAGED.at("paper"), measured_by_hand)
    page = search_section(STAGED.at("paper"), found.table)
    assert "- DP-FedAvg: the best of all 3 is the one that was found." in page


def test_points_beyond_the_search_check_it_and_are_no_candidates() -> None:
    """DP-FedAvg's 0.1 is left out of the search, and the best of all at full size."""

    def few(scale: Scale) -> Runs:
        yield from (run for run in ONE.runs(scale) if run.labels != ALWAYS)

    def beyond() -> Runs:
        yield from (run for run in ONE.runs("paper") if run.labels == ALWAYS)

    checking = dataclasses.replace(SEARCH, beyond=beyond, always=[])
    artifact = dataclasses.replace(ONE, runs=few, search=checking)
    found = search(artifact.at("paper"), measured_by_hand)
    reduced, full = found.stages
    assert len(reduced) == 5
    assert ALWAYS not in [cell.run.labels for cell in reduced]
    assert [cell.run.labels for cell in full].count(ALWAYS) == 1
    assert {cell.run.labels["clip"] for cell in found.cells} == {1.0}
    rows = rows_of_runs(artifact, found.cells, measured_by_hand(found.cells), found.rows)
    assert rows.value("best.clip", method="fedavg") == 1.0
    page = search_section(artifact.at("paper"), found.table)
    all_three = "the 3 (1 of them run for this check alone)"
    assert f"DP-FedAvg: another of {all_three} is better by 1 (clip norm C 0.1)." in page


def test_what_is_run_is_what_is_written(outputs: Path, calls: Calls) -> None:
    """search.csv and table.csv hold the runs of the manifest, each stage its own."""
    made = content(outputs)
    table = pd.read_csv(io.BytesIO(made["search.csv"]))
    assert list(table) == ["stage", "method", "clip", "value", "kept"]
    assert table["stage"].value_counts().to_dict() == {"reduced": 6, "full": 4, "whole": 1}
    for _, grid in table.groupby("method"):
        rough, full = (grid[grid["stage"] == stage] for stage in ("reduced", "full"))
        kept = rough.nsmallest(2, "value")
        assert set(kept["clip"]) == set(rough[rough["kept"]]["clip"]) == set(full["clip"])
        assert list(full[full["kept"]]["clip"]) == list(full.nsmallest(1, "value")["clip"])
    runs = json.loads(made["manifest.json"])["runs"]
    seeds = [run["seed"] for run in runs]
    assert seeds[:11] == [1000] * 6 + [1001] * 5
    assert set(seeds[11:]) == set(range(5))
    numbers = pd.read_csv(io.BytesIO(made["table.csv"]))
    assert set(numbers["seed"].dropna()) == set(range(5))
    best = numbers[(numbers["measure"] == "distance") & numbers["best"].eq(True)]
    winners = table[(table["stage"] == "full") & table["kept"]]
    assert set(zip(best["method"], best["clip"], strict=True)) == set(
        zip(winners["method"], winners["clip"], strict=True)
    )
    assert "## The search" in made["table.md"].decode()
    again = make(outputs)
    assert again.new == 0
    assert content(outputs) == made


@pytest.mark.parametrize("killed", [2, 3])
def test_a_kill_between_stages_loses_nothing(
    killed: int, outputs: Path, tmp_path: Path, calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = reproducing.execute

    def interrupted(*given: Any, **named: Any) -> Any:
        if len(calls) == killed - 1:
            raise KeyboardInterrupt
        return watched(*given, **named)

    with monkeypatch.context() as patch:
        patch.setattr(reproducing, "execute", interrupted)
        with pytest.raises(KeyboardInterrupt):
            make(tmp_path)
    assert calls == STAGES[: killed - 1]
    price = dry_run([STAGED.at("paper")], tmp_path)[0]
    made = make(tmp_path)
    done = sum(count for count, _ in STAGES[: killed - 1])
    assert made.new == len(made.job.plans) - done
    assert calls[killed - 1 :][:2] == STAGES
    assert calls[-1][1] == set(range(5))
    assert content(tmp_path) == content(outputs)
    assert f" {made.new} to do" in price


def test_one_that_is_kept_has_won_at_reduced_size_and_at_its_scales_alone() -> None:
    """0.3 is the best of the first stage, and neither the second nor the final seeds are asked."""
    alone = dataclasses.replace(SEARCH, keep=1, whole=(), scales=("quick",))
    artifact = dataclasses.replace(STAGED, search=alone)
    assert artifact.at("paper").searched is None
    found = search(artifact, measured_by_hand)
    assert [len(stage) for stage in found.stages] == [6, 0]
    last = {(*cell.run.labels.values(),) for cell in found.cells}
    assert last == {("fedexp", 0.3), ("fedavg", 0.3), ("fedavg", 0.1)}
    assert {cell.seed for cell in found.cells} == set(artifact.size.which)
    rows = rows_of_runs(artifact, found.cells, measured_by_hand(found.cells), found.rows)
    assert rows.value("best.clip", method="fedavg") == 0.3
    page = search_section(artifact, found.table)
    assert "with seed 1000; the best of each grid with seeds 0 to" in page
    assert "best cell of each grid with seeds 0 to" in list(commands(artifact))[-1]


def test_the_price_is_known_beforehand(outputs: Path, tmp_path: Path) -> None:
    stages = "a search of 6 runs at reduced size, 5 at full size; "
    (line,) = dry_run([STAGED.at("paper")], tmp_path)
    assert stages in line
    ((runs, todo),) = (map(int, one) for one in re.findall(r"(\d+) runs, (\d+) to do", line))
    assert runs == todo
    assert runs in (11 + 2 * 5, 11 + 3 * 5)
    (line,) = dry_run([STAGED.at("paper")], outputs)
    assert stages in line
    assert "all finished" in line


def test_planning_says_how_far_it_is(
    outputs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Progress, "LINE_EVERY", 0.0)
    both = [STAGED.at("paper"), STAGED.at("quick")]
    dry_run(both, outputs)
    said = [line.split("  ") for line in capsys.readouterr().err.splitlines()]
    assert [(first, last) for first, *_, last in said] == [
        (f"planning: {done}/2", one.name) for done, one in enumerate(both)
    ]
    dry_run(both, outputs, quiet=True)
    assert not capsys.readouterr().err


def test_what_was_planned_is_not_planned_again() -> None:
    known = search(STAGED.at("paper"), measured_by_hand)
    again = search(known.artifact, measured_by_hand, known.first)
    assert again.cells == known.cells
    assert {*map(id, again.stages[0])} == {*map(id, known.stages[0])}


def test_commands_are_the_first_stage_and_words() -> None:
    *lines, words = commands(STAGED.at("paper"))
    assert len(lines) == 6
    assert all(line.endswith("rounds=2 seed=1000") for line in lines)
    assert words.startswith("# Then, without what makes runs with seed=1000 small (2 of 3 rounds)")
    assert "the best 2 cells of each grid with seed=1001" in words
    assert "seeds 0 to 4" in words
    assert not any("seed=1000" in line for line in commands(STAGED))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"whole": [{"method": "fedexpp"}]}, "whole: no run has these labels"),
        ({"always": [{"clip": 7}]}, "always: no run has these labels"),
        ({"always": [{"metod": "fedexp"}]}, "no label 'metod'; did you mean method"),
        ({"reduced": lambda run: 3}, "search: reduced gives 3; return config values"),
    ],
)
def test_a_search_that_names_what_is_not_there_is_refused(
    changes: dict[str, Any], words: str, tmp_path: Path
) -> None:
    artifact = dataclasses.replace(STAGED, search=dataclasses.replace(SEARCH, **changes))
    with pytest.raises(ConfigError, match=words):
        dry_run([artifact.at("paper")], tmp_path)
    with pytest.raises(ConfigError, match="search: no grid of several cells in best"):
        dry_run([dataclasses.replace(STAGED, best=[]).at("paper")], tmp_path)
    rule = dataclasses.replace(STAGED.best[0], over=["clipp"])
    with pytest.raises(ConfigError, match="best: over: no label 'clipp'; did you mean clip"):
        dry_run([dataclasses.replace(STAGED, best=[rule]).at("paper")], tmp_path)


# --- publishing, sizes ----------------------------------------------------------------------------


def test_a_search_by_what_no_run_reports_is_one_line(tmp_path: Path) -> None:
    wrong = dataclasses.replace(STAGED.measures["distance"], metric="relative_distnce")
    artifact = dataclasses.replace(STAGED, measures={**STAGED.measures, "distance": wrong})
    with pytest.raises(ConfigError, match=r"relative_distnce; did you mean relative_distance\?"):
        make(tmp_path, artifact)


@pytest.mark.usefixtures("recorded")
def test_a_search_is_published_and_checked(tmp_path: Path) -> None:
    publish_artifact(tmp_path, make(tmp_path).job.artifact)
    root = tmp_path / "published"
    assert check_published(root, {"demo/one": STAGED}) == (3, [], [])
    path = root / "demo/one/paper/search.csv"
    path.write_text(path.read_text().replace("whole,", "full,"))
    _, lines, _ = check_published(root, {"demo/one": STAGED})
    assert [line for line in lines if "table.md is not what its CSV files give" in line]
    path.unlink()
    _, lines, _ = check_published(root, {"demo/one": STAGED})
    assert any("missing or unknown files: search.csv" in line for line in lines)


@pytest.mark.usefixtures("recorded")
def test_a_paper_scale_may_be_reduced_and_says_so(outputs: Path, tmp_path: Path) -> None:
    few = {**SIZES, "paper": Size(seeds=5, minutes=0.1, note="3 clip norms", full=False)}
    for artifact, reduced in ((STAGED, False), (dataclasses.replace(STAGED, sizes=few), True)):
        made = make(outputs, artifact)
        states = {one.state for one in made.verdicts}
        assert (states == {"at reduced size"}) == reduced
        title = (made.folder / "table.md").read_text().splitlines()[0]
        assert title.endswith("(reduced size)") == reduced


@pytest.mark.parametrize("before", [signal.default_int_handler, signal.SIG_IGN])
def test_a_pass_ends_in_time_where_rounds_are_run(
    before: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    soon = 1e-4  # minutes
    progress = Progress("", 1, quiet=True)
    with handled(before, signal.SIGINT), commanding._interrupted_after(soon):
        time.sleep(0.2)  # no exception, which might be lost here
        with deferred_interrupt(progress) as stopping:
            last = time.monotonic() + 30
            while not stopping() and time.monotonic() < last:
                time.sleep(0.01)
            assert stopping()
            time.sleep(0.2)  # and no second one, which would stop at once
    said = capsys.readouterr().err
    assert said.count("--at-most 0.0001: the time is over") == 1


def test_a_pass_that_ends_before_its_time(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("DPFL_OUTPUTS", str(tmp_path))
    words = ["reproduce", "fedexp/fig2_left", "scale=smoke"]
    assert main([*words, "--at-most", "60"]) == 0
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    assert main([*words, "--at-most", "0"]) == 2
    assert "--at-most 0: a number of minutes above 0" in capsys.readouterr().err


def test_a_pass_with_an_end_begins_with_what_is_short(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "adaptdp", "--commands", "--at-most", "60"]) == 0
    lines = capsys.readouterr().out.splitlines()
    names = [line[2:].partition(":")[0] for line in lines if line.startswith("# ")]
    known = artifacts()
    cost = [known[name].sizes["quick"].minutes * known[name].trains for name in names]
    assert cost[:-1] == sorted(cost[:-1])
    assert names[-1] == "adaptdp/table6"  # timed
    assert len(names) == sum(name.startswith("adaptdp/") for name in known)
