"""What a reader sees: tables in the paper's layout, figures of equal bytes, the index."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dpfl_cli.reproduction.declaration import Artifact, load_artifact
from dpfl_cli.reproduction.figure import draw
from dpfl_cli.reproduction.grid import cells
from dpfl_cli.reproduction.index import entries, write_index
from dpfl_cli.reproduction.layout import markdown, number_text, page, privacy_table, spread_text, table
from dpfl_cli.reproduction.publish import FILES, publish
from dpfl_cli.reproduction.reduce import reduce_plans, reduce_runs
from dpfl_cli.reproduction.reproduce import prepare, produce
from dpfl_cli.reproduction.rows import Row, Rows, in_order
from dpfl_cli.simulation.store import RunStore
from tests.reproduction.fabricated import SMALL, declared, publish_runs

TABLE4 = Rows(
    [
        Row(
            {"dp": "cdp", "method": "FedEXP", "setting": "paper"}, "accuracy", 94.123, std=0.25, n=5, paper=94.57, paper_std=0.19
        ),
        Row({"dp": "cdp", "method": "FedAvg", "setting": "paper"}, "accuracy", 93.0, std=0.5, n=5, paper=92.88, paper_std=0.29),
        Row({"dp": "cdp", "method": "SCAFFOLD", "setting": "paper"}, "accuracy", float("-inf"), n=5, diverged=2, paper=86.61),
    ],
    ["dp", "method", "setting"],
)


def test_the_papers_number_is_beside_ours_with_the_difference() -> None:
    artifact = load_artifact("fedexp/table4")
    lines = table(artifact, artifact.declaration.tables[0], TABLE4).splitlines()
    assert (
        lines[0]
        == "| trust model | DP-FedEXP | paper | difference | DP-FedAvg | paper | difference | DP-SCAFFOLD | paper | difference |"
    )
    assert lines[2] == (
        "| CDP | 94.12 ± 0.25 | 94.57 ± 0.19 | -0.45 | 93.00 ± 0.50 | 92.88 ± 0.29 | +0.12 "
        "| diverged (2 of 5 diverged) | 86.61 | – |"
    )


def test_best_pairs_are_one_cell_and_say_where_they_lie() -> None:
    artifact = load_artifact("fedexp/table2")
    labels = {"dataset": "synthetic", "dp": "ldp", "method": "FedAvg"}
    rows = Rows(
        [
            Row(labels, "best.clip_norm", 10.0, paper=3.0, paper_note="M", note="edge of the grid"),
            Row(labels, "best.local_lr", 0.003, paper=0.003, paper_note="M"),
        ],
        ["dataset", "dp", "method"],
    )
    assert table(artifact, artifact.declaration.tables[0], rows).splitlines()[2] == (
        "| synthetic | LDP (Gaussian) | 0.003, 10 (edge) | 0.003, 3 [M] | differs |"
    )


def test_the_edge_stands_at_parameters_and_spreads_have_the_numbers_decimals(tmp_path: Path) -> None:
    artifact = declared(tmp_path, tables=[{"rows": ["method"], "columns": ["measure"], "cells": ["distance", "best.local_lr"]}])
    labels, edge = {"method": "FedAvg"}, "local_lr=0.01 (largest of 3)"
    found = Row(labels, "distance", 80.6, std=5.4e-06, n=2, seeds=2, best=True, edge=edge)
    rows = Rows([found, Row(labels, "best.local_lr", 0.01, best=True, edge=edge)], ["method"])
    layout = artifact.declaration.tables[0]
    assert table(artifact, layout, rows).splitlines()[2] == "| FedAvg | 80.60 ± 0.00 | 0.01 (edge) |"
    alone = layout.model_copy(update={"cells": ["distance"]})
    assert table(artifact, alone, rows).splitlines()[2] == "| FedAvg | 80.60 ± 0.00 (edge) |"
    small = Rows([replace(found, value=1.2e-4, edge="")], ["method"])
    assert table(artifact, alone, small).splitlines()[2] == "| FedAvg | 1.2e-04 ± 5.4e-06 |"


def test_only_what_a_point_was_chosen_by_says_that_it_is_at_an_edge(tmp_path: Path) -> None:
    measures = {
        **SMALL["measures"],
        "loss": {"metric": "train_loss", "at": "last"},
        "accuracy": {"metric": "accuracy", "at": "last", "better": "higher"},
        "epsilon": {"price": "run"},
    }
    edge = "local_lr=0.01 (largest of 3)"
    chosen = [Row({"method": "FedAvg"}, name, 2.0, best=True, edge=edge) for name in ("distance", "loss", "accuracy", "epsilon")]
    rows = Rows(chosen, ["method"])

    def shown(*cells: str) -> tuple[str, bool]:
        artifact = declared(tmp_path, measures=measures, tables=[{"rows": ["method"], "cells": list(cells)}])
        line = table(artifact, artifact.declaration.tables[0], rows).splitlines()[2]
        return line, "the chosen point lies at the end" in page(
            artifact, "quick", Rows([*rows.rows, _CURVE], rows.labels), [], []
        )

    assert shown("epsilon", "loss", "accuracy", "distance") == ("| FedAvg | 2, 2, 2, 2.00 (edge) |", True)
    assert shown("epsilon", "loss", "accuracy") == ("| FedAvg | 2, 2, 2 (edge) |", True)  # chosen by what is not shown
    assert shown("epsilon", "loss") == ("| FedAvg | 2, 2 |", False)


_CURVE = Row({"method": "FedAvg", "local_lr": 0.003, "round": 0}, "curve", 1.0)


@given(st.lists(st.one_of(st.integers(-9, 9), st.floats(-9, 9), st.sampled_from(["none", "all", "exact"]))))
def test_numbers_are_in_order_of_size_and_texts_stay_before_or_after_them(values: list[Any]) -> None:
    found = in_order(values)
    numbers, texts = ([value for value in dict.fromkeys(values) if isinstance(value, str) is text] for text in (False, True))
    assert [value for value in found if not isinstance(value, str)] == sorted(numbers)
    assert [value for value in found if isinstance(value, str)] == texts
    if numbers:
        before = list(dict.fromkeys(values[: values.index(numbers[0])]))
        assert found[: len(before) + 1] == [*before, min(numbers)]
        assert not isinstance(found[len(before) + len(numbers) - 1], str)


def test_numbers_of_several_blocks_are_in_order_in_tables_legends_and_bars(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order = [0.33, 3.3, "none", 20, 0.5, 10]
    rows = Rows([Row({"method": "A", "local_lr": rate}, "distance", 5.0) for rate in order], ["method", "local_lr"])
    artifact = declared(tmp_path, titles={"local_lr": "lr"})
    header = table(artifact, artifact.declaration.tables[0], rows).splitlines()[0]
    assert header == "| method | lr 0.33 | lr 0.5 | lr 3.3 | lr 10 | lr 20 | none |"
    assert rows.choices("local_lr") == [0.33, 0.5, 3.3, 10, 20, "none"]
    ticks: list[Any] = []
    monkeypatch.setattr(Axes, "set_xticks", lambda self, places, labels, **options: ticks.append(labels))
    draw(declared(tmp_path, figure={"kind": "bars", "x": "local_lr", "measures": ["distance"]}), "quick", rows)
    assert ticks == [["0.33", "0.5", "3.3", "10", "20", "none"]]


def test_a_large_number_has_an_exponent_unless_it_is_a_count(tmp_path: Path) -> None:
    measures = {**SMALL["measures"], "count": {"fact": "dimension", "decimals": 0}}
    artifact = declared(tmp_path, measures=measures)
    texts = {63356698361856.0: "6.336e+13", -2.5e6: "-2.5e+06", 1e6: "1e+06", 999999.994: "999999.99", 12.0: "12.00"}
    assert {value: number_text(artifact, "distance", value) for value in texts} == texts
    assert number_text(artifact, "count", 2156490.0) == "2156490"
    assert number_text(artifact, "count", 2156490.5) == "2.156e+06"
    assert spread_text(artifact, "distance", 5.0, 2.5e6) == "2.5e+06"
    assert spread_text(artifact, "distance", 2.5e7, 2.5e6) == "2.5e+06"
    assert spread_text(artifact, "distance", 5.0, 0.25) == "0.25"


def _small(folder: Path) -> tuple[Artifact, RunStore, Rows]:
    artifact = declared(folder)
    store = RunStore(folder / "outputs")
    found = publish_runs(
        artifact, "quick", store, lambda labels, seed, number: {"distance": 5.0 + seed - number + (labels["method"] == "FedAvg")}
    )
    return artifact, store, reduce_runs(artifact, found, {cell.plan.id: store.match(cell.plan.id) for cell in found})


def test_the_page_says_what_an_epsilon_means(tmp_path: Path) -> None:
    artifact, _, rows = _small(tmp_path)
    text = page(artifact, "quick", rows, [], [])
    statement = next(line for line in text.splitlines() if "replace_one" in line)
    for part in ("gdp", "client", "replace_one", "1e-05", "| 4 |", "yes", "FedEXP"):
        assert part in statement
    assert "tuning not included" in text
    assert "3 seeds" in text


def test_equal_rows_give_equal_figures_and_others_do_not(tmp_path: Path) -> None:
    artifact, _, rows = _small(tmp_path)
    first, second = draw(artifact, "quick", rows), draw(artifact, "quick", rows)
    assert first == second
    assert first["figure.png"].startswith(b"\x89PNG")
    assert first["figure.pdf"].startswith(b"%PDF")
    assert b"CreationDate" not in first["figure.pdf"]
    assert draw(artifact, "quick", Rows(rows.rows[:20], rows.labels))["figure.png"] != first["figure.png"]


def _height(png: bytes) -> int:
    return int.from_bytes(png[20:24], "big")


def test_a_list_of_figures_is_drawn_below_one_another(tmp_path: Path) -> None:
    _, _, rows = _small(tmp_path)
    lines = {"kind": "lines", "x": "round", "measures": ["curve"], "series": "method", "where": {"local_lr": 0.003}}
    bars = {"kind": "bars", "x": "local_lr", "measures": ["distance"], "series": "method", "title": "At the end"}
    one = draw(declared(tmp_path, figure=lines), "quick", rows)["figure.png"]
    two = draw(declared(tmp_path, figure=[lines, bars]), "quick", rows)["figure.png"]
    assert _height(two) > 1.8 * _height(one)


def test_a_diverged_bar_and_a_cut_line_are_in_the_legend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    legends: list[list[str]] = []
    legend = Figure.legend

    def kept(self: Any, handles: Any, labels: Any, **options: Any) -> Any:
        legends.append(list(labels))
        return legend(self, handles, labels, **options)

    monkeypatch.setattr(Figure, "legend", kept)
    bars = declared(tmp_path, figure={"kind": "bars", "x": "local_lr", "measures": ["distance"], "series": "method"})
    values = {"FedEXP": 1.0, "FedAvg": float("inf")}
    rows = [Row({"method": method, "local_lr": 0.1}, "distance", value) for method, value in values.items()]
    draw(bars, "quick", Rows(rows, ["method", "local_lr"]))
    assert legends.pop() == ["FedEXP", "diverged"]
    draw(bars, "quick", Rows(rows[:1], ["method", "local_lr"]))
    assert legends.pop() == ["FedEXP"]
    figure = {"kind": "lines", "x": "round", "measures": ["curve"], "series": "method", "y_range": [0.5, 9.0]}
    lines = declared(tmp_path, figure=figure)
    points = [
        Row({"method": method, "round": number}, "curve", start / (1 + number))
        for method, start in (("FedEXP", 1.5), ("FedAvg", 9.0))
        for number in range(4)
    ]
    draw(lines, "quick", Rows(points, ["method", "round"]))
    assert legends.pop() == ["FedEXP (continues below the axis)", "FedAvg"]


def _drawn_lines(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The colour, line style and label of every line that is drawn from now on."""
    drawn: list[dict[str, Any]] = []
    plot = Axes.plot

    def kept(self: Any, xs: Any, ys: Any, **options: Any) -> Any:
        drawn.append({"points": len(xs), **options})
        return plot(self, xs, ys, **options)

    monkeypatch.setattr(Axes, "plot", kept)
    return drawn


