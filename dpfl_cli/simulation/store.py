"""The run store: `outputs/runs/<id>`, one folder a finished run, published whole or not at all.

    outputs/runs/<id>/{config.yaml, metrics.csv, ledger.json, partition.npz, result.json}   finished, never half-written
    outputs/runs/.partial/<id>/checkpoint.pt                                 unfinished: the last checkpoint

A folder appears under its id by one rename of a complete folder, after its files have reached the disk; so whatever is
there was finished. Checkpoints replace one another the same way. A lock per id keeps two processes from computing
the same run.
"""

from __future__ import annotations

import contextlib
import csv
import fcntl
import io
import json
import math
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import yaml

from dpfl_cli.config.errors import StoreError
from dpfl_cli.config.identity import ID_DIGITS, content_id
from dpfl_cli.data.threads import in_threads

SCHEMA_VERSION = 1
CLAIMED = "as claimed, not proved"  # how a guarantee begins that is a paper's word only
FILES = ("config.yaml", "metrics.csv", "ledger.json", "result.json")


@dataclass(frozen=True)
class RunRecord:
    """A finished run, read from its folder."""

    id: str
    folder: Path

    @cached_property
    def result(self) -> dict[str, Any]:
        return dict(self._json("result.json"))

    @cached_property
    def config(self) -> dict[str, Any]:
        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times faster where libyaml is there
        return dict(yaml.load(self._text("config.yaml"), Loader=loader))

    @cached_property
    def rows(self) -> list[dict[str, float]]:
        """metrics.csv: one mapping per evaluated round; empty cells are left out."""
        reader = csv.DictReader(io.StringIO(self._text("metrics.csv")))
        return [{key: float(value) for key, value in row.items() if value != ""} for row in reader]

    @cached_property
    def ledger(self) -> Any:
        from dpfl_cli.privacy.ledger import Ledger

        return Ledger.from_json(self._json("ledger.json"))

    @property
    def status(self) -> str:
        return str(self.result["status"])

    def series(self, metric: str) -> dict[int, float]:
        """round -> value of one metric."""
        return {int(row["round"]): row[metric] for row in self.rows if metric in row}

    def check(self) -> None:
        """Refuses a folder whose config does not hash to its id, or whose files cannot be read."""
        if self.result.get("schema_version") != SCHEMA_VERSION:
            raise StoreError(
                f"{self.folder}: schema version {self.result.get('schema_version')}; this dpfl reads {SCHEMA_VERSION}"
            )
        if content_id(self.config) != self.id:
            raise StoreError(f"{self.folder}/config.yaml was changed: it does not hash to {self.id}; remove the folder, or rerun")

    def _text(self, name: str) -> str:
        try:
            return (self.folder / name).read_text()
        except OSError as error:
            raise StoreError(
                f"{self.folder / name}: cannot be read ({error.strerror}); run it again with runtime.force=true"
            ) from error

    def _json(self, name: str) -> Any:
        try:
            return json.loads(self._text(name))
        except ValueError as error:
            raise StoreError(f"{self.folder / name}: damaged ({error}); run it again with runtime.force=true") from error


