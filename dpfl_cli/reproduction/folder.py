"""An artifact's folder: its pages, from its CSV files; written aside, put in place as a whole, and
read back.
"""

import fcntl
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from dpfl_cli.data.files import encoded, replace_folder
from dpfl_cli.reproduction.artifact import SCALES, Artifact, Scale
from dpfl_cli.reproduction.judge import VERDICT, Verdict, claims_json, judge, recorded
from dpfl_cli.reproduction.layout import page
from dpfl_cli.reproduction.rows import Rows
from dpfl_cli.reproduction.tables import CSV, from_csv
from dpfl_cli.simulation.store import explained

PAGES = ("table.csv", "series.csv", "table.md", "claims.json", "manifest.json")
SEARCH = "search.csv"
FIGURES = ("figure.png", "figure.pdf")
Files = Mapping[str, bytes]  # name -> content


def files_of(artifact: Artifact) -> tuple[str, ...]:
    """The files of an artifact's folder."""
    figures = FIGURES if artifact.figures else ()
    return PAGES + figures + ((SEARCH,) if artifact.searched else ())


def pages_of(artifact: Artifact, files: Files) -> tuple[Rows, list[Verdict], dict[str, str]]:
    """The rows, the verdicts, and table.md and claims.json, as manifest and CSV files give them
    today.
    """
    manifest = json.loads(files["manifest.json"])
    rows = from_csv(artifact, {name: files[name].decode() for name in CSV})
    verdicts = judge(artifact, rows, manifest["data"])
    horizon, gaps, search = manifest["tested_to"], manifest["gaps"], files.get(SEARCH, b"").decode()
    return (
        rows,
        verdicts,
        {
            "claims.json": claims_json(artifact, verdicts, horizon, rows),
            "table.md": page(artifact, rows, verdicts, horizon, gaps, search),
        },
    )


def artifact_folder(outputs: Path, artifact: Artifact) -> Path:
    """outputs/artifacts/<paper>/<id>/<scale>."""
    return outputs / "artifacts" / artifact.name / artifact.folder


def publish(folder: Path, files: Mapping[str, str | bytes]) -> None:
    """Replaces the folder by one with these files; a reader sees the old one or the new one,
    complete, whoever else replaces it at the same time.

    Raises:
      StoreError: it cannot be written.
    """
    new, old = (folder.with_name(f".{folder.name}.{end}") for end in ("new", "old"))
    with explained(folder, "cannot be written"), _alone_in(folder.parent):
        replace_folder(folder, encoded(files), new, old)
        shutil.rmtree(old, ignore_errors=True)


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Waits for other processes that replace a folder in this one."""
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # of a file system without locks
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


@dataclass(frozen=True)
class Made:
    """An artifact's folder as it was read: <paper>/<id>/<scale>; `damage` says why it cannot be
    shown.
    """

    folder: Path
    damage: str = ""
    page: str = ""
    claims: Sequence[Verdict] = ()
    numbers: str = ""
    manifest: Mapping[str, Any] = field(default_factory=dict)
    complete: bool = False

    @property
    def paper(self) -> str:
        return self.folder.parts[-3]

    @property
    def artifact(self) -> str:
        return "/".join(self.folder.parts[-3:-1])

    @property
    def scale(self) -> Scale:
        return cast(Scale, self.folder.name)


def read_folder(folder: Path) -> Made:
    """One folder; what is wrong with it is said there, so that one bad folder stops nothing."""
    try:
        judged = json.loads((folder / "claims.json").read_text())
        manifest = json.loads((folder / "manifest.json").read_text())
        page = (folder / "table.md").read_text()
        known = recorded().get(judged["artifact"], {}).get(judged["scale"], {})
        claims = [
            VERDICT.validate_python({**one, "recorded": known.get(one["id"], "")})
            for one in judged["claims"]
        ]
        complete = manifest["complete"] is True
        return Made(folder, "", page, claims, judged["numbers"], manifest, complete)
    except (OSError, ValueError, KeyError, TypeError) as error:
        return Made(folder, f"{type(error).__name__}: {' '.join(str(error).split())}")


def folders(*roots: Path) -> list[Made]:
    """Every artifact's folder below the roots, by name and size; an earlier root's come first."""
    found: dict[tuple[str, ...], Made] = {}
    for root in roots:
        for folder in root.glob("*/*/*"):
            if folder.name in SCALES and folder.is_dir():
                made = found.get(folder.parts[-3:])
                if made is None or made.damage:
                    found[folder.parts[-3:]] = read_folder(folder)
    return sorted(found.values(), key=lambda one: (one.artifact, SCALES.index(one.scale)))
