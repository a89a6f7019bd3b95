"""Clients that are drawn for a round: what methods compute, what they see, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from members import before_rounds, finish

from dpfl_cli.algorithms.base import Round, State
from dpfl_cli.algorithms.fedavg import FedAvg
from dpfl_cli.algorithms.scaffold import Scaffold
from dpfl_cli.config.compose import compose_config
from dpfl_cli.config.errors import ConfigError, DpflError, PrivacyError
from dpfl_cli.config.identity import content_id, identity_of, stored_config
from dpfl_cli.data.federation import Federation, Partition
from dpfl_cli.data.streams import Streams
from dpfl_cli.privacy import draws
from dpfl_cli.privacy.bounded import clip
from dpfl_cli.privacy.client_values import is_raw, opened, own_values
from dpfl_cli.privacy.draws import Sampling, drawn_cohort, members_of
from dpfl_cli.simulation.execute import run_members
from dpfl_cli.simulation.member import Member
from dpfl_cli.simulation.plan import make_plan, with_values
from dpfl_cli.simulation.results import privacy_report
from dpfl_cli.simulation.run_plan import Plan, federation_of
from dpfl_cli.simulation.stack import Stack

CLIENTS, SIZE, D = 30, 6, 5
LIBSVM = Path(__file__).parent.parent / "data" / "small.libsvm"
SMALL = [f"dataset.clients={CLIENTS}", f"dataset.dimension={D}", "rounds=5", "dp=cdp"]
QUICK = ["accountant=rdp", "mechanism.noise_multiplier=1.0"]
LAWS = {
    law: [f"participation={law}", f"participation.cohort={SIZE}", *QUICK]
    for law in ("poisson", "fixed")
}


def plan_of(*words: str, method: str = "fedavg") -> Plan:
    return make_plan(compose_config([*SMALL, f"algorithm={method}", *words]))


def drawn_for(plan: Plan, number: int) -> list[int]:
    """The clients of a run's round."""
    assert plan.sampling is not None
    members = members_of(drawn_cohort(Streams([plan.seed]), plan.sampling, np.array([number])))[0]
    return members[members >= 0].tolist()


# --- the law --------------------------------------------------------------------------------------


@pytest.mark.parametrize("law", ["poisson", "fixed"])
@pytest.mark.parametrize("clients", [40, 1_000_000])
def test_cohorts_follow_their_law(law: Any, clients: int) -> None:
    sampling, rounds = Sampling(law, 10, clients), np.arange(1, 2001)
    members = members_of(drawn_cohort(Streams([0] * 2000), sampling, rounds))
    sizes = (members >= 0).sum(axis=1)
    assert members.shape == (2000, sampling.rows)
    assert sampling.rows <= 60
    assert (np.diff(np.sort(members, axis=1), axis=1)[np.sort(members)[:, 1:] > 0] > 0).all()
    variance = 0.0 if law == "fixed" else 10 * (1 - sampling.rate)
    assert abs(sizes.mean() - 10) <= 5 * np.sqrt(variance / 2000)
    assert sizes.var() == pytest.approx(variance, rel=0.2)
    there = members[members >= 0]
    spread = np.sqrt(clients**2 / 12 / len(there))
    assert abs(there.mean() - (clients - 1) / 2) <= 5 * spread
    if clients == 40:
        often = np.bincount(there, minlength=40)
        assert abs(often - 500).max() <= 5 * np.sqrt(500)
        # rows do not hang on who else is there: client 20 beside client 0, and without it
        first = (members == 0).any(axis=1)
        for beside in (first, ~first):
            drawn, rows = np.nonzero(members == 20)
            mine = rows[beside[drawn]]
            spread = np.sqrt((sampling.rows**2 - 1) / 12 / len(mine))
            assert abs(mine.mean() - (sampling.rows - 1) / 2) <= 5 * spread


# --- what is computed -----------------------------------------------------------------------------


def noise_of(plan: Plan, number: int) -> np.ndarray:
    drawn_ = Streams([plan.seed]).normal("noise/update", np.array([number]), None, D)
    return drawn_[0].numpy()


