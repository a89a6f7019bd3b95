"""Replay: the same bits as rounds that run as they are, and nothing is replayed that could differ in a later round."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dpfl_cli.algorithms.base import State
from dpfl_cli.algorithms.fedavg import FedAvg
from dpfl_cli.algorithms.local import bounded_local_update
from dpfl_cli.config.compose import compose_config
from dpfl_cli.config.errors import PrivacyError
from dpfl_cli.data.streams import Streams
from dpfl_cli.models.linear import LinearRegression
from dpfl_cli.privacy.client_values import client_values, opened
from dpfl_cli.privacy.mechanism import ReleaseSpec
from dpfl_cli.simulation import replay
from dpfl_cli.simulation.engine import Batch, Member, run_members
from dpfl_cli.simulation.plan import Plan, make_plan, with_values
from tests.simulation.conftest import finish

SMALL = ["dataset.clients=6", "dataset.dimension=5", "dataset.records_per_client=3", "rounds=13", "evaluation.every=4"]
METHODS = [
    (algorithm, dp) for algorithm in ("fedavg", "fedexp", "fedexp_naive", "scaffold") for dp in ("none", "ldp", "cdp")
    if algorithm != "fedexp_naive" or dp == "ldp"
]  # fmt: skip


@pytest.fixture(autouse=True)
def worthwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay, "WORTHWHILE", 4)


def plans_of(*overrides: str, seeds: int = 1, **changes: list[Any]) -> list[Plan]:
    base = compose_config([*SMALL, *overrides])
    variants: list[dict[str, Any]] = [{"seed": seed} for seed in range(seeds)]
    for key, values in changes.items():
        variants = [{**variant, key.replace("__", "."): value} for variant in variants for value in values]
    return [make_plan(with_values(base, variant)) for variant in variants]


def after_rounds(plan: Plan, rounds: int = 5) -> Batch:
    batch = Batch([Member(plan)])
    for _ in range(rounds):
        batch.step()
    return batch


@pytest.mark.parametrize(("algorithm", "dp"), METHODS)
def test_replayed_rounds_have_the_same_bits(algorithm: str, dp: str, as_it_is: Any) -> None:
    plan = plans_of(f"algorithm={algorithm}", f"dp={dp}", "evaluation.average_last=3")[0]
    assert after_rounds(plan).replay.replaying, after_rounds(plan).replay.refused
    replayed, eager = finish([plan])[plan.id], as_it_is([plan])[plan.id]
    assert [row["round"] for row in replayed.rows] == [0, 4, 8, 12, 13]
    assert replayed.rows == eager.rows
    assert replayed.ledger == eager.ledger
    assert replayed.unreleased == eager.unreleased
    assert replayed.server is not None
    assert eager.server is not None
    for name, value in replayed.server.items():
        assert torch.equal(value, eager.server[name])


def logistic(tmp_path: Path) -> list[str]:
    """Words for three clients with records of their own."""
    rows = np.random.default_rng(0).standard_normal((30, 4))
    lines = (f"{1 if row[0] > 0 else -1} " + " ".join(f"{k}:{x:.4f}" for k, x in enumerate(row, start=1)) for row in rows)
    (tmp_path / "data").write_text("\n".join(lines) + "\n")
    return [
        "dataset=libsvm",
        f"dataset.path={tmp_path}/data",
        "model=logistic",
        "partitioner=contiguous",
        "partitioner.clients=3",
    ]


@pytest.mark.parametrize("algorithm", ["primal_dual", "fedavg_record", "scaffold_record", "isrl_dp"])
def test_noisy_local_steps_on_a_logistic_model_have_the_same_bits(algorithm: str, tmp_path: Path, as_it_is: Any) -> None:
    method = [f"algorithm={algorithm}", "dp=record", "mechanism.noise_multiplier=1.0", "rounds=13", "evaluation.every=4"]
    plan = make_plan(compose_config([*logistic(tmp_path), *method]))
    assert after_rounds(plan).replay.replaying, after_rounds(plan).replay.refused
    replayed, eager = finish([plan])[plan.id], as_it_is([plan])[plan.id]
    assert replayed.rows == eager.rows
    assert replayed.ledger == eager.ledger


@pytest.mark.parametrize("method", [
    ["algorithm=fedavg", "dp=ldp", "algorithm.local_steps=3"],
    ["algorithm=fedexp", "dp=cdp"],
    ["algorithm=scaffold", "dp=none", "algorithm.local_steps=2"],
    ["algorithm=fedavg_record", "dp=record", "algorithm.local_steps=3"],
    ["algorithm=fedavg_record", "dp=record", "algorithm.sampling=epoch_permutation", "algorithm.local_steps=3"],
    ["algorithm=scaffold_record", "dp=record", "algorithm.sampling=with_replacement", "dp.mode=paper"],
    ["algorithm=adaptdp", "dp=record", "algorithm.radius_batch_size=2"],
])  # fmt: skip
def test_rounds_with_batches_have_the_same_bits(method: list[str], tmp_path: Path, as_it_is: Any) -> None:
    """Batches are drawn anew in every replayed round, by the number of the local step."""
    noise = [] if "dp=none" in method else ["mechanism.noise_multiplier=1.0"]
    words = [*logistic(tmp_path), *method, *noise, "algorithm.batch_size=3", "rounds=13", "evaluation.every=4"]
    plans = [make_plan(with_values(compose_config(words), {"seed": seed})) for seed in (0, 1)]
    assert after_rounds(plans[0]).replay.replaying, after_rounds(plans[0]).replay.refused
    together, alone = finish(plans), as_it_is(plans)
    for plan in plans:
        assert together[plan.id].rows == alone[plan.id].rows
        assert together[plan.id].ledger == alone[plan.id].ledger


def test_a_batch_that_holds_a_record_twice_is_refused_in_a_replayed_round(tmp_path: Path, monkeypatch: Any) -> None:
    words = [*logistic(tmp_path), "algorithm=fedavg", "dp=ldp", "algorithm.batch_size=3", "rounds=13"]
    draw = Streams.subset

    def twice(self: Streams, name: str, rounds: np.ndarray, *args: Any) -> torch.Tensor:
        drawn = draw(self, name, rounds, *args)
        return drawn.index_fill(-1, torch.tensor(1), 0) if rounds.max() > 40 else drawn  # a round has 5 local steps

    monkeypatch.setattr(Streams, "subset", twice)
    plan = make_plan(compose_config([*words, "mechanism.noise_multiplier=1.0", "algorithm.local_steps=5"]))
    batch = after_rounds(plan, 8)
    assert batch.replay.replaying
    with pytest.raises(PrivacyError, match="holds a record twice"):
        batch.step()


@pytest.mark.parametrize("runs", [1, 3])
def test_a_diagnostic_of_the_old_state_shows_the_old_state(runs: int, monkeypatch: pytest.MonkeyPatch, as_it_is: Any) -> None:
    """The next state is written over the memory that it looks at."""
    usual = FedAvg.round

    def round(self: FedAvg, state: State, *args: Any) -> Any:
        after, diagnostics = usual(self, state, *args)
        return after, {**diagnostics, "before": state.server["model"][:, 0]}

    monkeypatch.setattr(FedAvg, "round", round)
    plans = plans_of("algorithm=fedavg", "dp=ldp", seeds=runs)
    assert after_rounds(plans[0]).replay.replaying, after_rounds(plans[0]).replay.refused
    together, alone = finish(plans), as_it_is(plans)
    for plan in plans:
        assert together[plan.id].rows == alone[plan.id].rows


def test_round_numbers_are_the_algorithms_own(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = FedAvg.round

    def round(self: FedAvg, state: State, objective: Any, mechanism: Any, streams: Any, rounds: Any) -> Any:
        done = usual(self, state, objective, mechanism, streams, rounds)
        rounds += 1  # its own, as far as it can tell
        return done

    monkeypatch.setattr(FedAvg, "round", round)
    assert after_rounds(plans_of("algorithm=fedavg", "dp=ldp")[0]).rounds.tolist() == [5]


def test_what_the_host_makes_counts_as_made_and_goes_with_the_batch() -> None:
    """40 numbers of noise and as many of updates, [1, 8, 5], at least."""
    batch = after_rounds(plans_of("algorithm=fedavg", "dp=ldp", "dataset.clients=8")[0])
    kept = batch.replay
    assert kept.replaying
    assert kept._first is not None
    hosted = sum(torch.as_tensor(part).nbytes for step in kept._first.steps if step.given is not None for part in step.made)
    assert kept._first.bytes > hosted >= 8 * 40
    batch.collect()
    batch.restart(batch.members)
    assert kept._first is None
    assert not kept.replaying


def test_addresses_that_change_otherwise_than_rounds_are_not_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    usual, seen = FedAvg.round, []

    def round(self: FedAvg, state: State, objective: Any, mechanism: Any, streams: Any, rounds: Any) -> Any:
        seen.append(1)
        streams.uniform("other", rounds * len(seen), 1, 1)
        return usual(self, state, objective, mechanism, streams, rounds)

    monkeypatch.setattr(FedAvg, "round", round)
    assert "does not do the same" in (after_rounds(plans_of("algorithm=fedavg")[0]).replay.refused or "")


def test_members_that_leave_and_runs_of_several_federations(as_it_is: Any) -> None:
    plans = plans_of("algorithm=fedexp", "dp=ldp", seeds=3, rounds=[9, 17], algorithm__clip_norm=[0.3, 1.0])
    together = finish(plans)
    for plan in plans:
        alone = as_it_is([plan])[plan.id]
        assert together[plan.id].rows == alone.rows
        assert together[plan.id].ledger == alone.ledger


def test_a_diverging_run_leaves_and_the_others_go_on(as_it_is: Any) -> None:
    plans = plans_of("algorithm=fedavg", "dp=none", "rounds=60", algorithm__local_lr=[0.003, 1e6])
    together = finish(plans)
    assert together[plans[1].id].diverged == as_it_is([plans[1]])[plans[1].id].diverged is not None
    assert together[plans[0].id].rows == as_it_is([plans[0]])[plans[0].id].rows


@pytest.mark.parametrize("stop", [3, 4, 7])
def test_a_checkpoint_of_a_replayed_run_goes_on(stop: int, as_it_is: Any) -> None:
    plan = plans_of("algorithm=scaffold", "dp=ldp", "evaluation.average_last=2", "evaluation.every=1")[0]
    batch = Batch([Member(plan)])
    batch.evaluate({})
    for _ in range(stop):
        batch.evaluate(batch.step())
    batch.collect()
    member = Member.from_bytes(plan, batch.members[0].to_bytes())
    assert member.round == stop
    resumed = next(iter(run_members([member], lambda m: None, lambda m: None)))
    eager = as_it_is([plan])[plan.id]
    assert resumed.rows == eager.rows
    assert resumed.ledger == eager.ledger


def test_noise_that_changes_over_time_is_replayed(monkeypatch: pytest.MonkeyPatch, as_it_is: Any) -> None:
    schedule = lambda rounds, clients: 1.0 + np.arange(rounds)  # noqa: E731
    monkeypatch.setattr(FedAvg, "releases", staticmethod(lambda settings, trust: [ReleaseSpec("update", schedule=schedule)]))
    plan = plans_of("algorithm=fedavg", "dp=ldp")[0]
    assert after_rounds(plan).replay.replaying
    member = finish([plan])[plan.id]
    assert member.ledger.entries[0].parameter == tuple(0.35 * (1.0 + t) for t in range(13))
    assert member.rows == as_it_is([plan])[plan.id].rows


def test_small_batches_of_few_rounds_and_large_ones_run_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Batch([Member(plans_of("rounds=3")[0])]).replay.refused == "too few rounds"
    monkeypatch.setattr(replay, "LARGEST", 1000)
    assert "too much" in (after_rounds(plans_of()[0]).replay.refused or "")


class Changed(FedAvg):
    """FedAvg with something more in its round."""

    what: Callable[..., Any]

    def round(self, state: State, objective: Any, mechanism: Any, streams: Any, rounds: Any) -> Any:
        model = type(self).what(self, state.server["model"], streams, rounds)
        mean = mechanism.release("update", bounded_local_update(objective, model, self.hyper, streams, rounds), rounds).mean
        return State({"model": model + mean}, {}), {}


class Counter:
    value = 0


def _counted(_: Any, model: torch.Tensor, *__: Any) -> torch.Tensor:
    Counter.value += 1
    return model * (1.0 + 1e-3 * Counter.value)


def _counted_tensor(_: Any, model: torch.Tensor, *__: Any) -> torch.Tensor:
    Counter.value += 1
    return model * torch.tensor(1.0 + 1e-3 * Counter.value)


def _hidden_state(self: Any, model: torch.Tensor, *_: Any) -> torch.Tensor:
    self.momentum = getattr(self, "momentum", torch.zeros_like(model)).add_(0.1 * model)
    return model - 0.01 * self.momentum


def _acts_later(self: Any, model: torch.Tensor, *_: Any) -> torch.Tensor:
    self.calls = getattr(self, "calls", 0) + 1
    return model * 0.5 if self.calls > 50 else model


def _threads(_: Any, model: torch.Tensor, *__: Any) -> torch.Tensor:
    before = torch.get_num_threads()
    torch.set_num_threads(before + 1)
    model = model * 2
    torch.set_num_threads(before)
    return model / 2


REFUSED: dict[str, tuple[Callable[..., Any], str]] = {
    "compares the round": (lambda s, m, st, rounds: m * (0.5 if rounds[0] > 100 else 1.0), "number of the round"),
    "computes with the round": (lambda s, m, st, rounds: m / torch.as_tensor(1.0 + rounds).unsqueeze(-1), "number of the round"),
    "array of the round": (lambda s, m, st, rounds: m / torch.from_numpy(np.asarray(rounds) + 1.0), "number of the round"),
    "item": (lambda s, m, st, rounds: m * min(1.0, m.sum().abs().item() + 1), "reads a tensor out"),
    "bool": (lambda s, m, st, rounds: m if (m < 1e9).all() else m * 0, "reads a tensor out"),
    "numpy": (lambda s, m, st, rounds: m + torch.from_numpy(np.cos(m.numpy())), "reads a tensor out"),
    "tolist": (lambda s, m, st, rounds: m + torch.tensor(m.tolist()), "reads a tensor out"),
    "generator": (
        lambda s, m, st, rounds: m + torch.from_numpy(st.generator(0, "own").standard_normal(5)),
        "draws from a generator",
    ),
    "global generator": (lambda s, m, st, rounds: m + torch.rand_like(m), "draws numbers"),
    "shape": (lambda s, m, st, rounds: m + m[m > 0].sum(), "depends on values"),
    "scalar": (_counted, "does not do the same"),
    "tensor of a number": (_counted_tensor, "numbers that change"),
    "hidden state": (_hidden_state, ""),
    "attribute that acts later": (_acts_later, "outside of its state"),
    "threads": (_threads, "number of threads"),
}


@pytest.mark.parametrize("name", list(REFUSED))
def test_what_could_differ_later_runs_as_it_is(name: str, monkeypatch: pytest.MonkeyPatch, as_it_is: Any) -> None:
    what, reason = REFUSED[name]
    monkeypatch.setattr(Changed, "what", what, raising=False)
    monkeypatch.setattr(FedAvg, "round", Changed.round)
    monkeypatch.setattr(FedAvg, "what", what, raising=False)
    plan = plans_of("algorithm=fedavg", "dp=cdp")[0]
    monkeypatch.setattr(Counter, "value", 0)
    torch.manual_seed(0)
    batch = after_rounds(plan, 6)
    assert not batch.replay.replaying
    assert batch.replay.refused is not None
    assert reason in batch.replay.refused
    monkeypatch.setattr(Counter, "value", 0)
    torch.manual_seed(0)
    watched = finish([plan])[plan.id]
    monkeypatch.setattr(Counter, "value", 0)
    torch.manual_seed(0)
    assert watched.rows == as_it_is([plan])[plan.id].rows


def test_privunit_reads_its_draws_in_numpy_and_is_not_replayed() -> None:
    batch = after_rounds(plans_of("algorithm=fedavg", "dp=ldp_privunit")[0])
    assert batch.replay.refused is not None
    assert "numpy" in batch.replay.refused


def test_releases_for_some_runs_only_are_not_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = ReleaseSpec("update", occurs=lambda seed, rounds: np.ones(rounds, bool))
    monkeypatch.setattr(FedAvg, "releases", staticmethod(lambda settings, trust: [spec]))

    def all_of_them(self: Any, state: State, objective: Any, mechanism: Any, streams: Any, rounds: Any) -> Any:
        update = bounded_local_update(objective, state.server["model"], self.hyper, streams, rounds)
        mean = mechanism.release("update", update, rounds, np.ones(rounds.shape, bool)).mean
        return State({"model": state.server["model"] + mean}, {}), {}

    monkeypatch.setattr(FedAvg, "round", all_of_them)
    assert after_rounds(plans_of("algorithm=fedavg")[0]).replay.refused == "releases for some runs only"


@pytest.mark.parametrize("use", [
    lambda n: n[0], lambda n: n + 1.0, lambda n: n + n, lambda n: n.all(),
    lambda n: n * True, lambda n: n // 2, lambda n: -n, lambda n: n > 3, lambda n: n == 3, list, lambda n: n.max(),
    lambda n: n.astype(float), lambda n: n.dtype, np.asarray, torch.as_tensor, len,
    lambda n: np.where(n > 1, 1, 0), lambda n: np.add(n, 1), lambda n: n.T, bool,
])  # fmt: skip
def test_round_numbers_notice_every_use(use: Callable[[Any], Any]) -> None:
    seen: list[int] = []
    numbers = replay.RoundNumbers(np.array([3]), lambda: seen.append(1))
    assert numbers.shape == (1,)
    assert not seen
    use(numbers)
    assert seen


@given(st.lists(st.tuples(st.sampled_from("+*-<"), st.integers(-9, 9)), max_size=5))
def test_addresses_made_of_round_numbers_follow_the_rounds(steps: list[tuple[str, int]]) -> None:
    """Sums and products with whole numbers are not a use; they are what numpy makes of the round that it is."""
    operations = {"+": lambda n, k: n + k, "*": lambda n, k: n * k, "-": lambda n, k: n - k, "<": lambda n, k: k + n * 2}
    rounds, seen = np.array([3, 8]), []

    def applied(numbers: Any) -> Any:
        for name, k in steps:
            numbers = operations[name](numbers, k)
        return numbers

    found = applied(replay.RoundNumbers(rounds, lambda: seen.append(1)))
    for _ in range(2):
        assert np.array_equal(found.plain, applied(rounds))
        rounds += 5
    assert not seen


def test_a_release_too_many_is_refused_in_a_replayed_round() -> None:
    batch = after_rounds(plans_of("algorithm=fedavg", "dp=ldp")[0])
    assert batch.replay.replaying
    model = batch.state.server["model"].clone()
    batch.rounds -= 1  # the round that was just done, once more
    with pytest.raises(PrivacyError, match="more than 1 times in a round"):
        batch.step()
    assert batch.rounds.tolist() == [4]
    assert torch.equal(batch.state.server["model"], model)


def test_a_round_after_the_last_is_refused_in_a_replayed_round() -> None:
    batch = after_rounds(plans_of("algorithm=fedavg", "dp=ldp")[0], 13)
    assert batch.replay.replaying
    with pytest.raises(PrivacyError, match="after the last one"):
        batch.step()


@pytest.mark.parametrize("on_host", [True, False])
def test_kernels_are_replayed_where_they_pass_through_the_host(
    on_host: bool, monkeypatch: pytest.MonkeyPatch, as_it_is: Any
) -> None:
    plan = plans_of("algorithm=fedavg", "dp=ldp")[0]
    expected = as_it_is([plan])[plan.id].rows
    by_torch = LinearRegression.local_descent

    def descent(self: LinearRegression, start: torch.Tensor, *rest: Any) -> Any:
        def kernel(model: torch.Tensor) -> torch.Tensor:
            return torch.from_numpy(1.0 * opened(by_torch(self, model, *rest)).numpy())

        return client_values(self.host(kernel, start) if on_host else kernel(start))

    monkeypatch.setattr(LinearRegression, "local_descent", descent)
    assert after_rounds(plan).replay.replaying is on_host
    assert finish([plan])[plan.id].rows == expected


@pytest.mark.parametrize(("algorithm", "method"), [("fedavg", "_coefficients"), ("scaffold", "_updates")])
@pytest.mark.parametrize("seeds", [1, 7])
def test_a_kernel_that_takes_memory_writes_into_what_was_recorded(
    algorithm: str, method: str, seeds: int, monkeypatch: pytest.MonkeyPatch, as_it_is: Any
) -> None:
    plans = plans_of(f"algorithm={algorithm}", "dp=ldp", "dataset.records_per_client=1", seeds=seeds)
    expected = as_it_is(plans)
    compiled, places = getattr(LinearRegression, method), []

    def watched(self: LinearRegression, *args: Any, out: torch.Tensor | None = None) -> torch.Tensor:
        places.append(None if out is None else out.data_ptr())
        return compiled(self, *args, out=out)

    monkeypatch.setattr(LinearRegression, method, watched)
    for id, member in finish(plans).items():
        assert member.rows == expected[id].rows
    given = [place for place in places if place is not None]
    assert len(given) > len(places) / 2
    assert len(set(given)) == 1
