"""The ledger: charges, arrays of noise, masks, and the way through JSON."""

from __future__ import annotations

import json
import math

import dp_accounting
import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings

from dpfl_cli.config.errors import PrivacyError
from dpfl_cli.privacy.events import PureDpEvent
from dpfl_cli.privacy.ledger import BatchLedger, Ledger, LedgerEntry
from dpfl_cli.privacy.mechanism import ReleaseSpec


def entry(name="update", count=1, parameter=0.35, **changes) -> LedgerEntry:
    values = {"kind": "gaussian", "sensitivity": 2.0, "relation": "replace_one", "unit": "client", "scope": "client"}
    return LedgerEntry(name, count=count, parameter=parameter, **{**values, **changes})


positive = st.floats(1e-6, 1e6)


@st.composite
def entries(draw):
    kind = draw(st.sampled_from(["gaussian", "pure", "nonprivate"]))
    count = draw(st.integers(1, 6))
    parameter = None
    if kind != "nonprivate":
        parameter = draw(st.one_of(positive, st.lists(positive, min_size=count, max_size=count).map(tuple)))
    return entry(
        name=draw(st.text(min_size=1, max_size=8)),
        count=count,
        parameter=parameter,
        kind=kind,
        sensitivity=draw(st.one_of(st.none(), positive)),
        relation=draw(st.sampled_from(["replace_one", "add_or_remove", "zero_out"])),
        unit=draw(st.sampled_from(["client", "record"])),
        scope=draw(st.sampled_from(["client", "federation"])),
        group=draw(st.sampled_from(["", "round"])),
        shape=draw(st.sampled_from(["vector", "scalar"])),
    )


@settings(max_examples=100, deadline=None)
@given(st.lists(entries(), max_size=4, unique_by=lambda e: e.name))
def test_json_round_trip_is_exact_and_plain(parts):
    ledger = Ledger(tuple(parts))
    text = json.dumps(ledger.to_json(), allow_nan=False)
    assert Ledger.from_json(json.loads(text)) == ledger
    assert all("epsilon" not in part for part in json.loads(text))  # the ledger holds what happened, not what it costs


@settings(max_examples=100, deadline=None)
@given(
    st.integers(1, 3).flatmap(
        lambda runs: st.lists(
            st.tuples(
                st.lists(st.sampled_from([0.5, 1.0, 2.5]), min_size=runs, max_size=runs),
                st.one_of(st.none(), st.lists(st.booleans(), min_size=runs, max_size=runs)),
                st.sampled_from(["update", "norm"]),
            ),
            min_size=1,
            max_size=12,
        )
    ),
    st.integers(0, 12),
)
def test_a_batch_writes_each_run_what_it_would_write_alone_also_across_a_restart(charges, restart):
    """Against the plainest model: a list of multipliers per run and name."""
    runs = len(charges[0][0])
    batch = BatchLedger(runs)
    model: list[dict[str, list[float]]] = [{} for _ in range(runs)]
    for step, (parameters, mask, name) in enumerate(charges):
        if step == restart:
            saved = [Ledger.from_json(json.loads(json.dumps(batch.of_run(run).to_json()))) for run in range(runs)]
            batch = BatchLedger(runs, started=saved)
        charged = None if mask is None else np.array(mask)
        batch.charge(entry(name), torch.full((runs,), 2.0), np.array(parameters), charged)
        for run in range(runs):
            if mask is None or mask[run]:
                model[run].setdefault(name, []).append(parameters[run])
    for run in range(runs):
        ledger = batch.of_run(run)
        assert ledger == batch.of_run(run)  # reading does not write
        assert {e.name: e.parameters().tolist() for e in ledger.entries} == model[run]
        assert ledger.releases == sum(map(len, model[run].values()))
        for written in ledger.entries:
            assert isinstance(written.parameter, tuple) == (len(set(model[run][written.name])) > 1)
            assert written.sensitivity == 2.0


