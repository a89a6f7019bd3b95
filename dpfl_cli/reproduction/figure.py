"""An artifact's figure: panels of lines, bars or heat maps; equal rows give equal bytes."""

import itertools
import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.patches import Rectangle

from dpfl_cli.reproduction.artifact import Artifact, Figure
from dpfl_cli.reproduction.layout import heading, measure_of
from dpfl_cli.reproduction.look import (
    GREY,
    LOOKS,
    STYLE,
    WIDEST,
    colour_scale,
    draw_curve,
    draw_fits,
    in_even_lines,
    legend,
    place_ticks,
    saved,
    short,
)
from dpfl_cli.reproduction.measure import Where
from dpfl_cli.reproduction.rows import Rows, as_list, in_order, labels_of, matching, records

FEW, LOW = 3, 2.1  # more rows of panels than that are lower, in inches, to be seen together
NARROW, USUAL = 2.0, 3.3  # inches of a panel, at least and at most
NARROWEST = 0.13  # inches of a bar, up to a width of the panel
LETTERS = 12.5  # of a title in an inch


def draw(artifact: Artifact, rows: Rows) -> dict[str, bytes]:
    """figure.png and figure.pdf; {} where there is none."""
    if not artifact.figures:
        return {}
    with mpl.rc_context(STYLE):
        return saved(canvas_of(artifact, rows), "figure")


def canvas_of(artifact: Artifact, rows: Rows) -> Canvas:
    """The figures of an artifact, below one another, before they are laid out and saved."""
    drawn = [_Drawing(artifact, spec, rows) for spec in artifact.figures]
    _give_looks(drawn, artifact.paper.looks if artifact.paper else {})
    width, heights = max(one.size[0] for one in drawn), [one.size[1] for one in drawn]
    canvas = Canvas(figsize=(width, sum(heights)), layout="constrained")
    parts = canvas.subfigures(len(drawn), height_ratios=heights, squeeze=False)
    for one, part in zip(drawn, parts.flat, strict=True):
        legend(part, one.fill(part), one.size[0], one.spec.title, one.low)
    canvas.suptitle(_title(artifact, drawn, int(LETTERS * width)), fontsize=10)
    return canvas


