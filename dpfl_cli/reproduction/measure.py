"""What is measured: numbers of runs, of plans, and numbers from other rows."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, fields
from functools import cache
from typing import Any, Literal, get_origin, get_type_hints

from pydantic import ConfigDict, NonNegativeInt, PositiveInt, TypeAdapter, ValidationError

from dpfl_cli.config.errors import ConfigError, alternatives

Scalar = bool | int | float | str | None
Facts = Callable[[str], Any]  # looks up what is known of a run before it starts
Where = Mapping[str, Any]  # label -> its value, or a list of values, or between(low, high)
Values = Mapping[str, Any]  # config key -> its value
At = Literal["first", "last", "final", "min", "max", "series"]


DASH = "–"
ANY_TYPE = ConfigDict(arbitrary_types_allowed=True)
LONG = 80  # characters: of a longer value errors show the type
LARGE = 1e6  # from here on a number with decimals has four significant digits and an exponent


class Checked:
    """A declaration that refuses values of types that its fields do not take; one, where several
    are asked for, becomes a tuple of it: rows="method".

    Raises:
      ConfigError: names the field.
    """

    def __post_init__(self) -> None:
        own: type = type(self)
        for name, (several, kind) in _fields(own).items():
            value = _without_numpy(getattr(self, name))
            if several and (isinstance(value, str | Mapping) or not isinstance(value, Iterable)):
                value = (value,)
            if several and not isinstance(value, list | tuple):  # gone through once, maybe
                value = tuple(value)
            if isinstance(value, Mapping):
                value = {key: _without_numpy(one) for key, one in value.items()}
            elif isinstance(value, list | tuple) and any(hasattr(one, "tolist") for one in value):
                value = [_without_numpy(one) for one in value]
            try:
                kind.validate_python(value, strict=True)
            except ValidationError as error:
                wrong = error.errors()[0]["input"]
                what = f"{own.__name__.lower()} {getattr(self, 'id', '')}".rstrip()
                shown = text if len(text := repr(wrong)) < LONG else f"a {type(wrong).__name__}"
                said = alternatives(error.errors(), of_fields=False)
                raise ConfigError(f"{what}: {name}={shown}: {said}") from None
            object.__setattr__(self, name, value)


@dataclass(frozen=True, kw_only=True)
class Measure(Checked):
    """A number of every run, or of several rows.

    Attributes:
      title, unit: for readers; the name of the measure where there is no title.
      decimals: shown in tables; None: four significant digits.
      better: which is better. A diverged run counts as infinitely bad, or as unknown without it.
      where: only of rows with these labels; with `best` or `rank` among them only of chosen cells.
      summary: what stands for the seeds: their mean (with its spread), or the smallest or largest.
      scale: where noise is even, for comparisons: "log", "logit" (of percent), "linear"; by default
        logit for percents that are better higher, log for what is better lower, else linear.
    """

    title: str = ""
    unit: str = ""
    decimals: NonNegativeInt | None = None
    better: Literal["lower", "higher"] | None = None
    where: Where = field(default_factory=dict)
    summary: Literal["mean", "min", "max"] = "mean"
    scale: Literal["log", "logit", "linear", ""] = ""

    @property
    def even_scale(self) -> str:
        if self.scale:
            return self.scale
        if self.better == "higher" and self.unit == "%":
            return "logit"
        return "log" if self.better == "lower" else "linear"

    @property
    def bounds(self) -> tuple[float, float]:
        """What it cannot leave: 0 and 100 of percents that are good or bad, 0 where noise is even
        on the log scale.
        """
        if self.unit == "%" and self.better is not None:
            return 0.0, 100.0
        return 0.0 if self.even_scale == "log" else -math.inf, math.inf

    @property
    def of_chosen(self) -> bool:
        """Whether it is taken only of cells that a `Best` chose, and so after the choice."""
        return bool({"best", "rank"} & set(self.where)) and not isinstance(self, Derived)

    def text(self, value: float, spread: float = math.nan) -> str:
        """A number as tables show it and, where it has one, its spread: to the decimals that the
        number is shown to.
        """
        if math.isnan(value):
            return DASH
        if math.isinf(value):
            return "never" if isinstance(self, Derived) else "diverged"
        shown = self._format(value)
        text = format(value, shown)
        if math.isnan(spread):
            return text
        fixed = shown[-1] == "f" and self._format(spread) != ".4g"
        return f"{text} ± {format(spread, shown) if fixed else self.text(spread)}"

    def _format(self, value: float) -> str:
        """How a number is shown: to so many decimals, or to four significant digits."""
        decimals = self.decimals
        if decimals is None or (abs(value) >= LARGE and not (decimals == 0 and value.is_integer())):
            return ".4g"
        return ".1e" if 0 < abs(value) < 0.5 * 10**-decimals else f".{decimals}f"


# What is the same wherever a metric is shown, unless a `Metric` says otherwise.
KNOWN: dict[str, dict[str, Any]] = {
    "accuracy": {"title": "test accuracy", "unit": "%", "decimals": 2, "better": "higher"},
    "test_error": {"title": "test error", "unit": "%", "decimals": 1, "better": "lower"},
    "distance": {"title": "distance to the optimum", "decimals": 2, "better": "lower"},
    "relative_distance": {"better": "lower"},
    "squared_error": {"title": "relative squared error", "decimals": 3, "better": "lower"},
    "consensus": {"title": "distance between the clients' copies", "better": "lower"},
}


@dataclass(frozen=True)
class Metric(Measure):
    """A number of a finished run: `Metric("accuracy", "last")`.

    Attributes:
      metric: a column of metrics.csv, or a dotted path into result.json
        ("timing.seconds_per_round").
      at: its first, last, final (mean of the last evaluations), min or max value, the value at a
        round (a number), or "series", a row per evaluated round.
      rounds: the rounds of a series; all evaluated ones if empty.
      plus: more metrics that are added to it; where a run does not report one it adds nothing.
      absent: the value where a run does not report the metric (a constant step, say).
    """

    metric: str
    at: At | NonNegativeInt = "final"
    _: KW_ONLY
    rounds: Sequence[NonNegativeInt] = ()
    plus: Sequence[str] = ()
    absent: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, value in KNOWN.get(self.metric, {}).items():
            if getattr(self, name) in ("", None):
                object.__setattr__(self, name, value)


@dataclass(frozen=True)
class Price(Measure):
    """Epsilon of the planned ledger; no training.

    Attributes:
      accountant: one of `dpfl list accountant`, with `options`, or the run's own ("run").
      part: the whole ledger, or what the paper's convention prices.
      round_up: decimals that the value is rounded up to.
    """

    accountant: str = "run"
    _: KW_ONLY
    title: str = "epsilon of the ledger"
    options: Mapping[str, Scalar] = field(default_factory=dict)
    part: Literal["all", "convention"] = "all"
    round_up: int | None = None


@dataclass(frozen=True)
class Fact(Measure):
    """What is known of a run before it starts; no training.

    Attributes:
      value: a dotted path: a config key, clients, dimension, records, labels.* (the run's own),
        problem.* (its optimum, found by solving it), theory.* (what ScaffNew's closed forms
        advise), sizes.* (its clients' records), ledger.<release>.*, attack.* and audit.*; or a
        function that is given such a
        look-up: lambda fact: 2 * fact("clients") * fact("dimension").
    """

    value: str | Callable[[Facts], float | str]


@dataclass(frozen=True)
class Derived(Measure):
    """A number from other rows, for every combination of the labels in `per` (and every seed).

    Attributes:
      value: a function of the `Rows` of one combination, whose `beside` gives another's; NaN, or
        a number missing there, is unknown.
      per: labels, with "round" for a number of every point of a series.
      by_seed: computed for every seed, or once from the means over seeds.
      over: a label of which it is a value; one at an end is marked, as of a `Best`.
    """

    value: Callable[[Any], float]
    per: Sequence[str] = ()
    _: KW_ONLY
    by_seed: bool = True
    over: str = ""


@dataclass(frozen=True)
class Best(Checked):
    """Choice of the best cell of a grid `over` some labels, by the mean of one measure over seeds.

    Chosen separately for every combination of the other labels; marks the rows (`best`, and `rank`
    where several are chosen), and adds rows best.<label>. A chosen cell at an end of a numeric
    label with two or more values is flagged as on the edge of the grid.

    Attributes:
      over: the labels of the grid; rows that lack some of them (another method's) have a smaller
        one.
      by: a measure of every run that says which is better; a series with `rounds`: at each of them.
      top: how many cells are chosen.
    """

    over: Sequence[str]
    by: str
    _: KW_ONLY
    top: PositiveInt = 1
    where: Where = field(default_factory=dict)
    note: str = ""


def _without_numpy(value: Any) -> Any:
    """A number or a list in place of one of numpy or pandas."""
    return value.tolist() if hasattr(value, "tolist") else value


@cache
def _fields(kind: type) -> dict[str, tuple[bool, TypeAdapter[Any]]]:
    """Whether a field is of several, and what checks it."""
    hints, found = get_type_hints(kind, include_extras=True), {}
    for name in (one.name for one in fields(kind)):
        several = get_origin(hints[name]) is Sequence
        found[name] = several, TypeAdapter(hints[name], config=ANY_TYPE)
    return found
