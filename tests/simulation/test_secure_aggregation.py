"""Secure aggregation: what a client sends is in the sum, and nowhere else on the server's side; and
what one client sent.
"""

from __future__ import annotations

import gc
import io
import math
import re
import weakref
from collections.abc import Iterator
from types import CellType, FunctionType, MethodType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from dpfl_cli.cli.outcomes import report_outcomes
from dpfl_cli.cli.tables import epsilon_text
from dpfl_cli.config.component import components
from dpfl_cli.config.compose import compose_config
from dpfl_cli.config.errors import DataError
from dpfl_cli.data.files import without_digest
from dpfl_cli.privacy.accountants import accountant
from dpfl_cli.privacy.client_values import ClientValues, client_values, opened
from dpfl_cli.privacy.gaussian import SharedGaussian
from dpfl_cli.privacy.ledger import Ledger, LedgerEntry
from dpfl_cli.privacy.mechanism import Mechanism
from dpfl_cli.privacy.nominal import epsilon_number
from dpfl_cli.privacy.releases import Release
from dpfl_cli.privacy.views import against, coalitions, collusion
from dpfl_cli.simulation.execute import execute, run_members
from dpfl_cli.simulation.member import Member
from dpfl_cli.simulation.plan import load_components, make_plan
from dpfl_cli.simulation.progress import Progress
from dpfl_cli.simulation.results import privacy_report, run_files
from dpfl_cli.simulation.run_plan import Plan
from dpfl_cli.simulation.stack import Stack
from dpfl_cli.simulation.store import RunStore
from tests import golden

SHARED = sorted(name for name, words in golden.RUNS.items() if "dp=secure_aggregation" in words)
CLIENTS = 7  # no other size of these runs
SIZES = {
    word: f"{word.split('=')[0]}={CLIENTS}"
    for word in (
        "dataset.clients=3",
        "dataset.clients=12",
        "partitioner.clients=4",
        "partitioner.clients=6",
    )
}
SMALL = ["dataset.clients=7", "dataset.dimension=5", "rounds=6"]


def plan_of(words: list[str]) -> Plan:
    return make_plan(compose_config([SIZES.get(word, word) for word in words]))


def kinds() -> list[str]:
    """One run for each method, unit and way to keep state of its clients."""
    return [name for name in SHARED if "calibrated" not in name and not name.endswith("zero_out")]


def test_every_method_that_shares_noise_is_among_them() -> None:
    load_components()
    found = {
        name
        for name, one in components("algorithm").items()
        if "secure_aggregation" in one.target.trusts
    }
    ours = {
        name
        for name in found
        if components("algorithm")[name].target.__module__.startswith("dpfl_cli.")
    }
    assert {compose_config(golden.RUNS[name])["algorithm"]["name"] for name in kinds()} == ours


def reachable(root: Any) -> Iterator[tuple[str, Any]]:
    """Every object that attributes, containers, closures and views lead to, with the way to it; not
    what the module of a function has besides, which leads to every module there is.
    """
    queue, seen = [("", root)], set()
    while queue:
        way, one = queue.pop()
        if (
            type(one) in weakref.ProxyTypes
        ):  # leads to what is reached otherwise, or to nothing any more
            continue
        if id(one) in seen or isinstance(one, type | str | bytes | int | float | type(None)):
            continue
        seen.add(id(one))
        yield way, one
        if isinstance(one, dict):
            queue += [(f"{way}[{key}]", value) for key, value in one.items()]
        elif isinstance(one, list | tuple | set | frozenset):
            queue += [(f"{way}[{number}]", value) for number, value in enumerate(one)]
        elif isinstance(one, Tensor) and not isinstance(one, ClientValues):
            queue += [(f"{way}._base", one._base)]
        elif isinstance(one, np.ndarray):
            queue += [(f"{way}.base", one.base)]
        elif isinstance(one, FunctionType | MethodType | CellType) or not type(
            one
        ).__module__.startswith(("torch", "numpy", "builtins")):
            module = getattr(one, "__globals__", None)
            queue += [
                (f"{way} -> {type(other).__name__}", other)
                for other in gc.get_referents(one)
                if other is not module
            ]


