"""Ours: methods of all papers on the same tasks, at the same epsilon, each tuned as much."""

import math
from collections.abc import Mapping
from typing import Any

from dpfl_cli.reproduction.api import (
    Artifact,
    Best,
    Claim,
    Comparisons,
    Derived,
    Figure,
    Metric,
    Rows,
    Run,
    Runs,
    Scale,
    Search,
    Size,
    Table,
    above,
    claim,
    each_seed,
    every,
    grid,
    sized,
)

COMMUNICATIONS, STEPS = 70, 5  # of a run; local steps between two of them
TRUSTS = ("cdp", "ldp")
EPSILONS = (1.0, 8.0)
CLIPS = (0.03, 0.1, 0.3, 1.0)
LOCAL: Mapping[str, Any] = {"local_lr": (0.3, 3.0), "clip_norm": (0.03, 0.3)}
STEPPING = {"local_lr": (0.3, 1.0, 3.0, 10.0), "clip_norm": CLIPS}
SERVER = (1.0, 3.0, 10.0, 30.0)
GRIDS: Mapping[str, Mapping[str, Any]] = {  # sixteen points each
    "fedavg": {**LOCAL, "server_lr": SERVER},
    "fedexp": STEPPING,
    "scaffold": {**LOCAL, "server_lr": SERVER},
    "scaffnew": STEPPING,
    "fedgd": {"server_lr": (3.0, 10.0, 30.0, 100.0), "clip_norm": (0.01, 0.03, 0.1, 0.3)},
    "fedfc": {"server_lr": SERVER, "damping": (0.1, 1.0), "clip_norm": (0.03, 0.3)},
    "fednew": {"damping": (0.001, 0.01, 0.1, 1.0), "clip_norm": CLIPS},
}
GUARANTEE = {"dp.unit": "client", "dp.relation": "replace_one", "dp.mode": "sound"}
LOCAL_STEPS = {"fedavg", "fedexp", "scaffold", "scaffnew"}
IMAGES = "+experiment=fednew/fashion_mnist"
TASKS = {
    "adult": ("+experiment=fednew/adult",),
    "images": (IMAGES,),
    "images_differ": (
        IMAGES,
        "partitioner=dirichlet",
        "partitioner.clients=500",
        "partitioner.records_per_client=null",
    ),
}
TINY = {"dataset.records": 400, "dataset.test_records": 200, "partitioner.clients": 10}
FEW_IMAGES = {"dataset.train_records": 6000, "dataset.test_records": 1000}
SMALLER: Mapping[Scale, Mapping[str, Mapping[str, Any]]] = {
    "smoke": {"adult": TINY},
    "quick": dict.fromkeys(("images", "images_differ"), FEW_IMAGES),
    "paper": {},
}


def runs(scale: Scale) -> Runs:
    tasks = ["adult"] if scale == "smoke" else TASKS
    few = 2 if scale == "smoke" else None
    for cell in grid(task=tasks, under=TRUSTS, eps=EPSILONS, method=GRIDS):
        task, under, eps, method = cell.values()
        small = SMALLER[scale].get(task, {})
        setting = [*TASKS[task], f"dp={under}", f"algorithm={method}"]
        rounds = COMMUNICATIONS * (STEPS if method == "scaffnew" else 1)  # of local iterations
        values = {"rounds": rounds, **small, "dp.epsilon": eps, "evaluation.every": rounds}
        values |= {**GUARANTEE, "dp.delta": 1e-5, "model.train_loss_records": 10}
        if method in LOCAL_STEPS:
            values["algorithm.local_steps"] = STEPS
        for point in [*grid(**GRIDS[method])][:few]:
            own = {f"algorithm.{name}": value for name, value in point.items()}
            if method == "fednew":
                own["algorithm.penalty"] = point["damping"]
            yield Run(cell | point, setting, values | own)


def _half(run: Run) -> dict[str, Any]:
    """Half of the rounds, at an epsilon with which the noise of a round is about the same."""
    rounds = run.values["rounds"] // 2
    epsilon = run.values["dp.epsilon"] / math.sqrt(2)
    return {"rounds": rounds, "evaluation.every": rounds, "dp.epsilon": epsilon}


CHOSEN = {"best": True}


def _rank(rows: Rows) -> float:
    own = rows.value("accuracy", **CHOSEN)
    others = (rows.beside(method=one).value("accuracy", **CHOSEN) for one in GRIDS)
    return 1 + sum(other > own for other in others)


def _mean_rank(rows: Rows) -> float:
    return sum(rows.frame["value"]) / len(rows.frame)


# --- claims: what papers say of their own settings, on tasks that are none's ----------------------

CELLS: Mapping[str, Any] = {"task": TASKS, "eps": EPSILONS, **CHOSEN}


def _ahead(name: str, who: str, other: str, text: str, **where: Any) -> Claim:
    """A claim that a method ends above another in every cell under central trust."""
    cells = {**CELLS, "under": "cdp", **where}
    judge = every(above, "accuracy", "method", method=(who, other), **cells)
    local = {"under local DP": {"under": "ldp"}, "at epsilon 8 alone": {"eps": 8.0}}
    return Claim(name, text, "ours", judge, "holds", readings=local)


