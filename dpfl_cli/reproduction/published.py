"""What is published: committed copies of finished artifacts, their index, and the check of them."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

from dpfl_cli.config.errors import DpflError, StoreError
from dpfl_cli.reproduction.artifact import SCALES, Artifact, Scale
from dpfl_cli.reproduction.folder import SEARCH, artifact_folder, files_of, publish, read_folder
from dpfl_cli.reproduction.judge import Verdict, claims_json, judge, record
from dpfl_cli.reproduction.layout import page
from dpfl_cli.reproduction.report import index_md
from dpfl_cli.reproduction.tables import from_csv
from dpfl_cli.simulation.store import write_atomically

INDEX = "index.md"
Files = Mapping[str, bytes]  # name -> content
HOW = "make publish (dpfl reproduce all scale=quick --publish)"


def published_root(outputs: Path) -> Path:
    """outputs/published: the one folder under outputs that is committed."""
    return outputs / "published"


def publish_artifacts(outputs: Path, artifacts: Sequence[Artifact], scale: Scale) -> list[Path]:
    """Copies finished artifacts to outputs/published/<paper>/<id>/<scale>, writes its index, and
    keeps their findings as recorded.

    Raises:
      StoreError: one of them is not there as a whole, or cannot be written.
    """
    root = published_root(outputs)
    made = []
    for artifact in artifacts:
        source = artifact_folder(outputs, artifact.name, scale)
        try:
            names = files_of(artifact, scale)
            files: Files = {name: (source / name).read_bytes() for name in names}
        except OSError as error:
            raise StoreError(
                f"{error.filename}: cannot be read ({error.strerror}); reproduce {artifact.name} "
                "again"
            ) from error
        made.append(_put(root, artifact, scale, files))
    write_atomically(root / INDEX, index_md(root).encode())
    return made


def _put(root: Path, artifact: Artifact, scale: Scale, files: Files) -> Path:
    """One folder, with pages as its CSV files give them today and its findings as recorded."""
    record(artifact.name, scale, remade(artifact, scale, files)[0])
    folder = root / artifact.name / scale
    publish(folder, {**files, **remade(artifact, scale, files)[1]})  # they say what is recorded now
    return folder


def remade(
    artifact: Artifact, scale: Scale, files: Files
) -> tuple[Sequence[Verdict], dict[str, str]]:
    """The verdicts, and table.md and claims.json, as the CSV files give them today."""
    manifest = json.loads(files["manifest.json"])
    rows = from_csv(artifact, {name: files[name].decode() for name in ("table.csv", "series.csv")})
    verdicts = judge(artifact, scale, rows)
    horizon, gaps, search = manifest["tested_to"], manifest["gaps"], files.get(SEARCH, b"").decode()
    return verdicts, {
        "claims.json": claims_json(artifact, scale, verdicts, horizon, rows),
        "table.md": page(artifact, scale, rows, verdicts, horizon, gaps, search),
    }


def check_published(
    root: Path, artifacts: Mapping[str, Artifact]
) -> tuple[int, list[str], list[str]]:
    """Holds every published artifact against its declaration as it is now.

    Of each: all its files are there, it is complete, claims.json and table.md are byte by byte what
    its CSV files give today, and no finding differs from the recorded one. Of all: nothing else
    is published, and the index is that of these folders.

    Returns:
      The number of verdicts compared, one line per disagreement, and the artifacts that are not
      published at quick or paper.

    Raises:
      StoreError: nothing is published.
    """
    folders = [path for path in sorted(root.glob("*/*/*")) if path.is_dir() and path.name in SCALES]
    if not folders:
        raise StoreError(f"{root}: nothing is published here, so there is nothing to check; {HOW}")
    lines = []
    absent = [
        name
        for name in artifacts
        if not any((root / name / scale).is_dir() for scale in ("quick", "paper"))
    ]
    compared = 0
    for folder in folders:
        name = folder.parent.relative_to(root).as_posix()
        if name not in artifacts:
            lines.append(f"{name}: published, but there is no such artifact; remove {folder}")
            continue
        try:
            count, found = _checked(folder, artifacts[name], cast(Scale, folder.name))
        except DpflError as error:
            count, found = 0, [str(error)]
        compared += count
        lines += [f"{name} ({folder.name}): {line}" for line in found]
    index = root / INDEX
    if not index.is_file() or index.read_text() != index_md(root):
        lines.append(f"{index}: not the index of what is published; {HOW}")
    return compared, lines, absent


def _checked(folder: Path, artifact: Artifact, scale: Scale) -> tuple[int, list[str]]:
    """The number of verdicts of one folder, and what is wrong with it."""
    present, wanted = {path.name for path in folder.iterdir()}, set(files_of(artifact, scale))
    if present != wanted:
        return 0, [
            f"missing or unknown files: {', '.join(sorted(present ^ wanted))}; publish it again"
        ]
    made = read_folder(folder)
    if made.damage:
        return 0, [f"damaged ({made.damage}); reproduce and publish it again"]
    lines = [] if made.complete else ["not complete: some of its runs failed; reproduce it again"]
    files: Files = {name: (folder / name).read_bytes() for name in wanted}
    verdicts, again = remade(artifact, scale, files)
    lines += [
        f"{file} is not what its CSV files give today; reproduce and publish it again"
        for file, text in again.items()
        if files[file] != text.encode()
    ]
    lines += [
        f"claim {one.id}: recorded '{one.recorded}', found '{one.finding}'"
        for one in verdicts
        if one.recorded != one.finding
    ]
    return len(verdicts), lines