def held(one: Any) -> Tensor | None:
    """All numbers in the memory of a tensor or an array, also those beside what it shows."""
    if isinstance(one, np.ndarray) and one.dtype.kind == "f":
        return torch.from_numpy(one.copy()).double().flatten()
    if not isinstance(one, Tensor) or not one.dtype.is_floating_point:
        return None
    plain = opened(one).detach()
    memory = torch.empty(0, dtype=plain.dtype).set_(plain.untyped_storage())  # type: ignore[call-overload]
    return memory.double()


def found_in(root: Any, secrets: Tensor) -> list[str]:
    """Where objects hold a tensor with an axis of clients, or numbers of which a client's message
    is made.
    """
    found = []
    for way, one in reachable(root):
        if isinstance(one, ClientValues):
            found.append(f"{way}: client values")
        numbers = held(one)
        if numbers is None:
            continue
        if CLIENTS in one.shape:
            found.append(f"{way}: {list(one.shape)}")
        # more than a hundredth: a few float32 numbers in thousands are equal by chance
        if int(torch.isin(numbers, secrets).sum()) > 0.01 * len(numbers):
            found.append(f"{way}: a message")
    return found


def played(
    words: list[str], monkeypatch: pytest.MonkeyPatch, rounds: int = 2
) -> tuple[Stack, Member, Tensor, list[Release]]:
    """A batch of one run after some rounds, with the numbers of all messages and contributions, and
    the releases.
    """
    secrets: list[Tensor] = []
    releases: list[Release] = []
    original = SharedGaussian.release

    def release(self: Any, name: str, values: Any, *args: Any, **kwargs: Any) -> Release:
        made = original(self, name, values, *args, **kwargs)
        for one in (values.values, made.own):
            if one is not None:
                secrets.append(opened(one).double().flatten().clone())
        releases.append(made)
        return made

    monkeypatch.setattr(SharedGaussian, "release", release)
    member = Member(plan_of(words))
    batch = Stack([member])
    batch.evaluate({})
    for _ in range(rounds):
        batch.evaluate(batch.step())
    batch.collect()
    numbers = torch.cat(secrets)
    return batch, member, numbers[(numbers != 0) & numbers.isfinite()], releases