class RunStore:
    """The runs under one outputs folder."""

    def __init__(self, outputs: Path) -> None:
        self.outputs = outputs
        self.runs = outputs / "runs"
        self.partial = self.runs / ".partial"

    def folder(self, run_id: str) -> Path:
        return self.runs / run_id

    def find(self, run_id: str) -> RunRecord | None:
        """The finished run with this id, or None."""
        folder = self.folder(run_id)
        return RunRecord(run_id, folder) if (folder / "result.json").is_file() else None

    def all(self) -> list[RunRecord]:
        """Every finished run, oldest first."""
        if not self.runs.is_dir():
            return []
        found = [self.find(path.name) for path in self.runs.iterdir() if _is_id(path.name)]
        present = [record for record in found if record is not None]
        return sorted(present, key=lambda record: (record.folder.stat().st_mtime_ns, record.id))

    def match(self, text: str) -> RunRecord:
        """The run that an id, a unique beginning of one, or a path to its folder means."""
        name = Path(text).name if "/" in text else text
        candidates = [record for record in self.all() if record.id.startswith(name)] if name else []
        if len(candidates) != 1:
            what = "no run" if not candidates else f"{len(candidates)} runs"
            raise StoreError(f"{text}: {what} in {self.runs} with this id; `dpfl runs list` shows them")
        return candidates[0]

    def prepare(self) -> None:
        """Creates the folders; a StoreError says why it cannot."""
        try:
            self.partial.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.partial):
                pass
        except OSError as error:
            raise StoreError(
                f"{self.outputs}: cannot be written ({error.strerror}); set DPFL_OUTPUTS to a folder that can"
            ) from error

    @contextlib.contextmanager
    def lock(self, run_id: str) -> Iterator[bool]:
        """Holds the run's lock while computing it; yields False where another process holds it."""
        path = self.partial / f"{run_id}.lock"
        while True:
            with path.open("w") as handle:
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    yield False
                    return
                if not _same_file(handle.fileno(), path):
                    continue  # its last holder removed it between opening and locking
                try:
                    yield True
                finally:
                    path.unlink(missing_ok=True)
                return

    def checkpoint_file(self, run_id: str) -> Path:
        return self.partial / run_id / "checkpoint.pt"

    def write_checkpoint(self, run_id: str, payload: bytes) -> None:
        """Replaces the run's checkpoint atomically."""
        path = self.checkpoint_file(run_id)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, payload)
        except OSError as error:
            raise StoreError(f"{path}: checkpoint cannot be written ({error.strerror}); make room, then start again") from error

    def begin_forced(self, run_id: str) -> None:
        """Marks an unfinished rerun of a finished run, so that an interruption of it can be gone on with."""
        self._forced_mark(run_id).parent.mkdir(parents=True, exist_ok=True)
        self.checkpoint_file(run_id).unlink(missing_ok=True)
        self._forced_mark(run_id).touch()

    def is_forced(self, run_id: str) -> bool:
        """Whether what is unfinished is a forced rerun."""
        return self._forced_mark(run_id).exists()

    def _forced_mark(self, run_id: str) -> Path:
        return self.partial / run_id / "forced"

    def recover(self, run_id: str) -> None:
        """Ends an exchange of results that was killed between taking the old one away and putting the new one in its place."""
        target, unfinished = self.folder(run_id), self.partial / run_id
        if not target.exists() and (unfinished / "replaced").exists():
            source = unfinished / "publish" if (unfinished / "publish" / "result.json").exists() else unfinished / "replaced"
            source.rename(target)  # the new one was complete before the old one was taken away

    def publish(self, run_id: str, files: Mapping[str, str | bytes], keep_checkpoint: bool = False) -> RunRecord:
        """Publishes a finished run: all its files or none, then drops its checkpoint (unless it is to be tried again).

        An existing folder of the same id (a failed run, or a forced rerun) is exchanged for the new one.
        """
        target = self.folder(run_id)
        staging = self.partial / run_id / "publish"
        try:
            shutil.rmtree(staging, ignore_errors=True)
            staging.mkdir(parents=True)
            for name, content in files.items():
                _write(staging / name, content.encode() if isinstance(content, str) else content)
            new = [*(staging / name for name in files), staging]
            # a disk that is told of all at once writes them in one go
            in_threads([partial(_sync, path) for path in new], len(new))
            if target.exists():
                old = self.partial / run_id / "replaced"
                shutil.rmtree(old, ignore_errors=True)
                target.rename(old)
            staging.rename(target)
            _sync(self.runs)
        except OSError as error:
            raise StoreError(f"{target}: cannot be published ({error.strerror}); make room, then start again") from error
        if keep_checkpoint:
            shutil.rmtree(self.partial / run_id / "replaced", ignore_errors=True)
        else:
            shutil.rmtree(self.partial / run_id, ignore_errors=True)
        return RunRecord(run_id, target)

    def forget_unfinished(self, run_id: str) -> None:
        """Deletes what publishing left of a run, but not an unfinished forced rerun."""
        if not self.is_forced(run_id):
            shutil.rmtree(self.partial / run_id, ignore_errors=True)

    def remove(self, run_id: str) -> None:
        """Deletes a finished run and what is left of an unfinished one."""
        folder = self.folder(run_id)
        grave = self.partial / f"{run_id}.removed"
        if folder.exists():
            folder.rename(grave)
        shutil.rmtree(grave, ignore_errors=True)
        shutil.rmtree(self.partial / run_id, ignore_errors=True)


def write_atomically(path: Path, payload: bytes) -> None:
    """Writes a file so that a reader, or a restart after a crash, sees the old content or the new, never a part."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        _write(temporary, payload)
        _sync(temporary)
        temporary.replace(path)
        _sync(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def metrics_csv(rows: Sequence[Mapping[str, float]]) -> str:
    """The rows as CSV with shortest exact float digits; a metric that a row lacks is an empty cell."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(columns)
    for row in rows:
        writer.writerow([_cell(row.get(column)) for column in columns])
    return out.getvalue()


def json_text(values: Any) -> str:
    """Readable JSON; numbers that JSON does not have (inf, nan) become null."""
    return json.dumps(_finite(values), indent=2, sort_keys=False, allow_nan=False) + "\n"


def yaml_text(values: Any) -> str:
    """Readable YAML from which the same values are read back."""
    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)  # the same text, four times as fast where libyaml is there
    return str(yaml.dump(values, Dumper=dumper, sort_keys=False))


def _cell(value: float | None) -> str:
    if value is None:
        return ""
    return str(int(value)) if isinstance(value, int) else repr(float(value))


def _finite(values: Any) -> Any:
    if isinstance(values, Mapping):
        return {key: _finite(value) for key, value in values.items()}
    if isinstance(values, list | tuple):
        return [_finite(value) for value in values]
    if isinstance(values, float) and not math.isfinite(values):
        return None
    return values


def _same_file(descriptor: int, path: Path) -> bool:
    try:
        return os.fstat(descriptor).st_ino == path.stat().st_ino
    except FileNotFoundError:
        return False


def _is_id(name: str) -> bool:
    return len(name) == ID_DIGITS and all(letter in "0123456789abcdef" for letter in name)


def _write(path: Path, payload: bytes) -> None:
    path.write_bytes(payload)


def _sync(path: Path) -> None:
    """Waits until a file, or the names in a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