def test_a_method_keeps_its_colour_over_panels_and_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    present = {0.001: ("A", "B", "C"), 0.003: ("B", "C"), 0.01: ("C", "A")}
    points = [
        Row({"method": method, "local_lr": rate, "round": number}, "curve", 1.0 + number)
        for rate, methods in present.items()
        for method in methods
        for number in range(3)
    ]
    lines = {"kind": "lines", "x": "round", "measures": ["curve"], "series": "method"}
    figures = [{**lines, "panels": ["local_lr"], "where": {"local_lr": [0.01, 0.003]}}, {**lines, "where": {"local_lr": 0.001}}]
    drawn = _drawn_lines(monkeypatch)
    draw(declared(tmp_path, figure=figures), "quick", Rows(points, ["method", "local_lr", "round"]))
    colours: dict[str, set[str]] = {}
    for line in drawn:
        colours.setdefault(line["label"], set()).add(line["color"])
    assert [len(colours[method]) for method in "ABC"] == [1, 1, 1]
    assert len(set.union(*colours.values())) == 3


def test_a_second_label_is_told_apart_by_line_style_and_lightness(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    points = [
        Row({"method": method, "local_lr": rate, "round": number}, "curve", 1.0 + number)
        for method in ("A", "B")
        for rate in (0.001, 0.003, 0.01)
        for number in range(3)
    ]
    figure = {"kind": "lines", "x": "round", "measures": ["curve"], "series": "method", "style": "local_lr"}
    drawn = _drawn_lines(monkeypatch)
    draw(declared(tmp_path, figure=figure), "quick", Rows(points, ["method", "local_lr", "round"]))
    lines = [line for line in drawn if line["points"]]
    assert len({line["color"] for line in lines}) == len(lines) == 6
    assert [line["linestyle"] for line in lines[:3]] == [line["linestyle"] for line in lines[3:]]
    assert len({str(line["linestyle"]) for line in lines}) == 3
    legend = [line["label"] for line in drawn if not line["points"]]
    assert legend == ["A", "B", "local_lr 0.001", "local_lr 0.003", "local_lr 0.01"]


@pytest.mark.parametrize(
    ("log", "places", "wanted"),
    [
        (["x"], [1, 5, 15, 30, 60, 120], ["1", "5", "15", "30", "60", "120"]),
        (["x"], [0.001, 0.003, 0.01], ["0.001", "0.003", "0.01"]),
        (["x"], [10, 20, 21, 100], ["10", "20", "100"]),  # 21 would touch
        (["x"], [7], ["7"]),
        ([], list(range(1, 16)), ["2", "4", "6", "8", "10", "12", "14"]),
        ([], [1, 2, 3], ["1", "2", "3"]),
    ],
)
def test_ticks_are_at_few_places_of_a_log_axis_and_at_whole_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, log: list[str], places: list[float], wanted: list[str]
) -> None:
    drawn: list[Axes] = []
    label = Axes.set_xlabel

    def kept(self: Axes, *texts: Any, **options: Any) -> Any:
        drawn.append(self)
        return label(self, *texts, **options)

    monkeypatch.setattr(Axes, "set_xlabel", kept)
    artifact = declared(tmp_path, figure={"kind": "lines", "x": "local_lr", "measures": ["distance"], "log": log})
    draw(artifact, "quick", Rows([Row({"local_lr": x}, "distance", 1.0 + x) for x in places], ["local_lr"]))
    (axis,) = drawn
    low, high = axis.get_xlim()
    assert [text.get_text() for text in axis.get_xticklabels() if low <= text.get_position()[0] <= high] == wanted
    if log:
        assert not axis.get_xticks(minor=True).size