DIFFER = "on images where clients differ, under central DP at both epsilons,"
EVERYWHERE = "under central DP, on all tasks at both epsilons"
CLAIMS = [
    _ahead("adaptive", "fedexp", "fedavg", f"DP-FedEXP ends above DP-FedAvg {EVERYWHERE}"),
    _ahead("second_order", "fednew", "fedgd", f"DP-FedNew ends above DP-FedGD {EVERYWHERE}"),
    _ahead(
        "covariance",
        "fednew",
        "fedfc",
        f"DP-FedNew, which spends nothing on a covariance, ends above DP-FedFC {EVERYWHERE}",
    ),
    _ahead("local_steps", "fedavg", "fedgd", f"DP-FedAvg ends above DP-FedGD {EVERYWHERE}"),
    *(
        _ahead(
            f"control_{who}",
            who,
            "fedavg",
            f"{DIFFER} {title} ends above DP-FedAvg",
            task="images_differ",
        )
        for who, title in (("scaffold", "DP-SCAFFOLD"), ("scaffnew", "DP-ScaffNew"))
    ),
    Claim(
        "trust",
        "local DP costs every method more than five points, on all tasks at both epsilons",
        "ours",
        every(above, "accuracy", "under", **CELLS, method=GRIDS, under=TRUSTS, by=5),
        "holds",
    ),
]


@claim("ours")
def one_for_all(rows: Rows) -> Comparisons:
    """under central DP one method is the first on all tasks at both epsilons"""
    cells = list(grid(task=TASKS, eps=EPSILONS, under="cdp"))
    first = (
        {one.best("accuracy", "method", **cell, **CHOSEN) for cell in cells}
        for one in rows.by_seed()
    )
    yield each_seed((len(found) == 1 for found in first), "one method is the first everywhere")


TITLES = {
    "under": "trust model",
    "eps": "epsilon",
    "cdp": "central",
    "ldp": "local",
    "adult": "Adult",
    "images": "Fashion-MNIST",
    "images_differ": "Fashion-MNIST, clients differ",
    "fedavg": "DP-FedAvg",
    "fedexp": "DP-FedEXP",
    "scaffold": "DP-SCAFFOLD",
    "scaffnew": "DP-ScaffNew",
    "fedgd": "DP-FedGD",
    "fedfc": "DP-FedFC",
    "fednew": "DP-FedNew",
    "local_lr": "local step",
    "server_lr": "server step",
    "clip_norm": "clip norm",
    "damping": "damping",
}
OVER = ("local_lr", "server_lr", "damping", "clip_norm")

league = Artifact(
    id="league",
    title="Methods of all papers at the same epsilon",
    shows="Seven methods on the same three tasks, with the same 500 clients, 70 communications and "
    "guarantee for a whole client (replace-one, delta 1e-5), each with the best of sixteen points "
    "of a grid of its own. The league ranks them in every cell of task and epsilon and takes the "
    "mean; all guarantees are proved.",
    source="the methods of the five papers, on Adult and on 64 features of Fashion-MNIST",
    sizes=sized(
        Size(1, 4, "6,000 images; one seed, which also chooses the points"),
        Size(5, 20, "all records; a staged search", full=True),
    ),
    runs=runs,
    measures={
        "accuracy": Metric("accuracy", "last", title="test accuracy of the last model"),
        "rank": Derived(
            _rank, ["task", "under", "eps", "method"], decimals=1, title="rank in its cell"
        ),
        "mean_rank": Derived(
            _mean_rank, ["under", "method"], decimals=2, title="mean rank (1 is the best)"
        ),
    },
    best=[Best(OVER, "accuracy", note="highest test accuracy of the last model")],
    search=Search(
        reduced=_half,
        note="half of the communications, with the noise a round of the full size",
        keep=4,
        whole=[{"task": "images_differ", "under": "cdp", "eps": 8.0, "method": "fedavg"}],
    ),
    titles=TITLES,
    tables=[
        Table("The league: mean rank over tasks and epsilons", "method", "under", "mean_rank"),
        Table(
            "Test accuracy (%) of the last model, best point of each grid",
            ["under", "task", "eps"],
            "method",
            "accuracy",
            where=CHOSEN,
        ),
        *(
            Table(
                f"What was the best: {TITLES[method]}",
                ["under", "task"],
                "eps",
                [f"best.{name}" for name in OVER if name in GRIDS[method]],
                where={"method": method},
            )
            for method in GRIDS
        ),
    ],
    figures=[
        Figure(
            "bars",
            "method",
            "accuracy",
            series="eps",
            panels=["task", "under"],
            where=CHOSEN,
            share_y=True,
        )
    ],
    notes=[
        "Points are chosen by test accuracy, as in the papers, for every method alike; no epsilon "
        "covers that. Grids are ours: the ends that won are named above.",
        "Secure aggregation gives what central DP gives, at the same noise, to the methods that it "
        "allows (all but DP-FedEXP, whose second release is the server's).",
        "DP-FedAvg, DP-FedEXP, DP-SCAFFOLD and DP-ScaffNew take five local steps a round with all "
        "of a client's records, DP-FedGD, DP-FedFC and DP-FedNew one; DP-FedNew has no duals, "
        "which is what is proved, and a penalty as large as its damping. Models start at zero.",
        "Where clients differ each has as many records as the others, of classes in shares from a "
        "Dirichlet distribution (0.3).",
    ],
)
