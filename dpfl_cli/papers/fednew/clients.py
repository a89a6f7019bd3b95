"""Tables 4, 5 and 8: accuracy at record level against the number of clients (sections 6.4, G), on
narrow features of images, on clients that differ and on Adult.
"""

import itertools
from collections.abc import Sequence
from functools import partial

from dpfl_cli.papers.fednew import ADULT, CLIENTS_DIFFER, FEATURES, WHOLE
from dpfl_cli.papers.fednew._claims import (
    HALF_A_POINT,
    SLOW,
    SMALL_STEP,
    acc,
    ahead,
    cells,
    comparable,
    everywhere,
    in_most,
    level_with,
)
from dpfl_cli.papers.fednew._compared import compared
from dpfl_cli.papers.fednew._conclusions import outperforms
from dpfl_cli.papers.fednew._search import (
    FIRST_ORDER,
    OF_DIFFERING,
    SERVER_STEPS,
    SMALL,
    SMALL_FEMNIST,
    STEPS_UP_TO,
    Data,
    Point,
    search,
)
from dpfl_cli.reproduction.api import (
    Claim,
    Comparisons,
    Rows,
    between,
    claim,
    near_paper,
    shape,
)

ONE = ("FN_FC", "FGD", "FFC", *FIRST_ORDER[1:])
BOTH = ("FN", *ONE)

# --- artifacts --------------------------------------------------------------------------------


def dealt(data: str, counts: Sequence[int]) -> Data:
    """To these numbers of clients; federated EMNIST by class, to 47 one each."""
    two = " partitioner.shards_per_client=2" * data.startswith("federated_emnist")
    return {count: data if count == 47 else data + two for count in counts}


OF_IMAGES = (  # what is smaller at quick
    "6000 training and 1000 test images{}, delta 1 / 6000, 70 rounds; a scaled-down search, 2 "
    "epsilons, 2 numbers of clients"
)

# --- Table 4: narrow features -----------------------------------------------------------------


def switches(
    one: Rows, cell: Point, others: Sequence[str | Point] = BOTH[2:-1], by: float = 0.0
) -> bool:
    ours, theirs = (
        max(acc(one, method, **cell).mean for method in methods) for methods in (BOTH[:2], others)
    )
    return ours - theirs > by


def switches_mostly(rows: Rows) -> Comparisons:
    below_switch = [*cells(rows, high=0.7)]
    yield in_most(rows, below_switch, switches, "DP-FedNew or DP-FedNew-FC is the best")


SWITCH_LOW = Claim(
    "switch_low",
    "below epsilon 0.7 DP-FedNew or DP-FedNew-FC is the best beside DP-FedFC, DP-FedGD and "
    "DP-SCAFFOLD",
    "section 6.4, Table 4",
    # a range has its ends, and 0.7 is in the grid
    shape("DP-FedNew or DP-FedNew-FC is the best", switches, eps=between(0, 0.6), clients=...),
    note="the paper says generally the most accurate there, not in every cell",
    readings={
        **HALF_A_POINT,
        SMALL_STEP: {"others": ("FFC", SLOW, "Scaf")},
        "in more than half of the cells": switches_mostly,
    },
)


table4 = compared(
    "Table 4",
    BOTH,
    {
        "quick": dealt(f"fashion_mnist {SMALL}", (20, 100)),
        "paper": dealt("fashion_mnist", (20, 50, 100, 250, 500)),
    },
    (OF_IMAGES.format(""), "9 epsilons, every number of clients; a staged search"),
    (0.4, 80),
    quick_seeds=2,
    points=partial(search, widest=True),
    title="Test accuracy on Fashion-MNIST, narrow features, after the last round, record level",
    shows="DP-FedNew and DP-FedNew-FC beside DP-FedGD, DP-FedFC and DP-SCAFFOLD on one layer over "
    "64 features of Fashion-MNIST, dealt at random to 20 to 500 clients, each with the best point "
    "of its grid. The paper's numbers are lost; what it says of them is tested. How far DP-FedGD "
    f"is behind depends on how large a step it may take: {STEPS_UP_TO}.",
    claims=[
        *everywhere("Table 4", BOTH),
        outperforms("FN", "Table 4"),
        SWITCH_LOW,
        Claim(
            "switch_high",
            "from epsilon 0.7 on DP-FedFC is the best, beside DP-FedNew, DP-FedNew-FC, DP-FedGD "
            "and DP-SCAFFOLD",
            "section 6.4, Table 4",
            ahead("FFC", ("FN", "FN_FC", "FGD", "Scaf"), low=0.7),
            readings={**HALF_A_POINT, SMALL_STEP: {"other": ("FN", "FN_FC", SLOW, "Scaf")}},
        ),
    ],
    notes=[FEATURES],
)

# --- Table 5: clients that differ -------------------------------------------------------------

