"""Tables 1 and 2: data, layers and features (section 6.1). Nothing is trained."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dpfl_cli.papers.fednew import PAPER
from dpfl_cli.reproduction.api import (
    Artifact,
    Comparison,
    Fact,
    Figure,
    Rows,
    Run,
    Scale,
    Size,
    Table,
    claim,
    exact,
)

UNTRAINED: Mapping[Scale, Size] = {
    "smoke": Size(1, 0.1, "nothing is trained", full=True),
    "quick": Size(1, 0.1, "nothing is trained", full=True),
    "paper": Size(1, 0.1, "nothing is trained"),
}


def private(algorithm: str, level: str = "record") -> list[str]:
    """A method with secure aggregation, as the paper claims its guarantee."""
    relation = "add_or_remove" if level == "record" else "zero_out"
    dp = ["dp=secure_aggregation", f"dp.unit={level}", f"dp.relation={relation}", "dp.mode=paper"]
    return [*dp, "dp.epsilon=1", f"algorithm={algorithm}"]


def equal(rows: Rows, measure: str, wanted: float, **labels: Any) -> Comparison:
    found = rows.value(measure, **labels)
    return exact(
        found == wanted, f"{measure} is {wanted:g} ({', '.join(map(str, labels.values()))})"
    )


# --- Table 1: data ----------------------------------------------------------------------------

NARROW = {"dataset.components": 64}
BY_CLASS = {"dataset.pca": 100, "dataset.test_fraction": 0.2, "model.feature_norm": "l2"}
DATA: Mapping[str, tuple[list[str], Mapping[str, Any], Sequence[int]]] = {
    "adult": (
        ["dataset=a9a", "model=softmax", "partitioner=iid"],
        {"dataset.normalise": False},
        (10, 500),
    ),
    "cifar10": (["dataset=cifar10_features"], NARROW, (500,)),
    "cifar10_wide": (["dataset=cifar10_features"], {}, (500,)),
    "fmnist": (["dataset=fashion_mnist_features"], NARROW, (500,)),
    "fmnist_wide": (["dataset=fashion_mnist_features"], {}, (500,)),
    "emnist": (["dataset=emnist_digits_features"], NARROW, (500,)),
    "emnist_wide": (["dataset=emnist_digits_features"], {}, (500,)),
    "femnist": (["dataset=emnist_balanced", "partitioner=shards"], BY_CLASS, (47, 1000)),
}


def table1_runs(scale: Scale) -> Iterator[Run]:
    for task, (data, values, clients) in DATA.items():
        for count in clients:
            dealt = {**values, "partitioner.clients": count}
            overrides = [*data, *private("fednew_record")]
            yield Run({"task": task, "clients": count}, overrides, dealt)
    synthetic = ["dataset=synthetic_alpha_beta", *private("fednew_record")]
    yield Run({"task": "synthetic", "clients": 100}, synthetic)


@claim(source="Table 1", prior="holds")
def adult(rows: Rows) -> Iterator[Comparison]:
    """Adult has 32,561 records and 246 parameters (123 x 2)"""
    yield equal(rows, "records", 32561, task="adult", clients=10)
    yield equal(rows, "dimension", 246, task="adult", clients=10)


@claim(
    source="Table 8",
    prior="fails",
    note="the paper's numbers of records per client match no known version of the data",
)
def adult_clients(rows: Rows) -> Iterator[Comparison]:
    """10 clients of Adult hold 2818 records each, 500 hold 61"""
    for clients, records in ((10, 2818), (500, 61)):
        found = rows.value("each", task="adult", clients=clients)
        yield exact(abs(found - records) < 1, f"{clients} clients hold {records} records each")


@claim(source="Table 1", prior="holds")
def narrow(rows: Rows) -> Iterator[Comparison]:
    """a narrow layer has 640 parameters (64 x 10), federated EMNIST's 4700 (100 x 47)"""
    for task in ("cifar10", "fmnist", "emnist"):
        yield equal(rows, "dimension", 640, task=task, clients=500)
    yield equal(rows, "dimension", 4700, task="femnist", clients=47)


@claim(source="Table 1", note="12,800 with EfficientNet-Lite0, 20,480 with what stands in for it")
def wide(rows: Rows) -> Iterator[Comparison]:
    """a wide layer has 20,480 parameters (2048 x 10)"""
    for task in ("cifar10_wide", "fmnist_wide", "emnist_wide"):
        yield equal(rows, "dimension", 20480, task=task, clients=500)


@claim(source="Table 5", prior="holds")
def femnist(rows: Rows) -> Iterator[Comparison]:
    """each of 47 clients of federated EMNIST holds 1920 images"""
    yield equal(rows, "each", 1920, task="femnist", clients=47)


