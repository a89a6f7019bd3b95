"""Verdicts of three values, by intervals over paired seeds.

A claim yields comparisons; each has a margin (0 if not given). A difference is taken seed by seed,
on a scale where noise is even (log of a loss or distance, logit of an accuracy; in its own units
where a margin is given), and its variance is pooled over the artifact's comparisons of the same
measure where a test does not tell their spreads apart (cells of unlike noise); else it is the
comparison's own.

  holds      every comparison's 95 % interval lies beyond its margin. All must, so no correction.
  fails      at least one interval lies beyond the margin on the other side, at 5 % over all
             comparisons of the claim (Holm's first step: the smallest p-value times their number).
  undecided  else, with the number of seeds that would decide it; always with fewer than 3 seeds.

Equality (`level`) is an equivalence test: the whole interval within the margin. Shapes (argmax,
monotone, fits) are judged seed by seed (`each_seed`): all of at least five hold, or none does. What
has no noise (accounting, formulas, counts) is `exact`. A tie is never a win.
"""

from __future__ import annotations

import math
import operator
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import pandas as pd
from scipy.special import stdtr, stdtrit

from dpfl_cli.config.errors import ConfigError

LEVEL = 0.95
TAIL = (1 - LEVEL) / 2  # of one side
FEWEST, FEWEST_OF_SHAPES = 3, 5  # seeds
EQUAL_VARIANCES = 0.25  # level of the test of equal variances (Bancroft 1964: pool if not rejected)
MANY = 1000  # seeds beyond which nobody will decide it
Finding = Literal["holds", "fails", "undecided"]
HOLDS: Finding = "holds"
FAILS: Finding = "fails"
UNDECIDED: Finding = "undecided"


@dataclass(frozen=True)
class Sample:
    """A quantity, seed by seed; with numbers and other samples it is calculated with as a number
    is.

    Attributes:
      values: seed -> value; infinite where a run diverged.
      text: what it is.
      measure: whose variances are comparable.
      scale: where its noise is even: "log", "logit" (of percent), "linear".
      exact: it has no noise, and one value (under any seed).
      paper, paper_std: the paper's number and its printed spread, where there is one.
    """

    values: pd.Series
    text: str
    measure: str
    scale: str = "linear"
    exact: bool = False
    paper: float | None = None
    paper_std: float | None = None

    @property
    def mean(self) -> float:
        return float(self.values.mean())

    @property
    def printed(self) -> float:
        """The paper's number; a ConfigError where it gives none."""
        if self.paper is None:
            raise ConfigError(f"{self.text}: the paper gives no number there")
        return self.paper

    def _with(self, given: Sample | float, sign: str, act: Callable[[Any, Any], Any]) -> Sample:
        other = _sample(given)
        text = f"({self.text} {sign} {other.text})"
        scale = self.scale if sign in "*/" and self.scale == "log" else "linear"
        exact = self.exact and other.exact
        return Sample(act(*_paired(self, other)), text, self.measure, scale, exact)

    def __add__(self, other: Sample | float) -> Sample:
        return self._with(other, "+", operator.add)

    def __sub__(self, other: Sample | float) -> Sample:
        return self._with(other, "-", operator.sub)

    def __mul__(self, other: Sample | float) -> Sample:
        return self._with(other, "*", operator.mul)

    def __truediv__(self, other: Sample | float) -> Sample:
        return self._with(other, "/", operator.truediv)

    __radd__, __rmul__ = __add__, __mul__


def _sample(given: Sample | float) -> Sample:
    """A number as a sample without noise."""
    if isinstance(given, Sample):
        return given
    return Sample(pd.Series([given]), f"{given:g}", "", exact=True)


def _paired(left: Sample, right: Sample) -> tuple[pd.Series, pd.Series]:
    """Both under the seeds that they share; an exact one has its value under every seed."""
    seeds = left.values.index.intersection(right.values.index)
    if left.exact or right.exact:
        seeds = (right if left.exact else left).values.index
    one, two = (
        pd.Series(own.values.iloc[0], seeds) if own.exact else own.values[seeds]
        for own in (left, right)
    )
    return one, two


