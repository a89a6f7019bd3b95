"""Comparisons of samples, which claims yield: differences seed by seed, and their margins.

A difference is taken on a scale where noise is even (log of a loss or distance, logit of an
accuracy), or in its own units where a margin is given. `verdict` judges them.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partialmethod
from itertools import pairwise, starmap
from typing import Any, Literal, NoReturn

import numpy as np
import pandas as pd

from dpfl_cli.config.errors import ConfigError


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

    def _with(self, sign: str, act: Callable[[Any, Any], Any], given: Sample | float) -> Sample:
        other = _sample(given)
        text = f"({self.text} {sign} {other.text})"
        scale = self.scale if sign in "*/" and self.scale == "log" else "linear"
        measure = f"{self.measure} / {other.measure}" if sign == "/" else self.measure
        return Sample(act(*_paired(self, other)), text, measure, scale, self.exact and other.exact)

    __add__ = partialmethod(_with, "+", operator.add)
    __sub__ = partialmethod(_with, "-", operator.sub)
    __mul__ = partialmethod(_with, "*", operator.mul)
    __truediv__ = partialmethod(_with, "/", operator.truediv)
    __radd__, __rmul__ = __add__, __mul__

    def __lt__(self, other: object) -> NoReturn:
        raise ConfigError(f"{self.text}: seeds differ; yield below(a, b) or above(a, b), not a < b")

    __gt__ = __le__ = __ge__ = __lt__
    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        raise ConfigError(f"{self.text}: seeds differ; yield level(a, b, within=…), not a == b")


def _sample(given: Sample | float) -> Sample:
    """A number as a sample without noise."""
    if isinstance(given, Sample):
        return given
    return Sample(pd.Series([given]), f"{given:g}", "", exact=True)


def _paired(left: Sample, right: Sample) -> tuple[pd.Series, pd.Series]:
    """Both under the seeds that they share; an exact one has its value under every seed."""
    one, two = left.values, right.values
    if left.exact:
        one = pd.Series(one.iloc[0], two.index)
    if right.exact:
        two = pd.Series(two.iloc[0], one.index)
    return one.align(two, join="inner")


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


def above(left: Sample, right: Sample | float, *, by: float = 0.0) -> Comparison:
    """`left` is larger than `right` by more than `by` (in its own units)."""
    return _compared("above", left, right, by, f"{left.text} > {_sample(right).text}")


def below(left: Sample, right: Sample | float, *, by: float = 0.0) -> Comparison:
    """`left` is smaller than `right` by more than `by` (in its own units)."""
    return _compared("above", right, left, by, f"{left.text} < {_sample(right).text}")


def level(left: Sample, right: Sample | float, *, within: float) -> Comparison:
    """They are equal to `within` (in their own units): an equivalence test."""
    if not within > 0:
        raise ConfigError(
            f"level({left.text}, ...): within={within}; equality needs a margin above 0"
        )
    return _compared("level", left, right, within, f"{left.text} = {_sample(right).text}")


def below_share(left: Sample, right: Sample | None = None, *, share: float) -> Comparison:
    """`left` is smaller than this share of `right`, or of the paper's number."""
    return below(left, share * (left.printed if right is None else right))


def falling(*numbers: Sample) -> Comparisons:
    """Each is larger than the next."""
    return starmap(above, pairwise(numbers))


def ratio(
    left: Sample, right: Sample | float | None = None, *, to: float = 1, within: float
) -> Comparison:
    """`left` over `right`, or over the paper's number, is `to`, give or take `within`."""
    return level(left / (left.printed if right is None else right), to, within=within)


def best_by_others(found: Sequence[Sample], text: str, *, highest: bool = False) -> Sample:
    """The lowest of several samples, or the highest, where every seed's choice is made by the mean
    over the other seeds: none judges a choice that it had a part in. In rows, best=OTHERS asks for
    it.
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

    Raises:
      ConfigError: something else, such as the None of a test without a `return`.
    """
    truths = tuple(truths)
    for one in truths:
        if not isinstance(one, bool | np.bool_ | str):
            raise ConfigError(f"{text}: a seed's truth is {one!r}; return True or False, or a text")
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
    if margin:
        text += f" within {margin:g}" if kind == "level" else f" by more than {margin:g}"
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
        return np.where(np.isfinite(values), np.log(share / (1 - share)), values)
    return values
