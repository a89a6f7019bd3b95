"""Numbers that notes restate are those of the published tables."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pandas as pd
import pytest

from dpfl_cli import reproduction
from dpfl_cli.papers.adaptdp import choices
from dpfl_cli.papers.adaptdp.clients import table4
from dpfl_cli.papers.adaptdp.cost import table5
from dpfl_cli.papers.adaptdp.noise import table1
from dpfl_cli.papers.dynamic.network import fig3
from dpfl_cli.papers.fedexp import PAIR, mnist
from dpfl_cli.papers.fedexp.search import table2
from dpfl_cli.papers.fednew import WIDER
from dpfl_cli.papers.scaffnew import iterations
from dpfl_cli.reproduction.api import Artifact, numbers_in

SEARCHES = Path(reproduction.__path__[0]) / "searches"
PUBLISHED = Path(__file__).parents[2] / "outputs/published"


def rows(name: str, measure: str) -> pd.DataFrame:
    """Of an artifact at the paper's size, with a seed each."""
    table = pd.read_csv(PUBLISHED / name / "paper/table.csv")
    return table[(table["measure"] == measure) & table["seed"].notna()]


def noted(artifact: Artifact, claim: str) -> str:
    return next(one.note for one in artifact.claims if one.id == claim)


def test_what_the_search_of_dynamic_fig3_found() -> None:
    cells = rows("dynamic/fig3", "final")
    means = cells.pivot_table("value", ["budget", "T"], "clip_norm")
    chosen = cells[cells["best"]].groupby(["budget", "T"])["clip_norm"].first()
    assert means.idxmax(axis=1).to_dict() == chosen.to_dict()
    changed = means[means[1.0] > means[4.0]]
    assert set(changed.index) == {("eps_05", "T1000"), ("eps_05", "T1200")}
    said = fig3.notes[-1]
    for one, four in changed.itertuples(index=False):
        assert f"{four:.2f}" in said
        assert f"against {one:.2f}" in said


def test_how_little_adaptdp_table5_learns() -> None:
    said = table5.notes[-1]
    losses = rows("adaptdp/table5", "loss").groupby(["method", "level"])["value"]
    means = losses.mean()
    first = rows("adaptdp/table5", "first")["value"].mean()
    assert f"{means.min():.3f} to {means.max():.3f} in the mean" in said
    assert f"({first:.3f} before" in said
    assert f"ln 10 = {math.log(10):.3f}" in said
    gap = (means["AdaptDP"] - means["FedAvg"]).abs().max()
    assert f"at most {gap:.4f} apart" in said
    assert f"by {losses.std().min():.3f} to {losses.std().max():.3f}" in said


def test_the_other_reading_of_adaptdp_table4s_losses() -> None:
    said = noted(table4, "levels_T3_T4")
    raw = rows("adaptdp/table2", "loss").query("selection == 'invalid_raw'")
    assert set(zip(raw["method"], raw["level"], strict=True)) == {("FedAvg", 3)}
    ours = raw.groupby("task")["value"].mean()
    known = numbers_in("paper_numbers/adaptdp/table4", "task", "method", "P", "level")
    theirs = {task: known[task, "FedAvg", 2, 3][0] for task in ("T3", "T4")}
    assert f"{ours['T3']:.2e} on T3 and {ours['T4']:.3f} on T4" in said
    assert f"has {theirs['T3']:.2e} and {theirs['T4']:.3f}" in said
    assert ours["T3"] < theirs["T3"] / 30
    assert theirs["T4"] / 2 < ours["T4"] < 2 * theirs["T4"]


def test_the_pair_that_fedexp_table2s_search_did_not_keep() -> None:
    missed = (0.3, 0.3)
    claim = next(one for one in table2.claims if one.id == "pair_fedexp_ldp_mnist")
    assert any(f"{missed} too, the best of all 25" in reading for reading in claim.readings)
    of_fedexp = "dp == 'ldp' and method == 'FedEXP'"
    tried = pd.read_csv(PUBLISHED / "fedexp/table2/paper/search.csv")
    tried = tried.query(f"{of_fedexp} and stage != 'reduced'").set_index(["local_lr", "clip_norm"])
    assert tried["value"].idxmax() == missed
    kept = {*tried[tried["stage"] == "full"].index}
    cells = rows("fedexp/table2", "accuracy").query(f"{of_fedexp} and dataset == 'MNIST'")
    pairs = cells.pivot_table("value", "seed", ["local_lr", "clip_norm"])
    assert {*pairs} == kept | {missed}
    assert pairs.idxmax(axis=1).value_counts().to_dict() == {missed: 3, (0.1, 0.3): 2}


