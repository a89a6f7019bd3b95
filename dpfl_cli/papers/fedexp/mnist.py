"""Table 4: the methods on MNIST (section 5, appendix G)."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

from dpfl_cli.papers.fedexp import (
    AVERAGED,
    COMPARED,
    FRESH,
    FRESHLY,
    LOCAL,
    METHODS,
    PAIR,
    PAIRS,
    PRIVUNIT,
    SCAFFOLD,
    TRUSTS,
    WORDS,
)
from dpfl_cli.reproduction.api import (
    Artifact,
    Claim,
    Comparison,
    Comparisons,
    Figure,
    Judge,
    Metric,
    Rows,
    Run,
    Runs,
    Sample,
    Scale,
    Size,
    Table,
    Values,
    Where,
    above,
    claim,
    every,
    level,
    numbers_in,
    sized,
)

NETWORKS = {"ldp": "mnist_cnn_small", "ldp_privunit": "mnist_cnn_small", "cdp": "mnist_cnn"}
# "best" of all 25 pairs at the sizes of quick with seed 0 (searches/fedexp_table4.csv), "searched"
# of all 25 at full size in stages, with seeds that nothing chose (fedexp/table2)
FOUND = numbers_in("searches/fedexp_mnist", "setting", "dp", "method")
OTHER = (0.03, 0.3)  # a pair of DP-FedAvg
METHODS_ON_MNIST = {**METHODS, "SCAFFOLD_clipped": "algorithm=scaffold algorithm.control=clipped"}
SETUP = (
    "Ours, for the paper does not say: each of the 1000 clients draws 60 of the 60,000 images, "
    "with pixels in [0, 1] and full local batches."
)
NETWORK = (
    "Networks: 237 parameters under local DP, 5046 under central DP. The paper's 128 and 16 inputs "
    "imply pooling by 2 after each convolution, which it does not mention; that it is max-pooling, "
    "with ReLU before it, is ours."
)
SMALL = "1000 clients with 12 images each, 25 rounds, the first 2000 test images"
FULL = "1000 clients with 60 images each, 50 rounds, all test images"
TUNED = "The paper's pairs were tuned on test data, as the paper did; no epsilon covers that."
NOTES = [TUNED, SETUP, NETWORK, AVERAGED, SCAFFOLD, PRIVUNIT]


def on_mnist(
    labels: Where, pair: Sequence[float], values: Values, seeds: Sequence[int] = ()
) -> Run:
    """A run on MNIST of the label "method", with the network of the label "dp"."""
    trust, method = labels["dp"], METHODS_ON_MNIST[labels["method"]]
    setup = f"+experiment=fedexp/mnist dp={trust} model={NETWORKS[trust]} {method}"
    chosen = dict(zip(PAIR.values(), pair, strict=True))
    return Run(labels, setup, {**chosen, **values}, seeds=seeds)


OTHER_SETUPS = {  # for what the paper does not say
    "linear": ("without an activation after the convolutions", {"model.activation": "none"}),
    "standardised": ("with standardised pixels", {"dataset.standardise": True}),
}
OFF = [*product(["ldp"], METHODS), *product(["ldp_privunit", "cdp"], ["SCAFFOLD"])]
SMALLER = {  # at quick
    "rounds": 25,
    "partitioner.records_per_client": 12,
    "dataset.test_records": 2000,
}


def runs(scale: Scale) -> Runs:
    values = SMALLER if scale == "quick" else {}

    def run(trust: str, method: str, setting: str, pair: Sequence[float] = (), **more: Any) -> Run:
        """With the pair that a search found for the setting, else by default the paper's."""
        labels = {"dp": trust, "method": method, "setting": setting}
        chosen = pair or FOUND.get((setting, trust, method)) or PAIRS["MNIST", trust, method]
        return on_mnist(labels, chosen, **{"values": values, **more})

    for setting, trust, method in product(("paper", "best"), TRUSTS, METHODS):
        yield run(trust, method, setting)
    for trust in TRUSTS:
        yield run(trust, "SCAFFOLD_clipped", "paper", PAIRS["MNIST", trust, "SCAFFOLD"])
    if scale == "paper":
        for trust, method in product(TRUSTS, METHODS):
            yield run(trust, method, "searched")
        # overtakes DP-FedEXP in an independent search on the real data
        yield run("ldp", "FedAvg", "other", OTHER)
        yield run("ldp", "FedAvg", "fresh", OTHER, seeds=FRESH)
        yield run("ldp", "FedEXP", "fresh", seeds=FRESH)
        # the best of all 25 at full size, which the search did not keep
        yield run("ldp", "FedEXP", "whole", (0.3, 0.3))
        # the cells of the two claims that fail
        for (setting, (_, other)), (trust, method) in product(OTHER_SETUPS.items(), OFF):
            yield run(trust, method, setting, values=other)


