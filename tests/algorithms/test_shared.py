"""What holds for every client-level method."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from federated import STEPS, M, federation_of, play, reordered

import dpfl_cli.algorithms
from dpfl_cli.algorithms.base import algorithm
from dpfl_cli.config.component import UNLIMITED, components, parse_settings
from dpfl_cli.config.compose import compose_config
from dpfl_cli.config.errors import ConfigError, DataError
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
each_method = pytest.mark.parametrize(
    ("name", "settings"),
    METHODS,
    ids=[f"{n}{'-' * bool(s)}{'-'.join(map(str, s.values()))}" for n, s in METHODS],
)


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


def test_no_algorithm_opens_client_values() -> None:
    for path in Path(dpfl_cli.algorithms.__path__[0]).glob("*.py"):
        names = {
            node.id for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Name)
        }
        assert "opened" not in names, path.name


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
        ("fedexp", {"halve": True}, "algorithm.halve: unknown option; did you mean algorithm.half"),
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
