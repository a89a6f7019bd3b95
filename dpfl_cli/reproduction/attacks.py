"""Facts of a plan under attack: what its releases cost on the worst data known, beside what is claimed of them."""

from __future__ import annotations

import math

from dpfl_cli.config.errors import ConfigError
from dpfl_cli.privacy.accountants import gaussian_epsilon
from dpfl_cli.simulation.engine import federation_of
from dpfl_cli.simulation.plan import Plan


def attack_facts(plan: Plan) -> dict[str, float]:
    """`factor`, how much further data move the plan's releases than claimed; `claimed` and `exact` epsilon of the whole run.

    The factor is the method's own (`attack`); 1 where the guarantee holds. Epsilons are of exact Gaussian composition.

    Raises:
      ConfigError: the method states no attack, or its clients add no shares of noise.
    """
    attack = getattr(plan.algorithm.target, "attack", None)
    entries = plan.ledger().entries
    mechanism = plan.mechanism
    shares = plan.dp.trust == "secure_aggregation" and not mechanism.target.whole_noise(mechanism.settings)
    if attack is None or not shares:
        raise ConfigError(
            f"algorithm={plan.algorithm.name} under mechanism={mechanism.name}: facts of an attack are of algorithm=fednew or "
            "fednew_record with shares of noise (dp=secure_aggregation, mechanism.noise_share=true)"
        )
    counts = federation_of(plan).partition.counts.tolist()
    factor = attack(plan.algorithm.settings, plan.rounds, counts, getattr(mechanism.settings, "sens_scale", "max"))
    mu = math.sqrt(math.fsum(float((entry.parameters() ** -2.0).sum()) for entry in entries))
    return {
        "factor": factor,
        "claimed": gaussian_epsilon(mu, plan.dp.delta),
        "exact": gaussian_epsilon(max(factor, 1.0) * mu, plan.dp.delta),
    }
