"""What holds for every client-level method."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from federated import STEPS, M, federation_of, play, reordered
from omegaconf import OmegaConf

import dpfl_cli.algorithms
from dpfl_cli.algorithms.base import algorithm
from dpfl_cli.config.component import UNLIMITED, components, lookup, parse_settings
from dpfl_cli.config.compose import compose_config, register_resolvers
from dpfl_cli.config.errors import ConfigError, DataError
from dpfl_cli.data.streams import Streams
from dpfl_cli.privacy.client_values import ClientValues, opened
from dpfl_cli.simulation.plan import load_components, make_plan
from tests import golden

METHODS: list[tuple[str, dict[str, Any]]] = [
    ("fedavg", {}),
    ("fedexp", {}),
    ("scaffold", {}),
    ("scaffold", {"release": "double", "control": "raw"}),
    ("fedavg", {"batch_size": 1}),
    ("scaffnew", {}),
    ("scaffnew", {"control": "none", "batch_size": 1}),
]
DIAGNOSTICS = {
    "scaffnew": "drift_diagnostics"
}  # of a method's file; "update_diagnostics" of the others
CONF = Path(__file__).parents[2] / "conf" / "algorithm"
FILES = ("fedavg", "fedexp", "fedexp_naive", "scaffold", "scaffnew", "fedavg_scheduled")
each_method = pytest.mark.parametrize(
    ("name", "settings"),
    METHODS,
    ids=[f"{n}{'-' * bool(s)}{'-'.join(map(str, s.values()))}" for n, s in METHODS],
)
each_trust = pytest.mark.parametrize("trust", ["none", "local", "central", "privunit"])


@each_method
def test_the_order_of_clients_does_not_matter_without_noise(
    name: str, settings: dict[str, Any]
) -> None:
    federation = federation_of(1)
    order = np.random.default_rng(0).permutation(M)
    straight = play(name, "none", settings, federations=[federation]).go(5).models()
    permuted = (
        play(name, "none", settings, federations=[reordered(federation, order)]).go(5).models()
    )
    np.testing.assert_allclose(permuted, straight, rtol=1e-10, atol=1e-12)


@each_method
@each_trust
def test_a_slice_of_a_batch_is_the_run_alone(
    name: str, settings: dict[str, Any], trust: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[torch.Tensor] = []
    drawing = Streams.normal

    def kept(*args: Any, **more: Any) -> torch.Tensor:
        drawn.append(drawing(*args, **more))
        return drawn[-1].clone()

    monkeypatch.setattr(Streams, "normal", kept)
    seeds = [5, 6, 5, 7]
    together = play(name, trust, settings, seeds=seeds).go(3)
    batch, drawn[:] = list(drawn), []
    for run, seed in enumerate(seeds):
        alone = play(name, trust, settings, seeds=[seed]).go(3)
        np.testing.assert_allclose(
            together.models()[:, run], alone.models()[:, 0], rtol=1e-12, atol=1e-12
        )
        assert len(drawn) == len(batch)
        assert all(torch.equal(one[run], own[0]) for one, own in zip(batch, drawn, strict=True))
        assert [entry.to_json() for entry in together.ledger(run).values()] == [
            entry.to_json() for entry in alone.ledger().values()
        ]
        drawn.clear()
    assert bool(batch) == (trust != "none")


@each_method
@each_trust
def test_a_round_leaves_its_state_alone_and_hands_the_server_released_values_only(
    name: str, settings: dict[str, Any], trust: str
) -> None:
    played = play(name, trust, settings, seeds=[5, 6]).go(1)
    state = played.states[-1]
    before = {
        **{k: v.clone() for k, v in state.server.items()},
        **{f"c/{k}": opened(v).clone() for k, v in state.clients.items()},
    }
    played.go(1)
    after = {**state.server, **{f"c/{k}": opened(v) for k, v in state.clients.items()}}
    assert all(torch.equal(before[key], after[key]) for key in before)
    assert not torch.equal(played.states[-1].server["model"], state.server["model"])
    for one in (*played.states[-1].server.values(), *played.diagnostics[-1].values()):
        assert not isinstance(one, ClientValues)
    assert all(value.shape == (2,) for value in played.diagnostics[-1].values())


@each_method
@each_trust
def test_no_round_reads_a_diagnostic(
    name: str, settings: dict[str, Any], trust: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = play(name, trust, settings, seeds=[5]).go(3)
    module = importlib.import_module(f"dpfl_cli.algorithms.{name}")
    shown = DIAGNOSTICS.get(name, "update_diagnostics")
    genuine = getattr(module, shown)
    spoiled = lambda *args: {key: value * float("nan") for key, value in genuine(*args).items()}
    monkeypatch.setattr(module, shown, spoiled)
    blind = play(name, trust, settings, seeds=[5]).go(3)
    assert bool(blind.diagnostics[-1]["clipped_fraction"].isnan().all())
    np.testing.assert_array_equal(blind.models(), honest.models())


@each_method
def test_hyperparameters_may_differ_between_the_runs_of_a_batch(
    name: str, settings: dict[str, Any]
) -> None:
    rates, clips = [0.005, 0.01, 0.02], [0.1, 0.3, float("inf")]

    def vary(hyper: Any) -> None:
        hyper.local_lr, hyper.clip_norm = (
            torch.tensor(rates, dtype=torch.float64),
            torch.tensor(clips, dtype=torch.float64),
        )

    together = play(name, "none", settings, seeds=[5, 5, 5], change=vary).go(3).models()
    for run in range(3):
        clip_norm = None if clips[run] == float("inf") else clips[run]
        alone = (
            play(
                name, "none", settings | {"local_lr": rates[run], "clip_norm": clip_norm}, seeds=[5]
            )
            .go(3)
            .models()
        )
        np.testing.assert_allclose(together[:, run], alone[:, 0], rtol=1e-12, atol=1e-12)


def test_no_algorithm_opens_client_values() -> None:
    for path in Path(dpfl_cli.algorithms.__path__[0]).glob("*.py"):
        names = {
            node.id for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Name)
        }
        assert "opened" not in names, path.name


@pytest.mark.parametrize("path", [CONF / f"{name}.yaml" for name in FILES], ids=lambda p: p.stem)
def test_options_in_conf_are_the_components_settings(path: Path) -> None:
    lines = path.read_text().splitlines()
    assert lines[0].startswith("# ")
    assert all("# " in line for line in lines[2:])
    hints = {"local_steps": 10, "local_lr": 0.1, "clip_norm": 1.0}
    register_resolvers()
    composed = {"hints": hints, "dp": {"trust": "local"}, "it": OmegaConf.load(path)}
    values: Any = OmegaConf.to_container(OmegaConf.create(composed), resolve=True)
    found = lookup("algorithm", values["it"].pop("name"))
    assert set(values["it"]) == set(found.settings.model_fields)
    settings = parse_settings(found.settings, values["it"], "algorithm")
    assert (settings.local_steps, settings.local_lr) == (10, 0.1)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("fedavg", {"clip_norm": -1.0}, "algorithm.clip_norm=-1.0: input should be greater than 0"),
        (
            "fedavg",
            {"local_steps": 0},
            "algorithm.local_steps=0: input should be greater than or equal to 1",
        ),
        ("fedexp", {"local_lr": "x"}, "algorithm.local_lr='x': input should be a valid number"),
        ("fedexp", {"halve": True}, "algorithm.halve: unknown option; did you mean half"),
        (
            "scaffold",
            {"control": "send"},
            "algorithm.control='send': input should be 'sent', 'clipped' or 'raw'",
        ),
        (
            "scaffold",
            {"batch_size": 0},
            "algorithm.batch_size=0: input should be greater than or equal to 1",
        ),
        (
            "scaffnew",
            {"control": "raw"},
            "algorithm.control='raw': input should be 'sent', 'clipped', 'apart' or 'none'",
        ),
        (
            "scaffnew",
            {"local_steps": 0.5},
            "algorithm.local_steps=0.5: input should be greater than or equal to 1",
        ),
        (
            "scaffnew",
            {"local_steps": float("inf")},
            "algorithm.local_steps=inf: input should be a finite number",
        ),
        (
            "scaffnew",
            {"schedule": "random"},
            "algorithm.schedule='random': input should be 'deterministic' or 'bernoulli'",
        ),
    ],
)
def test_bad_settings_are_one_line(name: str, change: dict[str, Any], message: str) -> None:
    values = STEPS.get(name, {}) | {"local_steps": 1, "local_lr": 0.1, "clip_norm": 1.0} | change
    with pytest.raises(ConfigError) as caught:
        parse_settings(components("algorithm")[name].settings, values, "algorithm")
    assert str(caught.value).startswith(message)


def test_what_is_released_without_a_bound_is_refused_where_it_is_private() -> None:
    """Every bound of every method, under a trust model that it has; without privacy it may go."""
    load_components()
    seen = set()
    for name, one in components("algorithm").items():
        options = one.settings.model_fields.items()
        bounds = [option for option, field in options if UNLIMITED in field.metadata]
        for words in [own for own in golden.RUNS.values() if f"algorithm={name}" in own][:3]:
            try:
                trust = make_plan(compose_config(words)).dp.trust
            except DataError:  # not on this machine
                continue
            for bound in bounds:
                loose = compose_config([*words, f"algorithm.{bound}=null"])
                if trust == "none":
                    assert make_plan(loose).dp.trust == "none"
                    continue
                says = f"algorithm.{bound}=null under dp.trust={trust}: a release without a bound"
                with pytest.raises(ConfigError, match=says):
                    make_plan(loose)
                seen |= {name, bound}
    assert seen >= {"fedavg", "fedexp", "scaffold", "scaffnew", "fedavg_record", "isrl_dp"}


def test_what_becomes_of_absent_clients_is_one_of_two() -> None:
    with pytest.raises(ConfigError, match="away: rest: did you mean rests"):
        algorithm(
            "m", revision=1, paper="p", unit="client", trusts=("none",), proved=(), away="rest"
        )(type("M", (), {}))
