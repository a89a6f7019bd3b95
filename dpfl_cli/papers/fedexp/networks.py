"""Table 3: the layers of the two networks on MNIST (appendix G.1)."""

from __future__ import annotations

from dpfl_cli.papers.fedexp import PAPER
from dpfl_cli.papers.fedexp.mnist import NETWORK, NETWORKS
from dpfl_cli.reproduction.api import (
    Artifact,
    Comparisons,
    Figure,
    Layers,
    PaperNumbers,
    Rows,
    Run,
    Runs,
    Scale,
    Table,
    claim,
    level,
    untrained,
)


def runs(scale: Scale) -> Runs:
    for setting, trust in (("CDP", "cdp"), ("LDP", "ldp")):
        yield Run({"setting": setting}, [f"model={NETWORKS[trust]}"])


def _sizes(rows: Rows, setting: str, parameters: int, inputs: int) -> Comparisons:
    yield level(rows("parameters", setting=setting, layer="total"), parameters, within=0.5)
    yield level(rows("outputs", setting=setting, layer="flatten"), inputs, within=0.5)


@claim("appendix G.1, Table 3", "holds")
def cdp(rows: Rows) -> Comparisons:
    """the network of the central experiments has 5046 parameters, 128 values enter its fully
    connected part"""
    yield from _sizes(rows, "CDP", 5046, 128)


@claim("appendix G.1, Table 3", "holds")
def ldp(rows: Rows) -> Comparisons:
    """the network of the local experiments has 237 parameters, 16 values enter its fully connected
    part"""
    yield from _sizes(rows, "LDP", 237, 16)


table3 = Artifact(
    paper=PAPER,
    id="table3",
    title="Layers of the MNIST networks",
    shows="The layers of the two networks, with the shape of what each puts out and its number of "
    "parameters, read from the models.",
    source="Table 3; pooling and activations after the convolutions are not in it",
    sizes=untrained(),
    runs=runs,
    input_shape=[28, 28],
    classes=10,
    measures={
        "parameters": Layers("parameters", decimals=0, title="parameters"),
        "outputs": Layers("outputs", decimals=0, title="values put out"),
    },
    titles={"setting": "network"},
    numbers=PaperNumbers(
        measures={"parameters_with_bias": "parameters"},
        columns={"setting": "setting", "layer": "layer", "output": "output"},
    ),
    tables=[Table(rows=["setting", "layer", "output"], cells="parameters")],
    figures=[Figure("bars", "layer", "parameters", panels="setting", numbers=True)],
    notes=[NETWORK],
)
