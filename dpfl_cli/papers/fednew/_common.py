"""What DP-FedNew's artifacts share: methods, data, searches, measures and tables.

The paper searches a grid per method, number of clients and epsilon, by the mean accuracy of the
last 20 rounds (section 6.1). Its grids (Table 7) are lost: those here are this project's.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dpfl_cli.reproduction.api import (
    Best,
    Comparison,
    Metric,
    Rows,
    Run,
    Sample,
    Scale,
    Table,
    above,
    claim,
    level,
)

# --- grids ------------------------------------------------------------------------------------

TABLE_EPSILONS = (0.1, 0.3, 0.5, 0.7, 1.0, 2.0, 3.0, 8.0, 10.0)
CURVE_EPSILONS = (0.1, 0.5, 1.0, 2.0, 3.0, 10.0)
DAMPINGS = (0.01, 0.1, 1.0)
PENALTIES = (0.01, 0.1, 1.0, 10.0, 100.0)
SERVER_STEPS = (0.01, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)

KEYS = {  # label -> the config key that it sets
    "clients": "partitioner.clients",
    "eps": "dp.epsilon",
    "alpha": "algorithm.damping",
    "rho": "algorithm.penalty",
    "bound": "algorithm.curvature_clip_norm",
    "side": "algorithm.side_clip_norm",
    "eta": "algorithm.server_lr",
    "gamma": "algorithm.damping",
    "feature_clip": "algorithm.feature_clip_norm",
    "gradient_clip": "algorithm.clip_norm",
    "clip": "algorithm.clip_norm",
    "steps": "algorithm.local_steps",
}

Point = Mapping[str, Any]  # label -> value, of one point of a grid


def product(**values: Sequence[float]) -> Iterator[Point]:
    """Every point of a grid."""
    for point in itertools.product(*values.values()):
        yield dict(zip(values, point, strict=True))


def settings(labels: Point) -> dict[str, Any]:
    """The config values that labels stand for; `length` is local steps times their size."""
    found = {KEYS[name]: value for name, value in labels.items() if name in KEYS}
    if "length" in labels:
        found["algorithm.local_lr"] = labels["length"] / labels["steps"]
    return found


def epsilons(scale: Scale, paper: Sequence[float]) -> Sequence[float]:
    """The epsilons of a scale: three of the paper's at quick, epsilon 1 at smoke."""
    return {"smoke": (1.0,), "quick": (0.1, 1.0, 10.0), "paper": paper}[scale]


# --- methods ----------------------------------------------------------------------------------

AS_CLAIMED = {
    "algorithm.dual": "paper",
    "algorithm.bound_aux": "xi",
    "algorithm.sensitivity": "paper",
}
COVARIANCE = {"algorithm.curvature": "covariance"}
WARM = {"algorithm.warm_start": True}
RECORD_LEVEL: dict[str, tuple[str, Mapping[str, Any]]] = {  # method -> algorithm and its settings
    "FN": ("fednew_record", AS_CLAIMED),
    "FN_FC": ("fednew_record", AS_CLAIMED | COVARIANCE),
    "FGD": ("fedgd_record", {}),
    "FFC": ("fedfc_record", {}),
    "Scaf": ("scaffold_record", WARM | {"mechanism.noise_share": False}),
    "Scaf_share": ("scaffold_record", WARM | {"mechanism.noise_share": True}),
}
SCAFFOLD = ("Scaf", "Scaf_share")
Grids = Mapping[str, tuple[str, ...]]  # method -> the labels of its grid
RECORD_GRIDS: Grids = {
    "FN": ("alpha", "rho", "bound"),
    "FN_FC": ("alpha", "rho", "bound"),
    "FGD": ("eta",),
    "FFC": ("eta", "gamma", "feature_clip", "gradient_clip"),
    "Scaf": ("steps", "length"),
    "Scaf_share": ("steps", "length"),
}

ADULT_POINTS = ((0.1, 0.1, 0.1), (0.1, 0.1, 1.0), (0.1, 1.0, 0.1), (0.1, 1.0, 1.0))
IMAGE_POINTS = (
    (0.1, 1.0, 0.1),
    (0.1, 0.1, 0.1),
    (0.1, 0.1, 0.01),
    (0.01, 0.1, 0.1),
    (0.01, 0.1, 0.01),
    (0.01, 0.01, 0.01),
)
SEARCH_STEPS = SERVER_STEPS[2:]


def search(
    method: str,
    scale: Scale,
    points: Sequence[Sequence[float]] = IMAGE_POINTS,
    steps: Sequence[float] = SEARCH_STEPS,
) -> Iterator[Point]:
    """The points of a method's grid at record level that are searched.

    Args:
      points: damping, penalty and curvature bound of DP-FedNew.
      steps: server steps of DP-FedGD and DP-FedFC.
    """
    if scale == "smoke":
        steps = (1.0, 3.0)
    if method in ("FN", "FN_FC"):
        for point in points:
            yield dict(zip(("alpha", "rho", "bound"), point, strict=True))
    elif method == "FGD":
        yield from product(eta=steps)
    elif method == "FFC":
        gammas = (0.1,) if scale == "smoke" else (0.1, 1.0)
        yield from product(eta=steps, gamma=gammas, feature_clip=(1.0,), gradient_clip=(1.0,))
    else:
        for count, length in ((1, 1.0), (1, 2.0), (5, 2.0)):
            yield {"steps": count, "length": length}


