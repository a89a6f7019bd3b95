"""What the closed forms advise for a run: its own problem, its own noise; in tables, claims and as
lines of figures.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from dpfl_cli.config.compose import compose_config
from dpfl_cli.config.errors import ConfigError, DataError
from dpfl_cli.data.sources import locate
from dpfl_cli.privacy.nominal import zcdp_v
from dpfl_cli.reproduction.api import Artifact, Fact, Figure, Run, Scale, Size
from dpfl_cli.reproduction.facts import (
    UNLIMITED,
    noise_of,
    problem_facts,
    scaffnew_bound,
    theory_facts,
)
from dpfl_cli.reproduction.figure import canvas_of
from dpfl_cli.reproduction.grid import cells
from dpfl_cli.reproduction.look import COLOURS, GREY
from dpfl_cli.reproduction.reduce import rows_of_runs
from dpfl_cli.simulation.plan import make_plan
from dpfl_cli.simulation.run_plan import Plan

SMALL_FILE = Path(__file__).parent.parent / "data" / "small.libsvm"
PROBLEM = [
    "dataset=libsvm",
    f"dataset.path={SMALL_FILE}",
    "partitioner.clients=4",
    "model.condition=25",
    "dp.delta=1e-5",
]
SCAFFNEW = [
    *PROBLEM,
    "algorithm=scaffnew",
    "algorithm.local_steps=2",
    "algorithm.clip_norm=0.5",
    "rounds=8",
]
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
    potential = facts["initial_distance"] + facts["optimum_gradients"] / (
        smoothness * mu
    )  # eta* / p* = 1 / sqrt(L mu)
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
    assert found["bound"] == pytest.approx(
        float(bound.bound(bound.iterations, 0.2, 1 / smoothness))
    )


def test_more_epsilon_and_less_clipping_ask_for_more_iterations() -> None:
    times = [
        float(theory_facts(planned(*LEMMA1, f"dp.epsilon={epsilon}"))["iterations"])
        for epsilon in (0.5, 1, 2, 3.3)
    ]
    assert times == sorted(times)
    assert times[0] < times[-1]
    same = theory_facts(
        planned(*LEMMA1, "dp.epsilon=1", "algorithm.clip_norm=1.0")
    )  # C and epsilon by their ratio alone
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
    assert entry.count * noise.per_release == pytest.approx(
        (multiplier * noise.sensitivity) ** 2, rel=1e-5
    )


def test_exact_composition_has_one_constant_for_all_numbers_of_releases() -> None:
    found = [
        noise_of(planned(*SCAFFNEW[:-1], "dp.epsilon=2", f"rounds={rounds}"))
        for rounds in (2, 8, 200)
    ]
    constants = [noise.constant for noise in found if noise is not None]
    assert len(constants) == 3
    assert constants == pytest.approx([constants[0]] * 3, rel=1e-6)
    assert constants[0] < zcdp_v(2.0, 1e-5)


def test_expected_releases_are_what_the_noise_is_for() -> None:
    words = [*SCAFFNEW, "dp.epsilon=2", "algorithm.schedule=bernoulli", "rounds=9", "seed=3"]
    realised, expected = (
        noise_of(planned(*words, f"dp.releases={which}")) for which in ("realised", "expected")
    )
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
        (
            [*SCAFFNEW, "dp.epsilon=2", "model.condition=null", "model.l2=0.0"],
            "optimum is not known",
        ),
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
    words = [
        "dataset=mushrooms",
        "partitioner.clients=5",
        "model.condition=100",
        "algorithm=scaffnew",
        "algorithm.clip_norm=1.0",
    ]
    words += [
        "dp.relation=zero_out",
        "dp.calibration=lemma1",
        "dp.v=9.377751445620424e-07",
        "rounds=480",
    ]
    found = scaffnew_bound(planned(*words, f"dp.epsilon={epsilon}", "algorithm.local_steps=10"))
    assert found.iterations == time
    assert found.argument == pytest.approx(500 * (epsilon / 3.3) ** 2)
    assert found.local_steps == pytest.approx(10)


# --- in artifacts ------------------------------------------------------------------------------


def swept(scale: Scale) -> Iterator[Run]:
    for budget in (1.0, 2.0):
        for rounds in (4, 8):
            values = {"dp.epsilon": budget, "rounds": rounds}
            yield Run({"budget": budget, "T": rounds}, [*LEMMA1, "dp.epsilon=1"], values)


def test_advice_stands_in_rows_and_as_lines_in_panels() -> None:
    """A vertical line at T* in the colour of its epsilon, in grey where it is one for all."""
    marks = {"advised": "T*", "steps": "1/p*"}
    artifact = Artifact(
        id="swept",
        title="Swept",
        shows="Advice.",
        sizes={"quick": Size(seeds=1, minutes=0.1)},
        runs=swept,
        measures={
            "advised": Fact(value="theory.iterations"),
            "steps": Fact(value=lambda fact: fact("theory.local_steps") * 1),
            "start": Fact(value="theory.potential"),
        },
        figures=[Figure(kind="lines", x="T", measures=["start"], series="budget", marks=marks)],
    )
    planned_cells = cells(artifact)
    rows = rows_of_runs(artifact, planned_cells, {})
    few, many = (rows.where(budget=one).values("advised")[0] for one in (1.0, 2.0))
    assert few == theory_facts(planned_cells[0].plan)["iterations"]
    assert few < many
    canvas = canvas_of(artifact, rows)
    found = {
        (float(np.asarray(line.get_xdata())[0]), str(line.get_color()))
        for line in canvas.axes[0].lines
        if np.asarray(line.get_ydata()).tolist() == [0, 1]
    }
    assert found == {(few, COLOURS[0]), (many, COLOURS[1]), (5.0, GREY)}