table5 = compared(
    "Table 5",
    ONE,
    {
        "quick": dealt(f"federated_emnist {SMALL_FEMNIST}", (47, 200)),
        "paper": dealt("federated_emnist", (47, 500, 1000)),
    },
    (
        "9400 training and 2350 test images, delta 1 / 9400, 70 rounds; a scaled-down search, "
        "2 epsilons, 2 numbers of clients",
        "all records and rounds, three seeds; a staged search",
    ),
    (0.8, 135),
    part="5 of 9 epsilons, 3 of 5 numbers of clients",
    epsilons=OF_DIFFERING,
    title="Test accuracy on federated EMNIST (MNIST and Fashion-MNIST stand in) after the last "
    "round, record level, at most two classes a client",
    shows="DP-FedNew-FC beside DP-FedGD, DP-FedFC and DP-SCAFFOLD on 100 principal components of "
    "EMNIST's balanced split (47 classes of MNIST and Fashion-MNIST stand in where it is "
    "absent), where 47 clients hold one class each and more clients at most about two; each "
    "with the best point of its grid. How far DP-FedGD is behind depends on its step.",
    claims=[
        Claim(
            "noniid",
            "from epsilon 1 on DP-FedNew-FC is more accurate than DP-FedFC and DP-FedGD",
            "section 6.4, Table 5",
            ahead("FN_FC", ("FFC", "FGD"), low=1.0),
            readings={
                "to within one point": {"by": -1},
                f"{SMALL_STEP} in place of its best": {"other": ("FFC", SLOW)},
            },
            note="in the paper's own table DP-FedFC is ahead once, with 500 clients at epsilon 10",
        ),
        Claim(
            "noniid_small_steps",
            "from epsilon 1 on DP-FedNew-FC is more than 5 points ahead of DP-FedGD with a server "
            "step of 1",
            "ours",
            ahead("FN_FC", SLOW, by=5, low=1.0),
        ),
        *everywhere(
            "Table 5",
            ONE,
            "in the paper's table from 55.8 with 47 clients to 12.8 with 1000; what might explain "
            "it stands on table10's page",
            ", in Table 5 by up to 6.1, from 54.8 to 60.9 at epsilon 8",
            prior="open",
        ),
    ],
    notes=[CLIENTS_DIFFER, "delta is one over the number of training records."],
)

# --- Table 8: Adult ---------------------------------------------------------------------------


@claim(
    "section 6.4, Table 8",
    "holds",
    id="level",
    note="the paper's numbers of records match no known version of the data",
    readings={
        "within 4 points": {"points": 4},
        "but for DP-FedNew at epsilon 0.5 with 100 clients, where the paper has 81.2 between 82.6 "
        "at 0.3 and 82.6 at 0.7": {"but": ("FN", {"eps": 0.5, "clients": 100})},
        "but for that, and without DP-SCAFFOLD": {
            "but": ("FN", {"eps": 0.5, "clients": 100}),
            "methods": BOTH[:4],
        },
    },
)
def near(
    rows: Rows,
    points: float = 3.5,
    but: tuple[str, Point] | None = None,
    methods: Sequence[str] = BOTH[:-1],
) -> Comparisons:
    """every method is within 3.5 points of the paper's number"""
    for method, cell in itertools.product(methods, cells(rows)):
        if (method, cell) != but:
            yield near_paper(acc(rows, method, **cell), within=points)


AHEAD = "from epsilon 1 on DP-FedNew is more than one point ahead of DP-FedGD"
table8 = compared(
    "Table 8",
    BOTH,
    {"quick": dealt("adult", (10, 100, 500)), "paper": dealt("adult", (10, 100, 250, 500))},
    (
        "all records and 70 rounds; a scaled-down search, 2 epsilons, 3 numbers of clients",
        "9 epsilons, 4 numbers of clients; a staged search",
    ),
    (0.9, 33),
    points=partial(search, steps=SERVER_STEPS[1:5]),
    title="Test accuracy on Adult after the last round, record level",
    shows="DP-FedNew and DP-FedNew-FC beside DP-FedGD, DP-FedFC and DP-SCAFFOLD on Adult, dealt at "
    "random to 10 to 500 clients, each with the best point of its grid for every number of clients "
    "and epsilon. That SCAFFOLD loses so much accuracy as clients are added depends on every "
    "client adding the whole noise, which the paper's curves need and secure aggregation does not.",
    claims=[
        *everywhere("Table 8", BOTH),
        comparable(8),
        outperforms("FN", "Table 8"),
        Claim(
            "scaffold_behind",
            "at epsilon 0.1 and from 100 clients on DP-SCAFFOLD is more than one point behind "
            "DP-FedGD and DP-FedNew",
            "section 6.4, Table 8",
            ahead(("FGD", "FN"), "Scaf", by=1, high=0.2, clients=between(100, 500)),
            "holds",
            note=f"{WHOLE}; with 10 clients the paper's gap is 0.8 points",
        ),
        Claim(
            "shares_level",
            "with shares of the noise DP-SCAFFOLD is within one point of DP-FedGD everywhere",
            "ours",
            level_with("Scaf_share", "FGD", 1),
            "holds",
        ),
        Claim(
            "ahead_small_steps",
            f"{AHEAD} with a server step of 1",
            "ours",
            ahead("FN", SLOW, by=1, low=1.0),
            "holds",
            note="in the paper's Table 8 the gap from epsilon 1 on is 0.2 to 1.2 points; it gives "
            "no grid for DP-FedGD's step. On earlier pages this stood among the paper's claims",
        ),
        Claim(
            "ahead_large_steps",
            f"{AHEAD} at its best step of the grid",
            "ours",
            ahead("FN", "FGD", by=1, low=1.0),
            "fails",
        ),
        near,
    ],
    notes=[ADULT],
)
