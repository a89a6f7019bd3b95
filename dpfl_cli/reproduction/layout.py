"""An artifact's page in markdown: tables beside the paper's numbers, verdicts, epsilons."""

import math
from collections.abc import Sequence
from typing import Any

import pandas as pd

from dpfl_cli.privacy.nominal import rounded_up
from dpfl_cli.reproduction.artifact import Artifact, Table
from dpfl_cli.reproduction.judge import REDUCED, Verdict, beside, numbers_line
from dpfl_cli.reproduction.measure import DASH, LARGE, Measure
from dpfl_cli.reproduction.reduce import edges_text
from dpfl_cli.reproduction.rows import (
    LabelValues,
    Row,
    Rows,
    in_order,
    labels_of,
    matching,
    records,
)
from dpfl_cli.reproduction.search import search_section
from dpfl_cli.reproduction.templating import table_row, template
from dpfl_cli.reproduction.verdict import EQUAL_VARIANCES, interval_text
from dpfl_cli.simulation.plugins import plugin_words

FAR = 10  # a factor from which on a ratio says more than a difference in percent
EDGE = " (edge)"  # beside a chosen cell on the edge of its grid
POOLING = (
    "An interval's variance is pooled over the comparisons of one measure where Bartlett's test "
    f"at {100 * EQUAL_VARIANCES:.0f} % does not tell their spreads apart; elsewhere it is the "
    "comparison's own (`freedom` in claims.json: degrees of freedom, fewer where comparisons are "
    "correlated over seeds). Logs are natural ones."
)


def page(
    artifact: Artifact,
    rows: Rows,
    verdicts: Sequence[Verdict],
    horizon: str,
    gaps: Sequence[str],
    search: str = "",
) -> str:
    """table.md.

    Args:
      horizon: rounds, records and seeds that it was run to.
      search: search.csv, where cells were searched in stages.
    """
    pooled = any(each.get("freedom") for one in verdicts for each in one.comparisons)
    text = template("table.md.j2")(
        artifact=artifact,
        words=artifact.name if artifact.paper else artifact.path.name + plugin_words(),
        horizon=horizon,
        beside=rows.frame["paper"].notna().any(),
        gaps=gaps,
        notes=[one if isinstance(one, str) else one.get(artifact.scale) for one in artifact.notes],
        tables=[(spec, table(artifact, spec, rows)) for spec in artifact.tables],
        edges=edges_text(artifact, rows),
        search=search_section(artifact, search) if search else "",
        line=numbers_line(artifact, rows.means),
        numbers=numbers_table(artifact, rows.means),
        verdicts=verdicts,
        interval=interval_text,
        pooling=POOLING if pooled else "",
        reduced_state=REDUCED,
        epsilons=privacy_table(artifact, rows),
    )
    return text + "\n"


def table(artifact: Artifact, spec: Table, rows: Rows) -> str:
    """One table: a line per combination of `rows`, a column per combination of `columns`."""
    found = records(matching(rows.means, {**spec.where, "measure": spec.cells}))
    if not found:
        return "(no numbers at this scale)"
    signed = _signed(artifact, spec.cells)
    names, side = [*spec.rows, *spec.columns], len(spec.rows)
    inside: dict[LabelValues, list[Row]] = {}
    for cell in found:
        inside.setdefault(tuple(cell.get(name, "") for name in names), []).append(cell)
    down = _ordered([key[:side] for key in inside])
    across = _ordered([key[side:] for key in inside])
    printed = {key[side:] for key, cells in inside.items() if any(map(_is_printed, cells))}
    header = [*map(artifact.title_of, spec.rows)]
    for key in across:
        named = zip(spec.columns, key, strict=True)
        title = ", ".join(heading(artifact, *pair) for pair in named)
        title = title or " / ".join(map(artifact.title_of, spec.cells))
        header += [title, "paper"] if key in printed else [title]
    lines = []
    for start in down:
        line = [artifact.title_of(value) if value != "" else DASH for value in start]
        for key in across:
            cells = inside.get((*start, *key), [])
            cells.sort(key=lambda cell: spec.cells.index(cell["measure"]))
            ours = [_ours(artifact, cell, cell["measure"] in signed) for cell in cells]
            line.append(", ".join(ours) or DASH)
            if key in printed:
                line.append(_paper(artifact, cells))
        lines.append(line)
    return markdown(header, lines)


