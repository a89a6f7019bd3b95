"""`dpfl reproduce`: rows against numbers made by hand, rehearsal, files, publishing, own files."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import re
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

import dpfl_cli as dpfl
from dpfl_cli import papers
from dpfl_cli.algorithms.fedavg import FedAvg
from dpfl_cli.algorithms.fedexp import FedExp
from dpfl_cli.cli.main import main
from dpfl_cli.config.errors import ConfigError, DataError, StoreError
from dpfl_cli.reproduction import judge as judging
from dpfl_cli.reproduction import numbers
from dpfl_cli.reproduction.api import (
    Artifact,
    Best,
    Claim,
    Comparison,
    Derived,
    Figure,
    Metric,
    Rows,
    Run,
    Scale,
    Search,
    Size,
    Table,
    above,
    below,
    between,
    claim,
    each_seed,
    every,
    exact,
    falling,
    level,
    near_paper,
)
from dpfl_cli.reproduction.figure import canvas_of
from dpfl_cli.reproduction.grid import cells, commands, requests, with_seeds
from dpfl_cli.reproduction.judge import NOT_RUN, PRINTED, beside, judge, numbers_line
from dpfl_cli.reproduction.layout import numbers_table, page
from dpfl_cli.reproduction.paper_numbers import NUMBERS
from dpfl_cli.reproduction.published import check_published, publish_artifact
from dpfl_cli.reproduction.reduce import rows_of_runs
from dpfl_cli.reproduction.rehearse import rehearse
from dpfl_cli.reproduction.report import index_md, write_report
from dpfl_cli.reproduction.report import numbers as summed
from dpfl_cli.reproduction.reproduce import dry_run, prepare, reproduce
from dpfl_cli.reproduction.rows import matching
from dpfl_cli.reproduction.search import Job
from dpfl_cli.reproduction.tables import CSV, from_csv, rows_of, to_csv
from dpfl_cli.reproduction.templating import TEMPLATES
from dpfl_cli.simulation import results
from dpfl_cli.simulation.store import RunStore
from tests.reproduction.requests import FILE, digest
from tests.reproduction.small import BASE, DEMO, ONE, runs
from tests.simulation.members import before_rounds

LOCK = json.loads(FILE.read_text())


def rehearsed(artifact: Artifact) -> None:
    rehearse(Job(artifact, cells(artifact)))


def changed(**changes: Any) -> Artifact:
    return dataclasses.replace(ONE, **changes)


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Outputs in which demo/one is made at quick."""
    root = tmp_path_factory.mktemp("outputs")
    (made,) = reproduce([ONE], root, quiet=True)
    assert not made.gaps
    return root


@pytest.fixture
def rows(outputs: Path) -> Rows:
    folder = outputs / "artifacts/demo/one/quick"
    return from_csv(
        ONE, {name: (folder / name).read_text() for name in ("table.csv", "series.csv")}
    )


def test_where_every_run_fails_there_is_a_page_that_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*given: Any) -> None:
        raise RuntimeError

    for method in (FedAvg, FedExp):
        monkeypatch.setattr(method, "round", fail)
    (made,) = reproduce([ONE], tmp_path, quiet=True)
    assert len(made.gaps) == 18
    assert (made.folder / "figure.png").is_file()
    assert {one.id: one.finding for one in made.verdicts}["better"] == NOT_RUN
    text = (made.folder / "table.md").read_text()
    assert "**Incomplete**: run " in text
    assert "| DP-FedAvg | – (no run ended) | – (no run ended) | – (no run ended) |" in text


def test_rows_are_what_the_runs_say(outputs: Path, rows: Rows) -> None:
    """Every seed of every number, best cells, derived numbers, from the run store by hand."""
    store = RunStore(outputs)
    last: dict[tuple[str, float], list[float]] = {}
    for cell in cells(ONE):
        record = store.find(cell.plan.id)
        assert record is not None
        curve = record.series("relative_distance")
        labels = cell.run.labels
        last.setdefault((str(labels["method"]), float(labels["clip"])), []).append(curve[3])
        seen = rows.where(**labels, round=2).frame
        mine = seen[(seen["seed"] == cell.seed) & (seen["measure"] == "curve")]
        assert list(mine["value"]) == [curve[2]]
    for (method, clip), values in last.items():
        found = rows("distance", method=method, clip=clip)
        assert list(found.values) == values
        assert found.scale == "log"
    for method in ("fedexp", "fedavg"):
        means = {clip: np.mean(values) for (name, clip), values in last.items() if name == method}
        winner = min(means, key=lambda clip: means[clip])
        assert rows.value("best.clip", method=method) == winner
        assert rows.value("distance", method=method, best=True) == pytest.approx(means[winner])
    ratio = np.divide(last["fedexp", 0.3], last["fedavg", 0.3])
    assert list(rows("ratio", clip=0.3).values) == pytest.approx(list(ratio))
    assert rows.value("clients", method="fedexp", clip=0.1) == 40


def test_a_plan_is_priced_once(monkeypatch: pytest.MonkeyPatch) -> None:
    cell = next(one for one in cells(ONE) if one.run.labels["method"] == "fedavg")
    priced = []
    for module in (numbers, results):
        known = module.price
        monkeypatch.setattr(
            module, "price", lambda *given, known=known: priced.append(given) or known(*given)
        )
    (row,) = numbers.numbers_of(ONE, [cell], {}, ["epsilon"])
    assert len(priced) == 1
    whole = results.privacy_report(cell.plan, cell.plan.ledger())
    assert {name: row[name] for name in ("epsilon", "trust", "guarantee", "releases")} == {
        name: whole[name] for name in ("epsilon", "trust", "guarantee", "releases")
    }


def test_means_and_spreads_are_over_seeds(rows: Rows) -> None:
    means = rows.means.set_index(["measure", "method", "clip", "round"])
    values = rows("distance", method="fedexp", clip=0.3).values
    cell = means.loc[("distance", "fedexp", 0.3, "")]
    assert cell["value"] == pytest.approx(values.mean())
    assert cell["std"] == pytest.approx(values.std(ddof=1))
    assert (cell["n"], cell["seeds"], cell["diverged"]) == (3, 3, 0)
    assert cell["epsilon"] > 0
    assert (cell["unit"], cell["releases"]) == ("client", 3)
    assert math.isnan(means.loc[("epsilon", "fedexp", 0.3, "")]["std"])


def test_csv_and_back_is_the_same(rows: Rows) -> None:
    again = from_csv(ONE, to_csv(rows))
    pd.testing.assert_frame_equal(again.frame, rows.frame)


def test_page_and_files(outputs: Path) -> None:
    folder = outputs / "artifacts/demo/one/quick"
    page = (folder / "table.md").read_text()
    assert page.startswith("# demo/one: Distance left after 3 rounds (reduced size)")
    for words in (
        "| DP-FedEXP",
        "| DP-FedAvg",
        "Nobody wrote this paper",
        "## The paper's claims",
        "## Our claims",
    ):
        assert words in page
    assert "3 rounds, 20 training records, 20 clients, 3 seeds" in page
    assert "at reduced size: holds" in page
    claims = json.loads((folder / "claims.json").read_text())
    assert [one["finding"] for one in claims["claims"]][::2] == ["holds", "undecided"]  # 3 seeds
    assert (folder / "figure.png").read_bytes().startswith(b"\x89PNG")
    assert {one["seed"] for one in json.loads((folder / "manifest.json").read_text())["runs"]} == {
        0,
        1,
        2,
    }


