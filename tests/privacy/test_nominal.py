"""Noise by closed forms: what is proved agrees with the accountants, what is nominal is said to
be.
"""

from __future__ import annotations

import csv
import io
import json
import math
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from dpfl_cli.cli.tables import epsilon_text, is_nominal
from dpfl_cli.config.compose import compose_config
from dpfl_cli.config.errors import ConfigError
from dpfl_cli.privacy.accountants import accountant, price, price_all
from dpfl_cli.privacy.calibration import calibrate
from dpfl_cli.privacy.gaussian import LocalGaussian
from dpfl_cli.privacy.ledger import Ledger
from dpfl_cli.privacy.nominal import (
    epsilon_number,
    lemma1,
    proved_from,
    record_heuristic,
    why_nominal,
    zcdp_v,
)
from dpfl_cli.privacy.releases import ReleaseSpec, Setup
from dpfl_cli.privacy.views import mean_alone
from dpfl_cli.simulation.execute import run_members
from dpfl_cli.simulation.member import Member
from dpfl_cli.simulation.noise import calibration_text
from dpfl_cli.simulation.plan import make_plan
from dpfl_cli.simulation.results import privacy_report
from dpfl_cli.simulation.run_plan import Plan
from tests.privacy.test_accountants import entry as any_entry
from tests.privacy.test_accountants import priced

DELTA = 1e-5
SMALL = [
    "dataset.clients=5",
    "dataset.dimension=6",
    "dataset.records_per_client=4",
    "algorithm.clip_norm=10.0",
    "rounds=100",
]
FEDAVG = [*SMALL, "algorithm=fedavg", "dp=ldp", "dp.relation=zero_out"]
COINS = [
    "algorithm.final_release=false",
    *SMALL,
    "algorithm=scaffnew",
    "dp=ldp",
    "algorithm.schedule=bernoulli",
    "algorithm.local_steps=7.0",
]


def plan_of(words: list[str]) -> Plan:
    return make_plan(compose_config(words))


def noise_of(words: list[str]) -> float:
    found: float = plan_of(words).mechanism.settings.noise_multiplier  # type: ignore[attr-defined]
    return found


entry = partial(any_entry, relation="zero_out", scope="client")


def ledger(parameter: float, count: int) -> Ledger:
    return Ledger((entry(parameter, count),))


# The closed forms.

targets = st.floats(-4, 3).map(lambda power: 10**power)
deltas = st.floats(-30, -1).map(lambda power: 10**power)


@given(targets, deltas, st.integers(1, 100_000))
def test_lemma1_with_the_constant_of_zcdp_is_zcdp(
    epsilon: float, delta: float, releases: int
) -> None:
    log = math.log(1 / delta)
    a = math.sqrt(log + epsilon) - math.sqrt(log)
    z = lemma1(epsilon, delta, releases, zcdp_v(epsilon, delta))
    assert z == pytest.approx(
        math.sqrt(releases / 2) / a, rel=1e-6
    )  # a loses digits where epsilon is small
    assert priced("zcdp", ledger(z, releases), delta) == pytest.approx(epsilon, rel=1e-9)


@given(targets, deltas, st.integers(1, 100_000), st.floats(0.01, 0.99))
def test_below_that_constant_nothing_is_proved(
    epsilon: float, delta: float, releases: int, share: float
) -> None:
    z = lemma1(epsilon, delta, releases, share * zcdp_v(epsilon, delta))
    assert priced("zcdp", ledger(z, releases), delta) > epsilon
    assert why_nominal("lemma1", share * zcdp_v(epsilon, delta), epsilon, delta) is not None


