"""Declarations: what there is loads, expands and finds the paper's numbers; what is wrong is refused in one line."""

from __future__ import annotations

import copy
import csv
from pathlib import Path
from typing import Any

import pytest
import yaml

from dpfl_cli.config.errors import ConfigError
from dpfl_cli.reproduction import expression
from dpfl_cli.reproduction.declaration import SCALES, artifact_names, load_artifact, select_artifacts
from dpfl_cli.reproduction.grid import requests
from dpfl_cli.reproduction.paper_numbers import PaperNumbers
from tests.reproduction.fabricated import SMALL, declared


def test_the_first_paper_is_complete() -> None:
    wanted = {"table1", "table2", "table3", "table4", "fig1", "fig2_left", "fig2_right", "fig3_left", "fig3_right"}
    assert {name.removeprefix("fedexp/") for name in artifact_names() if name.startswith("fedexp/")} == wanted


@pytest.mark.parametrize("name", artifact_names())
def test_every_artifact_loads_and_asks_for_distinct_runs(name: str) -> None:
    artifact = load_artifact(name)
    first = artifact.path.read_text().splitlines()[0]
    assert first.startswith("# ")
    assert len(first) > 20
    for scale in SCALES:
        asked = requests(artifact, scale)
        assert asked
        keys = [(tuple(request.labels.items()), request.seed) for request in asked]
        assert len(set(keys)) == len(keys)
        assert {name for request in asked for name in request.labels} <= set(artifact.labels)
    assert len(requests(artifact, "smoke")) <= len(requests(artifact, "quick")) <= len(requests(artifact, "paper"))
    assert any(claim.expected != "either" for claim in artifact.declaration.claims) or artifact.declaration.use is not None


def test_the_sizes_that_the_issue_asks_for() -> None:
    table2 = requests(load_artifact("fedexp/table2"), "quick")
    assert len(table2) == 25 * 9
    assert {request.labels["dataset"] for request in table2} == {"synthetic"}
    assert len({request.seed for request in requests(load_artifact("fedexp/fig2_left"), "quick")}) == 10
    for scale, records, rounds in (("quick", 12, 25), ("paper", 60, 50)):
        configs = [request.config() for request in requests(load_artifact("fedexp/table4"), scale)]
        assert {config["partitioner"]["clients"] for config in configs} == {1000}
        assert {config["partitioner"]["records_per_client"] for config in configs} == {records}
        assert {config["rounds"] for config in configs} == {rounds}
        assert {config["evaluation"]["average_last"] for config in configs} == {2}


def test_figures_ask_for_the_very_runs_of_their_table() -> None:
    for figure, table in (("fig2_right", "table4"), ("fig3_right", "table4"), ("fig3_left", "fig2_left")):
        for scale in SCALES:
            mine = [request.config() for request in requests(load_artifact(f"fedexp/{figure}"), scale)]
            theirs = [request.config() for request in requests(load_artifact(f"fedexp/{table}"), scale)]
            assert mine
            assert all(config in theirs for config in mine)


@pytest.mark.parametrize(("name", "count"), [("table1", 8), ("table2", 36), ("table3", 9), ("table4", 9)])
def test_every_number_of_the_paper_is_matched_by_the_declaration(name: str, count: int) -> None:
    artifact = load_artifact(f"fedexp/{name}")
    assert len(PaperNumbers(artifact)) == count


def test_a_paper_number_is_found_by_its_labels() -> None:
    numbers = PaperNumbers(load_artifact("fedexp/table4"))
    found = numbers.find("accuracy", {"dp": "cdp", "method": "FedEXP"})
    assert found is not None
    assert (found.value, found.std) == (94.57, 0.19)
    assert numbers.find("accuracy", {"dp": "cdp", "method": "SCAFFOLD_clipped"}) is None


def test_seeds_axes_and_values_end_up_in_the_config(tmp_path: Path) -> None:
    artifact = declared(tmp_path)
    asked = requests(artifact, "quick")
    assert len(asked) == 2 * 3 * 3
    one = next(request for request in asked if request.labels == {"method": "FedAvg", "local_lr": 0.01} and request.seed == 2)
    config = one.config()
    assert (config["algorithm"]["name"], config["algorithm"]["local_lr"], config["seed"]) == ("fedavg", 0.01, 2)
    assert {request.config()["rounds"] for request in requests(artifact, "smoke")} == {2}


