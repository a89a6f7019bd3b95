"""What the closed forms advise for a run: its own problem, its own noise; in tables, claims and as lines of figures."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure

from dpfl_cli.config.compose import compose_config
from dpfl_cli.config.errors import ConfigError, DataError
from dpfl_cli.data.sources import locate
from dpfl_cli.privacy.nominal import zcdp_v
from dpfl_cli.reproduction.claims import judge
from dpfl_cli.reproduction.declaration import Artifact
from dpfl_cli.reproduction.figure import COLOURS, GREY, _Drawing, draw
from dpfl_cli.reproduction.problems import problem_facts
from dpfl_cli.reproduction.reduce import reduce_runs
from dpfl_cli.reproduction.rows import Rows
from dpfl_cli.reproduction.theory import UNLIMITED, noise_of, scaffnew_bound, theory_facts
from dpfl_cli.simulation.plan import Plan, make_plan
from dpfl_cli.simulation.store import RunStore
from tests.reproduction.fabricated import declared, publish_runs

SMALL_FILE = Path(__file__).parent.parent / "data" / "small.libsvm"
PROBLEM = ["dataset=libsvm", f"dataset.path={SMALL_FILE}", "partitioner.clients=4", "model.condition=25", "dp.delta=1e-5"]
SCAFFNEW = [*PROBLEM, "algorithm=scaffnew", "algorithm.local_steps=2", "algorithm.clip_norm=0.5", "rounds=8"]
LEMMA1 = [*SCAFFNEW, "dp.calibration=lemma1", "dp.v=1e-6", "dp.relation=zero_out"]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DPFL_CACHE", str(tmp_path / "cache"))


def planned(*words: str) -> Plan:
    return make_plan(compose_config(words))


def test_the_facts_are_those_of_the_problem() -> None:
    plan = planned(*LEMMA1, "dp.epsilon=2")
    facts = problem_facts(plan)
    mu, smoothness = facts["strong_convexity"], facts["smoothness"]
    assert smoothness / mu == pytest.approx(25)
    potential = facts["initial_distance"] + facts["optimum_gradients"] / (smoothness * mu)  # eta* / p* = 1 / sqrt(L mu)
    cost = 4 * plan.dimension * 1e-6 * 0.25 * math.log(1e5) / 4
    decay = -math.log(1 - 1 / 25)
    found = theory_facts(plan)
    assert found["local_steps"] == pytest.approx(5)
    assert found["probability"] == pytest.approx(0.2)
    assert found["learning_rate"] == pytest.approx(1 / smoothness)
    assert found["potential"] == pytest.approx(potential)
    assert found["iterations"] == pytest.approx(math.log(potential * decay / cost) / decay, abs=1)
    assert found["rounds"] == pytest.approx(0.2 * float(found["iterations"]))
    assert float(found["iterations"]) > 0
    bound = scaffnew_bound(plan)
    assert found["bound"] == pytest.approx(float(bound.bound(bound.iterations, 0.2, 1 / smoothness)))


def test_more_epsilon_and_less_clipping_ask_for_more_iterations() -> None:
    times = [float(theory_facts(planned(*LEMMA1, f"dp.epsilon={epsilon}"))["iterations"]) for epsilon in (0.5, 1, 2, 3.3)]
    assert times == sorted(times)
    assert times[0] < times[-1]
    same = theory_facts(planned(*LEMMA1, "dp.epsilon=1", "algorithm.clip_norm=1.0"))  # C and epsilon by their ratio alone
    assert same["iterations"] == times[0]


@pytest.mark.parametrize(
    ("words", "constant"),
    [
        (["dp.calibration=lemma1", "dp.v=0.125"], 0.125),
        (["dp.calibration=zcdp"], zcdp_v(2.0, 1e-5)),
        (["accountant=zcdp"], zcdp_v(2.0, 1e-5)),
        (["dp.calibration=record_heuristic"], None),
    ],
)
def test_the_noise_is_that_of_the_run(words: list[str], constant: float | None) -> None:
    """v S^2 R ln(1/delta) / epsilon^2 is the variance that the run's own noise multiplier gives."""
    plan = planned(*SCAFFNEW, "dp.epsilon=2", *words)
    noise = noise_of(plan)
    assert noise is not None
    assert noise.sensitivity == 1.0  # 2C
    if constant is not None:
        assert noise.constant == pytest.approx(constant, rel=1e-6)
    (entry,) = plan.ledger().entries
    assert entry.count == 4
    multiplier = float(entry.parameters()[0])
    assert entry.count * noise.per_release == pytest.approx((multiplier * noise.sensitivity) ** 2, rel=1e-5)