@given(targets, deltas, st.integers(1, 1000), st.integers(1, 1000), st.floats(0.1, 10))
def test_a_target_is_nominal_where_zcdp_does_not_prove_it(
    epsilon: float, delta: float, planned: int, made: int, share: float
) -> None:
    """Noise for so many releases, and the price of those that are made."""
    v = share * zcdp_v(epsilon, delta)
    worth = priced("zcdp", ledger(lemma1(epsilon, delta, planned, v), made), delta)
    assume(abs(worth / epsilon - 1) > 1e-6)
    why = why_nominal("lemma1", v, epsilon, delta, planned, made)
    assert (why is None) == (share >= 1 and worth < epsilon)
    if why is not None:
        assert why.startswith("lemma1 with v=") == (share < 1)
    assert why_nominal("zcdp", None, epsilon, delta, planned, made) == (
        None
        if made <= planned
        else "noise for the expected number of releases, which this run exceeds"
    )
    assert (
        why_nominal("record_heuristic", None, epsilon, delta, planned, made) == "record_heuristic"
    )


@given(targets, deltas)
def test_the_constant_that_is_named_is_proved(epsilon: float, delta: float) -> None:
    assert zcdp_v(epsilon, delta) <= proved_from(epsilon, delta) <= zcdp_v(epsilon, delta) + 2e-4
    assert why_nominal("lemma1", proved_from(epsilon, delta), epsilon, delta) is None
    less = (1 - 1e-6) * zcdp_v(epsilon, delta)
    assert why_nominal("lemma1", less, epsilon, delta) is not None


@given(targets, deltas, st.integers(1, 100_000), st.integers(1, 100_000))
def test_the_heuristic_of_records_is_lemma1_with_8_over_squared_records(
    epsilon: float, delta: float, releases: int, records: int
) -> None:
    found = record_heuristic(epsilon, delta, releases, records, "zero_out")
    assert found == pytest.approx(lemma1(epsilon, delta, releases, 8 / records**2))
    assert found == pytest.approx(
        2 / records * math.sqrt(2 * releases * math.log(1 / delta)) / epsilon
    )
    assert found == record_heuristic(epsilon, delta, releases, records, "add_or_remove")
    assert found / 2 == record_heuristic(
        epsilon, delta, releases, records, "replace_one"
    )  # of twice the sensitivity


# Runs.


@pytest.mark.parametrize("relation", ["zero_out", "replace_one"])
@pytest.mark.parametrize("own", ["gdp", "rdp", "zcdp"])
@pytest.mark.parametrize(("name", "by"), [("zcdp", "zcdp"), ("analytic", "gdp")])
def test_a_proved_calibration_meets_its_target_by_its_own_word(
    relation: str, own: str, name: str, by: str
) -> None:
    words = [
        *FEDAVG,
        f"dp.relation={relation}",
        "dp.epsilon=3.3",
        f"dp.calibration={name}",
        f"accountant={own}",
    ]
    plan = plan_of(words)
    worth = priced(by, plan.ledger())
    assert 3.3 * (1 - 2e-6) <= worth <= 3.3
    report = privacy_report(plan, plan.ledger())
    assert report["epsilon"] == priced(own, plan.ledger())
    assert report["accountant"] == own
    assert report["calibration"] == name
    assert "nominal" not in report["guarantee"]
    if name == "zcdp":
        closed = lemma1(3.3, DELTA, 100, zcdp_v(3.3, DELTA))
        assert noise_of(words) == pytest.approx(closed, rel=1.1e-6)
        by_lemma = noise_of([*words[:-2], "dp.calibration=lemma1", f"dp.v={zcdp_v(3.3, DELTA)!r}"])
        assert by_lemma == pytest.approx(noise_of(words), rel=2e-6)


def test_zcdp_prices_what_its_closed_form_for_one_release_does_not() -> None:
    """Two releases a round, the second with a multiplier of its own: the accountant of that name
    calibrates.
    """
    words = [
        *SMALL,
        "algorithm=fedexp",
        "dp=cdp",
        "dp.epsilon=8",
        "dp.calibration=zcdp",
        "accountant=joint_gaussian",
    ]
    plan = plan_of(words)
    assert len(plan.ledger().entries) == 2
    assert priced("zcdp", plan.ledger()) == pytest.approx(8, rel=2e-6)
    assert privacy_report(plan, plan.ledger())["epsilon"] < 8