class _Drawing:
    """One figure: its cells, its panels, and how large it is in inches."""

    def __init__(self, artifact: Artifact, spec: Figure, rows: Rows) -> None:
        self.artifact, self.spec, self.rows = artifact, spec, rows.means
        found = matching(self.rows, {**spec.where, "measure": spec.measures})
        found = found[found["value"].notna()]
        self.column = spec.series or "measure"  # a line or a bar for each of its values
        below = (found["value"] <= 0) & ("y" in spec.log)  # a logarithmic axis has no place for
        self.found, self.below = found[~below], set(found.loc[below, self.column])
        if isinstance(spec.spread, str):
            self.found = self.found.assign(std=self._beside(self.found, spec.spread))
        names = self.values(spec.series) if spec.series else list(spec.measures)
        self.named = bool(spec.series) or len(names) > 1  # in the legend
        self.names = dict.fromkeys(names, LOOKS[0])
        least, most, beside = NARROW, USUAL, 0.0
        if spec.kind == "bars":
            bars = len(self.values(spec.x)) * len(names)
            least = most = max(USUAL, min(NARROWEST * bars + 0.8, 7.5))
        elif spec.kind == "heatmap":
            least, most, beside = 2.7, 2.7, 1.6
        # a row for each value of the first of two labels, which goes on in more rows of equal
        # length where it is too wide; None is an empty place
        panels = [self.values(name) for name in spec.panels]
        keys = list(itertools.product(*panels))
        along = (len(panels[1]) if len(panels) > 1 else len(keys)) or 1
        lines = math.ceil(along / max(1, round((WIDEST - beside) / least)))
        self.across = math.ceil(along / lines)
        empty = [None] * (lines * self.across - along)
        starts = range(0, len(keys), along)
        self.keys = [key for at in starts for key in (*keys[at : at + along], *empty)] or [None]
        self.down = len(self.keys) // self.across
        self.low = self.down > FEW - (len(artifact.figures) > 1)  # others stand below it
        height = LOW if spec.kind == "heatmap" or self.low else 2.7
        self.width = min(most, (WIDEST - beside) / self.across)
        self.size = max(4.8, self.width * self.across + beside), height * self.down + 1.1

    def _beside(self, cells: pd.DataFrame, measure: str) -> pd.Series:
        """What another measure says where these cells are."""
        keys = [*labels_of(cells), "round", "rank"]
        values = self.rows[self.rows["measure"] == measure].set_index(keys)["value"]
        return cells[keys].join(values, on=keys)["value"]

    def values(self, name: str) -> list[Any]:
        """The values of a label that occur here, in the table's order."""
        present = set(self.found[name]) - {""}
        return [one for one in in_order(self.rows[name]) if one in present]

    def fill(self, canvas: Any) -> Any:
        """Draws into a part of a figure; returns its panels."""
        spec, artifact = self.spec, self.artifact
        axes = canvas.subplots(self.down, self.across, squeeze=False, sharey=spec.share_y)
        images: dict[int, Any] = {}  # of heat maps, the last one of each row
        letters = int(LETTERS * self.width)  # of a panel's title
        for position, (axis, key) in enumerate(zip(axes.flat, self.keys, strict=True)):
            if key is None:
                axis.set_visible(False)
                continue
            panel = dict(zip(spec.panels, key, strict=True))
            inside = matching(self.found, panel)
            words = ", ".join(heading(artifact, *pair) for pair in panel.items())
            axis.set_title(in_even_lines(words, letters) if words else "")
            if spec.kind == "heatmap":
                row = matching(self.found, dict(list(panel.items())[:-1]))
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
        # axis titles stand at the left and below the last of every column
        across = spec.x_title or self._axis_title([spec.x])
        for column in axes.T:
            for last in [axis for axis in column if axis.get_visible()][-1:]:
                last.set_xlabel(textwrap.fill(across, letters))
        up = [spec.y] if spec.kind == "heatmap" else self.values("measure")
        for first, *_ in axes:
            first.set_ylabel(spec.y_title or self._axis_title(up))
        for number, image in images.items():
            title = self._axis_title(spec.measures)
            canvas.colorbar(image, ax=axes[number].tolist(), label=title)
        return axes

    def spread(self, cells: pd.DataFrame) -> list[pd.Series]:
        """The lower and the upper ends of what these cells, of one measure, spread over, if they
        do.
        """
        if not self.spec.spread or cells["std"].isna().all():
            return []
        known = self.artifact.measures.get(cells["measure"].iloc[0])
        # what was chosen among values of a setting, as local steps, is not negative
        bounds = known.bounds if known else (0.0, None)
        width = cells["std"].fillna(0)
        return [(cells["value"] + side * width).clip(*bounds) for side in (-1, 1)]

    def _axis_title(self, measures: Sequence[str]) -> str:
        known = self.artifact.measures
        units = {known[name].unit for name in measures if name in known}
        unit = f" ({units.pop()})" if len(units) == 1 and units != {""} else ""
        return ", ".join(map(self.artifact.title_of, measures)) + unit

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
        place_ticks(axis, sorted(set(inside["at"])), "x" in spec.log)

    def _mark(self, axis: Axes, measure: str, title: str, panel: Where) -> None:
        """Vertical lines at every different value of a measure whose labels, where it has them, are
        the panel's; in the colour of its series, if they are several.
        """
        where = {"measure": measure, **{name: [*as_list(one), ""] for name, one in panel.items()}}
        found = matching(self.rows, where)
        found = found[np.isfinite(found["value"])]
        values = found["value"].map("{:.6g}".format).astype(float)
        places = dict(zip(values, found[self.column], strict=True))  # -> whose it is
        line: Any = {"linewidth": 1.2, "linestyle": ":"}
        for place, name in places.items():
            look = self.names.get(name) if len(places) > 1 else None
            axis.axvline(place, color=look.colour if look else GREY, **line)
        if places:  # the legend names all of them once
            axis.plot([], [], color=GREY, label=title, **line)

    def _bars(self, axis: Axes, inside: pd.DataFrame) -> None:
        spec, artifact = self.spec, self.artifact
        groups = in_order(inside[spec.x])
        width = 0.8 / max(len(self.names), 1)
        for position, (name, look) in enumerate(self.names.items()):
            offset = (position - (len(self.names) - 1) / 2) * width
            mine = inside[inside[self.column] == name]
            mine = mine.assign(at=[groups.index(one) + offset for one in mine[spec.x]])
            lost = mine.loc[np.isinf(mine["value"]), "at"]
            if len(lost):  # an arrow at the top, where a bar has no end
                whole = axis.get_xaxis_transform()  # x in data, y from bottom to top of the panel
                tops = [0.96] * len(lost)
                axis.plot(lost, tops, "k^", markersize=7, transform=whole, label="diverged")
            shown = mine[np.isfinite(mine["value"])]
            if shown.empty:
                continue
            bars = axis.bar(
                shown["at"],
                shown["value"],
                width * 0.92,
                yerr=[abs(end - shown["value"]) for end in self.spread(shown)] or None,
                capsize=2,
                color=look.colour,
                hatch=look.hatch,
                edgecolor="white",
                label=artifact.title_of(name) if self.named else None,
                error_kw={"linewidth": 1},
            )
            if spec.numbers:
                texts = [measure_of(artifact, cell).text(cell["value"]) for cell in records(shown)]
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
                    label="paper",
                )
        crowded = len(groups) > 4
        wide = 24 if crowded else 40 // max(len(groups), 1)
        texts = [textwrap.fill(artifact.title_of(g), wide, break_long_words=False) for g in groups]
        turn: Any = {"rotation": 30, "ha": "right"} if crowded else {}
        axis.set_xticks(range(len(groups)), texts, fontsize=7.5, **turn)
        axis.grid(axis="x", visible=False)

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
        for cell in records(finite):
            x, y = xs.index(cell[spec.x]), ys.index(cell[spec.y])
            text = short(cell["value"])
            colour = "white" if norm(cell["value"]) < 0.5 else "black"
            if math.isnan(cell["value"]):
                text, colour = "div.", "#444444"
            axis.text(x, y, text, color=colour, ha="center", va="center", fontsize=6.5)
            if cell["best"]:
                corner = x - 0.48, y - 0.48
                axis.add_patch(
                    Rectangle(corner, 0.96, 0.96, fill=False, edgecolor="#D55E00", linewidth=2)
                )
        return image