def test_exact_composition_has_one_constant_for_all_numbers_of_releases() -> None:
    found = [noise_of(planned(*SCAFFNEW[:-1], "dp.epsilon=2", f"rounds={rounds}")) for rounds in (2, 8, 200)]
    constants = [noise.constant for noise in found if noise is not None]
    assert len(constants) == 3
    assert constants == pytest.approx([constants[0]] * 3, rel=1e-6)
    assert constants[0] < zcdp_v(2.0, 1e-5)


def test_expected_releases_are_what_the_noise_is_for() -> None:
    words = [*SCAFFNEW, "dp.epsilon=2", "algorithm.schedule=bernoulli", "rounds=9", "seed=3"]
    realised, expected = (noise_of(planned(*words, f"dp.releases={which}")) for which in ("realised", "expected"))
    assert realised is not None
    assert expected is not None
    assert realised.constant == pytest.approx(expected.constant, rel=1e-6)


def test_without_noise_there_is_no_limit() -> None:
    found = theory_facts(planned(*SCAFFNEW, "dp=none"))
    assert found["iterations"] == found["rounds"] == UNLIMITED
    assert found["local_steps"] == pytest.approx(5)
    assert math.isinf(scaffnew_bound(planned(*SCAFFNEW, "dp=none")).iterations)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([*PROBLEM, "algorithm=fedavg", "dp.epsilon=2"], "algorithm=fedavg"),
        ([*SCAFFNEW, "dp=cdp", "dp.epsilon=2"], "write dp=ldp"),
        ([*SCAFFNEW, "mechanism.noise_multiplier=1.0"], "needs a target"),
        ([*SCAFFNEW, "dp.epsilon=2", "model.condition=null", "model.l2=0.0"], "optimum is not known"),
    ],
)
def test_what_the_theory_is_not_about_is_refused(words: list[str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        theory_facts(planned(*words))


@pytest.mark.data
@pytest.mark.parametrize(("epsilon", "time"), [(0.5, 243), (1.0, 381), (2.0, 519), (3.3, 618)])
def test_the_reference_numbers_on_the_real_data(epsilon: float, time: int) -> None:
    try:
        locate("mushrooms")
    except DataError as error:
        pytest.skip(str(error))
    words = ["dataset=mushrooms", "partitioner.clients=5", "model.condition=100", "algorithm=scaffnew", "algorithm.clip_norm=1.0"]
    words += ["dp.relation=zero_out", "dp.calibration=lemma1", "dp.v=9.377751445620424e-07", "rounds=480"]
    found = scaffnew_bound(planned(*words, f"dp.epsilon={epsilon}", "algorithm.local_steps=10"))
    assert found.iterations == time
    assert found.argument == pytest.approx(500 * (epsilon / 3.3) ** 2)
    assert found.local_steps == pytest.approx(10)


# --- in artifacts ---------------------------------------------------------------------------------------------------


def swept(folder: Path, **changes: Any) -> tuple[Artifact, Rows]:
    """Fabricated runs over T at two epsilons, with the closed forms beside them."""
    values = {
        "runs": [
            {
                "overrides": [*LEMMA1, "dp.epsilon=1"],
                "axes": {
                    "budget": {"key": "dp.epsilon", "values": [1.0, 2.0]},
                    "T": {"key": "rounds", "values": [4, 8, 16]},
                },
            }
        ],
        "scales": {name: {"seeds": 2, "minutes": 1.0} for name in ("smoke", "quick", "paper")},
        "measures": {
            "loss": {"metric": "train_loss", "at": "last", "better": "lower"},
            "advised": {"fact": "theory.iterations", "decimals": 0},
            "steps": {"formula": 'fact("theory.local_steps") * 1'},
        },
        "best": [],
        "tables": [{"rows": ["budget"], "columns": ["T"], "cells": ["loss", "advised"]}],
        "figure": {
            "kind": "lines",
            "x": "T",
            "measures": ["loss"],
            "series": "budget",
            "marks": [{"at": "advised", "title": "T*"}, {"at": "steps", "title": "1/p*"}, {"at": 6, "title": "six"}],
        },
        "claims": [
            {
                "id": "grows",
                "text": "T* grows with epsilon",
                "source": "a test",
                "predicate": "value('advised', budget=1.0, T=4) < value('advised', budget=2.0, T=4)",
                "expected": "holds",
            }
        ],
    }
    artifact = declared(folder, **(values | changes))
    store = RunStore(folder / "outputs")
    found = publish_runs(artifact, "quick", store, lambda labels, seed, number: {"train_loss": 1.0 / labels["T"] + 0.1 * seed})
    return artifact, reduce_runs(artifact, found, {cell.plan.id: store.match(cell.plan.id) for cell in found})


def vertical(artifact: Artifact, rows: Rows) -> tuple[list[list[tuple[float, str]]], list[str]]:
    """Place and colour of every vertical line, panel by panel; the legend."""
    figure = Figure()
    drawing = _Drawing(artifact, artifact.declaration.figures[0], rows)
    drawing.fill(figure, {(drawing.spec.series, name): number for number, name in enumerate(drawing.names)})
    ends = [[(line, np.asarray(line.get_xdata()), np.asarray(line.get_ydata())) for line in axis.lines] for axis in figure.axes]
    places = [
        [(float(x[0]), str(line.get_color())) for line, x, y in mine if y.tolist() == [0, 1]] for mine in ends
    ]  # of axvline
    return places, [text.get_text() for legend in figure.legends for text in legend.get_texts()]


def test_claims_and_figures_have_the_closed_forms(tmp_path: Path) -> None:
    artifact, rows = swept(tmp_path)
    (verdict,) = judge(artifact, "quick", rows)
    assert verdict.verdict == "holds"
    times = [float(rows.value("advised", budget=budget, T=8)) for budget in (1.0, 2.0)]
    (found,), legend = vertical(artifact, rows)
    assert found[:2] == [(times[0], COLOURS[0]), (times[1], COLOURS[1])]  # a line a series, in its colour
    assert found[2] == (pytest.approx(5.0), GREY)  # 1/p* is the same for both
    assert found[3:] == [(6.0, GREY)]
    assert legend == ["1", "2", "T*", "1/p*", "six"]
    assert len(draw(artifact, "quick", rows)["figure.png"]) > 5000


def test_lines_belong_to_their_panel(tmp_path: Path) -> None:
    figure = {"kind": "lines", "x": "T", "measures": ["loss"], "panels": ["budget"], "marks": [{"at": "advised", "title": "T*"}]}
    artifact, rows = swept(tmp_path, figure=figure)
    times = [float(rows.value("advised", budget=budget, T=4)) for budget in (1.0, 2.0)]
    assert vertical(artifact, rows)[0] == [[(times[0], GREY)], [(times[1], GREY)]]


def test_a_text_in_place_of_a_number_draws_no_line(tmp_path: Path) -> None:
    runs = [{"overrides": [*SCAFFNEW, "dp=none"], "axes": {"T": {"key": "rounds", "values": [4, 8]}}}]
    figure = {"kind": "lines", "x": "T", "measures": ["loss"], "marks": [{"at": "advised", "title": "T*"}]}
    artifact, rows = swept(tmp_path, runs=runs, figure=figure, claims=[], tables=[{"rows": ["T"], "cells": ["loss", "advised"]}])
    assert vertical(artifact, rows) == ([[]], [])
    assert rows.value("advised", T=4) == UNLIMITED


@pytest.mark.parametrize(
    ("figure", "said"),
    [
        ({"kind": "lines", "x": "T", "measures": ["loss"], "marks": [{"at": "advized", "title": "T*"}]}, "did you mean advised?"),
        ({"kind": "bars", "x": "T", "measures": ["loss"], "marks": [{"at": 1.0, "title": "T*"}]}, "figure of lines"),
    ],
)
def test_wrong_marks_are_refused(tmp_path: Path, figure: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said.replace("?", r"\?")):
        swept(tmp_path, figure=figure)


def test_an_unknown_fact_of_the_theory_is_named(tmp_path: Path) -> None:
    measures = {"loss": {"metric": "train_loss", "at": "last"}, "advised": {"fact": "theory.iteration"}}
    with pytest.raises(ConfigError, match=r"theory\.iteration"):
        swept(
            tmp_path, measures=measures, claims=[], figure={"kind": "lines", "x": "T", "measures": ["loss"], "series": "budget"}
        )
