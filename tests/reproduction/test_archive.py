"""Three published pages from the archived runs alone: numbers and verdicts, calculated anew.

Nothing of dpfl is imported: files are read as they are, cells are told by the runs' configs,
measures are written out from the papers' definitions, and verdicts from their three rules with
scipy (each comparison by its own spread, where the pages may pool those of like cells).
"""

from __future__ import annotations

import csv
import functools
import json
import tarfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise, permutations
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from scipy.optimize import brentq

OUTPUTS = Path(__file__).parents[2] / "outputs"
Cells = dict[tuple[Any, ...], pd.Series]  # labels and measure -> seed -> value
Curves = dict[str, dict[int, float]]  # measure -> round -> value
Checks = list[tuple[bool, float]]  # whether it holds, and the p-value of what speaks against it


def archived(name: str) -> Iterator[tuple[dict[str, Any], Curves, list[dict[str, Any]]]]:
    """Config, curves and ledger of every run of a page."""
    files: dict[str, dict[str, bytes]] = {}
    with tarfile.open(OUTPUTS / f"archive/{name}.tar.xz") as archive:
        for member in archive:
            run, _, file = member.name.partition("/")
            content = archive.extractfile(member)
            assert content is not None
            files.setdefault(run, {})[file] = content.read()
    for one in files.values():
        curves: Curves = defaultdict(dict)
        for row in csv.DictReader(one["metrics.csv"].decode().splitlines()):
            for measure, value in row.items():
                if value:
                    curves[measure][int(row["round"])] = float(value)
        yield json.loads(one["result.json"])["config"], curves, json.loads(one["ledger.json"])


def collected(rows: Iterable[tuple[tuple[Any, ...], int, float]]) -> Cells:
    found: dict[tuple[Any, ...], dict[int, float]] = {}
    for key, seed, value in rows:
        assert seed not in found.setdefault(key, {})
        found[key][seed] = value
    return {key: pd.Series(values).sort_index() for key, values in found.items()}


# --- the three rules -------------------------------------------------------------------------


def above(high: Any, low: Any, log: bool = True) -> tuple[bool, float]:
    """Student's interval of paired differences, of logarithms of what is positive."""
    gaps = np.log(high) - np.log(low) if log else high - low
    error, freedom = gaps.std(ddof=1) / np.sqrt(len(gaps)), len(gaps) - 1
    if error == 0:
        return bool(gaps.mean() > 0), float(gaps.mean() >= 0)
    low_end = gaps.mean() - stats.t.ppf(0.975, freedom) * error
    return bool(low_end > 0), float(stats.t.cdf(gaps.mean() / error, freedom))


def within(values: pd.Series, wanted: float, margin: float) -> tuple[bool, float]:
    """An equivalence test: the whole interval within the margin."""
    gap, error = values.mean() - wanted, values.std(ddof=1) / np.sqrt(len(values))
    reach = stats.t.ppf(0.975, len(values) - 1) * error
    against = stats.t.cdf((margin - abs(gap)) / error, len(values) - 1)
    return bool(abs(gap) + reach < margin), float(against)


def in_every_seed(truths: Iterable[bool]) -> tuple[bool, float]:
    all_of = list(truths)
    return all(all_of) and len(all_of) >= 5, 1.0 if any(all_of) else 0.0


def verdict(checks: Checks) -> str:
    if all(holds for holds, _ in checks):
        return "holds"
    return "fails" if min(against for _, against in checks) < 0.025 / len(checks) else "undecided"


# --- DP-FedEXP, Figure 2 (left) --------------------------------------------------------------


def fedexp_cells() -> Cells:
    """The distance to the optimum at the start and after round 50, and their ratio."""

    def rows() -> Iterator[tuple[tuple[Any, ...], int, float]]:
        for config, curves, _ in archived("fedexp/fig2_left"):
            algorithm, trust = config["algorithm"], config["dp"]["name"]
            method = {"fedexp": "FedEXP", "fedavg": "FedAvg", "scaffold": "SCAFFOLD"}[
                algorithm["name"]
            ]
            if algorithm.get("step") == "naive":
                method = "naive"
            if trust == "none":  # drawn beside both, by its dimension
                method = "nonprivate"
                trusts = {500: ("cdp",), 100: ("ldp", "ldp_privunit")}
                beside = trusts[config["dataset"]["dimension"]]
            else:
                beside = (trust,)
            first, last = (curves["distance"][at] for at in (0, 50))
            for one in beside:
                for measure, value in (
                    ("start", first),
                    ("final", last),
                    ("relative", last / first),
                ):
                    yield (one, method, measure), config["seed"], value

    return collected(rows())