def test_constant_noise_is_one_number_and_a_count():
    batch = BatchLedger(2)
    for _ in range(50):
        batch.charge(entry(), torch.tensor([0.6, 2.0]), np.array([0.35, 2.5]))
    assert batch.of_run(1) == Ledger((entry(count=50, parameter=2.5),))
    assert batch.of_run(0) == Ledger((entry(count=50, sensitivity=float(torch.tensor(0.6))),))


def test_noise_over_thousands_of_rounds_is_one_entry():
    batch = BatchLedger(1)
    noise = np.exp(np.linspace(0, 5, 8000))
    for value in noise:
        batch.charge(entry(), torch.tensor([2.0]), np.array([value]))
    (written,) = batch.of_run(0).entries
    assert written.count == 8000
    np.testing.assert_array_equal(written.parameters(), noise)
    assert isinstance(written.event(), dp_accounting.ComposedDpEvent)


def test_a_sensitivity_that_changes_is_not_stated_as_if_it_had_not():
    batch = BatchLedger(2)
    batch.charge(entry(), torch.tensor([2.0, 2.0]), np.array([1.0, 1.0]))
    batch.charge(entry(), torch.tensor([2.0, 1.0]), np.array([1.0, 1.0]))
    assert [batch.of_run(run).entries[0].sensitivity for run in (0, 1)] == [2.0, None]
    assert Ledger((entry(),)).charged(entry(sensitivity=1.0)).entries == (entry(count=2, sensitivity=None),)


def test_without_a_bound_there_is_no_sensitivity_to_state():
    batch = BatchLedger(1)
    open_entry = entry(kind="nonprivate", parameter=None)
    for _ in range(3):
        batch.charge(open_entry, torch.tensor([math.inf]), np.array([math.nan]))
    assert batch.of_run(0).entries == (entry(kind="nonprivate", parameter=None, sensitivity=None, count=3),)
    json.dumps(batch.of_run(0).to_json(), allow_nan=False)
    with pytest.raises(PrivacyError, match="not private"):
        batch.of_run(0).entries[0].parameters()


def test_a_skipped_round_is_not_charged():
    batch = BatchLedger(3)
    batch.charge(entry(), torch.ones(3), np.ones(3), np.array([True, False, False]))
    batch.charge(entry(), torch.ones(3), np.ones(3), np.array([True, True, False]))
    assert [batch.of_run(run).releases for run in range(3)] == [2, 1, 0]
    assert batch.of_run(2) == Ledger()


@pytest.mark.parametrize(
    "change", [{"kind": "pure"}, {"relation": "zero_out"}, {"unit": "record"}, {"scope": "federation"}, {"shape": "scalar"}]
)
def test_a_release_keeps_its_meaning_during_a_run(change):
    with pytest.raises(PrivacyError, match="changed its"):
        Ledger((entry(),)).charged(entry(**change))


def test_a_number_of_parameters_that_is_not_the_count_is_refused():
    with pytest.raises(PrivacyError, match="2 parameters for 3 releases"):
        entry(count=3, parameter=(1.0, 2.0))


def test_events():
    assert entry(count=4).event() == dp_accounting.SelfComposedDpEvent(dp_accounting.GaussianDpEvent(0.35), 4)
    assert entry(kind="pure", parameter=6.0).event() == dp_accounting.SelfComposedDpEvent(PureDpEvent(6.0), 1)
    assert isinstance(entry(kind="nonprivate", parameter=None).event(), dp_accounting.NonPrivateDpEvent)


@settings(max_examples=100, deadline=None)
@given(st.data(), st.integers(1, 3), st.integers(1, 3))
def test_rounds_charged_at_once_are_rounds_charged_one_by_one(data, runs, times):
    single, together = BatchLedger(runs), BatchLedger(runs)
    parameter = st.lists(st.sampled_from([0.5, 1.0, 2.0, float("nan")]), min_size=runs, max_size=runs)
    kind = data.draw(st.sampled_from(["gaussian", "nonprivate"]))
    sensitivities = [torch.full((runs,), data.draw(st.sampled_from([1.0, 2.0]))).double() for _ in range(times)]
    for _ in range(data.draw(st.integers(1, 4))):
        rows = np.array(data.draw(st.lists(parameter, min_size=1, max_size=20)))
        for row in rows:
            for sensitivity in sensitivities:
                single.charge(entry(kind=kind), sensitivity, row, floats=3)
        if data.draw(st.booleans()):
            together.charge_rounds(entry(kind=kind), sensitivities, rows, np.full(runs, 3 * times * len(rows)))
        else:
            for row in rows:
                for sensitivity in sensitivities:
                    together.charge(entry(kind=kind), sensitivity, row, floats=3)
    for run in range(runs):
        assert repr(together.of_run(run)) == repr(single.of_run(run))  # NaN is like itself


