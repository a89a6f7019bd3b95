"""Figures 1, 3 and 5: accuracy over the rounds on data dealt at random (section 6.2)."""

from __future__ import annotations

from collections.abc import Iterator

from dpfl_cli.papers.fednew._common import (
    ADULT,
    CURVE_EPSILONS,
    FEATURES,
    OURS,
    SMOKE,
    WHOLE,
    ahead_of,
    epsilons,
    gap,
    gap_small_steps,
    level_with,
)
from dpfl_cli.papers.fednew._over_rounds import (
    BROAD,
    BROAD_NOTES,
    BROAD_TASKS,
    NARROW,
    NARROW_NOTES,
    NARROW_TASKS,
    PROVED,
    USER_GRIDS,
    ahead,
    newton,
    over_rounds,
    reaches,
    record_level,
    user_run,
    user_search,
)
from dpfl_cli.reproduction.api import Claim, Comparison, Rows, Run, Scale, claim

# --- Figures 1 and 5: record level ------------------------------------------------------------


def fast(rows: Rows) -> Iterator[Comparison]:
    """from epsilon 1 on DP-FedNew (on wide features DP-FedNew-FC) reaches DP-FedGD's final accuracy
    before round 15, also when DP-FedGD takes its best step up to 100
    """
    yield from reaches(rows, newton(rows), best=True)


def fast_small_steps(rows: Rows) -> Iterator[Comparison]:
    """from epsilon 1 on DP-FedNew (on wide features DP-FedNew-FC) reaches the final accuracy of
    DP-FedGD with a server step of 1 before round 15
    """
    yield from reaches(rows, newton(rows), eta=1.0)


def ahead_early(rows: Rows) -> Iterator[Comparison]:
    """from epsilon 1 on DP-FedNew (on wide features DP-FedNew-FC) is more accurate than DP-FedGD at
    its best step in rounds 5 to 20
    """
    yield from ahead(rows, newton(rows), "FGD")


def scaffold(rows: Rows) -> Iterator[Comparison]:
    """at epsilon 0.1 DP-SCAFFOLD is more than one point behind DP-FedGD and DP-FedNew (on wide
    features DP-FedNew-FC)
    """
    for other in ("FGD", newton(rows)):
        yield from ahead_of(rows, other, "Scaf", by=1, high=0.2)


def at_record_level(figure: str) -> list[Claim]:
    early = "of the points that are the best in the last 20 rounds"
    return [
        claim(source=f"sections 6.2 and 6.6, {figure}")(fast),
        claim(source="ours")(fast_small_steps),
        claim(source=f"section 6.2, {figure}", note=early)(ahead_early),
        claim(source=f"section 6.2, {figure}", prior="holds", note=WHOLE)(scaffold),
    ]


FIRST_ORDER = ("FGD", "Scaf", "Scaf_share")
STEPS = (
    "each at the best point of its grid. How many rounds second-order information saves depends on "
    "the step that DP-FedGD may take, here up to 100."
)
fig1 = over_rounds(
    1,
    ("FN", *FIRST_ORDER),
    (0.9, 210),
    NARROW_NOTES,
    title="Test accuracy against rounds, record level, narrow features",
    shows=(
        "DP-FedNew, DP-FedGD and DP-SCAFFOLD round by round on Adult and on 64 features of images, "
        f"dealt at random, {STEPS}"
    ),
    runs=lambda scale: record_level(scale, ("FN", *FIRST_ORDER), NARROW, NARROW_TASKS),
    claims=at_record_level("Figure 1"),
    notes=[ADULT, FEATURES, OURS],
)


at_figure5 = claim(source="section 6.2, Figure 5", note="in Tables 10 and 11 by 3.1 points or more")
fig5 = over_rounds(
    5,
    ("FN_FC", *FIRST_ORDER),
    (1.6, 1050),
    BROAD_NOTES,
    title="Test accuracy against rounds, record level, wide features",
    shows=(
        "DP-FedNew-FC, DP-FedGD and DP-SCAFFOLD round by round on the wide features of images, "
        f"dealt at random, {STEPS}"
    ),
    runs=lambda scale: record_level(scale, ("FN_FC", *FIRST_ORDER), BROAD, BROAD_TASKS),
    claims=[*at_record_level("Figure 5"), at_figure5(gap), gap_small_steps],
    notes=[FEATURES, OURS],
)

# --- Figure 3: user level ---------------------------------------------------------------------