def run(preset: str, labels: Point, values: Mapping[str, Any], **more: Any) -> Run:
    """One run at record level, of the labels' method."""
    algorithm, own = RECORD_LEVEL[labels["method"]]
    overrides = [f"+experiment=fednew/{preset}", f"algorithm={algorithm}"]
    return Run(labels, overrides, {**values, **own, **settings(labels)}, **more)


# --- data -------------------------------------------------------------------------------------

SMOKE = {"rounds": 2, "evaluation.final_window": 2}
SMALL = {"dataset.train_records": 6000, "dataset.test_records": 1000, "dp.delta": 1.6667e-04}
PIXELS = {  # a few images as principal components of their pixels
    "dataset.backbone": "pca",
    "dataset.train_records": 200,
    "dataset.test_records": 100,
    "dataset.components": 16,
}
WIDE = {"dataset.components": None}
HALF_WIDE = {"dataset.components": 512}

Tasks = Mapping[str, tuple[str, Mapping[str, Any]]]  # task -> preset and what differs from it
DIFFERING: Tasks = {  # clients that differ
    "femnist": ("federated_emnist", {}),
    "femnist_small": (
        "federated_emnist",
        {"dataset.train_records": 9400, "dataset.test_records": 2350, "dp.delta": 1.0638e-04},
    ),
    "synthetic": ("synthetic", {}),
    "synthetic_small": (
        "synthetic",
        {"dataset.clients": 50, "dataset.records_per_client": 200, "dp.delta": 1.25e-04},
    ),
    "tiny": (
        "synthetic",
        {"dataset.clients": 10, "dataset.records_per_client": 25, "dp.delta": 5.0e-03},
    ),
}

# --- measures, titles, tables -----------------------------------------------------------------


def accuracy(title: str, **more: Any) -> Metric:
    """Test accuracy in percent."""
    return Metric(metric="accuracy", better="higher", decimals=2, title=title, unit="%", **more)


SELECTION = accuracy("test accuracy, mean of the last 20 rounds")
ACCURACY = accuracy("test accuracy after the last round", at="last")
CURVE = accuracy("test accuracy", at="series", where={"best": True})
SPENT = Metric(
    metric="privacy.epsilon",
    summary="max",
    decimals=4,
    title="epsilon spent",
    where={"method": SCAFFOLD, "best": True},
)
TITLES = {
    "FN": "DP-FedNew",
    "FN_off": "DP-FedNew without duals",
    "FN_FC": "DP-FedNew-FC",
    "FN_FC_off": "DP-FedNew-FC without duals",
    "FGD": "DP-FedGD",
    "FFC": "DP-FedFC",
    "Scaf": "DP-SCAFFOLD",
    "Scaf_share": "DP-SCAFFOLD, shares of noise",
    "eps": "epsilon",
    "alpha": "damping alpha",
    "rho": "penalty rho",
    "bound": "curvature bound",
    "eta": "server step",
    "gamma": "damping gamma",
    "feature_clip": "clip of features",
    "gradient_clip": "clip of gradients",
    "clip": "clip norm C",
    "steps": "local steps",
    "length": "local steps * local step size",
    "task": "data",
}
CLIENTS_DIFFER = (
    "47 classes of MNIST and Fashion-MNIST stand in where EMNIST is absent. Principal components "
    "of EMNIST are fitted on all training images, which no epsilon covers; every record is scaled "
    "to norm 1."
)
FEATURES = (
    "delta is one over the number of training records. Features are those of EfficientNet-Lite0, "
    "trained on ImageNet, in place of the paper's ResNets, whose weights come in no package: 1280 "
    "where the paper has 2048, and 64 principal components of them, fitted on 1000 public images "
    "that no client has. They are scaled to norm 1. MNIST stands in where EMNIST is absent."
)
ADULT = (
    "Adult's features are 0 or 1 as they are, not scaled: records have a norm of about 3.7, which "
    "the clip of gradients and curvatures cuts."
)
OURS = (
    "Ours, for the paper does not say or its text is lost: the grids, of which each search takes a "
    "few points (table7), so that the best often is the first or last of them; models start at "
    "zero and have no bias; DP-FedFC's covariance is a mean over records with eigenvalues of at "
    "least gamma, and all its releases have one noise multiplier."
)
WHOLE_NOISE = (
    "DP-SCAFFOLD: every client adds the whole noise of the target epsilon, as the paper's curves "
    "need; what that spends stands in the next table."
)
WHOLE = "every client adds the whole noise, which secure aggregation does not need"


