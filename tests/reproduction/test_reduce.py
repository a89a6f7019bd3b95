"""From runs to rows: averages, spreads, divergence, best cells, prices; and the way through CSV."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dpfl_cli.reproduction.declaration import load_artifact
from dpfl_cli.reproduction.expression import evaluate
from dpfl_cli.reproduction.grid import cells, requests
from dpfl_cli.reproduction.layout import table
from dpfl_cli.reproduction.reduce import reduce_layers, reduce_plans, reduce_runs
from dpfl_cli.reproduction.rows import Rows
from dpfl_cli.simulation.store import RunStore
from tests.reproduction.fabricated import declared, publish_runs

DISTANCE = {0: 1.0, 1: 2.0, 2: 6.0}  # by seed


def curve(labels: Any, seed: int, number: int) -> dict[str, float]:
    offset = {"FedEXP": 0.0, "FedAvg": 10.0}[labels["method"]] + 100 * labels["local_lr"]
    row = {"distance": DISTANCE[seed] + offset - 0.25 * number}
    return {**row, "server_step": 5.0 + number} if labels["method"] == "FedEXP" and number else row


def reduced(folder: Path, diverged: Any = None, left_out: int | None = None, **changes: Any) -> Rows:
    artifact = declared(folder, **changes)
    store = RunStore(folder / "outputs")
    found = publish_runs(artifact, "quick", store, curve, diverged)
    records = {cell.plan.id: store.match(cell.plan.id) for cell in found if cell.seed != left_out}
    return reduce_runs(artifact, found, records)


def test_mean_and_sample_spread_over_seeds(tmp_path: Path) -> None:
    rows = reduced(tmp_path)
    row = rows.one("distance", {"method": "FedEXP", "local_lr": 0.001})
    assert row.value == pytest.approx((1 + 2 + 6) / 3 + 0.1 - 1.0)
    assert row.std == pytest.approx(math.sqrt(((1 - 3) ** 2 + (2 - 3) ** 2 + (6 - 3) ** 2) / 2))
    assert (row.n, row.diverged) == (3, 0)


def test_a_series_has_a_row_a_round_and_an_absent_metric_its_constant(tmp_path: Path) -> None:
    rows = reduced(tmp_path)
    assert len(rows.where({"method": "FedEXP", "local_lr": 0.001}, ["curve"])) == 5
    assert rows.value("curve", method="FedEXP", local_lr=0.001, round=2) == pytest.approx(3 + 0.1 - 0.5)
    assert rows.value("step", method="FedEXP", local_lr=0.001) == 9.0
    assert rows.value("step", method="FedAvg", local_lr=0.001) == 1.0


def test_a_measure_may_be_a_sum_of_metrics(tmp_path: Path) -> None:
    """A run that does not report one of them adds nothing for it: FedAvg reports no server step."""
    measures = {
        "sum": {"metric": "distance", "plus": ["server_step"], "at": "last", "better": "lower"},
        "curve": {"metric": "distance", "plus": ["server_step"], "at": "series", "better": "lower"},
    }
    figure = {"kind": "lines", "x": "round", "measures": ["curve"], "series": "method", "where": {"local_lr": 0.003}}
    rows = reduced(
        tmp_path,
        measures=measures,
        best=[],
        claims=[],
        figure=figure,
        tables=[{"rows": ["method"], "columns": ["local_lr"], "cells": ["sum"]}],
    )
    assert rows.value("sum", method="FedEXP", local_lr=0.001) == pytest.approx(3 + 0.1 - 1.0 + 9.0)
    assert rows.value("curve", method="FedEXP", local_lr=0.001, round=4) == pytest.approx(3 + 0.1 - 1.0 + 9.0)
    assert rows.value("sum", method="FedAvg", local_lr=0.001) == rows.value("curve", method="FedAvg", local_lr=0.001, round=4)


def test_a_diverged_run_counts_as_infinitely_bad(tmp_path: Path) -> None:
    rows = reduced(
        tmp_path, diverged=lambda labels, seed: labels["method"] == "FedAvg" and labels["local_lr"] == 0.01 and seed == 1
    )
    row = rows.one("distance", {"method": "FedAvg", "local_lr": 0.01})
    assert row.value == math.inf
    assert (row.std, row.n, row.diverged) == (None, 3, 1)
    assert math.isfinite(rows.value("curve", method="FedAvg", local_lr=0.01, round=1))
    assert rows.value("curve", method="FedAvg", local_lr=0.01, round=2) == math.inf
    assert rows.value("distance", method="FedAvg", best=True) == rows.value("distance", method="FedAvg", local_lr=0.001)


def test_a_missing_run_is_left_out_and_counted(tmp_path: Path) -> None:
    row = reduced(tmp_path, left_out=2).one("distance", {"method": "FedEXP", "local_lr": 0.001})
    assert row.n == 2
    assert row.value == pytest.approx(1.5 + 0.1 - 1.0)


def test_what_a_diverged_run_reported_before_counts(tmp_path: Path) -> None:
    measures = {
        "distance": {"metric": "distance", "at": "last", "better": "lower"},
        "start": {"metric": "distance", "at": "first", "better": "lower"},
        "least": {"metric": "distance", "at": "min", "better": "lower"},
        "curve": {"metric": "distance", "at": "series", "better": "lower"},
        "step": {"metric": "server_step", "at": "last"},
    }
    rows = reduced(tmp_path, measures=measures, diverged=lambda labels, seed: labels["method"] == "FedAvg" and seed == 1)
    cell = {"method": "FedAvg", "local_lr": 0.001}
    assert rows.value("distance", **cell) == math.inf
    assert rows.value("start", **cell) == pytest.approx(3 + 10 + 0.1)
    assert rows.value("least", **cell) == pytest.approx(3 + 10 + 0.1 - (1.0 + 0.25 + 1.0) / 3)
    final_above_start = "value('distance', method='FedAvg', local_lr=0.001) > value('start', method='FedAvg', local_lr=0.001)"
    assert evaluate(final_above_start, rows)


def test_the_lowest_of_all_seeds_is_not_their_mean(tmp_path: Path) -> None:
    measures = {
        "distance": {"metric": "distance", "better": "lower"},
        "least": {"metric": "distance", "at": "min", "seeds": "min"},
        "curve": {"metric": "distance", "at": "series"},
        "step": {"metric": "server_step", "at": "last"},
    }
    row = reduced(tmp_path, measures=measures).one("least", {"method": "FedEXP", "local_lr": 0.001})
    assert (row.value, row.std, row.n) == (pytest.approx(1 + 0.1 - 1.0), None, 3)


def test_a_group_without_a_run_is_a_row_that_says_so(tmp_path: Path) -> None:
    artifact = declared(tmp_path)
    store = RunStore(tmp_path / "outputs")
    found = publish_runs(artifact, "quick", store, curve)
    ended = [cell for cell in found if (cell.labels["method"], cell.labels["local_lr"]) != ("FedAvg", 0.01)]
    rows = reduce_runs(artifact, found, {cell.plan.id: store.match(cell.plan.id) for cell in ended})
    row = rows.one("distance", {"method": "FedAvg", "local_lr": 0.01})
    assert (row.n, row.seeds, row.note) == (0, 3, "no run ended")
    choice = rows.one("best.local_lr", {"method": "FedAvg"})  # of two cells that are there, and one that is not
    assert (choice.n, choice.seeds) == (0, 3)


def test_points_of_a_series_are_marked_as_best_too(tmp_path: Path) -> None:
    rows = reduced(tmp_path)
    best = rows.where({"best": True, "method": "FedAvg"}, ["curve"])
    assert {row.labels["local_lr"] for row in best} == {0.001}
    assert [row.labels["round"] for row in best] == [0, 1, 2, 3, 4]


def test_facts_may_be_text(tmp_path: Path) -> None:
    artifact = declared(
        tmp_path,
        measures={"accountant": {"fact": "accountant.name"}, "power": {"formula": 'fact("clients") ** 2'}},
        best=[],
        claims=[],
        tables=[{"rows": ["method"], "cells": ["accountant"]}],
        figure={"kind": "bars", "x": "local_lr", "measures": ["power"], "series": "method"},
    )
    rows = reduce_plans(artifact, cells(artifact, "quick"))
    assert rows.value("accountant", method="FedEXP", local_lr=0.003) == "gdp"
    assert rows.value("power", method="FedEXP", local_lr=0.003) == 64
    assert "| FedEXP | gdp, gdp, gdp |" in table(artifact, artifact.declaration.tables[0], rows)
    assert Rows.from_csv(rows.to_csv("local/small", "quick"), "table.csv").rows[0].text == "gdp"


def test_the_best_cell_is_marked_and_the_edge_said(tmp_path: Path) -> None:
    rows = reduced(tmp_path)
    assert rows.value("best.local_lr", method="FedEXP") == 0.001
    assert rows.one("best.local_lr", {"method": "FedEXP"}).note == "edge of the grid"
    assert [row.labels["local_lr"] for row in rows.where({"best": True, "method": "FedAvg"}, ["distance"])] == [0.001]

    def bowl(labels: Any, seed: int, number: int) -> dict[str, float]:
        return {"distance": abs(labels["local_lr"] - 0.003)}

    artifact = declared(tmp_path / "bowl", best=[{"over": ["local_lr"], "measure": "distance", "note": "tuned on test data"}])
    store = RunStore(tmp_path / "bowl" / "outputs")
    found = publish_runs(artifact, "quick", store, bowl)
    inner = reduce_runs(artifact, found, {cell.plan.id: store.match(cell.plan.id) for cell in found})
    assert inner.value("best.local_lr", method="FedAvg") == 0.003
    assert inner.one("best.local_lr", {"method": "FedAvg"}).note == "tuned on test data"


def test_a_row_with_an_epsilon_says_all_that_belongs_to_it(tmp_path: Path) -> None:
    rows = reduced(tmp_path)
    for row in rows.rows:
        if row.measure.startswith("best."):
            continue
        privacy = row.privacy
        assert privacy["epsilon"] > 0
        assert (privacy["unit"], privacy["relation"], privacy["delta"]) == ("client", "replace_one", 1e-5)
        assert privacy["releases"] == 4
        assert privacy["accountant"] == "gdp"
        assert privacy["vacuous"] is True
        assert "tuning not included" in privacy["not_covered"]


def test_rows_come_back_from_csv_bit_by_bit(tmp_path: Path) -> None:
    rows = reduced(tmp_path, diverged=lambda labels, seed: labels["method"] == "FedAvg" and seed == 0)
    text = rows.to_csv("local/small", "quick")
    back = Rows.from_csv(text, "table.csv")
    assert list(back.labels) == list(rows.labels)
    for one, other in zip(rows.rows, back.rows, strict=True):
        assert replace(one, extras={}) == other


def test_a_path_into_the_result_is_a_measure_too(tmp_path: Path) -> None:
    rows = reduced(
        tmp_path,
        measures={"distance": {"metric": "distance", "better": "lower"}, "seconds": {"metric": "timing.seconds"}},
        figure={"kind": "bars", "x": "local_lr", "measures": ["seconds"], "series": "method"},
        tables=[{"rows": ["method"], "cells": ["seconds"]}],
    )
    assert rows.value("seconds", method="FedEXP", local_lr=0.003) == 1.5


def test_facts_and_formulas_need_no_training(tmp_path: Path) -> None:
    artifact = declared(
        tmp_path,
        measures={
            "floats": {"formula": '2 * fact("clients") * fact("dimension") * fact("rounds")'},
            "clients": {"fact": "clients"},
        },
        best=[],
        claims=[],
        tables=[{"rows": ["method"], "cells": ["floats"]}],
        figure={"kind": "bars", "x": "local_lr", "measures": ["floats"], "series": "method"},
    )
    rows = reduce_plans(artifact, cells(artifact, "quick"))
    assert rows.value("floats", method="FedEXP", local_lr=0.003) == 2 * 8 * 4 * 4
    assert rows.value("clients", method="FedAvg", local_lr=0.003) == 8


def test_prices_are_those_of_the_planned_ledger() -> None:
    artifact = load_artifact("fedexp/table1")
    rows = reduce_plans(artifact, cells(artifact, "quick"))
    printed = {row.value for row in rows.where({}, ["paper_convention"])}
    assert printed == {15.659, 6.0, 15.647, 15.258, 15.261}
    assert all(row.value == row.paper for row in rows.where({}, ["paper_convention"]))
    assert rows.value("epsilon", row="cdp_synthetic", method="FedEXP") == pytest.approx(15.850909, abs=1e-6)
    assert rows.value("epsilon", row="cdp_mnist", method="FedEXP") == pytest.approx(15.460054, abs=1e-6)
    assert rows.value("epsilon", row="cdp_mnist", method="FedAvg") == pytest.approx(15.456156, abs=1e-6)
    assert rows.value("joint", row="cdp_synthetic", method="FedEXP") == pytest.approx(15.456156, abs=1e-6)
    assert not rows.where({"row": "ldp_privunit"}, ["joint"])


def test_layers_are_read_from_the_models() -> None:
    artifact = load_artifact("fedexp/table3")
    rows = reduce_layers(artifact, requests(artifact, "quick"))
    paper = [row for row in rows.rows if row.paper is not None]
    assert len(paper) == 9
    assert all(row.value == row.paper for row in paper)
    for setting in ("CDP", "LDP"):
        layers = rows.where({"setting": setting}, ["parameters"])
        assert sum(row.value for row in layers if row.labels["layer"] != "total") == rows.value(
            "parameters", setting=setting, layer="total"
        )
