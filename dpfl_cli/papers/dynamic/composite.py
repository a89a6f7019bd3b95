"""Figure 2: optimality over rounds on a6a with an l1 term on a box (section 5.2)."""

from dataclasses import replace

from dpfl_cli.papers.dynamic import OURS, PRINTED, optimality
from dpfl_cli.reproduction.api import (
    Artifact,
    Claim,
    Figure,
    Metric,
    Prior,
    Run,
    Runs,
    Scale,
    Size,
    Table,
    above,
    every,
    ratio,
    sized,
)

ROUNDS = {"quick": (1000, 3000, 5000), "paper": range(1000, 6000, 1000)}


def runs(scale: Scale, start: str) -> Runs:
    for rounds in ROUNDS[scale]:
        words = f"+experiment=dynamic/a6a algorithm=primal_dual model.init={start} rounds={rounds}"
        yield Run({"T": rounds}, words)


START = "from a start at N(0, I), which was chosen because it gives this; see dynamic/fig2_zero"
ZERO = "the paper gives no start; from N(0, I), which dynamic/fig2 has, see there"


SIMILAR = (
    "The paper says that 5000 rounds end similar to 3000, and names no margin; 25 % is ours (c7)."
)
ALONE = {
    "by the squared error of the mean, without the distance between copies": {"measures": "error"}
}


def _claims(prior: Prior, note: str) -> list[Claim]:
    """What the paper says of its figure, from one start."""
    place = "section 5.2, Figure 2"
    return [
        Claim(
            "c7",
            "the final optimality with 5000 rounds is within 25 % of that with 3000",
            place,
            every(ratio, "final", "T", T=(5000, 3000), within=0.25),
            prior,
            note=note,
            readings={"within 50 %": {"within": 0.5}, **ALONE},
        ),
        Claim(
            "c7_few",
            "3000 rounds end nearer to the optimum than 1000",
            place,
            every(above, "final", "T", T=(1000, 3000)),
            prior,
            note=note,
            readings={"2000 rounds against 1000": {"T": (1000, 2000)}, **ALONE},
        ),
    ]


fig2 = Artifact(
    id="fig2",
    title="Optimality over rounds, sparse logistic regression on a6a",
    shows="The proposed method on a composite problem (l1 norm on a box), with several numbers of "
    "rounds T. The noise of the early rounds, which is what grows with T, is forgotten.",
    source="Figure 2",
    sizes=sized(
        Size(3, 0.3, "20 workers with 561 records each", full=True),
        Size(20, 10, "20 workers with 561 records each"),
    ),
    runs=lambda scale: runs(scale, "normal"),
    measures={
        "optimality": optimality("series", "optimality"),
        "final": optimality("last", "final optimality"),
        "error": Metric("squared_error", "last", title="relative squared error of the mean"),
        "consensus": Metric(
            "consensus", "last", decimals=4, title="distance between the workers' copies"
        ),
    },
    titles={"measure": "after T rounds"},
    tables=[
        Table("Final optimality and its two terms", "T", "measure", ["final", "error", "consensus"])
    ],
    figures=[Figure("lines", "round", "optimality", series="T", log="y")],
    claims=_claims("holds", START),
    notes=[
        f"{OURS}; records in file order, and a start drawn from N(0, I). The start decides what is "
        "seen: dynamic/fig2_zero has the same from 0.",
        SIMILAR,
        PRINTED,
    ],
)


REVERSED = Claim(
    "reversed_order",
    "from x0 = 0 the order is the other way round, 5000 rounds end farther from the optimum than "
    "1000",
    "ours",
    every(above, "final", "T", T=(5000, 1000)),
)


fig2_zero = replace(
    fig2,
    id="fig2_zero",
    title="Optimality over rounds from x0 = 0, sparse logistic regression on a6a",
    shows="As Figure 2, whose start the paper does not give, from 0 instead of N(0, I).",
    source="ours, beside Figure 2",
    runs=lambda scale: runs(scale, "zeros"),
    claims=[*_claims("open", ZERO), REVERSED],
    notes=[f"{OURS}; records in file order, and the start at 0.", SIMILAR, PRINTED],
)