def test_a_zipped_table_leaves_out_adds_and_sets(tmp_path: Path) -> None:
    runs = copy.deepcopy(SMALL["runs"])
    runs[0]["zip"] = [
        {
            "labels": ["method", "setting"],
            "keys": ["algorithm.clip_norm"],
            "rows": [["FedEXP", "loose", 3.0], ["FedEXP", "tight", 0.1]],
        }
    ]
    found = requests(declared(tmp_path, runs=runs), "smoke")
    assert {(request.labels["method"], request.labels["setting"]) for request in found} == {
        ("FedEXP", "loose"),
        ("FedEXP", "tight"),
    }
    assert {request.config()["algorithm"]["clip_norm"] for request in found if request.labels["setting"] == "tight"} == {0.1}


def _changed(path: list[Any], value: Any) -> dict[str, Any]:
    values: Any = copy.deepcopy(SMALL)
    node = values
    for part in path[:-1]:
        node = node[part]
    if value is None:
        del node[path[-1]]
    else:
        node[path[-1]] = value
    return dict(values)


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        (["titel"], "x", "titel: unknown key; did you mean title?"),
        (["title"], None, "title: missing"),
        (["scales", "quick", "seds"], 3, "scales.quick.seds: unknown key; did you mean seeds?"),
        (["scales", "quick", "seeds"], 0, "greater than or equal to 1"),
        (["scales", "quick"], None, "`scales` must say"),
        (["runs", 0, "axis"], {}, "runs.0.axis: unknown key; did you mean axes?"),
        (["runs"], None, "`runs`, or `use`, or both"),
        (["figure"], [], "empty list"),
        (["figure", "measures"], ["curve", "distance"], "either `series`, or several measures"),
        (["scales", "quick", "axes"], {"method": ["FedEXP", "FedAvgg"]}, "no case 'FedAvgg'; did you mean FedAvg?"),
        (
            ["scales", "smoke", "set"],
            {"algorithm.local_lr": 0.1},
            "scales.smoke sets algorithm.local_lr, which runs.0.axes.local_lr",
        ),
        (["runs", 0, "at"], {"quick": {"algorithm.local_lr": 0.1}}, "scales.quick sets algorithm.local_lr"),
        (["best", 0, "measure"], "curve", "is a series"),
        (["measures", "distance", "better"], "least", "'lower' or 'higher'"),
        (["measures", "distance", "better"], None, "best.measure=distance: say which is better"),
        (
            ["measures", "distance", "at"],
            -1,
            "measures.distance.at: -1 is none of first, last, final, min, max, series, and no round",
        ),
        (["measures", "distance", "at"], "lest", "measures.distance.at: lest is none of first, last"),
        (["measures", "distance", "rounds"], [1, 2], "`rounds` is for a series"),
        (["measures", "distance", "per"], ["method"], "`per` is for a derived measure"),
        (["measures", "distance", "where"], {"best": True}, "best.measure=distance is known only after the choice"),
        (["measures", "late"], {"derived": "value('later')"}, "measures.late.derived: no measure 'later'"),
        (["measures", "late"], {"derived": "value('late')"}, "measures.late.derived: no measure 'late'"),
        (["measures", "late"], {"derived": "1 +"}, "measures.late.derived: predicate '1 +' cannot be read"),
        (["measures", "late"], {"derived": "1", "per": ["metod"]}, "measures.late.per: no label 'metod'; did you mean method?"),
        (["best"], [{"over": ["round"], "measure": "distance"}], "best.over: no label 'round'"),
        (["best"], [{"over": [], "measure": "distance"}], "best.0.over"),
        (["best", 0, "top"], 0, "greater than or equal to 1"),
        (["best", 0, "where"], {"best": True}, "best.where: a choice among chosen cells"),
        (["best", 0, "where"], {"metod": "FedAvg"}, "best.where: no label 'metod'; did you mean method?"),
        (["runs", 0, "labels"], {"rank": 1}, "a label cannot be called rank"),
        (["runs", 0, "labels"], {"epsilon": 1}, "runs.0: a label cannot be called epsilon, which is a column of table.csv"),
        (["runs", 0, "exclusive"], "yes", "runs.0.exclusive"),
        (["figure", "style"], "method", "`style` is a second label, beside `series`, of a figure of lines"),
        (["figure", "style"], "lr", "figure: no label 'lr'"),
        (["measures", "distance", "price"], "gdp", "exactly one of"),
        (["tables", 0, "rows"], ["metod"], "no label 'metod'; did you mean method?"),
        (["tables", 0, "cells"], ["distanse"], "did you mean distance?"),
        (["figure", "series"], "metod", "did you mean method?"),
        (["claims", 0, "predicate"], 'value("distanc") < 1', "claim order: no measure 'distanc'; did you mean distance?"),
        (["claims", 0, "predicate"], "1 +", "cannot be read"),
        (["claims", 0, "expected"], "hold", "expected"),
        (["best", 0, "over"], ["lr"], "best.over: no label 'lr'"),
        (["runs", 0, "axes", "local_lr", "values"], ["1e-4", 0.1], "yaml reads this as text"),
        (["runs", 0, "axes", "local_lr", "key"], None, "either `cases`, or a `key` and its `values`"),
        (["runs", 0, "zip"], [{"labels": ["method"], "rows": [["FedEXP", 1]]}], "row 1 has 2 entries"),
        (["scales", "quick", "axes"], {"lr": [1]}, "no axis 'lr'"),
    ],
)
def test_a_wrong_declaration_is_one_line(tmp_path: Path, path: list[Any], value: Any, says: str) -> None:
    file = tmp_path / "wrong.yaml"
    file.write_text(yaml.safe_dump(_changed(path, value)))
    with pytest.raises(ConfigError) as refused:
        load_artifact(str(file))
    message = str(refused.value)
    assert says in message
    assert "\n" not in message
    assert message.startswith("artifact local/wrong: ")


