"""How figures look: colours, line styles, and the marks that all kinds of panels share."""

import io
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from math import log
from typing import Any, NamedTuple

import matplotlib as mpl
import matplotlib.colors
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm, Normalize
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import NullLocator

# Okabe and Ito's palette; line styles, markers and hatches tell the series apart in grey as well.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8C8C8C")
STYLES = (
    "-",
    "--",
    "-.",
    ":",
    (0, (5, 1, 1, 1, 1, 1)),
    (0, (8, 2)),
    (0, (1, 3)),
    (0, (4, 1, 1, 1)),
)
MARKERS = "os^DvPX*"
HATCHES = ("", "//", "..", "xx", "\\\\", "++", "oo", "**")


class Look(NamedTuple):
    """What tells a series apart."""

    colour: str
    style: Any
    marker: str
    hatch: str


LOOKS = tuple(map(Look, COLOURS, STYLES, MARKERS, HATCHES))
STYLE: Any = {
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "legend.frameon": False,
    "pdf.fonttype": 42,
    "figure.dpi": 160,
}
GREY = "#666666"  # of vertical lines that belong to no series
WIDEST = 12.5  # inches of a figure, 2000 pixels: more cannot be read at the width of a page
MARKED = 16  # lines with at most this many points get markers
LETTER = 0.085  # inches that one below an axis takes
TICKED = 8  # a log x axis with at most this many places has its ticks there


def in_even_lines(text: str, width: int) -> str:
    """A text in as few lines of at most this width as it takes, about equally long.

    >>> in_even_lines("optimality against the number of rounds on ijcnn1", 40)
    'optimality against the\\nnumber of rounds on ijcnn1'
    """
    wrap = partial(textwrap.wrap, text, break_long_words=False)
    lines = len(wrap(width))
    return next(
        "\n".join(broken)
        for narrower in range(max(1, len(text) // lines), width + 1)
        if len(broken := wrap(narrower)) == lines
    )


def saved(canvas: Canvas, stem: str) -> dict[str, bytes]:
    """<stem>.png and <stem>.pdf, without dates and versions, so that equal figures are equal
    files.
    """
    no_dates = {"Creator": None, "Producer": None, "CreationDate": None}
    files = {}
    for kind, metadata in (("png", {"Software": None}), ("pdf", no_dates)):
        buffer = io.BytesIO()
        canvas.savefig(buffer, format=kind, metadata=metadata)
        files[f"{stem}.{kind}"] = buffer.getvalue()
    return files


@contextmanager
def canvas(width: float, height: float, **panels: Any) -> Iterator[Any]:
    """A figure, its size in inches, and its panels, drawn and saved in our style."""
    with mpl.rc_context(STYLE):
        figure = Canvas(figsize=(width, height), layout="constrained")
        yield figure, figure.subplots(**panels)


def draw_curve(axis: Axes, look: Look, label: str | None, at: Any, value: Any, *band: Any) -> None:
    """A line, its points marked where they are few, and a band from low to high, where given."""
    axis.plot(
        at,
        value,
        marker=look.marker if len(value) <= MARKED else None,
        markersize=4,
        color=look.colour,
        linestyle=look.style,
        linewidth=1.6,
        label=label,
    )
    if band:
        axis.fill_between(at, *band, color=look.colour, alpha=0.18, linewidth=0)


def draw_fits(
    axis: Axes,
    look: Look,
    label: str | None,
    at: pd.Series,
    value: pd.Series,
    fits: Mapping[str, Callable[[float], float]],
) -> None:
    """Least-squares lines in functions of x, thin, in styles of their own, with their R^2."""
    for style, (words, of) in zip(STYLES[3:1:-1], fits.items(), strict=False):
        slope, start = np.polyfit(at.map(of), value, 1)
        with np.errstate(invalid="ignore"):  # of a level line it is 0 / 0
            share = np.corrcoef(at.map(of), value)[0, 1] ** 2
        xs = np.linspace(at.min(), at.max())
        said = f"{label} in {words}: R^2 {share:.2f}"
        ys = [slope * of(x) + start for x in xs]
        axis.plot(xs, ys, color=look.colour, linestyle=style, linewidth=1.1, label=said)


def place_ticks(axis: Axes, places: Sequence[float], logarithmic: bool) -> None:
    """Along x, of whole numbers at whole places; where it is logarithmic with few places, or of one
    decade at most, at some of these.
    """
    if not logarithmic:
        axis.locator_params(axis="x", integer=all(x.is_integer() for x in places))
        return
    axis.set_xscale("log")
    if places and (len(places) <= TICKED or places[-1] <= 10 * places[0]):
        shown = places[:: 1 + len(places) // TICKED]
        texts = [f"{x:g}" for x in shown]
        width = axis.bbox.width / axis.figure.dpi
        for number, (low, high) in enumerate(pairwise(shown)):  # one of two that would meet is kept
            gap = width * log(high / low) / log(shown[-1] / shown[0])
            if gap < LETTER * len(texts[number] + texts[number + 1]) / 2:
                texts[number] = ""
        axis.set_xticks(shown, texts)
        axis.xaxis.set_minor_locator(NullLocator())


def short(number: float) -> str:
    """Three digits of it: 1.64e11."""
    return re.sub(r"e\+?(-?)0*", r"e\1", f"{number:.3g}")


def colour_scale(values: pd.Series, log: bool) -> Normalize:
    """The colour scale of the finite ones of these numbers."""
    finite = values[np.isfinite(values)]
    low, high = (0.0, 1.0) if finite.empty else (finite.min(), finite.max())
    return (LogNorm if log and low > 0 else Normalize)(low, high)


def legend(canvas: Any, axes: Any, width: float, title: str, above: bool) -> None:
    """One legend of all panels, below them, or above them with the title of the figure, which
    stands there alone elsewhere.
    """
    entries: dict[str, Any] = {}  # a text -> the line or bar that it is of
    for axis in axes.flat:
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True):
            entries.setdefault(label, handle)
    if entries:
        columns = max(1, min(len(entries), int(width * 14 / (max(map(len, entries)) + 7))))
        place: Any = {"loc": "outside lower center"}
        if above:
            place, title = {"loc": "outside upper center", "title": title}, ""
        canvas.legend(entries.values(), entries.keys(), ncols=columns, **place)
    if title:
        canvas.suptitle(title, fontsize=9)
