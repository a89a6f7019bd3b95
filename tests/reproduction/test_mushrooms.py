"""The artifacts of ScaffNew on mushrooms: their step sizes and their noise are what their notes
say.
"""

from __future__ import annotations

import math
from typing import Any

import pytest

from dpfl_cli.config.errors import DataError
from dpfl_cli.data.sources import locate
from dpfl_cli.papers import artifacts
from dpfl_cli.reproduction.artifact import Scale
from dpfl_cli.reproduction.facts import problem_facts, scaffnew_bound
from dpfl_cli.reproduction.grid import Cell, requests
from dpfl_cli.simulation.plan import make_plan

NAMES = ("scaffnew/fig12", "scaffnew/fig12_splits", "scaffnew/scaling")


@pytest.fixture
def here() -> None:
    try:
        locate("mushrooms")
    except DataError as error:
        pytest.skip(str(error))


def of(name: str, scale: Scale = "quick", **labels: Any) -> list[Cell]:
    """The requests of an artifact whose labels have these values, of seed 0."""
    asked = [request for request in requests(artifacts()[name].at(scale)) if request.seed == 0]
    found = [
        one
        for one in asked
        if all(one.run.labels.get(label) == value for label, value in labels.items())
    ]
    assert found
    return found


@pytest.mark.parametrize("name", NAMES)
def test_every_run_has_the_settings_of_the_paper(name: str) -> None:
    for request in of(name):
        config = request.config()
        assert (config["dataset"]["name"], config["algorithm"]["name"]) == ("mushrooms", "scaffnew")
        assert (
            config["algorithm"]["control"]
            == {"ScaffNew": "sent", "FedAvg": "none"}[str(request.run.labels["method"])]
        )
        assert config["algorithm"]["final_release"] == (
            request.run.labels.get("coins") == "bernoulli_end"
        )
        assert config["rounds"] >= config["algorithm"]["local_steps"]
        if config["dp"]["name"] == "ldp":
            assert (config["dp"]["relation"], config["dp"]["delta"]) == ("zero_out", 1e-5)
            assert config["dp"]["epsilon"] == request.run.labels.get(
                "eps", request.run.labels.get("tenth")
            )
        if config["dp"]["calibration"] == "lemma1" and name != "scaffnew/scaling":
            assert math.isclose(config["dp"]["v"] * config["algorithm"]["clip_norm"] ** 2, 9.4e-7)


def test_the_noise_of_the_scaling_law_at_the_largest_clip_norm_is_that_of_the_figure() -> None:
    config = of("scaffnew/scaling", C=100.0)[0].config()
    assert math.isclose(config["dp"]["v"] * config["algorithm"]["clip_norm"] ** 2, 9.4e-7)


def test_all_divisors_of_480_are_tried_in_full_and_some_of_them_quickly() -> None:
    divisors = {number for number in range(1, 481) if 480 % number == 0}
    for name in NAMES:
        tried = {
            scale: {
                request.run.labels["tau"]
                for request in of(name, scale, method="FedAvg")
                if "tau" in request.run.labels
            }
            for scale in ("quick", "paper")
        }
        assert tried["quick"] < tried["paper"] == divisors


@pytest.mark.data
@pytest.mark.parametrize(
    ("name", "labels"),
    [
        ("scaffnew/fig12", {"sweep": "steps", "eps": 3.3}),
        ("scaffnew/fig12_splits", {"problem": "label100", "eps": 3.3}),
        ("scaffnew/fig12_splits", {"problem": "file25", "eps": 3.3}),
        ("scaffnew/fig12_splits", {"problem": "random100", "eps": 3.3}),
        ("scaffnew/scaling", {"C": 100.0, "eps": 3.3}),
    ],
)
def test_the_step_size_is_one_over_l(here: None, name: str, labels: dict[str, Any]) -> None:
    plan = make_plan(of(name, **labels)[0].config())
    step = plan.identity["algorithm"]["local_lr"]
    assert math.isclose(step * problem_facts(plan)["smoothness"], 1.0, rel_tol=1e-7)
    if "problem" not in labels:  # what the choice of v stands for
        assert math.isclose(scaffnew_bound(plan).argument, 500, rel_tol=0.01)
