"""Verdicts: true, false, untestable; a changed number changes the verdict."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from dpfl_cli.reproduction.claims import FAILS, HOLDS, UNTESTABLE, count_verdicts, judge
from dpfl_cli.reproduction.declaration import load_artifact
from dpfl_cli.reproduction.layout import claims_table
from dpfl_cli.reproduction.rows import Row, Rows
from tests.reproduction.fabricated import SMALL, declared

CLAIM = SMALL["claims"][0]


def rows(fedexp: float = 1.0, fedavg: float = 2.0) -> Rows:
    return Rows(
        [
            Row({"method": "FedEXP", "local_lr": 0.003}, "distance", fedexp, std=0.1, n=3, paper=0.9),
            Row({"method": "FedAvg", "local_lr": 0.003}, "distance", fedavg),
        ],
        ["method", "local_lr", "round"],
    )


@pytest.mark.parametrize(
    ("numbers", "verdict", "as_expected"),
    [
        ((1.0, 2.0), HOLDS, True),
        ((3.0, 2.0), FAILS, False),
        ((1.0, float("inf")), HOLDS, True),
        ((1.0, float("nan")), UNTESTABLE, None),
    ],
)
def test_the_verdict_follows_the_numbers(
    tmp_path: Path, numbers: tuple[float, float], verdict: str, as_expected: bool | None
) -> None:
    (found,) = judge(declared(tmp_path), "quick", rows(*numbers))
    assert (found.verdict, found.as_expected) == (verdict, as_expected)


def test_the_numbers_that_went_in_are_kept(tmp_path: Path) -> None:
    (found,) = judge(declared(tmp_path), "quick", rows())
    assert found.to_json()["numbers"] == [
        {
            "asked": "value('distance', method='FedEXP', local_lr=0.003)",
            "measure": "distance",
            "number": 1.0,
            "std": 0.1,
            "n": 3,
            "paper": 0.9,
        },
        {
            "asked": "value('distance', method='FedAvg', local_lr=0.003)",
            "measure": "distance",
            "number": 2.0,
            "std": None,
            "n": 1,
        },
    ]


def test_a_claim_is_not_tested_below_its_scale(tmp_path: Path) -> None:
    artifact = declared(tmp_path)
    (small,) = judge(artifact, "smoke", rows())
    assert (small.verdict, small.reason) == (UNTESTABLE, "needs scale=quick")
    assert small.numbers == []


def test_a_missing_row_is_not_testable_and_says_which(tmp_path: Path) -> None:
    (found,) = judge(declared(tmp_path), "quick", Rows(rows().rows[:1], rows().labels))
    assert found.verdict == UNTESTABLE
    assert "no number for distance, method=FedAvg" in found.reason


def test_expectations_may_differ_by_scale(tmp_path: Path) -> None:
    artifact = declared(tmp_path, claims=[{**CLAIM, "expected": {"quick": "does not hold"}}])
    assert judge(artifact, "quick", rows())[0].as_expected is False
    assert judge(artifact, "paper", rows())[0].as_expected is None


@pytest.mark.parametrize("name", ["table2", "table4", "fig1", "fig2_left", "fig2_right", "fig3_left", "fig3_right"])
def test_no_claim_of_the_papers_holds_without_numbers(name: str) -> None:
    artifact = load_artifact(f"fedexp/{name}")
    verdicts = judge(artifact, "paper", Rows([], artifact.labels))
    assert verdicts
    assert {one.verdict for one in verdicts} == {UNTESTABLE}


def test_cells_within_one_standard_deviation_are_said_to_be(tmp_path: Path) -> None:
    def spread(left: float, right: float, gap: float) -> Rows:
        labels = [{"method": method, "local_lr": 0.003} for method in ("FedEXP", "FedAvg")]
        values = [Row(labels[0], "distance", 1.0, left, 3), Row(labels[1], "distance", 1.0 + gap, right, 3)]
        return Rows(values, ["method", "local_lr", "round"])

    artifact = declared(tmp_path)
    (close,) = judge(artifact, "quick", spread(0.1, 0.5, 0.4))
    (apart,) = judge(artifact, "quick", spread(0.1, 0.3, 0.4))
    assert (close.verdict, close.spread) == (HOLDS, "within one standard deviation")
    assert (apart.verdict, apart.spread) == (HOLDS, "")
    assert close.to_json()["comparisons"][0]["std"] == [0.1, 0.5]
    assert "(within one standard deviation)" in claims_table(artifact, [close])
    assert "1 ± 0.10" in claims_table(artifact, [close]).replace("1.00", "1")
    everything = " and ".join(
        f"value('distance', method='FedEXP', local_lr=0.003) < {one}"
        for one in ("value('distance', method='FedAvg', local_lr=0.003)", "9")
    )
    artifact = declared(tmp_path, claims=[{**CLAIM, "predicate": everything}])
    assert len(judge(artifact, "quick", spread(0.1, 0.5, 0.4))[0].comparisons) == 1


def test_a_cell_that_misses_seeds_is_not_testable(tmp_path: Path) -> None:
    artifact = declared(tmp_path)
    found = rows()
    short = Rows([found.rows[0], replace(found.rows[1], n=2, seeds=5)], found.labels)
    (verdict,) = judge(artifact, "quick", short)
    assert verdict.verdict == UNTESTABLE
    assert verdict.reason.startswith("2 of 5 seeds")


def test_invariants_are_counted_apart(tmp_path: Path) -> None:
    artifact = declared(tmp_path, claims=[CLAIM, {**CLAIM, "id": "floor", "kind": "invariant"}])
    assert count_verdicts(judge(artifact, "quick", rows())) == "claims: 1 holds; invariants: 1 holds"
    assert count_verdicts(judge(artifact, "quick", rows(3.0))) == (
        "claims: 1 does not hold; invariants: 1 does not hold; against expectation: order, floor"
    )


def test_a_text_is_compared_as_text(tmp_path: Path) -> None:
    artifact = declared(tmp_path, claims=[{**CLAIM, "predicate": "value('distance', method='FedEXP') == 'gdp'"}])
    text = Rows([Row({"method": "FedEXP"}, "distance", float("nan"), text="gdp")], ["method"])
    assert judge(artifact, "quick", text)[0].verdict == HOLDS
