"""Tables 6 and 12: damping and penalty of DP-FedNew, and the clients' curvature (section 6.5)."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dpfl_cli.papers.fednew import PAPER
from dpfl_cli.papers.fednew._common import (
    AS_CLAIMED,
    DAMPINGS,
    FEATURES,
    PENALTIES,
    PIXELS,
    SMALL,
    TITLES,
    accuracy,
    settings,
)
from dpfl_cli.reproduction.api import (
    Artifact,
    Best,
    Comparison,
    Figure,
    Metric,
    Rows,
    Run,
    Scale,
    Size,
    Table,
    below,
    claim,
    each_seed,
    level,
)

ROUNDS = (1, 10, 30, 50, 70)
OWN: Mapping[str, Any] = {
    **AS_CLAIMED,
    "algorithm.spectrum": True,
    "algorithm.clip_norm": 1.0,
    "algorithm.side_clip_norm": 1.0,
    "algorithm.curvature_clip_norm": 1.0,
    "algorithm.server_lr": 1.0,
    "evaluation.final_window": 5,  # nothing is chosen by it here
}
SIZES: Mapping[Scale, Mapping[str, Any]] = {
    "smoke": {**PIXELS, "rounds": 10},
    "quick": SMALL,
    "paper": {},
}


def runs(scale: Scale, preset: str, clients: Mapping[Scale, Sequence[int]]) -> Iterator[Run]:
    """Every damping with every penalty, a few of them at smoke."""
    smoke = scale == "smoke"
    pairs = ((0.1, 1.0), (1.0, 10.0)) if smoke else (DAMPINGS, PENALTIES)
    for count, alpha, rho in itertools.product(clients[scale], *pairs):
        labels = {"clients": count, "alpha": alpha, "rho": rho}
        overrides = [f"+experiment=fednew/{preset}", "algorithm=fednew_record"]
        yield Run(labels, overrides, {**OWN, **SIZES[scale], **settings(labels)})


# --- claims -----------------------------------------------------------------------------------


def favourites(rows: Rows, label: str) -> list[float]:
    """Its value in the most accurate pair, at every number of clients and round, of one seed."""
    found = []
    for clients, number in itertools.product(rows.choices("clients"), ROUNDS):
        pairs = itertools.product(rows.choices("alpha"), rows.choices("rho"))
        cells = [{"alpha": alpha, "rho": rho} for alpha, rho in pairs]
        at = {"clients": clients, "round": number}
        found.append(max(cells, key=lambda cell: rows.value("curve", **cell, **at))[label])
    return found


def penalty_1(rows: Rows) -> Iterator[Comparison]:
    """the best penalty is 1 at more of the rounds and numbers of clients than any other"""

    def first(one: Rows) -> bool:
        counts = Counter(favourites(one, "rho"))
        return all(counts[1.0] > counts[rho] for rho in PENALTIES if rho != 1)

    yield each_seed(rows.by_seed(), first, "penalty 1 is the best most often")


def damping_below_1(rows: Rows) -> Iterator[Comparison]:
    """the best damping is below 1 at most of the rounds and numbers of clients"""

    def most(one: Rows) -> bool:
        found = favourites(one, "alpha")
        return sum(alpha < 1 for alpha in found) > len(found) / 2

    yield each_seed(rows.by_seed(), most, "the best damping is below 1 at most of them")


def top_three(rows: Rows) -> Iterator[Comparison]:
    """the three best pairs are within two points of one another, at every round and number of
    clients
    """
    for clients, number in itertools.product(rows.choices("clients"), ROUNDS):
        at = {"clients": clients, "round": number}
        yield level(rows("curve", rank=1, **at), rows("curve", rank=3, **at), within=2)


@claim(
    source="ours",
    note="then the best directions of DP-FedNew are nearly gradients over alpha + rho: what the "
    "penalty chooses is above all the length of a step",
)
def curvature(rows: Rows) -> Iterator[Comparison]:
    """the clients' largest curvature is less than a tenth of alpha + rho at the best pair of every
    round
    """
    for clients, number in itertools.product(rows.choices("clients"), ROUNDS):
        at = {"clients": clients, "round": number, "rank": 1}
        shift = rows.value("best.alpha", **at) + rows.value("best.rho", **at)
        yield below(rows("curvature", **at), 0.1 * shift)


# --- artifacts --------------------------------------------------------------------------------


def pairs_of(number: int, data: str, few: Sequence[int], minutes: float, **own: Any) -> Artifact:
    """A table of the best pairs of damping and penalty."""
    place = f"section 6.5, Table {number}"
    tie = "where rho is much larger than alpha the choice of alpha is a tie"
    return Artifact(
        paper=PAPER,
        id=f"table{number}",
        title=f"Best dampings and penalties of DP-FedNew over the rounds, {data}, epsilon 1",
        shows=(
            f"DP-FedNew at record level and epsilon 1, on 64 features of {data}, with every "
            "damping alpha and penalty rho, all clip norms and the server step 1: the three best "
            "pairs at five rounds, how accurate they are, and the clients' largest curvature (the "
            "mean of the largest eigenvalues of their clipped Hessians, without alpha and rho) at "
            "those rounds. The paper's numbers are lost."
        ),
        source=f"Table {number}",
        sizes={
            "smoke": Size(
                1,
                0.3,
                f"{few[0]} clients, 200 images of principal components of pixels and 10 rounds",
            ),
            "quick": Size(
                2,
                2,
                "6000 training and 1000 test images, delta 1 / 6000, 2 numbers of clients, all 15 "
                "pairs",
            ),
            "paper": Size(5, minutes, "every number of clients, all 15 pairs"),
        },
        measures={
            "curve": accuracy("test accuracy", at="series", rounds=ROUNDS),
            "curvature": Metric(
                metric="largest_curvature",
                at="series",
                rounds=ROUNDS,
                decimals=4,
                title="largest curvature",
                where={"rank": [1, 2, 3]},
            ),
            "accuracy": accuracy("test accuracy after round 70", at="last"),
        },
        best=[
            Best(
                over=["alpha", "rho"],
                by="curve",
                top=3,
                note="highest mean test accuracy at the round, tuned on test data as in the paper",
            )
        ],
        titles={**TITLES, "best.alpha": "damping alpha", "best.rho": "penalty rho"},
        tables=[
            Table(
                caption="The three best pairs at every round",
                rows=["clients", "round", "rank"],
                columns=["measure"],
                cells=["curve", "best.alpha", "best.rho", "curvature"],
                where={"rank": [1, 2, 3]},
            ),
            Table(
                caption="Test accuracy (%) after round 70",
                rows=["clients", "alpha"],
                columns=["rho"],
                cells=["accuracy"],
            ),
        ],
        figures=[
            Figure(kind="heatmap", x="rho", y="alpha", measures=["accuracy"], panels=["clients"])
        ],
        claims=[
            claim(source=place, id="rho")(penalty_1),
            claim(source=place, id="alpha", note=tie)(damping_below_1),
            claim(source=f"Table {number}", id="top_three")(top_three),
            curvature,
        ],
        notes=[FEATURES],
        **own,
    )


FASHION: Mapping[Scale, Sequence[int]] = {
    "smoke": (20,),
    "quick": (20, 100),
    "paper": (20, 50, 100, 250, 500),
}
DIGITS: Mapping[Scale, Sequence[int]] = {
    "smoke": (50,),
    "quick": (50, 100),
    "paper": (50, 100, 250, 500),
}
table6 = pairs_of(
    6, "Fashion-MNIST", (20,), 90, runs=lambda scale: runs(scale, "fashion_mnist", FASHION)
)
table12 = pairs_of(
    12, "EMNIST's digits", (50,), 250, runs=lambda scale: runs(scale, "emnist", DIGITS)
)