def test_rows_without_privacy_have_dashes(tmp_path: Path) -> None:
    runs = [{**SMALL["runs"][0], "overrides": [*SMALL["runs"][0]["overrides"], "dp=none"]}]
    artifact = declared(tmp_path, runs=runs)
    store = RunStore(tmp_path / "outputs")
    found = publish_runs(artifact, "quick", store, lambda labels, seed, number: {"distance": 5.0})
    rows = reduce_runs(artifact, found, {cell.plan.id: store.match(cell.plan.id) for cell in found})
    text = privacy_table(artifact, rows)
    assert "gdp" not in text
    assert "none: values are released as they are" in text
    assert text.splitlines()[2].count("| – ") == 8
    assert "tuning" not in text


def test_a_target_epsilon_stands_beside_what_was_spent(tmp_path: Path) -> None:
    artifact, _, rows = _small(tmp_path)
    assert "target" not in privacy_table(artifact, rows)
    aimed = Rows([replace(row, privacy={**row.privacy, "epsilon_target": 8.0}) for row in rows.rows], rows.labels)
    back = Rows.from_csv(aimed.to_csv("local/small", "quick"), "table.csv")
    lines = privacy_table(artifact, back).splitlines()
    assert lines[0].startswith("| runs | target epsilon of the noise | epsilon |")
    assert "| 8 | " in lines[2]


