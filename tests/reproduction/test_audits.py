"""Facts of audits, as the artifact cross/audit shows them."""

from __future__ import annotations

import pytest

from dpfl_cli.config.compose import compose_config
from dpfl_cli.reproduction import audits
from dpfl_cli.reproduction.artifact import Run
from dpfl_cli.reproduction.grid import Cell
from dpfl_cli.reproduction.numbers import known_of
from dpfl_cli.simulation.audit import SCORES, audit_store
from dpfl_cli.simulation.plan import make_plan
from dpfl_cli.simulation.store import json_text


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


def test_many_audits_are_made_by_processes_with_the_bits_of_one(monkeypatch, tmp_path):
    """And what is kept is made by nobody."""
    monkeypatch.setattr(audits, "CANARIES", 100)
    monkeypatch.setattr(audits, "EACH", 2)
    small = ["rounds=2", "dataset=synthetic", "dataset.clients=5", "dataset.dimension=4"]
    kinds = {"fedavg": "cdp", "scaffold": "ldp", "fednew": "ldp_privunit", "isrl_dp": "record"}
    cells = [
        Cell(Run({}, [f"algorithm={method}", f"dp={trust}", "dp.epsilon=8", *small]), seed=0)
        for method, trust in kinds.items()
    ]

    def made(cores: int) -> dict[str, tuple[bytes, str]]:
        outputs = tmp_path / str(cores)
        monkeypatch.setattr(audits, "cpu_count", lambda: cores)
        audits.make_all(cells, outputs, "audits", quiet=True)
        records = audit_store(outputs).all()
        return {one.id: (one.content(SCORES), json_text(one.result["metrics"])) for one in records}

    alone = made(1)
    assert len(alone) == 4
    assert made(2) == alone
    monkeypatch.setattr(audits, "_made", lambda *rest: pytest.fail("all were kept"))
    assert made(2) == alone