def best(methods: Sequence[str], grids: Grids = RECORD_GRIDS) -> list[Best]:
    """The choice of the best point of every grid."""
    over = list(dict.fromkeys(label for method in methods for label in grids[method]))
    note = "highest mean test accuracy over the last 20 rounds, tuned on test data as in the paper"
    return [Best(over=over, by="selection", note=note)]


def tables(
    side: Sequence[str], methods: Sequence[str], grids: Grids = RECORD_GRIDS
) -> Iterator[Table]:
    """The tables of a search, with these labels and the method down the side, over epsilon."""
    with_scaffold = SCAFFOLD[0] in methods
    yield Table(
        caption="Test accuracy (%) after the last round, best point of each grid",
        rows=[*side, "method"],
        columns=["eps"],
        cells=["accuracy"],
        where={"best": True},
        notes=[WHOLE_NOISE] if with_scaffold else [],
    )
    if with_scaffold:
        yield Table(
            caption="DP-SCAFFOLD's best points: test accuracy (%) after the last round, and the "
            "epsilon that they spend",
            rows=[*side, "method"],
            columns=["eps"],
            cells=["accuracy", "spent"],
            where={"method": SCAFFOLD, "best": True},
        )
    for grid in dict.fromkeys(grids[method] for method in methods):
        mine = [method for method in methods if grids[method] == grid]
        whose, what = (", ".join(TITLES[name] for name in names) for names in (mine, grid))
        yield Table(
            caption=f"What was the best, {what}: {whose}",
            rows=[*side, "method"],
            columns=["eps"],
            cells=[f"best.{label}" for label in grid],
            where={"method": mine},
        )
    if "FGD" in methods:
        yield Table(
            caption="DP-FedGD at every server step: test accuracy (%) after the last round",
            rows=[*side, *(label for label in grids["FGD"] if label != "eta"), "eta"],
            columns=["eps"],
            cells=["accuracy"],
            where={"method": "FGD"},
        )


# --- what claims share ------------------------------------------------------------------------


def acc(rows: Rows, method: str, **labels: Any) -> Sample:
    """Of a method's best point, after the last round."""
    return rows("accuracy", best=True, method=method, **labels)


def cells(
    rows: Rows, low: float = 0.0, high: float = math.inf, only: Sequence[str] = ()
) -> Iterator[dict[str, Any]]:
    """Every epsilon from `low` to below `high`, with every number of clients or every task.

    Args:
      only: these tasks.
    """
    side = [name for name in ("clients", "task") if name in rows.labels]
    for eps in rows.choices("eps"):
        if low <= eps < high:
            for place in product(**{name: rows.choices(name) for name in side}):
                if not only or place["task"] in only:
                    yield {"eps": eps, **place}


def ahead_of(
    rows: Rows, method: str, other: str, by: float = 0.0, **which: Any
) -> Iterator[Comparison]:
    """In every one of some `cells` a method is ahead by that many points, or less far behind."""
    for cell in cells(rows, **which):
        ours, theirs = acc(rows, method, **cell), acc(rows, other, **cell)
        yield above(ours + -by, theirs) if by < 0 else above(ours, theirs, by=by)


def level_with(
    rows: Rows, method: str, other: str, within: float, **which: Any
) -> Iterator[Comparison]:
    """In every one of some `cells` two methods are within so many points of each other."""
    for cell in cells(rows, **which):
        yield level(acc(rows, method, **cell), acc(rows, other, **cell), within=within)


def close(samples: Sequence[Sample], within: float) -> Iterator[Comparison]:
    """Every two of them are equal to `within`."""
    for one, other in itertools.combinations(samples, 2):
        yield level(one, other, within=within)


def crossing(values: Sequence[float], target: float, places: Sequence[float]) -> float:
    """The place of the first value at or above a target; infinite if there is none."""
    reached = (place for place, value in zip(places, values, strict=True) if value >= target)
    return next(reached, math.inf)


def wider(rows: Rows, **of_fedgd: Any) -> Iterator[Comparison]:
    """DP-FedNew-FC's lead over DP-FedGD grows with epsilon, everywhere."""
    for high in cells(rows, 10.0):
        low = {**high, "eps": 0.1}
        more, less = (
            acc(rows, "FN_FC", **cell) - rows("accuracy", method="FGD", **of_fedgd, **cell)
            for cell in (high, low)
        )
        yield above(more, less)


def gap(rows: Rows) -> Iterator[Comparison]:
    """the gap between DP-FedNew-FC and DP-FedGD at its best step up to 100 is larger at epsilon 10
    than at epsilon 0.1
    """
    yield from wider(rows, best=True)


@claim(source="ours")
def gap_small_steps(rows: Rows) -> Iterator[Comparison]:
    """the gap between DP-FedNew-FC and DP-FedGD with a server step of 1 is larger at epsilon 10
    than at epsilon 0.1
    """
    yield from wider(rows, eta=1.0)