def test_a_diverged_run_is_infinitely_bad_and_a_failed_one_leaves_a_gap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing complete is replaced by what is not."""
    words = ["dataset=synthetic", "dataset.clients=12", "algorithm=fedavg", "dp=none", "rounds=40"]
    rates = (1e-3, 1e9)
    artifact = changed(
        runs=lambda scale: [
            Run({"rate": one}, words, {"algorithm.local_lr": one}) for one in rates
        ],
        measures={
            "distance": Metric("relative_distance", "last"),
            "higher": Metric("relative_distance", "final", better="higher"),
            "curve": Metric("relative_distance", "series"),
            "start": Metric("relative_distance", 0),
            "curvature": Metric("communication.uses_curvature"),
            "chosen": Metric("relative_distance", "last", where={"best": True}),
        },
        best=[Best("rate", "distance")],
        tables=[Table(rows="rate", cells=["distance"])],
        figures=[
            Figure("bars", "rate", "distance"),
            Figure("heatmap", "rate", "distance", y="rate"),
        ],
        claims=[],
        titles={},
    )
    (made,) = reproduce([artifact], tmp_path, quiet=True)
    content = {path.name: path.read_bytes() for path in made.folder.iterdir()}
    rows = from_csv(artifact, {name: content[name].decode() for name in CSV})
    lost = rows.where(rate=1e9)
    assert [lost.value(one) for one in ("distance", "higher")] == [math.inf, -math.inf]
    assert math.isfinite(lost.value("start"))
    assert lost.values("curve")[-1] == math.inf
    assert rows.text("curvature", rate=1e-3) == "no"
    assert rows.value("best.rate") == 1e-3
    assert rows.value("chosen") == rows.value("distance", rate=1e-3)  # of the best alone
    assert "| 1e+09 | diverged (3 of 3 diverged) |" in content["table.md"].decode()
    shown = [
        {text.get_text() for text in axis.texts} | {line.get_label() for line in axis.lines}
        for axis in canvas_of(artifact, rows).axes
    ]
    assert "diverged" in shown[0]
    assert "div." in shown[1]

    seconds = {"distance": Metric("timing.seconds", "series")}
    wrong = dataclasses.replace(artifact, measures=seconds, best=[], figures=[])
    with pytest.raises(ConfigError, match="leads to no mapping of rounds"):
        list(reproduce([wrong], tmp_path, quiet=True))

    def breaks(state: Any, at: Any) -> None:
        if 1 in at.streams._MethodStreams__streams.seeds:
            raise RuntimeError("out of luck")

    before_rounds(monkeypatch, FedAvg, breaks)
    (kept,) = reproduce([artifact], tmp_path, force=True)
    assert [len(kept.gaps), kept.kept] == [2, True]
    assert {path.name: path.read_bytes() for path in made.folder.iterdir()} == content
    said = capsys.readouterr().err
    assert re.search(r"INCOMPLETE: run .* failed: .* and 1 more; the complete one from", said)
    (gap,) = reproduce([artifact], tmp_path / "other", quiet=True)
    page = (gap.folder / "table.md").read_text()
    assert "**Incomplete**: run " in page
    assert re.search(r"\| 0.001 \| [\d.]+ ± [\d.]+ \(2 of 3 seeds\)", page)
    assert not json.loads((gap.folder / "manifest.json").read_text())["complete"]
    none = rows_of_runs(artifact, cells(artifact), {})
    assert set(none.where(measure=["distance", "start"]).frame["note"]) == {"no run ended"}


def test_an_archive_gives_the_same_table_without_training(
    outputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    made, file = outputs / "artifacts/demo/one/quick", str(tmp_path / "one.tar.xz")
    monkeypatch.setenv("DPFL_OUTPUTS", str(outputs))
    manifest = str(made / "manifest.json")
    assert main(["runs", "export", manifest, manifest, "--archive", file]) == 0
    ids = {one["id"] for one in json.loads((made / "manifest.json").read_text())["runs"]}
    assert capsys.readouterr().out == f"{len(ids)} runs in {file}\n"
    monkeypatch.setenv("DPFL_OUTPUTS", str(tmp_path / "elsewhere"))
    assert main(["runs", "import", file, file]) == 0
    (again,) = reproduce([ONE], tmp_path / "elsewhere", quiet=True)
    assert again.new == 0
    for name in ("table.csv", "series.csv", "claims.json", "manifest.json"):
        assert (again.folder / name).read_bytes() == (made / name).read_bytes()
    (tmp_path / "manifest.json").write_text("[]")
    assert main(["runs", "list", str(tmp_path / "manifest.json")]) == 2
    assert "no artifact's manifest.json" in capsys.readouterr().err


def test_numbers_beside_the_papers(rows: Rows) -> None:
    frame = rows.means
    cell = (frame["measure"] == "distance") & (frame["method"] == "fedexp")
    frame.loc[cell, "paper"] = frame.loc[cell, "value"] * [1.0, 1.02, 2.0]
    frame.loc[cell, "paper_std"] = frame.loc[cell, "value"] * [0.1, 0.01, 0.1]
    line = numbers_line(ONE, frame)
    assert line == (
        "1 of 3 cells within the paper's spread; 2 of 3 within 5 % of its number; "
        "in the median 2.0 % apart"
    )
    mine = frame[cell].assign(paper=frame[cell]["value"] * [1e-3, 20, 1.25])
    shown = numbers_table(ONE, mine).splitlines()
    assert [line.split(" | ")[4] for line in shown[2:]] == ["x 1e+03", "x 0.05", "-20.0 %"]
    errors = [float(line.split(" | ")[5].rstrip(" |")) for line in shown[2:]]
    runs = dataclasses.replace(ONE, paper_runs=4)
    with_runs = beside(runs, mine)
    gaps = mine["value"] - mine["paper"]
    own = mine["std"].astype(float) ** 2 / mine["n"]
    assert errors == pytest.approx(list(gaps / (own + mine["paper_std"] ** 2) ** 0.5), abs=0.06)
    wanted = gaps / (own + mine["paper_std"] ** 2 / 4) ** 0.5
    assert list(with_runs["errors"]) == pytest.approx(list(wanted))
    without = numbers_table(ONE, mine.assign(paper_std=math.nan))
    alone = [float(line.split(" | ")[5].rstrip(" |")) for line in without.splitlines()[2:]]
    assert alone == pytest.approx(list(gaps / own**0.5), abs=0.06)
    shown = dataclasses.replace(rows, frame=rows.frame.assign(paper=rows.frame["value"]))
    assert "At reduced size: " in page(ONE, shown, [], "", [])
    timed = dataclasses.replace(ONE, measures={"distance": Metric("distance", unit="s")})
    assert numbers_line(timed, frame) == ""


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"tables": [Table(rows=["metod"], cells=["distance"])]}, "no label 'metod'; did you mean"),
        ({"tables": [Table(rows=["method"], cells=["distanse"])]}, "no measure 'distanse'"),
        ({"best": [Best(over=["clipp"], by="distance")]}, "no label 'clipp'"),
        ({"best": [Best(over=["clip"], by="distnce")]}, "no measure 'distnce'"),
        ({"best": [Best(over=["clip"], by="epsilon")]}, "measure epsilon: nobody knows whether"),
        (
            {"figures": [Figure(kind="bars", x="clip", measures=["distance"], series="methd")]},
            "no label 'methd'",
        ),
        (
            {"tables": [Table(rows="clip", cells="distance", where={"method": "fedexpp"})]},
            r"tables\[0\]: where: no method 'fedexpp'; did you mean fedexp?",
        ),
        (
            {"figures": [Figure(kind="lines", x="clip", measures=["distence"])]},
            "no measure 'distence'",
        ),
        (
            {"tables": [Table(rows="clip", cells="distance", where={"best": "yes"})]},
            r"tables\[0\]: where: no best 'yes'; choose from: False, True",
        ),
        (
            {"tables": [Table(rows="clip", cells="distance", where={"best": 1})]},
            r"tables\[0\]: where: no best '1'; choose from: False, True",
        ),
    ],
)
def test_what_is_mistyped_is_found_before_anything_runs(change: dict, words: str) -> None:
    artifact = changed(claims=[], **change)
    with pytest.raises(ConfigError, match=words):
        rehearsed(artifact.at("smoke"))


def asked(rows: Rows, more_than: float = 0.0, **labels: Any) -> Iterator[Comparison]:
    yield above(rows("distance", **labels), more_than)


def asks(**labels: Any) -> Claim:
    return Claim("asks", "it asks", "ours", partial(asked, **labels))


def test_every_says_the_same_of_all_cells_and_a_reading_says_it_of_others(rows: Rows) -> None:
    methods = ("fedavg", "fedexp")
    judge = every(above, "distance", "method", clip=..., method=methods, by=0.5)
    made = [one.text for one in judge(rows)]
    pair = "distance(clip={0}, method=fedavg) > distance(clip={0}, method=fedexp)"
    assert made == [pair.format(clip) + " by more than 0.5" for clip in (0.1, 0.3, 1.0)]
    falls = every(falling, "distance", "clip", clip=between(0.2, 1.0), method="fedexp")
    step = "distance(clip=0.3, method=fedexp) > distance(clip=1.0, method=fedexp)"
    assert [one.text for one in falls(rows)] == [step]
    apart = ({"method": "fedavg", "clip": 0.3}, {"method": "fedexp", "clip": 1.0})
    (beside,) = every(above, "distance", apart)(rows)
    first, second = ("distance(method={method}, clip={clip})".format(**one) for one in apart)
    assert beside.text == f"{first} > {second}"
    other = Claim("a", "b", "ours", judge, readings={"there": {"clip": 0.3, "by": 0.0}})
    assert [one.text for one in other.reading("there")(rows)] == [pair.format(0.3)]
    alike = judge(rows, compare=level, measures="epsilon", by=None, within=0.5, clip=0.3)
    pair = pair.replace("distance", "epsilon").replace(">", "=").format(0.3)
    assert [one.text for one in alike] == [f"{pair} within 0.5"]
    with pytest.raises(ConfigError, match=r"no clip '0[.]2'"):
        list(judge(rows, clip=0.2))


def test_what_is_found_under_other_readings_stands_beside_the_verdict(rows: Rows) -> None:
    def fast(rows: Rows, more_than: float = 0.0, clip: float = 0.1) -> Iterator[Comparison]:
        """it asks"""
        yield from asked(rows, more_than, method="fedexp", clip=clip)

    def made(**readings: Any) -> Artifact:
        others = {name.replace("_", " "): one for name, one in readings.items()}
        return changed(claims=[claim("ours", id="asks", readings=others)(fast)])

    alone = made()
    several = made(
        more_than_a_million={"more_than": 1e6},
        another_clip_norm=partial(asked, method="fedexp", clip=1.0),
        at_another_size=lambda rows: iter(()),
    )
    (plain,), (verdict,) = judge(alone, rows), judge(several, rows)
    found = verdict.readings
    assert verdict == dataclasses.replace(plain, readings=found)  # the rest does not depend
    assert {under: one["finding"] for under, one in found.items()} == {
        "more than a million": "fails",
        "another clip norm": "undecided",  # by its own spread, which is not that of the claim's
        "at another size": "not run at this size",
    }
    pooled_with_its_own = {
        under: one["comparison"]["freedom"] for under, one in found.items() if "comparison" in one
    }
    assert pooled_with_its_own == {"more than a million": 2, "another clip norm": 2}
    one = found["more than a million"]["comparison"]
    assert one.keys() == plain.comparisons[0].keys()
    distances = rows("distance", method="fedexp", clip=0.1).values
    assert one["difference"] == pytest.approx(np.log(distances / 1e6).mean(), rel=1e-5)
    shown = page(several, rows, [verdict], "", [])
    interval = "{difference:.3g} [{low:.3g}, {high:.3g}] on a log scale".format(**one)
    decides = f"`{one['text']}`: {interval}"
    assert f"| asks | holds | more than a million | fails ({decides}) |" in shown
    assert "| asks | holds | at another size | not run at this size |" in shown
    for one, words in (({"clip": 30}, "no clip '30'"), ({"more": 1}, "argument 'more'")):
        artifact = made(mistyped=one)
        with pytest.raises(ConfigError, match=f"claim asks, mistyped: .*{words}"):
            rehearsed(artifact.at("smoke"))


def test_a_papers_claim_is_put_to_the_numbers_that_the_paper_prints(rows: Rows) -> None:
    """Where they are all that it asks for: not where it asks for others, for their spread or for
    ours beside theirs, and not of a claim of ours.
    """
    frame = rows.frame
    theirs = {("fedexp", 0.1): 1.0, ("fedavg", 0.1): 2.0, ("fedexp", 0.3): 4.0, ("fedavg", 0.3): 3}
    there = zip(frame["measure"], frame["method"], frame["clip"], strict=True)
    given = [
        theirs.get(tuple(place), math.nan) if name == "distance" else math.nan
        for name, *place in there
    ]
    known = rows_of(ONE, frame.assign(paper=given))

    def ahead(rows: Rows, **labels: Any) -> Iterator[Comparison]:
        yield from every(below, "distance", "method", method=("fedexp", "fedavg"), **labels)(rows)

    def by_seed(rows: Rows) -> Iterator[Comparison]:
        yield each_seed(
            (one.value("distance", method="fedexp", clip=0.1) < 1.5 for one in rows.by_seed()),
            "low",
        )

    judges = {
        "both": partial(ahead, clip=(0.1, 0.3)),
        "first": partial(ahead, clip=0.1),
        "by_much": partial(ahead, clip=0.1, by=1.0),
        "seeds": by_seed,
        "unprinted": partial(ahead, clip=1.0),
        "beside": lambda rows: iter([near_paper(rows("distance", method="fedexp", clip=0.1))]),
    }
    claims = [Claim(name, "it is so", "Table 1", one) for name, one in judges.items()]
    ours = Claim("ours", "it is so", "ours", judges["first"])
    verdicts = judge(changed(claims=[*claims, ours]), known)
    found = {one.id: one.readings.get(PRINTED, {}).get("finding") for one in verdicts}
    assert found == {
        "both": "fails in 1 of 2",
        "first": "holds",
        "by_much": "fails",  # 1 is not below 2 by more than 1
        "seeds": "holds",
        "unprinted": None,
        "beside": None,
        "ours": None,
    }


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        ({"metod": "fedexp"}, "no label 'metod'"),
        ({"method": "fedexp"}, "say which clip"),
        ({"method": "fedexpp"}, "no method 'fedexpp'; did you mean fedexp"),
        ({"method": "fedexp", "clip": 30}, "no clip '30'; choose from: 0.1, 0.3, 1.0"),
    ],
)
def test_a_claim_that_asks_wrongly_is_found_before_anything_runs(labels: dict, words: str) -> None:
    artifact = changed(claims=[asks(**labels)])
    with pytest.raises(ConfigError, match=words):
        rehearsed(artifact.at("smoke"))


@pytest.mark.parametrize(
    ("seed", "place", "words"),
    [(2, 60, ""), (3, 60, "claim counts: KeyError"), (2, 61, "claim counts: IndexError")],
)
def test_a_claim_may_count_seeds_and_rounds(seed: int, place: int, words: str) -> None:
    """A rehearsal makes up a few of them; there are three and 61."""

    def counted(rows: Rows) -> Iterator[Comparison]:
        mine = rows.where(method="fedexp", clip=0.1)
        yield exact(mine("distance").values[seed] > mine.values("curve")[place], "more")

    def longer(scale: Scale) -> Iterator[Run]:
        for one in runs(scale):
            yield dataclasses.replace(one, values={**one.values, "rounds": 60})

    artifact = changed(runs=longer, claims=[Claim("counts", "it counts", "ours", counted)])
    with pytest.raises(ConfigError, match=words) if words else contextlib.nullcontext():
        rehearsed(artifact)


def test_claims_on_stand_ins_stand_apart(outputs: Path) -> None:
    """By the runs of the cells that they ask for, of derived numbers and of curves too; else by all
    data.
    """
    folder = outputs / "artifacts/demo/one/quick"
    files = {name: (folder / name).read_text() for name in ("table.csv", "series.csv")}

    @claim("Table 1")
    def on_the_way(rows: Rows) -> Iterator[Comparison]:
        """a curve"""
        yield exact(rows.value("curve", method="fedexp", clip=1.0, round=2) > 0, "above 0")

    @claim("Table 1")
    def derived(rows: Rows) -> Iterator[Comparison]:
        """a number of both"""
        yield exact(rows.value("ratio", clip=1.0) > 0, "above 0")

    @claim("Table 1")
    def frame(rows: Rows) -> Iterator[Comparison]:
        """what asks for no cell"""
        yield exact(len(rows.frame) > 0, "some rows")

    def of_two(scale: Scale) -> Iterator[Run]:
        for one in runs(scale):
            data = {"fedexp": "synthetic", "fedavg": "synthetic_alpha_beta"}[one.labels["method"]]
            yield Run(one.labels, [f"dataset={data}"])

    artifact = changed(claims=[*ONE.claims, on_the_way, derived, frame], runs=of_two)

    def groups(scale: Scale, *data: str) -> dict[str, tuple[str, str]]:
        found = judge(artifact.at(scale), from_csv(artifact, files), data)
        return {one.id: (one.group, one.data) for one in found}

    every, part = ("paper_standin", "on stand-ins"), ("paper_standin", "on stand-ins in part")
    found = groups("paper", "synthetic (standin)", "synthetic_alpha_beta (real)")
    assert found["spends"] == found["on_the_way"] == every
    assert found["derived"] == found["frame"] == part
    assert found["better"] == ("ours", "on stand-ins in part")
    found = groups("quick", "synthetic (real)", "synthetic_alpha_beta (standin)")
    assert found["spends"] == ("reduced", "")
    assert found["derived"] == ("reduced_standin", "on stand-ins in part")
    found = groups("paper", "synthetic (real)", "synthetic_alpha_beta (synthetic)")
    assert {data for _, data in found.values()} == {""}
    found = groups("paper", "a (standin)", "b (standin)")
    assert found["spends"] == found["derived"] == found["frame"] == every


def test_a_claim_about_cells_of_another_size_is_not_run(rows: Rows) -> None:
    def more(scale: Scale) -> Iterator[Run]:
        many = {"dataset.clients": 30, "dataset.dimension": 5}
        yield from runs(scale)
        if scale == "paper":
            yield Run({"method": "fedexp", "clip": 30}, BASE, many)

    artifact = changed(runs=more, claims=[asks(method="fedexp", clip=30)])
    rehearsed(artifact.at("smoke"))
    (verdict,) = judge(artifact, rows_of(artifact, rows.frame))
    assert verdict.finding == "not run at this size"


@pytest.mark.parametrize("source", ["Ours", "", "the paper"])
def test_a_source_that_is_no_place_in_the_paper_is_refused(source: str) -> None:
    with pytest.raises(ConfigError, match="no place in the paper"):
        Claim("asks", "it asks", source, asks().judge)


def test_a_label_that_is_true_is_not_one() -> None:
    frame = pd.DataFrame({"bias": [True, 1, False, 0.0, "1"]}, dtype=object)
    for wanted, found in ((True, [0]), (1, [1]), ([False, "1"], [2, 4]), (0, [3])):
        assert list(matching(frame, {"bias": wanted}).index) == found


def test_metrics_that_nothing_reports_are_empty_cells(outputs: Path) -> None:
    artifact = changed(
        measures={"x": Metric(metric="no_such_metric", at="last")},
        best=[],
        tables=[Table(rows=["method"], cells=["x"])],
        figures=[],
        claims=[],
    )
    store = RunStore(outputs)
    planned = cells(artifact)
    records = {cell.plan.id: store.find(cell.plan.id) for cell in planned}
    rows = rows_of_runs(artifact, planned, records)  # type: ignore[arg-type]
    assert rows.frame.empty
    assert "(no numbers at this scale)" in page(artifact, rows, [], "", [])
    given = {"x": Metric("no_such_metric", "series", absent=1.0)}
    artifact = dataclasses.replace(artifact, measures=given)
    rows = rows_of_runs(artifact, planned, records)  # type: ignore[arg-type]
    assert rows.places("x", method="fedexp", clip=0.3) == [1, 2, 3]


def test_a_derived_measure_without_labels_is_one_number_a_seed(outputs: Path) -> None:
    best = Derived(lambda rows: rows.value("distance", method="fedexp", clip=0.3))
    artifact = changed(measures={**ONE.measures, "only": best})
    store, planned = RunStore(outputs), cells(ONE)
    records = {cell.plan.id: store.find(cell.plan.id) for cell in planned}
    rows = rows_of_runs(artifact, planned, records)  # type: ignore[arg-type]
    wanted = rows("distance", method="fedexp", clip=0.3).values
    assert rows("only").values.to_dict() == wanted.to_dict()
    assert len(rows("only").values) == 3


def test_labels_tell_runs_apart() -> None:
    def twice(scale: str) -> Iterator[Run]:
        for clip in (0.1, 0.3):
            yield Run({"method": "x"}, [], {"algorithm.clip_norm": clip})

    with pytest.raises(ConfigError, match="two different runs"):
        requests(changed(runs=twice).at("smoke"))


def test_a_run_that_is_asked_for_twice_is_one() -> None:
    asked = [Run({"method": "x"}, []), Run({"method": "x"}, [])]
    assert requests(changed(runs=lambda scale: asked).at("smoke")) == requests(
        changed(runs=lambda scale: asked[:1]).at("smoke")
    )


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"runs": lambda scale: None}, "no runs at scale=smoke"),
        ({"runs": lambda scale: [3]}, "3 is no run"),
        ({"runs": lambda scale: [Run({"x": [1]}, [])]}, "write a number or a text"),
        ({"sizes": {"smoke": Size(seeds=[], minutes=1)}}, "no runs at scale=smoke"),
    ],
)
def test_what_is_no_run_or_size_is_said(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        requests(changed(**changes).at("smoke"))


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Metric("x", better="low"), "metric: better='low': input should be 'lower' or"),  # type: ignore[arg-type]
        (lambda: Metric("x", -1), "metric: at=-1: input should be 'first'"),
        (lambda: Figure("bar", "x", "y"), "figure: kind='bar': input should be 'lines', 'bars'"),  # type: ignore[arg-type]
        (lambda: Best("x", "y", top=0), "best: top=0: input should be greater than 0"),
        (lambda: Size(1, "soon"), "size: minutes='soon': input should be a valid number"),  # type: ignore[arg-type]
        (lambda: Table("", 5), "table: rows=5: input should be a valid string"),  # type: ignore[arg-type]
        (lambda: changed(title=None), "artifact one: title=None: input should be a valid string"),
        (lambda: changed(sizes={"quick": 3}), "artifact one: sizes=3: input should be an instance"),
        (lambda: changed(claims=["x"]), "artifact one: claims='x': input should be an instance"),
        (
            lambda: Search(reduced=dict, note="", scales=["x"]),
            "search: scales='x': input should be",
        ),  # type: ignore[list-item]
        (lambda: Claim("a", "b", "ours", print, prior="so"), "claim a: prior='so': input should"),  # type: ignore[arg-type]
        (lambda: Run({}, None), "run: overrides=None: input should be a valid string"),  # type: ignore[arg-type]
        (lambda: Run({}, "dp=ldp 'x"), 'run: overrides="dp=ldp \'x": No closing quotation'),
        (lambda: Run({}, [], exclusive="no"), "run: exclusive='no': input should be a valid bool"),  # type: ignore[arg-type]
        (lambda: Run({}, [], seeds=[0.5]), r"run: seeds=\[0.5\]: input should be a valid integer"),  # type: ignore[list-item]
        (lambda: Size(0, 1), "size: seeds=0: input should be greater than 0; or input should be"),
        (lambda: Size(1, math.nan), "size: minutes=nan: input should be a finite number"),
        (
            lambda: Metric("x", "lasst"),  # type: ignore[arg-type]
            "metric: at='lasst': input should be 'first', .* or 'series'; or input should be a",
        ),
        (lambda: Metric("x", rounds=[-1]), "metric: rounds=-1: input should be greater than or"),
    ],
)
def test_values_of_other_types_are_refused_where_they_are_given(make: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=f"^{says}"):
        make()


def test_what_a_field_may_be_given_as() -> None:
    """Ranges and lists of seeds, numpy's whole numbers, lists for pairs; no claims are none."""
    assert [Size(one, 1).which for one in ([0, 5], range(2))] == [[0, 5], range(2)]
    assert Size(np.int64(2), 1).which == range(2)
    assert Metric("x", "series", rounds=range(3)).rounds == (0, 1, 2)
    run = Run({"clip": np.float64(0.5)}, "dp=ldp 'seed=range(2)'", seeds=np.arange(2))
    assert run == Run({"clip": 0.5}, ["dp=ldp", "seed=range(2)"], seeds=[0, 1])
    assert Run(MappingProxyType({"clip": 1}), [], seeds=[*np.arange(2)]).labels == {"clip": 1}
    assert Run({}, [], seeds=3).seeds == 3  # as in a size, three of them
    assert Table(where={"clip": np.array([1, 2])}).where == {"clip": [1, 2]}
    assert Best("x", "y", top=np.int64(2)).top == 2  # type: ignore[arg-type]
    assert Figure("lines", "x", "y", y_range=[0, 1]).y_range == [0, 1]
    assert changed(claims=()).claims == ()


