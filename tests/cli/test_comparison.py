"""Tables and plots of runs: what they average, name and leave out."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path

import matplotlib.figure
import numpy as np
import pandas as pd
import pytest
from rich.console import Console

from dpfl_cli.cli.compare import _best_of
from dpfl_cli.cli.selection import calibrated, repetitions, settings_of, varying
from dpfl_cli.cli.tables import print_results
from dpfl_cli.config.component import components
from dpfl_cli.config.compose import compose_config
from dpfl_cli.config.paths import outputs_dir
from dpfl_cli.simulation.plan import load_components, make_plan
from dpfl_cli.simulation.store import RunStore

SMALL = ["dataset.clients=12", "dataset.dimension=5", "rounds=3"]


@pytest.fixture
def listed(printed):
    """Runs as `dpfl runs list` has them in JSON."""
    return lambda *words: json.loads(printed("runs", "list", "--json", *words))


def test_the_main_job_has_an_epsilon_that_means_something() -> None:
    """And local DP beside it at the same one."""
    makefile = (Path(__file__).parents[2] / "Makefile").read_text()
    (line,) = [line for line in makefile.splitlines() if "/dpfl run -m" in line]
    words = line.replace('"', "").split()[3:]
    assert "dp=cdp,ldp" in words
    for dp in ("cdp", "ldp"):
        chosen = [word for word in words if not word.startswith(("dp=", "seed=", "algorithm="))]
        plan = make_plan(compose_config(["algorithm=fedavg", f"dp={dp}", *chosen]))
        assert plan.dp.epsilon is not None
        assert plan.dp.epsilon <= 10


def settings(*grid: list[str]) -> list[dict[str, object]]:
    return [settings_of(make_plan(compose_config([*SMALL, *words])).config) for words in grid]


def test_what_a_target_epsilon_sets_is_what_mechanisms_are_calibrated_by() -> None:
    load_components()
    fields = (one.target.noise_field for one in components("mechanism").values())
    assert calibrated() == {f"mechanism.{one}" for one in fields if one}


def test_only_runs_that_are_equal_but_for_the_seed_are_repetitions() -> None:
    found = settings(
        ["dp=cdp", "dp.epsilon=2", "seed=0"],
        ["dp=cdp", "dp.epsilon=4", "seed=0"],
        ["dp=cdp", "dp.epsilon=2", "seed=1"],
        ["dp=cdp", "dp.epsilon=2", "seed=1", "dp.delta=1e-4"],
    )
    assert repetitions(found) == [[0, 2], [1], [3]]


def test_every_key_that_varies_is_named_and_what_only_follows_is_not() -> None:
    keys = ["algorithm.clip_norm", "algorithm.local_lr", "algorithm.local_steps", "rounds"]
    grid = [
        ["algorithm=fedavg", *(f"{key}={value}" for key in keys)] for value in (2, 3)
    ]  # all at once: none follows from another
    assert sorted(varying(settings(*grid))) == sorted(keys)
    trusts = varying(settings(["dp=ldp"], ["dp=cdp"]))
    assert trusts == ["dp", "mechanism.noise_multiplier"]
    methods = settings(["algorithm=fedgd"], ["algorithm=fedavg"], ["algorithm=fednew"])
    assert [one["algorithm"] for one in methods] == ["fedgd", "fedavg", "fednew"]
    assert "algorithm" in varying(methods)
    assert "algorithm.damping" not in varying(methods)


@pytest.mark.parametrize("seeds", [1, 2])
def test_a_plot_averages_seeds_only_and_says_what_it_leaves_out(
    seeds: int, monkeypatch: pytest.MonkeyPatch, printed, listed
) -> None:
    drawn = []
    monkeypatch.setattr(
        matplotlib.figure.Figure,
        "savefig",
        lambda figure, buffer, **_: drawn.append(figure) or buffer.write(b"x"),
    )
    words = ["algorithm.clip_norm=0.1,3", "mechanism.noise_multiplier=1,10"]
    more = ["algorithm.local_lr=0.001,0.003", "algorithm.local_steps=5,20", "rounds=2,3"]
    for grid, curves in ((words, 4), ([*words, *more], 8)):
        seed = "seed=" + ",".join(map(str, range(seeds)))
        printed("run", "-m", "algorithm=fedavg", "dp=cdp", *SMALL[:2], seed, *grid)
        figure = drawn.pop()
        (axis,) = figure.axes
        labels = [text.get_text().replace("\n", " ") for text in figure.legends[0].get_texts()]
        assert len(labels) == len(set(labels)) == len(axis.lines) == curves
        for label in labels:
            assert all(f"{word.split('.')[1].split('=')[0]}=" in label for word in grid[:4])
            assert label.endswith("1 seed" if seeds == 1 else "2 seeds")
        assert len(axis.collections) == (0 if seeds == 1 else curves)
        sizes = [abs(number) for line in axis.lines for number in line.get_ydata()]
        spent = {float(re.search("ε\xa0=\xa0([\\d.e+]+)", label)[1]) for label in labels}
        known = [run["epsilon"] for run in listed()]
        assert all(any(0 <= one / true - 1 < 0.01 for true in known) for one in spent)  # up
        assert axis.get_yscale() == ("log" if max(sizes) > 30 * min(sizes) else "linear")
        title = axis.get_title()
        assert title.count("only") == (curves == 8)
        assert ("bands" in title) == (seeds > 1)
        assert ("only the best 8 of 32 settings" in title) == (curves == 8)


@pytest.fixture
def grid(printed) -> list[str]:
    """Two methods at two epsilons, two seeds each."""
    words = ["algorithm=fedgd,fednew", "dp=cdp", "dp.epsilon=2,8", "seed=0,1", *SMALL]
    out = printed("run", "-m", *words, "--quiet")
    return [Path(line).name for line in out.splitlines()]


def test_conditions_compare_numbers_and_lists_have_an_order(
    grid: list[str], dpfl, printed, listed
) -> None:
    def where(*conditions: str) -> list[dict[str, object]]:
        return listed(*(word for one in conditions for word in ("--where", one)))

    assert len(where("dp.epsilon=8")) == len(where("dp.epsilon=8.00")) == 4
    assert len(where("dp.epsilon>=2", "dp.epsilon<8", "algorithm=fedgd")) == 2
    assert len(where("algorithm.name=fedavg")) == len(where("algorithm!=fednew")) == 4
    assert where("dp.convention=null", "epsilon>100") == []
    assert len(where("algorithm=fedgd,fednew", "seed=0,7")) == 4
    assert len(where("algorithm!=fednew,scaffold")) == 4
    assert len(where("epsilon=2")) == len(where("epsilon>=8")) == 4  # as printed: 1.9999993
    assert where("dp.epsilon!=2,8") == []
    found = [run["distance"] for run in listed("--sort=-distance")]
    assert found == sorted(found, reverse=True)
    printed("run", "rounds=1", "dp=none", "dataset.clients=5", "dataset.dimension=3")
    for sort in ("relative_distance", "-relative_distance"):  # of the last run alone
        assert "relative_distance" in listed(f"--sort={sort}")[0]
    for wrong in (
        ["--where", "accuracy>80"],
        ["--where", "rounds>x"],
        ["--where", "epsilon=2.001"],  # nearly
        ["--where", "algorithm=fedgd,seed=0"],
        ["--where", "rounds>nan"],
        ["--where", "algorithm=fedgd,fednwe"],
        ["--sort", "accuracy"],
    ):
        assert dpfl("runs", "list", *wrong)[0] == 2


def test_a_list_shows_the_newest_runs_says_of_the_others_and_reads_none_of_them(
    grid: list[str], monkeypatch: pytest.MonkeyPatch, dpfl, printed, listed
) -> None:
    monkeypatch.setattr("dpfl_cli.cli.runs.LISTED", 3)
    stored = [record.id for record in RunStore(outputs_dir()).all()]

    def shown(*words: str) -> tuple[list[str], list[str]]:
        lines = printed("runs", "list", *words).splitlines()
        return [line.split()[0] for line in lines if line[:12] in grid], lines

    found, lines = shown()
    assert found == stored[-3:]
    assert lines[-1].startswith("the newest 3 of 8 runs; the others: --where KEY=VALUE, --sort KEY")
    assert "±" not in "".join(lines)  # of some of the seeds
    by_distance = [run["run"] for run in listed("--sort=-distance")]
    assert len(by_distance) == 8
    found, lines = shown("--sort=-distance")
    assert found == by_distance[:3]
    assert lines[-1].startswith("the first 3 of 8 runs; ")
    found, lines = shown("--where", "dp.epsilon=2", "--where", "algorithm=fedgd")
    assert len(found) == 2
    assert "newest" not in lines[-1]
    found, lines = shown("--all")
    assert found == stored
    assert "newest" not in lines[-1]
    assert "±" in "".join(lines)

    (outputs_dir() / "runs" / stored[0] / "result.json").write_text("{")
    assert dpfl("runs", "list")[::2] == (0, "")
    code, _, err = dpfl("runs", "list", "--all")
    assert (code, f"damaged: {outputs_dir() / 'runs' / stored[0]}" in err) == (0, True)
    assert [run["run"] for run in listed()] == stored[1:]  # JSON all the same


def test_a_setting_that_a_run_lacks_is_not_in_its_line(printed) -> None:
    printed("run", "-m", "algorithm=fednew", "dp=cdp", "algorithm.damping=1,2", *SMALL)
    printed("run", "-m", "algorithm=scaffold", "dp=cdp", "algorithm.local_lr=0.1,0.2", *SMALL)
    texts = {}
    for width in (60, 80):
        console = Console(width=width, file=io.StringIO(), highlight=False)
        print_results(console, RunStore(outputs_dir()).all())
        texts[width] = console.file.getvalue()
    assert " local_lr=0.2" in " ".join(texts[60].split())  # a run is as many lines as it takes
    assert "null" not in texts[60]
    assert "damping= " not in texts[60]
    first, second, *_ = texts[80].splitlines()  # names of columns in two lines, a run in one
    assert first.index("local_") == second.index("lr")
    assert first.index("relative_") == second.index("distance")


def test_tables_show_every_swept_key_and_means_at_any_width(grid: list[str]) -> None:
    records = RunStore(outputs_dir()).all()
    for width in (30, 60, 80, 120, 200):
        console = Console(width=width, file=io.StringIO(), highlight=False)
        print_results(console, records)
        text = console.file.getvalue()
        assert all(text.count(run) == 1 for run in grid)
        assert text.count("±") >= 4
        assert text.count("2.0000") == text.count("8.0000") == 6  # four runs, and two means
        assert max(map(len, text.splitlines())) <= width


def test_a_pivot_averages_seeds_only(grid: list[str], printed, listed, refused) -> None:
    words = ["runs", "table", "--metric", "distance", "--rows", "algorithm"]
    out = printed(*words, "--cols", "dp.epsilon", "--csv")
    cells = list(csv.DictReader(io.StringIO(out)))
    assert [(cell["algorithm"], cell["dp.epsilon"], cell["seeds"]) for cell in cells] == [
        (method, epsilon, "2") for method in ("fedgd", "fednew") for epsilon in ("2.0", "8.0")
    ]
    twice = printed(*words, "--cols", "dp.epsilon", "--csv", grid[0], grid[0][:9])
    assert [cell["seeds"] for cell in csv.DictReader(io.StringIO(twice))] == ["1"]
    values = [run["distance"] for run in listed("--where", "dp.epsilon=2")]
    assert float(cells[0]["mean"]) == pytest.approx(sum(values[:2]) / 2)
    for form, said in (("--latex", r"$\pm$"), ("--markdown", "| fednew |"), ("--csv", "mean")):
        shown = printed(*words, "--cols", "dp.epsilon", form)
        assert said in shown
        assert "2.0000" in shown
        told = (
            "deviation over 2 seeds",
            "epsilon 2.0000 to 8.0000",
            "Guarantee: (epsilon, delta)-DP",
        )
        for line in (*told, "dp.epsilon=2.0"):
            assert (line in shown) is (form != "--csv")
    assert "dp.epsilon=2.0, seed=1 |" in printed(*words, "--cols", "dp.epsilon,seed", "--markdown")
    for cols, why in (("dp", "differ in dp.epsilon; add that to"), ("algorithm", "listed twice")):
        err = refused(*words, "--cols", cols)
        assert why in err


def test_an_export_has_the_columns_of_the_store_and_the_form_of_its_name(
    grid: list[str], tmp_path: Path, printed, refused
) -> None:
    heads = {printed("runs", "export", *run).splitlines()[0] for run in ([], [grid[0]])}
    assert len(heads) == 1
    target = tmp_path / "runs.json"
    printed("runs", "export", "--output", str(target))
    rows = json.loads(target.read_text())
    assert len(rows) == 8 * 4
    assert list(rows[0]) == heads.pop().split(",")
    assert {row["dp.epsilon"] for row in rows} == {2.0, 8.0}
    printed("runs", "export", "--output", str(tmp_path / "runs.parquet"))
    frame = pd.read_parquet(tmp_path / "runs.parquet")
    assert list(frame) == list(rows[0])
    assert frame["dp.epsilon"].tolist() == [row["dp.epsilon"] for row in rows]
    err = refused("runs", "export", "--output", "runs.xlsx")
    assert "write .csv, .json or .parquet" in err


def test_what_an_epsilon_means_is_shown_wherever_it_differs(printed) -> None:
    """Also where it follows from another choice."""
    laws = settings([], ["dp=cdp"], ["dp=cdp", "participation=poisson", "participation.cohort=3"])
    assert "dp.relation" not in varying(laws[:2])
    assert "dp.relation" in varying(laws)
    drawn = ["participation=full,poisson", "accountant=rdp", "mechanism.noise_multiplier=1"]
    small = ["dataset.clients=120", *SMALL[1:]]
    out = printed("run", "-m", *small, "algorithm=fedavg", "dp=cdp", *drawn)
    assert "relation" in out.splitlines()[0]
    assert ", 3 releases; tuning" in out


def test_runs_are_found_by_the_names_that_they_were_asked_for_by(printed) -> None:
    words = ["model=softmax", "dataset=synthetic_alpha_beta", "algorithm=fedavg", "dp=none"]
    small = ["rounds=1", "partitioner.clients=3"]
    printed("run", "-m", *words, *small, "partitioner=iid,dirichlet")
    for condition in ("model=softmax", "partitioner=dirichlet", "mechanism=none"):
        found = printed("runs", "list", "--where", condition)
        assert found.count("synthetic_alpha_beta") > 0, condition


def test_data_are_known_by_the_first_digits_of_their_checksum(
    tmp_path: Path, printed, listed
) -> None:
    for size in (6, 9):
        path = tmp_path / f"{size}.npz"
        np.savez(path, features=np.eye(size), targets=np.arange(size) % 2)
        words = ["dataset=arrays", f"dataset.path={path}", "partitioner.clients=2", "dp=none"]
        printed("run", *words, "algorithm=fedavg", "rounds=1")
    one, two = (run["dataset.content.sha256"] for run in listed("--all"))
    table = printed("runs", "list")
    assert f" {one[:12]} " in table
    assert one[:13] not in table
    for digits in (8, 12, 64):
        for sign, wanted in (("=", one), ("!=", two)):
            (found,) = listed("--where", f"dataset.content.sha256{sign}{one[:digits]}")
            assert found["dataset.content.sha256"] == wanted


def test_what_a_partitioner_leaves_out_or_deals_anew_is_said(tmp_path: Path, printed) -> None:
    words = ["dataset=synthetic_alpha_beta", "model=softmax", "algorithm=fedavg", "dp=none"]
    run = ["run", *words, "rounds=1"]
    assert "The records come" not in printed(*run, "partitioner=natural")
    anew = printed(*run, "partitioner=iid", "partitioner.clients=3")
    assert "partitioner=iid deals them anew to 3 others (partitioner=natural keeps theirs)" in anew
    words = [*words[:-1], "dp=cdp", "partitioner.clients=3"]
    told = "the 100 clients that the records come with: protected are the 3 that partitioner=iid"
    for partitioner, more in (("iid", 1), ("natural", 0)):
        plan = make_plan(compose_config([*words, f"partitioner={partitioner}"]))
        assert sum(one.startswith(told) for one in plan.not_covered()) == more
    paths = []
    for size in (6, 9):
        paths.append(str(tmp_path / f"{size}.npz"))
        np.savez(paths[-1], features=np.eye(size), targets=np.arange(size) % 2)
    grid = ["dataset=arrays", f"dataset.path={','.join(paths)}", "partitioner.records_per_client=2"]
    both = printed("run", "-m", *words[1:], *grid, "partitioner.clients=2", "rounds=1")
    assert "deals 4 of 6 records" in both
    assert "deals 4 of 9 records" in both
    few = ["partitioner=dirichlet", "partitioner.clients=3", "partitioner.records_per_client=5"]
    assert "partitioner=dirichlet deals 15 of " in printed(*run, *few)


def test_a_method_is_found_by_the_name_it_was_asked_for(
    monkeypatch: pytest.MonkeyPatch, dpfl, printed, listed
) -> None:
    """Tables name a run by the preset that it equals, and `fedavg` of one whole step is `fedgd`."""
    steps = ["algorithm=fedavg", "algorithm.local_lr=1", "algorithm.local_steps=5,1", "dp=cdp"]
    printed("run", "-m", *steps, *SMALL, "--quiet")
    found = listed("--where", "algorithm=fedavg")
    for condition, says in (
        (
            "algorithm=fedavg",
            "runs that are shown as fedgd; add algorithm!=fedgd to leave them out",
        ),
        ("algorithm=fedgd,fedexp", "no run has fedexp"),
    ):
        code, _, err = dpfl("runs", "prune", "--where", condition)
        assert (code, says in err) == (0, True)
    assert [run["algorithm"] for run in found] == ["fedavg", "fedgd"]
    assert len(listed("--where", "algorithm=fedgd")) == 1
    pivot = ["runs", "table", "--rows", "algorithm", "--cols", "algorithm.local_steps"]
    (title, _, header, *_) = printed(*pivot, "--markdown").splitlines()
    assert title.startswith("relative_distance by algorithm.local_steps; mean ± standard deviation")
    steps = [f" algorithm.local_steps={number} " for number in (1, 5)]
    assert header.split("|")[2:4] == steps  # not in the order of their rows
    softmax = ["dataset=synthetic_alpha_beta", "model=softmax", "model.bias=true,false"]
    printed("run", "-m", *softmax, "rounds=1", "dp=none", "--quiet")
    assert len(listed("--where", "model=softmax")) == 2


def test_a_table_takes_the_best_of_what_was_tried(printed, listed) -> None:
    """By the mean over seeds; where a run of one has no value, only if no other has all."""
    grid = ["algorithm=fedavg,fedexp", "algorithm.local_lr=0.01,0.3", "seed=0,1", "dp=cdp"]
    printed("run", "-m", *grid, *SMALL, "--quiet")
    words = ["runs", "table", "--rows", "algorithm", "--cols", "dp", "--best", "algorithm.local_lr"]
    header, *lines = printed(*words, "--csv").splitlines()
    columns = "algorithm,dp,metric,algorithm.local_lr,mean,std,seeds,runs,epsilon_spent,delta,tried"
    assert header == columns
    for method, _, _, rate, mean, *_, tried in [line.split(",") for line in lines]:
        runs = [run for run in listed() if run["algorithm.name"] == method]
        found = {
            rate: np.mean(
                [one["relative_distance"] for one in runs if one["algorithm.local_lr"] == rate]
            )
            for rate in (0.01, 0.3)
        }
        assert (float(rate), tried) == (min(found, key=found.__getitem__), "2")
        assert float(mean) == pytest.approx(min(found.values()))
    shown = printed(*words, "--markdown")
    assert "covered by no epsilon" in shown
    assert f"({lines[0].split(',')[3]}) |" in shown
    assert "flatters" not in printed(*words, "--markdown", "--where", "algorithm.local_lr=0.3")
    cells = pd.DataFrame(
        {"lr": ["a", "b"], "mean": [9.0, 1.0], "seeds": [1, 2], "runs": [2, 2], "text": ["9", "1"]}
    ).assign(algorithm="x")
    best = _best_of(cells.set_index(["algorithm", "lr"]), ["algorithm"], ["lr"], "accuracy")
    assert best["text"].tolist() == ["1 (b)"]


def test_what_makes_runs_unlike_is_told(printed) -> None:
    """Relations that promise unlike things at one epsilon, and a baseline that was clipped."""
    drawn = ["participation=poisson", "participation.cohort=6", "dp.relation=add_or_remove"]
    printed("run", *SMALL, "algorithm=fedavg", "dp=cdp", *drawn, "accountant=pld")
    printed("run", *SMALL, "algorithm=fedavg", "dp=cdp")
    unlike = "Runs differ in dp.relation: at an equal epsilon add_or_remove promises less than"
    table = ["runs", "table", "--rows", "algorithm", "--cols", "participation"]
    assert unlike in printed(*table)
    for alike in ("poisson", "full"):
        shown = printed(*table, "--where", f"participation={alike}")
        assert "Runs differ" not in shown
        assert f"  participation={alike}\n" in shown
    free = ["run", *SMALL, "algorithm=fedavg", "dp=none"]
    assert "clipped too" not in printed(*free)
    told = printed(*free, "algorithm.clip_norm=0.25")
    assert "Runs without privacy were clipped too (algorithm.clip_norm=0.25)" in told


def test_unlike_limits_of_methods_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, printed
) -> None:
    line = "Methods differ in algorithm.clip_norm: 3 of fedavg, 0.3 of fedexp."
    words = ["run", "-m", "algorithm=fedavg,fedexp", "dp=cdp", *SMALL]
    assert line in printed(*words)
    table = ["runs", "table", "--rows", "algorithm", "--cols", "dp"]
    assert line in printed(*table)
    (header, row, _) = printed(*table, "--csv").splitlines()
    assert header == "algorithm,dp,metric,mean,std,seeds,runs,epsilon_spent,delta"
    assert row.startswith("fedavg,cdp,relative_distance,")
    assert "Methods differ" not in printed(*words, "algorithm.clip_norm=0.3,3")
    assert "Methods differ" not in printed(*words, "algorithm.clip_norm=1")
