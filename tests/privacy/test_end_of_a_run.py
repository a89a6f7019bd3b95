"""What a run says of its privacy where it ends early, draws its noise in secret, or takes a delta
that means nothing.
"""

from __future__ import annotations

import pytest
import torch

from dpfl_cli.cli.tables import epsilon_text
from dpfl_cli.config.compose import compose_config
from dpfl_cli.models.linear import LinearRegression
from dpfl_cli.simulation.execute import run_members
from dpfl_cli.simulation.member import Member
from dpfl_cli.simulation.plan import Plan, make_plan
from dpfl_cli.simulation.results import _priced, privacy_report

SMALL = ["dataset.clients=8", "dataset.dimension=4", "rounds=4", "dp=ldp", "algorithm=fedavg"]


def plan_of(*words: str) -> Plan:
    return make_plan(compose_config([*SMALL, *words]))


def finish(plan: Plan) -> Member:
    (member,) = run_members([Member(plan)], lambda m: None, lambda m: None)
    return member


def model_of(member: Member) -> torch.Tensor:
    assert member.state is not None
    return member.state.server["model"]


def test_a_metric_that_is_not_finite_ends_no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Metrics look at private data: a run that ended by one told of them, at epsilon 0."""
    metrics = LinearRegression.metrics

    def broken(self: LinearRegression, parameters: torch.Tensor) -> dict[str, torch.Tensor]:
        found = metrics(self, parameters)
        return {**found, "train_loss": torch.full_like(found["train_loss"], torch.nan)}

    monkeypatch.setattr(LinearRegression, "metrics", broken)
    member = finish(plan_of("evaluation.every=1"))
    assert (member.diverged, member.round, member.ledger.releases) == (None, 4, 4)


def test_a_run_that_ends_by_what_it_released_is_priced_as_it_was_planned() -> None:
    words = ["dp=none", "algorithm.local_lr=1e200", "algorithm.local_steps=9", "evaluation.every=1"]
    member = finish(plan_of(*words))
    assert member.diverged is not None
    assert "the model is not finite" in member.diverged
    assert member.ledger.releases < 4 == _priced(member).releases


def test_secret_noise_is_of_no_seed_and_moves_no_other_id() -> None:
    seeded, secret = plan_of(), plan_of("dp.noise=secret")
    assert "noise" not in seeded.identity["dp"]
    assert seeded.id != secret.id
    first, again = (model_of(finish(secret)) for _ in range(2))
    assert (first != again).all()
    assert torch.equal(model_of(finish(seeded)), model_of(finish(seeded)))
    assert any("dp.noise=secret" in item for item in seeded.not_covered())
    assert any("not reproducible" in item for item in secret.not_covered())
    assert any("floating-point" in item for item in secret.not_covered())


@pytest.mark.parametrize(("delta", "said"), [(1e-5, False), (0.124, False), (0.125, True)])
def test_a_delta_that_means_nothing_is_said_beside_every_epsilon(delta: float, said: bool) -> None:
    plan = plan_of(f"dp.delta={delta}")
    report = privacy_report(plan, plan.ledger())
    assert ("delta is not below 1/n, n = 8 clients" in report["guarantee"]) == said
    assert ("delta >= 1/n" in epsilon_text(report)) == said


def test_a_guarantee_names_all_its_gaps() -> None:
    words = ["algorithm=fednew_record", "dp=record", "dp.mode=paper", "algorithm.dual=paper"]
    words += ["algorithm.bound_aux=xi", "algorithm.sensitivity=tight", "dp.trust=central"]
    plan = plan_of(*words, "mechanism=central_gaussian", "algorithm.side_clip_norm=2")
    guarantee = privacy_report(plan, plan.ledger())["guarantee"]
    assert "algorithm.bound_aux=xi" in guarantee
    assert "algorithm.dual=paper" in guarantee