@pytest.mark.parametrize(
    ("found", "says"),
    [
        (iter([True]), "True is no comparison; yield above"),
        (None, "does not yield its comparisons"),
        (exact(True, "x"), "does not yield its comparisons"),
    ],
)
def test_what_a_claim_yields_is_a_comparison(found: Any, says: str) -> None:
    wrong = Claim("wrong", "It is true", "ours", lambda rows: found)
    with pytest.raises(ConfigError, match=f"claim wrong: {says}"):
        judge(changed(claims=[wrong]), Rows(pd.DataFrame(), {}, {}))


def test_an_id_of_ones_own_is_the_name_of_a_folder(tmp_path: Path) -> None:
    path = tmp_path / "own_id.py"
    path.write_text(
        "from dpfl_cli.reproduction.api import *\n"
        "own = Artifact(id='a/b', title='', shows='', sizes={}, runs=lambda _: [], measures={})"
    )
    with pytest.raises(ConfigError, match="id='a/b': name a folder"):
        papers.own(path)


@pytest.mark.parametrize("name", ["value", "paper_std", "epsilon", "kept"])
def test_a_label_that_is_a_column_of_the_table_is_refused(name: str) -> None:
    runs = [Run({name: 1}, [])]
    with pytest.raises(ConfigError, match=f"a label cannot be called {name}, which is a column"):
        requests(changed(runs=lambda scale: runs).at("smoke"))


