"""`dpfl calculate` as a user calls it: numbers or a run, a table, a plot and its curves, and one
line for what is wrong.
"""

from __future__ import annotations

import csv
import math
import re
from pathlib import Path

import numpy as np
import pytest

from dpfl_cli.privacy.nominal import zcdp_v

SMALL_FILE = Path(__file__).parent.parent / "data" / "small.libsvm"
NUMBERS = {
    "--mu": "0.01",
    "--smoothness": "1",
    "--epsilon": "3.3",
    "--delta": "1e-5",
    "--clip-norm": "0.001",
    "--clients": "5",
    "--dimension": "112",
    "--psi0": "30",
}
RUN = [
    "dataset=libsvm",
    f"dataset.path={SMALL_FILE}",
    "partitioner.clients=4",
    "model.condition=25",
    "algorithm.clip_norm=0.5",
]


PLUGIN = """
from dpfl_cli.config.component import Settings, component
from dpfl_cli.data.partitioners import Iid

@component("partitioner", "own", revision=1, settings=Settings)
class Own(Iid):
    pass
"""


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DPFL_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def drawn() -> None:
    """For a test whose plots are drawn, which takes longer than all else; see `_undrawn`."""


@pytest.fixture(autouse=True)
def _undrawn(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "drawn" not in request.fixturenames:
        monkeypatch.setattr("dpfl_cli.reproduction.bound_figure.draw_bound", lambda *given: {})


@pytest.fixture
def calculate(dpfl):
    """What `dpfl calculate` comes to, with all NUMBERS where some of them are others, or none."""

    def called(*words: str, **changes: str | None) -> tuple[int, str, str]:
        others = {f"--{name.replace('_', '-')}": value for name, value in changes.items()}
        numbers = {**NUMBERS, **others} if changes else {}
        given = (pair for pair in numbers.items() if pair[1] is not None)
        return dpfl("calculate", *words, *(word for pair in given for word in pair))

    return called


def cell(out: str, symbol: str) -> str:
    """The value in the row of a symbol."""
    found = re.search(rf"  {re.escape(symbol)} {{2,}}(.*?)  ", out)
    assert found, out
    return found.group(1)


@pytest.mark.usefixtures("drawn")
def test_numbers_give_the_closed_forms_a_plot_and_its_curves(calculate, tmp_path: Path) -> None:
    code, out, _ = calculate("scaffnew", v="2")
    assert code == 0
    wanted = {"eta*": "1", "p*": "0.1", "1/p*": "10", "N": "5", "d": "112", "S": "0.001", "v": "2"}
    assert {symbol: cell(out, symbol) for symbol in wanted} == wanted
    # ln(30 * 3.3^2 * r / (2 * 1e-6 * 5 * 112 * ln 1e5)) / r = 551.3 with r = -ln 0.99
    assert cell(out, "T*") == "551"
    assert cell(out, "p* T*") == "55.1"
    assert "epsilon is nominal (lemma1 with v=2; lemma1 is proved from v=2.2777 on)" in out
    assert "3.3 (nominal), 1e-05" in out
    assert "nominal" not in calculate("scaffnew", v="3")[1]
    assert "Theorem 1 is for " in out
    png = Path(out.strip().splitlines()[-1])
    assert png.parent.parent == tmp_path / "outputs" / "calculate" / "scaffnew"
    assert png.read_bytes().startswith(b"\x89PNG")
    assert (png.parent / "bound.pdf").read_bytes().startswith(b"%PDF")
    rows = list(csv.DictReader((png.parent / "bound.csv").open()))
    assert {row["over"] for row in rows} == {"iterations", "probability"}
    best = min(rows, key=lambda row: float(row["bound"]))
    assert abs(int(best["iterations"]) - 551) < 10  # the best point drawn is next to T* and at p*
    assert float(best["probability"]) == pytest.approx(0.1)

    content = {path.name: path.read_bytes() for path in png.parent.iterdir()}
    again = calculate("scaffnew", v="2")
    assert (
        Path(again[1].strip().splitlines()[-1]) == png
    )  # the same question has the same folder and the same files
    assert {path.name: path.read_bytes() for path in png.parent.iterdir()} == content


def test_the_constant_of_zcdp_is_the_default(calculate) -> None:
    code, out, _ = calculate("scaffnew", relation="replace_one")
    assert code == 0
    assert cell(out, "v") == "2.278"
    assert "from zCDP: " in out
    assert "nominal" not in out
    assert cell(out, "S") == "0.002"


def test_the_sensitivity_follows_the_relation(calculate) -> None:
    """Numbers start from the paper's relation, runs from that of dp=ldp."""
    run = ["scaffnew", *RUN, "dp.epsilon=2"]
    assert cell(calculate("scaffnew", v="2")[1], "S") == "0.001"
    for words, sensitivity in ((run, "1"), ([*run, "dp.relation=zero_out"], "0.5")):
        assert cell(calculate(*words)[1], "S") == sensitivity


@pytest.mark.parametrize("v", [None, "2", "1e-8"])
@pytest.mark.parametrize("relation", ["zero_out", "replace_one"])
def test_the_noise_is_priced_whatever_set_it(v: str | None, relation: str, calculate) -> None:
    """delta of a Gaussian mechanism of mu = sqrt(R) S / sigma, by quadrature of max(0, dP -
    e^epsilon dQ), is that of the row.
    """
    _, out, _ = calculate("scaffnew", v=v, relation=relation)
    shown = cell(out, "epsilon")
    epsilon = float(shown.split()[0])
    assert shown.endswith("(vacuous)") == (epsilon > 20) == (v == "1e-8")
    rounds = int(cell(out, "T*")) / 10  # p* = 1/10
    messages = math.ceil(rounds)
    constant = zcdp_v(3.3, 1e-5) if v is None else float(v)
    mu = 3.3 * math.sqrt(messages / (constant * rounds * math.log(1e5)))  # sigma by Lemma 1
    assert mu == pytest.approx(
        math.sqrt(messages) * float(cell(out, "S")) / float(cell(out, "sigma")), rel=1e-3
    )
    if v != "1e-8":
        log_ratio = mu * (points := np.linspace(-12, 12 + mu, 400_001)) - mu**2 / 2
        density = np.exp(-((points - mu) ** 2) / 2) / math.sqrt(2 * math.pi)
        lost = np.trapezoid(np.clip(1 - np.exp(epsilon - log_ratio), 0, None) * density, points)
        assert lost == pytest.approx(1e-5, rel=1e-3)
        assert epsilon < 3.3  # zCDP is not tight: also with a constant a little below its own
    # the other term of delta vanishes: epsilon is mu^2 / 2 + z mu, z the upper 1e-5 quantile of a
    #   normal, 4.2649
    else:
        assert epsilon == pytest.approx(
            mu**2 / 2 + 4.2649 * mu, rel=1e-4
        )  # it is shown to 5 digits


def test_what_is_nominal_says_so_over_its_plot(calculate, monkeypatch: pytest.MonkeyPatch) -> None:
    titles: list[str] = []

    def titled(bound: object, curves: object, setting: str) -> dict[str, bytes]:
        titles.append(setting)
        return {}

    monkeypatch.setattr("dpfl_cli.reproduction.bound_figure.draw_bound", titled)
    run = ["scaffnew", *RUN, "dp.epsilon=2"]
    calculate("scaffnew", v="2")
    calculate("scaffnew", v="3")
    calculate(*run, "dp.calibration=lemma1", "dp.v=1e-6")
    heuristic = calculate(*run, "dp.calibration=record_heuristic", "algorithm.clip_norm=0.01")[1]
    calculate(*run)
    assert ["(nominal)" in title for title in titles] == [True, False, True, True, False]
    assert "epsilon 2 (nominal), S 1" in titles[2]
    said = "record_heuristic; it speaks of records, and no theorem of a whole client's update"
    assert f"epsilon is nominal ({said})" in heuristic
    assert "lemma1" not in heuristic
    assert float(cell(heuristic, "epsilon").split()[0]) > 2


def test_without_messages_or_noise_there_is_no_epsilon(calculate) -> None:
    assert cell(calculate("scaffnew", clip_norm="5")[1], "epsilon") == "0"
    out = calculate("scaffnew", *RUN, "dp=none")[1]
    assert "worth" not in out
    assert cell(out, "1/p*") == "5"
    assert cell(out, "T*") == cell(out, "p* T*") == "inf"


@pytest.mark.parametrize(
    ("mu", "psi0", "cost", "argument"),
    [
        (
            "0.9",
            "1",
            0.95,
            "2.424",
        ),  # the real T* is 0.38: above 0, and 1 iteration is worse than none
        ("1", "1", 1.5, "inf"),  # mu = L: one iteration is at the optimum but for the noise
    ],
)
def test_no_iteration_is_best_where_one_is_worse(
    mu: str, psi0: str, cost: float, argument: str, calculate
) -> None:
    """B(1) = (1 - mu) psi_0 + N d s; v so that N d s is the cost."""
    v = cost / (5 * 112 * 1e-6 * math.log(1e5) / 3.3**2)
    code, out, _ = calculate("scaffnew", mu=mu, psi0=psi0, v=repr(v))
    assert code == 0
    assert cell(out, "T*") == "0"
    assert f"  {argument}  " in next(line for line in out.splitlines() if "argument of T*" in line)
    assert "T* = 0: B(0) = psi_0 = 1 is the least: " in out
    better = calculate("scaffnew", mu=mu, psi0=psi0, v=repr(v / 2))[1]
    assert cell(better, "T*") == "1"
    assert "T* = 0" not in better


def test_a_run_is_asked_for_its_own_problem(calculate) -> None:
    words = [
        "scaffnew",
        *RUN,
        "dp.epsilon=2",
        "dp.calibration=lemma1",
        "dp.v=1e-6",
        "dp.relation=zero_out",
    ]
    code, out, _ = calculate(*words)
    assert code == 0
    assert cell(out, "1/p*") == "5"
    assert cell(out, "v") == "1e-06"
    assert "diagnostic, not private" in out
    assert "epsilon is nominal (lemma1 with v=1e-06; lemma1 is proved from v=2.1703 on)" in out
    assert "nominal" not in calculate(*words, "dp.v=3")[1]


@pytest.mark.parametrize(
    ("words", "changes", "expected"),
    [
        (["scafnew"], {"v": "2"}, "did you mean scaffnew?"),
        (["dataset=mushrooms"], {}, "METHOD dataset=mushrooms: choose from: scaffnew"),
        (["scaffnew"], {}, "give either numbers"),
        (["scaffnew"], {"psi0": None}, "--psi0 is missing"),
        (["scaffnew"], {"mu": None, "delta": None}, "--mu is missing; --mu is mu: "),
        (["scaffnew"], {"epsilon": "0"}, "--epsilon 0: out of range"),
        (["scaffnew"], {"delta": "1"}, "--delta 1: out of range"),
        (["scaffnew"], {"psi0": "nan"}, "--psi0 nan: out of range"),
        (
            ["scaffnew"],
            {"clients": "2.5"},
            "dpfl: calculate: argument --clients: invalid int value: '2.5'",
        ),
        (["scaffnew"], {"mu": "2"}, "L at least mu=2"),
        (["scaffnew"], {"relation": "zero"}, "did you mean zero_out?"),
        (["scaffnew"], {"clip_norm": "1e200"}, "noise s=inf"),
        (
            ["scaffnew", "--psy0", "3"],
            {},
            "dpfl: calculate: --psy0: no such option; did you mean --psi0?",
        ),
        (["scaffnew", "dp.epsilon=2"], {"v": "2"}, "give either numbers"),
        (["scaffnew", "--relation", "zero_out", *RUN], {}, "give either numbers"),
        (["scaffnew", *RUN], {}, "write dp.epsilon="),
        (["scaffnew", *RUN, "dp.epsilon=2", "algorithm=fedavg"], {}, "those of algorithm=scaffnew"),
        (["scaffnew", *RUN, "dp.epsilon=2", "dp=cdp"], {}, "write dp=ldp"),
        (["scaffnew", *RUN, "dp.epsilon=2", "model.conditon=3"], {}, "mean model.condition?"),
        (["scaffnew", *RUN, "dp.epsilon=2", "model.l2=0.1"], {}, "write model.l2=null"),
        (["scaffnew", "dp.epsilon=2"], {}, "its optimum is not known"),
    ],
)
def test_wrong_use_is_one_line_and_writes_nothing(
    words: list[str],
    changes: dict[str, str | None],
    expected: str,
    calculate,
    tmp_path: Path,
) -> None:
    code, out, err = calculate(*words, **changes)
    assert code == 2
    assert len(err.strip().splitlines()) == 1, err
    assert expected in err
    assert "Traceback" not in out + err
    assert not (tmp_path / "outputs").exists()


def test_a_folder_that_cannot_be_written_is_one_line(
    calculate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "outputs").touch()
    code, _, err = calculate("scaffnew", v="2")
    assert (code, err.count("\n"), "cannot be written" in err) == (2, 1, True)


def test_options_may_stand_anywhere(calculate, tmp_path: Path) -> None:
    plugin = tmp_path / "my plugin.py"
    plugin.write_text(PLUGIN)
    code, out, err = calculate("scaffnew", RUN[0], "--plugin", str(plugin), *RUN[1:], "dp=none")
    assert code == 0
    assert all("compiling" in line for line in err.splitlines())
    assert cell(out, "1/p*") == "5"
