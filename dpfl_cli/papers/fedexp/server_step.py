"""Figure 1: the server's step in the first round, against the number of clients (section 3.1)."""

from dpfl_cli.papers.fedexp import (
    FRESH,
    FRESHLY,
    LOCAL,
    PAIR,
    PRIVUNIT,
    PROBLEM,
    on_synthetic,
)
from dpfl_cli.reproduction.api import (
    Artifact,
    Claim,
    Comparisons,
    Derived,
    Figure,
    Metric,
    Rows,
    Runs,
    Scale,
    Size,
    Table,
    above,
    below,
    claim,
    every,
    grid,
    ratio,
    sized,
)

LARGE = (1000, 3000, 10000)  # clients from which the paper's statement is tested
PLACE = "section 3.1.2, Figure 1"


def runs(scale: Scale) -> Runs:
    values = {"rounds": 1, "evaluation.average_last": 1}
    for labels in grid(dp=LOCAL, clients=(50, 100) if scale == "smoke" else (100, 300, *LARGE)):
        overrides = ("algorithm=fedexp", f"dp={labels['dp']}")
        clients = {"dataset.clients": labels["clients"]}
        yield on_synthetic(labels, overrides, 0.003, 0.3, values | clients)


NEAR = [
    Claim(
        "c2_naive",
        "with at least 1000 clients the naive step is at least 10 times the target",
        "section 3.1.1, Figure 1",
        every(
            lambda naive, target: above(naive, 10 * target),
            ["naive", "target"],
            dp=LOCAL,
            clients=LARGE,
        ),
        "holds",
        note="the paper says extremely large; 10 times is ours",
    ),
    Claim(
        "c2_close",
        "with at least 1000 clients DP-FedEXP's step is within 35 % of the target",
        PLACE,
        every(ratio, ["proposed", "target"], dp=LOCAL, clients=LARGE, within=0.35),
        "holds",
        note="the paper says close for large M; the margin and the smallest M are ours, set before "
        "any result: 35 %, as the noise of one draw with 1000 clients moves the step by about 25 % "
        "(29 % here)",
        readings={
            "within a factor 2": {"within": 1.0},
            "with 10000 clients": {"clients": 10000},
        },
    ),
    Claim(
        "c2_shrinks",
        "with Gaussian noise the relative gap between DP-FedEXP's step and the target is smaller "
        "with 10000 clients than with 1000",
        PLACE,
        every(below, "gap", "clients", dp="ldp", clients=(10000, 1000)),
        "holds",
    ),
    Claim(
        "c2_shrinks_privunit",
        "with PrivUnit the relative gap is smaller with 10000 clients than with 1000",
        "ours",
        every(below, "gap", "clients", dp="ldp_privunit", clients=(10000, 1000)),
        note="the paper says close for large M, not that the gap goes to 0; the bias of PrivUnit's "
        "norm estimate, up to a sixteenth of the squared clip norm, does not shrink with the "
        "number of clients",
        readings={
            "against 100 clients": {"clients": (10000, 100)},
            "against 300 clients": {"clients": (10000, 300)},
        },
    ),
]


@claim("appendix D, Lemma D.3", "holds")
def c2_bias(rows: Rows) -> Comparisons:
    """with PrivUnit DP-FedEXP's step is below the target on average over 1000, 3000 and 10000
    clients (its norm estimate is biased downwards)"""
    steps, targets = (
        rows.each(name, dp="ldp_privunit", clients=LARGE) for name in ("proposed", "target")
    )
    one, two, three = (step / target for step, target in zip(steps, targets, strict=True))
    yield below((one + two + three) / 3, 1.0)


def _step(metric: str, title: str) -> Metric:
    return Metric(metric, "last", decimals=1, title=title, scale="log")


fig1 = Artifact(
    id="fig1",
    title="Server step in the first round under local DP",
    shows="The naive step divides the squared norms of the noisy messages by that of their mean: "
    "it is dominated by noise. DP-FedEXP's estimate comes close to the step that the squared "
    "norms of the clipped updates would give over the same noisy mean (target): with Gaussian "
    "noise the closer the more clients there are; with PrivUnit it stays about 6 % below, for the "
    "bias of its norm estimate does not shrink with them.",
    source="Figure 1; d = 100, local step 0.003, clip norm 0.3",
    sizes=sized(
        Size(5, 0.3, "one round", full=True),
        Size(FRESH, 1, f"one round; {FRESHLY.format(last=4)}"),
        smoke=Size(2, 0.05),
    ),
    runs=runs,
    measures={
        "naive": _step("server_step_naive", "naive"),
        "proposed": _step("server_step", "DP-FedEXP"),
        "target": _step("server_step_target", "target (not private)"),
        "gap": Derived(
            lambda rows: abs(rows.value("proposed") / rows.value("target") - 1),
            ["dp", "clients"],
            decimals=3,
            title="relative gap of DP-FedEXP to the target",
        ),
    },
    show=PAIR,
    titles={"clients": "number of clients M", "measure": "server step"},
    tables=[
        Table(
            "Server step in round 1",
            ["dp", "clients"],
            "measure",
            ["naive", "proposed", "target", "gap"],
        )
    ],
    figures=[
        Figure(
            "lines",
            "clients",
            ["naive", "proposed", "target"],
            panels="dp",
            log=["x", "y"],
            share_y=True,
            y_title="server step in round 1",
        )
    ],
    notes=[
        PROBLEM,
        PRIVUNIT,
        "The paper gives neither the numbers of clients of its figure nor the pair behind it; ours "
        "are 100 to 10000, and the pair of Table 2.",
    ],
)
