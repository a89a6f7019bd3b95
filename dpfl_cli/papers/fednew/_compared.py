"""Artifacts that compare DP-FedNew's methods, each at the best point of its grid."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from dpfl_cli.papers.fednew import OURS, TITLES, WIDER
from dpfl_cli.papers.fednew._claims import SHORT, SLOW
from dpfl_cli.papers.fednew._search import (
    ACCURACY,
    EPSILONS,
    KEPT,
    KEPT_OF_LONG,
    LEFT_OUT,
    NEWTON_GRID,
    OF_CURVES,
    RECORD_LEVEL,
    SCAFFOLD,
    SELECTION,
    TUNED,
    Data,
    Methods,
    Points,
    Tasks,
    run,
    search,
    staged,
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
    grid,
    sized,
)


def compared(
    source: str,
    methods: Sequence[str],
    data: Tasks,
    notes_of_sizes: Sequence[str],
    minutes: tuple[float, float],
    *,
    quick_seeds: int = 1,
    part: str = "",
    epsilons: Mapping[str, Sequence[float]] | None = None,
    points: Points = search,
    level: Methods = RECORD_LEVEL,
    keep: int | None = None,
    notes: Sequence[str] = (),
    **own: Any,
) -> Artifact:
    """A table or figure of methods, each at the best point of its grid; a figure has curves too.

    Args:
      data: what is searched on; of a table numbers of clients.
      notes_of_sizes: what is smaller than in the paper, at quick and paper.
      minutes: at quick and paper.
      part: of the paper's cells at scale=paper, where not all are run.
      epsilons: fewer than usual where runs take long, which then have three seeds at paper, not
        five.
      keep: the points of a grid that go on to full size; `KEPT` by default, or `KEPT_OF_LONG`
        where runs take long.
      points, level: of a method's grid, and what it is, at record level or user level.
    """

    kind, number = source.split()
    curves = kind == "Figure"
    side = "task" if curves else "clients"
    targets = epsilons or (OF_CURVES if curves else EPSILONS)

    def searched(method: str, scale: Scale) -> Data:
        left_out = LEFT_OUT.get(method, ())
        return {place: one for place, one in data[scale].items() if place not in left_out}

    def runs(scale: Scale) -> Runs:
        for method in methods:
            for place, words in searched(method, scale).items():
                found = points(method, scale, words.split()[0])
                for eps, point in itertools.product(targets[scale], found):
                    labels = {"method": method, side: place, "eps": eps, **point}
                    yield run(words, labels, level)

    grids = {method: tuple(next(iter(points(method, "quick", "")))) for method in methods}
    # cells that are checked by whole grids: DP-FedNew's in its first and last place, and the first
    # of the last method that is not DP-SCAFFOLD, each at the middle epsilon
    newton, last = methods[0], [one for one in methods if one not in SCAFFOLD][-1]
    first, *_, final = searched(newton, "paper")
    middle = targets["paper"][len(targets["paper"]) // 2]
    checked = [(newton, first), (newton, final), (last, next(iter(searched(last, "paper"))))]
    whole = [{"method": method, side: place, "eps": middle} for method, place in checked]

    def beyond() -> Runs:
        """What searches leave out of DP-FedNew's grid; those of other methods take theirs."""
        for cell in whole[:2]:
            words = data["paper"][cell[side]]
            few = list(points(newton, "paper", words.split()[0]))
            for point in grid(**{name: NEWTON_GRID[name] for name in grids[newton]}):
                if point not in few:
                    yield run(words, {**cell, **point}, level)

    over = tuple(dict.fromkeys(itertools.chain(*grids.values())))
    always = [SLOW | dict.fromkeys(grids["FGD"], 1.0)] if "FGD" in methods else []
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
            Size(quick_seeds, minutes[0], notes_of_sizes[0]),
            Size(3 if epsilons else 5, minutes[1], notes_of_sizes[1], cells=part),
        ),
        runs=runs,
        measures=measures,
        show={"origin": "source"},
        best=[Best(over, "selection", note=TUNED)],
        search=staged(
            whole, always, keep=keep or (KEPT_OF_LONG if epsilons else KEPT), beyond=beyond
        ),
        tables=list(_tables(grids, curves)),
        figures=list(_figures(methods, targets, curves)),
        notes=[*notes, OURS, WIDER],
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
    methods: Sequence[str], epsilons: Mapping[str, Sequence[float]], curves: bool
) -> Iterator[Figure]:
    """Accuracy over rounds or numbers of clients, of all methods and, at three epsilons and from
    round 5 on, without DP-SCAFFOLD, beside whose noise the others are hard to tell apart.
    """
    shown = [one for one in methods if not one.endswith("_narrow")]
    few = [eps for eps in (0.1, 1.0, 10.0) if eps in itertools.chain(*epsilons.values())]
    others = [one for one in shown if one not in SCAFFOLD]
    both = 1 < len(others) < len(shown)
    if curves:
        over = partial(Figure, "lines", "round", "curve", panels=["task", "eps"])
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


def _tables(grids: Mapping[str, Sequence[str]], curves: bool) -> Iterator[Table]:
    """With the label of places and the method down the side, over epsilon."""

    side = "task" if curves else "clients"
    over_epsilon = partial(Table, rows=[side, "method"], columns="eps")
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
    for labels in dict.fromkeys(grids.values()):
        mine = [method for method in grids if grids[method] == labels]
        whose, what = (", ".join(TITLES[name] for name in names) for names in (mine, labels))
        cells = [f"best.{label}" for label in labels]
        caption = f"What was the best, {what}: {whose}"
        yield over_epsilon(caption, cells=cells, where={"method": mine})
    if "FGD" in grids:
        yield Table(
            f"DP-FedGD at every server step: t{accuracy}",
            [side, *reversed(grids["FGD"])],
            "eps",
            "accuracy",
            where={"method": "FGD"},
        )
    if curves:
        yield Table(
            "Test accuracy (%) on the way, best point of each grid",
            ["task", "eps", "method"],
            "round",
            "curve",
            where={"round": [5, 10, 15, 20, 30, 50, 70]},
        )
