"""Golden runs: small runs whose numbers are kept, so that code cannot change a number unless a revision is raised.

`make golden` writes them anew. It refuses a run whose numbers changed under an unchanged identity: raise the revision of
the component that changed (or ENGINE_REVISION), so that stored results of the old code are not taken for the new.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from dpfl_cli.config.compose import compose_config
from dpfl_cli.config.errors import DataError
from dpfl_cli.simulation.engine import Member, run_members
from dpfl_cli.simulation.plan import make_plan

FILE = Path(__file__).with_name("golden.json")
SYNTHETIC = ["dataset.clients=12", "dataset.dimension=5", "rounds=4", "evaluation.average_last=2"]
IMAGES = [
    "dataset=mnist",
    "dataset.train_records=400",
    "dataset.test_records=100",
    "partitioner.clients=6",
    "rounds=3",
]
DEALT = [*IMAGES, "partitioner.records_per_client=8"]
RUNS: dict[str, list[str]] = {
    **{
        f"{algorithm} {dp}": [*SYNTHETIC, f"algorithm={algorithm}", f"dp={dp}"]
        for algorithm in ("fedavg", "fedexp", "fedexp_naive", "scaffold")
        for dp in ("none", "ldp", "ldp_privunit", "cdp")
        if algorithm != "fedexp_naive" or dp.startswith("ldp")
    },
    "scaffold double clipped": [*SYNTHETIC, "algorithm=scaffold", "algorithm.release=double", "algorithm.control=clipped"],
    "privunit exact": [*SYNTHETIC, "dp=ldp_privunit", "mechanism.gamma_rule=exact", "mechanism.split=optimal"],
    "several records": [*SYNTHETIC, "algorithm=fedexp", "dataset.records_per_client=3"],
    "iid": [*SYNTHETIC, "partitioner=iid", "partitioner.clients=4"],
    "cnn": [*DEALT, "algorithm=fedexp", "dp=cdp"],
    "small cnn": [*DEALT, "algorithm=fedexp", "dp=ldp", "model=mnist_cnn_small"],
    "shards": [*IMAGES, "algorithm=fedavg", "partitioner=shards"],
}
TOLERANCE = {"linear_regression": 1e-9, "cnn": 1e-4}  # relative: what another processor may round otherwise


def compute(name: str) -> dict[str, Any]:
    """id and last row of one golden run."""
    plan = make_plan(compose_config(RUNS[name]))
    member = next(iter(run_members([Member(plan)], lambda m: None, lambda m: None)))
    return {"id": plan.id, "model": plan.model.name, "row": member.rows[-1]}


def differs(new: dict[str, Any], old: dict[str, Any]) -> list[str]:
    """Metrics that are not the same up to rounding on another processor."""
    tolerance = TOLERANCE[new["model"]]
    names = {*new["row"], *old["row"]}
    return sorted(name for name in names if not _close(new["row"].get(name), old["row"].get(name), tolerance))


def _close(one: float | None, other: float | None, tolerance: float) -> bool:
    return one is not None and other is not None and abs(one - other) <= tolerance * max(abs(one), abs(other), 1e-3)


def main() -> int:
    """Writes tests/golden.json."""
    known = json.loads(FILE.read_text()) if FILE.exists() else {}
    fresh: dict[str, Any] = {}
    refused = 0
    for name in RUNS:
        try:
            new = compute(name)
        except DataError as error:
            print(f"{name}: kept as it is ({error})")
            if name in known:
                fresh[name] = known[name]
            continue
        old = known.get(name)
        if old is not None and old["id"] == new["id"] and differs(new, old):
            print(f"{name}: {differs(new, old)} changed under the same identity {new['id']}: raise a revision")
            refused += 1
            new = old
        fresh[name] = new
    FILE.write_text(json.dumps(fresh, indent=1) + "\n")
    print(f"{len(fresh)} golden runs in {FILE.name}, {refused} refused")
    return 1 if refused else 0


if __name__ == "__main__":
    sys.exit(main())
