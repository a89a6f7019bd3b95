"""Verdicts of three values, by intervals over paired seeds.

A claim yields comparisons; each has a margin (0 if not given). A difference is taken seed by seed,
on a scale where noise is even (log of a loss or distance, logit of an accuracy; in its own units
where a margin is given), and its variance is pooled over the artifact's comparisons of the same
measure where a test finds no difference in their spreads (cells of unlike noise); else it is the
comparison's own.

  holds      every comparison's 95 % interval lies beyond its margin. All must, so no correction.
  fails      at least one interval lies beyond the margin on the other side, at 5 % over all
             comparisons of the claim (Holm's first step: the smallest p-value times their number).
  undecided  else, with the number of seeds that would decide it; always with fewer than 3 seeds.

Equality (`level`) is an equivalence test: the whole interval within the margin. Shapes (argmax,
monotone, fits) are judged seed by seed (`each_seed`): all of at least five hold, or none does. What
has no noise (accounting, formulas, counts) is `exact`. A tie is never a win.
"""

import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from scipy.special import chdtrc, stdtr, stdtrit

from dpfl_cli.reproduction.comparison import Comparison

LEVEL = 0.95
TAIL = (1 - LEVEL) / 2  # of one side
FEWEST, FEWEST_OF_SHAPES = 3, 5  # seeds
EQUAL_VARIANCES = 0.25  # level of the test of equal variances (Bancroft 1964: pool if not rejected)
MANY = 1000  # seeds beyond which nobody will decide it
Finding = Literal["holds", "fails", "undecided"]
HOLDS: Finding = "holds"
FAILS: Finding = "fails"
UNDECIDED: Finding = "undecided"


# of one seed's difference, with its freedom, by group and number of seeds
Variances = dict[tuple[object, ...], tuple[float, int]]


@dataclass(frozen=True)
class Judged:
    """A comparison with its finding: mean difference, its 95 % interval, and why."""

    comparison: Comparison
    finding: Finding
    mean: float = math.nan
    low: float = math.nan
    high: float = math.nan
    seeds: int = 0
    reason: str = ""
    against: float = 1.0  # p-value of what speaks against it
    freedom: int = 0  # degrees of freedom of the interval: more than seeds - 1 where pooled
    variance: float = math.nan  # of one seed's difference; nan without an interval

    @property
    def distance(self) -> float:
        """From its margin, in halves of its interval: it holds above 1, and taken alone fails below
        -1. Without an interval that has a width it is what the finding says.
        """
        reach = (self.high - self.low) / 2
        if not reach > 0:
            return {HOLDS: math.inf, FAILS: -math.inf, UNDECIDED: 0.0}[self.finding]
        return _gap(self.comparison, self.mean) / reach

    def to_json(self) -> dict[str, Any]:
        of = self.comparison
        shown = {"text": of.text, "kind": of.kind, "finding": self.finding, "seeds": self.seeds}
        if of.kind in ("above", "level"):
            numbers = {"difference": self.mean, "low": self.low, "high": self.high}
            shown |= {name: _plain(value) for name, value in numbers.items()}
            shown |= {"margin": of.margin, "scale": of.scale, "freedom": self.freedom}
        return shown | ({"reason": self.reason} if self.reason else {})


def interval_text(shown: Mapping[str, Any], seeds: bool = True) -> str:
    """The difference of a comparison (its JSON) with the 95 % interval, and over how many seeds;
    "" where it has none.
    """
    names = ("difference", "low", "high")  # what is not finite is a word there
    middle, low, high = (float(shown.get(name, math.nan)) for name in names)
    if math.isnan(low):
        return ""
    scale = "" if shown["scale"] == "linear" else f" on a {shown['scale']} scale"
    over = f", {shown['seeds']} seeds" if seeds else ""
    return f"{middle:.3g} [{low:.3g}, {high:.3g}]{scale}{over}"


def _plain(value: float) -> float | str:
    return float(f"{value:.6g}") if math.isfinite(value) else str(value)