# --- Table 4 --------------------------------------------------------------------------------------


TABLE_4 = "appendix G.2, Table 4"


def _above(methods: Sequence[str], dp: str | Sequence[str], setting: str = "paper") -> Judge:
    """The first of two methods is more accurate."""
    return every(above, "accuracy", "method", method=methods, setting=setting, dp=dp)


def _without_first(left: Sample, right: Sample) -> Comparison:
    """Above, without seed 0."""
    return above(*(replace(one, values=one.values.drop(0.0)) for one in (left, right)))


def _ahead(trust: str, note: str = "") -> Claim:
    text = f"DP-FedEXP is more accurate than DP-FedAvg under {WORDS[trust]}"
    name, judge = f"c6_fedexp_{trust}", _above(COMPARED, trust)
    return Claim(name, text, TABLE_4, judge, "holds", note=note)


def _ahead_at_best(trust: str, note: str, **more: Judge) -> Claim:
    return Claim(
        f"c6_fedexp_{trust}_best",
        f"DP-FedEXP is more accurate than DP-FedAvg under {WORDS[trust]} also with each method's "
        "best pair",
        "ours",
        _above(COMPARED, trust, "best"),
        note=f"{note}; seed 0 chose these pairs, at quick sizes, and is judged on them too",
        readings={
            "without seed 0, which chose the pairs": {"compare": _without_first},
            "with the best pairs of the search of fedexp/table2": {"setting": "searched"},
            **more,
        },
    )


def _ahead_in(rows: Rows, fedexp: str = "fresh", fedavg: str = "fresh") -> Comparisons:
    """Under local Gaussian DP, each with the pair and seeds of a setting."""
    yield above(
        rows("accuracy", setting=fedexp, dp="ldp", method="FedEXP"),
        rows("accuracy", setting=fedavg, dp="ldp", method="FedAvg"),
    )


SIZES = "on the number of images and rounds"
AHEAD = [
    _ahead("cdp"),
    _ahead("ldp_privunit"),
    _ahead(
        "ldp",
        "the order depends on DP-FedAvg's pair: here the paper's (0.1, 0.1), which is not the best "
        "of its grid",
    ),
    _ahead_at_best(
        "ldp",
        "the order depends on both pairs, DP-FedAvg's (0.1, 0.1) in the paper and (0.1, 1.0) here, "
        f"and {SIZES}",
        # of DP-FedAvg it is the one that the search found
        **{
            "with the best of all 25 at full size": partial(
                _ahead_in, fedexp="whole", fedavg="searched"
            )
        },
    ),
    _ahead_at_best(
        "ldp_privunit",
        "the order depends on DP-FedAvg's pair, (0.03, 0.3) in the paper and (0.1, 1.0) here, and "
        f"{SIZES}",
    ),
    _ahead_at_best("cdp", "DP-FedAvg's pair is (0.1, 1.0) in the paper and (0.3, 3.0) here"),
]


OTHER_PAIR = Claim(
    "c6_fedexp_ldp_other",
    "DP-FedEXP with the paper's pair is more accurate than DP-FedAvg with (0.03, 0.3) under local "
    "Gaussian DP",
    "ours",
    _ahead_in,
    "fails",
    note="the order depends on DP-FedAvg's pair, (0.1, 0.1) in the paper; in an independent "
    "search on the real data (0.03, 0.3) came level or overtook DP-FedEXP. Of 30 seeds one (102) "
    "ends at chance with both, at 11.35 %; DP-FedEXP is ahead in 18 of them, by 1.4 points in the "
    "mean (95 %: -1.0 to 3.9), so that neither is more than a few points ahead",
    readings={"with the seeds 0 to 4": {"fedexp": "paper", "fedavg": "other"}},
)


