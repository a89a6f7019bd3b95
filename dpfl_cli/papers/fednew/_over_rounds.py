"""What the figures of accuracy over rounds share, at record level and at user level."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dpfl_cli.papers.fednew import PAPER
from dpfl_cli.papers.fednew._common import (
    ACCURACY,
    ADULT_POINTS,
    COVARIANCE,
    CURVE,
    CURVE_EPSILONS,
    HALF_WIDE,
    IMAGE_POINTS,
    PIXELS,
    RECORD_GRIDS,
    SCAFFOLD,
    SELECTION,
    SMALL,
    SMOKE,
    SPENT,
    TITLES,
    WARM,
    WIDE,
    Grids,
    Point,
    Tasks,
    best,
    cells,
    crossing,
    epsilons,
    product,
    run,
    search,
    settings,
    tables,
)
from dpfl_cli.reproduction.api import (
    Artifact,
    Comparison,
    Figure,
    Rows,
    Run,
    Scale,
    Size,
    Table,
    above,
    each_seed,
)

Chosen = Mapping[Scale, Sequence[str]]  # scale -> tasks
Values = Mapping[str, Any]

# --- data -------------------------------------------------------------------------------------

FEW = SMALL | {"partitioner.clients": 100}
TINY = PIXELS | {"partitioner.clients": 20}
NARROW: Tasks = {
    "adult": ("adult", {}),
    "cifar10": ("cifar10", {}),
    "fmnist": ("fashion_mnist", {}),
    "emnist": ("emnist", {}),
    "fmnist_small": ("fashion_mnist", FEW),
    "tiny": ("fashion_mnist", TINY),
}
BROAD: Tasks = {
    "cifar10": ("cifar10", WIDE),
    "fmnist": ("fashion_mnist", WIDE),
    "emnist": ("emnist", WIDE),
    "cifar10_small": ("cifar10", FEW | HALF_WIDE),
    "fmnist_small": ("fashion_mnist", FEW | HALF_WIDE),
    "emnist_small": ("emnist", FEW | HALF_WIDE),
    "tiny": ("fashion_mnist", TINY),
}
SYNTHETIC = ("synthetic", "synthetic_small")
FEDERATED = ("femnist", "femnist_small")
NARROW_TASKS: Chosen = {
    "smoke": ("tiny",),
    "quick": ("adult", "fmnist_small"),
    "paper": ("adult", "cifar10", "fmnist", "emnist"),
}
BROAD_TASKS: Chosen = {
    "smoke": ("tiny",),
    "quick": ("cifar10_small", "fmnist_small", "emnist_small"),
    "paper": ("cifar10", "fmnist", "emnist"),
}
DIFFERING_TASKS: Chosen = {
    "smoke": ("tiny",),
    "quick": ("femnist_small", "synthetic_small"),
    "paper": ("femnist", "synthetic"),
}
NARROW_NOTES = (
    "20 clients with 10 images each and 2 rounds",
    "Adult with 500 clients and all records; 6000 images with 100 clients; grids, epsilons and "
    "runs (the first seed) of tables 4 and 8",
    "6 epsilons, 500 clients and all records; a scaled-down search",
)
BROAD_NOTES = (
    NARROW_NOTES[0],
    "6000 images with 512 principal components of their features, 100 clients; grids, epsilons and "
    "runs of tables 9 to 11",
    NARROW_NOTES[2],
)
TASK_TITLES = {
    "adult": "Adult",
    "cifar10": "CIFAR-10",
    "fmnist": "Fashion-MNIST",
    "emnist": "EMNIST (MNIST stands in), whole",
    "cifar10_small": "CIFAR-10, 6000 images",
    "fmnist_small": "Fashion-MNIST, 6000 images",
    "emnist_small": "EMNIST (MNIST stands in)",
    "femnist": "EMNIST by class (two MNISTs stand in), whole",
    "femnist_small": "EMNIST by class (two MNISTs stand in)",
    "synthetic": "Synthetic(5, 5)",
    "synthetic_small": "Synthetic(5, 5), 50 clients",
    "tiny": "a few records",
}


WITHOUT_DUALS = {"FN": "FN_off", "FN_FC": "FN_FC_off"}
LEFT_OUT = {  # where clients differ, DP-FedNew is for the synthetic ones, DP-FedNew-FC for EMNIST's
    **dict.fromkeys(("FN", "FN_off"), FEDERATED),
    **dict.fromkeys(("FN_FC", "FN_FC_off"), SYNTHETIC),
}


# --- runs -------------------------------------------------------------------------------------


def record_level(
    scale: Scale, methods: Sequence[str], tasks: Tasks, chosen: Chosen
) -> Iterator[Run]:
    """Every method's search on every task and epsilon of a scale."""
    for method in methods:
        for task in chosen[scale]:
            if task in LEFT_OUT.get(method, ()):
                continue
            preset, values = tasks[task]
            points = ADULT_POINTS if task == "adult" else IMAGE_POINTS
            smaller = {**values, **SMOKE} if scale == "smoke" else values
            for eps in epsilons(scale, CURVE_EPSILONS):
                for point in search(method, scale, points):
                    labels = {"method": method, "task": task, "eps": eps, **point}
                    yield run(preset, labels, smaller)