def pooled(comparisons: Iterable[Comparison]) -> Variances:
    """Group and number of seeds -> variance of one seed's difference, and its degrees of freedom;
    only of those of whose spreads Bartlett's test at `EQUAL_VARIANCES` finds no difference.
    Comparisons of the same numbers with other margins, on either side, count once.
    """
    groups: dict[tuple[object, ...], dict[object, Comparison]] = defaultdict(dict)
    for one in comparisons:
        if len(one.differences) > 1 and np.all(np.isfinite(one.differences)):
            groups[_pool(one)].setdefault(_spread(one), one)
    found = {}
    for group, distinct in groups.items():
        members = [*distinct.values()]
        own = np.array([_own(one)[0] for one in members])
        variance = float(own.mean())
        if variance == 0 or _alike(own, _own(members[0])[1]) > EQUAL_VARIANCES:
            found[group] = variance, math.floor(_freedom(members) + 1e-9)
    return found


def _alike(variances: np.ndarray, freedom: int) -> float:
    """The p-value of Bartlett's test (1937) of k variances [k] of equal degrees of freedom, not all
    of them zero.
    """
    k = len(variances)
    if k == 1:
        return 1.0
    with np.errstate(divide="ignore"):  # one without any spread is like none that has some
        apart = np.log(variances.mean()) - np.log(variances).mean()
    return float(chdtrc(k - 1, k * freedom * apart / (1 + (k + 1) / (3 * k * freedom))))


def _freedom(members: Sequence[Comparison]) -> float:
    """Degrees of freedom of the mean of k variances over n seeds: k^2 (n - 1) / sum_ij rho_ij^2
    (Satterthwaite 1946), for cells that share seeds, data or a rival are correlated. A squared
    correlation of n seeds is too large by chance, 1 / (n - 1) on average where there is none, of
    which an estimate without bias is made; their sum is taken to be at least that of none.
    """
    k, n = len(members), len(members[0].differences)
    with np.errstate(invalid="ignore"):  # what has no spread is correlated with nothing
        correlations = np.nan_to_num(np.corrcoef([one.differences for one in members]))
    squares = float((correlations**2).sum()) - k
    shared = ((n - 1) * squares - k * (k - 1)) / (n - 2) if n > 2 else k * (k - 1)
    return k * k * (n - 1) / (k + max(shared, 0.0))


def _pool(one: Comparison) -> tuple[object, ...]:
    return *one.group, len(one.differences)


def _spread(one: Comparison) -> object:
    """Equal for comparisons whose differences are the same but for a constant and their sign, to
    rounding.
    """
    apart = one.differences - one.differences.mean()
    largest = apart[np.abs(apart).argmax()]
    if abs(largest) <= 1e-9 * np.abs(one.differences).max(initial=0):
        return id(one)  # no spread at all, of which nothing tells whether it is the same cell's
    return f"{abs(largest):.6g}", *np.round(apart / largest, 6).tolist()


def _own(one: Comparison) -> tuple[float, int]:
    """A comparison's own variance of one seed's difference, and its degrees of freedom."""
    return float(np.var(one.differences, ddof=1)), len(one.differences) - 1


def judged(comparisons: Sequence[Comparison], variances: Variances) -> tuple[Finding, list[Judged]]:
    """The finding on a claim, and on each of its comparisons."""
    found = [_judged(one, variances) for one in comparisons]
    if all(one.finding == HOLDS for one in found):
        return HOLDS, found
    if min(one.against for one in found) < TAIL / len(found):
        return FAILS, found
    return UNDECIDED, found


def decisive(finding: str, found: Sequence[Judged]) -> Judged:
    """The comparison that a claim's finding hangs on: of a failure the one with the smallest
    p-value, else the one that comes the closest to failing.
    """
    if finding == FAILS:
        return min(found, key=lambda one: (one.against, one.distance))
    return min(found, key=lambda one: one.distance)


def true_in_mean(one: Comparison) -> bool | None:
    """Whether a comparison is true of the means, whatever the noise; None where nothing is
    tested.
    """
    if one.truths:
        return None if any(isinstance(why, str) for why in one.truths) else all(one.truths)
    mean = float(np.mean(one.differences)) if len(one.differences) else math.nan
    return None if math.isnan(mean) else _gap(one, mean) > 0


def _gap(one: Comparison, mean: float) -> float:
    """How far on the right side of its margin a mean difference lies."""
    return mean - one.margin if one.kind == "above" else one.margin - abs(mean)


