"""The run store: `outputs/runs/<id>`, one folder a finished run, published whole or not at all.

    outputs/runs/<id>/{config.yaml, metrics.csv, ledger.json, partition.npz, result.json}
                      and model.npz where it was kept
                                                 finished, never half-written
    outputs/runs/.partial/<id>/checkpoint.pt     unfinished: the last checkpoint (of a forced rerun
                                                 forced.pt)

A folder appears under its id by one rename of a complete folder, after its files have reached the
disk; so whatever is there was finished. Checkpoints replace one another the same way. A lock per id
keeps two processes from computing the same run.

result.json holds the config once more, the SHA-256 of the other files and of itself. All are
checked where a file is read, so that nobody is shown what was changed afterwards: by damage or by
an edit, not by somebody who computes the hashes anew.
"""

import contextlib
import csv
import fcntl
import hashlib
import io
import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from dpfl_cli.config.errors import StoreError
from dpfl_cli.config.identity import ID_DIGITS, UNHASHED, content_id, digest, identity_of
from dpfl_cli.data.files import encoded, replace_folder, write_atomically

SCHEMA_VERSION = 2
RESULT = "result.json"
MODEL = "model.npz"  # where it was kept
KEYS = {"config", "data", "files", "id", "metrics", "privacy", "seed", "status"}  # it has at least
SEAL = "sha256"  # of the rest of result.json
LARGE_DELTA = "delta is not below 1/n"  # of a guarantee that publishing one unit would satisfy
CLAIMED = "as claimed, not proved"  # how a guarantee begins that is a paper's word only
AGAIN = "the command that made it makes it again"


def delta_warning(delta: float, units: int, unit: str) -> str:
    """What is to be said of a delta, to follow a guarantee; empty where nothing is."""
    if delta * units < 1:
        return ""
    would = "to publish one of them whole would satisfy it"
    return f"; WARNING: {LARGE_DELTA}, n = {units} {unit}s: {would}"


@dataclass(frozen=True)
class RunRecord:
    """A finished run, read from its folder."""

    id: str
    folder: Path

    @cached_property
    def result(self) -> dict[str, Any]:
        """result.json.

        Raises:
          StoreError: it cannot be read, was changed, or is of another schema version or run.
        """
        found, path = self._json(RESULT), self.folder / RESULT
        if not isinstance(found, dict):
            raise StoreError(f"{path}: damaged; {AGAIN}")
        version = found.get("schema_version")
        if version != SCHEMA_VERSION:
            raise StoreError(
                f"{path}: schema version {version}; this dpfl reads {SCHEMA_VERSION}; {AGAIN}"
            )
        if found.pop(SEAL, None) != digest(found) or not found.keys() >= KEYS:
            raise StoreError(f"{path}: was changed after it was written; {AGAIN}")
        if content_id(identity_of(found["config"])) != self.id:
            raise StoreError(f"{path}: its config does not hash to {self.id}; {AGAIN}")
        return found

    @cached_property
    def config(self) -> dict[str, Any]:
        """Every option of the run."""
        return {key: value for key, value in self.result["config"].items() if key != UNHASHED}

    @cached_property
    def rows(self) -> list[dict[str, float]]:
        """metrics.csv: one mapping per evaluated round; empty cells are left out."""
        return self.table("metrics.csv")

    def table(self, name: str) -> list[dict[str, float]]:
        """A file of numbers, one mapping per row; empty cells are left out."""
        reader = csv.DictReader(io.StringIO(self.content(name).decode()))
        return [{key: float(value) for key, value in row.items() if value != ""} for row in reader]

    @cached_property
    def ledger(self) -> Any:
        from dpfl_cli.privacy.ledger import Ledger

        return Ledger.from_json(self._json("ledger.json"))

    @property
    def status(self) -> str:
        """done, diverged or failed."""
        return str(self.result["status"])

    @property
    def finished(self) -> bool:
        """Whether it came to its end, good or bad; a failed run is tried again."""
        return self.status in ("done", "diverged")

    @cached_property
    def model(self) -> Any:
        """[d] the final model, as it was evaluated last, a numpy array.

        Raises:
          StoreError: none was kept.
        """
        if MODEL not in self.result["files"]:
            raise StoreError(
                f"{self.id}: its model was not kept; runtime.force=true runtime.keep_model=true "
                "runs it again and keeps it"
            )
        return self._arrays(MODEL)["model"]

    @property
    def dealt(self) -> int:
        """How many records its clients hold."""
        return len(self._arrays("partition.npz")["indices"])

    def series(self, metric: str) -> dict[int, float]:
        """round -> value of one metric."""
        return {int(row["round"]): row[metric] for row in self.rows if metric in row}

    def check(self) -> None:
        """Refuses a run of which any file is not what was published."""
        for name in self.result["files"]:
            self.content(name)

    def content(self, name: str) -> bytes:
        """A file; a StoreError where it is not what was published."""
        path = self.folder / name
        with explained(path, "cannot be read", AGAIN):
            content = path.read_bytes()
        if name != RESULT and hashlib.sha256(content).hexdigest() != self.result["files"].get(name):
            raise StoreError(f"{path}: was changed after it was written; {AGAIN}")
        return content

    def _arrays(self, name: str) -> Any:
        import numpy as np

        return np.load(io.BytesIO(self.content(name)))

    def _json(self, name: str) -> Any:
        try:
            return json.loads(self.content(name))
        except (ValueError, RecursionError) as error:
            raise StoreError(f"{self.folder / name}: damaged ({error}); {AGAIN}") from error