def test_what_needs_a_choice_or_runs_is_refused_without_them(tmp_path: Path) -> None:
    measures = {**SMALL["measures"], "chosen": {"metric": "distance", "where": {"best": True}}}
    with pytest.raises(ConfigError, match=r"measures.chosen.where: nothing is chosen here; it needs a `best` rule"):
        declared(tmp_path, measures=measures, best=[])
    runs = copy.deepcopy(SMALL["runs"])
    runs[0]["exclusive"] = True
    figure = {"kind": "bars", "x": "local_lr", "measures": ["clients"], "series": "method"}
    tables = [{"rows": ["method"], "cells": ["clients"]}]
    with pytest.raises(ConfigError, match=r"runs.0.exclusive: nothing is run here"):
        declared(tmp_path, runs=runs, measures={"clients": {"fact": "clients"}}, best=[], claims=[], tables=tables, figure=figure)


def test_a_config_key_that_does_not_exist_is_refused_with_the_artifact(tmp_path: Path) -> None:
    from dpfl_cli.reproduction.grid import cells

    runs = copy.deepcopy(SMALL["runs"])
    runs[0]["set"] = {"algorithm.localsteps": 3}
    with pytest.raises(ConfigError, match=r"artifact local/small \(method=FedEXP local_lr=0.001\): .*did you mean local_steps"):
        cells(declared(tmp_path, runs=runs), "smoke")


@pytest.mark.parametrize(
    ("word", "says"),
    [("fedexp/table5", "did you mean fedexp/table"), ("fedxp", "did you mean fedexp?"), ("nothing.yaml", "cannot be read")],
)
def test_an_unknown_artifact_gets_the_nearest_one(word: str, says: str) -> None:
    with pytest.raises(ConfigError) as refused:
        select_artifacts([word])
    assert says in str(refused.value)


def test_a_file_that_is_not_utf8_is_one_line(tmp_path: Path) -> None:
    file = tmp_path / "latin.yaml"
    file.write_bytes("title: Größe".encode("latin-1"))
    with pytest.raises(ConfigError, match="not UTF-8 text") as refused:
        load_artifact(str(file))
    assert "\n" not in str(refused.value)


