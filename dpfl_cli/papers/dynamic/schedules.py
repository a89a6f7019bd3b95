"""Ours: noise schedules of one budget, what the bound says of them and what they do."""

from itertools import pairwise
from math import log, sqrt

from dpfl_cli.papers.dynamic import (
    IJCNN1,
    OURS,
    SMALL,
    after_rounds,
    optimality,
    per_worker,
)
from dpfl_cli.reproduction.api import (
    Artifact,
    Claim,
    Comparisons,
    Fact,
    Facts,
    Price,
    Rows,
    Run,
    Runs,
    Scale,
    Size,
    Table,
    above,
    below,
    claim,
    every,
    exact,
    grid,
    level,
    sized,
)

CONVEXITY = {"dynamic": 0.1, "slow": 0.01, "fast": 0.5, "stacked": 2.0}
SCHEDULES = ("dynamic", "static", "slow", "fast", "stacked")


def runs(scale: Scale) -> Runs:
    small = SMALL if scale == "smoke" else {}
    for labels in grid(T=(1000,) if small else (1000, 3000, 8000), schedule=SCHEDULES):
        static = ["algorithm.schedule=static"] if labels["schedule"] == "static" else []
        pace = {} if static else {"algorithm.strong_convexity": CONVEXITY[labels["schedule"]]}
        values = {"rounds": labels["T"], "algorithm.step": 0.25, **pace, **small}
        yield Run(labels, [IJCNN1, "algorithm=primal_dual", *static], values)


def noise_part(facts: Facts) -> float:
    """(5/2) n d gamma^2 sum_t q_t xi_t^2, the noise part of the bound (equations 9 and 11).

    xi_t^2 = 2 B^2 / (rho n^2 m^2) S(sqrt r') r'^(-(T - t) / 2), S(x) = 1 + x + ... + x^(T - 1);
    r = 1 - gamma min(mu / n, 1) for the true mu, r' for the schedule's (1 for equal noise).
    """
    step, workers, rounds = facts("algorithm.step"), facts("clients"), facts("rounds")

    def rate(convexity: float) -> float:
        return float(1 - step * min(convexity / workers, 1))

    def total(factor: float) -> float:
        return float(rounds if factor == 1 else (1 - factor**rounds) / (1 - factor))

    delta = -log(facts("dp.delta"))
    rho = (sqrt(facts("dp.epsilon") + delta) - sqrt(delta)) ** 2
    static = facts("algorithm.schedule") == "static"
    own = 1.0 if static else sqrt(rate(facts("algorithm.strong_convexity")))
    true = rate(facts("model.l2"))
    return float(5 * step**2 * per_worker(facts) / rho * total(own) * total(true / own))


@claim("section 4.2", "holds", invariant=True)
def c9(rows: Rows) -> Comparisons:
    """every schedule spends the same budget, to 1e-10; the target of epsilon 1 is met from below,
    within the rounding of the noise to 7 digits"""
    for rounds in rows.choices("T"):
        static = rows("epsilon", schedule="static", T=rounds)
        for spent in rows.each("epsilon", schedule=CONVEXITY, T=rounds):
            yield level(spent, static, within=1e-10)
            yield exact(0.999999 <= spent.mean <= 1, f"0.999999 <= {spent.text} <= 1")


EXACT = Claim(
    "exact",
    "by exact Gaussian composition the budget of epsilon 1 is 0.694 (an exact accountant would "
    "have allowed half the noise variance)",
    "ours",
    every(level, "exact", schedule="dynamic", T=..., right=0.693681, within=1e-5),
    "holds",
)


@claim("section 4.2", "holds")
def least_bound(rows: Rows) -> Comparisons:
    """the dynamic schedule for the right strong convexity has the smallest noise part of the
    bound"""
    for rounds in rows.choices("T"):
        least, *others = rows.each("bound", schedule=SCHEDULES, T=rounds)
        for other in others:
            yield below(least, other)


@claim("ours", "holds")
def better_than_static(rows: Rows) -> Comparisons:
    """at 8000 rounds the dynamic schedule for the right strong convexity is at least twice as good
    as equal noise"""
    dynamic, static = rows.each("optimality", schedule=("dynamic", "static"), T=8000)
    yield below(2 * dynamic, static)


SQUARED_NORM = 25.3  # n ||x*||^2 of ijcnn1 sorted by label
VACUOUS = Claim(
    "vacuous_bound",
    "the noise part of the bound is more than 100 times what it bounds, at every T",
    "ours",
    every(
        lambda bound, found: above(bound, 100 * SQUARED_NORM * found),
        ["bound", "optimality"],
        schedule="dynamic",
        T=...,
    ),
    "holds",
    note="it bounds the sum of squared errors, at most n ||x*||^2 = 25.3 times the optimality "
    "(whose second term, the distance between the copies, is not in units of ||x*||^2); an "
    "earlier page left that factor out, and found that the claim holds",
)


@claim("ours", "holds")
def order(rows: Rows) -> Comparisons:
    """at 8000 rounds the schedules come out in the order of their bounds"""
    names = ("dynamic", "slow", "static", "fast", "stacked")
    for better, worse in pairwise(rows.each("optimality", schedule=names, T=8000)):
        yield below(better, worse)


ablation_schedule = Artifact(
    id="ablation_schedule",
    title="Final optimality under noise schedules of one budget, regularised logistic regression "
    "on ijcnn1",
    shows="The dynamic schedule minimises the noise part of the paper's bound; here it is beside "
    "equal noise in every round and schedules made for a wrong strong convexity: what the "
    "bound says of them, and what is measured.",
    source="ours; the bound is equations 9 and 11",
    sizes=sized(
        Size(5, 0.3, "20 workers with 100 records each", full=True),
        Size(20, 3, "20 workers with 100 records each"),
    ),
    runs=runs,
    measures={
        "optimality": optimality("last", "optimality"),
        "bound": Fact(noise_part, title="noise part of the bound"),
        "epsilon": Price("zcdp", decimals=9, title="epsilon by zCDP"),
        "exact": Price("gdp", decimals=6, title="exact epsilon"),
    },
    titles={
        "schedule": "noise schedule",
        "dynamic": "dynamic, mu = 0.1 (right)",
        "slow": "dynamic for mu = 0.01",
        "fast": "dynamic for mu = 0.5",
        "stacked": "dynamic for mu = 2 (mu_f = 0.1)",
    },
    tables=[
        Table("Final optimality", "schedule", "T", "optimality"),
        Table("Noise part of the bound", "schedule", "T", "bound"),
        Table("What they spend", ["schedule", "T"], "measure", ["epsilon", "exact"]),
    ],
    figures=[after_rounds(series="schedule", y_range=(0.3, 1000))],
    notes=[
        "The figure ends at 1000: the schedule for mu = 2 leaves it (the table has its values).",
        f"{OURS}; ijcnn1 sorted by label, and a start drawn from N(0, I).",
        "Lemma 4.4, on which the bound rests, was simulated on quadratic problems, smooth and with "
        "an l1 term: it holds at every point of a run (tests/papers/test_theorems.py). Its noise "
        "term is at least 2.5 times what the noise of a round adds on a smooth problem.",
    ],
)
