"""dp.max_epsilon: a run stops before the release that would exceed it, by its plan alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from dpfl_cli.config.compose import compose_config
from dpfl_cli.config.errors import ConfigError
from dpfl_cli.simulation.execute import execute, run_members
from dpfl_cli.simulation.forecast import forecast
from dpfl_cli.simulation.member import Member
from dpfl_cli.simulation.plan import make_plan
from dpfl_cli.simulation.progress import Progress
from dpfl_cli.simulation.results import _priced, privacy_report
from dpfl_cli.simulation.run_plan import Plan
from dpfl_cli.simulation.store import RunStore

SMALL = ["dataset.clients=20", "dataset.dimension=4", "rounds=12"]
CENTRAL = ["dp=cdp", "mechanism.noise_multiplier=2"]
RUNS = {
    "one release a round": ["algorithm=fedavg", *CENTRAL],
    "two": ["algorithm=fedexp", *CENTRAL, "accountant=joint_gaussian"],
    "now and then": ["algorithm=scaffnew", *CENTRAL, "algorithm.local_steps=3"],
    "messages": ["algorithm=fedavg", "dp=ldp", "mechanism.noise_multiplier=2"],
    "pure": ["algorithm=fedavg", "dp=ldp_privunit"],
    "shares": ["algorithm=fednew", "dp=secure_aggregation", "mechanism.noise_multiplier=2"],
    "records": ["algorithm=fedavg_record", "dp=record", "mechanism.noise_multiplier=2"],
    "changing noise": [
        "algorithm=primal_dual",
        "dp=record",
        "mechanism.noise_multiplier=2",
        "algorithm.strong_convexity=0.1",
    ],
    "poisson": [
        "algorithm=scaffold",
        *CENTRAL,
        "participation=poisson",
        "participation.cohort=4",
        "accountant=rdp",
    ],
    "fixed": ["algorithm=fedavg", *CENTRAL, "participation=fixed", "participation.cohort=4"],
}


def plan_of(name: str, *words: str) -> Plan:
    return make_plan(compose_config([*SMALL, *RUNS[name], *words]))


@pytest.mark.parametrize("name", list(RUNS))
def test_a_run_stops_before_the_release_that_exceeds_it(name: str) -> None:
    free = plan_of(name)
    own, delta = free.accountant_object(), free.dp.delta
    prices = [own.epsilon(free.ledger(rounds), delta) for rounds in range(13)]
    limit = 0.5 * (prices[7] + next(price for price in prices if price > prices[7]))
    plan = plan_of(name, f"dp.max_epsilon={limit!r}")
    (member,) = run_members([Member(plan)])
    assert prices[plan.last_round] <= limit < prices[plan.last_round + 1]
    assert member.round == plan.last_round
    member.check_ledger()
    report = privacy_report(plan, _priced(member))
    assert report["epsilon"] == prices[plan.last_round]
    assert report["stopped"].startswith(f"before round {plan.last_round + 1} of 12")
    assert plan.id != free.id


def test_a_limit_that_is_not_met_changes_nothing() -> None:
    (free,), (kept,) = (
        list(run_members([Member(plan_of("one release a round", *words))]))
        for words in ([], ["dp.max_epsilon=1e6"])
    )
    assert kept.rows == free.rows
    assert "stopped" not in privacy_report(kept.plan, kept.ledger)
    assert "max_epsilon" not in free.plan.identity["dp"]


def test_progress_and_forecast_are_of_the_rounds_that_are_made(tmp_path: Path) -> None:
    plan = plan_of("one release a round", "dp.max_epsilon=8")
    assert 0 < plan.last_round < plan.rounds
    store = RunStore(tmp_path)
    store.prepare()
    assert f"cost: {plan.last_round} rounds" in forecast([plan], store)[-1]
    for _ in ("run", "found finished"):
        progress = Progress("", plan.last_round, quiet=True)
        execute([plan], store, progress)
        assert progress._task.completed == plan.last_round


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ([*CENTRAL, "dp.max_epsilon=1e-3"], "the first round exceeds it"),
        (["dp=none", "dp.max_epsilon=1"], "nothing is private"),
    ],
)
def test_a_limit_that_makes_no_sense_is_refused(words: list[str], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        make_plan(compose_config([*SMALL, "algorithm=fedavg", *words]))
