"""Text in columns."""

from collections.abc import Iterable, Sequence


def aligned(rows: Iterable[Sequence[str]], indent: str = "") -> list[str]:
    """Rows as lines of text; the cells of every column but the last are as wide as the widest.

    >>> aligned([("a", "one", "x"), ("long", "b", "")], "  ")
    ['  a     one  x', '  long  b    ']
    """
    cells = list(rows)
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)][:-1]
    return [indent + "  ".join(map(str.ljust, row, [*widths, 0])) for row in cells]
