"""The index: one page, in markdown and HTML, of every artifact that is there: tables, figures, verdicts."""

from __future__ import annotations

import html
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpfl_cli.config.errors import StoreError
from dpfl_cli.reproduction.claims import FAILS, HOLDS, UNTESTABLE
from dpfl_cli.reproduction.declaration import SCALES
from dpfl_cli.reproduction.layout import markdown
from dpfl_cli.reproduction.publish import write_text


@dataclass(frozen=True)
class Entry:
    """One finished artifact folder."""

    folder: Path
    claims: dict[str, Any]
    manifest: dict[str, Any]
    page: str

    @property
    def name(self) -> str:
        return f"{self.claims['artifact']} ({self.claims['scale']})"

    @property
    def anchor(self) -> str:
        return re.sub(r"[^a-z0-9]+", "-", self.name.lower()).strip("-")


def entries(root: Path) -> list[Entry]:
    """Every artifact folder under outputs/artifacts, by name, then scale.

    Raises:
      StoreError: one of them is damaged.
    """
    found = []
    for path in root.glob("*/*/*/claims.json"):
        if path.parent.name not in SCALES:
            continue
        try:
            manifest = json.loads((path.parent / "manifest.json").read_text())
            found.append(Entry(path.parent, json.loads(path.read_text()), manifest, (path.parent / "table.md").read_text()))
        except (OSError, ValueError) as error:
            raise StoreError(f"{path.parent}: damaged ({error}); remove the folder, or reproduce it again") from error
    return sorted(found, key=lambda entry: (str(entry.claims["artifact"]), SCALES.index(str(entry.claims["scale"]))))


def write_index(root: Path) -> tuple[Path, Path]:
    """Writes index.md and index.html into outputs/artifacts; returns their paths."""
    found = entries(root)
    heading = "# Reproduced tables and figures"
    summary = _summary(found)
    body = [_embedded(entry, root) for entry in found]
    text = "\n\n".join([heading, *summary, *body]) + "\n"
    page = root / "index.md"
    write_text(page, text)
    site = root / "index.html"
    write_text(site, _html(text))
    return page, site


def _summary(found: list[Entry]) -> list[str]:
    """A table of artifacts, and one of the verdicts that are against expectation or surprising."""
    lines, verdicts = [], []
    for entry in found:
        claims = entry.claims["claims"]
        counts = [str(sum(claim["verdict"] == kind for claim in claims)) for kind in (HOLDS, FAILS, UNTESTABLE)]
        against = [str(claim["id"]) for claim in claims if claim["as_expected"] is False]
        complete = "yes" if entry.manifest["complete"] else "no"
        lines.append([f"[{entry.name}](#{entry.anchor})", *counts, ", ".join(against) or "none", complete])
        for claim in claims:
            reason = f" ({claim['reason']})" if claim["reason"] else ""
            verdicts.append([entry.name, claim["id"], claim["text"], claim["expected"], claim["verdict"] + reason])
    parts = [markdown(["artifact", "hold", "do not hold", "not testable", "against expectation", "complete"], lines)]
    if verdicts:
        parts += ["## Verdicts", markdown(["artifact", "claim", "what it says", "expected", "found"], verdicts)]
    return parts


def _embedded(entry: Entry, root: Path) -> str:
    """An artifact's page as a section: headings one level down, the figure found from here."""
    where = entry.folder.relative_to(root).as_posix()
    text = re.sub(r"^(#+) ", r"#\1 ", entry.page.strip(), flags=re.MULTILINE)
    first, _, rest = text.partition("\n")
    rest = rest.replace("](figure.png)", f"]({where}/figure.png)")
    files = ", ".join(f"[{name}]({where}/{name})" for name in ("table.csv", "figure.pdf", "claims.json", "manifest.json"))
    return f'<a id="{entry.anchor}"></a>\n\n{first} ({entry.claims["scale"]})\n{rest}\n\nFiles: {files}'


# --- markdown to HTML: what our own pages contain -------------------------------------------------------------------

_CSS = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 75rem; padding: 0 1rem; color: #1a1a1a }
body { background: #fff }
table { border-collapse: collapse; margin: 1rem 0; font-variant-numeric: tabular-nums; display: block; overflow-x: auto }
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
        f"<title>dpfl: reproduced tables and figures</title>\n<style>{_CSS}</style>\n</head>\n<body>\n"
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
        return "<tr>" + "".join(f"<{tag}>{_inline(cell.strip().replace(chr(92) + '|', '|'))}</{tag}>" for cell in inner) + "</tr>"

    head, body = cells(lines[0], "th"), [cells(line, "td") for line in lines[2:]]
    return "<table>\n<thead>" + head + "</thead>\n<tbody>\n" + "\n".join(body) + "\n</tbody>\n</table>"


def _inline(text: str) -> str:
    escaped = html.escape(text, quote=True)
    escaped = re.sub(r"!\[([^\]]*)\]\(([^)]*)\)", r'<img src="\2" alt="\1">', escaped)
    escaped = re.sub(r"(?<!!)\[([^\]]*)\]\(([^)]*)\)", r'<a href="\2">\1</a>', escaped)
    escaped = re.sub(r"`([^`]*)`", r"<code>\1</code>", escaped)
    return re.sub(r"\*\*([^*]*)\*\*", r"<strong>\1</strong>", escaped)
