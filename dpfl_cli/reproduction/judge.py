"""The verdicts of an artifact: its claims on its rows, and its numbers beside the paper's."""

import json
import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd
from pydantic import ConfigDict, TypeAdapter

from dpfl_cli.config.errors import ConfigError
from dpfl_cli.reproduction.artifact import Artifact
from dpfl_cli.reproduction.claim import Claim
from dpfl_cli.reproduction.comparison import Comparison
from dpfl_cli.reproduction.grid import Cell, labelled, runs_of
from dpfl_cli.reproduction.rows import SOURCES, LabelValues, Missing, Rows, matching, places
from dpfl_cli.reproduction.verdict import (
    FAILS,
    HOLDS,
    UNDECIDED,
    Judged,
    Variances,
    decisive,
    interval_text,
    judged,
    pooled,
    true_in_mean,
    why_undecided,
)
from dpfl_cli.simulation.store import json_text

NOT_RUN = "not run at this size"
REDUCED = "at reduced size"
STANDINS = "on stand-ins"  # every comparison; or
PARTLY = "on stand-ins in part"
PRINTED = "on the numbers that the paper prints, spread aside"
IN_SPREAD, NEAR = "cells within the paper's spread", "within 5 % of its number"
OF_CLAIM = ("id", "text", "source", "ours", "invariant", "prior", "note")
GROUPS = {  # of claims, as they are counted
    "paper": "The papers' claims, at their sizes",
    "paper_standin": "The papers' claims, at their sizes on stand-ins, all or in part",
    "reduced": "The papers' claims, at reduced size",
    "reduced_standin": "The papers' claims, at reduced size on stand-ins, all or in part",
    "ours": "Our own claims",
    "invariant": "Invariants",
}
CHANGED = (
    "Of artifacts that are here at two sizes, the claims with another finding at the larger one; "
    "what differs between the two sizes, whether or not it is the cause (comparisons are the "
    "claim's, the rest is how far all of the artifact is run); and a comparison that changed: its "
    "difference with the 95 % interval at the smaller size, then at the larger. A claim fails "
    "where one of its comparisons does at 5 % over all of them."
)
RECORDED = Path(__file__).with_name("recorded.json")


@dataclass(frozen=True)
class Verdict:
    """What was found of a claim, as claims.json has it.

    Attributes:
      finding: holds, fails or undecided; or that its cells are not run at this size.
      state: the finding, or "at reduced size" where the runs are smaller than the paper's.
      reason: what keeps it undecided.
      comparisons: as `Judged` writes them.
      readings: what is found under other choices, in words -> `finding`, and the `comparison` that
        decides it, where there is one.
      data: whether what it compares are runs on data that stand in for the paper's: STANDINS,
        PARTLY, or "".
      recorded: what was found when the artifact was last published at this scale: a lock against
        regressions, no more than that, and not in claims.json; "" where nothing was.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    id: str
    text: str
    source: str
    ours: bool
    invariant: bool
    prior: str
    finding: str
    state: str
    reason: str
    note: str
    comparisons: Sequence[Mapping[str, Any]]
    readings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    data: str = ""
    recorded: str = ""

    @property
    def said(self) -> str:
        """For readers."""
        said = self.finding if self.state == self.finding else f"{self.state}: {self.finding}"
        said += f" {self.data}" if self.data else ""
        return f"{said} ({self.reason})" if self.reason else said

    @property
    def group(self) -> str:
        """Of claims that are counted together; a definition's consequences stand apart."""
        if self.invariant:
            return "invariant"
        if self.ours:
            return "ours"
        return ("reduced" if self.state == REDUCED else "paper") + "_standin" * bool(self.data)

    @property
    def moved(self) -> bool:
        """Whether something else was recorded."""
        return self.recorded not in ("", self.finding)

    def added_to(self, smaller: "Verdict") -> str:
        """The comparisons that it has and the verdict of a smaller size has not."""
        known = {one["text"] for one in smaller.comparisons}
        new = sum(one["text"] not in known for one in self.comparisons)
        all_of = len(self.comparisons)
        only = f"{new} of {all_of} comparison{'s' if all_of > 1 else ''} at the larger size only"
        return only if new else ""

    def why_not(self, smaller: "Verdict") -> str:
        """Why it is not what was found at a smaller size: the first comparison at both that is
        found otherwise now, one with the new finding before others; or the first that does not
        hold.
        """
        known = {one["text"]: one for one in smaller.comparisons}
        mine = self.comparisons
        changed = [
            one for one in mine if known.get(one["text"], {}).get("finding") != one["finding"]
        ]
        decisive = [one for one in changed if one["finding"] == self.finding]
        for one in (*decisive, *changed, *(one for one in mine if one["finding"] != HOLDS)):
            earlier = _said_of(known[one["text"]]) if one["text"] in known else "not compared"
            return f"`{one['text']}`: {earlier}; then {_said_of(one)}"
        return self.reason


