"""Facts of a plan that is audited: what its releases give away, beside what is claimed of them."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dpfl_cli.config.paths import outputs_dir
from dpfl_cli.simulation.audit import CONFIDENCE, audit_store, is_kept, kept_audit, make_audits
from dpfl_cli.simulation.backends import make_backend
from dpfl_cli.simulation.dealing import cores_of_this_process
from dpfl_cli.simulation.progress import Progress
from dpfl_cli.simulation.run_plan import Plan
from dpfl_cli.simulation.workers import on_workers

CANARIES = 4000  # a side: a bound of Gaussian scores is then by chance within a few per cent
EACH = 6  # audits of a worker process: of fewer, its start costs more than it saves
NOT_GAUSSIAN = "scores are not Gaussian"
_known: dict[str, dict[str, float | str]] = {}


def make_all(
    plans: Sequence[Plan],
    configs: Sequence[Mapping[str, Any]],
    outputs: Path,
    title: str,
    quiet: bool = False,
) -> None:
    """Makes the audits of plans that are not kept yet: a stack of small rounds is Python's time,
    so that they go to a worker process a core where they are many.

    Args:
      configs: the composed config of every plan.

    Raises: as `make_audits`, and WorkerError.
    """
    store = audit_store(outputs)
    composed = {plan.id: config for plan, config in zip(plans, configs, strict=True)}
    missing = [plan for plan in plans if not is_kept(plan, CANARIES, store)]
    workers = min(len(cores_of_this_process()), len(missing) // EACH)
    own = any(plan.data_files for plan in missing)  # code that workers would have to load
    with Progress(title, 2 * CANARIES * len(missing), quiet) as progress:
        if workers < 2 or own:
            make_audits(missing, CANARIES, outputs, progress)
            return
        store.prepare()
        backend = make_backend("joblib", {"workers": workers})
        alone = [[plan] for plan in missing]
        on_workers(composed, alone, store, progress, backend, CANARIES)


def audit_facts(plan: Plan) -> dict[str, float | str]:
    """`claim`, the epsilon of the runs' ledger; lower bounds on it at `CONFIDENCE`: `gaussian`
    (and its share of the claim, in percent), `one_run`, `threshold`; `excess`, by how much the
    largest bound of 99.9 % is above the claim (negative: it is below).
    """
    if plan.id not in _known:
        found, _ = kept_audit(plan, CANARIES, outputs_dir())
        bounds: dict[str, float | str] = {"gaussian": NOT_GAUSSIAN, "gaussian_share": NOT_GAUSSIAN}
        bounds |= found.bounds(CONFIDENCE)
        if found.gaussian:
            bounds["gaussian_share"] = 100 * float(bounds["gaussian"]) / found.claim
        _known[plan.id] = {"claim": found.claim, "excess": found.excess, **bounds}
    return _known[plan.id]