def played(plan: Plan, method: str) -> tuple[np.ndarray, dict[int, np.ndarray]]:
    """The model and the clients' controls after the run, client by client."""
    train, chosen = federation_of(plan).dataset.train, plan.algorithm.settings
    w, c = np.zeros(D), np.zeros(D)
    control = {client: np.zeros(D) for client in range(CLIENTS)}
    relation = 1 if plan.dp.relation == "add_or_remove" else 2
    length = chosen.local_steps * chosen.local_lr
    for number in range(1, plan.rounds + 1):
        total, members = np.zeros(D), drawn_for(plan, number)
        fresh = {}
        for client in members:
            x, y = train.features[client], train.targets[client]
            v, drift = w.copy(), c - control[client] if method == "scaffold" else 0.0
            for _ in range(chosen.local_steps):
                v = v - chosen.local_lr * ((x @ v - y) * x + drift)
            update = (v - w) * min(1.0, chosen.clip_norm / np.linalg.norm(v - w))
            fresh[client] = -drift - update / length
            total += update
        std = relation * chosen.clip_norm / SIZE  # times the multiplier 1
        mean = total / SIZE + std * noise_of(plan, number)
        w = w + mean
        c = c + SIZE / CLIENTS * (-mean / length - c)
        control |= fresh
    return w, control


@pytest.mark.parametrize("law", list(LAWS))
@pytest.mark.parametrize("method", ["fedavg", "scaffold"])
def test_a_slow_reference_with_the_same_cohorts_and_noise(law: str, method: str) -> None:
    words = [*LAWS[law], "algorithm.clip_norm=0.5", "dp.mode=paper"]
    plan = plan_of(*words, method=method)
    state = finish([plan])[plan.id].state
    assert state is not None
    model, control = played(plan, method)
    assert state.server["model"].numpy() == pytest.approx(model, rel=1e-9, abs=1e-12)
    if method == "scaffold":  # those that were away keep what they had
        assert opened(state.clients["control"]).numpy() == pytest.approx(
            np.stack(list(control.values())), rel=1e-9, abs=1e-12
        )


@pytest.mark.parametrize(
    ("law", "method"), [*((law, "fedavg") for law in LAWS), ("poisson", "scaffold")]
)
def test_alone_in_a_batch_and_resumed_bit_by_bit(law: str, method: str) -> None:
    base = compose_config([*SMALL, f"algorithm={method}", *LAWS[law], "algorithm.batch_size=1"])
    variants = [(seed, rounds) for seed in (0, 1, 2) for rounds in (3, 5)]
    plans = [
        make_plan(with_values(base, {"seed": seed, "rounds": rounds, "algorithm.clip_norm": 0.5}))
        for seed, rounds in variants
    ]
    together = finish(plans)
    for plan in plans:
        half = Stack([Member(plan)])
        half.evaluate({})
        half.step()
        half.collect()
        again = Member.from_bytes(plan, half.members[0].to_bytes())
        (resumed,) = run_members([again])
        for other in (finish([plan])[plan.id], resumed):
            assert other.ledger == together[plan.id].ledger
            assert other.rows[-1] == together[plan.id].rows[-1]


def test_an_empty_cohort_is_noise_that_is_charged() -> None:
    words = [*LAWS["poisson"], "participation.cohort=1", "rounds=3"]
    plans = (plan_of(*words, f"seed={seed}") for seed in range(200))  # of 20, one is like this
    plan = next(one for one in plans if not any(drawn_for(one, number) for number in (1, 2, 3)))
    member = finish([plan])[plan.id]
    assert member.state is not None
    std = plan.algorithm.settings.clip_norm
    expected = std * sum(noise_of(plan, number) for number in (1, 2, 3))
    assert member.state.server["model"].numpy() == pytest.approx(expected, rel=1e-9)
    assert member.ledger.entries[0].rounds == (1, 2, 3)
    assert privacy_report(plan, member.ledger)["epsilon"] > 0


def test_a_regulariser_that_follows_from_the_records_is_that_of_all_clients() -> None:
    words = ["dataset=libsvm", f"dataset.path={LIBSVM}", "model=logistic", "model.condition=10"]
    words += ["partitioner.clients=6", *LAWS["poisson"], "participation.cohort=2", "dp=cdp"]
    plan = make_plan(compose_config([*words, "algorithm=fedavg", "rounds=2"]))
    federation = federation_of(plan)
    whole = plan.model.target(plan.model.settings, [federation], np.array([0]))
    assert whole.l2.item() > 0
    for few in (np.arange(0), np.arange(3), np.arange(10, 20)):
        drawn_ones = Federation(federation.dataset, Partition.from_lists([few]))
        assert torch.equal(whole.among([drawn_ones], np.array([0])).l2, whole.l2)