def test_commands_are_dpfl_run_lines() -> None:
    first, *_ = commands(ONE)
    assert first == (
        "dpfl run -m dataset=synthetic dp=ldp rounds=3 algorithm.local_steps=2 algorithm=fedexp "
        "dataset.clients=20 dataset.dimension=5 algorithm.clip_norm=0.1 'seed=range(3)'"
    )


def test_runs_may_have_seeds_of_their_own(tmp_path: Path) -> None:
    """In place of the scale's: what is asked for, printed, and said of how far it is tested."""

    def with_own(scale: Scale) -> Iterator[Run]:
        first, *others = runs(scale)
        yield dataclasses.replace(first, seeds=range(100, 104))
        yield from others

    artifact = changed(runs=with_own)
    asked = [(one.run.labels["clip"], one.seed) for one in requests(artifact)[:7]]
    assert asked == [(0.1, seed) for seed in range(100, 104)] + [(0.3, seed) for seed in range(3)]
    lines = list(commands(artifact))
    assert [line.partition(" 'seed=")[2] for line in lines[:2]] == ["range(100,104)'", "range(3)'"]
    (job,) = prepare([artifact], RunStore(tmp_path))
    assert job.horizon.endswith("3 to 4 seeds")


METRIC = 'Metric(metric="relative_distance", at="last", better="lower")'
MINE = """
from dpfl_cli.reproduction.api import *


def runs(scale):
    for method in ("fedexp", "fedavg"):
        yield Run({"method": method}, ["dataset=synthetic", f"algorithm={method}", "rounds=2"],
                  {"dataset.clients": 10})


mine = Artifact(
    id="mine",
    title="Mine",
    shows="How far two methods come.",
    sizes={"quick": Size(seeds=2, minutes=0.1)},
    runs=runs,
    measures={"distance": METRIC},
    tables=[Table(rows=["method"], cells=["distance"])],
)
""".replace("METRIC", METRIC)


