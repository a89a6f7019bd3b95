"""The index: one page, in markdown and HTML, of every artifact that is there: tables, figures,
verdicts.
"""

from __future__ import annotations

import html
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpfl_cli.reproduction.artifact import SCALES
from dpfl_cli.reproduction.judge import NOT_RUN, REDUCED
from dpfl_cli.reproduction.layout import markdown
from dpfl_cli.reproduction.publish import write_text
from dpfl_cli.reproduction.verdict import FAILS, HOLDS, UNDECIDED

INDEX = ("index.md", "index.html")
_CLAIM_KEYS = {"id", "text", "source", "ours", "invariant", "prior", "finding", "state", "reason"}
FINDINGS = (HOLDS, FAILS, UNDECIDED, NOT_RUN)


@dataclass(frozen=True)
class Entry:
    """One artifact folder; `damage` says why it cannot be shown."""

    folder: Path
    claims: list[dict[str, Any]]
    complete: bool
    page: str
    damage: str = ""
    edges: str = ""
    numbers: str = ""

    @property
    def paper(self) -> str:
        return self.folder.parts[-3]

    @property
    def artifact(self) -> str:
        return "/".join(self.folder.parts[-3:-1])

    @property
    def scale(self) -> str:
        return self.folder.name

    @property
    def name(self) -> str:
        return f"{self.artifact} ({self.scale})"

    @property
    def anchor(self) -> str:
        return re.sub(r"[^a-z0-9]+", "-", self.name.lower()).strip("-")


def entries(root: Path) -> list[Entry]:
    """The artifact folders below, by name: the largest scale of each that can be read, and every
    one that cannot.
    """
    shown: dict[str, Entry] = {}
    damaged: list[Entry] = []
    for folder in sorted(root.glob("*/*/*")):
        if folder.name not in SCALES or not folder.is_dir():
            continue
        entry = _entry(folder)
        other = shown.get(entry.artifact)
        if entry.damage:
            damaged.append(entry)
        elif other is None or SCALES.index(other.scale) < SCALES.index(entry.scale):
            shown[entry.artifact] = entry
    return sorted(
        [*shown.values(), *damaged], key=lambda entry: (entry.artifact, SCALES.index(entry.scale))
    )


def _entry(folder: Path) -> Entry:
    """One folder; what is wrong with it is said in the entry, so that one bad folder does not stop
    a pass.
    """
    try:
        judged = json.loads((folder / "claims.json").read_text())
        claims, numbers = judged["claims"], str(judged["numbers"])
        manifest = json.loads((folder / "manifest.json").read_text())
        complete, edges = manifest["complete"], str(manifest.get("edges", ""))
        page = (folder / "table.md").read_text()
        missing = sorted({key for claim in claims for key in _CLAIM_KEYS - set(claim)})
        if missing:
            raise ValueError(f"claims.json without {', '.join(missing)}")
    except (OSError, ValueError, KeyError, TypeError) as error:
        return Entry(folder, [], False, "", f"{type(error).__name__}: {error}")
    return Entry(folder, claims, bool(complete), page, edges=edges, numbers=numbers)


def complete_before(folder: Path) -> bool:
    """Whether a folder holds a complete artifact that can be read."""
    return folder.is_dir() and _entry(folder).complete


def index_pages(root: Path) -> tuple[str, str]:
    """index.md and index.html of a folder of artifacts."""
    found = entries(root)
    body = [_embedded(entry, root) for entry in found if not entry.damage]
    text = "\n\n".join(["# Reproduced tables and figures", *_summary(found), *body]) + "\n"
    return text, _html(text)


def write_index(root: Path) -> tuple[Path, Path]:
    """Writes index.md and index.html into a folder of artifacts; returns their paths."""
    paths = (root / INDEX[0], root / INDEX[1])
    for path, text in zip(paths, index_pages(root), strict=True):
        write_text(path, text)
    return paths


def _summary(found: list[Entry]) -> list[str]:
    """How many of the papers' claims hold at the papers' sizes; then at reduced size; then ours."""
    parts = [
        "A claim of a paper is judged at the paper's size; what is found at a smaller one is "
        "counted "
        "apart. Ours stand apart too."
    ]
    claims = [(entry, claim) for entry in found for claim in entry.claims]
    for title, mine in (
        ("The papers' claims, at their sizes", lambda one: not one["ours"] and not _reduced(one)),
        ("The papers' claims, at reduced size", lambda one: not one["ours"] and _reduced(one)),
        ("Our claims", lambda one: one["ours"]),
    ):
        shown = [(entry, one) for entry, one in claims if mine(one) and not one["invariant"]]
        lines = [
            [paper, *(str(sum(one["finding"] == name for one in many)) for name in FINDINGS)]
            for paper in dict.fromkeys(entry.paper for entry, _ in shown)
            if (many := [one for entry, one in shown if entry.paper == paper])
        ]
        total = [str(sum(one["finding"] == name for _, one in shown)) for name in FINDINGS]
        parts += [f"## {title}", markdown(["paper", *FINDINGS], [*lines, ["all", *total]])]
    lines = []
    for entry in found:
        if entry.damage:
            lines.append(
                [entry.name, "–", "–", "damaged: remove the folder, or reproduce it again"]
            )
            continue
        complete = "yes" if entry.complete else "no"
        link = f"[{entry.name}](#{entry.anchor})"
        lines.append([link, entry.numbers or "–", entry.edges or "–", complete])
    columns = [
        "artifact",
        "numbers beside the paper's",
        "best points at the edge of their grid",
        "complete",
    ]
    return [*parts, "## Artifacts", markdown(columns, lines)]