BEHIND = [
    Claim(
        "c6_fedexp_scaffold",
        "DP-FedEXP is more accurate than DP-SCAFFOLD under every trust model",
        "section 5; appendix G.2, Table 4",
        _above(("FedEXP", "SCAFFOLD"), TRUSTS),
        note="DP-SCAFFOLD is not defined in the paper; here its control remembers the message sent",
        readings={
            "its control remembers the clipped update": {"method": ("FedEXP", "SCAFFOLD_clipped")}
        },
    ),
    Claim(
        "c6_scaffold_cdp",
        "DP-FedAvg is more accurate than DP-SCAFFOLD under central DP",
        "section 5, Table 4",
        _above(("FedAvg", "SCAFFOLD"), "cdp"),
        "holds",
        note="the order depends on SCAFFOLD's definition, which is not in the paper; under central "
        "DP nothing is added before the mean, so control=sent and control=clipped are one method",
    ),
    Claim(
        "c6_scaffold_ldp",
        "DP-FedAvg is more accurate than DP-SCAFFOLD under both kinds of local DP",
        "section 5, Table 4",
        _above(("FedAvg", "SCAFFOLD"), LOCAL),
        "holds",
        note="the order depends on what SCAFFOLD's control remembers, here the message sent; see "
        "c6_scaffold_clipped",
    ),
    Claim(
        "c6_scaffold_clipped",
        "DP-FedAvg is more accurate than DP-SCAFFOLD under both kinds of local DP also with "
        "control=clipped",
        "ours",
        _above(("FedAvg", "SCAFFOLD_clipped"), LOCAL),
        note="the order depends on what SCAFFOLD's control remembers and on DP-FedAvg's pair, here "
        "the paper's (0.1, 0.1)",
    ),
]


@claim(TABLE_4, "holds")
def c6_trust(rows: Rows) -> Comparisons:
    """every method is more accurate under central DP than under local DP"""
    for method in METHODS:
        for trust in LOCAL:
            trusts = ("cdp", trust)
            yield above(*rows.each("accuracy", setting="paper", dp=trusts, method=method))


def _near(rows: Rows, found: str, setting: str, within: float, **cell: str) -> Comparison:
    """A method, with the pair and seeds of a setting, beside what the paper has of a cell."""
    printed = rows("accuracy", setting="paper", **cell).printed
    ours = rows("accuracy", setting=setting, **cell | {"method": found})
    return level(ours, printed, within=within)


def _within_three(
    rows: Rows, trust: str, fedexp: str = "paper", fedavg: str = "paper"
) -> Comparisons:
    for method, setting in zip(COMPARED, (fedexp, fedavg), strict=True):
        yield _near(rows, method, setting, 3, dp=trust, method=method)


THREE = "3 points are ours, set before any result; the paper's spread over seeds is 0.2 to 1.3"


def _printed(trust: str, note: str = THREE, **more: Any) -> Claim:
    text = f"DP-FedEXP and DP-FedAvg within 3 points of the paper under {WORDS[trust]}"
    judge = partial(_within_three, trust=trust)
    return Claim(f"c7_{trust}", text, TABLE_4, judge, note=note, **more)


PIXELS = (
    "these cells depend on the scale of the pixels and on the activation after the convolutions, "
    "which the paper does not give"
)
OTHER_PAIRS = {
    "DP-FedAvg with (0.03, 0.3), its pair under PrivUnit": {"fedavg": "other"},
    "DP-FedAvg with its best pair at quick sizes": {"fedavg": "best"},
    "DP-FedEXP with the seeds 100 to 129": {"fedexp": "fresh"},
}
OTHERWISE = {
    text: {"fedexp": setting, "fedavg": setting} for setting, (text, _) in OTHER_SETUPS.items()
}
PRINTED = [
    _printed("cdp"),
    _printed("ldp_privunit"),
    _printed("ldp", f"{PIXELS}; {THREE}", readings=OTHER_PAIRS | OTHERWISE),
]


