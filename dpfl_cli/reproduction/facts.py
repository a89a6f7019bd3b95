"""Facts of a plan, for tables: of the problem behind it, of what ScaffNew's closed forms advise for
it, of how many records its clients hold, of what its releases cost on the worst data known.

Problem, advice and sizes look at the records without a release, so no epsilon covers them:
diagnostics.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from dpfl_cli.algorithms.scaffnew import ScaffNewSettings
from dpfl_cli.algorithms.scaffnew_bound import MessageNoise, ScaffnewBound
from dpfl_cli.config.errors import ConfigError
from dpfl_cli.config.identity import canonical_json
from dpfl_cli.data.streams import Streams
from dpfl_cli.privacy.gaussian import SharedSettings
from dpfl_cli.privacy.gaussian_accountants import gaussian_epsilon
from dpfl_cli.privacy.nominal import clipped_sensitivity, zcdp_v
from dpfl_cli.reproduction.audits import audit_facts
from dpfl_cli.simulation.noise import counted_ledger
from dpfl_cli.simulation.run_plan import Plan, federation_of

UNLIMITED = "no limit without noise"  # in place of a number: the bound falls for ever
# in place of a number: no data are known that a sound variant is measured by
PROVED = "rests on its proof"
_known: dict[tuple[str, str], Mapping[str, Any]] = {}  # by kind and run
_problems: dict[str, dict[str, float]] = {}  # by data, model and seed


def problem_facts(plan: Plan) -> dict[str, float]:
    """What is known of min_x (1/M) sum_i f_i(x) + g(x) and of the run's start once it is solved
    (see the model's `problem`).

    Raises:
      ConfigError: the model does not know its optimum.
    """
    key = canonical_json([plan.dealt, plan.model.identity()])
    if key not in _problems:
        objective = plan.model.target(plan.model.settings, [federation_of(plan)], np.array([0]))
        describe = getattr(objective, "problem", None)
        facts = {} if describe is None else describe(objective.initial(Streams([plan.seed]))[0])
        if not facts:
            raise ConfigError(
                f"model={plan.model.name}: its optimum is not known; facts of a problem need "
                "model=logistic with model.l2 > 0 "
                "or a model.condition"
            )
        _problems[key] = facts
    return _problems[key]


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
        z = float(entry.parameters()[0])
        # Lemma 1 solved for its constant
        constant = z**2 * dp.epsilon**2 / (entry.count * -math.log(dp.delta))
        own = dp.calibration == "accountant"
        set_by = f"accountant={plan.accountant.name}" if own else f"dp.calibration={dp.calibration}"
        origin = f"the run's noise ({set_by})"
    settings = plan.algorithm.settings
    assert isinstance(settings, ScaffNewSettings)
    sensitivity = clipped_sensitivity(settings.clip_norm, dp.relation)
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
    # psi_0 at h_0 = 0, eta* and p*: (eta* / p*)^2 = 1 / (L mu)
    ratio = 1 / math.sqrt(facts["smoothness"] * facts["strong_convexity"])
    potential = facts["initial_distance"] + ratio**2 * facts["optimum_gradients"]
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


def size_facts(plan: Plan) -> dict[str, dict[str, float]]:
    """`train` and `test` records of a client, each with its `mean` and `std` over clients (ddof 1;
    0 for one client).

    Test records are those of the data's own clients where it says whose they are, and shared out
    evenly elsewhere.

    Raises:
      ConfigError: the data has no test records.
    """
    federation = federation_of(plan)
    dataset, train = federation.dataset, federation.partition.counts
    if dataset.test is None:
        raise ConfigError(
            f"dataset={plan.dataset.name} has no test records; ask for sizes.train only of "
            "data that have some"
        )
    if dataset.test_natural is None:
        test = np.full(len(train), len(dataset.test) / len(train))
    else:
        test = np.unique(dataset.test_natural, return_counts=True)[1]
    return {"train": _summary(train), "test": _summary(test)}


def _summary(counts: np.ndarray) -> dict[str, float]:
    return {
        "mean": float(counts.mean()),
        "std": float(counts.std(ddof=1)) if len(counts) > 1 else 0.0,
    }


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
    noise = plan.mechanism.settings
    if attack is None or not isinstance(noise, SharedSettings) or not noise.noise_share:
        raise ConfigError(
            f"algorithm={plan.algorithm.name} under mechanism={plan.mechanism.name}: facts of an "
            "attack are of algorithm=fednew or fednew_record with shares of noise "
            "(dp=secure_aggregation, mechanism.noise_share=true)"
        )
    counts = federation_of(plan).partition.counts.tolist()
    found = attack(plan.algorithm.settings, plan.rounds, counts, noise.sens_scale)
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


def facts_of(kind: str, plan: Plan) -> Mapping[str, Any]:
    """The facts of a kind, found once."""
    key = kind, plan.id
    if key not in _known:
        _known[key] = FACTS[kind](plan)
    return _known[key]


FACTS: dict[str, Callable[[Plan], Mapping[str, Any]]] = {
    "problem": problem_facts,
    "attack": attack_facts,
    "audit": audit_facts,
    "theory": theory_facts,
    "sizes": size_facts,
}
