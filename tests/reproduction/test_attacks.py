"""What a plan is said to cost on the worst data known, beside what is claimed of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dpfl_cli.config.errors import ConfigError
from dpfl_cli.reproduction.attacks import PROVED, attack_facts
from dpfl_cli.reproduction.grid import cells
from tests.reproduction.fabricated import declared

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
RECORD = [*PLAIN, "algorithm=fednew_record", "dp.unit=record", "dp.relation=add_or_remove", "rounds=4", "dp.delta=1e-3"]
PAPER = ["algorithm.dual=paper", "dp.mode=paper"]
SCALED = [*PAPER, "algorithm.bound_aux=xi", "algorithm.sensitivity=paper"]


def facts(folder: Path, overrides: list[str]) -> dict[str, Any]:
    artifact = declared(
        folder,
        runs=[{"overrides": overrides, "labels": {"method": "one"}}],
        measures={"claimed": {"fact": "attack.claimed"}},
        best=[],
        claims=[],
        tables=[{"rows": ["method"], "cells": ["claimed"]}],
        figure={"kind": "bars", "x": "method", "measures": ["claimed"]},
    )
    return dict(attack_facts(cells(artifact, "quick")[0].plan))


def test_a_hidden_dual_costs_what_the_closed_form_says(tmp_path: Path) -> None:
    found = facts(tmp_path, [*CLIENT, *PAPER])
    assert found["claimed"] == pytest.approx(1.0, abs=1e-4)
    assert (found["factor"], found["exact"]) == (pytest.approx(37.2, abs=0.05), pytest.approx(91.5, abs=0.1))


@pytest.mark.parametrize("dual", ["off", "own_update"])
def test_a_proved_variant_has_no_number(tmp_path: Path, dual: str) -> None:
    found = facts(tmp_path, [*CLIENT, f"algorithm.dual={dual}"])
    assert found["claimed"] == pytest.approx(1.0, abs=1e-4)
    assert found["factor"] == found["exact"] == PROVED


def test_a_factor_below_one_is_told(tmp_path: Path) -> None:
    scaled, proved = facts(tmp_path / "scaled", [*RECORD, *SCALED]), facts(tmp_path / "proved", RECORD)
    assert scaled["factor"] > 1 > proved["factor"] > 0
    assert scaled["exact"] > scaled["claimed"] > proved["exact"]
    assert proved["shares"] == 1.0


def test_methods_without_an_attack_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="facts of an attack are of algorithm=fednew"):
        facts(tmp_path, [*RECORD, "algorithm=fedgd_record"])
