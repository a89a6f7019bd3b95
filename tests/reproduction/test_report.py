"""`dpfl report`: totals, pages, downloads, escaping, damage, and which folder is shown."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dpfl_cli.cli.main import main
from dpfl_cli.config.errors import StoreError
from dpfl_cli.papers import artifacts
from dpfl_cli.reproduction.api import Comparison, Rows, exact
from dpfl_cli.reproduction.folder import publish
from dpfl_cli.reproduction.report import write_report
from dpfl_cli.reproduction.reproduce import reproduce
from dpfl_cli.reproduction.templating import TEMPLATES
from tests.reproduction.small import ONE

EVIL = "<script>alert(1)</script>"
CURVES, BARS, _ = ONE.figures


def two(rows: Rows) -> Iterator[Comparison]:
    yield exact(True, "two of them")
    yield exact(False, f"by two {EVIL}")


HOSTILE = dataclasses.replace(
    ONE,
    title=f"Title {EVIL}",
    notes=[EVIL, "[x](javascript:alert(1))"],
    claims=[
        dataclasses.replace(ONE.claims[0], readings={"by two": two, "elsewhere": lambda rows: []}),
        *ONE.claims[1:],
    ],
    figures=[  # a logarithmic curve, and a distance that is so in its second figure only
        dataclasses.replace(CURVES, log=["y"]),
        BARS,
        dataclasses.replace(BARS, log=["y"]),
    ],
)
KNOWN = {"demo/one": HOSTILE}


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("outputs")
    list(reproduce([HOSTILE], root, quiet=True))
    return root


@pytest.fixture
def site(outputs: Path, tmp_path: Path) -> Path:
    shutil.copytree(outputs / "artifacts", tmp_path / "artifacts")
    return write_report(tmp_path, KNOWN, "dpfl report").parent


def test_totals_are_those_of_the_claims(site: Path) -> None:
    front = " ".join((site / "index.html").read_text().split())
    assert (
        "claims <strong>0</strong> were tested" in front
    )  # the paper's one was run at reduced size
    assert "1 more were tried at reduced size only" in front
    assert "there 1 hold, 0 fail and 0 are undecided" in front
    assert "demo/one/quick/index.html" in front


def test_sentences_of_the_totals_are_apart(site: Path) -> None:
    file = site.parent / "artifacts/demo/one/quick/claims.json"
    told = json.loads(file.read_text())
    (one,) = (claim for claim in told["claims"] if not claim["ours"] and not claim["invariant"])
    told["claims"] += [one | {"id": "large", "finding": "not run at this size"}]
    told["claims"] += [one | {"id": "like", "data": "on stand-ins"}]
    file.write_text(json.dumps(told))
    write_report(site.parent, KNOWN, "dpfl report")
    front = " ".join((site / "index.html").read_text().split())
    assert "1 need a larger size than was run. 1 are both, at reduced size" in front


def test_a_page_has_all_that_there_is(site: Path) -> None:
    page = (site / "demo/one/quick/index.html").read_text()
    for words in ("DP-FedEXP", "epsilon does not depend on", "95 % interval", "Nobody, “A"):
        assert words in page
    said = re.sub(r"<[^>]*>", "", page)
    assert "by two: fails</small><br><small>elsewhere: not run at this size</small>" in page
    assert re.search(r"What decides it under other choices:\s+by two:\s+fails by two &lt;", said)
    assert "dpfl run -m dataset=synthetic" in page
    links = set(re.findall(r'href="([^"#]+)" download', page))
    assert {"table.csv", "series.csv", "claims.json", "figure.pdf", "commands.txt"} <= links
    assert all((site / "demo/one/quick" / name).is_file() for name in links)
    (data,) = re.findall(r'id="points">(.*?)</script>', page, flags=re.DOTALL)
    assert json.loads(data)["log"] == ["curve"]
    rows = json.loads(data)["rows"]
    assert ["fedexp", 0.1, "distance"] in [row[:3] for row in rows]
    # seeds, and no number of a paper
    assert [row[-2:] for row in rows if row[2] == "distance"] == [[3, None]] * 6


def test_links_lead_somewhere_and_nowhere_else(site: Path) -> None:
    for page in site.rglob("*.html"):
        for link in re.findall(r'(?:href|src)="([^"#]+)"', page.read_text()):
            assert "://" not in link, f"{page}: {link} needs a network"
            assert (page.parent / link).is_file(), f"{page}: {link}"


def test_html_is_escaped(site: Path) -> None:
    for page in site.rglob("*.html"):
        text = page.read_text()
        assert EVIL not in text
        assert 'href="javascript' not in text
    assert "&lt;script&gt;" in (site / "index.html").read_text()


def test_what_was_made_here_is_shown_before_what_is_published(
    outputs: Path, tmp_path: Path
) -> None:
    shutil.copytree(outputs / "artifacts", tmp_path / "published")
    page = tmp_path / "report/demo/one/quick/index.html"
    for root, words in (("published", "PUBLISHED"), ("artifacts", "MADE HERE")):
        folder = tmp_path / root / "demo/one/quick"
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copytree(outputs / "artifacts/demo/one/quick", folder, dirs_exist_ok=True)
        table = folder / "table.md"
        table.write_text(table.read_text().replace("Nobody", words))
        write_report(tmp_path, KNOWN, "dpfl report")
        assert words in page.read_text()
    (tmp_path / "artifacts/demo/one/quick/claims.json").write_text("{")  # published stands in
    write_report(tmp_path, KNOWN, "dpfl report")
    assert "PUBLISHED" in page.read_text()


def test_pages_of_what_did_not_change_stay(site: Path) -> None:
    page = site / "demo/one/quick/index.html"
    page.write_text("AS IT WAS")
    links = sorted(path.name for path in page.parent.iterdir())
    write_report(site.parent, KNOWN, "dpfl reproduce", ["demo/two"])
    assert page.read_text() == "AS IT WAS"
    assert sorted(path.name for path in page.parent.iterdir()) == links
    write_report(site.parent, KNOWN, "dpfl reproduce", ["demo/one"])
    assert "DP-FedEXP" in page.read_text()


@pytest.mark.parametrize(
    "change",
    [
        lambda text: "{",
        lambda text: text.replace('"readings": {', '"readings": {"another": "holds", '),
        lambda text: text.replace('"finding"', '"found"'),
    ],
)
def test_a_damaged_folder_is_told(site: Path, change: Callable[[str], str]) -> None:
    """Or one that an earlier dpfl has made."""
    claims = site.parent / "artifacts/demo/one/quick/claims.json"
    before = claims.read_text()
    claims.write_text(change(before))
    assert claims.read_text() != before
    write_report(site.parent, KNOWN, "dpfl report")
    assert "is damaged" in (site / "index.html").read_text()


def test_nothing_to_show_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(StoreError, match="no artifacts and nothing published"):
        write_report(tmp_path, {}, "dpfl report")
    monkeypatch.setenv("DPFL_OUTPUTS", str(tmp_path))
    assert main(["report", "fedexp"]) == 2
    assert "unrecognized arguments: fedexp" in capsys.readouterr().err


def test_budgets_are_of_pages_that_there_are() -> None:
    source, *_ = TEMPLATES.loader.get_source(TEMPLATES, "index.md.j2")  # type: ignore[union-attr]
    pages = re.findall(r'"(\w+/\w+)"', source)
    assert len(pages) == 6
    assert {*pages} <= {*artifacts()}
    papers = re.findall(r'paper == "(\w+)"', source)
    assert {*papers} <= {name.partition("/")[0] for name in artifacts()}


def test_a_folder_may_be_replaced_by_several_at_once(tmp_path: Path) -> None:
    """As `outputs/report` is when two commands end together."""
    folder = tmp_path / "report"

    def replace(number: int) -> None:
        publish(folder, {f"{number}/{name}": str(number) for name in "abc"})

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(replace, range(60)))
    (winner,) = folder.iterdir()
    assert {path.name: path.read_text() for path in winner.iterdir()} == dict.fromkeys(
        "abc", winner.name
    )
    assert [path.name for path in tmp_path.iterdir()] == ["report"]
