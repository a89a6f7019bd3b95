"""An artifact's folder: written aside, then put in place as a whole."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from dpfl_cli.config.errors import StoreError
from dpfl_cli.reproduction.artifact import Artifact
from dpfl_cli.simulation.store import write_atomically

PAGES = ("table.csv", "series.csv", "table.md", "claims.json", "manifest.json")
FIGURES = ("figure.png", "figure.pdf")


def files_of(artifact: Artifact) -> tuple[str, ...]:
    """The files of an artifact's folder."""
    return PAGES + (FIGURES if artifact.figures else ())


def artifact_folder(outputs: Path, name: str, scale: str) -> Path:
    """outputs/artifacts/<paper>/<id>/<scale>."""
    return outputs / "artifacts" / name / scale


def publish(folder: Path, files: Mapping[str, str | bytes]) -> None:
    """Replaces the folder by one with these files; a reader sees the old one or the new one,
    complete.

    Raises:
      StoreError: it cannot be written.
    """
    staging = folder.with_name(f".{folder.name}.new")
    old = folder.with_name(f".{folder.name}.old")
    try:
        if (
            old.exists() and not folder.exists()
        ):  # a replacement was interrupted between its two renames
            old.rename(folder)
        shutil.rmtree(staging, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)
        staging.mkdir(parents=True)
        for name, content in files.items():
            write_atomically(
                staging / name, content.encode() if isinstance(content, str) else content
            )
        if folder.exists():
            folder.rename(old)
        staging.rename(folder)
        shutil.rmtree(old, ignore_errors=True)
    except OSError as error:
        raise StoreError(
            f"{folder}: cannot be written ({error.strerror}); make room or set DPFL_OUTPUTS, then "
            "start again"
        ) from error


def write_text(path: Path, text: str) -> None:
    """Writes one file atomically, making its folder."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, text.encode())
    except OSError as error:
        raise StoreError(
            f"{path}: cannot be written ({error.strerror}); make room or set DPFL_OUTPUTS, then "
            "start again"
        ) from error