@contextlib.contextmanager
def explained(
    path: Path, what: str, hint: str = "make room or set DPFL_OUTPUTS, then start again"
) -> Iterator[None]:
    """Turns an error of the file system into one line that says what to do."""
    try:
        yield
    except OSError as error:
        raise StoreError(f"{path}: {what} ({error.strerror}); {hint}") from error


class RunStore:
    """The runs (or audits, which are kept in the same way) under one outputs folder."""

    def __init__(self, outputs: Path, kind: str = "runs") -> None:
        self.outputs = outputs
        self.runs = outputs / kind
        self.partial = self.runs / ".partial"

    def find(self, run_id: str) -> RunRecord | None:
        """The run that was published with this id, or None."""
        folder = self.runs / run_id
        return RunRecord(run_id, folder) if os.path.lexists(folder) else None

    def whole(self, run_id: str, say: Callable[[str], None] | None = None) -> RunRecord | None:
        """The published run if every file is what was published; `say` is called on damage."""
        record = self.find(run_id)
        try:
            if record is not None:
                record.check()
        except StoreError as error:
            if say is not None:
                say(f"run again: {error}")
            return None
        return record

    def finished(self, run_id: str) -> RunRecord | None:
        """The published run if it is whole and came to its end."""
        record = self.whole(run_id)
        return record if record is not None and record.finished else None

    def all(self) -> list[RunRecord]:
        """Every published run, oldest first."""
        if not self.runs.is_dir():
            return []
        for path in self.partial.glob("*/replaced"):
            with self.lock(path.parent.name):
                pass
        found = []
        for path in self.runs.iterdir():
            if is_id(path.name):
                with contextlib.suppress(FileNotFoundError):  # deleted by another process just now
                    found.append((path.lstat().st_mtime_ns, path.name))
        return [RunRecord(name, self.runs / name) for _, name in sorted(found)]

    def match(self, text: str) -> RunRecord:
        """The run that an id, a unique beginning of one, or a path to its folder means."""
        name, runs = Path(text).name, Path(text).absolute().parent
        if runs.name == "runs" and runs != self.runs.absolute() and is_id(name):
            return RunStore(runs.parent).match(name)  # of another store
        if is_id(name) and (found := self.find(name)):  # without a look at every run
            return found
        candidates = [record for record in self.all() if record.id.startswith(name)] if name else []
        if len(candidates) != 1:
            what = "no run" if not candidates else f"{len(candidates)} runs"
            raise StoreError(
                f"{text}: {what} in {self.runs} with this id; `dpfl runs list` shows them"
            )
        return candidates[0]

    def prepare(self) -> None:
        """Creates the folders; a StoreError says why it cannot."""
        hint = "set DPFL_OUTPUTS to a folder that can"
        with explained(self.outputs, "cannot be written", hint):
            self.partial.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.partial):
                pass

    @contextlib.contextmanager
    def lock(self, run_id: str) -> Iterator[bool]:
        """Holds the run's lock while computing it, and ends what a kill left of an exchange of its
        results; yields False where another process holds it.
        """
        path = self.partial / f"{run_id}.lock"
        while True:
            with path.open("w") as handle:
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    yield False
                    return
                except OSError as error:
                    raise StoreError(
                        f"{path}: cannot be locked ({error.strerror}); set DPFL_OUTPUTS to a "
                        "folder that can"
                    ) from error
                if not _same_file(handle.fileno(), path):
                    continue  # its last holder removed it between opening and locking
                try:
                    self._recover(run_id)
                    yield True
                finally:
                    path.unlink(missing_ok=True)
                return

    def checkpoint_file(self, run_id: str, forced: bool = False) -> Path:
        """Of a run, or of a forced rerun, which is gone on with where it is forced again."""
        return self.partial / run_id / ("forced.pt" if forced else "checkpoint.pt")

    def write_checkpoint(self, run_id: str, payload: bytes, forced: bool = False) -> None:
        """Replaces the run's checkpoint atomically."""
        path = self.checkpoint_file(run_id, forced)
        with explained(path, "checkpoint cannot be written"):
            write_atomically(path, payload)

    def _recover(self, run_id: str) -> None:
        """Ends an exchange of results that was killed between its two renames."""
        target, unfinished = self.runs / run_id, self.partial / run_id
        if not target.exists() and (unfinished / "replaced").exists():
            # the new one was complete before the old one was taken away
            complete = (unfinished / "publish" / RESULT).exists()
            (unfinished / ("publish" if complete else "replaced")).rename(target)

    def publish(
        self, run_id: str, files: Mapping[str, bytes], keep_checkpoint: bool = False
    ) -> RunRecord:
        """Publishes a finished run, all its files or none, in the place of one with its id (failed,
        or forced again); drops its checkpoint unless it is to be tried again.
        """
        target, unfinished = self.runs / run_id, self.partial / run_id
        old = unfinished / "replaced"
        with explained(target, "cannot be published"):
            replace_folder(target, files, unfinished / "publish", old)
        _delete(old if keep_checkpoint else unfinished)
        return RunRecord(run_id, target)

    def unfinished(self) -> list[str]:
        """The ids of interrupted runs, and of those that a process is at."""
        return [path.name for path in self.partial.glob("*") if path.is_dir() and is_id(path.name)]

    def forget_unfinished(self, run_id: str) -> None:
        """Deletes what a kill right after publishing left of a run, but not an unfinished forced
        rerun, nor what a process is at.
        """
        if (self.partial / run_id).exists():
            with self.lock(run_id) as held:
                if held and not self.checkpoint_file(run_id, forced=True).exists():
                    _delete(self.partial / run_id)

    def remove(self, run_id: str) -> None:
        """Deletes a finished run and what is left of an unfinished one."""
        folder, grave = self.runs / run_id, self.partial / f"{run_id}.removed"
        if folder.is_symlink():  # what it leads to is not of this store
            folder.unlink()
        elif folder.exists():
            _delete(grave)  # of a removal that was killed
            folder.rename(grave)
        _delete(grave)
        _delete(self.partial / run_id)