def _judged(one: Comparison, variances: Variances) -> Judged:
    if one.kind == "exact":
        true = one.truths[0]
        return Judged(one, HOLDS if true else FAILS, against=1.0 if true else 0.0)
    if one.kind == "each":
        n, untested = len(one.truths), [why for why in one.truths if isinstance(why, str)]
        if untested:
            reason = f"nothing is tested in {len(untested)} of {n} seeds: {untested[0]}"
            return Judged(one, UNDECIDED, seeds=n, reason=reason)
        few = f"; {FEWEST_OF_SHAPES} are needed" if n < FEWEST_OF_SHAPES else ""
        count = one.truths.count(True)
        return _seed_by_seed(one, one.truths, f"true in {count} of {n} seeds{few}")
    gaps, n = one.differences, len(one.differences)
    lost = int(np.sum(~np.isfinite(gaps)))
    if lost:
        true = (gaps > one.margin if one.kind == "above" else np.abs(gaps) < one.margin).tolist()
        reason = f"{lost} of {n} seeds diverged; true in {sum(true)}"
        return _seed_by_seed(one, true, reason, clear=not np.any(np.isnan(gaps)))
    mean = float(np.mean(gaps)) if n else math.nan
    if n < FEWEST:
        return Judged(one, UNDECIDED, mean, seeds=n, reason=f"{n} of at least {FEWEST} seeds")
    variance, freedom = variances.get(_pool(one)) or _own(one)
    error = math.sqrt(variance / n)
    reach = _quantile(freedom) * error
    low, high = mean - reach, mean + reach
    gap = _gap(one, mean)
    inside = low > one.margin if one.kind == "above" else -one.margin < low and high < one.margin
    against = float(gap >= 0) if error == 0 else float(stdtr(freedom, gap / error))
    finding = HOLDS if inside else FAILS if against < TAIL else UNDECIDED
    judged = Judged(one, finding, mean, low, high, n, "", against, freedom, variance)
    return replace(judged, reason=_said(_needed(judged))) if finding == UNDECIDED else judged


def _seed_by_seed(
    one: Comparison, truths: Sequence[bool | str], reason: str, clear: bool = True
) -> Judged:
    """Without an interval: decided only where all of at least five seeds agree."""
    enough = clear and len(truths) >= FEWEST_OF_SHAPES
    finding = HOLDS if enough and all(truths) else UNDECIDED
    finding = FAILS if enough and not any(truths) else finding
    against = float(finding != FAILS)
    return Judged(one, finding, seeds=len(truths), reason=reason, against=against)


def _quantile(freedom: float, tail: float = TAIL) -> float:
    """Of Student's t: half the width of the interval, in standard errors."""
    return float(stdtrit(freedom, 1 - tail))


def why_undecided(found: Sequence[Judged]) -> str:
    """What keeps a claim undecided, and how many seeds would decide it, if means and spreads stay
    what they are: all of its comparisons have to hold, or the first of them to fail (Holm), where
    one lies on that side.
    """
    of_all = len(found)
    failing = sum(one.finding == FAILS for one in found)
    alone = f"{failing} of {of_all} fails taken alone, not at 5 % over all {of_all} (Holm)"
    open_ = [one for one in found if one.finding == UNDECIDED]
    words = next((one.reason for one in open_ if math.isnan(one.variance) and one.reason), "")
    if not words:
        known = [one for one in found if not math.isnan(one.variance)]
        against = [one for one in known if _gap(one.comparison, one.mean) < 0]
        first = min((_needed(one, TAIL / of_all) for one in against), default=0.0)
        words = _said(first if against else max(map(_needed, open_)))
    return "; ".join([alone] * (failing > 0) + [words] * bool(words))


def _needed(one: Judged, tail: float = TAIL) -> float:
    """How many seeds would decide a comparison that has an interval; inf for more than `MANY`, 0
    for a tie, which none would.
    """
    gap, have = abs(_gap(one.comparison, one.mean)), one.seeds
    if gap == 0 and one.variance == 0:
        return 0

    def decided(n: int) -> bool:
        reach = _quantile(one.freedom * (n - 1) / (have - 1), tail)
        return reach * math.sqrt(one.variance / n) < gap

    counts = range(have, MANY + 1)
    fewest = bisect_left(counts, True, key=decided)  # the interval shrinks with every seed
    return math.inf if fewest == len(counts) else counts[fewest]


def _said(seeds: float) -> str:
    if seeds == 0:
        return "a tie"
    return f"{f'not even {MANY}' if math.isinf(seeds) else f'{seeds:.0f}'} seeds would decide it"
