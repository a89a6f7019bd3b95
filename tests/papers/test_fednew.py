"""DP-FedNew's artifacts: the searches take points of the grids that Table 7 shows."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from dpfl_cli.papers import declared
from dpfl_cli.papers.fednew import clients, clients_wide, record_level, user_level
from dpfl_cli.papers.fednew._claims import crossing
from dpfl_cli.papers.fednew.setting import PARAMETER_OF, grids
from dpfl_cli.reproduction.api import Artifact, Scale

PUBLISHED = Path(__file__).parents[2] / "outputs/published"
RECORD_LEVEL = declared(clients) + declared(clients_wide) + declared(record_level)
USER_LEVEL = declared(user_level)


@pytest.mark.parametrize("scale", ["quick", "paper"])
@pytest.mark.parametrize("artifact", RECORD_LEVEL + USER_LEVEL, ids=lambda one: one.id)
def test_searches_stay_within_the_grids_of_table_7(artifact: Artifact, scale: Scale) -> None:
    level = "_client" if artifact in USER_LEVEL else ""
    kinds = {"FN_FC": "FN", "FN_off": "FN", "FN_FC_off": "FN", "Scaf_share": "Scaf"}
    known = grids(scale)
    for run in artifact.runs(scale):
        method = str(run.labels["method"]).removesuffix("_narrow")
        grid = known[kinds.get(method, method) + level]
        for label, value in run.labels.items():
            assert value in grid.get(PARAMETER_OF.get(label, label), [value]), (label, value)


def test_table_7_lists_what_the_searches_take() -> None:
    page = pd.read_csv(PUBLISHED / "fednew/table7/paper/table.csv").query("measure == parameter")
    listed = page.sort_values("value").groupby(["method", "parameter"])["value"].agg(list)
    wanted = {
        (one, name): many for one, its in grids("paper").items() for name, many in its.items()
    }
    assert listed.to_dict() == wanted


@pytest.mark.parametrize("artifact", RECORD_LEVEL, ids=lambda one: one.id)
def test_how_long_the_local_steps_of_dp_scaffold_may_be(artifact: Artifact) -> None:
    searched = [one.labels for one in artifact.runs("paper") if one.labels["method"] == "Scaf"]
    epsilons = {one["eps"] for one in searched}
    longest = {eps: max(one["length"] for one in searched if one["eps"] == eps) for eps in epsilons}
    longer = artifact.id in ("fig2", "table5", "table4")  # clients of the first two differ
    assert longest == dict.fromkeys(epsilons, 1024.0 if longer else 256.0)


E9, E6 = (0.1, 0.3, 0.5, 0.7, 1, 2, 3, 8, 10), (0.1, 0.5, 1, 2, 3, 10)  # the paper's
PRINTED = {"fig6": E6[2:]}  # user level, from 1 on
CLIENTS = {"table5": 5, "table8": 4, "table11": 4}  # numbers of clients in the table; others 5


@pytest.mark.parametrize("artifact", RECORD_LEVEL + USER_LEVEL, ids=lambda one: one.id)
def test_the_papers_size_says_which_part_of_the_cells_it_has(artifact: Artifact) -> None:
    runs, said = [*artifact.runs("paper")], artifact.at("paper").size.cells
    table = artifact.id.startswith("table")
    printed = PRINTED.get(artifact.id, E9 if table else E6)
    epsilons = {run.labels["eps"] for run in runs}
    inside = epsilons & {*printed}
    parts = [f"{len(inside)} of {len(printed)} epsilons"] if len(inside) < len(printed) else []
    parts += ["and 8"] if epsilons > inside else []
    if table:
        run, of = len({run.labels["clients"] for run in runs}), CLIENTS.get(artifact.id, 5)
        parts += [f"{run} of {of} numbers of clients"] if run < of else []
    assert said == ", ".join(parts)


def test_crossing_is_the_first_place_at_or_above_the_target() -> None:
    assert crossing([1, 3, 2], 3, [10, 20, 30]) == 20
    assert crossing([1, 3, 2], 4, [10, 20, 30]) == float("inf")