def _signed(artifact: Artifact, measures: Sequence[str]) -> set[str]:
    """Of a table's measures those beside which a chosen point's edge is said: its parameters; in a
    table without these the measure that it was chosen by, or the first that can be better or worse.
    """
    parameters = {name for name in measures if artifact.is_choice(name)}
    chosen_by = {rule.by for rule in artifact.best} & set(measures)
    known = artifact.measures
    judged = [name for name in measures if name in known and known[name].better is not None]
    return parameters or chosen_by or set(judged[:1])


def _ordered(keys: Sequence[LabelValues]) -> list[LabelValues]:
    """These keys, each once, grouped by their first value, then the second, ..."""
    if not any(keys):
        return [()]
    return [
        (value, *rest)
        for value in in_order(key[0] for key in keys)
        for rest in _ordered([key[1:] for key in keys if key[0] == value])
    ]


def _is_printed(cell: Row) -> bool:
    """Whether the paper gives its number."""
    return not math.isnan(cell["paper"])


def heading(artifact: Artifact, name: str, value: Any) -> str:
    """A label's value with the label's name, where the value alone says nothing."""
    if name == "round":
        return f"round {value}"
    shown = artifact.title_of(value)
    return shown if isinstance(value, str) else f"{artifact.title_of(name)} {shown}"


def measure_of(artifact: Artifact, cell: Row) -> Measure:
    """What a cell is of; what was chosen (best.<label>) is shown like any measure."""
    return artifact.measures.get(cell["measure"], Measure())


def _ours(artifact: Artifact, cell: Row, signed: bool) -> str:
    edge = EDGE if cell["edge"] and signed else ""
    if cell["text"]:
        return str(cell["text"]) + edge
    text = measure_of(artifact, cell).text(cell["value"], cell["std"])
    if text == DASH and cell["note"] and not cell["round"]:
        return f"{DASH} ({cell['note']})"
    text += f" ({cell['diverged']} of {cell['n']} diverged)" if cell["diverged"] else ""
    if 0 < cell["unknown"] < cell["n"] and not cell["diverged"]:
        text += f" (undefined in {cell['unknown']} of {cell['n']} seeds)"
    trained = cell["measure"] in artifact.measures and not math.isnan(cell["seed"])
    if trained and cell["n"] < cell["seeds"]:
        text += f" ({cell['n']} of {cell['seeds']:g} seeds)"
    return text + edge


def _paper(artifact: Artifact, cells: Sequence[Row]) -> str:
    known = [cell for cell in cells if _is_printed(cell)]
    texts = [measure_of(artifact, cell).text(cell["paper"], cell["paper_std"]) for cell in known]
    notes = dict.fromkeys(cell["paper_note"] for cell in known if cell["paper_note"])
    return (", ".join(texts) + (f" [{'/'.join(notes)}]" if notes else "")) or DASH