Mine = Callable[..., Path]


@pytest.fixture
def mine(tmp_path: Path) -> Mine:
    """Writes the file of one's own, with texts of it replaced where they first stand."""

    def written(*changes: tuple[str, str]) -> Path:
        text, path = MINE, tmp_path / "mine.py"
        for old, new in changes:
            assert old in text
            text = text.replace(old, new, 1)
        path.write_text(text)
        return path

    return written


def test_a_pass_that_can_decide_nothing_says_so_before(capsys: Any) -> None:
    words = ["reproduce", "fedexp/fig1", "--dry-run"]
    few = "too few seeds to decide a claim on runs, which takes 3 at least (seeds=3): fedexp/fig1"
    assert main([*words, "seeds=2"]) == 0
    assert few in capsys.readouterr().out
    assert main([*words, "seeds=3"]) == 0
    assert "too few seeds" not in capsys.readouterr().out


def test_audits_are_priced_though_they_train_nothing(tmp_path: Path) -> None:
    made = [papers.artifacts()[name].at("smoke") for name in ("cross/audit", "fedexp/table1")]
    audit, table, both = dry_run(made, tmp_path)
    assert audit.endswith("nothing to train, about 60 s on two cores")
    assert table.endswith("nothing to train, about 1 s on two cores")
    assert both.endswith("nothing to train, about 61 s on two cores")


def test_claims_that_fail_are_named(capsys: Any) -> None:
    assert main(["reproduce", "fedexp/table1"]) == 0
    line = "4 holds, 1 fails; Our own claims: 2 holds; fails: rounds\n"
    assert capsys.readouterr().err.endswith(line)


