"""Table 1: the orders of the utility bounds, and the rounds that they ask for, in numbers. Ours:
noise schedules of one budget, what the bound says of them and what they do.
"""

from math import log, sqrt

from dpfl_cli.config.component import lookup
from dpfl_cli.papers.dynamic import IJCNN1, OURS, after_rounds, least, optimality
from dpfl_cli.reproduction.api import (
    Artifact,
    Claim,
    Comparisons,
    Fact,
    Facts,
    Figure,
    Price,
    Rows,
    Run,
    Runs,
    Scale,
    Size,
    Table,
    above,
    below,
    below_share,
    claim,
    every,
    exact,
    falling,
    grid,
    level,
    ratio,
    sized,
    untrained,
)

PROBLEMS = {
    "ijcnn1_sorted": IJCNN1,
    "ijcnn1_order": f"{IJCNN1} dataset.order=file",
    "a6a": "+experiment=dynamic/a6a",
}
METHODS = {
    "FedAvg": "algorithm=fedavg_record",
    "SCAFFOLD": "algorithm=scaffold_record",
    "ISRL": "algorithm=isrl_dp",
    "proposed": "algorithm=primal_dual",
}


def runs(scale: Scale) -> Runs:
    for labels in grid(problem=PROBLEMS, method=METHODS):
        problem, method = labels.values()
        overrides = f"{PROBLEMS[problem]} {METHODS[method]} rounds=3000 evaluation.every=1"
        if problem == "a6a" and method != "proposed":
            overrides += " model.penalty=none"  # without the l1 term: they take no proximal steps
        yield Run(labels, overrides)


def per_worker(facts: Facts) -> float:
    """d B^2 / (n m^2), which all bounds have."""
    records = facts("records") / facts("clients")
    bound = facts("algorithm.clip_norm") ** 2 * facts("dimension")
    return bound / (facts("clients") * records**2)


def order_of_error(facts: Facts) -> float:
    """B^2 d ln(1/delta) / (eps^2 n m^2) over mu_f, or for the proposed method over its square."""
    convexity = facts("model.l2") / facts("clients")  # mu_f of the stacked objective
    if facts("algorithm.name") == "primal_dual":
        convexity = min(convexity**2, 1)
    spent = log(1 / facts("dp.delta")) / facts("dp.epsilon") ** 2
    return per_worker(facts) * spent / convexity


def threshold(facts: Facts) -> float:
    """ln(Phi / order) / (gamma mu_f), Phi = sum_i ||x_i - x*||^2 + gamma ||y*||^2 at the start."""
    step = facts("algorithm.step")
    start = facts("problem.initial_distance") + step * facts("problem.dual_norm")
    return log(start / order_of_error(facts)) / (step * facts("model.l2") / facts("clients"))


def composite(facts: Facts) -> str:
    """Whether the method takes proximal steps, which composite problems need."""
    return "yes" if lookup("algorithm", facts("algorithm.name")).target.proximal else "no"


def choice_of_rounds(facts: Facts) -> str:
    """With equal noise in every round the error grows with T, and some T* is the best."""
    static = facts("algorithm.name") != "primal_dual" or facts("algorithm.schedule") == "static"
    return "needs T*" if static else "any T above a threshold"


@claim("section 1, Table 1", "holds", invariant=True, id="composite")
def only_composite(rows: Rows) -> Comparisons:
    """the proposed method alone takes composite problems, and alone needs no T*"""
    for cell in grid(problem=PROBLEMS, method=METHODS):
        method, proposed = cell["method"], cell["method"] == "proposed"
        yield exact((rows.text("composite", **cell) == "yes") == proposed, f"composite: {method}")
        free = rows.text("rounds", **cell) != "needs T*"
        yield exact(free == proposed, f"any T: {method}")


@claim(
    "ours",
    note="measured from N(0, I), ijcnn1 is flat from about 2000 rounds on and a6a from about 3000, "
    "where its threshold is not reached: what Figure 2 shows between is not promised by the table",
)
def any_t(rows: Rows) -> Comparisons:
    """the paper's figures reach the threshold (8000 rounds on ijcnn1, 5000 on a6a)"""
    for problem in PROBLEMS:
        reached = 5000 if problem == "a6a" else 8000
        yield below(rows("threshold", problem=problem, method="proposed"), reached)


PROPOSED = {"method": "proposed"}
BOTH = ("proposed", "FedAvg")
LARGER = Claim(
    "larger",
    "the proposed method's order, a squared distance, is 1 / mu_f = 200 times the baselines', a "
    "suboptimality",
    "ours",
    every(ratio, "order", "method", problem=PROBLEMS, method=BOTH, to=200, within=1e-6),
    "holds",
    invariant=True,
)

