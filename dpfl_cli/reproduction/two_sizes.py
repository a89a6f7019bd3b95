"""What changed between the pages of an artifact at two sizes."""

from collections.abc import Mapping
from typing import Any

from dpfl_cli.reproduction.judge import Verdict
from dpfl_cli.reproduction.verdict import HOLDS, interval_text

CHANGED = (
    "Of artifacts that are here at two sizes, the claims with another finding at the larger one; "
    "what differs between the two sizes, whether or not it is the cause (comparisons are the "
    "claim's, the rest is how far all of the artifact is run); and a comparison that changed: its "
    "difference with the 95 % interval at the smaller size, then at the larger. A claim fails "
    "where one of its comparisons does at 5 % over all of them."
)


def added(before: Verdict, claim: Verdict) -> str:
    """The comparisons of a claim that the larger size adds."""
    known = {one["text"] for one in before.comparisons}
    new = sum(one["text"] not in known for one in claim.comparisons)
    all_of = len(claim.comparisons)
    only = f"{new} of {all_of} comparison{'s' if all_of > 1 else ''} at the larger size only"
    return only if new else ""


def why(before: Verdict, claim: Verdict) -> str:
    """A comparison at both sizes: the first that is found otherwise now, one with the claim's new
    finding before others; or the first that does not hold.
    """
    known = {one["text"]: one for one in before.comparisons}
    mine = claim.comparisons
    changed = [one for one in mine if known.get(one["text"], {}).get("finding") != one["finding"]]
    decisive = [one for one in changed if one["finding"] == claim.finding]
    for one in (*decisive, *changed, *(one for one in mine if one["finding"] != HOLDS)):
        earlier = _found(known[one["text"]]) if one["text"] in known else "not compared"
        return f"`{one['text']}`: {earlier}; then {_found(one)}"
    return claim.reason


def _found(one: Mapping[str, Any]) -> str:
    return interval_text(one) or str(one.get("reason", one["finding"]))
