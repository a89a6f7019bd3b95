"""Facts of audits, as the artifact cross/audit shows them."""

from __future__ import annotations

import pytest

from dpfl_cli.config.compose import compose_config
from dpfl_cli.reproduction import audits
from dpfl_cli.reproduction.numbers import known_of
from dpfl_cli.simulation.plan import make_plan


@pytest.mark.parametrize(("trust", "gaussian"), [("cdp", True), ("ldp_privunit", False)])
def test_facts_of_an_audit(monkeypatch, tmp_path, trust, gaussian):
    monkeypatch.setenv("DPFL_OUTPUTS", str(tmp_path))
    monkeypatch.setattr(audits, "CANARIES", 200)
    words = ["algorithm=fedavg", f"dp={trust}", "dp.epsilon=8", "rounds=2", "dataset=synthetic"]
    plan = make_plan(compose_config([*words, "dataset.clients=5", "dataset.dimension=4"]))
    facts = {
        name: known_of(plan, f"audit.{name}", "here")
        for name in ("claim", "gaussian", "gaussian_share", "one_run", "threshold", "excess")
    }
    assert facts["claim"] == pytest.approx(8, rel=1e-3)
    assert facts["excess"] < 0
    assert max(facts["one_run"], facts["threshold"]) > 0.1
    if gaussian:
        assert facts["gaussian_share"] == pytest.approx(100 * facts["gaussian"] / facts["claim"])
        assert facts["gaussian_share"] > 60
    else:
        assert facts["gaussian"] == facts["gaussian_share"] == audits.NOT_GAUSSIAN