@claim(
    TABLE_4,
    "fails",
    note="with control=sent; no definition of the control that was tried fits all three cells. 10 "
    "points are ours, set before any result and wider than DP-FedAvg's 3, because the definition "
    "of SCAFFOLD is ours as well; the spread that the paper prints is 0.5 to 4",
    readings={
        "the control remembers the clipped update": {"method": "SCAFFOLD_clipped"},
        "with the best pairs at quick sizes": {"setting": "best"},
        **{text: {"setting": setting} for setting, (text, _) in OTHER_SETUPS.items()},
    },
)
def c7_scaffold(rows: Rows, method: str = "SCAFFOLD", setting: str = "paper") -> Comparisons:
    """DP-SCAFFOLD within 10 points of the paper under every trust model"""
    for trust in TRUSTS:
        yield _near(rows, method, setting, 10, dp=trust, method="SCAFFOLD")


def _accuracies(caption: str, where: Where, *rows: str, notes: Sequence[str] = ()) -> Table:
    """A row for every trust model, a column for every method."""
    rows = (*rows, "dp")
    return Table(caption, rows, "method", "accuracy", where=where, notes=notes)


table4 = Artifact(
    id="table4",
    title="Test accuracy on MNIST, mean of the last five rounds",
    shows="DP-FedEXP, DP-FedAvg and DP-SCAFFOLD on MNIST, dealt to 1000 clients with label skew "
    "(Dirichlet 0.3), under three trust models with the paper's step sizes and clip norms; "
    "beside them each method with the best of the 25 pairs of its grid at the sizes of "
    "scale=quick with seed 0, and SCAFFOLD with both definitions of its control.",
    source="Table 4; settings of Table 2",
    sizes=sized(
        Size(2, 1.3, SMALL),
        Size(
            5,
            70,
            f"{FULL}. DP-FedAvg's (0.03, 0.3) beside DP-FedEXP with the paper's pair: "
            f"{FRESHLY.format(last=4)}",
        ),
    ),
    runs=runs,
    measures={"accuracy": Metric("accuracy")},
    show=PAIR,
    paper_runs=5,
    titles={
        "SCAFFOLD_clipped": "DP-SCAFFOLD (clipped)",
        "searched": "best pair that fedexp/table2's search found",
        "other": "(0.03, 0.3)",
        "fresh": "the paper's pair (DP-FedEXP) and (0.03, 0.3) (DP-FedAvg), 30 seeds",
        "whole": "(0.3, 0.3), best of all 25 at full size",
        **{setting: f"the paper's pair, {text}" for setting, (text, _) in OTHER_SETUPS.items()},
    },
    tables=[
        _accuracies(
            "With the paper's step sizes and clip norms (%)",
            {"setting": "paper", "method": METHODS},
        ),
        _accuracies(
            "With pairs of a search, of the 25 at quick sizes with seed 0 and others, chosen on "
            "test data (%)",
            {"setting": ["best", "searched", "other", "fresh", "whole"]},
            "setting",
            notes="Best pairs: of all 25 at the sizes of scale=quick with seed 0 (each in searches/"
            "fedexp_table4.csv), so seed 0 is judged on what chose it; at scale=paper they are the "
            "same, and beside them those of the search at full size (fedexp/table2), whose check "
            "of whole grids found a better one, (0.3, 0.3) for DP-FedEXP under local Gaussian DP; "
            "under that, DP-FedAvg with (0.03, 0.3) overtook it in an independent search.",
        ),
        _accuracies(
            "What SCAFFOLD's control remembers, the message sent or the clipped update (%)",
            {"setting": "paper", "method": ["SCAFFOLD", "SCAFFOLD_clipped"]},
        ),
        _accuracies(
            "With the paper's pairs, without an activation or with standardised pixels (%)",
            {"setting": [*OTHER_SETUPS]},
            "setting",
            notes="The other tables have ReLU and pixels in [0, 1].",
        ),
    ],
    figures=[Figure("bars", "dp", "accuracy", series="method", where={"setting": "paper"})],
    notes=NOTES,
)