def _said_of(comparison: Mapping[str, Any]) -> str:
    return interval_text(comparison) or str(comparison.get("reason", comparison["finding"]))


VERDICT = TypeAdapter(Verdict)  # to and from claims.json


def judge(artifact: Artifact, rows: Rows, data: Collection[str] = ()) -> list[Verdict]:
    """The verdict on every claim; variances are pooled over all of them.

    Args:
      data: the data of its runs, as manifest.json has them: "mnist (real)".
    """

    def compared(
        claim: Claim, under: str = "", of: Rows | None = None
    ) -> tuple[list[Comparison], str]:
        """The comparisons, and why there are none if so."""
        try:
            made: Any = claim.reading(under)(of or rows)  # of a user's: whatever it returns
            if made is None or isinstance(made, Comparison):  # it returns, maybe in a loop
                raise ConfigError("does not yield its comparisons; yield above(…) or exact(…)")
            found = list(made)
            if others := [one for one in found if not isinstance(one, Comparison)]:
                raise ConfigError(f"{others[0]!r} is no comparison; yield above(…) or exact(…)")
            return found, f"{NOT_RUN}: it has nothing to compare"
        except Missing as missing:
            return [], str(missing)
        except Exception as error:  # a claim is code of a paper's module, or of a user's
            kind = "" if isinstance(error, ConfigError) else f"{type(error).__name__}: "
            which = f"{claim.id}, {under}" if under else claim.id
            raise ConfigError(f"artifact {artifact.name}: claim {which}: {kind}{error}") from error

    def of_printed(claim: Claim) -> dict[str, dict[str, str]]:
        """A reading of what the paper claims, where its own numbers are all that is asked for."""
        if claim.ours or claim.invariant:
            return {}
        try:
            found = [true_in_mean(one) for one in compared(claim, of=rows.printed)[0]]
        except ConfigError:  # a claim may take for granted what is not printed
            return {}
        if not found or None in found:
            return {}
        share = f" in {found.count(False)} of {len(found)}" if len(found) > 1 else ""
        return {PRINTED: {"finding": HOLDS if all(found) else f"{FAILS}{share}"}}

    made, rows = [], sourced(artifact, rows, data)
    for claim in artifact.claims:
        rows.origins.clear()
        comparisons = compared(claim)
        origins = rows.origins or set(" ".join(rows.frame[SOURCES]).split())
        standing_in = STANDINS if len(origins) == 1 else PARTLY
        made.append((claim, comparisons, standing_in if "standin" in origins else ""))
    claimed = [one for _, (many, _), _ in made for one in many]
    variances = pooled(claimed)
    before = recorded().get(artifact.name, {}).get(artifact.folder, {})
    found = []
    for claim, comparisons, origin in made:
        finding, each, reason = _finding(*comparisons, variances)
        verdict = Verdict(
            **{name: getattr(claim, name) for name in OF_CLAIM},
            finding=finding,
            state=finding if artifact.full else REDUCED,
            reason=reason,
            comparisons=[one.to_json() for one in each],
            readings={under: _reading(*compared(claim, under), claimed) for under in claim.readings}
            | of_printed(claim),
            data=origin,
            recorded=before.get(claim.id, ""),
        )
        found.append(verdict)
    return found


def sourced(artifact: Artifact, rows: Rows, data: Collection[str]) -> Rows:
    """The rows with where the data come from of all runs that have a row's labels."""
    sources = dict(one.removesuffix(")").rsplit(" (", 1) for one in data)
    every = " ".join(sorted(set(sources.values())))
    frame = rows.frame.assign(**{SOURCES: every})
    if " " in every and "standin" in every:
        runs = [*runs_of(artifact)]
        names = [Cell(run, 0).config()["dataset"]["name"] for run in runs]
        known = labelled(runs).assign(**{SOURCES: [sources.get(name, every) for name in names]})

        @cache
        def of(place: LabelValues) -> str:
            given = {name: one for name, one in zip(rows.labels, place, strict=True) if one != ""}
            return " ".join(set(matching(known, given)[SOURCES])) or every

        frame[SOURCES] = [of(place) for place in places(frame, rows.labels)]
    return replace(rows, frame=frame)


