"""Finished runs as one file that another machine's store takes: a tar.xz of `<id>/<file>`.

What a stranger's archive may hold: regular files of these names and no others, so that none lands
elsewhere; not more bytes than MOST_BYTES, however small the archive; runs that are whole, which is
checked before the first of them is published. The hashes show damage, not who made a run.
"""

import io
import lzma
import re
import tarfile
import tempfile
from collections.abc import Iterable
from pathlib import Path

from dpfl_cli.config.errors import StoreError
from dpfl_cli.simulation.progress import Progress
from dpfl_cli.simulation.store import RESULT, RunRecord, RunStore, explained

MOST_BYTES = 1 << 31  # of an archive unpacked, with its headers
MEMBER = re.compile(
    r"([0-9a-f]{12})/(config\.yaml|metrics\.csv|ledger\.json|(?:partition|model)\.npz|result\.json)"
)
NUMBERS = ("metrics.csv", "ledger.json")  # equal in equal runs, whatever machine made them
TAKEN, KNOWN, DIFFERS = "taken", "here already", "differs"  # what became of a run, or it is in use
DAMAGED = (tarfile.TarError, lzma.LZMAError, EOFError, ValueError, OSError)


def packed(records: Iterable[RunRecord]) -> bytes:
    """An archive of runs; equal runs make equal bytes.

    Raises:
      StoreError: a run is damaged, or all are too large together.
    """
    members = [
        (name, sha256, record)
        for record in records
        for name, sha256 in {**record.result["files"], RESULT: ""}.items()
    ]
    # equal files side by side, and files of a kind, are small once compressed
    members.sort(key=lambda one: (one[0], one[1], one[2].id))
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:xz", format=tarfile.USTAR_FORMAT) as archive:
        for name, _, record in members:
            content = record.content(name)
            member = tarfile.TarInfo(f"{record.id}/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
            if archive.offset + 2 * tarfile.RECORDSIZE > MOST_BYTES:  # it is filled up at its end
                raise StoreError(
                    f"the archive would unpack to over {MOST_BYTES >> 20} MiB; name fewer runs"
                )
    return out.getvalue()


def take(path: Path, store: RunStore) -> list[tuple[str, str]]:
    """Publishes the runs of an archive: (id, what became of it), `DIFFERS` where a finished run
    with other numbers was kept.

    Raises:
      StoreError: the archive cannot be read, or any run in it is not what was packed; then none is
        taken.
    """
    try:
        with lzma.open(path) as file:
            content = file.read(MOST_BYTES + 1)
        if len(content) > MOST_BYTES:
            raise ValueError(f"more than {MOST_BYTES >> 20} MiB in it")
        runs = _unpacked(content)
    except FileNotFoundError as error:
        raise StoreError(f"{path}: no such file") from error
    except DAMAGED as error:
        raise StoreError(f"{path}: not an archive of runs, or damaged ({error})") from error
    store.prepare()
    with (
        explained(store.partial, "cannot be written"),
        tempfile.TemporaryDirectory(prefix="import-", dir=store.partial) as scratch,
    ):
        for run_id, files in runs.items():
            folder = Path(scratch) / run_id
            folder.mkdir()
            for name, content in files.items():
                (folder / name).write_bytes(content)
            record = RunRecord(run_id, folder)
            try:
                record.check()
            except (StoreError, TypeError, AttributeError) as error:
                raise StoreError(f"{path}: nothing taken: {error}") from error
            if {*record.result["files"], RESULT} != set(files) or not record.finished:
                raise StoreError(f"{path}: nothing taken: {run_id} is no whole finished run")
    became = dict.fromkeys(runs, "in use by another process, kept")
    with Progress(path.name, len(runs)) as progress:
        for run_id, files in runs.items():
            with store.lock(run_id) as held:
                if held and (known := store.finished(run_id)):
                    same = all(
                        (known.folder / name).read_bytes() == files[name] for name in NUMBERS
                    )
                    became[run_id] = KNOWN if same else DIFFERS
                elif held:
                    store.publish(run_id, files)
                    became[run_id] = TAKEN
            progress.advance()
    return [*became.items()]


def _unpacked(content: bytes) -> dict[str, dict[str, bytes]]:
    """id -> file -> content, of a stranger's tar."""
    runs: dict[str, dict[str, bytes]] = {}
    with tarfile.open(fileobj=io.BytesIO(content), mode="r:") as archive:
        for member in archive:
            named = MEMBER.fullmatch(member.name)
            file = archive.extractfile(member) if named and member.isreg() else None
            if named is None or file is None:
                raise ValueError(f"it holds {member.name!r}, which is no file of a run")
            runs.setdefault(named[1], {})[named[2]] = file.read()
    return runs
