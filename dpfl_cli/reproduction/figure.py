"""An artifact's figure: panels of lines, bars or heat maps; equal rows give equal bytes."""

import itertools
import math
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import matplotlib as mpl
import matplotlib.patches
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas

from dpfl_cli.reproduction.artifact import Artifact, Figure, Scale
from dpfl_cli.reproduction.layout import heading, number_text
from dpfl_cli.reproduction.look import (
    GREY,
    HIDING,
    LETTERS,
    LOOKS,
    MARKED,
    NARROW,
    NARROWEST,
    PAPER,
    STYLE,
    WIDEST,
    Look,
    at_commas,
    colour_scale,
    draw_curve,
    draw_fits,
    entries_of,
    in_even_lines,
    legend,
    mark_beyond,
    mark_diverged,
    place_ticks,
    saved,
    short,
)
from dpfl_cli.reproduction.measure import BEST, MEASURE, RANK, ROUND, SEED
from dpfl_cli.reproduction.rows import Rows, in_order, matching, records


def draw(artifact: Artifact, scale: Scale, rows: Rows) -> dict[str, bytes]:
    """figure.png and figure.pdf; {} where there is none."""
    if not artifact.figures:
        return {}
    with mpl.rc_context(STYLE):
        return saved(canvas_of(artifact, scale, rows), "figure")


def canvas_of(artifact: Artifact, scale: Scale, rows: Rows) -> Canvas:
    """The figures of an artifact, below one another, before they are laid out and saved."""
    drawn = [_Drawing(artifact, spec, rows) for spec in artifact.figures]
    _give_looks(drawn, artifact.paper.looks if artifact.paper else {})
    width, heights = max(one.size[0] for one in drawn), [one.size[1] for one in drawn]
    canvas = Canvas(figsize=(width, sum(heights)), layout="constrained")
    several = len(drawn) > 1
    parts: Any = canvas.subfigures(len(drawn), height_ratios=heights) if several else [canvas]
    after: Any = None
    for one, part in reversed([*zip(drawn, parts, strict=True)]):
        entries = one.fill(part)
        look = one.spec.kind, one.names, [*entries]
        if look != after:  # once below figures that have the same
            legend(part, entries, one.size[0], always=one.spec.kind == "bars")
        after = look
        if several and one.spec.title:
            part.suptitle(one.spec.title, fontsize=9)
    canvas.suptitle(_title(artifact, scale, drawn), fontsize=10)
    return canvas