def test_rows_with_nominal_noise_say_by_what_and_what_it_is_worth(tmp_path: Path) -> None:
    private = ["dp.epsilon=3.3", "dp.relation=zero_out"]
    runs = [
        {
            **SMALL["runs"][0],
            "overrides": [*SMALL["runs"][0]["overrides"], *private],
            "axes": {
                **SMALL["runs"][0]["axes"],
                "noise": {
                    "cases": {
                        "as proved": {"overrides": []},
                        "as the paper": {"overrides": ["dp.calibration=lemma1", "dp.v=8e-8"]},
                    }
                },
            },
        }
    ]
    artifact = declared(tmp_path, runs=runs, claims=None, best=None, figure={**SMALL["figure"], "series": "noise"})
    store = RunStore(tmp_path / "outputs")
    found = publish_runs(artifact, "quick", store, lambda labels, seed, number: {"distance": 5.0})
    rows = reduce_runs(artifact, found, {cell.plan.id: store.match(cell.plan.id) for cell in found})
    told = {row.labels["noise"]: row.privacy for row in rows.rows if row.privacy}
    assert told["as the paper"]["calibration"] == "lemma1 (v=8e-08): nominal"
    assert told["as proved"]["calibration"] is None
    assert told["as the paper"]["vacuous"]
    assert not told["as proved"]["vacuous"]
    back = Rows.from_csv(rows.to_csv("local/small", "quick"), "table.csv")
    for one in (rows, back):
        lines = privacy_table(artifact, one).splitlines()
        assert lines[0].startswith("| runs | target epsilon of the noise | noise by | epsilon |")
        (paper,) = (line for line in lines if "as the paper" in line and "FedAvg" in line)
        assert "| 3.3 | lemma1 (v=8e-08): nominal | 5.927e+06 |" in paper  # to four digits, rounded up
        assert told["as the paper"]["epsilon"] == pytest.approx(5.926496e6, rel=1e-6)
        assert "| yes |" in paper
        assert "dp.epsilon is nominal (lemma1 with v=8e-08)" in paper
        (proved,) = (line for line in lines if "as proved" in line and "FedAvg" in line)
        assert "| 3.3 | – | 3.29999" in proved
    _, _, plain = _small(tmp_path / "plain")
    assert "calibration" not in plain.to_csv("local/small", "quick").splitlines()[0]


