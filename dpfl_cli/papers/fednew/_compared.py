"""Artifacts that compare DP-FedNew's methods, each at the best point of its grid."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from dpfl_cli.papers.fednew import TITLES
from dpfl_cli.papers.fednew._claims import SHORT
from dpfl_cli.papers.fednew._search import (
    ACCURACY,
    CHOSEN,
    KEPT,
    KEPT_OF_LONG,
    LEFT_OUT,
    OF_CURVES,
    RECORD_LEVEL,
    SCAFFOLD,
    SELECTION,
    SMOKE,
    Methods,
    Point,
    Points,
    SearchSetting,
    checked,
    run,
    search,
    staged,
    whole_grid,
)
from dpfl_cli.reproduction.api import (
    Artifact,
    Best,
    Figure,
    Metric,
    Runs,
    Scale,
    Size,
    Table,
    Where,
    between,
    sized,
)


def compared(
    source: str,
    methods: Sequence[str],
    places: Callable[[Scale], Iterable[SearchSetting]],
    notes_of_sizes: Sequence[str],
    minutes: tuple[float, float],
    *,
    seeds: tuple[int, int] = (1, 5),
    part: str = "",
    side: Sequence[str] = ("task",),
    epsilons: Mapping[str, Sequence[float]] = OF_CURVES,
    points: Points = search,
    level: Methods = RECORD_LEVEL,
    keep: int | None = None,
    longer_from: float = 0.0,
    **own: Any,
) -> Artifact:
    """A table or figure of methods, each at the best point of its grid; a figure has curves too.

    Args:
      places: where the search is made at a scale.
      notes_of_sizes: what is smaller than in the paper, at quick and paper.
      minutes: at quick and paper.
      part: of the paper's cells at scale=paper, where not all are run.
      seeds: at quick and paper.
      longer_from: the epsilon from which DP-SCAFFOLD's longest local steps are searched.
      keep: the points of a grid that go on to full size; `KEPT` by default, or `KEPT_OF_LONG`
        where there are three seeds.
      side: labels of the places.
      points, level: of a method's grid, and what it is, at record level or user level.
    """

    whole = checked(methods, places("paper"), epsilons["paper"])

    def runs(scale: Scale) -> Runs:
        few = SMOKE if scale == "smoke" else {}
        for method, (place, preset, values) in itertools.product(methods, places(scale)):
            if place.get("task") in LEFT_OUT.get(method, ()):
                continue
            for eps, point in itertools.product(epsilons[scale], points(method, scale, preset)):
                labels = {"method": method, **place, "eps": eps, **point}
                if eps >= longer_from or point.get("length", 0.0) <= SHORT["length"]:
                    yield run(preset, labels, {**values, **few}, level)

    def beyond() -> Runs:
        for method, (place, preset, values) in itertools.product(methods, places("paper")):
            few = list(points(method, "paper", preset))
            for eps, point in itertools.product(epsilons["paper"], whole_grid(tuple(few[0]))):
                cell = {"method": method, **place, "eps": eps}
                if cell in whole and point not in few:
                    yield run(preset, {**cell, **point}, values, level)

    kind, number = source.split()
    curves = kind == "Figure"
    grids = {method: tuple(next(iter(points(method, "quick", "")))) for method in methods}
    over = tuple(dict.fromkeys(itertools.chain(*grids.values())))
    always: list[Point] = [
        {"method": one} | dict.fromkeys(grids[one], 1.0) for one in methods if one == "FGD"
    ]
    if "Scaf" in methods and not curves:
        always.append(SHORT)
    measures = {"selection": SELECTION, "accuracy": ACCURACY}
    if "Scaf" in methods:
        measures["spent"] = SPENT
    if curves:
        measures["curve"] = Metric("accuracy", "series", where={"best": True})
    return Artifact(
        id=f"{'fig' if curves else 'table'}{number}",
        source=source,
        sizes=sized(
            Size(seeds[0], minutes[0], notes_of_sizes[0]),
            Size(seeds[1], minutes[1], notes_of_sizes[1], cells=part),
        ),
        runs=runs,
        measures=measures,
        show={"origin": "source"},
        best=[Best(over, "selection", note=CHOSEN)],
        search=staged(whole, always, keep or (KEPT if seeds[1] > 3 else KEPT_OF_LONG), beyond),
        tables=list(_tables(side, grids, curves)),
        figures=list(_figures(side, methods, epsilons, curves)),
        **own,
    )


SPENT = Metric(
    "privacy.epsilon",
    summary="max",
    decimals=4,
    title="epsilon spent",
    where={"method": SCAFFOLD, "best": True},
)


def _figures(
    side: Sequence[str],
    methods: Sequence[str],
    epsilons: Mapping[str, Sequence[float]],
    curves: bool,
) -> Iterator[Figure]:
    """Accuracy over rounds or numbers of clients, of all methods and, at three epsilons and from
    round 5 on, without DP-SCAFFOLD, beside whose noise the others are hard to tell apart.
    """
    shown = [one for one in methods if not one.endswith("_narrow")]
    few = [eps for eps in (0.1, 1.0, 10.0) if eps in itertools.chain(*epsilons.values())]
    others = [one for one in shown if one not in SCAFFOLD]
    both = 1 < len(others) < len(shown)
    if curves:
        over = partial(Figure, "lines", "round", "curve", panels=[*side, "eps"])
    else:
        over = partial(
            Figure, "lines", "clients", "accuracy", panels="eps", x_title="number of clients"
        )
    over = partial(over, series="method")
    where: Where = {} if curves else {"best": True, "eps": few}
    yield over(where={"method": shown, **where}, title="all methods" * both, share_y=not curves)
    if both:
        from_5 = {"round": between(5, 70)} if curves else {}
        where = {**where, "eps": few, **from_5, "method": others}
        yield over(where=where, title=f"without DP-SCAFFOLD{', from round 5 on' * curves}")


def _tables(
    side: Sequence[str], grids: Mapping[str, Sequence[str]], curves: bool
) -> Iterator[Table]:
    """With the labels of places and the method down the side, over epsilon."""

    over_epsilon = partial(Table, rows=[*side, "method"], columns="eps")
    accuracy, with_scaffold = "est accuracy (%) after the last round", "Scaf" in grids
    yield over_epsilon(
        f"T{accuracy}, best point of each grid",
        cells="accuracy",
        where={"best": True},
        notes="DP-SCAFFOLD: every client adds the whole noise of the target epsilon, as the "
        "paper's tables at record level need (Algorithm 4, at client level, prints a share of it, "
        "which stands beside); what that spends stands in the next table."
        if with_scaffold
        else (),
    )
    if with_scaffold:
        yield over_epsilon(
            f"DP-SCAFFOLD's best points: t{accuracy}, and the epsilon that they spend",
            cells=["accuracy", "spent"],
            where={"method": SCAFFOLD, "best": True},
        )
    for grid in dict.fromkeys(grids.values()):
        mine = [method for method in grids if grids[method] == grid]
        whose, what = (", ".join(TITLES[name] for name in names) for names in (mine, grid))
        cells = [f"best.{label}" for label in grid]
        caption = f"What was the best, {what}: {whose}"
        yield over_epsilon(caption, cells=cells, where={"method": mine})
    if "FGD" in grids:
        yield Table(
            f"DP-FedGD at every server step: t{accuracy}",
            [*side, *reversed(grids["FGD"])],
            "eps",
            "accuracy",
            where={"method": "FGD"},
        )
    if curves:
        yield Table(
            "Test accuracy (%) on the way, best point of each grid",
            [*side, "eps", "method"],
            "round",
            "curve",
            where={"round": [5, 10, 15, 20, 30, 50, 70]},
        )