def test_two_files_of_one_name_are_refused(tmp_path: Path) -> None:
    one, other = declared(tmp_path / "a"), declared(tmp_path / "b")
    with pytest.raises(ConfigError, match="is called local/small too; rename"):
        select_artifacts([str(one.path), str(other.path)])
    assert len(select_artifacts([str(one.path), str(tmp_path / "a" / ".." / "a" / "small.yaml")])) == 1


def test_runs_of_ones_own_stand_beside_those_of_another(tmp_path: Path) -> None:
    lender = declared(tmp_path)
    runs = copy.deepcopy(SMALL["runs"])
    runs[0]["axes"]["method"] = {"cases": {"SCAFFOLD": {"overrides": ["algorithm=scaffold"]}}}
    use = {"artifact": str(lender.path), "where": {"method": "FedEXP"}}
    both = declared(tmp_path, "both", runs=runs, use=use)
    assert [request.labels["method"] for request in requests(both, "quick")] == ["SCAFFOLD"] * 9 + ["FedEXP"] * 9
    assert {request.key for request in requests(both, "quick")} > {
        request.key for request in requests(lender, "quick") if request.labels["method"] == "FedEXP"
    }


@pytest.mark.parametrize("name", artifact_names())
def test_no_measure_is_declared_for_nothing(name: str) -> None:
    declaration = load_artifact(name).declaration
    used = {measure for spec in declaration.tables for measure in spec.cells} | {rule.measure for rule in declaration.best}
    used |= {measure for spec in declaration.figures for measure in [*spec.measures, spec.x]}
    used |= {mark.at for spec in declaration.figures for mark in spec.marks if isinstance(mark.at, str)}
    predicates = " ".join(claim.predicate for claim in declaration.claims)
    predicates += " ".join(measure.derived for measure in declaration.measures.values() if measure.derived)
    assert [measure for measure in declaration.measures if measure not in used and f'"{measure}"' not in predicates] == []


@pytest.mark.parametrize("name", artifact_names())
def test_an_expectation_is_open_only_where_nothing_was_measured(name: str) -> None:
    for claim in load_artifact(name).declaration.claims:
        assert claim.expected_at("paper" if claim.scale == "paper" else "quick") != "either", claim.id


def test_a_word_of_the_paper_may_be_several_measures() -> None:
    numbers = PaperNumbers(load_artifact("adaptdp/table2"))
    labels = {"level": 1, "method": "AdaptDP"}
    first, second = numbers.find("objective", {"task": "T1", **labels}), numbers.find("loss", {"task": "T3", **labels})
    assert first is not None
    assert second is not None
    assert (first.value, first.std, second.value) == (3.34e-7, 4.3e-8, 4.25e-5)
    assert numbers.find("accuracy", {"task": "T1", **labels}) is None


SEARCH = Path(expression.__file__).parent / "searches" / "fedexp_table4.csv"


def test_the_best_pairs_of_table4_are_those_of_its_search() -> None:
    lines = [line for line in SEARCH.read_text().splitlines() if not line.startswith("#")]
    cells: dict[tuple[str, str], dict[tuple[float, float], float]] = {}
    for row in csv.DictReader(lines):
        pair = (float(row["local_lr"]), float(row["clip_norm"]))
        cells.setdefault((row["dp"], row["method"]), {})[pair] = float(row["accuracy"] or "-inf")
    assert len(cells) == 9
    assert all(len(found) == 25 for found in cells.values())
    table = load_artifact("fedexp/table4").declaration.runs[0].zip[0]
    best = {(dp, method): (lr, clip) for dp, method, setting, lr, clip in table.rows if setting == "best"}
    assert best == {cell: max(found, key=found.__getitem__) for cell, found in cells.items()}


def test_words_select_artifacts_once() -> None:
    names = [artifact.name for artifact in select_artifacts(["fedexp/fig1", "fedexp", "all"])]
    assert names[0] == "fedexp/fig1"
    assert sorted(names) == artifact_names()