@dataclass(frozen=True)
class Comparison:
    """A statement about one difference, or one that is true or false.

    Attributes:
      kind: "above": difference > margin; "level": |difference| < margin; "each": true seed by seed;
        "exact": true or false.
      differences: one a seed; empty for "each" and "exact".
      truths: one a seed for "each", one for "exact"; of a seed that tests nothing, why.
      group: whose variances are pooled where they are comparable.
    """

    text: str
    kind: Literal["above", "level", "each", "exact"]
    differences: np.ndarray
    margin: float = 0.0
    scale: str = "linear"
    group: tuple[str, ...] = ()
    truths: tuple[bool | str, ...] = ()


Comparisons = Iterator[Comparison]
Variances = dict[tuple[str, ...], tuple[float, int]]  # of one seed's difference, with its freedom


def above(left: Sample, right: Sample | float, *, by: float = 0.0) -> Comparison:
    """`left` is larger than `right` by more than `by` (in its own units)."""
    text = f"{left.text} > {_sample(right).text}" + (f" by more than {by:g}" if by else "")
    return _compared("above", left, right, by, text)


def below(left: Sample, right: Sample | float, *, by: float = 0.0) -> Comparison:
    """`left` is smaller than `right` by more than `by` (in its own units)."""
    text = f"{left.text} < {_sample(right).text}" + (f" by more than {by:g}" if by else "")
    return _compared("above", right, left, by, text)


def level(left: Sample, right: Sample | float, *, within: float) -> Comparison:
    """They are equal to `within` (in their own units): an equivalence test."""
    if not within > 0:
        raise ConfigError(
            f"level({left.text}, ...): within={within}; equality needs a margin above 0"
        )
    return _compared(
        "level", left, right, within, f"{left.text} = {_sample(right).text} within {within:g}"
    )


def below_share(left: Sample, right: Sample | None = None, *, share: float) -> Comparison:
    """`left` is smaller than this share of `right`, or of the paper's number."""
    return below(left, share * (left.printed if right is None else right))


def falling(*numbers: Sample) -> Comparisons:
    """Each is larger than the next."""
    return (above(one, other) for one, other in pairwise(numbers))


def ratio(
    left: Sample, right: Sample | float | None = None, *, to: float = 1, within: float
) -> Comparison:
    """`left` over `right`, or over the paper's number, is `to`, give or take `within`."""
    return level(left / (left.printed if right is None else right), to, within=within)


def best_by_others(found: Sequence[Sample], text: str, *, highest: bool = False) -> Sample:
    """The lowest of several samples, or the highest, where every seed's choice is made by the mean
    over the other seeds: none judges a choice that it had a part in.
    """
    table = pd.concat([one.values for one in found], axis=1, keys=range(len(found)), join="inner")
    values = {}
    for seed in table.index:
        means = (table.drop(index=seed) if len(table) > 1 else table).mean().to_numpy()
        choice = np.argmax(means) if highest else np.argmin(means)
        values[seed] = found[int(choice)].values[seed]
    return replace(found[0], values=pd.Series(values), text=text, paper=None, paper_std=None)


def near_paper(left: Sample, within: float | None = None) -> Comparison:
    """It is the paper's number, within the paper's printed spread, or 2 if it prints none."""
    given = left.paper_std or 2.0 if within is None else within
    return level(left, left.printed, within=given)


def in_factor(left: Sample, factor: float) -> Comparisons:
    """It is less than a factor away from the paper's number, on either side."""
    yield below(left, factor * left.printed)
    yield above(left, left.printed / factor)


def exact(truth: bool, text: str) -> Comparison:
    """A statement without noise."""
    return Comparison(text, "exact", np.empty(0), truths=(bool(truth),))


def each_seed(truths: Iterable[bool | str], text: str) -> Comparison:
    """A statement of shape, true or false of the rows of every seed:
    `each_seed((one.value("loss") < 1 for one in rows.by_seed()), "loss < 1")`. Where a seed tests
    nothing, a text that says why takes the place of the truth, and it stays undecided.
    """
    found = tuple(one if isinstance(one, str) else bool(one) for one in truths)
    return Comparison(text, "each", np.empty(0), truths=found)