def test_what_wider_grids_are_worth() -> None:
    curves = rows("fednew/fig2", "accuracy").query("method == 'Scaf' and best and eps == 10")
    now = curves[curves["task"] == "synthetic"]["value"].mean()
    assert f"75.6 before, now {now:.1f}; " in WIDER["paper"]
    where = "method == 'Scaf_share' and best and eps == 0.5"
    wide = rows("fednew/table11", "accuracy").query(where)
    now = wide[wide["clients"] == 50]["value"].mean()
    assert f"50 clients at 0.5: 81.2, now {now:.1f})" in WIDER["paper"]
    steps = [
        pd.read_csv(PUBLISHED / f"fednew/{name}/paper/table.csv", low_memory=False).query(
            f"measure == 'best.eta' and method == 'FGD' and {where}"
        )["value"]
        for name, where in (("table8", "eps > 0"), ("fig1", "task == 'adult'"))
    ]
    assert f"{(steps[0] == 7).sum()} of {len(steps[0])} cells of table8" in WIDER["paper"]
    assert (steps[1] == 7).all()


def test_what_thirty_seeds_say_of_overtaking() -> None:
    said = noted(mnist.table4, "c6_fedexp_ldp_other")
    fresh = rows("fedexp/table4", "accuracy").query("setting == 'fresh'")
    both = fresh.pivot_table("value", "seed", "method")
    chance = both[(both < 12).all(axis=1)]
    assert f"one ({chance.index.item():g}) ends at chance with both, at" in said
    ahead = both["FedEXP"] - both["FedAvg"]
    assert f"ahead in {(ahead > 0).sum()} of them, by {ahead.mean():.1f} points" in said
    half = 2.0452 * ahead.sem()  # t of 29 degrees of freedom
    assert f"{ahead.mean() - half:.1f} to {ahead.mean() + half:.1f}" in said


def test_corollary_1_beside_what_is_measured() -> None:
    of_order = rows_of_order()
    loss = rows("adaptdp/table3", "objective").query(
        "method == 'AdaptDP' and task == 'T1' and best"
    )
    times = loss.groupby("level")["value"].mean() / of_order
    said = " ".join(str(one.notes) for one in table1.tables)
    few, some, most = times.round(1)
    assert f"(table3) is {few}, {some} and {most} times" in re.sub(r"\s+", " ", said)


def rows_of_order() -> pd.Series:
    """Of T1, by level: Corollary 1 over the best rate, times that rate."""
    table = pd.read_csv(PUBLISHED / "adaptdp/table1/paper/table.csv").query("task == 'T1'")
    parts = table[table["method"] == "FedAvg"].pivot_table("value", "level", "measure")
    return parts["corollary"] * parts["rate"]


@pytest.mark.parametrize("scale", ["quick", "paper"])
def test_local_steps_of_scaffnews_curves_are_the_best_that_were_published(scale: str) -> None:
    """Those of scaffnew/fig3 and fig10 are the best of scaffnew/fig5 at C = 10."""
    table = pd.read_csv(PUBLISHED / f"scaffnew/fig5/{scale}/table.csv")
    best = table.query("measure == 'best.tau' and C == 10").set_index(["task", "method", "eps"])
    mine = {
        tuple(place): steps for (of, *place), (steps,) in iterations.BEST.items() if of == scale
    }
    assert mine == best["value"].astype(int).to_dict()


def test_the_best_pairs_of_fedexp_on_mnist_are_those_of_the_search() -> None:
    tried = pd.read_csv(SEARCHES / "fedexp_table4.csv", comment="#")
    best = tried.loc[tried.groupby(["dp", "method"])["accuracy"].idxmax()]
    assert len(best) == 9
    for one in best.itertuples():
        assert mnist.FOUND["best", one.dp, one.method] == (one.local_lr, one.clip_norm)


def test_the_searched_pairs_of_fedexp_on_mnist_are_those_that_were_published() -> None:
    found = pd.read_csv(PUBLISHED / "fedexp/table2/paper/table.csv").query("dataset == 'MNIST'")
    for (trust, method), rows_of in found.groupby(["dp", "method"]):
        pair = [rows_of.query(f"measure == 'best.{one}'")["value"].item() for one in PAIR]
        assert mnist.FOUND["searched", trust, method] == tuple(map(float, pair))


def test_the_best_pairs_of_adaptdp_are_those_that_were_published() -> None:
    table = pd.read_csv(PUBLISHED / "adaptdp/table3/quick/table.csv").query("task == 'T1'")
    for (method, level), pair in choices.OURS.items():
        mine = table[(table["method"] == method) & (table["level"] == level)]
        best = [mine.query(f"measure == 'best.{one}'")["value"].item() for one in ("eta", "cap")]
        assert pair == tuple(map(float, best))