def sealed(files: Mapping[str, str | bytes], result: Mapping[str, Any]) -> dict[str, bytes]:
    """The files of a run with its result.json, which holds their hashes and its own."""
    contents = encoded(files)
    hashes = {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}
    whole = _finite({"schema_version": SCHEMA_VERSION, **result, "files": hashes})
    return {**contents, RESULT: json_text({**whole, SEAL: digest(whole)}).encode()}


def metrics_csv(rows: Sequence[Mapping[str, float]]) -> str:
    """The rows as CSV with shortest exact float digits; a metric that a row lacks is an empty
    cell.
    """
    columns = list(dict.fromkeys(key for row in rows for key in row))
    out = io.StringIO()
    writer = csv.DictWriter(out, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def json_text(values: Any) -> str:
    """Readable JSON; numbers that JSON does not have (inf, nan) become null."""
    return json.dumps(_finite(values), indent=2) + "\n"


def yaml_text(values: Any) -> str:
    """Readable YAML from which the same values are read back."""
    # the same text, four times as fast where libyaml is there
    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    return str(yaml.dump(values, Dumper=dumper, sort_keys=False))


def _finite(values: Any) -> Any:
    """The values as they are read back: keys are text, numbers that JSON does not have are None."""
    return json.loads(json.dumps(values), parse_constant=lambda name: None)


def _delete(folder: Path) -> None:
    """Deletes a folder that may not be there."""
    shutil.rmtree(folder, ignore_errors=True)


def _same_file(descriptor: int, path: Path) -> bool:
    try:
        return os.fstat(descriptor).st_ino == path.stat().st_ino
    except FileNotFoundError:
        return False


def is_id(name: str) -> bool:
    return re.fullmatch(f"[0-9a-f]{{{ID_DIGITS}}}", name) is not None
