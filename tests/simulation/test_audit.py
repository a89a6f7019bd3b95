"""Audits of whole runs: every trust model and way of drawing, and mechanisms that were broken."""

from __future__ import annotations

import json

import numpy as np
import pytest

from dpfl_cli.cli.main import main
from dpfl_cli.config.compose import compose_config
from dpfl_cli.config.errors import PrivacyError
from dpfl_cli.privacy.bounded import Bounded
from dpfl_cli.privacy.draws import drawn_cohort, members_of
from dpfl_cli.privacy.gaussian import CentralGaussian
from dpfl_cli.privacy.ledger import ReleaseLog
from dpfl_cli.simulation import stack
from dpfl_cli.simulation.audit import Audit, audit
from dpfl_cli.simulation.plan import make_plan

SMALL = [
    "rounds=2",
    "dataset=synthetic",
    "dataset.clients=8",
    "dataset.dimension=4",
    "dp.delta=1e-5",
    "dp.epsilon=4",
]
DRAWN = ["participation.cohort=2", "dataset.clients=8"]


def audited(*overrides: str, canaries: int = 400) -> Audit:
    return audit(make_plan(compose_config([*SMALL, *overrides])), canaries)


@pytest.mark.parametrize(
    "overrides",
    [
        ("algorithm=fedavg", "dp=cdp"),
        ("algorithm=fedavg", "dp=cdp", "dp.relation=zero_out"),
        ("algorithm=fedavg", "dp=ldp"),
        ("algorithm=scaffold", "dp=secure_aggregation"),
        ("algorithm=scaffnew", "dp=cdp"),
        ("algorithm=fedavg_record", "dp=record"),
        ("algorithm=fedfc_record", "dp=record"),
    ],
    ids=" ".join,
)
def test_a_gaussian_run_gives_away_nearly_what_it_claims(overrides):
    found = audited(*overrides)
    assert found.gaussian
    assert found.claim == pytest.approx(4, rel=1e-3)
    assert 0.65 * found.claim <= found.bounds(0.95)["gaussian"]
    assert found.excess <= 0


@pytest.mark.parametrize(
    "overrides",
    [
        ("algorithm=fedavg", "dp=ldp_privunit"),
        ("algorithm=fedavg", "dp=cdp", "participation=poisson", *DRAWN),
        ("algorithm=fedavg", "dp=cdp", "participation=fixed", *DRAWN),
    ],
    ids=" ".join,
)
def test_other_runs_give_away_something_and_not_more_than_they_claim(overrides):
    found = audited(*overrides, canaries=1000)
    assert not found.gaussian
    assert max(found.bounds(0.95).values()) > 0.1
    assert found.excess <= 0


def _half(monkeypatch):
    whole = CentralGaussian._noisy
    monkeypatch.setattr(
        CentralGaussian, "_noisy", lambda self, call, mean, std: whole(self, call, mean, std / 2)
    )


def _one_sided(monkeypatch):
    monkeypatch.setattr(Bounded, "sensitivity", lambda self, relation: self.zero_out)


def _per_client(monkeypatch):
    """Noise that is divided by the number of clients once too often."""
    whole = CentralGaussian._noisy
    monkeypatch.setattr(
        CentralGaussian,
        "_noisy",
        lambda self, call, mean, std: whole(self, call, mean, std / self._site.setup.clients),
    )


@pytest.mark.parametrize("broken", [_half, _one_sided, _per_client])
def test_broken_noise_is_caught(monkeypatch, broken):
    broken(monkeypatch)
    assert audited("algorithm=fedavg", "dp=cdp").excess > 0


def test_a_client_that_is_always_drawn_is_caught(monkeypatch):
    """Its releases are priced as if it took part in one round of fifty."""

    def with_the_first(streams, sampling, rounds):
        cohort = drawn_cohort(streams, sampling, rounds)
        members_of(cohort)[:, 0] = 0
        return cohort

    monkeypatch.setattr(stack, "drawn_cohort", with_the_first)
    found = audited(
        "algorithm=fedavg",
        "dp=cdp",
        "participation=poisson",
        "participation.cohort=2",
        "dataset.clients=100",
        "dp.epsilon=1",
        canaries=500,
    )
    assert found.excess > 0


def test_the_ledger_of_every_run_is_looked_at(monkeypatch):
    whole = ReleaseLog.charge

    def forgetful(self, rounds, charged, *more):
        whole(self, rounds, charged & (np.arange(len(charged)) != 7), *more)

    monkeypatch.setattr(ReleaseLog, "charge", forgetful)
    with pytest.raises(PrivacyError, match="the ledger after 2 rounds"):
        audited("algorithm=fedavg", "dp=cdp", canaries=20)


def test_the_command_reports_and_tells_by_its_exit_code(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("DPFL_OUTPUTS", str(tmp_path))
    words = ["audit", "algorithm=fedavg", "dp=cdp", *SMALL, "--canaries", "200", "--quiet"]
    assert main(words) == 0
    said = capsys.readouterr().out
    assert "of the claim" in said
    (folder,) = (path for path in (tmp_path / "audits").iterdir() if path.name != ".partial")
    report = json.loads((folder / "result.json").read_text())
    assert report["metrics"]["bounds"]["0.999"]["gaussian"] < report["metrics"]["claim"]
    assert len((folder / "scores.csv").read_text().splitlines()) == 401
    assert (folder / "scores.png").stat().st_size > 1000
    _half(monkeypatch)
    assert main(words) == 0  # what is kept is read, and not made again
    assert capsys.readouterr().out == said
    with (folder / "scores.csv").open("a") as file:
        file.write("1,9.0\n")
    assert main(words) == 3  # unless it is not what was kept
    assert "REFUTED" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["dp=none"], "nothing is private"),
        (["dp=cdp", "--canaries", "3"], "canaries 3"),
        (["dp=cdp", "--confidence", "2"], "confidence 2"),
    ],
)
def test_what_cannot_be_audited_is_refused_in_a_line(words, said, capsys):
    assert main(["audit", "algorithm=fedavg", "dataset=synthetic", *words]) == 2
    assert said in capsys.readouterr().err
