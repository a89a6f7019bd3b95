"""Claims: what the paper says, or we of it, as functions on the rows."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

from dpfl_cli.config.errors import ConfigError
from dpfl_cli.reproduction.verdict import Comparisons

Prior = Literal["holds", "fails", "open"]
Judge = Callable[..., Comparisons]  # of the rows, and of what has a default
# What a source cites, for "ours" aside it says where in the paper the claim stands.
CITED = re.compile(
    r"\b(section|appendix|figure|table|caption|equation|theorem|proposition|lemma|corollary|"
    r"algorithm|observation|definition|assumption|remark|abstract)s?\b",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Claim:
    """A statement of the paper, or of ours about it.

    Attributes:
      id: unique in its artifact.
      text: the statement.
      source: where the paper says it ("section 6, Table 4"), or "ours".
      judge: a function of the rows that yields its comparisons.
      prior: what was predicted before any result, never edited afterwards; "open" where nothing
        was.
      invariant: it follows from a definition and can only fail by a mistake; counted apart.
      note: what the verdict depends on.
      readings: other choices for the verdict, in words ("with a margin of 50 %") -> the comparisons
        under them. What is found then stands beside the verdict.
    """

    id: str
    text: str
    source: str
    judge: Judge
    prior: Prior = "open"
    invariant: bool = False
    note: str = ""
    readings: Mapping[str, Judge] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        if not self.ours and not CITED.search(self.source):
            raise ConfigError(
                f"claim {self.id}: source={self.source!r} is no place in the paper; "
                'write "ours", or where the paper says it: "section 5, Table 2"'
            )

    @property
    def ours(self) -> bool:
        return self.source == "ours"


def claim(
    source: str,
    prior: Prior = "open",
    *,
    id: str = "",
    readings: Mapping[str, Judge | Mapping[str, Any]] | None = None,
    **more: Any,
) -> Callable[[Judge], Claim]:
    """Decorator: a generator of comparisons as a claim; its docstring is the claim, its name the
    id; `more` are fields of `Claim`.

    Args:
      readings: other choices, in words -> what the same function is given in place of its defaults,
        or another function.
    """

    def made(judge: Judge) -> Claim:
        text = " ".join((judge.__doc__ or "").split())
        if not text:
            raise ConfigError(f"claim {judge.__name__}: no docstring; it is what the claim says")
        others = {
            under: partial(judge, **one) if isinstance(one, Mapping) else one
            for under, one in (readings or {}).items()
        }
        name = id or judge.__name__
        return Claim(name, text, source, judge, prior, readings=others, **more)

    return made