def test_one_rounding_of_epsilon_on_the_page_of_table1() -> None:
    artifact = load_artifact("fedexp/table1")
    text = page(artifact, "quick", reduce_plans(artifact, cells(artifact, "quick")), [], [])
    assert not re.search(r"15\.658(?!124)|15\.646(?!201)|15\.257(?!054)", text)
    assert "15.659 (one round of the local randomiser)" in text
    assert "per round" not in text
    assert "epsilon under the paper's convention" in text


@pytest.mark.parametrize(
    "figure",
    [
        {"kind": "lines", "x": "round", "measures": ["curve"], "series": "method", "panels": ["local_lr"], "log": ["y"]},
        {
            "kind": "lines",
            "x": "local_lr",
            "measures": ["distance", "step"],
            "panels": ["method"],
            "log": ["x"],
            "marks": [{"at": 0.002, "title": "here"}],
        },
        {"kind": "lines", "x": "step", "measures": ["distance"], "series": "method"},
        {"kind": "bars", "x": "local_lr", "measures": ["distance"], "series": "method", "y_range": [0.0, 9.0]},
        {"kind": "heatmap", "x": "local_lr", "y": "method", "measures": ["distance"], "log": ["colour"]},
    ],
)
def test_every_kind_of_figure_is_drawn(tmp_path: Path, figure: dict[str, Any]) -> None:
    artifact = declared(tmp_path, figure=figure)
    store = RunStore(tmp_path / "outputs")
    found = publish_runs(
        artifact, "quick", store, lambda labels, seed, number: {"distance": 5.0 + seed - number + 100 * labels["local_lr"]}
    )
    if figure["kind"] == "heatmap":
        artifact = declared(tmp_path, figure={**figure, "y": "local_lr"})
    rows = reduce_runs(artifact, found, {cell.plan.id: store.match(cell.plan.id) for cell in found})
    assert len(draw(artifact, "quick", rows)["figure.png"]) > 5000


