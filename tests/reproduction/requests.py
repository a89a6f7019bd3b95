"""What every artifact asks for at smoke and quick, as one digest each: a lock on presets and grids.

    python -m tests.reproduction.requests   writes requests.json, after a deliberate change

A digest is of the sorted (content of the run without revisions, labels, seed), so that it moves
when a setting, a label or a seed does, and stays when only a component's revision is raised.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dpfl_cli.config.identity import content_id
from dpfl_cli.papers import artifacts
from dpfl_cli.reproduction.artifact import Scale
from dpfl_cli.reproduction.grid import Cell, cells

FILE = Path(__file__).with_suffix(".json")
SIZES: tuple[Scale, ...] = ("smoke", "quick")


def without_revisions(values: Any) -> Any:
    if not isinstance(values, Mapping):
        return values
    kept = {key: one for key, one in values.items() if not key.endswith("revision")}
    return {key: without_revisions(one) for key, one in kept.items() if key != "engine"}


def digest(planned: Sequence[Cell]) -> str:
    """Number of runs, and the digest of what they are."""
    found = [
        [content_id(without_revisions(one.plan.identity)), dict(one.run.labels), one.seed]
        for one in planned
    ]
    lines = sorted(json.dumps(one, sort_keys=True) for one in found)
    return f"{len(lines)} {hashlib.sha256(chr(10).join(lines).encode()).hexdigest()[:16]}"


def main() -> None:
    known = {
        name: {scale: digest(cells(artifact.at(scale))) for scale in SIZES}
        for name, artifact in artifacts().items()
    }
    FILE.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