@pytest.mark.parametrize("clients", [1, CLIENTS])
@pytest.mark.parametrize("law", list(LAWS))
def test_a_cohort_of_all_is_all(law: str, clients: int) -> None:
    sizes = [f"dataset.clients={clients}", f"participation.cohort={clients}"]
    plan = plan_of(*LAWS[law], *sizes)
    full = plan_of(*QUICK, sizes[0], f"dp.relation={plan.dp.relation}")
    assert sorted(drawn_for(plan, 1)) == list(range(clients))
    models = [finish([one])[one.id].state.server["model"] for one in (plan, full)]  # type: ignore
    assert torch.allclose(*models, rtol=1e-10)


# --- what is seen ---------------------------------------------------------------------------------


def test_nothing_that_a_method_sees_tells_how_many_take_part(monkeypatch: Any) -> None:
    """A mean over those who happen to take part would have a divisor in which neighbours differ;
    numbers of rows are the same in every round, and counts are the clients' own.
    """
    seen, plan = set(), plan_of(*LAWS["poisson"], "rounds=40")

    def look(_: State, at: Round) -> None:
        update = at.objective.local_descent(torch.zeros(1, D).double(), torch.ones(1), 1)
        seen.add((at.objective.clients, *update.shape, *at.at_clients(torch.zeros(1, D)).shape))
        assert is_raw(at.objective.records)
        assert is_raw(at.objective.divisors(None))
        with pytest.raises(PrivacyError, match="how many batches there are"):
            at.objective.batches(at.streams, "batch", at.number, 1, "part")
        everywhere = at.at_clients(torch.zeros(1, D).double())
        with pytest.raises(PrivacyError, match="its width tells how many records"):
            at.objective.squared_norms_mean(everywhere, torch.ones(1))
        with pytest.raises(PrivacyError, match="which nobody else draws"):
            at.streams.generator(0, draws.STREAM, 1)

    monkeypatch.setattr(Stack, "_of_method", lambda _, compute: compute())  # refusals are caught
    before_rounds(monkeypatch, FedAvg, look)
    finish([plan])
    assert len({len(drawn_for(plan, number)) for number in range(1, 41)}) > 3
    assert len(seen) == 1


def test_one_client_moves_a_release_by_its_bound_over_the_expected_size(monkeypatch: Any) -> None:
    """With the coins of all others held fixed."""
    plan = plan_of(*LAWS["poisson"], "algorithm.clip_norm=0.01", "rounds=1")
    found = []
    for member in ([3, 7, 9], [3, 9]):

        def given(
            streams: Streams, sampling: Sampling, rounds: np.ndarray, own: Any = member
        ) -> Any:
            rows = np.full((1, sampling.rows), draws.NOBODY)
            rows[0, : len(own)] = own
            return draws.Cohort(sampling, rounds, rows, maker=draws._MAKER)

        monkeypatch.setattr("dpfl_cli.simulation.stack.drawn_cohort", given)
        state = finish([plan])[plan.id].state
        assert state is not None
        found.append(state.server["model"])
    assert float((found[0] - found[1]).norm()) == pytest.approx(0.01 / SIZE, rel=1e-9)


def test_values_of_another_rounds_clients_are_not_released(monkeypatch: Any) -> None:
    kept: list[Any] = []

    def stale(self: FedAvg, state: State, at: Round) -> Any:
        model = state.server["model"]
        kept.append(at.objective.gradient(at.at_clients(model)))
        limit = torch.ones(1, dtype=torch.float64)
        with pytest.raises(PrivacyError, match="two rounds' cohorts meet"):
            _ = kept[0] + kept[1] if len(kept) > 1 else kept[0] + stranger(kept[0])
        if len(kept) > 1:
            for values in (kept[0], kept[0] * 2, clip(kept[0], limit).values):
                with pytest.raises(PrivacyError, match="clients of this round"):
                    at.release("update", clip(values, limit))
        mean = at.release("update", clip(kept[-1], limit)).mean
        return State({"model": model + mean}, {}), {}

    def stranger(values: Any) -> Any:
        other = values * 1
        other.cohort = object()
        return other

    monkeypatch.setattr(Stack, "_of_method", lambda _, compute: compute())  # refusals are caught
    monkeypatch.setattr(FedAvg, "round", stale)
    finish([plan_of(*LAWS["poisson"], "rounds=2")])


