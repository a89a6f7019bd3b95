"""An artifact's page in markdown: the paper's table with the paper's number beside ours, epsilons, verdicts."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from decimal import ROUND_CEILING, Decimal
from typing import Any

from dpfl_cli.reproduction.claims import ClaimVerdict
from dpfl_cli.reproduction.declaration import MEASURE, ROUND, Artifact, TableSpec
from dpfl_cli.reproduction.rows import Row, Rows, in_order, rounded_up

DASH = "–"
LARGE = 1e6  # from here on a number with decimals has four significant digits and an exponent
EDGE = " (edge)"  # beside a chosen cell on the edge of its grid


def page(artifact: Artifact, scale: str, rows: Rows, verdicts: Sequence[ClaimVerdict], gaps: Sequence[str]) -> str:
    """table.md."""
    declaration, size = artifact.declaration, artifact.scale(scale)
    seeds = f"{size.seeds} seed{'s' if size.seeds > 1 else ''}, " if artifact.trains else ""
    parts = [
        f"# {artifact.name}: {declaration.title}",
        declaration.shows,
        f"Source: {declaration.source}. Scale `{scale}`: {seeds}{size.note or 'as in the paper'}.",
    ]
    if scale != "paper" and artifact.trains and declaration.paper_numbers is not None:
        parts += ["The paper's numbers beside ours are for its full setup (`scale=paper`)."]
    if gaps:
        parts += ["**Incomplete**: " + "; ".join(gaps)]
    for spec in declaration.tables:
        parts += [f"**{spec.caption}**"] if spec.caption else []
        parts += [table(artifact, spec, rows)]
        edges = edges_text(artifact, _cells(artifact, spec, rows), [*spec.rows, *spec.columns])
        parts += [f"{EDGE.strip()}: the chosen point lies at the end of what was searched: {edges}."] if edges else []
        parts += spec.notes
    parts += ["![figure](figure.png)"]
    parts += [f"- {note}" for note in declaration.notes]
    if verdicts:
        parts += ["## Claims", claims_table(artifact, verdicts)]
    epsilons = privacy_table(artifact, rows)
    if epsilons:
        parts += ["## What the epsilons mean", epsilons]
    command = f"dpfl reproduce {artifact.name if not artifact.name.startswith('local/') else artifact.path} scale={scale}"
    parts += [f"Made by `{command}`; the runs are in manifest.json, all numbers in table.csv."]
    return "\n\n".join(_bullets_joined(parts)) + "\n"


def _bullets_joined(parts: Sequence[str]) -> list[str]:
    joined: list[str] = []
    for part in parts:
        if part.startswith("- ") and joined and joined[-1].startswith("- "):
            joined[-1] += "\n" + part
        else:
            joined.append(part)
    return joined


def _cells(artifact: Artifact, spec: TableSpec, rows: Rows) -> list[Row]:
    """The rows of a table; the edge of a chosen point is kept only where the sign for it stands.

    That is at the parameters that are at an end; in a table without parameters at the measure that the point was chosen by, or,
    where that is not shown, at the first one of runs that can be better or worse.
    """
    found = rows.where(spec.where, spec.cells)
    if any(name.startswith("best.") for name in spec.cells):
        return [row if row.measure.startswith("best.") else replace(row, edge="") for row in found]
    known = artifact.declaration.measures
    chosen_by = {rule.measure for rule in artifact.declaration.best} & set(spec.cells)
    judged = [name for name in spec.cells if known[name].better is not None and known[name].trains]
    signed = chosen_by or judged[:1]
    return [row if row.measure in signed else replace(row, edge="") for row in found]


def table(artifact: Artifact, spec: TableSpec, rows: Rows) -> str:
    """One table: a line per combination of the labels in `rows`, a column per combination of those in `columns`."""
    found = _cells(artifact, spec, rows)
    if not found:
        return "(no numbers at this scale)"
    down = _combinations(found, spec.rows)
    across = _combinations(found, spec.columns) if spec.columns else [()]
    by_measure = MEASURE in spec.columns or MEASURE in spec.rows
    printed: dict[tuple[Any, ...], list[Row]] = {}
    for row in found:
        printed.setdefault((*(row.get(name) for name in spec.rows), *(row.get(name) for name in spec.columns)), []).append(row)
    header = [*(artifact.title_of(name) for name in spec.rows)]
    groups = []
    for key in across:
        cells = [row for row in found if tuple(row.get(name) for name in spec.columns) == key]
        with_paper = any(row.paper is not None for row in cells)
        title = ", ".join(_heading(artifact, name, value) for name, value in zip(spec.columns, key, strict=True))
        if not title:
            title = " / ".join(artifact.title_of(measure) for measure in spec.cells)
        groups.append((key, with_paper))
        header += [title, "paper", "difference"] if with_paper else [title]
    lines = []
    for side in down:
        line = [artifact.title_of(value) if value != "" else DASH for value in side]
        for key, with_paper in groups:
            cell = printed.get((*side, *key), [])
            if not by_measure:
                cell = sorted(cell, key=lambda row: spec.cells.index(row.measure))
            line.append(_joined([_ours(artifact, row) for row in cell]))
            if with_paper:
                line += [_paper(artifact, cell), _difference(artifact, cell)]
        lines.append(line)
    return markdown(header, lines)


def edges_text(artifact: Artifact, rows: Sequence[Row], names: Sequence[str]) -> str:
    """Where chosen cells lie on the edge of their grid, each place once, with in how many cells; "" where none does.

    Args:
      names: the labels that tell cells apart; several measures of a cell count once.
    """
    names = [name for name in names if name != MEASURE]
    cells = {(edge, *(row.get(name) for name in names)): edge for row in rows if row.edge for edge in row.edge.split("; ")}
    counts = Counter(cells.values())
    places = [(edge.partition("="), count) for edge, count in counts.items()]
    return ", ".join(
        f"{artifact.title_of(name)} {value}" + (f" in {count} cells" if count > 1 else "") for (name, _, value), count in places
    )


def _heading(artifact: Artifact, name: str, value: Any) -> str:
    if name == ROUND:
        return f"round {value}"
    return artifact.title_of(value) if isinstance(value, str) else f"{artifact.title_of(name)} {artifact.title_of(value)}"


def _combinations(found: Sequence[Row], names: Sequence[str]) -> list[tuple[Any, ...]]:
    """The combinations of these labels that occur, grouped by the first, then the second, ...; see `in_order` for each group."""
    if not names:
        return [()]
    first, *others = names
    return [
        (value, *rest)
        for value in in_order(row.get(first) for row in found)
        for rest in _combinations([row for row in found if row.get(first) == value], others)
    ]


def _decimals(artifact: Artifact, measure: str, value: float) -> int | None:
    """Decimals that a number is shown to; None: four significant digits. A large whole number without decimals is a count."""
    known = artifact.declaration.measures.get(measure)
    decimals = known.decimals if known is not None else None
    return None if abs(value) >= LARGE and not (decimals == 0 and value.is_integer()) else decimals


def number_text(artifact: Artifact, measure: str, value: float) -> str:
    """A number as tables show it."""
    known = artifact.declaration.measures.get(measure)
    decimals = _decimals(artifact, measure, value)
    if math.isnan(value):
        return DASH
    if math.isinf(value):
        return "never" if known is not None and known.derived is not None else "diverged"
    if decimals is None:
        return f"{value:.4g}"
    return f"{value:.{decimals}f}" if value == 0 or abs(value) >= 0.5 * 10**-decimals else f"{value:.1e}"


def spread_text(artifact: Artifact, measure: str, value: float, spread: float) -> str:
    """A number's spread, to the decimals that the number is shown to."""
    decimals = _decimals(artifact, measure, value)
    if decimals is None or _decimals(artifact, measure, spread) is None or (value != 0 and abs(value) < 0.5 * 10**-decimals):
        return number_text(artifact, measure, spread)
    return f"{spread:.{decimals}f}"


