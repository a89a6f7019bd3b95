"""A small artifact of a paper that does not exist, and one of a file of one's own."""

from __future__ import annotations

from collections.abc import Iterator

from dpfl_cli.reproduction.api import (
    Artifact,
    Best,
    Comparison,
    Derived,
    Fact,
    Figure,
    Metric,
    Paper,
    Price,
    Rows,
    Run,
    Scale,
    Size,
    Table,
    above,
    claim,
    each_seed,
    exact,
)

DEMO = Paper(
    "demo",
    "Nobody",
    "A demonstration",
    "2026",
    titles={"fedavg": "DP-FedAvg", "fedexp": "said otherwise"},
)
BASE = ["dataset=synthetic", "dp=ldp", "rounds=3", "algorithm.local_steps=2"]
SIZES: dict[Scale, Size] = {
    "smoke": Size(seeds=2, minutes=0.1),
    "quick": Size(seeds=3, minutes=0.1, note="3 rounds"),
    "paper": Size(seeds=5, minutes=0.1),
}


def runs(scale: Scale) -> Iterator[Run]:
    for method in ("fedexp", "fedavg"):
        for clip in (0.1, 0.3, 1.0):
            small = {"dataset.clients": 20, "dataset.dimension": 5, "algorithm.clip_norm": clip}
            yield Run({"method": method, "clip": clip}, [*BASE, f"algorithm={method}"], small)


@claim(source="Table 1", prior="holds")
def spends(rows: Rows) -> Iterator[Comparison]:
    """epsilon does not depend on the clip norm"""
    prices = rows.where(method="fedexp").values("epsilon")
    yield exact(len(set(prices)) == 1, "one epsilon")


@claim(source="ours")
def better(rows: Rows) -> Iterator[Comparison]:
    """DP-FedEXP comes closer than DP-FedAvg"""
    cells = (rows("distance", method=method, best=True) for method in ("fedavg", "fedexp"))
    yield above(*cells)


@claim(source="ours", invariant=True)
def positive(rows: Rows) -> Iterator[Comparison]:
    """the distance is positive on every seed"""
    least = (min(one.values("distance", method="fedexp")) for one in rows.by_seed())
    yield each_seed((one > 0 for one in least), "distance > 0")


ONE = Artifact(
    paper=DEMO,
    id="one",
    title="Distance left after 3 rounds",
    shows="What is left of the distance to the solution.",
    source="Table 1",
    sizes=SIZES,
    runs=runs,
    measures={
        "distance": Metric(metric="relative_distance", at="last", better="lower", decimals=4),
        "curve": Metric(metric="relative_distance", at="series", better="lower"),
        "epsilon": Price(decimals=3),
        "clients": Fact(value=lambda fact: 2 * fact("clients")),
        "ratio": Derived(
            value=lambda rows: (
                rows.value("distance", method="fedexp") / rows.value("distance", method="fedavg")
            ),
            per=["clip"],
        ),
    },
    best=[Best(over=["clip"], by="distance")],
    titles={"fedexp": "DP-FedEXP", "clip": "clip norm C"},
    tables=[
        Table(caption="Distance", rows=["method"], columns=["clip"], cells=["distance"]),
        Table(
            caption="Best", rows=["method"], cells=["best.clip", "distance"], where={"best": True}
        ),
        Table(caption="Ratio", rows=["clip"], cells=["ratio"]),
    ],
    figures=[
        Figure(kind="lines", x="round", measures=["curve"], series="method", panels=["clip"]),
        Figure(kind="bars", x="clip", measures=["distance"], series="method"),
        Figure(kind="heatmap", x="clip", y="clip", measures=["distance"], panels=["method"]),
    ],
    claims=[spends, better, positive],
    notes=["Nobody wrote this paper."],
)
