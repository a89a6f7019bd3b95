"""Numbers change only with a revision (law 4), and a run's numbers do not depend on its company."""

from __future__ import annotations

import copy
import json

import pytest

from dpfl_cli.config.compose import compose_config
from dpfl_cli.config.errors import DataError
from dpfl_cli.simulation.plan import make_plan
from dpfl_cli.simulation.run_plan import Plan
from dpfl_cli.simulation.stack import stack_key
from tests import golden


def planned(words: list[str]) -> Plan:
    try:
        return make_plan(compose_config(words))
    except DataError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("name", list(golden.RUNS))
def test_golden_run(name: str) -> None:
    new = golden.compute(planned(golden.RUNS[name]))
    known = json.loads(golden.FILE.read_text())
    assert name in known, "a new golden run: make golden"
    assert new["id"] == known[name]["id"], "the identity changed (config or revision): make golden"
    assert not golden.differs(new, known[name]), (
        "numbers changed under the same identity: raise a revision, then make golden"
    )


def test_golden_runs_cover_every_component_and_choice() -> None:
    assert golden.uncovered() == [], "add golden runs for these"


def test_what_is_not_covered_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    left = {
        name: words
        for name, words in golden.RUNS.items()
        if not name.startswith("fashion ")
        and name
        not in (
            "scaffold raw",
            "fashion",
            "fedexp half",
            "fedexp half central",
            "fedexp squared norm noise",
        )
    }
    configs = {name: golden.composed()[name] for name in left}
    monkeypatch.setattr(golden, "composed", lambda: configs)
    assert sorted(golden.uncovered()) == [
        "algorithm=fedexp half=True",
        "algorithm=fedexp squared_norm_noise given",
        "algorithm=scaffold control=raw",
        "dataset=fashion_mnist",
        *(f"dataset=fashion_mnist pixels={value}" for value in ("raw", "unit")),
        *(f"dataset=fashion_mnist standardise={value}" for value in (False, True)),
        *(f"dataset=fashion_mnist subset={value}" for value in ("first", "random", "stratified")),
    ]


@pytest.mark.parametrize("name", list(golden.BATCHES))
def test_a_run_in_a_mixed_batch_is_the_run_alone(name: str) -> None:
    shared, variants = golden.BATCHES[name]
    plans = [planned([*shared, *words]) for words in variants]
    assert len({stack_key(plan) for plan in plans}) == 1
    assert len({plan.rounds for plan in plans}) > 1
    for together, plan in zip(golden.compute_together(plans), plans, strict=True):
        assert len(together["rows"]) == plan.rounds + 1
        assert not golden.differs(together, golden.compute(plan))


def test_a_changed_number_is_noticed_in_any_round() -> None:
    run = golden.compute(planned(golden.RUNS["fedavg ldp"]))
    for number in range(len(run["rows"])):
        changed = copy.deepcopy(run)
        changed["rows"][number]["distance"] *= 1 + 1e-6
        assert golden.differs(changed, run) == ["distance"]
        del changed["rows"][number]["distance"]
        assert golden.differs(changed, run) == ["distance"]
    assert golden.differs({**run, "rows": run["rows"][:-1]}, run) == ["number of rows"]
