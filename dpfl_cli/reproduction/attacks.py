"""Facts of a plan under attack: what its releases cost on the worst data known, beside what is
claimed of them.
"""

import math

from dpfl_cli.config.errors import ConfigError
from dpfl_cli.privacy.gaussian_accountants import gaussian_epsilon
from dpfl_cli.simulation.federations import federation_of
from dpfl_cli.simulation.run_plan import Plan

# in place of a number: no data are known that a sound variant is measured by
PROVED = "rests on its proof"


def attack_facts(plan: Plan) -> dict[str, float | str]:
    """What a plan's releases cost on the worst data known.

    `factor`, how much further than claimed those data move a client's contribution (below 1 where
    they do not reach the claim), and `shares`, how much smaller the noise is than for the largest
    of the clients' sensitivities (1: it is for that one), both of the method's own `attack`;
    `claimed` and `exact`, epsilons of the whole run by exact Gaussian composition. PROVED where the
    method states no such data.

    Raises:
      ConfigError: the method states no attack, or its clients add no shares of noise.
    """
    attack = getattr(plan.algorithm.target, "attack", None)
    entries = plan.ledger().entries
    mechanism = plan.mechanism
    shares = plan.dp.trust == "secure_aggregation" and not mechanism.target.whole_noise(
        mechanism.settings
    )
    if attack is None or not shares:
        raise ConfigError(
            f"algorithm={plan.algorithm.name} under mechanism={mechanism.name}: facts of an attack "
            "are of algorithm=fednew or "
            "fednew_record with shares of noise (dp=secure_aggregation, mechanism.noise_share=true)"
        )
    counts = federation_of(plan).partition.counts.tolist()
    found = attack(
        plan.algorithm.settings,
        plan.rounds,
        counts,
        getattr(mechanism.settings, "sens_scale", "max"),
    )
    mu = math.sqrt(math.fsum(float((entry.parameters() ** -2.0).sum()) for entry in entries))
    claimed = gaussian_epsilon(mu, plan.dp.delta)
    if found is None:
        return {"factor": PROVED, "shares": PROVED, "claimed": claimed, "exact": PROVED}
    factor, unequal = found
    return {
        "factor": factor,
        "shares": unequal,
        "claimed": claimed,
        "exact": gaussian_epsilon(factor * unequal * mu, plan.dp.delta),
    }