def test_a_file_of_ones_own(mine: Mine, tmp_path: Path, capsys: Any) -> None:
    path = str(mine())
    assert main(["reproduce", path, "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert "4 runs, 4 to do" in said
    assert "too few seeds" not in said  # without a claim
    assert main(["reproduce", path, "--quiet"]) == 0
    page = (tmp_path / "outputs/artifacts/local/mine/quick/table.md").read_text()
    assert "as in the paper" not in page  # there is none
    mine(("relative_d", "relativ_d"))
    shutil.rmtree(tmp_path / "outputs")  # known also where nothing is finished
    assert main(["reproduce", path]) == 2
    said = "no run reports metric relativ_distance; did you mean relative_distance?"
    assert said in capsys.readouterr().err
    assert not list((tmp_path / "outputs/runs").glob("*/result.json"))
    mine(('cells=["distance"]', 'cells="distence"'))
    assert main(["reproduce", path]) == 2
    assert "no measure 'distence'; did you mean distance?" in capsys.readouterr().err
    mine(("from", "1 / 0\nfrom"))
    assert main(["reproduce", path]) == 2
    assert "ZeroDivisionError" in capsys.readouterr().err


def test_seeds_of_ones_own_have_a_folder_of_their_own(
    mine: Mine, tmp_path: Path, capsys: Any
) -> None:
    path = str(mine(("shows=", 'notes=["Said."], shows=')))
    folder = tmp_path / "outputs/artifacts/local/mine"
    assert main(["reproduce", path, "--quiet"]) == 0
    declared = (folder / "quick/table.md").read_bytes()
    capsys.readouterr()
    assert main(["reproduce", path, "seeds=1-3"]) == 0
    said = capsys.readouterr()
    assert "6 runs, 4 to do" in said.err  # two are those of the declared ones
    assert said.out.split() == [str(folder / "quick-seeds-1-3")]
    page = (folder / "quick-seeds-1-3/table.md").read_text()
    assert "3 seeds" in page
    assert "- Said.\n- Seeds 1 to 3 were asked for, in place of the 2 that are declared" in page
    assert "`dpfl reproduce mine.py scale=quick seeds=1-3`" in page
    table = pd.read_csv(folder / "quick-seeds-1-3/table.csv")
    assert sorted(table["seed"].dropna().unique()) == [1, 2, 3]
    assert (folder / "quick/table.md").read_bytes() == declared
    assert main(["reproduce", path, "seeds=4", "--commands"]) == 0
    assert "'seed=range(4)'" in capsys.readouterr().out


def test_seeds_asked_for_are_of_every_run_and_of_nothing_that_is_not_trained() -> None:
    def several(scale: Scale) -> Iterator[Run]:
        for one in runs(scale):
            yield dataclasses.replace(one, seeds=[7])

    asked = with_seeds(changed(runs=several), range(4, 8))
    assert {cell.seed for cell in requests(asked)} == {4, 5, 6, 7}
    assert asked.size.minutes == pytest.approx(0.1 * 4 / 3)
    assert {cell.seed for cell in requests(asked.at("smoke"))} == {4, 5, 6, 7}
    untrained = papers.artifacts()["fedexp/table1"]
    assert with_seeds(untrained, range(9)) is untrained
    small = papers.artifacts()["fedexp/fig1"]
    usual, more = requests(small.at("smoke")), requests(with_seeds(small.at("smoke"), range(2)))
    assert {cell.plan.clients for cell in more} == {cell.plan.clients for cell in usual}
    for wrong in (range(0), range(5, 5), range(-1, 3), range(0, 9, 2), range(3, 0, -1)):
        with pytest.raises(ConfigError, match="say how many"):
            with_seeds(ONE, wrong)


NUMBERS_OF_ONES_OWN = "measure,method,value,std\ndistance,fedexp,0.5,0.1\ndistance,fedavg,2.0,\n"


def with_numbers(mine: Mine, text: str | bytes, best: str = "") -> str:
    """The file of one's own, and the numbers beside it."""
    path = mine(("tables", f'numbers="theirs.csv",{best} tables'))
    with path.open("a") as file:
        file.write(f"# {path}")  # files of one content are one module
    path.with_name("theirs.csv").write_bytes(text.encode() if isinstance(text, str) else text)
    return str(path)


def test_a_file_of_ones_own_may_have_a_papers_numbers(mine: Mine, tmp_path: Path) -> None:
    assert main(["reproduce", with_numbers(mine, NUMBERS_OF_ONES_OWN), "--quiet"]) == 0
    page = (tmp_path / "outputs/artifacts/local/mine/quick/table.md").read_text()
    assert re.search(r"\| fedexp \| [\d.]+ ± [\d.]+ \| 0.5 ± 0.1 \|", page)
    assert "0 of 1 cells within the paper's spread" in page
    assert "0 of 2 within 5 %" in page


def test_numbers_of_which_none_stands_beside_a_row_are_told(mine: Mine, capsys: Any) -> None:
    """What a line leaves empty a row must lack, which no row of a chosen cell does."""
    best = 'best=[Best(["method"], "distance")],'
    path = with_numbers(mine, "measure,method,value\ndistance,,0.5\n", best)
    assert main(["reproduce", path, "--dry-run"]) == 0
    assert "theirs.csv: none of its 1 lines stands beside a row" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            NUMBERS_OF_ONES_OWN.replace("method", "methd"),
            "column methd: no label of the artifact; ",
        ),
        (NUMBERS_OF_ONES_OWN.replace("distance", "distence"), "measure distence: did you mean "),
        (NUMBERS_OF_ONES_OWN.replace("fedexp", "fedxp"), "method fedxp: did you mean fedexp?"),
        (NUMBERS_OF_ONES_OWN.replace("0.5", "half"), "could not convert string to float: 'half'"),
        (NUMBERS_OF_ONES_OWN.replace("fedavg", "fedexp"), "two numbers of distance fedexp"),
        (NUMBERS_OF_ONES_OWN.replace("fedavg", ""), "method empty: choose from: fedavg, fedexp"),
        (NUMBERS_OF_ONES_OWN.replace("2.0", "inf"), "a value is infinite"),
        (NUMBERS_OF_ONES_OWN.replace("0.1", "-0.1"), "a std is below 0"),
        (NUMBERS_OF_ONES_OWN.replace(",", ";"), "(by commas)"),
        ("method,value\nfedexp,1\n", "and one for each label (by commas); has method, value"),
        ("", "No columns to parse"),
        (b"\xff\x00measure", "no paper's numbers"),
    ],
)
def test_numbers_that_fit_no_artifact_are_one_line(
    text: str | bytes, words: str, mine: Mine, tmp_path: Path, capsys: Any
) -> None:
    asked = ["reproduce", with_numbers(mine, text), "--dry-run"]
    assert main(asked) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"artifact local/mine: {tmp_path / 'theirs.csv'}: " in line
    assert words in line
    (tmp_path / "theirs.csv").unlink()
    assert main(asked) == 2
    assert f"numbers: no file {tmp_path / 'theirs.csv'}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("measure", "titles", "words"),
    [
        (
            'Metric("communication.uplink_flots")',
            "",
            "no run reports metric communication.uplink_flots; did you mean "
            "communication.uplink_floats?",
        ),
        ('Metric("timing", "series")', "", "no run reports metric timing; "),
        (
            'Metric("relative_distance", plus=["distanc"])',
            "",
            "no run reports metric distanc; did you mean distance?",
        ),
        (
            'Metric("server_stepp", "series", absent=1.0)',
            "",
            "no run reports metric server_stepp; did you mean server_step?",
        ),
        (
            'Metric("distance")',
            'titles={"metod": "way"},',
            "page: titles: no label, value or measure 'metod'; did you mean method?",
        ),
        (
            'Fact("dataset.clientss")',
            "",
            "measure distance: dataset.clientss: nothing that a run knows; did you mean clients?",
        ),
        ('Price(part="convention")', "", "distance: part=convention needs runs with dp.convention"),
        ('Metric("timing.compute", "series", plus=["distance"])', "", ""),
        ('Metric("server_step", "series", absent=1.0)', 'titles={"fedexp": "DP-FedEXP"},', ""),
    ],
)
def test_names_that_no_run_knows_are_one_line(
    measure: str, titles: str, words: str, mine: Mine, tmp_path: Path, capsys: Any
) -> None:
    changes = (("tables=", f"{titles} tables="), ('cells=["distance"]', ""), (METRIC, measure))
    assert main(["reproduce", str(mine(*changes)), "--quiet"]) == (2 if words else 0)
    assert words in capsys.readouterr().err
    assert any((tmp_path / "outputs/runs").glob("*/result.json")) == (not words)


@pytest.mark.parametrize("scale", ["quick", "paper"])
def test_a_metric_is_looked_for_at_the_size_of_the_runs_that_have_it(
    scale: str, mine: Mine, tmp_path: Path, capsys: Any
) -> None:
    """fedexp/table2 trains on MNIST at the paper's size alone: into an empty store it was refused,
    for its trial runs, of the smallest size, have no accuracy.
    """
    larger = """    if scale == "paper":
        task = ["dataset=synthetic_alpha_beta", "algorithm=fedavg", "rounds=2"]
        yield Run({"method": "softmax"}, task)


mine = """
    size = '"quick": Size(seeds=2, minutes=0.1)'
    changes = [
        ("mine = ", larger),
        (size, f"{size}, {size.replace('quick', 'paper')}"),
        ('"distance"', '"accuracy": Metric("accuracy", where={"method": "softmax"}), "distance"'),
    ]
    asked = ["reproduce", str(mine(*changes)), f"scale={scale}"]
    assert main([*asked, "--quiet"]) == 0
    mine(*changes, ('Metric("accuracy"', 'Metric("acuracy"'))
    shutil.rmtree(tmp_path / "outputs")
    assert main(asked) == (2 if scale == "paper" else 0)
    known = "no run reports metric acuracy; did you mean accuracy?" in capsys.readouterr().err
    assert known == (scale == "paper")


TYPES = [
    ('id="mine"', 'id="mine", paper_runs=-1', "artifact mine: paper_runs=-1: input should be"),
    ('"distance": Metric(', '"clear": "distance", "distance": Metric(', "instance of Measure"),
    (
        'id="mine"',
        'id="mine", search=Search(reduced=dict, note="", keep=0)',
        "search: keep=0: input should be greater than 0",
    ),
    (
        'id="mine"',
        'id="mine", figures=Figure("lines", "x", "distance", log="z")',
        "figures[0]: log: no axis 'z'",
    ),
    (
        'id="mine"',
        'id="mine", figures=Figure("lines", "method", "distance")',
        "figures[0]: x: method fedexp: lines are over numbers",
    ),
    (
        'id="mine"',
        'id="mine", figures=Figure("lines", "round", "distance")',
        "figures[0]: x: round: measure distance is not of every round; write Metric(",
    ),
    ("mine = ", "@claim('ours')\ndef bare(rows): ...\n\nmine = ", "claim bare: no docstring"),
    ("mine = ", "@claim\ndef bare(rows):\n    'says'\n\nmine = ", "claim bare: say whose it is"),
]


