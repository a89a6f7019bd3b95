"""What is published: copied whole, and held against its declarations; every way of tampering is one line."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from dpfl_cli.cli.main import main
from dpfl_cli.config.errors import StoreError
from dpfl_cli.reproduction import declaration
from dpfl_cli.reproduction.declaration import load_artifact
from dpfl_cli.reproduction.publish import FILES
from dpfl_cli.reproduction.published import check_published, publish_artifacts
from dpfl_cli.reproduction.reproduce import reproduce
from tests.reproduction.fabricated import SMALL

CLAIM = SMALL["claims"][0]
HERE = "demo/one"
Change = Callable[[Path, Path], None]  # of (the published folder of demo/one at quick, the folder of configs)


def write(conf: Path, name: str, **changes: Any) -> None:
    path = conf / "artifact" / "demo" / f"{name}.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("# A demo of two methods\n" + yaml.safe_dump({**SMALL, **changes}, sort_keys=False))


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with conf/, and outputs/ in which demo/one and demo/two are published at quick."""
    root = tmp_path_factory.mktemp("built")
    claims = [
        CLAIM,
        {**CLAIM, "id": "positive", "kind": "invariant", "predicate": "value('distance', method='FedEXP', best=True) > 0"},
    ]
    write(root / "conf", "one", claims=claims)
    runs = [{**SMALL["runs"][0], "overrides": [*SMALL["runs"][0]["overrides"], "dataset.u_std=0.3"]}]
    write(root / "conf", "two", runs=runs, claims=[])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(declaration, "conf_dir", lambda: root / "conf")
        load_artifact.cache_clear()
        names = [HERE, "demo/two"]
        made = reproduce([load_artifact(name) for name in names], "quick", root / "outputs", lambda line: None, quiet=True)
        assert all(one.complete for one in made)
        publish_artifacts(root / "outputs", names, "quick")
        yield root
    load_artifact.cache_clear()


