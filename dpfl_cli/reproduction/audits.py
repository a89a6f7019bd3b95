"""Facts of a plan that is audited: what its releases give away, beside what is claimed of them."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from joblib import Parallel, cpu_count, delayed

from dpfl_cli.config.paths import outputs_dir
from dpfl_cli.reproduction.grid import Cell
from dpfl_cli.simulation.audit import CONFIDENCE, audit_store, is_kept, kept_audit
from dpfl_cli.simulation.plan import make_plan
from dpfl_cli.simulation.progress import Progress
from dpfl_cli.simulation.run_plan import Plan

CANARIES = 4000  # a side: a bound of Gaussian scores is then by chance within a few per cent
EACH = 6  # audits of a worker process: of fewer, its start costs more than it saves
NOT_GAUSSIAN = "scores are not Gaussian"


def make_all(cells: Iterable[Cell], outputs: Path, title: str, quiet: bool) -> None:
    """Makes the audits of plans that are not kept yet: a stack of small rounds is Python's time,
    so that they go to a worker process a core where they are many.

    Raises: as `kept_audit`.
    """
    store, unique = audit_store(outputs), {cell.plan.id: cell for cell in cells}
    missing = [one for one in unique.values() if not is_kept(one.plan, CANARIES, store)]
    own = any(cell.plan.data_files for cell in missing)  # code that workers would have to load
    workers = 1 if own else max(1, min(cpu_count(), len(missing) // EACH))
    with Progress(title, len(missing), quiet) as progress:
        tasks = (delayed(_made)(cell.config(), CANARIES, outputs) for cell in missing)
        made = Parallel(workers, return_as="generator")(tasks)
        for cell, folder in zip(missing, made, strict=True):
            progress.advance()
            progress.say(f"audited {cell.plan.label}: {folder}")


def _made(config: Mapping[str, Any], canaries: int, outputs: Path) -> Path:
    return kept_audit(make_plan(config), canaries, outputs)[1]


def audit_facts(plan: Plan) -> dict[str, float | str]:
    """`claim`, the epsilon of the runs' ledger; lower bounds on it at `CONFIDENCE`: `gaussian`
    (and its share of the claim, in percent), `one_run`, `threshold`; `excess`, by how much the
    largest bound of 99.9 % is above the claim (negative: it is below).
    """
    found, _ = kept_audit(plan, CANARIES, outputs_dir())
    bounds = found.bounds(CONFIDENCE)
    share = 100 * bounds["gaussian"] / found.claim if found.gaussian else NOT_GAUSSIAN
    return {
        "claim": found.claim,
        "excess": found.excess,
        "gaussian_share": share,
        "gaussian": NOT_GAUSSIAN,
        **bounds,
    }
