"""What a plan is said to cost on the worst data known, beside what is claimed of it."""

from __future__ import annotations

from typing import Any

import pytest

from dpfl_cli.config.compose import compose_config
from dpfl_cli.config.errors import ConfigError
from dpfl_cli.reproduction.facts import PROVED, attack_facts
from dpfl_cli.simulation.plan import make_plan

PLAIN = [
    "dataset=synthetic_alpha_beta",
    "dataset.clients=5",
    "dataset.records_per_client=25",
    "dp=secure_aggregation",
    "dp.epsilon=1",
]
CLIENT = [
    *PLAIN,
    "algorithm=fednew",
    "algorithm.clip_norm=0.1",
    "dp.unit=client",
    "dp.relation=zero_out",
    "rounds=70",
    "dp.delta=1e-5",
]
RECORD = [
    *PLAIN,
    "algorithm=fednew_record",
    "dp.unit=record",
    "dp.relation=add_or_remove",
    "rounds=4",
    "dp.delta=1e-3",
]
PAPER = ["algorithm.dual=paper", "dp.mode=paper"]
SCALED = [*PAPER, "algorithm.bound_aux=xi", "algorithm.sensitivity=paper"]


def facts(overrides: list[str]) -> dict[str, Any]:
    return dict(attack_facts(make_plan(compose_config(overrides))))


def test_a_hidden_dual_costs_what_the_closed_form_says() -> None:
    found = facts([*CLIENT, *PAPER, "dataset.clients=500"])
    assert found["claimed"] == pytest.approx(1.0, abs=1e-4)
    assert (found["factor"], found["exact"]) == (
        pytest.approx(18.2, abs=0.05),
        pytest.approx(31.9, abs=0.1),
    )


@pytest.mark.parametrize("dual", ["off", "own_update"])
def test_a_proved_variant_has_no_number(dual: str) -> None:
    found = facts([*CLIENT, f"algorithm.dual={dual}"])
    assert found["claimed"] == pytest.approx(1.0, abs=1e-4)
    assert found["factor"] == found["exact"] == PROVED


def test_a_factor_below_one_is_told() -> None:
    scaled, proved = (
        facts([*RECORD, *SCALED]),
        facts(RECORD),
    )
    assert scaled["factor"] > 1 > proved["factor"] > 0
    assert scaled["exact"] > scaled["claimed"] > proved["exact"]
    assert proved["shares"] == 1.0


def test_methods_without_an_attack_are_one_line() -> None:
    with pytest.raises(ConfigError, match="facts of an attack are of algorithm=fednew"):
        facts([*RECORD, "algorithm=fedgd_record"])