@pytest.mark.parametrize("use", ["added", "parameters", "drift", "state"])
def test_what_init_computes_of_all_clients_meets_no_cohort(monkeypatch: Any, use: str) -> None:
    """Its row j is client j's, a cohort's is of the j-th that was drawn: with as many rows as there
    are clients, one client's data would enter another's update.
    """
    kept: list[Any] = []

    def init(self: FedAvg, objective: Any, streams: Any) -> State:
        model = objective.initial(streams)
        start = model.unsqueeze(1).expand(-1, objective.clients, -1)
        kept.append(objective.gradient(start))
        return State({"model": model}, {"memory": own_values(start.clone())})

    def mixed(self: FedAvg, state: State, at: Round) -> Any:
        model, other = state.server["model"], kept[0]
        update, memory = at.objective.gradient(at.at_clients(model)), state.clients["memory"]
        if use == "added":
            update = update + other
        elif use == "parameters":
            update = at.objective.gradient(other)
        elif use == "drift":
            update = at.objective.local_descent(model, self.hyper.local_lr, 2, other)
        else:
            memory = other
        mean = at.release("update", clip(update, self.hyper.clip_norm)).mean
        return State({"model": model + mean}, {"memory": memory}), {}

    monkeypatch.setattr(FedAvg, "away", "rests")
    monkeypatch.setattr(FedAvg, "init", init)
    monkeypatch.setattr(FedAvg, "round", mixed)
    plan = plan_of(*LAWS["poisson"], "dataset.clients=6", "participation.cohort=3", "rounds=1")
    assert Sampling("poisson", 3, 6).rows == 6
    with pytest.raises(PrivacyError, match="two rounds' cohorts meet"):
        finish([plan])


def test_a_method_that_says_it_keeps_nothing_keeps_nothing(monkeypatch: Any) -> None:
    monkeypatch.setattr(Scaffold, "away", "stateless")
    with pytest.raises(PrivacyError, match="which is declared to keep none"):
        Stack([Member(plan_of(*LAWS["poisson"], method="scaffold"))])


# --- size -----------------------------------------------------------------------------------------


def test_a_round_works_on_its_cohort_alone(monkeypatch: Any) -> None:
    """However many clients there are: the records and rows that a round holds."""
    held = {}
    for clients in (2_000, 20_000):
        words = [f"dataset.clients={clients}", "participation.cohort=10", "rounds=2"]

        def look(_: State, at: Round, clients: int = clients) -> None:
            inside = at.objective._ClientSide__objective
            held[clients] = inside.clients, len(inside._pool.features) <= 1 + inside.clients

        before_rounds(monkeypatch, FedAvg, look)
        finish([plan_of(*LAWS["poisson"], *words)])
    assert held[2_000] == held[20_000]
    assert held[2_000][1]


# --- what is refused, and what is said ------------------------------------------------------------

POISSON, FIXED = LAWS["poisson"], LAWS["fixed"]


