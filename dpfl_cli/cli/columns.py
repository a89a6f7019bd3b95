"""Text in columns."""

import textwrap
from collections.abc import Iterable, Sequence
from itertools import zip_longest

FEW = 24  # letters of a last column that are too few to break it


def aligned(rows: Iterable[Sequence[str]], indent: str = "") -> list[str]:
    """Rows as lines of text; the cells of every column but the last are as wide as the widest.

    >>> aligned([("a", "one", "x"), ("long", "b", "")], "  ")
    ['  a     one  x', '  long  b    ']
    """
    cells = list(rows)
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)][:-1]
    return [indent + "  ".join(map(str.ljust, row, [*widths, 0])) for row in cells]


def table_lines(names: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> list[str]:
    """Rows below the names of their columns, as lines of at most this width; nothing is cut. Where
    that is too narrow for a line a row, names are broken, then the last column; if few letters are
    left for that, a row is its names and cells, but for empty ones, in as many lines as they take.

    >>> table_lines(["a", "why"], [("x", "a reason that takes some more")], 27)
    ['a  why', 'x  a reason that takes some\\n   more']
    >>> table_lines(["a", "why"], [("x", "a reason that takes some more")], 26)
    ['a=x why=a reason that\\n  takes some more']
    """
    cells = [names, *rows]
    lines = aligned(cells)
    if max(map(len, lines)) > width:
        parts = (name.replace("_", "_ ").split() for name in names)
        cells = [*zip_longest(*parts, fillvalue=""), *rows]
        lines = aligned(cells)
    last = len(lines[0]) - len(cells[0][-1])  # where the last column begins
    if max(map(len, lines)) > width < last + FEW:
        pairs = (zip(names, row, strict=True) for row in rows)
        lines, last = [" ".join(f"{name}={cell}" for name, cell in one if cell) for one in pairs], 2
    wrapper = textwrap.TextWrapper(width, subsequent_indent=" " * last, break_on_hyphens=False)
    return [line if len(line) <= width else wrapper.fill(line) for line in lines]
