"""Batches of records by a Poisson law: who is in them, what is released of them, and its price."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from dp_accounting import GaussianDpEvent, NeighboringRelation, PoissonSampledDpEvent
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom, chisquare

from dpfl_cli.algorithms.base import Round
from dpfl_cli.config.compose import compose_config
from dpfl_cli.config.errors import ConfigError, PrivacyError
from dpfl_cli.data.streams import Streams
from dpfl_cli.privacy.accountants import accountant, price
from dpfl_cli.privacy.calibration import calibrate
from dpfl_cli.privacy.client_values import client_values, opened
from dpfl_cli.privacy.draws import MethodStreams, Sampling, drawn_batches, records_of
from dpfl_cli.privacy.ledger import Ledger, LedgerEntry
from dpfl_cli.simulation.grouping import bytes_per_run
from dpfl_cli.simulation.plan import make_plan
from dpfl_cli.simulation.results import privacy_report
from dpfl_cli.simulation.run_plan import Plan
from dpfl_cli.simulation.stack import Member, Stack
from tests.privacy.test_accountants import priced
from tests.privacy.test_plugins import at, record_play

CPU = torch.device("cpu")
DELTA = 1e-5
WORDS = [
    *("algorithm=fedavg_record", "dp=record", "dp.relation=zero_out", "accountant=pld"),
    *("dataset=synthetic", "dataset.clients=3", "dataset.records_per_client=40"),
    *("dataset.dimension=4", "algorithm.batch_size=6", "algorithm.sampling=poisson", "rounds=3"),
]


def plan_of(*words: str) -> Plan:
    replaced = {one.split("=")[0] for one in words}
    kept = [one for one in WORDS if one.split("=")[0] not in replaced]
    return make_plan(compose_config([*kept, *words]))


def drawn(held: np.ndarray, size: int, address: int, seeds: tuple[int, ...] = (0,)) -> np.ndarray:
    """[R, M, rows] record numbers."""
    streams = MethodStreams(Streams(list(seeds)), [])
    addresses = np.full(len(seeds), address)
    (batch,) = drawn_batches(streams, "batch", addresses, held, size, CPU, law="poisson")
    return records_of(batch).numpy()


# --- who is in a batch ----------------------------------------------------------------------------


@given(
    st.lists(st.integers(5, 60), min_size=1, max_size=6),
    st.integers(1, 5),
    st.integers(0, 10**6),
)
@settings(max_examples=60, deadline=None)
def test_numbers_are_the_clients_own_ascending_and_then_nobodys(
    held: list[int], size: int, address: int
) -> None:
    counts = np.array([held])
    found = drawn(counts, size, address)
    assert found.shape == (1, len(held), Sampling("poisson", size, 10**9).rows)
    for own, count in zip(found[0], held, strict=True):
        there = own[own >= 0]
        assert (np.diff(there) > 0).all()
        assert (there < count).all()
        assert (own[len(there) :] == -1).all()


def test_each_record_is_in_with_its_probability_apart_from_the_others() -> None:
    """Sizes are binomial, each record comes as often as it should, and pairs are independent."""
    held, size, times = np.array([[12, 40]]), 4, 4000
    here = np.zeros((times, 2, 40), bool)
    for address in range(times):
        for client, own in enumerate(drawn(held, size, address)[0]):
            here[address, client, own[own >= 0]] = True
    for client, count in enumerate(held[0]):
        rate, mine = size / count, here[:, client, :count]
        seen = np.bincount(mine.sum(axis=1), minlength=count + 1)
        expected = times * binom.pmf(np.arange(count + 1), count, rate)
        usual = expected > 8
        others = [[one[~usual].sum()] for one in (seen, expected)]
        pairs = [
            np.append(one[usual], rest) for one, rest in zip((seen, expected), others, strict=1)
        ]
        assert chisquare(pairs[0], pairs[1] * times / pairs[1].sum()).pvalue > 1e-4
        spread = np.sqrt(times * rate * (1 - rate))
        assert np.abs(mine.sum(axis=0) - times * rate).max() < 5 * spread
        both = (mine[:, 0] & mine[:, 1]).sum()
        assert abs(both - times * rate**2) < 5 * np.sqrt(times * rate**2)
    assert abs(np.corrcoef(here[:, 0, :12].sum(axis=1), here[:, 1].sum(axis=1))[0, 1]) < 0.08


def test_a_runs_batch_is_its_own_whoever_is_stacked_with_it() -> None:
    held = np.array([[7, 30], [50, 9], [7, 30]])
    together = drawn(held, 5, 3, seeds=(1, 2, 1))
    for run, seed in enumerate((1, 2, 1)):
        assert (together[run] == drawn(held[run : run + 1], 5, 3, seeds=(seed,))[0]).all()
    assert (together[0] == together[2]).all()
    assert (together != drawn(held, 5, 4, seeds=(1, 2, 1))).any()


@pytest.mark.parametrize("size", [0.5, 1, 4, 30, 1000])
def test_no_batch_has_more_records_than_there_are_rows(size: float) -> None:
    """But with a probability below 1e-18: who is left out then has not the law that is priced."""
    rows = Sampling("poisson", size, 10**6).rows
    assert binom.sf(rows, 10**6, size / 10**6) < 1e-18


def test_of_all_records_all_are_in() -> None:
    assert (drawn(np.array([[5, 5]]), 5, 0)[0, :, :6] == [0, 1, 2, 3, 4, -1]).all()


def test_more_than_a_client_holds_is_refused() -> None:
    with pytest.raises(ConfigError, match="6 records on average are more than a client holds"):
        drawn(np.array([[5, 50]]), 6, 0)


# --- what is computed of it -----------------------------------------------------------------------


def test_a_mean_is_the_sum_over_the_batch_by_its_public_size() -> None:
    played = record_play(batch_size=2)
    now, limit = at(played), torch.tensor([0.3], dtype=torch.float64)
    local, size = now.at_clients(played.states[0].server["model"]), 2
    batch = now.batch(size, now.number, law="poisson")
    rows, numbers = records_of(batch).shape[-1], records_of(batch)[0]
    bounded = now.objective.clipped_gradient(local, limit, batch)
    plain, norms = now.objective.squared_norms_mean(local, limit, batch)
    steps = now.objective.gradient(local, batch)
    sums, raw = torch.zeros_like(bounded.checked()), torch.zeros_like(opened(steps))
    for client, own in enumerate(numbers):
        for record in own[own >= 0].tolist():
            one = torch.full((1, len(numbers), 1), 10**6)  # of the other clients, none
            one[0, client] = record
            sums += now.objective.clipped_gradient(local, limit, one).checked()
            raw += opened(now.objective.gradient(local, one))
    assert (numbers >= 0).any()
    assert rows > size
    torch.testing.assert_close(bounded.checked(), sums / size)
    torch.testing.assert_close(opened(steps), raw / size)
    torch.testing.assert_close(bounded.zero_out, torch.full_like(bounded.zero_out, 0.3 / size))
    torch.testing.assert_close(bounded.replace_one, torch.full_like(bounded.zero_out, 0.6 / size))
    torch.testing.assert_close(bounded.bound, limit * rows / size)
    assert bounded.proved
    assert bounded.batch is batch
    expected = opened(norms).clamp(max=0.3).sum(dim=-1) / size
    torch.testing.assert_close(plain.checked(), expected)
    torch.testing.assert_close(plain.zero_out, torch.full_like(plain.zero_out, 0.3 / size))
    assert (now.objective.divisors(batch) == size).all()


def test_local_steps_have_batches_of_one_size() -> None:
    now = at(played := record_play(batch_size=2))
    model, rate = played.states[0].server["model"], torch.tensor([0.1])
    batches = [now.batch(2, now.number + step, law="poisson") for step in range(2)]
    with pytest.raises(PrivacyError, match="draw batches of one size"):
        now.objective.local_descent(model, rate, 2, batches=batches)


@pytest.mark.parametrize("law", ["subset", "repeats"])
def test_a_release_is_of_the_law_that_it_is_priced_by(law: str) -> None:
    played = record_play(batch_size=2, sampling="poisson")
    now, limit = at(played), torch.ones(1, dtype=torch.float64)
    local = now.at_clients(played.states[0].server["model"])
    for kind, refused in ((law, True), ("poisson", False)):
        batch = now.batch(2, now.number, law=kind)
        values = now.objective.clipped_gradient(local, limit, batch)
        if refused:
            with pytest.raises(PrivacyError, match=r"poisson of the records|is claimed"):
                now.release("gradient", values)
        else:
            now.release("gradient", values)
    again = at(played, 2)
    stale = again.objective.clipped_gradient(local, limit, batch)
    with pytest.raises(PrivacyError, match="of a batch that was released before"):
        again.release("gradient", stale)


# --- its price ------------------------------------------------------------------------------------


def entry(z: float, rate: float | None, count: int, **others: object) -> LedgerEntry:
    values = {"relation": "zero_out", "unit": "record", "scope": "client", "name": "gradient"}
    values |= {"rate": rate, "batch": "poisson"} | others
    values = {"parameter": z, **values}
    return LedgerEntry(kind="gaussian", count=count, sensitivity=None, **values)  # type: ignore[arg-type]


@pytest.mark.parametrize("relation", ["zero_out", "add_or_remove"])
@pytest.mark.parametrize(("z", "rate", "count"), [(1.1, 0.01, 1000), (0.7, 0.2, 3), (4.0, 0.5, 60)])
def test_accountants_agree_with_dp_accounting(
    relation: str, z: float, rate: float, count: int
) -> None:
    event = PoissonSampledDpEvent(rate, GaussianDpEvent(z))
    ledger = Ledger((entry(z, rate, count, relation=relation),))
    orders = [*range(2, 64), *(2**power for power in range(6, 15))]
    public = RdpAccountant(orders, NeighboringRelation.ADD_OR_REMOVE_ONE)
    rdp, pld = (priced(name, ledger) for name in ("rdp", "pld"))
    whole = priced("gdp", ledger)
    amplified = public.compose(event, count).get_epsilon(DELTA)
    assert rdp == pytest.approx(min(amplified, priced("rdp", _plain(ledger))))
    tight = PLDAccountant(NeighboringRelation.ADD_OR_REMOVE_ONE, 1e-4).compose(event, count)
    assert pld == pytest.approx(tight.get_epsilon(DELTA), rel=2e-3)
    assert pld <= rdp * (1 + 1e-6)
    assert pld < whole


def _plain(ledger: Ledger) -> Ledger:
    return Ledger(tuple(replace(one, rate=None) for one in ledger.entries))


def test_more_releases_and_higher_rates_cost_more() -> None:
    for name in ("rdp", "pld"):
        counts = [Ledger((entry(1.5, 0.1, count),)) for count in (1, 5, 40)]
        rates = [Ledger((entry(1.5, rate, 5),)) for rate in (0.01, 0.1, 0.6, 0.999)]
        for ledgers in (counts, rates):
            prices = [priced(name, one) for one in ledgers]
            assert all(low < high for low, high in pairwise(prices))
        whole = priced(name, _plain(rates[-1]))
        assert prices[-1] <= whole * (1 + 1e-3)


def test_batches_and_whole_releases_compose() -> None:
    batches, whole = entry(1.0, 0.1, 20), entry(6.0, None, 4, name="whole")
    event = [(PoissonSampledDpEvent(0.1, GaussianDpEvent(1.0)), 20), (GaussianDpEvent(6.0), 4)]
    public = PLDAccountant(NeighboringRelation.ADD_OR_REMOVE_ONE, 1e-4)
    for one, count in event:
        public.compose(one, count)
    exact, ledger = public.get_epsilon(DELTA), Ledger((batches, whole))
    assert priced("pld", ledger) == pytest.approx(exact, rel=2e-3)
    assert exact < priced("rdp", ledger) < 1.3 * exact
    pure = LedgerEntry("pure", "pure", 1, 0.1, None, "zero_out", "record", "client")
    mixed = Ledger((batches, pure))
    with pytest.raises(PrivacyError, match="not with 'pure': use accountant=rdp"):
        priced("pld", mixed)
    assert priced("rdp", mixed) > priced("rdp", Ledger((batches,)))


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        ("gdp", {}),
        ("zcdp", {}),
        ("wang_rdp", {}),
        ("rdp", {"relation": "replace_one"}),
        ("pld", {"relation": "replace_one"}),
        ("rdp", {"unit": "client"}),
        ("rdp", {"kind": "pure"}),
    ],
)
def test_what_is_not_known_is_priced_as_if_all_were_in(name: str, changed: dict) -> None:
    ledger = Ledger((replace(entry(2.0, 0.1, 5), **changed),))
    own = accountant(name)
    assert own.epsilon(ledger, DELTA) == own.epsilon(_plain(ledger), DELTA)
    assert price(ledger, own, DELTA).unamplified


def test_many_levels_of_noise_cost_a_little_more_than_each_by_itself() -> None:
    levels = tuple(np.linspace(1.0, 3.0, 40).tolist())
    every = Ledger((entry(1.0, 0.1, 40, parameter=levels),))
    halves = [entry(1.0, 0.1, 20, parameter=half) for half in (levels[:20], levels[20:])]
    exact = Ledger((halves[0], replace(halves[1], name="other")))
    found, apart = (priced("rdp", one) for one in (every, exact))
    assert apart < found < 1.04 * apart
    assert priced("pld", every) < found


@pytest.mark.parametrize("rate", [0.0, -0.1, 7.0, float("nan")])
def test_a_rate_is_a_share(rate: float) -> None:
    with pytest.raises(PrivacyError, match="is no share of records, or of clients"):
        entry(1.0, rate, 1)


@pytest.mark.parametrize("law", ["repeats", "part", "Poisson"])
def test_no_other_law_is_priced(law: str) -> None:
    with pytest.raises(PrivacyError, match="batches are priced by subset, poisson"):
        entry(1.0, 0.1, 1, batch=law)


def test_pld_refuses_a_delta_that_it_cannot_resolve() -> None:
    ledger = Ledger((entry(1.0, 0.1, 1),))
    with pytest.raises(PrivacyError, match="pld cannot resolve delta"):
        priced("pld", ledger, 1.2e-16)
    assert priced("rdp", ledger, 1.2e-16) < 40


# --- whole runs -----------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["fedavg_record", "fedgd_record", "scaffold_record"])
@pytest.mark.parametrize("relation", ["zero_out", "add_or_remove"])
def test_a_run_meets_its_target_by_the_batches(relation: str, method: str) -> None:
    plan = plan_of("dp.epsilon=2", f"dp.relation={relation}", f"algorithm={method}")
    stack = Stack([Member(plan)])
    for _ in range(3):
        stack.step()
    (found,) = stack.ledger.of_run(0).entries
    assert (found.batch, found.rate, found.law) == ("poisson", 6 / 40, "full")
    steps = getattr(plan.algorithm.settings, "local_steps", 1)
    assert found.count == 3 * steps

    def ledger(z: float) -> Ledger:
        return Ledger((entry(z, 6 / 40, 3 * steps, relation=relation),))

    expected = calibrate(2.0, DELTA, accountant("pld"), ledger)
    assert found.parameter == pytest.approx(expected, rel=1e-3)
    assert (
        found.parameter
        < plan_of("dp.epsilon=2", f"dp.relation={relation}", "accountant=gdp")
        .ledger()
        .entries[0]
        .parameter
    )


@pytest.mark.parametrize("law", ["poisson", "subset"])
def test_no_batch_is_released_twice_whoever_goes_on(law: str, monkeypatch: Any) -> None:
    """In another stack, as where runs beside it have ended, and from a checkpoint."""
    drawn_for = Round.batch

    def stuck(at: Round, size: int, numbers: np.ndarray, **given: Any) -> Any:
        return drawn_for(at, size, np.zeros_like(numbers), **given)

    monkeypatch.setattr(Round, "batch", stuck)
    words = ["algorithm.sampling=without_replacement"] if law == "subset" else []
    words += ["dp.relation=replace_one", "accountant=rdp"] if words else []
    plan = plan_of("algorithm.local_steps=1", "mechanism.noise_multiplier=1", *words)
    member = Member(plan)
    first = Stack([member])
    first.step()
    first.collect()
    for one in (member, Member.from_bytes(plan, member.to_bytes())):
        with pytest.raises(PrivacyError, match="of a batch that was released before"):
            Stack([one]).step()


@pytest.mark.parametrize("given", [False, True])
def test_where_a_record_is_gone_a_batch_of_one_size_holds_another(given: bool) -> None:
    """Batches that a method draws or names itself have the sensitivity of replacing then."""
    plan = plan_of("dp.relation=add_or_remove", "mechanism.noise_multiplier=1")
    stack = Stack([Member(plan)])
    view, numbers, streams = stack.clients_view, np.array([1]), stack.method_streams
    names = torch.arange(6).expand(1, 3, 6)
    clip_norm = torch.ones(1, dtype=view.dtype)
    at = client_values(torch.zeros(1, 3, view.dimension, dtype=view.dtype))
    subset = names if given else view.batches(streams, "batch", numbers, 6, "subset")[0]
    (poisson,) = view.batches(streams, "batch", numbers, 6, "poisson")
    each = {
        name: view.clipped_gradient(at, clip_norm, batch)
        for name, batch in (("all", None), ("subset", subset), ("poisson", poisson))
    }
    moved = {name: float(one.sensitivity("add_or_remove").max()) for name, one in each.items()}
    assert moved == pytest.approx({"all": 1 / 40, "subset": 2 / 6, "poisson": 1 / 6})
    zeroed = {name: float(one.sensitivity("zero_out").max()) for name, one in each.items()}
    assert zeroed == pytest.approx({"all": 1 / 40, "subset": 1 / 6, "poisson": 1 / 6})


def test_the_conf_of_sampling_is_refused_where_it_means_nothing() -> None:
    with pytest.raises(ConfigError, match=r"algorithm\.sampling=.?poisson"):
        plan_of("algorithm=adaptdp")
    for words in (
        ["algorithm.sampling=without_replacement"],
        ["algorithm.sampling=without_replacement", "algorithm.batch_size=40"],
        ["algorithm.sampling=epoch_permutation", "algorithm.local_steps=1"],
        ["algorithm.sampling=epoch_permutation", "algorithm.local_steps=6"],
    ):
        with pytest.raises(ConfigError, match="a batch holds another one in its place"):
            plan_of(*words, "dp.relation=add_or_remove", "accountant=gdp")
    with pytest.raises(ConfigError, match=r"draws batches: write algorithm\.batch_size"):
        plan_of("algorithm.batch_size=null")
    whole = plan_of("algorithm.batch_size=40", "dp.epsilon=2")
    assert whole.ledger().entries[0].rate is None


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "; counted by pld"),
        (["accountant=rdp"], "; counted by rdp"),
        (["accountant=gdp"], "; gdp prices it as if all were in; accountant=pld amplifies it"),
        (
            ["dp.relation=replace_one"],
            "; pld prices it as if all were in, and amplifies it under dp.relation=add_or_remove "
            "or zero_out",
        ),
        (
            ["accountant=wang_rdp", "dp.relation=replace_one"],
            "; wang_rdp prices it as if all were in; accountant=pld amplifies it under "
            "dp.relation=add_or_remove or zero_out",
        ),
    ],
)
def test_whether_batches_are_counted_is_said(words: list[str], says: str) -> None:
    plan = plan_of("dp.epsilon=2", *words)
    said = privacy_report(plan, plan.ledger())["batches"]
    assert said == f"each of a client's records with probability 0.15 at most{says}"


def test_what_drawing_takes_is_counted() -> None:
    drawn, other = (
        plan_of("dp.epsilon=2", "dp.relation=replace_one", f"algorithm.sampling={one}")
        for one in ("poisson", "without_replacement")
    )
    assert bytes_per_run(drawn) - bytes_per_run(other) == 40 * 120
