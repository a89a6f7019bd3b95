"""An artifact's figure: panels of lines, bars or heat maps, for print and the colour-blind; equal rows give equal bytes."""

from __future__ import annotations

import io
import itertools
import math
import re
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib as mpl
import matplotlib.colors
import matplotlib.patches
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm, Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullLocator

from dpfl_cli.reproduction.declaration import BEST, MEASURE, Artifact, FigureSpec
from dpfl_cli.reproduction.layout import number_text
from dpfl_cli.reproduction.rows import Row, Rows, in_order

# Okabe and Ito's palette; line styles, markers and hatches tell the series apart in grey as well.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
STYLES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (8, 2)), (0, (1, 3)))
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
HATCHES = ("", "//", "..", "xx", "\\\\", "++", "oo")
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
    "savefig.dpi": 160,
    "figure.dpi": 160,
}
GREY = "#666666"  # of vertical lines that belong to no series
PAPER, DIVERGED = "paper", "diverged"  # legend entries that come last
LIGHTEST = 0.45  # share of its colour that the first value of `style` keeps
NARROWEST = 0.13  # inches of a bar, up to a width of the panel
MARKED = 16  # lines with at most this many points get markers
TICKED = 8  # a log x axis with at most this many places has its ticks there
SPACED = 0.1  # but at none that is nearer to the one before than this share of the axis, where the numbers would touch


def draw(artifact: Artifact, scale: str, rows: Rows) -> dict[str, bytes]:
    """figure.png and figure.pdf: one figure, or several below one another."""
    drawn = [_Drawing(artifact, spec, rows) for spec in artifact.declaration.figures]
    looks = _looks(rows, drawn)
    with mpl.rc_context(STYLE):
        width, heights = max(one.size[0] for one in drawn), [one.size[1] for one in drawn]
        figure = Figure(figsize=(width, sum(heights)), layout="constrained")
        if len(drawn) == 1:
            drawn[0].fill(figure, looks)
        else:
            parts = figure.subfigures(len(drawn), 1, height_ratios=heights, squeeze=False)[:, 0]
            for one, part in zip(drawn, parts, strict=True):
                one.fill(part, looks)
                if one.spec.title:
                    part.suptitle(one.spec.title, fontsize=9)
        figure.suptitle(_title(artifact, scale, drawn), fontsize=10)
        return saved(figure, "figure")


def saved(figure: Figure, stem: str) -> dict[str, bytes]:
    """<stem>.png and <stem>.pdf, without dates and versions, so that equal figures give equal files."""
    files = {}
    for kind, metadata in (("png", {"Software": None}), ("pdf", {"Creator": None, "Producer": None, "CreationDate": None})):
        buffer = io.BytesIO()
        figure.savefig(buffer, format=kind, metadata=metadata)
        files[f"{stem}.{kind}"] = buffer.getvalue()
    return files


