"""What a page says of a staged search, from its search.csv."""

import io
import math
from collections.abc import Sequence
from statistics import median
from typing import Any

import pandas as pd

from dpfl_cli.reproduction.artifact import SEARCH_SEEDS, Artifact, Scale
from dpfl_cli.reproduction.measure import Best
from dpfl_cli.reproduction.rows import matching, places
from dpfl_cli.reproduction.search import FULL, REDUCED, WHOLE
from dpfl_cli.reproduction.tables import label_of
from dpfl_cli.reproduction.templating import template


def search_section(artifact: Artifact, scale: Scale, text: str) -> str:
    """Sizes of the stages, how close they were, and what they could have missed.

    Args:
      text: search.csv.
    """
    frame = pd.read_csv(io.StringIO(text), dtype=str, keep_default_na=False)
    labels = [str(name) for name in frame.columns[1:-2]]
    frame[labels] = frame[labels].map(label_of).astype(object)
    frame["value"] = pd.to_numeric(frame["value"])
    frame["kept"] = frame["kept"] == "True"
    rules = []
    for rule in artifact.best:
        beside = [name for name in labels if name not in rule.over]
        grids = matching(frame, rule.where, labels).groupby(beside or (lambda row: 0), sort=False)
        rules.append(_compared(artifact, rule, [grid for _, grid in grids], beside))
    return template("search.md.j2")(
        title_of=artifact.title_of,
        search=artifact.searched(scale),
        seeds=SEARCH_SEEDS,
        own=artifact.size(scale).which,
        sizes=frame["stage"].value_counts(),
        rules=rules,
        median=median,
    )


def _compared(
    artifact: Artifact, rule: Best, grids: Sequence[pd.DataFrame], beside: Sequence[str]
) -> dict[str, Any]:
    """Of a rule's grids: `gaps`, by how much the last that was kept is ahead of the first that was
    dropped; `places` of the winners at reduced size, `last_kept` of them the last that was kept;
    `remarks`, what whole grids at full size say of them.
    """
    title, over = artifact.title_of, list(rule.over)
    lower = artifact.measures[rule.by].better == "lower"
    sign = -1.0 if lower else 1.0
    gaps, ranks, remarks, lasts = [], [], list[str](), 0
    for grid in grids:
        ranked = grid.sort_values("value", ascending=lower, kind="stable")
        rough, full, whole = (ranked[ranked["stage"] == one] for one in (REDUCED, FULL, WHOLE))
        tried = places(rough, over)
        kept, dropped = (rough[rough["kept"] == one]["value"] for one in (True, False))
        if len(kept) and len(dropped):
            gaps.append(sign * float(kept.iloc[-1] - dropped.iloc[0]))
        if len(full):
            ranks.append(1 + tried.index(places(full, over)[0]))
            lasts += ranks[-1] == len(full)
        if len(whole):
            first, other = (full if len(full) else whole).iloc[0], whole.iloc[0]
            where = ", ".join(title(first[one]) for one in beside if first[one] != "")
            lost, count = sign * (other["value"] - first["value"]), f"{len(full) + len(whole)}"
            if alone := sum(place not in tried for place in places(whole, over)):
                count += f" ({alone} of them run for this check alone)"
            found = f"the best of all {count} is the one that was found"
            if lost > 0:
                better = [f"{title(one)} {title(other[one])}" for one in over if other[one] != ""]
                found = f"another of the {count} is better by {lost:.3g} ({', '.join(better)})"
            remarks.append(f"{where}: {found}.")
    finite = [gap for gap in gaps if math.isfinite(gap)]
    return {
        "rule": rule,
        "gaps": finite,
        "places": ranks,
        "last_kept": lasts,
        "remarks": remarks,
    }
