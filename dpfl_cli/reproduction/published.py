"""What is published: committed copies of finished artifacts with their index, and the check that they are what they say."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dpfl_cli.config.errors import DpflError, StoreError
from dpfl_cli.reproduction.claims import UNTESTABLE, ClaimVerdict, claims_json, judge
from dpfl_cli.reproduction.declaration import SCALES, Artifact, artifact_names, load_artifact
from dpfl_cli.reproduction.index import INDEX, index_pages, write_index
from dpfl_cli.reproduction.layout import page
from dpfl_cli.reproduction.publish import FILES, artifact_folder, publish
from dpfl_cli.reproduction.reduce import beside_paper
from dpfl_cli.reproduction.rows import Rows

HOW = "make publish (dpfl reproduce all scale=quick --publish)"


def published_root(outputs: Path) -> Path:
    """outputs/published: the one folder under outputs that is committed."""
    return outputs / "published"


def publish_artifacts(outputs: Path, names: Sequence[str], scale: str) -> list[Path]:
    """Copies finished artifacts of a scale to outputs/published/<paper>/<id>/<scale>, and writes its index.

    Raises:
      StoreError: one of them is not there as a whole, or cannot be written.
    """
    root = published_root(outputs)
    made = []
    for name in names:
        source = artifact_folder(outputs, name, scale)
        try:
            files: dict[str, str | bytes] = {file: (source / file).read_bytes() for file in FILES}
        except OSError as error:
            raise StoreError(f"{error.filename}: cannot be read ({error.strerror}); reproduce {name} again") from error
        folder = root / name / scale
        publish(folder, files)
        made.append(folder)
    write_index(root)
    return made


def check_published(root: Path) -> tuple[int, list[str]]:
    """Holds every published artifact against its declaration as it is now.

    Of each: all its files are there, it is complete, its declaration is unchanged, the paper's numbers are the present ones,
    claims.json and table.md are byte by byte what its table.csv gives today, and no verdict is against what is expected. Of all:
    every artifact that there is is published at quick or paper, nothing else is, and the index is that of these folders.

    Returns:
      The number of verdicts compared, and one line per disagreement.

    Raises:
      StoreError: nothing is published.
    """
    folders = [path for path in sorted(root.glob("*/*/*")) if path.is_dir() and path.name in SCALES]
    if not folders:
        raise StoreError(f"{root}: nothing is published here, so there is nothing to check; {HOW}")
    compared, lines = 0, []
    names = artifact_names()
    for name in names:
        if not any((root / name / scale).is_dir() for scale in ("quick", "paper")):
            lines.append(f"{name}: not published; {HOW}")
    for folder in folders:
        name = folder.parent.relative_to(root).as_posix()
        if name not in names:
            lines.append(f"{name} ({folder.name}): published, but there is no such artifact; remove {folder}")
            continue
        try:
            count, found = _checked(folder, load_artifact(name), folder.name)
        except DpflError as error:
            count, found = 0, [str(error)]
        compared += count
        lines += [f"{name} ({folder.name}): {line}" for line in found]
    for file, text in zip(INDEX, index_pages(root), strict=True):
        if not (root / file).is_file() or (root / file).read_bytes() != text.encode():
            lines.append(f"{root / file}: not the index of what is published; {HOW}")
    return compared, lines


def _checked(folder: Path, artifact: Artifact, scale: str) -> tuple[int, list[str]]:
    """The number of verdicts of one folder, and what is wrong with it."""
    present = {path.name for path in folder.iterdir()}
    if present != set(FILES):
        odd = ", ".join(sorted(present ^ set(FILES)))
        return 0, [f"missing or unknown files: {odd}; publish it again"]
    manifest = _read(folder / "manifest.json")
    lines = []
    if manifest.get("artifact") != artifact.name or manifest.get("scale") != scale:
        lines.append(f"manifest.json is that of {manifest.get('artifact')} at {manifest.get('scale')}")
    if manifest.get("complete") is not True:
        lines.append("not complete: some of its runs failed; reproduce it again")
    if manifest.get("declaration_sha256") != hashlib.sha256(artifact.path.read_bytes()).hexdigest():
        lines.append("its declaration was changed after it was made; reproduce and publish it again")
    table = folder / "table.csv"
    rows = Rows.from_csv(table.read_text(), str(table))
    if beside_paper(artifact, rows.rows) != list(rows.rows):
        lines.append("table.csv holds other numbers of the paper than are known today; reproduce and publish it again")
    verdicts = judge(artifact, scale, rows)
    before = {str(one.get("id")): str(one.get("verdict")) for one in _claims(folder / "claims.json")}
    for verdict in verdicts:
        lines += _disagreements(verdict, before.pop(verdict.claim.id, None), scale)
    lines += [f"claim {name} is published but no longer declared" for name in before]
    gaps = [str(gap) for gap in manifest.get("gaps") or []]
    again = {"claims.json": claims_json(artifact, scale, verdicts), "table.md": page(artifact, scale, rows, verdicts, gaps)}
    for file, text in again.items():
        if (folder / file).read_bytes() != text.encode():
            lines.append(f"{file} is not what table.csv gives today; reproduce and publish it again")
    return len(verdicts), lines


def _disagreements(now: ClaimVerdict, before: str | None, scale: str) -> list[str]:
    claim = f"claim {now.claim.id}"
    if before is None:
        return [f"{claim} is declared but not published; reproduce and publish it again"]
    lines = []
    if before != now.verdict:
        lines.append(f"{claim}: published '{before}', but its table gives '{now.verdict}' {now.reason}".rstrip())
    if now.expected == "either":
        return lines
    testable = SCALES.index(scale) >= SCALES.index(now.claim.scale)
    if now.verdict == UNTESTABLE and testable:
        lines.append(f"{claim}: expected '{now.expected}', but it could not be tested: {now.reason}")
    elif now.as_expected is False:
        lines.append(f"{claim}: expected '{now.expected}', found '{now.verdict}'")
    return lines


def _claims(path: Path) -> list[dict[str, Any]]:
    claims = _read(path).get("claims")
    if not isinstance(claims, list) or not all(isinstance(one, dict) for one in claims):
        raise StoreError(f"{path}: damaged (no list of claims); reproduce and publish it again")
    return claims


def _read(path: Path) -> dict[str, Any]:
    try:
        values = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise StoreError(f"{path}: damaged ({error}); reproduce and publish it again") from None
    if not isinstance(values, dict):
        raise StoreError(f"{path}: damaged (not a mapping); reproduce and publish it again")
    return values
