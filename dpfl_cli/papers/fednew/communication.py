"""Table 3: what a client sends, and which methods use second-order information."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from dpfl_cli.papers.fednew import PAPER
from dpfl_cli.papers.fednew._common import COVARIANCE, RECORD_LEVEL, TITLES
from dpfl_cli.papers.fednew.setting import equal, private
from dpfl_cli.reproduction.api import (
    Artifact,
    Comparison,
    Derived,
    Fact,
    Figure,
    Metric,
    Rows,
    Run,
    Scale,
    Size,
    Table,
    claim,
    exact,
)

LAYERS = {"adult": (123, 2), "narrow": (64, 10), "wide": (2048, 10)}
DUAL = {"algorithm.dual": "paper"}
SENDERS: Mapping[str, Mapping[str, tuple[str, Mapping[str, Any]]]] = {
    "record": {**RECORD_LEVEL, "Scaf": ("scaffold_record", {})},
    "client": {
        "FN": ("fednew", DUAL),
        "FN_FC": ("fednew", DUAL | COVARIANCE),
        "FFC": ("fedfc", {}),
        "FGD": ("fedgd", {}),
        "Scaf": ("scaffold", {"algorithm.control": "sent"}),
    },
}


def table3_runs(scale: Scale) -> Iterator[Run]:
    few = {"rounds": 2, "dataset.clients": 5, "dataset.records_per_client": 20}
    for level, methods in SENDERS.items():
        for size in ("adult", "narrow") if scale == "smoke" else tuple(LAYERS):
            features, classes = LAYERS[size]
            data = {"dataset.dimension": features, "dataset.classes": classes}
            for method in ("FN", "FN_FC", "FFC", "FGD", "Scaf"):
                algorithm, own = methods[method]
                yield Run(
                    {"level": level, "size": size, "method": method},
                    ["dataset=synthetic_alpha_beta", *private(algorithm, level)],
                    {**few, **data, **own},
                )


def everywhere(rows: Rows, *methods: str) -> Iterator[dict[str, str]]:
    for level in rows.choices("level"):
        for size in rows.choices("size"):
            yield from ({"level": level, "size": size, "method": method} for method in methods)


@claim(source="section 6.1, Table 3", prior="holds")
def one_model(rows: Rows) -> Iterator[Comparison]:
    """DP-FedNew, DP-FedNew-FC and DP-FedGD send one model a round"""
    for cell in everywhere(rows, "FN", "FN_FC", "FGD"):
        yield equal(rows, "models", 2, **cell)


@claim(
    source="section 6.1, Table 3",
    prior="fails",
    note="the control follows from the update, so that one is enough",
)
def scaffold(rows: Rows) -> Iterator[Comparison]:
    """DP-SCAFFOLD sends two models a round"""
    for cell in everywhere(rows, "Scaf"):
        yield equal(rows, "models", 4, **cell)


@claim(source="Table 3", prior="holds")
def second_order(rows: Rows) -> Iterator[Comparison]:
    """DP-FedNew, DP-FedNew-FC and DP-FedFC use second-order information, DP-FedGD and DP-SCAFFOLD
    none
    """
    for cell in everywhere(rows, "FN", "FN_FC", "FFC", "FGD", "Scaf"):
        answer = "no" if cell["method"] in ("FGD", "Scaf") else "yes"
        where = ", ".join(cell.values())
        yield exact(rows.text("curvature", **cell) == answer, f"uses curvature: {answer} ({where})")


@claim(
    source="section 6.4, captions of Tables 8 to 11",
    prior="fails",
    note="the paper counts the whole matrix, features squared; half of a symmetric one is enough",
)
def covariance(rows: Rows) -> Iterator[Comparison]:
    """DP-FedFC's covariance costs as much as 61 rounds or more for Adult and 204 or more for the
    wide layer
    """
    for level in rows.choices("level"):
        for size, rounds in (("adult", 61), ("wide", 204)):
            found = rows.value("extra", level=level, size=size)
            yield exact(found > rounds, f"more than {rounds} rounds ({level}, {size})")


def models(rows: Rows) -> float:
    return rows.value("floats") / rows.value("dimension")


def extra(rows: Rows) -> float:
    more = rows.value("floats", method="FFC") - rows.value("floats", method="FGD")
    return more / rows.value("dimension", method="FGD")


def by_method(caption: str, cell: str) -> Table:
    return Table(caption=caption, rows=["level", "method"], columns=["size"], cells=[cell])


table3 = Artifact(
    paper=PAPER,
    id="table3",
    title="Uplink communication and second-order information",
    shows=(
        "Floats that one client sends in 2 rounds (uplink only), counted as the runs send them, "
        "and whether a method uses curvature. DP-FedNew, DP-FedNew-FC and DP-FedGD send a model a "
        "round; DP-FedFC sends a covariance first, and at client level the server sends its "
        "d_x (d_x + 1) / 2 floats down once more, which are not counted here. The paper counts two "
        "models a round for DP-SCAFFOLD; here it sends one, because the control follows from the "
        "update."
    ),
    source="Table 3",
    sizes={
        "smoke": Size(1, 0.1, "5 clients with 16 synthetic records each; no wide layer", full=True),
        "quick": Size(1, 0.3, "2 rounds of 5 clients with 16 synthetic records each", full=True),
        "paper": Size(1, 0.3, "2 rounds of 5 clients with 16 synthetic records each"),
    },
    runs=table3_runs,
    measures={
        "floats": Metric(
            metric="communication.uplink_floats",
            decimals=0,
            title="floats a client sends in 2 rounds",
        ),
        "curvature": Metric(metric="communication.uses_curvature", title="uses curvature"),
        "dimension": Fact(value="dimension", decimals=0, title="parameters"),
        "models": Derived(
            value=models,
            per=["level", "size", "method"],
            decimals=1,
            title="models a client sends in 2 rounds",
        ),
        "extra": Derived(
            value=extra,
            per=["level", "size"],
            decimals=1,
            title="rounds that DP-FedFC's covariance costs",
        ),
    },
    titles={
        **TITLES,
        "size": "layer",
        "adult": "123 x 2",
        "narrow": "64 x 10",
        "wide": "2048 x 10",
    },
    tables=[
        by_method("Floats that a client sends in 2 rounds", "floats"),
        by_method("In models", "models"),
        by_method("Uses curvature", "curvature"),
        Table(
            caption="Rounds of DP-FedNew-FC that DP-FedFC's covariance would pay for",
            rows=["level"],
            columns=["size"],
            cells=["extra"],
        ),
    ],
    figures=[
        Figure(
            kind="bars",
            x="method",
            measures=["models"],
            panels=["size"],
            where={"level": "record"},
            log=["y"],
            share_y=True,
            y_title="models a client sends in 2 rounds",
        )
    ],
    claims=[one_model, scaffold, second_order, covariance],
)