def _give_looks(drawn: Sequence[_Drawing], fixed: Mapping[str, Mapping[Any, int]]) -> None:
    """The look of every series, the same in all figures of an artifact, and of a paper where it
    says so.
    """
    for column in {one.column for one in drawn}:
        mine = [one for one in drawn if one.column == column]
        order = in_order(name for one in mine for name in one.names)
        known = fixed.get(column, {})
        taken = {known[name] for name in order if name in known}
        free = (number for number in itertools.count() if number not in taken)
        numbers = {name: known[name] if name in known else next(free) for name in order}
        for one in mine:
            one.names = {name: LOOKS[numbers[name] % len(LOOKS)] for name in one.names}


def _title(artifact: Artifact, drawn: Sequence[_Drawing], wide: int) -> str:
    runs = pd.concat([one.found for one in drawn]).dropna(subset="seed")["n"]  # fits have no seed
    parts = [artifact.name, f"scale {artifact.scale}", *([] if artifact.full else ["reduced size"])]
    if len(runs) and artifact.trains:
        count = "–".join(dict.fromkeys(f"{n:.0f}" for n in (runs.min(), runs.max())))
        parts.append(f"{count} seed{'s' if runs.max() > 1 else ''}")
    spreads = any(
        one.found["std"].notna().any()
        for one in drawn
        if one.spec.spread and one.spec.kind != "heatmap"
    )
    about = ", ".join(parts) + " (± 1 standard deviation)" * spreads
    return "\n".join(in_even_lines(text, min(110, wide)) for text in (artifact.title, about))
