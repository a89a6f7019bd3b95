"""What attacks found of every method under every trust model, as the table of docs/privacy.md.

    python -m tests.privacy_table

Makes the checks of `dpfl check` with all settings that the tests try, where the guarantee is
proved, and takes lower bounds from the published audits; writes the table into the guide. Exit 1
where a check fails.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd

from dpfl_cli.cli.check import Case, _kits
from dpfl_cli.config.errors import ConfigError
from dpfl_cli.papers.cross.audit import METHODS as AUDITED
from tests.simulation.test_conformance import BUILT_IN

ROOT = Path(__file__).resolve().parent.parent
GUIDE = ROOT / "docs" / "privacy.md"
AUDITS = ROOT / "outputs" / "published" / "cross" / "audit" / "quick" / "table.csv"
BEGIN, END = "<!-- made by python -m tests.privacy_table -->\n", "<!-- until here -->\n"
HEAD = (
    "| method | under | settings | influence | sensitivity | noise | audit |\n"
    "|---|---|---|---|---|---|---|\n"
)


@dataclass
class Found:
    """Of all settings of a method under a trust model."""

    settings: int = 0
    faults: list[str] = field(default_factory=list)
    reached: float = 0.0
    noise: list[float] = field(default_factory=list)

    def add(self, case: Case) -> None:
        """Makes the checks of a case; none where it is refused, or not proved."""
        try:
            kits = [kit for _, kit in _kits(case)]
        except ConfigError:
            return
        if kits[0].plans[0].dp.mode == "paper":
            return
        self.settings += 1
        for kit in kits:
            kit.examine()
            self.faults += [fault for faults in kit.faults.values() for fault in faults]
            self.reached = max(self.reached, kit.reached)
        self.noise += [kits[0].variance] if kits[0].draws else []  # the one with many seeds


def main() -> int:
    known: dict[tuple[str, str], Found] = {
        (method, under): Found() for method, trusts in AUDITED.items() for under in trusts
    }
    for parameter in BUILT_IN:
        method, case = parameter.values
        chosen = [word.partition("=") for word in case.words]
        under = {key: value for key, _, value in chosen if key in ("dp", "participation")}
        under = under.get("participation", under["dp"])
        found = known.setdefault((method, under), Found())
        found.add(case)
        print(f"{parameter.id}: {'; '.join(found.faults) or 'passed'}", flush=True)
    text = GUIDE.read_text()
    before, after = text.partition(BEGIN)[0], text.partition(END)[2]
    GUIDE.write_text(before + BEGIN + HEAD + "".join(_lines(known)) + END + after)
    return int(any(found.faults for found in known.values()))


def _lines(known: dict[tuple[str, str], Found]) -> Iterator[str]:
    rows = pd.read_csv(AUDITS)
    for (method, under), found in sorted(known.items()):
        own = rows[(rows["method"] == method) & (rows["under"] == under) & (rows["target"] == 4)]
        audit = {row.measure: row.value for row in own.itertuples()}
        bound = audit.get("gaussian")
        if bound is None or pd.isna(bound):  # not Gaussian: the better of the others
            bound = max(audit.get(name, float("nan")) for name in ("one_run", "threshold"))
        cells = [f"`{method}`", f"`{under}`", str(found.settings)]
        cells += ["bit by bit" if not found.faults else "FAILED", f"{found.reached:.3f}"]
        cells += [_range(found.noise), "" if pd.isna(bound) else f"{bound:.2f}"]
        if not found.settings:
            cells[2:6] = ["0", "", "", ""]
        yield f"| {' | '.join(cells)} |\n"


def _range(numbers: list[float]) -> str:
    return f"{min(numbers):.3f} to {max(numbers):.3f}" if numbers else "not Gaussian"


if __name__ == "__main__":
    sys.exit(main())
