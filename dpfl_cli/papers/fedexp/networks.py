"""Table 3: the layers of the two networks on MNIST (appendix G.1)."""

import math
from functools import partial

from dpfl_cli.models.cnn_shape import KERNEL, CnnShape
from dpfl_cli.papers.fedexp.mnist import NETWORK, NETWORKS
from dpfl_cli.reproduction.api import (
    Artifact,
    Comparisons,
    Fact,
    Facts,
    Figure,
    Rows,
    Run,
    Runs,
    Scale,
    Table,
    claim,
    level,
    untrained,
)

LAYERS = {  # with the shapes of what they put out
    "cdp": {
        "conv 1->4 4x4": "4x25x25",
        "conv 4->8 4x4": "8x9x9",
        "flatten": "128",
        "fc 128->32": "32",
        "fc 32->10": "10",
        "total": "",
    },
    "ldp": {
        "conv 1->2 4x4": "2x25x25",
        "conv 2->1 4x4": "1x9x9",
        "flatten": "16",
        "fc 16->10": "10",
        "total": "",
    },
}


def runs(scale: Scale) -> Runs:
    for trust, layers in LAYERS.items():
        network = f"+experiment=fedexp/mnist dp={trust} model={NETWORKS[trust]}"
        for layer, output in layers.items():
            yield Run({"setting": trust.upper(), "layer": layer, "output": output}, network)


def _counted(which: int, fact: Facts) -> int:
    """Of the run's layer, which is looked for by its name and output in the model of its config:
    its parameters, biases included, or how many values it puts out.
    """
    channels, hidden = fact("model.channels"), fact("model.hidden")
    shape = CnnShape(28, 28, channels, hidden, 10, relu=True)
    features = shape.layers[2].inputs
    known = {("flatten", f"{features}"): (0, features)}
    known["total", ""] = shape.dimension, 0
    for layer in shape.layers:
        out, into, *kernel = layer.weight_shape
        sides = [side - KERNEL + 1 for side in (layer.height, layer.width) if kernel]
        kind = ("conv", f" {KERNEL}x{KERNEL}") if kernel else ("fc", "")
        named = f"{kind[0]} {into}->{out}{kind[1]}", "x".join(map(str, (out, *sides)))
        known[named] = layer.stop - layer.start, math.prod((out, *sides))
    return known[fact("labels.layer"), fact("labels.output")][which]


@claim("appendix G.1, Table 3", "holds")
def inputs(rows: Rows) -> Comparisons:
    """128 values enter the fully connected part of the central experiments' network, 16 that of the
    local ones'"""
    for setting, many in (("CDP", 128), ("LDP", 16)):
        yield level(rows("outputs", setting=setting, layer="flatten"), many, within=0.5)


@claim("ours", "holds", note="with biases; the paper prints layers and no numbers of parameters")
def parameters(rows: Rows) -> Comparisons:
    """the network of the central experiments has 5046 parameters, that of the local ones 237"""
    for setting, many in (("CDP", 5046), ("LDP", 237)):
        yield level(rows("parameters", setting=setting, layer="total"), many, within=0.5)


table3 = Artifact(
    id="table3",
    title="Layers of the MNIST networks",
    shows="The layers of the two networks, with the shape of what each puts out and its number of "
    "parameters, read from the models.",
    source="Table 3; pooling and activations after the convolutions are not in it",
    sizes=untrained(),
    runs=runs,
    measures={
        "parameters": Fact(partial(_counted, 0), title="parameters"),
        "outputs": Fact(partial(_counted, 1), title="values put out"),
    },
    titles={"setting": "network"},
    tables=[Table(rows=["setting", "layer", "output"], cells="parameters")],
    figures=[Figure("bars", "layer", "parameters", panels="setting", numbers=True)],
    notes=[NETWORK],
)