@pytest.mark.parametrize(("old", "new", "words"), TYPES)
def test_what_no_artifact_is_made_of_is_one_line(
    old: str, new: str, words: str, mine: Mine, capsys: Any
) -> None:
    assert main(["reproduce", str(mine((old, new))), "--dry-run"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert words in line


@pytest.mark.parametrize("note", ["a note", {"quick": "a note"}])
def test_one_of_several_needs_no_brackets(note: Any, mine: Mine) -> None:
    (made,) = papers.own(mine(("[Table", "(Table"), ('"])]', f'"])), notes={note!r}')))
    assert [len(made.tables), *made.notes] == [1, note]


def test_a_label_that_some_rows_lack_is_empty_beside_them(mine: Mine, tmp_path: Path) -> None:
    """Numbers are sought beside the file that was named: files of one content are one module."""
    run = 'yield Run({"method": "none"}, ["dataset=synthetic", "dp=none", "rounds=1"], '
    more = run + '{"dataset.clients": 5})\n\n\nmine = '
    own = mine(
        ("mine = ", f"    {more}"),
        ('"method": method', '"method": method, "rate": "0.1"'),
        ("tables", 'numbers="theirs.csv", tables'),
    )
    for folder, number in (("a", 1), ("b", 2)):
        (tmp_path / folder).mkdir()
        shutil.copy(own, tmp_path / folder)
        lines = f"measure,method,rate,value\ndistance,none,,{number}\ndistance,fedexp,0.10,3\n"
        (tmp_path / folder / "theirs.csv").write_text(lines)
        (made,) = dpfl.reproduce(str(tmp_path / folder / "mine.py"), quiet=True)
        theirs = made.table.dropna(subset="paper").groupby("method").paper.agg(["size", "max"])
        assert theirs.T.to_dict("list") == {"fedexp": [2, 3], "none": [2, number]}


CLAIMS = """
from dpfl_cli.reproduction.api import claim

@claim("ours")
def NAME(rows):
    \'\'\'a claim\'\'\'
    yield from ()
"""


def test_claims_are_those_above_their_artifact(tmp_path: Path) -> None:
    path, of = tmp_path / "mine.py", partial(CLAIMS.replace, "NAME")
    other = MINE.replace("mine", "other")
    none = MINE.replace("mine", "none").replace("runs=runs,", "runs=runs, claims=[],")
    parts = [of("one"), of("two"), MINE, of("three"), other, of("four"), none]
    path.write_text("\n".join(parts))
    found = {made.id: [claim.id for claim in made.claims] for made in papers.own(path)}
    assert found == {"mine": ["one", "two"], "other": ["three"], "none": []}


@pytest.mark.usefixtures("own_components")
def test_a_file_of_ones_own_with_a_method_of_ones_own(
    mine: Mine, tmp_path: Path, capsys: Any
) -> None:
    path = str(mine(("fedavg", "apart")))
    known = (Path(__file__).parents[1] / "cli/my_method.py").read_text()
    own = tmp_path / "own.py"  # of a name that no other test registers
    own.write_text(known.replace("fedmomentum", "apart").replace("twin", "lone"))
    plugin = str(own)
    assert main(["reproduce", path, "--dry-run"]) == 2
    assert "one of your own needs --plugin FILE" in capsys.readouterr().err
    assert main(["reproduce", path, "--commands", "--plugin", plugin]) == 0
    assert f"dpfl run --plugin {plugin} -m" in capsys.readouterr().out
    assert main(["reproduce", path, "--plugin", plugin]) == 0
    file = tmp_path / "outputs/artifacts/local/mine/quick/table.md"
    page = file.read_text()
    assert "| apart |" in page
    assert f"not checked: dpfl check {plugin} |" in page
    assert main(["check", plugin, "dp=ldp", "--quiet"]) == 0
    assert main(["reproduce", path, "--plugin", plugin]) == 0  # of the same runs
    assert "dpfl check of the file as it was has passed, with some settings" in file.read_text()
    assert f"Made by `dpfl reproduce mine.py --plugin {plugin} scale=quick`" in page


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["fedexp/tabel4"], "did you mean fedexp/table4?"),
        (["fedexp", "scale=quik"], "did you mean quick?"),
        (["fedexp", "seed=1"], "takes artifacts, scale=… and seeds=…"),
        (["fedexp/fig1", "seeds=few"], "say how many, 12 for 0 to 11"),
        (["fedexp/fig1", "seeds=1001"], "those from 1000 on are a search's"),
        (["fedexp/fig1", "seeds=3", "seeds=4"], "at most one scale"),
        (["fedexp/fig1", "seeds=3", "--publish"], "has the declared seeds"),
        (["--list", "seeds=3"], "drop it"),
        ([], "reproduce what?"),
        (["nothing.py"], "nothing.py: cannot be read"),
    ],
)
def test_refused(words: list[str], said: str, capsys: Any) -> None:
    assert main(["reproduce", *words]) == 2
    assert said in capsys.readouterr().err


# --- published ---------------------------------------------------------------------------------


@pytest.fixture
def published(outputs: Path, tmp_path: Path, recorded: None) -> Path:
    shutil.copytree(outputs / "artifacts", tmp_path / "artifacts")
    publish_artifact(tmp_path, ONE)
    return tmp_path / "published"


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda folder: (folder / "series.csv").unlink(), "missing or unknown files: series.csv"),
        (
            lambda folder: edit(folder / "table.csv", "distance,,", "distance,7,"),
            "say which rank",
        ),
        (lambda folder: edit(folder / "table.csv", "\n", '\n"'), "table.csv: damaged"),
        (lambda folder: edit(folder / "claims.json", "holds", "fails"), "claims.json is not what"),
        (lambda folder: edit(folder / "table.md", "DP-FedEXP", "DP-Fed"), "table.md is not what"),
        (lambda folder: edit(folder / "manifest.json", "true", "false"), "not complete"),
        (lambda folder: edit(folder / "manifest.json", "{", ""), "damaged"),
        (lambda folder: edit(folder.parents[2] / "index.md", "demo", "omed"), "not the index"),
    ],
)
def test_tampering_is_one_line(published: Path, damage: Callable, words: str) -> None:
    damage(published / "demo/one/quick")
    _, lines, _ = check_published(published, {"demo/one": ONE})
    assert lines
    assert any(re.search(words, line) for line in lines), lines


def test_a_changed_finding_is_told(published: Path) -> None:
    """The lock: what is recorded is compared with what the published table gives."""
    judging.recorded()["demo/one"]["quick"]["spends"] = "fails"
    _, lines, _ = check_published(published, {"demo/one": ONE})
    assert any("recorded 'fails', found 'holds'" in line for line in lines)