def test_a_folder_is_replaced_whole(tmp_path: Path) -> None:
    folder = tmp_path / "fedexp" / "fig1" / "quick"
    publish(folder, {"a.txt": "old", "b.txt": "old"})
    publish(folder, {"a.txt": b"new"})
    assert [path.name for path in folder.iterdir()] == ["a.txt"]
    assert (folder / "a.txt").read_text() == "new"
    folder.rename(folder.with_name(".quick.old"))  # as a crash between the two renames leaves it
    publish(folder, {"a.txt": "newer"})
    assert (folder / "a.txt").read_text() == "newer"
    assert [path.name for path in folder.parent.iterdir()] == ["quick"]


def test_the_index_lists_every_artifact_with_tables_figures_and_verdicts(tmp_path: Path) -> None:
    artifact, store, _ = _small(tmp_path)
    (job,) = prepare([artifact], "quick")
    made = produce(job, store, quiet=True)
    assert sorted(path.name for path in made.folder.iterdir()) == sorted(FILES)
    (layers,) = prepare([load_artifact("fedexp/table3")], "smoke")
    produce(layers, store, quiet=True)
    root = store.outputs / "artifacts"
    found = entries(root)
    assert [entry.name for entry in found] == ["fedexp/table3 (smoke)", "local/small (quick)"]
    text, site = (path.read_text() for path in write_index(root))
    produce(prepare([artifact], "smoke")[0], store, quiet=True)
    assert [entry.name for entry in entries(root)] == ["fedexp/table3 (smoke)", "local/small (quick)"]  # the largest scale
    for entry in found:
        assert f"[{entry.name}](#{entry.anchor})" in text
        assert f'<a id="{entry.anchor}"></a>' in site
        figure = f"{entry.folder.relative_to(root).as_posix()}/figure.png"
        assert f'<img src="{figure}" alt="figure">' in site
        assert (root / figure).is_file()
    assert "<td>order</td>" in site
    assert "| order |" in text
    assert len(re.findall("<table>", site)) == len(re.findall("</table>", site)) >= 6
    for link in re.findall(r'(?:href|src)="([^"#]+)"', site):
        assert (root / link).is_file(), link


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("claims.json", "{"),
        ("claims.json", "{}"),
        ("claims.json", '{"claims": [{"id": "order"}]}'),
        ("claims.json", "[1]"),
        ("manifest.json", "{}"),
        ("manifest.json", None),
        ("table.md", None),
    ],
)
def test_a_damaged_folder_is_listed_and_stops_nothing(tmp_path: Path, file: str, text: str | None) -> None:
    artifact, store, _ = _small(tmp_path)
    made = produce(prepare([artifact], "quick")[0], store, quiet=True)
    produce(prepare([load_artifact("fedexp/table3")], "smoke")[0], store, quiet=True)
    if text is None:
        (made.folder / file).unlink()
    else:
        (made.folder / file).write_text(text)
    page, site = (path.read_text() for path in write_index(store.outputs / "artifacts"))
    line = next(line for line in page.splitlines() if line.startswith("| local/small (quick)"))
    assert "damaged" in line
    assert "fedexp/table3 (smoke)" in site
    produce(prepare([artifact], "quick")[0], store, quiet=True)
    again = write_index(store.outputs / "artifacts")[0].read_text()
    assert next(line for line in again.splitlines() if "local/small (quick)" in line).startswith("| [local/small (quick)](#")


def test_a_cell_keeps_its_pipes_and_its_angle_brackets(tmp_path: Path) -> None:
    from dpfl_cli.reproduction.index import _html

    text = markdown(["a", "b"], [["x | y", "<script>"]])
    assert "x \\| y" in text
    site = _html(text)
    assert "<td>x | y</td>" in site
    assert "<script>" not in site
