"""Table 1: the noise of both methods, and what it costs (section 5.1, equation 3)."""

import math
from collections.abc import Sequence
from functools import partial

from dpfl_cli.papers.adaptdp import IMAGES, LEVELS, METHODS, MISPRINT, NOISE, noise_of
from dpfl_cli.reproduction.api import (
    Artifact,
    Claim,
    Comparisons,
    Derived,
    Fact,
    Figure,
    Judge,
    Price,
    Rows,
    Run,
    Runs,
    Scale,
    Table,
    Values,
    Where,
    above,
    below,
    claim,
    every,
    exact,
    grid,
    ratio,
    untrained,
)

# A price depends on the numbers of records, rounds and steps only: records in one dimension stand
# for every data set. Records a client, rounds, steps.
FEDAVG = {"method": "FedAvg"}
PRINTED = {"source": "table", "method": "AdaptDP"}
CALIBRATED = {"source": "calibrated"}
COUNTS = {
    "T1": (1500, 150, 20),
    "T1_425": (425, 150, 20),
    "T2": (22605, 100, 226),
    **dict.fromkeys(IMAGES, (1500, 1000, 15)),
}
# The epsilon that DP-FedAvg's noise implies at the paper's order (claim `same_epsilon`).
IMPLIED = {
    "T1": (238328.947, 38339.027, 2373.76886),
    "T1_425": (253462.522, 53463.3318, 11714.3091),
    "T2": (58134.6105, 96.4880902, 5.02396453),
    **dict.fromkeys(IMAGES, (1191644.737, 191695.135, 11868.8443)),
}


def runs(scale: Scale) -> Runs:
    for cell in grid(task=COUNTS, level=LEVELS):
        known, place = cell["task"].partition("_")[0], cell["level"] - 1
        for method in METHODS:
            noise = NOISE[known, method, cell["level"]]
            misprinted = (method, place) == ("AdaptDP", 1) and known in IMAGES
            yield _priced(cell, method, "table", noise_of(*(MISPRINT if misprinted else noise)))
            if misprinted:
                yield _priced(cell, method, "misprint", noise_of(*noise))
        target = IMPLIED[cell["task"]][place]
        calibrated = {"dp.epsilon": target, "algorithm.target_epsilon": target}
        yield _priced(cell, "AdaptDP", "calibrated", calibrated)


def _priced(cell: Where, method: str, source: str, noise: Values) -> Run:
    records, rounds, steps = COUNTS[cell["task"]]
    values = {
        "dataset.records_per_client": records,
        "rounds": rounds,
        "algorithm.local_steps": steps,
    }
    setup = "+experiment=adaptdp/quadratic dataset.dimension=1 accountant.order=paper"
    labels = {"method": method, "source": source, **cell}
    return Run(labels, f"{setup} {METHODS[method]}", {**values, **noise})


# --- Corollary 1 ------------------------------------------------------------------------------

DIMENSIONS = {"T1": 100, "T2": 258, **dict.fromkeys(IMAGES, 5130)}
# tau_1, the largest squared gradient norm over the mean, at most, in fig2 at scale=paper
LARGEST = {"T1": 29.2, "T3": 10.2}
CLIENTS, RADIUS = 2, 1.0  # P and tau


def rate(rows: Rows) -> float:
    """sqrt(d) / (n_loc sqrt(P) epsilon), the best utility known, without constants and logs."""
    task = rows.place["task"]
    epsilon = rows.value("eps", source="table")
    return math.sqrt(DIMENSIONS[task] / CLIENTS) / (COUNTS[task][0] * epsilon)


def corollary(rows: Rows, printed: bool = False) -> float:
    """Corollary 1's eight terms with q = 1, without constants and logs, over that rate.

    Args:
      printed: the first term with tau_q in place of tau, as section 4 has it and the appendix not.
    """
    task = rows.place["task"]
    u, d, largest = rate(rows), DIMENSIONS[task], LARGEST[task]
    phi = math.sqrt(largest / RADIUS) + (largest * RADIUS) ** 0.25
    psi = math.sqrt(largest * RADIUS)
    terms = (
        (largest if printed else RADIUS) ** (4 / 9) * d ** (-2 / 9) * u ** (10 / 9),
        (phi * RADIUS * math.sqrt(CLIENTS)) ** (1 / 3) * d ** (-1 / 6) * u ** (4 / 3),
        math.sqrt(RADIUS) * d**-0.25 * u**1.5,
        RADIUS ** (7 / 15) * d ** (-7 / 30) * u ** (19 / 15),
        (phi * RADIUS**2 * math.sqrt(CLIENTS) / d) ** 0.2 * u**1.4,
        (psi / d) ** 0.2 * u**1.6,
        RADIUS**0.4 * (phi * d) ** -0.2 * u**1.2,
        psi * u**2,
    )
    return math.sqrt(max(1, largest / RADIUS)) * sum(terms) / u