table1 = Artifact(
    id="table1",
    title="Utility bounds, and the number of rounds that they ask for",
    shows="The paper's orders of the final error, put into numbers for its own experiment "
    "(constants left out, as in its table). The baselines reach theirs only with the right number "
    "of rounds; the proposed method's holds for every T above a threshold. The orders are of "
    "different things: DP-FedAvg's, DP-SCAFFOLD's and ISRL-DP's bound the suboptimality of F, the "
    "proposed one the squared distance, and the gradient bounds B, C and L of the rows all "
    "bound one record's gradient.",
    source="Table 1",
    sizes=untrained("nothing is trained: x* is computed, the formulas are evaluated", 0.05),
    runs=runs,
    measures={
        "order": Fact(order_of_error, title="order of the error"),
        "threshold": Fact(
            threshold, decimals=0, title="rounds T from which it holds", where=PROPOSED
        ),
        "rounds": Fact(choice_of_rounds, title="choice of T"),
        "composite": Fact(composite, title="composite"),
        "optimum": Fact("problem.optimum_norm", decimals=3, title="norm of x*", where=PROPOSED),
        "distance": Fact(
            "problem.initial_distance",
            decimals=2,
            title="sum of squared distances at the start",
            where=PROPOSED,
        ),
        "dual": Fact("problem.dual_norm", title="squared norm of y*", where=PROPOSED),
    },
    titles={
        "ijcnn1_sorted": "ijcnn1, 2,000 at random, sorted by label",
        "ijcnn1_order": "ijcnn1, first 2,000, in file order",
    },
    tables=[
        Table("Orders of the final error, without constants", "problem", "method", "order"),
        Table(
            "The other columns of the paper's table: whether T must be chosen, and whether the "
            "method takes composite problems",
            "method",
            "measure",
            ["rounds", "composite"],
            where={"problem": "a6a"},
            notes="composite as the program knows it: a method that takes no proximal steps is "
            "refused with an l1 term",
        ),
        Table(
            "The proposed method's threshold, and what it is made of",
            "problem",
            "measure",
            ["threshold", "distance", "dual", "optimum"],
            notes="from the start that seed 0 draws, with the data's own x*: a diagnostic, covered "
            "by no epsilon",
        ),
    ],
    figures=[Figure("bars", "problem", "order", series="method", log="y")],
    notes=[
        f"{OURS}; a start drawn from N(0, I); y* from the stationarity condition at x*.",
        "Orders have no constants: a bar says nothing about which method is the better one.",
        "From x0 = 0, a start of dynamic/fig1 and fig2_zero, the sum of squared distances is "
        "n ||x*||^2, 25.3 on ijcnn1 sorted by label and 35.6 in file order, below the order: the "
        "bound then asks for no rounds.",
    ],
)


# --- ours: noise schedules ------------------------------------------------------------------------

CONVEXITY = {"dynamic": 0.1, "slow": 0.01, "fast": 0.5, "stacked": 2.0}
SCHEDULES = ("dynamic", "static", "slow", "fast", "stacked")


def of_schedules(scale: Scale) -> Runs:
    for labels in grid(T=(1000, 3000, 8000), schedule=SCHEDULES):
        own = "schedule=static"
        if labels["schedule"] != "static":
            own = f"strong_convexity={CONVEXITY[labels['schedule']]}"
        words = f"{IJCNN1} algorithm=primal_dual algorithm.{own}"
        yield Run(labels, words, {"rounds": labels["T"]})


def noise_part(facts: Facts) -> float:
    """(5/2) n d gamma^2 sum_t q_t xi_t^2, the noise part of the bound (equations 9 and 11).

    xi_t^2 = 2 B^2 / (rho n^2 m^2) S(sqrt r') r'^(-(T - t) / 2), S(x) = 1 + x + ... + x^(T - 1);
    r = 1 - gamma min(mu / n, 1) for the true mu, r' for the schedule's (1 for equal noise).
    """
    step, workers, rounds = facts("algorithm.step"), facts("clients"), facts("rounds")

    def rate(convexity: float) -> float:
        return 1 - step * min(convexity / workers, 1)

    def total(factor: float) -> float:
        return rounds if factor == 1 else (1 - factor**rounds) / (1 - factor)

    delta = -log(facts("dp.delta"))
    rho = (sqrt(facts("dp.epsilon") + delta) - sqrt(delta)) ** 2
    static = facts("algorithm.schedule") == "static"
    own = 1.0 if static else sqrt(rate(facts("algorithm.strong_convexity")))
    true = rate(facts("model.l2"))
    return 5 * step**2 * per_worker(facts) / rho * total(own) * total(true / own)


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


LEAST = Claim(
    "least_bound",
    "the dynamic schedule for the right strong convexity has the smallest noise part of the bound",
    "section 4.2",
    every(least, "bound", "schedule", schedule=SCHEDULES, T=...),
    "holds",
)


BETTER_THAN_STATIC = Claim(
    "better_than_static",
    "at 8000 rounds the dynamic schedule for the right strong convexity is at least twice as good "
    "as equal noise",
    "ours",
    every(below_share, "optimality", "schedule", schedule=SCHEDULES[:2], T=8000, share=0.5),
    "holds",
)


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


FROM_THE_WORST = ("stacked", "fast", "static", "slow", "dynamic")
ORDER = Claim(
    "order",
    "at 8000 rounds the schedules come out in the order of their bounds",
    "ours",
    every(falling, "optimality", "schedule", schedule=FROM_THE_WORST, T=8000),
    "holds",
)


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
    runs=of_schedules,
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
