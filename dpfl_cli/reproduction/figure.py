"""An artifact's figure: panels of lines, bars or heat maps; equal rows give equal bytes."""

from __future__ import annotations

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
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import MaxNLocator, NullLocator

from dpfl_cli.reproduction.artifact import Artifact, Figure, Scale
from dpfl_cli.reproduction.layout import Cell, heading, number_text
from dpfl_cli.reproduction.look import (
    COLOURS,
    GREY,
    HATCHES,
    MARKED,
    MARKERS,
    NARROWEST,
    PAPER,
    SPACED,
    STYLE,
    STYLES,
    TICKED,
    colour_scale,
    dashes,
    legend,
    mark_diverged,
    saved,
    shade,
)
from dpfl_cli.reproduction.measure import BEST, MEASURE, RANK, ROUND
from dpfl_cli.reproduction.rows import in_order, matching, records


def draw(
    artifact: Artifact, scale: Scale, rows: pd.DataFrame, labels: Sequence[str]
) -> dict[str, bytes]:
    """figure.png and figure.pdf; {} where there is none. `rows` are averaged over seeds."""
    if not artifact.figures:
        return {}
    with mpl.rc_context(STYLE):
        return saved(canvas_of(artifact, scale, rows, labels), "figure")


def canvas_of(
    artifact: Artifact, scale: Scale, rows: pd.DataFrame, labels: Sequence[str]
) -> Canvas:
    """The figures of an artifact, below one another, before they are laid out and saved."""
    drawn = [_Drawing(artifact, spec, rows, labels) for spec in artifact.figures]
    looks = _looks(drawn)
    width, heights = max(one.size[0] for one in drawn), [one.size[1] for one in drawn]
    canvas = Canvas(figsize=(width, sum(heights)), layout="constrained")
    parts = [canvas]
    if len(drawn) > 1:
        grid = canvas.subfigures(len(drawn), 1, height_ratios=heights, squeeze=False)
        parts = list(grid[:, 0])
    for one, part in zip(drawn, parts, strict=True):
        one.fill(part, looks)
        if one.spec.title and len(drawn) > 1:
            part.suptitle(one.spec.title, fontsize=9)
    canvas.suptitle(_title(artifact, scale, drawn), fontsize=10)
    return canvas


