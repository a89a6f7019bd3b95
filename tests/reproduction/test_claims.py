"""Verdicts: true, false, untestable; a changed number changes the verdict; published ones are checked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dpfl_cli.cli.main import main
from dpfl_cli.config.errors import StoreError
from dpfl_cli.reproduction.claims import FAILS, HOLDS, UNTESTABLE, check_published, judge
from dpfl_cli.reproduction.declaration import Artifact, load_artifact
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
        {"asked": "value('distance', method='FedEXP', local_lr=0.003)", "number": 1.0, "std": 0.1, "n": 3, "paper": 0.9},
        {"asked": "value('distance', method='FedAvg', local_lr=0.003)", "number": 2.0, "std": None, "n": 1},
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


def _published(folder: Path, artifact: Artifact, table: Rows, verdicts: dict[str, str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    folder.joinpath("table.csv").write_text(table.to_csv(artifact.name, "quick"))
    claims = [{"id": name, "verdict": verdict} for name, verdict in verdicts.items()]
    folder.joinpath("claims.json").write_text(json.dumps({"artifact": str(artifact.path), "scale": "quick", "claims": claims}))


@pytest.mark.parametrize(
    ("numbers", "published", "complaint"),
    [
        ((1.0, 2.0), {"order": HOLDS}, None),
        ((3.0, 2.0), {"order": FAILS}, "expected 'holds', found 'does not hold'"),
        ((3.0, 2.0), {"order": HOLDS}, "published 'holds', but its table gives 'does not hold'"),
        ((1.0, 2.0), {}, "declared but not published"),
        ((1.0, 2.0), {"order": HOLDS, "older": HOLDS}, "claim older is published but no longer declared"),
        ((1.0, float("nan")), {"order": UNTESTABLE}, "could not be tested"),
    ],
)
def test_published_verdicts_are_checked(
    tmp_path: Path,
    numbers: tuple[float, float],
    published: dict[str, str],
    complaint: str | None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Any,
) -> None:
    _published(tmp_path / "published" / "small" / "quick", declared(tmp_path), rows(*numbers), published)
    compared, lines = check_published(tmp_path / "published")
    assert compared == 1
    if complaint is None:
        assert lines == []
    else:
        assert any(complaint in line for line in lines)
    monkeypatch.setenv("DPFL_OUTPUTS", str(tmp_path))
    assert main(["reproduce", "--check-published"]) == (0 if complaint is None else 3)
    assert main(["reproduce", "--check-published", str(tmp_path / "published")]) == (0 if complaint is None else 3)
    assert "1 published verdicts checked" in capsys.readouterr().out


def test_a_tampered_number_flips_the_published_verdict(tmp_path: Path) -> None:
    folder = tmp_path / "published" / "small" / "quick"
    _published(folder, declared(tmp_path), rows(), {"order": HOLDS})
    assert check_published(tmp_path)[1] == []
    table = folder / "table.csv"
    text = table.read_text()
    assert text.count(",distance,1.0,") == 1
    table.write_text(text.replace(",distance,1.0,", ",distance,2.5,"))
    assert len(check_published(tmp_path)[1]) == 2


@pytest.mark.parametrize("text", ["", "{}", '{"artifact": "x"}', "[1]"])
def test_damaged_or_absent_verdicts_are_one_line(tmp_path: Path, text: str) -> None:
    if text:
        (tmp_path / "claims.json").write_text(text)
    with pytest.raises(StoreError) as refused:
        check_published(tmp_path)
    assert "\n" not in str(refused.value)