class _Drawing:
    """One figure: its rows, its panels, and how large it is in inches."""

    def __init__(self, artifact: Artifact, spec: FigureSpec, rows: Rows) -> None:
        self.artifact, self.spec, self.rows = artifact, spec, rows
        found = [row for row in rows.where(spec.where, spec.measures) if not math.isnan(row.value)]
        self.found = [row for row in found if row.value > 0] if "y" in spec.log else found
        panels = [_values(rows, self.found, name) for name in spec.panels]
        self.down, self.across = 1, 1
        self.keys: list[tuple[Any, ...]] = [()]
        if len(panels) == 1:
            self.across = len(panels[0]) or 1
            if self.across > 4:
                self.down, self.across = math.ceil(self.across / 4), 4
            self.keys = [(value,) for value in panels[0]]
        elif panels:
            self.down, self.across = len(panels[0]) or 1, len(panels[1]) or 1
            self.keys = [(a, b) for a in panels[0] for b in panels[1]]
        self.names = (
            _values(rows, self.found, spec.series) if spec.series else spec.measures if len(spec.measures) > 1 else [None]
        )
        self.styles = _values(rows, self.found, spec.style) if spec.style else [None]
        if spec.kind == "heatmap":
            self.size = 2.7 * self.across + 1.6, 2.1 * self.down + 1.0
        else:
            bars = len({row.get(spec.x) for row in self.found}) * len(self.names) if spec.kind == "bars" else 0
            self.size = (
                max(4.8, max(3.3, min(NARROWEST * bars + 0.8, 7.5)) * self.across),
                ((2.7 if spec.style is None else 3.6) * self.down + 1.1),
            )

    def fill(self, figure: Any, looks: Mapping[tuple[Any, Any], int]) -> None:
        """Draws into a figure or a part of one."""
        spec, artifact = self.spec, self.artifact
        axes = figure.subplots(self.down, self.across, squeeze=False, sharey=spec.share_y)
        names = {name: looks[spec.series, name] for name in self.names}
        cut = {name: _cut(spec, self.found, name) for name in names}
        for position, (axis, key) in enumerate(zip(axes.flat, self.keys, strict=False)):
            inside = [row for row in self.found if tuple(row.get(name) for name in spec.panels) == key]
            if key:
                titles = (_panel_title(artifact, name, value) for name, value in zip(spec.panels, key, strict=True))
                axis.set_title(", ".join(titles))
            if spec.kind == "heatmap":
                beside = [row for row in self.found if not key or row.get(spec.panels[0]) == key[0]]
                image = _heatmap(artifact, spec, axis, inside, _norm(spec, beside))
                if position % self.across == self.across - 1:  # one scale a row of panels
                    bar = figure.colorbar(image, ax=axes[position // self.across].tolist())
                    bar.set_label(_axis_title(artifact, spec.measures))
                continue
            if spec.kind == "lines":
                _lines(artifact, spec, axis, _placed(artifact, spec, inside, self.rows), names, self.styles, cut)
                _marks(spec, axis, self.rows, {**spec.where, **dict(zip(spec.panels, key, strict=True))}, names)
            else:
                _bars(artifact, spec, axis, inside, names)
            if not spec.share_y or position % self.across == 0:
                axis.set_ylabel(spec.y_title or _axis_title(artifact, sorted({row.measure for row in inside})))
        for axis in axes.flat[len(self.keys) :]:
            axis.set_visible(False)
        _legend(spec, figure, axes, self.size[0])


def _looks(rows: Rows, drawn: Sequence[_Drawing]) -> dict[tuple[Any, Any], int]:
    """(label, value) -> number of its colour: what one label tells apart looks the same in all figures of an artifact."""
    found: dict[tuple[Any, Any], int] = {}
    for label in dict.fromkeys(one.spec.series for one in drawn):
        names = [name for one in drawn if one.spec.series == label for name in one.names]
        order = names if label is None else [name for name in rows.choices(label) if name in names]
        found |= {(label, name): number for number, name in enumerate(dict.fromkeys(order))}
    return found


def _legend(spec: FigureSpec, figure: Any, axes: Any, width: float) -> None:
    entries: dict[str, Any] = {}
    for axis in axes.flat:
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True):
            entries.setdefault(label, handle)
    for last in (PAPER, DIVERGED):
        if last in entries:
            entries[last] = entries.pop(last)
    if entries and (len(entries) > 1 or spec.kind == "bars"):
        longest = max(len(label) for label in entries)
        columns = max(1, min(len(entries), int(width * 14 / (longest + 7))))
        figure.legend(entries.values(), entries.keys(), loc="outside lower center", ncols=columns)


def _title(artifact: Artifact, scale: str, drawn: Sequence[_Drawing]) -> str:
    runs = sorted({row.n for one in drawn for row in one.found})
    seeds = (
        f", {'–'.join(str(n) for n in dict.fromkeys((runs[0], runs[-1])))} seed{'s' if runs[-1] > 1 else ''}"
        if runs and artifact.trains
        else ""
    )
    spread = any(one.spec.spread and one.spec.kind != "heatmap" and row.std is not None for one in drawn for row in one.found)
    title = textwrap.fill(artifact.declaration.title, min(110, int(12.5 * max(one.size[0] for one in drawn))))
    return f"{title}\n{artifact.name}, scale {scale}{seeds}{' (± 1 standard deviation)' if spread else ''}"


def _values(rows: Rows, found: Sequence[Row], name: str) -> list[Any]:
    """The values of a label that occur in these rows, in the table's order."""
    present = {row.get(name) for row in found} - {""}
    return [value for value in rows.choices(name) if value in present]


def _panel_title(artifact: Artifact, name: str, value: Any) -> str:
    return artifact.title_of(value) if isinstance(value, str) else f"{artifact.title_of(name)} {artifact.title_of(value)}"


def _axis_title(artifact: Artifact, measures: Sequence[str]) -> str:
    units = dict.fromkeys(artifact.declaration.measures[name].unit for name in measures if name in artifact.declaration.measures)
    unit = f" ({next(iter(units))})" if len(units) == 1 and next(iter(units)) else ""
    return ", ".join(artifact.title_of(name) for name in measures) + unit


def _of(spec: FigureSpec, inside: Sequence[Row], name: Any) -> list[Row]:
    if name is None:
        return list(inside)
    return [row for row in inside if row.get(spec.series or MEASURE) == name]


def _placed(artifact: Artifact, spec: FigureSpec, inside: Sequence[Row], rows: Rows) -> list[tuple[float, Row]]:
    """The finite rows that have a place on the x axis: a numeric label, or the value of another measure at the same labels."""
    if spec.x in artifact.declaration.measures:
        places: dict[Any, Any] = {tuple(row.labels.items()): row.value for row in rows.where({}, [spec.x])}
        found = [(places.get(tuple(row.labels.items())), row) for row in inside]
    else:
        found = [(row.get(spec.x), row) for row in inside]
    return [(float(x), row) for x, row in found if isinstance(x, int | float) and math.isfinite(x) and math.isfinite(row.value)]


def _cut(spec: FigureSpec, found: Sequence[Row], name: Any) -> str:
    """What the legend adds for a line that goes beyond the given range of y."""
    if not spec.y_range:
        return ""
    low, high = spec.y_range
    mine = [row.value for row in _of(spec, found, name) if math.isfinite(row.value)]
    sides = [
        word for word, beyond in (("below", min(mine, default=low) < low), ("above", max(mine, default=high) > high)) if beyond
    ]
    return f" (continues {' and '.join(sides)} the axis)" if sides else ""


def _lines(
    artifact: Artifact,
    spec: FigureSpec,
    axis: Axes,
    inside: Sequence[tuple[float, Row]],
    names: Mapping[Any, int],
    styles: Sequence[Any],
    cut: Mapping[Any, str],
) -> None:
    for (name, look), (number, second) in itertools.product(names.items(), enumerate(styles)):
        wanted = {id(row) for row in _of(spec, [row for _, row in inside], name)}
        placed = [(x, row) for x, row in inside if id(row) in wanted and (spec.style is None or row.get(spec.style) == second)]
        placed.sort(key=lambda pair: pair[0])
        if not placed:
            continue
        mine = [row for _, row in placed]
        xs = np.array([x for x, _ in placed])
        ys = np.array([row.value for row in mine])
        colour, marker = COLOURS[look % len(COLOURS)], MARKERS[look % len(MARKERS)]
        style = STYLES[look % len(STYLES)] if spec.style is None else _dashes(number, len(styles))
        every: Any = 1 if len(mine) <= MARKED else None
        label = None if name is None else artifact.title_of(name) + cut.get(name, "")
        if spec.style is not None:
            colour, every, label = _shade(colour, number, len(styles)), (number, max(1, len(mine) // 6)), None
        axis.plot(
            xs,
            ys,
            color=colour,
            linestyle=style,
            marker=None if every is None else marker,
            markevery=every,
            markersize=4,
            linewidth=1.6,
            label=label,
        )
        if spec.spread and any(row.std is not None for row in mine):
            spread = np.array([row.std or 0.0 for row in mine])
            low = ys - spread
            if "y" in spec.log:  # a band that reaches below zero has no place on a log axis: it ends at the lowest point drawn
                low = np.where(low > 0, low, ys.min() * 0.5)
            if spec.spread_floor is not None:
                low = np.maximum(low, spec.spread_floor)
            axis.fill_between(xs, low, ys + spread, color=colour, alpha=0.18 / len(styles) ** 0.5, linewidth=0)
    if spec.style is not None:  # the legend names either label once, not every pair
        for name, look in names.items():
            shown = artifact.title_of(name) + cut.get(name, "")
            axis.plot([], [], color=COLOURS[look % len(COLOURS)], marker=MARKERS[look % len(MARKERS)], markersize=4, label=shown)
        for number, second in enumerate(styles):
            grey = _shade("#000000", number, len(styles))
            shown = _panel_title(artifact, spec.style, second)
            axis.plot([], [], color=grey, linestyle=_dashes(number, len(styles)), linewidth=1.6, label=shown)
    _ticks(artifact, spec, axis, sorted({x for x, _ in inside}))
    if "y" in spec.log:
        axis.set_yscale("log")
    if spec.y_range:
        axis.set_ylim(*spec.y_range)
    axis.set_xlabel(spec.x_title or _axis_title(artifact, [spec.x]))


def _ticks(artifact: Artifact, spec: FigureSpec, axis: Axes, places: Sequence[float]) -> None:
    """The scale of x and its ticks: on a log axis with few places at these places, and of whole numbers at whole numbers."""
    if "x" not in spec.log:
        if all(x.is_integer() for x in places):
            axis.xaxis.set_major_locator(MaxNLocator(nbins="auto", steps=[1, 2, 2.5, 5, 10], integer=True))
        return
    axis.set_xscale("log")
    places = [x for x in places if x > 0]
    if 0 < len(places) <= TICKED:
        ticks = places[:1]
        for x in places[1:]:
            if math.log(x / ticks[-1]) >= SPACED * math.log(places[-1] / places[0]):
                ticks.append(x)
        axis.set_xticks(ticks, [number_text(artifact, spec.x, x) if spec.x in artifact.measures else f"{x:g}" for x in ticks])
        axis.xaxis.set_minor_locator(NullLocator())


def _marks(spec: FigureSpec, axis: Axes, rows: Rows, panel: Mapping[str, Any], names: Mapping[Any, int]) -> None:
    """Vertical lines at numbers, and at the values of measures in this panel."""
    for mark in spec.marks:
        places = [(mark.at, GREY)] if isinstance(mark.at, float) else _values_at(spec, mark.at, rows, panel, names)
        for place, colour in places:
            axis.axvline(place, color=colour, linewidth=1.2, linestyle=":")
        if places:  # the legend names all of them once
            axis.plot([], [], color=GREY, linewidth=1.2, linestyle=":", label=mark.title)


def _values_at(
    spec: FigureSpec, measure: str, rows: Rows, panel: Mapping[str, Any], names: Mapping[Any, int]
) -> list[tuple[float, str]]:
    """(value, colour) of every different value of a measure among rows that have the panel's labels, or lack them."""
    found: dict[tuple[float, Any], None] = {}
    for row in rows.where({}, [measure]):
        own = {name: wanted for name, wanted in panel.items() if name in row.labels}
        series = row.labels.get(spec.series) if spec.series is not None else None
        if row.matches(own) and math.isfinite(row.value) and (series is None or series in names):
            found[float(f"{row.value:.6g}"), series] = None  # runs that differ in the last digits of their noise share a line
    values = {value for value, _ in found}
    if len(values) == 1:
        return [(values.pop(), GREY)]
    return [(value, GREY if name is None else COLOURS[names[name] % len(COLOURS)]) for value, name in found]


def _shade(colour: str, number: int, count: int) -> str:
    """The colour for value `number` of `count` values of a second label: from light to itself."""
    share = 1.0 if count == 1 else LIGHTEST + (1 - LIGHTEST) * number / (count - 1)
    red, green, blue = (1 - share * (1 - part) for part in mpl.colors.to_rgb(colour))
    return mpl.colors.to_hex((red, green, blue))


def _dashes(number: int, count: int) -> Any:
    """The line style for value `number` of `count` values of a second label; the last one is solid."""
    return STYLES[(count - 1 - number) % len(STYLES)]


def _bars(artifact: Artifact, spec: FigureSpec, axis: Axes, inside: Sequence[Row], names: Mapping[Any, int]) -> None:
    groups = in_order(row.get(spec.x) for row in inside)
    width = 0.8 / max(len(names), 1)
    for position, (name, look) in enumerate(names.items()):
        offset = (position - (len(names) - 1) / 2) * width
        mine = {row.get(spec.x): row for row in _of(spec, inside, name)}
        lost = [index + offset for index, group in enumerate(groups) if group in mine and math.isinf(mine[group].value)]
        _mark_diverged(axis, lost, width)
        places = [index for index, group in enumerate(groups) if group in mine and math.isfinite(mine[group].value)]
        shown = [mine[groups[index]] for index in places]
        if not shown:
            continue
        xs = [index + offset for index in places]
        label = None if name is None else artifact.title_of(name)
        errors = [row.std or 0.0 for row in shown] if spec.spread and any(row.std is not None for row in shown) else None
        bars = axis.bar(
            xs,
            [row.value for row in shown],
            width * 0.92,
            yerr=errors,
            capsize=2,
            color=COLOURS[look % len(COLOURS)],
            hatch=HATCHES[look % len(HATCHES)],
            edgecolor="white",
            label=label,
            error_kw={"linewidth": 1},
        )
        if spec.numbers:
            texts = [number_text(artifact, row.measure, row.value) for row in shown]
            axis.bar_label(bars, texts, fontsize=6.5, padding=2)
        for x, row in zip(xs, shown, strict=True):
            if row.paper is not None:
                axis.plot(
                    [x],
                    [row.paper],
                    marker="_",
                    markersize=max(7.0, 22 * width),
                    color="black",
                    markeredgewidth=1.6,
                    linestyle="none",
                    label=PAPER,
                )
    crowded = len(groups) > 4
    names_of_groups = [
        textwrap.fill(artifact.title_of(group), 24 if crowded else 40 // len(groups), break_long_words=False) for group in groups
    ]
    turned = crowded and max(len(name) for name in names_of_groups) > 5
    axis.set_xticks(
        range(len(groups)), names_of_groups, rotation=30 if turned else 0, ha="right" if turned else "center", fontsize=7.5
    )
    axis.grid(axis="x", visible=False)
    if "y" in spec.log:
        axis.set_yscale("log")
    if spec.y_range:
        axis.set_ylim(*spec.y_range)
    numeric = all(isinstance(group, int | float) for group in groups)
    if spec.x_title or numeric:
        axis.set_xlabel(spec.x_title or artifact.title_of(spec.x))


def _mark_diverged(axis: Axes, places: Sequence[float], width: float) -> None:
    """A hatched column over the whole height with an arrow at its top, where a bar has no end."""
    whole = axis.get_xaxis_transform()  # x in data, y from bottom to top of the panel
    for x in places:
        axis.add_patch(
            mpl.patches.Rectangle(
                (x - 0.46 * width, 0),
                0.92 * width,
                0.94,
                transform=whole,
                fill=False,
                hatch="////",
                edgecolor="#999999",
                linewidth=0,
            )
        )
        axis.plot([x], [0.96], marker="^", markersize=7, color="black", linestyle="none", transform=whole, label=DIVERGED)


def _norm(spec: FigureSpec, rows: Sequence[Row]) -> Normalize:
    """The colour scale of all these rows."""
    finite = [row.value for row in rows if math.isfinite(row.value)]
    low, high = (min(finite), max(finite)) if finite else (0.0, 1.0)
    return LogNorm(low, high) if "colour" in spec.log and 0 < low < high else Normalize(low, high)


def _heatmap(artifact: Artifact, spec: FigureSpec, axis: Axes, inside: Sequence[Row], norm: Normalize) -> Any:
    xs, ys = sorted({row.get(spec.x) for row in inside}), sorted({row.get(spec.y) for row in inside})
    grid = np.full((len(ys), len(xs)), np.nan)
    for row in inside:
        grid[ys.index(row.get(spec.y)), xs.index(row.get(spec.x))] = row.value if math.isfinite(row.value) else np.nan
    image = axis.imshow(np.ma.masked_invalid(grid), cmap="cividis", aspect="auto", origin="lower", norm=norm)
    axis.grid(visible=False)
    axis.set_xticks(range(len(xs)), [f"{value:g}" for value in xs])
    axis.set_yticks(range(len(ys)), [f"{value:g}" for value in ys])
    axis.set_xlabel(spec.x_title or artifact.title_of(spec.x))
    axis.set_ylabel(spec.y_title or artifact.title_of(spec.y))
    for row in inside:
        x, y = xs.index(row.get(spec.x)), ys.index(row.get(spec.y))
        if not math.isfinite(row.value):
            axis.text(x, y, "div.", ha="center", va="center", fontsize=6.5, color="#444444")
            continue
        red, green, blue, _ = image.to_rgba(np.array([row.value]))[0]
        dark = 0.299 * red + 0.587 * green + 0.114 * blue < 0.5
        text = re.sub(r"e\+?(-?)0*", r"e\1", f"{row.value:.3g}")
        axis.text(x, y, text, ha="center", va="center", fontsize=6.5, color="white" if dark else "black")
        if row.get(BEST):
            axis.add_patch(mpl.patches.Rectangle((x - 0.48, y - 0.48), 0.96, 0.96, fill=False, edgecolor="#D55E00", linewidth=2))
    return image