PER = ["method", "task", "level"]
OF_COROLLARY = {**FEDAVG, "task": LARGEST}


BETTER_RATE = Claim(
    "better_rate",
    "at the paper's own sizes the bound is below the best rate known, that of DP-SGD",
    "Corollary 1, Remark 5",
    every(below, "corollary", **OF_COROLLARY, level=LEVELS, right=1),
    note="constants and logarithms, which the corollary does not give, are left out on both sides; "
    "tau_1 is what fig2 measures. At q = 1 it is about the loss of all records. Its first term is "
    "that of the appendix, tau^(4/9)",
    readings={
        "its first term as section 4 prints it, tau_q^(4/9)": {"measures": "corollary_printed"}
    },
)


SAME_EPSILON = Claim(
    "same_epsilon",
    "the calibrated pairs are calibrated at the epsilon that DP-FedAvg's noise implies, to 1e-5",
    "ours",
    every(ratio, "eps", (CALIBRATED, FEDAVG), task=COUNTS, level=LEVELS, within=1e-5),
    "holds",
    invariant=True,
)


@claim("ours", "holds")
def vacuous(rows: Rows) -> Comparisons:
    """no printed level but the third on Bank Marketing has an epsilon of at most 20"""
    for cell in grid(task=COUNTS, level=LEVELS):
        small = rows.value("eps_best", **FEDAVG, **cell) <= 20
        task, at = cell.values()
        expected = (task, at) == ("T2", 3)
        said = f"epsilon of {task} at level {at} is {'at most' if expected else 'above'} 20"
        yield exact(small == expected, said)


def _follows(task: str, levels: Sequence[int] = LEVELS) -> Judge:
    return every(ratio, "sigma", source="calibrated", task=task, level=levels, within=0.15)


@claim("Table 1", "holds")
def follows(rows: Rows) -> Comparisons:
    """the printed sigma_p of AdaptDP follows from DP-FedAvg's within 15 % on T1 and T3 (apart from
    level 2 of T3)
    """
    yield from _follows("T1")(rows)
    yield from _follows("T3", (1, 3))(rows)


FOLLOWS_T2 = Claim(
    "follows_T2",
    "the printed sigma_p of AdaptDP follows from DP-FedAvg's within 15 % on Bank Marketing",
    "Table 1",
    _follows("T2"),
    "fails",
    note="the radius's batch size and details of the calibration are not printed, so that the "
    "authors' computation may differ from ours within their formulas",
    readings={
        "within 25 %": {"within": 0.25},
        "level 2 alone": {"level": 2},
        "level 3 alone, whose epsilon is below 20": {"level": 3},
    },
)


@claim(
    "ours", "holds", note="425 was picked after the fact; the paper says 3000 records for 2 clients"
)
def T1_425(rows: Rows) -> Comparisons:  # noqa: N802
    """with 425 records a client both printed noises of T1 follow within 3 % at every level"""
    both, cells = (CALIBRATED, PRINTED), {"task": "T1_425", "level": LEVELS}
    for measure in ("sigma", "sigma_C"):
        yield from every(ratio, measure, both, **cells, within=0.03)(rows)


BOTH = (PRINTED, FEDAVG)
COSTS = [
    Claim(
        "overspends",
        "AdaptDP's printed pair costs more than the epsilon that it is for on level 3 of Bank "
        "Marketing",
        "ours",
        every(above, "eps", BOTH, task="T2", level=3),
        "holds",
    ),
    Claim(
        "same_level",
        "AdaptDP's printed pair of noises costs the epsilon of DP-FedAvg's within 15 %, on every "
        "task at every level",
        "Table 1, caption",
        every(ratio, "eps", BOTH, task=DIMENSIONS, level=LEVELS, within=0.15),
        note="15 % are those of the claims on sigma_p; both epsilons are by the paper's formulas",
        readings={
            "within 50 %": {"within": 0.5},
            "on T1 and T3 alone": {"task": ("T1", "T3")},
            "on T1 alone, with 425 records a client (picked after the fact)": {"task": "T1_425"},
        },
    ),
]


