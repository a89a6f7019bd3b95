"""Audits: a run made many times over with a canary in it, stacked, and what its releases gave away.

Only noise, batches and cohorts differ between the runs of an audit; data, partition and public
schedules are those of the plan. The models that are trained are of no interest: nothing is
evaluated. What was found is kept as runs are, in `outputs/audits/<id>/{result.json, scores.csv}`.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dpfl_cli.config.errors import ConfigError
from dpfl_cli.config.identity import content_id, stored_config
from dpfl_cli.data.streams import stream_generator
from dpfl_cli.data.threads import slices
from dpfl_cli.privacy.accountants import price
from dpfl_cli.privacy.canaries import Canaries
from dpfl_cli.simulation.grouping import fitting
from dpfl_cli.simulation.member import Member
from dpfl_cli.simulation.memory import keep_freed_memory
from dpfl_cli.simulation.results import origin, privacy_report
from dpfl_cli.simulation.run_plan import Options, Plan
from dpfl_cli.simulation.stack import Stack
from dpfl_cli.simulation.store import RunRecord, RunStore, metrics_csv, sealed

REVISION = 1  # raised when a change moves the scores, or the bounds
AT_ONCE = 500  # more runs in a stack gain nothing
CONFIDENCE = 0.95
SURE = 0.999  # the confidence of a bound that refutes a claim
SCORES = "scores.csv"


@dataclass(frozen=True)
class Audit:
    """What an audit found.

    Attributes:
      claim: epsilon of the ledger that the runs wrote, by the plan's accountant.
      delta: of the claim, and of the bounds.
      gaussian: whether the scores are known to be Gaussian.
      scores, sides: [2n] of the adversary, and where the canaries were.
    """

    claim: float
    delta: float
    gaussian: bool
    scores: np.ndarray
    sides: np.ndarray

    def bounds(self, confidence: float) -> dict[str, float]:
        """Lower bounds on epsilon, by name, each with this confidence."""
        from dpfl_cli.privacy import auditing  # imports scipy.stats

        game = (self.scores, self.sides, self.delta, confidence)
        found = {"gaussian": auditing.gaussian_bound(*game)} if self.gaussian else {}
        found["one_run"] = auditing.one_run_bound(*game, gaussian=self.gaussian)
        found["threshold"] = auditing.threshold_bound(*game)
        return found

    @property
    def excess(self) -> float:
        """By how much the largest bound of 99.9 % is above the claim; negative where none is."""
        return max(self.bounds(SURE).values()) - self.claim


def audit_store(outputs: Path) -> RunStore:
    """Where audits are kept."""
    return RunStore(outputs, "audits")


def is_kept(plan: Plan, canaries: int, store: RunStore) -> bool:
    """Whether a store holds an audit whole."""
    return store.whole(content_id(_identity(plan, canaries))) is not None


def _identity(plan: Plan, canaries: int) -> Options:
    return {**plan.identity, "audit": {"canaries": canaries, "revision": REVISION}}


def kept_audit(
    plan: Plan, canaries: int, outputs: Path, advance: Callable[[int], None] = lambda runs: None
) -> tuple[Audit, Path]:
    """The audit of a plan, and its folder; made where the store does not hold it whole.

    Raises: as `audit`.
    """
    store, identity = audit_store(outputs), _identity(plan, canaries)
    store.prepare()
    run_id = content_id(identity)
    while True:
        with store.lock(run_id) as held:
            if held:
                record = store.whole(run_id) or store.publish(
                    run_id, _files(plan, identity, audit(plan, canaries, advance))
                )
                return _read(record), record.folder
        time.sleep(1.0)  # another process makes it


def _files(plan: Plan, identity: Options, found: Audit) -> dict[str, bytes]:
    report = {
        "id": content_id(identity),
        "config": stored_config({**plan.config, "audit": identity["audit"]}, identity),
        "status": "done",
        "seed": plan.seed,
        "data": {"name": plan.info.name, "source": plan.info.source, "sha256": plan.info.sha256},
        "privacy": privacy_report(plan, plan.ledger()),
        "metrics": {
            "claim": found.claim,
            "gaussian": found.gaussian,
            "bounds": {str(level): found.bounds(level) for level in (CONFIDENCE, SURE)},
        },
        "origin": origin(),
    }
    pairs = zip(found.sides.tolist(), found.scores.tolist(), strict=True)
    rows = [{"side": int(side), "score": score} for side, score in pairs]
    return sealed({SCORES: metrics_csv(rows)}, report)


def _read(record: RunRecord) -> Audit:
    rows, found = record.table(SCORES), record.result["metrics"]
    return Audit(
        found["claim"],
        record.result["privacy"]["delta"],
        found["gaussian"],
        np.array([row["score"] for row in rows]),
        np.array([row["side"] == 1 for row in rows]),
    )


def audit(plan: Plan, canaries: int, advance: Callable[[int], None] = lambda runs: None) -> Audit:
    """Makes 2 `canaries` runs of a plan, each with its canary on a side that a fair coin decides.

    Args:
      advance: called with the number of runs that were finished.

    Raises:
      ConfigError: the plan promises nothing that could be tried.
    """
    if plan.dp.trust == "none":
        raise ConfigError("dp=none: nothing is private; choose a trust model to audit (dp=cdp)")
    keep_freed_memory()
    draws = stream_generator(plan.seed, "audit")
    sides = draws.random(2 * canaries) < 0.5
    seeds = draws.integers(2**63, size=len(sides)).tolist()
    size = min(fitting(plan), AT_ONCE)
    scores, gaussian = [], True
    for some in slices(len(seeds), size):
        stack = Stack([Member(plan) for _ in seeds[some]], noise_seeds=seeds[some])
        put = Canaries(stack.mechanism, sides[some])
        for _ in range(plan.last_round):
            stack.step(shown=False)
        stack.mechanism.verify()
        stack.refuse_kept()
        stack.collect()
        distinct = {member.ledger: member for member in stack.members}
        for member in distinct.values():  # what was released is what the plan's price is of
            member.check_ledger()
        scores.append(put.scores.numpy())
        gaussian &= put.gaussian
        advance(len(put.scores))
    claim = price(plan.ledger(), plan.accountant_object(), plan.dp.delta)
    if claim.epsilon is None:
        why = f"no epsilon to audit: {claim.reason}"
        raise ConfigError(f"accountant={plan.accountant.name}: {why}")
    return Audit(claim.epsilon, plan.dp.delta, gaussian, np.concatenate(scores), sides)