def fedexp_claims(cells: Cells) -> dict[str, Checks]:
    def closer(one: str, other: str, trusts: Iterable[str]) -> Checks:
        return [above(cells[dp, other, "final"], cells[dp, one, "final"]) for dp in trusts]

    def near(dp: str, fedexp: float, fedavg: float) -> Checks:
        pairs = (("FedEXP", fedexp), ("FedAvg", fedavg))
        return [within(cells[dp, one, "relative"], at, round(at / 10, 4)) for one, at in pairs]

    local = ("ldp", "ldp_privunit")
    return {
        "c3_fedavg": closer("FedEXP", "FedAvg", (*local, "cdp")),
        "c3_scaffold": closer("FedEXP", "SCAFFOLD", (*local, "cdp")),
        "c4_cdp": closer("SCAFFOLD", "FedAvg", ("cdp",)),
        "c4_ldp": closer("FedAvg", "SCAFFOLD", local),
        "c8": [above(cells[dp, "naive", "final"], cells[dp, "naive", "start"]) for dp in local],
        "level_ldp": near("ldp", 0.224, 0.727),
        "level_cdp": near("cdp", 0.44, 0.914),
    }


# --- dynamic allocation, Figure 1 ------------------------------------------------------------

STATIC = ("ISRL", "FedAvg", "SCAFFOLD")
ROUNDS = range(1000, 9000, 1000)


@functools.cache
def dynamic_cells() -> Cells:
    """Relative squared error of the mean and, of the proposed method, the distance of copies."""

    def rows() -> Iterator[tuple[tuple[Any, ...], int, float]]:
        for config, curves, ledger in archived("dynamic/fig1"):
            algorithm = config["algorithm"]
            name, workers = algorithm["name"], config["partitioner"]["clients"]
            if name == "primal_dual":
                method, step = algorithm["schedule"], algorithm["step"] / workers
            elif name == "isrl_dp":
                method, step = "ISRL", algorithm["step"]
            else:
                method = {"fedavg_record": "FedAvg", "scaffold_record": "SCAFFOLD"}[name]
                step = algorithm["local_steps"] * algorithm["local_lr"]
            last = config["rounds"]
            optimality = curves["squared_error"][last] + curves["consensus"].get(last, 0.0)
            split = {"sorted": "sorted", "file": "order"}[config["dataset"]["order"]]
            if config["model"]["init"] == "zeros":
                key = ("per_T", split, config["rounds"], method, round(step, 6))
            else:
                key = ("fixed", split, config["rounds"], method, "")
            yield (*key, "optimality"), config["seed"], optimality
            yield (*key, "zcdp"), config["seed"], zcdp(ledger, config["dp"]["delta"])

    return collected(rows())


def zcdp(ledger: list[dict[str, Any]], delta: float) -> float:
    """epsilon = rho + 2 sqrt(rho ln(1 / delta)), rho the sum of 1 / (2 z^2) (Bun, Steinke 2016)."""
    (entry,) = ledger
    noise = np.broadcast_to(entry["parameter"], entry["count"])
    rho = float(np.sum(1 / (2 * noise**2)))
    return rho + 2 * np.sqrt(rho * np.log(1 / delta))


