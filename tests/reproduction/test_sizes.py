"""How many records clients hold, as facts of a plan."""

from __future__ import annotations

import pytest

from dpfl_cli.config.compose import compose_config
from dpfl_cli.config.errors import ConfigError
from dpfl_cli.reproduction.facts import size_facts
from dpfl_cli.simulation.plan import make_plan
from dpfl_cli.simulation.run_plan import Plan


def planned(*words: str) -> Plan:
    return make_plan(compose_config([*words, "algorithm=scaffnew", "dp=none"]))


def test_unequal_clients() -> None:
    small = [
        "dataset.shape=[8,8,8]",
        "dataset.train_records=[6,2]",
        "dataset.test_records=[2,4]",
    ]
    found = size_facts(planned("dataset=ixi_synth", *small))
    assert found["train"]["mean"] == pytest.approx(4)
    assert found["train"]["std"] == pytest.approx(8**0.5)  # 4 + 4, of one degree of freedom
    assert found["test"]["mean"] == pytest.approx(3)
    assert found["test"]["std"] == pytest.approx(2**0.5)


def test_some_of_the_clients() -> None:
    small = ["dataset.train_records=4", "dataset.test_records=2"]
    found = size_facts(planned("dataset=reddit_synth", *small, "partitioner.clients=1"))
    assert found["train"] == {"mean": 4.0, "std": 0.0}


def test_data_without_test_records_are_refused() -> None:
    with pytest.raises(ConfigError, match="no test records"):
        size_facts(planned("dataset=synthetic", "partitioner.clients=4"))