def _ours(artifact: Artifact, row: Row) -> str:
    if row.text:
        return row.text + (EDGE if row.edge else "")
    text = number_text(artifact, row.measure, row.value)
    if text == DASH and row.note and not row.labels.get(ROUND):
        return f"{DASH} ({row.note})"
    if row.std is not None and math.isfinite(row.value):
        text += f" ± {spread_text(artifact, row.measure, row.value, row.std)}"
    if row.diverged:
        text += f" ({row.diverged} of {row.n} diverged)"
    if 0 < row.n < row.seeds:
        text += f" ({row.n} of {row.seeds} seeds)"
    if row.edge or "edge of the grid" in row.note:
        text += EDGE
    return text


def _joined(texts: Sequence[str]) -> str:
    return ", ".join(texts) or DASH


def _paper(artifact: Artifact, cell: Sequence[Row]) -> str:
    known = [row for row in cell if row.paper is not None]
    if not known:
        return DASH
    texts = []
    for row in known:
        assert row.paper is not None
        spread = f" ± {spread_text(artifact, row.measure, row.paper, row.paper_std)}" if row.paper_std is not None else ""
        texts.append(number_text(artifact, row.measure, row.paper) + spread)
    notes = list(dict.fromkeys(row.paper_note for row in known if row.paper_note))
    return ", ".join(texts) + (f" [{'/'.join(notes)}]" if notes else "")


def _difference(artifact: Artifact, cell: Sequence[Row]) -> str:
    known = [row for row in cell if row.paper is not None and math.isfinite(row.value)]
    if not known:
        return DASH
    if len(known) > 1 or known[0].measure.startswith("best."):
        return "same" if all(row.value == row.paper for row in known) else "differs"
    (row,) = known
    assert row.paper is not None
    gap = row.value - row.paper
    text = number_text(artifact, row.measure, gap)
    return text if gap <= 0 else f"+{text}"