table1 = Artifact(
    paper=PAPER,
    id="table1",
    title="Data sets and layers",
    shows=(
        "How many training records the clients hold in all, how many each, and how many parameters "
        "the one trained layer has, read from the plans of the runs. A thousand images of each set "
        "are public and in no client's records; the wide features have 1280 values where the "
        "paper's network gives 2048."
    ),
    source="Table 1",
    sizes=UNTRAINED,
    runs=table1_runs,
    measures={
        "records": Fact(value="records", decimals=0, title="training records"),
        "each": Fact(
            value=lambda fact: fact("records") / fact("clients"),
            decimals=2,
            title="records of a client",
        ),
        "dimension": Fact(value="dimension", decimals=0, title="parameters"),
        "origin": Fact(value="source", title="source"),
    },
    titles={
        "task": "data",
        "adult": "Adult",
        "cifar10": "CIFAR-10, narrow",
        "cifar10_wide": "CIFAR-10, wide",
        "fmnist": "Fashion-MNIST, narrow",
        "fmnist_wide": "Fashion-MNIST, wide",
        "emnist": "EMNIST's digits, narrow",
        "emnist_wide": "EMNIST's digits, wide",
        "femnist": "federated EMNIST",
        "synthetic": "Synthetic(5, 5)",
    },
    tables=[
        Table(
            rows=["task", "clients"],
            columns=["measure"],
            cells=["records", "each", "dimension", "origin"],
            notes=[
                "A stand-in is MNIST for EMNIST's digits, and 47 classes of MNIST and "
                "Fashion-MNIST for EMNIST's balanced split."
            ],
        )
    ],
    figures=[
        Figure(
            kind="bars",
            x="task",
            measures=["dimension"],
            log=["y"],
            y_title="parameters of the trained layer",
        )
    ],
    claims=[adult, adult_clients, narrow, wide, femnist],
)

# --- Table 2: features ------------------------------------------------------------------------


def table2_runs(scale: Scale) -> Iterator[Run]:
    for task in ("cifar10", "fmnist", "emnist"):
        for width, values in (("narrow", NARROW), ("wide", {})):
            overrides = [*DATA[task][0], *private("fednew_record")]
            yield Run({"task": task, "layer_size": width}, overrides, values)


@claim(source="Table 2", id="narrow", prior="holds")
def narrow_features(rows: Rows) -> Iterator[Comparison]:
    """the narrow layer takes 64 features"""
    for task in rows.choices("task"):
        yield equal(rows, "features", 64, task=task, layer_size="narrow")


@claim(
    source="Table 2",
    id="wide",
    note="1280 with EfficientNet-Lite0, 2048 with what stands in for it",
)
def wide_features(rows: Rows) -> Iterator[Comparison]:
    """the wide layer takes 2048 features"""
    for task in rows.choices("task"):
        yield equal(rows, "features", 2048, task=task, layer_size="wide")


table2 = Artifact(
    paper=PAPER,
    id="table2",
    title="Feature extractors",
    shows=(
        "The frozen networks whose outputs the one trained layer takes. The paper's are ResNet-44 "
        "(CIFAR-100) for the narrow and ResNet-50 (ImageNet) for the wide layer; their weights "
        "come in no package, so here both are EfficientNet-Lite0 (ImageNet), with 64 principal "
        "components of its features for the narrow layer. Where its weights are absent as well, "
        "filters fitted on public images stand in."
    ),
    source="Table 2",
    sizes=UNTRAINED,
    runs=table2_runs,
    measures={
        "backbone": Fact(value="dataset.content.backbone", title="network"),
        "images": Fact(value="dataset.content.base_source", title="images"),
        "public": Fact(value="dataset.fit_records", decimals=0, title="public images"),
        "components": Fact(value="dataset.components", decimals=0, title="principal components"),
        "features": Fact(value=lambda fact: fact("dimension") / 10, decimals=0, title="features"),
    },
    titles={
        "task": "data",
        "layer_size": "layer",
        "cifar10": "CIFAR-10",
        "fmnist": "Fashion-MNIST",
        "emnist": "EMNIST's digits",
    },
    tables=[
        Table(
            rows=["task", "layer_size"],
            columns=["measure"],
            cells=["backbone", "images", "public", "components", "features"],
            notes=["images: real, or a stand-in (MNIST for EMNIST's digits)"],
        )
    ],
    figures=[
        Figure(
            kind="bars",
            x="task",
            measures=["features"],
            series="layer_size",
            numbers=True,
            y_title="features",
        )
    ],
    claims=[narrow_features, wide_features],
)