def _finding(
    many: Sequence[Comparison], why_none: str, variances: Variances
) -> tuple[str, Sequence[Judged], str]:
    """What is found, of each comparison too, and what keeps it undecided."""
    if not many:
        return NOT_RUN, (), why_none
    finding, each = judged(many, variances)
    return finding, each, why_undecided(each) if finding == UNDECIDED else ""


def _reading(
    many: Sequence[Comparison], why_none: str, claimed: Sequence[Comparison]
) -> dict[str, Any]:
    """What is found under another choice, as `Verdict.readings` has it; variances are pooled over
    what is claimed and what this choice compares.
    """
    finding, each, _ = _finding(many, why_none, pooled([*claimed, *many]))
    of = {"comparison": decisive(finding, each).to_json()} if each else {}
    return {"finding": finding, **of}


@cache
def recorded() -> dict[str, Any]:
    """artifact -> scale -> claim -> finding, as last published."""
    return dict(json.loads(RECORDED.read_text())) if RECORDED.is_file() else {}


def record(artifact: Artifact, verdicts: Sequence[Verdict]) -> None:
    """Keeps the findings of a published artifact."""
    known = recorded()
    known.setdefault(artifact.name, {})[artifact.scale] = {one.id: one.finding for one in verdicts}
    RECORDED.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n")


def claims_json(artifact: Artifact, verdicts: Sequence[Verdict], horizon: str, rows: Rows) -> str:
    """claims.json: verdicts, and how the numbers compare with the paper's."""
    claims = [
        VERDICT.dump_python(one, exclude={"recorded"}, exclude_defaults=True) for one in verdicts
    ]
    return json_text(
        {
            "artifact": artifact.name,
            "scale": artifact.scale,
            "tested_to": horizon,
            "numbers": numbers_line(artifact, rows.means),
            "claims": claims,
        }
    )


def count_verdicts(verdicts: Sequence[Verdict]) -> str:
    """The verdicts in one line, by group."""
    parts = []
    for group, title in GROUPS.items():
        counts = Counter(one.finding for one in verdicts if one.group == group)
        words = ", ".join(f"{count} {name}" for name, count in counts.most_common())
        parts += [f"{title}: {words}"] if counts else []
    failing = [one.id for one in verdicts if one.finding == "fails"]
    parts += [f"fails: {', '.join(failing)}"] if failing else []
    moved = [one.id for one in verdicts if one.moved]
    parts += [f"not as recorded: {', '.join(moved)}"] if moved else []
    return "; ".join(parts)


# --- numbers beside the paper's ---------------------------------------------------------------


def beside(artifact: Artifact, rows: pd.DataFrame) -> pd.DataFrame:
    """The averaged rows that have a paper's number (infinite where a run diverged), but for times,
    which are another machine's:
    their `ratio` to it where both are above 0, the `difference`, and the difference in `errors`
    (standard errors, ours and where the paper prints a spread theirs, which is the spread itself
    where the number of its runs is not known).
    """
    times = [name for name, one in artifact.measures.items() if one.unit == "s"]
    known = rows[rows["paper"].notna() & rows["value"].notna()]
    known = known[~known["measure"].isin(times)]
    gap = known["value"] - known["paper"]
    ours = (known["std"].astype(float) ** 2 / known["n"].clip(lower=1)).fillna(0)
    error = (ours + known["paper_std"].fillna(0) ** 2 / max(artifact.paper_runs, 1)) ** 0.5
    positive = known["value"].between(0, math.inf, "neither") & (known["paper"] > 0)
    return known.assign(
        difference=gap,
        ratio=(known["value"] / known["paper"]).where(positive),
        errors=gap / error.where(error > 0),
    )


def numbers_line(artifact: Artifact, rows: pd.DataFrame) -> str:
    """In how many cells we are within the paper's printed spread, and how far apart in the
    median.
    """
    found = beside(artifact, rows)
    if found.empty:
        return ""
    spread = found[found["paper_std"].notna()]
    within = (spread["difference"].abs() <= spread["paper_std"]).sum()
    near = (found["difference"].abs() <= 0.05 * found["paper"].abs()).sum()
    parts = [f"{within} of {len(spread)} {IN_SPREAD}"] if len(spread) else []
    parts.append(f"{near} of {len(found)} {NEAR}")
    factor = math.exp(found["ratio"].dropna().map(math.log).abs().median())
    if math.isfinite(factor):
        apart = f"{100 * (factor - 1):.1f} %" if factor < 2 else f"a factor of {factor:.2g}"
        parts.append(f"in the median {apart} apart")
    return "; ".join(parts)
