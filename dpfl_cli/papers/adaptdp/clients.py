"""Table 4: more clients with as many records each (appendix E.2)."""

from dpfl_cli.papers.adaptdp import (
    BOTH,
    DECLARED,
    FACTORS,
    FRESHLY,
    IMAGES,
    LEVELS,
    LOWEST,
    MARGINS,
    METHODS,
    NOTES,
    ON_T1,
    PRODUCTS,
    at_equal,
    losses,
    private,
    seeds_of,
)
from dpfl_cli.reproduction.api import (
    Artifact,
    Claim,
    Comparisons,
    Figure,
    Price,
    Rows,
    Runs,
    Scale,
    Size,
    Table,
    below_share,
    claim,
    every,
    falling,
    grid,
    in_factor,
    level,
    sized,
)

CLIENTS = (2, 4, 6)  # P


def runs(scale: Scale) -> Runs:
    for labels in grid(task=("T1", *IMAGES), method=METHODS, P=CLIENTS, level=LEVELS):
        clients = labels["P"]
        words = f"dataset.clients={clients}"
        if labels["task"] != "T1":
            words = f"partitioner.clients={clients} dataset.train_records={1500 * clients}"
            words += f" rounds={30 if scale == 'quick' else 100}"
        yield private(labels, words, seeds=seeds_of(labels["task"], scale))


C9_FALLS = Claim(
    "c9_falls",
    "on T1 the loss falls with the number of clients, for both methods at every level",
    "Table 4",
    every(falling, "objective", "P", **ON_T1, method=METHODS, level=LEVELS, P=CLIENTS),
    "holds",
)


@claim(
    "ours",
    "holds",
    note="rate and margin are ours: the paper names no rate, and its own table falls less, to "
    "0.65 or 0.66 of the loss with 4 clients and to 0.44 or 0.45 with 6",
    readings={"within 30 %": {"within": 0.3}, "within 50 %": {"within": 0.5}},
)
def c9_rate(rows: Rows, within: float = 0.15) -> Comparisons:
    """on T1 DP-FedAvg's loss falls as one over the number of clients, within 15 %"""
    for at in LEVELS:
        two, *others = rows.each("objective", **ON_T1, method="FedAvg", level=at, P=CLIENTS)
        for many, loss in zip(CLIENTS[1:], others, strict=True):
            yield level(loss / two * (many / 2), 1, within=within)


EACH = {"level": LEVELS, "P": CLIENTS}
BESIDE = [
    Claim(
        "c1",
        "on T1 AdaptDP's loss is below half of DP-FedAvg's with every number of clients, at every "
        "level",
        "Table 4",
        every(below_share, "objective", "method", **ON_T1, method=BOTH, **EACH, share=0.5),
        "holds",
        note="the paper says lower; half is ours",
    ),
    Claim(
        "c7_T3",
        "on T3 AdaptDP's loss is lower than DP-FedAvg's (by more than 1 %) with 2 and 4 clients, "
        "at levels 1 and 2",
        "Appendix E.2, Table 4",
        at_equal(task="T3", level=(1, 2), P=(2, 4)),
        "holds",
        note="the paper has one pair for both at these levels. An earlier page compared all levels "
        f"with a tolerance of 1 %, so that a tie counted as lower, and T4's: {PRODUCTS}",
        readings={
            **MARGINS,
            "that, and level 3 at the paper's choices": {"share": 1.01, "level": LEVELS},
            "that on T4 at levels 1 and 2 with 2 and 6 clients, at the paper's choices": {
                "share": 1.01,
                "task": "T4",
                "P": (2, 6),
            },
            "with 2 clients alone": {"P": 2},
        },
    ),
    Claim(
        "levels_T3_T4",
        "every loss on T3 and T4 is within a factor of 2 of the paper's",
        "Table 4",
        every(in_factor, "loss", task=IMAGES, method=METHODS, **EACH, factor=2),
        note="with clipping per record, as the paper has it. Another choice than the margin was "
        "run in table2 alone, for DP-FedAvg at level 3 with 2 clients and 1000 rounds: pixels of 0 "
        "to 255 and clipping of the minibatch's mean, a guarantee that does not hold. That ends at "
        "1.13e-05 on T3 and 0.115 on T4, where the paper's Table 4 has 4.06e-04 and 0.128: far "
        "below the one, within a factor of 2 of the other. So the size of the losses hangs on that "
        "choice; of the other 34 cells it tells nothing. Two other choices were run for 2 clients, "
        "both methods and all levels: 1000 rounds in place of 100 (table2), and the best pair of "
        "the grid, (0.3, 0.5), in place of the paper's (table3). With the one the losses are 6 to "
        "19,300 times those of the paper's Table 4, with the other 5.5 to 17,700 times, so that "
        "the claim fails with either. With 4 and 6 clients only the choices of this page were run",
        readings=FACTORS,
    ),
    Claim(
        "levels",
        "on T1 AdaptDP's losses are within a factor of 2 of the paper's at levels 2 and 3",
        "Table 4",
        every(in_factor, "objective", **ON_T1, method="AdaptDP", level=(2, 3), P=CLIENTS, factor=2),
        "holds",
        note="level 1, where reference runs had shown a loss four times lower, is left out",
        readings={"at level 1 as well": {"level": (1, 2, 3)}},
    ),
]


table4 = Artifact(
    id="table4",
    title="Lowest training loss with 2, 4 and 6 clients",
    shows="Both methods with 2, 4 and 6 clients of 1500 records each, at the step sizes, clip "
    "norms and printed noise of 2 clients. The noise of the mean falls with the number of "
    "clients, and on the quadratic task the loss with it.",
    source="Table 4",
    sizes=sized(
        Size(3, 1.5, "T1 as in the paper; T3 and T4 30 rounds"),
        Size(3, 20, f"T1 150 rounds, T3 and T4 100. T3 and T4 have {DECLARED}; {FRESHLY}"),
    ),
    runs=runs,
    measures={**losses("min", LOWEST, IMAGES), "eps": Price(title="epsilon", where={"P": 2})},
    titles={"P": "clients"},
    tables=[
        Table("T1: lowest training loss", ["level", "P"], "method", "objective"),
        Table(
            "T3 and T4: lowest training loss",
            ["task", "level", "P"],
            "method",
            "loss",
        ),
        Table(
            "Epsilon at delta 1e-4 of a client's records, whatever the number of clients",
            ["task", "level"],
            "method",
            "eps",
        ),
    ],
    figures=[
        Figure(
            "lines",
            "P",
            "objective",
            series="method",
            panels="level",
            log="y",
            title="T1",
        ),
        Figure(
            "lines",
            "P",
            "loss",
            series="method",
            panels=["task", "level"],
            title="T3 and T4",
        ),
    ],
    notes=[
        *NOTES,
        "The paper writes of 3000, 6000 and 9000 training records per client for 2, 4 and 6 "
        "clients; they are read as those of all clients together, 1500 each.",
        "The paper trains T3 and T4 for 1000 rounds in its Table 2 and for 100 in Tables 3 to 6, "
        "with nearly the same losses; here 100, with 2 clients 1000 rounds are table2's.",
    ],
)