@pytest.fixture
def published(built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it, to be tampered with; the published folder."""
    for part in ("conf", "outputs"):
        shutil.copytree(built / part, tmp_path / part, dirs_exist_ok=True)
    monkeypatch.setattr(declaration, "conf_dir", lambda: tmp_path / "conf")
    load_artifact.cache_clear()
    return tmp_path / "outputs" / "published"


def test_what_is_published_is_whole_and_agrees(published: Path, capsys: Any) -> None:
    assert sorted(str(path.relative_to(published)) for path in published.rglob("*") if path.is_file()) == sorted(
        [*(f"demo/{name}/quick/{file}" for name in ("one", "two") for file in FILES), "index.html", "index.md"]
    )
    assert check_published(published) == (2, [])
    assert main(["reproduce", "--check-published"]) == 0
    assert main(["reproduce", "--check-published", str(published)]) == 0
    assert "2 published verdicts checked, 0 disagreements" in capsys.readouterr().out
    index = (published / "index.md").read_text()
    assert "[demo/one (quick)]" in index
    assert "1 of 1" in index
    for link in ("demo/one/quick/figure.png", "demo/two/quick/table.csv"):
        assert f"]({link})" in index
        assert (published / link).is_file()


def test_publishing_is_one_command(published: Path, capsys: Any) -> None:
    shutil.rmtree(published)
    shutil.rmtree(published.parent / "artifacts")
    with pytest.raises(StoreError, match="make publish"):
        check_published(published)
    assert main(["reproduce", "all", "scale=quick", "--publish", "--quiet"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == str(published / "index.html")
    assert check_published(published) == (2, [])


def edit(file: str, old: str, new: str) -> Change:
    def change(folder: Path, conf: Path) -> None:
        text = (folder / file).read_text()
        assert old in text
        (folder / file).write_text(text.replace(old, new, 1))

    return change


def declare(**changes: Any) -> Change:
    def change(folder: Path, conf: Path) -> None:
        write(conf, "one", **changes)

    return change


def tamper(file: str, path: list[Any], value: Any) -> Change:
    def change(folder: Path, conf: Path) -> None:
        values = json.loads((folder / file).read_text())
        node = values
        for part in path[:-1]:
            node = node[part]
        node[path[-1]] = value
        (folder / file).write_text(json.dumps(values))

    return change


def worse(folder: Path, conf: Path) -> None:
    """DP-FedEXP's distance at the compared step size becomes large in the table."""
    lines = (folder / "table.csv").read_text().splitlines(keepends=True)
    (at,) = [number for number, line in enumerate(lines) if line.startswith("demo/one,quick,FedEXP,0.003,,distance,")]
    cells = lines[at].split(",")
    cells[6] = "99.0"
    lines[at] = ",".join(cells)
    (folder / "table.csv").write_text("".join(lines))


def gone(folder: Path, conf: Path) -> None:
    shutil.rmtree(folder)


def unknown(folder: Path, conf: Path) -> None:
    (conf / "artifact" / "demo" / "one.yaml").unlink()


def only_smoke(folder: Path, conf: Path) -> None:
    folder.rename(folder.with_name("smoke"))


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (gone, "demo/one: not published; make publish"),
        (only_smoke, "demo/one: not published; make publish"),
        (unknown, "there is no such artifact"),
        (lambda folder, conf: (folder / "figure.png").unlink(), "missing or unknown files: figure.png"),
        (lambda folder, conf: (folder / "note.txt").write_text(""), "missing or unknown files: note.txt"),
        (tamper("manifest.json", ["complete"], False), "not complete"),
        (tamper("manifest.json", ["artifact"], "demo/two"), "manifest.json is that of demo/two"),
        (edit("manifest.json", "{", "["), "damaged"),
        (edit("claims.json", "{", "["), "damaged"),
        (declare(title="Another title"), "its declaration was changed after it was made"),
        (declare(title="Another title"), "table.md is not what table.csv gives today"),
        (declare(claims=[{**CLAIM, "expected": "does not hold"}]), "claim order: expected 'does not hold', found 'holds'"),
        (declare(claims=[{**CLAIM, "expected": "does not hold"}]), "claim positive is published but no longer declared"),
        (declare(claims=[{**CLAIM, "id": "new"}]), "claim new is declared but not published"),
        (
            tamper("claims.json", ["claims", 0, "verdict"], "does not hold"),
            "published 'does not hold', but its table gives 'holds'",
        ),
        (tamper("claims.json", ["claims", 0, "numbers", 0, "number"], 0.5), "claims.json is not what table.csv gives today"),
        (edit("table.md", "FedEXP", "FedAvg"), "table.md is not what table.csv gives today"),
        (worse, "claim order: expected 'holds', found 'does not hold'"),
        (worse, "table.md is not what table.csv gives today"),
        (edit("table.csv", ",distance,", ",distance,x"), "is damaged"),
        (lambda folder, conf: (folder.parents[2] / "index.md").write_text("# Nothing"), "index.md: not the index"),
        (lambda folder, conf: (folder.parents[2] / "index.html").unlink(), "index.html: not the index"),
    ],
)
def test_every_tampering_is_found(published: Path, change: Change, complaint: str, capsys: Any) -> None:
    change(published / HERE / "quick", published.parents[1] / "conf")
    load_artifact.cache_clear()
    lines = check_published(published)[1]
    assert any(complaint in line for line in lines), lines
    assert all("\n" not in line for line in lines)
    assert main(["reproduce", "--check-published"]) == 3
    assert complaint in capsys.readouterr().err


def test_the_papers_numbers_are_the_present_ones(published: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """table3 of fedexp is published, then one of the paper's numbers is corrected."""
    from dpfl_cli.config.paths import conf_dir
    from dpfl_cli.reproduction import paper_numbers

    (published.parents[1] / "conf" / "artifact" / "fedexp").mkdir()
    shutil.copy(conf_dir() / "artifact" / "fedexp" / "table3.yaml", published.parents[1] / "conf" / "artifact" / "fedexp")
    assert main(["reproduce", "fedexp/table3", "--publish", "--quiet"]) == 0
    assert check_published(published)[1] == []
    shutil.copytree(paper_numbers.FOLDER, tmp_path / "numbers")
    file = tmp_path / "numbers" / "fedexp" / "table3.csv"
    file.write_text(file.read_text().replace("4128", "4129"))
    monkeypatch.setattr(paper_numbers, "FOLDER", tmp_path / "numbers")
    assert check_published(published)[1] == [
        "fedexp/table3 (quick): table.csv holds other numbers of the paper than are known today; reproduce and publish it again"
    ]


def test_an_incomplete_artifact_is_not_published(published: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    from dpfl_cli.algorithms.fedavg import FedAvg

    def broken(self: Any, *arguments: Any) -> Any:
        raise RuntimeError("no memory left")

    monkeypatch.setattr(FedAvg, "round", broken)
    before = (published / HERE / "quick" / "manifest.json").read_bytes()
    assert main(["reproduce", HERE, "--publish", "--force", "--quiet"]) == 3
    printed = capsys.readouterr()
    assert "no memory left" in printed.err
    assert str(published / HERE) not in printed.out
    assert (published / HERE / "quick" / "manifest.json").read_bytes() == before