def _compared(
    kind: Literal["above", "level"],
    high: Sample | float,
    low: Sample | float,
    margin: float,
    text: str,
) -> Comparison:
    one, two = _sample(high), _sample(low)
    known = one if isinstance(high, Sample) else two
    scale = known.scale if kind == "above" and margin == 0 else "linear"
    first, second = (values.to_numpy(float) for values in _paired(one, two))
    if scale == "log" and not (np.all(first > 0) and np.all(second > 0)):
        scale = "linear"
    with np.errstate(invalid="ignore"):
        gaps = _on(scale, first) - _on(scale, second)
    if one.exact and two.exact:
        gap = float(gaps[0])
        return exact(gap > margin if kind == "above" else abs(gap) < margin, text)
    form = "pair" if isinstance(high, Sample) and isinstance(low, Sample) else "constant"
    return Comparison(text, kind, gaps, margin, scale, (known.measure, scale, form))


def _on(scale: str, values: np.ndarray) -> np.ndarray:
    if scale == "log":
        return np.log(values)
    if scale == "logit":  # of percent; an accuracy of 0 or 100 % is one of few test records
        share = np.clip(values / 100, 1e-4, 1 - 1e-4)
        return np.log(share / (1 - share))
    return values


# --- judging ----------------------------------------------------------------------------------


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
    """Group -> variance of one seed's difference, and its degrees of freedom; only of groups whose
    spreads are not told apart (Bartlett's test at `EQUAL_VARIANCES`). Comparisons of the same
    numbers with other margins, on either side, count once.
    """
    from scipy.stats import bartlett  # importing it takes a third of a second

    groups: dict[tuple[str, ...], dict[object, Comparison]] = defaultdict(dict)
    for one in comparisons:
        if len(one.differences) > 1 and np.all(np.isfinite(one.differences)):
            groups[one.group].setdefault(_spread(one), one)
    found = {}
    for group, distinct in groups.items():
        members = [*distinct.values()]
        variances, freedoms = np.array([_own(one) for one in members]).T
        total = int(freedoms.sum())
        variance = float(variances @ freedoms) / total
        with np.errstate(divide="ignore"):  # one without any spread is like none that has some
            alike = (
                len(members) == 1
                or variance == 0
                or bartlett(*(one.differences for one in members)).pvalue > EQUAL_VARIANCES
            )
        if alike:
            found[group] = variance, total
    return found


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
    variance, freedom = variances.get(one.group) or _own(one)
    error = math.sqrt(variance / n)
    reach = _quantile(freedom) * error
    low, high = mean - reach, mean + reach
    gap = _gap(one, mean)
    inside = low > one.margin if one.kind == "above" else -one.margin < low and high < one.margin
    against = float(gap >= 0) if error == 0 else float(stdtr(freedom, gap / error))
    finding = HOLDS if inside else FAILS if against < TAIL else UNDECIDED
    reason = _needed(abs(gap), variance, n) if finding == UNDECIDED else ""
    return Judged(one, finding, mean, low, high, n, reason, against, freedom)


def _seed_by_seed(
    one: Comparison, truths: Sequence[bool | str], reason: str, clear: bool = True
) -> Judged:
    """Without an interval: decided only where all of at least five seeds agree."""
    enough = clear and len(truths) >= FEWEST_OF_SHAPES
    finding = HOLDS if enough and all(truths) else UNDECIDED
    finding = FAILS if enough and not any(truths) else finding
    against = float(finding != FAILS)
    return Judged(one, finding, seeds=len(truths), reason=reason, against=against)


def _quantile(freedom: int) -> float:
    """Of Student's t: half the width of the interval, in standard errors."""
    return float(stdtrit(freedom, 1 - TAIL))


def _needed(gap: float, variance: float, have: int) -> str:
    """How many seeds would decide it, if mean and spread stay what they are."""
    if gap == 0 and variance == 0:
        return "a tie"
    for n in range(have + 1, MANY + 1):
        if _quantile(n - 1) * math.sqrt(variance / n) < gap:
            return f"{n} seeds would decide it"
    return f"not even {MANY} seeds would decide it"
