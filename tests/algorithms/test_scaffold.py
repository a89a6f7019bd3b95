"""Client-level DP-SCAFFOLD against its lines, written as loops, and its invariants."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from federated import D, clipped, play, received
from test_minibatches import FEDERATIONS, LR, STEPS, C, M, Z, played, raw_updates
from test_record import clipped_mean

from dpfl_cli.config.compose import compose_config
from dpfl_cli.config.errors import ConfigError
from dpfl_cli.privacy.client_values import opened
from dpfl_cli.simulation.checks import proof_gap
from dpfl_cli.simulation.plan import make_plan
from dpfl_cli.simulation.results import privacy_report
from dpfl_cli.simulation.run_plan import Plan

LENGTH = STEPS * LR  # tau eta_l


@pytest.mark.parametrize("trust", ["none", "local", "central", "secure_aggregation"])
@pytest.mark.parametrize("release", ["single", "double"])
@pytest.mark.parametrize("control", ["sent", "clipped", "raw"])
@pytest.mark.parametrize("later", [{"batch_size": 2}, {"warm_start": True, "server_lr": 0.5}])
def test_equals_its_lines(trust: str, release: str, control: str, later: dict[str, Any]) -> None:
    rounds, size, warm = 4, later.get("batch_size"), "warm_start" in later
    found = played("scaffold", trust, size, control=control, release=release, **later).go(rounds)
    z = Z * np.sqrt(2) if release == "double" else Z
    names = ["update", "control"] if release == "double" else ["update"]
    for run, (seed, federation) in enumerate(FEDERATIONS.items()):
        w, c, h, kept = np.zeros(D), np.zeros(D), np.zeros((M, D)), control == "sent"
        if warm:
            gradients = np.array([clipped_mean(federation, i, w, np.inf) for i in range(M)])
            bounded = np.array([clipped(v, C) for v in gradients])
            sent, c = received(trust, seed, "warm_start", bounded, 2 * C, Z, 1, kept)
            h = {"sent": sent, "clipped": bounded, "raw": gradients}[control]
        for t in range(1, rounds + 1):
            raw = raw_updates(seed, t, w, size, c - h)
            bounded = np.array([clipped(v, C) for v in raw])
            sent, means = bounded, {}
            for name in names:
                sent, means[name] = received(trust, seed, name, bounded, 2 * C, z, t, kept)
            memory = {"sent": sent, "clipped": bounded, "raw": raw}[control]
            h = h - c - memory / LENGTH
            w = w + later.get("server_lr", 1.0) * means["update"]
            c = -means[names[-1]] / LENGTH
            state = found.states[t]
            np.testing.assert_allclose(state.server["model"][run], w, rtol=1e-9, atol=1e-12)
            np.testing.assert_allclose(state.server["control"][run], c, rtol=1e-9, atol=1e-10)
            np.testing.assert_allclose(
                opened(state.clients["control"])[run], h, rtol=1e-9, atol=1e-10
            )
    counts = {name: entry.count for name, entry in found.ledger().items()}
    assert counts == {**({"warm_start": 1} if warm else {}), **dict.fromkeys(names, rounds)}


@pytest.mark.parametrize("trust", ["local", "central"])
def test_both_release_options_cost_the_same(trust: str) -> None:
    def precision(release: str) -> float:  # of Gaussian releases: sum over releases of 1 / z^2
        entries = play("scaffold", trust, {"release": release}, noise=Z).go(3).ledger().values()
        return sum(entry.count / entry.parameter**2 for entry in entries)

    assert precision("single") == pytest.approx(3 / Z**2)
    assert precision("double") == pytest.approx(precision("single"))


@pytest.mark.parametrize("control", ["sent", "clipped", "raw"])
def test_a_client_that_diverges_spoils_nobody(control: str) -> None:
    played = play(
        "scaffold", "local", {"local_lr": 1e3, "local_steps": 200, "control": control}
    ).go(3)
    assert all(int(entry["repaired"]) > 0 for entry in played.diagnostics)
    assert np.isfinite(played.models()).all()
    assert bool(opened(played.states[-1].clients["control"]).isfinite().all())


SHARED = ["dp=secure_aggregation", "dataset.clients=12", "dataset.dimension=5"]
each_method = pytest.mark.parametrize(
    ("method", "proved"), [("scaffold", "clipped"), ("scaffnew", "apart")]
)


def plan_of(method: str, *words: str) -> Plan:
    return make_plan(compose_config([*SHARED, f"algorithm={method}", *words]))


@each_method
def test_secure_aggregation_takes_controls_that_hold_no_share_of_the_noise(
    method: str, proved: str
) -> None:
    plan = plan_of(method)  # the default runs as it is
    assert plan.algorithm.settings.control == proved
    assert proof_gap(plan) is None
    says = rf"algorithm\.control={proved} is proved[^\n]*dp\.mode=paper runs it[^\n]*$"
    with pytest.raises(ConfigError, match=says):
        plan_of(method, "algorithm.control=sent")
    claimed = plan_of(method, "algorithm.control=sent", "dp.mode=paper")
    assert claimed.ledger().releases == plan.ledger().releases > 0
    assert "not proved" in privacy_report(claimed, claimed.ledger())["guarantee"]
    central = {"scaffnew": "apart"}.get(method, "sent")
    for trust, control in (("ldp", "sent"), ("cdp", central), ("none", "sent")):
        assert plan_of(method, f"dp={trust}").algorithm.settings.control == control


@each_method
def test_whole_noise_protects_what_is_sent_and_the_messages_are_priced(
    method: str, proved: str
) -> None:
    words = ["mechanism.noise_multiplier=4.0", "mechanism.noise_share=false"]
    (messages,) = plan_of(method, *words, "algorithm.control=sent").ledger().entries
    assert (messages.scope, messages.parameter) == ("client", 4.0)
    (sums,) = plan_of(method, *words, f"algorithm.control={proved}").ledger().entries
    assert (sums.scope, sums.parameter) == ("federation", pytest.approx(4.0 * np.sqrt(12)))
