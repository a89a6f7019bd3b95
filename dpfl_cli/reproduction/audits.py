"""Facts of a plan that is audited: what its releases give away, beside what is claimed of them."""

from __future__ import annotations

import logging

from dpfl_cli.config.paths import outputs_dir
from dpfl_cli.simulation.audit import CONFIDENCE, kept_audit
from dpfl_cli.simulation.run_plan import Plan

CANARIES = 4000  # a side: a bound of Gaussian scores is then by chance within a few per cent
NOT_GAUSSIAN = "scores are not Gaussian"
_known: dict[str, dict[str, float | str]] = {}


def audit_facts(plan: Plan) -> dict[str, float | str]:
    """`claim`, the epsilon of the runs' ledger; lower bounds on it at `CONFIDENCE`: `gaussian`
    (and its share of the claim, in percent), `one_run`, `threshold`; `excess`, by how much the
    largest bound of 99.9 % is above the claim (negative: it is below).
    """
    if plan.id not in _known:
        found, folder = kept_audit(plan, CANARIES, outputs_dir())
        bounds: dict[str, float | str] = {"gaussian": NOT_GAUSSIAN, "gaussian_share": NOT_GAUSSIAN}
        bounds |= found.bounds(CONFIDENCE)
        if found.gaussian:
            bounds["gaussian_share"] = 100 * float(bounds["gaussian"]) / found.claim
        _known[plan.id] = {"claim": found.claim, "excess": found.excess, **bounds}
        logging.getLogger("dpfl").info("audited %s: %s", plan.label, folder)
    return _known[plan.id]