@claim(
    "ours",
    "holds",
    note="so 0.093 seems a misprint: it would be more noise at level 2 than at level 3. Read here "
    "as 0.0093; its formulas give 0.0071",
)
def misprint(rows: Rows) -> Comparisons:
    """the printed sigma_p of T3's level 2 is larger than that of level 3"""
    both = rows.each("sigma", source="calibrated", task="T3", level=(2, 3))
    two, three = (sigma.printed for sigma in both)
    yield exact(two > three, f"{two:g} > {three:g}")


table1 = Artifact(
    id="table1",
    title="Noise levels of DP-FedAvg and AdaptDP, printed and calibrated, and what they cost",
    shows="The paper fixes the noise of DP-FedAvg, reads an epsilon off it, and gives AdaptDP the "
    "pair of noises that its formulas ask for at that epsilon. Here that epsilon, the calibrated "
    "pair beside the printed one, and what the printed pair costs. Nearly all of these levels say "
    "nothing about privacy: only level 3 on Bank Marketing has an epsilon below 20.",
    source="Table 1 and equation (3)",
    sizes=untrained(minutes=0.1),
    runs=runs,
    measures={
        "sigma": Fact(
            lambda of: 2 * of("mechanism.noise_multiplier") / of("algorithm.batch_size"),
            title="sigma_p (gradients)",
        ),
        "sigma_C": Fact(
            lambda of: 2 * of("ledger.radius.noise_multiplier") / of("algorithm.radius_batch_size"),
            title="sigma_p^C (radius)",
            where={"method": "AdaptDP"},
        ),
        "eps": Price("wang_rdp", options={"order": "paper"}, title="epsilon at the paper's order"),
        "eps_best": Price("wang_rdp", title="epsilon at the best order"),
        "rate": Derived(rate, PER, title="best rate known", where=OF_COROLLARY),
        "corollary": Derived(
            corollary, PER, decimals=3, title="Corollary 1 over that rate", where=OF_COROLLARY
        ),
        "corollary_printed": Derived(
            partial(corollary, printed=True),
            PER,
            decimals=3,
            title="the same, its first term as printed in section 4",
            where=OF_COROLLARY,
        ),
    },
    titles={
        "T1_425": "T1 with 425 records a client",
        "source": "noise",
        "table": "printed",
        "misprint": "printed, 0.093 read as 0.0093",
        "calibrated": "calibrated at DP-FedAvg's epsilon",
    },
    tables=[
        Table(
            "What DP-FedAvg's printed noise implies at delta 1e-4, by equation (3) and by "
            "the best order",
            ["task", "level"],
            cells=["sigma", "eps", "eps_best"],
            where=FEDAVG,
            notes="T1: 150 rounds of 20 steps, 1500 records a client. T2: 100 rounds of 226 steps, "
            "22,605 records. T3, T4: 1000 rounds of 15 steps, 1500 records; with 100 rounds, "
            "as the paper's other tables have it, epsilon is a tenth and the calibrated pair "
            "the same.",
        ),
        Table(
            "The pair that the formulas give at that epsilon, beside the printed one",
            ["task", "level"],
            cells=["sigma", "sigma_C"],
            where=CALIBRATED,
            notes="A quarter of epsilon to either stream at the order 1 + ceil(2 ln(1/delta) / "
            "epsilon), the other half to the conversion; batches of 100 records in both streams "
            "(with all records in the radius's the second column would be 4 to 219 times smaller).",
        ),
        Table(
            "Corollary 1 (q = 1, tau = 1, 2 clients) at the paper's epsilons, beside the best rate "
            "known, both without constants and logarithms",
            ["task", "level"],
            cells=["rate", "corollary", "corollary_printed"],
            notes="On T1 AdaptDP's lowest loss at its best pair (table3) is 10.6, 11.3 and 2.4 "
            "times the corollary's order at levels 1, 2 and 3: what was left out comes to that at "
            "least, if the corollary, which is about x_out, is to hold there.",
        ),
        Table(
            "What AdaptDP's pairs cost",
            ["task", "level"],
            "source",
            ["eps", "eps_best"],
            where={"method": "AdaptDP"},
        ),
    ],
    figures=[
        Figure(
            "bars",
            "level",
            "eps",
            series="source",
            panels="task",
            where={
                "source": ["table", "calibrated"],
                "method": "AdaptDP",
                "task": ["T1", "T2", "T3"],
            },
            log="y",
            y_title="epsilon at delta 1e-4",
        )
    ],
)