class _Drawing:
    """One figure: its cells, its panels, and how large it is in inches."""

    def __init__(self, artifact: Artifact, spec: Figure, rows: Rows) -> None:
        self.artifact, self.spec, self.rows, self.labels = artifact, spec, rows.means, rows.labels
        found = matching(self.rows, {**spec.where, MEASURE: spec.measures}, self.labels)
        found = found[found["value"].notna()]
        self.column = spec.series or MEASURE  # a line or a bar for each of its values
        below = (found["value"] <= 0) & ("y" in spec.log)  # a logarithmic axis has no place for
        self.found, self.below = found[~below], set(found.loc[below, self.column])
        if isinstance(spec.spread, str):
            self.found = self.found.assign(std=self._beside(self.found, spec.spread))
        self.least, self.most = self.found["value"].agg(["min", "max"])
        names = self.values(spec.series) if spec.series else list(spec.measures)
        self.named = spec.series is not None or len(names) > 1  # in the legend
        self.names: dict[Any, Look] = dict.fromkeys(names, LOOKS[0])
        self.places: dict[Any, Look] = {}  # of bars along x, where these are of no series
        self.narrow = False  # its panels, so that a row of them is one line
        panels = [self.values(name) for name in spec.panels]
        if spec.kind == "heatmap":
            self._lay_out(panels, 2.7, WIDEST - 1.6)
            self.size = 2.7 * self.across + 1.6, 2.1 * self.down + 1.0
        else:
            bars = len(self.values(spec.x)) * len(names) if spec.kind == "bars" else 0
            width = max(3.3, min(NARROWEST * bars + 0.8, 7.5))
            row = len(panels[1]) if len(panels) > 1 and spec.kind == "lines" else 0
            self.narrow = round(WIDEST / width) < row <= WIDEST / NARROW
            if self.narrow:
                width = WIDEST / row
            self._lay_out(panels, width, WIDEST)
            height = 2.1 if self.narrow else 2.7
            self.size = max(4.8, min(width * self.across, WIDEST)), height * self.down + 1.1

    def _lay_out(self, panels: Sequence[Sequence[Any]], width: float, widest: float) -> None:
        """The panels' keys, row by row: a row for each value of the first of two labels, which goes
        on in more rows of equal length where it is too wide. None is an empty place.
        """
        keys = list(itertools.product(*panels))
        along = (len(panels[1]) if len(panels) > 1 else len(keys)) or 1
        lines = math.ceil(along / max(1, round(widest / width)))
        self.across = math.ceil(along / lines)
        empty: list[tuple[Any, ...] | None] = [None] * (lines * self.across - along)
        starts = range(0, len(keys), along)
        self.keys = [key for at in starts for key in (*keys[at : at + along], *empty)] or [None]
        self.down = len(self.keys) // self.across

    def _beside(self, cells: pd.DataFrame, measure: str) -> pd.Series:
        """What another measure says where these cells are."""
        keys = [*self.labels, ROUND, RANK]
        values = self.rows[self.rows[MEASURE] == measure].set_index(keys)["value"]
        return cells[keys].join(values, on=keys)["value"]

    def values(self, name: str) -> list[Any]:
        """The values of a label that occur here, in the table's order."""
        present = set(self.found[name]) - {""}
        return [one for one in in_order(self.rows[name]) if one in present]

    def fill(self, canvas: Any) -> dict[str, Any]:
        """Draws into a part of a figure; returns what its legend says."""
        spec, artifact = self.spec, self.artifact
        axes = canvas.subplots(self.down, self.across, squeeze=False, sharey=spec.share_y)
        images: dict[int, Any] = {}  # of heat maps, the last one of each row
        letters = int(LETTERS * self.size[0] / self.across)  # of a panel's title
        for position, (axis, key) in enumerate(zip(axes.flat, self.keys, strict=True)):
            if key is None:
                axis.set_visible(False)
                continue
            panel = dict(zip(spec.panels, key, strict=True))
            inside = matching(self.found, panel, self.labels)
            words = ", ".join(heading(artifact, *pair) for pair in panel.items())
            axis.set_title(at_commas(words, letters))
            axis.set_xlabel(spec.x_title or self._axis_title([spec.x]))
            if spec.kind == "heatmap":
                row = matching(self.found, dict(list(panel.items())[:-1]), self.labels)
                images[position // self.across] = self._heatmap(axis, inside, row["value"])
                continue
            if spec.kind == "lines":
                self._lines(axis, self._placed(inside))
                for measure, title in spec.marks.items():
                    self._mark(axis, measure, title, {**spec.where, **panel})
            else:
                self._bars(axis, inside)
            if "y" in spec.log:
                axis.set_yscale("log")
            if spec.y_range:
                axis.set_ylim(*spec.y_range)
            if not spec.share_y or position % self.across == 0:
                axis.set_ylabel(spec.y_title or self._axis_title(sorted(set(inside[MEASURE]))))
        if self.narrow:
            _say_once(axes, letters)
        if spec.kind != "heatmap" and not spec.y_range:
            self._keep_inside(axes)
        for number, image in images.items():
            bar = canvas.colorbar(image, ax=axes[number].tolist())
            bar.set_label(self._axis_title(spec.measures))
        return entries_of(axes)

    def _bounds(self, measures: Iterable[str]) -> tuple[float, float]:
        """What none of these measures can leave; a bound that some number breaks is none."""
        known, endless = self.artifact.measures, (-math.inf, math.inf)
        bounds = [known[name].bounds if name in known else endless for name in measures]
        lows, highs = zip(*(bounds or [endless]), strict=True)
        low, high = max(self.spec.spread_floor, min(lows)), max(highs)
        return -math.inf if self.least < low else low, math.inf if self.most > high else high

    def spread(self, cells: pd.DataFrame) -> list[pd.Series]:
        """The lower and the upper ends of what these cells spread over, if they do."""
        if not self.spec.spread or cells["std"].isna().all():
            return []
        bounds, width = self._bounds(set(cells[MEASURE])), cells["std"].fillna(0)
        return [(cells["value"] + side * width).clip(*bounds) for side in (-1, 1)]

    def _keep_inside(self, axes: Any) -> None:
        """Ends the axes at the measures' bounds, unless that would hide a line that lies there."""
        low, high = self._bounds(self.spec.measures)
        for axis in axes.flat:
            bottom, top = axis.get_ylim()
            room = (top - bottom) * HIDING
            floor = low if self.least > low + room else bottom
            ceiling = high if self.most < high - room else top
            if axis.get_visible() and (bottom < floor or top > ceiling):
                axis.set_ylim(max(bottom, floor), min(top, ceiling))

    def _axis_title(self, measures: Sequence[str]) -> str:
        known = self.artifact.measures
        units = {known[name].unit for name in measures if name in known}
        unit = f" ({units.pop()})" if len(units) == 1 and units != {""} else ""
        return ", ".join(self.artifact.title_of(name) for name in measures) + unit

    def _placed(self, inside: pd.DataFrame) -> pd.DataFrame:
        """The finite cells with a place on the x axis, in its order: `at`, a numeric label or
        another measure's value.
        """
        x = self.spec.x
        at = self._beside(inside, x) if x in self.artifact.measures else inside[x]
        placed = inside.assign(at=pd.to_numeric(at, errors="coerce").astype(float))
        finite = np.isfinite(placed["at"]) & np.isfinite(placed["value"])
        return placed[finite].sort_values("at", kind="stable")

    def _title_of(self, name: Any) -> str | None:
        """What the legend says of a series, also where it goes beyond the given range of y."""
        if not self.named:
            return None
        mine = self.found.loc[self.found[self.column] == name, "value"]
        finite = mine[np.isfinite(mine)]
        inside = finite.clip(*(self.spec.y_range or (None, None)))
        notes = {
            "continues beyond the axis": not finite.equals(inside),
            "not above 0 where it is not drawn": name in self.below,
            "diverged where it is not drawn": len(finite) < len(mine),
        }
        said = "; ".join(note for note, true in notes.items() if true)
        title = heading(self.artifact, self.column, name)
        return title + (f" ({said})" if said else "")

    def _lines(self, axis: Axes, inside: pd.DataFrame) -> None:
        spec = self.spec
        for name, look in self.names.items():
            placed = inside[inside[self.column] == name]
            if placed.empty:
                continue
            at, value, title = placed["at"], placed["value"], self._title_of(name)
            draw_curve(axis, look, title, at, value, *self.spread(placed))
            draw_fits(axis, look, title, at, value, spec.fits)
            if spec.y_range and len(placed) <= MARKED:
                points = dict(zip(at, value, strict=True))
                mark_beyond(axis, points, spec.y_range, look.colour)
        place_ticks(axis, sorted(set(inside["at"])), "x" in spec.log)

    def _mark(self, axis: Axes, measure: str, title: str, panel: Mapping[str, Any]) -> None:
        """Vertical lines at every different value of a measure whose labels, where it has them, are
        the panel's; in the colour of its series, if they are several.
        """
        found = self.rows[(self.rows[MEASURE] == measure) & np.isfinite(self.rows["value"])]
        for name, wanted in panel.items():
            fits = matching(found, {name: wanted}, self.labels).index
            found = found[found.index.isin(fits) | (found[name] == "")]
        colours = {"": GREY} | {name: look.colour for name, look in self.names.items()}
        own = found[self.spec.series].map(colours) if self.spec.series else GREY
        found = found.assign(value=found["value"].map("{:.6g}".format).astype(float), colour=own)
        places = found[["value", "colour"]].dropna().drop_duplicates()
        alone = places["value"].nunique() == 1
        line: Any = {"linewidth": 1.2, "linestyle": ":"}
        for place, colour in places.itertuples(index=False):
            axis.axvline(place, color=GREY if alone else colour, **line)
        if len(places):  # the legend names all of them once
            axis.plot([], [], color=GREY, label=title, **line)

    def _bars(self, axis: Axes, inside: pd.DataFrame) -> None:
        spec, artifact = self.spec, self.artifact
        groups = in_order(inside[spec.x])
        width = 0.8 / max(len(self.names), 1)
        for position, (name, look) in enumerate(self.names.items()):
            offset = (position - (len(self.names) - 1) / 2) * width
            mine = inside[inside[self.column] == name]
            mine = mine.assign(at=[groups.index(one) + offset for one in mine[spec.x]])
            mark_diverged(axis, mine.loc[np.isinf(mine["value"]), "at"], width)
            shown = mine[np.isfinite(mine["value"])]
            if shown.empty:
                continue
            looks = [self.places.get(one, look) for one in shown[spec.x]]
            bars = axis.bar(
                shown["at"],
                shown["value"],
                width * 0.92,
                yerr=[abs(end - shown["value"]) for end in self.spread(shown)] or None,
                capsize=2,
                color=[one.colour for one in looks],
                hatch=[one.hatch for one in looks],
                edgecolor="white",
                label=artifact.title_of(name) if self.named else None,
                error_kw={"linewidth": 1},
            )
            if spec.numbers:
                cells = zip(shown[MEASURE], shown["value"], strict=True)
                texts = [number_text(artifact, measure, value) for measure, value in cells]
                axis.bar_label(bars, texts, fontsize=6.5, padding=2)
            known = shown[shown["paper"].notna()]
            if not known.empty:
                axis.plot(
                    known["at"],
                    known["paper"],
                    "_",
                    color="black",
                    markersize=max(7.0, 22 * width),
                    markeredgewidth=1.6,
                    label=PAPER,
                )
        crowded = len(groups) > 4
        wide = 24 if crowded else 40 // max(len(groups), 1)
        texts = [textwrap.fill(artifact.title_of(g), wide, break_long_words=False) for g in groups]
        turned = crowded and max(len(text) for text in texts) > 5
        turn: Any = {"rotation": 30, "ha": "right"} if turned else {}
        axis.set_xticks(range(len(groups)), texts, fontsize=7.5, **turn)
        axis.grid(axis="x", visible=False)
        if not spec.x_title and any(isinstance(group, str) for group in groups):
            axis.set_xlabel("")  # they say themselves what they are

    def _heatmap(self, axis: Axes, inside: pd.DataFrame, scaled: pd.Series) -> Any:
        """Its image, with the colour scale of the numbers `scaled`."""
        spec = self.spec
        finite = inside.assign(value=inside["value"].where(np.isfinite(inside["value"])))
        places = finite[spec.y], finite[spec.x]
        grid = pd.crosstab(*places, values=finite["value"], aggfunc="mean", dropna=False)
        xs, ys = list(grid.columns), list(grid.index)
        norm = colour_scale(scaled, "colour" in spec.log)
        image = axis.imshow(grid, cmap="cividis", aspect="auto", origin="lower", norm=norm)
        axis.grid(visible=False)
        axis.set_xticks(range(len(xs)), [f"{value:g}" for value in xs])
        axis.set_yticks(range(len(ys)), [f"{value:g}" for value in ys])
        axis.set_ylabel(spec.y_title or self._axis_title([spec.y]))
        for cell in records(finite):
            x, y = xs.index(cell[spec.x]), ys.index(cell[spec.y])
            text = short(cell["value"])
            colour = "white" if norm(cell["value"]) < 0.5 else "black"
            if math.isnan(cell["value"]):
                text, colour = "div.", "#444444"
            axis.text(x, y, text, color=colour, ha="center", va="center", fontsize=6.5)
            if cell[BEST]:
                corner = x - 0.48, y - 0.48
                frame = mpl.patches.Rectangle(
                    corner, 0.96, 0.96, fill=False, edgecolor="#D55E00", linewidth=2
                )
                axis.add_patch(frame)
        return image


def _say_once(axes: Any, letters: int) -> None:
    """Leaves the titles of axes at the left and below the last row: panels are too narrow."""
    for first, *others in axes:
        for axis in others:
            if axis.get_ylabel() == first.get_ylabel():
                axis.set_ylabel("")
    for column in axes.T:
        *others, last = [axis for axis in column if axis.get_visible()]
        for axis in others:
            axis.set_xlabel("")
        last.set_xlabel(textwrap.fill(last.get_xlabel(), letters))


def _give_looks(drawn: Sequence[_Drawing], fixed: Mapping[str, Mapping[Any, int]]) -> None:
    """The look of every named series, the same in all figures of an artifact, and of a paper where
    it says so.
    """
    for column in {one.column for one in drawn}:
        mine = [one for one in drawn if one.named and one.column == column]
        order = in_order(name for one in mine for name in one.names)
        known = fixed.get(column, {})
        taken = {known[name] for name in order if name in known}
        free = (number for number in itertools.count() if number not in taken)
        numbers = {name: known[name] if name in known else next(free) for name in order}
        for one in mine:
            one.names = {name: LOOKS[numbers[name] % len(LOOKS)] for name in one.names}
    for one in drawn:
        if not one.named:
            one.names = {name: LOOKS[fixed.get(MEASURE, {}).get(name, 0)] for name in one.names}
            one.places = {name: LOOKS[look] for name, look in fixed.get(one.spec.x, {}).items()}


def _title(artifact: Artifact, scale: Scale, drawn: Sequence[_Drawing]) -> str:
    made = (one.found[one.found[SEED].notna()] for one in drawn)  # a fit to means has no seed
    runs = sorted({int(n) for one in made for n in one["n"]})
    seeds = ""
    if runs and artifact.trains:
        count = "–".join(str(n) for n in dict.fromkeys((runs[0], runs[-1])))
        seeds = f", {count} seed{'s' if runs[-1] > 1 else ''}"
    spread = any(one.spread(one.found) for one in drawn if one.spec.kind != "heatmap")
    reduced = "" if artifact.full(scale) else ", reduced size"
    wide = min(110, int(LETTERS * max(one.size[0] for one in drawn)))
    about = f"{artifact.name}, scale {scale}{reduced}{seeds}{' (± 1 standard deviation)' * spread}"
    alone = drawn[0].spec.title if len(drawn) == 1 else ""
    words = [in_even_lines(text, wide) for text in (artifact.title, alone) if text]
    return "\n".join([*words, at_commas(about, wide)])