def told(runs, clients, size, times, bound=1.0):
    return [(torch.full((runs,), bound).double(), torch.full((runs, clients), 2.0 + n).double(), size) for n in range(times)]


@pytest.mark.parametrize("one_message", [False, True])
@pytest.mark.parametrize("schedule", [None, lambda rounds, clients: 1.0 + np.arange(rounds)])
@pytest.mark.parametrize("times", [1, 3])
def test_a_mechanism_charges_rounds_at_once_as_one_by_one(build, one_message, schedule, times):
    spec = ReleaseSpec("update", per_round=3, schedule=schedule, one_message=one_message)
    single, together = (build("local_gaussian", 4, 5, seeds=(0, 1), specs=[spec]) for _ in range(2))
    given = told(2, 4, 5, times)
    for mechanism in (single, together):
        mechanism._charge(spec, *given[0][:2], np.array([1, 7]), None, 5)
    for start, count in ((np.array([2, 8]), 20), (np.array([22, 28]), 1), (np.array([23, 30]), 7)):
        rounds = start + np.arange(count).reshape(-1, 1)
        parameters, addresses = together._charge_rounds(spec, given, rounds)
        for row, numbers in enumerate(rounds):
            for number, (bound, sensitivity, size) in enumerate(given):
                one, address = single._charge(spec, bound, sensitivity, numbers, None, size)
                assert np.array_equal(parameters[row], one)
                assert np.array_equal(addresses[row, number], address)
        assert together._free["update"].tolist() == single._free["update"].tolist()
    for run in range(2):
        assert together.site.ledger.of_run(run) == single.site.ledger.of_run(run)


@pytest.mark.parametrize(
    ("first", "times", "bound", "message"),
    [
        ([9_998, 5], 1, 1.0, "after the last one"),
        ([3, 5], 4, 1.0, "more than 3 times in a round"),
        ([2, 4], 1, 1.0, "or in a round that is over"),
        ([3, 5], 1, math.inf, "needs clipped values"),
    ],
)
def test_rounds_that_are_refused_charge_nothing(build, first, times, bound, message):
    spec = ReleaseSpec("update", per_round=3)
    mechanism = build("local_gaussian", 4, 5, seeds=(0, 1), specs=[spec])
    mechanism._charge_rounds(spec, told(2, 4, 5, 3), np.array([[1, 3], [2, 4]]))
    before = [mechanism.site.ledger.of_run(run) for run in range(2)]
    rounds = np.array(first) + np.arange(4).reshape(-1, 1)
    with pytest.raises(PrivacyError, match=message):
        mechanism._charge_rounds(spec, told(2, 4, 5, times, bound), rounds)
    assert [mechanism.site.ledger.of_run(run) for run in range(2)] == before
    mechanism._charge_rounds(spec, told(2, 4, 5, 3), np.array([[3, 5]]))  # nothing was used up


def test_a_public_schedule_is_kept_in_rounds_charged_at_once(build):
    spec = ReleaseSpec("update", occurs=lambda seed, rounds: np.arange(1, rounds + 1) != 5)
    mechanism = build("local_gaussian", 4, 5, specs=[spec])
    mechanism._charge_rounds(spec, told(1, 4, 5, 1), np.array([[1], [2], [3], [4]]))
    with pytest.raises(PrivacyError, match="against its public schedule"):
        mechanism._charge_rounds(spec, told(1, 4, 5, 1), np.array([[5], [6]]))
    assert mechanism.site.ledger.of_run(0).releases == 4