@pytest.mark.parametrize(
    ("words", "method", "says"),
    [
        ([*POISSON, "participation.cohort=31"], "fedavg", "there are 30 clients"),
        ([*POISSON, "participation.cohort=null"], "fedavg", "there are 30 clients"),
        ([*FIXED, "participation.cohort=2.5"], "fedavg", "a whole number"),
        ([*POISSON, "participation.cohort=0.1"], "fedavg", "10 % of the 30 that there are is 3"),
        ([*FIXED, "participation.cohort=0.1"], "fedavg", "10 % of the 30 that there are is 3"),
        ([*POISSON, "participation.cohort=0.001"], "fedavg", "it is a number of clients$"),
        (["participation.cohort=5"], "fedavg", "all clients take part"),
        ([*POISSON, "dp=ldp"], "fedavg", "nothing is amplified"),
        ([*POISSON, "dp=secure_aggregation"], "fedavg", "nothing is amplified"),
        ([*POISSON, "dp.relation=replace_one"], "fedavg", "is for dp.relation=add_or_remove"),
        ([*FIXED, "dp.relation=add_or_remove"], "fedavg", "is for dp.relation=replace_one"),
        ([*POISSON], "scaffnew", "does not say what becomes of clients that are away"),
        ([*POISSON, "dp=record"], "fedavg_record", "priced where whole clients are protected"),
        ([*FIXED, "dp.unit=record"], "isrl_dp", "priced where whole clients are protected"),
        (FIXED, "scaffold", "tells in which rounds it took part"),
        ([*POISSON, "algorithm.warm_start=true"], "scaffold", "begins with a gradient of its own"),
    ],
)
def test_what_makes_no_sense_is_refused(words: list[str], method: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        plan_of(*words, method=method)


def test_full_participation_is_no_part_of_an_identity() -> None:
    plan = plan_of("participation=full")
    assert "participation" not in plan.identity
    for one in (plan, plan_of(*LAWS["poisson"])):
        assert content_id(identity_of(stored_config(one.config, one.identity))) == one.id
    assert len({plan.id, *(plan_of(*words).id for words in LAWS.values())}) == 3


@pytest.mark.parametrize(("law", "price"), [("poisson", "rdp"), ("fixed", "wang_rdp")])
def test_a_target_is_met_and_the_participation_said(law: str, price: str) -> None:
    words = [f"participation={law}", "participation.cohort=6", f"accountant={price}"]
    plan, full = plan_of(*words, "dp.epsilon=4"), plan_of("dp.epsilon=4")
    report = privacy_report(plan, plan.ledger())
    assert report["epsilon"] == pytest.approx(4, rel=1e-4)
    assert report["epsilon"] <= 4
    assert f"amplified by {price}" in report["participation"]
    assert "who takes part" in " ".join(report["not_covered"])
    assert "participation" not in privacy_report(full, full.ledger())
    plain = plan_of(*words[:2], "accountant=gdp", "dp.epsilon=4")
    assert "as if all took part" in privacy_report(plain, plain.ledger())["participation"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("accountant=gdp", "; gdp prices it as if all were in; accountant=rdp amplifies it"),
        ("accountant=rdp", "; counted by rdp, as far as its theorem goes"),
        ("accountant=wang_rdp", "; counted by wang_rdp, as far as its theorem goes"),
        (
            "accountant=gdp dp.relation=zero_out",
            "; gdp prices it as if all were in; accountant=rdp amplifies it under dp.relation=",
        ),
        ("accountant=rdp dp.relation=zero_out", "; rdp prices it as if all were in, and ampl"),
        ("accountant=rdp algorithm.sampling=epoch_permutation", None),
        ("accountant=rdp algorithm.batch_size=20", None),
        ("dp=none", None),
    ],
)
def test_whether_batches_are_counted_is_said(words: str, says: str | None) -> None:
    records = ["dataset=synthetic", "dataset.clients=4", "dataset.records_per_client=20"]
    method = ["algorithm=fedavg_record", "dp=record", "algorithm.batch_size=2", "rounds=2"]
    given = words.split()
    kept = [one for one in method if one.split("=")[0] not in {key.split("=")[0] for key in given}]
    plan = make_plan(compose_config([*records, "dataset.dimension=3", *kept, *given]))
    said = privacy_report(plan, plan.ledger()).get("batches")
    assert (said is None) == (says is None)
    if says is not None:
        assert said.startswith(f"at most 0.1 of a client's records, without replacement{says}")


def test_secret_cohorts_are_of_no_seed() -> None:
    plan = plan_of(*LAWS["poisson"], "dp.noise=secret", "participation.cohort=15")
    found = [
        members_of(drawn_cohort(Stack([Member(plan)])._noise, plan.sampling, np.array([1])))  # type: ignore
        for _ in range(2)
    ]
    assert (found[0] != found[1]).any()


def test_a_state_that_appears_in_a_round_is_refused(monkeypatch: Any) -> None:
    def round_(self: Scaffold, state: State, at: Round) -> Any:
        return State(state.server, {**state.clients, "more": state.clients["control"]}), {}

    monkeypatch.setattr(Scaffold, "round", round_)
    with pytest.raises(DpflError, match="the same in every round"):
        finish([plan_of(*LAWS["poisson"], method="scaffold")])
