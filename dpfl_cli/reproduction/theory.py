"""Facts of the theory behind a plan: what ScaffNew's closed forms advise for its own problem and its own noise.

They are made from the problem's optimum and smoothness (`problem_facts`), and so from the records without a release: diagnostics,
which no epsilon covers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from dpfl_cli.algorithms.scaffnew_bound import ScaffnewBound, initial_potential, noise_per_release
from dpfl_cli.config.errors import ConfigError
from dpfl_cli.privacy.nominal import zcdp_v
from dpfl_cli.reproduction.problems import problem_facts
from dpfl_cli.simulation.noise import counted_ledger
from dpfl_cli.simulation.plan import Plan

UNLIMITED = "no limit without noise"  # in place of a number: the bound falls for ever


@dataclass(frozen=True)
class Noise:
    """What Lemma 1 needs of a plan's noise.

    Attributes:
      constant: v; its noise on a coordinate of one message has the variance v S^2 R ln(1 / delta) / epsilon^2.
      origin: where v comes from, in words.
      sensitivity: S, of one message under the plan's relation.
      per_release: that variance over R, the messages it is calibrated for.
    """

    constant: float
    origin: str
    sensitivity: float
    per_release: float


def noise_of(plan: Plan) -> Noise | None:
    """The noise of a plan by Lemma 1; None for a plan without noise (dp=none).

    v is the run's own `dp.v` (dp.calibration=lemma1), the zCDP constant (zcdp), or else what its noise multiplier z comes to:
    v = z^2 epsilon^2 / (R ln(1 / delta)), which is the same for all R where the calibration composes Gaussians exactly.

    Raises:
      ConfigError: the noise is not on every client's message, or no epsilon fixes it.
    """
    dp = plan.dp
    if dp.trust == "none":
        return None
    if plan.mechanism.name != "local_gaussian":
        raise ConfigError(
            f"the bound of ScaffNew is for Gaussian noise on every client's message, not for mechanism={plan.mechanism.name} "
            f"(dp={dp.name}); write dp=ldp"
        )
    if dp.epsilon is None:
        raise ConfigError("the bound of ScaffNew needs a target, for its noise grows with the releases; write dp.epsilon=3.3")
    clip_norm = getattr(plan.algorithm.settings, "clip_norm", None)
    assert clip_norm is not None  # a run under local trust has one
    sensitivity = 2 * clip_norm if dp.relation == "replace_one" else clip_norm
    constant, origin = _constant(plan)
    return Noise(constant, origin, sensitivity, noise_per_release(constant, sensitivity, dp.epsilon, dp.delta))


def _constant(plan: Plan) -> tuple[float, str]:
    """v, and where it comes from."""
    dp = plan.dp
    assert dp.epsilon is not None
    if dp.calibration == "lemma1":
        assert dp.v is not None  # a run with this calibration has one
        return dp.v, "dp.v"
    if dp.calibration == "zcdp":
        return zcdp_v(dp.epsilon, dp.delta), "zCDP, in closed form"
    (entry,) = counted_ledger(plan).entries
    multiplier = float(entry.parameters()[0])
    constant = multiplier**2 * dp.epsilon**2 / (entry.count * math.log(1 / dp.delta))
    words = f"accountant={plan.accountant.name}" if dp.calibration == "accountant" else f"dp.calibration={dp.calibration}"
    return constant, f"the run's noise ({words})"


def scaffnew_bound(plan: Plan) -> ScaffnewBound:
    """The bound of a plan's problem, at the start and the noise that the plan has.

    Raises:
      ConfigError: another method, a model whose optimum is not known, noise that the bound is not for.
    """
    if plan.algorithm.name != "scaffnew":
        raise ConfigError(f"algorithm={plan.algorithm.name}: facts of the theory are those of algorithm=scaffnew")
    noise = noise_of(plan)
    facts = problem_facts(plan)
    # psi_0 at eta* and p*: (eta* / p*)^2 = 1 / (L mu)
    potential = initial_potential(
        facts["initial_distance"], facts["optimum_gradients"], 1 / math.sqrt(facts["smoothness"] * facts["strong_convexity"])
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
    """What the closed forms say of a plan: `learning_rate` eta*, `probability` p*, `local_steps` 1 / p*, `iterations` T* (whole),
    `rounds` p* T*, the `bound` B there, `potential` psi_0 and `condition` kappa. Without noise UNLIMITED stands for T* and p* T*.

    Raises:
      ConfigError: as `scaffnew_bound`.
    """
    found = scaffnew_bound(plan)
    free = math.isinf(found.iterations)
    return {
        "learning_rate": found.step,
        "probability": found.probability,
        "local_steps": found.local_steps,
        "iterations": UNLIMITED if free else found.iterations,
        "rounds": UNLIMITED if free else found.rounds,
        "bound": 0.0 if free else float(found.bound(found.iterations, found.probability, found.step)),
        "potential": found.potential,
        "condition": found.condition,
    }
