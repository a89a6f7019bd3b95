"""Claims: what the paper says, or we of it, as functions on the rows."""

import re
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

from dpfl_cli.config.errors import ConfigError
from dpfl_cli.reproduction.comparison import Comparison, Comparisons, each_seed
from dpfl_cli.reproduction.measure import Checked, Where
from dpfl_cli.reproduction.rows import PSEUDO, Rows, between, grid, listed_labels

Prior = Literal["holds", "fails", "open"]
Judge = Callable[..., Comparisons]  # of the rows, and of what has a default
Compare = Callable[..., Comparison | Comparisons]  # of samples
Test = Callable[..., bool | str]  # of rows of one seed; as `each_seed` takes it
# What a source cites, for "ours" aside it says where in the paper the claim stands.
CITED = re.compile(
    r"\b(section|appendix|figure|table|caption|equation|theorem|proposition|lemma|corollary|"
    r"algorithm|observation|definition|assumption|remark|abstract)s?\b",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Claim(Checked):
    """A statement of the paper, or of ours about it.

    Made by `@claim` where its comparisons are a function of its own, whose docstring then is the
    claim; written as `Claim(id, text, source, judge)` where one function, such as `every` makes,
    judges several claims with other arguments, so that its docstring cannot be any one of them.

    Attributes:
      id: unique in its artifact.
      text: the statement.
      source: where the paper says it ("section 6, Table 4"), or "ours".
      judge: a function of the rows that yields its comparisons.
      prior: what was predicted before any run of dpfl, never edited afterwards; "open" where
        nothing was.
      invariant: it follows from a definition and can only fail by a mistake; counted apart.
      note: what the verdict depends on.
      readings: other choices for the verdict, in words ("with a margin of 50 %") -> what the judge
        is given in place of its defaults, or another judge. What is found then stands beside the
        verdict.
    """

    id: str
    text: str
    source: str
    judge: Judge
    prior: Prior = "open"
    invariant: bool = False
    note: str = ""
    readings: Mapping[str, Judge | Where] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.ours and not CITED.search(self.source):
            raise ConfigError(
                f"claim {self.id}: source={self.source!r} is no place in the paper; "
                'write "ours", or where the paper says it: "section 5, Table 2"'
            )

    @property
    def ours(self) -> bool:
        return self.source == "ours"

    def reading(self, under: str) -> Judge:
        """The judge under another choice, under "" its own."""
        other = self.readings.get(under, {})
        return partial(self.judge, **other) if isinstance(other, Mapping) else other


def claim(
    source: str, prior: Prior = "open", *, id: str = "", **more: Any
) -> Callable[[Judge], Claim]:
    """Decorator of a claim that has a function to itself, a generator of comparisons: its docstring
    is the claim, its name the id; `more` are fields of `Claim`, which serves several claims of one
    function.
    """

    if not isinstance(source, str):  # @claim without brackets
        name = getattr(source, "__name__", source)
        raise ConfigError(f'claim {name}: say whose it is: @claim("ours"), or @claim("section 5")')

    def made(judge: Judge) -> Claim:
        text = " ".join((judge.__doc__ or "").split())
        earlier = judge.__globals__.get(judge.__name__)
        if isinstance(earlier, Claim) and judge.__module__ != "__main__":  # not a notebook
            raise ConfigError(f"claim {judge.__name__}: there are two of this name; rename one")
        if not text:
            raise ConfigError(f"claim {judge.__name__}: no docstring; it is what the claim says")
        return Claim(id or judge.__name__, text, source, judge, prior, **more)

    return made


def every(
    compare: Compare,
    measures: str | Sequence[str],
    versus: str | Sequence[Where] = "",
    /,
    **given: Any,
) -> Judge:
    """A judge that says the same of every cell of a grid:
    `every(above, "accuracy", "method", method=("fedexp", "fedavg"), clients=(100, 300))`.

    A reading may give it other values of labels, other options (None takes one away), and in place
    of its own another `compare` or other `measures`.

    Args:
      compare: of a cell's number, or of those of several measures one after another; `above`, say.
      versus: a label; numbers that differ in it alone are compared with each other. Or the labels
        in which they differ, those of one number after another.
      given: labels, each a value or several (`...`: all that occur with those before it; a range
        or a set: those of them in it), and options of `compare`.
    """

    def judge(
        rows: Rows, compare: Compare = compare, measures: Any = measures, **other: Any
    ) -> Comparisons:
        cells, options = _asked(rows, {**given, **other})
        names = [measures] if isinstance(measures, str) else measures
        sides: Sequence[Where] = [{}] if isinstance(versus, str) else versus
        compared = {versus: cells[versus]} if isinstance(versus, str) and versus else {}
        for cell in grid(**cells | dict.fromkeys(compared)):
            numbers = [
                one
                for name in names
                for side in sides
                for one in rows.each(name, **{**side, **cell, **compared})
            ]
            if numbers:
                found = compare(*numbers, **options)
                yield from [found] if isinstance(found, Comparison) else found

    return judge


def shape(text: str, test: Test, /, **given: Any) -> Judge:
    """A judge of a statement of shape about every cell of a grid, tested on the rows of every seed
    that has the cell: `shape("0.1 is the best step", is_best, method=("fedexp", "fedavg"))`.

    Args:
      test: of one seed's rows and the labels of a cell.
      given: as for `every`, options of `test`.
    """

    def judge(rows: Rows, **other: Any) -> Comparisons:
        (cells, options), whole = _asked(rows, {**given, **other}), rows.seeds
        for cell in grid(**cells):
            seeds = rows.where(**cell).seeds or whole
            truths = [test(whole[seed], cell, **options) for seed in seeds]
            yield each_seed(truths, f"{text} ({listed_labels(cell)})" if cell else text)

    return judge


def _asked(rows: Rows, given: Where) -> tuple[dict[str, Any], Where]:
    """Labels, `...`, ranges and sets as the values that occur with those before; and what is no
    label.
    """
    cells, options = dict[str, Any](), dict[str, Any]()
    for name, value in given.items():
        if name not in (*rows.labels, *PSEUDO):
            options |= {} if value is None else {name: value}
        else:
            within = {name: value} if isinstance(value, between | Set) else {}
            occurring = value is ... or within
            cells[name] = rows.where(**cells, **within).choices(name) if occurring else value
    return cells, options
