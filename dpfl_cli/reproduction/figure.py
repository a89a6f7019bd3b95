"""An artifact's figure: panels of lines, bars or heat maps; equal rows give equal bytes."""

from __future__ import annotations

import itertools
import math
import re
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib as mpl
import matplotlib.patches
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import MaxNLocator, NullLocator

from dpfl_cli.reproduction.artifact import Artifact, Figure, Scale
from dpfl_cli.reproduction.layout import heading, number_text
from dpfl_cli.reproduction.look import (
    COLOURS,
    GREY,
    HATCHES,
    LETTERS,
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
from dpfl_cli.reproduction.rows import in_order, matching


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
    looks = _looks(drawn, artifact.paper.looks if artifact.paper else {})
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
        self.found = found[found["value"] > 0] if "y" in spec.log else found
        panels = [self.values(name) for name in spec.panels]
        self.keys = list(itertools.product(*panels))
        self.across = (len(panels[1]) if len(panels) > 1 else min(len(self.keys), 4)) or 1
        self.down = math.ceil(len(self.keys) / self.across) or 1
        self.column = spec.series or MEASURE  # a line or a bar for each of its values
        self.names = self.values(spec.series) if spec.series else list(spec.measures)
        self.named = spec.series is not None or len(self.names) > 1  # in the legend
        if spec.kind == "heatmap":
            self.size = 2.7 * self.across + 1.6, 2.1 * self.down + 1.0
        else:
            bars = len(self.values(spec.x)) * len(self.names) if spec.kind == "bars" else 0
            width = max(3.3, min(NARROWEST * bars + 0.8, 7.5)) * self.across
            self.size = max(4.8, width), (2.7 if spec.style is None else 3.6) * self.down + 1.1

    def values(self, name: str) -> list[Any]:
        """The values of a label that occur here, in the table's order."""
        present = set(self.found[name]) if name in self.rows else set()
        return [one for one in in_order(self.rows[name]) if one in present - {""}]

    def look_of(self, name: Any) -> tuple[str | None, Any]:
        """What a series has its colour by, in all figures of an artifact."""
        return self.spec.series, name if self.named else None

    def fill(self, canvas: Any, looks: Mapping[tuple[Any, Any], int]) -> None:
        """Draws into a figure or a part of one."""
        spec, artifact = self.spec, self.artifact
        axes = canvas.subplots(self.down, self.across, squeeze=False, sharey=spec.share_y)
        names = {name: looks[self.look_of(name)] for name in self.names}
        for position, (axis, key) in enumerate(zip(axes.flat, self.keys, strict=False)):
            panel = dict(zip(spec.panels, key, strict=True))
            inside = matching(self.found, panel, self.labels)
            words = ", ".join(heading(artifact, *pair) for pair in panel.items())
            axis.set_title(textwrap.fill(words, int(LETTERS * self.size[0] / self.across)))
            if spec.kind == "heatmap":
                row = matching(self.found, dict(list(panel.items())[:1]), self.labels)
                image = self._heatmap(
                    axis, inside, colour_scale(list(row["value"]), "colour" in spec.log)
                )
                if position % self.across == self.across - 1:  # one scale a row of panels
                    bar = canvas.colorbar(image, ax=axes[position // self.across].tolist())
                    bar.set_label(self._axis_title(spec.measures))
                continue
            if spec.kind == "lines":
                self._lines(axis, self._placed(inside), names)
                self._marks(axis, {**spec.where, **panel}, names)
            else:
                self._bars(axis, inside, names)
            if "y" in spec.log:
                axis.set_yscale("log")
            if spec.y_range:
                axis.set_ylim(*spec.y_range)
            if not spec.share_y or position % self.across == 0:
                axis.set_ylabel(spec.y_title or self._axis_title(sorted(set(inside[MEASURE]))))
        for axis in axes.flat[len(self.keys) :]:
            axis.set_visible(False)
        legend(canvas, axes, self.size[0], always=spec.kind == "bars")

    def _axis_title(self, measures: Sequence[str]) -> str:
        known = self.artifact.measures
        units = {known[name].unit for name in measures if name in known}
        unit = f" ({units.pop()})" if len(units) == 1 and units != {""} else ""
        return ", ".join(self.artifact.title_of(name) for name in measures) + unit

    def _placed(self, inside: pd.DataFrame) -> pd.DataFrame:
        """The finite cells with a place on the x axis, in its order: `at`, a numeric label or
        another measure's value.
        """
        x, keys = self.spec.x, [*self.labels, ROUND, RANK]
        if x in self.artifact.measures:
            places = self.rows[self.rows[MEASURE] == x].set_index(keys)["value"].rename("at")
            placed = inside.join(places, on=keys)
        else:
            placed = inside.assign(at=inside[x])
        placed["at"] = pd.to_numeric(placed["at"], errors="coerce").astype(float)
        finite = np.isfinite(placed["at"]) & np.isfinite(placed["value"])
        return placed[finite].sort_values("at", kind="stable")

    def _title_of(self, name: Any) -> str | None:
        """What the legend says of a series, also where it goes beyond the given range of y."""
        if not self.named:
            return None
        mine = self.found.loc[self.found[self.column] == name, "value"]
        low, high = self.spec.y_range or (-math.inf, math.inf)
        sides = ["below"] * bool((mine < low).any())
        sides += ["above"] * bool((mine[np.isfinite(mine)] > high).any())
        cut = f" (continues {' and '.join(sides)} the axis)" if sides else ""
        return self.artifact.title_of(name) + cut

    def _lines(self, axis: Axes, inside: pd.DataFrame, names: Mapping[Any, int]) -> None:
        spec, artifact = self.spec, self.artifact
        styles = self.values(spec.style) if spec.style else [None]
        many = len(styles)
        for (name, look), (number, second) in itertools.product(names.items(), enumerate(styles)):
            placed = inside[inside[self.column] == name]
            placed = placed[placed[spec.style] == second] if spec.style else placed
            if placed.empty:
                continue
            xs, ys = placed["at"].to_numpy(), placed["value"].to_numpy(float)
            colour, style = COLOURS[look % len(COLOURS)], STYLES[look % len(STYLES)]
            every: Any = 1 if len(placed) <= MARKED else None
            label = self._title_of(name)
            if spec.style is not None:
                colour, style = shade(colour, number, many), dashes(number, many)
                every, label = (number, max(1, len(placed) // 6)), None
            marker = None if every is None else MARKERS[look % len(MARKERS)]
            shape: Any = {"marker": marker, "markevery": every, "markersize": 4, "linewidth": 1.6}
            axis.plot(xs, ys, color=colour, linestyle=style, label=label, **shape)
            spread = placed["std"].to_numpy(float)
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
                title = self._title_of(name)
                axis.plot([], [], color=colour, marker=marker, markersize=4, label=title)
            for number, second in enumerate(styles):
                grey, title = shade("#000000", number, many), heading(artifact, spec.style, second)
                axis.plot([], [], color=grey, linestyle=dashes(number, many), label=title)
        self._ticks(axis, sorted(set(inside["at"])))
        axis.set_xlabel(spec.x_title or self._axis_title([spec.x]))

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
            places = (
                self._values_at(mark.at, panel, names)
                if isinstance(mark.at, str)
                else [(float(mark.at), GREY)]
            )
            for place, colour in places:
                axis.axvline(place, color=colour, linewidth=1.2, linestyle=":")
            if places:  # the legend names all of them once
                axis.plot([], [], color=GREY, linewidth=1.2, linestyle=":", label=mark.title)

    def _values_at(
        self, measure: str, panel: Mapping[str, Any], names: Mapping[Any, int]
    ) -> list[tuple[float, str]]:
        """(value, colour) of every different value of a measure whose labels, where it has them,
        are the panel's.
        """
        found = self.rows[(self.rows[MEASURE] == measure) & np.isfinite(self.rows["value"])]
        for name, wanted in panel.items():
            fits = matching(found, {name: wanted}, self.labels).index
            found = found[found.index.isin(fits) | (found[name] == "")]
        colour = {"": GREY} | {name: COLOURS[look % len(COLOURS)] for name, look in names.items()}
        own = found[self.spec.series].map(colour) if self.spec.series else GREY
        values = [float(f"{value:.6g}") for value in found["value"]]
        places = found.assign(value=values, own=own)[["value", "own"]].dropna().drop_duplicates()
        if places["value"].nunique() == 1:
            return [(places["value"].iloc[0], GREY)]
        return list(places.itertuples(index=False, name=None))

    def _bars(self, axis: Axes, inside: pd.DataFrame, names: Mapping[Any, int]) -> None:
        spec, artifact = self.spec, self.artifact
        groups = in_order(inside[spec.x])
        width = 0.8 / max(len(names), 1)
        for position, (name, look) in enumerate(names.items()):
            offset = (position - (len(names) - 1) / 2) * width
            mine = inside[inside[self.column] == name]
            mine = mine.assign(at=[groups.index(one) + offset for one in mine[spec.x]])
            mark_diverged(axis, mine.loc[np.isinf(mine["value"]), "at"], width)
            shown = mine[np.isfinite(mine["value"])]
            if shown.empty:
                continue
            spread = shown["std"].to_numpy(float)
            errors = None if not spec.spread or np.all(np.isnan(spread)) else np.nan_to_num(spread)
            bars = axis.bar(
                shown["at"],
                shown["value"],
                width * 0.92,
                yerr=errors,
                capsize=2,
                color=COLOURS[look % len(COLOURS)],
                hatch=HATCHES[look % len(HATCHES)],
                edgecolor="white",
                label=artifact.title_of(name) if self.named else None,
                error_kw={"linewidth": 1},
            )
            if spec.numbers:
                cells = zip(shown[MEASURE], shown["value"], strict=True)
                texts = [number_text(artifact, measure, value) for measure, value in cells]
                axis.bar_label(bars, texts, fontsize=6.5, padding=2)
            known = shown[shown["paper"].notna()]
            size: Any = {"markersize": max(7.0, 22 * width), "markeredgewidth": 1.6}
            if not known.empty:
                axis.plot(known["at"], known["paper"], "_", color="black", label=PAPER, **size)
        crowded = len(groups) > 4
        wide = 24 if crowded else 40 // max(len(groups), 1)
        texts = [textwrap.fill(artifact.title_of(g), wide, break_long_words=False) for g in groups]
        turned = crowded and max(len(text) for text in texts) > 5
        turn: Any = {"rotation": 30, "ha": "right"} if turned else {}
        axis.set_xticks(range(len(groups)), texts, fontsize=7.5, **turn)
        axis.grid(axis="x", visible=False)
        if spec.x_title or all(isinstance(group, int | float) for group in groups):
            axis.set_xlabel(spec.x_title or artifact.title_of(spec.x))

    def _heatmap(self, axis: Axes, inside: pd.DataFrame, norm: Normalize) -> Any:
        spec, title = self.spec, self.artifact.title_of
        xs, ys = (sorted(inside[name].unique()) for name in (spec.x, spec.y))
        places = inside[spec.x].map(xs.index), inside[spec.y].map(ys.index)
        values = inside["value"].where(np.isfinite(inside["value"]))
        grid = np.full((len(ys), len(xs)), np.nan)
        grid[places[1], places[0]] = values
        shown = np.ma.masked_invalid(grid)
        image = axis.imshow(shown, cmap="cividis", aspect="auto", origin="lower", norm=norm)
        axis.grid(visible=False)
        axis.set_xticks(range(len(xs)), [f"{value:g}" for value in xs])
        axis.set_yticks(range(len(ys)), [f"{value:g}" for value in ys])
        axis.set_xlabel(spec.x_title or title(spec.x))
        axis.set_ylabel(spec.y_title or title(spec.y))
        centred: Any = {"ha": "center", "va": "center", "fontsize": 6.5}
        for x, y, value, best in zip(*places, values, inside[BEST], strict=True):
            if math.isnan(value):
                axis.text(x, y, "div.", color="#444444", **centred)
                continue
            red, green, blue, _ = image.to_rgba(np.array([value]))[0]
            colour = "white" if 0.299 * red + 0.587 * green + 0.114 * blue < 0.5 else "black"
            text = re.sub(r"e\+?(-?)0*", r"e\1", f"{value:.3g}")
            axis.text(x, y, text, color=colour, **centred)
            if best:
                frame: Any = {"fill": False, "edgecolor": "#D55E00", "linewidth": 2}
                box = mpl.patches.Rectangle((x - 0.48, y - 0.48), 0.96, 0.96, **frame)
                axis.add_patch(box)
        return image


def _looks(
    drawn: Sequence[_Drawing], fixed: Mapping[str, Mapping[Any, int]]
) -> dict[tuple[Any, Any], int]:
    """(label, value) -> number of its colour, the same in all figures of an artifact, and of a
    paper where it says so.
    """
    found: dict[tuple[Any, Any], int] = {}
    for label in dict.fromkeys(one.spec.series for one in drawn):
        mine = [one for one in drawn if one.spec.series == label]
        names = [one.look_of(name)[1] for one in mine for name in one.names]
        order = dict.fromkeys(names if label is None else in_order(names))
        known = fixed.get(label, {}) if label else {}
        taken = {known[name] for name in order if name in known}
        free = (number for number in itertools.count() if number not in taken)
        found |= {(label, name): known[name] if name in known else next(free) for name in order}
    return found


def _title(artifact: Artifact, scale: Scale, drawn: Sequence[_Drawing]) -> str:
    runs = sorted({int(n) for one in drawn for n in one.found["n"]})
    seeds = ""
    if runs and artifact.trains:
        count = "–".join(str(n) for n in dict.fromkeys((runs[0], runs[-1])))
        seeds = f", {count} seed{'s' if runs[-1] > 1 else ''}"
    banded = [one for one in drawn if one.spec.spread and one.spec.kind != "heatmap"]
    spread = any(one.found["std"].notna().any() for one in banded)
    reduced = "" if artifact.full(scale) else ", reduced size"
    wide = min(110, int(LETTERS * max(one.size[0] for one in drawn)))
    about = f"{artifact.name}, scale {scale}{reduced}{seeds}{' (± 1 standard deviation)' * spread}"
    return "\n".join(textwrap.fill(text, wide) for text in (artifact.title, about))
