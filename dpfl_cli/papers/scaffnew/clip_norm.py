"""Figure 5: the best number of local steps against the clip norm (section 3.1, Observation 4)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import sqrt
from statistics import fmean, pstdev

from dpfl_cli.papers.scaffnew import PAPER
from dpfl_cli.papers.scaffnew._tasks import (
    CLIP_NORMS,
    IMAGES_AND_TEXT,
    METHODS,
    NOTES,
    QUICK,
    TASK_TITLES,
    TASKS,
    WORDS,
    ascends,
    best_of,
    r_squared,
    shape,
    targets_of,
)
from dpfl_cli.papers.scaffnew.local_steps import ERROR, HONEST, LOWEST, TARGETS, over_steps, sizes
from dpfl_cli.reproduction.api import (
    Artifact,
    Claim,
    Comparisons,
    Derived,
    Figure,
    Rows,
    Table,
    below,
)


def _best_steps(rows: Rows) -> list[float]:
    """The best numbers of local steps of one task, method, clip norm and seed, over epsilons."""
    return [best_of(rows, "tau", "error", eps=eps) for eps in targets_of(rows)]


def _over_epsilon(reduce: Callable[[Sequence[float]], float], title: str, decimals: int) -> Derived:
    return Derived(
        lambda rows: reduce(_best_steps(rows)),
        ["task", "method", "C"],
        decimals=decimals,
        title=title,
    )


def _fit(transform: Callable[[float], float], title: str) -> Derived:
    def value(rows: Rows) -> float:
        clip_norms = [transform(clip_norm) for clip_norm in rows.choices("C")]
        return r_squared(clip_norms, rows.values("mean_steps"))

    return Derived(
        value,
        ["task", "method"],
        decimals=2,
        title=title,
        where={"task": IMAGES_AND_TEXT},
    )


def _change(rows: Rows) -> float:
    errors = [rows.value("error", C=one, eps=3.3, best=True) for one in rows.choices("C")]
    return max(errors) - min(errors)


def _grows(task: str) -> Iterator[Claim]:
    def flat(rows: Rows) -> Comparisons:
        for change in rows.each("change", task=task, method=METHODS):
            yield below(change, 3.0)

    yield Claim(
        f"c6_{task}",
        f"on {WORDS[task]} the best number of local steps, averaged over epsilon, grows with C, "
        "for both methods",
        "section 3.1, Observation 4, Figure 5",
        shape(
            "mean best steps grow with C",
            lambda one, cell: ascends(one.values("mean_steps", **cell)),
            task=task,
            method=METHODS,
        ),
        "holds",
    )
    yield Claim(
        f"c6_error_{task}",
        f"on {WORDS[task]}, at nominal epsilon 3.3 and the best local steps, the error changes by "
        "less than 3 points over C",
        "section 3.1, Observation 4",
        flat,
        "holds",
    )


def _line(method: str, better: str, worse: str, words: str) -> Claim:
    return Claim(
        f"c6_{method.lower()}",
        f"on CIFAR-10, FEMNIST and Reddit DP-{method}'s best local steps fit {words}",
        "section 3.1, Observation 4, Figure 5",
        shape(
            f"{better} > {worse}",
            lambda one, cell: one.value(better, **cell) > one.value(worse, **cell),
            task=IMAGES_AND_TEXT,
            method=method,
        ),
        "holds",
        note="three points and two coefficients: one degree of freedom",
    )


fig5 = Artifact(
    paper=PAPER,
    id="fig5",
    title="Best number of local steps against the clip norm",
    shows=(
        "How the best number of local steps, averaged over nominal epsilons, changes with C, and "
        "the error there. It grows with the noise until one communication in all, the end of the "
        "grid, is the best. Three values of C cannot tell a line in C from one in its root. The "
        "noise is that of Lemma 1 with v = 8/m^2, fixed beforehand; the epsilon really spent by it "
        "says nothing about privacy."
    ),
    source="Figure 5; v is ours",
    sizes=sizes(0.5, 7, 80),
    runs=lambda scale: over_steps(scale, TASKS, TARGETS[scale], sum(CLIP_NORMS.values(), ())),
    measures={
        "error": ERROR,
        "honest": HONEST,
        "mean_steps": _over_epsilon(fmean, "best local steps, mean over epsilon", 1),
        "fewest_steps": _over_epsilon(min, "fewest", 0),
        "most_steps": _over_epsilon(max, "most", 0),
        "spread": _over_epsilon(pstdev, "their standard deviation over epsilon", 1),
        "fit": _fit(float, "R^2 in C"),
        "fit_root": _fit(sqrt, "R^2 in sqrt(C)"),
        "change": Derived(
            _change,
            ["task", "method"],
            decimals=1,
            title="change of the error over C at nominal epsilon 3.3 (points)",
        ),
    },
    best=[LOWEST],
    titles=TASK_TITLES,
    tables=[
        Table(
            "Best local steps over nominal epsilons: mean, standard deviation, fewest and most",
            rows=["task", "method"],
            columns="C",
            cells=["mean_steps", "spread", "fewest_steps", "most_steps"],
        ),
        Table(
            "Least squares of their mean against C and against the root of C, three values "
            "of C each",
            rows=["task", "method"],
            columns="measure",
            cells=["fit", "fit_root", "change"],
            notes=[
                "Three points and two coefficients leave one degree of freedom: these R^2 prove "
                "nothing. Means are over two epsilons at quick, four at paper. Fed-IXI and "
                "Messidor are left out: at quick their best numbers are those of noise."
            ],
        ),
        Table(
            "Best local steps, and the test error (%) there",
            rows=["task", "method", "eps"],
            columns="C",
            cells=["best.tau", "error"],
            where={"best": True},
        ),
        Table(
            "Epsilon of the ledger at these points",
            rows=["task", "method"],
            columns=["C", "eps"],
            cells="honest",
        ),
    ],
    figures=[
        Figure(
            "lines",
            x="C",
            measures="mean_steps",
            series="method",
            panels="task",
            log="x",
            x_title="clip norm C",
            y_title="best local steps, mean over epsilon",
        )
    ],
    claims=[
        *(claim for task in TASKS for claim in _grows(task)),
        _line("ScaffNew", "fit", "fit_root", "a line in C better than one in sqrt(C)"),
        _line("FedAvg", "fit_root", "fit", "a line in sqrt(C) better than one in C"),
    ],
    notes=[
        *NOTES,
        *QUICK,
        "The paper: best local steps of DP-ScaffNew linear in C, of DP-FedAvg linear in the root "
        "of C. What clipping never shortens depends on C and epsilon through C / epsilon alone; "
        "scaffnew/scaling shows that on mushrooms.",
    ],
)
