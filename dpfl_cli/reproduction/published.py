"""What is published: committed copies of finished artifacts, their index, and the check of them."""

from collections.abc import Collection, Mapping
from pathlib import Path

from dpfl_cli.config.errors import DpflError, StoreError
from dpfl_cli.data.files import write_atomically
from dpfl_cli.reproduction.artifact import Artifact
from dpfl_cli.reproduction.folder import (
    Files,
    Made,
    artifact_folder,
    files_of,
    folders,
    pages_of,
    publish,
)
from dpfl_cli.reproduction.judge import record
from dpfl_cli.reproduction.report import index_md
from dpfl_cli.simulation.progress import Progress

PUBLISHED = "published"  # the one folder under outputs that is committed
INDEX = "index.md"
HOW = "make publish (dpfl reproduce all scale=quick --publish)"


def publish_artifact(outputs: Path, artifact: Artifact) -> Path:
    """Copies a finished artifact to outputs/published/<paper>/<id>/<scale>, with pages as its CSV
    files give them today, writes the index, and keeps its findings as recorded.

    Raises:
      StoreError: it is not there as a whole, or cannot be written.
    """
    root, source = outputs / PUBLISHED, artifact_folder(outputs, artifact)
    try:
        names = files_of(artifact)
        files: Files = {name: (source / name).read_bytes() for name in names}
    except OSError as error:
        raise StoreError(
            f"{error.filename}: cannot be read ({error.strerror}); reproduce {artifact.name} again"
        ) from error
    record(artifact, pages_of(artifact, files)[1])
    folder = root / artifact.name / artifact.scale
    *_, pages = pages_of(artifact, files)  # they say what is recorded now
    publish(folder, {**files, **pages})
    write_atomically(root / INDEX, index_md(root).encode())
    return folder


def check_published(
    root: Path,
    artifacts: Mapping[str, Artifact],
    others: Collection[str] = (),
    quiet: bool = False,
) -> tuple[int, list[str], list[str]]:
    """Holds every published artifact against its declaration as it is now.

    Of each: all its files are there, it is complete, claims.json and table.md are byte by byte what
    its CSV files give today, and no finding differs from the recorded one. Of all: nothing else
    is published, and the index is that of these folders.

    Args:
      others: names of artifacts that are passed over.

    Returns:
      The number of verdicts compared, one line per disagreement, and the artifacts that are not
      published at quick or paper.

    Raises:
      StoreError: nothing is published.
    """
    found = folders(root)
    if not found:
        raise StoreError(f"{root}: nothing is published here, so there is nothing to check; {HOW}")
    there = {one.artifact for one in found if one.scale != "smoke"}
    compared, lines = 0, list[str]()
    mine = [made for made in found if made.artifact not in others]
    with Progress("checking", len(mine), quiet) as progress:
        for done, made in enumerate(mine):
            progress.advance(bool(done), made.artifact)
            if made.artifact not in artifacts:
                no_such = "published, but there is no such artifact; remove"
                lines.append(f"{made.artifact}: {no_such} {made.folder}")
                continue
            try:
                count, wrong = _checked(made, artifacts[made.artifact].at(made.scale))
            except DpflError as error:
                count, wrong = 0, [str(error)]
            compared += count
            lines += [f"{made.artifact} ({made.scale}): {line}" for line in wrong]
    index = root / INDEX
    if not index.is_file() or index.read_text() != index_md(root):
        lines.append(f"{index}: not the index of what is published; {HOW}")
    return compared, lines, [name for name in artifacts if name not in there]


def _checked(made: Made, artifact: Artifact) -> tuple[int, list[str]]:
    """The number of verdicts of one folder, and what is wrong with it."""
    present = {path.name: path.read_bytes() for path in made.folder.iterdir()}
    other = present.keys() ^ files_of(artifact)
    if other:
        return 0, [f"missing or unknown files: {', '.join(sorted(other))}; publish it again"]
    if made.damage:
        return 0, [f"damaged ({made.damage}); reproduce and publish it again"]
    lines = [] if made.complete else ["not complete: some of its runs failed; reproduce it again"]
    _, verdicts, again = pages_of(artifact, present)
    lines += [
        f"{file} is not what its CSV files give today; reproduce and publish it again"
        for file, text in again.items()
        if present[file] != text.encode()
    ]
    lines += [
        f"claim {one.id}: recorded '{one.recorded}', found '{one.finding}'"
        for one in verdicts
        if one.recorded != one.finding
    ]
    return len(verdicts), lines
