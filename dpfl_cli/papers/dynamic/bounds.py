"""Table 1: the orders of the utility bounds, and the rounds that they ask for, in numbers."""

from math import log

from dpfl_cli.config.component import lookup
from dpfl_cli.papers.dynamic import IJCNN1, OURS, per_worker
from dpfl_cli.reproduction.api import (
    Artifact,
    Claim,
    Comparisons,
    Fact,
    Facts,
    Figure,
    Rows,
    Run,
    Runs,
    Scale,
    Table,
    below,
    claim,
    every,
    exact,
    grid,
    ratio,
    untrained,
)

PROBLEMS = {
    "ijcnn1_sorted": (IJCNN1,),
    "ijcnn1_order": (IJCNN1, "dataset.order=file"),
    "a6a": ("+experiment=dynamic/a6a",),
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
        overrides = [*PROBLEMS[problem], METHODS[method]]
        values: dict[str, float] = {"rounds": 3000, "evaluation.every": 1}
        if method == "proposed":
            values |= {"algorithm.step": 0.25, "algorithm.strong_convexity": 0.1}
        elif problem == "a6a":  # these methods take no proximal steps: without the l1 term
            overrides.append("model.penalty=none")
        yield Run(labels, overrides, values)


def order(facts: Facts) -> float:
    """B^2 d ln(1/delta) / (eps^2 n m^2) over mu_f, or for the proposed method over its square."""
    convexity = facts("model.l2") / facts("clients")  # mu_f of the stacked objective
    if facts("algorithm.name") == "primal_dual":
        convexity = min(convexity**2, 1)
    spent = log(1 / facts("dp.delta")) / facts("dp.epsilon") ** 2
    return float(per_worker(facts) * spent / convexity)


def threshold(facts: Facts) -> float:
    """ln(Phi / order) / (gamma mu_f), Phi = sum_i ||x_i - x*||^2 + gamma ||y*||^2 at the start."""
    step = facts("algorithm.step")
    start = facts("problem.initial_distance") + step * facts("problem.dual_norm")
    return float(log(start / order(facts)) / (step * facts("model.l2") / facts("clients")))


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
        "order": Fact(order, title="order of the error"),
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
        "ijcnn1_sorted": "ijcnn1, sorted by label",
        "ijcnn1_order": "ijcnn1, in file order",
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
            where=PROPOSED,
            notes="from the start that seed 0 draws, with the data's own x*: a diagnostic, covered "
            "by no epsilon",
        ),
    ],
    figures=[
        Figure(
            "bars",
            "problem",
            "order",
            series="method",
            log="y",
        )
    ],
    notes=[
        f"{OURS}; a start drawn from N(0, I); y* from the stationarity condition at x*.",
        "Orders have no constants: a bar says nothing about which method is the better one.",
        "From x0 = 0, a start of dynamic/fig1 and fig2_zero, the sum of squared distances is "
        "n ||x*||^2, 25.3 on ijcnn1 sorted by label and 35.6 in file order, below the order: the "
        "bound then asks for no rounds.",
    ],
)