def claims_table(artifact: Artifact, verdicts: Sequence[ClaimVerdict]) -> str:
    """Every claim, its verdict beside what was expected, and the numbers behind it."""
    lines = []
    for one in verdicts:
        against = " (**against expectation**)" if one.as_expected is False else ""
        reason = f": {one.reason}" if one.reason else f" ({one.spread})" if one.spread else ""
        said = one.claim.text + (f" ({one.claim.note})" if one.claim.note else "")
        named = f"{one.claim.id} (invariant)" if one.claim.kind == "invariant" else one.claim.id
        lines.append([named, said, one.verdict + reason + against, one.expected, _numbers(artifact, one)])
    return markdown(["claim", "what it says", "verdict", "expected", "numbers"], lines)


def _numbers(artifact: Artifact, verdict: ClaimVerdict) -> str:
    shown = [f"{entry['asked']} = {_short(artifact, entry)}" for entry in verdict.numbers[:6]]
    rest = len(verdict.numbers) - len(shown)
    return "; ".join(f"`{text}`" for text in shown) + (f"; {rest} more in claims.json" if rest > 0 else "")


def _short(artifact: Artifact, entry: Mapping[str, Any]) -> str:
    def text(value: Any) -> str:
        if isinstance(value, list):
            inner = [text(one) for one in value]
            return "[" + ", ".join(inner if len(inner) <= 5 else [*inner[:2], "…", *inner[-2:]]) + "]"
        return number_text(artifact, entry["measure"], value) if isinstance(value, float) else str(value)

    number, std = entry["number"], entry.get("std")
    return text(number) + (f" ± {spread_text(artifact, entry['measure'], number, std)}" if std is not None else "")


def privacy_table(artifact: Artifact, rows: Rows) -> str:
    """Every distinct privacy statement of the rows, with the labels of the runs that it belongs to; empty where there is none."""
    names = [name for name in rows.labels if name != ROUND]
    some = [name for name in _PRIVACY_OF_SOME if any(row.privacy.get(name) is not None for row in rows.rows)]
    columns = (*some, *_PRIVACY_COLUMNS)
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows.rows:
        if row.privacy:
            key = tuple(_in_common(row.privacy, name) or str(row.privacy.get(name)) for name in columns)
            groups.setdefault(key, []).append(row)
    lines = []
    for members in groups.values():
        texts = {name: _privacy_text(members[0].privacy, name) for name in columns}
        counts = [row.privacy.get("releases") or 0 for row in members]
        if min(counts) < max(counts):
            texts["releases"] = f"{min(counts)} to {max(counts)}"
        lines.append([_who(artifact, members, names), *texts.values()])
    if not lines:
        return ""
    uncovered = [str(item) for row in rows.rows for item in row.privacy.get("not_covered") or []]
    note = f"Every epsilon above: {'; '.join(dict.fromkeys(uncovered))}." if uncovered else ""
    return markdown(["runs", *(_PRIVACY_TITLES.get(name, name) for name in columns)], lines) + (f"\n\n{note}" if note else "")


def _in_common(privacy: Any, name: str) -> str:
    """What rows of one nominal target have in common whatever their number of releases, the noise of which grows with it: an
    epsilon to four digits, rounded up, and any number of releases; empty for all else."""
    if privacy.get("calibration") is None or privacy.get("epsilon") is None:
        return ""
    if name == "epsilon":
        unit = Decimal(privacy["epsilon"]).adjusted() - 3
        return f"{float(Decimal(privacy['epsilon']).quantize(Decimal(1).scaleb(unit), rounding=ROUND_CEILING)):.4g}"
    return "any" if name == "releases" else ""


_PRIVACY_OF_SOME = ("epsilon_target", "calibration")  # shown where some row has it
_PRIVACY_COLUMNS = (
    "epsilon",
    "delta",
    "accountant",
    "unit",
    "relation",
    "trust",
    "releases",
    "vacuous",
    "epsilon_paper",
    "guarantee",
)
_PRIVACY_TITLES = {
    "epsilon_target": "target epsilon of the noise",
    "calibration": "noise by",
    "epsilon_paper": "epsilon under the paper's convention (rounded up)",
}


def _who(artifact: Artifact, members: Sequence[Row], names: Sequence[str]) -> str:
    texts = []
    for name in names:
        values = list(dict.fromkeys(row.get(name) for row in members if row.get(name) != ""))
        if values and len(values) <= 4:
            texts.append("/".join(artifact.title_of(value) for value in values))
    return ", ".join(texts)


def _privacy_text(privacy: Any, name: str) -> str:
    value = privacy.get(name)
    if name == "epsilon" and value is None:
        return DASH if privacy.get("trust") == "none" else f"{DASH} ({privacy.get('epsilon_reason') or 'not private'})"
    if name == "epsilon":
        return _in_common(privacy, name) or (f"{value:.6f}" if value < 1e6 else f"{value:.6e}")
    if name == "epsilon_paper":
        return DASH if value is None else f"{rounded_up(value, 3):.3f} ({privacy.get('epsilon_paper_convention')})"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return DASH if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def markdown(header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """A pipe table."""

    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    return "\n".join([line(header), "|" + " --- |" * len(header), *(line(cells) for cells in lines)])
