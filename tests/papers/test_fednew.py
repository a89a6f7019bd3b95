"""DP-FedNew's artifacts: the searches take points of the grids that Table 7 shows."""

from __future__ import annotations

from collections import defaultdict

import pytest

from dpfl_cli.papers import declared
from dpfl_cli.papers.fednew import clients, clients_wide, record_level, user_level
from dpfl_cli.papers.fednew._claims import crossing
from dpfl_cli.papers.fednew._search import WIDER_LOCAL_POINTS, WIDER_POINTS, WIDER_STEPS
from dpfl_cli.papers.fednew.setting import GRIDS
from dpfl_cli.reproduction.api import Artifact, Scale

RECORD_LEVEL = declared(clients) + declared(clients_wide) + declared(record_level)
USER_LEVEL = declared(user_level)
WIDER: dict[str, tuple[float, ...]] = defaultdict(  # where the ends of the grids were the best
    tuple,
    eta=(*WIDER_STEPS, 10.0, 30.0),
    clip=(0.03,),
    length=tuple(length for _, length in WIDER_LOCAL_POINTS),
    **{name: sum(WIDER_POINTS, ()) for name in ("alpha", "rho", "bound")},
)
PARAMETERS = {"gamma": "alpha", "gradient_clip": "clip"}  # label -> its name in Table 7


@pytest.mark.parametrize("scale", ["smoke", "quick", "paper"])
@pytest.mark.parametrize("artifact", RECORD_LEVEL + USER_LEVEL, ids=lambda one: one.id)
def test_searches_stay_within_the_grids_of_table_7(artifact: Artifact, scale: Scale) -> None:
    level = "_client" if artifact in USER_LEVEL else ""
    kinds = {"FN_FC": "FN", "FN_off": "FN", "FN_FC_off": "FN", "Scaf_share": "Scaf"}
    for run in artifact.runs(scale):
        method = str(run.labels["method"])
        grid = GRIDS[kinds.get(method, method) + level][2]
        for label, value in run.labels.items():
            parameter = PARAMETERS.get(label, label)
            known = [*grid.get(parameter, [value]), *(WIDER[parameter] if scale == "paper" else ())]
            assert value in known, (label, value)


def test_crossing_is_the_first_place_at_or_above_the_target() -> None:
    assert crossing([1, 3, 2], 3, [10, 20, 30]) == 20
    assert crossing([1, 3, 2], 4, [10, 20, 30]) == float("inf")