def test_the_index_says_what_a_larger_size_changed(published: Path) -> None:
    further = "1 to 3 rounds, 20 training records, 1,000 clients, 9 seeds; 2 of 3 d"
    small, large = published / "demo/one/quick", copied(published, "demo/one", tested_to=further)
    content = json.loads((small / "claims.json").read_text())
    claim = next(one for one in content["claims"] if one["finding"] == "holds")
    gap = {"text": "gap", "scale": "linear", "margin": 0.0}
    after = {**gap, "finding": "fails", "seeds": 9, "difference": -2.0, "low": "-inf"}
    before = {**gap, "finding": "holds", "seeds": 4, "difference": 1.0, "low": 0.5}
    for folder, one in ((small, {**before, "high": 1.5}), (large, {**after, "high": -1.0})):
        claim |= {"finding": one["finding"], "comparisons": [{**one, "text": "same"}, one]}
        claim["comparisons"][0] |= {"finding": "holds"}
        if folder == large:
            claim["comparisons"].append({**one, "text": "new", "finding": "holds"})
        (folder / "claims.json").write_text(json.dumps(content))
    before = json.loads((small / "manifest.json").read_text())["tested_to"]
    index = index_md(published)
    why = "`gap`: 1 [0.5, 1.5], 4 seeds; then -2 [-inf, -1], 9 seeds"
    differs = f"1 of 3 comparisons at the larger size only; {before} → {further}"
    assert f"| demo/one | {claim['id']} | holds | fails | {differs} | {why} |" in index
    assert index.count("| demo/one |") == 1
    shutil.rmtree(published.parent / "artifacts")
    front = write_report(published.parent, {"demo/one": ONE}, "dpfl report").read_text()
    assert differs in front
    assert "<code>gap</code>: 1 [0.5, 1.5], 4 seeds; then -2 [-inf, -1], 9 seeds" in front
    shutil.rmtree(large)
    assert "| demo/one |" not in index_md(published)


def test_a_size_with_part_of_the_papers_cells_says_so(outputs: Path) -> None:
    size = Size(3, 0.1, cells="3 of 5 clip norms")
    (job,) = prepare([changed(sizes={"quick": size})], RunStore(outputs))
    assert job.horizon.endswith(" seeds; 3 of 5 clip norms")


def copied(published: Path, name: str, **changes: Any) -> Path:
    """What is published, of another name and at the paper's size; changes of its manifest."""
    folder = published / name / "paper"
    shutil.copytree(published / "demo/one/quick", folder)
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps(manifest | changes))
    return folder


def test_a_run_that_two_artifacts_share_is_counted_once_in_their_hours(published: Path) -> None:
    for name, gpu in (("one", {}), ("two", {}), ("three", {"gpu": "a GPU"})):
        run = {"seconds": 3600, **gpu, "id": name if gpu else "shared"}
        copied(published, f"demo/{name}", runs=[run])
    made = json.loads((published / "demo/one/quick/manifest.json").read_text())["runs"]
    assert all(run["seconds"] > 0 and "gpu" not in run for run in made)
    index = index_md(published)
    hours = "- demo: 3 of 3 at `scale=paper`, hours: 1.00 and 1.00 on a GPU; a GPU computed a"
    assert f"{hours} part, so that this is no time of two cores\n" in index
    assert index.count(" | 1.00 | ") == 2
    assert index.count(" | 1.00 on a GPU | ") == 1


def test_a_budget_is_beside_the_hours_of_the_runs_that_it_is_for(published: Path) -> None:
    for name, tasks in (("fig2", ("cifar10", "ixi")), ("fig3", ("cifar10",)), ("fig12", ("",))):
        made = [{"id": f"{name}{of}", "seconds": 3600, "labels": {"task": of}} for of in tasks]
        copied(published, f"scaffnew/{name}", runs=made)
    said = index_md(published).partition("- scaffnew: 3 of 3 at `scale=paper`, hours: 4.00 (")[2]
    assert said.startswith("budget: 2.5 for mushrooms; so counted 1.00; 3 for CIFAR-10 in ")
    assert "; so counted 2.00)\n" in said


def test_a_note_may_be_of_one_size(rows: Rows) -> None:
    artifact = changed(notes=["of both", {"quick": "of one"}, {"paper": "of the other"}])
    for scale, there, absent in (("quick", "one", "the other"), ("paper", "the other", "one")):
        text = page(artifact.at(scale), rows, [], "", [])
        assert f"- of both\n- of {there}\n" in text
        assert f"- of {absent}\n" not in text


def test_the_index_counts_the_cells_of_all_pages(published: Path) -> None:
    said = (
        "1 of 2 cells within the paper's spread; {} of {} within 5 % of its number; in the median"
    )
    for name, line in (("one", said.format(3, 7)), ("two", said.format(0, 4)), ("three", "")):
        folder = copied(published, f"demo/{name}", **({"runs": []} if name == "two" else {}))
        edit(folder / "table.md", " (reduced size)", "")
        write_numbers(folder, line)
    write_numbers(published / "demo/one/quick", said.format(1, 6))
    shutil.copytree(published / "demo/one/quick", published / "demo/four/quick")  # shown itself
    total = "2 of 4 cells within the paper's spread; 3 of 11 within 5 % of its number"
    before = "1 of 2 cells within the paper's spread; 1 of 6 within 5 % of its number"
    index = index_md(published)
    untrained = "1 of 2 cells within the paper's spread; 0 of 4 within 5 % of its number"
    apart = "of these, on pages where nothing is trained"  # and none of stand-ins
    assert f"Numbers beside the paper's, at its size: {total}; {apart}, of settings" in index
    assert f" closed forms: {untrained}. Before" in index
    assert f" that are here at two sizes: {before}.\n" in index
    assert f"| {said.format(3, 7)} | ({said.format(1, 6)}) |" in index
    assert f"| {said.format(0, 4)} | – |" in index
    assert index.count("1 of 6") == 2
    page = SimpleNamespace(standin=True, manifest={"runs": [1]}, numbers_at_full_size=before)
    words = TEMPLATES.get_template("words.j2").make_module({"numbers": summed})
    assert f"of these, on pages of stand-ins alone: {before}; on " in words.numbers_of([page])


def write_numbers(folder: Path, line: str) -> None:
    content = json.loads((folder / "claims.json").read_text())
    (folder / "claims.json").write_text(json.dumps(content | {"numbers": line}))


def test_what_is_missing_is_told(published: Path, tmp_path: Path) -> None:
    other = changed(id="two")
    *_, absent = check_published(published, {"demo/one": ONE, "demo/two": other})
    assert absent == ["demo/two"]
    with pytest.raises(StoreError, match="reproduce demo/two again"):
        publish_artifact(tmp_path, other)
    _, lines, _ = check_published(published, {})
    assert any("there is no such artifact" in line for line in lines)
    assert check_published(published, {"demo/two": other}, {"demo/one"})[:2] == (0, [])
    with pytest.raises(StoreError, match="nothing is published"):
        check_published(tmp_path / "empty", {})


# --- the papers --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", list(papers.artifacts()))
def test_every_artifact_can_be_made(name: str) -> None:
    """At every size its runs are told apart; at smoke and quick they are those of the lock, and all
    is rehearsed.
    """
    artifact = papers.artifacts()[name]
    assert requests(artifact.at("paper"))
    assert artifact.paper is not None
    assert artifact.source
    for made in map(artifact.at, ("smoke", "quick")):
        try:
            found = cells(made)
        except DataError as error:
            pytest.skip(str(error))
        rehearse(Job(made, found))
        assert digest(found) == LOCK[name][made.scale]


def test_every_file_of_papers_numbers_is_of_an_artifact() -> None:
    """What is in it is checked where the artifact is made; papers/adaptdp reads `selected`."""
    names = {f"{path.parent.name}/{path.stem}" for path in NUMBERS.glob("*/*.csv")}
    assert names - {*papers.artifacts()} == {"adaptdp/selected"}
    assert DEMO.citation == "Nobody, “A demonstration”, 2026"


PUBLISHED = Path(__file__).parents[2] / "outputs"
ARCHIVED = [
    str(file.relative_to(PUBLISHED / "archive")).removesuffix(".tar.xz")
    for file in sorted(PUBLISHED.glob("archive/*/*.tar.xz"))
]


@pytest.mark.parametrize("name", ARCHIVED)
def test_archived_runs_are_those_of_today(name: str) -> None:
    """One run of every kind that an artifact asks for is among those that its page was made of: a
    revision that is raised leaves archives that give nobody the published numbers.
    """
    page = json.loads((PUBLISHED / f"published/{name}/paper/manifest.json").read_text())
    asked = requests(papers.artifacts()[name].at("paper"))
    kinds = {tuple(one.run.overrides): one for one in asked}
    try:
        today = {one.plan.id: one.run.labels for one in kinds.values()}
    except DataError as error:
        pytest.skip(str(error))
    made = {run["id"] for run in page["runs"]}
    assert not [labels for run, labels in today.items() if run not in made]
