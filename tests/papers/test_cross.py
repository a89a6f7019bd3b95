"""The league's ranks, against pandas' own, from the published accuracies."""

from pathlib import Path

import pandas as pd
import pytest

from dpfl_cli.papers.cross.league import CLIENTS, RECORDS, Grids
from dpfl_cli.reproduction.api import grid

PUBLISHED = Path(__file__).parents[2] / "outputs" / "published" / "cross"
CELL = ["task", "under", "eps", "seed"]


@pytest.mark.parametrize("scale", ["quick", "paper"])
@pytest.mark.parametrize("name", ["league", "league_records"])
def test_ranks_are_those_of_the_best_points_in_a_cell(name: str, scale: str) -> None:
    table = pd.read_csv(PUBLISHED / name / scale / "table.csv")
    best = table[(table.measure == "accuracy") & (table.best == True)]  # noqa: E712
    best = best.assign(value=best["value"].round(3))  # of equal counts, not to float32
    ranks = best.assign(rank=best.groupby(CELL)["value"].rank(ascending=False, method="min"))
    published = table[table.measure == "rank"].set_index([*CELL, "method"])["value"]
    expected = ranks.set_index([*CELL, "method"])["rank"]
    pd.testing.assert_series_equal(published.sort_index(), expected.sort_index(), check_names=False)
    mean = expected.groupby(["under", "method", "seed"]).mean()
    shown = table[table.measure == "mean_rank"].set_index(["under", "method", "seed"])["value"]
    pd.testing.assert_series_equal(shown.sort_index(), mean.sort_index(), check_names=False)


@pytest.mark.parametrize("grids", [CLIENTS, RECORDS])
def test_every_method_is_tried_at_as_many_points(grids: Grids) -> None:
    points = {method: [*grid(**labels)] for method, labels in grids.items()}
    assert {len(one) for one in points.values()} == {64}
