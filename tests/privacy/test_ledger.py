"""The ledger: charges, arrays of noise, masks, and the way through JSON."""

from __future__ import annotations

import json
import math

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings

from dpfl_cli.cli.pricing import release_line
from dpfl_cli.config.errors import PrivacyError
from dpfl_cli.privacy.accountants import price_all
from dpfl_cli.privacy.ledger import BatchLedger, Ledger, LedgerEntry, ReleaseLog
from dpfl_cli.simulation.plan import load_components


def entry(name="update", count=1, parameter=0.35, **changes) -> LedgerEntry:
    values = {
        "kind": "gaussian",
        "sensitivity": 2.0,
        "relation": "replace_one",
        "unit": "client",
        "scope": "client",
    }
    return LedgerEntry(name, count=count, parameter=parameter, **{**values, **changes})


positive = st.floats(1e-6, 1e6)


@st.composite
def entries(draw):
    kind = draw(st.sampled_from(["gaussian", "pure", "nonprivate"]))
    count = draw(st.integers(1, 6))
    parameter = None
    if kind != "nonprivate":
        parameter = draw(
            st.one_of(positive, st.lists(positive, min_size=count, max_size=count).map(tuple))
        )
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
    assert all(
        "epsilon" not in part for part in json.loads(text)
    )  # the ledger holds what happened, not what it costs


def log_of(table, rounds=None, one_message=False, **changes) -> ReleaseLog:
    """A log of R runs with parameters [R, T], or the same in so many rounds."""
    table = np.array(table, float)
    if rounds:
        table = np.repeat(table, rounds, axis=1)
    return ReleaseLog(entry(**changes), table, one_message)


def charge(log, number, charged=True, sensitivity=2.0, size=3) -> None:
    runs = len(log.parameters)
    moved = torch.as_tensor(np.broadcast_to(sensitivity, runs).copy())
    log.charge(np.full(runs, number), np.broadcast_to(charged, runs), moved, size)


@settings(max_examples=100, deadline=None)
@given(st.data(), st.integers(1, 3), st.integers(1, 6), st.booleans())
def test_a_batch_writes_each_run_what_it_would_write_alone_also_across_a_restart(
    data, runs, rounds, one_message
):
    """Against the plainest model: a list of multipliers per run and name."""
    level = st.sampled_from([0.5, 1.0, 2.5])
    table = np.array([[data.draw(level) for _ in range(rounds)] for _ in range(runs)])
    restart = data.draw(st.integers(1, rounds))
    batch = BatchLedger([Ledger()] * runs)
    model: list[dict[str, list[float]]] = [{} for _ in range(runs)]
    sent = np.zeros(runs, int)
    for number in range(1, rounds + 1):
        if number == restart:
            written = [json.dumps(batch.of_run(run).to_json()) for run in range(runs)]
            saved = [Ledger.from_json(json.loads(text)) for text in written]
            batch = BatchLedger(saved)
        made = [set() for _ in range(runs)]
        for name in data.draw(st.lists(st.sampled_from(["update", "norm"]), max_size=3)):
            mask = np.array([data.draw(st.booleans()) for _ in range(runs)])
            log = batch.logs.setdefault(name, log_of(table, one_message=one_message, name=name))
            charge(log, number, mask)
            for run in np.flatnonzero(mask):
                model[run].setdefault(name, []).append(table[run, number - 1])
                sent[run] += 0 if one_message and name in made[run] else 3
                made[run].add(name)
    for run in range(runs):
        ledger = batch.of_run(run)
        assert ledger == batch.of_run(run)  # reading does not write
        assert {e.name: e.parameters().tolist() for e in ledger.entries} == model[run]
        assert ledger.releases == sum(map(len, model[run].values()))
        assert ledger.floats == sent[run]
        for written in ledger.entries:
            assert isinstance(written.parameter, tuple) == (len(set(model[run][written.name])) > 1)
            assert written.sensitivity == 2.0


def test_constant_noise_is_one_number_and_a_count():
    log = log_of([[0.35], [2.5]], rounds=50)
    for number in range(1, 51):
        charge(log, number, sensitivity=np.array([0.6, 2.0], np.float32))
    assert log.of_run(1) == entry(count=50, parameter=2.5)
    assert log.of_run(0) == entry(count=50, sensitivity=float(torch.tensor(0.6)))


def test_a_sensitivity_that_changes_is_not_stated_as_if_it_had_not():
    log = log_of([[1.0], [1.0]], rounds=2)
    charge(log, 1)
    charge(log, 2, sensitivity=[2.0, 1.0])
    assert [log.of_run(run).sensitivity for run in (0, 1)] == [2.0, None]
    assert entry().joined(entry(sensitivity=1.0)) == entry(count=2, sensitivity=None)


def test_without_a_bound_there_is_no_sensitivity_to_state():
    log = log_of([[math.nan]], rounds=3, kind="nonprivate", parameter=None)
    for number in (1, 2, 3):
        charge(log, number, sensitivity=math.inf)
    written = log.of_run(0)
    assert written == entry(kind="nonprivate", parameter=None, sensitivity=None, count=3)
    json.dumps(written.to_json(), allow_nan=False)
    with pytest.raises(PrivacyError, match="not private"):
        written.parameters()
    assert written.joined(written).count == 6


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "pure"},
        {"relation": "zero_out"},
        {"unit": "record"},
        {"scope": "federation"},
        {"shape": "scalar"},
    ],
)
def test_a_release_keeps_its_meaning_during_a_run(change):
    with pytest.raises(PrivacyError, match="changed its"):
        entry().joined(entry(**change))


def test_a_number_of_parameters_that_is_not_the_count_is_refused():
    with pytest.raises(PrivacyError, match="2 parameters for 3 releases"):
        entry(count=3, parameter=(1.0, 2.0))


def test_files_call_a_release_as_dp_accounting_does():
    parts = entry(), entry(kind="pure", parameter=6.0), entry(kind="nonprivate", parameter=None)
    names = ["GaussianDpEvent", "PureDpEvent", "NonPrivateDpEvent"]
    assert [part.to_json()["event"] for part in parts] == names


def test_a_release_of_a_kind_that_a_plugin_registered_is_told_without_it() -> None:
    """`dpfl account` loads no plugins."""
    load_components()
    own = entry(kind="mine", parameter=2.0)
    assert "1 x mine per client, parameter 2" in release_line(own)
    assert {one.reason for one in price_all(Ledger((own,)), 1e-5)} == {
        "a release's kind 'mine' is not known: write gaussian or pure"
    }