@pytest.mark.parametrize("relation", ["zero_out", "replace_one"])
@pytest.mark.parametrize("calibration", ["lemma1", "record_heuristic"])
def test_the_noise_in_messages_is_the_formulas(
    relation: str, calibration: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Measured on what leaves the clients of a run: sigma = C sqrt(v R l) / epsilon, and the
    heuristic's for any relation.
    """
    words = [
        *FEDAVG,
        f"dp.relation={relation}",
        "dataset.dimension=4000",
        "dp.epsilon=2.0",
        f"dp.calibration={calibration}",
    ]
    words += ["dp.v=3e-6"] if calibration == "lemma1" else []
    log = math.log(1 / DELTA)
    expected = (
        10.0 * math.sqrt(3e-6 * 100 * log) / 2.0 * (2 if relation == "replace_one" else 1)
    )  # sensitivity 2C or C
    if calibration == "record_heuristic":
        expected = 2 * 10.0 / 4 * math.sqrt(2 * 100 * log) / 2.0
    added = []
    release = LocalGaussian.release

    def watched(self: Any, name: str, values: Any, rounds: Any, charged: Any = None) -> Any:
        clipped = values.checked().clone()
        made = release(self, name, values, rounds, charged)
        added.append(made.received - clipped)
        return made

    monkeypatch.setattr(LocalGaussian, "release", watched)
    (member,) = run_members(
        [Member(plan_of([*words, "rounds=100"]))], lambda member: None, lambda active: None
    )
    noise = torch.stack(added)
    assert len(noise) == 100
    assert float(noise.square().mean().sqrt()) == pytest.approx(
        expected, rel=5 / math.sqrt(2 * noise.numel())
    )
    (written,) = member.ledger.entries
    sensitivity = 20.0 if relation == "replace_one" else 10.0
    assert written.sensitivity == sensitivity
    assert written.parameter * sensitivity == pytest.approx(expected, rel=1e-6)  # type: ignore[operator]
    assert member.ledger.releases == 100


def test_the_same_noise_under_every_trust_model_as_clipping_sees_it() -> None:
    words = [*SMALL, "algorithm=fedavg", "dp.epsilon=2.0", "dp.calibration=lemma1", "dp.v=0.01"]
    (found,) = {noise_of([*words, f"dp={dp}"]) for dp in ("ldp", "cdp", "secure_aggregation")}
    assert found == pytest.approx(lemma1(2.0, DELTA, 100, 0.01), rel=1e-6)


def test_what_is_nominal_says_so_and_what_it_is_worth() -> None:
    plan = plan_of([*FEDAVG, "dp.epsilon=3.3", "dp.calibration=lemma1", "dp.v=8e-8"])
    report = privacy_report(plan, plan.ledger())
    assert report["epsilon_target"] == 3.3
    assert report["calibration"] == "lemma1 (v=8e-08): nominal"
    assert report["guarantee"].endswith(
        "proved; this epsilon is the ledger's, dp.epsilon is nominal (lemma1 with v=8e-08)"
    )
    assert report["vacuous"]
    assert report["epsilon"] == priced("gdp", plan.ledger()) > 5e6
    plain = plan_of([*FEDAVG, "dp.epsilon=3.3"])
    assert "calibration" not in privacy_report(plain, plain.ledger())
    bare = plan_of(FEDAVG)
    assert calibration_text(bare, bare.ledger()) is None


def test_lemma1_with_enough_noise_is_not_nominal() -> None:
    plan = plan_of([*FEDAVG, "dp.epsilon=3.3", "dp.calibration=lemma1", "dp.v=3.0"])
    report = privacy_report(plan, plan.ledger())
    assert report["calibration"] == "lemma1 (v=3)"
    assert report["guarantee"].endswith("trust: proved")
    assert report["epsilon"] < 3.3


def test_numbers_of_records_are_not_covered_where_they_are_used() -> None:
    words = [*FEDAVG, "dp.epsilon=3.3"]
    item = "numbers of records per client, the smallest of which "
    for more, use in (
        ([], None),
        (["dp.calibration=record_heuristic"], "sets the noise"),
        (["algorithm.batch_size=2"], "limits the batches"),
        (
            ["algorithm.batch_size=2", "dp.calibration=record_heuristic"],
            "sets the noise and limits the batches",
        ),
    ):
        found = [
            one for one in plan_of([*words, *more]).not_covered() if "numbers of records" in one
        ]
        assert found == ([] if use is None else [item + use])


# Schedules drawn at random.


def test_noise_for_the_expected_number_is_priced_for_what_was_released() -> None:
    """100 coins of probability 1/7: noise for 15 releases, whatever falls."""
    plans = [
        plan_of([*COINS, "dp.epsilon=3.3", "dp.releases=expected", f"seed={seed}"])
        for seed in range(8)
    ]
    (noise,) = {plan.mechanism.settings.noise_multiplier for plan in plans}  # type: ignore[attr-defined]
    assert noise == pytest.approx(
        calibrate(3.3, DELTA, accountant("gdp"), lambda z: ledger(z, 15)), rel=1e-6
    )
    reports = {plan.ledger().releases: privacy_report(plan, plan.ledger()) for plan in plans}
    assert min(reports) < 15 < max(reports)
    for releases, report in reports.items():
        assert report["releases"] == releases
        assert (report["epsilon"] > 3.3) == (releases > 15)
        assert report["epsilon_target"] == 3.3
        exceeded, clause = (
            releases > 15,
            "; this epsilon is the ledger's, dp.epsilon is nominal (noise for the expected number",
        )
        more = ", which this run exceeds: nominal" if exceeded else ""
        assert report["calibration"] == f"accountant, for the expected number of releases{more}"
        assert (
            (clause in report["guarantee"])
            == is_nominal(report)
            == ("(nominal 3.3)" in epsilon_text(report))
            == exceeded
        )
        assert report["guarantee"].endswith("proved") != exceeded
    for plan in plans:
        realised = plan_of([*COINS, "dp.epsilon=3.3", f"seed={plan.seed}"])
        assert realised.ledger().releases == plan.ledger().releases
        assert privacy_report(realised, realised.ledger())["epsilon"] == pytest.approx(
            3.3, rel=2e-6
        )


def test_nominal_noise_for_the_expected_number() -> None:
    words = [*COINS, "dp.epsilon=3.3", "dp.calibration=lemma1", "dp.v=8e-8"]
    assert noise_of([*words, "dp.releases=expected"]) == pytest.approx(
        lemma1(3.3, DELTA, 15, 8e-8), rel=1e-6
    )
    plan = plan_of(words)
    assert noise_of(words) == pytest.approx(
        lemma1(3.3, DELTA, plan.ledger().releases, 8e-8), rel=1e-6
    )
    for more, text in (
        (["dp.v=8e-8"], "lemma1 (v=8e-08), for the expected number of releases{}: nominal"),
        (["dp.v=3.0"], "lemma1 (v=3), for the expected number of releases{}"),
    ):
        for seed in range(6):
            plan = plan_of([*words, "dp.releases=expected", f"seed={seed}", *more])
            releases = plan.ledger().releases
            sign = (
                ": nominal"
                if "nominal" not in text and zcdp_v(3.3, DELTA) * releases > 3.0 * 15
                else ""
            )
            expected = text.format(", which this run exceeds" if releases > 15 else "") + sign
            assert calibration_text(plan, plan.ledger()) == expected


def test_a_schedule_that_hardly_ever_comes_is_calibrated_for_one_release() -> None:
    words = [*COINS, "rounds=3", "algorithm.local_steps=1000.0", "dp.epsilon=3.3"]
    plan = plan_of([*words, "dp.releases=expected"])
    assert plan.ledger().releases == 0
    assert privacy_report(plan, plan.ledger())["epsilon"] == 0
    assert plan.mechanism.settings.noise_multiplier == pytest.approx(  # type: ignore[attr-defined]
        calibrate(3.3, DELTA, accountant("gdp"), lambda z: ledger(z, 1)), rel=1e-6
    )
    for more in ([], ["dp.calibration=lemma1", "dp.v=1.0"]):
        with pytest.raises(ConfigError) as caught:
            plan_of([*words, *more, "seed=1"])
        assert str(caught.value).startswith("scaffnew ldp synthetic seed=1: nothing is released")
        assert "algorithm.final_release=true" in str(caught.value)
        assert (
            plan_of([*words, *more, "seed=1", "algorithm.final_release=true"]).ledger().releases
            == 1
        )


# What is refused.


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (
            ["dp.calibration=lemma1"],
            "dp.calibration=lemma1 needs its constant: give dp.v (proved from 2.2777 on)",
        ),
        (["dp.v=2.0"], "dp.v=2: dp.calibration=accountant has no constant"),
        (["dp.v=2.0", "dp.calibration=zcdp"], "dp.v=2: dp.calibration=zcdp has no constant"),
        (["dp.v=0.0", "dp.calibration=lemma1"], "dp.v=0"),
        (["dp.calibration=rdp"], "dp.calibration='rdp'"),
        (["dp.releases=all"], "dp.releases='all'"),
        (
            ["dp.releases=expected"],
            "algorithm=fedavg draws no schedule at random; write dp.releases=realised",
        ),
        (
            ["dp.epsilon=null", "dp.calibration=zcdp"],
            "dp.calibration=zcdp: without a target epsilon there is no noise",
        ),
        (
            ["dp.epsilon=null", "dp.releases=expected"],
            "dp.releases=expected: without a target epsilon there is no noise",
        ),
        (["dp.epsilon=null", "dp.v=1.0"], "dp.v=1.0: without a target epsilon there is no noise"),
        (
            ["dp=none", "dp.calibration=analytic"],
            "dp.calibration=analytic: without privacy there is no noise",
        ),
        (
            ["dp=none", "dp.releases=expected"],
            "dp.releases=expected: without privacy there is no noise",
        ),
        (
            ["dp=ldp_privunit", "dp.calibration=lemma1", "dp.v=1.0"],
            "mechanism=privunit makes pure releases",
        ),
        (["dp=ldp_privunit", "dp.calibration=analytic"], "mechanism=privunit makes pure releases"),
        (["mechanism.noise_multiplier=1.0", "dp.calibration=zcdp"], "both given"),
        (
            ["algorithm=fedavg_record", "dp=record", "dp.calibration=lemma1", "dp.v=1.0"],
            "dp.calibration=lemma1 is for whole clients, but dp.unit=record",
        ),
        (
            ["algorithm=fedexp", "dp=cdp", "dp.calibration=record_heuristic"],
            "algorithm=fedexp releases 'update' (vector), "
            "'squared_norm' (scalar) with noise of its own",
        ),
        (
            ["algorithm=scaffold", "algorithm.release=double", "dp.calibration=record_heuristic"],
            "algorithm=scaffold releases 'update' (vector) with noise of its own, "
            "'control' (vector) with noise of its own",
        ),
        (
            [
                "algorithm=fednew",
                "algorithm.inner=2",
                "dp=cdp",
                "dp.calibration=lemma1",
                "dp.v=1.0",
            ],
            "algorithm=fednew releases 2 times 'direction' (vector)",
        ),
        (
            ["dp.epsilon=1e300", "dp.calibration=lemma1", "dp.v=1e-300"],
            "noise multiplier of 0; choose another target",
        ),
    ],
)
def test_wrong_combinations_are_refused_in_one_line(words: list[str], expected: str) -> None:
    given = ["dp=ldp", "dp.epsilon=3.3"] if "dp=none" not in words else ["dp=none"]
    with pytest.raises(ConfigError) as caught:
        plan_of([*SMALL, "algorithm=fedavg", *given, *words])
    assert "\n" not in str(caught.value)
    assert expected in str(caught.value)


def test_a_random_schedule_of_ones_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any method that says what to expect of its schedule can be calibrated for it; the number is
    rounded up.
    """
    from dpfl_cli.algorithms.fedavg import FedAvg

    def coins(settings: object, run: Setup) -> list[ReleaseSpec]:
        made = np.arange(run.rounds) % 2 == 1
        return [ReleaseSpec("update", made=made, expected=0.031 * run.rounds)]

    monkeypatch.setattr(FedAvg, "releases", staticmethod(coins))
    plan = plan_of([*FEDAVG, "dp.epsilon=1.0", "dp.releases=expected", "dp.calibration=zcdp"])
    assert plan.ledger().releases == 50
    z = plan.mechanism.settings.noise_multiplier  # type: ignore[attr-defined]
    assert priced("zcdp", ledger(z, 4)) == pytest.approx(1.0, rel=2e-6)


# Enormous epsilons.


@pytest.mark.parametrize("power", [-4, -6, -9, -30, -100])
def test_enormous_epsilons_are_finite_and_right(power: int) -> None:
    z = 10.0**power
    mu = 100 / z
    assert priced("zcdp", ledger(z, 10_000)) == pytest.approx(
        mu**2 / 2 + 2 * math.sqrt(mu**2 / 2 * math.log(1 / DELTA)), rel=1e-12
    )
    quantile = 4.264890793922825  # of delta
    assert priced("gdp", ledger(z, 10_000)) == pytest.approx(mu**2 / 2 + mu * quantile, rel=1e-9)
    for found in price_all(ledger(z, 10_000), DELTA):
        assert (found.epsilon is None) != (found.reason is None)
        assert found.epsilon is None or (math.isfinite(found.epsilon) and found.vacuous)


def test_noise_beyond_what_numbers_hold_is_none() -> None:
    for name in ("gdp", "zcdp", "rdp"):
        found = price(ledger(1e-200, 10_000), accountant(name), DELTA)
        assert (found.epsilon, found.reason, found.vacuous) == (None, "not private", True)


# The mean alone.


@given(st.floats(0.01, 100), st.integers(1, 10_000), st.integers(1, 1000))
@settings(max_examples=50, deadline=None)
def test_the_mean_alone_is_less_by_the_root_of_the_clients(
    z: float, releases: int, clients: int
) -> None:
    seen = mean_alone(ledger(z, releases), clients)
    assert seen is not None
    (one,) = seen.entries
    assert one.scope == "federation"
    assert one.parameter == pytest.approx(z * math.sqrt(clients))
    assert priced("gdp", seen) <= priced("gdp", ledger(z, releases))


def test_the_mean_alone_with_noise_that_changes() -> None:
    levels = (1.0, 2.0, 4.0)
    seen = mean_alone(Ledger((entry(levels, 3),)), 9)
    assert seen is not None
    scaled = Ledger((entry(tuple(3 * z for z in levels), 3),))
    for name in ("gdp", "zcdp", "rdp"):
        assert priced(name, seen) == pytest.approx(priced(name, scaled))


@pytest.mark.parametrize(
    "changes",
    [
        {"kind": "pure"},
        {"shape": "scalar"},
        {"unit": "record"},
        {"scope": "federation"},
        {"kind": "nonprivate"},
    ],
)
def test_the_mean_alone_is_not_defined_for_everything(changes: dict[str, Any]) -> None:
    parameter = None if changes.get("kind") == "nonprivate" else 1.0
    assert mean_alone(Ledger((entry(parameter, 3, **changes),)), 9) is None


def test_central_runs_agree_with_the_mean_alone() -> None:
    """What local noise leaves of the mean is a central release of z sqrt(M)."""
    local = plan_of([*FEDAVG, "mechanism.noise_multiplier=2.0"])
    central = plan_of([*FEDAVG, "dp=cdp", f"mechanism.noise_multiplier={2 * math.sqrt(5)!r}"])
    told = privacy_report(local, local.ledger())["epsilon_central"]
    assert told["value"] == pytest.approx(privacy_report(central, central.ledger())["epsilon"])
    assert "for information" in told["reading"]
    assert "not proved" not in told["reading"]
    assert "epsilon_central" not in privacy_report(central, central.ledger())
    sent = plan_of([*COINS, "mechanism.noise_multiplier=2.0", "algorithm.control=sent"])
    assert "not proved" in privacy_report(sent, sent.ledger())["epsilon_central"]["reading"]
    component = replace(local.algorithm.component, origin="mine.py")  # it may scale contributions
    own = replace(local, algorithm=replace(local.algorithm, component=component))
    assert "epsilon_central" not in privacy_report(own, own.ledger())


@pytest.mark.parametrize("method", ["fedexp", "fedexp_naive"])
def test_the_mean_alone_is_not_stated_where_messages_make_the_next_ones(method: str) -> None:
    """A server step from the norms of single messages shows in the means of later rounds: with 1000
    clients, z = 0.05, d = 2 and two rounds somebody who saw the means alone told neighbours apart
    with a mu of 2.8, where means of so much noise have 0.9.
    """
    plan = plan_of(
        ["dataset.dimension=2", f"algorithm={method}", "dp=ldp", "mechanism.noise_multiplier=0.05"]
    )
    report = privacy_report(plan, plan.ledger())
    assert report["epsilon"] > 100
    assert "epsilon_central" not in report


# What people see.


def test_every_place_that_shows_an_epsilon_says_what_is_nominal(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    from dpfl_cli.cli.main import main

    def said(*words: str) -> str:
        code = main(list(words))
        out = capsys.readouterr().out
        assert code == 0
        return " ".join(out.split())

    words = [*FEDAVG, "dp.epsilon=3.3", "dp.calibration=lemma1", "dp.v=8e-8", "rounds=4"]
    out = said("run", *words)
    folder = Path(out.split()[-1])
    privacy = json.loads((folder / "result.json").read_text())["privacy"]
    shown = f"{epsilon_number(privacy['epsilon'])} (nominal 3.3) (vacuous)"
    name = "lemma1 (v=8e-08): nominal"
    for text in (out, said("runs", "list"), said("runs", "compare", folder.name)):
        assert shown in text
        assert f"Noise by {name}." in text
        assert "dp.epsilon is nominal (lemma1 with v=8e-08)" in text
    account = said("account", folder.name)
    assert f"noise by {name}; nominal epsilon 3.3 at delta 1e-05" in account
    assert (
        f"gdp: epsilon {epsilon_number(privacy['epsilon_central']['value'])}, for information"
        in account
    )
    record = json.loads(said("runs", "show", folder.name))[0]["result"]["privacy"]
    assert list(record)[:2] == ["epsilon", "epsilon_remark"]
    assert record["epsilon_remark"] == "(nominal 3.3) (vacuous)"
    assert record["calibration"] == name
    assert main(["runs", "export", folder.name]) == 0
    first = next(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert first["epsilon"] == repr(privacy["epsilon"])
    assert first["epsilon_remark"] == "(nominal 3.3) (vacuous)"
    assert first["calibration"] == name
    told = said("calibrate", *words)
    assert f"noise by {name}; dp.epsilon=3.3; lemma1 is proved from v=2.2777 on" in told
    proved = said("calibrate", *words, "dp.v=3")
    assert "noise by lemma1 (v=3); dp.epsilon=3.3; lemma1 is proved from v=2.2777 on" in proved
    assert "nominal" not in proved
    assert "(vacuous)" in told


def test_a_ledger_with_a_release_without_noise_states_no_guarantee() -> None:
    plan = plan_of(["algorithm=fedavg", "dp=cdp"])
    bare = Ledger(tuple(replace(entry, parameter=0.0) for entry in plan.ledger().entries))
    assert privacy_report(plan, bare)["guarantee"] == "none: its epsilon is infinite"