def dynamic_claims(cells: Cells) -> dict[str, Checks]:
    def at(method: str, rounds: int, step: Any = "") -> pd.Series:
        tuned = "fixed" if step == "" else "per_T"
        return cells[tuned, "sorted", rounds, method, step, "optimality"]

    def best(method: str, rounds: int) -> pd.Series:
        tried = [
            one
            for key, one in cells.items()
            if (key[0], *key[2:4], key[5]) == ("per_T", rounds, method, "optimality")
        ]
        return min(tried, key=lambda one: one.mean())

    def flat(many: list[pd.Series]) -> Checks:
        return [above(1.5 * other, one) for one, other in permutations(many, 2)]

    shaped: Checks = []
    for method in (*STATIC, "static"):
        curve = [at(method, rounds) for rounds in ROUNDS]
        lowest = min(curve, key=lambda one: one.mean())
        shaped += [above(curve[0], lowest), above(curve[-1], 1.5 * lowest)]
    ordered = [
        above(at(worse, rounds), at(better, rounds))
        for rounds in ROUNDS
        for worse, better in pairwise(STATIC)
    ]
    lower = []
    for rounds in ROUNDS:
        rival = min((best(one, rounds) for one in STATIC), key=lambda one: one.mean())
        lower.append(above(1.05 * best("dynamic", rounds), rival))
    return {
        "c1": flat([at("dynamic", rounds) for rounds in ROUNDS if rounds >= 3000]),
        "c2": [above(at("dynamic", 1000), at("dynamic", 2000))],
        "c2_zero": [above(at("dynamic", 1000, 0.0125), at("dynamic", 2000, 0.0125))],
        "c3": shaped,
        "c4": [above(at(one, 8000), at("dynamic", 8000)) for one in (*STATIC, "static")],
        "c5": ordered,
        "c6_flat": [
            check for one in STATIC for check in flat([best(one, rounds) for rounds in ROUNDS])
        ],
        "c6_lower": lower,
    }


# --- AdaptDP, Figure 2 -----------------------------------------------------------------------


def adaptdp_cells() -> Cells:
    def rows() -> Iterator[tuple[tuple[Any, ...], int, float]]:
        for config, curves, _ in archived("adaptdp/fig2"):
            task = "T3" if config["dataset"]["name"] == "mnist" else "T1"
            for measure in ("radius", "clipped_fraction", "tau_70"):
                for at, value in curves[measure].items():
                    yield (task, measure, at), config["seed"], value
            for measure in ("radius", "tau_50", "tau_70", "tau_90", "tau_100"):
                last = list(curves[measure].values())[-5:]
                yield (task, f"last {measure}"), config["seed"], float(np.mean(last))
            algorithm, clients, failure = config["algorithm"], 2, 0.01
            cap = algorithm["clip_norm"]
            # equation (A3): sigma_C, in units of the squared cap, has the paper's 2 / b
            noise = 2 * algorithm["radius_noise_multiplier"] / algorithm["radius_batch_size"]
            offset = np.sqrt(2 * noise**2 * cap**4 / clients)
            offset *= np.sqrt(np.log(2 * clients * config["rounds"] / failure))
            yield (task, "cap"), config["seed"], cap
            yield (task, "floor"), config["seed"], np.sqrt(2 * offset)

    return collected(rows())


def adaptdp_claims(cells: Cells) -> dict[str, Checks]:
    def mean(measure: str, first: int, last: int, task: str = "T1") -> pd.Series:
        found = [cells[task, measure, at] for at in range(first, last + 1)]
        return sum(found[1:], found[0]) / len(found)

    def at_cap(task: str, rounds: range) -> tuple[bool, float]:
        cap = cells[task, "cap"]
        return in_every_seed(
            all(cells[task, "radius", at][seed] >= 0.999 * cap[seed] for at in rounds)
            for seed in cap.index
        )

    taus = ("tau_50", "tau_70", "tau_90", "tau_100")
    ordered: Checks = []
    for task in ("T1", "T3"):
        quantiles = [cells[task, f"last {name}"] for name in taus]
        ordered += [above(high, low, log=False) for low, high in pairwise(quantiles)]
        ordered.append(above(150 + 0 * quantiles[-1], quantiles[-1], log=False))
    half, last = 0.5 * cells["T3", "cap"], cells["T3", "last radius"]
    late, early = mean("tau_70", 101, 150), mean("tau_70", 1, 20)
    clipped = cells["T1", "clipped_fraction", 20]
    return {
        "c4_cap": [at_cap("T1", range(1, 11))],
        "c4_falls": [above(0.25 * cells["T1", "cap"], mean("radius", 101, 150), log=False)],
        "c5": [within(cells["T1", "last radius"] / cells["T1", "floor"], 1, 0.5)],
        "b1_falls": [above(half, last, log=False)],
        "c6": [within(cells[task, "last tau_70"], 1, 0.5) for task in ("T1", "T3")],
        "c6_order": ordered,
        "c6_flat": [within(late / early, 1, 0.2)],
        "clipped_T1": [
            above(clipped, 0.5 + 0 * clipped, log=False),
            above(0.05 + 0 * clipped, mean("clipped_fraction", 101, 150), log=False),
        ],
        "cap_T3": [at_cap("T3", range(1, 1001))],
        "unclipped_grows": [
            above(
                mean("clipped_fraction", 1, 5, task),
                mean("clipped_fraction", rounds - 4, rounds, task),
                log=False,
            )
            for task, rounds in (("T1", 150), ("T3", 1000))
        ],
    }