USER_METHODS = ("FN", "FN_off", *FIRST_ORDER)


def fig3_runs(scale: Scale) -> Iterator[Run]:
    """Adult; the paper's other panels are fig7's and fig8's data."""
    few = {**SMOKE, "dataset.records": 400, "dataset.test_records": 200, "partitioner.clients": 10}
    for method in USER_METHODS:
        for eps in epsilons(scale, CURVE_EPSILONS):
            for point in user_search(method, scale, clips=(0.03, 0.1, 1.0), long=1.0):
                labels = {"method": method, "eps": eps, **point}
                yield user_run("adult", labels, few if scale == "smoke" else {})


@claim(source="section 6.2, Figure 3", id="fast", note="DP-FedGD may take steps up to 10")
def user_fast(rows: Rows) -> Iterator[Comparison]:
    """from epsilon 1 on DP-FedNew reaches DP-FedGD's final accuracy before round 15"""
    yield from reaches(rows, "FN", best=True)


@claim(source="ours", id="fast_small_steps")
def user_fast_small_steps(rows: Rows) -> Iterator[Comparison]:
    """from epsilon 1 on DP-FedNew reaches the final accuracy of DP-FedGD, with a server step and a
    clip norm of 1, before round 15
    """
    yield from reaches(rows, "FN", eta=1.0, clip=1.0)


@claim(source="ours")
def fast_no_duals(rows: Rows) -> Iterator[Comparison]:
    """from epsilon 1 on DP-FedNew without duals reaches the final accuracy of DP-FedGD, with a
    server step and a clip norm of 1, before round 15
    """
    yield from reaches(rows, "FN_off", eta=1.0, clip=1.0)


@claim(source="section 6.2, Figure 3")
def fastest(rows: Rows) -> Iterator[Comparison]:
    """from epsilon 1 on DP-FedNew is ahead of DP-FedGD in rounds 5 to 20"""
    yield from ahead(rows, "FN", "FGD")


@claim(source="section 6.2, Figure 3", id="scaffold", note=WHOLE)
def user_scaffold(rows: Rows) -> Iterator[Comparison]:
    """DP-SCAFFOLD is more than one point behind DP-FedNew at every epsilon"""
    yield from ahead_of(rows, "FN", "Scaf", by=1)


@claim(source="ours")
def scaffold_shares(rows: Rows) -> Iterator[Comparison]:
    """with shares of the noise too DP-SCAFFOLD is more than one point behind DP-FedNew"""
    yield from ahead_of(rows, "FN", "Scaf_share", by=1)


@claim(source="ours", prior="holds")
def dual(rows: Rows) -> Iterator[Comparison]:
    """without duals DP-FedNew loses less than one point at every epsilon"""
    yield from ahead_of(rows, "FN_off", "FN", by=-1)


@claim(source="ours")
def dual_low(rows: Rows) -> Iterator[Comparison]:
    """without duals DP-FedNew gains more than one point at epsilon 0.1"""
    yield from ahead_of(rows, "FN_off", "FN", by=1, high=0.2)


@claim(source="ours", id="level")
def level_with_fedgd(rows: Rows) -> Iterator[Comparison]:
    """without duals DP-FedNew is within one point of DP-FedGD at every epsilon"""
    yield from level_with(rows, "FN_off", "FGD", within=1)


fig3 = over_rounds(
    3,
    USER_METHODS,
    (3, 115),
    (
        "10 clients with 40 records each and 2 rounds",
        "all records and 70 rounds; a scaled-down search, 3 epsilons",
        "6 epsilons; a scaled-down search",
    ),
    USER_GRIDS,
    side=(),
    title="Test accuracy over rounds on Adult, user level, 500 clients",
    shows=(
        "DP-FedNew beside DP-FedGD and DP-SCAFFOLD where a whole client is protected, on Adult "
        "dealt at random to 500 clients, each method with the best point of its grid for every "
        "epsilon. Beside the paper's DP-FedNew, whose guarantee is not proved, stands the one "
        "without duals, whose guarantee is."
    ),
    runs=fig3_runs,
    claims=[
        *(user_fast, user_fast_small_steps, fast_no_duals, fastest, user_scaffold),
        *(scaffold_shares, dual, dual_low, level_with_fedgd),
    ],
    notes=[
        PROVED,
        "Adult only; the paper's panels of image features are the data of fig7 and fig8.",
        ADULT,
        "The smallest clip norm is 0.03: nothing smaller is in the grid.",
        OURS,
    ],
)
