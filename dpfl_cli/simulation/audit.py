"""Audits: a run made many times over with a canary in it, stacked, and what its releases gave away.

Only noise, batches and cohorts differ between the runs of an audit; data, partition and public
schedules are those of the plan. The models that are trained are of no interest: nothing is
evaluated or stored.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from dpfl_cli.config.errors import ConfigError
from dpfl_cli.data.streams import Streams, stream_generator
from dpfl_cli.privacy.accountants import price
from dpfl_cli.privacy.canaries import Canaries
from dpfl_cli.simulation.grouping import bytes_per_run, memory_budget
from dpfl_cli.simulation.member import Member
from dpfl_cli.simulation.run_plan import Plan
from dpfl_cli.simulation.stack import Stack, noise_device

AT_ONCE = 500  # more runs in a stack gain nothing
SURE = 0.999  # the confidence of a bound that refutes a claim


@dataclass(frozen=True)
class Audit:
    """What an audit found.

    Attributes:
      claim: epsilon of the ledger that the runs wrote, by the plan's accountant.
      delta: of the claim, and of the bounds.
      scores, sides: [2n] of the adversary, and where the canaries were.
      gaussian: whether the scores are known to be Gaussian.
    """

    claim: float
    delta: float
    scores: np.ndarray
    sides: np.ndarray
    gaussian: bool

    def bounds(self, confidence: float) -> dict[str, float]:
        """Lower bounds on epsilon, by name, each with this confidence."""
        from dpfl_cli.privacy import auditing  # imports scipy.stats

        game = (self.scores, self.sides, self.delta, confidence)
        found = {"gaussian": auditing.gaussian_bound(*game)} if self.gaussian else {}
        found["one_run"] = auditing.one_run_bound(*game, gaussian=self.gaussian)
        found["threshold"] = auditing.threshold_bound(*game)
        return found

    @property
    def refuted(self) -> bool:
        """Whether a bound of 99.9 % is above the claim."""
        return max(self.bounds(SURE).values()) > self.claim

    def to_json(self, confidence: float) -> dict[str, Any]:
        """Plain values, all but the scores."""
        values = asdict(self)
        canaries = {"canaries": [int((~self.sides).sum()), int(self.sides.sum())]}
        rest = {key: value for key, value in values.items() if key not in ("scores", "sides")}
        bounds = {f"{level:g}": self.bounds(level) for level in (confidence, SURE)}
        return {**rest, **canaries, "bounds": bounds, "refuted": self.refuted}


class _Stack(Stack):
    """Runs of one plan that differ in their draws."""

    def __init__(self, plan: Plan, seeds: list[int]) -> None:
        self._seeds = seeds
        super().__init__([Member(plan) for _ in seeds])

    def _noise_streams(self, first: Plan) -> Streams:
        return Streams(self._seeds, noise_device(first.runtime.noise, self.device))


def audit(plan: Plan, canaries: int, advance: Callable[[int], None] = lambda runs: None) -> Audit:
    """Makes 2 `canaries` runs of a plan, each with its canary on a side that a fair coin decides.

    Args:
      advance: called with the number of runs that were finished.

    Raises:
      ConfigError: the plan promises nothing that could be tried.
    """
    if plan.dp.trust == "none":
        raise ConfigError("dp=none: nothing is private; choose a trust model to audit (dp=cdp)")
    draws = stream_generator(plan.seed, "audit")
    sides = draws.random(2 * canaries) < 0.5
    seeds = draws.integers(2**63, size=len(sides)).tolist()
    size = int(np.clip(memory_budget(plan) // bytes_per_run(plan), 1, AT_ONCE))
    scores, gaussian, claim = [], True, None
    for start in range(0, len(seeds), size):
        some = slice(start, start + size)
        put = Canaries(sides[some])
        component = replace(plan.mechanism.component, target=put.mechanism(plan.mechanism.target))
        own = replace(plan, mechanism=replace(plan.mechanism, component=component))
        stack = _Stack(own, seeds[some])
        for _ in range(plan.last_round):
            stack.step(shown=False)
        stack.mechanism.verify()
        stack.collect()
        stack.members[0].check_ledger()
        scores.append(put.scores.numpy())
        gaussian &= put.gaussian
        claim = price(stack.members[0].ledger, plan.accountant_object(), plan.dp.delta)
        advance(len(put.scores))
    if claim is None or claim.epsilon is None:
        why = "no run was made" if claim is None else claim.reason
        raise ConfigError(f"accountant={plan.accountant.name}: no epsilon to audit: {why}")
    return Audit(claim.epsilon, plan.dp.delta, np.concatenate(scores), sides, gaussian)