def numbers_table(artifact: Artifact, rows: pd.DataFrame) -> str:
    """Every cell that has a paper's number: the difference, or from a factor of 10 on the ratio;
    and in standard errors.
    """
    lines = []
    for cell in records(beside(artifact, rows)):
        values = (cell[name] for name in (*labels_of(rows), "rank", "round") if cell[name] != "")
        which = ", ".join(map(artifact.title_of, values))
        errors = f"{cell['errors']:+.1f}" if math.isfinite(cell["errors"]) else DASH
        measure = measure_of(artifact, cell)
        ours, paper = measure.text(cell["value"]), measure.text(cell["paper"])
        share = cell["difference"] / abs(cell["paper"]) if cell["paper"] else math.nan
        relative = f"{100 * share:+.1f} %" if math.isfinite(share) else DASH
        far = cell["ratio"] >= FAR or cell["ratio"] <= 1 / FAR
        relative = f"x {cell['ratio']:.2g}" if far else relative
        lines.append([which, artifact.title_of(cell["measure"]), ours, paper, relative, errors])
    return markdown(["cell", "measure", "ours", "paper", "difference", "in standard errors"], lines)


# --- epsilons ---------------------------------------------------------------------------------

OF_SOME = ("epsilon_target", "calibration")  # shown where some row has it
STATED = [
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
]
COLLUDING = (
    "Under secure aggregation an epsilon is against the server. Where clients add shares of the "
    "noise, a share h of them who collude know theirs, and sqrt(1 - h) times the noise is left "
    "against them (0.71 times against half); `dpfl account RUN` prices that."
)
TITLES = {
    "epsilon_target": "target epsilon of the noise",
    "calibration": "noise by",
    "epsilon_paper": "epsilon under the paper's convention (rounded up)",
}


def privacy_table(artifact: Artifact, rows: Rows) -> str:
    """Every distinct privacy statement, with the labels of the runs that it belongs to."""
    priced = records(rows.means[rows.means["trust"].notna()])
    if not priced:
        return ""
    some = [name for name in OF_SOME if any(_known(row[name]) for row in priced)]
    columns = [*some, *STATED]
    groups: dict[tuple[str, ...], list[Row]] = {}
    for row in priced:
        groups.setdefault(tuple(_privacy_text(row, name) for name in columns), []).append(row)
    lines = []
    for key, members in groups.items():
        counts = [int(row["releases"]) for row in members if _known(row["releases"])]
        ends = sorted({min(counts), max(counts)}) if counts else [DASH]
        releases = " to ".join(map(str, ends))
        lines.append([_who(artifact, members, rows.labels), *(text or releases for text in key)])
    stated = [row["not_covered"] for row in priced if _known(row["not_covered"])]
    items = dict.fromkeys(item for one in stated for item in one.split("; "))
    note = f"\n\nEvery epsilon above: {'; '.join(items)}." if items else ""
    if any(row["trust"] == "secure_aggregation" for row in priced):
        note += f"\n\n{COLLUDING}"
    return markdown(["runs", *(TITLES.get(name, name) for name in columns)], lines) + note


def _known(value: Any) -> bool:
    return not pd.isna(value) and value != ""


def _privacy_text(row: Row, name: str) -> str:
    """A column of a row's statement, "" of the releases, however many these are; the epsilon of a
    nominal target is to four digits, rounded up.
    """
    value = row[name]
    if name == "releases":
        return ""
    if not _known(value):
        why = name == "epsilon" and row["trust"] != "none"
        return f"{DASH} ({row['epsilon_reason'] or 'not private'})" if why else DASH
    if name == "epsilon":
        number = float(value)
        if _known(row["calibration"]):
            return f"{rounded_up(number, 3 - math.floor(math.log10(number))):.4g}"
        return f"{number:.6f}" if number < LARGE else f"{number:.6e}"
    if name == "epsilon_paper":
        return f"{rounded_up(float(value), 3):.3f} ({row['epsilon_paper_convention']})"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _who(artifact: Artifact, members: Sequence[Row], labels: Sequence[str]) -> str:
    columns = (dict.fromkeys(row[name] for row in members if row[name] != "") for name in labels)
    few = (values for values in columns if 0 < len(values) <= 4)
    return ", ".join("/".join(map(artifact.title_of, values)) for values in few)


def markdown(header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """A pipe table."""
    return "\n".join(map(table_row, [header, ["---"] * len(header), *lines]))