# --- beside what is published ----------------------------------------------------------------

ADAPTDP = {"last_radius": "last radius"} | {f"last_{q}": f"last tau_{q}" for q in (50, 70, 90, 100)}
PAGES: dict[str, tuple[Callable[[], Cells], Callable[[Cells], dict[str, Checks]], Any]] = {
    "fedexp/fig2_left": (
        fedexp_cells,
        fedexp_claims,
        lambda row: (row.dp, row.method, row.measure),
    ),
    "dynamic/fig1": (
        dynamic_cells,
        dynamic_claims,
        lambda row: (
            row.tuned,
            row.split,
            row["T"],
            row.method,
            "" if np.isnan(row.step) else row.step,
            row.measure,
        ),
    ),
    "adaptdp/fig2": (
        adaptdp_cells,
        adaptdp_claims,
        lambda row: (row.task, ADAPTDP.get(row.measure, row.measure)),
    ),
}


@pytest.mark.parametrize("name", PAGES)
def test_archived_runs_give_the_published_numbers_and_verdicts(name: str) -> None:
    """The agreement is to the last digits of a sum: 1e-12 of a value."""
    calculate, claims, place = PAGES[name]
    cells, folder = calculate(), OUTPUTS / "published" / name / "paper"
    table = pd.read_csv(folder / "table.csv")
    compared = 0
    for _, row in table.iterrows():
        found = cells.get(place(row))
        if found is not None:
            ours = found.iloc[0] if np.isnan(row.seed) else found[int(row.seed)]
            np.testing.assert_allclose(row["value"], ours, rtol=1e-12, err_msg=str(place(row)))
            compared += 1
    seeds = table.loc[~table.seed.isna() & table.value.notna()]
    assert compared >= len(seeds[seeds.measure.isin({key[-1] for key in cells})])
    assert compared > 20
    published = json.loads((folder / "claims.json").read_text())["claims"]
    assert {one["id"]: one["finding"] for one in published} == {
        claim: verdict(checks) for claim, checks in claims(cells).items()
    }


def test_published_epsilons_follow_from_the_archived_ledgers() -> None:
    """By zCDP for the dynamic noise (equation of Bun and Steinke), and exactly for 50 Gaussian
    releases (Balle and Wang 2018, Theorem 8, under a noise multiplier of z / sqrt(50))."""
    table = pd.read_csv(OUTPUTS / "published/dynamic/fig1/paper/table.csv")
    cells = dynamic_cells()
    rows = table[(table.measure == "optimality") & (table.tuned == "fixed")]
    for _, row in rows[rows.seed == 0].iterrows():
        ours = cells["fixed", row.split, row["T"], row.method, "", "zcdp"][0]
        assert row.epsilon == pytest.approx(ours, rel=1e-9)
    table = pd.read_csv(OUTPUTS / "published/fedexp/fig2_left/paper/table.csv")
    for config, _, ledger in archived("fedexp/fig2_left"):
        if config["dp"]["name"] == "ldp" and config["algorithm"]["name"] == "fedavg":
            (entry,) = ledger
            mu = np.sqrt(entry["count"]) / entry["parameter"]

            def spent(epsilon: float, mu: float = mu) -> float:
                first = stats.norm.cdf(mu / 2 - epsilon / mu)
                other = epsilon + stats.norm.logcdf(-mu / 2 - epsilon / mu)
                return float(first - np.exp(other) - 1e-5)

            row = table[(table.dp == "ldp") & (table.method == "FedAvg")].iloc[0]
            assert row.epsilon == pytest.approx(brentq(spent, 1, 1000), rel=1e-9)