@pytest.mark.parametrize("name", kinds())
def test_nothing_on_the_servers_side_holds_a_message(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    try:
        batch, member, secrets, releases = played(golden.RUNS[name], monkeypatch)
    except DataError as absent:
        pytest.skip(str(absent))
    assert member.plan.clients == CLIENTS
    assert len(secrets)
    saved = torch.load(io.BytesIO(without_digest(member.to_bytes())), weights_only=True)
    owned = saved["state"].pop("clients")
    assert set(owned) == set(batch.state.clients)
    assert all(value.shape[0] == CLIENTS for value in owned.values())
    assert all(isinstance(value, ClientValues) for value in batch.state.clients.values())
    server = {
        "server": batch.state.server,
        "models": batch.recent,
        "rows": member.rows,
        "member": (member.state.server, member.recent, member.ledger),
        "checkpoint": saved,
        "released": [(one.received, one.mean, one.noise_std, one.bound) for one in releases],
        "files": {
            file: content.decode()
            for file, content in run_files(member, "done").items()
            if file.endswith(("json", "csv"))
        },
    }
    assert found_in(server, secrets) == []
    printed = [float(word) for text in server["files"].values() for word in _numbers(text)]  # type: ignore[attr-defined]
    assert not torch.isin(torch.tensor(printed, dtype=torch.float64), secrets).any()


def _numbers(text: str) -> list[str]:
    words = text.replace(",", " ").replace("[", " ").replace("]", " ").replace(":", " ").split()
    return [word for word in words if re.fullmatch(r"-?\d+\.\d+(e-?\d+)?", word)]


def test_a_message_that_is_kept_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    batch, _, secrets, _ = played(golden.RUNS["fedavg secure aggregation replace_one"], monkeypatch)
    inside = torch.zeros(3, 5, dtype=torch.float64)
    inside[1] = secrets[:5]
    kept = secrets[:2].clone()
    leaks: dict[str, Any] = {
        "a row": {"model": secrets[5:10].clone()},
        "a view": {"model": inside[2]},
        "clients": torch.zeros(1, CLIENTS, 2),
        "marked": batch.state.clients | {"own": client_values(torch.zeros(1, 2, 5))},
        "in a closure": lambda: kept,
        "an array": [secrets[:3].numpy().copy()],
    }
    for name, leak in leaks.items():
        assert found_in(leak, secrets), name


def test_what_a_release_and_the_mechanism_offer() -> None:
    """Nothing else is there; whoever adds to it has to think of single messages here."""
    assert {name for name in vars(SharedGaussian) if not name.startswith("_")} == {
        *("name", "trusts", "whole_noise", "gap", "as_calibrated", "event"),
    }
    asked = {name for name in dir(Mechanism) if not name.startswith("_")}
    declared = {
        "trusts",
        "shapes",
        "noise_field",
        "needs_bound",
        "varies",
        "whole_noise",
        "gap",
        "as_calibrated",
        "check",
    }
    assert asked == (declared - {"trusts"}) | {
        "entry",
        "event",
        "parts",
        "streams",
        "planned",
        "release",
        "rate",
        "squared_norms",
        "verify",
        "trust",
        "rounds",
        "due",
    }
    assert set(Release.__annotations__) == {"received", "own", "bound", "noise_std", "averaged"}


@pytest.mark.parametrize("echo", [False, True])
def test_a_release_of_shares_shows_the_sum_only(
    echo: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [*SMALL, "algorithm=scaffold" if echo else "algorithm=fedavg", "dp=secure_aggregation"]
    if echo:
        words += ["algorithm.control=sent", "dp.mode=paper"]
    batch, _, _, releases = played(words, monkeypatch)
    for one in releases:
        assert one.received.shape == one.mean.shape == (1, batch.members[0].plan.dimension)
        assert type(one.received) is type(one.mean) is Tensor
        assert one.own is None or isinstance(one.own, ClientValues)
        with pytest.raises(Exception, match="no messages of single clients"):
            batch.mechanism.squared_norms(one)
    assert (releases[0].own is not None) == echo


# Collusion.


def ledger_of(parameter: Any, count: int, scope: Any = "federation") -> Ledger:
    return Ledger(
        (LedgerEntry("update", "gaussian", count, parameter, 1.0, "zero_out", "client", scope),)
    )


def test_a_coalition_knows_its_own_shares() -> None:
    """The noise that is left on the others' sum, drawn: z sqrt((M - h) / M)."""
    clients, colluding, multiplier = 40, 15, 2.5
    shares = (
        np.random.default_rng(3).standard_normal((clients, 100_000))
        * multiplier
        / math.sqrt(clients)
    )
    left = (shares.sum(axis=0) - shares[:colluding].sum(axis=0)).std()
    (entry,) = against(ledger_of(multiplier, 7), clients, colluding).entries
    assert left == pytest.approx(entry.parameter, rel=0.01)
    assert coalitions(3) == [1]
    assert coalitions(500) == [1, 50, 250]


@pytest.mark.parametrize("name", ["gdp", "rdp", "zcdp"])
def test_a_coalitions_epsilon_is_that_of_less_noise(name: str) -> None:
    one = accountant(name)
    parameters = tuple(np.linspace(3.0, 9.0, 50).tolist())
    found = collusion(ledger_of(parameters, 50), 100, one, 1e-5)
    assert isinstance(found, list)
    assert [row["colluding"] for row in found] == [1, 10, 50]
    for row in found:
        left = math.sqrt(1 - row["colluding"] / 100)
        slow = ledger_of(tuple(left * z for z in parameters), 50)
        assert row["epsilon"] == pytest.approx(one.epsilon(slow, 1e-5), rel=1e-6)
        assert row["noise_multiplier"] == {"update": pytest.approx(3.0 * left)}
    assert found[0]["epsilon"] > one.epsilon(ledger_of(parameters, 50), 1e-5)


def test_noise_that_changes_over_a_long_run_is_priced_at_once() -> None:
    import time

    ledger = ledger_of(tuple(np.linspace(50.0, 90.0, 50_000).tolist()), 50_000)
    start = time.perf_counter()
    found = collusion(ledger, 100, accountant("pld"), 1e-5)
    assert time.perf_counter() - start < 20
    assert isinstance(found, list)
    exact = collusion(ledger, 100, accountant("gdp"), 1e-5)
    assert [row["epsilon"] for row in found] == pytest.approx(
        [row["epsilon"] for row in exact], rel=1e-3
    )  # type: ignore[index]


def test_a_report_says_what_colluding_clients_see(
    tmp_path: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [*SMALL, "algorithm=fedavg", "dp=secure_aggregation"]
    plan = plan_of(words)
    outcomes = execute([plan], RunStore(tmp_path), Progress("", 6, quiet=True))
    report_outcomes(outcomes, quiet=False)
    privacy = outcomes[0].record.result["privacy"]
    worth = epsilon_number(privacy["collusion"][-1]["epsilon"])
    line = f"Against 3 of 7 colluding clients: epsilon {worth} "
    assert line in capsys.readouterr().out
    assert privacy["collusion"][-1]["noise_multiplier"] == {
        "update": pytest.approx(2.5 * math.sqrt(4 / 7))
    }
    record = [
        *SMALL,
        "dp=secure_aggregation",
        "dp.unit=record",
        "dataset.records_per_client=3",
        "algorithm=scaffold_record",
    ]
    whole = plan_of([*record, "hints.local_steps=2", "mechanism.noise_share=false"])
    assert "changes nothing" in privacy_report(whole, whole.ledger())["collusion"]
    own = plan_of([*words, "mechanism.sens_scale=own", "dp.mode=paper"])
    assert "collusion" not in privacy_report(own, own.ledger())
    central = plan_of([*SMALL, "algorithm=fedavg", "dp=cdp"])
    assert "collusion" not in privacy_report(central, central.ledger())


def test_a_table_says_where_epsilon_is_not_its_target() -> None:
    shown = {"epsilon": 0.125, "vacuous": False, "guarantee": "proved"}
    assert epsilon_text(shown) == "0.1250"
    assert epsilon_text({**shown, "epsilon_target": 1.0}) == "0.1250 (target 1)"
    assert epsilon_text({**shown, "epsilon_target": 0.125}) == "0.1250"


# Communication.


def finished(words: list[str]) -> Member:
    (member,) = run_members([Member(plan_of(words))])
    return member


def sent(member: Member) -> int:
    return member.ledger.floats


@pytest.mark.parametrize(
    ("words", "each"),
    [
        (["algorithm=fedavg", "dp=cdp"], 5),
        (["algorithm=fedavg", "dp=none"], 5),
        (["algorithm=fedexp", "dp=cdp"], 6),  # a vector and a squared norm
        (["algorithm=scaffold", "dp=ldp", "algorithm.release=double"], 10),
        (
            [
                "algorithm=fedavg_record",
                "dp=record",
                "dataset.records_per_client=3",
                "hints.local_steps=4",
            ],
            5,
        ),  # one message
    ],
)
def test_numbers_are_counted_as_they_are_released(words: list[str], each: int) -> None:
    member = finished([*SMALL, *words])
    assert sent(member) == 6 * each
    assert [entry.floats for entry in member.plan.ledger().entries] == [0] * len(
        member.ledger.entries
    )  # nobody plans them
    assert Ledger.from_json(member.ledger.to_json()).floats == sent(member)


def test_what_was_sent_outlives_checkpoints_and_batches() -> None:
    words = [*SMALL[:2], "algorithm=fedavg", "dp=secure_aggregation"]
    alone = finished([*words, "rounds=230"])
    assert sent(alone) == 230 * 5
    plans = [
        plan_of([*words, f"rounds={rounds}", f"seed={seed}"])
        for seed, rounds in enumerate((230, 12, 150))
    ]
    members = run_members([Member(plan) for plan in plans])
    assert {member.plan.rounds: sent(member) for member in members} == {230: 1150, 12: 60, 150: 750}
    batch = Stack([Member(plans[0])])
    for _ in range(120):
        batch.step()
    batch.collect()
    again = Member.from_bytes(plans[0], batch.members[0].to_bytes())
    assert sent(again) == 600
    (resumed,) = run_members([again])
    assert sent(resumed) == 1150
