"""What figures are like, whatever they are of."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure as Canvas

from dpfl_cli.config.errors import ConfigError
from dpfl_cli.reproduction.api import (
    Artifact,
    Derived,
    Figure,
    Metric,
    Paper,
    Run,
    Scale,
    Size,
    grid,
)
from dpfl_cli.reproduction.figure import canvas_of
from dpfl_cli.reproduction.look import COLOURS, WIDEST, place_ticks
from dpfl_cli.reproduction.measure import Measure
from dpfl_cli.reproduction.tables import framed, rows_of

ACCURACY = Metric("accuracy", "last")
Numbers = Sequence[tuple[Mapping[str, Any], Sequence[float]]]  # of a cell, seed by seed


def no_runs(scale: Scale) -> Iterator[Run]:
    yield from ()


def drawn(
    figures: Figure | Sequence[Figure],
    measures: Mapping[str, Measure],
    numbers: Numbers,
    paper: Paper | None = None,
) -> Canvas:
    """The figure of these numbers; a cell without a measure is of the first one. One number of a
    cell is of no seed.
    """
    artifact = Artifact(
        paper=paper,
        id="drawn",
        title="Drawn",
        shows="Numbers.",
        sizes={"quick": Size(seeds=2, minutes=0.1)},
        runs=no_runs,
        measures=measures,
        figures=[figures] if isinstance(figures, Figure) else figures,
    )
    rows = [
        {
            "measure": next(iter(measures)),
            **cell,
            "seed": seed if len(values) > 1 else math.nan,
            "value": value,
        }
        for cell, values in numbers
        for seed, value in enumerate(values)
    ]
    labels = [name for name in numbers[0][0] if name != "measure"]
    return canvas_of(artifact, rows_of(artifact, framed(artifact, labels, rows)))


def titles(canvas: Canvas) -> list[str]:
    """Of the panels, row by row; "" where none is drawn."""
    return [axis.get_title() if axis.get_visible() else "" for axis in canvas.axes]


# --- panels -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("number", "down", "across"), [(4, 2, 4), (6, 2, 6), (7, 4, 4), (9, 4, 5)])
def test_a_row_of_panels_goes_on_where_it_is_too_wide(number: int, down: int, across: int) -> None:
    """It is one line of them where these need not be too narrow; each line has one axis title."""
    epsilons = range(1, number + 1)
    cells = [(cell, (1.0, 2.0)) for cell in grid(task=("a", "b"), eps=epsilons, T=(1, 2))]
    spec = Figure("lines", "T", "accuracy", panels=["task", "eps"])
    canvas = drawn(spec, {"accuracy": ACCURACY}, cells)
    row = [*(f"eps {eps}" for eps in epsilons), *[""] * (down * across // 2 - number)]
    assert titles(canvas) == [title and f"{task}, {title}" for task in "ab" for title in row]
    place = canvas.axes[0].get_subplotspec()
    assert place is not None
    assert place.get_gridspec().get_geometry() == (down, across)
    labels = [axis.get_ylabel() for axis in canvas.axes if axis.get_visible()]
    assert labels.count("test accuracy (%)") == down


@pytest.mark.parametrize("number", [1, 4, 7])
@pytest.mark.parametrize("kind", ["lines", "bars", "heatmap"])
@pytest.mark.parametrize("panels", [["eps"], ["task", "eps"]])
def test_no_figure_is_wider_than_a_page_shows(kind: Any, panels: list[str], number: int) -> None:
    many = grid(task="a", eps=range(number), x=range(60 if kind == "bars" else 2), y=1)
    spec = Figure(kind, "x", "accuracy", y="y", panels=panels)
    canvas = drawn(spec, {"accuracy": ACCURACY}, [(cell, (1.0, 2.0)) for cell in many])
    assert canvas.get_size_inches()[0] <= WIDEST
    assert sum(title != "" for title in titles(canvas)) == number


def test_a_legend_says_what_a_line_leaves_out() -> None:
    values = {"zero": [1.0, 0.0, 0.1], "lost": [1.0, 2.0, math.inf], "whole": [3.0, 2.0, 1.0]}
    cells = [
        ({"method": method, "x": x}, (value, value))
        for method, numbers in values.items()
        for x, value in enumerate(numbers)
    ]
    for log, zero in (((), ""), (("y",), " (not above 0 where it is not drawn)")):
        spec = Figure("lines", "x", "loss", series="method", log=log)
        canvas = drawn(spec, {"loss": Metric("loss", "last")}, cells)
        (legend,) = canvas.subfigs[0].legends
        said = {text.get_text() for text in legend.get_texts()}
        assert said == {f"zero{zero}", "lost (diverged where it is not drawn)", "whole"}


def test_heat_maps_of_one_label_have_one_colour_scale() -> None:
    """Of two labels those with one value of the first; a bar beside each row of panels."""
    accuracies = {("a", 1): 10.0, ("b", 1): 20.0, ("a", 2): 30.0, ("b", 2): 40.0}
    cells = [
        ({"task": task, "eps": eps, "x": 1, "y": 1}, (value, value))
        for (task, eps), value in accuracies.items()
    ]
    for panels, wanted in (("task", [(10, 40)]), (["eps", "task"], [(10, 20), (30, 40)])):
        spec = Figure("heatmap", "x", "accuracy", y="y", panels=panels)
        shown = cells if len(wanted) > 1 else [cells[0], cells[3]]
        canvas = drawn(spec, {"accuracy": ACCURACY}, shown)
        images = [image for axis in canvas.axes for image in axis.get_images()]
        assert list(dict.fromkeys(image.get_clim() for image in images)) == wanted
        assert len(canvas.axes) - len(images) == len(wanted)


# --- bounds, seeds, looks -------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["lines", "bars"])
@pytest.mark.parametrize(
    ("measure", "low", "high"),
    [
        (ACCURACY, 0, 100),
        (Metric("test_error", "last"), 0, 100),
        (Metric("train_loss", "last", better="lower"), 0, math.inf),
        (Metric("train_loss", "last"), -math.inf, math.inf),
    ],
)
def test_nothing_is_drawn_where_a_measure_cannot_be(
    kind: Any, measure: Measure, low: float, high: float
) -> None:
    assert measure.bounds == (low, high)
    canvas = drawn(
        Figure(kind, "T", "loss"),
        {"loss": measure},
        [({"T": 1}, (0.0, 30.0)), ({"T": 2}, (70.0, 100.0))],
    )
    (axis,) = canvas.axes
    (spread,) = axis.collections  # a band, or the lines of error bars
    ends = [y for path in spread.get_paths() for y in np.asarray(path.vertices)[:, 1]]
    std = math.sqrt(450)
    assert (min(ends), max(ends)) == pytest.approx((max(15 - std, low), min(85 + std, high)))


LOOKING = Paper(
    "looking",
    "Nobody",
    "Looks",
    "2026",
    looks={"measure": {"first": 2, "second": 2}},
)


def test_measures_have_the_papers_colours() -> None:
    figures = [Figure("lines", "T", [one, "third"]) for one in ("first", "second")]
    measures = dict.fromkeys(("first", "second", "third"), ACCURACY)
    numbers = [({"measure": measure, "T": at}, (1.0, 2.0)) for measure in measures for at in (1, 2)]
    canvas = drawn(figures, measures, numbers, LOOKING)
    lines = [[line.get_color() for line in axis.lines] for axis in canvas.axes]
    assert lines == [[COLOURS[2], COLOURS[0]]] * 2


def test_what_has_no_seed_does_not_count_as_one() -> None:
    fit = Derived(lambda rows: 1.0, "T", by_seed=False)
    numbers = [({"measure": "mean", "T": 1}, (1.0, 2.0)), ({"measure": "fit", "T": 1}, (1.5,))]
    canvas = drawn(Figure("lines", "T", ["mean", "fit"]), {"mean": ACCURACY, "fit": fit}, numbers)
    assert "2 seeds" in canvas.get_suptitle()


def test_fits_are_curves_and_bands_may_be_of_another_measure() -> None:
    numbers: list[tuple[dict[str, Any], list[float]]] = []
    for x in (1.0, 4.0, 9.0):
        numbers += [({"x": x, "m": "a"}, [1 + x**0.5] * 2)]
        numbers += [({"x": x, "m": "a", "measure": "wide"}, [2.0, 4.0])]
    figure = Figure(
        "lines",
        "x",
        "mean",
        series="m",
        spread="wide",
        fits={"x": float, "root": math.sqrt},
    )
    measures = {name: Metric("loss", "last") for name in ("mean", "wide")}
    (axis,) = drawn(figure, measures, numbers).axes
    line, straight, root = axis.lines
    assert straight.get_label() == "a in x: R^2 0.98"
    assert root.get_label() == "a in root: R^2 1.00"
    np.testing.assert_allclose(root.get_ydata(), 1 + np.sqrt(root.get_xdata()))
    assert {one.get_color() for one in (line, straight, root)} == {COLOURS[0]}
    (band,) = axis.collections
    ends = np.asarray(band.get_paths()[0].vertices)
    assert set(ends[ends[:, 0] == 4.0, 1]) == {0.0, 6.0}


def test_a_spread_is_a_measure_or_none() -> None:
    with pytest.raises(ConfigError, match=r"figure: spread=\{.accuracy.: .std.\}: input should be"):
        Figure("lines", "T", "accuracy", spread={"accuracy": "std"})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("places", "texts"),
    [
        ([1.0, 1000.0, 5000.0, 10000.0], ["1", "1000", "", "10000"]),
        ([1.0, 5.0, 20.0, 50.0, 125.0, 250.0, 500.0], ["1", "5", "20", "50", "125", "250", "500"]),
    ],
)
def test_numbers_below_an_axis_do_not_meet(places: list[float], texts: list[str]) -> None:
    axis = Canvas().subplots()
    place_ticks(axis, places, logarithmic=True)
    assert [label.get_text() for label in axis.get_xticklabels()] == texts
