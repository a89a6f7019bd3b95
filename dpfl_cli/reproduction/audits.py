"""Facts of a plan that is audited: what its releases give away, beside what is claimed of them."""

from __future__ import annotations

from dpfl_cli.simulation.audit import SURE, audit
from dpfl_cli.simulation.run_plan import Plan

CANARIES = 4000  # a side: a bound of Gaussian scores is then by chance within a few per cent
CONFIDENCE = 0.95
NOT_GAUSSIAN = "scores are not Gaussian"
_known: dict[str, dict[str, float | str]] = {}


def audit_facts(plan: Plan) -> dict[str, float | str]:
    """`claim`, the epsilon of the runs' ledger; lower bounds on it at `CONFIDENCE`: `gaussian`
    (and its share of the claim, in percent), `one_run`, `threshold`; `excess`, by how much the
    largest bound at `SURE` is above the claim (negative: it is below). Kept while the process
    lives.
    """
    if plan.id not in _known:
        found = audit(plan, CANARIES)
        bounds: dict[str, float | str] = {"gaussian": NOT_GAUSSIAN, "gaussian_share": NOT_GAUSSIAN}
        bounds |= found.bounds(CONFIDENCE)
        if found.gaussian:
            bounds["gaussian_share"] = 100 * float(bounds["gaussian"]) / found.claim
        excess = max(found.bounds(SURE).values()) - found.claim
        _known[plan.id] = {"claim": found.claim, "excess": excess, **bounds}
    return _known[plan.id]