def _reduced(claim: dict[str, Any]) -> bool:
    return bool(claim["state"] == REDUCED)


def _embedded(entry: Entry, root: Path) -> str:
    """An artifact's page as a section: headings one level down, the figure found from here."""
    where = entry.folder.relative_to(root).as_posix()
    text = re.sub(r"^(#+) ", r"#\1 ", entry.page.strip(), flags=re.MULTILINE)
    first, _, rest = text.partition("\n")
    rest = rest.replace("](figure.png)", f"]({where}/figure.png)")
    files = ", ".join(
        f"[{name}]({where}/{name})"
        for name in ("table.csv", "series.csv", "figure.pdf", "claims.json", "manifest.json")
        if (entry.folder / name).is_file()
    )
    return f'<a id="{entry.anchor}"></a>\n\n{first} ({entry.scale})\n{rest}\n\nFiles: {files}'


# --- markdown to HTML: what our own pages contain
#   -------------------------------------------------------------------

_CSS = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 75rem; padding: 0 1rem }
body { background: #fff; color: #1a1a1a }
table { border-collapse: collapse; margin: 1rem 0; display: block; overflow-x: auto }
table { font-variant-numeric: tabular-nums }
th, td { border: 1px solid #ccc; padding: .25rem .6rem; text-align: left; vertical-align: top }
th { background: #f0f0f0 }
img { max-width: 100%; height: auto }
code { background: #f4f4f4; padding: 0 .2em }
h2 { border-top: 2px solid #ccc; padding-top: 1rem; margin-top: 2.5rem }
"""


def _html(text: str) -> str:
    """A complete HTML page of headings, paragraphs, lists, pipe tables, links and images."""
    blocks = [_block(block) for block in re.split(r"\n{2,}", text.strip())]
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        "<title>dpfl: reproduced tables and "
        f"figures</title>\n<style>{_CSS}</style>\n</head>\n<body>\n"
        + "\n".join(blocks)
        + "\n</body>\n</html>\n"
    )


def _block(block: str) -> str:
    if block.startswith('<a id="'):
        return block
    heading, *following = block.split("\n")
    level = re.match(r"(#{1,6}) (.*)", heading)
    if level:
        depth = len(level.group(1))
        rest = _block("\n".join(following)) if following else ""
        return f"<h{depth}>{_inline(level.group(2))}</h{depth}>\n{rest}".rstrip()
    lines = block.split("\n")
    if all(line.startswith("|") for line in lines) and len(lines) > 1:
        return _table(lines)
    if all(line.startswith("- ") for line in lines):
        return "<ul>\n" + "\n".join(f"<li>{_inline(line[2:])}</li>" for line in lines) + "\n</ul>"
    return f"<p>{_inline(block)}</p>"


def _table(lines: list[str]) -> str:
    def cells(line: str, tag: str) -> str:
        inner = re.split(r"(?<!\\)\|", line.strip())[1:-1]
        return (
            "<tr>"
            + "".join(
                f"<{tag}>{_inline(cell.strip().replace(chr(92) + '|', '|'))}</{tag}>"
                for cell in inner
            )
            + "</tr>"
        )

    head, body = cells(lines[0], "th"), [cells(line, "td") for line in lines[2:]]
    return (
        "<table>\n<thead>" + head + "</thead>\n<tbody>\n" + "\n".join(body) + "\n</tbody>\n</table>"
    )


def _inline(text: str) -> str:
    escaped = html.escape(text, quote=True)
    escaped = re.sub(r"!\[([^\]]*)\]\(([^)]*)\)", r'<img src="\2" alt="\1">', escaped)
    escaped = re.sub(r"(?<!!)\[([^\]]*)\]\(([^)]*)\)", r'<a href="\2">\1</a>', escaped)
    escaped = re.sub(r"`([^`]*)`", r"<code>\1</code>", escaped)
    return re.sub(r"\*\*([^*]*)\*\*", r"<strong>\1</strong>", escaped)