class _Drawing:
    """One figure: its cells, its panels, and how large it is in inches."""

    def __init__(
        self, artifact: Artifact, spec: Figure, rows: pd.DataFrame, labels: Sequence[str]
    ) -> None:
        self.artifact, self.spec, self.rows, self.labels = artifact, spec, rows, labels
        found = matching(rows, spec.where, labels)
        found = found[found[MEASURE].isin(list(spec.measures)) & found["value"].notna()]
        found = found[found["value"] > 0] if "y" in spec.log else found
        self.found: list[Cell] = records(found)
        panels = [self.values(name) for name in spec.panels]
        self.down, self.across = 1, 1
        self.keys: list[tuple[Any, ...]] = [()]
        if len(panels) == 1:
            count = len(panels[0]) or 1
            self.down, self.across = math.ceil(count / 4) if count > 4 else 1, min(count, 4)
            self.keys = [(value,) for value in panels[0]]
        elif panels:
            self.down, self.across = len(panels[0]) or 1, len(panels[1]) or 1
            self.keys = list(itertools.product(*panels))
        self.names: list[Any] = [None]
        if spec.series:
            self.names = self.values(spec.series)
        elif len(spec.measures) > 1:
            self.names = list(spec.measures)
        self.styles = self.values(spec.style) if spec.style else [None]
        if spec.kind == "heatmap":
            self.size = 2.7 * self.across + 1.6, 2.1 * self.down + 1.0
        else:
            bars = len(self.values(spec.x)) * len(self.names) if spec.kind == "bars" else 0
            width = max(3.3, min(NARROWEST * bars + 0.8, 7.5)) * self.across
            self.size = max(4.8, width), (2.7 if spec.style is None else 3.6) * self.down + 1.1

    def values(self, name: str) -> list[Any]:
        """The values of a label that occur here, in the table's order."""
        present = {cell.get(name, "") for cell in self.found} - {""}
        if name not in self.rows:
            return in_order(present)
        return [one for one in in_order(self.rows[name]) if one in present]

    def fill(self, canvas: Any, looks: Mapping[tuple[Any, Any], int]) -> None:
        """Draws into a figure or a part of one."""
        spec, artifact = self.spec, self.artifact
        axes = canvas.subplots(self.down, self.across, squeeze=False, sharey=spec.share_y)
        names = {name: looks[spec.series, name] for name in self.names}
        for position, (axis, key) in enumerate(zip(axes.flat, self.keys, strict=False)):
            panel = dict(zip(spec.panels, key, strict=True))
            inside = [one for one in self.found if all(one[n] == v for n, v in panel.items())]
            axis.set_title(", ".join(heading(artifact, *pair) for pair in panel.items()))
            if spec.kind == "heatmap":
                row = [one for one in self.found if not key or one[spec.panels[0]] == key[0]]
                beside = [one["value"] for one in row]
                image = self._heatmap(axis, inside, colour_scale(beside, "colour" in spec.log))
                if position % self.across == self.across - 1:  # one scale a row of panels
                    bar = canvas.colorbar(image, ax=axes[position // self.across].tolist())
                    bar.set_label(self._axis_title(spec.measures))
                continue
            if spec.kind == "lines":
                self._lines(axis, self._placed(inside), names)
                self._marks(axis, {**spec.where, **panel}, names)
            else:
                self._bars(axis, inside, names)
            if not spec.share_y or position % self.across == 0:
                shown = sorted({cell[MEASURE] for cell in inside})
                axis.set_ylabel(spec.y_title or self._axis_title(shown))
        for axis in axes.flat[len(self.keys) :]:
            axis.set_visible(False)
        legend(canvas, axes, self.size[0], always=spec.kind == "bars")

    def _axis_title(self, measures: Sequence[str]) -> str:
        known = [
            self.artifact.measures[name] for name in measures if name in self.artifact.measures
        ]
        units = {one.unit for one in known}
        unit = f" ({units.pop()})" if len(units) == 1 and units != {""} else ""
        return ", ".join(self.artifact.title_of(name) for name in measures) + unit

    def _of(self, inside: Sequence[Cell], name: Any) -> list[Cell]:
        column = self.spec.series or MEASURE
        return [cell for cell in inside if name is None or cell[column] == name]

    def _placed(self, inside: Sequence[Cell]) -> list[tuple[float, Cell]]:
        """The finite cells with a place on the x axis: a numeric label, or another measure's
        value.
        """
        x, keys = self.spec.x, [*self.labels, ROUND, RANK]
        places: dict[Any, Any] = {}
        if x in self.artifact.measures:
            for cell in records(self.rows[self.rows[MEASURE] == x]):
                places[tuple(cell[name] for name in keys)] = cell["value"]
            found = [(places.get(tuple(cell[name] for name in keys)), cell) for cell in inside]
        else:
            found = [(cell.get(x), cell) for cell in inside]
        return [
            (float(place), cell)
            for place, cell in found
            if isinstance(place, int | float)
            and math.isfinite(place)
            and math.isfinite(cell["value"])
        ]

    def _cut(self, name: Any) -> str:
        """What the legend adds for a line that goes beyond the given range of y."""
        if not self.spec.y_range:
            return ""
        low, high = self.spec.y_range
        mine = [one["value"] for one in self._of(self.found, name) if math.isfinite(one["value"])]
        sides = ["below"] * (min(mine, default=low) < low)
        sides += ["above"] * (max(mine, default=high) > high)
        return f" (continues {' and '.join(sides)} the axis)" if sides else ""

    def _lines(
        self, axis: Axes, inside: Sequence[tuple[float, Cell]], names: Mapping[Any, int]
    ) -> None:
        spec, title, many = self.spec, self.artifact.title_of, len(self.styles)
        for (name, look), (number, second) in itertools.product(
            names.items(), enumerate(self.styles)
        ):
            column = spec.series or MEASURE
            placed = [
                (x, cell)
                for x, cell in inside
                if (name is None or cell[column] == name)
                and (spec.style is None or cell[spec.style] == second)
            ]
            if not placed:
                continue
            placed.sort(key=lambda pair: pair[0])
            xs = np.array([x for x, _ in placed])
            ys = np.array([cell["value"] for _, cell in placed])
            colour, style = COLOURS[look % len(COLOURS)], STYLES[look % len(STYLES)]
            every: Any = 1 if len(placed) <= MARKED else None
            label = None if name is None else title(name) + self._cut(name)
            if spec.style is not None:
                colour, style = shade(colour, number, many), dashes(number, many)
                every, label = (number, max(1, len(placed) // 6)), None
            marker = None if every is None else MARKERS[look % len(MARKERS)]
            shape: Any = {"marker": marker, "markevery": every, "markersize": 4, "linewidth": 1.6}
            axis.plot(xs, ys, color=colour, linestyle=style, label=label, **shape)
            spread = np.array([cell["std"] for _, cell in placed], float)
            if spec.spread and not np.all(np.isnan(spread)):
                spread = np.nan_to_num(spread)
                low = ys - spread
                if "y" in spec.log:  # a band below zero ends below the lowest point drawn
                    low = np.where(low > 0, low, ys.min() * 0.5)
                if spec.spread_floor is not None:
                    low = np.maximum(low, spec.spread_floor)
                alpha = 0.18 / many**0.5
                axis.fill_between(xs, low, ys + spread, color=colour, alpha=alpha, linewidth=0)
        if spec.style is not None:  # the legend names either label once, not every pair
            for name, look in names.items():
                colour, marker = COLOURS[look % len(COLOURS)], MARKERS[look % len(MARKERS)]
                shown = title(name) + self._cut(name)
                axis.plot([], [], color=colour, marker=marker, markersize=4, label=shown)
            for number, second in enumerate(self.styles):
                grey, shown = (
                    shade("#000000", number, many),
                    heading(self.artifact, spec.style, second),
                )
                axis.plot([], [], color=grey, linestyle=dashes(number, many), label=shown)
        self._ticks(axis, sorted({x for x, _ in inside}))
        self._y_axis(axis)
        axis.set_xlabel(spec.x_title or self._axis_title([spec.x]))

    def _y_axis(self, axis: Axes) -> None:
        if "y" in self.spec.log:
            axis.set_yscale("log")
        if self.spec.y_range:
            axis.set_ylim(*self.spec.y_range)

    def _ticks(self, axis: Axes, places: Sequence[float]) -> None:
        """On a log x axis with few places ticks at these places, of whole numbers at whole ones."""
        if "x" not in self.spec.log:
            if all(x.is_integer() for x in places):
                steps = [1, 2, 2.5, 5, 10]
                axis.xaxis.set_major_locator(MaxNLocator(nbins="auto", steps=steps, integer=True))
            return
        axis.set_xscale("log")
        places = [x for x in places if x > 0]
        if not 0 < len(places) <= TICKED:
            return
        ticks = list(places[:1])
        for x in places[1:]:
            if math.log(x / ticks[-1]) >= SPACED * math.log(places[-1] / places[0]):
                ticks.append(x)
        measured = self.spec.x in self.artifact.measures
        texts = [
            number_text(self.artifact, self.spec.x, x) if measured else f"{x:g}" for x in ticks
        ]
        axis.set_xticks(ticks, texts)
        axis.xaxis.set_minor_locator(NullLocator())

    def _marks(self, axis: Axes, panel: Mapping[str, Any], names: Mapping[Any, int]) -> None:
        """Vertical lines at numbers, and at the values of measures in this panel."""
        for mark in self.spec.marks:
            fixed = isinstance(mark.at, int | float)
            places = (
                [(float(mark.at), GREY)] if fixed else self._values_at(str(mark.at), panel, names)
            )
            for place, colour in places:
                axis.axvline(place, color=colour, linewidth=1.2, linestyle=":")
            if places:  # the legend names all of them once
                axis.plot([], [], color=GREY, linewidth=1.2, linestyle=":", label=mark.title)

    def _values_at(
        self, measure: str, panel: Mapping[str, Any], names: Mapping[Any, int]
    ) -> list[tuple[float, str]]:
        """(value, colour) of every different value of a measure whose labels fit the panel's."""
        series = self.spec.series
        found: dict[tuple[float, Any], None] = {}
        for cell in records(self.rows[self.rows[MEASURE] == measure]):
            own = {name: value for name, value in panel.items() if cell.get(name, "") != ""}
            fits = not matching(pd.DataFrame([cell]), own, [*self.labels]).empty
            name = (cell[series] or None) if series else None
            if fits and math.isfinite(cell["value"]) and (name is None or name in names):
                found[float(f"{cell['value']:.6g}"), name] = None
        values = {value for value, _ in found}
        if len(values) == 1:
            return [(values.pop(), GREY)]
        colour = {name: COLOURS[look % len(COLOURS)] for name, look in names.items()} | {None: GREY}
        return [(value, colour[name]) for value, name in found]

    def _bars(self, axis: Axes, inside: Sequence[Cell], names: Mapping[Any, int]) -> None:
        spec, artifact = self.spec, self.artifact
        groups = in_order(cell[spec.x] for cell in inside)
        width = 0.8 / max(len(names), 1)
        for position, (name, look) in enumerate(names.items()):
            offset = (position - (len(names) - 1) / 2) * width
            mine = {groups.index(cell[spec.x]) + offset: cell for cell in self._of(inside, name)}
            mark_diverged(axis, [x for x, one in mine.items() if math.isinf(one["value"])], width)
            shown = {x: cell for x, cell in mine.items() if math.isfinite(cell["value"])}
            if not shown:
                continue
            spread = np.array([cell["std"] for cell in shown.values()], float)
            errors = None if not spec.spread or np.all(np.isnan(spread)) else np.nan_to_num(spread)
            bars = axis.bar(
                list(shown),
                [cell["value"] for cell in shown.values()],
                width * 0.92,
                yerr=errors,
                capsize=2,
                color=COLOURS[look % len(COLOURS)],
                hatch=HATCHES[look % len(HATCHES)],
                edgecolor="white",
                label=None if name is None else artifact.title_of(name),
                error_kw={"linewidth": 1},
            )
            if spec.numbers:
                texts = [
                    number_text(artifact, one[MEASURE], one["value"]) for one in shown.values()
                ]
                axis.bar_label(bars, texts, fontsize=6.5, padding=2)
            known = {x: cell["paper"] for x, cell in shown.items() if not math.isnan(cell["paper"])}
            size: Any = {"markersize": max(7.0, 22 * width), "markeredgewidth": 1.6}
            for x, value in known.items():
                axis.plot([x], [value], "_", color="black", label=PAPER, **size)
        crowded = len(groups) > 4
        wide = 24 if crowded else 40 // max(len(groups), 1)
        texts = [textwrap.fill(artifact.title_of(g), wide, break_long_words=False) for g in groups]
        turned = crowded and max(len(text) for text in texts) > 5
        look_of: Any = (
            {"rotation": 30, "ha": "right"} if turned else {"rotation": 0, "ha": "center"}
        )
        axis.set_xticks(range(len(groups)), texts, fontsize=7.5, **look_of)
        axis.grid(axis="x", visible=False)
        self._y_axis(axis)
        if spec.x_title or all(isinstance(group, int | float) for group in groups):
            axis.set_xlabel(spec.x_title or artifact.title_of(spec.x))

    def _heatmap(self, axis: Axes, inside: Sequence[Cell], norm: Normalize) -> Any:
        spec, title = self.spec, self.artifact.title_of
        xs, ys = (sorted({cell[name] for cell in inside}) for name in (spec.x, spec.y))
        grid = np.full((len(ys), len(xs)), np.nan)
        for cell in inside:
            value = cell["value"] if math.isfinite(cell["value"]) else np.nan
            grid[ys.index(cell[spec.y]), xs.index(cell[spec.x])] = value
        shown = np.ma.masked_invalid(grid)
        image = axis.imshow(shown, cmap="cividis", aspect="auto", origin="lower", norm=norm)
        axis.grid(visible=False)
        axis.set_xticks(range(len(xs)), [f"{value:g}" for value in xs])
        axis.set_yticks(range(len(ys)), [f"{value:g}" for value in ys])
        axis.set_xlabel(spec.x_title or title(spec.x))
        axis.set_ylabel(spec.y_title or title(spec.y))
        centred: Any = {"ha": "center", "va": "center", "fontsize": 6.5}
        for cell in inside:
            x, y = xs.index(cell[spec.x]), ys.index(cell[spec.y])
            if not math.isfinite(cell["value"]):
                axis.text(x, y, "div.", color="#444444", **centred)
                continue
            red, green, blue, _ = image.to_rgba(np.array([cell["value"]]))[0]
            colour = "white" if 0.299 * red + 0.587 * green + 0.114 * blue < 0.5 else "black"
            text = re.sub(r"e\+?(-?)0*", r"e\1", f"{cell['value']:.3g}")
            axis.text(x, y, text, color=colour, **centred)
            if cell[BEST]:
                frame: Any = {"fill": False, "edgecolor": "#D55E00", "linewidth": 2}
                box = mpl.patches.Rectangle((x - 0.48, y - 0.48), 0.96, 0.96, **frame)
                axis.add_patch(box)
        return image


def _looks(drawn: Sequence[_Drawing]) -> dict[tuple[Any, Any], int]:
    """(label, value) -> number of its colour, the same in all figures of an artifact."""
    found: dict[tuple[Any, Any], int] = {}
    for label in dict.fromkeys(one.spec.series for one in drawn):
        names = [name for one in drawn if one.spec.series == label for name in one.names]
        order = dict.fromkeys(names if label is None else in_order(names))
        found |= {(label, name): number for number, name in enumerate(order)}
    return found


def _title(artifact: Artifact, scale: Scale, drawn: Sequence[_Drawing]) -> str:
    cells = [(one.spec, cell) for one in drawn for cell in one.found]
    runs = sorted({int(cell["n"]) for _, cell in cells})
    seeds = ""
    if runs and artifact.trains:
        count = "–".join(str(n) for n in dict.fromkeys((runs[0], runs[-1])))
        seeds = f", {count} seed{'s' if runs[-1] > 1 else ''}"
    banded = (cell for spec, cell in cells if spec.spread and spec.kind != "heatmap")
    spread = any(not math.isnan(cell["std"]) for cell in banded)
    reduced = ", reduced size" if scale != "paper" and not artifact.size(scale).full else ""
    wide = min(110, int(12.5 * max(one.size[0] for one in drawn)))
    about = f"{artifact.name}, scale {scale}{reduced}{seeds}{' (± 1 standard deviation)' * spread}"
    return "\n".join(textwrap.fill(text, wide) for text in (artifact.title, about))
