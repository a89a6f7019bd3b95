"""From runs to rows: averages, spreads, divergence, best cells, prices; and the way through CSV."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dpfl_cli.config.errors import ConfigError
from dpfl_cli.reproduction.declaration import load_artifact
from dpfl_cli.reproduction.expression import Untestable, evaluate
from dpfl_cli.reproduction.grid import cells, requests
from dpfl_cli.reproduction.layout import page, table
from dpfl_cli.reproduction.reduce import reduce_layers, reduce_plans, reduce_runs
from dpfl_cli.reproduction.rows import Rows
from dpfl_cli.simulation.store import RunRecord, RunStore
from tests.reproduction.fabricated import SMALL, declared, publish_runs

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


LEVEL = "value('last', method='FedAvg', best=True)"
GRID: dict[str, Any] = {
    "runs": [
        {
            "overrides": [*SMALL["runs"][0]["overrides"], "dp.epsilon=1"],
            "labels": {"method": "FedEXP"},
            "axes": {
                "budget": {"key": "dp.epsilon", "values": [1.0, 8.0]},
                "local_lr": {"key": "algorithm.local_lr", "values": [0.001, 0.003, 0.01]},
                "clip_norm": {"key": "algorithm.clip_norm", "values": [0.1, 1.0]},
            },
        },
        {
            "overrides": [*SMALL["runs"][0]["overrides"], "dp.epsilon=1", "algorithm=fedavg"],
            "labels": {"method": "FedAvg"},
            "axes": {
                "budget": {"key": "dp.epsilon", "values": [1.0, 8.0]},
                "steps": {"cases": {"one": {"set": {"algorithm.local_steps": 1}}, "two": {}}},
            },
        },
    ],
    "measures": {
        "tuned": {"metric": "accuracy", "at": "final", "better": "higher"},
        "last": {"metric": "accuracy", "at": "last", "better": "higher"},
        "second": {"metric": "accuracy", "at": 2},
        "curve": {"metric": "accuracy", "at": "series", "where": {"best": True}},
        "seconds": {"metric": "timing.compute", "at": "series", "where": {"best": True}},
        "floats": {"metric": "communication.uplink_floats"},
        "curvature": {"metric": "communication.uses_curvature"},
        "reached": {
            "derived": f"crossing(values('curve', best=True), {LEVEL}, rounds('curve', best=True))",
            "per": ["method", "budget"],
        },
        "time": {
            "derived": f"crossing(values('curve', best=True), {LEVEL}, values('seconds', best=True))",
            "per": ["method", "budget"],
        },
        "never": {"derived": 'crossing(values("curve", best=True), 7)', "per": ["method", "budget"]},
    },
    "best": [{"over": ["local_lr", "clip_norm", "steps"], "measure": "tuned"}],
    "tables": [{"rows": ["method"], "columns": ["budget"], "cells": ["last", "reached", "never"], "where": {}}],
    "figure": {"kind": "lines", "x": "seconds", "measures": ["curve"], "series": "method", "where": {"best": True}},
    "claims": [],
}
# by local_lr and clip_norm: the mean of the last five evaluations chooses another cell than the last one would
AT_FOUR = {(0.001, 0.1): 0.9, (0.003, 1.0): 0.75}
EARLIER = {(0.001, 0.1): 0.1, (0.003, 1.0): 0.5}


def grid_curve(labels: Any, seed: int, number: int) -> dict[str, float]:
    """Chosen are (0.003, 1.0), which reaches .375 at once, and one local step."""
    if labels["method"] == "FedAvg":
        return {"accuracy": 0.375 if labels["steps"] == "one" else 0.2}
    cell = (labels["local_lr"], labels["clip_norm"])
    return {"accuracy": (AT_FOUR if number == 4 else EARLIER).get(cell, 0.05) if number else 0.0}


def grid_rows(folder: Path, curve: Any = grid_curve, **changes: Any) -> tuple[Any, Rows]:
    artifact = declared(folder, **{**GRID, **changes})
    store = RunStore(folder / "outputs")
    found = publish_runs(artifact, "quick", store, curve)
    return artifact, reduce_runs(artifact, found, {cell.plan.id: store.match(cell.plan.id) for cell in found})


def test_one_measure_chooses_separately_and_others_are_shown_of_the_chosen_cell(tmp_path: Path) -> None:
    _, rows = grid_rows(tmp_path)
    for budget in (1.0, 8.0):
        cell = {"method": "FedEXP", "budget": budget}
        assert (rows.value("best.local_lr", **cell), rows.value("best.clip_norm", **cell)) == (0.003, 1.0)
        assert rows.value("last", best=True, **cell) == 0.75  # not .9, which another cell ends at
        assert rows.value("second", best=True, **cell) == 0.5
        assert rows.values("curve", best=True, **cell) == [0.0, 0.5, 0.5, 0.5, 0.75]
        assert rows.values("curve", **cell) == rows.values("curve", best=True, **cell)  # of no other cell
        assert rows.values("seconds", **cell) == [0.25, 0.75, 1.25, 1.75, 2.25]
        assert not rows.where({"method": "FedAvg"}, ["best.local_lr", "best.clip_norm"])  # no grid of this method
        assert rows.value("best.steps", method="FedAvg", budget=budget) == "one"


def test_a_series_of_chosen_cells_reads_no_other_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    series = RunRecord.series
    monkeypatch.setattr(RunRecord, "series", lambda self, metric: read.append(self.id) or series(self, metric))
    measures = {name: measure for name, measure in GRID["measures"].items() if name != "second"}
    grid_rows(tmp_path, measures=measures)
    assert len(set(read)) == 2 * 2 * 3  # methods x epsilons x seeds, of 2 x 8 cells


def test_the_edge_of_a_numeric_axis_is_flagged(tmp_path: Path) -> None:
    artifact, rows = grid_rows(tmp_path / "inner")
    assert {row.edge for row in rows.rows} == {"", "clip_norm=1 (larger of 2)"}  # local_lr is inside, steps are no numbers
    axes = {**GRID["runs"][0]["axes"], "clip_norm": {"key": "algorithm.clip_norm", "values": [1.0]}}  # one value is no search

    def largest(labels: Any, seed: int, number: int) -> dict[str, float]:
        return {"accuracy": labels.get("local_lr", 0.5)}

    artifact, rows = grid_rows(tmp_path / "outer", largest, runs=[{**GRID["runs"][0], "axes": axes}, GRID["runs"][1]])
    cell = {"method": "FedEXP", "budget": 1.0}
    said = "local_lr=0.01 (largest of 3)"
    assert rows.one("last", {**cell, "best": True}).edge == said
    assert rows.one("best.local_lr", cell).edge == said
    assert rows.one("best.clip_norm", cell).edge == ""
    assert {row.edge for row in rows.where({"best": False}, ["last", "tuned"])} == {""}
    text = rows.to_csv("local/small", "quick")
    back = Rows.from_csv(text, "table.csv")
    assert back.one("last", {**cell, "best": True}).edge == said
    layout = artifact.declaration.tables[0].model_copy(update={"where": {"best": True}})
    assert "| FedEXP | 0.01 ± 0 (edge)" in table(artifact, layout, back)
    artifact = declared(
        tmp_path / "outer", **{**GRID, "tables": [layout.model_copy(update={"cells": ["last", "tuned"]}).model_dump()]}
    )
    assert "(edge): the chosen point lies at the end of what was searched: local_lr 0.01 (largest of 3) in 2 cells." in page(
        artifact, "quick", back, [], []
    )
    older = "\n".join(line.replace(",edge,", ",") for line in text.splitlines()[:1])
    assert Rows.from_csv(older, "table.csv").rows == []  # a table from before there was the column


def test_a_derived_measure_is_a_number_of_other_rows(tmp_path: Path) -> None:
    artifact, rows = grid_rows(tmp_path)
    assert rows.value("reached", method="FedEXP", budget=1.0) == 1  # .5 after one round, and FedAvg ends at .375
    assert rows.value("time", method="FedEXP", budget=1.0) == 0.75
    assert rows.value("reached", method="FedAvg", budget=8.0) == 0
    assert evaluate('value("never", method="FedEXP", budget=1.0) > 1000', rows)
    assert "| FedEXP |" in (text := table(artifact, artifact.declaration.tables[0], rows))
    assert ", 1, never" in text


def test_a_derived_measure_is_as_complete_as_what_it_is_made_from(tmp_path: Path) -> None:
    artifact = declared(tmp_path, **GRID)
    store = RunStore(tmp_path / "outputs")
    found = publish_runs(artifact, "quick", store, grid_curve)
    kept = [cell for cell in found if cell.labels["method"] == "FedEXP" or cell.seed > 0]
    rows = reduce_runs(artifact, found, {cell.plan.id: store.match(cell.plan.id) for cell in kept})
    row = rows.one("reached", {"method": "FedEXP", "budget": 1.0})
    assert (row.n, row.seeds) == (2, 3)
    kept = [cell for cell in found if cell.labels["method"] == "FedEXP"]
    rows = reduce_runs(artifact, found, {cell.plan.id: store.match(cell.plan.id) for cell in kept})
    row = rows.one("reached", {"method": "FedEXP", "budget": 1.0})
    assert math.isnan(row.value)
    assert "no number for last" in row.note


def test_the_best_few_of_a_grid_at_some_rounds(tmp_path: Path) -> None:
    measures = {
        "at": {"metric": "distance", "at": "series", "rounds": [1, 4], "better": "lower"},
        "other": {"metric": "server_step", "at": "series", "rounds": [1, 4]},
    }

    def crossing(labels: Any, seed: int, number: int) -> dict[str, float]:
        return {
            "distance": (0.5 if labels["local_lr"] == 0.003 else 250 * labels["local_lr"]) * (2 - number),
            "server_step": 1000 * labels["local_lr"] + number,
        }

    artifact = declared(
        tmp_path,
        measures=measures,
        best=[{"over": ["local_lr"], "measure": "at", "top": 2}],
        claims=[],
        tables=[
            {
                "rows": ["rank"],
                "columns": ["round"],
                "cells": ["best.local_lr", "at"],
                "where": {"method": "FedAvg", "rank": [1, 2]},
            }
        ],
        figure={"kind": "lines", "x": "round", "measures": ["at"], "series": "method", "where": {"best": True}},
    )
    store = RunStore(tmp_path / "outputs")
    found = publish_runs(artifact, "quick", store, crossing)
    rows = reduce_runs(artifact, found, {cell.plan.id: store.match(cell.plan.id) for cell in found})
    assert rows.choices("rank") == [1, 2]
    assert rows.choices("round") == [1, 4]
    for number, order in ((1, [0.001, 0.003]), (4, [0.01, 0.003])):
        assert rows.values("best.local_lr", method="FedAvg", round=number) == order
        for rank, rate in enumerate(order, start=1):
            cell = {"method": "FedAvg", "round": number, "rank": rank}
            assert rows.one("other", cell).labels["local_lr"] == rate
            assert rows.one("at", cell).best is (rank == 1)
    assert rows.one("at", {"method": "FedAvg", "round": 1, "rank": 1}).edge == "local_lr=0.001 (smallest of 3)"
    assert "rank" not in rows.one("at", {"method": "FedAvg", "round": 1, "local_lr": 0.01}).labels
    lines = table(artifact, artifact.declaration.tables[0], rows).splitlines()
    assert lines[0] == "| rank | round 1 | round 4 |"
    assert lines[3] == "| 2 | 0.003, 0.5 ± 0 | 0.003, -1 ± 0 |"
    assert Rows.from_csv(rows.to_csv("local/small", "quick"), "table.csv").choices("rank") == [1, 2]


def test_a_round_that_was_not_evaluated_is_unknown_and_one_after_divergence_is_bad(tmp_path: Path) -> None:
    measures = {
        "third": {"metric": "distance", "at": 3, "better": "lower"},
        "late": {"metric": "distance", "at": 33, "better": "lower"},
    }
    changes: dict[str, Any] = {
        "measures": measures,
        "best": [],
        "claims": [],
        "tables": [{"rows": ["method"], "cells": ["third", "late"]}],
        "figure": {"kind": "bars", "x": "local_lr", "measures": ["third"], "series": "method"},
    }
    rows = reduced(tmp_path, diverged=lambda labels, seed: labels["method"] == "FedAvg" and seed == 1, **changes)
    assert rows.value("third", method="FedEXP", local_lr=0.001) == pytest.approx(3 + 0.1 - 0.75)
    assert rows.value("third", method="FedAvg", local_lr=0.001) == math.inf
    with pytest.raises(Untestable, match="late: round 33 was not evaluated"):
        rows.value("late", method="FedEXP", local_lr=0.001)


def test_counted_communication_is_a_measure(tmp_path: Path) -> None:
    _, rows = grid_rows(tmp_path)
    cell = {"budget": 1.0, "best": True}
    assert rows.value("floats", method="FedEXP", **cell) == 160.0
    assert (rows.value("curvature", method="FedEXP", **cell), rows.value("curvature", method="FedAvg", **cell)) == ("yes", "no")


def test_a_path_into_the_result_that_is_no_number_is_one_line(tmp_path: Path) -> None:
    for metric, says in (("data.clients.x", None), ("metrics.last", "leads to no mapping of rounds"), ("status.x", None)):
        measures = {"odd": {"metric": metric, "at": "max"}, "distance": {"metric": "distance", "better": "lower"}}
        changes: dict[str, Any] = {
            "measures": measures,
            "claims": [],
            "figure": {"kind": "bars", "x": "local_lr", "measures": ["distance"], "series": "method"},
        }
        if says is None:
            assert not reduced(tmp_path, **changes).where({}, ["odd"])
        else:
            with pytest.raises(ConfigError, match=says):
                reduced(tmp_path, **changes)