DUALS = {"algorithm.dual": "paper", "dp.mode": "paper"}
NO_DUALS = {"algorithm.dual": "off"}
SENT = {"algorithm.control": "sent", **WARM, "dp.mode": "paper"}
USER_LEVEL: dict[str, tuple[str, Values]] = {  # method -> algorithm and its settings
    "FN": ("fednew", DUALS),
    "FN_off": ("fednew", NO_DUALS),
    "FN_FC": ("fednew", DUALS | COVARIANCE),
    "FN_FC_off": ("fednew", NO_DUALS | COVARIANCE),
    "FGD": ("fedgd", {}),
    "FFC": ("fedfc", {}),
    "Scaf": ("scaffold", SENT | {"mechanism.noise_share": False}),
    "Scaf_share": ("scaffold", SENT | {"mechanism.noise_share": True}),
}
USER_GRIDS: Grids = {
    **dict.fromkeys(("FN", "FN_off", "FN_FC", "FN_FC_off"), ("alpha", "rho", "clip")),
    "FGD": ("eta", "clip"),
    "FFC": ("eta", "gamma", "feature_clip", "clip"),
    **dict.fromkeys(("Scaf", "Scaf_share"), ("steps", "length", "clip")),
}
PROVED = (
    "The guarantees of DP-FedNew and DP-FedNew-FC with duals, and that of DP-SCAFFOLD with shares "
    "of noise, are claimed and not proved; the others' are proved."
)


def user_search(method: str, scale: Scale, clips: Sequence[float], long: float) -> Iterator[Point]:
    """The points of a method's grid at user level; `long`: the way of DP-SCAFFOLD's 5 steps."""
    smoke = scale == "smoke"
    clips = (0.1, 1.0) if smoke else clips
    if method == "FGD":
        yield from product(eta=(1.0, 3.0) if smoke else (0.3, 1.0, 3.0, 10.0), clip=clips)
    elif method == "FFC":
        steps = (1.0,) if smoke else (0.3, 1.0, 3.0)
        yield from product(eta=steps, gamma=(0.1, 1.0), feature_clip=(1.0,), clip=clips)
    elif method in SCAFFOLD:
        for point in product(clip=clips, steps=(1, 5)):
            yield {**point, "length": 1.0 if point["steps"] == 1 else long}
    else:
        yield from product(alpha=(0.1,), rho=(1.0,) if smoke else (0.01, 0.1, 1.0), clip=clips)


def user_run(preset: str, labels: Point, values: Values) -> Run:
    """One run at user level, of the labels' method."""
    algorithm, own = USER_LEVEL[labels["method"]]
    level = ["dp.unit=client", "dp.relation=zero_out"]
    overrides = [f"+experiment=fednew/{preset}", f"algorithm={algorithm}", *level]
    return Run(labels, overrides, {"dp.mode": "sound", **values, **own, **settings(labels)})


# --- artifacts --------------------------------------------------------------------------------


def over_rounds(
    number: int,
    methods: Sequence[str],
    minutes: tuple[float, float],
    notes_of_sizes: Sequence[str],
    grids: Grids = RECORD_GRIDS,
    side: Sequence[str] = ("task",),
    **own: Any,
) -> Artifact:
    """A figure of accuracy over rounds; `side`: what it has panels for beside epsilon."""
    smoke, quick, paper = notes_of_sizes
    on_the_way = Table(
        caption="Test accuracy (%) on the way, best point of each grid",
        rows=[*side, "eps", "method"],
        columns=["round"],
        cells=["curve"],
        where={"round": [5, 10, 15, 20, 30, 50, 70]},
    )
    spent = {"spent": SPENT} if "Scaf" in methods else {}
    return Artifact(
        paper=PAPER,
        id=f"fig{number}",
        source=f"Figure {number}",
        sizes={
            "smoke": Size(1, 0.5, smoke),
            "quick": Size(1, minutes[0], quick),
            "paper": Size(5, minutes[1], paper),
        },
        measures={"selection": SELECTION, "accuracy": ACCURACY, **spent, "curve": CURVE},
        show={"origin": "source"},
        best=best(methods, grids),
        titles={**TITLES, **TASK_TITLES},
        tables=[*tables(side, methods, grids), on_the_way],
        figures=[
            Figure(
                kind="lines",
                x="round",
                measures=["curve"],
                series="method",
                panels=[*side, "eps"],
                share_y=not side,
                y_title="test accuracy (%)",
            )
        ],
        **own,
    )


# --- what claims share ------------------------------------------------------------------------


def newton(rows: Rows) -> str:
    """The second-order method: DP-FedNew, or on wide features DP-FedNew-FC."""
    return "FN" if "FN" in rows.choices("method") else "FN_FC"


def reaches(rows: Rows, method: str, **of_fedgd: Any) -> Iterator[Comparison]:
    """A method has DP-FedGD's final accuracy, of some point of its grid, before round 15."""
    for cell in cells(rows, 1.0):

        def soon(one: Rows, cell: dict[str, Any] = cell) -> bool:
            curve = one.values("curve", method=method, **cell)
            places = one.places("curve", method=method, **cell)
            return (
                crossing(curve, one.value("accuracy", method="FGD", **of_fedgd, **cell), places)
                < 15
            )

        where = ", ".join(str(value) for value in cell.values())
        yield each_seed(rows.by_seed(), soon, f"{TITLES[method]} before round 15 ({where})")


def ahead(rows: Rows, method: str, other: str) -> Iterator[Comparison]:
    """In rounds 5 to 20."""
    for cell in cells(rows, 1.0):
        for number in (5, 10, 15, 20):
            here = {**cell, "round": number}
            yield above(rows("curve", method=method, **here), rows("curve", method=other, **here))
