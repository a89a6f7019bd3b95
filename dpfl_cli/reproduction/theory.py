"""Facts of the theory behind a plan: what ScaffNew's closed forms advise for its own problem and
its own noise.

They are made from the problem's optimum and smoothness (`problem_facts`), and so from the records
without a release: diagnostics, which no epsilon covers.
"""

import math

from dpfl_cli.algorithms.scaffnew_bound import (
    MessageNoise,
    ScaffnewBound,
    initial_potential,
    noise_constant,
)
from dpfl_cli.config.errors import ConfigError
from dpfl_cli.privacy.nominal import clipped_sensitivity, zcdp_v
from dpfl_cli.reproduction.problems import problem_facts
from dpfl_cli.simulation.noise import counted_ledger
from dpfl_cli.simulation.run_plan import Plan

UNLIMITED = "no limit without noise"  # in place of a number: the bound falls for ever


def noise_of(plan: Plan) -> MessageNoise | None:
    """The noise of a plan by Lemma 1; None for a plan without noise (dp=none).

    v is the run's own `dp.v` (dp.calibration=lemma1), the zCDP constant (zcdp), or else what its
    noise multiplier comes to, which is the same for all numbers of releases where the calibration
    composes Gaussians exactly.

    Raises:
      ConfigError: the noise is not on every client's message, or no epsilon fixes it.
    """
    dp = plan.dp
    if dp.trust == "none":
        return None
    if plan.mechanism.name != "local_gaussian":
        raise ConfigError(
            "the bound of ScaffNew is for Gaussian noise on every client's message, not for "
            f"mechanism={plan.mechanism.name} (dp={dp.name}); write dp=ldp"
        )
    if dp.epsilon is None:
        raise ConfigError(
            "the bound of ScaffNew needs a target, for its noise grows with the releases; "
            "write dp.epsilon=3.3"
        )
    if dp.calibration == "lemma1":
        assert dp.v is not None  # a run with this calibration has one
        constant, origin = dp.v, "dp.v"
    elif dp.calibration == "zcdp":
        constant, origin = zcdp_v(dp.epsilon, dp.delta), "zCDP, in closed form"
    else:
        (entry,) = counted_ledger(plan).entries
        constant = noise_constant(float(entry.parameters()[0]), entry.count, dp.epsilon, dp.delta)
        own = dp.calibration == "accountant"
        set_by = f"accountant={plan.accountant.name}" if own else f"dp.calibration={dp.calibration}"
        origin = f"the run's noise ({set_by})"
    clip_norm = getattr(plan.algorithm.settings, "clip_norm", None)
    assert clip_norm is not None  # a run under local trust has one
    sensitivity = clipped_sensitivity(clip_norm, dp.relation)
    return MessageNoise(constant, origin, sensitivity, dp.epsilon, dp.delta)


def scaffnew_bound(plan: Plan) -> ScaffnewBound:
    """The bound of a plan's problem, at the start and the noise that the plan has.

    Raises:
      ConfigError: another method, a model whose optimum is not known, noise that the bound is not
        for.
    """
    if plan.algorithm.name != "scaffnew":
        raise ConfigError(
            f"algorithm={plan.algorithm.name}: facts of the theory are those of algorithm=scaffnew"
        )
    noise = noise_of(plan)
    facts = problem_facts(plan)
    # psi_0 at eta* and p*: (eta* / p*)^2 = 1 / (L mu)
    potential = initial_potential(
        facts["initial_distance"],
        facts["optimum_gradients"],
        1 / math.sqrt(facts["smoothness"] * facts["strong_convexity"]),
    )
    return ScaffnewBound(
        strong_convexity=facts["strong_convexity"],
        smoothness=facts["smoothness"],
        clients=plan.clients,
        dimension=plan.dimension,
        potential=potential,
        noise=0.0 if noise is None else noise.per_release,
    )


def theory_facts(plan: Plan) -> dict[str, float | str]:
    """What the closed forms say of a plan: `learning_rate` eta*, `probability` p*, `local_steps` 1
    / p*, `iterations` T* (whole), `rounds` p* T*, the `bound` B there, `potential` psi_0 and
    `condition` kappa. Without noise UNLIMITED stands for T* and p* T*.

    Raises:
      ConfigError: as `scaffnew_bound`.
    """
    found = scaffnew_bound(plan)
    return {
        "learning_rate": found.step,
        "probability": found.probability,
        "local_steps": found.local_steps,
        "iterations": UNLIMITED if found.is_endless else found.iterations,
        "rounds": UNLIMITED if found.is_endless else found.rounds,
        "bound": found.least,
        "potential": found.potential,
        "condition": found.condition,
    }
